//! Libraries that a program loads while it runs. The dynamic linker opens and maps them by itself, and
//! no preloaded library sees that: what is dirty is written back before. Which libraries are loaded
//! along with one, and from where, the linker alone knows.

use crate::{change, mapping, raw, real, table};
use libc::{c_char, c_int, c_void};

/// Before a library of this name is loaded; without a name, and if it is only looked for, none is.
fn before(name: *const c_char, flags: c_int) {
    let loads = !name.is_null() && flags & libc::RTLD_NOLOAD == 0;
    if loads && (mapping::any() || table::any_active()) {
        let errno = raw::errno();
        let _ = change::flush_all();
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
    ($($name:ident, $before:ident;)*) => {$(
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
                "br x16",
                before = sym $before,
            );
        }
    )*};
}

loads! {
    dlopen, before_dlopen;
    dlmopen, before_dlmopen;
}
