//! What a launcher sets on itself, and its children.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::Signal;
use rustix::thread::CpuSet;

use super::{errno, pid, read_proc, stat_field};
use crate::{Errno, Result};

/// Binds the calling thread to one processor.
///
/// # Errors
/// [`Errno::INVAL`]: it does not exist or is not permitted.
pub fn set_affinity(cpu: u32) -> Result<()> {
    if cpu as usize >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL);
    }
    let mut set = CpuSet::new();
    set.set(cpu as usize);
    rustix::thread::sched_setaffinity(None, &set)
}

/// Binds the calling thread to a set of processors.
///
/// # Errors
/// As for [`set_affinity`].
pub fn set_affinity_to(cpus: &[u32]) -> Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|cpu| (**cpu as usize) < CpuSet::MAX_CPU) {
        set.set(cpu as usize);
    }
    rustix::thread::sched_setaffinity(None, &set)
}

/// The processors that the calling thread may run on.
///
/// # Errors
/// As `sched_getaffinity(2)`.
pub fn affinity() -> Result<Vec<u32>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu as u32).collect())
}

/// Names the calling thread, for `ps` and `top`; at most 15 bytes count.
///
/// # Errors
/// [`Errno::INVAL`]: a NUL in it.
pub fn set_name(name: &str) -> Result<()> {
    rustix::thread::set_name(&CString::new(name).map_err(|_| Errno::INVAL)?)
}

/// `prctl(2)` PR_SET_PDEATHSIG: the calling process gets this signal when the *thread* that
/// started it ends. Lost when a set-user-id program is executed.
///
/// # Errors
/// [`Errno::INVAL`]: no such signal.
pub fn set_parent_death_signal(signal: i32) -> Result<()> {
    let signal = Signal::from_named_raw(signal).ok_or(Errno::INVAL)?;
    rustix::process::set_parent_process_death_signal(Some(signal))
}

/// `setsid(2)`: leaves the terminal and the process group.
///
/// # Errors
/// [`Errno::PERM`]: a process group leader cannot.
pub fn setsid() -> Result<()> {
    rustix::process::setsid().map(drop)
}

/// Makes a child that runs `f` in a copy of this process's memory, without its descriptors, and ends
/// then, or with this process, a moment later.
///
/// # Errors
/// [`Errno::BUSY`]: this process has more than one thread, whose locks the child would find taken for
/// ever; [`Errno::AGAIN`], [`Errno::NOMEM`].
pub fn fork(f: impl FnOnce()) -> Result<Child> {
    check_alone()?;
    fork_alone(|| {
        let ends_with_parent = set_parent_death_signal(libc::SIGKILL).is_ok();
        close_range(0, libc::c_int::MAX);
        if ends_with_parent {
            f();
        }
    })
}

/// Makes a child that runs `f` in a copy of this process's memory, and outlives this process. Of its
/// descriptors it has the given one and standard error.
///
/// # Errors
/// As [`fork`]; those of `/dev/null`.
pub fn fork_with(kept: OwnedFd, f: impl FnOnce(OwnedFd)) -> Result<Child> {
    check_alone()?;
    let null =
        fs::File::options().read(true).write(true).open("/dev/null").map_err(|e| errno(&e))?;
    fork_alone(|| {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let number = kept.as_raw_fd();
        close_range(libc::STDERR_FILENO + 1, number - 1);
        close_range(number + 1, libc::c_int::MAX);
        f(kept);
    })
}

/// A child of [`fork`] or [`fork_with`].
#[derive(Debug)]
pub struct Child {
    id: u32,
    ended: bool,
}

impl Child {
    /// Its process id, which is no other process's before its end was seen.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.look(rustix::process::WaitOptions::NOHANG);
        self.ended
    }

    /// Waits for its end.
    pub fn wait(&mut self) {
        while !self.ended {
            self.look(rustix::process::WaitOptions::empty());
        }
    }

    /// Ends it at once, and waits until it is gone.
    pub fn kill(&mut self) {
        if !self.has_ended() {
            let _ = crate::signal::send(self.id, libc::SIGKILL);
        }
        self.wait();
    }

    fn look(&mut self, how: rustix::process::WaitOptions) {
        self.ended = self.ended
            || match rustix::process::waitpid(pid(self.id).ok(), how) {
                Ok(ended) => ended.is_some(),
                Err(error) => error != Errno::INTR,
            };
    }
}

fn check_alone() -> Result<()> {
    let threads = fs::read_dir("/proc/self/task").map_err(|e| errno(&e))?.count();
    if threads == 1 { Ok(()) } else { Err(Errno::BUSY) }
}

/// Calls `f` in a child of this process, which has but one thread, and ends it.
fn fork_alone(f: impl FnOnce()) -> Result<Child> {
    // SAFETY: no other thread exists, so the child's memory is that of a whole program.
    let id = crate::check(unsafe { libc::fork() })?;
    if id == 0 {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        // SAFETY: ends the process, and runs nothing else.
        unsafe { libc::_exit(0) };
    }
    Ok(Child { id: id as u32, ended: false })
}

/// For a forked child, which uses none of these.
fn close_range(first: libc::c_int, last: libc::c_int) {
    if first <= last {
        // SAFETY: nothing in this process uses such a descriptor from here on but what is opened.
        unsafe { libc::close_range(first as libc::c_uint, last as libc::c_uint, 0) };
    }
}

/// Names this process in `/proc/PID/cmdline`, for `ps` and `pkill`, in place of the command line that
/// it was started with, as far as that is long.
///
/// # Errors
/// `/proc` cannot be used.
pub fn set_title(title: &str) -> Result<()> {
    let stat = read_proc("/proc/self/stat")?;
    let place = |n| stat_field(&stat, n).ok_or(Errno::PROTO);
    let (start, end): (u64, u64) = (place(48)?, place(49)?);
    let mut words = title.replace(' ', "\0").into_bytes();
    words.resize(end.saturating_sub(start) as usize, 0);
    // What this process has been told is read once, at its start.
    let memory = fs::File::options().write(true).open("/proc/self/mem").map_err(|e| errno(&e))?;
    std::os::unix::fs::FileExt::write_all_at(&memory, &words, start).map_err(|e| errno(&e))
}

/// Blanks a variable out in `/proc/PID/environ`, where others find what this process was started with,
/// and in what this process finds of it from now on.
///
/// # Errors
/// `/proc` cannot be used.
pub fn hide_variable(name: &str) -> Result<()> {
    let environ = fs::read("/proc/self/environ").map_err(|e| errno(&e))?;
    let start: u64 = stat_field(&read_proc("/proc/self/stat")?, 50).ok_or(Errno::PROTO)?;
    let memory = fs::File::options().write(true).open("/proc/self/mem").map_err(|e| errno(&e))?;
    let mut at = start;
    for entry in environ.split(|byte| *byte == 0) {
        let value = entry.strip_prefix(name.as_bytes());
        if value.is_some_and(|value| value.starts_with(b"=")) {
            let blank = vec![0; entry.len()];
            // Nobody holds a reference into it: what is asked for is copied.
            std::os::unix::fs::FileExt::write_all_at(&memory, &blank, at).map_err(|e| errno(&e))?;
        }
        at += entry.len() as u64 + 1;
    }
    Ok(())
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
}

/// `waitpid(2)` for any child that has ended, without waiting: reaps it. `None` if none has.
///
/// # Errors
/// [`Errno::CHILD`]: there are no children.
pub fn reap() -> Result<Option<(u32, Exit)>> {
    let ended = rustix::process::wait(rustix::process::WaitOptions::NOHANG)?;
    Ok(ended.and_then(|(pid, status)| {
        let exit = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(signal),
            (None, None) => return None,
        };
        Some((pid.as_raw_nonzero().get() as u32, exit))
    }))
}
