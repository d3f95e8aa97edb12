//! What a program is given by who starts it, its limits and signals, is its own, and not the manager's.

use crate::runs::{self, LIMIT, Scratch, Tree};
use rustix::process::{Signal, kill_process};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// A program that says what it was given, after it has read a file of 8 MiB.
const TELLS: &str = "cat big.dat >/dev/null && ulimit -f && ulimit -t && \
    grep -E 'SigBlk|SigIgn' /proc/self/status";

/// `before` in a shell, which then becomes the program, or a manager with it.
fn started(place: &Path, before: &str, managed: bool, program: &str) -> Output {
    let mut command = Command::new("sh");
    command.current_dir(place).arg("-c").arg(format!("{before}; exec \"$@\"")).arg("sh");
    if managed {
        command.arg(runs::pagekeeper()).args(["run", "--config", "/dev/null", "--policy", "lru"]);
        command.args(["--memory", "1M", "--min-size", "0", "--files", "*.dat", "--"]);
        command.env("PAGEKEEPER_PRELOAD", runs::preload());
    }
    command.args(["sh", "-c", program]).output().expect("a shell can be started")
}

fn place(name: &str) -> Scratch {
    let place = Scratch::new(name);
    std::fs::write(place.path().join("big.dat"), vec![7; 8 << 20]).unwrap();
    place
}

/// A service manager starts programs with SIGPIPE ignored: one under a manager died of the first client that
/// hung up. A limit of the length of files was that of the memory in which its pages are kept: SIGXFSZ.
#[test]
fn limits_and_signals_are_the_programs() {
    if !runs::ready() {
        return;
    }
    let place = place("given");
    for before in ["true", "trap '' PIPE", "trap '' INT HUP", "ulimit -S -f 1024; ulimit -S -t 900"]
    {
        let [plain, managed] =
            [false, true].map(|managed| started(place.path(), before, managed, TELLS));
        let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(plain.status.success());
        assert_eq!(text(&managed), text(&plain), "after {before}: {managed:?}");
        assert_eq!(managed.status, plain.status);
    }
}

/// What cannot be lifted is said before anything is begun.
#[test]
fn limits_that_leave_no_room_for_a_manager_are_told() {
    if !runs::ready() {
        return;
    }
    let place = place("limits");
    for (before, words) in [
        ("ulimit -f 1024", "ulimit -f"),
        ("ulimit -n 20", "ulimit -n"),
        ("ulimit -s 100", "ulimit -s"),
        ("ulimit -v 300000", "ulimit -v"),
    ] {
        let done = started(place.path(), before, true, "cat big.dat >/dev/null && echo read");
        let error = String::from_utf8_lossy(&done.stderr);
        // Who may lift any limit does.
        let is_lifted = done.status.success() && done.stdout == b"read\n";
        assert!(is_lifted || done.status.code() == Some(69) && error.contains(words), "{done:?}");
    }
}

/// The manager ended, and the program with it, where it could start no threads.
#[test]
fn without_threads_for_the_manager_the_program_goes_on_without_it() {
    if !runs::ready() {
        return;
    }
    let place = place("threads");
    for kib in [4_000, 10_000, 30_000] {
        let before = format!("ulimit -d {kib}");
        let done = started(place.path(), &before, true, "cat big.dat | cksum");
        let plain = started(place.path(), &before, false, "cat big.dat | cksum");
        let error = String::from_utf8_lossy(&done.stderr);
        let began = !error.contains("cannot be");
        assert_eq!(done.stdout, plain.stdout, "{kib} KiB, {began}: {error}");
        assert_eq!(done.status, plain.status, "{kib} KiB: {error}");
    }
}

/// A program that says which process it is, and ends when somebody that it leaves behind has read of a
/// managed file.
const LEAVES: &str = "tail -f -c 1 big.dat >seen & while ! test -s seen; do sleep 0.01; done; \
    echo $$ >begun && mv begun program";

/// A run that waited for a program's daemon could be ended by SIGKILL alone, which stops all of it.
#[test]
fn signals_reach_what_the_program_left_behind() {
    if !runs::ready() {
        return;
    }
    let place = place("left-behind");
    let mut command = Command::new(runs::pagekeeper());
    command.current_dir(place.path()).args(["run", "--config", "/dev/null", "--policy", "lru"]);
    command.args(["--memory", "1M", "--files", "*.dat", "--", "sh", "-c", LEAVES]);
    let mut tree = Tree::start(command.env("PAGEKEEPER_PRELOAD", runs::preload()));
    let begun = Instant::now();
    let has_ended = || {
        let program = std::fs::read_to_string(place.path().join("program")).ok();
        program.is_some_and(|pid| !Path::new("/proc").join(pid.trim()).exists())
    };
    while !has_ended() {
        assert!(begun.elapsed() < LIMIT, "the program does not end");
        std::thread::sleep(Duration::from_millis(3));
    }
    assert_eq!(tree.wait(Duration::from_millis(300)), None, "what is left behind is waited for");
    kill_process(tree.pid(), Signal::TERM).expect("it waits");
    let status = tree.wait(LIMIT).expect("it ends with what was left behind");
    assert!(status.success(), "{status}");
}
