//! Compressed pages: victims stay in memory, smaller, before they go to storage.

use crate::compressed::{Codec, Pool, PoolCounts};
use crate::library::cache::Reserved;
use crate::library::caught::Caught;
use crate::library::process::Maker;
use crate::library::segment::{Advice, pages_of};
use crate::library::store::Store;
use crate::library::stores::load_within;
use crate::port::PAGE_BYTES;
use std::io;
use std::sync::Arc;

const PAGE: usize = PAGE_BYTES as usize;

/// A store whose pages, when they leave memory, are kept compressed in memory before they go to the
/// store below, and are refilled from there. The oldest give way; those that do not compress to
/// three quarters go to the store below at once.
///
/// The pool's memory is a part of the cache's budget that was [reserved], and becomes smaller with it. A
/// dirty page in the pool
/// is written before it is dropped, and by [`Segment::flush`].
///
/// Pages are of 4,096 bytes here, whatever the cache's: the store below is asked for parts of larger ones, and
/// gets them, in multiples of 4,096.
///
/// The store below is this one's alone: a change by others is not noticed.
///
/// ```
/// use pagekeeper::library::{Cache, Codec, Compressed, FileStore};
/// use std::sync::Arc;
/// # fn main() -> std::io::Result<()> {
/// // 1 MiB for everything, of which half may hold compressed pages: some four times as many.
/// let cache = Cache::new(1 << 20)?;
/// let spill = FileStore::scratch(&std::env::temp_dir(), 2 << 20)?;
/// let store = Compressed::new(spill, cache.reserve(512 << 10)?, Codec::Lz4);
/// let store = Arc::new(store);
/// let memory = cache.open_store(store.clone(), "working memory")?;
///
/// for page in 0..512u64 {
///     memory.write_all_at(&page.to_le_bytes(), page * 4096)?;
/// }
/// let mut word = [0; 8];
/// memory.read_exact_at(&mut word, 100 * 4096)?;
/// assert_eq!(u64::from_le_bytes(word), 100);
/// assert!(store.counts().kept > 200);
/// assert_eq!(store.counts().written, 0); // all of it fits, compressed
/// # Ok(())
/// # }
/// ```
///
/// [reserved]: crate::library::Cache::reserve
/// [`Segment::flush`]: crate::library::Segment::flush
#[derive(Debug)]
pub struct Compressed<S>(Arc<Parts<S>>);

#[derive(Debug)]
struct Parts<S> {
    below: Caught<S>,
    pool: Pool,
    memory: Reserved,
    maker: Maker,
}

impl<S: Store> Compressed<S> {
    /// Keeps pages of a store compressed, in as much memory as was reserved for it.
    pub fn new(below: S, memory: Reserved, codec: Codec) -> Compressed<S> {
        let pool = Pool::new(PAGE, memory.limit_bytes(), codec);
        let parts =
            Arc::new(Parts { below: Caught::new(below), pool, memory, maker: Maker::new() });
        let weak = Arc::downgrade(&parts);
        parts.memory.on_limit(move || {
            if let Some(parts) = weak.upgrade() {
                parts.follow_limit();
            }
        });
        // Since the pool was made.
        parts.follow_limit();
        Compressed(parts)
    }

    /// What the pool did so far, and holds; nothing in a forked child.
    pub fn counts(&self) -> PoolCounts {
        if self.0.maker.is_here() { self.0.pool.counts() } else { PoolCounts::default() }
    }

    /// The store below.
    pub fn below(&self) -> &S {
        &self.0.below.store
    }
}

impl<S: Store> Parts<S> {
    /// What is beyond the limit leaves the pool. What cannot be written stays until it can.
    fn follow_limit(&self) {
        let write = |number, bytes: &[u8]| self.write(number, bytes);
        let _ = self.pool.set_limit(self.memory.limit_bytes(), write);
    }

    fn write(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
        self.below.store(number * PAGE_BYTES, bytes)
    }
}

impl<S: Store> Store for Compressed<S> {
    fn len(&self) -> io::Result<u64> {
        self.0.below.len()
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        self.0.pool.load(offset / PAGE_BYTES, pages, |number, part| {
            let from = number * PAGE_BYTES;
            // Whoever asks has looked that the first page is there.
            let len = if from > offset { self.0.below.len()? } else { u64::MAX };
            load_within(&self.0.below, len, from, part)
        })?;
        let len = self.0.below.len()?.saturating_sub(offset);
        Ok(usize::try_from(len).unwrap_or(usize::MAX).min(pages.len()))
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let pages = pages_of(&(offset..offset + bytes.len() as u64));
        self.0.pool.replace_by(pages, || self.0.below.store(offset, bytes))
    }

    fn takes_victims(&self) -> bool {
        true
    }

    fn retire(&self, offset: u64, bytes: &[u8], dirty: bool) -> io::Result<()> {
        let first = offset / PAGE_BYTES;
        self.0.pool.keep(first, bytes, dirty, |number, bytes| self.0.write(number, bytes))
    }

    fn advise(&self, offset: u64, len: u64, advice: Advice) -> io::Result<()> {
        self.0.below.advise(offset, len, advice)?;
        let pages = pages_of(&(offset..offset + len));
        if advice != Advice::Needed || pages.is_empty() {
            return Ok(());
        }
        for number in self.0.pool.numbers(pages.clone()) {
            self.0.below.reserve(number * PAGE_BYTES, PAGE_BYTES)?;
        }
        // What was written may have been dropped there.
        self.0.pool.make_dirty(pages);
        Ok(())
    }

    fn dropped(&self, offset: u64, len: u64) {
        let pages = pages_of(&(offset..offset + len));
        let mut from = pages.start;
        // What is in the pool will be stored.
        for end in self.0.pool.numbers(pages.clone()).into_iter().chain([pages.end]) {
            if from < end {
                self.0.below.dropped(from * PAGE_BYTES, (end - from) * PAGE_BYTES);
            }
            from = end + 1;
        }
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.below.reserve(offset, len)
    }

    fn sparse(&self) -> bool {
        self.0.below.sparse()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        // The store below first: what it refuses to cut is to be found here, and must be written. What is cut
        // off here does not come back when it grows again.
        let within = (len % PAGE_BYTES) as usize;
        self.0.pool.cut_by(len / PAGE_BYTES, within, || self.0.below.set_len(len))
    }

    fn sync(&self) -> io::Result<()> {
        let written = self.0.pool.flush(0..u64::MAX, |number, bytes| self.0.write(number, bytes));
        written.and(self.0.below.sync())
    }
}
