//! LRU-K by Figure 2.1 of its paper; and the paper's first example.
use std::collections::BTreeMap;

use pagekeeper_policy::Admission;
use pagekeeper_policy::policies::lru::Lru;
use pagekeeper_policy::policies::lru_k::LruK;
use proptest::prelude::*;

use super::{AsModel, Model, compare, config, events, faults};

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

    /// The paper's first remark on its name.
    #[test]
    fn lru_1_is_lru(events in events(), frames in 1..20_u32) {
        compare(LruK::new(1, 0, 0), AsModel::new(Lru::new()), frames, &events);
    }
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
