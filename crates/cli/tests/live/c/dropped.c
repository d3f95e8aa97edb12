// Begins as root and becomes nobody, as programs in containers do, in the same image or in the next:
//
//     dropped stay|exec FILE
//     dropped cut FILE PAGES
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

static unsigned long sum(const unsigned char *at, size_t bytes) {
    unsigned long all = 0;
    for (size_t n = 0; n < bytes; n++) all = all * 31 + at[n];
    return all;
}

static int waited(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

// A file that is read, mapped, stored to, shared with a child, and cut by somebody who has not got it.
static void a_file(const char *self, const char *path) {
    struct stat stat;
    int fd = open(path, O_RDWR);
    if (fd < 0 || fstat(fd, &stat)) {
        printf("open: %s\n", strerror(errno));
        return;
    }
    size_t bytes = stat.st_size;
    unsigned char *copy = malloc(bytes);
    ssize_t got = pread(fd, copy, bytes, 0);
    printf("read %zd, %lx\n", got, sum(copy, bytes));
    unsigned char *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        printf("mmap: %s\n", strerror(errno));
        return;
    }
    printf("mapped %lx\n", sum(map, bytes));
    for (size_t at = 0; at < bytes; at += PAGE) map[at] = at / PAGE;
    pid_t child = fork();
    if (child == 0) {
        unsigned long seen = sum(map, bytes);
        map[7 * PAGE + 1] = seen;
        _exit(seen & 0x7f);
    }
    int status = waited(child);
    printf("child %x, stored %x\n", status, map[7 * PAGE + 1]);
    int synced = msync(map, bytes, MS_SYNC);
    got = pread(fd, copy, bytes, 0);
    printf("msync %d, read %zd, %lx\n", synced, got, sum(copy, bytes));
    fflush(stdout);
    child = fork();
    if (child == 0) {
        execl(self, self, "cut", path, "20", NULL);
        _exit(99);
    }
    int cut = waited(child);
    fstat(fd, &stat);
    printf("cut %x, %ld bytes, %lx\n", cut, (long)stat.st_size, sum(map, stat.st_size));
}

// Shared memory as shm_open(3) makes it: written by calls here, mapped there.
static void shared_memory(void) {
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/dropped-%d", getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    static char page[PAGE];
    memset(page, 'x', PAGE);
    for (int n = 0; n < 512; n++)
        if (write(fd, page, PAGE) != PAGE) printf("write: %s\n", strerror(errno));
    pid_t child = fork();
    if (child == 0) {
        int again = open(path, O_RDWR);
        char *map = mmap(NULL, 512 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
        if (map == MAP_FAILED) _exit(1);
        map[300 * PAGE] = 'y';
        _exit(map[511 * PAGE] == 'x' ? 0 : 2);
    }
    char byte = 0;
    int status = waited(child);
    ssize_t got = pread(fd, &byte, 1, 300 * PAGE);
    printf("shared %x, %zd %c\n", status, got, byte);
    unlink(path);
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "cut")) return truncate(argv[2], atol(argv[3]) * PAGE) ? errno : 0;
    if (argc != 3) return 2;
    if (getuid() == 0 && (setgroups(0, NULL) || setgid(65534) || setuid(65534))) return 3;
    if (!strcmp(argv[1], "exec")) execl(argv[0], argv[0], "go", argv[2], NULL);
    a_file(argv[0], argv[2]);
    shared_memory();
    return 0;
}
