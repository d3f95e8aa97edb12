/* Random operations on a segment, and on an array: the same bytes, always.
 * model {file|fd|scratch|store} POLICY SEED OPERATIONS [PAGE_BYTES] */
#define _GNU_SOURCE 1
#include "memory_store.h"
#include <fcntl.h>
#include <unistd.h>

enum { PAGES = 60 };
#define LEN_MAX (PAGES * PAGE)

static unsigned char model[LEN_MAX], buffer[LEN_MAX];
static size_t model_len;
static uint64_t seed, page_bytes = PK_PAGE_BYTES;

static size_t any_offset(void)
{
    switch (random_below(&seed, 3)) {
    case 0: return random_below(&seed, LEN_MAX);
    case 1: return random_below(&seed, PAGES) * PAGE;
    default: return random_below(&seed, 3 * PAGE);
    }
}

static size_t any_len(size_t offset)
{
    size_t len;
    switch (random_below(&seed, 3)) {
    case 0: len = random_below(&seed, 16); break;
    case 1: len = random_below(&seed, 2 * PAGE); break;
    default: len = random_below(&seed, 20) * PAGE; break;
    }
    return offset + len > LEN_MAX ? LEN_MAX - offset : len;
}

static void play(pk_cache *cache, pk_segment *segment, const char *policy)
{
    size_t offset = any_offset(), len = any_len(offset), few = len < 2 * PAGE ? len : 2 * PAGE;
    size_t behind = model_len > offset ? model_len - offset : 0;
    pk_pin *pin;
    switch (random_below(&seed, 22)) {
    case 0: case 1: case 2: case 3: case 4: case 5: {
        size_t had = behind < len ? behind : len;
        memset(buffer, 0x55, len);
        CHECK((size_t)DONE(pk_segment_read_at(segment, buffer, len, offset)) == had);
        CHECK(memcmp(buffer, model + offset, had) == 0);
        for (size_t i = had; i < len; i++) CHECK(buffer[i] == 0x55);
        break;
    }
    case 6: case 7: case 8: case 9: case 10: case 11:
        fill_random(buffer, len, &seed);
        write_all(segment, buffer, len, offset);
        if (len && offset + len > model_len) {
            if (offset > model_len) memset(model + model_len, 0, offset - model_len);
            model_len = offset + len;
        }
        memcpy(model + offset, buffer, len);
        break;
    case 12:
        DONE(pk_segment_set_len(segment, offset));
        if (offset > model_len) memset(model + model_len, 0, offset - model_len);
        model_len = offset;
        break;
    case 13: DONE(pk_segment_flush(segment)); break;
    case 14: DONE(pk_segment_write_back(segment, offset, len)); break;
    case 15:
        if (few == 0 || few > behind) {
            REFUSED(EINVAL, pk_segment_pin(segment, offset, few, PK_PIN_SHARED, &pin));
            CHECK(pin == NULL && pk_pin_data(pin) == NULL);
            break;
        }
        DONE(pk_segment_pin(segment, offset, few, PK_PIN_SHARED, &pin));
        /* It stays, whatever else is read. */
        read_all(segment, buffer, model_len, 0);
        CHECK(memcmp(buffer, model, model_len) == 0);
        CHECK(memcmp(pk_pin_data(pin), model + offset, few) == 0);
        DONE(pk_unpin(pin));
        break;
    case 16:
        if (few == 0 || few > behind) break;
        DONE(pk_segment_pin(segment, offset, few, PK_PIN_EXCLUSIVE, &pin));
        CHECK(memcmp(pk_pin_data(pin), model + offset, few) == 0);
        fill_random(pk_pin_data_mut(pin), few, &seed);
        memcpy(model + offset, pk_pin_data(pin), few);
        DONE(pk_unpin(pin));
        break;
    case 17: DONE(pk_segment_prefetch(segment, offset, len)); break;
    case 18:
        DONE(pk_segment_advise(segment, offset, len,
                               random_below(&seed, 2) ? PK_WILL_NEED : PK_DONT_NEED));
        break;
    case 19: {
        pk_page_attributes pages[PAGES];
        int64_t known = DONE(pk_segment_attributes(segment, offset, len, pages, PAGES));
        size_t end = len < behind ? offset + len : offset + behind;
        size_t touched =
            end > offset ? (end + page_bytes - 1) / page_bytes - offset / page_bytes : 0;
        CHECK((size_t)known == touched);
        for (int64_t i = 0; i < known; i++) {
            CHECK(!(pages[i] & PK_PAGE_PINNED));
            CHECK(!(pages[i] & PK_PAGE_REFERENCED) || pages[i] & PK_PAGE_RESIDENT);
        }
        break;
    }
    case 20: DONE(pk_cache_set_budget(cache, (9 + random_below(&seed, 30)) * page_bytes)); break;
    case 21: DONE(pk_cache_set_policy(cache, random_below(&seed, 2) ? policy : "clock")); break;
    }
    CHECK((size_t)pk_segment_len(segment) == model_len);
}

int main(int argc, char **argv)
{
    CHECK(argc == 5 || argc == 6);
    const char *kind = argv[1], *policy = argv[2];
    seed = strtoull(argv[3], NULL, 10);
    int operations = atoi(argv[4]);
    char path[] = "model-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    memory_store memory;
    pk_store store = memory_functions(&memory, 0, LEN_MAX);
    pk_cache_options options = tiny_options(policy);
    pk_cache *cache;
    pk_segment *segment;
    options.workers = seed % 2 ? PK_NO_WORKERS : 2;
    if (argc > 5) {
        /* Larger pages; as many fit. */
        page_bytes = strtoull(argv[5], NULL, 10);
        options.page_bytes = page_bytes;
        options.budget_bytes = 24 * page_bytes;
    }
    DONE(pk_cache_create(&options, &cache));
    CHECK((uint64_t)pk_cache_page_bytes(cache) == page_bytes);
    if (!strcmp(kind, "file")) {
        DONE(pk_segment_open(cache, path, PK_OPEN_WRITE, &segment));
    } else if (!strcmp(kind, "fd")) {
        DONE(pk_segment_open_fd(cache, fd, PK_OPEN_WRITE, "a file", &segment));
    } else if (!strcmp(kind, "scratch")) {
        DONE(pk_segment_scratch(cache, 0, &segment));
    } else {
        DONE(pk_segment_open_store(cache, &store, "memory", &segment));
    }
    for (int i = 0; i < operations; i++) play(cache, segment, policy);
    read_all(segment, buffer, model_len, 0);
    CHECK(memcmp(buffer, model, model_len) == 0);
    DONE(pk_cache_close(cache));
    DONE(pk_segment_flush(segment));
    if (!strcmp(kind, "store")) {
        CHECK(memory.len == model_len && memcmp(memory.bytes, model, model_len) == 0);
        CHECK(memory.loads && memory.stores && memory.reserves && memory.syncs);
    } else if (strcmp(kind, "scratch")) {
        memset(buffer, 0, sizeof buffer);
        CHECK((size_t)pread(fd, buffer, LEN_MAX, 0) == model_len);
        CHECK(memcmp(buffer, model, model_len) == 0);
    }
    DONE(pk_segment_close(segment));
    CHECK(memory.closes == !strcmp(kind, "store"));
    close(fd);
    unlink(path);
    free(memory.bytes);
    return 0;
}
