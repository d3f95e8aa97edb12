//! The decisions of one pool of frames: the policy, and around it what every policy shares.
//!
//! A page is in one of four places while it is resident: a *newcomer* (one of the last demand
//! faults, which no policy may take: an instruction that touches two pages could otherwise never
//! finish), *pending* (fetched ahead, not known to be used), in the *policy*, or *stuck* (dirty and
//! impossible to write back, or being changed by somebody). Victims come from the policy; pending
//! pages, newcomers and stuck pages go only when the policy has none. But pages that were read around
//! a miss ([`crate::around`]), which are pending, too, go first.

use crate::ahead::Streams;
use crate::around::{Around, is_around, is_probe};
use crate::config::{Config, Counts, MIN_FRAMES, RECENT_SHARE, Sampling};
use crate::pages::PageMap;
use crate::plan::{Input, Plan, Run};
use crate::sample::{Sampled, Watched};
use crate::share::SamplingShare;
use crate::{Place, Segment};
use pagekeeper_policy::list::{Links, List};
use pagekeeper_policy::{Admission, Page, Policy, Visible};
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
            Input::Drop { segment, first, pages } => self.drop_range(segment, first, pages),
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
                self.policy.resized(self.limit());
                self.shed();
            }
            Input::Reserved { frames } => {
                self.reserved = frames;
                self.policy.resized(self.limit());
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

    /// Resident pages, the one used longest ago (as far as it was seen) first.
    pub fn by_last_use(&self) -> Vec<Place> {
        self.pages_by_last_use(RESIDENT).into_iter().map(|page| self.place(page)).collect()
    }

    /// Pages with this flag, the one used longest ago (as far as it was seen) first.
    fn pages_by_last_use(&self, flag: u8) -> Vec<Page> {
        let mut pages: Vec<Page> = (0..self.flags.len() as u32).map(Page).collect();
        pages.retain(|page| self.flags[page.index()] & flag != 0);
        pages.sort_by_key(|page| std::cmp::Reverse(self.uses_since(*page)));
        pages
    }

    /// The inside of the policy, if it shows any.
    pub fn visible(&mut self) -> Option<&mut dyn Visible> {
        self.policy.visible()
    }

    /// The policy that was put forward takes over every page of the one before, which is gone: in
    /// its order, or else in the order of their last seen use. Pages that were not the policy's
    /// stay what they are.
    fn replace_policy(&mut self) {
        let Some(mut policy) = self.put_forward.take() else { return };
        policy.resized(self.limit());
        let pages = self.policy.order().unwrap_or_else(|| self.pages_by_last_use(IN_POLICY));
        self.policy = policy;
        self.wants_places = self.policy.wants_places();
        self.wants_dirty = self.policy.wants_dirty();
        self.gives_hints = self.policy.gives_hints();
        self.watches_pages = watches_pages(&*self.policy, self.sampling);
        self.wishes.clear();
        self.watched = Watched::default();
        self.config.sampling = sampling_for(&*self.policy, self.sampling);
        for page in &pages {
            self.flags[page.index()] &= !IN_POLICY;
        }
        for page in pages {
            let was_used = self.uses_since(page) != u32::MAX;
            self.admit(page, if was_used { Admission::Demand } else { Admission::Prefetch });
        }
    }

    /// The most that seeing touches may cost; `None` where it is not bounded.
    pub fn sampling_share(&self) -> Option<SamplingShare> {
        self.sampling.share()
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

    /// Whether the page could not leave when it was chosen to, and is kept from the policy.
    pub fn is_stuck(&self, place: Place) -> bool {
        self.flag(place) & STUCK != 0
    }

    /// Whether the next touch of the page starts read-ahead.
    pub fn is_marker(&self, page: Page) -> bool {
        self.flags.get(page.index()).is_some_and(|flags| is_marker(*flags))
    }

    /// Whether the page was fetched ahead and is not known to be used.
    pub fn is_pending(&self, place: Place) -> bool {
        self.flag(place) & PENDING != 0
    }

    /// A segment's length in pages; 0 when it is not declared.
    pub fn pages(&self, segment: Segment) -> u64 {
        self.pages.pages(segment)
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

    /// Page numbers in use: those of a closed segment may be given out again.
    pub fn used_numbers(&self) -> u64 {
        self.pages.used().into()
    }

    /// Page numbers that a segment has.
    pub fn segment_numbers(&self, segment: Segment) -> u64 {
        self.pages.numbered(segment, 0, u64::MAX).len() as u64
            * u64::from(crate::pages::EXTENT_PAGES)
    }

    /// Resident pages of a segment that are dirty.
    pub fn dirty_pages(&self, segment: Segment) -> u64 {
        let extents = self.pages.numbered(segment, 0, u64::MAX);
        let pages = extents.into_iter().flat_map(|(base, _)| {
            (0..crate::pages::EXTENT_PAGES).map(move |i| base.index() + i as usize)
        });
        pages.filter(|&at| self.flags.get(at).is_some_and(|f| f & DIRTY != 0)).count() as u64
    }

    /// Numbered extents of a segment that overlap a page range, as (first page, its place).
    pub fn numbered(&self, segment: Segment, first: u64, pages: u64) -> Vec<(Page, Place)> {
        self.pages.numbered(segment, first, pages)
    }

    /// Frames that managed pages may use now.
    pub fn frames(&self) -> u32 {
        self.limit()
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

    /// The next victim: what was read around a miss, or the policy's. Recent pages that it gives up
    /// become newcomers instead.
    pub(crate) fn next_victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        self.next_around().or_else(|| self.victim_unused_for(self.recent_uses(), incoming))
    }

    /// The next victim for pages that nobody waits for: not among those that the last reference
    /// needs, which may be on their way in.
    pub(crate) fn next_victim_ahead(&mut self) -> Option<Page> {
        let by_reference = self.uses.wrapping_sub(self.uses_before).max(self.recent_uses());
        self.next_around().or_else(|| self.victim_unused_for(by_reference, None))
    }

    /// The policy's next victim among pages that were not used for so many uses.
    fn victim_unused_for(&mut self, uses: u32, incoming: Option<Page>) -> Option<Page> {
        incoming.inspect(|page| self.tell_place(*page));
        let mut recent = std::mem::take(&mut self.recent);
        let victim = loop {
            let Some(page) = self.policy.victim(incoming) else { break None };
            if self.uses_since(page) >= uses {
                break Some(page);
            }
            self.flags[page.index()] ^= IN_POLICY | SPARED;
            recent.push(page);
        };
        // Most likely the last to be given up is the one used longest ago, and the first to age.
        for page in recent.drain(..).rev() {
            self.beside.push_back(&mut self.newcomers, page);
        }
        self.recent = recent;
        victim
    }

    fn major(&mut self, place: Place, want: u32, write: bool, map: bool) {
        if place.index >= self.pages.pages(place.segment) || self.is_resident(place) {
            debug_assert!(false, "a major fault on a page that cannot be fetched: {place:?}");
            return;
        }
        let want = want.min(self.limit() / 4).max(1);
        let limits = self.window_limits();
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

    /// Newcomers that are not recent any more, and the oldest ones beyond `keep`, go to the policy.
    pub(crate) fn age_newcomers(&mut self, keep: u32) {
        while let Some(oldest) = self.newcomers.front()
            && (self.newcomers.len() > keep
                || self.newcomers.len() > 2 && self.uses_since(oldest) >= self.recent_uses())
        {
            let page = self.beside.pop_front(&mut self.newcomers).expect("not empty");
            if self.flags[page.index()] & SPARED == 0 {
                self.admit(page, Admission::Demand);
            } else {
                self.flags[page.index()] &= !SPARED;
                self.make_room_in_policy();
                self.take_in(page);
                self.policy.spared(page);
            }
        }
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

    pub(crate) fn make_resident(&mut self, place: Place) -> Page {
        let page = self.number(place);
        debug_assert_eq!(self.flags[page.index()] & RESIDENT, 0);
        self.flags[page.index()] = RESIDENT;
        self.resident += 1;
        page
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

    /// A pending page, already out of its stream's list, goes to the policy.
    pub(crate) fn admit_pending(&mut self, place: Place, how: Admission) {
        let Some(page) = self.pages.find(place) else { return };
        let flags = self.flags[page.index()];
        if flags & PENDING == 0 {
            return;
        }
        self.take_pending(page, flags);
        self.flags[page.index()] &= !(PENDING | AROUND | MARKER);
        if how == Admission::Demand {
            self.stamp(page);
        } else {
            self.flags[page.index()] |= ASKED;
        }
        self.admit(page, how);
        if self.flags[page.index()] & MAPPED != 0 {
            self.watch(page);
        }
    }

    /// If a stream fetched this page ahead: it waits for its use no longer.
    pub(crate) fn forget_in_stream(&mut self, place: Place, flags: u8) {
        if is_streams(flags) {
            self.streams[place.segment.0 as usize].used(place.index);
        }
    }

    /// Takes a pending page out of its list.
    fn take_pending(&mut self, page: Page, flags: u8) {
        let list = if is_around(flags) { &mut self.around.pages } else { &mut self.pending };
        self.beside.remove(list, page);
    }

    pub(crate) fn admit(&mut self, page: Page, how: Admission) {
        self.make_room_in_policy();
        self.take_in(page);
        self.policy.admitted(page, how);
    }

    /// Victims that stayed after all may have left too little room for another page.
    fn make_room_in_policy(&mut self) {
        while self.policy.resident() >= self.limit()
            && let Some(victim) = self.victim_unused_for(self.recent_uses(), None)
        {
            self.evict(victim);
        }
    }

    /// The page is the policy's from now on, as it is told next.
    fn take_in(&mut self, page: Page) {
        self.tell_place(page);
        if self.wants_dirty && self.flags[page.index()] & DIRTY != 0 {
            self.policy.dirtied(page);
        }
        self.flags[page.index()] |= IN_POLICY;
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

    pub(crate) fn tell_place(&mut self, page: Page) {
        if self.wants_places {
            self.policy.placed(page, self.pages.place(page));
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

    /// A victim stays resident and dirty after all, and another one must go. A neighbour that was
    /// to be written along with a victim stays dirty.
    fn kept(&mut self, place: Place) {
        if self.pages.pages(place.segment) == 0 {
            return;
        }
        if !self.is_resident(place) {
            let page = self.make_resident(place);
            self.flags[page.index()] |= STUCK;
            self.beside.push_back(&mut self.stuck, page);
        }
        let page = self.number(place);
        self.set_dirty(page);
        self.shed();
    }

    /// An evicted page was in use: it is resident again, and no victim for now.
    fn spared(&mut self, place: Place, dirty: bool) {
        if self.pages.pages(place.segment) == 0 || self.is_resident(place) {
            return;
        }
        let page = self.make_resident(place);
        self.flags[page.index()] |= SPARED | if dirty { DIRTY } else { 0 };
        self.beside.push_back(&mut self.newcomers, page);
    }

    /// A page that could not leave is an ordinary one again.
    fn unstick(&mut self, page: Page) {
        if self.flags[page.index()] & STUCK == 0 {
            return;
        }
        self.flags[page.index()] &= !STUCK;
        self.beside.remove(&mut self.stuck, page);
        self.admit(page, Admission::Prefetch);
        self.shed();
    }

    pub(crate) fn map(&mut self, page: Page) {
        self.flags[page.index()] |= MAPPED;
        self.mapped_links.push_back(&mut self.mapped, page);
        // Of a page fetched ahead the stream tells, and it is watched from then on.
        if self.flags[page.index()] & PENDING == 0 {
            self.watch(page);
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
                    self.forget_in_stream(Place { segment, index }, flags);
                    self.take_pending(page, flags);
                } else if flags & STUCK != 0 {
                    self.beside.remove(&mut self.stuck, page);
                } else {
                    self.beside.remove(&mut self.newcomers, page);
                }
                if flags & MAPPED != 0 {
                    self.mapped_links.remove(&mut self.mapped, page);
                }
                self.flags[page.index()] = 0;
                self.resident -= 1;
            }
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
