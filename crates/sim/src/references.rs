//! The simulator's input: a reference string in memory, its pages numbered densely.
use pagekeeper_policy::Page;
use pagekeeper_trace::{ExtentEvent, Header, Record, SegmentKind};
use rangemap::RangeSet;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::processes::Processes;
use crate::{HeapChange, SimError};

/// The most distinct pages in one reference string: a reference is packed into 32 bits, one of
/// which says write.
pub const PAGES_MAX: u32 = 1 << 31;

/// The most regions that faults are counted in, over all segments.
pub const REGIONS_MAX: u32 = 1 << 24;

/// One touch of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The segment (a file, a heap), by whatever number the trace gives it.
    pub segment: u32,
    /// The page within the segment, counted in pages from its start.
    pub page_index: u64,
    /// Whether the touch wrote.
    pub write: bool,
    /// Whether a call made it that copies, such as read(2), and not the program through a mapping.
    pub by_call: bool,
    /// When, in nanoseconds from the trace's start; 0 throughout where the trace has no times.
    pub time_ns: u64,
}

impl From<(u32, u64, bool, u64)> for Reference {
    fn from((segment, page_index, write, time_ns): (u32, u64, bool, u64)) -> Self {
        Self { segment, page_index, write, by_call: false, time_ns }
    }
}

/// What is known of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its number in the trace.
    pub id: u32,
    /// Its name, such as the file's path; empty where the trace has none.
    pub name: String,
    /// Its length in pages: as declared, or up to the highest page referenced if that is more.
    pub pages: u64,
    /// It is a program's memory: zeros until it is first written out, and not written at the end.
    pub is_heap: bool,
}

/// A reference string: pages numbered densely in order of first reference, so that a replay
/// hashes nothing.
///
/// Costs 4 bytes per reference (a bit more where calls were recorded), 8 more where there are times,
/// and 12 per distinct page.
#[derive(Clone, Debug, Default)]
pub struct References {
    /// Page number · 2 + write.
    packed: Vec<u32>,
    /// Which were made by calls: 64 a word, as far as one was.
    by_call: Vec<u64>,
    times_ns: Vec<u64>,
    segments: Vec<Segment>,
    /// Per page: its place in `segments`.
    page_segment: Vec<u32>,
    /// Per page: its index within the segment.
    page_index: Vec<u64>,
    /// Which pages begin as zeros: 64 a word, as far as one does.
    zeros: Vec<u64>,
    heap_changes: Vec<HeapChange>,
    processes: Processes,
}

fn set_bit(words: &mut Vec<u64>, at: usize) {
    words.resize(at / 64 + 1, 0);
    words[at / 64] |= 1 << (at % 64);
}

fn bit(words: &[u64], at: usize) -> bool {
    words.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 != 0)
}

impl References {
    /// A string of block numbers, each one page of one segment, all read.
    ///
    /// # Errors
    /// [`SimError::TooManyPages`] above [`PAGES_MAX`] distinct blocks.
    pub fn from_blocks(blocks: impl IntoIterator<Item = u64>) -> Result<Self, SimError> {
        Self::collect(blocks.into_iter().map(|block| (0, block, false, 0)))
    }

    /// A string of references, in order; segments are known by their numbers alone. With names
    /// and sizes: [`References::builder`].
    ///
    /// # Errors
    /// [`SimError::TooManyPages`] above [`PAGES_MAX`] distinct pages.
    pub fn collect<R: Into<Reference>>(
        references: impl IntoIterator<Item = R>,
    ) -> Result<Self, SimError> {
        let references = references.into_iter();
        let mut builder = Self::builder();
        builder.references.packed.reserve(references.size_hint().0);
        for reference in references {
            builder.push(reference.into())?;
        }
        Ok(builder.finish())
    }

    /// Takes segments and references one by one.
    pub fn builder() -> ReferencesBuilder {
        ReferencesBuilder::default()
    }

    /// Number of references.
    pub fn len(&self) -> usize {
        self.packed.len()
    }

    /// Whether there is no reference.
    pub fn is_empty(&self) -> bool {
        self.packed.is_empty()
    }

    /// Number of distinct pages; they are numbered from 0.
    pub fn pages(&self) -> u32 {
        self.page_index.len() as u32
    }

    /// The most pages that there were at once: fewer than [`pages`](Self::pages) where memory was
    /// freed and used again.
    pub fn pages_at_once(&self) -> u32 {
        let (mut touched, mut from, mut freed, mut most) = (0, 0, 0, 0);
        // Numbers are in the order of first touches.
        let touched_by = |touched: u32, part: &[u32]| {
            part.iter().fold(touched, |touched, packed| touched.max((packed >> 1) + 1))
        };
        for change in self.heap_changes.iter().filter(|change| !change.numbers.is_empty()) {
            touched = touched_by(touched, &self.packed[from..change.position]);
            most = most.max(touched - freed);
            freed += change.numbers.len() as u32;
            from = change.position;
        }
        most.max(self.pages() - freed)
    }

    /// Number of references that wrote.
    pub fn writes(&self) -> u64 {
        self.packed.iter().map(|packed| u64::from(packed & 1)).sum()
    }

    /// The references in order: the page, and whether it was written.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Page, bool)> + DoubleEndedIterator + '_ {
        self.packed.iter().map(|packed| (Page(packed >> 1), packed & 1 != 0))
    }

    /// The reference at this position: the page, and whether it was written.
    pub(crate) fn at(&self, position: usize) -> (Page, bool) {
        let packed = self.packed[position];
        (Page(packed >> 1), packed & 1 != 0)
    }

    /// Whether the reference at this position was made by a call, as read(2).
    pub fn is_by_call(&self, position: usize) -> bool {
        bit(&self.by_call, position)
    }

    /// Whether a page's first touch needs no read: heap memory that nobody has written out.
    pub fn begins_as_zeros(&self, page: Page) -> bool {
        bit(&self.zeros, page.index())
    }

    /// Pages whose first touch needs no read.
    pub fn zero_pages(&self) -> u32 {
        self.zeros.iter().map(|word| word.count_ones()).sum()
    }

    /// What became of heaps between references, in order. A page that is used again after it was
    /// freed has another number.
    pub fn heap_changes(&self) -> &[HeapChange] {
        &self.heap_changes
    }

    /// The time of each reference in nanoseconds, if the trace has times.
    pub fn times_ns(&self) -> Option<&[u64]> {
        (!self.times_ns.is_empty()).then_some(&self.times_ns)
    }

    /// The segments: declared ones in order, then others in order of first reference.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The segment of a page, as a place in [`segments`](Self::segments), and its index there.
    ///
    /// # Panics
    /// If the page is not one of this string.
    pub fn place(&self, page: Page) -> (usize, u64) {
        (self.page_segment[page.index()] as usize, self.page_index[page.index()])
    }

    /// Which region every page is in, when each segment is cut into `per_segment` equal parts: at
    /// least 1, and at most so many that there are [`REGIONS_MAX`] in all.
    pub fn regions(&self, per_segment: u32) -> Regions {
        let most = REGIONS_MAX / self.segments.len().max(1) as u32;
        let per_segment = per_segment.min(most).max(1);
        let of_page = self
            .page_segment
            .iter()
            .zip(&self.page_index)
            .map(|(segment, index)| {
                let pages = u128::from(self.segments[*segment as usize].pages);
                let part = u128::from(*index) * u128::from(per_segment) / pages;
                // The last index there can be is a segment's length too.
                *segment * per_segment + (part as u32).min(per_segment - 1)
            })
            .collect();
        Regions { of_page, per_segment, total: self.segments.len() * per_segment as usize }
    }

    /// The references to those pages alone that the test says yes of, and what becomes of heaps
    /// meanwhile. For exact replays: without times, processes, and what was made by calls.
    pub fn of_pages(&self, mut is_kept: impl FnMut(Page) -> bool) -> Self {
        let mut part = Self { segments: self.segments.clone(), ..Self::default() };
        let mut numbers = vec![None; self.pages() as usize];
        for page in (0..self.pages()).map(Page).filter(|page| is_kept(*page)) {
            let number = part.pages();
            numbers[page.index()] = Some(number);
            part.page_segment.push(self.page_segment[page.index()]);
            part.page_index.push(self.page_index[page.index()]);
            if self.begins_as_zeros(page) {
                set_bit(&mut part.zeros, number as usize);
            }
        }
        let mut changes = self.heap_changes.iter().peekable();
        for position in 0..=self.len() {
            while let Some(change) = changes.next_if(|change| change.position <= position) {
                let kept = change.numbers.iter().filter_map(|number| numbers[*number as usize]);
                part.heap_changes.push(HeapChange {
                    position: part.len(),
                    segment: change.segment,
                    pages: change.pages.clone(),
                    event: change.event,
                    numbers: kept.collect(),
                });
            }
            if let Some(packed) = self.packed.get(position)
                && let Some(number) = numbers[(packed >> 1) as usize]
            {
                part.packed.push(number << 1 | packed & 1);
            }
        }
        part
    }

    pub(crate) fn processes(&self) -> &Processes {
        &self.processes
    }

    pub(crate) fn packed(&self) -> &[u32] {
        &self.packed
    }
}

/// Where faults are counted: segments cut into equal parts. A page at index *i* of a segment of
/// *p* pages is in part ⌊*i* · *n* / *p*⌋ of *n*.
#[derive(Clone, Debug)]
pub struct Regions {
    of_page: Vec<u32>,
    per_segment: u32,
    total: usize,
}

impl Regions {
    /// Number of regions in each segment.
    pub const fn per_segment(&self) -> u32 {
        self.per_segment
    }

    /// Number of regions in all segments.
    pub const fn total(&self) -> usize {
        self.total
    }

    /// The region of a page: its segment's place · [`per_segment`](Self::per_segment) + the part.
    #[inline]
    pub fn of(&self, page: Page) -> usize {
        self.of_page[page.index()] as usize
    }
}

/// Makes [`References`] from a stream.
#[derive(Clone, Debug, Default)]
pub struct ReferencesBuilder {
    references: References,
    numbers: FxHashMap<(u32, u64), u32>,
    segment_places: FxHashMap<u32, u32>,
    heaps: FxHashMap<u32, HeapPages>,
    process_places: FxHashMap<u32, usize>,
}

/// What is known of a heap while references come in.
#[derive(Clone, Debug, Default)]
struct HeapPages {
    /// Number of each page that was referenced and not freed since.
    numbers: BTreeMap<u64, u32>,
    /// Pages that a forked child has of its parent, on storage.
    inherited: RangeSet<u64>,
}

impl ReferencesBuilder {
    /// Declares a segment, before or after its first reference; again to rename or lengthen it.
    pub fn segment(&mut self, id: u32, name: impl Into<String>, pages: u64) -> &mut Self {
        if self.heaps.remove(&id).is_some() {
            // The number is used again, for something else.
            self.segment_places.remove(&id);
        }
        let place = self.place_of(id);
        let segment = &mut self.references.segments[place as usize];
        segment.name = name.into();
        segment.pages = segment.pages.max(pages);
        self
    }

    /// Declares a heap, before its first reference. Of one whose process is gone the number may be
    /// used again.
    pub fn heap(&mut self, id: u32, name: impl Into<String>) -> &mut Self {
        self.segment_places.remove(&id);
        self.heaps.insert(id, HeapPages::default());
        let place = self.place_of(id);
        let segment = &mut self.references.segments[place as usize];
        (segment.name, segment.is_heap) = (name.into(), true);
        self
    }

    /// Something becomes of pages of a heap, before the next reference. Of no heap: nothing.
    pub fn extent(&mut self, id: u32, pages: Range<u64>, event: ExtentEvent) -> &mut Self {
        let segment = self.segment_places.get(&id).copied();
        let (Some(heap), Some(segment)) = (self.heaps.get_mut(&id), segment) else { return self };
        if pages.is_empty() {
            return self;
        }
        let mut numbers = Vec::new();
        match event {
            ExtentEvent::Inherited => heap.inherited.insert(pages.clone()),
            ExtentEvent::Freed => {
                heap.inherited.remove(pages.clone());
                let mut behind = heap.numbers.split_off(&pages.start);
                heap.numbers.append(&mut behind.split_off(&pages.end));
                numbers.extend(behind.into_values());
            }
            ExtentEvent::Allocated | ExtentEvent::Stored => {}
        }
        let (position, segment) = (self.references.len(), segment as usize);
        let change = HeapChange { position, segment, pages, event, numbers };
        self.references.heap_changes.push(change);
        self
    }

    /// Takes what a trace's header says of the machine.
    pub fn header(&mut self, header: &Header) -> &mut Self {
        let said = header.attribute("processors").and_then(|said| str::from_utf8(said).ok());
        if let Some(processors) = said.and_then(|said| said.parse().ok()) {
            self.references.processes.set_processors(processors);
        }
        self
    }

    /// Takes a record of a trace; those that say nothing of references are passed over.
    /// `page_bytes` is the size of a page here, which is so many (`ratio`) of the trace's.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn record(&mut self, record: &Record, page_bytes: u64, ratio: u64) -> Result<(), SimError> {
        match record {
            Record::Segment(segment) => {
                let name = String::from_utf8_lossy(&segment.name);
                match segment.kind {
                    SegmentKind::Heap => self.heap(segment.segment, name),
                    _ => self.segment(segment.segment, name, segment.bytes.div_ceil(page_bytes)),
                };
            }
            // Of one that is longer now; what it held when it was, it may hold again.
            Record::Resize(resize) => {
                if let Some(place) = self.segment_places.get(&resize.segment) {
                    let segment = &mut self.references.segments[*place as usize];
                    if !segment.is_heap {
                        segment.pages = segment.pages.max(resize.bytes.div_ceil(page_bytes));
                    }
                }
            }
            Record::Extent(extent) => {
                let end = extent.first.saturating_add(extent.pages);
                // Part of a page makes it content; it is free when all of it is.
                let pages = match extent.event {
                    ExtentEvent::Freed => extent.first.div_ceil(ratio)..end / ratio,
                    _ => extent.first / ratio..end.div_ceil(ratio),
                };
                self.extent(extent.segment, pages, extent.event);
            }
            Record::Process(process) => {
                let parent = process.parent.and_then(|p| self.process_places.get(&p).copied());
                let place = self.references.processes.begin(parent);
                self.process_places.insert(process.process, place);
            }
            Record::CpuTime(cpu_time) => {
                if let Some(place) = self.process_places.get(&cpu_time.process) {
                    let position = self.references.len();
                    self.references.processes.look(*place, position, cpu_time.ns);
                }
            }
            Record::Reference(touch) => {
                let process = self.process_places.get(&touch.process).copied();
                self.references.processes.push(process);
                return self.push(Reference {
                    segment: touch.segment,
                    page_index: touch.page / ratio,
                    write: touch.write,
                    by_call: touch.by_call,
                    time_ns: touch.time_ns,
                });
            }
            _ => {}
        }
        Ok(())
    }

    /// Adds the next reference.
    ///
    /// # Errors
    /// [`SimError::TooManyPages`] above [`PAGES_MAX`] distinct pages.
    pub fn push(&mut self, reference: Reference) -> Result<(), SimError> {
        let Reference { segment, page_index, write, by_call, time_ns } = reference;
        let heap = if self.heaps.is_empty() { None } else { self.heaps.get(&segment) };
        let number = match heap {
            Some(heap) => heap.numbers.get(&page_index),
            None => self.numbers.get(&(segment, page_index)),
        };
        let number = match number {
            Some(number) => *number,
            None => self.new_page(segment, page_index)?,
        };
        let times_ns = &mut self.references.times_ns;
        if time_ns != 0 || !times_ns.is_empty() {
            // Times begin where the first that is not zero comes: all before it were zero.
            times_ns.resize(self.references.packed.len(), 0);
            times_ns.push(time_ns);
        }
        if by_call {
            let position = self.references.packed.len();
            set_bit(&mut self.references.by_call, position);
        }
        self.references.packed.push(number << 1 | u32::from(write));
        Ok(())
    }

    /// The reference string.
    pub fn finish(self) -> References {
        self.references
    }

    fn new_page(&mut self, segment: u32, page_index: u64) -> Result<u32, SimError> {
        let number = self.references.pages();
        if number == PAGES_MAX {
            let position = self.references.packed.len() as u64;
            return Err(SimError::TooManyPages { position });
        }
        let place = self.place_of(segment);
        let pages = &mut self.references.segments[place as usize].pages;
        *pages = (*pages).max(page_index.saturating_add(1));
        self.references.page_segment.push(place);
        self.references.page_index.push(page_index);
        match self.heaps.get_mut(&segment) {
            None => {
                self.numbers.insert((segment, page_index), number);
            }
            Some(heap) => {
                heap.numbers.insert(page_index, number);
                if !heap.inherited.contains(&page_index) {
                    set_bit(&mut self.references.zeros, number as usize);
                }
            }
        }
        Ok(number)
    }

    fn place_of(&mut self, id: u32) -> u32 {
        let segments = &mut self.references.segments;
        *self.segment_places.entry(id).or_insert_with(|| {
            segments.push(Segment { id, name: String::new(), pages: 0, is_heap: false });
            segments.len() as u32 - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_trace::{Resize, Segment as Declared};

    #[test]
    fn pages_are_numbered_in_order_of_first_reference() {
        let mut builder = References::builder();
        builder.segment(7, "b.db", 100);
        for reference in
            [(3, 9, false, 0), (7, 9, true, 5), (3, 9, true, 6), (3, 1 << 40, false, 7)]
        {
            builder.push(reference.into()).unwrap();
        }
        let references = builder.finish();
        let seen: Vec<_> = references.iter().map(|(page, write)| (page.0, write)).collect();
        assert_eq!(seen, [(0, false), (1, true), (0, true), (2, false)]);
        assert_eq!(references.times_ns(), Some(&[0, 5, 6, 7][..]));
        assert_eq!((references.pages(), references.writes()), (3, 2));
        assert_eq!(references.place(Page(2)), (1, 1 << 40));
        let segments: Vec<_> =
            references.segments().iter().map(|s| (s.id, s.name.as_str(), s.pages)).collect();
        assert_eq!(segments, [(7, "b.db", 100), (3, "", (1 << 40) + 1)]);
    }

    /// Files that a program made longer were as long as what it touched of them.
    #[test]
    fn a_file_is_as_long_as_it_became() {
        let of = |segment, kind, bytes| Declared { segment, kind, bytes, name: Vec::new() };
        let mut builder = References::builder();
        for record in [of(1, SegmentKind::File, 4096), of(2, SegmentKind::Heap, 0)] {
            builder.record(&record.into(), 4096, 1).unwrap();
        }
        for (segment, bytes) in [(1, 10 * 4096 - 1), (1, 4096), (2, 1 << 30), (3, 1 << 30)] {
            builder.record(&Resize { segment, bytes }.into(), 4096, 1).unwrap();
        }
        let references = builder.finish();
        let pages: Vec<_> = references.segments().iter().map(|segment| segment.pages).collect();
        assert_eq!(pages, [10, 0]);
    }

    #[test]
    fn pages_at_once_are_without_freed_ones() {
        let mut builder = References::builder();
        builder.segment(1, "a", 100).heap(2, "heap:1 (p)");
        let touch = |builder: &mut ReferencesBuilder, segment: u32, pages: Range<u64>| {
            pages.for_each(|page| builder.push((segment, page, true, 0).into()).unwrap());
        };
        touch(&mut builder, 1, 0..5);
        for _ in 0..3 {
            touch(&mut builder, 2, 0..10);
            touch(&mut builder, 2, 0..10);
            builder.extent(2, 2..10, ExtentEvent::Freed);
        }
        touch(&mut builder, 2, 0..5);
        let references = builder.finish();
        assert_eq!((references.pages(), references.pages_at_once()), (5 + 10 + 8 + 8 + 3, 15));
        // What was freed last of all was there before.
        builder = References::builder();
        builder.heap(2, "heap:1 (p)");
        touch(&mut builder, 2, 0..7);
        builder.extent(2, 0..7, ExtentEvent::Freed);
        assert_eq!(builder.finish().pages_at_once(), 7);
        assert_eq!(References::from_blocks([1, 2, 1]).unwrap().pages_at_once(), 2);
        assert_eq!(References::default().pages_at_once(), 0);
    }

    #[test]
    fn regions_are_equal_parts_of_a_segment() {
        let references = References::collect((0..10).map(|i| (0, i, false, 0))).unwrap();
        let regions = references.regions(3);
        let parts: Vec<_> = (0..10).map(|page| regions.of(Page(page))).collect();
        assert_eq!(parts, [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(references.regions(0).per_segment(), 1);
        // The last page there can be.
        let references = References::from_blocks([u64::MAX]).unwrap();
        assert_eq!(references.regions(1000).of(Page(0)), 999);
        assert!(References::from_blocks([]).unwrap().times_ns().is_none());
    }
}
