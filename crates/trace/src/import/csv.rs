//! Comma-separated values.
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
//! | `write` | `op`, `rw` | an operation, as below; empty: read | read |
//!
//! or are `time,object,size,op`, as libCacheSim's are when we export them: time in seconds, and objects
//! that are numbers; or are told by a [`ColumnSpec`], which may name a column of objects in place of pages, as libCacheSim's
//! reader takes them. An object that is a number becomes the page of that number, any other the
//! page that its hash gives (as in `ids`).
//!
//! Operations that read are `0`, `false`, `R`, `read`, `get`, `gets`; those that write are `1`,
//! `true`, `W`, `write`, `set`, `add`, `replace`, `cas`, `append`, `prepend`, `incr`, `decr`, `put`;
//! `delete` is dropped and counted. Fields may be quoted as in RFC 4180. Other columns are ignored.
//! Blank lines are dropped and counted.

use std::io;
use std::str::FromStr;

use csv_core::{ReadRecordResult, Terminator};

use super::compressed::Input;
use super::fields::{decimal, time_ns};
use super::ids::page_of_name;
use super::objects::{ObjectPages, Objects};
use super::stream::{Kind, Parser, Places, Stream, Touch};
use super::{Confidence, ImportOptions, Importer, Sample};
use crate::error::{ImportError, Place, excerpt};
use crate::record::SegmentKind;
use crate::source::{Dropped, Source};

const NAME: &str = "csv";
/// What `libcachesim-csv` is exported under.
const LIBCACHESIM_HEADINGS: [&[u8]; 4] = [b"time", b"object", b"size", b"op"];
/// Most columns.
const COLUMNS_MAX: usize = 64;
/// Most bytes in the fields of one record.
const RECORD_BYTES_MAX: usize = 64 << 10;
const BUFFER_BYTES: usize = 64 << 10;
const SECOND_NS: u64 = 1_000_000_000;

/// Comma-separated values.
pub(super) struct Csv;

impl Importer for Csv {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "comma-separated, under time, process, segment or obj, page, write; or see --columns"
    }

    fn recognises(&self, sample: &Sample<'_>) -> Confidence {
        let first = sample.start.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let first = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first);
        let fields = first.split(|&byte| byte == b',').map(|field| field.trim_ascii());
        let mut headings = fields.map(|field| {
            let quoted = field.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
            quoted.unwrap_or(field)
        });
        let is_for_libcachesim = headings.clone().eq(LIBCACHESIM_HEADINGS);
        if is_for_libcachesim
            || headings.any(|heading| Meaning::of_heading(heading) == Some(Meaning::Page))
        {
            Confidence::Certain
        } else {
            Confidence::No
        }
    }

    fn open(&self, input: Input, options: &ImportOptions) -> Result<Box<dyn Source>, ImportError> {
        let spec = options.columns.as_ref();
        let mut rows = Rows::new(input, spec.and_then(|spec| spec.delimiter).unwrap_or(b','));
        let columns = match spec {
            Some(spec) => Columns::as_told(&mut rows, spec)?,
            None => Columns::of_headings(&mut rows)?,
        };
        if options.objects == Objects::Pages
            && (columns.get(Meaning::Object).is_none() || columns.get(Meaning::Bytes).is_none())
        {
            let text = "--objects pages needs to know where objects and their sizes are: say so \
                        with --columns obj=N,size=N";
            return Err(ImportError::Options(text.to_owned()));
        }
        let mut header = options.header(NAME)?;
        if columns.get(Meaning::Time).is_none() {
            header = header.with("clock", "none");
        }
        let pages = ObjectPages::new(options.objects, header.page_bytes);
        let parser = CsvRows {
            rows,
            columns,
            lone_name: options.segment_name(),
            pages,
            deletes: 0,
            empty: 0,
        };
        Ok(Box::new(Stream::new(header, parser)))
    }
}

/// What a column means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meaning {
    Time,
    Process,
    Segment,
    /// The segment's name.
    File,
    Page,
    Write,
    /// What is a page of its own, or several.
    Object,
    /// The object's size.
    Bytes,
}

impl Meaning {
    const ALL: usize = 8;

    fn of_heading(field: &[u8]) -> Option<Self> {
        Some(match field.trim_ascii().to_ascii_lowercase().as_slice() {
            b"time" | b"time_ns" | b"timestamp" => Self::Time,
            b"process" => Self::Process,
            b"segment" => Self::Segment,
            b"obj" | b"object" | b"file" => Self::File,
            b"page" | b"block" => Self::Page,
            b"write" | b"op" | b"rw" => Self::Write,
            _ => return None,
        })
    }

    /// The meaning of a key in a [`ColumnSpec`].
    fn of_key(key: &str) -> Option<Self> {
        let key = key.strip_suffix("-col").or_else(|| key.strip_suffix("-field")).unwrap_or(key);
        Some(match key {
            "time" => Self::Time,
            "process" => Self::Process,
            "segment" => Self::Segment,
            "file" => Self::File,
            "page" | "block" => Self::Page,
            "op" | "write" => Self::Write,
            "obj" | "obj-id" | "object" => Self::Object,
            "size" | "obj-size" => Self::Bytes,
            _ => return None,
        })
    }
}

/// What the columns of a csv mean: `KEY=COLUMN,…`, where a column is its number, from 1, or its
/// heading.
///
/// Keys are `time`, `obj`, `size`, `op`, `page`, `file`, `segment` and `process`; libCacheSim's
/// spellings (`time-col`, `obj-id-col`, `obj-size-col`) are understood. Besides, `delimiter` (a
/// character, or `tab`), `has-header` and `obj-id-is-num` (`true` or `false`; found out if not said),
/// and `time-unit` (`s`, the default, `ms`, `us`, `ns`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColumnSpec {
    columns: Vec<(Meaning, Column)>,
    delimiter: Option<u8>,
    has_headings: Option<bool>,
    objects_are_numbers: Option<bool>,
    time_unit_ns: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Column {
    /// From 0.
    Number(usize),
    Heading(String),
}

/// Text that says nothing of columns.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}; write KEY=COLUMN,… as time=2,obj=5,size=4,op=3 with columns from 1, or headings")]
pub struct ColumnSpecError(String);

impl FromStr for ColumnSpec {
    type Err = ColumnSpecError;

    fn from_str(text: &str) -> Result<Self, ColumnSpecError> {
        let mut spec = Self {
            columns: Vec::new(),
            delimiter: None,
            has_headings: None,
            objects_are_numbers: None,
            time_unit_ns: SECOND_NS,
        };
        let wrong = |text: String| Err(ColumnSpecError(text));
        let mut rest = text.trim();
        while !rest.is_empty() {
            let Some((key, after)) = rest.split_once('=') else {
                return wrong(format!("`{rest}` is no KEY=COLUMN"));
            };
            let key = key.trim();
            // The delimiter may be a comma itself.
            let end = match key {
                "delimiter" => after.char_indices().skip(1).find(|(_, c)| *c == ','),
                _ => after.char_indices().find(|(_, c)| *c == ','),
            };
            let end = end.map_or(after.len(), |(at, _)| at);
            let value = &after[..end];
            rest = after[end..].strip_prefix(',').unwrap_or_default().trim_start();
            match key {
                "delimiter" => {
                    spec.delimiter = Some(match value {
                        "tab" | "\\t" => b'\t',
                        _ => match value.as_bytes() {
                            [byte] if byte.is_ascii() && !b"\"\r\n".contains(byte) => *byte,
                            _ => return wrong(format!("the delimiter `{value}` is no character")),
                        },
                    });
                }
                "has-header" => spec.has_headings = Some(boolean(key, value)?),
                "obj-id-is-num" => spec.objects_are_numbers = Some(boolean(key, value)?),
                "time-unit" => {
                    spec.time_unit_ns = match value.trim() {
                        "s" => SECOND_NS,
                        "ms" => 1_000_000,
                        "us" => 1_000,
                        "ns" => 1,
                        _ => return wrong(format!("`{value}` is none of s, ms, us, ns")),
                    };
                }
                _ => spec.column(key, value.trim())?,
            }
        }
        let count = |meaning| spec.columns.iter().filter(|(m, _)| *m == meaning).count();
        match (count(Meaning::Page), count(Meaning::Object)) {
            (1, 0) | (0, 1) => Ok(spec),
            (0, _) => wrong("no column is the page or the object".to_owned()),
            _ => wrong("what is touched is either a page or an object".to_owned()),
        }
    }
}

impl ColumnSpec {
    fn column(&mut self, key: &str, value: &str) -> Result<(), ColumnSpecError> {
        let meaning = Meaning::of_key(key)
            .ok_or_else(|| ColumnSpecError(format!("a column cannot mean `{key}`")))?;
        if self.columns.iter().any(|(known, _)| *known == meaning) {
            return Err(ColumnSpecError(format!("two columns are `{key}`")));
        }
        let column = match value.parse::<usize>() {
            Ok(number) if (1..=COLUMNS_MAX).contains(&number) => Column::Number(number - 1),
            Ok(_) => {
                let text = format!("columns are numbered from 1 to {COLUMNS_MAX}, not `{value}`");
                return Err(ColumnSpecError(text));
            }
            Err(_) if !value.is_empty() => Column::Heading(value.to_owned()),
            Err(_) => return Err(ColumnSpecError(format!("`{key}=` names no column"))),
        };
        self.columns.push((meaning, column));
        Ok(())
    }
}

fn boolean(key: &str, value: &str) -> Result<bool, ColumnSpecError> {
    match value.trim() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(ColumnSpecError(format!("`{key}` is true or false, not `{value}`"))),
    }
}

/// Which column is where.
struct Columns {
    /// By [`Meaning`].
    places: [Option<usize>; Meaning::ALL],
    count: usize,
    /// What 1 is in a column of times; `None` if it is a whole number of nanoseconds.
    time_unit_ns: Option<u64>,
    /// Whether objects are numbers, if that is known.
    objects_are_numbers: Option<bool>,
    /// The row that was read last is one of data.
    row_waits: bool,
}

impl Columns {
    fn new(count: usize) -> Self {
        Self {
            places: [None; Meaning::ALL],
            count,
            time_unit_ns: None,
            objects_are_numbers: None,
            row_waits: false,
        }
    }

    fn get(&self, meaning: Meaning) -> Option<usize> {
        self.places[meaning as usize]
    }

    fn of_headings(rows: &mut Rows) -> Result<Self, ImportError> {
        if !rows.next()? {
            return Err(rows.wrong("expected a line of headings, with one called page"));
        }
        let mut columns = Self::new(rows.fields);
        if (0..rows.fields).map(|index| rows.field(index).trim_ascii()).eq(LIBCACHESIM_HEADINGS) {
            let meanings = [Meaning::Time, Meaning::Object, Meaning::Bytes, Meaning::Write];
            for (index, meaning) in meanings.into_iter().enumerate() {
                columns.places[meaning as usize] = Some(index);
            }
            columns.time_unit_ns = Some(SECOND_NS);
            columns.objects_are_numbers = Some(true);
            return Ok(columns);
        }
        for index in 0..rows.fields {
            let Some(meaning) = Meaning::of_heading(rows.field(index)) else { continue };
            if columns.places[meaning as usize].replace(index).is_some() {
                return Err(rows.wrong("two columns mean the same: rename one"));
            }
        }
        if columns.get(Meaning::Page).is_none() {
            return Err(rows.wrong("no column is called page: say which it is with --columns"));
        }
        if columns.get(Meaning::Segment).is_some() && columns.get(Meaning::File).is_some() {
            return Err(rows.wrong("segments have a number and a name: rename one column"));
        }
        Ok(columns)
    }

    fn as_told(rows: &mut Rows, spec: &ColumnSpec) -> Result<Self, ImportError> {
        if !rows.next()? {
            return Err(rows.wrong("expected at least a line of headings, or one row"));
        }
        let mut columns = Self::new(rows.fields);
        columns.time_unit_ns = Some(spec.time_unit_ns);
        columns.objects_are_numbers = spec.objects_are_numbers;
        let mut by_heading = false;
        for (meaning, column) in &spec.columns {
            let index = match column {
                Column::Number(index) if *index < rows.fields => *index,
                Column::Number(index) => {
                    let why = format!("it has {} columns, and none is {}", rows.fields, index + 1);
                    return Err(rows.wrong(why));
                }
                Column::Heading(heading) => {
                    by_heading = true;
                    (0..rows.fields)
                        .find(|index| {
                            rows.field(*index).trim_ascii().eq_ignore_ascii_case(heading.as_bytes())
                        })
                        .ok_or_else(|| rows.wrong(format!("no column is called {heading}")))?
                }
            };
            columns.places[*meaning as usize] = Some(index);
        }
        let is_text = |meaning| {
            columns.get(meaning).is_some_and(|at| {
                let field = rows.field(at).trim_ascii();
                time_ns(field, 1).is_none() && decimal(field).is_none()
            })
        };
        // A first row with words where numbers must be is one of headings.
        let looks_so = [Meaning::Time, Meaning::Bytes, Meaning::Page].into_iter().any(is_text);
        columns.row_waits = !(by_heading || spec.has_headings.unwrap_or(looks_so));
        Ok(columns)
    }
}

struct CsvRows {
    rows: Rows,
    columns: Columns,
    /// Name of the only segment, where the file names none.
    lone_name: Vec<u8>,
    pages: ObjectPages,
    deletes: u64,
    empty: u64,
}

impl CsvRows {
    /// What the present row says; `None` if nothing, which is counted.
    fn row(&mut self, places: &mut Places) -> Result<Option<Touch>, ImportError> {
        let (rows, columns) = (&self.rows, &mut self.columns);
        if rows.fields != columns.count {
            let why = format!("{} fields under {} headings", rows.fields, columns.count);
            return Err(rows.wrong(why));
        }
        let (first_page, last_page) = if let Some(at) = columns.get(Meaning::Object) {
            let bytes =
                columns.get(Meaning::Bytes).map_or(Ok(1), |at| rows.number(at, "the size"))?;
            if bytes == 0 {
                self.empty += 1;
                return Ok(None);
            }
            let field = rows.field(at).trim_ascii();
            let number = decimal(field);
            let object = match (
                number,
                *columns.objects_are_numbers.get_or_insert(number.is_some()),
            ) {
                (Some(number), true) => number,
                (None, true) => {
                    let why = "the object is no decimal number of 64 bits, as earlier ones are: \
                               add obj-id-is-num=false to --columns";
                    return Err(rows.wrong(why));
                }
                (_, false) => page_of_name(field),
            };
            self.pages.of(object, bytes).map_err(|why| rows.wrong(why))?
        } else {
            let at = columns.get(Meaning::Page).expect("one of both is always there");
            let page = rows.number(at, "the page")?;
            (page, page)
        };
        let time_ns = match (columns.get(Meaning::Time), columns.time_unit_ns) {
            (None, _) => 0,
            (Some(at), None) => rows.number(at, "the time")?,
            (Some(at), Some(unit_ns)) => time_ns(rows.field(at).trim_ascii(), unit_ns)
                .ok_or_else(|| rows.wrong("the time is no decimal number"))?,
        };
        let process =
            columns.get(Meaning::Process).map_or(Ok(0), |at| rows.number32(at, "the process"))?;
        let kind =
            match columns.get(Meaning::Write).map_or(Ok(Some(Kind::Read)), |at| rows.kind(at))? {
                Some(kind) => kind,
                None => {
                    self.deletes += 1;
                    return Ok(None);
                }
            };
        let segment = if let Some(at) = columns.get(Meaning::Segment) {
            let segment = rows.number32(at, "the segment")?;
            places.numbered(segment, b"").map(|()| segment)
        } else if let Some(at) = columns.get(Meaning::File) {
            places.named(rows.field(at), SegmentKind::File)
        } else {
            places.numbered(0, &self.lone_name).map(|()| 0)
        };
        let segment = segment.map_err(|why| rows.wrong(why))?;
        Ok(Some(Touch { time_ns, process, segment, first_page, last_page, kind }))
    }
}

impl Parser for CsvRows {
    fn next(&mut self, places: &mut Places) -> Result<Option<Touch>, ImportError> {
        loop {
            if !std::mem::take(&mut self.columns.row_waits) && !self.rows.next()? {
                return Ok(None);
            }
            let touch = self.row(places)?;
            if touch.is_some() {
                return Ok(touch);
            }
        }
    }

    fn dropped(&self) -> Vec<Dropped> {
        vec![
            Dropped { what: "blank lines", count: self.rows.blank },
            Dropped { what: "deletes", count: self.deletes },
            Dropped { what: "requests of 0 bytes", count: self.empty },
        ]
    }
}

/// Rows of fields, in buffers that do not grow.
struct Rows {
    input: Input,
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
    fn new(input: Input, delimiter: u8) -> Self {
        // With `\n` alone, the parser's count of lines is exact at the end of a row; the `\r`
        // before it is taken off the last field.
        let parser = csv_core::ReaderBuilder::new()
            .terminator(Terminator::Any(b'\n'))
            .delimiter(delimiter)
            .build();
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
                    let place = Place::Line(self.line);
                    return Err(ImportError::Read { format: NAME, place, source });
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
        decimal(self.field(index).trim_ascii())
            .ok_or_else(|| self.wrong(format!("{what} is no decimal number of 64 bits")))
    }

    fn number32(&self, index: usize, what: &str) -> Result<u32, ImportError> {
        u32::try_from(self.number(index, what)?)
            .map_err(|_| self.wrong(format!("{what} is no decimal number of 32 bits")))
    }

    /// Whether an operation reads or writes; `None` if it deletes.
    fn kind(&self, index: usize) -> Result<Option<Kind>, ImportError> {
        let field = self.field(index).trim_ascii();
        let is = |names: &[&str]| names.iter().any(|n| field.eq_ignore_ascii_case(n.as_bytes()));
        if is(&["", "0", "R", "1", "W"]) {
            return Ok(Some(Kind::of_write(matches!(field, b"1" | b"W" | b"w"))));
        }
        if is(&["read", "get", "gets", "false"]) {
            return Ok(Some(Kind::Read));
        }
        let writes = ["write", "set", "add", "replace", "cas", "append", "prepend", "incr", "decr"];
        if is(&writes) || is(&["put", "true"]) {
            return Ok(Some(Kind::Write));
        }
        if is(&["delete"]) {
            return Ok(None);
        }
        Err(self.wrong(
            "whether it is a write is neither 1, true, W, set nor 0, false, R, get, nor delete",
        ))
    }
}
