//! Segmented LRU: queues above each other, through which uses lift a page.
use std::collections::{BTreeSet, VecDeque};

use pagekeeper_policy::policies::slru::Slru;
use pagekeeper_policy::{Admission, Fraction};
use proptest::prelude::*;

use super::{Model, compare, config, drop_page, events};

struct SlruModel {
    frames: usize,
    segments: Vec<VecDeque<u32>>,
    fills_free: bool,
    ahead: BTreeSet<u32>,
}

impl SlruModel {
    /// Three quarters are protected.
    fn above_most(&self) -> usize {
        self.frames * 3 / 4 / (self.segments.len() - 1)
    }
    fn overflow(&mut self) {
        for segment in (1..self.segments.len()).rev() {
            while self.segments[segment].len() > self.above_most() {
                let page = self.segments[segment].pop_front().unwrap();
                self.segments[segment - 1].push_back(page);
            }
        }
    }
}

impl Model for SlruModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        let above_most = self.above_most();
        let lowest_most = self.frames - above_most * (self.segments.len() - 1);
        let mut segment = 0;
        if self.fills_free && how == Admission::Demand && self.segments[0].len() >= lowest_most {
            segment = (1..self.segments.len())
                .find(|segment| self.segments[*segment].len() < above_most)
                .unwrap_or(0);
        }
        if how == Admission::Prefetch {
            self.ahead.insert(page);
        }
        self.segments[segment].push_back(page);
    }
    fn referenced(&mut self, page: u32) {
        let segment = self.segments.iter_mut().position(|queue| drop_page(queue, page)).unwrap();
        let up = usize::from(!self.ahead.remove(&page));
        let segment = (segment + up).min(self.segments.len() - 1);
        self.segments[segment].push_back(page);
        self.overflow();
    }
    fn removed(&mut self, page: u32) {
        self.ahead.remove(&page);
        self.segments.iter_mut().for_each(|queue| _ = drop_page(queue, page));
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        let page = self.segments.iter_mut().find_map(VecDeque::pop_front)?;
        self.ahead.remove(&page);
        Some(page)
    }
    fn resized(&mut self, frames: u32) {
        self.frames = frames as usize;
        self.overflow();
    }
    fn resident(&self) -> Vec<u32> {
        self.segments.iter().flatten().copied().collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn slru(events in events(), frames in 1..20_u32, segments in 2..5_usize, fills_free: bool) {
        let model = SlruModel {
            frames: frames as usize,
            segments: vec![VecDeque::new(); segments],
            fills_free,
            ahead: BTreeSet::new(),
        };
        let policy = Slru::new(frames, segments, Fraction::new(3, 4), fills_free);
        compare(policy, model, frames, &events);
    }
}
