//! Descriptors whose last close takes long, left to the kernel.
//!
//! Who closes the last descriptor of an inotify(7) or fanotify(7) group with marks waits until nobody in the
//! kernel looks at them any more (`fsnotify_destroy_group`: a grace period, 13 ms on average and 32 at most), and
//! so does a process that ends. What a ring of io_uring(7) has registered is let go of by a worker of the kernel's
//! some time after the ring is closed.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use io_uring::IoUring;

use crate::descriptor::made_beside_streams;
use crate::mask::{self, Capability};
use crate::{Errno, Result};

/// Keeps what descriptors stand for, and lets go of it without waiting.
pub struct ClosedLate {
    _ring: IoUring,
}

impl ClosedLate {
    /// Keeps what these descriptors stand for. They may be closed before this is dropped, or after.
    ///
    /// # Errors
    /// As `io_uring_setup(2)` and `io_uring_register(2)`: who closes them last waits.
    pub fn new(fds: &[BorrowedFd<'_>]) -> Result<ClosedLate> {
        if !mask::allows(Capability::IoUring) {
            return Err(Errno::NOSYS);
        }
        let errno = |error: std::io::Error| {
            Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO))
        };
        let ring = made_beside_streams(&|| IoUring::new(1)).map_err(errno)?;
        let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        ring.submitter().register_files(&fds).map_err(errno)?;
        Ok(ClosedLate { _ring: ring })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    #[test]
    fn what_is_kept_lives_until_it_is_let_go_of() {
        let (mut ours, theirs) = std::io::pipe().unwrap();
        let Ok(kept) = ClosedLate::new(&[theirs.as_fd()]) else {
            eprintln!("skipped: no io_uring here");
            return;
        };
        drop(theirs);
        rustix::fs::fcntl_setfl(&ours, rustix::fs::OFlags::NONBLOCK).unwrap();
        let byte = &mut [0];
        let there = ours.read(byte).map_err(|error| error.kind());
        assert_eq!(there, Err(std::io::ErrorKind::WouldBlock), "the other end is open");
        drop(kept);
        let begun = Instant::now();
        while ours.read(byte).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(10), "it is never closed");
            std::thread::yield_now();
        }
    }
}
