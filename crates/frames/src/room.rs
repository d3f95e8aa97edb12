//! Making room: who leaves when the policy cannot say, and what is written along.

use crate::Place;
use crate::brain::{
    ASKED, Brain, DIRTY, EVICTED_ONCE, IN_POLICY, MAPPED, PENDING, RESIDENT, is_streams,
};
use crate::config::CLEAN_RUN_PAGES_MAX;
use crate::plan::{Run, Victim};
use pagekeeper_policy::{Page, Segment};

impl Brain {
    /// Evicts until so many pages fit in. Returns how many of them do: fewer only when every
    /// frame is stuck.
    pub(crate) fn make_room(&mut self, pages: u32, incoming: Option<Place>) -> u32 {
        let incoming = incoming.map(|place| self.number(place));
        let mut retried = false;
        while self.resident + pages > self.limit() {
            if let Some(page) = self.next_victim(incoming) {
                self.evict(page);
            } else if let Some(page) = self.held_longest() {
                self.evict(page);
            } else if !retried && let Some(page) = self.beside.pop_front(&mut self.stuck) {
                // Its storage may have recovered. Once a fault: a failing store takes its time.
                retried = true;
                self.evict(page);
            } else {
                break;
            }
        }
        pages.min(self.limit().saturating_sub(self.resident))
    }

    /// As [`make_room`](Self::make_room), for pages that no reference waits for: what one may wait
    /// for is not taken.
    pub(crate) fn make_room_ahead(&mut self, pages: u32) -> u32 {
        while self.resident + pages > self.limit()
            && let Some(page) = self.next_victim_ahead()
        {
            self.evict(page);
        }
        pages.min(self.limit().saturating_sub(self.resident))
    }

    /// Evicts what is beyond the limit, as far as it can leave. The newest newcomer stays: room
    /// was made for it, and with all else stuck its fault would be served in vain for ever.
    pub(crate) fn shed(&mut self) {
        while self.resident > self.limit() {
            let page = match self.next_victim(None) {
                Some(page) => page,
                None if self.pending.is_empty() && self.newcomers.len() <= 1 => return,
                None => match self.held_longest() {
                    Some(page) => page,
                    None => return,
                },
            };
            self.evict(page);
        }
    }

    /// The policy has no page left: takes the oldest one fetched ahead, else the oldest newcomer; none
    /// that the present plan fetches, which is not there yet.
    fn held_longest(&mut self) -> Option<Page> {
        if let Some(page) = self.pending.front().filter(|page| !self.is_being_fetched(*page)) {
            self.beside.remove(&mut self.pending, page);
            let place = self.pages.place(page);
            self.streams[place.segment.0 as usize].used(place.index);
            return Some(page);
        }
        let page = self.newcomers.front().filter(|page| !self.is_being_fetched(*page))?;
        self.beside.remove(&mut self.newcomers, page);
        Some(page)
    }

    fn is_being_fetched(&self, page: Page) -> bool {
        let place = self.pages.place(page);
        self.plan.fetch.iter().any(|run| run.contains(place))
    }

    /// A page that is in no list and not in the policy any more leaves.
    pub(crate) fn evict(&mut self, page: Page) {
        let place = self.pages.place(page);
        let flags = self.flags[page.index()];
        debug_assert_ne!(flags & RESIDENT, 0, "victims are resident");
        let dirty = flags & DIRTY != 0;
        if dirty {
            self.counts.write_backs += 1;
            self.clean_around(place);
        }
        self.plan.evict.push(Victim { page, place, dirty });
        self.counts.evictions += 1;
        if flags & (PENDING | ASKED) != 0 {
            self.counts.prefetch_wasted_pages += 1;
        }
        self.flags[page.index()] = EVICTED_ONCE;
        if flags & MAPPED != 0 {
            self.mapped_links.remove(&mut self.mapped, page);
        } else if !is_streams(flags) {
            self.unmapped_evicted(page);
        }
        self.resident -= 1;
    }

    /// Whether victims of a segment are written without their neighbours: [`Input::Along`](crate::Input).
    pub fn is_written_alone(&self, segment: Segment) -> bool {
        self.written_alone.get(segment.0 as usize) == Some(&true)
    }

    /// Dirty neighbours that the policy holds are written with the victim: one request for all.
    fn clean_around(&mut self, place: Place) {
        if self.is_written_alone(place.segment) {
            return;
        }
        let wanted = |b: &Brain, index: u64| {
            b.flag(Place { index, ..place }) & (DIRTY | IN_POLICY) == DIRTY | IN_POLICY
        };
        let (mut first, mut end) = (place.index, place.index + 1);
        while end - first < u64::from(CLEAN_RUN_PAGES_MAX) && wanted(self, end) {
            end += 1;
        }
        while end - first < u64::from(CLEAN_RUN_PAGES_MAX) && first > 0 && wanted(self, first - 1) {
            first -= 1;
        }
        for (from, to) in [(first, place.index), (place.index + 1, end)] {
            if to > from {
                let pages = (to - from) as u32;
                self.counts.write_backs += u64::from(pages);
                for index in from..to {
                    let page = self.pages.find(Place { index, ..place }).expect("numbered");
                    self.set_clean(page);
                }
                let place = Place { index: from, ..place };
                self.plan.clean.push(Run { place, pages, demanded: 0 });
            }
        }
    }
}
