// A child goes on when its parent has ended, and is nobody's then. It reads `f` by calls, beside a mapping, and has
// another program copy it to `copy`.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "check.h"

int main(void) {
    int fd = open("f", O_RDONLY), has_begun[2];
    struct stat stat;
    CHECK(fd >= 0 && fstat(fd, &stat) == 0 && pipe(has_begun) == 0);
    size_t bytes = stat.st_size;
    volatile char *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    pid_t parent = getpid();
    char seen = map[0];
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) {
        CHECK(read(has_begun[0], &seen, 1) == 1);
        return 0;
    }
    seen = map[bytes / 2];
    CHECK(write(has_begun[1], &seen, 1) == 1);
    while (getppid() == parent)
        usleep(1000);
    char *read_here = malloc(bytes);
    CHECK(pread(fd, read_here, bytes, 0) == (ssize_t)bytes);
    CHECK(memcmp(read_here, (char *)map, bytes) == 0);
    CHECK(system("cat f >copy") == 0);
    int copy = open("copy", O_RDONLY);
    CHECK(copy >= 0 && pread(copy, read_here, bytes, 0) == (ssize_t)bytes);
    CHECK(memcmp(read_here, (char *)map, bytes) == 0);
    puts("read and copied");
    return 0;
}
