// Does to files what its standard input says, one command a line, and answers each with one line.
// A script must get the same answers however its files are served.
//
// Names of descriptors and mappings are small numbers that the script chooses.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NAMES = 64 };
static int fds[NAMES];
static struct { unsigned char *at; size_t bytes; } maps[NAMES];
static sigjmp_buf landing;
static volatile sig_atomic_t armed;

static void caught(int number) {
    if (!armed) {
        signal(number, SIG_DFL);
        raise(number);
    }
    siglongjmp(landing, number);
}

static void answer(const char *format, long value) {
    if (value == -1 && errno) printf("%s\n", strerrorname_np(errno));
    else printf(format, value), putchar('\n');
}

static int open_flags(const char *text) {
    // Programs that it runs must not inherit what it has.
    int flags = O_CLOEXEC | (strstr(text, "rw") ? O_RDWR : strchr(text, 'w') ? O_WRONLY : O_RDONLY);
    if (strchr(text, 'c')) flags |= O_CREAT;
    if (strchr(text, 't')) flags |= O_TRUNC;
    if (strchr(text, 'a')) flags |= O_APPEND;
    return flags;
}

static int protection(const char *text) {
    return (strchr(text, 'r') ? PROT_READ : 0) | (strchr(text, 'w') ? PROT_WRITE : 0);
}

static uint64_t hash(const unsigned char *at, size_t bytes) {
    uint64_t sum = 1469598103934665603ull;
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ at[i]) * 1099511628211ull;
    return sum;
}

static unsigned char buffer[1 << 20];

static void obey(char *line) {
    char verb[20] = "", a[4096] = "", b[4096] = "", c[40] = "", d[40] = "", e[40] = "", f[40] = "";
    sscanf(line, "%19s %4095s %4095s %39s %39s %39s %39s", verb, a, b, c, d, e, f);
    long n = strtol(a, 0, 0), x = strtol(b, 0, 0), y = strtol(c, 0, 0), z = strtol(d, 0, 0);
    int name = (int)(n % NAMES);
    int fd = n >= 0 ? fds[name] : -1;
    unsigned char *at = maps[name].at;
    errno = 0;
    if (!strcmp(verb, "open")) { // NAME PATH FLAGS
        fds[name] = open(b, open_flags(c), 0644);
        answer("ok", fds[name]);
    } else if (!strcmp(verb, "close")) {
        answer("ok", close(fd));
    } else if (!strcmp(verb, "size")) {
        struct stat st;
        answer("%ld", fstat(fd, &st) ? -1 : st.st_size);
    } else if (!strcmp(verb, "truncate")) { // NAME BYTES
        answer("ok", ftruncate(fd, x));
    } else if (!strcmp(verb, "pread")) { // NAME OFFSET BYTES
        long got = pread(fd, buffer, (size_t)y, x);
        if (got < 0) answer("%ld", got);
        else printf("%ld %016lx\n", got, hash(buffer, (size_t)got));
    } else if (!strcmp(verb, "pwrite")) { // NAME OFFSET BYTES VALUE
        memset(buffer, (int)z, (size_t)y);
        answer("%ld", pwrite(fd, buffer, (size_t)y, x));
    } else if (!strcmp(verb, "fsync")) {
        answer("ok", fsync(fd));
    } else if (!strcmp(verb, "lock")) { // NAME: takes a record lock on the first byte
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
        answer("ok", fcntl(fd, F_SETLK, &lock));
    } else if (!strcmp(verb, "map")) { // NAME FD OFFSET BYTES PROTECTION shared|private
        int flags = !strcmp(f, "private") ? MAP_PRIVATE : MAP_SHARED;
        void *got = mmap(NULL, (size_t)z, protection(e), flags, fds[x % NAMES], y);
        if (got != MAP_FAILED) maps[name].at = got, maps[name].bytes = (size_t)z;
        answer("ok", got == MAP_FAILED ? -1 : 0);
    } else if (!strcmp(verb, "unmap")) {
        answer("ok", munmap(at, maps[name].bytes));
    } else if (!strcmp(verb, "protect")) { // NAME OFFSET BYTES PROTECTION
        answer("ok", mprotect(at + x, (size_t)y, protection(d)));
    } else if (!strcmp(verb, "advise")) { // NAME OFFSET BYTES ADVICE
        answer("ok", madvise(at + x, (size_t)y, (int)z));
    } else if (!strcmp(verb, "sync")) { // NAME
        answer("ok", msync(at, maps[name].bytes, MS_SYNC));
    } else if (!strcmp(verb, "get") || !strcmp(verb, "put") || !strcmp(verb, "sum")) {
        // get NAME OFFSET; put NAME OFFSET VALUE; sum NAME OFFSET BYTES
        int number = sigsetjmp(landing, 1);
        if (number == 0) {
            armed = 1;
            volatile unsigned char *byte = at + x;
            if (*verb == 'g') printf("%d\n", *byte);
            else if (*verb == 'p') *byte = (unsigned char)y, puts("ok");
            else printf("%016lx\n", hash(at + x, (size_t)y));
        } else {
            printf("%s\n", number == SIGBUS ? "SIGBUS" : "SIGSEGV");
        }
        armed = 0;
    } else if (!strcmp(verb, "run")) { // a shell command
        fflush(stdout);
        int status = system(line + 4);
        printf("%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status));
    } else if (!strcmp(verb, "fork")) {
        // The child goes on with the script; the parent ends as the child does.
        fflush(stdout);
        pid_t pid = fork();
        if (pid > 0) {
            int status;
            waitpid(pid, &status, 0);
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
        }
        puts("ok");
    } else if (!strcmp(verb, "user")) { // NUMBER
        answer("ok", setresgid((gid_t)n, (gid_t)n, (gid_t)n) || setresuid((uid_t)n, (uid_t)n, (uid_t)n) ? -1 : 0);
    } else if (!strcmp(verb, "pid")) {
        printf("%d\n", getpid());
    } else {
        printf("what is %s?\n", verb);
    }
}

int main(void) {
    struct sigaction action = {.sa_handler = caught};
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGSEGV, &action, NULL);
    // Plain reads: the script must not be read ahead of a fork.
    static char line[9000];
    for (;;) {
        size_t n = 0;
        while (n < sizeof line - 1 && read(0, line + n, 1) == 1 && line[n] != '\n') n++;
        if (n == 0) return 0;
        line[n] = 0;
        obey(line);
        fflush(stdout);
    }
}
