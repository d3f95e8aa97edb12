//! LRU-SP, which programs give hints to (`acfc`); and what its placeholders are for.
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pagekeeper_policy::policies::acfc::{Acfc, Hints};
use pagekeeper_policy::{Admission, Checked, Fraction, Page, Place, Policy, Segment};
use proptest::prelude::*;

use super::{InTens, Model, compare, config, drop_page, events};

/// Level of a segment: program, priority, whether MRU.
type LevelOf = fn(u32) -> Option<(u32, i32, bool)>;

/// LRU-SP as its authors tell it, with a list for the order, one per level, and a map for the
/// placeholders.
struct AcfcModel {
    frames: usize,
    level_of: LevelOf,
    order: VecDeque<u32>,
    levels: BTreeMap<(u32, i32, bool), VecDeque<u32>>,
    ahead: BTreeMap<(u32, i32, bool), VecDeque<u32>>,
    /// Page that left → page that was kept in its stead.
    placeholders: BTreeMap<u32, u32>,
}

impl AcfcModel {
    fn used_or_gone(&mut self, page: u32) {
        self.placeholders.retain(|_, kept| *kept != page);
        self.levels.values_mut().chain(self.ahead.values_mut()).for_each(|level| {
            drop_page(level, page);
        });
        drop_page(&mut self.order, page);
    }
    fn trim_ahead(&mut self) {
        for (level, ahead) in &mut self.ahead {
            while ahead.len() > self.frames / 4 {
                let page = ahead.pop_front().unwrap();
                self.levels.entry(*level).or_default().push_back(page);
            }
        }
    }
    fn alternative(&self, (program, ..): (u32, i32, bool)) -> Option<u32> {
        // In order of the keys: lowest priority first.
        let levels: BTreeSet<_> = self.levels.keys().chain(self.ahead.keys()).collect();
        levels.into_iter().filter(|level| level.0 == program).find_map(|level| {
            let empty = VecDeque::new();
            let pages = self.levels.get(level).unwrap_or(&empty);
            let ahead = self.ahead.get(level).unwrap_or(&empty);
            if level.2 { pages.back().or_else(|| ahead.front()) } else { pages.front() }.copied()
        })
    }
}

impl Model for AcfcModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        self.placeholders.remove(&page);
        self.order.push_back(page);
        let Some(level) = (self.level_of)(page / 10) else { return };
        let waits = how == Admission::Prefetch && level.2;
        let lists = if waits { &mut self.ahead } else { &mut self.levels };
        lists.entry(level).or_default().push_back(page);
        self.trim_ahead();
    }
    fn referenced(&mut self, page: u32) {
        self.used_or_gone(page);
        self.order.push_back(page);
        if let Some(level) = (self.level_of)(page / 10) {
            self.levels.entry(level).or_default().push_back(page);
        }
    }
    fn removed(&mut self, page: u32) {
        self.used_or_gone(page);
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        let wrongly_kept = incoming.and_then(|page| self.placeholders.remove(&page));
        let candidate = wrongly_kept.or(self.order.front().copied())?;
        let alternative = (self.level_of)(candidate / 10).and_then(|level| self.alternative(level));
        let victim = alternative.unwrap_or(candidate);
        if victim != candidate {
            let place = |page| self.order.iter().position(|other| *other == page).unwrap();
            let (one, other) = (place(candidate), place(victim));
            self.order.swap(one, other);
        }
        self.used_or_gone(victim);
        if victim != candidate {
            self.placeholders.insert(victim, candidate);
        }
        Some(victim)
    }
    fn resized(&mut self, frames: u32) {
        self.frames = frames as usize;
        self.trim_ahead();
    }
    fn resident(&self) -> Vec<u32> {
        self.order.iter().copied().collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn acfc(events in events(), frames in 1..20_u32, which in 0..5_usize) {
        let cases: [(&str, LevelOf); 5] = [
            ("", |_| None),
            ("0@1+1@0:mru", |segment| match segment {
                0 => Some((0, 1, false)),
                1 => Some((0, 0, true)),
                _ => None,
            }),
            ("*@0:mru", |_| Some((0, 0, true))),
            ("1/0@3+2/1@-1:mru+2/2@-2", |segment| match segment {
                0 => Some((1, 3, false)),
                1 => Some((2, -1, true)),
                _ => Some((2, -2, false)),
            }),
            ("0-1@0:mru+*@1:mru", |segment| Some((0, i32::from(segment > 1), true))),
        ];
        let (hints, level_of) = cases[which];
        let model = AcfcModel {
            frames: frames as usize,
            level_of,
            order: VecDeque::new(),
            levels: BTreeMap::new(),
            ahead: BTreeMap::new(),
            placeholders: BTreeMap::new(),
        };
        let policy = Acfc::new(frames, Hints::parse(hints).unwrap(), Fraction::new(1, 4));
        compare(InTens(policy), model, frames, &events);
    }
}

/// Two programs in 100 frames. Segment 0 is a loop over 20 pages; segment 1 moves through 1000 pages
/// and comes back to each one soon, four times. Their faults, under hints.
fn faults_of_two_programs(hints: &str) -> [u32; 2] {
    let hints = Hints::parse(hints).unwrap();
    let mut policy = Checked::new(Acfc::new(100, hints, Fraction::new(1, 32)), 100);
    let mut faults = [0, 0];
    let mut touch = |segment: u32, index: u32| {
        let page = Page(segment * 1000 + index);
        if policy.is_resident(page) {
            return policy.referenced(page);
        }
        faults[segment as usize] += 1;
        let place = Place { segment: Segment(segment), index: index.into() };
        if policy.wants_places() {
            policy.placed(page, place);
        }
        if policy.resident() == 100 {
            policy.victim(Some(page));
        }
        policy.admitted(page, Admission::Demand);
    };
    for step in 0..940 {
        touch(0, step % 20);
        for back in [60, 45, 30, 15, 0] {
            touch(1, step + 60 - back);
        }
    }
    faults
}

/// What placeholders are for: a program whose hint is wrong has more faults by it, and its
/// neighbour, which gave none, has not.
#[test]
fn a_foolish_hint_costs_the_program_that_gave_it() {
    let [neighbour, own] = faults_of_two_programs("");
    let [neighbour_beside_fool, fool] = faults_of_two_programs("1@0:mru");
    assert_eq!((neighbour, own), (20, 1000));
    assert!(fool > 3 * own / 2, "{fool}");
    assert_eq!(neighbour_beside_fool, neighbour);
}
