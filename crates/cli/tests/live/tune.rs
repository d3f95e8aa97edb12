//! `tune`: what it measures, and what it leaves when it ends before its time.

use crate::mounts::Mount;
use crate::runs::{self, Budget, LIMIT, Scratch, Tree, finish, managing, signal_of, skip};
use pagekeeper_sys::cgroup::MemoryCgroup;
use rustix::process::{Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

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

/// A signal that came while the files' pages were dropped for a run left its cgroup behind.
#[test]
fn a_signal_before_a_run_leaves_no_cgroup() {
    let Some(cgroups) = cgroups().filter(|_| runs::ready()) else { return };
    let place = Scratch::new("tune-signal");
    // What opens it then waits for a writer.
    let script = "md5sum data; rm data; mkfifo data";
    let mut command = tune(&place, &["--policy", "lru"], script);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut tree = Tree::start(&mut command);
    let prefix = format!("pagekeeper-tune-{}-", tree.0.id());
    let made = || {
        let all = std::fs::read_dir(&cgroups).expect("a directory can be read").flatten();
        let numbers = all.filter_map(|entry| {
            entry.file_name().to_str()?.strip_prefix(&prefix)?.parse::<u32>().ok()
        });
        Vec::from_iter(numbers)
    };
    let start = Instant::now();
    // The first is one to see whether there can be any.
    while !made().iter().any(|number| *number > 0) {
        assert!(start.elapsed() < LIMIT, "a run is prepared");
        std::thread::yield_now();
    }
    kill_process(tree.pid(), Signal::TERM).expect("it is there");
    let status = tree.wait(LIMIT).expect("it ends");
    let left = made();
    for number in &left {
        let _ = std::fs::remove_dir(cgroups.join(format!("{prefix}{number}")));
    }
    assert_eq!((signal_of(status), left), (Some(Signal::TERM.as_raw()), Vec::new()));
}

/// Whether a process was started with this path among its arguments.
fn is_named_by_a_process(path: &Path) -> bool {
    let all = std::fs::read_dir("/proc").expect("it is mounted").flatten();
    all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .any(|line| String::from_utf8_lossy(&line).contains(&*path.to_string_lossy()))
}

/// An error of its own left the program running, without its scratch directory and its cgroup.
#[test]
fn a_run_that_cannot_be_compared_is_ended() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("tune-error");
    std::fs::create_dir(place.file("tmp")).expect("a directory can be made");
    // The second run's output is to be compared with one that is gone.
    let script = "md5sum data; [ -e ran ] && exec sleep 600; touch ran; rm tmp/*/output";
    let mut command = tune(&place, &["--policy", "lru", "--check"], script);
    command.env("TMPDIR", place.file("tmp")).stdin(Stdio::null()).stdout(Stdio::null());
    let errors = place.file("errors");
    command.stderr(std::fs::File::create(&errors).expect("a file can be made"));
    let mut tree = Tree::start(&mut command);
    let status = tree.wait(LIMIT).expect("it ends");
    let said = std::fs::read_to_string(&errors).expect("it is text");
    assert_eq!(status.code(), Some(74), "{said}");
    assert!(said.contains("a copy of the program's output"), "{said}");
    assert!(place.file("ran").exists());
    assert!(!is_named_by_a_process(&place.file("data")));
}

/// Later runs had what fitted of standard input, and were compared with the first.
#[test]
fn an_input_that_cannot_be_kept_for_all_runs_is_an_error() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("tune-input");
    let Some(small) = Mount::tmpfs(&place, "small", 1024) else { return };
    let mut command = tune(&place, &["--policy", "lru"], "cat data > /dev/null; wc -c");
    command.env("TMPDIR", small.path());
    let done = finish(&place, &mut command, &vec![b'x'; 4 << 20], LIMIT);
    assert_eq!(done.status.code(), Some(74), "{}", done.stderr);
    assert!(done.stderr.contains("No space left on device"), "{}", done.stderr);
    assert_eq!(done.text().trim(), (4 << 20).to_string(), "the first run has all of it");
}
