// What must hold in a program of these tests, or it ends.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "%s:%d (pid %d): %s (errno %d, %s)\n", __FILE__, __LINE__, getpid(),   \
                    #x, errno, strerror(errno));                                                   \
            fflush(stdout);                                                                        \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)
