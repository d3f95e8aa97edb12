//! CLOCK: a ring, a hand, and a bit for each page.
use pagekeeper_policy::Admission;
use pagekeeper_policy::policies::clock::Clock;
use proptest::prelude::*;

use super::{Model, compare, config, events};

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

proptest! {
    #![proptest_config(config())]

    #[test]
    fn clock(events in events(), frames in 1..20_u32) {
        compare(Clock::new(), ClockModel::default(), frames, &events);
    }
}
