//! Pages that are mapped along with another one, since they count as mapped, and are not here.
//!
//! The brain knows pages and not mappings: one that some process has mapped, or that was mapped
//! where there is another mapping now, counts as mapped. Who maps a file again (a program for each
//! of its passes, a forked child, the next process) faults on it, and no policy has to hear of that.
//! The aligned window around it is mapped along, as the kernel does it (`fault_around_bytes`,
//! `mm/memory.c`); and where such faults go on behind each other, larger and larger windows, since
//! each is two switches between processes, and a page that is mapped along costs next to nothing.

use crate::engine::core::Core;
use crate::engine::spaces::Region;
use crate::port::{PAGE_BYTES, SpaceNo};
use pagekeeper_frames::{Place, Run};
use std::ops::Range;

/// The window of a fault that goes on from no other.
const WINDOW_PAGES: u64 = 16;
/// The largest window. Pages are looked at one by one under the engine's lock.
const WINDOW_PAGES_MAX: u64 = 512;
/// How much larger each is than the one before it.
const GROWTH: u64 = 4;
/// Pages between two windows whose touches are seen, and so were no such faults.
const GAP_PAGES: u64 = 8;
/// Walks through an address space that are told apart.
const WALKS: usize = 4;

/// Where faults on pages that count as mapped went on in one address space.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walks {
    /// The one continued last comes last.
    list: Vec<Walk>,
}

#[derive(Clone, Copy, Debug)]
struct Walk {
    /// The address behind its last window.
    next: u64,
    pages: u64,
    /// Pages behind that were left to it since.
    awaited: bool,
}

impl Walks {
    /// The addresses to be mapped along with a page, those of its aligned window if nothing was
    /// before it.
    fn window(&mut self, addr: u64, aligned: Range<u64>) -> Range<u64> {
        let goes_on = |walk: &Walk| {
            addr.checked_sub(walk.next).is_some_and(|gap| gap <= GAP_PAGES * PAGE_BYTES)
        };
        let known = self.list.iter().position(goes_on);
        let window = match known.map(|at| self.list.remove(at)) {
            Some(walk) => {
                let pages = (walk.pages * GROWTH).min(WINDOW_PAGES_MAX);
                addr..addr.saturating_add(pages * PAGE_BYTES)
            }
            None => aligned,
        };
        if self.list.len() == WALKS {
            self.list.remove(0);
        }
        let pages = (window.end - window.start) / PAGE_BYTES;
        self.list.push(Walk { next: window.end, pages, awaited: false });
        window
    }

    /// A walk in whose last window, the largest, this address is.
    fn at(&mut self, addr: u64) -> Option<&mut Walk> {
        let is_here = |walk: &&mut Walk| {
            let begin = walk.next.saturating_sub(walk.pages * PAGE_BYTES);
            walk.pages == WINDOW_PAGES_MAX && (begin..walk.next).contains(&addr)
        };
        self.list.iter_mut().find(is_here)
    }
}

impl Core {
    /// Of runs that a touch brings along, takes those that a walk is about to map together with what
    /// lies between them. If it does not come, which it is believed once, who touches them finds out.
    pub(crate) fn leave_to_walk(
        &mut self,
        space: SpaceNo,
        region: Region,
        addr: u64,
        runs: &mut Vec<Run>,
    ) {
        let walk = self.space_mut(space).and_then(|s| s.walks.at(addr));
        let Some(walk) = walk.filter(|walk| !walk.awaited) else { return };
        let all = runs.len();
        runs.retain(|run| {
            let start = (run.place.index * PAGE_BYTES).wrapping_sub(region.bias);
            run.place.segment.0 != region.file || start < walk.next
        });
        walk.awaited = runs.len() < all;
    }

    /// Resident pages with the same protection that nobody samples, in the window of a fault on a
    /// page of this region: all but the page itself.
    pub(crate) fn along(
        &mut self,
        space: SpaceNo,
        region: Region,
        place: Place,
        dirty: bool,
    ) -> Vec<Run> {
        // Elsewhere some may be private copies; and one that is larger than the machine's is a window
        // of its own.
        if !region.shared && !region.read_only || self.machine_pages > 1 {
            return Vec::new();
        }
        let addr_of = |index: u64| (index * PAGE_BYTES).wrapping_sub(region.bias);
        let addr = addr_of(place.index);
        let low = place.index / WINDOW_PAGES * WINDOW_PAGES;
        let Some(s) = self.space_mut(space) else { return Vec::new() };
        let Some((mapped, _)) = s.regions.get_key_value(&addr) else { return Vec::new() };
        let mapped = mapped.clone();
        let back = (addr - mapped.start).min((place.index - low) * PAGE_BYTES);
        let ahead = (low + WINDOW_PAGES - place.index) * PAGE_BYTES;
        let aligned = addr - back..mapped.end.min(addr.saturating_add(ahead));
        let window = s.walks.window(addr, aligned);
        let first = region.index(window.start);
        let end = first + (window.end.min(mapped.end) - window.start).div_ceil(PAGE_BYTES);
        let mut runs = Vec::new();
        for index in (first..end).filter(|index| *index != place.index) {
            let at = Place { index, ..place };
            let fits = self.brain.is_mapped(at)
                && self.brain.page(at).is_some_and(|page| {
                    let word = self.word(page);
                    word.idle() && !word.doomed() && word.dirty() == dirty
                });
            if fits {
                Run::add(&mut runs, at);
            }
        }
        runs
    }

    /// How many pages behind one whose first store this is become writable with it: as
    /// [`stored_next`](pagekeeper_frames::Brain::stored_next) says, and as far as nobody else has to
    /// do with them.
    pub(crate) fn stored_next(&self, space: SpaceNo, region: Region, place: Place) -> u32 {
        let Some(file) = self.file(region.file).filter(|_| region.shared) else { return 0 };
        let end = match (&file.heap, self.quiet(region.file)) {
            (Some(_), _) => u64::MAX,
            (None, Some(quiet)) => quiet.whole_pages,
            (None, None) => return 0,
        };
        self.brain.stored_next(place, |next| {
            if next.index >= end {
                return false;
            }
            let addr = (next.index * PAGE_BYTES).wrapping_sub(region.bias);
            let page = self.brain.page(next).map(|page| self.word(page));
            page.is_some_and(|word| word.idle() && !word.doomed() && !word.dirty())
                && !self.unwritable(next)
                && !self.dropping(next)
                && self.region(space, addr) == Some(region)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_where_faults_go_on() {
        let mut walks = Walks::default();
        let page = |number: u64| number * PAGE_BYTES;
        let mut fault = |number: u64| {
            let low = number / WINDOW_PAGES * WINDOW_PAGES;
            let window = walks.window(page(number), page(low)..page(low + WINDOW_PAGES));
            (window.start / PAGE_BYTES, window.end / PAGE_BYTES)
        };
        assert_eq!(fault(3), (0, 16));
        assert_eq!(fault(16), (16, 80));
        // Other walks go on beside it.
        assert_eq!(fault(10_003), (10_000, 10_016));
        assert_eq!(fault(80), (80, 336));
        assert_eq!(fault(10_016), (10_016, 10_080));
        assert_eq!(fault(336), (336, 848));
        assert_eq!(fault(848), (848, 1360));
        // A page or two of what lies between were seen to be touched.
        assert_eq!(fault(1362), (1362, 1874));
        // Touches here and there do not.
        for number in (32_000..64_000).step_by(3_200) {
            assert_eq!(fault(number), (number, number + 16));
        }
        assert_eq!(fault(1874), (1872, 1888), "forgotten meanwhile");
    }
}
