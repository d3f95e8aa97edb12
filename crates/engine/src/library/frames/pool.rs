//! Blocks of a cache's own memory, for pages that have no place in a mapping.
//!
//! A block that a page left is the next page's: memory is neither taken from the kernel, cleared and
//! mapped for a page that comes, nor given back for one that goes. Blocks lie in large chunks, which
//! the machine may map by huge pages.

use crate::library::frames::{Slots, empty};
use pagekeeper_sys::Errno;
use pagekeeper_sys::alias::{Alias, AliasRange};
use std::sync::{Mutex, MutexGuard};

/// Blocks that are given address space together.
const CHUNK_BLOCKS: usize = 4096;
/// Chunks: 64 GiB of the smallest blocks.
const CHUNKS: usize = 4096;
/// Unused blocks whose memory is kept for the next pages: a window of read-ahead, or a part of all.
const KEPT_BYTES: u64 = 1 << 20;
const KEPT_PART: u32 = 8;

struct Chunk<H> {
    headers: Box<[H; CHUNK_BLOCKS]>,
    memory: Alias,
}

/// Blocks that hold no page.
#[derive(Default)]
pub(super) struct Unused {
    /// With memory, the last used last.
    kept: Vec<u32>,
    /// Without.
    bare: Vec<u32>,
    /// How many blocks were used so far.
    numbered: u32,
}

/// The blocks of a cache, each with a header.
pub(crate) struct Pool<H> {
    page_shift: u32,
    chunks: Slots<Chunk<H>, CHUNKS>,
    unused: Mutex<Unused>,
}

/// A block.
pub(super) struct Block<'a, H> {
    chunk: &'a Chunk<H>,
    pub(super) number: u32,
}

impl<'a, H> Block<'a, H> {
    #[inline(always)]
    pub(super) fn header(&self) -> &'a H {
        &self.chunk.headers[self.number as usize % CHUNK_BLOCKS]
    }
}

impl<H: Default> Pool<H> {
    /// No blocks yet.
    pub(super) fn new(page_shift: u32) -> Pool<H> {
        Pool { page_shift, chunks: empty(), unused: Mutex::default() }
    }

    /// Who takes blocks or gives them back is alone.
    pub(super) fn lock(&self) -> MutexGuard<'_, Unused> {
        self.unused.lock().expect("blocks")
    }

    /// A block that was used before.
    #[inline(always)]
    pub(super) fn block(&self, number: u32) -> Option<Block<'_, H>> {
        let chunk = self.chunks.get(number as usize / CHUNK_BLOCKS)?.get()?;
        Some(Block { chunk, number })
    }

    /// Where bytes lie, from so far within a block on: of that block, or of those that lie behind it.
    #[inline(always)]
    pub(super) fn bytes<'a>(
        &self,
        block: &Block<'a, H>,
        within: usize,
        len: usize,
    ) -> Option<AliasRange<'a>> {
        let start = (block.number as usize % CHUNK_BLOCKS) << self.page_shift;
        block.chunk.memory.range(start + within, len)
    }

    /// Whether a block's bytes lie right behind those of another.
    #[inline]
    pub(super) fn follows(first: u32, second: u32) -> bool {
        first + 1 == second && !(second as usize).is_multiple_of(CHUNK_BLOCKS)
    }

    /// Takes unused blocks for pages in a row, which lie in a row as far as that can be had: storage
    /// fills memory that is in one piece in half of the time that scattered pages take. What is in them
    /// is any page's that was there.
    ///
    /// # Errors
    /// [`Errno::NOMEM`]: there is no address space left, or there are too many.
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
        let slot = self.chunks.get(block as usize / CHUNK_BLOCKS).ok_or(Errno::NOMEM)?;
        if slot.get().is_none() {
            let memory = Alias::anonymous(CHUNK_BLOCKS << self.page_shift)?;
            memory.advise_huge();
            let headers: Vec<H> = (0..CHUNK_BLOCKS).map(|_| H::default()).collect();
            let headers = headers.try_into().ok().expect("so many");
            let _ = slot.set(Chunk { headers, memory });
        }
        unused.numbered += 1;
        Ok(block)
    }

    /// A block holds no page any more. [`trim`](Self::trim) afterwards.
    pub(super) fn give_back(&self, unused: &mut Unused, number: u32) {
        unused.kept.push(number);
    }

    /// Gives memory of unused blocks back to the machine, if there is more than is kept for the next
    /// pages. As long as the budget is what it was, blocks leave for others to come, and all are kept.
    pub(super) fn trim(&self, unused: &mut Unused) {
        let kept_max = ((KEPT_BYTES >> self.page_shift) as u32).max(unused.numbered / KEPT_PART);
        if unused.kept.len() <= kept_max as usize {
            return;
        }
        let mut given = unused.kept.split_off(0);
        unused.kept = given.split_off(given.len() - kept_max as usize / 2);
        given.sort_unstable();
        for run in given.chunk_by(|first, second| Self::follows(*first, *second)) {
            let range = self.block(run[0]).and_then(|first| {
                self.bytes(&first, 0, run.len() << self.page_shift)
            });
            // SAFETY: no page is in these blocks, nobody finds one there, and they are taken by who
            // has the lock, which our caller has. Failing, it would only keep the memory.
            let _ = range.map(|range| unsafe { range.give_back() });
        }
        unused.bare.extend(given.into_iter().rev());
    }
}
