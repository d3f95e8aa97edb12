//! Errors: a negative number returned, and words kept for the thread. Nothing unwinds into C.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::fmt::Display;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Error {
    errno: c_int,
    message: String,
    /// The message says what to do.
    complete: bool,
}

impl Error {
    /// An argument makes no sense; the message says which, and what would.
    pub(crate) fn argument(message: impl Into<String>) -> Error {
        Error { errno: libc::EINVAL, message: message.into(), complete: true }
    }

    pub(crate) fn new(errno: c_int, message: impl Into<String>) -> Error {
        Error { errno, message: message.into(), complete: true }
    }

    /// What is asked for is another process's, which this one was forked from.
    pub(crate) fn forked() -> Error {
        Error::at("a forked child", &io::Error::from_raw_os_error(libc::EOWNERDEAD))
    }

    /// An error of the library, where it happened.
    pub(crate) fn at(place: impl Display, error: &io::Error) -> Error {
        Error { message: format!("{place}: {error}"), complete: false, ..Error::from(error) }
    }
}

impl From<&io::Error> for Error {
    fn from(error: &io::Error) -> Error {
        let errno = error.raw_os_error().unwrap_or(match error.kind() {
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => libc::EINVAL,
            _ => libc::EIO,
        });
        Error { errno, message: error.to_string(), complete: false }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::from(&error)
    }
}

/// What to do about an error of a function.
fn remedy(function: &str, errno: c_int) -> Option<&'static str> {
    Some(match (function, errno) {
        (_, libc::EOWNERDEAD) => {
            "the cache belongs to the process that this one was forked from; make one after fork"
        }
        (_, libc::ENOSPC) => "there is no room for it in the store; make some and try again",
        ("pk_cache_create", libc::EBUSY) => {
            "the process has another SIGBUS handler of Pagekeeper's; use PK_FAULT_THREAD"
        }
        ("pk_cache_create", libc::EPERM | libc::ENOSYS | libc::EACCES) => {
            "this user may not use userfaultfd here; `pagekeeper doctor` prints the command that \
             allows it; PK_FAULT_EXPLICIT needs nothing"
        }
        ("pk_segment_open" | "pk_segment_open_fd", libc::EBUSY) => {
            "another cache or `pagekeeper run` has the file; several may read a file, or one write"
        }
        ("pk_segment_open", libc::ENOENT) => "PK_OPEN_CREATE makes the file",
        ("pk_segment_open" | "pk_segment_open_fd", libc::EINVAL) => {
            "only regular files can be segments"
        }
        ("pk_segment_scratch", libc::EOPNOTSUPP | libc::EISDIR) => {
            "the scratch directory's file system has no files without names (O_TMPFILE); set \
             scratch_directory to one that has"
        }
        ("pk_segment_scratch", libc::ENOENT | libc::ENOTDIR | libc::EACCES) => {
            "set scratch_directory to a directory that can be written"
        }
        ("pk_segment_map", libc::EOPNOTSUPP) => {
            "the cache has no fault path; create it with PK_FAULT_THREAD or PK_FAULT_INLINE (or, \
             before Linux 6.4, large pages cannot be copied on write; use pages of 4096 bytes)"
        }
        ("pk_segment_map", libc::EINVAL) => {
            "the offset is a multiple of PK_PAGE_BYTES, and the range within the segment"
        }
        ("pk_segment_pin", libc::EINVAL) => {
            "the range has at least a byte, ends within the segment and crosses no multiple of 1 GiB"
        }
        ("pk_segment_pin", libc::ENOMEM) => {
            "that is more than half of the budget; pin less at once or raise the budget"
        }
        ("pk_segment_migrate", libc::EINVAL) => {
            "both ranges lie within their segments and apart, of pages of one size"
        }
        ("pk_segment_set_len", libc::EBUSY) => "a page that would go is pinned; unpin it first",
        ("pk_segment_advise", libc::EOPNOTSUPP) => {
            "the store can make nothing anew: it has no function `advise`"
        }
        ("pk_segment_set_len", libc::EINVAL) => "the store cannot change its length",
        (_, libc::EBADF) => "the segment was opened for reading; open it with PK_OPEN_WRITE",
        (_, libc::EFBIG) => "a segment has at most 128 TiB",
        ("pk_segment_flush" | "pk_segment_write_back" | "pk_cache_flush", _) => {
            "what could not be written stays in memory, and the next flush tries again"
        }
        _ => return None,
    })
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

#[cold]
fn failed(function: &'static str, error: Error) -> c_int {
    let mut text = format!("{function}: {}", error.message);
    if let Some(remedy) = remedy(function, error.errno).filter(|_| !error.complete) {
        text = format!("{text}: {remedy}");
    }
    text.retain(|c| c != '\0');
    // A thread that is ending keeps no message.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = CString::new(text).unwrap_or_default();
        }
    });
    -error.errno
}

#[cold]
fn panicked(payload: Box<dyn Any + Send>) -> Error {
    let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text.as_str(),
        _ => "no words",
    };
    let message = format!(
        "the library is at fault ({text}): please report it with what the program wrote to \
         standard error; flush what you can, and end the process"
    );
    // A payload may panic when it is dropped.
    std::mem::forget(payload);
    Error::new(libc::ENOTRECOVERABLE, message)
}

/// Runs a call of this name.
#[inline]
fn run<T>(function: &'static str, body: impl FnOnce() -> Result<T, Error>) -> Result<T, c_int> {
    // What a panic leaves half done is behind poisoned locks.
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|p| Err(panicked(p)));
    result.map_err(|error| failed(function, error))
}

/// A call that returns 0 or a negative error number.
#[inline]
pub(crate) fn status(function: &'static str, body: impl FnOnce() -> Result<(), Error>) -> c_int {
    match run(function, body) {
        Ok(()) => 0,
        Err(code) => code,
    }
}

/// A call that returns what it counted or a negative error number.
#[inline]
pub(crate) fn count(function: &'static str, body: impl FnOnce() -> Result<u64, Error>) -> i64 {
    match run(function, body) {
        Ok(count) => i64::try_from(count).unwrap_or(i64::MAX),
        Err(code) => code.into(),
    }
}

/// A call that returns a pointer or null.
#[inline]
pub(crate) fn pointer<T>(
    function: &'static str,
    body: impl FnOnce() -> Result<*mut T, Error>,
) -> *mut T {
    run(function, body).unwrap_or(std::ptr::null_mut())
}

/// What was wrong with the last call of this thread that failed: which function, what, and what to
/// do, in English. Empty if none has failed. Successful calls leave it as it is.
///
/// The text is the library's, and stays until the next call of this thread fails or the thread
/// ends.
///
/// Threads: any; each has its own.
#[unsafe(no_mangle)]
pub extern "C" fn pk_last_error() -> *const c_char {
    const NONE: &std::ffi::CStr = c"";
    LAST.try_with(|last| last.try_borrow().map_or(NONE.as_ptr(), |last| last.as_ptr()))
        .unwrap_or(NONE.as_ptr())
}

/// Version of the library that the program runs with, as "0.1.0". PK_VERSION is that of the header
/// that it was built with.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        raw_text(pk_last_error())
    }

    #[allow(unsafe_code)]
    fn raw_text(text: *const c_char) -> String {
        // SAFETY: text of the library, with its end.
        unsafe { CStr::from_ptr(text) }.to_str().expect("text").to_owned()
    }

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(last(), "");
        assert_eq!(status("pk_a", || panic!("odd\0 {}", 1)), -libc::ENOTRECOVERABLE);
        assert!(last().starts_with("pk_a: the library is at fault (odd 1): "), "{}", last());
        assert_eq!(count("pk_b", || std::panic::panic_any(7)), -i64::from(libc::ENOTRECOVERABLE));
        assert!(last().starts_with("pk_b: the library is at fault (no words)"), "{}", last());
        assert_eq!(count("pk_c", || Ok(u64::MAX)), i64::MAX);
        assert!(last().starts_with("pk_b"), "success leaves it as it is");
        assert_eq!(std::thread::spawn(last).join().unwrap(), "", "each thread has its own");
    }

    #[test]
    fn a_message_ends_with_the_remedy() {
        let full = || Err(Error::at("bytes 0..1", &io::Error::from_raw_os_error(libc::ENOSPC)));
        assert_eq!(status("pk_segment_write_at", full), -libc::ENOSPC);
        assert_eq!(
            last(),
            "pk_segment_write_at: bytes 0..1: No space left on device (os error 28): there is no \
             room for it in the store; make some and try again"
        );
    }
}
