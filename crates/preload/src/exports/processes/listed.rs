//! `execl` and its kin, whose arguments are listed: libc makes an array of them, and so do we.
//!
//! The program is executed as by `execv`, `execvp` and `execve`, with our variables in whatever environment
//! it gets.

use super::{Strings, execv, execve, execvp};
use libc::{c_char, c_int};

/// What is listed ends with a null pointer, and behind that is the environment.
extern "C" fn execve_listed(path: *const c_char, argv: Strings) -> c_int {
    let mut end = argv;
    // SAFETY: the program's own list, which has a null pointer, and its environment behind that.
    let env = unsafe {
        while !(*end).is_null() {
            end = end.add(1);
        }
        *end.add(1)
    };
    execve(path, argv, env.cast())
}

macro_rules! listed {
    ($($name:ident, $execute:ident;)*) => {$(
        /// Puts the arguments that came in registers in front of those on the stack.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        extern "C" fn $name() -> c_int {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                // Where to return to; with it the stack is aligned.
                "push rax",
                "call {execute}",
                "pop rdx",
                "add rsp, 40",
                "push rdx",
                "ret",
                execute = sym $execute,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "str x1, [sp, #24]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "add x1, sp, #24",
                "bl {execute}",
                "ldp x29, x30, [sp], #80",
                "ret",
                execute = sym $execute,
            );
        }
    )*};
}

listed! {
    execl, execv;
    execlp, execvp;
    execle, execve_listed;
}
