//! A segment's frames as this process sees them, and the way to a page without a lock.
//!
//! A segment is seen through windows of a gigabyte. A window has an [`Alias`] of the frames and the
//! page numbers of its extents, which the engine's slow path enters once and which stay as long as
//! the segment is open. With a page's number its word is known, and the word says whether the bytes
//! may be used. This module is the only one of the library that makes references to frames; a
//! [`Frame`] is a use of a page, and ends with it.
#![allow(unsafe_code)]

use crate::engine::Engine;
use crate::library::port::LibraryPort;
use crate::library::process;
use crate::port::PortError;
use crate::table::Table;
use crate::word::{State, Use, WordRef};
use pagekeeper_frames::{EXTENT_PAGES, Place};
use pagekeeper_policy::Page;
use pagekeeper_sys::Errno;
use pagekeeper_sys::alias::{Alias, ForkMark};
use pagekeeper_sys::memfd::Memfd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes seen through one window.
pub(crate) const WINDOW_BYTES: u64 = 1 << 30;
/// Largest page: a window has some extents of them.
pub(crate) const PAGE_BYTES_MAX: u64 = 2 << 20;
/// A page that the machine can map as one.
const HUGE_BYTES: u64 = 2 << 20;
/// Windows in a group, and groups.
const GROUP: usize = 512;
const GROUPS: usize = 256;
/// Longest segment: what fits into an address space.
pub(crate) const SEGMENT_BYTES_MAX: u64 = WINDOW_BYTES * (GROUP * GROUPS) as u64;

type Group = Box<[OnceLock<Window>]>;

struct Window {
    alias: Alias,
    /// Extent number + 1, or 0.
    extents: Box<[AtomicU32]>,
}

/// The frames of a segment.
pub(crate) struct Frames {
    pub(crate) memfd: Memfd,
    table: Table,
    /// Binary logarithm of the bytes in a page.
    page_shift: u32,
    mark: &'static ForkMark,
    groups: Box<[OnceLock<Group>]>,
}

fn empty<T>(count: usize) -> Box<[OnceLock<T>]> {
    (0..count).map(|_| OnceLock::new()).collect()
}

impl Frames {
    pub(crate) fn new(memfd: Memfd, table: Table, page_bytes: u64) -> Result<Frames, Errno> {
        assert!(page_bytes.is_power_of_two() && page_bytes <= PAGE_BYTES_MAX);
        let page_shift = page_bytes.trailing_zeros();
        Ok(Frames { memfd, table, page_shift, mark: &process::here()?.mark, groups: empty(GROUPS) })
    }

    /// Bytes in a page.
    #[inline]
    pub(crate) fn page_bytes(&self) -> u64 {
        1 << self.page_shift
    }

    /// Extents that are seen through one window.
    #[inline]
    fn window_extents(&self) -> usize {
        (WINDOW_BYTES >> self.page_shift) as usize / EXTENT_PAGES as usize
    }

    /// Whether this is the process that the segment was opened in.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.mark.is_here()
    }

    #[inline]
    fn window(&self, offset: u64) -> Option<&Window> {
        let no = (offset / WINDOW_BYTES) as usize;
        self.groups.get(no / GROUP)?.get()?[no % GROUP].get()
    }

    fn open_window(&self, offset: u64) -> Result<&Window, Errno> {
        let no = (offset / WINDOW_BYTES) as usize;
        let group = self.groups.get(no / GROUP).ok_or(Errno::FBIG)?;
        let slot = &group.get_or_init(|| empty(GROUP))[no % GROUP];
        if slot.get().is_none() {
            let start = no as u64 * WINDOW_BYTES;
            let alias = Alias::new(&self.memfd, start, WINDOW_BYTES as usize)?;
            if self.page_bytes() >= HUGE_BYTES {
                // Where the machine allows it: fewer entries of its translation buffers.
                alias.advise_huge();
            }
            let extents = (0..self.window_extents()).map(|_| AtomicU32::new(0)).collect();
            let _ = slot.set(Window { alias, extents });
        }
        slot.get().ok_or(Errno::NOMEM)
    }

    /// Enters a page's number, so that the next use finds it. It stays until the segment closes.
    pub(crate) fn publish(&self, index: u64, page: Page) -> Result<(), Errno> {
        let extent = index / u64::from(EXTENT_PAGES);
        let window = self.open_window(index << self.page_shift)?;
        let value = page.0 / EXTENT_PAGES + 1;
        window.extents[extent as usize % self.window_extents()].store(value, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn find(&self, index: u64) -> Option<(&Window, WordRef<'static>)> {
        let window = self.window(index << self.page_shift)?;
        let extent = (index / u64::from(EXTENT_PAGES)) as usize % self.window_extents();
        let number = window.extents[extent].load(Ordering::Acquire).checked_sub(1)?;
        let page = Page(number * EXTENT_PAGES + (index % u64::from(EXTENT_PAGES)) as u32);
        Some((window, self.table.word(page)))
    }

    /// Whether a page is in memory just now, as far as its number is known here.
    pub(crate) fn is_resident(&self, index: u64) -> bool {
        self.find(index).is_some_and(|(_, word)| word.state() == State::Resident)
    }

    /// Begins a use of a page without a lock, if it is ready for it. In a forked child it never
    /// is.
    #[inline]
    pub(crate) fn try_use<'a>(
        &'a self,
        engine: &'a Engine<LibraryPort>,
        place: Place,
        how: Use,
    ) -> Option<Frame<'a>> {
        let (window, word) = self.find(place.index)?;
        if !self.mark.is_here() || !word.try_use(how) {
            return None;
        }
        Some(Frame { engine, window, word, place, how, page_shift: self.page_shift })
    }

    /// Takes over a use that the slow path began.
    pub(crate) fn begun<'a>(
        &'a self,
        engine: &'a Engine<LibraryPort>,
        place: Place,
        page: Page,
        how: Use,
    ) -> Result<Frame<'a>, PortError> {
        let word = self.table.word(page);
        match self
            .publish(place.index, page)
            .and_then(|()| self.open_window(place.index << self.page_shift))
        {
            Ok(window) => {
                Ok(Frame { engine, window, word, place, how, page_shift: self.page_shift })
            }
            Err(errno) => {
                engine.end_use(place, word, how);
                Err(errno.into())
            }
        }
    }

    /// Runs `f` over the bytes of pages, window by window, as (offset in the segment, bytes).
    ///
    /// # Safety
    /// The caller has claimed the pages: they are Filling.
    pub(crate) unsafe fn with_filling<E: From<Errno>>(
        &self,
        index: u64,
        pages: u64,
        mut f: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for (window, offset, len) in self.pieces(index, pages) {
            let alias = &window?.alias;
            // SAFETY: nobody else uses pages that are Filling; a page that is in no frame yet gets
            // one here, which is what the claim is for.
            let bytes = unsafe { alias.bytes_mut((offset % WINDOW_BYTES) as usize, len) };
            f(offset, bytes)?;
        }
        Ok(())
    }

    /// As [`with_filling`](Self::with_filling), for reading.
    ///
    /// # Safety
    /// The caller has claimed the pages: they are Cleaning or Leaving, and write-protected in all
    /// mappings.
    pub(crate) unsafe fn with_claimed<E: From<Errno>>(
        &self,
        index: u64,
        pages: u64,
        mut f: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for (window, offset, len) in self.pieces(index, pages) {
            let alias = &window?.alias;
            // SAFETY: the pages are in frames, and nobody writes to pages that are claimed.
            f(offset, unsafe { alias.bytes((offset % WINDOW_BYTES) as usize, len) })?;
        }
        Ok(())
    }

    /// Joins uses of neighbouring pages of one window; all alike.
    pub(crate) fn span<'a>(&'a self, frames: Vec<Frame<'a>>) -> Span<'a> {
        for pair in frames.windows(2) {
            assert!(std::ptr::eq(pair[0].window, pair[1].window), "a span crosses windows");
            assert_eq!(pair[0].place.index + 1, pair[1].place.index, "a span has a gap");
            assert_eq!(pair[0].how, pair[1].how, "uses differ");
        }
        Span { frames, mark: self.mark }
    }

    fn pieces(
        &self,
        index: u64,
        pages: u64,
    ) -> impl Iterator<Item = (Result<&Window, Errno>, u64, usize)> {
        let end = (index + pages) << self.page_shift;
        let mut at = index << self.page_shift;
        std::iter::from_fn(move || {
            let start = at;
            at = ((start / WINDOW_BYTES + 1) * WINDOW_BYTES).min(end);
            (start < end).then(|| (self.open_window(start), start, (at - start) as usize))
        })
    }
}

/// A use of one page: its bytes, until it is dropped.
pub(crate) struct Frame<'a> {
    engine: &'a Engine<LibraryPort>,
    window: &'a Window,
    word: WordRef<'static>,
    place: Place,
    how: Use,
    page_shift: u32,
}

impl Frame<'_> {
    fn at(&self) -> usize {
        ((self.place.index << self.page_shift) % WINDOW_BYTES) as usize
    }

    fn len(&self) -> usize {
        1 << self.page_shift
    }

    /// The page's bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the page is in a frame and stays there while it is used; who changes bytes
        // through the library has the page alone. (Mappings of it are reached by raw pointers
        // only, whose users promise not to race with this: see `Region`.)
        unsafe { self.window.alias.bytes(self.at(), self.len()) }
    }

    /// The page's bytes, to be changed.
    ///
    /// # Panics
    /// The use is not exclusive.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.how.writes(), "a page is used for reading and written");
        // SAFETY: as for `bytes`, and this use excludes all others.
        unsafe { self.window.alias.bytes_mut(self.at(), self.len()) }
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Ends an exclusive hold by taking the page out of memory: the page is Leaving then, and the
    /// caller's. Gives the use back if somebody is about to map the page.
    pub(crate) fn take_out(self) -> Result<WordRef<'static>, Self> {
        if self.word.leave_held() {
            let word = self.word;
            std::mem::forget(self);
            Ok(word)
        } else {
            Err(self)
        }
    }
}

impl Drop for Frame<'_> {
    #[inline]
    fn drop(&mut self) {
        self.engine.end_use(self.place, self.word, self.how);
    }
}

/// Frames of neighbouring pages within one window, held, as one slice.
pub(crate) struct Span<'a> {
    frames: Vec<Frame<'a>>,
    mark: &'static ForkMark,
}

impl Drop for Span<'_> {
    fn drop(&mut self) {
        if !self.mark.is_here() {
            // In a forked child: the words are shared with the parent, whose holds these are.
            std::mem::take(&mut self.frames).into_iter().for_each(std::mem::forget);
        }
    }
}

impl Span<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        let Some(first) = self.frames.first() else { return &[] };
        let len = self.frames.len() * first.len();
        // SAFETY: as for `Frame::bytes`, of each page.
        unsafe { first.window.alias.bytes(first.at(), len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let Some(first) = self.frames.first() else { return &mut [] };
        assert!(first.how.writes(), "pages are held for reading and written");
        let len = self.frames.len() * first.len();
        // SAFETY: as for `Frame::bytes_mut`, of each page; self is borrowed exclusively.
        unsafe { first.window.alias.bytes_mut(first.at(), len) }
    }
}
