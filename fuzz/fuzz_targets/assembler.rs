//! See `pagekeeper_fuzz::assembler`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pagekeeper_fuzz::assembler::run(bytes));
