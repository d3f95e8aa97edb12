//! Changes of the address space by several threads: who moves memory does so beside nobody who gives some up.
//!
//! The kernel tells the manager of a change when it has released the address space, and so of two that follow
//! each other perhaps in the other order. A move to where another thread's memory was until now would be applied
//! first, and then to what moved there whatever the other thread did. Calls return when the manager has heard of
//! them. (A new mapping needs no turn: the manager enters it when no change is under way.)
//!
//! A fork is told of when the address space has been released as well, and the child has what was there before:
//! it goes beside nobody either.

use crate::memory::call::Mremap;
use crate::memory::gate::Gate;
use crate::memory::mapping;
use crate::process::state;
use crate::raw::{self, SignalsHeld};
use libc::c_int;

/// Whether a mapping with these flags of `mmap(2)` replaces what is at its address.
pub(crate) fn replaces(flags: c_int) -> bool {
    flags & libc::MAP_FIXED != 0 && flags & libc::MAP_FIXED_NOREPLACE != libc::MAP_FIXED_NOREPLACE
}

/// Where a change of a range has to wait for its turn, if it has to.
fn concerned(addr: usize, bytes: usize) -> Option<&'static Gate> {
    if !mapping::may_be_managed(addr, bytes.max(1)) || state::is_only_thread() {
        return None;
    }
    // Nothing is begun here, which may itself be what changes something. A vfork child has no turn: it might be
    // ended in the midst of it, and its parent would wait.
    state::view().ready().map(|state| &state.turns)
}

/// Makes a call by which a range is no longer what it was.
pub(crate) fn gives_up<T>(addr: usize, bytes: usize, call: impl FnOnce() -> T) -> T {
    let _passing = concerned(addr, bytes).and_then(Gate::pass);
    call()
}

/// Makes an `mmap(2)` with these flags, which may replace what is there.
pub(crate) fn maps<T>(addr: usize, bytes: usize, flags: c_int, mmap: impl FnOnce() -> T) -> T {
    if replaces(flags) { gives_up(addr, bytes, mmap) } else { mmap() }
}

/// Unmaps a range of ours.
pub(crate) fn unmap(addr: usize, bytes: usize) {
    gives_up(addr, bytes, || raw::munmap(addr, bytes));
}

/// Makes an `mremap(2)` with these arguments.
pub(crate) fn moves<T>(call: &Mremap, mremap: impl FnOnce() -> T) -> T {
    if !call.may_move() {
        return gives_up(call.old, call.old_bytes, mremap);
    }
    let replaced = || call.target().and_then(|target| concerned(target, call.new_bytes));
    let Some(gate) = concerned(call.old, call.old_bytes).or_else(replaced) else { return mremap() };
    let _held = SignalsHeld::new();
    let _alone = gate.close();
    mremap()
}

/// Whether a fork has to wait for its turn.
pub(crate) fn concern_forks() -> bool {
    mapping::any() && !state::is_only_thread()
}
