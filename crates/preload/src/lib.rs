//! Interposes libc for unmodified programs; no policy in it.
//!
//! Loaded with `LD_PRELOAD` by `pagekeeper run`. The manager process holds the cached pages, the
//! budget and the policy; this library only makes mappings, hands descriptors over a socket, and
//! sends the system calls on managed files through the manager, so that they see the same bytes as
//! the mappings. Descriptors that are not managed cost one array look-up.
//!
//! What holds everywhere here: no allocation from the program's allocator, no thread-locals, no
//! lock that an interrupted signal handler could hold, `errno` touched only to report. All mutable
//! state lives in two places: plain statics and tables that a forked child inherits (what is true
//! of inherited memory and descriptors), and one page range that the kernel wipes in a forked
//! child ([`state::State`]: connections, locks), so that the child notices and starts afresh.
//!
//! Built on its own: `cargo build -p pagekeeper-preload --profile preload`. With `panic = "abort"`
//! it is `no_std` and imports libc only; in other profiles std comes along for its panic handler,
//! and nothing else of it is used.
#![cfg_attr(panic = "abort", no_std)]

mod change;
mod connection;
mod environment;
mod exports;
mod files;
mod mapping;
mod numbers;
mod raw;
mod real;
mod start;
mod state;
mod stdio;
mod table;
mod transfer;
mod userfault;

/// Ends the program with a message: nothing may unwind into it, and nothing may hang.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    raw::complain(b"the preload library hit a bug and ends the program");
    if let Some(place) = info.location() {
        raw::complain(place.file().as_bytes());
        let mut digits = [0u8; 12];
        raw::complain(raw::decimal(place.line() as u64, &mut digits));
    }
    raw::exit_group(70)
}

// The compiled `core` refers to a personality although nothing unwinds. Hidden: a program in Rust
// that shares its standard library must find its own.
#[cfg(panic = "abort")]
core::arch::global_asm!(
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality:",
    "ret",
);
