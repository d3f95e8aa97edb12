//! Where a file is mapped. A heap is mapped in as many pieces as its process has allocations, so
//! nothing here looks at all of them.

use crate::engine::spaces::Mapping;
use crate::port::SpaceNo;
use std::collections::BTreeMap;
use std::ops::Range;

/// The mappings of one file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mappings {
    by_address: BTreeMap<(SpaceNo, u64), Mapping>,
    /// For each power of two, those that are no longer, by their first page: only what begins so
    /// close before a page can reach it.
    by_page: Vec<(u32, BTreeMap<ByPage, Mapping>)>,
    /// How often any of it changed.
    changes: u64,
}

/// First page; space and address make it unique.
type ByPage = (u64, SpaceNo, u64);

fn keys(mapping: &Mapping) -> (u32, ByPage) {
    let length = mapping.pages().next_power_of_two().trailing_zeros();
    (length, (mapping.first, mapping.space, mapping.start))
}

impl Mappings {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.by_address.values()
    }

    /// How often there was another mapping than before, or one less: what moved away and back is where it
    /// was.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// Those that show some of these pages.
    pub(crate) fn overlapping(&self, pages: Range<u64>) -> impl Iterator<Item = &Mapping> {
        let (first, end) = (pages.start, pages.end);
        self.by_page
            .iter()
            .flat_map(move |(length, all)| {
                let from = first.saturating_sub((1 << length) - 1);
                all.range((from, 0, 0)..(end.max(from), 0, 0)).map(|(_, mapping)| mapping)
            })
            .filter(move |mapping| mapping.overlap(first, end - first).is_some())
    }

    fn insert(&mut self, mapping: Mapping) {
        let (length, key) = keys(&mapping);
        self.by_address.insert((mapping.space, mapping.start), mapping);
        let at = match self.by_page.iter().position(|(l, _)| *l == length) {
            Some(at) => at,
            None => {
                self.by_page.push((length, BTreeMap::new()));
                self.by_page.len() - 1
            }
        };
        self.by_page[at].1.insert(key, mapping);
    }

    fn remove(&mut self, mapping: &Mapping) {
        let (length, key) = keys(mapping);
        self.by_address.remove(&(mapping.space, mapping.start));
        if let Some(at) = self.by_page.iter().position(|(l, _)| *l == length) {
            let all = &mut self.by_page[at].1;
            all.remove(&key);
            if all.is_empty() {
                self.by_page.swap_remove(at);
            }
        }
    }

    /// Brings what lies in a range of a space, or touches it, up to date with what is mapped there.
    pub(crate) fn refresh(
        &mut self,
        space: SpaceNo,
        range: &Range<u64>,
        now: impl Iterator<Item = Mapping>,
    ) {
        let before = self.by_address.range((space, 0)..(space, range.start)).next_back();
        let before = before.filter(|(_, mapping)| mapping.end >= range.start);
        let inside = self.by_address.range((space, range.start)..=(space, range.end));
        let old: Vec<Mapping> = before.into_iter().chain(inside).map(|(_, m)| *m).collect();
        let now: Vec<Mapping> = now.collect();
        self.changes += u64::from(old != now);
        old.iter().for_each(|mapping| self.remove(mapping));
        now.into_iter().for_each(|mapping| self.insert(mapping));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::spaces::{Region, Space};
    use crate::port::PAGE_BYTES;

    /// What is kept of a space while it changes is what a look at all of it finds.
    #[test]
    fn what_changes_is_all_that_is_looked_at() {
        let mut number = 1u64;
        let mut below = move |most: u64| {
            number = number.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (number >> 33) % most
        };
        let (mut space, mut kept) = (Space::default(), Mappings::default());
        for step in 0..3000 {
            let mut some = |most: u64| (1 + below(most)) * PAGE_BYTES;
            let (at, bytes, offset) = (some(200), some(30), some(6) * 40);
            let range = at..at + bytes;
            match step % 3 {
                0 => drop(space.unmap(range.clone())),
                1 => {
                    let to = some(200);
                    space.remap(at, to, bytes, bytes);
                    let moved = to..to + bytes;
                    kept.refresh(7, &moved, space.mappings_of(7, 3, &moved));
                }
                _ => {
                    let region = Region {
                        file: 3,
                        bias: offset,
                        shared: true,
                        read_only: false,
                        library: false,
                    };
                    space.regions.insert(range.clone(), region);
                }
            }
            kept.refresh(7, &range, space.mappings_of(7, 3, &range));
            let all: Vec<Mapping> = space.mappings_of(7, 3, &(0..u64::MAX)).collect();
            assert!(kept.iter().eq(all.iter()), "step {step}");
            let first = below(600);
            let pages = first..first + 1 + below(60);
            let mut found: Vec<Mapping> = kept.overlapping(pages.clone()).copied().collect();
            found.sort_by_key(|mapping| mapping.start);
            let shows = |m: &&Mapping| m.overlap(pages.start, pages.end - pages.start).is_some();
            assert!(found.iter().eq(all.iter().filter(shows)), "step {step}");
        }
    }
}
