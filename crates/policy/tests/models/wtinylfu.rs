//! W-TinyLFU, with true frequencies in the sketch's stead.
use std::collections::{BTreeMap, VecDeque};

use pagekeeper_policy::Admission;
use proptest::prelude::*;

use super::{Model, build, compare, config, drop_page, events};

/// Three queues from oldest to newest, and true frequencies: for thirty pages the sketch has room
/// enough to be exact.
#[derive(Default)]
struct WTinyLfuModel {
    window: VecDeque<u32>,
    probation: VecDeque<u32>,
    protected: VecDeque<u32>,
    uses: BTreeMap<u32, u32>,
    counted: usize,
    frames: usize,
}

impl WTinyLfuModel {
    fn new(frames: u32) -> Self {
        Self { frames: frames as usize, ..Self::default() }
    }

    /// A quarter in the test, a hundredth by default.
    fn window_most(&self) -> usize {
        (self.frames / 4).max(1)
    }

    fn main_most(&self) -> usize {
        self.frames.saturating_sub(self.window_most())
    }

    fn main(&self) -> usize {
        self.probation.len() + self.protected.len()
    }

    fn count(&mut self, page: u32) {
        let uses = self.uses.entry(page).or_default();
        *uses = 15.min(*uses + 1);
        self.counted += 1;
        if self.counted >= 10 * self.frames {
            self.counted /= 2;
            self.uses.values_mut().for_each(|uses| *uses /= 2);
        }
    }

    /// The window hands on what the main part has room for; what it has no room for is compared.
    fn settle(&mut self) {
        let room = self.main_most().saturating_sub(self.main());
        let beyond = self.window.len().saturating_sub(self.window_most());
        self.probation.extend(self.window.drain(..beyond.min(room)));
        let protected_most = self.main_most() * 4 / 5;
        while self.protected.len() > protected_most {
            self.probation.extend(self.protected.pop_front());
        }
    }
}

impl Model for WTinyLfuModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        self.window.push_back(page);
        if how == Admission::Demand {
            self.count(page);
        }
        self.settle();
    }
    fn referenced(&mut self, page: u32) {
        self.count(page);
        if drop_page(&mut self.window, page) {
            self.window.push_back(page);
        } else {
            let _ = drop_page(&mut self.probation, page) || drop_page(&mut self.protected, page);
            self.protected.push_back(page);
        }
        // Not the window: a smaller one hands pages on when the next comes or is asked for.
        let window = std::mem::take(&mut self.window);
        self.settle();
        self.window = window;
    }
    fn removed(&mut self, page: u32) {
        for queue in [&mut self.window, &mut self.probation, &mut self.protected] {
            drop_page(queue, page);
        }
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        self.settle();
        let oldest = self.probation.front().or(self.protected.front()).copied();
        let newcomer = self.window.front().copied();
        let uses = |page| self.uses.get(&page).copied().unwrap_or_default();
        let is_candidate =
            self.window.len() >= self.window_most() || self.main() <= self.main_most();
        let victim = match (newcomer, oldest) {
            (Some(newcomer), Some(oldest)) if is_candidate => {
                if uses(newcomer) > uses(oldest) {
                    self.probation.extend(self.window.pop_front());
                    oldest
                } else {
                    newcomer
                }
            }
            (newcomer, oldest) => oldest.or(newcomer)?,
        };
        self.removed(victim);
        Some(victim)
    }
    fn resized(&mut self, frames: u32) {
        self.frames = frames as usize;
        let window = std::mem::take(&mut self.window);
        self.settle();
        self.window = window;
    }
    fn resident(&self) -> Vec<u32> {
        self.window.iter().chain(&self.probation).chain(&self.protected).copied().collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn wtinylfu(events in events(), frames in 1..20_u32) {
        compare(build("wtinylfu:window=1/4", frames), WTinyLfuModel::new(frames), frames, &events);
    }
}
