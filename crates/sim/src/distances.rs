//! LRU stack distances: how many other pages were referenced since a page's last reference.
//!
//! A reference at distance *d* hits an LRU cache of more than *d* frames and misses a smaller one,
//! so one pass gives the hits of all sizes (Mattson, Gecsei, Slutz, Traiger: Evaluation Techniques
//! for Storage Hierarchies, IBM Systems Journal 9(2), 1970). Distances are counted with a binary
//! indexed tree over the positions of last references (Bennett and Kruskal: LRU Stack Processing,
//! IBM Journal of Research and Development 19(4), 1975).
//!
//! A page that is freed leaves a hole where it was in the stack: a free frame in every cache that
//! large. The next page that comes from below the topmost hole takes that frame, and pushes no page
//! from above it any further down; where it came from is the hole now.
use std::collections::BinaryHeap;

use pagekeeper_policy::Page;

/// The page was never referenced; there is no last reference at the position.
const NEVER: u32 = u32::MAX;
/// At the position is the hole that a page left.
const HOLE: u32 = u32::MAX - 1;

/// The LRU stack of one reference string. O(log pages) per reference, 12 to 20 bytes per page and
/// hole.
#[derive(Clone, Debug, Default)]
pub struct StackDistances {
    /// Per page: the position of its last reference.
    position: Vec<u32>,
    /// Per position: the page last referenced there, if that was its last reference.
    page: Vec<u32>,
    /// Binary indexed tree over positions, 1 where a last reference is or a hole.
    tree: Vec<u32>,
    /// The positions of holes.
    holes: BinaryHeap<u32>,
    next: u32,
    /// Pages and holes.
    depth: u32,
}

impl StackDistances {
    /// An empty stack.
    pub fn new() -> Self {
        Self::default()
    }

    /// Pages in the stack, and holes: as many frames as all of them need.
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// Takes the next reference; the page's distance, `None` the first time. Holes count in it as
    /// pages do.
    ///
    /// # Panics
    /// If more than 2³¹ distinct pages are referenced.
    pub fn reference(&mut self, page: Page) -> Option<u32> {
        if self.next as usize == self.page.len() {
            self.renumber();
        }
        if page.index() >= self.position.len() {
            self.position.resize((page.index() + 1).next_power_of_two(), NEVER);
        }
        let last = std::mem::replace(&mut self.position[page.index()], self.next);
        let known = last != NEVER;
        // Pages whose last reference is at or before `last`, this one among them.
        let distance = known.then(|| self.depth - self.sum(last));
        let hole = self.holes.peek().copied().filter(|hole| !known || *hole > last);
        match hole {
            Some(hole) => {
                self.holes.pop();
                self.leave(hole);
                if known {
                    self.page[last as usize] = HOLE;
                    self.holes.push(last);
                }
            }
            None if known => self.leave(last),
            None => self.depth += 1,
        }
        self.page[self.next as usize] = page.0;
        self.add(self.next, true);
        self.next += 1;
        distance
    }

    /// The page is freed: its next reference, if there is one, is like a first.
    pub fn remove(&mut self, page: Page) {
        let Some(position) = self.position.get_mut(page.index()) else { return };
        let position = std::mem::replace(position, NEVER);
        if position != NEVER {
            self.page[position as usize] = HOLE;
            self.holes.push(position);
        }
    }

    /// Nothing is at the position any more.
    fn leave(&mut self, position: u32) {
        self.add(position, false);
        self.page[position as usize] = NEVER;
    }

    /// Closes the gaps between positions, and makes room for as many references as there are pages.
    fn renumber(&mut self) {
        let kept: Vec<u32> = self.page.iter().copied().filter(|page| *page != NEVER).collect();
        let capacity = (kept.len() * 2).max(1024);
        self.holes.clear();
        for (position, page) in kept.iter().enumerate() {
            match *page {
                HOLE => self.holes.push(position as u32),
                page => self.position[page as usize] = position as u32,
            }
        }
        self.next = kept.len() as u32;
        self.page = kept;
        self.page.resize(capacity, NEVER);
        // A tree over a run of ones: each node holds as many as it covers.
        self.tree = vec![0; capacity + 1];
        for at in 1..=capacity {
            self.tree[at] += u32::from(at <= self.next as usize);
            let above = at + (at & at.wrapping_neg());
            if above <= capacity {
                self.tree[above] += self.tree[at];
            }
        }
    }

    fn add(&mut self, position: u32, present: bool) {
        let mut at = position as usize + 1;
        while at < self.tree.len() {
            self.tree[at] = if present { self.tree[at] + 1 } else { self.tree[at] - 1 };
            at += at & at.wrapping_neg();
        }
    }

    /// Last references at positions up to and including this one.
    fn sum(&self, position: u32) -> u32 {
        let (mut at, mut sum) = (position as usize + 1, 0);
        while at > 0 {
            sum += self.tree[at];
            at &= at - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn distances_are_places_in_a_stack(
            calls in prop::collection::vec((prop::bool::weighted(0.9), 0..40_u32), 0..4000)
        ) {
            let mut distances = StackDistances::new();
            let mut stack: Vec<Option<u32>> = Vec::new();
            for (is_reference, page) in calls {
                let place = stack.iter().position(|other| *other == Some(page));
                if !is_reference {
                    distances.remove(Page(page));
                    place.into_iter().for_each(|place| stack[place] = None);
                    continue;
                }
                prop_assert_eq!(distances.reference(Page(page)), place.map(|p| p as u32));
                place.into_iter().for_each(|place| stack[place] = None);
                if let Some(free) = stack.iter().position(Option::is_none) {
                    stack.remove(free);
                }
                stack.insert(0, Some(page));
                prop_assert_eq!(distances.depth() as usize, stack.len());
            }
        }
    }
}
