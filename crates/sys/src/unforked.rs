//! Descriptors that a forked child does not keep: a lock that belongs to an open file description is held
//! as long as any process has it.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

/// As many at a time; children keep those beyond.
const SLOTS: usize = 4096;
const NONE: i32 = -1;

static SLOT: [AtomicI32; SLOTS] = [const { AtomicI32::new(NONE) }; SLOTS];
static REGISTERED: Once = Once::new();

/// A descriptor that is closed in a child as soon as `fork(3)` has made it. (Not in one that is made by a
/// system call of the program's own.)
#[derive(Debug)]
pub struct Unforked {
    fd: Option<OwnedFd>,
    slot: Option<usize>,
}

impl Unforked {
    /// Takes charge of a descriptor.
    pub fn new(fd: OwnedFd) -> Unforked {
        REGISTERED.call_once(|| {
            // SAFETY: the handler makes calls only that may be made in a forked child.
            unsafe { libc::pthread_atfork(None, None, Some(close_all)) };
        });
        let take = |slot: &AtomicI32| {
            let number = fd.as_raw_fd();
            slot.compare_exchange(NONE, number, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        let slot = SLOT.iter().position(take);
        Unforked { fd: Some(fd), slot }
    }
}

impl AsFd for Unforked {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is there until it is dropped").as_fd()
    }
}

impl Drop for Unforked {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        let free = |slot: usize| {
            let number = fd.as_raw_fd();
            SLOT[slot].compare_exchange(number, NONE, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        if !self.slot.is_none_or(free) {
            // In a child: closed already, and perhaps somebody else's by now.
            let _ = fd.into_raw_fd();
        }
    }
}

extern "C" fn close_all() {
    for slot in &SLOT {
        let fd = slot.swap(NONE, Ordering::Relaxed);
        if fd != NONE {
            // SAFETY: who took charge of it gives it up when it finds the slot empty.
            unsafe { libc::close(fd) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_child::in_child;
    use crate::memfd::Memfd;

    #[test]
    fn a_child_has_it_not_and_closes_nothing_in_its_place() {
        let memfd = Memfd::create("unforked", 4096, false).unwrap();
        let unforked = Unforked::new(memfd.as_fd().try_clone_to_owned().unwrap());
        let number = unforked.as_fd().as_raw_fd();
        let mut unforked = Some(unforked);
        let is_right = in_child(|| {
            // SAFETY: asks for numbers' flags, and takes one that is free.
            unsafe {
                let closed = libc::fcntl(number, libc::F_GETFD) < 0;
                let in_place =
                    libc::fcntl(memfd.as_fd().as_raw_fd(), libc::F_DUPFD, number) == number;
                drop(unforked.take());
                let is_kept = libc::fcntl(number, libc::F_GETFD) >= 0;
                i32::from(closed && in_place && is_kept)
            }
        });
        assert_eq!(is_right, 1);
        drop(unforked);
        // SAFETY: asks for a number's flags; nobody else in this test's process took it if it is free.
        let is_open = unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
        let is_others = std::fs::read_link(format!("/proc/self/fd/{number}"));
        assert!(
            !is_open || !is_others.is_ok_and(|name| name.to_string_lossy().contains("unforked"))
        );
    }
}
