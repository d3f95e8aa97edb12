//! Writes of pages: past the kernel's page cache where that is possible, never beyond the file's end.

use super::{Store, is_aligned};
use crate::port::{PAGE_BYTES, PortError, Storing, Version};
use pagekeeper_sys::Errno;
use pagekeeper_sys::buffer::Buffer;
use pagekeeper_sys::file::{self, TransferFlags};
use pagekeeper_sys::ring::batch::{Batch, BatchedWrite};
use pagekeeper_sys::ring::{Rings, Transfer};
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Store {
    /// Waits for writes that the kernel is carrying out. A direct read waits for them, too, but not of
    /// every file system; all of them look for data with nobody writing.
    pub fn await_writes(&self) {
        let _ = rustix::fs::seek(&self.access().plain, rustix::fs::SeekFrom::Data(0));
    }

    /// Writes whole pages, but nothing beyond the file's present end (a page that somebody truncated
    /// away must not bring the old length back), nor beyond the end that is known.
    ///
    /// # Errors
    /// As `pwrite(2)`; EBADF if the store is not writable.
    pub fn store(&self, offset: u64, data: &[u8], end_bytes: u64) -> Result<(), PortError> {
        let access = self.access();
        let write = access.for_writing()?;
        let end = self.version()?.size_bytes.min(end_bytes);
        let len = (end.saturating_sub(offset)).min(data.len() as u64) as usize;
        let whole = len - len % PAGE_BYTES as usize;
        let mut done = 0;
        if let Some(direct) = self.unbuffered(write) {
            match write_all(direct, &data[..whole], offset, TransferFlags::empty()) {
                Ok(()) => done = whole,
                Err(Errno::INVAL) if is_aligned(data) => {
                    self.buffered.store(true, Ordering::Relaxed);
                }
                Err(Errno::INVAL) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        if done < len {
            // The last, partial page at its exact length; or a file system without direct I/O.
            let (rest, at) = (&data[done..len], offset + done as u64);
            self.pass_through(|flags| write_all(&write.plain, rest, at, flags))?;
            if self.keeps_cached.load(Ordering::Relaxed) {
                let _ = file::sync_range(&write.plain, at, rest.len() as u64, false);
            }
        }
        Ok(())
    }

    /// Begins to write whole pages, past the kernel's page cache; gives the buffer back where that
    /// cannot be, or where some of them lie behind the file's present end.
    ///
    /// # Errors
    /// The buffer.
    pub fn begin_store(
        &self,
        rings: &Arc<Rings>,
        offset: u64,
        buffer: Buffer,
        bytes: usize,
    ) -> Result<Box<dyn Storing>, Buffer> {
        let access = self.access();
        let is_inside = |version: Version| offset + bytes as u64 <= version.size_bytes;
        match self.unbuffered(&access) {
            Some(fd) if access.writable && self.version().is_ok_and(is_inside) => {
                let writing = rings.write(fd, buffer, bytes, offset)?;
                // Meanwhile nobody is to think the file unused.
                Ok(Box::new(Writing { transfer: writing, bytes, _access: access }))
            }
            _ => Err(buffer),
        }
    }

    /// Whether writes of whole pages go past the kernel's page cache, as far as is known.
    pub(crate) fn writes_directly(&self) -> bool {
        let access = self.access();
        access.writable && self.unbuffered(&access).is_some()
    }

    /// Begins the writes of a batch, which are of whole pages, past the kernel's page cache; none where that
    /// cannot be, or where some of them lie behind the file's present end.
    pub(crate) fn begin_stores(&self, batch: Batch) -> Option<Vec<Box<dyn Storing>>> {
        let access = self.access();
        let end = batch.end();
        let is_inside = |version: Version| end <= version.size_bytes;
        let fd = self.unbuffered(&access)?;
        if !access.writable || !self.version().is_ok_and(is_inside) {
            return None;
        }
        let begun = batch.write(fd).into_iter();
        // Meanwhile nobody is to think the file unused.
        let storing = |write| -> Box<dyn Storing> {
            Box::new(WritingTogether { write, _access: Arc::clone(&access) })
        };
        Some(begun.map(storing).collect())
    }
}

/// A write of whole pages.
struct Writing<A> {
    transfer: Transfer,
    bytes: usize,
    _access: A,
}

impl<A: Send> Storing for Writing<A> {
    fn ends_within(&mut self, longest: Duration) -> bool {
        self.transfer.is_finished_within(longest)
    }

    fn end(self: Box<Self>) -> (Option<Buffer>, bool) {
        let (buffer, written) = self.transfer.finish();
        (buffer, written == Ok(self.bytes))
    }
}

/// The same, one of a batch.
struct WritingTogether<A> {
    write: BatchedWrite,
    _access: A,
}

impl<A: Send> Storing for WritingTogether<A> {
    fn ends_within(&mut self, longest: Duration) -> bool {
        self.write.is_finished_within(longest)
    }

    fn end(self: Box<Self>) -> (Option<Buffer>, bool) {
        (None, self.write.finish().is_ok())
    }
}

fn write_all(fd: &OwnedFd, data: &[u8], offset: u64, flags: TransferFlags) -> Result<(), Errno> {
    let mut done = 0;
    while done < data.len() {
        let bufs = [IoSlice::new(&data[done..])];
        match file::write_at(fd, &bufs, offset + done as u64, flags)? {
            0 => return Err(Errno::IO),
            n => done += n,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// One write from memory as an allocator gives it, and all that followed went through the kernel's
    /// page cache.
    #[test]
    fn unaligned_memory_is_no_reason_to_go_without_direct_io_later() {
        let path =
            std::env::temp_dir().join(format!("pagekeeper-unaligned-{}", std::process::id()));
        std::fs::write(&path, vec![7u8; 4 * PAGE_BYTES as usize]).unwrap();
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let store = Store::open(file.as_fd()).unwrap();
        store.allow_writes(file.as_fd()).unwrap();
        let mut memory = Buffer::new(2 * PAGE_BYTES as usize).unwrap();
        let unaligned = &mut memory[8..8 + PAGE_BYTES as usize];
        unaligned.fill(5);
        assert_eq!(store.store(PAGE_BYTES, unaligned, u64::MAX), Ok(()));
        unaligned.fill(0);
        assert_eq!(store.load(PAGE_BYTES, unaligned), Ok(PAGE_BYTES));
        assert!(unaligned.iter().all(|&byte| byte == 5));
        assert!(!store.buffered.load(Ordering::Relaxed));
        // What was written so is seen by those who read past it.
        let page = &mut memory[..PAGE_BYTES as usize];
        assert_eq!(store.load(PAGE_BYTES, page), Ok(PAGE_BYTES));
        assert!(page.iter().all(|&byte| byte == 5));
    }
}
