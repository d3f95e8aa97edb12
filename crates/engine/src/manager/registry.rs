//! One manager per file: an exclusive registration among the runs of one user.
//!
//! Runs share one small file; a run that manages a file holds an open-file-description lock on the
//! byte of it that the file's identity hashes to. The kernel drops the lock when the run dies.

use pagekeeper_sys::Errno;
use pagekeeper_sys::descriptor::beside_streams;
use pagekeeper_sys::file::{self, FileId, RangeLock};
use rustix::fs::{FileType, Mode, OFlags};
use std::os::fd::{AsFd, OwnedFd};

/// Names that are tried, should others have taken the first ones: anybody may make files there.
const NAMES: u32 = 16;

/// Where anybody may make files, in memory if possible.
pub(crate) const DIRECTORIES: [&str; 2] = ["/dev/shm", "/tmp"];

/// Opens the registry of this user; `None` if there is no place for one.
pub(crate) fn open() -> Option<OwnedFd> {
    open_in(&DIRECTORIES)
}

fn open_in(directories: &[&str]) -> Option<OwnedFd> {
    let uid = rustix::process::geteuid().as_raw();
    let flags = OFlags::RDWR
        | OFlags::CREATE
        | OFlags::CLOEXEC
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY;
    directories.iter().find_map(|directory| {
        (0..NAMES).find_map(|n| {
            let more = if n == 0 { String::new() } else { format!(".{n}") };
            let path = format!("{directory}/pagekeeper-{uid}.registry{more}");
            let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).ok()?;
            let fd = beside_streams(fd).ok()?;
            // Somebody else's could be locked by that one, or be known to some of our runs only.
            let stat = rustix::fs::fstat(&fd).ok()?;
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            (is_file && stat.st_uid == uid).then_some(fd)
        })
    })
}

/// Registers a file for as long as the registry's descriptor lives.
pub(crate) fn claim(registry: impl AsFd, id: FileId) -> Result<(), Errno> {
    file::lock_range(registry, RangeLock::Exclusive, byte_of(id), 1, false)
}

fn byte_of(id: FileId) -> u64 {
    (id.ino ^ id.dev.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2
}

/// As [`claim`], beside others that only read.
pub(crate) fn claim_shared(registry: impl AsFd, id: FileId) -> Result<(), Errno> {
    file::lock_range(registry, RangeLock::Shared, byte_of(id), 1, false)
}

/// Gives a file up. Closing the descriptor does so only if no forked child has a copy of it.
pub(crate) fn release(registry: impl AsFd, id: FileId) {
    let _ = file::lock_range(registry, RangeLock::Unlock, byte_of(id), 1, false);
}

/// Gives every file up, before any of them is closed. At the end of a process the kernel closes its
/// files in an order of its own: a deleted one would be freed, and its inode be another run's new
/// file, while this description and its locks are still there.
pub(crate) fn release_all(registry: &OwnedFd) {
    let _ = file::lock_range(registry, RangeLock::Unlock, 0, 0, false);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever made the file first could switch registrations off, or hold all of them.
    #[test]
    fn what_is_not_ours_is_passed_by() {
        let directory = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let name = directory.path().join(format!("pagekeeper-{uid}.registry"));
        std::fs::create_dir(&name).unwrap();
        let fifo = directory.path().join(format!("pagekeeper-{uid}.registry.1"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        let place = [directory.path().to_str().unwrap()];
        let (one, other) = (open_in(&place).unwrap(), open_in(&place).unwrap());
        assert!(directory.path().join(format!("pagekeeper-{uid}.registry.2")).exists());
        let id = FileId { dev: 1, ino: 2 };
        claim(&one, id).unwrap();
        assert!(claim(&other, id).is_err());
    }
}
