//! LRU stack distances: how many other pages were referenced since a page's last reference.
//!
//! A reference at distance *d* hits an LRU cache of more than *d* frames and misses a smaller one,
//! so one pass gives the hits of all sizes (Mattson, Gecsei, Slutz, Traiger: Evaluation Techniques
//! for Storage Hierarchies, IBM Systems Journal 9(2), 1970). Distances are counted with a binary
//! indexed tree over the positions of last references (Bennett and Kruskal: LRU Stack Processing,
//! IBM Journal of Research and Development 19(4), 1975).
use pagekeeper_policy::Page;

/// The page was never referenced.
const NEVER: u32 = u32::MAX;

/// The LRU stack of one reference string. O(log pages) per reference, 12 to 20 bytes per page.
#[derive(Clone, Debug, Default)]
pub struct StackDistances {
    /// Per page: the position of its last reference.
    position: Vec<u32>,
    /// Per position: the page last referenced there, if that was its last reference.
    page: Vec<u32>,
    /// Binary indexed tree over positions, 1 where a last reference is.
    tree: Vec<u32>,
    next: u32,
    pages: u32,
}

impl StackDistances {
    /// An empty stack.
    pub fn new() -> Self {
        Self::default()
    }

    /// Distinct pages referenced so far.
    pub const fn pages(&self) -> u32 {
        self.pages
    }

    /// Takes the next reference; the page's distance, `None` the first time.
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
        let distance = if last == NEVER {
            self.pages += 1;
            None
        } else {
            // Pages whose last reference is at or before `last`, this one among them.
            let older = self.sum(last);
            self.add(last, false);
            self.page[last as usize] = NEVER;
            Some(self.pages - older)
        };
        self.page[self.next as usize] = page.0;
        self.add(self.next, true);
        self.next += 1;
        distance
    }

    /// Closes the gaps between positions, and makes room for as many references as there are pages.
    fn renumber(&mut self) {
        let kept: Vec<u32> = self.page.iter().copied().filter(|page| *page != NEVER).collect();
        let capacity = (kept.len() * 2).max(1024);
        for (position, page) in kept.iter().enumerate() {
            self.position[*page as usize] = position as u32;
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
        fn distances_are_places_in_a_stack(pages in prop::collection::vec(0..40_u32, 0..4000)) {
            let mut distances = StackDistances::new();
            let mut stack: Vec<u32> = Vec::new();
            for page in pages {
                let place = stack.iter().rev().position(|other| *other == page);
                prop_assert_eq!(distances.reference(Page(page)), place.map(|p| p as u32));
                stack.retain(|other| *other != page);
                stack.push(page);
                prop_assert_eq!(distances.pages() as usize, stack.len());
            }
        }
    }
}
