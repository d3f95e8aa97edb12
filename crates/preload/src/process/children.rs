//! Children that this process waits for.
//!
//! Under the kernel, what a process was writing when it was killed, or when another of its threads ended
//! it, is written or will never be when its parent knows of its end. Here a page that was in memory is
//! brought up to date when the manager has heard of it: who knows of an end has the manager finish that
//! first.

use crate::descriptors::table;
use crate::link::board;
use crate::link::connection::ask;
use crate::memory::mapping;
use crate::process::state::{self, View};
use crate::real;
use libc::{c_int, id_t, idtype_t, pid_t, rusage, siginfo_t};
use pagekeeper_wire::{Op, Request};

/// The status of a child that has not ended.
const STOPPED: c_int = 0x7f;

/// `wait4(2)`.
pub(crate) fn wait(child: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t {
    let mut own = 0;
    let status = if status.is_null() { &raw mut own } else { status };
    let waited_for = real::wait4(child, status, options, usage);
    // SAFETY: our own, or the program's, where the kernel has just stored.
    let status = if waited_for > 0 { unsafe { status.read() } } else { STOPPED };
    if libc::WIFSIGNALED(status) || libc::WIFEXITED(status) {
        settle();
    }
    waited_for
}

/// `waitid(2)`.
pub(crate) fn wait_for_state(
    of: idtype_t,
    id: id_t,
    info: *mut siginfo_t,
    options: c_int,
) -> c_int {
    // SAFETY: integers and padding, for which zero is valid.
    let mut own: siginfo_t = unsafe { core::mem::zeroed() };
    let info = if info.is_null() { &raw mut own } else { info };
    let result = real::waitid(of, id, info, options);
    if result == 0 {
        // SAFETY: our own, or the program's, where the kernel has just stored. Zero if nobody changed
        // its state.
        let (code, pid) = unsafe { ((*info).si_code, (*info).si_pid()) };
        if pid > 0 && matches!(code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED) {
            settle();
        }
    }
    result
}

/// Somebody has ended: what it was writing is to be seen now, or never; and what it had stored is to be in
/// its file, since whoever waited may hold the lock for that (a shell, around a program).
fn settle() {
    let may_be_stored = board::may_be_stored();
    let state = match state::view() {
        View::Ready(state) if may_be_stored || mapping::any() || table::any_active() => Some(state),
        View::Fresh if may_be_stored => state::current(),
        _ => None,
    };
    if let Some(state) = state {
        let _ = ask(state, &Request::new(Op::AwaitDead));
    }
}
