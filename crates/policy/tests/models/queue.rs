//! A queue from whose front victims are taken: FIFO, and LRU where a use moves a page to its end.
use std::collections::VecDeque;

use pagekeeper_policy::Admission;

use super::{Model, drop_page};

pub(super) struct QueueModel {
    pages: VecDeque<u32>,
    uses_move: bool,
}

impl QueueModel {
    pub(super) fn new(uses_move: bool) -> Self {
        Self { pages: VecDeque::new(), uses_move }
    }
}

impl Model for QueueModel {
    fn admitted(&mut self, page: u32, _: Admission) {
        self.pages.push_back(page);
    }
    fn referenced(&mut self, page: u32) {
        if self.uses_move {
            drop_page(&mut self.pages, page);
            self.pages.push_back(page);
        }
    }
    fn removed(&mut self, page: u32) {
        drop_page(&mut self.pages, page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        self.pages.pop_front()
    }
    fn resident(&self) -> Vec<u32> {
        self.pages.iter().copied().collect()
    }
}
