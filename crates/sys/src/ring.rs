//! Transfers that go on while who asked for them does something else: io_uring(7).
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, squeue, types};

use crate::alias::AliasRange;
use crate::buffer::Buffer;
use crate::descriptor::made_beside_streams;
use crate::mask::{self, Capability};
use crate::{Errno, Result};

pub mod batch;
pub mod closing;

/// Entries of a ring: each carries one transfer at a time.
const ENTRIES: u32 = 1;
/// Most rings of one pool, and so most transfers under way.
const RINGS_MAX: usize = 64;

/// Most pieces of a read: `IOV_MAX`.
const PIECES_MAX: usize = 1024;

/// Memory that a part of a read goes to.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Piece(libc::iovec);

// SAFETY: an address and a length; who has the kernel write there promises that it may.
unsafe impl Send for Piece {}

impl From<AliasRange<'_>> for Piece {
    fn from(range: AliasRange<'_>) -> Piece {
        Piece(libc::iovec { iov_base: range.as_mut_ptr().cast(), iov_len: range.len() })
    }
}

/// A pool of rings, for transfers by any thread.
#[derive(Default)]
pub struct Rings {
    pool: Mutex<Pool>,
    /// There is no io_uring here, or not for us.
    refused: AtomicBool,
}

#[derive(Default)]
struct Pool {
    /// Nothing is under way in them.
    idle: Vec<IoUring>,
    /// The same for batches.
    wide: Vec<batch::Wide>,
    /// Those, and the ones in use.
    rings: usize,
}

/// A read or write that has begun, and what keeps its memory.
pub struct Transfer<M = Buffer> {
    /// None when it is finished. The memory is lent to nobody, and leaked where the completion cannot
    /// be seen.
    parts: Option<(IoUring, M)>,
    rings: Arc<Rings>,
}

impl Rings {
    /// A pool without rings; they are made as they are needed.
    pub fn new() -> Arc<Rings> {
        Arc::default()
    }

    /// Begins a positioned read into the first `len_bytes` of a buffer.
    ///
    /// # Errors
    /// The buffer, if nothing has begun: there is no io_uring here, or too much is under way.
    ///
    /// # Panics
    /// If the buffer is shorter.
    pub fn read(
        self: &Arc<Rings>,
        fd: impl AsFd,
        mut buffer: Buffer,
        len_bytes: usize,
        offset: u64,
    ) -> core::result::Result<Transfer, Buffer> {
        let (memory, len) = (buffer.as_mut_ptr(), fitting(&buffer, len_bytes));
        let fd = types::Fd(fd.as_fd().as_raw_fd());
        let entry = opcode::Read::new(fd, memory, len).offset(offset).build();
        // SAFETY: a read of at most the buffer's length, to the buffer that goes with it. `fd` is
        // borrowed by our caller until we return.
        unsafe { self.begin(entry, buffer) }
    }

    /// Begins a positioned read to memory that `keeper` keeps where it is, one piece after the other.
    ///
    /// # Errors
    /// The keeper, if nothing has begun: as for [`read`](Self::read), or these are no pieces, or too
    /// many.
    ///
    /// # Safety
    /// The pieces are valid for writes as long as the keeper lives; and until the transfer is finished
    /// or dropped, nobody else reads or changes them.
    pub unsafe fn read_to<K>(
        self: &Arc<Rings>,
        fd: impl AsFd,
        pieces: Vec<Piece>,
        offset: u64,
        keeper: K,
    ) -> core::result::Result<Transfer<(K, Vec<Piece>)>, K> {
        let fd = types::Fd(fd.as_fd().as_raw_fd());
        let entry = match &*pieces {
            [] => return Err(keeper),
            [one] => opcode::Read::new(fd, one.0.iov_base.cast(), kernel_len(one.0.iov_len))
                .offset(offset)
                .build(),
            all if all.len() > PIECES_MAX => return Err(keeper),
            all => {
                opcode::Readv::new(fd, all.as_ptr().cast(), all.len() as u32).offset(offset).build()
            }
        };
        // SAFETY: a read to memory that the caller promises to be there, and nobody else's, until
        // the transfer is over; the list of it goes with the keeper. `fd` is borrowed by our caller
        // until we return.
        unsafe { self.begin(entry, (keeper, pieces)) }.map_err(|(keeper, _)| keeper)
    }

    /// Whether it is worth asking: false once it is known that there is no io_uring here.
    pub fn may_begin(&self) -> bool {
        !self.refused.load(Relaxed)
    }

    /// Begins a positioned write of the first `len_bytes` of a buffer.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    ///
    /// # Panics
    /// If the buffer is shorter.
    pub fn write(
        self: &Arc<Rings>,
        fd: impl AsFd,
        buffer: Buffer,
        len_bytes: usize,
        offset: u64,
    ) -> core::result::Result<Transfer, Buffer> {
        let (memory, len) = (buffer.as_ptr(), fitting(&buffer, len_bytes));
        let fd = types::Fd(fd.as_fd().as_raw_fd());
        let entry = opcode::Write::new(fd, memory, len).offset(offset).build();
        // SAFETY: a write of at most the buffer's length, from the buffer that goes with it. `fd`
        // is borrowed by our caller until we return.
        unsafe { self.begin(entry, buffer) }
    }

    /// Submits an entry.
    ///
    /// # Safety
    /// Its descriptor is open until this returns (by then the kernel has a reference of its own),
    /// and its memory is valid, and the transfer's alone, as long as `memory` lives and the transfer
    /// has not ended.
    unsafe fn begin<M>(
        self: &Arc<Rings>,
        entry: squeue::Entry,
        memory: M,
    ) -> core::result::Result<Transfer<M>, M> {
        let Some(mut ring) = self.take() else { return Err(memory) };
        // SAFETY: the kernel may use the entry's memory until the completion. What keeps it goes into
        // a `Transfer`, which has it until then, or back to a caller for whom nothing was submitted.
        // Moving a `Buffer` does not move its memory, which is a mapping of its own.
        let is_queued = unsafe { ring.submission().push(&entry) }.is_ok();
        // An error says that nothing was submitted; the entry goes with the ring, which nobody uses
        // again.
        if is_queued && matches!(ring.submit(), Ok(1)) {
            return Ok(Transfer { parts: Some((ring, memory)), rings: Arc::clone(self) });
        }
        drop(ring);
        self.pool().rings -= 1;
        Err(memory)
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        // A panic elsewhere cannot leave it half-changed.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<IoUring> {
        if self.refused.load(Relaxed) {
            return None;
        }
        let mut pool = self.pool();
        match pool.idle.pop() {
            Some(ring) => Some(ring),
            // Completions wait for the thread to ask, and interrupt nobody (Linux 5.19).
            None => self.make(&mut pool, || {
                let quiet = IoUring::builder().setup_coop_taskrun().build(ENTRIES);
                quiet.or_else(|_| IoUring::new(ENTRIES))
            }),
        }
    }

    /// A new ring, which counts from now on.
    fn make(
        &self,
        pool: &mut Pool,
        make: impl Fn() -> std::io::Result<IoUring>,
    ) -> Option<IoUring> {
        if self.refused.load(Relaxed) || pool.rings == RINGS_MAX {
            return None;
        }
        if !mask::allows(Capability::IoUring) {
            self.refused.store(true, Relaxed);
            return None;
        }
        match made_beside_streams(&make) {
            Ok(ring) => {
                // What cannot go on at once is carried out by threads of the kernel's, of which whoever
                // submits it has as many as its ring has entries: one that stands still would hold up
                // whatever that thread submits to any ring. (Linux 5.15.)
                let _ = ring.submitter().register_iowq_max_workers(&mut [RINGS_MAX as u32, 0]);
                pool.rings += 1;
                Some(ring)
            }
            Err(_) => {
                // Where one was made another failed for lack of memory or descriptors.
                self.refused.store(pool.rings == 0, Relaxed);
                None
            }
        }
    }
}

impl<M> Transfer<M> {
    /// Waits until it is finished. Returns the buffer (or keeper) and the bytes read or written, which
    /// may be fewer than asked for. The buffer is missing if the kernel would not say what became of
    /// it.
    ///
    /// # Errors
    /// As `pread(2)` or `pwrite(2)`.
    pub fn finish(mut self) -> (Option<M>, Result<usize>) {
        match self.end() {
            Some((memory, result)) => {
                let done = usize::try_from(result);
                (Some(memory), done.map_err(|_| Errno::from_raw_os_error(-result)))
            }
            None => (None, Err(Errno::IO)),
        }
    }

    /// Waits until it is finished, but for so long at most; whether it is. Where the kernel knows no such
    /// limit (before Linux 5.11) there is none.
    pub fn is_finished_within(&mut self, longest: Duration) -> bool {
        self.parts.as_mut().is_none_or(|(ring, _)| has_come_within(ring, longest))
    }

    /// Waits, once.
    fn end(&mut self) -> Option<(M, i32)> {
        let (mut ring, memory) = self.parts.take()?;
        let Some(result) = wait(&mut ring) else {
            // The kernel may write to it at any time.
            core::mem::forget((ring, memory));
            return None;
        };
        self.rings.pool().idle.push(ring);
        Some((memory, result))
    }
}

impl<M> Drop for Transfer<M> {
    fn drop(&mut self) {
        self.end();
    }
}

/// So many bytes of a buffer, as the kernel counts them.
fn fitting(buffer: &Buffer, len_bytes: usize) -> u32 {
    assert!(len_bytes <= buffer.len(), "{len_bytes} bytes of {}", buffer.len());
    kernel_len(len_bytes)
}

fn kernel_len(len_bytes: usize) -> u32 {
    u32::try_from(len_bytes).expect("transfers are of some megabytes")
}

/// Whether the result of the one transfer that is under way is there, or cannot be waited for.
fn has_come_within(ring: &mut IoUring, longest: Duration) -> bool {
    let end = Instant::now() + longest;
    while ring.completion().is_empty() {
        match wait_once(ring, end.saturating_duration_since(Instant::now())) {
            Waited::Perhaps => {}
            Waited::Enough => return !ring.completion().is_empty(),
            Waited::InVain => return true,
        }
    }
    true
}

/// What came of waiting for a completion.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waited {
    /// There may be one.
    Perhaps,
    /// It took too long.
    Enough,
    /// The kernel does not say.
    InVain,
}

/// Waits for a completion, but for so long at most, and perhaps not so long.
fn wait_once(ring: &IoUring, longest: Duration) -> Waited {
    let limit = types::Timespec::from(longest);
    let limit = types::SubmitArgs::new().timespec(&limit);
    // It runs what the kernel left to do for us, too, which is more than looking.
    match ring.submitter().submit_with_args(1, &limit).map_err(|e| Errno::from_io_error(&e)) {
        Ok(_) | Err(Some(Errno::INTR | Errno::AGAIN | Errno::BUSY)) => Waited::Perhaps,
        Err(Some(Errno::TIME)) => Waited::Enough,
        Err(_) => Waited::InVain,
    }
}

/// The result of the one transfer that is under way.
fn wait(ring: &mut IoUring) -> Option<i32> {
    loop {
        if let Some(completion) = ring.completion().next() {
            return Some(completion.result());
        }
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
                _ => return None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_BYTES;
    use crate::alias::Alias;
    use std::io::Write as _;

    fn file() -> std::fs::File {
        let mut file = tempfile::tempfile().unwrap();
        for page in 0..8u8 {
            file.write_all(&[page; PAGE_BYTES]).unwrap();
        }
        file.write_all(&[8; 100]).unwrap();
        file
    }

    fn begin(
        rings: &Arc<Rings>,
        file: &std::fs::File,
        page: u64,
        pages: usize,
    ) -> Option<Transfer> {
        let len = pages * PAGE_BYTES;
        rings.read(file, Buffer::new(len).unwrap(), len, page * PAGE_BYTES as u64).ok()
    }

    #[test]
    fn reads_under_way_together_bring_each_its_own() {
        let (rings, file) = (Rings::new(), file());
        if rings.take().is_none() {
            eprintln!("skipped: no io_uring here");
            return;
        }
        for _ in 0..3 {
            let under_way: Vec<_> = (0..6u8)
                .map(|page| (page, begin(&rings, &file, page.into(), 2).unwrap()))
                .collect();
            // In another order than they were begun.
            for (page, reading) in under_way.into_iter().rev() {
                let (buffer, read) = reading.finish();
                assert_eq!(read, Ok(2 * PAGE_BYTES));
                let buffer = buffer.unwrap();
                assert!(buffer[..PAGE_BYTES].iter().all(|b| *b == page));
                assert!(buffer[PAGE_BYTES..].iter().all(|b| *b == page + 1));
            }
        }
        assert!(rings.pool().rings <= 7, "rings are used again");
    }

    #[test]
    fn memory_is_kept_until_the_read_is_over() {
        struct Kept(Alias, Arc<AtomicBool>);
        impl Kept {
            fn piece(&self, page: usize, pages: usize) -> AliasRange<'_> {
                self.0.range(page * PAGE_BYTES, pages * PAGE_BYTES).unwrap()
            }
        }
        impl Drop for Kept {
            fn drop(&mut self) {
                // SAFETY: nobody else uses the memory.
                let firsts = [0, 1, 2, 3].map(|page| unsafe { self.piece(page, 1).bytes()[0] });
                assert_eq!(firsts, [3, 4, 0, 5], "given up before it was read");
                self.1.store(true, Relaxed);
            }
        }
        let (rings, file) = (Rings::new(), file());
        let is_gone = Arc::new(AtomicBool::new(false));
        let memory = Alias::reserve(4 * PAGE_BYTES).unwrap();
        memory.range(0, memory.len_bytes()).unwrap().open().unwrap();
        let keeper = Kept(memory, is_gone.clone());
        let pieces = vec![keeper.piece(0, 2).into(), keeper.piece(3, 1).into()];
        // SAFETY: the memory is the keeper's, which looks at it only when the transfer is over.
        let reading = unsafe { rings.read_to(&file, pieces, 3 * PAGE_BYTES as u64, keeper) };
        let Ok(reading) = reading.map_err(core::mem::forget) else {
            eprintln!("skipped: no io_uring here");
            return;
        };
        assert!(!is_gone.load(Relaxed));
        drop(reading);
        assert!(is_gone.load(Relaxed));
    }

    #[test]
    fn a_read_to_nowhere_does_not_begin() {
        // SAFETY: there is no memory that it goes to.
        let begun = unsafe { Rings::new().read_to(file(), Vec::new(), 0, "keeper") };
        assert_eq!(begun.err(), Some("keeper"));
    }

    #[test]
    fn the_end_of_the_file_and_errors_are_told() {
        let (rings, file) = (Rings::new(), file());
        let Some(reading) = begin(&rings, &file, 7, 4) else {
            eprintln!("skipped: no io_uring here");
            return;
        };
        assert_eq!(reading.finish().1, Ok(PAGE_BYTES + 100));
        assert_eq!(begin(&rings, &file, 100, 1).unwrap().finish().1, Ok(0));
        let unreadable = tempfile::NamedTempFile::new().unwrap();
        let unreadable = std::fs::File::options().write(true).open(unreadable.path()).unwrap();
        let (buffer, read) = begin(&rings, &unreadable, 0, 1).unwrap().finish();
        assert_eq!((buffer.map(|b| b.len()), read), (Some(PAGE_BYTES), Err(Errno::BADF)));
    }

    #[test]
    fn writes_arrive() {
        let (rings, file) = (Rings::new(), file());
        for page in [1u8, 5] {
            let mut buffer = Buffer::new(PAGE_BYTES).unwrap();
            buffer.fill(0x50 + page);
            let offset = u64::from(page) * PAGE_BYTES as u64;
            let Ok(writing) = rings.write(&file, buffer, PAGE_BYTES, offset) else {
                eprintln!("skipped: no io_uring here");
                return;
            };
            assert_eq!(writing.finish().1, Ok(PAGE_BYTES));
        }
        let mut all = vec![0; 8 * PAGE_BYTES];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut all, 0).unwrap();
        let first = |page: usize| all[page * PAGE_BYTES + 9];
        assert_eq!([0, 1, 2, 5, 6].map(first), [0, 0x51, 2, 0x55, 6]);
        let read_only = std::fs::File::open("/proc/self/exe").unwrap();
        let buffer = Buffer::new(PAGE_BYTES).unwrap();
        let writing = rings.write(&read_only, buffer, PAGE_BYTES, 0).ok().unwrap();
        assert_eq!(writing.finish().1, Err(Errno::BADF));
    }

    #[test]
    fn what_cannot_begin_gives_the_buffer_back() {
        let (rings, file) = (Rings::new(), file());
        let under_way: Vec<_> = (0..RINGS_MAX).map_while(|_| begin(&rings, &file, 0, 1)).collect();
        assert!(under_way.is_empty() || under_way.len() == RINGS_MAX);
        let refused = rings.read(&file, Buffer::new(PAGE_BYTES).unwrap(), PAGE_BYTES, 0);
        assert_eq!(refused.err().map(|buffer| buffer.len()), Some(PAGE_BYTES));
        // Dropped ones are waited for, and their rings used again.
        let were_begun = !under_way.is_empty();
        drop(under_way);
        assert_eq!(begin(&rings, &file, 0, 1).is_some(), were_begun);
    }

    #[test]
    fn what_is_not_there_is_waited_for_so_long_at_most() {
        let (from, to) = rustix::pipe::pipe().unwrap();
        let rings = Rings::new();
        let Ok(mut reading) = rings.read(&from, Buffer::new(PAGE_BYTES).unwrap(), 4, u64::MAX)
        else {
            eprintln!("skipped: no io_uring here");
            return;
        };
        assert!(!reading.is_finished_within(Duration::ZERO));
        assert!(!reading.is_finished_within(Duration::from_millis(2)));
        rustix::io::write(&to, b"here").unwrap();
        assert!(reading.is_finished_within(Duration::from_secs(60)));
        assert!(reading.is_finished_within(Duration::ZERO), "it stays so");
        let (buffer, read) = reading.finish();
        assert_eq!((read, &buffer.unwrap()[..4]), (Ok(4), &b"here"[..]));
    }
}
