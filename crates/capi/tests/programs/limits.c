/* A limit of the length of files (ulimit -f) ended programs that only read by SIGXFSZ: the memory that
 * pages are kept in is a file, too. Under a limit of address space (ulimit -v) three short files were too
 * many, and it was not said why. */
#define _GNU_SOURCE 1
#include "check.h"
#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN ((off_t)4 << 20)

static void limit(void)
{
    struct rlimit least = {1 << 20, 1 << 20};
    CHECK(setrlimit(RLIMIT_FSIZE, &least) == 0);
}

static pk_cache *make(pk_translation translation)
{
    pk_cache_options options = tiny_options("lru");
    options.translation = translation;
    pk_cache *cache;
    DONE(pk_cache_create(&options, &cache));
    return cache;
}

/* Pages that lie behind the limit, some of them together, and one that is read twice. */
static void read_pages(pk_segment *segment)
{
    static char bytes[64 << 10];
    for (int round = 0; round < 2; round++) {
        for (off_t at = 0; at < LEN; at += (off_t)PAGE) {
            CHECK(pk_segment_read_at(segment, bytes, 8, (uint64_t)at) == 8);
            CHECK(*(off_t *)(void *)bytes == at);
        }
        CHECK(pk_segment_read_at(segment, bytes, sizeof bytes, 2 << 20) == sizeof bytes);
        CHECK(*(off_t *)(void *)(bytes + 5 * PAGE) == (2 << 20) + 5 * (off_t)PAGE);
    }
}

static void from_the_start(pk_translation translation)
{
    limit();
    pk_cache *cache = make(translation);
    pk_segment *segment, *shorter;
    /* By whose descriptor the other one is registered, too. */
    DONE(pk_segment_open(cache, "short", PK_OPEN_CREATE, &shorter));
    int opened = pk_segment_open(cache, "long", PK_OPEN_READ, &segment);
    if (translation == PK_TRANSLATION_TABLE) {
        DONE(opened);
        read_pages(segment);
        DONE(pk_segment_close(segment));
    } else {
        CHECK(opened == -EFBIG && strstr(pk_last_error(), "ulimit -f"));
        CHECK(!strstr(pk_last_error(), "128 TiB"));
        /* What could not be opened is anybody's. */
        pk_cache *other = make(PK_TRANSLATION_TABLE);
        DONE(pk_segment_open(other, "long", PK_OPEN_WRITE, &segment));
        DONE(pk_segment_close(segment));
        DONE(pk_cache_close(other));
        REFUSED(EFBIG, pk_segment_scratch(cache, 2 << 20, &segment));
        DONE(pk_segment_scratch(cache, 1 << 20, &segment));
        REFUSED(EFBIG, pk_segment_set_len(segment, 2 << 20));
        DONE(pk_segment_close(segment));
    }
    DONE(pk_segment_close(shorter));
    DONE(pk_cache_close(cache));
}

static void once_it_is_open(pk_translation translation)
{
    pk_cache *cache = make(translation);
    pk_segment *segment;
    DONE(pk_segment_open(cache, "long", PK_OPEN_WRITE, &segment));
    limit();
    read_pages(segment);
    /* What is only in memory. */
    static char page[PK_PAGE_BYTES];
    memset(page, 'w', PAGE);
    CHECK(pk_segment_write_at(segment, page, PAGE, 3 << 20) == (int64_t)PAGE);
    memset(page, 0, PAGE);
    CHECK(pk_segment_read_at(segment, page, PAGE, 3 << 20) == (int64_t)PAGE);
    CHECK(page[0] == 'w' && page[PAGE - 1] == 'w');
    DONE(pk_segment_discard(segment, 3 << 20, PAGE));
    DONE(pk_segment_close(segment));
    DONE(pk_cache_close(cache));
}

/* 100 MiB more than there are now. */
static void limit_addresses(void)
{
    unsigned long pages;
    FILE *sizes = fopen("/proc/self/statm", "r");
    CHECK(sizes != NULL && fscanf(sizes, "%lu", &pages) == 1 && fclose(sizes) == 0);
    rlim_t most = pages * (rlim_t)sysconf(_SC_PAGESIZE) + (100 << 20);
    struct rlimit least = {most, most};
    CHECK(setrlimit(RLIMIT_AS, &least) == 0);
}

static void many_files(pk_translation translation)
{
    pk_cache *cache = make(translation);
    pk_segment *segments[8];
    int failed = 0;
    char byte;
    limit_addresses();
    for (int at = 0; at < 8; at++) {
        char name[] = "many-0";
        name[5] = (char)('0' + at);
        DONE(pk_segment_open(cache, name, PK_OPEN_CREATE, &segments[at]));
        DONE(pk_segment_set_len(segments[at], 1 << 20));
        int64_t read = pk_segment_read_at(segments[at], &byte, 1, 4096);
        CHECK(read == 1 || read == -ENOMEM);
        failed += read != 1;
        if (read != 1) {
            CHECK(at >= 4 && strstr(pk_last_error(), "RLIMIT_AS"));
            REFUSED(ENOMEM, pk_segment_write_at(segments[at], "a", 1, 0));
            CHECK(strstr(pk_last_error(), "RLIMIT_AS"));
        }
    }
    CHECK(translation == PK_TRANSLATION_TABLE ? failed == 0 : failed > 0);
    for (int at = 0; at < 8; at++)
        DONE(pk_segment_close(segments[at]));
    DONE(pk_cache_close(cache));
}

static void in_child(void (*play)(pk_translation), pk_translation translation)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        play(translation);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "translation %d: ended with %#x\n", (int)translation, status);
        exit(1);
    }
}

int main(void)
{
    /* libc reserves 128 MiB, and gives a half of it back, for a thread's first allocation: that of one of the
     * cache's threads, in the moment in which addresses were counted, was more than what is measured here. */
    CHECK(mallopt(M_ARENA_MAX, 1) == 1);
    int file = open("long", O_RDWR | O_CREAT, 0600);
    CHECK(file >= 0);
    for (off_t at = 0; at < LEN; at += (off_t)PAGE)
        CHECK(pwrite(file, &at, sizeof at, at) == sizeof at);
    CHECK(ftruncate(file, LEN) == 0 && close(file) == 0);
    in_child(from_the_start, PK_TRANSLATION_MAPPED);
    in_child(from_the_start, PK_TRANSLATION_TABLE);
    in_child(once_it_is_open, PK_TRANSLATION_MAPPED);
    in_child(once_it_is_open, PK_TRANSLATION_TABLE);
    in_child(many_files, PK_TRANSLATION_MAPPED);
    in_child(many_files, PK_TRANSLATION_TABLE);
    return 0;
}
