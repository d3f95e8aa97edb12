//! Hits as a function of memory.
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{NextUses, References, SimError, StackDistances, SweepOptions, sweep};
use serde::Serialize;

use crate::OptStack;
use crate::freed::Freed;

/// Hits at every memory size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HitCurve {
    references: u64,
    /// Hits with 0, 1, 2 … frames, up to where more frames give no more.
    hits: Vec<u64>,
}

impl HitCurve {
    fn of_distances(references: u64, counts: Vec<u64>) -> Self {
        let mut hits = counts;
        for frames in 1..hits.len() {
            hits[frames] += hits[frames - 1];
        }
        let most = hits.last().copied().unwrap_or(0);
        let enough = hits.partition_point(|hits| *hits < most);
        hits.truncate(enough + 1);
        Self { references, hits }
    }

    /// References counted.
    pub const fn references(&self) -> u64 {
        self.references
    }

    /// Hits in so many frames.
    pub fn hits(&self, frames: u32) -> u64 {
        let place = (frames as usize).min(self.hits.len().saturating_sub(1));
        self.hits.get(place).copied().unwrap_or(0)
    }

    /// Misses per reference in so many frames, 0 to 1; 0 where there are no references.
    pub fn miss_ratio(&self, frames: u32) -> f64 {
        if self.references == 0 {
            return 0.0;
        }
        (self.references - self.hits(frames)) as f64 / self.references as f64
    }

    /// References whose stack distance is this: hits in so many frames and not in one less.
    pub fn at_distance(&self, distance: u32) -> u64 {
        self.hits(distance) - self.hits(distance.saturating_sub(1))
    }

    /// The fewest frames that give as many hits as any number does.
    pub fn frames_for_most_hits(&self) -> u32 {
        self.hits.len().saturating_sub(1) as u32
    }
}

/// LRU's hits at every memory size, in one pass of O(log pages) a reference.
pub fn lru_curve(references: &References, warm_refs: usize) -> HitCurve {
    let mut stack = StackDistances::new();
    let mut counts = vec![0; references.pages() as usize + 1];
    let mut freed = Freed::of(references);
    for (position, (page, _)) in references.iter().enumerate() {
        freed.before(position).for_each(|page| stack.remove(page));
        // A page that so many others were referenced after hits in one frame more.
        if let Some(others) = stack.reference(page).filter(|_| position >= warm_refs) {
            counts[others as usize + 1] += 1;
        }
    }
    HitCurve::of_distances(references.len().saturating_sub(warm_refs) as u64, counts)
}

/// OPT's hits at every memory size, in one pass; `None` if that takes more than `steps_most` steps.
///
/// A page that is freed has no next reference, and leaves before any other page does: whether its
/// frame is free meanwhile makes no difference.
///
/// A reference takes up to as many steps as the stack is deep, so long strings over many pages are
/// better replayed at chosen sizes, or sampled. A thousand million steps take about a second.
///
/// # Errors
/// [`SimError::TooManyReferences`] when positions do not fit 32 bits.
pub fn opt_curve(
    references: &References,
    warm_refs: usize,
    steps_most: u64,
) -> Result<Option<HitCurve>, SimError> {
    let next_uses = NextUses::of(references)?;
    let mut stack = OptStack::new();
    let mut seen = vec![false; references.pages() as usize];
    let mut counts = vec![0; references.pages() as usize + 1];
    for (position, (page, _)) in references.iter().enumerate() {
        let is_first = !std::mem::replace(&mut seen[page.index()], true);
        let next_use = next_uses.positions()[position];
        let distance = stack.reference(position as u32, next_use, is_first);
        if let Some(distance) = distance.filter(|_| position >= warm_refs) {
            counts[distance as usize] += 1;
        }
        if stack.steps() > steps_most {
            return Ok(None);
        }
    }
    let counted = references.len().saturating_sub(warm_refs) as u64;
    Ok(Some(HitCurve::of_distances(counted, counts)))
}

/// The hits of any policy at chosen sizes, by a replay for each on all cores.
///
/// # Errors
/// As [`sweep`].
pub fn hits_at(
    references: &References,
    spec: &PolicySpec,
    frames: &[u32],
    warm_refs: usize,
    seed: u64,
) -> Result<Vec<u64>, SimError> {
    let options = SweepOptions { warm_refs, seed, ..SweepOptions::default() };
    let outcomes = sweep(references, std::slice::from_ref(spec), frames, &options)?;
    Ok(outcomes.iter().map(|outcome| outcome.counts.hits).collect())
}
