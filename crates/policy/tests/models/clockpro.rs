//! CLOCK-Pro by its paper's Figure 2.
use pagekeeper_policy::Admission;
use proptest::prelude::*;

use super::{Model, build, compare, config, events};

/// A page in CLOCK-Pro's circle.
#[derive(Clone, Copy)]
struct ProPage {
    page: u32,
    resident: bool,
    hot: bool,
    test: bool,
    referenced: bool,
}

/// The paper's Figure 2: the circle from the hot hand on, and the pages that the other two hands
/// are at (none: where the hot hand is).
struct ClockProModel {
    circle: Vec<ProPage>,
    cold_hand: Option<u32>,
    test_hand: Option<u32>,
    cold_target: usize,
    frames: usize,
}

impl ClockProModel {
    fn new(frames: u32) -> Self {
        let frames = frames as usize;
        let cold_target = (frames / 4).max(1);
        Self { circle: Vec::new(), cold_hand: None, test_hand: None, cold_target, frames }
    }

    fn place(&self, page: u32) -> Option<usize> {
        self.circle.iter().position(|entry| entry.page == page)
    }

    fn number(&self, test: impl Fn(&ProPage) -> bool) -> usize {
        self.circle.iter().filter(|entry| test(entry)).count()
    }

    fn after(&self, place: usize) -> Option<u32> {
        self.circle.get(place + 1).map(|entry| entry.page)
    }

    fn remove(&mut self, place: usize) -> ProPage {
        let next = self.after(place);
        let gone = self.circle[place].page;
        for hand in [&mut self.cold_hand, &mut self.test_hand] {
            if *hand == Some(gone) {
                *hand = next;
            }
        }
        self.circle.remove(place)
    }

    fn end_test(&mut self, place: usize, coming: Option<u32>) -> bool {
        let entry = &mut self.circle[place];
        if !entry.test || Some(entry.page) == coming {
            return false;
        }
        if !entry.referenced {
            entry.test = false;
            self.cold_target = 1.max(self.cold_target - 1);
        }
        let departed = !entry.resident;
        if departed {
            self.remove(place);
        }
        departed
    }

    fn run_hot(&mut self, most: usize, coming: Option<u32>) {
        while self.number(|entry| entry.hot) > most {
            if self.circle[0].hot {
                if self.circle[0].referenced {
                    self.circle[0].referenced = false;
                } else {
                    self.circle[0].hot = false;
                }
            } else if self.end_test(0, coming) {
                continue;
            }
            self.circle.rotate_left(1);
        }
    }

    fn run_test(&mut self, coming: Option<u32>) {
        let most = self.frames + usize::from(coming.is_some());
        while self.number(|entry| !entry.resident) > most {
            let place = self.test_hand.map_or(0, |page| self.place(page).unwrap());
            self.test_hand = self.after(place).or(Some(self.circle[0].page));
            self.end_test(place, coming);
        }
    }
}

impl Model for ClockProModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        let is_demand = how == Admission::Demand;
        if let Some(place) = self.place(page) {
            if !is_demand {
                self.circle[place].resident = true;
                return;
            }
            self.remove(place);
            self.cold_target = self.frames.min(self.cold_target + 1);
            let (resident, hot, test, referenced) = (true, true, false, false);
            self.circle.push(ProPage { page, resident, hot, test, referenced });
            self.run_hot(self.frames - self.cold_target, None);
        } else {
            let hot_most = self.frames - self.cold_target;
            let hot = is_demand && self.resident().len() < hot_most;
            let (resident, test, referenced) = (true, is_demand && !hot, false);
            self.circle.push(ProPage { page, resident, hot, test, referenced });
        }
    }
    fn referenced(&mut self, page: u32) {
        let place = self.place(page).unwrap();
        self.circle[place].referenced = true;
    }
    fn removed(&mut self, page: u32) {
        self.remove(self.place(page).unwrap());
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        let coming = incoming.filter(|page| self.place(*page).is_some());
        if self.resident().is_empty() {
            return None;
        }
        loop {
            let hot = self.number(|entry| entry.hot);
            if self.resident().len() == hot {
                self.run_hot(hot - 1, coming);
            }
            let place = self.cold_hand.map_or(0, |page| self.place(page).unwrap());
            self.cold_hand = self.after(place).or(Some(self.circle[0].page));
            let entry = self.circle[place];
            if !entry.resident || entry.hot {
                continue;
            }
            if !entry.referenced {
                if entry.test {
                    self.circle[place].resident = false;
                    self.run_test(coming);
                } else {
                    self.remove(place);
                }
                return Some(entry.page);
            }
            self.remove(place);
            let (hot, test) = (entry.test, !entry.test);
            self.circle.push(ProPage { hot, test, referenced: false, ..entry });
            if hot {
                self.cold_target = self.frames.min(self.cold_target + 1);
                self.run_hot(self.frames - self.cold_target, coming);
            }
        }
    }
    fn resized(&mut self, frames: u32) {
        self.frames = frames as usize;
        self.cold_target = self.cold_target.clamp(1, self.frames);
        self.run_hot(self.frames - self.cold_target, None);
        self.run_test(None);
    }
    fn resident(&self) -> Vec<u32> {
        self.circle.iter().filter(|entry| entry.resident).map(|entry| entry.page).collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn clockpro(events in events(), frames in 1..20_u32) {
        compare(build("clockpro:cold=1/4", frames), ClockProModel::new(frames), frames, &events);
    }
}
