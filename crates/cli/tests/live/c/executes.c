// Executes the static program of a directory, which is found by its path from nowhere else: executes WAY DIRECTORY.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int main(int count, char **argument) {
    CHECK(count == 3);
    const char *way = argument[1];
    char *arguments[] = {"static", NULL};
    int directory = open(argument[2], O_RDONLY | O_DIRECTORY);
    if (!strcmp(way, "spawn")) {
        posix_spawn_file_actions_t actions;
        pid_t child;
        CHECK(posix_spawn_file_actions_init(&actions) == 0);
        CHECK(posix_spawn_file_actions_addchdir_np(&actions, argument[2]) == 0);
        CHECK(posix_spawn(&child, "./static", &actions, NULL, arguments, environ) == 0);
        CHECK(waitpid(child, NULL, 0) == child);
        return 0;
    }
    if (!strcmp(way, "at")) {
        execveat(directory, "static", arguments, environ, 0);
    } else {
        int from = openat(directory, "static", O_RDONLY);
        int is_memory = !strcmp(way, "memory");
        int to = is_memory ? memfd_create("static", 0) : open("gone", O_CREAT | O_RDWR, 0700);
        while (sendfile(to, from, NULL, 1 << 20) > 0) {}
        int fd = is_memory ? to : open("gone", O_RDONLY);
        if (!is_memory) close(to), unlink("gone");
        fexecve(fd, arguments, environ);
    }
    perror(way);
    return 1;
}
