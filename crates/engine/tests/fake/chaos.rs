//! Seeded failures and delays.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What goes wrong how often: chances out of 1,000 per call; 0 switches it off.
#[derive(Default, Debug)]
pub struct Chaos {
    pub delay: AtomicU32,
    pub again: AtomicU32,
    pub load_eio: AtomicU32,
    pub store_eio: AtomicU32,
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
