//! The brain against a simple model, over random inputs and every policy that runs live.
//!
//! The model plays the engine: it holds the set of resident pages, carries plans out, and answers
//! late and in odd orders (a victim that cannot leave, a page that cannot be fetched).

use crate::brain::{Brain, IN_POLICY, MAPPED, PENDING, RESIDENT, STUCK};
use crate::{Config, Input, MIN_FRAMES, Place, Plan, Sampling, Segment};
use pagekeeper_policy::{Checked, PolicySpec, all};
use proptest::prelude::*;
use std::collections::BTreeSet;

impl Brain {
    /// Every resident page is in exactly one place, and all counts agree.
    fn check(&self) {
        let count = |bits: u8| self.flags.iter().filter(|f| **f & bits == bits).count() as u32;
        assert_eq!(count(RESIDENT), self.resident);
        assert_eq!(count(MAPPED), self.mapped.len());
        assert_eq!(count(IN_POLICY), self.policy.resident());
        assert_eq!(count(PENDING), self.pending.len());
        assert_eq!(count(STUCK), self.stuck.len());
        let newcomers: BTreeSet<_> = self.beside.iter(&self.newcomers).collect();
        for (at, flags) in self.flags.iter().enumerate() {
            let newcomer = newcomers.contains(&pagekeeper_policy::Page(at as u32));
            let homes = (flags & (IN_POLICY | PENDING | STUCK)).count_ones() + u32::from(newcomer);
            assert_eq!(homes, u32::from(flags & RESIDENT != 0), "page {at}: flags {flags:#x}");
            if flags & RESIDENT == 0 {
                assert_eq!(flags & !crate::brain::EVICTED_ONCE, 0, "page {at} left something");
            }
        }
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
        1 => (segment, 0..PAGES, 0..100u32)
            .prop_map(|(segment, first, pages)| Event::Ahead { segment, first, pages }),
    ]
}

struct Model {
    brain: Brain,
    resident: BTreeSet<Place>,
    leaving: Vec<Place>,
    pages: [u64; SEGMENTS as usize],
    frames: u32,
    reserved: u32,
    /// Victims spared since room was last made.
    spared: usize,
    inputs: Vec<(u8, u64, u64)>,
    per_eviction: Option<u32>,
}

impl Model {
    fn new(policy: &str, frames: u32, sampling: Sampling, map_ahead: bool) -> Model {
        let config = Config { frames, sampling, window_pages_max: 64, map_ahead };
        let policy = PolicySpec::parse(policy).unwrap().build(frames, 1).unwrap();
        let mut model = Model {
            brain: Brain::new(Box::new(Checked::new(policy, frames)), config),
            resident: BTreeSet::new(),
            leaving: Vec::new(),
            pages: [PAGES; SEGMENTS as usize],
            frames,
            reserved: 0,
            spared: 0,
            inputs: Vec::new(),
            per_eviction: match sampling {
                Sampling::OnEviction { per_eviction, .. } => Some(per_eviction),
                _ => None,
            },
        };
        for segment in (0..SEGMENTS).map(Segment) {
            model.apply(Input::Segment { segment, pages: PAGES });
        }
        model
    }

    fn limit(&self) -> u32 {
        self.frames.max(MIN_FRAMES).saturating_sub(self.reserved).max(MIN_FRAMES)
    }

    /// Feeds the brain and carries its plan out.
    fn apply(&mut self, input: Input) -> Plan {
        let (code, a, b) = input.encode();
        assert_eq!(Input::decode(code, a, b), Some(input));
        self.inputs.push((code, a, b));
        let plan = self.brain.apply(input).clone();
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
        let mut busy = Vec::new();
        for run in &plan.fetch {
            assert!(run.pages > 0 && run.demanded <= run.pages, "{run:?}");
            for i in 0..u64::from(run.pages) {
                let place = Place { index: run.place.index + i, ..run.place };
                assert!(place.index < self.pages[place.segment.0 as usize], "inside the segment");
                assert!(self.resident.insert(place), "{input:?}: {place:?} was resident");
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
        assert_eq!(self.brain.resident_pages() as usize, self.resident.len());
        let counts = self.brain.counts();
        if let Some(per_eviction) = self.per_eviction {
            assert!(counts.unmapped_pages <= u64::from(per_eviction) * counts.evictions);
        }
        // As the engine does: what is still on its way out cannot be fetched.
        for place in busy {
            self.resident.remove(&place);
            self.apply(Input::Failed { place });
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
            assert!(!whole || self.brain.is_dirty(place));
            let first = plan.fetch.first().expect("a fetch");
            assert!(first.place == place && first.demanded >= 1);
            assert!(self.brain.is_resident(place));
            assert_eq!(self.brain.is_mapped(place), map);
        } else if !map || !self.brain.is_mapped(place) {
            self.apply(Input::Touch { place, write, map });
        } else if write && !self.brain.is_dirty(place) {
            self.apply(Input::Write { place });
        }
    }
}

fn sampling() -> impl Strategy<Value = Sampling> {
    prop_oneof![
        Just(Sampling::Off),
        (1..4u32, 10..60u32).prop_map(|(per_eviction, share_percent)| Sampling::OnEviction {
            per_eviction,
            share_percent
        }),
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
    ) {
        let live: Vec<_> = all().iter().filter(|p| p.runs_live()).collect();
        let name = live[pick % live.len()].name;
        let mut model = Model::new(name, frames, sampling, map_ahead);
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

        // A replay of what was recorded decides the same.
        let config = Config { frames, sampling, window_pages_max: 64, map_ahead };
        let policy = PolicySpec::parse(name).unwrap().build(frames, 1).unwrap();
        let mut replay = Brain::new(policy, config);
        for &(code, a, b) in &model.inputs {
            replay.apply(Input::decode(code, a, b).unwrap());
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
