//! Policies × memory sizes, side by side on all cores.
use std::num::NonZeroUsize;

use pagekeeper_policy::{Account, Policy, PolicySpec, Runs};
use rayon::prelude::*;

use crate::{
    CostModel, Counts, Fault, NextUses, NextWrites, Opt, Outcome, References, Regions,
    SegmentOutcome, SimError, opt_wb::cheaper_opt_wb, outcome::account_of, replay_warm,
};

/// How to sweep.
#[derive(Clone, Copy, Debug)]
pub struct SweepOptions {
    /// Feeds policies that are random. The same seed gives the same outcome. Default 0.
    pub seed: u64,
    /// Parts that each segment is cut into to count faults by region. Default 1.
    pub regions_per_segment: u32,
    /// From counts to time.
    pub cost: CostModel,
    /// Replays at a time; `None`, the default, for one per core.
    pub threads: Option<NonZeroUsize>,
    /// Counts start at this reference; those before it warm the frames. Default 0.
    pub warm_refs: usize,
}

impl Default for SweepOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            regions_per_segment: 1,
            cost: CostModel::default(),
            threads: None,
            warm_refs: 0,
        }
    }
}

/// Replays the references through every policy at every memory size.
///
/// The outcomes are in the order given, all sizes of the first policy first, whatever finished
/// when. Every replay starts with free frames, and counts from `warm_refs` on.
///
/// # Errors
/// The first in that order: a size of 0 frames, a policy that cannot be built or breaks its
/// contract, a trace too long for `opt`, or threads that cannot be started.
pub fn sweep(
    references: &References,
    policies: &[PolicySpec],
    frames: &[u32],
    options: &SweepOptions,
) -> Result<Vec<Outcome>, SimError> {
    let Some(threads) = options.threads else {
        return Sweep::new(references, policies, options)?.run(policies, frames);
    };
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads.get())
        .build()
        .map_err(|error| SimError::Threads { threads: threads.get(), reason: error.to_string() })?;
    pool.install(|| Sweep::new(references, policies, options)?.run(policies, frames))
}

/// What all replays of a sweep share.
struct Sweep<'a> {
    references: &'a References,
    options: &'a SweepOptions,
    regions: Regions,
    segment_references: Vec<u64>,
    future: Future,
}

impl<'a> Sweep<'a> {
    fn new(
        references: &'a References,
        policies: &[PolicySpec],
        options: &'a SweepOptions,
    ) -> Result<Self, SimError> {
        let mut segment_references = vec![0; references.segments().len()];
        match segment_references.as_mut_slice() {
            [all] => *all = references.len().saturating_sub(options.warm_refs) as u64,
            many => references
                .iter()
                .skip(options.warm_refs)
                .for_each(|(page, _)| many[references.place(page).0] += 1),
        }
        Ok(Self {
            references,
            options,
            regions: references.regions(options.regions_per_segment),
            segment_references,
            future: Future::of(references, policies)?,
        })
    }

    fn run(&self, policies: &[PolicySpec], frames: &[u32]) -> Result<Vec<Outcome>, SimError> {
        let cells: Vec<_> = policies
            .iter()
            .flat_map(|spec| frames.iter().map(move |&frames| (spec, frames)))
            .collect();
        // All to their end, then the first error in order: which one must not depend on timing.
        let outcomes: Vec<_> = cells
            .into_par_iter()
            .with_max_len(1)
            .map(|(spec, frames)| self.cell(spec, frames))
            .collect();
        outcomes.into_iter().collect()
    }

    fn cell(&self, spec: &PolicySpec, frames: u32) -> Result<Outcome, SimError> {
        let mut region_faults = vec![0; self.regions.total()];
        let on_fault = |fault: Fault| region_faults[self.regions.of(fault.page)] += 1;
        let (counts, account) = self.replay_spec(spec, frames, on_fault)?;
        Ok(Outcome {
            policy: spec.to_string(),
            frames,
            counts,
            predicted: self.options.cost.predict(&counts),
            account,
            segments: SegmentOutcome::of_all(
                self.references,
                &self.regions,
                &region_faults,
                &self.segment_references,
            ),
        })
    }

    fn replay_spec(
        &self,
        spec: &PolicySpec,
        frames: u32,
        on_fault: impl FnMut(Fault),
    ) -> Result<(Counts, Option<Account>), SimError> {
        let mut policy = self.future.build(self.references, spec, frames, self.options.seed)?;
        let warm_refs = self.options.warm_refs;
        let counts = replay_warm(self.references, &mut policy, frames, warm_refs, on_fault)?;
        Ok((counts, account_of(policy.visible())))
    }
}

/// What a policy has to know of the future.
#[derive(Clone, Copy, PartialEq)]
enum Needs {
    Nothing,
    NextUses,
    NextWrites { cost: f64 },
}

impl Needs {
    /// The policies whose code is here.
    fn of(spec: &PolicySpec) -> Self {
        match (spec.info().runs, spec.name()) {
            (Runs::SimulatorOnly, "opt") => Needs::NextUses,
            (Runs::SimulatorOnly, "opt-wb") => {
                Needs::NextWrites { cost: spec.parameters().fraction("cost").to_f64() }
            }
            _ => Needs::Nothing,
        }
    }
}

/// What is known of the future, as far as some policies need it: looked up once for all replays.
#[derive(Clone, Debug)]
pub struct Future {
    next_uses: Option<NextUses>,
    next_writes: Option<NextWrites>,
}

impl Future {
    /// Looks ahead through the string if one of the policies needs it.
    ///
    /// # Errors
    /// [`SimError::TooManyReferences`] when positions do not fit 32 bits.
    pub fn of(references: &References, policies: &[PolicySpec]) -> Result<Self, SimError> {
        let mut future = Self { next_uses: None, next_writes: None };
        for needs in policies.iter().map(Needs::of) {
            if needs != Needs::Nothing && future.next_uses.is_none() {
                future.next_uses = Some(NextUses::of(references)?);
            }
            if matches!(needs, Needs::NextWrites { .. }) && future.next_writes.is_none() {
                future.next_writes = Some(NextWrites::of(references));
            }
        }
        Ok(future)
    }

    /// Builds one of those policies for a replay of the string in so many frames.
    ///
    /// # Errors
    /// If it cannot be built, or must first be replayed and [`replay`](crate::replay) fails.
    pub fn build<'a>(
        &'a self,
        references: &'a References,
        spec: &PolicySpec,
        frames: u32,
        seed: u64,
    ) -> Result<Box<dyn Policy + 'a>, SimError> {
        match (Needs::of(spec), &self.next_uses, &self.next_writes) {
            (Needs::NextUses, Some(next_uses), _) => Ok(Box::new(Opt::new(next_uses))),
            (Needs::NextWrites { cost }, Some(next_uses), Some(next_writes)) => {
                cheaper_opt_wb(references, next_uses, next_writes, cost, frames)
            }
            _ => Ok(spec.build(frames, seed)?),
        }
    }
}
