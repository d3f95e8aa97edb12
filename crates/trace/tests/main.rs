//! Traces: ours and others', whole, damaged and hostile.
//!
//! One program for all files: what they share is compiled and linked once.

mod common;
mod damage;
mod foreign;
mod formats;
mod libcachesim;
mod round_trip;
