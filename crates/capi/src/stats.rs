//! Statistics.

use crate::cache::{pk_cache, put_words};
use crate::error::{Error, count, status};
use crate::raw;
use std::ffi::{c_char, c_int};

/// What a cache counted since it was made.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pk_stats {
    /// sizeof(pk_stats), set by the caller.
    pub struct_bytes: usize,
    /// The budget.
    pub budget_bytes: u64,
    /// Pages fetched because a reference needed them.
    pub major_faults: u64,
    /// Faults on pages that were in memory, unmapped.
    pub minor_faults: u64,
    /// First writes to clean pages.
    pub write_faults: u64,
    /// Pages evicted.
    pub evictions: u64,
    /// Pages written back.
    pub write_backs: u64,
    /// Bytes fetched from stores.
    pub read_bytes: u64,
    /// Bytes written to stores.
    pub written_bytes: u64,
    /// Major faults on pages that were evicted before.
    pub refaults: u64,
    /// Pages fetched ahead of need.
    pub prefetched_pages: u64,
    /// Of these, pages that left without being known to be used.
    pub prefetch_wasted_pages: u64,
    /// Private copies of pages (PK_MAP_COPY_ON_WRITE) at their most.
    pub private_pages_max: u64,
    /// Faults answered with SIGBUS.
    pub failed_faults: u64,
    /// Time in decisions, summed over threads, in nanoseconds.
    pub policy_ns: u64,
    /// Time reading and writing stores.
    pub io_ns: u64,
    /// Time changing mappings.
    pub kernel_ns: u64,
    /// Pages unmapped so that their next touch is seen.
    pub unmapped_pages: u64,
    /// Touches that sampling is charged with: of these pages, and of the few that were not mapped
    /// for another reason. Two cost about as much as one miss.
    pub touches_seen: u64,
}

/// Fills stats with what the cache counted so far, in total over all segments, also those that were
/// closed since.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_cache_stats(cache: Option<&pk_cache>, stats: *mut pk_stats) -> c_int {
    status("pk_cache_stats", || {
        let now = pk_cache::here(cache)?.stats();
        let total = now.total;
        let filled = pk_stats {
            struct_bytes: size_of::<pk_stats>(),
            budget_bytes: now.memory_bytes,
            major_faults: total.major_faults,
            minor_faults: total.minor_faults,
            write_faults: total.write_faults,
            evictions: total.evictions,
            write_backs: total.write_backs,
            read_bytes: total.read_bytes,
            written_bytes: total.written_bytes,
            refaults: now.refaults,
            prefetched_pages: now.prefetched_pages,
            prefetch_wasted_pages: now.prefetch_wasted_pages,
            private_pages_max: now.private_pages_max,
            failed_faults: now.failed_faults,
            policy_ns: now.policy_ns,
            io_ns: now.io_ns,
            kernel_ns: now.kernel_ns,
            unmapped_pages: now.unmapped_pages,
            touches_seen: now.touches_seen,
        };
        raw::put(stats, &filled)
    })
}

/// The same and more as JSON, as `pagekeeper run --stats` writes it: for each segment ("files") its
/// counts, for each policy what it shows of itself.
///
/// text, text_bytes and the result are as for pk_cache_policy(): call it with 0 bytes first to
/// learn how many it takes.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_cache_stats_json(
    cache: Option<&pk_cache>,
    text: *mut c_char,
    text_bytes: usize,
) -> i64 {
    count("pk_cache_stats_json", || {
        let stats = pk_cache::here(cache)?.stats();
        let words = serde_json::to_string(&stats);
        let words = words.map_err(|error| Error::new(libc::EIO, error.to_string()))?;
        put_words(&words, text, text_bytes)
    })
}
