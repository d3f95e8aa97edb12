//! Signals reach the program, and how it ended is how the run ends.

use crate::runs::{self, Budget, LIMIT, Scratch, Session, Tree, command, finish};
use rustix::process::{Signal, kill_process};
use std::io::Read;
use std::process::{Command, Stdio};

/// What this process ignores, the programs that it starts ignore too.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("SigIgn");
    let mask = u64::from_str_radix(mask.trim(), 16).expect("a mask in hexadecimal");
    mask >> (signal.as_raw() - 1) & 1 == 1
}

#[test]
fn signals_reach_the_program_and_its_end_is_reported() {
    if !runs::ready() {
        return;
    }
    // A handler of the program's own.
    let place = Scratch::new("signals");
    let mut managed = command(&place, Some(&Budget::kib(256)), "sh");
    managed.args(["-c", "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done"]);
    let mut tree = Tree::start(managed.stdin(Stdio::null()).stdout(Stdio::piped()));
    let mut out = tree.0.stdout.take().unwrap();
    let mut ready = [0u8; 6];
    out.read_exact(&mut ready).unwrap();
    kill_process(tree.pid(), Signal::TERM).unwrap();
    assert_eq!(tree.wait(LIMIT).expect("the run ends").code(), Some(7));
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "bye\n");

    // None: the run dies as the program does, after everything was written.
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        if is_ignored(signal) {
            eprintln!("{signal:?} is ignored in here (a job in the background): not sent");
            continue;
        }
        let place = Scratch::new("signalled");
        let mut session = Session::managed(&place, Budget::kib(256));
        session.expect("open 1 a rwct", "ok");
        session.expect("truncate 1 40000", "ok");
        session.expect("map 1 1 0 40000 rw shared", "ok");
        session.expect("put 1 20000 9", "ok");
        kill_process(session.tree.pid(), signal).unwrap();
        let status = session.tree.wait(LIMIT).expect("the run ends");
        assert_eq!(runs::signal_of(status), Some(signal.as_raw()));
        assert_eq!(place.get("a")[20000], 9);
    }
}

/// Of other signals the manager died, and the program with it, or the program heard nothing.
#[test]
fn every_signal_that_can_be_caught_is_passed_on() {
    if !runs::ready() {
        return;
    }
    for name in ["WINCH", "ALRM", "PROF", "PWR", "IO", "RTMIN", "RTMIN+3", "RTMAX"] {
        let place = Scratch::new("passed-on");
        let mut managed = command(&place, Some(&Budget::kib(256)), "bash");
        let script = format!("trap 'exit 7' {name}; echo ready; while :; do sleep 0.05; done");
        managed.args(["-c", &script]);
        let mut tree = Tree::start(managed.stdin(Stdio::null()).stdout(Stdio::piped()));
        tree.0.stdout.take().unwrap().read_exact(&mut [0u8; 6]).unwrap();
        let sent =
            Command::new("bash").args(["-c", &format!("kill -{name} {}", tree.pid())]).status();
        assert!(sent.unwrap().success());
        assert_eq!(tree.wait(LIMIT).expect("the run ends").code(), Some(7), "{name}");
    }
}

/// Somebody outside of a container has no process id in it, as the kernel has none: what `docker stop` sends
/// did not reach the program.
#[test]
fn a_signal_from_another_pid_namespace_is_passed_on() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("namespace");
    let managed = command(&place, Some(&Budget::kib(256)), "sh");
    let mut outside = Command::new("unshare");
    outside.args(["--pid", "--fork", "--mount-proc"]).arg(managed.get_program());
    outside.args(managed.get_args());
    outside.args(["-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done"]);
    outside.current_dir(place.path());
    for (name, value) in managed.get_envs() {
        outside.env(name, value.expect("nothing is taken out"));
    }
    let mut tree = Tree::start(outside.stdin(Stdio::null()).stdout(Stdio::piped()));
    if tree.0.stdout.take().unwrap().read_exact(&mut [0u8; 6]).is_err() {
        return runs::skip("no namespace of process ids can be made here");
    }
    let children = format!("/proc/{0}/task/{0}/children", tree.pid());
    let first = std::fs::read_to_string(children).unwrap();
    let pid = first.split(' ').next().unwrap().parse().expect("a process id");
    kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    assert_eq!(tree.wait(LIMIT).expect("the run ends").code(), Some(7));
}

/// When a terminal is gone its session's leader hears of it alone: a run that was that went on for ever.
#[test]
fn a_terminal_that_hangs_up_ends_the_run_that_leads_its_session() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("hang-up");
    // `script` ends without its terminal when its own input does.
    let managed = command(&place, Some(&Budget::kib(256)), "sh");
    // (Whoever runs the tests may ignore the signal: `nohup`.)
    let python = "import os, pty, signal, sys, time\n\
        signal.signal(signal.SIGHUP, signal.SIG_DFL)\n\
        child, terminal = pty.fork()\n\
        if child == 0: os.execvp(sys.argv[1], sys.argv[1:])\n\
        assert b'ready' in os.read(terminal, 100)\n\
        os.close(terminal)\n\
        for _ in range(400):\n    \
            ended, status = os.waitpid(child, os.WNOHANG)\n    \
            if ended: sys.exit(os.WTERMSIG(status) or 100 + os.WEXITSTATUS(status))\n    \
            time.sleep(0.05)\n\
        os.kill(child, 9)\n";
    let mut leader = Command::new("python3");
    leader.args(["-c", python]).arg(managed.get_program()).args(managed.get_args());
    leader.args(["-c", "echo ready; while :; do sleep 0.05; done"]).current_dir(place.path());
    for (name, value) in managed.get_envs() {
        leader.env(name, value.expect("nothing is taken out"));
    }
    let mut tree = Tree::start(leader.stdin(Stdio::null()));
    let status = tree.wait(LIMIT).expect("the run ends");
    assert_eq!(status.code(), Some(Signal::HUP.as_raw()), "{status:?}");
}

#[test]
fn exit_codes_and_deaths_are_the_programs() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("codes");
    let run = |script: &str| {
        let mut command = command(&place, Some(&Budget::kib(256)), "sh");
        command.args(["-c", script]);
        finish(&place, &mut command, b"in\n", LIMIT)
    };
    let done = run("cat; echo err >&2; exit 42");
    assert_eq!((done.status.code(), done.text().as_str()), (Some(42), "in\n"));
    assert!(done.stderr.starts_with("err\n"));
    assert_eq!(runs::signal_of(run("kill -SEGV $$").status), Some(11));
    assert_eq!(runs::signal_of(run("kill -KILL $$").status), Some(9));
    // Those that the manager takes for itself, too.
    assert_eq!(run("grep SigBlk /proc/self/status").text(), "SigBlk:\t0000000000000000\n");
}
