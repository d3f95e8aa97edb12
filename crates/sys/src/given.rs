//! What whoever executed this process gave it, and what is meant for the program that it starts: what the
//! runtime has changed before `main`, and timers that would run out here.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::signal::is_ignored;

/// Whether SIGPIPE was ignored: Rust's runtime ignores it.
static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// A bit for each of the three standard descriptors that was closed: Rust's runtime opens `/dev/null` there.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Called by the dynamic linker, before that.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_FIRST: extern "C" fn() = {
    extern "C" fn look() {
        PIPE_WAS_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
        // SAFETY: asks whether the descriptor is one, and changes nothing.
        let is_closed = |fd: &u8| unsafe { libc::fcntl(i32::from(*fd), libc::F_GETFD) } == -1;
        let closed = (0..3_u8).filter(is_closed).fold(0, |bits, fd| bits | 1 << fd);
        CLOSED.store(closed, Ordering::Relaxed);
    }
    look
};

/// Whether SIGPIPE was ignored when this process was executed, as service managers have it.
pub fn pipe_was_ignored() -> bool {
    // So that it is linked.
    core::hint::black_box(&LOOK_FIRST);
    PIPE_WAS_IGNORED.load(Ordering::Relaxed)
}

/// Standard descriptors that were closed when this process was executed.
pub fn closed_descriptors() -> impl Iterator<Item = i32> {
    core::hint::black_box(&LOOK_FIRST);
    let closed = CLOSED.load(Ordering::Relaxed);
    (0..3).filter(move |fd| closed & 1 << fd != 0)
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
            let mut before = MaybeUninit::new(stopped);
            // SAFETY: both are initialised, and live as long as the call.
            unsafe {
                libc::setitimer(which, &stopped, before.as_mut_ptr());
                before.assume_init()
            }
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
