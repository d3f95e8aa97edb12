//! Who writes to a file: `fanotify(7)`.
//!
//! inotify tells that a file was modified, and fanotify by which process as well. Events name their
//! file by a [handle](handle_of), so that no descriptor is opened for one: that would break leases,
//! and changes of a file's length would be told of nobody.
#![allow(unsafe_code)]

use core::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use linux_raw_sys::general as raw;

use crate::mask::{self, Capability};
use crate::memfd::retry;
use crate::{Errno, Result, check};

/// Most bytes in the part of a handle that depends on the file system (`MAX_HANDLE_SZ`).
const HANDLE_BYTES_MAX: usize = 128;
/// Bytes before it in `struct file_handle`: how many they are, and of which kind.
const HANDLE_HEAD_BYTES: usize = 8;

/// `struct fanotify_event_metadata`.
const EVENT_BYTES: usize = 24;
const EVENT_LEN_AT: usize = 0;
const METADATA_LEN_AT: usize = 6;
const MASK_AT: usize = 8;
const PID_AT: usize = 20;
const _: () = {
    type Event = libc::fanotify_event_metadata;
    assert!(size_of::<Event>() == EVENT_BYTES);
    assert!(offset_of!(Event, event_len) == EVENT_LEN_AT);
    assert!(offset_of!(Event, metadata_len) == METADATA_LEN_AT);
    assert!(offset_of!(Event, mask) == MASK_AT);
    assert!(offset_of!(Event, pid) == PID_AT);
};

/// `struct fanotify_event_info_fid`: its type and length, the file system's id, a file's handle.
const INFO_LEN_AT: usize = 2;
const INFO_HANDLE_AT: usize = 12;
const _: () = {
    type Info = libc::fanotify_event_info_fid;
    assert!(
        offset_of!(Info, hdr) + offset_of!(libc::fanotify_event_info_header, len) == INFO_LEN_AT
    );
    assert!(offset_of!(Info, handle) == INFO_HANDLE_AT);
};

/// An event is not longer: then a read that left so much of a buffer has emptied the queue.
const EVENT_BYTES_MAX: usize = EVENT_BYTES + INFO_HANDLE_AT + HANDLE_HEAD_BYTES + HANDLE_BYTES_MAX;

/// Bytes of a buffer that [`Fanotify::drain`] reads into.
pub const BUFFER_BYTES: usize = 4096;
const _: () = assert!(BUFFER_BYTES > EVENT_BYTES_MAX);

/// Files whose modifications are told of.
#[derive(Debug)]
pub struct Fanotify {
    fd: OwnedFd,
}

/// A file was modified by a process, once or more often.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Modified<'a> {
    /// By which; 0 if it cannot be seen from here. It may have ended.
    pub pid: u32,
    /// Which file, as [`handle_of`] says; none if any file may have been modified by anybody.
    pub handle: Option<&'a [u8]>,
}

impl Fanotify {
    /// `fanotify_init(2)`: tells of no file yet.
    ///
    /// # Errors
    /// [`Errno::PERM`]: only who has CAP_SYS_ADMIN is told of other processes.
    pub fn new() -> Result<Fanotify> {
        if !mask::allows(Capability::Fanotify) {
            return Err(Errno::PERM);
        }
        // Nothing may be lost, and the queue is short: events that are alike become one.
        let flags = libc::FAN_CLASS_NOTIF
            | libc::FAN_CLOEXEC
            | libc::FAN_NONBLOCK
            | libc::FAN_REPORT_FID
            | libc::FAN_UNLIMITED_QUEUE
            | libc::FAN_UNLIMITED_MARKS;
        // SAFETY: two numbers, no memory.
        let fd = check(unsafe { libc::fanotify_init(flags, 0) })?;
        // SAFETY: a fresh descriptor that nobody else owns.
        Ok(Fanotify { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// `fanotify_mark(2)`: from now on it is told who modifies the file behind a descriptor (which may
    /// have been opened with O_PATH). Stores through mappings are not told of.
    ///
    /// # Errors
    /// [`Errno::NODEV`], [`Errno::OPNOTSUPP`], [`Errno::XDEV`]: not on this file system.
    pub fn add(&self, file: impl AsFd) -> Result<()> {
        self.mark(libc::FAN_MARK_ADD, file)
    }

    /// It is not told any more. What was queued may still come.
    ///
    /// # Errors
    /// [`Errno::NOENT`]: it was not told before.
    pub fn remove(&self, file: impl AsFd) -> Result<()> {
        self.mark(libc::FAN_MARK_REMOVE, file)
    }

    fn mark(&self, flags: libc::c_uint, file: impl AsFd) -> Result<()> {
        let marked = |directory, path: *const libc::c_char| {
            let fd = self.fd.as_raw_fd();
            // SAFETY: the path is none, or ends with a NUL and lives until the call returns.
            check(unsafe { libc::fanotify_mark(fd, flags, libc::FAN_MODIFY, directory, path) })
        };
        let file = file.as_fd().as_raw_fd();
        match marked(file, core::ptr::null()) {
            // One opened with O_PATH stands for no file by itself.
            Err(Errno::BADF) => {
                let path = format!("/proc/self/fd/{file}\0");
                marked(libc::AT_FDCWD, path.as_ptr().cast()).map(drop)
            }
            marked => marked.map(drop),
        }
    }

    /// Reads what is queued, and returns when nothing is. What a process modified is queued before
    /// its system call returns.
    ///
    /// # Errors
    /// As `read(2)`; none is known but for a descriptor in error.
    pub fn drain(
        &self,
        buffer: &mut [u8; BUFFER_BYTES],
        mut each: impl FnMut(Modified<'_>),
    ) -> Result<()> {
        loop {
            let bytes = match retry(|| rustix::io::read(&self.fd, &mut buffer[..])) {
                Ok(bytes) => bytes,
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            };
            let mut rest = &buffer[..bytes];
            while let Some(event) = next_event(&mut rest) {
                each(event);
            }
            if buffer.len() - bytes >= EVENT_BYTES_MAX {
                return Ok(());
            }
        }
    }
}

impl AsFd for Fanotify {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn short(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?).into())
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn next_event<'a>(rest: &mut &'a [u8]) -> Option<Modified<'a>> {
    let len = long(rest, EVENT_LEN_AT)? as usize;
    let (event, behind) = rest.split_at_checked(len.max(EVENT_BYTES))?;
    *rest = behind;
    let pid = long(event, PID_AT)?;
    let mask = u64::from_ne_bytes(event[MASK_AT..MASK_AT + 8].try_into().ok()?);
    let is_lost = mask & libc::FAN_Q_OVERFLOW != 0;
    let info = event.get(short(event, METADATA_LEN_AT)?..).filter(|_| !is_lost);
    Some(Modified { pid: if is_lost { 0 } else { pid }, handle: info.and_then(handle_in) })
}

/// The handle in the first record behind an event; a file's is the only one that is asked for.
fn handle_in(info: &[u8]) -> Option<&[u8]> {
    let len = short(info, INFO_LEN_AT)?;
    let is_file = info.first() == Some(&libc::FAN_EVENT_INFO_TYPE_FID);
    let handle = info.get(INFO_HANDLE_AT..len).filter(|_| is_file)?;
    // Without bytes, the kernel had no memory for it.
    let bytes = long(handle, 0).filter(|bytes| *bytes > 0)? as usize;
    handle.get(..HANDLE_HEAD_BYTES + bytes)
}

/// `name_to_handle_at(2)`: the `struct file_handle` of the file behind a descriptor, which is no other
/// file's of its file system.
///
/// # Errors
/// [`Errno::OPNOTSUPP`]: the file system has none.
pub fn handle_of(file: impl AsFd) -> Result<Box<[u8]>> {
    // Before Linux 6.5 only such as can be opened are given out.
    match handle_by(&file, raw::AT_HANDLE_FID) {
        Err(Errno::INVAL) => handle_by(&file, 0),
        handle => handle,
    }
}

fn handle_by(file: impl AsFd, flags: u32) -> Result<Box<[u8]>> {
    #[repr(C, align(4))]
    struct Handle([u8; HANDLE_HEAD_BYTES + HANDLE_BYTES_MAX]);
    let mut handle = Handle([0; HANDLE_HEAD_BYTES + HANDLE_BYTES_MAX]);
    handle.0[..4].copy_from_slice(&(HANDLE_BYTES_MAX as u32).to_ne_bytes());
    let mut mount = 0i32;
    let (fd, flags) = (file.as_fd().as_raw_fd(), flags | raw::AT_EMPTY_PATH);
    // SAFETY: the kernel fills what stands behind the head as far as that says, and one integer; the
    // path is empty.
    let made = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd,
            c"".as_ptr(),
            &raw mut handle,
            &raw mut mount,
            flags,
        )
    };
    check(made as libc::c_int)?;
    let bytes = long(&handle.0, 0).map_or(0, |bytes| bytes as usize);
    handle.0.get(..HANDLE_HEAD_BYTES + bytes).map(Box::from).ok_or(Errno::OVERFLOW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn drained(fanotify: &Fanotify) -> Vec<(u32, Option<Box<[u8]>>)> {
        let mut found = Vec::new();
        let keep = |event: Modified<'_>| found.push((event.pid, event.handle.map(Box::from)));
        fanotify.drain(&mut [0; BUFFER_BYTES], keep).unwrap();
        found
    }

    #[test]
    fn who_modified_which_file_is_told() {
        let fanotify = match Fanotify::new() {
            Ok(fanotify) => fanotify,
            Err(errno) => return eprintln!("SKIPPED: fanotify_init(2): {errno}"),
        };
        let directory = tempfile::tempdir().unwrap();
        let file = |name| std::fs::File::create(directory.path().join(name)).unwrap();
        let (mut first, mut second, mut third) = (file("1"), file("2"), file("3"));
        if let Err(errno) = fanotify.add(&first) {
            return eprintln!("SKIPPED: fanotify_mark(2): {errno}");
        }
        fanotify.add(&second).unwrap();
        let handles = [handle_of(&first).unwrap(), handle_of(&second).unwrap()];
        assert_ne!(handles[0], handles[1]);
        assert_eq!(drained(&fanotify), []);

        first.write_all(b"ab").unwrap();
        second.write_all(b"ab").unwrap();
        third.write_all(b"ab").unwrap();
        first.write_all(b"ab").unwrap();
        let own = |no: usize| (std::process::id(), Some(handles[no].clone()));
        assert_eq!(drained(&fanotify), [own(0), own(1)]);

        // By another process, and only its length.
        let mut truncate = std::process::Command::new("truncate");
        let mut cut = truncate.args(["-s", "1"]).arg(directory.path().join("2")).spawn().unwrap();
        assert!(cut.wait().unwrap().success());
        second.write_all(b"c").unwrap();
        assert_eq!(drained(&fanotify), [(cut.id(), Some(handles[1].clone())), own(1)]);

        fanotify.remove(&first).unwrap();
        first.write_all(b"ab").unwrap();
        assert_eq!(drained(&fanotify), []);
    }

    #[test]
    fn what_no_handle_tells_may_be_any_file() {
        let event = |mask: u64, pid: u32, info: &[u8]| {
            let len = (EVENT_BYTES + info.len()) as u32;
            let mut bytes = len.to_ne_bytes().to_vec();
            bytes.extend([3, 0]);
            bytes.extend((EVENT_BYTES as u16).to_ne_bytes());
            bytes.extend(mask.to_ne_bytes());
            bytes.extend((-1i32).to_ne_bytes());
            bytes.extend(pid.to_ne_bytes());
            bytes.extend(info);
            bytes
        };
        let events =
            [event(libc::FAN_Q_OVERFLOW, 0, &[]), event(libc::FAN_MODIFY, 7, &[])].concat();
        let mut rest = &events[..];
        assert_eq!(next_event(&mut rest), Some(Modified { pid: 0, handle: None }));
        assert_eq!(next_event(&mut rest), Some(Modified { pid: 7, handle: None }));
        assert_eq!(next_event(&mut rest), None);
        assert_eq!(next_event(&mut &events[..EVENT_BYTES - 1]), None);
    }
}
