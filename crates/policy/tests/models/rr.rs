//! Round robin: a hand over the pages in the order of their numbers.
use std::collections::BTreeMap;

use pagekeeper_policy::Admission;
use pagekeeper_policy::policies::rr::RoundRobin;
use proptest::prelude::*;

use super::{Model, compare, config, events, next_key};

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

proptest! {
    #![proptest_config(config())]

    #[test]
    fn round_robin(events in events(), frames in 1..20_u32) {
        compare(RoundRobin::new(), RoundRobinModel::default(), frames, &events);
    }
}
