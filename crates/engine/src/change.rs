//! Changes of files by others: what clients write by system calls of their own while the cache
//! stands aside (fences), and what happened to a file unseen.

use crate::core::{Core, Fence};
use crate::engine::{Again, Engine};
use crate::port::{FileNo, PAGE_BYTES, Port, PortError, Version};
use crate::word::State;
use pagekeeper_frames::{Input, Place, Run, Segment};
use pagekeeper_policy::Page;
use std::ops::Range;

/// What a client is about to do to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Overwrite bytes: cached pages are patched with them afterwards.
    Write,
    /// Set the length.
    Truncate,
    /// Anything else: dirty pages are written back before, cached pages dropped after.
    Other,
}

impl<P: Port> Engine<P> {
    /// A client is about to change a range. From now on its pages are not written back, and, but
    /// for [`Change::Write`], not fetched; returns the ticket for
    /// [`change_end`](Self::change_end) when none of them is in motion any more.
    ///
    /// # Errors
    /// [`PortError::Missing`]: no such file. For [`Change::Other`]: the write-back of dirty pages
    /// failed.
    pub fn change_begin(
        &self,
        file: FileNo,
        offset: u64,
        len: u64,
        change: Change,
    ) -> Result<u64, PortError> {
        let first = offset / PAGE_BYTES;
        let end = offset.saturating_add(len).div_ceil(PAGE_BYTES).max(first + 1);
        let ticket = self.put_fence(file, first..end, change)?;
        let mut again = Again::new();
        if change == Change::Other {
            // What is being fetched for a store turns dirty yet.
            let filled = |core: &mut Core| {
                let pages = core.pages_in(file, first..end);
                let filling = pages.iter().any(|(p, _)| core.word(*p).state() == State::Filling);
                (!filling).then_some(())
            };
            drop(self.wait_until(&mut again, filled));
            self.serve_all(&mut again);
            if let Err(error) = self.flush(file, first..end) {
                self.take_fence(file, ticket);
                return Err(error);
            }
            let mut core = self.lock();
            for fence in core.file_mut(file).into_iter().flat_map(|f| &mut f.fences) {
                fence.preparing &= fence.ticket != ticket;
            }
        }
        // The fence lets no new write-back begin, so that this ends.
        let settled = |core: &mut Core| {
            let moving = if change == Change::Write {
                core.pages_in(file, first..end).iter().any(|&(page, _)| {
                    let word = core.word(page);
                    let leaves = word.doomed() || word.state() == State::Leaving;
                    word.state() == State::Cleaning || leaves && word.dirty()
                })
            } else {
                core.in_motion(file, first..end)
            };
            (!moving).then_some(())
        };
        drop(self.wait_until(&mut again, settled));
        self.serve_all(&mut again);
        Ok(ticket)
    }

    fn put_fence(&self, file: FileNo, pages: Range<u64>, change: Change) -> Result<u64, PortError> {
        let mut core = self.lock();
        let ticket = core.next_ticket;
        let fences = &mut core.file_mut(file).ok_or(PortError::Missing)?.fences;
        let mut overlapped = false;
        for other in fences.iter_mut() {
            if other.first < pages.end && pages.start < other.end {
                other.overlapped = true;
                overlapped = true;
            }
        }
        let preparing = change == Change::Other;
        let (first, end) = (pages.start, pages.end);
        fences.push(Fence { ticket, change, first, end, overlapped, preparing });
        core.next_ticket += 1;
        Ok(ticket)
    }

    /// A change is over: what it held up goes on.
    fn take_fence(&self, file: FileNo, ticket: u64) {
        let mut core = self.lock();
        let Some(f) = core.file_mut(file) else { return };
        let Some(at) = f.fences.iter().position(|f| f.ticket == ticket) else { return };
        let fence = f.fences.swap_remove(at);
        // Victims that had to stay because of the fence.
        let mut jobs = Vec::new();
        for (_, place) in core.pages_in(file, fence.first..fence.end) {
            if core.brain.is_stuck(place) && !core.fenced(place) {
                jobs.push(self.decide(&mut core, Input::Released { place }));
            }
        }
        let mut again: Again = core.unpark_range(file, fence.first..fence.end).into();
        self.rested();
        drop(core);
        for job in jobs {
            self.run(job, None, &mut again);
        }
        self.serve_all(&mut again);
    }

    /// The client's system call returned: `len` bytes at `offset` changed. `bytes` gives what was
    /// written (called with offset and buffer); without it the clean cached pages of the announced
    /// range are dropped and read again when they are needed.
    pub fn change_end(
        &self,
        file: FileNo,
        ticket: u64,
        offset: u64,
        len: u64,
        bytes: Option<impl FnMut(u64, &mut [u8]) -> Result<(), PortError>>,
    ) {
        let known = |core: &Core| {
            core.file(file).and_then(|f| f.fences.iter().find(|f| f.ticket == ticket).copied())
        };
        let Some(fence) = known(&self.lock()) else { return };
        let mut again = Again::new();
        let patched = match bytes {
            Some(bytes) => self.patch_all(file, ticket, offset, len, bytes, &mut again),
            None => false,
        };
        self.follow_size(file, true, &mut again);
        if !patched {
            self.drop_pages(file, fence.first..fence.end, false, &mut again);
        }
        self.take_fence(file, ticket);
        self.serve_all(&mut again);
    }

    /// Brings the changed bytes into the cached pages. False if some could not be had.
    fn patch_all(
        &self,
        file: FileNo,
        ticket: u64,
        offset: u64,
        len: u64,
        mut bytes: impl FnMut(u64, &mut [u8]) -> Result<(), PortError>,
        again: &mut Again,
    ) -> bool {
        let end = offset.saturating_add(len);
        if len == 0 {
            return true;
        }
        // Pages absent now will be fetched with the change in them.
        let pages = self.lock().pages_in(file, offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES));
        let mut patched = true;
        for (_, place) in pages {
            let Some(page) = self.pin_at_rest(place, again) else { continue };
            let from = (place.index * PAGE_BYTES).max(offset);
            let to = ((place.index + 1) * PAGE_BYTES).min(end);
            let mut buffer = [0u8; PAGE_BYTES as usize];
            let piece = &mut buffer[..(to - from) as usize];
            let overlapped = self.lock().file(file).is_some_and(|f| {
                f.fences.iter().any(|fence| fence.ticket == ticket && fence.overlapped)
            });
            let done = if overlapped {
                self.patch_from_storage(place, from, piece)
            } else {
                bytes(from - offset, piece).and_then(|()| self.port.patch(file, from, piece))
            };
            self.unpin(page);
            patched &= done.is_ok();
        }
        patched
    }

    /// Two clients wrote the same page at once. Whose bytes came last only storage knows.
    fn patch_from_storage(
        &self,
        place: Place,
        from: u64,
        piece: &mut [u8],
    ) -> Result<(), PortError> {
        let mut buffer = self.take_buffer(PAGE_BYTES as usize)?;
        let page = &mut buffer[..PAGE_BYTES as usize];
        // One at a time, so that what was read last is patched in last.
        let one = self.patching.lock().expect("patching");
        let file = place.segment.0;
        let patched = self.port.load(file, place.index, page).and_then(|_| {
            let at = (from % PAGE_BYTES) as usize;
            piece.copy_from_slice(&page[at..at + piece.len()]);
            self.port.patch(file, from, piece)
        });
        drop(one);
        self.give_buffer(buffer);
        patched
    }

    /// Pins a page when it is at rest, if it is resident then.
    fn pin_at_rest(&self, place: Place, again: &mut Again) -> Option<Page> {
        let pin = |core: &mut Core| match core.state(place) {
            (Some(page), State::Resident) => {
                core.word(page).pin();
                Some(Some(page))
            }
            (_, State::Absent) => Some(None),
            _ => None,
        };
        self.wait_until(again, pin).1
    }

    /// Looks at the file's length and version. Pages beyond the end go; `own` says that the change
    /// was made through us, otherwise clean pages are dropped, since their content may be old.
    /// Returns true if the file had been changed by somebody else.
    pub fn refresh_size(&self, file: FileNo, own: bool) -> bool {
        let mut again = Again::new();
        let foreign = self.follow_size(file, own, &mut again);
        self.serve_all(&mut again);
        foreign
    }

    fn follow_size(&self, file: FileNo, own: bool, again: &mut Again) -> bool {
        // One at a time, or an older look could be followed last.
        let _one = self.resizing.lock().expect("resizing");
        let Ok(now) = self.port.version(file) else { return false };
        let (before, pages_before) = {
            let core = self.lock();
            let Some(f) = core.file(file) else { return false };
            (f.version, f.pages)
        };
        if now == before {
            let stale = self.lock().file_mut(file).is_some_and(|f| std::mem::take(&mut f.stale));
            if stale {
                self.drop_old(file, again);
            }
            return stale;
        }
        let pages = now.size_bytes.div_ceil(PAGE_BYTES);
        if now.size_bytes < before.size_bytes {
            self.shrink(file, now.size_bytes, pages, again);
        } else if pages > pages_before {
            // Before a fault may need the new pages.
            let _ = self.port.resize(file, pages);
        }
        let mut core = self.lock();
        self.follow(&mut core, file, now, pages);
        drop(core);
        if !own {
            self.drop_old(file, again);
        }
        !own
    }

    /// Clean pages may be old: they go. Those that a program holds go another time.
    fn drop_old(&self, file: FileNo, again: &mut Again) {
        self.drop_pages(file, 0..u64::MAX, false, again);
        let mut core = self.lock();
        let pages = core.pages_in(file, 0..u64::MAX);
        let held = pages.iter().any(|(page, _)| core.word(*page).holds() > 0);
        if let Some(f) = core.file_mut(file) {
            f.stale |= held;
        }
    }

    fn follow(&self, core: &mut Core, file: FileNo, now: Version, pages: u64) {
        let Some(f) = core.file_mut(file) else { return };
        // New length may be a hole.
        f.holes |= now.size_bytes > f.version.size_bytes;
        f.version = now;
        if f.pages != pages {
            f.pages = pages;
        }
        if core.brain.pages(Segment(file)) != pages {
            self.decide(core, Input::Segment { segment: Segment(file), pages });
        }
    }

    /// The file became shorter: what is beyond its end is gone, dirty or not, and the rest of the
    /// last page reads as zero.
    fn shrink(&self, file: FileNo, size_bytes: u64, pages: u64, again: &mut Again) {
        if let Some(f) = self.lock().file_mut(file) {
            f.version.size_bytes = size_bytes;
            f.pages = pages;
        }
        self.drop_pages(file, pages..u64::MAX, true, again);
        let _ = self.port.resize(file, pages);
        let tail = (size_bytes % PAGE_BYTES) as usize;
        if tail != 0 {
            let place = Place { segment: Segment(file), index: pages - 1 };
            if let Some(page) = self.pin_at_rest(place, again) {
                let zeros = [0u8; PAGE_BYTES as usize];
                let _ = self.port.patch(file, size_bytes, &zeros[tail..]);
                self.unpin(page);
            }
        }
    }

    /// We are about to write to the file ourselves. If its times are not those we know, somebody
    /// else was there before.
    pub(crate) fn begin_own_write(&self, file: FileNo) {
        let known = {
            let mut core = self.lock();
            let Some(f) = core.file_mut(file) else { return };
            f.own_writes += 1;
            (f.own_writes == 1 && f.fences.is_empty()).then_some(f.version)
        };
        let Some(known) = known else { return };
        if let Ok(now) = self.port.version(file)
            && now != known
            && let Some(f) = self.lock().file_mut(file)
        {
            f.stale = true;
        }
    }

    /// The write is done: the times it left are no sign of somebody else.
    pub(crate) fn end_own_write(&self, file: FileNo) {
        let now = self.port.version(file);
        let mut core = self.lock();
        let Some(f) = core.file_mut(file) else { return };
        f.own_writes -= 1;
        if let Ok(now) = now {
            f.version.mtime_ns = now.mtime_ns;
            f.version.ctime_ns = now.ctime_ns;
        }
    }

    /// The file was written to, perhaps by us: if it was somebody else, clean pages are dropped.
    pub fn look_for_changes(&self, file: FileNo) {
        {
            let core = self.lock();
            let Some(f) = core.file(file) else { return };
            if f.own_writes > 0 || !f.fences.is_empty() {
                return;
            }
        }
        self.refresh_size(file, false);
    }

    /// Drops clean pages and forgets a file that nobody maps or has open. Its dirty pages were
    /// flushed before; if some are dirty still, it stays and false is returned.
    pub fn close_file(&self, file: FileNo) -> bool {
        let mut again = Again::new();
        self.drop_pages(file, 0..u64::MAX, false, &mut again);
        self.serve_all(&mut again);
        let mut core = self.lock();
        let left = !core.pages_in(file, 0..u64::MAX).is_empty();
        let used = core.file(file).is_none_or(|f| !f.mappings.is_empty() || !f.fences.is_empty());
        if left || used {
            return false;
        }
        for (page, _) in core.brain.numbered(Segment(file), 0, u64::MAX) {
            core.table.release(page);
        }
        core.decide(Input::Close { segment: Segment(file) });
        // The counts stay for the report; the name keeps its slot.
        if let Some(f) = core.file_mut(file) {
            f.pages = 0;
        }
        true
    }

    /// Every resident page of a run that is dirty, for tests and reports.
    pub fn is_dirty(&self, run: Run) -> bool {
        let core = self.lock();
        core.pages_in(run.place.segment.0, run.place.index..run.place.index + u64::from(run.pages))
            .iter()
            .any(|(page, _)| core.word(*page).dirty())
    }
}
