//! What a brain tells of its pages and of itself.

use super::{ASKED, Brain, DIRTY, MAPPED, PENDING, RESIDENT, STUCK, is_marker};
use crate::config::Counts;
use crate::share::SamplingShare;
use crate::{Place, Segment};
use pagekeeper_policy::{Page, Visible};

impl Brain {
    /// Resident pages, the one used longest ago (as far as it was seen) first.
    pub fn by_last_use(&self) -> Vec<Place> {
        self.pages_by_last_use(RESIDENT).into_iter().map(|page| self.place(page)).collect()
    }

    /// The inside of the policy, if it shows any.
    pub fn visible(&mut self) -> Option<&mut dyn Visible> {
        self.policy.visible()
    }

    /// The most that seeing touches may cost; `None` where it is not bounded.
    pub fn sampling_share(&self) -> Option<SamplingShare> {
        self.sampling.share()
    }

    /// Whether the page is resident, as far as decisions go (it may still be on its way).
    #[inline]
    pub fn is_resident(&self, place: Place) -> bool {
        self.flag(place) & RESIDENT != 0
    }

    /// Whether touches of the page are invisible, because it counts as mapped.
    #[inline]
    pub fn is_mapped(&self, place: Place) -> bool {
        self.flag(place) & MAPPED != 0
    }

    /// Whether the page is resident and dirty.
    #[inline]
    pub fn is_dirty(&self, place: Place) -> bool {
        self.flag(place) & DIRTY != 0
    }

    /// Whether the page could not leave when it was chosen to, and is kept from the policy.
    pub fn is_stuck(&self, place: Place) -> bool {
        self.flag(place) & STUCK != 0
    }

    /// Whether the next touch of the page starts read-ahead.
    pub fn is_marker(&self, page: Page) -> bool {
        self.flags.get(page.index()).is_some_and(|flags| is_marker(*flags))
    }

    /// Whether the page was fetched ahead and is not known to be used.
    pub fn is_unused(&self, place: Place) -> bool {
        self.flag(place) & (PENDING | ASKED) != 0
    }

    /// A segment's length in pages; 0 when it is not declared.
    pub fn pages(&self, segment: Segment) -> u64 {
        self.pages.pages(segment)
    }

    /// The page's number, if it ever had one.
    #[inline]
    pub fn page(&self, place: Place) -> Option<Page> {
        self.pages.find(place)
    }

    /// Where a numbered page lives.
    pub fn place(&self, page: Page) -> Place {
        self.pages.place(page)
    }

    /// Page numbers given out so far: the length that arrays kept beside the brain need.
    pub fn numbered_pages(&self) -> u32 {
        self.pages.len()
    }

    /// Page numbers in use: those of a closed segment may be given out again.
    pub fn used_numbers(&self) -> u64 {
        self.pages.used().into()
    }

    /// Page numbers that a segment has.
    pub fn segment_numbers(&self, segment: Segment) -> u64 {
        self.pages.numbered(segment, 0, u64::MAX).len() as u64
            * u64::from(crate::pages::EXTENT_PAGES)
    }

    /// Resident pages of a segment that are dirty.
    pub fn dirty_pages(&self, segment: Segment) -> u64 {
        let extents = self.pages.numbered(segment, 0, u64::MAX);
        let pages = extents.into_iter().flat_map(|(base, _)| {
            (0..crate::pages::EXTENT_PAGES).map(move |i| base.index() + i as usize)
        });
        pages.filter(|&at| self.flags.get(at).is_some_and(|f| f & DIRTY != 0)).count() as u64
    }

    /// Numbered extents of a segment that overlap a page range, as (first page, its place).
    pub fn numbered(&self, segment: Segment, first: u64, pages: u64) -> Vec<(Page, Place)> {
        self.pages.numbered(segment, first, pages)
    }

    /// Frames that managed pages may use now.
    pub fn frames(&self) -> u32 {
        self.limit()
    }

    /// Resident pages that could not leave when they were chosen, and may still not be able to.
    pub fn stuck_pages(&self) -> u32 {
        self.stuck.len()
    }

    /// Whether more pages fit in before others have to leave for them: a sixteenth of the frames.
    pub fn has_free_frames(&self) -> bool {
        self.resident < self.limit() - self.limit() / 16
    }

    /// Resident pages.
    pub fn resident_pages(&self) -> u32 {
        self.resident
    }

    /// Counts since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// A running digest of all plans so far: equal inputs give equal digests.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}
