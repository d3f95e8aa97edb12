//! Making touches visible: mapped pages are unmapped again, so that their next touch is a fault.

use crate::brain::{Brain, IN_POLICY, MAPPED, PENDING, STUCK};
use crate::config::{MIN_FRAMES, Sampling};
use crate::share::{SamplingShare, TOUCH};
use pagekeeper_policy::Page;
use std::collections::VecDeque;

/// Most watched pages unmapped at once.
const WATCHED_BATCH_PAGES: u32 = 32;
/// Most pages unmapped at once, and at least where memory is not small: what it costs is an
/// interrupt to every processor that runs the program, more than that of the pages.
const UNMAP_BATCH_PAGES: u32 = 64;
/// Pages unmapped per page evicted, at the most, for the usual share of time or less.
const UNMAPPED_PER_EVICTION: u32 = 2;
/// Unmapped part of the memory that is aimed at, at the most, for the usual share or less; and for
/// any.
const UNMAPPED_PERCENT: u32 = 33;
const UNMAPPED_PERCENT_MAX: u32 = 90;

/// Unmapped pages that were touched or evicted, between two decisions: at full rate, and at least.
const INTEREST_PAGES: u32 = 256;
const INTEREST_PAGES_LEAST: u32 = 64;
/// Every page whose turn it is gets unmapped.
const FULL: u32 = 32;
/// Below one touch in so many unmapped pages, unmapping teaches next to nothing.
const WORTHWHILE: u32 = 20;

/// Touches that may be saved up while none are seen, per hundred frames.
const SAVED_TOUCHES_PERCENT: i64 = 12;

/// Pages unmapped per page evicted, at the most.
pub(crate) fn unmapped_per_eviction(share: SamplingShare) -> u32 {
    share.scaled(UNMAPPED_PER_EVICTION).max(UNMAPPED_PER_EVICTION)
}

/// Unmapped part of the memory that is aimed at, at the most.
fn unmapped_percent(share: SamplingShare) -> u32 {
    share.scaled(UNMAPPED_PERCENT).clamp(UNMAPPED_PERCENT, UNMAPPED_PERCENT_MAX)
}

/// How much is learned from unmapping pages: in a scan, or a loop that does not fit, hardly one is
/// touched again before it leaves, and fewer are unmapped of those whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interest {
    touched: u32,
    evicted: u32,
    /// Pages unmapped of [`FULL`] whose turn it is; never none, or a change would go unnoticed.
    rate: u32,
    phase: u32,
}

impl Default for Interest {
    fn default() -> Self {
        Interest { touched: 0, evicted: 0, rate: FULL, phase: 0 }
    }
}

impl Interest {
    /// An unmapped page was touched.
    fn touched(&mut self) {
        self.touched += 1;
        self.decide();
    }

    /// An unmapped page left.
    fn evicted(&mut self) {
        self.evicted += 1;
        self.decide();
    }

    fn decide(&mut self) {
        let seen = self.touched + self.evicted;
        if seen < (INTEREST_PAGES * self.rate / FULL).max(INTEREST_PAGES_LEAST) {
            return;
        }
        let worthwhile = self.touched * WORTHWHILE >= seen;
        self.rate = if worthwhile { (self.rate * 2).min(FULL) } else { (self.rate / 2).max(1) };
        (self.touched, self.evicted) = (0, 0);
    }

    /// A page's turn: whether it is unmapped.
    fn turn(&mut self) -> bool {
        self.phase += self.rate;
        let unmap = self.phase >= FULL;
        self.phase %= FULL;
        unmap
    }
}

/// Pages of which touches are seen now and then.
#[derive(Debug, Default)]
pub(crate) struct Sampled {
    /// What is learned from them.
    interest: Interest,
    /// Turns that evictions have paid for.
    credit: u32,
    /// Touches that evictions have paid for, in hundredths; negative if there were more.
    touches: i64,
    /// Pages that were unmapped for this, and not touched since. Watched ones, which others pay for, are
    /// not counted, or there would be no room for any where little is learned.
    unmapped: u32,
}

/// Pages of which the policy wants to see every touch.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// What is learned from them. Where nothing is, they leave untouched, and what the policy does
    /// not see of the others is little.
    interest: Interest,
    /// Those that are mapped, in the order in which they were; some are not any more, or twice.
    mapped: VecDeque<Page>,
    /// Touches that evictions have paid for, in hundredths; each is spent as a page is unmapped.
    /// (When each eviction paid for two pages, programs whose hot pages fit took up to four times as
    /// long; with one page for four evictions, loops were found a pass later.)
    touches: i64,
}

impl Brain {
    /// Whether every touch of the page is to be seen.
    pub(crate) fn is_watched(&mut self, page: Page) -> bool {
        if !self.watches_pages {
            return false;
        }
        if self.flags[page.index()] & IN_POLICY == 0 {
            self.tell_place(page);
        }
        self.policy.watches(page)
    }

    /// A page was mapped.
    pub(crate) fn watch(&mut self, page: Page) {
        if self.is_watched(page) {
            if self.watched.mapped.len() == self.limit() as usize {
                self.watched.mapped.pop_front();
            }
            self.watched.mapped.push_back(page);
        }
    }

    /// The policy watches other pages than before. Those of them that are mapped would be seen when they
    /// are mapped again, which may be never.
    pub(crate) fn watch_others(&mut self) {
        self.watched = Watched::default();
        if !self.watches_pages {
            return;
        }
        let mapped: Vec<Page> = self.mapped_links.iter(&self.mapped).collect();
        for page in mapped {
            if self.flags[page.index()] & PENDING == 0 {
                self.watch(page);
            }
        }
    }

    /// An unmapped page was touched.
    pub(crate) fn unmapped_touched(&mut self, page: Page) {
        if matches!(self.config.sampling, Sampling::OnEviction { .. }) {
            self.counts.touches_seen += 1;
        }
        if self.is_watched(page) {
            self.watched.interest.touched();
        } else {
            self.sampled.touches -= TOUCH;
            self.sampled.interest.touched();
            self.sampled.unmapped = self.sampled.unmapped.saturating_sub(1);
        }
    }

    /// An unmapped page left.
    pub(crate) fn unmapped_evicted(&mut self, page: Page) {
        if self.is_watched(page) {
            self.watched.interest.evicted();
        } else {
            self.sampled.interest.evicted();
            self.sampled.unmapped = self.sampled.unmapped.saturating_sub(1);
        }
    }

    /// Unmaps the watched pages mapped longest ago, unless they are recent, as far as evictions pay
    /// for it.
    fn unmap_watched(&mut self, share: SamplingShare) {
        let (limit, evicted) = (self.limit(), self.plan.evict.len() as u32);
        let batch = (limit / 64).clamp(1, WATCHED_BATCH_PAGES);
        let price = i64::from(batch) * TOUCH;
        let touches = &mut self.watched.touches;
        *touches = (*touches + share.touches_of(evicted)).min(share.touches_of(limit).max(price));
        while self.watched.touches >= price
            && let Some(last) = self.watched.mapped.get(batch as usize - 1)
            && self.uses_since(*last) >= self.recent_uses()
        {
            let is_their_turn = self.watched.interest.turn();
            if !is_their_turn && !self.policy.watches_closely() {
                // Another time.
                self.watched.mapped.rotate_left(batch as usize);
                self.watched.touches -= price;
                continue;
            }
            for _ in 0..batch {
                let page = self.watched.mapped.pop_front().expect("so many are there");
                if self.flags[page.index()] & (MAPPED | IN_POLICY) == MAPPED | IN_POLICY {
                    self.watched.touches -= TOUCH;
                    self.unmap(page);
                    self.counts.unmapped_pages += 1;
                    self.plan.unmap.push(page);
                }
            }
        }
    }

    pub(crate) fn unmap(&mut self, page: Page) {
        self.mapped_links.remove(&mut self.mapped, page);
        self.flags[page.index()] &= !MAPPED;
        if self.watches_pages && self.flags[page.index()] & IN_POLICY != 0 {
            self.policy.unmapped(page);
        }
    }

    /// Unmaps the pages mapped longest ago, as far as the sampling setting asks for it.
    pub(crate) fn sample(&mut self) {
        let (batch, (wanted, turns)) = match self.config.sampling {
            Sampling::Off => return,
            Sampling::OnEviction { share } => {
                let limit = self.limit();
                let evicted = self.plan.evict.len() as u32;
                if self.watches_pages {
                    self.unmap_watched(share);
                }
                if !self.policy.wants_samples() {
                    return;
                }
                let Sampled { interest: Interest { rate, .. }, credit, touches, unmapped } =
                    &mut self.sampled;
                *credit =
                    (*credit + evicted.saturating_mul(unmapped_per_eviction(share))).min(limit);
                let most = i64::from(limit) * SAVED_TOUCHES_PERCENT;
                *touches = (*touches + share.touches_of(evicted)).min(most);
                if *touches < 0 {
                    return;
                }
                let batch = (limit / 64).clamp(1, UNMAP_BATCH_PAGES);
                let batch = share.scaled(batch).clamp(1, batch);
                let at_full = (u64::from(limit) * u64::from(unmapped_percent(share)) / 100) as u32;
                let target = (u64::from(at_full) * u64::from(*rate) / u64::from(FULL)) as u32;
                // All of them may be touched: of a small share only some are not paid for yet.
                let target =
                    target.min(share.scaled(target).saturating_add((*touches / TOUCH) as u32));
                let all_unmapped = self.resident - self.mapped.len();
                *unmapped = (*unmapped).min(all_unmapped);
                // Of those whose turn it is, as many get unmapped as teach something.
                let paid = (u64::from(*credit) * u64::from(*rate)) as u32 / FULL;
                let room = at_full.saturating_sub(all_unmapped);
                let wanted = target.saturating_sub(*unmapped).min(room).min(paid);
                // Where a batch is one page, more than that, or there would never be more unmapped
                // than are evicted.
                let most = wanted.min(UNMAP_BATCH_PAGES);
                (batch, if wanted >= batch { (most, most * FULL / *rate) } else { (0, 0) })
            }
            Sampling::Window { mapped_pages } => {
                let batch = (mapped_pages / 8).clamp(1, UNMAP_BATCH_PAGES);
                let over = self.mapped.len().saturating_sub(mapped_pages.max(MIN_FRAMES));
                (batch, if over >= batch { (over, over) } else { (0, 0) })
            }
        };
        let exact = matches!(self.config.sampling, Sampling::Window { .. });
        debug_assert!(batch > 0);
        // Where little may be spent, watched pages are left to what is spent on them.
        let is_small = |share| share < SamplingShare::USUAL;
        let leaves_watched = !exact && self.config.sampling.share().is_some_and(is_small);
        let mut left = wanted;
        // Newcomers stay mapped, wherever they stand in the order: the instruction that needed
        // them may not have finished.
        let mut tries = turns + self.newcomers.len();
        while left > 0 && tries > 0 {
            tries -= 1;
            let Some(page) = self.mapped.front() else { break };
            let newcomer = self.flags[page.index()] & (IN_POLICY | STUCK | PENDING) == 0;
            if !exact && newcomer || leaves_watched && self.is_watched(page) {
                self.mapped_links.move_to_back(&mut self.mapped, page);
                continue;
            }
            if !exact {
                self.sampled.credit = self.sampled.credit.saturating_sub(1);
                if !self.sampled.interest.turn() {
                    self.mapped_links.move_to_back(&mut self.mapped, page);
                    continue;
                }
                self.sampled.unmapped += u32::from(!self.is_watched(page));
            }
            left -= 1;
            self.unmap(page);
            self.counts.unmapped_pages += 1;
            self.plan.unmap.push(page);
        }
    }
}
