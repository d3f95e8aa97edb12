/*
 * Pagekeeper: a page cache of a program's own, with the policy that it needs.
 *
 * A cache (pk_cache) has a budget and a policy. In it are segments (pk_segment): files, working
 * memory larger than the machine's, or whatever stands behind functions of the program (pk_store).
 * Stores can be laid upon others (pk_layer): compressed, mirrored, logged, discardable. Segments are
 * read and written at offsets, pinned (pk_pin), and mapped (pk_region). docs/c-api.md has an example
 * of every function.
 *
 * RESULTS. A function returns 0, or what it counted, or a negative error number of <errno.h>:
 * -ENOENT and so on. pk_last_error() has the words: which call, what is wrong, what to do. Besides
 * the errors that stand at each function, all return -EINVAL for an argument that is null or makes
 * no sense, -EOWNERDEAD in a forked child of the process that made the cache (except for closing;
 * those that return pointers return null, as for every error),
 * and -ENOTRECOVERABLE if the library itself is at fault (pk_last_error() says how to report it;
 * flush what you can, and end).
 *
 * THREADS. A function that takes a handle as a pointer to const may be called by any threads at
 * once, with one handle or several. One that takes it without const ends the handle: it must be
 * the last use. No function may be called in a signal handler, and none may be left by longjmp or
 * a C++ exception out of a function of a pk_store. None is a cancellation point, nor is what it calls
 * of a pk_store: pthread_cancel(3) waits until the function has returned. (It may not be allowed at any
 * instruction, PTHREAD_CANCEL_ASYNCHRONOUS.)
 *
 * LIFETIME. A cache ends with the last of its handles, segments, pins and regions, in whichever
 * order they are closed, and a segment with the last of its handles, pins and regions.
 *
 * SIZES. Names say their units. A page has PK_PAGE_BYTES bytes unless the cache
 * was made with others. Structs that may grow begin with
 * struct_bytes: set it to sizeof the struct, and all that is not used to zero.
 *
 * FAULTS. Freed handles, pointers to too little memory, and text without an end are not found out.
 *
 * This file is generated: change crates/capi/src, then
 * PAGEKEEPER_HEADER=overwrite cargo test --release -p pagekeeper-capi --test header
 *
 * MIT or Apache-2.0, at your choice.
 */


#ifndef PAGEKEEPER_H
#define PAGEKEEPER_H

#include <stddef.h>
#include <stdint.h>

/** Version of this header. */
#define PK_VERSION "0.1.0"
#define PK_VERSION_MAJOR 0
#define PK_VERSION_MINOR 1
#define PK_VERSION_PATCH 0

/**
 * Bytes in a page, unless pk_cache_options.page_bytes says otherwise.
 */
#define PK_PAGE_BYTES 4096

/**
 * Fewest pages that a budget has room for, whatever their size.
 */
#define PK_BUDGET_PAGES_MIN 8

/**
 * As a length: up to the end of the segment.
 */
#define PK_TO_END UINT64_MAX

/**
 * As `workers`: no thread. Whoever needs a page fetches ahead as well.
 */
#define PK_NO_WORKERS -1

/**
 * As `write_back_period_ms`: on eviction and flush only.
 */
#define PK_NEVER UINT32_MAX

/**
 * As `sampling_percent`: no touch of a mapped region is made visible; policies see misses only.
 */
#define PK_NO_SAMPLING UINT64_MAX

/**
 * In pk_store.flags: parts of the store may have no space yet; reserve is called before a page
 * becomes dirty for the first time.
 */
#define PK_STORE_SPARSE 1

/**
 * A cache of pages within a budget.
 */
typedef struct pk_cache pk_cache;

/**
 * A store, or one made of others, to be laid under a segment (pk_segment_open_layer()) or under
 * another layer, once. The handle stays, to ask and to tell; what it stands for lives as long as
 * anything upon it.
 */
typedef struct pk_layer pk_layer;

/**
 * Bytes of a segment that stay in memory until pk_unpin(), and never fault.
 */
typedef struct pk_pin pk_pin;

/**
 * A range of a segment, bound into the address space.
 */
typedef struct pk_region pk_region;

/**
 * Pages with a store behind them, in a cache.
 *
 * Reads and writes mean what pread(2) and pwrite(2) mean. A write is seen by every later read and
 * region of the segment in this process, and is in the store after pk_segment_flush(). A read sees
 * each page as it was before or after a write, never half.
 */
typedef struct pk_segment pk_segment;

/**
 * How pages of mapped regions are brought in when they are touched: PK_FAULT_EXPLICIT,
 * PK_FAULT_THREAD or PK_FAULT_INLINE.
 */
typedef uint32_t pk_fault_path;

/**
 * What a cache is made with. Zero stands for the usual value of each member but the first two.
 */
typedef struct pk_cache_options {
  /**
   * sizeof(pk_cache_options).
   */
  size_t struct_bytes;
  /**
   * All that the cache may use: frames, state of pages, buffers. PK_BUDGET_PAGES_MIN pages at least:
   * 32 KiB of the usual ones.
   */
  uint64_t budget_bytes;
  /**
   * Bytes in a page: what is fetched, written back, evicted and pinned as one. A power of two
   * from 4096 to 2 MiB. Large pages cost less to find, to fault
   * in and to decide on, and more memory and I/O where little of each is used. 0: 4096.
   */
  uint64_t page_bytes;
  /**
   * Which page leaves when room is needed: "mru", "lirs:hir=0.05", or the path of a program that
   * ends with ".hipec" (`pagekeeper policies` lists them). Null: "lru".
   */
  const char *policy;
  /**
   * PK_FAULT_EXPLICIT, PK_FAULT_THREAD or PK_FAULT_INLINE.
   */
  pk_fault_path fault_path;
  /**
   * Threads that fetch ahead, so that nobody waits for what is not needed yet. 0: one.
   * PK_NO_WORKERS: none.
   */
  int32_t workers;
  /**
   * Most pages that one step of read-ahead fetches. 0: as many as make 1 MiB. 1: no read-ahead.
   */
  uint32_t read_ahead_pages_max;
  /**
   * How often dirty pages are written back in the background, and changes of files by others
   * looked for. 0: every 5,000 ms. PK_NEVER: not at all.
   */
  uint32_t write_back_period_ms;
  /**
   * Where scratch segments keep what does not fit into the budget; no file system in memory.
   * Null: $TMPDIR, or /tmp.
   */
  const char *scratch_directory;
  /**
   * Called by pk_cache_set_budget() with the new budget, on its thread: the program may trade
   * memory for time then. It must not call pk_cache_set_budget(). Null: nobody is told.
   */
  void (*on_budget_change)(void *context, uint64_t budget_bytes);
  /**
   * What on_budget_change is called with.
   */
  void *on_budget_change_context;
  /**
   * The most that seeing touches of mapped regions may cost, in percent of the time that misses
   * take, up to 100. Reads, writes and pins are seen for nothing. 0: 25. PK_NO_SAMPLING: none are
   * seen. (64 bits, so that no padding is left where a later member would be.)
   */
  uint64_t sampling_percent;
  /**
   * PK_TRANSLATION_MAPPED or PK_TRANSLATION_TABLE. (64 bits, as above.)
   */
  uint64_t translation;
  /**
   * Not 0: processors of this machine are kept from halting while more than a thousand misses a second are
   * waited for. It is for virtual machines that take long to wake a processor (`pagekeeper doctor` says
   * so: soon-awake), where a miss costs less then. It concerns all of the machine, takes time of the host's,
   * and needs the right to open /dev/cpu_dma_latency: without that, and elsewhere, nothing changes. (64
   * bits, as above.)
   */
  uint64_t keep_awake;
} pk_cache_options;

/**
 * How a range will be used: PK_WILL_NEED, PK_DONT_NEED, PK_DISCARDABLE or PK_NEEDED.
 */
typedef uint32_t pk_advice;

/**
 * What stands behind a segment: functions of the program, for pages that are compressed, logged,
 * replicated, or on another machine.
 *
 * The cache calls them from whichever thread needs a page (threads of the cache among them), from
 * several at once, and never for the same page at the same time. It holds no lock of its own
 * meanwhile. They may block, allocate, and use other caches; they must not use any segment of the
 * cache that calls them, nor its budget (pk_cache_set_budget()), nor wait for a thread that does,
 * nor fork. Such a use is refused with -EDEADLK, from the page on that is not just read out of
 * memory; one by a region, or by another thread, waits for ever. In sync and advise other
 * segments than their own may be used, and the budget changed; in advise their own is refused. Nor
 * do they need a lock that a thread holds where it uses that cache: any use may write any page back.
 * What a store keeps beside its pages, checksums or a log, lies in a cache of its own, or in a file.
 * Under PK_FAULT_INLINE they may be called in a signal handler of a thread that touched a region: then
 * they must not need a lock that such a thread may hold. They return by returning: no longjmp, no C++
 * exception.
 *
 * A function fails by returning a negative error number (-EIO and so on), which comes back to
 * whoever needed the page; under a mapping it is SIGBUS. A page that cannot be stored stays in
 * memory, dirty, and the error is reported by the next flush.
 *
 * Zero stands for "there is none" in all members but struct_bytes, len, load and store.
 */
typedef struct pk_store {
  /**
   * sizeof(pk_store).
   */
  size_t struct_bytes;
  /**
   * What the functions are called with.
   */
  void *context;
  /**
   * PK_STORE_SPARSE, or 0.
   */
  uint32_t flags;
  /**
   * Returns the store's length in bytes. Where a store has become longer and this fails then, so does the
   * call that made it longer, and the segment may be longer all the same.
   */
  int64_t (*len)(void *context);
  /**
   * Fills len bytes at pages with the store's content from byte offset on; both are multiples of
   * the cache's page_bytes, or, where the store is a layer with another upon it (pk_layer_functions()),
   * of 4096 only, here and in all that follows: layers know pages of 4096 bytes. Returns how many
   * bytes the store had there, less than len only at its end; the rest counts as zeros. Less in front
   * of its end, or more than len, is -EIO. Several pages may be asked for at once; if that fails, those
   * that somebody waits for are asked for alone.
   */
  int64_t (*load)(void *context, uint64_t offset, void *pages, size_t len);
  /**
   * Stores len bytes from byte offset on, a multiple as in load; they never reach behind the store's
   * length. The pages count as clean when this returns 0: load finds them from then on. Durable they
   * need only be after sync.
   */
  int (*store)(void *context, uint64_t offset, const void *bytes, size_t len);
  /**
   * Pages leave memory, or are likely to, soon: as store, of dirty ones in its place, and of clean
   * ones (dirty is 0) too, whose content is what load gave or this or store was given. For a
   * store that keeps them where they are found sooner, compressed for instance. None: dirty ones
   * go to store, and clean ones nowhere.
   */
  int (*retire)(void *context, uint64_t offset, const void *bytes, size_t len, int dirty);
  /**
   * The program says of whole pages that they can be made anew (PK_DISCARDABLE) or no longer can
   * (PK_NEEDED). None: -EOPNOTSUPP.
   */
  int (*advise)(void *context, uint64_t offset, uint64_t len, pk_advice advice);
  /**
   * Makes sure that storing this range cannot fail for lack of space; -ENOSPC if it could.
   */
  int (*reserve)(void *context, uint64_t offset, uint64_t len);
  /**
   * Sets the length; what is gained reads as zeros. None: the length is fixed.
   */
  int (*set_len)(void *context, uint64_t len);
  /**
   * Makes durable what was stored. None: it is when it is stored.
   */
  int (*sync)(void *context);
  /**
   * Returns a number that differs after every change of the content, by store as by others. If
   * it is not the one that the cache's own calls left, somebody else changed the content, and
   * clean pages are dropped (pk_segment_refresh()). None: only a change of the length is seen.
   */
  int64_t (*generation)(void *context);
  /**
   * Called once, when nothing uses the store any more: the context may be freed. Not called in
   * forked children, nor if pk_segment_open_store() or pk_layer_functions() fails.
   */
  void (*close)(void *context);
} pk_store;

/**
 * Which of two mirrored stores: PK_FIRST or PK_SECOND.
 */
typedef uint32_t pk_side;

/**
 * How a range is pinned: PK_PIN_SHARED or PK_PIN_EXCLUSIVE.
 */
typedef uint32_t pk_pin_mode;

/**
 * What may be done in a region: PK_MAP_READ, PK_MAP_READ_WRITE or PK_MAP_COPY_ON_WRITE.
 */
typedef uint32_t pk_protection;

/**
 * How a file is opened: PK_OPEN_READ, or PK_OPEN_WRITE, PK_OPEN_CREATE and PK_OPEN_TRUNCATE joined
 * by |.
 */
typedef uint32_t pk_open_flags;

/**
 * When dirty pages are written back: PK_WRITE_BACK_ANY_TIME, PK_WRITE_BACK_ON_COMMIT or
 * PK_WRITE_BACK_WHEN_FULL.
 */
typedef uint32_t pk_write_back_mode;

/**
 * What is known of a page: PK_PAGE_RESIDENT, _DIRTY, _BUSY, _PINNED and _REFERENCED joined by |.
 */
typedef uint32_t pk_page_attributes;

/**
 * What a cache counted since it was made.
 */
typedef struct pk_stats {
  /**
   * sizeof(pk_stats), set by the caller.
   */
  size_t struct_bytes;
  /**
   * The budget.
   */
  uint64_t budget_bytes;
  /**
   * Pages fetched because a reference needed them.
   */
  uint64_t major_faults;
  /**
   * Faults on pages that were in memory, unmapped.
   */
  uint64_t minor_faults;
  /**
   * First writes to clean pages.
   */
  uint64_t write_faults;
  /**
   * Pages evicted.
   */
  uint64_t evictions;
  /**
   * Pages written back.
   */
  uint64_t write_backs;
  /**
   * Bytes fetched from stores.
   */
  uint64_t read_bytes;
  /**
   * Bytes written to stores.
   */
  uint64_t written_bytes;
  /**
   * Major faults on pages that were evicted before.
   */
  uint64_t refaults;
  /**
   * Pages fetched ahead of need.
   */
  uint64_t prefetched_pages;
  /**
   * Of these, pages that left without being known to be used.
   */
  uint64_t prefetch_wasted_pages;
  /**
   * Private copies of pages (PK_MAP_COPY_ON_WRITE) at their most.
   */
  uint64_t private_pages_max;
  /**
   * Faults answered with SIGBUS.
   */
  uint64_t failed_faults;
  /**
   * Time in decisions, summed over threads, in nanoseconds.
   */
  uint64_t policy_ns;
  /**
   * Time reading and writing stores.
   */
  uint64_t io_ns;
  /**
   * Time changing mappings.
   */
  uint64_t kernel_ns;
  /**
   * Pages unmapped so that their next touch is seen.
   */
  uint64_t unmapped_pages;
  /**
   * Touches that sampling is charged with: of these pages, and of the few that were not mapped
   * for another reason. Two cost about as much as one miss.
   */
  uint64_t touches_seen;
} pk_stats;

/**
 * How the bytes of a page are found: PK_TRANSLATION_MAPPED or PK_TRANSLATION_TABLE.
 */
typedef uint32_t pk_translation;

/**
 * Never: segments are read, written and pinned, but not mapped. Needs nothing of the kernel.
 */
#define PK_FAULT_EXPLICIT 0

/**
 * By a thread of the cache. System calls on regions work as well, where the user may have a full
 * userfaultfd (`pagekeeper doctor` says).
 */
#define PK_FAULT_THREAD 1

/**
 * By the thread that touched the page, in a handler of SIGBUS: faster, and there for every user
 * (x86-64). Such a thread has 64 KiB of its stack free, does not block SIGBUS, and holds no lock
 * that an allocator or a pk_store needs. A system call on a page that is not there fails with
 * EFAULT: give it pinned pages. A SIGBUS handler of the program is installed before the cache is
 * made; it gets what is not ours.
 */
#define PK_FAULT_INLINE 2

/**
 * By their place: for segments that are mapped, or pinned many pages at once.
 */
#define PK_TRANSLATION_MAPPED 0

/**
 * By a table: for segments that are read and written by calls alone, and pinned page by page. Memory of
 * a page that leaves is the next page's, so misses and scans cost less, and frames lie in huge pages
 * where the machine has them. Needs PK_FAULT_EXPLICIT.
 */
#define PK_TRANSLATION_TABLE 1

/**
 * The one that was named first.
 */
#define PK_FIRST 0

/**
 * The other one.
 */
#define PK_SECOND 1

/**
 * For reading, beside others that read.
 */
#define PK_PIN_SHARED 0

/**
 * For reading and writing, alone: waits until nobody else reads or writes the pages. They are
 * dirty from then on.
 */
#define PK_PIN_EXCLUSIVE 1

/**
 * Read; a store raises SIGSEGV.
 */
#define PK_MAP_READ 0

/**
 * Read and write: stores are writes of the segment.
 */
#define PK_MAP_READ_WRITE 1

/**
 * Read and write: a store changes a private copy of the page, all of it however large, which lives
 * as long as the region, takes memory of the budget and never leaves it: more of them than the budget
 * has room for are memory beyond it (pk_stats.private_pages_max). Where a page has none, the segment's
 * content shows, also what is written later.
 */
#define PK_MAP_COPY_ON_WRITE 2

/**
 * For reading.
 */
#define PK_OPEN_READ 0

/**
 * For reading and writing.
 */
#define PK_OPEN_WRITE 1

/**
 * Made if it does not exist; for writing, too.
 */
#define PK_OPEN_CREATE 2

/**
 * Emptied first; for writing, too.
 */
#define PK_OPEN_TRUNCATE 4

/**
 * Soon: it is fetched.
 */
#define PK_WILL_NEED 0

/**
 * Not soon: its clean pages leave memory.
 */
#define PK_DONT_NEED 1

/**
 * What its whole pages hold can be made anew by the store: they need not be written back.
 */
#define PK_DISCARDABLE 2

/**
 * Takes that back: what its pages hold from now on is kept.
 */
#define PK_NEEDED 3

/**
 * When room is needed, in the background, and when the program asks for it.
 */
#define PK_WRITE_BACK_ANY_TIME 0

/**
 * Only when the program asks for it.
 */
#define PK_WRITE_BACK_ON_COMMIT 1

/**
 * At any time, and a page at once when a write reaches its end.
 */
#define PK_WRITE_BACK_WHEN_FULL 2

/**
 * In memory, its content valid.
 */
#define PK_PAGE_RESIDENT 1

/**
 * Its content is newer than the store's.
 */
#define PK_PAGE_DIRTY 2

/**
 * On its way in or out, or being written back.
 */
#define PK_PAGE_BUSY 4

/**
 * Pinned: it cannot leave.
 */
#define PK_PAGE_PINNED 8

/**
 * Known to have been used since it was brought in, not only fetched ahead.
 */
#define PK_PAGE_REFERENCED 16

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Makes a cache.
 *
 * options: with struct_bytes and budget_bytes at least. cache: where its handle is put; null if
 * the call fails. Close it with pk_cache_close().
 *
 * Errors: -EINVAL: there is no such policy, or it runs in the simulator alone; the size of pages is
 * none, or the budget is less than PK_BUDGET_PAGES_MIN of them; -E2BIG: the program was built for a later version of the library and uses what this one lacks; those of
 * memfd_create(2) and mmap(2); -ENOMEM also where address space is limited (RLIMIT_AS): it takes 1.6 GB of
 * that, 5.7 GB with PK_TRANSLATION_TABLE, little of it memory. For PK_FAULT_THREAD and PK_FAULT_INLINE also
 * those of userfaultfd(2), and -EBUSY: the process has another SIGBUS handler of Pagekeeper's.
 *
 * Each segment in which something is touched takes address space as well: 16 MiB, or as much as it is
 * long, up to 1 GiB for each GiB that is touched, rounded up to a power of two (once it grew, up to 1.6 GiB
 * for the first); 2 MiB for each GiB with PK_TRANSLATION_TABLE. Who touches it where there is no more gets
 * -ENOMEM.
 *
 * A cache has threads of its own (but for PK_NO_WORKERS with PK_NEVER and PK_FAULT_EXPLICIT, and without
 * keep_awake), which live until it ends (pk_cache_close()). They block all signals that others send, which
 * are for the program's threads. So a program whose main thread leaves by pthread_exit(3) closes the cache
 * first: else the process stays when its own threads have ended, and SIGTERM waits for ever for one that
 * takes it.
 *
 * Threads: any, with 64 KiB of stack; 128 KiB where policy is a program's file (.hipec), here and in
 * pk_cache_set_policy().
 */
int pk_cache_create(const struct pk_cache_options *options,
                    struct pk_cache **cache);

/**
 * Closes a handle of a cache; null is no handle, and fine. With the last of its handles, segments,
 * pins and regions the cache ends; its threads have ended when this returns then.
 *
 * Returns 0. In a forked child it frees the child's copy and touches nothing of the parent's.
 *
 * Threads: the handle is not used any more.
 */
int pk_cache_close(struct pk_cache *cache);

/**
 * The budget in bytes.
 *
 * Threads: any.
 */
int64_t pk_cache_budget(const struct pk_cache *cache);

/**
 * Bytes in a page: what pk_cache_options.page_bytes said.
 *
 * Threads: any.
 */
int64_t pk_cache_page_bytes(const struct pk_cache *cache);

/**
 * Changes the budget. Pages beyond it leave before this returns, as far as they can: what is
 * pinned, or cannot be written back, stays until it can. Less than PK_BUDGET_PAGES_MIN pages is that
 * many, and pk_cache_budget() says so. on_budget_change is called, with what the budget is then.
 * pk_layer_compressed() has at most half of the budget: what it keeps beyond that is written to the layer
 * below.
 *
 * Errors: -EINVAL: it is 0; -EDEADLK: in a function of a pk_store that the cache calls (other than sync and
 * advise).
 *
 * Threads: any.
 */
int pk_cache_set_budget(const struct pk_cache *cache,
                        uint64_t budget_bytes);

/**
 * The policy that decides now, as it was asked for.
 *
 * text: gets the words and a NUL, cut off at text_bytes; may be null if text_bytes is 0. Returns
 * the length of the words without the NUL, as snprintf(3) does: they were cut off if that is
 * text_bytes or more.
 *
 * Threads: any.
 */
int64_t pk_cache_policy(const struct pk_cache *cache, char *text, size_t text_bytes);

/**
 * Another policy decides from now on. Pages stay where they are, in memory or not.
 *
 * policy: as pk_cache_options.policy. Returns how many pages are in memory.
 *
 * Errors: -EINVAL: there is no such policy, or it runs in the simulator alone; the old one goes on.
 *
 * Threads: any.
 */
int64_t pk_cache_set_policy(const struct pk_cache *cache, const char *policy_text);

/**
 * How pages of mapped regions are brought in: a pk_fault_path.
 *
 * Threads: any.
 */
int pk_cache_fault_path(const struct pk_cache *cache);

/**
 * Writes back what is dirty in all segments, and makes it durable.
 *
 * Errors: the first of a segment's; each handle of the segment is told as well, by its own
 * pk_segment_flush().
 *
 * Threads: any.
 */
int pk_cache_flush(const struct pk_cache *cache);

/**
 * Writes down which pages are in memory, by segments' names, for pk_cache_load_working_set() of a
 * later run.
 *
 * path: a regular file, replaced when the new one is whole, or none yet. Returns how many pages there are.
 *
 * Errors: those of writing a file; -EINVAL: what has the name is no regular file, nor a link to one.
 *
 * Threads: any.
 */
int64_t pk_cache_save_working_set(const struct pk_cache *cache,
                                  const char *path);

/**
 * Brings in pages that were written down, of segments that are open now, as they are named now; if
 * not all fit, those that were used last. A trace of `pagekeeper record` does as well.
 *
 * Returns how many pages are in memory because of it. What is not there any more, or cannot be
 * read, is passed over.
 *
 * Errors: those of reading a file; -EINVAL: it is no trace, or of pages of another size.
 *
 * Threads: any.
 */
int64_t pk_cache_load_working_set(const struct pk_cache *cache, const char *path);

/**
 * What was wrong with the last call of this thread that failed: which function, what, and what to
 * do, in English. Empty if none has failed. Successful calls leave it as it is.
 *
 * The text is the library's, and stays until the next call of this thread fails or the thread
 * ends.
 *
 * Threads: any; each has its own.
 */
const char *pk_last_error(void);

/**
 * Version of the library that the program runs with, as "0.1.0". PK_VERSION is that of the header
 * that it was built with.
 *
 * Threads: any.
 */
const char *pk_version(void);

/**
 * A store that is a file.
 *
 * fd: an open file, which is opened anew; it may be closed. writable: 0 or 1; if 1, it is open for
 * writing. layer: where the handle is put; null if the call fails. Close it with pk_layer_close().
 *
 * Errors: -EINVAL: no regular file; -EBADF: fd is not open, or not for that; those of open(2).
 *
 * Threads: any. Nobody else may change the file: unlike pk_segment_open(), this keeps nobody out.
 */
int pk_layer_file(int fd, int writable, struct pk_layer **layer);

/**
 * A store of zeros, len bytes long, in a file without a name: for working memory.
 *
 * directory: where the file is; no file system in memory.
 *
 * Errors: those of open(2) with O_TMPFILE.
 *
 * Threads: any.
 */
int pk_layer_scratch(const char *directory, uint64_t len, struct pk_layer **layer);

/**
 * A store of functions of the program.
 *
 * store: copied. Its close is called when nothing uses the layer any more, and not if this fails. With
 * another layer upon it, it is called for multiples of 4096 bytes, whatever the cache's page_bytes.
 *
 * Errors: -EINVAL: len, load or store is missing; -E2BIG: the program was built for a later version
 * of the library and uses what this one lacks.
 *
 * Threads: any.
 */
int pk_layer_functions(const struct pk_store *store,
                       struct pk_layer **layer);

/**
 * Pages that leave memory are kept compressed, in memory, before they go to the layer below, and
 * are refilled from there. The oldest give way. A dirty page is written before it is dropped, and
 * by pk_segment_flush().
 *
 * below: a layer with nothing upon it. cache: its budget pays for memory_bytes, as long as the layer
 * lives; at most half of it can be set aside, and less is where that becomes more than half
 * (pk_cache_set_budget()). zstd_level: 1 to 22, the higher the smaller and slower;
 * 0: LZ4, several times faster.
 *
 * Errors: -EBUSY: something is upon the layer below already; -ENOMEM: more than half of the budget
 * would be set aside.
 *
 * Threads: any.
 */
int pk_layer_compressed(const struct pk_layer *below,
                        const struct pk_cache *cache,
                        uint64_t memory_bytes,
                        int zstd_level,
                        struct pk_layer **layer);

/**
 * Two stores that hold the same: what is written goes to both, and what one cannot give comes from
 * the other. One that misses a write is stale, and neither read nor written any more, until
 * pk_layer_resync().
 *
 * An error of one side fails no call, pk_segment_flush() neither. And a mirror does not remember in
 * the next run which side was stale: made anew by this function it would read old content for new. So
 * ask pk_layer_is_stale() of both sides after each flush, and write the answer down elsewhere, durably,
 * before what was flushed counts as kept; the next run gives it to pk_layer_mirrored_with_stale().
 *
 * After a crash the sides may differ in what was written and not flushed, and in length: make the
 * mirror by pk_layer_mirrored_with_stale(), of PK_SECOND unless it was written down that
 * PK_FIRST is stale, and pk_layer_resync() that side.
 *
 * Either may be compressed, or have discardable pages, which a mirror then has, too. One that was stale
 * keeps all pages, until pk_segment_advise() says again which it need not.
 *
 * first, second: layers with nothing upon them, of the same length.
 *
 * Errors: -EINVAL: their lengths differ; -EBUSY: something is upon one already.
 *
 * Threads: any.
 */
int pk_layer_mirrored(const struct pk_layer *first,
                      const struct pk_layer *second,
                      struct pk_layer **layer);

/**
 * The same of two stores of which one is stale: what an earlier run wrote down of its mirror, or
 * PK_SECOND after a crash of one whose sides were whole. pk_layer_resync() is to follow, after which
 * what was written down no longer holds; until then the other side alone is read and written.
 *
 * first, second: layers with nothing upon them, in the order of the earlier run; the stale one's length
 * may be another. stale: PK_FIRST or PK_SECOND.
 *
 * Errors: -EBUSY: something is upon one already.
 *
 * Threads: any.
 */
int pk_layer_mirrored_with_stale(const struct pk_layer *first,
                                 const struct pk_layer *second,
                                 pk_side stale,
                                 struct pk_layer **layer);

/**
 * Whether a side of a mirror lacks something that was written: 1, or 0. A mirror that is made anew
 * knows only what pk_layer_mirrored_with_stale() was told.
 *
 * Errors: -EINVAL: the layer is not a mirror.
 *
 * Threads: any.
 */
int pk_layer_is_stale(const struct pk_layer *layer, pk_side which);

/**
 * The latest error that a side of a mirror met since this was last asked, which no other call tells:
 * in reading, which leaves the side in use, or in writing, which makes it stale.
 *
 * Returns its number, which is positive (EIO and so on), or 0 if there was none.
 *
 * Errors: -EINVAL: the layer is not a mirror.
 *
 * Threads: any; one of them is told.
 */
int pk_layer_take_error(const struct pk_layer *layer,
                        pk_side which);

/**
 * Copies the other side's content to a stale side of a mirror, which is in use again then. Reads
 * and writes wait meanwhile.
 *
 * Errors: -EINVAL: the layer is not a mirror, or the other side is stale itself; the stores': the side is
 * stale still.
 *
 * Threads: any.
 */
int pk_layer_resync(const struct pk_layer *layer,
                    pk_side which);

/**
 * A write-ahead log before a store: all that one pk_segment_flush() writes is in the store, or
 * nothing of it is, whatever happens to the machine. What the log holds of complete flushes goes
 * in place first, before this returns.
 *
 * What is below may be compressed, and gets the pages that leave memory clean. It is not told of
 * discardable pages (-EOPNOTSUPP), for it would forget them at once, and not with a flush: lay
 * pk_layer_discardable() upon the log.
 *
 * below, log: layers with nothing upon them; the log may be empty. checkpoint_bytes: pages go in
 * place when the log is longer than that.
 *
 * Errors: the stores'; -EINVAL: the log is no log; -EBUSY: something is upon one already.
 *
 * Threads: any.
 */
int pk_layer_logged(const struct pk_layer *below,
                    const struct pk_layer *log,
                    uint64_t checkpoint_bytes,
                    struct pk_layer **layer);

/**
 * Puts what a log holds of complete flushes in place, and makes it durable there. Where some of the
 * next flush has come to the log already, everything goes in place at the end of that.
 *
 * Errors: -EINVAL: the layer is not one of pk_layer_logged(); the stores'.
 *
 * Threads: any.
 */
int pk_layer_checkpoint(const struct pk_layer *layer);

/**
 * Pages that are declared discardable (pk_segment_advise(), PK_DISCARDABLE) are dropped when they
 * have to leave, dirty or not, and made anew when they are next touched.
 *
 * below: a layer with nothing upon it, for the other pages. make: fills len bytes at pages, whole
 * pages from byte offset on, and returns 0 or a negative error number; called as pk_store.load is.
 * context: what it is called with.
 *
 * Errors: -EBUSY: something is upon the layer below already.
 *
 * Threads: any.
 */
int pk_layer_discardable(const struct pk_layer *below,
                         int (*make)(void *context, uint64_t offset, void *pages, size_t len),
                         void *context,
                         struct pk_layer **layer);

/**
 * Makes a segment over a layer.
 *
 * layer: with nothing upon it. name: what statistics call it, in UTF-8; null: "store". segment: where its
 * handle is put; null if the call fails.
 *
 * Errors: the store's; -EBUSY: something is upon the layer already.
 *
 * Threads: any.
 */
int pk_segment_open_layer(const struct pk_cache *cache,
                          const struct pk_layer *layer,
                          const char *name,
                          struct pk_segment **segment);

/**
 * Closes a handle of a layer. What is upon the layer goes on.
 *
 * layer: may be null.
 *
 * Threads: any; the last use of the handle.
 */
int pk_layer_close(struct pk_layer *layer);

/**
 * Pins a range: brings its pages in, and keeps them in memory. While a page is pinned, pins are
 * locks: pk_segment_write_at() of it waits for all of them, pins for PK_PIN_EXCLUSIVE wait for all
 * others, also for those of their own thread, and a flush waits for exclusive ones. Threads that
 * pin several ranges for writing do so in the order of their offsets.
 *
 * Pinned pages are memory that the policy cannot use: pin little, or raise the budget. That one range
 * is at most half of the budget is seen to; many pins together may hold more than all of it, and what
 * else is needed comes beyond it then. The range has at least a byte, ends within the segment, and
 * crosses no multiple of 1 GiB.
 *
 * mode: a pk_pin_mode. pin: where its handle is put; null if the call fails.
 *
 * Errors: -EINVAL: no such range; -ENOMEM: it is more than half of the budget, or no address space is left
 * (pk_cache_create()); -EUSERS: a page of it has 2048 pins; -EOPNOTSUPP: it is several pages of a cache
 * with PK_TRANSLATION_TABLE; for PK_PIN_EXCLUSIVE -EBADF: the segment is open for reading, -ENOSPC, and
 * -ENOMEM, as pk_segment_write_at(); the store's.
 *
 * Threads: any.
 */
int pk_segment_pin(const struct pk_segment *segment,
                   uint64_t offset,
                   size_t len,
                   pk_pin_mode mode,
                   struct pk_pin **pin);

/**
 * The first of the pinned bytes, for reading; valid until pk_unpin(). They do not change under
 * PK_PIN_SHARED. Null if pin is null, or in a forked child, which has none of the pinned memory.
 *
 * Threads: any.
 */
const void *pk_pin_data(const struct pk_pin *pin);

/**
 * The first of the pinned bytes, for writing; valid until pk_unpin(). Null if pin is null or not
 * PK_PIN_EXCLUSIVE, or in a forked child.
 *
 * Threads: any; those that use the bytes agree among themselves.
 */
void *pk_pin_data_mut(const struct pk_pin *pin);

/**
 * Lets pinned pages go; null is no pin, and fine. Pointers to their bytes are no longer valid.
 *
 * Returns 0. In a forked child it frees the child's copy; the parent's pin stays.
 *
 * Threads: any, also another than the one that pinned; the pin is not used any more.
 */
int pk_unpin(struct pk_pin *pin);

/**
 * Binds a range into the address space. Its pages are brought in when they are touched, as the
 * cache's pk_fault_path says; a page that cannot be brought in, or lies behind the end of the
 * segment by now (behind the 4096 bytes that it ends in), raises SIGBUS. A forked child does not have
 * the region (SIGSEGV there).
 *
 * offset: a multiple of pk_cache_page_bytes(). The range has at least a byte and lies within the segment's
 * pages, the last of which may reach behind its end. protection: a pk_protection. region: where
 * its handle is put; null if the call fails. Unbind it with pk_region_unmap().
 *
 * Errors: -EOPNOTSUPP: the cache has PK_FAULT_EXPLICIT, or it is PK_MAP_COPY_ON_WRITE of pages above
 * 4096 bytes before Linux 6.4; -EINVAL: no such range; -EBADF:
 * PK_MAP_READ_WRITE, and the segment is open for reading; those of mmap(2) and ioctl_userfaultfd(2).
 *
 * Threads: any. What threads do with the bytes is between them, and anybody who changes the
 * segment meanwhile.
 */
int pk_segment_map(const struct pk_segment *segment,
                   uint64_t offset,
                   uint64_t len,
                   pk_protection protection,
                   struct pk_region **region);

/**
 * A region's first byte, valid until pk_region_unmap(); null if region is null, or in a forked child,
 * which does not have the region. What the protection does not allow must not be tried.
 *
 * Threads: any.
 */
void *pk_region_data(const struct pk_region *region);

/**
 * A region's length in bytes.
 *
 * Threads: any.
 */
int64_t pk_region_len(const struct pk_region *region);

/**
 * Unbinds a region; null is no region, and fine. What was stored in it is in the segment (but for
 * PK_MAP_COPY_ON_WRITE); pointers into it are no longer valid.
 *
 * Returns 0. In a forked child it frees the child's copy; the parent's region stays.
 *
 * Threads: the region is not used any more, nor its bytes.
 */
int pk_region_unmap(struct pk_region *region);

/**
 * Opens a file as a segment. One file is one segment of a cache, however often it is opened.
 *
 * A cache that writes to a file excludes other caches and runs of `pagekeeper` of the same user
 * from it; several that only read may share it. What is written is in this process until it is
 * flushed, or written back in the background.
 *
 * It takes three descriptors: two of the file, by the kernel's page cache and past it (one where the file
 * system has no direct I/O), and one for its pages in memory, which PK_TRANSLATION_TABLE does without. All
 * files of a cache together take one more, by which they are registered.
 *
 * flags: pk_open_flags. segment: where its handle is put; null if the call fails. Close it with
 * pk_segment_close().
 *
 * Errors: those of open(2); -EBUSY: somebody else writes to the file, or reads it and this would
 * write, or this cache has it open for reading alone and this would write, or PK_OPEN_TRUNCATE would cut
 * a page that is pinned; -EINVAL: no regular file; -EFBIG: it is longer than 128 TiB, or, but with
 * PK_TRANSLATION_TABLE, than the process may make files (RLIMIT_FSIZE): the memory of its pages is one.
 *
 * Threads: any. POSIX record locks of the process on the file are lost when the segment closes
 * (fcntl(2)): use open-file-description locks.
 */
int pk_segment_open(const struct pk_cache *cache,
                    const char *path,
                    pk_open_flags flags,
                    struct pk_segment **segment);

/**
 * Opens a file that the program has open as a segment, as pk_segment_open() does.
 *
 * fd: stays the program's, and need not stay open. flags: PK_OPEN_READ, or PK_OPEN_WRITE if fd is
 * open for reading and writing. name: what statistics call it, in UTF-8; null: "fd".
 *
 * Errors: as pk_segment_open(); -EBADF: fd is not open, or not for that.
 *
 * Threads: any.
 */
int pk_segment_open_fd(const struct pk_cache *cache,
                       int fd,
                       pk_open_flags flags,
                       const char *name,
                       struct pk_segment **segment);

/**
 * Makes working memory of so many zero bytes, which may be more than the machine has: what does
 * not fit into the budget goes to a file without a name in the scratch directory, never to swap.
 * It is gone when the segment is closed.
 *
 * segment: where its handle is put; null if the call fails.
 *
 * Errors: those of open(2) with O_TMPFILE; -EFBIG: as pk_segment_open().
 *
 * Threads: any.
 */
int pk_segment_scratch(const struct pk_cache *cache,
                       uint64_t len_bytes,
                       struct pk_segment **segment);

/**
 * Makes another handle of a segment. Each handle is told once of every error in writing back.
 *
 * copy: where it is put; null if the call fails.
 *
 * Threads: any.
 */
int pk_segment_duplicate(const struct pk_segment *segment, struct pk_segment **copy);

/**
 * Closes a handle of a segment; null is no handle, and fine. With the last of its handles, pins
 * and regions the segment is written back and gone. Errors in that have nobody to go to: flush
 * first.
 *
 * Returns 0. In a forked child it frees the child's copy and touches nothing of the parent's.
 *
 * Threads: the handle is not used any more.
 */
int pk_segment_close(struct pk_segment *segment);

/**
 * Makes a handle of the cache that a segment is in.
 *
 * cache: where it is put; null if the call fails. Close it with pk_cache_close().
 *
 * Threads: any.
 */
int pk_segment_cache(const struct pk_segment *segment, struct pk_cache **cache);

/**
 * The length in bytes.
 *
 * Threads: any.
 */
int64_t pk_segment_len(const struct pk_segment *segment);

/**
 * 1 if the handle may write, 0 if it may not.
 *
 * Threads: any.
 */
int pk_segment_writable(const struct pk_segment *segment);

/**
 * Reads len bytes at an offset, as pread(2). A page that is in memory costs neither a system call
 * nor a lock.
 *
 * Returns the bytes read: fewer than len only at the end of the segment, or before a page that
 * cannot be read (ask for the rest to learn why).
 *
 * Errors: the store's, for the first page; -EINVAL: the offset is above 2^63.
 *
 * Threads: any.
 */
int64_t pk_segment_read_at(const struct pk_segment *segment,
                           void *buffer,
                           size_t len,
                           uint64_t offset);

/**
 * Writes len bytes at an offset, as pwrite(2), and makes the segment longer where it reaches
 * behind its end. Waits for whoever has a page of the range pinned: a thread that has one itself
 * waits for ever.
 *
 * Returns the bytes written: fewer than len only before a page that cannot be written (write the
 * rest to learn why).
 *
 * Errors: -EBADF: the segment is open for reading; -ENOSPC and others of the store, for the first
 * page; -EFBIG, -EINVAL: the range is too far out, or the store has a fixed length; -ENOMEM: as many
 * pages as may wait for a commit do (pk_segment_set_write_back()), or no address space is left
 * (pk_cache_create()).
 *
 * Threads: any.
 */
int64_t pk_segment_write_at(const struct pk_segment *segment,
                            const void *buffer,
                            size_t len,
                            uint64_t offset);

/**
 * Sets the length, as ftruncate(2). What is cut off is gone, and not written back; what is gained
 * reads as zeros. Waits for nobody's pins: pages that are pinned are not cut, and a segment grows
 * beside them.
 *
 * Errors: -EBADF: the segment is open for reading; -EBUSY: a page that would go, or be cut in two, is
 * pinned, whichever of its bytes; the store's (-EINVAL: its length is fixed).
 *
 * Threads: any.
 */
int pk_segment_set_len(const struct pk_segment *segment,
                       uint64_t len_bytes);

/**
 * Writes dirty pages back and makes them durable, as fdatasync(2). Waits for pages that are pinned
 * for writing.
 *
 * Errors: the store's, now or in any write-back since this handle was last told; once per handle.
 * Pages that could not be written stay in memory, dirty, and the next flush tries again; what was written
 * and could not be made durable counts as written, as after fsync(2).
 *
 * Threads: any.
 */
int pk_segment_flush(const struct pk_segment *segment);

/**
 * Writes dirty pages of a range back, without making them durable. len: may be PK_TO_END. What has left
 * memory already, and waits in pk_layer_compressed(), is written by pk_segment_flush().
 *
 * Errors: as pk_segment_flush().
 *
 * Threads: any.
 */
int pk_segment_write_back(const struct pk_segment *segment,
                          uint64_t offset,
                          uint64_t len);

/**
 * Says when dirty pages of the segment, by whichever handle, are written back. Under
 * PK_WRITE_BACK_ON_COMMIT nothing is written but by pk_segment_flush(), pk_segment_write_back() and
 * pk_cache_flush(): a commit is a flush, and pk_segment_discard() takes back what was written since
 * the last. Pages that wait for it stay in memory; once half of the budget's pages wait, writes
 * fail (-ENOMEM) until some are committed or taken back.
 *
 * mode: a pk_write_back_mode.
 *
 * Errors: -EBADF: the segment is open for reading.
 *
 * Threads: any.
 */
int pk_segment_set_write_back(const struct pk_segment *segment, pk_write_back_mode mode);

/**
 * Follows changes of the store by others: its length is looked at, and clean pages are dropped if
 * its content is not what the cache left. Also done when a file is opened again, when something is
 * written back, and every write-back period. Where somebody made it shorter, pages that are pinned stay
 * as they are until they are let go, and so long the segment reaches to the last of them.
 *
 * Returns 1 if somebody changed it, else 0.
 *
 * Threads: any.
 */
int pk_segment_refresh(const struct pk_segment *segment);

/**
 * Fetches what is absent of a range, as far as a quarter of the budget. len: may be PK_TO_END.
 *
 * Returns how many bytes from the offset on are in memory or on their way. What cannot be fetched
 * is found when it is read.
 *
 * Threads: any.
 */
int64_t pk_segment_prefetch(const struct pk_segment *segment, uint64_t offset, uint64_t len);

/**
 * Says how a range will be used, as posix_fadvise(2). len: may be PK_TO_END. advice: a pk_advice.
 *
 * Errors: of PK_DISCARDABLE and PK_NEEDED the store's (-EOPNOTSUPP: it can make nothing anew), and
 * -EBADF: the segment is open for reading; of PK_NEEDED -ENOMEM, as pk_segment_write_at().
 *
 * Threads: any.
 */
int pk_segment_advise(const struct pk_segment *segment,
                      uint64_t offset,
                      uint64_t len,
                      pk_advice advice);

/**
 * Takes the whole pages of a range out of memory without writing them back: what was not written
 * back is lost, and the store's content shows again. For data that can be made anew. Pages that
 * are pinned stay. len: may be PK_TO_END.
 *
 * Errors: -EBADF: the segment is open for reading.
 *
 * Threads: any.
 */
int pk_segment_discard(const struct pk_segment *segment, uint64_t offset, uint64_t len);

/**
 * What is known of the pages of a range, as mincore(2). len: may be PK_TO_END.
 *
 * attributes: gets pk_page_attributes, a number for each page that the range touches and the
 * segment has, up to pages_max; may be null if that is 0. Returns how many there are, which may be
 * more than pages_max. Four bytes a page are the caller's, and some 20 KiB are needed beside them, beyond the
 * budget.
 *
 * Threads: any. What others do may change it at once.
 */
int64_t pk_segment_attributes(const struct pk_segment *segment,
                              uint64_t offset,
                              uint64_t len,
                              pk_page_attributes *attributes,
                              size_t pages_max);

/**
 * Moves pages, with what they hold, to another segment of the same or another cache. There they
 * are dirty, as if they had been written; here they show what the store holds, as if they had been
 * discarded. Each page moves as a whole: a read or write of it comes before or after. Waits for whoever
 * has a page pinned, here or there, and holds none of its own meanwhile.
 *
 * page, pages: numbers of pages (offset / pk_cache_page_bytes()). Returns the pages moved, fewer than
 * asked for only at an error behind the first.
 *
 * Errors: -EBADF: one of the segments is open for reading; -EINVAL: a page lies behind the end of
 * its segment, the ranges overlap, or the caches have pages of different sizes; those of reading and writing, for the first page.
 *
 * Threads: any.
 */
int64_t pk_segment_migrate(const struct pk_segment *segment,
                           uint64_t page,
                           uint64_t pages,
                           const struct pk_segment *to,
                           uint64_t to_page);

/**
 * Fills stats with what the cache counted so far, in total over all segments, also those that were
 * closed since.
 *
 * Threads: any.
 */
int pk_cache_stats(const struct pk_cache *cache, struct pk_stats *stats);

/**
 * The same and more as JSON, as `pagekeeper run --stats` writes it: for each segment ("files") its
 * counts, for each policy what it shows of itself.
 *
 * text, text_bytes and the result are as for pk_cache_policy(): call it with 0 bytes first to
 * learn how many it takes.
 *
 * Threads: any.
 */
int64_t pk_cache_stats_json(const struct pk_cache *cache, char *text, size_t text_bytes);

/**
 * Makes a segment over a store of the program.
 *
 * store: copied. name: what statistics call it, in UTF-8; null: "store". segment: where its handle is put;
 * null if the call fails.
 *
 * Errors: the store's; -EINVAL: len, load or store is missing; -E2BIG: the program was built for a
 * later version of the library and uses what this one lacks.
 *
 * Threads: any.
 */
int pk_segment_open_store(const struct pk_cache *cache,
                          const struct pk_store *store,
                          const char *name,
                          struct pk_segment **segment);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PAGEKEEPER_H */
