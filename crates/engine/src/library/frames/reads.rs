//! Reads of pages that are at rest: the way of nearly every read, which takes no lock.

use super::blocks::Blocks;
use super::entries::Entries;
use super::held::Frame;
use super::{Found, Frames, word_of};
use crate::engine::Engine;
use crate::engine::word::{Use, WordRef};
use crate::library::port::LibraryPort;
use pagekeeper_frames::{EXTENT_PAGES, Place, Segment};
use pagekeeper_sys::alias::AliasRange;
use pagekeeper_sys::torn;

/// Most bytes that are copied out of a block without a pin, where they can be: of more, a plain copy
/// and a pin take less time.
const UNPINNED_BYTES_MAX: usize = if torn::IS_FAST { 512 } else { 0 };
/// How pages are looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Place,
    Entry,
    Hash,
}

/// One of these ways, as a type: each has functions of its own, so that none pays for what another
/// keeps in registers.
pub(crate) trait ReadPage {
    /// Copies bytes out of one page that is at rest: the way of nearly every read, which takes no
    /// lock and cannot fail. False: they lie in several pages, or the page has to be had first. The
    /// caller asks for some bytes, and for none behind the segment's end.
    fn read_page(
        frames: &Frames,
        engine: &Engine<LibraryPort>,
        segment: Segment,
        buf: &mut [u8],
        offset: u64,
    ) -> bool;
}

pub(crate) struct ByPlace;
pub(crate) struct ByEntry;
pub(crate) struct ByHash;

impl ReadPage for ByPlace {
    #[inline(always)]
    fn read_page(
        frames: &Frames,
        engine: &Engine<LibraryPort>,
        segment: Segment,
        buf: &mut [u8],
        offset: u64,
    ) -> bool {
        let Some(place) = frames.only_page(segment, offset, buf.len()) else { return false };
        let Found::Place(mapped) = &frames.found else { return false };
        let found = mapped.find_extent(place.index, offset);
        let Some((words, window)) = found else { return false };
        let Some(range) = window.bytes(offset, buf.len()) else {
            return frames.read_longer(engine, segment, buf, offset);
        };
        let word = word_of(words, place.index);
        frames.mark.is_here()
            && word.try_use(Use::Read)
            && Frames::copy_out(engine, place, word, range, buf)
    }
}

impl ReadPage for ByEntry {
    #[inline(always)]
    fn read_page(
        frames: &Frames,
        engine: &Engine<LibraryPort>,
        segment: Segment,
        buf: &mut [u8],
        offset: u64,
    ) -> bool {
        let Found::Entry(entries) = &frames.found else { return false };
        if buf.len() > UNPINNED_BYTES_MAX {
            return frames.read_entry(engine, entries, segment, buf, offset);
        }
        let copied = if frames.mark.is_here() { entries.copy_unpinned(offset, buf) } else { None };
        let Some(index) = copied else { return false };
        engine.touched(Place { segment, index });
        true
    }
}

impl ReadPage for ByHash {
    #[inline(always)]
    fn read_page(
        frames: &Frames,
        engine: &Engine<LibraryPort>,
        segment: Segment,
        buf: &mut [u8],
        offset: u64,
    ) -> bool {
        let Some(place) = frames.only_page(segment, offset, buf.len()) else { return false };
        let Found::Hash(blocks, _) = &frames.found else { return false };
        frames.copy_out_of_block(engine, blocks, place, offset, buf)
    }
}

impl Frames {
    /// How pages are looked for.
    #[inline(always)]
    pub(crate) fn way(&self) -> Way {
        match &self.found {
            Found::Place(_) => Way::Place,
            Found::Entry(_) => Way::Entry,
            Found::Hash(..) => Way::Hash,
        }
    }

    /// The page that some bytes lie in, if it is one.
    #[inline(always)]
    fn only_page(&self, segment: Segment, offset: u64, bytes: usize) -> Option<Place> {
        let place = Place { segment, index: offset >> self.page_shift };
        let last = (offset + bytes as u64).wrapping_sub(1);
        (last >> self.page_shift == place.index).then_some(place)
    }

    /// A read by place of what the window's first alias does not show. Apart, and all of it once more: other
    /// reads keep nothing in hand for it.
    #[cold]
    #[inline(never)]
    fn read_longer(
        &self,
        engine: &Engine<LibraryPort>,
        segment: Segment,
        buf: &mut [u8],
        offset: u64,
    ) -> bool {
        self.read_pages(engine, segment, buf, offset) == buf.len()
    }

    /// A read of more bytes than are copied without a pin.
    #[inline(never)]
    fn read_entry(
        &self,
        engine: &Engine<LibraryPort>,
        entries: &Entries,
        segment: Segment,
        buf: &mut [u8],
        offset: u64,
    ) -> bool {
        self.only_page(segment, offset, buf.len())
            .is_some_and(|place| self.copy_out_of_entry(engine, entries, place, offset, buf))
    }

    #[inline(always)]
    fn copy_out_of_entry(
        &self,
        engine: &Engine<LibraryPort>,
        entries: &Entries,
        place: Place,
        offset: u64,
        buf: &mut [u8],
    ) -> bool {
        let within = (offset & (self.page_bytes() - 1)) as usize;
        let Some(word) = entries.word(place.index) else { return false };
        if !self.mark.is_here() || !word.try_use(Use::Read) {
            return false;
        }
        match entries.bytes(place.index, within, buf.len()) {
            Some(range) => Self::copy_out(engine, place, word, range, buf),
            None => Self::gone(engine, place, word),
        }
    }

    #[inline(always)]
    fn copy_out_of_block(
        &self,
        engine: &Engine<LibraryPort>,
        blocks: &Blocks,
        place: Place,
        offset: u64,
        buf: &mut [u8],
    ) -> bool {
        let within = (offset & (self.page_bytes() - 1)) as usize;
        let Some((word, found)) = blocks.find(place, within, buf.len()) else { return false };
        if !self.mark.is_here() || !word.try_use(Use::Read) {
            return false;
        }
        match found.is_current() {
            true => Self::copy_out(engine, place, word, found.bytes, buf),
            false => Self::gone(engine, place, word),
        }
    }

    /// Copies bytes out of pages in a row, up to one that is not at rest. Returns how many:
    /// [`read_page`](Self::read_page) for longer reads, which looks for each extent once, where there
    /// is such a thing.
    pub(crate) fn read_pages(
        &self,
        engine: &Engine<LibraryPort>,
        segment: Segment,
        buf: &mut [u8],
        offset: u64,
    ) -> usize {
        let first = offset >> self.page_shift;
        match &self.found {
            Found::Place(mapped) => {
                let mut found = mapped.find_extent(first, offset).filter(|_| self.mark.is_here());
                self.page_by_page(segment, buf, offset, |place, at, piece| {
                    if place.index != first && place.index.is_multiple_of(u64::from(EXTENT_PAGES)) {
                        found = mapped.find_extent(place.index, at);
                    }
                    let Some((words, window)) = found else { return false };
                    let word = word_of(words, place.index);
                    let Some(range) = mapped.bytes_in(window, at, piece.len()) else {
                        return false;
                    };
                    word.try_use(Use::Read) && Self::copy_out(engine, place, word, range, piece)
                })
            }
            Found::Entry(entries) => self.page_by_page(segment, buf, offset, |place, at, piece| {
                self.copy_out_of_entry(engine, entries, place, at, piece)
            }),
            Found::Hash(blocks, _) => {
                self.page_by_page(segment, buf, offset, |place, at, piece| {
                    self.copy_out_of_block(engine, blocks, place, at, piece)
                })
            }
        }
    }

    /// Copies page by page, with the offset of each piece, up to the first that `copy` fails for.
    /// Returns how many bytes.
    #[inline(always)]
    fn page_by_page(
        &self,
        segment: Segment,
        buf: &mut [u8],
        offset: u64,
        mut copy: impl FnMut(Place, u64, &mut [u8]) -> bool,
    ) -> usize {
        let page_bytes = self.page_bytes();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let place = Place { segment, index: at >> self.page_shift };
            let len = ((page_bytes - at % page_bytes) as usize).min(buf.len() - done);
            if !copy(place, at, &mut buf[done..done + len]) {
                break;
            }
            done += len;
        }
        done
    }

    /// Copies bytes out of a page that the caller has begun to use.
    #[inline(always)]
    fn copy_out(
        engine: &Engine<LibraryPort>,
        place: Place,
        word: WordRef<'static>,
        range: AliasRange<'_>,
        buf: &mut [u8],
    ) -> bool {
        let frame = Frame { engine, range, word, place, how: Use::Read, closed: None };
        buf.copy_from_slice(frame.bytes());
        frame.end();
        engine.touched(place);
        true
    }

    /// A use of what is not the page that was looked for. False.
    #[cold]
    #[inline(never)]
    fn gone(engine: &Engine<LibraryPort>, place: Place, word: WordRef<'static>) -> bool {
        engine.end_use(place, word, Use::Read);
        false
    }
}
