//! Translation by a hash table: each page's bytes in a block of its own, found through chains.
//!
//! This is the buffer cache that *Mapped-File I/O* (SOSP 1989) compares its own with: a header for
//! each block, hashed by segment and page, on a chain of headers. Blocks belong to the cache and
//! are used again, so that memory is neither taken from the kernel for a page that comes nor given
//! back for one that goes. All that decides about pages is the same as where they are mapped.
//!
//! **Readers walk chains without a lock**, while others change them. What they find may be old: a
//! header that stands for another page by then. So a reader pins the page whose number the header
//! has, and looks at the header's key and number again. They are set before a page's word says that
//! it is resident, and taken away, the number first, before it says that it is absent: so a page
//! that is pinned has one header, which does not change, and no other has its number or its key. If
//! the header has the number still, it is that page's header, and was when its key was looked at.
//! Changes are made under one lock, and what must be found is looked for there once more.

use crate::engine::table::ExtentWords;
use crate::engine::word::WordRef;
use crate::library::frames::pool::Pool;
use crate::library::frames::{Slots, empty, word_of};
use pagekeeper_frames::{EXTENT_PAGES, Place};
use pagekeeper_policy::Page;
use pagekeeper_sys::Errno;
use pagekeeper_sys::alias::AliasRange;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const INDEX_BITS: u32 = 40;
/// Headers that are made together.
const CHUNK: usize = 4096;
/// Chunks of them: 64 GiB of the smallest blocks.
const CHUNKS: usize = 4096;

/// What stands for a block. Zeros stand for none, so numbers are stored plus one.
#[derive(Default)]
struct Header {
    /// The page whose bytes are in the block, or 0: see [`key`].
    key: AtomicU64,
    /// That page's number plus one; 0 while it is being filled.
    page: AtomicU32,
    /// The next block on the chain plus one, or 0.
    next: AtomicU32,
}

/// The blocks of a cache, by the pages in them.
pub(crate) struct Blocks {
    words: &'static [ExtentWords],
    page_shift: u32,
    /// The first block of each chain plus one, or 0.
    chains: Box<[AtomicU32]>,
    headers: Slots<Box<[Header; CHUNK]>, CHUNKS>,
    pool: Pool,
}

/// A page that was found: its header, and where its bytes lie.
pub(super) struct Found<'a> {
    header: &'a Header,
    place: Place,
    page: u32,
    pub(super) bytes: AliasRange<'a>,
}

impl Found<'_> {
    /// Whether the page that was found, which the caller has pinned, is the one that was looked for.
    #[inline(always)]
    pub(super) fn is_current(&self) -> bool {
        self.header.key.load(Ordering::Acquire) == key(self.place)
            && self.header.page.load(Ordering::Acquire) == self.page
    }
}

#[inline(always)]
fn key(place: Place) -> u64 {
    (u64::from(place.segment.0) << INDEX_BITS | place.index) + 1
}

impl Blocks {
    /// No blocks yet, and so many chains.
    ///
    /// # Errors
    /// [`Errno::NOMEM`].
    pub(super) fn new(
        words: &'static [ExtentWords],
        page_shift: u32,
        chains: u32,
    ) -> Result<Blocks, Errno> {
        Ok(Blocks {
            words,
            page_shift,
            chains: (0..chains.max(1)).map(|_| AtomicU32::new(0)).collect(),
            headers: empty(),
            pool: Pool::new(page_shift, usize::MAX)?,
        })
    }

    /// What stands for a block that was used before.
    #[inline(always)]
    fn header(&self, block: u32) -> Option<&Header> {
        let chunk = self.headers.get(block as usize / CHUNK)?.get()?;
        Some(&chunk[block as usize % CHUNK])
    }

    /// What stands for a block from now on.
    fn new_header(&self, block: u32) -> Option<&Header> {
        let make = || {
            let headers: Box<[Header]> = (0..CHUNK).map(|_| Header::default()).collect();
            headers.try_into().ok().expect("so many")
        };
        let chunk = self.headers.get(block as usize / CHUNK)?.get_or_init(make);
        Some(&chunk[block as usize % CHUNK])
    }

    /// The chain of a key: Fibonacci hashing, then any number of chains.
    #[inline(always)]
    fn chain(&self, key: u64) -> &AtomicU32 {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.chains[((hash * self.chains.len() as u64) >> 32) as usize]
    }

    /// Walks a page's chain, to its block.
    #[inline(always)]
    fn walk(&self, key: u64) -> Option<(u32, &Header)> {
        let mut at = self.chain(key).load(Ordering::Acquire);
        loop {
            let number = at.checked_sub(1)?;
            let header = self.header(number)?;
            if header.key.load(Ordering::Acquire) == key {
                return Some((number, header));
            }
            at = header.next.load(Ordering::Acquire);
        }
    }

    /// Looks for a page that is in memory, and some of its bytes. Without a lock, so that a page may
    /// be missed while others come and go; whoever then uses the page by its word asks whether what
    /// was found [is current](Found::is_current) before anything else.
    #[inline(always)]
    pub(super) fn find(
        &self,
        place: Place,
        within: usize,
        len: usize,
    ) -> Option<(WordRef<'static>, Found<'_>)> {
        let (block, header) = self.walk(key(place))?;
        let page = header.page.load(Ordering::Acquire);
        let number = page.checked_sub(1)?;
        let words = self.words.get((number / EXTENT_PAGES) as usize)?;
        let bytes = self.pool.bytes(block, within, len)?;
        Some((word_of(words, u64::from(number)), Found { header, place, page, bytes }))
    }

    /// As [`find`](Self::find) of a whole page, and `take`s it while nothing comes or goes.
    pub(super) fn find_surely<T>(
        &self,
        place: Place,
        take: impl FnOnce(WordRef<'static>) -> Option<T>,
    ) -> Option<(T, AliasRange<'_>)> {
        let _unchanged = self.pool.lock();
        let (word, found) = self.find(place, 0, 1 << self.page_shift)?;
        Some((take(word)?, found.bytes))
    }

    /// The block of a page that somebody has claimed, or uses: it stays that page's, and is only to
    /// be found.
    fn claimed(&self, place: Place) -> Option<(u32, &Header)> {
        self.walk(key(place)).or_else(|| {
            let _unchanged = self.pool.lock();
            self.walk(key(place))
        })
    }

    /// Where the bytes of a page lie that somebody has claimed, or uses.
    pub(super) fn bytes_of(&self, place: Place) -> Result<AliasRange<'_>, Errno> {
        self.bytes_within(place, 0, 1 << self.page_shift).ok_or(Errno::FAULT)
    }

    /// Gives claimed pages blocks to be filled.
    ///
    /// # Errors
    /// [`Errno::NOMEM`]: there is no address space left, or there are more pages than a control has
    /// room for.
    pub(super) fn give(&self, first: Place, pages: u64) -> Result<(), Errno> {
        let mut unused = self.pool.lock();
        let keys = (first.index..first.index + pages).map(|index| key(Place { index, ..first }));
        let lacking: Vec<u64> = keys.filter(|key| self.walk(*key).is_none()).collect();
        let numbers = self.pool.take(&mut unused, lacking.len())?;
        for (key, number) in lacking.into_iter().zip(numbers) {
            let header = self.new_header(number).ok_or(Errno::NOMEM)?;
            let chain = self.chain(key);
            header.key.store(key, Ordering::Release);
            header.next.store(chain.load(Ordering::Acquire), Ordering::Release);
            chain.store(number + 1, Ordering::Release);
        }
        Ok(())
    }

    /// A claimed page that is about to be at rest has this number.
    pub(super) fn number(&self, place: Place, page: Page) {
        if let Some((_, header)) = self.claimed(place) {
            header.page.store(page.0 + 1, Ordering::Release);
        }
    }

    /// Takes the blocks of claimed pages back, if they have any.
    pub(super) fn take_back(&self, first: Place, pages: u64) {
        let mut unused = self.pool.lock();
        for index in first.index..first.index + pages {
            if let Some(number) = self.unlink(key(Place { index, ..first })) {
                self.pool.give_back(&mut unused, number);
            }
        }
    }

    /// The cache's blocks.
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    fn unlink(&self, key: u64) -> Option<u32> {
        let mut link = self.chain(key);
        loop {
            let at = link.load(Ordering::Acquire);
            let number = at.checked_sub(1)?;
            let header = self.header(number)?;
            if header.key.load(Ordering::Acquire) != key {
                link = &header.next;
                continue;
            }
            link.store(header.next.load(Ordering::Acquire), Ordering::Release);
            header.page.store(0, Ordering::Release);
            header.key.store(0, Ordering::Release);
            return Some(number);
        }
    }

    /// Where bytes of a page lie that stays meanwhile, if it has a block.
    pub(super) fn bytes_within(
        &self,
        place: Place,
        within: usize,
        len: usize,
    ) -> Option<AliasRange<'_>> {
        self.pool.bytes(self.claimed(place)?.0, within, len)
    }
}
