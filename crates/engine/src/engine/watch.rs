//! What is stuck, in words.

use crate::engine::Engine;
use crate::port::{PAGE_BYTES, Port};

impl<P: Port> Engine<P> {
    /// Calls into storage or the kernel that have gone on for too long, in words.
    pub fn stuck(&self, longer_than: std::time::Duration) -> Vec<String> {
        let stuck = self.times.stuck(longer_than).into_iter();
        let overdue = self.overdue.since(longer_than);
        let overdue = overdue.into_iter().filter_map(|(file, since)| {
            let name = self.lock().file(file)?.name.clone();
            Some(format!(
                "storage has not written pages of {name} for {} s; until it does, they stay in memory, and \
                 programs that need it written stand still",
                since.as_secs()
            ))
        });
        stuck
            .map(|(what, since)| {
                format!(
                    "a handler has been {what} for {} s; programs that wait for it stand still",
                    since.as_secs()
                )
            })
            .chain(overdue)
            .collect()
    }

    /// In words, if programs' own copies of pages leave little memory for anything else.
    pub fn crowded(&self) -> Option<String> {
        let core = self.try_lock()?;
        let (own, all) = (u64::from(core.private_pages) * PAGE_BYTES, core.budget.memory_bytes());
        (own > all - all / 4).then(|| {
            format!(
                "programs' own copies of pages (private mappings that they wrote to) take {} of the {} KiB \
                 of --memory, so that little is left for files: more memory, or fewer --files, will help",
                own >> 10,
                all >> 10
            )
        })
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
