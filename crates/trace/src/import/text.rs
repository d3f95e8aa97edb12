//! One block per line: a decimal number, and perhaps `R` or `W`.
//!
//! This is the form of the traces that came with LIRS and UBM. A line with `*` separates parts of
//! such a trace and is dropped, as are blank lines; both are counted. The block becomes a page of
//! segment 0 under the same number, so that distances stay what they were.

use super::compressed::Input;
use super::stream::{ByLine, Kind, LineFormat, Places, Stream, Touch, Why};
use super::{Confidence, Fit, ImportOptions, Importer, Sample};
use crate::error::ImportError;
use crate::source::{Dropped, Source};

/// One block per line.
pub(super) const TEXT: Text = Text("text");
/// The same under the name that people look for.
pub(super) const LIRS: Text = Text("lirs");

/// One block per line.
pub(super) struct Text(&'static str);

impl Importer for Text {
    fn name(&self) -> &'static str {
        self.0
    }

    fn summary(&self) -> &'static str {
        match self.0 {
            "lirs" => "the traces that came with LIRS and UBM: the same as text",
            _ => {
                "one decimal block number per line, perhaps followed by R or W; `*` separates parts"
            }
        }
    }

    fn recognises(&self, sample: &Sample<'_>) -> Confidence {
        sample.fits(|line| match parse(line) {
            Ok(Line::Blank) => Fit::Neutral,
            Ok(_) => Fit::Yes,
            Err(_) => Fit::No,
        })
    }

    fn open(&self, input: Input, options: &ImportOptions) -> Result<Box<dyn Source>, ImportError> {
        let format = TextLines {
            name: self.0,
            segment_name: options.segment_name(),
            separators: 0,
            blank: 0,
        };
        let header = options.header(self.0)?.with("clock", "none");
        Ok(Box::new(Stream::new(header, ByLine::new(input, format))))
    }
}

struct TextLines {
    name: &'static str,
    segment_name: Vec<u8>,
    separators: u64,
    blank: u64,
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
    let (number, rest) = line.split_at(digits);
    let page = super::fields::decimal(number).ok_or("the block number does not fit in 64 bits")?;
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

impl LineFormat for TextLines {
    fn name(&self) -> &'static str {
        self.name
    }

    #[inline]
    fn line(&mut self, line: &[u8], places: &mut Places) -> Result<Option<Touch>, Why> {
        match parse(line)? {
            Line::Block { page, write } => {
                places.numbered(0, &self.segment_name)?;
                return Ok(Some(Touch { kind: Kind::of_write(write), ..Touch::page(page) }));
            }
            Line::Separator => self.separators += 1,
            Line::Blank => self.blank += 1,
        }
        Ok(None)
    }

    fn dropped(&self) -> Vec<Dropped> {
        vec![
            Dropped { what: "separators", count: self.separators },
            Dropped { what: "blank lines", count: self.blank },
        ]
    }
}
