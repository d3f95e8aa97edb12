//! Which numbers descriptors have.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::io::fcntl_dupfd_cloexec;

use crate::{Errno, Result};

/// The first number that is no standard stream's.
const FIRST: i32 = 3;

/// The descriptor, with a number that is no standard stream's. A program that has closed its standard
/// error, as daemons do, may write to it all the same: to whatever got the number. What is kept open
/// must not be that.
///
/// # Errors
/// [`Errno::MFILE`]: no other descriptor is free.
pub fn beside_streams<F: Into<OwnedFd> + From<OwnedFd>>(fd: F) -> Result<F> {
    let fd = fd.into();
    if fd.as_raw_fd() >= FIRST {
        return Ok(F::from(fd));
    }
    duplicate(fd).map(F::from)
}

/// A second descriptor of the same open file, close-on-exec, as [`beside_streams`] has them.
///
/// # Errors
/// [`Errno::MFILE`]: no descriptor is free.
pub fn duplicate(fd: impl AsFd) -> Result<OwnedFd> {
    // INVAL: the limit (RLIMIT_NOFILE) is below that number.
    fcntl_dupfd_cloexec(fd, FIRST).map_err(|e| if e == Errno::INVAL { Errno::MFILE } else { e })
}

/// What `make` makes, with a number that is no standard stream's, where it cannot be given another
/// afterwards: those that are free are taken meanwhile.
///
/// # Errors
/// Those of `make`.
pub(crate) fn made_beside_streams<F: AsRawFd, E>(
    make: &impl Fn() -> core::result::Result<F, E>,
) -> core::result::Result<F, E> {
    let made = make()?;
    if made.as_raw_fd() >= FIRST {
        return Ok(made);
    }
    let above = made_beside_streams(make);
    drop(made);
    above
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::event::{Epoll, EventFd};
    use crate::file::reopen;
    use crate::in_child::in_child;
    use crate::memfd::Memfd;
    use crate::socket::Connection;
    use rustix::fs::{MemfdFlags, OFlags};

    /// A program without standard streams had caches' memory in their place: what it printed was
    /// written there.
    #[test]
    fn nothing_takes_a_standard_stream_s_place() {
        let left = in_child(|| {
            // SAFETY: nobody in the child uses these.
            unsafe { (0..FIRST).for_each(|fd| _ = libc::close(fd)) };
            let memfd = Memfd::create("t", 4096, true).expect("a memfd");
            let again = reopen(&memfd, OFlags::RDWR).expect("opened again");
            let (epoll, event) = (Epoll::new().expect("epoll"), EventFd::new().expect("eventfd"));
            let (one, other) = Connection::pair().expect("sockets");
            let fds = [
                memfd.as_fd(),
                again.as_fd(),
                epoll.as_fd(),
                event.as_fd(),
                one.as_fd(),
                other.as_fd(),
            ];
            let make = || rustix::fs::memfd_create("t", MemfdFlags::CLOEXEC);
            let made = made_beside_streams(&make).expect("made");
            let all_beside =
                fds.iter().all(|fd| fd.as_raw_fd() >= FIRST) && made.as_raw_fd() >= FIRST;
            // SAFETY: whether numbers are in use.
            let is_free = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1;
            i32::from(!(all_beside && (0..FIRST).all(is_free)))
        });
        assert_eq!(left, 0, "a descriptor is where a stream was");
    }
}
