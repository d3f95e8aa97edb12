//! Reads: past the kernel's page cache where that is possible, and from it what it has.

use super::{Access, Store, is_aligned};
use crate::port::{Loading, LoadingInPlace, PAGE_BYTES, PortError};
use pagekeeper_sys::Errno;
use pagekeeper_sys::buffer::Buffer;
use pagekeeper_sys::counters::page_cache;
use pagekeeper_sys::file::{self, TransferFlags};
use pagekeeper_sys::ring::batch::{Batch, BatchedRead};
use pagekeeper_sys::ring::{Rings, Transfer};
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// So many reads in a row that the kernel's page cache has nothing of show that it is used up.
const CACHED_READS: u32 = 64;

impl Store {
    /// The kernel's page cache may have much of the file that is not to be read again. What is taken
    /// from there leaves it.
    pub(crate) fn expect_cached(&self) {
        self.cached_reads.store(CACHED_READS, Ordering::Relaxed);
    }

    /// Reads what the kernel's page cache has, if that is all of it.
    fn load_cached(&self, fd: &OwnedFd, offset: u64, data: &mut [u8]) -> bool {
        let left = self.cached_reads.load(Ordering::Relaxed);
        if left == 0 || self.unwritten.is_known() {
            return false;
        }
        let bytes = data.len();
        // Asked first: what it lacks it would begin to read, although nobody waits for that.
        let pages = (bytes as u64).div_ceil(PAGE_BYTES);
        let has = page_cache(fd, offset, bytes as u64).map_or(0, |has| has.cached_pages);
        let is_all = has == pages
            && file::read_at(fd, &mut [IoSliceMut::new(data)], offset, TransferFlags::NOWAIT)
                == Ok(bytes);
        self.cached_reads.store(if is_all { CACHED_READS } else { left - 1 }, Ordering::Relaxed);
        if is_all {
            let _ = file::advise(fd, offset, bytes as u64, false);
        }
        is_all
    }

    /// The descriptor past the kernel's page cache, where that works and storage has what is read.
    fn for_read<'a>(&self, access: &'a Access) -> Option<&'a OwnedFd> {
        self.unbuffered(access).filter(|_| !self.unwritten.is_known())
    }

    /// The same for a read that begins now and ends later: none while the kernel's page cache is to be
    /// looked at first.
    fn for_begun_read<'a>(&self, access: &'a Access) -> Option<&'a OwnedFd> {
        self.for_read(access).filter(|_| self.cached_reads.load(Ordering::Relaxed) == 0)
    }

    /// Reads whole pages; what the file does not have is zero. Returns the file's own bytes.
    ///
    /// # Errors
    /// As `pread(2)`.
    pub fn load(&self, offset: u64, data: &mut [u8]) -> Result<u64, PortError> {
        let access = self.access();
        if self.load_cached(&access.plain, offset, data) {
            return Ok(data.len() as u64);
        }
        self.load_by(&access, offset, &mut [IoSliceMut::new(data)])
    }

    /// The same into several places, each of whole pages.
    ///
    /// # Errors
    /// As `preadv(2)`.
    pub(crate) fn load_scattered(
        &self,
        offset: u64,
        places: &mut [IoSliceMut<'_>],
    ) -> Result<u64, PortError> {
        self.load_by(&self.access(), offset, places)
    }

    fn load_by(
        &self,
        access: &Access,
        offset: u64,
        mut places: &mut [IoSliceMut<'_>],
    ) -> Result<u64, PortError> {
        let mut direct = self.for_read(access);
        let mut done = 0;
        while !places.is_empty() {
            let read = match direct {
                Some(fd) => file::read_at(fd, places, offset + done, TransferFlags::empty()),
                None => self.pass_through(|flags| {
                    file::read_at(&access.plain, places, offset + done, flags)
                }),
            };
            match read {
                Ok(_) if direct.is_some() && self.unwritten.look(access, offset) => direct = None,
                Ok(0) => break,
                Ok(n) => {
                    done += n as u64;
                    IoSliceMut::advance_slices(&mut places, n);
                    // A direct read that ends inside a page has met the end of the file; asking
                    // on from there would be unaligned.
                    if !done.is_multiple_of(PAGE_BYTES) {
                        break;
                    }
                }
                Err(Errno::INVAL) if direct.is_some() => {
                    if places.iter().all(|place| is_aligned(place)) {
                        self.buffered.store(true, Ordering::Relaxed);
                    }
                    direct = None;
                }
                // A healthy ext4 file may say so of pages that its cache has yet to allocate: a write that
                // met a bad buffer, and a longer file since.
                Err(Errno::IO) if direct.is_some() => direct = None,
                Err(errno) => return Err(errno.into()),
            }
        }
        let keeps_cached = self.keeps_cached.load(Ordering::Relaxed);
        if direct.is_none() && keeps_cached && !self.unwritten.is_known() {
            // The kernel's copy would be memory that no budget counts.
            let rest: usize = places.iter().map(|place| place.len()).sum();
            let _ = file::advise(&access.plain, offset, done + rest as u64, false);
        }
        places.iter_mut().for_each(|place| place.fill(0));
        Ok(done)
    }

    /// Begins to read whole pages, past the kernel's page cache; gives the buffer back where that
    /// cannot be.
    ///
    /// # Errors
    /// The buffer.
    pub fn begin_load(
        &self,
        rings: &Arc<Rings>,
        offset: u64,
        buffer: Buffer,
        bytes: usize,
    ) -> Result<Loading, Buffer> {
        let access = self.access();
        match self.for_begun_read(&access) {
            Some(fd) => {
                let reading = rings.read(fd, buffer, bytes, offset)?;
                let unwritten = self.unwritten.clone();
                // Meanwhile nobody is to think the file unused.
                Ok(Box::new(move || {
                    let (buffer, loaded) = loaded(reading, bytes);
                    (buffer, loaded.filter(|_| !unwritten.look(&access, offset)))
                }))
            }
            None => Err(buffer),
        }
    }

    /// Whether reads of whole pages go past the kernel's page cache, as far as is known.
    pub(crate) fn reads_directly(&self) -> bool {
        self.for_begun_read(&self.access()).is_some()
    }

    /// Begins to read ranges of pages, past the kernel's page cache, as a batch; none where that cannot be.
    /// What comes is given to `fill`, with its offset.
    pub(crate) fn begin_loads(
        &self,
        mut batch: Batch,
        ranges: &[Range<u64>],
        fill: impl Fn(u64, &[u8]) -> Result<(), PortError> + Clone + Send + 'static,
    ) -> Option<Vec<LoadingInPlace>> {
        for range in ranges {
            let pages = range.end - range.start;
            batch.add((pages * PAGE_BYTES) as usize, range.start * PAGE_BYTES)?;
        }
        let access = self.access();
        let begun = batch.read(self.for_begun_read(&access)?);
        let loading = |(range, read): (&Range<u64>, BatchedRead)| -> LoadingInPlace {
            let offset = range.start * PAGE_BYTES;
            let (access, unwritten) = (Arc::clone(&access), self.unwritten.clone());
            let fill = fill.clone();
            Box::new(move || {
                let fill = |data: &[u8]| {
                    let is_old = unwritten.look(&access, offset);
                    (!is_old && fill(offset, data).is_ok()).then_some(data.len() as u64)
                };
                // What meets the end of the file is read again, by a plain call, as what fails.
                read.finish(fill).ok().flatten()
            })
        };
        Some(ranges.iter().zip(begun).map(loading).collect())
    }

    /// Begins to read so many bytes, which are whole pages, past the kernel's page cache, as `begin`
    /// does with the descriptor for that. `None` where it cannot be.
    pub(crate) fn begin_load_by<K: Send + 'static>(
        &self,
        offset: u64,
        bytes: usize,
        begin: impl FnOnce(&OwnedFd) -> Option<Transfer<K>>,
    ) -> Option<LoadingInPlace> {
        let access = self.access();
        let reading = begin(self.for_begun_read(&access)?)?;
        let unwritten = self.unwritten.clone();
        Some(Box::new(move || {
            let (_, read) = reading.finish();
            // Until then nobody was to think the file unused.
            let is_unwritten = unwritten.look(&access, offset);
            drop(access);
            if is_unwritten {
                return None;
            }
            // One that meets the end of the file is made again, by a plain call, as any that fails.
            read.ok().filter(|read| *read == bytes).map(|read| read as u64)
        }))
    }
}

/// How a read of whole pages went: [`Loading`].
fn loaded(reading: Transfer, bytes: usize) -> (Option<Buffer>, Option<u64>) {
    let (mut buffer, read) = reading.finish();
    let data = buffer.as_mut().and_then(|buffer| buffer.get_mut(..bytes));
    // One that ends inside a page has met the end of the file.
    let is_whole = |read: &usize| *read == bytes || !(*read as u64).is_multiple_of(PAGE_BYTES);
    let loaded = data.zip(read.ok().filter(is_whole)).map(|(data, read)| {
        data[read..].fill(0);
        read as u64
    });
    (buffer, loaded)
}

/// The kernel could not write what somebody wrote to the file: its page cache, which takes such pages for
/// clean, may have what storage has not. From then on reads go through it.
#[derive(Clone, Default, Debug)]
pub(super) struct Unwritten(Arc<AtomicBool>);

impl Unwritten {
    fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Looks whether that has happened; after a read past the page cache, which may have met it.
    fn look(&self, access: &Access, offset: u64) -> bool {
        // Who has not written hears of nothing.
        if access.writable
            && let Err(errno) = file::await_range(&access.plain, offset, PAGE_BYTES)
            && !matches!(errno, Errno::NOSYS | Errno::INVAL | Errno::SPIPE | Errno::PERM)
        {
            self.0.store(true, Ordering::Relaxed);
        }
        self.is_known()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_the_page_cache_has_is_taken_from_there() {
        let path = std::env::temp_dir().join(format!("pagekeeper-cached-{}", std::process::id()));
        std::fs::write(&path, vec![7u8; 8 * PAGE_BYTES as usize]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.sync_all().unwrap();
        let store = Store::open(file.as_fd()).unwrap();
        store.expect_cached();
        let mut page = [0u8; PAGE_BYTES as usize];
        assert_eq!(store.load(PAGE_BYTES, &mut page), Ok(PAGE_BYTES));
        assert_eq!(page, [7u8; PAGE_BYTES as usize]);
        assert_eq!(store.cached_reads.load(Ordering::Relaxed), CACHED_READS);
        // Behind the end there is nothing to take: the plain way knows what that means.
        for _ in 0..CACHED_READS {
            assert_eq!(store.load(8 * PAGE_BYTES, &mut page), Ok(0));
            assert_eq!(page, [0u8; PAGE_BYTES as usize]);
        }
        assert_eq!(store.cached_reads.load(Ordering::Relaxed), 0);
    }

    /// Where there is no direct I/O, the kernel's copy of what was read is memory that no budget counts.
    #[test]
    fn without_direct_io_nothing_that_was_read_stays_in_the_page_cache() {
        let path = std::env::temp_dir().join(format!("pagekeeper-through-{}", std::process::id()));
        std::fs::write(&path, vec![7u8; 64 * PAGE_BYTES as usize + 10]).unwrap();
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.sync_all().unwrap();
        file::advise(&file, 0, 0, false).unwrap();
        let store = Store::open(file.as_fd()).unwrap();
        store.allow_writes(file.as_fd()).unwrap();
        assert!(store.narrow());
        let cached = || page_cache(&file, 0, 0).map(|cache| cache.cached_pages);
        let Ok(0) = cached() else {
            eprintln!("skipped: nobody says what is cached here");
            return;
        };
        let mut data = vec![0u8; 8 * PAGE_BYTES as usize];
        assert_eq!(store.load(PAGE_BYTES, &mut data), Ok(8 * PAGE_BYTES));
        assert!(data.iter().all(|&byte| byte == 7));
        // (A kernel that drops nothing by itself is asked to.)
        assert_eq!(cached(), Ok(0));
        data.fill(5);
        assert_eq!(
            store.store(57 * PAGE_BYTES, &data, u64::MAX),
            Ok(()),
            "the last, partial page is in it"
        );
        assert_eq!(store.load(57 * PAGE_BYTES, &mut data), Ok(7 * PAGE_BYTES + 10));
        assert!(data[..7 * PAGE_BYTES as usize + 10].iter().all(|&byte| byte == 5));
        assert!(data[7 * PAGE_BYTES as usize + 10..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_read_under_way_ends_as_a_plain_one_or_is_to_be_made_again() {
        let path = std::env::temp_dir().join(format!("pagekeeper-store-{}", std::process::id()));
        std::fs::write(&path, vec![7u8; 3 * PAGE_BYTES as usize + 100]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let store = Store::open(file.as_fd()).unwrap();
        let rings = Rings::new();
        let read = |page: u64, pages: usize| {
            let bytes = pages * PAGE_BYTES as usize;
            let mut buffer = Buffer::new(bytes).unwrap();
            buffer.fill(9);
            let loading = store.begin_load(&rings, page * PAGE_BYTES, buffer, bytes).ok()?;
            let (buffer, loaded) = loading();
            Some((buffer.unwrap(), loaded))
        };
        let Some((buffer, loaded)) = read(0, 2) else {
            eprintln!("skipped: no io_uring or no direct I/O here");
            return;
        };
        assert_eq!(loaded, Some(2 * PAGE_BYTES));
        assert!(buffer.iter().all(|byte| *byte == 7));
        // What lies behind the end of the file is zero.
        let (buffer, loaded) = read(2, 4).unwrap();
        assert_eq!(loaded, Some(PAGE_BYTES + 100));
        assert!(buffer[..PAGE_BYTES as usize + 100].iter().all(|byte| *byte == 7));
        assert!(buffer[PAGE_BYTES as usize + 100..].iter().all(|byte| *byte == 0));
        // One that ends with a page may have been cut short by something else.
        assert_eq!(read(4, 2).unwrap().1, None);
        // Meanwhile the file is in use.
        let bytes = PAGE_BYTES as usize;
        let under_way = store.begin_load(&rings, 0, Buffer::new(bytes).unwrap(), bytes);
        assert!(under_way.is_ok() && !store.narrow());
        drop(under_way);
        assert!(store.narrow());
    }
}
