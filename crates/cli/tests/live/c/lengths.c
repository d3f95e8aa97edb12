// Processes append to a file, and another asks how long it is and reads that far by its mapping: what a
// program is told of a length is there.
//
//     lengths FILE fstat|statx|seek|cut
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { WRITERS = 3, RECORDS = 3000, RECORD = 1000, FIRST = 200 * RECORD, ROOM = 64 << 20 };

static void append(const char *path, int cuts) {
    char record[RECORD];
    memset(record, 'x', RECORD);
    int fd = open(path, O_WRONLY | O_APPEND);
    CHECK(fd >= 0);
    for (int i = 0; i < RECORDS; i++) {
        struct stat stat;
        if (cuts)
            CHECK(fstat(fd, &stat) == 0 && ftruncate(fd, stat.st_size + RECORD) == 0);
        else
            CHECK(write(fd, record, RECORD) == RECORD);
    }
    _exit(0);
}

static size_t length(int fd, const char *how) {
    if (!strcmp(how, "seek")) return (size_t)lseek(fd, 0, SEEK_END);
    if (!strcmp(how, "statx")) {
        struct statx stat;
        CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &stat) == 0);
        return stat.stx_size;
    }
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0);
    return (size_t)stat.st_size;
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    const char *path = arguments[1], *how = arguments[2];
    // Who is behind makes a file shorter by this: one alone makes it longer so.
    int cuts = !strcmp(how, "cut"), left = cuts ? 1 : WRITERS;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    char *first = malloc(FIRST);
    CHECK(fd >= 0 && first);
    memset(first, 'x', FIRST);
    CHECK(write(fd, first, FIRST) == FIRST);
    for (int i = 0; i < left; i++)
        if (fork() == 0) append(path, cuts);
    const volatile char *map = mmap(NULL, ROOM, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    while (left) {
        size_t bytes = length(fd, how);
        for (size_t at = bytes - RECORD; at < bytes; at++)
            CHECK(map[at] == 'x' || (cuts && map[at] == 0));
        int status;
        if (waitpid(-1, &status, WNOHANG) > 0) {
            CHECK(status == 0);
            left--;
        }
    }
    printf("lengths ok\n");
    return 0;
}
