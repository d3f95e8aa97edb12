//! Jobs: what a decision asks for, carried out.

use crate::core::{Core, Doomed, Job, Late};
use crate::engine::{Again, Buffer, Engine};
use crate::port::{Mapped, PAGE_BYTES, Port, PortError, SpaceNo};
use crate::spaces::Region;
use crate::stats::Spent;
use crate::word::State;
use pagekeeper_frames::{Place, Run, WINDOW_PAGES_MAX};
use pagekeeper_policy::Page;
use std::collections::VecDeque;

/// Buffers of each kind kept for the next transfers.
const BUFFERS_KEPT: usize = 3;
/// Size of the short ones.
const SHORT_BUFFER_BYTES: usize = 16 << 10;

/// Where fetched pages are mapped: who asked for them.
type Asker = Option<(SpaceNo, Region)>;

/// Jobs that no fault waits for, oldest first.
#[derive(Default, Debug)]
pub(crate) struct Queue {
    jobs: VecDeque<(Job, Asker)>,
    /// How many of them some thread has promised to carry out.
    promised: usize,
}

/// A claim check for queued work. Who holds it calls [`Engine::run_deferred`]; a sleeper may have
/// been faster.
#[derive(Debug)]
pub struct Deferred(());

impl<P: Port> Engine<P> {
    /// Carries out a job that no fault waits for; what it fetches is mapped in the space that
    /// asked. Never sleeps.
    pub(crate) fn run(&self, mut job: Job, asker: Asker, again: &mut Again) {
        if job.is_empty() {
            return;
        }
        if let Some((space, region)) = asker {
            for run in std::mem::take(&mut job.map) {
                self.map_run(run, space, region, false);
            }
        }
        if job.fetch.is_empty() || !self.port.defer() {
            self.run_here(job, asker, false, again);
        } else {
            self.run_later(job, asker);
        }
    }

    /// Carries out a job on whose room a fault waits.
    pub(crate) fn run_waiting(&self, job: Job, asker: Asker, again: &mut Again) {
        if !job.is_empty() {
            self.run_here(job, asker, true, again);
        }
    }

    /// Carries out a job that no fault waits for, and what follows from it.
    pub(crate) fn finish(&self, job: Job) {
        if !job.is_empty() {
            let mut again = Again::new();
            let wait = job.fetch.is_empty();
            self.run_here(job, None, wait, &mut again);
            self.serve_all(&mut again);
        }
    }

    /// Queues a job. If no thread takes it, the next one that has served faults does.
    pub(crate) fn run_later(&self, job: Job, asker: Asker) {
        if job.is_empty() {
            return;
        }
        self.queue_up(job, asker);
        self.tell_sleepers();
    }

    /// Queues a job, and lets sleepers sleep.
    pub(crate) fn queue_up(&self, job: Job, asker: Asker) {
        {
            let mut queue = self.queue.lock().expect("queue");
            queue.jobs.push_back((job, asker));
            queue.promised += 1;
        }
        if !self.port.defer() || self.port.hand_over(Deferred(())).is_err() {
            self.queue.lock().expect("queue").promised -= 1;
        }
    }

    /// Carries out a job that was handed over.
    pub fn run_deferred(&self, deferred: Deferred) {
        let Deferred(()) = deferred;
        self.queue.lock().expect("queue").promised -= 1;
        let mut again = Again::new();
        self.run_queued(&mut again);
        self.serve_all(&mut again);
    }

    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.lock().expect("queue").jobs.is_empty()
    }

    /// Carries out the oldest queued job, if there is one. Never sleeps.
    pub(crate) fn run_queued(&self, again: &mut Again) {
        let next = self.queue.lock().expect("queue").jobs.pop_front();
        if let Some((job, asker)) = next {
            self.run_here(job, asker, false, again);
        }
    }

    /// Carries out the queued jobs that nobody promised to.
    pub(crate) fn run_unclaimed(&self, again: &mut Again) {
        loop {
            let next = {
                let mut queue = self.queue.lock().expect("queue");
                if queue.jobs.len() <= queue.promised {
                    return;
                }
                queue.jobs.pop_front()
            };
            let Some((job, asker)) = next else { return };
            self.run_here(job, asker, false, again);
        }
    }

    fn run_here(&self, mut job: Job, asker: Asker, wait: bool, again: &mut Again) {
        self.make_room(&mut job, wait, again);
        for run in self.fetch_along(std::mem::take(&mut job.fetch), again) {
            if let Some((space, region)) = asker {
                self.map_run(run, space, region, false);
            }
        }
        self.unmap(job);
    }

    /// Carries out a job whose fetches somebody waits for; reports their first error.
    pub(crate) fn fetch_job(&self, mut job: Job, again: &mut Again) -> Result<(), PortError> {
        self.make_room(&mut job, true, again);
        let mut result = Ok(());
        for run in std::mem::take(&mut job.fetch) {
            if let Err(error) = self.fetch(run, false, false, again)
                && run.demanded > 0
            {
                result = result.and(Err(error));
            }
        }
        self.unmap(job);
        result
    }

    // ---- room -------------------------------------------------------------------------------

    /// Evicts and cleans what a job asks for. When room cannot be had without risking that two
    /// jobs wait for each other, the job's fetches are given up: their pages are absent again.
    pub(crate) fn make_room(&self, job: &mut Job, wait: bool, again: &mut Again) {
        let mut more = Job::default();
        self.clear_out(job, &mut more, again);
        for doomed in std::mem::take(&mut job.late) {
            let victim = doomed.victim;
            match self.late(doomed, wait, again) {
                Late::Claimed => self.evict(vec![victim], &mut more, again),
                Late::Gone => {}
                Late::Kept(others) => {
                    more.append(others);
                    again.extend(self.lock().unpark(victim.place));
                }
                Late::Busy => more.late.push(doomed),
            }
        }
        // Victims in place of others that had to stay.
        while !(more.evict.is_empty() && more.clean.is_empty() && more.late.is_empty()) {
            let late = std::mem::take(&mut more.late);
            if !late.is_empty() {
                // These were chosen after this job's pages were claimed (or nobody may wait at
                // all): their holders may be waiting for exactly those pages.
                for run in job.fetch.drain(..).chain(more.fetch.drain(..)) {
                    self.abandon(run, 0, again);
                }
                self.spare(late, &mut more, again);
            }
            let mut next = Job {
                evict: std::mem::take(&mut more.evict),
                clean: std::mem::take(&mut more.clean),
                ..Job::default()
            };
            self.clear_out(&mut next, &mut more, again);
        }
        job.append(more);
    }

    /// Evicts and cleans what can be without waiting; what follows from that goes to `more`.
    fn clear_out(&self, job: &mut Job, more: &mut Job, again: &mut Again) {
        for run in std::mem::take(&mut job.clean) {
            if let Err(error) = self.clean(run, true, more, again) {
                self.lock().note_error(run.place.segment.0, error);
            }
        }
        self.evict(std::mem::take(&mut job.evict), more, again);
    }

    /// Claims a victim that was busy when it was chosen, waiting for it or not.
    fn late(&self, doomed: Doomed, wait: bool, again: &mut Again) -> Late {
        if !wait {
            return self.lock().claim_late(doomed);
        }
        let settled = |core: &mut Core| match core.claim_late(doomed) {
            Late::Busy => None,
            settled => Some(settled),
        };
        self.wait_until(again, settled).1
    }

    /// Busy victims stay after all.
    fn spare(&self, victims: Vec<Doomed>, more: &mut Job, again: &mut Again) {
        let mut core = self.lock();
        for doomed in victims {
            more.append(core.spare(doomed));
            again.extend(core.unpark(doomed.victim.place));
        }
        self.rested();
    }

    /// Makes pages' next touches visible.
    pub(crate) fn unmap(&self, job: Job) {
        if job.unmap.is_empty() {
            return;
        }
        self.times.of(Spent::Kernel, || {
            for (space, ranges) in &job.unmap {
                self.port.zap(*space, ranges);
            }
        });
    }

    // ---- fetching ---------------------------------------------------------------------------

    /// Memory for a transfer: a short or a long buffer, kept ones first, since new memory costs
    /// a fault a page.
    pub(crate) fn take_buffer(&self, bytes: usize) -> Result<Buffer, PortError> {
        let short = bytes <= SHORT_BUFFER_BYTES;
        {
            let mut pool = self.buffers.lock().expect("buffer pool");
            let fits = |b: &Buffer| b.len() >= bytes && (b.len() <= SHORT_BUFFER_BYTES) == short;
            if let Some(at) = pool.iter().rposition(fits) {
                return Ok(pool.swap_remove(at));
            }
        }
        let bytes = if short { SHORT_BUFFER_BYTES } else { bytes };
        Buffer::new(bytes).map_err(|e| PortError::Io(e.raw_os_error()))
    }

    pub(crate) fn give_buffer(&self, buffer: Buffer) {
        let mut pool = self.buffers.lock().expect("buffer pool");
        let short = |b: &Buffer| b.len() <= SHORT_BUFFER_BYTES;
        let alike = pool.iter().filter(|b| short(b) == short(&buffer)).count();
        if alike < BUFFERS_KEPT {
            pool.push(buffer);
        } else if let Some(at) = pool.iter().position(|b| !short(b) && b.len() < buffer.len()) {
            pool[at] = buffer;
        }
    }

    /// Fetches a claimed run. Pages fetched ahead never make the demanded ones fail, and of
    /// several demanded ones the later never make the first fail: the run may come back shorter.
    /// With `pin` its first page comes back pinned.
    pub(crate) fn fetch(
        &self,
        run: Run,
        dirty: bool,
        pin: bool,
        again: &mut Again,
    ) -> Result<Run, PortError> {
        debug_assert!(run.pages <= WINDOW_PAGES_MAX.max(run.demanded));
        let mut buffer = None;
        let result = self.fetch_with(&mut buffer, run, dirty, pin, again);
        if let Some(buffer) = buffer {
            self.give_buffer(buffer);
        }
        result
    }

    /// Brings pages from storage into the file's frames; `buffer` is kept for the next try.
    fn load(&self, buffer: &mut Option<Buffer>, run: Run) -> Result<u64, PortError> {
        let (file, index) = (run.place.segment.0, run.place.index);
        let pages = u64::from(run.pages);
        let in_place = self.times.of(Spent::Io, || self.port.load_in_place(file, index, pages));
        if let Some(loaded) = in_place {
            return loaded;
        }
        let bytes = (pages * self.page_bytes) as usize;
        let buffer = match buffer {
            Some(buffer) => buffer,
            none => none.insert(self.take_buffer(bytes)?),
        };
        let data = &mut buffer[..bytes];
        let loaded = self.times.of(Spent::Io, || self.port.load(file, index, data))?;
        self.times.of(Spent::Kernel, || self.port.fill(file, index, data))?;
        Ok(loaded)
    }

    /// Fetches claimed runs that nobody waits for, those near each other in one request; returns
    /// what came.
    pub(crate) fn fetch_along(&self, runs: Vec<Run>, again: &mut Again) -> Vec<Run> {
        let near = |a: &Run, b: &Run| {
            let gap = a.gap_to(b.place);
            gap.is_some_and(|gap| gap <= self.port.gap_pages_max(a.place.segment.0))
        };
        let mut came = Vec::with_capacity(runs.len());
        for group in runs.chunk_by(near) {
            if group.len() > 1 && self.fetch_span(group, again) {
                came.extend(group);
                continue;
            }
            let each = group.iter().map(|run| self.fetch(*run, false, false, again));
            came.extend(each.flatten());
        }
        came
    }

    /// Fetches claimed runs and what lies between them, which is read for nothing. Where that
    /// fails, each is to be fetched by itself.
    fn fetch_span(&self, runs: &[Run], again: &mut Again) -> bool {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return true };
        let (file, begin) = (first.place.segment.0, first.place.index);
        let pages = last.place.index + u64::from(last.pages) - begin;
        let bytes = (pages * self.page_bytes) as usize;
        if pages > u64::from(WINDOW_PAGES_MAX) {
            return false;
        }
        let Ok(mut buffer) = self.take_buffer(bytes) else { return false };
        let data = &mut buffer[..bytes];
        let loaded = self.times.of(Spent::Io, || self.port.load(file, begin, data));
        let is_filled = loaded.is_ok()
            && runs.iter().all(|run| {
                let from = ((run.place.index - begin) * self.page_bytes) as usize;
                let part = &data[from..from + (u64::from(run.pages) * self.page_bytes) as usize];
                self.times.of(Spent::Kernel, || self.port.fill(file, run.place.index, part)).is_ok()
            });
        self.give_buffer(buffer);
        let Some(loaded) = loaded.ok().filter(|_| is_filled) else { return false };
        for (number, run) in runs.iter().enumerate() {
            self.arrived(*run, if number == 0 { loaded } else { 0 }, false, false, again);
        }
        true
    }

    /// A claimed run is in memory; so many bytes of it were read from storage.
    pub(crate) fn arrived(&self, run: Run, bytes: u64, dirty: bool, pin: bool, again: &mut Again) {
        let mut core = self.lock();
        for i in 0..run.pages {
            let place = Place { index: run.place.index + u64::from(i), ..run.place };
            let page = core.brain.page(place).expect("claimed pages are numbered");
            core.word(page).filled(dirty && i < run.demanded);
            if dirty && i < run.demanded {
                core.note_dirty(place);
            }
            if core.brain.is_marker(place) {
                core.word(page).notice();
            }
            if pin && i == 0 {
                core.word(page).pin();
            }
            again.extend(core.unpark(place));
        }
        self.count(&mut core, run.place.segment.0, |c| c.read_bytes += bytes);
        self.rested();
    }

    fn fetch_with(
        &self,
        buffer: &mut Option<Buffer>,
        mut run: Run,
        dirty: bool,
        pin: bool,
        again: &mut Again,
    ) -> Result<Run, PortError> {
        let loaded = loop {
            let filled = self.load(buffer, run);
            let keep = if run.pages > run.demanded { run.demanded } else { 1 };
            match filled {
                Err(_) if run.demanded > 0 && run.pages > keep => {
                    self.abandon(run, keep, again);
                    run.pages = keep;
                    run.demanded = keep;
                }
                other => break other,
            }
        };
        match loaded {
            Ok(bytes) => {
                self.arrived(run, bytes, dirty, pin, again);
                Ok(run)
            }
            Err(error) => {
                self.abandon(run, 0, again);
                Err(error)
            }
        }
    }

    /// Gives up the claimed pages of a run from `keep` on.
    pub(crate) fn abandon(&self, run: Run, keep: u32, again: &mut Again) {
        // A fill that failed may have put some of the pages in.
        let from = run.place.index + u64::from(keep);
        let _ = self.port.discard(run.place.segment.0, from, u64::from(run.pages - keep));
        let gone =
            Run { place: Place { index: from, ..run.place }, pages: run.pages - keep, demanded: 0 };
        let mut core = self.lock();
        core.fill_failed(gone);
        again.extend(core.unpark_range(run.place.segment.0, from..from + u64::from(gone.pages)));
        self.rested();
    }

    /// Maps fetched pages in a space, but for those whose first touch is to be seen. With `pinned`
    /// the first page was pinned by the fetch, is mapped in any case, and unpinned. Returns whether
    /// the first page is mapped now, or need not be since the space has changed.
    pub(crate) fn map_run(&self, run: Run, space: SpaceNo, region: Region, pinned: bool) -> bool {
        if run.place.segment.0 != region.file {
            // A policy's wish for a page of another file.
            return false;
        }
        let core = self.lock();
        let mut parts: Vec<(u64, u64, bool, Vec<Page>)> = Vec::new();
        let mut first = None;
        for i in 0..run.pages {
            let place = Place { index: run.place.index + u64::from(i), ..run.place };
            let addr = (place.index * PAGE_BYTES).wrapping_sub(region.bias);
            let Some(page) = core.brain.page(place) else { continue };
            let word = core.word(page);
            let wanted = pinned && i == 0;
            if wanted {
                first = Some(page);
            }
            // The mapping may have been split or moved meanwhile.
            if core.region(space, addr) != Some(region) {
                continue;
            }
            let ready = word.state() == State::Resident && !word.doomed();
            let unseen = ready && core.brain.is_mapped(place);
            if !(wanted || unseen) {
                continue;
            }
            let protect = if region.shared {
                !word.dirty()
            } else {
                let space = core.spaces.get(space as usize).and_then(Option::as_ref);
                !space.is_some_and(|s| s.private.contains(&addr))
            };
            if !wanted {
                word.pin();
            }
            match parts.last_mut() {
                Some((start, pages, p, pinned))
                    if *p == protect && *start + *pages * PAGE_BYTES == addr =>
                {
                    *pages += 1;
                    pinned.push(page);
                }
                _ => parts.push((addr, 1, protect, vec![page])),
            }
        }
        drop(core);
        let mut first_mapped = true;
        for (addr, pages, protect, pinned) in parts {
            let mapped: Result<(), PortError> = self.times.of(Spent::Kernel, || {
                let mapped = self.map(space, region, addr, pages, protect)?;
                if mapped == (Mapped { existed: true }) && !protect {
                    self.unprotect(space, region, addr, pages)?;
                }
                Ok(())
            });
            for page in pinned {
                if first == Some(page) {
                    first = None;
                    first_mapped = mapped.is_ok();
                }
                self.unpin(page);
            }
        }
        if let Some(page) = first {
            self.unpin(page);
            first_mapped = false;
        }
        first_mapped
    }
}
