//! Comma-separated values with a line of headings.
//!
//! Columns are known by their headings, in any order and in either case:
//!
//! | heading | also | meaning | if missing |
//! | --- | --- | --- | --- |
//! | `page` | `block` | page number within the segment, decimal; this column must be there | – |
//! | `time` | `time_ns`, `timestamp` | nanoseconds, decimal | 0 |
//! | `process` | | process number, decimal | 0 |
//! | `segment` | | segment number, decimal | segment 0 |
//! | `obj` | `object`, `file` | segment *name*; names are numbered as they appear | segment 0 |
//! | `write` | `op`, `rw` | `1`, `true`, `W`, `write` or `0`, `false`, `R`, `read`, or empty: read | read |
//!
//! Fields may be quoted as in RFC 4180. Other columns are ignored. Blank lines are dropped and
//! counted.

use std::collections::{BTreeMap, HashMap, btree_map};
use std::io::{self, Read};

use csv_core::{ReadRecordResult, Terminator};

use super::{Confidence, ImportOptions, Importer, Sample, bytes_of_pages};
use crate::error::{ImportError, excerpt};
use crate::record::{Header, Record, Reference, Resize, Segment, SegmentKind};
use crate::source::{BATCH_RECORDS, Dropped, Source};

const NAME: &str = "csv";
/// Most columns.
const COLUMNS_MAX: usize = 64;
/// Most bytes in the fields of one record.
const RECORD_BYTES_MAX: usize = 64 << 10;
/// Most segments: their names and sizes are kept in memory.
const SEGMENTS_MAX: usize = 1 << 20;
/// Most bytes in a segment's name.
const SEGMENT_NAME_BYTES_MAX: usize = 4096;
const BUFFER_BYTES: usize = 64 << 10;

/// Comma-separated values.
pub(super) struct Csv;

impl Importer for Csv {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "comma-separated values under the headings time, process, segment or obj, page, write"
    }

    fn recognises(&self, sample: &Sample<'_>) -> Confidence {
        let first = sample.start.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let first = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first);
        let fields = first.split(|&byte| byte == b',').map(|field| field.trim_ascii());
        let headings = fields.map(|field| {
            let quoted = field.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
            Heading::parse(quoted.unwrap_or(field))
        });
        if headings.into_iter().any(|heading| heading == Some(Heading::Page)) {
            Confidence::Certain
        } else {
            Confidence::No
        }
    }

    fn open(
        &self,
        input: Box<dyn Read + Send>,
        options: &ImportOptions,
    ) -> Result<Box<dyn Source>, ImportError> {
        let mut rows = Rows::new(input);
        let columns = Columns::read(&mut rows)?;
        let mut header = options.header(NAME)?;
        if columns.time.is_none() {
            header = header.with("clock", "none");
        }
        Ok(Box::new(CsvSource {
            header,
            rows,
            columns,
            lone_name: options.segment_name(),
            numbers: HashMap::new(),
            last_pages: BTreeMap::new(),
            sizes: None,
            done: false,
        }))
    }
}

/// What a column means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heading {
    Time,
    Process,
    Segment,
    Object,
    Page,
    Write,
}

impl Heading {
    fn parse(field: &[u8]) -> Option<Self> {
        Some(match field.trim_ascii().to_ascii_lowercase().as_slice() {
            b"time" | b"time_ns" | b"timestamp" => Self::Time,
            b"process" => Self::Process,
            b"segment" => Self::Segment,
            b"obj" | b"object" | b"file" => Self::Object,
            b"page" | b"block" => Self::Page,
            b"write" | b"op" | b"rw" => Self::Write,
            _ => return None,
        })
    }
}

/// Which column is where.
#[derive(Default)]
struct Columns {
    time: Option<usize>,
    process: Option<usize>,
    segment: Option<usize>,
    object: Option<usize>,
    page: usize,
    write: Option<usize>,
    count: usize,
}

impl Columns {
    fn read(rows: &mut Rows) -> Result<Self, ImportError> {
        if !rows.next()? {
            return Err(rows.wrong("expected a line of headings, with one called page"));
        }
        let mut columns = Self { count: rows.fields, ..Self::default() };
        let mut page = None;
        for index in 0..rows.fields {
            let Some(heading) = Heading::parse(rows.field(index)) else { continue };
            let place = match heading {
                Heading::Time => &mut columns.time,
                Heading::Process => &mut columns.process,
                Heading::Segment => &mut columns.segment,
                Heading::Object => &mut columns.object,
                Heading::Page => &mut page,
                Heading::Write => &mut columns.write,
            };
            if place.replace(index).is_some() {
                return Err(rows.wrong("two columns mean the same: rename one"));
            }
        }
        columns.page = page.ok_or_else(|| rows.wrong("no column is called page"))?;
        if columns.segment.is_some() && columns.object.is_some() {
            return Err(rows.wrong("segments have a number and a name: rename one column"));
        }
        Ok(columns)
    }
}

struct CsvSource {
    header: Header,
    rows: Rows,
    columns: Columns,
    /// Name of the only segment, where the file names none.
    lone_name: Vec<u8>,
    /// Number of each segment that has a name.
    numbers: HashMap<Vec<u8>, u32>,
    /// The highest page number seen in each segment.
    last_pages: BTreeMap<u32, u64>,
    /// What is left to say of sizes, once the rows are over.
    sizes: Option<btree_map::IntoIter<u32, u64>>,
    done: bool,
}

impl CsvSource {
    fn fill(&mut self, batch: &mut Vec<Record>) -> Result<bool, ImportError> {
        let page_bytes = self.header.page_bytes;
        let mut resize = |sizes: &mut btree_map::IntoIter<u32, u64>, room| {
            batch.extend(sizes.take(room).map(|(segment, last)| {
                let bytes = bytes_of_pages(last, page_bytes);
                Record::Resize(Resize { segment, bytes })
            }));
            sizes.len() > 0
        };
        if let Some(sizes) = &mut self.sizes {
            return Ok(resize(sizes, BATCH_RECORDS));
        }
        // A row may be two records.
        for _ in 0..BATCH_RECORDS / 2 {
            if !self.rows.next()? {
                self.sizes = Some(std::mem::take(&mut self.last_pages).into_iter());
                return Ok(true);
            }
            self.row(batch)?;
        }
        Ok(true)
    }

    fn row(&mut self, batch: &mut Vec<Record>) -> Result<(), ImportError> {
        let (rows, columns) = (&self.rows, &self.columns);
        if rows.fields != columns.count {
            let why = format!("{} fields under {} headings", rows.fields, columns.count);
            return Err(rows.wrong(why));
        }
        let page = rows.number(columns.page, "the page")?;
        let time_ns = columns.time.map_or(Ok(0), |at| rows.number(at, "the time"))?;
        let process = columns.process.map_or(Ok(0), |at| rows.number32(at, "the process"))?;
        let write = columns.write.map_or(Ok(false), |at| rows.write(at))?;
        let (segment, name) = if let Some(at) = columns.segment {
            (rows.number32(at, "the segment")?, None)
        } else if let Some(at) = columns.object {
            let name = rows.field(at);
            if name.len() > SEGMENT_NAME_BYTES_MAX {
                let why = format!("a name has more than {SEGMENT_NAME_BYTES_MAX} bytes");
                return Err(rows.wrong(why));
            }
            match self.numbers.get(name) {
                Some(&number) => (number, None),
                None => (self.numbers.len() as u32, Some(name.to_vec())),
            }
        } else {
            (0, None)
        };
        if !self.last_pages.contains_key(&segment) {
            if self.last_pages.len() >= SEGMENTS_MAX {
                let why = format!("more than {SEGMENTS_MAX} segments, split the trace");
                return Err(rows.wrong(why));
            }
            let kind = match &name {
                Some(_) => SegmentKind::File,
                None => SegmentKind::Other,
            };
            let shown = match &name {
                Some(name) => name.clone(),
                None if columns.segment.is_none() => self.lone_name.clone(),
                None => Vec::new(),
            };
            batch.push(Record::Segment(Segment { segment, kind, bytes: 0, name: shown }));
        }
        if let Some(name) = name {
            self.numbers.insert(name, segment);
        }
        let last = self.last_pages.entry(segment).or_insert(page);
        *last = page.max(*last);
        batch.push(Record::Reference(Reference { time_ns, process, segment, page, write }));
        Ok(())
    }
}

impl Source for CsvSource {
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
        vec![Dropped { what: "blank lines", count: self.rows.blank }]
    }
}

/// Rows of fields, in buffers that do not grow.
struct Rows {
    input: Box<dyn Read + Send>,
    parser: csv_core::Reader,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    at_end: bool,
    /// The bytes of the present row's fields, one after the other, and where each ends.
    bytes: Box<[u8]>,
    ends: Box<[usize]>,
    fields: usize,
    /// Line that the present row ends on.
    line: u64,
    blank: u64,
}

impl Rows {
    fn new(input: Box<dyn Read + Send>) -> Self {
        // With `\n` alone, the parser's count of lines is exact at the end of a row; the `\r`
        // before it is taken off the last field.
        let parser = csv_core::ReaderBuilder::new().terminator(Terminator::Any(b'\n')).build();
        Self {
            input,
            parser,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            at_end: false,
            bytes: vec![0; RECORD_BYTES_MAX].into_boxed_slice(),
            ends: vec![0; COLUMNS_MAX].into_boxed_slice(),
            fields: 0,
            line: 0,
            blank: 0,
        }
    }

    /// Moves to the next row that is not blank; `false` at the end.
    fn next(&mut self) -> Result<bool, ImportError> {
        let (mut bytes, mut ends) = (0, 0);
        let mut row_started = self.line;
        loop {
            if self.start == self.end && !self.at_end {
                self.refill()?;
            }
            let input = &self.buffer[self.start..self.end];
            let (result, read, written, fields) =
                self.parser.read_record(input, &mut self.bytes[bytes..], &mut self.ends[ends..]);
            let ended_line = read > 0 && input[read - 1] == b'\n';
            self.start += read;
            bytes += written;
            ends += fields;
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {
                    self.fields = ends;
                    self.line = self.parser.line();
                    let why = format!(
                        "a row has more than {RECORD_BYTES_MAX} bytes or {COLUMNS_MAX} fields; is \
                         a quote left open?"
                    );
                    return Err(self.wrong(why));
                }
                ReadRecordResult::End => {
                    self.fields = 0;
                    self.blank += self.parser.line().saturating_sub(1).saturating_sub(row_started);
                    return Ok(false);
                }
                ReadRecordResult::Record => {
                    self.fields = ends;
                    self.line = self.parser.line() - u64::from(ended_line);
                    if self.fields == 1 && self.field(0).trim_ascii().is_empty() {
                        self.blank += self.line - row_started;
                        row_started = self.line;
                        (bytes, ends) = (0, 0);
                        continue;
                    }
                    // The parser passes over blank lines before a row; quoted fields may hold
                    // line ends of their own.
                    let own = 1 + memchr::memchr_iter(b'\n', &self.bytes[..bytes]).count() as u64;
                    self.blank += (self.line - row_started).saturating_sub(own);
                    return Ok(true);
                }
            }
        }
    }

    fn refill(&mut self) -> Result<(), ImportError> {
        loop {
            match self.input.read(&mut self.buffer) {
                Ok(count) => {
                    (self.start, self.end) = (0, count);
                    self.at_end = count == 0;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(ImportError::Read { format: NAME, line: self.line, source });
                }
            }
        }
    }

    /// A field of the present row.
    fn field(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        let field = &self.bytes[start..self.ends[index]];
        if index + 1 == self.fields {
            return field.strip_suffix(b"\r").unwrap_or(field);
        }
        field
    }

    /// An error about the present row.
    fn wrong(&self, why: impl Into<String>) -> ImportError {
        let mut content = Vec::new();
        for index in 0..self.fields {
            if index > 0 {
                content.push(b',');
            }
            content.extend_from_slice(self.field(index));
        }
        let (line, content) = (self.line.max(1), excerpt(&content));
        ImportError::Line { format: NAME, line, content, why: why.into() }
    }

    fn number(&self, index: usize, what: &str) -> Result<u64, ImportError> {
        let field = self.field(index).trim_ascii();
        // `parse` alone would take a sign.
        let digits = field.iter().all(u8::is_ascii_digit);
        std::str::from_utf8(field)
            .ok()
            .filter(|_| digits)
            .and_then(|field| field.parse().ok())
            .ok_or_else(|| self.wrong(format!("{what} is no decimal number of 64 bits")))
    }

    fn number32(&self, index: usize, what: &str) -> Result<u32, ImportError> {
        u32::try_from(self.number(index, what)?)
            .map_err(|_| self.wrong(format!("{what} is no decimal number of 32 bits")))
    }

    fn write(&self, index: usize) -> Result<bool, ImportError> {
        match self.field(index).trim_ascii().to_ascii_lowercase().as_slice() {
            b"" | b"0" | b"false" | b"r" | b"read" => Ok(false),
            b"1" | b"true" | b"w" | b"write" => Ok(true),
            _ => Err(self.wrong("whether it is a write is neither 1, true, W nor 0, false, R")),
        }
    }
}
