//! `pagekeeper hipec run --watch`: each save of a program is tried at once.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

const FIFO: &str = "Queue all;
Event PageFault() { EnQueue(FaultedPage, all, TAIL); }
Event Reference() { EnQueue(FaultedPage, all, TAIL); }
Event Replace() { return DeQueue(all, HEAD); }
";

struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn each_save_is_compared_with_the_last_and_with_lru_and_opt() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let looped: String = (0..4).flat_map(|_| (0..10).map(|page| format!("{page}\n"))).collect();
    put("loop.txt", &looped);
    put("mine.hipec", FIFO);
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagekeeper"));
    command.current_dir(folder.path());
    command.args(["hipec", "run", "mine.hipec", "loop.txt", "--frames", "8", "--watch"]);
    let mut child = Killed(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();

    let first = "loop in 8 frames: 40 references; lru has 40 faults, opt 16";
    assert_eq!(next(), first);
    assert_eq!(next(), "mine.hipec: 40 faults, as many as lru, 24 more than opt");
    put("mine.hipec", &FIFO.replace("HEAD", "HAED"));
    assert!(next().starts_with("error[H"));
    let mut shown = next();
    while !shown.is_empty() && !shown.contains("help") {
        shown = next();
    }
    put("mine.hipec", &FIFO.replace("HEAD", "TAIL"));
    let expected = "mine.hipec: 16 faults, 24 fewer than the last save; 24 fewer than lru, as many \
                    as opt";
    loop {
        let line = next();
        if line.starts_with("mine.hipec:") {
            assert_eq!(line, expected);
            break;
        }
    }
    let pid = rustix::process::Pid::from_child(&child.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    // In a job in the background, which ignores it, Ctrl-C never comes.
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(!child.0.wait().unwrap().success(), "Ctrl-C ends it");
}
