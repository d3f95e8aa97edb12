//! The shared tables that the holder process reads when the manager dies: page words, which file each
//! extent of page numbers belongs to, and what pages held that count as dirty before they are stored to.

use crate::engine::word::{Word, WordRef};
use pagekeeper_frames::{EXTENT_PAGES, Place, Segment};
use pagekeeper_policy::Page;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use twox_hash::XxHash3_64;

/// Most page numbers in use at once: a terabyte of touched pages.
pub const TABLE_PAGES: usize = 1 << 28;
/// Bytes of the words at full size (virtual; committed as they are touched).
pub const WORDS_BYTES: usize = TABLE_PAGES * 4;
/// Bytes of the extents at full size, and of how many of them were ever used.
pub const EXTENTS_BYTES: usize = (TABLE_PAGES / EXTENT_PAGES as usize + 1) * 8;

/// Bytes of the digests at full size, and of how many of them were ever used.
pub const DIGESTS_BYTES: usize = (TABLE_PAGES + 1) * 8;
/// Digests in one page of the machine's.
pub(crate) const DIGESTS_PER_PAGE: usize = 4096 / 8;

/// Enough for files of 64 PiB; and for four million of them, more than a process may have open.
const INDEX_BITS: u32 = 42;
/// This part of all numbers is left to what one decision is about: of all, four million pages.
const DECISION_PART: u64 = 64;

/// The words of one extent's pages.
pub(crate) type ExtentWords = [AtomicU32; EXTENT_PAGES as usize];

/// What pages held.
#[derive(Clone, Copy)]
struct Digests {
    /// Behind the last page that ever had one: see [`Table::used_extents`].
    used: &'static AtomicU64,
    /// 0: none.
    of_pages: &'static [AtomicU64],
    /// Nobody who writes to files knows it.
    seed: u64,
}

/// All tables. They live as long as the process.
#[derive(Clone, Copy)]
pub struct Table {
    words: &'static [AtomicU32],
    /// None where no page counts as dirty before it is stored to.
    digests: Option<Digests>,
    /// Behind the last extent that was ever assigned: even reading what was never written takes memory
    /// (tmpfs), which nobody may have any more when the holder looks for what is dirty.
    used_extents: &'static AtomicU64,
    /// (file + 1) << [`INDEX_BITS`] | first page index / [`EXTENT_PAGES`]; 0 while the extent is free.
    extents: &'static [AtomicU64],
}

impl Table {
    /// Tables over shared memory, zeros at first.
    ///
    /// # Panics
    /// `extents` is empty.
    pub fn new(words: &'static [AtomicU32], extents: &'static [AtomicU64]) -> Table {
        let (used_extents, extents) = extents.split_first().expect("it holds one more");
        Table { words, digests: None, used_extents, extents }
    }

    /// The same tables, with digests over shared memory, zeros at first.
    ///
    /// # Panics
    /// `digests` is empty.
    #[must_use]
    pub fn with_digests(self, digests: &'static [AtomicU64]) -> Table {
        let (used, of_pages) = digests.split_first().expect("it holds one more");
        let seed = RandomState::new().build_hasher().finish();
        Table { digests: Some(Digests { used, of_pages, seed }), ..self }
    }

    /// Whether pages may count as dirty before they are stored to.
    pub(crate) fn has_digests(&self) -> bool {
        self.digests.is_some()
    }

    /// What stands for the content of a page: another content has another, but for a chance of one in 2⁶⁴.
    /// None where no page counts as dirty before it is stored to. Never 0.
    pub(crate) fn digest(&self, content: &[u8]) -> Option<u64> {
        let Digests { seed, .. } = self.digests?;
        Some(XxHash3_64::oneshot_with_seed(seed, content).max(1))
    }

    /// What a page held when it began to count as dirty, though nobody had stored to it; none if somebody had.
    pub(crate) fn presumption(&self, page: Page) -> Option<u64> {
        let Digests { used, of_pages, .. } = self.digests?;
        let is_used = (page.index() as u64) < used.load(Ordering::Acquire);
        let digest = is_used.then(|| of_pages[page.index()].load(Ordering::Acquire))?;
        (digest != 0).then_some(digest)
    }

    /// Notes that.
    pub(crate) fn presume(&self, page: Page, digest: u64) {
        if let Some(Digests { used, of_pages, .. }) = self.digests {
            of_pages[page.index()].store(digest, Ordering::Release);
            used.fetch_max(page.index() as u64 + 1, Ordering::Release);
        }
    }

    /// A page was stored to, or is not dirty any more.
    pub(crate) fn end_presumption(&self, page: Page) {
        if let Some(Digests { of_pages, .. }) = self.digests
            && self.presumption(page).is_some()
        {
            of_pages[page.index()].store(0, Ordering::Release);
        }
    }

    /// Tables of this process alone, for so many pages.
    pub fn local(pages: usize) -> Table {
        let words: Vec<AtomicU32> = (0..pages).map(|_| AtomicU32::new(0)).collect();
        let extents: Vec<AtomicU64> =
            (0..=pages.div_ceil(EXTENT_PAGES as usize)).map(|_| AtomicU64::new(0)).collect();
        let digests: Vec<AtomicU64> = (0..=pages).map(|_| AtomicU64::new(0)).collect();
        Table::new(words.leak(), extents.leak()).with_digests(digests.leak())
    }

    /// Whether so many numbers are in use that those which one decision may give out could be too many.
    pub(crate) fn is_short_of(&self, used_numbers: u64) -> bool {
        let all = self.words.len() as u64;
        used_numbers + all / DECISION_PART > all
    }

    /// A page's word.
    ///
    /// # Panics
    /// Beyond [`TABLE_PAGES`].
    pub fn word(&self, page: Page) -> WordRef<'static> {
        let words: &'static [AtomicU32] = self.words;
        Word::from_atomic(&words[page.index()])
    }

    /// All words, extent by extent.
    pub(crate) fn words_of_extents(&self) -> &'static [ExtentWords] {
        self.words.as_chunks().0
    }

    /// Notes which file an extent's pages belong to, before any of them can be dirty.
    pub fn assign(&self, page: Page, place: Place) {
        let first = place.index / u64::from(EXTENT_PAGES);
        let value = (u64::from(place.segment.0) + 1) << INDEX_BITS | first;
        let extent = page.index() / EXTENT_PAGES as usize;
        self.used_extents.fetch_max(extent as u64 + 1, Ordering::Release);
        self.extents[extent].store(value, Ordering::Release);
    }

    /// The extent's pages belong to nobody any more.
    pub fn release(&self, page: Page) {
        self.extents[page.index() / EXTENT_PAGES as usize].store(0, Ordering::Release);
    }

    /// Every dirty page.
    pub fn dirty(&self) -> impl Iterator<Item = Place> + '_ {
        self.numbered_dirty().map(|(_, place)| place)
    }

    /// Every dirty page, with its number.
    pub(crate) fn numbered_dirty(&self) -> impl Iterator<Item = (Page, Place)> + '_ {
        let used = self.used_extents.load(Ordering::Acquire) as usize;
        self.extents[..used.min(self.extents.len())]
            .iter()
            .enumerate()
            .filter_map(|(e, v)| {
                let value = v.load(Ordering::Acquire);
                (value != 0).then_some((e, value))
            })
            .flat_map(move |(e, value)| {
                let segment = Segment((value >> INDEX_BITS) as u32 - 1);
                let first = (value & ((1 << INDEX_BITS) - 1)) * u64::from(EXTENT_PAGES);
                (0..EXTENT_PAGES).filter_map(move |i| {
                    let page = Page(e as u32 * EXTENT_PAGES + i);
                    self.word(page)
                        .dirty()
                        .then_some((page, Place { segment, index: first + u64::from(i) }))
                })
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_sys::shared::SharedMap;

    /// A manager was ended for lack of memory in its cgroup, and looking for what it left dirty read all of
    /// the extents: 32 MiB more in the same cgroup. The holder was ended then, too.
    #[test]
    fn looking_for_dirty_pages_takes_no_memory() {
        let map = |bytes| SharedMap::create("table", bytes).unwrap();
        let ((_, words), (extents, all)) = (map(WORDS_BYTES), map(EXTENTS_BYTES));
        let [words, all]: [&'static SharedMap; 2] =
            [words, all].map(|map| &*Box::leak(Box::new(map)));
        let table = Table::new(words.all(), all.all());
        assert_eq!(table.dirty().count(), 0);
        let place = |index| Place { segment: Segment(3), index };
        for extent in [5, 2] {
            table.assign(Page(extent * EXTENT_PAGES), place(u64::from(extent * EXTENT_PAGES)));
            let word = table.word(Page(extent * EXTENT_PAGES + 1));
            word.claim_fill();
            word.filled(true);
        }
        let dirty: Vec<Place> = table.dirty().collect();
        assert_eq!(dirty, [2, 5].map(|extent| place(extent * u64::from(EXTENT_PAGES) + 1)));
        table.release(Page(5 * EXTENT_PAGES));
        assert_eq!(table.dirty().count(), 1);
        let allocated_bytes = rustix::fs::fstat(&extents).unwrap().st_blocks as u64 * 512;
        assert!(allocated_bytes <= 8192, "{allocated_bytes} bytes");
    }
}
