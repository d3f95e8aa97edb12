//! LIRS by its paper's Figure 2.
use std::collections::{BTreeMap, VecDeque};

use pagekeeper_policy::Admission;
use proptest::prelude::*;

use super::{Model, build, compare, config, drop_page, events};

#[derive(Clone, Copy, PartialEq)]
enum Status {
    Lir,
    Hir,
    Departed,
}

/// The paper's Figure 2: stack S from bottom to top, queue Q from front to end, and what each page
/// in either is. `departed` has the non-resident pages in the order in which they left.
#[derive(Default)]
struct LirsModel {
    stack: Vec<u32>,
    queue: VecDeque<u32>,
    departed: VecDeque<u32>,
    status: BTreeMap<u32, Status>,
    lir_most: usize,
    stack_most: usize,
}

impl LirsModel {
    fn new(frames: u32) -> Self {
        let mut model = Self::default();
        model.resized(frames);
        model
    }

    fn lirs(&self) -> usize {
        self.status.values().filter(|status| **status == Status::Lir).count()
    }

    fn is_in_stack(&self, page: u32) -> bool {
        self.stack.contains(&page)
    }

    fn forget(&mut self, page: u32) {
        self.stack.retain(|other| *other != page);
        drop_page(&mut self.queue, page);
        drop_page(&mut self.departed, page);
        self.status.remove(&page);
    }

    /// Whatever the paper's rules ask for after a step: no more LIR pages than fit, a LIR page at
    /// the bottom, no page remembered that is neither resident nor in the stack, a short stack.
    fn settle(&mut self) {
        while self.lirs() > self.lir_most {
            let bottom =
                self.stack.iter().position(|page| self.status[page] == Status::Lir).unwrap();
            let page = self.stack.remove(bottom);
            self.status.insert(page, Status::Hir);
            self.queue.push_back(page);
        }
        while self.stack.first().is_some_and(|page| self.status[page] != Status::Lir) {
            let page = self.stack.remove(0);
            if self.status[&page] == Status::Departed {
                self.forget(page);
            }
        }
        while self.stack.len() > self.stack_most && !self.departed.is_empty() {
            self.forget(self.departed[0]);
        }
    }
}

impl Model for LirsModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        drop_page(&mut self.departed, page);
        self.status.insert(page, Status::Hir);
        self.queue.push_back(page);
        if how == Admission::Demand {
            self.referenced(page);
        }
    }
    fn referenced(&mut self, page: u32) {
        let was_in_stack = self.is_in_stack(page);
        self.stack.retain(|other| *other != page);
        self.stack.push(page);
        if self.status[&page] == Status::Hir {
            drop_page(&mut self.queue, page);
            if was_in_stack || self.lirs() < self.lir_most {
                self.status.insert(page, Status::Lir);
            } else {
                self.queue.push_back(page);
            }
        }
        self.settle();
    }
    fn removed(&mut self, page: u32) {
        self.forget(page);
        self.settle();
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        if let Some(page) = self.queue.pop_front() {
            if self.is_in_stack(page) {
                self.status.insert(page, Status::Departed);
                self.departed.push_back(page);
            } else {
                self.status.remove(&page);
            }
            return Some(page);
        }
        let page = *self.stack.first()?;
        self.removed(page);
        Some(page)
    }
    fn resized(&mut self, frames: u32) {
        let frames = frames as usize;
        self.lir_most = frames - (frames / 4).max(1);
        self.stack_most = 2 * frames;
        self.settle();
    }
    fn resident(&self) -> Vec<u32> {
        let resident = self.status.iter().filter(|(_, status)| **status != Status::Departed);
        resident.map(|(page, _)| *page).collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn lirs(events in events(), frames in 1..20_u32) {
        compare(build("lirs:hir=1/4", frames), LirsModel::new(frames), frames, &events);
    }
}
