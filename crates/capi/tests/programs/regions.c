/* Mapped regions: what is stored through one is what is read, and the other way round.
 * regions {thread|inline} SEED */
#define _GNU_SOURCE 1
#include "memory_store.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 60, LEN = 60 * 4096 - 1000 };

static pk_fault_path path;
static uint64_t seed;
static pk_segment *segment;
static unsigned char *mapped;

/* The segment, its pages and its region against an array. */
static void against_a_model(void)
{
    static unsigned char model[LEN], buffer[LEN];
    pk_cache *cache = mapped_cache(path, "mru");
    pk_region *region, *reading, *part;
    DONE(pk_segment_scratch(cache, LEN, &segment));
    DONE(pk_segment_map(segment, 0, LEN, PK_MAP_READ_WRITE, &region));
    DONE(pk_segment_map(segment, 0, LEN, PK_MAP_READ, &reading));
    CHECK(pk_region_len(region) == LEN);
    mapped = (unsigned char *)pk_region_data(region);
    const unsigned char *read_only = (const unsigned char *)pk_region_data(reading);
    CHECK((uintptr_t)mapped % PAGE == 0 && mapped != read_only);
    for (int step = 0; step < 1500; step++) {
        size_t at = random_below(&seed, LEN), len = random_below(&seed, 3 * PAGE);
        if (len > LEN - at) len = LEN - at;
        switch (random_below(&seed, 8)) {
        case 0: case 1:
            fill_random(model + at, len, &seed);
            memcpy(mapped + at, model + at, len);
            break;
        case 2: CHECK(!memcmp(mapped + at, model + at, len)); break;
        case 3: CHECK(!memcmp(read_only + at, model + at, len)); break;
        case 4:
            fill_random(model + at, len, &seed);
            write_all(segment, model + at, len, at);
            break;
        case 5:
            read_all(segment, buffer, len, at);
            CHECK(!memcmp(buffer, model + at, len));
            break;
        case 6: /* From one place of the region to another, through the segment. */
            if (at + 2 * len <= LEN) {
                write_all(segment, mapped + at, len, at + len);
                memmove(model + at + len, model + at, len);
            } else {
                read_all(segment, mapped + at, len, 0);
                memcpy(model + at, memcpy(buffer, model, len), len);
            }
            break;
        default:
            switch (random_below(&seed, 4)) {
            case 0: DONE(pk_segment_flush(segment)); break;
            case 1: DONE(pk_segment_advise(segment, at, len, PK_DONT_NEED)); break;
            case 2: DONE(pk_cache_set_policy(cache, step % 2 ? "lru" : "mru")); break;
            default: DONE(pk_cache_set_budget(cache, (14 + random_below(&seed, 20)) * PAGE));
            }
        }
    }
    CHECK(!memcmp(mapped, model, LEN));

    /* A part of it, bound where it starts, outlives the handles of segment and cache. */
    REFUSED(EINVAL, pk_segment_map(segment, 1, 1, PK_MAP_READ, &part));
    REFUSED(EINVAL, pk_segment_map(segment, 0, 0, PK_MAP_READ, &part));
    REFUSED(EINVAL, pk_segment_map(segment, 0, LEN + 1001, PK_MAP_READ, &part));
    CHECK(part == NULL);
    DONE(pk_segment_map(segment, 7 * PAGE, 2 * PAGE, PK_MAP_READ, &part));
    DONE(pk_region_unmap(region));
    DONE(pk_region_unmap(reading));
    pk_stats stats;
    stats.struct_bytes = sizeof stats;
    DONE(pk_cache_stats(cache, &stats));
    CHECK(stats.major_faults > 0 && stats.evictions > 0 && stats.write_backs > 0);
    DONE(pk_segment_close(segment));
    DONE(pk_cache_close(cache));
    CHECK(!memcmp(pk_region_data(part), model + 7 * PAGE, 2 * PAGE));
    DONE(pk_region_unmap(part));
}

/* Private copies: the segment does not see them, and they do not see it. */
static void copy_on_write(void)
{
    memory_store memory;
    pk_store store = memory_functions(&memory, PAGES * PAGE, PAGES * PAGE);
    for (size_t i = 0; i < PAGES * PAGE; i++) memory.bytes[i] = (unsigned char)(i / PAGE);
    pk_cache *cache = mapped_cache(path, "lru");
    pk_region *region;
    unsigned char page[4096];
    DONE(pk_segment_open_store(cache, &store, NULL, &segment));
    DONE(pk_segment_map(segment, 0, PAGES * PAGE, PK_MAP_COPY_ON_WRITE, &region));
    mapped = (unsigned char *)pk_region_data(region);
    for (size_t i = 0; i < 5; i++) memset(mapped + i * 10 * PAGE, 0xaa, 100);
    for (size_t i = 0; i < PAGES; i++) {
        int changed = i % 10 == 0 && i < 50;
        CHECK(mapped[i * PAGE] == (changed ? 0xaa : i) && mapped[i * PAGE + 4095] == i);
    }
    for (size_t i = 0; i < PAGES; i++) {
        read_all(segment, page, PAGE, i * PAGE);
        CHECK(page[0] == i && page[4095] == i);
    }
    memset(page, 0xbb, PAGE);
    write_all(segment, page, PAGE, 10 * PAGE);
    write_all(segment, page, PAGE, 11 * PAGE);
    CHECK(mapped[10 * PAGE] == 0xaa && mapped[11 * PAGE] == 0xbb);
    DONE(pk_region_unmap(region));
    DONE(pk_segment_flush(segment));
    CHECK(memory.bytes[0] == 0 && memory.bytes[10 * PAGE] == 0xbb && memory.bytes[20 * PAGE] == 20);
    DONE(pk_segment_close(segment));
    DONE(pk_cache_close(cache));
    CHECK(memory.closes == 1);
    free(memory.bytes);
}

/* Pages of 64 KiB: regions start on one, come by one fault a page, and copy one as a whole. */
static void large_pages(void)
{
    enum { LARGE = 65536, ALL = 20 * LARGE };
    pk_cache_options options = tiny_options("lru");
    options.page_bytes = LARGE;
    options.budget_bytes = 12 * LARGE;
    pk_cache *cache = cache_with_regions(options, path);
    pk_region *region, *private_region;
    pk_stats stats;
    stats.struct_bytes = sizeof stats;
    CHECK(pk_cache_page_bytes(cache) == LARGE);
    DONE(pk_segment_scratch(cache, ALL - 100, &segment));
    REFUSED(EINVAL, pk_segment_map(segment, PAGE, LARGE, PK_MAP_READ, &region));
    DONE(pk_segment_map(segment, 0, ALL, PK_MAP_READ_WRITE, &region));
    /* Before Linux 6.4 there are no copies of large pages. */
    int copied = pk_segment_map(segment, LARGE, LARGE, PK_MAP_COPY_ON_WRITE, &private_region);
    CHECK(copied == 0 || copied == -EOPNOTSUPP);
    mapped = (unsigned char *)pk_region_data(region);
    unsigned char *copy = copied == 0 ? (unsigned char *)pk_region_data(private_region) : NULL;
    for (size_t at = 0; at < ALL; at += PAGE) mapped[at] = (unsigned char)(at / PAGE);
    DONE(pk_cache_stats(cache, &stats));
    CHECK(stats.major_faults + stats.prefetched_pages <= 2 * ALL / LARGE && stats.evictions > 5);
    if (copy) copy[5 * PAGE] = 0xaa;
    mapped[LARGE + 7 * PAGE] = 0xbb;
    for (size_t at = 0; at < ALL; at += PAGE) {
        int changed = at == LARGE + 7 * PAGE;
        CHECK(mapped[at] == (changed ? 0xbb : (unsigned char)(at / PAGE)));
    }
    for (size_t at = 0; copy && at < LARGE; at += PAGE)
        CHECK(copy[at] == (at == 5 * PAGE ? 0xaa : (unsigned char)((LARGE + at) / PAGE)));
    if (copy) DONE(pk_region_unmap(private_region));
    DONE(pk_region_unmap(region));
    DONE(pk_segment_close(segment));
    DONE(pk_cache_close(cache));
}

static void *store_bytes(void *number)
{
    size_t mine = (size_t)(uintptr_t)number;
    uint64_t random = seed + mine;
    unsigned char *model = (unsigned char *)calloc(1, LEN);
    for (int step = 0; step < 4000; step++) {
        size_t cell = random_below(&random, LEN / 8) * 8 + mine;
        /* Bytes of others lie beside it: none is read or stored. */
        volatile unsigned char *byte = mapped + cell;
        if (next_random(&random) % 2) *byte = model[cell] = (unsigned char)step;
        else CHECK(*byte == model[cell]);
    }
    free(model);
    return NULL;
}

static void threads(void)
{
    pk_cache *cache = mapped_cache(path, "clock");
    pk_region *region;
    pthread_t thread[2];
    DONE(pk_segment_scratch(cache, LEN, &segment));
    DONE(pk_segment_map(segment, 0, LEN, PK_MAP_READ_WRITE, &region));
    mapped = (unsigned char *)pk_region_data(region);
    for (size_t i = 0; i < 2; i++)
        CHECK(pthread_create(&thread[i], NULL, store_bytes, (void *)(uintptr_t)i) == 0);
    for (size_t i = 0; i < 2; i++) CHECK(pthread_join(thread[i], NULL) == 0);
    DONE(pk_region_unmap(region));
    DONE(pk_segment_close(segment));
    DONE(pk_cache_close(cache));
}

/* Touches that are seen of eight pages in use, in a scan of the others. */
static uint64_t touches_seen(uint64_t percent)
{
    pk_cache *cache = sampled_cache(path, "clock", percent);
    pk_region *region;
    pk_stats stats;
    stats.struct_bytes = sizeof stats;
    DONE(pk_segment_scratch(cache, LEN, &segment));
    DONE(pk_segment_map(segment, 0, LEN, PK_MAP_READ, &region));
    volatile const unsigned char *bytes = (volatile const unsigned char *)pk_region_data(region);
    for (size_t i = 0; i < 4000; i++) {
        CHECK(bytes[random_below(&seed, 8) * PAGE] == 0 && bytes[(24 + i * 5 % 36) * PAGE] == 0);
    }
    DONE(pk_cache_stats(cache, &stats));
    DONE(pk_region_unmap(region));
    DONE(pk_segment_close(segment));
    DONE(pk_cache_close(cache));
    CHECK(stats.evictions > 1000 && (stats.unmapped_pages == 0) == (percent == PK_NO_SAMPLING));
    CHECK(stats.touches_seen <= stats.unmapped_pages);
    return stats.touches_seen;
}

static void sampling(void)
{
    uint64_t few = touches_seen(5), many = touches_seen(100);
    CHECK(touches_seen(PK_NO_SAMPLING) == 0 && few > 0 && many > few);
}

/* What must end a process, and with which signal. */
enum { STORE_TO_READ, TOUCH_BEHIND_THE_END, TOUCH_WHAT_CANNOT_BE_LOADED, TOUCH_IN_A_CHILD };

static void end(int how)
{
    memory_store memory;
    pk_store store = memory_functions(&memory, 4 * PAGE, 4 * PAGE);
    pk_cache *cache = mapped_cache(path, "lru");
    pk_region *region;
    DONE(pk_segment_open_store(cache, &store, NULL, &segment));
    DONE(pk_segment_map(segment, 0, 4 * PAGE, how == STORE_TO_READ ? PK_MAP_READ : PK_MAP_READ_WRITE,
                        &region));
    volatile unsigned char *bytes = (volatile unsigned char *)pk_region_data(region);
    if (how == TOUCH_WHAT_CANNOT_BE_LOADED) memory.load_error = EIO;
    /* A call, before which the error has to be in memory. */
    CHECK(pk_segment_len(segment) == 4 * 4096);
    if (how != TOUCH_WHAT_CANNOT_BE_LOADED) CHECK(bytes[0] == 0);
    switch (how) {
    case STORE_TO_READ: bytes[0] = 1; break;
    case TOUCH_BEHIND_THE_END:
        DONE(pk_segment_set_len(segment, PAGE));
        CHECK(bytes[0] == 0);
        bytes[2 * PAGE] = 1;
        break;
    case TOUCH_WHAT_CANNOT_BE_LOADED: bytes[3 * PAGE] = 1; break;
    case TOUCH_IN_A_CHILD: {
        int status;
        pid_t child = fork();
        if (child == 0) {
            /* It got the parent's address, where it has nothing mapped, or something of its own. */
            CHECK(pk_region_data(region) == NULL && strstr(pk_last_error(), "after fork"));
            REFUSED(EOWNERDEAD, pk_region_len(region));
            DONE(pk_region_unmap(region));
            bytes[0] = 1;
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        CHECK(bytes[0] == 0 && pk_region_unmap(region) == 0);
        raise(WTERMSIG(status));
    }
    }
}

static void ends(int how, int signal)
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        end(how);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != signal) {
        fprintf(stderr, "end %d: status %#x, not signal %d\n", how, status, signal);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    path = strcmp(argv[1], "thread") ? PK_FAULT_INLINE : PK_FAULT_THREAD;
    seed = strtoull(argv[2], NULL, 10);
    pk_cache *possible = mapped_cache(path, "lru");
    DONE(pk_cache_close(possible));
    ends(STORE_TO_READ, SIGSEGV);
    ends(TOUCH_BEHIND_THE_END, SIGBUS);
    ends(TOUCH_WHAT_CANNOT_BE_LOADED, SIGBUS);
    ends(TOUCH_IN_A_CHILD, SIGSEGV);
    against_a_model();
    copy_on_write();
    large_pages();
    threads();
    sampling();
    return 0;
}
