//! Least frequently used.
use crate::counts::Counts;
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

/// What the registry says about LFU.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "lfu",
    aliases: &[],
    summary: "evicts the page used least often since it came in; of equals, the first there",
    helps: "some pages are always used more than others: fixed, skewed popularity; scans past it",
    hurts: "a working set that moves: pages once hot stay, and newcomers push out each other",
    source: Source {
        title: "A. Silberschatz, P. B. Galvin: Operating System Concepts, Addison-Wesley, 1994",
        section: "Virtual memory, counting algorithms",
    },
    cost: "O(1) per reference, admission and eviction",
    bytes_per_page: 12,
    parameters: &[],
    runs: Runs::Anywhere(|_, _, _| Box::new(Lfu::new())),
};

/// Least frequently used, with counts of uses since admission, forgotten on eviction. Of pages
/// used equally often, the one that came to that count first leaves first.
///
/// Only references that are seen count. A prefetched page counts as used once, and the first
/// reference seen is that use: pages fetched ahead of a scan look no hotter than others.
#[derive(Clone, Debug, Default)]
pub struct Lfu {
    counts: Counts,
}

impl Lfu {
    /// No pages.
    pub const fn new() -> Self {
        Self { counts: Counts::new() }
    }
}

impl Policy for Lfu {
    fn admitted(&mut self, page: Page, how: Admission) {
        self.counts.insert(page, how, false);
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        self.counts.used(page);
    }

    fn removed(&mut self, page: Page) {
        self.counts.remove(page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        let page = self.counts.least_used()?;
        self.counts.remove(page);
        Some(page)
    }

    fn resized(&mut self, _frames: u32) {}

    fn resident(&self) -> u32 {
        self.counts.len()
    }
}
