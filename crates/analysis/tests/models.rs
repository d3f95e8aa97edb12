//! Every analysis against a slow, obvious model, and against the simulator.
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use pagekeeper_analysis::{
    FaultRate, GapBins, Gaps, Layout, ObserveOptions, Sampler, SpaceTime, Spread, WorkingSet,
    hits_at, lru_curve, observe, opt_curve, working_set_over_time,
};
use pagekeeper_policy::{Page, PolicySpec, all};
use pagekeeper_sim::{References, SweepOptions, sweep};
use pagekeeper_trace::ExtentEvent;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use rand_distr::Distribution;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

/// A part of a string.
#[derive(Clone, Debug)]
enum Piece {
    /// Pages one after the other, so many times.
    Run { segment: u32, pages: Range<u64>, times: u64, write: bool },
    /// Something becomes of pages of the heap.
    Event(Range<u64>, ExtentEvent),
}

/// What is a heap.
const HEAP: u32 = 3;

/// Runs, loops and jumps over a few files and a heap that is freed and used again, with times.
fn strings() -> impl Strategy<Value = References> {
    let pages = || (0..30_u64, 1..12_u64).prop_map(|(start, pages)| start..start + pages);
    let run = (0..=HEAP, pages(), 1..4_u64, prop::bool::weighted(0.3))
        .prop_map(|(segment, pages, times, write)| Piece::Run { segment, pages, times, write });
    let events = [ExtentEvent::Freed, ExtentEvent::Freed, ExtentEvent::Stored];
    let event = (pages(), prop::sample::select(events.to_vec()));
    let event = event.prop_map(|(pages, event)| Piece::Event(pages, event));
    prop::collection::vec(prop_oneof![3 => run, 1 => event], 0..30).prop_map(|pieces| {
        let mut builder = References::builder();
        builder.heap(HEAP, "heap:1 (p)");
        let mut time_ns = 4;
        for piece in pieces {
            match piece {
                Piece::Event(pages, event) => _ = builder.extent(HEAP, pages, event),
                Piece::Run { segment, pages, times, write } => {
                    for page_index in (0..times).flat_map(|_| pages.clone()) {
                        time_ns += 3;
                        builder.push((segment, page_index, write, time_ns).into()).unwrap();
                    }
                }
            }
        }
        builder.finish()
    })
}

fn spec(name: &str) -> PolicySpec {
    PolicySpec::parse(name).unwrap()
}

/// The string as page numbers.
fn pages_of(references: &References) -> Vec<u32> {
    references.iter().map(|(page, _)| page.0).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::SourceParallel("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn curves_are_the_simulator_at_every_size(references in strings(), warm in 0..80_usize) {
        let sizes: Vec<u32> = (1..=references.pages() + 2).collect();
        let lru = lru_curve(&references, warm);
        let opt = opt_curve(&references, warm, u64::MAX).unwrap().unwrap();
        for (name, curve) in [("lru", lru), ("opt", opt)] {
            let hits: Vec<u64> = sizes.iter().map(|frames| curve.hits(*frames)).collect();
            let simulated = hits_at(&references, &spec(name), &sizes, warm, 0).unwrap();
            prop_assert_eq!(&hits, &simulated, "{}", name);
            prop_assert_eq!(curve.hits(0), 0);
            let most = curve.frames_for_most_hits();
            prop_assert_eq!(curve.hits(most), curve.hits(u32::MAX));
            prop_assert!(most == 0 || curve.hits(most - 1) < curve.hits(most));
            prop_assert_eq!(curve.references(), references.len().saturating_sub(warm) as u64);
        }
    }

    #[test]
    fn working_sets_are_what_windows_hold(references in strings(), warm in 0..80_usize) {
        let pages = pages_of(&references);
        let windows = vec![1, 2, 3, 7, 20, 100, 1000];
        let found = WorkingSet::of(&references, warm, windows.clone());
        let set = |end: usize, window: u64| -> BTreeSet<u32> {
            let touched = &pages[end.saturating_sub(window as usize)..end];
            let changes = references.heap_changes().iter().filter(|c| c.position < end);
            let freed: BTreeSet<_> = changes.flat_map(|change| &change.numbers).collect();
            touched.iter().filter(|page| !freed.contains(page)).copied().collect()
        };
        let counted = pages.len().saturating_sub(warm).max(1) as f64;
        for (place, window) in windows.into_iter().enumerate() {
            let sizes = (warm..pages.len()).map(|at| set(at + 1, window).len());
            let mean = sizes.sum::<usize>() as f64 / counted;
            prop_assert!((found.mean_pages[place] - mean).abs() < 1e-9, "window {}", window);
            let missing = (warm..pages.len()).filter(|at| !set(*at, window).contains(&pages[*at]));
            let ratio = missing.count() as f64 / counted;
            prop_assert!((found.miss_ratio[place] - ratio).abs() < 1e-9, "window {}", window);
            for (passed, size) in working_set_over_time(&references, window, 10) {
                prop_assert_eq!(size, set(passed as usize, window).len() as u64);
            }
        }
        let samples = working_set_over_time(&references, 3, 10);
        prop_assert_eq!(samples.len(), pages.len().min(10));
    }

    #[test]
    fn an_observation_agrees_with_a_list_of_hits(
        references in strings(), frames in 1..40_u32, warm in 0..80_usize, name in "lru|mru|clock|opt"
    ) {
        let layout = Layout::of(&references, 8);
        let options =
            ObserveOptions { columns: 9, intervals: 7, warm_refs: warm, ..Default::default() };
        let seen = observe(&references, &layout, &spec(&name), frames, &options).unwrap();
        // Which references hit, from replays of all beginnings: the future that OPT sees is whole.
        let mut faults = Vec::new();
        let hits: Vec<u64> = (0..=references.len())
            .map(|warm| hits_at(&references, &spec(&name), &[frames], warm, 0).unwrap()[0])
            .collect();
        let (mut gaps, mut all_gaps) = (BTreeMap::new(), BTreeMap::new());
        let mut last = BTreeMap::new();
        for (at, page) in pages_of(&references).into_iter().enumerate() {
            let gap = last.insert(page, at).map(|before| GapBins::bin_of((at - before) as u64));
            let is_hit = hits[at] > hits[at + 1];
            if at < warm {
                continue;
            }
            if !is_hit {
                faults.push((at, page));
            }
            if let Some(gap) = gap {
                *all_gaps.entry(gap).or_insert(0) += 1;
                if is_hit {
                    *gaps.entry(gap).or_insert(0) += 1;
                }
            }
        }
        let as_map = |gaps: &Gaps| -> BTreeMap<usize, u64> {
            gaps.counts().iter().copied().enumerate().filter(|(_, count)| *count > 0).collect()
        };
        prop_assert_eq!(as_map(&seen.hit_gaps), gaps);
        prop_assert_eq!(as_map(&Gaps::of(&references, warm)), all_gaps);
        prop_assert_eq!(seen.counts.faults, faults.len() as u64);
        for (rate, at_least) in [(Some(&seen.rate), 1), (seen.rate_by_time.as_ref(), 0)] {
            let Some(rate) = rate else { continue };
            prop_assert_eq!(rate.faults.iter().sum::<u64>(), faults.len() as u64);
            prop_assert!(rate.interval >= at_least && rate.faults.len() <= 7);
        }
        for (place, count) in seen.rate.faults.iter().enumerate() {
            let FaultRate { start, interval, .. } = seen.rate;
            let within = |at: usize| (at as u64 - start) / interval == place as u64;
            prop_assert_eq!(*count, faults.iter().filter(|(at, _)| within(*at)).count() as u64);
        }
        for cell in &seen.faults.cells {
            let within = |at: usize, page: u32| {
                at as u64 / seen.faults.column_refs == u64::from(cell.column)
                    && layout.row_of(Page(page)) == cell.row
            };
            let count = faults.iter().filter(|(at, page)| within(*at, *page)).count();
            prop_assert_eq!(cell.count, count as u64);
        }
        let mapped: u64 = seen.faults.cells.iter().map(|cell| cell.count).sum();
        prop_assert_eq!(mapped, faults.len() as u64);
    }

    /// Whoever looks on changes nothing of what a policy does and is told.
    #[test]
    fn a_policy_is_the_same_under_observation(
        references in strings(), frames in 1..40_u32, warm in 0..80_usize
    ) {
        let layout = Layout::of(&references, 1);
        let options = ObserveOptions { warm_refs: warm, ..Default::default() };
        let specs: Vec<_> = all().iter().map(PolicySpec::of).collect();
        let sweep_options = SweepOptions { warm_refs: warm, ..Default::default() };
        let alone = sweep(&references, &specs, &[frames], &sweep_options).unwrap();
        for (spec, alone) in specs.iter().zip(alone) {
            let seen = observe(&references, &layout, spec, frames, &options).unwrap();
            prop_assert_eq!(seen.counts, alone.counts, "{}", spec);
        }
    }

    #[test]
    fn maps_keep_every_reference_in_the_order_of_files(references in strings(), rows in 1..40_u32) {
        let layout = Layout::of(&references, rows);
        let map = SpaceTime::of(&references, &layout, 11);
        prop_assert_eq!(map.cells.iter().map(|c| c.count).sum::<u64>(), references.len() as u64);
        let all = (0..references.pages()).map(|page| references.place(Page(page)));
        let places = all.collect::<BTreeSet<_>>().len() as u32;
        prop_assert!(map.columns <= 11 && map.rows == rows.min(places));
        prop_assert!(layout.first_pages().is_sorted());
        let mut touched: Vec<_> = (0..references.pages()).map(Page).collect();
        touched.sort_by_key(|page| references.place(*page));
        prop_assert!(touched.iter().map(|page| layout.row_of(*page)).is_sorted());
        for page in touched {
            let row = layout.row_of(page) as usize;
            prop_assert!(layout.first_pages()[row] <= references.place(page));
        }
    }

    #[test]
    fn a_sample_of_all_pages_is_exact(
        references in strings(), warm in 0..80_usize, policy in 0..all().len()
    ) {
        let sizes: Vec<u32> = (1..=references.pages() + 1).step_by(7).collect();
        let info = &all()[policy];
        let spec = PolicySpec::of(info);
            let hits = |part: &References, frames: &[u32], warm| hits_at(part, &spec, frames, warm, 1);
            let estimate =
                Sampler::new(1.0, 5).estimate(&references, &sizes, warm, hits).unwrap();
            let counted = references.len().saturating_sub(warm);
            let exact = hits_at(&references, &spec, &sizes, warm, 1).unwrap();
            for (place, hits) in exact.iter().enumerate() {
                let ratio = if counted == 0 { 0.0 } else { 1.0 - *hits as f64 / counted as f64 };
                prop_assert!((estimate.miss_ratio[place] - ratio).abs() < 1e-9, "{}", info.name);
            }
    }
}

/// A skewed string, and the same skew with loops in between.
fn skewed(loops: bool, seed: u64) -> References {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let zipf = rand_distr::Zipf::new(40_000.0, 0.9).unwrap();
    let blocks = (0..400_000_u64).map(|at| {
        if loops && at / 20_000 % 2 == 1 {
            50_000 + at % 6000
        } else {
            zipf.sample(&mut random) as u64
        }
    });
    References::from_blocks(blocks.collect::<Vec<_>>()).unwrap()
}

#[test]
fn sampling_is_within_its_stated_error() {
    for (loops, seed) in [(false, 1), (true, 2)] {
        let references = skewed(loops, seed);
        let sizes: Vec<u32> = (1..=20).map(|step| step * 2000).collect();
        let exact = lru_curve(&references, 0);
        let hits = |part: &References, frames: &[u32], warm: usize| {
            let curve = lru_curve(part, warm);
            Ok(frames.iter().map(|frames| curve.hits(*frames)).collect())
        };
        for (rate, most) in [(0.1, 0.0625), (0.02, 0.125)] {
            let estimate = Sampler::new(rate, seed).estimate(&references, &sizes, 0, hits).unwrap();
            let share = f64::from(estimate.sampled_pages) / f64::from(references.pages());
            assert!((share / rate - 1.0).abs() < 0.1, "{share} of the pages, not {rate}");
            let mut outside = 0;
            for (place, frames) in sizes.iter().enumerate() {
                let off = (estimate.miss_ratio[place] - exact.miss_ratio(*frames)).abs();
                let stated = estimate.error[place].expect("large enough for every part");
                outside += usize::from(off > stated);
                assert!(off <= 2.0 * stated, "{frames} frames: {off} off, {stated} stated");
            }
            assert!(outside <= 4, "{outside} of 20 sizes outside the error at rate {rate}");
            // Where a loop begins to fit, a part of the sample puts the cliff at another size.
            let most = if loops { 1.0 } else { most };
            assert!(estimate.error_most() < most, "{} at rate {rate}", estimate.error_most());
        }
        let few = Sampler::new(0.001, 0).estimate(&references, &[100], 0, hits).unwrap();
        assert_eq!(few.error, [None]);
    }
}

/// Twice the standard error, of which eight parts tell little, was exceeded one time in ten here.
#[test]
fn the_stated_error_is_exceeded_one_time_in_twenty() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
    // A tree of three levels.
    let leaf = rand_distr::Uniform::new(0, 8000_u64).unwrap();
    let leaves = (0..40_000).map(|_| leaf.sample(&mut random));
    let blocks: Vec<u64> = leaves.flat_map(|leaf| [0, 1 + leaf / 200, 1000 + leaf]).collect();
    let references = References::from_blocks(blocks).unwrap();
    let sizes: Vec<u32> = (5..=25).map(|step| step * 320).collect();
    let exact = lru_curve(&references, 0);
    let hits = |part: &References, frames: &[u32], warm: usize| {
        let curve = lru_curve(part, warm);
        Ok(frames.iter().map(|frames| curve.hits(*frames)).collect())
    };
    let mut outside = 0;
    for seed in 0..60 {
        let estimate = Sampler::new(0.02, seed).estimate(&references, &sizes, 0, hits).unwrap();
        for (place, frames) in sizes.iter().enumerate() {
            let off = (estimate.miss_ratio[place] - exact.miss_ratio(*frames)).abs();
            outside += usize::from(off > estimate.error[place].unwrap());
        }
    }
    let share = outside as f64 / (60 * sizes.len()) as f64;
    assert!(share < 0.065, "{share} outside");
}

#[test]
fn long_strings_are_given_up_in_time_and_not_before() {
    let references = skewed(false, 1);
    assert_eq!(opt_curve(&references, 0, 1_000_000).unwrap(), None);
    let small = References::from_blocks((0..200).map(|step| step % 50)).unwrap();
    let curve = opt_curve(&small, 0, 1_000_000).unwrap().unwrap();
    assert_eq!((curve.hits(1), curve.hits(50)), (0, 150));
}

#[test]
fn statistics_of_small_series() {
    let spread = Spread::of(&[2, 4, 4, 4, 5, 5, 7, 9]);
    assert_eq!(
        spread,
        Spread { mean: 5.0, min: 2, max: 9, standard_deviation: 2.0 },
        "the textbook's series"
    );
    assert_eq!(Spread::of(&[]), Spread::default());
}

/// Times may be any numbers of 64 bits, and the last one may be the only one.
#[test]
fn the_last_instant_there_is_has_its_interval() {
    let last = u64::MAX;
    for times in [vec![last], vec![last - 1, last], vec![1, last], (last - 999..=last).collect()] {
        let touches = times.iter().zip(0_u64..).map(|(time_ns, page)| (0, page, false, *time_ns));
        let references = References::collect(touches).unwrap();
        let layout = Layout::of(&references, 1);
        for intervals in [1, 2, 200] {
            let options = ObserveOptions { intervals, ..Default::default() };
            let seen = observe(&references, &layout, &spec("lru"), 10, &options).unwrap();
            let rate = seen.rate_by_time.unwrap();
            assert_eq!(rate.faults.iter().sum::<u64>(), times.len() as u64);
            assert_eq!((rate.start, rate.faults.is_empty()), (times[0], false));
        }
    }
}
