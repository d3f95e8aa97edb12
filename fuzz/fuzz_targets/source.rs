//! See `pagekeeper_fuzz::source`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pagekeeper_fuzz::source::run(bytes));
