//! Random operations by all routes to a file that libc has (`c/random.c`), alone and under a run. What
//! a program sees of its files and what it leaves must be the same, whatever the memory and the policy.
//!
//! How much: RANDOM_SEEDS, from RANDOM_FIRST_SEED on, of RANDOM_OPERATIONS each. `scripts/stress.sh
//! calls` does many.

use crate::runs::{self, Budget, Finished};
use std::fmt::Write;

/// So many lines before one that differs tell where it came from.
const LINES_BEFORE: usize = 12;

/// Seeds and operations that differed once: a thread waited for ever for what another unmapped (three runs of
/// ten), reads into heap memory were too long for processes that may make no long files, or none, a direct read
/// of no bytes was an error, and a child read into what its parent's MREMAP_DONTUNMAP had left, and lost some of
/// it.
const MENDED: [(u64, u64); 6] =
    [(503, 108), (600, 10), (2005, 23), (3001, 115), (5021, 281), (5124, 180)];

fn number(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{name} is {text}, which is no number"))
}

/// The first line that differs with those before it; none if none does.
fn first_difference(alone: &str, managed: &str) -> Option<String> {
    if alone == managed {
        return None;
    }
    let [alone, managed] = [alone, managed].map(|text| text.lines().collect::<Vec<_>>());
    let same = alone.iter().zip(&managed).take_while(|(alone, managed)| alone == managed).count();
    let mut told = String::new();
    for line in &alone[same.saturating_sub(LINES_BEFORE)..same] {
        let _ = writeln!(told, "         {line}");
    }
    let line = |lines: &[&str]| lines.get(same).unwrap_or(&"(nothing more)").to_string();
    let _ = writeln!(told, "alone:   {}\nmanaged: {}", line(&alone), line(&managed));
    Some(told)
}

/// What somebody has to know to see it again.
fn what_differs([alone, managed]: &[(Finished, runs::Files); 2]) -> Option<String> {
    if let Some(difference) = first_difference(&alone.0.text(), &managed.0.text()) {
        return Some(difference);
    }
    if alone.0.status != managed.0.status {
        return Some(format!("alone: {}, managed: {}", alone.0.status, managed.0.status));
    }
    let names = |files: &runs::Files| files.iter().map(|f| f.0.clone()).collect::<Vec<_>>();
    if names(&alone.1) != names(&managed.1) {
        return Some(format!("files: {:?} alone, {:?}", names(&alone.1), names(&managed.1)));
    }
    let mut pairs = alone.1.iter().zip(&managed.1);
    let (alone, managed) = pairs.find(|(alone, managed)| alone != managed)?;
    let at = alone.1.iter().zip(&managed.1).take_while(|(a, b)| a == b).count();
    let lengths = format!("{} bytes alone, {}", alone.1.len(), managed.1.len());
    Some(format!("in the end {} differs at {at}: {lengths}", alone.0))
}

fn check(name: &str, budget: &Budget) {
    if !runs::ready() {
        return;
    }
    let first = number("RANDOM_FIRST_SEED", 1);
    let operations = number("RANDOM_OPERATIONS", 200);
    let seeds = first..first + number("RANDOM_SEEDS", 2);
    for (seed, operations) in MENDED.into_iter().chain(seeds.map(|seed| (seed, operations))) {
        play(name, budget, seed, operations);
    }
}

fn play(name: &str, budget: &Budget, seed: u64, operations: u64) {
    let program = runs::compiled("random.c", &["-O2"], "random");
    let arguments = [&*seed.to_string(), &operations.to_string(), "."];
    let both = runs::both(&format!("random-{name}"), budget, &program, &arguments, |_| ());
    assert!(both[0].0.status.success(), "seed {seed} alone: {}", both[0].0.stderr);
    let managed = &both[1].0;
    if let Some(difference) = what_differs(&both) {
        panic!(
            "random {seed} {operations} differs under {} in {} KiB ({name}):\n{difference}\
             --- errors\n{}",
            budget.policy,
            budget.bytes >> 10,
            managed.stderr
        );
    }
    assert!(managed.managed_files() > 0, "seed {seed}: {}", managed.notes());
    eprintln!(
        "random {seed} {operations}, {name}: {} major faults, {} evictions",
        managed.total("major_faults"),
        managed.total("evictions")
    );
}

#[test]
fn in_little_memory() {
    check("small", &Budget::kib(256).policy("lru"));
}

#[test]
fn in_memory_for_some_files() {
    check("medium", &Budget::kib(2048).policy("clock"));
}

#[test]
fn with_delayed_writes() {
    check("delayed", &Budget::kib(1024).policy("mru").delay_writes());
}

/// Buffers that are allocated are managed, too.
#[test]
fn with_heap_memory() {
    check("heap", &Budget::kib(2048).policy("lru").heap(64 << 10));
}
