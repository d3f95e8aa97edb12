//! 2Q: its paper's full version.
use std::collections::{BTreeSet, VecDeque};

use pagekeeper_policy::policies::two_q::TwoQ;
use pagekeeper_policy::{Admission, Fraction};
use proptest::prelude::*;

use super::{Model, compare, config, drop_page, events, spare};

/// The paper's full version, line by line.
struct TwoQModel {
    frames: usize,
    a1in: VecDeque<u32>,
    a1out: VecDeque<u32>,
    am: VecDeque<u32>,
    /// Prefetched while remembered.
    again: BTreeSet<u32>,
}

impl TwoQModel {
    fn kin(&self) -> usize {
        self.frames / 4
    }
    fn kout(&self) -> usize {
        self.frames / 2
    }
    fn forget(&mut self, extra: usize) {
        while self.a1out.len() > self.kout() + extra {
            self.a1out.pop_front();
        }
    }
}

impl Model for TwoQModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        match (drop_page(&mut self.a1out, page), how) {
            (true, Admission::Demand) => self.am.push_back(page),
            (remembered, _) => {
                self.a1in.push_back(page);
                if remembered {
                    self.again.insert(page);
                }
            }
        }
        self.forget(0);
    }
    fn referenced(&mut self, page: u32) {
        if drop_page(&mut self.am, page) || self.again.remove(&page) {
            drop_page(&mut self.a1in, page);
            self.am.push_back(page);
        }
    }
    fn removed(&mut self, page: u32) {
        self.again.remove(&page);
        let _ = drop_page(&mut self.am, page) || drop_page(&mut self.a1in, page);
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        if self.a1in.len() > self.kin() || self.am.is_empty() {
            let page = self.a1in.pop_front()?;
            self.again.remove(&page);
            let coming = spare(&mut self.a1out, incoming);
            self.a1out.push_back(page);
            self.forget(usize::from(coming));
            Some(page)
        } else {
            self.am.pop_front()
        }
    }
    fn resized(&mut self, frames: u32) {
        self.frames = frames as usize;
        self.forget(0);
    }
    fn resident(&self) -> Vec<u32> {
        self.a1in.iter().chain(&self.am).copied().collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn two_q(events in events(), frames in 1..20_u32) {
        let model = TwoQModel {
            frames: frames as usize,
            a1in: VecDeque::new(),
            a1out: VecDeque::new(),
            am: VecDeque::new(),
            again: BTreeSet::new(),
        };
        let policy = TwoQ::new(frames, Fraction::new(1, 4), Fraction::new(1, 2));
        compare(policy, model, frames, &events);
    }
}
