//! Memory that was unmapped: what of it is mapped all the same, and what is dropped.

use crate::engine::heap::Orphan;
use crate::engine::spaces::Region;
use crate::heaps::Heap;
use crate::live::LiveFile;
use crate::manager::Manager;
use crate::port::{PAGE_BYTES, SpaceNo};
use pagekeeper_sys::Errno;
use pagekeeper_sys::process;
use rangemap::RangeSet;
use std::ops::Range;

impl Manager {
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
        self.engine.drop_orphan(orphan, &mapped, self.forgets(orphan.file));
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
}
