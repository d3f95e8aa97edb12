//! How much memory of its own a tree of processes uses at its most.

use crate::failure::Failure;
use crate::threads;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(20);
/// More processes than this are not looked at: the rest counts nothing.
const PROCESSES_MAX: usize = 4096;

/// Looks at a process and its descendants from time to time, until asked for the peak.
pub(super) struct Peak {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Peak {
    /// Starts looking.
    pub(super) fn of_tree(pid: u32) -> Result<Peak, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = threads::start("pk-peak", move || {
            let mut peak_bytes = 0;
            while !stopped.load(Ordering::Relaxed) {
                peak_bytes = peak_bytes.max(anonymous_bytes(pid));
                std::thread::sleep(EVERY);
            }
            peak_bytes
        })?;
        Ok(Peak { stop, thread })
    }

    /// The most anonymous memory that was resident at once, in bytes.
    pub(super) fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the looking thread does not panic")
    }
}

fn anonymous_bytes(root: u32) -> u64 {
    let mut processes = vec![root];
    let mut sum_bytes = 0;
    let mut next = 0;
    while let Some(&pid) = processes.get(next) {
        next += 1;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let kib =
            status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.split(' ').rev().nth(1));
        sum_bytes += kib.and_then(|k| k.trim().parse::<u64>().ok()).unwrap_or(0) << 10;
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let room = PROCESSES_MAX.saturating_sub(processes.len());
            processes.extend(
                children.split(' ').filter_map(|c| c.trim().parse::<u32>().ok()).take(room),
            );
        }
    }
    sum_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn memory_of_descendants_counts() {
        let own = anonymous_bytes(std::process::id());
        assert!(own > 0);
        let mut child = Command::new("sh")
            .args([
                "-c",
                "x=$(head -c 20000000 /dev/zero | tr '\\0' x); echo done; read y; echo $x$y",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 5];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let peak = Peak::of_tree(std::process::id()).unwrap();
        std::thread::sleep(3 * EVERY);
        assert!(peak.finish() >= 20_000_000);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
