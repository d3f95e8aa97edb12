//! Large transfers of streams of ours.
//!
//! Of a file of its own glibc reads large blocks to where the program wants them. Of a stream of our
//! kind (`fopencookie(3)`) it reads them into the stream's buffer, 8 KiB at a time, and copies them
//! from there. So `fread(3)` of no less than a buffer is done here as glibc does it for its own
//! streams (`_IO_file_xsgetn`): first what the buffer holds, then the rest by reads to where it is
//! wanted. Whatever is not simple (a character that was put back, pending output, no buffer yet, the
//! end of the file, an error) is left to glibc's `fread`, for one byte or all that is left.
//!
//! Of what is written glibc fills the buffer first, writes that, and then the rest from where it is.
//! Here an `fwrite(3)` of no less than a buffer, while nothing is in the buffer, is one write.

use crate::reading::guard;
use crate::streams::stdio;
use crate::{raw, real};
use core::mem::offset_of;
use libc::{FILE, c_char, c_int, c_void};

/// `struct _IO_FILE`, whose layout is part of glibc's ABI: programs have `getc_unlocked` compiled
/// into them.
#[repr(C)]
pub(crate) struct Fields {
    pub(crate) flags: c_int,
    read_ptr: *mut c_char,
    read_end: *mut c_char,
    read_base: *mut c_char,
    write_base: *mut c_char,
    write_ptr: *mut c_char,
    write_end: *mut c_char,
    buf_base: *mut c_char,
    buf_end: *mut c_char,
    /// `_IO_save_base` to `_chain`.
    unused_before: [usize; 5],
    pub(crate) fileno: c_int,
    /// `_old_offset` to `_lock`; `_flags2` is in the gap before it.
    unused_middle: [usize; 3],
    pub(crate) offset: i64,
    unused_codecvt: usize,
    pub(crate) wide: *mut c_void,
    /// `_freeres_list` to `__pad5`.
    unused_behind: [usize; 3],
    /// Below zero: a stream of bytes; above: a wide one; zero: not used yet.
    pub(crate) mode: c_int,
}
const _: () = assert!(offset_of!(Fields, fileno) == 112);
const _: () = assert!(offset_of!(Fields, offset) == 144);
const _: () = assert!(offset_of!(Fields, wide) == 160);
const _: () = assert!(offset_of!(Fields, mode) == 192);

/// `_IO_NO_READS`, `_IO_IN_BACKUP`, `_IO_CURRENTLY_PUTTING`
const NOT_SIMPLE: c_int = 0x4 | 0x100 | 0x800;
/// `_IO_CURRENTLY_PUTTING`; `_IO_NO_WRITES`, `_IO_IN_BACKUP`, `_IO_LINE_BUF`
const PUTTING: c_int = 0x800;
const NOT_SIMPLY_PUTTING: c_int = 0x8 | 0x100 | 0x200;
/// `_IO_UNBUFFERED`, `_IO_LINE_BUF`
const AT_ONCE: c_int = 0x2 | 0x200;
/// `_IO_ERR_SEEN`
const FAILED: c_int = 0x20;
/// [`Fields::offset`]: not known, to be asked for (`_IO_pos_BAD`).
pub(crate) const UNKNOWN: i64 = -1;

unsafe extern "C" {
    fn flockfile(stream: *mut FILE);
    fn funlockfile(stream: *mut FILE);
}

/// Runs something with a stream locked; the lock may be taken more than once.
pub(crate) fn locked<T>(stream: *mut FILE, body: impl FnOnce() -> T) -> T {
    // SAFETY: the program's own stream.
    unsafe { flockfile(stream) };
    let result = body();
    // SAFETY: as above.
    unsafe { funlockfile(stream) };
    result
}

/// Has a stream that holds nothing begin as a new one does: fully buffered, in a buffer of libc's.
pub(crate) fn forget_buffering(stream: *mut FILE) {
    /// `_IO_USER_BUF`, which an unbuffered stream's single byte is, too.
    const NOT_LIBCS: c_int = 0x1;
    // SAFETY: a stream of ours that the program reopens, so no other thread uses it.
    let fields = unsafe { &mut *stream.cast::<Fields>() };
    if fields.flags & NOT_LIBCS != 0 {
        let none = core::ptr::null_mut();
        (fields.buf_base, fields.buf_end) = (none, none);
        (fields.read_base, fields.read_ptr, fields.read_end) = (none, none, none);
        (fields.write_base, fields.write_ptr, fields.write_end) = (none, none, none);
    }
    fields.flags &= !(NOT_LIBCS | AT_ONCE);
}

impl Fields {
    fn held_bytes(&self) -> usize {
        (self.read_end as usize).saturating_sub(self.read_ptr as usize)
    }

    /// Whether a stream of libc's own has something that a flush writes. What a wide one has is not looked at.
    pub(crate) fn has_pending(&self) -> bool {
        self.mode > 0 || self.flags & PUTTING != 0 && self.write_ptr > self.write_base
    }

    /// Whether so many bytes more may make it write. What ends a line, does.
    pub(crate) fn writes_with(&self, bytes: usize) -> bool {
        let from = if self.flags & PUTTING != 0 { self.write_ptr } else { self.buf_base };
        let room = (self.buf_end as usize).saturating_sub(from as usize);
        self.mode > 0 || self.flags & AT_ONCE != 0 || bytes >= room
    }

    /// How far before the descriptor's offset its next write begins, where it has read ahead.
    pub(crate) fn ahead_bytes(&self) -> i64 {
        let has_read = !self.read_end.is_null() && !self.write_base.is_null();
        let ahead = self.read_end as i64 - self.write_base as i64;
        if has_read { ahead.max(0) } else { 0 }
    }

    fn buffer_bytes(&self) -> usize {
        self.buf_end as usize - self.buf_base as usize
    }

    /// Whether a read would begin with the file, into the buffer.
    fn is_simple(&self) -> bool {
        self.flags & NOT_SIMPLE == 0
            && self.mode < 0
            && !self.buf_base.is_null()
            && self.read_ptr == self.read_end
    }

    /// Whether a write would begin with the file, from an empty buffer.
    fn is_simply_written(&self) -> bool {
        self.flags & (PUTTING | NOT_SIMPLY_PUTTING) == PUTTING
            && self.mode < 0
            && self.write_ptr == self.write_base
            && self.read_end == self.write_base
    }

    /// Nothing is in the buffer, and where the file stands is to be asked for.
    fn empty(&mut self) {
        let base = self.buf_base;
        (self.read_base, self.read_ptr, self.read_end) = (base, base, base);
        (self.write_base, self.write_ptr, self.write_end) = (base, base, base);
        self.offset = UNKNOWN;
    }
}

/// What a stream looks like without its lock.
#[derive(Clone, Copy)]
struct Glance {
    held_bytes: usize,
    buffer_bytes: usize,
}

/// Whether a transfer may be large enough to be made here: all that most calls cost.
#[inline(always)]
fn concerns(stream: *mut FILE, is_large: impl FnOnce(Glance) -> bool) -> bool {
    if stream.is_null() {
        return false;
    }
    let fields = stream.cast::<Fields>();
    // SAFETY: the program's own stream. Another thread may be using it, so its fields are read one by
    // one, as what may change at any time; nothing follows from them but whether it is worth a closer
    // look.
    unsafe {
        let bytes_between = |from: *const *mut c_char, to: *const *mut c_char| {
            (to.read_volatile() as usize).saturating_sub(from.read_volatile() as usize)
        };
        let at = Glance {
            held_bytes: bytes_between(&raw const (*fields).read_ptr, &raw const (*fields).read_end),
            buffer_bytes: bytes_between(
                &raw const (*fields).buf_base,
                &raw const (*fields).buf_end,
            ),
        };
        is_large(at) && stdio::descriptor(stream).is_some()
    }
}

/// `fwrite(3)`, as bytes; none if it is glibc's to do.
#[inline(always)]
pub(crate) fn write(from: usize, bytes: usize, stream: *mut FILE) -> Option<usize> {
    let is_large = |at: Glance| at.buffer_bytes <= bytes;
    if concerns(stream, is_large) { write_block(from, bytes, stream) } else { None }
}

/// `fread(3)`, as bytes; none if it is glibc's to do.
#[inline(always)]
pub(crate) fn read(to: usize, bytes: usize, stream: *mut FILE) -> Option<usize> {
    let is_large = |at: Glance| at.held_bytes < bytes && at.buffer_bytes <= bytes;
    if concerns(stream, is_large) { read_block(to, bytes, stream) } else { None }
}

#[inline(never)]
fn write_block(from: usize, bytes: usize, stream: *mut FILE) -> Option<usize> {
    let fd = stdio::descriptor(stream)?;
    locked(stream, || {
        // SAFETY: a stream of ours, locked.
        let fields = unsafe { &mut *stream.cast::<Fields>() };
        fields.is_simply_written().then(|| {
            fields.offset = UNKNOWN;
            let done = stdio::write_file(fd, from, bytes);
            if done < bytes {
                fields.flags |= FAILED;
            }
            done
        })
    })
}

#[inline(never)]
fn read_block(to: usize, bytes: usize, stream: *mut FILE) -> Option<usize> {
    let fd = stdio::descriptor(stream)?;
    Some(locked(stream, || {
        let mut done = 0;
        while done < bytes {
            let (at, left) = (to + done, bytes - done);
            // SAFETY: a stream of ours, locked, and of no concern to glibc before the call below.
            let fields = unsafe { &mut *stream.cast::<Fields>() };
            let want = match fields.held_bytes() {
                // glibc makes it so.
                0 if !fields.is_simple() => {
                    if !read_byte(at, stream) {
                        break;
                    }
                    done += 1;
                    continue;
                }
                0 if fields.buffer_bytes() > left => left,
                0 => {
                    fields.empty();
                    let got = stdio::read_file(fd, at, left);
                    if got > 0 {
                        done += got as usize;
                        continue;
                    }
                    // (glibc would read again, and into its buffer: an error that came of where the
                    // program wants it would be none.)
                    if raw::ret(got) < 0 {
                        fields.flags |= FAILED;
                        break;
                    }
                    // It comes across the same, and notes it.
                    left
                }
                held => held.min(left),
            };
            let got = real::fread(at as *mut c_void, 1, want, stream);
            done += got;
            if got < want {
                break;
            }
        }
        done
    }))
}

/// Has glibc read one byte, for which it may need a buffer, to where the program wants it. False if there is
/// none, or it cannot be there: then it is still to be read.
fn read_byte(to: usize, stream: *mut FILE) -> bool {
    let mut byte = 0u8;
    let from = &raw mut byte;
    if real::fread(from.cast(), 1, 1, stream) == 0 {
        return false;
    }
    if !guard::works() {
        // SAFETY: the program's own buffer.
        unsafe { (to as *mut u8).write(byte) };
        return true;
    }
    let is_there = guard::unblocked(|| guard::copy(to, from as usize, 1));
    if !is_there {
        // SAFETY: a stream of ours, locked.
        let fields = unsafe { &mut *stream.cast::<Fields>() };
        // glibc took it out of the stream's buffer.
        fields.read_ptr = fields.read_ptr.wrapping_sub(1);
        fields.flags |= FAILED;
        raw::set_errno(libc::EFAULT);
    }
    is_there
}
