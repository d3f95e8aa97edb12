//! Regions: ranges of segments bound into the address space.

use crate::engine::spaces;
use crate::library::segment::{End, Inner, Segment};
use crate::port::{PAGE_BYTES, SpaceNo};
use pagekeeper_sys::Errno;
use pagekeeper_sys::area::{Access, Area};
use pagekeeper_sys::doctor::maps_protected;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The one address space of a program's own engine.
pub(crate) const HERE: SpaceNo = 0;

/// What a region lets its users do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protection {
    /// Read; a store raises SIGSEGV.
    Read,
    /// Read and write: stores are writes of the segment.
    ReadWrite,
    /// Read and write; a store changes a private copy of the page, all of it however large, which
    /// lives as long as the region, takes a frame of the budget and never leaves memory: more of them
    /// than the budget has room for are memory beyond it. Where a page has none, the segment's content
    /// shows, also what is written later.
    CopyOnWrite,
}

/// A range of a segment, bound into the address space until it is dropped: V++'s bound region. Its
/// pages are brought in when they are touched, by the cache's
/// [`FaultPath`](crate::library::FaultPath).
///
/// A region is an address, not a slice: see [`as_slice`](Self::as_slice) for why. A page that
/// cannot be brought in raises SIGBUS when it is touched (the next touch tries again; where a thread
/// serves faults, some 10 ms later), as does an address behind the end of the segment (behind the
/// machine's page of 4 KiB that it ends in, however large the cache's are). A forked child does not
/// have the region (a touch there is SIGSEGV).
#[derive(Debug)]
pub struct Region {
    inner: Arc<Inner>,
    area: Option<Arc<Area>>,
    len: usize,
    /// Behind `inner`, which goes first: with the last region a segment without handles is closed.
    _end: End,
}

/// Bounds of every region that there ever was: what lies outside is not managed.
static LOW: AtomicU64 = AtomicU64::new(u64::MAX);
static HIGH: AtomicU64 = AtomicU64::new(0);

/// Whether bytes of the caller's may lie in a region: touching them may need a page then, so that
/// nobody does it while others wait for him.
#[inline]
pub(crate) fn may_be_managed(bytes: &[u8]) -> bool {
    let start = bytes.as_ptr() as u64;
    start < HIGH.load(Ordering::Relaxed) && start + bytes.len() as u64 > LOW.load(Ordering::Relaxed)
}

impl Segment {
    /// Binds a byte range into the address space. It starts on a page of the cache
    /// ([`Builder::page_bytes`](crate::library::Builder::page_bytes)) and lies within the segment's
    /// pages (the last of which may reach behind its end).
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the cache's fault path is explicit (as it is wherever its translation is a hash
    /// table), or copies are to be made of pages larger than the machine's, before Linux 6.4 (a store
    /// could come before its page is protected: the kernel would copy a part of it); `EINVAL`:
    /// unaligned, empty, or not within the segment; `EBADF`: a [`Protection::ReadWrite`] region of a
    /// handle that may not write; those of `mmap(2)` and `ioctl_userfaultfd(2)`.
    pub fn map(&self, range: Range<u64>, protection: Protection) -> io::Result<Region> {
        let inner = &self.inner;
        if !inner.backing.frames.is_here() {
            return Err(Errno::OWNERDEAD.into());
        }
        let shared = inner.shared();
        let port = shared.engine.port();
        let (Some(userfault), Some(memfd)) = (port.userfault(), inner.backing.frames.memfd())
        else {
            return Err(Errno::OPNOTSUPP.into());
        };
        let page_bytes = self.page_bytes();
        let end = range.end.checked_next_multiple_of(page_bytes).ok_or(Errno::INVAL)?;
        let pages_end = self.len().next_multiple_of(page_bytes);
        if range.is_empty() || !range.start.is_multiple_of(page_bytes) || end > pages_end {
            return Err(Errno::INVAL.into());
        }
        if protection == Protection::ReadWrite && !self.writable() {
            return Err(Errno::BADF.into());
        }
        // Here at the latest, and not in a fault, which may be served by a signal's handler.
        let maps_protected = maps_protected();
        let copies_large = protection == Protection::CopyOnWrite && page_bytes > PAGE_BYTES;
        if copies_large && !maps_protected {
            return Err(Errno::OPNOTSUPP.into());
        }
        let len = (end - range.start) as usize;
        let access = match protection {
            Protection::Read => Access::Read,
            Protection::ReadWrite => Access::Write,
            Protection::CopyOnWrite => Access::CopyOnWrite,
        };
        let area = Arc::new(Area::new(memfd, range.start, len, access)?);
        let start = area.address();
        let track = pagekeeper_sys::userfault::Track::MISSING
            | pagekeeper_sys::userfault::Track::MINOR
            | pagekeeper_sys::userfault::Track::WRITE_PROTECT;
        userfault.register(start, len as u64, track)?;
        let region = spaces::Region {
            file: inner.number(),
            bias: range.start.wrapping_sub(start),
            shared: protection != Protection::CopyOnWrite,
            read_only: false,
            library: false,
        };
        LOW.fetch_min(start, Ordering::SeqCst);
        HIGH.fetch_max(start + len as u64, Ordering::SeqCst);
        shared.put_area(&area);
        shared.engine.add_region(HERE, start..start + len as u64, region);
        // From here on dropping it undoes all of it.
        let bytes = (range.end - range.start) as usize;
        let (inner, _end) = (inner.clone(), End::of(inner));
        let region = Region { inner, area: Some(area.clone()), len: bytes, _end };
        area.open()?;
        Ok(region)
    }
}

impl Region {
    /// Whether this is the process that bound it, and no forked child, which does not have it.
    pub fn is_here(&self) -> bool {
        self.inner.backing.frames.is_here()
    }

    /// Its first byte. Reading or writing through the pointer is up to the caller: see
    /// [`as_slice`](Self::as_slice).
    pub fn as_ptr(&self) -> *const u8 {
        self.as_mut_ptr()
    }

    /// Its first byte, for writing.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.area.as_ref().map_or(std::ptr::null_mut(), |area| area.as_ptr())
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its bytes.
    ///
    /// # Safety
    /// As long as the slice lives, nobody changes a byte of it: no [`Segment::write_at`],
    /// [`Segment::pin_mut`], [`Segment::set_len`], [`Segment::discard`], migration, or store through
    /// another region of the same pages; and nobody outside this process writes to the file,
    /// which the cache follows when it notices. As with a mapping of a file (`memmap2::Mmap::map`),
    /// Rust cannot see such writers, and a reference to changing bytes is undefined behaviour;
    /// [`Segment::read_at`] and [`Segment::pin`] are the safe ways.
    #[allow(unsafe_code)]
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the region is mapped and readable as long as self lives; its pages are brought in
        // when they are touched, or the touch does not return; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    /// Its bytes, for writing.
    ///
    /// # Safety
    /// As for [`as_slice`](Self::as_slice), and nobody else reads them either. The region must not
    /// be one for reading ([`Protection::Read`]), where a store ends the process.
    #[allow(unsafe_code)]
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_slice`.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let Some(area) = self.area.take() else { return };
        if !self.inner.backing.frames.is_here() {
            // A forked child does not have the mapping; what lies there now is not ours.
            std::mem::forget(area);
            return;
        }
        let shared = self.inner.shared();
        let range = area.address()..area.address() + area.len_bytes() as u64;
        shared.engine.unmapped(HERE, range);
        // Returns when nobody unmaps pages in it any more.
        shared.take_area(&area);
    }
}
