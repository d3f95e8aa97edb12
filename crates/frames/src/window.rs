//! Windows: what comes along with a fault or a touch, because the program goes on sequentially. How
//! large they are is the streams' business ([`crate::ahead`]); here they are carried out.

use crate::ahead::{FIRST_WINDOW_PAGES, WindowLimits};
use crate::brain::{ASKED, Brain, IN_POLICY, MAPPED, MARKER, PENDING, RESIDENT, is_marker};
use crate::plan::Run;
use crate::{Place, Segment};
use pagekeeper_policy::Admission;
use std::ops::Range;

/// Most pages mapped along with a touched one.
const MAP_WINDOW_PAGES_MAX: u32 = 64;
/// How far behind a touched page those may lie: a sample of the pages is thin.
const MAP_REACH_PAGES: u64 = 4096;
/// And how far behind the last of them the page lies whose touch is the next to be seen, at most. Where it
/// is not found, those mapped along are not known to have been used.
const NEXT_TOUCH_PAGES: u64 = 256;
/// Usual windows of files are no smaller, since a request costs disks what ten to thirty pages do,
const USUAL_PAGES_MIN: u32 = 64;
/// unless this is more than memory over so much. (Heap memory that does not fit is gone over in strides, and
/// a page that comes in vain may push out one that has to be written.)
const MEMORY_PER_USUAL: u32 = 20;
/// Pages after which a stream's windows go on over what is resident.
const PROVEN_PAGES: u64 = 32;
/// Read-ahead steps after which a stream that was not continued is taken for dead, if its pages
/// are in the way of others.
const IDLE_STEPS_MAX: u64 = 256;

/// What a page is whose policy does not hear of its use.
const UNSEEN: u8 = RESIDENT | MAPPED | IN_POLICY;

/// Pages of a window that are absent, in order, and the page behind it.
pub(crate) struct Lacking {
    pub(crate) pages: Vec<u64>,
    next: u64,
}

impl Brain {
    /// The largest windows that leave the policy most of the frames. Pages that dead streams left
    /// behind are not allowed to keep them small.
    pub(crate) fn window_limits(&mut self, segment: Segment) -> WindowLimits {
        let share = self.limit() / 4;
        while self.pending.len() > share / 2 {
            let Some(oldest) = self.pending.front() else { break };
            let place = self.pages.place(oldest);
            let streams = &mut self.streams[place.segment.0 as usize];
            if streams.last_step(place.index).is_some_and(|at| self.steps - at <= IDLE_STEPS_MAX) {
                break;
            }
            streams.used(place.index);
            self.admit_pending(place, Admission::Prefetch);
        }
        let room = share.saturating_sub(self.pending.len()) + 1;
        let most = |pages: u32| self.config.window_pages_max.min(pages).min(room).max(1);
        // Two or three windows are under way at a time; they should cost the policy little, and a request
        // more than its pages where they are few.
        let mut usual = (self.limit() / 128).max(share.min(32) / 4);
        if self.around.is_allowed(segment) {
            usual = usual.max(USUAL_PAGES_MIN.min(self.limit() / MEMORY_PER_USUAL));
        }
        let usual = most(usual);
        // And two, where memory is not small, in the buffers that the budget sets aside.
        WindowLimits { usual, most: most(self.limit() / 64).max(usual) }
    }

    /// What of a range the newest stream lacks. Once it has come far enough it goes on over what is
    /// in memory: a window that ended there would let each gap in what a loop lost cost a fault, and
    /// lead to further gaps. (Batches of a few pages in any order are no scan: behind each lies
    /// another that nobody asked for.)
    pub(crate) fn lacking(&mut self, segment: Segment, range: Range<u64>) -> Lacking {
        if range.is_empty() {
            return Lacking { pages: Vec::new(), next: range.start };
        }
        let begin = self.streams[segment.0 as usize].last().begin;
        let goes_on = range.start.saturating_sub(begin) >= PROVEN_PAGES || range.end <= begin;
        let mut lacking = Lacking { pages: Vec::new(), next: range.start };
        for index in range.start..range.end.min(self.pages.pages(segment)) {
            if !self.is_resident(Place { segment, index }) {
                lacking.pages.push(index);
            } else if !goes_on {
                break;
            }
            lacking.next = index + 1;
        }
        lacking
    }

    /// The first of these pages, at most so many, are fetched, and pending in the segment's newest
    /// stream; the one with the number `marker` is to start the next window.
    pub(crate) fn fetch_ahead(
        &mut self,
        segment: Segment,
        lacking: &Lacking,
        most: usize,
        marker: Option<usize>,
    ) {
        for (number, &index) in lacking.pages.iter().take(most).enumerate() {
            let place = Place { segment, index };
            let page = self.make_resident(place);
            self.flags[page.index()] |= PENDING;
            self.beside.push_back(&mut self.pending, page);
            self.counts.prefetched_pages += 1;
            let stream = self.streams[segment.0 as usize].last();
            stream.pending.push_back(index);
            if marker == Some(number) {
                stream.markers.push_back(index);
                self.flags[page.index()] |= MARKER;
            } else if self.config.map_ahead {
                self.map(page);
            }
            Run::add(&mut self.plan.fetch, place);
        }
        let next = lacking.pages.get(most).copied().unwrap_or(lacking.next);
        self.streams[segment.0 as usize].last().next = next;
    }

    /// The last of these pages, at most so many, are fetched for the segment's newest stream, which
    /// falls through this range.
    pub(crate) fn fetch_before(
        &mut self,
        segment: Segment,
        range: Range<u64>,
        mut lacking: Lacking,
        most: usize,
    ) {
        let left_out = lacking.pages.len().saturating_sub(most);
        let first = match left_out {
            0 => range.start,
            _ => lacking.pages.get(left_out).copied().unwrap_or(range.end),
        };
        lacking.pages.drain(..left_out);
        self.fetch_ahead(segment, &lacking, most, None);
        self.streams[segment.0 as usize].last().fell_to(first);
    }

    /// A marker of a stream was touched: all before it counts as used; fetch the next window.
    pub(crate) fn next_window(&mut self, place: Place, write: bool) {
        let limits = self.window_limits(place.segment);
        self.steps += 1;
        let streams = &mut self.streams[place.segment.0 as usize];
        let Some(pages) = streams.marker(place.index, limits, self.steps) else { return };
        let stream = streams.last();
        stream.stores |= write;
        let mut used = Vec::new();
        while stream.pending.front().is_some_and(|&i| i < place.index) {
            used.extend(stream.pending.pop_front());
        }
        for index in used {
            self.admit_pending(Place { index, ..place }, Admission::Demand);
        }
        // A scan has few demand faults: without this its first pages would be newcomers for ever.
        self.age_newcomers(self.newcomers.len().saturating_sub(1).clamp(2, self.newcomers_max()));
        self.infer_passed(place.segment, place.index);
        let mut is_ahead = false;
        while !is_ahead {
            let from = self.streams[place.segment.0 as usize].last().next;
            let lacking = self.lacking(place.segment, from..from + u64::from(pages));
            let room = self.make_room(lacking.pages.len() as u32, None);
            if room == 0 {
                break;
            }
            self.fetch_ahead(place.segment, &lacking, room as usize, Some(0));
            is_ahead = self.streams[place.segment.0 as usize].last().is_ahead_of(place.index);
        }
    }

    /// A stream that goes on sequentially over absent pages, and is at `index` now, has most likely
    /// come over the resident ones before them, unseen. A policy that does without samples hears of
    /// as many as would still be nearer in time than what went before, when room is made: under MRU
    /// they, and not pages further on, are to go, until the stream's own are old enough. Pages whose
    /// use was seen within that time are the scan's own. (Others are told by samples; to them, whose
    /// order is that of uses, a guess is worse than nothing.)
    pub(crate) fn infer_passed(&mut self, segment: Segment, index: u64) {
        let recent = u64::from(self.recent_uses());
        let stream = self.streams[segment.0 as usize].last();
        let begins = index == stream.begin;
        if begins || stream.window < FIRST_WINDOW_PAGES || self.policy.wants_samples() {
            return;
        }
        // At least two windows are under way.
        let wanted = 2 * u64::from(stream.window) + recent;
        let own = index.saturating_sub(stream.begin);
        let end = stream.passed;
        let least = end.min(stream.begin.saturating_sub(wanted.saturating_sub(own)));
        let mut first = end;
        while first > least
            && let Some(page) = self.pages.find(Place { segment, index: first - 1 })
            && self.flags[page.index()] & UNSEEN == UNSEEN
            && u64::from(self.uses_since(page)) >= wanted
        {
            first -= 1;
        }
        self.streams[segment.0 as usize].last().passed = first;
        for index in first..end {
            let at = Place { segment, index };
            let page = self.pages.find(at).expect("numbered");
            self.saw_use(page, at);
        }
    }

    /// Unmapped pages behind a touched one are mapped along when touches go on sequentially, as
    /// read-ahead does for absent ones: one fault then stands for a window of touches. They count
    /// as used when the touches come out behind them. Mapped pages among them are passed over, so
    /// that whoever watches a sample of the pages sees a scan of it for a fault now and then.
    pub(crate) fn map_behind(&mut self, place: Place) {
        let streams = &mut self.touches[place.segment.0 as usize];
        let limits = WindowLimits::fixed(MAP_WINDOW_PAGES_MAX);
        let pages = streams.fault(place.index, limits, self.steps, |_| false).pages;
        let used = std::mem::take(&mut streams.last().pending);
        for index in used {
            let at = Place { index, ..place };
            if let Some(page) = self.pages.find(at).filter(|p| self.flags[p.index()] & MAPPED != 0)
            {
                self.saw_sample(page, at);
            }
        }
        let behind = place.index + 1;
        let (mut next, mut left, mut end) = (behind, pages - 1, behind);
        for index in behind.. {
            let at = Place { index, ..place };
            let Some(page) = self.pages.find(at) else { break };
            let flags = self.flags[page.index()];
            if flags & RESIDENT == 0 || is_marker(flags) || index > end + NEXT_TOUCH_PAGES {
                break;
            }
            if flags & MAPPED == 0 {
                // The next touch that is seen, if they go on.
                next = index;
                if left == 0 || index >= behind + MAP_REACH_PAGES {
                    break;
                }
                left -= 1;
                end = index;
                self.map(page);
                self.touches[place.segment.0 as usize].last().pending.push_back(index);
                Run::add(&mut self.plan.map, at);
            }
            next = index + 1;
        }
        self.touches[place.segment.0 as usize].last().next = next;
    }

    /// Fetches announced pages: the first stretch of the range that is absent.
    pub(crate) fn ahead(&mut self, segment: Segment, first: u64, pages: u32) {
        let end = first.saturating_add(u64::from(pages)).min(self.pages.pages(segment));
        let mut place = Place { segment, index: first };
        while place.index < end && self.is_resident(place) {
            place.index += 1;
        }
        let left = u32::try_from(end.saturating_sub(place.index)).unwrap_or(u32::MAX);
        let window = self.window_limits(segment).usual;
        let run = self.absent_run(place, left.min(window));
        let run = self.make_room_ahead(run);
        if run == 0 {
            return;
        }
        for i in 0..run {
            let page = self.make_resident(Place { index: place.index + u64::from(i), ..place });
            self.counts.prefetched_pages += 1;
            self.flags[page.index()] |= ASKED;
            self.admit(page, Admission::Prefetch);
        }
        self.plan.fetch.push(Run { place, pages: run, demanded: 0 });
    }
}
