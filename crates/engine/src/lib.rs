//! The live engine.
//!
//! [`Engine`](engine::Engine) is one managed page cache: it answers the faults of address spaces
//! that map its files, under a budget, as the brain (`pagekeeper-frames`) decides. It speaks to the
//! machine through a [`Port`](port::Port).
#![deny(unsafe_code)]

pub mod core;
pub mod engine;
mod evict;
pub mod port;
pub mod spaces;
pub mod stats;
pub mod table;
mod transfer;
pub mod word;
