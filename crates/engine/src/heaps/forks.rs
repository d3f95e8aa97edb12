//! Forks: what is set aside of a parent's heap, and how its child comes for it.

use crate::heaps::Heaps;
use crate::heaps::ranges::{Inherited, Slots};
use crate::heaps::scratch::HeapStore;
use crate::manager::Manager;
use crate::port::{FileNo, PortError, SpaceNo};
use pagekeeper_sys::Errno;
use pagekeeper_sys::process;
use pagekeeper_wire as wire;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::OwnedFd;

/// What a child begins with. It may come for it when its parent is gone.
pub(super) struct Snapshot {
    /// None once that is gone: its number may be another heap's.
    pub(super) parent: Option<FileNo>,
    /// What holds the parent's stores back; none when the fork is done, or the parent gone.
    held: Option<u64>,
    /// The spaces that the kernel told of: the child's is among them.
    pub(super) children: Vec<SpaceNo>,
    store: HeapStore,
    slots: Slots,
    ranges: Vec<Inherited>,
}

impl Snapshot {
    /// Nothing is to be held back for it any more: what was, and in whose heap.
    pub(super) fn let_go(&mut self) -> Option<(FileNo, u64)> {
        let held = self.held.take()?;
        Some((self.parent?, held))
    }
}

impl Heaps {
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
}

impl Manager {
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
    pub(super) fn release(&self, held: Option<(FileNo, u64)>) {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heaps::tests::with_heaps;

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
}
