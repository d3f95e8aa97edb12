//! Stores that fail, or use the cache, when they are asked.

use super::*;
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

/// A store of the program's own whose length is that of memory in the same cache, which it opens, and
/// makes longer, when it is asked.
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

/// A store was asked for its length with locks of the cache held: one that opened a segment of its own,
/// or changed its length, waited for itself.
#[test]
fn a_store_may_use_the_cache_when_it_is_asked() {
    in_time(|| {
        let cache = Arc::new(OnceLock::new());
        cache.set(tiny(0, "lru")).unwrap_or_else(|_| panic!("once"));
        let store = Nested { cache: cache.clone(), memory: OnceLock::new() };
        let segment = cache.get().unwrap().open_store(store, "nested").unwrap();
        assert!(segment.refresh().is_ok());
        segment.write_all_at(&[7; 100], 50).unwrap();
        segment.flush().unwrap();
        let mut found = [0; 100];
        segment.read_exact_at(&mut found, 50).unwrap();
        assert_eq!(found, [7; 100]);
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
