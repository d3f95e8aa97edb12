//! Blocks of a cache's own memory, for pages that have no place in a mapping.
//!
//! A block that a page left is the next page's: memory is neither taken from the kernel, cleared and
//! mapped for a page that comes, nor given back for one that goes. Blocks lie side by side in the order
//! of their numbers, in memory that the machine may map by huge pages.

use crate::library::frames::PAGE_BYTES_MAX;
use pagekeeper_sys::Errno;
use pagekeeper_sys::alias::{Alias, AliasRange};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// Address space that is set aside for a cache's blocks, whatever their size: so much, or less where
/// that cannot be had.
const RESERVED_BYTES: [usize; 3] = [1 << 40, 1 << 36, 1 << 32];
/// What is opened at a time.
const STEP_BYTES: usize = 16 << 20;
/// Memory of unused blocks that is kept when a segment is closed, for the next one's pages.
pub(super) const KEPT_BYTES: u64 = 1 << 20;

const _: () = assert!(STEP_BYTES.is_multiple_of(PAGE_BYTES_MAX as usize));

/// Blocks that hold no page.
#[derive(Default)]
pub(super) struct Unused {
    /// With memory, the last used last.
    kept: Vec<u32>,
    /// Without.
    bare: Vec<u32>,
    /// How many blocks were used so far.
    numbered: u32,
    /// Bytes that may be used.
    open_bytes: usize,
}

/// The blocks of a cache.
pub(crate) struct Pool {
    page_shift: u32,
    memory: Alias,
    unused: Mutex<Unused>,
    /// So many may keep memory, those that hold pages included: what the budget has room for.
    blocks_max: AtomicUsize,
}

impl Pool {
    /// No blocks yet.
    ///
    /// # Errors
    /// [`Errno::NOMEM`]: address space is limited, or used up.
    pub(super) fn new(page_shift: u32, blocks_max: usize) -> Result<Pool, Errno> {
        let mut sizes = RESERVED_BYTES.into_iter().map(Alias::reserve);
        let memory = sizes.find(Result::is_ok).unwrap_or(Err(Errno::NOMEM))?;
        memory.advise_huge();
        let blocks_max = AtomicUsize::new(blocks_max);
        Ok(Pool { page_shift, memory, unused: Mutex::default(), blocks_max })
    }

    /// Who takes blocks or gives them back is alone.
    pub(super) fn lock(&self) -> MutexGuard<'_, Unused> {
        self.unused.lock().expect("blocks")
    }

    /// Where bytes lie, from so far within a block on: of that block, or of those that lie behind it.
    #[inline(always)]
    pub(super) fn bytes(&self, block: u32, within: usize, len: usize) -> Option<AliasRange<'_>> {
        self.memory.range(((block as usize) << self.page_shift) + within, len)
    }

    /// Takes unused blocks for pages in a row, which lie in a row as far as that can be had: storage
    /// fills memory that is in one piece in half of the time that scattered pages take. What is in them
    /// is any page's that was there.
    ///
    /// # Errors
    /// [`Errno::NOMEM`]: there is no memory left, or there are too many.
    pub(super) fn take(&self, unused: &mut Unused, blocks: usize) -> Result<Vec<u32>, Errno> {
        // Those that were given back together lay together as a rule.
        let mut taken = unused.kept.split_off(unused.kept.len().saturating_sub(blocks));
        while taken.len() < blocks
            && let Some(block) = unused.bare.pop()
        {
            taken.push(block);
        }
        taken.sort_unstable();
        while taken.len() < blocks {
            match self.take_new(unused) {
                Ok(block) => taken.push(block),
                Err(errno) => {
                    unused.kept.extend(taken);
                    return Err(errno);
                }
            }
        }
        Ok(taken)
    }

    /// A block that was never used.
    fn take_new(&self, unused: &mut Unused) -> Result<u32, Errno> {
        let block = unused.numbered;
        let end = (block as usize + 1) << self.page_shift;
        if end > unused.open_bytes {
            let step = self.memory.range(unused.open_bytes, STEP_BYTES).ok_or(Errno::NOMEM)?;
            step.open()?;
            unused.open_bytes += STEP_BYTES;
        }
        unused.numbered += 1;
        Ok(block)
    }

    /// A block holds no page any more. It keeps its memory, for pages leave so that others can come; but not
    /// where the budget became smaller before it could.
    pub(super) fn give_back(&self, unused: &mut Unused, block: u32) {
        let with_memory = unused.numbered as usize - unused.bare.len();
        if with_memory <= self.blocks_max.load(Relaxed) {
            return unused.kept.push(block);
        }
        let range = self.bytes(block, 0, 1 << self.page_shift);
        // SAFETY: as for `trim`: no page is in it, and the caller has the lock.
        let _ = range.map(|range| unsafe { range.give_back() });
        unused.bare.push(block);
    }

    /// The budget has room for so many blocks from now on: memory of unused ones is given back.
    pub(super) fn limit(&self, blocks_max: usize) {
        self.blocks_max.store(blocks_max, Relaxed);
        self.trim(0);
    }

    /// Gives memory of unused blocks back to the machine, but so much of it: when fewer will be
    /// needed, since a segment is closed or the budget is smaller.
    pub(super) fn trim(&self, kept_bytes: u64) {
        let mut unused = self.lock();
        let kept_max = (kept_bytes >> self.page_shift) as usize;
        if unused.kept.len() <= kept_max {
            return;
        }
        let newest = unused.kept.len() - kept_max;
        let mut given: Vec<u32> = unused.kept.drain(..newest).collect();
        given.sort_unstable();
        for run in given.chunk_by(|first, second| first + 1 == *second) {
            let range = self.bytes(run[0], 0, run.len() << self.page_shift);
            // SAFETY: no page is in these blocks, nobody finds one there, and they are taken by who
            // has the lock, which we have. Failing, it would only keep the memory.
            let _ = range.map(|range| unsafe { range.give_back() });
        }
        // The first are the next to be used.
        unused.bare.extend(given.into_iter().rev());
    }
}
