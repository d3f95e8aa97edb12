//! How much of the sample can be seen.
use crate::Page;
use crate::flat::Flat;

/// Not in memory.
const AWAY: u8 = 0;
/// Mapped: a touch is not seen.
const HIDDEN: u8 = 1;
/// Unmapped: the next touch is seen.
const SHOWN: u8 = 2;

/// Which sampled pages in memory are mapped, so that their touches are not seen. A byte per sampled page.
#[derive(Clone, Debug, Default)]
pub(super) struct Sight {
    states: Flat<u8>,
    /// Pages in each state; of [`AWAY`] it means nothing.
    pages: [u32; 3],
}

impl Sight {
    /// The page came, or was touched: it is mapped from then on.
    #[inline]
    pub(super) fn mapped(&mut self, number: Page) {
        self.put(number, HIDDEN);
    }

    /// The page is in memory, and was perhaps before it was in the sample: mapped, if nothing is known.
    pub(super) fn met(&mut self, number: Page) {
        if self.states.get(number.index()) == AWAY {
            self.put(number, HIDDEN);
        }
    }

    /// Its next touch will be seen.
    pub(super) fn unmapped(&mut self, number: Page) {
        self.put(number, SHOWN);
    }

    pub(super) fn left(&mut self, number: Page) {
        self.put(number, AWAY);
    }

    #[inline]
    fn put(&mut self, number: Page, state: u8) {
        let old = std::mem::replace(self.states.slot(number.index()), state);
        self.pages[usize::from(old)] = self.pages[usize::from(old)].wrapping_sub(1);
        self.pages[usize::from(state)] = self.pages[usize::from(state)].wrapping_add(1);
    }

    /// The part of the sampled pages in memory whose touches are not seen, in percent.
    pub(super) fn hidden_percent(&self) -> u8 {
        let [_, hidden, shown] = self.pages.map(u64::from);
        (100 * hidden).checked_div(hidden + shown).unwrap_or(0) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_in_memory_are_hidden_until_they_are_unmapped() {
        let mut sight = Sight::default();
        assert_eq!(sight.hidden_percent(), 0);
        (0..4).for_each(|number| sight.mapped(Page(number)));
        assert_eq!(sight.hidden_percent(), 100);
        (0..3).for_each(|number| sight.unmapped(Page(number)));
        assert_eq!(sight.hidden_percent(), 25);
        sight.left(Page(3));
        sight.left(Page(7));
        assert_eq!(sight.hidden_percent(), 0);
        sight.mapped(Page(0));
        sight.mapped(Page(0));
        assert_eq!(sight.hidden_percent(), 33);
        sight.met(Page(1));
        sight.met(Page(9));
        assert_eq!(sight.hidden_percent(), 50);
    }
}
