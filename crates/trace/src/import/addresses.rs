//! Memory addresses, a line each, which become the pages that they lie in.
//!
//! `lackey` is what `valgrind --tool=lackey --trace-mem=yes` writes: `I`, `L`, `S` or `M` (modify,
//! which counts as a write), address, size. `addresses` is any list with one hexadecimal address a
//! line, alone or with what was done to it: `0x1000`, `R 0x1000`, `0x1000 W`, `2 1000` (Dinero:
//! 0 reads, 1 writes, 2 fetches an instruction), `0x400500: W 0x1000` (Pin, where the instruction
//! comes first and is passed over).

use super::compressed::Input;
use super::fields::{decimal, hexadecimal};
use super::stream::{ByLine, Kind, LineFormat, Places, Stream, Touch, Why};
use super::{Confidence, Fit, ImportOptions, Importer, Sample};
use crate::error::ImportError;
use crate::source::{Dropped, Source};

/// What Valgrind's lackey writes.
pub(super) const LACKEY: Addresses = Addresses(Dialect::Lackey);
/// Any list of addresses.
pub(super) const ADDRESSES: Addresses = Addresses(Dialect::Plain);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Lackey,
    Plain,
}

/// Addresses, a line each.
pub(super) struct Addresses(Dialect);

/// What a line can be.
enum Line {
    Access {
        start: u64,
        bytes: u64,
        write: bool,
    },
    /// Something else that belongs there.
    Other,
}

impl Importer for Addresses {
    fn name(&self) -> &'static str {
        match self.0 {
            Dialect::Lackey => "lackey",
            Dialect::Plain => "addresses",
        }
    }

    fn summary(&self) -> &'static str {
        match self.0 {
            Dialect::Lackey => "what valgrind --tool=lackey --trace-mem=yes writes",
            Dialect::Plain => "one hexadecimal address per line, perhaps with R or W (Dinero, Pin)",
        }
    }

    fn recognises(&self, sample: &Sample<'_>) -> Confidence {
        let dialect = self.0;
        sample.fits(|line| match dialect.line(line) {
            Ok(Line::Other) => Fit::Neutral,
            // Without its sign, a hexadecimal number may as well be a decimal one.
            Ok(Line::Access { .. })
                if dialect == Dialect::Plain && memchr::memmem::find(line, b"0x").is_none() =>
            {
                Fit::No
            }
            Ok(Line::Access { .. }) => Fit::Yes,
            Err(_) => Fit::No,
        })
    }

    fn open(&self, input: Input, options: &ImportOptions) -> Result<Box<dyn Source>, ImportError> {
        let header = options.header(self.name())?.with("clock", "none");
        let format = AddressLines {
            name: self.name(),
            dialect: self.0,
            page_bytes: header.page_bytes,
            segment_name: options.segment_name(),
            other: 0,
        };
        Ok(Box::new(Stream::new(header, ByLine::new(input, format))))
    }
}

impl Dialect {
    fn line(self, line: &[u8]) -> Result<Line, &'static str> {
        match self {
            Self::Lackey => lackey(line),
            Self::Plain => plain(line),
        }
    }
}

fn lackey(line: &[u8]) -> Result<Line, &'static str> {
    const EXPECTED: &str = "expected I, L, S or M, an address and its size, as ` L 1ffeffe7e8,8`";
    let line = line.trim_ascii();
    // Messages of Valgrind and of its tools, and the marks of --trace-superblocks.
    if line.is_empty() || [b"==", b"--", b"**", b"SB"].iter().any(|mark| line.starts_with(*mark)) {
        return Ok(Line::Other);
    }
    let (kind, rest) = line.split_first().ok_or(EXPECTED)?;
    let write = match kind {
        b'I' | b'L' => false,
        b'S' | b'M' => true,
        _ => return Err(EXPECTED),
    };
    let place = rest.strip_prefix(b" ").ok_or(EXPECTED)?.trim_ascii_start();
    let comma = memchr::memchr(b',', place).ok_or(EXPECTED)?;
    let start = hexadecimal(&place[..comma]).ok_or(EXPECTED)?;
    let bytes = decimal(&place[comma + 1..]).ok_or(EXPECTED)?;
    Ok(Line::Access { start, bytes, write })
}

fn plain(line: &[u8]) -> Result<Line, &'static str> {
    const EXPECTED: &str =
        "expected a hexadecimal address, perhaps with R or W (or 0, 1, 2) before or behind it";
    let line = line.trim_ascii();
    if line.is_empty() || line.starts_with(b"#") {
        return Ok(Line::Other);
    }
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace() || *byte == b',')
        .filter(|word| !word.is_empty());
    let mut first = words.next().ok_or(EXPECTED)?;
    if first.ends_with(b":") {
        first = words.next().ok_or(EXPECTED)?;
    }
    let second = words.next();
    let (address, write) = match (access(first), second.map(|word| (word, access(word)))) {
        // `0 1000` is of Dinero, and `1000 0` is not.
        (Some(write), Some((address, _))) => (address, write),
        (None, Some((_, Some(write)))) => (first, write),
        (None, None) => (first, false),
        (Some(_), None) if hexadecimal(first).is_some() => (first, false),
        _ => return Err(EXPECTED),
    };
    let start = hexadecimal(address).ok_or(EXPECTED)?;
    Ok(Line::Access { start, bytes: 1, write })
}

/// Whether a word says that something is written; `None` if it says nothing of that.
fn access(word: &[u8]) -> Option<bool> {
    match word {
        b"0" | b"2" | b"R" | b"r" | b"L" | b"l" | b"I" | b"i" => Some(false),
        b"1" | b"W" | b"w" | b"S" | b"s" | b"M" | b"m" => Some(true),
        _ => None,
    }
}

struct AddressLines {
    name: &'static str,
    dialect: Dialect,
    page_bytes: u32,
    segment_name: Vec<u8>,
    other: u64,
}

impl LineFormat for AddressLines {
    fn name(&self) -> &'static str {
        self.name
    }

    fn line(&mut self, line: &[u8], places: &mut Places) -> Result<Option<Touch>, Why> {
        let Line::Access { start, bytes, write } = self.dialect.line(line)? else {
            self.other += 1;
            return Ok(None);
        };
        let Some(touch) = Touch::bytes(start, bytes, self.page_bytes)? else {
            return Err("an access has at least 1 byte".into());
        };
        places.numbered(0, &self.segment_name)?;
        Ok(Some(Touch { kind: Kind::of_write(write), ..touch }))
    }

    fn dropped(&self) -> Vec<Dropped> {
        vec![Dropped { what: "blank lines, comments and messages", count: self.other }]
    }
}
