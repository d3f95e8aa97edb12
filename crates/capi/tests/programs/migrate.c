/* Pages move between segments and caches with what they hold. */
#include "memory_store.h"

int main(void)
{
    memory_store memory;
    pk_store store = memory_functions(&memory, 40 * PAGE, 40 * PAGE);
    pk_cache *cache = tiny_cache("lru"), *other = tiny_cache("mru");
    pk_segment *from, *to, *away;
    unsigned char page[4096];
    DONE(pk_segment_open_store(cache, &store, "from", &from));
    DONE(pk_segment_scratch(cache, 30 * PAGE + 100, &to));
    DONE(pk_segment_scratch(other, 10 * PAGE, &away));
    for (int i = 0; i < 40; i++) {
        memset(page, i + 1, PAGE);
        write_all(from, page, PAGE, (uint64_t)i * PAGE);
    }
    DONE(pk_segment_flush(from));
    write_all(from, "never stored", 12, 2 * PAGE);
    REFUSED(EINVAL, pk_segment_migrate(from, 0, 2, to, 30));
    REFUSED(EINVAL, pk_segment_migrate(from, 39, 2, to, 0));
    REFUSED(EINVAL, pk_segment_migrate(from, 0, 2, from, 1));
    CHECK(pk_segment_migrate(from, 0, 31, to, 0) == 31); /* more than the cache has frames */
    read_all(to, page, PAGE, 2 * PAGE);
    CHECK(!memcmp(page, "never stored", 12) && page[12] == 3 && page[4095] == 3);
    CHECK(pk_segment_read_at(to, page, PAGE, 30 * PAGE) == 100 && page[99] == 31);
    read_all(from, page, PAGE, 2 * PAGE);
    CHECK(page[0] == 3); /* what the store holds */
    DONE(pk_segment_flush(from));
    CHECK(memory.bytes[2 * PAGE] == 3);
    CHECK(pk_segment_migrate(to, 5, 2, to, 7) == 2);
    read_all(to, page, PAGE, 8 * PAGE);
    CHECK(page[0] == 7 && page[4095] == 7);
    CHECK(pk_segment_migrate(to, 10, 10, away, 0) == 10);
    for (int i = 0; i < 10; i++) {
        read_all(away, page, PAGE, (uint64_t)i * PAGE);
        CHECK(page[0] == i + 11 && page[4095] == i + 11);
    }
    DONE(pk_segment_close(from));
    DONE(pk_segment_close(to));
    DONE(pk_segment_close(away));
    DONE(pk_cache_close(cache));
    DONE(pk_cache_close(other));
    return 0;
}
