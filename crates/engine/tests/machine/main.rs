//! The engine over a machine in memory (`fake`), which delays, reorders and fails.
//!
//! One program for all files: what they share is compiled and linked once.

mod changes;
mod failures;
mod fake;
mod mappings;
mod overwrites;
mod power_cut;
mod presumed;
mod programs;
