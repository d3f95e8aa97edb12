//! Whose reference comes next, where several processes were recorded.
//!
//! Which process is how far decides what fits in memory, and a recording slows some down more than
//! others. So each process goes on by a clock of its own: after each reference it waits for what
//! that takes in the emulated run, and then works for as long as the recording tells ([`pace`]).
//!
//! [`pace`]: crate::pace
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::References;
use crate::pace::{self, Step};

/// The order in which references are made.
pub(crate) enum Order {
    /// As recorded: of one process, or of who knows whom.
    Recorded {
        /// The next position.
        next: usize,
        /// Behind the last one.
        end: usize,
    },
    /// By the clocks of processes.
    Clocks(Clocks),
}

/// A reference whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Its position in the recording.
    pub(crate) position: usize,
    /// Whose it is; 0 in the recorded order.
    pub(crate) process: usize,
    /// When, in nanoseconds; 0 in the recorded order.
    pub(crate) now_ns: u64,
    /// The process ends with it.
    pub(crate) is_last: bool,
}

/// Processes with clocks of their own, on a number of processors.
pub(crate) struct Clocks {
    steps: Vec<Vec<Step>>,
    /// Per process: steps done.
    done: Vec<usize>,
    /// Processes that have work to do, and since when.
    ready: BinaryHeap<Reverse<(u64, usize)>>,
    /// Those that a processor works for, and until when.
    working: BinaryHeap<Reverse<(u64, usize)>>,
    /// Until when each processor works.
    processors: Vec<u64>,
    /// By a position that others come after.
    awaited: FxHashMap<usize, Awaited>,
}

/// A reference that others come after.
#[derive(Default)]
struct Awaited {
    /// When it was over, once it was.
    over_ns: Option<u64>,
    /// Who waits for it, and since when.
    waiting: Vec<(usize, u64)>,
}

impl Order {
    pub(crate) fn of(references: &References) -> Self {
        let processes = references.processes();
        let of = processes.of_all(references.len());
        match of.zip(references.times_ns()) {
            Some((of, times_ns)) => {
                // More than processes are idle, whatever the header says.
                let most = processes.parents.len();
                let processors = processes.processors().unwrap_or(most).min(most);
                Self::Clocks(Clocks::new(pace::steps(processes, of, times_ns), processors))
            }
            None => Self::Recorded { next: 0, end: references.len() },
        }
    }

    /// Whether processes have clocks.
    pub(crate) fn has_clocks(&self) -> bool {
        matches!(self, Self::Clocks(_))
    }

    /// Per segment: a process that references it, or 0.
    pub(crate) fn owners(&self, references: &References) -> Vec<usize> {
        let mut owners = vec![None; references.segments().len()];
        if let Self::Clocks(clocks) = self {
            for (process, steps) in clocks.steps.iter().enumerate() {
                for step in steps {
                    let (page, _) = references.at(step.position);
                    owners[references.place(page).0].get_or_insert(process);
                }
            }
        }
        owners.into_iter().map(|owner| owner.unwrap_or(0)).collect()
    }

    /// The next reference.
    pub(crate) fn next(&mut self) -> Option<Turn> {
        match self {
            Self::Recorded { next, end } => {
                let position = *next;
                *next += 1;
                let is_last = *next == *end;
                (position < *end).then_some(Turn { position, process: 0, now_ns: 0, is_last })
            }
            Self::Clocks(clocks) => clocks.next(),
        }
    }

    /// What a turn brought is over.
    pub(crate) fn over(&mut self, turn: Turn, now_ns: u64) {
        if let Self::Clocks(clocks) = self {
            clocks.over(turn, now_ns);
        }
    }
}

impl Clocks {
    fn new(steps: Vec<Vec<Step>>, processors: usize) -> Self {
        let awaited = steps.iter().flatten().filter_map(|step| step.after);
        let mut clocks = Self {
            done: vec![0; steps.len()],
            ready: BinaryHeap::new(),
            working: BinaryHeap::new(),
            processors: vec![0; processors],
            awaited: awaited.map(|position| (position, Awaited::default())).collect(),
            steps,
        };
        (0..clocks.steps.len()).for_each(|process| clocks.go_on(process, 0));
        clocks
    }

    /// A process has come to its next step.
    fn go_on(&mut self, process: usize, mut from_ns: u64) {
        let Some(step) = self.steps[process].get(self.done[process]) else { return };
        if let Some(awaited) = step.after.and_then(|after| self.awaited.get_mut(&after)) {
            match awaited.over_ns {
                Some(over_ns) => from_ns = from_ns.max(over_ns),
                None => return awaited.waiting.push((process, from_ns)),
            }
        }
        self.ready.push(Reverse((from_ns.saturating_add(step.wait_ns), process)));
    }

    /// Gives processors to whoever has work before anything else happens.
    fn dispatch(&mut self) {
        while let Some(Reverse((since_ns, process))) = self.ready.peek().copied() {
            let Some(free_ns) = self.processors.iter_mut().min() else { return };
            let start_ns = since_ns.max(*free_ns);
            if self.working.peek().is_some_and(|Reverse((end_ns, _))| *end_ns <= start_ns) {
                return;
            }
            self.ready.pop();
            let end_ns = start_ns.saturating_add(self.steps[process][self.done[process]].work_ns);
            *free_ns = end_ns;
            self.working.push(Reverse((end_ns, process)));
        }
    }

    fn next(&mut self) -> Option<Turn> {
        self.dispatch();
        let Reverse((now_ns, process)) = self.working.pop()?;
        let (steps, done) = (&self.steps[process], self.done[process]);
        let is_last = done + 1 == steps.len();
        Some(Turn { position: steps[done].position, process, now_ns, is_last })
    }

    fn over(&mut self, turn: Turn, now_ns: u64) {
        self.done[turn.process] += 1;
        self.go_on(turn.process, now_ns);
        if let Some(awaited) = self.awaited.get_mut(&turn.position) {
            awaited.over_ns = Some(now_ns);
            for (process, since_ns) in std::mem::take(&mut awaited.waiting) {
                self.go_on(process, since_ns);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(position: usize, after: Option<usize>, work_ns: u64) -> Step {
        Step { position, after, wait_ns: 0, work_ns }
    }

    /// Positions in their order, and when, if each reference takes 1 ns.
    fn run(steps: Vec<Vec<Step>>, processors: usize) -> Vec<(usize, u64)> {
        let mut order = Order::Clocks(Clocks::new(steps, processors));
        let mut turns = Vec::new();
        while let Some(turn) = order.next() {
            turns.push((turn.position, turn.now_ns));
            order.over(turn, turn.now_ns + 1);
        }
        turns
    }

    #[test]
    fn processes_go_on_by_their_own_clocks() {
        let steps = || vec![vec![step(0, None, 10), step(2, None, 10)], vec![step(1, None, 4); 3]];
        assert_eq!(run(steps(), 2), [(1, 4), (1, 9), (0, 10), (1, 14), (2, 21)]);
        // On one processor in turn.
        assert_eq!(run(steps(), 1), [(0, 10), (1, 14), (2, 24), (1, 28), (1, 33)]);
    }

    #[test]
    fn what_comes_after_another_waits_for_it() {
        let steps = vec![
            vec![step(0, None, 5), step(3, Some(2), 1)],
            vec![step(1, Some(0), 5), step(2, None, 100)],
        ];
        assert_eq!(run(steps, 2), [(0, 5), (1, 11), (2, 112), (3, 114)]);
    }
}
