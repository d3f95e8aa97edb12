//! What file systems differ in, as far as it matters here.

use crate::port::PAGE_BYTES;
use pagekeeper_sys::file;
use std::os::fd::AsFd;

/// `XFS_SUPER_MAGIC`
const SHARING: [u64; 1] = [0x5846_5342];
/// `FUSE_SUPER_MAGIC`, `NFS_SUPER_MAGIC`, `SMB_SUPER_MAGIC`, `CIFS_SUPER_MAGIC`, `SMB2_SUPER_MAGIC`,
/// `V9FS_MAGIC`, `CEPH_SUPER_MAGIC`, `AFS_SUPER_MAGIC`, `AFS_FS_MAGIC`, and VirtualBox's folders.
const REMOTE: [u64; 10] = [
    0x6573_5546,
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
    0x6b41_4653,
    0x786f_4256,
];

/// `TMPFS_MAGIC`, `RAMFS_MAGIC`
const MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// `EXT4_SUPER_MAGIC`, `XFS_SUPER_MAGIC`, `BTRFS_SUPER_MAGIC`, `TMPFS_MAGIC`: `FS_MGTIME` in Linux.
const FINE: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994];

/// The file system of a file, as far as it says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSystem(Option<file::FileSystem>);

impl FileSystem {
    /// Of the file behind a descriptor. It is asked once.
    pub(crate) fn of(fd: impl AsFd) -> FileSystem {
        FileSystem(file::file_system(fd).ok())
    }

    fn is_one_of(self, kinds: &[u64]) -> bool {
        self.0.is_some_and(|found| kinds.contains(&(found.kind & 0xffff_ffff)))
    }

    /// Whether files can come to share blocks, which then are new ones when they are written to
    /// (ioctl_ficlone(2)), and can be had before (`FALLOC_FL_UNSHARE_RANGE`). (Of btrfs nearly all are, whatever is asked for before.)
    pub(crate) fn shares_blocks(self) -> bool {
        self.is_one_of(&SHARING)
    }

    /// Whether files are memory already. The kernel never protects what somebody outside has mapped there, so that
    /// stores to it are not seen; and kept twice they would win nothing.
    pub(crate) fn is_memory(self) -> bool {
        self.is_one_of(&MEMORY)
    }

    /// Whether others than this kernel change files: nobody is told of that.
    pub(crate) fn is_remote(self) -> bool {
        self.is_one_of(&REMOTE)
    }

    /// Whether times are known to be finer than ticks, on kernels where those of [any file](crate::live::ticks) are.
    /// (Others may be, too, and show it.)
    pub(crate) fn may_have_fine_times(self) -> bool {
        self.is_one_of(&FINE)
    }

    /// Whether the kernel caches more than a page as one: a direct write of a page beside what a program has just
    /// written to another of these is an error of the file's, which the next `fsync` tells, though nothing is lost.
    /// (Of a server's files the length says how much is transferred at once.)
    pub(crate) fn has_long_blocks(self) -> bool {
        !self.is_remote() && self.0.is_some_and(|found| found.block_bytes > PAGE_BYTES)
    }
}
