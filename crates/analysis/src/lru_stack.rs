//! LRU stack distances, one after the other.
use pagekeeper_policy::Page;

/// Not referenced yet.
const NEVER: u32 = 0;

/// The LRU stack of Mattson, Gecsei, Slutz and Traiger (1970, "Stack algorithms"), told one
/// reference at a time; it answers how deep the page was.
///
/// As Bennett and Kruskal (1975) and Olken (1981) found, the depth is a count of later last
/// references, kept here in a Fenwick tree over slots of time. Slots are given out anew when they
/// run out, so memory follows the pages (about 16 bytes each) and not the references. O(log pages)
/// a reference.
#[derive(Clone, Debug)]
pub struct LruStack {
    /// Per page: the slot of its last reference, from 1.
    slot_of: Vec<u32>,
    /// Per slot, from 1: the page, if this is still its last reference.
    page_of: Vec<u32>,
    /// Fenwick tree: marks of slots that are some page's last reference.
    marks: Vec<u32>,
    next_slot: u32,
    pages: u32,
}

impl LruStack {
    /// An empty stack for pages numbered below `pages`.
    pub fn new(pages: u32) -> Self {
        // Twice as many slots as pages: between two renumberings there are at least that many
        // references.
        let slots = 2 * pages as usize + 64;
        Self {
            slot_of: vec![NEVER; pages as usize],
            page_of: vec![u32::MAX; slots + 1],
            marks: vec![0; slots + 1],
            next_slot: 1,
            pages: 0,
        }
    }

    /// Puts the page on top. Its depth until now, from 1 for the top; `None` the first time.
    ///
    /// # Panics
    /// If the page's number is not below what the stack was made for.
    pub fn reference(&mut self, page: Page) -> Option<u32> {
        if self.next_slot as usize == self.marks.len() {
            self.renumber();
        }
        let slot = self.slot_of[page.index()];
        let distance = (slot != NEVER).then(|| {
            let older_or_same = self.marks_up_to(slot);
            self.add(slot, u32::MAX);
            self.page_of[slot as usize] = u32::MAX;
            self.pages - older_or_same + 1
        });
        self.pages += u32::from(distance.is_none());
        self.slot_of[page.index()] = self.next_slot;
        self.page_of[self.next_slot as usize] = page.0;
        self.add(self.next_slot, 1);
        self.next_slot += 1;
        distance
    }

    fn marks_up_to(&self, slot: u32) -> u32 {
        let (mut place, mut total) = (slot as usize, 0_u32);
        while place > 0 {
            total = total.wrapping_add(self.marks[place]);
            place &= place - 1;
        }
        total
    }

    /// Adds modulo 2³²: `u32::MAX` takes one away.
    fn add(&mut self, slot: u32, change: u32) {
        let mut place = slot as usize;
        while place < self.marks.len() {
            self.marks[place] = self.marks[place].wrapping_add(change);
            place += place & place.wrapping_neg();
        }
    }

    /// Moves the pages to the first slots, in their order.
    fn renumber(&mut self) {
        let mut next = 1;
        for slot in 1..self.page_of.len() {
            let page = std::mem::replace(&mut self.page_of[slot], u32::MAX);
            if page != u32::MAX {
                self.page_of[next as usize] = page;
                self.slot_of[page as usize] = next;
                next += 1;
            }
        }
        self.next_slot = next;
        self.marks.fill(0);
        for place in 1..self.marks.len() {
            self.marks[place] += u32::from(place < next as usize);
            let parent = place + (place & place.wrapping_neg());
            if parent < self.marks.len() {
                self.marks[parent] += self.marks[place];
            }
        }
    }
}
