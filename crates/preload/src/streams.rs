//! Streams (`FILE`) on managed files.

pub(crate) mod large;
pub(crate) mod stdio;
pub(crate) mod stream_list;
pub(crate) mod unseen;
pub(crate) mod wide;
