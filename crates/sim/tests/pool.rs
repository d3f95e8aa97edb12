//! Programs that share frames, against programs alone and against what was promised.
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{
    Allocation, PoolOptions, PoolOutcome, PoolProgram, References, Schedule, SimError,
    SweepOptions, simulate_pool, sweep,
};
use pagekeeper_trace::ExtentEvent;
use proptest::prelude::*;

fn policy(text: &str) -> PolicySpec {
    PolicySpec::parse(text).unwrap()
}

fn alone(references: &References, spec: &str, frames: u32) -> (u64, u64) {
    let outcomes = sweep(references, &[policy(spec)], &[frames], &SweepOptions::default()).unwrap();
    (outcomes[0].counts.faults, outcomes[0].counts.write_backs)
}

const TURNS: Schedule = Schedule::RoundRobin { quantum_ns: 50_000 };

fn strings() -> impl Strategy<Value = Vec<Vec<(u64, bool)>>> {
    let string = prop::collection::vec((0..25_u64, prop::bool::weighted(0.3)), 1..400);
    prop::collection::vec(string, 1..5)
}

fn references(strings: &[Vec<(u64, bool)>]) -> Vec<References> {
    let one = |(p, string): (usize, &Vec<(u64, bool)>)| {
        let touches = string.iter().enumerate().map(|(i, (block, write))| {
            // Program by program in a shuffled but fixed order of time.
            (p as u32, *block, *write, 1 + i as u64 * 7 + p as u64)
        });
        References::collect(touches).unwrap()
    };
    strings.iter().enumerate().map(one).collect()
}

/// What is done to a heap of 25 pages, and to a file.
#[derive(Clone, Debug)]
enum Done {
    Touch { in_heap: bool, page: u64, write: bool },
    Event(std::ops::Range<u64>, ExtentEvent),
}

fn done() -> impl Strategy<Value = Vec<Done>> {
    let touch = (prop::bool::weighted(0.7), 0..25_u64, prop::bool::weighted(0.5));
    let touch = touch.prop_map(|(in_heap, page, write)| Done::Touch { in_heap, page, write });
    let events = [ExtentEvent::Freed, ExtentEvent::Stored, ExtentEvent::Inherited];
    let event = (0..25_u64, 1..10_u64, prop::sample::select(events.to_vec()));
    let event = event.prop_map(|(first, pages, event)| Done::Event(first..first + pages, event));
    prop::collection::vec(prop_oneof![8 => touch, 1 => event], 1..300)
}

fn with_heap(done: &[Done]) -> References {
    let mut builder = References::builder();
    builder.heap(1, "heap:1 (p)");
    for (i, done) in (1..).zip(done) {
        match done.clone() {
            Done::Touch { in_heap, page, write } => {
                builder.push((u32::from(in_heap), page, write, i).into()).unwrap();
            }
            Done::Event(pages, event) => _ = builder.extent(1, pages, event),
        }
    }
    builder.finish()
}

/// Programs of one policy, each with so many frames of its own.
fn in_fixed_shares(strings: &[References], spec: &str, share: u32) -> PoolOutcome {
    let programs: Vec<_> = strings.iter().map(|r| PoolProgram::new("", r, policy(spec))).collect();
    let frames = share * strings.len() as u32;
    simulate_pool(&programs, &PoolOptions::new(frames, Allocation::Fixed, TURNS)).unwrap()
}

proptest! {
    /// What becomes of heaps is the same in a pool: zeros that need no read, pages that leave
    /// unwritten when they are freed, forks that write.
    #[test]
    fn heaps_in_fixed_shares_are_heaps_alone(
        all in prop::collection::vec(done(), 1..4),
        share in 1..20_u32,
    ) {
        let strings: Vec<References> = all.iter().map(|done| with_heap(done)).collect();
        for spec in ["lru", "fifo2", "acfc"] {
            let outcome = in_fixed_shares(&strings, spec, share);
            for (program, references) in outcome.programs.iter().zip(&strings) {
                let alone = sweep(references, &[policy(spec)], &[share], &SweepOptions::default());
                let alone = alone.unwrap()[0].counts;
                prop_assert_eq!(program.faults, alone.faults);
                prop_assert_eq!(program.zero_faults, alone.zero_faults);
                prop_assert_eq!(program.write_backs, alone.write_backs);
            }
        }
    }

    /// However frames are shared: what is zeros with room for all is zeros in any pool.
    #[test]
    fn zeros_are_zeros_in_any_pool(
        all in prop::collection::vec(done(), 1..4),
        frames in 4..60_u32,
    ) {
        let strings: Vec<References> = all.iter().map(|done| with_heap(done)).collect();
        let allocations =
            [Allocation::Global { policy: policy("lru") }, Allocation::Awst, Allocation::gain(50)];
        for (allocation, schedule) in
            allocations.into_iter().flat_map(|a| [(a.clone(), TURNS), (a, Schedule::ByTime)])
        {
            let programs: Vec<_> =
                strings.iter().map(|r| PoolProgram::new("", r, policy("lru"))).collect();
            let options = PoolOptions::new(frames, allocation, schedule);
            let outcome = simulate_pool(&programs, &options).unwrap();
            for (program, references) in outcome.programs.iter().zip(&strings) {
                prop_assert!(program.zero_faults <= program.faults);
                let roomy = sweep(references, &[policy("lru")], &[100], &SweepOptions::default());
                let roomy = roomy.unwrap()[0].counts;
                prop_assert!(program.zero_faults >= roomy.zero_faults);
            }
        }
    }

    /// A program with frames of its own cannot tell that others run.
    #[test]
    fn fixed_shares_are_programs_alone(strings in strings(), share in 1..20_u32) {
        let strings = references(&strings);
        for spec in ["lru", "fifo2", "clock"] {
            let outcome = in_fixed_shares(&strings, spec, share);
            for (program, references) in outcome.programs.iter().zip(&strings) {
                let counted = (program.faults, program.write_backs);
                prop_assert_eq!(counted, alone(references, spec, share));
                let by_segment: u64 = program.segments.iter().map(|s| s.faults).sum();
                prop_assert_eq!(by_segment, program.faults);
            }
        }
    }

    /// One policy for all is that policy on the strings merged by time. Programs' frames become
    /// free when they end, so all end together here.
    #[test]
    fn a_policy_for_all_is_one_string(strings in strings(), frames in 1..60_u32) {
        let shortest = strings.iter().map(Vec::len).min().unwrap();
        let strings: Vec<_> = strings.iter().map(|s| s[..shortest].to_vec()).collect();
        let separate = references(&strings);
        let mut merged: Vec<(u32, u64, bool, u64)> = Vec::new();
        for (p, string) in strings.iter().enumerate() {
            for (i, (block, write)) in string.iter().enumerate() {
                merged.push((p as u32, *block, *write, 1 + i as u64 * 7 + p as u64));
            }
        }
        merged.sort_by_key(|touch| touch.3);
        // The last references come after the first program has ended.
        let last = merged.len() - strings.len();
        merged.truncate(last);
        let merged = References::collect(merged).unwrap();
        let programs: Vec<_> =
            separate.iter().map(|r| PoolProgram::new("", r, policy("lru"))).collect();
        let allocation = Allocation::Global { policy: policy("lru") };
        let options = PoolOptions {
            points: u32::MAX,
            ..PoolOptions::new(frames, allocation, Schedule::ByTime)
        };
        let outcome = simulate_pool(&programs, &options).unwrap();
        if last > 0 {
            let point = &outcome.timeline[last - 1];
            prop_assert_eq!(point.faults.iter().sum::<u64>(), alone(&merged, "lru", frames).0);
        }
    }

    /// Nobody is below its least by another's need, nobody above its most, and never more frames
    /// are in use than there are.
    #[test]
    fn bounds_are_kept(
        strings in strings(),
        bounds in prop::collection::vec((1..6_u32, 1..20_u32), 5),
        spare in 1..20_u32,
        gain in any::<bool>(),
    ) {
        let strings = references(&strings);
        let programs: Vec<_> = strings
            .iter()
            .zip(&bounds)
            .map(|(r, (least, more))| {
                PoolProgram::new("", r, policy("fifo")).bounded(*least, least + more)
            })
            .collect();
        let frames = programs.iter().map(|p| p.least_frames).sum::<u32>() + spare;
        let allocation =
            if gain { Allocation::MarginalGain { period_refs: 30 } } else { Allocation::Awst };
        let options = PoolOptions {
            points: u32::MAX,
            ..PoolOptions::new(frames, allocation, TURNS)
        };
        let outcome = simulate_pool(&programs, &options).unwrap();
        let mut before = vec![0; programs.len()];
        for point in &outcome.timeline {
            prop_assert!(point.frames.iter().sum::<u32>() <= frames);
            for (p, now) in point.frames.iter().enumerate() {
                prop_assert!(*now <= programs[p].most_frames.unwrap());
                let ended = *now == 0;
                prop_assert!(*now >= before[p] || *now >= programs[p].least_frames || ended);
                before[p] = *now;
            }
        }
        for (program, references) in outcome.programs.iter().zip(&strings) {
            prop_assert_eq!(program.references, references.len() as u64);
            prop_assert!(program.faults >= u64::from(references.pages()));
        }
    }
}

/// HiPEC, Figure 8 and its text: trimming alike for all starves the nested-loop join; with a most
/// that holds its loop, and little for the others, the faults of all are the fewest.
#[test]
fn a_join_wants_bounds_of_its_own() {
    let join = References::from_blocks((0..40_000).map(|i| i % 4000)).unwrap();
    let film = References::from_blocks(0..40_000).unwrap();
    let index = References::from_blocks((0..40_000u64).map(|i| match i % 3 {
        0 => i / 3 % 60,
        1 => 100 + i.wrapping_mul(2_654_435_761) % 4000,
        _ => 5000 + i.wrapping_mul(40_503_977) % 16_000,
    }))
    .unwrap();
    let fifo = || policy("fifo");
    let run = |bounds: [(u32, u32); 3]| {
        let programs: Vec<_> = [("join", &join), ("film", &film), ("index", &index)]
            .into_iter()
            .zip(bounds)
            .map(|((name, r), (least, most))| {
                PoolProgram::new(name, r, fifo()).bounded(least, most)
            })
            .collect();
        let options = PoolOptions::new(5000, Allocation::Awst, TURNS);
        simulate_pool(&programs, &options).unwrap()
    };
    let alike = run([(128, 2000); 3]);
    let own = run([(128, 4000), (128, 256), (128, 256)]);
    assert_eq!(own.programs[0].faults, 4000, "the loop fits");
    assert!(own.faults() * 10 < alike.faults() * 9, "{} and {}", own.faults(), alike.faults());
    assert_eq!(alike.programs[0].faults, 40_000);
}

/// By gain, a scan gets nothing at the cost of those who reuse their pages.
#[test]
fn gain_protects_reuse_from_scans() {
    let hot =
        References::from_blocks((0..60_000u64).map(|i| ((i * 2_654_435_761) >> 7) % 400)).unwrap();
    let looping = References::from_blocks((0..60_000).map(|i| i % 500)).unwrap();
    let scan = References::from_blocks(0..60_000).unwrap();
    let programs: Vec<_> = [("hot", &hot), ("loop", &looping), ("scan", &scan)]
        .into_iter()
        .map(|(name, r)| PoolProgram::new(name, r, policy("lru")))
        .collect();
    let faults = |allocation| {
        let options = PoolOptions::new(1000, allocation, TURNS);
        simulate_pool(&programs, &options).unwrap().faults()
    };
    let global = faults(Allocation::Global { policy: policy("lru") });
    let fixed = faults(Allocation::Fixed);
    let gain = faults(Allocation::gain(1000));
    assert!(gain < 70_000, "{gain}");
    assert!(gain < global && gain < fixed, "{gain}, global {global}, fixed {fixed}");
}

#[test]
fn what_cannot_be_is_said() {
    let string = References::from_blocks([1, 2]).unwrap();
    let program = || PoolProgram::new("join", &string, policy("lru"));
    let run = |programs: &[PoolProgram<'_>], schedule| {
        simulate_pool(programs, &PoolOptions::new(10, Allocation::Awst, schedule)).unwrap_err()
    };
    assert_eq!(run(&[], TURNS), SimError::NoFrames);
    let error = run(&[program()], Schedule::ByTime).to_string();
    assert!(error.contains("join has no recorded times"), "{error}");
    let error = run(&[program().bounded(6, 9), program().bounded(6, 9)], TURNS).to_string();
    assert!(error.contains("promised 12 frames and there are 10"), "{error}");
    let error = run(&[program().bounded(6, 3)], TURNS).to_string();
    assert!(error.contains("bounds from 6 to 3"), "{error}");
}

/// A timeline is of at most as many points as were asked for, however many references there are.
/// Recordings may tell the time of day.
#[test]
fn times_are_from_the_start_of_all() {
    let outcome = |start_ns: u64| {
        let string = |first: u64, every: u64| {
            let touches = (0..200_u64).map(|i| (0, i % 20, false, start_ns + first + i * every));
            References::collect(touches).unwrap()
        };
        let (early, late) = (string(10, 1000), string(500, 3000));
        let programs = [("late", &late), ("early", &early)]
            .map(|(name, references)| PoolProgram::new(name, references, policy("lru")));
        let options = PoolOptions::new(30, Allocation::Fixed, Schedule::ByTime);
        simulate_pool(&programs, &options).unwrap()
    };
    let of_day = outcome(1_700_000_000_000_000_000);
    assert_eq!(of_day, outcome(0));
    assert_eq!(of_day.programs[1].ended_ns, 199 * 1000);
    assert_eq!(of_day.elapsed_ns, 490 + 199 * 3000);
    assert_eq!(of_day.timeline[0].at_ns, 490);
}

#[test]
fn a_timeline_has_no_more_points_than_asked_for() {
    for references in [1, 7, 299, 300, 301, 399, 599] {
        let scan = References::from_blocks(0..references).unwrap();
        let programs = ["a", "b"].map(|name| PoolProgram::new(name, &scan, policy("lru")));
        for points in [1, 2, 100, 300, 798] {
            let options = PoolOptions { points, ..PoolOptions::new(60, Allocation::Fixed, TURNS) };
            let timeline = simulate_pool(&programs, &options).unwrap().timeline;
            let known = 1..=u64::from(points).min(2 * references) as usize;
            assert!(known.contains(&timeline.len()), "{references}, {points}: {}", timeline.len());
        }
    }
}
