//! Heap memory of processes: which range of a heap each allocation gets, what a forked child
//! inherits, what happens when memory is unmapped.
//!
//! Each process image that allocates has one heap: a memfd of its own with room for 16 TiB, mapped
//! shared and registered like a file, with the run's scratch file behind it. The mappings are not
//! inherited by the kernel's hand (MADV_DONTFORK). When a process forks, its dirty pages are stored
//! first and nobody writes until the fork is done; what is stored then is the child's too, block
//! by block, until one of the two stores another content. The child maps its own heap over what it
//! inherits before anything else runs in it.

use crate::heap::{Orphan, PAGES_MAX};
use crate::live::{Behind, LiveFile, LiveSpace};
use crate::manager::Manager;
use crate::port::{FileNo, PAGE_BYTES, PortError, SpaceNo};
use crate::scratch::{HeapStore, Scratch};
use crate::spaces::Region;
use crate::work::Work;
use pagekeeper_sys::Errno;
use pagekeeper_sys::file;
use pagekeeper_sys::memfd::Memfd;
use pagekeeper_sys::process;
use pagekeeper_sys::userfault::Track;
use pagekeeper_wire as wire;
use rangemap::RangeSet;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Largest allocation that is managed: a longer one is address space to be parcelled out, not
/// memory.
const ALLOCATION_PAGES_MAX: u64 = 1 << 28;
/// Room for growth behind an allocation, as a multiple of its length rounded up to a power of two.
const ROOM: u64 = 2;

/// Why allocations are the kernel's when all of a heap is taken.
const HEAP_FULL: &str = "its ranges take 16 TiB with their room to grow, which is all that a process's heap \
                         has: what else it allocates is not managed until some is freed";

/// Ranges of a heap that are given out, each with room for growth. Used ranges are used again
/// first, since their pages have numbers already.
#[derive(Clone)]
struct Slots {
    taken: BTreeMap<u64, u64>,
    /// What is free between them: where, by the power of two that each is no shorter than.
    gaps: Vec<BTreeSet<u64>>,
}

impl Default for Slots {
    fn default() -> Slots {
        let gaps = vec![BTreeSet::new(); PAGES_MAX.ilog2() as usize + 1];
        let mut slots = Slots { taken: BTreeMap::new(), gaps };
        slots.put_gap(0..PAGES_MAX);
        slots
    }
}

impl Slots {
    fn put_gap(&mut self, gap: Range<u64>) {
        if !gap.is_empty() {
            self.gaps[(gap.end - gap.start).ilog2() as usize].insert(gap.start);
        }
    }

    fn take_gap(&mut self, gap: Range<u64>) {
        if !gap.is_empty() {
            self.gaps[(gap.end - gap.start).ilog2() as usize].remove(&gap.start);
        }
    }

    /// The first taken page from here on, or the end.
    fn next_taken(&self, page: u64) -> u64 {
        self.taken.range(page..).next().map_or(PAGES_MAX, |(&next, _)| next)
    }

    /// The first free range for an allocation of so many pages.
    fn take(&mut self, pages: u64) -> Option<u64> {
        let needed = pages.next_power_of_two() * ROOM;
        // A power of two: whatever is no shorter than that is long enough.
        let fitting = self.gaps.get(needed.ilog2() as usize..)?;
        let start = *fitting.iter().filter_map(BTreeSet::first).min()?;
        let end = self.next_taken(start);
        self.take_gap(start..end);
        self.taken.insert(start, needed);
        self.put_gap(start + needed..end);
        Some(start)
    }

    /// Gives the range back that begins here.
    fn free(&mut self, start: u64) {
        let Some(len) = self.taken.remove(&start) else { return };
        let before = self.taken.range(..start).next_back().map_or(0, |(&at, &len)| at + len);
        let next = self.next_taken(start);
        self.take_gap(before..start);
        self.take_gap(start + len..next);
        self.put_gap(before..next);
    }

    /// The range that a page is in.
    fn of(&self, page: u64) -> Option<Range<u64>> {
        let (&start, &len) = self.taken.range(..=page).next_back()?;
        (page < start + len).then_some(start..start + len)
    }

    /// The parts of these pages that are given out. Ranges with none of them are free from now on.
    fn keep(&mut self, pages: &RangeSet<u64>) -> RangeSet<u64> {
        let mut kept = RangeSet::new();
        let taken: Vec<(u64, u64)> = self.taken.iter().map(|(&at, &len)| (at, at + len)).collect();
        for (start, end) in taken {
            let mut nobodys = true;
            for part in pages.overlapping(&(start..end)) {
                kept.insert(part.start.max(start)..part.end.min(end));
                nobodys = false;
            }
            if nobodys {
                self.free(start);
            }
        }
        kept
    }

    /// Makes the range around `page` reach to `end`, if nobody has what lies behind it.
    fn reach(&mut self, page: u64, end: u64) -> bool {
        let Some(range) = self.of(page) else { return false };
        let free_to = self.next_taken(range.end);
        if end > range.end && end <= free_to {
            self.take_gap(range.end..free_to);
            self.taken.insert(range.start, end - range.start);
            self.put_gap(end..free_to);
        }
        end <= range.end || end <= free_to
    }
}

/// A piece of memory that a forked child inherits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inherited {
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    pub(crate) offset: u64,
    pub(crate) protection: u64,
}

impl Inherited {
    fn pages(&self) -> Range<u64> {
        let first = self.offset / PAGE_BYTES;
        first..first + self.bytes / PAGE_BYTES
    }

    /// The parts of it that show these pages.
    fn parts(self, pages: &RangeSet<u64>) -> Vec<Inherited> {
        let own = self.pages();
        let part = |found: &Range<u64>| {
            let (first, end) = (found.start.max(own.start), found.end.min(own.end));
            Inherited {
                addr: self.addr + (first - own.start) * PAGE_BYTES,
                bytes: (end - first) * PAGE_BYTES,
                offset: first * PAGE_BYTES,
                ..self
            }
        };
        pages.overlapping(&own).map(part).collect()
    }
}

struct Heap {
    /// Which heap it is: its file's number may be another one's later.
    number: u32,
    /// None once its process is gone.
    space: Option<SpaceNo>,
    pid: u32,
    slots: Slots,
    /// What a forked child has not mapped yet.
    inherited: Vec<Inherited>,
}

/// What a child begins with. It may come for it when its parent is gone.
struct Snapshot {
    /// None once that is gone: its number may be another heap's.
    parent: Option<FileNo>,
    /// What holds the parent's stores back; none when the fork is done, or the parent gone.
    held: Option<u64>,
    /// The spaces that the kernel told of: the child's is among them.
    children: Vec<SpaceNo>,
    store: HeapStore,
    slots: Slots,
    ranges: Vec<Inherited>,
}

impl Snapshot {
    /// Nothing is to be held back for it any more: what was, and in whose heap.
    fn let_go(&mut self) -> Option<(FileNo, u64)> {
        let held = self.held.take()?;
        Some((self.parent?, held))
    }
}

#[derive(Default)]
struct Known {
    heaps: HashMap<FileNo, Heap>,
    snapshots: HashMap<u64, Snapshot>,
    opened: u32,
}

/// The heaps of a run.
#[derive(Default)]
pub(crate) struct Heaps {
    known: Mutex<Known>,
}

impl Heaps {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("lock")
    }

    /// The heap of a space that is gone, and whose number may be another one's from now on.
    pub(crate) fn end_of_space(&self, space: SpaceNo) -> Option<FileNo> {
        let mut known = self.lock();
        let (no, heap) = known.heaps.iter_mut().find(|(_, heap)| heap.space == Some(space))?;
        heap.space = None;
        Some(*no)
    }

    /// A heap was made for a process that had just gone, and nobody has noticed: whether it is to be
    /// retired.
    fn end_of(&self, no: FileNo, pid: u32) -> bool {
        let mut known = self.lock();
        let heap = known.heaps.get_mut(&no).filter(|heap| heap.pid == pid);
        heap.is_some_and(|heap| heap.space.take().is_some())
    }

    /// A process forked: the child may come for what was set aside of its parent's heap.
    pub(crate) fn forked(&self, parent: SpaceNo, child: SpaceNo) {
        let Some(parent) = self.of(parent) else { return };
        for snapshot in self.lock().snapshots.values_mut() {
            // Whose fork is done has its child, unless this is it.
            let waits = snapshot.held.is_some() || snapshot.children.is_empty();
            if snapshot.parent == Some(parent) && waits {
                snapshot.children.push(child);
            }
        }
    }

    /// A space is gone: what was set aside for it, if that was not fetched.
    pub(crate) fn end_of_child(&self, space: SpaceNo) {
        let gone: Vec<Snapshot> = {
            let mut known = self.lock();
            let nobodys = |snapshot: &mut Snapshot| {
                let before = snapshot.children.len();
                snapshot.children.retain(|child| *child != space);
                let was_the_last = before > 0 && snapshot.children.is_empty();
                was_the_last && snapshot.held.is_none()
            };
            known.snapshots.extract_if(|_, snapshot| nobodys(snapshot)).map(|(_, s)| s).collect()
        };
        drop(gone);
    }

    /// Whether a child may still come for what it inherits.
    pub(crate) fn are_awaited(&self) -> bool {
        !self.lock().snapshots.is_empty()
    }

    fn of(&self, space: SpaceNo) -> Option<FileNo> {
        let known = self.lock();
        known.heaps.iter().find(|(_, heap)| heap.space == Some(space)).map(|(no, _)| *no)
    }
}

/// The access that a process has to shared memory in a range; none where that is not the same
/// everywhere, and [`Errno::FAULT`] of `mremap(2)`.
fn protection_of(pid: u32, range: Range<u64>) -> Option<u64> {
    let mut found = None;
    let mut is_same = true;
    let _ = process::for_each_shared_mapping(pid, 0, |m| {
        if m.start < range.end && range.start < m.end {
            is_same &= *found.get_or_insert(m.protection()) == m.protection();
        }
        is_same && m.start < range.end
    });
    // Nobody could look, or what was said of it is not true any more.
    let usual = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    is_same.then(|| found.unwrap_or(usual))
}

impl Manager {
    /// From now on programs' heap memory is managed, and goes to this file when it does not fit.
    pub fn manage_heaps(&self, scratch: Arc<Scratch>) {
        self.engine.port().set_scratch(scratch);
    }

    /// The scratch file, if heaps are managed.
    pub fn scratch(&self) -> Option<&Arc<Scratch>> {
        self.engine.port().scratch()
    }

    fn own_heap(&self, pid: u32) -> Option<(SpaceNo, Option<FileNo>)> {
        let space = self.space_of(pid)?;
        Some((space, self.heaps.of(space)))
    }

    /// Makes a process's heap.
    fn open_heap(
        &self,
        space: SpaceNo,
        pid: u32,
        store: HeapStore,
        slots: Slots,
        inherited: Vec<Inherited>,
    ) -> Result<FileNo, Errno> {
        let number = {
            let mut known = self.heaps.lock();
            known.opened += 1;
            known.opened
        };
        let comm = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name = format!("heap:{number} ({})", String::from_utf8_lossy(&comm).trim_end());
        let memfd =
            Memfd::create(&format!("pagekeeper:heap:{number}"), PAGES_MAX * PAGE_BYTES, false)?;
        let memfd_ino = file::stat(&memfd)?.id.ino;
        let no = self.number_heap(&name, memfd_ino).ok_or(Errno::NOSPC)?;
        let live = Arc::new(LiveFile { memfd, memfd_ino, behind: Behind::Scratch(store) });
        self.engine.port().put_file(no, live.clone());
        self.engine.open_heap(no, &name);
        if let Some(store) = live.heap() {
            self.engine.heap_inherit(no, || store.stored().into_iter());
        }
        for range in &inherited {
            self.engine.heap_use(no, range.pages());
        }
        let heap = Heap { number, space: Some(space), pid, slots, inherited };
        self.heaps.lock().heaps.insert(no, heap);
        self.tell_witness(no, false);
        Ok(no)
    }

    /// Whether a process lives whose heap was just made. Whoever sees later that it is gone finds the
    /// heap; now nobody may.
    fn has_user(&self, no: FileNo, space: SpaceNo, pid: u32) -> Result<FileNo, Errno> {
        if self.space_of(pid) == Some(space) {
            return Ok(no);
        }
        if self.heaps.end_of(no, pid) {
            self.workers.push(Work::Retire(no));
        }
        Err(Errno::SRCH)
    }

    fn heap_memfd(&self, no: FileNo) -> Result<OwnedFd, Errno> {
        let live = self.engine.port().file(no).ok_or(Errno::BADF)?;
        rustix::io::fcntl_dupfd_cloexec(&live.memfd, 0)
    }

    /// A range for an allocation: its offset, and the memfd.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: the process forks. What other threads get meanwhile could be at the address
    /// of something that the child inherits.
    pub(crate) fn heap_map(&self, pid: u32, bytes: u64) -> Result<Option<(u64, OwnedFd)>, Errno> {
        let Some(scratch) = self.scratch() else { return Ok(None) };
        let pages = bytes.div_ceil(PAGE_BYTES);
        if pages == 0 || pages > ALLOCATION_PAGES_MAX {
            return Ok(None);
        }
        let (space, heap) = self.own_heap(pid).ok_or(Errno::SRCH)?;
        let no = match heap {
            Some(no) if self.engine.is_held(no) => return Err(Errno::AGAIN),
            Some(no) => no,
            None => {
                // Two threads may allocate first at once.
                let _one = self.activating.lock().expect("lock");
                match self.heaps.of(space) {
                    Some(no) => no,
                    None => {
                        let (store, slots) = (scratch.heap(), Slots::default());
                        let no = self.open_heap(space, pid, store, slots, Vec::new())?;
                        self.has_user(no, space, pid)?
                    }
                }
            }
        };
        // Before a range is taken, which would be nobody's if there is none.
        let memfd = self.heap_memfd(no)?;
        let first = {
            let mut known = self.heaps.lock();
            let heap = known.heaps.get_mut(&no).ok_or(Errno::SRCH)?;
            let first = heap.slots.take(pages);
            if let Some(first) = first {
                // Under the lock: whoever clears up after a former user must see it in use.
                self.engine.heap_use(no, first..first + pages);
            }
            first
        };
        let Some(first) = first else {
            self.pass_heap(no, HEAP_FULL);
            return Ok(None);
        };
        self.engine.heap_dropped(no, first..first + pages);
        Ok(Some((first * PAGE_BYTES, memfd)))
    }

    /// A range that was given for an allocation was not mapped after all. What of it is mapped all the
    /// same, stays in use.
    pub(crate) fn heap_give_back(&self, pid: u32, offset: u64, bytes: u64) -> Result<(), Errno> {
        let (space, heap) = self.own_heap(pid).ok_or(Errno::SRCH)?;
        let no = heap.ok_or(Errno::INVAL)?;
        let end = offset.checked_add(bytes).ok_or(Errno::INVAL)?.div_ceil(PAGE_BYTES);
        let pages = offset / PAGE_BYTES..end.min(PAGES_MAX);
        if pages.is_empty() {
            return Err(Errno::INVAL);
        }
        self.engine.heap_give_back(space, no, pages);
        self.hand_over_orphans();
        Ok(())
    }

    /// Heap memory is mapped somewhere.
    pub(crate) fn heap_commit(
        &self,
        pid: u32,
        addr: u64,
        bytes: u64,
        offset: u64,
    ) -> Result<(), Errno> {
        let (_, heap) = self.own_heap(pid).ok_or(Errno::SRCH)?;
        let file = heap.ok_or(Errno::INVAL)?;
        let end = offset.checked_add(bytes).ok_or(Errno::INVAL)?;
        if bytes == 0 || end > PAGES_MAX * PAGE_BYTES {
            return Err(Errno::INVAL);
        }
        let bias = offset.wrapping_sub(addr);
        let region = Region { file, bias, shared: true, read_only: false, library: false };
        self.map_commit(pid, addr..addr + bytes, region)
    }

    /// Whether heap memory can be made longer where it is, or by moving it: a verdict of
    /// [`wire::Op::HeapGrow`], and what goes with it.
    ///
    /// # Errors
    /// As [`heap_map`](Self::heap_map).
    pub(crate) fn heap_grow(
        &self,
        pid: u32,
        addr: u64,
        bytes: u64,
        wanted: u64,
    ) -> Result<(u64, u64), Errno> {
        const UNMANAGED: (u64, u64) = (wire::GROW_UNMANAGED, 0);
        let Some((space, Some(no))) = self.own_heap(pid) else { return Ok(UNMANAGED) };
        let region = self.engine.with_space(space, |s| s.region(addr)).flatten();
        let Some(region) = region.filter(|r| r.file == no) else { return Ok(UNMANAGED) };
        let offset = addr.wrapping_add(region.bias);
        let first = offset / PAGE_BYTES;
        let (old_end, end) =
            (first + bytes.div_ceil(PAGE_BYTES), first + wanted.div_ceil(PAGE_BYTES));
        if end <= old_end {
            return Ok((wire::GROW_MAY, offset));
        }
        if self.engine.is_held(no) {
            return Err(Errno::AGAIN);
        }
        // They may have been unmapped just now: who drops them must not find them in use again.
        self.engine.heap_dropped(no, old_end..end);
        // A piece further on in the same range may be mapped elsewhere.
        let free = self.engine.heap_unmapped(no, old_end..end);
        let reaches = {
            let mut known = self.heaps.lock();
            let heap = known.heaps.get_mut(&no);
            heap.is_some_and(|heap| free && heap.slots.reach(first, end))
        };
        if !reaches {
            let protection = protection_of(pid, addr..addr + bytes).ok_or(Errno::FAULT)?;
            return Ok((wire::GROW_COPY, protection));
        }
        // In use they are when they are mapped: the kernel may refuse it, and nobody would say so.
        Ok((wire::GROW_MAY, offset))
    }

    /// `madvise(2)` DONTNEED on heap memory.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: the process forks, and the child is to have what its parent had: all of it, or
    /// zeros if they were there before.
    pub(crate) fn heap_clear(&self, file: FileNo, pages: Range<u64>) -> Result<(), Errno> {
        let live = self.engine.port().file(file);
        let cleared = self.engine.heap_clear(file, pages, |pages| {
            if let Some(store) = live.as_ref().and_then(|live| live.heap()) {
                store.forget(pages);
            }
        });
        if cleared { Ok(()) } else { Err(Errno::AGAIN) }
    }

    // ---- forks ------------------------------------------------------------------------------

    /// A process is about to fork, forks, or has done so.
    pub(crate) fn heap_fork(&self, pid: u32, phase: u64, ticket: u64) -> Result<u64, Errno> {
        let errno = |error| match error {
            PortError::Io(errno) => Errno::from_raw_os_error(errno),
            _ => Errno::NOMEM,
        };
        let heap = self.own_heap(pid).and_then(|(_, heap)| heap);
        match (phase, heap) {
            (wire::FORK_END, _) => {
                let mut known = self.heaps.lock();
                let held = known.snapshots.get_mut(&ticket).and_then(Snapshot::let_go);
                drop(known);
                self.release(held);
                Ok(0)
            }
            (wire::FORK_FAILED, _) => {
                let gone = self.heaps.lock().snapshots.remove(&ticket);
                self.release(gone.and_then(|mut gone| gone.let_go()));
                Ok(0)
            }
            (wire::FORK_AHEAD | wire::FORK_BEGIN, None) => Ok(0),
            (wire::FORK_AHEAD, Some(no)) => {
                self.engine.heap_store(no).map_err(errno)?;
                Ok(0)
            }
            (wire::FORK_BEGIN, Some(no)) => {
                let held = self.engine.heap_hold(no).map_err(errno)?;
                let snapshot = self.snapshot(no, pid, held);
                match snapshot {
                    Ok(snapshot) => {
                        let ticket = RandomState::new().build_hasher().finish() | 1;
                        let mut known = self.heaps.lock();
                        // Its process may be gone by now, and nobody would ask for it, nor end it.
                        if known.heaps.get(&no).is_some_and(|heap| heap.pid == pid) {
                            known.snapshots.insert(ticket, snapshot);
                            return Ok(ticket);
                        }
                        drop(known);
                        self.engine.heap_release(no, held);
                        Err(Errno::SRCH)
                    }
                    Err(errno) => {
                        self.engine.heap_release(no, held);
                        Err(errno)
                    }
                }
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// Sets aside what a child begins with. No page is stored to meanwhile, but other threads of the
    /// parent go on freeing memory.
    fn snapshot(&self, no: FileNo, pid: u32, held: u64) -> Result<Snapshot, Errno> {
        let live = self.engine.port().file(no).ok_or(Errno::BADF)?;
        let mut mapped = Vec::new();
        process::for_each_shared_mapping(pid, 0, |m| {
            if m.inode == live.memfd_ino {
                let (addr, bytes) = (m.start, m.end - m.start);
                let protection = m.protection();
                mapped.push(Inherited { addr, bytes, offset: m.offset, protection });
            }
            true
        })?;
        let (mut slots, store) = {
            let known = self.heaps.lock();
            let heap = known.heaps.get(&no).ok_or(Errno::BADF)?;
            // What was freed is forgotten first, and then may be given out: in this order a range that
            // is free has nothing stored.
            (heap.slots.clone(), live.heap().ok_or(Errno::BADF)?.fork())
        };
        // What is freed at this moment, or about to be mapped, nobody in the child frees or maps: it
        // is free there, and zeros. And what was freed since the look at what is mapped may be
        // somebody else's by now.
        let pages = slots.keep(&mapped.iter().map(Inherited::pages).collect());
        store.retain(&pages);
        let ranges = mapped.into_iter().flat_map(|range| range.parts(&pages)).collect();
        let (parent, held) = (Some(no), Some(held));
        Ok(Snapshot { parent, held, children: Vec::new(), store, slots, ranges })
    }

    /// Ends what a [`Snapshot`] held.
    fn release(&self, held: Option<(FileNo, u64)>) {
        if let Some((parent, held)) = held {
            self.engine.heap_release(parent, held);
        }
    }

    /// The next piece that a forked child inherits, from an address on. The first time makes its
    /// heap.
    pub(crate) fn heap_inherit(
        &self,
        pid: u32,
        ticket: u64,
        from: u64,
    ) -> Result<Option<(Inherited, OwnedFd)>, Errno> {
        let (space, heap) = self.own_heap(pid).ok_or(Errno::SRCH)?;
        let no = match heap {
            Some(no) => no,
            None => {
                let snapshot = self.heaps.lock().snapshots.remove(&ticket);
                let mut snapshot = snapshot.ok_or(Errno::NOENT)?;
                // Or its parent's message that the fork is done would find nothing.
                self.release(snapshot.let_go());
                let Snapshot { store, slots, ranges, .. } = snapshot;
                let no = self.open_heap(space, pid, store, slots, ranges)?;
                self.has_user(no, space, pid)?
            }
        };
        let next = {
            let mut known = self.heaps.lock();
            let heap = known.heaps.get_mut(&no).ok_or(Errno::BADF)?;
            // As the kernel lists them, by address.
            let at = heap.inherited.partition_point(|range| range.addr < from);
            let next = heap.inherited.get(at).copied();
            if next.is_none() {
                heap.inherited = Vec::new();
            }
            next
        };
        match next {
            Some(range) => Ok(Some((range, self.heap_memfd(no)?))),
            None => Ok(None),
        }
    }

    // ---- memory that goes -------------------------------------------------------------------

    /// What of a heap's pages a process maps, whatever we were told and in which order.
    ///
    /// # Errors
    /// Nobody can say it: no descriptor is free, or we may not look.
    fn mapped_now(
        &self,
        pid: u32,
        live: &LiveFile,
        pages: &Range<u64>,
    ) -> Result<Vec<(u64, Range<u64>)>, Errno> {
        let mut found = Vec::new();
        let looked = process::for_each_shared_mapping(pid, 0, |m| {
            if m.inode == live.memfd_ino {
                let first = m.offset / PAGE_BYTES;
                let end = first + (m.end - m.start) / PAGE_BYTES;
                let (from, to) = (first.max(pages.start), end.min(pages.end));
                if from < to {
                    found.push((m.start + (from - first) * PAGE_BYTES, from..to));
                }
            }
            true
        });
        match looked {
            // The process is gone, and all that it had mapped.
            Ok(()) | Err(Errno::SRCH | Errno::NOENT) => Ok(found),
            Err(errno) => Err(errno),
        }
    }

    /// Whether an orphan's pages are mapped nowhere, without a look at all that is mapped.
    fn is_certain(&self, space: SpaceNo, orphan: &Orphan) -> bool {
        let certain = || self.engine.is_certain(orphan);
        certain() || self.settled(space, certain)
    }

    /// Which of an orphan's pages are mapped all the same. They are entered.
    fn mapped_still(
        &self,
        space: SpaceNo,
        pid: u32,
        live: &LiveFile,
        orphan: &Orphan,
    ) -> RangeSet<u64> {
        let mut mapped = RangeSet::new();
        // What the kernel says now, with everything noticed that came before, and nothing that comes
        // later.
        self.settled(space, || {
            // What moves while the kernel lists mappings may be missed where it was and where it is.
            // Whoever moved it waits for that to be noticed, so that another look finds it.
            for _ in 0..2 {
                let Ok(found) = self.mapped_now(pid, live, &orphan.pages) else {
                    // They may all be mapped: rather kept for nobody than zeros for somebody.
                    mapped.insert(orphan.pages.clone());
                    break;
                };
                for (addr, pages) in found {
                    let bytes = (pages.end - pages.start) * PAGE_BYTES;
                    let bias = (pages.start * PAGE_BYTES).wrapping_sub(addr);
                    let region = Region {
                        file: orphan.file,
                        bias,
                        shared: true,
                        read_only: false,
                        library: false,
                    };
                    self.engine.add_region(space, addr..addr + bytes, region);
                    mapped.insert(pages);
                }
                if !self.is_changing(space) {
                    break;
                }
            }
        });
        mapped
    }

    /// Drops memory that was unmapped. Where an address space changes from several threads at
    /// once, what it says in the end counts.
    pub(crate) fn drop_orphan(&self, orphan: &Orphan) {
        let owner = {
            let known = self.heaps.lock();
            known.heaps.get(&orphan.file).map(|heap| (heap.space, heap.pid, heap.number))
        };
        let live = self.engine.port().file(orphan.file);
        let mut mapped = RangeSet::new();
        if let (Some((Some(space), pid, _)), Some(live)) = (owner, &live)
            && !self.is_certain(space, orphan)
        {
            mapped = self.mapped_still(space, pid, live, orphan);
        }
        self.engine.drop_orphan(orphan, &mapped, |pages| {
            if let Some(store) = live.as_ref().and_then(|live| live.heap()) {
                store.forget(pages);
            }
        });
        let mut known = self.heaps.lock();
        // Its fence is gone, and the number may be another heap's.
        let is_its = |heap: &&mut Heap| owner.is_some_and(|(.., number)| heap.number == number);
        let Some(heap) = known.heaps.get_mut(&orphan.file).filter(is_its) else { return };
        let mut page = orphan.pages.start;
        while let Some(slot) = heap.slots.of(page) {
            if self.engine.heap_unused(orphan.file, slot.clone()) {
                heap.slots.free(slot.start);
            }
            page = slot.end;
            if page >= orphan.pages.end {
                break;
            }
        }
    }

    /// A process is gone, and its heap with it, but for what children have yet to come for.
    pub(crate) fn retire_heap(&self, no: FileNo) {
        let mut held = Vec::new();
        let unwanted: Vec<Snapshot> = {
            let mut known = self.heaps.lock();
            known.heaps.remove(&no);
            let mut ends = |snapshot: &mut Snapshot| {
                if snapshot.parent != Some(no) {
                    return false;
                }
                held.extend(snapshot.let_go());
                snapshot.parent = None;
                snapshot.children.is_empty()
            };
            known.snapshots.extract_if(|_, snapshot| ends(snapshot)).map(|(_, s)| s).collect()
        };
        held.into_iter().for_each(|held| self.release(Some(held)));
        drop(unwanted);
        self.engine.close_heap(no);
        self.close_slot(no);
        // With the last of these goes what is stored.
        self.engine.port().remove_file(no);
        self.forget_heap(no);
    }

    /// Calls when every change of an address space that was made until then has been noticed, and
    /// before any that comes later is.
    fn settled<T>(&self, space: SpaceNo, call: impl FnOnce() -> T) -> T {
        let mut faults = Vec::new();
        let result = loop {
            let order = self.mapping_order.lock().expect("lock");
            self.read_space(space, &mut faults, &order);
            if !self.is_changing(space) {
                self.engine.space_quiet(space);
                break call();
            }
            drop(order);
            std::thread::sleep(Duration::from_micros(20));
        };
        self.hand_over_orphans();
        for fault in faults {
            self.workers.push(Work::Fault(fault));
        }
        result
    }

    /// Whether a change of an address space is under way that has not been read.
    fn is_changing(&self, space: SpaceNo) -> bool {
        // No such request is granted, but what refuses it is told.
        let refused = |live: Arc<LiveSpace>| {
            live.userfault.write_protect(0, PAGE_BYTES, true, true) == Err(Errno::AGAIN)
        };
        self.engine.port().space(space).is_some_and(refused)
    }

    /// Registers memory with the program's userfaultfd. A late word of an old mapping at the same
    /// address must not be taken for one of the new.
    pub(crate) fn register(
        &self,
        space: SpaceNo,
        range: Range<u64>,
        region: Region,
    ) -> Result<(), Errno> {
        let live = self.engine.port().space(space).ok_or(Errno::SRCH)?;
        let len = (range.end - range.start).div_ceil(PAGE_BYTES) * PAGE_BYTES;
        let track = Track::MISSING | Track::MINOR | Track::WRITE_PROTECT;
        self.settled(space, || {
            live.userfault.register(range.start, len, track)?;
            if self.engine.is_heap(region.file) {
                // What memory has grown by. No change that comes later is noticed before.
                let first = region.index(range.start);
                self.engine.heap_use(region.file, first..first + len / PAGE_BYTES);
            }
            self.engine.add_region(space, range.start..range.start + len, region);
            Ok(())
        })
    }
}

#[cfg(test)]
mod own_process;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::tests::manager;
    use crate::spaces::Space;

    /// A manager, and a way to give a space of it a heap.
    fn with_heaps() -> (Arc<Manager>, impl Fn(SpaceNo) -> FileNo) {
        let manager = manager();
        let scratch = Scratch::create(&std::env::temp_dir(), None).unwrap();
        let theirs = manager.clone();
        let open = move |space| {
            theirs.engine.open_space(space, Space::default());
            theirs.open_heap(space, 1, scratch.heap(), Slots::default(), Vec::new()).unwrap()
        };
        (manager, open)
    }

    fn region(file: FileNo) -> Region {
        Region { file, bias: 0, shared: true, read_only: false, library: false }
    }

    /// Each process's heap had its number for ever, and a line of its own in the report: after a million
    /// processes nothing more was managed.
    #[test]
    fn a_heap_that_ended_leaves_its_number_to_others() {
        let (manager, open) = with_heaps();
        let mut numbers = BTreeSet::new();
        for _ in 0..150 {
            let no = open(0);
            numbers.insert((no, manager.incarnation(no)));
            manager.engine.heap_use(no, 0..10);
            manager.retire_heap(no);
        }
        // Whoever knows the number from before finds that it stands for something else.
        assert!(numbers.iter().eq((0..150).map(|n| (0, n)).collect::<BTreeSet<_>>().iter()));
        let files = manager.engine.stats().files;
        let bytes = |no: usize| files[no].bytes / PAGE_BYTES;
        assert_eq!((files.len(), bytes(99), bytes(100)), (101, 10, 50 * 10));
        assert_eq!(files[100].name, "heap: 50 others that ended");
    }

    /// What is still to be dropped of one, or still mapped somewhere, is not the next one's.
    #[test]
    fn the_number_of_a_heap_stays_as_long_as_something_is_about_it() {
        let (manager, open) = with_heaps();
        let engine = &manager.engine;
        let (dropped, mapped) = (open(0), open(1));
        for (space, no) in [(0, dropped), (1, mapped)] {
            engine.heap_use(no, 0..16);
            engine.add_region(space, 0..16 * PAGE_BYTES, region(no));
        }
        engine.unmapped(0, 0..16 * PAGE_BYTES);
        let orphans = engine.take_orphans();
        assert_eq!(orphans.len(), 1);
        manager.retire_heap(dropped);
        manager.retire_heap(mapped);

        let others = [open(2), open(3)];
        assert!(others.iter().all(|no| ![dropped, mapped].contains(no)), "{others:?}");
        engine.unmapped(1, 0..16 * PAGE_BYTES);
        manager.retire_heap(others[0]);
        let again = [open(2), open(4)];
        assert!(again.contains(&mapped) && !again.contains(&dropped), "{again:?}");

        orphans.iter().for_each(|orphan| manager.drop_orphan(orphan));
        manager.retire_heap(again[0]);
        let last = [open(2), open(5)];
        assert!(last.contains(&dropped), "{last:?}");
    }

    /// A child that comes for its memory late is no child of who has its parent's number.
    #[test]
    fn a_child_is_not_taken_for_one_of_who_has_its_parents_number() {
        let (manager, open) = with_heaps();
        let no = open(0);
        let held = manager.engine.heap_hold(no).unwrap();
        let store = manager.engine.port().file(no).unwrap().heap().unwrap().fork();
        let snapshot = Snapshot {
            parent: Some(no),
            held: Some(held),
            children: vec![7],
            store,
            slots: Slots::default(),
            ranges: Vec::new(),
        };
        manager.heaps.lock().snapshots.insert(1, snapshot);
        manager.heaps.end_of_space(0);
        manager.retire_heap(no);
        assert_eq!(open(1), no);
        manager.heaps.forked(1, 8);
        manager.retire_heap(no);
        assert_eq!(manager.heaps.lock().snapshots[&1].children, [7]);
        manager.heaps.end_of_child(7);
        assert!(!manager.heaps.are_awaited());
    }

    #[test]
    fn ranges_are_used_again_and_grow_into_their_room() {
        let mut slots = Slots::default();
        let (a, b) = (slots.take(300).unwrap(), slots.take(10).unwrap());
        assert_eq!((a, b), (0, 1024));
        assert_eq!(slots.of(1023), Some(0..1024));
        assert!(slots.reach(a, 1024));
        assert!(!slots.reach(a, 1025), "somebody else's");
        assert!(slots.reach(b, 5000), "nobody is behind the last");
        slots.free(a);
        assert_eq!(slots.take(20), Some(0));
        assert_eq!(slots.take(2000), Some(5000));
    }

    /// A child once began with ranges that its parent's threads were freeing as it was forked, or had
    /// not mapped yet: they stayed taken for ever. And where one was free that had just been mapped,
    /// the next allocation had the same pages.
    #[test]
    fn a_child_has_the_ranges_that_it_maps() {
        let mut slots = Slots::default();
        let [a, b, c] = [300, 10, 10].map(|pages| slots.take(pages).unwrap());
        assert_eq!((a, b, c), (0, 1024, 1056));
        // Of the first a part is mapped; the second is going; the third goes on in nobody's range.
        let mapped = [10..20, 1056..2000].into_iter().collect();
        assert_eq!(slots.keep(&mapped), [10..20, 1056..1088].into_iter().collect());
        assert_eq!(slots.of(1024), None);
        assert_eq!(slots.take(10), Some(1024));

        let at = |addr, first: u64, pages: u64| {
            let (offset, bytes) = (first * PAGE_BYTES, pages * PAGE_BYTES);
            Inherited { addr, bytes, offset, protection: 3 }
        };
        let parts = at(1 << 30, 1050, 100).parts(&[1040..1052, 1056..1088].into_iter().collect());
        let shown: Vec<_> = parts.iter().map(|part| (part.addr, part.pages())).collect();
        assert_eq!(shown, [(1 << 30, 1050..1052), ((1 << 30) + 6 * PAGE_BYTES, 1056..1088)]);
    }

    #[test]
    fn the_first_range_that_is_free_is_taken() {
        let mut slots = Slots::default();
        let mut number = 1u64;
        for step in 0..2000 {
            number = number.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let pages = 1 + (number >> 33) % 300;
            let nth = (number >> 50) as usize % slots.taken.len().max(1);
            match slots.taken.iter().nth(nth).map(|(&start, &len)| (start, len)) {
                Some((start, _)) if step % 5 < 2 => slots.free(start),
                Some((start, len)) if step % 5 == 2 => _ = slots.reach(start, start + len + pages),
                _ => {
                    let needed = pages.next_power_of_two() * ROOM;
                    let mut first = 0;
                    for (&start, &len) in &slots.taken {
                        if start - first >= needed {
                            break;
                        }
                        first = start + len;
                    }
                    assert_eq!(slots.take(pages), Some(first));
                }
            }
        }
    }
}
