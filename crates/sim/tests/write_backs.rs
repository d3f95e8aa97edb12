//! OPT-WB between its bounds: all schedules of short strings, and what no schedule can beat.
use std::collections::{BTreeMap, BTreeSet};

use pagekeeper_policy::{Checked, PolicySpec};
use pagekeeper_sim::{
    NextUses, NextWrites, OptWb, References, SweepOptions, opt_wb_bound, replay, replay_opt_wb,
    sweep, write_back_cost,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

type Memory = BTreeMap<u64, bool>;

/// The cheapest of all schedules: every memory that can be had after each reference, with what it
/// costs at least.
fn cheapest(string: &[(u64, bool)], frames: usize, cost: f64) -> f64 {
    let mut memories: BTreeMap<Memory, f64> = BTreeMap::from([(Memory::new(), 0.0)]);
    for (page, is_write) in string {
        let mut next: BTreeMap<Memory, f64> = BTreeMap::new();
        let mut reach = |mut memory: Memory, paid: f64| {
            *memory.entry(*page).or_default() |= is_write;
            let least = next.entry(memory).or_insert(f64::INFINITY);
            *least = least.min(paid);
        };
        for (memory, paid) in memories {
            if memory.contains_key(page) {
                reach(memory, paid);
            } else if memory.len() < frames {
                reach(memory, paid + 1.0);
            } else {
                for (victim, is_dirty) in &memory {
                    let mut left = memory.clone();
                    left.remove(victim);
                    reach(left, paid + 1.0 + if *is_dirty { cost } else { 0.0 });
                }
            }
        }
        memories = next;
    }
    let at_end = |memory: &Memory| memory.values().filter(|dirty| **dirty).count() as f64 * cost;
    memories.iter().map(|(memory, paid)| paid + at_end(memory)).fold(f64::INFINITY, f64::min)
}

fn references(string: &[(u64, bool)]) -> References {
    References::collect(string.iter().map(|(page, write)| (0, *page, *write, 0))).unwrap()
}

/// What `opt`, `opt-wb` and the bound say.
fn costs(references: &References, frames: u32, cost: f64) -> [f64; 3] {
    let next_uses = NextUses::of(references).unwrap();
    let next_writes = NextWrites::of(references);
    let mut opt = pagekeeper_sim::Opt::new(&next_uses);
    let opt = replay(references, &mut opt, frames, |_| ()).unwrap();
    let mut faults = 0;
    let found =
        replay_opt_wb(references, &next_uses, &next_writes, cost, frames, |_| faults += 1).unwrap();
    assert_eq!(found.faults, faults);
    let mut checked = Checked::new(OptWb::new(references, &next_uses, &next_writes, cost), frames);
    replay(references, &mut checked, frames, |_| ()).unwrap();
    let bound = opt_wb_bound(references, &next_uses, frames, cost).unwrap();
    [write_back_cost(&opt, cost), write_back_cost(&found, cost), bound]
}

fn strings(pages: u64, most: usize) -> impl Strategy<Value = Vec<(u64, bool)>> {
    prop::collection::vec((0..pages, prop::bool::weighted(0.4)), 1..most)
}

const COSTS: [f64; 5] = [0.0, 0.25, 1.0, 3.0, 20.0];

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..Default::default() })]

    #[test]
    fn it_lies_between_all_schedules_and_opt(
        string in strings(6, 24), frames in 1..5_u32, cost in prop::sample::select(&COSTS[..]),
    ) {
        let best = cheapest(&string, frames as usize, cost);
        let [opt, found, bound] = costs(&references(&string), frames, cost);
        prop_assert!(bound <= best + 1e-9, "the bound, {bound}, is above the optimum, {best}");
        prop_assert!(best <= found + 1e-9, "{found} is below the optimum, {best}");
        prop_assert!(found <= opt, "{found}, opt {opt}");
        if cost == 0.0 {
            prop_assert_eq!(found, best);
        }
    }

    /// Longer strings, which nobody can try all schedules of.
    #[test]
    fn it_lies_between_the_bound_and_opt(
        string in strings(60, 600), frames in 1..40_u32, cost in prop::sample::select(&COSTS[..]),
    ) {
        let [opt, found, bound] = costs(&references(&string), frames, cost);
        prop_assert!(bound <= found + 1e-9 && found <= opt, "{bound}, {found}, {opt}");
    }
}

/// How near the optimum, over many short strings.
#[test]
fn it_is_near_the_optimum() {
    let mut state = 1_u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    for cost in COSTS {
        let mut sums = [0.0; 4];
        for _ in 0..150 {
            let string: Vec<_> = (0..24).map(|_| (random(7), random(5) < 2)).collect();
            let frames = 2 + random(3) as u32;
            let best = cheapest(&string, frames as usize, cost);
            let [opt, found, bound] = costs(&references(&string), frames, cost);
            for (sum, value) in sums.iter_mut().zip([best, found, opt, bound]) {
                *sum += value;
            }
        }
        let [best, found, opt, bound] = sums;
        println!("cost {cost}: best {best}, opt-wb {found}, opt {opt}, bound {bound}");
        assert!(found <= 1.03 * best, "cost {cost}: {found}, best {best}");
    }
}

/// In a sweep, beside OPT, with the cost as a parameter.
#[test]
fn a_sweep_runs_both_optima() {
    // A hot page that is written and one that is read, by turns with a scan.
    let string: Vec<(u64, bool)> =
        (0..300).flat_map(|step| [(1, true), (100 + step % 7, false), (2, false)]).collect();
    let specs = ["opt", "opt-wb:cost=4", "opt-wb:cost=0", "lru"]
        .map(|text| PolicySpec::parse(text).unwrap());
    let outcomes = sweep(&references(&string), &specs, &[2, 3], &SweepOptions::default()).unwrap();
    let names: BTreeSet<_> = outcomes.iter().map(|outcome| outcome.policy.as_str()).collect();
    assert_eq!(names, BTreeSet::from(["lru", "opt", "opt-wb:cost=0", "opt-wb:cost=4"]));
    let [opt, weighed, free] = [&outcomes[0].counts, &outcomes[2].counts, &outcomes[4].counts];
    assert_eq!(opt, free);
    assert!(write_back_cost(weighed, 4.0) < write_back_cost(opt, 4.0));
    assert_eq!(weighed.write_backs + weighed.dirty_at_end, 1);
}
