//! Errors: a negative number returned, and words kept for the thread. Nothing unwinds into C.

use pagekeeper::library::SEGMENT_BYTES_MAX;
use pagekeeper_sys::cancel::Uncancelled;
use pagekeeper_sys::limits::allows_file_bytes;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::fmt::Display;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

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

    /// An error of the library that has no number, but words enough of its own.
    pub(crate) fn in_words(error: &io::Error) -> Error {
        Error { complete: true, ..Error::from(error) }
    }

    /// A cache without regions cannot be made.
    pub(crate) fn of_explicit_cache(error: &io::Error) -> Error {
        let error = Error::at("the cache", error);
        match error.errno {
            libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EINVAL => {
                let message = format!("{}: {CALL_REFUSED}", error.message);
                Error { message, complete: true, ..error }
            }
            _ => error,
        }
    }

    /// An error of the library, where it happened.
    pub(crate) fn at(place: impl Display, error: &io::Error) -> Error {
        Error { message: format!("{place}: {error}"), complete: false, ..Error::from(error) }
    }
}

/// An error of the library's or a store's as a number.
pub(crate) fn number_of(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => libc::EINVAL,
        _ => libc::EIO,
    })
}

impl From<&io::Error> for Error {
    fn from(error: &io::Error) -> Error {
        Error { errno: number_of(error), message: error.to_string(), complete: false }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::from(&error)
    }
}

/// Where files are opened anew.
const OWN_FILES: &str = "/proc/self/fd";
/// Those that do that.
const REOPENING: [&str; 5] = [
    "pk_segment_open",
    "pk_segment_open_fd",
    "pk_segment_scratch",
    "pk_layer_file",
    "pk_layer_scratch",
];
const NO_PROC: &str =
    "files are opened anew by /proc/self/fd, and there is no /proc here: mount it";
const FOR_READING: &str = "the segment is for reading: open it with PK_OPEN_WRITE (one over a file's \
                           layer: pk_layer_file() with writable 1)";
const NO_FILE: &str = "the directory is not there, or not to be written to";
const KEPT: &str = "what could not be written stays in memory, and the next flush tries again; what was \
                    written and could not be made durable counts as written, as after fsync(2)";
/// What a segment takes of address space stands at pk_cache_create().
macro_rules! no_memory {
    () => {
        "no memory is left, or no address space (RLIMIT_AS), of which a segment takes 16 MiB once it is \
         touched, a longer one its length, up to 1 GiB for each GiB that is touched, or half as much again; \
         2 MiB with PK_TRANSLATION_TABLE"
    };
}
/// Of calls that make pages dirty.
const NO_MORE_DIRTY: &str = concat!(
    "where dirty pages wait for a commit (PK_WRITE_BACK_ON_COMMIT) they may be half of the budget's: \
     pk_segment_flush() commits them, pk_segment_discard() takes them back; or raise the budget. \
     Elsewhere ",
    no_memory!()
);
const PINS_TOO_MUCH: &str = concat!(
    "the range is more than half of the budget (pin less at once, or raise the budget), or, for \
     PK_PIN_EXCLUSIVE under PK_WRITE_BACK_ON_COMMIT, half of the budget's pages wait for a commit \
     (pk_segment_flush() it), or ",
    no_memory!()
);
/// What a cache without regions needs of the kernel.
const CALL_REFUSED: &str = "memfd_create(2), mmap(2), madvise(2) or the start of a thread is refused here, \
                            by a filter of system calls (seccomp), a container's too, or a security \
                            module: allow it; userfaultfd is not needed";
const REGULAR: &str = "only regular files can be segments";

/// What to do about an error of a function. Where the library has several reasons for one number, all
/// are named.
fn remedy(function: &str, errno: c_int) -> Option<&'static str> {
    let of_machine = if errno == libc::ENOENT { lacking(function, OWN_FILES) } else { None };
    of_machine.or_else(|| of_function(function, errno)).or_else(|| of_any(errno))
}

/// About a file that is not there because of the machine.
fn lacking(function: &str, own_files: &str) -> Option<&'static str> {
    (REOPENING.contains(&function) && !Path::new(own_files).exists()).then_some(NO_PROC)
}

/// Whether a limit of the process's stands in the way.
fn too_long(is_limited: bool) -> &'static str {
    if is_limited {
        "raise the limit on file sizes (ulimit -f, RLIMIT_FSIZE): the memory that a segment's pages are \
         kept in counts as a file as long as the segment; with PK_TRANSLATION_TABLE it does not"
    } else {
        "a segment has at most 128 TiB, and a file what its file system allows"
    }
}

/// About an error that means the same of all functions, but for those that [`of_function`] knows.
fn of_any(errno: c_int) -> Option<&'static str> {
    Some(match errno {
        libc::EOWNERDEAD => {
            "it belongs to the process that this one was forked from; make one after fork"
        }
        libc::ENOSPC | libc::EDQUOT => {
            "there is no room for it in the store; make some and try again"
        }
        libc::EDEADLK => {
            "a pk_store's functions are called while pages are on their way: they use no segment of the \
             cache that calls them (sync and advise: not their own), nor its budget; open what they need in \
             a cache of its own"
        }
        libc::EBADF => FOR_READING,
        libc::ENOMEM => no_memory!(),
        libc::EFBIG => too_long(!allows_file_bytes(SEGMENT_BYTES_MAX)),
        libc::EMFILE | libc::ENFILE => {
            "no file descriptor is left (a file takes three, two with PK_TRANSLATION_TABLE); close some, or \
             raise the limit (RLIMIT_NOFILE)"
        }
        _ => return None,
    })
}

fn of_function(function: &str, errno: c_int) -> Option<&'static str> {
    Some(match (function, errno) {
        ("pk_cache_create", libc::EBUSY) => {
            "the process has another SIGBUS handler of Pagekeeper's; use PK_FAULT_THREAD"
        }
        ("pk_cache_create", libc::EPERM | libc::EACCES) => {
            "this user may not use userfaultfd here; `pagekeeper doctor` prints the command that \
             allows it; PK_FAULT_EXPLICIT does without (and needs no more than what else a filter of \
             system calls may refuse: memfd_create, mmap, madvise and threads)"
        }
        ("pk_cache_create", libc::ENOSYS | libc::EINVAL) => {
            "what regions need is not here: this kernel's userfaultfd lacks it (`pagekeeper doctor` \
             says what), or it is PK_FAULT_INLINE on another processor than x86-64; \
             PK_FAULT_EXPLICIT does without"
        }
        ("pk_cache_create", libc::ENOMEM) => {
            "no memory or address space is left; a cache takes 1.6 GB of the latter (RLIMIT_AS), with \
             PK_TRANSLATION_TABLE 5.7, and each segment some more when it is touched"
        }
        ("pk_cache_create", libc::EAGAIN) => {
            "no thread can be started; PK_NO_WORKERS, PK_NEVER and PK_FAULT_EXPLICIT need none"
        }
        ("pk_cache_save_working_set", libc::ENOSPC | libc::EDQUOT) => {
            "there is no room for the file; make some and try again"
        }
        ("pk_cache_load_working_set", libc::EINVAL) => {
            "pk_cache_save_working_set() makes one anew, of pages of this cache's size"
        }
        ("pk_segment_open" | "pk_segment_open_fd", libc::EBUSY) => {
            "another cache or `pagekeeper run` has the file, or this cache has it for reading: several \
             may read a file, or one write; close the others, or open it for writing first \
             (PK_OPEN_TRUNCATE: it may also have a page that is pinned)"
        }
        ("pk_segment_open", libc::ENOENT) => {
            "PK_OPEN_CREATE makes the file, in a directory that is there"
        }
        ("pk_segment_open" | "pk_segment_open_fd" | "pk_layer_file", libc::EINVAL) => REGULAR,
        ("pk_segment_open_fd" | "pk_layer_file", libc::EBADF) => {
            "fd is not open, or not for reading, or not for writing too, as is asked for"
        }
        ("pk_segment_open_fd" | "pk_layer_file", libc::EACCES | libc::EPERM) => {
            "the file is opened anew, which this user may not: for writing, or at all"
        }
        ("pk_segment_scratch" | "pk_layer_scratch", libc::EINVAL) => {
            "a segment has at most 128 TiB"
        }
        ("pk_segment_scratch", libc::EOPNOTSUPP | libc::EISDIR) => {
            "the scratch directory's file system has no files without names (O_TMPFILE); set \
             scratch_directory to one that has"
        }
        ("pk_segment_scratch", libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::EROFS) => {
            "set scratch_directory to a directory that can be written"
        }
        ("pk_layer_scratch", libc::EOPNOTSUPP | libc::EISDIR) => {
            "the directory's file system has no files without names (O_TMPFILE); name one that has"
        }
        (
            "pk_layer_scratch" | "pk_cache_save_working_set",
            libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::EROFS,
        ) => NO_FILE,
        ("pk_segment_read_at", libc::EINVAL) => "an offset is less than 2^63",
        ("pk_segment_write_at", libc::EINVAL) => {
            "an offset is less than 2^63, and a store whose length is fixed ends where it does"
        }
        ("pk_segment_write_at" | "pk_segment_migrate" | "pk_segment_advise", libc::ENOMEM) => {
            NO_MORE_DIRTY
        }
        ("pk_segment_set_len", libc::EBUSY) => {
            "a page that would go, or be cut in two, is pinned; unpin it first"
        }
        ("pk_segment_set_len", libc::EINVAL) => "the store cannot change its length",
        ("pk_segment_map", libc::EOPNOTSUPP) => {
            "the cache has no fault path; create it with PK_FAULT_THREAD or PK_FAULT_INLINE (or, \
             before Linux 6.4, large pages cannot be copied on write; use pages of 4096 bytes)"
        }
        ("pk_segment_map", libc::EINVAL) => {
            "the offset is a multiple of pk_cache_page_bytes(), and the range has at least a byte and \
             lies within the segment's pages"
        }
        ("pk_segment_map", libc::EBADF) => {
            "the segment is for reading: open it with PK_OPEN_WRITE, or map it with PK_MAP_READ or \
             PK_MAP_COPY_ON_WRITE"
        }
        ("pk_segment_map", libc::ENOMEM) => {
            "no address space is left, or there are too many mappings (vm.max_map_count)"
        }
        ("pk_segment_pin", libc::EINVAL) => {
            "the range has at least a byte, ends within the segment and crosses no multiple of 1 GiB"
        }
        ("pk_segment_pin", libc::EBADF) => {
            "the segment is for reading: open it with PK_OPEN_WRITE, or pin with PK_PIN_SHARED"
        }
        ("pk_segment_pin", libc::ENOMEM) => PINS_TOO_MUCH,
        ("pk_segment_pin", libc::EUSERS) => "a page has at most 2048 pins; unpin some first",
        ("pk_segment_pin", libc::EOPNOTSUPP) => {
            "with PK_TRANSLATION_TABLE a pin is of one page; pin each alone"
        }
        ("pk_segment_migrate", libc::EBADF) => {
            "one of the segments is for reading; open both with PK_OPEN_WRITE"
        }
        ("pk_segment_migrate", libc::EINVAL) => {
            "both ranges lie within their segments and apart, of pages of one size"
        }
        ("pk_segment_advise", libc::EOPNOTSUPP) => {
            "the store can make nothing anew: it takes pk_layer_discardable(), above a log if there is \
             one, or a pk_store with a function `advise`"
        }
        ("pk_segment_flush" | "pk_segment_write_back" | "pk_cache_flush", errno) => match errno {
            // A handle for reading may flush: this is the store's.
            libc::EBADF => {
                "the store is for reading (a file's layer: pk_layer_file() with writable 0); what was \
                 written stays in memory until pk_segment_discard()"
            }
            libc::ENOSPC | libc::EDQUOT => {
                "there is no room for it in the store; it stays in memory, and the next flush tries \
                 again"
            }
            libc::EOWNERDEAD | libc::EDEADLK => return None,
            _ => KEPT,
        },
        ("pk_layer_compressed", libc::ENOMEM) => {
            "at most half of the cache's budget can be set aside, for all layers together; ask for \
             less or raise the budget"
        }
        ("pk_layer_mirrored", libc::EINVAL) => {
            "one of them missed something: pk_layer_mirrored_with_stale() takes it as it is, and \
             pk_layer_resync() makes it like the other; new ones are given one length first"
        }
        ("pk_layer_resync", libc::EINVAL) => {
            "the other side is stale itself, or a store that has another length cannot change it"
        }
        ("pk_layer_logged", libc::EINVAL) => {
            "the log is empty or was one of pk_layer_logged(), and can become longer"
        }
        ("pk_layer_logged", libc::EBADF) => {
            "the store and its log are written to: pk_layer_file() with writable 1"
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

/// Runs a call of this name. It is not cancelled meanwhile: it would unwind by what is no panic.
#[inline]
fn run<T>(function: &'static str, body: impl FnOnce() -> Result<T, Error>) -> Result<T, c_int> {
    let _later = Uncancelled::new();
    run_quick(function, body)
}

/// Runs a call that is made so often that what [`run`] does first would be felt: what of it may be a
/// cancellation point sees to that itself.
#[inline]
fn run_quick<T>(
    function: &'static str,
    body: impl FnOnce() -> Result<T, Error>,
) -> Result<T, c_int> {
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
    number(run(function, body))
}

/// [`count`] of a call that has no cancellation point, or sees to that itself.
#[inline]
pub(crate) fn count_quick(
    function: &'static str,
    body: impl FnOnce() -> Result<u64, Error>,
) -> i64 {
    number(run_quick(function, body))
}

#[inline]
fn number(result: Result<u64, c_int>) -> i64 {
    match result {
        Ok(count) => i64::try_from(count).unwrap_or(i64::MAX),
        Err(code) => code.into(),
    }
}

/// A call that returns a pointer or null, and has no cancellation point.
#[inline]
pub(crate) fn pointer<T>(
    function: &'static str,
    body: impl FnOnce() -> Result<*mut T, Error>,
) -> *mut T {
    run_quick(function, body).unwrap_or(std::ptr::null_mut())
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

    /// Words for one function's error stood at others', where they were wrong: what to open a segment
    /// with, at a descriptor that was not open, and at a flush, which needs no such thing.
    #[test]
    fn a_remedy_is_its_function_s_own() {
        let told = |function, errno| remedy(function, errno).unwrap_or("nothing");
        for (function, errno, words) in [
            ("pk_layer_file", libc::EBADF, "fd is not open"),
            ("pk_segment_discard", libc::EBADF, "PK_OPEN_WRITE"),
            ("pk_segment_pin", libc::EBADF, "PK_PIN_SHARED"),
            ("pk_segment_map", libc::EBADF, "PK_MAP_READ"),
            ("pk_segment_migrate", libc::EBADF, "one of the segments"),
            ("pk_segment_flush", libc::EBADF, "the store is for reading"),
            ("pk_cache_flush", libc::EIO, "tries again"),
            ("pk_cache_flush", libc::EDQUOT, "no room"),
            ("pk_cache_flush", libc::EOWNERDEAD, "after fork"),
            ("pk_cache_save_working_set", libc::ENOSPC, "room for the file"),
            ("pk_segment_map", libc::EINVAL, "pk_cache_page_bytes()"),
            ("pk_segment_open", libc::EMFILE, "RLIMIT_NOFILE"),
            ("pk_segment_open", libc::EBUSY, "this cache has it for reading"),
            ("pk_segment_set_len", libc::EBUSY, "cut in two"),
            ("pk_segment_write_at", libc::EFBIG, too_long(!allows_file_bytes(SEGMENT_BYTES_MAX))),
            ("pk_segment_write_at", libc::ENOMEM, "commit"),
            ("pk_segment_pin", libc::ENOMEM, "more than half of the budget"),
            ("pk_layer_compressed", libc::ENOMEM, "half of the cache's budget"),
            ("pk_cache_create", libc::ENOMEM, "address space"),
            ("pk_cache_create", libc::EPERM, "userfaultfd"),
            ("pk_segment_read_at", libc::ENOMEM, "RLIMIT_AS"),
            ("pk_segment_write_at", libc::ENOMEM, "RLIMIT_AS"),
            ("pk_segment_pin", libc::ENOMEM, "RLIMIT_AS"),
            ("pk_segment_migrate", libc::ENOMEM, "RLIMIT_AS"),
            ("pk_segment_len", libc::EIO, "nothing"),
        ] {
            let told = told(function, errno);
            assert!(told.contains(words), "{function}, {errno}: {told}");
        }
        // Without /proc it was the scratch directory that was to be another.
        assert!(told("pk_segment_scratch", libc::ENOENT).contains("scratch_directory"));
        assert_eq!(lacking("pk_segment_scratch", "/nowhere/self/fd"), Some(NO_PROC));
        assert_eq!(lacking("pk_cache_create", "/nowhere/self/fd"), None);
        assert!(too_long(true).contains("ulimit -f") && !too_long(true).contains("TiB"));
        assert!(too_long(false).contains("128 TiB"));
    }

    /// Whatever was refused counted as userfaultfd, which a cache without regions does not need.
    #[test]
    fn a_cache_without_regions_is_refused_for_reasons_of_its_own() {
        let refused = io::Error::from_raw_os_error(libc::EPERM);
        assert_eq!(
            status("pk_cache_create", || Err(Error::of_explicit_cache(&refused))),
            -libc::EPERM
        );
        assert!(last().contains("the cache: Operation not permitted"), "{}", last());
        assert!(last().contains("memfd_create(2)") && last().contains("seccomp"), "{}", last());
        assert!(!last().contains("doctor"), "{}", last());
        let short = io::Error::from_raw_os_error(libc::ENOMEM);
        assert_eq!(
            status("pk_cache_create", || Err(Error::of_explicit_cache(&short))),
            -libc::ENOMEM
        );
        assert!(last().contains("RLIMIT_AS"), "{}", last());
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
