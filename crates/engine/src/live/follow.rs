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

/// When to look.
#[derive(Debug, Default)]
struct Looks {
    /// How many faults in a row the thread had at the last one.
    last: u32,
    after: u32,
    followed: bool,
}

impl Looks {
    /// A thread had another fault, and so many in a row before.
    fn seen(&mut self, tid: u32, in_a_row: u32) -> Move {
        if in_a_row == 0 {
            (self.last, self.after) = (0, LOOK_AFTER);
            return if std::mem::take(&mut self.followed) { Move::Free } else { Move::Stay };
        }
        if in_a_row - self.last < self.after {
            return Move::Stay;
        }
        self.last = in_a_row;
        self.followed = true;
        Move::To(tid)
    }

    /// What the look found: whether the thread runs where it did before.
    fn looked(&mut self, same: bool) {
        self.after = if same { (self.after * 2).min(LOOK_AFTER_MOST) } else { LOOK_AFTER };
    }
}

/// Moves the calling thread.
#[derive(Debug)]
pub(crate) struct Follow {
    looks: Looks,
    /// Where the thread may run at all.
    all: Vec<u32>,
    now: Option<u32>,
}

impl Follow {
    /// Made by the thread that is to follow.
    pub(crate) fn new() -> Follow {
        let all = process::affinity().unwrap_or_default();
        Follow { looks: Looks::default(), all, now: None }
    }

    /// A thread had another fault, and so many in a row before. Staying where it is would only be slower:
    /// errors are nothing.
    pub(crate) fn seen(&mut self, tid: u32, in_a_row: u32) {
        match self.looks.seen(tid, in_a_row) {
            Move::Stay => {}
            Move::To(tid) => {
                let Ok(cpu) = process::cpu_of(tid) else { return };
                self.looks.looked(self.now == Some(cpu));
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
        let mut looks = Looks::default();
        assert_eq!(looks.seen(7, 0), Move::Stay);
        let mut in_a_row = 0;
        let mut times = |looks: &mut Looks, faults: u32| {
            let moves = (0..faults).map(|_| {
                in_a_row += 1;
                looks.seen(7, in_a_row)
            });
            moves.filter(|m| *m == Move::To(7)).count()
        };
        assert_eq!(times(&mut looks, 2 * LOOK_AFTER), 2);
        looks.looked(true);
        assert_eq!(times(&mut looks, 2 * LOOK_AFTER), 1, "it stays where it is");
        looks.looked(false);
        assert_eq!(times(&mut looks, 2 * LOOK_AFTER), 2, "it moved");
        assert_eq!(looks.seen(8, 0), Move::Free);
        assert_eq!(looks.seen(7, 0), Move::Stay, "freed already");
        for in_a_row in 1..=LOOK_AFTER {
            looks.seen(7, in_a_row);
        }
        assert_eq!(looks.seen(7, 0), Move::Free);
    }

    #[test]
    fn a_thread_moves_to_where_another_runs_and_is_freed_again() {
        std::thread::spawn(|| {
            let all = process::affinity().unwrap();
            let mut follow = Follow::new();
            let tid = std::process::id();
            for in_a_row in 0..=LOOK_AFTER {
                follow.seen(tid, in_a_row);
            }
            assert_eq!(process::affinity().unwrap().len(), 1);
            follow.seen(tid, 0);
            assert_eq!(process::affinity().unwrap(), all);
        })
        .join()
        .unwrap();
    }
}
