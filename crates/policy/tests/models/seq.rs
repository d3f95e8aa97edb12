//! SEQ: sequences of faults, and what they are for: loops.
use std::collections::VecDeque;

use pagekeeper_policy::policies::seq::{Limits, Seq};
use pagekeeper_policy::{Admission, Checked, Page, Place, Policy, Segment};
use proptest::prelude::*;

use super::{Model, compare, config, drop_page, events_in_runs};

/// A sequence of faults, lowest and highest page, its direction (0 while it has one page), and the
/// times of its faults.
#[derive(Clone)]
struct Run {
    low: i64,
    high: i64,
    direction: i64,
    times: Vec<u32>,
}

impl Run {
    fn head(&self) -> i64 {
        if self.direction < 0 { self.low } else { self.high }
    }
    fn length(&self) -> i64 {
        self.high - self.low + 1
    }
    fn nth_last(&self, n: usize) -> u32 {
        if self.times.len() < n { 0 } else { self.times[self.times.len() - n] }
    }
}

struct SeqModel {
    l: i64,
    n: usize,
    m: i64,
    runs_most: usize,
    order: VecDeque<u32>,
    runs: Vec<Run>,
    now: u32,
}

impl SeqModel {
    fn fault(&mut self, page: i64) {
        self.now += 1;
        let covers = |run: &Run| (run.low..=run.high).contains(&page);
        let latest = self
            .runs
            .iter()
            .filter(|run| {
                run.high + 1 == page && run.direction >= 0
                    || run.low - 1 == page && run.direction <= 0
            })
            .max_by_key(|run| run.nth_last(1))
            .cloned();
        let latest = if let Some(mut run) = latest {
            self.runs.retain(|other| other.low != run.low && !covers(other));
            run.direction = if page > run.high { 1 } else { -1 };
            (run.low, run.high) = (run.low.min(page), run.high.max(page));
            run
        } else {
            for run in self.runs.iter_mut().filter(|run| covers(run)) {
                match run.direction {
                    1 => run.high = page - 1,
                    -1 => run.low = page + 1,
                    _ => (run.low, run.high) = (0, -1),
                }
            }
            self.runs.retain(|run| run.low <= run.high);
            if self.runs.len() == self.runs_most {
                let worth = |run: &Run| {
                    let doublings = (0..).find(|d| run.length() <= self.l << d).unwrap();
                    (doublings, run.nth_last(1))
                };
                let worst = (0..self.runs.len()).min_by_key(|run| worth(&self.runs[*run]));
                self.runs.remove(worst.unwrap());
            }
            Run { low: page, high: page, direction: 0, times: Vec::new() }
        };
        self.runs.push(latest);
        self.runs.last_mut().unwrap().times.push(self.now);
    }
}

impl Model for SeqModel {
    fn admitted(&mut self, page: u32, _: Admission) {
        self.order.push_back(page);
        self.fault(page.into());
    }
    fn referenced(&mut self, page: u32) {
        drop_page(&mut self.order, page);
        self.order.push_back(page);
    }
    fn removed(&mut self, page: u32) {
        drop_page(&mut self.order, page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        let victim_of = |run: &Run| {
            (run.low..=run.high)
                .filter(|page| (run.head() - page).abs() >= self.m)
                .filter(|page| self.order.contains(&(*page as u32)))
                .min_by_key(|page| (run.head() - page).abs())
        };
        let sequential = self
            .runs
            .iter()
            .filter(|run| run.length() >= self.l && victim_of(run).is_some())
            .max_by_key(|run| run.nth_last(self.n))
            .and_then(victim_of);
        let page = sequential.map(|page| page as u32).or(self.order.front().copied())?;
        drop_page(&mut self.order, page);
        Some(page)
    }
    fn resident(&self) -> Vec<u32> {
        self.order.iter().copied().collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn seq(
        events in events_in_runs(),
        frames in 1..20_u32,
        l in 1..6_i64,
        n in 1..3_usize,
        m in 0..4_i64,
        runs_most in 1..6_usize,
    ) {
        // So that every sequence that is long enough has had as many faults: no ties.
        let n = n.min(l as usize);
        let limits = Limits {
            length_least_pages: l as u64,
            faults: n,
            distance_least_pages: m as u64,
            sequences_most: runs_most,
        };
        let model = SeqModel { l, n, m, runs_most, order: VecDeque::new(), runs: vec![], now: 0 };
        compare(Seq::new(limits), model, frames, &events);
    }
}

/// What SEQ is for, with the authors' parameters: of a loop over 1000 pages in 500 frames, LRU keeps
/// nothing, and SEQ almost what the loop's start left.
#[test]
fn seq_keeps_most_of_a_loop() {
    let limits =
        Limits { length_least_pages: 20, faults: 5, distance_least_pages: 20, sequences_most: 200 };
    let mut policy = Checked::new(Seq::new(limits), 500);
    let mut faults = 0;
    for index in (0..10_000_u32).map(|step| step % 1000) {
        let page = Page(index);
        if policy.is_resident(page) {
            policy.referenced(page);
            continue;
        }
        faults += 1;
        policy.placed(page, Place { segment: Segment(3), index: index.into() });
        if policy.resident() == 500 {
            policy.victim(Some(page));
        }
        policy.admitted(page, Admission::Demand);
    }
    // Of each round at least 500 must fault.
    assert!((1000 + 9 * 500..1000 + 9 * 600).contains(&faults), "{faults}");
}
