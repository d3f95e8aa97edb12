//! One manager per file: an exclusive registration among the runs of one user.
//!
//! Runs share one small file; a run that manages a file holds an open-file-description lock on the
//! byte of it that the file's identity stands for. The kernel drops the lock when the run dies.
//!
//! The kernel goes through all locks of a file one after the other, but those of one run that lie beside
//! each other are one. So inodes that follow each other, as those of a tree do that was made in one go,
//! have bytes that do.

use pagekeeper_sys::Errno;
use pagekeeper_sys::descriptor::beside_streams;
use pagekeeper_sys::file::{self, FileId, RangeLock};
use rustix::fs::{FileType, Mode, OFlags};
use std::os::fd::{AsFd, OwnedFd};

/// Names that are tried, should others have taken the first ones: anybody may make files there.
const NAMES: u32 = 16;

/// Bits of an inode's number, and of a device's, that nearly all have no more than.
const INODE_BITS: u32 = 32;
const MAJOR_BITS: u32 = 10;
const MINOR_BITS: u32 = 20;
/// Bytes of such files lie behind all others.
const USUAL: u64 = 1 << (INODE_BITS + MAJOR_BITS + MINOR_BITS);

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

/// The byte of a file: of usual numbers no other's, and beside its neighbours' as far as an inode's is.
fn byte_of(id: FileId) -> u64 {
    let (major, minor) = (rustix::fs::major(id.dev), rustix::fs::minor(id.dev));
    let is_usual =
        id.ino >> INODE_BITS == 0 && major >> MAJOR_BITS == 0 && minor >> MINOR_BITS == 0;
    if is_usual {
        let device = u64::from(major) << MINOR_BITS | u64::from(minor);
        return USUAL | device << INODE_BITS | id.ino;
    }
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    (id.ino.wrapping_mul(MIX) ^ id.dev).wrapping_mul(MIX) >> 2
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

    #[test]
    fn files_have_bytes_of_their_own_and_neighbours_neighbouring_ones() {
        let dev = rustix::fs::makedev(259, 70_000);
        let others = [0, rustix::fs::makedev(8, 1), rustix::fs::makedev(1 << 10, 1), u64::MAX];
        let inodes = [0, 1, 2, 4, 5, u64::from(u32::MAX), 1 << 32, u64::MAX];
        let mut bytes = std::collections::HashSet::new();
        for dev in others.into_iter().chain([dev]) {
            for ino in inodes {
                let byte = byte_of(FileId { dev, ino });
                assert!(byte < i64::MAX as u64 && bytes.insert(byte), "{dev:x} {ino}");
            }
        }
        assert_eq!(byte_of(FileId { dev, ino: 8 }), byte_of(FileId { dev, ino: 7 }) + 1);
    }

    /// What the kernel makes one lock is several files' all the same.
    #[test]
    fn neighbours_are_claimed_and_given_up_one_by_one() {
        let directory = tempfile::tempdir().unwrap();
        let place = [directory.path().to_str().unwrap()];
        let (one, other) = (open_in(&place).unwrap(), open_in(&place).unwrap());
        let file = |ino| FileId { dev: 1, ino };
        for ino in 2..9 {
            claim(&one, file(ino)).unwrap();
        }
        release(&one, file(5));
        for ino in 1..10 {
            assert_eq!(claim(&other, file(ino)).is_ok(), [1, 5, 9].contains(&ino), "{ino}");
        }
    }

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
