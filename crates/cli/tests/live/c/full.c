// The kernel stores to a mapping of a hole on a disk that is full, for the program: it fails.
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 4096 };

static sigjmp_buf back;

static siginfo_t bus_error;

static void on_bus_error(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    bus_error = *info;
    siglongjmp(back, 1);
}

// What a handler is told of a store that cannot be made, whenever it was set.
static void store(const char *what, char *at, int first) {
    volatile int page = first;
    if (!sigsetjmp(back, 1))
        for (; page < PAGES; page++) at[page * PAGE] = 1;
    unsigned long within = (char *)bus_error.si_addr - (at + page * PAGE);
    printf("%s: code %d, %s\n", what, bus_error.si_code, within < PAGE ? "in the page" : "elsewhere");
}

static void read_into(const char *what, int zero, char *at) {
    ssize_t got = read(zero, at, PAGE);
    printf("%s: %zd %s\n", what, got, got < 0 ? strerrorname_np(errno) : "");
}

int main(int count, char **argument) {
    (void)count;
    setbuf(stdout, NULL);
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
    int fd = open(argument[1], O_RDWR | O_CREAT | O_TRUNC, 0600), zero = open("/dev/zero", O_RDONLY);
    CHECK(fd >= 0 && zero >= 0 && ftruncate(fd, PAGES * PAGE) == 0);
    char *at = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    store("by a handler from before", at, 0);
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
    store("by one that was set since", at, PAGES - 5);
    signal(SIGBUS, SIG_DFL);
    read_into("into a page that was not there", zero, at + (PAGES - 1) * PAGE);
    // Which is a hole as before.
    printf("%d\n", at[(PAGES - 1) * PAGE]);
    volatile char seen = at[(PAGES - 2) * PAGE];
    (void)seen;
    read_into("into one that was read", zero, at + (PAGES - 2) * PAGE);
    printf("%d\n", at[(PAGES - 2) * PAGE]);
    int pipes[2];
    CHECK(pipe(pipes) == 0 && write(pipes[1], "abc", 3) == 3);
    ssize_t got = read(pipes[0], at + (PAGES - 3) * PAGE - 1, 3);
    printf("from a pipe: %zd %s\n", got, got < 0 ? strerrorname_np(errno) : "");
    for (int how = 0; how < 2; how++) {
        if (fork() == 0) {
            sigset_t set;
            sigemptyset(&set), sigaddset(&set, SIGBUS);
            if (how == 0) sigprocmask(SIG_BLOCK, &set, NULL);
            if (how == 1) signal(SIGBUS, SIG_IGN);
            at[(PAGES - 9 - how) * PAGE] = 1;
            _exit(0);
        }
        int status;
        CHECK(wait(&status) > 0);
        printf("%s: signal %d\n", how == 0 ? "blocked" : "ignored", WTERMSIG(status));
    }
    return 0;
}
