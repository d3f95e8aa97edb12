/* A store that fails: every error arrives where it belongs, and nothing is lost. */
#define _DEFAULT_SOURCE
#include "memory_store.h"
#include <unistd.h>

static memory_store memory;
static pk_segment *segment;
static pk_cache *cache;

static pk_page_attributes attributes(uint64_t page)
{
    pk_page_attributes one;
    CHECK(pk_segment_attributes(segment, page * PAGE, 1, &one, 1) == 1);
    return one;
}

static int advise_own(void *context, uint64_t offset, uint64_t len, pk_advice advice)
{
    REFUSED(EDEADLK, pk_segment_set_len(segment, PAGE));
    REFUSED(EDEADLK, pk_segment_refresh(segment));
    return memory_advise(context, offset, len, advice);
}

static int64_t load_greedily(void *context, uint64_t offset, void *pages, size_t len)
{
    REFUSED(EDEADLK, pk_cache_set_budget(cache, 1 << 20));
    CHECK(strstr(pk_last_error(), "nor its budget"));
    return memory_load(context, offset, pages, len);
}

/* Functions that use what calls them: the first waited for themselves, the other one had what it asked for. */
static void reentered(void)
{
    pk_store store = memory_functions(&memory, 8 * PAGE, 8 * PAGE);
    unsigned char byte;
    store.advise = advise_own;
    store.load = load_greedily;
    cache = tiny_cache("lru");
    DONE(pk_segment_open_store(cache, &store, NULL, &segment));
    alarm(60);
    DONE(pk_segment_advise(segment, 0, 2 * PAGE, PK_DISCARDABLE));
    CHECK(memory.advised == PK_DISCARDABLE && memory.advised_len == 2 * PAGE);
    read_all(segment, &byte, 1, 0);
    alarm(0);
    CHECK(pk_cache_budget(cache) == (int64_t)TINY);
    DONE(pk_segment_set_len(segment, 4 * PAGE));
    DONE(pk_segment_close(segment));
    DONE(pk_cache_close(cache));
    free(memory.bytes);
}

int main(void)
{
    reentered();
    pk_store store = memory_functions(&memory, 8 * PAGE, 16 * PAGE);
    cache = tiny_cache("lru");
    pk_segment *two, *three;
    unsigned char page[4096], zeros[4096];
    memset(zeros, 0, sizeof zeros);
    memset(page, 7, sizeof page);

    /* One that cannot be opened is the caller's still. */
    memory.len_error = EHOSTDOWN;
    REFUSED(EHOSTDOWN, pk_segment_open_store(cache, &store, "down", &segment));
    CHECK(segment == NULL && memory.closes == 0 && strstr(pk_last_error(), "down"));
    memory.len_error = 0;
    DONE(pk_segment_open_store(cache, &store, "memory", &segment));

    /* A page that cannot be loaded is an error, and never zeros; a whole page need not be. */
    memory.load_error = EREMOTEIO;
    REFUSED(EREMOTEIO, pk_segment_read_at(segment, page, 8, 0));
    REFUSED(EREMOTEIO, pk_segment_write_at(segment, page, 8, 0));
    write_all(segment, page, PAGE, PAGE);
    memory.load_error = 100000;
    REFUSED(EIO, pk_segment_read_at(segment, page, 8, 0));
    memory.load_error = 0;
    memory.boasts = 1;
    REFUSED(EIO, pk_segment_read_at(segment, page, 8, 0));
    memory.boasts = 0;
    /* Nor what the store does not give in front of its end. */
    memory.lacks = 1;
    REFUSED(EIO, pk_segment_read_at(segment, page, 8, 0));
    REFUSED(EIO, pk_segment_write_at(segment, page, 8, 0));
    memory.lacks = 0;
    memory.load_error = EIO;
    CHECK(pk_segment_read_at(segment, page, 2 * PAGE, PAGE) == 4096); /* short before the bad page */
    memory.load_error = 0;
    read_all(segment, page, PAGE, 0);
    CHECK(!memcmp(page, zeros, PAGE));

    /* No room for a page's first write; one that is dirty has its room. */
    memory.reserve_error = ENOSPC;
    REFUSED(ENOSPC, pk_segment_write_at(segment, "x", 1, 0));
    pk_pin *pin;
    REFUSED(ENOSPC, pk_segment_pin(segment, 0, 1, PK_PIN_EXCLUSIVE, &pin));
    write_all(segment, "kept", 4, PAGE);
    memory.reserve_error = 0;

    /* Each handle is told once that a page could not be stored; the page stays. */
    DONE(pk_segment_duplicate(segment, &two));
    memory.store_error = EDQUOT;
    REFUSED(EDQUOT, pk_segment_flush(segment));
    CHECK(strstr(pk_last_error(), "stays in memory"));
    CHECK(attributes(1) & PK_PAGE_DIRTY && attributes(1) & PK_PAGE_RESIDENT);
    memory.store_error = 0;
    DONE(pk_segment_duplicate(segment, &three));
    DONE(pk_segment_flush(segment));
    CHECK(!(attributes(1) & PK_PAGE_DIRTY) && !memcmp(memory.bytes + PAGE, "kept", 4));
    REFUSED(EDQUOT, pk_segment_flush(two));
    DONE(pk_segment_flush(two));
    DONE(pk_segment_flush(three));
    memory.sync_error = EIO;
    REFUSED(EIO, pk_segment_flush(segment));
    REFUSED(EIO, pk_cache_flush(cache));
    memory.sync_error = 0;
    CHECK(pk_segment_flush(segment) == -EIO && pk_segment_flush(two) == -EIO);
    DONE(pk_segment_flush(segment));
    DONE(pk_segment_close(two));
    DONE(pk_segment_close(three));

    /* Others change the store: clean pages follow, and ours stay ours. */
    CHECK(pk_segment_refresh(segment) == 0);
    write_all(segment, "mine", 4, 2 * PAGE);
    memcpy(memory.bytes, "theirs", 6);
    memcpy(memory.bytes + 2 * PAGE, "theirs", 6);
    read_all(segment, page, 6, 0);
    CHECK(!memcmp(page, zeros, 6));
    memory.generation++;
    CHECK(pk_segment_refresh(segment) == 1);
    read_all(segment, page, 6, 0);
    CHECK(!memcmp(page, "theirs", 6));
    read_all(segment, page, 6, 2 * PAGE);
    CHECK(!memcmp(page, "mine\0\0", 6));
    CHECK(pk_segment_refresh(segment) == 0);

    /* What is discarded is not stored. */
    write_all(segment, "gone", 4, 3 * PAGE);
    DONE(pk_segment_discard(segment, 3 * PAGE, PAGE));
    read_all(segment, page, 4, 3 * PAGE);
    CHECK(!memcmp(page, zeros, 4));

    /* Its length. */
    memory.set_len_error = EPERM;
    REFUSED(EPERM, pk_segment_set_len(segment, 3 * PAGE));
    CHECK(pk_segment_len(segment) == 8 * 4096);
    memory.set_len_error = 0;
    DONE(pk_segment_set_len(segment, 3 * PAGE + 5));
    CHECK(memory.len == 3 * PAGE + 5);
    DONE(pk_segment_flush(segment));
    DONE(pk_segment_close(segment));
    CHECK(memory.closes == 1);

    /* The least that a store has to have. */
    free(memory.bytes);
    store = memory_functions(&memory, 2 * PAGE, 2 * PAGE);
    store.flags = 0;
    store.reserve = NULL;
    store.set_len = NULL;
    store.sync = NULL;
    store.generation = NULL;
    store.close = NULL;
    DONE(pk_segment_open_store(cache, &store, NULL, &segment));
    write_all(segment, "least", 5, 0);
    REFUSED(EINVAL, pk_segment_set_len(segment, 0));
    REFUSED(EINVAL, pk_segment_write_at(segment, "x", 1, 2 * PAGE));
    DONE(pk_segment_flush(segment));
    CHECK(!memcmp(memory.bytes, "least", 5));
    REFUSED(EOPNOTSUPP, pk_segment_advise(segment, 0, PK_TO_END, PK_DISCARDABLE));
    CHECK(strstr(pk_last_error(), "make nothing anew"));
    DONE(pk_segment_close(segment));

    /* A store that is handed what leaves memory, and told what can be made anew. */
    free(memory.bytes);
    store = memory_functions(&memory, 100 * PAGE, 100 * PAGE);
    store.retire = memory_retire;
    store.advise = memory_advise;
    DONE(pk_segment_open_store(cache, &store, NULL, &segment));
    for (uint64_t i = 0; i < 100; i++) {
        memset(page, (int)i, PAGE);
        if (i % 2) write_all(segment, page, PAGE, i * PAGE);
        else read_all(segment, page, PAGE, i * PAGE);
    }
    CHECK(memory.retired_clean > 5 && memory.retired_dirty > 5);
    for (uint64_t i = 0; i < 100; i++) {
        read_all(segment, page, PAGE, i * PAGE);
        CHECK(page[0] == (i % 2 ? i : 0) && page[4095] == page[0]);
    }
    DONE(pk_segment_advise(segment, 3 * PAGE, 4 * PAGE, PK_DISCARDABLE));
    CHECK(memory.advised_offset == 3 * PAGE && memory.advised_len == 4 * PAGE);
    CHECK(memory.advised == PK_DISCARDABLE);
    DONE(pk_segment_advise(segment, 4 * PAGE, PAGE, PK_NEEDED));
    CHECK(memory.advised_offset == 4 * PAGE && memory.advised == PK_NEEDED);
    DONE(pk_segment_flush(segment));

    /* Between commits nothing is stored, whatever else is in need of room. */
    DONE(pk_segment_set_write_back(segment, PK_WRITE_BACK_ON_COMMIT));
    write_all(segment, "kept", 4, 0);
    DONE(pk_segment_flush(segment));
    write_all(segment, "lost", 4, 0);
    memory.store_error = EIO;
    for (uint64_t i = 1; i < 100; i++) read_all(segment, page, PAGE, i * PAGE);
    CHECK(!memcmp(memory.bytes, "kept", 4));
    read_all(segment, page, 4, 0);
    CHECK(!memcmp(page, "lost", 4));
    DONE(pk_segment_discard(segment, 0, PK_TO_END));
    memory.store_error = 0;
    read_all(segment, page, 4, 0);
    CHECK(!memcmp(page, "kept", 4));
    REFUSED(EINVAL, pk_segment_set_write_back(segment, 3));
    DONE(pk_segment_set_write_back(segment, PK_WRITE_BACK_ANY_TIME));
    DONE(pk_segment_close(segment));
    DONE(pk_cache_close(cache));
    free(memory.bytes);
    return 0;
}
