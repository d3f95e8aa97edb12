//! What a simulation found.
use pagekeeper_policy::{Account, Visible};
use serde::{Deserialize, Serialize};

use crate::{PredictedTime, References, Regions};

/// Events of one run. In exact demand paging `minor_faults` and `prefetched_pages` are zero, and
/// `read_requests` and `pages_read` equal `faults` but for `zero_faults`; they differ where the live
/// engine's read-ahead and sampling are emulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Touches of pages.
    pub references: u64,
    /// Touches that wrote.
    pub writes: u64,
    /// References to resident pages.
    pub hits: u64,
    /// References that had to wait for a fetch: `references − hits` (major faults).
    pub faults: u64,
    /// Faults on pages that were never resident before.
    pub cold_faults: u64,
    /// Faults on pages that were evicted earlier.
    pub refaults: u64,
    /// Pages that the policy gave up.
    pub evictions: u64,
    /// Pages written because they were dirty when evicted, or before a process forked.
    pub write_backs: u64,
    /// Pages of files still dirty after the last reference; not among `write_backs`.
    pub dirty_at_end: u64,
    /// Faults on pages that were resident and not mapped.
    pub minor_faults: u64,
    /// Pages unmapped so that their next touch is seen.
    #[serde(default)]
    pub unmapped_pages: u64,
    /// Touches that sampling is charged with, among `minor_faults`: of these pages, and of the few
    /// that were not mapped for another reason.
    #[serde(default)]
    pub touches_seen: u64,
    /// First writes to resident clean pages.
    pub write_faults: u64,
    /// Faults that nothing was read for: heap memory that was never written out is zeros.
    #[serde(default)]
    pub zero_faults: u64,
    /// Pages that came so, fetched ahead among them.
    #[serde(default)]
    pub zero_pages: u64,
    /// Requests that fetched pages, each for one or several of them.
    pub read_requests: u64,
    /// Pages read from storage, for whatever reason.
    pub pages_read: u64,
    /// Pages fetched that no reference waited for.
    pub prefetched_pages: u64,
    /// Those among them that were evicted without being known to be used.
    #[serde(default)]
    pub prefetch_wasted_pages: u64,
}

impl Counts {
    /// Hits per reference, 0 to 1; 0 where there are no references.
    pub fn hit_ratio(&self) -> f64 {
        if self.references == 0 { 0.0 } else { self.hits as f64 / self.references as f64 }
    }
}

/// One policy at one memory size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The policy with its parameters, as text that parses to it.
    pub policy: String,
    /// Memory, in frames of one page.
    pub frames: u32,
    /// What happened.
    #[serde(flatten)]
    pub counts: Counts,
    /// How long that takes, by the cost model.
    pub predicted: PredictedTime,
    /// What the policy showed of itself, if it shows anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
    /// What happened where, in the order of [`References::segments`](crate::References::segments).
    pub segments: Vec<SegmentOutcome>,
}

impl Outcome {
    /// Hits per reference, 0 to 1.
    pub fn hit_ratio(&self) -> f64 {
        self.counts.hit_ratio()
    }
}

/// What a policy shows of itself after a run.
pub(crate) fn account_of<V: Visible + ?Sized>(visible: Option<&mut V>) -> Option<Account> {
    visible.map(|visible| {
        let mut account = Account::default();
        account.close(visible);
        account
    })
}

/// A segment's share in an outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentOutcome {
    /// The segment's number in the trace.
    pub segment: u32,
    /// Its name; empty where the trace has none.
    pub name: String,
    /// Its length in pages.
    pub pages: u64,
    /// References to its pages.
    pub references: u64,
    /// Faults on its pages.
    pub faults: u64,
    /// Faults by region: the segment cut into equal parts, from its start. They sum to `faults`.
    pub region_faults: Vec<u64>,
}

impl SegmentOutcome {
    /// All segments' shares, in their order, from faults by region and references by segment.
    pub(crate) fn of_all(
        references: &References,
        regions: &Regions,
        region_faults: &[u64],
        segment_references: &[u64],
    ) -> Vec<SegmentOutcome> {
        references
            .segments()
            .iter()
            .zip(region_faults.chunks(regions.per_segment() as usize))
            .zip(segment_references)
            .map(|((segment, region_faults), references)| SegmentOutcome {
                segment: segment.id,
                name: segment.name.clone(),
                pages: segment.pages,
                references: *references,
                faults: region_faults.iter().sum(),
                region_faults: region_faults.to_vec(),
            })
            .collect()
    }
}
