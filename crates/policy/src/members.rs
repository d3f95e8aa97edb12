//! A set of pages to draw from at random.
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::Page;
use crate::flat::Flat;

/// A set of pages in an array, each with the same chance to be drawn: eight bytes per page, O(1)
/// per operation. The generator is a named one (xoshiro256++), so that a seed means the same draws
/// in every version.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    generator: Xoshiro256PlusPlus,
    pages: Vec<Page>,
    /// Where a page is in `pages`, plus one; zero where it is not.
    place: Flat<u32>,
}

impl Members {
    /// No pages, and a generator started from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            generator: Xoshiro256PlusPlus::seed_from_u64(seed),
            pages: Vec::new(),
            place: Flat::new(),
        }
    }

    /// The pages, in no order that means anything.
    pub(crate) fn pages(&self) -> &[Page] {
        &self.pages
    }

    /// Number of pages.
    pub(crate) fn len(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Whether the page is in.
    pub(crate) fn contains(&self, page: Page) -> bool {
        self.place.get(page.index()) != 0
    }

    /// Adds a page.
    ///
    /// # Panics
    /// If it is in already, or above [`Page::MAX`].
    pub(crate) fn insert(&mut self, page: Page) {
        assert!(page <= Page::MAX, "page {} is above Page::MAX", page.0);
        let place = self.place.slot(page.index());
        assert!(*place == 0, "page {} is resident in this policy already", page.0);
        self.pages.push(page);
        *place = self.pages.len() as u32;
    }

    /// Takes a page out.
    ///
    /// # Panics
    /// If it is not in.
    pub(crate) fn remove(&mut self, page: Page) {
        let place = self.place.get(page.index()) as usize;
        assert!(place != 0, "page {} is not resident in this policy", page.0);
        self.pages.swap_remove(place - 1);
        if let Some(moved) = self.pages.get(place - 1) {
            *self.place.at(moved.index()) = place as u32;
        }
        *self.place.at(page.index()) = 0;
    }

    /// Any page, each with the same chance; it stays in.
    #[inline]
    pub(crate) fn draw(&mut self) -> Option<Page> {
        if self.pages.is_empty() {
            return None;
        }
        let place = self.below(self.pages.len() as u64) as usize;
        Some(self.pages[place])
    }

    /// A number below `bound`, by multiply and shift: its bias is below 2⁻³² for any number of
    /// pages.
    #[inline]
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.generator.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}
