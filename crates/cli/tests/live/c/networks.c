// A child in a network namespace of its own works on the same content, whether it goes on or executes.
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
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

int main(int count, char **argument) {
    const char *how = argument[1], *name = argument[2];
    if (!strcmp(how, "looks")) {
        look(name);
        return 0;
    }
    int fd, status;
    at = map(name, &fd);
    for (int page = 0; page < PAGES; page++) at[page * PAGE] = page + 1;
    if (!strcmp(how, "itself")) CHECK(unshare(CLONE_NEWNET) == 0);
    if (fork() == 0) {
        if (strcmp(how, "itself")) CHECK(unshare(CLONE_NEWNET) == 0);
        if (!strcmp(how, "executes")) execl(argument[0], argument[0], "looks", name, NULL);
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
    (void)count;
    puts("ok");
    return 0;
}
