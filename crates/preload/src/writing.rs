//! Writes to managed files, other changes of them, and what locks ask for.

pub(crate) mod change;
pub(crate) mod delayed;
pub(crate) mod frames;
pub(crate) mod lock_files;
pub(crate) mod locks;
pub(crate) mod overwrite;
pub(crate) mod queue;
