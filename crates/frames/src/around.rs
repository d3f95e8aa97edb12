//! Reading around: while frames are free, a miss in no order brings the block around it along.
//!
//! Sixteen pages come for little more than the time of one, and are mapped at once, so that none of
//! them is a fault later. What becomes of them nobody sees therefore; they are *read around*: no
//! policy hears of them before a use was seen, and when frames are needed they leave before any page
//! that a policy holds. One that is needed after it left is a miss then, as it would have been.
//!
//! So the most that can be lost is the time of reading what nobody uses, in a file that is touched
//! here and there. One page of each block, its *probe*, stays unmapped, so that its use is seen, and
//! stands for as many as a block has: blocks are read on trust, until probes tell that it is worth it.

use crate::brain::{AROUND, Brain, MARKER, PENDING};
use crate::config::Sampling;
use crate::plan::Run;
use crate::{Place, Segment};
use pagekeeper_policy::list::List;
use pagekeeper_policy::{Admission, Page};
use std::ops::Range;

/// A block: what is read in one request beside a page, for half as much time again.
const BLOCK_PAGES: u64 = 16;
/// Blocks that are read before a probe has to be used: 64 MiB.
const TRUST_BLOCKS: u32 = 1024;

/// Pages that were read around misses.
#[derive(Debug)]
pub(crate) struct Around {
    /// Those of which no use was seen, oldest first.
    pub(crate) pages: List,
    /// Blocks that may still be read.
    trust_blocks: u32,
    /// By segment, whether misses are read around.
    allowed: Vec<bool>,
}

impl Default for Around {
    fn default() -> Self {
        Around { pages: List::new(), trust_blocks: TRUST_BLOCKS, allowed: Vec::new() }
    }
}

impl Around {
    /// Misses of this segment are read around from now on, or not.
    pub(crate) fn allow(&mut self, segment: Segment, allowed: bool) {
        let at = segment.0 as usize;
        if self.allowed.len() <= at {
            self.allowed.resize(at + 1, false);
        }
        self.allowed[at] = allowed;
    }

    /// Whether they are, as long as there is trust: in live runs, of files of which the program did not say
    /// that it uses them in no order.
    pub(crate) fn is_allowed(&self, segment: Segment) -> bool {
        self.allowed.get(segment.0 as usize) == Some(&true)
    }

    /// A probe was used: as many pages as a block has were, each of which was no fault.
    pub(crate) fn proven(&mut self) {
        self.trust_blocks = (self.trust_blocks + BLOCK_PAGES as u32).min(TRUST_BLOCKS);
    }
}

/// Of these flags: the page was read around a miss, and no use was seen.
pub(crate) const fn is_around(flags: u8) -> bool {
    flags & (PENDING | AROUND) == PENDING | AROUND
}

/// Of these flags: the page's use tells whether reading around is worth it.
pub(crate) const fn is_probe(flags: u8) -> bool {
    flags & (PENDING | AROUND | MARKER) == PENDING | AROUND | MARKER
}

impl Brain {
    /// What is read around a miss whose stream begins with it, before it and from `behind` on: absent
    /// pages of its block, as far as frames are free.
    pub(crate) fn block_around(&mut self, place: Place, behind: u64) -> (Range<u64>, Range<u64>) {
        let Place { segment, index } = place;
        let begins = self.streams[segment.0 as usize].last().begin == index;
        // Where every touch is to be seen nothing could be mapped along.
        let is_exact = matches!(self.config.sampling, Sampling::Window { .. });
        let reads_ahead = self.config.window_pages_max > 1 && !is_exact;
        let mut free = u64::from(self.limit().saturating_sub(self.resident));
        if !begins
            || !reads_ahead
            || !self.around.is_allowed(segment)
            || self.around.trust_blocks == 0
        {
            free = 0;
        }
        let low = index / BLOCK_PAGES * BLOCK_PAGES;
        let high = (low + BLOCK_PAGES).min(self.pages.pages(segment));
        let is_absent = |b: &Brain, index| !b.is_resident(Place { segment, index });
        let mut end = behind;
        while free > 0 && end < high && is_absent(self, end) {
            end += 1;
            free -= 1;
        }
        let mut first = index;
        while free > 0 && first > low && is_absent(self, first - 1) {
            first -= 1;
            free -= 1;
        }
        (first..index, behind..end)
    }

    /// Fetches what was chosen by [`block_around`](Self::block_around).
    pub(crate) fn fetch_around(
        &mut self,
        segment: Segment,
        before: Range<u64>,
        behind: Range<u64>,
    ) {
        let pages = (before.end - before.start) + (behind.end - behind.start);
        if pages == 0 {
            return;
        }
        self.around.trust_blocks -= 1;
        // Not the same one of each block: a stride would meet all of them or none.
        let block = before.start / BLOCK_PAGES;
        let probe = (block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % pages;
        for (number, index) in (0..).zip(behind.chain(before)) {
            let place = Place { segment, index };
            let page = self.make_resident(place);
            self.flags[page.index()] |= PENDING | AROUND;
            self.beside.push_back(&mut self.around.pages, page);
            self.counts.prefetched_pages += 1;
            if number == probe {
                self.flags[page.index()] |= MARKER;
            } else if self.config.map_ahead && !self.is_watched(page) {
                self.map(page);
            }
            Run::add(&mut self.plan.fetch, place);
        }
    }

    /// A stream goes on at this page: it has used what was read around right before it.
    pub(crate) fn came_over_block(&mut self, place: Place) {
        let least = place.index.saturating_sub(BLOCK_PAGES);
        let is_around = |b: &Brain, index| is_around(b.flag(Place { index, ..place }));
        let mut first = place.index;
        while first > least && is_around(self, first - 1) {
            first -= 1;
        }
        for index in first..place.index {
            self.admit_pending(Place { index, ..place }, Admission::Demand);
        }
    }

    /// The page read around longest ago is nobody's any more.
    pub(crate) fn next_around(&mut self) -> Option<Page> {
        self.beside.pop_front(&mut self.around.pages)
    }
}
