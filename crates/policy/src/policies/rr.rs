//! Round robin.
use crate::circle::Circle;
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

/// What the registry says about round robin.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "rr",
    aliases: &["round-robin"],
    summary: "evicts the next page in address order, used or not",
    helps: "no reference is known; the cheapest in time and memory, for comparison",
    hurts: "hot pages leave as soon as cold ones, and a page just fetched may be next",
    source: Source {
        title: "S. Chang, K. Zhang: Application Specific Memory Management, University of \
                California, Berkeley, undated",
        section: "4 Page Replacement Algorithms, Round-Robin",
    },
    cost: "nothing per reference; O(1) per admission and eviction",
    bytes_per_page: 1,
    parameters: &[],
    runs: Runs::Anywhere(|_, _, _| Box::new(RoundRobin::new())),
};

/// Round robin: a hand goes round the pages in the order of their numbers and takes each that it
/// comes to. FIFO differs once pages come back: its order is that of admission.
///
/// References and how a page was admitted play no part, so sampled references and prefetched
/// pages need no care.
#[derive(Clone, Debug, Default)]
pub struct RoundRobin {
    circle: Circle,
}

impl RoundRobin {
    /// An empty circle.
    pub const fn new() -> Self {
        Self { circle: Circle::new() }
    }
}

impl Policy for RoundRobin {
    fn wants_references(&self) -> bool {
        false
    }

    fn admitted(&mut self, page: Page, _how: Admission) {
        self.circle.insert(page);
    }

    #[inline]
    fn referenced(&mut self, _page: Page) {}

    fn removed(&mut self, page: Page) {
        self.circle.remove(page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        let page = self.circle.pass()?;
        self.circle.remove(page);
        Some(page)
    }

    fn resized(&mut self, _frames: u32) {}

    fn resident(&self) -> u32 {
        self.circle.len()
    }
}
