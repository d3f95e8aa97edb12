//! See `pagekeeper_fuzz::policy_spec`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pagekeeper_fuzz::policy_spec::run(bytes));
