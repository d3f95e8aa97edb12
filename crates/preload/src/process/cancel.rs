//! Cancellation points (`pthreads(7)`): what is served here makes no call of libc's that is one, or none that acts
//! as one ([`never`]).

use crate::real;
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::{c_int, c_void};

static TEST: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static SET_STATE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// `PTHREAD_CANCEL_DISABLE` of glibc's `pthread.h`.
const DISABLE: c_int = 1;

/// Looks libc's functions up; without threads there may be none.
pub(crate) fn resolve() {
    TEST.store(real::look_up(c"pthread_testcancel"), Ordering::Relaxed);
    SET_STATE.store(real::look_up(c"pthread_setcancelstate"), Ordering::Relaxed);
}

fn set_state(state: c_int) -> c_int {
    let set = SET_STATE.load(Ordering::Relaxed);
    let mut before = state;
    if !set.is_null() {
        // SAFETY: `pthread_setcancelstate`, which stores what the state was at that address. It is no
        // cancellation point, and a thread that may not be cancelled asynchronously goes on.
        unsafe {
            core::mem::transmute::<*mut c_void, extern "C" fn(c_int, *mut c_int) -> c_int>(set)(
                state,
                &raw mut before,
            )
        };
    }
    before
}

/// Makes a call of libc's that may be a cancellation point, while signals are held. libc would wait there for
/// the signal by which threads are cancelled, as soon as one was sent.
pub(crate) fn never<T>(call: impl FnOnce() -> T) -> T {
    let before = set_state(DISABLE);
    let result = call();
    set_state(before);
    result
}

/// Ends the thread if that was asked for. To be called by an exported function, before anything is begun
/// or held: what is above it on the stack is not come back to.
#[inline(always)]
pub(crate) fn point() {
    let test = TEST.load(Ordering::Relaxed);
    if !test.is_null() {
        // SAFETY: `pthread_testcancel`, which takes and gives nothing. Should it unwind the stack, our frames
        // on it, the exported function's and this one's, have nothing to clean up.
        unsafe { core::mem::transmute::<*mut c_void, extern "C" fn()>(test)() }
    }
}
