//! stdio.

use crate::stdio;
use libc::{FILE, c_char, c_int};

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
    as fclose, _IO_fclose;
    fn (stream: *mut FILE) -> c_int { stdio::fclose(stream) }
}

export! {
    as fileno, fileno_unlocked;
    fn (stream: *mut FILE) -> c_int { stdio::fileno(stream) }
}
