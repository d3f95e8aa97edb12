//! The kernel's own end for a process whose servers are all gone.
//!
//! Whoever is killed can tell nobody. A connected socket tells by itself when its other end closes, and
//! with O_ASYNC, F_SETSIG and F_SETOWN (`fcntl(2)`) it does so by any signal, SIGKILL among them, to any
//! process: one that sleeps, or computes, ends as soon as the last holder of that other end has.
//!
//! Until it has ended, its faults wait: what serves them lies in a message that nobody reads, in the
//! process's own end, and so is open as long as that is. (Of the descriptors of a process that ends, the
//! kernel closes one after the other. A userfaultfd that was the last one, and came first, answered with
//! zeros until then.)

use crate::file::{set_owner, set_signal};
use crate::socket::Connection;
use crate::{Errno, Result};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A pair of sockets: who has a copy of the one end is killed when all copies of the other are closed.
/// Until this is dropped, that is: from then on nobody is.
#[derive(Debug)]
pub struct Leash {
    worn: OwnedFd,
    held: OwnedFd,
}

impl Leash {
    /// For this process, with a copy of what serves its faults. It has to be a process that cannot end
    /// meanwhile without being waited for (it waits for a reply, say): its number might be another's.
    ///
    /// # Errors
    /// No descriptor is free, or too many are in messages (ETOOMANYREFS).
    pub fn of(id: u32, served_by: BorrowedFd<'_>) -> Result<Leash> {
        let owner = i32::try_from(id).ok().filter(|id| *id > 0).ok_or(Errno::SRCH)?;
        let (worn, held) = Connection::pair()?;
        // While nobody is signalled that there is something to be read.
        held.send(&[0], Some(served_by))?;
        let leash = Leash { worn: worn.into_fd(), held: held.into_fd() };
        set_owner(&leash.worn, owner)?;
        set_signal(&leash.worn, libc::SIGKILL)?;
        leash.arm(true)?;
        Ok(leash)
    }

    fn arm(&self, on: bool) -> Result<()> {
        let mut flags = fcntl_getfl(&self.worn)?;
        flags.set(OFlags::from_bits_retain(libc::O_ASYNC as u32), on);
        fcntl_setfl(&self.worn, flags)
    }

    /// The end that the process has to have a copy of: without, it is as if this had been dropped.
    pub fn worn(&self) -> BorrowedFd<'_> {
        self.worn.as_fd()
    }

    /// The other end: as long as somebody has a copy, the process lives.
    pub fn held(&self) -> BorrowedFd<'_> {
        self.held.as_fd()
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        // It belongs to the open file, not to the descriptor: the process's copy is set free with it.
        let _ = self.arm(false);
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::descriptor::duplicate;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    /// Runs a child that has a copy of the worn end and sleeps; returns how it ended, or `None` if it
    /// lives so long after what is done here.
    fn child_with(done: impl FnOnce(Leash), limit: Duration) -> Option<libc::c_int> {
        // SAFETY: the child makes system calls alone.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            loop {
                // SAFETY: no memory is passed.
                unsafe { libc::pause() };
            }
        }
        let (mut pipe, kept) = std::io::pipe().unwrap();
        let leash = Leash::of(pid as u32, kept.as_fd()).unwrap();
        drop(kept);
        // As if it had been sent: this process's table stands for the child's.
        let copy = duplicate(leash.worn()).unwrap();
        done(leash);
        let mut status = 0;
        let deadline = Instant::now() + limit;
        let mut ended = None;
        while ended.is_none() && Instant::now() < deadline {
            // SAFETY: the status is an integer of this frame.
            if unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == pid {
                ended = Some(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if ended.is_none() {
            // SAFETY: a child of this process that was not waited for.
            unsafe {
                libc::kill(pid, libc::SIGTERM);
                libc::waitpid(pid, &raw mut status, 0);
            }
        }
        drop(copy);
        // What was in the message closed with the last copy, and not before (as an end of the pipe shows).
        assert_eq!(pipe.read(&mut [0]).unwrap(), 0);
        ended
    }

    #[test]
    fn who_has_lost_all_holders_is_killed() {
        let abandons = |leash: Leash| {
            let second = duplicate(leash.held()).unwrap();
            let ends = [leash.held.as_raw_fd(), leash.worn.as_raw_fd()];
            // As when this process is killed: nobody is set free.
            core::mem::forget(leash);
            // SAFETY: nobody else has these any more.
            ends.into_iter().for_each(|fd| unsafe { rustix::io::close(fd) });
            drop(second);
        };
        // Children of other tests have copies for as long as they live.
        let killed = child_with(abandons, Duration::from_secs(10));
        assert_eq!(killed.map(|status| libc::WTERMSIG(status)), Some(libc::SIGKILL));
    }

    #[test]
    fn who_is_set_free_lives() {
        assert_eq!(child_with(drop, Duration::from_millis(100)), None);
    }
}
