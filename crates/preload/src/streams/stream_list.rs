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

use crate::{raw, real};
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
/// Those that are out of the list.
static APART: AtomicPtr<Apart> = AtomicPtr::new(core::ptr::null_mut());

/// Streams that follow each other in the list, and are elsewhere.
#[derive(Clone, Copy)]
struct Gap {
    /// What leads to the first of them,
    link: *mut *mut u8,
    /// which is this.
    first: *mut u8,
    /// The first behind them that is not elsewhere, or null.
    next: *mut u8,
}

/// Where streams were that are out of the list, and in what order. (From glibc 2.41 on each knows what leads to
/// it, besides: none may be put elsewhere in the list.) In memory of its own, which children have at once.
struct Apart {
    bytes: usize,
    count: usize,
}

impl Apart {
    fn new(count: usize) -> Option<&'static mut Apart> {
        let bytes = size_of::<Apart>() + count * size_of::<Gap>();
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let at = raw::map(bytes, prot, flags, -1, 0);
        let apart = core::ptr::with_exposed_provenance_mut::<Apart>(usize::try_from(at).ok()?);
        // SAFETY: new memory, of zeros, long enough and aligned to a page, that is nobody else's.
        unsafe {
            apart.write(Apart { bytes, count });
            apart.as_mut()
        }
    }

    fn gaps(&mut self) -> &mut [Gap] {
        // SAFETY: so many stand behind the head, all of them valid: pointers may be null.
        unsafe {
            let gaps = core::ptr::from_mut(self).add(1).cast::<Gap>();
            core::slice::from_raw_parts_mut(gaps, self.count)
        }
    }

    fn free(&mut self) {
        raw::munmap(core::ptr::from_mut(self).expose_provenance(), self.bytes);
    }
}

/// Walks the list from what leads to its first stream on.
fn for_each_gap(
    all: *mut *mut u8,
    elsewhere: &impl Fn(usize, usize) -> bool,
    mut each: impl FnMut(Gap),
) {
    // SAFETY: libc's list of `FILE`s, which nobody else changes, or frees, while its lock is held, as it is
    // here; all of glibc's on 64-bit machines are laid out so. `each` may change `link`, which was read.
    unsafe {
        let chain = |file: *mut u8| file.add(CHAIN_AT).cast::<*mut u8>();
        let is_elsewhere = |file: *mut u8| {
            let lock = *file.add(LOCK_AT).cast::<*mut StreamLock>();
            elsewhere(file.addr(), FILE_BYTES) || elsewhere(lock.addr(), size_of::<StreamLock>())
        };
        let mut link = all;
        loop {
            let first = *link;
            let mut next = first;
            while !next.is_null() && is_elsewhere(next) {
                next = *chain(next);
            }
            if next != first {
                each(Gap { link, first, next });
            }
            if next.is_null() {
                return;
            }
            link = chain(next);
        }
    }
}

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
        let mut count = 0;
        for_each_gap(all, &elsewhere, |_| count += 1);
        if count == 0 {
            return;
        }
        // Where there is no memory for that, a child may end.
        let Some(apart) = Apart::new(count) else { return };
        let mut at = 0;
        for_each_gap(all, &elsewhere, |gap| {
            apart.gaps()[at] = gap;
            at += 1;
            // SAFETY: as in `for_each_gap`. Those that are out keep their own links, and nobody looks for them.
            unsafe { *gap.link = gap.next };
        });
        APART.store(apart, Ordering::Relaxed);
    }

    /// Puts them back where they were, in a child with locks that nobody holds.
    fn put_back(&self, in_child: bool) {
        let apart = APART.swap(core::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: null, or what `take_out` left there.
        let Some(apart) = (unsafe { apart.as_mut() }) else { return };
        for gap in apart.gaps() {
            // SAFETY: as in `take_out`: the list is as that left it; in a child, what its parent had in the
            // memory that was elsewhere is there again.
            unsafe {
                *gap.link = gap.first;
                let mut file = gap.first;
                while in_child && file != gap.next {
                    if *file.cast::<u32>() & USER_LOCK == 0 {
                        **file.add(LOCK_AT).cast::<*mut StreamLock>() = [0; 2];
                    }
                    file = *file.add(CHAIN_AT).cast::<*mut u8>();
                }
            }
        }
        apart.free();
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
