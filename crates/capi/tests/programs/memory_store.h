/* A store in memory, with failures on request. */
#ifndef MEMORY_STORE_H
#define MEMORY_STORE_H

#include "check.h"
#include <pthread.h>

typedef struct memory_store {
    pthread_mutex_t lock;
    unsigned char *bytes;
    size_t len, room;
    /* Errors that calls return, 0 for none; and out of how many calls one does. */
    int load_error, store_error, reserve_error, sync_error, len_error, set_len_error;
    unsigned one_in;
    uint64_t random;
    /* How often it was called. */
    int loads, stores, reserves, syncs, closes;
    int64_t generation;
    int retired_clean, retired_dirty;
    uint64_t advised_offset, advised_len;
    pk_advice advised;
    /* load claims to have read more than there was room for, or less than the store has. */
    int boasts, lacks;
} memory_store;

HELPER int memory_fails(memory_store *memory, int error)
{
    if (!error || (memory->one_in > 1 && random_below(&memory->random, memory->one_in))) return 0;
    return -error;
}

HELPER int64_t memory_len(void *context)
{
    memory_store *memory = (memory_store *)context;
    pthread_mutex_lock(&memory->lock);
    int64_t len = memory->len_error ? -memory->len_error : (int64_t)memory->len;
    pthread_mutex_unlock(&memory->lock);
    return len;
}

HELPER int64_t memory_load(void *context, uint64_t offset, void *pages, size_t len)
{
    memory_store *memory = (memory_store *)context;
    pthread_mutex_lock(&memory->lock);
    memory->loads++;
    CHECK(offset % PAGE == 0 && len % PAGE == 0 && len > 0);
    /* Whatever was in memory before must not show. */
    memset(pages, 0xee, len);
    int64_t result = memory_fails(memory, memory->load_error);
    if (!result && offset < memory->len) {
        size_t had = memory->len - offset < len ? memory->len - offset : len;
        memcpy(pages, memory->bytes + offset, had);
        result = (int64_t)had;
    }
    if (memory->boasts) result = (int64_t)len + 1;
    if (memory->lacks && result > 5) result = 5;
    pthread_mutex_unlock(&memory->lock);
    return result;
}

HELPER int memory_put(void *context, uint64_t offset, const void *bytes, size_t len)
{
    memory_store *memory = (memory_store *)context;
    pthread_mutex_lock(&memory->lock);
    memory->stores++;
    CHECK(offset % PAGE == 0 && offset + len <= memory->len);
    int result = memory_fails(memory, memory->store_error);
    if (!result) {
        memcpy(memory->bytes + offset, bytes, len);
        memory->generation++;
    }
    pthread_mutex_unlock(&memory->lock);
    return result;
}

HELPER int memory_retire(void *context, uint64_t offset, const void *bytes, size_t len, int dirty)
{
    memory_store *memory = (memory_store *)context;
    pthread_mutex_lock(&memory->lock);
    if (dirty) memory->retired_dirty++;
    else {
        memory->retired_clean++;
        size_t had = memory->len - offset < len ? memory->len - offset : len;
        CHECK(memcmp(memory->bytes + offset, bytes, had) == 0);
    }
    pthread_mutex_unlock(&memory->lock);
    return dirty ? memory_put(context, offset, bytes, len) : 0;
}

HELPER int memory_advise(void *context, uint64_t offset, uint64_t len, pk_advice advice)
{
    memory_store *memory = (memory_store *)context;
    memory->advised_offset = offset;
    memory->advised_len = len;
    memory->advised = advice;
    return 0;
}

HELPER int memory_reserve(void *context, uint64_t offset, uint64_t len)
{
    memory_store *memory = (memory_store *)context;
    (void)offset, (void)len;
    pthread_mutex_lock(&memory->lock);
    memory->reserves++;
    int result = memory_fails(memory, memory->reserve_error);
    pthread_mutex_unlock(&memory->lock);
    return result;
}

HELPER int memory_set_len(void *context, uint64_t len)
{
    memory_store *memory = (memory_store *)context;
    pthread_mutex_lock(&memory->lock);
    int result = -memory->set_len_error;
    if (!result) {
        CHECK(len <= memory->room);
        if (len > memory->len) memset(memory->bytes + memory->len, 0, len - memory->len);
        memory->len = len;
        memory->generation++;
    }
    pthread_mutex_unlock(&memory->lock);
    return result;
}

HELPER int memory_sync(void *context)
{
    memory_store *memory = (memory_store *)context;
    pthread_mutex_lock(&memory->lock);
    memory->syncs++;
    int result = memory_fails(memory, memory->sync_error);
    pthread_mutex_unlock(&memory->lock);
    return result;
}

HELPER int64_t memory_generation(void *context)
{
    memory_store *memory = (memory_store *)context;
    pthread_mutex_lock(&memory->lock);
    int64_t generation = memory->generation;
    pthread_mutex_unlock(&memory->lock);
    return generation;
}

HELPER void memory_close(void *context)
{
    ((memory_store *)context)->closes++;
}

HELPER pk_store memory_functions(memory_store *memory, size_t len, size_t room)
{
    pk_store store;
    memset(memory, 0, sizeof *memory);
    pthread_mutex_init(&memory->lock, NULL);
    memory->bytes = (unsigned char *)calloc(1, room);
    memory->len = len;
    memory->room = room;
    CHECK(memory->bytes != NULL);
    memset(&store, 0, sizeof store);
    store.struct_bytes = sizeof store;
    store.context = memory;
    store.flags = PK_STORE_SPARSE;
    store.len = memory_len;
    store.load = memory_load;
    store.store = memory_put;
    store.reserve = memory_reserve;
    store.set_len = memory_set_len;
    store.sync = memory_sync;
    store.generation = memory_generation;
    store.close = memory_close;
    return store;
}

#endif
