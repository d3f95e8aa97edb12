//! The engine: answers faults, carries out plans.
//!
//! The lock is taken for decisions and claims, never across I/O or a call into the kernel. A fault
//! that meets a page in motion is parked, and served again when the page has come to rest; no
//! thread waits for another's I/O on its behalf.

use crate::core::{Core, Fault, File, Job, Log};
use crate::port::{FileNo, PAGE_BYTES, Port, PortError, SpaceNo, Version};
use crate::spaces::{Region, Space};
use crate::stats::{FileCounts, FileReport, Spent, Stats, Times};
use crate::table::Table;
use crate::word::State;
use pagekeeper_frames::{Brain, Budget, Config, Input, Place, Run, Segment, WINDOW_PAGES_MAX};
use pagekeeper_policy::Policy;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

/// Resident neighbours that are mapped along with a page that nobody samples.
const FAULT_AROUND_PAGES: u64 = 16;

/// Faults to serve again, because the page they wait for came to rest.
pub type Again = VecDeque<Fault>;

/// A managed page cache over a port.
pub struct Engine<P: Port> {
    pub(crate) port: P,
    core: Mutex<Core>,
    pub(crate) table: Table,
    /// Signalled when a page comes to rest and somebody sleeps on it.
    rest: Condvar,
    sleepers: AtomicU32,
    pub(crate) times: Times,
    failed_faults: AtomicU64,
    private_pages_max: AtomicU64,
    buffers: Mutex<Vec<Buffer>>,
    exact: bool,
}

/// Page-aligned memory for one transfer.
pub(crate) type Buffer = pagekeeper_sys::buffer::Buffer;

impl<P: Port> Engine<P> {
    /// An engine with a budget for frames and per-page state.
    pub fn new(
        port: P,
        policy: Box<dyn Policy>,
        config: Config,
        table: Table,
        budget: Budget,
    ) -> Engine<P> {
        let exact = matches!(config.sampling, pagekeeper_frames::Sampling::Window { .. });
        Engine {
            port,
            core: Mutex::new(Core::new(Brain::new(policy, config), table, budget)),
            table,
            rest: Condvar::new(),
            sleepers: AtomicU32::new(0),
            times: Times::default(),
            failed_faults: AtomicU64::new(0),
            private_pages_max: AtomicU64::new(0),
            buffers: Mutex::new(Vec::new()),
            exact,
        }
    }

    /// The machine under it.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// From now on `log` hears every input. Segments so far are told first.
    pub fn set_log(&self, mut log: Box<dyn Log>) {
        let mut core = self.lock();
        for (no, file) in core.files.iter().enumerate() {
            if let Some(file) = file {
                log.segment(Segment(no as u32), &file.name, file.version.size_bytes);
            }
        }
        core.log = Some(log);
    }

    /// Takes the log back.
    pub fn take_log(&self) -> Option<Box<dyn Log>> {
        self.lock().log.take()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("no thread panics while it holds the engine's lock")
    }

    /// Sleeps until some page comes to rest.
    pub(crate) fn sleep<'a>(&'a self, core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let core = self
            .rest
            .wait_timeout(core, std::time::Duration::from_millis(100))
            .expect("no thread panics while it holds the engine's lock")
            .0;
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        core
    }

    /// Tells sleepers that a page came to rest. Called with the lock held, or after an unpin.
    pub(crate) fn rested(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.rest.notify_all();
        }
    }

    /// Time in decisions is measured here.
    pub(crate) fn decide(&self, core: &mut Core, input: Input) -> Job {
        self.times.of(Spent::Policy, || core.decide(input))
    }

    // ---- files and spaces -------------------------------------------------------------------

    /// Starts to manage a file. `holes`: storage may lack blocks for parts of it.
    pub fn open_file(&self, file: FileNo, name: &str, version: Version, holes: bool) {
        let mut core = self.lock();
        let at = file as usize;
        if core.files.len() <= at {
            core.files.resize_with(at + 1, || None);
        }
        let pages = version.size_bytes.div_ceil(PAGE_BYTES);
        core.files[at] = Some(File {
            name: name.to_owned(),
            version,
            pages,
            mappings: Vec::new(),
            fences: Vec::new(),
            holes,
            counts: FileCounts::default(),
            error: None,
        });
        if let Some(log) = &mut core.log {
            log.segment(Segment(file), name, version.size_bytes);
        }
        core.decide(Input::Segment { segment: Segment(file), pages });
    }

    /// A process image appeared.
    pub fn open_space(&self, space: SpaceNo, content: Space) {
        let mut core = self.lock();
        let at = space as usize;
        if core.spaces.len() <= at {
            core.spaces.resize_with(at + 1, || None);
        }
        let files: Vec<FileNo> = content.regions.iter().map(|(_, r)| r.file).collect();
        core.spaces[at] = Some(content);
        core.refresh_mappings(space, &files);
        let job = core.recount_private();
        drop(core);
        self.finish(job);
    }

    /// A copy of a space's description, for a forked child.
    pub fn space(&self, space: SpaceNo) -> Option<Space> {
        self.lock().spaces.get(space as usize)?.clone()
    }

    /// Changes a space's description.
    pub fn with_space<T>(&self, space: SpaceNo, f: impl FnOnce(&mut Space) -> T) -> Option<T> {
        self.lock().space_mut(space).map(f)
    }

    /// A process image is gone.
    pub fn close_space(&self, space: SpaceNo) {
        let mut core = self.lock();
        let Some(slot) = core.spaces.get_mut(space as usize) else { return };
        let Some(gone) = slot.take() else { return };
        let files: Vec<FileNo> = gone.regions.iter().map(|(_, r)| r.file).collect();
        core.refresh_mappings(space, &files);
        let job = core.recount_private();
        drop(core);
        self.finish(job);
    }

    /// A range of a space maps a file from now on.
    pub fn add_region(&self, space: SpaceNo, range: Range<u64>, region: Region) {
        let mut core = self.lock();
        let Some(s) = core.space_mut(space) else { return };
        let mut files = s.unmap(range.clone());
        s.regions.insert(range, region);
        files.push(region.file);
        core.refresh_mappings(space, &files);
    }

    /// A range of a space was unmapped. Returns files that are no longer mapped anywhere.
    pub fn unmapped(&self, space: SpaceNo, range: Range<u64>) -> Vec<FileNo> {
        let mut core = self.lock();
        let Some(s) = core.space_mut(space) else { return Vec::new() };
        let files = s.unmap(range);
        core.refresh_mappings(space, &files);
        let job = core.recount_private();
        let idle = files
            .into_iter()
            .filter(|&f| core.file(f).is_some_and(|f| f.mappings.is_empty()))
            .collect();
        drop(core);
        self.finish(job);
        idle
    }

    /// A range of a space moved (`mremap(2)`).
    pub fn remapped(&self, space: SpaceNo, from: u64, to: u64, old_len: u64, new_len: u64) {
        let mut core = self.lock();
        let Some(s) = core.space_mut(space) else { return };
        let files = s.remap(from, to, old_len, new_len);
        core.refresh_mappings(space, &files);
    }

    /// A range's pages were dropped from a space (`madvise(2)` DONTNEED): private copies are gone.
    pub fn removed(&self, space: SpaceNo, range: Range<u64>) {
        let mut core = self.lock();
        if let Some(s) = core.space_mut(space) {
            s.forget_private(range);
        }
        let job = core.recount_private();
        drop(core);
        self.finish(job);
    }

    /// Changes the budget for frames and state.
    pub fn set_budget(&self, budget: Budget) {
        let mut core = self.lock();
        core.budget = budget;
        let frames = budget.frames(core.brain.numbered_pages());
        let job = self.decide(&mut core, Input::Frames { frames });
        drop(core);
        self.finish(job);
    }

    // ---- faults -----------------------------------------------------------------------------

    /// Serves a fault, and every fault that waited for what it brought to rest.
    pub fn serve(&self, fault: Fault) {
        let mut queue = Again::from([fault]);
        self.serve_all(&mut queue);
    }

    /// Serves faults until none is left.
    pub fn serve_all(&self, queue: &mut Again) {
        while let Some(fault) = queue.pop_front() {
            self.serve_one(fault, queue);
        }
    }

    /// Carries out a job that no fault waits for, and what follows from it.
    pub(crate) fn finish(&self, job: Job) {
        if !job.is_empty() {
            let mut queue = Again::new();
            self.run(job, None, &mut queue);
            self.serve_all(&mut queue);
        }
    }

    fn serve_one(&self, fault: Fault, again: &mut Again) {
        let addr = fault.addr & !(PAGE_BYTES - 1);
        let mut core = self.lock();
        let Some(region) = core.region(fault.space, addr) else {
            drop(core);
            self.stray(fault, again);
            return;
        };
        let place = Place { segment: Segment(region.file), index: region.index(addr) };
        let Some(file) = core.file(region.file) else { return };
        if place.index >= file.pages {
            // Beyond the end of the file: the next touch raises SIGBUS by itself.
            drop(core);
            let _ = self.port.wake(fault.space, addr, 1);
            return;
        }
        let (page, state) = core.state(place);
        let busy = matches!(state, State::Filling | State::Cleaning | State::Leaving);
        let doomed = page.is_some_and(|p| core.word(p).doomed());
        if busy || doomed || (state == State::Absent && core.fenced(place)) {
            let mut job = Job::default();
            let seen = matches!(state, State::Filling | State::Cleaning) && !doomed;
            if seen && !core.brain.is_mapped(place) {
                // A marker's first touch must start the next window now, not when it arrives.
                self.count(&mut core, region.file, |c| c.minor_faults += 1);
                job = self.decide(&mut core, Input::Touch { place, write: false, map: true });
            }
            core.park(place, fault);
            drop(core);
            self.run(job, Some((fault.space, region)), again);
            return;
        }
        let wants_write = fault.write || fault.protected;
        if wants_write && !region.shared {
            let fresh = core.space_mut(fault.space).is_some_and(|s| s.private.insert(addr));
            if fresh {
                let job = self.times.of(Spent::Policy, || core.recount_private());
                let most = u64::from(core.private_pages);
                self.private_pages_max.fetch_max(most, Ordering::Relaxed);
                drop(core);
                self.run(job, None, again);
                again.push_front(fault);
                return;
            }
        }
        match state {
            State::Absent => {
                let write = wants_write && region.shared;
                if write && core.file(region.file).is_some_and(|f| f.holes) {
                    drop(core);
                    if let Err(error) = self.port.reserve(region.file, place.index, 1) {
                        self.fail(fault, place, error);
                        return;
                    }
                    core = self.lock();
                    if core.state(place).1 != State::Absent {
                        drop(core);
                        again.push_front(fault);
                        return;
                    }
                }
                self.count(&mut core, region.file, |c| c.major_faults += 1);
                let input = Input::Major { place, want: 1, write, map: true };
                let job = self.decide(&mut core, input);
                drop(core);
                self.fault_in(job, fault, region, place, write, again);
            }
            State::Resident => self.fault_resident(core, fault, region, place, again),
            _ => unreachable!("busy pages were parked"),
        }
    }

    fn count(&self, core: &mut Core, file: FileNo, f: impl FnOnce(&mut FileCounts)) {
        if let Some(file) = core.file_mut(file) {
            f(&mut file.counts);
        }
    }

    /// A major fault: makes room, fetches, maps.
    fn fault_in(
        &self,
        mut job: Job,
        fault: Fault,
        region: Region,
        place: Place,
        write: bool,
        again: &mut Again,
    ) {
        self.make_room(&mut job, again);
        let mut fetched = false;
        for run in std::mem::take(&mut job.fetch) {
            let demanded = run.place == place;
            match self.fetch(run, demanded && write, again) {
                Ok(run) => {
                    fetched |= demanded;
                    self.map_run(run, fault.space, region);
                }
                Err(error) if demanded => {
                    self.fail(fault, place, error);
                    fetched = true;
                }
                Err(_) => {}
            }
        }
        if !fetched {
            again.push_back(fault);
        }
        self.unmap(job);
    }

    /// A fault on a page that is in memory.
    fn fault_resident<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        fault: Fault,
        region: Region,
        place: Place,
        again: &mut Again,
    ) {
        let addr = fault.addr & !(PAGE_BYTES - 1);
        let page = core.brain.page(place).expect("resident pages are numbered");
        let word = core.word(page);
        let writes = (fault.write || fault.protected) && region.shared;
        let hidden = core.brain.is_mapped(place);
        word.pin();
        if writes && !word.dirty() && core.file(region.file).is_some_and(|f| f.holes) {
            drop(core);
            let room = self.port.reserve(region.file, place.index, 1);
            if let Err(error) = room {
                self.unpin(page);
                self.fail(fault, place, error);
                return;
            }
            core = self.lock();
        }
        let mut job = Job::default();
        let first_write = writes && !word.dirty();
        if first_write {
            word.set_dirty();
        }
        if !hidden {
            self.count(&mut core, region.file, |c| c.minor_faults += 1);
            job = self.decide(&mut core, Input::Touch { place, write: writes, map: true });
        } else if first_write {
            self.count(&mut core, region.file, |c| c.write_faults += 1);
            job = self.decide(&mut core, Input::Write { place });
        }
        let run = Run { place, pages: 1, demanded: 1 };
        let around = if hidden && !fault.protected && !self.exact && !core.word(page).doomed() {
            self.around(&core, fault.space, region, place, word.dirty())
        } else {
            run
        };
        let others: Vec<_> = (0..around.pages)
            .map(|i| Place { index: around.place.index + u64::from(i), ..place })
            .filter(|p| *p != place)
            .filter_map(|p| core.brain.page(p))
            .collect();
        for &other in &others {
            core.word(other).pin();
        }
        // Private mappings stay write-protected until their copy is counted.
        let private_copy =
            !region.shared && core.space_mut(fault.space).is_some_and(|s| s.private.contains(&addr));
        let protect = if region.shared { !word.dirty() } else { !private_copy };
        drop(core);
        let result = self.times.of(Spent::Kernel, || {
            if fault.protected && !protect {
                return self.until_settled(|| self.port.unprotect(fault.space, addr, 1));
            }
            let start = addr - (place.index - around.place.index) * PAGE_BYTES;
            let pages = u64::from(around.pages);
            let mapped = self.until_settled(|| self.port.map(fault.space, start, pages, protect))?;
            if mapped.existed && !protect {
                self.until_settled(|| self.port.unprotect(fault.space, addr, 1))?;
            }
            Ok(())
        });
        self.unpin(page);
        for other in others {
            self.unpin(other);
        }
        if result == Err(PortError::Missing) && !fault.protected {
            self.lost(place, again, fault);
        }
        self.run(job, Some((fault.space, region)), again);
    }

    /// Resident neighbours with the same protection that nobody samples, in one aligned window.
    fn around(&self, core: &Core, space: SpaceNo, region: Region, place: Place, dirty: bool) -> Run {
        let fits = |index: u64| {
            let at = Place { index, ..place };
            let addr = (index * PAGE_BYTES).wrapping_sub(region.bias);
            core.region(space, addr) == Some(region)
                && core.brain.is_mapped(at)
                && core.brain.page(at).is_some_and(|p| {
                    let w = core.word(p);
                    w.idle() && !w.doomed() && w.dirty() == dirty
                })
        };
        let (mut first, mut end) = (place.index, place.index + 1);
        if region.shared {
            let low = place.index / FAULT_AROUND_PAGES * FAULT_AROUND_PAGES;
            while first > low && fits(first - 1) {
                first -= 1;
            }
            while end < low + FAULT_AROUND_PAGES && fits(end) {
                end += 1;
            }
        }
        Run { place: Place { index: first, ..place }, pages: (end - first) as u32, demanded: 1 }
    }

    /// The engine holds a page for resident, the kernel does not: somebody punched it out of the
    /// memfd. Clean content is fetched again; dirty content is a hole now, as the program asked.
    fn lost(&self, place: Place, again: &mut Again, fault: Fault) {
        let mut core = self.lock();
        let (Some(page), State::Resident) = core.state(place) else {
            drop(core);
            again.push_back(fault);
            return;
        };
        let word = core.word(page);
        if word.dirty() {
            drop(core);
            let zeros = [0u8; PAGE_BYTES as usize];
            let _ = self.port.fill(place.segment.0, place.index, &zeros);
        } else if word.idle() {
            word.claim_leave();
            word.left();
            self.decide(&mut core, Input::Drop { segment: place.segment, first: place.index, pages: 1 });
            again.extend(core.unpark(place));
        }
        again.push_back(fault);
    }

    /// A fault at an address that no known region covers: the mapping grew or moved unseen, or is
    /// gone already.
    fn stray(&self, fault: Fault, again: &mut Again) {
        match self.port.resolve(fault.space, fault.addr) {
            Some((range, region)) => {
                self.add_region(fault.space, range, region);
                again.push_back(fault);
            }
            None => {
                let _ = self.port.wake(fault.space, fault.addr & !(PAGE_BYTES - 1), 1);
            }
        }
    }

    /// A fault that cannot be served: SIGBUS, as under the kernel.
    fn fail(&self, fault: Fault, place: Place, error: PortError) {
        self.failed_faults.fetch_add(1, Ordering::Relaxed);
        if let PortError::Io(errno) = error
            && let Some(file) = self.lock().file_mut(place.segment.0)
        {
            file.error = Some(errno);
        }
        let no_space = matches!(error, PortError::Io(e) if e == libc_enospc() || e == libc_edquot());
        let addr = fault.addr & !(PAGE_BYTES - 1);
        if no_space || fault.protected {
            let _ = self.port.sigbus(fault.space, fault.tid);
            return;
        }
        let everywhere = self.lock().mappings(place);
        for (space, at) in everywhere {
            let _ = self.until_settled(|| self.port.poison(space, at));
        }
        if self.port.poison(fault.space, addr) == Err(PortError::Missing) {
            let _ = self.port.sigbus(fault.space, fault.tid);
        }
    }

    pub(crate) fn unpin(&self, page: pagekeeper_policy::Page) {
        let last = self.table.word(page).unpin();
        if last && self.sleepers.load(Ordering::SeqCst) > 0 {
            let _core = self.lock();
            self.rest.notify_all();
        }
    }

    /// Calls the port until the address space holds still.
    pub(crate) fn until_settled<T>(
        &self,
        mut call: impl FnMut() -> Result<T, PortError>,
    ) -> Result<T, PortError> {
        loop {
            match call() {
                Err(PortError::Again) => self.port.again(),
                other => return other,
            }
        }
    }

    // ---- jobs -------------------------------------------------------------------------------

    /// Carries out a job; what it fetches ahead is mapped in the space that asked.
    pub(crate) fn run(&self, mut job: Job, space: Option<(SpaceNo, Region)>, again: &mut Again) {
        if job.is_empty() {
            return;
        }
        if !job.fetch.is_empty() && self.port.defer() {
            // Nobody waits for these pages: another thread fetches them.
            let engine_job = std::mem::take(&mut job);
            if let Err(job) = self.port.hand_over(Deferred { job: engine_job, space }) {
                self.run_here(job.job, job.space, again);
            }
            return;
        }
        self.run_here(job, space, again);
    }

    /// Carries out a job that was handed over.
    pub fn run_deferred(&self, deferred: Deferred) {
        let mut again = Again::new();
        self.run_here(deferred.job, deferred.space, &mut again);
        self.serve_all(&mut again);
    }

    fn run_here(&self, mut job: Job, space: Option<(SpaceNo, Region)>, again: &mut Again) {
        self.make_room(&mut job, again);
        for run in std::mem::take(&mut job.fetch) {
            if let Ok(run) = self.fetch(run, false, again)
                && let Some((space, region)) = space
            {
                self.map_run(run, space, region);
            }
        }
        self.unmap(job);
    }

    /// Carries out a job whose fetches somebody waits for; reports their first error.
    pub(crate) fn fetch_job(&self, mut job: Job, again: &mut Again) -> Result<(), PortError> {
        self.make_room(&mut job, again);
        let mut result = Ok(());
        for run in std::mem::take(&mut job.fetch) {
            if let Err(error) = self.fetch(run, false, again) {
                result = Err(error);
            }
        }
        self.unmap(job);
        result
    }

    fn make_room(&self, job: &mut Job, again: &mut Again) {
        self.evict(std::mem::take(&mut job.evict), again);
        for victim in std::mem::take(&mut job.late) {
            if let Some(victim) = self.wait_for_victim(victim) {
                self.evict(vec![victim], again);
            }
        }
        for run in std::mem::take(&mut job.clean) {
            let _ = self.clean(run, again);
        }
    }

    fn unmap(&self, job: Job) {
        self.times.of(Spent::Kernel, || {
            for (space, ranges) in &job.unmap {
                self.port.zap(*space, ranges);
            }
        });
    }

    pub(crate) fn take_buffer(&self, bytes: usize) -> Result<Buffer, PortError> {
        let mut pool = self.buffers.lock().expect("buffer pool");
        if let Some(at) = pool.iter().position(|b| b.len() >= bytes) {
            return Ok(pool.swap_remove(at));
        }
        drop(pool);
        Buffer::new(bytes).map_err(|e| PortError::Io(e.raw_os_error()))
    }

    pub(crate) fn give_buffer(&self, buffer: Buffer) {
        let mut pool = self.buffers.lock().expect("buffer pool");
        if pool.len() < 4 {
            pool.push(buffer);
        }
    }

    /// Fetches a claimed run. Pages fetched ahead never make the demanded ones fail.
    fn fetch(&self, run: Run, dirty: bool, again: &mut Again) -> Result<Run, PortError> {
        debug_assert!(run.pages <= WINDOW_PAGES_MAX.max(run.demanded));
        let bytes = run.pages as usize * PAGE_BYTES as usize;
        let mut buffer = match self.take_buffer(bytes) {
            Ok(buffer) => buffer,
            Err(error) => {
                self.abandon(run, 0, again);
                return Err(error);
            }
        };
        let result = self.fetch_with(&mut buffer, run, dirty, again);
        self.give_buffer(buffer);
        result
    }

    fn fetch_with(
        &self,
        buffer: &mut Buffer,
        mut run: Run,
        dirty: bool,
        again: &mut Again,
    ) -> Result<Run, PortError> {
        let file = run.place.segment.0;
        let loaded = loop {
            let data = &mut buffer[..run.pages as usize * PAGE_BYTES as usize];
            let loaded = self.times.of(Spent::Io, || self.port.load(file, run.place.index, data));
            let filled = loaded.and_then(|bytes| {
                self.times
                    .of(Spent::Kernel, || self.port.fill(file, run.place.index, data))
                    .map(|()| bytes)
            });
            match filled {
                Err(_) if run.demanded > 0 && run.pages > run.demanded => {
                    let keep = run.demanded;
                    self.abandon(run, keep, again);
                    run.pages = keep;
                }
                other => break other,
            }
        };
        match loaded {
            Ok(bytes) => {
                let mut core = self.lock();
                for i in 0..run.pages {
                    let place = Place { index: run.place.index + u64::from(i), ..run.place };
                    let page = core.brain.page(place).expect("claimed pages are numbered");
                    core.word(page).filled(dirty && i < run.demanded);
                    again.extend(core.unpark(place));
                }
                self.count(&mut core, file, |c| c.read_bytes += bytes);
                self.rested();
                Ok(run)
            }
            Err(error) => {
                self.abandon(run, 0, again);
                Err(error)
            }
        }
    }

    /// Gives up the claimed pages of a run from `keep` on.
    fn abandon(&self, run: Run, keep: u32, again: &mut Again) {
        let mut core = self.lock();
        for i in keep..run.pages {
            let place = Place { index: run.place.index + u64::from(i), ..run.place };
            let Some(page) = core.brain.page(place) else { continue };
            let doomed = core.word(page).doomed();
            core.word(page).fill_failed();
            if !doomed {
                self.decide(&mut core, Input::Failed { place });
            }
            again.extend(core.unpark(place));
        }
        self.rested();
    }

    /// Maps fetched pages in a space, but for those whose first touch is to be seen.
    fn map_run(&self, run: Run, space: SpaceNo, region: Region) {
        let mut core = self.lock();
        let mut parts: Vec<(u64, u64, bool, Vec<pagekeeper_policy::Page>)> = Vec::new();
        let Some(file) = core.file(region.file) else { return };
        let mapping = file.mappings.iter().copied().find(|m| {
            m.space == space
                && m.overlap(run.place.index, 1).is_some_and(|(a, _)| {
                    a.wrapping_add(region.bias) / PAGE_BYTES == run.place.index
                })
        });
        let Some(mapping) = mapping else { return };
        for i in 0..run.pages {
            let place = Place { index: run.place.index + u64::from(i), ..run.place };
            let Some((addr, _)) = mapping.overlap(place.index, 1) else { break };
            let Some(page) = core.brain.page(place) else { continue };
            let word = core.word(page);
            if word.state() != State::Resident || word.doomed() || !core.brain.is_mapped(place) {
                continue;
            }
            let private_copy = !region.shared
                && core.space_mut(space).is_some_and(|s| s.private.contains(&addr));
            let word = core.word(page);
            let protect = if region.shared { !word.dirty() } else { !private_copy };
            word.pin();
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
        let mut last = false;
        for (addr, pages, protect, pinned) in parts {
            let mapped = self.times.of(Spent::Kernel, || {
                self.until_settled(|| self.port.map(space, addr, pages, protect))
            });
            if mapped == Ok(crate::port::Mapped { existed: true }) && !protect {
                let _ = self.until_settled(|| self.port.unprotect(space, addr, pages));
            }
            for page in pinned {
                last |= self.table.word(page).unpin();
            }
        }
        if last && self.sleepers.load(Ordering::SeqCst) > 0 {
            let _core = self.lock();
            self.rest.notify_all();
        }
    }

    /// What was counted so far.
    pub fn stats(&self) -> Stats {
        let core = self.lock();
        let mut stats = Stats::default();
        for file in core.files.iter().flatten() {
            stats.total.add(&file.counts);
            stats.files.push(FileReport {
                name: file.name.clone(),
                bytes: file.version.size_bytes,
                counts: file.counts,
            });
        }
        let counts = core.brain.counts();
        stats.refaults = counts.refaults;
        stats.prefetched_pages = counts.prefetched_pages;
        stats.prefetch_wasted_pages = counts.prefetch_wasted_pages;
        stats.decisions_digest = format!("{:016x}", core.brain.digest());
        drop(core);
        stats.failed_faults = self.failed_faults.load(Ordering::Relaxed);
        stats.private_pages_max = self.private_pages_max.load(Ordering::Relaxed);
        (stats.policy_ns, stats.io_ns, stats.kernel_ns) = self.times.read_ns();
        stats
    }
}

/// A job that nobody waits for, handed to another thread.
#[derive(Debug)]
pub struct Deferred {
    job: Job,
    space: Option<(SpaceNo, Region)>,
}

fn libc_enospc() -> i32 {
    28
}

fn libc_edquot() -> i32 {
    122
}
