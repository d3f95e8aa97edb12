//! Libraries that a program loads while it runs. The dynamic linker opens and maps them by itself, and
//! no preloaded library sees that: what is dirty is written back before. Which libraries are loaded
//! along with one, and from where, the linker alone knows.
//!
//! And functions that a program looks up by a library's handle (Python's `ctypes`, Java's foreign functions): what is
//! found in libc itself has to be ours, as it is for who is linked with it.

use crate::descriptors::table;
use crate::link::connection;
use crate::memory::mapping;
use crate::process::state;
use crate::writing::change;
use crate::{raw, real};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{c_char, c_int, c_void};

const _: () = assert!(libc::RTLD_DEEPBIND == 8);

/// Before a library of this name is loaded; without a name, and if it is only looked for, none is.
fn before(name: *const c_char, flags: c_int) {
    tell_of(flags);
    let loads = !name.is_null() && flags & libc::RTLD_NOLOAD == 0;
    if loads && (mapping::any() || table::any_active()) {
        let errno = raw::errno();
        let _ = change::flush_all();
        raw::set_errno(errno);
    }
}

/// Said once of a program that loads something with RTLD_DEEPBIND.
fn tell_of(flags: c_int) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if flags & libc::RTLD_DEEPBIND != 0
        && !SAID.swap(true, Ordering::Relaxed)
        && let Some(state) = state::current()
    {
        let errno = raw::errno();
        connection::note(
            state,
            b"a library was loaded without RTLD_DEEPBIND, by which its calls would have gone unseen",
        );
        raw::set_errno(errno);
    }
}

extern "C" fn before_dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    before(name, flags);
    real::dlopen_address()
}

extern "C" fn before_dlmopen(_space: isize, name: *const c_char, flags: c_int) -> *mut c_void {
    before(name, flags);
    real::dlmopen_address()
}

/// Where a function is to be looked up.
extern "C" fn before_dlsym(handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    if handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT {
        real::dlsym_address()
    } else {
        dlsym_by_handle as *mut c_void
    }
}

/// `dlsym(3)` in a library: what is libc's there is ours, unless another library has it after us, which may be
/// the one that asks.
extern "C" fn dlsym_by_handle(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let found = real::dlsym(handle, name);
    // SAFETY: something was found by this name, so it is one, and ends with a NUL.
    let behind = || real::look_up(unsafe { CStr::from_ptr(name) });
    if !real::is_in_libc(found) || behind() != found {
        return found;
    }
    // Both looks find something, so that nothing of this is told by `dlerror(3)`: this library needs libc.
    let own = real::own(name);
    if own.is_null() { found } else { own }
}

macro_rules! jumps {
    ($($name:ident, $before:ident, $x86_64:literal, $aarch64:literal;)*) => {$(
        /// libc's looks at who called it (its search path and namespace), so it is jumped to.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        extern "C" fn $name() -> *mut c_void {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "call {before}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                $x86_64,
                "jmp rax",
                before = sym $before,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-48]!",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "bl {before}",
                "mov x16, x0",
                "ldr x2, [sp, #32]",
                "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #48",
                $aarch64,
                "br x16",
                before = sym $before,
            );
        }
    )*};
}

// Without RTLD_DEEPBIND, by which what is loaded would find libc before this library, and write past it.
jumps! {
    dlopen, before_dlopen, "and esi, ~8", "and w1, w1, #0xfffffff7";
    dlmopen, before_dlmopen, "and edx, ~8", "and w2, w2, #0xfffffff7";
    dlsym, before_dlsym, "", "";
}
