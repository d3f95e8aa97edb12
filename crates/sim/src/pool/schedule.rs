//! Whose reference comes next, and when.
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// How programs take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// By the recorded times: programs run as they did when they were recorded, whatever faults
    /// they have now. All recordings need times.
    ByTime,
    /// One processor in turn, for a quantum each; who faults waits for the storage, which serves
    /// one request after another, and the others run meanwhile.
    RoundRobin {
        /// Longest turn, in nanoseconds.
        quantum_ns: u64,
    },
}

/// What the simulated machine's work takes. Time that does not fit 64 bits, 584 years, is the most
/// that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolCost {
    /// A program's own work between references, in nanoseconds. Default 1,000.
    pub reference_ns: u64,
    /// Reading a page from storage. Default 100,000.
    pub fault_ns: u64,
    /// Writing a dirty page back; nobody waits for it but those who read after it. Default 100,000.
    pub write_back_ns: u64,
}

impl Default for PoolCost {
    fn default() -> Self {
        Self { reference_ns: 1_000, fault_ns: 100_000, write_back_ns: 100_000 }
    }
}

/// The processor and the storage.
#[derive(Debug)]
pub(crate) struct Machine {
    cost: PoolCost,
    quantum_ns: u64,
    pub(crate) now_ns: u64,
    ready: VecDeque<usize>,
    /// Who waits for storage, by when it is done.
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    storage_free_ns: u64,
    turn_ends_ns: u64,
}

impl Machine {
    pub(crate) fn new(programs: usize, quantum_ns: u64, cost: PoolCost) -> Self {
        Self {
            cost,
            quantum_ns: quantum_ns.max(1),
            now_ns: 0,
            ready: (0..programs).collect(),
            waiting: BinaryHeap::new(),
            storage_free_ns: 0,
            turn_ends_ns: 0,
        }
    }

    /// Who runs now; `None` when all are done.
    pub(crate) fn next(&mut self) -> Option<usize> {
        if self.ready.is_empty() {
            let Reverse((done_ns, _)) = *self.waiting.peek()?;
            self.now_ns = self.now_ns.max(done_ns);
        }
        self.wake();
        self.turn_ends_ns = self.now_ns.saturating_add(self.quantum_ns);
        self.ready.pop_front()
    }

    /// Those whose page has come are ready.
    fn wake(&mut self) {
        while let Some(Reverse((done_ns, program))) = self.waiting.peek().copied() {
            if done_ns > self.now_ns {
                break;
            }
            self.waiting.pop();
            self.ready.push_back(program);
        }
    }

    /// The running program made a reference; whether its turn goes on.
    pub(crate) fn worked(&mut self) -> bool {
        self.now_ns = self.now_ns.saturating_add(self.cost.reference_ns);
        self.now_ns < self.turn_ends_ns
    }

    /// The program's turn is over; it goes on later.
    pub(crate) fn yielded(&mut self, program: usize) {
        // Those whose page came during the turn were ready before it.
        self.wake();
        self.ready.push_back(program);
    }

    /// The program waits for a page.
    pub(crate) fn faulted(&mut self, program: usize) {
        self.storage_works(self.cost.fault_ns);
        self.waiting.push(Reverse((self.storage_free_ns, program)));
    }

    /// A page is read that nobody waits for.
    pub(crate) fn fetched(&mut self) {
        self.storage_works(self.cost.fault_ns);
    }

    /// A dirty page is written.
    pub(crate) fn wrote_back(&mut self) {
        self.storage_works(self.cost.write_back_ns);
    }

    fn storage_works(&mut self, ns: u64) {
        self.storage_free_ns = self.storage_free_ns.max(self.now_ns).saturating_add(ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_begin_again() {
        let cost =
            PoolCost { reference_ns: u64::MAX / 2 + 1, fault_ns: u64::MAX, write_back_ns: 1 };
        let mut machine = Machine::new(2, u64::MAX, cost);
        assert_eq!(machine.next(), Some(0));
        assert!(machine.worked(), "a turn of any length");
        machine.faulted(0);
        assert_eq!((machine.next(), machine.now_ns), (Some(1), u64::MAX / 2 + 1));
        machine.wrote_back();
        machine.faulted(1);
        assert_eq!((machine.next(), machine.now_ns), (Some(0), u64::MAX));
        assert!(!machine.worked());
        assert_eq!((machine.next(), machine.now_ns), (Some(1), u64::MAX));
    }

    #[test]
    fn turns_alternate_and_storage_is_a_queue() {
        let cost = PoolCost { reference_ns: 10, fault_ns: 100, write_back_ns: 50 };
        let mut machine = Machine::new(2, 20, cost);
        assert_eq!(machine.next(), Some(0));
        assert!(machine.worked());
        assert!(!machine.worked());
        machine.yielded(0);
        assert_eq!((machine.next(), machine.now_ns), (Some(1), 20));
        machine.wrote_back();
        machine.faulted(1);
        // Done at 20 + 50 + 100; program 0 runs meanwhile and faults too, behind it.
        assert_eq!(machine.next(), Some(0));
        machine.worked();
        machine.faulted(0);
        assert_eq!((machine.next(), machine.now_ns), (Some(1), 170));
        assert_eq!((machine.next(), machine.now_ns), (Some(0), 270));
        assert_eq!(machine.next(), None);
    }
}
