//! Streams of libc's own on managed files: a standard one whose descriptor was put on a file after the
//! start (`dup2(2)`), one that `freopen(3)` left, one that became wide.
//!
//! glibc writes what they hold by calls that no preloaded library sees. Where that is asked for (`fflush`,
//! `fputs`, `fwrite`, `fclose`, the end of the program) it is made a change of the file like any other. What
//! is written because a buffer is full, or by functions that are not here, counts as somebody else's.

use crate::descriptors::table;
use crate::process::state;
use crate::streams::large::{self, Fields};
use crate::streams::{stdio, wide};
use crate::writing::change;
use crate::{raw, real};
use libc::{FILE, c_int};
use pagekeeper_wire::TO_END;

unsafe extern "C" {
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// The descriptor of such a stream, if its file may be a managed one.
#[inline(always)]
fn descriptor(stream: *mut FILE) -> Option<c_int> {
    if stream.is_null() {
        return None;
    }
    // SAFETY: the program's own stream; another thread may be using it.
    let fd = unsafe { (&raw const (*stream.cast::<Fields>()).fileno).read_volatile() };
    let is_ours = || stdio::descriptor(stream).is_some() && !wide::is(stream);
    (fd >= 0 && !table::is_plain(fd) && !is_ours()).then_some(fd)
}

/// Makes a call that gives a stream so many bytes.
#[inline(always)]
pub(crate) fn around<T>(stream: *mut FILE, bytes: impl Fn() -> usize, call: impl Fn() -> T) -> T {
    match descriptor(stream) {
        Some(fd) => around_write(fd, stream, |fields| fields.writes_with(bytes()), call),
        None => call(),
    }
}

/// Makes a call that may write what such a stream holds: a change of the file, if it `writes`. The stream
/// is locked first, as it is by who calls this with the lock.
#[cold]
fn around_write<T>(
    fd: c_int,
    stream: *mut FILE,
    writes: impl Fn(&Fields) -> bool,
    call: impl Fn() -> T,
) -> T {
    large::locked(stream, || {
        // SAFETY: the program's own stream, locked.
        let fields = unsafe { &*stream.cast::<Fields>() };
        let (writes, ahead_bytes) = (writes(fields), fields.ahead_bytes());
        if writes { around_file(fd, ahead_bytes, call) } else { call() }
    })
}

fn around_file<T>(fd: c_int, ahead_bytes: i64, call: impl Fn() -> T) -> T {
    let flags = raw::fcntl(fd, libc::F_GETFL, 0);
    if flags < 0 || flags as c_int & libc::O_ACCMODE == libc::O_RDONLY {
        return call();
    }
    let at = if flags as c_int & libc::O_APPEND != 0 {
        raw::fstat(fd).map_or(0, |stat| stat.st_size)
    } else {
        raw::lseek(fd, 0, libc::SEEK_CUR) - ahead_bytes
    };
    let mut made = None;
    change::change(fd, (at.max(0) as u64, TO_END), || {
        made = Some((call(), raw::errno()));
        // Whatever came of it: something may have been written.
        0
    });
    // Not managed, or the manager is gone: what is lost by that it says itself.
    let Some((done, errno)) = made else { return call() };
    raw::set_errno(errno);
    done
}

/// `fflush(3)`, of all streams if there is none.
pub(crate) fn flush(stream: *mut FILE, real: impl Fn(*mut FILE) -> c_int) -> c_int {
    if stream.is_null() {
        flush_standard();
    }
    match descriptor(stream) {
        Some(fd) => around_write(fd, stream, Fields::has_pending, || real(stream)),
        None => real(stream),
    }
}

/// Has what the standard streams hold written.
pub(crate) fn flush_standard() {
    if !state::active() {
        return;
    }
    // SAFETY: libc's variables, which a program may change as it may any.
    for stream in unsafe { [stdout, stderr] } {
        flush_own(stream);
    }
}

/// Has what such a stream holds written; nothing, if it is another one.
pub(crate) fn flush_own(stream: *mut FILE) {
    if descriptor(stream).is_some() {
        flush(stream, real::fflush);
    }
}
