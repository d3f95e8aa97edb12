//! Address spaces and what they map.

use crate::engine::around::Walks;
use crate::engine::heap::Order;
use crate::port::{FileNo, PAGE_BYTES, SpaceNo};
use rangemap::RangeMap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// How an address range maps a file. Two neighbouring ranges with equal `Region`s are one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Which file.
    pub file: FileNo,
    /// File offset minus address, wrapping.
    pub bias: u64,
    /// Stores go to the file (otherwise to a private copy).
    pub shared: bool,
    /// The program asked for a shared mapping but may not write the file: it is mapped privately,
    /// and must never become writable.
    pub read_only: bool,
    /// It is none of the program's: the preload library copies from it while the program has the
    /// file open.
    pub library: bool,
}

impl Region {
    /// Page index in the file of an address in the region.
    pub fn index(&self, addr: u64) -> u64 {
        addr.wrapping_add(self.bias) / PAGE_BYTES
    }

    /// Whether it shows the same of the same file as another, so that the kernel may have made both of one
    /// mapping.
    pub(crate) fn may_continue(&self, other: &Region) -> bool {
        (self.file, self.bias, self.shared) == (other.file, other.bias, other.shared)
    }
}

/// One process image.
#[derive(Clone, Debug, Default)]
pub struct Space {
    /// Process id; 0 while unknown (a forked child that has not faulted yet).
    pub pid: u32,
    /// Address of the page that a forked child touches to say who it is; 0 if there is none.
    pub probe: u64,
    /// What is mapped where.
    pub regions: RangeMap<u64, Region>,
    /// Pages of private regions that were written and so are the program's own.
    pub private: BTreeSet<u64>,
    /// Those of them that were copied as a whole. The kernel copies pages of the machine's size by
    /// itself, which are not in here.
    pub(crate) copied: BTreeSet<u64>,
    /// How faults on pages that count as mapped went on.
    pub(crate) walks: Walks,
    /// Pages of heap memory that the library is about to drop from here, and that keep their content: how
    /// often each. (Who goes on when an event was read may announce another one before it is applied.)
    pub(crate) mends: BTreeMap<u64, u32>,
    /// In which order it changed.
    pub(crate) order: Order,
}

/// A mapping of one file, as the file sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// In which space.
    pub space: SpaceNo,
    /// First address.
    pub start: u64,
    /// End address.
    pub end: u64,
    /// Page index at the first address.
    pub first: u64,
    /// Stores go to the file.
    pub shared: bool,
    /// It is none of the program's: see [`Region::library`].
    pub library: bool,
}

impl Mapping {
    /// How many pages of the machine's it is long.
    pub(crate) fn pages(&self) -> u64 {
        (self.end - self.start) / PAGE_BYTES
    }

    /// The address range of the pages `index..index + pages` in this mapping, as (address, pages).
    pub fn overlap(&self, index: u64, pages: u64) -> Option<(u64, u64)> {
        let last = self.first + self.pages();
        let from = index.max(self.first);
        let to = (index + pages).min(last);
        (from < to).then(|| (self.start + (from - self.first) * PAGE_BYTES, to - from))
    }
}

impl Space {
    /// The region at an address.
    pub fn region(&self, addr: u64) -> Option<Region> {
        self.regions.get(&addr).copied()
    }

    /// Whether this whole range is part of one region that equals `region`.
    pub fn covers(&self, range: Range<u64>, region: Region) -> bool {
        self.regions
            .get_key_value(&range.start)
            .is_some_and(|(known, what)| *what == region && range.end <= known.end)
    }

    /// The mappings of one file that lie in a range of this space, or touch it.
    pub(crate) fn mappings_of(
        &self,
        space: SpaceNo,
        file: FileNo,
        range: &Range<u64>,
    ) -> impl Iterator<Item = Mapping> {
        let wider = range.start.saturating_sub(1)..range.end.saturating_add(1);
        let regions = self.regions.overlapping(wider);
        regions.filter(move |(_, r)| r.file == file).map(move |(range, r)| Mapping {
            space,
            start: range.start,
            end: range.end,
            first: r.index(range.start),
            shared: r.shared,
            library: r.library,
        })
    }

    /// The files that are mapped in a range, each once.
    pub(crate) fn files(&self, range: &Range<u64>) -> Vec<FileNo> {
        let mut files: Vec<FileNo> = self.regions.overlapping(range).map(|(_, r)| r.file).collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Forgets a range; returns the files that were mapped in it.
    pub fn unmap(&mut self, range: Range<u64>) -> Vec<FileNo> {
        if range.is_empty() {
            return Vec::new();
        }
        let files = self.files(&range);
        self.regions.remove(range.clone());
        self.forget_private(range);
        files
    }

    /// The library is about to drop a page from here, which keeps its content.
    pub(crate) fn mends(&mut self, addr: u64) {
        *self.mends.entry(addr).or_default() += 1;
    }

    /// Whether it is the library that dropped pages from this address on.
    pub(crate) fn is_mended(&mut self, addr: u64) -> bool {
        let Some(count) = self.mends.get_mut(&addr) else { return false };
        *count -= 1;
        if *count == 0 {
            self.mends.remove(&addr);
        }
        true
    }

    /// Forgets the private copies of a range.
    pub fn forget_private(&mut self, range: Range<u64>) {
        for copies in [&mut self.private, &mut self.copied] {
            let gone: Vec<u64> = copies.range(range.clone()).copied().collect();
            gone.iter().for_each(|addr| _ = copies.remove(addr));
        }
    }

    /// Moves a range to another address (`mremap(2)`), where it is shorter or longer; returns the files
    /// concerned.
    pub fn remap(&mut self, from: u64, to: u64, old_len: u64, new_len: u64) -> Vec<FileNo> {
        let old = from..from + old_len;
        let moved: Vec<(Range<u64>, Region)> = self
            .regions
            .overlapping(&old)
            .map(|(r, v)| (r.start.max(old.start)..r.end.min(old.end), *v))
            .collect();
        let private: Vec<u64> = self.private.range(old.clone()).copied().collect();
        let old_end = old.end;
        let mut files = self.unmap(old);
        files.extend(self.unmap(to..to + new_len));
        let shift = to.wrapping_sub(from);
        let last = moved.len().saturating_sub(1);
        for (i, (range, mut region)) in moved.into_iter().enumerate() {
            region.bias = region.bias.wrapping_sub(shift);
            let start = range.start.wrapping_add(shift);
            let mut end = range.end.wrapping_add(shift);
            if i == last && range.end == old_end {
                end = end.max(to + new_len);
            }
            end = end.min(to + new_len);
            files.push(region.file);
            // What is cut off is nowhere.
            if start < end {
                self.regions.insert(start..end, region);
            }
        }
        let moved = private.iter().map(|addr| addr.wrapping_add(shift));
        self.private.extend(moved.filter(|addr| *addr < to + new_len));
        files.sort_unstable();
        files.dedup();
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(file: FileNo, start: u64, first: u64) -> Region {
        Region {
            file,
            bias: (first * PAGE_BYTES).wrapping_sub(start),
            shared: true,
            read_only: false,
            library: false,
        }
    }

    #[test]
    fn partial_unmap_and_remap_keep_offsets() {
        let mut space = Space::default();
        let base = 0x7000_0000;
        space.regions.insert(base..base + 10 * PAGE_BYTES, region(1, base, 5));
        space.private.insert(base + 8 * PAGE_BYTES);
        assert_eq!(space.unmap(base + 2 * PAGE_BYTES..base + 4 * PAGE_BYTES), [1]);
        let maps: Vec<Mapping> = space.mappings_of(0, 1, &(0..u64::MAX)).collect();
        assert_eq!(maps.len(), 2);
        assert_eq!((maps[1].first, maps[1].start), (9, base + 4 * PAGE_BYTES));
        assert_eq!(maps[1].overlap(10, 100), Some((base + 5 * PAGE_BYTES, 5)));

        let to = 0x9000_0000;
        let files = space.remap(base + 4 * PAGE_BYTES, to, 6 * PAGE_BYTES, 8 * PAGE_BYTES);
        assert_eq!(files, [1]);
        assert_eq!(space.region(to).unwrap().index(to), 9);
        assert_eq!(space.region(to + 7 * PAGE_BYTES).unwrap().index(to + 7 * PAGE_BYTES), 16);
        assert!(space.region(base + 5 * PAGE_BYTES).is_none());
        assert!(space.private.contains(&(to + 4 * PAGE_BYTES)));

        // Shorter than its first piece, of two.
        space.regions.insert(to + 8 * PAGE_BYTES..to + 9 * PAGE_BYTES, region(2, to, 0));
        assert_eq!(space.remap(to, base, 9 * PAGE_BYTES, 3 * PAGE_BYTES), [1, 2]);
        assert!(space.covers(base..base + 3 * PAGE_BYTES, region(1, base, 9)));
        assert_eq!((space.regions.len(), space.private.len()), (1, 0));
    }
}
