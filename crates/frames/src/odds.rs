//! How far runs of consecutive pages go in a file, learned from those that went before.
//!
//! A window that is fetched ahead is a bet that the run goes on into it. It is won when the page in
//! its middle (the marker) is touched, or a fault continues the run behind it, and lost when the
//! run is forgotten before that. Who reads records of four pages in any order loses every bet
//! behind the fourth page and wins the first; who scans wins all of them. So bets are kept apart by
//! how far the run has come and by how large the window is, and only those are made that were won
//! often enough, besides a trial now and then.

use crate::ahead::FIRST_WINDOW_PAGES;

/// Runs that came so far go on, whatever others did: a scan is not held up by what is read at
/// random in the same file.
const LEARNED_PAGES: u64 = 64;
/// Distances that are kept apart: 0, 1 to 3, 4 to 15, 16 to 63 pages.
const DISTANCES: usize = 4;
/// Windows that are kept apart: to 15 pages, to 63, and larger ones.
const WINDOWS: usize = 3;

/// What every bet that was won lifts the odds to, in the end.
const SURE: u32 = 248;
/// Bets are made from here on: one in five is won. A request saved is worth more than the pages of
/// a window that were fetched in vain.
const WORTHWHILE: u32 = 51;
/// Where runs begin: a fault that continues nothing is taken for random access at first, but not
/// much has to be won for another opinion.
const AT_FIRST: u32 = 40;
/// Where runs have begun: they are taken for scans at first.
const GOING_ON: u32 = 160;
/// Of so many windows one is a bet that is not worthwhile, to see whether it is by now.
const TRIAL_EVERY: u16 = 16;
/// The most of them, where one trial after another was lost.
const TRIAL_EVERY_MOST: u16 = 256;

/// A window that was fetched ahead, to be settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bet {
    distance: usize,
    window: usize,
    is_trial: bool,
}

/// What was learned of one file.
#[derive(Clone, Debug)]
pub(crate) struct Odds {
    /// By distance and window: how often bets were won lately, in 255ths.
    won: [[u32; WINDOWS]; DISTANCES],
    /// By distance: windows chosen since the last trial, and how many there are to be.
    since_trial: [u16; DISTANCES],
    trial_every: [u16; DISTANCES],
}

impl Default for Odds {
    fn default() -> Self {
        let mut won = [[GOING_ON; WINDOWS]; DISTANCES];
        won[0] = [AT_FIRST; WINDOWS];
        Odds { won, since_trial: [0; DISTANCES], trial_every: [TRIAL_EVERY; DISTANCES] }
    }
}

impl Odds {
    /// The window behind a run that came so far, at most `grown` pages; none if it had better end
    /// here.
    pub(crate) fn window(&mut self, come_pages: u64, grown: u32) -> (u32, Option<Bet>) {
        if come_pages >= LEARNED_PAGES || grown < FIRST_WINDOW_PAGES {
            return (if come_pages == 0 { 1 } else { grown }, None);
        }
        let distance = match come_pages {
            0 => 0,
            1..4 => 1,
            4..16 => 2,
            _ => 3,
        };
        let class = |pages: u32| match pages {
            0..16 => 0,
            16..64 => 1,
            _ => 2,
        };
        let since_trial = &mut self.since_trial[distance];
        *since_trial = since_trial.saturating_add(1);
        let is_due = *since_trial >= self.trial_every[distance];
        let mut pages = grown;
        while pages >= FIRST_WINDOW_PAGES {
            let window = class(pages);
            let is_trial = self.won[distance][window] < WORTHWHILE;
            if is_trial && is_due {
                *since_trial = 0;
            }
            if !is_trial || is_due {
                return (pages, Some(Bet { distance, window, is_trial }));
            }
            pages /= 4;
        }
        (0, None)
    }

    /// A bet was won or lost.
    pub(crate) fn settle(&mut self, bet: Option<Bet>, is_won: bool) {
        let Some(bet) = bet else { return };
        let won = &mut self.won[bet.distance][bet.window];
        *won = (*won * 7 + if is_won { SURE } else { 0 }) / 8;
        if bet.is_trial {
            let every = &mut self.trial_every[bet.distance];
            *every = if is_won { TRIAL_EVERY } else { (*every * 2).min(TRIAL_EVERY_MOST) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs of so many pages, one after another: pages asked for, and windows, per run at the end.
    fn runs_of(length: u64) -> (u64, u32) {
        let mut odds = Odds::default();
        let mut last = (0, 0);
        for _ in 0..400 {
            let (mut come, mut window, mut asked, mut windows) = (0, 0, 0, 0);
            while come < length {
                let grown =
                    if window < FIRST_WINDOW_PAGES { FIRST_WINDOW_PAGES } else { window * 4 };
                let (pages, bet) = odds.window(come, grown.min(64));
                // With none the page itself is fetched all the same.
                window = pages.max(1);
                asked += u64::from(window);
                windows += 1;
                come += u64::from(window);
                odds.settle(bet, come - u64::from(window / 2) < length);
            }
            last = (asked, windows);
        }
        last
    }

    #[test]
    fn runs_of_one_length_are_fetched_with_little_beside_them() {
        assert_eq!(runs_of(1), (1, 1), "random pages");
        assert_eq!(runs_of(4), (4, 1), "records of 16 KiB");
        let (asked, windows) = runs_of(16);
        assert!(asked <= 20 && windows <= 4, "{asked} pages in {windows} windows");
        let (asked, windows) = runs_of(1000);
        assert!(asked <= 1064 && windows <= 19, "{asked} pages in {windows} windows");
    }

    #[test]
    fn a_trial_now_and_then_finds_out_that_things_have_changed() {
        let mut odds = Odds::default();
        let mut trials = 0;
        for _ in 0..4096 {
            let (pages, bet) = odds.window(0, FIRST_WINDOW_PAGES);
            trials += u32::from(pages > 1);
            odds.settle(bet, false);
        }
        assert!((16..=24).contains(&trials), "{trials} trials: less and less of them");
        let mut refused = 0;
        while odds.won[0][0] < WORTHWHILE {
            let (_, bet) = odds.window(0, FIRST_WINDOW_PAGES);
            refused += u32::from(bet.is_none());
            odds.settle(bet, true);
        }
        assert!(refused <= 300, "{refused}");
    }
}
