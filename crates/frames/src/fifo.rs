//! A first-in-first-out queue of pages that can also lose a page from its middle.

use pagekeeper_policy::Page;

const NONE: u32 = u32::MAX;

/// Pages in the order in which they were pushed; each at most once. Eight bytes a page number.
#[derive(Default)]
pub(crate) struct Fifo {
    /// (previous, next); a page that is not queued points at itself.
    links: Vec<(u32, u32)>,
    head: Option<u32>,
    tail: Option<u32>,
    len: u32,
}

impl Fifo {
    fn grow(&mut self, page: Page) {
        while self.links.len() <= page.index() {
            let at = self.links.len() as u32;
            self.links.push((at, at));
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn contains(&self, page: Page) -> bool {
        self.links.get(page.index()).is_some_and(|&(p, n)| !(p == page.0 && n == page.0))
    }

    /// Puts the page last. It must not be queued.
    pub(crate) fn push(&mut self, page: Page) {
        self.grow(page);
        debug_assert!(!self.contains(page));
        self.links[page.index()] = (self.tail.unwrap_or(NONE), NONE);
        match self.tail {
            Some(tail) => self.links[tail as usize].1 = page.0,
            None => self.head = Some(page.0),
        }
        self.tail = Some(page.0);
        self.len += 1;
    }

    /// Takes the page out, wherever it is; does nothing if it is not queued.
    pub(crate) fn remove(&mut self, page: Page) {
        if !self.contains(page) {
            return;
        }
        let (previous, next) = self.links[page.index()];
        match previous {
            NONE => self.head = (next != NONE).then_some(next),
            p => self.links[p as usize].1 = next,
        }
        match next {
            NONE => self.tail = (previous != NONE).then_some(previous),
            n => self.links[n as usize].0 = previous,
        }
        self.links[page.index()] = (page.0, page.0);
        self.len -= 1;
    }

    pub(crate) fn front(&self) -> Option<Page> {
        self.head.map(Page)
    }
}
