// Processes append to a file, and another asks how long it is and reads that far by its mapping: what a
// program is told of a length is there.
//
//     lengths FILE fstat|statx|seek|cut
//     lengths FILE shorter        somebody outside cuts the file, and nothing is read behind where it ends
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

enum { LONG = 200000, PART = 65536, SHORT = 40, ROUNDS = 60 };

// The other, outside: short when it is told to be, and long again.
static void cut(int fd) {
    static char content[LONG];
    for (char byte; read(0, &byte, 1) == 1;) {
        int bytes = byte == 's' ? SHORT : LONG;
        memset(content, byte, bytes);
        CHECK((bytes == LONG || ftruncate(fd, 0) == 0) && pwrite(fd, content, bytes, 0) == bytes);
    }
}

static void shorter(const char *path) {
    static char found[PART];
    int ends[2], status;
    CHECK(close(open(path, O_RDWR | O_CREAT | O_TRUNC, 0600)) == 0);
    int fd = open(path, O_RDONLY);
    CHECK(fd > 2 && pipe(ends) == 0);
    pid_t other = fork();
    if (other == 0) {
        CHECK(dup2(ends[0], 0) == 0 && close(ends[1]) == 0 && setenv("PAGEKEEPER_DISABLE", "1", 1) == 0);
        execl("/proc/self/exe", "lengths", path, "cuts", NULL);
        _exit(1);
    }
    for (int round = 0; round < ROUNDS; round++) {
        struct stat stat;
        CHECK(write(ends[1], "l", 1) == 1);
        do CHECK(fstat(fd, &stat) == 0);
        while (stat.st_size < LONG);
        // All of it is in memory.
        while (pread(fd, found, PART, 0) != PART || found[0] != 'l') {}
        CHECK(write(ends[1], "s", 1) == 1);
        do CHECK(fstat(fd, &stat) == 0);
        while (stat.st_size > SHORT);
        ssize_t got = pread(fd, found, PART, 0);
        if (got > SHORT) fprintf(stderr, "round %d: %zd bytes\n", round, got), _exit(1);
        // It is there when it is long enough.
        while (pread(fd, found, PART, 0) != SHORT || found[0] != 's') {}
    }
    CHECK(close(ends[1]) == 0 && close(ends[0]) == 0 && waitpid(other, &status, 0) == other && status == 0);
    printf("lengths ok\n");
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    const char *path = arguments[1], *how = arguments[2];
    if (!strcmp(how, "cuts")) return cut(open(path, O_WRONLY)), 0;
    if (!strcmp(how, "shorter")) return shorter(path), 0;
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
