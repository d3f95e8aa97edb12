//! What file systems differ in, as far as it matters here.

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

fn is_one_of(kinds: &[u64], fd: impl AsFd) -> bool {
    file::file_system(fd).is_ok_and(|kind| kinds.contains(&(kind & 0xffff_ffff)))
}

/// Whether files can come to share blocks, which then are new ones when they are written to
/// (ioctl_ficlone(2)), and can be had before (`FALLOC_FL_UNSHARE_RANGE`). (Of btrfs nearly all are, whatever is asked for before.)
pub(crate) fn shares_blocks(fd: impl AsFd) -> bool {
    is_one_of(&SHARING, fd)
}

/// Whether files are memory already. The kernel never protects what somebody outside has mapped there, so that
/// stores to it are not seen; and kept twice they would win nothing.
pub(crate) fn is_memory(fd: impl AsFd) -> bool {
    is_one_of(&MEMORY, fd)
}

/// Whether others than this kernel change files: nobody is told of that.
pub(crate) fn is_remote(fd: impl AsFd) -> bool {
    is_one_of(&REMOTE, fd)
}

/// Whether times are known to be finer than ticks, on kernels where those of [any file](crate::live::ticks) are.
/// (Others may be, too, and show it.)
pub(crate) fn may_have_fine_times(fd: impl AsFd) -> bool {
    is_one_of(&FINE, fd)
}
