//! What the kernel asks of reads by descriptors with O_DIRECT, which are served from memory here: programs
//! find out what it is by trying.

use crate::raw;
use crate::raw_call;
use crate::reading::direct;
use libc::{c_int, iovec};

/// `struct statx`, of which libc has no later fields: statx(2).
#[repr(C)]
struct Status {
    mask: u32,
    block_bytes: u32,
    before_size: [u32; 8],
    size: u64,
    before_direct: [u64; 13],
    memory_align: u32,
    offset_align: u32,
    behind: [u64; 12],
}
const _: () = assert!(size_of::<Status>() == 256);

const STATX_SIZE: u32 = 0x200;
/// Linux 6.1.
const STATX_DIOALIGN: u32 = 0x2000;

/// Whether a direct read would be made. Where the kernel does not say what it wants, or reads the file by its
/// cache after all, any would, and so would one at the end of the file.
pub(crate) fn fits(fd: c_int, iov: &[iovec], position: Option<i64>) -> bool {
    let mut status = core::mem::MaybeUninit::<Status>::zeroed();
    let done = raw_call!(
        libc::SYS_statx,
        fd,
        c"".as_ptr(),
        libc::AT_EMPTY_PATH,
        STATX_SIZE | STATX_DIOALIGN,
        status.as_mut_ptr()
    );
    // SAFETY: all zero is valid, and the kernel filled it.
    let status = unsafe { status.assume_init() };
    if done < 0 || status.mask & STATX_DIOALIGN == 0 || status.offset_align == 0 {
        return true;
    }
    let offset = position.unwrap_or_else(|| raw::lseek(fd, 0, libc::SEEK_CUR));
    let total = direct::total(iov);
    if total == 0 || offset < 0 || offset as u64 >= status.size {
        return true;
    }
    // Buffers are not looked at: block devices take any, by way of memory of the kernel's.
    let offset_align = status.offset_align as usize;
    // What reaches beyond the file's last block ends with that.
    let end = status.size.next_multiple_of(u64::from(status.block_bytes.max(1)));
    let is_cut = (offset as u64).saturating_add(total as u64) >= end;
    let parts = if is_cut { iov.split_last().map_or(iov, |(_, others)| others) } else { iov };
    (offset as usize).is_multiple_of(offset_align)
        && parts.iter().all(|part| part.iov_len.is_multiple_of(offset_align))
}
