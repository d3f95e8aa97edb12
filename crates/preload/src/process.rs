//! This process: its start and end, what it executes, and what it has going on with the manager.

pub(crate) mod announce;
pub(crate) mod cancel;
pub(crate) mod children;
pub(crate) mod environment;
pub(crate) mod loader;
pub(crate) mod start;
pub(crate) mod state;
