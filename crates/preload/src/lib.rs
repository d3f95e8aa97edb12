//! Interposes libc for unmodified programs; no policy in it.
#![deny(unsafe_code)]
