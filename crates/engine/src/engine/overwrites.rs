//! What clients overwrite without a message: the manager's side of the table of overwrites.
//!
//! The protocol is told at [`wire::Overwrite`]. Everything here is called under the engine's lock,
//! and believes nothing that clients write but who is held up: a record that says nonsense keeps
//! pages of its file where they are, until its process ends.

use crate::engine::change::Change;
use crate::engine::core::Core;
use crate::live::shortage::is_shortage;
use crate::port::{FileNo, Version};
use pagekeeper_frames::{Place, Segment};
use pagekeeper_policy::Page;
use pagekeeper_sys::Errno;
use pagekeeper_sys::event::futex_wake;
use pagekeeper_sys::memfd::{Memfd, SealFlags};
use pagekeeper_sys::shared::SharedMap;
use pagekeeper_wire as wire;
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

/// The table.
#[derive(Debug)]
pub struct Overwrites {
    memfd: Memfd,
    map: SharedMap,
}

impl Overwrites {
    /// An empty table for so many slots.
    ///
    /// # Errors
    /// Shared memory cannot be made.
    pub fn new(slots: usize) -> Result<Overwrites, Errno> {
        let bytes = slots * size_of::<wire::Overwrite>();
        let (memfd, map) = SharedMap::create("pagekeeper-overwrites", bytes)?;
        memfd.set_mode(0o600)?;
        Ok(Overwrites { memfd, map })
    }

    /// The table for a client that only looks at it.
    ///
    /// # Errors
    /// No descriptor is free.
    pub(crate) fn for_reader(&self) -> Result<OwnedFd, Errno> {
        self.memfd.reopen_read_only()
    }

    /// The table for a client, which can store to it, but not cut it off; none where the kernel
    /// does not see to that.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn for_writer(&self) -> Result<Option<OwnedFd>, Errno> {
        let sealed = self.memfd.seals().is_ok_and(|s| s.contains(SealFlags::SHRINK));
        match sealed.then(|| self.memfd.reopen_writable()).transpose() {
            Err(errno) if is_shortage(errno) => Err(errno),
            table => Ok(table.ok().flatten()),
        }
    }

    /// Records in it.
    pub(crate) fn records(&self) -> usize {
        self.map.len_bytes() / size_of::<wire::Overwrite>()
    }

    fn long(&self, file: FileNo, field: usize) -> &AtomicU64 {
        &self.map.words(file as usize * size_of::<wire::Overwrite>() + field, 1)[0]
    }

    fn state(&self, file: FileNo) -> &AtomicU64 {
        self.long(file, offset_of!(wire::Overwrite, state))
    }

    fn short(&self, file: FileNo, field: usize) -> &AtomicU32 {
        &self.map.words(file as usize * size_of::<wire::Overwrite>() + field, 1)[0]
    }

    fn moving(&self, file: FileNo) -> &AtomicU32 {
        self.short(file, offset_of!(wire::Overwrite, moving))
    }

    /// The pages of a file that somebody overwrites now.
    pub(crate) fn held(&self, file: FileNo) -> Option<Range<u64>> {
        (self.state(file).load(SeqCst) & wire::OVERWRITE_HELD != 0).then(|| {
            let first = self.long(file, offset_of!(wire::Overwrite, first)).load(SeqCst);
            first..self.long(file, offset_of!(wire::Overwrite, end)).load(SeqCst)
        })
    }

    /// Which process overwrites a file now.
    pub(crate) fn holder(&self, file: FileNo) -> Option<u32> {
        let state = self.state(file).load(SeqCst);
        (state & wire::OVERWRITE_HELD != 0).then_some((state >> 32) as u32)
    }

    /// From now on nobody begins to overwrite the file, and who does so now says when it ends. The
    /// pages of that one, if there is one that was not met before.
    pub(crate) fn meet(&self, file: FileNo) -> Option<Range<u64>> {
        let before = self.state(file).fetch_or(wire::OVERWRITE_MET, SeqCst);
        let is_new = before & (wire::OVERWRITE_HELD | wire::OVERWRITE_MET) == wire::OVERWRITE_HELD;
        is_new.then(|| self.held(file)).flatten()
    }

    /// Who overwrites the file is done.
    pub(crate) fn release(&self, file: FileNo) {
        self.hold_all(file);
        self.state(file).fetch_and(wire::OVERWRITE_MET, SeqCst);
        self.wake(file);
    }

    /// Whoever holds the record next has not said yet which pages it is about.
    fn hold_all(&self, file: FileNo) {
        self.long(file, offset_of!(wire::Overwrite, first)).store(0, SeqCst);
        self.long(file, offset_of!(wire::Overwrite, end)).store(u64::MAX, SeqCst);
    }

    /// Clients may overwrite the file again.
    pub(crate) fn allow(&self, file: FileNo) {
        self.state(file).fetch_and(!wire::OVERWRITE_MET, SeqCst);
        self.wake(file);
    }

    /// Wakes one of those that wait until the record is free, if it is.
    fn wake(&self, file: FileNo) {
        if self.state(file).load(SeqCst) != 0 {
            return;
        }
        let waiting = self.short(file, offset_of!(wire::Overwrite, waiting));
        if waiting.swap(0, SeqCst) != 0 {
            let freed = self.short(file, offset_of!(wire::Overwrite, freed));
            freed.fetch_add(1, SeqCst);
            let _ = futex_wake(freed, 1);
        }
    }

    /// The stamp that the last overwrite left.
    pub(crate) fn stamp(&self, file: FileNo) -> u64 {
        self.long(file, offset_of!(wire::Overwrite, stamp)).load(SeqCst)
    }

    fn size_bytes(&self, file: FileNo) -> &AtomicU64 {
        self.long(file, offset_of!(wire::Overwrite, size_bytes))
    }

    /// The length to which overwrites brought the file, as far as that was not
    /// [followed](Self::follow).
    pub(crate) fn grown_to(&self, file: FileNo) -> u64 {
        self.size_bytes(file).load(SeqCst)
    }

    /// The file is known to be so long.
    pub(crate) fn follow(&self, file: FileNo, size_bytes: u64) {
        let _ = self.size_bytes(file).compare_exchange(size_bytes, 0, SeqCst, SeqCst);
    }

    /// Whatever overwrites added is followed.
    pub(crate) fn settle(&self, file: FileNo) {
        self.size_bytes(file).store(0, SeqCst);
    }

    /// Clients are told whether pages of the file may have to be written back.
    pub(crate) fn tell_dirty(&self, file: FileNo, may_be: bool) {
        self.short(file, offset_of!(wire::Overwrite, dirty)).store(may_be.into(), SeqCst);
    }

    /// The slot is another file's from now on, or nobody's.
    pub(crate) fn forget(&self, file: FileNo) {
        self.long(file, offset_of!(wire::Overwrite, stamp)).store(0, SeqCst);
        self.size_bytes(file).store(0, SeqCst);
        self.tell_dirty(file, false);
        self.hold_all(file);
        self.state(file).store(0, SeqCst);
    }
}

/// What became of the attempt to claim a page at rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// It is claimed.
    Made,
    /// It was not to be had.
    Refused,
    /// A client overwrites it: it stays as it was until that one is done.
    Overwritten,
}

impl Core {
    /// Nobody begins to overwrite a file before its last fence is gone (and no page of it is dirty that
    /// nobody may have stored to). Who does so now gets one, and says when it is done.
    pub(crate) fn bar_overwrites(&mut self, file: FileNo) {
        let Some(pages) = self.overwrites.as_ref().and_then(|o| o.meet(file)) else { return };
        let size_bytes_max = self.known_size(file);
        let ticket = self.add_fence(file, pages, Change::Write, size_bytes_max);
        if let (Some(ticket), Some(f)) = (ticket, self.file_mut(file)) {
            f.overwrite = Some(ticket);
            self.raise_fence(file, ticket);
        }
    }

    /// Puts a fence around what a client overwrites of a file, if one does.
    pub(crate) fn meet_overwrite(&mut self, file: FileNo) {
        self.bar_overwrites(file);
        self.allow_overwrites(file);
    }

    /// Clients may overwrite a file again, unless there is a reason that they say so.
    pub(crate) fn allow_overwrites(&mut self, file: FileNo) {
        let Some(f) = self.file_mut(file) else { return };
        if f.fences.is_empty() && f.presumed.is_none() {
            f.presumed.ended();
            if let Some(overwrites) = &self.overwrites {
                overwrites.allow(file);
            }
        }
    }

    /// Whether a change of a file is open, announced or not.
    pub(crate) fn is_changing(&self, file: FileNo) -> bool {
        self.file(file).is_some_and(|f| !f.fences.is_empty())
            || self.overwrites.as_ref().is_some_and(|o| o.holder(file).is_some())
    }

    /// Whether a client overwrites this page at this moment. It was not asked to wait for pages in
    /// motion, so that this one must not begin to move.
    pub(crate) fn overwritten_now(&mut self, place: Place) -> bool {
        let Place { segment: Segment(file), index } = place;
        let held = self.overwrites.as_ref().and_then(|o| o.held(file));
        if !held.is_some_and(|pages| pages.contains(&index)) {
            return false;
        }
        self.meet_overwrite(file);
        // It may be over by now, or not be about this page after all. Who stays because of it is
        // heard of again when its fence is taken away.
        let met = self.file(file).and_then(|f| f.overwrite);
        self.fences(place).any(|fence| Some(fence.ticket) == met)
    }

    /// The stamp that the last overwrite of a file by a client left.
    pub(crate) fn overwritten(&self, file: FileNo) -> u64 {
        self.overwrites.as_ref().map_or(0, |o| o.stamp(file))
    }

    /// Whether a file is as the last overwrite by a client left it, or one is under way: as during
    /// any other change, nobody else is taken for who changes it. Before it was looked at, the last one
    /// had left the stamp `before`.
    pub(crate) fn is_overwritten(&self, file: FileNo, now: Version, before: u64) -> bool {
        self.overwrites.as_ref().is_some_and(|o| o.holder(file).is_some())
            || self.was_overwritten(file, now, before)
    }

    /// The first of the two. Of those under way only one that was [met](Self::meet_overwrite) counts: others
    /// may begin after any look.
    pub(crate) fn was_overwritten(&self, file: FileNo, now: Version, before: u64) -> bool {
        let (Some(o), Some(f)) = (&self.overwrites, self.file(file)) else { return false };
        let stamps = [before, o.stamp(file), f.version.stamp()];
        // The last is of a write-back of ours, which notes no length that clients brought it to.
        let same_time = stamps.contains(&now.stamp());
        // The look may have come between two of them.
        let same_size = (f.version.size_bytes..=self.known_size(file)).contains(&now.size_bytes);
        f.overwrite.is_some() || same_time && same_size
    }

    /// How long a file is, as far as that is known here or was said by clients that made it longer.
    pub(crate) fn known_size(&self, file: FileNo) -> u64 {
        let followed = self.file(file).map_or(0, |f| f.version.size_bytes);
        self.overwrites.as_ref().map_or(0, |o| o.grown_to(file)).max(followed)
    }

    /// Whether clients are known to have made a file longer than was followed.
    pub(crate) fn is_behind(&self, file: FileNo) -> bool {
        self.file(file).is_some_and(|f| f.version.size_bytes < self.known_size(file))
    }

    /// A page is about to be claimed: who overwrites content of its file sees it, or is seen by
    /// [`overwritten_now`](Self::overwritten_now) afterwards.
    pub(crate) fn moves(&self, file: FileNo) {
        if let Some(overwrites) = &self.overwrites {
            overwrites.moving(file).fetch_add(1, SeqCst);
            // Who sees this sees the other, too, or the page at rest.
            overwrites.long(file, offset_of!(wire::Overwrite, moves)).fetch_add(1, SeqCst);
        }
    }

    /// A page that was claimed is at rest.
    pub(crate) fn rests(&self, file: FileNo) {
        if let Some(overwrites) = &self.overwrites {
            overwrites.moving(file).fetch_sub(1, SeqCst);
        }
    }

    /// Claims a page at rest, and gives the claim up again if the page is being overwritten.
    pub(crate) fn claim_at_rest(
        &mut self,
        place: Place,
        claim: impl FnOnce() -> bool,
        give_up: impl FnOnce(),
    ) -> Claim {
        self.close_page(place);
        self.moves(place.segment.0);
        let claim = match claim() {
            false => Claim::Refused,
            true if self.overwritten_now(place) => {
                give_up();
                Claim::Overwritten
            }
            true => return Claim::Made,
        };
        self.rests(place.segment.0);
        claim
    }

    /// Claims a page that is to leave memory.
    pub(crate) fn claim_leaving(&mut self, page: Page, place: Place) -> Claim {
        let word = self.word(page);
        self.claim_at_rest(place, || word.claim_leave(), || word.kept())
    }

    /// Claims a page that is to be written back; false if that cannot be now.
    pub(crate) fn claim_clean(&mut self, page: Page, place: Place) -> bool {
        let word = self.word(page);
        self.claim_at_rest(place, || word.claim_clean(), || word.cleaned(false)) == Claim::Made
    }
}
