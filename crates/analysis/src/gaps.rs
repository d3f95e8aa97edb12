//! Inter-reference gaps.
use pagekeeper_sim::References;
use serde::Serialize;

use crate::GapBins;

/// No earlier reference.
const NEVER: u64 = u64::MAX;

/// How often references follow the last one to the same page by so many references (Kim, Choi, Kim,
/// Noh, Min, Cho, Kim, OSDI 2000, Figure 1 (b) and (c)), in the bins of [`GapBins`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gaps {
    counts: Vec<u64>,
    total: u64,
}

impl Gaps {
    /// The gaps of all references from `warm_refs` on that have one.
    pub fn of(references: &References, warm_refs: usize) -> Self {
        let mut gaps = Self::default();
        let mut last = vec![NEVER; references.pages() as usize];
        for (position, (page, _)) in references.iter().enumerate() {
            let before = std::mem::replace(&mut last[page.index()], position as u64);
            if before != NEVER && position >= warm_refs {
                gaps.add(position as u64 - before);
            }
        }
        gaps
    }

    pub(crate) fn add(&mut self, gap_refs: u64) {
        let bin = GapBins::bin_of(gap_refs);
        if bin >= self.counts.len() {
            self.counts.resize(bin + 1, 0);
        }
        self.counts[bin] += 1;
        self.total += 1;
    }

    /// References in each bin of [`GapBins`], up to the last that is not empty.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// References in all bins.
    pub const fn total(&self) -> u64 {
        self.total
    }
}
