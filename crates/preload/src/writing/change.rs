//! Other calls that change a managed file, and those that need its dirty pages written first.

use crate::descriptors::files::{self, File, Served};
use crate::descriptors::table::{self, Entry};
use crate::link::board;
use crate::link::connection::ask;
use crate::process::state::{self, State, View};
use crate::raw::{self, SignalsHeld};
use crate::raw_call;
use crate::reading::guard;
use crate::writing::{delayed, overwrite};
use core::ffi::CStr;
use core::sync::atomic::Ordering;
use libc::{c_char, c_int};
use pagekeeper_wire::{
    ALL_FILES, CHANGE_OTHER, CHANGE_TRUNCATE, FLUSH_AT_REST, HEARD_NOTHING, Op, PAGE_BYTES,
    Request, TO_END,
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

/// Makes a call that gives a file room, so that it is at least `to` bytes long, and that changes nothing of
/// what it has; none if it is not managed.
pub(crate) fn reserve(fd: c_int, to: u64, mut plain: impl FnMut() -> isize) -> Option<isize> {
    if table::is_plain(fd) {
        return None;
    }
    loop {
        let Ok(before) = raw::fstat(fd) else { return Some(plain()) };
        let size = before.st_size as u64;
        // What was stored behind the end in its last page is no content of the longer file.
        let first =
            if to > size { size - size % PAGE_BYTES } else { size.next_multiple_of(PAGE_BYTES) };
        let mut is_as_seen = true;
        let result = change(fd, (first, TO_END), || {
            is_as_seen = raw::fstat(fd).is_ok_and(|now| now.st_size == before.st_size);
            if is_as_seen { plain() } else { -libc::EAGAIN as isize }
        });
        // Who changed the length meanwhile is done with it now.
        if is_as_seen {
            return result;
        }
    }
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
pub(crate) fn truncate_path(path: *const c_char, bytes: i64) -> Option<isize> {
    let stat = regular_at((libc::AT_FDCWD, path, 0))?;
    state::current()?;
    // The call gets a copy, as in [`copy`].
    let mut own = [0u8; libc::PATH_MAX as usize];
    // SAFETY: the program's own string, which the kernel has just read.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    own.get_mut(..name.len())?.copy_from_slice(name);
    let plain = || raw_call!(libc::SYS_truncate, own.as_ptr(), bytes);
    // A descriptor made for this keeps no file in the run: it may go between the two looks at it.
    const GONE: isize = -libc::EBADF as isize;
    for _ in 0..TRUNCATIONS_MAX {
        let done =
            with_descriptor((libc::AT_FDCWD, path, 0), &stat, |fd| truncate(fd, bytes, plain))?;
        if done != Some(GONE) {
            return done;
        }
    }
    Some(plain())
}

/// Of a file that is let go of each time, which is then the kernel's.
const TRUNCATIONS_MAX: u32 = 3;

/// A path as `fstatat(2)` takes it: directory, name and flags.
type Place = (c_int, *const c_char, c_int);

/// The regular file at a path, in a process that may talk to the manager.
fn regular_at((dir, path, flags): Place) -> Option<libc::stat> {
    if let View::Foreign = state::view() {
        return None;
    }
    let stat = raw::stat_at(dir, path, flags).ok()?;
    (stat.st_mode & libc::S_IFMT == libc::S_IFREG).then_some(stat)
}

/// Does something with a descriptor of the file at a path, of which this is known.
fn with_descriptor<R>(
    (dir, path, flags): Place,
    stat: &libc::stat,
    work: impl FnOnce(c_int) -> R,
) -> Option<R> {
    // A descriptor that the program has: opening and closing another one of the same file would
    // drop the program's record locks.
    if let Some((fd, _)) = table::of_file(stat) {
        return Some(work(fd));
    }
    // The program may hold locks by a descriptor that is unknown here; closing one of this kind
    // does not drop them.
    let no_link = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { libc::O_NOFOLLOW } else { 0 };
    let flags = libc::O_PATH | libc::O_CLOEXEC | no_link;
    let fd = raw_call!(libc::SYS_openat, dir, path, flags);
    if fd < 0 {
        return None;
    }
    let fd = fd as c_int;
    files::announce(fd, flags);
    let result = work(fd);
    files::close(fd, || {
        raw::close(fd);
        0
    });
    Some(result)
}

/// Before a file's times are set by a descriptor: what is stored in it and written back later would make
/// it younger again.
pub(crate) fn before_times(fd: c_int) {
    if table::is_plain(fd) || table::get_sure(fd).is_some_and(overwrite::is_clean) {
        return;
    }
    if let Some(file) = files::managed(fd) {
        delayed::published(file.entry);
        // An error is for who syncs the file.
        let _ = flush_waiting(&file, (0, 0), FLUSH_AT_REST);
    }
}

/// [`before_times`] by a path, or by the descriptor itself if there is none.
pub(crate) fn before_times_at(dir: c_int, path: *const c_char, flags: c_int) {
    if path.is_null() {
        return before_times(dir);
    }
    let place = (dir, path, flags);
    let Some(stat) = regular_at(place) else { return };
    // Nobody has stored anything in a file that was never managed.
    if board::unmanaged(&stat).is_some() {
        return;
    }
    // The kernel has just read the name.
    // SAFETY: the program's own string, which has at least its NUL.
    if flags & libc::AT_EMPTY_PATH != 0 && unsafe { path.read() } == 0 {
        return before_times(dir);
    }
    if state::current().is_some() {
        let _ = with_descriptor(place, &stat, before_times);
    }
}

/// Has a file's dirty pages written back (`bytes` 0: to the end), and waits.
pub(crate) fn flush(file: &File, offset: u64, bytes: u64) -> isize {
    flush_waiting(file, (offset, bytes), 1)
}

fn flush_waiting(file: &File, range: Range, wait: u64) -> isize {
    if !table::is_active(file.entry) || !file.state.is_own() {
        return 0;
    }
    ask_to_write(file.state, file.entry.slot(), range, wait)
}

/// Has the dirty pages of a slot's file in a range (bytes 0: to the end) written back, and waits.
pub(crate) fn write_out(state: &State, slot: u32, range: Range) -> isize {
    ask_to_write(state, slot, range, 1)
}

fn ask_to_write(state: &State, slot: u32, range: Range, wait: u64) -> isize {
    let mut request = Request::new(Op::Flush);
    (request.a, request.b, request.c) = (slot.into(), range.0, range.1);
    (request.d, request.e) = (wait, HEARD_NOTHING);
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

/// A managed file may have been written to behind the manager's back. Whether it was told.
pub(crate) fn refresh(fd: c_int) -> bool {
    files::managed(fd)
        .filter(|file| table::is_active(file.entry) && file.state.is_own())
        .is_some_and(|file| ask(file.state, &file.request(Op::Refresh)).is_ok())
}

/// What somebody outside wrote before now is to be seen of a descriptor's file.
pub(crate) fn see(fd: c_int, entry: Entry) {
    let is_known =
        |stat: libc::stat| table::is_file(entry, &stat) && overwrite::is_as_known(entry, &stat);
    if !raw::fstat(fd).is_ok_and(is_known) {
        refresh(fd);
    }
}

/// Has every managed file's dirty pages written back.
pub(crate) fn flush_all() -> isize {
    let Some(state) = state::current() else { return 0 };
    let mut request = Request::new(Op::Flush);
    (request.a, request.d) = (ALL_FILES, 1);
    ask(state, &request).map_or_else(|errno| errno as isize, |_| 0)
}

/// Where a call that moves bytes takes its offsets from, and leaves them: of its source, and of its
/// destination; null for the descriptor's own.
pub(crate) type Offsets = [*mut i64; 2];

/// A call that moves bytes from one descriptor to another inside the kernel. The source's dirty
/// pages are written back first, the destination's cached pages dropped afterwards. None if
/// neither is managed.
pub(crate) fn copy(
    from: c_int,
    to: c_int,
    offsets: Offsets,
    bytes: usize,
    plain: impl Fn(Offsets) -> isize,
) -> Option<isize> {
    if table::is_plain(from) && table::is_plain(to) {
        return None;
    }
    let flushed = flush_descriptor(from);
    if flushed < 0 {
        return Some(flushed);
    }
    if table::is_plain(to) || bytes == 0 {
        return Some(plain(offsets));
    }
    // The call gets copies: what it is given may lie in a page of the file that it changes, which nobody
    // brings in before the change is over.
    let mut copies = [0; 2];
    for (copy, place) in copies.iter_mut().zip(offsets) {
        if !place.is_null() {
            if !guard::is_there(place as usize, size_of::<i64>()) {
                return Some(-libc::EFAULT as isize);
            }
            // SAFETY: the program's own variable, of which some memory was there just now.
            *copy = unsafe { place.read_unaligned() };
        }
    }
    let before = copies;
    let append = raw::fcntl(to, libc::F_GETFL, 0) as c_int & libc::O_APPEND != 0;
    let range = match (offsets[1].is_null(), before[1]) {
        (true, _) if !append => None,
        (false, offset) if !append && offset >= 0 => Some((offset as u64, bytes as u64)),
        _ => Some((0, TO_END)),
    };
    let places = copies.as_mut_ptr();
    let call = || {
        let own =
            |at: usize| if offsets[at].is_null() { offsets[at] } else { places.wrapping_add(at) };
        plain([own(0), own(1)])
    };
    let done = match range {
        None => change_here(to, bytes, call),
        Some(range) => change(to, range, call),
    };
    let done = done.unwrap_or_else(call);
    for at in 0..2 {
        // SAFETY: ours; the kernel has written there, if at all.
        let after = unsafe { places.wrapping_add(at).read_volatile() };
        if after != before[at] {
            // SAFETY: the program's own variable, that the call would have written to.
            unsafe { offsets[at].write_unaligned(after) };
        }
    }
    Some(done)
}

/// [`change`] of so many bytes from the descriptor's own offset on, which the call moves behind them.
fn change_here(fd: c_int, bytes: usize, mut plain: impl FnMut() -> isize) -> Option<isize> {
    let file = files::managed(fd)?;
    // Nobody else who writes in this process moves the offset before the call is over. Who shares it
    // from elsewhere may do so at any time: then all of the file is to be changed.
    let _held = SignalsHeld::new();
    let lock = file.state.offset_locks[file.entry.lock_index()].lock();
    let start = raw::lseek(fd, 0, libc::SEEK_CUR);
    if start < 0 || table::may_be_shared(fd) {
        drop(lock);
        return change(fd, (0, TO_END), plain);
    }
    let mut moved = false;
    let result = change(fd, (start as u64, bytes as u64), || {
        let result = plain();
        let end = start + result.max(0) as i64;
        moved = result > 0 && raw::lseek(fd, 0, libc::SEEK_CUR) != end;
        result
    });
    if moved {
        // Who reads by the same offset, or is not managed, moved it: nobody knows where the bytes went.
        change(fd, (0, TO_END), || 1);
    }
    result
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
    let offsets = [from_at, to_at];
    let plain = |[from_at, to_at]: Offsets, flags: u32| {
        raw_call!(libc::SYS_splice, from, from_at, to, to_at, bytes, flags)
    };
    if table::is_plain(to) {
        return copy(from, to, offsets, bytes, |offsets| plain(offsets, flags));
    }
    // The source is a pipe. A writer that takes its time must not keep the file's pages waiting:
    // move only what is there already.
    let waits = flags & libc::SPLICE_F_NONBLOCK == 0
        && raw::fcntl(from, libc::F_GETFL, 0) as c_int & libc::O_NONBLOCK == 0;
    loop {
        let at_once = flags | libc::SPLICE_F_NONBLOCK;
        let result = copy(from, to, offsets, bytes, |offsets| plain(offsets, at_once))?;
        if result != -libc::EAGAIN as isize || !waits {
            return Some(result);
        }
        let waited = wait_for_pipe(from);
        if waited < 0 {
            return Some(waited);
        }
    }
}

/// Waits until there is something in a pipe, or nobody writes to it any more; interrupted by signals as
/// `splice(2)` is.
fn wait_for_pipe(from: c_int) -> isize {
    let mut ends = [-1; 2];
    if raw_call!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) < 0 {
        let mut wait = libc::pollfd { fd: from, events: libc::POLLIN, revents: 0 };
        return raw_call!(libc::SYS_ppoll, &raw mut wait, 1, 0, 0, 0);
    }
    // Unlike `ppoll(2)` this begins again after a handler with SA_RESTART. It takes nothing away.
    let result = raw_call!(libc::SYS_tee, from, ends[1], 1, 0);
    ends.into_iter().for_each(raw::close);
    result
}
