//! What the brain does for whole access patterns: read-ahead, loops, sampling.

use pagekeeper_frames::{Brain, Config, Input, Place, Sampling, Segment, WINDOW_PAGES_MAX};
use pagekeeper_policy::PolicySpec;

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

#[test]
fn random_faults_fetch_nothing_else() {
    let mut program = Program::new("lru", Config::live(1 << 10), 1, 1 << 30);
    let mut at = 1u64;
    for _ in 0..20_000 {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        program.touch(0, at >> 34);
    }
    assert_eq!(program.brain.counts().prefetched_pages, 0);
    assert!(program.fetched.iter().all(|p| *p == 1));
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
        // The last windows of a pass stay in memory until the next stream is recognised.
        let window = f64::from(WINDOW_PAGES_MAX.min(frames / 8));
        let least = 1.0 - 2.5 * window / (f64::from(frames) * 1.25);
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
