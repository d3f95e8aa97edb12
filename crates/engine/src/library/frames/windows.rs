//! A segment's pages, by windows of a gigabyte: the way from an offset to a page's word.
//!
//! A window has the numbers of its extents, which the engine's slow path enters once and which stay
//! as long as the segment is open. With its extent's number a page's word is known. What else a
//! window shows, and with it where a page's bytes lie, is its user's.

use crate::engine::table::ExtentWords;
use crate::engine::word::WordRef;
use crate::library::frames::{Slots, WINDOW_BYTES, empty, word_of};
use crate::port::PAGE_BYTES;
use pagekeeper_frames::EXTENT_PAGES;
use pagekeeper_policy::Page;
use pagekeeper_sys::Errno;
use pagekeeper_sys::shared::SharedMap;
use std::sync::atomic::{AtomicU32, Ordering};

/// Extents in a window, of the smallest pages.
const EXTENTS_MAX: usize = (WINDOW_BYTES / PAGE_BYTES) as usize / EXTENT_PAGES as usize;
/// Windows in a group, and groups.
const GROUP: usize = 512;
const GROUPS: usize = 256;
/// The longest segment, in bytes: what fits into an address space.
pub const SEGMENT_BYTES_MAX: u64 = WINDOW_BYTES * (GROUP * GROUPS) as u64;

type Group<V> = Slots<Window<V>, GROUP>;

pub(super) struct Window<V> {
    /// What it shows.
    pub(super) view: V,
    /// Numbers of extents and 1, or 0. Memory is taken where they are entered.
    extents: SharedMap,
}

impl<V> Window<V> {
    /// The number of the extent that a page of this window is in, and 1.
    #[inline(always)]
    fn extent(&self, index: u64) -> &AtomicU32 {
        self.extents.word((index / u64::from(EXTENT_PAGES)) as usize % EXTENTS_MAX)
    }

    /// Enters the number of a page's extent, so that the next use finds it.
    pub(super) fn enter(&self, index: u64, page: Page) {
        // It stays until the segment closes.
        self.extent(index).store(page.0 / EXTENT_PAGES + 1, Ordering::Release);
    }
}

/// The windows of a segment.
pub(super) struct Windows<V> {
    words: &'static [ExtentWords],
    /// The first group, which nearly every segment ends in.
    near: Group<V>,
    /// The others.
    far: Slots<Group<V>, GROUPS>,
}

impl<V> Windows<V> {
    pub(super) fn new(words: &'static [ExtentWords]) -> Windows<V> {
        Windows { words, near: empty(), far: empty() }
    }

    /// The window that shows the byte at an offset, if it is open.
    #[inline]
    pub(super) fn window(&self, offset: u64) -> Option<&Window<V>> {
        match self.near.get((offset / WINDOW_BYTES) as usize) {
            Some(slot) => slot.get(),
            None => self.far_window(offset),
        }
    }

    #[cold]
    #[inline(never)]
    fn far_window(&self, offset: u64) -> Option<&Window<V>> {
        let no = (offset / WINDOW_BYTES) as usize;
        self.far.get(no / GROUP)?.get()?[no % GROUP].get()
    }

    /// The same, opened if need be: `view` makes what it shows from its first byte's offset on.
    pub(super) fn open(
        &self,
        offset: u64,
        view: impl FnOnce(u64) -> Result<V, Errno>,
    ) -> Result<&Window<V>, Errno> {
        let no = (offset / WINDOW_BYTES) as usize;
        let group = match no / GROUP {
            0 => &self.near,
            far => self.far.get(far).ok_or(Errno::FBIG)?.get_or_init(empty),
        };
        let slot = &group[no % GROUP];
        if slot.get().is_none() {
            let view = view(no as u64 * WINDOW_BYTES)?;
            let extents = SharedMap::without_file(EXTENTS_MAX * size_of::<AtomicU32>())?;
            let _ = slot.set(Window { view, extents });
        }
        slot.get().ok_or(Errno::NOMEM)
    }

    /// The words of a page's extent, and the window that shows the page.
    #[inline(always)]
    pub(super) fn find_extent(
        &self,
        index: u64,
        offset: u64,
    ) -> Option<(&'static ExtentWords, &Window<V>)> {
        let window = self.window(offset)?;
        // What was not entered is behind all of them.
        let number = window.extent(index).load(Ordering::Acquire).wrapping_sub(1);
        let words = self.words.get(number as usize)?;
        Some((words, window))
    }

    /// A page's word, and the window that shows the page.
    #[inline(always)]
    pub(super) fn find(&self, index: u64, offset: u64) -> Option<(WordRef<'static>, &Window<V>)> {
        let (words, window) = self.find_extent(index, offset)?;
        Some((word_of(words, index), window))
    }
}
