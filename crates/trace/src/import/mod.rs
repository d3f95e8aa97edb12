//! The registry of formats that can be read. A new format is one file with an [`Importer`], and
//! one line in [`importers`].

mod addresses;
mod blocks;
mod compressed;
mod csv;
mod fields;
mod ids;
mod objects;
pub(crate) mod oracle_general;
mod page_cache;
mod pagekeeper;
mod stream;
mod text;
mod vscsi;

use std::fs::File;
use std::io::Read;
use std::path::Path;

pub use self::csv::{ColumnSpec, ColumnSpecError};
pub use self::objects::Objects;
pub use self::page_cache::PageCacheEvents;
use crate::error::{ImportError, TraceError, excerpt};
use crate::record::Header;
use crate::source::Source;

/// How many of a file's first bytes are looked at to tell its format.
const SAMPLE_BYTES: usize = 4096;
/// Page size of a trace that does not tell.
const PAGE_BYTES_DEFAULT: u32 = 4096;

/// A format that can be read.
pub trait Importer: Sync {
    /// The name that `--from-format` knows it by.
    fn name(&self) -> &'static str;

    /// What it is, in a line.
    fn summary(&self) -> &'static str;

    /// How surely the sample is in this format.
    fn recognises(&self, sample: &Sample<'_>) -> Confidence;

    /// Starts reading. Streams: memory does not grow with the length of the input, but may with
    /// how many segments, processes or (of objects that become pages) objects there are.
    ///
    /// # Errors
    /// If the input's start is not what the format allows.
    fn open(
        &self,
        input: Box<dyn Read + Send>,
        options: &ImportOptions,
    ) -> Result<Box<dyn Source>, ImportError>;
}

/// The start of a file, for recognising its format.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The first bytes of the file, 4 KiB at most.
    pub start: &'a [u8],
    /// Whether that is the whole file.
    pub whole: bool,
    /// The file's name, if it has one, without what says that it is compressed.
    pub name: Option<&'a Path>,
}

impl<'a> Sample<'a> {
    /// The lines of the sample that are whole.
    pub fn lines(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let end = if self.whole {
            self.start.len()
        } else {
            memchr::memrchr(b'\n', self.start).map_or(0, |at| at + 1)
        };
        self.start[..end].split(|&byte| byte == b'\n')
    }

    /// How surely every line is as the format wants it.
    fn fits(&self, fit: impl Fn(&[u8]) -> Fit) -> Confidence {
        let mut lines = self.lines().map(fit).filter(|fit| *fit != Fit::Neutral);
        match lines.next() {
            Some(Fit::Yes) if lines.all(|fit| fit == Fit::Yes) => Confidence::Likely,
            // One bad line is a bad line, not another format.
            Some(Fit::Yes) => Confidence::Possible,
            _ => Confidence::No,
        }
    }

    /// Whether the file's name has this in it, as a word between dots.
    fn is_named(&self, word: &str) -> bool {
        let name = self.name.and_then(Path::file_name).and_then(|name| name.to_str());
        name.is_some_and(|name| name.split('.').skip(1).any(|part| part.eq_ignore_ascii_case(word)))
    }
}

/// How a line goes with a format.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    Yes,
    No,
    /// It says nothing about the format.
    Neutral,
}

/// How surely a sample is in a format. The surest wins; of equals, the first in the registry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Confidence {
    /// It is not.
    No,
    /// It could be, with lines that are wrong.
    Possible,
    /// All that was seen fits.
    Likely,
    /// It says so itself.
    Certain,
}

/// What the user says about a trace that is imported.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ImportOptions {
    /// Name of its format; recognised by itself when `None`.
    pub format: Option<String>,
    /// Bytes in a page (or block), for formats that do not tell; 4096 when `None`.
    pub page_bytes: Option<u32>,
    /// Name for the segment of formats that know of one only. [`open`] fills in the file's name.
    pub segment_name: Option<Vec<u8>>,
    /// What the columns of a csv mean, where its headings do not tell. Names the format `csv`, if
    /// none is named.
    pub columns: Option<ColumnSpec>,
    /// How many pages an object is, for traces of objects.
    pub objects: Objects,
    /// Bytes in a block, for `arc`; 512 when `None`, and a block is a page if `page_bytes` is
    /// `None` too.
    pub block_bytes: Option<u32>,
    /// Which events are references, for `page-cache`; by what the start of the trace has when
    /// `None`.
    pub events: Option<PageCacheEvents>,
}

impl ImportOptions {
    /// A header for a trace in `format`, which tells neither page size nor when it was made.
    fn header(&self, format: &str) -> Result<Header, ImportError> {
        match self.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT) {
            0 => Err(TraceError::NoPageBytes.into()),
            page_bytes => Ok(Header::new(page_bytes).with("source_format", format)),
        }
    }

    /// Options that a format has no use for are a mistake.
    fn check(&self, importer: &dyn Importer) -> Result<(), ImportError> {
        let name = importer.name();
        for (given, option, formats) in [
            (self.columns.is_some(), "--columns", &["csv"][..]),
            (self.objects != Objects::default(), "--objects", &["csv", "oracleGeneral"]),
            (self.block_bytes.is_some(), "--block-bytes", &["arc"]),
            (self.events.is_some(), "--events", &["page-cache"]),
        ] {
            if given && !formats.contains(&name) {
                let text = format!(
                    "{option} is for traces in the format {}, and this one is {name}",
                    formats.join(" or ")
                );
                return Err(ImportError::Options(text));
            }
        }
        match self.block_bytes {
            Some(0) => Err(ImportError::Options("a block has at least 1 byte".to_owned())),
            _ => Ok(()),
        }
    }

    fn segment_name(&self) -> Vec<u8> {
        let mut name = self.segment_name.clone().unwrap_or_default();
        name.truncate(crate::NAME_BYTES_MAX);
        name
    }
}

/// All formats that can be read.
pub fn importers() -> &'static [&'static dyn Importer] {
    &[
        &pagekeeper::Pagekeeper,
        &csv::Csv,
        &text::TEXT,
        &text::LIRS,
        &ids::Ids,
        &oracle_general::OracleGeneral,
        &blocks::ARC,
        &blocks::MSR,
        &vscsi::CloudPhysics,
        &addresses::LACKEY,
        &addresses::ADDRESSES,
        &page_cache::PageCache,
    ]
}

/// The format of this name.
///
/// # Errors
/// If there is none; the message lists those that are.
pub fn importer(name: &str) -> Result<&'static dyn Importer, ImportError> {
    importers()
        .iter()
        .copied()
        .find(|importer| importer.name() == name)
        .ok_or_else(|| ImportError::UnknownFormat { name: name.to_owned(), known: known() })
}

/// The format that the sample is in, if one can be told.
pub fn detect(sample: &Sample<'_>) -> Option<&'static dyn Importer> {
    let mut best: (Confidence, Option<&'static dyn Importer>) = (Confidence::No, None);
    for importer in importers() {
        let confidence = importer.recognises(sample);
        if confidence > best.0 {
            best = (confidence, Some(*importer));
        }
    }
    best.1
}

/// Opens a trace in any format, which is recognised or named in the options. Traces that zstd or
/// gzip compressed as a whole are read as they are.
///
/// # Errors
/// If the file cannot be opened, its format is unknown, or its start is damaged.
pub fn open(
    path: impl AsRef<Path>,
    options: &ImportOptions,
) -> Result<Box<dyn Source>, ImportError> {
    let path = path.as_ref();
    let file =
        File::open(path).map_err(|source| ImportError::Open { path: path.to_owned(), source })?;
    open_reader(file, Some(path), options)
}

/// As [`open`], for anything that can be read. `name` helps to recognise the format.
///
/// # Errors
/// As [`open`].
pub fn open_reader(
    input: impl Read + Send + 'static,
    name: Option<&Path>,
    options: &ImportOptions,
) -> Result<Box<dyn Source>, ImportError> {
    let mut options = options.clone();
    if options.segment_name.is_none() {
        options.segment_name = name.map(|name| name.as_os_str().as_encoded_bytes().to_vec());
    }
    let failed = |source| ImportError::Open {
        path: name.unwrap_or(Path::new("the trace")).to_owned(),
        source,
    };
    let (start, input) = compressed::peek_inside(Box::new(input), SAMPLE_BYTES).map_err(failed)?;
    let importer = match &options.format {
        Some(format) => importer(format)?,
        // What has a zero byte is no text, whatever was said of its columns.
        None if options.columns.is_some() && memchr::memchr(0, &start).is_none() => &csv::Csv,
        None => {
            let sample = Sample {
                start: &start,
                whole: start.len() < SAMPLE_BYTES,
                name: name.map(compressed::name_inside),
            };
            let name = || name.map_or("the trace".to_owned(), |name| name.display().to_string());
            if start.is_empty() {
                return Err(ImportError::Empty { name: name() });
            }
            detect(&sample).ok_or_else(|| ImportError::NotRecognised {
                name: name(),
                start: excerpt(&start[..start.len().min(24)]),
                known: known(),
            })?
        }
    };
    options.check(importer)?;
    importer.open(input, &options)
}

fn known() -> String {
    importers().iter().map(|importer| importer.name()).collect::<Vec<_>>().join(", ")
}

/// The size that holds pages up to `last`.
fn bytes_of_pages(last: u64, page_bytes: u32) -> u64 {
    last.saturating_add(1).saturating_mul(u64::from(page_bytes))
}
