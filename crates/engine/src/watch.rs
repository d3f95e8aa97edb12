//! What is stuck, in words.

use crate::engine::Engine;
use crate::port::Port;

impl<P: Port> Engine<P> {
    /// Calls into storage or the kernel that have gone on for too long, in words.
    pub fn stuck(&self, longer_than: std::time::Duration) -> Vec<String> {
        let stuck = self.times.stuck(longer_than);
        stuck
            .into_iter()
            .map(|(what, since)| {
                format!(
                    "a handler has been {what} for {} s; programs that wait for it stand still",
                    since.as_secs()
                )
            })
            .collect()
    }

    /// Everything that is not at rest: pages in motion, open changes, faults that wait for them.
    /// Does not wait for the engine's lock.
    pub fn describe(&self) -> String {
        match self.try_lock() {
            Some(core) => core.describe().join("\n"),
            None => "the engine is deciding".to_owned(),
        }
    }
}
