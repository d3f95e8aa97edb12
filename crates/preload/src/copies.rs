//! System calls on memory that the kernel may be unable to touch, by a copy.

pub(crate) mod bounce;
pub(crate) mod messages;
pub(crate) mod relay;
pub(crate) mod sockets;
