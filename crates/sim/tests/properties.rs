//! What must hold for every reference string, and slow models that count the same.
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pagekeeper_policy::{Checked, Page, Policy, PolicySpec, all};
use pagekeeper_sim::{
    Counts, Fault, NextUses, NextWrites, Opt, OptWb, Outcome, Reference, References, SimError,
    SweepOptions, replay, sweep,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

fn strings() -> impl Strategy<Value = Vec<Reference>> {
    // Runs, loops and jumps, so that policies differ; pure noise makes them alike.
    let piece = (0..3_u32, 0..20_u64, 1..12_u64, 1..4_u64, prop::bool::weighted(0.3)).prop_map(
        |(segment, start, pages, times, write)| {
            (0..times * pages)
                .map(move |step| {
                    let index = start + step % pages;
                    Reference {
                        segment,
                        page_index: index,
                        write: write && step % 3 == 0,
                        by_call: false,
                        time_ns: 0,
                    }
                })
                .collect::<Vec<_>>()
        },
    );
    prop::collection::vec(piece, 0..25).prop_map(|pieces| pieces.concat())
}

fn spec(text: &str) -> PolicySpec {
    PolicySpec::parse(text).unwrap()
}

fn every_spec() -> Vec<PolicySpec> {
    all().iter().map(PolicySpec::of).collect()
}

fn run(references: &References, name: &str, frames: u32) -> (Counts, Vec<Fault>) {
    let mut faults = Vec::new();
    let on_fault = |fault| faults.push(fault);
    let next_uses = NextUses::of(references).unwrap();
    let next_writes = NextWrites::of(references);
    let policy: Box<dyn Policy + '_> = match name {
        "opt" => Box::new(Opt::new(&next_uses)),
        "opt-wb" => Box::new(OptWb::new(references, &next_uses, &next_writes, 1.0)),
        _ => spec(name).build(frames, 3).unwrap(),
    };
    let counts = replay(references, &mut Checked::new(policy, frames), frames, on_fault);
    (counts.unwrap(), faults)
}

/// Demand paging written for reading: `choose` takes the victim's place in the list of resident
/// pages, which the model's policy orders itself.
fn slow(name: &str, references: &[(u32, bool)], frames: usize) -> Counts {
    let mut order: VecDeque<u32> = VecDeque::new();
    let mut inactive: VecDeque<u32> = VecDeque::new();
    let mut referenced: BTreeSet<u32> = BTreeSet::new();
    let mut dirty: BTreeSet<u32> = BTreeSet::new();
    let mut seen: BTreeSet<u32> = BTreeSet::new();
    let mut counts = Counts::default();
    for (position, &(page, write)) in references.iter().enumerate() {
        counts.references += 1;
        counts.writes += u64::from(write);
        if order.contains(&page) || inactive.contains(&page) {
            counts.hits += 1;
            counts.write_faults += u64::from(write && !dirty.contains(&page));
            match name {
                "lru" | "mru" => {
                    order.retain(|other| *other != page);
                    order.push_back(page);
                }
                "clock" | "fifo2" => drop(referenced.insert(page)),
                _ => {}
            }
        } else {
            counts.faults += 1;
            if seen.insert(page) {
                counts.cold_faults += 1;
            } else {
                counts.refaults += 1;
            }
            if order.len() + inactive.len() == frames {
                let victim = match name {
                    "lru" | "fifo" => order.pop_front().unwrap(),
                    "mru" => order.pop_back().unwrap(),
                    "clock" => loop {
                        let page = order.pop_front().unwrap();
                        if !referenced.remove(&page) {
                            break page;
                        }
                        order.push_back(page);
                    },
                    "fifo2" => loop {
                        while inactive.len() < (frames * 2 / 3).max(1) {
                            let Some(page) = order.pop_front() else { break };
                            referenced.remove(&page);
                            inactive.push_back(page);
                        }
                        let page = inactive.pop_front().unwrap();
                        if !referenced.contains(&page) {
                            break page;
                        }
                        order.push_back(page);
                    },
                    "opt" => {
                        let next = |page: &u32| {
                            let later = &references[position..];
                            later.iter().position(|(other, _)| other == page).unwrap_or(usize::MAX)
                        };
                        let victim = *order.iter().max_by_key(|page| (next(page), **page)).unwrap();
                        order.retain(|other| *other != victim);
                        victim
                    }
                    _ => unreachable!("no model of {name}"),
                };
                counts.evictions += 1;
                counts.write_backs += u64::from(dirty.remove(&victim));
            }
            referenced.remove(&page);
            order.push_back(page);
        }
        if write {
            dirty.insert(page);
        }
    }
    counts.dirty_at_end = dirty.len() as u64;
    counts.read_requests = counts.faults;
    counts.pages_read = counts.faults;
    counts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..Default::default() })]

    #[test]
    fn counts_equal_a_slow_model(string in strings(), frames in 1..30_u32) {
        let references = References::collect(string).unwrap();
        let plain: Vec<_> = references.iter().map(|(page, write)| (page.0, write)).collect();
        for name in ["lru", "mru", "fifo", "clock", "fifo2", "opt"] {
            let (counts, _) = run(&references, name, frames);
            prop_assert_eq!(counts, slow(name, &plain, frames as usize), "{}", name);
        }
    }

    #[test]
    fn counts_add_up(string in strings(), frames in prop::collection::vec(1..30_u32, 1..5)) {
        let references = References::collect(string.clone()).unwrap();
        let options = SweepOptions { regions_per_segment: 4, seed: 9, ..SweepOptions::default() };
        let outcomes = sweep(&references, &every_spec(), &frames, &options).unwrap();
        prop_assert_eq!(outcomes.len(), all().len() * frames.len());
        for Outcome { policy, frames, counts, segments, predicted, .. } in &outcomes {
            prop_assert_eq!(counts.references, string.len() as u64, "{}", policy);
            prop_assert_eq!(counts.hits + counts.faults, counts.references);
            prop_assert_eq!(counts.cold_faults + counts.refaults, counts.faults);
            prop_assert_eq!(counts.cold_faults, u64::from(references.pages()));
            let resident = u64::from(references.pages().min(*frames));
            prop_assert_eq!(counts.evictions, counts.faults - resident, "{}", policy);
            prop_assert!(counts.write_backs <= counts.evictions && counts.dirty_at_end <= resident);
            prop_assert!(counts.write_backs + counts.dirty_at_end <= counts.writes);
            prop_assert_eq!(segments.iter().map(|s| s.faults).sum::<u64>(), counts.faults);
            prop_assert_eq!(segments.iter().map(|s| s.references).sum::<u64>(), counts.references);
            for segment in segments {
                let touched = string.iter().filter(|r| r.segment == segment.segment);
                prop_assert_eq!(segment.references, touched.count() as u64);
                prop_assert_eq!(segment.region_faults.len(), 4);
                prop_assert_eq!(segment.region_faults.iter().sum::<u64>(), segment.faults);
            }
            prop_assert!(predicted.total_ns >= counts.references as f64);
        }
    }

    /// A warm run counts what the whole run counts and its beginning does not.
    #[test]
    fn warm_counts_are_differences(string in strings(), warm in 0..60_usize, frames in 1..30_u32) {
        let references = References::collect(string.clone()).unwrap();
        let beginning = References::collect(string.iter().take(warm).copied()).unwrap();
        let live: Vec<_> = every_spec().into_iter().filter(|spec| spec.info().runs_live()).collect();
        let of = |references, warm_refs| {
            let options = SweepOptions { warm_refs, seed: 3, ..SweepOptions::default() };
            sweep(references, &live, &[frames], &options).unwrap()
        };
        let (whole, before) = (of(&references, 0), of(&beginning, 0));
        for (place, outcome) in of(&references, warm).into_iter().enumerate() {
            let fields = |c: &Counts| {
                [c.references, c.writes, c.hits, c.faults, c.cold_faults, c.refaults, c.evictions]
                    .into_iter()
                    .chain([c.write_backs, c.write_faults, c.read_requests, c.pages_read])
                    .collect::<Vec<_>>()
            };
            let difference: Vec<_> = fields(&whole[place].counts)
                .into_iter()
                .zip(fields(&before[place].counts))
                .map(|(whole, before)| whole - before)
                .collect();
            prop_assert_eq!(fields(&outcome.counts), difference, "{}", outcome.policy);
            prop_assert_eq!(outcome.counts.dirty_at_end, whole[place].counts.dirty_at_end);
            let by_segment: u64 = outcome.segments.iter().map(|s| s.references).sum();
            prop_assert_eq!(by_segment, outcome.counts.references);
        }
    }

    #[test]
    fn no_policy_has_more_hits_than_the_optimum(string in strings(), frames in 1..30_u32) {
        let references = References::collect(string).unwrap();
        let outcomes =
            sweep(&references, &every_spec(), &[frames], &SweepOptions::default()).unwrap();
        let best = outcomes.iter().find(|outcome| outcome.policy == "opt").unwrap().counts.hits;
        for outcome in outcomes {
            prop_assert!(outcome.counts.hits <= best, "{} beats opt", outcome.policy);
        }
    }

    /// What stack algorithms promise: a reference that hits still hits with more memory.
    #[test]
    fn lru_and_opt_have_inclusion(string in strings(), frames in 1..30_u32, more in 1..5_u32) {
        let references = References::collect(string).unwrap();
        for name in ["lru", "opt"] {
            let faults = |frames| {
                let (_, faults) = run(&references, name, frames);
                faults.into_iter().map(|fault| fault.position).collect::<BTreeSet<_>>()
            };
            prop_assert!(faults(frames + more).is_subset(&faults(frames)), "{}", name);
        }
    }

    #[test]
    fn a_sweep_is_the_same_on_any_number_of_threads(string in strings(), seed: u64) {
        let references = References::collect(string).unwrap();
        let with = |threads| {
            let options =
                SweepOptions { seed, threads: std::num::NonZeroUsize::new(threads), ..SweepOptions::default() };
            sweep(&references, &every_spec(), &[7, 3, 3, 20], &options).unwrap()
        };
        let outcomes = with(1);
        prop_assert_eq!(&outcomes, &with(3));
        let order: Vec<_> = outcomes.iter().map(|o| (o.policy.clone(), o.frames)).collect();
        let expected: Vec<_> = all()
            .iter()
            .flat_map(|info| [7, 3, 3, 20].map(|frames| (info.name.to_owned(), frames)))
            .collect();
        prop_assert_eq!(order, expected);
    }

    /// Faults tell the whole story: the resident set follows from them.
    #[test]
    fn faults_and_their_victims_follow_the_resident_set(string in strings(), frames in 1..30_u32) {
        let references = References::collect(string).unwrap();
        for info in all() {
            let (counts, faults) = run(&references, info.name, frames);
            let mut faults = faults.into_iter().peekable();
            let mut resident = BTreeMap::new();
            for (position, (page, _)) in references.iter().enumerate() {
                if let Some(fault) = faults.next_if(|fault| fault.position == position) {
                    prop_assert_eq!(fault.page, page);
                    prop_assert_eq!(fault.victim.is_some(), resident.len() as u32 == frames);
                    if let Some(victim) = fault.victim {
                        prop_assert!(resident.remove(&victim).is_some());
                    }
                    prop_assert!(resident.insert(page, ()).is_none());
                }
                prop_assert!(resident.contains_key(&page), "{}", info.name);
            }
            prop_assert!(faults.next().is_none());
            prop_assert_eq!(counts.references, references.len() as u64);
        }
    }
}

#[test]
fn an_outcome_survives_json() {
    let mut builder = References::builder();
    builder.segment(4, "data/\"odd\" name", 10);
    for step in 0..30 {
        builder.push((4, step % 10, step % 7 == 0, step).into()).unwrap();
    }
    let references = builder.finish();
    let outcomes =
        sweep(&references, &[spec("mru:ahead=1/2")], &[8], &SweepOptions::default()).unwrap();
    let text = serde_json::to_string(&outcomes).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Outcome>>(&text).unwrap(), outcomes);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value[0]["policy"], "mru:ahead=1/2");
    assert_eq!(value[0]["frames"], 8);
    assert_eq!(value[0]["segments"][0]["name"], "data/\"odd\" name");
    assert!(value[0]["faults"].as_u64().unwrap() > 0);
    assert!(outcomes[0].hit_ratio() > 0.5);
}

#[test]
fn nothing_to_replay_is_no_error_and_no_frames_is() {
    let empty = References::default();
    let outcomes = sweep(&empty, &every_spec(), &[1], &SweepOptions::default()).unwrap();
    assert!(outcomes.iter().all(|o| o.counts == Counts::default() && o.hit_ratio() == 0.0));
    assert!(sweep(&empty, &[], &[1], &SweepOptions::default()).unwrap().is_empty());
    let error = sweep(&empty, &every_spec(), &[1, 0], &SweepOptions::default()).unwrap_err();
    assert_eq!(error, SimError::NoFrames);
}

/// A policy of somebody else's that is wrong is reported with the place, not trusted.
#[test]
fn a_policy_that_breaks_its_contract_is_reported() {
    use pagekeeper_policy::{Admission, Policy};
    struct Wrong(Option<Page>);
    impl Policy for Wrong {
        fn admitted(&mut self, _: Page, _: Admission) {}
        fn referenced(&mut self, _: Page) {}
        fn removed(&mut self, _: Page) {}
        fn victim(&mut self, _: Option<Page>) -> Option<Page> {
            self.0
        }
        fn resized(&mut self, _: u32) {}
        fn resident(&self) -> u32 {
            0
        }
    }
    let references = References::from_blocks([10, 11, 12]).unwrap();
    for (answer, what) in
        [(None, "no victim"), (Some(Page(2)), "page 2"), (Some(Page(99)), "page 99")]
    {
        let error = replay(&references, &mut Wrong(answer), 2, |_| {}).unwrap_err().to_string();
        assert!(error.contains("at reference 2") && error.contains(what), "{error}");
    }
}
