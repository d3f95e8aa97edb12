//! Cacheus: two learned-between experts, one against scans and one against churn.
use std::cmp::Reverse;

use crate::flat::Flat;
use crate::list::{Links, List};
use crate::parameters::{Fraction, Kind, ParameterInfo, Parameters, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::rising::Rising;
use crate::weights::Weights;
use crate::{Admission, Page, Policy};

const HISTORY: ParameterInfo = ParameterInfo {
    key: "history",
    meaning: "pages remembered that either expert evicted, as a share of the frames each",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(8, 1) },
    default: Value::Fraction(Fraction::new(1, 2)),
};

const SCAN: ParameterInfo = ParameterInfo {
    key: "scan",
    meaning: "share of the frames for pages used once at the start; it adapts from there",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1, 1) },
    default: Value::Fraction(Fraction::new(1, 100)),
};

/// What the registry says about Cacheus.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "cacheus",
    aliases: &[],
    summary: "scan-resistant LRU or churn-resistant LFU at random, by weights that are learned",
    helps: "mixed use: skew, scans, churn over slightly more pages than memory has",
    hurts: "phases shorter than a few times the frames: there is no time to learn",
    source: Source {
        title: "L. V. Rodriguez, F. Yusuf, S. Lyons, E. Paz, R. Rangaswami, J. Liu, M. Zhao, \
                G. Narasimhan: Learning Cache Replacement with CACHEUS, FAST 2021",
        section: "4.1 (adaptive learning rate), 4.2 (SR-LRU), 4.3 (CR-LFU)",
    },
    cost: "O(1) per reference; O(log n) amortised per eviction",
    bytes_per_page: 57,
    parameters: &[HISTORY, SCAN],
    runs: Runs::Anywhere(|parameters, frames, seed| {
        Box::new(Cacheus::new(frames, seed, parameters))
    }),
};

/// Where a page is, in its mark's low bits.
const WHERE: u8 = 0x0f;
const NOWHERE: u8 = 0;
const IN_REUSED: u8 = 1;
const IN_SCAN: u8 = 2;
const IN_LRU_HISTORY: u8 = 3;
const IN_LFU_HISTORY: u8 = 4;
/// About to come in, its regret counted.
const RECALLED: u8 = 5;
/// Came from the reused part to the scan part.
const DEMOTED: u8 = 0x10;
/// Came in for the first time that is remembered.
const NEW: u8 = 0x20;

/// Cacheus: LeCaR's draw between two experts, with a learning rate that follows the hit ratio.
///
/// SR-LRU has two parts, each in order of last use: pages used again, and in the scan part pages
/// used once and those *demoted* from the first, whose oldest is the victim. A demoted page used
/// again is for a larger first part; a new page evicted from here and needed again for a larger
/// scan part. CR-LFU evicts the least frequently used page, of those the most recently used: of a
/// set that does not fit, a part stays.
///
/// A prefetched page waits in the scan part, where its first use makes it the newest.
#[derive(Clone, Debug)]
pub struct Cacheus {
    links: Links,
    reused: List,
    scan: List,
    lru_history: List,
    lfu_history: List,
    frequency: Rising<(u32, Reverse<u64>)>,
    marks: Flat<u8>,
    uses: Flat<u32>,
    /// When a page was used last, in references and admissions.
    times: Flat<u64>,
    now: u64,
    weights: Weights,
    rate: LearningRate,
    history_share: Fraction,
    history_most_pages: u32,
    reused_most_pages: u32,
    scan_target_pages: u32,
    /// Demoted pages in the scan part, and new ones in the first expert's history.
    demoted_pages: u32,
    new_pages: u32,
    has_evicted: bool,
    frames: u32,
}

impl Cacheus {
    /// Nothing resident or remembered, for a pool of `frames`, with the registry row's parameters.
    /// `seed` feeds the draws between the experts and of learning rates.
    pub fn new(frames: u32, seed: u64, parameters: &Parameters) -> Self {
        let scan_pages = parameters.fraction(SCAN.key).to_f64() * f64::from(frames) + 0.5;
        let mut policy = Self {
            links: Links::new(),
            reused: List::new(),
            scan: List::new(),
            lru_history: List::new(),
            lfu_history: List::new(),
            frequency: Rising::new(),
            marks: Flat::new(),
            uses: Flat::new(),
            times: Flat::new(),
            now: 0,
            weights: Weights::new(seed),
            rate: LearningRate::new(frames),
            history_share: parameters.fraction(HISTORY.key),
            history_most_pages: 0,
            reused_most_pages: 0,
            scan_target_pages: scan_pages as u32,
            demoted_pages: 0,
            new_pages: 0,
            has_evicted: false,
            frames,
        };
        policy.resized(frames);
        policy
    }

    fn is_at(&self, page: Page, place: u8) -> bool {
        self.links.is_linked(page) && self.marks.get(page.index()) & WHERE == place
    }

    fn push(&mut self, page: Page, mark: u8) {
        let list = match mark & WHERE {
            IN_REUSED => &mut self.reused,
            IN_SCAN => &mut self.scan,
            IN_LRU_HISTORY => &mut self.lru_history,
            _ => &mut self.lfu_history,
        };
        self.links.push_back(list, page);
        *self.marks.at(page.index()) = mark;
        self.demoted_pages += u32::from(mark & DEMOTED != 0);
        self.new_pages += u32::from(mark & (WHERE | NEW) == IN_LRU_HISTORY | NEW);
    }

    /// Takes a page out of the list that it is in, and says what its mark was.
    fn take(&mut self, page: Page) -> u8 {
        let mark = std::mem::replace(self.marks.at(page.index()), NOWHERE);
        let list = match mark & WHERE {
            IN_REUSED => &mut self.reused,
            IN_SCAN => &mut self.scan,
            IN_LRU_HISTORY => &mut self.lru_history,
            _ => &mut self.lfu_history,
        };
        self.links.remove(list, page);
        self.demoted_pages -= u32::from(mark & DEMOTED != 0);
        self.new_pages -= u32::from(mark & (WHERE | NEW) == IN_LRU_HISTORY | NEW);
        mark
    }

    /// Demotes the oldest reused page, if there is one.
    fn demote(&mut self) -> bool {
        let Some(page) = self.reused.front() else { return false };
        let mark = self.take(page);
        self.push(page, mark & NEW | IN_SCAN | DEMOTED);
        true
    }

    fn bound_reused(&mut self) {
        while self.reused.len() >= self.reused_most_pages && self.demote() {}
    }

    fn bound_histories(&mut self) {
        while self.lru_history.len() > self.history_most_pages {
            self.lru_history.front().map(|page| self.take(page));
        }
        while self.lfu_history.len() > self.history_most_pages {
            self.lfu_history.front().map(|page| self.take(page));
        }
    }

    fn set_scan_target(&mut self, pages: u32) {
        self.scan_target_pages = pages.clamp(1, self.frames.saturating_sub(1).max(1));
        self.reused_most_pages = self.frames - self.scan_target_pages.min(self.frames);
    }

    /// A page that is not resident is needed: if it is in a history, its expert regrets that.
    fn recall(&mut self, page: Page) {
        if self.is_at(page, IN_LRU_HISTORY) {
            if self.take(page) & NEW != 0 {
                let step = rounded_ratio(self.demoted_pages, self.new_pages);
                self.set_scan_target(self.scan_target_pages.saturating_add(step));
            }
            self.weights.blame_first(self.rate.rate);
        } else if self.is_at(page, IN_LFU_HISTORY) {
            self.take(page);
            self.weights.blame_second(self.rate.rate);
        } else {
            return;
        }
        *self.marks.at(page.index()) = RECALLED;
    }

    fn used_while_in_scan(&mut self, page: Page) {
        let mark = self.take(page);
        if mark & DEMOTED != 0 {
            // The page itself is counted among the demoted here.
            let step = rounded_ratio(self.new_pages, self.demoted_pages + 1);
            self.set_scan_target(self.scan_target_pages.saturating_sub(step));
        }
        if self.reused.len() >= self.reused_most_pages {
            self.demote();
        }
        self.push(page, mark & NEW | IN_REUSED);
    }

    fn evict(&mut self, page: Page, history: u8) {
        let mark = self.take(page);
        self.push(page, mark & NEW | history);
        self.bound_histories();
    }
}

/// `numerator / denominator` rounded to the nearest, one at least, for a denominator of one at
/// least.
fn rounded_ratio(numerator: u32, denominator: u32) -> u32 {
    let (numerator, denominator) = (u64::from(numerator), u64::from(denominator.max(1)));
    ((2 * numerator + denominator) / (2 * denominator)).max(1) as u32
}

impl Policy for Cacheus {
    fn admitted(&mut self, page: Page, how: Admission) {
        assert!(page <= Page::MAX, "page {} is above Page::MAX", page.0);
        self.marks.slot(page.index());
        self.times.slot(page.index());
        self.uses.slot(page.index());
        let is_demand = how == Admission::Demand;
        if is_demand {
            self.recall(page);
        } else if self.is_at(page, IN_LRU_HISTORY) || self.is_at(page, IN_LFU_HISTORY) {
            self.take(page);
        }
        let is_recalled = !self.links.is_linked(page) && self.marks.get(page.index()) == RECALLED;
        let uses = match (is_demand, is_recalled) {
            (true, true) => self.uses.get(page.index()).saturating_add(1),
            (true, false) => 1,
            (false, _) => 0,
        };
        self.now += 1;
        *self.uses.at(page.index()) = uses;
        *self.times.at(page.index()) = self.now;
        self.frequency.insert(page, (uses, Reverse(self.now)));
        let mark = match is_demand {
            true if is_recalled => IN_REUSED,
            true if self.scan.is_empty() && self.reused.len() < self.reused_most_pages => IN_REUSED,
            true if !self.has_evicted && self.scan.len() < self.scan_target_pages => IN_SCAN,
            _ => IN_SCAN | NEW,
        };
        self.push(page, mark);
        if is_recalled || mark & NEW != 0 {
            self.bound_reused();
        }
        if is_demand {
            self.rate.count(false, &mut self.weights);
        }
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        self.rate.count(true, &mut self.weights);
        self.now += 1;
        *self.times.at(page.index()) = self.now;
        let uses = self.uses.at(page.index());
        *uses = uses.saturating_add(1);
        if self.marks.get(page.index()) & WHERE == IN_REUSED {
            self.links.move_to_back(&mut self.reused, page);
        } else if *uses == 1 {
            // The first use of a prefetched page.
            self.links.move_to_back(&mut self.scan, page);
        } else {
            self.used_while_in_scan(page);
        }
    }

    fn removed(&mut self, page: Page) {
        self.frequency.remove(page);
        self.take(page);
    }

    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        self.has_evicted = true;
        incoming.inspect(|page| self.recall(*page));
        let lru = self.scan.front().or(self.reused.front())?;
        let (uses, times) = (&self.uses, &self.times);
        let key = |page: Page| (uses.get(page.index()), Reverse(times.get(page.index())));
        let follows_lru = self.weights.draws_first();
        // No two pages have the same key, so the least is the LRU page's if it is equal.
        if self.frequency.take_least_if(key, |least| least == key(lru)).is_some() {
            self.take(lru);
            return Some(lru);
        }
        if follows_lru {
            self.frequency.remove(lru);
            self.evict(lru, IN_LRU_HISTORY);
            return Some(lru);
        }
        let lfu = self.frequency.take_least(key)?;
        self.evict(lfu, IN_LFU_HISTORY);
        Some(lfu)
    }

    fn resized(&mut self, frames: u32) {
        let target =
            u64::from(self.scan_target_pages) * u64::from(frames) / u64::from(self.frames.max(1));
        self.frames = frames;
        self.set_scan_target(target as u32);
        self.history_most_pages = self.history_share.of(frames);
        self.rate.period_refs = u64::from(frames.max(1));
        while self.reused.len() > self.reused_most_pages && self.demote() {}
        self.bound_histories();
    }

    fn resident(&self) -> u32 {
        self.reused.len() + self.scan.len()
    }
}

const RATE_LEAST: f64 = 0.001;
const RATE_MOST: f64 = 1.0;
/// Periods without hits, or with fewer and fewer, after which the rate starts anew.
const PATIENCE_PERIODS: u32 = 10;

/// The paper's Algorithm 2: a learning rate that goes on where the hit ratio rose and back where it
/// fell, looked at once in as many references as there are frames. Ratios are rounded to three
/// decimals, so that noise does not count.
#[derive(Clone, Debug)]
struct LearningRate {
    rate: f64,
    initial: f64,
    before: f64,
    hit_ratio_before: f64,
    without_hits_periods: u32,
    falling_periods: u32,
    refs: u64,
    hits: u64,
    period_refs: u64,
}

impl LearningRate {
    fn new(frames: u32) -> Self {
        let initial = (2.0 * std::f64::consts::LN_2 / f64::from(frames.max(1))).sqrt();
        Self {
            rate: initial,
            initial: initial.clamp(RATE_LEAST, RATE_MOST),
            before: 0.0,
            hit_ratio_before: 0.0,
            without_hits_periods: 0,
            falling_periods: 0,
            refs: 0,
            hits: 0,
            period_refs: u64::from(frames.max(1)),
        }
    }

    fn count(&mut self, is_hit: bool, draws: &mut Weights) {
        self.refs += 1;
        self.hits += u64::from(is_hit);
        if self.refs >= self.period_refs {
            self.end_period(draws);
        }
    }

    #[cold]
    fn end_period(&mut self, draws: &mut Weights) {
        let hit_ratio = rounded(self.hits as f64 / self.refs as f64);
        let rise = rounded(hit_ratio - self.hit_ratio_before);
        let step = rounded(self.rate) - rounded(self.before);
        let before = self.rate;
        let direction = rise * step;
        if direction != 0.0 {
            let change = (self.rate * step).abs() * direction.signum();
            self.rate = (self.rate + change).clamp(RATE_LEAST, RATE_MOST);
            (self.without_hits_periods, self.falling_periods) = (0, 0);
        } else if rise <= 0.0 {
            let is_falling = rise < 0.0;
            self.without_hits_periods += u32::from(is_falling || hit_ratio <= 0.0);
            self.falling_periods += u32::from(is_falling);
            if self.without_hits_periods >= PATIENCE_PERIODS {
                (self.rate, self.without_hits_periods) = (self.initial, 0);
            } else if is_falling && self.falling_periods >= PATIENCE_PERIODS {
                (self.rate, self.falling_periods) = (self.initial, 0);
            } else if is_falling {
                self.step_at_random(draws);
            }
        }
        self.before = before;
        self.hit_ratio_before = hit_ratio;
        (self.refs, self.hits) = (0, 0);
    }

    fn step_at_random(&mut self, draws: &mut Weights) {
        self.rate = if self.rate >= RATE_MOST {
            0.9
        } else if self.rate <= RATE_LEAST {
            0.005
        } else if draws.draw() < 0.5 {
            (self.rate * 1.25).min(RATE_MOST)
        } else {
            (self.rate * 0.75).max(RATE_LEAST)
        };
    }
}

/// To three decimals.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
