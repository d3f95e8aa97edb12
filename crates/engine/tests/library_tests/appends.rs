//! Writes behind the end, beside readers, writers and write-backs of the same segment.

use super::*;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// A store whose times change with each call that changes it, as a file's do.
struct Dated {
    chaos: ChaosStore,
    loads: AtomicU64,
    changed: AtomicU64,
    /// Told when pages are being stored, once, which goes on when that is said.
    is_gated: AtomicBool,
    gate: Option<(SyncSender<()>, Mutex<Receiver<()>>)>,
    /// For these pages there is no room. Told when somebody found out.
    full: Range<u64>,
    found_full: SyncSender<()>,
}

impl Dated {
    fn new(len: usize) -> (Dated, Receiver<()>) {
        let (found_full, full) = sync_channel(1);
        let dated = Dated {
            chaos: ChaosStore(Chaos::new(len)),
            loads: AtomicU64::new(0),
            changed: AtomicU64::new(0),
            is_gated: AtomicBool::new(true),
            gate: None,
            full: 0..0,
            found_full,
        };
        (dated, full)
    }

    fn change(&self) {
        self.changed.fetch_add(1, Ordering::SeqCst);
    }
}

impl Store for Dated {
    fn len(&self) -> io::Result<u64> {
        self.chaos.len()
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        self.chaos.load(offset, pages)
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change();
        if let Some((begun, may_end)) = &self.gate
            && self.is_gated.swap(false, Ordering::SeqCst)
        {
            let _ = begun.send(());
            let _ = may_end.lock().unwrap().recv();
        }
        self.chaos.store(offset, bytes)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        let page = PAGE as u64;
        if offset < self.full.end * page && offset + len > self.full.start * page {
            let _ = self.found_full.try_send(());
            // Time for others to do what they must not.
            std::thread::sleep(Duration::from_millis(20));
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        self.change();
        Ok(())
    }

    fn sparse(&self) -> bool {
        true
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change();
        self.chaos.set_len(len)
    }

    fn version(&self) -> io::Result<pagekeeper::library::Version> {
        let changed = self.changed.load(Ordering::SeqCst).into();
        let size_bytes = self.len()?;
        Ok(pagekeeper::library::Version { size_bytes, mtime_ns: changed, ctime_ns: changed })
    }
}

/// The new length was told before the bytes were there: who read up to it found zeros.
#[test]
fn what_is_appended_is_there_before_the_length_is_told() {
    in_time(|| {
        let cache = builder(1 << 20).build().unwrap();
        let segment = cache.scratch(0).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut looks = 0_u64;
                let mut buf = [0; 512];
                while !is_over.load(Ordering::Relaxed) || looks == 0 {
                    let len = segment.len();
                    let last = &mut buf[..len.min(512) as usize];
                    segment.read_exact_at(last, len - last.len() as u64).unwrap();
                    assert!(last.iter().all(|b| *b == b'A'), "of {len} bytes");
                    looks += 1;
                }
            });
            let mut end = 0;
            while end < 4 << 20 && !reader.is_finished() {
                segment.write_all_at(&[b'A'; 300], end).unwrap();
                end += 300;
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
}

/// A write that went as far as there was room took its end back, and with it what another had written
/// there meanwhile, and been told that it was.
#[test]
fn an_append_that_falls_short_cuts_nobody_off() {
    in_time(|| {
        let (mut dated, found_full) = Dated::new(0);
        dated.full = 40..50;
        let cache = builder(1 << 20).write_back_period(None).build().unwrap();
        let segment = cache.open_store(dated, "dated").unwrap();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| segment.write_at(&[1; 64 * PAGE], 0).unwrap());
            found_full.recv().unwrap();
            assert_eq!(segment.write_at(&[2; PAGE], 50 * PAGE as u64).unwrap(), PAGE);
            assert_eq!(first.join().unwrap(), 40 * PAGE);
        });
        let mut page = [0; PAGE];
        segment.read_exact_at(&mut page, 50 * PAGE as u64).unwrap();
        assert_eq!(page, [2; PAGE]);
        assert_eq!(segment.len(), 51 * PAGE as u64);
    });
}

/// Whoever looked at a store, as each append does, while pages were written to it took its times for
/// somebody else's doing, and dropped all that was in memory.
#[test]
fn write_backs_are_nobody_elses_changes() {
    in_time(|| {
        let ((begun, begins), (end, may_end)) = (sync_channel(0), sync_channel(0));
        let (mut dated, _found) = Dated::new(8 * PAGE);
        dated.gate = Some((begun, may_end.into()));
        let dated = Arc::new(dated);
        let cache = builder(1 << 20).write_back_period(None).build().unwrap();
        let segment = cache.open_store(dated.clone(), "dated").unwrap();
        let mut all = vec![0; 8 * PAGE];
        segment.write_all_at(&[1; PAGE], 0).unwrap();
        segment.read_exact_at(&mut all, 0).unwrap();
        let loads = dated.loads.load(Ordering::SeqCst);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| segment.write_back(0..PAGE as u64).unwrap());
            begins.recv().unwrap();
            segment.write_all_at(b"appended", 8 * PAGE as u64).unwrap();
            end.send(()).unwrap();
            writer.join().unwrap();
        });
        assert!(!segment.refresh().unwrap());
        segment.read_exact_at(&mut all, 0).unwrap();
        assert_eq!(dated.loads.load(Ordering::SeqCst), loads + 1, "the page that was appended to");
        // Who was there is seen.
        dated.change();
        assert!(segment.refresh().unwrap());
        segment.read_exact_at(&mut all, 0).unwrap();
        assert!(dated.loads.load(Ordering::SeqCst) > loads);
    });
}
