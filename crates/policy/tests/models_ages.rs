//! Round robin, the ageing family, and the policies of counts and histories, each against a slow,
//! obvious model of it.
use std::collections::BTreeMap;

use pagekeeper_policy::policies::agemru::AgeMru;
use pagekeeper_policy::policies::aging::{self, Aging};
use pagekeeper_policy::policies::lfu::Lfu;
use pagekeeper_policy::policies::lrfu::Lrfu;
use pagekeeper_policy::policies::lru::Lru;
use pagekeeper_policy::policies::lru_k::LruK;
use pagekeeper_policy::policies::mfu::Mfu;
use pagekeeper_policy::policies::rr::RoundRobin;
use pagekeeper_policy::policies::{decay, purelru};
use pagekeeper_policy::{Admission, Checked, Fraction, Page, Policy};
use proptest::prelude::*;

use crate::model;
use model::{Model, compare, config, events};

/// The first key from `hand` on, or from the start.
fn next_key<V>(pages: &BTreeMap<u32, V>, hand: u32) -> Option<u32> {
    pages.range(hand..).next().or(pages.first_key_value()).map(|(page, _)| *page)
}

#[derive(Default)]
struct RoundRobinModel {
    pages: BTreeMap<u32, ()>,
    hand: u32,
}

impl Model for RoundRobinModel {
    fn admitted(&mut self, page: u32, _: Admission) {
        self.pages.insert(page, ());
    }
    fn referenced(&mut self, _: u32) {}
    fn removed(&mut self, page: u32) {
        self.pages.remove(&page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        let page = next_key(&self.pages, self.hand)?;
        self.hand = page + 1;
        self.pages.remove(&page);
        Some(page)
    }
    fn resident(&self) -> Vec<u32> {
        self.pages.keys().copied().collect()
    }
}

/// The paper's sentence on Linux: "When initially allocated, a page is given an age 3, and each
/// time the page is referenced, its age increases by 3 to a maximum of 20. … If a virtual page …
/// has not been referenced since the last KSWAPD scan, it will decrease its age by 1 to a minimum
/// of 0. Pages with 0 age are candidates for swapping". The two others change one half each.
struct AgingModel {
    /// Age, and whether referenced since the last scan.
    pages: BTreeMap<u32, (u32, bool)>,
    hand: u32,
    younger: fn(u32) -> u32,
    older: fn(u32) -> u32,
}

impl AgingModel {
    fn new(younger: fn(u32) -> u32, older: fn(u32) -> u32) -> Self {
        Self { pages: BTreeMap::new(), hand: 0, younger, older }
    }
    fn linux() -> Self {
        Self::new(|age| 20.min(age + 3), |age| age.saturating_sub(1))
    }
    /// Passes one page; its age if it was not referenced.
    fn scan(&mut self) -> Option<(u32, Option<u32>)> {
        let page = next_key(&self.pages, self.hand)?;
        self.hand = page + 1;
        let (age, referenced) = self.pages.get_mut(&page).unwrap();
        if std::mem::take(referenced) {
            *age = (self.younger)(*age);
            Some((page, None))
        } else {
            *age = (self.older)(*age);
            Some((page, Some(*age)))
        }
    }
}

impl Model for AgingModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        self.pages.insert(page, (3, how == Admission::Demand));
    }
    fn referenced(&mut self, page: u32) {
        self.pages.get_mut(&page).unwrap().1 = true;
    }
    fn removed(&mut self, page: u32) {
        self.pages.remove(&page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        loop {
            let (page, age) = self.scan()?;
            if age == Some(0) {
                self.pages.remove(&page);
                return Some(page);
            }
        }
    }
    fn resident(&self) -> Vec<u32> {
        self.pages.keys().copied().collect()
    }
}

struct AgeMruModel {
    ages: AgingModel,
    /// When the page came to its age.
    since: BTreeMap<u32, u32>,
    steps: u32,
    scan_pages: usize,
}

impl AgeMruModel {
    fn new(scan_pages: usize) -> Self {
        Self { ages: AgingModel::linux(), since: BTreeMap::new(), steps: 0, scan_pages }
    }
    fn came(&mut self, page: u32) {
        self.steps += 1;
        self.since.insert(page, self.steps);
    }
}

impl Model for AgeMruModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        self.ages.admitted(page, how);
        if how == Admission::Prefetch {
            self.ages.pages.get_mut(&page).unwrap().0 = 0;
        }
        self.came(page);
    }
    fn referenced(&mut self, page: u32) {
        self.ages.referenced(page);
    }
    fn removed(&mut self, page: u32) {
        self.ages.removed(page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        for _ in 0..self.scan_pages.min(self.ages.pages.len()) {
            let before = self.ages.pages.clone();
            let (page, _) = self.ages.scan()?;
            if before[&page].0 != self.ages.pages[&page].0 {
                self.came(page);
            }
        }
        let pages = self.ages.pages.iter();
        let page = *pages.max_by_key(|(page, (age, _))| (*age, self.since[page]))?.0;
        self.removed(page);
        Some(page)
    }
    fn resident(&self) -> Vec<u32> {
        self.ages.resident()
    }
}

/// Pages with the times at which they were used; what makes a victim of them is a function.
struct UsesModel<K> {
    pages: BTreeMap<u32, Uses>,
    now: u64,
    /// The least leaves.
    key: Key<K>,
}

/// Of uses, at a time.
type Key<K> = Box<dyn Fn(&Uses, u64) -> K>;

struct Uses {
    times: Vec<u64>,
    /// Prefetched, and no use of it seen yet: the one time is that of admission.
    unseen: bool,
}

impl<K: PartialOrd> UsesModel<K> {
    fn new(key: impl Fn(&Uses, u64) -> K + 'static) -> Self {
        Self { pages: BTreeMap::new(), now: 0, key: Box::new(key) }
    }
}

impl<K: PartialOrd> Model for UsesModel<K> {
    fn admitted(&mut self, page: u32, how: Admission) {
        self.now += 1;
        let unseen = how == Admission::Prefetch;
        self.pages.insert(page, Uses { times: vec![self.now], unseen });
    }
    fn referenced(&mut self, page: u32) {
        self.now += 1;
        let uses = self.pages.get_mut(&page).unwrap();
        if std::mem::take(&mut uses.unseen) {
            uses.times.clear();
        }
        uses.times.push(self.now);
    }
    fn removed(&mut self, page: u32) {
        self.pages.remove(&page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        let keys = self.pages.iter().map(|(page, uses)| ((self.key)(uses, self.now), *page));
        let least = keys.reduce(|least, other| if other.0 < least.0 { other } else { least });
        let page = least?.1;
        self.pages.remove(&page);
        Some(page)
    }
    fn resident(&self) -> Vec<u32> {
        self.pages.keys().copied().collect()
    }
}

fn lfu_model() -> UsesModel<impl PartialOrd> {
    UsesModel::new(|uses, _| (uses.times.len(), uses.times.last().copied()))
}

fn mfu_model() -> UsesModel<impl PartialOrd> {
    UsesModel::new(|uses, _| {
        let last = *uses.times.last().unwrap() as i64;
        // What is unseen is last of all to leave, and of several the oldest first.
        (-(uses.times.len() as i64), if uses.unseen { last } else { -last })
    })
}

/// The definition of the CRF, summed anew each time.
fn lrfu_model(lambda: f64) -> UsesModel<impl PartialOrd> {
    UsesModel::new(move |uses, now| {
        let weigh = |time: &u64| 0.5_f64.powf(lambda * (now - time) as f64);
        (uses.times.iter().map(weigh).sum::<f64>(), uses.times.last().copied())
    })
}

/// Figure 2.1 of the LRU-K paper, line by line, its arrays as vectors: `hist[0]` is HIST(p, 1).
struct LruKModel {
    k: usize,
    correlated: u64,
    retained: u64,
    t: u64,
    buffer: Vec<u32>,
    unseen: Vec<u32>,
    hist: BTreeMap<u32, Vec<u64>>,
    last: BTreeMap<u32, u64>,
}

impl LruKModel {
    fn new(k: usize, correlated: u64, retained: u64) -> Self {
        let (buffer, unseen) = (Vec::new(), Vec::new());
        let (hist, last) = (BTreeMap::new(), BTreeMap::new());
        Self { k, correlated, retained, t: 0, buffer, unseen, hist, last }
    }
    fn new_reference(&mut self, page: u32, period: u64) {
        let hist = self.hist.entry(page).or_default();
        hist.iter_mut().for_each(|time| *time += period);
        hist.insert(0, self.t);
        hist.truncate(self.k);
    }
}

impl Model for LruKModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        self.t += 1;
        // The demon that drops what was not referenced within the Retained Information Period.
        if self.last.get(&page).is_some_and(|last| self.t - last > self.retained) {
            self.hist.remove(&page);
        }
        self.new_reference(page, 0);
        self.last.insert(page, self.t);
        self.buffer.push(page);
        if how == Admission::Prefetch {
            self.unseen.push(page);
        }
    }
    fn referenced(&mut self, page: u32) {
        self.t += 1;
        let unseen = self.unseen.iter().position(|other| *other == page);
        if let Some(place) = unseen {
            self.unseen.remove(place);
            self.hist.get_mut(&page).unwrap()[0] = self.t;
        } else if self.t - self.last[&page] > self.correlated {
            let period = self.last[&page] - self.hist[&page][0];
            self.new_reference(page, period);
        }
        self.last.insert(page, self.t);
    }
    fn removed(&mut self, page: u32) {
        self.buffer.retain(|other| *other != page);
        self.unseen.retain(|other| *other != page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        let t = self.t + 1;
        let rank = |page: &u32| match self.hist[page].get(self.k - 1) {
            None => (0, self.last[page], *page),
            Some(kth) => (1, *kth, *page),
        };
        let eligible = self.buffer.iter().filter(|page| t - self.last[page] > self.correlated);
        let victim = eligible
            .min_by_key(|page| rank(page))
            .or_else(|| self.buffer.iter().min_by_key(|page| self.last[page]));
        let victim = *victim?;
        self.removed(victim);
        Some(victim)
    }
    fn resident(&self) -> Vec<u32> {
        self.buffer.clone()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn round_robin(events in events(), frames in 1..20_u32) {
        compare(RoundRobin::new(), RoundRobinModel::default(), frames, &events);
    }

    #[test]
    fn linux_aging(events in events(), frames in 1..20_u32) {
        compare(Aging::new(3, aging::rule(20, 3, 1)), AgingModel::linux(), frames, &events);
    }

    #[test]
    fn exponential_decay(events in events(), frames in 1..20_u32) {
        let model = AgingModel::new(|age| 20.min(age + 3), |age| age / 2);
        let rule = decay::rule(20, 3, Fraction::new(1, 2));
        compare(Aging::new(3, rule), model, frames, &events);
    }

    #[test]
    fn pure_lru_by_aging(events in events(), frames in 1..20_u32) {
        let model = AgingModel::new(|_| 20, |age| age.saturating_sub(1));
        compare(Aging::new(3, purelru::rule(20, 1)), model, frames, &events);
    }

    #[test]
    fn mru_by_age(events in events(), frames in 1..20_u32, scan_pages in 0..9_usize) {
        let policy = AgeMru::new(3, aging::rule(20, 3, 1), scan_pages as u32);
        compare(policy, AgeMruModel::new(scan_pages), frames, &events);
    }

    #[test]
    fn lfu(events in events(), frames in 1..20_u32) {
        compare(Lfu::new(), lfu_model(), frames, &events);
    }

    #[test]
    fn mfu(events in events(), frames in 1..20_u32) {
        compare(Mfu::new(), mfu_model(), frames, &events);
    }

    #[test]
    fn lru_k(
        events in events(),
        frames in 1..20_u32,
        k in 1..4_usize,
        correlated in prop::sample::select(vec![0, 1, 5, 40]),
        retained in prop::sample::select(vec![0, 10, 100, 1_000_000]),
    ) {
        let policy = LruK::new(k, correlated, retained);
        compare(policy, LruKModel::new(k, correlated, retained), frames, &events);
    }

    #[test]
    fn lrfu(
        events in events(),
        frames in 1..20_u32,
        lambda in prop::sample::select(vec![(0, 1), (1, 1000), (1, 10), (2, 3), (1, 1)]),
    ) {
        let lambda = Fraction::new(lambda.0, lambda.1);
        compare(Lrfu::new(lambda), lrfu_model(lambda.to_f64()), frames, &events);
    }

    /// What the paper's title says, victim by victim.
    #[test]
    fn lrfu_subsumes_lfu_and_lru(events in events(), frames in 1..20_u32) {
        compare(Lrfu::new(Fraction::new(0, 1)), AsModel::new(Lfu::new()), frames, &events);
        compare(Lrfu::new(Fraction::new(1, 1)), AsModel::new(Lru::new()), frames, &events);
    }

    /// The paper's first remark on its name.
    #[test]
    fn lru_1_is_lru(events in events(), frames in 1..20_u32) {
        compare(LruK::new(1, 0, 0), AsModel::new(Lru::new()), frames, &events);
    }
}

/// Another policy as the model.
struct AsModel<P> {
    policy: P,
    resident: Vec<u32>,
}

impl<P: Policy> AsModel<P> {
    fn new(policy: P) -> Self {
        Self { policy, resident: Vec::new() }
    }
    fn gone(&mut self, page: u32) {
        self.resident.retain(|other| *other != page);
    }
}

impl<P: Policy> Model for AsModel<P> {
    fn admitted(&mut self, page: u32, how: Admission) {
        self.policy.admitted(Page(page), how);
        self.resident.push(page);
    }
    fn referenced(&mut self, page: u32) {
        self.policy.referenced(Page(page));
    }
    fn removed(&mut self, page: u32) {
        self.policy.removed(Page(page));
        self.gone(page);
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        let page = self.policy.victim(incoming.map(Page))?.0;
        self.gone(page);
        Some(page)
    }
    fn resident(&self) -> Vec<u32> {
        self.resident.clone()
    }
}

/// Faults of demand paging from cold.
fn faults(policy: impl Policy, frames: u32, references: impl IntoIterator<Item = u32>) -> u32 {
    let mut policy = Checked::new(policy, frames);
    let mut faults = 0;
    for page in references.into_iter().map(Page) {
        if policy.is_resident(page) {
            policy.referenced(page);
            continue;
        }
        faults += 1;
        if policy.resident() == frames {
            policy.victim(Some(page));
        }
        policy.admitted(page, Admission::Demand);
    }
    faults
}

/// What the paper measured on matrix multiplication: over a loop larger than memory, MRU by age
/// and MFU keep a part of it, where Linux ageing and round robin fault on every page.
#[test]
fn loops_are_kept_by_age_mru_and_mfu() {
    let looping = || (0..5000).map(|step| step % 100);
    assert_eq!(faults(Aging::new(3, aging::rule(20, 3, 1)), 80, looping()), 5000);
    assert_eq!(faults(RoundRobin::new(), 80, looping()), 5000);
    let by_age = faults(AgeMru::new(3, aging::rule(20, 3, 1), 3), 80, looping());
    assert!(by_age < 2500, "{by_age}");
    let mfu = faults(Mfu::new(), 80, looping());
    assert!(mfu < 2500, "{mfu}");
}

/// Example 1.1 of the LRU-K paper: index pages and record pages are referenced alternately, each
/// at random; there is room for the 100 index pages and one more. LRU-2 keeps the index.
#[test]
fn lru_2_keeps_the_index_beside_its_records() {
    // A fixed generator (Knuth's MMIX constants) is random enough for two uniform draws.
    let mut state = 1_u64;
    let mut below = move |bound: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % bound) as u32
    };
    let references: Vec<u32> = (0..40_000)
        .map(|step| if step % 2 == 0 { below(100) } else { 100 + below(10_000) })
        .collect();
    let lru = faults(Lru::new(), 101, references.iter().copied());
    let lru_2 = faults(LruK::new(2, 0, u64::MAX), 101, references.iter().copied());
    // Of 20,000 references to records nearly all must fault; the index is what differs.
    assert!(lru > 26_000, "{lru}");
    assert!(lru_2 < 22_000, "{lru_2}");
}
