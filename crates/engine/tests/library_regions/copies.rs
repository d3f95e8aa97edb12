//! Pages of copy-on-write regions: private, made once, and counted.

use crate::library_model::{PAGE, Rng};
use crate::{MAPPED, SIZES, cache, can_copy, load, sized, store};
use pagekeeper::library::Protection;

#[test]
fn copies_are_private_and_count() {
    for path in MAPPED {
        let Some(cache) = cache(path, "lru") else { continue };
        let segment = cache.scratch(40 * PAGE as u64).unwrap();
        for i in 0..40u64 {
            segment.write_all_at(&[i as u8 + 1; PAGE], i * 4096).unwrap();
        }
        let region = segment.map(4096..31 * 4096, Protection::CopyOnWrite).unwrap();
        let other = segment.map(0..40 * 4096, Protection::Read).unwrap();
        for i in (0..8).rev() {
            store(&region, i * PAGE + 5, 0xaa);
        }
        for round in 0..3 {
            for i in 0..30 {
                let own = if i < 8 { 0xaa } else { i as u8 + 2 };
                assert_eq!(load(&region, i * PAGE + 5), own, "{path:?}, round {round}, page {i}");
                assert_eq!(load(&region, i * PAGE + 6), i as u8 + 2);
                assert_eq!(load(&other, (i + 1) * PAGE + 5), i as u8 + 2);
            }
        }
        assert_eq!(cache.stats().private_pages_max, 8);
        segment.write_all_at(&[0x77; 2], 20 * 4096 + 5).unwrap();
        assert_eq!(load(&region, 19 * PAGE + 5), 0x77, "what has no copy shows the segment");
        drop((region, other));
        let mut byte = [0];
        segment.read_exact_at(&mut byte, 4096 + 5).unwrap();
        assert_eq!(byte, [2]);
    }
}

/// A copy that is cut off with the end of the file has no frame any more. (It stayed counted.)
#[test]
fn copies_that_are_cut_off_count_no_more() {
    for (path, page) in MAPPED.into_iter().flat_map(|path| [PAGE, 64 << 10].map(|p| (path, p))) {
        if !can_copy(page) {
            continue;
        }
        let Some(cache) = sized(path, "lru", page) else { continue };
        let segment = cache.scratch(24 * page as u64).unwrap();
        let region = segment.map(0..24 * page as u64, Protection::CopyOnWrite).unwrap();
        for first in [18, 12, 6] {
            (first..first + 6).for_each(|no| store(&region, no * page, 1));
            segment.set_len((first * page) as u64).unwrap();
        }
        assert_eq!(cache.stats().private_pages_max, 6, "{path:?}, {page}");
    }
}

/// A large page is copied as a whole, once: no store of a thread's that came first is lost to the copy
/// that another's led to, while readers map what leaves again. Nor to one that was decided when the
/// same was mapped at the same address before: that made the new mapping's pages writable before they
/// were copied, in one run of this test in six.
#[test]
fn threads_copy_a_page_once() {
    const THREADS: usize = 4;
    for (path, page) in MAPPED.into_iter().flat_map(|path| SIZES.map(|page| (path, page))) {
        if !can_copy(page) {
            continue;
        }
        let Some(cache) = sized(path, "lru", page) else { continue };
        let segment = cache.scratch(20 * page as u64).unwrap();
        for round in 0..if page < 1 << 20 { 40 } else { 4 } {
            let region = segment.map(0..3 * page as u64, Protection::CopyOnWrite).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let region = &region;
                    scope.spawn(move || {
                        let mut rng = Rng((round * THREADS + thread) as u64);
                        for step in 0..60 {
                            let at = rng.below(3 * page as u64) as usize / 8 * 8 + thread;
                            let before = load(region, at);
                            assert!(before == 0 || before > 100, "{path:?}, {page}, byte {at}");
                            store(region, at, 101 + step);
                            assert_eq!(load(region, at), 101 + step, "{path:?}, {page}, byte {at}");
                        }
                    });
                }
                let segment = &segment;
                scope.spawn(move || {
                    for no in (0..20).chain(0..20) {
                        segment.read_exact_at(&mut [0], (no * page) as u64).unwrap();
                    }
                });
            });
            let mut stores = 0;
            for thread in 0..THREADS {
                let mut rng = Rng((round * THREADS + thread) as u64);
                let all = (0..60)
                    .map(|step| (rng.below(3 * page as u64) as usize / 8 * 8 + thread, step));
                for (at, step) in all.collect::<std::collections::HashMap<_, _>>() {
                    assert_eq!(load(&region, at), 101 + step, "{path:?}, {page}, byte {at}");
                    stores += 1;
                }
            }
            assert!(stores > 200);
        }
        let mut bytes = vec![1; 3 * page];
        segment.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "the segment has none of it");
        assert_eq!(cache.stats().private_pages_max, 3, "{path:?}, {page}");
    }
}
