//! The pages of a program: which queue each is on, its bits and its own integers.
//!
//! A resident page is in exactly one place, which is what keeps a program from losing a page or
//! giving it up twice, whatever it does:
//!
//! ```text
//! home of a page:   0       not resident
//!                   1       loose: resident, on no queue
//!                   2       given up, on its way out
//!                   3 + q   on queue q; queue 0 is _free_queue
//!
//! node of a home    [ back   | front | len  | ordered ]   ordered: 1 + its place, or 0
//! node of a page    [ before | after | home | arrival ]
//! ```
//!
//! Nodes are in one array, those of homes first: the link of a home is its number, that of a page
//! its number plus the number of homes. A queue is a ring through its home's node, so no end of one
//! is a case of its own. Arrivals are counted, so that the pages can be put in the order in which
//! they came.
//!
//! Compiled programs read and write nodes, bits and integers where they are. What holds for all of
//! it, and what their code relies on:
//!
//! - a link in a node is that of a home or of a page that was admitted, a page in an operand is 0
//!   or the link of a page that was, and the arrays reach as far as any page that was;
//! - the home of a page is below the number of homes, which never changes once a program runs.
use std::collections::{BTreeMap, BTreeSet};

use pagekeeper_policy::flat::Flat;
use pagekeeper_policy::{Page, Place, Segment};

use crate::program::{End, PAGE_SLOTS};

/// Where a page is, see above.
pub(crate) type Home = u32;

pub(crate) const ABSENT: Home = 0;
pub(crate) const LOOSE: Home = 1;
pub(crate) const GIVEN_UP: Home = 2;
/// That of `_free_queue`.
pub(crate) const FIRST_QUEUE: Home = 3;

/// Fields of a node.
pub(crate) const BEFORE: usize = 0;
pub(crate) const AFTER: usize = 1;
pub(crate) const HOME: usize = 2;
const ARRIVAL: usize = 3;
/// Fields of a home.
pub(crate) const BACK: usize = BEFORE;
pub(crate) const FRONT: usize = AFTER;
pub(crate) const LEN: usize = 2;
pub(crate) const ORDERED: usize = 3;

/// Bits of a page.
pub(crate) const REFERENCED: u8 = 1;
pub(crate) const MODIFIED: u8 = 2;
/// Those of the pool's own order.
pub(crate) const POOL_REFERENCED: u8 = 4;
pub(crate) const POOL_INACTIVE: u8 = 8;

/// The place of an integer that is always 0.
pub(crate) const NO_COLUMN: u8 = u8::MAX;

/// Bits of an address that are the index in the segment.
pub(crate) const INDEX_BITS: u32 = 40;

/// A queue in order of an integer of its pages: that, the turn in which the page came, the page.
#[derive(Clone, Debug)]
struct Ordered {
    slot: u8,
    pages: BTreeSet<(i64, u64, u32)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Pages {
    nodes: Flat<[u32; 4]>,
    homes: u32,
    ordered: Vec<Ordered>,
    resident: u32,
    /// That of the page that came last.
    arrival: u32,
    pub(crate) bits: Flat<u8>,
    /// The pages' own integers, those of a page side by side.
    numbers: Flat<i64>,
    columns: [u8; PAGE_SLOTS as usize],
    /// Integers that are kept for each page.
    stride: usize,
    /// Of pages on ordered queues: key and turn.
    keys: Flat<(i64, u64)>,
    turn: u64,
    /// Address of each page that was placed.
    addresses: Flat<i64>,
    /// Resident pages, for programs that find them by their addresses.
    by_address: BTreeMap<i64, Page>,
}

/// What compiled programs read and write.
pub(crate) struct Memory<'a> {
    pub(crate) nodes: &'a mut [[u32; 4]],
    pub(crate) bits: &'a mut [u8],
    pub(crate) numbers: &'a mut [i64],
}

impl Pages {
    /// No pages, and `_free_queue`. `columns` says where each of the pages' own integers is kept.
    pub(crate) fn new(columns: [u8; PAGE_SLOTS as usize]) -> Self {
        let mut pages = Self {
            nodes: Flat::new(),
            homes: 0,
            ordered: Vec::new(),
            resident: 0,
            arrival: 0,
            bits: Flat::new(),
            numbers: Flat::new(),
            columns,
            stride: columns.iter().filter(|column| **column != NO_COLUMN).count(),
            keys: Flat::new(),
            turn: 0,
            addresses: Flat::new(),
            by_address: BTreeMap::new(),
        };
        for home in ABSENT..=FIRST_QUEUE {
            assert_eq!(pages.add_queue(None), home);
        }
        pages
    }

    /// Homes that there are.
    pub(crate) const fn homes(&self) -> u32 {
        self.homes
    }

    #[inline]
    pub(crate) const fn link_to(&self, page: Page) -> u32 {
        page.0.saturating_add(self.homes)
    }

    /// The page of a link that may be none, or a home's.
    #[inline]
    pub(crate) const fn page_at(&self, link: u32) -> Option<Page> {
        match link.checked_sub(self.homes) {
            Some(number) => Some(Page(number)),
            None => None,
        }
    }

    #[inline]
    fn node(&mut self, page: Page) -> &mut [u32; 4] {
        self.nodes.at(self.link_to(page) as usize)
    }

    /// The homes of loose and given up pages and `_free_queue`, by their numbers.
    #[inline]
    fn first_homes(&self) -> &[[u32; 4]; FIRST_QUEUE as usize + 1] {
        self.nodes.as_slice().first_chunk().expect("they are made with the pages")
    }

    /// Adds an empty queue, in order of one of the pages' own integers if one is given.
    pub(crate) fn add_queue(&mut self, slot: Option<u8>) -> Home {
        if let Some(slot) = slot {
            self.ordered.push(Ordered { slot, pages: BTreeSet::new() });
        }
        let ordered = if slot.is_some() { self.ordered.len() as u32 } else { 0 };
        let home = self.homes;
        self.homes += 1;
        *self.nodes.slot(home as usize) = [home, home, 0, ordered];
        home
    }

    pub(crate) fn memory(&mut self) -> Memory<'_> {
        Memory {
            nodes: self.nodes.as_mut_slice(),
            bits: self.bits.as_mut_slice(),
            numbers: self.numbers.as_mut_slice(),
        }
    }

    /// Where an integer of each page is kept, and how many are: page · stride + column.
    pub(crate) fn column(&self, slot: u8) -> Option<(usize, usize)> {
        match self.columns[usize::from(slot)] {
            NO_COLUMN => None,
            column => Some((column.into(), self.stride)),
        }
    }

    pub(crate) fn has_ordered_queues(&self) -> bool {
        !self.ordered.is_empty()
    }

    #[inline]
    pub(crate) const fn resident(&self) -> u32 {
        self.resident
    }

    /// Pages on no queue.
    #[inline]
    pub(crate) fn loose(&self) -> u32 {
        self.first_homes()[LOOSE as usize][LEN]
    }

    #[inline]
    pub(crate) fn free(&self) -> u32 {
        self.len(FIRST_QUEUE) + self.len(GIVEN_UP)
    }

    #[inline]
    pub(crate) fn home(&self, page: Page) -> Home {
        self.nodes.get(self.link_to(page) as usize)[HOME]
    }

    /// The link of a resident page.
    ///
    /// # Panics
    /// If the page is not resident.
    #[inline]
    pub(crate) fn resident_link(&self, page: Page) -> u32 {
        let link = self.link_to(page);
        let home = self.nodes.get(link as usize)[HOME];
        assert!(home != ABSENT, "page {} is not resident in this policy", page.0);
        link
    }

    pub(crate) fn placed(&mut self, page: Page, place: Place) {
        let address = i64::from(place.segment.0) << INDEX_BITS | place.index as i64;
        *self.addresses.slot(page.index()) = address;
    }

    /// Where a page lives that was placed.
    pub(crate) fn place(&self, page: Page) -> Place {
        let address = self.address(page) as u64;
        let index = address & ((1 << INDEX_BITS) - 1);
        Place { segment: Segment((address >> INDEX_BITS) as u32), index }
    }

    /// The address, in pages.
    pub(crate) fn address(&self, page: Page) -> i64 {
        self.addresses.get(page.index())
    }

    pub(crate) fn at_address(&self, address: i64) -> Option<Page> {
        self.by_address.get(&address).copied()
    }

    /// The page became resident: loose, and its bits clear. Its link.
    #[inline]
    pub(crate) fn admit(&mut self, page: Page) -> u32 {
        let link = page.0.checked_add(self.homes);
        let link = link.unwrap_or_else(|| panic!("page {} is above what a program takes", page.0));
        if self.arrival == u32::MAX {
            self.count_arrivals_anew();
        }
        self.arrival += 1;
        let node = self.nodes.slot(link as usize);
        assert!(node[HOME] == ABSENT, "page {} is resident in this policy already", page.0);
        node[HOME] = LOOSE;
        node[ARRIVAL] = self.arrival;
        self.nodes.at(LOOSE as usize)[LEN] += 1;
        self.resident += 1;
        *self.bits.slot(page.index()) = 0;
        if self.stride > 0 {
            self.numbers.slot((page.index() + 1) * self.stride - 1);
        }
        link
    }

    /// The page that became resident can be found by its address.
    pub(crate) fn note_address(&mut self, page: Page) {
        self.by_address.insert(self.address(page), page);
    }

    /// The resident pages in the order in which they came.
    pub(crate) fn by_arrival(&self) -> Vec<Page> {
        let nodes = self.nodes.as_slice().iter().skip(self.homes as usize).enumerate();
        let mut pages: Vec<(u32, Page)> = nodes
            .filter(|(_, node)| node[HOME] != ABSENT)
            .map(|(number, node)| (node[ARRIVAL], Page(number as u32)))
            .collect();
        pages.sort_unstable();
        pages.into_iter().map(|(_, page)| page).collect()
    }

    /// Makes the numbers of arrivals as small as they can be.
    #[cold]
    fn count_arrivals_anew(&mut self) {
        for (at, page) in self.by_arrival().into_iter().enumerate() {
            self.node(page)[ARRIVAL] = at as u32 + 1;
        }
        self.arrival = self.resident;
    }

    /// The page is not resident any more.
    pub(crate) fn remove(&mut self, page: Page) {
        self.unlink(page);
        self.leave(page);
    }

    /// The same, for one that compiled Replace took out of where it was.
    #[inline]
    pub(crate) fn leave(&mut self, page: Page) {
        let link = page.0.wrapping_add(self.homes);
        self.nodes.at(link as usize)[HOME] = ABSENT;
        self.resident -= 1;
        if !self.by_address.is_empty() {
            self.forget_address(page);
        }
    }

    #[cold]
    fn forget_address(&mut self, page: Page) {
        let address = self.address(page);
        if self.by_address.get(&address) == Some(&page) {
            self.by_address.remove(&address);
        }
    }

    /// The page that leaves first of those given up: released ones, then the free queue's.
    /// Neither is ordered.
    #[inline]
    pub(crate) fn first_given_up(&self) -> Option<Page> {
        let homes = self.first_homes();
        self.page_at(homes[GIVEN_UP as usize][FRONT])
            .or_else(|| self.page_at(homes[FIRST_QUEUE as usize][FRONT]))
    }

    #[inline]
    pub(crate) fn len(&self, home: Home) -> u32 {
        self.nodes.get(home as usize)[LEN]
    }

    #[inline]
    fn first(&self, home: Home, end: End) -> Option<Page> {
        let queue = self.nodes.get(home as usize);
        match (queue[ORDERED], end) {
            (0, End::Head) => self.page_at(queue[FRONT]),
            (0, End::Tail) => self.page_at(queue[BACK]),
            (place, End::Head) => {
                self.ordered[place as usize - 1].pages.first().map(|it| Page(it.2))
            }
            (place, End::Tail) => {
                self.ordered[place as usize - 1].pages.last().map(|it| Page(it.2))
            }
        }
    }

    /// All resident pages from head to tail, if they are on one plain queue.
    pub(crate) fn in_one_order(&self) -> Option<Vec<Page>> {
        let is_all = |queue: &&[u32; 4]| queue[LEN] == self.resident && queue[ORDERED] == 0;
        let homes = &self.nodes.as_slice()[..self.homes as usize];
        let queue = homes[FIRST_QUEUE as usize..].iter().find(is_all)?;
        let behind =
            |page: &Page| self.page_at(self.nodes.get(self.link_to(*page) as usize)[AFTER]);
        Some(std::iter::successors(self.page_at(queue[FRONT]), behind).collect())
    }

    pub(crate) fn is_resident(&self, page: Page) -> bool {
        self.home(page) != ABSENT
    }

    /// Takes a page off a queue, which makes it loose.
    #[inline]
    pub(crate) fn dequeue(&mut self, home: Home, end: End) -> Option<Page> {
        let page = self.first(home, end)?;
        self.unlink(page);
        self.node(page)[HOME] = LOOSE;
        self.nodes.at(LOOSE as usize)[LEN] += 1;
        Some(page)
    }

    /// Puts a resident page on a queue, off whichever it was on.
    #[inline]
    pub(crate) fn enqueue(&mut self, page: Page, home: Home, end: End) {
        self.unlink(page);
        match self.nodes.get(home as usize)[ORDERED] {
            0 => self.link(page, home, end),
            place => {
                let slot = self.ordered[place as usize - 1].slot;
                let key = self.load(page, slot);
                self.turn += 1;
                *self.keys.slot(page.index()) = (key, self.turn);
                self.ordered[place as usize - 1].pages.insert((key, self.turn, page.0));
                self.node(page)[HOME] = home;
                self.nodes.at(home as usize)[LEN] += 1;
            }
        }
    }

    /// Gives up a resident page that was not given up before.
    pub(crate) fn release(&mut self, page: Page) {
        self.unlink(page);
        self.link(page, GIVEN_UP, End::Tail);
    }

    /// Takes a resident page out of where it is; its home is to be set.
    #[inline]
    fn unlink(&mut self, page: Page) {
        let [before, after, home, _] = self.nodes.get(self.link_to(page) as usize);
        assert!(home != ABSENT, "page {} is not resident in this policy", page.0);
        let queue = self.nodes.at(home as usize);
        queue[LEN] -= 1;
        if home == LOOSE {
            return;
        }
        if queue[ORDERED] != 0 {
            let place = queue[ORDERED] as usize - 1;
            let (key, turn) = self.keys.get(page.index());
            self.ordered[place].pages.remove(&(key, turn, page.0));
            return;
        }
        self.nodes.at(before as usize)[AFTER] = after;
        self.nodes.at(after as usize)[BEFORE] = before;
    }

    /// Puts a page that is in no place at an end of a queue that is not ordered.
    #[inline]
    fn link(&mut self, page: Page, home: Home, end: End) {
        let link = self.link_to(page);
        let (inner, outer) = match end {
            End::Head => (AFTER, BEFORE),
            End::Tail => (BEFORE, AFTER),
        };
        let queue = self.nodes.at(home as usize);
        queue[LEN] += 1;
        let neighbour = std::mem::replace(&mut queue[inner], link);
        self.nodes.at(neighbour as usize)[outer] = link;
        let node = self.nodes.at(link as usize);
        node[inner] = neighbour;
        node[outer] = home;
        node[HOME] = home;
    }

    #[inline]
    pub(crate) fn has_bit(&self, page: Page, bit: u8) -> bool {
        self.bits.get(page.index()) & bit != 0
    }

    /// Of a resident page.
    #[inline]
    pub(crate) fn set_bit(&mut self, page: Page, bit: u8, to: bool) {
        let bits = self.bits.at(page.index());
        *bits = if to { *bits | bit } else { *bits & !bit };
    }

    #[inline]
    pub(crate) fn load(&self, page: Page, slot: u8) -> i64 {
        match self.column(slot) {
            Some((column, stride)) => self.numbers.get(page.index() * stride + column),
            None => 0,
        }
    }

    /// Of an integer that some command of the program stores.
    #[inline]
    pub(crate) fn store(&mut self, page: Page, slot: u8, value: i64) {
        if let Some((column, stride)) = self.column(slot) {
            *self.numbers.at(page.index() * stride + column) = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_counted_anew_in_their_order() {
        let mut pages = Pages::new([NO_COLUMN; PAGE_SLOTS as usize]);
        pages.arrival = u32::MAX - 3;
        for page in [5, 3, 9, 1, 7, 2] {
            pages.admit(Page(page));
        }
        pages.remove(Page(3));
        assert_eq!(pages.by_arrival(), [5, 9, 1, 7, 2].map(Page));
        assert_eq!(pages.arrival, 6, "three were here when the numbers had run out");
    }
}
