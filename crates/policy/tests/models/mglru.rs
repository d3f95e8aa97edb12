//! The multi-generational LRU: lists by age, and when a new one is begun.
use std::collections::VecDeque;

use pagekeeper_policy::Admission;
use proptest::prelude::*;

use super::{Model, build, compare, config, drop_page, events};

/// Generations from oldest to youngest, and the pages referenced since the last aging, in order.
struct MgLruModel {
    gens: VecDeque<VecDeque<u32>>,
    referenced: Vec<u32>,
    /// Notes in the order of first references, those of pages that have left since among them.
    notes: Vec<u32>,
    min_gens: usize,
    max_gens: usize,
}

impl MgLruModel {
    fn new(min_gens: usize, max_gens: usize) -> Self {
        let gens = (0..min_gens).map(|_| VecDeque::new()).collect();
        Self { gens, referenced: Vec::new(), notes: Vec::new(), min_gens, max_gens }
    }

    fn take(&mut self, page: u32) -> bool {
        self.referenced.retain(|other| *other != page);
        self.gens.iter_mut().any(|list| drop_page(list, page))
    }

    fn should_age(&self) -> bool {
        let total: usize = self.gens.iter().map(VecDeque::len).sum();
        let ideal = self.min_gens + 1;
        self.gens.len() < ideal
            || self.gens.len() == ideal
                && (self.gens.back().unwrap().len() * self.min_gens > total
                    || self.gens[0].len() * (self.min_gens + 2) < total)
    }

    fn age(&mut self) {
        for page in std::mem::take(&mut self.notes) {
            if self.referenced.contains(&page) {
                self.take(page);
                self.gens.back_mut().unwrap().push_back(page);
            }
        }
        if self.gens.len() == self.max_gens {
            let mut oldest = self.gens.pop_front().unwrap();
            oldest.append(&mut self.gens[0]);
            self.gens[0] = oldest;
        }
        self.gens.push_back(VecDeque::new());
    }
}

impl Model for MgLruModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        let youngest = self.gens.len() - 1;
        let place = if how == Admission::Demand { youngest } else { youngest.min(1) };
        self.gens[place].push_back(page);
    }
    fn referenced(&mut self, page: u32) {
        if !self.referenced.contains(&page) {
            self.referenced.push(page);
            self.notes.push(page);
        }
    }
    fn removed(&mut self, page: u32) {
        self.take(page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        if self.resident().is_empty() {
            return None;
        }
        loop {
            if self.should_age() {
                self.age();
            }
            while self.gens[0].is_empty() && self.gens.len() > self.min_gens {
                self.gens.pop_front();
            }
            if self.gens.len() > self.min_gens {
                let page = self.gens[0][0];
                let was_referenced = self.referenced.contains(&page);
                self.take(page);
                if !was_referenced {
                    return Some(page);
                }
                self.gens.back_mut().unwrap().push_back(page);
            }
        }
    }
    fn resident(&self) -> Vec<u32> {
        self.gens.iter().flatten().copied().collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn mglru(events in events(), frames in 1..20_u32, gens in 1..4_usize, more in 1..4_usize) {
        let spec = format!("mglru:min_gens={gens},max_gens={}", gens + more);
        compare(build(&spec, frames), MgLruModel::new(gens, gens + more), frames, &events);
    }
}
