//! What the brain does for whole access patterns: read-ahead, loops, sampling.

use pagekeeper_frames::{
    Brain, Config, FIRST_WINDOW_PAGES, Input, Place, Sampling, SamplingShare, Segment,
    WINDOW_PAGES_MAX,
};
use pagekeeper_policy::{PolicySpec, all};
use proptest::prelude::*;

/// Plays a program whose mapped pages are touched unseen.
struct Program {
    brain: Brain,
    /// Pages fetched by each fault or marker, in order.
    fetched: Vec<u32>,
    unmapped: u64,
}

impl Program {
    fn new(policy: &str, config: Config, segments: u32, pages: u64) -> Program {
        let policy = PolicySpec::parse(policy).unwrap().build(config.frames, 7).unwrap();
        let mut brain = Brain::new(policy, config);
        for segment in (0..segments).map(Segment) {
            brain.apply(Input::Segment { segment, pages });
        }
        Program { brain, fetched: Vec::new(), unmapped: 0 }
    }

    fn touch(&mut self, segment: u32, index: u64) {
        let place = Place { segment: Segment(segment), index };
        let input = if !self.brain.is_resident(place) {
            Input::Major { place, want: 1, write: false, map: true }
        } else if !self.brain.is_mapped(place) {
            Input::Touch { place, write: false, map: true }
        } else {
            return;
        };
        let plan = self.brain.apply(input);
        self.fetched.extend(plan.fetch.iter().map(|r| r.pages));
        self.unmapped += plan.unmap.len() as u64;
    }

    fn pages_fetched(&self) -> u64 {
        self.fetched.iter().map(|p| u64::from(*p)).sum()
    }
}

#[test]
fn a_sequential_stream_reaches_the_largest_window_and_faults_rarely() {
    let mut program = Program::new("lru", Config::live(1 << 16), 1, 1 << 15);
    for index in 0..1 << 15 {
        program.touch(0, index);
    }
    assert_eq!(program.fetched.iter().max(), Some(&WINDOW_PAGES_MAX));
    assert_eq!(program.pages_fetched(), 1 << 15, "each page once");
    let counts = program.brain.counts();
    assert!(counts.major_faults <= 4, "{counts:?}");
    assert!(counts.minor_faults <= (1 << 15) / u64::from(WINDOW_PAGES_MAX) + 8, "{counts:?}");
}

/// With one window ahead a scan waited for every window: it was asked for when the program came to
/// the one before, and had come when the program was long through with that.
#[test]
fn a_long_scan_has_two_windows_ahead() {
    let mut program = Program::new("lru", Config::live(1 << 16), 1, 1 << 15);
    for index in 0..1 << 14 {
        program.touch(0, index);
        let ahead = program.pages_fetched() - index - 1;
        let windows = u64::from(WINDOW_PAGES_MAX) * if index < 1024 { 0 } else { 2 };
        assert!(ahead >= windows, "{ahead} pages ahead of {index}");
        assert!(ahead <= 3 * u64::from(WINDOW_PAGES_MAX), "{ahead} pages ahead of {index}");
    }
}

/// A block copied from its end (as glibc's `memmove` does at times) was a fault for each page: 49,145
/// where the same copied from its start took 1,027.
#[test]
fn a_stream_that_falls_is_read_ahead_too() {
    let (pages, from, frames) = (1 << 13, 100, 1 << 10);
    let mut program = Program::new("lru", Config::live(frames), 1, 1 << 14);
    for index in (from..from + pages).rev() {
        program.touch(0, index);
    }
    let counts = program.brain.counts();
    let window = u64::from(program.fetched.iter().copied().max().unwrap());
    assert!(window >= 8 && counts.major_faults <= pages / window + 20, "{counts:?}");
    assert!(program.pages_fetched() <= pages + window, "{counts:?}");
    assert_eq!(counts.prefetch_wasted_pages, 0);
    // To the first page of the file, and up again.
    (0..from).rev().for_each(|index| program.touch(0, index));
    (2 * pages - 64..2 * pages).for_each(|index| program.touch(0, index));
    let more = program.brain.counts().major_faults - counts.major_faults;
    assert!(more <= from / window + 4, "{more}");
}

#[test]
fn random_faults_fetch_next_to_nothing_else() {
    let mut program = Program::new("lru", Config::live(1 << 10), 1, 1 << 30);
    let mut at = 1u64;
    for _ in 0..20_000 {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        program.touch(0, at >> 34);
    }
    let counts = program.brain.counts();
    assert!(counts.prefetched_pages < 20_000 / 64, "a trial now and then: {counts:?}");
    assert!(program.fetched.iter().all(|p| *p <= FIRST_WINDOW_PAGES));
}

/// Records of several pages in any order once cost two faults each, and pages behind them that
/// nobody wanted: 3.7 times what was used of records of 16 KiB.
#[test]
fn records_in_any_order_are_fetched_whole_and_alone() {
    for (record_pages, faults_most, read_most) in [(4, 1.1, 1.1), (2, 2.1, 1.2), (16, 3.0, 1.3)] {
        let mut program = Program::new("lru", Config::live(1 << 10), 1, 1 << 30);
        let mut at = 1u64;
        for _ in 0..4_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let first = (at >> 34) / record_pages * record_pages;
            (first..first + record_pages).for_each(|index| program.touch(0, index));
        }
        let (faults, read) = (program.brain.counts().major_faults, program.pages_fetched());
        let least = 4_000.0 * record_pages as f64;
        assert!(faults as f64 <= faults_most * 4_000.0, "{record_pages}: {faults} faults");
        assert!(read as f64 <= read_most * least, "{record_pages}: {read} pages read");
    }
}

/// Pages that somebody asks for and that are not read after all were not fetched; those that leave
/// unused were wasted.
#[test]
fn pages_asked_for_are_counted_by_what_becomes_of_them() {
    let mut program = Program::new("lru", Config::live(64), 1, 1000);
    program.brain.apply(Input::Ahead { segment: Segment(0), first: 10, pages: 4 });
    assert_eq!(program.brain.counts().prefetched_pages, 4);
    let place = Place { segment: Segment(0), index: 12 };
    program.brain.apply(Input::Failed { place });
    assert_eq!(program.brain.counts().prefetched_pages, 3);
    program.touch(0, 11);
    for index in (100..800).step_by(7) {
        program.touch(0, index);
    }
    let counts = program.brain.counts();
    // Of a hundred faults that continue nothing, two try three pages behind them.
    let tried = 2 * 3;
    assert_eq!((counts.major_faults, counts.prefetched_pages), (100, 3 + tried), "{counts:?}");
    assert!((2..=2 + tried).contains(&counts.prefetch_wasted_pages), "{counts:?}");
}

/// Streams that end leave pages behind that nobody was seen to use. They once kept the windows of
/// all later streams at one page.
#[test]
fn dead_streams_do_not_stop_read_ahead() {
    let mut program = Program::new("lru", Config::live(4096), 1000, 4096);
    for segment in 0..999 {
        for index in 0..600 {
            program.touch(segment, index);
        }
    }
    program.fetched.clear();
    for index in 0..4096 {
        program.touch(999, index);
    }
    assert!(program.fetched.iter().any(|p| *p >= 4096 / 128), "the largest window");
    assert!(program.fetched.len() < 150, "{} steps for 4,096 pages", program.fetched.len());
}

#[test]
fn interleaved_streams_are_told_apart() {
    let mut program = Program::new("lru", Config::live(1 << 14), 2, 1 << 16);
    for step in 0..2000 {
        for stream in 0..4u64 {
            program.touch((stream % 2) as u32, (stream / 2) * 30_000 + step);
        }
    }
    let counts = program.brain.counts();
    assert!(counts.major_faults < 40, "{counts:?}");
    assert_eq!(counts.refaults, 0);
}

/// A program whose files' misses bring blocks along, which touches so many pages in any order.
fn random_around(policy: &str, frames: u32, pages: u64, touches: u32) -> Program {
    let mut program = Program::new(policy, Config::live(frames), 1, pages);
    program.brain.apply(Input::Around { segment: Segment(0), allowed: true });
    let mut at = 1u64;
    for _ in 0..touches {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        program.touch(0, (at >> 33) % pages);
    }
    program
}

#[test]
fn free_frames_are_filled_by_blocks() {
    let alone = |program: &Program| program.brain.counts().major_faults;
    // All of it fits: a fault a block, and one for its probe.
    let fits = random_around("lru", 1 << 13, 4096, 1 << 15);
    let counts = fits.brain.counts();
    assert!(counts.major_faults <= 4096 / 16 * 11 / 10, "{counts:?}");
    assert!(counts.minor_faults <= 4096 / 16, "{counts:?}");
    assert_eq!(fits.pages_fetched(), 4096, "each page once");
    // Three quarters fit: memory is full after a fault a block, and not after one a page.
    for policy in ["lru", "mru", "auto", "lirs"] {
        let frames = 3 << 10;
        let around = alone(&random_around(policy, frames, 4 << 10, 10_000));
        let mut program = Program::new(policy, Config::live(frames), 1, 4 << 10);
        let mut at = 1u64;
        for _ in 0..10_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            program.touch(0, (at >> 33) % (4 << 10));
        }
        let one_by_one = alone(&program);
        assert!(around * 10 < one_by_one * 8, "{policy}: {around} of {one_by_one} faults");
    }
}

/// Nobody uses more of a block than the page that was needed: what is read in vain is bounded,
/// however large memory is.
#[test]
fn blocks_are_read_on_trust_only_so_often() {
    const TOUCHES: u32 = 400_000;
    let program = random_around("lru", 1 << 22, 1 << 36, TOUCHES);
    let counts = program.brain.counts();
    assert!(counts.major_faults >= u64::from(TOUCHES) * 99 / 100, "{counts:?}");
    // 64 MiB, and three pages for a trial of read-ahead now and then.
    let trials = u64::from(TOUCHES) * 3 / 200;
    assert!(counts.prefetched_pages <= (64 << 20) / 4096 + trials, "{counts:?}");
}

/// In a file of sixteen times the trust, all of which is used in the end, probes buy the rest.
#[test]
fn trust_is_regained_by_probes() {
    const PAGES: u64 = 1 << 18;
    let program = random_around("lru", 1 << 19, PAGES, 1_000_000);
    let counts = program.brain.counts();
    assert!(counts.major_faults <= PAGES / 4, "{counts:?}");
}

fn loop_share_per_pass(policy: &str, frames: u32) -> f64 {
    let pages = u64::from(frames) * 5 / 4;
    let mut program = Program::new(policy, Config::live(frames), 1, pages);
    for index in 0..pages {
        program.touch(0, index);
    }
    let first = program.pages_fetched();
    let passes = 9;
    for _ in 0..passes {
        for index in 0..pages {
            program.touch(0, index);
        }
    }
    (program.pages_fetched() - first) as f64 / (passes * pages) as f64
}

#[test]
fn a_loop_a_quarter_larger_than_memory() {
    for frames in [256, 1000, 4096, 16_384, 65_536] {
        let mru = loop_share_per_pass("mru", frames);
        assert!(mru <= 0.27, "MRU at {frames} frames reads {mru:.3} of the file per pass");
        let lru = loop_share_per_pass("lru", frames);
        // The last two or three windows of a pass stay in memory until the next stream is recognised.
        let window = f64::from(WINDOW_PAGES_MAX.min(frames / 8));
        let least = 1.0 - 3.5 * window / (f64::from(frames) * 1.25);
        assert!(lru >= least, "LRU at {frames} frames reads {lru:.3} of the file per pass");
    }
}

#[test]
fn without_evictions_nothing_is_unmapped() {
    let mut program = Program::new("clock", Config::live(5000), 2, 2400);
    for pass in 0..5 {
        for index in 0..2400 {
            program.touch(pass % 2, (index * 7) % 2400);
        }
    }
    assert_eq!(program.unmapped, 0);
    assert_eq!(program.brain.counts().evictions, 0);
}

/// Most faults of a scan are markers, so its few demand faults stay the newest for long. They, and
/// pages fetched ahead of a stream that ended, once stood at the head of the queue of mapped pages
/// and stopped all sampling.
#[test]
fn sampling_works_under_scans() {
    let frames = 2048;
    let mut program = Program::new("lru", Config::live(frames), 1, 1 << 16);
    for index in 0..1 << 15 {
        program.touch(0, index);
    }
    let counts = program.brain.counts();
    assert!(program.unmapped > u64::from(frames) / 4, "{counts:?}");
    assert!(counts.unmapped_pages <= 2 * counts.evictions);
}

/// The point of sampling: more of a hot set stays in memory under a stream of pages used once,
/// though LRU sees no touch of a mapped page.
#[test]
fn sampled_lru_keeps_more_of_a_hot_set() {
    let run = |sampling| {
        let config = Config { sampling, ..Config::live(1000) };
        let mut program = Program::new("lru", config, 1, 1 << 40);
        let mut at = 1u64;
        for step in 0..60_000u64 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            program.touch(0, (at >> 33) % 300);
            program.touch(0, 1000 + step * 3);
        }
        program.brain.counts().refaults
    };
    let sampled = run(Config::live(1000).sampling);
    let blind = run(Sampling::Off);
    assert!(sampled * 3 < blind * 2, "{sampled} refaults sampled, {blind} without");
}

/// Unmapping a page costs about as much as mapping it: where nothing is learned, little is spent,
/// and when there is something to learn again, that is noticed.
#[test]
fn sampling_costs_little_where_it_teaches_nothing() {
    let frames = 2048;
    let mut program = Program::new("lru", Config::live(frames), 1, 1 << 40);
    for index in 0..1 << 16 {
        program.touch(0, index);
    }
    let scan = program.brain.counts();
    assert!(scan.unmapped_pages * 3 < scan.evictions, "{scan:?}");
    let mut at = 1u64;
    for step in 0..60_000u64 {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        program.touch(0, (at >> 33) % 700);
        program.touch(0, (1 << 20) + step * 3);
    }
    let mixed = program.brain.counts();
    let unmapped = mixed.unmapped_pages - scan.unmapped_pages;
    assert!(unmapped > (mixed.evictions - scan.evictions) / 2, "{scan:?} {mixed:?}");
}

/// A hot set that nearly fits shows a touch for almost every page that is unmapped. Faults for that
/// were as many as misses, and took half of their time.
#[test]
fn touches_are_seen_for_a_share_of_what_misses_cost() {
    let frames = 1000;
    let mut program = Program::new("lru", Config::live(frames), 1, 1 << 20);
    let mut at = 1u64;
    for _ in 0..400_000 {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        program.touch(0, (at >> 33) % 1200);
    }
    let counts = program.brain.counts();
    let unmapped_at_once = u64::from(frames) / 2;
    assert!(counts.minor_faults <= counts.evictions / 2 + unmapped_at_once, "{counts:?}");
    assert!(counts.minor_faults >= counts.evictions / 4, "{counts:?}");
}

/// A hot set in a scan; nothing is fetched ahead, so that all minor faults are for sampling.
fn hot_set_in_a_scan(policy: &str, frames: u32, percent: u32, hot: u64, steps: u64) -> Program {
    let sampling = Sampling::within(SamplingShare::of_percent(percent).unwrap());
    let config = Config { sampling, window_pages_max: 1, ..Config::live(frames) };
    let mut program = Program::new(policy, config, 1, 1 << 40);
    let mut at = 1u64;
    for step in 0..steps {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        program.touch(0, (at >> 33) % hot);
        program.touch(0, (1 << 20) + step);
    }
    program
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Two touches cost what a miss does. What is unmapped when the last touch was paid for may be
    /// touched as well: once, and of a share below the usual one a part of it.
    #[test]
    fn touches_cost_no_more_than_the_share(
        pick in any::<prop::sample::Index>(),
        frames in 16..600u32,
        percent in prop_oneof![Just(0u32), Just(1), Just(100), 0..=100u32],
        hot_percent in 1..150u64,
    ) {
        let live: Vec<_> = all().iter().filter(|policy| policy.runs_live()).collect();
        let name = live[pick.index(live.len())].name;
        let watches = PolicySpec::parse(name).unwrap().build(frames, 7).unwrap().watches_pages();
        let hot = (u64::from(frames) * hot_percent / 100).max(1);
        let counts = hot_set_in_a_scan(name, frames, percent, hot, 8000).brain.counts();
        prop_assert_eq!(counts.touches_seen, counts.minor_faults);
        let share = u64::from(percent);
        // Watched pages have a share of their own; of the usual one or more, the other is spent on
        // them as well, and what that costs is bounded by pages unmapped.
        let paid = match watches {
            true if percent >= 25 => counts.unmapped_pages,
            true => counts.evictions * 4 * share / 100,
            false => counts.evictions * 2 * share / 100,
        };
        let unpaid_percent = (33 * share / 25).min(90);
        let most = paid + u64::from(frames) * unpaid_percent / 100 + 1;
        prop_assert!(counts.touches_seen <= most, "{name}: {most} {counts:?}");
        prop_assert!(percent > 0 || counts.unmapped_pages == 0);
    }
}

/// What may be spent is spent where it teaches something, and more of it buys fewer misses.
#[test]
fn a_larger_share_sees_more_and_misses_less() {
    let counts =
        |percent: u32| hot_set_in_a_scan("clock", 1000, percent, 600, 60_000).brain.counts();
    let all: Vec<_> = [0, 1, 5, 25, 50, 100].map(counts).into();
    for (few, many) in all.iter().zip(&all[1..]) {
        assert!(few.touches_seen < many.touches_seen && few.refaults > many.refaults, "{all:?}");
    }
    // Of larger ones there is not always so much to see.
    for (percent, counts) in [1, 5].iter().zip(&all[1..]) {
        let paid = counts.evictions * 2 * percent / 100;
        assert!(counts.touches_seen * 2 >= paid, "{percent}: {counts:?}");
    }
}

/// A selector that came to pages that were mapped already, or whose sample became another as memory
/// grew, saw nothing of those until they were mapped again; of the pages that MRU keeps, never.
#[test]
fn a_selector_sees_pages_of_its_sample_that_were_mapped_before() {
    let (frames, pages) = (1 << 14, 20_000);
    let config = |frames| Config { window_pages_max: 1, ..Config::live(frames) };
    let round = |program: &mut Program| (0..pages).for_each(|index| program.touch(0, index));
    let selector = || PolicySpec::parse("auto:start=mru").unwrap().build(frames, 7).unwrap();

    let mut switched = Program::new("mru", config(frames), 1, pages);
    round(&mut switched);
    switched.brain.put_forward(selector());
    switched.brain.apply(Input::Policy { number: 0, frames });

    let mut grown = Program::new("auto:start=mru", config(frames / 4), 1, pages);
    round(&mut grown);
    grown.brain.apply(Input::Frames { frames });

    for (program, why) in [(&mut switched, "switched"), (&mut grown, "grown")] {
        round(program);
        let before = program.brain.counts().major_faults;
        (0..4).for_each(|_| round(program));
        let missed = program.brain.counts().major_faults - before;
        assert!(missed < 4 * 4_000, "{why}: {missed} in four rounds, 3,617 of each do not fit");
        let notes = program.brain.visible().unwrap().take_notes();
        assert!(notes.is_empty(), "{why}: {notes:?}");
    }
}

#[test]
fn a_policy_that_ignores_references_is_not_sampled() {
    for policy in ["fifo", "random"] {
        let mut program = Program::new(policy, Config::live(256), 1, 1 << 12);
        for index in 0..1 << 12 {
            program.touch(0, index * 7 % (1 << 12));
        }
        assert_eq!(program.unmapped, 0, "{policy}");
        assert!(program.brain.counts().evictions > 0);
    }
}

/// One and the same policy takes over from itself, again and again: where it keeps its pages in one
/// order, nobody can tell.
#[test]
fn a_policy_that_takes_over_goes_on_in_the_order_of_the_one_before() {
    let config = Config { window_pages_max: 1, sampling: Sampling::Off, ..Config::live(64) };
    for name in ["fifo", "lru", "mru"] {
        let build = || PolicySpec::parse(name).unwrap().build(64, 7).unwrap();
        let (mut one, mut many) = (Brain::new(build(), config), Brain::new(build(), config));
        for brain in [&mut one, &mut many] {
            brain.apply(Input::Segment { segment: Segment(0), pages: 200 });
        }
        let mut at = 1u64;
        for number in 1..5_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let place = Place { segment: Segment(0), index: (at >> 40) % 90 };
            let input = if one.is_resident(place) {
                Input::Touch { place, write: false, map: false }
            } else {
                Input::Major { place, want: 1, write: false, map: false }
            };
            assert_eq!(one.apply(input), many.apply(input), "{name}, reference {number}");
            if number % 97 == 0 {
                many.put_forward(build());
                assert!(many.apply(Input::Policy { number: 1, frames: 64 }).is_empty(), "{name}");
            }
        }
        assert!(one.counts().evictions > 500, "{name}: {:?}", one.counts());
        assert_eq!(one.counts(), many.counts());
    }
}

/// A policy without one order: its pages are handed over in the order of their last use, so that
/// the most recently used ones are first to go under MRU, and last under LRU.
#[test]
fn pages_are_handed_over_in_the_order_of_their_last_use() {
    let config = Config { window_pages_max: 1, sampling: Sampling::Off, ..Config::live(64) };
    for (name, expected) in [("lru", [63, 62, 61]), ("mru", [57, 58, 59])] {
        let build = |name: &str| PolicySpec::parse(name).unwrap().build(64, 7).unwrap();
        let mut brain = Brain::new(build("random"), config);
        let segment = Segment(0);
        brain.apply(Input::Segment { segment, pages: 200 });
        let place = |index| Place { segment, index };
        for index in (0..64).rev() {
            brain.apply(Input::Major { place: place(index), want: 1, write: false, map: false });
        }
        for index in 0..60 {
            brain.apply(Input::Touch { place: place(index), write: false, map: false });
        }
        brain.put_forward(build(name));
        assert!(brain.apply(Input::Policy { number: 1, frames: 64 }).is_empty());
        let mut gone = Vec::new();
        for index in 100..120 {
            let place = place(index);
            let plan = brain.apply(Input::Major { place, want: 1, write: false, map: false });
            gone.extend(plan.evict.iter().map(|victim| victim.place.index));
        }
        // The last four that came in were newcomers, which are no policy's, and the two used last
        // may not leave at once; but the pages used longest ago stay under MRU.
        let mut of_old: Vec<u64> =
            gone.into_iter().filter(|index| (4..100).contains(index)).take(3).collect();
        if name == "mru" {
            of_old.sort_unstable();
        }
        assert_eq!(of_old, expected, "{name}");
    }
}

/// Dirty pages that cannot be written back fill memory but for some frames, and a scan goes on in those: a
/// plan that fetched two windows took for the second one a page of the first, which was not there yet.
#[test]
fn no_plan_evicts_what_it_fetches() {
    const FRAMES: u32 = 1024;
    for free in 2..64 {
        let policy = PolicySpec::parse("lru").unwrap().build(FRAMES, 7).unwrap();
        let mut brain = Brain::new(policy, Config::live(FRAMES));
        let [scan, stuck] = [Segment(0), Segment(1)];
        for segment in [scan, stuck] {
            brain.apply(Input::Segment { segment, pages: 1 << 15 });
        }
        // What cannot leave is told to stay, until all that was chosen may go.
        let step = |brain: &mut Brain, input: Input| {
            let mut inputs = vec![input];
            while let Some(input) = inputs.pop() {
                let plan = brain.apply(input);
                for victim in &plan.evict {
                    let place = victim.place;
                    let is_fetched = plan.fetch.iter().any(|run| run.contains(place));
                    assert!(!is_fetched, "{free} free: {place:?} is fetched and evicted by a plan");
                    if place.segment == stuck {
                        inputs.push(Input::Kept { place });
                    }
                }
            }
        };
        for index in 0..u64::from(FRAMES) - free {
            let place = Place { segment: stuck, index: index * 3 };
            step(&mut brain, Input::Major { place, want: 1, write: true, map: true });
        }
        for index in 0..4000 {
            let place = Place { segment: scan, index };
            if !brain.is_resident(place) {
                step(&mut brain, Input::Major { place, want: 1, write: false, map: true });
            } else if !brain.is_mapped(place) {
                step(&mut brain, Input::Touch { place, write: false, map: true });
            }
        }
    }
}
