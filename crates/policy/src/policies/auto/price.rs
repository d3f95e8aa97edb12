//! What it costs to read a page again.
//!
//! Pages that are used in order come many at a time, others take a request each: a miss among these costs
//! several of those. What is used in order is known by page numbers, so the price needs no clock, and it
//! is the same for whoever has the page or has not.
use crate::{Admission, Page};

/// A page, in the unit of prices.
pub(super) const PAGE: i64 = 100;
/// Pages that read-ahead brings with one request.
const WINDOW_PAGES: i64 = 32;
/// Pages that were used last and are remembered, so that several programs may read in order.
const LAST: usize = 16;

/// Prices of misses.
#[derive(Clone, Debug)]
pub(super) struct Prices {
    /// What a request costs beside what is read.
    request: i64,
    /// Whether anything was ever read ahead: else each page takes a request.
    reads_ahead: bool,
    last: [Page; LAST],
    next: usize,
}

impl Prices {
    /// A request costs as much as so many pages do beside it.
    pub(super) fn new(request_pages: u64) -> Self {
        let request = PAGE.saturating_mul(i64::try_from(request_pages).unwrap_or(i64::MAX));
        Self { request, reads_ahead: false, last: [Page(u32::MAX); LAST], next: 0 }
    }

    pub(super) fn admitted(&mut self, how: Admission) {
        self.reads_ahead |= how == Admission::Prefetch;
    }

    /// A page was used.
    #[inline]
    pub(super) fn used(&mut self, page: Page) {
        self.last[self.next] = page;
        self.next = (self.next + 1) % LAST;
    }

    /// What a miss of the page costs now. One page in 2^shift is heard of at the least.
    #[inline]
    pub(super) fn of(&self, page: Page, shift: u32) -> i64 {
        if !self.reads_ahead {
            return PAGE;
        }
        let near = 2 << shift;
        let follows = |last: &Page| (1..=near).contains(&page.0.wrapping_sub(last.0));
        let request =
            if self.last.iter().any(follows) { self.request / WINDOW_PAGES } else { self.request };
        PAGE + request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_in_order_costs_less() {
        let mut prices = Prices::new(12);
        prices.used(Page(7));
        assert_eq!([8, 80].map(|page| prices.of(Page(page), 0)), [PAGE; 2]);
        prices.admitted(Admission::Demand);
        prices.admitted(Admission::Prefetch);
        let [order, single] = [137, 1300];
        assert_eq!(
            [7, 8, 9, 10, 6].map(|page| prices.of(Page(page), 0)),
            [single, order, order, single, single]
        );
        // Of a sample only the pages that are in it are heard of.
        assert_eq!([23, 39, 40].map(|page| prices.of(Page(page), 4)), [order, order, single]);
        // Several streams, and others among them.
        for step in 0..100 {
            (0..8).for_each(|stream| prices.used(Page(1000 * stream + step)));
            assert_eq!(prices.of(Page(3001 + step), 0), order);
        }
        assert_eq!(prices.of(Page(8), 0), single);
        assert_eq!(Prices::new(0).of(Page(8), 0), PAGE);
    }
}
