//! Many small writes, or reads, that begin by one system call.
//!
//! A virtual disk is notified of what is asked of it by an exit to the hypervisor, which takes longer than
//! all else of a transfer. What one call submits, it is notified of once (or twice: the block layer collects
//! 32 requests at most).

use super::{Pool, Rings, Waited, kernel_len, wait_once};
use crate::buffer::Buffer;
use crate::{Errno, PAGE_BYTES, Result};
use core::ptr::NonNull;
use io_uring::{IoUring, opcode, squeue, types};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most transfers of a batch.
pub const TRANSFERS_MAX: usize = 64;
/// Most bytes of all of them.
pub const BYTES_MAX: usize = 2 * TRANSFERS_MAX * PAGE_BYTES;
/// Most that are kept for the next batches.
const KEPT_MAX: usize = 2;
/// How long one who waits keeps others from looking for theirs.
const SLICE: Duration = Duration::from_millis(20);

/// A ring for batches, and the memory that they are written from or read to.
pub(super) struct Wide {
    ring: IoUring,
    buffer: Buffer,
}

/// Where one transfer of a batch is in the buffer, and where in the file.
#[derive(Clone, Copy)]
struct Part {
    at: usize,
    len_bytes: usize,
    offset: u64,
}

/// Transfers that have not begun.
pub struct Batch {
    /// None once they begin.
    wide: Option<Wide>,
    rings: Arc<Rings>,
    parts: Vec<Part>,
    used_bytes: usize,
}

/// Transfers that have begun. Dropping it waits for all.
struct UnderWay {
    /// None once it was given back.
    wide: Option<Wide>,
    rings: Arc<Rings>,
    /// None of those that have not come.
    results: Vec<Option<i32>>,
}

/// One transfer of a batch. The last one that is dropped waits for all of them.
struct Batched {
    batch: Arc<Mutex<UnderWay>>,
    index: usize,
    part: Part,
}

/// One write of a batch.
pub struct BatchedWrite(Batched);

/// One read of a batch.
pub struct BatchedRead(Batched);

impl Rings {
    /// An empty batch; none where there is no io_uring, or too much is under way.
    pub fn batch(self: &Arc<Rings>) -> Option<Batch> {
        let kept = self.pool().wide.pop();
        let wide = match kept {
            Some(wide) => wide,
            None => {
                // Who submitted may wait for another who waits for these: it is interrupted to see to them.
                let ring = self.make(&mut self.pool(), || IoUring::new(TRANSFERS_MAX as u32))?;
                match Buffer::new(BYTES_MAX) {
                    Ok(buffer) => Wide { ring, buffer },
                    Err(_) => {
                        self.pool().rings -= 1;
                        return None;
                    }
                }
            }
        };
        Some(Batch { wide: Some(wide), rings: Arc::clone(self), parts: Vec::new(), used_bytes: 0 })
    }
}

/// A ring that nobody uses goes back into the pool.
fn give_back(pool: &mut Pool, wide: Wide) {
    if pool.wide.len() < KEPT_MAX {
        pool.wide.push(wide);
    } else {
        pool.rings -= 1;
    }
}

impl Batch {
    /// Memory for one more transfer, at an offset of the file; none if the batch is full. A write is of what
    /// is put there.
    pub fn add(&mut self, len_bytes: usize, offset: u64) -> Option<&mut [u8]> {
        let buffer = &mut self.wide.as_mut()?.buffer;
        let at = self.used_bytes;
        let end = at.checked_add(len_bytes)?;
        if self.parts.len() == TRANSFERS_MAX || end > buffer.len() {
            return None;
        }
        // The next one is aligned for direct I/O, too.
        self.used_bytes = end.next_multiple_of(PAGE_BYTES);
        self.parts.push(Part { at, len_bytes, offset });
        Some(&mut buffer[at..end])
    }

    /// Where the one ends that reaches farthest.
    pub fn end(&self) -> u64 {
        self.parts.iter().map(|part| part.offset + part.len_bytes as u64).max().unwrap_or(0)
    }

    /// Begins to write all of them, in the order in which they were added.
    pub fn write(self, fd: impl AsFd) -> Vec<BatchedWrite> {
        let fd = types::Fd(fd.as_fd().as_raw_fd());
        let write = |memory: NonNull<[u8]>, offset| {
            let len = kernel_len(memory.len());
            opcode::Write::new(fd, memory.as_ptr().cast(), len).offset(offset).build()
        };
        self.begin(write).map(BatchedWrite).collect()
    }

    /// Begins to read all of them, in the order in which they were added.
    pub fn read(self, fd: impl AsFd) -> Vec<BatchedRead> {
        let fd = types::Fd(fd.as_fd().as_raw_fd());
        let read = |memory: NonNull<[u8]>, offset| {
            let len = kernel_len(memory.len());
            opcode::Read::new(fd, memory.as_ptr().cast(), len).offset(offset).build()
        };
        self.begin(read).map(BatchedRead).collect()
    }

    /// Begins all of them, as `entry` says for the memory and the offset of each. Its descriptor is borrowed by
    /// our caller until this returns.
    fn begin(
        mut self,
        entry: impl Fn(NonNull<[u8]>, u64) -> squeue::Entry,
    ) -> impl Iterator<Item = Batched> {
        let parts = core::mem::take(&mut self.parts);
        let wide = self.wide.take();
        let begun = wide.map(|mut wide| {
            for (n, &Part { at, len_bytes, offset }) in parts.iter().enumerate() {
                let entry = entry(wide.buffer.part(at, len_bytes), offset).user_data(n as u64);
                // SAFETY: its memory is a part of its own of the buffer, a mapping that does not move, which an
                // `UnderWay` keeps and leaves alone until all have come; and the file is open until we return: what
                // was submitted by then has a reference of its own to it, and nothing else ever is.
                let _ = unsafe { wide.ring.submission().push(&entry) };
            }
            let submitted = submit(&mut wide.ring, parts.len());
            let mut results = vec![None; parts.len()];
            results[submitted..].fill(Some(-Errno::AGAIN.raw_os_error()));
            let rings = Arc::clone(&self.rings);
            let mut under_way = UnderWay { wide: Some(wide), rings, results };
            if submitted < parts.len() {
                // The rest is in the ring yet, and whoever waits as usual would submit it.
                under_way.end_spoiled();
            }
            Arc::new(Mutex::new(under_way))
        });
        let batched = move |(index, part): (usize, Part)| {
            begun.as_ref().map(|batch| Batched { batch: Arc::clone(batch), index, part })
        };
        parts.into_iter().enumerate().filter_map(batched)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some(wide) = self.wide.take() {
            give_back(&mut self.rings.pool(), wide);
        }
    }
}

/// Submits so many entries; how many the kernel took.
fn submit(ring: &mut IoUring, entries: usize) -> usize {
    let mut submitted = 0;
    while submitted < entries {
        match ring.submit() {
            Ok(0) => break,
            Ok(some) => submitted += some,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    submitted
}

impl UnderWay {
    /// Notes what has come.
    fn harvest(&mut self) {
        let Some(wide) = &mut self.wide else { return };
        for completion in wide.ring.completion() {
            if let Some(result) = self.results.get_mut(completion.user_data() as usize) {
                *result = Some(completion.result());
            }
        }
    }

    /// Whether all have come.
    fn is_over(&self) -> bool {
        !self.results.contains(&None)
    }

    /// Waits until something comes, but for so long at most. False: the kernel does not say.
    fn wait(&mut self, longest: Duration) -> bool {
        let Some(wide) = &self.wide else { return false };
        let waited = wait_once(&wide.ring, longest);
        self.harvest();
        waited != Waited::InVain
    }

    /// Waits for all that was submitted, and gives the ring up with what was not.
    fn end_spoiled(&mut self) {
        self.harvest();
        while !self.is_over() {
            let Some(wide) = &self.wide else { return };
            // SAFETY: nothing is submitted, and no argument is passed.
            let waited = unsafe { wide.ring.submitter().enter::<()>(0, 1, GETEVENTS, None) };
            match waited.map_err(|error| Errno::from_io_error(&error)) {
                Ok(_) | Err(Some(Errno::INTR | Errno::AGAIN | Errno::BUSY)) => self.harvest(),
                Err(_) => {
                    // The kernel may read the memory at any time.
                    core::mem::forget(self.wide.take());
                    return;
                }
            }
        }
        self.wide = None;
        self.rings.pool().rings -= 1;
    }
}

/// `IORING_ENTER_GETEVENTS`.
const GETEVENTS: u32 = 1;

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.harvest();
        while !self.is_over() && self.wide.is_some() {
            if !self.wait(SLICE) {
                core::mem::forget(self.wide.take());
                return;
            }
        }
        if let Some(wide) = self.wide.take() {
            give_back(&mut self.rings.pool(), wide);
        }
    }
}

impl Batched {
    fn batch(&self) -> MutexGuard<'_, UnderWay> {
        // A panic elsewhere cannot leave it half-changed.
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is finished, but for so long at most; whether it is, or will never be seen to be.
    fn is_finished_within(&self, longest: Duration) -> bool {
        let end = Instant::now() + longest;
        loop {
            let mut batch = self.batch();
            batch.harvest();
            if batch.results[self.index].is_some() {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if !batch.wait(left.min(SLICE)) || batch.results[self.index].is_some() {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }

    /// Waits until it is finished. Returns the batch if all of it was transferred.
    fn finished(&self) -> Result<MutexGuard<'_, UnderWay>> {
        while !self.is_finished_within(SLICE) {}
        let batch = self.batch();
        match batch.results[self.index] {
            Some(done) if usize::try_from(done) == Ok(self.part.len_bytes) => Ok(batch),
            Some(error @ ..0) => Err(Errno::from_raw_os_error(-error)),
            _ => Err(Errno::IO),
        }
    }
}

impl BatchedWrite {
    /// Waits until it is finished, but for so long at most; whether it is, or will never be seen to be.
    pub fn is_finished_within(&self, longest: Duration) -> bool {
        self.0.is_finished_within(longest)
    }

    /// Waits until it is finished, and returns whether all of it was written.
    ///
    /// # Errors
    /// As `pwrite(2)`; `EIO` if it was written in part, or the kernel does not say.
    pub fn finish(self) -> Result<()> {
        self.0.finished().map(drop)
    }
}

impl BatchedRead {
    /// Waits until it is finished, and has something done with what was read.
    ///
    /// # Errors
    /// As `pread(2)`; `EIO` if it was read in part (the file ends there), or the kernel does not say.
    pub fn finish<T>(self, with: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let batch = self.0.finished()?;
        let Part { at, len_bytes, .. } = self.0.part;
        let wide = batch.wide.as_ref().ok_or(Errno::IO)?;
        // SAFETY: the part of the buffer that is this read's alone, which has come: the kernel writes there no
        // more, and the buffer stays as long as it is locked.
        let data = unsafe { wide.buffer.part(at, len_bytes).as_ref() };
        Ok(with(data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::FileExt;

    fn rings() -> Option<Arc<Rings>> {
        let rings = Rings::new();
        if rings.batch().is_none() {
            eprintln!("skipped: no io_uring here");
            return None;
        }
        Some(rings)
    }

    #[test]
    fn each_is_written_where_it_goes() {
        let Some(rings) = rings() else { return };
        let file = tempfile::tempfile().unwrap();
        for round in 0..3u8 {
            let mut batch = rings.batch().unwrap();
            for n in 0..TRANSFERS_MAX as u64 {
                batch.add(100, (n * 7 % 64) * 4096).unwrap().fill(n as u8 + round);
            }
            assert!(batch.add(1, 0).is_none(), "it is full");
            let mut writes = batch.write(&file);
            assert_eq!(writes.len(), TRANSFERS_MAX);
            // In another order, and some by another thread.
            let others = writes.split_off(20);
            std::thread::scope(|scope| {
                scope.spawn(|| others.into_iter().rev().for_each(|write| write.finish().unwrap()));
                writes.into_iter().for_each(|write| write.finish().unwrap());
            });
            for n in 0..TRANSFERS_MAX as u64 {
                let mut found = [0; 100];
                file.read_exact_at(&mut found, (n * 7 % 64) * 4096).unwrap();
                assert_eq!(found, [n as u8 + round; 100]);
            }
        }
        let pool = rings.pool();
        assert_eq!((pool.rings, pool.wide.len()), (1, 1), "one is used again");
    }

    #[test]
    fn each_is_read_from_where_it_is() {
        let Some(rings) = rings() else { return };
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..100_000u32).map(|n| (n / 7) as u8).collect();
        file.write_all(&content).unwrap();
        let mut batch = rings.batch().unwrap();
        // The last one meets the end of the file.
        let offsets: Vec<usize> = (0..24).map(|n| n * 11 % 24 * 4096).chain([99_000]).collect();
        for &offset in &offsets {
            batch.add(4096, offset as u64).unwrap();
        }
        for (offset, read) in offsets.into_iter().zip(batch.read(&file)).rev() {
            let is_it = read.finish(|found| found == &content[offset..offset + 4096]);
            let expected = if offset == 99_000 { Err(Errno::IO) } else { Ok(true) };
            assert_eq!(is_it, expected, "{offset}");
        }
        assert_eq!(rings.pool().wide.len(), 1);
    }

    #[test]
    fn there_is_no_room_for_more_than_the_memory() {
        let Some(rings) = rings() else { return };
        // Those that never begin are no loss.
        (0..1000).for_each(|_| drop(rings.batch().unwrap()));
        let mut batch = rings.batch().unwrap();
        assert_eq!(batch.add(BYTES_MAX - PAGE_BYTES, 0).unwrap().len(), BYTES_MAX - PAGE_BYTES);
        assert!(batch.add(PAGE_BYTES + 1, 0).is_none());
        assert_eq!(batch.add(1, 0).unwrap().as_ptr().addr() % PAGE_BYTES, 0);
        assert!(batch.add(1, 0).is_none());
        assert!(batch.add(usize::MAX, 0).is_none());
    }

    #[test]
    fn who_fails_tells_of_itself_alone_and_memory_is_kept_until_all_are_over() {
        let Some(rings) = rings() else { return };
        let file = tempfile::tempfile().unwrap();
        let mut batch = rings.batch().unwrap();
        for offset in [0, u64::MAX / 2 + 1, 4096] {
            batch.add(8, offset).unwrap().fill(7);
        }
        let mut writes = batch.write(&file).into_iter();
        assert_eq!(writes.next().unwrap().finish(), Ok(()));
        assert!(writes.next().unwrap().finish().is_err(), "no file is so long");
        // Nobody asks for the third.
        drop(writes);
        let mut found = [0; 8];
        file.read_exact_at(&mut found, 4096).unwrap();
        assert_eq!(found, [7; 8]);
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut batch = rings.batch().unwrap();
        batch.add(8, 0).unwrap();
        let write = batch.write(&full).pop().unwrap();
        assert!(write.is_finished_within(Duration::from_secs(60)));
        assert_eq!(write.finish(), Err(Errno::NOSPC));
    }
}
