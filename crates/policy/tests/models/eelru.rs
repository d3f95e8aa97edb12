//! EELRU: the recency axis, and where on it an early eviction pays.
use pagekeeper_policy::policies::eelru::{Eelru, Shape};
use pagekeeper_policy::{Admission, Fraction};
use proptest::prelude::*;

use super::{Model, compare, config, events_in_runs};

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

proptest! {
    #![proptest_config(config())]

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
}
