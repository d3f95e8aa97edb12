//! CLOCK with one reference bit.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

/// What the registry says about CLOCK.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "clock",
    aliases: &["second-chance"],
    summary: "first in, first out, but a page referenced since the hand passed gets another round",
    helps: "as LRU, where a reference can only set a bit: nearly its hit ratio, far cheaper hits",
    hurts: "as LRU: loops and scans larger than memory",
    source: Source {
        title: "F. J. Corbató: A Paging Experiment with the Multics System, MIT Project MAC \
                Report MAC-M-384, 1968",
        section: "the algorithm with k = 1",
    },
    cost: "one bit per reference; O(1) amortised per eviction",
    bytes_per_page: 9,
    parameters: &[],
    runs: Runs::Anywhere(|_, _, _| Box::new(Clock::new())),
};

/// CLOCK with one bit: a page comes in with its bit clear, a reference sets it, and the hand
/// clears it and passes on, or takes the page where it is clear.
///
/// The hand is kept as a queue: what it passes goes to the back, which is where a newcomer goes
/// too, just behind the hand. Same order, and no hole in the circle when pages are removed.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    links: Links,
    circle: List,
    referenced: Flat<u8>,
}

impl Clock {
    /// An empty circle.
    pub const fn new() -> Self {
        Self { links: Links::new(), circle: List::new(), referenced: Flat::new() }
    }
}

impl Policy for Clock {
    fn admitted(&mut self, page: Page, _how: Admission) {
        self.links.push_back(&mut self.circle, page);
        *self.referenced.slot(page.index()) = 0;
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        *self.referenced.at(page.index()) = 1;
    }

    fn removed(&mut self, page: Page) {
        self.links.remove(&mut self.circle, page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        // At most one round: a page passed has its bit cleared.
        loop {
            let page = self.circle.front()?;
            let bit = self.referenced.at(page.index());
            if *bit == 0 {
                self.links.remove(&mut self.circle, page);
                return Some(page);
            }
            *bit = 0;
            self.links.move_to_back(&mut self.circle, page);
        }
    }

    fn resized(&mut self, _frames: u32) {}

    fn order(&self) -> Option<Vec<Page>> {
        Some(self.links.iter(&self.circle).collect())
    }

    fn resident(&self) -> u32 {
        self.circle.len()
    }
}
