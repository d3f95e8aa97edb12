//! A segment's frames as this process sees them, and the way to a page without a lock.
//!
//! How a page is found is the cache's [`Translation`]: by its place in a mapping (`mapped.rs`), or in
//! a block of the cache's (`pool.rs`), by a table (`entries.rs`) or a hash table (`blocks.rs`). In any
//! case its word says whether the bytes may be used. This module is the only one of the library that
//! makes references to frames; a [`Frame`] is a use of a page, and ends with it (`held.rs`). Reads of
//! what is at rest come here alone (`reads.rs`).
#![allow(unsafe_code)]

mod blocks;
mod entries;
mod held;
mod mapped;
mod pool;
mod reads;
mod windows;

use crate::engine::Engine;
use crate::engine::table::{ExtentWords, Table};
use crate::engine::word::{State, Use, Word, WordRef};
use crate::library::port::LibraryPort;
use crate::library::process;
use crate::library::translation::Translation;
use crate::port::PortError;
use blocks::Blocks;
use entries::{Entries, Entry};
pub(crate) use held::{Frame, Span};
use mapped::Mapped;
use pagekeeper_frames::{EXTENT_PAGES, Place, Segment};
use pagekeeper_policy::Page;
use pagekeeper_sys::Errno;
use pagekeeper_sys::alias::{AliasRange, ForkMark};
use pagekeeper_sys::limits;
use pagekeeper_sys::memfd::Memfd;
use pool::{KEPT_BYTES, Pool};
pub(crate) use reads::{ByEntry, ByHash, ByPlace, ReadPage, Way};
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
pub use windows::SEGMENT_BYTES_MAX;

/// Bytes seen through one window.
pub(crate) const WINDOW_BYTES: u64 = 1 << 30;
/// Most bytes in a page: a window has some extents of such.
pub const PAGE_BYTES_MAX: u64 = 2 << 20;
/// A page that the machine can map as one.
const HUGE_BYTES: u64 = 2 << 20;
/// Most bytes of a read that is not made in place.
pub(crate) const COPIED_BYTES_MAX: u64 = 16 << 10;
/// Most blocks that one read is scattered over.
const SCATTERED_MAX: usize = 256;

/// Slots that are filled once. Their number is in the type: an index below it needs no check.
type Slots<T, const N: usize> = Box<[OnceLock<T>; N]>;

/// What the frames of a cache's pages are made of.
pub(crate) enum Memory {
    /// A memfd for each segment.
    Mapped,
    /// Blocks of the cache's, which each segment has a table of.
    Table(Arc<Pool>),
    /// Blocks of the cache's, in one hash table.
    Hash(Arc<Blocks>),
}

impl Memory {
    /// Memory of a cache with so many frames, for pages that have words in `table`.
    ///
    /// # Errors
    /// [`Errno::NOMEM`]: no address space is left.
    pub(crate) fn new(
        translation: Translation,
        frames: u32,
        page_bytes: u64,
        table: Table,
    ) -> Result<Memory, Errno> {
        let page_shift = page_bytes.trailing_zeros();
        Ok(match translation {
            Translation::Mapped => Memory::Mapped,
            Translation::Table => Memory::Table(Arc::new(Pool::new(page_shift, frames as usize)?)),
            Translation::Hash(buckets) => {
                let (words, chains) = (table.words_of_extents(), buckets.chains(frames));
                Memory::Hash(Arc::new(Blocks::new(words, page_shift, chains)?))
            }
        })
    }

    /// Frames for a segment of so many bytes.
    ///
    /// # Errors
    /// As `memfd_create(2)`.
    pub(crate) fn frames_for(
        &self,
        segment: Segment,
        name: &str,
        len_bytes: u64,
        page_bytes: u64,
        table: Table,
    ) -> Result<Frames, Errno> {
        assert!(page_bytes.is_power_of_two() && page_bytes <= PAGE_BYTES_MAX);
        let (page_shift, words) = (page_bytes.trailing_zeros(), table.words_of_extents());
        let found = match self {
            Memory::Mapped => {
                let len = len_bytes.next_multiple_of(page_bytes);
                let memfd = Memfd::create(&format!("pagekeeper:{name}"), len, false)?;
                Found::Place(Mapped::new(memfd, words, page_shift))
            }
            Memory::Table(pool) => Found::Entry(Entries::new(pool.clone(), words, page_shift)),
            Memory::Hash(blocks) => Found::Hash(blocks.clone(), segment),
        };
        Ok(Frames { found, page_shift, mark: process::here()?.mark })
    }

    /// The budget, which has room for so many pages, is another than it was, and pages have left for that.
    pub(crate) fn limit(&self, pages: usize) {
        match self {
            Memory::Mapped => {}
            Memory::Table(pool) => pool.limit(pages),
            Memory::Hash(blocks) => blocks.pool().limit(pages),
        }
    }
}

/// Where pages are looked for.
enum Found {
    Place(Mapped),
    Entry(Entries),
    Hash(Arc<Blocks>, Segment),
}

/// The frames of a segment.
pub(crate) struct Frames {
    found: Found,
    /// Binary logarithm of the bytes in a page.
    page_shift: u32,
    mark: ForkMark,
}

fn word_of(words: &'static ExtentWords, index: u64) -> WordRef<'static> {
    Word::from_atomic(&words[(index % u64::from(EXTENT_PAGES)) as usize])
}

fn empty<T, const N: usize>() -> Slots<T, N> {
    let slots: Box<[OnceLock<T>]> = (0..N).map(|_| OnceLock::new()).collect();
    slots.try_into().ok().expect("there are N")
}

impl Frames {
    /// What the frames are in, unless each page has a block of its own.
    pub(crate) fn memfd(&self) -> Option<&Memfd> {
        match &self.found {
            Found::Place(mapped) => Some(&mapped.memfd),
            Found::Entry(_) | Found::Hash(..) => None,
        }
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

    /// Whether a page is in memory just now, as far as that is known here.
    pub(crate) fn is_resident(&self, index: u64) -> bool {
        let word = match &self.found {
            Found::Place(mapped) => mapped.find(index).map(|(word, _)| word),
            Found::Entry(entries) => entries.word(index),
            Found::Hash(blocks, segment) => {
                blocks.find(Place { segment: *segment, index }, 0, 1).map(|(word, _)| word)
            }
        };
        word.is_some_and(|word| word.state() == State::Resident)
    }

    /// Begins a use of a page without the engine's lock, if it is ready for it. In a forked child it
    /// never is.
    #[inline]
    pub(crate) fn try_use<'a>(
        &'a self,
        engine: &'a Engine<LibraryPort>,
        place: Place,
        how: Use,
    ) -> Option<Frame<'a>> {
        if !self.mark.is_here() {
            return None;
        }
        let begin = |word: WordRef<'static>| word.try_use(how).then_some(word);
        let (word, range) = match &self.found {
            Found::Place(mapped) => {
                let (word, range) = mapped.find(place.index)?;
                (begin(word)?, range)
            }
            Found::Entry(entries) => {
                let word = begin(entries.word(place.index)?)?;
                let Some(range) = entries.bytes(place.index, 0, 1 << self.page_shift) else {
                    engine.end_use(place, word, how);
                    return None;
                };
                (word, range)
            }
            Found::Hash(blocks, _) => blocks.find_surely(place, begin)?,
        };
        Some(Frame { engine, range, word, place, how, closed: self.close(place, how) })
    }

    /// What has to be opened again when a use of a page ends that has just begun.
    #[inline]
    fn close(&self, place: Place, how: Use) -> Option<&Entry> {
        match &self.found {
            Found::Entry(entries) if how.writes() => entries.close(place.index),
            _ => None,
        }
    }

    /// A claimed page is about to be at rest, with this number; `is_open` unless its next use is to be
    /// told.
    pub(crate) fn arrived(&self, place: Place, page: Page, is_open: bool) {
        match &self.found {
            Found::Entry(entries) if is_open => entries.open(place.index),
            Found::Hash(blocks, _) => blocks.number(place, page),
            _ => {}
        }
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
        let range = match &self.found {
            Found::Place(mapped) => mapped.enter(place.index, page),
            Found::Entry(entries) => entries.enter(place.index, page),
            Found::Hash(blocks, _) => blocks.bytes_of(place),
        };
        match range {
            Ok(range) => {
                if let (Found::Entry(entries), false) = (&self.found, how.writes()) {
                    // Nobody waits to hear of its next use any more.
                    entries.open(place.index);
                }
                Ok(Frame { engine, range, word, place, how, closed: self.close(place, how) })
            }
            Err(errno) => {
                engine.end_use(place, word, how);
                Err(errno.into())
            }
        }
    }

    /// What so few bytes are copied into and out of by the kernel when they come, if they are: a page
    /// that is touched in a mapping has to be unmapped when it leaves, which interrupts every
    /// processor that runs the program. So the first hit maps it, and nothing before.
    pub(crate) fn copied(&self, bytes: u64) -> Option<&Memfd> {
        self.memfd().filter(|_| bytes <= COPIED_BYTES_MAX)
    }

    /// Puts the bytes of whole pages in.
    ///
    /// # Safety
    /// The caller has claimed the pages: they are Filling.
    pub(crate) unsafe fn put(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        // The memfd is longer than the program may make files: the kernel would write nothing.
        if let Some(memfd) = self.memfd()
            && limits::allows_file_bytes(offset + data.len() as u64)
        {
            return memfd.write_at(data, offset);
        }
        let (index, pages) = (offset >> self.page_shift, data.len() as u64 >> self.page_shift);
        // SAFETY: passed on to the caller by this function's own contract.
        unsafe {
            self.with_filling(index, pages, |at, block| {
                let from = (at - offset) as usize;
                block.copy_from_slice(&data[from..from + block.len()]);
                Ok(())
            })
        }
    }

    /// Copies bytes out of a page that was not ready when somebody came to read it.
    pub(crate) fn copy_newcomer(&self, frame: &Frame<'_>, within: usize, buf: &mut [u8]) {
        let offset = (frame.place.index << self.page_shift) + within as u64;
        let memfd = self.copied(self.page_bytes());
        if memfd.is_none_or(|memfd| memfd.read_at(buf, offset).is_err()) {
            buf.copy_from_slice(frame.part(within..within + buf.len()));
        }
    }

    /// Runs `f` over the bytes of pages, piece by piece, as (offset in the segment, bytes).
    ///
    /// # Safety
    /// The caller has claimed the pages: they are Filling.
    pub(crate) unsafe fn with_filling<E: From<Errno>>(
        &self,
        index: u64,
        pages: u64,
        mut f: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.give_room(index, pages)?;
        for (offset, range) in self.pieces(index, pages) {
            // SAFETY: nobody else uses pages that are Filling; a page that is in no frame yet gets
            // one here, which is what the claim is for.
            f(offset, unsafe { range?.bytes_mut() })?;
        }
        Ok(())
    }

    /// The same with many pieces at once.
    ///
    /// # Safety
    /// As for [`with_filling`](Self::with_filling).
    pub(crate) unsafe fn with_filling_scattered<E: From<Errno>>(
        &self,
        index: u64,
        pages: u64,
        mut f: impl FnMut(u64, &mut [IoSliceMut<'_>]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.give_room(index, pages)?;
        let mut pieces = self.pieces(index, pages);
        loop {
            let mut slices = Vec::with_capacity(SCATTERED_MAX.min(pages as usize));
            let mut start = 0;
            for (offset, range) in pieces.by_ref().take(SCATTERED_MAX) {
                if slices.is_empty() {
                    start = offset;
                }
                // SAFETY: as in `with_filling`; and no two pieces have a page in common.
                slices.push(IoSliceMut::new(unsafe { range?.bytes_mut() }));
            }
            if slices.is_empty() {
                return Ok(());
            }
            f(start, &mut slices)?;
        }
    }

    /// Pages, which the caller has claimed, are about to be filled.
    ///
    /// # Errors
    /// [`Errno::NOMEM`].
    pub(crate) fn give_room(&self, index: u64, pages: u64) -> Result<(), Errno> {
        match &self.found {
            // Frames come with the first touch.
            Found::Place(_) => Ok(()),
            Found::Entry(entries) => entries.give(index, pages),
            Found::Hash(blocks, segment) => blocks.give(Place { segment: *segment, index }, pages),
        }
    }

    /// Takes claimed pages out of memory.
    pub(crate) fn discard(&self, index: u64, pages: u64) -> Result<(), Errno> {
        match &self.found {
            Found::Place(mapped) => {
                mapped.memfd.punch(index << self.page_shift, pages << self.page_shift)
            }
            Found::Entry(entries) => {
                entries.take_back(index, pages);
                Ok(())
            }
            Found::Hash(blocks, segment) => {
                blocks.take_back(Place { segment: *segment, index }, pages);
                Ok(())
            }
        }
    }

    /// Overwrites bytes within one page that is in memory and stays there meanwhile. Nobody holds
    /// these bytes: who holds the page holds what lies before the segment's end, and they are behind
    /// it.
    pub(crate) fn patch(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let (index, within) =
            (offset >> self.page_shift, (offset & (self.page_bytes() - 1)) as usize);
        let range = match &self.found {
            // By the kernel, so that the page is not mapped for it.
            Found::Place(mapped) if limits::allows_file_bytes(offset + data.len() as u64) => {
                return mapped.memfd.write_at(data, offset);
            }
            Found::Place(mapped) => Some(mapped.bytes(offset, data.len())?),
            Found::Entry(entries) => entries.bytes(index, within, data.len()),
            Found::Hash(blocks, segment) => {
                blocks.bytes_within(Place { segment: *segment, index }, within, data.len())
            }
        };
        if let Some(range) = range {
            // SAFETY: the page stays, and nobody else writes to it by a use: it is pinned. References
            // that are lent out are to other bytes of it; others copy bytes out at the most.
            unsafe { range.overwrite(data) };
        }
        Ok(())
    }

    /// Where the bytes of claimed pages lie, piece by piece, for as long as these frames live.
    pub(crate) fn places_of(
        &self,
        index: u64,
        pages: u64,
    ) -> impl Iterator<Item = Result<AliasRange<'_>, Errno>> {
        self.pieces(index, pages).map(|(_, range)| range)
    }

    /// As [`with_filling`](Self::with_filling), for reading.
    ///
    /// # Safety
    /// The caller has claimed the pages: they are Cleaning or Leaving, and write-protected in all
    /// mappings. Or it has pinned them.
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

    /// Joins uses of neighbouring pages that lie in one piece, all alike, for some of their bytes.
    pub(crate) fn span<'a>(&'a self, frames: Vec<Frame<'a>>, within: Range<usize>) -> Span<'a> {
        for pair in frames.windows(2) {
            assert_eq!(pair[0].place.index + 1, pair[1].place.index, "a span has a gap");
            assert_eq!(pair[0].how, pair[1].how, "uses differ");
        }
        let first = frames.first().expect("a span has a page").place.index;
        let mut pieces = self.pieces(first, frames.len() as u64);
        let (_, range) = pieces.next().expect("a span has a page");
        assert!(pieces.next().is_none(), "a span is in one piece");
        let range = range.expect("its pages are in memory");
        let range = range.part(within).expect("its bytes are in its pages");
        Span { frames, range, mark: self.mark }
    }

    /// Offsets in the segment, and where the bytes lie: window by window, or as blocks lie.
    fn pieces<'a>(
        &'a self,
        index: u64,
        pages: u64,
    ) -> impl Iterator<Item = (u64, Result<AliasRange<'a>, Errno>)> {
        let end = (index + pages) << self.page_shift;
        let mut at = index << self.page_shift;
        std::iter::from_fn(move || {
            let start = at;
            if start >= end {
                return None;
            }
            let (next, range) = match &self.found {
                Found::Place(mapped) => mapped.piece(start, end),
                Found::Entry(entries) => entries.piece(start, end),
                Found::Hash(blocks, segment) => {
                    let index = start >> self.page_shift;
                    let range = blocks.bytes_of(Place { segment: *segment, index });
                    (start + self.page_bytes(), range)
                }
            };
            at = next;
            Some((start, range))
        })
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        match &self.found {
            Found::Place(_) => {}
            Found::Entry(entries) => entries.pool().trim(KEPT_BYTES),
            Found::Hash(blocks, _) => blocks.pool().trim(KEPT_BYTES),
        }
    }
}
