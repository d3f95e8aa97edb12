//! The engine: what it is made of, and what it is told about files and address spaces.
//!
//! The lock is taken for decisions and claims, never across I/O or a call into the kernel. A fault
//! that meets a page in motion is parked, and served again when the page has come to rest; no
//! thread waits for another's I/O on its behalf.
//!
//! **Who waits for whom.** A thread sleeps only in `Engine::wait_until`, without the lock and
//! without pins. The one that may hold claims while it sleeps is a demand fault whose victims are
//! busy: it waits for pages that were claimed before its own, and has claimed none after, so there is
//! always a first one that waits for nobody. (Should that be wrong, it does as others do after a
//! second.) Work that no fault waits for waits a moment for victims that are being written back or
//! taken out, where a thread of its own carries it out; else, and after that, it gives up its fetches
//! and spares the busy victims. A sleeper carries out such work that is still queued, without sleeping
//! in it, and so need not hope for a free thread; who has claimed nothing serves the faults that were
//! handed to it before it sleeps, since who touched there may hold what it waits for.

mod around;
mod arrivals;
mod buffers;
pub(crate) mod change;
pub mod core;
mod errors;
mod evict;
mod fault;
mod fetch;
pub(crate) mod flush;
pub mod heap;
pub(crate) mod hearsay;
pub(crate) mod job;
mod late;
mod look;
mod mappings;
mod open_pages;
mod overdue;
pub mod overwrites;
pub(crate) mod patience;
mod presumed;
mod retire;
pub mod spaces;
pub mod stats;
pub mod table;
pub(crate) mod together;
mod touches;
pub mod transfer;
pub(crate) mod wanted;
mod watch;
pub mod word;

use crate::engine::buffers::Buffers;
use crate::engine::core::{Core, Fault, File, Job, Log};
use crate::engine::fault::FailuresTold;
use crate::engine::heap::Cleared;
use crate::engine::job::Queue;
use crate::engine::overdue::OverdueWrites;
use crate::engine::overwrites::Overwrites;
use crate::engine::spaces::{Region, Space};
use crate::engine::stats::{Policies, PolicyReport, Spent, Stats, Times};
use crate::engine::table::Table;
use crate::engine::touches::Touches;
use crate::engine::wanted::GIVE_WAY;
use crate::engine::word::WordRef;
use crate::live::dispatch::Fetches;
use crate::port::{FileNo, Port, SpaceNo, Version};
use pagekeeper_frames::{Brain, Budget, Config, Input, Place, SamplingShare, Segment};
use pagekeeper_policy::{Policy, PolicyError, PolicySpec};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

pub use crate::engine::job::Deferred;

/// Longest sleep between two looks at what is waited for; wake-ups come before it.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Frames give way, and come back, for as many as one part in so many.
const KEPT_PART: u32 = 128;

/// Faults to serve again, because the page they wait for came to rest. Whoever has them serves them, or
/// their threads sleep for ever.
#[derive(Default, Debug)]
pub struct Again(VecDeque<Fault>);

impl Again {
    /// None yet.
    pub fn new() -> Again {
        Again::default()
    }
}

impl From<Vec<Fault>> for Again {
    fn from(faults: Vec<Fault>) -> Again {
        Again(faults.into())
    }
}

impl std::ops::Deref for Again {
    type Target = VecDeque<Fault>;

    fn deref(&self) -> &VecDeque<Fault> {
        &self.0
    }
}

impl std::ops::DerefMut for Again {
    fn deref_mut(&mut self) -> &mut VecDeque<Fault> {
        &mut self.0
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        debug_assert!(self.0.is_empty() || std::thread::panicking(), "faults that nobody serves");
    }
}

/// A managed page cache over a port.
pub struct Engine<P: Port> {
    pub(crate) port: P,
    /// Bytes in a page, as the port says.
    pub(crate) page_bytes: u64,
    core: Mutex<Core>,
    pub(crate) table: Table,
    /// Signalled when a page comes to rest and somebody sleeps on it.
    rest: Condvar,
    sleepers: AtomicU32,
    /// Those of them who want to hear whenever a page is no longer used.
    watchers: AtomicU32,
    /// Held for reading from the check that a range still maps what it did to the end of the call
    /// that maps pages there; for writing while what ranges map changes. Comes before the lock.
    pub(crate) layout: RwLock<()>,
    /// Held while pages are mapped, and for writing from before it is read what became of address spaces until
    /// that is applied: who made a change goes on when it was read, and must not meet what was about to be
    /// mapped. Comes before `layout`.
    pub(crate) reading: RwLock<()>,
    /// Work that no fault waits for.
    pub(crate) queue: Mutex<Queue>,
    /// Jobs in it, to be looked at without its lock.
    pub(crate) queued: AtomicUsize,
    pub(crate) times: Times,
    pub(crate) failed_faults: AtomicU64,
    pub(crate) failures_told: Mutex<FailuresTold>,
    private_pages_max: AtomicU64,
    pub(crate) buffers: Buffers,
    pub(crate) exact: bool,
    /// Uses that the brain has not heard of yet.
    pub(crate) touches: Touches,
    pub(crate) overdue: OverdueWrites,
    pub(crate) fetches: Fetches,
}

/// Page-aligned memory for one transfer.
pub type Buffer = pagekeeper_sys::buffer::Buffer;

/// How somebody sleeps.
#[derive(Clone, Copy)]
struct Sleep {
    /// Serves faults meanwhile; who has claimed pages leaves them to be served afterwards.
    serves: bool,
    /// Is told whenever a page is no longer used.
    watches: bool,
}

impl<P: Port> Engine<P> {
    /// An engine with a budget for frames and per-page state.
    pub fn new(
        port: P,
        policy: Box<dyn Policy>,
        config: Config,
        table: Table,
        budget: Budget,
    ) -> Engine<P> {
        let page_bytes = port.page_bytes();
        let exact = matches!(config.sampling, pagekeeper_frames::Sampling::Window { .. });
        Engine {
            port,
            page_bytes,
            core: Mutex::new(Core::new(Brain::new(policy, config), table, budget, page_bytes)),
            table,
            rest: Condvar::new(),
            sleepers: AtomicU32::new(0),
            watchers: AtomicU32::new(0),
            layout: RwLock::new(()),
            reading: RwLock::new(()),
            queue: Mutex::new(Queue::default()),
            queued: AtomicUsize::new(0),
            times: Times::default(),
            failed_faults: AtomicU64::new(0),
            failures_told: Mutex::default(),
            private_pages_max: AtomicU64::new(0),
            buffers: Buffers::new(budget.buffers_bytes()),
            exact,
            touches: Touches::default(),
            overdue: OverdueWrites::default(),
            fetches: Fetches::default(),
        }
    }

    /// The machine under it.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// Whether every reference is to be seen.
    pub(crate) fn sees_all(&self) -> bool {
        self.exact || self.lock().log.is_some()
    }

    /// From now on `log` hears every input. Segments so far are told first.
    pub fn set_log(&self, mut log: Box<dyn Log>) {
        let mut core = self.lock();
        for (no, file) in core.files.iter().enumerate() {
            if let Some(file) = file {
                log.segment(Segment(no as u32), &file.name, file.shown_bytes());
            }
        }
        core.log = Some(log);
    }

    /// Clients may overwrite content of files without a message from now on, as this table says.
    /// Before the first file is opened.
    pub fn set_overwrites(&self, overwrites: Overwrites) {
        self.lock().overwrites = Some(overwrites);
    }

    /// The table of overwrites.
    pub(crate) fn with_overwrites<T>(&self, f: impl FnOnce(&Overwrites) -> T) -> Option<T> {
        self.lock().overwrites.as_ref().map(f)
    }

    /// Takes the log back.
    pub fn take_log(&self) -> Option<Box<dyn Log>> {
        self.lock().log.take()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("no thread panics while it holds the engine's lock")
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Core>> {
        self.core.try_lock().ok()
    }

    /// Sleeps until `check` says that what it waits for is there; it looks whenever a page came to
    /// rest. Meanwhile carries out queued work, and serves the faults of `again`. The caller holds no
    /// pin.
    pub(crate) fn wait_until<'a, T>(
        &'a self,
        again: &mut Again,
        check: impl FnMut(&mut Core) -> Option<T>,
    ) -> (MutexGuard<'a, Core>, T) {
        self.sleep_until(again, Sleep { serves: true, watches: true }, check)
    }

    /// [`wait_until`](Self::wait_until), of one who marks whose uses have to end
    /// ([`WordRef::awaits`](crate::engine::word::WordRef::awaits)): all others may go on ending theirs without a
    /// message.
    pub(crate) fn wait_marked<'a, T>(
        &'a self,
        again: &mut Again,
        check: impl FnMut(&mut Core) -> Option<T>,
    ) -> (MutexGuard<'a, Core>, T) {
        self.sleep_until(again, Sleep { serves: true, watches: false }, check)
    }

    fn sleep_until<'a, T>(
        &'a self,
        again: &mut Again,
        how: Sleep,
        mut check: impl FnMut(&mut Core) -> Option<T>,
    ) -> (MutexGuard<'a, Core>, T) {
        let mut core = self.lock();
        if let Some(found) = check(&mut core) {
            return (core, found);
        }
        // From here on who drops a last pin takes the lock and notifies.
        let watches = u32::from(how.watches);
        self.watchers.fetch_add(watches, Ordering::SeqCst);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            if !self.overdue.is_empty() {
                // It may be waited for.
                drop(core);
                self.end_overdue(again);
                core = self.lock();
            }
            if let Some(found) = check(&mut core) {
                break found;
            }
            if self.has_queued() {
                drop(core);
                self.run_queued(again);
                core = self.lock();
                continue;
            }
            if how.serves && !again.is_empty() {
                // What is waited for may be held by who waits for these.
                drop(core);
                self.serve_all(again);
                core = self.lock();
                continue;
            }
            // Who gives way does so for a while.
            let longest = if core.wanted.is_empty() { LOOK_AGAIN_AFTER } else { GIVE_WAY };
            core = self
                .rest
                .wait_timeout(core, longest)
                .expect("no thread panics while it holds the engine's lock")
                .0;
        };
        self.watchers.fetch_sub(watches, Ordering::SeqCst);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        (core, found)
    }

    /// As [`wait_until`](Self::wait_until), but for so long at most.
    pub(crate) fn wait_at_most<T>(
        &self,
        longest: Duration,
        again: &mut Again,
        mut check: impl FnMut(&mut Core) -> Option<T>,
    ) -> Option<T> {
        let begun = Instant::now();
        let until = |core: &mut Core| match check(core) {
            None if begun.elapsed() < longest => None,
            found => Some(found),
        };
        self.sleep_until(again, Sleep { serves: false, watches: true }, until).1
    }

    /// Tells sleepers that a page came to rest. Called with the lock held.
    pub(crate) fn rested(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.rest.notify_all();
        }
    }

    /// As [`rested`](Self::rested), without the lock.
    pub(crate) fn tell_sleepers(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.wake_sleepers();
        }
    }

    /// Tells those who want to hear of it that a page is no longer used.
    #[inline]
    pub(crate) fn tell_watchers(&self) {
        if self.watchers.load(Ordering::SeqCst) > 0 {
            self.wake_sleepers();
        }
    }

    #[cold]
    fn wake_sleepers(&self) {
        let _core = self.lock();
        self.rest.notify_all();
    }

    /// Tells those who await that uses of a page end. They ask again if need be; who wants it alone has
    /// asked still, so that nobody comes before.
    #[cold]
    pub(crate) fn tell_awaiting(&self, word: WordRef<'static>, place: Option<Place>) {
        let core = self.lock();
        let is_wanted = place.map_or(!core.wanted.is_empty(), |place| core.wanted.has(place));
        if !is_wanted {
            word.awaits_no_more();
        }
        self.rest.notify_all();
    }

    /// Time in decisions is measured here.
    pub(crate) fn decide(&self, core: &mut Core, input: Input) -> Job {
        let mut job = Job::default();
        self.decide_into(core, input, &mut job);
        job
    }

    /// As [`decide`](Self::decide), added to a job.
    pub(crate) fn decide_into(&self, core: &mut Core, input: Input, job: &mut Job) {
        self.times.of(Spent::Policy, || core.decide_all(input, job));
        if !core.wished.is_empty() {
            let wished = std::mem::take(&mut core.wished);
            self.queue_up(wished, None);
            self.rested();
        }
    }

    /// Says which policy decides, for reports.
    pub fn name_policy(&self, spec: &PolicySpec) {
        self.lock().policies = Policies::of(PolicyReport::new(spec));
    }

    /// Another policy decides from now on, over the pages that are resident: none is lost, and
    /// none leaves but for want of room for what the policy keeps. Gives back how many there are.
    ///
    /// # Errors
    /// The policy cannot run live; nothing was changed.
    pub fn replace_policy(&self, spec: &PolicySpec, seed: u64) -> Result<u32, PolicyError> {
        let frames = self.lock().brain.frames();
        // Without the lock: a program may take a while to build.
        let policy = spec.build(frames, seed)?;
        let mut core = self.lock();
        let job = self.times.of(Spent::Policy, || core.replace_policy(spec, policy, frames));
        let resident = core.brain.resident_pages();
        drop(core);
        self.finish(job);
        Ok(resident)
    }

    /// Looks at what the policy shows of itself; why it was revoked, if it was since the last look.
    pub fn look_inside(&self) -> Option<String> {
        self.lock().look_inside(false)
    }

    // ---- files and spaces -------------------------------------------------------------------

    /// Starts to manage a file. `holes`: storage may lack blocks for parts of it.
    pub fn open_file(&self, file: FileNo, name: &str, version: Version, holes: bool) {
        self.open(file, name, version, holes, None);
    }

    pub(crate) fn open(
        &self,
        file: FileNo,
        name: &str,
        version: Version,
        holes: bool,
        heap: Option<crate::engine::heap::Pages>,
    ) {
        let mut core = self.lock();
        let at = file as usize;
        if core.files.len() <= at {
            core.files.resize_with(at + 1, || None);
        }
        let pages = version.size_bytes.div_ceil(self.page_bytes);
        core.files[at] = Some(File { heap, ..File::new(name, version, pages, holes) });
        if let Some(overwrites) = &core.overwrites {
            overwrites.forget(file);
        }
        let Core { log, files, .. } = &mut *core;
        if let (Some(log), Some(file_of)) = (log, &files[at]) {
            log.segment(Segment(file), name, file_of.shown_bytes());
        }
        core.decide(Input::Segment { segment: Segment(file), pages });
        if let Some(f) = core.file(file) {
            self.announce(f, file);
        }
    }

    /// Whether misses in no order may bring the block around them along; files begin without it.
    pub fn read_around(&self, file: FileNo, allowed: bool) {
        let mut core = self.lock();
        if core.file(file).is_some() {
            core.decide(Input::Around { segment: Segment(file), allowed });
        }
    }

    /// A file's version as the engine knows it; none if it is not managed.
    pub fn file_version(&self, file: FileNo) -> Option<Version> {
        Some(self.lock().file(file)?.version)
    }

    /// A process image appeared.
    pub fn open_space(&self, space: SpaceNo, content: Space) {
        let _layout = self.layout.write().expect("layout");
        let mut core = self.lock();
        let at = space as usize;
        if core.spaces.len() <= at {
            core.spaces.resize_with(at + 1, || None);
        }
        let files = content.files(&(0..u64::MAX));
        core.spaces[at] = Some(content);
        core.refresh_mappings(space, &(0..u64::MAX), &files);
        self.recount_later(core);
    }

    /// A copy of a space's description, for a forked child.
    pub fn space(&self, space: SpaceNo) -> Option<Space> {
        self.lock().spaces.get(space as usize)?.clone()
    }

    /// Changes a space's description.
    pub fn with_space<T>(&self, space: SpaceNo, f: impl FnOnce(&mut Space) -> T) -> Option<T> {
        self.lock().space_mut(space).map(f)
    }

    /// A process image is gone. Returns files that no program maps any longer.
    pub fn close_space(&self, space: SpaceNo) -> Vec<FileNo> {
        let _layout = self.layout.write().expect("layout");
        let mut core = self.lock();
        let gone = core.spaces.get_mut(space as usize).and_then(Option::take);
        let Some(gone) = gone else { return Vec::new() };
        let files = gone.files(&(0..u64::MAX));
        core.refresh_mappings(space, &(0..u64::MAX), &files);
        let idle = core.unmapped_files(files);
        self.recount_later(core);
        idle
    }

    /// A range of a space maps a file from now on.
    pub fn add_region(&self, space: SpaceNo, range: Range<u64>, region: Region) {
        let _layout = self.layout.write().expect("layout");
        self.enter_region(space, range, region);
    }

    /// Looks an address up in the address space itself, and enters what is mapped there. Whatever
    /// changes meanwhile is entered after it. What it came from may be known to be at another address.
    pub(crate) fn find_region(&self, space: SpaceNo, addr: u64, came_from: Option<u64>) -> bool {
        let _layout = self.layout.write().expect("layout");
        let Some((found, mut region)) = self.port.resolve(space, addr) else { return false };
        // Of a mapping that grew the greater part is known, and what is its program's own in it.
        let mut unknown = found.clone();
        let is_known = self.with_space(space, |space| {
            let here = space.region(addr).filter(|known| region.may_continue(known));
            let (mut before, mut behind) = (None, None);
            for (range, known) in space.regions.overlapping(&found) {
                if !region.may_continue(known) || range.contains(&addr) {
                    continue;
                }
                if range.end <= addr {
                    unknown.start = range.end;
                    before = Some(*known);
                } else if behind.is_none() {
                    unknown.end = range.start;
                    behind = Some(*known);
                }
            }
            let origin = came_from.and_then(|from| space.region(from));
            let origin = origin.map(|known| Region { bias: region.bias, ..known });
            let origin = origin.filter(|known| region.may_continue(known));
            // The mapping does not show whether it may be written to: what is said of that is a guess.
            region = origin.or(here).or(before).or(behind).unwrap_or(region);
            here == Some(region)
        });
        if is_known != Some(true) {
            self.enter_region(space, unknown, region);
        }
        true
    }

    /// With `layout` held for writing.
    fn enter_region(&self, space: SpaceNo, range: Range<u64>, region: Region) {
        let mut core = self.lock();
        let gone = core.heap_pages(space, &range);
        let Some(s) = core.space_mut(space) else { return };
        let mut files = s.unmap(range.clone());
        s.regions.insert(range.clone(), region);
        files.push(region.file);
        core.refresh_mappings(space, &range, &files);
        core.orphan(space, gone, None);
        self.recount_later(core);
    }

    /// A range of a space was unmapped. Returns files that no program maps any longer.
    pub fn unmapped(&self, space: SpaceNo, range: Range<u64>) -> Vec<FileNo> {
        let _layout = self.layout.write().expect("layout");
        let mut core = self.lock();
        let gone = core.heap_pages(space, &range);
        let Some(s) = core.space_mut(space) else { return Vec::new() };
        let change = s.order.heard();
        let files = s.unmap(range.clone());
        core.refresh_mappings(space, &range, &files);
        core.orphan(space, gone, Some(change));
        let idle = core.unmapped_files(files);
        self.recount_later(core);
        idle
    }

    /// A range of a space moved (`mremap(2)`), and may be shorter or longer now. What was cut off is
    /// unmapped.
    pub fn remapped(&self, space: SpaceNo, from: u64, to: u64, old_len: u64, new_len: u64) {
        let _layout = self.layout.write().expect("layout");
        let mut core = self.lock();
        let mut gone = core.heap_pages(space, &(to..to + new_len));
        gone.extend(core.heap_pages(space, &(from + new_len.min(old_len)..from + old_len)));
        let Some(s) = core.space_mut(space) else { return };
        let change = s.order.heard();
        let files = s.remap(from, to, old_len, new_len);
        core.refresh_mappings(space, &(from..from + old_len), &files);
        core.refresh_mappings(space, &(to..to + new_len), &files);
        core.orphan(space, gone, Some(change));
        self.recount_later(core);
    }

    /// A range's pages were dropped from a space (`madvise(2)` DONTNEED): private copies are gone, and heap
    /// memory is zeros. The program made that call behind the library's back, or some of the range is not
    /// the heap's; it goes on when this is known, so a fence is put at once, and what is behind it is given
    /// back, to be dropped. (While it forks, everything stays as it is: what the child has may be neither.)
    pub fn removed(&self, space: SpaceNo, range: Range<u64>) -> Vec<Cleared> {
        let mut core = self.lock();
        let is_mended = core.space_mut(space).is_some_and(|s| s.is_mended(range.start));
        let heap = if is_mended { Vec::new() } else { core.heap_pages(space, &range) };
        let mut cleared = Vec::new();
        for (file, pages) in heap {
            if !core.is_held(file) {
                cleared.extend(core.clear(file, pages));
            }
        }
        self.drop_copies(core, space, range);
        cleared
    }

    /// Whoever maps pages holds this from the check that a range still maps what it did to the end of the call.
    pub(crate) fn hold_layout(&self) -> (RwLockReadGuard<'_, ()>, RwLockReadGuard<'_, ()>) {
        (self.reading.read().expect("reading"), self.layout.read().expect("layout"))
    }

    /// [`hold_layout`](Self::hold_layout) beside nobody else.
    pub(crate) fn hold_layout_alone(&self) -> (RwLockReadGuard<'_, ()>, RwLockWriteGuard<'_, ()>) {
        (self.reading.read().expect("reading"), self.layout.write().expect("layout"))
    }

    /// Whoever reads what became of address spaces holds this until it is applied.
    pub(crate) fn hold_mappings(&self) -> RwLockWriteGuard<'_, ()> {
        self.reading.write().expect("reading")
    }

    /// A range's private copies are gone.
    pub(crate) fn copies_gone(&self, space: SpaceNo, range: Range<u64>) {
        self.drop_copies(self.lock(), space, range);
    }

    fn drop_copies(&self, mut core: MutexGuard<'_, Core>, space: SpaceNo, range: Range<u64>) {
        if let Some(s) = core.space_mut(space) {
            s.forget_private(range);
        }
        self.recount_later(core);
    }

    /// The library is about to drop a page of heap memory from a space, for the mark that it has there.
    pub fn mends(&self, space: SpaceNo, addr: u64) {
        if let Some(s) = self.lock().space_mut(space) {
            s.mends(addr);
        }
    }

    /// Tells the brain how many private copies there are. What follows is left to others: the
    /// caller may be following an address space in the midst of another fault.
    pub(crate) fn recount_later(&self, mut core: MutexGuard<'_, Core>) {
        let job = self.recount(&mut core);
        drop(core);
        self.run_later(job, None);
    }

    /// Tells the brain how many private copies there are.
    pub(crate) fn recount(&self, core: &mut Core) -> Job {
        let job = self.times.of(Spent::Policy, || core.recount_private());
        self.private_pages_max.fetch_max(u64::from(core.private_pages), Ordering::Relaxed);
        job
    }

    /// Sets frames aside, whose memory is used for something else.
    pub fn set_aside(&self, frames: u32) {
        let mut core = self.lock();
        core.aside_pages = frames;
        let reserved = core.reserved();
        let job = self.decide(&mut core, reserved);
        drop(core);
        self.finish(job);
    }

    /// Whether storage keeps pages of the file, of which the brain is told when it changes: what is
    /// kept one by one gains nothing by company.
    pub(crate) fn keeps(&self, core: &mut Core, file: FileNo) -> bool {
        let Some(keeps) = self.port.keeps_pages(file) else { return false };
        let segment = Segment(file);
        if core.brain.is_written_alone(segment) != keeps {
            core.decide(Input::Along { segment, allowed: !keeps });
        }
        true
    }

    /// Frames give way to what storage keeps in memory by now, and come back. What follows is the
    /// caller's.
    pub(crate) fn recount_kept(&self, core: &mut Core) -> Job {
        let kept = self.port.kept_pages();
        let worth_it = core.brain.frames() / KEPT_PART;
        if kept.abs_diff(core.kept_pages) <= worth_it {
            return Job::default();
        }
        core.kept_pages = kept;
        let reserved = core.reserved();
        self.decide(core, reserved)
    }

    /// The policy that decides now, if it was [named](Self::name_policy).
    pub fn policy(&self) -> Option<PolicySpec> {
        self.lock().policies.present().spec.clone()
    }

    /// The budget in bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.lock().budget.memory_bytes()
    }

    /// Changes the budget for frames and state.
    pub fn set_budget(&self, memory_bytes: u64) {
        let mut core = self.lock();
        core.budget = core.budget.of_bytes(memory_bytes);
        self.buffers.set_long_bytes_max(core.budget.buffers_bytes());
        let frames = core.budget.frames(core.brain.numbered_pages());
        let job = self.decide(&mut core, Input::Frames { frames });
        drop(core);
        self.finish(job);
    }

    /// What was counted so far.
    pub fn stats(&self) -> Stats {
        let mut core = self.lock();
        core.look_inside(true);
        let mut stats = Stats { policies: core.policies.reports(), ..Stats::default() };
        stats.files = core.files.iter().flatten().filter(|f| !f.gone).map(File::report).collect();
        core.past.report(&mut stats.files);
        stats.files.iter().for_each(|file| stats.total.add(&file.counts));
        let counts = core.brain.counts();
        stats.refaults = counts.refaults;
        stats.prefetched_pages = counts.prefetched_pages;
        stats.prefetch_wasted_pages = counts.prefetch_wasted_pages;
        stats.unmapped_pages = counts.unmapped_pages;
        stats.touches_seen = counts.touches_seen;
        stats.sampling_percent = core.brain.sampling_share().map(SamplingShare::percent);
        stats.decisions_digest = format!("{:016x}", core.brain.digest());
        drop(core);
        stats.failed_faults = self.failed_faults.load(Ordering::Relaxed);
        stats.private_pages_max = self.private_pages_max.load(Ordering::Relaxed);
        (stats.policy_ns, stats.io_ns, stats.kernel_ns) = self.times.read_ns();
        stats
    }
}
