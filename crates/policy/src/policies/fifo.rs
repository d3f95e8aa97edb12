//! First in, first out.
use crate::list::{Links, List};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

/// What the registry says about FIFO.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "fifo",
    aliases: &[],
    summary: "evicts the page that has been resident longest, used or not",
    helps: "no reference is known, or none repeats soon; the cheapest baseline",
    hurts: "hot pages leave as soon as cold ones; more memory can mean more faults",
    source: Source {
        title: "L. A. Belady: A Study of Replacement Algorithms for a Virtual-Storage Computer, \
                IBM Systems Journal 5(2), 1966",
        section: "Class 1 algorithms",
    },
    cost: "nothing per reference; O(1) per admission and eviction",
    bytes_per_page: 8,
    parameters: &[],
    runs: Runs::Anywhere(|_, _, _| Box::new(Fifo::new())),
};

/// First in, first out: victims in order of admission.
#[derive(Clone, Debug, Default)]
pub struct Fifo {
    links: Links,
    queue: List,
}

impl Fifo {
    /// An empty queue.
    pub const fn new() -> Self {
        Self { links: Links::new(), queue: List::new() }
    }
}

impl Policy for Fifo {
    fn wants_references(&self) -> bool {
        false
    }

    fn admitted(&mut self, page: Page, _how: Admission) {
        self.links.push_back(&mut self.queue, page);
    }

    #[inline]
    fn referenced(&mut self, _page: Page) {}

    fn removed(&mut self, page: Page) {
        self.links.remove(&mut self.queue, page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        self.links.pop_front(&mut self.queue)
    }

    fn resized(&mut self, _frames: u32) {}

    fn order(&self) -> Option<Vec<Page>> {
        Some(self.links.iter(&self.queue).collect())
    }

    fn resident(&self) -> u32 {
        self.queue.len()
    }
}
