//! Translation by mapping: frames in a memfd of the segment's, seen through windows of a gigabyte.
//!
//! A window has an [`Alias`] of the frames and the numbers of its extents, which the engine's slow
//! path enters once and which stay as long as the segment is open. With its extent's number a
//! page's word is known, and where its bytes lie is its offset.

use crate::library::frames::{COPIED_BYTES_MAX, Slots, WINDOW_BYTES, empty, word_of};
use crate::library::process;
use crate::port::PAGE_BYTES;
use crate::table::ExtentWords;
use crate::word::WordRef;
use pagekeeper_frames::EXTENT_PAGES;
use pagekeeper_policy::Page;
use pagekeeper_sys::Errno;
use pagekeeper_sys::alias::{Alias, AliasRange};
use pagekeeper_sys::memfd::Memfd;
use pagekeeper_sys::userfault::Track;
use std::sync::atomic::{AtomicU32, Ordering};

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

type Group = Slots<Window, GROUP>;

pub(super) struct Window {
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
    pub(super) fn bytes(&self, offset: u64, len: usize) -> Option<AliasRange<'_>> {
        self.alias.range((offset % WINDOW_BYTES) as usize, len)
    }
}

/// The windows of a segment.
pub(super) struct Windows {
    pub(super) memfd: Memfd,
    words: &'static [ExtentWords],
    /// Binary logarithm of the bytes in a page.
    page_shift: u32,
    /// The first group, which nearly every segment ends in.
    near: Group,
    /// The others.
    far: Slots<Group, GROUPS>,
}

impl Windows {
    pub(super) fn new(memfd: Memfd, words: &'static [ExtentWords], page_shift: u32) -> Windows {
        Windows { memfd, words, page_shift, near: empty(), far: empty() }
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
            let extents = Box::new([const { AtomicU32::new(NO_EXTENT) }; EXTENTS_MAX]);
            let _ = slot.set(Window { alias, extents });
        }
        slot.get().ok_or(Errno::NOMEM)
    }

    /// The words of a page's extent, and the window that shows the page.
    #[inline(always)]
    pub(super) fn find_extent(
        &self,
        index: u64,
        offset: u64,
    ) -> Option<(&'static ExtentWords, &Window)> {
        let window = self.window(offset)?;
        let words = self.words.get(window.extent(index).load(Ordering::Acquire) as usize)?;
        Some((words, window))
    }

    /// A page's word, and where its bytes lie.
    pub(super) fn find(&self, index: u64) -> Option<(WordRef<'static>, AliasRange<'_>)> {
        let offset = index << self.page_shift;
        let (words, window) = self.find_extent(index, offset)?;
        let bytes = window.bytes(offset, 1 << self.page_shift)?;
        Some((word_of(words, index), bytes))
    }

    /// Enters the number of a page's extent, so that the next use finds it; where the page's bytes
    /// lie.
    pub(super) fn enter(&self, index: u64, page: Page) -> Result<AliasRange<'_>, Errno> {
        let offset = index << self.page_shift;
        let window = self.open_window(offset)?;
        // It stays until the segment closes.
        window.extent(index).store(page.0 / EXTENT_PAGES, Ordering::Release);
        window.bytes(offset, 1 << self.page_shift).ok_or(Errno::FAULT)
    }

    /// Where the bytes from an offset up to `end` lie, as far as one window goes.
    pub(super) fn piece(&self, start: u64, end: u64) -> (u64, Result<AliasRange<'_>, Errno>) {
        let piece_end = ((start / WINDOW_BYTES + 1) * WINDOW_BYTES).min(end);
        let window = self.open_window(start);
        let len = (piece_end - start) as usize;
        (piece_end, window.and_then(|window| window.bytes(start, len).ok_or(Errno::FAULT)))
    }
}
