// Reads of a file that is written, cut and mapped at the same time. What it prints is the same
// however the file is served; what must hold it checks itself.
//
//     reads random FILE SEED STEPS    any calls, in one process and its forked children
//     reads shared FILE               threads and processes that share a file offset
//     reads cut FILE ROUNDS           another process shortens and lengthens the file
//     reads buffers FILE              buffers that are no memory, or managed memory themselves
//     reads signals FILE              the program's own handlers, and blocked signals
//     reads many DIRECTORY            more files than are kept mapped, changed by others meanwhile
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define FAILS(x, e) CHECK((errno = 0, (long)(x)) == -1 && errno == (e))

static uint64_t state;
static uint64_t any(uint64_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state * 0x2545f4914f6cdd1dull >> 33) % below;
}
// Never zero, so that a zero is one that was not in the file.
static unsigned char pattern(uint64_t i) { return (unsigned char)(1 + (i * 31 + (i >> 9) * 7) % 255); }

static int fresh(const char *path, size_t bytes) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    unsigned char *data = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) data[i] = pattern(i);
    CHECK(fd > 2 && write(fd, data, bytes) == (ssize_t)bytes && lseek(fd, 0, SEEK_SET) == 0);
    free(data);
    return fd;
}

// ---- any calls ----------------------------------------------------------------------------------

enum { FILES = 6, MAPS = 2, LARGEST = 90000, END = 400000 };
static int fds[FILES];
static unsigned char *maps[MAPS];
static size_t mapped[MAPS];
static unsigned char buffer[LARGEST + 16];

static unsigned sum(const unsigned char *bytes, ssize_t n) {
    unsigned s = 2166136261u;
    for (ssize_t i = 0; i < n; i++) s = (s ^ bytes[i]) * 16777619u;
    return s;
}
static void say(int step, const char *what, long result) {
    printf("%d %s %ld %d\n", step, what, result, result < 0 ? errno : 0);
}
static void show(int step, const char *what, long result) {
    say(step, what, result);
    printf("%x\n", sum(buffer, result));
}
static size_t length(void) {
    switch (any(4)) {
    case 0: return any(9);
    case 1: return any(200);
    case 2: return any(9000);
    default: return any(LARGEST);
    }
}
static void fill(size_t bytes) {
    unsigned char first = (unsigned char)(1 + any(255));
    for (size_t i = 0; i < bytes; i++) buffer[i] = (unsigned char)(first + i * 7);
}

static void step(const char *path, int n, int depth) {
    static const int modes[] = {O_RDWR, O_RDONLY, O_WRONLY, O_RDWR | O_APPEND, O_RDWR | O_TRUNC,
                                O_RDWR | O_SYNC};
    int at = (int)any(FILES), fd = fds[at];
    off_t offset = (off_t)any(END);
    size_t bytes = length();
    struct iovec iov[3] = {{buffer, bytes / 3}, {buffer + bytes / 3, 0}, {buffer + bytes / 3, bytes - bytes / 3}};
    errno = 0;
    switch (any(34)) {
    case 0: {
        if (fd >= 0) close(fd);
        // Rarely from nothing.
        int mode = modes[any(any(8) ? 4 : 6)];
        fds[at] = open(path, mode);
        say(n, "open", fds[at] >= 0);
        break;
    }
    case 1: say(n, "close", close(fd)), fds[at] = -1; break;
    case 2: {
        int from = fds[any(FILES)];
        if (fd >= 0) close(fd);
        fds[at] = dup(from);
        say(n, "dup", fds[at] >= 0);
        break;
    }
    case 3: case 4: say(n, "lseek", lseek(fd, offset, SEEK_SET)); break;
    case 5: say(n, "lseek end", lseek(fd, -(off_t)any(2000), SEEK_END)); break;
    case 6: case 7: case 8: case 9: show(n, "read", read(fd, buffer, bytes)); break;
    case 10: case 11: case 12: case 13: case 14: show(n, "pread", pread(fd, buffer, bytes, offset)); break;
    case 15: show(n, "readv", readv(fd, iov, 3)); break;
    case 16: show(n, "preadv", preadv(fd, iov, 3, offset)); break;
    case 17: case 18: fill(bytes), say(n, "write", write(fd, buffer, bytes)); break;
    case 19: case 20: case 21: fill(bytes), say(n, "pwrite", pwrite(fd, buffer, bytes, offset)); break;
    case 22: fill(bytes), say(n, "writev", writev(fd, iov, 3)); break;
    case 23: say(n, "ftruncate", ftruncate(fd, (off_t)any(END))); break;
    case 24: say(n, "truncate", truncate(path, (off_t)any(END))); break;
    case 25: say(n, "fallocate", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, (off_t)bytes + 1)); break;
    case 26: {
        struct stat st;
        int r = fstat(fd, &st);
        say(n, "fstat", r), say(n, "size", r ? 0 : (long)st.st_size);
        say(n, "position", lseek(fd, 0, SEEK_CUR));
        break;
    }
    case 27: {
        int m = (int)any(MAPS);
        if (maps[m]) munmap(maps[m], mapped[m]), maps[m] = NULL;
        mapped[m] = (size_t)(1 + any(40)) * 4096;
        unsigned char *p = mmap(NULL, mapped[m], PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        say(n, "mmap", p == MAP_FAILED ? -1 : 0);
        if (p != MAP_FAILED) maps[m] = p;
        break;
    }
    case 28: case 29: {
        int m = (int)any(MAPS);
        struct stat st;
        size_t i = any(40 * 4096);
        // Behind the end of the last page is no memory.
        if (maps[m] && stat(path, &st) == 0 && i < mapped[m] && i < (size_t)st.st_size) {
            say(n, "load", maps[m][i]);
            maps[m][i] = (unsigned char)any(256);
        }
        break;
    }
    case 30: {
        // Anew, since what a stream has in its buffer may be old.
        FILE *stream = fopen(path, "r");
        say(n, "fseek", fseek(stream, offset, SEEK_SET));
        show(n, "fread", (long)fread(buffer, 1, bytes, stream));
        fclose(stream);
        break;
    }
    case 31: {
        if (depth == 0 && any(4) == 0) {
            fflush(stdout);
            pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                for (int i = 0; i < 60; i++) step(path, n * 1000 + i, 1);
                fflush(stdout);
                _exit(0);
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
            // The child went on from here.
            state += 1;
        }
        break;
    }
    case 32: say(n, "fsync", fsync(fd)); break;
    default: say(n, "far", pread(fd, buffer, bytes, ((off_t)1 << 40) + offset)); break;
    }
}

static void random_calls(const char *path, uint64_t seed, int steps) {
    state = seed * 0x9e3779b97f4a7c15ull + 1;
    int fd = fresh(path, 300000);
    for (int i = 0; i < FILES; i++) fds[i] = i % 2 ? open(path, O_RDWR) : dup(fd);
    close(fd);
    for (int i = 0; i < steps; i++) step(path, i, 0);
    // All of it, as it is at last.
    fd = open(path, O_RDONLY);
    ssize_t got;
    while ((got = read(fd, buffer, 5000)) > 0) show(steps, "rest", got);
}

// ---- one offset for many ------------------------------------------------------------------------

enum { RECORD = 64, RECORDS = 6000, TAKERS = 4 };
static int shared_fd;
static unsigned char *taken; // shared between processes

static void *take(void *unused) {
    unsigned char record[RECORD];
    ssize_t n;
    while ((n = read(shared_fd, record, RECORD)) == RECORD) {
        uint32_t number;
        memcpy(&number, record, 4);
        CHECK(number < RECORDS && record[RECORD - 1] == (unsigned char)number);
        __sync_fetch_and_add(&taken[number], 1);
    }
    CHECK(n == 0);
    return unused;
}

static void shared(const char *path) {
    shared_fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (uint32_t i = 0; i < RECORDS; i++) {
        unsigned char record[RECORD] = {0};
        memcpy(record, &i, 4);
        record[RECORD - 1] = (unsigned char)i;
        CHECK(write(shared_fd, record, RECORD) == RECORD);
    }
    // It was too short to be managed, and is no more.
    close(shared_fd);
    CHECK((shared_fd = open(path, O_RDWR)) >= 0);
    taken = mmap(NULL, RECORDS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int round = 0; round < 4; round++) {
        memset(taken, 0, RECORDS);
        CHECK(lseek(shared_fd, 0, SEEK_SET) == 0);
        pthread_t threads[TAKERS];
        pid_t child = round % 2 ? fork() : -1;
        for (int i = 0; i < TAKERS; i++) CHECK(pthread_create(&threads[i], NULL, take, NULL) == 0);
        for (int i = 0; i < TAKERS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
        if (child == 0) _exit(0);
        int status = 0;
        CHECK(child < 0 || (waitpid(child, &status, 0) == child && status == 0));
        for (int i = 0; i < RECORDS; i++) CHECK(taken[i] == 1);
        CHECK(lseek(shared_fd, 0, SEEK_CUR) == RECORD * RECORDS);
    }
    // Writers on one offset: every record is somewhere, once.
    CHECK(ftruncate(shared_fd, 0) == 0 && lseek(shared_fd, 0, SEEK_SET) == 0);
    for (int i = 0; i < TAKERS; i++)
        if (fork() == 0) {
            for (uint32_t n = 0; n < 50; n++) {
                unsigned char record[RECORD] = {0};
                uint32_t number = (uint32_t)i * 50 + n;
                memcpy(record, &number, 4);
                CHECK(write(shared_fd, record, RECORD) == RECORD);
            }
            _exit(0);
        }
    int status;
    while (wait(&status) > 0) CHECK(status == 0);
    memset(taken, 0, RECORDS);
    for (int i = 0; i < TAKERS * 50; i++) {
        uint32_t number;
        CHECK(pread(shared_fd, &number, 4, i * RECORD) == 4 && number < TAKERS * 50);
        CHECK(taken[number]++ == 0);
    }
    puts("shared ok");
}

// ---- a file that is cut -------------------------------------------------------------------------

static void cut(const char *path, int rounds) {
    enum { WHOLE = 200000 };
    int fd = fresh(path, WHOLE);
    unsigned char *data = malloc(WHOLE);
    for (size_t i = 0; i < WHOLE; i++) data[i] = pattern(i);
    pid_t child = fork();
    if (child == 0) {
        state = 99;
        int own = open(path, O_RDWR);
        for (int i = 0; i < rounds; i++) {
            size_t end = any(WHOLE);
            CHECK(ftruncate(own, (off_t)end) == 0);
            CHECK(pwrite(own, data + end, WHOLE - end, (off_t)end) == (ssize_t)(WHOLE - end));
        }
        _exit(0);
    }
    state = 7;
    int status;
    long shorter = 0, reads = 0;
    static unsigned char b[70000];
    while (waitpid(child, &status, WNOHANG) == 0)
        for (int i = 0; i < 20; i++, reads++) {
            size_t at = any(WHOLE), want = 1 + any(any(2) ? 100 : sizeof b);
            ssize_t got = pread(fd, b, want, (off_t)at);
            CHECK(got >= 0 && (size_t)got <= want);
            CHECK(memcmp(b, data + at, (size_t)got) == 0);
            shorter += (size_t)got < want && at + (size_t)got < WHOLE;
        }
    CHECK(status == 0);
    fprintf(stderr, "%ld reads, %ld cut short\n", reads, shorter);
    CHECK(pread(fd, b, sizeof b, 0) == sizeof b && memcmp(b, data, sizeof b) == 0);
    puts("cut ok");
}

// ---- buffers ------------------------------------------------------------------------------------

static void buffers(const char *path) {
    int fd = fresh(path, 100000);
    unsigned char ok[100];
    CHECK(pread(fd, ok, 100, 0) == 100);
    unsigned char *two = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mprotect(two + 4096, 4096, PROT_NONE) == 0);
    void *bad[] = {(void *)8, two + 4096, (void *)0x8000000000000000ul, (void *)-4096l,
                   mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)};
    for (int i = 0; i < 5; i++) {
        for (size_t n = 1; n <= 4096; n = n * 3 + 1) {
            FAILS(pread(fd, bad[i], n, 5), EFAULT);
            CHECK(lseek(fd, 50, SEEK_SET) == 50);
            FAILS(read(fd, bad[i], n), EFAULT);
            CHECK(lseek(fd, 0, SEEK_CUR) == 50);
        }
    }
    // What comes before the bad part may be there.
    ssize_t n = pread(fd, two + 4000, 200, 10);
    int error = errno;
    CHECK((n == -1 && error == EFAULT) || (n > 0 && n <= 96 && two[4000] == pattern(10)));
    struct iovec iov[2] = {{ok, 100}, {bad[0], 100}};
    n = preadv(fd, iov, 2, 3), error = errno;
    CHECK((n == -1 && error == EFAULT) || (n == 100 && ok[99] == pattern(102)));
    CHECK(pread(fd, bad[0], 10, 100000) == 0);
    CHECK(pread(fd, bad[0], 0, 0) == 0);
    // A buffer in a mapping of a managed file, this one and another.
    char other[4096];
    snprintf(other, sizeof other, "%s.other", path);
    int second = fresh(other, 100000);
    unsigned char *own = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    unsigned char *far = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, second, 0);
    unsigned char *copy = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE, second, 0);
    for (int i = 0; i < 8; i++) {
        CHECK(pread(fd, far + 100 + i * 8000, 7000, 33 + i) == 7000);
        CHECK(far[100 + i * 8000] == pattern(33 + (uint64_t)i));
        CHECK(pread(fd, copy + 11 + i * 8000, 7000, 77 + i) == 7000);
        CHECK(copy[11 + i * 8000 + 6999] == pattern(7076 + (uint64_t)i));
    }
    CHECK(pread(fd, own + 20000, 5000, 60000) == 5000 && own[24999] == pattern(64999));
    CHECK(pread(fd, ok, 1, 24999) == 1 && ok[0] == pattern(64999));
    CHECK(pread(second, ok, 1, 100) == 1 && ok[0] == pattern(33));
    unlink(other);
    puts("buffers ok");
}

// ---- signals ------------------------------------------------------------------------------------

static volatile int caught, caught_signal, caught_code;
static void *volatile caught_at;
static sigjmp_buf back;
static void on_fault(int signal, siginfo_t *info, void *context) {
    caught++, caught_signal = signal, caught_code = info->si_code, caught_at = info->si_addr;
    if (info->si_code > 0) siglongjmp(back, 1);
}
static void simple(int signal) { caught++, caught_signal = signal; }

static void signals(const char *path) {
    int fd = fresh(path, 50000);
    unsigned char b[100];
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, old;
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    CHECK(pread(fd, b, 100, 0) == 100 && pread(fd, b, 100, 200) == 100);
    CHECK(sigaction(SIGBUS, &action, &old) == 0 && old.sa_handler == SIG_DFL);
    CHECK(sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_sigaction == on_fault && old.sa_flags & SA_SIGINFO);
    FAILS(pread(fd, (void *)16, 100, 0), EFAULT);
    CHECK(caught == 0);
    // Its own fault is its own.
    if (sigsetjmp(back, 1) == 0) *(volatile char *)24 = 1;
    CHECK(caught == 1 && caught_signal == SIGSEGV && caught_at == (void *)24);
    unsigned char *map = mmap(NULL, 65536, PROT_READ, MAP_SHARED, fd, 0);
    if (sigsetjmp(back, 1) == 0) *(volatile unsigned char *)(map + 60000);
    CHECK(caught == 2 && caught_signal == SIGBUS && caught_at == map + 60000);
    raise(SIGBUS);
    CHECK(caught == 3 && caught_signal == SIGBUS && caught_code <= 0);
    kill(getpid(), SIGSEGV);
    CHECK(caught == 4 && caught_signal == SIGSEGV);
    CHECK(signal(SIGBUS, simple) == (void *)on_fault && signal(SIGBUS, SIG_IGN) == simple);
    raise(SIGBUS);
    CHECK(caught == 4 && signal(SIGBUS, simple) == SIG_IGN);
    raise(SIGBUS);
    CHECK(caught == 5);
    action.sa_handler = simple, action.sa_flags = SA_RESETHAND;
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
    raise(SIGBUS);
    CHECK(caught == 6 && sigaction(SIGBUS, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
    // Blocked: a fault would kill.
    sigset_t all;
    sigfillset(&all);
    CHECK(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
    CHECK(pread(fd, b, 100, 300) == 100 && b[0] == pattern(300));
    FAILS(pread(fd, (void *)16, 100, 0), EFAULT);
    FAILS(read(fd, (void *)16, 100), EFAULT);
    sigemptyset(&all);
    CHECK(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
    FAILS(pread(fd, (void *)16, 100, 0), EFAULT);
    // The default is a death by the signal, also in a child.
    CHECK(signal(SIGSEGV, SIG_DFL) == (void *)on_fault);
    for (int how = 0; how < 3; how++) {
        pid_t child = fork();
        if (child == 0) {
            pread(fd, b, 100, 300);
            if (how == 0) *(volatile char *)24 = 1;
            if (how == 1) raise(SIGBUS);
            if (how == 2) *(volatile unsigned char *)(map + 60000);
            _exit(0);
        }
        int status, want = how == 0 ? SIGSEGV : SIGBUS;
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == want);
    }
    puts("signals ok");
}

// ---- many files ---------------------------------------------------------------------------------

static void many(const char *directory) {
    enum { COUNT = 150 };
    char path[4096], command[9000];
    for (int i = 0; i < COUNT; i++) {
        snprintf(path, sizeof path, "%s/many.%d", directory, i);
        close(fresh(path, 20000 + (size_t)i));
    }
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < COUNT; i++) {
            snprintf(path, sizeof path, "%s/many.%d", directory, i);
            int fd = open(path, O_RDONLY);
            CHECK(fd >= 0);
            unsigned char b[8];
            for (int at = 0; at < 20000; at += 999)
                CHECK(pread(fd, b, 8, at) == 8 && b[7] == pattern((uint64_t)at + 7));
            unsigned char want = round ? (unsigned char)('0' + round) : pattern(12345);
            CHECK(pread(fd, b, 1, 12345) == 1 && (i % 50 || b[0] == want));
            if (i % 3) CHECK(close(fd) == 0);
            else CHECK(dup2(open(path, O_RDONLY), fd) == fd);
        }
        // Somebody of whom nothing is known changes some of them.
        snprintf(command, sizeof command,
                 "cd '%s' && for i in 0 50 100; do printf %d | PAGEKEEPER_DISABLE=1 dd of=many.$i "
                 "bs=1 seek=12345 conv=notrunc 2>/dev/null; done", directory, round + 1);
        CHECK(system(command) == 0);
        for (int fd = 3; fd < 1000; fd++) close(fd);
    }
    for (int i = 0; i < COUNT; i++) {
        snprintf(path, sizeof path, "%s/many.%d", directory, i);
        unlink(path);
    }
    puts("many ok");
}

int main(int argc, char **argv) {
    alarm(120);
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    if (!strcmp(argv[1], "random")) random_calls(argv[2], strtoull(argv[3], NULL, 10), atoi(argv[4]));
    if (!strcmp(argv[1], "shared")) shared(argv[2]);
    if (!strcmp(argv[1], "cut")) cut(argv[2], atoi(argv[3]));
    if (!strcmp(argv[1], "buffers")) buffers(argv[2]);
    if (!strcmp(argv[1], "signals")) signals(argv[2]);
    if (!strcmp(argv[1], "many")) many(argv[2]);
    fflush(stdout);
    return 0;
}
