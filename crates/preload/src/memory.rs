//! Mappings of managed files, and heap memory. Here: the calls that change them, as a program makes them by libc's
//! functions or by number. `plain` makes the call as it is; results are the kernel's.

pub(crate) mod allocation;
pub(crate) mod call;
pub(crate) mod fork;
pub(crate) mod gate;
pub(crate) mod heap;
pub(crate) mod mapping;
pub(crate) mod turns;

use crate::descriptors::table;
use crate::link::standby;
use call::{Mmap, Mremap};

/// `mmap(2)`.
pub(crate) fn mmap(call: Mmap, plain: impl FnOnce() -> isize) -> isize {
    standby::step();
    let ours = if call.flags & libc::MAP_ANONYMOUS != 0 {
        heap::mmap(call)
    } else if table::is_plain(call.fd) {
        None
    } else {
        mapping::mmap(call)
    };
    ours.unwrap_or_else(|| {
        let _changing = standby::changing();
        turns::maps(call.addr, call.bytes, call.flags, plain)
    })
}

/// `munmap(2)`.
pub(crate) fn munmap(addr: usize, bytes: usize, plain: impl FnOnce() -> isize) -> isize {
    let _changing = standby::changing();
    turns::gives_up(addr, bytes, plain)
}

/// `mremap(2)`.
pub(crate) fn mremap(call: Mremap, plain: impl FnOnce() -> isize) -> isize {
    standby::step();
    if let Some(result) = heap::mremap(&call) {
        return result;
    }
    let _changing = standby::changing();
    let result = turns::moves(&call, plain);
    if result >= 0 {
        mapping::remapped(&call, result as usize);
    }
    result
}
