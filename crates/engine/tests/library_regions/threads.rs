//! Many threads on the same pages: each finds what it stored, and a fault is one fault.

use crate::library_model::{Chaos, ChaosStore, PAGE, Rng};
use crate::{MAPPED, SIZES, can_copy, load, sized, store};
use pagekeeper::library::{Cache, FaultPath, Options, Protection, Store};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

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

/// A store that takes no more than a page at a time, and of the first one only when somebody says so.
struct ByPages {
    bytes: Mutex<Vec<u8>>,
    /// 1: several pages were refused. 2: the first may be taken. 3: it is being taken.
    step: Arc<AtomicU32>,
}

impl Store for ByPages {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        let offset = offset as usize;
        pages.copy_from_slice(&self.bytes.lock().unwrap()[offset..offset + pages.len()]);
        Ok(pages.len())
    }

    fn store(&self, offset: u64, new: &[u8]) -> io::Result<()> {
        if new.len() > PAGE {
            self.step.store(1, Ordering::SeqCst);
            return Err(io::Error::from_raw_os_error(28));
        }
        if offset == 0 {
            while self.step.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            self.step.store(3, Ordering::SeqCst);
            // The fault comes meanwhile.
            std::thread::sleep(Duration::from_millis(200));
        }
        let offset = offset as usize;
        self.bytes.lock().unwrap()[offset..offset + new.len()].copy_from_slice(new);
        Ok(())
    }
}

/// A flush that waited for a guard kept the fault of the guard's owner, which waited for it.
#[test]
fn who_waits_for_a_guard_serves_its_owner() {
    for path in MAPPED {
        let Some(cache) = sized(path, "lru", PAGE) else { continue };
        let step = Arc::new(AtomicU32::new(0));
        let bytes = Mutex::new(vec![0; 8 * PAGE]);
        let store = ByPages { bytes, step: step.clone() };
        let segment = cache.open_store(store, "by pages").unwrap();
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            let page = PAGE as u64;
            let region = segment.map(0..4 * page, Protection::ReadWrite).unwrap();
            for index in 0..4 {
                segment.write_all_at(&[1; PAGE], index * page).unwrap();
            }
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while step.load(Ordering::SeqCst) < 1 {
                        std::thread::yield_now();
                    }
                    let mut guard = segment.pin_mut(2 * page..3 * page).unwrap();
                    guard[0] = 7;
                    step.store(2, Ordering::SeqCst);
                    while step.load(Ordering::SeqCst) < 3 {
                        std::thread::yield_now();
                    }
                    crate::store(&region, 0, 9);
                });
                segment.flush().unwrap();
            });
            done.send(()).unwrap();
        });
        let ended = is_done.recv_timeout(Duration::from_secs(60));
        assert_eq!(ended, Ok(()), "{path:?}: they wait for each other");
    }
}

/// A store that is slow with the first pages, and then gives none before four are asked for at a time.
const SLOW: u32 = 16;
struct Together {
    asked: Mutex<u32>,
    comes: Condvar,
}

impl Store for Together {
    fn len(&self) -> io::Result<u64> {
        Ok(8 << 20)
    }

    fn load(&self, _: u64, pages: &mut [u8]) -> io::Result<usize> {
        let mut asked = self.asked.lock().unwrap();
        *asked += 1;
        self.comes.notify_all();
        if *asked <= SLOW {
            std::thread::sleep(Duration::from_millis(2));
            pages.fill(6);
            return Ok(pages.len());
        }
        let few = |asked: &mut u32| *asked < SLOW + 4;
        let (_asked, waited) =
            self.comes.wait_timeout_while(asked, Duration::from_secs(30), few).unwrap();
        pages.fill(6);
        if waited.timed_out() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(pages.len()) }
    }

    fn store(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

/// The thread that read faults waited for storage, and whoever else faulted waited for that.
#[test]
fn pages_of_several_threads_are_fetched_at_the_same_time() {
    let builder = Cache::builder(1 << 20).fault_path(FaultPath::Thread).workers(3);
    let Ok(cache) = builder.build() else {
        println!("skipped: no userfaultfd for a thread here; see `pagekeeper doctor`");
        return;
    };
    let store = Together { asked: Mutex::new(0), comes: Condvar::new() };
    let segment = cache.open_store(store, "together").unwrap();
    let region = segment.map(0..8 << 20, Protection::Read).unwrap();
    // In no order: nothing comes along with them.
    for page in (0..SLOW as usize).rev() {
        assert_eq!(load(&region, (page * 37 % 16 + 32) * (128 << 10)), 6);
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let region = &region;
            // Far enough from each other that none comes along with another.
            scope.spawn(move || assert_eq!(load(region, thread << 20), 6));
        }
    });
}

/// A reader that comes while a writer waits goes after it: a page that had a reader at each moment was
/// hardly ever written to, nor written back.
#[test]
fn writers_and_flushes_get_their_turn_among_readers() {
    const WRITES: u64 = 40;
    /// Some 20,000 are seen, and 500,000 where nobody gives way.
    const READS_A_WRITE_MAX: u64 = 150_000;
    let cache = Cache::builder(8 << 20).write_back_period(None).build().unwrap();
    let segment = cache.scratch(1 << 20).unwrap();
    segment.write_all_at(&[1; PAGE], 0).unwrap();
    let (over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let page = segment.pin(0..PAGE as u64).unwrap();
                    for byte in &page[..2000] {
                        std::hint::black_box(byte);
                    }
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // On a busy machine they may begin late.
        while reads.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        for turn in 0..WRITES {
            segment.pin_mut(0..PAGE as u64).unwrap()[..8].copy_from_slice(&turn.to_le_bytes());
            segment.flush().unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
    let mut last = [0; 8];
    segment.read_exact_at(&mut last, 0).unwrap();
    assert_eq!(u64::from_le_bytes(last), WRITES - 1);
    let reads = reads.load(Ordering::Relaxed);
    assert!(reads < WRITES * READS_A_WRITE_MAX, "{reads} reads");
}

/// Readers who need each other to go on (one lets go only when the next has come) are not kept from
/// that by a writer who waits for both.
#[test]
fn readers_that_wait_for_each_other_pass_a_writer_that_waits() {
    let cache = Cache::builder(8 << 20).write_back_period(None).build().unwrap();
    let segment = cache.scratch(1 << 20).unwrap();
    segment.write_all_at(&[1; PAGE], 0).unwrap();
    let writes = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut held = segment.pin(0..8).unwrap();
        let writer = scope.spawn(|| {
            let mut page = segment.pin_mut(0..8).unwrap();
            writes.store(true, Ordering::Relaxed);
            page[0] = 7;
        });
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(3));
            held = std::thread::scope(|scope| {
                let next = scope.spawn(|| segment.pin(0..8).unwrap());
                next.join().unwrap()
            });
            assert!(!writes.load(Ordering::Relaxed), "written beside a reader");
            assert_eq!(held[0], 1);
        }
        drop(held);
        writer.join().unwrap();
    });
    assert_eq!(segment.pin(0..1).unwrap()[0], 7);
}
