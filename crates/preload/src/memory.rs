//! Mappings of managed files, and heap memory.

pub(crate) mod allocation;
pub(crate) mod fork;
pub(crate) mod heap;
pub(crate) mod mapping;
pub(crate) mod turns;
