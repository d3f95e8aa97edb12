//! Mappings.

use crate::link::standby;
use crate::memory;
use crate::memory::call::{Mmap, Mremap};
use crate::memory::mapping;
use crate::process::cancel;
use crate::process::state;
use crate::raw::{kernel, ret};
use crate::reading::transfer::Vectors;
use crate::{raw_call, real};
use libc::{c_int, c_uint, c_void, iovec, off_t, size_t, ssize_t};

export! {
    as mmap, mmap64;
    fn (
        addr: *mut c_void, bytes: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t
    ) -> *mut c_void {
        let call = Mmap { addr: addr as usize, bytes, prot, flags, fd, offset };
        let plain = || kernel(real::mmap(addr, bytes, prot, flags, fd, offset) as isize);
        ret(memory::mmap(call, plain)) as *mut c_void
    }
}

export! {
    as munmap;
    fn (addr: *mut c_void, bytes: size_t) -> c_int {
        let plain = || kernel(real::munmap(addr, bytes) as isize);
        ret(memory::munmap(addr as usize, bytes, plain)) as c_int
    }
}

export! {
    as mremap, __mremap;
    fn (
        old: *mut c_void, old_bytes: size_t, new_bytes: size_t, flags: c_int, new: *mut c_void
    ) -> *mut c_void {
        let plain = || kernel(real::mremap(old, old_bytes, new_bytes, flags, new) as isize);
        let (from, to) = (old as usize, new as usize);
        let call = Mremap { old: from, old_bytes, new_bytes, flags, new: to };
        ret(memory::mremap(call, plain)) as *mut c_void
    }
}

export! {
    as mprotect, __mprotect;
    fn (addr: *mut c_void, bytes: size_t, prot: c_int) -> c_int {
        match mapping::may_protect(addr as usize, bytes, prot) {
            Ok(()) => {
                let _changing = standby::changing();
                real::mprotect(addr, bytes, prot)
            }
            Err(errno) => ret(errno) as c_int,
        }
    }
}

export! {
    as pkey_mprotect;
    fn (addr: *mut c_void, bytes: size_t, prot: c_int, key: c_int) -> c_int {
        match mapping::may_protect(addr as usize, bytes, prot) {
            Ok(()) => {
                let _changing = standby::changing();
                real::pkey_mprotect(addr, bytes, prot, key)
            }
            Err(errno) => ret(errno) as c_int,
        }
    }
}

export! {
    as remap_file_pages;
    fn (addr: *mut c_void, bytes: size_t, prot: c_int, page: size_t, flags: c_int) -> c_int {
        match mapping::may_reorder(addr as usize, bytes) {
            Ok(()) => real::remap_file_pages(addr, bytes, prot, page, flags),
            Err(errno) => ret(errno) as c_int,
        }
    }
}

export! {
    as msync;
    fn (addr: *mut c_void, bytes: size_t, flags: c_int) -> c_int {
        cancel::point();
        match mapping::msync(addr as usize, bytes, flags) {
            Some(result) => ret(result) as c_int,
            None => real::msync(addr, bytes, flags),
        }
    }
}

export! {
    as madvise, __madvise;
    fn (addr: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
        match mapping::madvise(addr as usize, bytes, advice) {
            Some(result) => ret(result) as c_int,
            None => real::madvise(addr, bytes, advice),
        }
    }
}

export! {
    as process_madvise;
    fn (
        pidfd: c_int, parts: *const iovec, count: size_t, advice: c_int, flags: c_uint
    ) -> ssize_t {
        let own = Vectors(parts, count.min(c_int::MAX as usize) as c_int);
        match mapping::process_madvise(pidfd, &own, advice, flags) {
            Some(result) => ret(result),
            None => real::process_madvise(pidfd, parts, count, advice, flags),
        }
    }
}

export! {
    as posix_madvise;
    fn (addr: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
        // The numbers are the kernel's but for DONTNEED, which libc makes nothing of.
        let managed = if advice == libc::POSIX_MADV_DONTNEED {
            None
        } else {
            mapping::madvise(addr as usize, bytes, advice)
        };
        managed.map_or_else(|| real::posix_madvise(addr, bytes, advice), |result| -result as c_int)
    }
}

/// `MLOCK_ONFAULT`
const ON_FAULT: c_uint = 1;

pub(crate) fn lock_memory(addr: usize, bytes: usize, flags: c_uint) -> Option<isize> {
    mapping::lock_on_fault(addr, bytes)
        .then(|| raw_call!(libc::SYS_mlock2, addr, bytes, flags | ON_FAULT))
}

export! {
    as mlock;
    fn (addr: *const c_void, bytes: size_t) -> c_int {
        match lock_memory(addr as usize, bytes, 0) {
            Some(result) => ret(result) as c_int,
            None => real::mlock(addr, bytes),
        }
    }
}

export! {
    as mlock2;
    fn (addr: *const c_void, bytes: size_t, flags: c_uint) -> c_int {
        match lock_memory(addr as usize, bytes, flags) {
            Some(result) => ret(result) as c_int,
            None => real::mlock2(addr, bytes, flags),
        }
    }
}

/// The flags that `mlockall(2)` gets: locking present and future memory must not bring all managed
/// files in.
pub(crate) fn lock_all_flags(flags: c_int) -> c_int {
    let locks = flags & (libc::MCL_CURRENT | libc::MCL_FUTURE) != 0;
    if locks && state::current().is_some() { flags | libc::MCL_ONFAULT } else { flags }
}

export! {
    as mlockall;
    fn (flags: c_int) -> c_int { real::mlockall(lock_all_flags(flags)) }
}
