//! Translation by mapping: frames in a memfd of the segment's, of which each window shows a gigabyte.
//! Where a page's bytes lie is its offset.

use crate::engine::table::ExtentWords;
use crate::engine::word::WordRef;
use crate::library::frames::windows::{Window, Windows};
use crate::library::frames::{COPIED_BYTES_MAX, HUGE_BYTES, WINDOW_BYTES};
use crate::library::process;
use pagekeeper_policy::Page;
use pagekeeper_sys::Errno;
use pagekeeper_sys::alias::{Alias, AliasRange};
use pagekeeper_sys::memfd::Memfd;
use pagekeeper_sys::userfault::Track;

/// The frames of a segment.
pub(super) struct Mapped {
    pub(super) memfd: Memfd,
    windows: Windows<Alias>,
    /// Binary logarithm of the bytes in a page.
    page_shift: u32,
}

impl Window<Alias> {
    /// Where bytes from an offset of the segment on lie, if all of them do in this window.
    #[inline]
    pub(super) fn bytes(&self, offset: u64, len: usize) -> Option<AliasRange<'_>> {
        self.view.range((offset % WINDOW_BYTES) as usize, len)
    }
}

impl Mapped {
    pub(super) fn new(memfd: Memfd, words: &'static [ExtentWords], page_shift: u32) -> Mapped {
        Mapped { memfd, windows: Windows::new(words), page_shift }
    }

    fn open_window(&self, offset: u64) -> Result<&Window<Alias>, Errno> {
        self.windows.open(offset, |start| {
            let alias = Alias::new(&self.memfd, start, WINDOW_BYTES as usize)?;
            if 1u64 << self.page_shift >= HUGE_BYTES {
                // Where the machine allows it: fewer entries of its translation buffers.
                alias.advise_huge();
            } else if 1 << self.page_shift <= COPIED_BYTES_MAX
                && let Some(userfault) = &process::here()?.one_by_one
            {
                // Best effort: else neighbours are mapped along, and have to be unmapped.
                let track = Track::WRITE_PROTECT;
                let _ = userfault.register(alias.address(), WINDOW_BYTES, track);
            }
            Ok(alias)
        })
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
        let bytes = window.bytes(offset, 1 << self.page_shift)?;
        Some((word, bytes))
    }

    /// Enters the number of a page's extent, so that the next use finds it; where the page's bytes
    /// lie.
    pub(super) fn enter(&self, index: u64, page: Page) -> Result<AliasRange<'_>, Errno> {
        let offset = index << self.page_shift;
        let window = self.open_window(offset)?;
        window.enter(index, page);
        window.bytes(offset, 1 << self.page_shift).ok_or(Errno::FAULT)
    }

    /// Where bytes within a page lie.
    pub(super) fn bytes(&self, offset: u64, len: usize) -> Result<AliasRange<'_>, Errno> {
        self.open_window(offset)?.bytes(offset, len).ok_or(Errno::FAULT)
    }

    /// Where the bytes from an offset up to `end` lie, as far as one window goes.
    pub(super) fn piece(&self, start: u64, end: u64) -> (u64, Result<AliasRange<'_>, Errno>) {
        let piece_end = ((start / WINDOW_BYTES + 1) * WINDOW_BYTES).min(end);
        let window = self.open_window(start);
        let len = (piece_end - start) as usize;
        (piece_end, window.and_then(|window| window.bytes(start, len).ok_or(Errno::FAULT)))
    }
}
