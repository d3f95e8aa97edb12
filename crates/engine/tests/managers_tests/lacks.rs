//! Stores that give less, or claim to give more, than they were asked for.

use super::*;

const LEN: usize = 20 * PAGE + 1000;

/// A store that has nothing from a page on, though it is longer; or claims to have read more than there was
/// room for.
#[derive(Default, Debug)]
struct Odd {
    chaos: Arc<Chaos>,
    lacks_from: AtomicU64,
    boasts: AtomicBool,
    /// At the next load it becomes so long: before it has looked, or after.
    len_before: AtomicU64,
    len_after: AtomicU64,
}

const NOTHING: u64 = u64::MAX;

impl Odd {
    fn new() -> Arc<Odd> {
        let nothing = || AtomicU64::new(NOTHING);
        let odd = Odd {
            chaos: Chaos::new(LEN),
            lacks_from: nothing(),
            len_before: nothing(),
            len_after: nothing(),
            ..Odd::default()
        };
        odd.chaos.bytes.lock().unwrap().fill(7);
        Arc::new(odd)
    }

    fn become_long(&self, len: &AtomicU64) {
        let len = len.swap(NOTHING, Ordering::SeqCst);
        if len != NOTHING {
            self.chaos.bytes.lock().unwrap().resize(len as usize, 7);
        }
    }
}

impl Store for Odd {
    fn len(&self) -> io::Result<u64> {
        ChaosStore(self.chaos.clone()).len()
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        self.become_long(&self.len_before);
        let had = ChaosStore(self.chaos.clone()).load(offset, pages)?;
        self.become_long(&self.len_after);
        if self.boasts.load(Ordering::SeqCst) {
            return Ok(pages.len() + 1);
        }
        let most = self.lacks_from.load(Ordering::SeqCst).saturating_sub(offset);
        Ok(had.min(usize::try_from(most).unwrap_or(usize::MAX)))
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        ChaosStore(self.chaos.clone()).store(offset, bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        ChaosStore(self.chaos.clone()).set_len(len)
    }
}

const KINDS: [&str; 5] = ["plain", "pool", "discardable", "log", "mirror"];

fn above(kind: &str, odd: &Arc<Odd>, cache: &Cache) -> Arc<dyn Store> {
    let never = |_: u64, _: &mut [u8]| -> io::Result<()> { unreachable!("nothing is discardable") };
    let pool = cache.reserve(cache.budget_bytes() / 4).unwrap();
    match kind {
        "plain" => odd.clone(),
        "pool" => Arc::new(Compressed::new(odd.clone(), pool, Codec::Lz4)),
        "discardable" => Arc::new(Discardable::new(odd.clone(), never)),
        "log" => {
            let log = ChaosStore(Chaos::new(0));
            Arc::new(Logged::open(odd.clone(), log, 64 << 10).unwrap())
        }
        _ => Arc::new(Mirrored::new(odd.clone(), odd.clone()).unwrap()),
    }
}

/// What a store had not read, in the midst of it, was zeros, and nobody heard of it.
#[test]
fn what_a_store_lacks_is_an_error_and_never_zeros() {
    for page in [PAGE, 4 * PAGE] {
        for kind in KINDS {
            let cache = tiny_of(page, 0);
            let odd = Odd::new();
            let segment = cache.open_store(above(kind, &odd, &cache), kind).unwrap();
            let read = |at: usize| {
                let mut got = [1; 8];
                segment.read_exact_at(&mut got, at as u64).map(|()| got)
            };
            let refused = |at: usize| {
                let told = read(at).map_err(|error| error.raw_os_error());
                assert_eq!(told, Err(Some(EIO)), "{kind}, pages of {page}, at {at}");
            };
            odd.lacks_from.store((8 * PAGE + 5) as u64, Ordering::SeqCst);
            assert_eq!(read(0).unwrap(), [7; 8], "{kind}");
            for at in [8 * PAGE, 9 * PAGE, LEN - 8] {
                refused(at);
                // Nor is a part of the page written to.
                assert!(segment.write_at(b"x", at as u64).is_err(), "{kind}");
            }
            odd.lacks_from.store(NOTHING, Ordering::SeqCst);
            odd.boasts.store(true, Ordering::SeqCst);
            refused(16 * PAGE);
            odd.boasts.store(false, Ordering::SeqCst);
            let mut all = vec![1; LEN];
            segment.read_exact_at(&mut all, 0).unwrap();
            assert!(all.iter().all(|byte| *byte == 7), "{kind}, pages of {page}");
        }
    }
}

/// The other side of a mirror has what one lacks.
#[test]
fn what_one_side_lacks_the_other_has() {
    let cache = tiny(0);
    let (odd, sound) = (Odd::new(), Odd::new());
    odd.lacks_from.store(8 * PAGE as u64, Ordering::SeqCst);
    let mirror = Arc::new(Mirrored::new(odd.clone(), sound).unwrap());
    let segment = cache.open_store(mirror.clone(), "mirrored").unwrap();
    let mut all = vec![1; LEN];
    segment.read_exact_at(&mut all, 0).unwrap();
    assert!(all.iter().all(|byte| *byte == 7));
    assert_eq!(mirror.take_error(Side::First).unwrap().raw_os_error(), Some(EIO));
}

/// A log that lacks a part is not taken for one that ends there.
#[test]
fn a_log_that_lacks_a_part_is_not_put_in_place() {
    let (below, log) = (Chaos::new(20 * PAGE), Odd::new());
    log.chaos.bytes.lock().unwrap().clear();
    let open = || Logged::open(ChaosStore(below.clone()), log.clone(), 1 << 30);
    let cache = tiny(0);
    let segment = cache.open_store(open().unwrap(), "logged").unwrap();
    segment.write_all_at(&[5; 8 * PAGE], 0).unwrap();
    segment.flush().unwrap();
    drop(segment);
    log.lacks_from.store(3 * PAGE as u64, Ordering::SeqCst);
    let refused = open().map(drop).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(EIO));
    log.lacks_from.store(NOTHING, Ordering::SeqCst);
    drop(open().unwrap());
    assert!(bytes_of(&below)[..8 * PAGE] == [5; 8 * PAGE]);
}

/// A store that becomes shorter or longer while it is read lacks nothing.
#[test]
fn a_length_that_changes_meanwhile_is_no_error() {
    for kind in ["plain", "pool", "discardable", "mirror"] {
        for (before, after) in [(3 * PAGE, 0), (0, 3 * PAGE), (LEN + 500, 0), (0, 30 * PAGE)] {
            let cache = tiny(0);
            let odd = Odd::new();
            let segment = cache.open_store(above(kind, &odd, &cache), kind).unwrap();
            for (place, len) in [(&odd.len_before, before), (&odd.len_after, after)] {
                place.store(if len > 0 { len as u64 } else { NOTHING }, Ordering::SeqCst);
            }
            let mut got = [1; 8];
            let read = segment.read_at(&mut got, (LEN - 8) as u64);
            assert!(read.is_ok(), "{kind}, {before} before it reads, {after} after: {read:?}");
            let is_shorter = [before, after].contains(&(3 * PAGE));
            assert!(got == [7; 8] || is_shorter, "{kind}: {got:?}");
        }
    }
}
