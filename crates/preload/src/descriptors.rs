//! From a descriptor to a file, and what is said of it.

pub(crate) mod fdinfo;
pub(crate) mod files;
pub(crate) mod first_use;
pub(crate) mod lengths;
pub(crate) mod plain;
pub(crate) mod table;
