//! The decisions of one pool of frames: the policy, and around it what every policy shares.
//!
//! A page is in one of four places while it is resident: a *newcomer* (one of the last demand
//! faults, which no policy may take: an instruction that touches two pages could otherwise never
//! finish), *pending* (fetched ahead, not known to be used), in the *policy*, or *stuck* (dirty and
//! impossible to write back). Victims come from the policy; pending pages and newcomers go only
//! when the policy has none.

use crate::ahead::Streams;
use crate::fifo::Fifo;
use crate::pages::{PageMap, Place, Segment};
use crate::plan::{Input, Plan, Run, Victim};
use pagekeeper_policy::{Admission, Page, Policy};
use std::collections::VecDeque;

/// Fewest frames that can make progress: the pages of one instruction, and some.
pub const MIN_FRAMES: u32 = 8;
/// Most pages fetched by one read-ahead step: 1 MiB.
pub const WINDOW_PAGES_MAX: u32 = 256;
/// Most demand-faulted pages that are kept from the policy.
pub const NEWCOMERS_MAX: u32 = 16;
/// Most dirty neighbours written back along with a dirty victim, itself included.
pub const CLEAN_RUN_PAGES_MAX: u32 = 32;
/// Most pages unmapped at once for sampling.
const UNMAP_BATCH_PAGES: u32 = 64;

/// How touches of mapped pages are made visible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sampling {
    /// Not at all: the policy learns of faults only.
    Off,
    /// The pages mapped longest ago are unmapped as evictions happen, until a share of the resident
    /// pages is unmapped; a touch of one is a minor fault. No evictions, no cost. At most
    /// `per_eviction` pages are unmapped for each page evicted, which bounds the cost.
    OnEviction {
        /// Pages unmapped per page evicted, at the most.
        per_eviction: u32,
        /// Unmapped share of the resident pages that is aimed at, in percent.
        share_percent: u32,
    },
    /// Only so many pages stay mapped, in the order of being mapped: every other touch is seen.
    /// For recording; slow where the program's hot pages are more than this.
    Window {
        /// Mapped pages.
        mapped_pages: u32,
    },
}

/// What a brain is built with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Frames of 4 KiB at the start.
    pub frames: u32,
    /// How touches are sampled.
    pub sampling: Sampling,
    /// Largest read-ahead window in pages; 1 switches read-ahead off.
    pub window_pages_max: u32,
    /// Pages fetched ahead are mapped at once, but for the marker. Off while recording.
    pub map_ahead: bool,
}

impl Config {
    /// The settings of a live run.
    pub fn live(frames: u32) -> Config {
        Config {
            frames,
            sampling: Sampling::OnEviction { per_eviction: 2, share_percent: 33 },
            window_pages_max: WINDOW_PAGES_MAX,
            map_ahead: true,
        }
    }

    /// The settings of a recording run: every touch is seen, but for the last `mapped_pages`
    /// mapped pages.
    pub fn recording(frames: u32, mapped_pages: u32) -> Config {
        Config {
            frames,
            sampling: Sampling::Window { mapped_pages },
            window_pages_max: WINDOW_PAGES_MAX,
            map_ahead: false,
        }
    }
}

/// Counts since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Pages fetched because a reference needed them.
    pub major_faults: u64,
    /// Major faults on pages that were evicted before.
    pub refaults: u64,
    /// Touches of resident, unmapped pages.
    pub minor_faults: u64,
    /// First writes to clean, mapped pages.
    pub write_faults: u64,
    /// Pages fetched ahead.
    pub prefetched_pages: u64,
    /// Pages fetched ahead that left memory without being known to be used.
    pub prefetch_wasted_pages: u64,
    /// Pages evicted.
    pub evictions: u64,
    /// Evicted pages that were dirty, and dirty neighbours written along with them.
    pub write_backs: u64,
    /// Pages unmapped for sampling.
    pub unmapped_pages: u64,
}

const RESIDENT: u8 = 1;
const MAPPED: u8 = 2;
const DIRTY: u8 = 4;
const IN_POLICY: u8 = 8;
const PENDING: u8 = 16;
const STUCK: u8 = 32;
const MARKER: u8 = 64;
const EVICTED_ONCE: u8 = 128;

/// The brain of one pool of frames. Pure: the same inputs give the same plans.
pub struct Brain {
    policy: Box<dyn Policy>,
    config: Config,
    frames: u32,
    reserved: u32,
    pages: PageMap,
    flags: Vec<u8>,
    resident: u32,
    pending: u32,
    newcomers: VecDeque<Page>,
    mapped: Fifo,
    unmap_credit: u32,
    streams: Vec<Streams>,
    plan: Plan,
    counts: Counts,
    digest: u64,
}

impl Brain {
    /// A brain over a policy that was built for `config.frames`.
    pub fn new(policy: Box<dyn Policy>, config: Config) -> Brain {
        Brain {
            policy,
            config,
            frames: config.frames.max(MIN_FRAMES),
            reserved: 0,
            pages: PageMap::default(),
            flags: Vec::new(),
            resident: 0,
            pending: 0,
            newcomers: VecDeque::new(),
            mapped: Fifo::default(),
            unmap_credit: 0,
            streams: Vec::new(),
            plan: Plan::default(),
            counts: Counts::default(),
            digest: 0xcbf2_9ce4_8422_2325,
        }
    }

    /// Takes one input and says what to do. The plan is valid until the next call.
    pub fn apply(&mut self, input: Input) -> &Plan {
        self.plan.clear();
        match input {
            Input::Segment { segment, pages } => {
                self.pages.set_pages(segment, pages);
                if self.streams.len() <= segment.0 as usize {
                    self.streams.resize_with(segment.0 as usize + 1, Streams::default);
                }
            }
            Input::Close { segment } => {
                self.drop_range(segment, 0, u64::MAX);
                self.pages.close(segment);
            }
            Input::Drop { segment, first, pages } => self.drop_range(segment, first, pages),
            Input::Major { place, want, write, map } => self.major(place, want, write, map),
            Input::Touch { place, write, map } => self.touch(place, write, map),
            Input::Write { place } => self.write(place),
            Input::Cleaned { place } => self.cleaned(place),
            Input::Kept { place } => self.kept(place),
            Input::Failed { place } => self.drop_range(place.segment, place.index, 1),
            Input::Frames { frames } => {
                self.frames = frames.max(MIN_FRAMES);
                self.policy.resized(self.limit());
                self.make_room(0, None);
            }
            Input::Reserved { frames } => {
                self.reserved = frames;
                self.policy.resized(self.limit());
                self.make_room(0, None);
            }
            Input::Ahead { segment, first, pages } => self.ahead(segment, first, pages),
        }
        self.fold_digest();
        &self.plan
    }

    /// Whether the page is resident, as far as decisions go (it may still be on its way).
    #[inline]
    pub fn is_resident(&self, place: Place) -> bool {
        self.flag(place) & RESIDENT != 0
    }

    /// Whether touches of the page are invisible, because it counts as mapped.
    #[inline]
    pub fn is_mapped(&self, place: Place) -> bool {
        self.flag(place) & MAPPED != 0
    }

    /// Whether the page is resident and dirty.
    #[inline]
    pub fn is_dirty(&self, place: Place) -> bool {
        self.flag(place) & DIRTY != 0
    }

    /// The page's number, if it ever had one.
    #[inline]
    pub fn page(&self, place: Place) -> Option<Page> {
        self.pages.find(place)
    }

    /// Where a numbered page lives.
    pub fn place(&self, page: Page) -> Place {
        self.pages.place(page)
    }

    /// Page numbers given out so far: the length that arrays kept beside the brain need.
    pub fn numbered_pages(&self) -> u32 {
        self.pages.len()
    }

    /// Numbered extents of a segment that overlap a page range, as (first page, its place).
    pub fn numbered(&self, segment: Segment, first: u64, pages: u64) -> Vec<(Page, Place)> {
        self.pages.numbered(segment, first, pages)
    }

    /// Resident pages.
    pub fn resident_pages(&self) -> u32 {
        self.resident
    }

    /// Counts since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// A running digest of all plans so far: equal inputs give equal digests.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    #[inline]
    fn flag(&self, place: Place) -> u8 {
        self.pages.find(place).map_or(0, |p| self.flags.get(p.index()).copied().unwrap_or(0))
    }

    fn number(&mut self, place: Place) -> Page {
        let page = self.pages.number(place);
        if self.flags.len() <= page.index() {
            self.flags.resize(self.pages.len() as usize, 0);
        }
        page
    }

    /// Frames that managed pages may use.
    fn limit(&self) -> u32 {
        self.frames.saturating_sub(self.reserved).max(MIN_FRAMES)
    }

    fn newcomers_max(&self) -> usize {
        NEWCOMERS_MAX.min(self.limit() / 4).max(2) as usize
    }

    /// The largest window that leaves the policy most of the frames.
    fn window_max(&self) -> u32 {
        let share = self.limit() / 4;
        self.config
            .window_pages_max
            .min(share / 2)
            .min(share.saturating_sub(self.pending) + 1)
            .max(1)
    }

    fn major(&mut self, place: Place, want: u32, write: bool, map: bool) {
        let end = self.pages.pages(place.segment);
        debug_assert!(place.index < end, "fault inside the segment");
        let want = want.min(self.limit() / 4).max(1);
        let window_max = self.window_max();
        let step = self.streams[place.segment.0 as usize].fault(place.index, want, window_max);
        for index in step.abandoned {
            self.admit_pending(Place { index, ..place }, Admission::Prefetch);
        }
        let run = self.absent_run(place, step.pages);
        let demanded = want.min(run);
        self.make_room(run, Some(place));
        for i in 0..demanded {
            let at = Place { index: place.index + u64::from(i), ..place };
            let page = self.make_resident(at);
            self.counts.major_faults += 1;
            if self.flags[page.index()] & EVICTED_ONCE != 0 {
                self.counts.refaults += 1;
            }
            if write {
                self.flags[page.index()] |= DIRTY;
            }
            if map {
                self.map(page);
            }
            self.newcomers.push_back(page);
        }
        while self.newcomers.len() > self.newcomers_max() {
            let page = self.newcomers.pop_front().expect("not empty");
            self.flags[page.index()] |= IN_POLICY;
            self.policy.admitted(page, Admission::Demand);
        }
        let marker = (run >= demanded + 2)
            .then(|| place.index + u64::from(demanded) + u64::from((run - demanded) / 2));
        self.make_pending(place, demanded, run, marker);
        self.plan.fetch.push(Run { place, pages: run, demanded });
        self.sample();
    }

    /// Pages from `place` on that are absent, at most `pages`.
    fn absent_run(&self, place: Place, pages: u32) -> u32 {
        let end = self.pages.pages(place.segment);
        let mut run = 0;
        while run < pages {
            let at = Place { index: place.index + u64::from(run), ..place };
            if at.index >= end || self.is_resident(at) {
                break;
            }
            run += 1;
        }
        run
    }

    fn make_resident(&mut self, place: Place) -> Page {
        let page = self.number(place);
        debug_assert_eq!(self.flags[page.index()] & RESIDENT, 0);
        self.flags[page.index()] = (self.flags[page.index()] & EVICTED_ONCE) | RESIDENT;
        self.resident += 1;
        page
    }

    /// Pages `from..to` behind `place` become pending in the segment's newest stream.
    fn make_pending(&mut self, place: Place, from: u32, to: u32, marker: Option<u64>) {
        for i in from..to {
            let at = Place { index: place.index + u64::from(i), ..place };
            let page = self.make_resident(at);
            self.flags[page.index()] |= PENDING;
            self.pending += 1;
            self.counts.prefetched_pages += 1;
            if marker == Some(at.index) {
                self.flags[page.index()] |= MARKER;
            } else if self.config.map_ahead {
                self.map(page);
            }
        }
        let stream = self.streams[place.segment.0 as usize].last();
        stream.next = place.index + u64::from(to);
        stream.marker = marker.or(stream.marker);
        stream.pending.extend((from..to).map(|i| place.index + u64::from(i)));
    }

    fn touch(&mut self, place: Place, write: bool, map: bool) {
        let Some(page) = self.pages.find(place) else { return };
        if self.flags[page.index()] & RESIDENT == 0 {
            return;
        }
        if map {
            self.counts.minor_faults += 1;
            if self.flags[page.index()] & MAPPED == 0 {
                self.map(page);
            }
        }
        if write {
            self.flags[page.index()] |= DIRTY;
        }
        if self.flags[page.index()] & MARKER != 0 {
            self.flags[page.index()] &= !MARKER;
            self.next_window(place);
        }
        self.saw_use(page, place);
        self.sample();
    }

    /// The policy hears of a touch, or, for a page fetched ahead, of its admission.
    fn saw_use(&mut self, page: Page, place: Place) {
        let flags = self.flags[page.index()];
        if flags & PENDING != 0 {
            self.streams[place.segment.0 as usize].used(place.index);
            self.admit_pending(place, Admission::Demand);
        } else if flags & IN_POLICY != 0 {
            self.policy.referenced(page);
        }
    }

    /// The marker of a stream was touched: all before it counts as used; fetch the next window.
    fn next_window(&mut self, place: Place) {
        let window_max = self.window_max();
        let streams = &mut self.streams[place.segment.0 as usize];
        let Some(pages) = streams.marker(place.index, window_max) else { return };
        let stream = streams.last();
        let from = Place { index: stream.next, ..place };
        let mut used = Vec::new();
        while stream.pending.front().is_some_and(|&i| i < place.index) {
            used.extend(stream.pending.pop_front());
        }
        for index in used {
            self.admit_pending(Place { index, ..place }, Admission::Demand);
        }
        let run = self.absent_run(from, pages);
        if run == 0 {
            return;
        }
        self.make_room(run, None);
        self.make_pending(from, 0, run, Some(from.index));
        self.plan.fetch.push(Run { place: from, pages: run, demanded: 0 });
    }

    /// A pending page, already out of its stream's list, goes to the policy.
    fn admit_pending(&mut self, place: Place, how: Admission) {
        let Some(page) = self.pages.find(place) else { return };
        let flags = &mut self.flags[page.index()];
        if *flags & PENDING == 0 {
            return;
        }
        *flags = (*flags & !(PENDING | MARKER)) | IN_POLICY;
        self.pending -= 1;
        self.policy.admitted(page, how);
    }

    fn write(&mut self, place: Place) {
        let Some(page) = self.pages.find(place) else { return };
        if self.flags[page.index()] & (RESIDENT | DIRTY) == RESIDENT {
            self.flags[page.index()] |= DIRTY;
            self.counts.write_faults += 1;
            self.saw_use(page, place);
        }
    }

    fn cleaned(&mut self, place: Place) {
        let Some(page) = self.pages.find(place) else { return };
        let flags = &mut self.flags[page.index()];
        *flags &= !DIRTY;
        if *flags & STUCK != 0 {
            *flags = (*flags & !STUCK) | IN_POLICY;
            self.policy.admitted(page, Admission::Prefetch);
            self.make_room(0, None);
        }
    }

    /// An evicted page turned out to be unwritable: it is resident again, and another one must go.
    fn kept(&mut self, place: Place) {
        let page = self.number(place);
        if self.flags[page.index()] & RESIDENT != 0 {
            return;
        }
        self.make_resident(place);
        self.flags[page.index()] |= DIRTY | STUCK;
        self.make_room(0, None);
    }

    fn ahead(&mut self, segment: Segment, first: u64, pages: u32) {
        let place = Place { segment, index: first };
        if first >= self.pages.pages(segment) {
            return;
        }
        let pages = pages.min(self.window_max());
        let run = self.absent_run(place, pages);
        if run == 0 {
            return;
        }
        self.make_room(run, None);
        for i in 0..run {
            let page = self.make_resident(Place { index: first + u64::from(i), ..place });
            self.flags[page.index()] |= IN_POLICY;
            self.counts.prefetched_pages += 1;
            self.policy.admitted(page, Admission::Prefetch);
        }
        self.plan.fetch.push(Run { place, pages: run, demanded: 0 });
    }

    fn map(&mut self, page: Page) {
        self.flags[page.index()] |= MAPPED;
        self.mapped.push(page);
    }

    fn make_room(&mut self, pages: u32, incoming: Option<Place>) {
        let incoming = incoming.map(|place| self.number(place));
        while self.resident + pages > self.limit() {
            let victim = match self.policy.victim(incoming) {
                Some(page) => page,
                None => match self.last_resort() {
                    Some(page) => page,
                    None => return,
                },
            };
            self.evict(victim);
        }
    }

    /// The policy has no page left: take one fetched ahead, else the oldest newcomer.
    fn last_resort(&mut self) -> Option<Page> {
        for (segment, streams) in self.streams.iter_mut().enumerate() {
            while let Some(index) = streams.oldest_pending() {
                let place = Place { segment: Segment(segment as u32), index };
                let page = self.pages.find(place);
                if let Some(page) = page.filter(|p| self.flags[p.index()] & PENDING != 0) {
                    return Some(page);
                }
            }
        }
        self.newcomers.pop_front()
    }

    fn evict(&mut self, page: Page) {
        let place = self.pages.place(page);
        let flags = self.flags[page.index()];
        debug_assert_ne!(flags & RESIDENT, 0, "victims are resident");
        let dirty = flags & DIRTY != 0;
        if dirty {
            self.counts.write_backs += 1;
            self.clean_around(place);
        }
        self.plan.evict.push(Victim { page, place, dirty });
        self.counts.evictions += 1;
        if flags & PENDING != 0 {
            self.pending -= 1;
            self.counts.prefetch_wasted_pages += 1;
        }
        self.flags[page.index()] = EVICTED_ONCE;
        self.mapped.remove(page);
        self.resident -= 1;
    }

    /// Dirty neighbours that the policy holds are written with the victim: one request for all.
    fn clean_around(&mut self, place: Place) {
        let wanted = |b: &Brain, index: u64| {
            b.flag(Place { index, ..place }) & (DIRTY | IN_POLICY) == DIRTY | IN_POLICY
        };
        let (mut first, mut end) = (place.index, place.index + 1);
        while end - first < u64::from(CLEAN_RUN_PAGES_MAX) && wanted(self, end) {
            end += 1;
        }
        while end - first < u64::from(CLEAN_RUN_PAGES_MAX) && first > 0 && wanted(self, first - 1) {
            first -= 1;
        }
        for (from, to) in [(first, place.index), (place.index + 1, end)] {
            if to > from {
                let pages = (to - from) as u32;
                self.counts.write_backs += u64::from(pages);
                for index in from..to {
                    let page = self.pages.find(Place { index, ..place }).expect("numbered");
                    self.flags[page.index()] &= !DIRTY;
                }
                let place = Place { index: from, ..place };
                self.plan.clean.push(Run { place, pages, demanded: 0 });
            }
        }
    }

    /// Unmaps the pages mapped longest ago, as far as the sampling setting asks for it.
    fn sample(&mut self) {
        let (batch, wanted) = match self.config.sampling {
            Sampling::Off => return,
            Sampling::OnEviction { per_eviction, share_percent } => {
                let limit = self.limit();
                let evicted = self.plan.evict.len() as u32;
                self.unmap_credit =
                    (self.unmap_credit + evicted.saturating_mul(per_eviction)).min(limit);
                let batch = (limit / 64).clamp(1, UNMAP_BATCH_PAGES);
                let target = (u64::from(limit) * u64::from(share_percent) / 100) as u32;
                let unmapped = self.resident - self.mapped.len();
                let wanted = target.saturating_sub(unmapped).min(self.unmap_credit);
                (batch, if wanted >= batch { batch } else { 0 })
            }
            Sampling::Window { mapped_pages } => {
                let batch = (mapped_pages / 8).clamp(1, UNMAP_BATCH_PAGES);
                let over = self.mapped.len().saturating_sub(mapped_pages.max(MIN_FRAMES));
                (batch, if over >= batch { over } else { 0 })
            }
        };
        let exact = matches!(self.config.sampling, Sampling::Window { .. });
        debug_assert!(batch > 0);
        for _ in 0..wanted {
            let Some(page) = self.mapped.front() else { break };
            let held = self.flags[page.index()] & (IN_POLICY | STUCK) == 0;
            if held && !exact {
                break;
            }
            self.mapped.remove(page);
            self.flags[page.index()] &= !MAPPED;
            self.unmap_credit = self.unmap_credit.saturating_sub(1);
            self.counts.unmapped_pages += 1;
            self.plan.unmap.push(page);
        }
    }

    /// Resident pages of a range leave without being anybody's victim.
    fn drop_range(&mut self, segment: Segment, first: u64, pages: u64) {
        let end = first.saturating_add(pages);
        for (base, place) in self.pages.numbered(segment, first, pages) {
            for i in 0..crate::pages::EXTENT_PAGES {
                let index = place.index + u64::from(i);
                let page = Page(base.0 + i);
                let flags = self.flags.get(page.index()).copied().unwrap_or(0);
                if index < first || index >= end || flags & RESIDENT == 0 {
                    continue;
                }
                if flags & IN_POLICY != 0 {
                    self.policy.removed(page);
                } else if flags & PENDING != 0 {
                    self.streams[segment.0 as usize].used(index);
                    self.pending -= 1;
                } else {
                    self.newcomers.retain(|&n| n != page);
                }
                self.mapped.remove(page);
                self.flags[page.index()] = 0;
                self.resident -= 1;
            }
        }
    }

    fn fold_digest(&mut self) {
        let mut h = self.digest;
        let mut mix = |v: u64| {
            h = (h ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            h ^= h >> 29;
        };
        for v in &self.plan.evict {
            mix(u64::from(v.page.0) << 1 | u64::from(v.dirty));
        }
        for r in self.plan.fetch.iter().chain(&self.plan.clean) {
            mix(r.place.index ^ (u64::from(r.place.segment.0) << 40));
            mix(u64::from(r.pages) << 32 | u64::from(r.demanded));
        }
        for p in &self.plan.unmap {
            mix(u64::from(p.0));
        }
        self.digest = h;
    }
}
