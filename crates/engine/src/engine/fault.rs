//! Faults: what a touched page needs, and who is told when it cannot be had.

use crate::engine::core::{Core, Fault, Job};
use crate::engine::fetch::Request;
use crate::engine::job::Wait;
use crate::engine::overwrites::Claim;
use crate::engine::spaces::{Region, Space};
use crate::engine::stats::{FileCounts, Spent};
use crate::engine::word::{Ended, State, Use};
use crate::engine::{Again, Engine};
use crate::port::{FileNo, Mapped, PAGE_BYTES, Port, PortError, SpaceNo};
use pagekeeper_frames::{Input, Place, Run, Segment};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Instant;

const ENOMEM: i32 = 12;
const EEXIST: i32 = 17;
const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;
/// Threads that were told last of a touch that failed, of which that is known.
const TOLD_KEPT: usize = 64;

/// A page that storage may lack room for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Unreserved {
    place: Place,
    dirty: bool,
    /// How often the file had become longer within a page.
    grown: u64,
}

/// What storage is asked for before a store.
#[derive(Clone, Copy)]
struct Room {
    page: Unreserved,
    /// How many pages behind it may become dirty with it: those that are likely to, and then those that
    /// storage has room for as it is.
    next_pages: u32,
}

/// A fault whose page is in memory.
#[derive(Clone, Copy)]
struct Touched {
    fault: Fault,
    region: Region,
    place: Place,
    /// Pages behind it that may become dirty with it.
    next_pages_max: u32,
}

/// A fault whose page is not in memory.
#[derive(Clone, Copy)]
pub(crate) struct Missed {
    pub(crate) fault: Fault,
    pub(crate) region: Region,
    pub(crate) place: Place,
    /// The page is dirty from its arrival on.
    pub(crate) write: bool,
}

/// Touches that threads were told of that they failed, by a signal or in its place.
#[derive(Default, Debug)]
pub(crate) struct FailuresTold {
    count: u64,
    /// Which was the last of some threads.
    last: VecDeque<(SpaceNo, u32, u64)>,
}

impl<P: Port> Engine<P> {
    /// Serves a fault, and every fault that waited for what it brought to rest.
    pub fn serve(&self, fault: Fault) {
        let mut queue = Again::from(vec![fault]);
        self.serve_all(&mut queue);
    }

    /// Serves faults until none is left, and carries out what nobody promised to.
    pub fn serve_all(&self, queue: &mut Again) {
        loop {
            while let Some(fault) = queue.pop_front() {
                self.serve_one(fault, queue);
            }
            self.run_unclaimed(queue);
            if queue.is_empty() {
                return;
            }
        }
    }

    fn serve_one(&self, fault: Fault, again: &mut Again) {
        let mut reserved = None;
        while let Some(unreserved) = self.attempt(fault, reserved, again) {
            // Storage may lack blocks for the page: a full disk is an error at the write, not
            // at some later write-back.
            let Room { page, next_pages } = unreserved;
            let Unreserved { place, dirty, grown } = page;
            if let Err(error) = self.reserve_page(place, dirty, grown) {
                self.fail(fault, error, again);
                return;
            }
            let next = Place { index: place.index + 1, ..place };
            let next = Run { place: next, pages: next_pages, demanded: 0 };
            reserved = Some(Room { page, next_pages: self.room_ahead(next) });
        }
    }

    /// Serves a fault, or says for which page storage has to be reserved first.
    fn attempt(&self, fault: Fault, reserved: Option<Room>, again: &mut Again) -> Option<Room> {
        let touched = fault.addr & !(PAGE_BYTES - 1);
        // Whoever asks first finds out, which is no work for under the lock.
        let maps_protected = self.port.maps_protected();
        let mut core = self.lock();
        let Some(region) = core.region(fault.space, touched) else {
            drop(core);
            self.stray(fault, again);
            return None;
        };
        core.asking_pid = core.space_mut(fault.space).map_or(0, |s| s.pid);
        let (place, addr) = core.place_of(region, touched);
        let Some(file) = core.file(region.file).filter(|f| place.index < f.pages) else {
            // Beyond the end of the file: the next touch raises SIGBUS by itself.
            drop(core);
            let _ = self.port.wake(fault.space, touched, 1);
            return None;
        };
        if region.index(touched) >= file.machine_end() {
            drop(core);
            self.deny_behind_the_end(fault, region);
            return None;
        }
        let ask = file.holes || file.on_request;
        let grown = file.grown;
        let lacks_room = file.lacks_room.contains(&place.index);
        let (page, state) = core.state(place);
        if core.has_no_number_for(page) {
            drop(core);
            self.fail(fault, PortError::Io(ENOMEM), again);
            return None;
        }
        let wants_write = fault.write || fault.protected;
        let shared_write = wants_write && region.shared;
        // Or for a moment: see `map_range`.
        let writable = shared_write || region.shared && !maps_protected;
        let dirty = page.is_some_and(|p| core.word(p).dirty());
        let doomed = page.is_some_and(|p| core.word(p).doomed());
        let busy = matches!(state, State::Filling | State::Cleaning | State::Leaving);
        if busy
            || doomed
            || core.dropping(place)
            || (state == State::Absent && core.unfetchable(place))
            || (writable && !dirty && core.unwritable(place))
        {
            let mut job = Job::default();
            let seen = matches!(state, State::Filling | State::Cleaning)
                && !doomed
                && !core.dropping(place);
            if seen && !core.brain.is_mapped(place) {
                // A marker's first touch must start the next window now, not when it arrives.
                self.count(&mut core, region.file, |c| c.minor_faults += 1);
                job = self.decide(&mut core, Input::Touch { place, write: false, map: true });
            }
            core.park(place, fault);
            drop(core);
            self.run(job, Some((fault.space, region)), again);
            return None;
        }
        if shared_write && !dirty && core.is_dirty_enough(region.file) {
            // Until storage goes on.
            core.park(place, fault);
            return None;
        }
        let unreserved = Unreserved { place, dirty, grown };
        let reserved = reserved.filter(|room| room.page == unreserved);
        let has_room = if dirty { !lacks_room } else { reserved.is_some() };
        if shared_write && ask && !has_room {
            let is_seen = fault.protected && !dirty && !self.exact && !core.is_heap(region.file);
            let next_pages = if is_seen { core.stored_next(fault.space, region, place) } else { 0 };
            return Some(Room { page: unreserved, next_pages });
        }
        if wants_write
            && !region.shared
            && core.space_mut(fault.space).is_some_and(|s| s.private.insert(addr))
        {
            // A private copy is about to be made: it takes a frame of the budget.
            let job = self.recount(&mut core);
            drop(core);
            self.run_waiting(job, None, again);
            again.push_front(fault);
            return None;
        }
        match state {
            State::Absent => {
                let missed = Missed { fault, region, place, write: shared_write };
                let job = self.miss(&mut core, missed);
                drop(core);
                self.fault_in(job, missed, again);
            }
            State::Resident => {
                let next_pages_max = match reserved {
                    // A heap has all of its room, or none.
                    _ if !ask || core.is_heap(region.file) => u32::MAX,
                    reserved => reserved.map_or(0, |room| room.next_pages),
                };
                self.fault_resident(core, Touched { fault, region, place, next_pages_max }, again);
            }
            _ => unreachable!("busy pages were parked"),
        }
        None
    }

    pub(crate) fn count(&self, core: &mut Core, file: FileNo, f: impl FnOnce(&mut FileCounts)) {
        if let Some(file) = core.file_mut(file) {
            f(&mut file.counts);
        }
    }

    /// A major fault: claims the page, and room for it.
    pub(crate) fn miss(&self, core: &mut Core, missed: Missed) -> Job {
        let Missed { region, place, write, .. } = missed;
        self.count(core, region.file, |c| c.major_faults += 1);
        self.port.missed(region.file);
        self.decide(core, Input::Major { place, want: 1, write, map: true })
    }

    /// Makes room, fetches, maps.
    pub(crate) fn fault_in(&self, mut job: Job, missed: Missed, again: &mut Again) {
        let requests = self.prepare(&mut job, Wait::Long, again);
        // Nobody has to be interrupted as long as the program waits, and storage works.
        self.unmap(&mut job);
        self.bring(requests, job, missed, Instant::now(), again);
    }

    /// Completes and maps what a job fetches that made room for it, and of which the fetch has `begun`.
    pub(crate) fn bring(
        &self,
        mut requests: Vec<Request>,
        mut job: Job,
        missed: Missed,
        begun: Instant,
        again: &mut Again,
    ) {
        let Missed { fault, region, place, write } = missed;
        // One that is to be copied is not mapped before.
        let copied = self.copies_whole(fault, region);
        let mut answered = false;
        // The page that is waited for, before all that comes along.
        if let Some(at) = requests.iter().position(|request| request.place() == place) {
            let completed =
                self.complete(requests.remove(at), write, !copied, again, |run, again| {
                    self.fetches.note(begun.elapsed());
                    answered = !copied && self.map_run(run, fault.space, region, true, again);
                });
            if let Err(error) = completed {
                self.fail(fault, error, again);
                answered = true;
            }
        }
        let _ = self.complete_all(requests, again, |run, again| {
            self.map_run(run, fault.space, region, false, again);
        });
        for run in std::mem::take(&mut job.map) {
            self.map_run(run, fault.space, region, false, again);
        }
        if !answered {
            again.push_back(fault);
        }
    }

    /// A fault on a page that is in memory.
    fn fault_resident<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        what: Touched,
        again: &mut Again,
    ) {
        let Touched { fault, region, place, next_pages_max } = what;
        let touched = fault.addr & !(PAGE_BYTES - 1);
        let (_, addr) = core.place_of(region, touched);
        let page = core.brain.page(place).expect("resident pages are numbered");
        let word = core.word(page);
        let writes = (fault.write || fault.protected) && region.shared;
        let hidden = core.brain.is_mapped(place);
        word.pin();
        let mut job = Job::default();
        let first_write = writes && !word.dirty();
        // While recording, a page that is dirty already is mapped without write access all the same:
        // elsewhere it may have been written back meanwhile, and this is what dirties it again.
        let shows_write = self.exact && fault.protected && region.shared && word.dirty();
        if first_write {
            word.set_dirty();
            core.note_dirty(place);
        }
        if !hidden {
            self.count(&mut core, region.file, |c| c.minor_faults += 1);
            job = self.decide(&mut core, Input::Touch { place, write: writes, map: true });
        } else if first_write || shows_write {
            self.count(&mut core, region.file, |c| c.write_faults += 1);
            job = self.decide(&mut core, Input::Write { place });
        }
        // Where a walk is on its way, it maps these together with what lies between them.
        core.leave_to_walk(fault.space, region, addr, &mut job.map);
        let along = if hidden && !fault.protected && !self.exact && !word.doomed() {
            core.along(fault.space, region, place, word.dirty())
        } else {
            Vec::new()
        };
        let stored_next = if first_write && hidden && fault.protected && !self.exact {
            core.stored_next(fault.space, region, place).min(next_pages_max)
        } else {
            0
        };
        let next = Place { index: place.index + 1, ..place };
        let next = Run { place: next, pages: stored_next, demanded: 0 };
        let others = along.iter().flat_map(Run::places).chain(next.places());
        let others: Vec<_> = others.filter_map(|p| core.brain.page(p)).collect();
        for &other in &others {
            core.word(other).pin();
        }
        let quiet = if stored_next > 0 { core.quiet(region.file) } else { None };
        match quiet {
            Some(_) => core.begin_presumptions(region.file),
            None => job.append(self.make_dirty(&mut core, next)),
        }
        // Private mappings stay write-protected until their copy is counted.
        let protect = match region.shared {
            true => !(word.dirty() && (writes || !self.exact && !core.lacks_room(place))),
            false => !core.is_own_copy(fault.space, addr),
        };
        drop(core);
        let space = fault.space;
        // Nobody has to be interrupted as long as the program waits.
        self.unmap(&mut job);
        // Before the program goes on.
        let stored_next = match quiet {
            Some(quiet) => self.presume_next(next, quiet, &mut job),
            None => stored_next,
        };
        // What comes along first: the program goes on as soon as its own page is mapped.
        for run in std::mem::take(&mut job.map) {
            self.map_run(run, space, region, false, again);
        }
        let result = self.times.of(Spent::Kernel, || {
            if protect && self.copies_whole(fault, region) {
                return self.copy(space, region, place);
            }
            if fault.protected && !protect {
                if stored_next > 0 {
                    // Before the program goes on. Who stores to one that could not be had finds out.
                    let next = addr + self.page_bytes;
                    let _ = self.unprotect(space, region, next, stored_next.into());
                }
                return self.unprotect(space, region, addr, 1);
            }
            let mapped = self.map_first(space, region, addr, protect, &along)?;
            if mapped.existed {
                // Somebody was faster; but a file that grew may show less than the page has by now.
                if addr != touched {
                    self.map_rest(space, region, touched, addr + self.page_bytes, protect)?;
                }
                return if protect { Ok(()) } else { self.unprotect(space, region, addr, 1) };
            }
            Ok(())
        });
        self.unpin(page);
        for other in others {
            self.unpin(other);
        }
        match result {
            Ok(()) => {}
            // It was unmapped meanwhile, of which the kernel tells nobody who waits there.
            Err(PortError::Gone) => {
                let _ = self.port.wake(space, touched, 1);
            }
            Err(PortError::Missing) if fault.protected => {
                let _ = self.port.wake(space, touched, 1);
            }
            Err(PortError::Missing) => {
                self.lost(place, again, fault);
                // Or what is mapped there is not what it is taken for, by calls that nobody saw.
                self.find_region(space, touched, None);
            }
            Err(error) => self.fail(fault, error, again),
        }
        self.run(job, Some((space, region)), again);
    }

    /// The engine holds a page for resident, the kernel does not: somebody punched it out of the
    /// frames. What storage holds is all there is.
    fn lost(&self, place: Place, again: &mut Again, fault: Fault) {
        again.push_back(fault);
        let mut core = self.lock();
        let (Some(page), State::Resident) = core.state(place) else { return };
        if core.claim_leaving(page, place) != Claim::Made {
            drop(core);
            std::thread::yield_now();
            return;
        }
        self.drop_claimed(core, page, place, again);
    }

    /// Takes a touched page out of memory if it is clean, and nobody uses it just now.
    fn take_out(&self, fault: Fault, again: &mut Again) {
        let mut core = self.lock();
        let Some(region) = core.region(fault.space, fault.addr) else { return };
        let (place, _) = core.place_of(region, fault.addr);
        let (Some(page), State::Resident) = core.state(place) else { return };
        let word = core.word(page);
        if word.doomed() || core.claim_leaving(page, place) != Claim::Made {
            return;
        }
        // Nobody makes it dirty from now on.
        if word.dirty() {
            word.kept();
            core.rests(place.segment.0);
            again.extend(core.unpark(place));
            self.rested();
            return;
        }
        self.drop_claimed(core, page, place, again);
    }

    /// Takes a page out of memory whose leaving was claimed, whatever it holds.
    fn drop_claimed(
        &self,
        core: MutexGuard<'_, Core>,
        page: pagekeeper_policy::Page,
        place: Place,
        again: &mut Again,
    ) {
        let word = core.word(page);
        drop(core);
        let _ = self.port.discard(place.segment.0, place.index, 1);
        let mut core = self.lock();
        core.end_presumption(page, place.segment.0);
        word.dropped();
        core.rests(place.segment.0);
        let input = Input::Drop { segment: place.segment, first: place.index, pages: 1 };
        self.decide(&mut core, input);
        again.extend(core.unpark(place));
        self.rested();
    }

    /// A fault at an address that no known region covers: the mapping grew or moved unseen, or is
    /// gone already.
    fn stray(&self, fault: Fault, again: &mut Again) {
        if self.find_region(fault.space, fault.addr, None) {
            again.push_back(fault);
        } else {
            let _ = self.port.wake(fault.space, fault.addr & !(PAGE_BYTES - 1), 1);
        }
    }

    /// A fault that cannot be served: SIGBUS, as under the kernel. Others who touch the page find
    /// out by themselves: storage may serve them.
    fn fail(&self, fault: Fault, error: PortError, again: &mut Again) {
        let no_space = matches!(error, PortError::Io(ENOSPC | EDQUOT | ENOMEM));
        let addr = fault.addr & !(PAGE_BYTES - 1);
        // The page can be read.
        let by_signal = no_space || fault.protected;
        if by_signal && !self.tells(fault) {
            // A second signal would meet it elsewhere.
            let _ = self.port.wake(fault.space, addr, 1);
            return;
        }
        self.failed_faults.fetch_add(1, Ordering::Relaxed);
        let poisoned = if by_signal && !self.port.is_deaf(fault.space, fault.tid) {
            Err(PortError::Missing)
        } else {
            if by_signal {
                // What is mapped raises nothing.
                self.take_out(fault, again);
            }
            self.until_settled(|| {
                // Nobody takes the mark away meanwhile.
                let _layout = self.hold_layout();
                let poisoned = self.port.poison(fault.space, addr);
                if poisoned.is_ok() {
                    self.forget_copy(fault);
                }
                poisoned
            })
        };
        let absent = |core: &Core| {
            core.region(fault.space, addr).is_some_and(|region| {
                let (place, _) = core.place_of(region, addr);
                matches!(core.state(place).1, State::Absent | State::Filling)
            })
        };
        self.denied(fault, poisoned, absent);
    }

    /// How many touches threads were told of that they failed, by a signal or in its place.
    pub fn failures_told(&self) -> u64 {
        self.failures_told.lock().expect("told").count
    }

    /// Whether a thread is to be told of a touch, which counts as done. One that was woken by something else
    /// touches again, of which there is another fault: if it was told since that was heard of, it has
    /// gone on.
    fn tells(&self, fault: Fault) -> bool {
        let mut told = self.failures_told.lock().expect("told");
        let is_it =
            |(space, tid, _): &(SpaceNo, u32, u64)| (*space, *tid) == (fault.space, fault.tid);
        if told.last.iter().any(|last| is_it(last) && last.2 > fault.told) {
            return false;
        }
        told.count += 1;
        let number = told.count;
        told.last.retain(|last| !is_it(last));
        if told.last.len() == TOLD_KEPT {
            told.last.pop_front();
        }
        told.last.push_back((fault.space, fault.tid, number));
        true
    }

    /// Where a page was marked that could not be had, there is no private copy of it, and none is about to
    /// be made.
    fn forget_copy(&self, fault: Fault) {
        let mut core = self.lock();
        let touched = fault.addr & !(PAGE_BYTES - 1);
        let Some(region) = core.region(fault.space, touched).filter(|region| !region.shared) else {
            return;
        };
        let (_, addr) = core.place_of(region, touched);
        let forget = |s: &mut Space| !s.copied.contains(&addr) && s.private.remove(&addr);
        if core.space_mut(fault.space).is_some_and(forget) {
            self.recount_later(core);
        }
    }

    /// A fault behind the end of a file, in the last page, of which the machine has several: SIGBUS, as
    /// the kernel raises behind the last page.
    fn deny_behind_the_end(&self, fault: Fault, region: Region) {
        let addr = fault.addr & !(PAGE_BYTES - 1);
        let poisoned = self.until_settled(|| {
            // Whoever makes the file longer takes the mark away, which must not come after that.
            let _layout = self.hold_layout();
            if !self.lock().is_behind_the_end(region, addr) {
                return self.port.wake(fault.space, addr, 1);
            }
            self.port.poison(fault.space, addr)
        });
        self.denied(fault, poisoned, |core| core.is_behind_the_end(region, addr));
    }

    /// Somebody is to find out by SIGBUS. Who cannot be told by the page is told by a signal. `absent`
    /// says whether there is still nothing that could be mapped.
    fn denied(
        &self,
        fault: Fault,
        poisoned: Result<(), PortError>,
        absent: impl Fn(&Core) -> bool,
    ) {
        let (space, addr) = (fault.space, fault.addr & !(PAGE_BYTES - 1));
        let poisoned = match poisoned {
            Err(PortError::Io(EEXIST)) => self.until_settled(|| {
                // Somebody was faster, or the page was protected when it left: the kernel keeps a mark
                // of that, which it does not replace.
                let _layout = self.hold_layout_alone();
                if !absent(&self.lock()) {
                    return self.port.wake(space, addr, 1);
                }
                self.port.unprotect(space, addr, 1)?;
                match self.port.poison(space, addr) {
                    Err(PortError::Io(EEXIST)) => self.port.wake(space, addr, 1),
                    poisoned => {
                        if poisoned.is_ok() {
                            self.forget_copy(fault);
                        }
                        poisoned
                    }
                }
            }),
            poisoned => poisoned,
        };
        match poisoned {
            Err(PortError::Missing) => {
                let _ = self.port.sigbus(space, fault.tid, addr);
            }
            Err(PortError::Gone) => {
                let _ = self.port.wake(space, addr, 1);
            }
            _ => {}
        }
    }

    pub(crate) fn unpin(&self, page: pagekeeper_policy::Page) {
        let word = self.table.word(page);
        match word.end(Use::Read) {
            Ended::Among => {}
            Ended::Last | Ended::Kept => self.tell_watchers(),
            Ended::Awaited => self.tell_awaiting(word, None),
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

    /// Calls the port for a range as long as it maps what it did when the pages were pinned. The
    /// same address may be another file's by now, whose clean pages must not become writable; or the
    /// same may be mapped there anew, privately, without the copies that were stored to (`writable`).
    /// The call is told how many pages of the machine's lie before the file's end.
    pub(crate) fn where_it_was<T>(
        &self,
        space: SpaceNo,
        region: Region,
        range: Range<u64>,
        writable: bool,
        mut call: impl FnMut(u64) -> Result<T, PortError>,
    ) -> Result<T, PortError> {
        let is_heap = self.is_heap(region.file);
        self.until_settled(|| {
            let _layout = self.hold_layout();
            let pages = self.shown(space, region, range.clone())?;
            if is_heap && self.is_any_dropping(region, &range) {
                // Whoever waits there finds zeros when it touches again.
                self.port.wake(space, range.start, pages)?;
                return Err(PortError::Gone);
            }
            let copied = |core: &Core| core.are_own_copies(space, region, range.clone());
            if writable && !region.shared && !copied(&self.lock()) {
                self.port.wake(space, range.start, pages)?;
                return Err(PortError::Gone);
            }
            call(pages)
        })
    }

    /// Maps pinned pages.
    pub(crate) fn map(
        &self,
        space: SpaceNo,
        region: Region,
        addr: u64,
        pages: u64,
        protect: bool,
    ) -> Result<Mapped, PortError> {
        let range = addr..addr + pages * self.page_bytes;
        self.map_range(space, region, range, protect, true)
    }

    /// Maps a pinned page, and unless somebody was faster, so with its neighbours, what comes along.
    fn map_first(
        &self,
        space: SpaceNo,
        region: Region,
        addr: u64,
        protect: bool,
        along: &[Run],
    ) -> Result<Mapped, PortError> {
        if along.is_empty() {
            return self.map(space, region, addr, 1, protect);
        }
        // Nobody is woken before the rest is there: the program would come to it first.
        let range = addr..addr + self.page_bytes;
        let mapped = self.map_range(space, region, range, protect, false)?;
        if !mapped.existed {
            for run in along {
                let start = (run.place.index * self.page_bytes).wrapping_sub(region.bias);
                // Whoever touches one that could not be had finds out.
                let _ = self.map(space, region, start, run.pages.into(), protect);
            }
        }
        self.port.wake(space, addr, 1)?;
        Ok(mapped)
    }

    /// Whether the content of a page that a range shows is on its way out for good.
    fn is_any_dropping(&self, region: Region, range: &Range<u64>) -> bool {
        let core = self.lock();
        let segment = Segment(region.file);
        let first = region.index(range.start) * PAGE_BYTES / self.page_bytes;
        let end = (region.index(range.end - 1) * PAGE_BYTES) / self.page_bytes + 1;
        (first..end).any(|index| core.dropping(Place { segment, index }))
    }

    /// How many pages of the machine's a range that maps what it did shows before the file's end. Who
    /// waits behind that touches again.
    fn shown(&self, space: SpaceNo, region: Region, range: Range<u64>) -> Result<u64, PortError> {
        let pages = (range.end - range.start) / PAGE_BYTES;
        let shown = self.lock().shown(space, region, range.clone()).ok_or(PortError::Gone)?;
        if shown < pages {
            self.port.wake(space, range.start + shown * PAGE_BYTES, pages - shown)?;
        }
        if shown == 0 { Err(PortError::Gone) } else { Ok(shown) }
    }

    /// Maps a pinned page from an address within it on.
    fn map_rest(
        &self,
        space: SpaceNo,
        region: Region,
        from: u64,
        end: u64,
        protect: bool,
    ) -> Result<Mapped, PortError> {
        self.map_range(space, region, from..end, protect, true)
    }

    /// Whether a store makes a private copy of a page as a whole: the kernel copies none that is larger
    /// than the machine's.
    fn copies_whole(&self, fault: Fault, region: Region) -> bool {
        self.page_bytes > PAGE_BYTES && !region.shared && (fault.write || fault.protected)
    }

    /// Makes a private copy of a pinned page, once.
    fn copy(&self, space: SpaceNo, region: Region, place: Place) -> Result<(), PortError> {
        let mut buffer = self.take_buffer(self.page_bytes as usize)?;
        let data = &mut buffer[..self.page_bytes as usize];
        let result = self.until_settled(|| {
            // Nobody maps anything meanwhile: what is copied is what the region showed last, and a
            // store to it comes after the copy.
            let _layout = self.hold_layout_alone();
            let addr = (place.index * self.page_bytes).wrapping_sub(region.bias);
            let pages = self.shown(space, region, addr..addr + self.page_bytes)?;
            let begins = |s: &mut Space| s.private.contains(&addr) && s.copied.insert(addr);
            if !self.lock().space_mut(space).is_some_and(begins) {
                // Somebody was faster, or it is a new mapping of the same.
                return self.port.wake(space, addr, pages);
            }
            let bytes = (pages * PAGE_BYTES) as usize;
            let copied = self
                .port
                .peek(place.segment.0, place.index, data)
                .and_then(|()| self.port.copy(space, addr, &data[..bytes]));
            if copied.is_err() {
                self.lock().space_mut(space).map(|s| s.copied.remove(&addr));
            }
            copied
        });
        self.give_buffer(buffer);
        result
    }

    /// Gives write access to pinned pages.
    pub(crate) fn unprotect(
        &self,
        space: SpaceNo,
        region: Region,
        addr: u64,
        pages: u64,
    ) -> Result<(), PortError> {
        let range = addr..addr + pages * self.page_bytes;
        self.where_it_was(space, region, range, true, |pages| {
            self.port.unprotect(space, addr, pages)
        })
    }
}
