//! Threads beside the main one, which cannot always be had.

use crate::failure::{Failure, Kind};
use rayon::ThreadPoolBuilder;
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

/// What computes on all processors does so on this thread alone, where others cannot be had.
pub(crate) fn compute_where_possible() {
    // Rayon's own pool is tried once, and who then comes to it panics.
    if ThreadPoolBuilder::new().build().is_err() {
        let alone = ThreadPoolBuilder::new().num_threads(1).use_current_thread();
        let _ = alone.build_global();
    }
}
