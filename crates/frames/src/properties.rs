//! The brain against a simple model, over random inputs and every policy that runs live.
//!
//! The model plays the engine: it holds the set of resident pages, carries plans out, and answers
//! late and in odd orders (a victim that cannot leave, a page that cannot be fetched).

use crate::brain::{Brain, DIRTY, IN_POLICY, MAPPED, PENDING, RESIDENT, STUCK};
use crate::sample::unmapped_per_eviction;
use crate::{Config, Input, MIN_FRAMES, Place, Plan, Sampling, SamplingShare, Segment, Victim};
use pagekeeper_policy::{Admission, Checked, Hint, Page, Policy, PolicySpec, all};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

impl Brain {
    /// Every resident page is in exactly one place, and all counts agree.
    fn check(&self) {
        let count = |bits: u8| self.flags.iter().filter(|f| **f & bits == bits).count() as u32;
        assert_eq!(count(RESIDENT), self.resident);
        assert_eq!(count(MAPPED), self.mapped.len());
        assert_eq!(count(IN_POLICY), self.policy.resident());
        assert_eq!(count(PENDING), self.pending.len() + self.around.pages.len());
        assert_eq!(count(STUCK), self.stuck.len());
        let newcomers: BTreeSet<_> = self.beside.iter(&self.newcomers).collect();
        for (at, flags) in self.flags.iter().enumerate() {
            let newcomer = newcomers.contains(&Page(at as u32));
            let homes = (flags & (IN_POLICY | PENDING | STUCK)).count_ones() + u32::from(newcomer);
            assert_eq!(homes, u32::from(flags & RESIDENT != 0), "page {at}: flags {flags:#x}");
            if flags & RESIDENT == 0 {
                assert_eq!(flags & !crate::brain::EVICTED_ONCE, 0, "page {at} left something");
            }
        }
    }
}

/// A policy that also asks for all sorts of things, and notes which of its pages are dirty.
struct Wishful {
    policy: Box<dyn Policy>,
    dirty: Arc<Mutex<BTreeSet<Page>>>,
    incoming: Option<Page>,
    calls: u32,
    hints: Vec<Hint>,
}

impl Wishful {
    fn wish(&mut self, page: Page) {
        self.calls = self.calls.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let number = self.calls >> 8;
        let segment = Segment(number % SEGMENTS);
        let place = Place { segment, index: u64::from(number / 7) % (PAGES + 9) };
        // Not only its own pages: who asks for others must not get them.
        let other = Page(number % 512);
        self.hints.push(match number % 9 {
            0 => Hint::Prefetch { place, pages: number % 50 },
            1 => Hint::Flush(page),
            2 => Hint::Flush(other),
            3 => Hint::Map(page),
            4 => Hint::Map(other),
            5 => Hint::Unmap(page),
            6 => Hint::Unmap(other),
            _ => return,
        });
    }

    fn left(&mut self, page: Page) {
        self.dirty.lock().unwrap().remove(&page);
    }
}

impl Policy for Wishful {
    fn wants_places(&self) -> bool {
        self.policy.wants_places()
    }
    fn wants_references(&self) -> bool {
        self.policy.wants_references()
    }
    fn wants_dirty(&self) -> bool {
        true
    }
    fn gives_hints(&self) -> bool {
        true
    }
    fn watches_pages(&self) -> bool {
        true
    }
    fn watches(&mut self, page: Page) -> bool {
        page.0.is_multiple_of(5)
    }
    fn placed(&mut self, page: Page, place: Place) {
        self.policy.placed(page, place);
    }
    fn dirtied(&mut self, page: Page) {
        assert!(self.dirty.lock().unwrap().insert(page), "dirty once");
        self.incoming = Some(page);
    }
    fn cleaned(&mut self, page: Page) {
        assert!(self.dirty.lock().unwrap().remove(&page), "only what was dirty is cleaned");
    }
    fn admitted(&mut self, page: Page, how: Admission) {
        let dirty = self.dirty.lock().unwrap().contains(&page);
        assert!(!dirty || self.incoming == Some(page), "told just before");
        self.policy.admitted(page, how);
        self.wish(page);
    }
    fn referenced(&mut self, page: Page) {
        self.policy.referenced(page);
        self.wish(page);
    }
    fn removed(&mut self, page: Page) {
        self.policy.removed(page);
        self.left(page);
    }
    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        let page = self.policy.victim(incoming);
        page.inspect(|page| {
            self.left(*page);
            self.wish(*page);
        })
    }
    fn resized(&mut self, frames: u32) {
        self.policy.resized(frames);
    }
    fn resident(&self) -> u32 {
        self.policy.resident()
    }
    fn take_hints(&mut self, hints: &mut Vec<Hint>) {
        hints.append(&mut self.hints);
    }
    fn order(&self) -> Option<Vec<Page>> {
        self.policy.order()
    }
}

const SEGMENTS: u32 = 3;
const PAGES: u64 = 300;

#[derive(Clone, Debug)]
enum Event {
    /// A reference; sequences of them make streams.
    Touch {
        segment: u32,
        index: u64,
        run: u64,
        write: bool,
        map: bool,
        want: u32,
    },
    /// An answer for the n-th victim on its way out: it went, is kept, or is spared.
    Settle {
        nth: usize,
        how: u8,
    },
    /// The n-th page on its way in failed.
    Fail {
        nth: usize,
    },
    Cleaned {
        nth: usize,
    },
    Released {
        nth: usize,
    },
    Drop {
        segment: u32,
        first: u64,
        pages: u64,
    },
    Shrink {
        segment: u32,
        pages: u64,
    },
    Reopen {
        segment: u32,
    },
    Frames {
        frames: u32,
    },
    Reserved {
        frames: u32,
    },
    Ahead {
        segment: u32,
        first: u64,
        pages: u32,
    },
    /// Another policy takes over.
    Swap {
        pick: usize,
        wishful: bool,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let segment = 0..SEGMENTS;
    prop_oneof![
        12 => (segment.clone(), 0..PAGES, 1..40u64, any::<bool>(), any::<bool>(), 1..20u32).prop_map(
            |(segment, index, run, write, map, want)| Event::Touch { segment, index, run, write, map, want }
        ),
        6 => (0..50usize, 0..4u8).prop_map(|(nth, how)| Event::Settle { nth, how }),
        2 => (0..50usize).prop_map(|nth| Event::Fail { nth }),
        2 => (0..50usize).prop_map(|nth| Event::Cleaned { nth }),
        2 => (0..50usize).prop_map(|nth| Event::Released { nth }),
        1 => (segment.clone(), 0..PAGES, 0..80u64)
            .prop_map(|(segment, first, pages)| Event::Drop { segment, first, pages }),
        1 => (segment.clone(), 1..PAGES).prop_map(|(segment, pages)| Event::Shrink { segment, pages }),
        1 => segment.clone().prop_map(|segment| Event::Reopen { segment }),
        1 => (0..100u32).prop_map(|frames| Event::Frames { frames }),
        1 => (0..40u32).prop_map(|frames| Event::Reserved { frames }),
        1 => (0..64usize, any::<bool>()).prop_map(|(pick, wishful)| Event::Swap { pick, wishful }),
        1 => (segment, 0..PAGES, 0..100u32)
            .prop_map(|(segment, first, pages)| Event::Ahead { segment, first, pages }),
    ]
}

/// A policy that runs live, perhaps with wishes of its own, and its dirty pages if it notes them.
#[derive(Clone)]
struct Choice {
    name: &'static str,
    wishful: bool,
}

impl Choice {
    fn pick(pick: usize, wishful: bool) -> Choice {
        let live: Vec<_> = all().iter().filter(|p| p.runs_live()).collect();
        Choice { name: live[pick % live.len()].name, wishful }
    }

    fn build(&self, frames: u32, dirty: &Arc<Mutex<BTreeSet<Page>>>) -> Box<dyn Policy> {
        let policy = PolicySpec::parse(self.name).unwrap().build(frames, 1).unwrap();
        if !self.wishful {
            return policy;
        }
        let (dirty, hints) = (dirty.clone(), Vec::new());
        Box::new(Wishful { policy, dirty, incoming: None, calls: 0, hints })
    }
}

struct Model {
    choice: Choice,
    dirty: Arc<Mutex<BTreeSet<Page>>>,
    swaps: Vec<(Choice, u32)>,
    brain: Brain,
    resident: BTreeSet<Place>,
    leaving: Vec<Place>,
    pages: [u64; SEGMENTS as usize],
    frames: u32,
    reserved: u32,
    /// Victims spared since room was last made.
    spared: usize,
    inputs: Vec<(u8, u64, u64)>,
    share: Option<SamplingShare>,
    /// Whether a policy watched pages, so far.
    watched: bool,
}

impl Model {
    fn new(choice: Choice, frames: u32, sampling: Sampling, map_ahead: bool) -> Model {
        let config = Config { frames, sampling, window_pages_max: 64, map_ahead };
        let dirty = Arc::default();
        let policy = choice.build(frames, &dirty);
        let mut model = Model {
            choice,
            dirty,
            swaps: Vec::new(),
            brain: Brain::new(Box::new(Checked::new(policy, frames)), config),
            resident: BTreeSet::new(),
            leaving: Vec::new(),
            pages: [PAGES; SEGMENTS as usize],
            frames,
            reserved: 0,
            spared: 0,
            inputs: Vec::new(),
            share: sampling.share(),
            watched: false,
        };
        for segment in (0..SEGMENTS).map(Segment) {
            model.apply(Input::Segment { segment, pages: PAGES });
            model.apply(Input::Around { segment, allowed: segment.0 > 0 });
        }
        model
    }

    fn limit(&self) -> u32 {
        self.frames.max(MIN_FRAMES).saturating_sub(self.reserved).max(MIN_FRAMES)
    }

    /// Feeds the brain an input and the wishes that wait then, and carries the plans out.
    fn apply(&mut self, input: Input) -> Plan {
        let plan = self.apply_one(input);
        while let Some(wish) = self.brain.take_wish() {
            self.apply_one(wish);
        }
        plan
    }

    /// Another policy takes over: the pages stay, and none but what has to is evicted.
    fn swap(&mut self, choice: Choice, frames: u32) {
        let before = self.resident.clone();
        self.dirty = Arc::default();
        let policy = choice.build(frames, &self.dirty);
        self.brain.put_forward(Box::new(Checked::new(policy, frames)));
        self.choice = choice.clone();
        self.swaps.push((choice, frames));
        let number = self.swaps.len() as u32;
        let plan = self.apply(Input::Policy { number, frames });
        let gone: BTreeSet<Place> = plan.evict.iter().map(|victim| victim.place).collect();
        assert_eq!(gone.len(), plan.evict.len(), "nobody leaves twice");
        assert!(plan.fetch.is_empty() && plan.unmap.is_empty());
        if before.len() <= self.limit() as usize {
            assert!(gone.is_empty(), "there was room for all");
        }
    }

    fn apply_one(&mut self, input: Input) -> Plan {
        let (code, a, b) = input.encode();
        assert_eq!(Input::decode(code, a, b), Some(input));
        self.inputs.push((code, a, b));
        let around: BTreeSet<Page> = self.brain.beside.iter(&self.brain.around.pages).collect();
        let fits = self.brain.resident <= self.brain.limit();
        let plan = self.brain.apply(input).clone();
        if fits && !self.brain.around.pages.is_empty() {
            let is_around = |victim: &Victim| around.contains(&victim.page);
            assert!(plan.evict.iter().all(is_around), "{input:?}: what is read around goes first");
        }
        for victim in &plan.evict {
            assert_eq!(self.brain.place(victim.page), victim.place);
            let was = self.resident.remove(&victim.place);
            assert!(was, "{input:?}: the victim {victim:?} is not resident");
            self.leaving.push(victim.place);
        }
        for run in &plan.clean {
            for i in 0..u64::from(run.pages) {
                let place = Place { index: run.place.index + i, ..run.place };
                assert!(!self.brain.is_dirty(place), "written along, so clean");
            }
        }
        for run in &plan.map {
            for i in 0..u64::from(run.pages) {
                let place = Place { index: run.place.index + i, ..run.place };
                // A small window may have to let go of what was mapped along.
                let mapped = self.brain.is_mapped(place)
                    || self.brain.page(place).is_some_and(|page| plan.unmap.contains(&page));
                assert!(self.resident.contains(&place) && mapped);
            }
        }
        let mut busy = Vec::new();
        let leaves = |place: Place| plan.evict.iter().any(|victim| victim.place == place);
        for run in &plan.fetch {
            assert!(run.pages > 0 && run.demanded <= run.pages, "{run:?}");
            for i in 0..u64::from(run.pages) {
                let place = Place { index: run.place.index + i, ..run.place };
                assert!(place.index < self.pages[place.segment.0 as usize], "inside the segment");
                assert!(self.resident.insert(place), "{input:?}: {place:?} was resident");
                assert!(!leaves(place), "{input:?}: {place:?} leaves and is fetched at once");
                if self.leaving.contains(&place) {
                    busy.push(place);
                }
            }
        }
        for page in &plan.unmap {
            let place = self.brain.place(*page);
            assert!(self.resident.contains(&place) && !self.brain.is_mapped(place));
        }
        self.brain.check();
        if self.choice.wishful {
            let dirty =
                |at: &usize| self.brain.flags[*at] & (DIRTY | IN_POLICY) == DIRTY | IN_POLICY;
            let pages: BTreeSet<Page> =
                (0..self.brain.flags.len()).filter(dirty).map(|at| Page(at as u32)).collect();
            assert_eq!(*self.dirty.lock().unwrap(), pages, "{input:?}");
        }
        assert_eq!(self.brain.resident_pages() as usize, self.resident.len());
        let counts = self.brain.counts();
        if let Some(share) = self.share {
            self.watched |= self.brain.watches_pages;
            let mut most = u64::from(unmapped_per_eviction(share)) * counts.evictions;
            if self.watched {
                most += counts.evictions * 2 * u64::from(share.percent()) / 100;
            }
            let none = share == SamplingShare::NONE;
            assert!(counts.unmapped_pages <= if none { 0 } else { most });
        }
        // As the engine does: what is still on its way out cannot be fetched.
        for place in busy {
            self.resident.remove(&place);
            self.apply_one(Input::Failed { place });
        }
        if matches!(
            input,
            Input::Major { .. }
                | Input::Overwrite { .. }
                | Input::Frames { .. }
                | Input::Reserved { .. }
        ) {
            self.spared = 0;
        }
        let most = self.limit().max(self.brain.stuck.len() + 1) + self.spared as u32;
        assert!(self.brain.resident_pages() <= most, "{input:?}: over the limit of {most}");
        plan
    }

    fn forget(&mut self, segment: u32, first: u64, end: u64) {
        let gone = |p: &Place| p.segment.0 == segment && (first..end).contains(&p.index);
        self.resident.retain(|p| !gone(p));
        self.leaving.retain(|p| !gone(p));
    }

    fn nth_resident(&self, nth: usize) -> Option<Place> {
        self.resident.iter().nth(nth % self.resident.len().max(1)).copied()
    }

    fn play(&mut self, event: &Event) {
        match *event {
            Event::Touch { segment, index, run, write, map, want } => {
                for index in index..(index + run).min(self.pages[segment as usize]) {
                    let place = Place { segment: Segment(segment), index };
                    self.reference(place, write, map, want);
                }
            }
            Event::Settle { nth, how } => {
                if self.leaving.is_empty() {
                    return;
                }
                let place = self.leaving.swap_remove(nth % self.leaving.len());
                if how > 1 {
                    self.resident.insert(place);
                    self.spared += usize::from(how > 2);
                    self.apply(match how {
                        2 => Input::Kept { place },
                        _ => Input::Spared { place, dirty: nth % 2 == 0 },
                    });
                }
            }
            Event::Fail { nth } => {
                if let Some(place) = self.nth_resident(nth) {
                    self.resident.remove(&place);
                    self.apply(Input::Failed { place });
                }
            }
            Event::Cleaned { nth } => {
                if let Some(place) = self.nth_resident(nth) {
                    self.apply(Input::Cleaned { place });
                    assert!(!self.brain.is_dirty(place));
                }
            }
            Event::Released { nth } => {
                if let Some(place) = self.nth_resident(nth) {
                    self.apply(Input::Released { place });
                }
            }
            Event::Drop { segment, first, pages } => {
                self.forget(segment, first, first + pages);
                self.apply(Input::Drop { segment: Segment(segment), first, pages });
            }
            Event::Shrink { segment, pages } => {
                self.forget(segment, pages, u64::MAX);
                let first = pages;
                self.apply(Input::Drop { segment: Segment(segment), first, pages: u64::MAX });
                self.pages[segment as usize] = pages;
                self.apply(Input::Segment { segment: Segment(segment), pages });
            }
            Event::Reopen { segment } => {
                self.forget(segment, 0, u64::MAX);
                self.apply(Input::Close { segment: Segment(segment) });
                self.pages[segment as usize] = PAGES;
                self.apply(Input::Segment { segment: Segment(segment), pages: PAGES });
            }
            Event::Frames { frames } => {
                self.frames = frames;
                self.apply(Input::Frames { frames });
            }
            Event::Reserved { frames } => {
                self.reserved = frames;
                self.apply(Input::Reserved { frames });
            }
            Event::Swap { pick, wishful } => {
                let frames = self.limit();
                self.swap(Choice::pick(pick, wishful), frames);
            }
            Event::Ahead { segment, first, pages } => {
                self.apply(Input::Ahead { segment: Segment(segment), first, pages });
            }
        }
    }

    fn reference(&mut self, place: Place, write: bool, map: bool, want: u32) {
        if self.leaving.contains(&place) {
            return;
        }
        if !self.resident.contains(&place) {
            // Only explicit reads want several pages at once.
            let want = if map { 1 } else { want };
            let whole = write && want > 1;
            let plan = self.apply(match whole {
                true => Input::Overwrite { place, pages: want },
                false => Input::Major { place, want, write, map },
            });
            assert!(!whole || self.choice.wishful || self.brain.is_dirty(place));
            let first = plan.fetch.first().expect("a fetch");
            assert!(first.place == place && first.demanded >= 1);
            assert!(self.brain.is_resident(place), "also after the wishes");
            // A wish may have been for just this page.
            assert!(self.choice.wishful || self.brain.is_mapped(place) == map);
            for run in plan.fetch {
                let ahead = self.brain.stored_ahead(run);
                self.apply(Input::Writable { place: ahead.place, pages: ahead.pages });
            }
        } else if !map || !self.brain.is_mapped(place) {
            self.apply(Input::Touch { place, write, map });
        } else if write && !self.brain.is_dirty(place) {
            self.apply(Input::Write { place });
            let pages = self.brain.stored_next(place, |next| !self.leaving.contains(&next));
            let next = Place { index: place.index + 1, ..place };
            self.apply(Input::Writable { place: next, pages });
        }
    }
}

fn share() -> impl Strategy<Value = SamplingShare> {
    (0..=100u32).prop_map(|percent| SamplingShare::of_percent(percent).unwrap())
}

fn sampling() -> impl Strategy<Value = Sampling> {
    prop_oneof![
        share().prop_map(Sampling::within),
        // None may also be said so.
        Just(Sampling::OnEviction { share: SamplingShare::NONE }),
        (1..40u32).prop_map(|mapped_pages| Sampling::Window { mapped_pages }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn no_page_is_lost_and_the_limit_holds(
        events in prop::collection::vec(event(), 0..120),
        frames in prop_oneof![0..12u32, 0..200u32],
        sampling in sampling(),
        map_ahead in any::<bool>(),
        pick in 0..64usize,
        wishful in any::<bool>(),
    ) {
        let choice = Choice::pick(pick, wishful);
        let mut model = Model::new(choice.clone(), frames, sampling, map_ahead);
        for event in &events {
            model.play(event);
        }
        for segment in 0..SEGMENTS {
            model.forget(segment, 0, u64::MAX);
            model.apply(Input::Drop { segment: Segment(segment), first: 0, pages: u64::MAX });
        }
        prop_assert_eq!(model.brain.resident_pages(), 0);
        prop_assert_eq!(model.brain.policy.resident(), 0);
        prop_assert_eq!(model.brain.pending.len() + model.brain.stuck.len(), 0);
        prop_assert_eq!(model.brain.around.pages.len(), 0);

        // A replay of what was recorded decides the same.
        let config = Config { frames, sampling, window_pages_max: 64, map_ahead };
        let mut replay = Brain::new(choice.build(frames, &Arc::default()), config);
        for &(code, a, b) in &model.inputs {
            let input = Input::decode(code, a, b).unwrap();
            if let Input::Policy { number, frames } = input {
                let (choice, built_for) = &model.swaps[number as usize - 1];
                prop_assert_eq!(*built_for, frames);
                replay.put_forward(choice.build(frames, &Arc::default()));
            }
            replay.apply(input);
        }
        prop_assert_eq!(replay.digest(), model.brain.digest());
        prop_assert_eq!(replay.counts(), model.brain.counts());
    }

    #[test]
    fn what_is_not_an_input_is_refused_and_what_is_one_survives(code: u8, a: u64, b: u64) {
        if let Some(input) = Input::decode(code, a, b) {
            let (code, a, b) = input.encode();
            prop_assert_eq!(Input::decode(code, a, b), Some(input));
        }
    }
}
