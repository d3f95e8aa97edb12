//! The kernel's page-cache events, as text: `perf script`, `perf trace`, or ftrace's `trace` file.
//!
//! The events are those of `include/trace/events/filemap.h`. A file is a segment called
//! `dev:inode`, in the notation of `stat` (`254:0:1234`, inode in decimal).
//!
//! | event | says | becomes |
//! | --- | --- | --- |
//! | `mm_filemap_get_pages` | `read` and friends look pages up | a reference to each page |
//! | `mm_filemap_fault` | a page that is not mapped is touched | a reference to the page |
//! | `mm_filemap_map_pages` | a fault maps pages around it | a reference to each page |
//! | `mm_filemap_add_to_page_cache` | a folio is fetched | a major fault of each page, or a reference |
//!
//! Kernels before 6.12 have the last alone. Where a trace has accesses, a page that is added is
//! looked up right after, and would count twice; so additions are references only in a trace whose
//! start has no access, or if [`PageCacheEvents`] says so. Other events are dropped and counted.

use super::compressed::{self, Input};
use super::fields::{decimal, hexadecimal, time_ns, words};
use super::stream::{ByLine, Kind, LineFormat, Places, Stream, Touch, Why};
use super::{Confidence, Fit, ImportOptions, Importer, Sample};
use crate::error::{ImportError, Place};
use crate::record::SegmentKind;
use crate::source::{Dropped, Source};

const NAME: &str = "page-cache";
/// How far it is looked for accesses.
const LOOK_AHEAD_BYTES: usize = 1 << 20;
/// The largest folio that there could be.
const FOLIO_ORDER_MAX: u64 = 20;
/// The kernel's page, where an event counts in pages or in powers of two of them. (Events do not
/// say; kernels with larger pages are read as if they had these.)
const KERNEL_PAGE_BYTES: u64 = 4096;
/// Bits of the minor number in the kernel's `dev_t`.
const MINOR_BITS: u32 = 20;

/// Which page-cache events are references.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageCacheEvents {
    /// Look-ups and faults; additions are major faults.
    Accesses,
    /// Additions; look-ups and faults are dropped.
    Additions,
}

/// The kernel's page-cache events.
pub(super) struct PageCache;

impl Importer for PageCache {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "the kernel's mm_filemap_* events, from perf script, perf trace or ftrace"
    }

    fn recognises(&self, sample: &Sample<'_>) -> Confidence {
        sample.fits(|line| match event(line) {
            Some(event) if parse(&event).is_ok() => Fit::Yes,
            Some(_) => Fit::No,
            None => Fit::Neutral,
        })
    }

    fn open(&self, input: Input, options: &ImportOptions) -> Result<Box<dyn Source>, ImportError> {
        let header = options.header(NAME)?;
        let (start, input) = compressed::peek(input, LOOK_AHEAD_BYTES)
            .map_err(|source| ImportError::Read { format: NAME, place: Place::Line(0), source })?;
        let events = options.events.unwrap_or_else(|| {
            let is_access = |line| event(line).is_some_and(|event| event.is_access());
            match start.split(|&byte| byte == b'\n').any(is_access) {
                true => PageCacheEvents::Accesses,
                false => PageCacheEvents::Additions,
            }
        });
        let format = EventLines { events, page_bytes: header.page_bytes, other: 0, passed: 0 };
        Ok(Box::new(Stream::new(header, ByLine::new(input, format))))
    }
}

/// A line with an event, cut up.
struct Event<'a> {
    /// What comes before the event's name.
    before: &'a [u8],
    /// Name, without `mm_filemap_`.
    name: &'a [u8],
    /// What comes behind it.
    fields: &'a [u8],
}

impl Event<'_> {
    fn is_access(&self) -> bool {
        matches!(self.name, b"get_pages" | b"map_pages" | b"fault")
    }
}

/// The page-cache event of a line, if it has one.
fn event(line: &[u8]) -> Option<Event<'_>> {
    let at = memchr::memmem::find(line, b"mm_filemap_")?;
    let rest = &line[at + b"mm_filemap_".len()..];
    let end = rest.iter().position(|byte| !byte.is_ascii_lowercase() && *byte != b'_')?;
    let before = &line[..at];
    let before = before.strip_suffix(b"filemap:").unwrap_or(before);
    Some(Event { before, name: &rest[..end], fields: &rest[end + 1..] })
}

/// What an event says.
#[derive(Default)]
struct Said<'a> {
    time_ns: u64,
    pid: u32,
    program: &'a [u8],
    major: u64,
    minor: u64,
    inode: u64,
    /// Bytes or pages, as `is_pages` says; both inclusive.
    first: u64,
    last: u64,
    is_pages: bool,
    /// Pages, as a power of two.
    order: u64,
}

fn parse<'a>(event: &Event<'a>) -> Result<Said<'a>, &'static str> {
    let mut said = Said::default();
    before(event.before, &mut said)?;
    if memchr::memmem::find(event.fields, b"s_dev: ").is_some() {
        perf_trace_fields(event.fields, &mut said)?;
    } else {
        printed_fields(event.fields, &mut said)?;
    }
    if said.order > FOLIO_ORDER_MAX {
        return Err("no folio has such an order");
    }
    Ok(said)
}

/// Who and when. `program pid [cpu] time:`, `program-pid [cpu] flags time:` or `time program/tid`.
fn before<'a>(text: &'a [u8], said: &mut Said<'a>) -> Result<(), &'static str> {
    const EXPECTED: &str = "expected program, process id and time before the event";
    let text = text.trim_ascii();
    let seconds = |word| time_ns(word, 1_000_000_000);
    let last_at = text.iter().rposition(u8::is_ascii_whitespace).map_or(0, |at| at + 1);
    let who = if let Some(time) = text[last_at..].strip_suffix(b":") {
        said.time_ns = seconds(time).ok_or("the time is no number of seconds")?;
        let before = text[..last_at].trim_ascii();
        // The processor, and what ftrace says of interrupts behind it, may be missing.
        match before.iter().rposition(|&byte| byte == b'[') {
            Some(at) if before[at..].contains(&b']') => before[..at].trim_ascii(),
            _ => before,
        }
    } else {
        let first = words(text).next().ok_or(EXPECTED)?;
        said.time_ns = time_ns(first, 1_000_000).ok_or("the time is no number of milliseconds")?;
        let rest = text[first.len()..].trim_ascii();
        // The column with how long a system call took.
        match memchr::memmem::rfind(rest, b"): ") {
            Some(at) => rest[at + 3..].trim_ascii(),
            None => rest,
        }
    };
    // The thread group that ftrace may show.
    let who = match who.strip_suffix(b")") {
        Some(rest) => {
            let at = rest.iter().rposition(|&byte| byte == b'(').ok_or(EXPECTED)?;
            rest[..at].trim_ascii()
        }
        None => who,
    };
    let digits = who.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (program, pid) = who.split_at(who.len() - digits);
    said.pid = decimal(pid).and_then(|pid| u32::try_from(pid).ok()).ok_or(EXPECTED)?;
    let program = match program.strip_suffix(b"/") {
        // `pid/tid`, or `program/tid`.
        Some(rest) => match rest.iter().rposition(u8::is_ascii_whitespace) {
            Some(at) if decimal(&rest[at + 1..]).is_some() => &rest[..at],
            _ => rest,
        },
        None => program.strip_suffix(b"-").unwrap_or(program),
    };
    said.program = program.trim_ascii();
    Ok(())
}

/// `dev 8:1 ino 4fa7d page=0x… pfn=… ofs=4096 order=0` or `dev=8:1 ino=4fa7d ofs=0-4095`.
fn printed_fields(text: &[u8], said: &mut Said<'_>) -> Result<(), &'static str> {
    const EXPECTED: &str = "expected the fields dev, ino and ofs";
    let (mut device, mut inode, mut offset) = (None, None, None);
    let mut key = &b""[..];
    for word in words(text) {
        let (name, value) = match memchr::memchr(b'=', word) {
            Some(at) => (&word[..at], &word[at + 1..]),
            None => (key, word),
        };
        key = word;
        match name {
            b"dev" => device = Some(value),
            b"ino" => inode = Some(value),
            b"ofs" => offset = Some(value),
            b"order" => said.order = decimal(value).ok_or("the order is no decimal number")?,
            _ => {}
        }
    }
    let (device, inode) = (device.ok_or(EXPECTED)?, inode.ok_or(EXPECTED)?);
    let offset = offset.ok_or(EXPECTED)?;
    let colon = memchr::memchr(b':', device).ok_or("dev is no major:minor")?;
    let number = |field| decimal(field).ok_or("dev is no major:minor");
    (said.major, said.minor) = (number(&device[..colon])?, number(&device[colon + 1..])?);
    said.inode = hexadecimal(inode).ok_or("ino is no hexadecimal number")?;
    let number = |field| decimal(field).ok_or("ofs is no decimal number of bytes, or two");
    (said.first, said.last) = match memchr::memchr(b'-', offset) {
        Some(at) => (number(&offset[..at])?, number(&offset[at + 1..])?),
        None => (number(offset)?, number(offset)?),
    };
    Ok(())
}

/// `(i_ino: 247026, s_dev: 266338304, index: 10, last_index: 12)`; fields that are 0 are left out.
fn perf_trace_fields(text: &[u8], said: &mut Said<'_>) -> Result<(), &'static str> {
    said.is_pages = true;
    let mut last = None;
    let text = text.trim_ascii();
    let text = text.strip_suffix(b")").ok_or("expected a ) at the end of the line")?;
    for field in text.split(|&byte| byte == b',') {
        let field = field.trim_ascii();
        let Some(at) = memchr::memmem::find(field, b": ") else { continue };
        let (name, value) = (&field[..at], &field[at + 2..]);
        let number = || {
            decimal(value)
                .or_else(|| value.starts_with(b"0x").then(|| hexadecimal(value)).flatten())
                .ok_or("a field is no number of 64 bits")
        };
        match name {
            b"i_ino" => said.inode = number()?,
            b"s_dev" => {
                let device = number()?;
                said.major = device >> MINOR_BITS;
                said.minor = device & ((1 << MINOR_BITS) - 1);
            }
            b"index" => said.first = number()?,
            b"last_index" => last = Some(number()?),
            b"order" => said.order = number()?,
            _ => {}
        }
    }
    said.last = last.unwrap_or(said.first).max(said.first);
    Ok(())
}

struct EventLines {
    events: PageCacheEvents,
    page_bytes: u32,
    other: u64,
    passed: u64,
}

impl LineFormat for EventLines {
    fn name(&self) -> &'static str {
        NAME
    }

    fn line(&mut self, line: &[u8], places: &mut Places) -> Result<Option<Touch>, Why> {
        let Some(event) = event(line) else {
            self.other += 1;
            return Ok(None);
        };
        let kind = match (event.is_access(), self.events) {
            (true, PageCacheEvents::Accesses) => Kind::Read,
            (false, _) if event.name != b"add_to_page_cache" => {
                self.other += 1;
                return Ok(None);
            }
            (false, PageCacheEvents::Additions) => Kind::Read,
            (false, PageCacheEvents::Accesses) => Kind::Fetch,
            (true, PageCacheEvents::Additions) => {
                self.passed += 1;
                return Ok(None);
            }
        };
        let said = parse(&event)?;
        let (mut first, mut last) = (said.first, said.last);
        if said.is_pages {
            let bytes = |page: u64| page.checked_mul(KERNEL_PAGE_BYTES);
            first = bytes(first).ok_or("no file has such an index")?;
            last = bytes(last).ok_or("no file has such an index")?;
        }
        last = last
            .checked_add((KERNEL_PAGE_BYTES << said.order) - KERNEL_PAGE_BYTES)
            .filter(|last| first <= *last)
            .ok_or("ofs ends before it begins")?;
        let name = format!("{}:{}:{}", said.major, said.minor, said.inode);
        let segment = places.named(name.as_bytes(), SegmentKind::File)?;
        let process = places.process(said.program, said.pid)?;
        let page_bytes = u64::from(self.page_bytes);
        Ok(Some(Touch {
            time_ns: said.time_ns,
            process,
            segment,
            first_page: first / page_bytes,
            last_page: last / page_bytes,
            kind,
        }))
    }

    fn dropped(&self) -> Vec<Dropped> {
        vec![
            Dropped {
                what: "look-ups and faults, as additions are references",
                count: self.passed,
            },
            Dropped { what: "lines without such an event", count: self.other },
        ]
    }
}
