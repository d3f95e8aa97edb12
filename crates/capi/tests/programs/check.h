/* What the test programs share: checks that name the place, random numbers, policies. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <pagekeeper.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE ((size_t)PK_PAGE_BYTES)
/* Some twenty frames. */
#define TINY (96u << 10)
/* The exit code of a test that cannot be made here. */
#define SKIPPED 77

/* Static, not inline only: not every program uses all. */
#define HELPER static inline

#define CHECK(condition)                                                                        \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__,         \
                    #condition, pk_last_error());                                               \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

HELPER long long check_done(long long result, const char *call, const char *file, int line)
{
    if (result < 0) {
        fprintf(stderr, "%s:%d: %s: %lld: %s\n", file, line, call, result, pk_last_error());
        exit(1);
    }
    return result;
}

/* A call that succeeds; its result. */
#define DONE(call) check_done((long long)(call), #call, __FILE__, __LINE__)

/* The message begins with the function's name, and says more than that. */
HELPER void check_refused(long long result, int error, const char *call, const char *file, int line)
{
    size_t name = strcspn(call, "(");
    const char *message = pk_last_error();
    if (result != -(long long)error || strncmp(message, call, name) != 0 ||
        strncmp(message + name, ": ", 2) != 0 || strlen(message + name) < 8) {
        fprintf(stderr, "%s:%d: %s: %lld, not %d; last error: %s\n", file, line, call, result,
                -error, message);
        exit(1);
    }
}

/* A call that fails with this error. */
#define REFUSED(error, call) \
    check_refused((long long)(call), error, #call, __FILE__, __LINE__)

/* SplitMix64. */
HELPER uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

HELPER uint64_t random_below(uint64_t *state, uint64_t end)
{
    return next_random(state) % (end ? end : 1);
}

/* Options of a small cache that does nothing by itself. */
HELPER pk_cache_options tiny_options(const char *policy)
{
    pk_cache_options options;
    memset(&options, 0, sizeof options);
    options.struct_bytes = sizeof options;
    options.budget_bytes = TINY;
    options.policy = policy;
    options.write_back_period_ms = PK_NEVER;
    return options;
}

HELPER pk_cache *tiny_cache(const char *policy)
{
    pk_cache_options options = tiny_options(policy);
    pk_cache *cache;
    DONE(pk_cache_create(&options, &cache));
    return cache;
}

/* A cache with regions; ends the test where there can be none. */
HELPER pk_cache *cache_with_regions(pk_cache_options options, pk_fault_path path)
{
    pk_cache *cache;
    options.fault_path = path;
    int result = pk_cache_create(&options, &cache);
    if (result == -EPERM || result == -EACCES || result == -ENOSYS || result == -EINVAL ||
        result == -EOPNOTSUPP) {
        printf("skipped: %s\n", pk_last_error());
        exit(SKIPPED);
    }
    DONE(result);
    CHECK(pk_cache_fault_path(cache) == (int)path);
    return cache;
}

/* A small one. */
HELPER pk_cache *sampled_cache(pk_fault_path path, const char *policy, uint64_t percent)
{
    pk_cache_options options = tiny_options(policy);
    options.sampling_percent = percent;
    return cache_with_regions(options, path);
}

HELPER pk_cache *mapped_cache(pk_fault_path path, const char *policy)
{
    return sampled_cache(path, policy, 0);
}

/* Reads and writes of which none is short. */
HELPER void read_all(const pk_segment *segment, void *buffer, size_t len, uint64_t offset)
{
    CHECK(pk_segment_read_at(segment, buffer, len, offset) == (int64_t)len);
}

HELPER void write_all(const pk_segment *segment, const void *buffer, size_t len, uint64_t offset)
{
    CHECK(pk_segment_write_at(segment, buffer, len, offset) == (int64_t)len);
}

HELPER void fill_random(void *buffer, size_t len, uint64_t *random)
{
    for (size_t i = 0; i < len; i++) ((unsigned char *)buffer)[i] = (unsigned char)next_random(random);
}

#endif
