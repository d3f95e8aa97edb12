/* Arguments that make no sense are errors, each with words of its own. */
#define _GNU_SOURCE 1
#include "memory_store.h"
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

static void *no_error_here(void *nothing)
{
    (void)nothing;
    CHECK(!strcmp(pk_last_error(), ""));
    CHECK(pk_cache_budget(NULL) == -EINVAL);
    return NULL;
}

static void nulls(pk_cache *cache, pk_segment *segment, const pk_store *store)
{
    pk_cache_options options = tiny_options(NULL);
    pk_stats stats;
    char byte;
    REFUSED(EINVAL, pk_cache_create(NULL, &cache));
    CHECK(cache == NULL);
    REFUSED(EINVAL, pk_cache_create(&options, NULL));
    REFUSED(EINVAL, pk_cache_budget(NULL));
    REFUSED(EINVAL, pk_cache_page_bytes(NULL));
    REFUSED(EINVAL, pk_cache_set_budget(NULL, 1));
    REFUSED(EINVAL, pk_cache_policy(NULL, &byte, 1));
    REFUSED(EINVAL, pk_cache_set_policy(NULL, "lru"));
    REFUSED(EINVAL, pk_cache_fault_path(NULL));
    REFUSED(EINVAL, pk_cache_flush(NULL));
    REFUSED(EINVAL, pk_cache_stats(NULL, &stats));
    REFUSED(EINVAL, pk_cache_stats_json(NULL, NULL, 0));
    REFUSED(EINVAL, pk_cache_save_working_set(NULL, "x"));
    REFUSED(EINVAL, pk_cache_load_working_set(NULL, "x"));
    REFUSED(EINVAL, pk_segment_set_write_back(NULL, PK_WRITE_BACK_ANY_TIME));
    REFUSED(EINVAL, pk_segment_open(NULL, "x", 0, &segment));
    REFUSED(EINVAL, pk_segment_open_fd(NULL, 0, 0, NULL, &segment));
    REFUSED(EINVAL, pk_segment_scratch(NULL, 1, &segment));
    REFUSED(EINVAL, pk_segment_open_store(NULL, store, NULL, &segment));
    REFUSED(EINVAL, pk_segment_duplicate(NULL, &segment));
    REFUSED(EINVAL, pk_segment_cache(NULL, &cache));
    REFUSED(EINVAL, pk_segment_len(NULL));
    REFUSED(EINVAL, pk_segment_writable(NULL));
    REFUSED(EINVAL, pk_segment_read_at(NULL, &byte, 1, 0));
    REFUSED(EINVAL, pk_segment_write_at(NULL, &byte, 1, 0));
    REFUSED(EINVAL, pk_segment_set_len(NULL, 1));
    REFUSED(EINVAL, pk_segment_flush(NULL));
    REFUSED(EINVAL, pk_segment_write_back(NULL, 0, 1));
    REFUSED(EINVAL, pk_segment_refresh(NULL));
    REFUSED(EINVAL, pk_segment_prefetch(NULL, 0, 1));
    REFUSED(EINVAL, pk_segment_advise(NULL, 0, 1, PK_WILL_NEED));
    REFUSED(EINVAL, pk_segment_discard(NULL, 0, 1));
    REFUSED(EINVAL, pk_segment_attributes(NULL, 0, 1, NULL, 0));
    pk_pin *pin;
    pk_region *region;
    REFUSED(EINVAL, pk_segment_migrate(NULL, 0, 1, NULL, 0));
    REFUSED(EINVAL, pk_segment_pin(NULL, 0, 1, PK_PIN_SHARED, &pin));
    REFUSED(EINVAL, pk_segment_map(NULL, 0, 1, PK_MAP_READ, &region));
    CHECK(pk_pin_data(NULL) == NULL && strstr(pk_last_error(), "pk_pin_data: "));
    CHECK(pk_pin_data_mut(NULL) == NULL && strstr(pk_last_error(), "pk_pin_data_mut: "));
    CHECK(pk_region_data(NULL) == NULL && strstr(pk_last_error(), "pk_region_data: "));
    REFUSED(EINVAL, pk_region_len(NULL));
    /* Closing nothing is fine, as freeing it is. */
    DONE(pk_cache_close(NULL));
    DONE(pk_segment_close(NULL));
    DONE(pk_unpin(NULL));
    DONE(pk_region_unmap(NULL));
}

static void options(void)
{
    pk_cache *cache = (pk_cache *)&cache;
    pk_cache_options options = tiny_options("lrru");
    REFUSED(EINVAL, pk_cache_create(&options, &cache));
    CHECK(cache == NULL && strstr(pk_last_error(), "did you mean `lru`?"));
    options = tiny_options("opt");
    REFUSED(EINVAL, pk_cache_create(&options, &cache));
    CHECK(strstr(pk_last_error(), "simulator alone"));
    options = tiny_options("nowhere/mine.hipec");
    REFUSED(EINVAL, pk_cache_create(&options, &cache));
    CHECK(strstr(pk_last_error(), "cannot read nowhere/mine.hipec"));
    options = tiny_options("\xff\xfe");
    REFUSED(EINVAL, pk_cache_create(&options, &cache));
    options = tiny_options(NULL);
    options.budget_bytes = 0;
    REFUSED(EINVAL, pk_cache_create(&options, &cache));
    CHECK(strstr(pk_last_error(), "budget_bytes"));
    /* So small a budget was eight frames of 4096 bytes, and of larger pages the size's mistake. */
    options.budget_bytes = PK_BUDGET_PAGES_MIN * PAGE - 1;
    REFUSED(EINVAL, pk_cache_create(&options, &cache));
    CHECK(strstr(pk_last_error(), "budget_bytes is 32767; it has room for PK_BUDGET_PAGES_MIN pages"));
    options.page_bytes = 65536;
    options.budget_bytes = PK_BUDGET_PAGES_MIN * 65536 - 1;
    REFUSED(EINVAL, pk_cache_create(&options, &cache));
    CHECK(strstr(pk_last_error(), "524288 bytes"));
    options.budget_bytes++;
    DONE(pk_cache_create(&options, &cache));
    DONE(pk_cache_set_budget(cache, 1));
    CHECK(pk_cache_budget(cache) == 524288);
    DONE(pk_cache_set_budget(cache, 1 << 20));
    CHECK(pk_cache_budget(cache) == 1 << 20);
    DONE(pk_cache_close(cache));
    options = tiny_options(NULL);
    options.fault_path = 3;
    REFUSED(EINVAL, pk_cache_create(&options, &cache));
    options = tiny_options(NULL);
    options.workers = -2;
    REFUSED(EINVAL, pk_cache_create(&options, &cache));
    options = tiny_options(NULL);
    options.page_bytes = 5000;
    REFUSED(EINVAL, pk_cache_create(&options, &cache));
    CHECK(strstr(pk_last_error(), "page_bytes is 5000"));
    options = tiny_options(NULL);
    options.sampling_percent = 101;
    REFUSED(EINVAL, pk_cache_create(&options, &cache));
    CHECK(strstr(pk_last_error(), "sampling_percent is 101; up to 100"));
    options = tiny_options(NULL);
    options.translation = 2;
    REFUSED(EINVAL, pk_cache_create(&options, &cache));
    CHECK(strstr(pk_last_error(), "2 is no translation"));
    options.translation = PK_TRANSLATION_TABLE;
    options.fault_path = PK_FAULT_INLINE;
    REFUSED(EINVAL, pk_cache_create(&options, &cache));
    CHECK(strstr(pk_last_error(), "needs PK_FAULT_EXPLICIT"));
    options = tiny_options(NULL);
    options.struct_bytes = 0;
    REFUSED(EINVAL, pk_cache_create(&options, &cache));
    CHECK(strstr(pk_last_error(), "sizeof(pk_cache_options)"));

    /* A program that was built for an earlier version, without what came behind. */
    options = tiny_options(NULL);
    options.struct_bytes = offsetof(pk_cache_options, sampling_percent);
    options.sampling_percent = 101; /* none of its business */
    DONE(pk_cache_create(&options, &cache));
    DONE(pk_cache_close(cache));

    /* A program that was built for a later version: fine, unless it uses what is new. */
    struct { pk_cache_options known; uint64_t newer; } later;
    memset(&later, 0, sizeof later);
    later.known = tiny_options(NULL);
    later.known.struct_bytes = sizeof later;
    DONE(pk_cache_create(&later.known, &cache));
    DONE(pk_cache_close(cache));
    later.newer = 1;
    REFUSED(E2BIG, pk_cache_create(&later.known, &cache));
    CHECK(cache == NULL);
}

static int has_words(const char *words)
{
    return strstr(pk_last_error(), words) != NULL;
}

/* The remedy was another call's, or of another cause of the same number. */
static void remedies(void)
{
    pk_cache_options options = tiny_options("lru");
    pk_cache *cache = tiny_cache("lru"), *tables, *large;
    pk_segment *reader, *none, *working, *over;
    pk_layer *layer, *sound, *upon;
    pk_pin *pin;
    pk_region *region;
    char path[] = "remedy-XXXXXX", page[PAGE] = "";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, page, PAGE) == (ssize_t)PAGE);

    /* It is this very cache that has the file. */
    DONE(pk_segment_open(cache, path, PK_OPEN_READ, &reader));
    REFUSED(EBUSY, pk_segment_open(cache, path, PK_OPEN_WRITE, &none));
    CHECK(has_words("this cache has it for reading") && has_words("open it for writing first"));
    REFUSED(EBADF, pk_segment_pin(reader, 0, 1, PK_PIN_EXCLUSIVE, &pin));
    CHECK(has_words("PK_PIN_SHARED"));
    DONE(pk_segment_close(reader));
    /* It is there to be made, but for its directory. */
    REFUSED(ENOENT, pk_segment_open(cache, "nowhere/file", PK_OPEN_CREATE, &none));
    CHECK(has_words("in a directory that is there"));
    DONE(pk_segment_open(cache, path, PK_OPEN_WRITE, &working));
    DONE(pk_segment_pin(working, 0, 1, PK_PIN_SHARED, &pin));
    REFUSED(EBUSY, pk_segment_open(cache, path, PK_OPEN_TRUNCATE, &none));
    CHECK(has_words("PK_OPEN_TRUNCATE"));
    DONE(pk_unpin(pin));
    DONE(pk_segment_close(working));

    /* No segment was opened for reading here. */
    REFUSED(EBADF, pk_layer_file(999, 0, &layer));
    CHECK(has_words("fd is not open") && !has_words("PK_OPEN_WRITE"));
    DONE(pk_layer_file(fd, 0, &layer));
    DONE(pk_segment_open_layer(cache, layer, NULL, &over));
    REFUSED(EBADF, pk_segment_set_len(over, 2 * PAGE));
    CHECK(has_words("pk_layer_file() with writable 1"));
    write_all(over, "x", 1, 0);
    REFUSED(EBADF, pk_segment_flush(over));
    CHECK(has_words("the store is for reading") && has_words("pk_segment_discard()"));
    DONE(pk_segment_discard(over, 0, PK_TO_END));
    DONE(pk_segment_close(over));
    DONE(pk_layer_close(layer));

    /* More than half of the budget may be two things. */
    DONE(pk_layer_scratch(".", PAGE, &sound));
    REFUSED(ENOMEM, pk_layer_compressed(sound, cache, TINY, 0, &upon));
    CHECK(has_words("half of the cache's budget can be set aside"));
    DONE(pk_layer_close(sound));
    DONE(pk_segment_scratch(cache, 100 * PAGE, &working));
    REFUSED(EOPNOTSUPP, pk_segment_advise(working, 0, PK_TO_END, PK_DISCARDABLE));
    CHECK(has_words("pk_layer_discardable()"));
    REFUSED(ENOMEM, pk_segment_pin(working, 0, 100 * PAGE, PK_PIN_SHARED, &pin));
    CHECK(has_words("more than half of the budget"));
    DONE(pk_segment_set_write_back(working, PK_WRITE_BACK_ON_COMMIT));
    int64_t written = 0;
    for (uint64_t i = 0; i < 100 && written >= 0; i++) {
        written = pk_segment_write_at(working, page, PAGE, i * PAGE);
    }
    CHECK(written == -ENOMEM && has_words("pk_segment_write_at: ") && has_words("wait for a commit"));
    REFUSED(ENOMEM, pk_segment_pin(working, 90 * PAGE, 1, PK_PIN_EXCLUSIVE, &pin));
    CHECK(has_words("half of the budget's pages wait for a commit"));
    DONE(pk_segment_flush(working));
    write_all(working, page, PAGE, 99 * PAGE);
    DONE(pk_segment_close(working));

    /* Pages have the cache's size, and some caches pin them one by one. */
    options.translation = PK_TRANSLATION_TABLE;
    DONE(pk_cache_create(&options, &tables));
    DONE(pk_segment_scratch(tables, 4 * PAGE, &working));
    REFUSED(EOPNOTSUPP, pk_segment_pin(working, 0, 2 * PAGE, PK_PIN_SHARED, &pin));
    CHECK(has_words("PK_TRANSLATION_TABLE"));
    DONE(pk_segment_close(working));
    DONE(pk_cache_close(tables));
    options = tiny_options("lru");
    options.budget_bytes = 32 * 16384;
    options.page_bytes = 16384;
    options.fault_path = PK_FAULT_THREAD;
    if (pk_cache_create(&options, &large) == 0) {
        DONE(pk_segment_scratch(large, 4 * 16384, &working));
        REFUSED(EINVAL, pk_segment_map(working, PAGE, PAGE, PK_MAP_READ, &region));
        CHECK(has_words("a multiple of pk_cache_page_bytes()"));
        DONE(pk_segment_close(working));
        DONE(pk_cache_close(large));
    }
    DONE(pk_cache_close(cache));
    close(fd);
    unlink(path);
}

int main(void)
{
    memory_store memory;
    pk_store store = memory_functions(&memory, PAGE, PAGE), part;
    pthread_t thread;
    pk_cache *cache, *other;
    pk_segment *segment, *reader, *none;
    pk_region *region;
    pk_stats stats;
    char byte = 0, path[] = "errors-XXXXXX";

    CHECK(!strcmp(pk_version(), PK_VERSION));
    CHECK(!strcmp(pk_last_error(), ""));
    options();
    remedies();
    cache = tiny_cache("lru");
    DONE(pk_segment_open_store(cache, &store, NULL, &segment));
    nulls(cache, segment, &store);

    /* The message is the thread's own, and stays until the next error. */
    REFUSED(EINVAL, pk_region_len(NULL));
    const char *message = pk_last_error();
    DONE(pk_segment_len(segment));
    CHECK(pthread_create(&thread, NULL, no_error_here, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(message == pk_last_error() && !strncmp(message, "pk_region_len: ", 15));

    /* Places for results. */
    REFUSED(EINVAL, pk_segment_open(cache, path, 0, NULL));
    REFUSED(EINVAL, pk_segment_open_fd(cache, 0, 0, NULL, NULL));
    REFUSED(EINVAL, pk_segment_scratch(cache, 1, NULL));
    REFUSED(EINVAL, pk_segment_open_store(cache, &store, NULL, NULL));
    REFUSED(EINVAL, pk_segment_duplicate(segment, NULL));
    REFUSED(EINVAL, pk_segment_cache(segment, NULL));
    REFUSED(EINVAL, pk_segment_pin(segment, 0, 1, PK_PIN_SHARED, NULL));
    REFUSED(EINVAL, pk_segment_map(segment, 0, 1, PK_MAP_READ, NULL));
    REFUSED(EINVAL, pk_segment_migrate(segment, 0, 1, NULL, 0));
    REFUSED(EINVAL, pk_cache_stats(cache, NULL));
    stats.struct_bytes = 4;
    REFUSED(EINVAL, pk_cache_stats(cache, &stats));

    /* Buffers and ranges. */
    REFUSED(EINVAL, pk_segment_read_at(segment, NULL, 1, 0));
    REFUSED(EINVAL, pk_segment_write_at(segment, NULL, 1, 0));
    REFUSED(EINVAL, pk_segment_read_at(segment, &byte, SIZE_MAX, 0));
    REFUSED(EINVAL, pk_segment_write_at(segment, &byte, SIZE_MAX, 0));
    REFUSED(EINVAL, pk_segment_read_at(segment, &byte, 1, UINT64_MAX));
    REFUSED(EINVAL, pk_segment_write_at(segment, &byte, 1, UINT64_MAX));
    REFUSED(EFBIG, pk_segment_write_at(segment, &byte, 1, INT64_MAX));
    CHECK(pk_segment_read_at(segment, NULL, 0, 0) == 0);
    CHECK(pk_segment_write_at(segment, NULL, 0, 0) == 0);
    CHECK(pk_segment_read_at(segment, &byte, 1, PAGE) == 0);
    REFUSED(EINVAL, pk_segment_attributes(segment, 0, 1, NULL, 1));
    CHECK(pk_segment_attributes(segment, 0, PK_TO_END, NULL, 0) == 1);
    CHECK(pk_segment_attributes(segment, UINT64_MAX, PK_TO_END, NULL, 0) == 0);
    REFUSED(EINVAL, pk_segment_advise(segment, 0, 1, 4));
    CHECK(pk_segment_prefetch(segment, UINT64_MAX, PK_TO_END) == 0);
    DONE(pk_segment_discard(segment, UINT64_MAX, PK_TO_END));
    DONE(pk_segment_write_back(segment, UINT64_MAX, PK_TO_END));
    REFUSED(EINVAL, pk_segment_migrate(segment, 0, UINT64_MAX, segment, 1));
    REFUSED(EINVAL, pk_segment_migrate(segment, 0, 1, segment, 0));
    REFUSED(EINVAL, pk_segment_migrate(segment, 1, 1, segment, 0));
    REFUSED(EOPNOTSUPP, pk_segment_map(segment, 0, 1, PK_MAP_READ, &region));
    CHECK(region == NULL && strstr(pk_last_error(), "PK_FAULT_THREAD"));
    REFUSED(EINVAL, pk_segment_map(segment, 0, 1, 3, &region));
    REFUSED(EINVAL, pk_cache_set_policy(cache, NULL));
    REFUSED(EINVAL, pk_cache_set_policy(cache, "opt"));
    REFUSED(EINVAL, pk_cache_set_budget(cache, 0));
    REFUSED(EINVAL, pk_cache_policy(cache, NULL, 1));

    /* Stores. */
    part = store;
    part.struct_bytes = 8;
    REFUSED(EINVAL, pk_segment_open_store(cache, &part, NULL, &none));
    part = store;
    part.flags = 2;
    REFUSED(EINVAL, pk_segment_open_store(cache, &part, NULL, &none));
    part = store;
    part.len = NULL;
    REFUSED(EINVAL, pk_segment_open_store(cache, &part, NULL, &none));
    part = store;
    part.load = NULL;
    REFUSED(EINVAL, pk_segment_open_store(cache, &part, NULL, &none));
    part = store;
    part.store = NULL;
    REFUSED(EINVAL, pk_segment_open_store(cache, &part, NULL, &none));
    CHECK(strstr(pk_last_error(), "`store`"));
    REFUSED(EINVAL, pk_segment_open_store(cache, NULL, NULL, &none));
    CHECK(none == NULL && memory.closes == 0);
    DONE(pk_segment_close(segment));

    /* Files. */
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, "content", 7) == 7);
    REFUSED(ENOENT, pk_segment_open(cache, "nowhere/file", PK_OPEN_WRITE, &none));
    CHECK(strstr(pk_last_error(), "nowhere/file"));
    REFUSED(EINVAL, pk_segment_open(cache, NULL, 0, &none));
    REFUSED(EINVAL, pk_segment_open(cache, path, 8, &none));
    REFUSED(EINVAL, pk_segment_open(cache, ".", PK_OPEN_READ, &none));
    REFUSED(EISDIR, pk_segment_open(cache, ".", PK_OPEN_WRITE, &none));
    REFUSED(EBADF, pk_segment_open_fd(cache, -1, 0, NULL, &none));
    REFUSED(EBADF, pk_segment_open_fd(cache, 999, 0, NULL, &none));
    REFUSED(EINVAL, pk_segment_open_fd(cache, fd, PK_OPEN_CREATE, NULL, &none));
    REFUSED(EINVAL, pk_segment_open_fd(cache, fd, 0, "\xff", &none));
    DONE(pk_segment_open(cache, path, PK_OPEN_READ, &reader));
    CHECK(pk_segment_writable(reader) == 0);
    REFUSED(EBADF, pk_segment_write_at(reader, "x", 1, 0));
    CHECK(strstr(pk_last_error(), "PK_OPEN_WRITE"));
    REFUSED(EBADF, pk_segment_set_len(reader, 0));
    REFUSED(EBADF, pk_segment_discard(reader, 0, 1));
    REFUSED(EBADF, pk_segment_set_write_back(reader, PK_WRITE_BACK_ON_COMMIT));
    REFUSED(EBADF, pk_segment_advise(reader, 0, 1, PK_DISCARDABLE));
    REFUSED(EINVAL, pk_cache_save_working_set(cache, NULL));
    REFUSED(EINVAL, pk_cache_load_working_set(cache, NULL));
    pk_pin *pin;
    REFUSED(EBADF, pk_segment_pin(reader, 0, 1, PK_PIN_EXCLUSIVE, &pin));
    REFUSED(EBUSY, pk_segment_open(cache, path, PK_OPEN_WRITE, &none));
    DONE(pk_segment_close(reader));
    DONE(pk_segment_open_fd(cache, fd, PK_OPEN_WRITE, NULL, &segment));
    CHECK(pk_segment_writable(segment) == 1);
    other = tiny_cache("lru");
    REFUSED(EBUSY, pk_segment_open(other, path, PK_OPEN_READ, &none));
    CHECK(strstr(pk_last_error(), "several may read a file, or one write"));
    DONE(pk_segment_open(cache, path, PK_OPEN_READ, &reader));
    write_all(segment, "CONT", 4, 0);
    char seen[8] = "";
    CHECK(pk_segment_read_at(reader, seen, 8, 0) == 7 && !strcmp(seen, "CONTent"));
    DONE(pk_segment_close(reader));
    DONE(pk_segment_close(segment));
    DONE(pk_segment_open(other, path, PK_OPEN_TRUNCATE, &segment));
    CHECK(pk_segment_len(segment) == 0 && pk_segment_writable(segment) == 1);
    DONE(pk_segment_close(segment));
    CHECK(fcntl(fd, F_GETFD) >= 0); /* still the program's */
    REFUSED(EFBIG, pk_segment_scratch(cache, (uint64_t)1 << 62, &none));

    pk_cache_options bad = tiny_options(NULL);
    DONE(pk_cache_close(other));
    bad.scratch_directory = "nowhere";
    DONE(pk_cache_create(&bad, &other));
    REFUSED(ENOENT, pk_segment_scratch(other, PAGE, &none));
    CHECK(strstr(pk_last_error(), "scratch_directory"));
    DONE(pk_cache_close(other));
    DONE(pk_cache_close(cache));
    close(fd);
    unlink(path);
    return 0;
}
