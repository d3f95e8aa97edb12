//! How much of a mapping moved, where the kernel does not say it.
//!
//! `mremap(2)` may make a mapping shorter as it moves it. Before Linux 6.15 a userfaultfd tells of
//! such a move how long the mapping was. Taken for what moved, that is more than is there: the rest
//! would count as mapped for ever, over whatever else lies behind the new address. So it is looked
//! up.

use crate::live::LiveSpace;
use crate::manager::Manager;
use crate::port::SpaceNo;
use pagekeeper_sys::{process, userfault};
use std::sync::LazyLock;

static IS_TOLD: LazyLock<bool> = LazyLock::new(userfault::tells_moved_bytes);

impl Manager {
    /// How many bytes of a range that moved are at its new address, of which the kernel told `len`.
    pub(crate) fn moved_bytes(
        &self,
        no: SpaceNo,
        live: &LiveSpace,
        from: u64,
        to: u64,
        len: u64,
    ) -> u64 {
        if *IS_TOLD {
            return len;
        }
        let region = self.engine.with_space(no, |space| space.region(from)).flatten();
        let file = region.and_then(|region| self.engine.port().file(region.file));
        match (live.process.get(), region, file) {
            (Some(&(pid, _)), Some(region), Some(file)) => {
                let offset = from.wrapping_add(region.bias);
                shown_bytes(pid, file.memfd_ino, offset, to, len)
            }
            // Nothing is known to be there, or nobody knows where to look.
            _ => len,
        }
    }
}

/// How much of a file a process maps from an address and an offset on, of `len` bytes. If there is
/// nothing, it has moved on already, or is gone again, which is told next: all of it then.
fn shown_bytes(pid: u32, ino: u64, offset: u64, to: u64, len: u64) -> u64 {
    let mut end = to;
    let _ = process::for_each_mapping_in(pid, to..to + len, |m| {
        let goes_on = (m.start..m.end).contains(&end)
            && m.inode == ino
            && m.offset + (end - m.start) == offset + (end - to);
        if goes_on {
            end = m.end;
        }
        goes_on
    });
    if end == to { len } else { len.min(end - to) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::spaces::{Region, Space};
    use crate::manager::tests::manager;
    use crate::port::PAGE_BYTES;
    use pagekeeper_sys::file;
    use pagekeeper_sys::memfd::Memfd;
    use pagekeeper_sys::shared::SharedMap;

    /// What was cut off as a mapping moved counted as mapped behind its new address, where something
    /// else was, whose own pages were taken for unmapped; and it was never given back.
    #[test]
    fn what_is_cut_off_by_a_move_is_gone_and_its_new_neighbour_stays() {
        let manager = manager();
        let engine = &manager.engine;
        engine.open_heap(0, "heap:1 (test)");
        engine.open_space(0, Space::default());
        let (from, to) = (0x7000_0000, 0x7100_0000);
        let map = |addr: u64, first: u64, pages: u64| {
            let region = Region {
                file: 0,
                bias: (first * PAGE_BYTES).wrapping_sub(addr),
                shared: true,
                read_only: false,
                library: false,
            };
            engine.heap_use(0, first..first + pages);
            engine.add_region(0, addr..addr + pages * PAGE_BYTES, region);
        };
        map(from, 0, 8);
        map(to + 4 * PAGE_BYTES, 100, 4);
        engine.remapped(0, from, to, 8 * PAGE_BYTES, 4 * PAGE_BYTES);
        let orphans = engine.take_orphans();
        assert_eq!((orphans.len(), orphans[0].pages.clone()), (1, 4..8));
        assert!(!engine.heap_unmapped(0, 0..4) && engine.heap_unmapped(0, 4..8));
        assert!(!engine.heap_unmapped(0, 100..104));
    }

    /// The kernel of these tests may be one that tells it.
    #[test]
    fn what_moved_is_what_is_there() {
        let (memfd, map) = SharedMap::create("moved", 8 << 12).unwrap();
        let ino = file::stat(&memfd).unwrap().id.ino;
        let (pid, at) = (std::process::id(), map.address());
        let shown = |offset, at, len| shown_bytes(pid, ino, offset, at, len);
        assert_eq!(shown(0, at, 4 << 12), 4 << 12);
        assert_eq!(shown(0, at, 64 << 12), 8 << 12, "it ends there");
        assert_eq!(shown(4096, at + 4096, 64 << 12), 7 << 12);
        assert_eq!(shown(4096, at, 64 << 12), 64 << 12, "another place of the file");
        let other = Memfd::create("other", 4096, false).unwrap();
        let other = file::stat(&other).unwrap().id.ino;
        assert_eq!(shown_bytes(pid, other, 0, at, 4 << 12), 4 << 12, "another file");
    }
}
