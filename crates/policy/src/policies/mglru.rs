//! Generations after Linux's multi-gen LRU.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::parameters::{Kind, ParameterInfo, Parameters, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

const MIN_GENS: ParameterInfo = ParameterInfo {
    key: "min_gens",
    meaning: "generations that are too young to evict from",
    kind: Kind::Integer { least: 1, most: 8 },
    // MIN_NR_GENS and MAX_NR_GENS in Linux's mmzone.h.
    default: Value::Integer(2),
};

const MAX_GENS: ParameterInfo = ParameterInfo {
    key: "max_gens",
    meaning: "most generations at a time; the two oldest become one where there would be more \
              (at least one more than min_gens)",
    kind: Kind::Integer { least: 2, most: GENS as u64 },
    default: Value::Integer(4),
};

/// What the registry says about MGLRU.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "mglru",
    aliases: &["multi-gen-lru"],
    summary: "a few generations by age; referenced pages join the youngest when a new one opens",
    helps: "as CLOCK, with the age of what is not referenced known better; what Linux does",
    hurts: "loops and scans larger than memory",
    source: Source {
        title: "Y. Zhao: Multi-Gen LRU, Linux 6.1, Documentation/mm/multigen_lru.rst and \
                mm/vmscan.c, 2022",
        section: "Aging, Eviction; should_run_aging()",
    },
    cost: "one bit per reference; O(1) amortised per reference and eviction",
    bytes_per_page: 13,
    parameters: &[MIN_GENS, MAX_GENS],
    runs: Runs::Anywhere(|parameters, _, _| Box::new(MgLru::new(parameters))),
};

/// Lists there are, at most; a generation's list is its number modulo this.
const GENS: usize = 16;
/// A page's mark is its list, and whether it was referenced since that bit was last cleared.
const LIST: u8 = GENS as u8 - 1;
const REFERENCED: u8 = 0x80;
/// Notes of references by pages that are gone since, tolerated however few pages are resident.
const STALE_MOST: usize = 1024;

/// Generations of pages, numbered in the order in which they opened. Pages enter the youngest. When
/// those old enough to evict from run out, or the youngest has too many of the pages, *aging* moves
/// all pages referenced since to the youngest generation and opens a new one. Victims are the
/// first pages of the oldest generation; one found referenced goes to the youngest instead.
///
/// Left out of Linux's: the division into anonymous and file pages with its swappiness, and tiers,
/// which protect pages that are read through descriptors and have no reference bit: here every
/// reference sets the bit, which outranks any tier. Page-table walks and their Bloom filters find
/// the set bits; here references leave a note. A prefetched page, not used yet, enters the second
/// oldest generation.
#[derive(Clone, Debug)]
pub struct MgLru {
    links: Links,
    lists: [List; GENS],
    marks: Flat<u8>,
    /// Pages whose bit is set, each at least once, and some whose bit is not.
    referenced: Vec<Page>,
    oldest: u64,
    youngest: u64,
    min_gens: u64,
    max_gens: u64,
    resident_pages: u32,
}

impl MgLru {
    /// Empty generations, with the registry row's parameters.
    pub fn new(parameters: &Parameters) -> Self {
        let min_gens = parameters.integer(MIN_GENS.key);
        Self {
            links: Links::new(),
            lists: [const { List::new() }; GENS],
            marks: Flat::new(),
            referenced: Vec::new(),
            oldest: 0,
            youngest: min_gens - 1,
            min_gens,
            max_gens: parameters.integer(MAX_GENS.key).max(min_gens + 1),
            resident_pages: 0,
        }
    }

    fn list_len(&self, generation: u64) -> u64 {
        self.lists[generation as usize % GENS].len().into()
    }

    fn gens(&self) -> u64 {
        self.youngest - self.oldest + 1
    }

    /// Puts a page, which is in no list, into a generation, its bit clear.
    fn put(&mut self, page: Page, generation: u64) {
        let list = generation as usize % GENS;
        *self.marks.slot(page.index()) = list as u8;
        self.links.push_back(&mut self.lists[list], page);
    }

    fn take(&mut self, page: Page) {
        let list = self.marks.get(page.index()) & LIST;
        self.links.remove(&mut self.lists[usize::from(list)], page);
    }

    /// Linux's `should_run_aging`: one more generation than are too young is enough, if the pages
    /// are spread over them about evenly.
    fn should_age(&self) -> bool {
        let (ideal, total) = (self.min_gens + 1, u64::from(self.resident_pages));
        match self.gens() {
            gens if gens < ideal => true,
            gens if gens > ideal => false,
            _ => {
                self.list_len(self.youngest) * self.min_gens > total
                    || self.list_len(self.oldest) * (self.min_gens + 2) < total
            }
        }
    }

    fn age(&mut self) {
        let mut referenced = std::mem::take(&mut self.referenced);
        for page in referenced.drain(..) {
            if self.has_reference(page) {
                self.take(page);
                self.put(page, self.youngest);
            }
        }
        self.referenced = referenced;
        if self.gens() == self.max_gens {
            let oldest = self.oldest as usize % GENS;
            while let Some(page) = self.links.pop_back(&mut self.lists[oldest]) {
                let list = (self.oldest + 1) as usize % GENS;
                *self.marks.at(page.index()) = list as u8;
                self.links.push_front(&mut self.lists[list], page);
            }
            self.oldest += 1;
        }
        self.youngest += 1;
    }

    fn has_reference(&self, page: Page) -> bool {
        self.links.is_linked(page) && self.marks.get(page.index()) & REFERENCED != 0
    }

    /// Drops notes of pages that are gone, and all but one of each page.
    #[cold]
    fn drop_stale_notes(&mut self) {
        let mut referenced = std::mem::take(&mut self.referenced);
        referenced.retain(|page| {
            let is_first = self.has_reference(*page);
            if is_first {
                *self.marks.at(page.index()) &= !REFERENCED;
            }
            is_first
        });
        for page in &referenced {
            *self.marks.at(page.index()) |= REFERENCED;
        }
        self.referenced = referenced;
    }
}

impl Policy for MgLru {
    fn admitted(&mut self, page: Page, how: Admission) {
        let generation = match how {
            Admission::Demand => self.youngest,
            Admission::Prefetch => (self.oldest + 1).min(self.youngest),
        };
        assert!(!self.links.is_linked(page), "page {} is resident in this policy already", page.0);
        self.put(page, generation);
        self.resident_pages += 1;
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        let mark = self.marks.at(page.index());
        if *mark & REFERENCED == 0 {
            *mark |= REFERENCED;
            self.referenced.push(page);
            if self.referenced.len() > 2 * self.resident_pages as usize + STALE_MOST {
                self.drop_stale_notes();
            }
        }
    }

    fn removed(&mut self, page: Page) {
        self.take(page);
        self.resident_pages -= 1;
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        if self.resident_pages == 0 {
            return None;
        }
        // Ends: pages passed lose their bit, and generations without pages are left behind.
        loop {
            if self.should_age() {
                self.age();
            }
            while self.list_len(self.oldest) == 0 && self.gens() > self.min_gens {
                self.oldest += 1;
            }
            if self.gens() <= self.min_gens {
                continue;
            }
            let oldest = self.oldest as usize % GENS;
            let Some(page) = self.links.pop_front(&mut self.lists[oldest]) else { continue };
            if self.marks.get(page.index()) & REFERENCED == 0 {
                self.resident_pages -= 1;
                return Some(page);
            }
            self.put(page, self.youngest);
        }
    }

    fn resized(&mut self, _frames: u32) {}

    fn resident(&self) -> u32 {
        self.resident_pages
    }
}
