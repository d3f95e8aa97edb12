//! Threads beside the main one, which cannot always be had.

use crate::failure::{Failure, Kind};
use std::thread::{Builder, JoinHandle};

/// Starts a thread. `std::thread::spawn` would end the command, and the program with it.
pub(crate) fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Failure> {
    Builder::new().name(name.into()).spawn(work).map_err(|error| {
        let why = format!("{error}; ulimit -u, or pids.max of the cgroup");
        Failure::new(Kind::Machine, format!("no thread can be started ({why})"))
    })
}
