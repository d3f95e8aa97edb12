//! One manager per file: an exclusive registration among the runs of one user.
//!
//! Runs share one small file; a run that manages a file holds an open-file-description lock on the
//! byte of it that the file's identity hashes to. The kernel drops the lock when the run dies.

use pagekeeper_sys::Errno;
use pagekeeper_sys::file::{self, FileId, RangeLock};
use rustix::fs::{Mode, OFlags};
use std::os::fd::OwnedFd;

/// Opens the registry of this user; `None` if there is no place for one.
pub(crate) fn open() -> Option<OwnedFd> {
    let uid = rustix::process::geteuid().as_raw();
    ["/dev/shm", "/tmp"].iter().find_map(|dir| {
        let path = format!("{dir}/pagekeeper-{uid}.registry");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).ok()
    })
}

/// Registers a file for as long as the registry's descriptor lives.
pub(crate) fn claim(registry: &OwnedFd, id: FileId) -> Result<(), Errno> {
    file::lock_range(registry, RangeLock::Exclusive, byte_of(id), 1, false)
}

fn byte_of(id: FileId) -> u64 {
    (id.ino ^ id.dev.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2
}

/// As [`claim`], beside others that only read.
pub(crate) fn claim_shared(registry: &OwnedFd, id: FileId) -> Result<(), Errno> {
    file::lock_range(registry, RangeLock::Shared, byte_of(id), 1, false)
}

/// Gives a file up. Closing the descriptor does so only if no forked child has a copy of it.
pub(crate) fn release(registry: &OwnedFd, id: FileId) {
    let _ = file::lock_range(registry, RangeLock::Unlock, byte_of(id), 1, false);
}

/// Gives every file up, before any of them is closed. At the end of a process the kernel closes its
/// files in an order of its own: a deleted one would be freed, and its inode be another run's new
/// file, while this description and its locks are still there.
pub(crate) fn release_all(registry: &OwnedFd) {
    let _ = file::lock_range(registry, RangeLock::Unlock, 0, 0, false);
}
