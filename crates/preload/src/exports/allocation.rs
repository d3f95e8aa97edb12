//! The malloc family.

use crate::link::standby;
use crate::memory::allocation;
use libc::{c_int, c_void, size_t};

export! {
    as malloc;
    fn (bytes: size_t) -> *mut c_void {
        standby::step();
        allocation::allocate(1, bytes).unwrap_or_else(|| allocation::malloc(bytes))
    }
}

export! {
    as calloc;
    fn (count: size_t, bytes: size_t) -> *mut c_void {
        standby::step();
        let ours = count.checked_mul(bytes).and_then(|all| allocation::allocate(1, all));
        ours.unwrap_or_else(|| allocation::calloc(count, bytes))
    }
}

export! {
    as realloc;
    fn (at: *mut c_void, bytes: size_t) -> *mut c_void {
        standby::step();
        allocation::reallocate(at, bytes).unwrap_or_else(|| allocation::real_realloc(at, bytes))
    }
}

export! {
    as reallocarray;
    fn (at: *mut c_void, count: size_t, bytes: size_t) -> *mut c_void {
        standby::step();
        let Some(all) = count.checked_mul(bytes) else {
            crate::raw::set_errno(libc::ENOMEM);
            return core::ptr::null_mut();
        };
        allocation::reallocate(at, all).unwrap_or_else(|| allocation::real_realloc(at, all))
    }
}

export! {
    as free, cfree;
    fn (at: *mut c_void) {
        standby::step();
        if !allocation::free(at) {
            allocation::real_free(at);
        }
    }
}

export! {
    as memalign;
    fn (alignment: size_t, bytes: size_t) -> *mut c_void {
        standby::step();
        // What is no power of two the real one rounds up.
        let ours = alignment.is_power_of_two().then(|| allocation::allocate(alignment, bytes));
        ours.flatten().unwrap_or_else(|| allocation::memalign(alignment, bytes))
    }
}

export! {
    as aligned_alloc;
    fn (alignment: size_t, bytes: size_t) -> *mut c_void {
        standby::step();
        let ours = alignment.is_power_of_two().then(|| allocation::allocate(alignment, bytes));
        ours.flatten().unwrap_or_else(|| allocation::aligned_alloc(alignment, bytes))
    }
}

export! {
    as posix_memalign;
    fn (at: *mut *mut c_void, alignment: size_t, bytes: size_t) -> c_int {
        standby::step();
        let usual = alignment.is_power_of_two() && alignment >= size_of::<usize>();
        match usual.then(|| allocation::allocate(alignment, bytes)).flatten() {
            Some(ours) => {
                // SAFETY: the program's own variable.
                unsafe { at.write(ours) };
                0
            }
            None => allocation::posix_memalign(at, alignment, bytes),
        }
    }
}

export! {
    as valloc;
    fn (bytes: size_t) -> *mut c_void {
        standby::step();
        allocation::allocate(4096, bytes).unwrap_or_else(|| allocation::valloc(bytes))
    }
}

export! {
    as pvalloc;
    fn (bytes: size_t) -> *mut c_void {
        standby::step();
        allocation::allocate(4096, bytes).unwrap_or_else(|| allocation::pvalloc(bytes))
    }
}

export! {
    as malloc_usable_size;
    fn (at: *mut c_void) -> size_t {
        standby::step();
        if at.is_null() {
            return 0;
        }
        allocation::usable_bytes(at).unwrap_or_else(|| allocation::real_usable_bytes(at))
    }
}
