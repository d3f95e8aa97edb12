//! LIRS: low inter-reference recency set.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::parameters::{Fraction, Kind, ParameterInfo, Parameters, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

const HIR: ParameterInfo = ParameterInfo {
    key: "hir",
    meaning: "share of the frames for resident pages of high inter-reference recency",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1, 1) },
    default: Value::Fraction(Fraction::new(1, 100)),
};

const STACK: ParameterInfo = ParameterInfo {
    key: "stack",
    meaning: "most pages in the recency stack, in multiples of the frames; what no longer fits \
              is forgotten, pages that left longest ago first",
    kind: Kind::Fraction { least: Fraction::new(1, 1), most: Fraction::new(1000, 1) },
    default: Value::Fraction(Fraction::new(2, 1)),
};

/// What the registry says about LIRS.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "lirs",
    aliases: &[],
    summary: "keeps the pages whose last two uses were close together; the others pass through",
    helps: "loops and scans larger than memory, skewed use, databases",
    hurts: "newcomers must be used twice within a short while, or never stay",
    source: Source {
        title: "S. Jiang, X. Zhang: LIRS: An Efficient Low Inter-reference Recency Set \
                Replacement Policy to Improve Buffer Cache Performance, SIGMETRICS 2002",
        section: "3.3 (the two lists); 3.3 and 5.3 (1 % for HIR pages, bounded stack)",
    },
    cost: "O(1) amortised per reference, admission and eviction",
    bytes_per_page: 17,
    parameters: &[HIR, STACK],
    runs: Runs::Anywhere(|parameters, frames, _| Box::new(Lirs::new(frames, parameters))),
};

/// Low inter-reference recency: never evicted before it has become HIR.
const LIR: u8 = 1;
/// High inter-reference recency, resident: in the queue, perhaps in the stack too.
const HIR_RESIDENT: u8 = 2;
/// High inter-reference recency, left: in the stack, and among the departed.
const HIR_DEPARTED: u8 = 3;

/// LIRS. The stack has all LIR pages and those referenced after the oldest of them, in order of
/// last reference; its bottom is always a LIR page. Resident HIR pages wait in the queue, whose
/// front is the victim. A HIR page referenced while in the stack was used twice within the oldest
/// LIR page's recency: it becomes LIR, and the stack's bottom becomes HIR in its stead.
///
/// A prefetched page was not referenced: it enters the queue and not the stack, or stays where it
/// was in the stack.
#[derive(Clone, Debug)]
pub struct Lirs {
    /// Front: the bottom.
    stack_links: Links,
    stack: List,
    /// The queue and the departed, which no page is in both of.
    queue_links: Links,
    queue: List,
    departed: List,
    kinds: Flat<u8>,
    lir_pages: u32,
    hir_share: Fraction,
    stack_share: Fraction,
    lir_most_pages: u32,
    stack_most_pages: u32,
}

impl Lirs {
    /// Nothing resident or remembered, for a pool of `frames`, with the registry row's parameters.
    pub fn new(frames: u32, parameters: &Parameters) -> Self {
        let mut policy = Self {
            stack_links: Links::new(),
            stack: List::new(),
            queue_links: Links::new(),
            queue: List::new(),
            departed: List::new(),
            kinds: Flat::new(),
            lir_pages: 0,
            hir_share: parameters.fraction(HIR.key),
            stack_share: parameters.fraction(STACK.key),
            lir_most_pages: 0,
            stack_most_pages: 0,
        };
        policy.resized(frames);
        policy
    }

    /// Takes what is not LIR off the stack's bottom.
    fn prune(&mut self) {
        while let Some(bottom) = self.stack.front() {
            match self.kinds.get(bottom.index()) {
                LIR => break,
                HIR_DEPARTED => self.queue_links.remove(&mut self.departed, bottom),
                _ => {}
            }
            self.stack_links.remove(&mut self.stack, bottom);
        }
    }

    /// Makes a HIR page of the stack's top LIR, which is in neither queue nor departed any more.
    fn make_lir(&mut self, page: Page) {
        *self.kinds.at(page.index()) = LIR;
        self.lir_pages += 1;
        self.demote();
    }

    /// Makes LIR pages HIR, from the stack's bottom, while there are too many.
    fn demote(&mut self) {
        while self.lir_pages > self.lir_most_pages {
            self.prune();
            let Some(bottom) = self.stack_links.pop_front(&mut self.stack) else { break };
            *self.kinds.at(bottom.index()) = HIR_RESIDENT;
            self.lir_pages -= 1;
            self.queue_links.push_back(&mut self.queue, bottom);
        }
        self.prune();
    }

    /// Forgets departed pages while the stack is too long.
    fn bound_stack(&mut self) {
        while self.stack.len() > self.stack_most_pages {
            let Some(page) = self.queue_links.pop_front(&mut self.departed) else { break };
            self.stack_links.remove(&mut self.stack, page);
        }
    }

    /// A reference to a resident HIR page.
    fn hir_referenced(&mut self, page: Page) {
        if self.stack_links.is_linked(page) {
            self.stack_links.move_to_back(&mut self.stack, page);
            self.queue_links.remove(&mut self.queue, page);
            self.make_lir(page);
            return;
        }
        if self.lir_pages < self.lir_most_pages {
            self.stack_links.push_back(&mut self.stack, page);
            self.queue_links.remove(&mut self.queue, page);
            self.make_lir(page);
            return;
        }
        self.queue_links.move_to_back(&mut self.queue, page);
        // Without LIR pages there is nothing for a recency to be lower than.
        if self.lir_pages > 0 {
            self.stack_links.push_back(&mut self.stack, page);
            self.bound_stack();
        }
    }
}

impl Policy for Lirs {
    fn admitted(&mut self, page: Page, how: Admission) {
        let is_remembered = self.stack_links.is_linked(page);
        let kind = self.kinds.slot(page.index());
        if is_remembered {
            assert!(*kind == HIR_DEPARTED, "page {} is resident in this policy already", page.0);
            self.queue_links.remove(&mut self.departed, page);
        }
        *kind = HIR_RESIDENT;
        self.queue_links.push_back(&mut self.queue, page);
        if how == Admission::Demand {
            self.hir_referenced(page);
        }
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        if self.kinds.get(page.index()) == LIR {
            let was_bottom = self.stack.front() == Some(page);
            self.stack_links.move_to_back(&mut self.stack, page);
            if was_bottom {
                self.prune();
            }
        } else {
            self.hir_referenced(page);
        }
    }

    fn removed(&mut self, page: Page) {
        let was_lir = self.kinds.get(page.index()) == LIR;
        if was_lir {
            self.lir_pages -= 1;
        } else {
            self.queue_links.remove(&mut self.queue, page);
        }
        if was_lir || self.stack_links.is_linked(page) {
            self.stack_links.remove(&mut self.stack, page);
        }
        self.prune();
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        if let Some(page) = self.queue_links.pop_front(&mut self.queue) {
            if self.stack_links.is_linked(page) {
                *self.kinds.at(page.index()) = HIR_DEPARTED;
                self.queue_links.push_back(&mut self.departed, page);
            }
            return Some(page);
        }
        // All are LIR: frames were taken away, or HIR pages removed.
        let page = self.stack_links.pop_front(&mut self.stack)?;
        self.lir_pages -= 1;
        self.prune();
        Some(page)
    }

    fn resized(&mut self, frames: u32) {
        self.lir_most_pages = frames - self.hir_share.of(frames).max(1).min(frames);
        self.stack_most_pages = self.stack_share.of(frames);
        self.demote();
        self.bound_stack();
    }

    fn resident(&self) -> u32 {
        self.lir_pages + self.queue.len()
    }
}
