//! Descriptors that are kept for what must not fail when there are no others: a fork that waits to be
//! heard of, a connection that waits to be accepted.

use super::Manager;
use crate::live::shortage::is_shortage;
use crate::manager::work::Work;
use pagekeeper_sys::Errno;
use rustix::fs::{Mode, OFlags};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// How many.
const RESERVE: usize = 16;
/// Files that are let go of at once, where somebody waits for descriptors.
const LET_GO_AT_ONCE: usize = 32;

/// See the module. Empty until something is about to be managed.
#[derive(Default)]
pub(crate) struct Reserve {
    kept: Mutex<Vec<OwnedFd>>,
    /// Files are being let go of for it.
    wanted: AtomicBool,
}

impl Reserve {
    /// Makes one of them free; false if none is left.
    pub(crate) fn spend(&self) -> bool {
        self.kept.lock().expect("lock").pop().is_some()
    }

    /// How many files are to be let go of for it, by the caller from now on.
    pub(crate) fn is_waited_for(&self) -> usize {
        if self.wanted.swap(false, Ordering::SeqCst) { LET_GO_AT_ONCE } else { 0 }
    }

    /// Whether it is whole, as far as that can be made so. Each is a file of its own: those are
    /// counted in the whole system, too.
    pub(crate) fn refill(&self) -> bool {
        let mut kept = self.kept.lock().expect("lock");
        while kept.len() < RESERVE {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            match rustix::fs::open("/dev/null", flags, Mode::empty()) {
                Ok(fd) => kept.push(fd),
                Err(_) => return false,
            }
        }
        true
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
}
