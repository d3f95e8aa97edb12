//! Translation by mapping: frames in a memfd of the segment's, of which each window shows a gigabyte; the
//! first one less, while the segment is short. Where a page's bytes lie is its offset.

use crate::engine::table::ExtentWords;
use crate::engine::word::WordRef;
use crate::library::frames::windows::{Window, Windows};
use crate::library::frames::{
    COPIED_BYTES_MAX, HUGE_BYTES, PAGE_BYTES_MAX, Slots, WINDOW_BYTES, empty,
};
use crate::library::process;
use pagekeeper_policy::Page;
use pagekeeper_sys::Errno;
use pagekeeper_sys::alias::{Alias, AliasRange};
use pagekeeper_sys::file;
use pagekeeper_sys::memfd::Memfd;
use pagekeeper_sys::userfault::Track;

/// The shortest alias. Not a window's: address space may be limited, and short segments many.
const ALIAS_BYTES_MIN: u64 = 16 << 20;
/// How many times as long as the one before a longer alias is at least. All stay, since anybody may be
/// using pages by any of them; so the last takes most of what they take together.
const ALIAS_GROWTH: u64 = 8;
/// So many longer ones are enough.
const LONGER: usize = 2;
const _: () = assert!(ALIAS_BYTES_MIN >= PAGE_BYTES_MAX);
const _: () = assert!(ALIAS_BYTES_MIN * ALIAS_GROWTH.pow(LONGER as u32) >= WINDOW_BYTES);

/// The frames of a segment.
pub(super) struct Mapped {
    pub(super) memfd: Memfd,
    windows: Windows<Alias>,
    /// Of a segment that grew: the first window again, each time more of it.
    longer: Slots<Alias, LONGER>,
    /// Binary logarithm of the bytes in a page.
    page_shift: u32,
}

impl Window<Alias> {
    /// Where bytes from an offset of the segment on lie, if all of them do in the window's first alias.
    #[inline(always)]
    pub(super) fn bytes(&self, offset: u64, len: usize) -> Option<AliasRange<'_>> {
        self.view.range((offset % WINDOW_BYTES) as usize, len)
    }
}

impl Mapped {
    pub(super) fn new(memfd: Memfd, words: &'static [ExtentWords], page_shift: u32) -> Mapped {
        Mapped { memfd, windows: Windows::new(words), longer: empty(), page_shift }
    }

    /// Where bytes from an offset of the segment on lie, which is in this window, if all of them can be
    /// seen.
    #[inline]
    pub(super) fn bytes_in<'a>(
        &'a self,
        window: &'a Window<Alias>,
        offset: u64,
        len: usize,
    ) -> Option<AliasRange<'a>> {
        window.bytes(offset, len).or_else(|| self.bytes_in_longer(offset, len))
    }

    #[inline(never)]
    fn bytes_in_longer(&self, offset: u64, len: usize) -> Option<AliasRange<'_>> {
        self.longer.iter().find_map(|alias| alias.get()?.range(offset as usize, len))
    }

    /// The window that an offset is in, and where the bytes from there on lie, all of them in it.
    fn open(&self, offset: u64, len: usize) -> Result<(&Window<Alias>, AliasRange<'_>), Errno> {
        let end = offset + len as u64;
        let window = self.windows.open(offset, |start| match start {
            0 => self.alias(0, self.first_bytes(end)?),
            // What lies in front of it takes as much: little would be saved.
            _ => self.alias(start, WINDOW_BYTES),
        })?;
        let mut before = &window.view;
        for longer in self.longer.iter() {
            if let Some(range) = self.bytes_in(window, offset, len) {
                return Ok((window, range));
            }
            if longer.get().is_none() {
                let least = before.len_bytes() as u64 * ALIAS_GROWTH;
                let alias = self.alias(0, self.first_bytes(end)?.max(least).min(WINDOW_BYTES))?;
                // Of two made at once the first stays; if it is too short, the next one is not.
                let _ = longer.set(alias);
            }
            before = longer.get().ok_or(Errno::NOMEM)?;
        }
        Ok((window, self.bytes_in(window, offset, len).ok_or(Errno::FAULT)?))
    }

    /// How much of the first window is to be seen, at least up to `end`.
    fn first_bytes(&self, end: u64) -> Result<u64, Errno> {
        let bytes = file::stat(&self.memfd)?.version.size_bytes.max(end);
        Ok(bytes.clamp(ALIAS_BYTES_MIN, WINDOW_BYTES).next_power_of_two())
    }

    fn alias(&self, start: u64, bytes: u64) -> Result<Alias, Errno> {
        let alias = Alias::new(&self.memfd, start, bytes as usize)?;
        if 1u64 << self.page_shift >= HUGE_BYTES {
            // Where the machine allows it: fewer entries of its translation buffers.
            alias.advise_huge();
        } else if 1 << self.page_shift <= COPIED_BYTES_MAX
            && let Some(userfault) = &process::here()?.one_by_one
        {
            // Best effort: else neighbours are mapped along, and have to be unmapped.
            let _ = userfault.register(alias.address(), bytes, Track::WRITE_PROTECT);
        }
        Ok(alias)
    }

    /// The words of a page's extent, and the window that shows the page.
    #[inline(always)]
    pub(super) fn find_extent(
        &self,
        index: u64,
        offset: u64,
    ) -> Option<(&'static ExtentWords, &Window<Alias>)> {
        self.windows.find_extent(index, offset)
    }

    /// A page's word, and where its bytes lie.
    #[inline]
    pub(super) fn find(&self, index: u64) -> Option<(WordRef<'static>, AliasRange<'_>)> {
        let offset = index << self.page_shift;
        let (word, window) = self.windows.find(index, offset)?;
        let bytes = self.bytes_in(window, offset, 1 << self.page_shift)?;
        Some((word, bytes))
    }

    /// Enters the number of a page's extent, so that the next use finds it; where the page's bytes
    /// lie.
    pub(super) fn enter(&self, index: u64, page: Page) -> Result<AliasRange<'_>, Errno> {
        let (window, bytes) = self.open(index << self.page_shift, 1 << self.page_shift)?;
        window.enter(index, page);
        Ok(bytes)
    }

    /// Where bytes within a page lie.
    pub(super) fn bytes(&self, offset: u64, len: usize) -> Result<AliasRange<'_>, Errno> {
        Ok(self.open(offset, len)?.1)
    }

    /// Where the bytes from an offset up to `end` lie, as far as one window goes.
    pub(super) fn piece(&self, start: u64, end: u64) -> (u64, Result<AliasRange<'_>, Errno>) {
        let piece_end = ((start / WINDOW_BYTES + 1) * WINDOW_BYTES).min(end);
        (piece_end, self.bytes(start, (piece_end - start) as usize))
    }
}
