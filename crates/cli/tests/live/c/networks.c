// A child in a network namespace of its own, and perhaps in others, works on the same content, whether it goes
// on or executes.
//
//     networks HOW FILE KINDS    `u` of KINDS: also in a namespace of users, `p`: also of processes
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64 };

static unsigned char *at;

static unsigned char *map(const char *name, int *fd) {
    *fd = open(name, O_RDWR);
    CHECK(*fd >= 0);
    unsigned char *mapped = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    CHECK(mapped != MAP_FAILED);
    return mapped;
}

// In the child, in which the parent's stores are to be seen, and from which the parent sees all.
static void look(const char *name) {
    int fd;
    unsigned char *mine = map(name, &fd), byte;
    for (int page = 0; page < PAGES; page++) {
        CHECK(mine[page * PAGE] == page + 1);
        CHECK(pread(fd, &byte, 1, page * PAGE) == 1 && byte == page + 1);
        mine[page * PAGE + 1] = page + 2;
        byte = page + 3;
        CHECK(pwrite(fd, &byte, 1, page * PAGE + 2) == 1);
    }
}

// In a program that has called nobody so far: numbers are taken, the limit falls, and what a vfork child
// executes has nothing left that could be closed.
static void close_more(const char *self, const char *name) {
    const struct rlimit few = {.rlim_cur = 16, .rlim_max = 16};
    int status, open[8], opened = 0;
    for (int fd = 3; fd < 4096 && opened < 8; fd++)
        if (fcntl(fd, F_GETFD) >= 0) open[opened++] = fd;
    for (int i = 0; i < opened; i++) CHECK(dup2(0, open[i]) == open[i]);
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    pid_t child = vfork();
    if (child == 0) {
        close_range(3, ~0U, 0);
        execl(self, self, "looks", name, NULL);
        _exit(1);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

int main(int count, char **argument) {
    const char *how = argument[1], *name = argument[2], *kinds = count > 3 ? argument[3] : "";
    int flags = CLONE_NEWNET | (strchr(kinds, 'u') ? CLONE_NEWUSER : 0) | (strchr(kinds, 'p') ? CLONE_NEWPID : 0);
    if (!strcmp(how, "looks")) {
        look(name);
        return 0;
    }
    if (!strcmp(how, "closed")) {
        close_more(argument[0], name);
        return 0;
    }
    int fd, status;
    at = map(name, &fd);
    for (int page = 0; page < PAGES; page++) at[page * PAGE] = page + 1;
    int is_cloned = !strcmp(how, "clones");
    if (!strcmp(how, "itself")) CHECK(unshare(flags) == 0);
    // As sandboxes do.
    long child = is_cloned ? syscall(SYS_clone, flags | SIGCHLD, NULL, NULL, NULL, NULL) : fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (strcmp(how, "itself") && !is_cloned) CHECK(unshare(flags) == 0);
        // What is made then is in the namespace of processes.
        if (strchr(kinds, 'p') && !is_cloned && (child = fork()) != 0)
            _exit(waitpid((pid_t)child, &status, 0) < 0 || status != 0);
        if (!strcmp(how, "executes") || is_cloned) execl(argument[0], argument[0], "looks", name, NULL);
        if (!strcmp(how, "closes") || !strcmp(how, "marks")) {
            close_range(3, ~0U, !strcmp(how, "marks") ? CLOSE_RANGE_CLOEXEC : 0);
            for (int fd = 3; fd < 4096; fd++) fcntl(fd, F_SETFD, FD_CLOEXEC);
            execl(argument[0], argument[0], "closed", name, NULL);
        }
        look(name);
        // Through what it inherited, too.
        for (int page = 0; page < PAGES; page++) CHECK(at[page * PAGE + 2] == page + 3);
        _exit(0);
    }
    CHECK(wait(&status) > 0);
    CHECK(status == 0);
    for (int page = 0; page < PAGES; page++) {
        CHECK(at[page * PAGE + 1] == page + 2 && at[page * PAGE + 2] == page + 3);
        at[page * PAGE + 3] = 9;
    }
    puts("ok");
    return 0;
}
