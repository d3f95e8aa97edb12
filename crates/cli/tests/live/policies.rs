//! The HiPEC paper's programs, scaled down, under policies that were written for them: they read
//! less than under LRU, and find the same.

use crate::runs::{self, Budget, LIMIT, Scratch, command, example, finish};
use std::process::Command;

fn build(place: &Scratch, program: &str, arguments: &[&str]) {
    let mut command = Command::new(example(program));
    let status = command.arg("build").args(arguments).current_dir(place.path()).status();
    assert!(status.expect("the program can be started").success());
}

/// Pages read, and the checksum of what was found.
#[track_caller]
fn run(place: &Scratch, budget: &Budget, program: &str, arguments: &[&str]) -> (u64, String) {
    let mut command = command(place, Some(budget), example(program));
    let done = finish(place, command.args(arguments), b"", LIMIT).ok().pressed();
    let told: serde_json::Value = serde_json::from_str(done.text().trim()).expect("it tells");
    let checksum = told["checksum"].as_str().expect("a checksum").to_owned();
    let pages = done.total("read_bytes") / 4096;
    eprintln!("{program} under {}: {pages} pages read", budget.policy);
    (pages, checksum)
}

#[test]
fn a_nested_loop_join_reads_little_under_mru() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("nlj");
    build(&place, "nlj", &["outer", "inner", "--outer-kib", "4096", "--inner-tuples", "16"]);
    let join = ["join", "outer", "inner"];
    let budget = Budget::kib(3800);
    let (lru, found) = run(&place, &budget.clone().policy("lru"), "nlj", &join);
    assert!(lru > 15 * 1024 * 9 / 10, "LRU reads the file in every pass: {lru}");
    for policy in [
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../policies/mru.hipec"),
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../policies/loop.hipec"),
    ] {
        let (pages, same) = run(&place, &budget.clone().policy(policy), "nlj", &join);
        assert_eq!(same, found);
        assert!(pages * 3 < lru, "{policy} reads {pages} pages, LRU {lru}");
    }
}

#[test]
fn retrievals_through_an_index_read_less_when_its_upper_levels_stay() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("rdr");
    build(&place, "rdr", &["index", "data", "--records", "16384"]);
    let retrieve = ["retrieve", "index", "data", "4000"];
    let budget = Budget::kib(640);
    let (lru, found) = run(&place, &budget.clone().policy("lru"), "rdr", &retrieve);
    let mpfifo2 = concat!(env!("CARGO_MANIFEST_DIR"), "/../../policies/mpfifo2.hipec");
    let (pages, same) = run(&place, &budget.policy(mpfifo2), "rdr", &retrieve);
    assert_eq!(same, found);
    assert!(pages * 100 < lru * 88, "MPFIFO2 reads {pages} pages, LRU {lru}");
}
