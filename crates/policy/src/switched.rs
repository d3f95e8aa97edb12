//! A pool of frames whose policy can be exchanged while it runs: what selectors are built from.
use std::collections::VecDeque;

use crate::flat::Flat;
use crate::list::{Links, List};
use crate::registry::PolicySpec;
use crate::{Admission, Note, Page, Place, Policy, Segment};

/// Notes kept when nobody takes them; the oldest go first.
const NOTES_MAX: usize = 256;

/// Whether text names a policy that can be in such a pool.
pub(crate) fn names_a_policy(text: &str) -> bool {
    PolicySpec::parse(text).is_ok_and(|spec| spec.info().runs_live())
}

/// Builds a policy that runs anywhere, as was found when its text was read.
pub(crate) fn build(spec: &PolicySpec, frames: u32, seed: u64) -> Box<dyn Policy> {
    spec.build(frames, seed).unwrap_or_else(|error| panic!("checked when it was read: {error}"))
}

/// Forwards to one policy at a time, and knows of every resident page what its successor needs.
///
/// A successor inherits the resident pages in order of last reference, the oldest first, as if
/// they had been admitted in that order; those fetched ahead and not seen used since as fetched
/// ahead. Recency is what every policy can make something of, and the only order that is known
/// whatever the predecessor was.
///
/// 9 bytes per page besides the policy's own, and 16 more where places are wanted, or 4 where segments are
/// enough.
pub struct Switched {
    active: Box<dyn Policy>,
    links: Links,
    /// By last reference, the oldest in front.
    order: List,
    is_ahead: Flat<u8>,
    places: Places,
    references: u64,
    switches: u64,
    notes: VecDeque<Note>,
}

impl Switched {
    /// An empty pool under this policy, which keeps what it or any successor wants to know.
    pub fn new(first: Box<dyn Policy>, keeps: Keeps) -> Self {
        debug_assert!(keeps >= Keeps::what(&*first));
        Self {
            active: first,
            links: Links::new(),
            order: List::new(),
            is_ahead: Flat::new(),
            places: Places::new(keeps),
            references: 0,
            switches: 0,
            notes: VecDeque::new(),
        }
    }

    /// Hands the resident pages to another policy, which holds none yet, and notes why.
    pub fn switch_to(&mut self, mut policy: Box<dyn Policy>, why: String) {
        self.places.era = self.places.era.wrapping_add(1);
        self.hand_pages_to(&mut *policy);
        self.active = policy;
        self.switches += 1;
        if self.notes.len() == NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back(Note { at_refs: self.references, text: why });
    }

    /// A pool of its own under another policy, which holds none yet: with the same pages, handed
    /// on in the same way.
    pub fn branch(&self, policy: Box<dyn Policy>) -> Self {
        let mut branch = Self::new(policy, self.places.keeps);
        for page in self.links.iter(&self.order) {
            if let Some(place) = self.places.get(page) {
                branch.placed(page, place);
            }
            branch.admitted(page, self.admission_of(page));
        }
        branch
    }

    /// Admits the resident pages to a policy that holds none, in order of last reference.
    fn hand_pages_to(&self, policy: &mut dyn Policy) {
        let wants_places = policy.wants_places();
        for page in self.links.iter(&self.order) {
            if let Some(place) = self.places.get(page).filter(|_| wants_places) {
                policy.placed(page, place);
            }
            policy.admitted(page, self.admission_of(page));
        }
    }

    /// Whether the page is resident.
    #[inline]
    pub fn holds(&self, page: Page) -> bool {
        self.links.is_linked(page)
    }

    /// Whether seven eighths of this pool's pages are in the other pool, too. O(pages).
    pub fn shares_most_with(&self, other: &Self) -> bool {
        let lacking = self.links.iter(&self.order).filter(|page| !other.holds(*page)).count();
        8 * lacking <= self.resident() as usize
    }

    /// References seen: admissions on demand, and touches.
    pub const fn references(&self) -> u64 {
        self.references
    }

    /// Successors so far.
    pub const fn switches(&self) -> u64 {
        self.switches
    }

    /// What happened since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        self.notes.drain(..).collect()
    }

    /// Where the page lives, as far as it was told and is kept; pages that left are remembered.
    pub fn place_of(&self, page: Page) -> Option<Place> {
        self.places.get(page).filter(|_| self.places.keeps == Keeps::Places)
    }

    /// The segment that the page is of, likewise.
    pub fn segment_of(&self, page: Page) -> Option<Segment> {
        self.places.get(page).map(|place| place.segment)
    }

    fn admission_of(&self, page: Page) -> Admission {
        if self.is_ahead.get(page.index()) == 0 { Admission::Demand } else { Admission::Prefetch }
    }

    fn count_reference(&mut self, page: Page) {
        self.links.move_to_back(&mut self.order, page);
        *self.is_ahead.at(page.index()) = 0;
        self.references += 1;
    }

    /// Tells the policy a page's place if only its predecessor was told.
    fn tell_again(&mut self, page: Page) {
        if self.active.wants_places()
            && let Some(place) = self.places.get_if_old(page)
        {
            self.active.placed(page, place);
        }
    }
}

impl Policy for Switched {
    fn wants_places(&self) -> bool {
        self.places.keeps > Keeps::Nothing
    }

    fn wants_indices(&self) -> bool {
        self.places.keeps == Keeps::Places
    }

    fn placed(&mut self, page: Page, place: Place) {
        self.places.set(page, place);
        if self.active.wants_places() {
            self.active.placed(page, place);
        }
    }

    fn admitted(&mut self, page: Page, how: Admission) {
        self.tell_again(page);
        self.active.admitted(page, how);
        self.links.push_back(&mut self.order, page);
        *self.is_ahead.slot(page.index()) = u8::from(how == Admission::Prefetch);
        self.references += u64::from(how == Admission::Demand);
    }

    fn spared(&mut self, page: Page) {
        self.tell_again(page);
        self.active.spared(page);
        self.links.push_back(&mut self.order, page);
        *self.is_ahead.slot(page.index()) = 0;
    }

    fn wants_samples(&self) -> bool {
        self.active.wants_samples()
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        self.active.referenced(page);
        self.count_reference(page);
    }

    fn sampled(&mut self, page: Page) {
        self.active.sampled(page);
        self.count_reference(page);
    }

    fn removed(&mut self, page: Page) {
        self.active.removed(page);
        self.links.remove(&mut self.order, page);
    }

    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        if let Some(page) = incoming {
            self.tell_again(page);
        }
        let page = self.active.victim(incoming)?;
        self.links.remove(&mut self.order, page);
        Some(page)
    }

    fn resized(&mut self, frames: u32) {
        self.active.resized(frames);
    }

    fn resident(&self) -> u32 {
        self.order.len()
    }
}

/// What is kept of where pages live.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Keeps {
    /// Nobody asks.
    Nothing,
    /// Of which segment each is.
    Segments,
    /// And where in it.
    Places,
}

impl Keeps {
    /// What a policy wants to know.
    pub fn what(policy: &dyn Policy) -> Keeps {
        match (policy.wants_places(), policy.wants_indices()) {
            (false, _) => Keeps::Nothing,
            (true, false) => Keeps::Segments,
            (true, true) => Keeps::Places,
        }
    }
}

/// Where pages live.
struct Places {
    keeps: Keeps,
    /// Per page: 1 + its segment; 0 before it was told.
    segments: Flat<u32>,
    indices: Flat<u64>,
    /// Number of policies so far.
    era: u32,
    /// Per page whose index is kept, too: 1 + the era in which it was told.
    eras: Flat<u32>,
}

impl Places {
    const fn new(keeps: Keeps) -> Self {
        Self { keeps, segments: Flat::new(), indices: Flat::new(), era: 0, eras: Flat::new() }
    }

    fn set(&mut self, page: Page, place: Place) {
        if self.keeps > Keeps::Nothing {
            *self.segments.slot(page.index()) = place.segment.0.wrapping_add(1);
        }
        if self.keeps == Keeps::Places {
            *self.indices.slot(page.index()) = place.index;
            *self.eras.slot(page.index()) = self.mark();
        }
    }

    /// What is kept of where the page lives: its index is 0 where indices are not.
    fn get(&self, page: Page) -> Option<Place> {
        let segment = self.segments.get(page.index()).checked_sub(1)?;
        Some(Place { segment: Segment(segment), index: self.indices.get(page.index()) })
    }

    /// The place if it was last told in another era, which this ends. (Segments may be told again.)
    fn get_if_old(&mut self, page: Page) -> Option<Place> {
        let (place, mark) = (self.get(page)?, self.mark());
        if self.keeps < Keeps::Places {
            return Some(place);
        }
        let told = self.eras.at(page.index());
        (std::mem::replace(told, mark) != mark).then_some(place)
    }

    const fn mark(&self) -> u32 {
        match self.era.wrapping_add(1) {
            0 => 1,
            mark => mark,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::policies::lru::Lru;

    #[derive(Debug, PartialEq)]
    enum Call {
        Placed(u32, u64),
        Admitted(u32, Admission),
        Referenced(u32),
    }

    /// LRU that wants places and tells what it was told.
    struct Witness(Lru, Sender<Call>);

    impl Policy for Witness {
        fn wants_places(&self) -> bool {
            true
        }
        fn placed(&mut self, page: Page, place: Place) {
            self.1.send(Call::Placed(page.0, place.index)).unwrap();
        }
        fn admitted(&mut self, page: Page, how: Admission) {
            self.1.send(Call::Admitted(page.0, how)).unwrap();
            self.0.admitted(page, how);
        }
        fn referenced(&mut self, page: Page) {
            self.1.send(Call::Referenced(page.0)).unwrap();
            self.0.referenced(page);
        }
        fn removed(&mut self, page: Page) {
            self.0.removed(page);
        }
        fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
            self.0.victim(incoming)
        }
        fn resized(&mut self, frames: u32) {
            self.0.resized(frames);
        }
        fn resident(&self) -> u32 {
            self.0.resident()
        }
    }

    fn witness() -> (Box<Witness>, Receiver<Call>) {
        let (sender, receiver) = channel();
        (Box::new(Witness(Lru::new(), sender)), receiver)
    }

    fn place(index: u64) -> Place {
        Place { segment: Segment(5), index }
    }

    #[test]
    fn a_successor_inherits_pages_by_recency_with_their_places() {
        let (first, _calls) = witness();
        let mut pool = Switched::new(first, Keeps::Places);
        for page in 0..4 {
            pool.placed(Page(page), place(100 + u64::from(page)));
            let how = if page < 2 { Admission::Demand } else { Admission::Prefetch };
            pool.admitted(Page(page), how);
        }
        pool.referenced(Page(0));
        pool.referenced(Page(2));
        pool.removed(Page(1));
        // Told before the switch, needed after it.
        pool.placed(Page(9), place(109));
        let (second, calls) = witness();
        pool.switch_to(second, "a test".to_owned());
        let inherited: Vec<Call> = calls.try_iter().collect();
        assert_eq!(
            inherited,
            [
                Call::Placed(3, 103),
                Call::Admitted(3, Admission::Prefetch),
                Call::Placed(0, 100),
                Call::Admitted(0, Admission::Demand),
                Call::Placed(2, 102),
                Call::Admitted(2, Admission::Demand),
            ]
        );
        assert_eq!(pool.victim(Some(Page(9))), Some(Page(3)));
        pool.admitted(Page(9), Admission::Demand);
        pool.referenced(Page(9));
        let after: Vec<Call> = calls.try_iter().collect();
        let told =
            [Call::Placed(9, 109), Call::Admitted(9, Admission::Demand), Call::Referenced(9)];
        assert_eq!(after, told);
        assert_eq!((pool.resident(), pool.references(), pool.switches()), (3, 6, 1));
        let notes = pool.take_notes();
        assert_eq!((notes.len(), notes[0].at_refs), (1, 4));
        assert!(pool.take_notes().is_empty());
    }

    #[test]
    fn notes_that_nobody_takes_do_not_pile_up() {
        let mut pool = Switched::new(Box::new(Lru::new()), Keeps::Nothing);
        for switch in 0..2 * NOTES_MAX {
            pool.switch_to(Box::new(Lru::new()), switch.to_string());
        }
        let notes = pool.take_notes();
        assert_eq!(notes.len(), NOTES_MAX);
        assert_eq!(notes.last().unwrap().text, (2 * NOTES_MAX - 1).to_string());
    }
}
