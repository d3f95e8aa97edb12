//! Pages that become writable before they are stored to.
//!
//! A page's first store is a fault, so that it is known to be dirty: one for each page of memory
//! that a program fills. Where nobody else sees what storage has of a page (a heap), those that are
//! stored to next may count as dirty before: at worst one is written back that need not be, and of
//! zeros that costs no I/O. In a file it would overwrite what others wrote.
//!
//! Memory that was never stored to is writable from the start where it comes along with a page that
//! is, or ahead of a stream of such, while frames are free.

use crate::Run;
use crate::brain::{Brain, DIRTY, RESIDENT};
use crate::config::WINDOW_PAGES_MAX;
use pagekeeper_policy::Place;

/// Most pages behind a store.
const STORED_NEXT_PAGES_MAX: u64 = 64;

impl Brain {
    /// How many clean mapped pages right behind one whose first store this is are likely to be
    /// stored to next: at most as many as are dirty right before it, and as far as they `fit`.
    pub fn stored_next(&self, place: Place, mut fits: impl FnMut(Place) -> bool) -> u32 {
        let at = |index: u64| Place { index, ..place };
        let before = (place.index.saturating_sub(STORED_NEXT_PAGES_MAX)..place.index).rev();
        let most = before.take_while(|index| self.is_dirty(at(*index))).count() as u64;
        let next = (place.index + 1..=place.index.saturating_add(most)).map(at);
        next.take_while(|p| self.is_mapped(*p) && !self.is_dirty(*p) && fits(*p)).count() as u32
    }

    /// The pages of a run of zeros, which has just come, that are likely to be stored to: all that
    /// came along with a page that is, or were fetched ahead of a stream of stores. None where they
    /// may have to leave before that.
    pub fn stored_ahead(&self, run: Run) -> Run {
        let is_free = self.resident < self.limit();
        let on = self.stored_on(run);
        Run { pages: if is_free { on.pages } else { 0 }, ..on }
    }

    /// The pages of a run, which has just come, that came ahead of a stream of stores.
    pub fn stored_on(&self, run: Run) -> Run {
        let Place { segment, index } = run.place;
        // The last is the last to be used.
        let last = (index + u64::from(run.pages)).saturating_sub(1);
        let is_stored = self.streams[segment.0 as usize].stores(last);
        let place = Place { segment, index: index + u64::from(run.demanded) };
        Run { place, pages: if is_stored { run.pages - run.demanded } else { 0 }, demanded: 0 }
    }

    pub(crate) fn writable(&mut self, place: Place, pages: u32) {
        // A replayed input may say anything.
        let pages = u64::from(pages.min(WINDOW_PAGES_MAX));
        for index in place.index..place.index + pages {
            if let Some(page) = self.pages.find(Place { index, ..place })
                && self.flags[page.index()] & (RESIDENT | DIRTY) == RESIDENT
            {
                self.set_dirty(page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Input};
    use pagekeeper_policy::{PolicySpec, Segment};

    #[test]
    fn as_many_become_writable_as_were_stored_to_before() {
        let policy = PolicySpec::parse("lru").unwrap().build(256, 1).unwrap();
        let mut brain = Brain::new(policy, Config::live(256));
        let segment = Segment(0);
        brain.apply(Input::Segment { segment, pages: 200 });
        let at = |index: u64| Place { segment, index };
        for index in 0..200 {
            let (place, write, map) = (at(index), false, true);
            if !brain.is_resident(place) {
                brain.apply(Input::Major { place, want: 1, write, map });
            }
            brain.apply(Input::Touch { place, write, map });
        }
        let mut faults = Vec::new();
        for index in 0..200 {
            if !brain.is_dirty(at(index)) {
                faults.push(index);
                brain.apply(Input::Write { place: at(index) });
                let pages = brain.stored_next(at(index), |next| next.index != 180);
                brain.apply(Input::Writable { place: at(index + 1), pages });
            }
        }
        assert_eq!(faults, [0, 1, 3, 7, 15, 31, 63, 127, 180]);
        assert_eq!(brain.dirty_pages(segment), 200);
        // Here and there, nothing is.
        brain.apply(Input::Cleaned { place: at(50) });
        brain.apply(Input::Cleaned { place: at(51) });
        assert_eq!(brain.stored_next(at(49), |_| true), 2);
        assert_eq!(brain.stored_next(at(51), |_| true), 0);
    }

    #[test]
    fn zeros_that_come_along_with_a_store_are_writable() {
        let policy = PolicySpec::parse("lru").unwrap().build(4096, 1).unwrap();
        let mut brain = Brain::new(policy, Config::live(4096));
        let segment = Segment(0);
        brain.apply(Input::Segment { segment, pages: 4000 });
        let mut faults = 0;
        // An allocation has its header in front; what is only read behind it stays clean.
        brain.apply(Input::Major {
            place: Place { segment, index: 2999 },
            want: 1,
            write: true,
            map: true,
        });
        for write in [true, false] {
            for index in if write { 0..2000 } else { 3000..4000 } {
                let (place, map) = (Place { segment, index }, true);
                let fetch = if !brain.is_resident(place) {
                    faults += 1;
                    brain.apply(Input::Major { place, want: 1, write, map }).fetch.clone()
                } else if !brain.is_mapped(place) {
                    faults += 1;
                    brain.apply(Input::Touch { place, write, map }).fetch.clone()
                } else {
                    assert_eq!(brain.is_dirty(place), write, "page {index}");
                    continue;
                };
                for run in fetch {
                    let ahead = brain.stored_ahead(run);
                    assert!(write || ahead.pages == 0);
                    brain.apply(Input::Writable { place: ahead.place, pages: ahead.pages });
                }
            }
        }
        let dirty = brain.dirty_pages(segment);
        assert!((2000..2000 + 3 * u64::from(WINDOW_PAGES_MAX)).contains(&dirty), "{dirty}");
        assert!(faults <= 150, "{faults}");
    }
}
