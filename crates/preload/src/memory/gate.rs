//! A gate for the threads of a process: calls pass it beside each other, until one closes it and is alone.
//!
//! A call may be part of another one that passes, or that closed the gate: a library behind this one may make
//! one call of others, which come here again. The gate knows its threads, and such a call has nothing to wait for.

use crate::raw::{self, Lock, LockGuard, SignalsHeld};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// So many pass at a time. (The kernel has one lock for what they do.)
const PASSING_MAX: usize = 32;
/// How long to wait for one that [keeps](Closed::keep) it closed.
const PATIENCE_NS: u32 = 20_000_000;

/// [`Gate::closed_by`]: somebody whose calls are this library's, who opens it again soon.
const SEEN: u32 = 0;
/// Somebody who does what this library does not see.
const KEPT: u32 = 1;
/// Such a one that seems to wait for who would pass.
const WAITS: u32 = 2;

/// All zero: it is open, and nobody passes.
#[repr(C)]
pub(crate) struct Gate {
    /// Held by the one that closes.
    lock: Lock,
    /// The thread that does ([`raw::thread`]), or 0.
    closer: AtomicUsize,
    /// One of [`SEEN`], [`KEPT`] and [`WAITS`].
    closed_by: AtomicU32,
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
            if self.take_lock().is_none() {
                return Some(Passing { gate: self, place: self.enter(own), _held: held });
            }
        }
    }

    /// Closes it, once nobody passes and nobody else has closed it; hold signals back until it is open again.
    /// None as in [`Gate::pass`], and where another one [keeps](Closed::keep) it closed for long.
    pub(crate) fn close(&self) -> Option<Closed<'_>> {
        let own = raw::thread();
        if self.has(own) {
            return None;
        }
        let lock = self.take_lock()?;
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

    /// Waits until nobody has closed it, or for what is enough for one that keeps it so: none.
    fn take_lock(&self) -> Option<LockGuard<'_>> {
        loop {
            let before = self.closed_by.load(Ordering::Relaxed);
            if before == WAITS {
                return None;
            }
            if let Some(lock) = self.lock.lock_within(PATIENCE_NS) {
                return Some(lock);
            }
            if before == KEPT {
                let order = Ordering::Relaxed;
                let _ = self.closed_by.compare_exchange(KEPT, WAITS, order, order);
                return None;
            }
        }
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
    /// Keeps it closed, beyond this value's life, in code that is not this library's. That may wait for a lock
    /// that a thread has which waits here: after some time others go on all the same.
    pub(crate) fn keep(self) {
        self.gate.closed_by.store(KEPT, Ordering::Relaxed);
        core::mem::forget(self);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.gate.closed_by.store(SEEN, Ordering::Relaxed);
        self.gate.closer.store(0, Ordering::SeqCst);
    }
}
