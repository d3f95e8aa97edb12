//! LeCaR by its paper's Algorithms 1 and 2; its draws and weights are also Cacheus's.
use std::collections::{BTreeMap, VecDeque};

use pagekeeper_policy::Admission;
use proptest::prelude::*;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::{Model, SEED, build, compare, config, events};

/// LeCaR's and Cacheus's draws, as their files promise them.
pub(super) struct Draws(Xoshiro256PlusPlus);

impl Draws {
    pub(super) fn new() -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(SEED))
    }

    pub(super) fn draw(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

pub(super) fn reweigh(w_lru: &mut f64, blamed_lru: bool, regret: f64) {
    let (mut lru, mut lfu) = (*w_lru, 1.0 - *w_lru);
    *(if blamed_lru { &mut lru } else { &mut lfu }) *= (-regret).exp();
    *w_lru = (lru / (lru + lfu)).clamp(0.01, 0.99);
}

/// The paper's Algorithms 1 and 2, searching for both experts' candidates.
struct LecarModel {
    /// Uses, and when last used.
    resident: BTreeMap<u32, (u32, u64)>,
    /// Of LRU and of LFU, oldest first: page, uses, when evicted.
    histories: [VecDeque<(u32, u32, u64)>; 2],
    /// Uses of pages about to come back.
    recalled: BTreeMap<u32, u32>,
    w_lru: f64,
    draws: Draws,
    now: u64,
    frames: u32,
    keeps: bool,
}

impl LecarModel {
    fn new(frames: u32, keeps: bool) -> Self {
        Self {
            resident: BTreeMap::new(),
            histories: [VecDeque::new(), VecDeque::new()],
            recalled: BTreeMap::new(),
            w_lru: 0.5,
            draws: Draws::new(),
            now: 0,
            frames,
            keeps,
        }
    }

    fn recall(&mut self, page: u32, is_needed: bool) {
        for which in 0..2 {
            let history = &mut self.histories[which];
            let Some(place) = history.iter().position(|entry| entry.0 == page) else { continue };
            let (_, uses, evicted) = history.remove(place).unwrap();
            if is_needed {
                let discount = 0.005_f64.powf(1.0 / f64::from(self.frames));
                let regret = 0.45 * discount.powf((self.now - evicted) as f64);
                reweigh(&mut self.w_lru, which == 0, regret);
                self.recalled.insert(page, uses);
            }
        }
    }
}

impl Model for LecarModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        self.recall(page, how == Admission::Demand);
        let recalled = self.recalled.remove(&page).filter(|_| self.keeps).unwrap_or(0);
        self.now += 1;
        let uses = if how == Admission::Demand { recalled + 1 } else { 0 };
        self.resident.insert(page, (uses, self.now));
    }
    fn referenced(&mut self, page: u32) {
        self.now += 1;
        let (uses, last) = self.resident.get_mut(&page).unwrap();
        (*uses, *last) = (*uses + 1, self.now);
    }
    fn removed(&mut self, page: u32) {
        self.resident.remove(&page);
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        incoming.inspect(|page| self.recall(*page, true));
        let lru = *self.resident.iter().min_by_key(|(_, (_, last))| *last)?.0;
        let lfu = *self.resident.iter().min_by_key(|(_, key)| **key)?.0;
        let which = usize::from(self.draws.draw() >= self.w_lru);
        let page = [lru, lfu][which];
        let (uses, _) = self.resident.remove(&page).unwrap();
        if lru != lfu {
            self.histories[which].push_back((page, uses, self.now));
            self.resized(self.frames);
        }
        Some(page)
    }
    fn resized(&mut self, frames: u32) {
        self.frames = frames;
        for history in &mut self.histories {
            while history.len() > frames as usize / 2 {
                history.pop_front();
            }
        }
    }
    fn resident(&self) -> Vec<u32> {
        self.resident.keys().copied().collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn lecar(events in events(), frames in 1..20_u32, keeps: bool) {
        let spec = format!("lecar:frequency={}", if keeps { "kept" } else { "forgotten" });
        compare(build(&spec, frames), LecarModel::new(frames, keeps), frames, &events);
    }
}
