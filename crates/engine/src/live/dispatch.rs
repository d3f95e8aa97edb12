//! Which faults the thread that reads them serves itself.
//!
//! To hand a fault over costs more than to serve it, since another thread has to be woken: one fault is
//! served where it is read, and of several that wait at once all but one are left to others, or those whose
//! pages are asked for [together](crate::engine::together). But who waits
//! for storage reads no faults meanwhile. Where that takes long, each of several threads would wait for the
//! others' pages, and storage would have less to do at a time than under the kernel, whose faults know
//! nothing of each other. There each page that has to be fetched is left to others, unless one thread faults
//! alone.

use crate::engine::Engine;
use crate::engine::core::Fault;
use crate::engine::word::State;
use crate::manager::work::{Work, Workers};
use crate::port::{PAGE_BYTES, Port};
use std::num::NonZero;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A thread that had so many faults in a row faults alone.
const ALONE_AFTER: u32 = 4;
/// Storage whose fastest fetch of some takes longer than this is worth another thread for each: where few
/// processors have all this to do, and where many have.
const SLOW_FETCH_NS: u64 = 300_000;
const SLOW_FETCH_OF_MANY_NS: u64 = 60_000;
const MANY_PROCESSORS: usize = 8;
/// Of so many fetches the fastest counts: others waited for each other, too.
const SOME_FETCHES: u32 = 16;
/// After so many it is looked at anew: with many under way none of them is fast.
const LOOKED_ANEW_AFTER: u32 = 8192;

/// How fast storage is.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    is_slow: AtomicBool,
    seen: AtomicU32,
    fastest_ns: AtomicU64,
}

impl Fetches {
    /// A page that a fault needed came after so long. (What two threads note at once may count as one.)
    pub(crate) fn note(&self, took: Duration) {
        let seen = self.seen.load(Relaxed) + 1;
        self.seen.store(seen, Relaxed);
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if seen == 1 || took_ns < self.fastest_ns.load(Relaxed) {
            self.fastest_ns.store(took_ns, Relaxed);
        }
        if seen == SOME_FETCHES {
            self.is_slow.store(self.fastest_ns.load(Relaxed) > least_slow_ns(), Relaxed);
        }
        let is_over = !self.is_slow.load(Relaxed) || seen >= LOOKED_ANEW_AFTER;
        if seen >= SOME_FETCHES && is_over {
            self.is_slow.store(false, Relaxed);
            self.seen.store(0, Relaxed);
        }
    }

    fn are_slow(&self) -> bool {
        self.is_slow.load(Relaxed)
    }
}

fn least_slow_ns() -> u64 {
    static LEAST_NS: LazyLock<u64> = LazyLock::new(|| {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        if processors < MANY_PROCESSORS { SLOW_FETCH_NS } else { SLOW_FETCH_OF_MANY_NS }
    });
    *LEAST_NS
}

/// Who faulted lately.
#[derive(Debug, Default)]
pub(crate) struct Faulting {
    tid: u32,
    in_a_row: u32,
}

impl Faulting {
    /// Notes a batch of faults, of which this thread's is the last. Returns how many it had in a row before
    /// that one.
    pub(crate) fn seen(&mut self, tid: u32, several: bool) -> u32 {
        let is_another = several || tid != self.tid;
        self.tid = tid;
        self.in_a_row = if is_another { 0 } else { self.in_a_row.saturating_add(1) };
        self.in_a_row
    }

    fn is_alone(&self) -> bool {
        self.in_a_row >= ALONE_AFTER
    }
}

impl<P: Port> Engine<P> {
    /// Serves faults that were read together, as far as they are not left to workers.
    pub(crate) fn dispatch(
        &self,
        faults: &mut Vec<Fault>,
        faulting: &Faulting,
        workers: Option<&Workers>,
    ) {
        let Some(workers) = workers else {
            return self.serve_together(std::mem::take(faults));
        };
        let leaves_fetches = !faulting.is_alone() && self.fetches.are_slow();
        let mut misses = Vec::new();
        while let Some(begun) = self.begin_misses(faults) {
            misses.push(begun);
        }
        // What is on its way is left to others, but for the last, if storage is fast.
        let kept = usize::from(!leaves_fetches);
        let left = misses.drain(..misses.len().saturating_sub(kept));
        let refused: Vec<_> = left.filter_map(|begun| workers.offer_misses(begun)).collect();
        misses.extend(refused);
        let mut last = None;
        for fault in faults.drain(..) {
            let is_left = leaves_fetches && self.is_absent(fault);
            if is_left && workers.offer(Work::Fault(fault)).is_ok() {
                continue;
            }
            if let Some(waiting) = last.replace(fault) {
                workers.push(Work::Fault(waiting));
            }
        }
        // Before anything that may wait for somebody who waits for those pages.
        self.end_misses(misses);
        if let Some(fault) = last {
            self.serve(fault);
        }
    }

    /// Whether a fault's page has to be fetched.
    fn is_absent(&self, fault: Fault) -> bool {
        let touched = fault.addr & !(PAGE_BYTES - 1);
        let core = self.lock();
        let region = core.region(fault.space, touched);
        region.is_some_and(|r| core.state(core.place_of(r, touched).0).1 == State::Absent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_faults_alone_does_so_several_times_in_a_row() {
        let mut faulting = Faulting::default();
        let mut alone = |tid, several| {
            faulting.seen(tid, several);
            faulting.is_alone()
        };
        let firsts: Vec<bool> = (0..6).map(|_| alone(7, false)).collect();
        assert_eq!(firsts, [false, false, false, false, true, true]);
        assert!(!alone(8, false) && !alone(7, false), "two in turn");
        assert!((0..4).all(|_| !alone(7, true)), "two at once");
    }

    #[test]
    fn storage_is_as_slow_as_its_fastest_fetch_and_is_looked_at_anew() {
        let fetches = Fetches::default();
        let note = |count: u32, ns: u64| {
            (0..count).for_each(|_| fetches.note(Duration::from_nanos(ns)));
            fetches.are_slow()
        };
        let (fast, slow) = (least_slow_ns(), least_slow_ns() + 1);
        assert!(!note(SOME_FETCHES - 1, slow) && !note(1, fast), "one of them was fast");
        assert!(!note(SOME_FETCHES - 1, slow) && note(1, slow));
        assert!(note(LOOKED_ANEW_AFTER - SOME_FETCHES - 1, fast) && !note(1, fast));
        assert!(!note(SOME_FETCHES, fast));
    }
}
