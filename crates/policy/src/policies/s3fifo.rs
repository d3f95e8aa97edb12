//! S3-FIFO: a small queue in front of a main queue, and a queue of ghosts.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::parameters::{Fraction, Kind, ParameterInfo, Parameters, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

const SMALL: ParameterInfo = ParameterInfo {
    key: "small",
    meaning: "share of the frames that the small queue holds",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1, 1) },
    default: Value::Fraction(Fraction::new(1, 10)),
};

const GHOST: ParameterInfo = ParameterInfo {
    key: "ghost",
    meaning: "pages remembered after they left the small queue, as a share of the frames",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(8, 1) },
    // As many as the main queue holds.
    default: Value::Fraction(Fraction::new(9, 10)),
};

const PROMOTE: ParameterInfo = ParameterInfo {
    key: "promote",
    meaning: "uses after the first with which a page leaves the small queue for the main one",
    kind: Kind::Integer { least: 1, most: MOST_REUSES as u64 },
    default: Value::Integer(2),
};

const VARIANT: ParameterInfo = ParameterInfo {
    key: "variant",
    meaning: "whose rules: the paper's; or those of libCacheSim, where newcomers overflow into \
              main until the first eviction, and main gives up pages only when it is over its \
              share or small is empty",
    kind: Kind::Choice(&["paper", "libcachesim"]),
    default: Value::Choice("paper"),
};

/// What the registry says about S3-FIFO.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "s3fifo",
    aliases: &["s3-fifo"],
    summary: "a small first-in-first-out queue filters newcomers for a main one; ghosts skip it",
    helps: "skewed use with many pages that are used once; scans through a hot set",
    hurts: "loops larger than memory; pages whose second use comes after the small queue's length",
    source: Source {
        title: "J. Yang, Y. Zhang, Z. Qiu, Y. Yue, K. V. Rashmi: FIFO Queues Are All You Need \
                for Cache Eviction, SOSP 2023",
        section: "4.1, Algorithm 1",
    },
    cost: "one byte per reference; O(1) amortised per eviction",
    bytes_per_page: 9,
    parameters: &[SMALL, GHOST, PROMOTE, VARIANT],
    runs: Runs::Anywhere(|parameters, frames, _| Box::new(S3Fifo::new(frames, parameters))),
};

/// Two bits in the paper.
const MOST_REUSES: u8 = 3;

/// The low bits of a page's mark count its uses: none after a prefetch, one after a fault.
const USES: u8 = 0x0f;
const MOST_USES: u8 = 1 + MOST_REUSES;
/// The queue that a page is in is in the high bits; none of them for the small queue.
const IN_MAIN: u8 = 0x10;
const IN_GHOST: u8 = 0x20;

/// S3-FIFO: pages enter the small queue. What was used `promote` times more when it comes to the
/// small queue's end moves on to the main queue; the others leave, and are remembered among the
/// ghosts. A fault on a ghost enters the main queue, which is a clock of two bits.
///
/// One page leaves per call. In the paper's pseudo-code two may, when pages that move on fill the
/// main queue; here the main queue's victim is then the answer.
///
/// The first use of a prefetched page is what the fault is to another. A ghost that is prefetched
/// was not used again, and enters the small queue.
#[derive(Clone, Debug)]
pub struct S3Fifo {
    links: Links,
    small: List,
    main: List,
    ghosts: List,
    marks: Flat<u8>,
    small_share: Fraction,
    ghost_share: Fraction,
    promote_uses: u8,
    is_paper: bool,
    has_evicted: bool,
    small_target_pages: u32,
    main_target_pages: u32,
    ghost_most_pages: u32,
}

impl S3Fifo {
    /// Empty queues for a pool of `frames`, with the registry row's parameters.
    pub fn new(frames: u32, parameters: &Parameters) -> Self {
        let mut policy = Self {
            links: Links::new(),
            small: List::new(),
            main: List::new(),
            ghosts: List::new(),
            marks: Flat::new(),
            small_share: parameters.fraction(SMALL.key),
            ghost_share: parameters.fraction(GHOST.key),
            promote_uses: 1 + parameters.integer(PROMOTE.key) as u8,
            is_paper: parameters.choice(VARIANT.key) == "paper",
            has_evicted: false,
            small_target_pages: 0,
            main_target_pages: 0,
            ghost_most_pages: 0,
        };
        policy.resized(frames);
        policy
    }

    fn take_small(&mut self, incoming: Option<Page>) -> Option<Page> {
        while let Some(page) = self.links.pop_front(&mut self.small) {
            let mark = self.marks.at(page.index());
            if *mark & USES < self.promote_uses {
                *mark = IN_GHOST;
                self.links.push_back(&mut self.ghosts, page);
                self.forget(incoming);
                return Some(page);
            }
            *mark = IN_MAIN | 1;
            self.links.push_back(&mut self.main, page);
            if self.is_paper && self.main.len() > self.main_target_pages {
                break;
            }
        }
        self.take_main()
    }

    fn take_main(&mut self) -> Option<Page> {
        // Ends: each round takes a use from every page passed.
        loop {
            let page = self.main.front()?;
            let mark = self.marks.at(page.index());
            if *mark & USES <= 1 {
                self.links.remove(&mut self.main, page);
                return Some(page);
            }
            *mark -= 1;
            self.links.move_to_back(&mut self.main, page);
        }
    }

    /// Forgets the oldest ghosts above their number. A ghost about to come back is not counted,
    /// nor forgotten for the page that leaves for it.
    fn forget(&mut self, incoming: Option<Page>) {
        let kept = incoming.filter(|page| {
            self.links.is_linked(*page) && self.marks.get(page.index()) & IN_GHOST != 0
        });
        while self.ghosts.len() - u32::from(kept.is_some()) > self.ghost_most_pages {
            let oldest = self.ghosts.front().filter(|page| Some(*page) != kept);
            let oldest = oldest.or_else(|| kept.and_then(|page| self.links.after(page)));
            let Some(oldest) = oldest else { break };
            self.links.remove(&mut self.ghosts, oldest);
        }
    }
}

impl Policy for S3Fifo {
    fn admitted(&mut self, page: Page, how: Admission) {
        let mark = self.marks.slot(page.index());
        let is_ghost = *mark & IN_GHOST != 0 && self.links.is_linked(page);
        if is_ghost {
            self.links.remove(&mut self.ghosts, page);
        }
        let is_prefetch = how == Admission::Prefetch;
        let overflows =
            !self.is_paper && !self.has_evicted && self.small.len() >= self.small_target_pages;
        *mark = u8::from(!is_prefetch);
        if is_ghost && !is_prefetch || overflows {
            *mark |= IN_MAIN;
            self.links.push_back(&mut self.main, page);
        } else {
            self.links.push_back(&mut self.small, page);
        }
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        let mark = self.marks.at(page.index());
        *mark += u8::from(*mark & USES < MOST_USES);
    }

    fn removed(&mut self, page: Page) {
        let list = match self.marks.get(page.index()) & IN_MAIN {
            0 => &mut self.small,
            _ => &mut self.main,
        };
        self.links.remove(list, page);
    }

    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        self.has_evicted = true;
        let small_first = match self.is_paper {
            true => self.small.len() >= self.small_target_pages || self.main.is_empty(),
            false => self.main.len() <= self.main_target_pages,
        };
        if small_first && !self.small.is_empty() {
            self.take_small(incoming)
        } else {
            self.take_main().or_else(|| self.take_small(incoming))
        }
    }

    fn resized(&mut self, frames: u32) {
        self.small_target_pages = self.small_share.of(frames);
        self.main_target_pages = frames - self.small_target_pages;
        self.ghost_most_pages = self.ghost_share.of(frames);
        self.forget(None);
    }

    fn resident(&self) -> u32 {
        self.small.len() + self.main.len()
    }
}
