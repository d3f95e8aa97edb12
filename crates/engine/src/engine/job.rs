//! Jobs: what a decision asks for, carried out.

use crate::engine::core::{Core, Doomed, Fault, Job, Late};
use crate::engine::patience::Patience;
use crate::engine::spaces::Region;
use crate::engine::stats::Spent;
use crate::engine::word::State;
use crate::engine::{Again, Engine};
use crate::port::{Mapped, Port, PortError, SpaceNo};
use pagekeeper_frames::Run;
use pagekeeper_policy::Page;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// How long a job waits for victims that are busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// Until they are at rest: a fault waits for the room. But not for ever: who is about them may hold
    /// other pages, and wait for this one's.
    Long,
    /// A moment, for those that are being written back or taken out.
    Little,
    /// Not at all: whoever carries it out may be waiting himself.
    Not,
}

/// [`Wait::Long`]
const LONG: Duration = Duration::from_secs(1);
/// [`Wait::Little`]
const LITTLE: Duration = Duration::from_millis(100);

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
                self.map_run(run, space, region, false, again);
            }
        }
        if job.fetch.is_empty() || !self.port.defer() {
            self.run_here(job, asker, Wait::Not, again);
        } else {
            self.run_later(job, asker);
        }
    }

    /// Carries out a job on whose room a fault waits.
    pub(crate) fn run_waiting(&self, job: Job, asker: Asker, again: &mut Again) {
        if !job.is_empty() {
            self.run_here(job, asker, Wait::Long, again);
        }
    }

    /// Carries out a job that no fault waits for, and what follows from it.
    pub(crate) fn finish(&self, job: Job) {
        if !job.is_empty() {
            let mut again = Again::new();
            let wait = if job.fetch.is_empty() { Wait::Long } else { Wait::Not };
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
            self.queued.fetch_add(1, SeqCst);
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
        self.run_oldest(Wait::Little, &mut again);
        self.serve_all(&mut again);
    }

    pub(crate) fn has_queued(&self) -> bool {
        self.queued.load(SeqCst) > 0
    }

    /// Carries out the oldest queued job, if there is one. Never sleeps.
    pub(crate) fn run_queued(&self, again: &mut Again) {
        self.run_oldest(Wait::Not, again);
    }

    fn run_oldest(&self, wait: Wait, again: &mut Again) {
        let next = self.queue.lock().expect("queue").jobs.pop_front();
        if let Some((job, asker)) = next {
            self.queued.fetch_sub(1, SeqCst);
            self.run_here(job, asker, wait, again);
        }
    }

    /// Carries out the queued jobs that nobody promised to.
    pub(crate) fn run_unclaimed(&self, again: &mut Again) {
        while self.has_queued() {
            let next = {
                let mut queue = self.queue.lock().expect("queue");
                if queue.jobs.len() <= queue.promised {
                    return;
                }
                queue.jobs.pop_front()
            };
            let Some((job, asker)) = next else { return };
            self.queued.fetch_sub(1, SeqCst);
            self.run_here(job, asker, Wait::Not, again);
        }
    }

    fn run_here(&self, mut job: Job, asker: Asker, wait: Wait, again: &mut Again) {
        let requests = self.prepare(&mut job, wait, again);
        self.unmap(&mut job);
        // Nobody waits for any of it.
        let _ = self.complete_all(requests, again, |run, again| {
            if let Some((space, region)) = asker {
                self.map_run(run, space, region, false, again);
            }
        });
    }

    /// Carries out a job whose fetches somebody waits for; reports their first error.
    pub(crate) fn fetch_job(&self, mut job: Job, again: &mut Again) -> Result<(), PortError> {
        let requests = self.prepare(&mut job, Wait::Long, again);
        self.unmap(&mut job);
        self.complete_all(requests, again, |_, _| {})
    }

    // ---- room -------------------------------------------------------------------------------

    /// Evicts and cleans what a job asks for. When room cannot be had without risking that two
    /// jobs wait for each other, the job's fetches are given up: their pages are absent again.
    /// Returns whether they are still to be done.
    pub(crate) fn make_room(&self, job: &mut Job, wait: Wait, again: &mut Again) -> bool {
        let mut is_on = true;
        let mut more = Job::default();
        self.clear_out(job, &mut more, again);
        for doomed in std::mem::take(&mut job.late) {
            // Who sleeps has claimed nothing after what it waits for: others wait for that, with what they
            // claimed before.
            self.clear_out_rest(&mut more, again);
            let victim = doomed.victim;
            match self.late(doomed, wait, again) {
                Late::Claimed => self.evict(&mut [victim], &mut more, again),
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
                is_on = false;
                for run in job.fetch.drain(..).chain(more.fetch.drain(..)) {
                    self.abandon(run, 0, again);
                }
                self.spare(late, &mut more, again);
            }
            self.clear_out_rest(&mut more, again);
        }
        if !more.is_empty() {
            job.append(more);
        }
        is_on
    }

    /// Evicts and cleans what was chosen in place of others that had to stay, until nothing is.
    fn clear_out_rest(&self, more: &mut Job, again: &mut Again) {
        while !(more.evict.is_empty() && more.clean.is_empty()) {
            let mut next = Job {
                evict: std::mem::take(&mut more.evict),
                clean: std::mem::take(&mut more.clean),
                ..Job::default()
            };
            self.clear_out(&mut next, more, again);
        }
    }

    /// Evicts and cleans what can be without waiting; what follows from that goes to `more`.
    fn clear_out(&self, job: &mut Job, more: &mut Job, again: &mut Again) {
        let runs = std::mem::take(&mut job.clean);
        let cleaned = if runs.is_empty() {
            Vec::new()
        } else {
            self.clean(&runs, true, Patience::Storage, more, again)
        };
        for (run, result) in runs.iter().zip(cleaned) {
            if let Some(Err(error)) = result {
                self.lock().note_error(run.place.segment.0, error);
            }
        }
        self.evict(&mut job.evict, more, again);
        job.evict.clear();
    }

    /// Claims a victim that was busy when it was chosen, waiting for it or not.
    fn late(&self, doomed: Doomed, wait: Wait, again: &mut Again) -> Late {
        let settled = |core: &mut Core| match core.claim_late(doomed) {
            Late::Busy => None,
            settled => Some(settled),
        };
        let settled_soon = |core: &mut Core| match core.claim_late(doomed) {
            Late::Busy if core.on_its_way_out(doomed) => None,
            late => Some(late),
        };
        match wait {
            Wait::Long => self.wait_at_most(LONG, again, settled).unwrap_or(Late::Busy),
            Wait::Little => self.wait_at_most(LITTLE, again, settled_soon).unwrap_or(Late::Busy),
            Wait::Not => self.lock().claim_late(doomed),
        }
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
    pub(crate) fn unmap(&self, job: &mut Job) {
        let unmap = std::mem::take(&mut job.unmap);
        if unmap.is_empty() {
            return;
        }
        self.times.of(Spent::Kernel, || {
            for (space, ranges) in &unmap {
                self.port.zap(*space, ranges);
            }
        });
    }

    /// Maps fetched pages in a space, but for those whose first touch is to be seen, and those that a
    /// store waits for there which is served next (`again`): it would fault once more on what was mapped
    /// for reading, and that fault, served when the page was written back since, would make it dirty for
    /// nothing. With `pinned` the first page was pinned by the fetch, is mapped in any case, and unpinned.
    /// Returns whether the first page is mapped now, or need not be since the space has changed.
    pub(crate) fn map_run(
        &self,
        run: Run,
        space: SpaceNo,
        region: Region,
        pinned: bool,
        again: &Again,
    ) -> bool {
        if run.place.segment.0 != region.file {
            // A policy's wish for a page of another file.
            return false;
        }
        let core = self.lock();
        let mut parts: Vec<(u64, u64, bool, Vec<Page>)> = Vec::new();
        let mut first = None;
        for (i, place) in (0..).zip(run.places()) {
            let addr = (place.index * self.page_bytes).wrapping_sub(region.bias);
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
            let is_stored_to = |fault: &Fault| {
                let page = addr..addr + self.page_bytes;
                fault.space == space && fault.write && page.contains(&fault.addr)
            };
            if !wanted && region.shared && again.iter().any(is_stored_to) {
                continue;
            }
            let protect = if region.shared {
                !word.dirty() || self.exact && !wanted || core.lacks_room(place)
            } else {
                !core.is_own_copy(space, addr)
            };
            if !wanted {
                word.pin();
            }
            match parts.last_mut() {
                Some((start, pages, p, pinned))
                    if *p == protect && *start + *pages * self.page_bytes == addr =>
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
