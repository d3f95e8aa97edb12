//! A store that fails and delays on request, and what tests of the library share.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

pub mod ops;
#[path = "../random/mod.rs"]
mod random;

use pagekeeper::library::{Cache, FaultPath, Protection, Store, Translation};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use random::Rng;

pub const PAGE: usize = 4096;
pub const EIO: i32 = 5;
pub const ENOMEM: i32 = 12;
pub const EINVAL: i32 = 22;
pub const ENOSPC: i32 = 28;
pub const EOPNOTSUPP: i32 = 95;

/// What a cache cannot do whose pages have no common place.
pub fn maps_nothing_and_pins_within_a_page(translation: Translation) {
    let cache = Cache::builder(1 << 20).translation(translation).build().unwrap();
    let segment = cache.scratch(4 * PAGE as u64).unwrap();
    let page = PAGE as u64;
    let mapped = segment.map(0..page, Protection::Read);
    assert_eq!(mapped.unwrap_err().raw_os_error(), Some(EOPNOTSUPP));
    let crossing = segment.pin(page - 1..page + 1);
    assert_eq!(crossing.unwrap_err().raw_os_error(), Some(EOPNOTSUPP));
    assert_eq!(segment.pin(page..2 * page).unwrap().len(), PAGE);
    let regions = Cache::builder(1 << 20).translation(translation).fault_path(FaultPath::Inline);
    assert_eq!(regions.build().unwrap_err().raw_os_error(), Some(EINVAL));
}

/// Bytes in memory behind a segment, with failures: chances out of 1,000 a call.
#[derive(Default, Debug)]
pub struct Chaos {
    pub bytes: Mutex<Vec<u8>>,
    pub load_fails: AtomicU32,
    pub store_fails: AtomicU32,
    pub full: AtomicU32,
    pub delays: AtomicU32,
    pub loads: AtomicU64,
    pub stores: AtomicU64,
    pub syncs: AtomicU64,
    rolls: AtomicU64,
}

impl Chaos {
    pub fn new(len: usize) -> Arc<Chaos> {
        Arc::new(Chaos { bytes: Mutex::new(vec![0; len]), ..Chaos::default() })
    }

    /// Another one that fails as often.
    pub fn again(&self, len: usize) -> Arc<Chaos> {
        let copy = |what: &AtomicU32| AtomicU32::new(what.load(Ordering::SeqCst));
        Arc::new(Chaos {
            bytes: Mutex::new(vec![0; len]),
            load_fails: copy(&self.load_fails),
            store_fails: copy(&self.store_fails),
            full: copy(&self.full),
            delays: copy(&self.delays),
            ..Chaos::default()
        })
    }

    pub fn set(&self, what: &AtomicU32, chance: u32) {
        what.store(chance, Ordering::SeqCst);
    }

    pub fn calm(&self) {
        for what in [&self.load_fails, &self.store_fails, &self.full, &self.delays] {
            self.set(what, 0);
        }
    }

    fn hits(&self, what: &AtomicU32) -> bool {
        let chance = what.load(Ordering::SeqCst);
        let roll = Rng(self.rolls.fetch_add(1, Ordering::Relaxed)).next();
        chance != 0 && roll % 1000 < u64::from(chance)
    }

    fn delay(&self) {
        if self.hits(&self.delays) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// The store of a [`Chaos`]; tests keep the chaos.
#[derive(Debug)]
pub struct ChaosStore(pub Arc<Chaos>);

impl Store for ChaosStore {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.bytes.lock().unwrap().len() as u64)
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        self.0.loads.fetch_add(1, Ordering::SeqCst);
        self.0.delay();
        // Whatever was in the frame before must not show.
        pages.fill(0xee);
        if self.0.hits(&self.0.load_fails) {
            return Err(io::Error::other("no number"));
        }
        let bytes = self.0.bytes.lock().unwrap();
        let offset = (offset as usize).min(bytes.len());
        let len = pages.len().min(bytes.len() - offset);
        pages[..len].copy_from_slice(&bytes[offset..offset + len]);
        Ok(len)
    }

    fn store(&self, offset: u64, new: &[u8]) -> io::Result<()> {
        self.0.stores.fetch_add(1, Ordering::SeqCst);
        self.0.delay();
        if self.0.hits(&self.0.store_fails) {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        let mut bytes = self.0.bytes.lock().unwrap();
        let end = offset as usize + new.len();
        assert!(end <= bytes.len(), "stored behind the end");
        bytes[offset as usize..end].copy_from_slice(new);
        Ok(())
    }

    fn reserve(&self, _offset: u64, _len: u64) -> io::Result<()> {
        if self.0.hits(&self.0.full) {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        Ok(())
    }

    fn sparse(&self) -> bool {
        true
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.bytes.lock().unwrap().resize(len as usize, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.0.syncs.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}
