//! A gate for the threads of a process: calls pass it beside each other, until one closes it and is alone.
//!
//! A call may be part of another one that passes, or that closed the gate: a library behind this one may make
//! one call of others, which come here again. The gate knows its threads, and such a call has nothing to wait for.

use crate::raw::{self, Lock, LockGuard, SignalsHeld};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// So many pass at a time. (The kernel has one lock for what they do.)
const PASSING_MAX: usize = 32;

/// All zero: it is open, and nobody passes.
#[repr(C)]
pub(crate) struct Gate {
    /// Held by the one that closes.
    lock: Lock,
    /// The thread that does ([`raw::thread`]), or 0.
    closer: AtomicUsize,
    /// Threads that pass, or are about to look whether they may.
    passing: AtomicU32,
    /// Which they are. There are at least as many places as count.
    threads: [AtomicUsize; PASSING_MAX],
}

impl Gate {
    /// Passes, once nobody has closed it. Signals are held back meanwhile: a handler that jumps away would pass
    /// for ever. None for what is part of a call that is inside already.
    pub(crate) fn pass(&self) -> Option<Passing<'_>> {
        let own = raw::thread();
        if self.has(own) {
            return None;
        }
        let held = SignalsHeld::new();
        loop {
            let place = self.enter(own);
            if self.closer.load(Ordering::SeqCst) == 0 {
                return Some(Passing { gate: self, place, _held: held });
            }
            self.leave(place);
            drop(self.lock.lock());
        }
    }

    /// Closes it, once nobody passes and nobody else has closed it; hold signals back until it is open again.
    /// None as in [`Gate::pass`].
    pub(crate) fn close(&self) -> Option<Closed<'_>> {
        let own = raw::thread();
        if self.has(own) {
            return None;
        }
        let lock = self.lock.lock();
        self.closer.store(own, Ordering::SeqCst);
        // Asleep: whom it waits for may have no other processor.
        while let others @ 1.. = self.passing.load(Ordering::SeqCst) {
            raw::futex_wait(&self.passing, others);
        }
        Some(Closed { gate: self, _lock: lock })
    }

    /// What [`Closed::keep`] gave up, in the same thread.
    pub(crate) fn resume(&self) -> Closed<'_> {
        Closed { gate: self, _lock: self.lock.resume() }
    }

    fn has(&self, thread: usize) -> bool {
        let is_own = |who: &AtomicUsize| who.load(Ordering::Relaxed) == thread;
        is_own(&self.closer)
            || self.passing.load(Ordering::Relaxed) != 0 && self.threads.iter().any(is_own)
    }

    /// Counts the thread among those that pass; returns its place.
    fn enter(&self, own: usize) -> &AtomicUsize {
        let one_more = |passing: u32| (passing < PASSING_MAX as u32).then_some(passing + 1);
        while let Err(all) = self.passing.try_update(Ordering::SeqCst, Ordering::Relaxed, one_more)
        {
            raw::futex_wait(&self.passing, all);
        }
        let is_free = |place: &&AtomicUsize| {
            place.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        loop {
            // Who goes leaves its place first: there is one, if perhaps not where it has been looked for.
            if let Some(place) = self.threads.iter().find(is_free) {
                return place;
            }
        }
    }

    fn leave(&self, place: &AtomicUsize) {
        place.store(0, Ordering::Release);
        let before = self.passing.fetch_sub(1, Ordering::SeqCst);
        if before as usize == PASSING_MAX || self.closer.load(Ordering::SeqCst) != 0 {
            raw::futex_wake_all(&self.passing);
        }
    }
}

/// A call that passes.
pub(crate) struct Passing<'a> {
    gate: &'a Gate,
    place: &'a AtomicUsize,
    _held: SignalsHeld,
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.gate.leave(self.place);
    }
}

/// A call that is alone.
pub(crate) struct Closed<'a> {
    gate: &'a Gate,
    _lock: LockGuard<'a>,
}

impl Closed<'_> {
    /// Keeps it closed, beyond this value's life.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.gate.closer.store(0, Ordering::SeqCst);
    }
}
