//! Hit counts of real traces against an independent simulator's: the same integers.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{References, SweepOptions, sweep};

/// Rows that must match exactly: the name there, and the policy with the parameters that make it
/// the variant that was counted.
const EXACT: &[(&str, &str)] = &[
    ("lru", "lru"),
    ("fifo", "fifo"),
    ("clock", "clock"),
    ("opt", "opt"),
    ("sieve", "sieve"),
    ("s3fifo", "s3fifo:variant=libcachesim"),
];

/// Rows whose hit ratio must be within 0.01, but for so many cells of the 33; why those differ is
/// beside the policy.
const CLOSE: &[(&str, &str, usize)] = &[("lirs", "lirs", 0)];

/// Frames → (references, hits).
type Sizes = BTreeMap<u32, (u64, u64)>;

/// The directory with `oracle/hits.csv` and `traces/`.
fn shared() -> PathBuf {
    std::env::var_os("PAGEKEEPER_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    )
}

/// One decimal block number per line; blank lines and lines with `*` are dropped.
fn read_trace(path: &Path) -> References {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let blocks = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.contains('*'))
        .map(|line| line.parse().unwrap_or_else(|e| panic!("{}: {line}: {e}", path.display())));
    References::from_blocks(blocks).unwrap()
}

/// Calls `check` with every row whose policy is named, and what is counted here: trace, oracle's
/// policy, frames, references, the oracle's hits and ours. How many rows that were; `None` where
/// there is no oracle.
fn against_oracle(
    specs: &[(&str, &str)],
    mut check: impl FnMut(&str, &str, u32, u64, u64, u64),
) -> Option<usize> {
    let shared = shared();
    let Ok(table) = std::fs::read_to_string(shared.join("oracle/hits.csv")) else {
        println!(
            "skipped: no oracle/hits.csv under {}; set PAGEKEEPER_SHARED to where it is",
            shared.display()
        );
        return None;
    };
    let mut wanted: BTreeMap<&str, BTreeMap<&str, Sizes>> = BTreeMap::new();
    for line in table.lines().skip(1) {
        let [trace, policy, frames, references, hits, _kind] =
            line.split(',').collect::<Vec<_>>()[..]
        else {
            panic!("oracle/hits.csv: {line}")
        };
        if specs.iter().any(|(name, _)| *name == policy) {
            let row = (references.parse().unwrap(), hits.parse().unwrap());
            let rows = wanted.entry(trace).or_default().entry(policy).or_default();
            rows.insert(frames.parse().unwrap(), row);
        }
    }
    let mut compared = 0;
    for (trace, policies) in wanted {
        let references = read_trace(&shared.join(format!("traces/{trace}.trace")));
        for (policy, sizes) in policies {
            let (_, spec) = specs.iter().find(|(name, _)| *name == policy).unwrap();
            let spec = PolicySpec::parse(spec).unwrap();
            let frames: Vec<u32> = sizes.keys().copied().collect();
            let outcomes = sweep(&references, &[spec], &frames, &SweepOptions::default()).unwrap();
            for (outcome, (size, (total, hits))) in outcomes.iter().zip(sizes) {
                assert_eq!(outcome.counts.references, total, "{trace}");
                check(trace, policy, size, total, hits, outcome.counts.hits);
                compared += 1;
            }
        }
    }
    Some(compared)
}

#[test]
fn hits_equal_the_independent_counts() {
    let compared = against_oracle(EXACT, |trace, policy, frames, _, theirs, ours| {
        assert_eq!(ours, theirs, "{trace}, {policy}, {frames} frames");
    });
    if let Some(compared) = compared {
        assert!(compared >= EXACT.len() * 6 * 5, "only {compared} rows found");
    }
}

#[test]
fn hit_ratios_are_close_to_the_independent_ones() {
    let specs: Vec<_> = CLOSE.iter().map(|(name, spec, _)| (*name, *spec)).collect();
    let mut apart: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let compared = against_oracle(&specs, |trace, policy, frames, references, theirs, ours| {
        let difference = (ours as f64 - theirs as f64) / references as f64;
        if difference.abs() > 0.01 {
            let cell = format!("{trace} at {frames}: {difference:+.4}");
            apart.entry(policy.to_owned()).or_default().push(cell);
        }
    });
    if let Some(compared) = compared {
        assert!(compared >= CLOSE.len() * 6 * 5, "only {compared} rows found");
    }
    for (policy, _, most) in CLOSE {
        let cells = apart.get(*policy).map_or(&[][..], Vec::as_slice);
        assert!(cells.len() <= *most, "{policy}: more than {most} cells apart: {cells:#?}");
    }
}
