//! What a flush that failed leaves, and what is taken back of it.

use super::flushes::{copy_of, errno, logged};
use super::*;

const P: u64 = PAGE as u64;

/// A store of which the calls of `store` after so many fail, as long as that is said.
#[derive(Debug)]
struct After {
    chaos: Arc<Chaos>,
    left: AtomicU64,
    /// Those that fail store all the same.
    stores: bool,
    no_sync: AtomicBool,
}

impl After {
    fn new(len: usize, stores: bool) -> Arc<After> {
        let (left, no_sync) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
        Arc::new(After { chaos: Chaos::new(len), left, stores, no_sync })
    }

    fn fail_after(&self, calls: u64) {
        self.left.store(calls, Ordering::SeqCst);
    }

    fn calm(&self) {
        self.fail_after(u64::MAX);
        self.no_sync.store(false, Ordering::SeqCst);
    }

    fn inner(&self) -> ChaosStore {
        ChaosStore(self.chaos.clone())
    }
}

impl Store for After {
    fn len(&self) -> io::Result<u64> {
        self.inner().len()
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        self.inner().load(offset, pages)
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let left = self.left.load(Ordering::SeqCst);
        if left == 0 {
            if self.stores {
                self.inner().store(offset, bytes)?;
            }
            return Err(io::Error::from_raw_os_error(EIO));
        }
        if left < u64::MAX {
            self.fail_after(left - 1);
        }
        self.inner().store(offset, bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner().set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        if self.no_sync.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.inner().sync()
    }
}

fn four(segment: &Segment, page: u64) -> [u8; 4] {
    let mut bytes = [0; 4];
    segment.read_exact_at(&mut bytes, page * P).unwrap();
    bytes
}

fn four_of(bytes: &[u8], page: usize) -> [u8; 4] {
    bytes[page * PAGE..][..4].try_into().unwrap()
}

/// What a flush that failed had appended stayed in the log, and was durable with the next one, though it had
/// been taken back.
#[test]
fn what_is_taken_back_of_a_failed_flush_is_not_durable() {
    // The log fails at the second write of the flush, at the descriptor, or when it is synced. Of a run of
    // pages, a part may be taken back.
    for (fails_after, syncs) in [(1, true), (2, true), (u64::MAX, false)] {
        for way in 0..4 {
            let (in_place, closes) = (way & 1 == 1, way & 2 == 2);
            let below = Chaos::new(64 * PAGE);
            let log = After::new(0, false);
            let store = Logged::open(ChaosStore(below.clone()), log.clone(), 1 << 20).unwrap();
            let store = Arc::new(store);
            let cache = tiny(0);
            let mut segment = cache.open_store(store.clone(), "table").unwrap();
            segment.set_write_back(WriteBack::OnCommit).unwrap();
            let write = |segment: &Segment, text: &[u8; 4]| {
                for page in [0, 1, 2, 8] {
                    segment.write_all_at(text, page * P).unwrap();
                }
            };
            write(&segment, b"old.");
            segment.flush().unwrap();
            if in_place {
                store.checkpoint().unwrap();
            }
            write(&segment, b"NEW.");
            log.fail_after(fails_after);
            log.no_sync.store(!syncs, Ordering::SeqCst);
            assert_eq!(errno(segment.flush()), Some(EIO));
            log.calm();
            if closes {
                drop(segment);
                segment = cache.open_store(store.clone(), "table").unwrap();
            } else {
                segment.discard(0..64 * P).unwrap();
            }
            let all = || [0, 1, 2, 8].map(|page| four(&segment, page));
            let what = format!("{fails_after} {syncs} {in_place} {closes}");
            assert_eq!(all(), [*b"old."; 4], "{what}");
            segment.write_all_at(b"more", 20 * P).unwrap();
            segment.flush().unwrap();
            assert_eq!(all(), [*b"old."; 4], "{what}");
            let crashed = copy_of(&below);
            drop(logged(&crashed, &copy_of(&log.chaos)));
            store.checkpoint().unwrap();
            for bytes in [bytes_of(&crashed), bytes_of(&below)] {
                let found = [0, 1, 2, 8].map(|page| four_of(&bytes, page));
                assert_eq!(found, [*b"old."; 4], "{what}");
                assert_eq!(four_of(&bytes, 20), *b"more");
            }
        }
    }
}

/// The same of a part of what was written together.
#[test]
fn a_part_of_a_failed_flush_may_be_taken_back() {
    let below = Chaos::new(64 * PAGE);
    let log = After::new(0, false);
    let store = Logged::open(ChaosStore(below.clone()), log.clone(), 1 << 20).unwrap();
    let cache = tiny(0);
    let segment = cache.open_store(store, "table").unwrap();
    segment.set_write_back(WriteBack::OnCommit).unwrap();
    for page in 0..6 {
        segment.write_all_at(b"old.", page * P).unwrap();
    }
    segment.flush().unwrap();
    for page in 0..6 {
        segment.write_all_at(b"NEW.", page * P).unwrap();
    }
    log.no_sync.store(true, Ordering::SeqCst);
    assert_eq!(errno(segment.flush()), Some(EIO));
    // Once more, in another place of the log.
    segment.write_all_at(b"LATE", 3 * P).unwrap();
    assert_eq!(errno(segment.flush()), Some(EIO));
    log.calm();
    segment.discard(P..2 * P).unwrap();
    segment.discard(3 * P..5 * P).unwrap();
    // What is cut off is not brought back either.
    segment.set_len(5 * P + 2).unwrap();
    segment.set_len(64 * P).unwrap();
    segment.discard(5 * P..6 * P).unwrap();
    let expected = [*b"NEW.", *b"old.", *b"NEW.", *b"old.", *b"old.", *b"ol\0\0"];
    let found = || [0, 1, 2, 3, 4, 5].map(|page| four(&segment, page));
    assert_eq!(found(), expected);
    // It is read again to be summed up: who cannot, says so, and tries another time.
    log.chaos.set(&log.chaos.load_fails, 1000);
    assert_eq!(errno(segment.flush()), Some(EIO));
    log.chaos.calm();
    segment.flush().unwrap();
    segment.advise(0..64 * P, Advice::DontNeed).unwrap();
    assert_eq!(found(), expected);
    let crashed = copy_of(&below);
    drop(logged(&crashed, &copy_of(&log.chaos)));
    let bytes = bytes_of(&crashed);
    assert_eq!([0, 1, 2, 3, 4, 5].map(|page| four_of(&bytes, page)), expected);
}

/// Each append left the length that it led to in the log, also where nothing was written between them.
#[test]
fn lengths_that_follow_each_other_are_one_in_the_log() {
    let (below, log) = (Chaos::new(100), Chaos::new(0));
    let store = logged(&below, &log);
    store.store(0, &[7; 100]).unwrap();
    for len in 101..9000 {
        store.set_len(len).unwrap();
    }
    store.sync().unwrap();
    assert!(store.log_bytes() <= 5 * P, "{} bytes of log", store.log_bytes());
    store.store(P, &[8; PAGE]).unwrap();
    // What was cut off does not come back.
    store.set_len(5000).unwrap();
    store.set_len(6000).unwrap();
    store.set_len(9000).unwrap();
    store.sync().unwrap();
    drop(store);
    drop(logged(&below, &log));
    let bytes = bytes_of(&below);
    assert!(bytes[..100] == [7; 100] && bytes[100..PAGE].iter().all(|byte| *byte == 0));
    assert!(bytes[PAGE..5000].iter().all(|byte| *byte == 8));
    assert!(bytes.len() == 9000 && bytes[5000..].iter().all(|byte| *byte == 0));
}

/// Where both sides failed, one had what was to be written and the other had not; and which one a read
/// showed, once it was taken back, depended on which side could be read.
#[test]
fn sides_that_failed_both_are_alike_once_nobody_has_what_they_lack() {
    for closed in [false, true] {
        let (a, b) = (After::new(64 * PAGE, true), After::new(64 * PAGE, false));
        let mirror = Arc::new(Mirrored::new(a.clone(), b.clone()).unwrap());
        let cache = tiny(0);
        let mut segment = cache.open_store(mirror.clone(), "mirror").unwrap();
        segment.write_all_at(b"old.", 7 * P).unwrap();
        segment.flush().unwrap();
        segment.write_all_at(b"NEW.", 7 * P).unwrap();
        a.fail_after(0);
        b.fail_after(0);
        assert_eq!(errno(segment.flush()), Some(EIO));
        assert!(!mirror.is_stale(Side::First) && !mirror.is_stale(Side::Second));
        if closed {
            drop(segment);
            a.calm();
            b.calm();
            segment = cache.open_store(mirror.clone(), "mirror").unwrap();
        } else {
            a.calm();
            b.calm();
            segment.discard(0..64 * P).unwrap();
        }
        let seen = four(&segment, 7);
        assert!(bytes_of(&a.chaos) == bytes_of(&b.chaos), "{closed}");
        a.chaos.set(&a.chaos.load_fails, 1000);
        segment.advise(0..64 * P, Advice::DontNeed).unwrap();
        assert_eq!(four(&segment, 7), seen);
    }

    // One that cannot be made like the other is stale.
    let (a, b) = (After::new(64 * PAGE, true), After::new(64 * PAGE, false));
    let mirror = Arc::new(Mirrored::new(a.clone(), b.clone()).unwrap());
    let segment = tiny(0).open_store(mirror.clone(), "mirror").unwrap();
    segment.write_all_at(b"NEW.", 7 * P).unwrap();
    a.fail_after(0);
    b.fail_after(0);
    assert_eq!(errno(segment.flush()), Some(EIO));
    segment.discard(0..64 * P).unwrap();
    assert!(!mirror.is_stale(Side::First) && !mirror.is_stale(Side::Second), "not read yet");
    assert_eq!(four(&segment, 7), *b"NEW.");
    assert!(!mirror.is_stale(Side::First) && mirror.is_stale(Side::Second));
    a.calm();
    b.calm();
    mirror.resync(Side::Second).unwrap();
    assert!(bytes_of(&a.chaos) == bytes_of(&b.chaos));
    // What is written after all leaves nothing to be made alike.
    segment.write_all_at(b"then", 7 * P).unwrap();
    a.fail_after(0);
    b.fail_after(0);
    assert_eq!(errno(segment.flush()), Some(EIO));
    a.calm();
    b.calm();
    segment.flush().unwrap();
    assert!(bytes_of(&a.chaos) == bytes_of(&b.chaos) && four(&segment, 7) == *b"then");
}
