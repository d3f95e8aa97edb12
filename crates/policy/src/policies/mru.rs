//! Most recently used.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::parameters::{Fraction, Kind, ParameterInfo, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

const AHEAD: ParameterInfo = ParameterInfo {
    key: "ahead",
    meaning: "share of the frames that prefetched pages not yet seen used may hold before the \
              oldest of them counts as used",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1, 1) },
    default: Value::Fraction(Fraction::new(1, 32)),
};

/// What the registry says about MRU.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "mru",
    aliases: &[],
    summary: "evicts the page that was referenced last, keeping a part of what went before",
    helps: "loops over more data than memory: repeated scans, nested-loop joins, training epochs",
    hurts: "anything with a moving working set: old pages never leave",
    source: Source {
        title: "P. C. H. Lee, R. C. Chang, M. C. Chen: HiPEC: A System for \
                Application-customized Virtual-memory Caching Management, \
                Software: Practice and Experience, 1997",
        section: "Performance evaluation, nested-loop join",
    },
    cost: "O(1) per reference, admission and eviction",
    bytes_per_page: 9,
    parameters: &[AHEAD],
    runs: Runs::Anywhere(|parameters, frames, _| {
        Box::new(Mru::new(frames, parameters.fraction("ahead")))
    }),
};

/// Most recently used: one list in order of last reference, victims from the recent end.
///
/// A prefetched page was not used yet, and must not be the next victim for being the newest. It
/// waits in a queue of its own until a reference is seen, or, since references may be sampled,
/// until the queue is longer than its share of the frames; then it counts as used.
#[derive(Clone, Debug)]
pub struct Mru {
    links: Links,
    used: List,
    ahead: List,
    is_ahead: Flat<u8>,
    ahead_share: Fraction,
    ahead_most_pages: u32,
}

impl Mru {
    /// Empty lists. At most `ahead_share` of `frames` holds prefetched pages that wait for use.
    pub const fn new(frames: u32, ahead_share: Fraction) -> Self {
        Self {
            links: Links::new(),
            used: List::new(),
            ahead: List::new(),
            is_ahead: Flat::new(),
            ahead_share,
            ahead_most_pages: ahead_share.of(frames),
        }
    }

    fn count_oldest_ahead_as_used(&mut self) {
        while self.ahead.len() > self.ahead_most_pages {
            let Some(page) = self.links.pop_front(&mut self.ahead) else { break };
            *self.is_ahead.at(page.index()) = 0;
            self.links.push_back(&mut self.used, page);
        }
    }
}

impl Policy for Mru {
    fn admitted(&mut self, page: Page, how: Admission) {
        match how {
            Admission::Demand => {
                self.links.push_back(&mut self.used, page);
                *self.is_ahead.slot(page.index()) = 0;
            }
            Admission::Prefetch => {
                self.links.push_back(&mut self.ahead, page);
                *self.is_ahead.slot(page.index()) = 1;
                self.count_oldest_ahead_as_used();
            }
        }
    }

    // It waits for no use.
    fn spared(&mut self, page: Page) {
        self.admitted(page, Admission::Demand);
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        let is_ahead = self.is_ahead.at(page.index());
        if *is_ahead == 0 {
            self.links.move_to_back(&mut self.used, page);
        } else {
            *is_ahead = 0;
            self.links.remove(&mut self.ahead, page);
            self.links.push_back(&mut self.used, page);
        }
    }

    fn wants_samples(&self) -> bool {
        false
    }

    /// Of what a program runs over, samples are single pages; as the next victims they would leave
    /// holes that each cost a request. So the order is that of admissions, and of references that
    /// stand for all.
    fn sampled(&mut self, page: Page) {
        if self.is_ahead.get(page.index()) != 0 {
            self.referenced(page);
        }
    }

    fn removed(&mut self, page: Page) {
        let list = match self.is_ahead.get(page.index()) {
            0 => &mut self.used,
            _ => &mut self.ahead,
        };
        self.links.remove(list, page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        // With nothing but pages ahead, the oldest is the likeliest to have been used unseen.
        self.links.pop_back(&mut self.used).or_else(|| self.links.pop_front(&mut self.ahead))
    }

    fn resized(&mut self, frames: u32) {
        self.ahead_most_pages = self.ahead_share.of(frames);
        self.count_oldest_ahead_as_used();
    }

    fn order(&self) -> Option<Vec<Page>> {
        Some(self.links.iter(&self.ahead).chain(self.links.iter(&self.used)).collect())
    }

    fn resident(&self) -> u32 {
        self.used.len() + self.ahead.len()
    }
}
