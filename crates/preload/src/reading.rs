//! Reads of managed files: copies, by what survives a missing page.

pub(crate) mod alignment;
pub(crate) mod direct;
pub(crate) mod guard;
pub(crate) mod transfer;
