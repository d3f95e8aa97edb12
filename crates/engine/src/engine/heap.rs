//! A process's heap as the engine sees it: a file without a name, whose length is room for growth.
//!
//! An allocation is a range of the heap's pages; what is in no allocation is not fetched ahead.
//! When a range is unmapped, its pages are *orphans*: a fence is put around them at once, so that
//! nobody sees their old content where the range is used again, and then they are dropped.

use crate::engine::change::Change;
use crate::engine::core::{Core, File};
use crate::engine::flush::Leaving;
use crate::engine::spaces::Space;
use crate::engine::{Again, Engine};
use crate::port::{FileNo, PAGE_BYTES, Port, PortError, SpaceNo, Version};
use pagekeeper_frames::Segment;
use pagekeeper_trace::ExtentEvent;
use rangemap::{RangeMap, RangeSet};
use std::collections::VecDeque;
use std::ops::Range;

/// Pages of a heap's address range: 16 TiB.
pub const PAGES_MAX: u64 = 1 << 32;
/// A heap's version, always.
pub const VERSION: Version =
    Version { size_bytes: PAGES_MAX * PAGE_BYTES, mtime_ns: 0, ctime_ns: 0 };

/// What of a heap is in use.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    /// Pages of allocations.
    pub live: RangeSet<u64>,
    pages: u64,
    pages_max: u64,
}

impl Pages {
    /// Adds pages; those that were not there.
    fn add(&mut self, pages: Range<u64>) -> Vec<Range<u64>> {
        let new: Vec<Range<u64>> = self.live.gaps(&pages).collect();
        self.pages += new.iter().map(|r| r.end - r.start).sum::<u64>();
        self.pages_max = self.pages_max.max(self.pages);
        self.live.insert(pages);
        new
    }

    fn remove(&mut self, pages: Range<u64>) {
        self.pages -= self.live.overlapping(&pages).map(|r| overlap(r, &pages)).sum::<u64>();
        self.live.remove(pages);
    }

    /// Most bytes that were allocated at once.
    pub fn bytes_max(&self) -> u64 {
        self.pages_max * PAGE_BYTES
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> u64 {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}

/// Pages of a heap that are to be zeros, behind a fence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cleared {
    file: FileNo,
    pages: Range<u64>,
    ticket: u64,
}

impl Cleared {
    /// Of which heap.
    pub fn file(&self) -> FileNo {
        self.file
    }
}

/// Pages of a heap that are mapped nowhere any more, behind a fence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Orphan {
    /// Which heap.
    pub file: FileNo,
    /// In whose space they were mapped.
    pub space: SpaceNo,
    /// Which pages.
    pub pages: Range<u64>,
    /// By which change of the space they went, if that is known.
    change: Option<u64>,
    ticket: u64,
}

/// In which order the changes of an address space were made, as far as that is known.
///
/// The kernel tells of each change when it is made, and its threads wait until that was read, but
/// they do not queue in the order of their changes. So if several are under way at once, what was
/// made of them may be wrong. A change that was the only one between two moments in which none was
/// under way is what it looks like.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    /// How many changes were heard of.
    heard: u64,
    /// How many there were when none was under way the last time.
    quiet: u64,
    /// Changes that came alone, the latest last.
    alone: VecDeque<u64>,
}

impl Order {
    /// More changes than pages to be dropped wait for anybody.
    const ALONE_MAX: usize = 1024;

    /// A change was heard of: its number.
    pub(crate) fn heard(&mut self) -> u64 {
        self.heard += 1;
        self.heard
    }

    /// No change is under way that was not heard of.
    fn quiet(&mut self) {
        if self.heard == self.quiet + 1 {
            if self.alone.len() == Order::ALONE_MAX {
                self.alone.pop_front();
            }
            self.alone.push_back(self.heard);
        }
        self.quiet = self.heard;
    }

    fn was_alone(&self, change: u64) -> bool {
        self.alone.binary_search(&change).is_ok()
    }
}

impl File {
    /// The length that a recording shows.
    pub(crate) fn shown_bytes(&self) -> Option<u64> {
        self.heap.is_none().then_some(self.version.size_bytes)
    }
}

impl Core {
    /// A recording hears what becomes of pages of a heap.
    fn log_extent(&mut self, file: FileNo, pages: Range<u64>, event: ExtentEvent) {
        if let Some(log) = &mut self.log {
            log.extent(Segment(file), pages, event);
        }
    }

    pub(crate) fn is_heap(&self, file: FileNo) -> bool {
        self.file(file).is_some_and(|f| f.heap.is_some())
    }

    pub(crate) fn is_held(&self, file: FileNo) -> bool {
        self.file(file).is_some_and(|f| f.fences.iter().any(|f| f.change == Change::Hold))
    }

    /// Nobody sees what these pages have from now on. A hold that comes later waits until it is dropped.
    pub(crate) fn clear(&mut self, file: FileNo, pages: Range<u64>) -> Option<Cleared> {
        let ticket = self.put_fence(file, pages.clone(), Change::Drop)?;
        Some(Cleared { file, pages, ticket })
    }

    /// The heap pages mapped in a range of a space.
    pub(crate) fn heap_pages(
        &self,
        space: SpaceNo,
        range: &Range<u64>,
    ) -> Vec<(FileNo, Range<u64>)> {
        let Some(Some(s)) = self.spaces.get(space as usize) else { return Vec::new() };
        if range.is_empty() {
            return Vec::new();
        }
        s.regions
            .overlapping(range)
            .filter(|(_, region)| self.is_heap(region.file))
            .map(|(known, region)| {
                let (start, end) = (known.start.max(range.start), known.end.min(range.end));
                let first = region.index(start);
                (region.file, first..first + (end - start).div_ceil(PAGE_BYTES))
            })
            .collect()
    }

    /// Pages were unmapped: those that are mapped nowhere else are to be dropped.
    ///
    /// `change` is the change of the space that they went by, if it is one that the kernel told of.
    pub(crate) fn orphan(
        &mut self,
        space: SpaceNo,
        gone: Vec<(FileNo, Range<u64>)>,
        change: Option<u64>,
    ) {
        for (file, pages) in gone {
            let mut left = RangeSet::from_iter([pages.clone()]);
            let mappings =
                self.file(file).into_iter().flat_map(|f| f.mappings.overlapping(pages.clone()));
            for mapping in mappings {
                left.remove(mapping.first..mapping.first + mapping.pages());
            }
            for pages in left {
                if let Some(ticket) = self.put_fence(file, pages.clone(), Change::Drop) {
                    self.orphans.push(Orphan { file, space, pages, change, ticket });
                }
            }
        }
    }
}

impl<P: Port> Engine<P> {
    /// Starts to manage the heap of a process.
    pub fn open_heap(&self, file: FileNo, name: &str) {
        // Storage is asked before a page becomes dirty, as for a file with holes.
        self.open(file, name, VERSION, true, Some(Pages::default()));
    }

    /// Whether a file is a heap.
    pub fn is_heap(&self, file: FileNo) -> bool {
        self.lock().is_heap(file)
    }

    /// A copy of a space's description, for a forked child, which has no heap memory mapped.
    pub(crate) fn space_without_heap(&self, space: SpaceNo) -> Option<Space> {
        let core = self.lock();
        let mut content = core.spaces.get(space as usize)?.clone()?;
        let regions: RangeMap<u64, _> = content
            .regions
            .iter()
            .filter(|(_, region)| !core.is_heap(region.file))
            .map(|(range, region)| (range.clone(), *region))
            .collect();
        content.regions = regions;
        Some(content)
    }

    /// Pages are part of an allocation from now on, if they were not.
    pub fn heap_use(&self, file: FileNo, pages: Range<u64>) {
        let mut core = self.lock();
        if let Some(heap) = core.file_mut(file).and_then(|f| f.heap.as_mut()) {
            for pages in heap.add(pages) {
                core.log_extent(file, pages, ExtentEvent::Allocated);
            }
        }
    }

    /// Pages that were to be mapped are not: they are to be dropped, as far as no mapping is known to
    /// show them.
    pub fn heap_give_back(&self, space: SpaceNo, file: FileNo, pages: Range<u64>) {
        self.lock().orphan(space, vec![(file, pages)], None);
    }

    /// Returns when none of these pages is being dropped.
    pub fn heap_dropped(&self, file: FileNo, pages: Range<u64>) {
        let mut again = Again::new();
        let undropped = |core: &mut Core| {
            let fences = core.file(file).map_or(&[][..], |f| &f.fences);
            let meets = |f: &crate::engine::core::Fence| {
                f.change == Change::Drop && f.first < pages.end && pages.start < f.end
            };
            (!fences.iter().any(meets)).then_some(())
        };
        drop(self.wait_until(&mut again, undropped));
        self.serve_all(&mut again);
    }

    /// Whether no mapping that is known shows any of these pages of a heap.
    pub fn heap_unmapped(&self, file: FileNo, pages: Range<u64>) -> bool {
        let core = self.lock();
        core.file(file).is_none_or(|f| f.mappings.overlapping(pages).next().is_none())
    }

    /// Whether none of these pages of a heap is part of an allocation.
    pub fn heap_unused(&self, file: FileNo, pages: Range<u64>) -> bool {
        let core = self.lock();
        let heap = core.file(file).and_then(|f| f.heap.as_ref());
        heap.is_none_or(|heap| heap.live.overlapping(&pages).next().is_none())
    }

    /// No change of a space is under way that was not heard of.
    pub fn space_quiet(&self, space: SpaceNo) {
        if let Some(s) = self.lock().space_mut(space) {
            s.order.quiet();
        }
    }

    /// Whether an orphan's pages are certainly mapped nowhere: they went by a change that was made
    /// while no other was under way.
    pub fn is_certain(&self, orphan: &Orphan) -> bool {
        let core = self.lock();
        let space = core.spaces.get(orphan.space as usize).and_then(Option::as_ref);
        space.is_some_and(|s| orphan.change.is_some_and(|change| s.order.was_alone(change)))
    }

    /// What was unmapped since the last call.
    pub fn take_orphans(&self) -> Vec<Orphan> {
        let mut core = self.lock();
        if core.orphans.is_empty() { Vec::new() } else { std::mem::take(&mut core.orphans) }
    }

    /// Drops an orphan's pages, but for those that turned out to be `mapped`; what is stored of
    /// them is the caller's to `forget`.
    pub fn drop_orphan(
        &self,
        orphan: &Orphan,
        mapped: &RangeSet<u64>,
        forget: impl Fn(Range<u64>),
    ) {
        let mut again = Again::new();
        let mut left = RangeSet::from_iter([orphan.pages.clone()]);
        for range in mapped.iter() {
            left.remove(range.clone());
        }
        for pages in left.iter() {
            self.drop_pages(orphan.file, pages.clone(), Leaving::All, &mut again);
            forget(pages.clone());
        }
        let mut core = self.lock();
        for pages in left.iter() {
            if let Some(heap) = core.file_mut(orphan.file).and_then(|f| f.heap.as_mut()) {
                heap.remove(pages.clone());
                core.log_extent(orphan.file, pages.clone(), ExtentEvent::Freed);
            }
        }
        drop(core);
        self.take_fence(orphan.file, orphan.ticket);
        self.serve_all(&mut again);
    }

    /// Pages of a heap become zeros (`madvise(2)` DONTNEED). False: not now, since it is
    /// [held](Self::heap_hold).
    pub fn heap_clear(&self, file: FileNo, pages: Range<u64>, forget: impl Fn(Range<u64>)) -> bool {
        let cleared = {
            let mut core = self.lock();
            if core.is_held(file) {
                return false;
            }
            core.clear(file, pages)
        };
        cleared.inspect(|cleared| self.drop_cleared(cleared, forget));
        true
    }

    /// Drops what pages had that are cleared, and lets others at them.
    pub fn drop_cleared(&self, cleared: &Cleared, forget: impl Fn(Range<u64>)) {
        let Cleared { file, pages, ticket } = cleared;
        let mut again = Again::new();
        self.drop_pages(*file, pages.clone(), Leaving::All, &mut again);
        forget(pages.clone());
        let mut core = self.lock();
        core.log_extent(*file, pages.clone(), ExtentEvent::Freed);
        core.log_extent(*file, pages.clone(), ExtentEvent::Allocated);
        drop(core);
        self.take_fence(*file, *ticket);
        self.serve_all(&mut again);
    }

    /// Stores what is dirty of a heap, and lets nobody write to it until
    /// [`heap_release`](Self::heap_release) is called with the ticket.
    ///
    /// # Errors
    /// Something could not be stored.
    pub fn heap_hold(&self, file: FileNo) -> Result<u64, PortError> {
        let mut again = Again::new();
        let ticket = self.fence_off(file, 0..PAGES_MAX, Change::Hold, &mut again);
        self.lock().log_extent(file, 0..PAGES_MAX, ExtentEvent::Stored);
        self.serve_all(&mut again);
        ticket
    }

    /// Whether a heap is [held](Self::heap_hold), or about to be.
    pub fn is_held(&self, file: FileNo) -> bool {
        self.lock().is_held(file)
    }

    /// Stores what is dirty of a heap, so that a hold that follows is short.
    ///
    /// # Errors
    /// As [`heap_hold`](Self::heap_hold).
    pub fn heap_store(&self, file: FileNo) -> Result<(), PortError> {
        let stored = self.write_out(file, 0..PAGES_MAX);
        self.lock().log_extent(file, 0..PAGES_MAX, ExtentEvent::Stored);
        stored
    }

    /// Pages of a heap begin with what a parent stored of them: a recording hears which.
    pub fn heap_inherit<I>(&self, file: FileNo, stored: impl FnOnce() -> I)
    where
        I: Iterator<Item = Range<u64>>,
    {
        if self.lock().log.is_none() {
            return;
        }
        // To look is not for free, and takes another lock.
        let stored = stored();
        let mut core = self.lock();
        stored.for_each(|pages| core.log_extent(file, pages, ExtentEvent::Inherited));
    }

    /// Ends what [`heap_hold`](Self::heap_hold) began.
    pub fn heap_release(&self, file: FileNo, ticket: u64) {
        self.take_fence(file, ticket);
    }

    /// The process is gone: its heap is too. As with files that are let go of, its number stands for
    /// nothing else before nothing can be about this heap any more.
    pub fn close_heap(&self, file: FileNo) {
        self.port.announce(file, None);
        let mut again = Again::new();
        let Some(ticket) = self.lock().put_fence(file, 0..PAGES_MAX, Change::Drop) else { return };
        self.drop_pages(file, 0..PAGES_MAX, Leaving::All, &mut again);
        // Whoever maps it all the same gets no zeros.
        let _ = self.port.resize(file, 0);
        {
            let mut core = self.lock();
            core.leave(file);
            core.log_extent(file, 0..PAGES_MAX, ExtentEvent::Freed);
        }
        self.take_fence(file, ticket);
        self.serve_all(&mut again);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process with thousands of allocations was slow to free one: all that it maps was looked at
    /// each time, for the sake of changes that cross each other.
    #[test]
    fn a_change_that_came_alone_needs_no_look_at_what_is_mapped() {
        let mut order = Order::default();
        let first = order.heard();
        assert!(!order.was_alone(first), "others may be under way");
        order.quiet();
        order.quiet();
        let crossed = [order.heard(), order.heard()];
        order.quiet();
        let last = order.heard();
        order.quiet();
        assert!(order.was_alone(first) && order.was_alone(last));
        assert!(crossed.iter().all(|change| !order.was_alone(*change)));
        for _ in 0..2 * Order::ALONE_MAX {
            order.heard();
            order.quiet();
        }
        assert!(!order.was_alone(last), "so long ago that nobody waits for it");
    }
}
