//! Where recordings go.

use crate::runs::{self, Budget, Finished, LIMIT, Scratch, compiled, finish, managing, skip};
use pagekeeper_trace::TraceReader;
use std::fs::File;
use std::path::Path;

/// Records a program that reads a managed file.
fn record(place: &Scratch, options: &[&str], program: &Path) -> Finished {
    let budget = Budget::kib(256).files(place.file("data").display().to_string());
    let mut command = managing(place, &budget, &[&["record"], options].concat());
    finish(place, command.arg("--").arg(program), b"", LIMIT)
}

/// A program that says nothing.
fn reader(place: &Scratch) -> std::path::PathBuf {
    place.put("data", vec![7; 1 << 20]);
    let program = place.put("reader", "#!/bin/sh\nmd5sum data >&2\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).expect("it is ours");
    program
}

#[track_caller]
fn is_whole(trace: &[u8]) {
    let mut records = TraceReader::new(trace).expect("a trace");
    assert!(records.all(|record| record.is_ok()));
}

/// A run that could not be started had emptied the recording of the last one.
#[test]
fn a_refused_start_leaves_the_last_recording() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("refused");
    let reader = reader(&place);
    place.put("keep.pkt", "what was seen last");
    for output in ["keep.pkt", "new.pkt"] {
        let options = ["--heap", "--heap-dir", "/nonexistent", "--output", output];
        let done = record(&place, &options, &reader);
        assert_eq!(done.status.code(), Some(69), "{}", done.stderr);
        assert_eq!(place.get("keep.pkt"), b"what was seen last");
        assert!(!place.file("new.pkt").exists());
    }

    let busy = place.file("busy");
    std::fs::copy(compiled("driver.c", &[], "driver"), &busy).expect("a file can be copied");
    let _written = File::options().write(true).open(&busy).expect("it is ours");
    let done = record(&place, &["--output", "keep.pkt"], &busy);
    if done.status.success() {
        return skip("this kernel executes what is open for writing");
    }
    assert_eq!(done.status.code(), Some(126), "{}", done.stderr);
    assert_eq!(place.get("keep.pkt"), b"what was seen last");
}

#[test]
fn a_recording_takes_the_place_of_the_last_behind_a_link_and_in_a_pipe() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("recordings");
    let reader = reader(&place);
    place.put("last.pkt", vec![1; 1 << 20]);
    std::os::unix::fs::symlink("last.pkt", place.file("link.pkt")).expect("a link can be made");
    record(&place, &["--output", "link.pkt"], &reader).ok();
    assert!(place.file("link.pkt").is_symlink());
    is_whole(&place.get("last.pkt"));
    is_whole(&record(&place, &["--output", "/dev/stdout"], &reader).ok().stdout);
    record(&place, &["--output", "/dev/null"], &reader).ok();
}
