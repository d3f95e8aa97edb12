//! MRU with a part of memory for what was fetched ahead; and what it is for: loops.
use std::collections::VecDeque;

use pagekeeper_policy::policies::mru::Mru;
use pagekeeper_policy::{Admission, Checked, Fraction, Page, Place, Policy, Segment};
use proptest::prelude::*;

use super::{InTens, Model, compare, config, drop_page, events};

struct MruModel {
    used: VecDeque<u32>,
    ahead: VecDeque<u32>,
    ahead_most: usize,
    /// Files of ten pages, by last use.
    files: VecDeque<u32>,
}

impl MruModel {
    fn new(frames: u32) -> Self {
        let ahead_most = frames as usize / 4;
        Self { used: VecDeque::new(), ahead: VecDeque::new(), ahead_most, files: VecDeque::new() }
    }
    fn enter(&mut self, page: u32) {
        self.used.push_back(page);
        drop_page(&mut self.files, page / 10);
        self.files.push_back(page / 10);
    }
    fn trim(&mut self) {
        while self.ahead.len() > self.ahead_most {
            let page = self.ahead.pop_front().unwrap();
            self.enter(page);
        }
    }
}

impl Model for MruModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        match how {
            Admission::Demand => self.enter(page),
            Admission::Prefetch => self.ahead.push_back(page),
        }
        self.trim();
    }
    fn referenced(&mut self, page: u32) {
        self.removed(page);
        self.enter(page);
    }
    fn removed(&mut self, page: u32) {
        let _ = drop_page(&mut self.used, page) || drop_page(&mut self.ahead, page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        self.used.pop_back().or_else(|| self.ahead.pop_front())
    }
    fn resized(&mut self, frames: u32) {
        self.ahead_most = frames as usize / 4;
        self.trim();
    }
    fn resident(&self) -> Vec<u32> {
        self.used.iter().chain(&self.ahead).copied().collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn mru(events in events(), frames in 1..20_u32) {
        compare(Mru::new(frames, Fraction::new(1, 4)), MruModel::new(frames), frames, &events);
    }
}

/// The same for files of ten pages, of which one after the other leaves.
struct FilesModel {
    pages: MruModel,
    leaving: Option<u32>,
}

impl Model for FilesModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        self.pages.admitted(page, how);
    }
    fn referenced(&mut self, page: u32) {
        self.pages.referenced(page);
    }
    fn removed(&mut self, page: u32) {
        self.pages.removed(page);
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        let MruModel { used, files, .. } = &mut self.pages;
        let holds = |file: u32| used.iter().any(|page| page / 10 == file);
        let last = files.iter().rev().copied().find(|file| holds(*file));
        let Some(last) = last else { return self.pages.victim(incoming) };
        let leaving = self.leaving.filter(|file| holds(*file)).unwrap_or(last);
        self.leaving = Some(leaving);
        let victim = used.iter().rev().copied().find(|page| page / 10 == leaving)?;
        drop_page(used, victim);
        Some(victim)
    }
    fn resized(&mut self, frames: u32) {
        self.pages.resized(frames);
    }
    fn resident(&self) -> Vec<u32> {
        self.pages.resident()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn mru_by_file(events in events(), frames in 1..20_u32) {
        let pages = MruModel::new(frames);
        let policy = InTens(Mru::new(frames, Fraction::new(1, 4)).by_file());
        compare(policy, FilesModel { pages, leaving: None }, frames, &events);
    }
}

/// A loop over 40 pages, and after each the next of ten of another file, in 32 frames: by pages what is
/// used beside the loop leaves as well; by files it stays, once all of it has left.
#[test]
fn a_file_beside_a_loop_stays_whole() {
    let faults_beside = |mru: Mru| {
        let mut policy = Checked::new(mru, 32);
        let mut faults = 0;
        for page in (0..4000).flat_map(|step| [10 + step % 40, step * 7 % 10]).map(Page) {
            if policy.is_resident(page) {
                policy.referenced(page);
                continue;
            }
            faults += u32::from(page.0 < 10);
            if policy.wants_places() {
                let segment = Segment(u32::from(page.0 < 10));
                policy.placed(page, Place { segment, index: page.0.into() });
            }
            if policy.resident() == 32 {
                policy.victim(Some(page));
            }
            policy.admitted(page, Admission::Demand);
        }
        faults
    };
    let mru = || Mru::new(32, Fraction::new(1, 32));
    let [by_page, by_file] = [faults_beside(mru()), faults_beside(mru().by_file())];
    assert!(by_file <= 20 && by_page > 1000, "{by_file} by file, {by_page} by page");
}

/// What MRU is for: of a loop over 100 pages in 80 frames, 80 stay but for the one turned over.
#[test]
fn mru_keeps_most_of_a_loop() {
    let mut policy = Checked::new(Mru::new(80, Fraction::new(1, 32)), 80);
    let mut faults = 0;
    for page in (0..1000).map(|step| Page(step % 100)) {
        if policy.is_resident(page) {
            policy.referenced(page);
        } else {
            faults += 1;
            if policy.resident() == 80 {
                policy.victim(Some(page));
            }
            policy.admitted(page, Admission::Demand);
        }
    }
    assert!(faults < 100 + 9 * 27, "{faults}");
}

/// The same loop fetched eight pages at a time, whose touches nobody reports: still most stays.
#[test]
fn mru_keeps_most_of_a_loop_that_is_fetched_in_clusters_and_never_seen_used() {
    let (frames, pages, cluster) = (800, 1000, 8);
    let mut policy = Checked::new(Mru::new(frames, Fraction::new(1, 32)), frames);
    let mut fetched = 0;
    for page in (0..10 * pages).map(|step| step % pages) {
        if policy.is_resident(Page(page)) {
            continue;
        }
        let coming: Vec<_> = (page..pages.min(page + cluster))
            .map(Page)
            .filter(|page| !policy.is_resident(*page))
            .collect();
        while policy.resident() as usize + coming.len() > frames as usize {
            policy.victim(Some(Page(page)));
        }
        for (place, page) in coming.into_iter().enumerate() {
            let how = if place == 0 { Admission::Demand } else { Admission::Prefetch };
            policy.admitted(page, how);
            fetched += 1;
        }
    }
    assert!(fetched < pages + 9 * pages * 25 / 100, "{fetched}");
}
