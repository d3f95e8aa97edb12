//! Programs written command by command against the native policies: the same victims, one by
//! one.
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_hipec::policy::STRIKES_MAX;
use pagekeeper_hipec::{Execution, Form, HipecPolicy, Verified, load};
use pagekeeper_policy::flat::Flat;
use pagekeeper_policy::policies::fifo2::{Marks, Queues};
use pagekeeper_policy::{Admission, Checked, Fraction, Page, Policy, PolicySpec};
use proptest::prelude::*;

fn program(name: &str) -> Arc<Verified> {
    let path = format!("{}/tests/policies/{name}.asm", env!("CARGO_MANIFEST_DIR"));
    let (verified, form) =
        load(&path, &std::fs::read(&path).unwrap()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(form, Form::Assembler);
    Arc::new(verified)
}

/// A program and the native policy that it must equal.
const PAIRS: &[(&str, &str)] =
    &[("fifo2", "fifo2"), ("lru", "lru"), ("mru", "mru"), ("clock", "clock"), ("lru2", "lru-k")];

/// Each pair both ways.
fn runs() -> impl Iterator<Item = (&'static (&'static str, &'static str), Execution)> {
    PAIRS.iter().flat_map(|pair| {
        [Execution::Interpreted, Execution::Compiled].map(|execution| (pair, execution))
    })
}

#[derive(Clone, Debug)]
enum Event {
    Touch(u32),
    /// A fault that brings so many neighbours along.
    Cluster(u32, u32),
    Remove(u32),
    Resize(u32),
    Spare,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        20 => (0..40_u32).prop_map(Event::Touch),
        10 => (0..12_u32).prop_map(Event::Touch),
        2 => (0..40_u32, 1..5_u32).prop_map(|(page, ahead)| Event::Cluster(page, ahead)),
        1 => (0..40_u32).prop_map(Event::Remove),
        1 => (1..24_u32).prop_map(Event::Resize),
        1 => Just(Event::Spare),
    ];
    prop::collection::vec(event, 0..400)
}

/// Both policies as one, whose victims are equal.
struct Both {
    name: &'static str,
    program: Checked<HipecPolicy>,
    native: Checked<Box<dyn Policy>>,
    resident: BTreeSet<u32>,
    frames: u32,
}

impl Both {
    /// `None` where the program cannot be run this way.
    fn new(name: &'static str, native: &str, frames: u32, execution: Execution) -> Option<Self> {
        let ours = HipecPolicy::with_execution(program(name), frames, execution)
            .inspect_err(|why| println!("skipped: {why}"))
            .ok()?;
        let native = PolicySpec::parse(native).unwrap().build(frames, 0).unwrap();
        Some(Self {
            name,
            program: Checked::new(ours, frames),
            native: Checked::new(native, frames),
            resident: BTreeSet::new(),
            frames,
        })
    }

    fn evict(&mut self, incoming: Option<Page>) {
        let victim = self.native.victim(incoming);
        assert_eq!(self.program.victim(incoming), victim, "{}", self.name);
        victim.inspect(|page| assert!(self.resident.remove(&page.0)));
    }

    fn admit(&mut self, page: u32, how: Admission) {
        self.program.admitted(Page(page), how);
        self.native.admitted(Page(page), how);
        self.resident.insert(page);
    }

    fn play(&mut self, event: &Event) {
        match *event {
            Event::Touch(page) if self.resident.contains(&page) => {
                self.program.referenced(Page(page));
                self.native.referenced(Page(page));
            }
            Event::Touch(page) => self.play(&Event::Cluster(page, 0)),
            Event::Cluster(page, ahead) => {
                let fetched: Vec<_> = (page..=page + ahead)
                    .filter(|page| !self.resident.contains(page))
                    .take(self.frames as usize)
                    .collect();
                if fetched.is_empty() {
                    return;
                }
                while self.resident.len() + fetched.len() > self.frames as usize {
                    self.evict(Some(Page(fetched[0])));
                }
                for it in fetched {
                    let how = if it == page { Admission::Demand } else { Admission::Prefetch };
                    self.admit(it, how);
                }
            }
            Event::Remove(page) => {
                if self.resident.remove(&page) {
                    self.program.removed(Page(page));
                    self.native.removed(Page(page));
                }
            }
            Event::Resize(frames) => {
                self.frames = frames;
                self.program.resized(frames);
                self.native.resized(frames);
            }
            Event::Spare => self.evict(None),
        }
    }

    /// Takes every page, and gives back the program.
    fn emptied(mut self) -> HipecPolicy {
        while !self.resident.is_empty() {
            self.evict(None);
        }
        self.program.into_inner()
    }

    fn finish(self) {
        let program = self.emptied();
        let counts = program.counts();
        assert_eq!(counts.passed_over + counts.overruns + counts.misuses + counts.loose_ends, 0);
        assert_eq!(program.revoked(), None);
    }
}

proptest! {
    #[test]
    fn programs_decide_as_native_policies_on_any_events(events in events(), frames in 1..24_u32) {
        for ((name, native), execution) in runs() {
            let Some(mut both) = Both::new(name, native, frames, execution) else { continue };
            // MRU's pages fetched ahead count as used when the frames become fewer; a program
            // hears of that at its next event, so a reference between may differ.
            for event in events.iter().filter(|it| *name != "mru" || !matches!(it, Event::Resize(_))) {
                both.play(event);
            }
            both.finish();
        }
    }

    /// What is left when a program gives no victim, and after it was revoked for that.
    #[test]
    fn the_pools_own_order_is_fifo2(events in events(), frames in 1..24_u32) {
        let Some(mut both) = Both::new("none", "fifo2", frames, Execution::Interpreted) else {
            unreachable!("every host interprets");
        };
        events.iter().for_each(|event| both.play(event));
        let program = both.emptied();
        let counts = program.counts();
        prop_assert_eq!(counts.chosen, 0);
        prop_assert_eq!(program.revoked().is_some(), counts.passed_over >= STRIKES_MAX.into());
    }

    /// It is made when it is first asked for a victim, and decides as if kept all along.
    #[test]
    fn the_pools_own_order_may_begin_late(
        touches in prop::collection::vec((0..24_u32, 0..24_u8), 0..300),
        frames in 1..12_u32,
        fails in prop::collection::vec(prop::bool::weighted(0.2), 1..40),
    ) {
        let mut policy =
            HipecPolicy::with_execution(program("mru"), frames, Execution::Interpreted).unwrap();
        let marks = Marks { referenced: 1, inactive: 2 };
        let (mut own, mut bits) = (Queues::new(Fraction::new(2, 3), marks), Flat::new());
        let mut resident = BTreeSet::new();
        let mut fails = fails.into_iter().cycle();
        for (number, what) in touches {
            let page = Page(number);
            if resident.contains(&page) {
                if what == 0 {
                    own.removed(&bits, page);
                    policy.removed(page);
                    resident.remove(&page);
                } else {
                    *bits.slot(page.index()) |= marks.referenced;
                    policy.referenced(page);
                }
                continue;
            }
            if resident.len() == frames as usize {
                policy.set_budget_commands(fails.next().filter(|fails| *fails).map(|_| 0));
                let chosen = policy.counts().chosen;
                let victim = policy.victim(Some(page)).expect("pages are resident");
                policy.set_budget_commands(None);
                if policy.counts().chosen > chosen {
                    own.removed(&bits, victim);
                } else {
                    prop_assert_eq!(own.victim(&mut bits), Some(victim));
                }
                prop_assert!(resident.remove(&victim));
            }
            let how = if what == 1 { Admission::Prefetch } else { Admission::Demand };
            own.admitted(&mut bits, page, how);
            policy.admitted(page, how);
            resident.insert(page);
        }
    }
}

/// The traces that tests look for outside the repository, as the simulator's do.
fn traces() -> Option<PathBuf> {
    let shared = std::env::var_os("PAGEKEEPER_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let traces = shared.join("traces");
    if traces.is_dir() {
        return Some(traces);
    }
    println!("skipped: no {}; set PAGEKEEPER_SHARED to what holds traces/", traces.display());
    None
}

/// One decimal block number per line; blank lines and lines with `*` are dropped. Blocks become
/// pages in order of appearance.
fn read(path: &Path) -> (Vec<u32>, u32) {
    let mut numbers = HashMap::new();
    let pages = std::fs::read_to_string(path)
        .unwrap()
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.contains('*'))
        .map(|line| {
            let next = numbers.len() as u32;
            *numbers.entry(line.parse::<u64>().unwrap()).or_insert(next)
        })
        .collect();
    (pages, numbers.len() as u32)
}

#[test]
fn programs_decide_as_native_policies_on_traces() {
    let Some(traces) = traces() else { return };
    let mut paths: Vec<_> =
        std::fs::read_dir(traces).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "trace"));
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        let (pages, distinct) = read(&path);
        for frames in [distinct / 20, distinct / 2] {
            for ((name, native), execution) in runs() {
                let Some(mut both) = Both::new(name, native, frames.max(2), execution) else {
                    continue;
                };
                pages.iter().for_each(|page| both.play(&Event::Touch(*page)));
                both.finish();
            }
        }
    }
}
