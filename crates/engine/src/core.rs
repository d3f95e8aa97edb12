//! What the engine knows, under its one lock: the brain, files, address spaces, parked faults.
//!
//! Decisions are made and pages are claimed under the lock; nothing here does I/O.

use crate::change::Change;
use crate::errors::WriteErrors;
use crate::mappings::Mappings;
use crate::open_pages::OpenPages;
use crate::overwrites::{Claim, Overwrites};
use crate::port::{FileNo, PAGE_BYTES, PortError, SpaceNo, Version};
use crate::spaces::{Mapping, Region, Space};
use crate::stats::{FileCounts, PolicyReport};
use crate::table::Table;
use crate::touches::Touches;
use crate::word::{Chosen, State, WordRef};
use pagekeeper_frames::{Brain, Budget, Input, Place, Run, Segment, Victim};
use pagekeeper_policy::{Page, Policy, PolicySpec};
use pagekeeper_trace::ExtentEvent;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};

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
}

/// A range of a file that a client is changing by a system call of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fence {
    pub(crate) ticket: u64,
    pub(crate) change: Change,
    pub(crate) first: u64,
    pub(crate) end: u64,
    /// Not yet: an earlier change of some of its pages is open, or its dirty pages are being
    /// written back (and no new ones come into being).
    pub(crate) preparing: bool,
    /// How long the file may be taken for until it is over: what is longer may not be patched yet.
    pub(crate) size_bytes_max: u64,
}

/// Changes of a file by somebody outside. Clean pages may be old until they were dropped after the
/// last one was found; what is found meanwhile counts.
#[derive(Default, Debug)]
pub(crate) struct Foreign {
    /// How often one was found.
    found: u64,
    /// How many of them all clean pages were dropped after.
    dropped: u64,
}

impl Foreign {
    /// One was found.
    pub(crate) fn find(&mut self) {
        self.found += 1;
    }

    /// How many were found so far.
    pub(crate) fn found(&self) -> u64 {
        self.found
    }

    /// All clean pages were dropped after so many had been found.
    pub(crate) fn drop_old(&mut self, found: u64) {
        self.dropped = self.dropped.max(found);
    }

    /// Whether clean pages may be old.
    pub(crate) fn is_stale(&self) -> bool {
        self.dropped < self.found
    }
}

/// A managed file.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) version: Version,
    pub(crate) pages: u64,
    pub(crate) mappings: Mappings,
    pub(crate) fences: Vec<Fence>,
    /// The fence of an overwrite that a client began without a message.
    pub(crate) overwrite: Option<u64>,
    /// Somebody made it longer than this while one of ours was changing its last page: when that one is
    /// done, storage is asked what lies behind.
    pub(crate) unread: Option<u64>,
    /// What clients store to by themselves, if writes are delayed.
    pub(crate) open: Option<OpenPages>,
    /// Held by whoever looks at its length and follows it.
    pub(crate) looking: Arc<Mutex<()>>,
    /// Changes in progress that a copy from a mapping must not run beside.
    pub(crate) unsettled: u32,
    /// How many of them began so far.
    pub(crate) unsettlings: u64,
    /// Write-backs in flight: the file's times change by our own doing.
    pub(crate) own_writes: u32,
    /// What somebody outside did to it.
    pub(crate) foreign: Foreign,
    /// Whoever writes to it by system calls is heard of.
    pub(crate) is_heard: bool,
    /// Somebody outside was heard of.
    pub(crate) is_shared: bool,
    /// When its change time was last looked at, and may have been due to somebody outside who was not
    /// heard of yet.
    pub(crate) doubted_ns: Option<u64>,
    /// Every dirty page, and perhaps some that are clean by now.
    pub(crate) dirty: BTreeSet<u64>,
    /// Storage may lack blocks for some pages: reserve before giving write access.
    pub(crate) holes: bool,
    pub(crate) counts: FileCounts,
    /// What write-backs failed with.
    pub(crate) errors: WriteErrors,
    /// Dirty pages are written when somebody asks for it, and stay until then.
    pub(crate) on_request: bool,
    /// It is a process's heap: what of it is in use.
    pub(crate) heap: Option<crate::heap::Pages>,
    /// Nothing is left of it but mappings that show nothing: see [`Engine::retire`].
    ///
    /// [`Engine::retire`]: crate::engine::Engine::retire
    pub(crate) gone: bool,
}

impl File {
    pub(crate) fn new(name: &str, version: Version, pages: u64, holes: bool) -> File {
        File {
            name: name.to_owned(),
            version,
            pages,
            mappings: Mappings::default(),
            fences: Vec::new(),
            overwrite: None,
            unread: None,
            open: None,
            looking: Arc::default(),
            unsettled: 0,
            unsettlings: 0,
            own_writes: 0,
            foreign: Foreign::default(),
            is_heard: false,
            is_shared: false,
            doubted_ns: None,
            dirty: BTreeSet::new(),
            holes,
            counts: FileCounts::default(),
            errors: WriteErrors::default(),
            on_request: false,
            heap: None,
            gone: false,
        }
    }

    /// The machine's page behind the one that the file ends in.
    pub(crate) fn machine_end(&self) -> u64 {
        self.version.size_bytes.div_ceil(PAGE_BYTES)
    }

    pub(crate) fn gone() -> File {
        File { gone: true, ..File::new("", Version::default(), 0, false) }
    }
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

/// A victim that was busy when it was chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doomed {
    pub(crate) victim: Victim,
    /// Which choice it was: the page may fail to arrive, be fetched again, and be chosen by
    /// another job, which it then belongs to.
    ticket: u64,
}

/// What became of a victim that was busy.
pub(crate) enum Late {
    /// It is claimed, and to be evicted.
    Claimed,
    /// It is gone already.
    Gone,
    /// It is being changed and stays; others go in its place.
    Kept(Job),
    /// It is busy still.
    Busy,
}

/// Pages claimed for work that follows outside the lock, in this order.
#[derive(Default, Debug)]
pub(crate) struct Job {
    /// In state Leaving.
    pub(crate) evict: Vec<Victim>,
    /// Doomed: to be claimed when they are idle.
    pub(crate) late: Vec<Doomed>,
    /// In state Cleaning.
    pub(crate) clean: Vec<Run>,
    /// In state Filling.
    pub(crate) fetch: Vec<Run>,
    /// To be mapped in the space whose fault led to this.
    pub(crate) map: Vec<Run>,
    /// To be unmapped: address ranges (address, pages) per space.
    pub(crate) unmap: Vec<(SpaceNo, Vec<(u64, u64)>)>,
}

impl Job {
    /// Takes over what another job has to do.
    pub(crate) fn append(&mut self, mut other: Job) {
        take_over(&mut self.evict, &mut other.evict);
        take_over(&mut self.late, &mut other.late);
        take_over(&mut self.clean, &mut other.clean);
        take_over(&mut self.fetch, &mut other.fetch);
        take_over(&mut self.unmap, &mut other.unmap);
    }

    /// Pages are to leave memory, or to be written.
    pub(crate) fn makes_room(&self) -> bool {
        !(self.evict.is_empty() && self.late.is_empty() && self.clean.is_empty())
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.makes_room() && self.fetch.is_empty() && self.map.is_empty() && self.unmap.is_empty()
    }
}

/// Moves what is in `from` behind what is in `to`; as it is, where nothing is there.
fn take_over<T>(to: &mut Vec<T>, from: &mut Vec<T>) {
    if to.is_empty() {
        std::mem::swap(to, from);
    } else {
        to.append(from);
    }
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
    pub(crate) policies: Vec<PolicyReport>,
    /// Heap memory that was unmapped, and is to be dropped.
    pub(crate) orphans: Vec<crate::heap::Orphan>,
    /// What was counted of files that are gone.
    pub(crate) past: crate::retire::Past,
    /// What clients overwrite by themselves; none where nobody does.
    pub(crate) overwrites: Option<Overwrites>,
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
            doomed_by: HashMap::new(),
            next_ticket: 1,
            log: None,
            asking_pid: 0,
            budget,
            wished: Job::default(),
            places: Vec::new(),
            policies: vec![PolicyReport::default()],
            orphans: Vec::new(),
            past: crate::retire::Past::default(),
            overwrites: None,
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

    pub(crate) fn fences(&self, place: Place) -> impl Iterator<Item = &Fence> {
        let fences = self.file(place.segment.0).map_or(&[][..], |f| &f.fences);
        fences.iter().filter(move |fence| (fence.first..fence.end).contains(&place.index))
    }

    /// Puts a fence around pages of a file; its ticket.
    pub(crate) fn put_fence(
        &mut self,
        file: FileNo,
        pages: Range<u64>,
        change: Change,
    ) -> Option<u64> {
        self.bar_overwrites(file);
        self.add_fence(file, pages, change, u64::MAX)
    }

    /// As [`put_fence`](Self::put_fence), whatever clients overwrite.
    pub(crate) fn add_fence(
        &mut self,
        file: FileNo,
        pages: Range<u64>,
        change: Change,
        size_bytes_max: u64,
    ) -> Option<u64> {
        let ticket = self.next_ticket;
        let (first, end) = (pages.start, pages.end);
        let preparing = change != Change::Drop;
        let fences = &mut self.file_mut(file)?.fences;
        fences.push(Fence { ticket, change, first, end, preparing, size_bytes_max });
        self.next_ticket += 1;
        Some(ticket)
    }

    /// Takes a fence away.
    pub(crate) fn take_fence(&mut self, file: FileNo, ticket: u64) -> Option<Fence> {
        let f = self.file_mut(file)?;
        let at = f.fences.iter().position(|f| f.ticket == ticket)?;
        let fence = f.fences.swap_remove(at);
        if f.fences.is_empty()
            && let Some(overwrites) = &self.overwrites
        {
            overwrites.allow(file);
        }
        Some(fence)
    }

    /// From now on the pages of a fence are not written back.
    pub(crate) fn raise_fence(&mut self, file: FileNo, ticket: u64) {
        for fence in self.file_mut(file).into_iter().flat_map(|f| &mut f.fences) {
            fence.preparing &= fence.ticket != ticket;
        }
    }

    /// A change of the page is open: writing it back could undo the change.
    pub(crate) fn fenced(&self, place: Place) -> bool {
        self.fences(place).any(|fence| !fence.preparing)
    }

    /// A page that is dirty stays in memory, and dirty, unless somebody asks for its write-back.
    pub(crate) fn stays_dirty(&self, place: Place) -> bool {
        self.file(place.segment.0).is_some_and(|f| f.on_request) || self.fenced(place)
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

    /// A change of the page is open after which it is read anew, so that it is not fetched before.
    /// (A page fetched while bytes of it are overwritten is patched like any other.)
    pub(crate) fn unfetchable(&self, place: Place) -> bool {
        self.fences(place).any(|fence| !matches!(fence.change, Change::Write | Change::Hold))
    }

    /// A change of the page is open beside which nobody may make it dirty.
    pub(crate) fn unwritable(&self, place: Place) -> bool {
        let holds = |change| matches!(change, Change::Other | Change::Hold | Change::Drop);
        self.fences(place).any(|fence| holds(fence.change))
    }

    /// The page's content is on its way out for good: nobody may see it any more.
    pub(crate) fn dropping(&self, place: Place) -> bool {
        self.fences(place).any(|fence| fence.change == Change::Drop)
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

    /// Tells the brain; whether it has a plan.
    fn ask(&mut self, input: Input) -> bool {
        let is_any = !self.brain.apply(input).is_empty();
        if let Some(log) = &mut self.log {
            log.input(input, self.brain.digest(), self.asking_pid);
        }
        is_any
    }

    /// Tells the brain, and claims the pages of its plan.
    pub(crate) fn decide(&mut self, input: Input) -> Job {
        let mut job = Job::default();
        self.decide_all(input, &mut job);
        job
    }

    /// As [`decide`](Self::decide), added to a job.
    pub(crate) fn decide_all(&mut self, input: Input, job: &mut Job) {
        self.decide_into(input, job);
        self.give_up_victims(job);
        self.grant_wishes(job);
    }

    /// What the policy asks for beyond what the input needs is left for others to carry out, so
    /// that nobody who faulted waits for it; but for pages to be mapped in the space that asked.
    fn grant_wishes(&mut self, job: &mut Job) {
        while let Some(wish) = self.brain.take_wish() {
            let mut wished = Job::default();
            self.decide_into(wish, &mut wished);
            self.give_up_victims(&mut wished);
            job.map.append(&mut wished.map);
            self.wished.append(wished);
        }
    }

    fn decide_into(&mut self, input: Input, job: &mut Job) {
        if self.ask(input) {
            self.claim(job);
        }
        self.charge_state(job);
    }

    /// Pages were used without anybody's being told at once; what follows is added to a job. (What a
    /// use would map along, nobody asked to be mapped.) Returns whether there were any.
    pub(crate) fn touched(&mut self, touches: &Touches, job: &mut Job) -> bool {
        // Its memory is used again.
        let mut places = std::mem::take(&mut self.places);
        touches.take_into(&mut places);
        let is_any = !places.is_empty();
        for place in places.drain(..) {
            self.decide_into(Input::Touch { place, write: false, map: false }, job);
        }
        self.places = places;
        if is_any {
            self.give_up_victims(job);
            self.grant_wishes(job);
        }
        is_any
    }

    /// Another policy decides from now on, over the same pages. It was built for `frames` frames.
    pub(crate) fn replace_policy(
        &mut self,
        spec: &PolicySpec,
        policy: Box<dyn Policy>,
        frames: u32,
    ) -> Job {
        self.look_inside(true);
        let number = self.policies.len() as u32;
        self.policies.push(PolicyReport::new(spec));
        if let Some(log) = &mut self.log {
            log.policy(number, spec);
        }
        self.brain.put_forward(policy);
        let mut job = Job::default();
        self.decide_into(Input::Policy { number, frames }, &mut job);
        if let Some(budget) = self.budget.under(spec.info().bytes_per_page) {
            self.budget = budget;
            let frames = budget.frames(self.brain.numbered_pages());
            self.decide_into(Input::Frames { frames }, &mut job);
        }
        self.give_up_victims(&mut job);
        job
    }

    /// Takes what the policy shows of itself into the report; why it was revoked, if it was since
    /// the last look.
    pub(crate) fn look_inside(&mut self, last: bool) -> Option<String> {
        let report = self.policies.last_mut().expect("a policy decides");
        let visible = self.brain.visible()?;
        let account = report.account.get_or_insert_default();
        let revoked = account.look(visible);
        if last {
            account.close(visible);
        }
        let why = account.revoked.clone().filter(|_| revoked)?;
        Some(format!("{}: {why}", report.policy))
    }

    /// Per-page state is paid from the budget: as page numbers are given out, frames shrink.
    fn charge_state(&mut self, job: &mut Job) {
        if let Some(frames) = self.budget.correct(self.brain.numbered_pages())
            && self.ask(Input::Frames { frames })
        {
            self.claim(job);
        }
    }

    /// Claims the pages of the brain's last plan.
    fn claim(&mut self, job: &mut Job) {
        let mut plan = self.brain.take_plan();
        let mut kept = Vec::new();
        plan.evict.retain(|victim| self.claim_victim(*victim, &mut job.late, &mut kept));
        take_over(&mut job.evict, &mut plan.evict);
        for run in plan.clean.drain(..) {
            self.claim_cleaning(run, job);
        }
        plan.fetch.retain_mut(|run| {
            run.pages = self.claim_fill(*run, job);
            run.demanded = run.demanded.min(run.pages);
            run.pages > 0
        });
        take_over(&mut job.fetch, &mut plan.fetch);
        if !plan.map.is_empty() {
            take_over(&mut job.map, &mut plan.map);
        }
        if !plan.unmap.is_empty() {
            self.locate(&plan.unmap, job);
        }
        self.brain.reuse_plan(plan);
        // Last: other victims are chosen for these, perhaps among what was just claimed.
        for place in kept {
            self.decide_into(Input::Kept { place }, job);
        }
    }

    /// Whether a victim leaves; else it is doomed, or stays.
    fn claim_victim(
        &mut self,
        victim: Victim,
        late: &mut Vec<Doomed>,
        kept: &mut Vec<Place>,
    ) -> bool {
        let word = self.table.word(victim.page);
        if word.dirty() && self.stays_dirty(victim.place) {
            kept.push(victim.place);
            return false;
        }
        let mut chosen = Chosen::Gone;
        let choose = || {
            chosen = word.choose();
            chosen == Chosen::Leaving
        };
        let claim = self.claim_at_rest(victim.place, choose, || word.kept());
        if claim == Claim::Overwritten {
            kept.push(victim.place);
            return false;
        }
        if chosen != Chosen::Held
            && let Some(file) = self.file_mut(victim.place.segment.0)
        {
            file.counts.evictions += 1;
        }
        match chosen {
            Chosen::Leaving => {}
            Chosen::Held => kept.push(victim.place),
            Chosen::Doomed | Chosen::Gone => {
                let ticket = self.next_ticket;
                self.next_ticket += 1;
                // One that is being dropped leaves by itself.
                if chosen == Chosen::Doomed {
                    self.doomed_by.insert(victim.page, ticket);
                }
                late.push(Doomed { victim, ticket });
            }
        }
        claim == Claim::Made
    }

    /// Claims a victim that was busy when it was chosen.
    pub(crate) fn claim_late(&mut self, doomed: Doomed) -> Late {
        let late = self.look_at_late(doomed);
        if !matches!(late, Late::Busy) {
            self.forget_doom(doomed);
        }
        late
    }

    fn is_doomed(&self, doomed: Doomed) -> bool {
        let page = doomed.victim.page;
        self.word(page).doomed() && self.doomed_by.get(&page) == Some(&doomed.ticket)
    }

    fn forget_doom(&mut self, doomed: Doomed) {
        let page = doomed.victim.page;
        if self.doomed_by.get(&page) == Some(&doomed.ticket) {
            self.doomed_by.remove(&page);
        }
    }

    /// Whether a busy victim is being written back or taken out.
    pub(crate) fn on_its_way_out(&self, doomed: Doomed) -> bool {
        matches!(self.word(doomed.victim.page).state(), State::Cleaning | State::Leaving)
    }

    fn look_at_late(&mut self, doomed: Doomed) -> Late {
        let victim = doomed.victim;
        let word = self.word(victim.page);
        match word.state() {
            // Somebody else takes it out; room is there only afterwards.
            State::Leaving => Late::Busy,
            State::Absent => Late::Gone,
            _ if !self.is_doomed(doomed) => Late::Gone,
            State::Resident if word.idle() => {
                if word.dirty() && self.stays_dirty(victim.place) {
                    word.spare();
                    return Late::Kept(self.decide(Input::Kept { place: victim.place }));
                }
                match self.claim_leaving(victim.page, victim.place) {
                    Claim::Made => Late::Claimed,
                    Claim::Refused => Late::Busy,
                    Claim::Overwritten => {
                        // Claiming it has cleared what doomed it.
                        Late::Kept(self.decide(Input::Kept { place: victim.place }))
                    }
                }
            }
            _ => Late::Busy,
        }
    }

    /// A busy victim stays after all.
    pub(crate) fn spare(&mut self, doomed: Doomed) -> Job {
        if !self.is_doomed(doomed) {
            // Somebody else takes it out, or has done so.
            return Job::default();
        }
        self.forget_doom(doomed);
        let place = doomed.victim.place;
        let word = self.word(doomed.victim.page);
        word.spare();
        self.decide(Input::Spared { place, dirty: word.dirty() })
    }

    /// A page that the job is to fetch was chosen as a victim before the job began, in place of
    /// one that had to stay. It is not fetched, or the job would wait for itself.
    fn give_up_victims(&mut self, job: &mut Job) {
        if job.late.is_empty() {
            return;
        }
        let late = std::mem::take(&mut job.late);
        for doomed in late {
            let victim = doomed.victim;
            let fetched = job.fetch.iter_mut().find(|run| run.contains(victim.place));
            let Some(run) = fetched else {
                job.late.push(doomed);
                continue;
            };
            self.forget_doom(doomed);
            let keep = (victim.place.index - run.place.index) as u32;
            let gone = Run { place: victim.place, pages: run.pages - keep, demanded: 0 };
            run.pages = keep;
            run.demanded = run.demanded.min(keep);
            self.fill_failed(gone);
        }
        job.fetch.retain(|r| r.pages > 0);
    }

    /// Claimed pages of a run are absent again.
    pub(crate) fn fill_failed(&mut self, run: Run) {
        for i in 0..u64::from(run.pages) {
            let place = Place { index: run.place.index + i, ..run.place };
            let page = self.brain.page(place).expect("claimed pages are numbered");
            let word = self.word(page);
            let doomed = word.doomed();
            word.fill_failed();
            self.rests(place.segment.0);
            if !doomed {
                self.ask(Input::Failed { place });
            }
        }
    }

    fn claim_cleaning(&mut self, run: Run, job: &mut Job) {
        for i in 0..u64::from(run.pages) {
            let place = Place { index: run.place.index + i, ..run.place };
            let Some(page) = self.brain.page(place) else { continue };
            let word = self.table.word(page);
            if !word.doomed() && !self.stays_dirty(place) && self.claim_clean(page, place) {
                Run::add(&mut job.clean, place);
            } else if word.dirty() && self.brain.is_resident(place) {
                // The brain took it for cleaned; it is not.
                self.decide_into(Input::Kept { place }, job);
            }
        }
    }

    /// Claims a run for filling, as far as it is absent; how many pages.
    fn claim_fill(&mut self, run: Run, job: &mut Job) -> u32 {
        let mut claimed = 0;
        for (i, place) in (0..).zip(run.places()) {
            let page = self.brain.page(place).expect("pages of a plan are numbered");
            let word = self.table.word(page);
            let heap = self.file(place.segment.0).and_then(|f| f.heap.as_ref());
            // Ahead of a fault, not into the gap behind an allocation.
            let useless = i >= run.demanded && heap.is_some_and(|h| !h.live.contains(&place.index));
            let in_heap = heap.is_some();
            let free = word.state() == State::Absent && !self.unfetchable(place) && !useless;
            if free && claimed == i {
                // Heap memory is nobody's to rescue.
                if !in_heap {
                    self.table.assign(page, place);
                }
                self.moves(place.segment.0);
                word.claim_fill();
                // Whoever overwrites it now leaves it to us to bring the change in.
                self.overwritten_now(place);
                claimed += 1;
            } else {
                // Still on its way out, or being changed: not now.
                self.decide_into(Input::Failed { place }, job);
            }
        }
        claimed
    }

    /// Where the pages to unmap are mapped.
    fn locate(&self, pages: &[Page], job: &mut Job) {
        let mut found: HashMap<SpaceNo, Vec<(u64, u64)>> = HashMap::new();
        let mut places: Vec<Place> = pages.iter().map(|page| self.brain.place(*page)).collect();
        places.sort_unstable();
        for place in places {
            let Some(file) = self.file(place.segment.0) else { continue };
            let first = place.index * self.machine_pages;
            for mapping in file.mappings.overlapping(first..first + self.machine_pages) {
                let Some((addr, pages)) = mapping.overlap(first, self.machine_pages) else {
                    continue;
                };
                let ranges = found.entry(mapping.space).or_default();
                match ranges.last_mut() {
                    Some(last) if last.0 + last.1 * PAGE_BYTES == addr => last.1 += pages,
                    _ => ranges.push((addr, pages)),
                }
            }
        }
        for (space, mut ranges) in found {
            // A private copy must stay: unmapping would not bring it back.
            if let Some(Some(s)) = self.spaces.get(space as usize)
                && !s.private.is_empty()
            {
                ranges.retain(|&(addr, pages)| {
                    s.private.range(addr..addr + pages * PAGE_BYTES).next().is_none()
                });
            }
            job.unmap.push((space, ranges));
        }
    }

    /// The shared mappings of a file's pages, as (space, address, pages of the machine's).
    pub(crate) fn shared_mappings(&self, run: Run) -> Vec<(SpaceNo, u64, u64)> {
        let Some(file) = self.file(run.place.segment.0) else { return Vec::new() };
        let first = run.place.index * self.machine_pages;
        let pages = u64::from(run.pages) * self.machine_pages;
        let shared = file.mappings.overlapping(first..first + pages).filter(|m| m.shared);
        let shown = |m: &Mapping| m.overlap(first, pages).map(|(at, pages)| (m.space, at, pages));
        shared.filter_map(shown).collect()
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
