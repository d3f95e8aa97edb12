//! What goes into the brain and what comes out of it.

use crate::config::WINDOW_PAGES_MAX;
use crate::{Place, Segment};
use pagekeeper_policy::Page;

/// Something that happened. Every decision follows from these and nothing else, so that a recorded
/// sequence of inputs replays to the same decisions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// A segment exists, or its length in pages changed. Shrinking needs [`Input::Drop`] first.
    Segment {
        /// Which.
        segment: Segment,
        /// Its length in pages.
        pages: u64,
    },
    /// Whether misses of a segment in no order may read the block around them. None does before this
    /// says so: memory that no storage is behind has nothing to gain, and programs say where they
    /// know better (`MADV_RANDOM`).
    Around {
        /// Which.
        segment: Segment,
        /// They may.
        allowed: bool,
    },
    /// Whether dirty neighbours of a victim are written along with it. They are before this says
    /// otherwise: one request for all costs hardly more than one for the victim alone. Where storage
    /// keeps pages compressed in memory first, each is work of its own.
    Along {
        /// Which.
        segment: Segment,
        /// They are.
        allowed: bool,
    },
    /// A segment is gone; all its pages were dropped before.
    Close {
        /// Which.
        segment: Segment,
    },
    /// Resident pages left memory without the brain's choosing (truncated, invalidated).
    Drop {
        /// Of which segment.
        segment: Segment,
        /// First page.
        first: u64,
        /// Number of pages from there on.
        pages: u64,
    },
    /// A reference needs pages that are absent, the first of them for sure.
    Major {
        /// The first absent page.
        place: Place,
        /// How many pages from there on the reference needs (those absent are fetched).
        want: u32,
        /// The reference writes.
        write: bool,
        /// The page gets mapped by it (false for explicit reads).
        map: bool,
    },
    /// A touch of a page that is resident and counted as unmapped was seen.
    Touch {
        /// Which page.
        place: Place,
        /// The reference writes.
        write: bool,
        /// The page gets mapped by it (false for explicit reads).
        map: bool,
    },
    /// First write to a clean, resident page.
    Write {
        /// Which page.
        place: Place,
    },
    /// A dirty page was written back and stays.
    Cleaned {
        /// Which page.
        place: Place,
    },
    /// A victim cannot leave now: it stays resident and dirty, outside the policy, until
    /// [`Input::Cleaned`] or [`Input::Released`]. Or a neighbour of a victim was not written along:
    /// it is still dirty.
    Kept {
        /// Which page.
        place: Place,
    },
    /// A victim was busy and nobody waits for it: it stays resident. Others go when room is needed
    /// next.
    Spared {
        /// Which page.
        place: Place,
        /// It is dirty.
        dirty: bool,
    },
    /// What kept a victim from leaving is over.
    Released {
        /// Which page.
        place: Place,
    },
    /// A page could not be fetched: it is absent again.
    Failed {
        /// Which page.
        place: Place,
    },
    /// The number of frames changed.
    Frames {
        /// The new number.
        frames: u32,
    },
    /// So many frames are taken by private copies, outside the policy's reach.
    Reserved {
        /// The new number.
        frames: u32,
    },
    /// Absent pages are about to be written whole: they need frames, but nothing is fetched.
    Overwrite {
        /// The first absent page.
        place: Place,
        /// How many pages from there on.
        pages: u32,
    },
    /// Resident pages that [`stored_next`](crate::Brain::stored_next) or
    /// [`stored_ahead`](crate::Brain::stored_ahead) named may be stored to from now on without a
    /// fault, or pages that came have no other copy any more: they count as dirty, and nobody has
    /// stored to them.
    Writable {
        /// The first page.
        place: Place,
        /// How many pages from there on.
        pages: u32,
    },
    /// The program announced that it will need these pages.
    Ahead {
        /// Of which segment.
        segment: Segment,
        /// First page.
        first: u64,
        /// Number of pages.
        pages: u32,
    },
    /// The policy asked that a dirty page of its own be written back.
    Flush {
        /// Which page.
        place: Place,
    },
    /// The policy asked that a resident page of its own be mapped.
    Map {
        /// Which page.
        place: Place,
    },
    /// The policy asked that a resident page of its own be unmapped, so that its next touch is
    /// seen.
    Unmap {
        /// Which page.
        place: Place,
    },
    /// The policy that was [put forward](crate::Brain::put_forward) decides from now on.
    Policy {
        /// Which one, counted from 1; the first policy is number 0.
        number: u32,
        /// The frames that it was built for.
        frames: u32,
    },
}

const WRITE: u64 = 1 << 32;
const MAP: u64 = 1 << 33;

impl Input {
    /// The input as three numbers, for a trace.
    pub fn encode(self) -> (u8, u64, u64) {
        let at = |p: Place| (u64::from(p.segment.0) << 40) | p.index;
        let flags = |w: bool, m: bool| if w { WRITE } else { 0 } | if m { MAP } else { 0 };
        match self {
            Input::Segment { segment, pages } => (1, u64::from(segment.0), pages),
            Input::Close { segment } => (2, u64::from(segment.0), 0),
            Input::Drop { segment, first, pages } => {
                (3, at(Place { segment, index: first }), pages)
            }
            Input::Major { place, want, write, map } => {
                (4, at(place), u64::from(want) | flags(write, map))
            }
            Input::Touch { place, write, map } => (5, at(place), flags(write, map)),
            Input::Write { place } => (6, at(place), 0),
            Input::Cleaned { place } => (7, at(place), 0),
            Input::Kept { place } => (8, at(place), 0),
            Input::Failed { place } => (9, at(place), 0),
            Input::Released { place } => (13, at(place), 0),
            Input::Spared { place, dirty } => (14, at(place), flags(dirty, false)),
            Input::Frames { frames } => (10, u64::from(frames), 0),
            Input::Reserved { frames } => (11, u64::from(frames), 0),
            Input::Overwrite { place, pages } => (20, at(place), u64::from(pages)),
            Input::Writable { place, pages } => (21, at(place), u64::from(pages)),
            Input::Ahead { segment, first, pages } => {
                (12, at(Place { segment, index: first }), u64::from(pages))
            }
            Input::Flush { place } => (15, at(place), 0),
            Input::Map { place } => (16, at(place), 0),
            Input::Unmap { place } => (17, at(place), 0),
            Input::Policy { number, frames } => (18, u64::from(number), u64::from(frames)),
            Input::Around { segment, allowed } => (19, u64::from(segment.0), u64::from(allowed)),
            Input::Along { segment, allowed } => (22, u64::from(segment.0), u64::from(allowed)),
        }
    }

    /// The input of three numbers; `None` if they are nobody's.
    pub fn decode(code: u8, a: u64, b: u64) -> Option<Input> {
        let segment = Segment((a >> 40) as u32);
        let place = Place { segment, index: a & ((1 << 40) - 1) };
        let (write, map) = (b & WRITE != 0, b & MAP != 0);
        Some(match code {
            1 => Input::Segment { segment: Segment(u32::try_from(a).ok()?), pages: b },
            2 => Input::Close { segment: Segment(u32::try_from(a).ok()?) },
            3 => Input::Drop { segment, first: place.index, pages: b },
            4 => Input::Major { place, want: b as u32, write, map },
            5 => Input::Touch { place, write, map },
            6 => Input::Write { place },
            7 => Input::Cleaned { place },
            8 => Input::Kept { place },
            9 => Input::Failed { place },
            10 => Input::Frames { frames: u32::try_from(a).ok()? },
            11 => Input::Reserved { frames: u32::try_from(a).ok()? },
            12 => Input::Ahead { segment, first: place.index, pages: u32::try_from(b).ok()? },
            13 => Input::Released { place },
            20 => Input::Overwrite { place, pages: u32::try_from(b).ok()? },
            21 => Input::Writable { place, pages: u32::try_from(b).ok()? },
            14 => Input::Spared { place, dirty: write },
            15 => Input::Flush { place },
            16 => Input::Map { place },
            17 => Input::Unmap { place },
            19 => Input::Around { segment: Segment(u32::try_from(a).ok()?), allowed: b != 0 },
            22 => Input::Along { segment: Segment(u32::try_from(a).ok()?), allowed: b != 0 },
            18 => Input::Policy { number: u32::try_from(a).ok()?, frames: u32::try_from(b).ok()? },
            _ => return None,
        })
    }
}

/// Neighbouring pages of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first page.
    pub place: Place,
    /// How many.
    pub pages: u32,
    /// How many of them, counted from the first, a reference waits for.
    pub demanded: u32,
}

/// Pages between two runs of a file that are better read for nothing than left out by a second
/// request: a request costs a disk's queue some ten pages' time, and more on one that rotates.
pub const GAP_READ_PAGES: u64 = 8;

impl Run {
    /// Whether a page is of this run.
    pub fn contains(&self, place: Place) -> bool {
        let first = self.place.index;
        place.segment == self.place.segment
            && (first..first + u64::from(self.pages)).contains(&place.index)
    }

    /// Pages between this run and a place behind it in the same segment.
    pub fn gap_to(&self, place: Place) -> Option<u64> {
        let end = self.place.index + u64::from(self.pages);
        place.index.checked_sub(end).filter(|_| place.segment == self.place.segment)
    }

    /// The pages.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        let Place { segment, index } = self.place;
        (index..index + u64::from(self.pages)).map(move |index| Place { segment, index })
    }

    /// Pages from the first of this run to the last of another one behind it.
    pub fn span_to(&self, last: &Run) -> u64 {
        last.place.index + u64::from(last.pages) - self.place.index
    }

    /// Runs that are better read together, with what lies between them, in the order given. What
    /// somebody waits for is read by itself; of the rest, those at most so many pages apart, as far
    /// as a window goes.
    pub fn requests(
        mut runs: &[Run],
        gap_pages_max: impl Fn(Segment) -> u64,
    ) -> impl Iterator<Item = &[Run]> {
        std::iter::from_fn(move || {
            let first = runs.first()?;
            let gap_most = gap_pages_max(first.place.segment);
            let joins = |pair: &&[Run]| {
                pair[0].demanded + pair[1].demanded == 0
                    && pair[0].gap_to(pair[1].place).is_some_and(|gap| gap <= gap_most)
                    && first.span_to(&pair[1]) <= u64::from(WINDOW_PAGES_MAX)
            };
            let more = runs.windows(2).take_while(joins).count();
            let (request, others) = runs.split_at(1 + more);
            runs = others;
            Some(request)
        })
    }

    /// Adds a page that nobody waits for, to the last of these runs if that is no window yet, or as
    /// one of its own.
    pub fn add(runs: &mut Vec<Run>, place: Place) {
        match runs.last_mut() {
            Some(run) if run.gap_to(place) == Some(0) && run.pages < WINDOW_PAGES_MAX => {
                run.pages += 1
            }
            _ => runs.push(Run { place, pages: 1, demanded: 0 }),
        }
    }
}

/// A page to evict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Victim {
    /// Its number.
    pub page: Page,
    /// Where it lives.
    pub place: Place,
    /// It has to be written back first.
    pub dirty: bool,
}

/// What to do. Pages leave before those that take their place are put into frames; what is fetched
/// and what is unmapped may be begun at any time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Leave memory (after write-back if dirty).
    pub evict: Vec<Victim>,
    /// Dirty neighbours of dirty victims, to be written in the same breath, and pages that the
    /// policy wants written; they stay resident.
    pub clean: Vec<Run>,
    /// To be fetched; absent until now.
    pub fetch: Vec<Run>,
    /// Resident pages to be mapped along with the touched one, in the space that touched it; with
    /// the policy's wishes, also pages of other segments.
    pub map: Vec<Run>,
    /// To be unmapped from every address space, so that their next touch is seen.
    pub unmap: Vec<Page>,
}

impl Plan {
    /// Nothing to do.
    pub fn is_empty(&self) -> bool {
        self.evict.is_empty()
            && self.clean.is_empty()
            && self.fetch.is_empty()
            && self.map.is_empty()
            && self.unmap.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.evict.clear();
        self.clean.clear();
        self.fetch.clear();
        self.map.clear();
        self.unmap.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(segment: u32, index: u64, pages: u32, demanded: u32) -> Run {
        Run { place: Place { segment: Segment(segment), index }, pages, demanded }
    }

    #[test]
    fn what_lies_near_is_one_request_and_what_is_waited_for_another() {
        let runs = [
            run(0, 10, 1, 1),
            run(0, 11, 4, 0),
            run(0, 18, 2, 0),
            run(0, 29, 1, 0),
            run(0, 25, 1, 0),
            run(1, 26, 1, 0),
            run(1, 27, 200, 0),
            run(1, 230, 60, 0),
        ];
        let requests =
            |gap: u64| -> Vec<usize> { Run::requests(&runs, |_| gap).map(<[Run]>::len).collect() };
        // Three pages apart, and no further; not back; not from file to file; no more than a window.
        assert_eq!(requests(3), [1, 2, 1, 1, 2, 1]);
        assert_eq!(requests(9), [1, 3, 1, 2, 1]);
        assert_eq!(Run::requests(&[], |_| 3).count(), 0);
    }
}
