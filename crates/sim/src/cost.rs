//! From counts to time.
use serde::{Deserialize, Serialize};

use crate::{Counts, SimError};

/// What each event costs, in nanoseconds of the program's elapsed time.
///
/// ```text
/// time =  references · hit_ns
///       + minor_faults · minor_fault_ns + write_faults · write_fault_ns
///       + read_requests · major_request_ns
///       + zero_faults · minor_fault_ns
///       + (pages_read − pages read ahead) · major_page_ns
///       + (pages read ahead = prefetched_pages − (zero_pages − zero_faults)) · read_ahead_page_ns
///       + (write_backs + dirty_at_end) · write_back_ns
/// ```
///
/// The defaults are a userspace pager in another process and a local NVMe device; measure your
/// own and set them. With them the order of policies is right wherever reads dominate; absolute
/// times need `hit_ns`, which is the program's own work and not a property of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CostModel {
    /// The program's own work per reference, the touch included. Default 10: little more than
    /// the touch. From a recorded run: (elapsed − time in faults) / references.
    pub hit_ns: f64,
    /// A fault on a page that is resident and not mapped, or zeros. Default 5,000: a message to the
    /// pager and back, and the mapping.
    pub minor_fault_ns: f64,
    /// The first write to a clean page. Default 5,500: a message to the pager and back, and
    /// lifting the write protection.
    pub write_fault_ns: f64,
    /// Per request that fetches pages, however many: the fault and the device's latency.
    /// Default 85,000.
    pub major_request_ns: f64,
    /// Per page that a reference waited for: transfer and copy. Default 2,500.
    pub major_page_ns: f64,
    /// Per page that came along ahead of need: transfer and copy, as far as they delay the
    /// program. Default 2,000.
    pub read_ahead_page_ns: f64,
    /// Per page written back. Default 15,000.
    pub write_back_ns: f64,
    /// Whether pages dirty at the end are written within the time predicted, as they are when the
    /// program syncs or ends. Default true.
    pub write_back_at_end: bool,
}

impl Default for CostModel {
    fn default() -> Self {
        Self {
            hit_ns: 10.0,
            minor_fault_ns: 5_000.0,
            write_fault_ns: 5_500.0,
            major_request_ns: 85_000.0,
            major_page_ns: 2_500.0,
            read_ahead_page_ns: 2_000.0,
            write_back_ns: 15_000.0,
            write_back_at_end: true,
        }
    }
}

/// Predicted elapsed time, by cause, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PredictedTime {
    /// The program's own work.
    pub hit_ns: f64,
    /// Minor and write faults.
    pub minor_fault_ns: f64,
    /// Waiting for pages.
    pub major_fault_ns: f64,
    /// Pages fetched ahead of need.
    pub read_ahead_ns: f64,
    /// Writing dirty pages back.
    pub write_back_ns: f64,
    /// All of it.
    pub total_ns: f64,
}

impl CostModel {
    /// Names of all costs, as [`set`](Self::set) takes them.
    pub const KEYS: [&'static str; 8] = [
        "hit_ns",
        "minor_fault_ns",
        "write_fault_ns",
        "major_request_ns",
        "major_page_ns",
        "read_ahead_page_ns",
        "write_back_ns",
        "write_back_at_end",
    ];

    /// The highest cost, 11 days: so many of them as there can be events are still a number.
    pub const NS_MAX: f64 = 1e15;

    /// Sets one cost from text, as a command line gives it.
    ///
    /// # Errors
    /// If there is no such cost, or the value is not a number of nanoseconds from 0 to
    /// [`NS_MAX`](Self::NS_MAX) (for `write_back_at_end`: `true` or `false`).
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SimError> {
        let bad = |expected| SimError::BadCost { key: key.into(), value: value.into(), expected };
        let cost = match key {
            "hit_ns" => &mut self.hit_ns,
            "minor_fault_ns" => &mut self.minor_fault_ns,
            "write_fault_ns" => &mut self.write_fault_ns,
            "major_request_ns" => &mut self.major_request_ns,
            "major_page_ns" => &mut self.major_page_ns,
            "read_ahead_page_ns" => &mut self.read_ahead_page_ns,
            "write_back_ns" => &mut self.write_back_ns,
            "write_back_at_end" => {
                self.write_back_at_end = value.parse().map_err(|_| bad("true or false"))?;
                return Ok(());
            }
            _ => {
                let known = Self::KEYS.join(", ");
                return Err(SimError::UnknownCost { key: key.into(), known });
            }
        };
        *cost = value
            .parse()
            .ok()
            .filter(|ns| (0.0..=Self::NS_MAX).contains(ns))
            .ok_or_else(|| bad("a number of nanoseconds from 0 to 1e15 (11 days)"))?;
        Ok(())
    }

    /// The time that these counts take.
    pub fn predict(&self, counts: &Counts) -> PredictedTime {
        let times = |count: u64, ns: f64| count as f64 * ns;
        let zeros_ahead = counts.zero_pages.saturating_sub(counts.zero_faults);
        let ahead_pages = counts.prefetched_pages.saturating_sub(zeros_ahead);
        let waited_pages = counts.pages_read.saturating_sub(ahead_pages);
        let written =
            counts.write_backs + if self.write_back_at_end { counts.dirty_at_end } else { 0 };
        let mut time = PredictedTime {
            hit_ns: times(counts.references, self.hit_ns),
            minor_fault_ns: times(counts.minor_faults + counts.zero_faults, self.minor_fault_ns)
                + times(counts.write_faults, self.write_fault_ns),
            major_fault_ns: times(counts.read_requests, self.major_request_ns)
                + times(waited_pages, self.major_page_ns),
            read_ahead_ns: times(ahead_pages, self.read_ahead_page_ns),
            write_back_ns: times(written, self.write_back_ns),
            total_ns: 0.0,
        };
        time.total_ns = time.hit_ns
            + time.minor_fault_ns
            + time.major_fault_ns
            + time.read_ahead_ns
            + time.write_back_ns;
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cost_can_be_set_and_counts_once() {
        let mut model = CostModel::default();
        for key in CostModel::KEYS {
            model.set(key, if key.ends_with("_ns") { "1" } else { "true" }).unwrap();
        }
        let counts = Counts {
            references: 1,
            minor_faults: 10,
            write_faults: 100,
            read_requests: 1_000,
            pages_read: 70_000,
            prefetched_pages: 20_000,
            write_backs: 100_000,
            dirty_at_end: 1_000_000,
            ..Counts::default()
        };
        assert_eq!(model.predict(&counts).total_ns, 1_171_111.0);
        model.set("write_back_at_end", "false").unwrap();
        assert_eq!(model.predict(&counts).total_ns, 171_111.0);
        model.set("read_ahead_page_ns", "0").unwrap();
        assert_eq!(model.predict(&counts).total_ns, 151_111.0);
        for (key, value) in
            [("hit_ns", "-1"), ("hit_ns", "NaN"), ("hit_ns", "1.1e15"), ("write_back_at_end", "1")]
        {
            assert!(
                matches!(model.set(key, value), Err(SimError::BadCost { .. })),
                "{key}={value}"
            );
        }
        // The largest cost of the most events is a number yet.
        model.set("hit_ns", "1e15").unwrap();
        let counts = Counts { references: u64::MAX, ..Counts::default() };
        assert!(model.predict(&counts).total_ns.is_finite());
        let message = model.set("hits", "1").unwrap_err().to_string();
        assert!(message.contains("no `hits`") && message.contains("major_request_ns"));
    }
}
