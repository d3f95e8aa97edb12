//! The pages of a program: which queue each is on, its bits and its own integers.
//!
//! A resident page is in exactly one place, which is what keeps a program from losing a page or
//! giving it up twice, whatever it does:
//!
//! ```text
//! home of a page:   0       not resident
//!                   1       loose: resident, on no queue
//!                   2       given up, on its way out
//!                   3 + q   on queue q
//! ```
use std::collections::{BTreeMap, BTreeSet};

use pagekeeper_policy::flat::Flat;
use pagekeeper_policy::list::{Links, List};
use pagekeeper_policy::{Page, Place, Segment};

use crate::program::{End, PAGE_SLOTS};

/// The number of a queue; 0 is `_free_queue`.
pub(crate) type QueueNumber = u16;

const FREE_QUEUE: QueueNumber = 0;

const LOOSE: u16 = 1;
const GIVEN_UP: u16 = 2;
const FIRST_QUEUE: u16 = 3;

pub(crate) const REFERENCED: u8 = 1;
pub(crate) const MODIFIED: u8 = 2;

/// Bits of an address that are the index in the segment.
const INDEX_BITS: u32 = 40;

#[derive(Clone, Debug)]
enum Queue {
    Plain(List),
    Ordered { slot: u8, pages: BTreeSet<(i64, u64, u32)> },
}

#[derive(Clone, Debug)]
pub(crate) struct Pages {
    links: Links,
    queues: Vec<Queue>,
    given_up: List,
    loose: u32,
    resident: u32,
    homes: Flat<u16>,
    bits: Flat<u8>,
    own: Vec<Flat<i64>>,
    /// Of pages on ordered queues: key and turn.
    keys: Flat<(i64, u64)>,
    turn: u64,
    /// Address of each page that was placed.
    addresses: Flat<i64>,
    /// Resident pages, for programs that find them by their addresses.
    by_address: BTreeMap<i64, Page>,
}

impl Pages {
    pub(crate) fn new() -> Self {
        let mut pages = Self {
            links: Links::new(),
            queues: Vec::new(),
            given_up: List::new(),
            loose: 0,
            resident: 0,
            homes: Flat::new(),
            bits: Flat::new(),
            own: (0..PAGE_SLOTS).map(|_| Flat::new()).collect(),
            keys: Flat::new(),
            turn: 0,
            addresses: Flat::new(),
            by_address: BTreeMap::new(),
        };
        pages.add_queue(None);
        pages
    }

    /// Adds an empty queue, in order of one of the pages' own integers if one is given.
    pub(crate) fn add_queue(&mut self, slot: Option<u8>) -> QueueNumber {
        let number = self.queues.len() as QueueNumber;
        self.queues.push(match slot {
            None => Queue::Plain(List::new()),
            Some(slot) => Queue::Ordered { slot, pages: BTreeSet::new() },
        });
        number
    }

    pub(crate) const fn resident(&self) -> u32 {
        self.resident
    }

    /// Pages on no queue.
    pub(crate) const fn loose(&self) -> u32 {
        self.loose
    }

    pub(crate) fn free(&self) -> u32 {
        self.len(FREE_QUEUE) + self.given_up.len()
    }

    pub(crate) fn is_given_up(&self, page: Page) -> bool {
        self.homes.get(page.index()) == GIVEN_UP
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

    /// The page became resident: loose.
    pub(crate) fn admit(&mut self, page: Page, finds_pages: bool) {
        let home = self.homes.slot(page.index());
        assert!(*home == 0, "page {} is resident in this policy already", page.0);
        *home = LOOSE;
        self.loose += 1;
        self.resident += 1;
        *self.bits.slot(page.index()) = 0;
        if finds_pages {
            self.by_address.insert(self.address(page), page);
        }
    }

    /// The page is not resident any more.
    pub(crate) fn remove(&mut self, page: Page) {
        self.unlink(page);
        *self.homes.at(page.index()) = 0;
        self.resident -= 1;
        if !self.by_address.is_empty() {
            let address = self.address(page);
            if self.by_address.get(&address) == Some(&page) {
                self.by_address.remove(&address);
            }
        }
    }

    /// The page that leaves first of those given up: released ones, then the free queue's.
    pub(crate) fn first_given_up(&self) -> Option<Page> {
        self.given_up.front().or_else(|| self.first(FREE_QUEUE, End::Head))
    }

    pub(crate) fn len(&self, queue: QueueNumber) -> u32 {
        match &self.queues[usize::from(queue)] {
            Queue::Plain(list) => list.len(),
            Queue::Ordered { pages, .. } => pages.len() as u32,
        }
    }

    pub(crate) fn is_on(&self, page: Page, queue: QueueNumber) -> bool {
        self.homes.get(page.index()) == FIRST_QUEUE + queue
    }

    #[inline]
    fn first(&self, queue: QueueNumber, end: End) -> Option<Page> {
        match (&self.queues[usize::from(queue)], end) {
            (Queue::Plain(list), End::Head) => list.front(),
            (Queue::Plain(list), End::Tail) => list.back(),
            (Queue::Ordered { pages, .. }, End::Head) => pages.first().map(|it| Page(it.2)),
            (Queue::Ordered { pages, .. }, End::Tail) => pages.last().map(|it| Page(it.2)),
        }
    }

    /// Takes a page off a queue, which makes it loose.
    #[inline]
    pub(crate) fn dequeue(&mut self, queue: QueueNumber, end: End) -> Option<Page> {
        let page = self.first(queue, end)?;
        self.unlink(page);
        *self.homes.at(page.index()) = LOOSE;
        self.loose += 1;
        Some(page)
    }

    /// Puts a resident page on a queue, off whichever it was on.
    #[inline]
    pub(crate) fn enqueue(&mut self, page: Page, queue: QueueNumber, end: End) {
        self.unlink(page);
        *self.homes.at(page.index()) = FIRST_QUEUE + queue;
        match &mut self.queues[usize::from(queue)] {
            Queue::Plain(list) => match end {
                End::Head => self.links.push_front(list, page),
                End::Tail => self.links.push_back(list, page),
            },
            Queue::Ordered { slot, pages } => {
                let key = self.own[usize::from(*slot)].get(page.index());
                self.turn += 1;
                *self.keys.slot(page.index()) = (key, self.turn);
                pages.insert((key, self.turn, page.0));
            }
        }
    }

    /// Gives up a resident page that was not given up before.
    pub(crate) fn release(&mut self, page: Page) {
        self.unlink(page);
        *self.homes.at(page.index()) = GIVEN_UP;
        self.links.push_back(&mut self.given_up, page);
    }

    /// Takes a resident page out of where it is; its home is to be set.
    #[inline]
    fn unlink(&mut self, page: Page) {
        match self.homes.get(page.index()) {
            0 => panic!("page {} is not resident in this policy", page.0),
            LOOSE => self.loose -= 1,
            GIVEN_UP => self.links.remove(&mut self.given_up, page),
            home => match &mut self.queues[usize::from(home - FIRST_QUEUE)] {
                Queue::Plain(list) => self.links.remove(list, page),
                Queue::Ordered { pages, .. } => {
                    let (key, turn) = self.keys.get(page.index());
                    pages.remove(&(key, turn, page.0));
                }
            },
        }
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
        self.own[usize::from(slot)].get(page.index())
    }

    #[inline]
    pub(crate) fn store(&mut self, page: Page, slot: u8, value: i64) {
        *self.own[usize::from(slot)].slot(page.index()) = value;
    }
}
