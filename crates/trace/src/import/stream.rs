//! What importers share: a parser says what was touched, and [`Stream`] makes records of it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::vec;

use super::bytes_of_pages;
use super::compressed::Input;
use crate::error::{ImportError, Place, excerpt};
use crate::lines::{LINE_BYTES_MAX, LineError, Lines};
use crate::record::{
    Fault, FaultKind, Header, Process, Record, Reference, Resize, Segment, SegmentKind,
};
use crate::source::{BATCH_RECORDS, Dropped, Source};

/// Most segments, and most processes: their names and sizes are kept in memory.
const NAMES_MAX: usize = 1 << 20;
/// Most bytes in a name.
const NAME_BYTES_MAX: usize = 4096;
/// A touch may bring a process, a segment and itself.
const RECORDS_PER_TOUCH_MAX: usize = 3;

/// What is wrong with a line or a record, and what was expected.
pub(super) type Why = Cow<'static, str>;

/// Pages that are touched one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    pub(super) time_ns: u64,
    pub(super) process: u32,
    pub(super) segment: u32,
    pub(super) first_page: u64,
    pub(super) last_page: u64,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Read,
    Write,
    /// The pages were fetched.
    Fetch,
}

impl Kind {
    pub(super) fn of_write(write: bool) -> Self {
        if write { Self::Write } else { Self::Read }
    }
}

impl Touch {
    /// A read of a page of segment 0 at no particular time.
    pub(super) fn page(page: u64) -> Self {
        Self {
            time_ns: 0,
            process: 0,
            segment: 0,
            first_page: page,
            last_page: page,
            kind: Kind::Read,
        }
    }

    /// A read of the pages that hold these bytes of segment 0; `None` if there are no bytes.
    pub(super) fn bytes(start: u64, bytes: u64, page_bytes: u32) -> Result<Option<Self>, Why> {
        let Some(more) = bytes.checked_sub(1) else { return Ok(None) };
        let last = start.checked_add(more).ok_or("it ends behind the last byte of 64 bits")?;
        let page_bytes = u64::from(page_bytes);
        let first_page = start / page_bytes;
        Ok(Some(Self { last_page: last / page_bytes, ..Self::page(first_page) }))
    }

    fn record(&self) -> Record {
        let Self { time_ns, process, segment, first_page: page, .. } = *self;
        match self.kind {
            Kind::Fetch => {
                Record::Fault(Fault { time_ns, process, segment, page, kind: FaultKind::Major })
            }
            kind => {
                let write = kind == Kind::Write;
                Record::Reference(Reference {
                    time_ns,
                    process,
                    segment,
                    page,
                    write,
                    by_call: false,
                })
            }
        }
    }
}

/// Segments and processes, as they appear.
#[derive(Default)]
pub(super) struct Places {
    segments: HashMap<Vec<u8>, u32>,
    processes: HashMap<Vec<u8>, u32>,
    /// The highest page number seen in each segment but the present one.
    last_pages: HashMap<u32, u64>,
    /// The segment touched last, and its highest page number: most touches stay in one segment.
    present: Option<(u32, u64)>,
    /// What has to be said before the next touch.
    introductions: Vec<Record>,
}

impl Places {
    /// The number of the segment with this name, which is introduced if it is new.
    pub(super) fn named(&mut self, name: &[u8], kind: SegmentKind) -> Result<u32, Why> {
        if let Some(number) = self.segments.get(name) {
            return Ok(*number);
        }
        let segment = number_of(&mut self.segments, name, "segments")?;
        let name = name.to_vec();
        self.introductions.push(Segment { segment, kind, bytes: 0, name }.into());
        Ok(segment)
    }

    /// Introduces a segment that goes by a number, if it is new.
    pub(super) fn numbered(&mut self, segment: u32, name: &[u8]) -> Result<(), Why> {
        if self.present.is_some_and(|(present, _)| present == segment)
            || self.last_pages.contains_key(&segment)
        {
            return Ok(());
        }
        if self.last_pages.len() >= NAMES_MAX {
            return Err(format!("more than {NAMES_MAX} segments: split the trace").into());
        }
        let mut name = name.to_vec();
        name.truncate(crate::NAME_BYTES_MAX);
        let kind = SegmentKind::Other;
        self.introductions.push(Segment { segment, kind, bytes: 0, name }.into());
        Ok(())
    }

    /// The number of the process that goes by this name and id, which is introduced if it is new.
    pub(super) fn process(&mut self, name: &[u8], pid: u32) -> Result<u32, Why> {
        let mut key = pid.to_le_bytes().to_vec();
        key.extend_from_slice(name);
        if let Some(number) = self.processes.get(&key) {
            return Ok(*number);
        }
        let process = number_of(&mut self.processes, &key, "processes")?;
        let name = name.to_vec();
        self.introductions.push(Process { process, pid, parent: None, name }.into());
        Ok(process)
    }

    fn reach(&mut self, segment: u32, page: u64) {
        match &mut self.present {
            Some((present, last)) if *present == segment => *last = page.max(*last),
            present => {
                if let Some((before, last)) = present.take() {
                    self.last_pages.insert(before, last);
                }
                let last = self.last_pages.get(&segment).map_or(page, |last| page.max(*last));
                *present = Some((segment, last));
            }
        }
    }

    /// The highest page number of each segment, in order of their numbers.
    fn sizes(&mut self) -> Vec<(u32, u64)> {
        self.last_pages.extend(self.present.take());
        let mut sizes: Vec<_> = self.last_pages.drain().collect();
        sizes.sort_unstable();
        sizes
    }
}

fn number_of(names: &mut HashMap<Vec<u8>, u32>, name: &[u8], what: &str) -> Result<u32, Why> {
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("a name has more than {NAME_BYTES_MAX} bytes").into());
    }
    if names.len() >= NAMES_MAX {
        return Err(format!("more than {NAMES_MAX} {what}: split the trace").into());
    }
    let number = names.len() as u32;
    names.insert(name.to_vec(), number);
    Ok(number)
}

/// Understands a format.
pub(super) trait Parser: Send {
    /// What is touched next; `None` at the end. Is not called again after either an end or an
    /// error.
    fn next(&mut self, places: &mut Places) -> Result<Option<Touch>, ImportError>;

    /// As [`Source::dropped`].
    fn dropped(&self) -> Vec<Dropped>;
}

/// The records of what a parser says.
pub(super) struct Stream<P> {
    header: Header,
    parser: P,
    places: Places,
    /// Pages of the last touch that were not given out yet.
    pending: Option<Touch>,
    /// What is left to say of sizes, once the touches are over.
    sizes: Option<vec::IntoIter<(u32, u64)>>,
    done: bool,
}

impl<P: Parser> Stream<P> {
    pub(super) fn new(header: Header, parser: P) -> Self {
        let places = Places::default();
        Self { header, parser, places, pending: None, sizes: None, done: false }
    }

    fn fill(&mut self, batch: &mut Vec<Record>) -> Result<bool, ImportError> {
        let end = batch.len() + BATCH_RECORDS;
        while batch.len() + RECORDS_PER_TOUCH_MAX <= end {
            if let Some(touch) = &mut self.pending {
                batch.push(touch.record());
                if touch.first_page < touch.last_page {
                    touch.first_page += 1;
                } else {
                    self.pending = None;
                }
            } else if let Some(sizes) = &mut self.sizes {
                let Some((segment, last)) = sizes.next() else { return Ok(false) };
                let bytes = bytes_of_pages(last, self.header.page_bytes);
                batch.push(Record::Resize(Resize { segment, bytes }));
            } else if let Some(touch) = self.parser.next(&mut self.places)? {
                batch.append(&mut self.places.introductions);
                self.places.reach(touch.segment, touch.last_page);
                if touch.first_page == touch.last_page {
                    batch.push(touch.record());
                } else {
                    self.pending = Some(touch);
                }
            } else {
                self.sizes = Some(self.places.sizes().into_iter());
            }
        }
        Ok(true)
    }
}

impl<P: Parser> Source for Stream<P> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn next_batch(&mut self, batch: &mut Vec<Record>) -> Result<bool, ImportError> {
        if self.done {
            return Ok(false);
        }
        let more = self.fill(batch);
        self.done = !matches!(more, Ok(true));
        more
    }

    fn dropped(&self) -> Vec<Dropped> {
        let mut dropped = self.parser.dropped();
        dropped.retain(|dropped| dropped.count > 0);
        dropped
    }
}

/// Understands a format of which every line stands for itself.
pub(super) trait LineFormat: Send {
    /// The format's name.
    fn name(&self) -> &'static str;

    /// What a line says; `None` if nothing, which the format counts.
    fn line(&mut self, line: &[u8], places: &mut Places) -> Result<Option<Touch>, Why>;

    /// As [`Source::dropped`].
    fn dropped(&self) -> Vec<Dropped>;
}

/// Parses line by line.
pub(super) struct ByLine<F> {
    lines: Lines<Input>,
    format: F,
}

impl<F: LineFormat> ByLine<F> {
    pub(super) fn new(input: Input, format: F) -> Self {
        Self { lines: Lines::new(input), format }
    }
}

impl<F: LineFormat> Parser for ByLine<F> {
    fn next(&mut self, places: &mut Places) -> Result<Option<Touch>, ImportError> {
        let format = self.format.name();
        let (content, why) = loop {
            match self.lines.next() {
                Ok(Some(line)) => match self.format.line(line, places) {
                    Ok(None) => {}
                    Ok(touch) => return Ok(touch),
                    Err(why) => break (excerpt(line), why.into_owned()),
                },
                Ok(None) => return Ok(None),
                Err(LineError::Read(source)) => {
                    let place = Place::Line(self.lines.number());
                    return Err(ImportError::Read { format, place, source });
                }
                Err(LineError::TooLong) => {
                    let why =
                        format!("longer than the {LINE_BYTES_MAX} bytes that a line may have");
                    break (excerpt(self.lines.ahead()), why);
                }
            }
        };
        Err(ImportError::Line { format, line: self.lines.number(), content, why })
    }

    fn dropped(&self) -> Vec<Dropped> {
        self.format.dropped()
    }
}

/// Understands a format of records of one size.
pub(super) trait RecordFormat: Send {
    /// The format's name.
    const NAME: &'static str;

    /// What a record says; `None` if nothing, which the format counts.
    fn record(&mut self, record: &[u8], places: &mut Places) -> Result<Option<Touch>, Why>;

    /// As [`Source::dropped`].
    fn dropped(&self) -> Vec<Dropped>;
}

/// Parses records of one size, one after the other.
pub(super) struct ByRecord<F> {
    input: Input,
    format: F,
    record_bytes: usize,
    buffer: Box<[u8]>,
    /// The part of the buffer that was read and not parsed.
    start: usize,
    end: usize,
    /// Where in the input the buffer starts.
    offset: u64,
    /// Why no more can be read.
    failed: Option<io::Error>,
}

impl<F: RecordFormat> ByRecord<F> {
    /// Records in the buffer.
    const RECORDS: usize = 4096;

    pub(super) fn new(input: Input, record_bytes: usize, format: F) -> Self {
        let buffer = vec![0; record_bytes * Self::RECORDS].into_boxed_slice();
        Self { input, format, record_bytes, buffer, start: 0, end: 0, offset: 0, failed: None }
    }

    fn place(&self) -> u64 {
        self.offset + self.start as u64
    }

    /// Reads on until the buffer is full, or the input is over.
    fn refill(&mut self) -> Result<(), ImportError> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.offset += self.start as u64;
        self.end -= self.start;
        self.start = 0;
        while self.end < self.buffer.len() && self.failed.is_none() {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    self.failed = Some(source);
                    break;
                }
            }
        }
        // The whole records before the error are good, and come first.
        if self.end < self.record_bytes
            && let Some(source) = self.failed.take()
        {
            let place = Place::Byte(self.offset + self.end as u64);
            return Err(ImportError::Read { format: F::NAME, place, source });
        }
        Ok(())
    }
}

impl<F: RecordFormat> Parser for ByRecord<F> {
    fn next(&mut self, places: &mut Places) -> Result<Option<Touch>, ImportError> {
        loop {
            if self.end - self.start < self.record_bytes {
                self.refill()?;
            }
            let left = self.end - self.start;
            if left == 0 {
                return Ok(None);
            }
            let offset = self.place();
            let record = offset / self.record_bytes as u64 + 1;
            let wrong = |why: Why| ImportError::Record {
                format: F::NAME,
                record,
                offset,
                why: why.into_owned(),
            };
            if left < self.record_bytes {
                let why = format!(
                    "the trace ends {left} bytes into it, and a record has {}: it is cut, or in \
                     another format",
                    self.record_bytes
                );
                return Err(wrong(why.into()));
            }
            let bytes = &self.buffer[self.start..self.start + self.record_bytes];
            let touch = self.format.record(bytes, places).map_err(wrong)?;
            self.start += self.record_bytes;
            if touch.is_some() {
                return Ok(touch);
            }
        }
    }

    fn dropped(&self) -> Vec<Dropped> {
        self.format.dropped()
    }
}
