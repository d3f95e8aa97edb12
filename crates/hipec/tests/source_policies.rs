//! The example policies at work: the same victims as native policies, or as plain models of what
//! their first lines say; and fewer faults where they claim to help.
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use pagekeeper_hipec::source::check;
use pagekeeper_hipec::{HipecPolicy, Verified};
use pagekeeper_policy::{Admission, Checked, Page, Place, Policy, PolicySpec, Segment};
use pagekeeper_sim::{Fault, LiveOptions, References, replay, simulate_live};
use proptest::prelude::*;

use examples::{EXAMPLES, example};

use crate::examples;
use crate::shared;

fn built(name: &str, text: &str) -> Arc<Verified> {
    Arc::new(check(text).unwrap_or_else(|errors| panic!("{}", errors[0].render(name, text))))
}

fn native(spec: &str, frames: u32) -> Box<dyn Policy> {
    PolicySpec::parse(spec).expect("it is known").build(frames, 0).expect("it can be built")
}

/// Of a loop that runs under a mapping, where most touches are unseen, `mru.hipec` loses what MRU
/// does: it is told of no sample, and nothing is unmapped for it.
#[test]
fn mru_as_a_program_holds_a_loop_whose_touches_are_sampled() {
    let program = example("mru");
    assert!(!HipecPolicy::new(program.clone(), 64).wants_samples());
    let pages = (16 << 20) / 4096 * 5 / 4;
    let refs = References::from_blocks((0..8).flat_map(|_| 0..pages)).unwrap();
    let counts = |spec: &PolicySpec| {
        let options = LiveOptions { frames: Some(4096), ..LiveOptions::new(16 << 20) };
        simulate_live(&refs, spec, &options).unwrap().counts
    };
    let own = pagekeeper_hipec::policy::spec(program, "mru.hipec", None).unwrap();
    assert_eq!(counts(&own), counts(&PolicySpec::parse("mru").unwrap()));
}

/// Pages of the first file, and then of others.
const FILE_PAGES: u32 = 500;

fn place(page: u32) -> Place {
    Place { segment: Segment(page / FILE_PAGES), index: u64::from(page % FILE_PAGES) }
}

/// A queue for each level; the deepest gives up its pages first.
struct Levels {
    level_of: fn(Place) -> usize,
    /// Whether a reference moves a page to the end, or saves it when it is to leave.
    moves: bool,
    queues: Vec<VecDeque<u32>>,
    referenced: BTreeSet<u32>,
}

impl Levels {
    fn boxed(level_of: fn(Place) -> usize, moves: bool) -> Box<dyn Policy> {
        let queues = vec![VecDeque::new(); 26];
        Box::new(Self { level_of, moves, queues, referenced: BTreeSet::new() })
    }

    fn queue(&mut self, page: Page) -> &mut VecDeque<u32> {
        &mut self.queues[(self.level_of)(place(page.0))]
    }
}

impl Policy for Levels {
    fn admitted(&mut self, page: Page, _how: Admission) {
        self.referenced.remove(&page.0);
        self.queue(page).push_back(page.0);
    }
    fn referenced(&mut self, page: Page) {
        if self.moves {
            self.removed(page);
            self.queue(page).push_back(page.0);
        } else {
            self.referenced.insert(page.0);
        }
    }
    fn removed(&mut self, page: Page) {
        self.queue(page).retain(|known| *known != page.0);
    }
    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        let queue = self.queues.iter_mut().rev().find(|queue| !queue.is_empty())?;
        loop {
            let page = queue.pop_front()?;
            if !self.referenced.remove(&page) {
                return Some(Page(page));
            }
            queue.push_back(page);
        }
    }
    fn resized(&mut self, _frames: u32) {}
    fn resident(&self) -> u32 {
        self.queues.iter().map(|queue| queue.len() as u32).sum()
    }
}

/// Pages of the first file from `first` on pass through in order; of all others the last one that
/// came leaves, when no page passes through.
struct Prefix {
    first: u64,
    kept: Vec<u32>,
    stream: VecDeque<u32>,
}

impl Prefix {
    fn boxed(frames: u32) -> Box<dyn Policy> {
        let first = u64::from(frames - frames / 32);
        Box::new(Self { first, kept: Vec::new(), stream: VecDeque::new() })
    }
}

impl Policy for Prefix {
    fn admitted(&mut self, page: Page, _how: Admission) {
        let at = place(page.0);
        if at.segment == Segment(0) && at.index >= self.first {
            self.stream.push_back(page.0);
        } else {
            self.kept.push(page.0);
        }
    }
    fn referenced(&mut self, _page: Page) {}
    fn removed(&mut self, page: Page) {
        self.kept.retain(|known| *known != page.0);
        self.stream.retain(|known| *known != page.0);
    }
    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        self.stream.pop_front().or_else(|| self.kept.pop()).map(Page)
    }
    fn resized(&mut self, _frames: u32) {}
    fn resident(&self) -> u32 {
        (self.kept.len() + self.stream.len()) as u32
    }
}

/// Figure 9's index tree: 64 records a page, record r of level ⌊log₂ r⌋, the root being 1.
fn binary_level(place: Place) -> usize {
    match place.segment {
        Segment(0) => (place.index * 64 + 1).ilog2().min(24) as usize,
        _ => 25,
    }
}

/// Before level k there are 1 + 100 + … + 100ᵏ⁻¹ pages.
fn btree_level(place: Place) -> usize {
    (0..7).find(|level| place.index < (100_u64.pow(level + 1) - 1) / 99).unwrap_or(7) as usize
}

/// Each example with what it must equal.
fn peer(name: &str, frames: u32) -> Box<dyn Policy> {
    match name {
        "second-chance" => native("fifo2", frames),
        "lru-2" => native("lru-k", frames),
        "scan-resistant" => native("slru", frames),
        "mpfifo2" => Levels::boxed(binary_level, false),
        "loop" => Prefix::boxed(frames),
        "btree-levels" => Levels::boxed(btree_level, true),
        same => native(same, frames),
    }
}

#[derive(Clone, Debug)]
enum Event {
    Touch(u32),
    FetchAhead(u32),
    Remove(u32),
}

/// One policy in `frames` frames.
struct Pool<P> {
    policy: Checked<P>,
    resident: BTreeSet<u32>,
    frames: u32,
    /// Pages that came in or left, in order.
    history: Vec<u32>,
    faults: u32,
}

impl<P: Policy> Pool<P> {
    fn new(policy: P, frames: u32) -> Self {
        let policy = Checked::new(policy, frames);
        Self { policy, resident: BTreeSet::new(), frames, history: Vec::new(), faults: 0 }
    }

    fn admit(&mut self, page: u32, how: Admission) {
        self.policy.placed(Page(page), place(page));
        while self.resident.len() >= self.frames as usize {
            let victim = self.policy.victim(Some(Page(page))).expect("some page is resident");
            assert!(self.resident.remove(&victim.0));
            self.history.push(victim.0);
        }
        self.policy.admitted(Page(page), how);
        self.resident.insert(page);
    }

    fn play(&mut self, event: &Event) {
        match *event {
            Event::Touch(page) if self.resident.contains(&page) => {
                self.policy.referenced(Page(page));
            }
            Event::Touch(page) => {
                self.faults += 1;
                self.admit(page, Admission::Demand);
            }
            Event::FetchAhead(page) if !self.resident.contains(&page) => {
                self.admit(page, Admission::Prefetch);
            }
            Event::Remove(page) if self.resident.remove(&page) => self.policy.removed(Page(page)),
            _ => {}
        }
    }
}

/// What a program must never come to.
fn assert_sound(name: &str, pool: Pool<HipecPolicy>) {
    let program = pool.policy.into_inner();
    let counts = program.counts();
    let failures = counts.passed_over + counts.overruns + counts.misuses + counts.loose_ends;
    assert_eq!((failures, program.revoked()), (0, None), "{name}: {counts:?}");
}

fn assert_equals_peer(name: &str, frames: u32, events: &[Event]) {
    let mut ours = Pool::new(HipecPolicy::new(example(name), frames), frames);
    let mut peer = Pool::new(peer(name, frames), frames);
    for event in events {
        ours.play(event);
        peer.play(event);
        assert_eq!(ours.history, peer.history, "{name} after {event:?}");
    }
    assert_sound(name, ours);
}

fn faults(policy: impl Policy, frames: u32, touches: &[u32]) -> u32 {
    let mut pool = Pool::new(policy, frames);
    touches.iter().for_each(|page| pool.play(&Event::Touch(*page)));
    pool.faults
}

fn faults_of(name: &str, frames: u32, touches: &[u32]) -> u32 {
    faults(HipecPolicy::new(example(name), frames), frames, touches)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn examples_decide_as_their_peers(
        events in prop::collection::vec(prop_oneof![
            20 => (0..40_u32).prop_map(Event::Touch),
            10 => (0..1200_u32).prop_map(Event::Touch),
            3 => (0..60_u32).prop_map(Event::FetchAhead),
            1 => (0..60_u32).prop_map(Event::Remove),
        ], 0..400),
        frames in 1..40_u32,
    ) {
        for name in EXAMPLES {
            assert_equals_peer(name, frames, &events);
        }
    }
}

const TRACES: [&str; 7] = ["2_pools", "cpp", "cs", "gli", "loop", "multi1", "multi2"];

fn all_faults(references: &References, mut policy: impl Policy, frames: u32) -> Vec<Fault> {
    let mut faults = Vec::new();
    replay(references, &mut policy, frames, |fault| faults.push(fault)).expect("it is sound");
    faults
}

/// The same fault with the same victim, each time.
#[test]
fn examples_decide_as_native_policies_on_traces() {
    for trace in TRACES {
        let Some(references) = shared::trace(trace) else { continue };
        for frames in [references.pages() / 20, references.pages() / 2] {
            for name in ["fifo", "second-chance", "lru", "mru", "lru-2", "scan-resistant"] {
                let ours = all_faults(&references, HipecPolicy::new(example(name), frames), frames);
                let native = all_faults(&references, peer(name, frames), frames);
                assert!(ours == native, "{name} on {trace} in {frames} frames");
            }
        }
    }
}

/// A generator of its own, so that the counts below never change: Knuth's MMIX constants.
fn random(state: &mut u64) -> u32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as u32
}

#[test]
fn mru_helps_loops() {
    let touches: Vec<u32> = (0..20).flat_map(|_| 0..100).collect();
    assert_eq!(faults(native("lru", 80), 80, &touches), 2000);
    // The paper's argument for the nested-loop join: only what does not fit is read again.
    assert!(faults_of("mru", 80, &touches) < 600);
}

#[test]
fn mpfifo2_and_btree_levels_help_lookups() {
    // Random walks from the root to a leaf: a tree of 13 levels in 128 pages, then a data page.
    let mut state = 1;
    let mut touches = Vec::new();
    for _ in 0..20_000 {
        let leaf = 4096 + random(&mut state) % 4096;
        touches.extend((0..13).rev().map(|up| ((leaf >> up) - 1) / 64));
        touches.push(FILE_PAGES + random(&mut state) % FILE_PAGES);
    }
    let fifo2 = faults(native("fifo2", 96), 96, &touches);
    let ours = faults_of("mpfifo2", 96, &touches);
    assert!(ours < fifo2, "{ours} faults against {fifo2}");

    // A tree of 100 children a page: root, 100 inner pages, leaves.
    let mut touches = Vec::new();
    for _ in 0..20_000 {
        let inner = random(&mut state) % 4;
        touches.extend([0, 1 + inner, 101 + inner * 100 + random(&mut state) % 100]);
        touches.retain(|page| *page < FILE_PAGES);
    }
    let lru = faults(native("lru", 12), 12, &touches);
    let ours = faults_of("btree-levels", 12, &touches);
    assert!(ours < lru, "{ours} faults against {lru}");
}

#[test]
fn scan_resistance_helps_scans() {
    // A hot set used often, and scans of pages that do not come back.
    let mut state = 2;
    let mut touches = Vec::new();
    for scan in 0..100 {
        touches.extend((0..200).map(|_| random(&mut state) % 30));
        touches.extend((0..100).map(|page| 100 + scan * 100 + page));
    }
    let lru = faults(native("lru", 50), 50, &touches);
    let ours = faults_of("scan-resistant", 50, &touches);
    assert!(ours + 2000 < lru, "{ours} faults against {lru}");
}

/// Both figures run as they are printed, but for what was mended.
#[test]
fn the_figures_run() {
    for (name, text) in [
        ("figure 3", include_str!("source/figure3.hipec")),
        ("figure 9", include_str!("source/figure9.hipec")),
    ] {
        let mut pool = Pool::new(HipecPolicy::new(built(name, text), 64), 64);
        let mut state = 3;
        for _ in 0..20_000 {
            pool.play(&Event::Touch(random(&mut state) % 200));
        }
        assert_sound(name, pool);
    }
}

/// A program in the documentation is one that a reader will copy.
#[test]
fn programs_in_the_documentation_run() {
    let mut state = 4;
    let touches: Vec<u32> = (0..5000).map(|_| random(&mut state) % 300).collect();
    for (page, programs) in [("hipec-tutorial.md", 6), ("hipec-language.md", 1)] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
        let text = std::fs::read_to_string(format!("{folder}/{page}")).expect("it is there");
        let blocks: Vec<&str> = text
            .split("```hipec\n")
            .skip(1)
            .filter_map(|rest| rest.split_once("```").map(|(block, _)| block))
            .collect();
        assert_eq!(blocks.len(), programs, "{page}");
        for block in blocks {
            let mut pool = Pool::new(HipecPolicy::new(built(page, block), 64), 64);
            touches.iter().for_each(|touch| pool.play(&Event::Touch(*touch)));
            assert_sound(page, pool);
        }
    }
}
