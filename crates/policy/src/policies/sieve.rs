//! SIEVE: one queue that is never reordered, and a hand that sifts it.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

/// What the registry says about SIEVE.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "sieve",
    aliases: &[],
    summary: "clock whose survivors stay where they are, so that newcomers are sifted fast",
    helps: "skewed use with many pages that are used once; the cheapest hits there are",
    hurts: "loops larger than memory; pages whose second use comes late, or after a phase change",
    source: Source {
        title: "Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson, K. V. Rashmi: SIEVE is Simpler than \
                LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches, NSDI 2024",
        section: "3.1, Algorithm 1",
    },
    cost: "one byte per reference; O(1) amortised per eviction",
    bytes_per_page: 9,
    parameters: &[],
    runs: Runs::Anywhere(|_, _, _| Box::new(Sieve::new())),
};

/// Fetched ahead, no use seen.
const UNUSED: u8 = 0;
/// Used by the reference that brought it in, or visited and passed by the hand since.
const USED: u8 = 1;
/// Used again.
const VISITED: u8 = 2;

/// SIEVE: pages enter at the back and are never moved. The hand goes from the front (oldest) to the
/// back (newest), clears the visited mark of the pages that it passes, and takes the first page
/// without one; behind the newest page it starts at the oldest again.
///
/// The first use of a prefetched page is what the fault is to another, and does not mark it.
#[derive(Clone, Debug, Default)]
pub struct Sieve {
    links: Links,
    queue: List,
    uses: Flat<u8>,
    /// Where the hand looks next; none for the oldest page.
    hand: Option<Page>,
}

impl Sieve {
    /// An empty queue.
    pub const fn new() -> Self {
        Self { links: Links::new(), queue: List::new(), uses: Flat::new(), hand: None }
    }

    fn take(&mut self, page: Page) {
        if self.hand == Some(page) {
            self.hand = self.links.after(page);
        }
        self.links.remove(&mut self.queue, page);
    }
}

impl Policy for Sieve {
    fn admitted(&mut self, page: Page, how: Admission) {
        self.links.push_back(&mut self.queue, page);
        *self.uses.slot(page.index()) = match how {
            Admission::Demand => USED,
            Admission::Prefetch => UNUSED,
        };
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        let uses = self.uses.at(page.index());
        *uses = (*uses + 1).min(VISITED);
    }

    fn removed(&mut self, page: Page) {
        self.take(page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        // At most one round: what the hand passes it clears.
        loop {
            let page = self.hand.or(self.queue.front())?;
            self.hand = Some(page);
            let uses = self.uses.at(page.index());
            if *uses < VISITED {
                self.take(page);
                return Some(page);
            }
            *uses = USED;
            self.hand = self.links.after(page);
        }
    }

    fn resized(&mut self, _frames: u32) {}

    fn resident(&self) -> u32 {
        self.queue.len()
    }
}
