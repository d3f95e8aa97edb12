//! Changes of the address space by several threads: who moves memory does so beside nobody who gives some up.
//!
//! The kernel tells the manager of a change when it has released the address space, and so of two that follow
//! each other perhaps in the other order. A move to where another thread's memory was until now would be applied
//! first, and then to what moved there whatever the other thread did. Calls return when the manager has heard of
//! them. (A new mapping needs no turn: the manager enters it when no change is under way.)

use crate::memory::call::Mremap;
use crate::memory::mapping;
use crate::process::state::{self, State};
use crate::raw::{self, Lock, SignalsHeld};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use libc::c_int;

/// Whose turn it is. All zero: nobody changes anything.
#[repr(C)]
pub(crate) struct Turns {
    /// Held by the one that moves memory.
    mover: Lock,
    /// The thread that does ([`raw::thread`]), or 0. What it calls on its way may come here again: another
    /// library may stand behind this one that makes one call of another.
    moving: AtomicUsize,
    /// Calls under way that give addresses up. Who moves memory waits for them here.
    giving_up: AtomicU32,
}

impl Turns {
    fn is_own(&self) -> bool {
        self.moving.load(Ordering::SeqCst) == raw::thread()
    }

    fn enter(&self) {
        loop {
            self.giving_up.fetch_add(1, Ordering::SeqCst);
            if self.moving.load(Ordering::SeqCst) == 0 {
                return;
            }
            self.leave();
            drop(self.mover.lock());
        }
    }

    fn leave(&self) {
        if self.giving_up.fetch_sub(1, Ordering::SeqCst) == 1
            && self.moving.load(Ordering::SeqCst) != 0
        {
            raw::futex_wake(&self.giving_up);
        }
    }
}

/// Whether a mapping with these flags of `mmap(2)` replaces what is at its address.
pub(crate) fn replaces(flags: c_int) -> bool {
    flags & libc::MAP_FIXED != 0 && flags & libc::MAP_FIXED_NOREPLACE != libc::MAP_FIXED_NOREPLACE
}

/// The state, if a change of a range has to wait for its turn.
fn concerned(addr: usize, bytes: usize) -> Option<&'static State> {
    if !mapping::may_be_managed(addr, bytes.max(1)) || state::is_only_thread() {
        return None;
    }
    // Nothing is begun here, which may itself be what changes something. A vfork child has no turn: it might be
    // ended in the midst of it, and its parent would wait. Nor has who has the turn already.
    state::view().ready().filter(|state| !state.turns.is_own())
}

/// Makes a call by which a range is no longer what it was.
pub(crate) fn gives_up<T>(addr: usize, bytes: usize, call: impl FnOnce() -> T) -> T {
    let Some(State { turns, .. }) = concerned(addr, bytes) else { return call() };
    let _held = SignalsHeld::new();
    turns.enter();
    let result = call();
    turns.leave();
    result
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
    let Some(State { turns, .. }) = concerned(call.old, call.old_bytes).or_else(replaced) else {
        return mremap();
    };
    let _held = SignalsHeld::new();
    let _lock = turns.mover.lock();
    turns.moving.store(raw::thread(), Ordering::SeqCst);
    // Asleep: whom it waits for may have no other processor.
    while let others @ 1.. = turns.giving_up.load(Ordering::SeqCst) {
        raw::futex_wait(&turns.giving_up, others);
    }
    let result = mremap();
    turns.moving.store(0, Ordering::SeqCst);
    result
}
