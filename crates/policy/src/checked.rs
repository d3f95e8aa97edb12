//! Holds a policy and its caller to the contract, call by call.
use crate::flat::Flat;
use crate::{Admission, Hint, Page, Place, Policy};

const RESIDENT: u8 = 1;
/// Not resident, its place told since it left.
const PLACED: u8 = 2;

/// A policy under watch: every call is checked against the contract of [`Policy`], and a breach
/// by either side panics with what happened.
///
/// For tests, and for policies that come from elsewhere. It costs a byte per page and a few
/// nanoseconds per call.
#[derive(Debug)]
pub struct Checked<P> {
    inner: P,
    resident: Flat<u8>,
    resident_pages: u32,
    frames: u32,
}

impl<P: Policy> Checked<P> {
    /// Watches a policy that was built for `frames` frames and holds nothing yet.
    pub fn new(inner: P, frames: u32) -> Self {
        assert_eq!(inner.resident(), 0, "a new policy holds no page");
        Self { inner, resident: Flat::new(), resident_pages: 0, frames }
    }

    /// Whether the page is resident, by the calls seen.
    pub fn is_resident(&self, page: Page) -> bool {
        self.resident.get(page.index()) == RESIDENT
    }

    /// The policy itself.
    pub fn into_inner(self) -> P {
        self.inner
    }

    fn knows_place(&self, page: Page) -> bool {
        !self.inner.wants_places() || self.resident.get(page.index()) == PLACED
    }

    fn leave(&mut self, page: Page) {
        *self.resident.slot(page.index()) = 0;
        self.resident_pages -= 1;
        self.check_count();
    }

    fn check_count(&self) {
        assert_eq!(
            self.inner.resident(),
            self.resident_pages,
            "policy: `resident` is not the number of pages admitted and not gone"
        );
    }

    fn check_admission(&self, page: Page) {
        assert!(page <= Page::MAX, "caller: page {} is above Page::MAX", page.0);
        assert!(!self.is_resident(page), "caller: page {} admitted while resident", page.0);
        assert!(
            self.resident_pages < self.frames,
            "caller: page {} admitted without room: {} pages in {} frames",
            page.0,
            self.resident_pages,
            self.frames
        );
        assert!(self.knows_place(page), "caller: page {} admitted without its place", page.0);
    }

    fn enter(&mut self, page: Page) {
        *self.resident.slot(page.index()) = RESIDENT;
        self.resident_pages += 1;
        self.check_count();
    }
}

#[deny(clippy::missing_trait_methods)]
impl<P: Policy> Policy for Checked<P> {
    crate::pass_on! { this => this.inner;
        wants_places wants_indices wants_references wants_samples wants_dirty gives_hints
        watches_closely watches_pages watches_others resident visible
    }

    fn sampled(&mut self, page: Page) {
        assert!(self.is_resident(page), "caller: page {} sampled, not resident", page.0);
        self.inner.sampled(page);
        self.check_count();
    }

    fn unmapped(&mut self, page: Page) {
        assert!(self.is_resident(page), "caller: page {} unmapped, not resident", page.0);
        self.inner.unmapped(page);
        self.check_count();
    }

    fn mapped(&mut self, page: Page) {
        assert!(self.is_resident(page), "caller: page {} mapped, not resident", page.0);
        self.inner.mapped(page);
        self.check_count();
    }

    fn watches(&mut self, page: Page) -> bool {
        assert!(
            self.is_resident(page) || self.knows_place(page),
            "caller: page {} in question without its place",
            page.0
        );
        let watches = self.inner.watches(page);
        assert!(
            !watches || self.inner.watches_pages(),
            "policy: page {} watched, though it says that none is",
            page.0
        );
        watches
    }

    fn dirtied(&mut self, page: Page) {
        assert!(self.inner.wants_dirty(), "caller: page {} dirtied, nobody wants to know", page.0);
        self.inner.dirtied(page);
        self.check_count();
    }

    fn cleaned(&mut self, page: Page) {
        assert!(self.is_resident(page), "caller: page {} cleaned, not resident", page.0);
        self.inner.cleaned(page);
        self.check_count();
    }

    fn take_hints(&mut self, hints: &mut Vec<Hint>) {
        let before = hints.len();
        self.inner.take_hints(hints);
        assert!(
            hints.len() == before || self.inner.gives_hints(),
            "policy: hints, though it says that it gives none"
        );
    }

    fn order(&self) -> Option<Vec<Page>> {
        let order = self.inner.order()?;
        let mut pages = order.clone();
        pages.sort_unstable();
        pages.dedup();
        assert!(
            pages.len() == order.len() && order.len() == self.resident_pages as usize,
            "policy: its order is not of its resident pages, each once"
        );
        assert!(order.iter().all(|page| self.is_resident(*page)), "policy: pages that are gone");
        Some(order)
    }

    fn placed(&mut self, page: Page, place: Place) {
        assert!(!self.is_resident(page), "caller: page {} placed while resident", page.0);
        *self.resident.slot(page.index()) = PLACED;
        self.inner.placed(page, place);
        self.check_count();
    }

    fn admitted(&mut self, page: Page, how: Admission) {
        self.check_admission(page);
        self.inner.admitted(page, how);
        self.enter(page);
    }

    fn spared(&mut self, page: Page) {
        self.check_admission(page);
        self.inner.spared(page);
        self.enter(page);
    }

    fn referenced(&mut self, page: Page) {
        assert!(self.is_resident(page), "caller: page {} referenced, not resident", page.0);
        self.inner.referenced(page);
        self.check_count();
    }

    fn removed(&mut self, page: Page) {
        assert!(self.is_resident(page), "caller: page {} removed, not resident", page.0);
        self.inner.removed(page);
        self.leave(page);
    }

    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        if let Some(page) = incoming {
            assert!(!self.is_resident(page), "caller: incoming page {} is resident", page.0);
            assert!(self.knows_place(page), "caller: room for page {} without its place", page.0);
        }
        let victim = self.inner.victim(incoming);
        match victim {
            Some(page) => {
                assert!(self.is_resident(page), "policy: victim {} is not resident", page.0);
                self.leave(page);
            }
            None => assert_eq!(
                self.resident_pages, 0,
                "policy: no victim, though {} pages are resident",
                self.resident_pages
            ),
        }
        victim
    }

    fn resized(&mut self, frames: u32) {
        self.inner.resized(frames);
        self.frames = frames;
        self.check_count();
    }

    fn fitted(&mut self, frames: u32, most: u32) {
        assert!(frames <= most, "caller: {frames} of {most} frames fill");
        self.inner.fitted(frames, most);
        self.frames = most;
        self.check_count();
    }
}
