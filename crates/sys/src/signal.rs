//! Signals as a launcher needs them: blocked and read from a descriptor (`signalfd(2)`), so that no
//! handler runs anywhere.
#![allow(unsafe_code)]

use core::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::{Errno, Result, check};

/// A set of signals.
#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

impl SignalSet {
    /// These signals; numbers that are none are left out.
    pub fn of(signals: &[i32]) -> SignalSet {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the set it is given; it cannot fail.
        let mut set: libc::sigset_t = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            set.assume_init()
        };
        for &signal in signals {
            // SAFETY: the set is initialised; a bad number is an error and changes nothing.
            unsafe { libc::sigaddset(&mut set, signal) };
        }
        SignalSet(set)
    }

    /// Those that somebody sends, and that no fault of the thread itself raises.
    pub fn sent() -> SignalSet {
        let raised = [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGILL,
            libc::SIGFPE,
            libc::SIGTRAP,
            libc::SIGABRT,
            libc::SIGSYS,
        ];
        let sent: Vec<i32> = (1..=libc::SIGRTMAX()).filter(|s| !raised.contains(s)).collect();
        SignalSet::of(&sent)
    }

    /// It without these.
    #[must_use]
    pub fn without(mut self, signals: &[i32]) -> SignalSet {
        for &signal in signals {
            // SAFETY: the set is initialised; a bad number is an error and changes nothing.
            unsafe { libc::sigdelset(&mut self.0, signal) };
        }
        self
    }

    /// Whether it holds a signal.
    pub fn contains(&self, signal: i32) -> bool {
        // SAFETY: the set is initialised.
        unsafe { libc::sigismember(&self.0, signal) == 1 }
    }
}

impl core::fmt::Debug for SignalSet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_set().entries((1..=64).filter(|s| self.contains(*s))).finish()
    }
}

/// Blocks signals in the calling thread, and in threads and programs started by it later.
/// Returns the mask that held before.
///
/// # Errors
/// None is known.
pub fn block(set: &SignalSet) -> Result<SignalSet> {
    change_mask(libc::SIG_BLOCK, set)
}

/// Makes a set the calling thread's mask. Returns the mask that held before.
///
/// # Errors
/// None is known.
pub fn set_mask(set: &SignalSet) -> Result<SignalSet> {
    change_mask(libc::SIG_SETMASK, set)
}

fn change_mask(how: libc::c_int, set: &SignalSet) -> Result<SignalSet> {
    let mut before = SignalSet::of(&[]);
    // SAFETY: both sets are initialised and alive.
    match unsafe { libc::pthread_sigmask(how, &set.0, &mut before.0) } {
        0 => Ok(before),
        error => Err(Errno::from_raw_os_error(error)),
    }
}

/// Whether a signal waits that the calling thread blocks: for it, or for the process.
pub fn is_pending(signal: i32) -> bool {
    let mut set = SignalSet::of(&[]);
    // SAFETY: the set is initialised.
    unsafe { libc::sigpending(&mut set.0) == 0 && set.contains(signal) }
}

/// Takes away one of these signals, which the calling thread blocks, if one waits.
pub fn take(set: &SignalSet) {
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the set and the time are initialised, and nothing is told of the signal.
    unsafe { libc::sigtimedwait(&set.0, core::ptr::null_mut(), &at_once) };
}

/// Whether this process ignores a signal; false if there is no such signal.
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: asks for the action, and changes nothing; what it is, is read if that succeeded.
    unsafe {
        libc::sigaction(signal, core::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Ignores a signal in the whole process, or gives it its default action again. An ignored signal
/// stays so in executed programs (see [`crate::launch::ChildSetup::default_signals`]).
///
/// # Errors
/// [`Errno::INVAL`]: no such signal, or it cannot be ignored.
pub fn ignore(signal: i32, ignored: bool) -> Result<()> {
    let action = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither action runs code of ours.
    if unsafe { libc::signal(signal, action) } == libc::SIG_ERR {
        return Err(crate::last_errno());
    }
    Ok(())
}

/// Sends a signal to a process.
///
/// # Errors
/// [`Errno::SRCH`], [`Errno::PERM`], [`Errno::INVAL`].
pub fn send(pid: u32, signal: i32) -> Result<()> {
    // Zero and negative numbers would address groups.
    let pid = i32::try_from(pid).ok().filter(|p| *p > 0).ok_or(Errno::SRCH)?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// `SI_KERNEL` (sigaction(2))
const SI_KERNEL: i32 = 0x80;

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Which.
    pub signal: i32,
    /// Who sent it; 0 if the kernel did, or somebody in another namespace of process ids.
    pub sender_pid: u32,
    /// The kernel sent it, as for the terminal.
    pub is_kernels: bool,
    /// The descriptor that it is about (a broken lease); 0 for other signals.
    pub fd: i32,
}

/// Blocked signals, read instead of handled.
#[derive(Debug)]
pub struct SignalFd {
    fd: OwnedFd,
}

impl SignalFd {
    /// `signalfd(2)`, nonblocking. The signals must be blocked in all threads (block them before
    /// starting any), or a handler or default action may take them first.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn new(set: &SignalSet) -> Result<SignalFd> {
        // SAFETY: the set is initialised; -1 asks for a new descriptor.
        let fd =
            check(unsafe { libc::signalfd(-1, &set.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) })?;
        // SAFETY: a fresh descriptor that nobody else owns.
        Ok(SignalFd { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// The next signal that arrived, if one did.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn read(&self) -> Result<Option<Arrived>> {
        const SIZE: usize = size_of::<libc::signalfd_siginfo>();
        const _: () = assert!(SIZE == 128);
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        loop {
            // SAFETY: the kernel writes at most SIZE bytes to the live struct.
            let ret = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), SIZE) };
            match crate::check_size(ret) {
                Ok(SIZE) => break,
                Ok(_) => return Err(Errno::IO),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
        // SAFETY: all fields are integers, zeroed and then written by the kernel.
        let info = unsafe { info.assume_init() };
        Ok(Some(Arrived {
            signal: info.ssi_signo as i32,
            sender_pid: info.ssi_pid,
            is_kernels: info.ssi_code == SI_KERNEL,
            fd: info.ssi_fd,
        }))
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// `tgkill(2)`: sends a signal to one thread of a process.
///
/// # Errors
/// [`Errno::SRCH`]: no such thread in that process; [`Errno::PERM`].
pub fn send_to_thread(pid: u32, tid: u32, signal: i32) -> Result<()> {
    let (pid, tid) = (i64::from(pid), i64::from(tid));
    // SAFETY: the call takes three numbers and touches no memory.
    let ret = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, i64::from(signal)) };
    crate::check_size(ret as isize).map(drop)
}

/// `siginfo_t`, sigaction(2), of a signal that was queued with a value.
#[repr(C)]
struct Queued {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    /// Process and user id of a sender; or the address of a fault.
    address: u64,
    value: u64,
    rest: [u64; 12],
}
const _: () = assert!(size_of::<Queued>() == size_of::<libc::siginfo_t>());

/// `rt_tgsigqueueinfo(2)`: sends a signal to one thread of a process that tells of an address, as `si_addr`
/// and, where the kernel does not correct the former (it is a sender's, to it), as the value. A process
/// cannot pretend to be the kernel: `code` is negative.
///
/// # Errors
/// [`Errno::SRCH`]: no such thread in that process; [`Errno::PERM`]: so for other codes, too.
pub fn tell_thread(pid: u32, tid: u32, signal: i32, code: i32, address: u64) -> Result<()> {
    let value = address;
    let info = Queued { signal, errno: 0, code, padding: 0, address, value, rest: [0; 12] };
    let (pid, tid, signal) = (i64::from(pid), i64::from(tid), i64::from(signal));
    // SAFETY: the kernel reads a `siginfo_t`, which lives as long.
    let ret =
        unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, &raw const info) };
    crate::check_size(ret as isize).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_signals_are_read() {
        std::thread::spawn(|| {
            let set = SignalSet::of(&[libc::SIGUSR2, 4711]);
            assert_eq!(format!("{set:?}"), format!("{{{}}}", libc::SIGUSR2));
            block(&set).unwrap();
            let fd = SignalFd::new(&set).unwrap();
            assert_eq!(fd.read(), Ok(None));
            // SAFETY: signals this very thread, which has it blocked.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
            let got = fd.read().unwrap().unwrap();
            assert_eq!((got.signal, got.sender_pid), (libc::SIGUSR2, std::process::id()));
            assert!(!got.is_kernels);
        })
        .join()
        .unwrap();
        assert_eq!(ignore(libc::SIGKILL, true), Err(Errno::INVAL));
        assert!(!is_ignored(libc::SIGUSR1) && !is_ignored(0));
        ignore(libc::SIGUSR1, true).unwrap();
        assert!(is_ignored(libc::SIGUSR1));
        ignore(libc::SIGUSR1, false).unwrap();
        let nobody = std::process::id() + 100_000_000;
        assert_eq!(tell_thread(nobody, nobody, libc::SIGUSR2, -2, 0), Err(Errno::SRCH));
        assert_eq!(send(0, 0), Err(Errno::SRCH));
        assert_eq!(send(std::process::id(), 0), Ok(()));
    }
}
