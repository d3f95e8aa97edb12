//! Unmodified programs under `pagekeeper run`, end to end. One program for all of these tests: what
//! they share is compiled and linked once. C programs that they run are in `c`.

mod corners;
mod cplusplus;
mod descriptors;
mod dropped;
mod faults;
mod given;
mod heap;
mod heap_traces;
mod kill;
mod letgo;
mod mappings;
mod memory;
mod mixes;
mod mounts;
mod policies;
mod policy;
mod programs;
mod random;
mod reads;
mod recordings;
mod rights;
mod runs;
mod signals;
mod stamps;
mod standby;
mod storage;
mod tune;
mod user;
mod ways;
mod writes;
