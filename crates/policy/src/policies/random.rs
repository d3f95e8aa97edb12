//! Random replacement.
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::flat::Flat;
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

/// What the registry says about RANDOM.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "random",
    aliases: &["rand"],
    summary: "evicts any page, each with the same chance",
    helps: "no pattern can defeat it: loops larger than memory still hit; a fair baseline",
    hurts: "hot pages leave as likely as cold ones",
    source: Source {
        title: "L. A. Belady: A Study of Replacement Algorithms for a Virtual-Storage Computer, \
                IBM Systems Journal 5(2), 1966",
        section: "RAND",
    },
    cost: "nothing per reference; O(1) per admission and eviction",
    bytes_per_page: 8,
    parameters: &[],
    runs: Runs::Anywhere(|_, _, seed| Box::new(Random::new(seed))),
};

/// Random replacement, from a named generator (xoshiro256++), so that a seed means the same
/// victims in every version.
#[derive(Clone, Debug)]
pub struct Random {
    generator: Xoshiro256PlusPlus,
    resident: Vec<Page>,
    /// Where a page is in `resident`, plus one; zero where it is not.
    place: Flat<u32>,
}

impl Random {
    /// No pages, and a generator started from `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            generator: Xoshiro256PlusPlus::seed_from_u64(seed),
            resident: Vec::new(),
            place: Flat::new(),
        }
    }

    /// A number below `bound`, by multiply and shift: its bias is below 2⁻³² for any number of
    /// pages.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.generator.next_u64()) * bound as u128) >> 64) as usize
    }

    fn take(&mut self, place: usize) -> Page {
        let page = self.resident.swap_remove(place);
        if let Some(moved) = self.resident.get(place) {
            *self.place.at(moved.index()) = place as u32 + 1;
        }
        *self.place.at(page.index()) = 0;
        page
    }
}

impl Policy for Random {
    fn wants_references(&self) -> bool {
        false
    }

    fn admitted(&mut self, page: Page, _how: Admission) {
        let place = self.place.slot(page.index());
        assert!(*place == 0, "page {} is resident in this policy already", page.0);
        self.resident.push(page);
        *place = self.resident.len() as u32;
    }

    #[inline]
    fn referenced(&mut self, _page: Page) {}

    fn removed(&mut self, page: Page) {
        let place = self.place.get(page.index());
        assert!(place != 0, "page {} is not resident in this policy", page.0);
        self.take(place as usize - 1);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        if self.resident.is_empty() {
            return None;
        }
        let place = self.below(self.resident.len());
        Some(self.take(place))
    }

    fn resized(&mut self, _frames: u32) {}

    fn resident(&self) -> u32 {
        self.resident.len() as u32
    }
}
