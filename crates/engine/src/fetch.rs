//! Fetching: claimed pages from storage into frames.
//!
//! What a job fetches is asked of storage before room is made for it, where storage can work by
//! itself (io_uring): so the two go on side by side, and so do several requests.

use crate::core::Job;
use crate::engine::{Again, Buffer, Engine};
use crate::job::Wait;
use crate::port::{Loading, Port, PortError};
use crate::stats::Spent;
use pagekeeper_frames::{Place, Run, WINDOW_PAGES_MAX};

/// Buffers kept for the next transfers: short ones, and one for each window that is under way, which
/// is what the budget sets aside.
const SHORT_BUFFERS_KEPT: usize = 3;
const LONG_BUFFERS_KEPT: usize = 2;
/// Size of the short ones.
const SHORT_BUFFER_BYTES: usize = 16 << 10;
/// Most requests of one job that are under way at a time. Each has a buffer.
const UNDER_WAY_MAX: usize = 4;

/// Claimed runs that are near each other, read in one request, with what lies between them.
#[derive(Default)]
pub(crate) struct Request {
    runs: Vec<Run>,
    /// None: not under way.
    loading: Option<Loading>,
}

impl Request {
    /// The first page.
    pub(crate) fn place(&self) -> Place {
        self.runs[0].place
    }

    /// Pages from the first to the last.
    fn pages(&self) -> u64 {
        self.runs[0].span_to(&self.runs[self.runs.len() - 1])
    }
}

impl<P: Port> Engine<P> {
    /// Makes room for what a job fetches, while storage begins to work on it. Returns the requests,
    /// which are to be [completed](Self::complete): those pages are claimed.
    pub(crate) fn prepare(&self, job: &mut Job, wait: Wait, again: &mut Again) -> Vec<Request> {
        let mut requests = self.requests(&job.fetch);
        // One request and nothing else to do: a plain call is cheapest.
        if requests.len() > 1 || job.makes_room() {
            self.begin(requests.iter_mut().take(UNDER_WAY_MAX));
        }
        let asked_for = job.fetch.len();
        if self.make_room(job, wait, again) {
            let more = job.fetch.split_off(asked_for);
            requests.extend(self.requests(&more));
            job.fetch.clear();
        } else {
            requests = self.requests(&std::mem::take(&mut job.fetch));
        }
        requests
    }

    fn requests(&self, runs: &[Run]) -> Vec<Request> {
        Run::requests(runs, |segment| self.port.gap_pages_max(segment.0))
            .map(|runs| Request { runs: runs.to_vec(), loading: None })
            .collect()
    }

    fn begin<'r>(&self, requests: impl Iterator<Item = &'r mut Request>) {
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
                Ok(loading) => request.loading = Some(loading),
                Err(buffer) => self.give_buffer(buffer),
            }
        }
    }

    /// Completes requests, telling of each run that came.
    ///
    /// # Errors
    /// The first that something met which somebody waits for; the rest is completed all the same.
    pub(crate) fn complete_all(
        &self,
        mut requests: Vec<Request>,
        again: &mut Again,
        mut came: impl FnMut(Run),
    ) -> Result<(), PortError> {
        let mut result = Ok(());
        for at in 0..requests.len() {
            if at > 0 && requests.len() > UNDER_WAY_MAX {
                self.begin(requests.iter_mut().skip(at + UNDER_WAY_MAX - 1).take(1));
            }
            let request = std::mem::take(&mut requests[at]);
            let is_demanded = request.runs[0].demanded > 0;
            let completed = self.complete(request, false, false, again, &mut came);
            if is_demanded {
                result = result.and(completed);
            }
        }
        result
    }

    /// Brings what a request asks for into frames, telling of each run that came. Pages fetched ahead
    /// never make the demanded ones fail, and of several demanded ones the later never make the
    /// first fail: a run may come back shorter. With `pin` the first page comes back pinned.
    ///
    /// # Errors
    /// A request of one run: not even its first page came. It is absent again.
    pub(crate) fn complete(
        &self,
        request: Request,
        dirty: bool,
        pin: bool,
        again: &mut Again,
        mut came: impl FnMut(Run),
    ) -> Result<(), PortError> {
        let Request { runs, loading } = request;
        if let [run] = runs[..] {
            return self.fetch_run(run, loading, dirty, pin, again).map(came);
        }
        if self.fetch_span(&runs, loading, again) {
            runs.into_iter().for_each(came);
            return Ok(());
        }
        for run in runs {
            let _ = self.fetch(run, false, false, again).map(&mut came);
        }
        Ok(())
    }

    /// Fetches a claimed run: [`complete`](Self::complete) of a request of one run.
    pub(crate) fn fetch(
        &self,
        run: Run,
        dirty: bool,
        pin: bool,
        again: &mut Again,
    ) -> Result<Run, PortError> {
        self.fetch_run(run, None, dirty, pin, again)
    }

    fn fetch_run(
        &self,
        run: Run,
        loading: Option<Loading>,
        dirty: bool,
        pin: bool,
        again: &mut Again,
    ) -> Result<Run, PortError> {
        debug_assert!(run.pages <= WINDOW_PAGES_MAX.max(run.demanded));
        let mut buffer = None;
        let result = self.fetch_with(&mut buffer, run, loading, dirty, pin, again);
        if let Some(buffer) = buffer {
            self.give_buffer(buffer);
        }
        result
    }

    fn fetch_with(
        &self,
        buffer: &mut Option<Buffer>,
        mut run: Run,
        mut loading: Option<Loading>,
        dirty: bool,
        pin: bool,
        again: &mut Again,
    ) -> Result<Run, PortError> {
        let loaded = loop {
            let filled = self.load(buffer, loading.take(), run);
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

    /// Brings pages from storage into the file's frames; `buffer` is kept for the next try.
    fn load(
        &self,
        buffer: &mut Option<Buffer>,
        loading: Option<Loading>,
        run: Run,
    ) -> Result<u64, PortError> {
        let (file, index) = (run.place.segment.0, run.place.index);
        let pages = u64::from(run.pages);
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
        let mut core = self.lock();
        for (i, place) in (0..).zip(run.places()) {
            let page = core.brain.page(place).expect("claimed pages are numbered");
            core.word(page).filled(dirty && i < run.demanded);
            core.rests(place.segment.0, 1);
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

    // ---- buffers ----------------------------------------------------------------------------

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
        if alike < if short(&buffer) { SHORT_BUFFERS_KEPT } else { LONG_BUFFERS_KEPT } {
            pool.push(buffer);
        } else if let Some(at) = pool.iter().position(|b| !short(b) && b.len() < buffer.len()) {
            pool[at] = buffer;
        }
    }
}
