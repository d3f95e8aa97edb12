//! What is discardable, and what is not.

use super::*;

const M: u8 = b'M';
/// The machine's pages and large ones.
const SIZES: [usize; 2] = [PAGE, 64 << 10];

fn make(_: u64, pages: &mut [u8]) -> io::Result<()> {
    pages.fill(M);
    Ok(())
}

fn read(segment: &Segment) -> Vec<u8> {
    let mut bytes = vec![0; segment.len() as usize];
    segment.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Writes all back and reads it anew.
fn read_anew(segment: &Segment) -> Vec<u8> {
    segment.flush().unwrap();
    segment.advise(0..u64::MAX, Advice::DontNeed).unwrap();
    read(segment)
}

/// Advice reached to the end of the page that the segment ended in: what was appended there was dropped,
/// and made anew as something else.
#[test]
fn what_is_appended_behind_discardable_pages_is_kept() {
    for page in SIZES {
        let cache = tiny_of(page, 0);
        let chaos = Chaos::new(10_000);
        let store = Arc::new(Discardable::new(ChaosStore(chaos.clone()), make));
        let segment = cache.open_store(store.clone(), "index").unwrap();
        segment.advise(0..10_000, Advice::Discardable).unwrap();
        segment.write_all_at(&[b'A'; 40_000], 10_000).unwrap();
        let all = read_anew(&segment);
        assert!(all[10_000..] == [b'A'; 40_000], "pages of {page}: {}", all[10_000]);
        assert!(all[..10_000] == [M; 10_000]);
        // Advice anew is for all that there is by now.
        segment.advise(0..50_000, Advice::Discardable).unwrap();
        segment.advise(0..50_000, Advice::DontNeed).unwrap();
        assert!(read(&segment) == [M; 50_000]);

        // Pages that were needed again before they were written; and nothing is written this time.
        segment.set_len(10_000).unwrap();
        segment.advise(0..10_000, Advice::Needed).unwrap();
        segment.advise(0..10_000, Advice::DontNeed).unwrap();
        segment.set_len(30_000).unwrap();
        for _ in 0..2 {
            let all = read_anew(&segment);
            assert!(all[..10_000] == [M; 10_000] && all[10_000..] == [0; 20_000], "{page}");
        }
        segment.write_all_at(b"end", 10_000).unwrap();
        let all = read_anew(&segment);
        assert!(all[..10_000] == [M; 10_000] && all[10_003..] == [0; 20_000 - 3], "{page}");
        assert_eq!(&all[10_000..10_003], b"end");
    }
}

/// What was cut off of a discardable page came back when the segment became longer.
#[test]
fn what_is_cut_off_discardable_pages_is_zeros() {
    for page in SIZES {
        let cache = tiny_of(page, 0);
        let store = Discardable::new(ChaosStore(Chaos::new(2 * PAGE)), make);
        let segment = cache.open_store(store, "index").unwrap();
        segment.advise(0..2 * PAGE as u64, Advice::Discardable).unwrap();
        segment.set_len(5000).unwrap();
        segment.set_len(2 * PAGE as u64).unwrap();
        for _ in 0..2 {
            let all = read_anew(&segment);
            assert!(all[..5000] == [M; 5000], "pages of {page}");
            assert!(all[5000..] == [0; 2 * PAGE - 5000], "pages of {page}: {}", all[6000]);
        }
        segment.set_len(4500).unwrap();
        segment.set_len(2 * PAGE as u64).unwrap();
        let all = read_anew(&segment);
        assert!(all[..4500] == [M; 4500] && all[4500..] == [0; 2 * PAGE - 4500]);
    }
}

/// The same of a store that somebody else makes longer, who writes there.
#[test]
fn what_others_append_behind_discardable_pages_is_theirs() {
    for page in SIZES {
        let cache = tiny_of(page, 0);
        let chaos = Chaos::new(10_000);
        let store = Discardable::new(ChaosStore(chaos.clone()), make);
        let segment = cache.open_store(store, "index").unwrap();
        segment.advise(0..10_000, Advice::Discardable).unwrap();
        for is_dirty in [false, true] {
            if is_dirty {
                segment.write_all_at(b"x", segment.len() - 1).unwrap();
            }
            let before = segment.len() as usize;
            chaos.bytes.lock().unwrap().resize(before + 20_000, b'o');
            assert!(segment.refresh().unwrap());
            let all = read_anew(&segment);
            assert!(all[before..] == [b'o'; 20_000], "pages of {page}, {is_dirty}");
            assert!(all[..10_000 - 1] == [M; 10_000 - 1], "pages of {page}, {is_dirty}");
        }
    }
}

/// A pool above took a discardable page for written when it had been dropped, and did not hear that it was
/// needed: later it was made anew, in place of what had been read since.
#[test]
fn a_page_in_a_pool_is_kept_once_it_is_needed() {
    const PAGES: u64 = 400;
    let page = |at: u64| at * PAGE as u64;
    let cache = builder(256 << 10).workers(0).write_back_period(None).build().unwrap();
    let below = Discardable::new(ChaosStore(Chaos::new(PAGES as usize * PAGE)), make);
    let store = Compressed::new(below, cache.reserve(64 << 10).unwrap(), Codec::Lz4);
    let segment = cache.open_store(store, "index").unwrap();
    let read = |at: u64| {
        let mut bytes = [0; 8];
        segment.read_exact_at(&mut bytes, page(at)).unwrap();
        bytes[7]
    };
    segment.advise(0..page(PAGES), Advice::Discardable).unwrap();
    segment.write_all_at(&[b'X'; PAGE], 0).unwrap();
    // It leaves for the pool, dirty.
    (100..160).for_each(|at| assert_eq!(read(at), M));
    assert!(!segment.attributes(0..1).unwrap()[0].resident);
    segment.flush().unwrap();
    segment.advise(0..page(4), Advice::Needed).unwrap();
    let found = read(0);
    for _ in 0..3 {
        (1..PAGES).for_each(|at| assert_eq!(read(at), M));
    }
    assert_eq!(read(0), found);
}

/// Of a large page that the store ended in only the last 4 KiB were needed when it was longer: what was written
/// to the first ones, and flushed, was dropped and made anew.
#[test]
fn a_large_page_is_needed_as_a_whole_once_the_store_is_longer() {
    type Grow = fn(&Segment, &Chaos, usize);
    let ways: [Grow; 3] = [
        |segment, _, len| segment.set_len(len as u64).unwrap(),
        |segment, _, len| segment.write_all_at(b"end", len as u64 - 3).unwrap(),
        |segment, chaos, len| {
            chaos.bytes.lock().unwrap().resize(len, 0);
            assert!(segment.refresh().unwrap());
        },
    ];
    for page in SIZES {
        for (way, grow) in ways.iter().enumerate() {
            let cache = tiny_of(page, 0);
            let end = page + page / 2 + 100;
            let chaos = Chaos::new(end);
            let store = Discardable::new(ChaosStore(chaos.clone()), make);
            let segment = cache.open_store(store, "index").unwrap();
            segment.advise(page as u64..end as u64, Advice::Discardable).unwrap();
            assert!(read_anew(&segment)[page..] == vec![M; end - page]);
            grow(&segment, &chaos, 4 * page);
            assert!(read_anew(&segment)[page..end] == vec![M; end - page], "{page}, {way}");
            segment.write_all_at(b"kept", page as u64).unwrap();
            segment.write_all_at(b"too", 2 * page as u64 - 3).unwrap();
            let all = read_anew(&segment);
            assert_eq!(&all[page..page + 4], b"kept", "pages of {page}, {way}");
            assert_eq!(&all[2 * page - 3..2 * page], b"too", "pages of {page}, {way}");
            assert!(all[page + 4..end] == vec![M; end - page - 4], "pages of {page}, {way}");
        }
    }
}

/// A store that cannot say how long it is when it has just become shorter.
struct Startled(ChaosStore, AtomicBool);

impl Store for Startled {
    fn len(&self) -> io::Result<u64> {
        assert!(!self.1.swap(false, Ordering::SeqCst), "as it is told to");
        self.0.len()
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        self.0.load(offset, pages)
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.store(offset, bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)?;
        self.1.store(true, Ordering::SeqCst);
        Ok(())
    }
}

/// A panic of the store where its errors do not matter was one of all that was done.
#[test]
fn a_store_below_that_panics_is_one_with_an_error() {
    let store = Startled(ChaosStore(Chaos::new(4 * PAGE)), AtomicBool::new(false));
    let segment = tiny(0).open_store(Discardable::new(store, make), "index").unwrap();
    segment.set_len(5000).unwrap();
    assert_eq!(segment.len(), 5000);
}
