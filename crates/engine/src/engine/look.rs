//! A look at a file's length and version: whose doing a change is, and what follows from it.

use crate::engine::change::{Change, STORED};
use crate::engine::core::{Core, Fence, File, OwnWrites};
use crate::engine::flush::Leaving;
use crate::engine::{Again, Engine};
use crate::port::{FileNo, Look, Port, Version};
use pagekeeper_frames::{Input, Place, Segment};
use rangemap::RangeSet;
use std::ops::Range;
use std::sync::MutexGuard;

/// How often a file is looked at anew whose writes end meanwhile.
const LOOKS_MAX: u32 = 16;

/// What of a file's new length and version is ours.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Own {
    /// Somebody outside may have been there. Times that changed while one of ours writes may be theirs, too,
    /// where nobody tells who writes.
    Nothing,
    /// The same, and what times cannot tell, because one of ours writes, is left to another look.
    Unclear,
    /// All that there is.
    All,
    /// A change of this ticket, of these bytes. Who else made the file longer was outside.
    Change(u64, Range<u64>),
}

impl Own {
    fn is_nothing(&self) -> bool {
        matches!(self, Own::Nothing | Own::Unclear)
    }
}

/// What was known of a file before it was looked at.
#[derive(Clone, Copy)]
struct Since {
    own_writes: OwnWrites,
    /// See [`Core::overwritten`].
    overwritten: u64,
}

impl Since {
    fn of(core: &Core, file: FileNo) -> Option<Since> {
        let own_writes = core.file(file)?.own_writes;
        Some(Since { own_writes, overwritten: core.overwritten(file) })
    }

    /// Whether what was seen then may be older than what is known now.
    fn is_past(self, core: &Core, file: FileNo) -> bool {
        core.file(file).is_some_and(|f| f.own_writes.has_ended_since(self.own_writes))
            || core.overwritten(file) != self.overwritten
    }
}

/// What a look at a file shows, beside what was known of it.
struct Seen {
    before: Version,
    pages_before: u64,
    /// How long it was by then, as far as that is known or was said by clients that made it longer: what is
    /// in memory of it is as good as all else.
    known_bytes: u64,
    /// As far as it may be followed yet.
    now: Version,
    /// Nobody outside was there.
    is_own: bool,
    /// Somebody outside made it longer, beside one of ours.
    is_theirs: bool,
    /// Nobody outside can have been there, not even somebody who was not heard of yet.
    is_sure: bool,
    /// What is in the file there storage knows, also of pages that are dirty.
    unread: RangeSet<u64>,
}

impl Seen {
    fn new(core: &mut Core, file: FileNo, look: Look, since: Since, own: &Own) -> Option<Seen> {
        let Look { version: mut now, is_open } = look;
        let overwritten = core.was_overwritten(file, now, since.overwritten);
        let is_past = since.is_past(core, file);
        let since = since.own_writes;
        let known_bytes = core.known_size(file);
        let page_bytes = core.page_bytes();
        let f = core.file_mut(file)?;
        let is_undisturbed = f.own_writes.was_none_since(since);
        if f.own_writes.has_ended_since(since) || (*own == Own::Unclear && !is_undisturbed) {
            now = Version { size_bytes: now.size_bytes, ..f.version };
        } else {
            f.looked(is_open);
        }
        let mut seen = Seen {
            before: f.version,
            pages_before: f.pages,
            known_bytes,
            now,
            is_own: false,
            is_theirs: false,
            is_sure: false,
            unread: RangeSet::new(),
        };
        match own {
            Own::Nothing | Own::Unclear => seen.limit_to_the_settled(f),
            Own::All => {}
            Own::Change(ticket, changed) => {
                let last = seen.before.size_bytes / page_bytes;
                let others = |other: &Fence| other.ticket != *ticket && other.end > last;
                let is_alone = !f.fences.iter().any(others);
                seen.tell_apart(f, changed, is_alone);
            }
        }
        if seen.is_theirs {
            f.foreign.find();
        }
        // While pages are written back, or ours change the file, its times are due to that, and who else
        // wrote is heard of. The look may have come between two of those who made it longer.
        let known_sizes = seen.before.size_bytes..=known_bytes;
        let same_size = known_sizes.contains(&seen.now.size_bytes);
        let is_ours = !is_undisturbed || !f.fences.is_empty() || is_past;
        let written = f.is_heard && is_ours && same_size;
        // Unless somebody outside is known to have been there already.
        let explained = (overwritten || written) && !f.foreign.is_stale();
        // As long as nobody else is known to write, locks beside a program's own writes ask nobody.
        seen.is_sure = overwritten && explained && !f.is_shared;
        seen.is_own = !own.is_nothing() || explained;
        Some(seen)
    }

    /// What is being added now is seen when it is there: the rest of what was the last page may be
    /// zeros in memory yet.
    fn limit_to_the_settled(&mut self, f: &File) {
        if let Some(known) = f.fences.iter().map(|fence| fence.size_bytes_max).min() {
            self.now.size_bytes = self.now.size_bytes.min(known.max(self.before.size_bytes));
        }
    }

    /// One of ours changed these bytes: what is behind them is somebody else's, or another one's that
    /// is under way, if it is not alone at the file's end.
    fn tell_apart(&mut self, f: &mut File, changed: &Range<u64>, is_alone: bool) {
        let reach = changed.end.max(self.known_bytes);
        // Of what is no write all is said to have changed, and nothing was patched.
        let is_write = changed.end != u64::MAX;
        if is_write && !changed.is_empty() {
            // Programs may store there by now.
            f.unread.remove(changed.clone());
        }
        if is_alone {
            self.unread = std::mem::take(&mut f.unread);
        } else {
            self.now.size_bytes = self.now.size_bytes.min(reach);
        }
        let now = self.now.size_bytes;
        self.is_theirs = now > reach;
        // Also what lies between the end that was known and what ours wrote behind it.
        for theirs in [self.known_bytes..changed.start.min(now), reach..now] {
            if !theirs.is_empty() {
                self.unread.insert(theirs);
            }
        }
    }
}

impl<P: Port> Engine<P> {
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
        self.look(file, &if own { Own::All } else { Own::Nothing })
    }

    /// The same for who looks again: what is written by us in this moment is taken for nobody else's.
    pub(crate) fn refresh_unclear(&self, file: FileNo) -> bool {
        self.look(file, &Own::Unclear)
    }

    fn look(&self, file: FileNo, own: &Own) -> bool {
        let mut again = Again::new();
        let foreign = self.follow_size(file, own, &mut again);
        self.serve_all(&mut again);
        foreign
    }

    /// Writes of ours to a file so far.
    pub(crate) fn own_writes(&self, file: FileNo) -> OwnWrites {
        self.lock().file(file).map_or_else(OwnWrites::default, |f| f.own_writes)
    }

    /// A file's version, what was known before it was looked up, and what is known with it. If writes of
    /// ours and of clients ended meanwhile, again and again, it may be older than what is known.
    fn look_at(&self, file: FileNo) -> Option<(Look, Since, MutexGuard<'_, Core>)> {
        let mut looks = 0;
        loop {
            let since = Since::of(&self.lock(), file)?;
            let now = self.port.look(file).ok()?;
            let core = self.lock();
            core.file(file)?;
            looks += 1;
            if looks == LOOKS_MAX || !since.is_past(&core, file) {
                return Some((now, since, core));
            }
        }
    }

    /// Follows a file's length and version. True if it had been changed by somebody else.
    pub(crate) fn follow_size(&self, file: FileNo, own: &Own, again: &mut Again) -> bool {
        // One at a time, or an older look could be followed last.
        let Some(looking) = self.lock().file(file).map(|f| f.looking.clone()) else { return false };
        let _one = looking.lock().expect("looking");
        let seen = {
            let Some((now, since, mut core)) = self.look_at(file) else { return false };
            if own.is_nothing() {
                core.meet_overwrite(file);
            }
            Seen::new(&mut core, file, now, since, own)
        };
        let Some(seen) = seen else { return false };
        let Seen { mut now, before, known_bytes, .. } = seen;
        if !seen.is_own || !seen.unread.is_empty() {
            self.settle_presumed(file, 0..u64::MAX, again);
        }
        for Range { start, end } in seen.unread {
            let len = end.min(now.size_bytes).saturating_sub(start);
            self.patch_all(file, start, len, STORED, again);
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
        if !seen.is_own
            && let Some(f) = self.lock().file_mut(file)
        {
            f.foreign.find();
            // Blocks may have been taken away.
            f.holes = true;
        }
        let theirs = known_bytes..now.size_bytes;
        if !seen.is_own && !theirs.is_empty() && !self.reread_behind(file, theirs, again) {
            now.size_bytes = known_bytes;
        }
        let pages = now.size_bytes.div_ceil(self.page_bytes);
        if now.size_bytes < before.size_bytes {
            self.shrink(file, now.size_bytes, pages, again);
        } else if pages > seen.pages_before {
            // Before a fault may need the new pages.
            let _ = self.port.resize(file, pages);
        }
        let follow = |core: &mut Core| self.follow(core, file, now, pages, seen.is_sure);
        if now.size_bytes > before.size_bytes {
            self.cut_behind(file, before.size_bytes, follow);
        } else {
            follow(&mut self.lock());
        }
        if !seen.is_own || seen.is_theirs {
            self.drop_old(file, again);
        }
        !seen.is_own
    }

    /// Clean pages may be old: they go. Those that a program holds go another time.
    pub(crate) fn drop_old(&self, file: FileNo, again: &mut Again) {
        let Some(found) = self.lock().file(file).map(|f| f.foreign.found()) else { return };
        // What is read of it from now on is what they wrote, and no part of it.
        self.port.await_writes(file);
        self.settle_presumed(file, 0..u64::MAX, again);
        self.drop_pages(file, 0..u64::MAX, Leaving::Clean, again);
        let mut core = self.lock();
        let pages = core.pages_in(file, 0..u64::MAX);
        let held = pages.iter().any(|(page, _)| core.word(*page).holds() > 0);
        let Some(f) = core.file_mut(file).filter(|_| !held) else { return };
        f.foreign.drop_old(found);
        self.announce(f, file);
    }

    /// Somebody else made the file longer, by this. What lies behind its old end in a page that is dirty
    /// here is theirs. False if one of ours changes that page just now: then it is followed when that
    /// one is done, and until then nobody is told of it.
    fn reread_behind(&self, file: FileNo, theirs: Range<u64>, again: &mut Again) -> bool {
        let size_bytes = theirs.start;
        let place = Place { segment: Segment(file), index: size_bytes / self.page_bytes };
        let from = (size_bytes % self.page_bytes) as usize;
        if from == 0 {
            return true;
        }
        let ticket = {
            let mut core = self.lock();
            core.meet_overwrite(file);
            // Behind a fence it is one of ours who makes it longer, as far as anybody knows before that
            // one is done.
            if core.fences(place).next().is_some() {
                if let Some(f) = core.file_mut(file) {
                    f.unread.insert(theirs);
                }
                return false;
            }
            // None of ours begins to: what it added would be undone by what was read before.
            let page = place.index..place.index + 1;
            let Some(ticket) = core.put_fence(file, page, Change::Write) else { return true };
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
        true
    }

    fn follow(&self, core: &mut Core, file: FileNo, now: Version, pages: u64, is_sure: bool) {
        let Some(before) = core.file(file).map(|f| f.version.size_bytes) else { return };
        if now.size_bytes > before {
            core.grows_within_page(file, before);
        }
        let Some(f) = core.file_mut(file) else { return };
        // New length may be a hole.
        f.holes |= now.size_bytes > before;
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
                f.unread.remove(size_bytes..u64::MAX);
            }
        }
        self.drop_pages(file, pages..u64::MAX, Leaving::All, again);
        let _ = self.port.resize(file, pages);
        // What was copied of them is gone with the frames.
        let gone = self.lock().private_mappings_from(file, pages);
        gone.into_iter().for_each(|(space, range)| self.copies_gone(space, range));
        self.cut_behind(file, size_bytes, |_| {});
        if !size_bytes.is_multiple_of(self.page_bytes) {
            self.clear_behind(file, size_bytes, again);
        }
        self.settle(&mut self.lock(), file);
    }

    /// We are about to write to the file ourselves. If its times are not those we know, somebody
    /// else was there before.
    pub(crate) fn begin_own_write(&self, file: FileNo) {
        let Some(beginning) = self.lock().file(file).map(|f| f.beginning.clone()) else { return };
        // Who begins now would write while times are compared.
        let _one = beginning.lock().expect("beginning");
        let known = {
            let mut core = self.lock();
            let Some(f) = core.file_mut(file) else { return };
            f.own_writes.begin();
            (f.own_writes.under_way() == 1 && f.fences.is_empty()).then_some(f.version)
        };
        if known.is_some_and(|known| self.is_foreign(file, known))
            && let Some(f) = self.lock().file_mut(file)
        {
            f.foreign.find();
        }
    }

    /// Whether a file that nobody of ours changes just now is not as it was known.
    fn is_foreign(&self, file: FileNo, known: Version) -> bool {
        let Some((Look { version: now, .. }, since, core)) = self.look_at(file) else {
            return false;
        };
        now != known && !core.is_overwritten(file, now, since.overwritten)
    }

    /// A client is about to change the file: what somebody outside did before is not to be taken for
    /// its doing afterwards.
    pub(crate) fn look_before_change(&self, file: FileNo) {
        let (known, since) = {
            let core = self.lock();
            let Some(f) = core.file(file) else { return };
            if f.own_writes.under_way() > 0 || core.is_changing(file) {
                return;
            }
            (f.version, f.own_writes)
        };
        // Who began to write meanwhile looked itself.
        let was_none =
            || self.lock().file(file).is_some_and(|f| f.own_writes.was_none_since(since));
        if self.is_foreign(file, known) && was_none() {
            self.refresh_size(file, false);
        }
    }

    /// The write is done: the times it left are no sign of somebody else. (Nor of its being ours
    /// alone: see [`changed_outside`](Self::changed_outside).)
    pub(crate) fn end_own_write(&self, file: FileNo) {
        self.port.close_time(file);
        let (now, mut core) = match self.look_at(file) {
            Some((now, _, core)) => (Some(now), core),
            None => (None, self.lock()),
        };
        let Some(f) = core.file_mut(file) else { return };
        f.own_writes.end();
        if let Some(Look { version, is_open }) = now {
            f.looked(is_open);
            f.version.mtime_ns = version.mtime_ns;
            f.version.ctime_ns = version.ctime_ns;
            self.doubt(f, file);
            self.announce(f, file);
        }
    }

    /// The same where another write of ours is under way, which looks at the times that both left.
    pub(crate) fn end_own_write_unseen(&self, file: FileNo) {
        if let Some(f) = self.lock().file_mut(file) {
            f.own_writes.end();
        }
    }

    /// The file was written to, perhaps by us: if it was somebody else, clean pages are dropped.
    pub fn look_for_changes(&self, file: FileNo) {
        {
            let core = self.lock();
            let Some(f) = core.file(file) else { return };
            if f.own_writes.under_way() > 0 || core.is_changing(file) {
                return;
            }
        }
        self.refresh_unclear(file);
    }
}
