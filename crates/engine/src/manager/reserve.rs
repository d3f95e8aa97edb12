//! Descriptors that are kept for what must not fail when there are no others: a fork that waits to be
//! heard of, a connection by which something is to be ended, what a process needs that was let in.

use super::Manager;
use crate::live::shortage::is_shortage;
use crate::manager::work::Work;
use pagekeeper_sys::Errno;
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How many.
const RESERVE: usize = 16;
/// How many a process takes beside its first connection: its userfaultfd, what tells its end, and for a moment
/// what is sent to it.
const SHARE: usize = 3;
/// How many of them it keeps from when its userfaultfd has come.
const SHARE_KEPT: usize = 2;
/// What was given back is left to whoever comes again for it, which takes some 2 ms, for so long.
const GIVEN_FOR: Duration = Duration::from_millis(20);
/// When nobody has come or gone for so long, those that are there may be waiting for one that is not: who
/// comes next is let in with nothing set aside, in the place of one of the reserve.
const STILL: Duration = Duration::from_millis(200);
/// What such places leave of the reserve.
const LEFT_WHEN_STILL: usize = 6;
/// Files that are let go of at once, where somebody waits for descriptors.
const LET_GO_AT_ONCE: usize = 32;

/// See the module. Empty until something is about to be managed.
///
/// Where descriptors may run out, each process has a share set aside when it comes, or does not come yet. With
/// nothing but a connection, many would wait for the rest, and for each other, for ever; and so would those
/// that need a last descriptor for a moment to end, and give up all that they have.
#[derive(Default)]
pub(crate) struct Reserve {
    kept: Mutex<Kept>,
    /// Files are being let go of for it.
    wanted: AtomicBool,
}

#[derive(Default)]
struct Kept {
    descriptors: Vec<OwnedFd>,
    /// It was to be whole at some time.
    is_used: bool,
    /// What is set aside for processes, by their number.
    shares: HashMap<u32, Share>,
    /// When somebody came or went for the last time, or was first kept from coming.
    moved: Option<Instant>,
}

#[derive(Default)]
struct Share {
    descriptors: Vec<OwnedFd>,
    due: usize,
    given: Option<Instant>,
}

impl Share {
    fn lacks_any(&self) -> bool {
        self.descriptors.len() < self.due
    }
}

/// A descriptor that keeps its place. Each is a file of its own: those are counted in the whole system, too.
fn placeholder() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn fill(descriptors: &mut Vec<OwnedFd>, count: usize) -> Result<(), Errno> {
    while descriptors.len() < count {
        descriptors.push(placeholder()?);
    }
    Ok(())
}

impl Kept {
    /// Has all again that it should have, as far as that can be: shares first.
    fn make_whole(&mut self) -> Result<(), Errno> {
        for share in self.shares.values_mut().filter(|share| share.lacks_any()) {
            if share.given.is_some_and(|given| given.elapsed() < GIVEN_FOR) {
                return Err(Errno::MFILE);
            }
            fill(&mut share.descriptors, share.due)?;
        }
        fill(&mut self.descriptors, if self.is_used { RESERVE } else { 0 })
    }
}

impl Reserve {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("lock")
    }

    /// Makes one of them free; false if none is left.
    pub(crate) fn spend(&self) -> bool {
        self.kept().descriptors.pop().is_some()
    }

    /// Has one again that was spent for nothing.
    pub(crate) fn take_back(&self) {
        let mut kept = self.kept();
        let count = (kept.descriptors.len() + 1).min(RESERVE);
        let _ = fill(&mut kept.descriptors, count);
    }

    /// Whether there is room for others: nobody waits for what they would take.
    pub(crate) fn admits(&self) -> bool {
        !self.kept().make_whole().is_err_and(is_shortage)
    }

    /// Sets a share aside for a process that comes; false if it cannot be had.
    pub(crate) fn comes(&self, pid: u32) -> bool {
        let mut kept = self.kept();
        if kept.shares.contains_key(&pid) {
            return true;
        }
        let mut share = Share { due: SHARE, ..Share::default() };
        if fill(&mut share.descriptors, SHARE).is_err_and(is_shortage) {
            return false;
        }
        kept.shares.insert(pid, share);
        kept.moved = Some(Instant::now());
        true
    }

    /// A process that has a share needs one of it now; false if there is none.
    pub(crate) fn give(&self, pid: u32) -> bool {
        let mut kept = self.kept();
        let Some(share) = kept.shares.get_mut(&pid) else { return false };
        share.given = Some(Instant::now());
        share.descriptors.pop().is_some()
    }

    /// What a process was to keep has come: the rest is for what it is sent.
    pub(crate) fn has_come(&self, pid: u32) {
        if let Some(share) = self.kept().shares.get_mut(&pid) {
            share.due = share.due.min(SHARE - SHARE_KEPT);
            share.descriptors.truncate(share.due);
        }
    }

    /// Sets free what was set aside for processes that are gone.
    pub(crate) fn drop_shares(&self, is_gone: impl Fn(u32) -> bool) {
        let mut kept = self.kept();
        let before = kept.shares.len();
        kept.shares.retain(|pid, _| !is_gone(*pid));
        if kept.shares.len() < before {
            kept.moved = Some(Instant::now());
        }
    }

    /// Whether somebody may come all the same, since nobody has moved for long: a process may wait for a child of
    /// its own. One is made free for that, if there is any.
    pub(crate) fn gives_way(&self) -> bool {
        let mut kept = self.kept();
        let now = Instant::now();
        let is_still = now - *kept.moved.get_or_insert(now) >= STILL;
        if !is_still {
            return false;
        }
        kept.moved = Some(now);
        if kept.descriptors.len() > LEFT_WHEN_STILL {
            kept.descriptors.pop();
        } else if let Some(share) = kept.shares.values_mut().max_by_key(|share| share.due)
            && share.due > 1
        {
            share.due -= 1;
            let left = share.due;
            share.descriptors.truncate(left);
        }
        true
    }

    /// How many files are to be let go of for it, by the caller from now on.
    pub(crate) fn is_waited_for(&self) -> usize {
        if self.wanted.swap(false, Ordering::SeqCst) { LET_GO_AT_ONCE } else { 0 }
    }

    /// Whether it is whole, as far as that can be made so.
    pub(crate) fn refill(&self) -> bool {
        let mut kept = self.kept();
        kept.is_used = true;
        kept.make_whole().is_ok()
    }
}

impl Manager {
    /// A call that makes a descriptor, made again with one of the reserve if there is no other.
    pub(crate) fn with_reserve<T>(
        &self,
        mut call: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        loop {
            match call() {
                Err(errno) if is_shortage(errno) => {
                    self.want_descriptors();
                    if !self.reserve.spend() {
                        return Err(errno);
                    }
                }
                result => return result,
            }
        }
    }

    /// Somebody waits for a descriptor: the files that were used longest ago are let go of.
    pub(crate) fn want_descriptors(&self) {
        if !self.reserve.wanted.swap(true, Ordering::SeqCst) {
            self.workers.push(Work::LetIdleGo);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_spent_is_taken_again() {
        let reserve = Reserve::default();
        assert!(!reserve.spend());
        assert!(reserve.refill());
        assert!((0..RESERVE).all(|_| reserve.spend()) && !reserve.spend());
        assert!(reserve.refill() && reserve.spend());
    }

    #[test]
    fn what_is_set_aside_for_a_process_is_nobody_elses() {
        let kept = |reserve: &Reserve| reserve.kept().descriptors.len();
        let share = |reserve: &Reserve| reserve.kept().shares[&7].descriptors.len();
        let reserve = Reserve::default();
        assert!(reserve.admits() && kept(&reserve) == 0, "nothing needs it yet");
        assert!(!reserve.give(7), "it has none");
        assert!(reserve.refill() && reserve.comes(7) && reserve.comes(7));
        assert_eq!((kept(&reserve), share(&reserve)), (RESERVE, SHARE));
        assert!(reserve.give(7) && reserve.spend());
        assert!(!reserve.admits() && !reserve.refill(), "it is about to come again");
        assert_eq!((kept(&reserve), share(&reserve)), (RESERVE - 1, SHARE - 1));
        reserve.take_back();
        assert_eq!((kept(&reserve), share(&reserve)), (RESERVE, SHARE - 1));
        assert!(reserve.spend());
        std::thread::sleep(GIVEN_FOR);
        assert!(reserve.admits());
        assert_eq!((kept(&reserve), share(&reserve)), (RESERVE, SHARE));

        assert!(!reserve.gives_way(), "somebody came just now");
        std::thread::sleep(STILL);
        assert!(reserve.gives_way() && kept(&reserve) == RESERVE - 1 && !reserve.gives_way());
        assert!(reserve.admits());

        assert!((0..SHARE).all(|_| reserve.give(7)) && !reserve.give(7));
        reserve.has_come(7);
        std::thread::sleep(GIVEN_FOR);
        assert!(reserve.refill() && share(&reserve) == SHARE - SHARE_KEPT);
        assert!(reserve.give(7) && !reserve.give(7));
        reserve.drop_shares(|pid| pid == 7);
        assert!(reserve.admits() && !reserve.give(7));
    }
}
