//! The machine as a program's own engine sees it: stores behind segments, frames in memfds, one
//! address space, its own.
#![allow(unsafe_code)]

use crate::engine::Deferred;
use crate::engine::spaces::Region;
use crate::library::faults::FaultPath;
use crate::library::frames::{COPIED_BYTES_MAX, Frames, Memory};
use crate::library::store::{Store, port_error};
use crate::library::stores::load_known;
use crate::live::{map_pages, set_protection, userfault_error};
use crate::manager::work::{Work, Workers};
use crate::port::{FileNo, LoadingInPlace, Mapped, PAGE_BYTES, Port, PortError, SpaceNo, Version};
use pagekeeper_frames::Place;
use pagekeeper_policy::Page;
use pagekeeper_sys::area::Area;
use pagekeeper_sys::buffer::BufferPool;
use pagekeeper_sys::event::EventFd;
use pagekeeper_sys::file;
use pagekeeper_sys::ring::{Piece, Rings};
use pagekeeper_sys::userfault::Userfault;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::{Duration, Instant};

/// Shortest read that is worth being begun apart from being waited for: two system calls.
const BEGUN_BYTES_MIN: u64 = 32 << 10;
/// Longest one: a window is read in parts, so that the kernel finds frames for one while storage
/// reads another.
const BEGUN_BYTES_MAX: u64 = 256 << 10;
/// Buffers kept for the next misses, of as many threads.
const BUFFERS_KEPT: usize = 8;

/// What a segment is made of.
pub(crate) struct Backing {
    pub(crate) frames: Frames,
    pub(crate) store: Box<dyn Store>,
    /// The segment's length, which the engine is never told less than. Only who knows that nobody
    /// holds what would go makes it less.
    pub(crate) size: AtomicU64,
    /// What lies behind it is not given to the store. Not less than `size`: that of a store that was made
    /// longer for a write is told when the bytes are there, and one that may become longer again, because
    /// the store was not made shorter after all, was told first.
    pub(crate) stored_size: AtomicU64,
    /// How long the cache has made the store just now, for when the store cannot say.
    pub(crate) made_size: Mutex<Option<u64>>,
}

impl Backing {
    /// Who is told something by `follow` may rely on the store's being so long.
    pub(crate) fn while_made<T>(&self, size_bytes: u64, follow: impl FnOnce() -> T) -> T {
        let say = |size| *self.made_size.lock().expect("made size") = size;
        say(Some(size_bytes));
        let result = follow();
        say(None);
        result
    }

    /// The store's version. One that was made so long and then cannot be asked is known by its length
    /// alone, so that it counts as changed by somebody else when it can be asked again.
    fn version(&self) -> io::Result<Version> {
        self.store.version().or_else(|error| {
            let made = *self.made_size.lock().expect("made size");
            made.map(|size_bytes| Version { size_bytes, ..Version::default() }).ok_or(error)
        })
    }
}

/// Segments by number.
pub(crate) struct LibraryPort {
    segments: RwLock<Vec<Option<Arc<Backing>>>>,
    /// Who carries out what nobody waits for; none: whoever comes along.
    workers: Option<Arc<Workers>>,
    path: FaultPath,
    page_bytes: u64,
    memory: Memory,
    userfault: Option<Userfault>,
    /// Reads under way.
    rings: Arc<Rings>,
    /// For pages on their way into frames.
    buffers: BufferPool,
    /// Regions, so that pages of them are unmapped only as long as they are there.
    areas: RwLock<Vec<Arc<Area>>>,
    /// Threads whose inline fault could not be served, and the machine's page that they touched: a
    /// fault that another thread serves may fail when its own has gone on, to other pages.
    failures: Mutex<Vec<(u32, u64)>>,
    /// When the machine's pages were marked whose touches raise SIGBUS.
    marks: Mutex<VecDeque<(Instant, u64)>>,
    /// Who takes the marks away is told so.
    marked: OnceLock<Arc<EventFd>>,
}

impl std::fmt::Debug for LibraryPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LibraryPort").finish_non_exhaustive()
    }
}

impl LibraryPort {
    pub(crate) fn new(
        workers: Option<Arc<Workers>>,
        path: FaultPath,
        page_bytes: u64,
        memory: Memory,
        userfault: Option<Userfault>,
    ) -> LibraryPort {
        LibraryPort {
            segments: RwLock::new(Vec::new()),
            workers,
            path,
            page_bytes,
            memory,
            userfault,
            rings: Rings::new(),
            buffers: BufferPool::new(COPIED_BYTES_MAX as usize, BUFFERS_KEPT),
            areas: RwLock::new(Vec::new()),
            failures: Mutex::new(Vec::new()),
            marks: Mutex::default(),
            marked: OnceLock::new(),
        }
    }

    pub(crate) fn path(&self) -> FaultPath {
        self.path
    }

    pub(crate) fn userfault(&self) -> Option<&Userfault> {
        self.userfault.as_ref()
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    fn need_userfault(&self) -> Result<&Userfault, PortError> {
        self.userfault.as_ref().ok_or(PortError::Gone)
    }

    pub(crate) fn has_workers(&self) -> bool {
        self.workers.is_some()
    }

    pub(crate) fn put_area(&self, area: &Arc<Area>) {
        self.areas.write().expect("areas").push(area.clone());
    }

    /// Forgets a region. Nobody unmaps pages in it any more when this returns.
    pub(crate) fn take_area(&self, area: &Arc<Area>) {
        self.areas.write().expect("areas").retain(|known| !Arc::ptr_eq(known, area));
        // Of those that nobody took: who touched it has gone on.
        let range = area.address()..area.address() + area.len_bytes() as u64;
        self.failures.lock().expect("failures").retain(|(_, addr)| !range.contains(addr));
    }

    /// Does something with the region that an address range lies in, if there is one; it stays
    /// meanwhile.
    fn with_area<T>(&self, addr: u64, len: u64, f: impl FnOnce(&Area) -> T) -> Option<T> {
        let areas = self.areas.read().expect("areas");
        let inside = |area: &&Arc<Area>| {
            area.address() <= addr && addr + len <= area.address() + area.len_bytes() as u64
        };
        areas.iter().find(inside).map(|area| f(area))
    }

    /// Whether a thread's fault on a page of the machine's could not be served; told once.
    pub(crate) fn take_failure(&self, tid: u32, addr: u64) -> bool {
        let mut failures = self.failures.lock().expect("failures");
        let before = failures.len();
        failures.retain(|failed| *failed != (tid, addr));
        failures.len() < before
    }

    /// Somebody takes marks away from now on, and is told of each.
    pub(crate) fn tell_of_marks(&self, marked: Arc<EventFd>) {
        let _ = self.marked.set(marked);
    }

    /// The first page whose mark is as old as that, once; or how long until there is one.
    pub(crate) fn next_mark(&self, age: Duration) -> Result<u64, Option<Duration>> {
        let mut marks = self.marks.lock().expect("marks");
        let (since, addr) = *marks.front().ok_or(None)?;
        match age.checked_sub(since.elapsed()).filter(|left| !left.is_zero()) {
            Some(left) => Err(Some(left)),
            None => {
                marks.pop_front();
                Ok(addr)
            }
        }
    }

    pub(crate) fn put(&self, no: FileNo, backing: Option<Arc<Backing>>) {
        let mut segments = self.segments.write().expect("segments");
        if segments.len() <= no as usize {
            segments.resize_with(no as usize + 1, || None);
        }
        let before = std::mem::replace(&mut segments[no as usize], backing);
        drop(segments);
        // A store may give memory back, which is the engine's business.
        drop(before);
    }

    /// Reads a few pages of a store into frames by way of a buffer.
    ///
    /// # Safety
    /// The caller has claimed the pages: they are Filling.
    unsafe fn copy_in(&self, segment: &Backing, offset: u64, len: usize) -> Result<u64, PortError> {
        let mut buffer = self.buffers.take()?;
        let pages = &mut buffer[..len];
        let had = load(segment, offset, pages)?;
        // SAFETY: passed on to the caller by this function's own contract.
        unsafe { segment.frames.put(offset, pages)? };
        Ok(had)
    }

    fn segment(&self, no: FileNo) -> Result<Arc<Backing>, PortError> {
        let segments = self.segments.read().expect("segments");
        segments.get(no as usize).and_then(Clone::clone).ok_or(PortError::Missing)
    }
}

/// Reads pages of a segment's store; what lies behind its end is zero.
fn load(segment: &Backing, offset: u64, pages: &mut [u8]) -> Result<u64, PortError> {
    let len = segment.size.load(Ordering::SeqCst);
    let had = load_known(&*segment.store, len, offset, pages).map_err(|e| port_error(&e))?;
    pages[had..].fill(0);
    Ok(had as u64)
}

/// What of these pages lies before a store's present end, and before the segment's: what lies between
/// is somebody else's, and was not followed yet.
fn within<'a>(segment: &Backing, offset: u64, pages: &'a [u8]) -> Result<&'a [u8], PortError> {
    let present = segment.store.len().map_err(|e| port_error(&e))?;
    let len = present.min(segment.stored_size.load(Ordering::SeqCst)).saturating_sub(offset);
    Ok(&pages[..usize::try_from(len).unwrap_or(usize::MAX).min(pages.len())])
}

/// Writes pages to a segment's store, but nothing behind its end.
fn store(segment: &Backing, offset: u64, pages: &[u8]) -> Result<(), PortError> {
    match within(segment, offset, pages)? {
        [] => Ok(()),
        bytes => segment.store.store(offset, bytes).map_err(|e| port_error(&e)),
    }
}

/// Gives a segment's store pages that leave memory.
fn retire(segment: &Backing, offset: u64, pages: &[u8], dirty: bool) -> Result<(), PortError> {
    match within(segment, offset, pages)? {
        [] => Ok(()),
        bytes => segment.store.retire(offset, bytes, dirty).map_err(|e| port_error(&e)),
    }
}

impl Port for LibraryPort {
    fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    fn fill(&self, file: FileNo, index: u64, data: &[u8]) -> Result<(), PortError> {
        let segment = self.segment(file)?;
        let offset = index * self.page_bytes;
        // SAFETY: the engine calls this for pages that it has claimed for filling.
        unsafe { segment.frames.put(offset, data)? };
        Ok(())
    }

    fn peek(&self, file: FileNo, index: u64, data: &mut [u8]) -> Result<(), PortError> {
        let segment = self.segment(file)?;
        let offset = index * self.page_bytes;
        if let Some(memfd) = segment.frames.memfd() {
            return Ok(memfd.read_at(data, offset)?);
        }
        let pages = data.len() as u64 / self.page_bytes;
        // SAFETY: the engine calls this for pages that it has claimed for write-back, or pinned.
        unsafe {
            segment.frames.with_claimed(index, pages, |at, block| {
                let from = (at - offset) as usize;
                data[from..from + block.len()].copy_from_slice(block);
                Ok(())
            })
        }
    }

    fn patch(&self, file: FileNo, offset_bytes: u64, data: &[u8]) -> Result<(), PortError> {
        Ok(self.segment(file)?.frames.patch(offset_bytes, data)?)
    }

    fn discard(&self, file: FileNo, index: u64, pages: u64) -> Result<(), PortError> {
        Ok(self.segment(file)?.frames.discard(index, pages)?)
    }

    fn resize(&self, file: FileNo, pages: u64) -> Result<(), PortError> {
        match self.segment(file)?.frames.memfd() {
            Some(memfd) => Ok(file::set_len_unsignalled(memfd, pages * self.page_bytes)?),
            None => Ok(()),
        }
    }

    fn arrived(&self, place: Place, page: Page, is_told: bool) {
        // Where frames are mapped nobody needs to know.
        if !matches!(self.memory, Memory::Mapped)
            && let Ok(segment) = self.segment(place.segment.0)
        {
            segment.frames.arrived(place, page, !is_told);
        }
    }

    fn load(&self, file: FileNo, index: u64, data: &mut [u8]) -> Result<u64, PortError> {
        load(&*self.segment(file)?, index * self.page_bytes, data)
    }

    fn load_in_place(
        &self,
        file: FileNo,
        index: u64,
        pages: u64,
    ) -> Option<Result<u64, PortError>> {
        let segment = match self.segment(file) {
            Ok(segment) => segment,
            Err(error) => return Some(Err(error)),
        };
        let (offset, len) = (index * self.page_bytes, pages * self.page_bytes);
        if segment.frames.copied(len).is_some() {
            // SAFETY: the engine calls this for pages that it has claimed for filling.
            return Some(unsafe { self.copy_in(&segment, offset, len as usize) });
        }
        let mut bytes = 0;
        let is_scattered = pages > 1 && segment.frames.memfd().is_none();
        if let (true, Some(file)) = (is_scattered, segment.store.as_file()) {
            // SAFETY: as below.
            let loaded = unsafe {
                segment.frames.with_filling_scattered(index, pages, |offset, blocks| {
                    bytes += file.direct().load_scattered(offset, blocks)?;
                    Ok::<(), PortError>(())
                })
            };
            return Some(loaded.map(|()| bytes));
        }
        // SAFETY: the engine calls this for pages that it has claimed for filling.
        let loaded = unsafe {
            segment.frames.with_filling(index, pages, |offset, piece| {
                bytes += load(&segment, offset, piece)?;
                Ok::<(), PortError>(())
            })
        };
        Some(loaded.map(|()| bytes))
    }

    fn begin_load_in_place(&self, file: FileNo, index: u64, pages: u64) -> Option<LoadingInPlace> {
        let bytes = pages * self.page_bytes;
        if bytes < BEGUN_BYTES_MIN {
            return None;
        }
        let segment = self.segment(file).ok()?;
        let store = segment.store.as_file()?.direct();
        segment.frames.give_room(index, pages).ok()?;
        let places = segment.frames.places_of(index, pages);
        let places =
            places.map(|range| range.map(Piece::from)).collect::<Result<Vec<_>, _>>().ok()?;
        let (offset, bytes) = (index * self.page_bytes, bytes as usize);
        let keeper = segment.clone();
        store.begin_load_by(offset, bytes, |fd| {
            // SAFETY: the pages lie in memory that lives as long as `keeper` does, and the engine has
            // claimed them for filling until the read is over: nobody else touches them, nor takes
            // them out of their frames.
            unsafe { self.rings.read_to(fd, places, offset, keeper) }.ok()
        })
    }

    fn request_pages_max(&self, file: FileNo) -> u32 {
        let begins = |segment: Arc<Backing>| segment.store.as_file().is_some();
        if self.rings.may_begin() && self.segment(file).is_ok_and(begins) {
            (BEGUN_BYTES_MAX / self.page_bytes).max(1) as u32
        } else {
            u32::MAX
        }
    }

    fn store(&self, file: FileNo, index: u64, data: &[u8], _: u64) -> Result<(), PortError> {
        store(&*self.segment(file)?, index * self.page_bytes, data)
    }

    fn store_in_place(
        &self,
        file: FileNo,
        index: u64,
        pages: u64,
    ) -> Option<Result<(), PortError>> {
        let segment = match self.segment(file) {
            Ok(segment) => segment,
            Err(error) => return Some(Err(error)),
        };
        if pages > 1 && segment.frames.memfd().is_none() {
            // Blocks are gathered in a buffer, and written as one.
            return None;
        }
        // SAFETY: the engine calls this for pages that it has claimed for write-back and
        // protected in every mapping.
        Some(unsafe {
            segment
                .frames
                .with_claimed(index, pages, |offset, piece| store(&segment, offset, piece))
        })
    }

    fn takes_victims(&self, file: FileNo) -> bool {
        self.segment(file).is_ok_and(|segment| segment.store.takes_victims())
    }

    fn retire(
        &self,
        file: FileNo,
        index: u64,
        pages: u64,
        dirty: bool,
    ) -> Option<Result<(), PortError>> {
        let segment = self.segment(file).ok()?;
        if !segment.store.takes_victims() {
            return None;
        }
        // SAFETY: the engine calls this for pages that it has claimed, Leaving or Cleaning, and that nobody can
        // write to: clean ones are protected in every mapping, dirty ones were protected before.
        Some(unsafe {
            segment
                .frames
                .with_claimed(index, pages, |offset, piece| retire(&segment, offset, piece, dirty))
        })
    }

    fn reserve(&self, file: FileNo, index: u64, pages: u64) -> Result<(), PortError> {
        let segment = self.segment(file)?;
        let (offset, len) = (index * self.page_bytes, pages * self.page_bytes);
        segment.store.reserve(offset, len).map_err(|e| port_error(&e))
    }

    fn version(&self, file: FileNo) -> Result<Version, PortError> {
        let segment = self.segment(file)?;
        let version = segment.version().map_err(|e| port_error(&e))?;
        let size_bytes = version.size_bytes.max(segment.size.load(Ordering::SeqCst));
        Ok(Version { size_bytes, ..version })
    }

    fn map(
        &self,
        _space: SpaceNo,
        addr: u64,
        pages: u64,
        protect: bool,
        wakes: bool,
    ) -> Result<Mapped, PortError> {
        map_pages(self.need_userfault()?, addr, pages, self.page_bytes, protect, wakes)
    }

    fn maps_protected(&self) -> bool {
        pagekeeper_sys::doctor::maps_protected()
    }

    fn protect(&self, _space: SpaceNo, addr: u64, pages: u64) -> Result<(), PortError> {
        set_protection(self.need_userfault()?, addr, pages, true)
    }

    fn unprotect(&self, _space: SpaceNo, addr: u64, pages: u64) -> Result<(), PortError> {
        set_protection(self.need_userfault()?, addr, pages, false)
    }

    fn wake(&self, _space: SpaceNo, addr: u64, pages: u64) -> Result<(), PortError> {
        self.need_userfault()?.wake(addr, pages * PAGE_BYTES).map_err(userfault_error)
    }

    fn copy(&self, _space: SpaceNo, addr: u64, data: &[u8]) -> Result<(), PortError> {
        let userfault = self.need_userfault()?;
        let len = data.len() as u64;
        let cut = || self.with_area(addr, len, |area| area.cut_pages(addr, len));
        cut().ok_or(PortError::Gone)??;
        let mut done = 0;
        while done < len {
            match userfault.copy(addr + done, &data[done as usize..], false, false) {
                Ok(copied) => done += copied,
                Err(stopped) if stopped.done_bytes > 0 => done += stopped.done_bytes,
                Err(stopped) => {
                    // All of it or nothing.
                    let _ = cut();
                    // (Nothing of what is copied can be missing.)
                    return Err(PortError::Io(stopped.errno.raw_os_error()));
                }
            }
        }
        Ok(())
    }

    fn cut(&self, _space: SpaceNo, addr: u64, pages: u64) {
        let len = pages * PAGE_BYTES;
        // A region that is gone shows nothing, and advice on one that is there cannot fail.
        let _ = self.with_area(addr, len, |area| area.cut_pages(addr, len));
    }

    fn poison(&self, _space: SpaceNo, addr: u64) -> Result<(), PortError> {
        if self.path == FaultPath::Inline {
            // The thread is in its handler, and is told there: nobody else has to be.
            return Err(PortError::Missing);
        }
        let marked = self.need_userfault()?.poison(addr, PAGE_BYTES, false);
        marked.map_err(|stopped| userfault_error(stopped.errno))?;
        self.marks.lock().expect("marks").push_back((Instant::now(), addr));
        if let Some(marked) = self.marked.get() {
            let _ = marked.notify();
        }
        Ok(())
    }

    fn is_deaf(&self, _: SpaceNo, tid: u32) -> bool {
        // Inline it is told where it is.
        self.path == FaultPath::Thread
            && pagekeeper_sys::process::is_deaf(std::process::id(), tid, libc::SIGBUS)
    }

    fn sigbus(&self, space: SpaceNo, tid: u32, addr: u64) -> Result<(), PortError> {
        if self.path == FaultPath::Inline {
            self.failures.lock().expect("failures").push((tid, addr));
            return Ok(());
        }
        let _ = space;
        let sent = pagekeeper_sys::signal::send_to_thread(std::process::id(), tid, libc::SIGBUS);
        sent.map_err(userfault_error)
    }

    fn zap(&self, _space: SpaceNo, ranges: &[(u64, u64)]) {
        for &(addr, pages) in ranges {
            let len = pages * PAGE_BYTES;
            // Best effort: a page that stays mapped is a page whose touches are not seen.
            let _ = self.with_area(addr, len, |area| area.unmap_pages(addr, len));
        }
    }

    fn resolve(&self, _: SpaceNo, _: u64) -> Option<(Range<u64>, Region)> {
        None
    }

    fn defer(&self) -> bool {
        self.workers.is_some()
    }

    fn hand_over(&self, work: Deferred) -> Result<(), Deferred> {
        match &self.workers {
            Some(workers) => {
                workers.push(Work::Deferred(work));
                Ok(())
            }
            None => Err(work),
        }
    }

    fn again(&self) {
        std::thread::yield_now();
    }
}
