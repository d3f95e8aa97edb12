//! FIFO2: Mach's first-in-first-out with second chance, over an active and an inactive queue.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::parameters::{Fraction, Kind, ParameterInfo, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

const INACTIVE: ParameterInfo = ParameterInfo {
    key: "inactive",
    meaning: "share of the resident pages that eviction keeps in the inactive queue",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1, 1) },
    // VM_PAGE_INACTIVE_TARGET in Mach's vm_pageout.c, and `inactive_target` in HiPEC's Figure 3.
    default: Value::Fraction(Fraction::new(2, 3)),
};

/// What the registry says about FIFO2.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "fifo2",
    aliases: &["mach", "fifo-second-chance"],
    summary: "active and inactive first-in-first-out queues; a touch while inactive saves a page",
    helps: "references are seen only near eviction, as under memory mappings; general use",
    hurts: "loops and scans larger than memory; how often an active page is used is not known",
    source: Source {
        title: "P. C. H. Lee, R. C. Chang, M. C. Chen: HiPEC: A System for \
                Application-customized Virtual-memory Caching Management, \
                Software: Practice and Experience, 1997; after R. P. Draves: Page \
                Replacement and Reference Bit Emulation in Mach, USENIX Mach Symposium 1991",
        section: "Figure 3 (Replace), Figure 4 (the two queues)",
    },
    cost: "one bit per reference; O(1) amortised per eviction",
    bytes_per_page: 9,
    parameters: &[INACTIVE],
    runs: Runs::Anywhere(|parameters, _, _| Box::new(Fifo2::new(parameters.fraction("inactive")))),
};

const REFERENCED: u8 = 1;
const IS_INACTIVE: u8 = 2;

/// Mach's FIFO2.
///
/// Pages enter the active queue. Before a victim is taken the inactive queue is filled up to its
/// target from the oldest active pages, whose referenced bit is cleared on the way. The oldest
/// inactive page leaves, unless it was referenced since it became inactive: then it goes back to
/// the active queue.
///
/// A prefetched page starts inactive: it has not been used, and a use saves it.
#[derive(Clone, Debug)]
pub struct Fifo2 {
    links: Links,
    active: List,
    inactive: List,
    marks: Flat<u8>,
    inactive_share: Fraction,
}

impl Fifo2 {
    /// Empty queues. `inactive_share` of all resident pages is the inactive queue's target.
    pub const fn new(inactive_share: Fraction) -> Self {
        Self {
            links: Links::new(),
            active: List::new(),
            inactive: List::new(),
            marks: Flat::new(),
            inactive_share,
        }
    }

    /// Whether the page is in the inactive queue, where references decide.
    pub fn is_inactive(&self, page: Page) -> bool {
        self.links.is_linked(page) && self.marks.get(page.index()) & IS_INACTIVE != 0
    }

    fn fill_inactive(&mut self) {
        // At least one, or nothing could be taken.
        let target = self.inactive_share.of(self.resident()).max(1);
        while self.inactive.len() < target {
            let Some(page) = self.links.pop_front(&mut self.active) else { break };
            *self.marks.at(page.index()) = IS_INACTIVE;
            self.links.push_back(&mut self.inactive, page);
        }
    }
}

impl Policy for Fifo2 {
    fn admitted(&mut self, page: Page, how: Admission) {
        let mark = match how {
            Admission::Demand => {
                self.links.push_back(&mut self.active, page);
                0
            }
            Admission::Prefetch => {
                self.links.push_back(&mut self.inactive, page);
                IS_INACTIVE
            }
        };
        *self.marks.slot(page.index()) = mark;
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        *self.marks.at(page.index()) |= REFERENCED;
    }

    fn removed(&mut self, page: Page) {
        let list = match self.marks.get(page.index()) & IS_INACTIVE {
            0 => &mut self.active,
            _ => &mut self.inactive,
        };
        self.links.remove(list, page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        // Ends: every page saved loses its bit before it is looked at again.
        loop {
            self.fill_inactive();
            let page = self.links.pop_front(&mut self.inactive)?;
            let mark = self.marks.at(page.index());
            if *mark & REFERENCED == 0 {
                return Some(page);
            }
            *mark = 0;
            self.links.push_back(&mut self.active, page);
        }
    }

    fn resized(&mut self, _frames: u32) {}

    fn resident(&self) -> u32 {
        self.active.len() + self.inactive.len()
    }
}
