//! Changes of files by others: what clients write by system calls of their own while the cache
//! stands aside (fences), and what happened to a file unseen.

use crate::core::{Core, Fence, File};
use crate::engine::{Again, Engine};
use crate::port::{FileNo, Port, PortError, Version};
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
    /// Nothing: what is dirty is written back, and nobody writes until it is over (a fork, whose
    /// child gets what is stored).
    Hold,
    /// Nobody wants the content any more: until it is gone, no fault is served.
    Drop,
}

/// Of a change that gives no bytes: what is cached of its range and clean is dropped.
pub(crate) const NO_BYTES: Option<Bytes> = None;
type Bytes = fn(u64, &mut [u8]) -> Result<(), PortError>;
/// Bytes that storage has, and nobody else.
const STORED: Bytes = |_, _| Err(PortError::Missing);

/// What of a file's new length and version is ours.
#[derive(Clone, PartialEq, Eq)]
enum Own {
    /// Somebody outside may have been there.
    Nothing,
    /// All that there is.
    All,
    /// A change of this ticket, of these bytes. Who else made the file longer was outside.
    Change(u64, Range<u64>),
}

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
        if !stored_first {
            core.raise_fence(file, ticket);
        }
        drop(core);
        if stored_first {
            // What is being fetched for a store turns dirty yet.
            let filled = |core: &mut Core| {
                let pages = core.pages_in(file, pages.clone());
                let filling = pages.iter().any(|(p, _)| core.word(*p).state() == State::Filling);
                (!filling).then_some(())
            };
            drop(self.wait_until(again, filled));
            self.serve_all(again);
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

    fn put_fence(&self, file: FileNo, pages: Range<u64>, change: Change) -> Result<u64, PortError> {
        let mut core = self.lock();
        let ticket = core.put_fence(file, pages, change).ok_or(PortError::Missing)?;
        if change.unsettles() {
            self.unsettle(&mut core, file);
        }
        Ok(ticket)
    }

    /// The file's length or the place of its content begins to change.
    fn unsettle(&self, core: &mut Core, file: FileNo) {
        let Some(f) = core.file_mut(file) else { return };
        f.unsettled += 1;
        f.unsettlings += 1;
        self.port.announce(file, None);
    }

    /// A change that [`unsettle`](Self::unsettle) began is over.
    fn settle(&self, core: &mut Core, file: FileNo) {
        if let Some(f) = core.file_mut(file) {
            f.unsettled -= 1;
            self.announce(f, file);
        }
    }

    /// Tells programs the version of a file that is not being changed.
    pub(crate) fn announce(&self, f: &File, file: FileNo) {
        if f.unsettled == 0 {
            // Of a file that was changed outside, no time is the one that programs look for.
            let ctime_ns = if f.foreign.is_stale() { 0 } else { f.version.ctime_ns };
            self.port.announce(file, Some(Version { ctime_ns, ..f.version }));
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
            self.drop_pages(file, fence.first..fence.end, false, &mut again);
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
    fn patch_all(
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

    /// Pins a page when it is at rest, if it is resident then. Others may hold it.
    fn pin_at_rest(&self, place: Place, again: &mut Again) -> Option<Page> {
        let pin = |core: &mut Core| match core.state(place) {
            (Some(page), State::Resident) => {
                core.word(page).pin_beside_holds().then_some(Some(page))
            }
            (_, State::Absent) => Some(None),
            _ => None,
        };
        self.wait_until(again, pin).1
    }

    /// A file's length is about to matter. What clients added to it by themselves is followed.
    pub(crate) fn catch_up(&self, file: FileNo) {
        if self.lock().is_behind(file) {
            self.refresh_size(file, false);
        }
    }

    /// A program is about to map a file: its frames become as long as it is, and whoever makes it
    /// longer says so from now on.
    pub(crate) fn catch_up_for_good(&self, file: FileNo) {
        self.lock().meet_overwrite(file);
        self.refresh_size(file, false);
    }

    /// Looks at the file's length and version. Pages beyond the end go; `own` says that the change
    /// was made through us, otherwise clean pages are dropped, since their content may be old.
    /// Returns true if the file had been changed by somebody else.
    pub fn refresh_size(&self, file: FileNo, own: bool) -> bool {
        let mut again = Again::new();
        let own = if own { Own::All } else { Own::Nothing };
        let foreign = self.follow_size(file, &own, &mut again);
        self.serve_all(&mut again);
        foreign
    }

    fn follow_size(&self, file: FileNo, asked: &Own, again: &mut Again) -> bool {
        // One at a time, or an older look could be followed last.
        let _one = self.resizing.lock().expect("resizing");
        let Ok(mut now) = self.port.version(file) else { return false };
        let (before, pages_before, unread, is_theirs, own, is_sure) = {
            let mut core = self.lock();
            let overwritten = core.is_overwritten(file, now);
            if *asked == Own::Nothing {
                core.meet_overwrite(file);
            }
            let known_size = core.known_size(file);
            let Some(f) = core.file_mut(file) else { return false };
            let (before, mut unread, mut is_theirs) = (f.version, None, false);
            // What is being added now is seen when it is there: the rest of what was the last page
            // may be zeros in memory yet.
            let known = f.fences.iter().map(|fence| fence.size_bytes_max).min();
            match asked {
                Own::Nothing => {
                    if let Some(known) = known {
                        now.size_bytes = now.size_bytes.min(known.max(before.size_bytes));
                    }
                }
                Own::All => {}
                Own::Change(ticket, changed) => {
                    let reach = changed.end.max(known_size);
                    let last = before.size_bytes / self.page_bytes;
                    if f.fences.iter().any(|o| o.ticket != *ticket && o.end > last) {
                        now.size_bytes = now.size_bytes.min(reach);
                    } else {
                        unread = f.unread.take();
                    }
                    is_theirs = now.size_bytes > reach;
                    let is_apart = changed.start > before.size_bytes;
                    if (is_theirs || is_apart) && now.size_bytes > before.size_bytes {
                        unread = Some(before.size_bytes.min(unread.unwrap_or(u64::MAX)));
                    }
                }
            }
            if is_theirs {
                f.foreign.find();
            }
            // While pages are written back, it is these that its times are due to, and who else wrote
            // is heard of.
            let written = f.is_heard && f.own_writes > 0 && now.size_bytes == before.size_bytes;
            // Unless somebody outside is known to have been there already.
            let own = (overwritten || written) && !f.foreign.is_stale();
            // As long as nobody else is known to write, locks beside a program's own writes ask nobody.
            let is_sure = overwritten && own && !f.is_shared;
            (before, f.pages, unread, is_theirs, *asked != Own::Nothing || own, is_sure)
        };
        if let Some(from) = unread {
            // Also what lies between the end that was known and what ours wrote behind it.
            let len = now.size_bytes.saturating_sub(from);
            self.patch_all(file, from, len, STORED, again);
        }
        if now == before {
            let stale = self.lock().file(file).is_some_and(|f| f.foreign.is_stale());
            if stale {
                self.drop_old(file, again);
            }
            return stale;
        }
        // Whoever takes the new version for known reads what is in memory: it is told when nothing old
        // is there any more.
        if !own && let Some(f) = self.lock().file_mut(file) {
            f.foreign.find();
        }
        let pages = now.size_bytes.div_ceil(self.page_bytes);
        if now.size_bytes < before.size_bytes {
            self.shrink(file, now.size_bytes, pages, again);
        } else if pages > pages_before {
            // Before a fault may need the new pages.
            let _ = self.port.resize(file, pages);
        }
        if !own && now.size_bytes > before.size_bytes {
            self.reread_behind(file, before.size_bytes, again);
        }
        if now.size_bytes > before.size_bytes {
            self.cut_behind(file, before.size_bytes, |core| {
                self.follow(core, file, now, pages, is_sure);
            });
        } else {
            self.follow(&mut self.lock(), file, now, pages, is_sure);
        }
        if !own || is_theirs {
            self.drop_old(file, again);
        }
        !own
    }

    /// Clean pages may be old: they go. Those that a program holds go another time.
    fn drop_old(&self, file: FileNo, again: &mut Again) {
        let Some(found) = self.lock().file(file).map(|f| f.foreign.found()) else { return };
        // What is read of it from now on is what they wrote, and no part of it.
        self.port.await_writes(file);
        self.drop_pages(file, 0..u64::MAX, false, again);
        let mut core = self.lock();
        let pages = core.pages_in(file, 0..u64::MAX);
        let held = pages.iter().any(|(page, _)| core.word(*page).holds() > 0);
        let Some(f) = core.file_mut(file).filter(|_| !held) else { return };
        f.foreign.drop_old(found);
        self.announce(f, file);
    }

    /// Somebody else made the file longer. What lies behind its old end in a page that is dirty
    /// here is theirs.
    fn reread_behind(&self, file: FileNo, size_bytes: u64, again: &mut Again) {
        let place = Place { segment: Segment(file), index: size_bytes / self.page_bytes };
        let from = (size_bytes % self.page_bytes) as usize;
        if from == 0 {
            return;
        }
        let ticket = {
            let mut core = self.lock();
            core.meet_overwrite(file);
            // Behind a fence it is one of ours who makes it longer, as far as anybody knows before that
            // one is done.
            if core.fences(place).next().is_some() {
                if let Some(f) = core.file_mut(file) {
                    f.unread = Some(size_bytes.min(f.unread.unwrap_or(u64::MAX)));
                }
                return;
            }
            // None of ours begins to: what it added would be undone by what was read before.
            let page = place.index..place.index + 1;
            let Some(ticket) = core.put_fence(file, page, Change::Write) else { return };
            core.raise_fence(file, ticket);
            ticket
        };
        if let Some(page) = self.pin_at_rest(place, again) {
            let mut data = vec![0; self.page_bytes as usize];
            let piece = &mut data[from..];
            if self.read_stored(place, size_bytes, piece).is_ok() {
                let _ = self.port.patch(file, size_bytes, piece);
            }
            self.unpin(page);
        }
        self.take_fence(file, ticket);
    }

    /// Bytes of one page as storage has them.
    fn read_stored(&self, place: Place, from: u64, piece: &mut [u8]) -> Result<(), PortError> {
        let mut buffer = self.take_buffer(self.page_bytes as usize)?;
        let page = &mut buffer[..self.page_bytes as usize];
        let read = self.port.load(place.segment.0, place.index, page);
        let at = (from % self.page_bytes) as usize;
        piece.copy_from_slice(&page[at..at + piece.len()]);
        self.give_buffer(buffer);
        read.map(|_| ())
    }

    fn follow(&self, core: &mut Core, file: FileNo, now: Version, pages: u64, is_sure: bool) {
        let Some(f) = core.file_mut(file) else { return };
        // New length may be a hole.
        f.holes |= now.size_bytes > f.version.size_bytes;
        f.version = now;
        f.pages = pages;
        if !is_sure {
            self.doubt(f, file);
        }
        self.announce(f, file);
        if let Some(overwrites) = &core.overwrites {
            overwrites.follow(file, now.size_bytes);
        }
        if core.brain.pages(Segment(file)) != pages {
            self.decide(core, Input::Segment { segment: Segment(file), pages });
        }
    }

    /// What regions show of the last page behind the end at `size_bytes` is unmapped, and then
    /// something is done, before anybody maps anything.
    fn cut_behind(&self, file: FileNo, size_bytes: u64, then: impl FnOnce(&mut Core)) {
        let large = self.page_bytes > crate::port::PAGE_BYTES;
        let _layout = large.then(|| self.layout.write().expect("layout"));
        for (space, addr, pages) in self.lock().behind_the_end(file, size_bytes) {
            self.port.cut(space, addr, pages);
        }
        then(&mut self.lock());
    }

    /// The file became shorter: what is beyond its end is gone, dirty or not, and the rest of the
    /// last page reads as zero.
    fn shrink(&self, file: FileNo, size_bytes: u64, pages: u64, again: &mut Again) {
        {
            let mut core = self.lock();
            self.unsettle(&mut core, file);
            if let Some(f) = core.file_mut(file) {
                f.version.size_bytes = size_bytes;
                f.pages = pages;
            }
        }
        self.drop_pages(file, pages..u64::MAX, true, again);
        let _ = self.port.resize(file, pages);
        // What was copied of them is gone with the frames.
        let gone = self.lock().private_mappings_from(file, pages);
        gone.into_iter().for_each(|(space, range)| self.removed(space, range));
        self.cut_behind(file, size_bytes, |_| {});
        if !size_bytes.is_multiple_of(self.page_bytes) {
            self.clear_behind(file, size_bytes, again);
        }
        self.settle(&mut self.lock(), file);
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
        if known.is_some_and(|known| self.is_foreign(file, known))
            && let Some(f) = self.lock().file_mut(file)
        {
            f.foreign.find();
        }
    }

    /// Whether a file that nobody of ours changes just now is not as it was known.
    fn is_foreign(&self, file: FileNo, known: Version) -> bool {
        let Ok(now) = self.port.version(file) else { return false };
        now != known && !self.lock().is_overwritten(file, now)
    }

    /// A client is about to change the file: what somebody outside did before is not to be taken for
    /// its doing afterwards.
    fn look_before_change(&self, file: FileNo) {
        let known = {
            let core = self.lock();
            let Some(f) = core.file(file) else { return };
            (f.own_writes == 0 && !core.is_changing(file)).then_some(f.version)
        };
        if known.is_some_and(|known| self.is_foreign(file, known)) {
            self.refresh_size(file, false);
        }
    }

    /// The write is done: the times it left are no sign of somebody else. (Nor of its being ours
    /// alone: see [`changed_outside`](Self::changed_outside).)
    pub(crate) fn end_own_write(&self, file: FileNo) {
        let now = self.port.version(file);
        let mut core = self.lock();
        let Some(f) = core.file_mut(file) else { return };
        f.own_writes -= 1;
        if let Ok(now) = now {
            f.version.mtime_ns = now.mtime_ns;
            f.version.ctime_ns = now.ctime_ns;
            self.doubt(f, file);
            self.announce(f, file);
        }
    }

    /// The file was written to, perhaps by us: if it was somebody else, clean pages are dropped.
    pub fn look_for_changes(&self, file: FileNo) {
        {
            let core = self.lock();
            let Some(f) = core.file(file) else { return };
            if f.own_writes > 0 || core.is_changing(file) {
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
