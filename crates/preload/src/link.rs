//! To the manager: connections, this process's userfaultfd, and what is told without asking.

pub(crate) mod bell;
pub(crate) mod board;
pub(crate) mod connection;
pub(crate) mod room;
pub(crate) mod standby;
pub(crate) mod userfault;
