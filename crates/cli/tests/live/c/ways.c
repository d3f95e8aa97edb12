// Less common ways to a managed file. What must hold it checks itself.
//
//     ways times FILE            a time that is set stays, whatever was stored before
//     ways asynchronous FILE     transfers by aio_read(3) and its kin
//     ways copies FILE           the kernel copies to a descriptor's own offset, for several at a time
//     ways arrivals FILE         descriptors come by calls that are seldom made
//     ways sent FILE             a descriptor is sent in one of several messages
//     ways temporary FILE        a file of tmpfile(3)
//     ways pipes FILE            pages are moved from a pipe
//     ways flags FILE            flags of single reads
//     ways room FILE             buffers that end before what is to be read
//     ways vectors FILE          arrays of buffers that are not there
//     ways blocked FILE          arrays of buffers in a mapping, with signals blocked
//     ways submitted FILE        transfers by io_submit(2)
//     ways cancelled FILE        threads are cancelled that read, write, sync, open and close
//     ways jumps FILE            handlers leave reads and writes by siglongjmp(3)
//     ways code FILE             code is written through one mapping and called through another
//     ways grown FILE            buffers in what a mapping grew by
//     ways stacks FILE           children are spawned by threads with little stack
//     ways listed FILE           children are started by execl(3) and its kin, system(3) and popen(3)
//     ways seeks FILE            a stream is moved on from where it wrote
//     ways tail FILE             one process appends, another reads what is new
//     ways offsets FILE          copies take offsets from a mapping of what they change, and leave them there
//     ways space FILE            requests of ioctl(2) that are fallocate(2) by another name
//     ways longer FILE           a file is given room, and what it has stays in memory
//     ways views FILE            children are forked when files that were read are let go of
//     ways advice FILE           advice on what is locked, or not mapped everywhere
//     ways formatted FILE        text is written by dprintf(3) and its kin
//     ways direct FILE           reads by a descriptor with O_DIRECT
//     ways faulted FILE          a file is made longer after a write whose buffer ended in nothing
//     ways beside FILE           children are forked as files are closed and deleted
//     ways reopened FILE         a stream is reopened, however it was buffered
//     ways outlives FILE         a forked child has a descriptor when all others are gone
#define _GNU_SOURCE
#include <aio.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <linux/fs.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>

#include "check.h"

// With an error, and which.
#define FAILS(x, number) CHECK((errno = 0, (x)) == -1 && errno == (number))

enum { PAGE = 4096, PAGES = 512, BYTES = PAGES * PAGE };
static char room[BYTES];

// A file with a letter for each page.
static int make(const char *path, char first) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd > 2);
    for (int i = 0; i < PAGES; i++) memset(room + i * PAGE, first + i % 26, PAGE);
    CHECK(write(fd, room, BYTES) == BYTES && fsync(fd) == 0 && lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

static char *map(int fd) {
    char *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void ended(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

// ---- times ----------------------------------------------------------------------------------------

enum { WAYS = 14, THEN = 1000000000 };

static void set_times(int way, int fd, const char *path) {
    struct timespec times[2] = {{THEN, 0}, {THEN + way, 0}};
    struct timeval old[2] = {{THEN, 0}, {THEN + way, 0}};
    struct utimbuf oldest = {THEN, THEN + way};
    switch (way) {
    case 0: CHECK(futimens(fd, times) == 0); break;
    case 1: CHECK(utimensat(AT_FDCWD, path, times, 0) == 0); break;
    case 2: CHECK(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW) == 0); break;
    case 3: CHECK(utime(path, &oldest) == 0); break;
    case 4: CHECK(utimes(path, old) == 0); break;
    case 5: CHECK(futimes(fd, old) == 0); break;
    case 6: CHECK(lutimes(path, old) == 0); break;
    case 7: CHECK(futimesat(AT_FDCWD, path, old) == 0); break;
    case 8: CHECK(syscall(SYS_utimensat, AT_FDCWD, path, times, 0) == 0); break;
    case 9: CHECK(syscall(SYS_utimensat, fd, NULL, times, 0) == 0); break;
    // Older kernels know no such flag.
    case 13: CHECK(utimensat(fd, "", times, AT_EMPTY_PATH) == 0 || futimens(fd, times) == 0); break;
#ifdef SYS_utime
    case 10: CHECK(syscall(SYS_utime, path, &oldest) == 0); break;
    case 11: CHECK(syscall(SYS_utimes, path, old) == 0); break;
    case 12: CHECK(syscall(SYS_futimesat, AT_FDCWD, path, old) == 0); break;
#else
    default: CHECK(futimens(fd, times) == 0); break;
#endif
    }
}

static void stays(int way, const char *path) {
    struct stat st;
    CHECK(stat(path, &st) == 0 && st.st_mtime == THEN + way && st.st_atime == THEN);
}

static void times(const char *path) {
    int fd = make(path, 'A');
    char *at = map(fd), byte;
    for (int way = 0; way < WAYS; way++) {
        memset(at + way * PAGE, 'z', 3 * PAGE);
        CHECK(pwrite(fd, "w", 1, (way + 5) * PAGE) == 1);
        set_times(way, fd, path);
        stays(way, path);
        CHECK(msync(at, BYTES, MS_SYNC) == 0 && fdatasync(fd) == 0);
        stays(way, path);
        CHECK(pread(fd, &byte, 1, way * PAGE) == 1 && byte == 'z');
    }
    // A forked child that does nothing else.
    for (int way = 0; way < WAYS; way++) {
        memset(at + way * PAGE, 'x', PAGE);
        pid_t child = fork();
        if (child == 0) {
            set_times(way, fd, path);
            _exit(0);
        }
        ended(child);
        CHECK(msync(at, BYTES, MS_SYNC) == 0);
        stays(way, path);
    }
    CHECK(munmap(at, BYTES) == 0 && close(fd) == 0);
    // A descriptor that did nothing yet.
    fd = open(path, O_RDWR);
    at = map(fd);
    memset(at, 'v', PAGE);
    int reader = open(path, O_RDONLY);
    CHECK(reader > 2);
    set_times(13, reader, path);
    CHECK(msync(at, BYTES, MS_SYNC) == 0);
    stays(13, path);
    CHECK(munmap(at, BYTES) == 0 && close(fd) == 0 && close(reader) == 0);
    // A process that has the file no more.
    for (int way = 1; way < WAYS; way++) {
        pid_t child = fork();
        if (child == 0) {
            int fd = open(path, O_RDWR);
            char *at = map(fd);
            memset(at + way * PAGE, 'y', 10 * PAGE);
            int takes_none = way != 5 && way != 9 && way != 13;
            CHECK(munmap(at, BYTES) == 0 && (!takes_none || close(fd) == 0));
            set_times(way, fd, path);
            _exit(0);
        }
        ended(child);
        fd = open(path, O_RDWR);
        CHECK(fd > 2 && fsync(fd) == 0 && close(fd) == 0);
        stays(way, path);
    }
    // What is no file, or is not there.
    FAILS(utimensat(AT_FDCWD, "nothing", NULL, 0), ENOENT);
    FAILS(futimens(-1, NULL), EBADF);
    CHECK(utimes(".", NULL) == 0);
}

// ---- asynchronous transfers -----------------------------------------------------------------------

static ssize_t result(struct aiocb *block) {
    const struct aiocb *one = block;
    while (aio_error(block) == EINPROGRESS) CHECK(aio_suspend(&one, 1, NULL) == 0);
    int error = aio_error(block);
    ssize_t done = aio_return(block);
    CHECK(error == 0 ? done >= 0 : done == -1);
    errno = error;
    return done;
}

static struct aiocb block(int fd, void *buffer, size_t bytes, off_t offset) {
    struct aiocb all;
    memset(&all, 0, sizeof all);
    all.aio_fildes = fd, all.aio_buf = buffer, all.aio_nbytes = bytes, all.aio_offset = offset;
    return all;
}

static volatile sig_atomic_t told_code, told_value, told_pid, told_uid;
static void told(int signal, siginfo_t *info, void *context) {
    told_pid = info->si_pid, told_uid = info->si_uid;
    told_code = info->si_code, told_value = info->si_value.sival_int;
}

static int notes[2];
static void noted(union sigval value) {
    // By number: of libc's own signals libc's function says nothing.
    unsigned long blocked = -1;
    CHECK(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &blocked, 8) == 0 && blocked == 0);
    CHECK(write(notes[1], &value.sival_int, 4) == 4);
    if (value.sival_int == 101) pthread_exit(NULL);
}

static void wait_for_note(int want) {
    int got = 0;
    CHECK(read(notes[0], &got, 4) == 4 && got == want);
}

static void asynchronous(const char *path) {
    int fd = make(path, 'A'), value = 0;
    char *at = map(fd), got[8] = "";
    CHECK(pipe(notes) == 0);
    for (int page = 0; page < PAGES; page += 17) {
        off_t start = page * PAGE;
        at[start] = 'm';
        struct aiocb write = block(fd, "asynch", 6, start + 100);
        CHECK(aio_write(&write) == 0 && result(&write) == 6);
        CHECK(memcmp(at + start + 100, "asynch", 6) == 0);
        CHECK(pread(fd, got, 6, start + 100) == 6 && memcmp(got, "asynch", 6) == 0);
        struct aiocb read = block(fd, got, 2, start);
        CHECK(aio_read(&read) == 0 && result(&read) == 2);
        CHECK(got[0] == 'm' && got[1] == 'A' + page % 26);
        CHECK(aio_cancel(fd, &read) == AIO_ALLDONE);
    }
    struct aiocb sync = block(fd, NULL, 0, 0);
    CHECK(aio_fsync(O_SYNC, &sync) == 0 && result(&sync) == 0);
    sync = block(fd, NULL, 0, 0);
    CHECK(aio_fsync(O_DSYNC, &sync) == 0 && result(&sync) == 0);
    FAILS(aio_fsync(12345, &sync), EINVAL);

    // Told by a signal.
    struct sigaction action = {0};
    action.sa_sigaction = told, action.sa_flags = SA_SIGINFO | SA_RESTART;
    CHECK(sigaction(SIGRTMIN, &action, NULL) == 0);
    struct aiocb signals = block(fd, got, 3, 0);
    signals.aio_sigevent.sigev_notify = SIGEV_SIGNAL, signals.aio_sigevent.sigev_signo = SIGRTMIN;
    signals.aio_sigevent.sigev_value.sival_int = 4711;
    CHECK(aio_read(&signals) == 0 && result(&signals) == 3 && got[2] == 'A');
    for (int i = 0; i < 5000 && !told_value; i++) usleep(1000);
    CHECK(told_code == SI_ASYNCIO && told_value == 4711);
    CHECK(told_pid == getpid() && told_uid == getuid());

    // By a thread, for a write that fails, too.
    int reader = open(path, O_RDONLY);
    CHECK(reader > 2);
    for (int i = 0; i < 3; i++) {
        struct aiocb threads = block(i == 2 ? reader : fd, "thread", 6, PAGE);
        threads.aio_sigevent.sigev_notify = SIGEV_THREAD;
        threads.aio_sigevent.sigev_notify_function = noted;
        threads.aio_sigevent.sigev_value.sival_int = 100 + i;
        CHECK(aio_write(&threads) == 0);
        wait_for_note(100 + i);
        CHECK(result(&threads) == (i == 2 ? -1 : 6) && (i < 2 || errno == EBADF));
    }
    CHECK(memcmp(at + PAGE, "thread", 6) == 0);

    // Several at once, among them a pipe's.
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    for (int waits = 0; waits < 2; waits++) {
        struct aiocb blocks[5] = {
            block(fd, "first", 5, 10), block(pipes[1], "pipe", 4, 0), block(fd, "second", 6, 20 * PAGE),
            block(fd, got, 2, 17 * PAGE), block(fd, "none", 4, 30 * PAGE),
        };
        int codes[] = {LIO_WRITE, LIO_WRITE, LIO_WRITE, LIO_READ, LIO_NOP};
        struct aiocb *list[6] = {NULL};
        for (int i = 0; i < 5; i++) blocks[i].aio_lio_opcode = codes[i], list[i + i / 3] = &blocks[i];
        struct sigevent event = {0};
        event.sigev_notify = SIGEV_THREAD, event.sigev_notify_function = noted;
        event.sigev_value.sival_int = 200;
        CHECK(lio_listio(waits ? LIO_WAIT : LIO_NOWAIT, list, 6, &event) == 0);
        if (!waits) wait_for_note(200);
        CHECK(result(&blocks[0]) == 5 && result(&blocks[1]) == 4 && result(&blocks[2]) == 6);
        CHECK(result(&blocks[3]) == 2 && got[0] == 'm');
        CHECK(memcmp(at + 10, "first", 5) == 0 && memcmp(at + 20 * PAGE, "second", 6) == 0);
        CHECK(at[30 * PAGE] == 'A' + 30 % 26 && read(pipes[0], got, 4) == 4 && !memcmp(got, "pipe", 4));
        CHECK(blocks[0].aio_lio_opcode == LIO_WRITE);
    }
    struct aiocb bad = block(reader, "bad", 3, 0), good = block(fd, got, 3, 0);
    struct aiocb *pair[] = {&bad, &good};
    bad.aio_lio_opcode = LIO_WRITE, good.aio_lio_opcode = LIO_READ;
    FAILS(lio_listio(LIO_WAIT, pair, 2, NULL), EIO);
    CHECK(result(&good) == 3 && result(&bad) == -1 && errno == EBADF);
    FAILS(lio_listio(77, pair, 2, NULL), EINVAL);

    // At the end, whatever the offset.
    int appends = open(path, O_WRONLY | O_APPEND);
    struct aiocb append = block(appends, "end", 3, 5);
    CHECK(appends > 2 && aio_write(&append) == 0 && result(&append) == 3);
    CHECK(pread(fd, got, 8, BYTES) == 3 && memcmp(got, "end", 3) == 0);
    struct aiocb wrong = block(fd, (void *)8, 100, 0);
    CHECK(aio_read(&wrong) == 0 && result(&wrong) == -1 && errno == EFAULT);
    CHECK(munmap(at, BYTES) == 0 && close(fd) == 0 && close(appends) == 0);
}

// ---- copies in the kernel -------------------------------------------------------------------------

// Reads a byte without libc's functions.
static char stored(int fd, long offset) {
    char byte = 0;
#if defined __x86_64__
    long result;
    register long r10 __asm__("r10") = offset;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_pread64), "D"((long)fd), "S"(&byte), "d"(1L), "r"(r10)
                     : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = SYS_pread64, x0 __asm__("x0") = fd, x1 __asm__("x1") = (long)&byte;
    register long x2 __asm__("x2") = 1, x3 __asm__("x3") = offset;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    long result = x0;
#endif
    CHECK(result == 1);
    return byte;
}

enum { COPIERS = 4, COPIES = 5, COPY = 2 * PAGE, REACH = 64 };
static int copied_to, copied_from, copies_by;

static void *copy_some(void *nothing) {
    for (int i = 0; i < COPIES; i++) {
        off_t from = 0;
        if (copies_by == 0) CHECK(sendfile(copied_to, copied_from, &from, COPY) >= 0);
        if (copies_by == 1) CHECK(copy_file_range(copied_from, &from, copied_to, NULL, COPY, 0) >= 0);
        if (copies_by == 2) {
            int ends[2];
            CHECK(pipe(ends) == 0);
            CHECK(write(ends[1], room, COPY) == COPY);
            CHECK(splice(ends[0], NULL, copied_to, NULL, COPY, 0) >= 0);
            close(ends[0]), close(ends[1]);
        }
    }
    return NULL;
}

static void copies(const char *path) {
    char other[4096];
    snprintf(other, sizeof other, "%s.other", path);
    copied_from = make(other, 'a');
    copied_to = make(path, 'A');
    char *at = map(copied_to), page[PAGE];
    for (int round = 0; round < 120; round++) {
        int processes = round % 2;
        copies_by = round / 2 % 3;
        for (int i = 0; i < REACH; i++) {
            memset(page, 'A' + i % 26, PAGE);
            CHECK(pwrite(copied_to, page, PAGE, i * PAGE) == PAGE && at[i * PAGE] == page[0]);
        }
        CHECK(lseek(copied_to, 0, SEEK_SET) == 0);
        pthread_t threads[COPIERS];
        pid_t children[COPIERS];
        for (int i = 0; i < COPIERS; i++) {
            if (!processes) CHECK(pthread_create(&threads[i], NULL, copy_some, NULL) == 0);
            else if ((children[i] = fork()) == 0) copy_some(NULL), _exit(0);
        }
        for (int i = 0; i < COPIERS; i++) {
            if (processes) ended(children[i]);
            else pthread_join(threads[i], NULL);
        }
        for (int i = 0; i < REACH; i++) CHECK(stored(copied_to, i * PAGE + 7) == at[i * PAGE + 7]);
        // And a store elsewhere in a page brings nothing back.
        char before[REACH];
        for (int i = 0; i < REACH; i++) before[i] = stored(copied_to, i * PAGE + 7), at[i * PAGE] = '#';
        CHECK(msync(at, BYTES, MS_SYNC) == 0);
        for (int i = 0; i < REACH; i++) CHECK(stored(copied_to, i * PAGE + 7) == before[i]);
    }
    CHECK(unlink(path) == 0 && unlink(other) == 0);
}

// ---- descriptors ----------------------------------------------------------------------------------

// The child has a descriptor now: it sees what is stored, and what it writes is seen.
static void arrived(int fd, const char *how) {
    char byte = 0;
    if (fd < 0) fprintf(stderr, "%s: %s\n", how, strerror(errno));
    CHECK(fd > 2 && pread(fd, &byte, 1, 0) == 1 && byte == 'x' && pwrite(fd, "y", 1, 1) == 1);
    _exit(0);
}

static void send_one(int socket, int fd, int several) {
    char text[2] = "dd", control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec parts[2] = {{text, 1}, {text + 1, 1}};
    struct mmsghdr messages[2] = {0};
    for (int i = 0; i < 2; i++) messages[i].msg_hdr.msg_iov = &parts[i], messages[i].msg_hdr.msg_iovlen = 1;
    struct msghdr *message = &messages[several ? 1 : 0].msg_hdr;
    message->msg_control = control, message->msg_controllen = sizeof control;
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (several == 0) CHECK(sendmsg(socket, message, 0) == 1);
    if (several == 1) CHECK(sendmmsg(socket, messages, 2, 0) == 2);
    if (several == 2) CHECK(syscall(SYS_sendmmsg, socket, messages, 2, 0) == 2);
    if (several == 3) CHECK(syscall(SYS_sendmsg, socket, message, 0) == 1);
}

static int receive_one(int socket, int by_number) {
    char text[2], control[64];
    struct iovec part = {text, 1};
    struct mmsghdr message = {0};
    message.msg_hdr.msg_iov = &part, message.msg_hdr.msg_iovlen = 1;
    for (;;) {
        message.msg_hdr.msg_control = control, message.msg_hdr.msg_controllen = sizeof control;
        int got = by_number ? (int)syscall(SYS_recvmmsg, socket, &message, 1, 0, NULL)
                            : recvmmsg(socket, &message, 1, 0, NULL);
        CHECK(got == 1);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message.msg_hdr);
        if (!header) continue;
        int fd;
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
        return fd;
    }
}

static void arrivals(const char *path) {
    enum { BY_PIDFD, BY_PIDFD_NUMBER, BY_MESSAGES, BY_MESSAGES_NUMBER, BY_HANDLE, HOWS };
    const char *names[] = {"pidfd_getfd", "syscall(pidfd_getfd)", "recvmmsg", "syscall(recvmmsg)",
                           "syscall(open_by_handle_at)"};
    struct { struct file_handle handle; char room[128]; } file;
    file.handle.handle_bytes = 128;
    int mount, directory = open(".", O_RDONLY | O_DIRECTORY);
    for (int how = 0; how < HOWS; how++) {
        int fd = make(path, 'A'), sockets[2], go[2];
        CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0 && pipe(go) == 0);
        CHECK(close(fd) == 0);
        pid_t parent = getpid(), child = fork();
        if (child == 0) {
            int which = 0;
            CHECK(read(go[0], &which, sizeof which) == sizeof which);
            int process = how <= BY_PIDFD_NUMBER ? (int)syscall(SYS_pidfd_open, parent, 0) : -1;
            int got = -1;
            if (how == BY_PIDFD) {
                // glibc has it since 2.36.
                int (*call)(int, int, unsigned) = dlsym(RTLD_DEFAULT, "pidfd_getfd");
                got = call ? call(process, which, 0) : (int)syscall(SYS_pidfd_getfd, process, which, 0);
            }
            if (how == BY_PIDFD_NUMBER) got = (int)syscall(SYS_pidfd_getfd, process, which, 0);
            if (how == BY_MESSAGES || how == BY_MESSAGES_NUMBER)
                got = receive_one(sockets[1], how == BY_MESSAGES_NUMBER);
            if (how == BY_HANDLE) {
                CHECK(name_to_handle_at(AT_FDCWD, path, &file.handle, &mount, 0) == 0);
                got = (int)syscall(SYS_open_by_handle_at, directory, &file, O_RDWR);
            }
            // Not everybody may, everywhere.
            if (got < 0 && (errno == EPERM || errno == ENOSYS)) _exit(77);
            arrived(got, names[how]);
        }
        fd = open(path, O_RDWR);
        char *at = map(fd);
        at[0] = 'x';
        send_one(sockets[0], fd, how % 4);
        CHECK(write(go[1], &fd, sizeof fd) == sizeof fd);
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (WEXITSTATUS(status) != 77) {
            if (status) fprintf(stderr, "by %s\n", names[how]);
            CHECK(status == 0 && at[1] == 'y' && at[0] == 'x');
            CHECK(msync(at, BYTES, MS_SYNC) == 0 && at[1] == 'y' && stored(fd, 1) == 'y');
        }
        CHECK(munmap(at, BYTES) == 0 && close(fd) == 0);
        close(sockets[0]), close(sockets[1]), close(go[0]), close(go[1]);
    }
    CHECK(unlink(path) == 0);
}

// Who sends a descriptor writes on by it, and who has got it says that all writes append.
static void sent(const char *path) {
    for (int several = 0; several < 4; several++) {
        int sockets[2], done[2];
        CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0 && pipe(done) == 0);
        close(make(path, 'A'));
        pid_t child = fork();
        if (child == 0) {
            int got = receive_one(sockets[1], several % 2);
            CHECK(fcntl(got, F_SETFL, O_APPEND) == 0 && write(done[1], "d", 1) == 1);
            alarm(30), pause();
        }
        int fd = open(path, O_RDWR);
        char bytes[PAGE], byte;
        memset(bytes, 'w', PAGE);
        for (int i = 0; i < 400; i++) {
            CHECK(lseek(fd, i, SEEK_SET) == i && write(fd, bytes, 100) == 100);
            CHECK(pread(fd, &byte, 1, i + 99) == 1 && byte == 'w');
        }
        memset(bytes, 'v', PAGE);
        send_one(sockets[0], fd, several);
        CHECK(read(done[0], &byte, 1) == 1);
        CHECK(lseek(fd, 200, SEEK_SET) == 200 && write(fd, bytes, 100) == 100);
        CHECK(pread(fd, &byte, 1, 200) == 1 && byte == 'w');
        CHECK(pread(fd, &byte, 1, BYTES) == 1 && byte == 'v' && lseek(fd, 0, SEEK_END) == BYTES + 100);
        kill(child, SIGKILL), waitpid(child, NULL, 0);
        close(fd), close(sockets[0]), close(sockets[1]), close(done[0]), close(done[1]);
    }
}

static void temporary(const char *path) {
    close(make(path, 'A'));
    CHECK(unlink(path) == 0);
    for (int large = 0; large < 2; large++) {
        FILE *stream = large ? tmpfile64() : tmpfile();
        CHECK(stream);
        int fd = fileno(stream), flags = fcntl(fd, F_GETFL);
        struct stat st;
        CHECK(fstat(fd, &st) == 0 && st.st_nlink == 0 && S_ISREG(st.st_mode) && st.st_size == 0);
        CHECK((st.st_mode & 0777) == 0600 && (flags & O_ACCMODE) == O_RDWR && !(flags & O_APPEND));
        memset(room, 'p', BYTES);
        CHECK(fwrite(room, 1, BYTES, stream) == BYTES && fflush(stream) == 0);
        // A program that it is left to maps it.
        pid_t child = fork();
        if (child == 0) {
            char number[16];
            snprintf(number, sizeof number, "%d", fd);
            execl("/proc/self/exe", "ways", "left", number, NULL);
            _exit(9);
        }
        ended(child);
        CHECK(fseek(stream, 0, SEEK_SET) == 0 && fread(room, 1, BYTES, stream) == BYTES);
        for (int i = 0; i < BYTES; i += PAGE) CHECK(room[i] == 'c');
        CHECK(pwrite(fd, "Q", 1, 0) == 1 && fseek(stream, 0, SEEK_SET) == 0 && fgetc(stream) == 'Q');
        CHECK(fprintf(stream, "and more\n") == 9 && fseek(stream, 1, SEEK_SET) == 0);
        CHECK(fgetc(stream) == 'a' && fclose(stream) == 0);
    }
}

static void left(int fd) {
    char *at = map(fd);
    memset(at, 'c', BYTES);
    // Nothing is said to anybody before the end.
    CHECK(munmap(at, BYTES) == 0);
}

// ---- pipes ----------------------------------------------------------------------------------------

static volatile sig_atomic_t rung;
static void ring(int signal) { rung++; }

static void pipes(const char *path) {
    int fd = make(path, 'A');
    char *at = map(fd), last = at[0];
    int ends[2];
    CHECK(pipe(ends) == 0);
    loff_t offset = 0;
    FAILS(splice(ends[0], NULL, fd, &offset, PAGE, SPLICE_F_NONBLOCK), EAGAIN);
    // A signal comes while nothing is there yet, and half a second later something is.
    for (int restarts = 1; restarts >= 0; restarts--) {
        struct sigaction action = {0};
        action.sa_handler = ring, action.sa_flags = restarts ? SA_RESTART : 0;
        CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
        pid_t parent = getpid(), child = fork();
        if (child == 0) {
            usleep(300000);
            CHECK(kill(parent, SIGUSR1) == 0);
            usleep(500000);
            CHECK(write(ends[1], "hello", 5) == 5);
            _exit(0);
        }
        rung = 0, offset = PAGE * restarts;
        if (!restarts) {
            FAILS(splice(ends[0], NULL, fd, &offset, PAGE, 0), EINTR);
            CHECK(rung == 1);
        }
        CHECK(splice(ends[0], NULL, fd, &offset, PAGE, 0) == 5 && rung == 1);
        CHECK(memcmp(at + PAGE * restarts, "hello", 5) == 0 && offset == PAGE * restarts + 5);
        ended(child);
    }
    CHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    alarm(20);
    FAILS(splice(ends[0], NULL, fd, &offset, PAGE, 0), EAGAIN);
    CHECK(fcntl(ends[0], F_SETFL, 0) == 0 && close(ends[1]) == 0);
    CHECK(splice(ends[0], NULL, fd, &offset, PAGE, 0) == 0);
    // One that has ended has ended, while somebody waits for it too.
    CHECK(close(ends[0]) == 0 && pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]), usleep(300000);
        _exit(0);
    }
    CHECK(close(ends[1]) == 0 && splice(ends[0], NULL, fd, &offset, PAGE, 0) == 0);
    ended(child);
    CHECK(last == 'A' && munmap(at, BYTES) == 0 && close(fd) == 0);
}

// ---- reads ----------------------------------------------------------------------------------------

static void flags(const char *path) {
    enum { NOWAIT = 8, UNKNOWN = 0x40000000 };
    int fd = make(path, 'A'), waits = 0;
    char buffer[PAGE];
    struct iovec part = {buffer, 10};
    CHECK(pread(fd, buffer, 10, 0) == 10 && pread(fd, buffer, 10, 0) == 10);
    FAILS(preadv2(fd, &part, 1, 0, UNKNOWN), EOPNOTSUPP);
    FAILS(preadv2(fd, &part, 1, -1, UNKNOWN), EOPNOTSUPP);
    FAILS(pwritev2(fd, &part, 1, 0, UNKNOWN), EOPNOTSUPP);
    FAILS(syscall(SYS_preadv2, fd, &part, 1, 0L, 0L, UNKNOWN), EOPNOTSUPP);
    // Two that exclude each other; older kernels know the first only.
    CHECK(preadv2(fd, &part, 1, 0, RWF_APPEND | 0x20 /* RWF_NOAPPEND */) == -1);
    CHECK(errno == EINVAL || errno == EOPNOTSUPP);
    part.iov_len = PAGE;
    // Not all file systems can tell what would wait.
    if (preadv2(fd, &part, 1, 0, NOWAIT) < 0 && errno == EOPNOTSUPP) return;
    for (int pass = 0; pass < 2; pass++)
        for (int page = 0; page < PAGES; page++) {
            off_t offset = page * PAGE;
            if (pass) CHECK(pread(fd, buffer, PAGE, offset) == PAGE);
            errno = 0, buffer[5] = 0;
            ssize_t got = preadv2(fd, &part, 1, offset, NOWAIT);
            CHECK(got == PAGE ? buffer[5] == 'A' + page % 26 : got == -1 && errno == EAGAIN);
            // What has just been read is there, unless it has left again.
            waits += got < 0 && pass;
        }
    CHECK(waits < PAGES / 2);
    if (getenv("LD_PRELOAD")) {
        // More than there is memory for is not there at once.
        struct iovec whole = {room, BYTES};
        ssize_t got = preadv2(fd, &whole, 1, 0, NOWAIT);
        CHECK(got < 0 ? errno == EAGAIN : got > 0 && got < BYTES && got % PAGE == 0);
        CHECK(lseek(fd, 0, SEEK_SET) == 0);
        got = preadv2(fd, &whole, 1, -1, NOWAIT);
        CHECK(got < 0 ? errno == EAGAIN : got > 0 && got < BYTES);
        CHECK(got < 0 || room[got - 1] == 'A' + (got - 1) / PAGE % 26);
        CHECK(lseek(fd, 0, SEEK_CUR) == (got < 0 ? 0 : got));
    }
    // Who tries again gets on, also by a descriptor that nothing was read from.
    int again = open(path, O_RDONLY);
    for (int page = 0; page < PAGES; page += 29) {
        int tries = 0;
        while (preadv2(again, &part, 1, page * PAGE, NOWAIT) != PAGE) {
            CHECK(errno == EAGAIN && tries++ < 5000);
            usleep(1000);
        }
        CHECK(buffer[5] == 'A' + page % 26);
    }
    CHECK(ftruncate(fd, 0) == 0 && preadv2(again, &part, 1, 0, NOWAIT) == 0);
    CHECK(close(again) == 0);
    CHECK(close(fd) == 0 && (fd = make(path, 'A')) > 2);
    CHECK(preadv2(fd, &part, 1, BYTES, NOWAIT) == 0 && preadv2(fd, &part, 1, BYTES - 7, 0) == 7);
    CHECK(lseek(fd, 3, SEEK_SET) == 3 && preadv2(fd, &part, 1, -1, 0) == PAGE);
    CHECK(lseek(fd, 0, SEEK_CUR) == PAGE + 3);
}

static void some_room(const char *path) {
    enum { WINDOW = 64 };
    int fd = make(path, 'A');
    char *window = mmap(NULL, WINDOW * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(window != MAP_FAILED);
    const int ends[] = {1, 2, 37, 63};
    for (int i = 0; i < 4; i++) {
        CHECK(mprotect(window, WINDOW * PAGE, PROT_READ | PROT_WRITE) == 0);
        CHECK(mprotect(window + ends[i] * PAGE, PAGE, PROT_NONE) == 0);
        for (int skip = 0; skip < 2; skip++)
            for (int round = 0; round < 3; round++) {
                int from = skip * 1000, want = ends[i] * PAGE - from, all = WINDOW * PAGE - from;
                CHECK(lseek(fd, 5 * PAGE, SEEK_SET) == 5 * PAGE && read(fd, window + from, all) == want);
                CHECK(lseek(fd, 0, SEEK_CUR) == 5 * PAGE + want);
                CHECK(window[from] == 'F' && window[from + want - 1] == 'A' + (5 + (want - 1) / PAGE) % 26);
                memset(window + from, 0, want);
                CHECK(pread(fd, window + from, all, 0) == want && window[from + want - 1] != 0);
                struct iovec parts[2] = {{room, 100}, {window + from, all}};
                CHECK(preadv(fd, parts, 2, 0) == 100 + want);
                FAILS(pread(fd, window + ends[i] * PAGE, PAGE, 0), EFAULT);
                CHECK(pwrite(fd, window + from, want, 0) == want);
                CHECK(pwrite(fd, room, 100, 0) == 100);
                for (int page = 0; page <= want / PAGE; page++)
                    CHECK(pwrite(fd, memset(room, 'A' + page % 26, PAGE), PAGE, page * PAGE) == PAGE);
            }
    }
}

static void vectors(const char *path) {
    int fd = make(path, 'A');
    char *window = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), one[8];
    CHECK(window != MAP_FAILED && mprotect(window + PAGE, PAGE, PROT_NONE) == 0);
    struct iovec *last = (struct iovec *)(window + PAGE) - 1;
    last->iov_base = one, last->iov_len = sizeof one;
    // More than there can be.
    volatile size_t most = SIZE_MAX;
    FAILS(read(fd, room, most), EFAULT);
    FAILS(pread(fd, room, most - PAGE, 0), EFAULT);
    FAILS(pwrite(fd, room, most, 0), EFAULT);
    struct iovec *none = (struct iovec *)8;
    for (int round = 0; round < 4; round++) {
        FAILS(readv(fd, none, 1), EFAULT);
        FAILS(preadv(fd, none, 1, 0), EFAULT);
        FAILS(writev(fd, none, 1), EFAULT);
        FAILS(pwritev(fd, none, 1, 0), EFAULT);
        FAILS(preadv2(fd, none, 1, -1, 0), EFAULT);
        FAILS(syscall(SYS_readv, fd, none, 1), EFAULT);
        FAILS(preadv(fd, last, 2, 0), EFAULT);
        FAILS(pwritev(fd, last, 2, 0), EFAULT);
        CHECK(preadv(fd, last, 1, 0) == 8 && one[0] == 'A' && pwritev(fd, last, 1, 0) == 8);
        struct iovec parts[2] = {{room, PAGE}, {(void *)8, PAGE}};
        CHECK(pwritev(fd, parts, 2, 0) == PAGE && pread(fd, room, BYTES, 0) == BYTES);
    }
}

// What describes the buffers lies in a mapping, and a signal that would stop a copy is blocked.
static void blocked(const char *path) {
    int fd = make(path, 'A'), pair[2];
    char *at = map(fd), got[8];
    struct iovec part = {got, sizeof got};
    CHECK(pread(fd, got, 8, 0) == 8 && socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    for (int page = 0; page < PAGES; page++) memcpy(at + page * PAGE + 16, &part, sizeof part);
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGSEGV), sigaddset(&set, SIGBUS);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    for (int page = 0; page < PAGES; page += 3) {
        struct iovec *stored = (struct iovec *)(at + page * PAGE + 16);
        CHECK(preadv(fd, stored, 1, page * PAGE) == 8 && got[5] == 'A' + page % 26);
    }
    for (int page = 0; page < PAGES; page += 3) {
        struct mmsghdr message = {{.msg_iov = (struct iovec *)(at + page * PAGE + 16), .msg_iovlen = 1}};
        CHECK(sendmmsg(pair[0], &message, 1, 0) == 1 && message.msg_len == 8);
        CHECK(recvmmsg(pair[1], &message, 1, 0, NULL) == 1 && message.msg_len == 8);
    }
    // Addresses are others in each run.
    for (int page = 0; page < PAGES; page++) memset(at + page * PAGE + 16, 'A', sizeof part);
    CHECK(munmap(at, BYTES) == 0 && close(fd) == 0);
}

// ---- threads and children -------------------------------------------------------------------------

// On a kernel without them, programs make calls that wait.
static ssize_t submitted_one(aio_context_t context, int code, int fd, void *buffer, off_t offset) {
    if (!context) {
        return code == IOCB_CMD_PREAD ? pread(fd, buffer, PAGE, offset)
                                      : pwrite(fd, buffer, PAGE, offset);
    }
    struct iocb call = {.aio_lio_opcode = code, .aio_fildes = fd, .aio_buf = (uintptr_t)buffer,
                        .aio_nbytes = PAGE, .aio_offset = offset};
    struct iocb *calls[] = {&call};
    struct io_event event;
    CHECK(syscall(SYS_io_submit, context, 1, calls) == 1);
    CHECK(syscall(SYS_io_getevents, context, 1, 1, &event, NULL) == 1);
    return event.res;
}

static void submitted(const char *path) {
    int fd = make(path, 'A');
    char *at = map(fd), page[PAGE];
    aio_context_t context = 0;
    if (syscall(SYS_io_setup, 8, &context) != 0) {
        CHECK(errno == ENOSYS);
        context = 0;
    }
    for (int i = 0; i < PAGES; i++) {
        off_t offset = (off_t)(i * 37 % PAGES) * PAGE;
        CHECK(at[offset + 1] != 0 && pread(fd, page, PAGE, offset) == PAGE);
        memset(page, 1 + i % 100, PAGE);
        CHECK(submitted_one(context, IOCB_CMD_PWRITE, fd, page, offset) == PAGE);
        CHECK(at[offset + 7] == 1 + i % 100);
        at[offset + 9] = '#';
        CHECK(submitted_one(context, IOCB_CMD_PREAD, fd, page, offset) == PAGE && page[9] == '#');
    }
    CHECK(munmap(at, BYTES) == 0 && close(fd) == 0);
}

static const char *cancelled_path;
static int cancelled_fd, cancelled_call;
static atomic_int cancelled_rounds;
static void *cancelled_thread(void *mapped) {
    char buffer[64] = {0};
    for (;; cancelled_rounds++) {
        switch (cancelled_call) {
        case 0: pread(cancelled_fd, buffer, 64, PAGE); break;
        case 1: if (read(cancelled_fd, buffer, 64) == 0) lseek(cancelled_fd, 0, SEEK_SET); break;
        case 2: pwrite(cancelled_fd, buffer, 64, 0); break;
        case 3: msync(mapped, PAGE, MS_SYNC); break;
        case 4: fsync(cancelled_fd); break;
        case 5: close(open("/dev/null", O_RDONLY)); break;
        case 6: {
            int fd = open(cancelled_path, O_RDWR);
            pread(fd, buffer, 64, PAGE);
            close(fd);
            break;
        }
        default: {
            FILE *stream = fopen(cancelled_path, "r+");
            fread(buffer, 1, 64, stream);
            fclose(stream);
        }
        }
    }
}

static void cancelled(const char *path) {
    // What is closed is held for a moment only.
    enum { CALLS = 8, OPENS = 6, OFTEN = 40 };
    cancelled_path = path;
    cancelled_fd = make(path, 'A');
    char *at = map(cancelled_fd);
    for (int round = 0; round < OPENS + (CALLS - OPENS) * OFTEN; round++) {
        cancelled_call = round < OPENS ? round : OPENS + (round - OPENS) / OFTEN;
        pthread_t thread;
        void *result;
        at[5]++;
        cancelled_rounds = 0;
        CHECK(pthread_create(&thread, NULL, cancelled_thread, at) == 0);
        // What it leaves is the same however often it did that.
        while (cancelled_rounds == 0) usleep(1000);
        usleep(round < OPENS ? 20000 : 37 * round);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED);
        // Nobody holds anything that it held.
        CHECK(pread(cancelled_fd, room, BYTES, 0) == BYTES && pwrite(cancelled_fd, room, PAGE, 0) == PAGE);
    }
}

static sigjmp_buf jump_to;
static volatile sig_atomic_t may_jump;
static void jump(int signal) {
    (void)signal;
    if (may_jump) may_jump = 0, siglongjmp(jump_to, 1);
}

// What the offset was moved over was read, or is written, whatever call a handler left.
static void jumps(const char *path) {
    enum { ROUNDS = 60000 };
    int fd = make(path, 'A');
    char *at = map(fd), page[PAGE];
    for (int i = 0; i < PAGES; i++) at[i * PAGE] = (char)i;
    signal(SIGALRM, jump);
    struct itimerval often = {{0, 211}, {0, 211}}, never = {{0, 0}, {0, 0}};
    for (int writes = 0; writes < 2; writes++) {
        volatile int jumped = 0;
        CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
        for (volatile int round = 0; round < ROUNDS; round++) {
            volatile off_t before = lseek(fd, 0, SEEK_CUR);
            if (before == BYTES) before = lseek(fd, 0, SEEK_SET);
            volatile char mark = (char)(writes ? round | 1 : before / PAGE);
            memset(page, writes ? mark : ~mark, PAGE);
            volatile int has_jumped = 0;
            if (sigsetjmp(jump_to, 1) == 0) {
                may_jump = 1;
                ssize_t done = writes ? write(fd, page, PAGE) : read(fd, page, PAGE);
                may_jump = 0;
                CHECK(done == PAGE);
            } else {
                has_jumped = 1, jumped++;
            }
            off_t now = lseek(fd, 0, SEEK_CUR);
            CHECK(now == before + PAGE || (has_jumped && now == before));
            if (now != before) CHECK((writes ? at[before] : page[0]) == mark);
        }
        CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && jumped > 0);
    }
    // What was written hangs on when handlers came.
    memset(at, 'z', BYTES);
    CHECK(munmap(at, BYTES) == 0 && close(fd) == 0);
}

// As just-in-time compilers do it that have no memory which may be written and executed.
static void code(const char *path) {
    int fd = make(path, 'A');
    char *at = map(fd);
    void *run = mmap(NULL, BYTES, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
    if (run == MAP_FAILED) {
        // Not on a file system without programs.
        CHECK(errno == EPERM);
        return;
    }
#ifdef __x86_64__
    for (int round = 0; round < 3; round++)
        for (int page = 0; page < PAGES; page += 5) {
            unsigned char *to = (unsigned char *)at + page * PAGE;
            int value = round * 1000 + page;
            to[0] = 0xb8, memcpy(to + 1, &value, 4), to[5] = 0xc3; // mov $value, %eax; ret
            CHECK(((int (*)(void))((char *)run + page * PAGE))() == value);
        }
#endif
    CHECK(munmap(run, BYTES) == 0 && munmap(at, BYTES) == 0 && close(fd) == 0);
}

static void grown(const char *path) {
    enum { FEW = 16, HALF = PAGES / 2 };
    int fd = make(path, 'A');
    char *hole = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), some[100];
    CHECK(hole != MAP_FAILED && munmap(hole, BYTES) == 0);
    char *at = mmap(hole, FEW * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
    CHECK(at == hole && at[0] == 'A');
    at = mremap(at, FEW * PAGE, HALF * PAGE, 0);
    CHECK(at == hole);
    // Pages that nobody touched: of the file that they are written to.
    CHECK(pwrite(fd, at + 100 * PAGE + 50, 20000, (PAGES - 5) * PAGE) == 20000);
    CHECK(pread(fd, at + 150 * PAGE, 3 * PAGE, (PAGES - 40) * PAGE) == 3 * PAGE);
    CHECK(pread(fd, some, 100, (PAGES - 5) * PAGE) == 100 && some[99] == 'A' + 100 % 26);
    CHECK(at[150 * PAGE] == 'A' + (PAGES - 40) % 26 && at[153 * PAGE] == 'A' + 153 % 26);
    at = mremap(at, HALF * PAGE, BYTES, MREMAP_MAYMOVE);
    CHECK(at != MAP_FAILED);
    CHECK(pwrite(fd, at + (HALF + 9) * PAGE, PAGE, 0) == PAGE && at[5] == 'A' + (HALF + 9) % 26);
    CHECK(msync(at, BYTES, MS_SYNC) == 0 && munmap(at, BYTES) == 0 && close(fd) == 0);
}

// What was a mapping's own before it grew is so afterwards: copies, and that it may not be written to.
static void grown_otherwise(const char *path) {
    enum { FEW = 64 };
    int fd = make(path, 'A'), only = open(path, O_RDONLY);
    char *hole = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(hole != MAP_FAILED && munmap(hole, BYTES) == 0);
    char *at = mmap(hole, FEW * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0);
    CHECK(at == hole);
    for (int page = 0; page < FEW; page += 2) memset(at + page * PAGE, 'p', PAGE);
    CHECK(mremap(at, FEW * PAGE, BYTES, 0) == at);
    CHECK(pread(fd, room, BYTES, 0) == BYTES);
    for (int round = 0; round < 2; round++)
        for (int page = 0; page < PAGES; page++) {
            char want = page < FEW && page % 2 == 0 ? 'p' : 'A' + page % 26;
            CHECK(at[page * PAGE + 9] == want && at[page * PAGE + PAGE - 1] == want);
        }
    CHECK(munmap(at, BYTES) == 0);
    at = mmap(hole, FEW * PAGE, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, only, 0);
    CHECK(at == hole && at[PAGE] == 'B');
    FAILS(mprotect(at, PAGE, PROT_READ | PROT_WRITE), EACCES);
    CHECK(mremap(at, FEW * PAGE, BYTES, 0) == at);
    FAILS(mprotect(at, PAGE, PROT_READ | PROT_WRITE), EACCES);
    FAILS(mprotect(at + BYTES - PAGE, PAGE, PROT_READ | PROT_WRITE), EACCES);
    CHECK(at[BYTES - 1] == 'A' + (PAGES - 1) % 26);
    CHECK(munmap(at, BYTES) == 0 && close(only) == 0 && close(fd) == 0);
}

static void *spawn_one(void *path) {
    extern char **environ;
    char *arguments[] = {"true", NULL};
    pid_t child;
    char byte;
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && pread(fd, &byte, 1, PAGE) == 1 && byte == 'B' && close(fd) == 0);
    CHECK(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0);
    ended(child);
    return NULL;
}

static void stacks(const char *path) {
    int fd = make(path, 'A');
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0);
    CHECK(pthread_create(&thread, &attributes, spawn_one, (void *)path) == 0);
    CHECK(pthread_join(thread, NULL) == 0 && close(fd) == 0);
}

// What was stored children find, and they change the file beside us.
static void listed(const char *path) {
    enum { EACH = 8 };
    int fd = make(path, 'A'), status;
    char *at = map(fd), command[300];
    char *own[] = {"PATH=/usr/bin:/bin", NULL};
    snprintf(command, sizeof command,
             "test $(tr -cd + < %s | wc -c) = $1 && printf =%%s $1 | dd of=%s bs=1 seek=$1 conv=notrunc status=none",
             path, path);
    for (int way = 0; way < 6; way++) {
        char count[20], whole[400];
        for (int i = 0; i < EACH; i++) at[(1 + way * EACH + i) * 9 * PAGE] = '+';
        snprintf(count, sizeof count, "%d", (way + 1) * EACH);
        snprintf(whole, sizeof whole, "set -- %s; %s", count, command);
        if (way == 3) CHECK(clearenv() == 0 && setenv("PATH", "/usr/bin:/bin", 1) == 0);
        pid_t child = way < 3 ? fork() : 1;
        if (child == 0) {
            // More than there are registers for.
            if (way == 0) execl("/bin/sh", "sh", "-e", "-u", "-f", "-c", command, "sh", count, NULL);
            if (way == 1) execle("/bin/sh", "sh", "-c", command, "sh", count, NULL, own);
            if (way == 2) execlp("sh", "sh", "-e", "-u", "-f", "-c", command, "sh", count, NULL);
            _exit(9);
        }
        if (way < 3) ended(child);
        if (way == 3) CHECK(system(whole) == 0);
        if (way == 4) {
            FILE *end = popen(whole, "r");
            CHECK(end && (status = pclose(end)) == 0);
        }
        if (way == 5) {
            pid_t same = fork();
            if (same == 0) execle("/bin/sh", "sh", "-c", command, "sh", count, NULL, own), _exit(9);
            ended(same);
        }
        CHECK(at[(way + 1) * EACH] == '=' && at[(way + 1) * EACH + 1] == count[0]);
        CHECK(at[(1 + way * EACH) * 9 * PAGE] == '+');
    }
    CHECK(munmap(at, BYTES) == 0 && close(fd) == 0);
}

static void seeks(const char *path) {
    CHECK(close(make(path, 'a')) == 0);
    FILE *stream = fopen(path, "r+");
    CHECK(stream && !fseek(stream, 100 * PAGE, SEEK_SET) && getc(stream) == 'a' + 100 % 26);
    for (long record = 100 * PAGE; record < 140 * PAGE; record += 1500) {
        // A part is left as it is between what is written.
        CHECK(!fseek(stream, record, SEEK_SET) && fwrite("12345678", 1, 8, stream) == 8);
        CHECK(!fseek(stream, 5, SEEK_CUR) && ftell(stream) == record + 13);
        CHECK(fputs("9abc", stream) >= 0 && !fseek(stream, 0, SEEK_CUR));
        CHECK(ftell(stream) == record + 17 && getc(stream) == 'a' + (record + 17) / PAGE % 26);
    }
    CHECK(!fclose(stream));
    int fd = open(path, O_RDONLY);
    CHECK(pread(fd, room, BYTES, 0) == BYTES && close(fd) == 0);
    for (long record = 100 * PAGE; record < 140 * PAGE; record += 1500) {
        CHECK(!memcmp(room + record, "12345678", 8) && !memcmp(room + record + 13, "9abc", 4));
        CHECK(room[record + 10] == 'a' + (record + 10) / PAGE % 26);
    }
}

static void tail(const char *path) {
    enum { APPENDS = 60000, EACH = 100 };
    CHECK(close(make(path, 'A')) == 0);
    char some[2 * PAGE];
    pid_t child = fork();
    if (child == 0) {
        int fd = open(path, O_WRONLY | O_APPEND);
        memset(some, '+', EACH);
        for (int i = 0; i < APPENDS; i++) CHECK(write(fd, some, EACH) == EACH);
        _exit(0);
    }
    int fd = open(path, O_RDONLY), status;
    off_t end = 0, all = BYTES + (off_t)APPENDS * EACH;
    while (end < all && waitpid(child, &status, WNOHANG) == 0) {
        end = lseek(fd, 0, SEEK_END);
        CHECK(end >= BYTES && lseek(fd, -PAGE, SEEK_CUR) == end - PAGE);
        CHECK(read(fd, some, sizeof some) >= PAGE);
        for (int i = 0; i < PAGE; i++) CHECK(some[i] == '+' || end - PAGE + i < BYTES);
    }
    if (end >= all) ended(child);
    CHECK(lseek(fd, 0, SEEK_END) == all && close(fd) == 0);
}

// Pages that were read or stored long ago are not in memory.
static void make_absent(int fd) { CHECK(pread(fd, room, BYTES, 0) == BYTES && pread(fd, room, BYTES, 0) == BYTES); }

static void offsets(const char *path) {
    enum { EACH = 30000 };
    int fd = make(path, 'A'), other, ends[2];
    char name[4096];
    CHECK(snprintf(name, sizeof name, "%s.other", path) < (int)sizeof name && (other = make(name, 'a')) > 0);
    char *at = map(fd);
    off_t *from = (off_t *)(at + 100 * PAGE + 4), *to = (off_t *)(at + 300 * PAGE + 64);
    for (int round = 0; round < 3; round++) {
        // What is changed has both of them in its midst.
        *from = 5 * PAGE, *to = 98 * PAGE;
        make_absent(fd);
        CHECK(copy_file_range(other, from, fd, to, EACH, 0) == EACH);
        CHECK(*from == 5 * PAGE + EACH && *to == 98 * PAGE + EACH && at[98 * PAGE] == 'a' + 5);
        *from = 7 * PAGE;
        make_absent(fd);
        CHECK(lseek(fd, 98 * PAGE, SEEK_SET) == 98 * PAGE && sendfile(fd, other, from, EACH) == EACH);
        CHECK(*from == 7 * PAGE + EACH && at[98 * PAGE] == 'a' + 7);
        CHECK(pipe(ends) == 0 && write(ends[1], "piped", 5) == 5);
        *to = 300 * PAGE;
        make_absent(fd);
        CHECK(splice(ends[0], NULL, fd, to, 5, 0) == 5);
        CHECK(*to == 300 * PAGE + 5 && !memcmp(at + 300 * PAGE, "piped", 5));
        CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
        FAILS(copy_file_range(other, (off_t *)16, fd, to, EACH, 0), EFAULT);
        FAILS(copy_file_range(other, NULL, fd, (off_t *)16, EACH, 0), EFAULT);
    }
    // And the name of what is cut, and what is cloned where the file system can.
    char *called = at + 200 * PAGE;
    memcpy(called, path, strlen(path) + 1);
    make_absent(fd);
    CHECK(truncate(called, BYTES - 10) == 0 && truncate(path, BYTES) == 0 && at[BYTES - 1] == 0);
    struct file_clone_range *range = (struct file_clone_range *)(at + 220 * PAGE);
    *range = (struct file_clone_range){.src_fd = other, .src_length = 8 * PAGE, .dest_offset = 216 * PAGE};
    make_absent(fd);
    int cloned = ioctl(fd, FICLONERANGE, range);
    CHECK(cloned == 0 ? at[216 * PAGE] == 'a' : errno == EOPNOTSUPP && range->src_length == 8 * PAGE);
    // A mapping that may only be written to is a buffer to write from, too.
    char *store = mmap(NULL, BYTES, PROT_WRITE, MAP_SHARED, fd, 0);
    struct iovec parts[2] = {{store + 20 * PAGE - 100, 200}, {store + 30 * PAGE, 2 * PAGE}};
    CHECK(store != MAP_FAILED && pwritev(fd, parts, 2, 400 * PAGE) == 200 + 2 * PAGE);
    CHECK(at[400 * PAGE] == 'A' + 19 && at[400 * PAGE + 199] == 'A' + 20 && at[400 * PAGE + 200] == 'A' + 30 % 26);
    FAILS(pwritev2(fd, parts, 2, 400 * PAGE, RWF_APPEND | 0x20 /* RWF_NOAPPEND */), EINVAL);
    CHECK(munmap(store, BYTES) == 0 && munmap(at, BYTES) == 0 && close(other) == 0 && close(fd) == 0);
}

static void advice(const char *path) {
    enum { HOLE = 50 };
    static const int kinds[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED};
    int fd = make(path, 'A');
    char *at = map(fd);
    CHECK(mlock(at + 10 * PAGE, PAGE) == 0);
    FAILS(madvise(at + 10 * PAGE, 2 * PAGE, MADV_REMOVE), EINVAL);
    CHECK(at[10 * PAGE] == 'A' + 10 && at[11 * PAGE] == 'A' + 11);
    char *locked = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_LOCKED, fd, 0);
    FAILS(madvise(locked, PAGE, MADV_REMOVE), EINVAL);
    CHECK(locked[0] == 'A' && munmap(locked, 2 * PAGE) == 0);
    int only = open(path, O_RDONLY);
    char *shown = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, only, 0);
    FAILS(madvise(shown + 20 * PAGE, PAGE, MADV_REMOVE), EACCES);
    CHECK(at[20 * PAGE] == 'A' + 20 && munmap(shown, BYTES) == 0 && close(only) == 0);
    CHECK(munmap(at + HOLE * PAGE, PAGE) == 0);
    for (unsigned kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        FAILS(madvise(at + (HOLE - 5) * PAGE, 10 * PAGE, kinds[kind]), ENOMEM);
        CHECK(madvise(at + 30 * PAGE, 10 * PAGE, kinds[kind]) == 0);
        CHECK(posix_madvise(at + (HOLE - 5) * PAGE, 10 * PAGE, kinds[kind]) == ENOMEM);
    }
    FAILS(madvise(at + (HOLE - 1) * PAGE, 3 * PAGE, MADV_REMOVE), ENOMEM);
    CHECK(at[(HOLE - 1) * PAGE] == 0 && at[(HOLE + 1) * PAGE] == 0 && at[(HOLE + 2) * PAGE] == 'A' + (HOLE + 2) % 26);
    // Memory that is nobody's between two mappings of the file.
    char *other = mmap(at + HOLE * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(other == at + HOLE * PAGE && memset(other, 'o', PAGE) && madvise(other, PAGE, MADV_REMOVE) == 0);
    CHECK(other[0] == 0 && munmap(other, PAGE) == 0);
    // What is mapped is written all the same.
    at[(HOLE + 3) * PAGE] = '!';
    FAILS(msync(at + (HOLE - 1) * PAGE, 10 * PAGE, MS_SYNC), ENOMEM);
    char byte;
    CHECK(pread(fd, &byte, 1, HOLE * PAGE) == 1 && byte == 'A' + HOLE % 26);
    CHECK(munmap(at, BYTES) == 0 && close(fd) == 0);
}

// What lies in an array of pages: zeros, or what was stored.
static void holds(int fd, const char *at, int first, int end, char stored) {
    for (int page = first; page < end; page++) {
        CHECK(pread(fd, room, PAGE, page * PAGE) == PAGE && room[0] == stored && room[5] == stored);
        CHECK(at[page * PAGE] == stored && at[page * PAGE + 5] == stored);
    }
}

// The kernel's own, of `include/linux/falloc.h`.
struct space_resv {
    short l_type, l_whence;
    long l_start, l_len;
    int l_sysid;
    unsigned l_pid;
    int l_pad[4];
};

static void space(const char *path) {
    enum {
        FS_IOC_RESVSP = 0x40305828,
        FS_IOC_UNRESVSP,
        FS_IOC_RESVSP64,
        FS_IOC_UNRESVSP64,
        FS_IOC_ZERO_RANGE = 0x40305839,
    };
    static const struct { unsigned request; int empties; } ways[] = {
        {FS_IOC_RESVSP, 0}, {FS_IOC_RESVSP64, 0}, {FS_IOC_UNRESVSP, 1}, {FS_IOC_UNRESVSP64, 1}, {FS_IOC_ZERO_RANGE, 1},
    };
    enum { FIRST = 8, END = 16 };
    for (unsigned way = 0; way < sizeof ways / sizeof *ways; way++)
        for (int whence = SEEK_SET; whence <= SEEK_END; whence++)
            for (int number = 0; number < 2; number++) {
                int fd = make(path, 'A');
                char *at = map(fd);
                memset(at, 'S', BYTES / 2);
                off_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? PAGE : BYTES;
                CHECK(lseek(fd, PAGE, SEEK_SET) == PAGE);
                // In a page of its file, which nobody brings in before the change is over.
                struct space_resv *of = (struct space_resv *)(at + 20 * PAGE);
                *of = (struct space_resv){
                    .l_whence = whence, .l_start = FIRST * PAGE - from, .l_len = (END - FIRST) * PAGE};
                struct space_resv own = *of;
                long done = number ? syscall(SYS_ioctl, fd, ways[way].request, whence ? &own : of)
                                   : ioctl(fd, ways[way].request, whence ? &own : of);
                // Not all file systems can.
                CHECK(done == 0 || (done == -1 && errno == EOPNOTSUPP));
                int empty = done == 0 && ways[way].empties;
                for (int pass = 0; pass < 2; pass++) {
                    holds(fd, at, FIRST, END, empty ? 0 : 'S');
                    holds(fd, at, FIRST - 2, FIRST, 'S');
                    holds(fd, at, END, END + 2, 'S');
                    CHECK(fsync(fd) == 0);
                }
                CHECK(lseek(fd, 0, SEEK_END) == BYTES && munmap(at, BYTES) == 0 && close(fd) == 0);
            }
    int fd = make(path, 'A');
    FAILS(ioctl(fd, FS_IOC_UNRESVSP64, NULL), EFAULT);
    struct space_resv odd = {.l_whence = 7, .l_len = PAGE};
    FAILS(ioctl(fd, FS_IOC_UNRESVSP64, &odd), EINVAL);
    CHECK(close(fd) == 0);
}

// Advice to several parts of the own memory at a time: by how many bytes it got, and with what error.
static void advise_parts(const char *path) {
    int fd = make(path, 'A'), own = syscall(SYS_pidfd_open, getpid(), 0);
    char *at = map(fd);
    CHECK(own > 0);
    memset(at, 'S', BYTES);
    struct iovec parts[3] = {{at + 8 * PAGE, 2 * PAGE}, {at + 20 * PAGE, PAGE}, {at + 1, PAGE}};
    long done = syscall(SYS_process_madvise, own, parts, 2, MADV_REMOVE, 0);
    // Older kernels allow little of this, even of one's own memory.
    CHECK(done == 3 * PAGE || (done == -1 && errno == EINVAL));
    char stored = done < 0 ? 'S' : 0;
    for (int pass = 0; pass < 2; pass++) {
        holds(fd, at, 8, 10, stored);
        holds(fd, at, 20, 21, stored);
        holds(fd, at, 10, 20, 'S');
        CHECK(fsync(fd) == 0);
    }
    if (done > 0) {
        memset(at, 'T', BYTES);
        CHECK(syscall(SYS_process_madvise, own, parts, 3, MADV_REMOVE, 0) == 3 * PAGE);
        FAILS(syscall(SYS_process_madvise, own, parts + 2, 1, MADV_REMOVE, 0), EINVAL);
        CHECK(at[8 * PAGE] == 0 && at[20 * PAGE] == 0 && at[0] == 'T' && at[PAGE] == 'T');
    }
    FAILS(syscall(SYS_process_madvise, own, parts, 1, MADV_REMOVE, 1), EINVAL);
    FAILS(syscall(SYS_process_madvise, own, (void *)16, 1, MADV_REMOVE, 0), EFAULT);
    FAILS(syscall(SYS_process_madvise, fd, parts, 1, MADV_REMOVE, 0), EBADF);
    CHECK(munmap(at, BYTES) == 0 && close(own) == 0 && close(fd) == 0);
}

static void beside(const char *path) {
    enum { ROUNDS = 40, FORKS = 4 };
    char name[4096];
    CHECK(snprintf(name, sizeof name, "%s.gone", path) < (int)sizeof name);
    int kept = make(path, 'A');
    for (int round = 0; round < ROUNDS; round++) {
        int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
        CHECK(fd > 2 && write(fd, room, BYTES) == BYTES && close(fd) == 0);
        fd = open(name, O_RDONLY);
        for (int time = 0; time < 3; time++) CHECK(pread(fd, room, BYTES, 0) == BYTES);
        CHECK(pread(kept, room, BYTES, 0) == BYTES && close(fd) == 0 && unlink(name) == 0);
        for (int child = 0; child < FORKS; child++) {
            pid_t pid = fork();
            if (pid == 0) _exit(pread(kept, room, BYTES, 0) == BYTES && room[PAGE] == 'B' ? 0 : 1);
            ended(pid);
            usleep((round * FORKS + child) * 997 % 2000);
        }
    }
    CHECK(close(kept) == 0);
}

// Room is asked for from the beginning of the file, as databases do that grow.
static void longer(const char *path) {
    enum { ROUNDS = 30 };
    int fd = make(path, 'A');
    char *at = mmap(NULL, 2 * BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    off_t bytes = BYTES - 100;
    CHECK(at != MAP_FAILED && ftruncate(fd, bytes) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        at[round * PAGE] = at[bytes - 1] = 'z';
        if (round % 3 == 0) CHECK(fallocate(fd, 0, 0, bytes += 1000) == 0);
        else if (round % 3 == 1) CHECK(posix_fallocate(fd, 0, bytes += 1000) == 0);
        else CHECK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, bytes + 100000) == 0);
        struct stat now;
        CHECK(fstat(fd, &now) == 0 && now.st_size == bytes && at[bytes - 1] == (round % 3 == 2 ? 'z' : 0));
        for (off_t i = 0; i < PAGES; i++) CHECK(at[i * PAGE] == (i > round ? 'A' + i % 26 : 'z'));
    }
    FAILS(fallocate(fd, 0, -1, PAGE), EINVAL);
    CHECK(posix_fallocate(fd, 0, 0) == EINVAL && munmap(at, 2 * BYTES) == 0 && close(fd) == 0);
}

static void look(const char *path, int i, int times) {
    char name[4096];
    CHECK(snprintf(name, sizeof name, "%s.%d", path, i) < (int)sizeof name);
    int fd = open(name, O_RDONLY);
    CHECK(fd > 2);
    for (int page = 0; page < times; page++) CHECK(pread(fd, room, PAGE, page % 4 * PAGE) == PAGE);
    CHECK(close(fd) == 0);
}

// What the library had mapped of a file before a fork is not there after it, and what comes there is the child's.
static void views(const char *path) {
    enum { FILES = 1200, OWN = 400, ROOM = 16 * PAGE };
    char name[4096];
    memset(room, 'F', sizeof room);
    for (int i = 0; i < FILES; i++) {
        CHECK(snprintf(name, sizeof name, "%s.%d", path, i) < (int)sizeof name);
        int fd = open(name, O_WRONLY | O_CREAT, 0644);
        CHECK(fd > 2 && write(fd, room, ROOM) == ROOM && close(fd) == 0);
    }
    look(path, 0, 10), look(path, 1, 10);
    pid_t pid = fork();
    if (pid == 0) {
        for (int i = 2; i < FILES; i++) look(path, i, 1);
        _exit(0);
    }
    ended(pid);
    // Files are let go of meanwhile.
    usleep(1000000);
    for (int round = 0; round < 2; round++) {
        if ((pid = fork()) == 0) {
            static char *own[OWN];
            for (int i = 0; i < OWN; i++) {
                own[i] = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                CHECK(own[i] != MAP_FAILED);
                memset(own[i], i + 1, ROOM);
            }
            for (int i = 10; i < 60; i++) look(path, i, 20);
            for (int i = 0; i < OWN; i++)
                for (int at = 0; at < ROOM; at += PAGE) CHECK(own[i][at] == (char)(i + 1));
            _exit(0);
        }
        ended(pid);
    }
    for (int i = 0; i < FILES; i++) {
        CHECK(snprintf(name, sizeof name, "%s.%d", path, i) < (int)sizeof name && unlink(name) == 0);
    }
}

static int by_list(int fd, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int done = vdprintf(fd, format, list);
    va_end(list);
    return done;
}

static void formatted(const char *path) {
    extern int __dprintf_chk(int, int, const char *, ...);
    int fd = make(path, 'A');
    char *at = map(fd), want[200], got[200];
    for (int round = 0; round < 60; round++) {
        off_t place = (off_t)round * 3 * PAGE + 7;
        // Its page is dirty before, and stays so.
        at[round * 3 * PAGE + 2000] = 's';
        CHECK(lseek(fd, place, SEEK_SET) == place);
        const char *format = "%d %s %.3f %c %ld %g %d %d %.1f %.1f %.1f %.1f %.1f %.1f %.1f %s|";
        #define LIST round, "text", round / 3.0, 'x', (long)round << 40, 1e100 * round, 4, 5, 1., 2., 3., 4., 5., 6., 7., "end"
        int bytes = snprintf(want, sizeof want, format, LIST);
        CHECK(dprintf(fd, format, LIST) == bytes && __dprintf_chk(fd, 1, format, LIST) == bytes);
        CHECK(by_list(fd, format, LIST) == bytes);
        for (int time = 0; time < 3; time++) {
            CHECK(pread(fd, got, bytes, place + time * bytes) == bytes && !memcmp(got, want, bytes));
            CHECK(!memcmp(at + place + time * bytes, want, bytes));
        }
    }
    FAILS(dprintf(99, "%d", 1), EBADF);
    CHECK(dprintf(fd, "%s", "") == 0 && msync(at, BYTES, MS_SYNC) == 0);
    CHECK(munmap(at, BYTES) == 0 && close(fd) == 0);
}

static void direct(const char *path) {
    CHECK(close(make(path, 'A')) == 0);
    char *buffer = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at;
    for (int way = 0; way < 3; way++) {
        int fd = open(path, way == 0 ? O_RDONLY | O_DIRECT : way == 1 ? O_RDWR | O_DIRECT : O_RDONLY);
        CHECK(fd > 2 && buffer != MAP_FAILED && (at = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0)) != MAP_FAILED);
        CHECK(at[5] == 'A');
        if (way == 2) {
            CHECK(pread(fd, buffer, 1, 5) == 1);
            if (fcntl(fd, F_SETFL, O_DIRECT) != 0) continue;
        }
        // What a program finds out so.
        for (int round = 0; round < 3; round++) {
            FAILS(pread(fd, buffer, 1, 0), EINVAL);
            FAILS(pread(fd, buffer, PAGE, 1), EINVAL);
            CHECK(lseek(fd, 0, SEEK_SET) == 0);
            FAILS(read(fd, buffer, 100), EINVAL);
            CHECK(read(fd, buffer, 2 * PAGE) == 2 * PAGE && buffer[PAGE] == 'B');
            CHECK(pread(fd, buffer, 4 * PAGE, 30 * PAGE) == 4 * PAGE && buffer[3 * PAGE] == 'A' + 33 % 26);
            // What ends beyond the last block is as long as that.
            CHECK(pread(fd, buffer, PAGE + 100, BYTES - PAGE) == PAGE);
            FAILS(pread(fd, buffer, 100, BYTES - PAGE), EINVAL);
            CHECK(pread(fd, buffer, 1, BYTES) == 0 && pread(fd, buffer, 8 * PAGE, BYTES - PAGE) == PAGE);
        }
        CHECK(munmap(at, BYTES) == 0 && close(fd) == 0);
    }
}

// ext4 refuses direct reads of what such a write left behind the end, and reads by its cache do not.
static void faulted(const char *path) {
    enum { LONG = 104 * PAGE };
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    struct iovec parts[] = {{room, 7}, {(void *)0x100004000ab5, 7}, {room, 7 * PAGE}};
    memset(room, 'z', 7);
    CHECK(fd > 2 && writev(fd, parts, 3) == 7 && fsync(fd) == 0 && ftruncate(fd, LONG) == 0);
    int other = open(path, O_RDONLY);
    long bytes = 0, n;
    while ((n = read(other, room, 16 * PAGE)) > 0) bytes += n;
    CHECK(n == 0 && bytes == LONG && close(other) == 0 && close(fd) == 0);
}

static void reopened(const char *path) {
    CHECK(close(make(path, 'A')) == 0);
    static char own[100];
    FILE *stream = fopen(path, "r+");
    for (int mode = 0; mode < 3; mode++) {
        if (mode == 0) CHECK(setvbuf(stream, NULL, _IONBF, 0) == 0 && fputs("unbuffered", stream) >= 0);
        if (mode == 1) CHECK(setvbuf(stream, NULL, _IOLBF, 0) == 0 && fputs("line\n", stream) >= 0);
        if (mode == 2) CHECK(setvbuf(stream, own, _IOFBF, sizeof own) == 0 && fputs("own", stream) >= 0);
        stream = freopen(path, "r+", stream);
        CHECK(stream && fputs("a line\n", stream) >= 0 && lseek(fileno(stream), 0, SEEK_CUR) == 0);
        memset(own, '#', sizeof own);
        CHECK(fflush(stream) == 0 && lseek(fileno(stream), 0, SEEK_CUR) == 7);
        CHECK(fseek(stream, 3 * PAGE, SEEK_SET) == 0 && getc(stream) == 'D');
        CHECK(fread(room, 1, 5 * PAGE, stream) == 5 * PAGE && room[5 * PAGE - 1] == 'I');
    }
    CHECK(fclose(stream) == 0);
}

static void outlives(const char *path) {
    int fd = make(path, 'A');
    pid_t parent = getpid();
    CHECK(pread(fd, room, BYTES, 0) == BYTES);
    if (fork() != 0) {
        // Says nothing: the other has the last word.
        _exit(0);
    }
    while (getppid() == parent) usleep(1000);
    // Longer than a run takes that nobody is left of.
    sleep(1);
    CHECK(pread(fd, room, PAGE, PAGE) == PAGE && room[0] == 'B' && room[PAGE - 1] == 'B');
    CHECK(pwrite(fd, "late", 4, 0) == 4 && pread(fd, room, 5, 0) == 5 && !memcmp(room, "lateA", 5));
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    const char *what = argv[1];
    if (!strcmp(what, "times")) times(argv[2]);
    else if (!strcmp(what, "asynchronous")) asynchronous(argv[2]);
    else if (!strcmp(what, "copies")) copies(argv[2]);
    else if (!strcmp(what, "arrivals")) arrivals(argv[2]);
    else if (!strcmp(what, "sent")) sent(argv[2]);
    else if (!strcmp(what, "temporary")) temporary(argv[2]);
    else if (!strcmp(what, "left")) return left(atoi(argv[2])), 0;
    else if (!strcmp(what, "pipes")) pipes(argv[2]);
    else if (!strcmp(what, "flags")) flags(argv[2]);
    else if (!strcmp(what, "room")) some_room(argv[2]);
    else if (!strcmp(what, "vectors")) vectors(argv[2]);
    else if (!strcmp(what, "blocked")) blocked(argv[2]);
    else if (!strcmp(what, "submitted")) submitted(argv[2]);
    else if (!strcmp(what, "cancelled")) cancelled(argv[2]);
    else if (!strcmp(what, "jumps")) jumps(argv[2]);
    else if (!strcmp(what, "code")) code(argv[2]);
    else if (!strcmp(what, "grown")) grown(argv[2]), grown_otherwise(argv[2]);
    else if (!strcmp(what, "offsets")) offsets(argv[2]);
    else if (!strcmp(what, "advice")) advice(argv[2]), advise_parts(argv[2]);
    else if (!strcmp(what, "space")) space(argv[2]);
    else if (!strcmp(what, "formatted")) formatted(argv[2]);
    else if (!strcmp(what, "direct")) direct(argv[2]);
    else if (!strcmp(what, "faulted")) faulted(argv[2]);
    else if (!strcmp(what, "beside")) beside(argv[2]);
    else if (!strcmp(what, "longer")) longer(argv[2]);
    else if (!strcmp(what, "views")) views(argv[2]);
    else if (!strcmp(what, "reopened")) reopened(argv[2]);
    else if (!strcmp(what, "stacks")) stacks(argv[2]);
    else if (!strcmp(what, "listed")) listed(argv[2]);
    else if (!strcmp(what, "seeks")) seeks(argv[2]);
    else if (!strcmp(what, "tail")) tail(argv[2]);
    else if (!strcmp(what, "outlives")) outlives(argv[2]);
    else return 2;
    printf("%s ok\n", what);
    return 0;
}
