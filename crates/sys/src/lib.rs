//! The Linux port: the only crate that speaks to the kernel in unsafe code.
//!
//! Every module wraps one thing that the kernel offers, thinly: the kernel's own terms, its own
//! error numbers ([`Errno`]), no policy. What a wrapper adds is ownership of descriptors, checked
//! layouts, and honest partial results ([`Progress`]): the kernel often stops half-way, and a
//! wrapper that hides this loses pages.
//!
//! | module | what it wraps |
//! | --- | --- |
//! | [`userfault`], [`area`], [`bus`] | page faults handed to user space; ranges of one's own that have them; SIGBUS |
//! | [`memfd`], [`alias`], [`shared`], [`buffer`], [`allocator`] | memory: frames in a memfd and a view of them, shared words, aligned I/O buffers; what is freed |
//! | [`file`](mod@file), [`descriptor`], [`ring`], [`elf`], [`fanotify`] | files: identity, positioned I/O, transfers under way, locks; what a program file is; who writes to one |
//! | [`process`], [`given`], [`launch`], [`leash`], [`pagemap`], [`detour`], [`code`] | another process's memory and mappings; what this one was given; starting one, ending one that nobody is left for, and interrupting one; one's own code |
//! | [`socket`], [`event`], [`signal`], [`cancel`] | messages with descriptors, readiness, futexes, signals, cancellation |
//! | [`cgroup`], [`limits`], [`counters`], [`clock`] | limits, what the kernel counted, and the time |
//! | [`doctor`], [`mask`] | what this kernel, container and user can do, and pretending that they cannot |
#![deny(unsafe_code)]
#![cfg(target_os = "linux")]

#[cfg(not(all(target_endian = "little", target_pointer_width = "64")))]
compile_error!("Pagekeeper runs on 64-bit little-endian Linux only");

pub mod alias;
pub mod allocator;
pub mod area;
pub mod awake;
pub mod buffer;
pub mod bus;
pub mod cancel;
pub mod cgroup;
pub mod clock;
pub mod code;
pub mod counters;
pub mod descriptor;
pub mod detour;
pub mod doctor;
pub mod elf;
pub mod event;
#[cfg(test)]
mod fake_files;
pub mod fanotify;
pub mod file;
pub mod given;
#[cfg(test)]
mod in_child;
pub mod launch;
pub mod leash;
pub mod limits;
pub mod mask;
pub mod memfd;
pub mod pagemap;
pub mod process;
pub mod ring;
pub mod shared;
pub mod signal;
pub mod socket;
pub mod torn;
pub mod unforked;
pub mod userfault;

pub use rustix::io::Errno;

/// Result of a system call; the error is the kernel's own number.
pub type Result<T> = core::result::Result<T, Errno>;

/// Bytes in a page. The product refuses to run where the kernel's base page differs
/// (see [`doctor`]).
pub const PAGE_BYTES: usize = 4096;

/// An operation over a range that stopped before its end.
///
/// The kernel reports either the bytes that it finished or an error, and sometimes both; a caller
/// that ignores the former repeats work that must not be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped after {done_bytes} bytes: {errno}")]
pub struct Interrupted {
    /// Bytes of the range, from its start, for which the operation is complete.
    pub done_bytes: u64,
    /// Why it stopped.
    pub errno: Errno,
}

/// Result of an operation over a range: all its bytes, or how far it came and why it stopped.
pub type Progress = core::result::Result<u64, Interrupted>;

/// Turns the -1 of a libc call into the error that it left behind.
pub(crate) fn check(ret: libc::c_int) -> Result<libc::c_int> {
    if ret == -1 { Err(last_errno()) } else { Ok(ret) }
}

/// As [`check`], for calls that return a size.
pub(crate) fn check_size(ret: isize) -> Result<usize> {
    usize::try_from(ret).map_err(|_| last_errno())
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
