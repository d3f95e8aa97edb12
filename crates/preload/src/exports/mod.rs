//! The functions that programs call instead of libc's.
//!
//! Each asks the module that knows whether the call concerns us, and otherwise makes the real
//! call. Variadic functions are given fixed integer arguments, which is how variadic integers
//! arrive on x86-64 and AArch64 Linux.

/// Defines one exported function under several names.
macro_rules! export {
    (as; fn $args:tt $(-> $ret:ty)? $body:block) => {};
    (
        as $first:ident $(, $rest:ident)*;
        fn ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    ) => {
        #[unsafe(no_mangle)]
        extern "C" fn $first($($arg: $ty),*) $(-> $ret)? $body

        export! { as $($rest),*; fn ($($arg: $ty),*) $(-> $ret)? $body }
    };
}

mod allocation;
mod asynchronous;
mod descriptors;
mod formatted;
mod lengths;
mod loading;
mod memory;
mod processes;
mod signals;
mod sockets;
mod streams;
mod syscalls;
mod times;
mod transfers;

pub(crate) use asynchronous::refused as no_asynchronous_transfers;
pub(crate) use descriptors::{all_received, arrived, control, received};
pub(crate) use memory::{lock_all_flags, lock_memory};
pub(crate) use transfers::{allocate, fallocate_range};
