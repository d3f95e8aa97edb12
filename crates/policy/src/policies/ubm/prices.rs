//! What it costs to read a page again.
//!
//! A marginal gain counts hits, all alike. But pages of sequences and loops are read many at a time,
//! where other pages mostly take a request each: a miss among these costs several of those. What came
//! in together is known by its place, so the price needs no clock.
use crate::{Admission, Place};

use super::partitions::Part;

/// The weight of the last admission in a share's exponential average.
const WEIGHT: f64 = 1.0 / 256.0;
/// What comes in next to the page before, so near to it, is taken to have been read with it.
const TOGETHER_PAGES: u64 = 8;

/// What the partitions' pages cost, by how the last of them came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prices {
    /// What a request costs beside what is read, in pages read.
    request_pages: f64,
    /// Whether anything was ever read ahead: else each page takes a request.
    reads_ahead: bool,
    last: Option<Place>,
    /// Requests a page, of sequences and loops.
    ordered: f64,
    /// Requests a page, of others.
    other: f64,
}

impl Prices {
    pub(super) fn new(request_pages: f64) -> Self {
        Self { request_pages, reads_ahead: false, last: None, ordered: 1.0, other: 1.0 }
    }

    pub(super) fn admitted(&mut self, part: Part, place: Option<Place>, how: Admission) {
        self.reads_ahead |= how == Admission::Prefetch;
        let is_near = |last: Place, next: Place| {
            last.segment == next.segment && last.index.abs_diff(next.index) <= TOGETHER_PAGES
        };
        let is_along = self.last.zip(place).is_some_and(|(last, next)| is_near(last, next));
        self.last = place;
        let requests = match part {
            Part::Other => &mut self.other,
            Part::Sequential | Part::Looping(_) => &mut self.ordered,
        };
        *requests += (f64::from(u8::from(!is_along)) - *requests) * WEIGHT;
    }

    /// Of an other page, in pages of sequences and loops.
    pub(super) fn of_other(&self) -> f64 {
        let price = |requests: f64| 1.0 + self.request_pages * requests;
        if self.reads_ahead { price(self.other) / price(self.ordered) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segment;

    fn place(index: u64) -> Option<Place> {
        Some(Place { segment: Segment(0), index })
    }

    /// Loops whose windows are of 32 pages, and single pages here and there.
    fn played(request_pages: f64, ahead: Admission) -> Prices {
        let mut prices = Prices::new(request_pages);
        for window in 0..1000 {
            for page in 0..32 {
                let how = if page == 0 { Admission::Demand } else { ahead };
                prices.admitted(Part::Looping(3), place(window * 100 + page), how);
            }
            prices.admitted(Part::Other, place((1 << 20) + window * 64), Admission::Demand);
        }
        prices
    }

    #[test]
    fn a_page_that_comes_by_itself_costs_more_than_one_of_a_window() {
        let prices = played(12.0, Admission::Prefetch);
        let expected = 13.0 / (1.0 + 12.0 / 32.0);
        assert!((prices.of_other() / expected - 1.0).abs() < 0.1, "{prices:?}");
    }

    #[test]
    fn all_pages_cost_the_same_where_nothing_is_read_ahead_or_requests_cost_nothing() {
        for prices in [played(12.0, Admission::Demand), played(0.0, Admission::Prefetch)] {
            assert!((prices.of_other() - 1.0).abs() < 1e-9, "{prices:?}");
        }
    }
}
