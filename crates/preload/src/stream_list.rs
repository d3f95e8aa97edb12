//! libc's lock on its list of open streams.
//!
//! glibc's `fork` waits for it between the last of the handlers before a fork and the fork, where
//! stores to memory may be held; `fflush(NULL)`, `exit` and others hold it while streams write what
//! they have, to memory too (`open_memstream`, `fopencookie`). So who is going to hold stores takes
//! it first. It is recursive. Other libcs need none of that and have no such functions.

use crate::real;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function without arguments, or null: `_IO_list_lock` and its kin.
struct Function(AtomicPtr<c_void>);

static LOCK: Function = Function::none();
static UNLOCK: Function = Function::none();
static RESET: Function = Function::none();

impl Function {
    const fn none() -> Function {
        Function(AtomicPtr::new(core::ptr::null_mut()))
    }

    fn find(&self, name: &CStr) {
        self.0.store(real::look_up(name), Ordering::Relaxed);
    }

    fn is_there(&self) -> bool {
        !self.0.load(Ordering::Relaxed).is_null()
    }

    fn call(&self) {
        let function = self.0.load(Ordering::Relaxed);
        if !function.is_null() {
            // SAFETY: glibc's functions of these names are `void f(void)`.
            unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(function)() }
        }
    }
}

/// Looks the functions up: once, since a look-up waits for locks of the dynamic linker.
pub(crate) fn resolve() {
    LOCK.find(c"_IO_list_lock");
    UNLOCK.find(c"_IO_list_unlock");
    RESET.find(c"_IO_list_resetlock");
}

/// The lock is the calling thread's while this lives.
pub(crate) struct StreamList(());

impl StreamList {
    /// Waits for the lock; none if libc has none.
    pub(crate) fn lock() -> Option<StreamList> {
        if !(LOCK.is_there() && UNLOCK.is_there() && RESET.is_there()) {
            return None;
        }
        LOCK.call();
        Some(StreamList(()))
    }

    /// Goes on holding it, beyond this value's life.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }

    /// What [`StreamList::keep`] gave up, in the same thread or its copy in a forked child.
    pub(crate) fn resume() -> StreamList {
        StreamList(())
    }

    /// In a forked child, where nobody holds it: glibc has done so itself if the parent had other
    /// threads, and has not if it had none.
    pub(crate) fn reset(self) {
        core::mem::forget(self);
        RESET.call();
    }
}

impl Drop for StreamList {
    fn drop(&mut self) {
        UNLOCK.call();
    }
}
