//! Stores that fail, or use the cache, when they are asked.

use super::*;
use pagekeeper::library::{Discardable, FaultPath, FileStore, Protection};
use std::sync::OnceLock;

/// Pages, of which some cannot be written as long as that is said.
struct Halves {
    stored: Mutex<Vec<u8>>,
    bad_from: AtomicU64,
}

impl Store for Halves {
    fn len(&self) -> io::Result<u64> {
        Ok(self.stored.lock().unwrap().len() as u64)
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        let from = offset as usize;
        pages.copy_from_slice(&self.stored.lock().unwrap()[from..from + pages.len()]);
        Ok(pages.len())
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if offset >= self.bad_from.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let from = offset as usize;
        self.stored.lock().unwrap()[from..from + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// A flush that met a run of pages that cannot be written tried them one by one, and slept for one
/// that had been chosen to leave meanwhile, by itself: nobody but the sleeper would have evicted it.
#[test]
fn a_flush_does_not_wait_for_what_it_evicts_itself() {
    const SECOND: u64 = 100;
    for (good, bad) in [(2, 16), (8, 8), (20, 20), (3, 12), (1, 14), (0, 14)] {
        in_time(move || {
            let store = Halves { stored: vec![0; 400 * PAGE].into(), bad_from: AtomicU64::new(0) };
            let store = Arc::new(store);
            let cache = builder(64 << 10)
                .policy(PolicySpec::parse("lru").unwrap())
                .workers(0)
                .write_back_period(None)
                .read_ahead_pages_max(1)
                .build()
                .unwrap();
            let segment = cache.open_store(store.clone(), "halves").unwrap();
            let dirty: Vec<u64> = (0..good).chain(SECOND..SECOND + bad + 1).collect();
            for page in &dirty {
                segment.write_all_at(&page.to_le_bytes(), page * PAGE as u64).unwrap();
            }
            let mut word = [0; 8];
            segment.read_exact_at(&mut word, 0).unwrap();
            // The policy hears of that now.
            segment.attributes(0..PAGE as u64).unwrap();
            store.bad_from.store(SECOND * PAGE as u64, Ordering::SeqCst);
            assert_eq!(errno(segment.flush()), Some(EIO));
            store.bad_from.store(u64::MAX, Ordering::SeqCst);
            let _ = segment.flush();
            segment.flush().unwrap();
            let stored = store.stored.lock().unwrap();
            for page in dirty {
                let at = page as usize * PAGE;
                assert_eq!(stored[at..at + 8], page.to_le_bytes());
            }
        });
    }
}

/// A store of the program's own whose length is that of memory in a cache, which it opens, and makes longer,
/// when it is asked.
struct Nested {
    cache: Arc<OnceLock<Cache>>,
    memory: OnceLock<Segment>,
}

impl Nested {
    fn memory(&self) -> &Segment {
        self.memory.get_or_init(|| {
            let cache = self.cache.get().expect("a cache");
            cache.scratch(PAGE as u64).expect("memory")
        })
    }
}

impl Store for Nested {
    fn len(&self) -> io::Result<u64> {
        let memory = self.memory();
        if memory.len() < 8 * PAGE as u64 {
            memory.set_len(memory.len() + PAGE as u64)?;
        }
        Ok(memory.len())
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        self.memory().read_at(pages, offset)
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory().write_all_at(bytes, offset)
    }
}

fn nested(asks: &Cache, memory: Cache) -> Segment {
    let cache = Arc::new(OnceLock::new());
    cache.set(memory).unwrap_or_else(|_| panic!("once"));
    asks.open_store(Nested { cache, memory: OnceLock::new() }, "nested").unwrap()
}

/// A store was asked for its length with locks of the cache held: one that opened a segment of its own,
/// or changed its length, waited for itself.
#[test]
fn a_store_may_use_another_cache_when_it_is_asked() {
    in_time(|| {
        let segment = nested(&tiny(0, "lru"), tiny(0, "lru"));
        assert!(segment.refresh().is_ok());
        segment.write_all_at(&[7; 100], 50).unwrap();
        segment.flush().unwrap();
        let mut found = [0; 100];
        segment.read_exact_at(&mut found, 50).unwrap();
        assert_eq!(found, [7; 100]);
    });
}

/// It was asked while pages were claimed, and could wait for these.
#[test]
fn a_store_that_uses_the_cache_that_asks_it_is_refused() {
    in_time(|| {
        let cache = tiny(0, "lru");
        // Nothing is claimed yet.
        let segment = nested(&cache, cache.clone());
        let mut byte = [0];
        assert_eq!(errno(segment.read_at(&mut byte, 0)), Some(EDEADLK));
        segment.write_all_at(&[7; PAGE], 0).unwrap();
        assert_eq!(errno(segment.flush()), Some(EDEADLK));
        segment.read_exact_at(&mut byte, 0).unwrap();
        assert_eq!(byte, [7], "what could not be written stays");
    });
}

/// Data whose log goes first, where that is asked for: before each write, or before all are made durable.
struct LogFirst {
    data: ChaosStore,
    log: Segment,
    before_each: bool,
}

impl Store for LogFirst {
    fn len(&self) -> io::Result<u64> {
        self.data.len()
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        self.data.load(offset, pages)
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.before_each {
            self.log.flush()?;
        }
        self.data.store(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.log.flush()?;
        self.data.sync()
    }
}

/// Threads that write to a log and to data that take turns in a few frames; errors in writing the data back.
fn write_logged(asks: Cache, logs: &Cache, before_each: bool) -> Option<i32> {
    let log = logs.scratch(64 * PAGE as u64).unwrap();
    let chaos = Chaos::new(256 * PAGE);
    let store = LogFirst { data: ChaosStore(chaos.clone()), log: log.clone(), before_each };
    let data = asks.open_store(store, "data").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (log, data) = (&log, &data);
            scope.spawn(move || {
                for i in 0..400u64 {
                    log.write_all_at(&[1; 100], (i * 2 + thread) * 100).unwrap();
                    let page = (i * 37 + thread * 101) % 200;
                    data.write_all_at(&[page as u8 + 1], page * PAGE as u64).unwrap();
                }
            });
        }
    });
    let errno = data.flush().err().map(|error| error.raw_os_error().unwrap());
    for page in 0..200 {
        let mut byte = [0];
        data.read_exact_at(&mut byte, page * PAGE as u64).unwrap();
        assert_eq!(usize::from(byte[0]), page as usize + 1, "page {page}");
    }
    errno
}

/// The log's pages were on their way in the very thread that wrote the data.
#[test]
fn a_log_that_goes_first_has_a_cache_of_its_own() {
    in_time(|| {
        assert_eq!(write_logged(tiny(1, "lru"), &tiny(0, "lru"), true), None);
        for workers in 0..2 {
            let cache = tiny(workers, "lru");
            assert_eq!(write_logged(cache.clone(), &cache, true), Some(EDEADLK));
            // With nothing on its way, it may be asked.
            let cache = tiny(workers, "lru");
            assert_eq!(write_logged(cache.clone(), &cache, false), None);
        }
    });
}

/// A store that panics when a page is read, or written, the first time.
struct Panics {
    loads: AtomicU64,
    stores: AtomicU64,
}

impl Store for Panics {
    fn len(&self) -> io::Result<u64> {
        Ok(4 * PAGE as u64)
    }

    fn load(&self, _: u64, pages: &mut [u8]) -> io::Result<usize> {
        assert!(self.loads.fetch_add(1, Ordering::SeqCst) > 0, "the first load");
        pages.fill(3);
        Ok(pages.len())
    }

    fn store(&self, _: u64, _: &[u8]) -> io::Result<()> {
        assert!(self.stores.fetch_add(1, Ordering::SeqCst) > 0, "the first store");
        Ok(())
    }
}

/// A panic of a program's store went through the cache: the page that was being read was being read for
/// ever, and whoever needed it waited.
#[test]
fn a_store_that_panics_fails() {
    in_time(|| {
        let store = Panics { loads: AtomicU64::new(0), stores: AtomicU64::new(0) };
        let cache = tiny(0, "lru");
        let segment = cache.open_store(store, "panics").unwrap();
        let mut byte = [0];
        assert_eq!(errno(segment.read_at(&mut byte, 0)), Some(EIO));
        segment.read_exact_at(&mut byte, 0).unwrap();
        assert_eq!(byte, [3]);
        segment.write_all_at(&[4], 0).unwrap();
        assert_eq!(errno(segment.flush()), Some(EIO));
        segment.flush().unwrap();
    });
}

/// A page, and what happens while it is asked for.
#[derive(Default)]
struct Slow {
    stored: Mutex<Vec<u8>>,
    /// Its length is asked for by the write-back thread, and takes a while to say; or a write takes one.
    is_slow: AtomicBool,
    is_asked: AtomicBool,
    panics: AtomicBool,
}

impl Slow {
    fn page() -> Arc<Slow> {
        Arc::new(Slow { stored: vec![0; PAGE].into(), ..Slow::default() })
    }

    fn linger(&self) {
        self.is_asked.store(true, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(500));
    }

    fn await_asked(&self) {
        while !self.is_asked.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        self.is_slow.store(false, Ordering::SeqCst);
    }
}

impl Store for Slow {
    fn len(&self) -> io::Result<u64> {
        let is_behind = std::thread::current().name() == Some("pagekeeper-wb");
        if is_behind && self.is_slow.load(Ordering::SeqCst) {
            self.linger();
        }
        Ok(self.stored.lock().unwrap().len() as u64)
    }

    fn load(&self, _: u64, pages: &mut [u8]) -> io::Result<usize> {
        pages.copy_from_slice(&self.stored.lock().unwrap());
        Ok(pages.len())
    }

    fn store(&self, _: u64, bytes: &[u8]) -> io::Result<()> {
        if self.is_slow.load(Ordering::SeqCst) {
            self.linger();
        }
        self.stored.lock().unwrap().copy_from_slice(bytes);
        Ok(())
    }

    fn as_file(&self) -> Option<&FileStore> {
        assert!(!self.panics.swap(false, Ordering::SeqCst), "as it is told to");
        None
    }
}

/// The write-back thread held the segment for a moment, and so did not the last handle close it: a program
/// that ended then lost what it had written.
#[test]
fn with_the_last_handle_all_is_written_back() {
    let store = Slow::page();
    let period = Some(Duration::from_millis(20));
    let cache = builder(1 << 20).write_back_period(period).build().unwrap();
    let segment = cache.open_store(store.clone(), "slow").unwrap();
    store.is_slow.store(true, Ordering::SeqCst);
    store.await_asked();
    segment.write_all_at(b"kept", 0).unwrap();
    drop(segment);
    assert_eq!(store.stored.lock().unwrap()[..4], *b"kept");
}

/// So it was with the last region of a segment whose handles were gone: it waited for nobody.
#[test]
fn with_the_last_region_all_is_written_back() {
    let store = Slow::page();
    let period = Some(Duration::from_millis(20));
    let builder = builder(1 << 20).write_back_period(period).fault_path(FaultPath::Thread);
    let Ok(cache) = builder.build() else {
        println!("skipped: no regions under this translation, or here; see `pagekeeper doctor`");
        return;
    };
    let segment = cache.open_store(store.clone(), "slow").unwrap();
    let region = segment.map(0..PAGE as u64, Protection::ReadWrite).unwrap();
    drop(segment);
    store.is_slow.store(true, Ordering::SeqCst);
    store.await_asked();
    // SAFETY: inside the region, which nobody else uses.
    unsafe { region.as_mut_ptr().cast::<[u8; 4]>().write(*b"kept") };
    drop(region);
    assert_eq!(store.stored.lock().unwrap()[..4], *b"kept");
}

/// A page that became discardable while it was written was read later as it had been written then, and not
/// made anew.
#[test]
fn a_page_that_becomes_discardable_while_it_is_written_is_made_anew() {
    let store = Slow::page();
    let make = |_, pages: &mut [u8]| {
        pages.fill(9);
        Ok(())
    };
    let discardable = Arc::new(Discardable::new(store.clone(), make));
    store.is_slow.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| discardable.store(0, &[1; PAGE]));
        store.await_asked();
        discardable.advise(0, PAGE as u64, Advice::Discardable).unwrap();
        writes.join().unwrap().unwrap();
    });
    discardable.store(0, &[2; PAGE]).unwrap();
    let mut page = [0; PAGE];
    discardable.load(0, &mut page).unwrap();
    assert_eq!(page[0], 9);
}

/// It was asked with pages claimed, and its panic went through the cache.
#[test]
fn a_store_that_panics_when_it_is_asked_for_its_file_is_none() {
    let store = Slow::page();
    let cache = builder(1 << 20).write_back_period(None).workers(0).build().unwrap();
    let segment = cache.open_store(store.clone(), "panics").unwrap();
    store.panics.store(true, Ordering::SeqCst);
    in_time(move || {
        let mut page = [1; PAGE];
        segment.read_exact_at(&mut page, 0).unwrap();
        segment.read_exact_at(&mut page, 0).unwrap();
        assert_eq!(page, [0; PAGE]);
    });
}

/// Numbers of pages were subtracted the wrong way round, with the engine locked, where overflow is checked.
#[test]
fn less_than_a_page_is_discarded_by_nobody() {
    let cache = builder(1 << 20).build().unwrap();
    let segment = cache.scratch(1 << 20).unwrap();
    segment.write_all_at(b"kept", 0).unwrap();
    for range in [1..4095, 5000..6000, 2 << 20..3 << 20, u64::MAX - 1..u64::MAX] {
        segment.discard(range.clone()).unwrap();
        segment.advise(range, Advice::Discardable).unwrap();
    }
    let mut kept = [0; 4];
    segment.read_exact_at(&mut kept, 0).unwrap();
    assert_eq!(&kept, b"kept");
}

/// A store that uses the segment that it stands behind, once, when it is told how pages will be used.
#[derive(Default)]
struct Advised {
    len: AtomicU64,
    own: Mutex<Option<Segment>>,
    refused: Mutex<Vec<Option<i32>>>,
}

impl Store for Advised {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len.load(Ordering::SeqCst))
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        pages.fill(1);
        Ok(pages.len().min((self.len()? - offset) as usize))
    }

    fn store(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.len.store(len, Ordering::SeqCst);
        Ok(())
    }

    fn advise(&self, _: u64, _: u64, _: Advice) -> io::Result<()> {
        let Some(own) = self.own.lock().unwrap().take() else { return Ok(()) };
        let behind = own.len();
        *self.refused.lock().unwrap() = vec![
            errno(own.set_len(PAGE as u64)),
            errno(own.refresh()),
            errno(own.write_at(&[1], behind)),
            errno(own.advise(0..behind, Advice::Discardable)),
        ];
        Ok(())
    }
}

/// The length was locked while the store was told: one that looked for changes of the segment, or changed
/// its length, waited for itself.
#[test]
fn a_store_that_uses_its_own_segment_when_it_is_advised_is_refused() {
    in_time(|| {
        let page = 4 * PAGE;
        let cache = tiny_of(page, 0, "lru");
        let store = Arc::new(Advised::default());
        store.set_len(5 * page as u64 + 100).unwrap();
        let segment = cache.open_store(store.clone(), "advised").unwrap();
        let ways: [fn(&Segment) -> io::Result<()>; 3] = [
            |segment| segment.advise(0..2 * segment.page_bytes(), Advice::Discardable),
            |segment| segment.advise(0..2 * segment.page_bytes(), Advice::Needed),
            // The page that it ended in is needed.
            |segment| segment.set_len(8 * segment.page_bytes()),
        ];
        for way in ways {
            *store.own.lock().unwrap() = Some(segment.clone());
            way(&segment).unwrap();
            assert_eq!(std::mem::take(&mut *store.refused.lock().unwrap()), [Some(EDEADLK); 4]);
            // Afterwards it may be used.
            segment.refresh().unwrap();
            segment.write_all_at(&[2; 10], 0).unwrap();
        }
    });
}

/// A store that changes the budget of the cache that asks it.
struct Greedy {
    cache: Mutex<Option<Cache>>,
    told: AtomicBool,
}

impl Store for Greedy {
    fn len(&self) -> io::Result<u64> {
        Ok(64 * PAGE as u64)
    }

    fn load(&self, _: u64, pages: &mut [u8]) -> io::Result<usize> {
        if let Some(cache) = self.cache.lock().unwrap().take() {
            cache.set_budget(1 << 20);
            assert_eq!(errno(cache.try_set_budget(1 << 20)), Some(EDEADLK));
            assert_eq!(errno(cache.reserve(4096).map(drop)), Some(EDEADLK));
            self.told.store(true, Ordering::SeqCst);
        }
        pages.fill(1);
        Ok(pages.len())
    }

    fn store(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

/// It was done, though pages that are on their way then cannot leave.
#[test]
fn a_store_that_changes_the_budget_of_the_cache_that_asks_it_is_refused() {
    in_time(|| {
        let cache = tiny(0, "lru");
        let before = cache.budget_bytes();
        let store =
            Arc::new(Greedy { cache: Some(cache.clone()).into(), told: AtomicBool::new(false) });
        let segment = cache.open_store(store.clone(), "greedy").unwrap();
        segment.read_exact_at(&mut [0; 8], 0).unwrap();
        assert!(store.told.load(Ordering::SeqCst));
        assert_eq!(cache.budget_bytes(), before);
        cache.set_budget(1 << 20);
        assert_eq!(cache.budget_bytes(), 1 << 20);
    });
}
