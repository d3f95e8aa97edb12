//! LRU: a queue, to whose end every use moves a page.
use std::collections::VecDeque;

use pagekeeper_policy::Admission;
use pagekeeper_policy::policies::lru::Lru;
use proptest::prelude::*;

use super::{Model, compare, config, drop_page, events};

#[derive(Default)]
struct LruModel(VecDeque<u32>);

impl Model for LruModel {
    fn admitted(&mut self, page: u32, _: Admission) {
        self.0.push_back(page);
    }
    fn referenced(&mut self, page: u32) {
        drop_page(&mut self.0, page);
        self.0.push_back(page);
    }
    fn removed(&mut self, page: u32) {
        drop_page(&mut self.0, page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        self.0.pop_front()
    }
    fn resident(&self) -> Vec<u32> {
        self.0.iter().copied().collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn lru(events in events(), frames in 1..20_u32) {
        compare(Lru::new(), LruModel::default(), frames, &events);
    }
}
