//! Reads by copying from a mapping of the library's own: what programs see is what the kernel would
//! show them, whatever happens to the file, the buffers and the signals meanwhile.

use crate::runs::{self, Budget, LIMIT, Scratch, command, compiled, finish, same};
use std::path::PathBuf;

fn reads() -> PathBuf {
    compiled("reads.c", &[], "reads")
}

fn check(name: &str, budget: Budget, arguments: &[&str]) -> runs::Finished {
    let place = Scratch::new(name);
    let mut command = command(&place, Some(&budget), reads());
    let done = finish(&place, command.args(arguments), b"", LIMIT * 2).ok();
    assert_eq!(done.text(), format!("{} ok\n", arguments[0]));
    done
}

/// Any calls, in any order, by one process and its children: results, error numbers, content.
#[test]
fn random_calls_see_what_they_see_under_the_kernel() {
    if !runs::ready() {
        return;
    }
    let policies = ["clock", "lru", "mru", "fifo2", "s3fifo", "random"];
    let mut unmanaged = Vec::new();
    for seed in 0..18 {
        let kib = [96, 256, 4096][seed % 3];
        let budget = Budget::kib(kib).policy(policies[seed % policies.len()]);
        let seed = seed.to_string();
        let arguments = ["random", "file", &seed, "1500"];
        let done = same(&format!("random-{seed}"), &budget, reads(), &arguments, |_| {}).ok();
        if done.total("major_faults") == 0 {
            unmanaged.push(format!("{seed}: {}\n{}", done.stats["passed_through"], done.stderr));
        }
        if kib == 96 {
            done.pressed();
        }
    }
    assert!(unmanaged.is_empty(), "without a fault:\n{}", unmanaged.join("\n"));
}

/// A read that took the offset and another that moved it once gave two threads the same record.
#[test]
fn who_share_an_offset_each_get_records_of_their_own() {
    if runs::ready() {
        check("shared", Budget::kib(128), &["shared", "file"]).pressed();
        check("shared", Budget::kib(4096), &["shared", "file"]);
    }
}

/// What a read returns was in the file, however another process cuts it meanwhile.
#[test]
fn a_file_that_is_cut_shows_no_zeros() {
    if runs::ready() {
        check("cut", Budget::kib(4096), &["cut", "file", "1500"]);
        check("cut", Budget::kib(96), &["cut", "file", "300"]).pressed();
    }
}

/// Where processors are short, what was written behind the end was often read before the manager had
/// heard of it, by the kernel's own read, which showed zeros where the file was cut in its midst: in one
/// of twenty runs.
#[test]
fn a_file_that_is_cut_shows_no_zeros_where_processors_are_short() {
    if runs::ready() {
        std::thread::scope(|scope| {
            for name in ["cut-a", "cut-b", "cut-c"] {
                scope.spawn(move || {
                    for _ in 0..8 {
                        check(name, Budget::kib(4096), &["cut", "file", "1500"]);
                    }
                });
            }
        });
    }
}

#[test]
fn bad_buffers_are_errors_and_managed_ones_work() {
    if runs::ready() {
        for kib in [96, 4096] {
            check("buffers", Budget::kib(kib).policy("mru"), &["buffers", "file"]);
        }
    }
}

#[test]
fn signals_stay_the_programs() {
    if runs::ready() {
        check("signals", Budget::kib(1024), &["signals", "file"]);
    }
}

/// Mappings outlive their descriptors, up to a number; what changed meanwhile is seen.
#[test]
fn files_opened_again_show_what_others_wrote() {
    if runs::ready() {
        check("many", Budget::kib(2048), &["many", "."]);
        check("many", Budget::kib(256), &["many", "."]).pressed();
    }
}
