//! Translation by a table: each page's bytes in a block of its own, which the page's entry names.
//!
//! An entry is set before its page's word says that the page is resident, and cleared after it says
//! that it is leaving. So whoever has pinned a page finds its block by its entry.

use crate::library::frames::WINDOW_BYTES;
use crate::library::frames::pool::Pool;
use crate::library::frames::windows::{Window, Windows};
use crate::table::ExtentWords;
use crate::word::WordRef;
use pagekeeper_policy::Page;
use pagekeeper_sys::Errno;
use pagekeeper_sys::alias::AliasRange;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use zerocopy::FromZeros;

/// The blocks of a window's pages plus one, or 0. Memory is taken where entries are set.
type Numbers = Box<[AtomicU32]>;
/// Blocks that nothing has to be known of.
pub(crate) type PlainPool = Pool<()>;

/// The table of a segment.
pub(super) struct Entries {
    pool: Arc<PlainPool>,
    windows: Windows<Numbers>,
    /// Binary logarithm of the bytes in a page.
    page_shift: u32,
}

impl Entries {
    pub(super) fn new(
        pool: Arc<PlainPool>,
        words: &'static [ExtentWords],
        page_shift: u32,
    ) -> Entries {
        Entries { pool, windows: Windows::new(words), page_shift }
    }

    /// A page's entry.
    #[inline(always)]
    fn entry<'a>(&self, window: &'a Window<Numbers>, index: u64) -> Option<&'a AtomicU32> {
        window.view.get((index % (WINDOW_BYTES >> self.page_shift)) as usize)
    }

    /// A page's word, and the window that has its entry.
    #[inline(always)]
    pub(super) fn find(&self, index: u64) -> Option<(WordRef<'static>, &Window<Numbers>)> {
        self.windows.find(index, index << self.page_shift)
    }

    /// Where bytes of a page lie that the caller has pinned or claimed.
    #[inline(always)]
    pub(super) fn bytes(
        &self,
        window: &Window<Numbers>,
        index: u64,
        within: usize,
        len: usize,
    ) -> Option<AliasRange<'_>> {
        let number = self.entry(window, index)?.load(Ordering::Acquire).checked_sub(1)?;
        self.pool.bytes(&self.pool.block(number)?, within, len)
    }

    /// The same of a page that lies anywhere.
    pub(super) fn bytes_of(
        &self,
        index: u64,
        within: usize,
        len: usize,
    ) -> Option<AliasRange<'_>> {
        let window = self.windows.window(index << self.page_shift)?;
        self.bytes(window, index, within, len)
    }

    fn open_window(&self, index: u64) -> Result<&Window<Numbers>, Errno> {
        self.windows.open(index << self.page_shift, |_| {
            let pages = (WINDOW_BYTES >> self.page_shift) as usize;
            <[AtomicU32]>::new_box_zeroed_with_elems(pages).map_err(|_| Errno::NOMEM)
        })
    }

    /// Enters the number of a page's extent, so that the next use finds it; where the page's bytes
    /// lie, which the caller has pinned.
    pub(super) fn enter(&self, index: u64, page: Page) -> Result<AliasRange<'_>, Errno> {
        let window = self.open_window(index)?;
        window.enter(index, page);
        self.bytes(window, index, 0, 1 << self.page_shift).ok_or(Errno::FAULT)
    }

    /// Gives claimed pages blocks to be filled.
    ///
    /// # Errors
    /// [`Errno::NOMEM`]: there is no memory left, or there are more pages than a cache has blocks.
    pub(super) fn give(&self, first: u64, pages: u64) -> Result<(), Errno> {
        let mut lacking = Vec::with_capacity(pages as usize);
        for index in first..first + pages {
            let entry = self.entry(self.open_window(index)?, index).ok_or(Errno::FAULT)?;
            if entry.load(Ordering::Acquire) == 0 {
                lacking.push(entry);
            }
        }
        let numbers = self.pool.take(&mut self.pool.lock(), lacking.len())?;
        for (entry, number) in lacking.into_iter().zip(numbers) {
            entry.store(number + 1, Ordering::Release);
        }
        Ok(())
    }

    /// Takes the blocks of claimed pages back, if they have any.
    pub(super) fn take_back(&self, first: u64, pages: u64) {
        let mut unused = self.pool.lock();
        for index in first..first + pages {
            let window = self.windows.window(index << self.page_shift);
            let entry = window.and_then(|window| self.entry(window, index));
            let number = entry.and_then(|entry| entry.swap(0, Ordering::AcqRel).checked_sub(1));
            if let Some(number) = number {
                self.pool.give_back(&mut unused, number);
            }
        }
        self.pool.trim(&mut unused);
    }

    /// Where the bytes of claimed pages from an offset up to `end` lie, as far as their blocks follow
    /// each other.
    pub(super) fn piece(&self, start: u64, end: u64) -> (u64, Result<AliasRange<'_>, Errno>) {
        let first = start >> self.page_shift;
        let number = |index: u64| {
            let window = self.windows.window(index << self.page_shift)?;
            self.entry(window, index)?.load(Ordering::Acquire).checked_sub(1)
        };
        let mut pages = 1;
        let mut last = number(first);
        while (first + pages) << self.page_shift < end
            && let (Some(before), Some(next)) = (last, number(first + pages))
            && PlainPool::follows(before, next)
        {
            last = Some(next);
            pages += 1;
        }
        let len = (pages << self.page_shift) as usize;
        let bytes = number(first)
            .and_then(|number| self.pool.block(number))
            .and_then(|block| self.pool.bytes(&block, 0, len));
        (start + len as u64, bytes.ok_or(Errno::FAULT))
    }
}
