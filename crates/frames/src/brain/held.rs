//! Who holds a resident page, and how it comes from one to another.
//!
//! A page is in one of four places while it is resident: a *newcomer* (one of the last demand
//! faults, which no policy may take: an instruction that touches two pages could otherwise never
//! finish), *pending* (fetched ahead, not known to be used), in the *policy*, or *stuck* (dirty and
//! impossible to write back, or being changed by somebody). Victims come from the policy; pending
//! pages, newcomers and stuck pages go only when the policy has none. But pages that were read around
//! a miss ([`crate::around`]), which are pending, too, go first.

use super::{
    AROUND, ASKED, Brain, DIRTY, IN_POLICY, MAPPED, MARKER, PENDING, RESIDENT, SPARED, STUCK,
    is_streams,
};
use crate::around::is_around;
use crate::{Place, Segment};
use pagekeeper_policy::{Admission, Page};

impl Brain {
    pub(crate) fn make_resident(&mut self, place: Place) -> Page {
        let page = self.number(place);
        debug_assert_eq!(self.flags[page.index()] & RESIDENT, 0);
        self.flags[page.index()] = RESIDENT;
        self.resident += 1;
        page
    }

    /// Newcomers that are not recent any more, and the oldest ones beyond `keep`, go to the policy.
    pub(crate) fn age_newcomers(&mut self, keep: u32) {
        while let Some(oldest) = self.newcomers.front()
            && (self.newcomers.len() > keep
                || self.newcomers.len() > 2 && self.uses_since(oldest) >= self.recent_uses())
        {
            let page = self.beside.pop_front(&mut self.newcomers).expect("not empty");
            if self.flags[page.index()] & SPARED == 0 {
                self.admit(page, Admission::Demand);
            } else {
                self.flags[page.index()] &= !SPARED;
                self.make_room_in_policy();
                self.take_in(page);
                self.policy.spared(page);
            }
        }
    }

    /// A pending page, already out of its stream's list, goes to the policy.
    pub(crate) fn admit_pending(&mut self, place: Place, how: Admission) {
        let Some(page) = self.pages.find(place) else { return };
        let flags = self.flags[page.index()];
        if flags & PENDING == 0 {
            return;
        }
        self.take_pending(page, flags);
        self.flags[page.index()] &= !(PENDING | AROUND | MARKER);
        if how == Admission::Demand {
            self.stamp(page);
        } else {
            self.flags[page.index()] |= ASKED;
        }
        self.admit(page, how);
        if self.flags[page.index()] & MAPPED != 0 {
            self.watch(page);
        }
    }

    /// If a stream fetched this page ahead: it waits for its use no longer.
    pub(crate) fn forget_in_stream(&mut self, place: Place, flags: u8) {
        if is_streams(flags) {
            self.streams[place.segment.0 as usize].used(place.index);
        }
    }

    /// Takes a pending page out of its list.
    fn take_pending(&mut self, page: Page, flags: u8) {
        let list = if is_around(flags) { &mut self.around.pages } else { &mut self.pending };
        self.beside.remove(list, page);
    }

    pub(crate) fn admit(&mut self, page: Page, how: Admission) {
        self.make_room_in_policy();
        self.take_in(page);
        self.policy.admitted(page, how);
    }

    /// Victims that stayed after all may have left too little room for another page.
    fn make_room_in_policy(&mut self) {
        while self.policy.resident() >= self.limit()
            && let Some(victim) = self.victim_unused_for(self.recent_uses(), None)
        {
            self.evict(victim);
        }
    }

    /// The page is the policy's from now on, as it is told next.
    fn take_in(&mut self, page: Page) {
        self.tell_place(page);
        if self.wants_dirty && self.flags[page.index()] & DIRTY != 0 {
            self.policy.dirtied(page);
        }
        self.flags[page.index()] |= IN_POLICY;
    }

    pub(crate) fn tell_place(&mut self, page: Page) {
        if self.wants_places {
            self.policy.placed(page, self.pages.place(page));
        }
    }

    /// The next victim: what was read around a miss, or the policy's. Recent pages that it gives up
    /// become newcomers instead.
    pub(crate) fn next_victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        self.next_around().or_else(|| self.victim_unused_for(self.recent_uses(), incoming))
    }

    /// The next victim for pages that nobody waits for: not among those that the last reference
    /// needs, which may be on their way in.
    pub(crate) fn next_victim_ahead(&mut self) -> Option<Page> {
        let by_reference = self.uses.wrapping_sub(self.uses_before).max(self.recent_uses());
        self.next_around().or_else(|| self.victim_unused_for(by_reference, None))
    }

    /// The policy's next victim among pages that were not used for so many uses.
    fn victim_unused_for(&mut self, uses: u32, incoming: Option<Page>) -> Option<Page> {
        self.fit_policy();
        incoming.inspect(|page| self.tell_place(*page));
        let mut recent = std::mem::take(&mut self.recent);
        let victim = loop {
            let Some(page) = self.policy.victim(incoming) else { break None };
            if self.uses_since(page) >= uses {
                break Some(page);
            }
            self.flags[page.index()] ^= IN_POLICY | SPARED;
            recent.push(page);
        };
        // Most likely the last to be given up is the one used longest ago, and the first to age.
        for page in recent.drain(..).rev() {
            self.beside.push_back(&mut self.newcomers, page);
        }
        self.recent = recent;
        victim
    }

    /// A victim stays resident and dirty after all, and another one must go. A neighbour that was
    /// to be written along with a victim stays dirty.
    pub(super) fn kept(&mut self, place: Place) {
        if self.pages.pages(place.segment) == 0 {
            return;
        }
        if !self.is_resident(place) {
            let page = self.make_resident(place);
            self.flags[page.index()] |= STUCK;
            self.beside.push_back(&mut self.stuck, page);
        }
        let page = self.number(place);
        self.set_dirty(page);
        self.shed();
    }

    /// An evicted page was in use: it is resident again, and no victim for now.
    pub(super) fn spared(&mut self, place: Place, dirty: bool) {
        if self.pages.pages(place.segment) == 0 || self.is_resident(place) {
            return;
        }
        let page = self.make_resident(place);
        self.flags[page.index()] |= SPARED | if dirty { DIRTY } else { 0 };
        self.beside.push_back(&mut self.newcomers, page);
    }

    /// A page that could not leave is an ordinary one again.
    pub(super) fn unstick(&mut self, page: Page) {
        if self.flags[page.index()] & STUCK == 0 {
            return;
        }
        self.flags[page.index()] &= !STUCK;
        self.beside.remove(&mut self.stuck, page);
        self.admit(page, Admission::Prefetch);
        self.shed();
    }

    /// Resident pages of a range leave without being anybody's victim. How many of them were fetched ahead,
    /// and are not known to have been used.
    pub(super) fn drop_range(&mut self, segment: Segment, first: u64, pages: u64) -> u64 {
        let mut unused = 0;
        let end = first.saturating_add(pages);
        for (base, place) in self.pages.numbered(segment, first, pages) {
            for i in 0..crate::pages::EXTENT_PAGES {
                let index = place.index + u64::from(i);
                let page = Page(base.0 + i);
                let flags = self.flags.get(page.index()).copied().unwrap_or(0);
                if index < first || index >= end || flags & RESIDENT == 0 {
                    continue;
                }
                unused += u64::from(flags & (PENDING | ASKED) != 0);
                if flags & IN_POLICY != 0 {
                    self.policy.removed(page);
                } else if flags & PENDING != 0 {
                    self.forget_in_stream(Place { segment, index }, flags);
                    self.take_pending(page, flags);
                } else if flags & STUCK != 0 {
                    self.beside.remove(&mut self.stuck, page);
                } else {
                    self.beside.remove(&mut self.newcomers, page);
                }
                if flags & MAPPED != 0 {
                    self.mapped_links.remove(&mut self.mapped, page);
                }
                self.flags[page.index()] = 0;
                self.resident -= 1;
            }
        }
        unused
    }
}
