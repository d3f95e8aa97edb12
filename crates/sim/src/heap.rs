//! Memory that is nobody's file: zeros until it is first written out, and nothing once it is freed.

use pagekeeper_frames::{Place, Run};
use pagekeeper_policy::Page;
use pagekeeper_trace::ExtentEvent;
use rangemap::RangeSet;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use crate::References;

/// Pages that a heap has room for, whatever it uses of them: the engine's 16 TiB.
const ROOM_PAGES: u64 = 1 << 32;

/// What became of pages of a heap between two references.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapChange {
    /// Before the reference at this position.
    pub position: usize,
    /// The heap, as a place in [`References::segments`].
    pub segment: usize,
    /// Which pages, by their indices.
    pub pages: Range<u64>,
    /// What became of them.
    pub event: ExtentEvent,
    /// Of freed pages the numbers, which no later reference has.
    pub numbers: Vec<u32>,
}

/// Changes in the order in which a replay comes to them.
pub(crate) struct Changes<'a> {
    /// Per process, where processes have clocks of their own: of the heaps that it references.
    waiting: Vec<VecDeque<&'a HeapChange>>,
}

impl<'a> Changes<'a> {
    /// `owners` says whose each segment is.
    pub(crate) fn of(references: &'a References, owners: &[usize]) -> Self {
        let processes = owners.iter().max().map_or(0, |last| last + 1);
        let mut waiting = vec![VecDeque::new(); processes];
        for change in references.heap_changes() {
            waiting[owners[change.segment]].push_back(change);
        }
        Self { waiting }
    }

    /// A change that comes before this reference of a process.
    pub(crate) fn before(&mut self, process: usize, position: usize) -> Option<&'a HeapChange> {
        self.waiting.get_mut(process)?.pop_front_if(|change| change.position <= position)
    }
}

/// What a replay knows of one heap.
#[derive(Default)]
struct Heap {
    /// Pages of allocations; none where the trace does not say.
    allocated: Option<RangeSet<u64>>,
    /// Pages whose content is on storage. All others are zeros without a read.
    stored: RangeSet<u64>,
    /// Dirty pages that nobody has stored to yet.
    unwritten: BTreeSet<u64>,
}

/// The heaps of a reference string at a point of its replay.
pub(crate) struct Heaps(Vec<Option<Heap>>);

impl Heaps {
    /// Before the first reference.
    pub(crate) fn of(references: &References) -> Self {
        let segments = references.segments();
        let mut heaps: Vec<Option<Heap>> =
            segments.iter().map(|s| s.is_heap.then(Heap::default)).collect();
        for change in references.heap_changes() {
            if let (Some(heap), ExtentEvent::Allocated) = (&mut heaps[change.segment], change.event)
            {
                heap.allocated.get_or_insert_default();
            }
        }
        Self(heaps)
    }

    /// Pages that the live engine would have a segment's length be, if it is a heap.
    pub(crate) fn room_pages(&self, segment: usize) -> Option<u64> {
        self.0[segment].as_ref()?.allocated.as_ref().map(|_| ROOM_PAGES)
    }

    /// Follows a change.
    pub(crate) fn apply(&mut self, change: &HeapChange) {
        let Some(heap) = &mut self.0[change.segment] else { return };
        let pages = change.pages.clone();
        match change.event {
            ExtentEvent::Allocated => heap.allocated.get_or_insert_default().insert(pages),
            ExtentEvent::Freed => {
                heap.stored.remove(pages.clone());
                heap.unwritten.retain(|page| !pages.contains(page));
                heap.allocated.iter_mut().for_each(|allocated| allocated.remove(pages.clone()));
            }
            ExtentEvent::Inherited => heap.stored.insert(pages),
            // Page by page: those that were dirty.
            ExtentEvent::Stored => {}
        }
    }

    /// A page is written out. Tells whether that writes anything: a page of zeros needs no room.
    pub(crate) fn store(&mut self, place: Place) -> bool {
        let Some(heap) = &mut self.0[place.segment.0 as usize] else { return true };
        if heap.unwritten.remove(&place.index) && !heap.stored.contains(&place.index) {
            return false;
        }
        heap.stored.insert(place.index..place.index + 1);
        true
    }

    /// Pages of a heap became writable, and count as dirty, before anybody stored to them.
    pub(crate) fn writable(&mut self, place: Place, pages: u32) {
        if let Some(heap) = &mut self.0[place.segment.0 as usize] {
            heap.unwritten.extend(place.index..place.index + u64::from(pages));
        }
    }

    /// The program stored to a page.
    pub(crate) fn write(&mut self, place: Place) {
        if let Some(heap) = &mut self.0[place.segment.0 as usize] {
            heap.unwritten.remove(&place.index);
        }
    }

    /// Whether a segment is a heap.
    pub(crate) fn is_heap(&self, place: Place) -> bool {
        self.0[place.segment.0 as usize].is_some()
    }

    /// Whether a page is zeros, without a read.
    pub(crate) fn is_zeros(&self, place: Place) -> bool {
        let heap = self.0[place.segment.0 as usize].as_ref();
        heap.is_some_and(|heap| !heap.stored.contains(&place.index))
    }

    /// How many pages of a run that is to be fetched are worth it: not those behind an allocation.
    pub(crate) fn useful_pages(&self, run: &Run) -> u32 {
        let heap = self.0[run.place.segment.0 as usize].as_ref();
        let Some(allocated) = heap.and_then(|heap| heap.allocated.as_ref()) else {
            return run.pages;
        };
        let is_useful =
            |i: &u32| *i < run.demanded || allocated.contains(&(run.place.index + u64::from(*i)));
        (0..run.pages).take_while(is_useful).count() as u32
    }
}

/// Pages of heaps that were written to since a fork last stored them, so that a fork need not look
/// at all there are.
pub(crate) struct WrittenPages(Vec<BTreeMap<u64, Page>>);

impl WrittenPages {
    /// Before the first reference. Without forks nothing is kept.
    pub(crate) fn of(references: &References) -> Self {
        let forks = references.heap_changes().iter().any(|c| c.event == ExtentEvent::Stored);
        let segments = if forks { references.segments().len() } else { 0 };
        Self(vec![BTreeMap::new(); segments])
    }

    /// A page becomes dirty.
    pub(crate) fn add(&mut self, references: &References, page: Page) {
        if self.0.is_empty() {
            return;
        }
        let (segment, index) = references.place(page);
        if references.segments()[segment].is_heap {
            // One that was there before is freed.
            self.0[segment].insert(index, page);
        }
    }

    /// What may be dirty of what a fork stores, by number.
    pub(crate) fn take(&mut self, change: &HeapChange) -> Vec<Page> {
        let written = &mut self.0[change.segment];
        let indices: Vec<u64> =
            written.range(change.pages.clone()).map(|(index, _)| *index).collect();
        let mut pages: Vec<Page> =
            indices.iter().filter_map(|index| written.remove(index)).collect();
        pages.sort_unstable();
        pages
    }
}

/// Whether a change ends a heap with its process.
pub(crate) fn is_end(change: &HeapChange) -> bool {
    change.event == ExtentEvent::Freed && change.pages == (0..ROOM_PAGES)
}
