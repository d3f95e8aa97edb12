//! Mapped regions of the library, served by a thread and in the SIGBUS handler. Where the kernel or
//! the user's rights lack something, a test says so and is skipped.

mod library_model;

use library_model::{Chaos, ChaosStore, PAGE, Rng};
use pagekeeper::library::{
    Advice, Builder, Cache, FaultPath, Options, PolicySpec, Protection, Region, SamplingShare,
    Segment,
};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

const MAPPED: [FaultPath; 2] = [FaultPath::Thread, FaultPath::Inline];
/// Bytes in a page of a cache.
const SIZES: [usize; 3] = [PAGE, 64 << 10, 2 << 20];
const TINY_PAGES: usize = 24;
const EFAULT: i32 = 14;
const EMFILE: i32 = 24;
const EOPNOTSUPP: i32 = 95;

fn cache(path: FaultPath, policy: &str) -> Option<Cache> {
    sized(path, policy, PAGE)
}

/// Whether pages of a size can be copied at the first store: no large ones before Linux 6.4.
fn can_copy(page: usize) -> bool {
    page == PAGE || pagekeeper_sys::doctor::maps_protected()
}

/// A cache of a few pages of a size.
fn sized(path: FaultPath, policy: &str, page: usize) -> Option<Cache> {
    built(path, policy, page, |builder| builder)
}

fn sampled(path: FaultPath, policy: &str, share: SamplingShare) -> Option<Cache> {
    built(path, policy, PAGE, |builder| builder.sampling(share))
}

fn built(
    path: FaultPath,
    policy: &str,
    page: usize,
    more: impl FnOnce(Builder) -> Builder,
) -> Option<Cache> {
    let policy = PolicySpec::parse(policy).unwrap();
    let frames = if page < 1 << 20 { TINY_PAGES } else { 9 };
    let builder = Cache::builder((frames * page) as u64).page_bytes(page as u64);
    let builder = builder.policy(policy).fault_path(path).write_back_period(None);
    match more(builder).build() {
        Ok(cache) => Some(cache),
        Err(error) => {
            println!("skipped: no {path:?} fault path here ({error}); see `pagekeeper doctor`");
            None
        }
    }
}

/// A byte of a region, which others may change meanwhile.
fn cell(region: &Region, at: usize) -> &AtomicU8 {
    assert!(at < region.len());
    // SAFETY: inside the region, which lives as long as the reference; reached by atomics only.
    unsafe { AtomicU8::from_ptr(region.as_mut_ptr().add(at)) }
}

fn load(region: &Region, at: usize) -> u8 {
    cell(region, at).load(Ordering::Relaxed)
}

fn store(region: &Region, at: usize, value: u8) {
    cell(region, at).store(value, Ordering::Relaxed);
}

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

/// Each thread owns every eighth byte, and comes to it through the mapping and by reads and writes.
fn threads_share_pages(path: FaultPath, page: usize, policy: &str, seed: u64) {
    const THREADS: usize = 3;
    let Some(cache) = sized(path, policy, page) else { return };
    // Twice what there is room for, less of what takes long.
    let (pages, steps) = if page < 1 << 20 { (50, 2000) } else { (18, 100) };
    let len = pages * page + 777;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, vec![0; len]).unwrap();
    let segment = cache.open(&file, Options::new().writable(true)).unwrap();
    let region = segment.map(0..len as u64, Protection::ReadWrite).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (segment, region) = (segment.clone(), &region);
            scope.spawn(move || {
                let mut rng = Rng(seed * 100 + thread as u64);
                let mut model = vec![0u8; len];
                for _ in 0..steps {
                    let at = rng.below((len / 8) as u64) as usize * 8 + thread;
                    let value = rng.next() as u8;
                    let mut byte = [0xff];
                    match rng.below(20) {
                        0..6 => {
                            store(region, at, value);
                            model[at] = value;
                        }
                        6..8 => {
                            segment.write_all_at(&[value], at as u64).unwrap();
                            model[at] = value;
                        }
                        8..15 => assert_eq!(load(region, at), model[at], "byte {at} mapped"),
                        15..18 => {
                            segment.read_exact_at(&mut byte, at as u64).unwrap();
                            assert_eq!(byte[0], model[at], "byte {at} read");
                        }
                        18 => {
                            let pinned = segment.pin(at as u64..at as u64 + 1).unwrap();
                            assert_eq!(pinned[0], model[at], "byte {at} pinned");
                        }
                        _ => segment.write_back(at as u64..(at + 3 * page) as u64).unwrap(),
                    }
                }
                for at in (thread..len).step_by(8) {
                    assert_eq!(load(region, at), model[at], "byte {at} at the end");
                }
            });
        }
    });
    segment.flush().unwrap();
    let stored = std::fs::read(&file).unwrap();
    for (at, byte) in stored.iter().enumerate() {
        assert_eq!(load(&region, at), *byte, "byte {at} of the file");
    }
    assert!(stored.iter().any(|b| *b != 0));
    let (stats, few) = (cache.stats(), steps / 2);
    assert!(stats.total.evictions > few && stats.total.write_faults > few / 10, "{stats:?}");
    assert_eq!(stats.failed_faults, 0);
}

#[test]
fn mapped_and_read_bytes_are_the_same() {
    for path in MAPPED {
        for (policy, seed) in [("lru", 1), ("mru", 2), ("clock", 3)] {
            threads_share_pages(path, PAGE, policy, seed);
        }
        for page in [64 << 10, 2 << 20] {
            threads_share_pages(path, page, "lru", 4);
        }
    }
}

#[test]
fn explicit_caches_do_not_map() {
    let cache = cache(FaultPath::Explicit, "lru").unwrap();
    let segment = cache.scratch(PAGE as u64).unwrap();
    let refused = segment.map(0..1, Protection::Read).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(EOPNOTSUPP));
}

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

/// The end of the file moves within a page while threads use what lies before it.
#[test]
fn an_end_that_moves_disturbs_nobody_before_it() {
    let large = [64 << 10, 2 << 20];
    for (path, page) in MAPPED.into_iter().flat_map(|path| large.map(|page| (path, page))) {
        if !can_copy(page) {
            continue;
        }
        let Some(cache) = sized(path, "lru", page) else { continue };
        let segment = cache.scratch(12 * page as u64).unwrap();
        let region = segment.map(0..12 * page as u64, Protection::ReadWrite).unwrap();
        let private = segment.map(0..12 * page as u64, Protection::CopyOnWrite).unwrap();
        store(&private, 11 * page, 9);
        let is_over = AtomicBool::new(false);
        let (low, mut left) = (11 * page + PAGE / 2, 0);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (region, private, is_over) = (&region, &private, &is_over);
                scope.spawn(move || {
                    let mut rng = Rng(thread as u64);
                    for step in 0..u64::MAX {
                        let at = 11 * page + rng.below(PAGE as u64 / 2) as usize / 8 * 8 + thread;
                        store(region, at, step as u8);
                        load(region, rng.below(11 * page as u64) as usize);
                        assert_eq!(load(region, at), step as u8, "{path:?}, {page}");
                        assert_eq!(load(private, 11 * page), 9);
                        if is_over.load(Ordering::SeqCst) {
                            break;
                        }
                    }
                });
            }
            for round in 0..if page < 1 << 20 { 60 } else { 6 } {
                segment.set_len(low as u64).unwrap();
                segment.set_len(12 * page as u64 - round).unwrap();
                left += u64::from(load(&region, 12 * page - PAGE));
                store(&region, 12 * page - PAGE, 7);
            }
            is_over.store(true, Ordering::SeqCst);
        });
        assert_eq!(left, 0, "{path:?}, {page}: what was behind the end came back");
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

/// Wherever in the page each of them touches it.
#[test]
fn many_threads_fault_on_one_page() {
    for (path, page) in MAPPED.into_iter().flat_map(|path| SIZES.map(|page| (path, page))) {
        let Some(cache) = sized(path, "lru", page) else { continue };
        let chaos = Chaos::new(8 * page);
        chaos.bytes.lock().unwrap().fill(5);
        chaos.set(&chaos.delays, 1000);
        let segment = cache.open_store(ChaosStore(chaos.clone()), "chaos").unwrap();
        let region = segment.map(0..8 * page as u64, Protection::Read).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..16 {
                let region = &region;
                scope.spawn(move || assert_eq!(load(region, page / 16 * thread), 5));
            }
        });
        assert_eq!(chaos.loads.load(Ordering::SeqCst), 1, "{path:?}, {page}");
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

/// What a copy-on-write region shows: pages that a store copied as a whole, but for what was cut off
/// since, where the segment shows.
struct Copies {
    page: usize,
    is_copied: Vec<bool>,
    own: Vec<Option<Vec<u8>>>,
}

impl Copies {
    fn new(page: usize, pages: usize) -> Copies {
        Copies { page, is_copied: vec![false; pages], own: vec![None; pages * page / PAGE] }
    }

    fn store(&mut self, at: usize, value: u8, model: &[u8]) {
        let end = model.len().div_ceil(PAGE);
        let (page, per) = (at / self.page, self.page / PAGE);
        let all = match std::mem::replace(&mut self.is_copied[page], true) {
            false => page * per..((page + 1) * per).min(end),
            true => at / PAGE..at / PAGE + 1,
        };
        for no in all {
            self.own[no].get_or_insert_with(|| {
                let mut bytes = model[no * PAGE..((no + 1) * PAGE).min(model.len())].to_vec();
                bytes.resize(PAGE, 0);
                bytes
            });
        }
        self.own[at / PAGE].as_mut().unwrap()[at % PAGE] = value;
    }

    fn byte(&self, at: usize, model: &[u8]) -> u8 {
        self.own[at / PAGE].as_ref().map_or(model[at], |own| own[at % PAGE])
    }

    fn cut(&mut self, len: usize) {
        self.own[len.div_ceil(PAGE)..].fill(None);
        self.is_copied[len.div_ceil(self.page)..].fill(false);
    }
}

/// Two segments with regions, against vectors of bytes.
struct Played {
    page: usize,
    chaos: [Arc<Chaos>; 2],
    segments: [Segment; 2],
    models: [Vec<u8>; 2],
    written: [Region; 2],
    read: Region,
    private: Region,
    copies: Copies,
}

impl Played {
    fn new(cache: &Cache, page: usize, pages: usize) -> Played {
        let chaos = [(); 2].map(|()| Chaos::new(pages * page));
        let segment = |no: usize| {
            let store = ChaosStore(chaos[no].clone());
            cache.open_store(store, "chaos").unwrap()
        };
        let segments = [segment(0), segment(1)];
        let map = |no: usize, how| segments[no].map(0..(pages * page) as u64, how).unwrap();
        Played {
            page,
            written: [0, 1].map(|no| map(no, Protection::ReadWrite)),
            read: map(0, Protection::Read),
            private: map(0, Protection::CopyOnWrite),
            models: [(); 2].map(|()| vec![0; pages * page]),
            copies: Copies::new(page, pages),
            chaos,
            segments,
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        let page = self.page;
        let no = usize::from(rng.below(4) == 0);
        let (segment, model) = (self.segments[no].clone(), &mut self.models[no]);
        let whole = model.len().div_ceil(page);
        let at = rng.below(model.len() as u64) as usize;
        let len = (rng.below(3 * page as u64) as usize).min(model.len() - at);
        let value = rng.next() as u8;
        match rng.below(32) {
            0..6 => {
                store(&self.written[no], at, value);
                model[at] = value;
            }
            6..12 => {
                let region = if no == 0 && value > 99 { &self.read } else { &self.written[no] };
                for at in (at..at + len).step_by(777) {
                    assert_eq!(load(region, at), model[at], "byte {at} mapped");
                }
            }
            12 => {
                store(&self.private, at.min(self.models[0].len() - 1), value);
                self.copies.store(at.min(self.models[0].len() - 1), value, &self.models[0]);
            }
            13..17 => {
                let (model, at) = (&self.models[0], at.min(self.models[0].len() - 1));
                for at in (at..(at + len).min(model.len())).step_by(777) {
                    assert_eq!(load(&self.private, at), self.copies.byte(at, model), "byte {at}");
                }
            }
            17..20 => {
                let bytes: Vec<u8> = (0..len).map(|i| value.wrapping_add(i as u8)).collect();
                segment.write_all_at(&bytes, at as u64).unwrap();
                model[at..at + len].copy_from_slice(&bytes);
            }
            20..23 => {
                let mut bytes = vec![0; len];
                segment.read_exact_at(&mut bytes, at as u64).unwrap();
                assert!(bytes == model[at..at + len], "{len} bytes at {at} read");
            }
            23 => {
                let end = (at + len.clamp(1, page)).min(model.len());
                let pinned = segment.pin(at as u64..end as u64).unwrap();
                assert!(*pinned == model[at..end], "bytes {at}..{end} pinned");
            }
            24 | 25 => {
                let to = 1 + rng.below(self.copies.is_copied.len() as u64 * page as u64) as usize;
                segment.set_len(to as u64).unwrap();
                model.resize(to, 0);
                if no == 0 {
                    self.copies.cut(to);
                }
            }
            26 => {
                segment.flush().unwrap();
                assert!(*self.chaos[no].bytes.lock().unwrap() == *model, "flushed");
            }
            27 => segment.advise(at as u64..(at + len) as u64, Advice::DontNeed).unwrap(),
            28 => drop(segment.prefetch(at as u64..(at + len) as u64).unwrap()),
            29 => {
                segment.discard(at as u64..(at + len) as u64).unwrap();
                let end = if at + len == model.len() { whole } else { (at + len) / page };
                let (start, end) = (at.div_ceil(page) * page, (end * page).min(model.len()));
                if start < end {
                    let stored = self.chaos[no].bytes.lock().unwrap();
                    model[start..end].copy_from_slice(&stored[start..end]);
                }
            }
            _ => {
                let from = at / page;
                let others = self.models[1 - no].len().div_ceil(page);
                let to = rng.below(others as u64) as usize;
                let to_segment = &self.segments[1 - no];
                let moved = segment.migrate(from as u64..from as u64 + 1, to_segment, to as u64);
                assert_eq!(moved.unwrap(), 1);
                let mut content = self.models[no][from * page..].to_vec();
                content.resize(page, 0);
                let end = ((to + 1) * page).min(self.models[1 - no].len());
                self.models[1 - no][to * page..end].copy_from_slice(&content[..end - to * page]);
                let end = ((from + 1) * page).min(self.models[no].len());
                let stored = self.chaos[no].bytes.lock().unwrap();
                self.models[no][from * page..end].copy_from_slice(&stored[from * page..end]);
            }
        }
    }
}

#[test]
fn regions_are_what_vectors_are_whatever_a_page_is() {
    for (path, page) in MAPPED.into_iter().flat_map(|path| SIZES.map(|page| (path, page))) {
        let (pages, steps) = if page < 1 << 20 { (40, 3000) } else { (12, 300) };
        for (policy, seed) in [("lru", 1), ("mru", 2), ("clock", 3)] {
            // Copies and state have room beside the frames.
            if !can_copy(page) {
                continue;
            }
            let Some(cache) = sized(path, policy, page) else { continue };
            cache.set_budget(((pages + 9) * page) as u64);
            let mut played = Played::new(&cache, page, pages);
            let mut rng = Rng(seed);
            for step in 0..steps {
                if step % 100 == 50 {
                    println!("{path:?}, {page}, {policy}, step {step}");
                }
                played.step(&mut rng);
            }
            let stats = cache.stats();
            assert_eq!(stats.failed_faults, 0);
            assert!(stats.total.write_faults > 10 && stats.private_pages_max > 0, "{stats:?}");
        }
    }
}

// ---- what ends a process, seen from outside ------------------------------------------------

const ROLE: &str = "PAGEKEEPER_TEST_ROLE";

/// Runs the test `child` of this file in a process of its own, in a role.
fn child(role: &str, before: &[&str]) -> ExitStatus {
    let own = std::env::current_exe().unwrap();
    let mut command = match before {
        [] => Command::new(&own),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(&own);
            command
        }
    };
    command.args(["--exact", "in_a_process_of_its_own", "--nocapture", "--test-threads=1"]);
    let output = command.env(ROLE, role).output().unwrap();
    println!("{role}: {}", String::from_utf8_lossy(&output.stdout));
    println!("{}", String::from_utf8_lossy(&output.stderr));
    output.status
}

extern "C" fn programs_own_handler(_: i32) {
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(42) };
}

static MET: AtomicBool = AtomicBool::new(false);
static MENDED: AtomicBool = AtomicBool::new(false);

extern "C" fn waits_for_help(_: i32) {
    MET.store(true, Ordering::SeqCst);
    while !MENDED.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

/// Loads a byte; when that is SIGBUS, another thread mends what is wrong, and the load is made once
/// more.
fn load_with(region: &Region, at: usize, mend: impl FnOnce() + Send) -> u8 {
    touch_with(|| load(region, at), mend)
}

fn touch_with<T>(touch: impl FnOnce() -> T, mend: impl FnOnce() + Send) -> T {
    MET.store(false, Ordering::SeqCst);
    MENDED.store(false, Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !MET.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            mend();
            MENDED.store(true, Ordering::SeqCst);
        });
        touch()
    })
}

/// The roles.
#[test]
fn in_a_process_of_its_own() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let [path, what, page] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("no role") };
    let page: usize = page.parse().unwrap();
    let path = match path {
        "thread" => FaultPath::Thread,
        "inline" => FaultPath::Inline,
        _ => FaultPath::Explicit,
    };
    let handler = match what {
        "handled" => Some(programs_own_handler as extern "C" fn(i32)),
        "tries_again" | "grows" | "copies_again" => Some(waits_for_help as extern "C" fn(i32)),
        _ => None,
    };
    if let Some(handler) = handler {
        // SAFETY: the handlers end the process, or wait and touch what a region has.
        unsafe { libc::signal(libc::SIGBUS, handler as usize) };
    }
    let Some(cache) = sized(path, "lru", page) else { std::process::exit(77) };
    let chaos = Chaos::new(64 * PAGE.max(page / 16));
    let segment = cache.open_store(ChaosStore(chaos.clone()), "chaos").unwrap();
    match what {
        "unreadable" | "handled" => {
            chaos.set(&chaos.load_fails, 1000);
            let region = segment.map(0..page as u64, Protection::Read).unwrap();
            println!("read {}", load(&region, page - 1));
        }
        "left" => {
            // It was there, and protected: the kernel keeps a mark of that when it leaves.
            let region = segment.map(0..page as u64, Protection::ReadWrite).unwrap();
            assert_eq!(load(&region, 0), 0);
            segment.advise(0..page as u64, Advice::DontNeed).unwrap();
            chaos.set(&chaos.load_fails, 1000);
            println!("read {}", load(&region, 0));
        }
        "truncated" => {
            let region = segment.map(0..64 * 4096, Protection::Read).unwrap();
            assert_eq!(load(&region, 3 * PAGE), 0);
            segment.set_len(4096).unwrap();
            println!("read {}", load(&region, 3 * PAGE));
        }
        "cut" => {
            // In the midst of a large page, which stays in memory.
            let region = segment.map(0..2 * page as u64, Protection::ReadWrite).unwrap();
            (0..2 * page).step_by(PAGE).for_each(|at| store(&region, at, 1));
            segment.set_len((page + 2 * PAGE + 1) as u64).unwrap();
            assert_eq!(load(&region, page + 2 * PAGE), 1);
            assert_eq!(load(&region, page + 3 * PAGE - 1), 0);
            println!("read {}", load(&region, page + 3 * PAGE));
        }
        "short" if !can_copy(page) => std::process::exit(77),
        "short" => {
            // No page behind the end was ever shown.
            segment.set_len((page + 1) as u64).unwrap();
            let region = segment.map(0..2 * page as u64, Protection::CopyOnWrite).unwrap();
            store(&region, page, 1);
            assert_eq!((load(&region, page), load(&region, page + PAGE - 1)), (1, 0));
            println!("read {}", load(&region, 2 * page - 1));
        }
        "forked" => {
            let region = segment.map(0..64 * 4096, Protection::Read).unwrap();
            assert_eq!(load(&region, 0), 0);
            // SAFETY: the child touches memory and ends.
            if unsafe { libc::fork() } == 0 {
                load(&region, 0);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: waits for the child just made.
            unsafe { libc::wait(&mut status) };
            assert_eq!(ExitStatus::from_raw(status).signal(), Some(libc::SIGSEGV));
        }
        "tries_again" if !can_copy(page) => std::process::exit(77),
        "tries_again" => {
            for protection in [Protection::Read, Protection::CopyOnWrite] {
                let region = segment.map(0..page as u64, protection).unwrap();
                let at = (5 * PAGE).min(page - PAGE);
                // Also of a page that was there before.
                for _ in 0..2 {
                    let before = cache.stats().failed_faults;
                    chaos.set(&chaos.load_fails, 1000);
                    let calm = || chaos.set(&chaos.load_fails, 0);
                    assert_eq!(load_with(&region, at, calm), 0);
                    assert!(cache.stats().failed_faults > before);
                    segment.advise(0..page as u64, Advice::DontNeed).unwrap();
                }
                if protection == Protection::CopyOnWrite && page > PAGE {
                    // What took the place of a mark meanwhile stays.
                    chaos.set(&chaos.load_fails, 1000);
                    let copies = || {
                        chaos.set(&chaos.load_fails, 0);
                        store(&region, 7 * PAGE, 3);
                    };
                    assert_eq!(load_with(&region, at, copies), 0);
                    store(&region, at, 4);
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    assert_eq!((load(&region, at), load(&region, 7 * PAGE)), (4, 3));
                }
            }
        }
        "copies_again" if !can_copy(page) => std::process::exit(77),
        "copies_again" => {
            let region = segment.map(0..page as u64, Protection::CopyOnWrite).unwrap();
            chaos.set(&chaos.load_fails, 1000);
            // SAFETY: a touch that fails for ever ends the process.
            unsafe { libc::alarm(30) };
            touch_with(|| store(&region, 0, 1), || chaos.set(&chaos.load_fails, 0));
            assert_eq!((load(&region, 0), load(&region, 1)), (1, 0));
        }
        "full" | "full_and_deaf" => {
            chaos.set(&chaos.full, 1000);
            let region = segment.map(0..2 * page as u64, Protection::ReadWrite).unwrap();
            // One that was there, too, and is protected.
            assert_eq!(load(&region, page), 0);
            // SAFETY: reads into the region; a call that waits for ever ends the process.
            unsafe {
                libc::alarm(30);
                let zero = libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY);
                for at in [0, page] {
                    let got = libc::read(zero, region.as_mut_ptr().add(at).cast(), PAGE);
                    assert_eq!(
                        (got, std::io::Error::last_os_error().raw_os_error()),
                        (-1, Some(EFAULT))
                    );
                }
            }
            // Reading needs no room, as soon as that is over.
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(load(&region, 0) + load(&region, page), 0);
            if what == "full_and_deaf" {
                // SAFETY: sets are made before they are used.
                unsafe {
                    let mut set = std::mem::zeroed();
                    libc::sigaddset(&mut set, libc::SIGBUS);
                    libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
                }
                store(&region, 0, 1);
            }
        }
        "grows" => {
            segment.set_len((page + 1) as u64).unwrap();
            let region = segment.map(0..2 * page as u64, Protection::Read).unwrap();
            assert_eq!(load(&region, page), 0);
            let grow = || segment.write_all_at(&[6], (page + 5 * PAGE) as u64).unwrap();
            assert_eq!(load_with(&region, page + 5 * PAGE, grow), 6);
        }
        "lacks_descriptors" => lacks_descriptors(path),
        "works" => works(&cache, &segment, path),
        other => panic!("no role {other}"),
    }
}

/// With so few descriptors left there is no cache; with one more there is, and its regions are served.
fn lacks_descriptors(path: FaultPath) {
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().file_name().to_str().unwrap().parse::<u64>().unwrap()
    };
    // Below it there are so many numbers that are free.
    let end_of_free = |free: usize| {
        let open: Vec<u64> = std::fs::read_dir("/proc/self/fd").unwrap().map(number).collect();
        (0..).filter(|number| !open.contains(number)).nth(free).unwrap()
    };
    let mut usual = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is there to be filled, for a moment; a touch that waits for ever ends the
    // process.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut usual);
        libc::alarm(30);
    }
    let limit = |rlim_cur: u64| {
        let limit = libc::rlimit { rlim_cur, ..usual };
        // SAFETY: the struct is there, and a limit takes no descriptor away.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    };
    let mut made = Vec::new();
    for free in 0..16 {
        limit(end_of_free(free));
        let cache = Cache::builder((TINY_PAGES * PAGE) as u64).fault_path(path).build();
        // Its threads have begun by then.
        std::thread::sleep(std::time::Duration::from_millis(20));
        limit(usual.rlim_cur);
        let Ok(cache) = cache.inspect_err(|error| assert_eq!(error.raw_os_error(), Some(EMFILE)))
        else {
            made.push(false);
            continue;
        };
        let segment = cache.scratch(PAGE as u64).unwrap();
        let region = segment.map(0..PAGE as u64, Protection::Read).unwrap();
        assert_eq!(load(&region, 0), 0);
        made.push(true);
    }
    assert!(made.is_sorted() && !made[0] && made[15], "{made:?}");
}

fn works(cache: &Cache, segment: &Segment, path: FaultPath) {
    for i in 0..64u64 {
        segment.write_all_at(&[i as u8; PAGE], i * 4096).unwrap();
    }
    let mut page = [0; PAGE];
    for i in 0..64u64 {
        segment.read_exact_at(&mut page, i * 4096).unwrap();
        assert_eq!(page, [i as u8; PAGE]);
    }
    if path != FaultPath::Explicit {
        let region = segment.map(0..64 * 4096, Protection::ReadWrite).unwrap();
        for i in 0..64 {
            assert_eq!(load(&region, i * PAGE + 1), i as u8);
            store(&region, i * PAGE, 0xcc);
        }
        assert_eq!(load(&region, 0), 0xcc);
    }
    segment.flush().unwrap();
    assert!(cache.stats().total.evictions > 64);
}

fn unless_skipped(status: ExitStatus, check: impl FnOnce(ExitStatus)) {
    if status.code() == Some(77) {
        println!("skipped: the fault path is missing here");
    } else {
        check(status);
    }
}

#[test]
fn what_cannot_be_served_is_sigbus() {
    for path in ["thread", "inline"] {
        let small = ["unreadable", "left", "truncated"].map(|what| (what, PAGE));
        let large = ["unreadable", "left", "cut", "short"].map(|what| (what, 64 << 10));
        for (what, page) in small.into_iter().chain(large).chain([("unreadable", 2 << 20)]) {
            unless_skipped(child(&format!("{path} {what} {page}"), &[]), |status| {
                assert_eq!(status.signal(), Some(libc::SIGBUS), "{path} {what} {page}: {status}");
            });
        }
        unless_skipped(child(&format!("{path} handled {PAGE}"), &[]), |status| {
            assert_eq!(status.code(), Some(42), "{path}: the program's own handler: {status}");
        });
        for what in [
            "tries_again 4096",
            "tries_again 65536",
            "copies_again 4096",
            "copies_again 65536",
            "grows 65536",
        ] {
            unless_skipped(child(&format!("{path} {what}"), &[]), |status| {
                assert!(status.success(), "{path}, {what}: {status}");
            });
        }
        unless_skipped(child(&format!("{path} forked {PAGE}"), &[]), |status| {
            assert!(status.success(), "{path}, forked: {status}");
        });
    }
}

/// A store that is refused room is told by a signal, which reaches no thread that waits in the kernel, or
/// blocks it: it waited for ever.
#[test]
fn who_hears_no_signal_is_refused_room_all_the_same() {
    for page in [PAGE, 64 << 10] {
        unless_skipped(child(&format!("thread full {page}"), &[]), |status| {
            assert!(status.success(), "{page}: {status}");
        });
        unless_skipped(child(&format!("thread full_and_deaf {page}"), &[]), |status| {
            assert_eq!(status.signal(), Some(libc::SIGBUS), "{page}: {status}");
        });
    }
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

/// A fault thread that had no descriptors to wait by ended at once, and nobody was told: the cache was
/// there, and who touched a region of it waited for ever.
#[test]
fn a_cache_that_cannot_serve_its_regions_is_none() {
    for path in ["thread", "inline"] {
        unless_skipped(child(&format!("{path} lacks_descriptors {PAGE}"), &[]), |status| {
            assert!(status.success(), "{path}: {status}");
        });
    }
}

#[test]
fn an_ordinary_user_may() {
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let may = Command::new(nobody[0]).args(&nobody[1..]).arg("true").status();
    if !may.is_ok_and(|status| status.success()) {
        println!("skipped: cannot become another user (needs root and setpriv)");
        return;
    }
    for path in ["explicit", "inline"] {
        unless_skipped(child(&format!("{path} works {PAGE}"), &nobody), |status| {
            assert!(status.success(), "{path}: {status}");
        });
    }
}
