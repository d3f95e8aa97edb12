//! FIFO with a second chance, by HiPEC's figure.
use std::collections::VecDeque;

use pagekeeper_policy::policies::fifo2::Fifo2;
use pagekeeper_policy::{Admission, Fraction};
use proptest::prelude::*;

use super::{Model, compare, config, drop_page, events};

/// HiPEC's Figure 3, `Replace`, line by line.
#[derive(Default)]
struct Fifo2Model {
    active: VecDeque<u32>,
    inactive: VecDeque<u32>,
    referenced: std::collections::BTreeSet<u32>,
}

impl Model for Fifo2Model {
    fn admitted(&mut self, page: u32, how: Admission) {
        self.referenced.remove(&page);
        match how {
            Admission::Demand => self.active.push_back(page),
            Admission::Prefetch => self.inactive.push_back(page),
        }
    }
    fn referenced(&mut self, page: u32) {
        self.referenced.insert(page);
    }
    fn removed(&mut self, page: u32) {
        let _ = drop_page(&mut self.active, page) || drop_page(&mut self.inactive, page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        loop {
            let inactive_target = (self.active.len() + self.inactive.len()) * 2 / 3;
            // The last page of all: the figure's target would be none.
            let inactive_target = inactive_target.max(1);
            while self.inactive.len() < inactive_target {
                let Some(page) = self.active.pop_front() else { break };
                self.referenced.remove(&page);
                self.inactive.push_back(page);
            }
            let page = self.inactive.pop_front()?;
            if self.referenced.contains(&page) {
                self.active.push_back(page);
            } else {
                return Some(page);
            }
        }
    }
    fn resident(&self) -> Vec<u32> {
        self.active.iter().chain(&self.inactive).copied().collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn fifo2(events in events(), frames in 1..20_u32) {
        compare(Fifo2::new(Fraction::new(2, 3)), Fifo2Model::default(), frames, &events);
    }
}
