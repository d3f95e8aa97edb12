//! MRU with a part of memory for what was fetched ahead; and what it is for: loops.
use std::collections::VecDeque;

use pagekeeper_policy::policies::mru::Mru;
use pagekeeper_policy::{Admission, Checked, Fraction, Page, Policy};
use proptest::prelude::*;

use super::{Model, compare, config, drop_page, events};

struct MruModel {
    used: VecDeque<u32>,
    ahead: VecDeque<u32>,
    ahead_most: usize,
}

impl MruModel {
    fn trim(&mut self) {
        while self.ahead.len() > self.ahead_most {
            self.used.push_back(self.ahead.pop_front().unwrap());
        }
    }
}

impl Model for MruModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        match how {
            Admission::Demand => self.used.push_back(page),
            Admission::Prefetch => self.ahead.push_back(page),
        }
        self.trim();
    }
    fn referenced(&mut self, page: u32) {
        self.removed(page);
        self.used.push_back(page);
    }
    fn removed(&mut self, page: u32) {
        let _ = drop_page(&mut self.used, page) || drop_page(&mut self.ahead, page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        self.used.pop_back().or_else(|| self.ahead.pop_front())
    }
    fn resized(&mut self, frames: u32) {
        self.ahead_most = frames as usize / 4;
        self.trim();
    }
    fn resident(&self) -> Vec<u32> {
        self.used.iter().chain(&self.ahead).copied().collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn mru(events in events(), frames in 1..20_u32) {
        let model = MruModel {
            used: VecDeque::new(),
            ahead: VecDeque::new(),
            ahead_most: frames as usize / 4,
        };
        compare(Mru::new(frames, Fraction::new(1, 4)), model, frames, &events);
    }
}

/// What MRU is for: of a loop over 100 pages in 80 frames, 80 stay but for the one turned over.
#[test]
fn mru_keeps_most_of_a_loop() {
    let mut policy = Checked::new(Mru::new(80, Fraction::new(1, 32)), 80);
    let mut faults = 0;
    for page in (0..1000).map(|step| Page(step % 100)) {
        if policy.is_resident(page) {
            policy.referenced(page);
        } else {
            faults += 1;
            if policy.resident() == 80 {
                policy.victim(Some(page));
            }
            policy.admitted(page, Admission::Demand);
        }
    }
    assert!(faults < 100 + 9 * 27, "{faults}");
}

/// The same loop fetched eight pages at a time, whose touches nobody reports: still most stays.
#[test]
fn mru_keeps_most_of_a_loop_that_is_fetched_in_clusters_and_never_seen_used() {
    let (frames, pages, cluster) = (800, 1000, 8);
    let mut policy = Checked::new(Mru::new(frames, Fraction::new(1, 32)), frames);
    let mut fetched = 0;
    for page in (0..10 * pages).map(|step| step % pages) {
        if policy.is_resident(Page(page)) {
            continue;
        }
        let coming: Vec<_> = (page..pages.min(page + cluster))
            .map(Page)
            .filter(|page| !policy.is_resident(*page))
            .collect();
        while policy.resident() as usize + coming.len() > frames as usize {
            policy.victim(Some(Page(page)));
        }
        for (place, page) in coming.into_iter().enumerate() {
            let how = if place == 0 { Admission::Demand } else { Admission::Prefetch };
            policy.admitted(page, how);
            fetched += 1;
        }
    }
    assert!(fetched < pages + 9 * pages * 25 / 100, "{fetched}");
}
