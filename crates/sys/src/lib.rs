//! The Linux port: the only crate that speaks to the kernel in unsafe code.
#![deny(unsafe_code)]
