//! A machine in memory for the engine to run on: page tables, frames and storage with the meaning
//! that Linux gives them, and failures, delays and reorderings on request.
#![allow(unreachable_pub)]

pub mod chaos;
pub mod machine;
mod port;
#[path = "../../random/mod.rs"]
mod random;
pub mod world;

pub use machine::{Access, Bus};
pub use random::Rng;
pub use world::{World, watched};

/// Cells checked per page.
pub const CELLS_PER_PAGE: u64 = 4;

/// Offset of a cell in its file.
pub fn cell_offset(cell: u64) -> u64 {
    cell / CELLS_PER_PAGE * 4096 + cell % CELLS_PER_PAGE * 1000
}
