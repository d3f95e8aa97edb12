//! What regions ask of a cache: a fault path, and threads that take nobody's signals.

use crate::library_model::PAGE;
use crate::{TINY_PAGES, cache};
use pagekeeper::library::{Cache, FaultPath, Protection};

const EOPNOTSUPP: i32 = 95;

#[test]
fn explicit_caches_do_not_map() {
    let cache = cache(FaultPath::Explicit, "lru").unwrap();
    let segment = cache.scratch(PAGE as u64).unwrap();
    let refused = segment.map(0..1, Protection::Read).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(EOPNOTSUPP));
}

/// Threads of a cache took signals that the program waited for, and ended it by them; a handler that
/// touched a region on the thread that serves it waited for itself.
#[test]
fn threads_of_a_cache_take_no_signal_of_the_programs() {
    let cache = Cache::builder((TINY_PAGES * PAGE) as u64).fault_path(FaultPath::Thread).build();
    if cache.is_err() {
        println!("skipped: the fault path is missing here");
        return;
    }
    // Threads name themselves, a moment after they have begun.
    let mut masks = std::collections::BTreeMap::new();
    while !["pagekeeper-0", "pagekeeper-pf", "pagekeeper-wb"].iter().all(|n| masks.contains_key(*n))
    {
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            // Another test's may have ended.
            let Ok(status) = std::fs::read_to_string(task.unwrap().path().join("status")) else {
                continue;
            };
            let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
            let mask = u64::from_str_radix(field("SigBlk:").unwrap().trim(), 16).unwrap();
            masks.insert(field("Name:").unwrap().trim().to_owned(), mask);
        }
        std::thread::yield_now();
    }
    for (name, mask) in masks.into_iter().filter(|(name, _)| name.starts_with("pagekeeper-")) {
        let blocks = |signal: i32| mask & 1 << (signal - 1) != 0;
        assert!([libc::SIGTERM, libc::SIGUSR1, libc::SIGRTMAX()].into_iter().all(blocks), "{name}");
        assert!(![libc::SIGSEGV, libc::SIGBUS].into_iter().any(blocks), "{name}");
    }
}
