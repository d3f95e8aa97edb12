/* Pins as locks, and their limits. */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>

static atomic_int written, unpinned;
static pk_segment *segment;

static void *write_to_a_pinned_page(void *nothing)
{
    (void)nothing;
    write_all(segment, "other", 5, 0);
    atomic_store(&written, 1);
    return NULL;
}

static void *pin_alone(void *pin)
{
    pk_pin *mine;
    DONE(pk_segment_pin(segment, 0, 10, PK_PIN_EXCLUSIVE, &mine));
    CHECK(atomic_load(&unpinned));
    memcpy(pk_pin_data_mut(mine), "alone", 5);
    *(pk_pin **)pin = mine;
    return NULL;
}

static pk_page_attributes attributes(uint64_t page)
{
    pk_page_attributes one;
    CHECK(pk_segment_attributes(segment, page * PAGE, 1, &one, 1) == 1);
    return one;
}

int main(void)
{
    pk_cache *cache = tiny_cache("lru");
    pk_pin *one, *two, *three, *many[20];
    pthread_t thread;
    unsigned char page[4096];
    DONE(pk_segment_scratch(cache, 100 * PAGE + 10, &segment));
    write_all(segment, "first", 5, 0);

    /* Readers share; a writer waits for them all. */
    DONE(pk_segment_pin(segment, 0, 5, PK_PIN_SHARED, &one));
    DONE(pk_segment_pin(segment, 2, PAGE, PK_PIN_SHARED, &two));
    CHECK(!memcmp(pk_pin_data(two), "rst", 3));
    CHECK(attributes(0) & attributes(1) & PK_PAGE_PINNED && !(attributes(2) & PK_PAGE_PINNED));
    CHECK(pk_pin_data_mut(one) == NULL && strstr(pk_last_error(), "PK_PIN_EXCLUSIVE"));
    CHECK(pthread_create(&thread, NULL, write_to_a_pinned_page, NULL) == 0);
    for (int i = 0; i < 500; i++) {
        read_all(segment, page, PAGE, (uint64_t)(i % 100) * PAGE);
        CHECK(!memcmp(pk_pin_data(one), "first", 5));
    }
    DONE(pk_unpin(two));
    CHECK(!atomic_load(&written) && !memcmp(pk_pin_data(one), "first", 5));
    DONE(pk_unpin(one));
    CHECK(pthread_join(thread, NULL) == 0 && atomic_load(&written));
    read_all(segment, page, 5, 0);
    CHECK(!memcmp(page, "other", 5));

    /* One thread pins, another lets go. */
    DONE(pk_segment_pin(segment, 0, 10, PK_PIN_SHARED, &one));
    CHECK(pthread_create(&thread, NULL, pin_alone, &three) == 0);
    atomic_store(&unpinned, 1);
    DONE(pk_unpin(one));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(attributes(0) & PK_PAGE_DIRTY && pk_pin_data(three) == pk_pin_data_mut(three));
    DONE(pk_unpin(three));

    /* What is pinned cannot be cut off; what lies around it can leave. */
    DONE(pk_segment_pin(segment, 99 * PAGE, PAGE + 10, PK_PIN_SHARED, &one));
    REFUSED(EBUSY, pk_segment_set_len(segment, 99 * PAGE));
    CHECK(pk_segment_len(segment) == 100 * 4096 + 10);
    REFUSED(EINVAL, pk_segment_pin(segment, 99 * PAGE, PAGE + 11, PK_PIN_SHARED, &two));
    REFUSED(EINVAL, pk_segment_pin(segment, 0, 0, PK_PIN_SHARED, &two));
    REFUSED(EINVAL, pk_segment_pin(segment, UINT64_MAX, 2, PK_PIN_SHARED, &two));
    REFUSED(EINVAL, pk_segment_pin(segment, 0, 1, 2, &two));
    CHECK(two == NULL);
    REFUSED(ENOMEM, pk_segment_pin(segment, 0, 50 * PAGE, PK_PIN_SHARED, &two));
    CHECK(strstr(pk_last_error(), "half of the budget"));
    DONE(pk_unpin(one));
    DONE(pk_segment_set_len(segment, 99 * PAGE));

    /* Nor can it be cut in two, which once changed bytes that were pinned; and a segment that grows
     * waits for nobody, not for a pin of its own thread either, as it once did. */
    DONE(pk_segment_pin(segment, 98 * PAGE, PAGE, PK_PIN_EXCLUSIVE, &one));
    memset(pk_pin_data_mut(one), 7, PAGE);
    REFUSED(EBUSY, pk_segment_set_len(segment, 98 * PAGE + 100));
    CHECK(((const char *)pk_pin_data(one))[PAGE - 1] == 7);
    DONE(pk_unpin(one));
    DONE(pk_segment_set_len(segment, 98 * PAGE + 100));
    DONE(pk_segment_pin(segment, 98 * PAGE, 100, PK_PIN_SHARED, &one));
    DONE(pk_segment_set_len(segment, 99 * PAGE));
    read_all(segment, page, PAGE, 98 * PAGE);
    CHECK(page[99] == 7 && page[100] == 0 && page[PAGE - 1] == 0);
    DONE(pk_unpin(one));

    /* Pins outlive the handles of segment and cache. */
    for (int i = 0; i < 5; i++) {
        DONE(pk_segment_pin(segment, (uint64_t)i * 3 * PAGE, 1, PK_PIN_EXCLUSIVE, &many[i]));
        *(char *)pk_pin_data_mut(many[i]) = (char)('a' + i);
    }
    DONE(pk_cache_close(cache));
    DONE(pk_segment_close(segment));
    for (int i = 0; i < 5; i++) {
        CHECK(*(const char *)pk_pin_data(many[i]) == 'a' + i);
        DONE(pk_unpin(many[i]));
    }
    DONE(pk_unpin(NULL));
    return 0;
}
