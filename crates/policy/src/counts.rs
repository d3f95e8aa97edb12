//! Pages by how often they were used, in constant time per use.
//!
//! One list of pages for each number of uses that some page has, the lists linked in order of that
//! number. K. Shah, A. Mitra, D. Matani: An O(1) algorithm for implementing the LFU cache eviction
//! scheme, 2010.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::{Admission, Page};

/// A class that is not there: what is below the lowest and above the highest.
const NONE: u32 = u32::MAX;
/// In a page's mark: no use of it was seen, the admission stands for one.
const UNSEEN: u32 = 1;

/// The pages that were used equally often.
#[derive(Clone, Debug)]
struct Class {
    uses: u64,
    /// In the order in which they came to that number.
    pages: List,
    below: u32,
    above: u32,
}

/// The pages with their numbers of uses: 12 bytes per page, and 32 for each number of uses that
/// occurs, of which *r* references make √(2 *r*) at most.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    links: Links,
    classes: Vec<Class>,
    /// Classes without pages, to be used again.
    spare: Vec<u32>,
    lowest: u32,
    highest: u32,
    /// Index of the page's class · 2, and [`UNSEEN`].
    marks: Flat<u32>,
    len: u32,
}

impl Default for Counts {
    fn default() -> Self {
        Self::new()
    }
}

impl Counts {
    /// No pages.
    pub(crate) const fn new() -> Self {
        Self {
            links: Links::new(),
            classes: Vec::new(),
            spare: Vec::new(),
            lowest: NONE,
            highest: NONE,
            marks: Flat::new(),
            len: 0,
        }
    }

    /// Number of pages.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// Adds a page, used once: as the latest of those, or as their earliest if `first`.
    ///
    /// The one use of a prefetched page is yet to come: when it is seen the page becomes the
    /// latest of those used once.
    pub(crate) fn insert(&mut self, page: Page, how: Admission, first: bool) {
        if self.lowest == NONE || self.classes[self.lowest as usize].uses > 1 {
            self.insert_class(1, NONE, self.lowest);
        }
        let pages = &mut self.classes[self.lowest as usize].pages;
        if first {
            self.links.push_front(pages, page);
        } else {
            self.links.push_back(pages, page);
        }
        let unseen = u32::from(how == Admission::Prefetch) * UNSEEN;
        *self.marks.slot(page.index()) = self.lowest << 1 | unseen;
        self.len += 1;
    }

    /// One more use of a page that is in.
    #[inline]
    pub(crate) fn used(&mut self, page: Page) {
        let mark = self.marks.at(page.index());
        let at = *mark >> 1;
        let class = &mut self.classes[at as usize];
        if *mark & UNSEEN != 0 {
            *mark &= !UNSEEN;
            self.links.move_to_back(&mut class.pages, page);
            return;
        }
        let (uses, above) = (class.uses + 1, class.above);
        let has_next = above != NONE && self.classes[above as usize].uses == uses;
        let class = &mut self.classes[at as usize];
        if class.pages.len() == 1 && !has_next {
            class.uses = uses;
            return;
        }
        self.links.remove(&mut class.pages, page);
        let is_empty = class.pages.is_empty();
        let next = if has_next { above } else { self.insert_class(uses, at, above) };
        self.links.push_back(&mut self.classes[next as usize].pages, page);
        *self.marks.at(page.index()) = next << 1;
        if is_empty {
            self.remove_class(at);
        }
    }

    /// Takes a page out.
    pub(crate) fn remove(&mut self, page: Page) {
        let at = self.marks.get(page.index()) >> 1;
        assert!(self.links.is_linked(page), "page {} is not resident in this policy", page.0);
        let pages = &mut self.classes[at as usize].pages;
        self.links.remove(pages, page);
        if pages.is_empty() {
            self.remove_class(at);
        }
        self.len -= 1;
    }

    /// The earliest of those used least.
    pub(crate) fn least_used(&self) -> Option<Page> {
        self.classes.get(self.lowest as usize)?.pages.front()
    }

    /// The latest of those used most.
    pub(crate) fn most_used(&self) -> Option<Page> {
        self.classes.get(self.highest as usize)?.pages.back()
    }

    #[cold]
    fn insert_class(&mut self, uses: u64, below: u32, above: u32) -> u32 {
        let class = Class { uses, pages: List::new(), below, above };
        let at = match self.spare.pop() {
            Some(at) => {
                self.classes[at as usize] = class;
                at
            }
            None => {
                self.classes.push(class);
                self.classes.len() as u32 - 1
            }
        };
        self.set_above(below, at);
        self.set_below(above, at);
        at
    }

    #[cold]
    fn remove_class(&mut self, at: u32) {
        let Class { below, above, .. } = self.classes[at as usize];
        self.set_above(below, above);
        self.set_below(above, below);
        self.spare.push(at);
    }

    /// Says what is above a class, or what is lowest where there is no class.
    fn set_above(&mut self, class: u32, above: u32) {
        match class {
            NONE => self.lowest = above,
            class => self.classes[class as usize].above = above,
        }
    }

    /// Says what is below a class, or what is highest where there is no class.
    fn set_below(&mut self, class: u32, below: u32) {
        match class {
            NONE => self.highest = below,
            class => self.classes[class as usize].below = below,
        }
    }
}
