//! One policy at one memory size, watched from the outside and, where it shows something, from the
//! inside.
use pagekeeper_policy::{Admission, Page, Policy, PolicySpec, pass_on};
use pagekeeper_sim::{Counts, Fault, Future, References, SimError, replay_warm};
use serde::Serialize;

use crate::space_time::Mapping;
use crate::{FaultRate, Gaps, Layout, SpaceTime};

/// Notes kept; what a policy says beyond is counted.
const NOTES_MOST: usize = 1000;
/// No earlier reference.
const NEVER: u64 = u64::MAX;

/// How to watch.
#[derive(Clone, Copy, Debug)]
pub struct ObserveOptions {
    /// Columns of maps, and times at which the policy's numbers are read.
    pub columns: u32,
    /// Intervals that faults are counted in.
    pub intervals: u32,
    /// Times at which the policy's curves are read.
    pub snapshots: u32,
    /// Feeds a random policy.
    pub seed: u64,
    /// Counts, gaps, fault rate and fault map start at this reference.
    pub warm_refs: usize,
}

impl Default for ObserveOptions {
    fn default() -> Self {
        Self { columns: 400, intervals: 200, snapshots: 5, seed: 0, warm_refs: 0 }
    }
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Observation {
    /// The policy with its parameters.
    pub policy: String,
    /// Memory, in frames.
    pub frames: u32,
    /// What happened.
    pub counts: Counts,
    /// Faults by references passed.
    pub rate: FaultRate,
    /// Faults by time in nanoseconds, where the trace has times.
    pub rate_by_time: Option<FaultRate>,
    /// Faults by time and page.
    pub faults: SpaceTime,
    /// Gaps of the references that hit.
    pub hit_gaps: Gaps,
    /// What the policy shows of itself, if anything.
    pub inside: Option<Inside>,
}

/// What a policy showed of its inside over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Inside {
    /// Names of its numbers; the unit ends the name.
    pub gauges: Vec<&'static str>,
    /// References passed, and the numbers then.
    pub values: Vec<(u64, Vec<f64>)>,
    /// Its classes, and where and when it took the page referenced for one.
    pub classes: Vec<(&'static str, SpaceTime)>,
    /// Its curves at several times.
    pub snapshots: Vec<Snapshot>,
    /// What it said happened: references passed, and the words. The first thousand.
    pub notes: Vec<(u64, String)>,
    /// Notes beyond those.
    pub notes_left_out: u64,
}

/// The curves that a policy decided by at one time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Snapshot {
    /// References passed.
    pub at_refs: u64,
    /// Names and points.
    pub curves: Vec<(&'static str, Vec<(f64, f64)>)>,
}

/// Replays the references once through a new policy in `frames` frames, and watches.
///
/// # Errors
/// As [`replay_warm`], and if the policy cannot be built.
pub fn observe(
    references: &References,
    layout: &Layout,
    spec: &PolicySpec,
    frames: u32,
    options: &ObserveOptions,
) -> Result<Observation, SimError> {
    let future = Future::of(references, std::slice::from_ref(spec))?;
    let policy = future.build(references, spec, frames, options.seed)?;
    Watched::new(policy, references, layout, options).run(spec, frames)
}

/// A policy under observation: all calls go through, and are looked at.
struct Watched<'a> {
    policy: Box<dyn Policy + 'a>,
    references: &'a References,
    layout: &'a Layout,
    options: &'a ObserveOptions,
    /// References passed.
    passed: u64,
    last: Vec<u64>,
    hit_gaps: Gaps,
    inside: Option<Inside>,
    classes: Vec<(&'static str, Mapping)>,
    columns_passed: u64,
    snapshots_passed: u64,
}

impl<'a> Watched<'a> {
    fn new(
        mut policy: Box<dyn Policy + 'a>,
        references: &'a References,
        layout: &'a Layout,
        options: &'a ObserveOptions,
    ) -> Self {
        let inside = policy.visible().map(|_| Inside::default());
        Self {
            policy,
            references,
            layout,
            options,
            passed: 0,
            last: vec![NEVER; references.pages() as usize],
            hit_gaps: Gaps::default(),
            inside,
            classes: Vec::new(),
            columns_passed: 0,
            snapshots_passed: 0,
        }
    }

    fn run(mut self, spec: &PolicySpec, frames: u32) -> Result<Observation, SimError> {
        let (references, options) = (self.references, self.options);
        let warm_refs = options.warm_refs.min(references.len());
        let mut faults = Mapping::new(references.len(), self.layout, options.columns);
        let mut positions = Vec::new();
        let layout = self.layout;
        let on_fault = |fault: Fault| {
            faults.add(fault.position as u64, layout.row_of(fault.page));
            positions.push(fault.position);
        };
        let counts = replay_warm(references, &mut self, frames, warm_refs, on_fault)?;
        let (start, end) = (warm_refs as u64, references.len() as u128);
        let by_refs = positions.iter().map(|position| *position as u64);
        Ok(Observation {
            policy: spec.to_string(),
            frames,
            counts,
            rate: FaultRate::of(by_refs, start, end, options.intervals),
            rate_by_time: self.rate_by_time(&positions, warm_refs),
            faults: faults.finish(),
            hit_gaps: self.hit_gaps,
            inside: self.inside.map(|inside| {
                let classes = self.classes.into_iter();
                Inside { classes: classes.map(|(n, map)| (n, map.finish())).collect(), ..inside }
            }),
        })
    }

    fn rate_by_time(&self, faults: &[usize], warm_refs: usize) -> Option<FaultRate> {
        let times = self.references.times_ns()?;
        let counted = times.get(warm_refs..)?;
        // Threads may log out of order.
        let (start, last) = (counted.iter().min()?, counted.iter().max()?);
        let instants = faults.iter().map(|position| times[*position]);
        Some(FaultRate::of(instants, *start, u128::from(*last) + 1, self.options.intervals))
    }

    /// A reference that the policy has been told of.
    fn told(&mut self, page: Page, was_hit: bool) {
        let position = self.passed;
        self.passed += 1;
        let before = std::mem::replace(&mut self.last[page.index()], position);
        if was_hit && before != NEVER && position >= self.options.warm_refs as u64 {
            self.hit_gaps.add(position - before);
        }
        if self.inside.is_some() {
            self.look_inside(page, position);
        }
    }

    fn look_inside(&mut self, page: Page, position: u64) {
        let (Some(inside), Some(visible)) = (&mut self.inside, self.policy.visible()) else {
            return;
        };
        if let Some(class) = visible.class_of(page) {
            let known = self.classes.iter().position(|(name, _)| *name == class);
            let place = known.unwrap_or_else(|| {
                let map = Mapping::new(self.references.len(), self.layout, self.options.columns);
                self.classes.push((class, map));
                self.classes.len() - 1
            });
            self.classes[place].1.add(position, self.layout.row_of(page));
        }
        let part = |parts: u32| {
            u128::from(self.passed) * u128::from(parts) / self.references.len().max(1) as u128
        };
        let columns = part(self.options.columns) as u64;
        if columns > self.columns_passed {
            self.columns_passed = columns;
            let gauges = visible.gauges();
            if inside.gauges.is_empty() {
                inside.gauges = gauges.iter().map(|gauge| gauge.name).collect();
            }
            let values = gauges.iter().map(|gauge| gauge.value).collect();
            inside.values.push((self.passed, values));
            let notes = visible.take_notes().into_iter().map(|note| (note.at_refs, note.text));
            inside.notes.extend(notes);
            inside.notes_left_out += inside.notes.len().saturating_sub(NOTES_MOST) as u64;
            inside.notes.truncate(NOTES_MOST);
        }
        let snapshots = part(self.options.snapshots) as u64;
        if snapshots > self.snapshots_passed {
            self.snapshots_passed = snapshots;
            let curves = visible.curves().into_iter().map(|curve| (curve.name, curve.points));
            let curves: Vec<_> = curves.collect();
            if !curves.is_empty() {
                inside.snapshots.push(Snapshot { at_refs: self.passed, curves });
            }
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl Policy for Watched<'_> {
    pass_on! { this => this.policy;
        wants_places wants_indices wants_references wants_samples wants_dirty gives_hints
        watches_closely watches_pages watches watches_others unmapped mapped placed spared removed
        dirtied cleaned take_hints order victim resized fitted resident visible
    }

    fn admitted(&mut self, page: Page, how: Admission) {
        self.policy.admitted(page, how);
        self.told(page, false);
    }

    fn referenced(&mut self, page: Page) {
        self.policy.referenced(page);
        self.told(page, true);
    }

    fn sampled(&mut self, page: Page) {
        self.policy.sampled(page);
        self.told(page, true);
    }
}
