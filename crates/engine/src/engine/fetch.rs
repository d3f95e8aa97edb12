//! Fetching: claimed pages from storage into frames.
//!
//! What a job fetches is asked of storage before room is made for it, where storage can work by
//! itself (io_uring): so the two go on side by side, and so do several requests. What is read in
//! place, without a buffer, is asked for when there is room.

use crate::engine::core::{Core, Job, Quiet};
use crate::engine::job::Wait;
use crate::engine::stats::Spent;
use crate::engine::{Again, Buffer, Engine};
use crate::port::{FileNo, Loading, LoadingInPlace, Port, PortError};
use pagekeeper_frames::{Input, Place, Run, WINDOW_PAGES_MAX};
use pagekeeper_policy::Page;

/// Most requests of one job that are under way at a time. Each has a buffer, or reads in place.
const UNDER_WAY_MAX: usize = 4;

/// A read that is under way.
enum UnderWay {
    InBuffer(Loading),
    InPlace(LoadingInPlace),
}

/// A read that has perhaps begun.
#[derive(Default)]
struct Begun {
    under_way: Option<UnderWay>,
    /// What the file was like before.
    quiet: Option<Quiet>,
}

/// Claimed runs that are near each other, read in one request, with what lies between them.
pub(crate) struct Request {
    first: Run,
    others: Vec<Run>,
    begun: Begun,
}

impl Request {
    /// The first page.
    pub(crate) fn place(&self) -> Place {
        self.first.place
    }

    fn last(&self) -> &Run {
        self.others.last().unwrap_or(&self.first)
    }

    /// Pages from the first to the last.
    fn pages(&self) -> u64 {
        self.first.span_to(self.last())
    }
}

/// Parts of a run, of at most so many pages.
fn parts(run: Run, pages_max: u32) -> impl Iterator<Item = Run> {
    (0..run.pages).step_by(pages_max as usize).map(move |from| {
        let pages = pages_max.min(run.pages - from);
        let place = Place { index: run.place.index + u64::from(from), ..run.place };
        Run { place, pages, demanded: run.demanded.saturating_sub(from).min(pages) }
    })
}

impl<P: Port> Engine<P> {
    /// Makes room for what a job fetches, while storage begins to work on it. Returns the requests,
    /// which are to be [completed](Self::complete): those pages are claimed.
    pub(crate) fn prepare(&self, job: &mut Job, wait: Wait, again: &mut Again) -> Vec<Request> {
        let mut requests = self.requests(&job.fetch);
        // One request and nothing else to do: a plain call is cheapest. Where room that is not waited for
        // may fail to be had, nothing is read in vain.
        let is_sure = wait == Wait::Long || job.late.is_empty();
        if is_sure && (requests.len() > 1 || job.makes_room()) {
            self.begin_in_buffers(requests.iter_mut().take(UNDER_WAY_MAX));
        }
        self.prepare_begun(requests, job, wait, again)
    }

    /// [`prepare`](Self::prepare) with requests of which storage works on some.
    pub(crate) fn prepare_begun(
        &self,
        mut requests: Vec<Request>,
        job: &mut Job,
        wait: Wait,
        again: &mut Again,
    ) -> Vec<Request> {
        let asked_for = job.fetch.len();
        if self.make_room(job, wait, again) {
            requests.extend(self.requests(&job.fetch[asked_for..]));
            job.fetch.clear();
        } else {
            for begun in requests.iter().filter(|request| request.begun.under_way.is_some()) {
                // It was read all the same.
                let bytes = begun.pages() * self.page_bytes;
                self.count(&mut self.lock(), begun.place().segment.0, |c| c.read_bytes += bytes);
            }
            requests = self.requests(&std::mem::take(&mut job.fetch));
        }
        // What goes into frames at once has to wait for them.
        if requests.len() > 1 {
            self.begin_in_place(requests.iter_mut().take(UNDER_WAY_MAX));
        }
        requests
    }

    /// Asks storage for short runs of one file together, a request each.
    pub(crate) fn fetch_together(&self, file: FileNo, runs: &[Run]) -> Vec<Request> {
        let request = |&first| Request { first, others: Vec::new(), begun: Begun::default() };
        let mut requests: Vec<Request> = runs.iter().map(request).collect();
        let range = |run: &Run| run.place.index..run.place.index + u64::from(run.pages);
        let ranges: Vec<_> = runs.iter().map(range).collect();
        if runs.is_empty() {
            return requests;
        }
        match self.times.of(Spent::Io, || self.port.begin_loads(file, &ranges)) {
            Some(begun) => {
                for (request, loading) in requests.iter_mut().zip(begun) {
                    request.begun.under_way = Some(UnderWay::InPlace(loading));
                }
            }
            None => self.begin_in_buffers(requests.iter_mut().take(UNDER_WAY_MAX)),
        }
        requests
    }

    fn requests(&self, runs: &[Run]) -> Vec<Request> {
        let mut requests = Vec::with_capacity(runs.len());
        for runs in Run::requests(runs, |segment| self.port.gap_pages_max(segment.0)) {
            // Of what comes alone, nothing comes ahead.
            let quiet = match runs {
                [run] if run.pages > run.demanded => self.lock().told_quiet(run.place.segment.0),
                _ => None,
            };
            let request = |first, others: &[Run]| Request {
                first,
                others: others.to_vec(),
                begun: Begun { under_way: None, quiet },
            };
            match runs {
                [run] => {
                    // Long ones have parts.
                    let pages_max = self.port.request_pages_max(run.place.segment.0);
                    requests.extend(parts(*run, pages_max).map(|part| request(part, &[])));
                }
                [first, others @ ..] => requests.push(request(*first, others)),
                [] => {}
            }
        }
        requests
    }

    fn begin_in_buffers<'r>(&self, requests: impl Iterator<Item = &'r mut Request>) {
        for request in requests {
            let Place { segment, index } = request.place();
            let pages = request.pages();
            let bytes = (pages * self.page_bytes) as usize;
            if !self.port.begins_loads(segment.0) {
                continue;
            }
            let Ok(buffer) = self.take_buffer(bytes) else { continue };
            let begun =
                self.times.of(Spent::Io, || self.port.begin_load(segment.0, index, buffer, pages));
            match begun {
                Ok(loading) => request.begun.under_way = Some(UnderWay::InBuffer(loading)),
                Err(buffer) => self.give_buffer(buffer),
            }
        }
    }

    /// The same without a buffer, for pages that there is room for.
    fn begin_in_place<'r>(&self, requests: impl Iterator<Item = &'r mut Request>) {
        for request in requests.filter(|request| request.others.is_empty()) {
            let Place { segment, index } = request.place();
            let pages = request.pages();
            let begin = || self.port.begin_load_in_place(segment.0, index, pages);
            if request.begun.under_way.is_none() {
                request.begun.under_way = self.times.of(Spent::Io, begin).map(UnderWay::InPlace);
            }
        }
    }

    /// Completes requests, telling of each run that came.
    ///
    /// # Errors
    /// The first that something met which somebody waits for; the rest is completed all the same.
    pub(crate) fn complete_all(
        &self,
        requests: Vec<Request>,
        again: &mut Again,
        mut came: impl FnMut(Run, &Again),
    ) -> Result<(), PortError> {
        let mut result = Ok(());
        let mut requests = requests.into_iter();
        while let Some(request) = requests.next() {
            self.begin_next(requests.as_mut_slice());
            let is_demanded = request.first.demanded > 0;
            let completed = self.complete(request, false, false, again, &mut came);
            if is_demanded {
                result = result.and(completed);
            }
        }
        result
    }

    /// Begins the next of the requests behind one that is about to be waited for.
    fn begin_next(&self, behind: &mut [Request]) {
        if let Some(next) =
            behind.get_mut(UNDER_WAY_MAX - 2).filter(|r| r.begun.under_way.is_none())
        {
            self.begin_in_buffers(std::iter::once(&mut *next));
            self.begin_in_place(std::iter::once(next));
        }
    }

    /// Brings what a request asks for into frames, telling of each run that came and of the faults that
    /// waited for it. Pages fetched ahead never make the demanded ones fail, and of several demanded
    /// ones the later never make the first fail: a run may come back shorter. With `pin` the first page
    /// comes back pinned.
    ///
    /// # Errors
    /// A request of one run: not even its first page came. It is absent again.
    pub(crate) fn complete(
        &self,
        request: Request,
        dirty: bool,
        pin: bool,
        again: &mut Again,
        mut came: impl FnMut(Run, &Again),
    ) -> Result<(), PortError> {
        let Request { first, others, begun } = request;
        if others.is_empty() {
            let run = self.fetch_run(first, begun, dirty, pin, again)?;
            came(run, again);
            return Ok(());
        }
        let loading = match begun.under_way {
            Some(UnderWay::InBuffer(loading)) => Some(loading),
            _ => None,
        };
        let runs: Vec<Run> = std::iter::once(first).chain(others).collect();
        if self.fetch_span(&runs, loading, again) {
            runs.into_iter().for_each(|run| came(run, again));
            return Ok(());
        }
        for run in runs {
            if let Ok(run) = self.fetch(run, false, false, again) {
                came(run, again);
            }
        }
        Ok(())
    }

    /// Fetches a claimed run that there is room for, a long one with several reads under way. With
    /// `pin` the first page comes back pinned.
    ///
    /// # Errors
    /// As for [`complete`](Self::complete), of the first part.
    pub(crate) fn fetch_in_parts(
        &self,
        run: Run,
        pin: bool,
        again: &mut Again,
    ) -> Result<(), PortError> {
        if run.pages == 1 {
            return self.fetch(run, false, pin, again).map(drop);
        }
        let mut parts = self.requests(&[run]);
        if parts.len() > 1 {
            self.begin_in_place(parts.iter_mut().take(UNDER_WAY_MAX));
        }
        let mut parts = parts.into_iter();
        let Some(first) = parts.next() else { return Ok(()) };
        let fetched = self.complete(first, false, pin, again, |_, _| {});
        // Who needs what these lack finds out.
        let _ = self.complete_all(parts.collect(), again, |_, _| {});
        fetched
    }

    /// Fetches a claimed run: [`complete`](Self::complete) of a request of one run.
    pub(crate) fn fetch(
        &self,
        run: Run,
        dirty: bool,
        pin: bool,
        again: &mut Again,
    ) -> Result<Run, PortError> {
        self.fetch_run(run, Begun::default(), dirty, pin, again)
    }

    fn fetch_run(
        &self,
        run: Run,
        begun: Begun,
        dirty: bool,
        pin: bool,
        again: &mut Again,
    ) -> Result<Run, PortError> {
        debug_assert!(run.pages <= WINDOW_PAGES_MAX.max(run.demanded));
        let mut buffer = None;
        let result = self.fetch_with(&mut buffer, run, begun, dirty, pin, again);
        if let Some(buffer) = buffer {
            self.give_buffer(buffer);
        }
        result
    }

    fn fetch_with(
        &self,
        buffer: &mut Option<Buffer>,
        mut run: Run,
        mut begun: Begun,
        dirty: bool,
        pin: bool,
        again: &mut Again,
    ) -> Result<Run, PortError> {
        let loaded = loop {
            let filled = self.load(buffer, begun.under_way.take(), run);
            let keep = if run.pages > run.demanded { run.demanded } else { 1 };
            match filled {
                Err(_) if run.demanded > 0 && run.pages > keep => {
                    begun.quiet = None;
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
                if bytes == 0 {
                    self.store_ahead(run);
                }
                if let (Some(quiet), Some(content)) = (begun.quiet, buffer) {
                    self.presume_ahead(run, quiet, content);
                }
                Ok(run)
            }
            Err(error) => {
                self.abandon(run, 0, again);
                Err(error)
            }
        }
    }

    /// Brings pages from storage into the file's frames; `buffer` is kept for the next try.
    fn load(
        &self,
        buffer: &mut Option<Buffer>,
        under_way: Option<UnderWay>,
        run: Run,
    ) -> Result<u64, PortError> {
        let (file, index) = (run.place.segment.0, run.place.index);
        let pages = u64::from(run.pages);
        let loading = match under_way {
            Some(UnderWay::InPlace(loading)) => match self.times.of(Spent::Io, loading) {
                Some(loaded) => return Ok(loaded),
                // What came otherwise than it should is read once more.
                None => None,
            },
            Some(UnderWay::InBuffer(loading)) => Some(loading),
            None => None,
        };
        if loading.is_none() {
            let in_place = self.times.of(Spent::Io, || self.port.load_in_place(file, index, pages));
            if let Some(loaded) = in_place {
                return loaded;
            }
        }
        let loaded = self.read_pages(buffer, loading, run.place, pages)?;
        let data = buffer.as_deref().expect("it was read into");
        let data = &data[..(pages * self.page_bytes) as usize];
        self.times.of(Spent::Kernel, || self.port.fill(file, index, data))?;
        Ok(loaded)
    }

    /// Fetches claimed runs and what lies between them, which is read for nothing. Where that
    /// fails, each is to be fetched by itself.
    fn fetch_span(&self, runs: &[Run], loading: Option<Loading>, again: &mut Again) -> bool {
        let (first, last) = (&runs[0], &runs[runs.len() - 1]);
        let (file, begin) = (first.place.segment.0, first.place.index);
        let mut buffer = None;
        let loaded = self.read_pages(&mut buffer, loading, first.place, first.span_to(last)).ok();
        let is_filled = loaded.is_some()
            && runs.iter().all(|run| {
                let data = buffer.as_deref().expect("it was read into");
                let from = ((run.place.index - begin) * self.page_bytes) as usize;
                let part = &data[from..from + (u64::from(run.pages) * self.page_bytes) as usize];
                self.times.of(Spent::Kernel, || self.port.fill(file, run.place.index, part)).is_ok()
            });
        if let Some(buffer) = buffer {
            self.give_buffer(buffer);
        }
        let Some(loaded) = loaded.filter(|_| is_filled) else { return false };
        for (number, run) in runs.iter().enumerate() {
            self.arrived(*run, if number == 0 { loaded } else { 0 }, false, false, again);
        }
        true
    }

    /// Reads pages into a buffer, or waits for that. What came otherwise than it should is read
    /// once more, by a plain call.
    fn read_pages(
        &self,
        buffer: &mut Option<Buffer>,
        loading: Option<Loading>,
        place: Place,
        pages: u64,
    ) -> Result<u64, PortError> {
        if let Some(loading) = loading {
            let (used, loaded) = self.times.of(Spent::Io, loading);
            *buffer = used;
            if let Some(loaded) = loaded {
                return Ok(loaded);
            }
        }
        let bytes = (pages * self.page_bytes) as usize;
        let buffer = match buffer {
            Some(buffer) => buffer,
            none => none.insert(self.take_buffer(bytes)?),
        };
        let data = &mut buffer[..bytes];
        self.times.of(Spent::Io, || self.port.load(place.segment.0, place.index, data))
    }

    /// A claimed run is in memory; so many bytes of it were read from storage.
    pub(crate) fn arrived(&self, run: Run, bytes: u64, dirty: bool, pin: bool, again: &mut Again) {
        let takes_kept = self.takes_kept(run);
        let mut taken: Vec<Run> = Vec::new();
        let mut core = self.lock();
        for (i, place) in (0..).zip(run.places()) {
            let page = core.brain.page(place).expect("claimed pages are numbered");
            let is_told = core.brain.is_marker(page);
            self.port.arrived(place, page, is_told);
            core.word(page).filled(dirty && i < run.demanded);
            core.rests(place.segment.0);
            core.arrivals.came(page);
            if dirty && i < run.demanded {
                core.note_dirty(place);
            }
            if is_told {
                core.word(page).notice();
            }
            if pin && i == 0 {
                core.word(page).pin();
            }
            if takes_kept && self.take_kept(&mut core, page, place) {
                match taken.last_mut().filter(|run| run.gap_to(place) == Some(0)) {
                    Some(run) => run.pages += 1,
                    None => taken.push(Run { place, pages: 1, demanded: 0 }),
                }
            }
            core.unpark_into(place, again);
        }
        self.count(&mut core, run.place.segment.0, |c| c.read_bytes += bytes);
        self.rested();
        if takes_kept || core.kept_pages > 0 {
            // Before anything is decided that could make them victims, which are clean or not.
            let mut job = Job::default();
            for run in taken {
                job.append(self.make_dirty(&mut core, run));
            }
            job.append(self.recount_kept(&mut core));
            drop(core);
            self.run_later(job, None);
        }
    }

    /// Whether what storage kept of a run in memory is not to be kept twice. Not while recording,
    /// which sees first stores; nor where what is dirty finds no room.
    fn takes_kept(&self, run: Run) -> bool {
        let Place { segment, index } = run.place;
        self.port.keeps_pages(segment.0).is_some()
            && !self.exact
            && self.port.reserve(segment.0, index, run.pages.into()).is_ok()
    }

    /// A page has just come. True: it has no other copy any more, and is to count as dirty.
    fn take_kept(&self, core: &mut Core, page: Page, place: Place) -> bool {
        let word = core.word(page);
        if word.dirty() {
            // What storage has is old from now on.
            self.port.take_kept(place.segment.0, place.index);
            return false;
        }
        core.may_become_dirty(page, place) && self.port.take_kept(place.segment.0, place.index)
    }

    /// A run has come of which storage read nothing (zeros, or what it kept in memory): what of it
    /// [is likely](pagekeeper_frames::Brain::stored_ahead) to be stored to counts as dirty from now on,
    /// where that costs nothing: in a heap, as long as there is room for what is stored.
    fn store_ahead(&self, run: Run) {
        let Place { segment, index } = run.place;
        let pages = u64::from(run.pages - run.demanded);
        let first = index + u64::from(run.demanded);
        if pages == 0 || self.exact || !self.is_heap(segment.0) {
            return;
        }
        if self.port.reserve(segment.0, first, pages).is_err() {
            return;
        }
        let mut core = self.lock();
        let ahead = core.brain.stored_ahead(run);
        let may_be = |place: &Place| {
            let page = core.brain.page(*place);
            page.is_some_and(|page| core.word(page).idle() && core.may_become_dirty(page, *place))
        };
        let pages = ahead.places().take_while(may_be).count() as u32;
        let job = self.make_dirty(&mut core, Run { pages, ..ahead });
        drop(core);
        self.run_later(job, None);
    }

    /// Pages count as dirty before they are stored to.
    pub(crate) fn make_dirty(&self, core: &mut Core, run: Run) -> Job {
        if run.pages == 0 {
            return Job::default();
        }
        for place in run.places() {
            core.word(core.brain.page(place).expect("it is in memory")).set_dirty();
            core.note_dirty(place);
        }
        self.decide(core, Input::Writable { place: run.place, pages: run.pages })
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
}
