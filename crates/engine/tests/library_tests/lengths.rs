//! Lengths, and who has a page pinned.

use super::*;

/// A segment that became shorter cleared what it cut off of its last page while somebody had a
/// reference to it, and then waited for that guard, for ever if it was the thread's own.
#[test]
fn a_page_is_not_cut_in_two_while_it_is_pinned() {
    in_time(|| {
        let cache = tiny(0, "lru");
        let segment = cache.scratch(3 * PAGE as u64).unwrap();
        segment.write_all_at(&[7; 3 * PAGE], 0).unwrap();
        let shared = segment.pin(0..PAGE as u64).unwrap();
        assert_eq!(errno(segment.set_len(100)), Some(EBUSY));
        assert_eq!(*shared, [7; PAGE]);
        drop(shared);
        let mut alone = segment.pin_mut(0..PAGE as u64).unwrap();
        let cut = || errno(segment.set_len(100));
        let other = std::thread::scope(|scope| scope.spawn(cut).join().unwrap());
        assert_eq!(other, Some(EBUSY));
        assert_eq!(*alone, [7; PAGE]);
        alone.fill(8);
        assert_eq!(segment.len(), 3 * PAGE as u64);
        // What lies behind it goes.
        segment.set_len(PAGE as u64).unwrap();
        drop(alone);
        segment.set_len(100).unwrap();
        segment.set_len(PAGE as u64).unwrap();
        let mut page = [1; PAGE];
        segment.read_exact_at(&mut page, 0).unwrap();
        assert!(page[..100] == [8; 100] && page[100..] == [0; PAGE - 100]);
    });
}

/// Making a segment longer waited for guards of the page that it ended in, also for those of its own
/// thread.
#[test]
fn a_segment_grows_beside_guards_of_its_last_page() {
    in_time(|| {
        let cache = tiny(0, "lru");
        let segment = cache.scratch(100).unwrap();
        segment.write_all_at(&[7; 100], 0).unwrap();
        let mut page = [1; PAGE];
        for exclusive in [false, true] {
            segment.set_len(100).unwrap();
            let shared = (!exclusive).then(|| segment.pin(0..100).unwrap());
            let alone = exclusive.then(|| segment.pin_mut(0..100).unwrap());
            segment.set_len(2 * PAGE as u64).unwrap();
            assert_eq!(segment.write_at(b"far out", 4 * PAGE as u64).unwrap(), 7);
            assert_eq!(segment.len(), 4 * PAGE as u64 + 7);
            assert!(shared.as_deref().or(alone.as_deref()).unwrap() == [7; 100]);
            drop((shared, alone));
            segment.read_exact_at(&mut page, 0).unwrap();
            assert!(page[..100] == [7; 100] && page[100..] == [0; PAGE - 100]);
        }
    });
}

/// Guards come and go while a segment becomes shorter and longer: what they show does not change, and
/// lies before the end.
#[test]
fn guards_and_lengths_agree_in_a_race() {
    in_time(|| {
        let cache = tiny(0, "lru");
        let segment = cache.scratch(PAGE as u64).unwrap();
        let is_over = AtomicBool::new(false);
        let pins = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for exclusive in [false, true] {
                let (segment, is_over, pins) = (segment.clone(), &is_over, &pins);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let pinned = match exclusive {
                            false => segment.pin(0..PAGE as u64).map(|pin| {
                                let bytes: [u8; PAGE] = (*pin).try_into().unwrap();
                                std::thread::yield_now();
                                assert!(*pin == bytes, "changed while it is pinned");
                            }),
                            true => segment.pin_mut(0..PAGE as u64).map(|mut pin| {
                                pin.fill(9);
                                std::thread::yield_now();
                                assert!(*pin == [9; PAGE], "changed while it is pinned");
                            }),
                        };
                        match pinned {
                            Ok(()) => drop(pins.fetch_add(1, Ordering::Relaxed)),
                            Err(error) => assert_eq!(error.raw_os_error(), Some(EINVAL)),
                        }
                    }
                });
            }
            let mut cuts = 0;
            while cuts < 2000 || pins.load(Ordering::Relaxed) < 2000 {
                match segment.set_len(100) {
                    Ok(()) => cuts += 1,
                    Err(error) => assert_eq!(error.raw_os_error(), Some(EBUSY)),
                }
                segment.set_len(PAGE as u64).unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
}

/// A store that cannot say how long it is, for some calls after it became shorter.
struct Speechless {
    chaos: ChaosStore,
    silent_calls: AtomicU32,
}

impl Store for Speechless {
    fn len(&self) -> io::Result<u64> {
        let silent = |left: u32| left.checked_sub(1);
        match self.silent_calls.fetch_update(Ordering::SeqCst, Ordering::SeqCst, silent) {
            Ok(_) => Err(io::Error::from_raw_os_error(EIO)),
            Err(_) => self.chaos.len(),
        }
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        self.chaos.load(offset, pages)
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.chaos.store(offset, bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let is_shorter = len < self.chaos.len()?;
        self.silent_calls.store(if is_shorter { 3 } else { 0 }, Ordering::SeqCst);
        self.chaos.set_len(len)
    }
}

/// The length before stayed the known one: what was written behind the new one then made nothing longer,
/// and was not written back.
#[test]
fn a_store_that_cannot_say_its_new_length_has_it() {
    let chaos = Chaos::new(4 * PAGE);
    let silent_calls = AtomicU32::new(0);
    let store = Arc::new(Speechless { chaos: ChaosStore(chaos.clone()), silent_calls });
    let segment = tiny(0, "lru").open_store(store.clone(), "speechless").unwrap();
    segment.write_all_at(&[1; 4 * PAGE], 0).unwrap();
    segment.set_len(PAGE as u64 + 10).unwrap();
    assert_eq!(segment.len(), PAGE as u64 + 10);
    segment.write_all_at(b"late", 3 * PAGE as u64).unwrap();
    segment.flush().unwrap();
    let mut expected = vec![1; PAGE + 10];
    expected.resize(3 * PAGE, 0);
    expected.extend(b"late");
    assert!(*chaos.bytes.lock().unwrap() == expected);
}
