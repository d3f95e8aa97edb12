//! Curves from a share of the pages.
use pagekeeper_policy::Page;
use pagekeeper_sim::{References, SimError};
use rayon::prelude::*;
use serde::Serialize;

/// Disjoint parts of the sample that the error is estimated from.
const PARTS: u32 = 8;
/// So many standard errors are stated. One that eight parts tell varies itself: of normal values, one
/// in twenty is farther away than 2.365 (Student's t, 7 degrees of freedom). Miss ratios are skewed:
/// of fifteen strings 3 % were farther away than 2.5 (5 % at the worst), and 7 % than 2 (10 %).
const STATED_ERRORS: f64 = 2.5;
/// Thresholds are out of this many.
const SCALE: u64 = 1 << 24;

/// Spatial sampling: all references to the pages whose hash is below a threshold (SHARDS:
/// Waldspurger, Park, Garthwaite, Ahmad, FAST 2015, "Fixed-rate sampling"). A memory of *c* frames
/// is stood for by one of *c · rate* frames; for policies that are no stack algorithms that is
/// miniature simulation (Waldspurger, Saemundsson, Ahmad, Park, ATC 2017).
///
/// Not for policies that look at neighbouring pages: most neighbours are not in the sample.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    threshold: u64,
    seed: u64,
}

/// A miss-ratio curve from a sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Memory sizes of the whole, in frames.
    pub frames: Vec<u32>,
    /// For each size: misses per reference.
    pub miss_ratio: Vec<f64>,
    /// For each size: what the true ratio is farther away than about one time in twenty, as eight
    /// disjoint eighths of the sample vary; `None` where a part would have less than one frame.
    pub error: Vec<Option<f64>>,
    /// Share of the pages looked at.
    pub rate: f64,
    /// Pages in the sample.
    pub sampled_pages: u32,
    /// References in the sample.
    pub sampled_references: u64,
}

impl Estimate {
    /// The largest of the errors that are known.
    pub fn error_most(&self) -> f64 {
        self.error.iter().flatten().copied().fold(0.0, f64::max)
    }
}

/// References to some of the pages.
struct Part {
    references: References,
    warm_refs: usize,
    rate: f64,
    /// References that would be counted if every page had its share of them.
    expected: f64,
}

impl Sampler {
    /// Looks at about `rate` of the pages, between 0 and 1. The seed chooses which.
    ///
    /// The rate is rounded up to a multiple of 2⁻²⁴.
    pub fn new(rate: f64, seed: u64) -> Self {
        let threshold = (rate.clamp(0.0, 1.0) * SCALE as f64).ceil() as u64;
        Self { threshold: threshold.max(1), seed }
    }

    /// The share of pages looked at.
    pub fn rate(&self) -> f64 {
        self.threshold as f64 / SCALE as f64
    }

    /// Estimates a policy's miss ratios at these sizes. `hits` counts, for a string and sizes of at
    /// least one frame, the hits from a position on.
    ///
    /// As in SHARDS-adj, references that the sample has too few or too many of count as hits: they
    /// are hot pages that it missed, or hit upon.
    ///
    /// # Errors
    /// Those of `hits`.
    pub fn estimate(
        &self,
        references: &References,
        frames: &[u32],
        warm_refs: usize,
        hits: impl Fn(&References, &[u32], usize) -> Result<Vec<u64>, SimError> + Sync,
    ) -> Result<Estimate, SimError> {
        let whole = self.part(references, warm_refs, None);
        let miss_ratio = whole.miss_ratios(frames, &hits)?;
        let parts: Vec<Vec<f64>> = (0..PARTS)
            .into_par_iter()
            .map(|part| self.part(references, warm_refs, Some(part)).miss_ratios(frames, &hits))
            .collect::<Result<_, _>>()?;
        let error = frames.iter().enumerate().map(|(place, frames)| {
            let is_fine_enough = f64::from(*frames) * self.rate() >= f64::from(PARTS);
            is_fine_enough
                .then(|| standard_error(parts.iter().map(|part| part[place])) * STATED_ERRORS)
        });
        Ok(Estimate {
            frames: frames.to_vec(),
            miss_ratio,
            error: error.collect(),
            rate: self.rate(),
            sampled_pages: whole.references.pages(),
            sampled_references: whole.references.len() as u64,
        })
    }

    fn part(&self, references: &References, warm_refs: usize, part: Option<u32>) -> Part {
        let is_chosen = |page: Page| {
            let (place, index) = references.place(page);
            let segment = &references.segments()[place];
            // Memory that was freed and is used again is another page at the same place.
            let within = if segment.is_heap { u64::from(page.0) } else { index };
            let hash = mix(mix(u64::from(segment.id) ^ self.seed) ^ within);
            // The sample and its division take different bits.
            let is_in_part = part.is_none_or(|part| hash >> 61 == u64::from(part));
            hash % SCALE < self.threshold && is_in_part
        };
        let warm = references.iter().take(warm_refs);
        let warm_refs_kept = warm.filter(|(page, _)| is_chosen(*page)).count();
        let rate = self.rate() / part.map_or(1.0, |_| f64::from(PARTS));
        let counted = references.len().saturating_sub(warm_refs);
        Part {
            references: references.of_pages(is_chosen),
            warm_refs: warm_refs_kept,
            rate,
            expected: counted as f64 * rate,
        }
    }
}

impl Part {
    fn miss_ratios(
        &self,
        frames: &[u32],
        hits: impl Fn(&References, &[u32], usize) -> Result<Vec<u64>, SimError>,
    ) -> Result<Vec<f64>, SimError> {
        let scaled: Vec<u32> =
            frames.iter().map(|frames| (f64::from(*frames) * self.rate).round() as u32).collect();
        let mut sizes: Vec<u32> = scaled.iter().copied().filter(|frames| *frames > 0).collect();
        sizes.dedup();
        let counted = hits(&self.references, &sizes, self.warm_refs)?;
        let references = (self.references.len() - self.warm_refs) as f64;
        let ratios = scaled.iter().map(|frames| {
            let place = sizes.iter().position(|size| size == frames);
            let hits = place.map_or(0, |place| counted[place]) as f64;
            let hits = hits + self.expected - references;
            if self.expected > 0.0 { (1.0 - hits / self.expected).clamp(0.0, 1.0) } else { 0.0 }
        });
        Ok(ratios.collect())
    }
}

/// The standard error of the mean of independent values.
fn standard_error(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = values.clone().count() as f64;
    let mean = values.clone().sum::<f64>() / count;
    let squares: f64 = values.map(|value| (value - mean).powi(2)).sum();
    (squares / (count - 1.0) / count).sqrt()
}

/// A mixer of all bits (Steele, Lea, Flood: SplitMix64, OOPSLA 2014).
const fn mix(value: u64) -> u64 {
    let mut value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
