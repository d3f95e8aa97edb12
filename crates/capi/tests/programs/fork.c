/* A forked child has no part in its parent's cache, and closing there is no closing here. It got
 * pointers to pinned pages, which are not mapped in it, and was told that it may write. */
#define _GNU_SOURCE 1
#include "memory_store.h"
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
    memory_store memory;
    pk_store store = memory_functions(&memory, 8 * PAGE, 8 * PAGE);
    pk_cache *cache = tiny_cache("lru"), *other;
    pk_segment *segment, *reader, *copy;
    pk_pin *pin, *alone, *refused;
    pk_region *region;
    char bytes[6], words[10];
    pk_page_attributes page;
    pk_stats stats;
    stats.struct_bytes = sizeof stats;
    DONE(pk_segment_open_store(cache, &store, "parent's", &segment));
    write_all(segment, "parent", 6, 0);
    DONE(pk_segment_pin(segment, 0, 6, PK_PIN_SHARED, &pin));
    DONE(pk_segment_pin(segment, PAGE, 6, PK_PIN_EXCLUSIVE, &alone));
    DONE(pk_segment_open(cache, "readable", PK_OPEN_CREATE, &copy));
    DONE(pk_segment_close(copy));
    DONE(pk_segment_open(cache, "readable", PK_OPEN_READ, &reader));

    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        REFUSED(EOWNERDEAD, pk_segment_read_at(segment, bytes, 6, 0));
        REFUSED(EOWNERDEAD, pk_segment_write_at(segment, "child!", 6, 0));
        REFUSED(EOWNERDEAD, pk_segment_pin(segment, 0, 1, PK_PIN_SHARED, &refused));
        REFUSED(EOWNERDEAD, pk_segment_pin(segment, 3 * PAGE, 1, PK_PIN_EXCLUSIVE, &refused));
        REFUSED(EOWNERDEAD, pk_segment_set_len(segment, 0));
        REFUSED(EOWNERDEAD, pk_segment_len(segment));
        REFUSED(EOWNERDEAD, pk_segment_writable(segment));
        REFUSED(EOWNERDEAD, pk_segment_pin(reader, 0, 1, PK_PIN_EXCLUSIVE, &refused));
        REFUSED(EOWNERDEAD, pk_segment_pin(segment, 0, 0, PK_PIN_SHARED, &refused));
        REFUSED(EOWNERDEAD, pk_segment_map(segment, 0, 1, PK_MAP_READ, &region));
        CHECK(refused == NULL && region == NULL);
        CHECK(pk_pin_data(pin) == NULL && pk_pin_data(alone) == NULL);
        CHECK(strstr(pk_last_error(), "pk_pin_data: ") && strstr(pk_last_error(), "after fork"));
        CHECK(pk_pin_data_mut(alone) == NULL && pk_pin_data_mut(pin) == NULL);
        CHECK(strstr(pk_last_error(), "pk_pin_data_mut: ") && strstr(pk_last_error(), "after fork"));
        REFUSED(EOWNERDEAD, pk_segment_flush(segment));
        REFUSED(EOWNERDEAD, pk_segment_write_back(segment, 0, PK_TO_END));
        REFUSED(EOWNERDEAD, pk_segment_refresh(segment));
        REFUSED(EOWNERDEAD, pk_segment_prefetch(segment, 0, 1));
        REFUSED(EOWNERDEAD, pk_segment_advise(segment, 0, 1, PK_DONT_NEED));
        REFUSED(EOWNERDEAD, pk_segment_discard(segment, 0, PK_TO_END));
        REFUSED(EOWNERDEAD, pk_segment_attributes(segment, 0, 1, &page, 1));
        REFUSED(EOWNERDEAD, pk_segment_migrate(segment, 0, 1, segment, 3));
        REFUSED(EOWNERDEAD, pk_segment_duplicate(segment, &copy));
        REFUSED(EOWNERDEAD, pk_segment_cache(segment, &other));
        REFUSED(EOWNERDEAD, pk_segment_scratch(cache, PAGE, &copy));
        REFUSED(EOWNERDEAD, pk_segment_open(cache, "fork", PK_OPEN_CREATE, &copy));
        REFUSED(EOWNERDEAD, pk_segment_open_store(cache, &store, NULL, &copy));
        REFUSED(EOWNERDEAD, pk_segment_set_write_back(segment, PK_WRITE_BACK_ON_COMMIT));
        REFUSED(EOWNERDEAD, pk_cache_save_working_set(cache, "fork"));
        REFUSED(EOWNERDEAD, pk_cache_load_working_set(cache, "fork"));
        REFUSED(EOWNERDEAD, pk_cache_flush(cache));
        REFUSED(EOWNERDEAD, pk_cache_budget(cache));
        REFUSED(EOWNERDEAD, pk_cache_page_bytes(cache));
        REFUSED(EOWNERDEAD, pk_cache_fault_path(cache));
        REFUSED(EOWNERDEAD, pk_cache_set_budget(cache, 1 << 20));
        REFUSED(EOWNERDEAD, pk_cache_policy(cache, words, sizeof words));
        REFUSED(EOWNERDEAD, pk_cache_set_policy(cache, "mru"));
        REFUSED(EOWNERDEAD, pk_cache_stats(cache, &stats));
        REFUSED(EOWNERDEAD, pk_cache_stats_json(cache, words, sizeof words));
        CHECK(strstr(pk_last_error(), "make one after fork"));
        /* One of its own it may have. */
        pk_cache *own = tiny_cache("mru");
        DONE(pk_segment_scratch(own, PAGE, &copy));
        write_all(copy, "child", 5, 0);
        DONE(pk_unpin(pin));
        DONE(pk_unpin(alone));
        DONE(pk_segment_close(reader));
        DONE(pk_segment_close(segment));
        DONE(pk_cache_close(cache));
        CHECK(memory.closes == 0 && memory.stores == 0);
        read_all(copy, bytes, 5, 0);
        CHECK(!memcmp(bytes, "child", 5));
        DONE(pk_segment_close(copy));
        DONE(pk_cache_close(own));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    DONE(pk_segment_close(reader));

    /* The child let go of its copies; the parent's pins are still there. */
    CHECK(!memcmp(pk_pin_data(pin), "parent", 6));
    for (uint64_t i = 0; i < 2; i++) {
        DONE(pk_segment_attributes(segment, i * PAGE, 1, &page, 1));
        CHECK(page & PK_PAGE_PINNED);
    }
    REFUSED(EBUSY, pk_segment_set_len(segment, 0));
    memcpy(pk_pin_data_mut(alone), "parent", 6);
    DONE(pk_unpin(pin));
    DONE(pk_unpin(alone));
    DONE(pk_segment_flush(segment));
    CHECK(!memcmp(memory.bytes, "parent", 6) && !memcmp(memory.bytes + PAGE, "parent", 6));
    DONE(pk_segment_set_len(segment, 0));
    DONE(pk_segment_close(segment));
    DONE(pk_cache_close(cache));
    CHECK(memory.closes == 1);
    return 0;
}
