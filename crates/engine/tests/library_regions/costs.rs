//! What touches of a region cost: faults, reads, writes, and what it takes to see them.

use crate::library_model::{Chaos, ChaosStore, PAGE, Rng};
use crate::{MAPPED, SIZES, built, load, sampled, store};
use pagekeeper::library::{Advice, Protection, SamplingShare};
use std::sync::atomic::Ordering;

/// Eight pages in use, in a scan of others.
#[test]
fn touches_are_seen_for_a_share_of_what_misses_cost() {
    for path in MAPPED {
        let seen = |percent: u32| {
            let cache = sampled(path, "clock", SamplingShare::of_percent(percent).unwrap())?;
            let region = cache.scratch(60 * PAGE as u64).unwrap();
            let region = region.map(0..60 * PAGE as u64, Protection::Read).unwrap();
            let mut rng = Rng(11);
            for step in 0..4000 {
                assert_eq!(load(&region, rng.below(8) as usize * PAGE), 0);
                assert_eq!(load(&region, (24 + step * 5 % 36) * PAGE), 0);
            }
            let stats = cache.stats();
            assert_eq!(stats.sampling_percent, Some(percent));
            assert_eq!(stats.unmapped_pages == 0, percent == 0);
            let paid = stats.total.evictions * 2 * u64::from(percent) / 100;
            assert!(stats.touches_seen <= paid + 24, "{path:?}, {percent} %: {stats:?}");
            Some(stats.touches_seen)
        };
        let [Some(none), Some(few), Some(many)] = [0, 5, 100].map(seen) else { return };
        assert!(none == 0 && 0 < few && 2 * few < many, "{path:?}: {none}, {few}, {many}");
    }
}

/// A touch of one byte brings a large page in, by one fault and one read; a store of one byte makes
/// all of it dirty, by one more fault; and it is written as one, as far as the file goes.
#[test]
fn a_large_page_is_one_fault_one_read_and_one_write() {
    for (path, page) in MAPPED.into_iter().flat_map(|path| SIZES.map(|page| (path, page))) {
        let Some(cache) = built(path, "lru", page, |b| b.read_ahead_pages_max(1)) else { continue };
        let len = 3 * page + 100;
        let chaos = Chaos::new(len);
        let segment = cache.open_store(ChaosStore(chaos.clone()), "chaos").unwrap();
        // The last page reaches behind the end.
        let region = segment.map(0..4 * page as u64, Protection::ReadWrite).unwrap();
        assert_eq!(load(&region, 2 * page - 1), 0);
        assert_eq!(chaos.loads.load(Ordering::SeqCst), 1, "{path:?}, {page}");
        (page..2 * page).step_by(PAGE).for_each(|at| assert_eq!(load(&region, at), 0));
        let total = cache.stats().total;
        assert_eq!((total.major_faults, total.minor_faults, total.write_faults), (1, 0, 0));
        assert_eq!(total.read_bytes, page as u64);

        store(&region, page + page / 2, 1);
        (page..2 * page).step_by(PAGE).for_each(|at| store(&region, at + 1, 2));
        let total = cache.stats().total;
        assert_eq!((total.major_faults, total.minor_faults, total.write_faults), (1, 0, 1));
        segment.flush().unwrap();
        assert_eq!(chaos.stores.load(Ordering::SeqCst), 1, "{path:?}, {page}");
        assert_eq!(cache.stats().total.written_bytes, page as u64);
        // What was written back is protected as one.
        (page..2 * page).step_by(PAGE).rev().for_each(|at| store(&region, at + 2, 3));
        assert_eq!(cache.stats().total.write_faults, 2, "{path:?}, {page}");

        // The last page, of which the file has 100 bytes, goes and comes back.
        store(&region, 3 * page, 4);
        segment.flush().unwrap();
        segment.advise(0..len as u64, Advice::DontNeed).unwrap();
        let before = cache.stats().total;
        for at in (page..2 * page).step_by(PAGE) {
            assert_eq!((load(&region, at + 1), load(&region, at + 2)), (2, 3));
        }
        assert_eq!((load(&region, 3 * page), load(&region, 3 * page + PAGE - 1)), (4, 0));
        let total = cache.stats().total;
        assert_eq!(total.major_faults - before.major_faults, 2, "{path:?}, {page}");
        assert_eq!(total.read_bytes - before.read_bytes, page as u64 + 100);
        assert_eq!(chaos.bytes.lock().unwrap().len(), len);
    }
}
