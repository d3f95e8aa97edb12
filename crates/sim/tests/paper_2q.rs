//! What the paper of UBM (J. M. Kim et al., OSDI 2000, section 4) says of 2Q on its traces: "when
//! the cache size is large (caches with 1800 or more blocks for the Multi1 trace, 2800 or more
//! blocks for the Multi2 trace […]), the scheme shows worse performance than the LRU scheme".
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{SweepOptions, sweep};

use crate::shared;

/// Sizes in blocks and whether 2Q had more hits than LRU there.
fn sizes_where_2q_wins(trace: &str, sizes: &[u32]) -> Option<Vec<(u32, bool)>> {
    let references = shared::trace(trace)?;
    let specs = ["lru", "2q"].map(|spec| PolicySpec::parse(spec).unwrap());
    let outcomes = sweep(&references, &specs, sizes, &SweepOptions::default()).unwrap();
    let (lru, two_q) = outcomes.split_at(sizes.len());
    let wins = lru.iter().zip(two_q).map(|(lru, two_q)| {
        println!(
            "{trace}, {} frames: {} lru, {} 2q",
            lru.frames, lru.counts.hits, two_q.counts.hits
        );
        assert_ne!(lru.counts.hits, two_q.counts.hits, "{trace}, {} frames", lru.frames);
        (lru.frames, two_q.counts.hits > lru.counts.hits)
    });
    Some(wins.collect())
}

#[test]
fn two_q_falls_below_lru_from_1800_blocks_on_multi1() {
    let sizes: Vec<u32> = (200..=2200).step_by(200).collect();
    let Some(wins) = sizes_where_2q_wins("multi1", &sizes) else { return };
    assert!(wins.iter().all(|(frames, wins)| *wins == (*frames < 1800)), "{wins:?}");
}

#[test]
fn two_q_falls_below_lru_from_2800_blocks_on_multi2() {
    let sizes: Vec<u32> = (600..=3200).step_by(200).collect();
    let Some(wins) = sizes_where_2q_wins("multi2", &sizes) else { return };
    assert!(wins.iter().all(|(frames, wins)| *wins == (*frames < 2800)), "{wins:?}");
}
