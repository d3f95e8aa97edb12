//! Seeded failures and delays.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::random::Rng;

/// What goes wrong how often: chances out of 1,000 per call; 0 switches it off.
#[derive(Default, Debug)]
pub struct Chaos {
    pub delay: AtomicU32,
    pub again: AtomicU32,
    pub load_eio: AtomicU32,
    /// A transfer does not begin, or is not seen to end.
    pub under_way: AtomicU32,
    /// A write takes longer than anybody waits for it.
    pub overdue: AtomicU32,
    /// Reads go into frames, several for a window, and not into a buffer.
    pub in_place: AtomicU32,
    pub store_eio: AtomicU32,
    /// What is stored stays in storage's memory, until it is taken from there.
    pub keeps: AtomicU32,
    /// Pages are protected only after they were mapped.
    pub late: AtomicBool,
    pub fill_enomem: AtomicU32,
    pub discard_fails: AtomicU32,
    calls: AtomicU64,
    pub seed: u64,
}

impl Chaos {
    pub fn new(seed: u64) -> Chaos {
        Chaos { seed, ..Chaos::default() }
    }

    pub fn set(&self, what: &AtomicU32, chance: u32) {
        what.store(chance, Ordering::Relaxed);
    }

    /// Whether it may happen at all.
    pub fn may_hit(&self, what: &AtomicU32) -> bool {
        what.load(Ordering::Relaxed) != 0
    }

    /// Rolls the dice.
    pub fn hits(&self, what: &AtomicU32) -> bool {
        let chance = what.load(Ordering::Relaxed);
        chance != 0 && self.roll().below(1000) < u64::from(chance)
    }

    /// Perhaps lets others go first.
    pub fn delay(&self) {
        if self.hits(&self.delay) {
            match self.roll().below(8) {
                0 => std::thread::sleep(Duration::from_micros(self.roll().below(400))),
                _ => std::thread::yield_now(),
            }
        }
    }

    fn roll(&self) -> Rng {
        Rng(self.seed
            ^ self.calls.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x2545_f491_4f6c_dd1d))
    }
}
