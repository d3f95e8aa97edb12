//! Linux's ageing, and the two policies that change one half of its rule each: exponential decay,
//! and pure LRU.
use std::collections::BTreeMap;

use pagekeeper_policy::policies::aging::{self, Aging};
use pagekeeper_policy::policies::{decay, purelru};
use pagekeeper_policy::{Admission, Fraction};
use proptest::prelude::*;

use super::{Model, compare, config, events, next_key};

/// The paper's sentence on Linux: "When initially allocated, a page is given an age 3, and each
/// time the page is referenced, its age increases by 3 to a maximum of 20. … If a virtual page …
/// has not been referenced since the last KSWAPD scan, it will decrease its age by 1 to a minimum
/// of 0. Pages with 0 age are candidates for swapping". The two others change one half each.
pub(super) struct AgingModel {
    /// Age, and whether referenced since the last scan.
    pub(super) pages: BTreeMap<u32, (u32, bool)>,
    hand: u32,
    younger: fn(u32) -> u32,
    older: fn(u32) -> u32,
}

impl AgingModel {
    fn new(younger: fn(u32) -> u32, older: fn(u32) -> u32) -> Self {
        Self { pages: BTreeMap::new(), hand: 0, younger, older }
    }
    pub(super) fn linux() -> Self {
        Self::new(|age| 20.min(age + 3), |age| age.saturating_sub(1))
    }
    /// Passes one page; its age if it was not referenced.
    pub(super) fn scan(&mut self) -> Option<(u32, Option<u32>)> {
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

proptest! {
    #![proptest_config(config())]

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
}
