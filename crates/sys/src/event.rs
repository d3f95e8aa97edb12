//! Waiting: `epoll(7)`, `eventfd(2)`, and `futex(2)` on memory shared between processes.

use core::sync::atomic::AtomicU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, poll};
use rustix::thread::futex;

use crate::descriptor::beside_streams;
use crate::memfd::retry;
use crate::{Errno, Result};

/// Descriptors that became ready are returned at most this many at a time.
const READY_PER_WAIT: usize = 64;

/// What `poll(2)` says of a descriptor at this moment: whether it can be read, and errors and hang-ups.
///
/// # Errors
/// As `poll(2)`.
pub(crate) fn poll_now(fd: impl AsFd) -> Result<PollFlags> {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(fds[0].revents())
}

/// What to wait for on a descriptor. Errors and hang-ups are always reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// It can be read, or accepted from.
    pub read: bool,
    /// It can be written.
    pub write: bool,
    /// Report once, then not again before [`Epoll::modify`]: for descriptors that several threads
    /// wait for.
    pub one_shot: bool,
    /// Wake one waiter only, where several epolls hold the descriptor.
    pub exclusive: bool,
}

impl Interest {
    /// Readable.
    pub const READ: Interest =
        Interest { read: true, write: false, one_shot: false, exclusive: false };

    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, self.read);
        flags.set(epoll::EventFlags::OUT, self.write);
        flags.set(epoll::EventFlags::ONESHOT, self.one_shot);
        flags.set(epoll::EventFlags::EXCLUSIVE, self.exclusive);
        flags
    }
}

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// What it was added with.
    pub token: u64,
    /// It can be read.
    pub read: bool,
    /// It can be written.
    pub write: bool,
    /// The other end is closed (read what is left first), or the descriptor is in error.
    pub hang_up: bool,
}

/// A set of descriptors to wait for.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    /// `epoll_create1(2)`.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn new() -> Result<Epoll> {
        Ok(Epoll { fd: beside_streams(epoll::create(epoll::CreateFlags::CLOEXEC)?)? })
    }

    /// Adds a descriptor. It leaves the set when all its duplicates are closed, or by
    /// [`Epoll::remove`].
    ///
    /// # Errors
    /// [`Errno::EXIST`]: it is in; [`Errno::PERM`]: it cannot be waited for (a regular file).
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<()> {
        epoll::add(&self.fd, fd.as_fd(), epoll::EventData::new_u64(token), interest.flags())
    }

    /// Changes token and interest, and arms a one-shot descriptor again.
    ///
    /// # Errors
    /// [`Errno::NOENT`]: it is not in.
    pub fn modify(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<()> {
        epoll::modify(&self.fd, fd.as_fd(), epoll::EventData::new_u64(token), interest.flags())
    }

    /// Takes a descriptor out.
    ///
    /// # Errors
    /// [`Errno::NOENT`]: it is not in.
    pub fn remove(&self, fd: impl AsFd) -> Result<()> {
        epoll::delete(&self.fd, fd.as_fd())
    }

    /// Waits until a descriptor is ready, a signal comes or the time is over (`None`: never), and
    /// replaces the content of `ready` by what is.
    ///
    /// # Errors
    /// None is known; interruption by a signal leaves `ready` empty.
    pub fn wait(&self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> Result<()> {
        ready.clear();
        let mut events = [const { core::mem::MaybeUninit::uninit() }; READY_PER_WAIT];
        let timeout = timeout.map(timespec);
        let (events, _) = match epoll::wait(&self.fd, &mut events, timeout.as_ref()) {
            Err(Errno::INTR) => return Ok(()),
            result => result?,
        };
        ready.extend(events.iter().map(|event| {
            let (data, flags) = (event.data, event.flags);
            Ready {
                token: data.u64(),
                read: flags.contains(epoll::EventFlags::IN),
                write: flags.contains(epoll::EventFlags::OUT),
                hang_up: flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR),
            }
        }));
        Ok(())
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A counter that can be waited for with [`Epoll`], to wake another thread.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// `eventfd(2)`, at zero, nonblocking.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn new() -> Result<EventFd> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(EventFd { fd: beside_streams(rustix::event::eventfd(0, flags)?)? })
    }

    /// Adds one, making it readable.
    ///
    /// # Errors
    /// None is known; a counter at its maximum is readable already.
    pub fn notify(&self) -> Result<()> {
        match retry(|| rustix::io::write(&self.fd, &1u64.to_ne_bytes())) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Sets it back to zero and returns what it was.
    ///
    /// # Errors
    /// None is known.
    pub fn drain(&self) -> Result<u64> {
        let mut count = [0; 8];
        match retry(|| rustix::io::read(&self.fd, &mut count)) {
            Ok(_) => Ok(u64::from_ne_bytes(count)),
            Err(Errno::AGAIN) => Ok(0),
            Err(errno) => Err(errno),
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Why a [`futex_wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Woken, or for no reason: look at the word again.
    Yes,
    /// The word did not hold the expected value.
    Changed,
    /// The time is over.
    TimedOut,
}

/// Waits while a word, possibly shared with other processes, holds `expected`.
///
/// # Errors
/// [`Errno::FAULT`]: the word's page is gone.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Result<Woken> {
    let timeout = timeout.map(timespec);
    match futex::wait(word, futex::Flags::empty(), expected, timeout.as_ref()) {
        Ok(()) | Err(Errno::INTR) => Ok(Woken::Yes),
        Err(Errno::AGAIN) => Ok(Woken::Changed),
        Err(Errno::TIMEDOUT) => Ok(Woken::TimedOut),
        Err(errno) => Err(errno),
    }
}

/// Wakes up to `count` waiters of a word, in any process, and returns how many there were.
///
/// # Errors
/// [`Errno::FAULT`]: the word's page is gone.
pub fn futex_wake(word: &AtomicU32, count: u32) -> Result<usize> {
    futex::wake(word, futex::Flags::empty(), count.min(i32::MAX as u32))
}

fn timespec(duration: Duration) -> Timespec {
    // Beyond what the kernel takes is as good as a very long time.
    const LONG: Timespec = Timespec { tv_sec: i32::MAX as i64 / 1000, tv_nsec: 0 };
    Timespec::try_from(duration).ok().filter(|t| t.tv_sec < LONG.tv_sec).unwrap_or(LONG)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::SharedMap;
    use core::sync::atomic::Ordering::SeqCst;

    #[test]
    fn epoll_reports_what_is_ready() {
        let (epoll, event) = (Epoll::new().unwrap(), EventFd::new().unwrap());
        let mut ready = vec![];
        epoll.add(&event, 7, Interest::READ).unwrap();
        epoll.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert!(ready.is_empty());
        event.notify().unwrap();
        event.notify().unwrap();
        epoll.wait(&mut ready, None).unwrap();
        assert_eq!(ready, [Ready { token: 7, read: true, write: false, hang_up: false }]);
        assert_eq!((event.drain(), event.drain()), (Ok(2), Ok(0)));
        epoll.modify(&event, 8, Interest { one_shot: true, ..Interest::READ }).unwrap();
        event.notify().unwrap();
        epoll.wait(&mut ready, None).unwrap();
        assert_eq!(ready[0].token, 8);
        epoll.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert!(ready.is_empty(), "one shot only");
        epoll.remove(&event).unwrap();
        assert_eq!(epoll.remove(&event), Err(Errno::NOENT));
    }

    #[test]
    fn futex_crosses_mappings() {
        let (memfd, map) = SharedMap::create("t", 4096).unwrap();
        let word = &map.all::<AtomicU32>()[3];
        assert_eq!(futex_wait(word, 1, None), Ok(Woken::Changed));
        let short = Some(Duration::from_millis(2));
        assert_eq!(futex_wait(word, 0, short), Ok(Woken::TimedOut));
        std::thread::scope(|s| {
            s.spawn(|| {
                let other = SharedMap::new(&memfd, 0, 4096).unwrap();
                let word = &other.all::<AtomicU32>()[3];
                word.store(1, SeqCst);
                while futex_wake(word, u32::MAX).unwrap() == 0 && word.load(SeqCst) != 2 {
                    std::thread::yield_now();
                }
            });
            while word.load(SeqCst) == 0 {
                futex_wait(word, 0, Some(Duration::from_secs(10))).unwrap();
            }
            word.store(2, SeqCst);
        });
    }
}
