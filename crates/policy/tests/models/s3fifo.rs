//! S3-FIFO, as its paper has it and as libCacheSim does.
use std::collections::{BTreeMap, VecDeque};

use pagekeeper_policy::Admission;
use proptest::prelude::*;

use super::{Model, build, compare, config, drop_page, events};

/// S3-FIFO's three queues from oldest to newest, and what was used how often.
struct S3FifoModel {
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    ghosts: VecDeque<u32>,
    /// Uses after the first; -1 for a prefetched page not used yet.
    reuses: BTreeMap<u32, i32>,
    frames: usize,
    is_paper: bool,
    has_evicted: bool,
}

impl S3FifoModel {
    fn new(frames: u32, is_paper: bool) -> Self {
        Self {
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
            reuses: BTreeMap::new(),
            frames: frames as usize,
            is_paper,
            has_evicted: false,
        }
    }

    fn small_target(&self) -> usize {
        self.frames / 10
    }

    /// The paper's `evictM`.
    fn evict_main(&mut self) -> Option<u32> {
        loop {
            let page = self.main.pop_front()?;
            let reuses = self.reuses.get_mut(&page).unwrap();
            if *reuses <= 0 {
                return Some(page);
            }
            *reuses -= 1;
            self.main.push_back(page);
        }
    }

    fn trim(&mut self, coming: Option<u32>) {
        let coming = coming.filter(|page| self.ghosts.contains(page));
        let most = self.frames * 9 / 10 + usize::from(coming.is_some());
        while self.ghosts.len() > most {
            let oldest = self.ghosts.iter().position(|page| Some(*page) != coming).unwrap();
            self.ghosts.remove(oldest);
        }
    }
}

impl Model for S3FifoModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        let was_ghost = drop_page(&mut self.ghosts, page);
        let is_filling =
            !self.is_paper && !self.has_evicted && self.small.len() >= self.small_target();
        if was_ghost && how == Admission::Demand || is_filling {
            self.main.push_back(page);
        } else {
            self.small.push_back(page);
        }
        self.reuses.insert(page, if how == Admission::Demand { 0 } else { -1 });
    }
    fn referenced(&mut self, page: u32) {
        self.reuses.entry(page).and_modify(|reuses| *reuses = 3.min(*reuses + 1));
    }
    fn removed(&mut self, page: u32) {
        let _ = drop_page(&mut self.small, page) || drop_page(&mut self.main, page);
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        self.has_evicted = true;
        let main_target = self.frames - self.small_target();
        let from_small = if self.is_paper {
            self.small.len() >= self.small_target()
        } else {
            self.main.len() <= main_target
        };
        if !from_small && !self.main.is_empty() {
            return self.evict_main();
        }
        while let Some(page) = self.small.pop_front() {
            if self.reuses[&page] < 2 {
                self.ghosts.push_back(page);
                self.trim(incoming);
                return Some(page);
            }
            self.reuses.insert(page, 0);
            self.main.push_back(page);
            if self.is_paper && self.main.len() > main_target {
                break;
            }
        }
        self.evict_main()
    }
    fn resized(&mut self, frames: u32) {
        self.frames = frames as usize;
        self.trim(None);
    }
    fn resident(&self) -> Vec<u32> {
        self.small.iter().chain(&self.main).copied().collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn s3fifo(events in events(), frames in 1..20_u32) {
        compare(build("s3fifo", frames), S3FifoModel::new(frames, true), frames, &events);
    }

    #[test]
    fn s3fifo_variant(events in events(), frames in 1..20_u32) {
        let model = S3FifoModel::new(frames, false);
        compare(build("s3fifo:variant=libcachesim", frames), model, frames, &events);
    }
}
