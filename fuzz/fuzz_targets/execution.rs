//! See `pagekeeper_fuzz::execution`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pagekeeper_fuzz::execution::run(bytes));
