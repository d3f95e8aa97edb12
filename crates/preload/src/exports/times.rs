//! Setting a file's times.

use crate::real;
use crate::writing::change;
use libc::{c_char, c_int, timespec, timeval, utimbuf};

export! {
    as futimens;
    fn (fd: c_int, times: *const timespec) -> c_int {
        change::before_times(fd);
        real::futimens(fd, times)
    }
}

export! {
    as utimensat;
    fn (dir: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
        change::before_times_at(dir, path, flags);
        real::utimensat(dir, path, times, flags)
    }
}

export! {
    as utime;
    fn (path: *const c_char, times: *const utimbuf) -> c_int {
        change::before_times_at(libc::AT_FDCWD, path, 0);
        real::utime(path, times)
    }
}

export! {
    as utimes;
    fn (path: *const c_char, times: *const timeval) -> c_int {
        change::before_times_at(libc::AT_FDCWD, path, 0);
        real::utimes(path, times)
    }
}

export! {
    as lutimes;
    fn (path: *const c_char, times: *const timeval) -> c_int {
        change::before_times_at(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW);
        real::lutimes(path, times)
    }
}

export! {
    as futimes;
    fn (fd: c_int, times: *const timeval) -> c_int {
        change::before_times(fd);
        real::futimes(fd, times)
    }
}

export! {
    as futimesat;
    fn (dir: c_int, path: *const c_char, times: *const timeval) -> c_int {
        change::before_times_at(dir, path, 0);
        real::futimesat(dir, path, times)
    }
}
