//! `tune`: what it measures, and what it leaves when it ends before its time.

use crate::runs::{self, Budget, LIMIT, Scratch, finish, managing, skip};
use pagekeeper_sys::cgroup::MemoryCgroup;
use std::path::{Path, PathBuf};
use std::process::Command;

const FILE_BYTES: usize = 8 << 20;

/// A shell that is tuned in half of the memory that its file would take.
fn tune(place: &Scratch, options: &[&str], script: &str) -> Command {
    place.put("data", (0..FILE_BYTES).map(|at| (at >> 12) as u8).collect::<Vec<_>>());
    let budget = Budget::kib(4096).files(place.file("data").display().to_string());
    let mut command = managing(place, &budget, &[&["tune"], options].concat());
    command.args(["--", "sh", "-c", script]);
    command
}

/// Where `tune` makes its cgroups; none, with the reason said, if it cannot.
fn cgroups() -> Option<PathBuf> {
    match MemoryCgroup::create("pagekeeper-tune-test", 64 << 20) {
        Ok(cgroup) => cgroup.path().parent().map(Path::to_owned),
        Err(error) => {
            skip(&error.to_string());
            None
        }
    }
}

/// `auto` stood by in the cgroup that its run was given, and was measured with pages that the kernel kept.
#[test]
fn auto_is_measured_as_it_is_predicted() {
    if !runs::ready() || cgroups().is_none() {
        return;
    }
    let place = Scratch::new("tune-auto");
    let script = "for i in 1 2 3 4 5 6; do md5sum data; done";
    let options = ["--policy", "auto", "--format", "json"];
    let done = finish(&place, &mut tune(&place, &options, script), b"", LIMIT).ok();
    let found: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let run = &found["runs"][0];
    assert_eq!(run["name"], "auto", "{found}");
    let said = run["predicted"]["read_bytes"].as_u64().expect("bytes");
    let counted = run["measured"]["read_bytes"].as_u64().expect("bytes");
    assert!(said >= FILE_BYTES as u64 && counted.abs_diff(said) < said / 2, "{said}, {counted}");

    let done = finish(&place, &mut tune(&place, &options[..2], script), b"", LIMIT).ok();
    assert!(done.text().contains("as with `run --from-start`"), "{}", done.text());
}
