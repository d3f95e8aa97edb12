//! A file on storage, read and written past the kernel's page cache where that is possible.

use crate::live::ahead::Ahead;
use crate::live::file_systems::{is_remote, shares_blocks};
use crate::live::shortage::is_shortage;
use crate::live::ticks::Ticks;
use crate::port::{Loading, LoadingInPlace, Look, PAGE_BYTES, PortError, Storing, Version};
use pagekeeper_sys::Errno;
use pagekeeper_sys::buffer::Buffer;
use pagekeeper_sys::counters::page_cache;
use pagekeeper_sys::descriptor::duplicate;
use pagekeeper_sys::file::{self, FallocateFlags, Lease, TransferFlags};
use pagekeeper_sys::ring::batch::{Batch, BatchedRead, BatchedWrite};
use pagekeeper_sys::ring::{Rings, Transfer};
use rustix::fs::OFlags;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

/// Descriptors of one file. Few, since a run may manage thousands of files.
#[derive(Debug)]
struct Access {
    plain: OwnedFd,
    /// With O_DIRECT, where the file system has it.
    direct: Option<OwnedFd>,
    writable: bool,
}

/// The storage behind a managed file.
#[derive(Debug)]
pub struct Store {
    access: RwLock<Arc<Access>>,
    /// Direct I/O turned out not to work after all.
    buffered: AtomicBool,
    /// What goes through the kernel's page cache stays there until it is dropped: there is no
    /// RWF_DONTCACHE here.
    keeps_cached: AtomicBool,
    /// For how many more reads the kernel's page cache is looked at first.
    cached_reads: AtomicU32,
    unwritten: Unwritten,
    /// The pages that were given storage last.
    ahead: Mutex<Ahead>,
    /// Some of its blocks may be other files', too.
    shares_blocks: bool,
    /// What its times tell.
    pub(crate) ticks: Ticks,
}

/// So many reads in a row that the kernel's page cache has nothing of show that it is used up.
const CACHED_READS: u32 = 64;

impl From<Errno> for PortError {
    fn from(errno: Errno) -> PortError {
        match errno {
            Errno::AGAIN => PortError::Again,
            Errno::SRCH => PortError::Gone,
            other => PortError::Io(other.raw_os_error()),
        }
    }
}

impl From<file::Version> for Version {
    fn from(version: file::Version) -> Version {
        let file::Version { size_bytes, mtime_ns, ctime_ns } = version;
        Version { size_bytes, mtime_ns, ctime_ns }
    }
}

impl Access {
    fn open(fd: BorrowedFd<'_>, writable: bool) -> Result<Access, Errno> {
        let plain = file::reopen(fd, if writable { OFlags::RDWR } else { OFlags::RDONLY })?;
        let direct = direct(&plain, writable)?;
        Ok(Access { plain, direct, writable })
    }

    /// The one to be written by.
    fn for_writing(&self) -> Result<&Access, PortError> {
        if self.writable { Ok(self) } else { Err(PortError::Io(Errno::BADF.raw_os_error())) }
    }
}

/// Whether the kernel caches more than a page as one: a direct write of a page beside what a program has just
/// written to another of these is an error of the file's, which the next `fsync` tells, though nothing is lost.
/// (Of a server's files the length says how much is transferred at once.)
fn has_long_blocks(fd: impl AsFd) -> bool {
    !is_remote(&fd) && file::block_bytes(&fd).is_ok_and(|bytes| bytes > PAGE_BYTES)
}

/// None where the file cannot be used so; an error if only a descriptor lacks.
fn direct(fd: impl AsFd, writable: bool) -> Result<Option<OwnedFd>, Errno> {
    let alignment = file::direct_alignment(&fd).ok().flatten();
    if alignment.is_some_and(|a| u64::from(a.offset_bytes) > PAGE_BYTES) || has_long_blocks(&fd) {
        return Ok(None);
    }
    match file::reopen_direct(fd, writable) {
        Ok(fd) => Ok(Some(fd)),
        Err(errno) if is_shortage(errno) => Err(errno),
        Err(_) => Ok(None),
    }
}

impl Store {
    /// Storage of the file behind a descriptor, for reading. The descriptor itself is not kept:
    /// its open file description is the program's, with its locks.
    ///
    /// # Errors
    /// The file cannot be opened again for reading.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Store, Errno> {
        Ok(Store::new(Access::open(fd, false)?, false))
    }

    fn new(access: Access, buffered: bool) -> Store {
        Store {
            shares_blocks: shares_blocks(&access.plain),
            access: RwLock::new(Arc::new(access)),
            buffered: AtomicBool::new(buffered),
            keeps_cached: AtomicBool::new(false),
            cached_reads: AtomicU32::new(0),
            unwritten: Unwritten::default(),
            ahead: Mutex::default(),
            ticks: Ticks::default(),
        }
    }

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

    fn access(&self) -> Arc<Access> {
        self.access.read().expect("lock").clone()
    }

    /// Makes it writable, given a descriptor that is.
    ///
    /// # Errors
    /// The file cannot be opened again for writing.
    pub fn allow_writes(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        if !self.writable() {
            *self.access.write().expect("lock") = Arc::new(Access::open(fd, true)?);
        }
        Ok(())
    }

    /// Adopts a descriptor as it is (for the holder, which is given the manager's own).
    pub fn adopt(plain: OwnedFd) -> Store {
        Store::new(Access { plain, direct: None, writable: true }, true)
    }

    /// Whether it may be written.
    pub fn writable(&self) -> bool {
        self.access().writable
    }

    /// Leaves one open file description, which [`keep_out`](Self::keep_out) needs. False if a
    /// transfer is using the other one.
    pub(crate) fn narrow(&self) -> bool {
        let mut access = self.access.write().expect("lock");
        Arc::get_mut(&mut access).map(|access| access.direct = None).is_some()
    }

    /// Takes a write lease, which the kernel gives out only while no other open file description of
    /// the file exists: in no process, in no mapping, not on its way through a socket. Until it is
    /// given up, or the store is dropped, whoever opens the file waits. (Descriptors opened with
    /// O_PATH do not count. `check_conflicting_open` in Linux' fs/locks.c.)
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: somebody has it open; others: there are no leases here, or not for us.
    pub(crate) fn keep_out(&self) -> Result<(), Errno> {
        let access = self.access();
        // Who waits is told of by a signal: one that is ignored.
        file::set_lease_signal(&access.plain, libc::SIGURG)?;
        file::set_lease(&access.plain, Some(Lease::Write))
    }

    /// Lets everybody open the file again. (Closing it here does so only when the holder has closed
    /// its duplicate, too.)
    pub(crate) fn give_up_lease(&self) {
        let _ = file::set_lease(&self.access().plain, None);
    }

    /// Ends what [`narrow`](Self::narrow) and [`keep_out`](Self::keep_out) began.
    pub(crate) fn let_in(&self) {
        self.give_up_lease();
        let mut access = self.access.write().expect("lock");
        let Ok(plain) = duplicate(&access.plain) else { return };
        // Without a descriptor for it, it goes on without.
        let direct = direct(&plain, access.writable).ok().flatten();
        *access = Arc::new(Access { plain, direct, writable: access.writable });
    }

    /// How many names the file has.
    pub(crate) fn links(&self) -> Result<u64, Errno> {
        Ok(file::stat(&self.access().plain)?.links)
    }

    /// A descriptor for the holder: writable if the store is.
    ///
    /// # Errors
    /// As `dup(2)`.
    pub fn descriptor(&self) -> Result<OwnedFd, Errno> {
        duplicate(&self.access().plain)
    }

    /// What the file system says of the file.
    ///
    /// # Errors
    /// As `fstat(2)`.
    pub fn stat(&self) -> Result<file::Stat, Errno> {
        file::stat(&self.access().plain)
    }

    /// The file as it is now.
    ///
    /// # Errors
    /// As `fstat(2)`.
    pub fn version(&self) -> Result<Version, PortError> {
        Ok(self.stat()?.version.into())
    }

    /// The same, and whether all later changes will show.
    pub(crate) fn look(&self) -> Result<Look, PortError> {
        self.ticks.look(&self.access().plain)
    }

    /// One of ours has just written to it.
    pub(crate) fn close_time(&self) {
        self.ticks.close(&self.access().plain);
    }

    /// Whether parts of it may have no blocks on storage.
    pub fn sparse(&self) -> bool {
        let access = self.access();
        let Ok(stat) = file::stat(&access.plain) else { return false };
        // Blocks behind the end, and the file system's own, count as allocated.
        let hole = rustix::fs::seek(&access.plain, rustix::fs::SeekFrom::Hole(0));
        let size = stat.version.size_bytes;
        stat.allocated_bytes < size || hole.is_ok_and(|hole| hole < size) || self.shares_blocks
    }

    /// Waits for writes that the kernel is carrying out. A direct read waits for them, too, but not of
    /// every file system; all of them look for data with nobody writing.
    pub fn await_writes(&self) {
        let _ = rustix::fs::seek(&self.access().plain, rustix::fs::SeekFrom::Data(0));
    }

    /// The descriptor past the kernel's page cache, where that works.
    fn unbuffered<'a>(&self, access: &'a Access) -> Option<&'a OwnedFd> {
        access.direct.as_ref().filter(|_| !self.buffered.load(Ordering::Relaxed))
    }

    /// Makes a transfer through the kernel's page cache, which leaves nothing there where the kernel and
    /// the file system can do that.
    fn pass_through<T>(
        &self,
        mut transfer: impl FnMut(TransferFlags) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if !self.keeps_cached.load(Ordering::Relaxed) {
            match transfer(TransferFlags::DONTCACHE) {
                Err(Errno::OPNOTSUPP) => self.keeps_cached.store(true, Ordering::Relaxed),
                result => return result,
            }
        }
        transfer(TransferFlags::empty())
    }

    /// The same for reads: storage has what is read.
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

    /// Gives storage to a range that has none yet, so that writing it back cannot run out of space.
    ///
    /// # Errors
    /// ENOSPC, EDQUOT and others of `fallocate(2)`.
    pub fn reserve(&self, offset: u64, len: u64) -> Result<(), PortError> {
        let write = self.access();
        if !write.writable {
            return Ok(());
        }
        let size = self.version()?.size_bytes;
        let rest = size.saturating_sub(offset);
        let len = len.min(rest);
        if len == 0 {
            return Ok(());
        }
        let pages = offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES);
        let has_storage = || file::is_allocated(&write.plain, offset, len).unwrap_or(false);
        let had_storage = has_storage();
        let mut ahead = self.ahead.lock().expect("lock");
        // Another may have been given it since.
        if had_storage || ahead.concerns(&pages) && has_storage() {
            ahead.stores(&pages);
            return Ok(());
        }
        let wanted = ahead.wants(&pages, size.div_ceil(PAGE_BYTES));
        let mut flags = FallocateFlags::KEEP_SIZE;
        // Those are copied first: room for new ones is not kept.
        flags.set(FallocateFlags::UNSHARE_RANGE, self.shares_blocks);
        let reserve =
            |from: u64, to: u64| file::allocate(&write.plain, flags, from, to.min(size) - from);
        let mut given = pages.start..wanted.end;
        let reserved = match reserve(offset, (wanted.end * PAGE_BYTES).max(offset + len)) {
            // There may be room for what is asked for.
            Err(_) if wanted.end > pages.end => {
                given.end = pages.end;
                reserve(offset, offset + len)
            }
            reserved => reserved,
        };
        match reserved {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        // What nobody asked for takes no room from what somebody did.
        let before = wanted.start * PAGE_BYTES;
        if wanted.start < pages.start && reserve(before, pages.start * PAGE_BYTES).is_ok() {
            given.start = wanted.start;
        }
        ahead.reserved(&pages, &given);
        Ok(())
    }

    /// Whole pages are likely to be stored to: for how many of them, the first ones, there is storage.
    pub(crate) fn room_ahead(&self, pages: Range<u64>) -> u64 {
        let access = self.access();
        let (offset, len) = (pages.start * PAGE_BYTES, (pages.end - pages.start) * PAGE_BYTES);
        if !access.writable {
            return 0;
        }
        let room = file::allocated_len(&access.plain, offset, len).unwrap_or(0) / PAGE_BYTES;
        // Else what was given storage ahead would be taken for in vain, and nothing given any more.
        if room > 0 {
            self.ahead.lock().expect("lock").stores(&(pages.start..pages.start + room));
        }
        room
    }

    /// Punches a hole (`madvise(2)` MADV_REMOVE on a mapping of the file).
    ///
    /// # Errors
    /// As `fallocate(2)`.
    pub fn punch(&self, offset: u64, len: u64) -> Result<(), PortError> {
        let access = self.access();
        let write = access.for_writing()?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(file::allocate(&write.plain, flags, offset, len)?)
    }

    /// Makes the file at least so long (`fallocate(2)`, of its last byte).
    ///
    /// # Errors
    /// As `fallocate(2)`; EBADF if the store is not writable.
    pub fn grow(&self, len: u64) -> Result<(), PortError> {
        let access = self.access();
        let plain = &access.for_writing()?.plain;
        let Some(last) = len.checked_sub(1) else { return Ok(()) };
        Ok(file::allocate(plain, FallocateFlags::empty(), last, 1)?)
    }

    /// `ftruncate(2)`, without SIGXFSZ.
    ///
    /// # Errors
    /// As `ftruncate(2)`; EBADF if the store is not writable.
    pub fn set_len(&self, len: u64) -> Result<(), PortError> {
        let access = self.access();
        Ok(file::set_len_unsignalled(&access.for_writing()?.plain, len)?)
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// As `fdatasync(2)`.
    pub fn sync(&self) -> Result<(), PortError> {
        let access = self.access();
        if access.writable { Ok(file::sync(&access.plain, true)?) } else { Ok(()) }
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
struct Unwritten(Arc<AtomicBool>);

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

/// Whether memory is such as direct I/O takes anywhere: where it fails all the same, the file system
/// has none; where it fails with other memory, that says nothing of the next.
fn is_aligned(data: &[u8]) -> bool {
    data.as_ptr().addr().is_multiple_of(PAGE_BYTES as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// A file of zeros that has no storage, and its store.
    fn hole(name: &str, bytes: u64) -> (std::fs::File, Store) {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let options = std::fs::File::options().read(true).write(true).create(true).clone();
        let file = options.open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(bytes).unwrap();
        let store = Store::open(file.as_fd()).unwrap();
        store.allow_writes(file.as_fd()).unwrap();
        (file, store)
    }

    /// Each was given storage by itself, and so lay by itself.
    #[test]
    fn pages_of_a_hole_that_are_stored_to_by_turns_are_given_storage_together() {
        const PAGES: u64 = 4096;
        let (file, store) = hole("pagekeeper-sparse", PAGES * PAGE_BYTES + 10);
        let has_storage = |page: u64| file::is_allocated(&file, page * PAGE_BYTES, 1).unwrap();
        let mut found_without = 0;
        for page in 0..=PAGES {
            // 1, 0, 3, 2, …
            let page = if page == PAGES { page } else { page ^ 1 };
            found_without += u64::from(!has_storage(page));
            store.reserve(page * PAGE_BYTES, PAGE_BYTES).unwrap();
            if !has_storage(page) {
                eprintln!("skipped: there is no storage to be had here, or none to be seen");
                return;
            }
        }
        assert!(found_without < 64, "{found_without}");
    }

    /// Who may go on without asking is heard of all the same: what was given ahead is not in vain.
    #[test]
    fn pages_that_are_stored_to_without_asking_count_for_what_is_given_ahead() {
        const PAGES: u64 = 8192;
        let (file, store) = hole("pagekeeper-ahead", PAGES * PAGE_BYTES);
        assert_eq!(store.room_ahead(0..4), 0, "nothing was stored");
        let (mut page, mut asked) = (0, 0);
        while page < PAGES {
            store.reserve(page * PAGE_BYTES, PAGE_BYTES).unwrap();
            asked += 1;
            page += 1 + store.room_ahead(page + 1..(page + 65).min(PAGES));
        }
        if !file::is_allocated(&file, 0, PAGE_BYTES).unwrap() {
            eprintln!("skipped: there is no storage to be had here, or none to be seen");
            return;
        }
        assert_eq!(file::has_hole(&file, 0, PAGES * PAGE_BYTES), Ok(true), "it was not written to");
        assert_eq!(file::is_allocated(&file, 0, PAGES * PAGE_BYTES), Ok(true));
        assert!(asked < PAGES / 32, "{asked}");
    }

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
