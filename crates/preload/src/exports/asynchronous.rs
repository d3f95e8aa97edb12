//! Beginning asynchronous transfers: by POSIX's functions ([`posix_aio`]), by libaio and by liburing.
//!
//! Of the latter two: what they read and write of managed files the kernel does at some time, and nobody
//! sees it; what they wrote would be lost to whoever stores to such a page later. And the kernel looks a
//! buffer's pages up when a direct read is submitted, and storage fills them some time later: a page of heap
//! memory that left meanwhile would not have what was read. So there are no such transfers, as on a kernel
//! without them, and programs fall back to calls that wait.

use crate::posix_aio::{self, Block, Event, Operation};
use crate::process::state;
use crate::{raw_call, real};
use libc::{c_int, c_uint, c_void, size_t};

export! {
    as aio_read, aio_read64;
    fn (block: *mut Block) -> c_int {
        match posix_aio::carry_out(block, Operation::Read) {
            Some(_) => 0,
            None => real::aio_read(block.cast()),
        }
    }
}

export! {
    as aio_write, aio_write64;
    fn (block: *mut Block) -> c_int {
        match posix_aio::carry_out(block, Operation::Write) {
            Some(_) => 0,
            None => real::aio_write(block.cast()),
        }
    }
}

export! {
    as aio_fsync, aio_fsync64;
    fn (operation: c_int, block: *mut Block) -> c_int {
        let known = match operation {
            libc::O_SYNC => Some(Operation::Sync { data_only: false }),
            libc::O_DSYNC => Some(Operation::Sync { data_only: true }),
            _ => None,
        };
        match known.and_then(|operation| posix_aio::carry_out(block, operation)) {
            Some(_) => 0,
            None => real::aio_fsync(operation, block.cast()),
        }
    }
}

export! {
    as lio_listio, lio_listio64;
    fn (mode: c_int, blocks: *const *mut Block, count: c_int, event: *const Event) -> c_int {
        match posix_aio::list(mode, blocks, count, event) {
            Some(result) => result,
            None => real::lio_listio(mode, blocks.cast(), count, event.cast()),
        }
    }
}

/// Whether the kernel must not read, write and fill memory behind this program's back.
pub(crate) fn refused() -> bool {
    state::current().is_some()
}

/// libaio's functions give a negative error number, and liburing's do.
fn unless_refused(begin: impl FnOnce() -> c_int) -> c_int {
    if refused() { -libc::ENOSYS } else { begin() }
}

export! {
    as io_setup;
    fn (events: c_int, context: *mut c_void) -> c_int {
        // The system call and no more, as in libaio.
        unless_refused(|| raw_call!(libc::SYS_io_setup, events, context) as c_int)
    }
}

export! {
    as io_queue_init;
    fn (events: c_int, context: *mut c_void) -> c_int {
        unless_refused(|| real::io_queue_init(events, context))
    }
}

export! {
    as io_uring_queue_init;
    fn (entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
        unless_refused(|| real::io_uring_queue_init(entries, ring, flags))
    }
}

export! {
    as io_uring_queue_init_params;
    fn (entries: c_uint, ring: *mut c_void, parameters: *mut c_void) -> c_int {
        unless_refused(|| real::io_uring_queue_init_params(entries, ring, parameters))
    }
}

export! {
    as io_uring_queue_init_mem;
    fn (
        entries: c_uint,
        ring: *mut c_void,
        parameters: *mut c_void,
        memory: *mut c_void,
        bytes: size_t,
    ) -> c_int {
        unless_refused(|| real::io_uring_queue_init_mem(entries, ring, parameters, memory, bytes))
    }
}

export! {
    as io_uring_setup;
    fn (entries: c_uint, parameters: *mut c_void) -> c_int {
        // The system call and no more, as in liburing.
        unless_refused(|| raw_call!(libc::SYS_io_uring_setup, entries, parameters) as c_int)
    }
}
