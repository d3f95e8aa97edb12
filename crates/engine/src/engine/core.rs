//! What the engine knows, under its one lock: the brain, files, address spaces, parked faults.
//!
//! Decisions are made and pages are claimed under the lock; nothing here does I/O.

use crate::engine::arrivals::Arrivals;
use crate::engine::overwrites::Overwrites;
use crate::engine::spaces::{Mapping, Region, Space};
use crate::engine::stats::{Policies, PolicyReport};
use crate::engine::table::Table;
use crate::engine::wanted::Wanted;
use crate::engine::word::{State, WordRef};
use crate::port::{FileNo, PAGE_BYTES, PortError, SpaceNo};
use pagekeeper_frames::{Brain, Budget, Input, Place, Run, Segment};
use pagekeeper_policy::{Page, PolicySpec};
use pagekeeper_trace::ExtentEvent;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;

mod claims;
mod fences;
mod file;
mod presumed;

pub(crate) use claims::{Doomed, Job, Late};
pub(crate) use file::{Fence, File, OwnWrites};
pub(crate) use presumed::Quiet;

/// A fault as the kernel reported it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// In which address space.
    pub space: SpaceNo,
    /// At which address (any byte of the page).
    pub addr: u64,
    /// The access was a store.
    pub write: bool,
    /// The page is mapped, but write-protected.
    pub protected: bool,
    /// The faulting thread.
    pub tid: u32,
    /// [`Engine::failures_told`](crate::engine::Engine::failures_told) when this was heard of, or before.
    pub told: u64,
}

/// Receives the brain's inputs and what they mean as references. Called under the engine's lock:
/// it only appends to memory.
pub trait Log: Send {
    /// One input, the digest of all plans after it, and the process whose fault it was (0 when it
    /// was nobody's).
    fn input(&mut self, input: Input, digest: u64, pid: u32);
    /// A policy that decides from the next [`Input::Policy`] on.
    fn policy(&mut self, number: u32, policy: &PolicySpec);
    /// A segment got its name and length; a heap has none.
    fn segment(&mut self, segment: Segment, name: &str, bytes: Option<u64>);
    /// Something became of pages of a heap.
    fn extent(&mut self, segment: Segment, pages: Range<u64>, event: ExtentEvent);
}

pub(crate) struct Core {
    pub(crate) brain: Brain,
    pub(crate) table: Table,
    /// Pages of the machine's in one of ours: what is mapped is counted in those.
    pub(crate) machine_pages: u64,
    pub(crate) files: Vec<Option<File>>,
    pub(crate) spaces: Vec<Option<Space>>,
    parked: HashMap<Place, Vec<Fault>>,
    pub(crate) private_pages: u32,
    /// Frames whose memory is used for something else.
    pub(crate) aside_pages: u32,
    /// Frames whose memory [storage keeps pages in](crate::port::Port::kept_pages).
    pub(crate) kept_pages: u32,
    /// Pages of the table of digests that were ever used, by number.
    digest_blocks: HashSet<usize>,
    /// A page that a program holds was chosen to leave.
    pub(crate) victims_were_held: bool,
    /// By whose choice pages are doomed.
    doomed_by: HashMap<Page, u64>,
    pub(crate) next_ticket: u64,
    pub(crate) log: Option<Box<dyn Log>>,
    /// Whose fault is being decided on; 0 while it is nobody's.
    pub(crate) asking_pid: u32,
    pub(crate) budget: Budget,
    /// What the policy wished for, to be queued.
    pub(crate) wished: Job,
    /// Memory for what was used without the lock; empty.
    places: Vec<Place>,
    /// Policies that decided, the present one last.
    pub(crate) policies: Policies,
    /// Heap memory that was unmapped, and is to be dropped.
    pub(crate) orphans: Vec<crate::engine::heap::Orphan>,
    /// What was counted of files that are gone.
    pub(crate) past: crate::engine::retire::Past,
    /// What clients overwrite by themselves; none where nobody does.
    pub(crate) overwrites: Option<Overwrites>,
    /// Pages that somebody waits to have alone.
    pub(crate) wanted: Wanted,
    /// Fetches that somebody waits for.
    pub(crate) arrivals: Arrivals,
}

impl Core {
    pub(crate) fn new(brain: Brain, table: Table, budget: Budget, page_bytes: u64) -> Core {
        Core {
            brain,
            table,
            machine_pages: page_bytes / PAGE_BYTES,
            files: Vec::new(),
            spaces: Vec::new(),
            parked: HashMap::new(),
            private_pages: 0,
            aside_pages: 0,
            kept_pages: 0,
            digest_blocks: HashSet::new(),
            victims_were_held: false,
            doomed_by: HashMap::new(),
            next_ticket: 1,
            log: None,
            asking_pid: 0,
            budget,
            wished: Job::default(),
            places: Vec::new(),
            policies: Policies::of(PolicyReport::default()),
            orphans: Vec::new(),
            past: crate::engine::retire::Past::default(),
            overwrites: None,
            wanted: Wanted::default(),
            arrivals: Arrivals::default(),
        }
    }

    pub(crate) fn word(&self, page: Page) -> WordRef<'static> {
        self.table.word(page)
    }

    /// The page's number and state; a page without a number is absent.
    pub(crate) fn state(&self, place: Place) -> (Option<Page>, State) {
        match self.brain.page(place) {
            Some(page) => (Some(page), self.word(page).state()),
            None => (None, State::Absent),
        }
    }

    /// Whether there is no number for a page that has none: too many pages of too many places were touched.
    pub(crate) fn has_no_number_for(&self, page: Option<Page>) -> bool {
        page.is_none() && self.table.is_short_of(self.brain.used_numbers())
    }

    pub(crate) fn file(&self, file: FileNo) -> Option<&File> {
        self.files.get(file as usize)?.as_ref()
    }

    pub(crate) fn file_mut(&mut self, file: FileNo) -> Option<&mut File> {
        self.files.get_mut(file as usize)?.as_mut()
    }

    pub(crate) fn space_mut(&mut self, space: SpaceNo) -> Option<&mut Space> {
        self.spaces.get_mut(space as usize)?.as_mut()
    }

    pub(crate) fn region(&self, space: SpaceNo, addr: u64) -> Option<Region> {
        self.spaces.get(space as usize)?.as_ref()?.region(addr)
    }

    /// The page that an address of a region lies in, and where that page begins.
    pub(crate) fn place_of(&self, region: Region, addr: u64) -> (Place, u64) {
        let index = region.index(addr) / self.machine_pages;
        let start = (index * self.machine_pages * PAGE_BYTES).wrapping_sub(region.bias);
        (Place { segment: Segment(region.file), index }, start)
    }

    /// Whether an address of a region lies behind the end of its file: behind the machine's page that
    /// it ends in, as under the kernel.
    pub(crate) fn is_behind_the_end(&self, region: Region, addr: u64) -> bool {
        self.file(region.file).is_none_or(|f| region.index(addr) >= f.machine_end())
    }

    /// Whether a page of a private region, which begins at this address, is the program's own, so
    /// that it may store to it.
    pub(crate) fn is_own_copy(&self, space: SpaceNo, addr: u64) -> bool {
        let space = self.spaces.get(space as usize).and_then(Option::as_ref);
        space.is_some_and(|s| match self.machine_pages {
            1 => s.private.contains(&addr),
            _ => s.copied.contains(&addr),
        })
    }

    pub(crate) fn page_bytes(&self) -> u64 {
        self.machine_pages * PAGE_BYTES
    }

    /// Whether all pages of a range of a private region are the program's own.
    pub(crate) fn are_own_copies(&self, space: SpaceNo, region: Region, range: Range<u64>) -> bool {
        let page_bytes = self.page_bytes();
        let first = range.start - range.start.wrapping_add(region.bias) % page_bytes;
        let mut pages = (first..range.end).step_by(page_bytes as usize);
        pages.all(|addr| self.is_own_copy(space, addr))
    }

    /// What has not come to rest, for a person who wants to know what a program waits for.
    pub(crate) fn describe(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (no, file) in self.files.iter().enumerate() {
            let Some(file) = file else { continue };
            for (page, place) in self.pages_in(no as FileNo, 0..u64::MAX) {
                let word = self.word(page);
                if !word.idle() || word.doomed() {
                    lines.push(format!("{}, page {}: {word:?}", file.name, place.index));
                }
            }
            lines.extend(file.fences.iter().map(|fence| format!("{}: {fence:?}", file.name)));
        }
        lines.extend(self.parked.iter().map(|(place, faults)| format!("{place:?}: {faults:?}")));
        lines
    }

    pub(crate) fn park(&mut self, place: Place, fault: Fault) {
        self.parked.entry(place).or_default().push(fault);
    }

    /// The faults that waited for this page.
    pub(crate) fn unpark(&mut self, place: Place) -> Vec<Fault> {
        if self.parked.is_empty() {
            return Vec::new();
        }
        self.parked.remove(&place).unwrap_or_default()
    }

    /// As [`unpark`](Self::unpark), behind others.
    pub(crate) fn unpark_into(&mut self, place: Place, faults: &mut VecDeque<Fault>) {
        if !self.parked.is_empty() {
            faults.extend(self.unpark(place));
        }
    }

    /// The faults that waited for pages of this range.
    pub(crate) fn unpark_range(&mut self, file: FileNo, pages: Range<u64>) -> Vec<Fault> {
        let places: Vec<Place> = self
            .parked
            .keys()
            .filter(|p| p.segment.0 == file && pages.contains(&p.index))
            .copied()
            .collect();
        places.into_iter().flat_map(|p| self.unpark(p)).collect()
    }

    /// The shared mappings of a file's pages, as (space, address, pages of the machine's), and how often
    /// mappings of the file had changed.
    pub(crate) fn shared_mappings(&self, run: Run) -> (u64, Vec<(SpaceNo, u64, u64)>) {
        let Some(file) = self.file(run.place.segment.0) else { return (0, Vec::new()) };
        let first = run.place.index * self.machine_pages;
        let pages = u64::from(run.pages) * self.machine_pages;
        let shared = file.mappings.overlapping(first..first + pages).filter(|m| m.shared);
        let shown = |m: &Mapping| m.overlap(first, pages).map(|(at, pages)| (m.space, at, pages));
        (file.mappings.changes(), shared.filter_map(shown).collect())
    }

    /// Forgets the numbers of a file's pages, none of which is in memory.
    pub(crate) fn close_segment(&mut self, file: FileNo) {
        for (page, _) in self.brain.numbered(Segment(file), 0, u64::MAX) {
            self.table.release(page);
        }
        self.decide(Input::Close { segment: Segment(file) });
    }

    /// Brings the files' lists of mappings up to date with a range of a space.
    pub(crate) fn refresh_mappings(
        &mut self,
        space: SpaceNo,
        range: &Range<u64>,
        files: &[FileNo],
    ) {
        for &no in files {
            let s = self.spaces.get(space as usize).and_then(Option::as_ref);
            let now = s.into_iter().flat_map(|s| s.mappings_of(space, no, range));
            if let Some(Some(file)) = self.files.get_mut(no as usize) {
                file.mappings.refresh(space, range, now);
            }
        }
    }

    /// Whether a whole address range still maps what it did.
    pub(crate) fn covers(&self, space: SpaceNo, range: Range<u64>, region: Region) -> bool {
        self.spaces
            .get(space as usize)
            .and_then(Option::as_ref)
            .is_some_and(|s| s.covers(range, region))
    }

    /// How many pages of the machine's a whole address range shows, before the end of the file, if it
    /// still maps what it did.
    pub(crate) fn shown(&self, space: SpaceNo, region: Region, range: Range<u64>) -> Option<u64> {
        let end = self.file(region.file)?.machine_end();
        let pages = (range.end - range.start) / PAGE_BYTES;
        let before_end = end.saturating_sub(region.index(range.start));
        // Pages of the machine's size are what the kernel says they are.
        let pages = if self.machine_pages > 1 { pages.min(before_end) } else { pages };
        self.covers(space, range, region).then_some(pages)
    }

    /// Where a file's pages from one on are mapped privately, as (space, addresses).
    pub(crate) fn private_mappings_from(
        &self,
        file: FileNo,
        first: u64,
    ) -> Vec<(SpaceNo, Range<u64>)> {
        let first = first * self.machine_pages;
        let mappings = self.file(file).into_iter().flat_map(|f| f.mappings.iter());
        let private = mappings.filter(|m| !m.shared);
        let from = |m: &Mapping| Some((m.space, m.overlap(first, u64::MAX - first)?.0..m.end));
        private.filter_map(from).collect()
    }

    /// Where the file's last page is mapped behind the file's end, as (space, address, pages of the
    /// machine's).
    pub(crate) fn behind_the_end(&self, file: FileNo, size_bytes: u64) -> Vec<(SpaceNo, u64, u64)> {
        let end = size_bytes.div_ceil(PAGE_BYTES);
        let pages = end.next_multiple_of(self.machine_pages) - end;
        let mappings =
            self.file(file).into_iter().flat_map(|f| f.mappings.overlapping(end..end + pages));
        let behind = |m: &Mapping| m.overlap(end, pages).map(|(at, pages)| (m.space, at, pages));
        mappings.filter_map(behind).collect()
    }

    /// Recounts private copies and tells the brain when their number changed.
    pub(crate) fn recount_private(&mut self) -> Job {
        let total: usize = self.spaces.iter().flatten().map(|s| s.private.len()).sum();
        let total = u32::try_from(total).unwrap_or(u32::MAX);
        if total == self.private_pages {
            return Job::default();
        }
        self.private_pages = total;
        self.decide(self.reserved())
    }

    /// The frames that others use.
    pub(crate) fn reserved(&self) -> Input {
        let others = self.aside_pages.saturating_add(self.kept_pages);
        let others = others.saturating_add(self.digest_blocks.len() as u32);
        Input::Reserved { frames: self.private_pages.saturating_add(others) }
    }

    /// Notes that pages of a file could not be written back.
    pub(crate) fn note_error(&mut self, file: FileNo, error: PortError) {
        if let (PortError::Io(errno), Some(f)) = (error, self.file_mut(file)) {
            f.errors.met(errno, pagekeeper_sys::clock::monotonic_ns());
        }
    }

    /// Whether a clean page in memory may count as dirty before anybody stores to it.
    pub(crate) fn may_become_dirty(&self, page: Page, place: Place) -> bool {
        let word = self.word(page);
        !word.doomed() && !word.dirty() && !self.unwritable(place) && !self.dropping(place)
    }

    /// How many more pages of a file may become dirty. Pages that wait for somebody to ask for
    /// their write-back are at most half of the frames.
    pub(crate) fn dirty_room(&mut self, file: FileNo) -> u64 {
        let waiting = |f: &&File| f.on_request;
        if self.file(file).filter(waiting).is_none() {
            return u64::MAX;
        }
        let most = u64::from(self.brain.frames() / 2).max(1);
        let all = |core: &Core| -> usize {
            core.files.iter().flatten().filter(waiting).map(|f| f.dirty.len()).sum()
        };
        if all(self) as u64 >= most {
            // Some may be clean by now.
            for no in 0..self.files.len() as FileNo {
                if self.file(no).filter(waiting).is_some() {
                    self.for_each_dirty(no, 0..u64::MAX, |_, _, _| true);
                }
            }
        }
        most.saturating_sub(all(self) as u64)
    }

    /// Whether dirty pages of a file stay, because storage does not end writing others of it.
    pub(crate) fn is_overdue(&self, file: FileNo) -> bool {
        self.file(file).is_some_and(|f| f.overdue > 0)
    }

    /// The same of a file that has half of the frames dirty: there is to be no more of it.
    pub(crate) fn is_dirty_enough(&self, file: FileNo) -> bool {
        let most = (self.brain.frames() / 2) as usize;
        self.is_overdue(file) && self.file(file).is_some_and(|f| f.dirty.len() >= most)
    }

    /// A file becomes longer than this. Of a large page that it ended in, what it gains may have no room
    /// on storage, though the page is dirty, or about to become so: its next use to write begins with
    /// that.
    pub(crate) fn grows_within_page(&mut self, file: FileNo, size_bytes: u64) {
        if self.machine_pages == 1 || size_bytes.is_multiple_of(self.page_bytes()) {
            return;
        }
        let index = size_bytes / self.page_bytes();
        let Some(f) = self.file_mut(file) else { return };
        f.grown += 1;
        f.lacks_room.insert(index);
        let mut lacking = std::mem::take(&mut f.lacks_room);
        let place = |index| Place { segment: Segment(file), index };
        lacking.retain(|index| self.state(place(*index)).1 != State::Absent);
        if lacking.contains(&index)
            && let (Some(page), _) = self.state(place(index))
        {
            self.word(page).notice();
        }
        if let Some(f) = self.file_mut(file) {
            f.lacks_room = lacking;
        }
    }

    /// Whether storage may lack room for a part of a page that is dirty.
    pub(crate) fn lacks_room(&self, place: Place) -> bool {
        self.file(place.segment.0).is_some_and(|f| f.lacks_room.contains(&place.index))
    }

    /// Notes that a page is dirty, for flushes to find it.
    pub(crate) fn note_dirty(&mut self, place: Place) {
        let no = place.segment.0;
        self.change_dirty(no, |dirty| {
            dirty.insert(place.index);
        });
    }

    /// Changes what is known to be dirty of a file. Clients are told whether anything is.
    fn change_dirty(&mut self, no: FileNo, change: impl FnOnce(&mut BTreeSet<u64>)) {
        let Some(file) = self.file_mut(no) else { return };
        let before = file.dirty.is_empty();
        change(&mut file.dirty);
        let now = file.dirty.is_empty();
        if now != before
            && let Some(overwrites) = &self.overwrites
        {
            overwrites.tell_dirty(no, !now);
        }
    }

    /// The dirty pages of a file range, in order, as far as `wanted` asks for them.
    pub(crate) fn for_each_dirty(
        &mut self,
        file: FileNo,
        range: Range<u64>,
        mut wanted: impl FnMut(&mut Core, Page, Place) -> bool,
    ) {
        let mut from = range.start;
        while let Some(index) =
            self.file(file).and_then(|f| f.dirty.range(from..range.end).next().copied())
        {
            from = index + 1;
            let place = Place { segment: Segment(file), index };
            match self.brain.page(place) {
                Some(page) if self.word(page).dirty() => {
                    if !wanted(self, page, place) {
                        return;
                    }
                }
                // Written back or dropped meanwhile.
                _ => self.change_dirty(file, |dirty| {
                    dirty.remove(&index);
                }),
            }
        }
    }

    /// Resident or dirty pages of a file range, in order.
    pub(crate) fn pages_in(&self, file: FileNo, range: Range<u64>) -> Vec<(Page, Place)> {
        let mut found = Vec::new();
        let segment = Segment(file);
        for (base, at) in self.brain.numbered(segment, range.start, range.end - range.start) {
            for i in 0..pagekeeper_frames::EXTENT_PAGES {
                let page = Page(base.0 + i);
                let place = Place { segment, index: at.index + u64::from(i) };
                if range.contains(&place.index) && self.word(page).state() != State::Absent {
                    found.push((page, place));
                }
            }
        }
        found.sort_unstable_by_key(|(_, p)| p.index);
        found
    }

    /// Something besides a page's being resident is going on in the range.
    pub(crate) fn in_motion(&self, file: FileNo, range: Range<u64>) -> bool {
        self.pages_in(file, range).iter().any(|&(page, _)| {
            self.word(page).doomed() || self.word(page).state() != State::Resident
        })
    }
}
