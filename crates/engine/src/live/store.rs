//! A file on storage, read and written past the kernel's page cache where that is possible.

mod ahead;
mod reads;
mod room;
mod writes;

use crate::live::file_systems::FileSystem;
use crate::live::shortage::is_shortage;
use crate::live::ticks::Ticks;
use crate::port::{Look, PAGE_BYTES, PortError, Version};
use ahead::Ahead;
use pagekeeper_sys::Errno;
use pagekeeper_sys::descriptor::duplicate;
use pagekeeper_sys::file::{self, Lease, TransferFlags};
use reads::Unwritten;
use rustix::fs::OFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// Descriptors of one file. Few, since a run may manage thousands of files.
#[derive(Debug)]
struct Access {
    plain: OwnedFd,
    /// With O_DIRECT, where the file system has it.
    direct: Option<OwnedFd>,
    writable: bool,
}

/// The storage behind a managed file.
#[derive(Debug)]
pub struct Store {
    access: RwLock<Arc<Access>>,
    /// Direct I/O turned out not to work after all.
    buffered: AtomicBool,
    /// What goes through the kernel's page cache stays there until it is dropped: there is no
    /// RWF_DONTCACHE here.
    keeps_cached: AtomicBool,
    /// For how many more reads the kernel's page cache is looked at first.
    cached_reads: AtomicU32,
    unwritten: Unwritten,
    /// The pages that were given storage last.
    ahead: Mutex<Ahead>,
    pub(crate) file_system: FileSystem,
    /// What its times tell.
    pub(crate) ticks: Ticks,
}

impl From<Errno> for PortError {
    fn from(errno: Errno) -> PortError {
        match errno {
            Errno::AGAIN => PortError::Again,
            Errno::SRCH => PortError::Gone,
            other => PortError::Io(other.raw_os_error()),
        }
    }
}

impl From<file::Version> for Version {
    fn from(version: file::Version) -> Version {
        let file::Version { size_bytes, mtime_ns, ctime_ns } = version;
        Version { size_bytes, mtime_ns, ctime_ns }
    }
}

impl Access {
    fn open(fd: BorrowedFd<'_>, writable: bool, file_system: FileSystem) -> Result<Access, Errno> {
        let plain = file::reopen(fd, if writable { OFlags::RDWR } else { OFlags::RDONLY })?;
        // By the same descriptor: each number is a file of its own in /proc, which the kernel keeps.
        let direct = direct(fd, writable, file_system)?;
        Ok(Access { plain, direct, writable })
    }

    /// The one to be written by.
    fn for_writing(&self) -> Result<&Access, PortError> {
        if self.writable { Ok(self) } else { Err(PortError::Io(Errno::BADF.raw_os_error())) }
    }
}

/// None where the file cannot be used so; an error if only a descriptor lacks.
fn direct(
    fd: impl AsFd,
    writable: bool,
    file_system: FileSystem,
) -> Result<Option<OwnedFd>, Errno> {
    let alignment = file::direct_alignment(&fd).ok().flatten();
    let is_longer = alignment.is_some_and(|a| u64::from(a.offset_bytes) > PAGE_BYTES);
    if is_longer || file_system.has_long_blocks() {
        return Ok(None);
    }
    match file::reopen_direct(fd, writable) {
        Ok(fd) => Ok(Some(fd)),
        Err(errno) if is_shortage(errno) => Err(errno),
        Err(_) => Ok(None),
    }
}

impl Store {
    /// Storage of the file behind a descriptor, for reading. The descriptor itself is not kept:
    /// its open file description is the program's, with its locks.
    ///
    /// # Errors
    /// The file cannot be opened again for reading.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Store, Errno> {
        let file_system = FileSystem::of(fd);
        Ok(Store::new(Access::open(fd, false, file_system)?, false, file_system))
    }

    fn new(access: Access, buffered: bool, file_system: FileSystem) -> Store {
        Store {
            file_system,
            access: RwLock::new(Arc::new(access)),
            buffered: AtomicBool::new(buffered),
            keeps_cached: AtomicBool::new(false),
            cached_reads: AtomicU32::new(0),
            unwritten: Unwritten::default(),
            ahead: Mutex::default(),
            ticks: Ticks::default(),
        }
    }

    fn access(&self) -> Arc<Access> {
        self.access.read().expect("lock").clone()
    }

    /// Makes it writable, given a descriptor that is.
    ///
    /// # Errors
    /// The file cannot be opened again for writing.
    pub fn allow_writes(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        if !self.writable() {
            *self.access.write().expect("lock") =
                Arc::new(Access::open(fd, true, self.file_system)?);
        }
        Ok(())
    }

    /// Adopts a descriptor as it is (for the holder, which is given the manager's own).
    pub fn adopt(plain: OwnedFd) -> Store {
        let file_system = FileSystem::of(&plain);
        Store::new(Access { plain, direct: None, writable: true }, true, file_system)
    }

    /// Whether it may be written.
    pub fn writable(&self) -> bool {
        self.access().writable
    }

    /// Leaves one open file description, which [`keep_out`](Self::keep_out) needs. False if a
    /// transfer is using the other one.
    pub(crate) fn narrow(&self) -> bool {
        let mut access = self.access.write().expect("lock");
        Arc::get_mut(&mut access).map(|access| access.direct = None).is_some()
    }

    /// Takes a write lease, which the kernel gives out only while no other open file description of
    /// the file exists: in no process, in no mapping, not on its way through a socket. Until it is
    /// given up, or the store is dropped, whoever opens the file waits. (Descriptors opened with
    /// O_PATH do not count. `check_conflicting_open` in Linux' fs/locks.c.)
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: somebody has it open; others: there are no leases here, or not for us.
    pub(crate) fn keep_out(&self) -> Result<(), Errno> {
        let access = self.access();
        // Who waits is told of by a signal: one that is ignored.
        file::set_lease_signal(&access.plain, libc::SIGURG)?;
        file::set_lease(&access.plain, Some(Lease::Write))
    }

    /// Lets everybody open the file again. (Closing it here does so only when the holder has closed
    /// its duplicate, too.)
    pub(crate) fn give_up_lease(&self) {
        let _ = file::set_lease(&self.access().plain, None);
    }

    /// Ends what [`narrow`](Self::narrow) and [`keep_out`](Self::keep_out) began.
    pub(crate) fn let_in(&self) {
        self.give_up_lease();
        let mut access = self.access.write().expect("lock");
        let Ok(plain) = duplicate(&access.plain) else { return };
        // Without a descriptor for it, it goes on without.
        let direct = direct(&plain, access.writable, self.file_system).ok().flatten();
        *access = Arc::new(Access { plain, direct, writable: access.writable });
    }

    /// How many names the file has.
    pub(crate) fn links(&self) -> Result<u64, Errno> {
        Ok(file::stat(&self.access().plain)?.links)
    }

    /// A descriptor for the holder: writable if the store is.
    ///
    /// # Errors
    /// As `dup(2)`.
    pub fn descriptor(&self) -> Result<OwnedFd, Errno> {
        duplicate(&self.access().plain)
    }

    /// What the file system says of the file.
    ///
    /// # Errors
    /// As `fstat(2)`.
    pub fn stat(&self) -> Result<file::Stat, Errno> {
        file::stat(&self.access().plain)
    }

    /// The file as it is now.
    ///
    /// # Errors
    /// As `fstat(2)`.
    pub fn version(&self) -> Result<Version, PortError> {
        Ok(self.stat()?.version.into())
    }

    /// The same, and whether all later changes will show.
    pub(crate) fn look(&self) -> Result<Look, PortError> {
        self.ticks.look(&self.access().plain)
    }

    /// One of ours has just written to it.
    pub(crate) fn close_time(&self) {
        self.ticks.close(&self.access().plain);
    }

    /// The descriptor past the kernel's page cache, where that works.
    fn unbuffered<'a>(&self, access: &'a Access) -> Option<&'a OwnedFd> {
        access.direct.as_ref().filter(|_| !self.buffered.load(Ordering::Relaxed))
    }

    /// Makes a transfer through the kernel's page cache, which leaves nothing there where the kernel and
    /// the file system can do that.
    fn pass_through<T>(
        &self,
        mut transfer: impl FnMut(TransferFlags) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if !self.keeps_cached.load(Ordering::Relaxed) {
            match transfer(TransferFlags::DONTCACHE) {
                Err(Errno::OPNOTSUPP) => self.keeps_cached.store(true, Ordering::Relaxed),
                result => return result,
            }
        }
        transfer(TransferFlags::empty())
    }

    /// `ftruncate(2)`, without SIGXFSZ.
    ///
    /// # Errors
    /// As `ftruncate(2)`; EBADF if the store is not writable.
    pub fn set_len(&self, len: u64) -> Result<(), PortError> {
        let access = self.access();
        Ok(file::set_len_unsignalled(&access.for_writing()?.plain, len)?)
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// As `fdatasync(2)`.
    pub fn sync(&self) -> Result<(), PortError> {
        let access = self.access();
        if access.writable { Ok(file::sync(&access.plain, true)?) } else { Ok(()) }
    }
}

/// Whether memory is such as direct I/O takes anywhere: where it fails all the same, the file system
/// has none; where it fails with other memory, that says nothing of the next.
fn is_aligned(data: &[u8]) -> bool {
    data.as_ptr().addr().is_multiple_of(PAGE_BYTES as usize)
}
