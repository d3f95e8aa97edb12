//! MRU by age: the ages of Linux, of which the highest leaves.
use std::collections::BTreeMap;

use pagekeeper_policy::Admission;
use pagekeeper_policy::policies::agemru::AgeMru;
use pagekeeper_policy::policies::aging;
use proptest::prelude::*;

use super::aging::AgingModel;
use super::{Model, compare, config, events};

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

proptest! {
    #![proptest_config(config())]

    #[test]
    fn mru_by_age(events in events(), frames in 1..20_u32, scan_pages in 0..9_usize) {
        let policy = AgeMru::new(3, aging::rule(20, 3, 1), scan_pages as u32);
        compare(policy, AgeMruModel::new(scan_pages), frames, &events);
    }
}
