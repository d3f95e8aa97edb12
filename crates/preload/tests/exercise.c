// Exercises what the preload library interposes, on one file, and prints what happened: the output
// must be the same however the file is served. Each check also asserts what POSIX promises.
//
//     exercise FILE [PART]...
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static const char *path;
static char other[4096];

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        errno = 0;                                                                                 \
        if (!(x)) {                                                                                \
            fprintf(stderr, "%s:%d: %s failed (errno %d, %s)\n", __FILE__, __LINE__, #x, errno,    \
                    strerror(errno));                                                              \
            fflush(stdout);                                                                        \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)
#define FAILS(x, e) CHECK((long)(x) == -1 && errno == (e))

static unsigned char pattern(size_t i) { return (unsigned char)(i * 31 + (i >> 8) * 7 + 3); }

static int fresh(size_t bytes) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    unsigned char *data = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++) data[i] = pattern(i);
    CHECK(write(fd, data, bytes) == (ssize_t)bytes);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    free(data);
    return fd;
}

static unsigned sum(int fd) {
    unsigned char buffer[5000];
    unsigned s = 0;
    off_t at = 0;
    ssize_t n;
    while ((n = pread(fd, buffer, sizeof buffer, at)) > 0) {
        for (ssize_t i = 0; i < n; i++) s = s * 16777619u + buffer[i];
        at += n;
    }
    CHECK(n == 0);
    return s;
}

static void transfers(void) {
    int fd = fresh(10000);
    unsigned char a[6000], b[6000];
    CHECK(read(fd, a, 6000) == 6000 && a[5999] == pattern(5999));
    CHECK(read(fd, a, 6000) == 4000 && a[3999] == pattern(9999));
    CHECK(read(fd, a, 6000) == 0);
    CHECK(lseek(fd, 0, SEEK_CUR) == 10000);
    CHECK(pread(fd, a, 10, 9995) == 5 && a[4] == pattern(9999));
    CHECK(pread(fd, a, 10, 20000) == 0);
    FAILS(pread(fd, a, 10, -1), EINVAL);
    void *volatile nowhere = (void *)8;
    FAILS(pread(fd, nowhere, 10, 0), EFAULT);
    FAILS(write(fd, nowhere, 10), EFAULT);
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    FAILS(sendmsg(pair[0], nowhere, 0), EFAULT);
    FAILS(recvmsg(pair[1], nowhere, MSG_DONTWAIT), EFAULT);
    CHECK(close(pair[0]) == 0 && close(pair[1]) == 0);
    CHECK(lseek(fd, 100, SEEK_SET) == 100);
    struct iovec iov[3] = {{a, 7}, {b, 0}, {b, 5000}};
    CHECK(readv(fd, iov, 3) == 5007 && a[0] == pattern(100) && b[4999] == pattern(5106));
    CHECK(preadv(fd, iov, 3, 9990) == 10 && b[2] == pattern(9999));
    CHECK(preadv2(fd, iov, 3, 5, 0) == 5007 && a[0] == pattern(5));
    CHECK(lseek(fd, 3, SEEK_SET) == 3 && preadv2(fd, iov, 1, -1, 0) == 7);
    CHECK(lseek(fd, 0, SEEK_CUR) == 10);
    volatile int wrong = -1;
    FAILS(readv(fd, iov, wrong), EINVAL);
    wrong = 2000;
    FAILS(readv(fd, iov, wrong), EINVAL);
    memset(a, 'x', sizeof a);
    CHECK(pwrite(fd, a, 10, 20) == 10 && lseek(fd, 0, SEEK_CUR) == 10);
    CHECK(pwritev(fd, iov, 3, 12000) == 5007);
    CHECK(write(fd, "hello", 5) == 5 && lseek(fd, 0, SEEK_CUR) == 15);
    CHECK(writev(fd, iov, 3) == 5007);
    CHECK(pwritev2(fd, iov, 1, 30000, RWF_DSYNC) == 7);
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && st.st_size == 30007);
    printf("transfers %x\n", sum(fd));
    CHECK(write(fd, a, 0) == 0);
    int ro = open(path, O_RDONLY), wo = open(path, O_WRONLY | O_APPEND);
    FAILS(write(ro, a, 1), EBADF);
    FAILS(read(wo, a, 1), EBADF);
    CHECK(write(wo, "append", 6) == 6 && lseek(wo, 0, SEEK_CUR) == 30013);
    CHECK(pwrite(wo, "again", 5, 0) == 5);
    CHECK(fstat(ro, &st) == 0 && st.st_size == 30018);
    CHECK(pread(ro, b, 20, 30007) == 11 && !memcmp(b, "appendagain", 11));
    CHECK(pread(ro, b, 5, 10) == 5 && !memcmp(b, "hello", 5));
    FAILS(read(-1, a, 1), EBADF);
    CHECK(close(ro) == 0 && close(wo) == 0);
    FAILS(read(ro, a, 1), EBADF);
    FAILS(close(ro), EBADF);
    // Limits of the process are the kernel's.
    struct rlimit limit = {31000, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(pwrite(fd, a, 6000, 30900) == 100);
    FAILS(pwrite(fd, a, 6000, 31000), EFBIG);
    limit.rlim_cur = RLIM_INFINITY;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    printf("transfers %x\n", sum(fd));
    close(fd);
}

static void opening(void) {
    int fd = fresh(5000);
    struct stat st;
    FAILS(open(path, O_CREAT | O_EXCL | O_RDWR, 0600), EEXIST);
    FAILS(open("/nonexistent/x", O_RDWR | O_TRUNC), ENOENT);
    int second = open(path, O_WRONLY | O_TRUNC);
    CHECK(second >= 0 && fstat(fd, &st) == 0 && st.st_size == 0);
    char c;
    CHECK(read(fd, &c, 1) == 0);
    CHECK(write(second, "12345678", 8) == 8);
    CHECK(ftruncate(second, 4) == 0 && fstat(fd, &st) == 0 && st.st_size == 4);
    CHECK(ftruncate(second, 6000) == 0 && pread(fd, &c, 1, 5999) == 1 && c == 0);
    FAILS(ftruncate(second, -1), EINVAL);
    CHECK(truncate(path, 100) == 0 && fstat(fd, &st) == 0 && st.st_size == 100);
    FAILS(truncate("/nonexistent/x", 1), ENOENT);
    CHECK(posix_fallocate(fd, 0, 9000) == 0 && fstat(fd, &st) == 0 && st.st_size == 9000);
    printf("opening %x\n", sum(fd));
    int truncated = open(path, O_RDONLY | O_TRUNC);
    CHECK(truncated >= 0 && fstat(fd, &st) == 0 && st.st_size == 0);
    CHECK(pread(fd, &c, 1, 0) == 0);
    close(truncated), close(second), close(fd);
    fd = creat(path, 0600);
    CHECK(fd >= 0 && write(fd, "x", 1) == 1);
    close(fd);
    int dir = open("/", O_RDONLY | O_DIRECTORY);
    fd = openat(dir, path, O_RDWR);
    CHECK(fd >= 0 && read(fd, &c, 1) == 1 && c == 'x');
    close(dir), close(fd);
    CHECK((fd = open(path, O_PATH)) >= 0);
    FAILS(read(fd, &c, 1), EBADF);
    close(fd);
}

// A close of which no library hears.
static void close_unheard(long fd) {
#if defined __x86_64__
    long number = SYS_close;
    __asm__ volatile("syscall" : "+a"(number) : "D"(fd) : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = SYS_close, x0 __asm__("x0") = fd;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8) : "memory");
#endif
}

static void descriptors(void) {
    int fd = fresh(1000);
    char a[100];
    int copies[4] = {dup(fd), dup2(fd, 77), dup3(fd, 78, O_CLOEXEC), fcntl(fd, F_DUPFD, 90)};
    for (int i = 0; i < 4; i++) {
        CHECK(copies[i] >= 0 && read(copies[i], a, 10) == 10);
        CHECK((unsigned char)a[0] == pattern(10 * i));
    }
    CHECK(lseek(fd, 0, SEEK_CUR) == 40);
    // Another file takes over a number.
    int pipes[2];
    CHECK(pipe(pipes) == 0 && dup2(pipes[0], 77) == 77);
    CHECK(write(pipes[1], "pipe", 4) == 4 && read(77, a, 100) == 4);
    CHECK(dup2(fd, 77) == 77 && read(77, a, 1) == 1 && (unsigned char)a[0] == pattern(40));
    CHECK(close(77) == 0 && dup2(pipes[0], 77) == 77);
    // A close that nobody sees, and the number reused.
    CHECK(syscall(SYS_close, 78) == 0);
    close_unheard(copies[3]);
    int reused = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(dup2(reused, copies[3]) == copies[3]);
    FAILS(read(copies[3], a, 1), EINVAL);
    int opened = open("/dev/zero", O_RDONLY);
    CHECK(read(opened, a, 3) == 3 && a[0] == 0);
    close(opened), close(reused), close(copies[0]), close(77), close(copies[3]);
    // Over a socket.
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 'b';
    struct iovec iov = {&byte, 1};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
                       .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    CHECK(sendmsg(pair[0], &m, 0) == 1 && recvmsg(pair[1], &m, 0) == 1);
    int came;
    memcpy(&came, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof came);
    CHECK(came != fd && pread(came, a, 1, 500) == 1 && (unsigned char)a[0] == pattern(500));
    close(came), close(pair[0]), close(pair[1]), close(pipes[0]), close(pipes[1]);
    // libc puts another file in place of the standard descriptors, and nobody sees that.
    int told[2];
    CHECK(pipe(told) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(dup2(open(path, O_RDONLY), 0) == 0);
        CHECK(read(0, a, 10) == 10 && (unsigned char)a[0] == pattern(0));
        CHECK(daemon(1, 0) == 0);
        char digit = '0' + read(0, a, 1);
        _exit(write(told[1], &digit, 1) != 1);
    }
    close(told[1]);
    CHECK(waitpid(child, NULL, 0) == child && read(told[0], &byte, 1) == 1 && byte == '0');
    close(told[0]);
    // Everything is closed, by each way; what the library needs survives.
    int low = fd;
    CHECK(close_range(fd + 1, ~0u, 0) == 0 && pread(low, a, 1, 5) == 1);
    closefrom(fd + 1);
    CHECK(pread(low, a, 1, 5) == 1);
    for (int i = 10; i < 20000; i++) close(i);
    CHECK(pread(low, a, 1, 5) == 1);
    for (int i = 10; i < 20000; i++) {
        close_unheard(i);
    }
    CHECK(pread(low, a, 1, 5) == 1);
    for (int i = 19000; i < 20000; i++) CHECK(dup2(0, i) == i);
    CHECK(pread(low, a, 1, 5) == 1);
    for (int i = 19000; i < 20000; i++) close(i);
    CHECK(close_range(3, ~0u, 0) == 0);
    FAILS(read(low, a, 1), EBADF);
    FAILS(close_range(5, 4, 0), EINVAL);
    printf("descriptors ok\n");
}

static void streams(void) {
    FILE *f = fopen(path, "w");
    CHECK(f);
    int fd = fileno(f);
    CHECK(fd >= 0 && fcntl(fd, F_GETFL) >= 0);
    for (int i = 0; i < 3000; i++) CHECK(fprintf(f, "line %d\n", i) > 0);
    long at = ftell(f);
    CHECK(fflush(f) == 0);
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && st.st_size == at);
    CHECK(fclose(f) == 0);
    FAILS(fcntl(fd, F_GETFL), EBADF);
    CHECK((f = fopen(path, "r")) != NULL);
    char line[100];
    int n = 0;
    while (fgets(line, sizeof line, f)) n++;
    CHECK(feof(f) && !ferror(f) && n == 3000);
    rewind(f);
    CHECK(getc(f) == 'l' && ungetc('L', f) == 'L' && fgets(line, 100, f) && !strcmp(line, "Line 0\n"));
    CHECK(fseek(f, -10, SEEK_END) == 0 && fgets(line, 100, f) && !strcmp(line, "line 2999\n"));
    CHECK(putc('x', f) == EOF);
    CHECK(fclose(f) == 0);
    CHECK(fopen(path, "wx") == NULL && errno == EEXIST);
    CHECK(fopen(path, "q") == NULL && errno == EINVAL);
    CHECK(fopen("/nonexistent/x", "r") == NULL && errno == ENOENT);
    CHECK((f = fopen(path, "ae")) != NULL && fcntl(fileno(f), F_GETFD) == FD_CLOEXEC);
    CHECK(ftell(f) == at && fputs("tail", f) >= 0 && ftell(f) == at + 4 && fclose(f) == 0);
    CHECK((f = fopen(path, "r+")) != NULL && fseek(f, 5, SEEK_SET) == 0 && fputc('#', f) == '#');
    CHECK(fseek(f, 0, SEEK_SET) == 0 && fgets(line, 100, f) && !strcmp(line, "line #\n"));
    CHECK(fclose(f) == 0);
    CHECK((f = fopen(path, "a+")) != NULL && fgets(line, 100, f) && !strcmp(line, "line #\n"));
    CHECK(fputs("more", f) >= 0 && fseek(f, -4, SEEK_END) == 0 && fgets(line, 100, f));
    CHECK(!strcmp(line, "more") && fclose(f) == 0);
    fd = open(path, O_RDWR);
    FAILS((fdopen(fd, "q") ? 0 : -1), EINVAL);
    CHECK((f = fdopen(fd, "r")) != NULL && fileno(f) == fd && fgetc(f) == 'l' && fclose(f) == 0);
    FAILS(fcntl(fd, F_GETFL), EBADF);
    // A descriptor that appends already stays where it is, another goes to the end.
    for (int flags = 0; flags <= O_APPEND; flags += O_APPEND) {
        fd = open(path, O_WRONLY | flags);
        off_t end = lseek(fd, 0, SEEK_END);
        CHECK(lseek(fd, 5, SEEK_SET) == 5 && (f = fdopen(fd, "a")) != NULL);
        CHECK(lseek(fd, 0, SEEK_CUR) == (flags ? 5 : end) && fclose(f) == 0);
    }
    CHECK((f = fopen("/dev/null", "r")) != NULL);
    CHECK((f = freopen(path, "r", f)) != NULL && fgetc(f) == 'l');
    CHECK((f = freopen("/dev/null", "r", f)) != NULL && fgetc(f) == EOF && fclose(f) == 0);
    CHECK((f = fopen(path, "r")) != NULL && fgetc(f) == 'l');
    CHECK((f = freopen("/dev/zero", "r", f)) != NULL && fgetc(f) == 0 && fclose(f) == 0);
    FILE *many[300];
    for (int i = 0; i < 300; i++) CHECK((many[i] = fopen(path, "r")) && fgetc(many[i]) == 'l');
    for (int i = 0; i < 300; i++) CHECK(fclose(many[i]) == 0);
    // Left open: exit flushes it.
    CHECK((f = fopen(path, "a")) && fputs("unflushed", f) >= 0);
    fd = open(path, O_RDONLY);
    printf("streams %x\n", sum(fd));
    close(fd);
}

// Large and small blocks of a stream, with everything that moves within its buffer: the same calls on
// our file and on a plain one.
static void blocks(void) {
    enum { MOST = 400000, STEPS = 800 };
    static unsigned char x[MOST], y[MOST], own[2][30000];
    size_t buffers[] = {0, 1, 100, 4096, 30000};
    uint64_t seed = 88172645463325252ull;
    for (int kind = 0; kind < 5; kind++) {
        int a = fresh(200000), b = open(other, O_RDWR | O_CREAT | O_TRUNC, 0644);
        CHECK(pread(a, x, MOST, 0) == 200000 && write(b, x, 200000) == 200000);
        CHECK(close(a) == 0 && close(b) == 0);
        FILE *f = fopen(path, "r+"), *g = fopen(other, "r+");
        CHECK(f && g);
        if (kind) {
            int mode = buffers[kind] > 1 ? _IOFBF : _IONBF;
            CHECK(setvbuf(f, (char *)own[0], mode, buffers[kind]) == 0);
            CHECK(setvbuf(g, (char *)own[1], mode, buffers[kind]) == 0);
        }
        int wrote = 0;
        for (int i = 0; i < STEPS; i++) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            size_t at = (seed >> 8) % 220000;
            size_t bytes = (seed >> 32) % (seed & 64 ? 100000 : seed & 128 ? 9000 : 50);
            size_t item = 1 + (seed >> 52) % 5, items = bytes / item;
            int what = seed % 16;
            // Between reading and writing one has to say so.
            if (what < 12 ? wrote : !wrote) {
                long where = ftell(f);
                CHECK(where == ftell(g) && fseek(f, where, SEEK_SET) == fseek(g, where, SEEK_SET));
                wrote = what >= 12;
            }
            switch (what) {
            case 0 ... 5: {
                size_t got = fread(x, item, items, f);
                CHECK(got == fread(y, item, items, g) && !memcmp(x, y, got * item));
                break;
            }
            case 6: {
                int c = getc(f), d = getc(g);
                CHECK(c == d);
                // What was there, or something else.
                if (c != EOF && seed & 256) {
                    c = (c + (int)(seed >> 9) % 2) & 255;
                    CHECK(ungetc(c, f) == ungetc(c, g));
                }
                break;
            }
            case 7:
                CHECK(fseek(f, (long)at, SEEK_SET) == fseek(g, (long)at, SEEK_SET));
                break;
            case 8: {
                long by = (long)(seed >> 40) % 9000 - 4500;
                CHECK(fseek(f, by, SEEK_CUR) == fseek(g, by, SEEK_CUR));
                break;
            }
            case 9:
                bytes %= 200;
                CHECK(!fgets((char *)x, 1 + (int)bytes, f) == !fgets((char *)y, 1 + (int)bytes, g));
                break;
            case 10:
                if (seed & 256) CHECK(fflush(f) == fflush(g));
                if (seed & 512) clearerr(f), clearerr(g);
                break;
            case 11:
                CHECK(fread_unlocked(x, bytes, 1, f) == fread_unlocked(y, bytes, 1, g));
                break;
            case 12 ... 13:
                if ((size_t)ftell(f) + bytes > 250000) break;
                memset(x, i, bytes);
                CHECK(fwrite(x, 1, bytes, f) == fwrite(x, 1, bytes, g));
                break;
            case 14:
                CHECK(putc(i, f) == putc(i, g));
                break;
            default:
                CHECK(fflush(f) == fflush(g));
            }
            CHECK(ftell(f) == ftell(g) && feof(f) == feof(g) && ferror(f) == ferror(g));
        }
        // What comes behind the end later is read when the end is forgotten.
        CHECK(fseek(f, 0, SEEK_END) == 0 && fread(x, 1, 50000, f) == 0 && feof(f) && !ferror(f));
        CHECK((a = open(path, O_WRONLY | O_APPEND)) >= 0 && write(a, y, 20000) == 20000 && close(a) == 0);
        clearerr(f);
        CHECK(fread(x, 1, 50000, f) == 20000 && !memcmp(x, y, 20000) && feof(f) && !ferror(f));
        CHECK(fclose(f) == 0 && fclose(g) == 0);
        CHECK((f = fopen(path, "a")) != NULL && fread(x, 1, 50000, f) == 0 && ferror(f));
        CHECK(!feof(f) && fclose(f) == 0);
        CHECK((a = open(path, O_RDONLY)) >= 0 && (b = open(other, O_RDONLY)) >= 0);
        CHECK((size_t)pread(a, x, MOST, 0) == 20000 + (size_t)pread(b, y, MOST, 0));
        CHECK(!memcmp(x, y, (size_t)lseek(b, 0, SEEK_END)));
        // The file goes on where the stream is.
        CHECK((f = fdopen(dup(a), "r")) && getc(f) == x[0] && fread(y, 1, 70000, f) == 70000);
        CHECK(getc(f) == x[70001] && fflush(f) == 0 && lseek(a, 0, SEEK_CUR) == 70002);
        CHECK(fclose(f) == 0);
        printf("blocks %d %x\n", kind, sum(a));
        close(a), close(b);
    }
}

// One block, larger than any buffer.
static void block(void) {
    static unsigned char x[200000];
    close(fresh(sizeof x));
    FILE *f = fopen(path, "r");
    CHECK(f && fread(x, 1, sizeof x, f) == sizeof x && x[199999] == pattern(199999));
    CHECK(getc(f) == EOF && feof(f) && fclose(f) == 0);
}

static void mappings(void) {
    int fd = fresh(20000);
    unsigned char c, *m = mmap(NULL, 20000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(m != MAP_FAILED && m[12345] == pattern(12345));
    m[100] = 1;
    CHECK(pread(fd, &c, 1, 100) == 1 && c == 1);
    CHECK(pwrite(fd, "w", 1, 200) == 1 && m[200] == 'w');
    CHECK(m[19999] == pattern(19999) && m[20000] == 0);
    CHECK(msync(m, 20000, MS_SYNC) == 0);
    FAILS(msync(m + 1, 100, MS_SYNC), EINVAL);
    FAILS(msync(m, 4096, MS_SYNC | MS_ASYNC), EINVAL);
    // From and into managed memory.
    CHECK(pwrite(fd, m + 4096, 5000, 0) == 5000 && m[0] == pattern(4096));
    struct iovec iov[2] = {{m + 8192, 10}, {m + 8300, 10}};
    CHECK(pwritev(fd, iov, 2, 5) == 20 && m[5] == pattern(8192) && m[15] == pattern(8300));
    CHECK(pread(fd, m + 16384, 1000, 8192) == 1000 && m[16384] == pattern(8192));
    int zero = open("/dev/zero", O_RDONLY);
    CHECK(read(zero, m + 300, 10) == 10 && m[305] == 0);
    close(zero);
    unsigned char *second = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 4096);
    CHECK(second != MAP_FAILED);
    m[5000] = 77;
    CHECK(second[5000 - 4096] == 77);
    unsigned char *private = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 8192);
    CHECK(private != MAP_FAILED && private[0] == m[8192]);
    private[0] ^= 255;
    CHECK(private[0] != m[8192]);
    // Errors are the kernel's.
    CHECK(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(NULL, 10, PROT_READ, MAP_SHARED, fd, 1) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(NULL, 10, PROT_READ, 0, fd, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(m + 1, 10, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(m, 10, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) == MAP_FAILED && errno == EEXIST);
    int ro = open(path, O_RDONLY), wo = open(path, O_WRONLY);
    CHECK(mmap(NULL, 10, PROT_WRITE, MAP_SHARED, ro, 0) == MAP_FAILED && errno == EACCES);
    CHECK(mmap(NULL, 10, PROT_READ, MAP_SHARED, wo, 0) == MAP_FAILED && errno == EACCES);
    CHECK(mmap(NULL, 10, PROT_READ, MAP_SHARED, 9999, 0) == MAP_FAILED && errno == EBADF);
    unsigned char *copy = mmap(NULL, 20000, PROT_READ | PROT_WRITE, MAP_PRIVATE, ro, 0);
    CHECK(copy != MAP_FAILED && copy[5000] == 77 && (copy[5000] = 1));
    // A mapping stays when its descriptor goes.
    close(ro), close(wo);
    // Placed over another.
    unsigned char *area = mmap(NULL, 65536, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char *fixed = mmap(area + 4096, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 8192);
    CHECK(fixed == area + 4096 && fixed[8191] == m[16383] && area[0] == 0 && area[3 * 4096] == 0);
    fixed[7] = 9;
    CHECK(m[8199] == 9);
    CHECK(munmap(area, 65536) == 0);
    CHECK(mprotect(m, 4096, PROT_READ) == 0 && mprotect(m, 4096, PROT_READ | PROT_WRITE) == 0);
    m[0] = 5;
    CHECK(madvise(m, 20000, MADV_WILLNEED) == 0 && madvise(m, 20000, MADV_RANDOM) == 0);
    CHECK(posix_madvise(m, 20000, POSIX_MADV_SEQUENTIAL) == 0);
    CHECK(madvise(m, 20000, MADV_DONTNEED) == 0 && m[0] == 5);
    unsigned char *moved = mremap(m, 20000, 20000, MREMAP_MAYMOVE | MREMAP_FIXED, mmap(NULL, 20000, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    CHECK(moved != MAP_FAILED && moved[0] == 5 && (moved[1] = 6) == 6 && msync(moved, 20000, MS_SYNC) == 0);
    CHECK(mlock(moved, 4096) == 0 && munlock(moved, 4096) == 0);
    CHECK(mlockall(MCL_CURRENT) == 0 && munlockall() == 0);
    unsigned char *populated = mmap(NULL, 8192, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    CHECK(populated != MAP_FAILED && populated[1] == 6);
    void *code = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
    CHECK(code != MAP_FAILED && ((unsigned char *)code)[1] == 6);
    // Into a pipe, through the kernel.
    int pipes[2];
    char buffer[100];
    CHECK(pipe(pipes) == 0);
    moved[50] = 'S';
    off_t at = 50;
    CHECK(sendfile(pipes[1], fd, &at, 20) == 20 && at == 70);
    CHECK(read(pipes[0], buffer, 100) == 20 && buffer[0] == 'S');
    moved[51] = 'T';
    loff_t from = 51, to = 60;
    CHECK(splice(fd, &from, pipes[1], NULL, 5, 0) == 5 && read(pipes[0], buffer, 100) == 5 && buffer[0] == 'T');
    CHECK(write(pipes[1], "into", 4) == 4 && splice(pipes[0], NULL, fd, &to, 100, 0) == 4);
    CHECK(!memcmp(moved + 60, "into", 4));
    from = 60, to = 70;
    moved[60] = 'I';
    CHECK(copy_file_range(fd, &from, fd, &to, 4, 0) == 4 && !memcmp(moved + 70, "Into", 4));
    CHECK(ftruncate(fd, 8192) == 0 && ftruncate(fd, 20000) == 0 && moved[8192] == 0 && moved[8191]);
    CHECK(munmap(moved, 20000) == 0 && fsync(fd) == 0 && fdatasync(fd) == 0);
    sync();
    printf("mappings %x\n", sum(fd));
    close(fd);
}

static int run(pid_t pid) {
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void processes(void) {
    int fd = fresh(9000);
    unsigned char c, *m = mmap(NULL, 9000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(m != MAP_FAILED);
    m[0] = 'P';
    pid_t pid = fork();
    if (pid == 0) {
        CHECK(m[0] == 'P' && pread(fd, &c, 1, 0) == 1 && c == 'P');
        m[1] = 'C';
        CHECK(pwrite(fd, "W", 1, 2) == 1 && m[2] == 'W');
        unsigned char *n = mmap(NULL, 9000, PROT_READ, MAP_SHARED, fd, 0);
        CHECK(n != MAP_FAILED && n[1] == 'C');
        pid_t grandchild = fork();
        if (grandchild == 0) {
            CHECK(n[1] == 'C' && pread(fd, &c, 1, 2) == 1 && c == 'W');
            close_range(3, ~0u, 0);
            _exit(4);
        }
        CHECK(run(grandchild) == 4);
        _exit(3);
    }
    CHECK(run(pid) == 3 && m[1] == 'C' && m[2] == 'W');
    CHECK(pread(fd, &c, 1, 1) == 1 && c == 'C');
    // A child by raw clone, without libc's help.
    pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) _exit(pread(fd, &c, 1, 2) == 1 && c == 'W' ? 5 : 6);
    CHECK(run(pid) == 5);
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && write(fd, "text for cat\n", 13) == 13);
    CHECK(ftruncate(fd, 13) == 0);
    m[0] = 'T';
    fflush(stdout);
    char *argv[] = {"cat", (char *)path, NULL}, *empty[] = {NULL};
    char *odd[] = {"A=1", "LD_PRELOAD=", "B=2", NULL};
    if ((pid = fork()) == 0) execve("/bin/cat", argv, empty), _exit(127);
    CHECK(run(pid) == 0);
    if ((pid = fork()) == 0) execvp("cat", argv), _exit(127);
    CHECK(run(pid) == 0);
    if ((pid = fork()) == 0) execlp("cat", "cat", path, NULL), _exit(127);
    CHECK(run(pid) == 0);
    if ((pid = vfork()) == 0) execve("/bin/cat", argv, odd), _exit(127);
    CHECK(run(pid) == 0);
    if ((pid = vfork()) == 0) {
        dup2(fd, 0), lseek(0, 0, SEEK_SET), close(fd);
        char *only[] = {"cat", NULL};
        execve("/bin/cat", only, empty), _exit(127);
    }
    CHECK(run(pid) == 0 && pread(fd, &c, 1, 0) == 1 && c == 'T');
    CHECK(posix_spawn(&pid, "/bin/cat", NULL, NULL, argv, empty) == 0 && run(pid) == 0);
    CHECK(posix_spawnp(&pid, "cat", NULL, NULL, argv, odd) == 0 && run(pid) == 0);
    unsetenv("LD_PRELOAD"), unsetenv("PAGEKEEPER_SOCKET");
    if ((pid = fork()) == 0) execv("/bin/cat", argv), _exit(127);
    CHECK(run(pid) == 0);
    FAILS(execve("/nonexistent/x", argv, empty), ENOENT);
    FAILS(execvp("nonexistent-program", argv), ENOENT);
    CHECK(posix_spawn(&pid, "/nonexistent/x", NULL, NULL, argv, empty) == ENOENT);
    char **large = calloc(5002, sizeof *large);
    for (int i = 0; i < 5000; i++) large[i] = "VARIABLE=value";
    if ((pid = fork()) == 0) execve("/bin/cat", argv, large), _exit(127);
    CHECK(run(pid) == 0);
    // Both write, at once.
    CHECK(ftruncate(fd, 0) == 0);
    int log = open(path, O_WRONLY | O_APPEND);
    pid = fork();
    for (int i = 0; i < 200; i++) CHECK(write(log, pid ? "parent.\n" : "child..\n", 8) == 8);
    if (pid == 0) _exit(0);
    CHECK(run(pid) == 0);
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && st.st_size == 3200);
    printf("processes ok\n");
    close(fd), close(log), munmap(m, 9000);
}

static void locks(void) {
    int fd = fresh(100);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0);
    CHECK(truncate(path, 5000) == 0);
    char c;
    CHECK(pread(fd, &c, 1, 50) == 1);
    void *m = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(m != MAP_FAILED && munmap(m, 4096) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct flock query = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10};
        CHECK(fcntl(fd, F_GETLK, &query) == 0 && query.l_type == F_WRLCK && query.l_pid == getppid());
        _exit(0);
    }
    CHECK(run(pid) == 0);
    close(fd);
    printf("locks ok\n");
}

static int shared_fd;
static void *reader(void *arg) {
    size_t me = (size_t)arg;
    unsigned char b[700];
    for (int i = 0; i < 40; i++) {
        size_t at = (me * 977 + (size_t)i * 4001) % 99000;
        CHECK(pread(shared_fd, b, 700, (off_t)at) == 700 && b[0] == pattern(at) && b[699] == pattern(at + 699));
    }
    return NULL;
}
static void *taker(void *arg) {
    size_t *total = arg;
    unsigned char b[100];
    ssize_t n;
    while ((n = read(shared_fd, b, 100)) > 0) __sync_fetch_and_add(total, (size_t)n);
    return NULL;
}
static void *waiter(void *arg) {
    char c;
    pthread_cleanup_push(free, malloc(10));
    CHECK(read(*(int *)arg, &c, 1) == 1);
    pthread_cleanup_pop(1);
    return NULL;
}

static void threads(void) {
    shared_fd = fresh(100000);
    pthread_t t[100];
    for (size_t i = 0; i < 100; i++) CHECK(pthread_create(&t[i], NULL, reader, (void *)i) == 0);
    for (int i = 0; i < 100; i++) CHECK(pthread_join(t[i], NULL) == 0);
    size_t total = 0;
    for (int i = 0; i < 8; i++) CHECK(pthread_create(&t[i], NULL, taker, &total) == 0);
    for (int i = 0; i < 8; i++) CHECK(pthread_join(t[i], NULL) == 0);
    CHECK(total == 100000);
    int pipes[2];
    void *result;
    CHECK(pipe(pipes) == 0 && pthread_create(t, NULL, waiter, &pipes[0]) == 0);
    usleep(20000);
    CHECK(pthread_cancel(t[0]) == 0 && pthread_join(t[0], &result) == 0 && result == PTHREAD_CANCELED);
    close(shared_fd), close(pipes[0]), close(pipes[1]);
    printf("threads ok\n");
}

static volatile sig_atomic_t ticks;
static volatile int jump;
static sigjmp_buf out;
static void tick(int number) {
    (void)number;
    unsigned char c;
    int saved = errno;
    if (pread(shared_fd, &c, 1, 4321) != 1 || c != pattern(4321)) _exit(9);
    errno = saved;
    ticks++;
    if (jump && ticks % 3 == 0) siglongjmp(out, 1);
}

static void signals(void) {
    shared_fd = fresh(10000);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval timer = {{0, 500}, {0, 500}}, off = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    for (jump = 0; jump < 2; jump++) {
        ticks = 0;
        sigsetjmp(out, 1);
        while (ticks < 60) {
            unsigned char b[3000];
            CHECK(pread(shared_fd, b, 3000, 2000) == 3000 && b[1] == pattern(2001));
            CHECK(lseek(shared_fd, 10, SEEK_SET) == 10 && read(shared_fd, b, 5) == 5 && b[0] == pattern(10));
        }
    }
    CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
    close(shared_fd);
    printf("signals ok\n");
}

static void numbers(void) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0 && syscall(SYS_write, fd, "by number", 9) == 9);
    char b[20];
    CHECK(syscall(SYS_pread64, fd, b, 20, 3) == 6 && !memcmp(b, "number", 6));
    CHECK(syscall(SYS_ftruncate, fd, 4096) == 0);
    char *m = (char *)syscall(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(m != MAP_FAILED && m[0] == 'b');
    m[0] = 'B';
    CHECK(syscall(SYS_lseek, fd, 0, SEEK_SET) == 0 && syscall(SYS_read, fd, b, 2) == 2 && b[0] == 'B');
    CHECK(syscall(SYS_msync, m, 4096, MS_SYNC) == 0 && syscall(SYS_fsync, fd) == 0);
    int second = (int)syscall(SYS_dup, fd);
    CHECK(second >= 0 && syscall(SYS_close, fd) == 0);
    FAILS(syscall(SYS_close, fd), EBADF);
    CHECK(syscall(SYS_pwrite64, second, "!", 1, 1) == 1 && m[1] == '!');
    CHECK(syscall(SYS_getpid) == getpid());
    printf("numbers %x\n", sum(second));
    close(second), munmap(m, 4096);
}

static void random_operations(void) {
    // The same calls on our file and on a plain one: the results must agree.
    enum { MAX = 40000 };
    int a = fresh(0), b = open(other, O_RDWR | O_CREAT | O_TRUNC, 0644);
    unsigned char *m = mmap(NULL, MAX, PROT_READ | PROT_WRITE, MAP_SHARED, a, 0);
    unsigned char *n = mmap(NULL, MAX, PROT_READ | PROT_WRITE, MAP_SHARED, b, 0);
    CHECK(m != MAP_FAILED && n != MAP_FAILED && b >= 0);
    // Mapped while empty: once more, with pages behind it.
    CHECK(ftruncate(a, MAX) == 0 && ftruncate(b, MAX) == 0);
    munmap(m, MAX);
    CHECK((m = mmap(NULL, MAX, PROT_READ | PROT_WRITE, MAP_SHARED, a, 0)) != MAP_FAILED);
    uint64_t seed = 88172645463325252ull;
    static unsigned char x[MAX], y[MAX];
    for (int i = 0; i < 1500; i++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        size_t at = (seed >> 8) % MAX, bytes = (seed >> 32) % 9000;
        if (at + bytes > MAX) bytes = MAX - at;
        struct stat st, su;
        switch (seed % 8) {
        case 0:
        case 1:
            CHECK(pread(a, x, bytes, (off_t)at) == pread(b, y, bytes, (off_t)at));
            CHECK(!memcmp(x, y, bytes));
            break;
        case 2:
            memset(x, i, bytes);
            CHECK(pwrite(a, x, bytes, (off_t)at) == pwrite(b, x, bytes, (off_t)at));
            break;
        case 3:
            CHECK(lseek(a, (off_t)at, SEEK_SET) == lseek(b, (off_t)at, SEEK_SET));
            CHECK(read(a, x, bytes) == read(b, y, bytes) && !memcmp(x, y, bytes));
            CHECK(lseek(a, 0, SEEK_CUR) == lseek(b, 0, SEEK_CUR));
            break;
        case 4:
            CHECK(lseek(a, (off_t)at, SEEK_SET) == lseek(b, (off_t)at, SEEK_SET));
            CHECK(write(a, y, bytes) == write(b, y, bytes));
            break;
        case 5:
        case 6:
            CHECK(fstat(a, &st) == 0 && fstat(b, &su) == 0 && st.st_size == su.st_size);
            for (size_t j = at; j < at + bytes && j < (size_t)st.st_size; j += 97) m[j] = n[j] = (unsigned char)(seed >> 20);
            break;
        case 7:
            if (i % 5) break;
            if (at < MAX / 2) at += MAX / 2;
            CHECK(ftruncate(a, (off_t)at) == 0 && ftruncate(b, (off_t)at) == 0);
            CHECK(ftruncate(a, MAX) == 0 && ftruncate(b, MAX) == 0);
            break;
        }
    }
    CHECK(sum(a) == sum(b));
    printf("random %x\n", sum(a));
    close(a), close(b), munmap(m, MAX), munmap(n, MAX), unlink(other);
}

static int first_fd;
static void *first_reader(void *arg) {
    unsigned char *record = arg;
    CHECK(read(first_fd, record, 100) == 100);
    return NULL;
}

// A descriptor that was opened to read from is shown to the manager by its first use, whatever that
// is.
static void first_uses(void) {
    int writer = fresh(10000);
    unsigned char a[12000], b[100];
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && close(fd) == 0);
    FAILS(read(fd, a, 1), EBADF);
    CHECK((fd = open(path, O_RDONLY)) >= 0);
    CHECK(read(fd, a, sizeof a) == 10000 && a[9999] == pattern(9999));
    CHECK(lseek(fd, 0, SEEK_CUR) == 10000 && read(fd, a, 10) == 0 && close(fd) == 0);

    CHECK((fd = open(path, O_RDONLY)) >= 0);
    CHECK(pread(fd, a, 10, 9995) == 5 && a[4] == pattern(9999) && lseek(fd, 0, SEEK_CUR) == 0);
    CHECK(read(fd, a, 10) == 10 && a[9] == pattern(9) && close(fd) == 0);
    CHECK((fd = open(path, O_RDONLY)) >= 0);
    FAILS(pread(fd, a, 10, -1), EINVAL);
    CHECK(close(fd) == 0 && (fd = open(path, O_RDONLY)) >= 0);
    CHECK(pread(fd, a, 10, 20000) == 0 && close(fd) == 0);
    CHECK((fd = open(path, O_RDONLY)) >= 0 && lseek(fd, 10000, SEEK_SET) == 10000);
    CHECK(read(fd, a, 10) == 0 && read(fd, a, 0) == 0 && close(fd) == 0);
    CHECK((fd = open(path, O_RDONLY)) >= 0 && lseek(fd, 9000, SEEK_SET) == 9000);
    void *volatile nowhere = (void *)8;
    FAILS(read(fd, nowhere, 10), EFAULT);
    CHECK(lseek(fd, 0, SEEK_CUR) == 9000 && read(fd, a, 10) == 10 && a[0] == pattern(9000));
    CHECK(close(fd) == 0);

    // What shares the offset: duplicates, children, threads.
    CHECK((fd = open(path, O_RDONLY)) >= 0);
    int second = dup(fd);
    CHECK(dup2(fd, 99) == 99 && second >= 0);
    CHECK(read(fd, a, 10) == 10 && read(second, a + 10, 10) == 10 && read(99, a + 20, 10) == 10);
    for (int i = 0; i < 30; i++) CHECK(a[i] == pattern(i));
    CHECK(close(fd) == 0 && read(99, a, 10) == 10 && a[0] == pattern(30) && close(99) == 0);
    CHECK(close(second) == 0 && (fd = open(path, O_RDONLY)) >= 0);
    pid_t pid = fork();
    if (pid == 0) _exit(!(read(fd, a, 100) == 100 && a[99] == pattern(99)));
    CHECK(run(pid) == 0 && read(fd, a, 100) == 100 && a[0] == pattern(100) && close(fd) == 0);
    CHECK((first_fd = open(path, O_RDONLY)) >= 0);
    pthread_t readers[8];
    for (int i = 0; i < 8; i++) pthread_create(&readers[i], NULL, first_reader, a + i * 100);
    for (int i = 0; i < 8; i++) pthread_join(readers[i], NULL);
    int seen = 0;
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++) {
            for (int k = 0; k < 100; k++) b[k] = pattern((size_t)j * 100 + k);
            if (!memcmp(a + i * 100, b, 100)) seen |= 1 << j;
        }
    CHECK(seen == 255 && close(first_fd) == 0);

    // Numbers that are another file's meanwhile.
    int plain = open(other, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(plain >= 0 && write(plain, "plain", 5) == 5 && close(plain) == 0);
    CHECK((fd = open(path, O_RDONLY)) >= 0 && close(fd) == 0);
    CHECK(open(other, O_RDONLY) == fd && read(fd, a, 10) == 5 && !memcmp(a, "plain", 5));
    CHECK(close(fd) == 0 && (fd = open(path, O_RDONLY)) >= 0);
    CHECK((plain = open(other, O_RDONLY)) >= 0 && dup2(plain, fd) == fd);
    CHECK(read(fd, a, 10) == 5 && !memcmp(a, "plain", 5) && close(fd) == 0 && close(plain) == 0);
    CHECK((fd = open(path, O_RDONLY)) >= 0 && close_range(fd, fd, 0) == 0);
    FAILS(read(fd, a, 1), EBADF);
    unlink(other);

    // Other first uses.
    CHECK((fd = open(path, O_RDONLY)) >= 0);
    struct iovec parts[2] = {{a, 10}, {b, 10}};
    CHECK(readv(fd, parts, 2) == 20 && b[9] == pattern(19) && close(fd) == 0);
    CHECK((fd = open(path, O_RDONLY)) >= 0);
    unsigned char *m = mmap(NULL, 10000, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(m != MAP_FAILED && close(fd) == 0 && m[9999] == pattern(9999) && munmap(m, 10000) == 0);
    CHECK((fd = open(path, O_RDONLY)) >= 0 && fsync(fd) == 0 && close(fd) == 0);
    CHECK((fd = open(path, O_RDONLY)) >= 0);
    FAILS(write(fd, "x", 1), EBADF);
    FAILS(ftruncate(fd, 1), EINVAL);
    CHECK(close(fd) == 0 && (fd = open(path, O_RDONLY)) >= 0);
    int pipes[2];
    CHECK(pipe(pipes) == 0 && sendfile(pipes[1], fd, NULL, 50) == 50);
    CHECK(read(pipes[0], a, 50) == 50 && a[49] == pattern(49) && close(fd) == 0);
    // What was written since it was opened, and a name that is gone.
    CHECK((fd = open(path, O_RDONLY)) >= 0 && pwrite(writer, "new", 3, 5000) == 3);
    CHECK(unlink(path) == 0);
    CHECK(pread(fd, a, 5, 4999) == 5 && !memcmp(a + 1, "new", 3) && a[4] == pattern(5003));
    printf("first uses %x\n", sum(fd));
    close(fd), close(writer), close(pipes[0]), close(pipes[1]);
}

// Opens a hundred files, FILE.0 to FILE.99, reads half of them as a compiler reads headers, and uses
// none of the others.
static void many(void) {
    char name[4200], a[8192];
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "%s.%d.dat", path, i);
        int fd = open(name, O_RDONLY | O_NOCTTY);
        struct stat st;
        CHECK(fd >= 0 && fstat(fd, &st) == 0);
        if (i % 2) CHECK(read(fd, a, (size_t)st.st_size) == st.st_size && atoi(a) == i);
        CHECK(close(fd) == 0);
    }
}

static void standard(void) {
    // Standard input and output may be managed files.
    char line[100];
    int n = 0;
    while (fgets(line, sizeof line, stdin)) printf("%d: %s", ++n, line);
    CHECK(puts("end") >= 0 && fileno(stdin) == 0 && fileno(stdout) == 1);
}

// Opens the file, says so, waits for a line, and uses it.
static void wait_and_use(void) {
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    char c;
    CHECK(read(0, &c, 1) == 1);
    printf("read %zd\n", pread(fd, &c, 1, 0));
}

int main(int argc, char **argv) {
    struct { const char *name; void (*part)(void); } parts[] = {
        {"transfers", transfers}, {"opening", opening}, {"streams", streams}, {"blocks", blocks}, {"block", block},
        {"mappings", mappings}, {"locks", locks}, {"threads", threads}, {"signals", signals},
        {"numbers", numbers}, {"random", random_operations}, {"processes", processes},
        {"descriptors", descriptors}, {"first_uses", first_uses}, {"many", many}, {"standard", standard}, {"wait", wait_and_use},
    };
    path = argv[1];
    snprintf(other, sizeof other, "%s.plain", path);
    for (int i = 2; i < argc; i++)
        for (size_t j = 0; j < sizeof parts / sizeof *parts; j++)
            if (!strcmp(argv[i], parts[j].name)) parts[j].part();
    return 0;
}
