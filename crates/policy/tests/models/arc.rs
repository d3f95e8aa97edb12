//! ARC by Figure 4 of its paper.
use std::collections::{BTreeMap, VecDeque};

use pagekeeper_policy::Admission;
use pagekeeper_policy::policies::arc::Arc;
use proptest::prelude::*;

use super::{Model, compare, config, drop_page, events};

/// Figure 4 of ARC's paper, ghosts cut after admissions.
#[derive(Default)]
pub(super) struct ArcModel {
    c: usize,
    pub(super) p: f64,
    pub(super) t1: VecDeque<u32>,
    pub(super) t2: VecDeque<u32>,
    pub(super) b1: VecDeque<u32>,
    pub(super) b2: VecDeque<u32>,
    /// Prefetched, not yet used; and whether it was remembered.
    pub(super) ahead: BTreeMap<u32, bool>,
    adapted_for: Option<u32>,
}

impl ArcModel {
    pub(super) fn new(frames: u32) -> Self {
        Self { c: frames as usize, ..Self::default() }
    }
    fn adapt(&mut self, page: u32) {
        if self.adapted_for == Some(page) {
            return;
        }
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if self.b1.contains(&page) {
            let delta = if b1 >= b2 { 1.0 } else { b2 / b1 };
            self.p = (self.p + delta).min(self.c as f64);
        } else if self.b2.contains(&page) {
            let delta = if b2 >= b1 { 1.0 } else { b1 / b2 };
            self.p = (self.p - delta).max(0.0);
        } else {
            return;
        }
        self.adapted_for = Some(page);
    }
    fn cut(&mut self) {
        while self.t1.len() + self.b1.len() > self.c && self.b1.pop_front().is_some() {}
        while self.t1.len() + self.t2.len() + self.b1.len() + self.b2.len() > 2 * self.c {
            if self.b2.pop_front().is_none() && self.b1.pop_front().is_none() {
                break;
            }
        }
    }
}

impl Model for ArcModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        if how == Admission::Demand {
            self.adapt(page);
        }
        self.adapted_for = None;
        let remembered = drop_page(&mut self.b1, page) || drop_page(&mut self.b2, page);
        if how == Admission::Prefetch {
            self.ahead.insert(page, remembered);
        }
        let list = if remembered && how == Admission::Demand { &mut self.t2 } else { &mut self.t1 };
        list.push_back(page);
        self.cut();
    }
    fn referenced(&mut self, page: u32) {
        let first_use = self.ahead.remove(&page) == Some(false);
        let _ = drop_page(&mut self.t1, page) || drop_page(&mut self.t2, page);
        if first_use { &mut self.t1 } else { &mut self.t2 }.push_back(page);
    }
    fn removed(&mut self, page: u32) {
        self.ahead.remove(&page);
        let _ = drop_page(&mut self.t1, page) || drop_page(&mut self.t2, page);
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        incoming.inspect(|page| self.adapt(*page));
        let in_b2 = incoming.is_some_and(|page| self.b2.contains(&page));
        let t1 = self.t1.len() as f64;
        let page = if t1 >= 1.0 && (in_b2 && t1 == self.p || t1 > self.p) || self.t2.is_empty() {
            let page = self.t1.pop_front()?;
            self.b1.push_back(page);
            page
        } else {
            let page = self.t2.pop_front()?;
            self.b2.push_back(page);
            page
        };
        self.ahead.remove(&page);
        Some(page)
    }
    fn resized(&mut self, frames: u32) {
        self.c = frames as usize;
        self.p = self.p.min(self.c as f64);
        self.cut();
    }
    fn resident(&self) -> Vec<u32> {
        self.t1.iter().chain(&self.t2).copied().collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn arc(events in events(), frames in 1..20_u32) {
        compare(Arc::new(frames), ArcModel::new(frames), frames, &events);
    }
}
