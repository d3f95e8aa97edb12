//! stdio on managed files.
//!
//! glibc's streams call its own read and write, which no preloaded library sees. So a stream on a
//! file with a slot is one of `fopencookie(3)`, whose calls come here. Limits that follow: such a
//! stream has no wide-character orientation, and `freopen(3)` onto a managed file keeps glibc's own
//! calls (the file's dirty pages are written back before).

use crate::copies::bounce;
use crate::descriptors::files;
use crate::descriptors::first_use;
use crate::descriptors::table;
use crate::process::state;
use crate::raw;
use crate::reading::{direct, transfer};
use crate::streams::large::Fields;
use crate::streams::{large, unseen, wide};
use crate::writing::change;
use crate::{raw_call, real};
use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::{FILE, c_char, c_int, c_void, size_t, ssize_t};

/// `cookie_io_functions_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CookieCalls {
    read: extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int,
    close: extern "C" fn(*mut c_void) -> c_int,
}

const CALLS: CookieCalls =
    CookieCalls { read: cookie_read, write: cookie_write, seek: cookie_seek, close: cookie_close };

/// `_IO_UNBUFFERED`
const UNBUFFERED: c_int = 0x2;
/// `_IO_NO_READS`
const NO_READS: c_int = 0x4;
/// `_IO_NO_WRITES`
const NO_WRITES: c_int = 0x8;

/// Streams that stand for glibc's standard ones, which are never freed.
static ADOPTED: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 3];

/// The stream of each descriptor that has one of ours.
static STREAMS: AtomicPtr<AtomicPtr<FILE>> = AtomicPtr::new(core::ptr::null_mut());

fn stream_of(fd: c_int) -> Option<&'static AtomicPtr<FILE>> {
    let streams = STREAMS.load(Ordering::Acquire);
    if streams.is_null() || fd as u32 >= table::DESCRIPTORS_MAX {
        return None;
    }
    // SAFETY: mapped for DESCRIPTORS_MAX pointers, never unmapped; zero is valid.
    Some(unsafe { &*streams.add(fd as usize) })
}

/// The descriptor of a stream of ours.
pub(crate) fn descriptor(stream: *mut FILE) -> Option<c_int> {
    // SAFETY: the program's own stream; another thread may be using it.
    let fd = unsafe { (&raw const (*stream.cast::<Fields>()).fileno).read_volatile() };
    stream_of(fd).filter(|known| known.load(Ordering::Acquire) == stream).map(|_| fd)
}

fn remember(fd: c_int, stream: *mut FILE) -> bool {
    if STREAMS.load(Ordering::Acquire).is_null() {
        let bytes = table::DESCRIPTORS_MAX as usize * size_of::<AtomicPtr<FILE>>();
        let addr = raw::reserve(bytes);
        if addr == 0 {
            return false;
        }
        let null = core::ptr::null_mut();
        let streams = addr as *mut AtomicPtr<FILE>;
        let first = STREAMS.compare_exchange(null, streams, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err() {
            raw::munmap(addr, bytes);
        }
    }
    let Some(known) = stream_of(fd) else { return false };
    // SAFETY: a new stream, which nobody else has.
    unsafe { (*stream.cast::<Fields>()).fileno = fd };
    wide::allow(stream, fd);
    known.store(stream, Ordering::Release);
    true
}

extern "C" fn cookie_read(cookie: *mut c_void, buffer: *mut c_char, bytes: size_t) -> ssize_t {
    raw::ret(read_file(cookie as usize as c_int, buffer as usize, bytes))
}

/// Reads from where the file of a stream stands: the bytes read, or a negated errno.
pub(crate) fn read_file(fd: c_int, buffer: usize, bytes: usize) -> isize {
    let plain = || raw_call!(libc::SYS_read, fd, buffer, bytes);
    transfer::read(fd, transfer::one(buffer, bytes), None, 0, plain).unwrap_or_else(plain)
}

extern "C" fn cookie_write(cookie: *mut c_void, buffer: *const c_char, bytes: size_t) -> ssize_t {
    let fd = cookie as usize as c_int;
    // Fewer than asked for is an error to stdio; errno says which.
    let written = write_file(fd, buffer as usize, bytes);
    let stream = stream_of(fd).map_or(core::ptr::null_mut(), |known| known.load(Ordering::Acquire));
    if !stream.is_null() {
        // Of a file's stream glibc counts on by what was written; of others it does not, and would seek
        // from where that began.
        // SAFETY: a stream of glibc's, which writes it just now.
        unsafe { (*stream.cast::<Fields>()).offset = large::UNKNOWN };
    }
    written as ssize_t
}

/// Writes to where the file of a stream stands, all if that can be: the bytes written.
pub(crate) fn write_file(fd: c_int, buffer: usize, bytes: usize) -> usize {
    let mut done = 0;
    while done < bytes {
        let from = buffer + done;
        let plain = || raw_call!(libc::SYS_write, fd, from, bytes - done);
        let iov = transfer::one(from, bytes - done);
        let wrote = transfer::write(fd, iov, None, 0, plain).unwrap_or_else(plain);
        if raw::ret(wrote) < 0 {
            break;
        }
        done += wrote as usize;
    }
    done
}

extern "C" fn cookie_seek(cookie: *mut c_void, offset: *mut i64, whence: c_int) -> c_int {
    let fd = cookie as usize as c_int;
    // SAFETY: stdio hands its own variable.
    let place = unsafe { &mut *offset };
    let now = raw::lseek(fd, *place, whence);
    direct::moved(fd, u64::try_from(now).ok());
    if now < 0 {
        raw::set_errno(-now as c_int);
        return -1;
    }
    *place = now;
    0
}

extern "C" fn cookie_close(cookie: *mut c_void) -> c_int {
    let fd = cookie as usize as c_int;
    forget(fd);
    files::close(fd, || real::close(fd))
}

/// A descriptor's stream is ours no more.
fn forget(fd: c_int) {
    if let Some(known) = stream_of(fd) {
        known.store(core::ptr::null_mut(), Ordering::Release);
    }
}

/// What a mode string asks of `open(2)`; none if it is not one.
fn open_flags(mode: &[u8]) -> Option<c_int> {
    let (access, create) = match mode.first()? {
        b'r' => (libc::O_RDONLY, 0),
        b'w' => (libc::O_WRONLY, libc::O_CREAT | libc::O_TRUNC),
        b'a' => (libc::O_WRONLY, libc::O_CREAT | libc::O_APPEND),
        _ => return None,
    };
    let mut flags = access | create;
    // glibc looks at so many characters at most.
    for letter in mode.iter().skip(1).take(6).take_while(|&&c| c != b',') {
        match letter {
            b'+' => flags = (flags & !libc::O_ACCMODE) | libc::O_RDWR,
            b'x' => flags |= libc::O_EXCL,
            b'e' => flags |= libc::O_CLOEXEC,
            _ => {}
        }
    }
    Some(flags)
}

/// As glibc does on opening, so that ftell tells where the next byte goes. (`fdopen` only of a descriptor
/// that did not append before.)
fn seek_to_append(fd: c_int, flags: c_int) {
    if flags & libc::O_APPEND != 0 && flags & libc::O_ACCMODE != libc::O_RDWR {
        raw::lseek(fd, 0, libc::SEEK_END);
    }
}

/// A stream of ours on a descriptor with a slot.
fn open_cookie(fd: c_int, flags: c_int) -> *mut FILE {
    let appends = flags & libc::O_APPEND != 0;
    let mode = match (appends, flags & libc::O_ACCMODE) {
        (true, libc::O_RDWR) => c"a+",
        (true, _) => c"a",
        (false, libc::O_RDWR) => c"r+",
        (false, libc::O_WRONLY) => c"w",
        _ => c"r",
    };
    let stream = real::fopencookie(fd as usize as *mut c_void, mode.as_ptr(), CALLS);
    if !stream.is_null() && !remember(fd, stream) {
        // Without a table fileno would fail; everything else works.
        raw::set_errno(0);
    }
    stream
}

/// Whether reads and writes of a stream on this descriptor are to come here.
fn may_be_managed(fd: c_int) -> bool {
    files::managed(fd).is_some() || first_use::may_come(fd)
}

/// `fopen(3)`.
pub(crate) fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    if matches!(state::view(), state::View::Foreign) || path.is_null() || mode.is_null() {
        return real::fopen(path, mode);
    }
    // SAFETY: the program's own string.
    let letters = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let Some(flags) = open_flags(letters) else { return real::fopen(path, mode) };
    if letters.windows(5).any(|five| five == b",ccs=") {
        // Only glibc's fopen converts characters.
        let stream = real::fopen(path, mode);
        reopened(stream);
        return stream;
    }
    let fd = files::open(flags, |flags| real::openat(libc::AT_FDCWD, path, flags, 0o666));
    if fd < 0 {
        return core::ptr::null_mut();
    }
    seek_to_append(fd, flags);
    let stream = if may_be_managed(fd) { open_cookie(fd, flags) } else { real::fdopen(fd, mode) };
    if stream.is_null() {
        let errno = raw::errno();
        files::close(fd, || real::close(fd));
        raw::set_errno(errno);
    }
    stream
}

/// `tmpfile(3)`. The file is made here as glibc does, which opens it by a call of its own.
pub(crate) fn tmpfile() -> *mut FILE {
    if !state::active() {
        return real::tmpfile();
    }
    // glibc's `P_tmpdir`.
    let directory = c"/tmp".as_ptr();
    let flags = libc::O_TMPFILE | libc::O_EXCL | libc::O_RDWR;
    let fd = files::open(flags, |flags| real::openat(libc::AT_FDCWD, directory, flags, 0o600));
    if fd < 0 {
        // A file system without files that have no names.
        let stream = real::tmpfile();
        reopened(stream);
        return stream;
    }
    let stream = fdopen(fd, c"w+".as_ptr());
    if stream.is_null() {
        let errno = raw::errno();
        files::close(fd, || real::close(fd));
        raw::set_errno(errno);
    }
    stream
}

/// `fdopen(3)`.
pub(crate) fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if !may_be_managed(fd) || mode.is_null() {
        return real::fdopen(fd, mode);
    }
    // SAFETY: the program's own string.
    let letters = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let Some(flags) = open_flags(letters) else { return real::fdopen(fd, mode) };
    let had = raw::fcntl(fd, libc::F_GETFL, 0) as c_int;
    let (want, have) = (flags & libc::O_ACCMODE, had & libc::O_ACCMODE);
    if have != libc::O_RDWR && want != have {
        raw::set_errno(libc::EINVAL);
        return core::ptr::null_mut();
    }
    if flags & libc::O_APPEND != 0 && had & libc::O_APPEND == 0 {
        raw::fcntl(fd, libc::F_SETFL, (had | libc::O_APPEND) as usize);
        table::flagged(fd, had | libc::O_APPEND);
        seek_to_append(fd, flags);
    }
    open_cookie(fd, flags)
}

/// `freopen(3)`.
pub(crate) fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
    if matches!(state::view(), state::View::Foreign) {
        return real::freopen(path, mode, stream);
    }
    match descriptor(stream) {
        // glibc's own but for its name: which it becomes whole.
        Some(fd) if wide::is(stream) => forget(fd),
        Some(fd) => return reopen_cookie(fd, path, mode, stream),
        None => {}
    }
    let before = real::fileno(stream);
    if let (true, state::View::Ready(state)) = (before >= 0, state::view()) {
        files::forget(state, before);
    }
    let result = real::freopen(path, mode, stream);
    reopened(result);
    result
}

/// [`freopen`] of a stream of ours, which glibc's cannot: the descriptor keeps its number and gets
/// another file, of whatever kind, behind it.
fn reopen_cookie(
    fd: c_int,
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    // `_flags` of `struct _IO_FILE`, whose layout is part of glibc's ABI.
    const UNBUFFERED_STATE: c_int = 0x10 | 0x20 | 0x800; // end of file, error, writing
    const APPENDS: c_int = 0x1000;
    real::fflush(stream);
    // SAFETY: the program's own string.
    let letters = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let mut own = [0u8; 32];
    let path = if path.is_null() { raw::descriptor_path(b"fd", fd, &mut own) } else { path };
    let opened = match open_flags(letters) {
        Some(flags) => files::open(flags, |flags| real::openat(libc::AT_FDCWD, path, flags, 0o666)),
        None => {
            raw::set_errno(libc::EINVAL);
            -1
        }
    };
    let Some(flags) = open_flags(letters).filter(|_| opened >= 0) else {
        let errno = raw::errno();
        fclose(stream);
        raw::set_errno(errno);
        return core::ptr::null_mut();
    };
    // It has that number already if the program closed the stream's own.
    if opened != fd {
        files::replace(opened, fd, || real::dup3(opened, fd, flags & libc::O_CLOEXEC));
        files::close(opened, || real::close(opened));
    }
    seek_to_append(fd, flags);
    real::__fpurge(stream);
    large::forget_buffering(stream);
    let access = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => NO_WRITES,
        libc::O_WRONLY => NO_READS,
        _ => 0,
    } | if flags & libc::O_APPEND != 0 { APPENDS } else { 0 };
    let errno = raw::errno();
    // SAFETY: a stream of ours; the program reopens it, so no other thread uses it.
    unsafe {
        let word = stream.cast::<c_int>();
        *word = (*word & !(UNBUFFERED_STATE | NO_READS | NO_WRITES | APPENDS)) | access;
    }
    wide::allow(stream, fd);
    // Makes stdio forget the old file's position.
    let end = flags & libc::O_APPEND != 0 && access & NO_READS != 0;
    real::fseeko(stream, 0, if end { libc::SEEK_END } else { libc::SEEK_SET });
    raw::set_errno(errno);
    stream
}

/// glibc's own stream is on a file that may be managed.
fn reopened(stream: *mut FILE) {
    if stream.is_null() {
        return;
    }
    let errno = raw::errno();
    let fd = real::fileno(stream);
    if fd >= 0 {
        files::classify(fd, raw::fcntl(fd, libc::F_GETFL, 0) as c_int);
        change::flush_descriptor(fd);
    }
    raw::set_errno(errno);
}

/// `fclose(3)`.
pub(crate) fn fclose(stream: *mut FILE) -> c_int {
    if !state::active() || stream.is_null() {
        return real::fclose(stream);
    }
    match descriptor(stream) {
        Some(fd) if is_adopted(stream) => return close_adopted(fd, stream),
        Some(fd) if wide::is(stream) => forget(fd),
        // Its close comes back to us.
        Some(_) => return real::fclose(stream),
        None => {}
    }
    let errno = raw::errno();
    let fd = real::fileno(stream);
    raw::set_errno(errno);
    if fd < 0 {
        return real::fclose(stream);
    }
    unseen::flush_own(stream);
    files::close(fd, || real::fclose(stream))
}

/// Whether a stream of ours stands for one of glibc's own.
fn is_adopted(stream: *mut FILE) -> bool {
    ADOPTED.iter().any(|adopted| adopted.load(Ordering::Acquire) == stream)
}

/// Closes such a stream as glibc closes its own: the memory stays, and who goes on using it (the streams of
/// C++ do, until the end) finds that it is closed.
fn close_adopted(fd: c_int, stream: *mut FILE) -> c_int {
    let flushed = real::fflush(stream);
    let errno = raw::errno();
    large::locked(stream, || {
        real::__fpurge(stream);
        // SAFETY: a stream of ours, locked.
        let fields = unsafe { &mut *stream.cast::<Fields>() };
        fields.flags |= NO_READS | NO_WRITES;
        forget(fd);
        fields.fileno = -1;
    });
    let closed = files::close(fd, || real::close(fd));
    if flushed != 0 {
        raw::set_errno(errno);
        return flushed;
    }
    closed
}

/// `perror(3)`, which for a stream that nobody has used writes through one of its own.
pub(crate) fn perror(text: *const c_char) {
    let variable = real::of_program(c"stderr");
    if variable.is_null() {
        return real::perror(text);
    }
    // SAFETY: the variable is libc's, of this type; programs may change it, as they may any variable.
    let stream = unsafe { *variable.cast::<*mut FILE>() };
    if stream.is_null() || descriptor(stream).is_none() {
        return real::perror(text);
    }
    large::locked(stream, || {
        let mode = |from: c_int, to: c_int| {
            // SAFETY: a stream of ours, locked.
            let fields = unsafe { &mut *stream.cast::<Fields>() };
            let was = fields.mode == from;
            if was {
                fields.mode = to;
            }
            was
        };
        let unused = mode(0, -1);
        real::perror(text);
        if unused {
            mode(-1, 0);
        }
    });
}

/// Gives the standard streams of a program that was started with managed files for them streams
/// of ours. glibc's functions go through these variables.
pub(crate) fn adopt_standard_streams() {
    for (fd, name) in [(0, c"stdin"), (1, c"stdout"), (2, c"stderr")] {
        if !may_be_managed(fd) {
            continue;
        }
        let variable = real::of_program(name);
        let flags = raw::fcntl(fd, libc::F_GETFL, 0) as c_int;
        let stream = open_cookie(fd, flags);
        if variable.is_null() || stream.is_null() {
            continue;
        }
        if fd == 2 {
            // As glibc's own: `setvbuf(3)` would give it a buffer of one byte, which it then kept when
            // the program asked for lines.
            // SAFETY: a new stream; no other thread runs yet.
            unsafe { (*stream.cast::<Fields>()).flags |= UNBUFFERED };
        }
        // SAFETY: the variable is libc's, of this type; no other thread runs yet.
        unsafe { *variable.cast::<*mut FILE>() = stream };
        ADOPTED[fd as usize].store(stream, Ordering::Release);
    }
}

// ---- transfers ----------------------------------------------------------------------------------

/// glibc hands large buffers to the kernel as they are: what the kernel may be unable to touch goes
/// by way of one of ours, in small pieces. None if that need not be.
#[inline(always)]
fn bounced(
    addr: usize,
    bytes: usize,
    stream: *mut FILE,
    way: impl FnOnce(&[libc::iovec]) -> isize,
) -> Option<usize> {
    if !bounce::concerns(addr, bytes) {
        return None;
    }
    let iov = [libc::iovec { iov_base: addr as *mut c_void, iov_len: bytes }];
    Some(large::locked(stream, || way(&iov)).max(0) as usize)
}

/// `fwrite(3)`, as bytes; none if it is glibc's to do.
#[inline(always)]
pub(crate) fn write(from: *const c_void, bytes: usize, stream: *mut FILE) -> Option<usize> {
    let by_pieces = bounced(from as usize, bytes, stream, |iov| {
        bounce::give(-1, iov, bounce::SMALL_BYTES, |addr, bytes, _| {
            real::fwrite(addr as *const c_void, 1, bytes, stream) as isize
        })
    });
    by_pieces.or_else(|| large::write(from as usize, bytes, stream))
}

/// `fread(3)`, as bytes; none if it is glibc's to do.
#[inline(always)]
pub(crate) fn read(to: *mut c_void, bytes: usize, stream: *mut FILE) -> Option<usize> {
    let by_pieces = bounced(to as usize, bytes, stream, |iov| {
        bounce::take(iov, bounce::SMALL_BYTES, |addr, bytes, _| {
            real::fread(addr as *mut c_void, 1, bytes, stream) as isize
        })
    });
    by_pieces.or_else(|| large::read(to as usize, bytes, stream))
}

/// `fputs(3)`.
pub(crate) fn puts(text: *const c_char, stream: *mut FILE) -> Option<c_int> {
    if text.is_null() || !bounce::concerns(text as usize, 1) {
        return None;
    }
    // SAFETY: the program's own string.
    let bytes = unsafe { CStr::from_ptr(text) }.count_bytes();
    if bytes == 0 {
        return None;
    }
    let done = write(text.cast(), bytes, stream)?;
    Some(if done == bytes { 1 } else { -1 })
}
