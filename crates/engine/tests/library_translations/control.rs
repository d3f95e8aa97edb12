//! The control, a hash table, whose chains are long so that many meet on them.

use super::CONTROL;
use crate::library_model::{
    Chaos, ChaosStore, EINVAL, PAGE, Rng, maps_nothing_and_pins_within_a_page,
};
use pagekeeper::library::{Buckets, Cache, PolicySpec, Translation};

#[test]
fn a_control_maps_nothing_and_pins_within_a_page() {
    maps_nothing_and_pins_within_a_page(CONTROL);
    let nowhere = Cache::builder(1 << 20).translation(Translation::Hash(Buckets::Fixed(0)));
    assert_eq!(nowhere.build().unwrap_err().raw_os_error(), Some(EINVAL));
}

/// Nothing but the lookup differs: the same reads and writes lead to the same decisions, under any
/// policy.
#[test]
fn a_control_takes_the_same_decisions() {
    for policy in ["lru", "mru", "clock", "2q", "lirs"] {
        let counts =
            [Translation::Mapped, Translation::Table, CONTROL, Translation::Hash(Buckets::Sized)]
                .map(|translation| {
                    let cache = Cache::builder(64 * PAGE as u64)
                        .translation(translation)
                        .policy(PolicySpec::parse(policy).unwrap())
                        .workers(0)
                        .write_back_period(None)
                        .build()
                        .unwrap();
                    let store = ChaosStore(Chaos::new(300 * PAGE));
                    let segment = cache.open_store(store, "memory").unwrap();
                    let mut rng = Rng(11);
                    let mut buf = vec![0; 3 * PAGE];
                    for _ in 0..4000 {
                        let len = 1 + rng.below(buf.len() as u64 - 1) as usize;
                        let at = rng.below(297 * PAGE as u64);
                        // Half of them in the first tenth.
                        let at = if rng.below(2) == 0 { at / 10 } else { at };
                        match rng.below(4) {
                            0 => segment.write_all_at(&buf[..len], at).unwrap(),
                            _ => segment.read_exact_at(&mut buf[..len], at).unwrap(),
                        }
                    }
                    segment.flush().unwrap();
                    let stats = cache.stats();
                    let total = stats.total;
                    assert!(total.major_faults > 0 && total.write_backs > 0, "{total:?}");
                    (stats.decisions_digest, total.read_bytes, total.written_bytes)
                });
        assert!(counts.iter().all(|count| *count == counts[0]), "{policy}: {counts:?}");
    }
}
