//! Cacheus, as its authors' code has it.
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use pagekeeper_policy::Admission;
use proptest::prelude::*;

use super::lecar::{Draws, reweigh};
use super::{Model, build, compare, config, drop_page, events};

#[derive(Clone, Copy)]
struct CacheusPage {
    uses: u32,
    time: u64,
    demoted: bool,
    new: bool,
}

/// Cacheus as its authors' code has it: `s` and `q` from oldest to newest, counts by counting.
struct CacheusModel {
    pages: BTreeMap<u32, CacheusPage>,
    s: VecDeque<u32>,
    q: VecDeque<u32>,
    lru_history: VecDeque<u32>,
    lfu_history: VecDeque<u32>,
    recalled: BTreeMap<u32, u32>,
    q_limit: u32,
    frames: u32,
    has_evicted: bool,
    now: u64,
    w_lru: f64,
    draws: Draws,
    rate: f64,
    rate_reset: f64,
    rate_previous: f64,
    hit_ratio_previous: f64,
    zero_count: u32,
    negative_count: u32,
    hits: u32,
    references: u32,
}

impl CacheusModel {
    fn new(frames: u32) -> Self {
        let rate = (2.0 * 2.0_f64.ln() / f64::from(frames)).sqrt();
        let mut model = Self {
            pages: BTreeMap::new(),
            s: VecDeque::new(),
            q: VecDeque::new(),
            lru_history: VecDeque::new(),
            lfu_history: VecDeque::new(),
            recalled: BTreeMap::new(),
            q_limit: (f64::from(frames) / 4.0 + 0.5) as u32,
            frames,
            has_evicted: false,
            now: 0,
            w_lru: 0.5,
            draws: Draws::new(),
            rate,
            rate_reset: rate.clamp(0.001, 1.0),
            rate_previous: 0.0,
            hit_ratio_previous: 0.0,
            zero_count: 0,
            negative_count: 0,
            hits: 0,
            references: 0,
        };
        model.limit();
        model
    }

    fn limit(&mut self) {
        self.q_limit = self.q_limit.clamp(1, 1.max(self.frames.saturating_sub(1)));
    }

    fn s_limit(&self) -> usize {
        (self.frames - self.q_limit) as usize
    }

    fn demoted(&self) -> usize {
        self.q.iter().filter(|page| self.pages[page].demoted).count()
    }

    fn new_in_history(&self) -> usize {
        self.lru_history.iter().filter(|page| self.pages[page].new).count()
    }

    fn step(numerator: usize, denominator: usize) -> u32 {
        1.max((numerator as f64 / 1.max(denominator) as f64 + 0.5) as u32)
    }

    fn demote(&mut self) {
        if let Some(page) = self.s.pop_front() {
            self.pages.get_mut(&page).unwrap().demoted = true;
            self.q.push_back(page);
        }
    }

    fn recall(&mut self, page: u32, is_needed: bool) {
        let new = self.new_in_history();
        if drop_page(&mut self.lru_history, page) {
            let entry = self.pages.remove(&page).unwrap();
            if is_needed {
                if entry.new {
                    self.q_limit += Self::step(self.demoted(), new - 1);
                    self.limit();
                }
                reweigh(&mut self.w_lru, true, self.rate);
                self.recalled.insert(page, entry.uses);
            }
        } else if drop_page(&mut self.lfu_history, page) {
            let entry = self.pages.remove(&page).unwrap();
            if is_needed {
                reweigh(&mut self.w_lru, false, self.rate);
                self.recalled.insert(page, entry.uses);
            }
        }
    }

    fn count(&mut self, is_hit: bool) {
        self.references += 1;
        self.hits += u32::from(is_hit);
        if self.references < self.frames {
            return;
        }
        let round = |value: f64| (value * 1000.0).round() / 1000.0;
        let hit_ratio = round(f64::from(self.hits) / f64::from(self.references));
        let change = round(hit_ratio - self.hit_ratio_previous);
        let rate_change = round(self.rate) - round(self.rate_previous);
        self.rate_previous = self.rate;
        if change * rate_change > 0.0 {
            self.rate = (self.rate + (self.rate * rate_change).abs()).min(1.0);
            (self.zero_count, self.negative_count) = (0, 0);
        } else if change * rate_change < 0.0 {
            self.rate = (self.rate - (self.rate * rate_change).abs()).max(0.001);
            (self.zero_count, self.negative_count) = (0, 0);
        } else if change <= 0.0 {
            if hit_ratio <= 0.0 && change == 0.0 {
                self.zero_count += 1;
            }
            if change < 0.0 {
                self.negative_count += 1;
                self.zero_count += 1;
            }
            if self.zero_count >= 10 {
                self.rate = self.rate_reset;
                self.zero_count = 0;
            } else if change < 0.0 {
                if self.negative_count >= 10 {
                    self.rate = self.rate_reset;
                    self.negative_count = 0;
                } else if self.rate >= 1.0 {
                    self.rate = 0.9;
                } else if self.rate <= 0.001 {
                    self.rate = 0.005;
                } else if self.draws.draw() < 0.5 {
                    self.rate = (self.rate * 1.25).min(1.0);
                } else {
                    self.rate = (self.rate * 0.75).max(0.001);
                }
            }
        }
        self.hit_ratio_previous = hit_ratio;
        (self.hits, self.references) = (0, 0);
    }

    fn trim(&mut self) {
        for history in [&mut self.lru_history, &mut self.lfu_history] {
            while history.len() > self.frames as usize / 2 {
                self.pages.remove(&history.pop_front().unwrap());
            }
        }
    }
}

impl Model for CacheusModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        let is_demand = how == Admission::Demand;
        self.recall(page, is_demand);
        let recalled = self.recalled.remove(&page).filter(|_| is_demand);
        self.now += 1;
        let uses = if is_demand { recalled.unwrap_or(0) + 1 } else { 0 };
        let mut entry = CacheusPage { uses, time: self.now, demoted: false, new: false };
        let mut bounds = true;
        if recalled.is_some() {
            self.s.push_back(page);
        } else if is_demand && self.q.is_empty() && self.s.len() < self.s_limit() {
            self.s.push_back(page);
            bounds = false;
        } else {
            let is_filling = is_demand && !self.has_evicted;
            bounds = !(is_filling && self.q.len() < self.q_limit as usize);
            entry.new = bounds;
            self.q.push_back(page);
        }
        self.pages.insert(page, entry);
        while bounds && !self.s.is_empty() && self.s.len() >= self.s_limit() {
            self.demote();
        }
        if is_demand {
            self.count(false);
        }
    }
    fn referenced(&mut self, page: u32) {
        self.count(true);
        self.now += 1;
        let (demoted, new) = (self.demoted(), self.new_in_history());
        let entry = self.pages.get_mut(&page).unwrap();
        entry.uses += 1;
        entry.time = self.now;
        let (uses, was_demoted) = (entry.uses, std::mem::take(&mut entry.demoted));
        if drop_page(&mut self.s, page) {
            self.s.push_back(page);
            return;
        }
        drop_page(&mut self.q, page);
        if uses == 1 {
            self.q.push_back(page);
            return;
        }
        if was_demoted {
            self.q_limit = self.q_limit.saturating_sub(Self::step(new, demoted));
            self.limit();
        }
        if self.s.len() >= self.s_limit() {
            self.demote();
        }
        self.s.push_back(page);
    }
    fn removed(&mut self, page: u32) {
        let _ = drop_page(&mut self.s, page) || drop_page(&mut self.q, page);
        self.pages.remove(&page);
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        self.has_evicted = true;
        incoming.inspect(|page| self.recall(*page, true));
        let lru = *self.q.front().or(self.s.front())?;
        let resident = self.resident();
        let lfu = *resident
            .iter()
            .min_by_key(|page| (self.pages[page].uses, Reverse(self.pages[page].time)))?;
        let from_lru = self.draws.draw() < self.w_lru;
        let page = if from_lru { lru } else { lfu };
        let entry = self.pages[&page];
        self.removed(page);
        if lru != lfu {
            self.pages.insert(page, CacheusPage { demoted: false, ..entry });
            match from_lru {
                true => self.lru_history.push_back(page),
                false => self.lfu_history.push_back(page),
            }
            self.trim();
        }
        Some(page)
    }
    fn resized(&mut self, frames: u32) {
        self.q_limit = self.q_limit * frames / self.frames;
        self.frames = frames;
        self.limit();
        while self.s.len() > self.s_limit() {
            self.demote();
        }
        self.trim();
    }
    fn resident(&self) -> Vec<u32> {
        self.s.iter().chain(&self.q).copied().collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn cacheus(events in events(), frames in 1..20_u32) {
        compare(build("cacheus:scan=1/4", frames), CacheusModel::new(frames), frames, &events);
    }
}
