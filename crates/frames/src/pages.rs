//! Dense page numbers: which page of which segment a number stands for.
//!
//! Segments are numbered by the caller; their pages get dense numbers in extents of
//! [`EXTENT_PAGES`], given out when a page of the extent is first asked for. A sparse terabyte
//! costs nothing until it is touched, and everything kept per page lives in flat arrays.

use pagekeeper_policy::{Page, Place, Segment};
use std::num::NonZeroU32;

/// Pages that get neighbouring numbers. A power of two. Each number costs what is kept per page, used or
/// not, so a file of a page costs this many; fewer cost more for each extent.
pub const EXTENT_PAGES: u32 = 4;
/// Extents under one node of the two-level table.
const NODE_EXTENTS: usize = 1024;

/// Which part of which segment an extent is. Packed, since there is one for each few pages.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
struct Extent {
    /// The segment's number and 1.
    segment: NonZeroU32,
    /// Its first page over [`EXTENT_PAGES`].
    index: u64,
}

const _: () = assert!(size_of::<Option<Extent>>() == 12);

impl Extent {
    fn of(place: Place) -> Extent {
        let segment = place.segment.0.checked_add(1).and_then(NonZeroU32::new);
        let segment = segment.expect("fewer segments than numbers");
        Extent { segment, index: place.index / u64::from(EXTENT_PAGES) }
    }

    fn first(self) -> Place {
        let Extent { segment, index } = self;
        Place { segment: Segment(segment.get() - 1), index: index * u64::from(EXTENT_PAGES) }
    }
}

#[derive(Default)]
struct Table {
    pages: u64,
    open: bool,
    /// Extent number + 1, or 0, of up to [`NODE_EXTENTS`] extents each: no more than were numbered, so
    /// that a small file costs little.
    nodes: Vec<Vec<u32>>,
}

/// The two-way map between places and dense numbers.
#[derive(Default)]
pub struct PageMap {
    segments: Vec<Table>,
    /// What each extent is; `None` while it is free.
    extents: Vec<Option<Extent>>,
    free: Vec<u32>,
}

impl PageMap {
    /// Declares a segment or changes its length in pages.
    pub fn set_pages(&mut self, segment: Segment, pages: u64) {
        let at = segment.0 as usize;
        if at >= self.segments.len() {
            self.segments.resize_with(at + 1, Table::default);
        }
        self.segments[at].pages = pages;
        self.segments[at].open = true;
    }

    /// The segment's length in pages; 0 when it is not declared.
    pub fn pages(&self, segment: Segment) -> u64 {
        self.segments.get(segment.0 as usize).map_or(0, |t| t.pages)
    }

    /// The number of a page, if its extent has numbers.
    #[inline]
    pub fn find(&self, place: Place) -> Option<Page> {
        let table = self.segments.get(place.segment.0 as usize)?;
        let extent = place.index / u64::from(EXTENT_PAGES);
        let node = table.nodes.get((extent as usize) / NODE_EXTENTS)?;
        let number = *node.get((extent as usize) % NODE_EXTENTS)?;
        (number != 0).then(|| {
            Page((number - 1) * EXTENT_PAGES + (place.index % u64::from(EXTENT_PAGES)) as u32)
        })
    }

    /// The number of a page; numbers its extent if needed.
    ///
    /// # Panics
    /// When the segment was never declared, or all 2³² numbers are in use (16 TiB of touched
    /// pages).
    pub fn number(&mut self, place: Place) -> Page {
        if let Some(page) = self.find(place) {
            return page;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.extents.push(None);
            (self.extents.len() - 1) as u32
        });
        assert!(number < u32::MAX / EXTENT_PAGES, "out of page numbers");
        self.extents[number as usize] = Some(Extent::of(place));
        let extent = (place.index / u64::from(EXTENT_PAGES)) as usize;
        let nodes = &mut self.segments[place.segment.0 as usize].nodes;
        if nodes.len() <= extent / NODE_EXTENTS {
            nodes.resize_with(extent / NODE_EXTENTS + 1, Vec::new);
        }
        let (node, at) = (&mut nodes[extent / NODE_EXTENTS], extent % NODE_EXTENTS);
        if node.len() <= at {
            let len = (at + 1).next_power_of_two();
            node.reserve_exact(len - node.len());
            node.resize(len, 0);
        }
        node[at] = number + 1;
        Page(number * EXTENT_PAGES + (place.index % u64::from(EXTENT_PAGES)) as u32)
    }

    /// Where a numbered page lives.
    ///
    /// # Panics
    /// When the number is not in use.
    #[inline]
    pub fn place(&self, page: Page) -> Place {
        let extent = self.extents[(page.0 / EXTENT_PAGES) as usize].expect("page number in use");
        let first = extent.first();
        Place { index: first.index + u64::from(page.0 % EXTENT_PAGES), ..first }
    }

    /// Dense numbers given out so far, in use or free: the length that per-page arrays need.
    pub fn len(&self) -> u32 {
        self.extents.len() as u32 * EXTENT_PAGES
    }

    /// Numbers in use.
    pub fn used(&self) -> u32 {
        (self.extents.len() - self.free.len()) as u32 * EXTENT_PAGES
    }

    /// Whether no number was ever given out.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Numbers of the segment's extents that overlap the page range, as `(first page, place)`.
    pub fn numbered(&self, segment: Segment, first: u64, pages: u64) -> Vec<(Page, Place)> {
        let mut found = Vec::new();
        let Some(table) = self.segments.get(segment.0 as usize) else { return found };
        let extents = (table.nodes.len() * NODE_EXTENTS) as u64;
        let from = first / u64::from(EXTENT_PAGES);
        let to = first.saturating_add(pages).div_ceil(u64::from(EXTENT_PAGES)).min(extents);
        let mut extent = from;
        while extent < to {
            let node = &table.nodes[extent as usize / NODE_EXTENTS];
            let Some(&number) = node.get(extent as usize % NODE_EXTENTS) else {
                extent = (extent / NODE_EXTENTS as u64 + 1) * NODE_EXTENTS as u64;
                continue;
            };
            if number != 0 {
                let index = extent * u64::from(EXTENT_PAGES);
                found.push((Page((number - 1) * EXTENT_PAGES), Place { segment, index }));
            }
            extent += 1;
        }
        found
    }

    /// Forgets a segment; its numbers may be given out again.
    pub fn close(&mut self, segment: Segment) {
        for (page, _) in self.numbered(segment, 0, u64::MAX) {
            let number = page.0 / EXTENT_PAGES;
            self.extents[number as usize] = None;
            self.free.push(number);
        }
        if let Some(table) = self.segments.get_mut(segment.0 as usize) {
            *table = Table::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_dense_stable_and_reused() {
        let mut map = PageMap::default();
        let (a, b) = (Segment(0), Segment(3));
        map.set_pages(a, 1 << 40);
        map.set_pages(b, 100);
        let far = Place { segment: a, index: (1 << 40) - 1 };
        let page = map.number(far);
        assert_eq!(map.number(far), page);
        assert_eq!(map.place(page), far);
        assert_eq!(map.len(), EXTENT_PAGES);
        let near = map.number(Place { segment: b, index: 3 });
        assert_eq!(near, Page(EXTENT_PAGES + 3));
        assert_eq!(map.numbered(b, 0, 1).len(), 1);
        map.close(a);
        assert_eq!(map.find(far), None);
        let again = map.number(Place { segment: b, index: 99 });
        assert_eq!(again.0 / EXTENT_PAGES, 0, "the freed extent is used again");
        assert_eq!(map.place(near), Place { segment: b, index: 3 });
    }
}
