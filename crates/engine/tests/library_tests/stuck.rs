//! What goes on while nearly nothing can leave memory, and who waits for whom.

use super::*;

/// So few frames that a read of several pages needs more of them than can be had.
const FRAMES: u64 = 16;

fn small() -> Cache {
    builder(FRAMES * PAGE as u64)
        .policy(PolicySpec::parse("lru").unwrap())
        .write_back_period(None)
        .build()
        .unwrap()
}

fn numbered(segment: &Segment, pages: u64) {
    for page in 0..pages {
        segment.write_all_at(&[page as u8 + 1; PAGE], page * PAGE as u64).unwrap();
    }
    segment.flush().unwrap();
}

/// The first page of several went for the last, whose coming it had made room for: the caller asked for all
/// of them again, for ever.
#[test]
fn reads_and_writes_of_several_pages_go_on_beside_pins() {
    in_time(|| {
        for pinned in 8..FRAMES - 1 {
            let segment = small().scratch(64 * PAGE as u64).unwrap();
            numbered(&segment, 64);
            let pin = |page| segment.pin(page * PAGE as u64..(page + 1) * PAGE as u64).unwrap();
            let pins: Vec<_> = (0..pinned).map(pin).collect();
            let mut pages = [0; 9 * PAGE];
            segment.read_exact_at(&mut pages, 40 * PAGE as u64).unwrap();
            for (i, page) in pages.chunks(PAGE).enumerate() {
                assert!(page.iter().all(|byte| usize::from(*byte) == i + 41), "page {i}");
            }
            segment.write_all_at(&pages[..3 * PAGE], 20 * PAGE as u64).unwrap();
            drop(pins);
            let mut again = [0; 3 * PAGE];
            segment.read_exact_at(&mut again, 20 * PAGE as u64).unwrap();
            assert!(again[..] == pages[..3 * PAGE]);
        }
    });
}

/// Threads took from each other what was being fetched, and fetched it anew, since all else was pinned: each
/// page came a dozen times before it was pinned.
#[test]
fn pages_that_are_fetched_to_be_pinned_come_beyond_those_that_are_pinned() {
    const THREADS: u64 = 8;
    const OPERATIONS: u64 = 100;
    const PINS: u64 = 3;
    in_time(|| {
        let cache = small();
        let segment = cache.scratch(2048 * PAGE as u64).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let segment = &segment;
                scope.spawn(move || {
                    for i in 0..OPERATIONS {
                        let page = |n| n * 600 + (i * 37 + thread * 71) % 500;
                        let pin = |at| segment.pin_mut(at * PAGE as u64..(at + 1) * PAGE as u64);
                        let mut pins: Vec<_> =
                            (0..PINS).map(|n| pin(page(n)).expect("a pin")).collect();
                        pins.iter_mut().for_each(|pin| pin[0] += 1);
                    }
                });
            }
        });
        let fetched = cache.stats().total.major_faults;
        let pinned = THREADS * OPERATIONS * PINS;
        assert!(fetched < pinned * 2, "{fetched} pages were fetched for {pinned} pins");
        let count = |at: u64| {
            let mut byte = [0];
            segment.read_exact_at(&mut byte, at * PAGE as u64).unwrap();
            u64::from(byte[0])
        };
        assert_eq!((0..2048).map(count).sum::<u64>(), pinned);
    });
}

#[test]
fn reads_and_writes_of_several_pages_end_though_nothing_can_be_written_back() {
    in_time(|| {
        let chaos = Chaos::new(256 * PAGE);
        let segment = small().open_store(ChaosStore(chaos.clone()), "full").unwrap();
        chaos.set(&chaos.store_fails, 1000);
        let mut model = vec![0; 256 * PAGE];
        for page in (0..60).step_by(3) {
            let bytes = page * PAGE..(page + 3) * PAGE;
            model[bytes.clone()].fill(page as u8 + 1);
            segment.write_all_at(&model[bytes.clone()], bytes.start as u64).unwrap();
            let mut found = [9; 9 * PAGE];
            segment.read_exact_at(&mut found, 200 * PAGE as u64).unwrap();
            assert_eq!(found, [0; 9 * PAGE]);
        }
        assert_eq!(errno(segment.flush()), Some(ENOSPC));
        let counts = segment.cache().stats().total;
        let resident = segment.attributes(0..60 * PAGE as u64).unwrap();
        assert!(resident.iter().all(|page| page.resident && page.dirty), "a dirty page left");
        assert!(counts.evictions < 40 * 9, "only what was read can have left: {counts:?}");
        chaos.calm();
        segment.flush().unwrap();
        assert!(*chaos.bytes.lock().unwrap() == model);
    });
}

/// Pages that were chosen, and could not leave, counted as evicted.
#[test]
fn what_cannot_leave_is_not_evicted() {
    let chaos = Chaos::new(64 * PAGE);
    let segment = small().open_store(ChaosStore(chaos.clone()), "full").unwrap();
    chaos.set(&chaos.store_fails, 1000);
    for page in 0..40 {
        segment.write_all_at(&[1; PAGE], page * PAGE as u64).unwrap();
    }
    assert_eq!(segment.cache().stats().total.evictions, 0);
}

/// A store of a fixed length. Its `len` takes until somebody is about to make the segment shorter.
struct Fixed {
    chaos: ChaosStore,
    is_asked: AtomicBool,
    is_cut: Arc<AtomicBool>,
}

impl Store for Fixed {
    fn len(&self) -> io::Result<u64> {
        if self.is_asked.swap(false, Ordering::SeqCst) {
            while !self.is_cut.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        self.chaos.len()
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        self.chaos.load(offset, pages)
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.chaos.store(offset, bytes)
    }
}

/// A write-back beside it took the page for one that is cut off: it counted as written, and was dropped.
#[test]
fn a_length_that_cannot_be_set_loses_nothing() {
    in_time(|| {
        let chaos = Chaos::new(4 * PAGE);
        let is_cut = Arc::new(AtomicBool::new(false));
        let store = Arc::new(Fixed {
            chaos: ChaosStore(chaos.clone()),
            is_asked: AtomicBool::new(false),
            is_cut: is_cut.clone(),
        });
        let segment = small().open_store(store.clone(), "fixed").unwrap();
        segment.write_all_at(&[b'x'; PAGE], 3 * PAGE as u64).unwrap();
        store.is_asked.store(true, Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| segment.write_back(0..u64::MAX).unwrap());
            while store.is_asked.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let cuts = scope.spawn(|| errno(segment.set_len(PAGE as u64)));
            while segment.len() > PAGE as u64 && !cuts.is_finished() {
                std::thread::yield_now();
            }
            is_cut.store(true, Ordering::SeqCst);
            assert_eq!(cuts.join().unwrap(), Some(EINVAL));
        });
        let mut page = [0; PAGE];
        segment.read_exact_at(&mut page, 3 * PAGE as u64).unwrap();
        assert_eq!(page, [b'x'; PAGE]);
        segment.flush().unwrap();
        assert_eq!(chaos.bytes.lock().unwrap()[3 * PAGE], b'x');
    });
}

/// Who dropped a handle beside a guard waited for whoever flushed the cache, and that one for the guard.
#[test]
fn a_handle_is_dropped_beside_a_guard_while_the_cache_is_flushed() {
    in_time(|| {
        let cache = small();
        let segment = cache.scratch(4 * PAGE as u64).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    cache.flush().unwrap();
                }
            });
            for round in 0..400 {
                let mut guard = segment.pin_mut(0..PAGE as u64).unwrap();
                guard[0] = round as u8;
                for _ in 0..100 {
                    drop(segment.clone());
                }
            }
            is_over.store(true, Ordering::SeqCst);
        });
    });
}

#[test]
fn a_working_set_does_not_wait_for_guards() {
    in_time(|| {
        let cache = small();
        let place = tempfile::NamedTempFile::new().unwrap();
        let file = numbered_file(4);
        let segment = cache.open(file.path(), Options::new().writable(true)).unwrap();
        let mut pages = [0; 4 * PAGE];
        segment.read_exact_at(&mut pages, 0).unwrap();
        cache.save_working_set(place.path()).unwrap();
        let mut guard = segment.pin_mut(0..PAGE as u64).unwrap();
        guard[0] = 7;
        assert_eq!(cache.load_working_set(place.path()).unwrap(), 4);
    });
}
