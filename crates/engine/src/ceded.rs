//! How much of a cgroup's memory is left to the kernel's page cache: programs' own code, libraries, and
//! files that are not managed. Pure; [`crate::headroom`] looks.
//!
//! The kernel takes its own cache back before anything else. So where frames fill what the cgroup has, the
//! code of the programs is what goes, is read again for nearly each step that they take, and goes again:
//! a program that takes 2 s alone has not ended after 120. The kernel's counts show it: mappings that
//! wait for storage, and pages that are read again, more than we read. Then the cache is left more, and
//! more each time, until it shows no longer; and tried for less when it has not for a while.

use crate::port::PAGE_BYTES;
use pagekeeper_sys::cgroup::Pressure;
use std::time::Duration;

/// How long it may take to read all of the cache again. What it needs is read again once, when it is
/// left more, and no more than that.
const TURN_MAX: Duration = Duration::from_secs(1);
/// So many waits a second are none.
const WAITS_PER_SECOND_MAX: u64 = 20;
/// So many pages are read again for each that we read from where on the kernel's cache needs memory more
/// than we do. What we read by the kernel's cache it may count as well.
const AGAIN_PER_OWN: u64 = 2;
/// It is left more in steps of so large a part of all frames, each twice the one before it.
const STEP_PART: u64 = 32;
const DOUBLINGS_MAX: u32 = 3;
/// What it was left is tried for less after so long; twice as long each time that this was too soon.
const PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_MAX: Duration = Duration::from_secs(64);

/// What a look shows; counts are of all since the run began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Duration,
    /// The kernel's page cache that it can take back.
    pub(crate) cache_bytes: u64,
    pub(crate) pressure: Pressure,
    /// Pages that were read into frames.
    pub(crate) own_pages: u64,
}

/// What is left to the kernel's page cache.
#[derive(Debug)]
pub(crate) struct Ceded {
    bytes: u64,
    begin: Option<Seen>,
    /// How often in a row it was too little.
    given: u32,
    /// Since when it has been enough, or was tried for less.
    enough_since: Duration,
    patience: Duration,
    /// It was tried for less, and has been enough since.
    is_tried: bool,
}

impl Default for Ceded {
    fn default() -> Ceded {
        Ceded {
            bytes: 0,
            begin: None,
            given: 0,
            enough_since: Duration::ZERO,
            patience: PATIENCE,
            is_tried: false,
        }
    }
}

impl Ceded {
    /// Bytes to leave to the kernel's page cache, `most_bytes` at most, beside frames of `frames_bytes`.
    pub(crate) fn look(&mut self, seen: Seen, frames_bytes: u64, most_bytes: u64) -> u64 {
        let begin = *self.begin.get_or_insert(seen);
        let step_bytes = (frames_bytes / STEP_PART).max(1);
        if is_too_little(begin, seen) {
            self.give(seen.at, step_bytes);
            self.begin = Some(seen);
        } else if seen.at.saturating_sub(begin.at) >= TURN_MAX {
            self.take(seen.at, step_bytes);
            self.begin = Some(seen);
        }
        // What would be too much to leave need not be taken back either.
        self.bytes = self.bytes.min(most_bytes);
        self.bytes
    }

    fn give(&mut self, at: Duration, step_bytes: u64) {
        if core::mem::take(&mut self.is_tried) {
            self.patience = (2 * self.patience).min(PATIENCE_MAX);
        }
        let step_bytes = step_bytes << self.given.min(DOUBLINGS_MAX);
        self.bytes = self.bytes.saturating_add(step_bytes);
        self.given += 1;
        self.enough_since = at;
    }

    fn take(&mut self, at: Duration, step_bytes: u64) {
        self.given = 0;
        if self.bytes > 0 && at.saturating_sub(self.enough_since) >= self.patience {
            self.bytes = self.bytes.saturating_sub(step_bytes);
            self.is_tried = true;
            self.enough_since = at;
        }
    }
}

/// Whether all of the cache was read again, while programs waited for it, and more than was read for
/// frames.
fn is_too_little(begin: Seen, seen: Seen) -> bool {
    let elapsed = seen.at.saturating_sub(begin.at);
    let waits = seen.pressure.major_faults.saturating_sub(begin.pressure.major_faults);
    let again = seen.pressure.refaults.saturating_sub(begin.pressure.refaults);
    let own = seen.own_pages.saturating_sub(begin.own_pages);
    let is_waiting =
        u128::from(waits) * 1000 > u128::from(WAITS_PER_SECOND_MAX) * elapsed.as_millis();
    is_waiting && again > AGAIN_PER_OWN * own && again * PAGE_BYTES > seen.cache_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const FRAMES: u64 = 64 * MIB;
    const LOOK: Duration = Duration::from_millis(50);

    /// A machine whose programs need so much of the kernel's cache, and that has so much for both.
    struct Machine {
        needs_bytes: u64,
        memory_bytes: u64,
        ceded: Ceded,
        seen: Seen,
    }

    impl Machine {
        fn new(needs_bytes: u64, memory_bytes: u64) -> Machine {
            let pressure = Pressure::default();
            let seen = Seen { at: Duration::ZERO, cache_bytes: 0, pressure, own_pages: 0 };
            Machine { needs_bytes, memory_bytes, ceded: Ceded::default(), seen }
        }

        /// One look later, until which we read so many pages: what is left to the kernel's cache.
        fn step(&mut self, own_pages: u64) -> u64 {
            let left = self.ceded.look(self.seen, FRAMES, self.memory_bytes);
            let cache_bytes = left.max(self.memory_bytes.saturating_sub(FRAMES));
            self.seen.cache_bytes = cache_bytes;
            self.seen.at += LOOK;
            self.seen.own_pages += own_pages;
            if cache_bytes < self.needs_bytes {
                self.seen.pressure.major_faults += 30;
                self.seen.pressure.refaults += 2000;
            }
            left
        }
    }

    #[test]
    fn code_that_is_read_again_is_left_room_within_a_second() {
        let mut machine = Machine::new(24 * MIB, 66 * MIB);
        let enough = (0..40).position(|_| machine.step(10) >= 24 * MIB);
        assert!(enough.is_some_and(|looks| looks <= 20), "{enough:?}");
        // And not much more than it needs.
        let left = (0..15).map(|_| machine.step(10)).max().unwrap();
        assert!(left <= 40 * MIB, "{left}");
    }

    #[test]
    fn it_is_tried_for_less_and_less_often_when_that_was_too_little() {
        let mut machine = Machine::new(24 * MIB, 66 * MIB);
        let lefts: Vec<u64> = (0..6000).map(|_| machine.step(10)).collect();
        let short = |lefts: &[u64]| lefts.iter().filter(|left| **left < 24 * MIB).count();
        // Five minutes: of the last two nearly all are without want, and little is left for nothing.
        assert!(short(&lefts[3600..]) < 12, "{}", short(&lefts[3600..]));
        assert!(lefts[3600..].iter().all(|left| *left < 32 * MIB));
        // The need is over: it is all taken back.
        machine.needs_bytes = 0;
        let left = (0..60_000).map(|_| machine.step(10)).last();
        assert_eq!(left, Some(0));
    }

    #[test]
    fn who_reads_more_than_the_kernel_keeps_the_frames() {
        let mut machine = Machine::new(24 * MIB, 66 * MIB);
        assert!((0..100).all(|_| machine.step(1500) == 0));
    }

    #[test]
    fn a_beginning_that_reads_new_code_is_no_want() {
        let mut machine = Machine::new(0, 66 * MIB);
        for _ in 0..100 {
            machine.seen.pressure.major_faults += 50;
            assert_eq!(machine.step(0), 0);
        }
    }

    #[test]
    fn no_more_is_left_than_there_may_be() {
        let mut machine = Machine::new(u64::MAX, 20 * MIB);
        assert_eq!((0..100).map(|_| machine.step(0)).max(), Some(20 * MIB));
    }
}
