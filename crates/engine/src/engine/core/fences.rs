//! Ranges of files that clients are changing, and what may not be done there meanwhile.

use super::{Core, Fence};
use crate::engine::change::Change;
use crate::port::FileNo;
use pagekeeper_frames::Place;
use std::ops::Range;

impl Core {
    pub(crate) fn fences(&self, place: Place) -> impl Iterator<Item = &Fence> {
        let fences = self.file(place.segment.0).map_or(&[][..], |f| &f.fences);
        fences.iter().filter(move |fence| (fence.first..fence.end).contains(&place.index))
    }

    /// Puts a fence around pages of a file; its ticket.
    pub(crate) fn put_fence(
        &mut self,
        file: FileNo,
        pages: Range<u64>,
        change: Change,
    ) -> Option<u64> {
        self.bar_overwrites(file);
        self.add_fence(file, pages, change, u64::MAX)
    }

    /// As [`put_fence`](Self::put_fence), whatever clients overwrite.
    pub(crate) fn add_fence(
        &mut self,
        file: FileNo,
        pages: Range<u64>,
        change: Change,
        size_bytes_max: u64,
    ) -> Option<u64> {
        let ticket = self.next_ticket;
        let (first, end) = (pages.start, pages.end);
        let preparing = change != Change::Drop;
        let f = self.file_mut(file)?;
        f.fences_put += 1;
        f.fences.push(Fence { ticket, change, first, end, preparing, size_bytes_max });
        self.next_ticket += 1;
        Some(ticket)
    }

    /// Takes a fence away.
    pub(crate) fn take_fence(&mut self, file: FileNo, ticket: u64) -> Option<Fence> {
        let f = self.file_mut(file)?;
        let at = f.fences.iter().position(|f| f.ticket == ticket)?;
        let fence = f.fences.swap_remove(at);
        self.allow_overwrites(file);
        Some(fence)
    }

    /// From now on the pages of a fence are not written back.
    pub(crate) fn raise_fence(&mut self, file: FileNo, ticket: u64) {
        for fence in self.file_mut(file).into_iter().flat_map(|f| &mut f.fences) {
            fence.preparing &= fence.ticket != ticket;
        }
    }

    /// A change of the page is open: writing it back could undo the change.
    pub(crate) fn fenced(&self, place: Place) -> bool {
        self.fences(place).any(|fence| !fence.preparing)
    }

    /// A page that is dirty stays in memory, and dirty, unless somebody asks for its write-back.
    pub(crate) fn stays_dirty(&self, place: Place) -> bool {
        let file = place.segment.0;
        self.file(file).is_some_and(|f| f.on_request) || self.is_overdue(file) || self.fenced(place)
    }

    /// A change of the page is open after which it is read anew, so that it is not fetched before.
    /// (A page fetched while bytes of it are overwritten is patched like any other.)
    pub(crate) fn unfetchable(&self, place: Place) -> bool {
        self.fences(place).any(|fence| !matches!(fence.change, Change::Write | Change::Hold))
    }

    /// A change of the page is open beside which nobody may make it dirty.
    pub(crate) fn unwritable(&self, place: Place) -> bool {
        let holds = |change| matches!(change, Change::Other | Change::Hold | Change::Drop);
        self.fences(place).any(|fence| holds(fence.change))
    }

    /// The page's content is on its way out for good: nobody may see it any more.
    pub(crate) fn dropping(&self, place: Place) -> bool {
        self.fences(place).any(|fence| fence.change == Change::Drop)
    }
}
