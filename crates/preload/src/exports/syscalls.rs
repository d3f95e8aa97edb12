//! `syscall(2)`: the same calls, asked for by number.

use crate::numbers;
use crate::raw::ret;
use crate::real;
use libc::c_long;

export! {
    as syscall;
    fn (number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        match numbers::dispatch(number, [a, b, c, d, e, f]) {
            Some(result) => ret(result) as c_long,
            None => real::syscall(number, a, b, c, d, e, f),
        }
    }
}
