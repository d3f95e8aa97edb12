//! Doubly linked lists of pages, threaded through one flat array of `u32` pairs.
//!
//! A page's node is found by its number, so nothing is allocated or hashed per page, and several
//! lists share the nodes: a page is in at most one of them, which is what queues, generations and
//! ghost lists need.
//!
//! ```text
//! node of page p:   [ before | after ]     8 bytes
//!   0               not in a list (what untouched memory reads as)
//!   1 + q           the neighbour is page q
//!   u32::MAX        there is none: p is at that end of its list
//! ```
use crate::Page;
use crate::flat::Flat;

const UNLINKED: u32 = 0;
const END: u32 = u32::MAX;

/// How a page's number is written in a link.
#[inline]
const fn link_to(page: Page) -> u32 {
    page.0 + 1
}

#[inline]
fn page_at(link: u32) -> Option<Page> {
    if link == END { None } else { Some(Page(link - 1)) }
}

/// One list over [`Links`]: its two ends and its length.
///
/// The front is where pages leave first, by convention of the policies here.
#[derive(Clone, Debug)]
pub struct List {
    front: u32,
    back: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        Self::new()
    }
}

impl List {
    /// An empty list.
    pub const fn new() -> Self {
        Self { front: END, back: END, len: 0 }
    }

    /// Number of pages in the list.
    #[inline]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether no page is in the list.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first page.
    #[inline]
    pub fn front(&self) -> Option<Page> {
        page_at(self.front)
    }

    /// The last page.
    #[inline]
    pub fn back(&self) -> Option<Page> {
        page_at(self.back)
    }
}

/// The nodes that lists are threaded through. Grows on demand.
///
/// Every method takes the list it works on; giving it another list than the one the page is in
/// breaks both lists' ends and lengths, so a policy with several keeps a mark per page.
#[derive(Clone, Debug, Default)]
pub struct Links {
    nodes: Flat<[u32; 2]>,
}

const BEFORE: usize = 0;
const AFTER: usize = 1;

impl Links {
    /// No nodes yet.
    pub const fn new() -> Self {
        Self { nodes: Flat::new() }
    }

    /// Whether the page is in some list.
    #[inline]
    pub fn is_linked(&self, page: Page) -> bool {
        self.nodes.get(page.index())[BEFORE] != UNLINKED
    }

    /// The page after this one, towards the back.
    #[inline]
    pub fn after(&self, page: Page) -> Option<Page> {
        match self.nodes.get(page.index())[AFTER] {
            UNLINKED => None,
            link => page_at(link),
        }
    }

    /// The page before this one, towards the front.
    #[inline]
    pub fn before(&self, page: Page) -> Option<Page> {
        match self.nodes.get(page.index())[BEFORE] {
            UNLINKED => None,
            link => page_at(link),
        }
    }

    /// Adds a page that is in no list at the back.
    ///
    /// # Panics
    /// If the page is in a list already, or above [`Page::MAX`].
    #[inline]
    pub fn push_back(&mut self, list: &mut List, page: Page) {
        let node = self.unlinked(page);
        *node = [list.back, END];
        self.set(list.back, AFTER, link_to(page), &mut list.front);
        list.back = link_to(page);
        list.len += 1;
    }

    /// Adds a page that is in no list at the front.
    ///
    /// # Panics
    /// If the page is in a list already, or above [`Page::MAX`].
    #[inline]
    pub fn push_front(&mut self, list: &mut List, page: Page) {
        let node = self.unlinked(page);
        *node = [END, list.front];
        self.set(list.front, BEFORE, link_to(page), &mut list.back);
        list.front = link_to(page);
        list.len += 1;
    }

    /// Takes the page out of the list.
    ///
    /// # Panics
    /// If the page is in no list.
    #[inline]
    pub fn remove(&mut self, list: &mut List, page: Page) {
        let [before, after] = self.linked(page);
        self.set(before, AFTER, after, &mut list.front);
        self.set(after, BEFORE, before, &mut list.back);
        *self.nodes.at(page.index()) = [UNLINKED; 2];
        list.len -= 1;
    }

    /// Takes the first page out.
    #[inline]
    pub fn pop_front(&mut self, list: &mut List) -> Option<Page> {
        let page = list.front()?;
        self.remove(list, page);
        Some(page)
    }

    /// Takes the last page out.
    #[inline]
    pub fn pop_back(&mut self, list: &mut List) -> Option<Page> {
        let page = list.back()?;
        self.remove(list, page);
        Some(page)
    }

    /// Moves a page of the list to its back: what a hit is to LRU, so it writes no more than it
    /// must.
    ///
    /// # Panics
    /// If the page is in no list.
    #[inline]
    pub fn move_to_back(&mut self, list: &mut List, page: Page) {
        let link = link_to(page);
        if list.back == link {
            return;
        }
        let [before, after] = self.linked(page);
        self.set(before, AFTER, after, &mut list.front);
        // Not the back, so there is a page after this one, and a back other than this one.
        self.nodes.at(after as usize - 1)[BEFORE] = before;
        self.nodes.at(list.back as usize - 1)[AFTER] = link;
        *self.nodes.at(page.index()) = [list.back, END];
        list.back = link;
    }

    /// Puts a page that is in no list where another is, which leaves the list.
    ///
    /// # Panics
    /// If the page that comes is in a list already or above [`Page::MAX`], or the one that leaves
    /// is in none.
    #[inline]
    pub fn replace(&mut self, list: &mut List, leaves: Page, comes: Page) {
        let [before, after] = self.linked(leaves);
        *self.unlinked(comes) = [before, after];
        self.set(before, AFTER, link_to(comes), &mut list.front);
        self.set(after, BEFORE, link_to(comes), &mut list.back);
        *self.nodes.at(leaves.index()) = [UNLINKED; 2];
    }

    /// The list's pages from front to back.
    pub fn iter<'a>(&'a self, list: &List) -> impl Iterator<Item = Page> + 'a {
        std::iter::successors(list.front(), |page| self.after(*page))
    }

    /// Sets one side of the neighbour's node, or the list's end where there is no neighbour.
    #[inline]
    fn set(&mut self, neighbour: u32, side: usize, link: u32, end: &mut u32) {
        match neighbour {
            END => *end = link,
            neighbour => self.nodes.at(neighbour as usize - 1)[side] = link,
        }
    }

    #[inline]
    fn linked(&mut self, page: Page) -> [u32; 2] {
        let node = self.nodes.get(page.index());
        assert!(node[BEFORE] != UNLINKED, "page {} is not resident in this policy", page.0);
        node
    }

    #[inline]
    fn unlinked(&mut self, page: Page) -> &mut [u32; 2] {
        assert!(page <= Page::MAX, "page {} is above Page::MAX", page.0);
        let node = self.nodes.slot(page.index());
        assert!(node[BEFORE] == UNLINKED, "page {} is resident in this policy already", page.0);
        node
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn check(links: &Links, list: &List, model: &VecDeque<u32>) {
        let pages: Vec<u32> = links.iter(list).map(|page| page.0).collect();
        assert_eq!(model, &pages);
        assert_eq!(list.len() as usize, model.len());
        assert_eq!(list.is_empty(), model.is_empty());
        assert_eq!(list.front().map(|page| page.0), model.front().copied());
        assert_eq!(list.back().map(|page| page.0), model.back().copied());
        let back: Vec<u32> =
            std::iter::successors(list.back(), |page| links.before(*page)).map(|p| p.0).collect();
        assert!(back.iter().eq(model.iter().rev()));
    }

    proptest! {
        /// Two lists over the same nodes, against two queues.
        #[test]
        fn lists_are_queues(steps in prop::collection::vec((0..7_u8, 0..2_usize, 0..12_u32), 0..200)) {
            let mut links = Links::new();
            let mut lists = [List::new(), List::new()];
            let mut models = [VecDeque::new(), VecDeque::new()];
            for (operation, which, number) in steps {
                let page = Page(number * 999);
                let home = models.iter().position(|model| model.contains(&page.0));
                assert_eq!(links.is_linked(page), home.is_some());
                match (operation, home) {
                    (0, None) => {
                        links.push_back(&mut lists[which], page);
                        models[which].push_back(page.0);
                    }
                    (1, None) => {
                        links.push_front(&mut lists[which], page);
                        models[which].push_front(page.0);
                    }
                    (2, _) => {
                        let page = links.pop_front(&mut lists[which]);
                        assert_eq!(page.map(|page| page.0), models[which].pop_front());
                    }
                    (3, _) => {
                        let page = links.pop_back(&mut lists[which]);
                        assert_eq!(page.map(|page| page.0), models[which].pop_back());
                    }
                    (4, Some(home)) => {
                        links.move_to_back(&mut lists[home], page);
                        models[home].retain(|other| *other != page.0);
                        models[home].push_back(page.0);
                    }
                    (5, None) if !models[which].is_empty() => {
                        let place = number as usize % models[which].len();
                        let leaves = std::mem::replace(&mut models[which][place], page.0);
                        links.replace(&mut lists[which], Page(leaves), page);
                    }
                    (_, Some(home)) => {
                        links.remove(&mut lists[home], page);
                        models[home].retain(|other| *other != page.0);
                    }
                    _ => {}
                }
                (0..2).for_each(|which| check(&links, &lists[which], &models[which]));
            }
        }
    }

    #[test]
    #[should_panic(expected = "page 3 is resident in this policy already")]
    fn a_page_is_in_one_list_at_a_time() {
        let mut links = Links::new();
        links.push_back(&mut List::new(), Page(3));
        links.push_back(&mut List::new(), Page(3));
    }

    #[test]
    #[should_panic(expected = "page 4294967294 is above Page::MAX")]
    fn the_marks_are_no_pages() {
        Links::new().push_back(&mut List::new(), Page(u32::MAX - 1));
    }
}
