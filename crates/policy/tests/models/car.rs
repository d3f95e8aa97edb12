//! CAR by Figure 2 of its paper, over the lists of ARC's model.
use std::collections::BTreeSet;

use pagekeeper_policy::Admission;
use pagekeeper_policy::policies::car::Car;
use proptest::prelude::*;

use super::arc::ArcModel;
use super::{Model, compare, config, events};

/// CAR's Figure 2, with ARC's lists.
#[derive(Default)]
struct CarModel {
    lists: ArcModel,
    bits: BTreeSet<u32>,
}

impl Model for CarModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        self.bits.remove(&page);
        self.lists.ahead.remove(&page);
        let remembered = self.lists.b1.contains(&page) || self.lists.b2.contains(&page);
        self.lists.admitted(page, how);
        if remembered {
            // No use is missing: its next one sets the bit.
            self.lists.ahead.remove(&page);
        }
    }
    fn referenced(&mut self, page: u32) {
        if self.lists.ahead.remove(&page).is_none() {
            self.bits.insert(page);
        }
    }
    fn removed(&mut self, page: u32) {
        self.lists.removed(page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        let lists = &mut self.lists;
        loop {
            if lists.t1.len() as f64 >= lists.p.max(1.0) || lists.t2.is_empty() {
                let page = lists.t1.pop_front()?;
                if !self.bits.remove(&page) {
                    lists.b1.push_back(page);
                    return Some(page);
                }
                lists.t2.push_back(page);
            } else {
                let page = lists.t2.pop_front()?;
                if !self.bits.remove(&page) {
                    lists.b2.push_back(page);
                    return Some(page);
                }
                lists.t2.push_back(page);
            }
        }
    }
    fn resized(&mut self, frames: u32) {
        self.lists.resized(frames);
    }
    fn resident(&self) -> Vec<u32> {
        self.lists.resident()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn car(events in events(), frames in 1..20_u32) {
        let lists = ArcModel::new(frames);
        compare(Car::new(frames), CarModel { lists, bits: BTreeSet::new() }, frames, &events);
    }
}
