//! `dprintf` and its kin: libc writes what it formats by a call of its own, which nobody would see.
//!
//! The text is formatted to memory here, and written as by `write`.

use super::transfers::write_here;
use libc::{c_char, c_int, c_void};

/// `va_list`: an array of one on x86-64, and passed by reference elsewhere.
type Arguments = *mut c_void;

unsafe extern "C" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: Arguments) -> c_int;
    fn __vasprintf_chk(
        text: *mut *mut c_char,
        flag: c_int,
        format: *const c_char,
        arguments: Arguments,
    ) -> c_int;
}

/// Writes what `format` makes; how many bytes that is, or -1.
fn put(fd: c_int, format: impl FnOnce(*mut *mut c_char) -> c_int) -> c_int {
    let mut text = core::ptr::null_mut();
    let bytes = format(&raw mut text);
    let mut rest = usize::try_from(bytes).unwrap_or(0);
    let mut at = text.cast_const();
    while rest > 0 {
        match usize::try_from(write_here(fd, at.cast(), rest)) {
            Ok(done) if done > 0 => (at, rest) = (at.wrapping_add(done), rest - done),
            _ => break,
        }
    }
    if bytes >= 0 {
        let errno = crate::raw::errno();
        // SAFETY: libc allocated it, and nobody else has it.
        unsafe { libc::free(text.cast()) };
        crate::raw::set_errno(errno);
    }
    if rest > 0 { -1 } else { bytes }
}

export! {
    as vdprintf;
    fn (fd: c_int, format: *const c_char, arguments: Arguments) -> c_int {
        // SAFETY: the program's own format and what it goes with.
        put(fd, |text| unsafe { vasprintf(text, format, arguments) })
    }
}

export! {
    as __vdprintf_chk;
    fn (fd: c_int, flag: c_int, format: *const c_char, arguments: Arguments) -> c_int {
        // SAFETY: as above.
        put(fd, |text| unsafe { __vasprintf_chk(text, flag, format, arguments) })
    }
}

/// Functions whose arguments behind so many named ones are given to another as a `va_list`, in that
/// register: those that came in registers are saved where it says, as the ABI of each machine has it.
macro_rules! variadic {
    ($($name:ident, $list:ident, $named:literal, $rdx:literal, $x2:literal;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        extern "C" fn $name() -> c_int {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                // 176 bytes of registers, 24 of the list; with the return address the stack is aligned.
                "sub rsp, 216",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 48], xmm0",
                "movaps [rsp + 64], xmm1",
                "movaps [rsp + 80], xmm2",
                "movaps [rsp + 96], xmm3",
                "movaps [rsp + 112], xmm4",
                "movaps [rsp + 128], xmm5",
                "movaps [rsp + 144], xmm6",
                "movaps [rsp + 160], xmm7",
                "2:",
                "mov dword ptr [rsp + 176], 8 * {named}",
                "mov dword ptr [rsp + 180], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 184], rax",
                "mov [rsp + 192], rsp",
                concat!("lea ", $rdx, ", [rsp + 176]"),
                "call {list}",
                "add rsp, 216",
                "ret",
                list = sym $list,
                named = const $named,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                // 32 bytes of the list, 64 of general registers, 128 of vectors.
                "stp x29, x30, [sp, #-256]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #48]",
                "stp x2, x3, [sp, #64]",
                "stp x4, x5, [sp, #80]",
                "stp x6, x7, [sp, #96]",
                "stp q0, q1, [sp, #112]",
                "stp q2, q3, [sp, #144]",
                "stp q4, q5, [sp, #176]",
                "stp q6, q7, [sp, #208]",
                "add x9, sp, #256",
                "str x9, [sp, #16]",
                "add x9, sp, #112",
                "str x9, [sp, #24]",
                "add x9, sp, #240",
                "str x9, [sp, #32]",
                "mov w9, #-8 * (8 - {named})",
                "str w9, [sp, #40]",
                "mov w9, #-128",
                "str w9, [sp, #44]",
                concat!("add ", $x2, ", sp, #16"),
                "bl {list}",
                "ldp x29, x30, [sp], #256",
                "ret",
                list = sym $list,
                named = const $named,
            );
        }
    )*};
}

variadic! {
    dprintf, vdprintf, 2, "rdx", "x2";
    __dprintf_chk, __vdprintf_chk, 3, "rcx", "x3";
}
