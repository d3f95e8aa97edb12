//! Processors are kept from halting while many threads wait for us, where that takes long ([`sys::awake`]).
//!
//! Each that waits is two switches between processes: one to us, and one back. In between its processor has
//! nothing to do, and halts.
//!
//! [`sys::awake`]: pagekeeper_sys::awake

use pagekeeper_sys::awake::Awake;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often waits are looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);
/// From so many waits between two looks on processors stay awake, and until there are fewer than a quarter of that:
/// a thousand a second of 100 µs each are a tenth of the time.
const WAITS_MIN: u64 = 100;
const WAITS_LEFT_MIN: u64 = WAITS_MIN / 4;

/// How often somebody waited for us.
#[derive(Debug, Default)]
pub(crate) struct Waits(AtomicU64);

impl Waits {
    pub(crate) fn count(&self, waits: usize) {
        self.0.fetch_add(waits as u64, Ordering::Relaxed);
    }

    pub(crate) fn so_far(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Whether processors are kept awake, by who looks at how often somebody waited.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    seen: u64,
    awake: Option<Awake>,
}

impl Keeper {
    /// Somebody waited so often by now; to be told each [`LOOK_EVERY`].
    pub(crate) fn look(&mut self, waits: u64) {
        self.look_with(waits, Awake::begin);
    }

    fn look_with(&mut self, waits: u64, begin: impl FnOnce() -> Option<Awake>) {
        let waited = waits.saturating_sub(std::mem::replace(&mut self.seen, waits));
        match self.awake {
            Some(_) if waited < WAITS_LEFT_MIN => self.awake = None,
            None if waited >= WAITS_MIN => self.awake = begin(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn processors_are_kept_awake_while_many_wait() {
        let (waits, mut keeper, asked) = (Waits::default(), Keeper::default(), Cell::new(0));
        let mut look = |count: usize| {
            waits.count(count);
            let before = asked.get();
            keeper.look_with(waits.so_far(), || {
                asked.set(before + 1);
                None
            });
            asked.get() > before
        };
        assert!(!look(0) && !look(99));
        assert!(look(100));
        // Where it cannot be had, it is asked for again.
        assert!(look(5_000));
        assert!(!look(24));
    }
}
