//! Asking how long a file is.

use crate::descriptors::lengths;
use crate::real;
use libc::{c_char, c_int, c_uint};

export! {
    as fstat, fstat64;
    fn (fd: c_int, stat: *mut libc::stat) -> c_int {
        told(fd, stat, real::fstat(fd, stat))
    }
}

// What programs call that were linked with glibc before 2.33. There is one layout.
macro_rules! export_fxstat {
    ($($name:ident),*) => {
        $(export! {
            as $name;
            fn (version: c_int, fd: c_int, stat: *mut libc::stat) -> c_int {
                told(fd, stat, real::$name(version, fd, stat))
            }
        })*
    };
}

export_fxstat! { __fxstat, __fxstat64 }

fn told(fd: c_int, stat: *mut libc::stat, result: c_int) -> c_int {
    if result == 0 {
        // SAFETY: the kernel has just filled it, for the caller to read.
        lengths::told(fd, unsafe { (*stat).st_size });
    }
    result
}

export! {
    as statx;
    fn (dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, stat: *mut libc::statx) -> c_int {
        let result = real::statx(dir, path, flags, mask, stat);
        if result == 0 && flags & libc::AT_EMPTY_PATH != 0 {
            // SAFETY: the kernel has just filled it, for the caller to read.
            lengths::told(dir, unsafe { (*stat).stx_size } as i64);
        }
        result
    }
}
