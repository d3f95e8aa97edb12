//! The event thread follows the thread that faults, to the same processor.
//!
//! A fault wakes the event thread, and the answer wakes the program. Between processors each of
//! these is an interrupt to one that sleeps, which in virtual machines costs more than all the
//! rest of a fault; on one processor it is a switch. While one thread faults alone, nothing is
//! lost by sharing its processor: it waits for the answer.

use pagekeeper_sys::process;

/// Faults between two looks at where the faulting thread runs.
const LOOK_EVERY: u32 = 64;

/// Where the event thread should run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Move {
    Stay,
    /// To where this thread runs.
    To(u32),
    /// Wherever there is room.
    Free,
}

/// Who faulted lately.
#[derive(Debug, Default)]
struct Faulting {
    tid: u32,
    alone: u32,
    followed: bool,
}

impl Faulting {
    /// Notes a batch of faults, of which this thread's is the last.
    fn seen(&mut self, tid: u32, several: bool) -> Move {
        if several || tid != self.tid {
            self.tid = tid;
            self.alone = 0;
            return if std::mem::take(&mut self.followed) { Move::Free } else { Move::Stay };
        }
        self.alone += 1;
        if !self.alone.is_multiple_of(LOOK_EVERY) {
            return Move::Stay;
        }
        self.followed = true;
        Move::To(tid)
    }
}

/// Moves the calling thread.
#[derive(Debug)]
pub(crate) struct Follow {
    faulting: Faulting,
    /// Where the thread may run at all.
    all: Vec<u32>,
    now: Option<u32>,
}

impl Follow {
    /// Made by the thread that is to follow.
    pub(crate) fn new() -> Follow {
        let all = process::affinity().unwrap_or_default();
        Follow { faulting: Faulting::default(), all, now: None }
    }

    /// Notes a batch of faults, of which this thread's is the last. Staying where it is would only
    /// be slower: errors are nothing.
    pub(crate) fn seen(&mut self, tid: u32, several: bool) {
        match self.faulting.seen(tid, several) {
            Move::Stay => {}
            Move::To(tid) => {
                let Ok(cpu) = process::cpu_of(tid) else { return };
                if self.now != Some(cpu) && self.all.contains(&cpu) {
                    self.now = process::set_affinity(cpu).is_ok().then_some(cpu);
                }
            }
            Move::Free => {
                if self.now.take().is_some() {
                    let _ = process::set_affinity_to(&self.all);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_is_followed_and_several_are_not() {
        let mut faulting = Faulting::default();
        assert_eq!(faulting.seen(7, false), Move::Stay);
        let moves: Vec<Move> = (0..2 * LOOK_EVERY).map(|_| faulting.seen(7, false)).collect();
        assert_eq!(moves.iter().filter(|m| **m == Move::To(7)).count(), 2);
        assert_eq!(faulting.seen(8, false), Move::Free);
        assert_eq!(faulting.seen(7, false), Move::Stay, "freed already");
        for _ in 0..LOOK_EVERY {
            faulting.seen(7, false);
        }
        assert_eq!(faulting.seen(7, true), Move::Free);
    }

    #[test]
    fn a_thread_moves_to_where_another_runs_and_is_freed_again() {
        std::thread::spawn(|| {
            let all = process::affinity().unwrap();
            let mut follow = Follow::new();
            let tid = std::process::id();
            for _ in 0..=LOOK_EVERY {
                follow.seen(tid, false);
            }
            assert_eq!(process::affinity().unwrap().len(), 1);
            follow.seen(tid, true);
            assert_eq!(process::affinity().unwrap(), all);
        })
        .join()
        .unwrap();
    }
}
