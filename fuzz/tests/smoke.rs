//! The targets' bodies over their seeds, over inputs that once broke something (`regressions/`),
//! and over bytes near both. Minutes of libFuzzer find more; this keeps the targets alive.

use pagekeeper_fuzz::{INPUT_BYTES_MAX, TARGETS, Target};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::fs;
use std::path::Path;

const CASES: u32 = 192;

fn regressions(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(target.name);
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect()
}

/// Some bytes of an input changed, its end cut off, another one's end put on it.
fn near(inputs: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let one = prop::sample::select(inputs);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (one.clone(), one, changes, any::<prop::sample::Index>(), any::<bool>()).prop_map(
        |(mut bytes, other, changes, at, is_spliced)| {
            if bytes.is_empty() {
                return other;
            }
            for (place, byte) in changes {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            if is_spliced && !other.is_empty() {
                bytes.truncate(at.index(bytes.len()));
                bytes.extend_from_slice(&other[at.index(other.len())..]);
            }
            bytes
        },
    )
}

fn smoke(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let seeds = (target.seeds)();
    assert!(seeds.len() >= 8, "{name} has {} seeds", seeds.len());
    let inputs = [seeds, regressions(target)].concat();
    for input in &inputs {
        assert!(input.len() <= INPUT_BYTES_MAX);
        (target.run)(input);
    }
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let strategy = prop_oneof![
        4 => near(inputs),
        1 => prop::collection::vec(any::<u8>(), 0..400),
    ];
    TestRunner::new(config)
        .run(&strategy, |bytes| {
            (target.run)(&bytes);
            Ok(())
        })
        .unwrap();
}

#[test]
fn binary() {
    smoke("binary");
}

#[test]
fn assembler() {
    smoke("assembler");
}

#[test]
fn source() {
    smoke("source");
}

#[test]
fn execution() {
    smoke("execution");
}

#[test]
fn trace() {
    smoke("trace");
}

#[test]
fn policy_spec() {
    smoke("policy_spec");
}

/// Every target is a binary that libFuzzer builds.
#[test]
fn every_target_has_its_binary() {
    for target in TARGETS {
        let path = format!("{}/fuzz_targets/{}.rs", env!("CARGO_MANIFEST_DIR"), target.name);
        assert!(fs::read_to_string(path).unwrap().contains(&format!("{}::run", target.name)));
    }
}
