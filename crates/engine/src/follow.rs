//! The event thread follows the thread that faults, to the same processor.
//!
//! A fault wakes the event thread, and the answer wakes the program. Between processors each of
//! these is an interrupt to one that sleeps, which in virtual machines costs more than all the
//! rest of a fault; on one processor it is a switch. While one thread faults alone, nothing is
//! lost by sharing its processor: it waits for the answer.

use pagekeeper_sys::process;

/// Faults before the first look at where the faulting thread runs. A look costs as much as half a
/// fault, so while it finds nothing new the next one comes after twice as many.
const LOOK_AFTER: u32 = 64;
/// Most faults between two looks.
const LOOK_AFTER_MOST: u32 = 1024;

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
    look_after: u32,
    followed: bool,
}

impl Faulting {
    /// Notes a batch of faults, of which this thread's is the last.
    fn seen(&mut self, tid: u32, several: bool) -> Move {
        if several || tid != self.tid {
            self.tid = tid;
            self.alone = 0;
            self.look_after = LOOK_AFTER;
            return if std::mem::take(&mut self.followed) { Move::Free } else { Move::Stay };
        }
        self.alone += 1;
        if self.alone < self.look_after {
            return Move::Stay;
        }
        self.alone = 0;
        self.followed = true;
        Move::To(tid)
    }

    /// What the look found: whether the thread runs where it did before.
    fn looked(&mut self, same: bool) {
        self.look_after =
            if same { (self.look_after * 2).min(LOOK_AFTER_MOST) } else { LOOK_AFTER };
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
                self.faulting.looked(self.now == Some(cpu));
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
        let looks = |faulting: &mut Faulting, faults: u32| {
            let moves: Vec<Move> = (0..faults).map(|_| faulting.seen(7, false)).collect();
            moves.iter().filter(|m| **m == Move::To(7)).count()
        };
        assert_eq!(looks(&mut faulting, 2 * LOOK_AFTER), 2);
        faulting.looked(true);
        assert_eq!(looks(&mut faulting, 2 * LOOK_AFTER), 1, "it stays where it is");
        faulting.looked(false);
        assert_eq!(looks(&mut faulting, 2 * LOOK_AFTER), 2, "it moved");
        assert_eq!(faulting.seen(8, false), Move::Free);
        assert_eq!(faulting.seen(7, false), Move::Stay, "freed already");
        for _ in 0..LOOK_AFTER {
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
            for _ in 0..=LOOK_AFTER {
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
