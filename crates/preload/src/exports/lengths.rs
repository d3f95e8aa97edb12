//! Asking how long a file is.

use crate::{lengths, real};
use libc::{c_char, c_int, c_uint};

export! {
    as fstat, fstat64;
    fn (fd: c_int, stat: *mut libc::stat) -> c_int {
        look(fd, stat)
    }
}

// What programs call that were linked with glibc before 2.33. There is one layout.
export! {
    as __fxstat, __fxstat64;
    fn (_version: c_int, fd: c_int, stat: *mut libc::stat) -> c_int {
        look(fd, stat)
    }
}

fn look(fd: c_int, stat: *mut libc::stat) -> c_int {
    let result = real::fstat(fd, stat);
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
