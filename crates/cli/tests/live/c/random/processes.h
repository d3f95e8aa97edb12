// Operations by which other processes, threads and signal handlers have to do with the files.
#include <pthread.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>

extern char **environ;
static char own_path[PAGE];
static int is_child, is_limited;

static void perform(uint64_t number, const char *indent);
static uint64_t current_number;

// ---- forked children ------------------------------------------------------------------------------

static void set_limit(void) {
    off_t bytes = any_offset();
    struct rlimit limit = {(rlim_t)bytes, (rlim_t)bytes};
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0 && signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
}

static pid_t forked(int way) {
    switch (way) {
    case 0: return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0);
    case 1: return _Fork();
    default: return fork();
    }
}

// Does some operations with what it has got of its parent, and ends in one of several ways.
static void fork_child(void) {
    int way = below(5), end = below(4), operations = 1 + below(6), limits = one_in(5);
    uint64_t first = current_number * 1000;
    say(" way %d, end %d, limited %d\n", way, end, limits);
    pid_t child = forked(way);
    CHECK(child >= 0);
    if (child == 0) {
        is_child = 1, is_limited = limits;
        if (limits) set_limit();
        for (int i = 0; i < operations; i++) perform(first + (uint64_t)i, "  child ");
        if (end == 0) kill(getpid(), SIGKILL);
        if (end == 1) exit(3);
        _exit(4);
    }
    say_child(child);
}

// ---- executed programs ----------------------------------------------------------------------------

// In a program that was executed: with a descriptor of its parent's, and a mapping of its own.
static int use_inherited(int fd, uint64_t seed) {
    enum { BYTES = 2 << 20 };
    take_dice(seed, 0);
    say("  executed, fd %d", fd);
    size_t bytes = (size_t)below(100000);
    say_read(room, read(fd, room, bytes));
    fill(room, 30000);
    bytes = (size_t)below(30000);
    say_result("write", write(fd, room, bytes));
    say_result("offset", lseek(fd, 0, SEEK_CUR));
    char *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    say_result("mmap", at == MAP_FAILED ? -1 : 0);
    if (at != MAP_FAILED) {
        say_memory(at, BYTES);
        say("; stores %d", copies(at + PAGE * below(50), room, PAGE));
    }
    say_read(room, pread(fd, room, 50000, any_offset()));
    say("\n");
    return 7;
}

static pid_t executed_after_vfork(char *const *arguments, char *const *environment) {
    pid_t child = vfork();
    if (child == 0) {
        execve(own_path, arguments, environment);
        _exit(9);
    }
    return child;
}

static pid_t executed_after_fork(char *const *arguments) {
    pid_t child = fork();
    if (child == 0) {
        execv(own_path, arguments);
        _exit(9);
    }
    return child;
}

static pid_t spawned(char *const *arguments, int fd, int as) {
    pid_t child = -1;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, as);
    CHECK(posix_spawn(&child, own_path, &actions, NULL, arguments, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    return child;
}

static void execute(void) {
    int fd = any_descriptor(), way = below(4), flags = fcntl(fd, F_GETFD), as = fd;
    char descriptor[16], seed[32], *nothing[] = {NULL};
    if (fd < 0 || flags == -1) return;
    if (way == 3) as = 200;
    snprintf(descriptor, sizeof descriptor, "%d", as);
    snprintf(seed, sizeof seed, "%d", below(1 << 30));
    char executed[] = "executed", *arguments[] = {own_path, executed, descriptor, seed, NULL};
    say(" fd %d, way %d\n", fd, way);
    pid_t child;
    CHECK(fcntl(fd, F_SETFD, 0) == 0);
    switch (way) {
    case 0: child = executed_after_fork(arguments); break;
    case 1: child = executed_after_vfork(arguments, environ); break;
    case 2: child = executed_after_vfork(arguments, nothing); break;
    default: child = spawned(arguments, fd, as); break;
    }
    CHECK(fcntl(fd, F_SETFD, flags) == 0);
    say_child(child);
}

// By another program, with descriptors of its own.
static void run_command(void) {
    const char *name = ANY(names);
    char command[100], line[100] = "";
    say(" %s", name);
    if (one_in(2)) {
        snprintf(command, sizeof command, "test -f %s && cksum <%s", name, name);
        FILE *output = popen(command, "re");
        CHECK(output);
        int is_there = fgets(line, sizeof line, output) != NULL;
        line[strcspn(line, "\n")] = 0;
        say(", %d, %s; pclose: %x", is_there, line, pclose(output));
    } else {
        snprintf(command, sizeof command, "test -f %s && echo %d >>%s", name, below(1000000), name);
        say("; system: %x", system(command));
    }
}

// ---- descriptors by other ways --------------------------------------------------------------------

union control { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr header; };

static void send_to(int socket, int fd) {
    char byte = 'x';
    struct iovec part = {&byte, 1};
    union control control;
    memset(&control, 0, sizeof control);
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    say_result("sendmsg", sendmsg(socket, &message, 0));
}

static int received_from(int socket) {
    char byte;
    int fd = -1;
    struct iovec part = {&byte, 1};
    union control control;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t done = one_in(2) ? recvmsg(socket, &message, MSG_DONTWAIT)
                             : syscall(SYS_recvmsg, socket, &message, MSG_DONTWAIT);
    struct cmsghdr *header = done > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (header) memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

// Our own, or one that a child has opened.
static void pass_descriptor(void) {
    int ends[2], fd = any_descriptor(), by_child = one_in(2) && !is_child;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    say(" fd %d, by child %d\n", fd, by_child);
    pid_t child = by_child ? fork() : 0;
    if (child == 0) {
        say("  sender");
        send_to(ends[0], by_child ? open(ANY(names), O_RDWR) : fd);
        say("\n");
        if (by_child) _exit(0);
    } else {
        say_child(child);
    }
    int received = received_from(ends[1]);
    say_result("received", received);
    close(ends[0]), close(ends[1]);
    keep_descriptor(received);
}

static void get_descriptor(void) {
    int fd = any_descriptor(), process = (int)syscall(SYS_pidfd_open, getpid(), 0);
    say(" fd %d", fd);
    int copy = (int)syscall(SYS_pidfd_getfd, process, fd, 0);
    say_result("pidfd_getfd", copy);
    close(process);
    keep_descriptor(copy);
}

static void close_several(void) {
    unsigned first = 3 + (unsigned)below(20), last = first + (unsigned)below(20);
    int flags = one_in(3) ? CLOSE_RANGE_CLOEXEC : 0;
    say(" %u to %u, flags %x", first, last, flags);
    say_result("close_range", EITHER_WAY(close_range, first, last, flags));
    for (unsigned fd = first; fd <= last && flags == 0; fd++) forget_descriptor((int)fd);
}

// ---- pointers -------------------------------------------------------------------------------------

static void use_socket(char *at) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    fill(room, 2000);
    say_result("send", send(ends[0], room, 2000, 0));
    say_read(at, one_in(2) ? recv(ends[1], at, 3000, 0) : recvfrom(ends[1], at, 3000, 0, NULL, NULL));
    say_result("send", send(ends[1], at, 2500, MSG_DONTWAIT));
    say_read(room, read(ends[0], room, 3000));
    close(ends[0]), close(ends[1]);
}

static void use_own_pipe(char *at) {
    int *ends = (int *)at;
    say_result("pipe", pipe(ends));
    int from = ends[0], to = ends[1];
    say_result("write", write(to, at, 3000));
    say_read(at, read(from, at, 4000));
    close(from), close(to);
}

// Calls that have nothing to do with files take what lies in mappings, too.
static void use_mapped_memory(void) {
    char *at = mapped_place(PAGE);
    if (!at) return;
    struct timespec *time = (struct timespec *)at;
    switch (below(6)) {
    case 0: say_result("readlink", readlink("link", at, PAGE)); break;
    case 1: say(", getcwd %d", getcwd(at, PAGE) == at); break;
    case 2: say_result("getrandom", syscall(SYS_getrandom, at, 3000, 0)); break;
    case 3: use_socket(at); break;
    case 4: use_own_pipe(at); break;
    default: *time = (struct timespec){0, 1000}, say_result("nanosleep", nanosleep(time, NULL)); break;
    }
    // Nothing of that is to be in the file.
    memset(at, 7, PAGE);
}

// ---- threads and signals --------------------------------------------------------------------------

enum { THREADS = 3, ROUNDS = 60, MOST = 9000 };

// Of one file, each thread has a part for itself, which ends in the midst of a page.
struct worker { int fd; char *at; off_t from, to; uint64_t seed, sum; };

static uint64_t done_by_worker(const struct worker *worker, uint64_t *state, char *buffer) {
    uint64_t room_bytes = (uint64_t)(worker->to - worker->from - MOST);
    off_t offset = worker->from + (off_t)(next(state) % room_bytes);
    size_t bytes = next(state) % MOST;
    switch (next(state) % 6) {
    case 0:
        memset(buffer, (int)next(state), bytes);
        return (uint64_t)pwrite(worker->fd, buffer, bytes, offset);
    case 1: {
        ssize_t done = pread(worker->fd, buffer, bytes, offset);
        return done > 0 ? checksum(buffer, (size_t)done) : (uint64_t)done;
    }
    case 2: memset(worker->at + offset, (int)next(state), bytes); return 0;
    case 3: return checksum(worker->at + offset, bytes);
    case 4: madvise(page_of(worker->at + offset), 2 * PAGE, MADV_DONTNEED); return 0;
    default: return next(state) % 4 == 0 ? (uint64_t)fdatasync(worker->fd) : 0;
    }
}

static void *work(void *argument) {
    struct worker *worker = argument;
    uint64_t state = worker->seed;
    char buffer[MOST];
    for (int round = 0; round < ROUNDS; round++)
        worker->sum = mixed(worker->sum + done_by_worker(worker, &state, buffer));
    return NULL;
}

static void run_threads(void) {
    const char *name = ANY(names);
    int fd = open(name, O_RDWR);
    struct stat st;
    if (fd < 0) return;
    CHECK(fstat(fd, &st) == 0);
    off_t part = st.st_size / THREADS;
    char *at = MAP_FAILED;
    if (part > 2 * MOST)
        at = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    say(" %s", name);
    if (at != MAP_FAILED) {
        struct worker workers[THREADS];
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) {
            workers[i] = (struct worker){fd, at, i * part, (i + 1) * part, next(&dice_state), 0};
            CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
        }
        for (int i = 0; i < THREADS; i++) {
            CHECK(pthread_join(threads[i], NULL) == 0);
            say(", %016lx", workers[i].sum);
        }
        munmap(at, (size_t)st.st_size);
        say_file(name);
    }
    close(fd);
}

static int handled_fd;
static volatile sig_atomic_t handled, failed_in_handler;

// Writes the same each time, so that how often it comes is no matter.
static void on_signal(int signal) {
    char bytes[3000];
    int error = errno;
    (void)signal;
    handled++;
    memset(bytes, 's', sizeof bytes);
    if (pwrite(handled_fd, bytes, sizeof bytes, 70001) != sizeof bytes) failed_in_handler = 1;
    if (pread(handled_fd, bytes, 1, 70002) != 1 || bytes[0] != 's') failed_in_handler = 1;
    errno = error;
}

static void interrupt_calls(void) {
    const char *name = ANY(names);
    int fd = open(name, O_RDWR);
    if (fd < 0) return;
    say(" %s", name);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    handled_fd = fd, failed_in_handler = 0;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    raise(SIGALRM);
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int i = 0; i < 20; i++) {
        off_t offset = 200000 + (off_t)i * 30000;
        fill(room, 9000);
        ssize_t done = pwrite(fd, room, 9000, offset + 1234);
        if (done != 9000) say_result("write", done);
        done = pread(fd, room, 20000, offset);
        if (done < 10234) say_result("read", done);
        else say(", %lx", checksum(room, (size_t)done));
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    say("; failed: %d", failed_in_handler);
    close(fd);
}
