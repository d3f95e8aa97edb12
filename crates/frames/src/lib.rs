//! Who gets frames: budget, reference sampling, fault clustering and read-ahead.
#![deny(unsafe_code)]
