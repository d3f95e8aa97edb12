//! A priority queue of pages whose keys only rise: the least key leaves first.
//!
//! That keys only rise is what makes references free here. An entry's key is what the page's was
//! when the entry was written, so never more than it is now; only an entry that comes to the top
//! is compared with the page's present key, and goes back down if that is higher.
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::Page;
use crate::flat::Flat;

/// Entries of pages that are no longer in that are kept however few pages are.
const DEAD_MIN: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Entry<K> {
    key: K,
    page: Page,
    turn: u32,
}

/// The queue: 4 bytes per page number and an entry per page that is in. O(log n) per insertion and
/// victim; what changed keys cost is paid by the victims, at most O(log n) for each change.
#[derive(Clone, Debug)]
pub(crate) struct Rising<K> {
    heap: BinaryHeap<Reverse<Entry<K>>>,
    /// Twice the number of times the page was in before; odd while it is in. Entries with another
    /// number are dead. It would have to wrap while an entry waits for one to come alive again.
    turns: Flat<u32>,
    len: u32,
}

impl<K: Ord + Copy> Rising<K> {
    /// No pages.
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), turns: Flat::new(), len: 0 }
    }

    /// Number of pages.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// Whether the page is in.
    pub(crate) fn contains(&self, page: Page) -> bool {
        self.turns.get(page.index()) & 1 == 1
    }

    /// Adds a page.
    ///
    /// # Panics
    /// If it is in already, or above [`Page::MAX`].
    pub(crate) fn insert(&mut self, page: Page, key: K) {
        assert!(page <= Page::MAX, "page {} is above Page::MAX", page.0);
        let turn = self.turns.slot(page.index());
        assert!(*turn & 1 == 0, "page {} is resident in this policy already", page.0);
        *turn = turn.wrapping_add(1);
        self.heap.push(Reverse(Entry { key, page, turn: *turn }));
        self.len += 1;
    }

    /// Takes a page out.
    ///
    /// # Panics
    /// If it is not in.
    pub(crate) fn remove(&mut self, page: Page) {
        assert!(self.contains(page), "page {} is not resident in this policy", page.0);
        self.forget(page);
        if self.heap.len() > 2 * self.len as usize + DEAD_MIN {
            let turns = &self.turns;
            self.heap.retain(|Reverse(entry)| turns.get(entry.page.index()) == entry.turn);
        }
    }

    /// Takes out the page of the least key. `key` gives a page's present key, not below any that
    /// it had since it came in.
    pub(crate) fn take_least(&mut self, key: impl Fn(Page) -> K) -> Option<Page> {
        self.take_least_if(key, |_| true)
    }

    /// Takes out the page of the least key, if that is `wanted`.
    pub(crate) fn take_least_if(
        &mut self,
        key: impl Fn(Page) -> K,
        wanted: impl Fn(K) -> bool,
    ) -> Option<Page> {
        loop {
            let mut top = self.heap.peek_mut()?;
            let Entry { page, turn, .. } = top.0;
            if self.turns.get(page.index()) != turn {
                PeekMut::pop(top);
                continue;
            }
            let present = key(page);
            if present == top.0.key {
                if !wanted(present) {
                    return None;
                }
                PeekMut::pop(top);
                self.forget(page);
                return Some(page);
            }
            debug_assert!(present > top.0.key, "the key of page {} fell", page.0);
            top.0.key = present;
        }
    }

    fn forget(&mut self, page: Page) {
        let turn = self.turns.at(page.index());
        *turn = turn.wrapping_add(1);
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a map that is searched for its least key. Pages that leave and come back may
        /// have a lower key than the entries that they left.
        #[test]
        fn the_least_key_leaves(steps in prop::collection::vec((0..6_u8, 0..12_u32, 0..9_u64), 0..400)) {
            let mut queue = Rising::new();
            let mut model: BTreeMap<Page, u64> = BTreeMap::new();
            for (operation, number, amount) in steps {
                let page = Page(number);
                prop_assert_eq!(queue.contains(page), model.contains_key(&page));
                match (operation, model.get_mut(&page)) {
                    (0 | 1, None) => {
                        queue.insert(page, amount);
                        model.insert(page, amount);
                    }
                    (2 | 3, Some(key)) => *key += amount,
                    (4, Some(_)) => {
                        queue.remove(page);
                        model.remove(&page);
                    }
                    (5, _) => {
                        let least = model.iter().map(|(page, key)| (*key, *page)).min();
                        prop_assert_eq!(queue.take_least(|page| model[&page]), least.map(|l| l.1));
                        least.map(|(_, page)| model.remove(&page));
                    }
                    _ => {}
                }
                prop_assert_eq!(queue.len() as usize, model.len());
            }
        }
    }

    /// Pages that are removed and come back for ever, and never a victim: entries stay few.
    #[test]
    fn dead_entries_do_not_pile_up() {
        let mut queue = Rising::new();
        for round in 0..1000 {
            (0..10).for_each(|page| queue.insert(Page(page), round));
            (0..10).for_each(|page| queue.remove(Page(page)));
        }
        assert!(queue.heap.len() <= 2 * 10 + DEAD_MIN, "{}", queue.heap.len());
    }
}
