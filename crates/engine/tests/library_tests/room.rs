//! What is accepted has room on storage, also where a page is dirty already.

use super::*;
use pagekeeper::library::Discardable;
use std::collections::BTreeSet;

/// A store on a disk of so many blocks: one is taken when it is reserved or stored to, and given back
/// when it is cut off.
#[derive(Debug)]
struct Disk {
    bytes: Mutex<Vec<u8>>,
    taken: Mutex<BTreeSet<usize>>,
    blocks: AtomicU64,
}

impl Disk {
    fn new(len: usize) -> Arc<Disk> {
        let (taken, blocks) = (Mutex::default(), AtomicU64::new(u64::MAX));
        Arc::new(Disk { bytes: Mutex::new(vec![0; len]), taken, blocks })
    }

    /// No block is left from now on, but for so many.
    fn fill_up(&self, left: u64) {
        let taken = self.taken.lock().unwrap().len() as u64;
        self.blocks.store(taken + left, Ordering::SeqCst);
    }

    fn take(&self, bytes: std::ops::Range<usize>) -> io::Result<()> {
        let mut taken = self.taken.lock().unwrap();
        for block in bytes.start / PAGE..bytes.end.div_ceil(PAGE) {
            let is_full = taken.len() as u64 >= self.blocks.load(Ordering::SeqCst);
            if is_full && !taken.contains(&block) {
                return Err(io::Error::from_raw_os_error(ENOSPC));
            }
            taken.insert(block);
        }
        Ok(())
    }

    fn set_len(&self, len: usize) {
        self.bytes.lock().unwrap().resize(len, 0);
        self.taken.lock().unwrap().split_off(&len.div_ceil(PAGE));
    }
}

struct OnDisk(Arc<Disk>);

impl Store for OnDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.bytes.lock().unwrap().len() as u64)
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        let bytes = self.0.bytes.lock().unwrap();
        let from = (offset as usize).min(bytes.len());
        let len = pages.len().min(bytes.len() - from);
        pages[..len].copy_from_slice(&bytes[from..from + len]);
        Ok(len)
    }

    fn store(&self, offset: u64, new: &[u8]) -> io::Result<()> {
        let range = offset as usize..offset as usize + new.len();
        self.0.take(range.clone())?;
        self.0.bytes.lock().unwrap()[range].copy_from_slice(new);
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = (offset + len).min(self.len()?);
        self.0.take(offset as usize..end.max(offset) as usize)
    }

    fn sparse(&self) -> bool {
        true
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len as usize);
        Ok(())
    }
}

const LARGE: usize = 64 << 10;

fn large(disk: &Arc<Disk>) -> Segment {
    tiny_of(LARGE, 0, "lru").open_store(OnDisk(disk.clone()), "disk").unwrap()
}

/// Of a large page there was room as far as the file reached when it became dirty: what was appended into
/// it was accepted on a full disk, and could not be written.
#[test]
fn what_is_appended_to_a_dirty_page_has_room() {
    let disk = Disk::new(0);
    let segment = large(&disk);
    let mut model = vec![1; 100];
    segment.write_all_at(&model, 0).unwrap();
    disk.fill_up(1);
    for round in 2..100 {
        let piece = [round; 1000];
        match segment.write_at(&piece, model.len() as u64) {
            Ok(n) => model.extend(&piece[..n]),
            Err(error) => assert_eq!(error.raw_os_error(), Some(ENOSPC)),
        }
        assert_eq!(segment.len(), model.len() as u64);
    }
    assert_eq!(model.len(), 8100, "two blocks, less a part of an append");
    segment.flush().unwrap();
    assert!(*disk.bytes.lock().unwrap() == model);
    // There is room again.
    segment.write_all_at(&[9; 100], 0).unwrap();
    disk.fill_up(100);
    segment.write_all_at(&[9; 50_000], 100).unwrap();
    disk.fill_up(0);
    segment.flush().unwrap();
    assert!(*disk.bytes.lock().unwrap() == [9; 50_100]);
}

/// What was cut off took its room with it, and got none when the segment became as long again.
#[test]
fn a_dirty_page_that_is_cut_and_grows_has_room() {
    let disk = Disk::new(3 * LARGE);
    let segment = large(&disk);
    segment.write_all_at(&[1; 60_000], 100).unwrap();
    segment.set_len(5000).unwrap();
    disk.fill_up(0);
    assert_eq!(errno(segment.set_len(2 * LARGE as u64)), Some(ENOSPC));
    assert_eq!((segment.len(), disk.bytes.lock().unwrap().len()), (5000, 5000));
    segment.flush().unwrap();
    // What is clean needs room when it is written to.
    segment.set_len(2 * LARGE as u64).unwrap();
    assert_eq!(errno(segment.write_at(&[2; 50_000], 10_000)), Some(ENOSPC));
    segment.set_len(5000).unwrap();
    segment.write_all_at(&[2; 100], 4000).unwrap();
    disk.fill_up(16);
    segment.set_len(2 * LARGE as u64).unwrap();
    disk.fill_up(0);
    segment.write_all_at(&[2; 50_000], 10_000).unwrap();
    segment.flush().unwrap();
    let bytes = disk.bytes.lock().unwrap();
    assert!(bytes[10_000..60_000] == [2; 50_000] && bytes[5000..10_000] == [0; 5000]);
}

/// The same where somebody else cuts it and makes it longer.
#[test]
fn a_dirty_page_that_others_cut_and_make_longer_has_room() {
    for full in [false, true] {
        let disk = Disk::new(3 * LARGE);
        let segment = large(&disk);
        segment.write_all_at(&[1; 60_000], 100).unwrap();
        disk.set_len(5000);
        assert!(segment.refresh().unwrap());
        if full {
            disk.fill_up(0);
        }
        disk.set_len(2 * LARGE);
        assert!(segment.refresh().unwrap());
        disk.fill_up(0);
        for _ in 0..2 {
            // Whoever reads is no obstacle to who writes.
            segment.read_exact_at(&mut [0; 8], 9000).unwrap();
            let written = segment.write_at(&[2; 50_000], 10_000);
            assert_eq!(written.err().and_then(|e| e.raw_os_error()), full.then_some(ENOSPC));
        }
        if full {
            // Not what was written, but what they made of it.
            assert_eq!(errno(segment.flush()), Some(ENOSPC));
            disk.fill_up(16);
            segment.write_all_at(&[2; 50_000], 10_000).unwrap();
            disk.fill_up(0);
        }
        segment.flush().unwrap();
        let bytes = disk.bytes.lock().unwrap();
        assert!(bytes[10_000..60_000] == [2; 50_000] && bytes[5000..10_000] == [0; 5000]);
    }
}

/// Pages that wait for a commit are as many as may already: one of them is no further one.
#[test]
fn what_is_appended_to_a_page_that_waits_is_no_further_page() {
    let disk = Disk::new(0);
    let segment = large(&disk);
    segment.set_write_back(WriteBack::OnCommit).unwrap();
    let mut len = 0;
    while segment.write_at(&[1; LARGE / 2], len).is_ok() {
        len += LARGE as u64 / 2;
    }
    assert!(len.is_multiple_of(LARGE as u64) && segment.len() == len, "{len}");
    segment.set_len(len - 100).unwrap();
    segment.write_all_at(&[2; 50], len - 100).unwrap();
    segment.flush().unwrap();
    assert_eq!(disk.bytes.lock().unwrap().len() as u64, len - 50);
}

/// Pages that were written while they were discardable had no room, and got none when they were needed.
#[test]
fn pages_that_are_needed_again_have_room() {
    const P: u64 = PAGE as u64;
    let make = |_: u64, pages: &mut [u8]| {
        pages.fill(b'M');
        Ok(())
    };
    for page in [PAGE, LARGE] {
        let disk = Disk::new(4 * LARGE);
        let store = Discardable::new(OnDisk(disk.clone()), make);
        let segment = tiny_of(page, 0, "lru").open_store(store, "index").unwrap();
        let whole = LARGE as u64;
        segment.write_all_at(&[b'n'; LARGE], whole).unwrap();
        segment.advise(0..whole, Advice::Discardable).unwrap();
        segment.write_all_at(&[b'x'; LARGE], 0).unwrap();
        disk.fill_up(0);
        // What was needed before remains so.
        let needed = segment.advise(0..2 * whole, Advice::Needed);
        assert_eq!(errno(needed), Some(ENOSPC), "pages of {page}");
        segment.flush().unwrap();
        segment.advise(0..u64::MAX, Advice::DontNeed).unwrap();
        let mut got = [0; 8];
        for (at, is) in [(0, b'M'), (whole - 8, b'M'), (whole, b'n'), (2 * whole - 8, b'n')] {
            segment.read_exact_at(&mut got, at).unwrap();
            assert_eq!(got, [is; 8], "pages of {page}, at {at}");
        }
        disk.fill_up(100);
        segment.write_all_at(&[b'y'; LARGE], 0).unwrap();
        segment.advise(0..whole, Advice::Needed).unwrap();
        disk.fill_up(0);
        segment.flush().unwrap();
        assert!(disk.bytes.lock().unwrap()[..LARGE] == [b'y'; LARGE]);
        assert!(disk.taken.lock().unwrap().len() as u64 >= 2 * whole / P);
    }
}
