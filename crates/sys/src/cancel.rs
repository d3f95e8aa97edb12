//! Cancellation of threads: `pthread_setcancelstate(3)`.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::marker::PhantomData;

/// PTHREAD_CANCEL_DISABLE of `<pthread.h>`, of glibc and musl.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// As long as this lives, nobody's `pthread_cancel(3)` ends the thread that made it: it waits. Cancelled,
/// a thread unwinds by what is no panic, which Rust's code cannot let through: it aborts.
#[derive(Debug)]
pub struct Uncancelled {
    before: c_int,
    /// It is the thread's.
    _own: PhantomData<*const ()>,
}

impl Uncancelled {
    /// From now on.
    #[allow(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> Uncancelled {
        let mut before = 0;
        // SAFETY: the number is written to before this returns; being cancelled later breaks nothing.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Uncancelled { before, _own: PhantomData }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: puts back what was there. Whoever allows to be cancelled at any instruction (which none
        // of this library's functions may be called in) would be here.
        unsafe { pthread_setcancelstate(self.before, core::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_before_is_again() {
        let state = || {
            let mut state = -1;
            // SAFETY: as above; it is put back.
            unsafe {
                pthread_setcancelstate(DISABLE, &raw mut state);
                pthread_setcancelstate(state, core::ptr::null_mut());
            }
            state
        };
        let before = state();
        {
            let _outer = Uncancelled::new();
            drop(Uncancelled::new());
            assert_eq!(state(), DISABLE);
        }
        assert_eq!(state(), before);
    }
}
