//! DIAS: watches the fault rate and tries the other of two policies when it has changed.
//!
//! As published in 1999 for Linux, with the states and the parameters of the paper:
//!
//! ```text
//! −1  the history is filling; when it is full, that counts as the first change
//!  0  steady. On a change: save the rate, take the other policy, go to 1
//!  1  trying. On a change: if the rate is above the saved one, take the first policy back and go
//!     to 2; else go to 0
//!  2  taken back. On a change (the one that taking it back makes): go to 0
//! ```
//!
//! The paper's two policies are Linux's ageing (its "Linux LRU") and MRU by the same ages.
//!
//! # How the paper's fault rate maps
//! The paper samples fault counts by the clock, every 50 ms. A policy here has no clock: time is
//! counted in references, demand admissions and touches seen, and a slice is so many of them. The
//! rate is the sum of the window's fault counts over the window's length, as in the paper, and is
//! therefore a miss ratio. That helps: by the clock, a program that waits for its storage has
//! about as many faults a second under a good policy as under a bad one, since the storage sets
//! the pace, and its rate hardly moves. Where touches of mapped pages are not seen, as live, the
//! rate is faults per touch *seen* and moves less, too.
//!
//! The window of fault counts and the history of rates both have `window` entries, since the paper
//! has one parameter for both. A rate exists once the window is full.
//!
//! About one change the conditions hold for several slices in a row. That is one event here: else
//! state 1 would answer on the slice after its switch, before the policy on trial had any effect.
//!
//! # What to expect
//! It learns from its own trials only. A change that leaves the rate as it is goes unnoticed, and
//! so does a trial whose outcome is no change in the detector's sense: the policy on trial then
//! stays. [`auto`](super::auto) compares policies with one another instead.

mod detector;

pub use detector::{Detector, Finding, Thresholds};

use std::collections::VecDeque;

use crate::parameters::{Kind, ParameterInfo, Parameters, Value};
use crate::registry::{PolicyInfo, PolicySpec, Runs, Source};
use crate::switched::{Keeps, Switched, build, names_a_policy};
use crate::{Admission, Gauge, Note, Page, Place, Policy, Visible};

const A_POLICY: Kind = Kind::Text { what: "a policy that runs live", reads: names_a_policy };

const fn text(value: &'static str) -> Value {
    Value::Text(std::borrow::Cow::Borrowed(value))
}

const fn percent(key: &'static str, meaning: &'static str, default: u64) -> ParameterInfo {
    let kind = Kind::Integer { least: 0, most: 1000 };
    ParameterInfo { key, meaning, kind, default: Value::Integer(default) }
}

const PARAMETERS: &[ParameterInfo] = &[
    ParameterInfo {
        key: "first",
        meaning: "the policy to begin with",
        kind: A_POLICY,
        default: text("aging"),
    },
    ParameterInfo {
        key: "second",
        meaning: "the policy to try instead",
        kind: A_POLICY,
        default: text("agemru"),
    },
    ParameterInfo {
        key: "slice_refs",
        meaning: "references in a slice, for which faults are counted (the paper: 50 ms)",
        kind: Kind::Integer { least: 1, most: 1 << 32 },
        default: Value::Integer(50),
    },
    ParameterInfo {
        key: "window",
        meaning: "slices in the window that a fault rate is taken over, and rates in the history",
        kind: Kind::Choice(&["16", "32", "64", "128", "256", "512", "1024"]),
        default: Value::Choice("16"),
    },
    ParameterInfo {
        key: "segments",
        meaning: "parts that the history of rates is divided into",
        kind: Kind::Choice(&["1", "2", "4", "8", "16"]),
        default: Value::Choice("4"),
    },
    percent(
        "settled_percent",
        "difference between the latest part and the current rate that a change is below",
        10,
    ),
    percent(
        "changed_percent",
        "difference between the earliest part and the current rate that a change is above",
        30,
    ),
];

/// What the registry says about DIAS.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "dias",
    aliases: &["sm_dyna"],
    summary: "two policies in turn: tries the other one when the fault rate has changed",
    helps: "programs with long phases of different kinds, each with a fault rate of its own",
    hurts: "phases that a change of policy does not show in; a trial costs faults",
    source: Source {
        title: "S. Chang, K. Zhang: Application Specific Memory Management (SM), UC Berkeley, 1999",
        section: "3 (DIAS), and the appendix for the parameters: 50 16 4 10 30",
    },
    cost: "O(1) per reference besides the policy's own; a switch is O(resident pages)",
    // Of the ageing policies, and what the switch needs.
    bytes_per_page: 9 + 10,
    parameters: PARAMETERS,
    runs: Runs::Anywhere(|parameters, frames, seed| {
        Box::new(Dias::new(Settings::of(parameters), frames, seed))
    }),
};

/// The parameters of [`Dias`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// The policy to begin with, and the other one; both run anywhere.
    pub policies: [PolicySpec; 2],
    /// References in a slice.
    pub slice_refs: u64,
    /// Slices in the window, and rates in the history.
    pub window: usize,
    /// Parts of the history; they divide it.
    pub segments: usize,
    /// When the rate has changed.
    pub thresholds: Thresholds,
}

impl Settings {
    fn of(parameters: &Parameters) -> Self {
        let number = |key| parameters.choice(key).parse().unwrap_or(1);
        let policy = |key| match PolicySpec::parse(&parameters.text(key)) {
            Ok(spec) => spec,
            Err(error) => panic!("parameter `{key}` was read before: {error}"),
        };
        Self {
            policies: [policy("first"), policy("second")],
            slice_refs: parameters.integer("slice_refs"),
            window: number("window"),
            segments: number("segments"),
            thresholds: Thresholds {
                latest_most_percent: parameters.integer("settled_percent"),
                earliest_least_percent: parameters.integer("changed_percent"),
            },
        }
    }
}

/// What to do about a change: the paper's states, with the names they have there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// −1
    Filling,
    /// 0
    Steady,
    /// 1
    Trying { saved_rate: u64 },
    /// 2
    TakenBack,
}

impl State {
    const fn number(self) -> i8 {
        match self {
            State::Filling => -1,
            State::Steady => 0,
            State::Trying { .. } => 1,
            State::TakenBack => 2,
        }
    }

    /// The state after a change at this rate, and whether the other policy is to be taken.
    const fn after_change(self, rate: u64) -> (Self, bool) {
        match self {
            State::Filling | State::Steady => (State::Trying { saved_rate: rate }, true),
            State::Trying { saved_rate } if rate > saved_rate => (State::TakenBack, true),
            State::Trying { .. } | State::TakenBack => (State::Steady, false),
        }
    }
}

/// DIAS's decisions: fault counts in, switches out.
#[derive(Clone, Debug)]
struct Selector {
    window: usize,
    /// Fault counts of the last slices, and their sum: the rate, times the window's length.
    counts: VecDeque<u64>,
    rate: u64,
    detector: Detector,
    state: State,
    /// The last slice's rate was a change.
    was_change: bool,
    changes: u64,
}

impl Selector {
    fn new(settings: &Settings) -> Self {
        let Settings { window, segments, thresholds, .. } = *settings;
        Self {
            window,
            counts: VecDeque::with_capacity(window + 1),
            rate: 0,
            detector: Detector::new(window, segments, thresholds),
            state: State::Filling,
            was_change: false,
            changes: 0,
        }
    }

    /// A slice ended. Answers whether the other policy is to be taken.
    fn slice(&mut self, faults: u64) -> bool {
        self.counts.push_back(faults);
        self.rate += faults;
        if self.counts.len() > self.window {
            self.rate -= self.counts.pop_front().unwrap_or(0);
        }
        if self.counts.len() < self.window {
            return false;
        }
        let finding = self.detector.observe(self.rate);
        let is_change = match self.state {
            State::Filling => self.detector.is_full(),
            _ => finding.is_some_and(|finding| finding.is_change),
        };
        if std::mem::replace(&mut self.was_change, is_change) || !is_change {
            return false;
        }
        self.changes += 1;
        let (state, switch) = self.state.after_change(self.rate);
        self.state = state;
        switch
    }
}

/// Dynamic Intelligent Algorithm Selection between two policies.
pub struct Dias {
    settings: Settings,
    selector: Selector,
    pool: Switched,
    /// Which of the two is active.
    active: usize,
    slice_references: u64,
    slice_faults: u64,
    frames: u32,
    seed: u64,
}

impl Dias {
    /// Begins with the first policy. `seed` feeds policies that are random.
    ///
    /// # Panics
    /// If one of the policies runs in the simulator alone.
    pub fn new(settings: Settings, frames: u32, seed: u64) -> Self {
        let [first, second] = settings.policies.each_ref().map(|spec| build(spec, frames, seed));
        let keeps = Keeps::what(&*first).max(Keeps::what(&*second));
        Self {
            selector: Selector::new(&settings),
            pool: Switched::new(first, keeps),
            settings,
            active: 0,
            slice_references: 0,
            slice_faults: 0,
            frames,
            seed,
        }
    }

    #[inline]
    fn count(&mut self, faults: u64) {
        self.slice_faults += faults;
        self.slice_references += 1;
        if self.slice_references == self.settings.slice_refs {
            self.end_slice();
        }
    }

    fn end_slice(&mut self) {
        let faults = std::mem::take(&mut self.slice_faults);
        self.slice_references = 0;
        let before = self.selector.state;
        if !self.selector.slice(faults) {
            return;
        }
        let old = &self.settings.policies[self.active];
        self.active = 1 - self.active;
        let new = &self.settings.policies[self.active];
        let per_mille = |rate: u64| {
            1000 * rate / (self.settings.window as u64 * self.settings.slice_refs).max(1)
        };
        let rate = per_mille(self.selector.rate);
        let why = match before {
            State::Filling => format!("{old} → {new}: the history of fault rates is full"),
            State::Trying { saved_rate } => format!(
                "{old} → {new}: {rate} faults per 1000 references, {} before the trial",
                per_mille(saved_rate)
            ),
            State::Steady | State::TakenBack => {
                format!("{old} → {new}: the fault rate changed to {rate} per 1000 references")
            }
        };
        self.pool.switch_to(build(new, self.frames, self.seed), why);
    }
}

impl Policy for Dias {
    fn wants_places(&self) -> bool {
        self.pool.wants_places()
    }

    fn wants_indices(&self) -> bool {
        self.pool.wants_indices()
    }

    fn placed(&mut self, page: Page, place: Place) {
        self.pool.placed(page, place);
    }

    fn admitted(&mut self, page: Page, how: Admission) {
        self.pool.admitted(page, how);
        if how == Admission::Demand {
            self.count(1);
        }
    }

    fn spared(&mut self, page: Page) {
        self.pool.spared(page);
    }

    fn wants_samples(&self) -> bool {
        self.pool.wants_samples()
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        self.pool.referenced(page);
        self.count(0);
    }

    fn sampled(&mut self, page: Page) {
        self.pool.sampled(page);
        self.count(0);
    }

    fn removed(&mut self, page: Page) {
        self.pool.removed(page);
    }

    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        self.pool.victim(incoming)
    }

    fn resized(&mut self, frames: u32) {
        self.frames = frames;
        self.pool.resized(frames);
    }

    fn resident(&self) -> u32 {
        self.pool.resident()
    }

    fn visible(&mut self) -> Option<&mut dyn Visible> {
        Some(self)
    }
}

impl Visible for Dias {
    fn gauges(&self) -> Vec<Gauge> {
        let window_refs = self.settings.window as u64 * self.settings.slice_refs;
        [
            ("state", f64::from(self.selector.state.number())),
            ("active_policy", self.active as f64),
            ("fault_rate", self.selector.rate as f64 / window_refs as f64),
            ("changes", self.selector.changes as f64),
            ("switches", self.pool.switches() as f64),
        ]
        .map(|(name, value)| Gauge { name, value })
        .to_vec()
    }

    fn take_notes(&mut self) -> Vec<Note> {
        self.pool.take_notes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_the_paper_s() {
        let steady = State::Filling.after_change(40);
        assert_eq!(steady, (State::Trying { saved_rate: 40 }, true));
        let trying = State::Steady.after_change(50).0;
        assert_eq!(trying.number(), 1);
        // Worse: the other one back, and then wait for the change that this makes.
        assert_eq!(trying.after_change(51), (State::TakenBack, true));
        assert_eq!(State::TakenBack.after_change(10), (State::Steady, false));
        // Not worse: it stays.
        assert_eq!(trying.after_change(50), (State::Steady, false));
    }

    fn dias(text: &str) -> Dias {
        let spec = PolicySpec::parse(text).unwrap();
        Dias::new(Settings::of(spec.parameters()), 4, 0)
    }

    #[test]
    fn the_sample_s_parameters_are_the_defaults() {
        let settings = dias("dias").settings;
        let Settings { slice_refs, window, segments, thresholds, policies } = settings;
        assert_eq!((slice_refs, window, segments), (50, 16, 4));
        assert_eq!((thresholds.latest_most_percent, thresholds.earliest_least_percent), (10, 30));
        assert_eq!(policies.map(|spec| spec.to_string()), ["aging", "agemru"]);
        assert!(PolicySpec::parse("dias:first=opt").is_err());
        assert!(PolicySpec::parse("dias:second=fifo2:inactive=1/2").is_ok());
    }

    /// Through all four states, by fault rates made to order.
    #[test]
    fn a_worse_policy_is_taken_back() {
        let mut dias = dias("dias:first=lru,second=mru,slice_refs=10");
        let mut slices = |count: usize, faults: u64| {
            for reference in (0..count).flat_map(|_| 0..10) {
                let page = Page(reference as u32);
                if reference < faults {
                    dias.admitted(page, Admission::Demand);
                    dias.removed(page);
                } else {
                    // A hit: resident for the purpose, and not a fault.
                    dias.admitted(page, Admission::Prefetch);
                    dias.referenced(page);
                    dias.removed(page);
                }
            }
            (dias.active, dias.selector.state.number())
        };
        // A window, and a history less one.
        assert_eq!(slices(30, 4), (0, -1));
        assert_eq!(slices(1, 4), (1, 1));
        // Twice the rate under the policy on trial, once it has settled.
        assert_eq!(slices(40, 8), (0, 2));
        assert_eq!(slices(40, 4), (0, 0));
        let notes = dias.take_notes();
        assert_eq!(notes.iter().map(|note| note.at_refs).next(), Some(310));
        assert!(notes[1].text.starts_with("mru → lru: "), "{notes:?}");
    }
}
