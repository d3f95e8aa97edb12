//! Files: identity and version, positioned I/O with flags, allocation, leases and locks.
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Advice, AtFlags, Mode, OFlags, ResolveFlags, SeekFrom, StatxFlags};
use rustix::io::ReadWriteFlags;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use crate::descriptor::beside_streams;
use crate::limits::unsignalled;
use crate::mask::{self, Capability};
use crate::memfd::retry;
use crate::{Errno, Result};

pub use rustix::fs::FallocateFlags;

/// Which file: the same inode on the same device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// `st_dev`.
    pub dev: u64,
    /// `st_ino`.
    pub ino: u64,
}

/// Which state of a file: differs after somebody wrote to it, as far as the clock of its file
/// system is fine enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Time of the last change of its bytes, since 1970.
    pub mtime_ns: i128,
    /// Time of the last change of its bytes or attributes.
    pub ctime_ns: i128,
}

/// What `fstat(2)` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Which file.
    pub id: FileId,
    /// Which state of it.
    pub version: Version,
    /// Permission and type bits (`st_mode`).
    pub mode: u32,
    /// User and group that it belongs to.
    pub owner: (u32, u32),
    /// Names that it has; 0 once deleted.
    pub links: u64,
    /// Bytes that it occupies on its device.
    pub allocated_bytes: u64,
}

impl Stat {
    /// Whether it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }

    /// Whether its permission bits let a user of this one group write to it. (Other groups and access
    /// lists may allow more.)
    pub fn lets_write(&self, uid: u32, gid: u32) -> bool {
        let bit = match (self.owner.0 == uid, self.owner.1 == gid) {
            (true, _) => libc::S_IWUSR,
            (_, true) => libc::S_IWGRP,
            _ => libc::S_IWOTH,
        };
        self.mode & bit != 0
    }
}

/// `fstat(2)`.
///
/// # Errors
/// As `fstat(2)`.
pub fn stat(fd: impl AsFd) -> Result<Stat> {
    Ok(described(&rustix::fs::fstat(fd)?))
}

/// Sets when a file's bytes changed last, in nanoseconds since 1970: `futimens(3)`.
///
/// # Errors
/// As `utimensat(2)`: [`Errno::PERM`] for who neither owns the file nor has CAP_FOWNER.
pub fn set_mtime(fd: impl AsFd, mtime_ns: i128) -> Result<()> {
    use rustix::fs::{Timespec, Timestamps, UTIME_OMIT};
    let (tv_sec, tv_nsec) =
        (mtime_ns.div_euclid(1_000_000_000), mtime_ns.rem_euclid(1_000_000_000));
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: tv_sec as i64, tv_nsec: tv_nsec as i64 },
    };
    rustix::fs::futimens(fd, &times)
}

/// Opens what a path below `root` leads to for a process that has that as its root: `openat2(2)`,
/// RESOLVE_IN_ROOT. Of no use but to name it.
///
/// # Errors
/// As `openat2(2)`; [`Errno::LOOP`] for links of procfs.
pub fn open_in_root(root: &Path, path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, flags, Mode::empty())?;
    rustix::fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)
}

/// `stat(2)`: of the file that a path leads to.
///
/// # Errors
/// As `stat(2)`.
pub fn stat_path(path: &Path) -> Result<Stat> {
    Ok(described(&rustix::fs::stat(path)?))
}

fn described(s: &rustix::fs::Stat) -> Stat {
    let ns = |seconds: i64, ns: u64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
    Stat {
        id: FileId { dev: s.st_dev, ino: s.st_ino },
        version: Version {
            size_bytes: s.st_size as u64,
            mtime_ns: ns(s.st_mtime, s.st_mtime_nsec),
            ctime_ns: ns(s.st_ctime, s.st_ctime_nsec),
        },
        mode: s.st_mode,
        owner: (s.st_uid, s.st_gid),
        #[allow(clippy::useless_conversion, reason = "the type differs between architectures")]
        links: u64::from(s.st_nlink),
        allocated_bytes: s.st_blocks as u64 * 512,
    }
}

/// How addresses, offsets and lengths of direct I/O must be aligned, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectAlignment {
    /// Of the memory.
    pub memory_bytes: u32,
    /// Of offset and length.
    pub offset_bytes: u32,
}

/// `statx(2)` STATX_DIOALIGN (Linux 6.1): `None` if the file does not support direct I/O or the
/// kernel does not say.
///
/// # Errors
/// As `statx(2)`.
pub fn direct_alignment(fd: impl AsFd) -> Result<Option<DirectAlignment>> {
    let s = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
    let said = s.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && s.stx_dio_offset_align != 0;
    Ok(said.then_some(DirectAlignment {
        memory_bytes: s.stx_dio_mem_align,
        offset_bytes: s.stx_dio_offset_align,
    }))
}

/// Room for a handle: `MAX_HANDLE_SZ` of the kernel's `<linux/exportfs.h>`.
const HANDLE_BYTES_MAX: usize = 128;

/// `struct file_handle` of `open_by_handle_at(2)`, with the room that it needs.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    content: [u8; HANDLE_BYTES_MAX],
}

/// What tells a file from the next one that is given its inode number: its handle
/// (`name_to_handle_at(2)`), or where the file system has none, when it was made (`statx(2)`
/// STATX_BTIME). `None` if neither is known.
pub fn identity(fd: impl AsFd) -> Option<Box<[u8]>> {
    let fd = fd.as_fd();
    let mut handle =
        Handle { bytes: HANDLE_BYTES_MAX as u32, kind: 0, content: [0; HANDLE_BYTES_MAX] };
    let mut mount = 0;
    // SAFETY: an empty path, and a handle with as much room as it says.
    let ret = unsafe {
        libc::name_to_handle_at(
            fd.as_raw_fd(),
            c"".as_ptr(),
            (&raw mut handle).cast(),
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    if ret == 0 {
        return handle.content.get(..handle.bytes as usize).map(Box::from);
    }
    let s = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    (s.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| {
        let ns = i128::from(s.stx_btime.tv_sec) * 1_000_000_000 + i128::from(s.stx_btime.tv_nsec);
        Box::from(ns.to_ne_bytes())
    })
}

/// Opens the file behind a descriptor anew, through `/proc/self/fd/N`: the result has a position
/// and flags of its own. Works for deleted and renamed files; close-on-exec is added.
///
/// # Errors
/// As `open(2)`: the file's permissions are checked again. [`Errno::NOENT`]: no `/proc`.
pub fn reopen(fd: impl AsFd, flags: OFlags) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let fd = retry(|| {
        rustix::fs::open(path.as_str(), flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
    })?;
    beside_streams(fd)
}

/// [`reopen`] with O_DIRECT: transfers bypass the page cache, with aligned addresses, offsets and
/// lengths (see [`direct_alignment`]).
///
/// # Errors
/// [`Errno::INVAL`]: the file system has no direct I/O; else as [`reopen`].
pub fn reopen_direct(fd: impl AsFd, writable: bool) -> Result<OwnedFd> {
    if !mask::allows(Capability::DirectIo) {
        return Err(Errno::INVAL);
    }
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    reopen(fd, access | OFlags::DIRECT)
}

bitflags::bitflags! {
    /// Flags of a positioned transfer: `RWF_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct TransferFlags: u32 {
        /// A write is on stable storage, with what is needed to read it, when the call returns.
        const DSYNC = libc::RWF_DSYNC as u32;
        /// Fail with [`Errno::AGAIN`] instead of waiting.
        const NOWAIT = libc::RWF_NOWAIT as u32;
        /// Leave nothing in the page cache (`RWF_DONTCACHE`, Linux 6.14).
        const DONTCACHE = 0x80;
    }
}

fn transfer_flags(flags: TransferFlags) -> Result<ReadWriteFlags> {
    if flags.contains(TransferFlags::DONTCACHE) && !mask::allows(Capability::DontCache) {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(ReadWriteFlags::from_bits_retain(flags.bits()))
}

/// `preadv2(2)`: one positioned read; may be short, 0 at the end of the file. Retries EINTR.
///
/// # Errors
/// [`Errno::OPNOTSUPP`]: the file system or kernel lacks a flag; else as `preadv2(2)`.
pub fn read_at(
    fd: impl AsFd,
    bufs: &mut [IoSliceMut<'_>],
    offset: u64,
    flags: TransferFlags,
) -> Result<usize> {
    let (fd, flags) = (fd.as_fd(), transfer_flags(flags)?);
    retry(|| rustix::io::preadv2(fd, bufs, offset, flags))
}

/// `pwritev2(2)`: one positioned write; may be short. Retries EINTR.
///
/// # Errors
/// As [`read_at`], and [`Errno::NOSPC`], [`Errno::FBIG`], [`Errno::DQUOT`].
pub fn write_at(
    fd: impl AsFd,
    bufs: &[IoSlice<'_>],
    offset: u64,
    flags: TransferFlags,
) -> Result<usize> {
    let (fd, flags) = (fd.as_fd(), transfer_flags(flags)?);
    retry(|| rustix::io::pwritev2(fd, bufs, offset, flags))
}

/// `fallocate(2)`, without SIGXFSZ.
///
/// # Errors
/// [`Errno::OPNOTSUPP`]: the file system cannot; [`Errno::NOSPC`]; [`Errno::FBIG`]: RLIMIT_FSIZE.
pub fn allocate(fd: impl AsFd, mode: FallocateFlags, offset: u64, len: u64) -> Result<()> {
    let fd = fd.as_fd();
    let call = || retry(|| rustix::fs::fallocate(fd, mode, offset, len));
    unsignalled(offset.saturating_add(len), call)
}

/// What `statfs(2)` says of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Of which kind it is: a magic number.
    pub kind: u64,
    /// How long the blocks are in which it works.
    pub block_bytes: u64,
}

/// The file system that a file is on.
///
/// # Errors
/// As `fstatfs(2)`.
pub fn file_system(fd: impl AsFd) -> Result<FileSystem> {
    let fd = fd.as_fd();
    let found = retry(|| rustix::fs::fstatfs(fd))?;
    Ok(FileSystem { kind: found.f_type as u64, block_bytes: found.f_bsize as u64 })
}

/// `ftruncate(2)`.
///
/// # Errors
/// As `ftruncate(2)`.
pub fn set_len(fd: impl AsFd, len_bytes: u64) -> Result<()> {
    let fd = fd.as_fd();
    retry(|| rustix::fs::ftruncate(fd, len_bytes))
}

/// [`set_len`] by who has an error to return: without SIGXFSZ where the file may not be so long.
///
/// # Errors
/// [`Errno::FBIG`]: RLIMIT_FSIZE.
pub fn set_len_unsignalled(fd: impl AsFd, len_bytes: u64) -> Result<()> {
    unsignalled(len_bytes, || set_len(fd, len_bytes))
}

/// `fsync(2)`, or `fdatasync(2)` for `data_only`.
///
/// # Errors
/// [`Errno::IO`] and others: earlier writes were lost; the kernel reports this once per descriptor.
pub fn sync(fd: impl AsFd, data_only: bool) -> Result<()> {
    let fd = fd.as_fd();
    retry(|| if data_only { rustix::fs::fdatasync(fd) } else { rustix::fs::fsync(fd) })
}

/// `sync_file_range(2)`: starts writing the dirty cached pages of a range (`len` 0: to the end),
/// and with `wait` waits for them. No metadata, so no promise of durability.
///
/// # Errors
/// As `sync_file_range(2)`.
pub fn sync_range(fd: impl AsFd, offset: u64, len: u64, wait: bool) -> Result<()> {
    let mut flags = libc::SYNC_FILE_RANGE_WRITE;
    if wait {
        flags |= libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    }
    sync_range_with(fd, offset, len, flags)
}

fn sync_range_with(fd: impl AsFd, offset: u64, len: u64, flags: u32) -> Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    retry(|| {
        // SAFETY: no memory is passed; the descriptor is borrowed during the call.
        let ret = unsafe { libc::sync_file_range(fd, offset as i64, len as i64, flags) };
        crate::check(ret).map(drop)
    })
}

/// `sync_file_range(2)` that waits for the cached pages of a range that are being written, and begins to
/// write none. An error of any page of the file is told to each open file description once.
///
/// # Errors
/// As `sync_file_range(2)`.
pub fn await_range(fd: impl AsFd, offset: u64, len: u64) -> Result<()> {
    sync_range_with(fd, offset, len, libc::SYNC_FILE_RANGE_WAIT_BEFORE)
}

/// `posix_fadvise(2)` WILLNEED, or DONTNEED (which drops clean cached pages only). `len` 0: to the
/// end.
///
/// # Errors
/// As `posix_fadvise(2)`.
pub fn advise(fd: impl AsFd, offset: u64, len: u64, needed: bool) -> Result<()> {
    let advice = if needed { Advice::WillNeed } else { Advice::DontNeed };
    rustix::fs::fadvise(fd, offset, NonZeroU64::new(len), advice)
}

/// The next range at or behind `offset` that is no hole, as `(start, end)`, by `lseek(2)`
/// SEEK_DATA and SEEK_HOLE. A file system that keeps no holes reports all as data.
///
/// Moves the position of the open file description, which whoever shares the description sees: use
/// a [`reopen`]ed descriptor on others' files.
///
/// # Errors
/// As `lseek(2)`.
pub fn next_data(fd: impl AsFd, offset: u64) -> Result<Option<(u64, u64)>> {
    let fd = fd.as_fd();
    let start = match rustix::fs::seek(fd, SeekFrom::Data(offset)) {
        Err(Errno::NXIO) => return Ok(None),
        result => result?,
    };
    match rustix::fs::seek(fd, SeekFrom::Hole(start)) {
        Ok(end) => Ok(Some((start, end))),
        // Truncated between the two calls.
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Whether any byte of `[offset, offset + len)` is in a hole or behind the end; with [`next_data`]'s
/// caution.
///
/// # Errors
/// As `lseek(2)`.
pub fn has_hole(fd: impl AsFd, offset: u64, len: u64) -> Result<bool> {
    Ok(next_data(fd, offset)?.is_none_or(|(start, end)| start > offset || end < offset + len))
}

/// `struct fiemap_extent` of `<linux/fiemap.h>`; linux-raw-sys has its constants only.
#[derive(Default)]
#[repr(C)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap`, with room for one extent behind it.
#[repr(C)]
struct FirstExtent {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extent: Extent,
}

const FIEMAP: Opcode = opcode::read_write::<[u64; 4]>(b'f', 11);
const _: () = assert!(FIEMAP == linux_raw_sys::ioctl::FS_IOC_FIEMAP as Opcode);
const _: () = assert!(size_of::<Extent>() == 56 && size_of::<FirstExtent>() == 32 + 56);

/// `FIEMAP_EXTENT_SHARED`: other files have the same blocks, so that a write needs new ones.
const SHARED: u32 = 0x2000;

/// Whether storage has room for writes to all of `[offset, offset + len)`, written to or not: `ioctl(2)`
/// `FS_IOC_FIEMAP` (Linux `Documentation/filesystems/fiemap.rst`), which looks at that range only.
/// [`has_hole`] takes room that was never written to for a hole, and walks to the next one,
/// wherever that is; it answers where the file system does not know `FS_IOC_FIEMAP`.
///
/// # Errors
/// As `lseek(2)`.
pub fn is_allocated(fd: impl AsFd, offset: u64, len: u64) -> Result<bool> {
    Ok(allocated_len(fd, offset, len)? == len)
}

/// For how much of `[offset, offset + len)`, from its begin on, storage has room: see [`is_allocated`]. All or
/// nothing where the file system does not know `FS_IOC_FIEMAP`.
///
/// # Errors
/// As `lseek(2)`.
pub fn allocated_len(fd: impl AsFd, offset: u64, len: u64) -> Result<u64> {
    let (fd, end) = (fd.as_fd(), offset + len);
    let mut at = offset;
    while at < end {
        let mut arg = FirstExtent {
            start: at,
            length: end - at,
            flags: 0,
            mapped_extents: 0,
            extent_count: 1,
            reserved: 0,
            extent: Extent::default(),
        };
        // SAFETY: the number and the struct belong together (asserted above); the kernel writes at
        // most the one extent that there is room for, and integers take any bits.
        let asked = unsafe { ioctl(fd, Updater::<FIEMAP, _>::new(&mut arg)) };
        if asked.is_err() {
            return Ok(if has_hole(fd, offset, len)? { 0 } else { len });
        }
        let Extent { logical, length, flags, .. } = arg.extent;
        let is_shared = flags & SHARED != 0;
        if arg.mapped_extents == 0 || logical > at || logical + length <= at || is_shared {
            return Ok(at - offset);
        }
        at = logical + length;
    }
    Ok(len)
}

/// A lease: the kernel signals its holder, and makes the other party wait, before somebody opens
/// the file in a conflicting way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Broken by an open for writing or a truncation; the descriptor must be read-only.
    Read,
    /// Broken by any open; nobody else may have the file open.
    Write,
}

/// `fcntl(2)` F_SETLEASE: takes a lease, or gives it up. The breaking signal is SIGIO unless
/// [`set_lease_signal`] chose another; an unanswered break is enforced after
/// `/proc/sys/fs/lease-break-time` seconds.
///
/// # Errors
/// [`Errno::AGAIN`]: others have it open in a conflicting way; [`Errno::ACCESS`]: neither owner of
/// the file nor CAP_LEASE; [`Errno::INVAL`]: the file system has no leases.
pub fn set_lease(fd: impl AsFd, lease: Option<Lease>) -> Result<()> {
    if lease.is_some() && !mask::allows(Capability::Leases) {
        return Err(Errno::INVAL);
    }
    let kind = match lease {
        Some(Lease::Read) => libc::F_RDLCK,
        Some(Lease::Write) => libc::F_WRLCK,
        None => libc::F_UNLCK,
    };
    fcntl_int(fd, libc::F_SETLEASE, kind).map(drop)
}

/// `fcntl(2)` F_GETLEASE: the lease held, or the one to go down to while it is being broken.
///
/// # Errors
/// As `fcntl(2)`.
pub fn lease(fd: impl AsFd) -> Result<Option<Lease>> {
    Ok(match fcntl_int(fd, libc::F_GETLEASE, 0)? {
        libc::F_RDLCK => Some(Lease::Read),
        libc::F_WRLCK => Some(Lease::Write),
        _ => None,
    })
}

/// `fcntl(2)` F_SETSIG and F_SETOWN: the signal that tells this process of a broken lease; it
/// carries the descriptor (`si_fd`).
///
/// # Errors
/// As `fcntl(2)`.
pub fn set_lease_signal(fd: impl AsFd, signal: i32) -> Result<()> {
    let fd = fd.as_fd();
    set_owner(fd, rustix::process::getpid().as_raw_nonzero().get())?;
    set_signal(fd, signal)
}

/// F_SETOWN: which process gets an open file's signals.
pub(crate) fn set_owner(fd: impl AsFd, process: i32) -> Result<()> {
    fcntl_int(fd, libc::F_SETOWN, process).map(drop)
}

/// F_SETSIG: which signal that is.
pub(crate) fn set_signal(fd: impl AsFd, signal: i32) -> Result<()> {
    fcntl_int(fd, linux_raw_sys::general::F_SETSIG as libc::c_int, signal).map(drop)
}

fn fcntl_int(fd: impl AsFd, command: libc::c_int, arg: libc::c_int) -> Result<libc::c_int> {
    // SAFETY: every command passed here takes an integer; no memory is passed.
    crate::check(unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, arg) })
}

/// A lock on a range of bytes that belongs to the open file description (not to the process, as
/// POSIX locks do, which any `close` of the file drops).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeLock {
    /// Held by several.
    Shared,
    /// Held by one.
    Exclusive,
    /// Gives it up.
    Unlock,
}

/// `fcntl(2)` F_OFD_SETLK or, with `wait`, F_OFD_SETLKW, on `len` bytes (0: to the end and beyond).
///
/// # Errors
/// [`Errno::AGAIN`]/[`Errno::ACCESS`]: somebody else holds it; [`Errno::INTR`] while waiting.
pub fn lock_range(fd: impl AsFd, lock: RangeLock, start: u64, len: u64, wait: bool) -> Result<()> {
    let kind = match lock {
        RangeLock::Shared => libc::F_RDLCK,
        RangeLock::Exclusive => libc::F_WRLCK,
        RangeLock::Unlock => libc::F_UNLCK,
    };
    let mut arg = flock(kind, start, len);
    let command = if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
    // SAFETY: both commands read a `struct flock`, which `arg` is, alive during the call.
    crate::check(unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, &mut arg) }).map(drop)
}

/// `fcntl(2)` F_OFD_GETLK: whether somebody else's lock (POSIX or of an open file description) would
/// keep this descriptor from an exclusive lock on the range.
///
/// # Errors
/// As `fcntl(2)`.
pub fn is_locked_by_others(fd: impl AsFd, start: u64, len: u64) -> Result<bool> {
    let mut arg = flock(libc::F_WRLCK, start, len);
    // SAFETY: the command reads and writes a `struct flock`, which `arg` is.
    crate::check(unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &mut arg) })?;
    Ok(libc::c_int::from(arg.l_type) != libc::F_UNLCK)
}

fn flock(kind: libc::c_int, start: u64, len: u64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start as i64,
        l_len: len as i64,
        l_pid: 0,
    }
}
