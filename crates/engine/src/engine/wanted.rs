//! Pages that somebody waits for until nobody else uses them, and to whom new readers give way.
//!
//! Where there is a reader at each moment, a writer would wait for ever. So readers that come while
//! somebody wants a page alone let those go first; but only for a while, and then they go on for a while:
//! who holds the page may be waiting for such a reader, or keep it for long.

use pagekeeper_frames::Place;
use std::time::{Duration, Instant};

/// How long readers give way at a time.
pub(crate) const GIVE_WAY: Duration = Duration::from_millis(10);
/// From one such time to the next: readers have nine tenths of it.
const EVERY: Duration = Duration::from_millis(100);

/// Who wants which page, and since when.
#[derive(Default)]
pub(crate) struct Wanted(Vec<(Place, Instant)>);

impl Wanted {
    /// Nobody wants any.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Somebody wants this one.
    pub(crate) fn has(&self, place: Place) -> bool {
        self.0.iter().any(|(wanted, _)| *wanted == place)
    }

    /// Whether a reader of a page is to let others go first now.
    pub(crate) fn goes_first(&self, place: Place) -> bool {
        self.goes_first_after(place, |since| since.elapsed())
    }

    fn goes_first_after(&self, place: Place, elapsed: impl Fn(&Instant) -> Duration) -> bool {
        let windows = self.0.iter().filter(|(wanted, _)| *wanted == place);
        let mut within = windows.map(|(_, since)| elapsed(since).as_nanos() % EVERY.as_nanos());
        within.any(|at| at < GIVE_WAY.as_nanos())
    }
}

/// What one waiter wants: one page at most.
#[derive(Default)]
pub(crate) struct Want(Option<(Place, Instant)>);

impl Want {
    /// From now on it is this page; the same as so far, for as long as it was.
    pub(crate) fn set(&mut self, wanted: &mut Wanted, place: Place) {
        if self.0.is_some_and(|(so_far, _)| so_far == place) {
            return;
        }
        self.clear(wanted);
        let want = (place, Instant::now());
        wanted.0.push(want);
        self.0 = Some(want);
    }

    /// It is none any more. Has to be said before the waiter goes.
    pub(crate) fn clear(&mut self, wanted: &mut Wanted) {
        let Some(want) = self.0.take() else { return };
        if let Some(at) = wanted.0.iter().position(|other| *other == want) {
            wanted.0.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_frames::Segment;

    fn place(index: u64) -> Place {
        Place { segment: Segment(1), index }
    }

    #[test]
    fn readers_give_way_for_a_tenth_of_the_time() {
        let (mut wanted, mut want) = (Wanted::default(), Want::default());
        want.set(&mut wanted, place(3));
        let first =
            |index, ms| wanted.goes_first_after(place(index), |_| Duration::from_millis(ms));
        assert_eq!((0..1000).filter(|ms| first(3, *ms)).count(), 100);
        assert!(first(3, 0) && first(3, 9) && !first(3, 10) && !first(3, 99) && first(3, 100));
        assert!((0..1000).all(|ms| !first(4, ms)));
    }

    #[test]
    fn a_waiter_wants_one_page_at_a_time() {
        let mut wanted = Wanted::default();
        let (mut one, mut two) = (Want::default(), Want::default());
        one.set(&mut wanted, place(1));
        two.set(&mut wanted, place(1));
        two.set(&mut wanted, place(1));
        assert_eq!(wanted.0.len(), 2);
        one.set(&mut wanted, place(2));
        assert!(wanted.has(place(1)) && wanted.has(place(2)));
        two.clear(&mut wanted);
        two.clear(&mut wanted);
        assert!(!wanted.has(place(1)) && wanted.has(place(2)));
        one.clear(&mut wanted);
        assert!(wanted.is_empty());
    }
}
