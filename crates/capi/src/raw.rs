//! What comes over as pointers of C, as slices, text and values. All unsafe blocks of the crate are
//! here.
//!
//! Callers are functions of the header, whose contract is C's: a pointer that is not null points to
//! as much as the call says, for as long as the call lasts, and nobody changes it meanwhile unless
//! the call may. What can be checked (null, alignment, lengths, text) is an error; the rest is the
//! caller's promise, and what the SAFETY comments here rest on.

use crate::error::Error;
use crate::{pk_cache_options, pk_stats, pk_store};
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::mem::{ManuallyDrop, MaybeUninit, size_of};
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Text of C.
fn c_text<'a>(pointer: *const c_char) -> Option<&'a CStr> {
    // SAFETY: it points to text with an end that nobody changes during the call.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) })
}

/// A text argument; `None` if it is null.
pub(crate) fn text<'a>(what: &str, pointer: *const c_char) -> Result<Option<&'a str>, Error> {
    let text = c_text(pointer).map(CStr::to_str).transpose();
    text.map_err(|_| Error::argument(format!("{what} is not UTF-8")))
}

/// A path; `None` if it is null.
pub(crate) fn path<'a>(pointer: *const c_char) -> Option<&'a Path> {
    c_text(pointer).map(|text| Path::new(OsStr::from_bytes(text.to_bytes())))
}

fn check<T>(pointer: *const T, len: usize) -> Result<(), Error> {
    if pointer.is_null() {
        return Err(Error::argument("the buffer is null"));
    }
    if isize::try_from(len.saturating_mul(size_of::<T>())).is_err() {
        return Err(Error::argument("the buffer is longer than memory can be"));
    }
    if !pointer.is_aligned() {
        return Err(Error::argument("the buffer is not aligned"));
    }
    Ok(())
}

/// Bytes that a call reads.
#[inline]
pub(crate) fn bytes<'a>(pointer: *const c_void, len: usize) -> Result<&'a [u8], Error> {
    if len == 0 {
        return Ok(&[]);
    }
    check(pointer.cast::<u8>(), len)?;
    // SAFETY: not null, and so many bytes are there for the call to read.
    Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), len) })
}

/// Bytes that a call fills.
#[inline]
pub(crate) fn bytes_mut<'a>(pointer: *mut c_void, len: usize) -> Result<&'a mut [u8], Error> {
    slice_mut(pointer.cast(), len)
}

/// Values that a call fills.
pub(crate) fn slice_mut<'a, T: Number>(pointer: *mut T, len: usize) -> Result<&'a mut [T], Error> {
    if len == 0 {
        return Ok(&mut []);
    }
    check(pointer, len)?;
    // SAFETY: not null, aligned, and so many values are there for this call alone. C's may not be
    // initialised: any bytes are a number, and they are written before they are read.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
}

/// Any bytes are one.
pub(crate) trait Number: Copy {}
impl Number for u8 {}
impl Number for u32 {}

/// A descriptor of the caller's, which stays open.
pub(crate) fn file(descriptor: c_int) -> Result<ManuallyDrop<File>, Error> {
    if descriptor < 0 {
        return Err(Error::new(libc::EBADF, format!("{descriptor} is no file descriptor")));
    }
    // SAFETY: the caller's descriptor is open during the call, and not closed by this.
    Ok(ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) }))
}

/// A struct of the header that may grow: it begins with its size in bytes, as a `size_t`.
///
/// # Safety
/// `repr(C)`, begins with a `usize`, and all bytes zero are a value of it.
pub(crate) unsafe trait Versioned: Copy {
    /// What C calls it.
    const NAME: &str;
    /// Its size in the first version that had it.
    const FIRST_BYTES: usize;
}

// SAFETY: `repr(C)`, and numbers, pointers and optional functions may be zero.
unsafe impl Versioned for pk_cache_options {
    const NAME: &str = "pk_cache_options";
    const FIRST_BYTES: usize = 72;
}

// SAFETY: as above.
unsafe impl Versioned for pk_store {
    const NAME: &str = "pk_store";
    const FIRST_BYTES: usize = 104;
}

// SAFETY: as above.
unsafe impl Versioned for pk_stats {
    const NAME: &str = "pk_stats";
    const FIRST_BYTES: usize = 136;
}

/// The size that the caller's struct has.
fn struct_bytes<T: Versioned>(pointer: *const T) -> Result<usize, Error> {
    let name = T::NAME;
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Error::argument(format!("the {name} is null or not aligned")));
    }
    // SAFETY: such a struct is there, and begins with this.
    let bytes = unsafe { pointer.cast::<usize>().read() };
    if bytes < T::FIRST_BYTES || bytes > 1 << 16 {
        let message = format!("struct_bytes is {bytes}; set it to sizeof({name})");
        return Err(Error::argument(message));
    }
    Ok(bytes)
}

/// A struct of the caller's, who may know an older or a newer version of it. What an older one
/// lacks is zero; a newer one must not use what is not known here.
pub(crate) fn get<T: Versioned>(pointer: *const T) -> Result<T, Error> {
    let theirs = struct_bytes(pointer)?;
    let ours = size_of::<T>();
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: so many bytes are there, and in `value`.
    unsafe {
        let common = theirs.min(ours);
        pointer.cast::<u8>().copy_to_nonoverlapping(value.as_mut_ptr().cast(), common);
    }
    // SAFETY: so many bytes are there.
    let unknown = |at| unsafe { pointer.cast::<u8>().add(at).read() };
    if (ours..theirs).any(|at| unknown(at) != 0) {
        let message = format!(
            "{} has a member set that this version ({}) of the library does not know; leave it zero",
            T::NAME,
            env!("CARGO_PKG_VERSION")
        );
        return Err(Error::new(libc::E2BIG, message));
    }
    // SAFETY: zeros, overwritten by a beginning of the caller's value.
    Ok(unsafe { value.assume_init() })
}

/// Fills a struct of the caller's, who may know an older or a newer version of it, as far as both
/// know it; what is not known here becomes zero. `struct_bytes` stays.
pub(crate) fn put<T: Versioned>(pointer: *mut T, value: &T) -> Result<(), Error> {
    let theirs = struct_bytes(pointer)?;
    let (head, common) = (size_of::<usize>(), theirs.min(size_of::<T>()));
    // SAFETY: so many bytes are there for this call alone, and in `value`.
    unsafe {
        let (from, to) = ((&raw const *value).cast::<u8>(), pointer.cast::<u8>());
        from.add(head).copy_to_nonoverlapping(to.add(head), common - head);
        to.add(common).write_bytes(0, theirs - common);
    }
    Ok(())
}

/// A pointer that the library hands back to functions of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context(pub(crate) *mut c_void);

impl Context {
    pub(crate) fn pointer(self) -> *mut c_void {
        self.0
    }
}

// SAFETY: the header says that the functions are called by several threads at once; the library
// itself does nothing with the pointer.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}
