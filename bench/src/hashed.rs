//! A file cache with a software lookup, in which the changes of the paper's first appendix can be made
//! and unmade one by one.
//!
//! Blocks are found through a hash table with chains of headers, as in 4.2BSD and the HP-UX of
//! *Mapped-File I/O* (SOSP 1989), and each lies in a buffer of its own; uses are told in batches,
//! misses are direct reads, and a victim is written when it has to be. The control that the library's
//! translation is compared with is the library itself (`Translation::Hash`), which has two of the
//! appendix's four changes: the size of its table, and writing pages when they are full
//! (`WriteBack::WhenFull`). The other two are a policy's matters there: a program in HiPEC's language
//! may look for a clean page and flush the dirty ones that it passes, which no native policy does;
//! and no policy sees which bytes of a page were used, which decides between the two queues here.
//!
//! [`Variant`] has all four, each as it was and as it became.

use pagekeeper_policy::Page;
use pagekeeper_policy::list::{Links, List};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock};

/// Bytes in a block.
pub const BLOCK_BYTES: usize = 4096;
/// Entries of the table that was sized when the kernel was compiled.
const FIXED_ENTRIES: usize = 63;
/// Uses that are told together.
const BATCH: usize = 64;
const NONE: u32 = u32::MAX;

/// How the cache works: what appendix I of the paper changed, one by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variant {
    /// Blocks whose last byte was used go to a queue of their own (AGE), which is reclaimed first;
    /// otherwise there is one queue, in LRU order.
    pub two_queues: bool,
    /// A block is written at once when its last byte was; otherwise when it is reclaimed.
    pub write_when_full: bool,
    /// The table has 63 entries; otherwise two for each buffer, so that chains are half an entry
    /// long.
    pub fixed_table: bool,
    /// A search for a victim writes every dirty block that it passes until it finds a clean one;
    /// otherwise it writes the victim only.
    pub clean_all_passed: bool,
}

impl Variant {
    /// What the paper compares with: all of its changes, and cleaning what is needed, as XMF does.
    pub const CHANGED: Variant = Variant {
        two_queues: false,
        write_when_full: false,
        fixed_table: false,
        clean_all_passed: false,
    };
    /// HP-UX as it was.
    pub const ORIGINAL: Variant = Variant {
        two_queues: true,
        write_when_full: true,
        fixed_table: true,
        clean_all_passed: true,
    };
}

/// What a cache did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Blocks read.
    pub reads: u64,
    /// Blocks written.
    pub writes: u64,
    /// Runs of neighbouring blocks that were written one after the other.
    pub write_runs: u64,
    /// The longest of them, in blocks.
    pub longest_run: u64,
}

#[repr(align(4096))]
struct Buffer([u8; BLOCK_BYTES]);

/// Changed under its chain's lock.
struct Header {
    block: AtomicU64,
    next: AtomicU32,
    dirty: AtomicBool,
}

struct Queues {
    links: Links,
    /// LRU, and AGE.
    lists: [List; 2],
    /// In which of them a buffer is.
    of: Vec<u8>,
    free: Vec<u32>,
    counts: Counts,
    run: u64,
    next_in_run: u64,
}

/// A file behind a cache of buffers.
pub struct Hashed {
    file: File,
    variant: Variant,
    chains: Box<[Mutex<u32>]>,
    headers: Box<[Header]>,
    buffers: Box<[RwLock<Buffer>]>,
    queues: Mutex<Queues>,
    touched: [AtomicU32; BATCH],
    touches: AtomicUsize,
}

impl std::fmt::Debug for Hashed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hashed").field("variant", &self.variant).finish_non_exhaustive()
    }
}

impl Hashed {
    /// A cache of so many buffers over a file, which is best open for direct I/O.
    pub fn new(file: File, buffers: u32, variant: Variant) -> Hashed {
        let entries = if variant.fixed_table { FIXED_ENTRIES } else { 2 * buffers as usize };
        let header = |_| Header {
            block: AtomicU64::new(u64::MAX),
            next: AtomicU32::new(NONE),
            dirty: AtomicBool::new(false),
        };
        let queues = Queues {
            links: Links::default(),
            lists: [List::default(), List::default()],
            of: vec![0; buffers as usize],
            free: (0..buffers).rev().collect(),
            counts: Counts::default(),
            run: 0,
            next_in_run: u64::MAX,
        };
        Hashed {
            file,
            variant,
            chains: (0..entries).map(|_| Mutex::new(NONE)).collect(),
            headers: (0..buffers).map(header).collect(),
            buffers: (0..buffers).map(|_| RwLock::new(Buffer([0; BLOCK_BYTES]))).collect(),
            queues: Mutex::new(queues),
            touched: [const { AtomicU32::new(NONE) }; BATCH],
            touches: AtomicUsize::new(0),
        }
    }

    /// What it did so far.
    pub fn counts(&self) -> Counts {
        let queues = self.lock();
        let mut counts = queues.counts;
        counts.longest_run = counts.longest_run.max(queues.run);
        counts
    }

    /// Headers that a lookup of a block looks at.
    pub fn probe(&self, block: u64) -> u64 {
        let head = self.chain(block).lock().expect("chain");
        let mut at = *head;
        let mut probes = 0;
        while at != NONE {
            probes += 1;
            let header = &self.headers[at as usize];
            if header.block.load(Ordering::Relaxed) == block {
                break;
            }
            at = header.next.load(Ordering::Relaxed);
        }
        probes
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().expect("queues")
    }

    #[inline]
    fn chain(&self, block: u64) -> &Mutex<u32> {
        // Fibonacci hashing; then any number of entries.
        let hash = block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.chains[((hash * self.chains.len() as u64) >> 32) as usize]
    }

    /// Finds a block, and takes its buffer before the chain is let go.
    #[inline]
    fn find<'a, G>(
        &'a self,
        block: u64,
        take: impl FnOnce(&'a RwLock<Buffer>) -> G,
    ) -> Option<(u32, G)> {
        let head = self.chain(block).lock().expect("chain");
        let mut at = *head;
        while at != NONE {
            let header = &self.headers[at as usize];
            if header.block.load(Ordering::Relaxed) == block {
                return Some((at, take(&self.buffers[at as usize])));
            }
            at = header.next.load(Ordering::Relaxed);
        }
        None
    }

    fn link(&self, at: u32, block: u64) {
        let mut head = self.chain(block).lock().expect("chain");
        let header = &self.headers[at as usize];
        header.block.store(block, Ordering::Relaxed);
        header.next.store(*head, Ordering::Relaxed);
        *head = at;
    }

    fn unlink(&self, at: u32) {
        let block = self.headers[at as usize].block.load(Ordering::Relaxed);
        let mut head = self.chain(block).lock().expect("chain");
        let after = self.headers[at as usize].next.load(Ordering::Relaxed);
        if *head == at {
            *head = after;
            return;
        }
        let mut before = *head;
        loop {
            let header = &self.headers[before as usize];
            let next = header.next.load(Ordering::Relaxed);
            if next == at {
                header.next.store(after, Ordering::Relaxed);
                return;
            }
            before = next;
        }
    }

    /// A buffer was used, up to its end or not.
    #[inline]
    fn touch(&self, at: u32, to_end: bool) {
        let no = self.touches.fetch_add(1, Ordering::Relaxed);
        let aged = u32::from(to_end && self.variant.two_queues) << 31;
        self.touched[no % BATCH].store(at | aged, Ordering::Relaxed);
        if no % BATCH == BATCH - 1
            && let Ok(mut queues) = self.queues.try_lock()
        {
            self.tell(&mut queues);
        }
    }

    #[cold]
    fn tell(&self, queues: &mut Queues) {
        for touched in &self.touched {
            let touched = touched.swap(NONE, Ordering::Relaxed);
            if touched != NONE {
                queues.place(touched & !(1 << 31), (touched >> 31) as u8);
            }
        }
        self.touches.store(0, Ordering::Relaxed);
    }

    /// Reads within the file's length.
    ///
    /// # Errors
    /// The file's.
    #[inline]
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (block, within) = (at / BLOCK_BYTES as u64, at as usize % BLOCK_BYTES);
            let len = (BLOCK_BYTES - within).min(buf.len() - done);
            let found = self.find(block, |lock| lock.read().expect("buffer"));
            let Some((number, buffer)) = found else {
                self.miss(block, true)?;
                continue;
            };
            buf[done..done + len].copy_from_slice(&buffer.0[within..within + len]);
            drop(buffer);
            self.touch(number, within + len == BLOCK_BYTES);
            done += len;
        }
        Ok(())
    }

    /// Writes within the file's length.
    ///
    /// # Errors
    /// The file's.
    pub fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (block, within) = (at / BLOCK_BYTES as u64, at as usize % BLOCK_BYTES);
            let len = (BLOCK_BYTES - within).min(buf.len() - done);
            let found = self.find(block, |lock| lock.write().expect("buffer"));
            let Some((number, mut buffer)) = found else {
                self.miss(block, len < BLOCK_BYTES)?;
                continue;
            };
            buffer.0[within..within + len].copy_from_slice(&buf[done..done + len]);
            self.headers[number as usize].dirty.store(true, Ordering::Relaxed);
            drop(buffer);
            let to_end = within + len == BLOCK_BYTES;
            self.touch(number, to_end);
            if to_end && self.variant.write_when_full {
                self.clean(&mut self.lock(), number)?;
            }
            done += len;
        }
        Ok(())
    }

    /// Brings a block in; one that is about to be overwritten is not read.
    #[cold]
    fn miss(&self, block: u64, read: bool) -> io::Result<()> {
        let mut queues = self.lock();
        if self.find(block, |_| ()).is_some() {
            return Ok(());
        }
        self.tell(&mut queues);
        let at = self.victim(&mut queues)?;
        {
            let mut buffer = self.buffers[at as usize].write().expect("buffer");
            if read {
                queues.counts.reads += 1;
                let done = self.file.read_exact_at(&mut buffer.0, block * BLOCK_BYTES as u64);
                if let Err(error) = done {
                    queues.free.push(at);
                    return Err(error);
                }
            } else {
                buffer.0.fill(0);
            }
        }
        self.link(at, block);
        queues.place(at, 0);
        Ok(())
    }

    /// A buffer that is in no chain and no queue.
    fn victim(&self, queues: &mut Queues) -> io::Result<u32> {
        if let Some(free) = queues.free.pop() {
            return Ok(free);
        }
        let list = usize::from(queues.lists[1].front().is_some());
        // Where every block is dirty, the first of those that were just written.
        let mut victim = queues.lists[list].front().expect("every buffer is in a queue");
        if self.variant.clean_all_passed {
            let order: Vec<Page> = queues.links.iter(&queues.lists[list]).collect();
            for page in order {
                if !self.headers[page.index()].dirty.load(Ordering::Relaxed) {
                    victim = page;
                    break;
                }
                self.clean(queues, page.0)?;
            }
        }
        let list = queues.of[victim.index()];
        queues.leave(victim.0);
        self.unlink(victim.0);
        // Nobody finds it any more; who had found it may have written to it.
        let cleaned = self.clean(queues, victim.0);
        if let Err(error) = cleaned {
            self.link(victim.0, self.headers[victim.index()].block.load(Ordering::Relaxed));
            queues.place(victim.0, list);
            return Err(error);
        }
        Ok(victim.0)
    }

    /// Writes a block if it is dirty.
    fn clean(&self, queues: &mut Queues, at: u32) -> io::Result<()> {
        let header = &self.headers[at as usize];
        let buffer = self.buffers[at as usize].read().expect("buffer");
        if header.dirty.load(Ordering::Relaxed) {
            let block = header.block.load(Ordering::Relaxed);
            self.file.write_all_at(&buffer.0, block * BLOCK_BYTES as u64)?;
            header.dirty.store(false, Ordering::Relaxed);
            queues.written(block);
        }
        Ok(())
    }

    /// Blocks are deleted: they are not written any more.
    pub fn forget(&self, blocks: std::ops::Range<u64>) {
        let mut queues = self.lock();
        self.tell(&mut queues);
        for block in blocks {
            if let Some((at, ())) = self.find(block, |_| ()) {
                self.unlink(at);
                self.headers[at as usize].dirty.store(false, Ordering::Relaxed);
                queues.leave(at);
                queues.free.push(at);
            }
        }
    }

    /// Writes what is dirty, in order.
    ///
    /// # Errors
    /// The file's.
    pub fn flush(&self) -> io::Result<()> {
        let mut queues = self.lock();
        let mut dirty: Vec<(u64, u32)> = (0..self.headers.len() as u32)
            .map(|at| (self.headers[at as usize].block.load(Ordering::Relaxed), at))
            .filter(|(_, at)| self.headers[*at as usize].dirty.load(Ordering::Relaxed))
            .collect();
        dirty.sort_unstable();
        dirty.into_iter().try_for_each(|(_, at)| self.clean(&mut queues, at))
    }
}

impl Queues {
    /// A buffer becomes the youngest of a queue.
    fn place(&mut self, at: u32, list: u8) {
        if self.links.is_linked(Page(at)) {
            self.leave(at);
        } else if self.free.contains(&at) {
            // Told of late.
            return;
        }
        self.of[at as usize] = list;
        self.links.push_back(&mut self.lists[usize::from(list)], Page(at));
    }

    fn leave(&mut self, at: u32) {
        let list = usize::from(self.of[at as usize]);
        self.links.remove(&mut self.lists[list], Page(at));
    }

    fn written(&mut self, block: u64) {
        self.counts.writes += 1;
        if block == self.next_in_run {
            self.run += 1;
        } else {
            self.counts.longest_run = self.counts.longest_run.max(self.run);
            self.counts.write_runs += 1;
            self.run = 1;
        }
        self.next_in_run = block + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::SplitMix;

    const BLOCKS: u64 = 64;

    fn file(name: &str, len: u64) -> File {
        let path = std::env::temp_dir().join(format!("hashed-{}-{name}", std::process::id()));
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(len).unwrap();
        file
    }

    fn variants() -> impl Iterator<Item = Variant> {
        (0..16).map(|bits| Variant {
            two_queues: bits & 1 != 0,
            write_when_full: bits & 2 != 0,
            fixed_table: bits & 4 != 0,
            clean_all_passed: bits & 8 != 0,
        })
    }

    #[test]
    fn every_variant_is_a_vector() {
        for (no, variant) in variants().enumerate() {
            let len = BLOCKS as usize * BLOCK_BYTES;
            let file = file(&no.to_string(), len as u64);
            let cache = Hashed::new(file.try_clone().unwrap(), 10, variant);
            let mut model = vec![0u8; len];
            let mut random = SplitMix::new(no as u64);
            for step in 0..3000u64 {
                let at = random.below(len as u64 - 9000) as usize;
                let len = random.below(9000) as usize;
                if step % 3 == 0 {
                    let bytes: Vec<u8> = (0..len).map(|i| (step as usize + i) as u8).collect();
                    cache.write_all_at(&bytes, at as u64).unwrap();
                    model[at..at + len].copy_from_slice(&bytes);
                } else {
                    let mut bytes = vec![0; len];
                    cache.read_exact_at(&mut bytes, at as u64).unwrap();
                    assert!(bytes == model[at..at + len], "{variant:?}, step {step}");
                }
            }
            cache.flush().unwrap();
            let mut stored = vec![0; model.len()];
            file.read_exact_at(&mut stored, 0).unwrap();
            assert!(stored == model, "{variant:?}");
            let counts = cache.counts();
            assert!(counts.write_runs <= counts.writes && counts.longest_run <= counts.writes);
        }
    }

    #[test]
    fn threads_find_what_they_wrote() {
        let cache = Hashed::new(file("threads", BLOCKS * 4096), 10, Variant::CHANGED);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let cache = &cache;
                scope.spawn(move || {
                    let mut random = SplitMix::new(thread);
                    let mut model = vec![0u8; BLOCKS as usize];
                    for step in 0..20_000u64 {
                        // Each has a byte of every block.
                        let block = random.below(BLOCKS);
                        let at = block * 4096 + thread;
                        if step % 4 == 0 {
                            model[block as usize] = step as u8;
                            cache.write_all_at(&[step as u8], at).unwrap();
                        } else {
                            let mut byte = [0];
                            cache.read_exact_at(&mut byte, at).unwrap();
                            assert_eq!(byte[0], model[block as usize], "step {step}");
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn variants_differ_as_the_appendix_says() {
        let run = |variant: Variant| {
            let cache = Hashed::new(file("appendix", 200 * 4096), 100, variant);
            let block = [1; BLOCK_BYTES];
            // Long-lived blocks, a temporary file that is written, deleted, and more of them.
            (0..20).for_each(|b| cache.write_all_at(&block[..100], b * 4096).unwrap());
            for round in 0..10 {
                (100..150).for_each(|b| cache.write_all_at(&block, b * 4096).unwrap());
                cache.forget(100..150);
                let mut bytes = [0; 10];
                (0..20).for_each(|b| cache.read_exact_at(&mut bytes, (b + round) * 4096).unwrap());
            }
            (cache.counts(), (0..20).map(|b| cache.probe(b)).sum::<u64>())
        };
        let (control, _) = run(Variant::CHANGED);
        assert_eq!(control.writes, 0, "what was deleted is not written");
        let (full, _) = run(Variant { write_when_full: true, ..Variant::CHANGED });
        assert_eq!(full.writes, 500);
        assert!(full.longest_run >= 50);
    }

    #[test]
    fn a_search_that_cleans_all_it_passes_writes_more() {
        let writes = |clean_all_passed: bool| {
            let variant = Variant { clean_all_passed, ..Variant::CHANGED };
            let cache = Hashed::new(file("passed", 200 * 4096), 100, variant);
            (0..99).for_each(|b| cache.write_all_at(&[1; BLOCK_BYTES], b * 4096).unwrap());
            let mut byte = [0];
            cache.read_exact_at(&mut byte, 150 * 4096).unwrap();
            cache.read_exact_at(&mut byte, 151 * 4096).unwrap();
            cache.counts()
        };
        assert_eq!((writes(false).writes, writes(false).longest_run), (1, 1));
        assert_eq!((writes(true).writes, writes(true).longest_run), (99, 99));
    }
}
