//! 2Q, the full version.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::parameters::{Fraction, Kind, ParameterInfo, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

const KIN: ParameterInfo = ParameterInfo {
    key: "kin",
    meaning: "share of the frames that A1in, the queue of newcomers, may hold before it is evicted \
              from",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1, 1) },
    default: Value::Fraction(Fraction::new(1, 4)),
};

const KOUT: ParameterInfo = ParameterInfo {
    key: "kout",
    meaning: "pages that left A1in and are remembered, as a share of the frames",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(4, 1) },
    default: Value::Fraction(Fraction::new(1, 2)),
};

/// What the registry says about 2Q.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "2q",
    aliases: &["two-q"],
    summary: "newcomers pass through a short queue; those missed again soon after go to an LRU list",
    helps: "scans and long loops among hot pages: what is used once leaves quickly",
    hurts: "memory that nearly holds the working set: every page is missed twice before it stays",
    source: Source {
        title: "T. Johnson, D. Shasha: 2Q: A Low Overhead High Performance Buffer Management \
                Replacement Algorithm, VLDB 1994",
        section: "Figure 2 (full version); Kin and Kout as in the section on tuning",
    },
    cost: "one byte read per reference to a newcomer, else as LRU; O(1) per admission and eviction",
    bytes_per_page: 9,
    parameters: &[KIN, KOUT],
    runs: Runs::Anywhere(|parameters, frames, _| {
        Box::new(TwoQ::new(frames, parameters.fraction("kin"), parameters.fraction("kout")))
    }),
};

/// In A1in.
const IN: u8 = 1;
/// In A1in, prefetched while A1out remembered it: its first reference is what the paper's fault is.
const IN_AGAIN: u8 = 2;
/// In Am.
const MAIN: u8 = 3;
/// In A1out: not resident, remembered.
const OUT: u8 = 4;

/// 2Q, full version.
///
/// A page that is new goes into A1in, first in, first out, where references do nothing. What falls
/// out of A1in while that is over its share is remembered in A1out; a fault on a remembered page
/// brings it into Am, an LRU list. While A1in is within its share, Am gives the victims, and they
/// are not remembered.
///
/// The page that room is made for leaves A1out before the victim enters it. A prefetched page
/// always starts in A1in, since nobody has asked for it.
#[derive(Clone, Debug)]
pub struct TwoQ {
    links: Links,
    newcomers: List,
    main: List,
    remembered: List,
    marks: Flat<u8>,
    kin: Fraction,
    kout: Fraction,
    newcomers_most_pages: u32,
    remembered_most_pages: u32,
}

impl TwoQ {
    /// Empty queues; A1in and A1out hold the shares `kin` and `kout` of `frames`.
    pub const fn new(frames: u32, kin: Fraction, kout: Fraction) -> Self {
        Self {
            links: Links::new(),
            newcomers: List::new(),
            main: List::new(),
            remembered: List::new(),
            marks: Flat::new(),
            kin,
            kout,
            newcomers_most_pages: kin.of(frames),
            remembered_most_pages: kout.of(frames),
        }
    }

    fn is_remembered(&self, page: Page) -> bool {
        self.marks.get(page.index()) == OUT
    }

    fn forget_down_to(&mut self, pages: u32) {
        while self.remembered.len() > pages {
            let Some(page) = self.links.pop_front(&mut self.remembered) else { break };
            *self.marks.at(page.index()) = 0;
        }
    }
}

impl Policy for TwoQ {
    fn admitted(&mut self, page: Page, how: Admission) {
        let was_remembered = self.is_remembered(page);
        if was_remembered {
            self.links.remove(&mut self.remembered, page);
        }
        let (list, mark) = match (how, was_remembered) {
            (Admission::Demand, true) => (&mut self.main, MAIN),
            (Admission::Prefetch, true) => (&mut self.newcomers, IN_AGAIN),
            (_, false) => (&mut self.newcomers, IN),
        };
        self.links.push_back(list, page);
        *self.marks.slot(page.index()) = mark;
        self.forget_down_to(self.remembered_most_pages);
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        let mark = self.marks.at(page.index());
        match *mark {
            IN => {}
            IN_AGAIN => {
                *mark = MAIN;
                self.links.remove(&mut self.newcomers, page);
                self.links.push_back(&mut self.main, page);
            }
            MAIN => self.links.move_to_back(&mut self.main, page),
            _ => panic!("page {} is not resident in this policy", page.0),
        }
    }

    fn removed(&mut self, page: Page) {
        let mark = self.marks.at(page.index());
        let list = match std::mem::take(mark) {
            IN | IN_AGAIN => &mut self.newcomers,
            MAIN => &mut self.main,
            _ => panic!("page {} is not resident in this policy", page.0),
        };
        self.links.remove(list, page);
    }

    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        if self.newcomers.len() <= self.newcomers_most_pages
            && let Some(page) = self.links.pop_front(&mut self.main)
        {
            *self.marks.at(page.index()) = 0;
            return Some(page);
        }
        let page = self.links.pop_front(&mut self.newcomers)?;
        // The page that comes counts as gone from A1out, and must not be forgotten to make room
        // for the memory of this one.
        let coming = incoming.filter(|coming| self.is_remembered(*coming));
        if let Some(coming) = coming {
            self.links.move_to_back(&mut self.remembered, coming);
        }
        *self.marks.at(page.index()) = OUT;
        self.links.push_back(&mut self.remembered, page);
        self.forget_down_to(self.remembered_most_pages.saturating_add(coming.is_some().into()));
        Some(page)
    }

    fn resized(&mut self, frames: u32) {
        self.newcomers_most_pages = self.kin.of(frames);
        self.remembered_most_pages = self.kout.of(frames);
        self.forget_down_to(self.remembered_most_pages);
    }

    fn resident(&self) -> u32 {
        self.newcomers.len() + self.main.len()
    }
}
