//! What LRU would hold: a list of page numbers kept beside the real partitions, so that falling
//! behind LRU is noticed and ends.
use crate::Page;
use crate::flat::Flat;
use crate::list::{Links, List};

use super::settings::Settings;

/// Hits ahead of LRU that count against later ones behind it, in multiples of the most regret: a
/// loop's first walks lose, its later ones win, and a short memory would see only losses.
const CREDIT: f64 = 2.0;
/// The least regret, in hits, that starts imitation: a handful of misses is chance.
const REGRET_LEAST: u32 = 8;
/// The shortest imitation, in references; else it begins with as many as there are frames.
const IMITATE_LEAST_REFS: u32 = 64;
/// Pages of LRU's list that are looked at for a resident one, when removals emptied frames.
const LOOK_AT_MOST: usize = 64;

/// LRU over all references, as many pages as there are frames; and whether it is imitated.
#[derive(Clone, Debug)]
pub(super) struct Shadow {
    links: Links,
    order: List,
    frames: u32,
    regret_most: f64,
    regret_share: crate::Fraction,
    /// Hits that LRU is ahead lately; negative when it is behind.
    regret: f64,
    /// Resident pages that LRU would not hold, and some that are not so any more.
    outside: Vec<u32>,
    is_queued: Flat<u8>,
    /// References for which LRU is imitated from now on.
    imitate_refs: u32,
    /// How long the next time, and how long it was quiet since the last.
    next_refs: u32,
    quiet_refs: u32,
}

impl Shadow {
    pub(super) fn new(settings: &Settings, frames: u32) -> Option<Self> {
        let regret_share = settings.regret?;
        let mut shadow = Self {
            links: Links::new(),
            order: List::new(),
            frames,
            regret_most: 0.0,
            regret_share,
            regret: 0.0,
            outside: Vec::new(),
            is_queued: Flat::new(),
            imitate_refs: 0,
            next_refs: 0,
            quiet_refs: 0,
        };
        shadow.resized(frames, |_| false);
        Some(shadow)
    }

    pub(super) fn resized(&mut self, frames: u32, is_resident: impl Fn(Page) -> bool) {
        self.frames = frames;
        self.regret_most = f64::from(self.regret_share.of(frames).max(REGRET_LEAST));
        self.next_refs = frames.max(IMITATE_LEAST_REFS);
        self.sink(is_resident);
    }

    /// A page was used. `is_hit` says whether it was resident; `None` where that is no hit or miss
    /// to be counted.
    pub(super) fn reference(
        &mut self,
        page: Page,
        is_hit: Option<bool>,
        is_resident: impl Fn(Page) -> bool,
    ) -> bool {
        let would_hit = self.links.is_linked(page);
        if would_hit {
            self.links.move_to_back(&mut self.order, page);
        } else {
            self.links.push_back(&mut self.order, page);
            self.sink(is_resident);
        }
        is_hit.is_some_and(|is_hit| self.count(would_hit, is_hit))
    }

    /// Whether imitation starts.
    fn count(&mut self, would_hit: bool, is_hit: bool) -> bool {
        if self.imitate_refs > 0 {
            self.imitate_refs -= 1;
            return false;
        }
        self.regret = (self.regret + f64::from(u8::from(would_hit)) - f64::from(u8::from(is_hit)))
            .max(-CREDIT * self.regret_most);
        self.quiet_refs = self.quiet_refs.saturating_add(1);
        if self.regret <= self.regret_most {
            return false;
        }
        if self.quiet_refs > self.next_refs {
            self.next_refs = self.frames.max(IMITATE_LEAST_REFS);
        }
        self.imitate_refs = self.next_refs;
        self.next_refs = self.next_refs.saturating_mul(2);
        self.quiet_refs = 0;
        self.regret = 0.0;
        true
    }

    fn sink(&mut self, is_resident: impl Fn(Page) -> bool) {
        while self.order.len() > self.frames {
            let Some(page) = self.links.pop_front(&mut self.order) else { break };
            if is_resident(page) {
                self.stays(page);
            }
        }
    }

    /// The page is resident, and one to give up if LRU would not hold it.
    pub(super) fn stays(&mut self, page: Page) {
        if !self.links.is_linked(page) && self.is_queued.get(page.index()) == 0 {
            *self.is_queued.slot(page.index()) = 1;
            self.outside.push(page.0);
        }
    }

    /// A page is gone for good.
    pub(super) fn forget(&mut self, page: Page) {
        if self.links.is_linked(page) {
            self.links.remove(&mut self.order, page);
        }
    }

    pub(super) const fn imitates(&self) -> bool {
        self.imitate_refs > 0
    }

    /// The page that leaves while LRU is imitated: any that LRU would not hold, or else its own
    /// victim.
    pub(super) fn victim(&mut self, is_resident: impl Fn(Page) -> bool) -> Option<Page> {
        while let Some(page) = self.outside.pop().map(Page) {
            *self.is_queued.at(page.index()) = 0;
            if is_resident(page) && !self.links.is_linked(page) {
                return Some(page);
            }
        }
        self.links.iter(&self.order).take(LOOK_AT_MOST).find(|page| is_resident(*page))
    }
}
