//! POSIX's asynchronous transfers (`aio_read(3)` and its kin) of managed files.
//!
//! glibc has threads of its own make them, by calls that no preloaded library sees. Those of managed
//! files are made here instead, before the call that asks for them returns: a program may find them done
//! as soon as it looks. What came of one is put where glibc's `aio_error`, `aio_return`, `aio_suspend`
//! and `aio_cancel` look for it, and who wants to be told is told as by glibc: by a signal, or by a
//! thread that is made for it.

use crate::descriptors::{files, table};
use crate::raw::{self, Arena, SignalsHeld};
use crate::reading::transfer::{self, one};
use crate::writing::change;
use crate::{raw_call, real};
use core::mem::{MaybeUninit, offset_of};
use core::sync::atomic::{AtomicI32, AtomicIsize, Ordering};
use libc::{c_int, c_void};
use pagekeeper_wire::PAGE_BYTES;

/// `struct sigevent`
#[repr(C)]
pub(crate) struct Event {
    value: *mut c_void,
    signal: c_int,
    notify: c_int,
    function: Option<extern "C" fn(*mut c_void) -> *mut c_void>,
    attributes: *const libc::pthread_attr_t,
    reserved: [usize; 4],
}

/// `struct aiocb` of glibc, whose own fields are part of its ABI: programs have it in their memory.
#[repr(C)]
pub(crate) struct Block {
    fd: c_int,
    operation: c_int,
    priority: c_int,
    buffer: usize,
    bytes: usize,
    event: Event,
    next: usize,
    priority_now: c_int,
    policy: c_int,
    error: c_int,
    result: isize,
    offset: i64,
    reserved: [u8; 32],
}

const _: () = assert!(
    size_of::<Event>() == size_of::<libc::sigevent>()
        && size_of::<Block>() == size_of::<libc::aiocb>()
        && offset_of!(Block, offset) == offset_of!(libc::aiocb, aio_offset)
);

/// `AIO_PRIO_DELTA_MAX`
const PRIORITY_MAX: c_int = 20;

/// What a program asks to be done.
#[derive(Clone, Copy)]
pub(crate) enum Operation {
    Read,
    Write,
    /// Of the data alone, or of all that is known of the file.
    Sync {
        data_only: bool,
    },
}

/// Carries out what a block asks for: its result, or negated errno. None if it is glibc's to do.
pub(crate) fn carry_out(block: *mut Block, operation: Operation) -> Option<isize> {
    if block.is_null() {
        return None;
    }
    // SAFETY: the program's own, which it leaves alone until the operation is done.
    let (fd, buffer, bytes, offset, priority) = unsafe {
        ((*block).fd, (*block).buffer, (*block).bytes, (*block).offset, (*block).priority)
    };
    // A priority that is none is an error, which glibc knows.
    if table::is_plain(fd) || !(0..=PRIORITY_MAX).contains(&priority) {
        return None;
    }
    let errno = raw::errno();
    let done = match operation {
        Operation::Read => {
            let plain = || raw_call!(libc::SYS_pread64, fd, buffer, bytes, offset);
            transfer::read(fd, one(buffer, bytes), Some(offset), 0, plain)
        }
        Operation::Write => {
            let plain = || raw_call!(libc::SYS_pwrite64, fd, buffer, bytes, offset);
            transfer::write(fd, one(buffer, bytes), Some(offset), 0, plain)
        }
        Operation::Sync { data_only } => files::managed(fd).map(|_| sync(fd, data_only)),
    };
    raw::set_errno(errno);
    let result = done?;
    let failed = (-4095..0).contains(&result);
    let (error, returned) = if failed { (-result as c_int, -1) } else { (0, result) };
    // SAFETY: as above. The last is the error: whoever finds it may take the block away, and so may who
    // is told.
    unsafe {
        let event = (&raw const (*block).event).read();
        AtomicIsize::from_ptr(&raw mut (*block).result).store(returned, Ordering::Release);
        AtomicI32::from_ptr(&raw mut (*block).error).store(error, Ordering::Release);
        tell(&raw const event);
    }
    Some(result)
}

fn sync(fd: c_int, data_only: bool) -> isize {
    let number = if data_only { libc::SYS_fdatasync } else { libc::SYS_fsync };
    match change::sync_descriptor(fd) {
        0 => raw_call!(number, fd),
        error => error,
    }
}

/// Tells the program that something is done, as it asked for.
///
/// # Safety
/// The event is null or the program's own, which it leaves alone meanwhile.
unsafe fn tell(event: *const Event) {
    // SAFETY: as above.
    let Some(event) = (unsafe { event.as_ref() }) else { return };
    match event.notify {
        libc::SIGEV_SIGNAL => queue(event.signal, event.value),
        libc::SIGEV_THREAD => {
            let Some(function) = event.function else { return };
            let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
            let (at, by) = (thread.as_mut_ptr(), event.attributes);
            let Some(room) = Arena::new(size_of::<Notice>()) else { return };
            let notice = room.addr as *mut Notice;
            // SAFETY: fresh memory for it.
            unsafe { notice.write(Notice { function, value: event.value }) };
            // It begins without signals, and lets them come by itself.
            let _held = SignalsHeld::new();
            if real::pthread_create(at, by, notify, notice.cast()) == 0 {
                core::mem::forget(room);
                if by.is_null() {
                    // SAFETY: it was made, and wrote its name.
                    real::pthread_detach(unsafe { thread.assume_init() });
                }
            }
        }
        _ => {}
    }
}

/// What a thread that tells a program something is made for.
struct Notice {
    /// Takes a union of the size of a pointer, which goes where a pointer goes; what it returns nobody
    /// looks at.
    function: extern "C" fn(*mut c_void) -> *mut c_void,
    value: *mut c_void,
}

/// Where such a thread begins. Under glibc, too, its function runs with no signal blocked.
extern "C" fn notify(notice: *mut c_void) -> *mut c_void {
    // SAFETY: who made the thread left it to this.
    let Notice { function, value } = unsafe { notice.cast::<Notice>().read() };
    raw::munmap(notice.addr(), PAGE_BYTES as usize);
    let none = 0u64;
    raw_call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, 0, size_of::<u64>());
    function(value)
}

/// Sends this process a signal as the end of an asynchronous transfer does.
fn queue(signal: c_int, value: *mut c_void) {
    /// `siginfo_t` of a signal that was queued.
    #[repr(C)]
    struct Info {
        signal: c_int,
        errno: c_int,
        code: c_int,
        padding: c_int,
        pid: c_int,
        uid: u32,
        value: *mut c_void,
        reserved: [u64; 12],
    }
    const _: () = assert!(
        size_of::<Info>() == size_of::<libc::siginfo_t>()
            && offset_of!(Info, pid) == 16
            && offset_of!(Info, value) == 24
    );
    let pid = raw::getpid();
    let uid = raw_call!(libc::SYS_getuid) as u32;
    let (errno, code, reserved) = (0, libc::SI_ASYNCIO, [0; 12]);
    let info = Info { signal, errno, code, padding: 0, pid, uid, value, reserved };
    raw_call!(libc::SYS_rt_sigqueueinfo, pid, signal, &raw const info);
}

/// `lio_listio(3)`; none if it is glibc's to do, altogether.
pub(crate) fn list(
    mode: c_int,
    blocks: *const *mut Block,
    count: c_int,
    event: *const Event,
) -> Option<c_int> {
    if !matches!(mode, libc::LIO_WAIT | libc::LIO_NOWAIT) || count <= 0 || blocks.is_null() {
        return None;
    }
    // SAFETY: the program says that so many are there.
    let blocks = unsafe { core::slice::from_raw_parts(blocks, count as usize) };
    let operation_of = |block: *mut Block| {
        // SAFETY: null, or the program's own.
        match unsafe { block.as_ref() }?.operation {
            libc::LIO_READ => Some(Operation::Read),
            libc::LIO_WRITE => Some(Operation::Write),
            _ => None,
        }
    };
    // SAFETY: null, or the program's own.
    let fd_of = |block: &*mut Block| unsafe { block.as_ref() }.map_or(-1, |block| block.fd);
    if blocks.iter().map(fd_of).all(table::is_plain) {
        return None;
    }
    // Who is told that a block is done may take it away: those are not in the list that glibc gets.
    let rest = Arena::new(size_of_val(blocks))?;
    let (mut others, mut failed) = (0, false);
    for (at, &block) in blocks.iter().enumerate() {
        let done = operation_of(block).and_then(|operation| carry_out(block, operation));
        if let Some(result) = done {
            failed |= result < 0;
            continue;
        }
        others += 1;
        // SAFETY: the arena has room for so many, and is zero where nothing is put.
        unsafe { (rest.addr as *mut *mut Block).add(at).write(block) };
    }
    let mut result = 0;
    if others > 0 {
        result = real::lio_listio(mode, rest.addr as *const *mut c_void, count, event.cast());
    } else if mode == libc::LIO_NOWAIT {
        // SAFETY: null, or the program's own.
        unsafe { tell(event) };
    }
    // One that could not be begun is an error of all.
    let mixed = result < 0 && others < blocks.len();
    if mode == libc::LIO_WAIT && (mixed || result == 0 && failed) {
        raw::set_errno(libc::EIO);
        result = -1;
    }
    Some(result)
}
