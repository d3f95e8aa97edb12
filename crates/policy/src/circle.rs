//! The resident pages in the order of their numbers, and a hand that goes round them.
//!
//! What a scan through an address space is on page numbers: numbers stand for addresses, since
//! those of neighbouring pages are given out together.
//!
//! ```text
//! level 0   one bit per page number: whether the page is in
//! level n   one bit per word of level n - 1: whether any of its bits is set
//! ```
use crate::Page;
use crate::flat::Flat;

const WORD_BITS: u32 = u64::BITS;
/// Bits of a position that say which bit of the word it is.
const SHIFT: u32 = WORD_BITS.trailing_zeros();
/// Enough for every `u32`, whatever is set.
const LEVELS: usize = u32::BITS.div_ceil(SHIFT) as usize;

/// An ordered set of pages with a hand: two bits per page number at most, O(1) per operation
/// (at most [`LEVELS`] words are looked at).
#[derive(Clone, Debug, Default)]
pub(crate) struct Circle {
    levels: [Flat<u64>; LEVELS],
    len: u32,
    /// The hand is before the page of this number.
    hand: u64,
}

impl Circle {
    /// No pages, the hand before number 0.
    pub(crate) const fn new() -> Self {
        Self { levels: [const { Flat::new() }; LEVELS], len: 0, hand: 0 }
    }

    /// Number of pages.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// Adds a page.
    ///
    /// # Panics
    /// If it is in already, or above [`Page::MAX`].
    pub(crate) fn insert(&mut self, page: Page) {
        assert!(page <= Page::MAX, "page {} is above Page::MAX", page.0);
        let mut at = page.index();
        for (level, words) in self.levels.iter_mut().enumerate() {
            let word = words.slot(at >> SHIFT);
            let bit = 1 << (at as u32 % WORD_BITS);
            assert!(
                level > 0 || *word & bit == 0,
                "page {} is resident in this policy already",
                page.0
            );
            let was_empty = *word == 0;
            *word |= bit;
            if !was_empty {
                break;
            }
            at >>= SHIFT;
        }
        self.len += 1;
    }

    /// Takes a page out; the hand stays where it is.
    ///
    /// # Panics
    /// If it is not in.
    pub(crate) fn remove(&mut self, page: Page) {
        let mut at = page.index();
        let bit = self.levels[0].get(at >> SHIFT) >> (at as u32 % WORD_BITS) & 1;
        assert!(bit == 1, "page {} is not resident in this policy", page.0);
        for words in &mut self.levels {
            let word = words.at(at >> SHIFT);
            *word &= !(1 << (at as u32 % WORD_BITS));
            if *word != 0 {
                break;
            }
            at >>= SHIFT;
        }
        self.len -= 1;
    }

    /// Moves the hand past the next page, and says which that was.
    #[inline]
    pub(crate) fn pass(&mut self) -> Option<Page> {
        let found = self.first_from(self.hand).or_else(|| self.first_from(0))?;
        self.hand = found + 1;
        Some(Page(found as u32))
    }

    /// The lowest number in the set that is not below `from`.
    #[inline]
    fn first_from(&self, from: u64) -> Option<u64> {
        let mut at = from;
        for level in 0..LEVELS {
            let ahead = self.word(level, at >> SHIFT) & (u64::MAX << (at % u64::from(WORD_BITS)));
            if ahead != 0 {
                let mut found = at >> SHIFT << SHIFT | u64::from(ahead.trailing_zeros());
                for below in (0..level).rev() {
                    let word = self.word(below, found);
                    found = found << SHIFT | u64::from(word.trailing_zeros());
                }
                return Some(found);
            }
            at = (at >> SHIFT) + 1;
        }
        None
    }

    #[inline]
    fn word(&self, level: usize, index: u64) -> u64 {
        self.levels[level].get(index as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against an ordered set, over numbers that share words and numbers far apart.
        #[test]
        fn the_hand_goes_round_an_ordered_set(
            steps in prop::collection::vec((0..4_u8, 0..40_u32, prop::sample::select(vec![1, 63, 5000, 100_000])), 0..300),
        ) {
            let mut circle = Circle::new();
            let mut model = BTreeSet::new();
            let mut hand = 0;
            for (operation, number, stride) in steps {
                let page = Page(number * stride);
                match operation {
                    0 | 1 if model.insert(page) => circle.insert(page),
                    2 if model.remove(&page) => circle.remove(page),
                    3 => {
                        let next = model.range(Page(hand)..).next().or(model.first()).copied();
                        prop_assert_eq!(circle.pass(), next);
                        hand = next.map_or(hand, |page| page.0 + 1);
                    }
                    _ => {}
                }
                prop_assert_eq!(circle.len() as usize, model.len());
            }
        }
    }

    #[test]
    fn the_ends_of_the_range_are_found() {
        let mut circle = Circle::new();
        // Far numbers cost address space only; the very last would ask for 512 MiB of it.
        for number in [0, 1 << 26, (1 << 26) + 1] {
            circle.insert(Page(number));
        }
        let round: Vec<_> = (0..4).map(|_| circle.pass().unwrap().0).collect();
        assert_eq!(round, [0, 1 << 26, (1 << 26) + 1, 0]);
    }

    #[test]
    #[should_panic(expected = "page 3 is resident in this policy already")]
    fn a_page_is_in_once() {
        let mut circle = Circle::new();
        circle.insert(Page(3));
        circle.insert(Page(3));
    }

    #[test]
    #[should_panic(expected = "page 3 is not resident in this policy")]
    fn a_page_is_out_once() {
        Circle::new().remove(Page(3));
    }
}
