//! Regions as the buffers of reads and writes: the library's own, and the kernel's.

use crate::library_model::PAGE;
use crate::{EFAULT, MAPPED, cache, load, sized};
use pagekeeper::library::{FaultPath, Protection};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn buffers_may_be_regions() {
    for path in MAPPED {
        let Some(cache) = cache(path, "lru") else { continue };
        let from = cache.scratch(64 * PAGE as u64).unwrap();
        let to = cache.scratch(64 * PAGE as u64).unwrap();
        for i in 0..64u64 {
            from.write_all_at(&[i as u8; PAGE], i * 4096).unwrap();
        }
        let mut mapped = to.map(0..64 * 4096, Protection::ReadWrite).unwrap();
        // SAFETY: nobody else uses the segment.
        let slice = unsafe { mapped.as_mut_slice() };
        from.read_exact_at(&mut slice[100..60 * PAGE + 100], 0).unwrap();
        from.write_all_at(&slice[100..32 * PAGE + 100], 32 * 4096).unwrap();
        let mut page = [0; PAGE];
        for i in 0..64u64 {
            from.read_exact_at(&mut page, i * 4096).unwrap();
            assert!(page.iter().all(|b| *b == i as u8 % 32), "{path:?}, page {i}");
        }
        // Through a region of the very segment that is read.
        let own = from.map(0..64 * 4096, Protection::Read).unwrap();
        // SAFETY: written before the slice is looked at; nobody else uses the segment.
        from.write_all_at(unsafe { &own.as_slice()[..3 * PAGE] }, 10 * 4096).unwrap();
        assert_eq!((load(&own, 10 * PAGE), load(&own, 12 * PAGE)), (0, 2));
    }
}

#[test]
fn system_calls_on_regions() {
    let file = tempfile::tempfile().unwrap();
    file.write_at(&[9; PAGE], 0).unwrap();
    for path in MAPPED {
        let Some(cache) = cache(path, "lru") else { continue };
        let segment = cache.scratch(4 * PAGE as u64).unwrap();
        let mut region = segment.map(0..4 * 4096, Protection::ReadWrite).unwrap();
        // SAFETY: nobody else uses the segment.
        let slice = unsafe { region.as_mut_slice() };
        let result = file.read_at(&mut slice[PAGE..2 * PAGE], 0);
        match (path, result) {
            (FaultPath::Inline, Err(error)) => assert_eq!(error.raw_os_error(), Some(EFAULT)),
            // With a descriptor for user code alone the kernel is not served here either.
            (FaultPath::Thread, Err(error)) => assert_eq!(error.raw_os_error(), Some(EFAULT)),
            (FaultPath::Thread, Ok(n)) => assert_eq!((n, slice[PAGE]), (PAGE, 9)),
            (_, result) => panic!("{path:?}: {result:?}"),
        }
        // The documented way.
        let mut pinned = segment.pin_mut(2 * 4096..3 * 4096).unwrap();
        assert_eq!(file.read_at(&mut pinned, 0).unwrap(), PAGE);
        drop(pinned);
        assert_eq!(load(&region, 3 * PAGE - 1), 9);
    }
}

/// What was written from a region was cut wherever 256 KiB ended, in the midst of pages: others saw such a
/// page half written.
#[test]
fn no_page_is_seen_half_written_from_a_region() {
    const LARGE: usize = 2 << 20;
    for (page, offset, bytes, rounds) in [(PAGE, 100, 512 << 10, 300), (LARGE, 0, LARGE, 40)] {
        let Some(cache) = sized(FaultPath::Thread, "lru", page) else { continue };
        let to = cache.scratch(2 * LARGE as u64).unwrap();
        let from = cache.scratch(LARGE as u64).unwrap();
        let mut region = from.map(0..LARGE as u64, Protection::ReadWrite).unwrap();
        // The page that 256 KiB end in.
        let seen = ((256 << 10) + offset) / page * page;
        let (is_over, reads) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut copy = vec![0; page];
                while !is_over.load(Ordering::Relaxed) {
                    to.read_exact_at(&mut copy, seen as u64).unwrap();
                    assert!(copy.iter().all(|byte| *byte == copy[0]), "{page}: half of a write");
                    reads.store(true, Ordering::Relaxed);
                }
            });
            // SAFETY: nobody else uses the segment.
            let slice = unsafe { region.as_mut_slice() };
            for round in 0..rounds {
                slice[..bytes].fill(round as u8);
                assert_eq!(to.write_at(&slice[..bytes], offset as u64).unwrap(), bytes);
            }
            while !reads.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
