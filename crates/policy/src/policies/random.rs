//! Random replacement.
use crate::members::Members;
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

/// What the registry says about RANDOM.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "random",
    aliases: &["rand"],
    summary: "evicts any page, each with the same chance",
    helps: "no pattern can defeat it: loops larger than memory still hit; a fair baseline",
    hurts: "hot pages leave as likely as cold ones",
    source: Source {
        title: "L. A. Belady: A Study of Replacement Algorithms for a Virtual-Storage Computer, \
                IBM Systems Journal 5(2), 1966",
        section: "RAND",
    },
    cost: "nothing per reference; O(1) per admission and eviction",
    bytes_per_page: 8,
    parameters: &[],
    runs: Runs::Anywhere(|_, _, seed| Box::new(Random::new(seed))),
};

/// Random replacement. A seed means the same victims in every version.
#[derive(Clone, Debug)]
pub struct Random {
    resident: Members,
}

impl Random {
    /// No pages, and a generator started from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { resident: Members::new(seed) }
    }
}

impl Policy for Random {
    fn wants_references(&self) -> bool {
        false
    }

    fn admitted(&mut self, page: Page, _how: Admission) {
        self.resident.insert(page);
    }

    #[inline]
    fn referenced(&mut self, _page: Page) {}

    fn removed(&mut self, page: Page) {
        self.resident.remove(page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        let page = self.resident.draw()?;
        self.resident.remove(page);
        Some(page)
    }

    fn resized(&mut self, _frames: u32) {}

    fn resident(&self) -> u32 {
        self.resident.len()
    }
}
