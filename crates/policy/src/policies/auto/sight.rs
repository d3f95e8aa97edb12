//! How much of the sample can be seen, and what may have been used unseen.
use crate::Page;
use crate::flat::Flat;

/// Not in memory.
const AWAY: u8 = 0;
/// Mapped: a touch is not seen.
const HIDDEN: u8 = 1;
/// Unmapped: the next touch is seen.
const SHOWN: u8 = 2;

/// Epochs in as many references as a shadow cache has frames.
const EPOCHS_PER_FRAMES: u32 = 32;
/// Epochs that are remembered.
const EPOCHS: usize = 256;

/// Of each epoch, how many pages something is so of.
#[derive(Clone, Debug)]
struct Counts(Vec<u32>);

impl Default for Counts {
    fn default() -> Self {
        Self(vec![0; EPOCHS])
    }
}

impl Counts {
    fn of(&self, epoch: u32) -> u32 {
        self.0[epoch as usize % EPOCHS]
    }

    fn of_mut(&mut self, epoch: u32) -> &mut u32 {
        &mut self.0[epoch as usize % EPOCHS]
    }
}

/// Which sampled pages in memory are mapped, so that their touches are not seen; and when others were
/// used at last. 9 bytes per sampled page.
#[derive(Clone, Debug, Default)]
pub(super) struct Sight {
    states: Flat<u8>,
    /// The epoch of a page's last use that was seen, or of its coming; and the one since which it cannot
    /// have been used unseen. 0 is before all of them.
    known: Flat<[u32; 2]>,
    now: u32,
    /// References in this epoch, and in each.
    references: u32,
    epoch_refs: u32,
    /// Pages in each state; of [`AWAY`] it means nothing.
    pages: [u32; 3],
    /// Pages by the epoch of their last use that was seen.
    seen: Counts,
    /// Pages that are not hidden, by the epoch since which nothing of theirs was; and those of them that
    /// are shown.
    quiet: Counts,
    shown: Counts,
    /// Pages that were shown when an epoch ended.
    shown_then: Counts,
}

impl Sight {
    /// Nothing is known yet, of shadow caches of so many frames.
    pub(super) fn of(frames: u32) -> Self {
        let mut sight = Self::default();
        sight.resized(frames);
        sight
    }

    /// Shadow caches have so many frames from now on.
    pub(super) fn resized(&mut self, frames: u32) {
        self.epoch_refs = (frames / EPOCHS_PER_FRAMES).max(1);
    }

    /// The page came, or was touched: it is mapped from then on.
    #[inline]
    pub(super) fn used(&mut self, number: Page) {
        if self.references == 0 {
            self.begin_epoch();
        }
        self.references = (self.references + 1) % self.epoch_refs;
        self.put(number, HIDDEN);
        self.see(number);
    }

    /// The page came ahead of need, and is mapped.
    pub(super) fn came(&mut self, number: Page) {
        if self.states.get(number.index()) == AWAY {
            self.see(number);
        }
        self.put(number, HIDDEN);
    }

    /// The page is in memory, and was perhaps before it was in the sample: mapped, if nothing is known.
    pub(super) fn met(&mut self, number: Page) {
        if self.states.get(number.index()) == AWAY {
            self.put(number, HIDDEN);
        }
    }

    /// The page is in memory, and its touches are not seen from now on.
    pub(super) fn mapped(&mut self, number: Page) {
        self.put(number, HIDDEN);
    }

    /// Its next touch will be seen.
    pub(super) fn unmapped(&mut self, number: Page) {
        self.put(number, SHOWN);
    }

    /// The page left memory.
    pub(super) fn left(&mut self, number: Page) {
        self.put(number, AWAY);
    }

    /// The page is in the sample no longer, or is another.
    pub(super) fn forget(&mut self, number: Page) {
        self.put(number, AWAY);
        let [seen, quiet] = std::mem::take(self.known.slot(number.index()));
        Self::uncount(&mut self.seen, self.now, seen);
        Self::uncount(&mut self.quiet, self.now, quiet);
    }

    /// The part of the sampled pages in memory whose touches are not seen, in percent.
    pub(super) fn hidden_percent(&self) -> u8 {
        let [_, hidden, shown] = self.pages.map(u64::from);
        (100 * hidden).checked_div(hidden + shown).unwrap_or(0) as u8
    }

    /// How many sampled pages were used since this one was, probably: those that were seen to be, and of
    /// those that may have been the part that was of the ones that would have been seen. `None` if that is
    /// too long ago.
    ///
    /// Pages that are used as rarely as this one are counted.
    pub(super) fn used_since(&self, number: Page) -> Option<u32> {
        let [last, _] = self.known.get(number.index());
        if last == 0 || (self.now - last) as usize >= EPOCHS - 1 {
            return None;
        }
        let sum = |counts: &Counts| (last..=self.now).map(|epoch| counts.of(epoch)).sum::<u32>();
        let seen = sum(&self.seen);
        let [_, hidden, shown] = self.pages;
        let maybe = (hidden + sum(&self.quiet)).saturating_sub(seen);
        let untouched = u64::from(shown.saturating_sub(sum(&self.shown)));
        let shown_then = u64::from(self.shown_then.of(last - 1)).max(untouched);
        let unused = (u64::from(maybe) * untouched).checked_div(shown_then).unwrap_or(0);
        Some(seen + maybe - unused as u32)
    }

    #[inline]
    fn begin_epoch(&mut self) {
        *self.shown_then.of_mut(self.now) = self.pages[usize::from(SHOWN)];
        self.now += 1;
        for counts in [&mut self.seen, &mut self.quiet, &mut self.shown] {
            *counts.of_mut(self.now) = 0;
        }
    }

    fn uncount(counts: &mut Counts, now: u32, epoch: u32) {
        if epoch != 0 && ((now - epoch) as usize) < EPOCHS {
            *counts.of_mut(epoch) -= 1;
        }
    }

    #[inline]
    fn see(&mut self, number: Page) {
        let now = self.now;
        let [seen, _] = self.known.slot(number.index());
        Self::uncount(&mut self.seen, now, std::mem::replace(seen, now));
        if now != 0 {
            *self.seen.of_mut(now) += 1;
        }
    }

    #[inline]
    fn put(&mut self, number: Page, state: u8) {
        let old = std::mem::replace(self.states.slot(number.index()), state);
        if old == state {
            return;
        }
        self.pages[usize::from(old)] = self.pages[usize::from(old)].wrapping_sub(1);
        self.pages[usize::from(state)] = self.pages[usize::from(state)].wrapping_add(1);
        let now = self.now;
        let [_, quiet] = self.known.slot(number.index());
        if old == SHOWN {
            Self::uncount(&mut self.shown, now, *quiet);
        }
        match (old, state) {
            (HIDDEN, _) => {
                *quiet = now;
                if now != 0 {
                    *self.quiet.of_mut(now) += 1;
                }
            }
            (_, HIDDEN) => Self::uncount(&mut self.quiet, now, std::mem::take(quiet)),
            _ => {}
        }
        if state == SHOWN && *quiet != 0 && ((now - *quiet) as usize) < EPOCHS {
            *self.shown.of_mut(*quiet) += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_in_memory_are_hidden_until_they_are_unmapped() {
        let mut sight = Sight::of(4);
        assert_eq!(sight.hidden_percent(), 0);
        (0..4).for_each(|number| sight.used(Page(number)));
        assert_eq!(sight.hidden_percent(), 100);
        (0..3).for_each(|number| sight.unmapped(Page(number)));
        assert_eq!(sight.hidden_percent(), 25);
        sight.left(Page(3));
        sight.left(Page(7));
        assert_eq!(sight.hidden_percent(), 0);
        sight.used(Page(0));
        sight.came(Page(0));
        assert_eq!(sight.hidden_percent(), 33);
        sight.met(Page(1));
        sight.met(Page(9));
        assert_eq!(sight.hidden_percent(), 50);
    }

    /// All that is seen: distances are stack distances, to an epoch's pages.
    #[test]
    fn what_is_seen_is_counted_once_for_each_page() {
        let mut sight = Sight::of(3_200);
        for page in (0..1_000).chain(500..1_000) {
            sight.used(Page(page));
            sight.unmapped(Page(page));
        }
        let near = |number, pages: u32| {
            let used = sight.used_since(Page(number)).unwrap();
            assert!(used.abs_diff(pages) <= 100, "{number}: {used}, {pages}");
        };
        near(0, 1_000);
        near(400, 600);
        near(600, 400);
        near(999, 0);
        assert_eq!(sight.used_since(Page(1_000)), None);
    }

    /// A loop of which a half is hidden: as much of it was used as of what was shown.
    #[test]
    fn what_is_hidden_counts_as_what_is_shown_was_used() {
        for touched in [true, false] {
            let mut sight = Sight::of(3_200);
            // An old half of the memory, and then newer pages that come and leave.
            (0..1_000).for_each(|page| sight.used(Page(page)));
            (0..500).for_each(|page| sight.unmapped(Page(page)));
            let newer = |sight: &mut Sight| {
                for page in 1_000..1_400 {
                    sight.used(Page(page));
                    sight.left(Page(page));
                }
            };
            newer(&mut sight);
            if touched {
                (0..500).for_each(|page| sight.used(Page(page)));
            }
            let used = sight.used_since(Page(1_000)).unwrap();
            let expected = if touched { 1_400 } else { 400 };
            assert!(used.abs_diff(expected) <= 100, "{used}, {expected}");
        }
    }

    #[test]
    fn what_is_forgotten_counts_no_longer_and_old_uses_are_not_remembered() {
        let mut sight = Sight::of(32);
        (0..64).for_each(|page| sight.used(Page(page)));
        (1..64).for_each(|page| sight.forget(Page(page)));
        assert!(sight.used_since(Page(0)).unwrap() <= 1);
        sight.left(Page(0));
        (0..400).for_each(|step| sight.used(Page(100 + step % 2)));
        assert_eq!(sight.used_since(Page(0)), None);
        assert!(sight.used_since(Page(100)).unwrap() <= 2);
        sight.used(Page(0));
        assert!(sight.used_since(Page(0)).is_some());
    }
}
