//! What the simulator is asked for: exact demand paging, or the emulation of the live engine where
//! sampling or read-ahead is wanted.

use pagekeeper_frames::SamplingShare;
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{LiveOptions, Outcome, References, SimError, SweepOptions, sweep, sweep_live};
use rayon::prelude::*;

/// What of the live engine is emulated.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Emulation {
    /// Neighbours of a faulting page come along, as the engine fetches them.
    pub(crate) read_ahead: bool,
    /// Policies see sampled references, as they do under a mapping, for so much of the time.
    pub(crate) sampled: Option<SamplingShare>,
}

/// Every policy at every number of frames, all sizes of the first policy first.
pub(crate) fn at_frames(
    references: &References,
    policies: &[PolicySpec],
    frames: &[u32],
    emulation: Emulation,
    options: &SweepOptions,
) -> Result<Vec<Outcome>, SimError> {
    let Emulation { read_ahead, sampled } = emulation;
    if !read_ahead && sampled.is_none() {
        return sweep(references, policies, frames, options);
    }
    let cells: Vec<(&PolicySpec, u32)> =
        policies.iter().flat_map(|policy| frames.iter().map(move |f| (policy, *f))).collect();
    let outcomes = cells.into_par_iter().with_max_len(1).map(|(policy, frames)| {
        let memory_bytes = u64::from(frames) * pagekeeper_frames::FRAME_BYTES;
        let live = LiveOptions {
            frames: Some(frames),
            read_ahead,
            sampled,
            sweep: *options,
            ..LiveOptions::new(memory_bytes)
        };
        pagekeeper_sim::simulate_live(references, policy, &live)
    });
    outcomes.collect()
}

/// What live runs with these budgets and this share of sampling would count, all budgets of the
/// first policy first.
pub(crate) fn live(
    references: &References,
    policies: &[PolicySpec],
    memory_bytes: &[u64],
    sampling: SamplingShare,
    options: &SweepOptions,
) -> Result<Vec<Outcome>, SimError> {
    // The budgets are in the list; this one is not looked at.
    let live = LiveOptions { sampled: Some(sampling), sweep: *options, ..LiveOptions::new(0) };
    sweep_live(references, policies, memory_bytes, &live)
}
