//! Policies of several queues with memories of what left, and of structure in the references, each
//! against a slow, obvious model of it.
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pagekeeper_policy::policies::acfc::{Acfc, Hints};
use pagekeeper_policy::policies::arc::Arc;
use pagekeeper_policy::policies::car::Car;
use pagekeeper_policy::policies::eelru::{Eelru, Shape};
use pagekeeper_policy::policies::mq::Mq;
use pagekeeper_policy::policies::seq::{Limits, Seq};
use pagekeeper_policy::policies::slru::Slru;
use pagekeeper_policy::policies::two_q::TwoQ;
use pagekeeper_policy::{Admission, Checked, Fraction, Page, Place, Policy, Segment};
use proptest::prelude::*;

use crate::model;
use model::{Event, Model, compare, config, drop_page, events};

/// Makes `page` the last to be forgotten, if it is remembered.
fn spare(remembered: &mut VecDeque<u32>, page: Option<u32>) -> bool {
    let Some(page) = page.filter(|page| drop_page(remembered, *page)) else { return false };
    remembered.push_back(page);
    true
}

/// The paper's full version, line by line.
struct TwoQModel {
    frames: usize,
    a1in: VecDeque<u32>,
    a1out: VecDeque<u32>,
    am: VecDeque<u32>,
    /// Prefetched while remembered.
    again: BTreeSet<u32>,
}

impl TwoQModel {
    fn kin(&self) -> usize {
        self.frames / 4
    }
    fn kout(&self) -> usize {
        self.frames / 2
    }
    fn forget(&mut self, extra: usize) {
        while self.a1out.len() > self.kout() + extra {
            self.a1out.pop_front();
        }
    }
}

impl Model for TwoQModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        match (drop_page(&mut self.a1out, page), how) {
            (true, Admission::Demand) => self.am.push_back(page),
            (remembered, _) => {
                self.a1in.push_back(page);
                if remembered {
                    self.again.insert(page);
                }
            }
        }
        self.forget(0);
    }
    fn referenced(&mut self, page: u32) {
        if drop_page(&mut self.am, page) || self.again.remove(&page) {
            drop_page(&mut self.a1in, page);
            self.am.push_back(page);
        }
    }
    fn removed(&mut self, page: u32) {
        self.again.remove(&page);
        let _ = drop_page(&mut self.am, page) || drop_page(&mut self.a1in, page);
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        if self.a1in.len() > self.kin() || self.am.is_empty() {
            let page = self.a1in.pop_front()?;
            self.again.remove(&page);
            let coming = spare(&mut self.a1out, incoming);
            self.a1out.push_back(page);
            self.forget(usize::from(coming));
            Some(page)
        } else {
            self.am.pop_front()
        }
    }
    fn resized(&mut self, frames: u32) {
        self.frames = frames as usize;
        self.forget(0);
    }
    fn resident(&self) -> Vec<u32> {
        self.a1in.iter().chain(&self.am).copied().collect()
    }
}

/// Figure 4 of ARC's paper, ghosts cut after admissions.
#[derive(Default)]
struct ArcModel {
    c: usize,
    p: f64,
    t1: VecDeque<u32>,
    t2: VecDeque<u32>,
    b1: VecDeque<u32>,
    b2: VecDeque<u32>,
    /// Prefetched, not yet used; and whether it was remembered.
    ahead: BTreeMap<u32, bool>,
    adapted_for: Option<u32>,
}

impl ArcModel {
    fn adapt(&mut self, page: u32) {
        if self.adapted_for == Some(page) {
            return;
        }
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if self.b1.contains(&page) {
            let delta = if b1 >= b2 { 1.0 } else { b2 / b1 };
            self.p = (self.p + delta).min(self.c as f64);
        } else if self.b2.contains(&page) {
            let delta = if b2 >= b1 { 1.0 } else { b1 / b2 };
            self.p = (self.p - delta).max(0.0);
        } else {
            return;
        }
        self.adapted_for = Some(page);
    }
    fn cut(&mut self) {
        while self.t1.len() + self.b1.len() > self.c && self.b1.pop_front().is_some() {}
        while self.t1.len() + self.t2.len() + self.b1.len() + self.b2.len() > 2 * self.c {
            if self.b2.pop_front().is_none() && self.b1.pop_front().is_none() {
                break;
            }
        }
    }
}

impl Model for ArcModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        if how == Admission::Demand {
            self.adapt(page);
        }
        self.adapted_for = None;
        let remembered = drop_page(&mut self.b1, page) || drop_page(&mut self.b2, page);
        if how == Admission::Prefetch {
            self.ahead.insert(page, remembered);
        }
        let list = if remembered && how == Admission::Demand { &mut self.t2 } else { &mut self.t1 };
        list.push_back(page);
        self.cut();
    }
    fn referenced(&mut self, page: u32) {
        let first_use = self.ahead.remove(&page) == Some(false);
        let _ = drop_page(&mut self.t1, page) || drop_page(&mut self.t2, page);
        if first_use { &mut self.t1 } else { &mut self.t2 }.push_back(page);
    }
    fn removed(&mut self, page: u32) {
        self.ahead.remove(&page);
        let _ = drop_page(&mut self.t1, page) || drop_page(&mut self.t2, page);
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        incoming.inspect(|page| self.adapt(*page));
        let in_b2 = incoming.is_some_and(|page| self.b2.contains(&page));
        let t1 = self.t1.len() as f64;
        let page = if t1 >= 1.0 && (in_b2 && t1 == self.p || t1 > self.p) || self.t2.is_empty() {
            let page = self.t1.pop_front()?;
            self.b1.push_back(page);
            page
        } else {
            let page = self.t2.pop_front()?;
            self.b2.push_back(page);
            page
        };
        self.ahead.remove(&page);
        Some(page)
    }
    fn resized(&mut self, frames: u32) {
        self.c = frames as usize;
        self.p = self.p.min(self.c as f64);
        self.cut();
    }
    fn resident(&self) -> Vec<u32> {
        self.t1.iter().chain(&self.t2).copied().collect()
    }
}

/// CAR's Figure 2, with ARC's lists.
#[derive(Default)]
struct CarModel {
    lists: ArcModel,
    bits: BTreeSet<u32>,
}

impl Model for CarModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        self.bits.remove(&page);
        self.lists.ahead.remove(&page);
        let remembered = self.lists.b1.contains(&page) || self.lists.b2.contains(&page);
        self.lists.admitted(page, how);
        if remembered {
            // No use is missing: its next one sets the bit.
            self.lists.ahead.remove(&page);
        }
    }
    fn referenced(&mut self, page: u32) {
        if self.lists.ahead.remove(&page).is_none() {
            self.bits.insert(page);
        }
    }
    fn removed(&mut self, page: u32) {
        self.lists.removed(page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        let lists = &mut self.lists;
        loop {
            if lists.t1.len() as f64 >= lists.p.max(1.0) || lists.t2.is_empty() {
                let page = lists.t1.pop_front()?;
                if !self.bits.remove(&page) {
                    lists.b1.push_back(page);
                    return Some(page);
                }
                lists.t2.push_back(page);
            } else {
                let page = lists.t2.pop_front()?;
                if !self.bits.remove(&page) {
                    lists.b2.push_back(page);
                    return Some(page);
                }
                lists.t2.push_back(page);
            }
        }
    }
    fn resized(&mut self, frames: u32) {
        self.lists.resized(frames);
    }
    fn resident(&self) -> Vec<u32> {
        self.lists.resident()
    }
}

struct SlruModel {
    frames: usize,
    segments: Vec<VecDeque<u32>>,
    fills_free: bool,
    ahead: BTreeSet<u32>,
}

impl SlruModel {
    /// Three quarters are protected.
    fn above_most(&self) -> usize {
        self.frames * 3 / 4 / (self.segments.len() - 1)
    }
    fn overflow(&mut self) {
        for segment in (1..self.segments.len()).rev() {
            while self.segments[segment].len() > self.above_most() {
                let page = self.segments[segment].pop_front().unwrap();
                self.segments[segment - 1].push_back(page);
            }
        }
    }
}

impl Model for SlruModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        let above_most = self.above_most();
        let lowest_most = self.frames - above_most * (self.segments.len() - 1);
        let mut segment = 0;
        if self.fills_free && how == Admission::Demand && self.segments[0].len() >= lowest_most {
            segment = (1..self.segments.len())
                .find(|segment| self.segments[*segment].len() < above_most)
                .unwrap_or(0);
        }
        if how == Admission::Prefetch {
            self.ahead.insert(page);
        }
        self.segments[segment].push_back(page);
    }
    fn referenced(&mut self, page: u32) {
        let segment = self.segments.iter_mut().position(|queue| drop_page(queue, page)).unwrap();
        let up = usize::from(!self.ahead.remove(&page));
        let segment = (segment + up).min(self.segments.len() - 1);
        self.segments[segment].push_back(page);
        self.overflow();
    }
    fn removed(&mut self, page: u32) {
        self.ahead.remove(&page);
        self.segments.iter_mut().for_each(|queue| _ = drop_page(queue, page));
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        let page = self.segments.iter_mut().find_map(VecDeque::pop_front)?;
        self.ahead.remove(&page);
        Some(page)
    }
    fn resized(&mut self, frames: u32) {
        self.frames = frames as usize;
        self.overflow();
    }
    fn resident(&self) -> Vec<u32> {
        self.segments.iter().flatten().copied().collect()
    }
}

#[derive(Default)]
struct MqModel {
    queues: Vec<VecDeque<u32>>,
    out: VecDeque<u32>,
    out_most: usize,
    now: u32,
    life: u32,
    /// Counts of distances by class, while the lifetime is learned.
    classes: Option<Vec<(u32, u32)>>,
    count: BTreeMap<u32, u32>,
    last: BTreeMap<u32, u32>,
    expires: BTreeMap<u32, u32>,
}

impl MqModel {
    fn new(frames: u32, queues: usize, life: u32) -> Self {
        Self {
            queues: vec![VecDeque::new(); queues],
            out_most: 2 * frames as usize,
            life: if life == 0 { frames } else { life },
            classes: (life == 0).then(Vec::new),
            ..Self::default()
        }
    }
    fn forget(&mut self, extra: usize) {
        while self.out.len() > self.out_most + extra {
            let page = self.out.pop_front().unwrap();
            self.count.remove(&page);
            self.last.remove(&page);
        }
    }
    fn reference(&mut self, page: u32) {
        *self.count.entry(page).or_default() += 1;
        let Some(last) = self.last.insert(page, self.now) else { return };
        let Some(classes) = &mut self.classes else { return };
        // Class k has the distances from 2^k up to 2^(k+1) - 1; the first to reach the highest
        // count is the peak.
        let class = (0..31).find(|class| (self.now - last).max(1) >> class == 1).unwrap();
        match classes.iter_mut().find(|(known, _)| *known == class) {
            Some((_, count)) => *count += 1,
            None => classes.push((class, 1)),
        }
        let peak = classes[0].1;
        let place = classes.iter().position(|(known, _)| *known == class).unwrap();
        if classes[place].1 > peak {
            classes.swap(0, place);
        }
        self.life = (2 << classes[0].0) - 1;
    }
    fn enter(&mut self, page: u32) {
        let count = self.count.get(&page).copied().unwrap_or(0);
        let mut queue = 0;
        while count >> (queue + 1) > 0 && queue + 1 < self.queues.len() {
            queue += 1;
        }
        self.queues[queue].push_back(page);
        self.expires.insert(page, self.now + self.life);
    }
    fn adjust(&mut self) {
        self.now += 1;
        for queue in 1..self.queues.len() {
            let Some(page) = self.queues[queue].front().copied() else { continue };
            if self.expires[&page] < self.now {
                self.queues[queue].pop_front();
                self.queues[queue - 1].push_back(page);
                self.expires.insert(page, self.now + self.life);
            }
        }
    }
}

impl Model for MqModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        drop_page(&mut self.out, page);
        if how == Admission::Demand {
            self.reference(page);
        }
        self.enter(page);
        if how == Admission::Demand {
            self.adjust();
        }
        self.forget(0);
    }
    fn referenced(&mut self, page: u32) {
        self.queues.iter_mut().for_each(|queue| _ = drop_page(queue, page));
        self.reference(page);
        self.enter(page);
        self.adjust();
    }
    fn removed(&mut self, page: u32) {
        self.queues.iter_mut().for_each(|queue| _ = drop_page(queue, page));
        self.count.remove(&page);
        self.last.remove(&page);
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        let page = self.queues.iter_mut().find_map(VecDeque::pop_front)?;
        let coming = spare(&mut self.out, incoming);
        self.out.push_back(page);
        self.forget(usize::from(coming));
        Some(page)
    }
    fn resized(&mut self, frames: u32) {
        self.out_most = 2 * frames as usize;
        self.forget(0);
    }
    fn resident(&self) -> Vec<u32> {
        self.queues.iter().flatten().copied().collect()
    }
}

/// A sequence of faults, lowest and highest page, its direction (0 while it has one page), and the
/// times of its faults.
#[derive(Clone)]
struct Run {
    low: i64,
    high: i64,
    direction: i64,
    times: Vec<u32>,
}

impl Run {
    fn head(&self) -> i64 {
        if self.direction < 0 { self.low } else { self.high }
    }
    fn length(&self) -> i64 {
        self.high - self.low + 1
    }
    fn nth_last(&self, n: usize) -> u32 {
        if self.times.len() < n { 0 } else { self.times[self.times.len() - n] }
    }
}

struct SeqModel {
    l: i64,
    n: usize,
    m: i64,
    runs_most: usize,
    order: VecDeque<u32>,
    runs: Vec<Run>,
    now: u32,
}

impl SeqModel {
    fn fault(&mut self, page: i64) {
        self.now += 1;
        let covers = |run: &Run| (run.low..=run.high).contains(&page);
        let latest = self
            .runs
            .iter()
            .filter(|run| {
                run.high + 1 == page && run.direction >= 0
                    || run.low - 1 == page && run.direction <= 0
            })
            .max_by_key(|run| run.nth_last(1))
            .cloned();
        let latest = if let Some(mut run) = latest {
            self.runs.retain(|other| other.low != run.low && !covers(other));
            run.direction = if page > run.high { 1 } else { -1 };
            (run.low, run.high) = (run.low.min(page), run.high.max(page));
            run
        } else {
            for run in self.runs.iter_mut().filter(|run| covers(run)) {
                match run.direction {
                    1 => run.high = page - 1,
                    -1 => run.low = page + 1,
                    _ => (run.low, run.high) = (0, -1),
                }
            }
            self.runs.retain(|run| run.low <= run.high);
            if self.runs.len() == self.runs_most {
                let worth = |run: &Run| {
                    let doublings = (0..).find(|d| run.length() <= self.l << d).unwrap();
                    (doublings, run.nth_last(1))
                };
                let worst = (0..self.runs.len()).min_by_key(|run| worth(&self.runs[*run]));
                self.runs.remove(worst.unwrap());
            }
            Run { low: page, high: page, direction: 0, times: Vec::new() }
        };
        self.runs.push(latest);
        self.runs.last_mut().unwrap().times.push(self.now);
    }
}

impl Model for SeqModel {
    fn admitted(&mut self, page: u32, _: Admission) {
        self.order.push_back(page);
        self.fault(page.into());
    }
    fn referenced(&mut self, page: u32) {
        drop_page(&mut self.order, page);
        self.order.push_back(page);
    }
    fn removed(&mut self, page: u32) {
        drop_page(&mut self.order, page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        let victim_of = |run: &Run| {
            (run.low..=run.high)
                .filter(|page| (run.head() - page).abs() >= self.m)
                .filter(|page| self.order.contains(&(*page as u32)))
                .min_by_key(|page| (run.head() - page).abs())
        };
        let sequential = self
            .runs
            .iter()
            .filter(|run| run.length() >= self.l && victim_of(run).is_some())
            .max_by_key(|run| run.nth_last(self.n))
            .and_then(victim_of);
        let page = sequential.map(|page| page as u32).or(self.order.front().copied())?;
        drop_page(&mut self.order, page);
        Some(page)
    }
    fn resident(&self) -> Vec<u32> {
        self.order.iter().copied().collect()
    }
}

/// The recency axis as one list, the most recent page first, and the weight of every relevant
/// reference with its region.
struct EelruModel {
    frames: u64,
    points: u64,
    /// Page and whether it is resident; nothing where a page was removed.
    axis: Vec<Option<(u32, bool)>>,
    references: Vec<(f64, usize)>,
    weight: f64,
}

impl EelruModel {
    /// A fifth of memory to two and a half of it.
    fn point(&self, region: u64) -> usize {
        let (first, last) = (self.frames / 5, self.frames * 5 / 2);
        let point = if region <= self.points {
            first + (self.frames - first) * region / self.points
        } else {
            self.frames + (last - self.frames) * (region - self.points) / self.points
        };
        point as usize
    }
    fn region_of(&self, place: usize) -> u64 {
        (0..=2 * self.points).find(|r| place < self.point(*r)).unwrap_or(2 * self.points + 1)
    }
    fn place_of(&self, page: u32) -> Option<usize> {
        self.axis.iter().position(|entry| entry.is_some_and(|(other, _)| other == page))
    }
    fn touch(&mut self, page: u32, counts: bool) {
        let place = self.place_of(page);
        let region = place.map(|place| self.region_of(place) as usize);
        if counts && region != Some(0) {
            self.weight *= 1.0 / (1.0 - 1.0 / (5.0 / 6.0 * self.frames as f64).max(2.0));
            self.references.extend(region.map(|region| (self.weight, region)));
        }
        if let Some(place) = place {
            self.axis[place] = None;
        }
        self.axis.insert(0, Some((page, true)));
        if let Some(hole) = self.axis.iter().position(Option::is_none) {
            self.axis.remove(hole);
        }
        self.cut();
    }
    fn cut(&mut self) {
        let last = self.point(2 * self.points);
        let mut place = 0;
        self.axis.retain(|entry| {
            place += 1;
            place <= last || entry.is_some_and(|(_, is_resident)| is_resident)
        });
    }
}

impl Model for EelruModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        self.touch(page, how == Admission::Demand);
    }
    fn referenced(&mut self, page: u32) {
        self.touch(page, true);
    }
    fn removed(&mut self, page: u32) {
        let place = self.place_of(page).unwrap();
        self.axis[place] = None;
        self.cut();
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        let is_resident = |entry: &Option<(u32, bool)>| entry.is_some_and(|(_, here)| here);
        let oldest = self.axis.iter().rposition(is_resident)?;
        let hits = |region: u64| -> f64 {
            let of_region = self.references.iter().filter(|(_, of)| *of == region as usize);
            of_region.map(|(weight, _)| weight).sum()
        };
        let memory = self.frames as f64;
        let mut best = (0.0, 0, 0);
        for early in 0..self.points {
            let early_hits: f64 = (early + 1..=self.points).map(hits).sum();
            for late in self.points + 1..=2 * self.points {
                let mut total = early_hits;
                (self.points + 1..=late).for_each(|region| total += hits(region));
                let (e, l) = (self.point(early) as f64, self.point(late) as f64);
                let benefit = total * ((memory - e) / (l - e)) - early_hits;
                if benefit > best.0 {
                    best = (benefit, early, late);
                }
            }
        }
        let (benefit, early, late) = best;
        let (e, l) = (self.point(early), self.point(late));
        let comes_from_late = incoming.and_then(|page| self.place_of(page)).is_none_or(|p| p >= l);
        let late_is_full = self.axis.len() >= l
            && self.axis[self.point(late.saturating_sub(1))..l].iter().all(Option::is_some);
        let place = if benefit <= 0.0
            || oldest >= l
            || oldest + 1 == l && late_is_full && comes_from_late
        {
            oldest
        } else {
            (e..self.axis.len()).find(|place| is_resident(&self.axis[*place])).unwrap_or(oldest)
        };
        let (page, _) = self.axis[place].unwrap();
        self.axis[place] = Some((page, false));
        self.cut();
        Some(page)
    }
    fn resized(&mut self, frames: u32) {
        self.frames = frames.into();
        self.axis.retain(Option::is_some);
        self.cut();
    }
    fn resident(&self) -> Vec<u32> {
        self.axis.iter().flatten().filter(|(_, here)| *here).map(|(page, _)| *page).collect()
    }
}

/// Tells a policy that ten pages each are a segment, where the harness says that all are of one.
struct InTens<P>(P);

impl<P: Policy> Policy for InTens<P> {
    fn wants_places(&self) -> bool {
        self.0.wants_places()
    }
    fn placed(&mut self, page: Page, place: Place) {
        let segment = Segment(page.0 / 10);
        self.0.placed(page, Place { segment, ..place });
    }
    fn admitted(&mut self, page: Page, how: Admission) {
        self.0.admitted(page, how);
    }
    fn referenced(&mut self, page: Page) {
        self.0.referenced(page);
    }
    fn removed(&mut self, page: Page) {
        self.0.removed(page);
    }
    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        self.0.victim(incoming)
    }
    fn resized(&mut self, frames: u32) {
        self.0.resized(frames);
    }
    fn resident(&self) -> u32 {
        self.0.resident()
    }
}

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

/// Random calls with runs of neighbours among them.
fn events_in_runs() -> impl Strategy<Value = Vec<Event>> {
    let run = (0..30_u32, 2..10_u32, any::<bool>()).prop_map(|(from, length, up)| {
        let touch = |step| Event::Touch(if up { from + step } else { (from + 10) - step } % 30);
        (0..length).map(touch).collect::<Vec<_>>()
    });
    prop::collection::vec(
        prop_oneof![run, events().prop_map(|e| e.into_iter().take(6).collect())],
        0..40,
    )
    .prop_map(|runs| runs.concat())
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

    #[test]
    fn eelru(events in events_in_runs(), frames in 1..20_u32, points in 1..4_usize) {
        let model = EelruModel {
            frames: frames.into(),
            points: points as u64,
            axis: Vec::new(),
            references: Vec::new(),
            weight: 1.0,
        };
        let shape = Shape {
            points,
            early: Fraction::new(1, 5),
            late: Fraction::new(5, 2),
            fade: Fraction::new(5, 6),
        };
        compare(Eelru::new(frames, shape), model, frames, &events);
    }

    #[test]
    fn seq(
        events in events_in_runs(),
        frames in 1..20_u32,
        l in 1..6_i64,
        n in 1..3_usize,
        m in 0..4_i64,
        runs_most in 1..6_usize,
    ) {
        // So that every sequence that is long enough has had as many faults: no ties.
        let n = n.min(l as usize);
        let limits = Limits {
            length_least_pages: l as u64,
            faults: n,
            distance_least_pages: m as u64,
            sequences_most: runs_most,
        };
        let model = SeqModel { l, n, m, runs_most, order: VecDeque::new(), runs: vec![], now: 0 };
        compare(Seq::new(limits), model, frames, &events);
    }

    #[test]
    fn two_q(events in events(), frames in 1..20_u32) {
        let model = TwoQModel {
            frames: frames as usize,
            a1in: VecDeque::new(),
            a1out: VecDeque::new(),
            am: VecDeque::new(),
            again: BTreeSet::new(),
        };
        let policy = TwoQ::new(frames, Fraction::new(1, 4), Fraction::new(1, 2));
        compare(policy, model, frames, &events);
    }

    #[test]
    fn arc(events in events(), frames in 1..20_u32) {
        let model = ArcModel { c: frames as usize, ..ArcModel::default() };
        compare(Arc::new(frames), model, frames, &events);
    }

    #[test]
    fn car(events in events(), frames in 1..20_u32) {
        let lists = ArcModel { c: frames as usize, ..ArcModel::default() };
        compare(Car::new(frames), CarModel { lists, bits: BTreeSet::new() }, frames, &events);
    }

    #[test]
    fn slru(events in events(), frames in 1..20_u32, segments in 2..5_usize, fills_free: bool) {
        let model = SlruModel {
            frames: frames as usize,
            segments: vec![VecDeque::new(); segments],
            fills_free,
            ahead: BTreeSet::new(),
        };
        let policy = Slru::new(frames, segments, Fraction::new(3, 4), fills_free);
        compare(policy, model, frames, &events);
    }

    #[test]
    fn mq(events in events(), frames in 1..20_u32, queues in 1..5_usize, life in 0..40_u32) {
        let model = MqModel::new(frames, queues, life);
        compare(Mq::new(frames, queues, life, Fraction::new(2, 1)), model, frames, &events);
    }
}

/// What SEQ is for, with the authors' parameters: of a loop over 1000 pages in 500 frames, LRU keeps
/// nothing, and SEQ almost what the loop's start left.
#[test]
fn seq_keeps_most_of_a_loop() {
    let limits =
        Limits { length_least_pages: 20, faults: 5, distance_least_pages: 20, sequences_most: 200 };
    let mut policy = Checked::new(Seq::new(limits), 500);
    let mut faults = 0;
    for index in (0..10_000_u32).map(|step| step % 1000) {
        let page = Page(index);
        if policy.is_resident(page) {
            policy.referenced(page);
            continue;
        }
        faults += 1;
        policy.placed(page, Place { segment: Segment(3), index: index.into() });
        if policy.resident() == 500 {
            policy.victim(Some(page));
        }
        policy.admitted(page, Admission::Demand);
    }
    // Of each round at least 500 must fault.
    assert!((1000 + 9 * 500..1000 + 9 * 600).contains(&faults), "{faults}");
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
