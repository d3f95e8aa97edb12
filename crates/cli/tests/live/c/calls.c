// System calls and stdio on a mapped file that does not fit in its memory: from and into pages that
// are not there. Its output must be the same however the file is served.
//
//     calls PART          ("calls", "forks", "forkers"); uses the files f and out of its directory
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static unsigned char *at;
static size_t size;
static int fd;

static uint64_t hash(const unsigned char *from, size_t bytes) {
    uint64_t h = 14695981039346656037ull;
    for (size_t i = 0; i < bytes; i++) h = (h ^ from[i]) * 1099511628211ull;
    return h;
}

static void say(const char *what, long result) {
    printf("%s: %ld (%d) %016lx\n", what, result, result < 0 ? errno : 0, hash(at, size));
    fflush(stdout);
}

static int out(int flags) {
    int to = open("out", O_RDWR | O_CREAT | flags, 0644);
    if (to < 0) perror("out"), exit(1);
    return to;
}

static void *reader(void *socket) {
    static unsigned char got[1 << 16];
    uint64_t sum = 0;
    ssize_t n;
    while ((n = recv(*(int *)socket, got, sizeof got, 0)) > 0)
        for (ssize_t i = 0; i < n; i++) sum = sum * 31 + got[i];
    return (void *)sum;
}

static void say_all(const char *what, long result, struct mmsghdr *all, int count) {
    say(what, result);
    for (int i = 0; i < count; i++) printf("  %u %x\n", all[i].msg_len, all[i].msg_hdr.msg_flags);
}

// Several messages by one call, some without bytes; what describes them lies in the mapping, too.
static void several(void) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair)) exit(1);
    struct iovec from[] = {{at + 9 * 4096 - 5, 9000}, {at + 33 * 4096, 7000}, {at + 110 * 4096, 5}};
    struct mmsghdr sent[] = {
        {.msg_hdr = {.msg_iov = from, .msg_iovlen = 2}},
        {.msg_hdr = {.msg_iov = NULL, .msg_iovlen = 0}},
        {.msg_hdr = {.msg_iov = from + 2, .msg_iovlen = 1}},
        {.msg_hdr = {.msg_iov = from + 1, .msg_iovlen = 1}},
    };
    struct iovec into[] = {{at + 45 * 4096 - 1, 8192},
                           {at + 130 * 4096, 60000},
                           {at + 150 * 4096, 4000}};
    struct mmsghdr got[] = {
        {.msg_hdr = {.msg_iov = into, .msg_iovlen = 2}},
        {.msg_hdr = {.msg_iov = into + 2, .msg_iovlen = 1}},
        {.msg_hdr = {.msg_iov = into + 2, .msg_iovlen = 1}},
        {.msg_hdr = {.msg_iov = into + 2, .msg_iovlen = 1}},
        {.msg_hdr = {.msg_iov = into + 1, .msg_iovlen = 1}},
    };
    struct timespec long_time = {100, 5}, none = {0, 0}, wrong = {0, -1};
    say_all("several", sendmmsg(pair[0], sent, 4, 0), sent, 4);
    say("a wrong time", recvmmsg(pair[1], got, 5, 0, &wrong));
    say_all("without waiting", recvmmsg(pair[1], got, 5, MSG_DONTWAIT, &long_time), got, 5);
    printf("time left: %d\n", long_time.tv_sec == 99);
    say("nothing", recvmmsg(pair[1], got, 5, MSG_DONTWAIT, NULL));
    say_all("again", sendmmsg(pair[0], sent, 4, 0), sent, 4);
    say_all("no time", recvmmsg(pair[1], got, 5, 0, &none), got, 1);
    say_all("two", recvmmsg(pair[1], got, 2, 0, NULL), got, 2);
    say_all("one and what is there", recvmmsg(pair[1], got, 5, MSG_WAITFORONE, NULL), got, 1);
    // All of it in the mapping: where the kernel itself has it in memory, or serves its own faults.
    struct mmsghdr *described = (void *)(at + 170 * 4096 - 96);
    struct iovec *parts = (void *)(at + 190 * 4096);
    memcpy(parts, from, sizeof from);
    for (int i = 0; i < 3; i++)
        described[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = parts + i, .msg_iovlen = 1}};
    msync(at, size, MS_SYNC);
    for (size_t i = 0; i < 150; i++) hash(at + i * 4096, 4096);
    long result = syscall(SYS_sendmmsg, pair[0], described, 3, 0);
    printf("described there: %ld (%d)\n", result, result < 0 ? errno : 0);
    printf("  %u %u %u\n", described[0].msg_len, described[1].msg_len, described[2].msg_len);
    memcpy(parts, into, sizeof into);
    for (size_t i = 0; i < 150; i++) hash(at + i * 4096, 4096);
    result = syscall(SYS_recvmmsg, pair[1], described, 3, MSG_DONTWAIT, NULL);
    printf("received: %ld (%d)\n", result, result < 0 ? errno : 0);
    printf("  %u %u %u\n", described[0].msg_len, described[1].msg_len, described[2].msg_len);
    // Addresses would differ from run to run.
    memset(at + 169 * 4096, 0, 2 * 4096), memset(parts, 0, 4096);
    // The third has no bytes there, and the kernel stops at it.
    unsigned char *longer = mmap(NULL, size + 8 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    from[2].iov_base = longer + size + 4096;
    say("up to the wrong one", sendmmsg(pair[0], sent, 4, 0));
    sent[0].msg_hdr.msg_iov = from + 2, sent[0].msg_hdr.msg_iovlen = 1;
    say("the first is wrong", sendmmsg(pair[0], sent, 4, 0));
    munmap(longer, size + 8 * 4096);
    close(pair[0]), close(pair[1]);
    // A stream that takes a part: from the mapping, and from elsewhere beside it.
    for (int way = 0; way < 2; way++) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) exit(1);
        struct iovec much = {way ? calloc(1, size) : at, size};
        struct mmsghdr twice[] = {
            {.msg_hdr = {.msg_iov = &much, .msg_iovlen = 1}},
            {.msg_hdr = {.msg_iov = from, .msg_iovlen = 2}},
        };
        int done = sendmmsg(pair[0], twice, 2, MSG_DONTWAIT);
        printf("a part: %d %d\n", done, twice[0].msg_len > 0 && twice[0].msg_len < size);
        if (way) free(much.iov_base);
        close(pair[0]), close(pair[1]);
    }
}

static void calls(void) {
    int to = out(O_TRUNC);
    say("write", write(to, at, size));
    struct iovec two[] = {{at + 100, 9000}, {at + 50 * 4096 + 7, 70000}};
    say("writev", writev(to, two, 2));
    say("pwrite", pwrite(to, at + 4095, 4098, 333));
    say("pwritev2", pwritev2(to, two, 2, 5000, 0));
    say("at the end", lseek(to, 0, SEEK_CUR));
    say("read", lseek(to, 0, SEEK_SET) ? -1 : read(to, at + 12345, size - 20000));
    say("readv", readv(to, two, 2));
    say("pread", pread(to, at + 4090, 100000, 77));
    say("pread behind the end", pread(to, at, 4096, 1 << 30));
    say("preadv", preadv(to, two, 2, 4097));
    say("a bad offset", pread(to, at, 10, -1));
    say("a bad descriptor", write(999, at, 10));
    // Behind the end of the file the kernel finds nothing to copy from.
    unsigned char *longer = mmap(NULL, size + 8 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    say("all that is there", pwrite(to, longer + size - 4096, 8192, 0));
    say("nothing there", pwrite(to, longer + size + 4096, 10, 0));
    int kept[2];
    if (pipe(kept) || write(kept[1], "kept", 4) != 4) exit(1);
    say("no place to go to", read(kept[0], longer + size + 4096, 4));
    say("still there", read(kept[0], at + 4, 4));
    munmap(longer, size + 8 * 4096);

    int pipes[2], pair[2];
    if (pipe(pipes)) exit(1);
    say("into a pipe", write(pipes[1], at + 30 * 4096 - 5, 10000));
    say("from a pipe", read(pipes[0], at + 90 * 4096 + 5, 1 << 20));
    fcntl(pipes[1], F_SETFL, O_NONBLOCK);
    say("a pipe is full", write(pipes[1], at, 1 << 20));
    fcntl(pipes[0], F_SETFL, O_NONBLOCK);
    say("from a full pipe", read(pipes[0], at + 333, 1 << 20));
    say("from an empty pipe", read(pipes[0], at + 333, 1 << 20));

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) exit(1);
    pthread_t thread;
    pthread_create(&thread, NULL, reader, &pair[1]);
    say("send", send(pair[0], at + 17, 900000, 0));
    shutdown(pair[0], SHUT_WR);
    void *sum;
    pthread_join(thread, &sum);
    printf("received %lx\n", (long)sum);
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair)) exit(1);
    say("a message", send(pair[0], at + 3 * 4096, 20000, 0));
    say("received", recv(pair[1], at + 60 * 4096 + 1, 1 << 20, 0));
    say("another", sendto(pair[0], at + 5 * 4096, 20000, 0, NULL, 0));
    say("cut off", recvfrom(pair[1], at + 80 * 4096, 5000, MSG_TRUNC, NULL, NULL));
    struct msghdr message = {.msg_iov = two, .msg_iovlen = 2};
    say("in pieces", sendmsg(pair[0], &message, 0));
    struct iovec back[] = {{at + 40 * 4096 - 1, 30000}, {at + 100 * 4096, 60000}};
    message.msg_iov = back;
    say("received", recvmsg(pair[1], &message, 0));

    several();

    FILE *stream = fopen("out", "w+");
    say("fwrite", (long)fwrite(at + 11, 1000, 700, stream));
    at[70 * 4096] = 0;
    say("fputs", fputs((char *)at + 60 * 4096, stream) < 0);
    rewind(stream);
    say("fread", (long)fread(at + 4096 * 2 + 9, 999, 600, stream));
    say("fread to the end", (long)fread(at + 4096 * 2 + 9, 999, 6000, stream));
    fclose(stream);
    say("by number", syscall(SYS_write, to, at + 20 * 4096, 50000));
    // The managed file itself, from and into its own mapping.
    say("into itself", pwrite(fd, at + 10 * 4096, 300000, 100 * 4096 + 1));
    say("from itself", pread(fd, at + 200 * 4096 + 3, 200000, 4096));
    say("msync", msync(at, size, MS_SYNC));
}

static volatile sig_atomic_t seen;
static void handler(int number) { seen = at[4096 * 7] + number - number; }

static int ended(pid_t pid) {
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

// Without libc's handlers, on a stack of its own.
static int cloned(void *argument) {
    static const char text[] = "cloned\n";
    long sum = 0;
    for (size_t i = 0; i < size; i += 4096) if (i / 4096 != 5) sum += at[i + 1];
    at[size - 7] = 60;
    return (int)(sum + at[size - 1]) % 100 + (write(1, text, 7) != 7) + (argument != at);
}

static void forks(void) {
    // A second view, one without access, and one that was moved.
    unsigned char *second = mmap(NULL, 40 * 4096, PROT_READ, MAP_SHARED, fd, 10 * 4096);
    unsigned char *closed = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    unsigned char *moved = mmap(NULL, 20 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    moved = mremap(moved, 20 * 4096, 30 * 4096, MREMAP_MAYMOVE);
    mprotect(at + 5 * 4096, 4096, PROT_NONE);
    closed[1] = 91;
    signal(SIGUSR1, handler);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < size; i += 4096) if (i / 4096 != 5) at[i + 1] = (unsigned char)(i / 4096 + round);
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            raise(SIGUSR1);
            long sum = seen;
            for (size_t i = 0; i < size; i += 4096) if (i / 4096 != 5) sum = sum * 3 + at[i + 1];
            printf("child %d: %lx %d %d %d\n", round, sum, second[1], closed[1], moved[29 * 4096 + 1]);
            at[size - 1 - round] = 50 + round;
            moved[2] = 77;
            closed[1] = 92;
            fflush(stdout);
            pid_t inner = fork();
            if (inner == 0) {
                write(1, "inner\n", 6);
                _exit(at[size - 1 - round] + moved[2] + closed[1] + (at[size - 4096 + 1] & 3));
            }
            printf("inner ended: %d\n", ended(inner));
            fflush(stdout);
            _exit(7);
        }
        printf("child ended: %d\n", ended(pid));
        printf("%d %d %d\n", at[size - 1 - round], second[0], closed[1]);
    }
    static char stack[1 << 16];
    printf("clone ended: %d", ended(clone(cloned, stack + sizeof stack, SIGCHLD, at)));
    printf(" %d\n", at[size - 7]);
    char *arguments[] = {"sh", "-c", "exit 5", NULL};
    pid_t spawned;
    printf("spawned: %d\n", posix_spawn(&spawned, "/bin/sh", NULL, NULL, arguments, environ));
    printf("ended: %d; system: %d\n", ended(spawned), system("cmp f f"));
    fflush(stdout);
    // Its parent is gone before it begins.
    int pipes[2];
    if (pipe(pipes)) exit(1);
    pid_t between = fork();
    if (between == 0) {
        if (fork()) _exit(0);
        usleep(100000);
        long sum = 0;
        for (size_t i = 0; i < size; i += 4096) if (i / 4096 != 5) sum = sum * 3 + at[i + 1];
        write(pipes[1], &sum, sizeof sum);
        at[3] = 33;
        _exit(0);
    }
    printf("between: %d\n", ended(between));
    long sum = 0;
    printf("orphan: %ld\n", (long)read(pipes[0], &sum, sizeof sum));
    for (int tries = 0; at[3] != 33 && tries < 1000; tries++) usleep(1000);
    printf("%lx %d\n", sum, at[3]);
}

// ---- forkers ------------------------------------------------------------------------------------

static int holds_signals(void) {
    sigset_t held;
    pthread_sigmask(SIG_BLOCK, NULL, &held);
    for (int signal = 1; signal < 32; signal++)
        if (sigismember(&held, signal)) return 1;
    return 0;
}

static _Atomic int wrong;
static void *forker(void *way) {
    for (int round = 0; round < 100; round++) {
        pid_t child = way ? (pid_t)syscall(SYS_fork) : fork();
        if (child == 0) _exit(holds_signals() ? 1 : at[size / 2] != 99 ? 2 : 0);
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || status || holds_signals()) wrong++;
    }
    return NULL;
}

// Threads that fork at the same time, one of them behind libc's back.
static void forkers(void) {
    printf("%016lx\n", hash(at, size));
    at[size / 2] = 99;
    pthread_t threads[3];
    for (long i = 0; i < 3; i++) pthread_create(&threads[i], NULL, forker, (void *)(i == 2));
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    printf("wrong: %d\n", wrong);
}

int main(int count, char **arguments) {
    fd = open("f", O_RDWR);
    struct stat stat;
    if (count < 2 || fd < 0 || fstat(fd, &stat)) return perror("f"), 1;
    size = (size_t)stat.st_size;
    at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return perror("mmap"), 1;
    if (!strcmp(arguments[1], "calls")) calls();
    else if (!strcmp(arguments[1], "forks")) forks();
    else if (!strcmp(arguments[1], "forkers")) forkers();
    else return 2;
    return 0;
}
