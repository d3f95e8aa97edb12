//! Advice on memory, madvise(2).

use super::{Connection, Handled, errno_of, value};
use crate::engine::change::NO_BYTES;
use crate::engine::spaces::Region;
use crate::engine::transfer::Change;
use crate::port::PAGE_BYTES;
use pagekeeper_sys::{Errno, process};
use pagekeeper_wire::{self as wire, Request};
use std::ops::Range;

impl Connection {
    pub(super) fn advise(&self, r: Request) -> Handled {
        let engine = &self.manager.engine;
        let regions = match r.c as i32 {
            // Of those that nobody knows the kernel would take the manager's memory away.
            libc::MADV_REMOVE => self.all_regions(r.a, r.b),
            _ => self.space_regions(r.a, r.b),
        };
        if r.c as i32 == wire::ADVICE_MEND {
            // What is dirty in a private mapping is nowhere else.
            let is_elsewhere = !regions.is_empty() && regions.iter().all(|(_, _, r)| r.shared);
            let is_heap = regions.iter().any(|(_, _, r)| engine.is_heap(r.file));
            if let Some(space) = self.manager.space_of(self.pid).filter(|_| is_elsewhere && is_heap)
            {
                engine.mends(space, r.a);
            }
            return value(if is_elsewhere { wire::ADVISE_DONTNEED } else { 0 });
        }
        if regions.iter().any(|(_, _, region)| engine.is_heap(region.file))
            && let Some(answer) = self.advise_heap(r, &regions)
        {
            return answer;
        }
        match r.c as i32 {
            libc::MADV_WILLNEED => {
                for (start, end, region) in regions {
                    engine.prefetch(region.file, region.index(start), (end - start) / PAGE_BYTES);
                }
                // Of what is not mapped, or not by us, the kernel knows; ours it has no pages to read for.
                value(0)
            }
            advice @ (libc::MADV_NORMAL | libc::MADV_SEQUENTIAL | libc::MADV_RANDOM) => {
                // Of the file as a whole: few programs advise differently on parts of one.
                for (_, _, region) in regions {
                    if !engine.is_heap(region.file) {
                        engine.read_around(region.file, advice != libc::MADV_RANDOM);
                    }
                }
                value(0)
            }
            // Children map it for themselves.
            libc::MADV_DOFORK if engine.port().is_user_mode_only() => {
                value(u64::from(!regions.is_empty()))
            }
            // The kernel never comes to an end with what we protect. Before Linux 6.15 it knew no guards
            // in mappings of files.
            wire::MADV_GUARD_INSTALL if !regions.is_empty() => Err(Errno::INVAL),
            libc::MADV_REMOVE => {
                if regions.iter().any(|(_, _, r)| engine.is_heap(r.file)) {
                    return Err(Errno::INVAL);
                }
                if regions.is_empty() {
                    return value(0);
                }
                let managed_bytes = regions.iter().map(|(start, end, _)| end - start).sum();
                let is_mapped = self.may_punch(r.a..r.a + r.b, managed_bytes)?;
                for (start, end, region) in regions {
                    let (offset, len) = (start.wrapping_add(region.bias), end - start);
                    let live = engine.port().file(region.file).ok_or(Errno::BADF)?;
                    let ticket = engine
                        .change_begin(region.file, offset, len, Change::Other)
                        .map_err(errno_of)?;
                    let store = live.store().ok_or(Errno::INVAL)?;
                    let punched = store.punch(offset, len);
                    engine.change_end(region.file, ticket, offset, len, NO_BYTES);
                    punched.map_err(errno_of)?;
                }
                if is_mapped { value(1) } else { Err(Errno::NOMEM) }
            }
            _ => value(0),
        }
    }

    /// What the kernel asks of mappings before it makes holes in their files, MADV_REMOVE in madvise(2);
    /// false if some of the range is not mapped, of which it tells when the others are made.
    fn may_punch(&self, range: Range<u64>, managed_bytes: u64) -> Result<bool, Errno> {
        let mut refused = None;
        let mut mapped_bytes = 0;
        process::for_each_detailed_mapping(self.pid, |mapping, detail| {
            let from = mapping.start.max(range.start);
            if from < mapping.end.min(range.end) {
                mapped_bytes += mapping.end.min(range.end) - from;
                let errno = match () {
                    () if detail.has("lo") || mapping.inode == 0 => Some(Errno::INVAL),
                    () if !mapping.shared || !detail.has("mw") => Some(Errno::ACCESS),
                    () => None,
                };
                refused = refused.or(errno);
            }
            mapping.end < range.end
        })?;
        match refused {
            Some(errno) => Err(errno),
            // Nobody's call would be for all of it.
            None if mapped_bytes != managed_bytes => Err(Errno::INVAL),
            None => Ok(mapped_bytes == range.end - range.start),
        }
    }

    /// Advice on memory that the program takes for anonymous; none if it may go on as on a file.
    fn advise_heap(&self, r: Request, regions: &[(u64, u64, Region)]) -> Option<Handled> {
        /// `MADV_DONTNEED_LOCKED`
        const DONTNEED_LOCKED: i32 = 24;
        let engine = &self.manager.engine;
        match r.c as i32 {
            // Pages that are freed lazily may be gone at once.
            advice @ (libc::MADV_DONTNEED | libc::MADV_FREE | DONTNEED_LOCKED) => {
                let mut covered = 0;
                for (start, end, region) in regions {
                    if !engine.is_heap(region.file) {
                        continue;
                    }
                    let pages = region.index(*start)..region.index(*end);
                    if let Err(errno) = self.manager.heap_clear(region.file, pages) {
                        return Some(Err(errno));
                    }
                    covered += end - start;
                }
                // The kernel has its part to do if some of the range is not heap.
                Some(value(match covered == r.b {
                    true => 1,
                    false if advice == libc::MADV_FREE => wire::ADVISE_DONTNEED,
                    false => 0,
                }))
            }
            libc::MADV_REMOVE | libc::MADV_WIPEONFORK => Some(Err(Errno::INVAL)),
            // It is huge in nobody's sense, is not inherited by the kernel's hand, and what is
            // needed is fetched when it is touched.
            libc::MADV_HUGEPAGE
            | libc::MADV_NOHUGEPAGE
            | libc::MADV_DOFORK
            | libc::MADV_DONTFORK
            | libc::MADV_KEEPONFORK
            | libc::MADV_WILLNEED => Some(value(1)),
            libc::MADV_NORMAL
            | libc::MADV_RANDOM
            | libc::MADV_SEQUENTIAL
            | libc::MADV_MERGEABLE
            | libc::MADV_UNMERGEABLE
            | libc::MADV_DONTDUMP
            | libc::MADV_DODUMP
            | libc::MADV_COLD
            | libc::MADV_PAGEOUT
            | libc::MADV_POPULATE_READ
            | libc::MADV_POPULATE_WRITE
            | libc::MADV_COLLAPSE
            | libc::MADV_HWPOISON
            | libc::MADV_SOFT_OFFLINE => None,
            // Guard regions (Linux 6.13) and what is yet to come may drop what is there: programs get on
            // without it where the kernel does not know it.
            _ => Some(Err(Errno::INVAL)),
        }
    }
}
