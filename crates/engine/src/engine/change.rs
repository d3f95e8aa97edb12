//! Changes of files by clients: what they write by system calls of their own while the cache stands
//! aside (fences).

use crate::engine::core::{Core, Fence, File};
use crate::engine::flush::Leaving;
use crate::engine::look::Own;
use crate::engine::word::State;
use crate::engine::{Again, Engine};
use crate::port::{FileNo, Port, PortError, Told};
use pagekeeper_frames::{Place, Run, Segment};
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
    /// Nothing: what is dirty is written back, and nobody writes until it is over (a fork, whose
    /// child gets what is stored).
    Hold,
    /// Nobody wants the content any more, or it is not to be looked at yet: no fault is served meanwhile.
    Drop,
}

/// Of a change that gives no bytes: what is cached of its range and clean is dropped.
pub(crate) const NO_BYTES: Option<Bytes> = None;
type Bytes = fn(u64, &mut [u8]) -> Result<(), PortError>;
/// Bytes that storage has, and nobody else.
pub(crate) const STORED: Bytes = |_, _| Err(PortError::Missing);

impl Change {
    /// The length of a file or the place of its content changes.
    fn unsettles(self) -> bool {
        matches!(self, Change::Truncate | Change::Other)
    }
}

impl<P: Port> Engine<P> {
    /// A client is about to change a range. From now on its pages are not written back, and, but
    /// for [`Change::Write`], not fetched; returns the ticket for
    /// [`change_end`](Self::change_end) when none of them is in motion any more, and no earlier
    /// change of any of them is open.
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
        let first = offset / self.page_bytes;
        let end = offset.saturating_add(len).div_ceil(self.page_bytes).max(first + 1);
        let reach = if change == Change::Truncate { offset } else { offset.saturating_add(len) };
        let mut again = Again::new();
        self.look_before_change(file);
        loop {
            // Whoever makes the file longer changes its last page too: what lies behind the end
            // there becomes content.
            let tail = self.tail(file, reach)?;
            let pages = tail.map_or(first, |at| first.min(at / self.page_bytes))..end;
            let fenced = self.fence_off(file, pages.clone(), change, &mut again);
            self.serve_all(&mut again);
            let ticket = fenced?;
            self.settle_growth(file, ticket, &mut again);
            self.serve_all(&mut again);
            match self.tail(file, reach) {
                Ok(None) => return Ok(ticket),
                Ok(Some(at)) if pages.contains(&(at / self.page_bytes)) => {
                    self.clear_behind(file, at, &mut again);
                    self.serve_all(&mut again);
                    return Ok(ticket);
                }
                // The file became shorter before the fence stood.
                Ok(Some(_)) => self.take_fence(file, ticket),
                Err(error) => {
                    self.take_fence(file, ticket);
                    return Err(error);
                }
            }
        }
    }

    /// Nobody makes the file longer without a message now: what was added so is followed, before
    /// something else becomes of it.
    fn settle_growth(&self, file: FileNo, ticket: u64, again: &mut Again) {
        let mut core = self.lock();
        if core.is_behind(file) {
            drop(core);
            self.follow_size(file, &Own::Change(ticket, 0..0), again);
            core = self.lock();
        }
        if let Some(overwrites) = &core.overwrites {
            overwrites.settle(file);
        }
    }

    /// Where the file ends now, if that is within a page and a change that reaches so far makes it
    /// longer.
    fn tail(&self, file: FileNo, reach: u64) -> Result<Option<u64>, PortError> {
        let size = self.port.version(file)?.size_bytes;
        Ok((reach > size && !size.is_multiple_of(self.page_bytes)).then_some(size))
    }

    /// Programs may have stored behind the end of the file, in its last page. A file that grows
    /// over it has zeros there. (What a program holds of the page lies before the end.)
    pub(crate) fn clear_behind(&self, file: FileNo, size_bytes: u64, again: &mut Again) {
        let place = Place { segment: Segment(file), index: size_bytes / self.page_bytes };
        if let Some(page) = self.pin_at_rest(place, again) {
            let zeros = vec![0; self.page_bytes as usize];
            let from = (size_bytes % self.page_bytes) as usize;
            let _ = self.port.patch(file, size_bytes, &zeros[from..]);
            self.unpin(page);
        }
    }

    /// Puts a fence around pages, and waits until they are at rest behind it.
    pub(crate) fn fence_off(
        &self,
        file: FileNo,
        pages: Range<u64>,
        change: Change,
        again: &mut Again,
    ) -> Result<u64, PortError> {
        let ticket = self.put_fence(file, pages.clone(), change)?;
        // One after the other, as the kernel lets system calls change a file: only then is it known
        // where an append goes, and which of two writes to the same bytes comes last.
        let alone = |core: &mut Core| {
            let fences = core.file(file).map_or(&[][..], |f| &f.fences);
            let earlier =
                |f: &Fence| f.ticket < ticket && f.first < pages.end && pages.start < f.end;
            (!fences.iter().any(earlier)).then_some(())
        };
        let (mut core, ()) = self.wait_until(again, alone);
        let stored_first = matches!(change, Change::Other | Change::Hold);
        if !stored_first && change != Change::Drop && core.presumes_any(file) {
            let settled = match change {
                Change::Write => core.disturb_presumptions(file),
                _ => pages.clone(),
            };
            drop(core);
            self.settle_presumed(file, settled, again);
            core = self.lock();
        }
        if !stored_first {
            core.raise_fence(file, ticket);
        }
        drop(core);
        if stored_first {
            // What is being fetched for a store turns dirty yet. What is fetched from now on is not for one:
            // the fence bars stores before it is raised.
            self.await_fetches(file, pages.clone(), again);
            self.end_late_maps(file, pages.clone(), again);
            if let Err(error) = self.write_out(file, pages.clone()) {
                self.take_fence(file, ticket);
                return Err(error);
            }
            self.lock().raise_fence(file, ticket);
        }
        if change == Change::Hold {
            // Nothing is dirty any more, nor becomes so.
            return Ok(ticket);
        }
        // The fence lets no new write-back begin, so that this ends.
        let settled = |core: &mut Core| {
            let moving = if change == Change::Write {
                core.pages_in(file, pages.clone()).iter().any(|&(page, _)| {
                    let word = core.word(page);
                    let leaves = word.doomed() || word.state() == State::Leaving;
                    word.state() == State::Cleaning || leaves && word.dirty()
                })
            } else {
                core.in_motion(file, pages.clone())
            };
            (!moving).then_some(())
        };
        drop(self.wait_until(again, settled));
        Ok(ticket)
    }

    /// Has everybody wait who wants to see something of a file, until the fence is taken away
    /// ([`take_fence`](Self::take_fence)). For one of which nothing is in memory; none if there is no such file.
    pub(crate) fn hold_off(&self, file: FileNo) -> Option<u64> {
        self.lock().put_fence(file, 0..u64::MAX, Change::Drop)
    }

    /// Waits until those pages of a range that are on their way into memory now have come, or have failed
    /// to.
    pub(crate) fn await_fetches(&self, file: FileNo, pages: Range<u64>, again: &mut Again) {
        let ticket = {
            let mut core = self.lock();
            let pages = core.pages_in(file, pages).into_iter().map(|(page, _)| page);
            let filling = pages.filter(|page| core.word(*page).state() == State::Filling).collect();
            let ticket = core.next_ticket;
            core.next_ticket += 1;
            core.arrivals.expect(ticket, filling);
            ticket
        };
        drop(self.wait_until(again, |core| core.arrivals.are_over(ticket).then_some(())));
        self.serve_all(again);
    }

    /// Where a page is mapped before it is protected, who began that before the fence stood may yet find
    /// that it was stored to: it is dirty then, and to be written back before the change. Who begins it
    /// later sees the fence, so that each page has to be seen without a pin once.
    fn end_late_maps(&self, file: FileNo, pages: Range<u64>, again: &mut Again) {
        if self.port.maps_protected() {
            return;
        }
        let resident = self.lock().pages_in(file, pages);
        for (_, place) in resident {
            let is_let_go = |core: &mut Core| {
                let pins = core.brain.page(place).map_or(0, |page| core.word(page).pins());
                (pins == 0).then_some(())
            };
            drop(self.wait_until(again, is_let_go));
        }
    }

    fn put_fence(&self, file: FileNo, pages: Range<u64>, change: Change) -> Result<u64, PortError> {
        let mut core = self.lock();
        let ticket = core.put_fence(file, pages, change).ok_or(PortError::Missing)?;
        if change.unsettles() {
            self.unsettle(&mut core, file);
        }
        Ok(ticket)
    }

    /// The file's length or the place of its content begins to change.
    pub(crate) fn unsettle(&self, core: &mut Core, file: FileNo) {
        let Some(f) = core.file_mut(file) else { return };
        f.unsettled += 1;
        f.unsettlings += 1;
        self.port.announce(file, None);
    }

    /// A change that [`unsettle`](Self::unsettle) began is over.
    pub(crate) fn settle(&self, core: &mut Core, file: FileNo) {
        if let Some(f) = core.file_mut(file) {
            f.unsettled -= 1;
            self.announce(f, file);
        }
    }

    /// Tells programs the version of a file that is not being changed.
    pub(crate) fn announce(&self, f: &File, file: FileNo) {
        if f.unsettled == 0 {
            // Of a file that was changed outside, or may be without its showing, no time is the one that
            // programs look for.
            let stamp = if f.has_no_time() { 0 } else { f.version.stamp() };
            self.port.announce(file, Some(Told { size_bytes: f.version.size_bytes, stamp }));
        }
    }

    /// A change is over: what it held up goes on.
    pub(crate) fn take_fence(&self, file: FileNo, ticket: u64) {
        let mut core = self.lock();
        let Some(fence) = core.take_fence(file, ticket) else { return };
        if fence.change.unsettles() {
            self.settle(&mut core, file);
        }
        // Victims that had to stay because of the fence.
        let jobs = self.release(&mut core, file, fence.first..fence.end);
        let mut again: Again = core.unpark_range(file, fence.first..fence.end).into();
        self.rested();
        drop(core);
        for job in jobs {
            self.run(job, None, &mut again);
        }
        self.serve_all(&mut again);
    }

    /// A client ends what it overwrote without having asked, and cannot end by itself; the rest as
    /// for [`change_end`](Self::change_end).
    ///
    /// # Errors
    /// [`PortError::Gone`]: it holds nothing of this file.
    pub fn overwrite_end(
        &self,
        file: FileNo,
        client: u32,
        offset: u64,
        len: u64,
        bytes: Option<impl FnMut(u64, &mut [u8]) -> Result<(), PortError>>,
    ) -> Result<(), PortError> {
        let ticket = {
            let mut core = self.lock();
            if core.overwrites.as_ref().and_then(|o| o.holder(file)) != Some(client) {
                return Err(PortError::Gone);
            }
            core.meet_overwrite(file);
            // From here on it is a change like any other, and pages may move.
            if let Some(overwrites) = &core.overwrites {
                overwrites.release(file);
            }
            core.file_mut(file).and_then(|f| f.overwrite.take()).ok_or(PortError::Gone)?
        };
        self.change_end(file, ticket, offset, len, bytes);
        Ok(())
    }

    /// The client's system call returned: `len` bytes at `offset` changed. `bytes` gives what was
    /// written (called with offset and buffer); without it the clean cached pages of the announced
    /// range are dropped and read again when they are needed. Where an append went is not known when
    /// somebody outside appended, too: without `bytes`, what was written is what storage has there,
    /// which dirty pages are given, and all that is clean may be old.
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
        let is_write = fence.change == Change::Write;
        let patched = match bytes {
            Some(bytes) if is_write => self.patch_all(file, offset, len, bytes, &mut again),
            None if is_write => {
                self.patch_all(file, offset, len, STORED, &mut again);
                false
            }
            _ => false,
        };
        let is_unsure = is_write && !patched && len > 0;
        if is_unsure && let Some(f) = self.lock().file_mut(file) {
            f.foreign.find();
        }
        if len > 0 {
            self.port.close_time(file);
        }
        let changed = if is_write { offset..offset.saturating_add(len) } else { 0..u64::MAX };
        self.follow_size(file, &Own::Change(ticket, changed), &mut again);
        if is_unsure {
            self.drop_old(file, &mut again);
        }
        if fence.change == Change::Other
            && let Some(f) = self.lock().file_mut(file)
        {
            // Blocks may have been taken away.
            f.holes = true;
        }
        if !patched {
            self.drop_pages(file, fence.first..fence.end, Leaving::Clean, &mut again);
        }
        self.take_fence(file, ticket);
        self.serve_all(&mut again);
    }

    /// Whether storage has these bytes at an offset, of which it has so many. To be asked behind a
    /// fence.
    pub fn has_stored(
        &self,
        file: FileNo,
        offset: u64,
        len: u64,
        bytes: impl Fn(u64, &mut [u8]) -> Result<(), PortError>,
    ) -> bool {
        let end = offset.saturating_add(len);
        (offset / self.page_bytes..end.div_ceil(self.page_bytes)).all(|index| {
            let from = (index * self.page_bytes).max(offset);
            let to = ((index + 1) * self.page_bytes).min(end);
            let (mut given, mut stored) =
                (vec![0; (to - from) as usize], vec![0; (to - from) as usize]);
            let place = Place { segment: Segment(file), index };
            bytes(from - offset, &mut given).is_ok()
                && self.read_stored(place, from, &mut stored).is_ok()
                && given == stored
        })
    }

    /// Brings the changed bytes into the cached pages. False if some could not be had.
    pub(crate) fn patch_all(
        &self,
        file: FileNo,
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
        let pages =
            self.lock().pages_in(file, offset / self.page_bytes..end.div_ceil(self.page_bytes));
        let mut patched = true;
        for (_, place) in pages {
            let Some(page) = self.pin_at_rest(place, again) else { continue };
            let from = (place.index * self.page_bytes).max(offset);
            let to = ((place.index + 1) * self.page_bytes).min(end);
            let mut buffer = vec![0; self.page_bytes as usize];
            let piece = &mut buffer[..(to - from) as usize];
            // If the program's bytes are gone, storage has them.
            let done = bytes(from - offset, piece)
                .or_else(|_| self.read_stored(place, from, piece))
                .and_then(|()| self.port.patch(file, from, piece));
            self.unpin(page);
            patched &= done.is_ok();
        }
        patched
    }

    /// Bytes of one page as storage has them.
    pub(crate) fn read_stored(
        &self,
        place: Place,
        from: u64,
        piece: &mut [u8],
    ) -> Result<(), PortError> {
        let mut buffer = self.take_buffer(self.page_bytes as usize)?;
        let page = &mut buffer[..self.page_bytes as usize];
        let read = self.port.load(place.segment.0, place.index, page);
        let at = (from % self.page_bytes) as usize;
        piece.copy_from_slice(&page[at..at + piece.len()]);
        self.give_buffer(buffer);
        read.map(|_| ())
    }

    /// Pins a page when it is at rest, if it is resident then. Others may hold it.
    pub(crate) fn pin_at_rest(&self, place: Place, again: &mut Again) -> Option<Page> {
        let pin = |core: &mut Core| match core.state(place) {
            (Some(page), State::Resident) => {
                core.word(page).pin_beside_holds().then_some(Some(page))
            }
            (_, State::Absent) => Some(None),
            _ => None,
        };
        self.wait_until(again, pin).1
    }

    /// Drops clean pages and forgets a file that nobody maps or has open. Its dirty pages were
    /// flushed before; if some are dirty still, it stays and false is returned.
    pub fn close_file(&self, file: FileNo) -> bool {
        let mut again = Again::new();
        self.drop_pages(file, 0..u64::MAX, Leaving::Clean, &mut again);
        self.serve_all(&mut again);
        let mut core = self.lock();
        let left = !core.pages_in(file, 0..u64::MAX).is_empty();
        let used = core.file(file).is_none_or(|f| !f.mappings.is_empty() || !f.fences.is_empty());
        if left || used {
            return false;
        }
        core.close_segment(file);
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
