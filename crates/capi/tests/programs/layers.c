/* Stores upon stores: compressed, mirrored, logged and discardable pages, one upon another. */
#define _DEFAULT_SOURCE
#include "memory_store.h"
#include <fcntl.h>
#include <unistd.h>

#define PAGES 64u

static int64_t counter(const pk_cache *cache, const char *name)
{
    static char json[1 << 16];
    const char *at;
    CHECK(pk_cache_stats_json(cache, json, sizeof json) < (int64_t)sizeof json);
    CHECK((at = strstr(json, name)) != NULL);
    return atoll(strchr(at, ':') + 1);
}

static int made;

static int make_squares(void *context, uint64_t offset, void *pages, size_t len)
{
    ++*(int *)context;
    for (size_t i = 0; i < len / 8; i++) {
        uint64_t n = offset / 8 + i;
        ((uint64_t *)pages)[i] = n * n;
    }
    return 0;
}

static pk_layer *file_layer(const char *name, uint64_t pages)
{
    pk_layer *layer;
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)(pages * PAGE)) == 0);
    DONE(pk_layer_file(fd, 1, &layer));
    close(fd);
    return layer;
}

/* Writes each page's number, in another order than they are read in. */
static void fill(const pk_segment *segment)
{
    for (uint64_t i = 0; i < PAGES; i++) {
        uint64_t page = i * 7 % PAGES;
        write_all(segment, &page, sizeof page, page * PAGE);
    }
}

static void check_filled(const pk_segment *segment)
{
    for (uint64_t page = 0; page < PAGES; page++) {
        uint64_t found;
        read_all(segment, &found, sizeof found, page * PAGE);
        CHECK(found == page);
    }
}

static void compressed(void)
{
    pk_cache_options options = tiny_options("lru");
    pk_cache *cache;
    pk_layer *scratch, *small, *again;
    pk_segment *segment;
    options.budget_bytes = 2 * TINY;
    DONE(pk_cache_create(&options, &cache));
    REFUSED(ENOENT, pk_layer_scratch("there is no such folder", PAGES * PAGE, &scratch));
    CHECK(scratch == NULL);
    DONE(pk_layer_scratch(".", PAGES * PAGE, &scratch));
    REFUSED(EINVAL, pk_layer_compressed(scratch, cache, TINY / 2, 23, &small));
    REFUSED(ENOMEM, pk_layer_compressed(scratch, cache, 2 * TINY, 0, &small));
    DONE(pk_layer_compressed(scratch, cache, TINY / 2, 3, &small));
    /* One thing is upon a layer. */
    REFUSED(EBUSY, pk_layer_compressed(scratch, cache, TINY / 2, 0, &again));
    REFUSED(EBUSY, pk_segment_open_layer(cache, scratch, "scratch", &segment));
    CHECK(again == NULL && segment == NULL);
    DONE(pk_segment_open_layer(cache, small, "small", &segment));
    /* Handles of layers are closed in any order. */
    DONE(pk_layer_close(scratch));
    DONE(pk_layer_close(small));
    DONE(pk_layer_close(NULL));
    fill(segment);
    check_filled(segment);
    CHECK(counter(cache, "\"evictions\"") > 0);
    DONE(pk_segment_close(segment));
    DONE(pk_cache_close(cache));
}

static void mirrored(void)
{
    static memory_store first;
    pk_store functions = memory_functions(&first, PAGES * PAGE, PAGES * PAGE);
    pk_cache *cache = tiny_cache("lru");
    pk_layer *one, *two, *both, *odd;
    pk_segment *segment;
    DONE(pk_layer_functions(&functions, &one));
    odd = file_layer("odd", PAGES / 2);
    two = file_layer("two", PAGES);
    REFUSED(EINVAL, pk_layer_mirrored(one, odd, &both));
    REFUSED(EBUSY, pk_layer_mirrored(one, one, &both));
    DONE(pk_layer_mirrored(one, two, &both));
    REFUSED(EINVAL, pk_layer_is_stale(one, PK_FIRST));
    REFUSED(EINVAL, pk_layer_is_stale(both, 2));
    REFUSED(EINVAL, pk_layer_checkpoint(both));
    DONE(pk_segment_open_layer(cache, both, "both", &segment));
    first.store_error = EIO;
    fill(segment);
    DONE(pk_segment_flush(segment));
    CHECK(pk_layer_is_stale(both, PK_FIRST) == 1 && pk_layer_is_stale(both, PK_SECOND) == 0);
    check_filled(segment);
    first.store_error = 0;
    DONE(pk_layer_resync(both, PK_FIRST));
    CHECK(pk_layer_is_stale(both, PK_FIRST) == 0);
    for (uint64_t page = 0; page < PAGES; page++)
        CHECK(memcmp(first.bytes + page * PAGE, &page, sizeof page) == 0);
    DONE(pk_segment_close(segment));
    CHECK(first.closes == 0);
    DONE(pk_layer_close(one));
    DONE(pk_layer_close(two));
    DONE(pk_layer_close(odd));
    DONE(pk_layer_close(both));
    CHECK(first.closes == 1);
    DONE(pk_cache_close(cache));
}

/* Nobody could tell the next run's mirror which side was stale: it read old content as if nothing were wrong,
   and was refused where the stale side had missed a change of the length. */
static void mirrored_again(void)
{
    static memory_store first, second;
    pk_store stores[2];
    pk_cache *cache = tiny_cache("lru");
    pk_layer *one, *two, *both;
    pk_segment *segment;
    char found[8] = "";
    stores[0] = memory_functions(&first, PAGES * PAGE, 2 * PAGES * PAGE);
    stores[1] = memory_functions(&second, PAGES * PAGE, 2 * PAGES * PAGE);
    DONE(pk_layer_functions(&stores[0], &one));
    DONE(pk_layer_functions(&stores[1], &two));
    DONE(pk_layer_mirrored(one, two, &both));
    DONE(pk_segment_open_layer(cache, both, "both", &segment));
    CHECK(pk_layer_take_error(both, PK_FIRST) == 0);
    write_all(segment, "old", 4, 0);
    DONE(pk_segment_flush(segment));
    first.store_error = first.set_len_error = EROFS;
    write_all(segment, "balance", 8, 0);
    write_all(segment, "longer", 7, PAGES * PAGE);
    DONE(pk_segment_flush(segment)); /* the other side has it */
    CHECK(pk_layer_is_stale(both, PK_FIRST) == 1 && pk_layer_is_stale(both, PK_SECOND) == 0);
    CHECK(pk_layer_take_error(both, PK_FIRST) == EROFS && pk_layer_take_error(both, PK_FIRST) == 0);
    CHECK(pk_layer_take_error(both, PK_SECOND) == 0);
    REFUSED(EINVAL, pk_layer_take_error(one, PK_FIRST));
    REFUSED(EINVAL, pk_layer_take_error(both, 2));
    first.store_error = first.set_len_error = 0;
    DONE(pk_segment_close(segment));
    DONE(pk_layer_close(both));
    DONE(pk_layer_close(one));
    DONE(pk_layer_close(two));

    /* The next run. */
    DONE(pk_layer_functions(&stores[0], &one));
    DONE(pk_layer_functions(&stores[1], &two));
    REFUSED(EINVAL, pk_layer_mirrored(one, two, &both));
    CHECK(strstr(pk_last_error(), "pk_layer_mirrored_with_stale()"));
    REFUSED(EINVAL, pk_layer_mirrored_with_stale(one, two, 2, &both));
    REFUSED(EINVAL, pk_layer_mirrored_with_stale(one, NULL, PK_FIRST, &both));
    REFUSED(EBUSY, pk_layer_mirrored_with_stale(one, one, PK_FIRST, &both));
    CHECK(both == NULL);
    first.loads = 0;
    DONE(pk_layer_mirrored_with_stale(one, two, PK_FIRST, &both));
    CHECK(pk_layer_is_stale(both, PK_FIRST) == 1 && pk_layer_is_stale(both, PK_SECOND) == 0);
    DONE(pk_segment_open_layer(cache, both, "both", &segment));
    read_all(segment, found, 8, 0);
    CHECK(strcmp(found, "balance") == 0 && first.loads == 0);
    REFUSED(EINVAL, pk_layer_resync(both, PK_SECOND));
    DONE(pk_layer_resync(both, PK_FIRST));
    CHECK(pk_layer_is_stale(both, PK_FIRST) == 0);
    CHECK(first.len == second.len && memcmp(first.bytes, second.bytes, first.len) == 0);
    CHECK(strcmp((char *)first.bytes + PAGES * PAGE, "longer") == 0);
    DONE(pk_segment_close(segment));
    DONE(pk_layer_close(both));
    DONE(pk_layer_close(one));
    DONE(pk_layer_close(two));
    DONE(pk_cache_close(cache));
    free(first.bytes);
    free(second.bytes);
}

static void logged(void)
{
    pk_cache *cache = tiny_cache("lru");
    pk_layer *table, *log, *both;
    pk_segment *segment;
    int fd = open("table", O_RDWR | O_CREAT, 0600);
    uint64_t found;
    table = file_layer("table", PAGES);
    log = file_layer("log", 0);
    DONE(pk_layer_logged(table, log, 1u << 30, &both));
    REFUSED(EINVAL, pk_layer_resync(both, PK_FIRST));
    DONE(pk_segment_open_layer(cache, both, "both", &segment));
    fill(segment);
    DONE(pk_segment_flush(segment));
    /* It is in the log, and not in place yet. */
    CHECK(pread(fd, &found, sizeof found, 5 * PAGE) == sizeof found && found == 0);
    check_filled(segment);
    DONE(pk_layer_checkpoint(both));
    CHECK(pread(fd, &found, sizeof found, 5 * PAGE) == sizeof found && found == 5);
    DONE(pk_segment_close(segment));
    DONE(pk_layer_close(both));
    DONE(pk_layer_close(log));
    DONE(pk_layer_close(table));
    CHECK(pwrite(fd, "no log", 6, 0) == 6);
    table = file_layer("other", PAGES);
    DONE(pk_layer_file(fd, 1, &log));
    REFUSED(EINVAL, pk_layer_logged(table, log, 1u << 30, &both));
    /* Nothing is upon them: they are the caller's still. */
    DONE(pk_segment_open_layer(cache, table, "table", &segment));
    DONE(pk_segment_close(segment));
    DONE(pk_layer_close(log));
    DONE(pk_layer_close(table));
    DONE(pk_cache_close(cache));
    close(fd);
}

static void discardable(void)
{
    pk_cache *cache = tiny_cache("lru");
    pk_layer *scratch, *squares;
    pk_segment *segment;
    uint64_t found;
    DONE(pk_layer_scratch(".", PAGES * PAGE, &scratch));
    REFUSED(EINVAL, pk_layer_discardable(scratch, NULL, NULL, &squares));
    DONE(pk_layer_discardable(scratch, make_squares, &made, &squares));
    DONE(pk_segment_open_layer(cache, squares, "squares", &segment));
    DONE(pk_segment_advise(segment, 0, PAGES * PAGE, PK_DISCARDABLE));
    for (int round = 0; round < 2; round++)
        for (uint64_t n = 0; n < PAGES * PAGE / 8; n += 512) {
            read_all(segment, &found, sizeof found, n * 8);
            CHECK(found == n * n);
        }
    CHECK(made > 1);
    DONE(pk_segment_close(segment));
    DONE(pk_layer_close(squares));
    DONE(pk_layer_close(scratch));
    DONE(pk_cache_close(cache));
}

int main(void)
{
    compressed();
    mirrored();
    mirrored_again();
    logged();
    discardable();
    return 0;
}
