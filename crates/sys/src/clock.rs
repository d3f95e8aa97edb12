//! The clocks that processes agree on, and files' times: `clock_gettime(2)`.
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

/// CLOCK_REALTIME_COARSE in nanoseconds since 1970: the tick of the clock that a change of a file leaves as
/// its time now, where times count in ticks. Asked of the kernel itself: what is mapped of its clock lags behind.
pub fn file_tick_ns() -> i128 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes a timespec to memory of that type, and to nothing else.
    unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_REALTIME_COARSE, &raw mut now) };
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clock_goes_on() {
        let before = super::monotonic_ns();
        assert!(before > 0 && super::monotonic_ns() >= before);
    }
}
