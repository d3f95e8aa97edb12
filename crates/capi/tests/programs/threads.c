/* Threads share a cache, a segment's handle and every page; each owns some of the bytes.
 * threads {file|store} SEED */
#define _GNU_SOURCE 1
#include "memory_store.h"
#include <unistd.h>

enum { THREADS = 3, LEN = 50 * 4096 + 777, STEPS = 1500 };

static pk_segment *segment;
static pk_cache *cache;
static uint64_t seed;
static int fails;

static void *work(void *number)
{
    size_t mine = (size_t)(uintptr_t)number;
    uint64_t random = seed * 100 + mine;
    unsigned char *model = (unsigned char *)calloc(1, LEN), byte;
    pk_pin *pin;
    uint64_t failed = 0;
    for (int step = 0; step < STEPS; step++) {
        size_t cell = random_below(&random, LEN / 8) * 8 + mine;
        unsigned char value = (unsigned char)next_random(&random);
        switch (random_below(&random, 14)) {
        case 0: case 1: case 2: case 3: case 4: case 5:
            if (pk_segment_write_at(segment, &value, 1, cell) == 1) model[cell] = value;
            else failed++;
            break;
        case 6: case 7: case 8: case 9: case 10:
            if (pk_segment_read_at(segment, &byte, 1, cell) == 1) CHECK(byte == model[cell]);
            else failed++;
            break;
        case 11:
            if (pk_segment_pin(segment, cell, 1, PK_PIN_SHARED, &pin) == 0) {
                CHECK(*(const unsigned char *)pk_pin_data(pin) == model[cell]);
                DONE(pk_unpin(pin));
            } else failed++;
            break;
        case 12:
            if (pk_segment_pin(segment, cell, 1, PK_PIN_EXCLUSIVE, &pin) == 0) {
                model[cell] = *(unsigned char *)pk_pin_data_mut(pin) = value;
                DONE(pk_unpin(pin));
            } else failed++;
            break;
        default:
            (void)pk_segment_write_back(segment, cell, 3 * PAGE);
            break;
        }
        if (step % 100 == 99) {
            DONE(pk_cache_set_budget(cache, (12 + random_below(&random, 20)) * PAGE));
            DONE(pk_cache_set_policy(cache, random_below(&random, 2) ? "mru" : "arc"));
        }
    }
    CHECK(fails ? failed > 0 : failed == 0);
    for (size_t cell = mine; cell < LEN; cell += 8) {
        while (pk_segment_read_at(segment, &byte, 1, cell) != 1) CHECK(fails);
        CHECK(byte == model[cell]);
    }
    free(model);
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    seed = strtoull(argv[2], NULL, 10);
    memory_store memory;
    pk_store store = memory_functions(&memory, LEN, LEN);
    char path[] = "threads-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && ftruncate(fd, LEN) == 0);
    pthread_t threads[THREADS];
    static unsigned char all[LEN], stored[LEN];
    cache = tiny_cache("clock");
    fails = !strcmp(argv[1], "store");
    if (fails) {
        memory.load_error = EIO;
        memory.store_error = ENOSPC;
        memory.reserve_error = ENOSPC;
        memory.one_in = 15;
        memory.random = seed;
        DONE(pk_segment_open_store(cache, &store, "failing", &segment));
    } else {
        DONE(pk_segment_open(cache, path, PK_OPEN_WRITE, &segment));
    }
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i) == 0);
    for (size_t i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    memory.load_error = memory.store_error = memory.reserve_error = 0;
    (void)pk_segment_flush(segment);
    DONE(pk_segment_flush(segment));
    read_all(segment, all, LEN, 0);
    if (fails) memcpy(stored, memory.bytes, LEN);
    else CHECK(pread(fd, stored, LEN, 0) == LEN);
    CHECK(!memcmp(all, stored, LEN));
    DONE(pk_segment_close(segment));
    DONE(pk_cache_close(cache));
    close(fd);
    unlink(path);
    return 0;
}
