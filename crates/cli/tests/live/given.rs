//! What a program is given by who starts it, its limits and signals, is its own, and not the manager's.

use crate::runs::{self, LIMIT, Scratch, Tree};
use rustix::process::{Signal, kill_process};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// A program that says what it was given, after it has read a file of 8 MiB.
const TELLS: &str = "cat big.dat >/dev/null && ulimit -f && ulimit -t && \
    grep -E 'SigBlk|SigIgn' /proc/self/status";

/// A shell does not ignore it.
const NO_CHILDREN: &str = "set -- env --ignore-signal=CHLD \"$@\"";

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
    let limits = "ulimit -S -f 1024; ulimit -S -t 900";
    for before in ["true", "trap '' PIPE", "trap '' INT HUP", NO_CHILDREN, limits] {
        let [plain, managed] =
            [false, true].map(|managed| started(place.path(), before, managed, TELLS));
        let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(plain.status.success());
        assert_eq!(text(&managed), text(&plain), "after {before}: {managed:?}");
        assert_eq!(managed.status, plain.status);
    }
}

/// Of a program whose parent ignored SIGCHLD, and so the manager, nobody knew how it had ended: the run's exit
/// code was 1, whatever the program's was.
#[test]
fn an_exit_code_is_the_programs_though_nobody_hears_of_children() {
    if !runs::ready() {
        return;
    }
    let place = place("children");
    for (program, code, signal) in [("exit 3", Some(3), None), ("kill -9 $$", None, Some(9))] {
        let program = format!("cat big.dat >/dev/null; {program}");
        let done = started(place.path(), NO_CHILDREN, true, &program);
        let status = done.status;
        assert_eq!((status.code(), runs::signal_of(status)), (code, signal), "{done:?}");
        assert_eq!(String::from_utf8_lossy(&done.stderr), "");
    }
}

/// `perl -e 'alarm 10; exec @ARGV' PROGRAM`: the manager heard of the time being over, took it for the terminal's
/// word, and the program went on. One that stops the timer that it was given could not.
#[test]
fn an_alarm_is_the_programs() {
    if !runs::ready() {
        return;
    }
    let place = place("alarm");
    let alarm = runs::compiled("alarm.c", &[], "alarm").display().to_string();
    let before = |seconds: u32| format!("set -- {alarm} {seconds} \"$@\"");
    for managed in [false, true] {
        let done = started(place.path(), &before(1000), managed, &format!("exec {alarm}"));
        let left = String::from_utf8_lossy(&done.stdout);
        assert!(["999\n", "1000\n"].contains(&&*left), "managed {managed}: {done:?}");
        let sleeps = "cat big.dat >/dev/null; exec sleep 60";
        let status = started(place.path(), &before(1), managed, sleeps).status;
        assert_eq!(runs::signal_of(status), Some(14), "managed {managed}");
    }
}

/// They were `/dev/null`, which can be read and written.
#[test]
fn closed_descriptors_are_closed() {
    if !runs::ready() {
        return;
    }
    let place = place("closed");
    let tells = "cat big.dat >&4; for fd in 0 1 2 3; do [ -e /proc/self/fd/$fd ] && echo $fd >&3; done; true";
    for closes in ["true", "exec <&-", "exec >&-", "exec 2>&-", "exec <&- >&- 2>&-"] {
        let before = format!("exec 3>&1 4>/dev/null; {closes}");
        let [plain, managed] =
            [false, true].map(|managed| started(place.path(), &before, managed, tells));
        assert_eq!(managed, plain, "after {closes}");
        assert_eq!(plain.stdout.ends_with(b"3\n"), plain.status.success(), "{plain:?}");
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
