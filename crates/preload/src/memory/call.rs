//! The arguments of calls that change the address space, and those calls as the kernel makes them.

use crate::memory::turns;
use crate::raw;
use crate::raw_call;
use libc::c_int;

/// The program's arguments of `mmap(2)`.
#[derive(Clone, Copy)]
pub(crate) struct Mmap {
    pub(crate) addr: usize,
    pub(crate) bytes: usize,
    pub(crate) prot: c_int,
    pub(crate) flags: c_int,
    pub(crate) fd: c_int,
    pub(crate) offset: i64,
}

impl Mmap {
    /// The call as it is.
    pub(crate) fn plain(&self) -> isize {
        turns::maps(self.addr, self.bytes, self.flags, || {
            raw::mmap(self.addr, self.bytes, self.prot, self.flags, self.fd, self.offset)
        })
    }

    /// The plain mapping in place of whatever is at this address.
    pub(crate) fn plain_at(&self, addr: usize) -> isize {
        let flags = (self.flags & !libc::MAP_FIXED_NOREPLACE) | libc::MAP_FIXED;
        turns::gives_up(addr, self.bytes, || {
            raw::mmap(addr, self.bytes, self.prot, flags, self.fd, self.offset)
        })
    }
}

/// The arguments of `mremap(2)`.
#[derive(Clone, Copy)]
pub(crate) struct Mremap {
    pub(crate) old: usize,
    pub(crate) old_bytes: usize,
    pub(crate) new_bytes: usize,
    pub(crate) flags: c_int,
    /// Counts if the flags have MREMAP_FIXED, see [`Self::target`].
    pub(crate) new: usize,
}

impl Mremap {
    /// The call as it is.
    pub(crate) fn plain(&self) -> isize {
        turns::moves(self, || {
            raw_call!(
                libc::SYS_mremap,
                self.old,
                self.old_bytes,
                self.new_bytes,
                self.flags,
                self.new
            )
        })
    }

    /// Whether the memory may move.
    pub(crate) fn may_move(&self) -> bool {
        self.flags & libc::MREMAP_MAYMOVE != 0
    }

    /// Where it has to be afterwards, if that is said.
    pub(crate) fn target(&self) -> Option<usize> {
        (self.flags & libc::MREMAP_FIXED != 0).then_some(self.new)
    }
}
