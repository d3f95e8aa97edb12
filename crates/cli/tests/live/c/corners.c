// Corners of streams, descriptors and large transfers: what libc and the kernel do there.
//
//     corners appended|memory|closed|reopened|packets|large|refused|standard|wild|flags FILE
//     corners deep FILE LIBRARY
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { PAGE = 4096, BYTES = 256 * PAGE, LARGE = 40 << 20 };

static int made(const char *path, size_t bytes) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    unsigned char page[PAGE];
    for (size_t at = 0; at < bytes; at += PAGE) {
        memset(page, (int)(at / PAGE), PAGE);
        CHECK(pwrite(fd, page, PAGE, (off_t)at) == PAGE);
    }
    return fd;
}

static unsigned char *mapped(int fd, size_t bytes) {
    unsigned char *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    return map;
}

// A descriptor that was written to becomes a stream that appends.
static void appended(const char *path) {
    int fd = made(path, BYTES);
    unsigned char *map = mapped(fd, BYTES);
    for (int i = 0; i < 300; i++) CHECK(pwrite(fd, "HEADER__", 8, 8) == 8);
    map[4000] = 1;
    CHECK(lseek(fd, 16, SEEK_SET) == 16);
    FILE *stream = fdopen(fd, "a+");
    CHECK(stream && fputs("APPENDED", stream) >= 0 && fflush(stream) == 0);
    CHECK(ftell(stream) == BYTES + 8);
    char seen[8];
    CHECK(pread(fd, seen, 8, BYTES) == 8 && !memcmp(seen, "APPENDED", 8));
    CHECK(map[16] == 0 && map[23] == 0);
}

// Memory that has a descriptor is no file: it is shown by two mappings, one of which nobody hears of.
static void memory(const char *path) {
    mapped(made(path, BYTES), BYTES)[0] = 1;
    int fd = memfd_create("shared", 0);
    CHECK(fd >= 0 && ftruncate(fd, BYTES) == 0);
    unsigned char *one = mapped(fd, BYTES);
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int again = open(name, O_RDONLY);
    const volatile unsigned char *other = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, again, 0);
    CHECK(other != MAP_FAILED);
    for (int i = 0; i < 100; i++) {
        CHECK(other[i * PAGE] == 0);
        one[i * PAGE] = (unsigned char)(i + 1);
        CHECK(other[i * PAGE] == i + 1);
    }
}

// Runs this program once more, with the file for its standard output.
static void with_output(const char *path, const char *what) {
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND, 0600), status;
    CHECK(fd >= 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(fd, 1);
        execl("/proc/self/exe", "corners", what, path, NULL);
        _exit(100);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(fd);
}

// The stream of the standard output is closed, and its memory is nobody else's.
static void closed_one(void) {
    CHECK(printf("first\n") == 6 && fclose(stdout) == 0);
    void *others[64];
    for (int i = 0; i < 64; i++) {
        others[i] = malloc((size_t)(200 + i % 16 * 16));
        memset(others[i], 0x5a, (size_t)(200 + i % 16 * 16));
    }
    CHECK(fprintf(stdout, "second\n") < 0 && errno == EBADF);
    for (int i = 0; i < 64; i++) CHECK(*(unsigned char *)others[i] == 0x5a);
    exit(0);
}

static void closed(const char *path) {
    close(made(path, BYTES));
    with_output(path, "closed-one");
    int fd = open(path, O_RDONLY);
    char seen[8];
    CHECK(pread(fd, seen, 8, BYTES) == 6 && !memcmp(seen, "first\n", 6));
}

// Its number is free when it is opened again.
static void reopened_one(const char *path) {
    close(1);
    CHECK(freopen(path, "r+", stdout) == stdout && fileno(stdout) == 1);
    CHECK(printf("again\n") == 6 && fflush(stdout) == 0);
    exit(0);
}

static void reopened(const char *path) {
    close(made(path, BYTES));
    with_output(path, "reopened-one");
    int fd = open(path, O_RDONLY);
    char seen[6];
    CHECK(pread(fd, seen, 6, 0) == 6 && !memcmp(seen, "again\n", 6));
}

// A pipe of packets gives the rest of one to nobody: all buffers are filled by one read.
static void packets(const char *path) {
    unsigned char *map = mapped(made(path, BYTES), BYTES);
    int ends[2];
    CHECK(pipe2(ends, O_DIRECT) == 0);
    CHECK(write(ends[1], "headBODY", 8) == 8 && write(ends[1], "HEADbody", 8) == 8);
    struct iovec parts[2] = {{map, 4}, {map + PAGE, 100}};
    CHECK(readv(ends[0], parts, 2) == 8);
    CHECK(!memcmp(map, "head", 4) && !memcmp(map + PAGE, "BODY", 4));
    CHECK(readv(ends[0], parts, 2) == 8 && !memcmp(map + PAGE, "body", 4));
}

// A write from managed memory that is longer than what is gathered at a time.
static void large(const char *path) {
    int from = made(path, LARGE), to = open("copy", O_RDWR | O_CREAT | O_TRUNC, 0600);
    unsigned char *map = mapped(from, LARGE);
    struct iovec parts[3] = {{map, LARGE / 2 + 5}, {map + LARGE / 2 + 5, 0}, {map + LARGE / 2 + 5, LARGE / 2 - 5}};
    CHECK(to >= 0 && pwritev(to, parts, 3, 3) == LARGE);
    CHECK(write(to, map, LARGE) == LARGE && lseek(to, 0, SEEK_CUR) == LARGE);
    unsigned char seen[2 * PAGE];
    for (size_t at = 0; at < LARGE; at += PAGE) {
        CHECK(pread(to, seen, PAGE, (off_t)at) == PAGE && !memcmp(seen, map + at, PAGE));
    }
    struct stat stat;
    CHECK(fstat(to, &stat) == 0 && stat.st_size == LARGE + 3);
    CHECK(pread(to, seen, 3, LARGE) == 3 && !memcmp(seen, map + LARGE - 3, 3));
}

// Calls that are refused close nothing, and read nothing that is not there.
static void refused(const char *path) {
    int fd = made(path, BYTES);
    unsigned char *map = mapped(fd, BYTES);
    CHECK(syscall(SYS_close_range, 3, 100, 0x4000) == -1 && errno == EINVAL);
    memcpy(map, "STORED", 6);
    char seen[6];
    CHECK(pread(fd, seen, 6, 0) == 6 && !memcmp(seen, "STORED", 6));
    CHECK(pwrite(fd, "WROTE!", 6, PAGE) == 6 && !memcmp(map + PAGE, "WROTE!", 6));
    CHECK(fcntl(fd, F_SETLK, (void *)8) == -1 && errno == EFAULT);
    CHECK(pread(-1, map, 0, PAGE) == -1 && errno == EBADF);
}

// Writes with the stream locked, beside who flushes it.
static void *write_locked(void *unused) {
    (void)unused;
    for (int i = 0; i < 300; i++) {
        flockfile(stdout);
        CHECK(fputs_unlocked("another line\n", stdout) >= 0 && fflush_unlocked(stdout) == 0);
        funlockfile(stdout);
    }
    return NULL;
}

// libc's own standard output is put on a file, whose page is stored to by a mapping meanwhile.
static void standard(const char *path) {
    int fd = made(path, BYTES), before = dup(1);
    unsigned char *map = mapped(fd, BYTES);
    // What was stored is read by libc's own standard input.
    memcpy(map + PAGE, "42 stored", 9);
    int number = 0, copy = dup(fd);
    CHECK(copy >= 0 && lseek(copy, PAGE, SEEK_SET) == PAGE && dup2(copy, 0) == 0);
    CHECK(scanf("%d", &number) == 1 && number == 42 && close(copy) == 0);
    CHECK(before >= 0 && fflush(stdout) == 0 && dup2(fd, 1) == 1);
    for (int i = 0; i < 100; i++) {
        char text[16], seen[16];
        int bytes = snprintf(text, sizeof text, "record %04d\n", i);
        off_t at = 100 + i * bytes;
        map[0] = (unsigned char)i;
        CHECK(lseek(1, at, SEEK_SET) == at && printf("%s", text) == bytes && fflush(stdout) == 0);
        CHECK(!memcmp(map + at, text, (size_t)bytes));
        CHECK(pread(fd, seen, sizeof seen, at) == sizeof seen && !memcmp(seen, text, (size_t)bytes));
        map[1] = (unsigned char)i;
        if (i % 10 == 9) CHECK(msync(map, BYTES, MS_SYNC) == 0);
    }
    // What is behind the end is read as soon as it is there.
    CHECK(lseek(1, 0, SEEK_END) == BYTES && puts("the end") >= 0 && fflush(NULL) == 0);
    char seen[9];
    CHECK(pread(fd, seen, 9, BYTES) == 8 && !memcmp(seen, "the end\n", 8));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, write_locked, NULL) == 0);
    for (int i = 0; i < 300; i++) CHECK(fputs("another line\n", stdout) >= 0 && fflush(stdout) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0 && stat.st_size == BYTES + 8 + 600 * 13);
    CHECK(dup2(before, 1) == 1 && close(before) == 0);
    for (int i = 0; i < 100; i++) {
        char text[16];
        int bytes = snprintf(text, sizeof text, "record %04d\n", i);
        CHECK(!memcmp(map + 100 + i * bytes, text, (size_t)bytes));
    }
}

// Calls get addresses between managed mappings where nothing is, in a thread that hears no signals.
struct wild {
    int fd;
    char *bad;
};

static void *hand_over(void *argument) {
    struct wild *wild = argument;
    static char bytes[400];
    struct iovec parts[2] = {{bytes, 100}, {wild->bad - 96, 300}};
    CHECK(pwritev(wild->fd, parts, 2, 0) == 196 && pread(wild->fd, wild->bad - 96, 300, 0) == 96);
    CHECK(pwrite(wild->fd, wild->bad, 10, 0) == -1 && errno == EFAULT);
    return NULL;
}

static void wild(const char *path) {
    struct wild wild = {made(path, BYTES), NULL};
    // Before anything is mapped.
    CHECK(pwrite(wild.fd, (void *)8, 10, 0) == -1 && errno == EFAULT);
    struct iovec parts[2] = {{"first", 5}, {(void *)8, 5}};
    CHECK(pwritev(wild.fd, parts, 2, 0) == 5);
    char *base = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED && mprotect(base + (1 << 20), PAGE, PROT_NONE) == 0);
    wild.bad = base + (1 << 20);
    for (int i = 0; i < 2; i++) {
        char *at = base + i * (3 << 20);
        int flags = MAP_SHARED | MAP_FIXED;
        CHECK(mmap(at, 2 * PAGE, PROT_READ | PROT_WRITE, flags, wild.fd, 0) == at);
        at[PAGE] = 1;
    }
    sigset_t all;
    CHECK(sigfillset(&all) == 0 && pthread_sigmask(SIG_BLOCK, &all, NULL) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, hand_over, &wild) == 0 && pthread_join(thread, NULL) == 0);
}

// A file with stores that becomes one which nobody may write to has them all the same.
static void flags(const char *path) {
    int fd = made(path, BYTES), flags = 0;
    unsigned char *map = mapped(fd, BYTES);
    memset(map + PAGE, 'x', 100 * PAGE);
    CHECK(munmap(map, BYTES) == 0);
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0) {
        flags |= FS_IMMUTABLE_FL;
        int is_set = ioctl(fd, FS_IOC_SETFLAGS, &flags) == 0;
        CHECK(is_set || errno == EPERM || errno == EOPNOTSUPP);
        int synced = fsync(fd);
        flags &= ~FS_IMMUTABLE_FL;
        CHECK(!is_set || ioctl(fd, FS_IOC_SETFLAGS, &flags) == 0);
        CHECK(synced == 0);
    }
}

// A library that finds libc's functions first, by its own wish.
static void deep(const char *path, const char *library) {
    int fd = made(path, BYTES);
    unsigned char *map = mapped(fd, BYTES);
    void *loaded = dlopen(library, RTLD_NOW | RTLD_DEEPBIND);
    CHECK(loaded);
    int (*put)(const char *, const char *, long) = (int (*)(const char *, const char *, long))dlsym(loaded, "put");
    CHECK(put);
    for (int i = 0; i < 50; i++) {
        char text[16];
        snprintf(text, sizeof text, "record %04d", i);
        map[0] = (unsigned char)i;
        CHECK(put(path, text, 8 + i * 11) == 11 && !memcmp(map + 8 + i * 11, text, 11));
        map[1] = (unsigned char)i;
    }
    CHECK(msync(map, BYTES, MS_SYNC) == 0);
    for (int i = 0; i < 50; i++) {
        char text[16];
        snprintf(text, sizeof text, "record %04d", i);
        CHECK(!memcmp(map + 8 + i * 11, text, 11));
    }
}

int main(int count, char **arguments) {
    CHECK(count == 3 || count == 4);
    const char *what = arguments[1], *path = arguments[2];
    if (!strcmp(what, "closed-one")) closed_one();
    if (!strcmp(what, "reopened-one")) reopened_one(path);
    if (!strcmp(what, "appended")) appended(path);
    if (!strcmp(what, "memory")) memory(path);
    if (!strcmp(what, "closed")) closed(path);
    if (!strcmp(what, "reopened")) reopened(path);
    if (!strcmp(what, "packets")) packets(path);
    if (!strcmp(what, "large")) large(path);
    if (!strcmp(what, "refused")) refused(path);
    if (!strcmp(what, "standard")) standard(path);
    if (!strcmp(what, "wild")) wild(path);
    if (!strcmp(what, "flags")) flags(path);
    if (!strcmp(what, "deep")) deep(path, arguments[3]);
    printf("%s ok\n", what);
    return 0;
}
