//! Cancellation points (`pthreads(7)`): what is served here makes no call of libc's that is one.

use crate::real;
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::c_void;

static TEST: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Looks libc's function up; without threads there may be none.
pub(crate) fn resolve() {
    TEST.store(real::look_up(c"pthread_testcancel"), Ordering::Relaxed);
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
