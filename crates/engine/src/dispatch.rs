//! Which faults the thread that reads them serves itself.
//!
//! To hand a fault over costs more than to serve it, since another thread has to be woken. But who waits for
//! storage reads no faults meanwhile: of several threads that touch what is not in memory, each would wait
//! for the others' pages, and storage would have less to do at a time than under the kernel, whose faults know
//! nothing of each other. So a page that has to be fetched is left to others, unless one thread faults alone.

use crate::core::Fault;
use crate::engine::Engine;
use crate::port::{PAGE_BYTES, Port};
use crate::word::State;
use crate::work::{Work, Workers};

/// A thread that had so many faults in a row faults alone.
const ALONE_AFTER: u32 = 4;

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
        let mut last = None;
        for fault in faults.drain(..) {
            let fetches = !faulting.is_alone() && self.is_absent(fault);
            if fetches && workers.is_some_and(|w| w.offer(Work::Fault(fault)).is_ok()) {
                continue;
            }
            let Some(waiting) = last.replace(fault) else { continue };
            match workers {
                Some(workers) => workers.push(Work::Fault(waiting)),
                None => self.serve(waiting),
            }
        }
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
}
