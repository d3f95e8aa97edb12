/* Budgets, policies and statistics of a cache that lives. */
#define _DEFAULT_SOURCE
#include "memory_store.h"
#include <sys/stat.h>
#include <unistd.h>

static uint64_t told_bytes;

static void tell(void *context, uint64_t budget_bytes)
{
    *(uint64_t *)context = budget_bytes;
}

static uint64_t major_faults(const pk_cache *cache)
{
    pk_stats stats;
    stats.struct_bytes = sizeof stats;
    DONE(pk_cache_stats(cache, &stats));
    return stats.major_faults;
}

/* Reads 60 pages once; returns how many were not in memory. */
static uint64_t pass(const pk_cache *cache, const pk_segment *segment)
{
    uint64_t before = major_faults(cache);
    unsigned char page[4096];
    for (uint64_t i = 0; i < 60; i++) {
        read_all(segment, page, PAGE, i * PAGE);
        CHECK(page[0] == i && page[4095] == i);
    }
    return major_faults(cache) - before;
}

/* program: a .hipec file of MRU. */
static void play(const char *program, uint64_t translation)
{
    memory_store memory;
    pk_store store = memory_functions(&memory, 60 * PAGE, 60 * PAGE);
    for (size_t i = 0; i < 60 * PAGE; i++) memory.bytes[i] = (unsigned char)(i / PAGE);
    pk_cache_options options = tiny_options("lru");
    options.budget_bytes = 128 << 10;
    options.read_ahead_pages_max = 1;
    options.workers = 3;
    options.translation = translation;
    options.keep_awake = 1;
    options.on_budget_change = tell;
    options.on_budget_change_context = &told_bytes;
    pk_cache *cache, *same;
    pk_segment *segment;
    char words[200];
    struct stat there;
    DONE(pk_cache_create(&options, &cache));
    CHECK(pk_cache_fault_path(cache) == (int)PK_FAULT_EXPLICIT);
    DONE(pk_segment_open_store(cache, &store, "sixty pages", &segment));

    /* A loop is too long for LRU; MRU keeps a part of it, native or as a program. */
    pass(cache, segment);
    CHECK(pass(cache, segment) == 60);
    int64_t resident = DONE(pk_cache_set_policy(cache, "mru"));
    CHECK(resident >= 20 && resident < 32);
    pass(cache, segment);
    CHECK(pass(cache, segment) < 45);
    DONE(pk_cache_set_policy(cache, "lru"));
    pass(cache, segment);
    CHECK(pass(cache, segment) == 60);
    DONE(pk_cache_set_policy(cache, program));
    pass(cache, segment);
    CHECK(pass(cache, segment) < 45);

    /* The policy's words, whole and cut off. */
    CHECK(pk_cache_policy(cache, words, sizeof words) == (int64_t)strlen(program));
    CHECK(!strcmp(words, program));
    memset(words, 'x', sizeof words);
    DONE(pk_cache_set_policy(cache, "lirs"));
    CHECK(pk_cache_policy(cache, words, 3) == 4 && !memcmp(words, "li\0x", 4));
    CHECK(pk_cache_policy(cache, NULL, 0) == 4);

    /* The budget changes live, and who asked for it is told. */
    pk_page_attributes pages[60];
    CHECK(pk_cache_budget(cache) == 128 << 10);
    DONE(pk_cache_set_budget(cache, 64 << 10));
    CHECK(told_bytes == 64 << 10 && pk_cache_budget(cache) == 64 << 10);
    CHECK(pk_segment_attributes(segment, 0, PK_TO_END, pages, 60) == 60);
    int in_memory = 0;
    for (int i = 0; i < 60; i++) in_memory += pages[i] & PK_PAGE_RESIDENT;
    CHECK(in_memory > 0 && in_memory < 16);

    /* Statistics: a struct of an older and of a newer program, and all of it as JSON. */
    struct { pk_stats known; uint64_t newer; } wide;
    memset(&wide, 0xff, sizeof wide);
    wide.known.struct_bytes = sizeof wide;
    DONE(pk_cache_stats(cache, &wide.known));
    CHECK(wide.known.struct_bytes == sizeof wide && wide.newer == 0);
    CHECK(wide.known.budget_bytes == 64 << 10 && wide.known.read_bytes >= 60 * PAGE);
    CHECK(wide.known.evictions > 60 && wide.known.refaults > 60 && wide.known.write_backs == 0);
    int64_t len = DONE(pk_cache_stats_json(cache, NULL, 0));
    char *json = (char *)malloc((size_t)len + 1);
    CHECK(pk_cache_stats_json(cache, json, (size_t)len + 1) <= len);
    CHECK(strstr(json, "\"name\":\"sixty pages\"") && strstr(json, "\"policy\":\"lirs\""));
    CHECK(json[strlen(json) - 1] == '}');

    /* The cache is found from its segment, and lives as long as that. */
    DONE(pk_segment_cache(segment, &same));
    DONE(pk_cache_close(cache));
    DONE(pk_cache_set_budget(same, 32 << 10));
    CHECK(told_bytes == 32 << 10);
    DONE(pk_cache_close(same));
    read_all(segment, words, 100, 59 * PAGE);
    CHECK(words[0] == 59 && memory.closes == 0);
    DONE(pk_segment_close(segment));
    CHECK(memory.closes == 1);

    /* A later run begins with what this one had in memory. */
    DONE(pk_cache_create(&options, &cache));
    DONE(pk_segment_open_store(cache, &store, "sixty pages", &segment));
    for (uint64_t i = 7; i < 60; i += 10) read_all(segment, words, 1, i * PAGE);
    CHECK(pk_cache_save_working_set(cache, "working-set") == 6);
    DONE(pk_segment_close(segment));
    DONE(pk_cache_close(cache));
    DONE(pk_cache_create(&options, &cache));
    DONE(pk_segment_open_store(cache, &store, "sixty pages", &segment));
    CHECK(pk_cache_load_working_set(cache, "working-set") == 6);
    CHECK(pk_segment_attributes(segment, 0, PK_TO_END, pages, 60) == 60);
    for (int i = 0; i < 60; i++) CHECK(!(pages[i] & PK_PAGE_RESIDENT) == (i % 10 != 7));
    REFUSED(ENOENT, pk_cache_load_working_set(cache, "nowhere"));
    REFUSED(EINVAL, pk_cache_load_working_set(cache, program));
    CHECK(strstr(pk_last_error(), "save_working_set() makes one") && !strstr(pk_last_error(), "--"));
    REFUSED(EISDIR, pk_cache_load_working_set(cache, "."));
    REFUSED(ENOENT, pk_cache_save_working_set(cache, "nowhere/working-set"));
    /* Whatever had the name was replaced. */
    CHECK(mkfifo("fifo", 0600) == 0);
    REFUSED(EINVAL, pk_cache_save_working_set(cache, "fifo"));
    CHECK(strstr(pk_last_error(), "fifo is no regular file"));
    CHECK(lstat("fifo", &there) == 0 && S_ISFIFO(there.st_mode));
    unlink("fifo");
    DONE(pk_segment_close(segment));
    DONE(pk_cache_close(cache));

    /* Dirty pages are written back in the background, and scratch is where it should be. */
    options = tiny_options(NULL);
    options.write_back_period_ms = 20;
    options.scratch_directory = ".";
    store = memory_functions(&memory, 4 * PAGE, 4 * PAGE);
    DONE(pk_cache_create(&options, &cache));
    DONE(pk_segment_open_store(cache, &store, NULL, &segment));
    write_all(segment, "written behind", 14, 5);
    do {
        CHECK(pk_segment_attributes(segment, 0, 1, pages, 1) == 1);
    } while (pages[0] & PK_PAGE_DIRTY);
    CHECK(!memcmp(memory.bytes + 5, "written behind", 14) && memory.syncs == 0);
    write_all(segment, "once more", 9, PAGE);
    DONE(pk_cache_flush(cache));
    CHECK(!memcmp(memory.bytes + PAGE, "once more", 9) && memory.syncs == 1);
    pk_segment *scratch;
    DONE(pk_segment_scratch(cache, 1 << 20, &scratch));
    CHECK(pk_segment_len(scratch) == 1 << 20);
    DONE(pk_segment_close(scratch));
    DONE(pk_segment_close(segment));
    DONE(pk_cache_close(cache));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    play(argv[1], PK_TRANSLATION_MAPPED);
    play(argv[1], PK_TRANSLATION_TABLE);
    return 0;
}
