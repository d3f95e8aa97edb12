//! Libraries that a program loads while it runs. The dynamic linker opens and maps them by itself, and
//! no preloaded library sees that: what is dirty is written back before. Which libraries are loaded
//! along with one, and from where, the linker alone knows.

use crate::descriptors::table;
use crate::link::connection;
use crate::memory::mapping;
use crate::process::state;
use crate::writing::change;
use crate::{raw, real};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{c_char, c_int, c_void};

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

macro_rules! loads {
    ($($name:ident, $before:ident, $esi:literal, $w1:literal;)*) => {$(
        /// libc's looks at who called it (its search path and namespace), so it is jumped to. Without
        /// RTLD_DEEPBIND, by which what is loaded would find libc before this library, and write past it.
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
                concat!("and ", $esi, ", ", "{kept}"),
                "jmp rax",
                kept = const !libc::RTLD_DEEPBIND,
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
                concat!("and ", $w1, ", ", $w1, ", {kept}"),
                "br x16",
                kept = const !libc::RTLD_DEEPBIND as u32,
                before = sym $before,
            );
        }
    )*};
}

loads! {
    dlopen, before_dlopen, "esi", "w1";
    dlmopen, before_dlmopen, "edx", "w2";
}
