//! Writing dirty pages back on request, and dropping pages that nobody wants.

use crate::engine::core::{Core, File, Job};
use crate::engine::evict::WriteRoom;
use crate::engine::overwrites::Claim;
use crate::engine::patience::Patience;
use crate::engine::wanted::Want;
use crate::engine::word::State;
use crate::engine::{Again, Engine};
use crate::port::{FileNo, Port, PortError};
use pagekeeper_frames::{Input, Place, Run, Segment};
use std::ops::Range;
use std::time::{Duration, Instant};

/// How long changes are waited for on behalf of somebody who is about to look at files without us.
const CHANGES_MAX: Duration = Duration::from_secs(1);
/// Most pages written back in one request.
const FLUSH_RUN_PAGES_MAX: u32 = 256;

/// Which pages of a range are taken out of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leaving {
    /// Clean ones that no program holds.
    Clean,
    /// Dirty ones, too: their content is not wanted any more. What a program holds stays.
    Unheld,
    /// All of them: they are cut off. Whoever holds one is waited for.
    All,
}

impl<P: Port> Engine<P> {
    /// Writes the dirty pages of a file range back, and reports an error that one of them met, or
    /// that an earlier write-back met and nobody was told.
    ///
    /// # Errors
    /// The errno of the write that failed; the pages stay dirty and in memory.
    pub fn flush(&self, file: FileNo, pages: Range<u64>) -> Result<(), PortError> {
        let mut heard = self.errors_so_far(file);
        self.flush_since(file, pages, &mut heard)
    }

    /// What somebody who opens a file now has heard of its errors: for
    /// [`flush_since`](Self::flush_since).
    pub fn errors_so_far(&self, file: FileNo) -> u64 {
        self.errors_at(file, u64::MAX)
    }

    /// As [`errors_so_far`](Self::errors_so_far), for somebody who opened the file at this time, in
    /// nanoseconds of CLOCK_MONOTONIC.
    pub fn errors_at(&self, file: FileNo, opened_ns: u64) -> u64 {
        self.lock().file(file).map_or(0, |f| f.errors.sample(opened_ns))
    }

    /// Writes the dirty pages of a file range back, and reports an error that a write-back of any
    /// of the file's pages met since `heard`, which is brought up to date: once, as `fsync(2)`
    /// reports it to each open file description.
    ///
    /// # Errors
    /// The errno of the latest write that failed; the pages stay dirty and in memory.
    pub fn flush_since(
        &self,
        file: FileNo,
        pages: Range<u64>,
        heard: &mut u64,
    ) -> Result<(), PortError> {
        let written = self.write_out(file, pages);
        match self.lock().file_mut(file).and_then(|f| f.errors.tell(heard)) {
            Some(errno) => Err(PortError::Io(errno)),
            None => written,
        }
    }

    /// Writes the dirty pages of a file range back. Errors are noted, so that those who flush hear
    /// of them.
    ///
    /// # Errors
    /// The errno of the first write that failed; the pages stay dirty and in memory.
    pub fn write_out(&self, file: FileNo, pages: Range<u64>) -> Result<(), PortError> {
        self.write_out_with(file, pages, Patience::Holders)
    }

    /// The same of a whole file, of which nothing is being read any more that was when this began: afterwards
    /// its times may be set, and stay, as far as nobody uses it later.
    ///
    /// # Errors
    /// As [`write_out`](Self::write_out).
    pub fn write_out_at_rest(&self, file: FileNo) -> Result<(), PortError> {
        let mut again = Again::new();
        self.await_fetches(file, 0..u64::MAX, &mut again);
        self.write_out(file, 0..u64::MAX)
    }

    /// The same in the background: a page that a program has to itself, or changes just now, for as long as
    /// it likes, is passed over. (Who waited for it would write none of the others meanwhile.)
    ///
    /// # Errors
    /// As [`write_out`](Self::write_out).
    pub(crate) fn write_out_unheld(
        &self,
        file: FileNo,
        pages: Range<u64>,
    ) -> Result<(), PortError> {
        self.write_out_with(file, pages, Patience::Motion)
    }

    /// The same of a whole file for somebody who waits so long at most: until then, what programs change is
    /// waited for, and written, too.
    ///
    /// # Errors
    /// As [`write_out`](Self::write_out).
    pub fn write_out_changing(&self, file: FileNo, at_most: Duration) -> Result<(), PortError> {
        self.write_out_then_changing(file, Patience::Motion, Instant::now() + at_most)
    }

    /// Writes all dirty pages of a file back, and then those that were passed over because programs changed
    /// them, as far as that is over in time. (A program may be stopped in the midst of it: all others first.)
    fn write_out_then_changing(
        &self,
        file: FileNo,
        patience: Patience,
        until: Instant,
    ) -> Result<(), PortError> {
        let passed_over = || self.lock().file(file).map_or(0, |f| f.passed_over);
        let before = passed_over();
        let written = self.write_out_with(file, 0..u64::MAX, patience);
        if passed_over() == before {
            return written;
        }
        let patience = Patience::Changes { until, any_write: patience.is_for_any_write() };
        written.and(self.write_out_with(file, 0..u64::MAX, patience))
    }

    fn write_out_with(
        &self,
        file: FileNo,
        pages: Range<u64>,
        patience: Patience,
    ) -> Result<(), PortError> {
        let mut again = Again::new();
        let mut first_error = None;
        let mut failed = |error: PortError| {
            self.lock().note_error(file, error);
            first_error.get_or_insert(error);
        };
        let mut next = pages.start;
        loop {
            let runs = self.claim_dirty_runs(file, next..pages.end, patience, &mut again);
            let Some(last) = runs.last() else { break };
            next = last.place.index + u64::from(last.pages);
            let mut more = Job::default();
            let results = self.clean(&runs, false, patience, &mut more, &mut again);
            for (run, result) in runs.iter().zip(results) {
                match result.unwrap_or(Ok(())) {
                    Err(_) if run.pages > 1 => {
                        // Write what can be written.
                        for one in run.place.index..run.place.index + u64::from(run.pages) {
                            // One of them may have been chosen to leave: who waited with that
                            // undone would wait for itself.
                            self.run_waiting(std::mem::take(&mut more), None, &mut again);
                            let run = self.claim_dirty(file, one..one + 1, patience, &mut again);
                            let Some(run) = run else { continue };
                            let results =
                                self.clean(&[run], false, patience, &mut more, &mut again);
                            let errors = results.into_iter().flatten().filter_map(Result::err);
                            errors.for_each(&mut failed);
                        }
                    }
                    Err(error) => failed(error),
                    Ok(()) => {}
                }
            }
            self.run_waiting(more, None, &mut again);
            self.serve_all(&mut again);
        }
        self.serve_all(&mut again);
        if pages == (0..u64::MAX) {
            // Notices that they are clean: those who unlock the file need not ask any more.
            self.dirty_pages(file);
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Claims the next runs of dirty pages: the first one, waiting for busy pages, and what can be
    /// had behind it without. (Who waited with pages claimed could wait for one who waits for
    /// those.)
    fn claim_dirty_runs(
        &self,
        file: FileNo,
        range: Range<u64>,
        patience: Patience,
        again: &mut Again,
    ) -> Vec<Run> {
        let first = self.claim_dirty(file, range.clone(), patience, again);
        let mut runs: Vec<Run> = first.into_iter().collect();
        let may_be_together = self.port.begins_stores(file);
        let (mut room, mut pages) = (WriteRoom::default(), 0);
        while let Some(last) = runs.last() {
            room.take(last, may_be_together);
            pages += last.pages;
            if !room.is_left() || pages >= FLUSH_RUN_PAGES_MAX {
                break;
            }
            let behind = last.place.index + u64::from(last.pages);
            let next = claim_run(&mut self.lock(), file, behind..range.end, patience);
            let Ok(Some(run)) = next else { break };
            runs.push(run);
        }
        runs
    }

    /// Claims the next run of dirty pages, waiting for busy ones.
    fn claim_dirty(
        &self,
        file: FileNo,
        range: Range<u64>,
        patience: Patience,
        again: &mut Again,
    ) -> Option<Run> {
        let mut want = Want::default();
        let claim = |core: &mut Core| {
            let mut marked = None;
            loop {
                match claim_run(core, file, range.clone(), patience) {
                    // Its use may have ended before it was marked.
                    Err(busy) if marked != Some(busy) => {
                        if let (Some(page), State::Resident) = core.state(busy) {
                            core.word(page).awaits();
                            // Where there is a reader at each moment, it would never be written back.
                            want.set(&mut core.wanted, busy);
                        }
                        marked = Some(busy);
                    }
                    Err(_) => return None,
                    Ok(claimed) => {
                        want.clear(&mut core.wanted);
                        return Some(claimed);
                    }
                }
            }
        };
        self.wait_marked(again, claim).1
    }

    /// Writes everything back. What failed earlier and succeeds now is no error: see
    /// [`errors_untold`](Self::errors_untold).
    ///
    /// # Errors
    /// Per file, the errno of the first write that failed.
    pub fn flush_all(&self) -> Vec<(String, PortError)> {
        let files: Vec<(FileNo, u64, String)> = {
            let core = self.lock();
            let named = |(no, f): (usize, &Option<crate::engine::core::File>)| {
                let file = f.as_ref().filter(|f| f.heap.is_none());
                file.map(|f| (no as FileNo, f.pages, f.name.clone()))
            };
            core.files.iter().enumerate().filter_map(named).collect()
        };
        let mut errors = Vec::new();
        for (file, pages, name) in files {
            if let Err(error) = self.write_out(file, 0..pages) {
                if let Some(f) = self.lock().file_mut(file) {
                    f.errors.tell(&mut 0);
                }
                errors.push((name, error));
            }
        }
        errors
    }

    /// Per file, the latest errno of write-backs that failed of which nobody heard.
    pub fn errors_untold(&self) -> Vec<(String, PortError)> {
        let core = self.lock();
        let untold = |file: &File| {
            (file.heap.is_none()).then(|| file.errors.untold()).flatten().map(PortError::Io)
        };
        let files = core.files.iter().flatten();
        files.filter_map(|file| Some((file.name.clone(), untold(file)?))).collect()
    }

    /// Writes back what is dirty now, so that little is lost should the machine die; what a program
    /// has to itself another time. Errors stay with their files, for those who flush.
    ///
    /// # Errors
    /// The errno of the first write that failed.
    pub fn write_behind(&self) -> Result<(), PortError> {
        // Others are not to wait for storage that stands still.
        self.write_files(|file| self.write_out_with(file, 0..u64::MAX, Patience::Storage))
    }

    /// The same for somebody who is about to look at the files without us: what a program changes just now is
    /// waited for, but not for long, should that one be stopped.
    ///
    /// # Errors
    /// The errno of the first write that failed.
    pub fn write_for_outside(&self) -> Result<(), PortError> {
        let until = Instant::now() + CHANGES_MAX;
        self.write_files(|file| self.write_out_then_changing(file, Patience::Storage, until))
    }

    /// Has those files written back of which something is dirty, and does not wait until that is asked for.
    fn write_files(
        &self,
        write_out: impl Fn(FileNo) -> Result<(), PortError>,
    ) -> Result<(), PortError> {
        let files: Vec<FileNo> = {
            let core = self.lock();
            let kept = |f: &File| !f.on_request && f.heap.is_none();
            let files = (0..core.files.len()).map(|no| no as FileNo);
            files.filter(|no| core.file(*no).is_some_and(kept)).collect()
        };
        let mut result = Ok(());
        for file in files {
            if self.dirty_pages(file) > 0 {
                result = result.and(write_out(file));
            }
        }
        result
    }

    /// Whether dirty pages of a file wait until somebody asks for their write-back.
    pub(crate) fn write_on_request(&self, file: FileNo, on_request: bool) {
        let mut core = self.lock();
        let Some(f) = core.file_mut(file) else { return };
        f.on_request = on_request;
        let jobs = self.release(&mut core, file, 0..u64::MAX);
        drop(core);
        jobs.into_iter().for_each(|job| self.finish(job));
    }

    /// Victims that had to stay, and have no reason to any more.
    pub(crate) fn release(&self, core: &mut Core, file: FileNo, pages: Range<u64>) -> Vec<Job> {
        let mut jobs = Vec::new();
        for (_, place) in core.pages_in(file, pages) {
            if core.brain.is_stuck(place) && !core.stays_dirty(place) {
                jobs.push(self.decide(core, Input::Released { place }));
            }
        }
        jobs
    }

    /// Makes sure that pages can be written back once they are dirty; how many of them may become
    /// dirty.
    ///
    /// # Errors
    /// `ENOMEM`: too many pages wait for their write-back; storage has no room.
    pub(crate) fn reserve(&self, place: Place, pages: u64) -> Result<u64, PortError> {
        let (pages, holes) = {
            let mut core = self.lock();
            let holes = core.file(place.segment.0).is_some_and(|f| f.holes);
            (pages.min(core.dirty_room(place.segment.0)), holes)
        };
        if pages == 0 {
            return Err(PortError::Io(pagekeeper_sys::Errno::NOMEM.raw_os_error()));
        }
        if holes {
            self.give_room(place, pages)?;
        }
        Ok(pages)
    }

    /// The same of one page, which may be dirty already; as often as that is said, the file had become
    /// longer within a page before this was asked for.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub(crate) fn reserve_page(
        &self,
        place: Place,
        dirty: bool,
        grown: u64,
    ) -> Result<(), PortError> {
        if dirty {
            // It waits for its write-back already.
            self.give_room(place, 1)?;
        } else {
            self.reserve(place, 1)?;
        }
        self.has_room(place, grown);
        Ok(())
    }

    /// A page has room as a whole, if the file became longer within a page so often, and not since.
    pub(crate) fn has_room(&self, place: Place, grown: u64) {
        let mut core = self.lock();
        if let Some(f) = core.file_mut(place.segment.0).filter(|f| f.grown == grown) {
            f.lacks_room.remove(&place.index);
        }
    }

    /// Makes sure that dirty pages can be written as far as the file reaches by now. Where there is no
    /// room, whoever writes to them next finds out.
    pub(crate) fn reserve_grown(&self, file: FileNo) {
        let (pages, grown) = {
            let core = self.lock();
            let Some(f) = core.file(file) else { return };
            (f.lacks_room.clone(), f.grown)
        };
        for index in pages {
            let place = Place { segment: Segment(file), index };
            if self.dirty_at(place).is_some() {
                let _ = self.reserve_page(place, true, grown);
            }
        }
    }

    /// How often a file had become longer within a page, if this one of it is dirty.
    pub(crate) fn dirty_at(&self, place: Place) -> Option<u64> {
        let core = self.lock();
        let is_dirty = core.brain.page(place).is_some_and(|page| core.word(page).dirty());
        core.file(place.segment.0).filter(|_| is_dirty).map(|f| f.grown)
    }

    fn give_room(&self, place: Place, pages: u64) -> Result<(), PortError> {
        // Giving storage to a hole changes the file's times.
        self.begin_own_write(place.segment.0);
        let reserved = self.port.reserve(place.segment.0, place.index, pages);
        self.end_own_write(place.segment.0);
        reserved
    }

    /// Files that a space maps of which pages are dirty, but heap memory.
    pub(crate) fn dirty_files_of(&self, space: crate::port::SpaceNo) -> Vec<FileNo> {
        let mut files = self.with_space(space, |s| s.files(&(0..u64::MAX))).unwrap_or_default();
        files.retain(|file| !self.is_heap(*file) && self.dirty_pages(*file) > 0);
        files
    }

    /// Pages of a file that are dirty now.
    pub fn dirty_pages(&self, file: FileNo) -> u64 {
        let mut count = 0;
        self.lock().for_each_dirty(file, 0..u64::MAX, |_, _, _| {
            count += 1;
            true
        });
        count
    }

    /// Takes resident pages of a range out of memory. Waits for those of them that are in motion.
    pub(crate) fn drop_pages(
        &self,
        file: FileNo,
        range: Range<u64>,
        which: Leaving,
        again: &mut Again,
    ) {
        let claim = |core: &mut Core| {
            let mut claimed = Vec::new();
            let mut busy = false;
            for (page, place) in core.pages_in(file, range.clone()) {
                let word = core.word(page);
                let stays = match which {
                    Leaving::Clean => word.dirty() || word.holds() > 0,
                    Leaving::Unheld => word.holds() > 0,
                    Leaving::All => false,
                };
                if stays {
                    continue;
                }
                if !word.doomed() && core.claim_leaving(page, place) == Claim::Made {
                    claimed.push((page, place));
                } else {
                    busy = true;
                }
            }
            (!busy || !claimed.is_empty()).then_some((claimed, busy))
        };
        loop {
            let (core, (claimed, busy)) = self.wait_until(again, claim);
            drop(core);
            let mut rest = &claimed[..];
            while let Some(&(_, first)) = rest.first() {
                let next = |(n, (_, p)): &(usize, &(_, pagekeeper_frames::Place))| {
                    p.index == first.index + *n as u64
                };
                let pages = rest.iter().enumerate().take_while(next).count();
                let _ = self.port.discard(file, first.index, pages as u64);
                rest = &rest[pages..];
            }
            let mut core = self.lock();
            for (page, place) in claimed {
                core.end_presumption(page, file);
                core.word(page).dropped();
                core.rests(file);
                // Only now: the frame was in use until its page was out.
                let input = Input::Drop { segment: Segment(file), first: place.index, pages: 1 };
                self.decide(&mut core, input);
                again.extend(core.unpark(place));
            }
            self.rested();
            if !busy {
                return;
            }
        }
    }
}

/// Claims the next run of dirty pages, if there is one; or says that its first page is busy and waited
/// for.
fn claim_run(
    core: &mut Core,
    file: FileNo,
    range: Range<u64>,
    patience: Patience,
) -> Result<Option<Run>, Place> {
    if !patience.is_for_any_write() && core.is_overdue(file) {
        return Ok(None);
    }
    let mut run: Option<Run> = None;
    let mut busy = None;
    core.for_each_dirty(file, range, |core, page, place| {
        let word = core.word(page);
        let ready = !word.doomed() && !core.fenced(place);
        match &mut run {
            Some(r) => {
                let next = r.gap_to(place) == Some(0);
                let more = next && r.pages < FLUSH_RUN_PAGES_MAX;
                if !(ready && more && core.claim_clean(page, place)) {
                    return false;
                }
                r.pages += 1;
                true
            }
            None if ready && core.claim_clean(page, place) => {
                run = Some(Run { place, pages: 1, demanded: 0 });
                true
            }
            None if core.fenced(place) && !patience.is_for_changes() => {
                if let Some(f) = core.file_mut(file) {
                    f.passed_over += 1;
                }
                true
            }
            None if word.is_held_alone() && !patience.is_for_holders() => true,
            None => {
                busy = Some(place);
                false
            }
        }
    });
    busy.map_or(Ok(run), Err)
}
