//! Where heap memory goes that does not fit: one unlinked file a run, shared by all its heaps.
//!
//! Each heap page that was ever written out has a block of its own in the file. A forked child
//! begins with its parent's blocks, and whoever writes a page out first gets a new one: content
//! that two processes share is stored once. A page of zeros has no block, and costs no I/O.
//!
//! In front of the file may be a [`Pool`], in which blocks stay compressed as long as there is room.
//! What comes back from there into a frame is not kept twice ([`HeapStore::take_kept`]).

use crate::compressed::Pool;
use crate::engine::stats::CompressedReport;
use crate::live::store::Store;
use crate::port::{PAGE_BYTES, PortError};
use pagekeeper_sys::Errno;
use rangemap::RangeSet;
use rustix::fs::{Mode, OFlags};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Pages whose blocks are noted together, and shared together between parent and child.
const CHUNK_PAGES: u64 = 512;
/// The file is made longer by so many blocks at a time.
const GROW_BLOCKS: u64 = 64 << 10;
/// With fewer free blocks than this, the file rather grows than that a run is broken up.
const SCATTER_FROM_BLOCKS: u64 = 16 << 10;
/// Free ranges that are looked at for one that fits a run.
const LOOK_AT_RANGES: usize = 16;

/// Block + 1 of each page; 0 for a page of zeros.
type Chunk = [u32; CHUNK_PAGES as usize];
type Map = BTreeMap<u64, Arc<Chunk>>;

#[derive(Default)]
struct Blocks {
    /// Per block, how many chunks name it.
    users: Vec<u32>,
    free: RangeSet<u64>,
    free_blocks: u64,
    /// Blocks that the file is long enough for.
    room: u64,
    maps: HashMap<u32, Map>,
    next_map: u32,
}

impl Blocks {
    /// Blocks for a run of pages, in as few pieces as can be had.
    fn take(&mut self, pages: u64) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        let mut left = pages;
        while left > 0 {
            let near = || self.free.iter().take(LOOK_AT_RANGES);
            let fits = near().find(|r| r.end - r.start >= left).cloned();
            let largest = || near().max_by_key(|r| r.end - r.start).cloned();
            let range = match fits {
                Some(range) => range.start..range.start + left,
                None if self.free_blocks >= SCATTER_FROM_BLOCKS => match largest() {
                    Some(range) => range,
                    None => break,
                },
                None => {
                    let start = self.users.len() as u64;
                    self.users.resize((start + left) as usize, 0);
                    found.push(start..start + left);
                    break;
                }
            };
            self.free.remove(range.clone());
            self.free_blocks -= range.end - range.start;
            left -= range.end - range.start;
            found.push(range);
        }
        found
    }

    fn give_back(&mut self, block: u64) {
        self.free.insert(block..block + 1);
        self.free_blocks += 1;
    }

    /// A chunk that no other heap shares.
    fn own<'a>(users: &mut [u32], map: &'a mut Map, chunk: u64) -> &'a mut Chunk {
        let shared = map.entry(chunk).or_insert_with(|| Arc::new([0; CHUNK_PAGES as usize]));
        if Arc::strong_count(shared) > 1 {
            for &block in shared.iter().filter(|&&b| b != 0) {
                users[block as usize - 1] += 1;
            }
        }
        Arc::make_mut(shared)
    }

    /// One chunk less names the block; true if it was the last.
    fn unname(&mut self, block_and_one: u32) -> bool {
        let users = &mut self.users[block_and_one as usize - 1];
        *users -= 1;
        *users == 0
    }

    /// A page has no block any more, or another; the one it had, if that is free now.
    fn replace(&mut self, heap: u32, page: u64, block_and_one: u32) -> Option<u64> {
        let (chunk, at) = (page / CHUNK_PAGES, (page % CHUNK_PAGES) as usize);
        let map = self.maps.get_mut(&heap)?;
        if block_and_one == 0 && map.get(&chunk).is_none_or(|c| c[at] == 0) {
            return None;
        }
        let old = std::mem::replace(&mut Self::own(&mut self.users, map, chunk)[at], block_and_one);
        if block_and_one != 0 {
            self.users[block_and_one as usize - 1] += 1;
        }
        (old != 0 && self.unname(old)).then(|| u64::from(old) - 1)
    }

    /// The page's block; none if it is all zeros.
    fn block(&self, heap: u32, page: u64) -> Option<u64> {
        let chunk = self.maps.get(&heap)?.get(&(page / CHUNK_PAGES))?;
        u64::from(chunk[(page % CHUNK_PAGES) as usize]).checked_sub(1)
    }

    /// The page's block, if no other heap needs what it holds.
    fn own_block(&self, heap: u32, page: u64) -> Option<u64> {
        let block = self.block(heap, page)?;
        let chunk = self.maps.get(&heap)?.get(&(page / CHUNK_PAGES))?;
        (Arc::strong_count(chunk) == 1 && self.users[block as usize] == 1).then_some(block)
    }
}

/// The scratch file of a run.
pub struct Scratch {
    store: Store,
    place: PathBuf,
    blocks: Mutex<Blocks>,
    /// By block. It is asked with `blocks` locked, and never the other way round.
    pool: Option<Pool>,
    written_bytes: AtomicU64,
    /// Nobody needs it any more: all its room goes back with it.
    ending: AtomicBool,
    full: AtomicBool,
    /// It was full, and nobody was told.
    untold: AtomicBool,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scratch in {}", self.place.display())
    }
}

/// A file without a name, where the file system has such; else one whose name is taken away.
fn nameless(place: &Path) -> Result<OwnedFd, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(place, flags | OFlags::TMPFILE, mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
        other => return other,
    }
    let path = place.join(format!(".pagekeeper-heap-{}", std::process::id()));
    let fd = rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
    rustix::fs::unlink(&path)?;
    Ok(fd)
}

fn io_error(error: PortError) -> io::Error {
    match error {
        PortError::Io(errno) => io::Error::from_raw_os_error(errno),
        other => io::Error::other(other),
    }
}

fn port_error(error: io::Error) -> PortError {
    PortError::Io(error.raw_os_error().unwrap_or(libc::EIO))
}

impl Scratch {
    /// A scratch file in a directory; it has no name, and is gone with this process. What goes there
    /// stays in the pool first, if there is one, which is for pages of [`PAGE_BYTES`].
    ///
    /// # Errors
    /// No file can be made there.
    pub fn create(place: &Path, pool: Option<Pool>) -> Result<Arc<Scratch>, Errno> {
        let fd = nameless(place)?;
        let store = Store::open(fd.as_fd())?;
        store.allow_writes(fd.as_fd())?;
        Ok(Arc::new(Scratch {
            store,
            place: place.to_owned(),
            blocks: Mutex::new(Blocks::default()),
            pool,
            written_bytes: AtomicU64::new(0),
            ending: AtomicBool::new(false),
            full: AtomicBool::new(false),
            untold: AtomicBool::new(false),
        }))
    }

    /// Whether something could not be stored for lack of space, and nothing was freed since.
    fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// The run is over: what goes now need not be given back piece by piece.
    pub fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// What the user is to be told, once, when it was full.
    pub fn complaint(&self) -> Option<String> {
        self.untold.swap(false, Ordering::Relaxed).then(|| {
            format!(
                "there is no more room in {} for heap memory: a program that writes to more of it \
                 is ended by SIGBUS (name another directory with --heap-dir)",
                self.place.display()
            )
        })
    }

    fn note_full(&self) {
        if !self.full.swap(true, Ordering::Relaxed) {
            self.untold.store(true, Ordering::Relaxed);
        }
    }

    /// Whether blocks may be compressed in memory first; and if so, whether most compress just now.
    pub fn compresses(&self) -> Option<bool> {
        self.pool.as_ref().map(Pool::is_worth_it)
    }

    /// Memory that compressed blocks take.
    pub fn kept_bytes(&self) -> u64 {
        self.pool.as_ref().map_or(0, |pool| pool.counts().memory_bytes)
    }

    /// What became of compressed blocks so far, if there may be some.
    pub fn compressed(&self) -> Option<CompressedReport> {
        let pool = self.pool.as_ref()?;
        let counts = pool.counts();
        Some(CompressedReport {
            limit_bytes: pool.limit_bytes(),
            memory_bytes_max: counts.memory_bytes_max,
            kept_pages: counts.kept,
            refused_pages: counts.refused,
            found_pages: counts.found,
            written_pages: counts.written,
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            page_bytes: counts.kept_bytes.checked_div(counts.kept).unwrap_or(0),
        })
    }

    /// Neighbouring blocks, from the file; the bytes that were read.
    fn read(&self, block: u64, data: &mut [u8]) -> Result<u64, PortError> {
        self.store.load(block * PAGE_BYTES, data)
    }

    /// Neighbouring blocks, to the file.
    fn write(&self, block: u64, data: &[u8]) -> Result<(), PortError> {
        let written = self.store.store(block * PAGE_BYTES, data, u64::MAX);
        if let Err(PortError::Io(libc::ENOSPC | libc::EDQUOT | libc::EFBIG)) = written {
            self.note_full();
        }
        if written.is_ok() {
            self.written_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        }
        written
    }

    /// Blocks that hold content now.
    pub fn used_blocks(&self) -> u64 {
        let blocks = self.lock();
        blocks.users.len() as u64 - blocks.free_blocks
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().expect("no thread panics while it holds the blocks")
    }

    /// Neighbouring blocks, from where they are; the bytes that came from the file.
    fn load(&self, block: u64, data: &mut [u8]) -> Result<u64, PortError> {
        let Some(pool) = &self.pool else { return self.read(block, data) };
        let mut read_bytes = 0;
        let loaded = pool.load(block, data, |block, part| {
            read_bytes += self.read(block, part).map_err(io_error)?;
            Ok(())
        });
        loaded.map(|()| read_bytes).map_err(port_error)
    }

    /// Neighbouring blocks, to where there is room.
    fn keep(&self, block: u64, data: &[u8]) -> Result<(), PortError> {
        let Some(pool) = &self.pool else { return self.write(block, data) };
        let write = |block, part: &[u8]| self.write(block, part).map_err(io_error);
        pool.keep(block, data, true, write).map_err(port_error)
    }

    /// A block that nobody names is free.
    fn give_back(&self, blocks: &mut Blocks, block: u64) {
        blocks.give_back(block);
        self.unkeep(block..block + 1);
    }

    /// What is compressed of blocks that nobody names goes. One that is being written stays: who has
    /// the block next waits for that.
    fn unkeep(&self, blocks: Range<u64>) {
        if let Some(pool) = &self.pool {
            pool.forget_idle(blocks);
        }
    }

    /// The heap of a process that has no memory yet.
    pub fn heap(self: &Arc<Self>) -> HeapStore {
        let mut blocks = self.lock();
        blocks.next_map += 1;
        let number = blocks.next_map;
        blocks.maps.insert(number, Map::new());
        HeapStore { scratch: self.clone(), number }
    }

    /// Blocks that nobody names: their room on storage goes back at once. That takes long if they are many
    /// and lie apart, and faults wait for the lock: it is taken when they are to be others'.
    fn free(&self, freed: &RangeSet<u64>) {
        for range in freed.iter() {
            let count = range.end - range.start;
            if !self.ending.load(Ordering::Relaxed) {
                let _ = self.store.punch(range.start * PAGE_BYTES, count * PAGE_BYTES);
            }
            self.unkeep(range.clone());
            let mut blocks = self.lock();
            blocks.free_blocks += count;
            blocks.free.insert(range.clone());
        }
        if !freed.is_empty() {
            self.full.store(false, Ordering::Relaxed);
        }
    }
}

/// What is stored of one process's heap.
#[derive(Debug)]
pub struct HeapStore {
    scratch: Arc<Scratch>,
    number: u32,
}

impl HeapStore {
    /// A heap with the same content, as a forked child has it. Nothing is copied.
    pub fn fork(&self) -> HeapStore {
        let mut blocks = self.scratch.lock();
        blocks.next_map += 1;
        let number = blocks.next_map;
        let map = blocks.maps.get(&self.number).cloned().unwrap_or_default();
        blocks.maps.insert(number, map);
        HeapStore { scratch: self.scratch.clone(), number }
    }

    /// Pages that have a block, neighbours together, in order.
    pub fn stored(&self) -> Vec<Range<u64>> {
        // Of a chunk it counts who has it: nobody keeps one for longer than the lock.
        let scratch = self.scratch.lock();
        let map = scratch.maps.get(&self.number).into_iter().flatten();
        let pages = map.flat_map(|(chunk, blocks)| {
            let page = chunk * CHUNK_PAGES;
            (0..CHUNK_PAGES).filter(move |&i| blocks[i as usize] != 0).map(move |i| page + i)
        });
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for page in pages {
            match ranges.last_mut() {
                Some(last) if last.end == page => last.end += 1,
                _ => ranges.push(page..page + 1),
            }
        }
        ranges
    }

    /// Whether none of these pages has a block.
    pub fn is_zeros(&self, pages: Range<u64>) -> bool {
        let blocks = self.scratch.lock();
        let is_stored = |page: u64| blocks.block(self.number, page).is_some();
        let Some(map) = blocks.maps.get(&self.number) else { return true };
        let chunks = pages.start / CHUNK_PAGES..pages.end.div_ceil(CHUNK_PAGES);
        map.range(chunks).next().is_none() || !pages.clone().any(is_stored)
    }

    /// Reads pages; those without a block are zeros. Returns the bytes that came from storage.
    ///
    /// # Errors
    /// As `pread(2)`.
    pub fn load(&self, first: u64, data: &mut [u8]) -> Result<u64, PortError> {
        let page = PAGE_BYTES as usize;
        let count = data.len() / page;
        let found: Vec<Option<u64>> = {
            let blocks = self.scratch.lock();
            (0..count as u64).map(|i| blocks.block(self.number, first + i)).collect()
        };
        let mut read = 0;
        let mut at = 0;
        while at < count {
            let Some(start) = found[at] else {
                data[at * page..(at + 1) * page].fill(0);
                at += 1;
                continue;
            };
            let follows = |n: usize| found[at + n] == Some(start + n as u64);
            let mut n = 1;
            while at + n < count && follows(n) {
                n += 1;
            }
            let piece = &mut data[at * page..(at + n) * page];
            read += self.scratch.load(start, piece)?;
            at += n;
        }
        Ok(read)
    }

    /// Writes pages. Those of zeros lose their block.
    ///
    /// # Errors
    /// ENOSPC: the scratch directory is full. As `pwrite(2)`.
    pub fn store(&self, first: u64, data: &[u8]) -> Result<(), PortError> {
        let page = PAGE_BYTES as usize;
        let count = data.len() / page;
        let zero: Vec<bool> = data.chunks_exact(page).map(|p| p.iter().all(|&b| b == 0)).collect();
        let places = self.place_pages(first, &zero)?;
        let mut at = 0;
        while at < count {
            let Some(start) = places[at] else {
                at += 1;
                continue;
            };
            let mut n = 1;
            while at + n < count && places[at + n] == Some(start + n as u64) {
                n += 1;
            }
            self.scratch.keep(start, &data[at * page..(at + n) * page])?;
            at += n;
        }
        Ok(())
    }

    /// Blocks for pages that are about to be written; none for zeros.
    fn place_pages(&self, first: u64, zero: &[bool]) -> Result<Vec<Option<u64>>, PortError> {
        let mut places = vec![None; zero.len()];
        let mut blocks = self.scratch.lock();
        let mut new = Vec::new();
        for (i, zero) in zero.iter().enumerate() {
            let page = first + i as u64;
            if *zero {
                if let Some(freed) = blocks.replace(self.number, page, 0) {
                    self.scratch.give_back(&mut blocks, freed);
                }
                continue;
            }
            places[i] = blocks.own_block(self.number, page);
            if places[i].is_none() {
                new.push(i);
            }
        }
        let mut fresh = blocks.take(new.len() as u64).into_iter().flatten();
        for i in new {
            let block = fresh.next().expect("as many blocks as were asked for");
            let name = u32::try_from(block + 1).map_err(|_| PortError::Io(libc::ENOSPC))?;
            if let Some(freed) = blocks.replace(self.number, first + i as u64, name) {
                self.scratch.give_back(&mut blocks, freed);
            }
            places[i] = Some(block);
        }
        let needed = blocks.users.len() as u64;
        if needed > blocks.room {
            let room = needed.next_multiple_of(GROW_BLOCKS);
            // Under the lock: a longer file must not be made shorter by who comes later.
            self.scratch.store.set_len(room * PAGE_BYTES)?;
            blocks.room = room;
        }
        Ok(places)
    }

    /// A page's content is in a frame now, and what is compressed of it goes. True: nobody else has the
    /// content from now on, so that the frame is dirty. Where another heap needs it, it stays.
    #[must_use]
    pub fn take_kept(&self, page: u64) -> bool {
        let Some(pool) = &self.scratch.pool else { return false };
        let blocks = self.scratch.lock();
        blocks.own_block(self.number, page).is_some_and(|block| pool.hand_over(block))
    }

    /// Whether a page that is not dirty yet may become so: not while what is dirty finds no room.
    ///
    /// # Errors
    /// ENOSPC.
    pub fn reserve(&self) -> Result<(), PortError> {
        if self.scratch.is_full() && self.scratch.lock().free_blocks == 0 {
            return Err(PortError::Io(libc::ENOSPC));
        }
        Ok(())
    }

    /// Pages' content is not wanted any more: they are zeros.
    pub fn forget(&self, pages: Range<u64>) {
        let mut blocks = self.scratch.lock();
        let Some(map) = blocks.maps.get(&self.number) else { return };
        let chunks = pages.start / CHUNK_PAGES..pages.end.div_ceil(CHUNK_PAGES);
        let chunks: Vec<u64> = map.range(chunks).map(|(chunk, _)| *chunk).collect();
        let mut freed = RangeSet::new();
        for chunk in chunks {
            let first = chunk * CHUNK_PAGES;
            if pages.start <= first && first + CHUNK_PAGES <= pages.end {
                self.drop_chunk(&mut blocks, chunk, &mut freed);
                continue;
            }
            let part = first.max(pages.start)..(first + CHUNK_PAGES).min(pages.end);
            let named = |map: &Map| {
                let part = (part.start - first) as usize..(part.end - first) as usize;
                map.get(&chunk).is_some_and(|blocks| blocks[part].iter().any(|&block| block != 0))
            };
            if !blocks.maps.get(&self.number).is_some_and(named) {
                continue;
            }
            for page in part {
                if let Some(block) = blocks.replace(self.number, page, 0) {
                    freed.insert(block..block + 1);
                }
            }
        }
        drop(blocks);
        self.scratch.free(&freed);
    }

    /// All pages but these are zeros.
    pub fn retain(&self, pages: &RangeSet<u64>) {
        pages.gaps(&(0..u64::MAX)).for_each(|gap| self.forget(gap));
    }

    fn drop_chunk(&self, blocks: &mut Blocks, chunk: u64, freed: &mut RangeSet<u64>) {
        let Some(gone) = blocks.maps.get_mut(&self.number).and_then(|map| map.remove(&chunk))
        else {
            return;
        };
        // A chunk that others share names its blocks for them too.
        if let Ok(gone) = Arc::try_unwrap(gone) {
            for block in gone.into_iter().filter(|&b| b != 0) {
                if blocks.unname(block) {
                    freed.insert(u64::from(block) - 1..u64::from(block));
                }
            }
        }
    }
}

impl Drop for HeapStore {
    fn drop(&mut self) {
        self.forget(0..u64::MAX);
        self.scratch.lock().maps.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compressed::Codec;
    use proptest::prelude::*;

    fn page(value: u8) -> Vec<u8> {
        vec![value; PAGE_BYTES as usize]
    }

    /// A process that ended with much memory held up all others, for seconds.
    #[test]
    fn nobody_waits_while_many_blocks_are_given_back() {
        const PAGES: u64 = 4096;
        let scratch = Scratch::create(&std::env::temp_dir(), None).unwrap();
        let (gone, stays) = (scratch.heap(), scratch.heap());
        // Neighbours are of the other, so that each is given back by itself.
        for i in 0..PAGES {
            gone.store(i, &page(1)).unwrap();
            stays.store(i, &page(2)).unwrap();
        }
        let is_gone = AtomicBool::new(false);
        let looks = std::thread::scope(|scope| {
            scope.spawn(|| {
                drop(gone);
                is_gone.store(true, Ordering::SeqCst);
            });
            let mut looks = 0;
            while !is_gone.load(Ordering::SeqCst) {
                // In the midst of it.
                looks += u64::from((PAGES + 1..2 * PAGES).contains(&scratch.used_blocks()));
            }
            looks
        });
        assert!(looks > 0);
        assert_eq!(scratch.used_blocks(), PAGES);
        assert!(!stays.is_zeros(7..8));
    }

    #[test]
    fn a_page_of_zeros_takes_no_room() {
        let scratch = Scratch::create(&std::env::temp_dir(), None).unwrap();
        let heap = scratch.heap();
        let mut data = page(9);
        assert_eq!(heap.load(77, &mut data).unwrap(), 0);
        assert_eq!(data, page(0));
        heap.store(77, &page(0)).unwrap();
        assert_eq!(scratch.used_blocks(), 0);
        heap.store(77, &page(5)).unwrap();
        assert_eq!(scratch.used_blocks(), 1);
        heap.store(77, &page(0)).unwrap();
        assert_eq!(scratch.used_blocks(), 0);
    }

    #[test]
    fn parent_and_child_share_what_neither_wrote() {
        let scratch = Scratch::create(&std::env::temp_dir(), None).unwrap();
        let parent = scratch.heap();
        for i in 0..600 {
            parent.store(i, &page(i as u8 | 1)).unwrap();
        }
        let child = parent.fork();
        assert_eq!(scratch.used_blocks(), 600);
        parent.store(3, &page(200)).unwrap();
        child.store(4, &page(201)).unwrap();
        assert_eq!(scratch.used_blocks(), 602);
        let mut data = page(0);
        child.load(3, &mut data).unwrap();
        assert_eq!(data, page(3));
        parent.load(4, &mut data).unwrap();
        assert_eq!(data, page(5));
        drop(parent);
        assert_eq!(scratch.used_blocks(), 600);
        child.load(4, &mut data).unwrap();
        assert_eq!(data, page(201));
        drop(child);
        assert_eq!(scratch.used_blocks(), 0);
    }

    /// What a parent's thread freed while another forked was the child's, which found it in fresh
    /// memory.
    #[test]
    fn a_child_may_begin_with_a_part_of_what_is_stored() {
        let scratch = Scratch::create(&std::env::temp_dir(), None).unwrap();
        let parent = scratch.heap();
        (0..1600).for_each(|i| parent.store(i, &page(i as u8 | 1)).unwrap());
        let child = parent.fork();
        child.retain(&[100..200, 600..601].into_iter().collect());
        assert_eq!(child.stored(), [100..200, 600..601]);
        assert!(parent.stored().into_iter().eq(std::iter::once(0..1600)));
        let mut data = page(0);
        child.load(600, &mut data).unwrap();
        assert_eq!(data, page(600u64 as u8 | 1));
        drop(parent);
        assert_eq!(scratch.used_blocks(), 101);
        drop(child);
        assert_eq!(scratch.used_blocks(), 0);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Store(usize, u64, Vec<u8>),
        Take(usize, u64, u64),
        Forget(usize, u64, u64),
        Fork(usize),
        End(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..4usize, 0..1100u64, prop::collection::vec(0..6u8, 1..40))
                .prop_map(|(h, p, v)| Step::Store(h, p, v)),
            4 => (0..4usize, 0..1100u64, 1..40u64).prop_map(|(h, p, n)| Step::Take(h, p, n)),
            3 => (0..4usize, 0..1100u64, 1..900u64).prop_map(|(h, p, n)| Step::Forget(h, p, n)),
            2 => (0..4usize).prop_map(Step::Fork),
            1 => (0..4usize).prop_map(Step::End),
        ]
    }

    /// Pages of the same byte compress, those of 4 and 5 do not.
    fn filled(value: u8) -> Vec<u8> {
        let mut x = u64::from(value);
        let mut dense = || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 56) as u8
        };
        (0..PAGE_BYTES).map(|_| if value < 4 { value } else { dense() }).collect()
    }

    #[derive(Clone, Default)]
    struct Model {
        pages: BTreeMap<u64, u8>,
        /// Those that are in a frame only.
        taken: BTreeMap<u64, u8>,
    }

    impl Model {
        /// What is dirty goes back, as before a fork.
        fn put_back(&mut self, heap: &HeapStore) {
            for (page, value) in std::mem::take(&mut self.taken) {
                heap.store(page, &filled(value)).unwrap();
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        /// Against a map of page contents for each heap; in front of the file is nothing, or room for
        /// some compressed pages.
        #[test]
        fn heaps_hold_what_was_stored(
            steps in prop::collection::vec(step(), 1..60),
            room in prop::option::of(1..200u64),
        ) {
            let pool = room.map(|pages| Pool::new(PAGE_BYTES as usize, pages * 300, Codec::Lz4));
            let scratch = Scratch::create(&std::env::temp_dir(), pool).unwrap();
            let mut heaps = vec![(scratch.heap(), Model::default())];
            for step in steps {
                let of = |h: usize, heaps: &Vec<_>| h % heaps.len();
                match step {
                    Step::Store(h, first, values) => {
                        let h = of(h, &heaps);
                        let data: Vec<u8> = values.iter().flat_map(|&v| filled(v)).collect();
                        heaps[h].0.store(first, &data).unwrap();
                        for (page, v) in (first..).zip(values) {
                            heaps[h].1.pages.insert(page, v);
                            heaps[h].1.taken.remove(&page);
                        }
                    }
                    Step::Take(h, first, pages) => {
                        let h = of(h, &heaps);
                        let (heap, model) = &mut heaps[h];
                        for page in first..first + pages {
                            if heap.take_kept(page) {
                                model.taken.insert(page, model.pages[&page]);
                            }
                        }
                    }
                    Step::Forget(h, first, pages) => {
                        let h = of(h, &heaps);
                        heaps[h].0.forget(first..first + pages);
                        let goes = |p: &u64| (first..first + pages).contains(p);
                        heaps[h].1.pages.retain(|p, _| !goes(p));
                        heaps[h].1.taken.retain(|p, _| !goes(p));
                    }
                    Step::Fork(h) if heaps.len() < 4 => {
                        let h = of(h, &heaps);
                        let (heap, model) = &mut heaps[h];
                        model.put_back(heap);
                        let child = (heap.fork(), model.clone());
                        heaps.push(child);
                    }
                    Step::End(h) if heaps.len() > 1 => {
                        let h = of(h, &heaps);
                        heaps.swap_remove(h);
                    }
                    _ => {}
                }
            }
            for (heap, model) in &mut heaps {
                model.put_back(heap);
            }
            for (heap, model) in &heaps {
                let mut data = vec![0; 1200 * PAGE_BYTES as usize];
                heap.load(0, &mut data).unwrap();
                for (p, content) in data.chunks_exact(PAGE_BYTES as usize).enumerate() {
                    let value = model.pages.get(&(p as u64)).copied().unwrap_or(0);
                    prop_assert!(content == filled(value), "page {}", p);
                }
            }
            drop(heaps);
            prop_assert_eq!(scratch.used_blocks(), 0);
            prop_assert_eq!(scratch.kept_bytes(), 0);
        }
    }
}
