//! Hit counts of real traces against an independent simulator's: the same integers.
use std::collections::BTreeMap;

use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{SweepOptions, sweep};

use crate::shared;

/// Rows that must match exactly: the name there, and the policy with the parameters that make it
/// the variant that was counted.
const EXACT: &[(&str, &str)] = &[
    ("lru", "lru"),
    ("fifo", "fifo"),
    ("clock", "clock"),
    ("lfu", "lfu"),
    ("opt", "opt"),
    ("2q", "2q"),
    ("arc", "arc"),
    ("sieve", "sieve"),
    ("s3fifo", "s3fifo:variant=libcachesim"),
];

/// Rows whose hit ratio must be within 0.01, but for the cells listed: trace and frames. Why those
/// differ stands with them, and who is right.
const CLOSE: &[Close] = &[
    ("lirs", "lirs", &[]),
    // The counted program never forgets a ghost of T2, where the paper's Figure 2 bounds all four
    // lists at 2 c, forgets one of T1 on ghost hits too, rounds the ratio of the ghost lists down,
    // and moves the target before the replacement. With these changes a model of the figure gave
    // its rows to the hit in the six cells tried, so the figure is right here.
    ("car", "car", &[("cpp", 61), ("multi2", 2200), ("multi2", 2600)]),
    // Four segments, filled from below while frames are free.
    ("slru", "slru:segments=4,protected=3/4,fill=free", &[]),
    // A fixed lifetime in place of the learned one.
    ("mq", "mq:life=10000", &[]),
    // Below 100 frames the counted program's window is nothing, and no page ever stays. Elsewhere
    // ours has more hits, by up to 0.025, and has them too with true frequencies in place of the
    // sketch. Why is not settled: the counted sketch adds to all of a page's counters and counts
    // once more what it rejects, but a copy of it did not give these rows.
    (
        "wtinylfu",
        "wtinylfu",
        &[
            ("cpp", 61),
            ("cpp", 122),
            ("cs", 70),
            ("cs", 564),
            ("cs", 1127),
            ("gli", 253),
            ("gli", 506),
            ("multi1", 200),
            ("multi1", 600),
            ("multi2", 2600),
        ],
    ),
    // The counted program lets newcomers pass by while its cold part is full, which is no demand
    // paging and wins a little in the loop (cs); elsewhere it has far fewer hits. Ours stays near
    // LIRS, as the paper has it.
    (
        "clockpro",
        "clockpro",
        &[
            ("cpp", 61),
            ("cpp", 122),
            ("cpp", 245),
            ("cs", 70),
            ("cs", 141),
            ("cs", 564),
            ("multi1", 200),
            ("multi1", 600),
            ("multi1", 1000),
            ("multi1", 1400),
            ("multi2", 600),
            ("multi2", 1000),
            ("multi2", 1400),
            ("multi2", 1800),
            ("multi2", 2200),
            ("multi2", 2600),
        ],
    ),
    // The experts are drawn by lot: with another seed it is other cells, and of either sign (none
    // with seed 1).
    ("lecar", "lecar:frequency=forgotten", &[("cpp", 61), ("multi2", 1000)]),
];

/// The name there, the policy here, and the cells that differ.
type Close = (&'static str, &'static str, &'static [(&'static str, u32)]);

/// Frames → (references, hits).
type Sizes = BTreeMap<u32, (u64, u64)>;

/// Calls `check` with every row whose policy is named, and what is counted here: trace, oracle's
/// policy, frames, references, the oracle's hits and ours. How many rows that were; `None` where
/// there is no oracle.
fn against_oracle(
    specs: &[(&str, &str)],
    mut check: impl FnMut(&str, &str, u32, u64, u64, u64),
) -> Option<usize> {
    let table = shared::text("oracle/hits.csv")?;
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
        let references = shared::trace(trace).expect("a row's trace");
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
    let mut wrong = Vec::new();
    let compared = against_oracle(&specs, |trace, policy, frames, references, theirs, ours| {
        let (_, _, apart) = CLOSE.iter().find(|(name, ..)| *name == policy).unwrap();
        let difference = (ours as f64 - theirs as f64) / references as f64;
        if (difference.abs() > 0.01) != apart.contains(&(trace, frames)) {
            wrong.push(format!("{policy}, {trace} at {frames}: {difference:+.4}"));
        }
    });
    assert!(wrong.is_empty(), "apart and not listed, or listed and not apart: {wrong:#?}");
    if let Some(compared) = compared {
        assert!(compared >= CLOSE.len() * 6 * 5, "only {compared} rows found");
    }
}
