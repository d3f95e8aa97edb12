//! Heap memory of processes: which range of a heap each allocation gets, what a forked child
//! inherits, what happens when memory is unmapped.
//!
//! Each process image that allocates has one heap: a memfd of its own with room for 16 TiB, mapped
//! shared and registered like a file, with the run's scratch file behind it. The mappings are not
//! inherited by the kernel's hand (MADV_DONTFORK). When a process forks, its dirty pages are stored
//! first and nobody writes until the fork is done; what is stored then is the child's too, block
//! by block, until one of the two stores another content. The child maps its own heap over what it
//! inherits before anything else runs in it.

mod forks;
mod orphans;
mod ranges;
pub(crate) mod scratch;

use crate::engine::heap::{Cleared, PAGES_MAX};
use crate::engine::spaces::Region;
use crate::heaps::scratch::{HeapStore, Scratch};
use crate::live::{Behind, LiveFile, LiveSpace};
use crate::manager::Manager;
use crate::manager::work::Work;
use crate::port::{FileNo, PAGE_BYTES, SpaceNo};
use forks::Snapshot;
use pagekeeper_sys::Errno;
use pagekeeper_sys::descriptor::duplicate;
use pagekeeper_sys::file;
use pagekeeper_sys::memfd::Memfd;
use pagekeeper_sys::process;
use pagekeeper_sys::userfault::Track;
use pagekeeper_wire as wire;
use ranges::{Inherited, Slots};
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Largest allocation that is managed: a longer one is address space to be parcelled out, not
/// memory.
const ALLOCATION_PAGES_MAX: u64 = 1 << 28;

/// Why allocations are the kernel's when all of a heap is taken.
const HEAP_FULL: &str = "its ranges take 16 TiB with their room to grow, which is all that a process's heap \
                         has: what else it allocates is not managed until some is freed";

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
        duplicate(&live.memfd)
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
        // A piece further on in the same range may be mapped elsewhere.
        let free = self.engine.heap_unmapped(no, old_end..end);
        // Who drops what was unmapped just now must not find it in use again. In this order: what is about
        // to be unmapped yet has to be dropped, too.
        self.engine.heap_dropped(no, old_end..end);
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
        let cleared = self.engine.heap_clear(file, pages, self.forgets(file));
        if cleared { Ok(()) } else { Err(Errno::AGAIN) }
    }

    /// Pages of a heap were cleared by somebody who does not wait.
    pub(crate) fn drop_cleared(&self, cleared: &Cleared) {
        self.engine.drop_cleared(cleared, self.forgets(cleared.file()));
    }

    /// Has what is stored of a heap's pages forgotten.
    pub(crate) fn forgets(&self, file: FileNo) -> impl Fn(Range<u64>) + use<> {
        let live = self.engine.port().file(file);
        move |pages| {
            if let Some(store) = live.as_ref().and_then(|live| live.heap()) {
                store.forget(pages);
            }
        }
    }

    // ---- memory that goes -------------------------------------------------------------------

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
    use crate::engine::spaces::Space;
    use crate::manager::tests::manager;
    use std::collections::BTreeSet;

    /// A manager, and a way to give a space of it a heap.
    pub(super) fn with_heaps() -> (Arc<Manager>, impl Fn(SpaceNo) -> FileNo) {
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
}
