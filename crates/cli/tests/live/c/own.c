/* A program with threads and an allocator of its own, which has its memory by mmap: so streams lie in managed
   memory, and libc looks at them in a forked child before anybody can map it there. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define ROOM (64ul << 20)

void *malloc(size_t bytes) {
    static char *room;
    static _Atomic size_t used;
    if (!room) room = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t at = (used += (bytes + 47) & ~15ul) - ((bytes + 47) & ~15ul);
    char *block = room + at + 16;
    ((size_t *)block)[-1] = bytes;
    return at + bytes < ROOM ? block : NULL;
}

void free(void *block) { (void)block; }

void *calloc(size_t count, size_t bytes) { return malloc(count * bytes); }

void *realloc(void *block, size_t bytes) {
    char *more = malloc(bytes);
    if (block) memcpy(more, block, ((size_t *)block)[-1] < bytes ? ((size_t *)block)[-1] : bytes);
    return more;
}

static int ends[2];

static void *waits(void *stream) {
    char byte;
    flockfile(stream);
    CHECK(read(ends[0], &byte, 1) == 0);
    funlockfile(stream);
    return NULL;
}

static size_t length(const char *path) {
    char bytes[4096];
    FILE *file = fopen(path, "r");
    size_t read = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    return read;
}

/* libc's list of streams, in order. */
extern void *_IO_list_all;

static int list(void **streams, int most) {
    int count = 0;
    for (char *stream = _IO_list_all; stream && count < most; stream = *(char **)(stream + 0x68))
        streams[count++] = stream;
    return count;
}

int main(void) {
    void *before[16], *after[16];
    FILE *held = fopen("held", "w"), *others[3];
    for (int i = 0; i < 3; i++) {
        char name[] = "other0";
        name[5] += i;
        others[i] = fopen(name, "w");
    }
    pthread_t thread;
    CHECK(pipe(ends) == 0 && pthread_create(&thread, NULL, waits, held) == 0);
    usleep(20000);
    int count = list(before, 16);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            close(ends[1]);
            /* Nobody has its lock here, and all of them are listed. */
            fputs("child", held);
            for (int at = 0; at < 3; at++) fputs("child", others[at]);
            fflush(NULL);
            _exit(0);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        /* Of glibc 2.41 each stream knows the one before it, too. */
        CHECK(list(after, 16) == count && !memcmp(before, after, count * sizeof *before));
    }
    close(ends[1]);
    CHECK(pthread_join(thread, NULL) == 0);
    for (int i = 0; i < 3; i++) fputs("parent", others[i]);
    fflush(NULL);
    printf("%zu %zu %zu %zu\n", length("held"), length("other0"), length("other1"), length("other2"));
    return 0;
}
