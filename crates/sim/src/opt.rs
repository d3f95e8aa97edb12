//! OPT (Belady's MIN with demand paging): the fewest faults that any policy can have.
use std::collections::BinaryHeap;

use pagekeeper_policy::flat::Flat;
use pagekeeper_policy::{Admission, Page, Policy};

use crate::{References, SimError};

/// No further reference.
pub(crate) const NEVER: u32 = u32::MAX;

/// For every reference, the position of the next one to the same page: one pass backwards, shared
/// by all memory sizes. 4 bytes per reference.
#[derive(Clone, Debug)]
pub struct NextUses {
    next: Vec<u32>,
}

impl NextUses {
    /// For every reference, the position of the next one to the same page, `u32::MAX` for none.
    pub fn positions(&self) -> &[u32] {
        &self.next
    }

    /// Looks ahead through the whole string.
    ///
    /// # Errors
    /// [`SimError::TooManyReferences`] when positions do not fit 32 bits.
    pub fn of(references: &References) -> Result<Self, SimError> {
        if references.len() >= NEVER as usize {
            return Err(SimError::TooManyReferences {
                references: references.len() as u64,
                most: u64::from(NEVER) - 1,
            });
        }
        let mut next = vec![NEVER; references.len()];
        let mut seen = vec![NEVER; references.pages() as usize];
        for (position, (page, _)) in references.iter().enumerate().rev() {
            next[position] = std::mem::replace(&mut seen[page.index()], position as u32);
        }
        Ok(Self { next })
    }

    /// The next reference to the page that is referenced here; [`NEVER`] if there is none.
    #[inline]
    pub(crate) fn next(&self, position: usize) -> u32 {
        self.next[position]
    }
}

/// The policy that knows the future: the victim is the page whose next reference is farthest
/// away, the highest page number among those never referenced again.
///
/// It counts the calls it gets, so it must be told of every reference of the string that its
/// [`NextUses`] are from, in order: exact references and demand paging only.
#[derive(Clone, Debug)]
pub struct Opt<'a> {
    next_uses: &'a NextUses,
    position: usize,
    /// Resident pages by next use, and entries that have passed. An entry is stale once its
    /// position is reached; positions of valid ones are ahead, so no stale one is ever on top
    /// of a valid one.
    farthest: BinaryHeap<(u32, u32)>,
    is_resident: Flat<u8>,
    resident: u32,
}

impl<'a> Opt<'a> {
    /// Starts before the first reference.
    pub fn new(next_uses: &'a NextUses) -> Self {
        Self {
            next_uses,
            position: 0,
            farthest: BinaryHeap::new(),
            is_resident: Flat::new(),
            resident: 0,
        }
    }

    fn referenced_now(&mut self, page: Page) {
        let now = self.position as u32;
        self.farthest.push((self.next_uses.next[self.position], page.0));
        self.position += 1;
        // Room for as many stale entries as valid ones keeps the heap small and this rare.
        if self.farthest.len() > 2 * self.resident as usize + 1024 {
            self.farthest.retain(|(next, _)| *next > now);
        }
    }

    fn leave(&mut self, page: Page) {
        *self.is_resident.at(page.index()) = 0;
        self.resident -= 1;
    }
}

impl Policy for Opt<'_> {
    fn admitted(&mut self, page: Page, how: Admission) {
        assert!(how == Admission::Demand, "OPT is for demand paging");
        *self.is_resident.slot(page.index()) = 1;
        self.resident += 1;
        self.referenced_now(page);
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        self.referenced_now(page);
    }

    fn removed(&mut self, page: Page) {
        self.leave(page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        while self.resident > 0 {
            let (_, page) = self.farthest.pop()?;
            // A page that was removed left its entry behind.
            if self.is_resident.get(page as usize) != 0 {
                self.leave(Page(page));
                return Some(Page(page));
            }
        }
        None
    }

    fn resized(&mut self, _frames: u32) {}

    fn resident(&self) -> u32 {
        self.resident
    }
}
