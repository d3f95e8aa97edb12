//! Fetches that somebody waits for: those that were under way when he came.
//!
//! Where many read, a page is on its way into memory at each moment: who waited until there is none would
//! wait for as long as they read. A page that has come, left, and is being fetched anew has come.

use pagekeeper_policy::Page;
use std::collections::HashSet;

/// Of each who waits, by ticket: pages that are still on their way.
#[derive(Default)]
pub(crate) struct Arrivals(Vec<(u64, HashSet<Page>)>);

impl Arrivals {
    /// Somebody waits for these.
    pub(crate) fn expect(&mut self, ticket: u64, pages: HashSet<Page>) {
        if !pages.is_empty() {
            self.0.push((ticket, pages));
        }
    }

    /// A page has come, or failed to.
    pub(crate) fn came(&mut self, page: Page) {
        if self.0.is_empty() {
            return;
        }
        self.0.retain_mut(|(_, pages)| {
            pages.remove(&page);
            !pages.is_empty()
        });
    }

    /// Whether all have come that somebody waits for.
    pub(crate) fn are_over(&self, ticket: u64) -> bool {
        self.0.iter().all(|(other, _)| *other != ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_waits_for_what_was_on_its_way_when_he_came_and_for_no_page_twice() {
        let mut arrivals = Arrivals::default();
        let pages = |pages: &[u32]| pages.iter().copied().map(Page).collect();
        arrivals.expect(1, pages(&[]));
        assert!(arrivals.are_over(1), "nothing is on its way");
        arrivals.expect(2, pages(&[10, 11]));
        arrivals.came(Page(10));
        // It is being fetched anew when another comes.
        arrivals.expect(3, pages(&[10, 11]));
        arrivals.came(Page(11));
        assert!(arrivals.are_over(2) && !arrivals.are_over(3));
        arrivals.came(Page(12));
        assert!(!arrivals.are_over(3), "nobody waits for that one");
        arrivals.came(Page(10));
        assert!(arrivals.are_over(3) && arrivals.0.is_empty());
    }
}
