//! Uses of resident pages that nobody took the engine's lock for.
//!
//! A use that finds its page ready costs a few nanoseconds; telling the brain of it would cost
//! more. So uses are noted in a few short rings, one for each of several threads, and the brain
//! hears of them when a page has to be brought in: only then does it matter who was used. A ring
//! that is full is told at once if pages were brought in since it was last empty, and forgets its
//! oldest otherwise.
//!
//! **What is lost**: uses of a page right after one another by one thread (one is kept); uses older
//! than a thread's last [`RING`] while everything fits into memory; a use now and then where
//! threads share a ring (there are [`RINGS`]) or a ring is full while the engine decides. Policies
//! that count uses count too few of them then. No use that brings a page in, or writes to a clean
//! one, is lost.

use pagekeeper_frames::{Place, Segment};
use std::cell::Cell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

/// Uses kept per ring. A power of two.
const RING: usize = 64;
/// Rings. A power of two.
const RINGS: usize = 16;
const INDEX_BITS: u32 = 40;
const NONE: u64 = u64::MAX;

#[derive(Debug)]
#[repr(align(128))]
struct Ring {
    /// The latest use, to leave repetitions out.
    last: AtomicU64,
    written: AtomicU32,
    /// As `written` was when it was last emptied.
    taken: AtomicU32,
    /// [`Touches::misses`] when it was last emptied.
    emptied_at: AtomicU32,
    /// Segment << 40 | index, or [`NONE`].
    entries: [AtomicU64; RING],
}

impl Default for Ring {
    fn default() -> Ring {
        Ring {
            last: AtomicU64::new(NONE),
            written: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            emptied_at: AtomicU32::new(0),
            entries: [const { AtomicU64::new(NONE) }; RING],
        }
    }
}

/// The rings of one engine.
#[derive(Debug, Default)]
pub(crate) struct Touches {
    rings: [Ring; RINGS],
    /// Counts pages brought in, so that rings know whether they matter.
    misses: AtomicU32,
}

thread_local! {
    /// The ring of the thread; [`RINGS`] before its first use.
    static MINE: Cell<usize> = const { Cell::new(RINGS) };
}

/// The ring of the thread that comes next, and so many at most that were chosen.
static NEXT: AtomicUsize = AtomicUsize::new(0);

#[cold]
fn choose() -> usize {
    let ring = NEXT.fetch_add(1, Relaxed) % RINGS;
    MINE.set(ring);
    ring
}

fn encode(place: Place) -> u64 {
    u64::from(place.segment.0) << INDEX_BITS | place.index
}

fn decode(entry: u64) -> Place {
    let segment = Segment((entry >> INDEX_BITS) as u32);
    Place { segment, index: entry & ((1 << INDEX_BITS) - 1) }
}

impl Touches {
    /// Notes a use. True if this thread's ring is full and should be told.
    #[inline(always)]
    pub(crate) fn note(&self, place: Place) -> bool {
        let ring = self.rings.get(MINE.get()).unwrap_or_else(|| &self.rings[choose()]);
        let entry = encode(place);
        if ring.last.load(Relaxed) == entry {
            return false;
        }
        ring.last.store(entry, Relaxed);
        // Threads that share a ring may overwrite each other's: see above.
        let at = ring.written.load(Relaxed);
        ring.entries[at as usize % RING].store(entry, Release);
        ring.written.store(at.wrapping_add(1), Relaxed);
        (at as usize + 1).is_multiple_of(RING)
            && ring.emptied_at.load(Relaxed) != self.misses.load(Relaxed)
    }

    /// A page was brought in.
    pub(crate) fn missed(&self) {
        self.misses.fetch_add(1, Relaxed);
    }

    /// Empties all rings into a list that is empty. Called under the engine's lock.
    pub(crate) fn take_into(&self, places: &mut Vec<Place>) {
        for ring in &self.rings[..NEXT.load(Relaxed).min(RINGS)] {
            if ring.last.load(Relaxed) == NONE {
                continue;
            }
            ring.last.store(NONE, Relaxed);
            ring.emptied_at.store(self.misses.load(Relaxed), Relaxed);
            let end = ring.written.load(Relaxed);
            // As many as there are, or RING where there were more (or where threads that share it
            // brought the count back).
            let count = end.wrapping_sub(ring.taken.load(Relaxed)).min(RING as u32);
            ring.taken.store(end, Relaxed);
            places.reserve(count as usize);
            for back in (1..=count).rev() {
                let entry = &ring.entries[end.wrapping_sub(back) as usize % RING];
                if entry.load(Acquire) != NONE {
                    places.push(decode(entry.swap(NONE, Acquire)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(touches: &Touches) -> Vec<Place> {
        let mut places = Vec::new();
        touches.take_into(&mut places);
        places
    }

    fn place(index: u64) -> Place {
        Place { segment: Segment(2), index }
    }

    #[test]
    fn the_latest_uses_are_told_in_order_and_once() {
        let touches = Touches::default();
        touches.missed();
        let mut full = 0;
        for index in 0..100 {
            full += usize::from(touches.note(place(index)));
            assert!(!touches.note(place(index)), "a repetition");
        }
        assert_eq!(full, 1, "pages were brought in");
        let told = take(&touches);
        assert_eq!(told, (36..100).map(place).collect::<Vec<_>>());
        assert!(take(&touches).is_empty());
        for index in 0..1000 {
            assert!(!touches.note(place(index)), "nothing was brought in since");
        }
        assert_eq!(take(&touches).len(), RING);
    }
}
