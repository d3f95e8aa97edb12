//! The decisions of one pool of frames: the policy, and around it what every policy shares.
//!
//! Inputs and references are here. Who holds a resident page is in [`held`], how many frames the policy
//! has in [`fit`], what a brain tells of itself in [`queries`].

mod fit;
mod held;
mod queries;

use crate::ahead::Streams;
use crate::around::{Around, is_probe};
use crate::config::{Config, Counts, MIN_FRAMES, RECENT_SHARE, Sampling};
use crate::pages::PageMap;
use crate::plan::{Input, Plan, Run};
use crate::sample::{Sampled, Watched};
use crate::share::SamplingShare;
use crate::{Place, Segment};
use fit::Fit;
use pagekeeper_policy::list::{Links, List};
use pagekeeper_policy::{Admission, Page, Policy};
use std::collections::VecDeque;

pub(crate) const RESIDENT: u8 = 1;
pub(crate) const MAPPED: u8 = 2;
pub(crate) const DIRTY: u8 = 4;
pub(crate) const IN_POLICY: u8 = 8;
pub(crate) const PENDING: u8 = 16;
pub(crate) const STUCK: u8 = 32;
/// Of a pending page: its use starts the next window.
pub(crate) const MARKER: u8 = 64;
/// Of any other page: it was fetched ahead or asked for, and not seen used since it came.
pub(crate) const ASKED: u8 = 64;
/// Of a page that is not resident: it was before.
pub(crate) const EVICTED_ONCE: u8 = 128;
/// Of a newcomer: the policy gave it up although it was in use, and it was not used since.
const SPARED: u8 = 128;
/// Of a pending page: it was read around a miss, and no stream knows of it.
pub(crate) const AROUND: u8 = 128;

/// [`MARKER`] has another meaning where the page is no stream's.
pub(crate) const fn is_marker(flags: u8) -> bool {
    flags & (PENDING | AROUND | MARKER) == PENDING | MARKER
}

/// Whether a stream tells of the page's use.
pub(crate) const fn is_streams(flags: u8) -> bool {
    flags & (PENDING | AROUND) == PENDING
}

/// Making touches visible costs time, which a policy that ignores them saves.
fn sampling_for(policy: &dyn Policy, asked: Sampling) -> Sampling {
    match asked {
        Sampling::OnEviction { share } if policy.wants_references() => Sampling::within(share),
        Sampling::OnEviction { .. } => Sampling::Off,
        asked => asked,
    }
}

/// Whether some touches, which are not seen otherwise, are to be.
fn watches_pages(policy: &dyn Policy, asked: Sampling) -> bool {
    matches!(asked, Sampling::OnEviction { share } if share != SamplingShare::NONE)
        && policy.watches_pages()
}

/// The brain of one pool of frames. Pure: the same inputs give the same plans.
pub struct Brain {
    pub(crate) policy: Box<dyn Policy>,
    wants_places: bool,
    wants_dirty: bool,
    pub(crate) gives_hints: bool,
    pub(crate) watches_pages: bool,
    /// The sampling that was asked for; a policy that ignores references goes without.
    sampling: Sampling,
    /// The policy that takes over with the next [`Input::Policy`].
    put_forward: Option<Box<dyn Policy>>,
    /// What the policy asked for, as inputs that nobody has taken yet.
    pub(crate) wishes: VecDeque<Input>,
    pub(crate) config: Config,
    frames: u32,
    reserved: u32,
    fit: Fit,
    pub(crate) pages: PageMap,
    pub(crate) flags: Vec<u8>,
    pub(crate) resident: u32,
    /// Links of the three lists of resident pages that the policy does not hold.
    pub(crate) beside: Links,
    pub(crate) newcomers: List,
    /// Empty between two victims.
    recent: Vec<Page>,
    /// Fetched ahead by streams, oldest first.
    pub(crate) pending: List,
    pub(crate) around: Around,
    pub(crate) stuck: List,
    /// Mapped pages, in the order in which they were mapped.
    pub(crate) mapped: List,
    pub(crate) mapped_links: Links,
    pub(crate) watched: Watched,
    /// Counts uses; wraps.
    uses: u32,
    /// The count before the last reference.
    uses_before: u32,
    /// Per page: the count at its last use.
    stamps: Vec<u32>,
    pub(crate) sampled: Sampled,
    pub(crate) streams: Vec<Streams>,
    /// Sequential touches of unmapped pages.
    pub(crate) touches: Vec<Streams>,
    /// By segment: victims are written without their neighbours.
    pub(crate) written_alone: Vec<bool>,
    /// Read-ahead steps taken so far: the clock of streams.
    pub(crate) steps: u64,
    pub(crate) plan: Plan,
    pub(crate) counts: Counts,
    digest: u64,
}

impl Brain {
    /// A brain over a policy that was built for `config.frames`.
    pub fn new(mut policy: Box<dyn Policy>, mut config: Config) -> Brain {
        let sampling = config.sampling;
        config.sampling = sampling_for(&*policy, sampling);
        let frames = config.frames.max(MIN_FRAMES);
        if frames != config.frames {
            policy.resized(frames);
        }
        Brain {
            wants_places: policy.wants_places(),
            wants_dirty: policy.wants_dirty(),
            gives_hints: policy.gives_hints(),
            watches_pages: watches_pages(&*policy, sampling),
            policy,
            sampling,
            put_forward: None,
            wishes: VecDeque::new(),
            config,
            frames,
            reserved: 0,
            fit: Fit::default(),
            pages: PageMap::default(),
            flags: Vec::new(),
            resident: 0,
            beside: Links::default(),
            newcomers: List::new(),
            recent: Vec::new(),
            pending: List::new(),
            around: Around::default(),
            stuck: List::new(),
            mapped: List::new(),
            mapped_links: Links::default(),
            watched: Watched::default(),
            uses: 0,
            uses_before: 0,
            stamps: Vec::new(),
            sampled: Sampled::default(),
            streams: Vec::new(),
            touches: Vec::new(),
            written_alone: Vec::new(),
            steps: 0,
            plan: Plan::default(),
            counts: Counts::default(),
            digest: 0xcbf2_9ce4_8422_2325,
        }
    }

    /// Takes one input and says what to do. The plan is valid until the next call.
    pub fn apply(&mut self, input: Input) -> &Plan {
        self.plan.clear();
        let is_reference = matches!(
            input,
            Input::Major { .. }
                | Input::Overwrite { .. }
                | Input::Touch { .. }
                | Input::Write { .. }
        );
        if is_reference {
            self.uses_before = self.uses;
        }
        match input {
            Input::Segment { segment, pages } => {
                self.pages.set_pages(segment, pages);
                if self.streams.len() <= segment.0 as usize {
                    self.streams.resize_with(segment.0 as usize + 1, Streams::learning);
                    self.touches.resize_with(segment.0 as usize + 1, Streams::default);
                    self.written_alone.resize(segment.0 as usize + 1, false);
                }
            }
            Input::Along { segment, allowed } => {
                if let Some(alone) = self.written_alone.get_mut(segment.0 as usize) {
                    *alone = !allowed;
                }
            }
            Input::Around { segment, allowed } => self.around.allow(segment, allowed),
            Input::Close { segment } => self.close(segment),
            Input::Drop { segment, first, pages } => {
                let unused = self.drop_range(segment, first, pages);
                self.counts.prefetch_wasted_pages += unused;
            }
            Input::Major { place, want, write, map } => self.major(place, want, write, map),
            Input::Overwrite { place, pages } => self.overwrite(place, pages),
            Input::Touch { place, write, map } => self.touch(place, write, map),
            Input::Write { place } => self.write(place),
            Input::Writable { place, pages } => self.writable(place, pages),
            Input::Cleaned { place } => self.cleaned(place),
            Input::Kept { place } => self.kept(place),
            Input::Spared { place, dirty } => self.spared(place, dirty),
            Input::Released { place } => {
                if let Some(page) = self.pages.find(place) {
                    self.unstick(page);
                }
            }
            Input::Failed { place } => {
                // Nobody waits for a page fetched ahead: it is given up rather than waited for.
                let ahead = self.flag(place) & (PENDING | ASKED) != 0;
                self.counts.prefetched_pages -= u64::from(ahead);
                self.drop_range(place.segment, place.index, 1);
            }
            Input::Frames { frames } => {
                self.frames = frames.max(MIN_FRAMES);
                self.resize_policy();
                self.shed();
            }
            Input::Reserved { frames } => {
                self.reserved = frames;
                self.resize_policy();
                self.shed();
            }
            Input::Ahead { segment, first, pages } => self.ahead(segment, first, pages),
            Input::Flush { place } => self.flush(place),
            Input::Map { place } => self.map_wished(place),
            Input::Unmap { place } => self.unmap_wished(place),
            Input::Policy { .. } => self.replace_policy(),
        }
        if self.gives_hints && is_reference {
            self.gather_wishes();
        }
        self.fold_digest();
        &self.plan
    }

    /// Takes the last plan, so that it can be carried out while the brain goes on.
    pub fn take_plan(&mut self) -> Plan {
        std::mem::take(&mut self.plan)
    }

    /// Gives a plan's memory back, for the next one.
    pub fn reuse_plan(&mut self, plan: Plan) {
        self.plan = plan;
    }

    /// Hands over the policy that decides from the next [`Input::Policy`] on, built for as many
    /// frames as that says. Without one, that input changes nothing.
    pub fn put_forward(&mut self, policy: Box<dyn Policy>) {
        self.put_forward = Some(policy);
    }

    fn resize_policy(&mut self) {
        self.tell_frames();
        if self.policy.watches_others() {
            self.watch_others();
        }
    }

    /// Pages with this flag, the one used longest ago (as far as it was seen) first.
    fn pages_by_last_use(&self, flag: u8) -> Vec<Page> {
        let mut pages: Vec<Page> = (0..self.flags.len() as u32).map(Page).collect();
        pages.retain(|page| self.flags[page.index()] & flag != 0);
        pages.sort_by_key(|page| std::cmp::Reverse(self.uses_since(*page)));
        pages
    }

    /// The policy that was put forward takes over every page of the one before, which is gone: in
    /// its order, or else in the order of their last seen use. Pages that were not the policy's
    /// stay what they are.
    fn replace_policy(&mut self) {
        let Some(policy) = self.put_forward.take() else { return };
        let pages = self.policy.order().unwrap_or_else(|| self.pages_by_last_use(IN_POLICY));
        self.policy = policy;
        self.tell_frames();
        self.wants_places = self.policy.wants_places();
        self.wants_dirty = self.policy.wants_dirty();
        self.gives_hints = self.policy.gives_hints();
        self.watches_pages = watches_pages(&*self.policy, self.sampling);
        self.wishes.clear();
        self.config.sampling = sampling_for(&*self.policy, self.sampling);
        for page in &pages {
            self.flags[page.index()] &= !IN_POLICY;
        }
        for page in pages {
            let was_used = self.uses_since(page) != u32::MAX;
            self.admit(page, if was_used { Admission::Demand } else { Admission::Prefetch });
        }
        self.watch_others();
    }

    #[inline]
    pub(crate) fn flag(&self, place: Place) -> u8 {
        self.pages.find(place).map_or(0, |p| self.flags.get(p.index()).copied().unwrap_or(0))
    }

    pub(crate) fn number(&mut self, place: Place) -> Page {
        let page = self.pages.number(place);
        if self.flags.len() <= page.index() {
            self.flags.resize(self.pages.len() as usize, 0);
        }
        page
    }

    /// Frames that managed pages may use.
    pub(crate) fn limit(&self) -> u32 {
        self.frames.saturating_sub(self.reserved).max(MIN_FRAMES)
    }

    /// Uses that a page counts as recent for.
    pub(crate) fn recent_uses(&self) -> u32 {
        (self.limit() / RECENT_SHARE).max(2)
    }

    /// Most newcomers: demand-faulted pages, and recent ones that the policy wanted to give up.
    pub(crate) fn newcomers_max(&self) -> u32 {
        2 * self.recent_uses()
    }

    /// Notes a use, for [`uses_since`](Self::uses_since).
    fn stamp(&mut self, page: Page) {
        self.uses = self.uses.wrapping_add(1);
        if self.stamps.len() <= page.index() {
            self.stamps.resize(self.flags.len().max(page.index() + 1), 0);
        }
        self.stamps[page.index()] = self.uses;
    }

    /// Uses of any page since the last seen one of this page; the most for one that none was seen
    /// of.
    pub(crate) fn uses_since(&self, page: Page) -> u32 {
        match self.stamps.get(page.index()) {
            None | Some(0) => u32::MAX,
            Some(stamp) => self.uses.wrapping_sub(*stamp),
        }
    }

    fn major(&mut self, place: Place, want: u32, write: bool, map: bool) {
        if place.index >= self.pages.pages(place.segment) || self.is_resident(place) {
            debug_assert!(false, "a major fault on a page that cannot be fetched: {place:?}");
            return;
        }
        let want = want.min(self.limit() / 4).max(1);
        let limits = self.window_limits(place.segment);
        self.steps += 1;
        let mut streams = std::mem::take(&mut self.streams[place.segment.0 as usize]);
        let step = streams.fault(place.index, limits, self.steps, |index| {
            self.is_resident(Place { index, ..place })
        });
        self.streams[place.segment.0 as usize] = streams;
        for index in step.abandoned {
            self.admit_pending(Place { index, ..place }, Admission::Prefetch);
        }
        let falls = step.fallen.is_some();
        for index in step.fallen.into_iter().flatten().rev() {
            self.admit_pending(Place { index, ..place }, Admission::Demand);
        }
        if !falls {
            self.infer_passed(place.segment, place.index);
            if self.streams[place.segment.0 as usize].last().begin != place.index {
                self.came_over_block(place);
            }
        }
        let run = self.absent_run(place, want);
        let behind = place.index + u64::from(run);
        // Who asks for so many at a time will use a window of them, too.
        let stream = self.streams[place.segment.0 as usize].last();
        stream.asked_for(run);
        stream.stores = write;
        // Before room is made: what leaves for it is not to be fetched again at once.
        let window = u64::from(step.pages - 1);
        let range = match falls {
            true => place.index.saturating_sub(window)..place.index,
            false => behind..behind + window,
        };
        let lacking = self.lacking(place.segment, range.clone());
        // With every frame stuck, one page too many is the only way to go on.
        let room = self.make_room(run + lacking.pages.len() as u32, Some(place)).max(1);
        let demanded = run.min(room);
        for i in 0..demanded {
            let at = Place { index: place.index + u64::from(i), ..place };
            self.counts.major_faults += 1;
            self.counts.refaults += u64::from(self.flag(at) & EVICTED_ONCE != 0);
            let page = self.make_resident(at);
            if write {
                self.flags[page.index()] |= DIRTY;
            }
            if map {
                self.map(page);
            }
            self.stamp(page);
            self.beside.push_back(&mut self.newcomers, page);
        }
        self.age_newcomers(self.newcomers_max());
        self.plan.fetch.push(Run { place, pages: demanded, demanded });
        let left = (room - demanded) as usize;
        if falls {
            self.fetch_before(place.segment, range, lacking, left);
            self.sample();
            return;
        }
        self.fetch_ahead(place.segment, &lacking, left, (left >= 2).then_some(left / 2));
        let behind = self.streams[place.segment.0 as usize].last().next;
        let (before, behind) = self.block_around(place, behind);
        self.fetch_around(place.segment, before, behind);
        self.sample();
    }

    /// Frames for absent pages whose content the program brings along: no stream, no read-ahead.
    fn overwrite(&mut self, place: Place, pages: u32) {
        let run = self.absent_run(place, pages.min(self.limit() / 4).max(1));
        if run == 0 {
            debug_assert!(false, "a page that cannot be written whole: {place:?}");
            return;
        }
        // With every frame stuck, one page too many is the only way to go on.
        let run = self.make_room(run, Some(place)).max(1);
        for i in 0..run {
            let page = self.make_resident(Place { index: place.index + u64::from(i), ..place });
            self.flags[page.index()] |= DIRTY;
            self.stamp(page);
            self.beside.push_back(&mut self.newcomers, page);
        }
        self.age_newcomers(self.newcomers_max());
        self.plan.fetch.push(Run { place, pages: run, demanded: run });
        self.sample();
    }

    /// Pages from `place` on that are absent, at most `pages`.
    pub(crate) fn absent_run(&self, place: Place, pages: u32) -> u32 {
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

    fn touch(&mut self, place: Place, write: bool, map: bool) {
        let Some(page) = self.pages.find(place) else { return };
        if self.flags[page.index()] & RESIDENT == 0 {
            return;
        }
        if map {
            self.counts.minor_faults += 1;
            let flags = self.flags[page.index()];
            if flags & MAPPED == 0 {
                self.map(page);
                if !is_streams(flags) {
                    self.unmapped_touched(page);
                }
            }
        }
        if write {
            self.set_dirty(page);
        }
        if is_marker(self.flags[page.index()]) {
            self.flags[page.index()] &= !MARKER;
            self.next_window(place, write);
        } else if is_probe(self.flags[page.index()]) {
            self.around.proven();
        }
        if map {
            self.saw_sample(page, place);
        } else {
            self.saw_use(page, place);
        }
        if map && self.config.map_ahead {
            self.map_behind(place);
        }
        self.sample();
    }

    /// A touch was seen that may be one of several, as far as could be seen.
    pub(crate) fn saw_sample(&mut self, page: Page, place: Place) {
        self.saw(page, place, matches!(self.config.sampling, Sampling::OnEviction { .. }));
    }

    /// A touch was seen that stands for itself.
    pub(crate) fn saw_use(&mut self, page: Page, place: Place) {
        self.saw(page, place, false);
    }

    /// The policy hears of a touch, or, for a page fetched ahead, of its admission.
    fn saw(&mut self, page: Page, place: Place, is_sample: bool) {
        let flags = self.flags[page.index()];
        if flags & PENDING != 0 {
            self.forget_in_stream(place, flags);
            self.admit_pending(place, Admission::Demand);
            return;
        }
        self.stamp(page);
        self.flags[page.index()] &= !ASKED;
        if flags & IN_POLICY == 0 {
            // A use that its admission will tell of.
            self.flags[page.index()] &= !SPARED;
        } else if is_sample {
            self.policy.sampled(page);
        } else {
            self.policy.referenced(page);
        }
    }

    /// The page is dirty from now on, if it was not before.
    pub(crate) fn set_dirty(&mut self, page: Page) {
        let flags = &mut self.flags[page.index()];
        let tell = *flags & (DIRTY | IN_POLICY) == IN_POLICY;
        *flags |= DIRTY;
        if tell && self.wants_dirty {
            self.policy.dirtied(page);
        }
    }

    /// The page is clean from now on, if it was not before.
    pub(crate) fn set_clean(&mut self, page: Page) {
        let flags = &mut self.flags[page.index()];
        let tell = *flags & (DIRTY | IN_POLICY) == DIRTY | IN_POLICY;
        *flags &= !DIRTY;
        if tell && self.wants_dirty {
            self.policy.cleaned(page);
        }
    }

    fn write(&mut self, place: Place) {
        let Some(page) = self.pages.find(place) else { return };
        if self.flags[page.index()] & (RESIDENT | DIRTY) == RESIDENT {
            self.set_dirty(page);
            self.counts.write_faults += 1;
            self.saw_sample(page, place);
        }
    }

    fn cleaned(&mut self, place: Place) {
        let Some(page) = self.pages.find(place) else { return };
        self.set_clean(page);
        self.unstick(page);
    }

    pub(crate) fn map(&mut self, page: Page) {
        self.flags[page.index()] |= MAPPED;
        self.mapped_links.push_back(&mut self.mapped, page);
        if self.watches_pages && self.flags[page.index()] & IN_POLICY != 0 {
            self.policy.mapped(page);
        }
        // Of a page fetched ahead the stream tells, and it is watched from then on.
        if self.flags[page.index()] & PENDING == 0 {
            self.watch(page);
        }
    }

    /// A segment is gone: its numbers, and what is remembered under them, may be somebody else's
    /// next.
    fn close(&mut self, segment: Segment) {
        self.drop_range(segment, 0, u64::MAX);
        for (base, _) in self.pages.numbered(segment, 0, u64::MAX) {
            let first = base.index().min(self.flags.len());
            let end = (first + crate::pages::EXTENT_PAGES as usize).min(self.flags.len());
            self.flags[first..end].fill(0);
        }
        self.pages.close(segment);
        self.around.allow(segment, false);
        if let Some(alone) = self.written_alone.get_mut(segment.0 as usize) {
            *alone = false;
        }
        if let Some(streams) = self.streams.get_mut(segment.0 as usize) {
            *streams = Streams::learning();
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
        for r in self.plan.fetch.iter().chain(&self.plan.clean).chain(&self.plan.map) {
            mix(r.place.index ^ (u64::from(r.place.segment.0) << 40));
            mix(u64::from(r.pages) << 32 | u64::from(r.demanded));
        }
        for p in &self.plan.unmap {
            mix(u64::from(p.0));
        }
        self.digest = h;
    }
}
