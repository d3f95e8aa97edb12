//! Reading, writing, and whatever else changes or flushes files.

use crate::descriptors::lengths;
use crate::process::cancel;
use crate::raw::ret;
use crate::reading::{direct, transfer};
use crate::writing::change;
use crate::{raw_call, real};
use libc::{c_char, c_int, c_uint, c_void, iovec, loff_t, off_t, size_t, ssize_t};
use transfer::{Vectors, one};

fn read_here(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t {
    cancel::point();
    let plain = || raw_call!(libc::SYS_read, fd, buffer, bytes);
    match transfer::read(fd, one(buffer as usize, bytes), None, 0, plain) {
        Some(result) => ret(result),
        None => real::read(fd, buffer, bytes),
    }
}

fn read_at(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t) -> ssize_t {
    cancel::point();
    let plain = || raw_call!(libc::SYS_pread64, fd, buffer, bytes, offset);
    match transfer::read(fd, one(buffer as usize, bytes), Some(offset), 0, plain) {
        Some(result) => ret(result),
        None => real::pread64(fd, buffer, bytes, offset),
    }
}

export! {
    as read, __read;
    fn (fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t {
        read_here(fd, buffer, bytes)
    }
}

export! {
    as pread, pread64, __pread64;
    fn (fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t) -> ssize_t {
        read_at(fd, buffer, bytes, offset)
    }
}

unsafe extern "C" {
    fn __chk_fail() -> !;
}

/// Ends the program if a buffer is smaller than what is read into it.
pub(super) fn check_room(bytes: size_t, room: size_t) {
    if bytes > room {
        // SAFETY: never returns.
        unsafe { __chk_fail() }
    }
}

export! {
    as __read_chk;
    fn (fd: c_int, buffer: *mut c_void, bytes: size_t, room: size_t) -> ssize_t {
        check_room(bytes, room);
        read_here(fd, buffer, bytes)
    }
}

export! {
    as __pread_chk, __pread64_chk;
    fn (fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t, room: size_t) -> ssize_t {
        check_room(bytes, room);
        read_at(fd, buffer, bytes, offset)
    }
}

export! {
    as readv;
    fn (fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
        cancel::point();
        let plain = || raw_call!(libc::SYS_readv, fd, iov, count);
        match transfer::read(fd, Vectors(iov, count), None, 0, plain) {
            Some(result) => ret(result),
            None => real::readv(fd, iov, count),
        }
    }
}

export! {
    as preadv, preadv64;
    fn (fd: c_int, iov: *const iovec, count: c_int, offset: off_t) -> ssize_t {
        cancel::point();
        let plain = || raw_call!(libc::SYS_preadv, fd, iov, count, offset, 0);
        match transfer::read(fd, Vectors(iov, count), Some(offset), 0, plain) {
            Some(result) => ret(result),
            None => real::preadv64(fd, iov, count, offset),
        }
    }
}

export! {
    as preadv2, preadv64v2;
    fn (fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        cancel::point();
        let plain = || raw_call!(libc::SYS_preadv2, fd, iov, count, offset, 0, flags);
        let position = (offset != -1).then_some(offset);
        match transfer::read_flagged(fd, Vectors(iov, count), position, flags, plain) {
            Some(result) => ret(result),
            None => real::preadv64v2(fd, iov, count, offset, flags),
        }
    }
}

pub(super) fn write_here(fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t {
    cancel::point();
    let plain = || raw_call!(libc::SYS_write, fd, buffer, bytes);
    match transfer::write(fd, one(buffer as usize, bytes), None, 0, plain) {
        Some(result) => ret(result),
        None => real::write(fd, buffer, bytes),
    }
}

export! {
    as write, __write;
    fn (fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t {
        write_here(fd, buffer, bytes)
    }
}

export! {
    as pwrite, pwrite64, __pwrite64;
    fn (fd: c_int, buffer: *const c_void, bytes: size_t, offset: off_t) -> ssize_t {
        cancel::point();
        let plain = || raw_call!(libc::SYS_pwrite64, fd, buffer, bytes, offset);
        match transfer::write(fd, one(buffer as usize, bytes), Some(offset), 0, plain) {
            Some(result) => ret(result),
            None => real::pwrite64(fd, buffer, bytes, offset),
        }
    }
}

export! {
    as writev;
    fn (fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
        cancel::point();
        let plain = || raw_call!(libc::SYS_writev, fd, iov, count);
        match transfer::write(fd, Vectors(iov, count), None, 0, plain) {
            Some(result) => ret(result),
            None => real::writev(fd, iov, count),
        }
    }
}

export! {
    as pwritev, pwritev64;
    fn (fd: c_int, iov: *const iovec, count: c_int, offset: off_t) -> ssize_t {
        cancel::point();
        let plain = || raw_call!(libc::SYS_pwritev, fd, iov, count, offset, 0);
        match transfer::write(fd, Vectors(iov, count), Some(offset), 0, plain) {
            Some(result) => ret(result),
            None => real::pwritev64(fd, iov, count, offset),
        }
    }
}

export! {
    as pwritev2, pwritev64v2;
    fn (fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        cancel::point();
        let plain = || raw_call!(libc::SYS_pwritev2, fd, iov, count, offset, 0, flags);
        let position = (offset != -1).then_some(offset);
        match transfer::write(fd, Vectors(iov, count), position, flags, plain) {
            Some(result) => ret(result),
            None => real::pwritev64v2(fd, iov, count, offset, flags),
        }
    }
}

export! {
    as ftruncate, ftruncate64;
    fn (fd: c_int, bytes: off_t) -> c_int {
        match change::truncate(fd, bytes, || raw_call!(libc::SYS_ftruncate, fd, bytes)) {
            Some(result) => ret(result) as c_int,
            None => real::ftruncate(fd, bytes),
        }
    }
}

export! {
    as truncate, truncate64;
    fn (path: *const c_char, bytes: off_t) -> c_int {
        match change::truncate_path(path, bytes) {
            Some(result) => ret(result) as c_int,
            None => real::truncate(path, bytes),
        }
    }
}

/// `fallocate(2)` of a managed file.
pub(crate) fn allocate(
    fd: c_int,
    mode: c_int,
    offset: off_t,
    bytes: off_t,
    plain: impl FnMut() -> isize,
) -> Option<isize> {
    match mode & !(libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_UNSHARE_RANGE) {
        0 if mode & libc::FALLOC_FL_KEEP_SIZE != 0 => change::reserve(fd, 0, plain),
        0 => change::reserve(fd, offset.saturating_add(bytes).max(0) as u64, plain),
        _ => change::change(fd, fallocate_range(mode, offset, bytes), plain),
    }
}

/// What `fallocate(2)` changes: some modes move all that is behind.
pub(crate) fn fallocate_range(mode: c_int, offset: off_t, bytes: off_t) -> change::Range {
    let moves = libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE;
    let bytes = if mode & moves != 0 || bytes < 0 { pagekeeper_wire::TO_END } else { bytes as u64 };
    (offset.max(0) as u64, bytes)
}

export! {
    as fallocate, fallocate64;
    fn (fd: c_int, mode: c_int, offset: off_t, bytes: off_t) -> c_int {
        cancel::point();
        let plain = || raw_call!(libc::SYS_fallocate, fd, mode, offset, bytes);
        match allocate(fd, mode, offset, bytes, plain) {
            Some(result) => ret(result) as c_int,
            None => real::fallocate(fd, mode, offset, bytes),
        }
    }
}

export! {
    as posix_fallocate, posix_fallocate64;
    fn (fd: c_int, offset: off_t, bytes: off_t) -> c_int {
        let by_kernel = || raw_call!(libc::SYS_fallocate, fd, 0, offset, bytes);
        // Where the file system cannot, libc writes the blocks itself, on the same descriptor.
        let by_libc = || -real::posix_fallocate(fd, offset, bytes) as isize;
        let result = match allocate(fd, 0, offset, bytes, by_kernel) {
            Some(result) if result == -libc::EOPNOTSUPP as isize => {
                change::change(fd, fallocate_range(0, offset, bytes), by_libc)
            }
            result => result,
        };
        result.map_or_else(|| real::posix_fallocate(fd, offset, bytes), |result| -result as c_int)
    }
}

export! {
    as copy_file_range;
    fn (
        from: c_int, from_at: *mut loff_t, to: c_int, to_at: *mut loff_t, bytes: size_t,
        flags: c_uint
    ) -> ssize_t {
        cancel::point();
        let plain = |[from_at, to_at]: change::Offsets| {
            raw_call!(libc::SYS_copy_file_range, from, from_at, to, to_at, bytes, flags)
        };
        match change::copy(from, to, [from_at, to_at], bytes, plain) {
            Some(result) => ret(result),
            None => real::copy_file_range(from, from_at, to, to_at, bytes, flags),
        }
    }
}

export! {
    as sendfile, sendfile64;
    fn (to: c_int, from: c_int, at: *mut off_t, bytes: size_t) -> ssize_t {
        let plain = |[at, _]: change::Offsets| raw_call!(libc::SYS_sendfile, to, from, at, bytes);
        match change::copy(from, to, [at, core::ptr::null_mut()], bytes, plain) {
            Some(result) => ret(result),
            None => real::sendfile(to, from, at, bytes),
        }
    }
}

export! {
    as splice;
    fn (
        from: c_int, from_at: *mut loff_t, to: c_int, to_at: *mut loff_t, bytes: size_t,
        flags: c_uint
    ) -> ssize_t {
        cancel::point();
        match change::splice(from, from_at, to, to_at, bytes, flags) {
            Some(result) => ret(result),
            None => real::splice(from, from_at, to, to_at, bytes, flags),
        }
    }
}

export! {
    as fsync;
    fn (fd: c_int) -> c_int {
        match change::sync_descriptor(fd) {
            0 => real::fsync(fd),
            error => ret(error) as c_int,
        }
    }
}

export! {
    as fdatasync;
    fn (fd: c_int) -> c_int {
        match change::sync_descriptor(fd) {
            0 => real::fdatasync(fd),
            error => ret(error) as c_int,
        }
    }
}

export! {
    as sync_file_range;
    fn (fd: c_int, offset: off_t, bytes: off_t, flags: c_uint) -> c_int {
        match change::flush_range(fd, offset, bytes) {
            0 => real::sync_file_range(fd, offset, bytes, flags),
            error => ret(error) as c_int,
        }
    }
}

export! {
    as posix_fadvise, posix_fadvise64;
    fn (fd: c_int, offset: off_t, bytes: off_t, advice: c_int) -> c_int {
        if advice == libc::POSIX_FADV_DONTNEED {
            // Only advice: what cannot be written back stays.
            let _ = change::flush_range(fd, offset, bytes);
        }
        real::posix_fadvise(fd, offset, bytes, advice)
    }
}

export! {
    as syncfs;
    fn (fd: c_int) -> c_int {
        match change::flush_all() {
            0 => real::syncfs(fd),
            error => ret(error) as c_int,
        }
    }
}

export! {
    as sync;
    fn () {
        change::flush_all();
        real::sync();
    }
}

export! {
    as lseek, lseek64;
    fn (fd: c_int, offset: off_t, whence: c_int) -> off_t {
        change::before_seek(fd, whence);
        let place = real::lseek(fd, offset, whence);
        direct::moved(fd, u64::try_from(place).ok());
        if whence == libc::SEEK_END && place >= 0 {
            lengths::told(fd, place.saturating_sub(offset));
        }
        place
    }
}
