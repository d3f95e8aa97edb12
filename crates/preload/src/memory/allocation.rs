//! Large allocations of the malloc family are heap memory of ours; small ones, and all where heap
//! memory is not managed, are the real allocator's.
//!
//! An allocation of ours is a mapping of its own. In front of what the program gets stands a
//! [`Header`], in the same page, so that looking for one in front of a stranger's pointer touches no
//! page that the stranger's allocation does not. Allocations aligned to whole pages have their
//! header elsewhere, in [`ALIGNED`].

use crate::memory::call::{Mmap, Mremap};
use crate::memory::heap;
use crate::memory::turns;
use crate::raw;
use crate::real::look_up;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use libc::{c_int, c_void, size_t};

const PAGE: usize = 4096;
/// Alignment of an allocation, and room for its header.
const FRONT: usize = 64;

/// What stands before an allocation.
#[repr(C)]
struct Header {
    magic: u64,
    /// Its own address: a copy of it is none.
    own: usize,
    /// The mapping, from the page that the header is in.
    bytes: usize,
}

const MAGIC: u64 = 0x7061_6765_6b65_6570;

/// An allocation aligned to pages: its address, and its length.
struct Aligned {
    addr: AtomicUsize,
    bytes: AtomicUsize,
}

const ALIGNED_MAX: usize = 4096;
static ALIGNED: [Aligned; ALIGNED_MAX] =
    [const { Aligned { addr: AtomicUsize::new(0), bytes: AtomicUsize::new(0) } }; ALIGNED_MAX];
/// No entry from here on was ever used.
static ALIGNED_END: AtomicUsize = AtomicUsize::new(0);

/// Lowest and one above the highest address of an allocation of ours, ever.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

fn fresh(bytes: usize) -> Option<usize> {
    let call = Mmap {
        addr: 0,
        bytes,
        prot: libc::PROT_READ | libc::PROT_WRITE,
        flags: libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        fd: -1,
        offset: 0,
    };
    let errno = raw::errno();
    let addr = heap::mmap(call);
    raw::set_errno(errno);
    let addr = addr.filter(|&addr| addr > 0)? as usize;
    LOWEST.fetch_min(addr, Ordering::AcqRel);
    HIGHEST.fetch_max(addr + bytes, Ordering::AcqRel);
    Some(addr)
}

/// An allocation of ours; none if it is to be the real allocator's.
#[inline(always)]
pub(crate) fn allocate(alignment: usize, bytes: usize) -> Option<*mut c_void> {
    if heap::concerns(bytes) { allocate_large(alignment, bytes) } else { None }
}

fn allocate_large(alignment: usize, bytes: usize) -> Option<*mut c_void> {
    if alignment >= PAGE {
        return allocate_aligned(alignment, bytes);
    }
    let front = alignment.max(FRONT);
    let whole = bytes.checked_add(front)?.checked_next_multiple_of(PAGE)?;
    let base = fresh(whole)?;
    let at = base + front;
    // SAFETY: fresh memory, longer than the header before `at`.
    unsafe {
        ((at - FRONT) as *mut Header).write(Header { magic: MAGIC, own: at, bytes: whole });
    }
    Some(at as *mut c_void)
}

fn allocate_aligned(alignment: usize, bytes: usize) -> Option<*mut c_void> {
    let whole = bytes.checked_next_multiple_of(PAGE)?;
    let slack = alignment - PAGE;
    let entry = ALIGNED.iter().position(|entry| {
        entry.addr.load(Ordering::Relaxed) == 0
            && entry.addr.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    })?;
    ALIGNED_END.fetch_max(entry + 1, Ordering::AcqRel);
    let entry = &ALIGNED[entry];
    let Some(base) = whole.checked_add(slack).and_then(fresh) else {
        entry.addr.store(0, Ordering::Release);
        return None;
    };
    let at = base.next_multiple_of(alignment);
    if at > base {
        turns::unmap(base, at - base);
    }
    if slack > at - base {
        turns::unmap(at + whole, slack - (at - base));
    }
    entry.bytes.store(whole, Ordering::Relaxed);
    entry.addr.store(at, Ordering::Release);
    Some(at as *mut c_void)
}

/// Where an allocation of ours is.
#[derive(Clone, Copy)]
struct Found {
    base: usize,
    bytes: usize,
    entry: Option<&'static Aligned>,
}

#[inline(always)]
fn find(at: *mut c_void) -> Option<Found> {
    let at = at.addr();
    if at >= HIGHEST.load(Ordering::Relaxed) || at < LOWEST.load(Ordering::Relaxed) {
        return None;
    }
    let front = at % PAGE;
    // One in 256 of a stranger's pointers comes further than this.
    if front != 0 && (front < FRONT || !front.is_power_of_two()) {
        return None;
    }
    find_header(at, front)
}

fn find_header(at: usize, front: usize) -> Option<Found> {
    if front == 0 {
        let end = ALIGNED_END.load(Ordering::Acquire);
        let entry = ALIGNED[..end].iter().find(|entry| entry.addr.load(Ordering::Acquire) == at)?;
        let bytes = entry.bytes.load(Ordering::Relaxed);
        return Some(Found { base: at, bytes, entry: Some(entry) });
    }
    // SAFETY: `at` was given out by an allocator, so its page is mapped and readable, and the
    // header would be in the same page.
    let header = unsafe { ((at - FRONT) as *const Header).read() };
    (header.magic == MAGIC && header.own == at).then_some(Found {
        base: at - front,
        bytes: header.bytes,
        entry: None,
    })
}

/// Frees an allocation if it is ours.
#[inline(always)]
pub(crate) fn free(at: *mut c_void) -> bool {
    let Some(found) = find(at) else { return false };
    if let Some(entry) = found.entry {
        entry.addr.store(0, Ordering::Release);
    }
    turns::unmap(found.base, found.bytes);
    true
}

/// Bytes that the program may use of an allocation of ours.
pub(crate) fn usable_bytes(at: *mut c_void) -> Option<usize> {
    find(at).map(|found| found.base + found.bytes - at.addr())
}

/// `realloc(3)`; none if neither the old nor the new allocation is ours.
#[inline(always)]
pub(crate) fn reallocate(at: *mut c_void, bytes: usize) -> Option<*mut c_void> {
    match find(at) {
        Some(found) => Some(resize(at, found, bytes)),
        None if heap::concerns(bytes) => take_over(at, bytes),
        None => None,
    }
}

fn resize(at: *mut c_void, found: Found, bytes: usize) -> *mut c_void {
    let had = found.base + found.bytes - at.addr();
    if bytes == 0 {
        free(at);
        return core::ptr::null_mut();
    }
    let front = at.addr() - found.base;
    let whole = bytes.checked_add(front).and_then(|all| all.checked_next_multiple_of(PAGE));
    if heap::concerns(bytes)
        && found.entry.is_none()
        && let Some(whole) = whole
    {
        if whole == found.bytes {
            return at;
        }
        let call = Mremap {
            old: found.base,
            old_bytes: found.bytes,
            new_bytes: whole,
            flags: libc::MREMAP_MAYMOVE,
            new: 0,
        };
        if let Some(base) = heap::mremap(&call)
            && base > 0
        {
            let base = base as usize;
            let moved = base + front;
            LOWEST.fetch_min(base, Ordering::AcqRel);
            HIGHEST.fetch_max(base + whole, Ordering::AcqRel);
            // SAFETY: the mapping starts as it did, with the header before the program's part.
            unsafe {
                ((moved - FRONT) as *mut Header).write(Header {
                    magic: MAGIC,
                    own: moved,
                    bytes: whole,
                });
            }
            return moved as *mut c_void;
        }
    }
    let new = allocate(1, bytes).unwrap_or_else(|| malloc(bytes));
    if !new.is_null() {
        // SAFETY: both are allocations of at least so many bytes.
        unsafe { core::ptr::copy_nonoverlapping(at.cast::<u8>(), new.cast(), had.min(bytes)) };
        free(at);
    }
    new
}

/// A small allocation becomes a large one.
fn take_over(at: *mut c_void, bytes: usize) -> Option<*mut c_void> {
    let new = allocate(1, bytes)?;
    if !at.is_null() {
        let had = real_usable_bytes(at).min(bytes);
        // SAFETY: both are allocations of at least so many bytes.
        unsafe { core::ptr::copy_nonoverlapping(at.cast::<u8>(), new.cast(), had) };
        real_free(at);
    }
    Some(new)
}

// ---- the real allocator -------------------------------------------------------------------------

/// What is asked for while the real functions are looked up (a look-up may allocate).
const EARLY_BYTES: usize = 64 << 10;
#[repr(align(16))]
struct Early(core::cell::UnsafeCell<[u8; EARLY_BYTES]>);
// SAFETY: parts of it are given out once each, by an atomic counter.
unsafe impl Sync for Early {}
static EARLY: Early = Early(core::cell::UnsafeCell::new([0; EARLY_BYTES]));
static EARLY_USED: AtomicUsize = AtomicUsize::new(0);

/// Zeroed memory that is never given back. Its length stands before it.
fn early(alignment: usize, bytes: usize) -> *mut c_void {
    let alignment = alignment.max(16);
    let Some(need) = bytes.checked_add(alignment + 32) else { return core::ptr::null_mut() };
    let from = EARLY_USED.fetch_add(need.next_multiple_of(16), Ordering::Relaxed);
    if from.saturating_add(need) > EARLY_BYTES {
        return core::ptr::null_mut();
    }
    let at = (EARLY.0.get().addr() + from + 16).next_multiple_of(alignment);
    // SAFETY: within the part that was just taken.
    unsafe { ((at - 16) as *mut usize).write(bytes) };
    at as *mut c_void
}

fn is_early(at: *mut c_void) -> bool {
    (at.addr()).wrapping_sub(EARLY.0.get().addr()) < EARLY_BYTES
}

fn early_bytes(at: *mut c_void) -> usize {
    // SAFETY: every early allocation has its length before it.
    unsafe { ((at.addr() - 16) as *const usize).read() }
}

static LOOKING: AtomicBool = AtomicBool::new(false);

macro_rules! allocator {
    ($($symbol:literal $name:ident ( $($arg:ident : $ty:ty),* ) -> $ret:ty, early $early:expr;)*) => {
        #[allow(non_upper_case_globals)]
        mod place {
            use super::*;
            $(pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());)*
        }

        /// Looks the real allocator's functions up.
        pub(crate) fn resolve() {
            if LOOKING.swap(true, Ordering::AcqRel) {
                return;
            }
            $(
                let name = concat!($symbol, "\0").as_bytes();
                if let Ok(name) = CStr::from_bytes_with_nul(name) {
                    place::$name.store(look_up(name), Ordering::Release);
                }
            )*
            LOOKING.store(false, Ordering::Release);
        }

        $(
            /// The real function.
            #[inline(always)]
            pub(crate) fn $name($($arg: $ty),*) -> $ret {
                let mut place = place::$name.load(Ordering::Acquire);
                if place.is_null() {
                    resolve();
                    place = place::$name.load(Ordering::Acquire);
                    if place.is_null() {
                        return $early;
                    }
                }
                // SAFETY: the allocator's function of this name has this signature; the arguments
                // are the program's own.
                unsafe {
                    core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> $ret>(
                        place,
                    )($($arg),*)
                }
            }
        )*
    };
}

allocator! {
    "malloc" malloc(bytes: size_t) -> *mut c_void, early early(1, bytes);
    "calloc" calloc(count: size_t, bytes: size_t) -> *mut c_void,
        early count.checked_mul(bytes).map_or(core::ptr::null_mut(), |all| early(1, all));
    "realloc" realloc(at: *mut c_void, bytes: size_t) -> *mut c_void, early early(1, bytes);
    "free" free_(at: *mut c_void) -> (), early Default::default();
    "memalign" memalign(alignment: size_t, bytes: size_t) -> *mut c_void, early early(alignment, bytes);
    "aligned_alloc" aligned_alloc(alignment: size_t, bytes: size_t) -> *mut c_void, early early(alignment, bytes);
    "posix_memalign" posix_memalign(at: *mut *mut c_void, alignment: size_t, bytes: size_t) -> c_int,
        early libc::ENOMEM;
    "valloc" valloc(bytes: size_t) -> *mut c_void, early early(PAGE, bytes);
    "pvalloc" pvalloc(bytes: size_t) -> *mut c_void, early early(PAGE, bytes.next_multiple_of(PAGE));
    "malloc_usable_size" malloc_usable_size(at: *mut c_void) -> size_t, early 0;
}

/// `free(3)` of what is not ours.
#[inline(always)]
pub(crate) fn real_free(at: *mut c_void) {
    if !is_early(at) {
        free_(at);
    }
}

/// `realloc(3)` of what is not ours.
#[inline(always)]
pub(crate) fn real_realloc(at: *mut c_void, bytes: usize) -> *mut c_void {
    if !is_early(at) {
        return realloc(at, bytes);
    }
    let new = malloc(bytes);
    if !new.is_null() {
        let had = early_bytes(at).min(bytes);
        // SAFETY: both are allocations of at least so many bytes.
        unsafe { core::ptr::copy_nonoverlapping(at.cast::<u8>(), new.cast(), had) };
    }
    new
}

/// `malloc_usable_size(3)` of what is not ours.
pub(crate) fn real_usable_bytes(at: *mut c_void) -> usize {
    if is_early(at) { early_bytes(at) } else { malloc_usable_size(at) }
}
