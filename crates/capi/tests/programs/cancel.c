/* A thread that pthread_cancel() was called for aborted the program in whichever call of the library was
 * a cancellation point: cancelled, it unwinds through the library, which lets nothing through. */
#define _GNU_SOURCE 1
#include "memory_store.h"
#include <pthread.h>
#include <unistd.h>

static pk_cache *cache;
static pk_segment *file, *above;
static int is_over;

static int64_t len(void *context)
{
    pthread_testcancel();
    return memory_len(context);
}

static int64_t load(void *context, uint64_t offset, void *pages, size_t bytes)
{
    usleep(1);
    return memory_load(context, offset, pages, bytes);
}

static int store(void *context, uint64_t offset, const void *bytes, size_t count)
{
    pthread_testcancel();
    return memory_put(context, offset, bytes, count);
}

static void files(void)
{
    pk_segment *other;
    char bytes[2 * PK_PAGE_BYTES] = "x";
    DONE(pk_segment_open(cache, "other", PK_OPEN_CREATE, &other));
    DONE(pk_segment_set_len(other, 8 * PAGE));
    DONE(pk_segment_write_at(other, bytes, sizeof bytes, 20 * PAGE));
    DONE(pk_segment_close(other));
    DONE(pk_segment_scratch(cache, 8 * PAGE, &other));
    DONE(pk_segment_close(other));
    DONE(pk_segment_read_at(file, bytes, sizeof bytes, 8 * PAGE));
    DONE(pk_segment_write_at(file, bytes, sizeof bytes, 40 * PAGE));
    DONE(pk_segment_refresh(file));
    DONE(pk_segment_flush(file));
}

static void caches(void)
{
    pk_cache *other;
    pk_layer *layer;
    pk_cache_options options = tiny_options("none of these");
    REFUSED(EINVAL, pk_cache_create(&options, &other));
    options = tiny_options("lru");
    DONE(pk_cache_create(&options, &other));
    DONE(pk_cache_close(other));
    DONE(pk_layer_scratch(".", 8 * PAGE, &layer));
    DONE(pk_layer_close(layer));
    DONE(pk_cache_save_working_set(cache, "hot"));
    DONE(pk_cache_load_working_set(cache, "hot"));
    DONE(pk_cache_set_policy(cache, "mru"));
    DONE(pk_cache_set_budget(cache, TINY));
    DONE(pk_cache_flush(cache));
}

static void stores(void)
{
    char bytes[2 * PK_PAGE_BYTES] = "x";
    pk_pin *pin;
    for (uint64_t page = 0; page < 60; page += 2) {
        DONE(pk_segment_read_at(above, bytes, sizeof bytes, page * PAGE));
        DONE(pk_segment_write_at(above, bytes, 1, page * PAGE));
    }
    DONE(pk_segment_pin(above, 8 * PAGE, PAGE, PK_PIN_EXCLUSIVE, &pin));
    DONE(pk_unpin(pin));
    DONE(pk_segment_flush(above));
}

static void *play(void *what)
{
    int before;
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0);
    CHECK(pthread_cancel(pthread_self()) == 0);
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before) == 0);
    /* CHECK and DONE are no cancellation points unless they fail. */
    void (*const *calls)(void) = what;
    (*calls)();
    is_over = 1;
    pthread_testcancel();
    return NULL;
}

static void cancelled(void (*calls)(void))
{
    pthread_t thread;
    void *result;
    is_over = 0;
    CHECK(pthread_create(&thread, NULL, play, &calls) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && is_over);
}

int main(void)
{
    memory_store memory;
    pk_store functions = memory_functions(&memory, 64 * PAGE, 64 * PAGE);
    functions.len = len;
    functions.load = load;
    functions.store = store;
    cache = tiny_cache("lru");
    DONE(pk_segment_open(cache, "file", PK_OPEN_CREATE, &file));
    DONE(pk_segment_set_len(file, 64 * PAGE));
    DONE(pk_segment_open_store(cache, &functions, "above", &above));
    cancelled(files);
    cancelled(caches);
    cancelled(stores);
    DONE(pk_segment_close(above));
    DONE(pk_segment_close(file));
    DONE(pk_cache_close(cache));
    return 0;
}
