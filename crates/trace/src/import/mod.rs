//! The registry of formats that can be read. A new format is one file with an [`Importer`], and
//! one line in [`importers`].

mod csv;
mod pagekeeper;
mod text;

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::Path;

use crate::error::{ImportError, TraceError, excerpt};
use crate::record::Header;
use crate::source::Source;

/// How many of a file's first bytes are looked at to tell its format.
const SAMPLE_BYTES: usize = 4096;
/// Files are read in pieces of this size.
const BUFFER_BYTES: usize = 256 << 10;
/// Page size of a trace that does not tell.
const PAGE_BYTES_DEFAULT: u32 = 4096;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A format that can be read.
pub trait Importer: Sync {
    /// The name that `--as` knows it by.
    fn name(&self) -> &'static str;

    /// What it is, in a line.
    fn summary(&self) -> &'static str;

    /// How surely the sample is in this format.
    fn recognises(&self, sample: &Sample<'_>) -> Confidence;

    /// Starts reading. Streams: memory does not grow with the length of the input.
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
}

impl ImportOptions {
    /// A header for a trace in `format`, which tells neither page size nor when it was made.
    fn header(&self, format: &str) -> Result<Header, ImportError> {
        match self.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT) {
            0 => Err(TraceError::NoPageBytes.into()),
            page_bytes => Ok(Header::new(page_bytes).with("source_format", format)),
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
    &[&pagekeeper::Pagekeeper, &csv::Csv, &text::Text]
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

/// Opens a trace in any format, which is recognised or named in the options. Traces that zstd
/// compressed as a whole are read as they are.
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
    let mut name = name.map(Path::to_owned);
    let (mut start, mut input) = peek(Box::new(input)).map_err(failed)?;
    // Our own format starts with a skippable frame, which has another magic.
    if start.starts_with(&ZSTD_MAGIC) {
        let decoder = zstd::stream::read::Decoder::new(input).map_err(failed)?;
        (start, input) = peek(Box::new(decoder)).map_err(failed)?;
        if name.as_ref().is_some_and(|name| name.extension().is_some_and(|e| e == "zst")) {
            name.as_mut().map(|name| name.set_extension(""));
        }
    }
    let importer = match &options.format {
        Some(format) => importer(format)?,
        None => {
            let sample =
                Sample { start: &start, whole: start.len() < SAMPLE_BYTES, name: name.as_deref() };
            detect(&sample).ok_or_else(|| ImportError::NotRecognised {
                name: name
                    .as_ref()
                    .map_or("the trace".to_owned(), |name| name.display().to_string()),
                start: excerpt(&start[..start.len().min(24)]),
                known: known(),
            })?
        }
    };
    importer.open(input, &options)
}

/// Takes a sample, and gives back an input that still has it.
fn peek(mut input: Box<dyn Read + Send>) -> io::Result<(Vec<u8>, Box<dyn Read + Send>)> {
    let mut start = Vec::with_capacity(SAMPLE_BYTES);
    (&mut input).take(SAMPLE_BYTES as u64).read_to_end(&mut start)?;
    let whole = Cursor::new(start.clone()).chain(input);
    Ok((start, Box::new(io::BufReader::with_capacity(BUFFER_BYTES, whole))))
}

fn known() -> String {
    importers().iter().map(|importer| importer.name()).collect::<Vec<_>>().join(", ")
}

/// The size that holds pages up to `last`.
fn bytes_of_pages(last: u64, page_bytes: u32) -> u64 {
    last.saturating_add(1).saturating_mul(u64::from(page_bytes))
}
