// Files that are made equal, or different, by stores to mappings, and then share storage if what the kernel
// finds in them is equal (FIDEDUPERANGE).
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, BYTES = 256 * PAGE, MANY = 200 };

struct request {
    struct file_dedupe_range range;
    struct file_dedupe_range_info to[2];
};

static int by_number;

static char *make(const char *name, int content, int *fd) {
    static char room[BYTES];
    memset(room, content, BYTES);
    CHECK((*fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644)) >= 0 && write(*fd, room, BYTES) == BYTES);
    CHECK(fsync(*fd) == 0);
    char *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void ask(const char *what, int fd, struct request *request) {
    int done = by_number ? (int)syscall(SYS_ioctl, fd, FIDEDUPERANGE, request) : ioctl(fd, FIDEDUPERANGE, request);
    printf("%s: %s", what, done ? strerrorname_np(errno) : "ok");
    for (int i = 0; done == 0 && i < request->range.dest_count; i++)
        printf(", status %d, %llu bytes", request->to[i].status, request->to[i].bytes_deduped);
    puts("");
}

static void compare(void) {
    int from, one, other;
    char *source = make("source", 'a', &from), *first = make("one", 'b', &one), *second = make("other", 'a', &other);
    struct request whole = {{.src_length = BYTES, .dest_count = 2}, {{.dest_fd = one}, {.dest_fd = other}}};
    struct request request = whole;
    ask("as they are in storage", from, &request);
    memset(first, 'a', BYTES);
    ask("the destination was stored to", from, (request = whole, &request));
    first[100 * PAGE] = 'x';
    ask("it is another now", from, (request = whole, &request));
    memset(source, 'c', BYTES), memset(first, 'c', BYTES), memset(second, 'c', BYTES);
    ask("all were stored to", from, (request = whole, &request));
    source[7 * PAGE + 1] = 'y';
    ask("the source was stored to", from, (request = whole, &request));
    // Parts of them, which are equal in one of them only; told in a page of one of the files.
    struct request *told = (struct request *)(second + 200 * PAGE);
    *told = (struct request){{.src_offset = 8 * PAGE, .src_length = 64 * PAGE, .dest_count = 2},
                             {{.dest_fd = one, .dest_offset = 16 * PAGE}, {.dest_fd = other, .dest_offset = PAGE}}};
    second[30 * PAGE] = 'z';
    ask("a part", from, told);
    CHECK(source[7 * PAGE + 1] == 'y' && first[100 * PAGE] == 'c' && second[30 * PAGE] == 'z');
    // What is wrong with these the kernel says.
    request = (struct request){{.src_length = 0, .dest_count = 1}, {{.dest_fd = one}}};
    ask("no bytes", from, &request);
    request = (struct request){{.src_offset = -PAGE, .src_length = PAGE, .dest_count = 1}, {{.dest_fd = one}}};
    ask("no offset", from, &request);
    request = (struct request){{.src_length = BYTES, .dest_count = 2}, {{.dest_fd = -1}, {.dest_fd = 1 << 20}}};
    ask("no files", from, &request);
    request = (struct request){{.src_length = BYTES, .dest_count = 0}, {{0}}};
    ask("none", from, &request);
    ask("nowhere", from, (struct request *)16);
    ask("null", from, NULL);
    ask("no address", from, (struct request *)-8);
    struct request *many = calloc(1, sizeof many->range + MANY * sizeof *many->to);
    many->range = (struct file_dedupe_range){.src_length = BYTES, .dest_count = MANY};
    ask("too many", from, many);
    char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && munmap(pages + PAGE, PAGE) == 0);
    struct request *cut = (struct request *)(pages + PAGE - sizeof cut->range - sizeof *cut->to);
    memcpy(cut, &whole, sizeof cut->range + sizeof *cut->to);
    ask("half of it", from, cut);
    CHECK(munmap(pages, PAGE) == 0 && close(from) == 0 && close(one) == 0 && close(other) == 0);
    CHECK(munmap(source, BYTES) == 0 && munmap(first, BYTES) == 0 && munmap(second, BYTES) == 0);
    free(many);
}

int main(int count, char **argument) {
    CHECK(count > 1 && chdir(argument[1]) == 0);
    for (by_number = 0; by_number < 2; by_number++) compare();
    return 0;
}
