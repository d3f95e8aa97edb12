//! Pages kept in memory, compressed, between frames and storage: the compressed pages of V++
//! (Harty and Cheriton, 1992, section 2.2), as zswap has them.
//!
//! A [`Pool`] knows pages by a number and holds as many bytes as it may. Who takes a page out of
//! its frame puts it here first; what does not compress is refused and goes to storage at once.
//! When room is needed the oldest pages give way: clean ones are dropped, dirty ones written first,
//! together with dirty neighbours. Nothing here knows segments, files or frames.

mod chunks;
mod packing;

use crate::compressed::chunks::{Chunks, Stored, cost_bytes};
pub use packing::Codec;
use packing::{Hope, Packer};
use pagekeeper_sys::buffer::Buffer;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

/// What a page in the pool costs beyond its compressed bytes: its places in two maps. Counted in the
/// pool's limit.
pub const ENTRY_BYTES: u64 = 128;
/// Most neighbouring dirty pages that are written in one call.
pub const WRITE_RUN_PAGES_MAX: u64 = 32;
/// While pages have not compressed lately, one in so many is tried.
const TRIED_PART: u64 = 16;

/// A page found in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Bytes that it has, and that are in the buffer now.
    pub len: usize,
    /// They are newer than what storage has.
    pub dirty: bool,
}

/// What a pool did so far, and holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolCounts {
    /// Pages in it.
    pub pages: u64,
    /// Those of them that are dirty.
    pub dirty_pages: u64,
    /// What it holds, in bytes, [`ENTRY_BYTES`] a page included.
    pub bytes: u64,
    /// Memory that it takes, in bytes: a little more.
    pub memory_bytes: u64,
    /// The most that this was.
    pub memory_bytes_max: u64,
    /// What all pages that were put in took, when they were: of [`bytes`](Self::bytes), so far.
    pub kept_bytes: u64,
    /// Pages that were put in.
    pub kept: u64,
    /// Pages that were refused, since they do not compress to three quarters, or the last did not.
    pub refused: u64,
    /// Pages that were found in it.
    pub found: u64,
    /// Dirty pages that were written.
    pub written: u64,
    /// Pages that gave way to others.
    pub gave_way: u64,
}

#[derive(Debug)]
struct Entry {
    packed: Stored,
    len: u32,
    /// Of these so many from the first on: what lay behind was cut off.
    kept: u32,
    dirty: bool,
    /// When it came, in pages put in before it.
    born: u64,
}

impl Entry {
    fn bytes(&self) -> u64 {
        self.packed.bytes() + ENTRY_BYTES
    }
}

#[derive(Default, Debug)]
struct Pages {
    by_number: BTreeMap<u64, Entry>,
    by_age: BTreeMap<u64, u64>,
    packed: Chunks,
    /// Pages that are being written just now.
    writing: Range<u64>,
    counts: PoolCounts,
}

impl Pages {
    /// Forgets a page; whether it was dirty.
    fn remove(&mut self, number: u64) -> Option<bool> {
        let entry = self.by_number.remove(&number)?;
        self.by_age.remove(&entry.born);
        self.counts.bytes -= entry.bytes();
        self.counts.pages -= 1;
        self.counts.dirty_pages -= u64::from(entry.dirty);
        self.packed.remove(entry.packed);
        Some(entry.dirty)
    }

    fn insert(&mut self, number: u64, packed: Stored, len: u32, dirty: bool) {
        let born = self.counts.kept;
        let entry = Entry { packed, len, kept: len, dirty, born };
        self.counts.kept += 1;
        self.counts.kept_bytes += entry.bytes();
        self.counts.bytes += entry.bytes();
        self.counts.pages += 1;
        self.counts.dirty_pages += u64::from(dirty);
        self.by_age.insert(born, number);
        self.by_number.insert(number, entry);
        self.counts.memory_bytes_max = self.counts.memory_bytes_max.max(self.memory_bytes());
    }

    /// Puts what is left together: each of those that went left a hole.
    fn close_up(&mut self) -> io::Result<()> {
        let mut packed = Chunks::default();
        let copies =
            self.by_number.values().map(|entry| packed.insert(&self.packed.copy_of(&entry.packed)));
        let copies: Vec<Stored> = copies.collect::<Result<_, _>>()?;
        for (entry, copy) in self.by_number.values_mut().zip(copies) {
            entry.packed = copy;
        }
        self.packed = packed;
        Ok(())
    }

    fn memory_bytes(&self) -> u64 {
        self.packed.memory_bytes() + self.counts.pages * ENTRY_BYTES
    }

    /// The dirty pages around one that can be written together: all but the last are whole.
    fn dirty_run(&self, number: u64, page_bytes: usize) -> Range<u64> {
        let whole = |number: u64| {
            let entry = self.by_number.get(&number)?;
            entry.dirty.then_some(entry.kept as usize == page_bytes)
        };
        let (mut first, mut end) = (number, number + 1);
        while first > 0 && end - first < WRITE_RUN_PAGES_MAX && whole(first - 1) == Some(true) {
            first -= 1;
        }
        while end - first < WRITE_RUN_PAGES_MAX
            && whole(end - 1) == Some(true)
            && whole(end).is_some()
        {
            end += 1;
        }
        first..end
    }
}

/// Compressed pages within a limit of bytes. Shared by threads; nobody waits for another's
/// compressing, and only for a write of the very page that he changes.
#[derive(Debug)]
pub struct Pool {
    page_bytes: usize,
    limit_bytes: AtomicU64,
    pages: Mutex<Pages>,
    /// Signalled when a write is over.
    written: Condvar,
    /// Held by who writes.
    writer: Mutex<()>,
    packer: Packer,
    hope: Hope,
}

impl Pool {
    /// A pool for pages of at most `page_bytes` that holds at most `limit_bytes`, [`ENTRY_BYTES`] a
    /// page included. (Beside it are, for each thread at work, a few pages of buffers; Zstandard
    /// keeps some hundred KiB for each.)
    ///
    /// # Panics
    /// A page has no bytes, or more than 1 GiB.
    pub fn new(page_bytes: usize, limit_bytes: u64, codec: Codec) -> Pool {
        assert!((1..=1 << 30).contains(&page_bytes), "pages of {page_bytes} bytes");
        Pool {
            page_bytes,
            limit_bytes: AtomicU64::new(limit_bytes),
            pages: Mutex::new(Pages::default()),
            written: Condvar::new(),
            writer: Mutex::new(()),
            packer: Packer::new(codec),
            hope: Hope::new(),
        }
    }

    /// The most that it holds, in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::SeqCst)
    }

    /// It may hold another number of bytes from now on: what is more gives way, dirty pages by `write`.
    ///
    /// # Errors
    /// `write`'s: it holds more, until pages are put in.
    pub fn set_limit(
        &self,
        limit_bytes: u64,
        mut write: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        if self.limit_bytes.swap(limit_bytes, Ordering::SeqCst) <= limit_bytes {
            return Ok(());
        }
        while self.lock().counts.bytes > self.limit_bytes() {
            // There is no such page.
            self.give_way(u64::MAX, &mut write)?;
        }
        self.lock().close_up()
    }

    /// Whether pages have compressed lately. While they have not, most are refused untried.
    pub fn is_worth_it(&self) -> bool {
        self.hope.is_high()
    }

    /// What it did so far, and holds.
    pub fn counts(&self) -> PoolCounts {
        let pages = self.lock();
        PoolCounts { memory_bytes: pages.memory_bytes(), ..pages.counts }
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().expect("pages")
    }

    /// The pages, once none of this range is being written.
    fn lock_at_rest(&self, range: &Range<u64>) -> MutexGuard<'_, Pages> {
        let moving = |p: &mut Pages| p.writing.start < range.end && range.start < p.writing.end;
        self.written.wait_while(self.lock(), moving).expect("pages")
    }

    /// Puts a page in, in place of what it held of it; a clean page has the content that it holds
    /// or that storage has, so that one that is here stays, dirty if it is. Room is made first: `write`
    /// (number of the first page, bytes of whole neighbouring pages, of which the last may be short)
    /// writes dirty pages that give way. False: it is refused, since it does not compress to three
    /// quarters (or the last ones did not, and it is not tried) or is larger than the pool; what is
    /// here of it is old then, until it is [replaced](Self::replace_by).
    ///
    /// # Errors
    /// `write`'s: there is no room, and nothing has changed but for pages that gave way before.
    pub fn put(
        &self,
        number: u64,
        page: &[u8],
        dirty: bool,
        mut write: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        debug_assert!(page.len() <= self.page_bytes);
        if !dirty && self.renew(number) {
            return Ok(true);
        }
        let is_tried = self.is_worth_it() || self.lock().counts.refused.is_multiple_of(TRIED_PART);
        let mut packed = if is_tried { Some(self.packer.pack(page)?) } else { None };
        if is_tried {
            let most = (page.len() as u64 * 3 / 4).min(self.limit_bytes());
            packed = packed.filter(|packed| cost_bytes(packed.len()) + ENTRY_BYTES <= most);
            self.hope.learn(packed.is_some());
        }
        let Some(packed) = packed else {
            self.lock().counts.refused += 1;
            if !self.is_worth_it() {
                // What nothing goes into any more is memory for others. What cannot be written stays.
                let _ = self.give_way(number, &mut write);
            }
            return Ok(false);
        };
        let bytes = cost_bytes(packed.len()) + ENTRY_BYTES;
        loop {
            let mut pages = self.lock_at_rest(&(number..number + 1));
            // What it replaces makes room, but is lost only once there is enough.
            let replaced = pages.by_number.get(&number).map_or(0, Entry::bytes);
            let limit_bytes = self.limit_bytes();
            if bytes > limit_bytes {
                // It became less meanwhile.
                pages.counts.refused += 1;
                return Ok(false);
            }
            if pages.counts.bytes - replaced + bytes <= limit_bytes {
                let packed = pages.packed.insert(&packed)?;
                pages.remove(number);
                pages.insert(number, packed, page.len() as u32, dirty);
                return Ok(true);
            }
            drop(pages);
            self.give_way(number, &mut write)?;
        }
    }

    /// A page that is here becomes the youngest. False: it is not.
    fn renew(&self, number: u64) -> bool {
        let mut pages = self.lock();
        let born = pages.counts.kept;
        let Some(entry) = pages.by_number.get_mut(&number) else { return false };
        let before = std::mem::replace(&mut entry.born, born);
        let bytes = entry.bytes();
        pages.by_age.remove(&before);
        pages.by_age.insert(born, number);
        pages.counts.kept += 1;
        pages.counts.kept_bytes += bytes;
        true
    }

    /// Copies a page out, if it is here.
    ///
    /// # Errors
    /// What is kept cannot be read back.
    ///
    /// # Panics
    /// `page` is shorter than what was put in.
    pub fn get(&self, number: u64, page: &mut [u8]) -> io::Result<Option<Found>> {
        let (packed, len, found) = {
            let mut pages = self.lock();
            let Some(entry) = pages.by_number.get(&number) else { return Ok(None) };
            let len = entry.len as usize;
            let found = Found { len: entry.kept as usize, dirty: entry.dirty };
            let packed = pages.packed.copy_of(&entry.packed);
            pages.counts.found += 1;
            (packed, len, found)
        };
        self.packer.unpack(&packed, &mut page[..len])?;
        Ok(Some(found))
    }

    /// Whether a page is here.
    pub fn has(&self, number: u64) -> bool {
        self.lock().by_number.contains_key(&number)
    }

    /// The pages of a range that are here, in order.
    pub fn numbers(&self, range: Range<u64>) -> Vec<u64> {
        self.lock().by_number.range(range).map(|(number, _)| *number).collect()
    }

    /// What is here of some pages is to be written, whether it was before or not: what it was written to
    /// has not kept it. Waits for a write of any of them.
    pub fn make_dirty(&self, range: Range<u64>) {
        let mut pages = self.lock_at_rest(&range);
        let Pages { by_number, counts, .. } = &mut *pages;
        for (_, entry) in by_number.range_mut(range) {
            counts.dirty_pages += u64::from(!entry.dirty);
            entry.dirty = true;
        }
    }

    /// Forgets a page, dirty or not. When this returns, nobody writes it.
    pub fn remove(&self, number: u64) {
        self.remove_range(number..number + 1);
    }

    /// Forgets pages, dirty or not. When this returns, nobody writes them.
    pub fn remove_range(&self, range: Range<u64>) {
        let mut pages = self.lock_at_rest(&range);
        while let Some((&number, _)) = pages.by_number.range(range.clone()).next() {
            pages.remove(number);
        }
    }

    /// Puts what is newer than what is here of some pages elsewhere, and forgets what is here.
    /// Nobody writes what is here meanwhile.
    ///
    /// # Errors
    /// `replace`'s: what is here stays.
    pub fn replace_by(
        &self,
        range: Range<u64>,
        replace: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        if self.lock().by_number.range(range.clone()).next().is_none() {
            return replace();
        }
        let _writer = self.writer.lock().expect("writer");
        replace()?;
        self.remove_range(range);
        Ok(())
    }

    /// Cuts off what lies behind so many bytes of a page, elsewhere by `cut` and then here. Nobody writes what
    /// is here meanwhile.
    ///
    /// # Errors
    /// `cut`'s: what is here stays as it is.
    pub fn cut_by(
        &self,
        number: u64,
        bytes: usize,
        cut: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let is_here = self.lock().by_number.range(number..).next().is_some();
        let _writer = is_here.then(|| self.writer.lock().expect("writer"));
        cut()?;
        if let Some(entry) = self.lock().by_number.get_mut(&number) {
            // It stays packed as it is, so that nothing can fail any more.
            entry.kept = entry.kept.min(bytes as u32);
        }
        self.remove_range(number + u64::from(bytes > 0)..u64::MAX);
        Ok(())
    }

    /// Copies pages out: those that are here, and by `read` (number of the first page, room for whole
    /// neighbouring pages) those that are not. A clean page is not kept beside the copy: what leaves
    /// again comes again.
    ///
    /// # Errors
    /// `read`'s; what is kept cannot be read back.
    ///
    /// # Panics
    /// `data` is not whole pages.
    pub fn load(
        &self,
        first: u64,
        data: &mut [u8],
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let size = self.page_bytes;
        assert!(data.len().is_multiple_of(size), "{} bytes are not whole pages", data.len());
        let count = data.len() / size;
        let mut missing = 0;
        for at in 0..=count {
            let number = first + at as u64;
            if let Some(page) = data.get_mut(at * size..(at + 1) * size) {
                let Some(found) = self.get(number, page)? else { continue };
                page[found.len..].fill(0);
                self.drop_clean(number);
            }
            if missing < at {
                read(first + missing as u64, &mut data[missing * size..at * size])?;
            }
            missing = at + 1;
        }
        Ok(())
    }

    /// [Puts](Self::put) pages in; dirty ones that are refused are written at once, neighbours
    /// together. The last page may be short.
    ///
    /// # Errors
    /// `write`'s: some pages may have been put in or written before, and what is here of the others is
    /// as old as before.
    pub fn keep(
        &self,
        first: u64,
        data: &[u8],
        dirty: bool,
        mut write: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let size = self.page_bytes;
        let count = data.len().div_ceil(size);
        let mut refused = 0;
        for at in 0..=count {
            if at < count {
                let page = &data[at * size..data.len().min((at + 1) * size)];
                if !self.put(first + at as u64, page, dirty, &mut write)? {
                    continue;
                }
            }
            if dirty && refused < at {
                let numbers = first + refused as u64..first + at as u64;
                let part = &data[refused * size..data.len().min(at * size)];
                self.replace_by(numbers.clone(), || write(numbers.start, part))?;
            }
            refused = at + 1;
        }
        Ok(())
    }

    /// Forgets a page, whose content is elsewhere in memory now; never waits. True: it was dirty, so
    /// that what is elsewhere is all there is. A page that is being written stays: false.
    #[must_use]
    pub fn hand_over(&self, number: u64) -> bool {
        let mut pages = self.lock();
        if pages.writing.contains(&number) {
            return false;
        }
        pages.remove(number) == Some(true)
    }

    /// Forgets pages, dirty or not, but for those that are being written just now; never waits.
    pub fn forget_idle(&self, range: Range<u64>) {
        let mut pages = self.lock();
        let writing = pages.writing.clone();
        let idle = |number: &u64| !writing.contains(number);
        let numbers: Vec<u64> =
            pages.by_number.range(range).map(|(&number, _)| number).filter(idle).collect();
        for number in numbers {
            pages.remove(number);
        }
    }

    /// Forgets a page if it is clean.
    pub fn drop_clean(&self, number: u64) {
        let mut pages = self.lock();
        if pages.by_number.get(&number).is_some_and(|entry| !entry.dirty) {
            pages.remove(number);
        }
    }

    /// Writes the dirty pages of a range, in order; they are clean then and stay.
    ///
    /// # Errors
    /// The first error of `write`; the pages that it was called with stay dirty, and the others
    /// are tried.
    pub fn flush(
        &self,
        range: Range<u64>,
        mut write: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut result = Ok(());
        let mut from = range.start;
        while from < range.end {
            let _writer = self.writer.lock().expect("writer");
            let pages = self.lock();
            let dirty = pages.by_number.range(from..range.end).find(|(_, entry)| entry.dirty);
            let Some((&number, _)) = dirty else { break };
            let run = pages.dirty_run(number, self.page_bytes);
            // What lies before was tried, or is of no interest.
            let run = run.start.max(from)..run.end.min(range.end);
            from = run.end;
            result = result.and(self.write_run(pages, run, &mut write));
        }
        result
    }

    /// Writes a run of dirty pages. The caller holds `writer`.
    fn write_run(
        &self,
        mut pages: MutexGuard<'_, Pages>,
        run: Range<u64>,
        write: &mut impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let copy_of = |entry: &Entry| (pages.packed.copy_of(&entry.packed), entry.len as usize);
        let found = pages.by_number.range(run.clone());
        let packed: Vec<_> = found.map(|(_, entry)| copy_of(entry)).collect();
        // All but the last are whole.
        let last = pages.by_number.range(run.clone()).next_back();
        let cut = last.map_or(0, |(_, entry)| (entry.len - entry.kept) as usize);
        let len: usize = packed.iter().map(|(_, len)| len).sum();
        // Aligned, as direct writes need it: others would go through the kernel's page cache.
        let mut bytes = Buffer::new(len)?;
        // Nobody replaces or forgets these meanwhile.
        pages.writing = run.clone();
        drop(pages);
        let mut rest = &mut bytes[..];
        let mut result = Ok(());
        for (packed, len) in &packed {
            let (piece, after) = std::mem::take(&mut rest).split_at_mut(*len);
            result = result.and_then(|()| self.packer.unpack(packed, piece));
            rest = after;
        }
        result = result.and_then(|()| write(run.start, &bytes[..len - cut]));
        let mut pages = self.lock();
        pages.writing = 0..0;
        if result.is_ok() {
            for (_, entry) in pages.by_number.range_mut(run) {
                entry.dirty = false;
            }
            pages.counts.dirty_pages -= packed.len() as u64;
            pages.counts.written += packed.len() as u64;
        }
        drop(pages);
        self.written.notify_all();
        result
    }

    /// The oldest page leaves, but for one that is about to be replaced; a dirty one is written
    /// only, with its neighbours.
    fn give_way(
        &self,
        spared: u64,
        write: &mut impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let _writer = self.writer.lock().expect("writer");
        let mut pages = self.lock();
        let Some(oldest) = pages.by_age.values().copied().find(|number| *number != spared) else {
            // Others were faster.
            return Ok(());
        };
        if pages.by_number[&oldest].dirty {
            let run = pages.dirty_run(oldest, self.page_bytes);
            return self.write_run(pages, run, write);
        }
        pages.remove(oldest);
        pages.counts.gave_way += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const PAGE: usize = 4096;

    /// Bytes that compress well, or not at all.
    fn page(seed: u64, dense: bool) -> Vec<u8> {
        let mut x = seed;
        let mut next = || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 56) as u8
        };
        (0..PAGE).map(|i| if dense || i % 16 == 0 { next() } else { 7 }).collect()
    }

    #[derive(Clone, Debug)]
    enum Op {
        Put { number: u64, seed: u64, dense: bool, dirty: bool },
        Get(u64),
        Remove(u64),
        DropClean(u64),
        Flush(u64, u64),
        Storage(bool),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let number = 0..24u64;
        let put = (number.clone(), any::<u64>(), prop::bool::weighted(0.2), any::<bool>());
        let op = prop_oneof![
            8 => put.prop_map(|(number, seed, dense, dirty)| Op::Put { number, seed, dense, dirty }),
            6 => number.clone().prop_map(Op::Get),
            1 => number.clone().prop_map(Op::Remove),
            1 => number.clone().prop_map(Op::DropClean),
            1 => (number.clone(), number).prop_map(|(a, b)| Op::Flush(a, b)),
            1 => any::<bool>().prop_map(Op::Storage),
        ];
        prop::collection::vec(op, 1..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
        /// Pool and storage together are a map of pages; storage refuses writes now and then.
        #[test]
        fn no_page_is_lost(ops in ops(), pages in 1u64..8, zstd in any::<bool>()) {
            let limit = pages * 900;
            let codec = if zstd { Codec::Zstd(1) } else { Codec::Lz4 };
            let pool = Pool::new(PAGE, limit, codec);
            let mut storage: HashMap<u64, Vec<u8>> = HashMap::new();
            let mut model: HashMap<u64, Vec<u8>> = HashMap::new();
            let mut works = true;
            for op in ops {
                let mut calls = 0;
                let mut write = |first: u64, bytes: &[u8]| {
                    calls += 1;
                    if !works {
                        return Err(io::Error::from_raw_os_error(5));
                    }
                    for (i, piece) in bytes.chunks(PAGE).enumerate() {
                        storage.insert(first + i as u64, piece.to_vec());
                    }
                    Ok(())
                };
                match op {
                    Op::Put { number, seed, dense, dirty } => {
                        // A clean page is what storage has.
                        let mut bytes = page(seed, dense);
                        bytes.truncate(PAGE - (seed % 3) as usize * 100);
                        if !dirty {
                            match model.get(&number) {
                                Some(known) => bytes = known.clone(),
                                None => continue,
                            }
                        }
                        match pool.put(number, &bytes, dirty, &mut write) {
                            Ok(true) => {
                                model.insert(number, bytes);
                            }
                            Ok(false) if dirty => {
                                let replaced = pool.replace_by(number..number + 1, || {
                                    if !works {
                                        return Err(io::Error::from_raw_os_error(5));
                                    }
                                    storage.insert(number, bytes.clone());
                                    Ok(())
                                });
                                prop_assert_eq!(replaced.is_ok(), works);
                                if works {
                                    prop_assert!(!pool.has(number));
                                    model.insert(number, bytes);
                                }
                            }
                            Ok(false) => {}
                            Err(_) => prop_assert!(!works && calls > 0),
                        }
                    }
                    Op::Get(number) => {
                        let mut got = vec![0; PAGE];
                        let found = pool.get(number, &mut got).unwrap();
                        let have = match found {
                            Some(found) => Some(got[..found.len].to_vec()),
                            None => storage.get(&number).cloned(),
                        };
                        prop_assert_eq!(have.as_ref(), model.get(&number));
                        if let Some(Found { dirty: false, .. }) = found {
                            prop_assert_eq!(storage.get(&number), model.get(&number));
                        }
                    }
                    Op::Remove(number) => {
                        pool.remove(number);
                        match storage.get(&number) {
                            Some(bytes) => model.insert(number, bytes.clone()),
                            None => model.remove(&number),
                        };
                    }
                    Op::DropClean(number) => pool.drop_clean(number),
                    Op::Flush(a, b) => {
                        let range = a.min(b)..a.max(b);
                        let dirty = pool.counts().dirty_pages;
                        let flushed = pool.flush(range.clone(), &mut write);
                        prop_assert!(flushed.is_ok() || !works && dirty > 0);
                        if works {
                            for number in range {
                                let stored = storage.get(&number);
                                prop_assert_eq!(stored, model.get(&number));
                            }
                        }
                    }
                    Op::Storage(state) => works = state,
                }
                let counts = pool.counts();
                prop_assert!(counts.bytes <= limit, "{counts:?}");
                prop_assert!(counts.bytes >= counts.pages * ENTRY_BYTES);
            }
        }
    }

    #[test]
    fn the_oldest_give_way_and_neighbours_are_written_together() {
        let pool = Pool::new(PAGE, 4 * 900, Codec::Lz4);
        let mut writes = Vec::new();
        for number in 0..20 {
            let put = pool.put(number, &page(number, false), true, |first, bytes| {
                // Else storage would be written to through the kernel's page cache from then on.
                assert!(bytes.as_ptr().addr().is_multiple_of(PAGE));
                writes.push((first, bytes.len() / PAGE));
                Ok(())
            });
            assert!(put.unwrap());
            assert!(pool.has(number));
        }
        let counts = pool.counts();
        assert_eq!(counts.written, writes.iter().map(|(_, n)| *n as u64).sum::<u64>());
        assert!(writes.len() as u64 * 3 <= counts.written, "{writes:?}");
        assert_eq!(counts.pages + counts.gave_way, 20);
        // Those that are left are the youngest.
        assert!((20 - counts.pages..20).all(|number| pool.has(number)));
        assert_eq!(counts.refused, 0);
        assert!(!pool.put(7, &page(7, true), true, |_, _| Ok(())).unwrap());
        assert_eq!(pool.counts().refused, 1);
    }

    #[test]
    fn what_is_cut_off_is_neither_found_nor_written() {
        let pool = Pool::new(PAGE, 1 << 20, Codec::Lz4);
        let nothing = |_: u64, _: &[u8]| -> io::Result<()> { unreachable!("there is room") };
        (0..4).for_each(|number| {
            assert!(pool.put(number, &[7; PAGE], true, nothing).unwrap());
        });
        let refused = pool.cut_by(1, 100, || Err(io::ErrorKind::Unsupported.into()));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::Unsupported);
        let mut page = [0; PAGE];
        let whole = Some(Found { len: PAGE, dirty: true });
        assert_eq!((pool.get(1, &mut page).unwrap(), pool.numbers(0..9).len()), (whole, 4));
        pool.cut_by(1, 100, || Ok(())).unwrap();
        // Longer again: what was cut off does not come back.
        pool.cut_by(1, 500, || Ok(())).unwrap();
        assert_eq!(pool.numbers(0..9), [0, 1]);
        let mut pages = [1; 2 * PAGE];
        pool.load(0, &mut pages, |_, _| unreachable!("both are here")).unwrap();
        let kept = PAGE + 100;
        assert!(pages[..kept].iter().all(|b| *b == 7) && pages[kept..].iter().all(|b| *b == 0));
        let mut written = Vec::new();
        pool.flush(0..9, |first, bytes| {
            written.push((first, bytes.to_vec()));
            Ok(())
        })
        .unwrap();
        assert_eq!(written, [(0, vec![7; kept])]);
        pool.cut_by(1, 0, || Ok(())).unwrap();
        assert_eq!(pool.numbers(0..9), [0]);
        assert_eq!((pool.counts().pages, pool.counts().dirty_pages), (1, 0));
    }

    #[test]
    fn threads_that_put_get_and_flush_find_what_they_put() {
        let pool = Pool::new(PAGE, 8 * 900, Codec::Lz4);
        let storage = Mutex::new(HashMap::new());
        let write = |first: u64, bytes: &[u8]| {
            // A write takes its time, and a younger one of the same page must not be undone.
            std::thread::yield_now();
            let mut storage = storage.lock().unwrap();
            for (i, piece) in bytes.chunks(PAGE).enumerate() {
                storage.insert(first + i as u64, piece.to_vec());
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (pool, storage, write) = (&pool, &storage, &write);
                scope.spawn(move || {
                    let mut last = HashMap::new();
                    for step in 0..2000u64 {
                        // Neighbours belong to different threads.
                        let number = (step * 7 % 10) * 4 + thread;
                        let mut got = vec![0; PAGE];
                        match pool.get(number, &mut got).unwrap() {
                            Some(_) => assert_eq!(Some(&got), last.get(&number)),
                            None => {
                                let stored = storage.lock().unwrap().get(&number).cloned();
                                assert_eq!(stored.as_ref(), last.get(&number), "page {number}");
                            }
                        }
                        let new = page(step << 3 | thread, false);
                        assert!(pool.put(number, &new, true, write).unwrap());
                        last.insert(number, new);
                        if step % 64 == 0 {
                            pool.flush(0..u64::MAX, write).unwrap();
                        }
                    }
                });
            }
        });
        assert!(pool.counts().written > 0);
    }
}
