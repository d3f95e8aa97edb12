//! What the engine does for the library's callers when a page is not ready: bring it in, wait for
//! it, tell the brain.

use crate::engine::core::{Core, Job};
use crate::engine::job::Wait;
use crate::engine::patience::Patience;
use crate::engine::wanted::Want;
use crate::engine::word::{Ended, State, Use, WordRef};
use crate::engine::{Again, Engine};
use crate::port::{Port, PortError};
use pagekeeper_frames::{Input, Place, Run};
use pagekeeper_policy::Page;
use pagekeeper_sys::Errno;
use pagekeeper_sys::cancel::Uncancelled;
use std::cell::Cell;
use std::sync::MutexGuard;

/// Work that a use of a page led to. A pin is ended first: nobody sleeps with one.
#[must_use]
#[derive(Default)]
pub(crate) struct After {
    job: Job,
    again: Again,
}

/// How a page was found that somebody came to use.
enum Found {
    /// Behind the end: there is no such page.
    Behind,
    /// By somebody else, who is not waited for.
    Held,
    /// By as many as can hold it, all of whom may be waiting for this one.
    HeldByMost,
    /// At rest and ready, or absent.
    Ready(Option<Page>, State),
}

thread_local! {
    /// Memory of the thread's last one, for its next.
    static SPARE: Cell<Option<Box<After>>> = const { Cell::new(None) };
}

impl After {
    /// Nothing to do yet.
    pub(crate) fn nothing() -> Box<After> {
        SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default()
    }
}

impl<P: Port> Engine<P> {
    /// Carries out what a use led to.
    pub(crate) fn after(&self, mut after: Box<After>) {
        let After { job, again } = &mut *after;
        if !job.is_empty() {
            self.run(std::mem::take(job), None, again);
        }
        self.serve_all(again);
        // A thread that ends has no use for it.
        let _ = SPARE.try_with(|spare| spare.set(Some(after)));
    }

    /// Waits for a page to be at rest and ready for a use, or absent.
    fn ready(core: &mut Core, place: Place, how: Use, patience: Patience) -> Option<Found> {
        if core.file(place.segment.0).is_none_or(|f| place.index >= f.pages) {
            return Some(Found::Behind);
        }
        let (page, state) = core.state(place);
        let ready = match (page, state) {
            (_, State::Absent) => !core.unfetchable(place),
            (Some(page), State::Resident) => {
                let word = core.word(page);
                if !word.is_usable(how) && word.holds() > 0 && patience == Patience::Motion {
                    return Some(Found::Held);
                }
                if how == Use::Shared && word.is_held_by_most() {
                    return Some(Found::HeldByMost);
                }
                let barred = how.writes() && !word.dirty() && core.unwritable(place);
                if !how.writes() && core.wanted.goes_first(place) {
                    word.awaits();
                    return None;
                }
                word.is_usable_or_awaited(how) && !barred
            }
            _ => false,
        };
        ready.then_some(Found::Ready(page, state))
    }

    /// [`ready`](Self::ready), waited for. Readers that come while a writer waits let it go first.
    fn await_ready<'a>(
        &'a self,
        place: Place,
        how: Use,
        patience: Patience,
        again: &mut Again,
    ) -> (MutexGuard<'a, Core>, Found) {
        let mut want = Want::default();
        let ready = |core: &mut Core| {
            let found = Self::ready(core, place, how, patience);
            match (&found, core.state(place)) {
                (Some(_), _) => want.clear(&mut core.wanted),
                // A page that a change bars is not kept from readers.
                (None, (Some(page), State::Resident))
                    if how.writes() && !core.word(page).is_usable(how) =>
                {
                    want.set(&mut core.wanted, place);
                }
                _ => {}
            }
            found
        };
        self.wait_marked(again, ready)
    }

    /// Waits until nobody uses a page in a way that excludes this one.
    pub(crate) fn await_holders(&self, place: Place, how: Use) {
        let mut again = Again::new();
        drop(self.await_ready(place, how, Patience::Holders, &mut again));
        self.serve_all(&mut again);
    }

    /// Begins a use of a page, bringing it in if it is absent; `want` pages from there on will be
    /// needed. `None`: the page lies behind the end. What follows is put into `after`, whatever came of
    /// it.
    ///
    /// # Errors
    /// Storage failed; [`PortError::Again`]: somebody holds it, who is not waited for; `EUSERS`: as
    /// many hold it as can.
    pub(crate) fn use_page(
        &self,
        place: Place,
        how: Use,
        mut want: u64,
        patience: Patience,
        after: &mut After,
    ) -> Result<Option<Page>, PortError> {
        let After { job, again } = after;
        let mut reserved = None;
        loop {
            let (mut core, found) = self.await_ready(place, how, patience, again);
            let (page, state) = match found {
                Found::Behind => return Ok(None),
                Found::Held => return Err(PortError::Again),
                Found::HeldByMost => return Err(PortError::Io(Errno::USERS.raw_os_error())),
                Found::Ready(page, state) => (page, state),
            };
            if core.has_no_number_for(page) {
                return Err(PortError::Io(Errno::NOMEM.raw_os_error()));
            }
            let was_told = core.touched(&self.touches, job);
            let dirty = page.is_some_and(|page| core.word(page).dirty());
            let file = core.file(place.segment.0);
            let lacks_room = file.is_some_and(|f| f.lacks_room.contains(&place.index));
            let ask = file.is_some_and(|f| f.holes || f.on_request);
            let grown = file.map_or(0, |f| f.grown);
            let has_room = if dirty { !lacks_room } else { reserved == Some(grown) };
            if how.writes() && ask && !has_room {
                drop(core);
                self.run(std::mem::take(job), None, again);
                self.serve_all(again);
                // A full disk is an error at the write, not at some later write-back.
                self.reserve_page(place, dirty, grown)?;
                reserved = Some(grown);
                continue;
            }
            // Telling of touches may have led to this very page's being fetched ahead.
            if state == State::Absent && was_told && core.state(place).1 != State::Absent {
                drop(core);
                self.run(std::mem::take(job), None, again);
                continue;
            }
            let Some(page) = page.filter(|_| state == State::Resident) else {
                match self.bring_in(core, job, place, how, want, again)? {
                    // Where nearly all frames hold what cannot leave, the first of several that come
                    // together goes for the last: alone it stays.
                    None => want = 1,
                    found => return Ok(found),
                }
                continue;
            };
            // What changed since may be a touch that the rings told of.
            if !core.word(page).begin(how) {
                drop(core);
                self.run(std::mem::take(job), None, again);
                continue;
            }
            if lacks_room && dirty && !how.writes() {
                // The next one may write.
                core.word(page).notice();
            }
            if how.writes() && !dirty {
                core.note_dirty(place);
                self.count(&mut core, place.segment.0, |c| c.write_faults += 1);
            }
            let touch = Input::Touch { place, write: how.writes(), map: false };
            self.decide_into(&mut core, touch, job);
            return Ok(Some(page));
        }
    }

    /// Fetches an absent page. Returned for reading, it is pinned; else it has to be looked for
    /// again.
    fn bring_in(
        &self,
        mut core: MutexGuard<'_, Core>,
        job: &mut Job,
        place: Place,
        how: Use,
        want: u64,
        again: &mut Again,
    ) -> Result<Option<Page>, PortError> {
        self.touches.missed();
        // Others' fetches are nobody's need here.
        let others = (!job.is_empty()).then(|| std::mem::take(job));
        let want = u32::try_from(want).unwrap_or(u32::MAX);
        let input = Input::Major { place, want, write: false, map: false };
        self.decide_into(&mut core, input, job);
        let page = core.brain.page(place);
        let demanded: u64 = job.fetch.iter().map(|r| u64::from(r.demanded)).sum();
        self.count(&mut core, place.segment.0, |c| c.major_faults += demanded);
        drop(core);
        if let Some(others) = others {
            self.run(others, None, again);
        }
        self.run_ahead(job, place);
        self.make_room(job, Wait::Long, again);
        let pin = how == Use::Read;
        let mut result = Ok(None);
        for at in 0..job.fetch.len() {
            let run = job.fetch[at];
            let asked_for = run.place == place;
            match self.fetch_in_parts(run, pin && asked_for, again) {
                Ok(()) if asked_for && pin => result = Ok(page),
                Err(error) if asked_for => result = Err(error),
                _ => {}
            }
        }
        job.fetch.clear();
        if matches!(result, Ok(None)) && !job.is_empty() {
            self.run(std::mem::take(job), None, again);
        }
        result
    }

    /// Tells the brain what was used without the lock; what follows.
    pub(crate) fn told(&self, core: &mut Core) -> Job {
        let mut job = Job::default();
        core.touched(&self.touches, &mut job);
        job
    }

    /// Leaves to another thread what comes along with the page that somebody waits for, with the
    /// victims in its place: so both are read at a time.
    fn run_ahead(&self, job: &mut Job, place: Place) {
        if !self.port.defer() || job.fetch.len() < 2 {
            return;
        }
        let is_waited_for = |run: &mut Run| run.place == place;
        let fetch: Vec<Run> = job.fetch.extract_if(.., |run| !is_waited_for(run)).collect();
        let needed: u32 = job.fetch.iter().map(|run| run.pages).sum();
        let evict = job.evict.split_off(job.evict.len().min(needed as usize));
        self.run_later(Job { fetch, evict, ..Job::default() }, None);
    }

    /// Makes absent pages resident with content that the caller brings along, whole pages of it.
    /// Returns how many: 0 if the first is not absent or lies behind the end.
    ///
    /// # Errors
    /// There is no room on storage or in memory; [`PortError::Again`]: somebody holds the first, who
    /// is not waited for.
    pub(crate) fn overwrite(
        &self,
        place: Place,
        data: &[u8],
        patience: Patience,
    ) -> Result<u64, PortError> {
        let file = place.segment.0;
        let _later = Uncancelled::new();
        let mut again = Again::new();
        let mut pages = data.len() as u64 / self.page_bytes;
        // How many may become dirty, once that is known.
        let mut allowed = None;
        let job = loop {
            let (mut core, found) = self.await_ready(place, Use::Write, patience, &mut again);
            if matches!(found, Found::Held) {
                drop(core);
                self.serve_all(&mut again);
                return Err(PortError::Again);
            }
            let absent = matches!(found, Found::Ready(_, State::Absent));
            if !absent || core.unwritable(place) {
                drop(core);
                self.serve_all(&mut again);
                return Ok(0);
            }
            if core.has_no_number_for(core.brain.page(place)) {
                drop(core);
                self.serve_all(&mut again);
                return Err(PortError::Io(Errno::NOMEM.raw_os_error()));
            }
            let f = core.file(file).expect("looked at just now");
            let within = pages.min(f.pages - place.index);
            if (f.holes || f.on_request) && allowed.is_none() {
                drop(core);
                self.serve_all(&mut again);
                // There may be room for the first.
                let reserved = match self.reserve(place, within) {
                    Err(_) if within > 1 => self.reserve(place, 1),
                    reserved => reserved,
                };
                allowed = Some(reserved?);
                continue;
            }
            let within = within.min(allowed.unwrap_or(u64::MAX));
            self.touches.missed();
            let mut job = self.told(&mut core);
            if core.state(place).1 != State::Absent {
                drop(core);
                self.run(job, None, &mut again);
                continue;
            }
            let within = u32::try_from(within).unwrap_or(u32::MAX);
            let wanted = self.decide(&mut core, Input::Overwrite { place, pages: within });
            drop(core);
            self.run(std::mem::replace(&mut job, wanted), None, &mut again);
            self.make_room(&mut job, Wait::Long, &mut again);
            if job.fetch.iter().any(|run| run.place == place) {
                break job;
            }
            self.run(job, None, &mut again);
            // As in `use_page`.
            pages = 1;
        };
        let result = self.fill_from(job, place, data, &mut again);
        self.serve_all(&mut again);
        result
    }

    fn fill_from(
        &self,
        mut job: Job,
        place: Place,
        data: &[u8],
        again: &mut Again,
    ) -> Result<u64, PortError> {
        let mut result = Ok(0);
        for run in std::mem::take(&mut job.fetch) {
            if run.place != place {
                let _ = self.fetch(run, false, false, again);
                continue;
            }
            let bytes = (u64::from(run.pages) * self.page_bytes) as usize;
            match self.port.fill(run.place.segment.0, run.place.index, &data[..bytes]) {
                Ok(()) => {
                    // All of it is what a program wrote.
                    debug_assert_eq!(run.demanded, run.pages);
                    self.arrived(run, 0, true, false, again);
                    result = Ok(u64::from(run.pages));
                }
                Err(error) => {
                    self.abandon(run, 0, again);
                    result = Err(error);
                }
            }
        }
        self.run(job, None, again);
        result
    }

    /// Ends a use.
    #[inline(always)]
    pub(crate) fn end_use(&self, place: Place, word: WordRef<'static>, how: Use) {
        match word.end(how) {
            Ended::Among => {}
            Ended::Last => self.tell_watchers(),
            Ended::Awaited => self.tell_awaiting(word, Some(place)),
            Ended::Kept => self.no_longer_held(place, word),
        }
    }

    /// A page that could not leave because a program held it may leave again.
    #[cold]
    fn no_longer_held(&self, place: Place, word: WordRef<'static>) {
        self.tell_sleepers();
        let mut core = self.lock();
        if !word.take_kept() {
            return;
        }
        let input = if word.dirty() { Input::Released { place } } else { Input::Cleaned { place } };
        let job = self.decide(&mut core, input);
        drop(core);
        self.finish(job);
    }

    /// Notes a use that began without the lock.
    #[inline(always)]
    pub(crate) fn touched(&self, place: Place) {
        if self.touches.note(place) {
            self.tell_touches();
        }
    }

    /// Tells the brain of uses, if it has time.
    #[cold]
    pub(crate) fn tell_touches(&self) {
        // Whoever decides just now is more important.
        let Some(mut core) = self.try_lock() else { return };
        let job = self.told(&mut core);
        drop(core);
        if !job.is_empty() {
            self.after(Box::new(After { job, again: Again::new() }));
        }
    }
}
