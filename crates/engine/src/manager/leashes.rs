//! Which processes end when this one and the holder are killed ([`Leash`]).

use super::Manager;
use pagekeeper_sys::descriptor::duplicate;
use pagekeeper_sys::launch::open_files_max;
use pagekeeper_sys::leash::Leash;
use std::os::fd::{AsFd, OwnedFd};

/// Of so many descriptors one leash, which takes two.
const LEASH_SHARE: u64 = 16;

impl Manager {
    /// A process that is to end when nobody is left who serves it: the end of the leash for it. None where
    /// descriptors are few: they are for what programs wait for.
    pub(crate) fn put_on_leash(&self, pid: u32) -> Option<OwnedFd> {
        let space = self.engine.port().space(self.space_of(pid)?)?;
        let mut leashes = self.leashes.lock().expect("lock");
        let leashes = leashes.as_mut()?;
        if LEASH_SHARE * (leashes.len() as u64 + 1) > open_files_max() {
            return None;
        }
        let leash = Leash::of(pid, space.userfault.as_fd()).ok()?;
        let worn = duplicate(leash.worn()).ok()?;
        self.tell(|witness| witness.leash(pid, leash.held()));
        leashes.insert(pid, leash);
        Some(worn)
    }

    /// Sets everybody free, and puts nobody on a leash any more: descriptors are short, or this process ends.
    pub(crate) fn let_off_leash(&self) {
        self.drop_leashes(|_| true);
        *self.leashes.lock().expect("lock") = None;
    }

    /// Sets those free whom `is_free` names. That a process is not known any more is not enough: it may live
    /// on, having closed all its connections.
    pub(super) fn drop_leashes(&self, is_free: impl Fn(u32) -> bool) {
        let mut leashes = self.leashes.lock().expect("lock");
        let free =
            leashes.iter_mut().flat_map(|leashes| leashes.extract_if(|pid, _| is_free(*pid)));
        for (pid, leash) in free {
            drop(leash);
            self.tell(|witness| witness.leash_gone(pid));
        }
    }
}
