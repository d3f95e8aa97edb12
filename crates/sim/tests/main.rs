//! The simulator against other simulators, the papers and its own model.
//!
//! One program for all files: what they share is compiled and linked once.

mod ahead;
mod files;
mod heaps;
mod oracle;
mod paper_2q;
mod pool;
mod properties;
mod requests;
mod sampling;
mod selection;
mod shared;
mod sm_paper;
mod together;
mod ubm_paper;
mod write_backs;
