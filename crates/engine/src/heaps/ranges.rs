//! Ranges of a heap's pages: which are given out, and which a forked child inherits.

use crate::engine::heap::PAGES_MAX;
use crate::port::PAGE_BYTES;
use rangemap::RangeSet;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Room for growth behind an allocation, as a multiple of its length rounded up to a power of two.
pub(super) const ROOM: u64 = 2;

/// Ranges of a heap that are given out, each with room for growth. Used ranges are used again
/// first, since their pages have numbers already.
#[derive(Clone)]
pub(super) struct Slots {
    taken: BTreeMap<u64, u64>,
    /// What is free between them: where, by the power of two that each is no shorter than.
    gaps: Vec<BTreeSet<u64>>,
}

impl Default for Slots {
    fn default() -> Slots {
        let gaps = vec![BTreeSet::new(); PAGES_MAX.ilog2() as usize + 1];
        let mut slots = Slots { taken: BTreeMap::new(), gaps };
        slots.put_gap(0..PAGES_MAX);
        slots
    }
}

impl Slots {
    fn put_gap(&mut self, gap: Range<u64>) {
        if !gap.is_empty() {
            self.gaps[(gap.end - gap.start).ilog2() as usize].insert(gap.start);
        }
    }

    fn take_gap(&mut self, gap: Range<u64>) {
        if !gap.is_empty() {
            self.gaps[(gap.end - gap.start).ilog2() as usize].remove(&gap.start);
        }
    }

    /// The first taken page from here on, or the end.
    fn next_taken(&self, page: u64) -> u64 {
        self.taken.range(page..).next().map_or(PAGES_MAX, |(&next, _)| next)
    }

    /// The first free range for an allocation of so many pages.
    pub(super) fn take(&mut self, pages: u64) -> Option<u64> {
        let needed = pages.next_power_of_two() * ROOM;
        // A power of two: whatever is no shorter than that is long enough.
        let fitting = self.gaps.get(needed.ilog2() as usize..)?;
        let start = *fitting.iter().filter_map(BTreeSet::first).min()?;
        let end = self.next_taken(start);
        self.take_gap(start..end);
        self.taken.insert(start, needed);
        self.put_gap(start + needed..end);
        Some(start)
    }

    /// Gives the range back that begins here.
    pub(super) fn free(&mut self, start: u64) {
        let Some(len) = self.taken.remove(&start) else { return };
        let before = self.taken.range(..start).next_back().map_or(0, |(&at, &len)| at + len);
        let next = self.next_taken(start);
        self.take_gap(before..start);
        self.take_gap(start + len..next);
        self.put_gap(before..next);
    }

    /// The range that a page is in.
    pub(super) fn of(&self, page: u64) -> Option<Range<u64>> {
        let (&start, &len) = self.taken.range(..=page).next_back()?;
        (page < start + len).then_some(start..start + len)
    }

    /// The parts of these pages that are given out. Ranges with none of them are free from now on.
    pub(super) fn keep(&mut self, pages: &RangeSet<u64>) -> RangeSet<u64> {
        let mut kept = RangeSet::new();
        let taken: Vec<(u64, u64)> = self.taken.iter().map(|(&at, &len)| (at, at + len)).collect();
        for (start, end) in taken {
            let mut nobodys = true;
            for part in pages.overlapping(&(start..end)) {
                kept.insert(part.start.max(start)..part.end.min(end));
                nobodys = false;
            }
            if nobodys {
                self.free(start);
            }
        }
        kept
    }

    /// Makes the range around `page` reach to `end`, if nobody has what lies behind it.
    pub(super) fn reach(&mut self, page: u64, end: u64) -> bool {
        let Some(range) = self.of(page) else { return false };
        let free_to = self.next_taken(range.end);
        if end > range.end && end <= free_to {
            self.take_gap(range.end..free_to);
            self.taken.insert(range.start, end - range.start);
            self.put_gap(end..free_to);
        }
        end <= range.end || end <= free_to
    }
}

/// A piece of memory that a forked child inherits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inherited {
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    pub(crate) offset: u64,
    pub(crate) protection: u64,
}

impl Inherited {
    pub(super) fn pages(&self) -> Range<u64> {
        let first = self.offset / PAGE_BYTES;
        first..first + self.bytes / PAGE_BYTES
    }

    /// The parts of it that show these pages.
    pub(super) fn parts(self, pages: &RangeSet<u64>) -> Vec<Inherited> {
        let own = self.pages();
        let part = |found: &Range<u64>| {
            let (first, end) = (found.start.max(own.start), found.end.min(own.end));
            Inherited {
                addr: self.addr + (first - own.start) * PAGE_BYTES,
                bytes: (end - first) * PAGE_BYTES,
                offset: first * PAGE_BYTES,
                ..self
            }
        };
        pages.overlapping(&own).map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_used_again_and_grow_into_their_room() {
        let mut slots = Slots::default();
        let (a, b) = (slots.take(300).unwrap(), slots.take(10).unwrap());
        assert_eq!((a, b), (0, 1024));
        assert_eq!(slots.of(1023), Some(0..1024));
        assert!(slots.reach(a, 1024));
        assert!(!slots.reach(a, 1025), "somebody else's");
        assert!(slots.reach(b, 5000), "nobody is behind the last");
        slots.free(a);
        assert_eq!(slots.take(20), Some(0));
        assert_eq!(slots.take(2000), Some(5000));
    }

    /// A child once began with ranges that its parent's threads were freeing as it was forked, or had
    /// not mapped yet: they stayed taken for ever. And where one was free that had just been mapped,
    /// the next allocation had the same pages.
    #[test]
    fn a_child_has_the_ranges_that_it_maps() {
        let mut slots = Slots::default();
        let [a, b, c] = [300, 10, 10].map(|pages| slots.take(pages).unwrap());
        assert_eq!((a, b, c), (0, 1024, 1056));
        // Of the first a part is mapped; the second is going; the third goes on in nobody's range.
        let mapped = [10..20, 1056..2000].into_iter().collect();
        assert_eq!(slots.keep(&mapped), [10..20, 1056..1088].into_iter().collect());
        assert_eq!(slots.of(1024), None);
        assert_eq!(slots.take(10), Some(1024));

        let at = |addr, first: u64, pages: u64| {
            let (offset, bytes) = (first * PAGE_BYTES, pages * PAGE_BYTES);
            Inherited { addr, bytes, offset, protection: 3 }
        };
        let parts = at(1 << 30, 1050, 100).parts(&[1040..1052, 1056..1088].into_iter().collect());
        let shown: Vec<_> = parts.iter().map(|part| (part.addr, part.pages())).collect();
        assert_eq!(shown, [(1 << 30, 1050..1052), ((1 << 30) + 6 * PAGE_BYTES, 1056..1088)]);
    }

    #[test]
    fn the_first_range_that_is_free_is_taken() {
        let mut slots = Slots::default();
        let mut number = 1u64;
        for step in 0..2000 {
            number = number.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let pages = 1 + (number >> 33) % 300;
            let nth = (number >> 50) as usize % slots.taken.len().max(1);
            match slots.taken.iter().nth(nth).map(|(&start, &len)| (start, len)) {
                Some((start, _)) if step % 5 < 2 => slots.free(start),
                Some((start, len)) if step % 5 == 2 => _ = slots.reach(start, start + len + pages),
                _ => {
                    let needed = pages.next_power_of_two() * ROOM;
                    let mut first = 0;
                    for (&start, &len) in &slots.taken {
                        if start - first >= needed {
                            break;
                        }
                        first = start + len;
                    }
                    assert_eq!(slots.take(pages), Some(first));
                }
            }
        }
    }
}
