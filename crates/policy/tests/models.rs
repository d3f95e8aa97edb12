//! Each policy against a slow, obvious model of it: the same victims for the same calls.
use std::collections::VecDeque;

use pagekeeper_policy::policies::clock::Clock;
use pagekeeper_policy::policies::fifo::Fifo;
use pagekeeper_policy::policies::fifo2::Fifo2;
use pagekeeper_policy::policies::lru::Lru;
use pagekeeper_policy::policies::mru::Mru;
use pagekeeper_policy::policies::random::Random;
use pagekeeper_policy::{Admission, Checked, Fraction, Page, Policy};
use proptest::prelude::*;

use crate::model;
use model::{Model, compare, config, drop_page, events};

#[derive(Default)]
struct LruModel(VecDeque<u32>);

impl Model for LruModel {
    fn admitted(&mut self, page: u32, _: Admission) {
        self.0.push_back(page);
    }
    fn referenced(&mut self, page: u32) {
        drop_page(&mut self.0, page);
        self.0.push_back(page);
    }
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

/// The circle as textbooks draw it: a ring, a hand, and newcomers just behind the hand.
#[derive(Default)]
struct ClockModel {
    ring: Vec<(u32, bool)>,
    hand: usize,
}

impl Model for ClockModel {
    fn admitted(&mut self, page: u32, _: Admission) {
        self.ring.insert(self.hand, (page, false));
        self.hand += 1;
        if self.hand == self.ring.len() {
            self.hand = 0;
        }
    }
    fn referenced(&mut self, page: u32) {
        self.ring.iter_mut().find(|entry| entry.0 == page).unwrap().1 = true;
    }
    fn removed(&mut self, page: u32) {
        let place = self.ring.iter().position(|entry| entry.0 == page).unwrap();
        self.ring.remove(place);
        if place < self.hand {
            self.hand -= 1;
        }
        if self.hand == self.ring.len() {
            self.hand = 0;
        }
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        if self.ring.is_empty() {
            return None;
        }
        while self.ring[self.hand].1 {
            self.ring[self.hand].1 = false;
            self.hand = (self.hand + 1) % self.ring.len();
        }
        let (page, _) = self.ring.remove(self.hand);
        if self.hand == self.ring.len() {
            self.hand = 0;
        }
        Some(page)
    }
    fn resident(&self) -> Vec<u32> {
        self.ring.iter().map(|entry| entry.0).collect()
    }
}

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

struct MruModel {
    used: VecDeque<u32>,
    ahead: VecDeque<u32>,
    ahead_most: usize,
}

impl MruModel {
    fn trim(&mut self) {
        while self.ahead.len() > self.ahead_most {
            self.used.push_back(self.ahead.pop_front().unwrap());
        }
    }
}

impl Model for MruModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        match how {
            Admission::Demand => self.used.push_back(page),
            Admission::Prefetch => self.ahead.push_back(page),
        }
        self.trim();
    }
    fn referenced(&mut self, page: u32) {
        self.removed(page);
        self.used.push_back(page);
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
    fn lru(events in events(), frames in 1..20_u32) {
        compare(Lru::new(), LruModel::default(), frames, &events);
    }

    #[test]
    fn fifo(events in events(), frames in 1..20_u32) {
        compare(Fifo::new(), FifoModel::default(), frames, &events);
    }

    #[test]
    fn clock(events in events(), frames in 1..20_u32) {
        compare(Clock::new(), ClockModel::default(), frames, &events);
    }

    #[test]
    fn fifo2(events in events(), frames in 1..20_u32) {
        compare(Fifo2::new(Fraction::new(2, 3)), Fifo2Model::default(), frames, &events);
    }

    #[test]
    fn mru(events in events(), frames in 1..20_u32) {
        let model = MruModel {
            used: VecDeque::new(),
            ahead: VecDeque::new(),
            ahead_most: frames as usize / 4,
        };
        compare(Mru::new(frames, Fraction::new(1, 4)), model, frames, &events);
    }
}

/// Random has no model but its distribution: every resident page is as likely a victim.
#[test]
fn random_takes_every_page_equally_often() {
    const PAGES: u32 = 16;
    const DRAWS: u32 = 16_000;
    let mut policy = Random::new(42);
    (0..PAGES).for_each(|page| policy.admitted(Page(page), Admission::Demand));
    let mut taken = [0_u32; PAGES as usize];
    for _ in 0..DRAWS {
        let page = policy.victim(None).unwrap();
        taken[page.index()] += 1;
        policy.admitted(page, Admission::Demand);
    }
    let expected = f64::from(DRAWS / PAGES);
    let chi_squared: f64 =
        taken.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum();
    // 15 degrees of freedom: 37.7 is exceeded once in a thousand seeds, and the seed is fixed.
    assert!(chi_squared < 37.7, "{chi_squared}: {taken:?}");
}

#[test]
fn random_depends_on_its_seed_and_on_nothing_else() {
    let victims = |seed| {
        let mut policy = Random::new(seed);
        (0..100).for_each(|page| policy.admitted(Page(page), Admission::Demand));
        std::iter::from_fn(|| policy.victim(None)).collect::<Vec<_>>()
    };
    assert_eq!(victims(1), victims(1));
    assert_ne!(victims(1), victims(2));
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
