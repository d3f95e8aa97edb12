//! Adaptive read-ahead: which pages to fetch along with a fault.
//!
//! Sequential streams are recognised per segment by where the next fault falls. A stream's window
//! grows fourfold from [`FIRST_WINDOW_PAGES`] with each fault that continues it, as far as runs of
//! this file have gone on so far ([`Odds`]); a *marker* page inside each window is left unmapped,
//! so that its first touch is seen and starts another window while the program still works on this
//! one (as Linux's `PG_readahead` does, `mm/readahead.c`). A fault that continues
//! nothing fetches one page, where runs of several pages are not the rule: random access pays for
//! no read-around.
//!
//! A stream may fall, too: a C library copies large blocks from their ends where that is faster
//! (glibc's `memmove` where source and destination differ by about a multiple of 4 KiB). Windows
//! of such a one lie before the page that faulted, and have no markers: each costs a fault.

use crate::odds::{Bet, Odds};
use std::collections::VecDeque;

/// The first window of a stream, in pages.
pub const FIRST_WINDOW_PAGES: u32 = 4;
/// Streams remembered per segment; the least recently continued is given up first.
pub const STREAMS_PER_SEGMENT: usize = 8;
/// A stream that came so far has two windows ahead of the program: while one is on its way from
/// storage, the other is being put into frames.
const LONG_PAGES: u64 = 256;
/// Beyond the usual, a window is at most this share of what its stream has read.
const COME_PER_WINDOW: u64 = 64;
/// Resident pages that a stream comes over, unseen, between two faults.
const GAP_PAGES_MAX: u64 = 16;

/// The end of a stream that falls.
const NOWHERE: u64 = u64::MAX;

/// How large a window may be, in pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowLimits {
    /// Of any stream.
    pub(crate) usual: u32,
    /// Of a stream that has come far: what it read is not much used, or memory is large.
    pub(crate) most: u32,
}

impl WindowLimits {
    /// One for all.
    pub(crate) fn fixed(pages: u32) -> WindowLimits {
        WindowLimits { usual: pages, most: pages }
    }

    /// The largest window of a stream that has come so far.
    fn of(self, come_pages: u64) -> u32 {
        let grown = u32::try_from(come_pages / COME_PER_WINDOW).unwrap_or(u32::MAX);
        self.usual.max(grown.min(self.most)).max(1)
    }
}

/// One sequential stream.
#[derive(Default, Debug)]
pub(crate) struct Stream {
    /// The page after the last one fetched; [`NOWHERE`] if it falls.
    pub(crate) next: u64,
    /// The page before the first one fetched, where it may go on falling.
    pub(crate) before: Option<u64>,
    /// Pages fetched by the last step.
    pub(crate) window: u32,
    /// The page with which it began.
    pub(crate) begin: u64,
    /// Pages from here to where the stream began are taken for passed by it: a scan over resident
    /// pages is not seen, until it comes to absent ones.
    pub(crate) passed: u64,
    /// Unmapped pages of the newest windows, in file order: the touch of one starts another window.
    pub(crate) markers: VecDeque<u64>,
    /// When it was last continued, on the brain's clock of steps.
    step: u64,
    /// That it goes on into its newest window.
    bet: Option<Bet>,
    /// Its last fault was a store, or a touch since then was.
    pub(crate) stores: bool,
    /// Pages fetched ahead and not known to be used, in file order.
    pub(crate) pending: VecDeque<u64>,
}

impl Stream {
    /// Another one, in the place of one that is settled.
    fn begin_at(&mut self, index: u64) {
        self.next = index;
        self.before = index.checked_sub(1);
        self.window = 0;
        self.begin = index;
        self.passed = index;
        self.markers.clear();
    }

    /// How far it has come, at this page.
    fn come_pages(&self, index: u64) -> u64 {
        index.abs_diff(self.begin)
    }

    /// Whether its pages come in falling order.
    pub(crate) fn falls(&self) -> bool {
        self.next == NOWHERE
    }

    /// It fell to this page, the first of a window.
    pub(crate) fn fell_to(&mut self, first: u64) {
        self.next = NOWHERE;
        self.before = first.checked_sub(1);
    }

    /// The program asked for so many pages at a time: the next window is no smaller.
    pub(crate) fn asked_for(&mut self, pages: u32) {
        self.window = self.window.max(pages);
    }

    /// Whether enough windows are on their way for a program that is at this page.
    pub(crate) fn is_ahead_of(&self, index: u64) -> bool {
        let windows = if self.come_pages(index) >= LONG_PAGES { 2 } else { 1 };
        self.markers.len() >= windows
    }
}

/// The streams of one segment.
#[derive(Default, Debug)]
pub(crate) struct Streams {
    /// Least recently continued first. Boxed, since they change places with every fault.
    #[allow(clippy::vec_box)]
    list: Vec<Box<Stream>>,
    /// None where windows grow whatever became of others.
    odds: Option<Odds>,
}

/// What to fetch behind a page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The window from the page on that faulted: what is absent of it is to be fetched.
    pub(crate) pages: u32,
    /// Pages of an abandoned stream that nobody was seen to use.
    pub(crate) abandoned: VecDeque<u64>,
    /// Pages that the stream, which falls, has come over: the window lies before the page.
    pub(crate) fallen: Option<VecDeque<u64>>,
}

impl Streams {
    /// Streams whose windows are as large as those before them were good for.
    pub(crate) fn learning() -> Streams {
        Streams { odds: Some(Odds::default()), ..Streams::default() }
    }

    /// A fault on an absent page. The stream it belongs to is the last one afterwards. It goes on
    /// over a few pages that `passes` says were no fault.
    pub(crate) fn fault(
        &mut self,
        index: u64,
        limits: WindowLimits,
        now: u64,
        passes: impl Fn(u64) -> bool,
    ) -> Step {
        let mut abandoned = VecDeque::new();
        if let Some(step) = self.fall(index, limits, now) {
            return step;
        }
        let gap = |s: &Stream| index.checked_sub(s.next).filter(|gap| *gap <= GAP_PAGES_MAX);
        let nearest = (0..self.list.len())
            .filter_map(|at| Some((gap(&self.list[at])?, at)))
            .min()
            .filter(|(gap, _)| (index - gap..index).all(passes));
        let stream = match nearest.map(|(_, at)| at) {
            Some(at) => {
                let mut stream = self.list.remove(at);
                self.settle(&mut stream, true);
                // It came past all of them.
                stream.markers.clear();
                stream
            }
            None => {
                let mut stream = if self.list.len() == STREAMS_PER_SEGMENT {
                    let mut dead = self.list.remove(0);
                    self.settle(&mut dead, false);
                    abandoned = std::mem::take(&mut dead.pending);
                    dead
                } else {
                    Box::default()
                };
                stream.begin_at(index);
                stream
            }
        };
        let come = stream.come_pages(index);
        let grown = self.grown(&stream).min(limits.of(come));
        // The page itself in any case.
        let pages = self.step(stream, come, grown, now).max(1);
        // Only from its first page can one fall.
        let stream = self.last();
        stream.before = stream.before.filter(|_| stream.begin == index && pages == 1);
        Step { pages, abandoned, fallen: None }
    }

    /// A fault on the page before the first that a stream fetched: it falls.
    fn fall(&mut self, index: u64, limits: WindowLimits, now: u64) -> Option<Step> {
        // Where windows are not learned, pages are mapped and not fetched.
        self.odds.as_ref()?;
        let at = self.list.iter().position(|s| s.before == Some(index))?;
        let mut stream = self.list.remove(at);
        let has_fallen = stream.falls();
        self.settle(&mut stream, has_fallen);
        let fallen = std::mem::take(&mut stream.pending);
        let come = stream.come_pages(index);
        let grown = self.grown(&stream).min(limits.of(come));
        stream.fell_to(index);
        let pages = self.step(stream, come, grown, now).max(1);
        Some(Step { pages, abandoned: VecDeque::new(), fallen: Some(fallen) })
    }

    /// The next window of a stream that a fault continues, as far as it may be so large.
    fn grown(&self, stream: &Stream) -> u32 {
        match stream.window {
            0 if self.odds.is_none() => 1,
            0..FIRST_WINDOW_PAGES => FIRST_WINDOW_PAGES,
            window => window.saturating_mul(4),
        }
    }

    /// Chooses the next window of a stream that has come so many pages.
    fn step(&mut self, mut stream: Box<Stream>, come: u64, grown: u32, now: u64) -> u32 {
        let (pages, bet) = match &mut self.odds {
            Some(odds) => odds.window(come, grown),
            None => (grown, None),
        };
        stream.window = pages.max(1);
        stream.bet = bet;
        stream.step = now;
        self.list.push(stream);
        pages
    }

    fn settle(&mut self, stream: &mut Stream, is_won: bool) {
        let bet = stream.bet.take();
        if let Some(odds) = &mut self.odds {
            odds.settle(bet, is_won);
        }
    }

    /// The stream that the last step was taken for.
    pub(crate) fn last(&mut self) -> &mut Stream {
        self.list.last_mut().expect("a step was taken")
    }

    /// If `index` is one of a stream's markers: makes that stream the last one and returns the pages
    /// of its next window, from its `next` on, which may be none.
    pub(crate) fn marker(&mut self, index: u64, limits: WindowLimits, now: u64) -> Option<u32> {
        let at = self.list.iter().position(|s| s.markers.contains(&index))?;
        let mut stream = self.list.remove(at);
        while stream.markers.front().is_some_and(|marker| *marker <= index) {
            stream.markers.pop_front();
        }
        self.settle(&mut stream, true);
        let most = limits.of(stream.come_pages(index));
        let grown = stream.window.saturating_mul(4).clamp(1, most);
        let come = stream.come_pages(stream.next);
        Some(self.step(stream, come, grown, now))
    }

    /// Takes one page out of whichever stream's pending list holds it.
    pub(crate) fn used(&mut self, index: u64) {
        for stream in &mut self.list {
            if let Ok(at) = stream.pending.binary_search(&index) {
                stream.pending.remove(at);
                return;
            }
        }
    }

    /// Whether the stream that fetched this page ahead is one of stores.
    pub(crate) fn stores(&self, index: u64) -> bool {
        self.list.iter().any(|s| s.stores && s.pending.binary_search(&index).is_ok())
    }

    /// When the stream that fetched this page ahead was last continued.
    pub(crate) fn last_step(&self, index: u64) -> Option<u64> {
        self.list.iter().find(|s| s.pending.binary_search(&index).is_ok()).map(|s| s.step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_fourfold_to_the_limit_and_random_faults_get_one_page() {
        let mut streams = Streams::default();
        let mut next = 10;
        let mut seen = Vec::new();
        for _ in 0..5 {
            let step = streams.fault(next, WindowLimits::fixed(64), 0, |_| false);
            seen.push(step.pages);
            next += u64::from(step.pages);
            streams.last().next = next;
        }
        assert_eq!(seen, [1, 4, 16, 64, 64]);
        for i in 0..20 {
            let step = streams.fault(1000 + i * 7, WindowLimits::fixed(64), 0, |_| false);
            assert_eq!(step.pages, 1);
            streams.last().next = 1001 + i * 7;
        }
    }
}
