//! LeCaR: learning cache replacement.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::parameters::{Fraction, Kind, ParameterInfo, Parameters, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::rising::Rising;
use crate::weights::Weights;
use crate::{Admission, Page, Policy};

const RATE: ParameterInfo = ParameterInfo {
    key: "rate",
    meaning: "learning rate: how much a regretted eviction changes the weights",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(10, 1) },
    default: Value::Fraction(Fraction::new(45, 100)),
};

const DISCOUNT: ParameterInfo = ParameterInfo {
    key: "discount",
    meaning: "what a regret weighs that comes as many references after the eviction as there are \
              frames, in parts of one that comes at once",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1, 1) },
    default: Value::Fraction(Fraction::new(5, 1000)),
};

const HISTORY: ParameterInfo = ParameterInfo {
    key: "history",
    meaning: "pages remembered that either expert evicted, as a share of the frames each",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(8, 1) },
    default: Value::Fraction(Fraction::new(1, 2)),
};

const FREQUENCY: ParameterInfo = ParameterInfo {
    key: "frequency",
    meaning: "whether a page that comes back from a history has the frequency that it left with, \
              as in the authors' code, or starts anew",
    kind: Kind::Choice(&["kept", "forgotten"]),
    default: Value::Choice("kept"),
};

/// What the registry says about LeCaR.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "lecar",
    aliases: &[],
    summary: "LRU or LFU at random, by weights that fall when the one's victim was needed again",
    helps: "use that goes back and forth between recency and frequency; small memories",
    hurts: "scans and loops, which neither expert handles",
    source: Source {
        title: "G. Vietri, L. V. Rodriguez, W. A. Martinez, S. Lyons, J. Liu, R. Rangaswami, \
                M. Zhao, G. Narasimhan: Driving Cache Replacement with ML-based LeCaR, \
                HotStorage 2018",
        section: "3, Algorithms 1 and 2",
    },
    cost: "O(1) per reference; O(log n) amortised per eviction",
    bytes_per_page: 57,
    parameters: &[RATE, DISCOUNT, HISTORY, FREQUENCY],
    runs: Runs::Anywhere(|parameters, frames, seed| Box::new(Lecar::new(frames, seed, parameters))),
};

const RESIDENT: u8 = 0;
/// Remembered, by who evicted it.
const IN_LRU_HISTORY: u8 = 1;
const IN_LFU_HISTORY: u8 = 2;
/// About to come in, its regret counted.
const RECALLED: u8 = 3;

/// LeCaR. Two experts name a victim each: the least recently used page, and the least frequently
/// used one (of those the least recently used). Which is followed is drawn by their weights. What
/// an expert evicted is remembered; if it is needed again, that expert's weight falls, the more the
/// sooner. Where both name the same page nobody is to blame.
///
/// A prefetched page has no frequency until its first use, and its coming back is no regret.
#[derive(Clone, Debug)]
pub struct Lecar {
    links: Links,
    /// In order of last use; the histories in order of eviction.
    recency: List,
    lru_history: List,
    lfu_history: List,
    frequency: Rising<(u32, u64)>,
    marks: Flat<u8>,
    uses: Flat<u32>,
    /// When a page was used last, or evicted, in references and admissions.
    times: Flat<u64>,
    now: u64,
    weights: Weights,
    rate: f64,
    discount: f64,
    discount_per_ref: f64,
    history_share: Fraction,
    history_most_pages: u32,
    keeps_frequency: bool,
}

impl Lecar {
    /// Nothing resident or remembered, for a pool of `frames`, with the registry row's parameters.
    /// `seed` feeds the draws between the experts.
    pub fn new(frames: u32, seed: u64, parameters: &Parameters) -> Self {
        let mut policy = Self {
            links: Links::new(),
            recency: List::new(),
            lru_history: List::new(),
            lfu_history: List::new(),
            frequency: Rising::new(),
            marks: Flat::new(),
            uses: Flat::new(),
            times: Flat::new(),
            now: 0,
            weights: Weights::new(seed),
            rate: parameters.fraction(RATE.key).to_f64(),
            discount: parameters.fraction(DISCOUNT.key).to_f64(),
            discount_per_ref: 0.0,
            history_share: parameters.fraction(HISTORY.key),
            history_most_pages: 0,
            keeps_frequency: parameters.choice(FREQUENCY.key) == "kept",
        };
        policy.resized(frames);
        policy
    }

    /// Takes a page out of its history, if it is in one, and says which.
    fn forget(&mut self, page: Page) -> Option<u8> {
        if !self.links.is_linked(page) {
            return None;
        }
        let mark = self.marks.get(page.index());
        let list = match mark {
            IN_LRU_HISTORY => &mut self.lru_history,
            IN_LFU_HISTORY => &mut self.lfu_history,
            _ => return None,
        };
        self.links.remove(list, page);
        Some(mark)
    }

    /// A page that is not resident is needed: if it is in a history, its expert regrets that.
    fn recall(&mut self, page: Page) {
        let Some(history) = self.forget(page) else { return };
        *self.marks.at(page.index()) = RECALLED;
        let since = self.now - self.times.get(page.index());
        let regret = self.rate * self.discount_per_ref.powf(since as f64);
        if history == IN_LRU_HISTORY {
            self.weights.blame_first(regret);
        } else {
            self.weights.blame_second(regret);
        }
    }

    fn remember(&mut self, page: Page, history: u8) {
        let list = match history {
            IN_LRU_HISTORY => &mut self.lru_history,
            _ => &mut self.lfu_history,
        };
        *self.marks.at(page.index()) = history;
        *self.times.at(page.index()) = self.now;
        self.links.push_back(list, page);
        self.bound_histories();
    }

    fn bound_histories(&mut self) {
        for list in [&mut self.lru_history, &mut self.lfu_history] {
            while list.len() > self.history_most_pages {
                let page = self.links.pop_front(list);
                page.inspect(|page| *self.marks.at(page.index()) = RESIDENT);
            }
        }
    }
}

impl Policy for Lecar {
    fn admitted(&mut self, page: Page, how: Admission) {
        let recalled = {
            self.marks.slot(page.index());
            if how == Admission::Demand {
                self.recall(page);
            } else {
                self.forget(page);
            }
            std::mem::replace(self.marks.at(page.index()), RESIDENT) == RECALLED
        };
        let uses = self.uses.slot(page.index());
        *uses = match how {
            Admission::Demand if recalled && self.keeps_frequency => uses.saturating_add(1),
            Admission::Demand => 1,
            Admission::Prefetch => 0,
        };
        let uses = *uses;
        self.now += 1;
        *self.times.slot(page.index()) = self.now;
        self.links.push_back(&mut self.recency, page);
        self.frequency.insert(page, (uses, self.now));
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        self.now += 1;
        self.links.move_to_back(&mut self.recency, page);
        let uses = self.uses.at(page.index());
        *uses = uses.saturating_add(1);
        *self.times.at(page.index()) = self.now;
    }

    fn removed(&mut self, page: Page) {
        self.links.remove(&mut self.recency, page);
        self.frequency.remove(page);
    }

    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        incoming.inspect(|page| self.recall(*page));
        let lru = self.recency.front()?;
        let (uses, times) = (&self.uses, &self.times);
        let key = |page: Page| (uses.get(page.index()), times.get(page.index()));
        let follows_lru = self.weights.draws_first();
        // No two pages have the same key, so the least is the LRU page's if it is equal.
        if self.frequency.take_least_if(key, |least| least == key(lru)).is_some() {
            self.links.remove(&mut self.recency, lru);
            return Some(lru);
        }
        if follows_lru {
            self.frequency.remove(lru);
            self.links.remove(&mut self.recency, lru);
            self.remember(lru, IN_LRU_HISTORY);
            return Some(lru);
        }
        let lfu = self.frequency.take_least(key)?;
        self.links.remove(&mut self.recency, lfu);
        self.remember(lfu, IN_LFU_HISTORY);
        Some(lfu)
    }

    fn resized(&mut self, frames: u32) {
        self.discount_per_ref = self.discount.powf(1.0 / f64::from(frames.max(1)));
        self.history_most_pages = self.history_share.of(frames);
        self.bound_histories();
    }

    fn resident(&self) -> u32 {
        self.recency.len()
    }
}
