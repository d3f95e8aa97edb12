//! What a policy asks for beyond victims: pages to be fetched ahead, written, mapped or unmapped.
//!
//! Wishes are inputs like any other, so that a recording holds them: who drives the brain applies
//! those that wait after each reference ([`Input::Major`],
//! [`Input::Overwrite`], [`Input::Touch`], [`Input::Write`]).
//! What the policy asks for meanwhile waits for the next reference, so that a wish that leads to
//! another does not go on for ever.

use crate::brain::{Brain, DIRTY, IN_POLICY, MAPPED, RESIDENT};
use crate::config::Sampling;
use crate::plan::{Input, Run};
use crate::{Place, WISHES_MAX};
use pagekeeper_policy::{Hint, Page};

impl Brain {
    /// Takes the policy's oldest wish, to be [applied](Self::apply) as soon as the plan of the
    /// reference before it was taken over.
    pub fn take_wish(&mut self) -> Option<Input> {
        self.wishes.pop_front()
    }

    /// Makes inputs of the policy's hints. Pages to fetch ahead are at most a window for each
    /// input, however many hints ask for them.
    pub(crate) fn gather_wishes(&mut self) {
        let mut hints = Vec::new();
        self.policy.take_hints(&mut hints);
        let mut left_pages = self.config.window_pages_max.min(self.limit() / 4);
        for hint in hints {
            if self.wishes.len() == WISHES_MAX {
                return;
            }
            let at = |b: &Brain, page: Page| {
                let flags = b.flags.get(page.index()).copied().unwrap_or(0);
                (flags & (RESIDENT | IN_POLICY) == RESIDENT | IN_POLICY).then(|| b.place(page))
            };
            let wish = match hint {
                Hint::Prefetch { place, pages } => {
                    let pages = pages.min(left_pages);
                    left_pages -= pages;
                    (pages > 0).then_some(Input::Ahead {
                        segment: place.segment,
                        first: place.index,
                        pages,
                    })
                }
                Hint::Flush(page) => at(self, page).map(|place| Input::Flush { place }),
                Hint::Map(page) => at(self, page).map(|place| Input::Map { place }),
                Hint::Unmap(page) => at(self, page).map(|place| Input::Unmap { place }),
            };
            self.wishes.extend(wish);
        }
    }

    /// The page, if the policy holds it and its flags are `are` among these.
    fn own_page(&self, place: Place, among: u8, are: u8) -> Option<Page> {
        let page = self.page(place)?;
        let own = RESIDENT | IN_POLICY;
        (self.flag(place) & (own | among) == own | are).then_some(page)
    }

    /// A dirty page is written; it counts as clean from here on, unless that fails.
    pub(crate) fn flush(&mut self, place: Place) {
        let Some(page) = self.own_page(place, DIRTY, DIRTY) else { return };
        self.counts.write_backs += 1;
        self.set_clean(page);
        self.plan.clean.push(Run { place, pages: 1, demanded: 0 });
    }

    /// A page is mapped, unless all touches are to be seen.
    pub(crate) fn map_wished(&mut self, place: Place) {
        if matches!(self.config.sampling, Sampling::Window { .. }) {
            return;
        }
        let Some(page) = self.own_page(place, MAPPED, 0) else { return };
        self.map(page);
        self.plan.map.push(Run { place, pages: 1, demanded: 0 });
    }

    /// A page is unmapped.
    pub(crate) fn unmap_wished(&mut self, place: Place) {
        let Some(page) = self.own_page(place, MAPPED, MAPPED) else { return };
        self.unmap(page);
        self.plan.unmap.push(page);
    }
}
