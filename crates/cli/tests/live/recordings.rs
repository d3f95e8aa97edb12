//! Where recordings go.

use crate::mounts::Mount;
use crate::runs::{self, Budget, Finished, LIMIT, Scratch, compiled, finish, managing, skip};
use pagekeeper_trace::{Record, TraceReader};
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

/// A page that a call had to wait for was two references, so that every policy saw a second use of it.
#[test]
fn a_recording_has_what_calls_read_once() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("calls");
    place.put("data", vec![7; 1 << 20]);
    // In 256 KiB, of which each page is read again when it is gone; two pages a call.
    let script = "import os
fd = os.open('data', os.O_RDONLY)
for i in range(600):
    os.pread(fd, 8192, i * 7 % 128 * 8192)";
    let budget = Budget::kib(256).files(place.file("data").display().to_string());
    let mut command = managing(&place, &budget, &["record", "--output", "calls.pkt"]);
    command.args([runs::python().as_os_str(), "-c".as_ref(), script.as_ref()]);
    finish(&place, &mut command, b"", LIMIT).ok();
    let trace = place.get("calls.pkt");
    let mut pages = Vec::new();
    for record in TraceReader::new(&trace[..]).expect("a trace") {
        if let Record::Reference(reference) = record.expect("it is whole") {
            assert!(reference.by_call && !reference.write);
            pages.push(reference.page);
        }
    }
    let read = (0..600).flat_map(|i| [i * 7 % 128 * 2, i * 7 % 128 * 2 + 1]);
    assert_eq!(pages, Vec::from_iter(read));
}

/// Statistics that did not fit left a part of themselves in place of the last ones.
#[test]
fn statistics_are_whole_or_as_they_were() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("statistics");
    let Some(small) = Mount::tmpfs(&place, "small", 16) else { return };
    let names = (0..40).map(|i| format!("data-{i:02}")).collect::<Vec<_>>();
    names.iter().for_each(|name| drop(place.put(name, [7; 8192])));
    std::fs::write(small.file("stats"), "the last ones").expect("there is room");
    let fill = std::fs::write(small.file("fill"), [1; 16 << 10]);
    assert!(fill.is_err(), "it is full");
    let budget = Budget::kib(1024).files(place.file("data-*").display().to_string());
    let at = small.file("stats");
    let mut command = managing(&place, &budget, &["run", "--stats", at.to_str().expect("text")]);
    command.args(["--", "md5sum"]).args(&names);
    let done = finish(&place, &mut command, b"", LIMIT);
    assert_eq!(done.status.code(), Some(74), "{}", done.stderr);
    let kept = std::fs::read(small.file("stats")).expect("it is there");
    assert_eq!(String::from_utf8_lossy(&kept), "the last ones");
}
