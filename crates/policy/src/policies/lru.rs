//! Least recently used.
use crate::list::{Links, List};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

/// What the registry says about LRU.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "lru",
    aliases: &[],
    summary: "evicts the page that was not referenced for the longest time",
    helps: "recently used pages are used again soon; most programs, skewed lookups",
    hurts: "loops and scans larger than memory: every page leaves just before its next use",
    source: Source {
        title: "R. L. Mattson, J. Gecsei, D. R. Slutz, I. L. Traiger: Evaluation Techniques for \
                Storage Hierarchies, IBM Systems Journal 9(2), 1970",
        section: "Stack algorithms",
    },
    cost: "O(1) per reference, admission and eviction",
    bytes_per_page: 8,
    parameters: &[],
    runs: Runs::Anywhere(|_, _, _| Box::new(Lru::new())),
};

/// Least recently used: one list in order of last reference, victims from the old end.
///
/// A prefetched page counts as just used, so that it survives until its use.
#[derive(Clone, Debug, Default)]
pub struct Lru {
    links: Links,
    order: List,
}

impl Lru {
    /// An empty LRU list.
    pub const fn new() -> Self {
        Self { links: Links::new(), order: List::new() }
    }
}

impl Policy for Lru {
    fn admitted(&mut self, page: Page, _how: Admission) {
        self.links.push_back(&mut self.order, page);
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        self.links.move_to_back(&mut self.order, page);
    }

    fn removed(&mut self, page: Page) {
        self.links.remove(&mut self.order, page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        self.links.pop_front(&mut self.order)
    }

    fn resized(&mut self, _frames: u32) {}

    fn order(&self) -> Option<Vec<Page>> {
        Some(self.links.iter(&self.order).collect())
    }

    fn resident(&self) -> u32 {
        self.order.len()
    }
}
