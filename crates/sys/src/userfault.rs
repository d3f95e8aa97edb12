//! Page faults handed to user space: `userfaultfd(2)` and `ioctl_userfaultfd(2)`.
//!
//! A [`Userfault`] stands for the address space of the process that created it, which is often
//! another process: its creator sends the descriptor over a socket, and a forked child's arrives as
//! an [`Event::Fork`]. The operations change that address space as `/proc/PID/mem` would.
//! In one's own process they can replace the contents of memory behind a reference's back, so
//! making a descriptor here is `unsafe`; adopting one that was received is not.
#![allow(unsafe_code)]

use core::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use bitflags::bitflags;
use linux_raw_sys::{general as raw, ioctl as number};
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::UserfaultfdFlags;

use crate::descriptor::{beside_streams, duplicate};
use crate::mask::{self, Capability};
use crate::{Errno, Interrupted, PAGE_BYTES, Progress, Result, process};

bitflags! {
    /// What a descriptor can be asked to do: `UFFD_FEATURE_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Features: u64 {
        /// Faults on write-protected pages are reported as such (`UFFD_FEATURE_PAGEFAULT_FLAG_WP`).
        const PAGEFAULT_FLAG_WP = raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP as u64;
        /// [`Event::Fork`]; needs CAP_SYS_PTRACE.
        const EVENT_FORK = raw::UFFD_FEATURE_EVENT_FORK as u64;
        /// [`Event::Remap`].
        const EVENT_REMAP = raw::UFFD_FEATURE_EVENT_REMAP as u64;
        /// [`Event::Remove`].
        const EVENT_REMOVE = raw::UFFD_FEATURE_EVENT_REMOVE as u64;
        /// [`Event::Unmap`].
        const EVENT_UNMAP = raw::UFFD_FEATURE_EVENT_UNMAP as u64;
        /// Missing pages of hugetlbfs.
        const MISSING_HUGETLBFS = raw::UFFD_FEATURE_MISSING_HUGETLBFS as u64;
        /// Missing pages of shared memory.
        const MISSING_SHMEM = raw::UFFD_FEATURE_MISSING_SHMEM as u64;
        /// No messages; the faulting thread gets SIGBUS.
        const SIGBUS = raw::UFFD_FEATURE_SIGBUS as u64;
        /// [`Event::Fault`] carries the thread.
        const THREAD_ID = raw::UFFD_FEATURE_THREAD_ID as u64;
        /// Unmapped pages of hugetlbfs.
        const MINOR_HUGETLBFS = raw::UFFD_FEATURE_MINOR_HUGETLBFS as u64;
        /// Unmapped pages of shared memory (Linux 5.14).
        const MINOR_SHMEM = raw::UFFD_FEATURE_MINOR_SHMEM as u64;
        /// [`Event::Fault`] carries the byte address, not the page's.
        const EXACT_ADDRESS = raw::UFFD_FEATURE_EXACT_ADDRESS as u64;
        /// Write protection of hugetlbfs and shared memory (Linux 5.19).
        const WP_HUGETLBFS_SHMEM = raw::UFFD_FEATURE_WP_HUGETLBFS_SHMEM as u64;
        /// Write protection holds on pages not yet there (Linux 6.4).
        const WP_UNPOPULATED = raw::UFFD_FEATURE_WP_UNPOPULATED as u64;
        /// [`Userfault::poison`] (Linux 6.6).
        const POISON = raw::UFFD_FEATURE_POISON as u64;
        /// The kernel resolves write-protection faults itself and remembers them (Linux 6.7).
        const WP_ASYNC = raw::UFFD_FEATURE_WP_ASYNC as u64;
        /// [`Userfault::move_pages`] (Linux 6.8).
        const MOVE = raw::UFFD_FEATURE_MOVE as u64;
        const _ = !0;
    }

    /// Which accesses to a registered range are faults: `UFFDIO_REGISTER_MODE_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Track: u64 {
        /// The page is in no frame.
        const MISSING = raw::UFFDIO_REGISTER_MODE_MISSING as u64;
        /// The page is write-protected and is written.
        const WRITE_PROTECT = raw::UFFDIO_REGISTER_MODE_WP as u64;
        /// The page is in the memfd but not mapped.
        const MINOR = raw::UFFDIO_REGISTER_MODE_MINOR as u64;
    }

    /// The operations that the kernel offers on a registered range: bit n is `_UFFDIO_n`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Operations: u64 {
        /// [`Userfault::wake`].
        const WAKE = 1 << raw::_UFFDIO_WAKE;
        /// [`Userfault::copy`].
        const COPY = 1 << raw::_UFFDIO_COPY;
        /// [`Userfault::zeropage`].
        const ZEROPAGE = 1 << raw::_UFFDIO_ZEROPAGE;
        /// [`Userfault::move_pages`].
        const MOVE = 1 << raw::_UFFDIO_MOVE;
        /// [`Userfault::write_protect`].
        const WRITEPROTECT = 1 << raw::_UFFDIO_WRITEPROTECT;
        /// [`Userfault::cont`].
        const CONTINUE = 1 << raw::_UFFDIO_CONTINUE;
        /// [`Userfault::poison`].
        const POISON = 1 << raw::_UFFDIO_POISON;
        const _ = !0;
    }
}

/// Features that [`mask`] can hide.
const MASKABLE: [(Features, Capability); 6] = [
    (Features::EVENT_FORK, Capability::EventFork),
    (Features::MINOR_SHMEM, Capability::MinorShmem),
    (Features::WP_HUGETLBFS_SHMEM, Capability::WpShmem),
    (Features::POISON, Capability::Poison),
    (Features::WP_ASYNC, Capability::WpAsync),
    (Features::MOVE, Capability::Move),
];

fn masked_features() -> Features {
    let hidden = MASKABLE.iter().filter(|(_, c)| !mask::allows(*c));
    hidden.fold(Features::empty(), |all, (f, _)| all | *f)
}

// The numbers that linux-raw-sys lacks, and the mode flags; from <linux/userfaultfd.h>.
const UFFDIO_POISON: Opcode =
    opcode::read_write::<raw::uffdio_poison>(raw::UFFDIO as u8, raw::_UFFDIO_POISON as u8);
const UFFDIO_MOVE: Opcode =
    opcode::read_write::<raw::uffdio_move>(raw::UFFDIO as u8, raw::_UFFDIO_MOVE as u8);
const USERFAULTFD_IOC_NEW: Opcode = opcode::none(raw::UFFDIO as u8, 0);
const MODE_DONTWAKE: u64 = 1 << 0;
const COPY_MODE_WP: u64 = raw::UFFDIO_COPY_MODE_WP as u64;
const CONTINUE_MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
const WRITEPROTECT_MODE_DONTWAKE: u64 = 1 << 1;
const MOVE_MODE_ALLOW_SRC_HOLES: u64 = 1 << 1;

const _: () = {
    assert!(number::UFFDIO_API == 0xc018_aa3f && size_of::<raw::uffdio_api>() == 24);
    assert!(number::UFFDIO_REGISTER == 0xc020_aa00 && size_of::<raw::uffdio_register>() == 32);
    assert!(number::UFFDIO_UNREGISTER == 0x8010_aa01 && size_of::<raw::uffdio_range>() == 16);
    assert!(number::UFFDIO_WAKE == 0x8010_aa02);
    assert!(number::UFFDIO_COPY == 0xc028_aa03 && size_of::<raw::uffdio_copy>() == 40);
    assert!(number::UFFDIO_ZEROPAGE == 0xc020_aa04 && size_of::<raw::uffdio_zeropage>() == 32);
    assert!(UFFDIO_MOVE == 0xc028_aa05 && size_of::<raw::uffdio_move>() == 40);
    assert!(
        number::UFFDIO_WRITEPROTECT == 0xc018_aa06 && size_of::<raw::uffdio_writeprotect>() == 24
    );
    assert!(number::UFFDIO_CONTINUE == 0xc020_aa07 && size_of::<raw::uffdio_continue>() == 32);
    assert!(UFFDIO_POISON == 0xc020_aa08 && size_of::<raw::uffdio_poison>() == 32);
    assert!(USERFAULTFD_IOC_NEW == 0xaa00);
    assert!(size_of::<raw::uffd_msg>() == size_of::<Message>());
};

/// A message as the kernel writes it: `struct uffd_msg`, in native words.
/// Word 0 holds the event in its lowest byte, words 1 to 3 its arguments.
type Message = [u64; 4];

/// Messages read by one system call; the rest waits for the next.
const MESSAGES_PER_READ: usize = 64;

/// What happened in the address space of a [`Userfault`]. Addresses are that address space's.
#[derive(Debug)]
pub enum Event {
    /// A thread waits for a page.
    Fault {
        /// The page's address; the byte's with [`Features::EXACT_ADDRESS`].
        address: u64,
        /// The access is a write.
        write: bool,
        /// The page is present and write-protected.
        wp: bool,
        /// The page is in the memfd but not mapped.
        minor: bool,
        /// The waiting thread; 0 without [`Features::THREAD_ID`].
        tid: u32,
    },
    /// The process forked: the child's address space, registered alike. The parent's `fork` returns
    /// when this event has been read.
    Fork {
        /// Stands for the child.
        child: Userfault,
    },
    /// A registered range moved (`mremap(2)`).
    Remap {
        /// Old address.
        from: u64,
        /// New address.
        to: u64,
        /// Bytes that it had at the old one; or, where it was made shorter as it moved and
        /// [`tells_moved_bytes`] says so, those that it has at the new one.
        len: u64,
    },
    /// Pages of a range were dropped (`madvise(2)` DONTNEED or REMOVE); it stays registered.
    Remove {
        /// First byte.
        start: u64,
        /// Behind the last byte.
        end: u64,
    },
    /// A range is no longer mapped, so no longer registered.
    Unmap {
        /// First byte.
        start: u64,
        /// Behind the last byte.
        end: u64,
    },
}

/// How to make a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// Reads return [`Errno::AGAIN`] instead of waiting. A blocking descriptor cannot be polled:
    /// the kernel reports POLLERR for it.
    pub nonblocking: bool,
    /// Serve faults of user code only (any user may have this); a system call on a missing page
    /// then fails with EFAULT.
    pub user_mode_only: bool,
}

/// Whether programs that this process starts may have all their faults served, those of system calls
/// too, and their forks reported. Else [`OpenFlags::user_mode_only`] is left, without forks.
pub fn may_follow_programs() -> bool {
    if !process::reach::programs_may_trace() {
        return false;
    }
    let flags = OpenFlags { nonblocking: true, user_mode_only: false };
    // SAFETY: nothing is registered.
    let opened = unsafe { Userfault::open(flags) };
    opened.and_then(|userfault| userfault.api(Features::EVENT_FORK)).is_ok()
}

/// What to do where `userfaultfd(2)` is denied also for faults of user code, which the kernel permits to anybody.
pub const UNFILTERED: &str = "start the container with a seccomp profile that allows userfaultfd, or without any: \
     docker run --security-opt seccomp=unconfined … (or podman, alike)";

/// `/dev/userfaultfd` (Linux 6.1), opened: whoever has it may make descriptors for itself, of all
/// faults.
///
/// # Errors
/// Those of `open(2)`; [`Errno::PERM`]: not to be used here.
pub fn device() -> Result<OwnedFd> {
    if !mask::allows(Capability::Userfault) {
        return Err(Errno::PERM);
    }
    rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// A userfaultfd: the faults of one address space, and the power to answer them.
#[derive(Debug)]
pub struct Userfault {
    fd: OwnedFd,
}

impl Userfault {
    /// Makes a descriptor for this process: by `userfaultfd(2)`, else by `/dev/userfaultfd`, which
    /// grants it by file permissions. Call [`Userfault::api`] next.
    ///
    /// # Safety
    /// Whoever uses the descriptor must keep to ranges of this process that no Rust reference
    /// covers while an operation on them runs (memory reached by raw pointers or atomics only):
    /// the operations write to it, protect it, or make its access deadly.
    ///
    /// # Errors
    /// [`Errno::PERM`]: neither way is permitted; [`Errno::NOSYS`]: the kernel has no userfaultfd.
    pub unsafe fn open(flags: OpenFlags) -> Result<Userfault> {
        let capability = if flags.user_mode_only {
            Capability::UserfaultUserMode
        } else {
            Capability::Userfault
        };
        if !mask::allows(capability) {
            return Err(Errno::PERM);
        }
        // SAFETY: passed on to the caller by this function's own contract.
        match unsafe { Self::open_by_syscall(flags) } {
            // SAFETY: as above.
            Err(Errno::PERM) => unsafe { Self::open_by_device(flags) }.map_err(|_| Errno::PERM),
            result => result,
        }
    }

    /// [`Userfault::open`] by the system call alone.
    ///
    /// # Safety
    /// As for [`Userfault::open`].
    ///
    /// # Errors
    /// As `userfaultfd(2)`.
    pub unsafe fn open_by_syscall(flags: OpenFlags) -> Result<Userfault> {
        // SAFETY: the call itself touches no memory; what its result may do is the caller's duty.
        let fd =
            unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::from_bits_retain(bits(flags))) };
        beside_streams(fd?).map(Userfault::from_fd)
    }

    /// [`Userfault::open`] by `/dev/userfaultfd` alone (Linux 6.1).
    ///
    /// # Safety
    /// As for [`Userfault::open`].
    ///
    /// # Errors
    /// Those of `open(2)` on the device, and of `USERFAULTFD_IOC_NEW`.
    pub unsafe fn open_by_device(flags: OpenFlags) -> Result<Userfault> {
        let device = device()?;
        // SAFETY: the ioctl takes its flags as an integer and touches no memory. It returns a
        // descriptor that nobody else owns.
        let fd = unsafe {
            crate::check(libc::ioctl(
                device.as_raw_fd(),
                libc::Ioctl::from(USERFAULTFD_IOC_NEW),
                bits(flags) as libc::c_ulong,
            ))?
        };
        // SAFETY: as said, the number is a fresh descriptor of ours.
        beside_streams(unsafe { OwnedFd::from_raw_fd(fd) }).map(Userfault::from_fd)
    }

    /// Adopts a descriptor that *another* process made and sent. (A descriptor of this process is
    /// made by [`Userfault::open`], with its duties.) A descriptor that is no userfaultfd fails
    /// with [`Errno::NOTTY`] at the first operation.
    pub fn from_fd(fd: OwnedFd) -> Userfault {
        Userfault { fd }
    }

    /// [`Userfault::from_fd`] of what may be any descriptor. Reads of it do not wait.
    ///
    /// # Errors
    /// [`Errno::INVAL`]: it is no userfaultfd.
    pub fn received(fd: OwnedFd) -> Result<Userfault> {
        let what = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new())?;
        if what.as_bytes() != b"anon_inode:[userfaultfd]" {
            return Err(Errno::INVAL);
        }
        rustix::fs::fcntl_setfl(&fd, rustix::fs::fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        Ok(Userfault::from_fd(fd))
    }

    /// Whether no event will ever be read: nobody has called [`Userfault::api`], or it would wait.
    pub fn has_failed(&self) -> bool {
        use rustix::event::PollFlags;
        crate::event::poll_now(&self.fd)
            .map_or(true, |is| is.intersects(PollFlags::ERR | PollFlags::HUP))
    }

    /// Gives the descriptor up, to be sent or kept.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// A second descriptor for the same address space; faults go to whichever reads first.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn try_clone(&self) -> Result<Userfault> {
        duplicate(&self.fd).map(Userfault::from_fd)
    }

    /// `UFFDIO_API`: turns features on, once per descriptor, before anything else.
    /// Returns what the kernel has. With no feature asked for it only asks the kernel, but the
    /// descriptor is then set up without any.
    ///
    /// # Errors
    /// [`Errno::INVAL`]: the kernel lacks a feature, or the descriptor was set up before;
    /// [`Errno::PERM`]: [`Features::EVENT_FORK`] needs CAP_SYS_PTRACE of whoever calls this, who
    /// may be the receiver of the descriptor instead of its maker.
    pub fn api(&self, features: Features) -> Result<Features> {
        let masked = masked_features();
        if features.intersects(masked) {
            return Err(Errno::INVAL);
        }
        let mut arg =
            raw::uffdio_api { api: u64::from(raw::UFFD_API), features: features.bits(), ioctls: 0 };
        self.update::<{ number::UFFDIO_API }, _>(&mut arg)?;
        Ok(Features::from_bits_retain(arg.features) - masked)
    }

    /// `UFFDIO_REGISTER`: accesses to `[start, start + len)` become faults. Page-aligned.
    ///
    /// # Errors
    /// [`Errno::INVAL`]: unaligned, not mapped, or not a kind of memory that can be tracked so;
    /// [`Errno::BUSY`]: registered with another descriptor; [`Errno::NOMEM`]: out of memory or the
    /// process is gone.
    pub fn register(&self, start: u64, len: u64, track: Track) -> Result<Operations> {
        let range = raw::uffdio_range { start, len };
        let mut arg = raw::uffdio_register { range, mode: track.bits(), ioctls: 0 };
        self.update::<{ number::UFFDIO_REGISTER }, _>(&mut arg)?;
        Ok(Operations::from_bits_retain(arg.ioctls))
    }

    /// `UFFDIO_UNREGISTER`: the range is served by the kernel again; its waiters are woken.
    ///
    /// # Errors
    /// [`Errno::INVAL`]: unaligned or not mapped; [`Errno::NOMEM`]: the process is gone.
    pub fn unregister(&self, start: u64, len: u64) -> Result<()> {
        let mut arg = raw::uffdio_range { start, len };
        self.update::<{ number::UFFDIO_UNREGISTER }, _>(&mut arg)
    }

    /// `UFFDIO_WAKE`: threads that wait for pages of the range look again.
    ///
    /// # Errors
    /// [`Errno::INVAL`]: unaligned.
    pub fn wake(&self, start: u64, len: u64) -> Result<()> {
        let mut arg = raw::uffdio_range { start, len };
        self.update::<{ number::UFFDIO_WAKE }, _>(&mut arg)
    }

    /// `UFFDIO_COPY`: fills missing pages at `dst` with `src` (whole pages), write-protected if
    /// `wp`, and wakes their waiters unless `dontwake`.
    ///
    /// # Errors
    /// [`Errno::EXIST`]: a page is there already; [`Errno::AGAIN`]: the address space is changing,
    /// read the events first; [`Errno::NOENT`]: not registered any more; [`Errno::SRCH`]: the
    /// process is gone; [`Errno::NOMEM`]/[`Errno::NOSPC`]: no frame.
    pub fn copy(&self, dst: u64, src: &[u8], wp: bool, dontwake: bool) -> Progress {
        let mode = if wp { COPY_MODE_WP } else { 0 } | if dontwake { MODE_DONTWAKE } else { 0 };
        let (src, len) = (src.as_ptr() as u64, src.len() as u64);
        let mut arg = raw::uffdio_copy { dst, src, len, mode, copy: 0 };
        // `src` is only read, and is borrowed during the call.
        let result = self.update::<{ number::UFFDIO_COPY }, _>(&mut arg);
        progress(result, arg.copy, len)
    }

    /// `UFFDIO_ZEROPAGE`: as [`Userfault::copy`], with zeros. Cannot write-protect.
    ///
    /// # Errors
    /// As for [`Userfault::copy`].
    pub fn zeropage(&self, start: u64, len: u64, dontwake: bool) -> Progress {
        let mode = if dontwake { MODE_DONTWAKE } else { 0 };
        let range = raw::uffdio_range { start, len };
        let mut arg = raw::uffdio_zeropage { range, mode, zeropage: 0 };
        let result = self.update::<{ number::UFFDIO_ZEROPAGE }, _>(&mut arg);
        progress(result, arg.zeropage, len)
    }

    /// `UFFDIO_CONTINUE`: maps pages that are in the memfd, write-protected if `wp`. Without `wp`
    /// an earlier protection of the page is dropped. Also clears a poison mark.
    ///
    /// # Errors
    /// [`Errno::FAULT`]: a page is not in the memfd; [`Errno::EXIST`]: one is mapped already;
    /// [`Errno::INVAL`]: `wp` before Linux 6.4; else as for
    /// [`Userfault::copy`].
    pub fn cont(&self, start: u64, len: u64, wp: bool, dontwake: bool) -> Progress {
        if wp && !mask::allows(Capability::WpContinue) {
            return Err(Interrupted { done_bytes: 0, errno: Errno::INVAL });
        }
        let mode = if wp { CONTINUE_MODE_WP } else { 0 } | if dontwake { MODE_DONTWAKE } else { 0 };
        let range = raw::uffdio_range { start, len };
        let mut arg = raw::uffdio_continue { range, mode, mapped: 0 };
        let result = self.update::<{ number::UFFDIO_CONTINUE }, _>(&mut arg);
        progress(result, arg.mapped, len)
    }

    /// `UFFDIO_WRITEPROTECT`: protects the range, or ends its protection and wakes the writers
    /// unless `dontwake` (which the kernel accepts only when ending it; it is ignored when
    /// protecting).
    ///
    /// # Errors
    /// [`Errno::NOENT`]: part of it is not registered for this, or, before Linux 6.4, it is of more
    /// than one mapping; [`Errno::AGAIN`]: the address space
    /// is changing; [`Errno::SRCH`]: the process is gone.
    pub fn write_protect(&self, start: u64, len: u64, protect: bool, dontwake: bool) -> Result<()> {
        // Before Linux 6.4, parts of several mappings. Which those are is not looked up here.
        if len > PAGE_BYTES as u64 && !mask::allows(Capability::WpContinue) {
            return Err(Errno::NOENT);
        }
        let mode = match (protect, dontwake) {
            (true, _) => WRITEPROTECT_MODE_WP,
            (false, true) => WRITEPROTECT_MODE_DONTWAKE,
            (false, false) => 0,
        };
        let mut arg = raw::uffdio_writeprotect { range: raw::uffdio_range { start, len }, mode };
        self.update::<{ number::UFFDIO_WRITEPROTECT }, _>(&mut arg)
    }

    /// `UFFDIO_POISON`: an access to these unmapped pages raises SIGBUS, until they are filled or
    /// dropped by `madvise(2)`.
    ///
    /// # Errors
    /// [`Errno::INVAL`]: the kernel lacks it; [`Errno::EXIST`]: a page is mapped; else as for
    /// [`Userfault::copy`].
    pub fn poison(&self, start: u64, len: u64, dontwake: bool) -> Progress {
        if !mask::allows(Capability::Poison) {
            return Err(Interrupted { done_bytes: 0, errno: Errno::INVAL });
        }
        let mode = if dontwake { MODE_DONTWAKE } else { 0 };
        let range = raw::uffdio_range { start, len };
        let mut arg = raw::uffdio_poison { range, mode, updated: 0 };
        let result = self.update::<UFFDIO_POISON, _>(&mut arg);
        progress(result, arg.updated, len)
    }

    /// `UFFDIO_MOVE`: moves private anonymous pages from `src` to the missing pages at `dst`, both
    /// in the descriptor's address space. Absent source pages are skipped if `allow_holes`.
    ///
    /// # Errors
    /// [`Errno::NOENT`]: a source page is absent; [`Errno::BUSY`]: one is pinned or shared with a
    /// forked child; else as for [`Userfault::copy`].
    pub fn move_pages(&self, dst: u64, src: u64, len: u64, allow_holes: bool) -> Progress {
        if !mask::allows(Capability::Move) {
            return Err(Interrupted { done_bytes: 0, errno: Errno::INVAL });
        }
        let mode = if allow_holes { MOVE_MODE_ALLOW_SRC_HOLES } else { 0 };
        let mut arg = raw::uffdio_move { dst, src, len, mode, move_: 0 };
        let result = self.update::<UFFDIO_MOVE, _>(&mut arg);
        progress(result, arg.move_, len)
    }

    /// Whether the address space still exists; it goes with its last thread, and when the process
    /// executes another program.
    ///
    /// Asks to write-protect a page where nothing is registered: the kernel looks for the address
    /// space first ([`Errno::SRCH`]) and for the range next ([`Errno::NOENT`]).
    pub fn is_alive(&self) -> bool {
        // The lowest page that an ordinary user may map. Nobody puts managed memory there; if one
        // did, the next write there would be reported once too often, which costs time only.
        const LOWEST_ADDRESS: u64 = 64 << 10;
        let result = self.write_protect(LOWEST_ADDRESS, PAGE_BYTES as u64, true, false);
        // The last is what no userfaultfd says.
        !matches!(result, Err(Errno::SRCH | Errno::NOTTY))
    }

    /// Reads the events that wait, at most 64 of them, appends them to `events` and returns their
    /// number; 0 if there is none and the descriptor is nonblocking.
    ///
    /// # Errors
    /// [`Errno::INVAL`]: [`Userfault::api`] was not called; [`Errno::MFILE`]: no descriptor is free
    /// for a forked child; the event stays queued.
    pub fn read_events(&self, events: &mut Vec<Event>) -> Result<usize> {
        let mut messages = [[0u64; 4]; MESSAGES_PER_READ];
        let bytes = loop {
            // SAFETY: the buffer is writable for its whole size during the call, and any bytes are
            // valid u64s. (The kernel writes whole messages.)
            let ret = unsafe {
                libc::read(
                    self.fd.as_raw_fd(),
                    messages.as_mut_ptr().cast(),
                    size_of::<[Message; MESSAGES_PER_READ]>(),
                )
            };
            match crate::check_size(ret) {
                Ok(bytes) => break bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(0),
                Err(errno) => return Err(errno),
            }
        };
        let before = events.len();
        for message in &messages[..bytes / size_of::<Message>()] {
            events.extend(decode(message).map(|event| match event {
                Decoded::Event(event) => event,
                Decoded::Fork(fd) => {
                    // SAFETY: the kernel installed this descriptor for us with this very message,
                    // which is decoded once; nobody else owns it.
                    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                    Event::Fork { child: Userfault::from_fd(fd) }
                }
            }));
        }
        Ok(events.len() - before)
    }

    /// Runs an ioctl that reads and updates `arg`. `OPCODE` must be one of this file's, with the
    /// struct that the assertions above pair it with.
    fn update<const OPCODE: Opcode, T>(&self, arg: &mut T) -> Result<()> {
        // The size is part of the number, so a wrong struct does not compile.
        const { assert!(size_of::<T>() == (OPCODE >> 16 & 0x3fff) as usize) };
        // SAFETY: the number says that the kernel reads and writes `size_of::<T>()` bytes at the
        // argument, which is exactly `arg`; every field is an integer, valid with any bits. What
        // the operation does to the descriptor's address space is the concern of whoever made the
        // descriptor (see `open`); for another process no memory of ours is concerned, save the
        // source of `copy`, which is read only.
        unsafe { ioctl(&self.fd, Updater::<OPCODE, T>::new(arg)) }
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What this kernel offers to this user, asked with a descriptor made for the question.
///
/// # Errors
/// As for [`Userfault::open`] with `user_mode_only`, which needs the least.
pub fn supported_features() -> Result<Features> {
    let flags = OpenFlags { nonblocking: true, user_mode_only: true };
    // SAFETY: the descriptor registers nothing and is closed at once.
    unsafe { Userfault::open(flags) }?.api(Features::empty())
}

/// Whether this kernel tells of a range that is made shorter as it moves how much of it moved
/// (Linux 6.15), and not how long it was.
pub fn tells_moved_bytes() -> bool {
    is_since(rustix::system::uname().release().to_bytes(), (6, 15))
}

/// Whether a kernel's release is this version or a later one. What cannot be read is not.
fn is_since(release: &[u8], version: (u32, u32)) -> bool {
    let digits = |part: &[u8]| {
        let end = part.iter().position(|c| !c.is_ascii_digit()).unwrap_or(part.len());
        std::str::from_utf8(&part[..end]).ok()?.parse().ok()
    };
    let mut parts = release.split(|c| *c == b'.').map(digits);
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= version,
        _ => false,
    }
}

fn bits(flags: OpenFlags) -> u32 {
    let nonblocking = if flags.nonblocking { OFlags::NONBLOCK.bits() } else { 0 };
    let user = if flags.user_mode_only { raw::UFFD_USER_MODE_ONLY } else { 0 };
    OFlags::CLOEXEC.bits() | nonblocking | user
}

/// The outcome of a range operation from the call's result and the count that it left, which is
/// bytes done or a negated error number (or untouched: 0).
fn progress(result: Result<()>, count: i64, len: u64) -> Progress {
    let done_bytes = u64::try_from(count).unwrap_or(0);
    match result {
        Ok(()) if done_bytes == len => Ok(len),
        // The kernel fails a short count with EAGAIN; be safe where it should not.
        Ok(()) => Err(Interrupted { done_bytes, errno: Errno::AGAIN }),
        Err(errno) => Err(Interrupted { done_bytes, errno }),
    }
}

enum Decoded {
    Event(Event),
    Fork(i32),
}

/// Decodes a message; `None` for an event that this code does not know (none was asked for).
fn decode(message: &Message) -> Option<Decoded> {
    let &[head, a, b, c] = message;
    let flag = |bit: u32| a & u64::from(bit) != 0;
    Some(Decoded::Event(match u32::from(head as u8) {
        raw::UFFD_EVENT_PAGEFAULT => Event::Fault {
            address: b,
            write: flag(raw::UFFD_PAGEFAULT_FLAG_WRITE),
            wp: flag(raw::UFFD_PAGEFAULT_FLAG_WP),
            minor: flag(raw::UFFD_PAGEFAULT_FLAG_MINOR),
            tid: c as u32,
        },
        raw::UFFD_EVENT_FORK => return Some(Decoded::Fork(a as u32 as i32)),
        raw::UFFD_EVENT_REMAP => Event::Remap { from: a, to: b, len: c },
        raw::UFFD_EVENT_REMOVE => Event::Remove { start: a, end: b },
        raw::UFFD_EVENT_UNMAP => Event::Unmap { start: a, end: b },
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_as_versions() {
        for (release, since) in [
            ("6.15.0", true),
            ("6.15", true),
            ("6.15-rc1", true),
            ("7.0.1-generic", true),
            ("6.9.12", false),
            ("5.19.0", false),
            ("6", false),
            ("", false),
        ] {
            assert_eq!(is_since(release.as_bytes(), (6, 15)), since, "{release}");
        }
    }
}
