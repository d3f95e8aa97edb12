//! Translation by a table: each page's bytes in a block of its own, which the page's entry names.
//!
//! An entry is set before its page's word says that the page is resident, and cleared after it says
//! that it is leaving. So whoever has pinned a page finds its block by its entry.
//!
//! **Short reads pin nothing.** A pin is two locked instructions, and looks for the page's word
//! first; and the processor begins nothing behind such an instruction before all is done that stands
//! before it, least of all the next read. So they copy first, and look afterwards whether what they
//! copied was the page. An entry says whether its page is *open* to them: from when its content has
//! come until it leaves, but for times in which somebody has the page alone. And it has a count, which
//! moves when that ends, before the page's bytes are changed or its block becomes another page's. So if
//! an entry is open, and the same after the copy, the bytes were the page's, and nobody changed them.
//! (vmcache reads so, too: Leis and others, *Virtual-Memory Assisted Buffer Management*, 2023, section
//! 3.3.) Memory of blocks is never unmapped, so such a copy reads the wrong bytes at worst, which
//! nobody sees. A page whose next use the brain wants to hear of is not open before that.

use crate::engine::table::ExtentWords;
use crate::engine::word::WordRef;
use crate::library::frames::WINDOW_BYTES;
use crate::library::frames::pool::Pool;
use crate::library::frames::windows::{Window, Windows};
use pagekeeper_policy::Page;
use pagekeeper_sys::Errno;
use pagekeeper_sys::alias::AliasRange;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use zerocopy::FromZeros;

/// What is known of a page's bytes: the number of their block plus one, or 0; whether the page is
/// open; and a count. Whoever changes it has claimed the page, has it alone, or has pinned it and opens
/// it.
#[derive(FromZeros)]
#[repr(transparent)]
pub(super) struct Entry(AtomicU64);

const OPEN: u64 = 1 << 32;
/// One more in the count. It comes round when a page was closed 2³¹ times during one short copy.
const CLOSED: u64 = 1 << 33;

impl Entry {
    #[inline(always)]
    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// The block, if the page has one.
    #[inline(always)]
    fn block(&self) -> Option<u32> {
        (self.load() as u32).checked_sub(1)
    }

    /// The page, which has none, has this block.
    fn give(&self, block: u32) {
        self.0.fetch_add(u64::from(block) + 1, Ordering::AcqRel);
    }

    /// The page's content is there, and nobody has it alone any more.
    pub(super) fn open(&self) {
        self.0.fetch_or(OPEN, Ordering::AcqRel);
    }

    /// The content is about to change. Returns the block that the page had.
    fn close(&self, keeps_block: bool) -> Option<u32> {
        let before = self.load();
        let kept = if keeps_block { u64::from(before as u32) } else { 0 };
        let count = (before & !(CLOSED - 1)).wrapping_add(CLOSED);
        self.0.store(count | kept, Ordering::Relaxed);
        // Before anything that is stored from now on.
        fence(Ordering::Release);
        (before as u32).checked_sub(1)
    }
}

/// The entries of a window's pages. Memory is taken where they are set.
type Row = Box<[Entry]>;

/// The table of a segment.
pub(super) struct Entries {
    pool: Arc<Pool>,
    windows: Windows<Row>,
    /// Binary logarithm of the bytes in a page.
    page_shift: u32,
}

impl Entries {
    pub(super) fn new(pool: Arc<Pool>, words: &'static [ExtentWords], page_shift: u32) -> Entries {
        Entries { pool, windows: Windows::new(words), page_shift }
    }

    #[inline(always)]
    fn entry_in<'a>(&self, window: &'a Window<Row>, index: u64) -> Option<&'a Entry> {
        window.view.get((index % (WINDOW_BYTES >> self.page_shift)) as usize)
    }

    /// A page's entry, if its window is open.
    #[inline(always)]
    fn entry(&self, index: u64) -> Option<&Entry> {
        self.entry_in(self.windows.window(index << self.page_shift)?, index)
    }

    /// A page's word.
    #[inline(always)]
    pub(super) fn word(&self, index: u64) -> Option<WordRef<'static>> {
        Some(self.windows.find(index, index << self.page_shift)?.0)
    }

    /// Where bytes of a page lie that the caller has pinned or claimed.
    #[inline(always)]
    pub(super) fn bytes(&self, index: u64, within: usize, len: usize) -> Option<AliasRange<'_>> {
        self.pool.bytes(self.entry(index)?.block()?, within, len)
    }

    /// Copies bytes from an offset on, if they are of one page that is open, and stays so meanwhile.
    /// Returns the page.
    #[inline(always)]
    pub(super) fn copy_unpinned(&self, offset: u64, buf: &mut [u8]) -> Option<u64> {
        let within = (offset & ((1 << self.page_shift) - 1)) as usize;
        if within + buf.len() > 1 << self.page_shift {
            return None;
        }
        let row = &self.windows.window(offset)?.view;
        let entry = row.get(((offset % WINDOW_BYTES) >> self.page_shift) as usize)?;
        let before = entry.load();
        if before & OPEN == 0 {
            return None;
        }
        // What is open has a block.
        let range = self.pool.bytes((before as u32).wrapping_sub(1), within, buf.len())?;
        // SAFETY: blocks that have numbers are open memory of the pool's, as long as that lives.
        unsafe { range.copy_torn(buf) };
        fence(Ordering::Acquire);
        (entry.load() == before).then_some(offset >> self.page_shift)
    }

    /// The content of a page that the caller has claimed or pinned is there.
    pub(super) fn open(&self, index: u64) {
        if let Some(entry) = self.entry(index) {
            entry.open();
        }
    }

    /// The caller, who has a page alone, is about to change its content: [`Entry::open`] afterwards.
    pub(super) fn close(&self, index: u64) -> Option<&Entry> {
        let entry = self.entry(index)?;
        entry.close(true);
        Some(entry)
    }

    fn open_window(&self, index: u64) -> Result<&Window<Row>, Errno> {
        self.windows.open(index << self.page_shift, |_| {
            let pages = (WINDOW_BYTES >> self.page_shift) as usize;
            <[Entry]>::new_box_zeroed_with_elems(pages).map_err(|_| Errno::NOMEM)
        })
    }

    /// Enters the number of a page's extent, so that the next use finds it; where the page's bytes
    /// lie, which the caller has pinned.
    pub(super) fn enter(&self, index: u64, page: Page) -> Result<AliasRange<'_>, Errno> {
        self.open_window(index)?.enter(index, page);
        self.bytes(index, 0, 1 << self.page_shift).ok_or(Errno::FAULT)
    }

    /// Gives claimed pages blocks to be filled.
    ///
    /// # Errors
    /// [`Errno::NOMEM`]: there is no memory left, or there are more pages than a cache has blocks.
    pub(super) fn give(&self, first: u64, pages: u64) -> Result<(), Errno> {
        let mut lacking = Vec::with_capacity(pages as usize);
        for index in first..first + pages {
            let entry = self.entry_in(self.open_window(index)?, index).ok_or(Errno::FAULT)?;
            if entry.block().is_none() {
                lacking.push(entry);
            }
        }
        let blocks = self.pool.take(&mut self.pool.lock(), lacking.len())?;
        lacking.into_iter().zip(blocks).for_each(|(entry, block)| entry.give(block));
        Ok(())
    }

    /// Takes the blocks of claimed pages back, if they have any.
    pub(super) fn take_back(&self, first: u64, pages: u64) {
        let mut unused = self.pool.lock();
        for index in first..first + pages {
            if let Some(block) = self.entry(index).and_then(|entry| entry.close(false)) {
                self.pool.give_back(&mut unused, block);
            }
        }
    }

    /// The cache's blocks.
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Where the bytes of claimed pages from an offset up to `end` lie, as far as their blocks follow
    /// each other.
    pub(super) fn piece(&self, start: u64, end: u64) -> (u64, Result<AliasRange<'_>, Errno>) {
        let first = start >> self.page_shift;
        let block = |index: u64| self.entry(index)?.block();
        let Some(begin) = block(first) else {
            return ((first + 1) << self.page_shift, Err(Errno::FAULT));
        };
        let lies_behind = |page: &u64| block(first + page) == Some(begin + *page as u32);
        let pages = (end - start).div_ceil(1 << self.page_shift);
        let pages = 1 + (1..pages).take_while(lies_behind).count();
        let len = pages << self.page_shift;
        (start + len as u64, self.pool.bytes(begin, 0, len).ok_or(Errno::FAULT))
    }
}
