//! Hyperbolic caching: exact while its sample is everything, and a matter of chance when it is not.
use std::collections::BTreeMap;

use pagekeeper_policy::{Admission, Page};
use proptest::prelude::*;

use super::{Model, build, compare, config, events};

/// Every resident page with its uses and when it came in.
#[derive(Default)]
struct HyperbolicModel {
    pages: BTreeMap<u32, (u64, u64)>,
    now: u64,
}

impl Model for HyperbolicModel {
    fn admitted(&mut self, page: u32, _: Admission) {
        self.now += 1;
        self.pages.insert(page, (1, self.now));
    }
    fn referenced(&mut self, page: u32) {
        self.now += 1;
        self.pages.get_mut(&page).unwrap().0 += 1;
    }
    fn removed(&mut self, page: u32) {
        self.pages.remove(&page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        let now = self.now + 1;
        let priority = |(uses, since): (u64, u64)| uses as f64 / (now - since) as f64;
        let worst = self.pages.iter().min_by(|(_, one), (_, other)| {
            // Equal ratios of small numbers are equal floating-point numbers.
            let (a, b) = (priority(**one), priority(**other));
            a.total_cmp(&b).then(one.1.cmp(&other.1))
        });
        let page = *worst?.0;
        self.pages.remove(&page);
        Some(page)
    }
    fn resident(&self) -> Vec<u32> {
        self.pages.keys().copied().collect()
    }
}

proptest! {
    #![proptest_config(config())]

    /// No more pages than the sample has: all are looked at.
    #[test]
    fn hyperbolic(events in events(), frames in 1..20_u32) {
        compare(build("hyperbolic", frames), HyperbolicModel::default(), frames, &events);
    }
}

/// The worst of 64 drawn from many is, on average, the 65th part from the worst of all.
#[test]
fn hyperbolic_takes_the_worst_of_a_sample() {
    const PAGES: u32 = 4000;
    let mut policy = build("hyperbolic", PAGES);
    for page in 0..PAGES {
        policy.admitted(Page(page), Admission::Demand);
    }
    // Page n is used n times more, so pages are in order of priority.
    for page in 0..PAGES {
        (0..page).for_each(|_| policy.referenced(Page(page)));
    }
    let mut left: Vec<u32> = (0..PAGES).collect();
    let draws = 1000;
    let mut parts = 0.0;
    for _ in 0..draws {
        let page = policy.victim(None).unwrap().0;
        let rank = left.binary_search(&page).unwrap();
        parts += (rank as f64 + 0.5) / left.len() as f64;
        left.remove(rank);
    }
    let mean = parts / f64::from(draws);
    assert!((mean - 1.0 / 65.0).abs() < 0.002, "{mean}");
}
