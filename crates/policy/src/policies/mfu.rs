//! Most frequently used.
use crate::counts::Counts;
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

/// What the registry says about MFU.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "mfu",
    aliases: &[],
    summary: "evicts the page used most often since it came in; of equals, the last there",
    helps: "loops larger than memory; pages whose use is over once they were used enough",
    hurts: "fixed, skewed popularity: the hottest page leaves first",
    source: Source {
        title: "S. Chang, K. Zhang: Application Specific Memory Management, University of \
                California, Berkeley, undated; after A. Silberschatz, P. B. Galvin: Operating \
                System Concepts, Addison-Wesley, 1994, counting algorithms",
        section: "4 Page Replacement Algorithms; Appendix, sm_mfu",
    },
    cost: "O(1) per reference, admission and eviction",
    bytes_per_page: 12,
    parameters: &[],
    runs: Runs::Anywhere(|_, _, _| Box::new(Mfu::new())),
};

/// Most frequently used: LFU turned round, ties included. Of pages used equally often, the one
/// that came to that count last leaves first, as under MRU.
///
/// Only references that are seen count. A prefetched page was not used yet, and must not leave
/// for being the newest: of the pages used once it is the last to leave, until its use is seen.
#[derive(Clone, Debug, Default)]
pub struct Mfu {
    counts: Counts,
}

impl Mfu {
    /// No pages.
    pub const fn new() -> Self {
        Self { counts: Counts::new() }
    }
}

impl Policy for Mfu {
    fn admitted(&mut self, page: Page, how: Admission) {
        self.counts.insert(page, how, how == Admission::Prefetch);
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        self.counts.used(page);
    }

    fn removed(&mut self, page: Page) {
        self.counts.remove(page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        let page = self.counts.most_used()?;
        self.counts.remove(page);
        Some(page)
    }

    fn resized(&mut self, _frames: u32) {}

    fn resident(&self) -> u32 {
        self.counts.len()
    }
}
