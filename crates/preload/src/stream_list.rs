//! libc's lock on its list of open streams.
//!
//! glibc's `fork` waits for it between the last of the handlers before a fork and the fork, where
//! stores to memory may be held; `fflush(NULL)`, `exit` and others hold it while streams write what
//! they have, to memory too (`open_memstream`, `fopencookie`). So who is going to hold stores takes
//! it first. It is recursive. Other libcs need none of that and have no such functions.
//!
//! In a child of a program with threads, glibc makes the locks of all streams anew before the first handler
//! runs, and so before there is any memory that the kernel does not hand to children. Streams that lie in
//! such memory (from an allocator that has its memory by `mmap`) are taken out of the list meanwhile.

use crate::real;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// `struct _IO_FILE` of glibc on 64-bit machines, as far as it is looked at: its first field, flags...
const USER_LOCK: u32 = 0x8000;
/// ...where the next one is,
const CHAIN_AT: usize = 0x68;
/// and where its lock is.
const LOCK_AT: usize = 0x88;
/// All of it.
const FILE_BYTES: usize = 0xe0;
/// `_IO_lock_t`: free when it is all zero.
type StreamLock = [u64; 2];

/// `_IO_list_all`: the first of the list.
static ALL: AtomicPtr<*mut u8> = AtomicPtr::new(core::ptr::null_mut());
/// `__libc_single_threaded`, where libc has that.
static IS_SINGLE_THREADED: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// The first of those that are out of the list.
static APART: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

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
    ALL.store(real::look_up(c"_IO_list_all").cast(), Ordering::Relaxed);
    IS_SINGLE_THREADED.store(real::look_up(c"__libc_single_threaded").cast(), Ordering::Relaxed);
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

    /// Takes those streams out of the list of which some bytes (an address, and how many) are `elsewhere`. They
    /// are put back when the lock is given up.
    pub(crate) fn take_out(&self, elsewhere: impl Fn(usize, usize) -> bool) {
        let (all, single) =
            (ALL.load(Ordering::Relaxed), IS_SINGLE_THREADED.load(Ordering::Relaxed));
        // SAFETY: null, or a `char` of libc's that lives as long as the process.
        let is_single_threaded = unsafe { single.as_ref() }.is_some_and(|single| *single != 0);
        if all.is_null() || is_single_threaded {
            return;
        }
        let (mut link, mut apart) = (all, core::ptr::null_mut());
        loop {
            // SAFETY: libc's list of `FILE`s, which nobody else changes, or frees, while its lock is held; all
            // of glibc's on 64-bit machines are laid out so.
            unsafe {
                let file = *link;
                if file.is_null() {
                    break;
                }
                let chain = file.add(CHAIN_AT).cast::<*mut u8>();
                let lock = *file.add(LOCK_AT).cast::<*mut StreamLock>();
                if elsewhere(file.addr(), FILE_BYTES)
                    || elsewhere(lock.addr(), size_of::<StreamLock>())
                {
                    *link = *chain;
                    *chain = apart;
                    apart = file;
                } else {
                    link = chain;
                }
            }
        }
        APART.store(apart, Ordering::Relaxed);
    }

    /// Puts them back, in a child with locks that nobody holds.
    fn put_back(&self, in_child: bool) {
        let all = ALL.load(Ordering::Relaxed);
        let mut file = APART.swap(core::ptr::null_mut(), Ordering::Relaxed);
        while !file.is_null() {
            // SAFETY: as in `take_out`, which left them chained; in a child, what its parent had there is
            // there again.
            unsafe {
                let chain = file.add(CHAIN_AT).cast::<*mut u8>();
                let next = *chain;
                if in_child && *file.cast::<u32>() & USER_LOCK == 0 {
                    **file.add(LOCK_AT).cast::<*mut StreamLock>() = [0; 2];
                }
                *chain = *all;
                *all = file;
                file = next;
            }
        }
    }

    /// Goes on holding it, beyond this value's life.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }

    /// What [`StreamList::keep`] gave up, in the same thread or its copy in a forked child.
    pub(crate) fn resume() -> StreamList {
        StreamList(())
    }

    /// In a forked child that has all its memory, where nobody holds it: glibc has done so itself if the
    /// parent had other threads, and has not if it had none.
    pub(crate) fn reset(self) {
        self.put_back(true);
        core::mem::forget(self);
        RESET.call();
    }
}

impl Drop for StreamList {
    fn drop(&mut self) {
        self.put_back(false);
        UNLOCK.call();
    }
}
