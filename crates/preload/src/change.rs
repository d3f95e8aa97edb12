//! Other calls that change a managed file, and those that need its dirty pages written first.

use crate::connection::ask;
use crate::files::{self, File, Served};
use crate::raw::{self, SignalsHeld};
use crate::state::{self, State, View};
use crate::{delayed, overwrite, raw_call, table};
use core::sync::atomic::Ordering;
use libc::{c_char, c_int};
use pagekeeper_wire::{
    ALL_FILES, CHANGE_OTHER, CHANGE_TRUNCATE, HEARD_NOTHING, Op, Request, TO_END,
};

/// A range of a file: offset and bytes, [`TO_END`] for all behind.
pub(crate) type Range = (u64, u64);

/// Makes a system call that changes `range` of a managed file. The file's cached pages there are
/// dropped if the call took effect.
pub(crate) fn bracket(
    file: &File,
    range: Range,
    kind: u64,
    mut plain: impl FnMut() -> isize,
) -> isize {
    let _held = SignalsHeld::new();
    let mut begin = file.request(Op::ChangeBegin);
    (begin.b, begin.c, begin.e) = (range.0, range.1, kind);
    let reply = match file.ask(&begin) {
        Ok(reply) => reply,
        Err(errno) => return errno as isize,
    };
    let mut result = plain();
    if files::makes_room(file.state, result) {
        result = plain();
    }
    let mut end = file.request(Op::ChangeEnd);
    (end.b, end.c) = (reply.r0, range.0);
    // Zero says that nothing happened.
    end.d = if result >= 0 { range.1 } else { 0 };
    let _ = ask(file.state, &end);
    result
}

/// Makes a changing call on a descriptor, however the file is served; none if it is not managed.
pub(crate) fn change(fd: c_int, range: Range, mut plain: impl FnMut() -> isize) -> Option<isize> {
    let mut file = files::managed(fd)?;
    let access = raw::fcntl(fd, libc::F_GETFL, 0) as c_int & libc::O_ACCMODE;
    Some(match file.enter() {
        Served::Kernel(_guard) => plain(),
        // Nothing changes; the kernel finds the right error.
        Served::Managed if access == libc::O_RDONLY => plain(),
        Served::Managed => bracket(&file, range, CHANGE_OTHER, plain),
    })
}

/// `ftruncate(2)`; none if the descriptor is not managed.
pub(crate) fn truncate(fd: c_int, bytes: i64, mut plain: impl FnMut() -> isize) -> Option<isize> {
    let mut file = files::managed(fd)?;
    Some(match file.enter() {
        Served::Kernel(_guard) => plain(),
        Served::Managed if bytes < 0 => plain(),
        Served::Managed => bracket(&file, (bytes as u64, TO_END), CHANGE_TRUNCATE, plain),
    })
}

/// The file was cut to nothing by a call that could not be bracketed.
pub(crate) fn dropped(file: &File) {
    if table::is_active(file.entry) && file.state.is_own() {
        bracket(file, (0, TO_END), CHANGE_TRUNCATE, || 0);
    }
}

/// `truncate(2)` of a path; none if no managed file is there.
pub(crate) fn truncate_path(
    path: *const c_char,
    bytes: i64,
    plain: impl Fn() -> isize,
) -> Option<isize> {
    let View::Ready(_) = state::view() else { return None };
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    if raw_call!(libc::SYS_newfstatat, libc::AT_FDCWD, path, stat.as_mut_ptr(), 0) < 0 {
        return None;
    }
    // SAFETY: all zero is valid, and the kernel filled it.
    let stat = unsafe { stat.assume_init() };
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    // A descriptor that the program has: opening and closing another one of the same file would
    // drop the program's record locks.
    if let Some((fd, _)) = table::of_file(&stat) {
        return truncate(fd, bytes, plain);
    }
    // The program may hold locks by a descriptor that is unknown here; closing one of this kind
    // does not drop them.
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    let fd = raw_call!(libc::SYS_openat, libc::AT_FDCWD, path, flags);
    if fd < 0 {
        return None;
    }
    let fd = fd as c_int;
    files::announce(fd, flags);
    let result = truncate(fd, bytes, plain);
    files::close(fd, || {
        raw::close(fd);
        0
    });
    result
}

/// Has a file's dirty pages written back (`bytes` 0: to the end), and waits.
pub(crate) fn flush(file: &File, offset: u64, bytes: u64) -> isize {
    if !table::is_active(file.entry) || !file.state.is_own() {
        return 0;
    }
    write_out(file.state, file.entry.slot(), (offset, bytes))
}

/// Has the dirty pages of a slot's file in a range (bytes 0: to the end) written back, and waits.
pub(crate) fn write_out(state: &State, slot: u32, range: Range) -> isize {
    let mut request = Request::new(Op::Flush);
    (request.a, request.b, request.c) = (slot.into(), range.0, range.1);
    (request.d, request.e) = (1, HEARD_NOTHING);
    ask(state, &request).map_or_else(|errno| errno as isize, |reply| -(reply.r0 as isize))
}

/// For `fsync(2)`: has the dirty pages of the file behind a descriptor written back; negative if
/// that failed, now or since the descriptor last asked.
pub(crate) fn sync_descriptor(fd: c_int) -> isize {
    let Some(file) = files::managed(fd) else { return 0 };
    delayed::published(file.entry);
    let Some(heard) = table::heard(fd) else { return flush(&file, 0, 0) };
    if !table::is_active(file.entry) || !file.state.is_own() {
        return 0;
    }
    let mut request = file.request(Op::Flush);
    (request.d, request.e) = (1, heard.load(Ordering::Relaxed));
    match ask(file.state, &request) {
        Ok(reply) => {
            heard.store(reply.r1, Ordering::Relaxed);
            -(reply.r0 as isize)
        }
        Err(errno) => errno as isize,
    }
}

/// [`flush`] of the whole file behind a descriptor; negative if it failed.
pub(crate) fn flush_descriptor(fd: c_int) -> isize {
    files::managed(fd).map_or(0, |file| flush(&file, 0, 0))
}

/// [`flush`] of a range of the file behind a descriptor (`bytes` 0: to the end); negative if it
/// failed.
pub(crate) fn flush_range(fd: c_int, offset: i64, bytes: i64) -> isize {
    if offset < 0 || bytes < 0 {
        return 0;
    }
    files::managed(fd).map_or(0, |file| flush(&file, offset as u64, bytes as u64))
}

/// Before a seek to data or to a hole: what is stored in a hole is one to the kernel until it is
/// written back.
pub(crate) fn before_seek(fd: c_int, whence: c_int) {
    let looks = matches!(whence, libc::SEEK_DATA | libc::SEEK_HOLE) && !table::is_plain(fd);
    if looks && !table::get_sure(fd).is_some_and(overwrite::is_clean) {
        flush_descriptor(fd);
    }
}

/// A managed file may have been written to behind the manager's back.
pub(crate) fn refresh(fd: c_int) {
    if let Some(file) = files::managed(fd)
        && table::is_active(file.entry)
        && file.state.is_own()
    {
        let _ = ask(file.state, &file.request(Op::Refresh));
    }
}

/// Has every managed file's dirty pages written back.
pub(crate) fn flush_all() -> isize {
    let View::Ready(state) = state::view() else { return 0 };
    let mut request = Request::new(Op::Flush);
    (request.a, request.d) = (ALL_FILES, 1);
    ask(state, &request).map_or_else(|errno| errno as isize, |_| 0)
}

/// A call that moves bytes from one descriptor to another inside the kernel. The source's dirty
/// pages are written back first, the destination's cached pages dropped afterwards. None if
/// neither is managed.
pub(crate) fn copy(
    from: c_int,
    to: c_int,
    to_offset: impl FnOnce() -> Option<i64>,
    bytes: usize,
    plain: impl Fn() -> isize,
) -> Option<isize> {
    if table::is_plain(from) && table::is_plain(to) {
        return None;
    }
    let flushed = flush_descriptor(from);
    if flushed < 0 {
        return Some(flushed);
    }
    if table::is_plain(to) {
        return Some(plain());
    }
    let append = raw::fcntl(to, libc::F_GETFL, 0) as c_int & libc::O_APPEND != 0;
    let offset = to_offset().unwrap_or_else(|| raw::lseek(to, 0, libc::SEEK_CUR));
    let range = if append || offset < 0 { (0, TO_END) } else { (offset as u64, bytes as u64) };
    if bytes == 0 {
        return Some(plain());
    }
    change(to, range, &plain).or_else(|| Some(plain()))
}

/// `splice(2)`; none if no managed file takes part.
pub(crate) fn splice(
    from: c_int,
    from_at: *mut i64,
    to: c_int,
    to_at: *mut i64,
    bytes: usize,
    flags: u32,
) -> Option<isize> {
    let plain = |flags: u32| raw_call!(libc::SYS_splice, from, from_at, to, to_at, bytes, flags);
    // SAFETY: null, or the program's own variable.
    let to_offset = || unsafe { to_at.as_ref() }.copied();
    if table::is_plain(to) {
        return copy(from, to, to_offset, bytes, || plain(flags));
    }
    // The source is a pipe. A writer that takes its time must not keep the file's pages waiting:
    // move only what is there already.
    loop {
        let mut wait = libc::pollfd { fd: from, events: libc::POLLIN, revents: 0 };
        if flags & libc::SPLICE_F_NONBLOCK == 0 {
            let r = raw_call!(libc::SYS_ppoll, &raw mut wait, 1, 0, 0, 0);
            if r < 0 {
                return Some(r);
            }
        }
        let result = copy(from, to, to_offset, bytes, || plain(flags | libc::SPLICE_F_NONBLOCK))?;
        if result != -libc::EAGAIN as isize || flags & libc::SPLICE_F_NONBLOCK != 0 {
            return Some(result);
        }
    }
}
