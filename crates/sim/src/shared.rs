//! Pages that several have mapped. The kernel leaves a page where it is mapped twice, so that its next
//! touch is not seen although the engine asked for that.

use pagekeeper_frames::Place;
use rustc_hash::FxHashMap;

/// Who touched which page by a mapping since it came in.
#[derive(Default)]
pub(crate) struct Mapped(FxHashMap<Place, By>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    One(usize),
    Several,
}

impl Mapped {
    /// A process touches a resident page by a mapping. `was_unmapped` if its touches were to be seen.
    /// Tells whether it is mapped all the same.
    pub(crate) fn touched(&mut self, place: Place, process: usize, was_unmapped: bool) -> bool {
        let by = self.0.entry(place).or_insert(By::One(process));
        match *by {
            By::Several => return true,
            By::One(_) if was_unmapped => *by = By::One(process),
            By::One(first) if first != process => *by = By::Several,
            By::One(_) => {}
        }
        false
    }

    /// A page comes in.
    pub(crate) fn fetched(&mut self, place: Place) {
        self.0.remove(&place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_frames::Segment;

    #[test]
    fn what_two_have_mapped_stays_mapped_until_it_comes_in_again() {
        let place = Place { segment: Segment(1), index: 7 };
        let mut mapped = Mapped::default();
        assert!(!mapped.touched(place, 0, false));
        // Unmapped in time, and touched by another alone.
        assert!(!mapped.touched(place, 1, true));
        assert!(!mapped.touched(place, 0, false));
        assert!(mapped.touched(place, 0, true));
        assert!(mapped.touched(place, 2, true));
        mapped.fetched(place);
        assert!(!mapped.touched(place, 0, true));
    }
}
