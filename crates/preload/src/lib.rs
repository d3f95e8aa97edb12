//! Interposes libc for unmodified programs; no policy in it.
//!
//! Loaded with `LD_PRELOAD` by `pagekeeper run`. The manager process holds the cached pages, the
//! budget and the policy; this library makes mappings, hands descriptors over a socket, reads
//! managed files by copying from a mapping of its own ([`reading::direct`]), and sends the other system calls
//! on them through the manager, so that all see the same bytes. Descriptors that are not managed
//! cost one array look-up.
//!
//! What holds everywhere here: no allocation from the program's allocator, no thread-locals, no
//! lock that an interrupted signal handler could hold, `errno` touched only to report. All mutable
//! state lives in two places: plain statics and tables that a forked child inherits (what is true
//! of inherited memory and descriptors), and one page range that the kernel wipes in a forked
//! child ([`process::state::State`]: connections, locks), so that the child notices and starts afresh.
//!
//! What differs from libc and the kernel, on managed files only:
//! - reads and writes on a managed file are cancellation points as they begin ([`process::cancel`]), and those of
//!   streams are none; signals wait while one is served;
//! - `aio_read` and its kin make the transfer before they return ([`posix_aio`]);
//! - streams have no wide orientation; a stream of glibc's own that `freopen` puts on a managed
//!   file reads and writes it beside the manager (its dirty pages are written back first);
//! - `mlock` and `mlockall` lock pages when they are touched, not at once; where buffers of direct reads lie
//!   is not looked at ([`reading::alignment`]);
//! - mappings with PROT_EXEC that are private or of a descriptor to read only, of a file that nobody has a
//!   managed mapping of yet, and those with MAP_HUGETLB, MAP_SYNC or MAP_GROWSDOWN, are the kernel's, made
//!   after dirty pages are written back: later stores do not show in them;
//! - a descriptor that is closed or replaced by a system call made without libc goes on
//!   being read as the file that it was, until another call than a read notices; what is written to
//!   it until then is to other programs as if somebody outside had written it;
//! - SIGBUS and SIGSEGV have a handler of ours in front of the program's ([`reading::guard`]), which an
//!   executed program that expects to find them ignored finds at their default;
//! - where only faults of user code are served, system calls on mapped files are made on a copy
//!   ([`copies::bounce`]), private writable mappings are the kernel's, and `mprotect` to writable of others
//!   fails (EACCES);
//! - while the manager stands by ([`link::standby`]), reads, writes and mappings of files are the kernel's;
//! - `io_setup` and `io_uring_setup` fail with ENOSYS in every followed program, and so does what libaio and
//!   liburing begin with ([`exports`]).
//!
//! What it does not see: system calls made without libc (static and Go programs, liburing, libaio),
//! libc's internal calls (what `system` and `popen` start is followed through the environment),
//! and programs in another network namespace that have no `/proc` of the manager's.
//!
//! Built on its own: `cargo build -p pagekeeper-preload --profile preload`. With `panic = "abort"`
//! it is `no_std` and imports libc only; in other profiles std comes along for its panic handler,
//! and nothing else of it is used.
#![cfg_attr(panic = "abort", no_std)]

mod copies;
mod descriptors;
mod exports;
mod link;
mod memory;
mod numbers;
mod posix_aio;
mod process;
mod raw;
mod reading;
mod real;
mod streams;
mod writing;

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
