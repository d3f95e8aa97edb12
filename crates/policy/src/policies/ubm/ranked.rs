//! Pages in order of a number that changes: a binary heap with the place of each page kept.
//!
//! [`Rising`](crate::rising) would do, as ranks only rise here, but takes 12 bytes more for each
//! resident page, in the one policy that already remembers most.
use crate::Page;
use crate::flat::Flat;

/// The page of the lowest rank is at the top. O(log n) per change, 8 bytes per page besides the
/// ranks (8 bytes).
#[derive(Clone, Debug, Default)]
pub(super) struct Ranked {
    heap: Vec<u32>,
    /// Place in the heap + 1.
    place: Flat<u32>,
    rank: Flat<f64>,
}

impl Ranked {
    /// The rank of a page, also of one that is not in the heap; 0 if it never had one.
    pub(super) fn rank(&self, page: Page) -> f64 {
        self.rank.get(page.index())
    }

    /// Sets the rank of a page, in the heap or not.
    pub(super) fn set_rank(&mut self, page: Page, rank: f64) {
        let before = std::mem::replace(self.rank.slot(page.index()), rank);
        let place = self.place.get(page.index()) as usize;
        if place > 0 {
            if rank < before { self.up(place - 1) } else { self.down(place - 1) }
        }
    }

    pub(super) fn insert(&mut self, page: Page) {
        self.heap.push(page.0);
        *self.place.slot(page.index()) = self.heap.len() as u32;
        self.rank.slot(page.index());
        self.up(self.heap.len() - 1);
    }

    pub(super) fn remove(&mut self, page: Page) {
        let place = std::mem::take(self.place.at(page.index())) as usize - 1;
        let Some(moved) = self.heap.pop() else { return };
        if place < self.heap.len() {
            self.set(place, moved);
            self.up(place);
            self.down(self.place.get(moved as usize) as usize - 1);
        }
    }

    /// The page of the lowest rank.
    pub(super) fn lowest(&self) -> Option<Page> {
        self.heap.first().copied().map(Page)
    }

    fn before(&self, left: u32, right: u32) -> bool {
        let (a, b) = (self.rank.get(left as usize), self.rank.get(right as usize));
        a.total_cmp(&b).then(left.cmp(&right)).is_lt()
    }

    fn set(&mut self, place: usize, page: u32) {
        self.heap[place] = page;
        *self.place.at(page as usize) = place as u32 + 1;
    }

    fn up(&mut self, mut place: usize) {
        let page = self.heap[place];
        while place > 0 {
            let parent = (place - 1) / 2;
            if !self.before(page, self.heap[parent]) {
                break;
            }
            self.set(place, self.heap[parent]);
            place = parent;
        }
        self.set(place, page);
    }

    fn down(&mut self, mut place: usize) {
        let page = self.heap[place];
        loop {
            let mut child = 2 * place + 1;
            if child >= self.heap.len() {
                break;
            }
            if child + 1 < self.heap.len() && self.before(self.heap[child + 1], self.heap[child]) {
                child += 1;
            }
            if !self.before(self.heap[child], page) {
                break;
            }
            self.set(place, self.heap[child]);
            place = child;
        }
        self.set(place, page);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a map that is searched through.
        #[test]
        fn the_lowest_is_on_top(steps in prop::collection::vec((0..4_u8, 0..20_u32, 0..9_u8), 0..300)) {
            let mut ranked = Ranked::default();
            let mut ranks: BTreeMap<u32, f64> = BTreeMap::new();
            let mut held: BTreeMap<u32, ()> = BTreeMap::new();
            for (operation, page, rank) in steps {
                match (operation, held.contains_key(&page)) {
                    (0, false) => {
                        ranked.insert(Page(page));
                        held.insert(page, ());
                    }
                    (1, true) => {
                        ranked.remove(Page(page));
                        held.remove(&page);
                    }
                    _ => {
                        ranked.set_rank(Page(page), rank.into());
                        ranks.insert(page, rank.into());
                    }
                }
                let rank = |page: &u32| ranks.get(page).copied().unwrap_or_default();
                let lowest = held.keys().min_by(|a, b| rank(a).total_cmp(&rank(b)).then(a.cmp(b)));
                prop_assert_eq!(ranked.lowest(), lowest.copied().map(Page));
            }
        }
    }
}
