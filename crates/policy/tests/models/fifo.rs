//! FIFO: a queue that no use changes.
use std::collections::VecDeque;

use pagekeeper_policy::Admission;
use pagekeeper_policy::policies::fifo::Fifo;
use proptest::prelude::*;

use super::{Model, compare, config, drop_page, events};

#[derive(Default)]
struct FifoModel(VecDeque<u32>);

impl Model for FifoModel {
    fn admitted(&mut self, page: u32, _: Admission) {
        self.0.push_back(page);
    }
    fn referenced(&mut self, _: u32) {}
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
    fn fifo(events in events(), frames in 1..20_u32) {
        compare(Fifo::new(), FifoModel::default(), frames, &events);
    }
}
