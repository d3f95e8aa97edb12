//! What the simulator says: which policy, and what more or less memory would do.

use super::contender::{Cpu, RunStats};
use crate::failure::Failure;
use crate::predict;
use crate::report;
use crate::size::Size;
use crate::trace_input::Loaded;
use pagekeeper_frames::SamplingShare;
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{CostModel, Outcome, SweepOptions};
use serde::Serialize;

/// Memory beside what is given: so many quarters of it.
const QUARTERS: [u64; 6] = [2, 3, 4, 5, 6, 8];
/// So much longer than the fastest may a policy take that reads less: predicted times are rough.
const SLOWER_MAX: f64 = 0.1;
/// A policy must promise to read less than lru, or to be faster, by this much to be recommended in
/// its place.
const WORTH_CHANGING: f64 = 0.02;
/// Fewer pages read than this say nothing about the speed of storage.
const CALIBRATION_PAGES_MIN: u64 = 256;
/// Pages in a request that was fetched ahead, on average.
const AHEAD_REQUEST_PAGES: u64 = 64;

/// A predicted run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Predicted {
    /// The policy, or the contender.
    pub(super) policy: String,
    /// The budget.
    pub(super) memory_bytes: u64,
    /// Pages that a reference waited for.
    pub(super) major_faults: u64,
    /// Faults on resident pages.
    pub(super) minor_faults: u64,
    /// Of these, what sampling costs.
    pub(super) touches_seen: u64,
    /// Pages given up.
    pub(super) evictions: u64,
    /// Fetched from storage.
    pub(super) read_bytes: u64,
    /// Written back.
    pub(super) written_bytes: u64,
    /// The program's elapsed time.
    pub(super) elapsed_ns: u64,
}

impl Predicted {
    fn of(outcome: &Outcome, memory_bytes: u64, page_bytes: u64) -> Predicted {
        let counts = &outcome.counts;
        Predicted {
            policy: outcome.policy.clone(),
            memory_bytes,
            major_faults: counts.faults,
            minor_faults: counts.minor_faults,
            touches_seen: counts.touches_seen,
            evictions: counts.evictions,
            read_bytes: counts.pages_read * page_bytes,
            written_bytes: (counts.write_backs + counts.dirty_at_end) * page_bytes,
            elapsed_ns: outcome.predicted.total_ns as u64,
        }
    }
}

/// All predictions.
pub(super) struct Forecast {
    /// Every policy at the given memory, the one that reads least first.
    pub(super) at_memory: Vec<Predicted>,
    /// The best policy and lru at other sizes, all of the best first.
    pub(super) at_sizes: Vec<Predicted>,
    /// Distinct pages that were touched, as many as there were at once, in bytes.
    pub(super) touched_bytes: u64,
    /// Why this one.
    pub(super) reason: String,
    best: PolicySpec,
}

/// The policy that everything is compared with.
pub(super) fn lru() -> PolicySpec {
    PolicySpec::parse("lru").expect("lru is a policy")
}

impl Forecast {
    /// Simulates the recorded references. `policies` has lru in it.
    pub(super) fn new(
        trace: &Loaded,
        policies: &[PolicySpec],
        memory_bytes: u64,
        sampling: SamplingShare,
        recorded: &RunStats,
        cpu: Option<Cpu>,
    ) -> Result<Forecast, Failure> {
        let references = &trace.references;
        let page_bytes = u64::from(trace.page_bytes);
        let cost = calibrated(recorded, cpu, references.len() as u64, page_bytes);
        let options = SweepOptions { cost, ..SweepOptions::default() };
        let outcomes = predict::live(references, policies, &[memory_bytes], sampling, &options)?;
        let mut ranked: Vec<(&PolicySpec, Predicted)> = policies
            .iter()
            .zip(&outcomes)
            .map(|(spec, outcome)| (spec, Predicted::of(outcome, memory_bytes, page_bytes)))
            .collect();
        // A stable sort: of equals, the one that was named first.
        ranked.sort_by_key(|(_, predicted)| (predicted.read_bytes, predicted.elapsed_ns));
        let of_lru = ranked.iter().find(|(spec, _)| **spec == lru());
        let of_lru = &of_lru.expect("lru is among the policies").1;
        let (best, promise) = choose(&ranked, of_lru);
        let touched_bytes = u64::from(references.pages_at_once()) * page_bytes;
        let once_bytes = u64::from(references.pages() - references.zero_pages()) * page_bytes;
        let reason = reason(&best, &promise, of_lru, once_bytes, page_bytes);

        let sizes: Vec<u64> = QUARTERS
            .iter()
            .map(|quarters| memory_bytes * quarters / 4)
            .filter(|bytes| *bytes >= pagekeeper::launch::MEMORY_BYTES_MIN)
            .collect();
        let mut compared = vec![best.clone()];
        if best != lru() {
            compared.push(lru());
        }
        let at_sizes = predict::live(references, &compared, &sizes, sampling, &options)?
            .iter()
            .zip(sizes.iter().cycle())
            .map(|(outcome, bytes)| Predicted::of(outcome, *bytes, page_bytes))
            .collect();
        let at_memory = ranked.into_iter().map(|(_, predicted)| predicted).collect();
        Ok(Forecast { at_memory, at_sizes, touched_bytes, reason, best })
    }

    /// The recommended policy.
    pub(super) fn best(&self) -> PolicySpec {
        self.best.clone()
    }

    /// What was predicted for a policy at the given memory.
    pub(super) fn of(&self, spec: &PolicySpec) -> Option<Predicted> {
        let name = spec.to_string();
        self.at_memory.iter().find(|predicted| predicted.policy == name).cloned()
    }
}

/// The policy that reads least of those that are not much slower than the fastest; lru where it is
/// as good.
fn choose(ranked: &[(&PolicySpec, Predicted)], of_lru: &Predicted) -> (PolicySpec, Predicted) {
    let fastest_ns = ranked.iter().map(|(_, p)| p.elapsed_ns).min().unwrap_or(0);
    let limit_ns = fastest_ns as f64 * (1.0 + SLOWER_MAX);
    let first = ranked.iter().find(|(_, p)| p.elapsed_ns as f64 <= limit_ns);
    let (best, promise) = first.expect("the fastest is not slower than itself");
    let is_better = |ours: u64, lrus: u64| (ours as f64) < lrus as f64 * (1.0 - WORTH_CHANGING);
    if is_better(promise.read_bytes, of_lru.read_bytes)
        || is_better(promise.elapsed_ns, of_lru.elapsed_ns)
    {
        ((*best).clone(), promise.clone())
    } else {
        (lru(), of_lru.clone())
    }
}

/// Costs of this machine and this program, from the recorded run: how fast storage was, and how
/// long the program worked besides waiting for pages.
fn calibrated(
    recorded: &RunStats,
    cpu: Option<Cpu>,
    references: u64,
    page_bytes: u64,
) -> CostModel {
    let mut cost = CostModel::default();
    let pages_read = recorded.read_bytes / page_bytes;
    let waited = pages_read.saturating_sub(recorded.prefetched_pages);
    let requests = recorded.major_faults + recorded.prefetched_pages / AHEAD_REQUEST_PAGES;
    let written = recorded.written_bytes / page_bytes;
    let modelled_ns = requests as f64 * cost.major_request_ns
        + waited as f64 * cost.major_page_ns
        + recorded.prefetched_pages as f64 * cost.read_ahead_page_ns
        + written as f64 * cost.write_back_ns;
    if pages_read + written >= CALIBRATION_PAGES_MIN && recorded.io_ns > 0 {
        let factor = (recorded.io_ns as f64 / modelled_ns).clamp(0.01, 100.0);
        for ns in [
            &mut cost.major_request_ns,
            &mut cost.major_page_ns,
            &mut cost.read_ahead_page_ns,
            &mut cost.write_back_ns,
        ] {
            *ns *= factor;
        }
    }
    let waiting_ns = requests as f64 * cost.major_request_ns
        + waited as f64 * cost.major_page_ns
        + recorded.prefetched_pages as f64 * cost.read_ahead_page_ns
        + written as f64 * cost.write_back_ns
        + recorded.minor_faults as f64 * cost.minor_fault_ns
        + recorded.write_faults as f64 * cost.write_fault_ns;
    let mut work_ns = (recorded.elapsed_ns as f64 - waiting_ns).max(0.0);
    // Recording makes many more faults than a run has, and their cost is not well known: what the
    // program computed bounds what it did besides waiting for them. Its time in the kernel does
    // not count, since in a recording that is nearly all faults.
    if let Some(cpu) = cpu.filter(|cpu| cpu.children_user_ns > 0) {
        work_ns = work_ns.min(cpu.children_user_ns as f64);
    }
    cost.hit_ns = work_ns / references.max(1) as f64;
    cost
}

fn reason(
    best: &PolicySpec,
    promise: &Predicted,
    of_lru: &Predicted,
    once_bytes: u64,
    page_bytes: u64,
) -> String {
    let is_least =
        of_lru.read_bytes <= once_bytes + page_bytes && of_lru.policy == best.to_string();
    if is_least && once_bytes == 0 {
        return "nothing that the program touches has to be read".into();
    }
    if is_least {
        return format!(
            "each page of files that the program touches ({} in all) is read once, and no policy \
             can read less",
            Size(once_bytes)
        );
    }
    if *best == lru() {
        return "no policy is predicted to read less, or to be faster, by more than 2%".into();
    }
    let share = promise.read_bytes as f64 / of_lru.read_bytes.max(1) as f64;
    format!(
        "it should read {}, {} of the {} that lru reads, and take {} instead of {}; it is for: {}",
        Size(promise.read_bytes),
        report::percent(share),
        Size(of_lru.read_bytes),
        report::duration(promise.elapsed_ns as f64),
        report::duration(of_lru.elapsed_ns as f64),
        best.info().helps
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_sim::References;
    use pagekeeper_trace::ExtentEvent;

    fn looped(pages: u64, passes: u64) -> Loaded {
        let touches = (0..passes).flat_map(|_| (0..pages).map(|page| (0, page, false, 0)));
        let references = References::collect(touches).unwrap();
        Loaded { name: "loop".into(), page_bytes: 4096, references }
    }

    fn recorded() -> RunStats {
        RunStats {
            major_faults: 10_000,
            read_bytes: 10_000 * 4096,
            io_ns: 1_000_000_000,
            elapsed_ns: 2_000_000_000,
            ..RunStats::default()
        }
    }

    #[test]
    fn a_loop_larger_than_memory_wants_mru_and_a_smaller_one_nothing() {
        let policies = ["lru", "mru", "fifo"].map(|name| PolicySpec::parse(name).unwrap());
        let (memory, usual) = (16 << 20, SamplingShare::USUAL);
        let forecast =
            Forecast::new(&looped(5120, 6), &policies, memory, usual, &recorded(), None).unwrap();
        assert_eq!(forecast.best().name(), "mru", "{:#?}", forecast.at_memory);
        assert!(forecast.reason.contains("loops"), "{}", forecast.reason);
        assert_eq!(forecast.at_memory.len(), 3);
        assert_eq!(forecast.at_sizes.len(), 2 * QUARTERS.len());
        // Twice the memory holds it all: every page once.
        let double = &forecast.at_sizes[QUARTERS.len() - 1];
        assert_eq!((double.memory_bytes, double.read_bytes), (2 * memory, 5120 * 4096));

        let forecast =
            Forecast::new(&looped(1000, 6), &policies, memory, usual, &recorded(), None).unwrap();
        assert_eq!(forecast.best().name(), "lru");
        assert!(forecast.reason.contains("read once"), "{}", forecast.reason);
    }

    /// Memory that is freed and used again was taken for as much more.
    #[test]
    fn what_is_touched_is_what_there_is_at_once() {
        let mut builder = References::builder();
        builder.segment(1, "a.db", 300).heap(2, "heap:1 (p)");
        let file = (0..300).map(|page| (1, page));
        for (segment, page) in file.chain((0..20).flat_map(|_| (0..2000).map(|page| (2, page)))) {
            if (segment, page) == (2, 0) {
                builder.extent(2, 0..2000, ExtentEvent::Freed);
            }
            builder.push((segment, page, true, 0).into()).unwrap();
        }
        let references = builder.finish();
        let trace = Loaded { name: "heap".into(), page_bytes: 4096, references };
        let (policies, usual) = ([lru()], SamplingShare::USUAL);
        let forecast =
            Forecast::new(&trace, &policies, 16 << 20, usual, &recorded(), None).unwrap();
        assert_eq!(forecast.touched_bytes, 2300 * 4096);
        // Of files alone.
        assert!(forecast.reason.contains(&Size(300 * 4096).to_string()), "{}", forecast.reason);
    }

    #[test]
    fn costs_follow_the_recorded_run() {
        let cost = calibrated(&recorded(), None, 1_000_000, 4096);
        let io_ns = 10_000.0 * (cost.major_request_ns + cost.major_page_ns);
        assert!((io_ns - 1e9).abs() < 1e3, "{io_ns}");
        assert!((cost.hit_ns - 1000.0).abs() < 1.0);
        let cpu = Some(Cpu { own_ns: 0, children_ns: 900_000_000, children_user_ns: 500_000_000 });
        assert!((calibrated(&recorded(), cpu, 1_000_000, 4096).hit_ns - 500.0).abs() < 1.0);
        let nothing = calibrated(&RunStats::default(), None, 0, 4096);
        assert_eq!(nothing.major_request_ns, CostModel::default().major_request_ns);
        assert_eq!(nothing.hit_ns, 0.0);
    }
}
