//! What whoever executed this process gave it, and what is meant for the program that it starts: what the
//! runtime has changed before `main`, and timers that would run out here.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU8, Ordering};

use crate::signal::is_ignored;

/// Signals of those that this process changes which were ignored, a bit each: Rust's runtime ignores SIGPIPE, and
/// who waits for a child may not ignore SIGCHLD.
static IGNORED: AtomicU8 = AtomicU8::new(0);
const CHANGED: [i32; 2] = [libc::SIGPIPE, libc::SIGCHLD];

/// Standard descriptors that were closed, a bit each: Rust's runtime opens `/dev/null` there.
static CLOSED: AtomicU8 = AtomicU8::new(0);
const STANDARD: [i32; 3] = [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO];

/// Called by the dynamic linker, before that.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_FIRST: extern "C" fn() = {
    extern "C" fn look() {
        note(&IGNORED, CHANGED, is_ignored);
        // SAFETY: asks whether the descriptor is one, and changes nothing.
        note(&CLOSED, STANDARD, |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1);
    }
    look
};

fn note<const N: usize>(noted: &AtomicU8, all: [i32; N], is_so: impl Fn(i32) -> bool) {
    let bits = (0..N).filter(|at| is_so(all[*at])).fold(0, |bits, at| bits | 1 << at);
    noted.store(bits, Ordering::Relaxed);
}

fn noted<const N: usize>(noted: &AtomicU8, all: [i32; N]) -> impl Iterator<Item = i32> {
    // So that it is linked.
    core::hint::black_box(&LOOK_FIRST);
    let bits = noted.load(Ordering::Relaxed);
    (0..N).filter(move |at| bits >> at & 1 != 0).map(move |at| all[at])
}

/// SIGPIPE and SIGCHLD, as far as they were ignored when this process was executed, as service managers have it.
pub fn ignored_signals() -> impl Iterator<Item = i32> {
    noted(&IGNORED, CHANGED)
}

/// Standard descriptors that were closed when this process was executed.
pub fn closed_descriptors() -> impl Iterator<Item = i32> {
    noted(&CLOSED, STANDARD)
}

/// The interval timers, `alarm(2)` among them, which stay when a process executes a program and which a child
/// does not have: of real time, of processor time, and of that with the kernel's.
#[derive(Clone, Copy, Debug)]
pub struct Timers([libc::itimerval; 3]);

const WHICH: [libc::c_int; 3] = [libc::ITIMER_REAL, libc::ITIMER_VIRTUAL, libc::ITIMER_PROF];

impl Timers {
    /// Stops this process's.
    pub fn stop() -> Timers {
        Timers(WHICH.map(|which| {
            let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
            let stopped = libc::itimerval { it_interval: never, it_value: never };
            let mut before = stopped;
            // SAFETY: one is read, and the other is written.
            unsafe { libc::setitimer(which, &stopped, &mut before) };
            before
        }))
    }

    /// Starts the calling process's with what was left, for a child between fork and exec.
    pub(crate) fn start(&self) {
        for (which, timer) in WHICH.into_iter().zip(&self.0) {
            // SAFETY: one is read and none is written.
            unsafe { libc::setitimer(which, timer, core::ptr::null_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_stopped_and_go_on() {
        let run = || {
            // SAFETY: a child of its own.
            let alarm = |seconds| unsafe { libc::alarm(seconds) };
            alarm(1000);
            let timers = Timers::stop();
            let stopped = alarm(0);
            timers.start();
            i32::from(stopped == 0 && (999..=1000).contains(&alarm(0)))
        };
        assert_eq!(crate::in_child::in_child(run), 1);
    }
}
