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

/// Where a policy keeps FIFO2's two marks of a page: the bits of one byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marks {
    /// Set when the page is referenced.
    pub referenced: u8,
    /// Set while the page is in the inactive queue. Only [`Queues`] changes it.
    pub inactive: u8,
}

const MARKS: Marks = Marks { referenced: 1, inactive: 2 };

/// FIFO2's two queues without its marks, for a policy that keeps them with marks of its own: it
/// calls these methods as [`Policy`] says and sets [`Marks::referenced`] itself.
#[derive(Clone, Debug)]
pub struct Queues {
    links: Links,
    active: List,
    inactive: List,
    inactive_share: Fraction,
    bits: Marks,
}

impl Queues {
    /// Empty queues. `inactive_share` of all resident pages is the inactive queue's target.
    pub const fn new(inactive_share: Fraction, bits: Marks) -> Self {
        Self {
            links: Links::new(),
            active: List::new(),
            inactive: List::new(),
            inactive_share,
            bits,
        }
    }

    /// Number of pages in the queues.
    pub const fn resident(&self) -> u32 {
        self.active.len() + self.inactive.len()
    }

    /// The page came in.
    #[inline]
    pub fn admitted(&mut self, marks: &mut Flat<u8>, page: Page, how: Admission) {
        let (list, mark) = match how {
            Admission::Demand => (&mut self.active, 0),
            Admission::Prefetch => (&mut self.inactive, self.bits.inactive),
        };
        self.links.push_back(list, page);
        self.mark(marks.slot(page.index()), mark);
    }

    /// The page left by another's choice.
    #[inline]
    pub fn removed(&mut self, marks: &Flat<u8>, page: Page) {
        let list = match marks.get(page.index()) & self.bits.inactive {
            0 => &mut self.active,
            _ => &mut self.inactive,
        };
        self.links.remove(list, page);
    }

    /// The page that leaves, if there is one.
    pub fn victim(&mut self, marks: &mut Flat<u8>) -> Option<Page> {
        // Ends: every page saved loses its mark before it is looked at again.
        loop {
            self.fill_inactive(marks);
            let page = self.links.pop_front(&mut self.inactive)?;
            let mark = marks.at(page.index());
            if *mark & self.bits.referenced == 0 {
                return Some(page);
            }
            self.mark(mark, 0);
            self.links.push_back(&mut self.active, page);
        }
    }

    #[inline]
    fn mark(&self, mark: &mut u8, to: u8) {
        *mark = *mark & !(self.bits.referenced | self.bits.inactive) | to;
    }

    #[inline]
    fn fill_inactive(&mut self, marks: &mut Flat<u8>) {
        // At least one, or nothing could be taken.
        let target = self.inactive_share.of(self.resident()).max(1);
        while self.inactive.len() < target {
            let Some(page) = self.links.pop_front(&mut self.active) else { break };
            self.mark(marks.at(page.index()), self.bits.inactive);
            self.links.push_back(&mut self.inactive, page);
        }
    }
}

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
    queues: Queues,
    marks: Flat<u8>,
}

impl Fifo2 {
    /// Empty queues. `inactive_share` of all resident pages is the inactive queue's target.
    pub const fn new(inactive_share: Fraction) -> Self {
        Self { queues: Queues::new(inactive_share, MARKS), marks: Flat::new() }
    }

    /// Whether the page is in the inactive queue, where references decide.
    pub fn is_inactive(&self, page: Page) -> bool {
        self.queues.links.is_linked(page) && self.marks.get(page.index()) & MARKS.inactive != 0
    }
}

impl Policy for Fifo2 {
    fn admitted(&mut self, page: Page, how: Admission) {
        self.queues.admitted(&mut self.marks, page, how);
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        *self.marks.at(page.index()) |= MARKS.referenced;
    }

    fn removed(&mut self, page: Page) {
        self.queues.removed(&self.marks, page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        self.queues.victim(&mut self.marks)
    }

    fn resized(&mut self, _frames: u32) {}

    fn resident(&self) -> u32 {
        self.queues.resident()
    }
}
