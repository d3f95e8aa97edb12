//! SIEVE by its paper's Algorithm 1.
use pagekeeper_policy::Admission;
use pagekeeper_policy::policies::sieve::Sieve;
use proptest::prelude::*;

use super::{Model, compare, config, events};

/// The paper's Algorithm 1: a queue from oldest to newest, and the hand's place in it.
#[derive(Default)]
struct SieveModel {
    queue: Vec<(u32, u32)>,
    hand: usize,
}

impl Model for SieveModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        // A hand past the newest page looks at the oldest next, not at whoever comes now.
        if self.hand == self.queue.len() {
            self.hand = 0;
        }
        self.queue.push((page, u32::from(how == Admission::Demand)));
    }
    fn referenced(&mut self, page: u32) {
        self.queue.iter_mut().find(|entry| entry.0 == page).unwrap().1 += 1;
    }
    fn removed(&mut self, page: u32) {
        let place = self.queue.iter().position(|entry| entry.0 == page).unwrap();
        self.queue.remove(place);
        if place < self.hand {
            self.hand -= 1;
        }
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        if self.queue.is_empty() {
            return None;
        }
        loop {
            if self.hand >= self.queue.len() {
                self.hand = 0;
            }
            let (page, uses) = &mut self.queue[self.hand];
            if *uses < 2 {
                let page = *page;
                self.queue.remove(self.hand);
                return Some(page);
            }
            *uses = 1;
            self.hand += 1;
        }
    }
    fn resident(&self) -> Vec<u32> {
        self.queue.iter().map(|entry| entry.0).collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn sieve(events in events(), frames in 1..20_u32) {
        compare(Sieve::new(), SieveModel::default(), frames, &events);
    }
}
