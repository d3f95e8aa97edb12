//! The clock that processes agree on: `clock_gettime(2)` CLOCK_MONOTONIC.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;

/// Nanoseconds of CLOCK_MONOTONIC, which other processes' are compared with. (By libc: what rustix
/// does in its place is killed under valgrind.)
pub fn monotonic_ns() -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the kernel writes a timespec to memory of that size. It cannot fail: the clock exists
    // and the memory is ours.
    let now = unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, now.as_mut_ptr());
        now.assume_init()
    };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clock_goes_on() {
        let before = super::monotonic_ns();
        assert!(before > 0 && super::monotonic_ns() >= before);
    }
}
