// Tables of descriptors: full ones, and threads that have their own.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unheard.h"

enum { BYTES = 1 << 20, PAGE = 4096 };
static char page[PAGE];

static void check(int right, const char *what) {
    if (right) return;
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static struct rlimit limit(void) {
    struct rlimit limit;
    check(!getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
    return limit;
}

// No descriptor is left; `hard` says that the limit cannot be raised either.
static int fill(int hard) {
    struct rlimit low = limit();
    low.rlim_cur = 64;
    if (hard) low.rlim_max = 64;
    check(!setrlimit(RLIMIT_NOFILE, &low), "setrlimit");
    int fd, last = -1;
    while ((fd = dup(0)) >= 0) last = fd;
    check(errno == EMFILE && last > 0, "dup");
    return last;
}

static char *map(int fd) { return mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); }

static void works(int fd, char *at) {
    check(at != MAP_FAILED, "mmap");
    for (int i = 0; i < BYTES; i += PAGE) check(at[i] == 'a', "content");
    for (int i = 0; i < BYTES; i += PAGE) at[i] = 'b';
    for (int i = 0; i < BYTES; i += PAGE) check(pread(fd, page, 1, i) == 1 && page[0] == 'b', "pread");
    for (int i = 0; i < BYTES; i += PAGE) check(pwrite(fd, "a", 1, i) == 1 && at[i] == 'a', "pwrite");
    check(!munmap(at, BYTES), "munmap");
}

// What the kernel's mmap would do while the table is full: nothing of it needs a descriptor.
static void full(const char *name) {
    int fd = open(name, O_RDWR);
    check(pread(fd, page, 1, 0) == 1, "pread");
    fill(0);
    for (int i = 0; i < 3; i++) works(fd, map(fd));
    check(limit().rlim_cur == 64 && dup(0) < 0 && errno == EMFILE, "the limit is what it was");
}

// The same where the limit cannot be raised: an error then, and all as ever afterwards.
static void moment(const char *name) {
    int fd = open(name, O_RDWR);
    int last = fill(1);
    for (int i = 0; i < 10; i++) check(pread(fd, page, 1, i * PAGE) == 1, "pread");
    for (int i = 0; i < 10; i++) check(pwrite(fd, "a", 1, i * PAGE) == 1, "pwrite");
    char *at = map(fd);
    if (at != MAP_FAILED) munmap(at, BYTES);
    else printf("mmap: %s\n", strerror(errno));
    for (int i = fd + 1; i <= last; i++) close(i);
    works(fd, map(fd));
}

// Whether the manager's memory is at an address.
static int is_managed(char *at) {
    FILE *maps = fopen("/proc/self/maps", "r");
    check(maps != 0, "maps");
    char line[512];
    int found = 0;
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start <= (unsigned long)at && (unsigned long)at < end)
            found = strstr(line, "memfd:pagekeeper") != 0;
    }
    fclose(maps);
    return found;
}

// More files at once than the manager has descriptors for; then one after the other.
static void many(void) {
    enum { FILES = 200 };
    static char *at[FILES];
    char name[32];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < FILES; i++) {
            snprintf(name, sizeof name, "many%d", i);
            for (int tries = 0;; tries++) {
                int fd = open(name, O_RDWR | O_CREAT, 0600);
                check(fd >= 0 && !ftruncate(fd, PAGE), "open");
                at[i] = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
                check(at[i] != MAP_FAILED && !close(fd), "mmap");
                check(at[i][0] == round + (tries > 0), "content");
                at[i][0] = round + 1;
                if (!round || is_managed(at[i])) break;
                check(tries < 1000, "managed");
                check(!munmap(at[i], PAGE), "munmap");
                usleep(10000);
            }
            if (round) munmap(at[i], PAGE);
        }
        if (!round) {
            int left = 0;
            for (int i = 0; i < FILES; i++) left += !is_managed(at[i]);
            check(left > 0, "some are the kernel's");
            for (int i = 0; i < FILES; i++) munmap(at[i], PAGE);
        }
    }
}

static pthread_barrier_t barrier;
static const char *kind;

// A thread that has the same number for another file, and does to it what it likes.
static void *apart(void *argument) {
    int fd = *(int *)argument;
    if (!strcmp(kind, "unshare")) check(!unshare(CLONE_FILES), "unshare");
    if (!strcmp(kind, "syscall")) check(!syscall(SYS_unshare, CLONE_FILES), "SYS_unshare");
    if (!strcmp(kind, "range")) check(!syscall(SYS_close_range, 900, 900, 2), "close_range");
    int other = open("other", O_RDWR);
    if (!strcmp(kind, "close")) {
        check(!unshare(CLONE_FILES), "unshare");
        check(!close(fd), "close");
    } else {
        check(dup2(other, fd) == fd, "dup2");
        for (int i = 0; i < 12; i++) check(pread(fd, page, PAGE, 0) == PAGE && page[0] == 'o', "other");
    }
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    if (strcmp(kind, "close")) {
        check(pwrite(fd, "O", 1, PAGE) == 1, "pwrite other");
        for (int i = 0; i < 12; i++) check(pread(fd, page, PAGE, PAGE) == PAGE && page[0] == 'O', "other");
    }
    return 0;
}

static void threads(const char *name) {
    static char mine[PAGE];
    int fd = open(name, O_RDWR);
    char *at = map(fd);
    check(at != MAP_FAILED, "mmap");
    for (int i = 0; i < 12; i++) check(pread(fd, mine, PAGE, 0) == PAGE, "pread");
    at[0] = 'm';
    pthread_barrier_init(&barrier, 0, 2);
    pthread_t thread;
    pthread_create(&thread, 0, apart, &fd);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 12; i++)
        check(pread(fd, mine, PAGE, 0) == PAGE && mine[0] == 'm', "the same file");
    check(pwrite(fd, "w", 1, 2 * PAGE) == 1 && at[2 * PAGE] == 'w', "a write");
    pthread_barrier_wait(&barrier);
    pthread_join(thread, 0);
    for (int i = 0; i < 12; i++)
        check(pread(fd, mine, PAGE, PAGE) == PAGE && mine[0] == 'a', "the same file later");
    at[5 * PAGE] = 'l';
    check(pread(fd, mine, 1, 5 * PAGE) == 1 && mine[0] == 'l', "a store");
    check(!close(fd), "close");
}

// As many as before, whatever a thread with a table of its own writes.
static void *busy(void *argument) {
    check(!unshare(CLONE_FILES), "unshare");
    int fd = open(argument, O_RDWR), before = open("/dev/null", O_RDONLY), from = 0;
    for (int i = 0; i < 3000; i++) check(pwrite(fd, "a", 1, i % 256 * PAGE) == 1, "pwrite");
    // Descriptors of ours lie high.
    for (int i = 0; i < 4096; i++) from += fcntl(i, F_GETFD) >= 0;
    close(before), close(fd);
    return (void *)(long)from;
}

static void tables(const char *name) {
    enum { THREADS = 4 };
    int fd = open(name, O_RDWR);
    check(pread(fd, page, 1, 0) == 1, "pread");
    for (int round = 0; round < 40; round++) {
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, busy, (void *)name);
        for (int i = 0; i < THREADS; i++) {
            void *most;
            pthread_join(threads[i], &most);
            if ((long)most > 40) printf("%ld descriptors\n", (long)most), exit(1);
        }
        // The manager knows this process still.
        works(fd, map(fd));
    }
}

static volatile int over;
static void *mapper(void *argument) {
    while (!over) {
        char *at = map(*(int *)argument);
        check(at != MAP_FAILED, "mmap");
        munmap(at, BYTES);
    }
    return 0;
}

// Children have the limit that their parent has, but for moments.
static void limits(const char *name) {
    int fd = open(name, O_RDWR), others = 0;
    works(fd, map(fd));
    fill(0);
    pthread_t thread;
    pthread_create(&thread, 0, mapper, &fd);
    for (int i = 0; i < 2000; i++) {
        pid_t child = i % 2 ? fork() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0) _exit(limit().rlim_cur != 64);
        int status;
        check(waitpid(child, &status, 0) == child, "waitpid");
        others += status != 0;
    }
    over = 1;
    pthread_join(thread, 0);
    if (others) printf("%d children with another limit\n", others), exit(1);
}

// Heap memory is had while the table is full.
static void heap(void) {
    fill(0);
    for (int i = 0; i < 16; i++) {
        char *at = malloc(BYTES);
        check(at != 0, "malloc");
        for (int j = 0; j < BYTES; j += PAGE) at[j] = i;
    }
}

static int written_fd;
static char *written;

static void *stores_and_writes(void *argument) {
    long who = (long)argument;
    char bytes[PAGE];
    for (long i = 0; i < 2000; i++) {
        long at = (i * 31 + who * 7) % (BYTES / PAGE) * PAGE;
        written[at + 8 + who] = (char)i;
        check(pread(written_fd, bytes, PAGE, at) == PAGE, "pread");
        check(pwrite(written_fd, bytes, 8, at) == 8, "pwrite");
    }
    return NULL;
}

static int reads_once(void *argument) {
    (void)argument;
    _exit(pread(written_fd, page, PAGE, 7 * PAGE) != PAGE);
}

// What the library has open is closed behind its back: by a call that it does not hear, or by a child that
// shares the table of descriptors, and ends.
static void closed_unseen(const char *path, const char *how) {
    written_fd = open(path, O_RDWR);
    written = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, written_fd, 0);
    check(written_fd >= 0 && written != MAP_FAILED, "mmap");
    for (long at = 0; at < BYTES; at += PAGE) check(written[at] == 'a', "content");
    // The first one is by message, and asks for what others need.
    for (int i = 0; i < 2; i++) check(pwrite(written_fd, "a", 1, 0) == 1, "pwrite");
    if (!strcmp(how, "call")) {
        check(unheard(SYS_close_range, written_fd + 1, ~0u, 0) == 0, "close_range");
    } else {
        static char stack[1 << 16] __attribute__((aligned(64)));
        int status;
        pid_t child = clone(reads_once, stack + sizeof stack, CLONE_FILES | SIGCHLD, NULL);
        check(child > 0 && waitpid(child, &status, 0) == child && status == 0, "child");
    }
    pthread_t threads[2];
    for (long who = 0; who < 2; who++)
        check(!pthread_create(&threads[who], NULL, stores_and_writes, (void *)who), "pthread_create");
    for (int who = 0; who < 2; who++) check(!pthread_join(threads[who], NULL), "pthread_join");
}

int main(int count, char **argument) {
    check(count > 2, "arguments");
    if (!strcmp(argument[1], "full")) full(argument[2]);
    if (!strcmp(argument[1], "moment")) moment(argument[2]);
    if (!strcmp(argument[1], "tables")) tables(argument[2]);
    if (!strcmp(argument[1], "limits")) limits(argument[2]);
    if (!strcmp(argument[1], "heap")) heap();
    if (!strcmp(argument[1], "many")) many();
    if (!strcmp(argument[1], "closed-unseen")) closed_unseen(argument[2], argument[3]);
    else if (count > 3) kind = argument[3], threads(argument[2]);
    puts("ok");
    return 0;
}
