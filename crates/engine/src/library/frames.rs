//! A segment's frames as this process sees them, and the way to a page without a lock.
//!
//! A segment is seen through windows of a gigabyte. A window has an [`Alias`] of the frames and the
//! numbers of its extents, which the engine's slow path enters once and which stay as long as the
//! segment is open. With its extent's number a page's word is known, and the word says whether the
//! bytes may be used. This module is the only one of the library that makes references to frames; a
//! [`Frame`] is a use of a page, and ends with it.
#![allow(unsafe_code)]

use crate::engine::Engine;
use crate::library::port::LibraryPort;
use crate::library::process;
use crate::port::{PAGE_BYTES, PortError};
use crate::table::{ExtentWords, Table};
use crate::word::{State, Use, Word, WordRef};
use pagekeeper_frames::{EXTENT_PAGES, Place, Segment};
use pagekeeper_policy::Page;
use pagekeeper_sys::Errno;
use pagekeeper_sys::alias::{Alias, AliasRange, ForkMark};
use pagekeeper_sys::memfd::Memfd;
use std::mem::ManuallyDrop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes seen through one window.
pub(crate) const WINDOW_BYTES: u64 = 1 << 30;
/// Largest page: a window has some extents of them.
pub(crate) const PAGE_BYTES_MAX: u64 = 2 << 20;
/// A page that the machine can map as one.
const HUGE_BYTES: u64 = 2 << 20;
/// Extents in a window, of the smallest pages.
const EXTENTS_MAX: usize = (WINDOW_BYTES / PAGE_BYTES) as usize / EXTENT_PAGES as usize;
/// Windows in a group, and groups.
const GROUP: usize = 512;
const GROUPS: usize = 256;
/// More than there are numbers.
const NO_EXTENT: u32 = u32::MAX;
/// Longest segment: what fits into an address space.
pub(crate) const SEGMENT_BYTES_MAX: u64 = WINDOW_BYTES * (GROUP * GROUPS) as u64;

/// Slots that are filled once. Their number is in the type: an index below it needs no check.
type Slots<T, const N: usize> = Box<[OnceLock<T>; N]>;
type Group = Slots<Window, GROUP>;

struct Window {
    alias: Alias,
    /// Numbers of extents, or [`NO_EXTENT`].
    extents: Box<[AtomicU32; EXTENTS_MAX]>,
}

impl Window {
    /// The number of the extent that a page of this window is in.
    #[inline]
    fn extent(&self, index: u64) -> &AtomicU32 {
        &self.extents[(index / u64::from(EXTENT_PAGES)) as usize % EXTENTS_MAX]
    }

    /// Where bytes from an offset of the segment on lie, if all of them do in this window.
    #[inline]
    fn bytes(&self, offset: u64, len: usize) -> Option<AliasRange<'_>> {
        self.alias.range((offset % WINDOW_BYTES) as usize, len)
    }
}

/// The frames of a segment.
pub(crate) struct Frames {
    pub(crate) memfd: Memfd,
    words: &'static [ExtentWords],
    /// Binary logarithm of the bytes in a page.
    page_shift: u32,
    mark: ForkMark,
    /// The first group, which nearly every segment ends in.
    near: Group,
    /// The others.
    far: Slots<Group, GROUPS>,
}

fn word_of(words: &'static ExtentWords, index: u64) -> WordRef<'static> {
    Word::from_atomic(&words[(index % u64::from(EXTENT_PAGES)) as usize])
}

fn empty<T, const N: usize>() -> Slots<T, N> {
    let slots: Box<[OnceLock<T>]> = (0..N).map(|_| OnceLock::new()).collect();
    slots.try_into().ok().expect("there are N")
}

impl Frames {
    pub(crate) fn new(memfd: Memfd, table: Table, page_bytes: u64) -> Result<Frames, Errno> {
        assert!(page_bytes.is_power_of_two() && page_bytes <= PAGE_BYTES_MAX);
        let page_shift = page_bytes.trailing_zeros();
        let words = table.words_of_extents();
        let mark = process::here()?.mark;
        Ok(Frames { memfd, words, page_shift, mark, near: empty(), far: empty() })
    }

    /// Bytes in a page.
    #[inline]
    pub(crate) fn page_bytes(&self) -> u64 {
        1 << self.page_shift
    }

    /// Whether this is the process that the segment was opened in.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.mark.is_here()
    }

    #[inline]
    fn window(&self, offset: u64) -> Option<&Window> {
        match self.near.get((offset / WINDOW_BYTES) as usize) {
            Some(slot) => slot.get(),
            None => self.far_window(offset),
        }
    }

    #[cold]
    #[inline(never)]
    fn far_window(&self, offset: u64) -> Option<&Window> {
        let no = (offset / WINDOW_BYTES) as usize;
        self.far.get(no / GROUP)?.get()?[no % GROUP].get()
    }

    fn open_window(&self, offset: u64) -> Result<&Window, Errno> {
        let no = (offset / WINDOW_BYTES) as usize;
        let group = match no / GROUP {
            0 => &self.near,
            far => self.far.get(far).ok_or(Errno::FBIG)?.get_or_init(empty),
        };
        let slot = &group[no % GROUP];
        if slot.get().is_none() {
            let start = no as u64 * WINDOW_BYTES;
            let alias = Alias::new(&self.memfd, start, WINDOW_BYTES as usize)?;
            if self.page_bytes() >= HUGE_BYTES {
                // Where the machine allows it: fewer entries of its translation buffers.
                alias.advise_huge();
            }
            let extents = Box::new([const { AtomicU32::new(NO_EXTENT) }; EXTENTS_MAX]);
            let _ = slot.set(Window { alias, extents });
        }
        slot.get().ok_or(Errno::NOMEM)
    }

    /// The words of a page's extent, and the window that shows the page.
    #[inline(always)]
    fn find_extent(&self, index: u64, offset: u64) -> Option<(&'static ExtentWords, &Window)> {
        let window = self.window(offset)?;
        let words = self.words.get(window.extent(index).load(Ordering::Acquire) as usize)?;
        Some((words, window))
    }

    /// A page's word, and where its bytes lie.
    fn find(&self, index: u64) -> Option<(WordRef<'static>, AliasRange<'_>)> {
        let offset = index << self.page_shift;
        let (words, window) = self.find_extent(index, offset)?;
        let bytes = window.bytes(offset, 1 << self.page_shift)?;
        Some((word_of(words, index), bytes))
    }

    /// Whether a page is in memory just now, as far as its number is known here.
    pub(crate) fn is_resident(&self, index: u64) -> bool {
        self.find(index).is_some_and(|(word, _)| word.state() == State::Resident)
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
        let (word, range) = self.find(place.index)?;
        if !self.mark.is_here() || !word.try_use(how) {
            return None;
        }
        Some(Frame { engine, range, word, place, how })
    }

    /// Copies bytes out of one page that is at rest: the way of nearly every read, which takes no
    /// lock and cannot fail. False: they lie in several pages, or the page has to be had first. The
    /// caller asks for some bytes, and for none behind the segment's end.
    #[inline(always)]
    pub(crate) fn read_page(
        &self,
        engine: &Engine<LibraryPort>,
        segment: Segment,
        buf: &mut [u8],
        offset: u64,
    ) -> bool {
        let place = Place { segment, index: offset >> self.page_shift };
        let last = (offset + buf.len() as u64).wrapping_sub(1);
        if last >> self.page_shift != place.index {
            return false;
        }
        let found = self.find_extent(place.index, offset);
        let Some((words, window)) = found else { return false };
        let Some(range) = window.bytes(offset, buf.len()) else { return false };
        self.mark.is_here() && self.copy_out(engine, place, word_of(words, place.index), range, buf)
    }

    /// Copies bytes out of pages of one extent, up to one that is not at rest. Returns how many:
    /// [`read_page`](Self::read_page) for longer reads, which looks for the extent once.
    pub(crate) fn read_pages(
        &self,
        engine: &Engine<LibraryPort>,
        segment: Segment,
        buf: &mut [u8],
        offset: u64,
    ) -> usize {
        let page_bytes = self.page_bytes();
        let first = offset >> self.page_shift;
        let found = self.find_extent(first, offset).filter(|_| self.mark.is_here());
        let Some((words, window)) = found else { return 0 };
        let pages = u64::from(EXTENT_PAGES) - first % u64::from(EXTENT_PAGES);
        let mut done = 0;
        for index in first..first + pages {
            let at = offset + done as u64;
            let len = ((page_bytes - at % page_bytes) as usize).min(buf.len() - done);
            let Some(range) = window.bytes(at, len).filter(|_| len > 0) else { break };
            let (place, word) = (Place { segment, index }, word_of(words, index));
            if !self.copy_out(engine, place, word, range, &mut buf[done..done + len]) {
                break;
            }
            done += len;
        }
        done
    }

    /// Copies bytes out of a page, where `range` says, if it is at rest.
    #[inline(always)]
    fn copy_out(
        &self,
        engine: &Engine<LibraryPort>,
        place: Place,
        word: WordRef<'static>,
        range: AliasRange<'_>,
        buf: &mut [u8],
    ) -> bool {
        if !word.try_use(Use::Read) {
            return false;
        }
        let frame = Frame { engine, range, word, place, how: Use::Read };
        buf.copy_from_slice(frame.bytes());
        frame.end();
        engine.touched(place);
        true
    }

    /// Takes over a use that the slow path began.
    pub(crate) fn begun<'a>(
        &'a self,
        engine: &'a Engine<LibraryPort>,
        place: Place,
        page: Page,
        how: Use,
    ) -> Result<Frame<'a>, PortError> {
        let word = engine.table.word(page);
        let offset = place.index << self.page_shift;
        let range = self.open_window(offset).and_then(|window| {
            // The next use finds it. It stays until the segment closes.
            window.extent(place.index).store(page.0 / EXTENT_PAGES, Ordering::Release);
            window.bytes(offset, 1 << self.page_shift).ok_or(Errno::FAULT)
        });
        match range {
            Ok(range) => Ok(Frame { engine, range, word, place, how }),
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
        for (offset, range) in self.pieces(index, pages) {
            // SAFETY: nobody else uses pages that are Filling; a page that is in no frame yet gets
            // one here, which is what the claim is for.
            f(offset, unsafe { range?.bytes_mut() })?;
        }
        Ok(())
    }

    /// Where the bytes of pages lie, if all do in one window. They lie there as long as these frames
    /// live.
    pub(crate) fn address_of(&self, index: u64, pages: u64) -> Option<AliasRange<'_>> {
        let mut pieces = self.pieces(index, pages);
        let (_, range) = pieces.next()?;
        if pieces.next().is_some() { None } else { range.ok() }
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
        for (offset, range) in self.pieces(index, pages) {
            // SAFETY: the pages are in frames, and nobody writes to pages that are claimed.
            f(offset, unsafe { range?.bytes() })?;
        }
        Ok(())
    }

    /// Joins uses of neighbouring pages of one window; all alike.
    pub(crate) fn span<'a>(&'a self, frames: Vec<Frame<'a>>) -> Span<'a> {
        for pair in frames.windows(2) {
            assert_eq!(pair[0].place.index + 1, pair[1].place.index, "a span has a gap");
            assert_eq!(pair[0].how, pair[1].how, "uses differ");
        }
        let first = frames.first().expect("a span has a page").place.index;
        let mut pieces = self.pieces(first, frames.len() as u64);
        let (_, range) = pieces.next().expect("a span has a page");
        assert!(pieces.next().is_none(), "a span crosses windows");
        let range = range.expect("its window is open");
        Span { frames, range, mark: self.mark }
    }

    /// Offsets in the segment, and where the bytes lie, window by window.
    fn pieces<'a>(
        &'a self,
        index: u64,
        pages: u64,
    ) -> impl Iterator<Item = (u64, Result<AliasRange<'a>, Errno>)> {
        let end = (index + pages) << self.page_shift;
        let mut at = index << self.page_shift;
        std::iter::from_fn(move || {
            let start = at;
            at = ((start / WINDOW_BYTES + 1) * WINDOW_BYTES).min(end);
            (start < end).then(|| {
                let bytes = |w: &'a Window| w.bytes(start, (at - start) as usize);
                let window = self.open_window(start);
                (start, window.and_then(|window| bytes(window).ok_or(Errno::FAULT)))
            })
        })
    }
}

/// A use of one page: its bytes, or some of them, until it is dropped.
pub(crate) struct Frame<'a> {
    engine: &'a Engine<LibraryPort>,
    range: AliasRange<'a>,
    word: WordRef<'static>,
    place: Place,
    how: Use,
}

impl Frame<'_> {
    /// The bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the page is in a frame and stays there while it is used; who changes bytes
        // through the library has the page alone. (Mappings of it are reached by raw pointers
        // only, whose users promise not to race with this: see `Region`.)
        unsafe { self.range.bytes() }
    }

    /// The bytes, to be changed.
    ///
    /// # Panics
    /// The use is not exclusive.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.how.writes(), "a page is used for reading and written");
        // SAFETY: as for `bytes`, and this use excludes all others.
        unsafe { self.range.bytes_mut() }
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Ends the use, as dropping it does; but in line, so that on the way of a read it is never in
    /// memory.
    #[inline(always)]
    fn end(self) {
        let ended = ManuallyDrop::new(self);
        ended.engine.end_use(ended.place, ended.word, ended.how);
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
    range: AliasRange<'a>,
    mark: ForkMark,
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
        // SAFETY: as for `Frame::bytes`, of each page.
        unsafe { self.range.bytes() }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let writes = self.frames.first().is_some_and(|first| first.how.writes());
        assert!(writes, "pages are held for reading and written");
        // SAFETY: as for `Frame::bytes_mut`, of each page; self is borrowed exclusively.
        unsafe { self.range.bytes_mut() }
    }
}
