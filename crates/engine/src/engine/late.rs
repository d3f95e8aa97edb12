//! Mapping where the kernel cannot write-protect a page as it maps it (Linux before 6.4).
//!
//! The page is protected a moment later. Who stores to it in between raises no fault, so a page of a
//! shared mapping is compared: one that is not what it was before anybody could see it is dirty.
//! (A page that was stored to with what it held already is none the worse for counting as clean.)

use crate::engine::Engine;
use crate::engine::spaces::Region;
use crate::port::{Mapped, PAGE_BYTES, Port, PortError, SpaceNo};
use pagekeeper_frames::{Place, Run, Segment};
use std::ops::Range;

/// Most bytes that are mapped and compared at a time: no more than a short buffer holds.
const COMPARED_BYTES_MAX: u64 = 16 << 10;

impl<P: Port> Engine<P> {
    /// Maps pinned pages at a range of addresses that maps what it did, write-protected or not, and
    /// `wakes` who waits there, or leaves that to the caller.
    pub(crate) fn map_range(
        &self,
        space: SpaceNo,
        region: Region,
        range: Range<u64>,
        protect: bool,
        wakes: bool,
    ) -> Result<Mapped, PortError> {
        if !protect || self.port.maps_protected() {
            return self.where_it_was(space, region, range.clone(), !protect, |pages| {
                self.port.map(space, range.start, pages, protect, wakes)
            });
        }
        let pages = (range.end - range.start) / PAGE_BYTES;
        let mapped = if region.shared {
            self.map_and_compare(space, region, range.clone())
        } else {
            // A store makes a copy of its own, and the next one is seen.
            self.map_privately(space, region, range.clone())
        };
        // Whoever waits for what could not be had touches again.
        if wakes || mapped.is_err() {
            self.port.wake(space, range.start, pages)?;
        }
        mapped
    }

    /// Maps pinned pages of a private mapping, and protects them.
    fn map_privately(
        &self,
        space: SpaceNo,
        region: Region,
        range: Range<u64>,
    ) -> Result<Mapped, PortError> {
        let mut shown = 0;
        let mapped = self.where_it_was(space, region, range.clone(), false, |pages| {
            shown = pages;
            self.port.map(space, range.start, pages, false, false)
        });
        // Not while the layout is held: this waits until forks are known. What is mapped there
        // instead by now takes a fault more.
        let _ = self.until_settled(|| self.port.protect(space, range.start, shown));
        mapped
    }

    /// Maps pinned pages of a shared mapping, protects them, and finds out which were stored to.
    fn map_and_compare(
        &self,
        space: SpaceNo,
        region: Region,
        range: Range<u64>,
    ) -> Result<Mapped, PortError> {
        let step = COMPARED_BYTES_MAX.max(self.page_bytes);
        let mut mapped = Mapped { existed: false };
        let mut from = range.start;
        while from < range.end {
            // Whole pages of the cache's, but for the first, of which a part may be asked for.
            let offset = from.wrapping_add(region.bias);
            let end = (from - offset % self.page_bytes + step).min(range.end);
            mapped.existed |= self.map_part_and_compare(space, region, from..end)?.existed;
            from = end;
        }
        Ok(mapped)
    }

    /// [`map_and_compare`](Self::map_and_compare) of what two short buffers hold, or of one page.
    fn map_part_and_compare(
        &self,
        space: SpaceNo,
        region: Region,
        range: Range<u64>,
    ) -> Result<Mapped, PortError> {
        let offset = range.start.wrapping_add(region.bias);
        let index = offset / self.page_bytes;
        let end = (offset + range.end - range.start).div_ceil(self.page_bytes);
        let place = Place { segment: Segment(region.file), index };
        let run = Run { place, pages: (end - index) as u32, demanded: 0 };
        // Who touches one that nobody may make dirty now waits until that is over.
        let is_unwritable = {
            let core = self.lock();
            run.places().any(|place| core.unwritable(place))
        };
        if is_unwritable {
            return Err(PortError::Gone);
        }
        let bytes = (u64::from(run.pages) * self.page_bytes) as usize;
        let (mut before, mut after) = (self.take_buffer(bytes)?, self.take_buffer(bytes)?);
        let peek = |data: &mut [u8]| self.port.peek(region.file, index, data);
        let mapped = peek(&mut before[..bytes]).and_then(|()| {
            let mapped = self.where_it_was(space, region, range.clone(), false, |pages| {
                self.port.map(space, range.start, pages, false, false)
            });
            // Also where only some could be mapped, and in children that were forked meanwhile.
            let protected = self.protect_everywhere(run);
            // What cannot be looked at may have been stored to, and what can be stored to will be.
            let is_known = protected.is_ok() && peek(&mut after[..bytes]).is_ok();
            let page_bytes = self.page_bytes as usize;
            let pages = before[..bytes].chunks(page_bytes).zip(after[..bytes].chunks(page_bytes));
            for (place, (before, after)) in run.places().zip(pages) {
                if !is_known || before != after {
                    self.stored_to(place);
                }
            }
            mapped
        });
        self.give_buffer(before);
        self.give_buffer(after);
        mapped
    }

    /// A pinned page is dirty, if nobody noticed before.
    fn stored_to(&self, place: Place) {
        let mut core = self.lock();
        let page = core.brain.page(place).expect("pinned pages are numbered");
        if core.word(page).dirty() {
            return;
        }
        let job = self.make_dirty(&mut core, Run { place, pages: 1, demanded: 0 });
        drop(core);
        self.run_later(job, None);
    }
}
