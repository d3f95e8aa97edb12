//! What the kernel says of a descriptor in `proc_pid_fdinfo(5)`, and by no call.

use crate::raw;
use crate::raw_call;
use libc::c_int;

/// All that is looked for stands near the beginning.
const BYTES: usize = 512;

/// Gives that to `look`; none if it cannot be had.
fn with<R>(fd: c_int, look: impl FnOnce(&[u8]) -> R) -> Option<R> {
    if fd < 0 {
        return None;
    }
    let mut path = [0u8; 32];
    let path = raw::descriptor_path(b"fdinfo", fd, &mut path);
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let info = raw_call!(libc::SYS_openat, libc::AT_FDCWD, path, flags) as c_int;
    if info < 0 {
        return None;
    }
    let mut text = [0u8; BYTES];
    let got = raw_call!(libc::SYS_read, info, text.as_mut_ptr(), BYTES);
    raw::close(info);
    Some(look(text.get(..usize::try_from(got).ok()?)?))
}

/// What follows a name at the beginning of a line.
fn value<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    text.split(|&c| c == b'\n').find_map(|line| line.strip_prefix(name))
}

/// The process or thread that a pidfd is of, as this process's `/proc` numbers it; none of any other
/// descriptor, and of one whose process is gone.
fn process_of(pidfd: c_int) -> Option<i32> {
    let digits = |text: &[u8]| core::str::from_utf8(text.trim_ascii()).ok()?.parse().ok();
    with(pidfd, |text| value(text, b"Pid:").and_then(digits))?.filter(|pid| *pid > 0)
}

/// Whether a pidfd is of the calling process, or of a thread of it.
pub(crate) fn is_own_pidfd(pidfd: c_int) -> bool {
    /// In place of one (`<linux/pidfd.h>`).
    const PIDFD_SELF_THREAD: c_int = -10000;
    const PIDFD_SELF_THREAD_GROUP: c_int = -10001;
    matches!(pidfd, PIDFD_SELF_THREAD | PIDFD_SELF_THREAD_GROUP)
        || process_of(pidfd)
            .is_some_and(|pid| raw_call!(libc::SYS_tgkill, raw::getpid(), pid, 0) == 0)
}

/// Whether a lock is held by a descriptor's open file description, or was taken by it; also if nobody can say.
pub(crate) fn is_locked(fd: c_int) -> bool {
    with(fd, |text| value(text, b"lock:").is_some()).unwrap_or(true)
}

/// Whether there is an open descriptor for which `is_it` says so; also if nobody can say.
pub(crate) fn any_open(mut is_it: impl FnMut(c_int) -> bool) -> bool {
    let mut found = false;
    let listed = each_open(|fd| {
        found = found || is_it(fd);
    });
    found || !listed
}

/// Calls `f` for each open descriptor; false if they are not to be had.
pub(crate) fn each_open(mut f: impl FnMut(c_int)) -> bool {
    let dir = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let path = c"/proc/self/fd".as_ptr();
    let list = raw_call!(libc::SYS_openat, libc::AT_FDCWD, path, dir);
    if list < 0 {
        return false;
    }
    /// `struct linux_dirent64` up to its name.
    const NAME_AT: usize = 19;
    let mut buffer = [0u64; 256];
    loop {
        let bytes = size_of_val(&buffer);
        let got = raw_call!(libc::SYS_getdents64, list, buffer.as_mut_ptr(), bytes);
        if got <= 0 {
            break;
        }
        // SAFETY: the kernel wrote `got` bytes, at most the buffer's size.
        let records =
            unsafe { core::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), got as usize) };
        let mut at = 0;
        while at + NAME_AT < records.len() {
            let length = u16::from_ne_bytes([records[at + 16], records[at + 17]]) as usize;
            let name = &records[at + NAME_AT..(at + length).min(records.len())];
            let digits = name.iter().take_while(|c| c.is_ascii_digit());
            let fd = digits.fold(0i64, |n, c| n * 10 + (c - b'0') as i64) as c_int;
            if name.first().is_some_and(u8::is_ascii_digit) && fd != list as c_int {
                f(fd);
            }
            at += length.max(1);
        }
    }
    raw::close(list as c_int);
    true
}
