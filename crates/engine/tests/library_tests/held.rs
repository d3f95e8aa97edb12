//! What waits for a program's guards, and what does not.

use super::*;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};

const EUSERS: i32 = 87;
/// Guards that a page can have.
const GUARDS_MAX: usize = 2048;

fn is_dirty(segment: &Segment, page: u64) -> bool {
    let from = page * PAGE as u64;
    segment.attributes(from..from + 1).unwrap()[0].dirty
}

/// The write-back thread waited for the one page, and wrote nothing of the whole cache as long as
/// its guard lived.
#[test]
fn a_guard_for_writing_holds_up_no_write_back_of_others() {
    in_time(|| {
        let cache =
            builder(1 << 20).write_back_period(Some(Duration::from_millis(5))).build().unwrap();
        let (first, second) = (cache.scratch(1 << 20).unwrap(), cache.scratch(1 << 20).unwrap());
        let mut alone = first.pin_mut(0..PAGE as u64).unwrap();
        alone.fill(1);
        first.write_all_at(&[2; PAGE], PAGE as u64).unwrap();
        first.write_all_at(&[2; PAGE], 7 * PAGE as u64).unwrap();
        second.write_all_at(&[3; PAGE], 0).unwrap();
        while is_dirty(&first, 1) || is_dirty(&first, 7) || is_dirty(&second, 0) {
            std::thread::yield_now();
        }
        assert!(is_dirty(&first, 0));
        drop(alone);
        while is_dirty(&first, 0) {
            std::thread::yield_now();
        }
    });
}

/// Who looks after processors as well, ten times a second, writes back no sooner and no later for it, and ends
/// with the cache.
#[test]
fn processors_are_kept_awake_beside_the_writing_back() {
    in_time(|| {
        for (period_ms, is_written) in [(Some(5), true), (Some(3_600_000), false), (None, false)] {
            let period = period_ms.map(Duration::from_millis);
            let cache = builder(1 << 20).write_back_period(period).keep_awake().build().unwrap();
            let segment = cache.scratch(4 << 20).unwrap();
            segment.write_all_at(&[1; PAGE], 0).unwrap();
            while is_written && is_dirty(&segment, 0) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(250));
            assert_eq!(is_dirty(&segment, 0), !is_written);
        }
    });
}

/// A page that is written back as soon as it is full was waited for in the same way, by the very
/// thread that had the page before it to itself.
#[test]
fn who_has_a_page_to_itself_may_fill_those_behind_it() {
    in_time(|| {
        let cache = tiny(0, "lru");
        let segment = cache.scratch(4 * PAGE as u64).unwrap();
        segment.set_write_back(WriteBack::WhenFull).unwrap();
        let alone = segment.pin_mut(PAGE as u64..2 * PAGE as u64).unwrap();
        segment.write_all_at(&[1; 100], 0).unwrap();
        segment.write_all_at(&[2; 2 * PAGE], 2 * PAGE as u64).unwrap();
        assert!(!is_dirty(&segment, 2) && !is_dirty(&segment, 3));
        drop(alone);
    });
}

/// A write that made the segment longer waited for guards with the length locked, and their owner,
/// who changed the length before letting go, for the length.
#[test]
fn the_length_changes_while_a_write_waits_for_a_guard() {
    for shorter in [false, true] {
        in_time(move || {
            let cache = tiny(0, "lru");
            let segment = cache.scratch(2 * PAGE as u64 + 100).unwrap();
            segment.write_all_at(&[1; 2 * PAGE + 100], 0).unwrap();
            let guard = segment.pin(0..PAGE as u64).unwrap();
            let writes = segment.clone();
            let writer = std::thread::spawn(move || {
                writes.write_all_at(&[2; 4 * PAGE], 50).unwrap();
            });
            // Nobody is told what it waits for.
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(segment.len(), 2 * PAGE as u64 + 100);
            let len = if shorter { PAGE as u64 } else { 10 * PAGE as u64 };
            segment.set_len(len).unwrap();
            assert!(guard.iter().all(|b| *b == 1));
            drop(guard);
            writer.join().unwrap();
            let mut expected = vec![1; 50];
            expected.resize(50 + 4 * PAGE, 2);
            if !shorter {
                expected.resize(10 * PAGE, 0);
            }
            let mut read = vec![0; segment.len() as usize];
            segment.read_exact_at(&mut read, 0).unwrap();
            assert!(read == expected, "{} bytes", read.len());
        });
    }
}

/// The guard after the last that a page can have waited for one of the others to go, which the
/// thread that waited may have had itself.
#[test]
fn a_page_has_so_many_guards_and_then_says_so() {
    in_time(|| {
        let cache = tiny(0, "lru");
        let segment = cache.scratch(2 * PAGE as u64).unwrap();
        segment.write_all_at(&[1; 2 * PAGE], 0).unwrap();
        let mut guards: Vec<_> =
            (0..GUARDS_MAX).map(|_| segment.pin(0..PAGE as u64).unwrap()).collect();
        assert_eq!(errno(segment.pin(0..PAGE as u64)), Some(EUSERS));
        // What other pages were pinned on the way there is let go.
        if translation() == Translation::Mapped {
            assert_eq!(errno(segment.pin(0..2 * PAGE as u64)), Some(EUSERS));
        }
        drop(segment.pin_mut(PAGE as u64..2 * PAGE as u64).unwrap());
        guards.pop();
        assert!(segment.pin(0..PAGE as u64).unwrap().iter().all(|b| *b == 1));
    });
}

/// A store whose writes end when that is said.
struct Slow {
    bytes: Mutex<Vec<u8>>,
    begun: Mutex<Sender<()>>,
    may_end: Mutex<Receiver<()>>,
    is_gone: Arc<AtomicBool>,
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.is_gone.store(true, Ordering::SeqCst);
    }
}

impl Store for Slow {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        let from = offset as usize;
        pages.copy_from_slice(&self.bytes.lock().unwrap()[from..from + pages.len()]);
        Ok(pages.len())
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.begun.lock().unwrap().send(()).unwrap();
        let _ = self.may_end.lock().unwrap().recv();
        let from = offset as usize;
        self.bytes.lock().unwrap()[from..from + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// What is discarded leaves out what is pinned, but waited for guards that were made after it had
/// looked.
#[test]
fn a_discard_waits_for_no_guard_that_comes_later() {
    in_time(|| {
        let ((begun, begins), (end, may_end)) = (channel(), channel());
        let store = Slow {
            bytes: vec![1; 8 * PAGE].into(),
            begun: begun.into(),
            may_end: may_end.into(),
            is_gone: Arc::default(),
        };
        let cache = tiny(0, "lru");
        let segment = cache.open_store(store, "slow").unwrap();
        segment.write_all_at(&[2; 2 * PAGE], 0).unwrap();
        let [writes, discards] = [segment.clone(), segment.clone()];
        let writer = std::thread::spawn(move || writes.write_back(0..PAGE as u64).unwrap());
        begins.recv().unwrap();
        let discarder = std::thread::spawn(move || discards.discard(0..2 * PAGE as u64).unwrap());
        // The first page is being written; the second goes.
        while segment.attributes(PAGE as u64..PAGE as u64 + 1).unwrap()[0].resident {
            std::thread::yield_now();
        }
        let guard = segment.pin(PAGE as u64..2 * PAGE as u64).unwrap();
        end.send(()).unwrap();
        writer.join().unwrap();
        discarder.join().unwrap();
        assert!(guard.iter().all(|b| *b == 1));
        drop((guard, end));
    });
}

/// While all of a cache was flushed, a segment whose last handle was dropped was closed by that thread,
/// later.
#[test]
fn a_segment_is_closed_with_its_last_handle_also_while_all_is_flushed() {
    in_time(|| {
        let ((begun, begins), (end, may_end)) = (channel(), channel());
        let is_gone = Arc::new(AtomicBool::new(false));
        let store = Slow {
            bytes: vec![1; 8 * PAGE].into(),
            begun: begun.into(),
            may_end: may_end.into(),
            is_gone: is_gone.clone(),
        };
        let cache = tiny(0, "lru");
        let segment = cache.open_store(store, "slow").unwrap();
        segment.write_all_at(&[2; PAGE], 0).unwrap();
        let flushes = cache.clone();
        let flusher = std::thread::spawn(move || flushes.flush().unwrap());
        begins.recv().unwrap();
        let later = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            end.send(()).unwrap();
        });
        drop(segment);
        assert!(is_gone.load(Ordering::SeqCst));
        later.join().unwrap();
        flusher.join().unwrap();
    });
}

/// A store that asks the cache that it is behind how it is.
struct Asks {
    pages: u64,
    cache: Arc<OnceLock<Cache>>,
    answers: Arc<AtomicU64>,
}

impl Store for Asks {
    fn len(&self) -> io::Result<u64> {
        Ok(self.pages * PAGE as u64)
    }

    fn load(&self, _: u64, pages: &mut [u8]) -> io::Result<usize> {
        pages.fill(0);
        Ok(pages.len())
    }

    fn store(&self, _: u64, _: &[u8]) -> io::Result<()> {
        let cache = self.cache.get().unwrap();
        assert!(cache.stats().policy == cache.policy().to_string() && cache.budget_bytes() > 0);
        self.answers.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// A policy that keeps more of each page takes frames, whose pages are written; a store that asked
/// which policy decides waited for the one who wrote them.
#[test]
fn a_store_may_ask_for_the_policy_while_another_takes_over() {
    in_time(|| {
        const BUDGET_BYTES: u64 = 8 << 20;
        let cache = builder(BUDGET_BYTES).workers(0).write_back_period(None).build().unwrap();
        let (known, answers) = (Arc::new(OnceLock::new()), Arc::new(AtomicU64::new(0)));
        known.set(cache.clone()).unwrap();
        let store = Asks { pages: 20_000, cache: known.clone(), answers: answers.clone() };
        let segment = cache.open_store(store, "asks").unwrap();
        for page in 0..20_000 {
            segment.write_all_at(&[1], page * PAGE as u64).unwrap();
        }
        let before = answers.load(Ordering::SeqCst);
        cache.set_policy(PolicySpec::parse("wtinylfu").unwrap()).unwrap();
        assert!(answers.load(Ordering::SeqCst) > before);
        assert!(cache.policy().to_string().starts_with("wtinylfu"));
        drop(segment);
        // The store, which is gone, had the cache.
        drop((cache, known));
    });
}

/// Of two threads that changed the budget, the one that was told late told listeners late: what they
/// heard last was not what held.
#[test]
fn the_budget_that_is_told_last_is_the_one_that_holds() {
    in_time(|| {
        let ((waits, is_waiting), (go, may_go)) = (channel(), channel::<()>());
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (hears, may_go) = (heard.clone(), Mutex::new(may_go));
        let cache = builder(1 << 20)
            .on_budget_change(move |bytes| {
                hears.lock().unwrap().push(bytes);
                if bytes == 512 << 10 {
                    waits.send(()).unwrap();
                    may_go.lock().unwrap().recv().unwrap();
                    hears.lock().unwrap().push(bytes);
                }
            })
            .build()
            .unwrap();
        let other = cache.clone();
        let first = std::thread::spawn(move || other.set_budget(512 << 10));
        is_waiting.recv().unwrap();
        cache.set_budget(256 << 10);
        go.send(()).unwrap();
        first.join().unwrap();
        assert_eq!((cache.budget_bytes(), cache.stats().memory_bytes), (256 << 10, 256 << 10));
        assert_eq!(heard.lock().unwrap().last(), Some(&(256 << 10)));
    });
}

/// A read of many pages uses those that are at rest together. It waits for the others with none of
/// them in use: whoever is waited for may change them.
#[test]
fn a_read_of_many_pages_waits_with_none_in_use() {
    for held in [1, 3, 4, 15, 16, 17] {
        in_time(move || {
            let cache = builder(1 << 20).build().unwrap();
            let pages = 24;
            let segment = cache.scratch(pages * PAGE as u64).unwrap();
            for page in 0..pages {
                segment.write_all_at(&[page as u8; PAGE], page * PAGE as u64).unwrap();
            }
            let from = held * PAGE as u64;
            let mut alone = segment.pin_mut(from..from + PAGE as u64).unwrap();
            let reads = segment.clone();
            let reader = std::thread::spawn(move || {
                let mut buf = vec![0; (pages as usize - 1) * PAGE];
                reads.read_exact_at(&mut buf, 100).unwrap();
                buf
            });
            // Nobody is told what it waits for.
            std::thread::sleep(Duration::from_millis(20));
            assert!(!reader.is_finished(), "page {held} is another's");
            for page in (0..pages).filter(|page| *page != held) {
                let before = page * PAGE as u64;
                segment.pin_mut(before..before + PAGE as u64).unwrap().fill(page as u8);
            }
            alone.fill(100);
            drop(alone);
            let expected = |at: usize| match (at + 100) / PAGE {
                page if page == held as usize => 100,
                page => page as u8,
            };
            let buf = reader.join().unwrap();
            assert!(buf.iter().enumerate().all(|(at, byte)| *byte == expected(at)), "{held}");
            // Nobody uses any of it any more.
            drop(segment.pin_mut(0..PAGE as u64).unwrap());
        });
    }
}
