//! See `pagekeeper_fuzz::trace`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pagekeeper_fuzz::trace::run(bytes));
