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

#[test]
fn hits_equal_the_independent_counts() {
    let shared = shared();
    let Ok(table) = std::fs::read_to_string(shared.join("oracle/hits.csv")) else {
        println!(
            "skipped: no oracle/hits.csv under {}; set PAGEKEEPER_SHARED to where it is",
            shared.display()
        );
        return;
    };
    let mut wanted: BTreeMap<&str, BTreeMap<&str, Sizes>> = BTreeMap::new();
    for line in table.lines().skip(1) {
        let [trace, policy, frames, references, hits, _kind] =
            line.split(',').collect::<Vec<_>>()[..]
        else {
            panic!("oracle/hits.csv: {line}")
        };
        if EXACT.iter().any(|(name, _)| *name == policy) {
            let row = (references.parse().unwrap(), hits.parse().unwrap());
            let rows = wanted.entry(trace).or_default().entry(policy).or_default();
            rows.insert(frames.parse().unwrap(), row);
        }
    }
    let mut compared = 0;
    for (trace, policies) in wanted {
        let references = read_trace(&shared.join(format!("traces/{trace}.trace")));
        for (policy, sizes) in policies {
            let (_, spec) = EXACT.iter().find(|(name, _)| *name == policy).unwrap();
            let spec = PolicySpec::parse(spec).unwrap();
            let frames: Vec<u32> = sizes.keys().copied().collect();
            let outcomes = sweep(&references, &[spec], &frames, &SweepOptions::default()).unwrap();
            for (outcome, (size, row)) in outcomes.iter().zip(sizes) {
                let counted = (outcome.counts.references, outcome.counts.hits);
                assert_eq!(counted, row, "{trace}, {policy}, {size} frames");
                compared += 1;
            }
        }
    }
    assert!(compared >= EXACT.len() * 6 * 5, "only {compared} rows found");
}
