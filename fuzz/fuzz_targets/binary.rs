//! See `pagekeeper_fuzz::binary`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pagekeeper_fuzz::binary::run(bytes));
