//! Opening, closing and duplicating descriptors, and those that arrive in messages.

use crate::copies::{messages, sockets};
use crate::descriptors::{files, table};
use crate::exports::fallocate_range;
use crate::link::bell;
use crate::process::cancel;
use crate::raw::{self, ret};
use crate::reading::guard;
use crate::writing::locks::{self, Lock};
use crate::writing::{change, lock_files};
use crate::{raw_call, real};
use libc::{c_char, c_int, c_uint, c_void, mode_t, msghdr, off_t, ssize_t};

fn open_at(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    files::open(flags, |flags| real::openat(dir, path, flags, mode))
}

macro_rules! export_open {
    ($($name:ident),*) => {
        $(export! {
            as $name;
            fn (path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
                files::open(flags, |flags| real::$name(path, flags, mode))
            }
        })*
    };
}

export_open! { open, open64, __open, __open64 }

export! {
    as __open_2, __open64_2;
    fn (path: *const c_char, flags: c_int) -> c_int {
        open_at(libc::AT_FDCWD, path, flags, 0)
    }
}

export! {
    as openat, openat64;
    fn (dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(dir, path, flags, mode)
    }
}

export! {
    as __openat_2, __openat64_2;
    fn (dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_at(dir, path, flags, 0)
    }
}

macro_rules! export_creat {
    ($($name:ident, $as_asked:ident);*) => {
        $(export! {
            as $name;
            fn (path: *const c_char, mode: mode_t) -> c_int {
                const FLAGS: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
                files::open(FLAGS, |flags| match flags {
                    FLAGS => real::$name(path, mode),
                    flags => real::$as_asked(path, flags, mode),
                })
            }
        })*
    };
}

export_creat! { creat, open; creat64, open64 }

fn made(fd: c_int, flags: c_int) -> c_int {
    if fd >= 0 {
        files::classify(fd, flags);
    }
    fd
}

fn make_temporary(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    made(real::mkostemps(template, suffix, flags), flags | libc::O_RDWR | libc::O_CREAT)
}

export! {
    as mkstemp, mkstemp64;
    fn (template: *mut c_char) -> c_int { make_temporary(template, 0, 0) }
}

export! {
    as mkostemp, mkostemp64;
    fn (template: *mut c_char, flags: c_int) -> c_int { make_temporary(template, 0, flags) }
}

export! {
    as mkstemps, mkstemps64;
    fn (template: *mut c_char, suffix: c_int) -> c_int { make_temporary(template, suffix, 0) }
}

export! {
    as mkostemps, mkostemps64;
    fn (template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        make_temporary(template, suffix, flags)
    }
}

export! {
    as shm_open;
    fn (name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        made(real::shm_open(name, flags, mode), flags)
    }
}

export! {
    as open_by_handle_at;
    fn (mount: c_int, handle: *mut c_void, flags: c_int) -> c_int {
        made(real::open_by_handle_at(mount, handle, flags), flags)
    }
}

export! {
    as pidfd_getfd;
    fn (process: c_int, target: c_int, flags: c_uint) -> c_int {
        arrived(real::pidfd_getfd(process, target, flags))
    }
}

/// A descriptor came from elsewhere, with whatever flags it has there.
pub(crate) fn arrived(fd: c_int) -> c_int {
    if fd >= 0 && crate::process::state::active() {
        files::classify(fd, raw::fcntl(fd, libc::F_GETFL, 0) as c_int);
        lock_files::came(fd);
    }
    fd
}

export! {
    as close, __close;
    fn (fd: c_int) -> c_int {
        cancel::point();
        files::close(fd, || real::close(fd))
    }
}

export! {
    as close_range;
    fn (first: c_uint, last: c_uint, flags: c_int) -> c_int {
        ret(files::close_range(first, last, flags as u32, |first, last| {
            raw::kernel(real::close_range(first, last, flags) as isize)
        })) as c_int
    }
}

export! {
    as closefrom;
    fn (first: c_int) {
        let first = first.max(0) as c_uint;
        let done = files::close_range(first, c_uint::MAX, 0, |first, last| {
            raw_call!(libc::SYS_close_range, first, last, 0)
        });
        if done < 0 {
            // No close_range in this kernel; ours are verified at their next use.
            real::closefrom(first as c_int);
        }
    }
}

export! {
    as dup;
    fn (old: c_int) -> c_int {
        let new = real::dup(old);
        files::duplicated(old, new);
        new
    }
}

export! {
    as dup2, __dup2;
    fn (old: c_int, new: c_int) -> c_int {
        files::replace(old, new, || real::dup2(old, new))
    }
}

export! {
    as dup3;
    fn (old: c_int, new: c_int, flags: c_int) -> c_int {
        files::replace(old, new, || real::dup3(old, new, flags))
    }
}

export! {
    as fcntl, fcntl64, __fcntl;
    fn (fd: c_int, command: c_int, argument: usize) -> c_int {
        if command == libc::F_SETFD && bell::is(fd) {
            return 0;
        }
        let call = || real::fcntl(fd, command, argument);
        if Lock::is_by_fcntl(command) {
            let to = || Lock::of_record(argument);
            return locks::change(fd, to, || call() as isize) as c_int;
        }
        let result = call();
        if command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC {
            files::duplicated(fd, result);
        }
        if command == libc::F_SETFL {
            table::flagged(fd, argument as c_int);
        }
        result
    }
}

export! {
    as flock;
    fn (fd: c_int, operation: c_int) -> c_int {
        let call = || raw_call!(libc::SYS_flock, fd, operation);
        ret(locks::change(fd, || Some(Lock::of_flock(operation)), call)) as c_int
    }
}

export! {
    as lockf, lockf64;
    fn (fd: c_int, command: c_int, bytes: off_t) -> c_int {
        let call = || real::lockf(fd, command, bytes) as isize;
        match Lock::of_lockf(command) {
            Some(lock) => locks::change(fd, || Some(lock), call) as c_int,
            None => call() as c_int,
        }
    }
}

export! {
    as ioctl;
    fn (fd: c_int, request: usize, argument: usize) -> c_int {
        match control(fd, request as u32, argument) {
            Some(result) => ret(result) as c_int,
            None => real::ioctl(fd, request, argument),
        }
    }
}

/// Requests before which the kernel writes out what is stored in a file, or looks at it as stored: its
/// flags (ioctl_iflags(2)), after which it may not be written to any more, where its blocks are (FIEMAP),
/// whether others have the same content (FIDEDUPERANGE), and states of a file system that are kept (snapshots
/// of btrfs, fsfreeze(8)).
fn write_out_before(fd: c_int, request: u32, argument: usize) -> isize {
    const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
    const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
    const FS_IOC_FIEMAP: u32 = 0xc020_660b;
    const FIDEDUPERANGE: u32 = 0xc018_9436;
    const FIFREEZE: u32 = 0xc004_5877;
    const BTRFS_IOC_SNAP_CREATE: u32 = 0x5000_9401;
    const BTRFS_IOC_SNAP_CREATE_V2: u32 = 0x5000_9417;
    match request {
        FS_IOC_SETFLAGS | FS_IOC_FSSETXATTR | FS_IOC_FIEMAP => change::flush_descriptor(fd),
        FIDEDUPERANGE => write_out_compared(fd, argument),
        FIFREEZE | BTRFS_IOC_SNAP_CREATE | BTRFS_IOC_SNAP_CREATE_V2 => change::flush_all(),
        _ => 0,
    }
}

/// `struct file_dedupe_range` (the kernel's `include/uapi/linux/fs.h`), which is followed by so many
/// [`Compared`].
#[repr(C)]
#[derive(Clone, Copy)]
struct DedupeRange {
    src_offset: u64,
    src_length: u64,
    dest_count: u16,
    reserved1: u16,
    reserved2: u32,
}

/// `struct file_dedupe_range_info`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Compared {
    dest_fd: i64,
    dest_offset: u64,
    bytes_deduped: u64,
    status: i32,
    reserved: u32,
}

const _: () = assert!(size_of::<DedupeRange>() == 0x18 && size_of::<Compared>() == 0x20);

/// The kernel takes no more than fit into a page (ioctl_fideduperange(2)).
const COMPARED_MAX: usize = (4096 - size_of::<DedupeRange>()) / size_of::<Compared>();

/// Has the ranges of both sides that the kernel is to compare written back. It changes neither's content.
fn write_out_compared(from: c_int, argument: usize) -> isize {
    // What is wrong with the arguments the kernel says.
    if argument == 0 || !guard::is_there(argument, size_of::<DedupeRange>()) {
        return 0;
    }
    // SAFETY: the program's own structure, of which memory was there just now.
    let range = unsafe { (argument as *const DedupeRange).read_unaligned() };
    let count = usize::from(range.dest_count);
    let all = argument + size_of::<DedupeRange>();
    if count > COMPARED_MAX || !guard::is_there(all, count * size_of::<Compared>()) {
        return 0;
    }
    let write_out = |fd: c_int, offset: u64| match range.src_length {
        // Nothing is compared; here it would be all to the end.
        0 => 0,
        bytes => change::flush_range(fd, offset as i64, bytes as i64),
    };
    let mut flushed = write_out(from, range.src_offset);
    for at in 0..count {
        // SAFETY: as above.
        let to = unsafe { (all as *const Compared).add(at).read_unaligned() };
        if flushed >= 0 {
            flushed = write_out(to.dest_fd as c_int, to.dest_offset);
        }
    }
    flushed
}

/// Requests by which any file system does what `fallocate(2)` does, and `struct space_resv`, of which they take
/// one (the kernel's `include/linux/falloc.h`).
const FS_IOC_RESVSP: u32 = 0x4030_5828;
const FS_IOC_UNRESVSP: u32 = 0x4030_5829;
const FS_IOC_RESVSP64: u32 = 0x4030_582a;
const FS_IOC_UNRESVSP64: u32 = 0x4030_582b;
const FS_IOC_ZERO_RANGE: u32 = 0x4030_5839;

#[repr(C)]
#[derive(Clone, Copy)]
struct SpaceResv {
    l_type: i16,
    l_whence: i16,
    l_start: i64,
    l_len: i64,
    l_sysid: i32,
    l_pid: u32,
    l_pad: [i32; 4],
}

const _: () = assert!(size_of::<SpaceResv>() == 0x30);

/// [`control`] for those requests.
fn reserve_space(fd: c_int, request: u32, argument: usize) -> Option<isize> {
    if table::is_plain(fd) || !guard::is_there(argument, size_of::<SpaceResv>()) {
        return None;
    }
    // SAFETY: the program's own structure, of which memory was there just now. A copy, since its page may be of
    // the file that is changed.
    let space = unsafe { (argument as *const SpaceResv).read_unaligned() };
    // From an offset or an end that others may move: who knows which it is when the kernel looks.
    let range = if c_int::from(space.l_whence) == libc::SEEK_SET {
        fallocate_range(0, space.l_start, space.l_len)
    } else {
        (0, pagekeeper_wire::TO_END)
    };
    change::change(fd, range, || raw_call!(libc::SYS_ioctl, fd, request, &raw const space))
}

/// Requests that take a file's content: its blocks put into another (ioctl_ficlonerange(2)), or the file
/// made a device (loop(4)); or that change it in place. None if it is no such thing, no managed file takes
/// part, or the call may be made as it is.
pub(crate) fn control(fd: c_int, request: u32, argument: usize) -> Option<isize> {
    const FIOCLEX: u32 = 0x5451;
    if request == FIOCLEX && bell::is(fd) {
        return Some(0);
    }
    let flushed = write_out_before(fd, request, argument);
    if flushed < 0 {
        return Some(flushed);
    }
    const FICLONE: u32 = 0x4004_9409;
    const FICLONERANGE: u32 = 0x4020_940d;
    const LOOP_SET_FD: u32 = 0x4c00;
    const LOOP_CHANGE_FD: u32 = 0x4c06;
    const LOOP_CONFIGURE: u32 = 0x4c0a;
    // `struct file_clone_range`: the descriptor, two offsets, and a length. A copy, since its own page may be
    // of the file that is changed.
    let mut range = [0i64; 4];
    let is_there = |bytes: usize| argument != 0 && guard::is_there(argument, bytes);
    let from = match request {
        FICLONE | LOOP_SET_FD | LOOP_CHANGE_FD => argument as c_int,
        FICLONERANGE if is_there(size_of_val(&range)) => {
            // SAFETY: the program's own structure, of which memory was there just now.
            range = unsafe { (argument as *const [i64; 4]).read_unaligned() };
            range[0] as c_int
        }
        // SAFETY: as above; the descriptor comes first.
        LOOP_CONFIGURE if is_there(4) => unsafe { (argument as *const c_int).read_unaligned() },
        FS_IOC_RESVSP | FS_IOC_RESVSP64 | FS_IOC_UNRESVSP | FS_IOC_UNRESVSP64
        | FS_IOC_ZERO_RANGE => return reserve_space(fd, request, argument),
        _ => return None,
    };
    if table::is_plain(from) && table::is_plain(fd) {
        return None;
    }
    let flushed = change::flush_descriptor(from);
    if flushed < 0 {
        return Some(flushed);
    }
    let argument = match request {
        FICLONE => argument,
        FICLONERANGE => range.as_ptr() as usize,
        _ => return None,
    };
    change::change(fd, (0, pagekeeper_wire::TO_END), || {
        raw_call!(libc::SYS_ioctl, fd, request, argument)
    })
}

/// Descriptors may have come with a message.
pub(crate) fn received(message: &msghdr) {
    if message.msg_controllen <= size_of::<libc::cmsghdr>()
        || !crate::process::state::active()
        || message.msg_control.is_null()
    {
        return;
    }
    // SAFETY: the kernel filled the program's control buffer, and says how far.
    unsafe {
        for header in sockets::rights(message) {
            let data = libc::CMSG_DATA(header).cast::<c_int>();
            let bytes = header.read_unaligned().cmsg_len - (data as usize - header as usize);
            for i in 0..bytes / size_of::<c_int>() {
                arrived(data.add(i).read_unaligned());
            }
        }
    }
}

export! {
    as recvmsg;
    fn (fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        let result = match sockets::receive(fd, message, flags) {
            Some(result) => ret(result),
            None => real::recvmsg(fd, message, flags),
        };
        if result >= 0 && !message.is_null() {
            // SAFETY: the call succeeded with it.
            received(unsafe { &*message });
        }
        result
    }
}

export! {
    as recvmmsg;
    fn (
        fd: c_int, list: *mut libc::mmsghdr, count: c_uint, flags: c_int,
        timeout: *mut libc::timespec
    ) -> c_int {
        let result = match messages::receive(fd, list, count, flags, timeout) {
            Some(result) => ret(result) as c_int,
            None => real::recvmmsg(fd, list, count, flags, timeout),
        };
        all_received(list, result as isize);
        result
    }
}

/// [`received`] for what `recvmmsg(2)` filled.
pub(crate) fn all_received(messages: *const libc::mmsghdr, count: isize) {
    for i in 0..count.max(0) as usize {
        // SAFETY: the call filled so many of them.
        received(unsafe { &(*messages.add(i)).msg_hdr });
    }
}
