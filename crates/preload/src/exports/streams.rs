//! stdio.

use super::transfers::check_room;
use crate::real;
use crate::streams::{stdio, unseen};
use core::ffi::CStr;
use libc::{FILE, c_char, c_int, c_void, size_t};

export! {
    as fopen, fopen64;
    fn (path: *const c_char, mode: *const c_char) -> *mut FILE { stdio::fopen(path, mode) }
}

export! {
    as fdopen, _IO_fdopen;
    fn (fd: c_int, mode: *const c_char) -> *mut FILE { stdio::fdopen(fd, mode) }
}

export! {
    as freopen, freopen64;
    fn (path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        stdio::freopen(path, mode, stream)
    }
}

export! {
    as tmpfile, tmpfile64;
    fn () -> *mut FILE { stdio::tmpfile() }
}

export! {
    as fclose, _IO_fclose;
    fn (stream: *mut FILE) -> c_int { stdio::fclose(stream) }
}

export! {
    as fflush, _IO_fflush;
    fn (stream: *mut FILE) -> c_int { unseen::flush(stream, real::fflush) }
}

export! {
    as fflush_unlocked;
    fn (stream: *mut FILE) -> c_int { unseen::flush(stream, real::fflush_unlocked) }
}

export! {
    as perror;
    fn (text: *const c_char) { stdio::perror(text) }
}

/// Whole items of a number of bytes.
fn items_of(bytes: usize, size: size_t, items: size_t) -> size_t {
    if bytes == size * items { items } else { bytes / size }
}

macro_rules! transfers {
    ($($read:ident, $checked_read:ident, $write:ident, $puts:ident;)*) => {$(
        export! {
            as $read;
            fn (to: *mut c_void, size: size_t, items: size_t, stream: *mut FILE) -> size_t {
                match stdio::read(to, size.saturating_mul(items), stream) {
                    Some(bytes) => items_of(bytes, size, items),
                    None => real::$read(to, size, items, stream),
                }
            }
        }

        export! {
            as $checked_read;
            fn (
                to: *mut c_void, room: size_t, size: size_t, items: size_t, stream: *mut FILE,
            ) -> size_t {
                check_room(size.saturating_mul(items), room);
                $read(to, size, items, stream)
            }
        }

        export! {
            as $write;
            fn (from: *const c_void, size: size_t, items: size_t, stream: *mut FILE) -> size_t {
                match stdio::write(from, size.saturating_mul(items), stream) {
                    Some(bytes) => items_of(bytes, size, items),
                    None => {
                        let bytes = || size.saturating_mul(items);
                        unseen::around(stream, bytes, || real::$write(from, size, items, stream))
                    }
                }
            }
        }

        export! {
            as $puts;
            fn (text: *const c_char, stream: *mut FILE) -> c_int {
                // SAFETY: the program's own string.
                let bytes = || unsafe { CStr::from_ptr(text) }.count_bytes();
                stdio::puts(text, stream)
                    .unwrap_or_else(|| unseen::around(stream, bytes, || real::$puts(text, stream)))
            }
        }
    )*};
}

transfers! {
    fread, __fread_chk, fwrite, fputs;
    fread_unlocked, __fread_unlocked_chk, fwrite_unlocked, fputs_unlocked;
}
