/* A program that closed its standard streams, as daemons do, and prints all the same: the library's
 * descriptors were in their place, its files and memory among them, and what was printed was stored in
 * the pages of a database, and written to it. */
#define _GNU_SOURCE 1
#include "check.h"
#include <fcntl.h>
#include <unistd.h>

static int words;

/* No standard stream's number is in use; what is checked here is told by a copy of standard error. */
static void nothing_there(const char *when)
{
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) {
            dprintf(words, "after %s, a descriptor of the library is %d\n", when, fd);
            exit(1);
        }
    }
    printf("out\n");
    fflush(stdout);
    fprintf(stderr, "error\n");
}

static void done(long long result, const char *what)
{
    if (result < 0) {
        dprintf(words, "%s: %lld: %s\n", what, result, pk_last_error());
        exit(1);
    }
    nothing_there(what);
}

#define ALONE(call) done((long long)(call), #call)

static void play(const char *name, pk_translation translation, pk_fault_path path)
{
    pk_cache_options options = tiny_options("lru");
    pk_cache *cache;
    pk_segment *segment, *scratch;
    pk_region *region;
    char page[PK_PAGE_BYTES];
    options.translation = translation;
    options.fault_path = path;
    options.scratch_directory = ".";
    int made = pk_cache_create(&options, &cache);
    if (made < 0 && path != PK_FAULT_EXPLICIT) {
        dprintf(words, "skipped: %s\n", pk_last_error());
        return;
    }
    ALONE(made);
    ALONE(pk_segment_open(cache, name, PK_OPEN_WRITE, &segment));
    ALONE(pk_segment_scratch(cache, 8 * PAGE, &scratch));
    for (size_t at = 0; at < 64; at++) {
        ALONE(pk_segment_read_at(segment, page, PAGE, at * PAGE));
        if (page[0] != 'D' || page[PAGE - 1] != 'D') {
            dprintf(words, "page %zu was printed to\n", at);
            exit(1);
        }
        ALONE(pk_segment_write_at(segment, "D", 1, at * PAGE));
    }
    if (path != PK_FAULT_EXPLICIT) {
        ALONE(pk_segment_map(segment, 0, PAGE, PK_MAP_READ_WRITE, &region));
        *(volatile char *)pk_region_data(region) = 'D';
        ALONE(pk_region_unmap(region));
    }
    ALONE(pk_segment_flush(segment));
    ALONE(pk_cache_save_working_set(cache, "hot"));
    ALONE(pk_cache_load_working_set(cache, "hot"));
    ALONE(pk_segment_close(scratch));
    ALONE(pk_segment_close(segment));
    ALONE(pk_cache_close(cache));
}

static int open_descriptors(void)
{
    int open = 0;
    for (int fd = 0; fd < 1000; fd++)
        open += fcntl(fd, F_GETFD) >= 0;
    return open;
}

/* Each file took one to be registered by, beside what it is read by and where its pages are. */
static void few_descriptors(pk_translation translation, int most)
{
    pk_cache_options options = tiny_options("lru");
    pk_cache *cache;
    pk_segment *segments[3];
    int before = 0;
    options.translation = translation;
    DONE(pk_cache_create(&options, &cache));
    for (int at = 0; at < 3; at++) {
        char name[] = "file-0";
        name[5] = (char)('0' + at);
        before = open_descriptors();
        DONE(pk_segment_open(cache, name, PK_OPEN_CREATE, &segments[at]));
    }
    /* One less where the file system has no direct I/O. */
    int taken = open_descriptors() - before;
    CHECK(taken == most || taken == most - 1);
    for (int at = 0; at < 3; at++)
        DONE(pk_segment_close(segments[at]));
    DONE(pk_cache_close(cache));
}

int main(void)
{
    char page[PK_PAGE_BYTES];
    FILE *file = fopen("database", "w");
    memset(page, 'D', PAGE);
    CHECK(file != NULL);
    for (int at = 0; at < 64; at++)
        CHECK(fwrite(page, PAGE, 1, file) == 1);
    CHECK(fclose(file) == 0);
    few_descriptors(PK_TRANSLATION_MAPPED, 3);
    few_descriptors(PK_TRANSLATION_TABLE, 2);
    words = fcntl(2, F_DUPFD, 100);
    CHECK(words >= 100 && close(0) == 0 && close(1) == 0 && close(2) == 0);
    play("database", PK_TRANSLATION_MAPPED, PK_FAULT_EXPLICIT);
    play("database", PK_TRANSLATION_TABLE, PK_FAULT_EXPLICIT);
    play("database", PK_TRANSLATION_MAPPED, PK_FAULT_THREAD);
    play("database", PK_TRANSLATION_MAPPED, PK_FAULT_INLINE);
    return 0;
}
