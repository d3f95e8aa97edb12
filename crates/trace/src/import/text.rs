//! One block per line: a decimal number, and perhaps `R` or `W`.
//!
//! This is the form of the traces that came with LIRS and UBM. A line with `*` separates parts of
//! such a trace and is dropped, as are blank lines; both are counted. The block becomes a page of
//! segment 0 under the same number, so that distances stay what they were.

use std::io::Read;

use super::{Confidence, ImportOptions, Importer, Sample, bytes_of_pages};
use crate::error::{ImportError, excerpt};
use crate::lines::{LINE_BYTES_MAX, LineError, Lines};
use crate::record::{Header, Record, Reference, Resize, Segment, SegmentKind};
use crate::source::{BATCH_RECORDS, Dropped, Source};

const NAME: &str = "text";

/// One block per line.
pub(super) struct Text;

impl Importer for Text {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "one decimal block number per line, optionally followed by R or W; `*` separates parts"
    }

    fn recognises(&self, sample: &Sample<'_>) -> Confidence {
        let mut lines = sample.lines().map(parse).filter(|line| !matches!(line, Ok(Line::Blank)));
        match lines.next() {
            Some(Ok(_)) if lines.all(|line| line.is_ok()) => Confidence::Likely,
            // One bad line is a bad line, not another format.
            Some(Ok(_)) => Confidence::Possible,
            _ => Confidence::No,
        }
    }

    fn open(
        &self,
        input: Box<dyn Read + Send>,
        options: &ImportOptions,
    ) -> Result<Box<dyn Source>, ImportError> {
        let segment = Segment {
            segment: 0,
            kind: SegmentKind::Other,
            bytes: 0,
            name: options.segment_name(),
        };
        Ok(Box::new(TextSource {
            header: options.header(NAME)?.with("clock", "none"),
            lines: Lines::new(input),
            segment: Some(segment),
            last_page: None,
            separators: 0,
            blank: 0,
            done: false,
        }))
    }
}

struct TextSource {
    header: Header,
    lines: Lines<Box<dyn Read + Send>>,
    /// The segment, until it was given out.
    segment: Option<Segment>,
    /// The highest page number seen.
    last_page: Option<u64>,
    separators: u64,
    blank: u64,
    done: bool,
}

/// What a line can be.
enum Line {
    Block { page: u64, write: bool },
    Separator,
    Blank,
}

#[inline]
fn parse(line: &[u8]) -> Result<Line, &'static str> {
    let line = line.trim_ascii();
    let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 {
        return match line {
            b"" => Ok(Line::Blank),
            b"*" => Ok(Line::Separator),
            _ => Err("expected a decimal block number, `*` or nothing"),
        };
    }
    let mut page: u64 = 0;
    for digit in &line[..digits] {
        page = page
            .checked_mul(10)
            .and_then(|page| page.checked_add(u64::from(digit - b'0')))
            .ok_or("the block number does not fit in 64 bits")?;
    }
    let rest = &line[digits..];
    if rest.is_empty() {
        return Ok(Line::Block { page, write: false });
    }
    let write = match rest.trim_ascii_start() {
        b"R" | b"r" => false,
        b"W" | b"w" => true,
        _ => return Err("after the block number, expected nothing, R or W"),
    };
    if !rest[0].is_ascii_whitespace() {
        return Err("expected a space between the block number and R or W");
    }
    Ok(Line::Block { page, write })
}

impl TextSource {
    fn fill(&mut self, batch: &mut Vec<Record>) -> Result<bool, ImportError> {
        batch.extend(self.segment.take().map(Record::Segment));
        // Room is left for the segment and its size.
        for _ in 0..BATCH_RECORDS - 2 {
            let parsed = match self.lines.next() {
                Ok(Some(line)) => parse(line).map_err(|why| (excerpt(line), why.to_owned())),
                Ok(None) => {
                    let page_bytes = self.header.page_bytes;
                    batch.extend(self.last_page.map(|last| {
                        let bytes = bytes_of_pages(last, page_bytes);
                        Record::Resize(Resize { segment: 0, bytes })
                    }));
                    return Ok(false);
                }
                Err(LineError::Read(source)) => {
                    let line = self.lines.number();
                    return Err(ImportError::Read { format: NAME, line, source });
                }
                Err(LineError::TooLong) => {
                    let why =
                        format!("longer than the {LINE_BYTES_MAX} bytes that a line may have");
                    Err((excerpt(self.lines.ahead()), why))
                }
            };
            match parsed {
                Ok(Line::Block { page, write }) => {
                    self.last_page = self.last_page.max(Some(page));
                    batch.push(Record::Reference(Reference {
                        time_ns: 0,
                        process: 0,
                        segment: 0,
                        page,
                        write,
                    }));
                }
                Ok(Line::Separator) => self.separators += 1,
                Ok(Line::Blank) => self.blank += 1,
                Err((content, why)) => {
                    let line = self.lines.number();
                    return Err(ImportError::Line { format: NAME, line, content, why });
                }
            }
        }
        Ok(true)
    }
}

impl Source for TextSource {
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
        vec![
            Dropped { what: "separators", count: self.separators },
            Dropped { what: "blank lines", count: self.blank },
        ]
    }
}
