//! What can go wrong, named by its place and with a remedy.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// An error of Pagekeeper's own trace format. Everything before the place that it names was read
/// and may be trusted.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read.
    #[error(
        "cannot read the trace at byte {offset} (block {block}): {source}; the records before it \
         are intact, try again or copy the file from a healthy disk"
    )]
    Read {
        /// Where the frame that could not be read starts.
        offset: u64,
        /// Number of its block; the header is block 0.
        block: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The file is in another format.
    #[error(
        "not a Pagekeeper trace: at byte 0 it has \"{start}\" instead of the magic; if it is in \
         another format, name that with --from-format"
    )]
    NotATrace {
        /// The first bytes, escaped.
        start: String,
    },
    /// The file is in a version that this build does not know.
    #[error(
        "the trace is in version {found} of the format, and this build reads {}{supported}: {}",
        if *supported > 1 { "versions 1 to " } else { "version " },
        if found > supported { "use a newer pagekeeper" } else { "no pagekeeper has written it" }
    )]
    NewerVersion {
        /// Version of the file.
        found: u16,
        /// Newest version that can be read.
        supported: u16,
    },
    /// The file ends within a block.
    #[error(
        "the trace is cut: it ends at byte {end}, within {what} of block {block}, which starts at \
         byte {offset}; the records before it are intact, `pagekeeper import --salvage` \
         writes them to a whole file"
    )]
    Truncated {
        /// Where the frame starts that is not whole.
        offset: u64,
        /// Number of its block; the header is block 0.
        block: u64,
        /// Where the file ends.
        end: u64,
        /// What was being read.
        what: &'static str,
    },
    /// The file ends after a whole block, but without the end mark.
    #[error(
        "the trace was not finished: it ends at byte {offset}, after block {block}, without its \
         index; the records are intact as far as they go, `pagekeeper import --salvage` \
         writes them to a whole file"
    )]
    Unfinished {
        /// Where the file ends.
        offset: u64,
        /// Number of the last block.
        block: u64,
    },
    /// The bytes are not what was written.
    #[error(
        "the trace is damaged at byte {offset} (block {block}): {what}; the records before it are \
         intact, `pagekeeper import --salvage` writes them to a whole file"
    )]
    Corrupt {
        /// Where the damaged frame starts.
        offset: u64,
        /// Number of its block; the header is block 0.
        block: u64,
        /// How the damage showed.
        what: &'static str,
    },
    /// The file could not be written.
    #[error(
        "cannot write the trace at byte {offset}: {source}; `pagekeeper import --salvage` \
         reads what was written before, make room and record again"
    )]
    Write {
        /// Where the frame starts that could not be written.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// An earlier write failed, so that nothing may follow.
    #[error(
        "an earlier write to this trace failed at byte {offset}, and nothing can be written after \
         it: start a new trace"
    )]
    WriterFailed {
        /// Where the frame starts that could not be written.
        offset: u64,
    },
    /// Something does not fit in the format.
    #[error("{what} of {found} does not fit in a trace, which takes at most {limit}: shorten it")]
    TooLong {
        /// What it is.
        what: &'static str,
        /// Its size.
        found: usize,
        /// Largest size allowed.
        limit: usize,
    },
    /// A page of no bytes.
    #[error("a trace needs the size of its pages, and 0 bytes is none: give it with --page-bytes")]
    NoPageBytes,
}

impl TraceError {
    /// What is wrong, without what the command line offers to do about it: with that each text ends, behind a
    /// semicolon.
    pub fn without_remedy(&self) -> String {
        let mut words = self.to_string();
        words.truncate(words.rfind("; ").unwrap_or(words.len()));
        words
    }

    /// Whether the file merely ends early, as it does when its recorder died, and shows no other
    /// damage.
    pub fn is_incomplete(&self) -> bool {
        matches!(self, Self::Truncated { .. } | Self::Unfinished { .. })
    }

    /// Whether the file is damaged before its first block of records ends.
    pub fn is_before_records(&self) -> bool {
        match self {
            Self::Truncated { block, .. } | Self::Corrupt { block, .. } => *block <= 1,
            Self::Unfinished { block, .. } => *block == 0,
            _ => false,
        }
    }
}

/// How far a trace was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// So many lines.
    Line(u64),
    /// So many bytes (decompressed).
    Byte(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Byte(byte) => write!(f, "byte {byte}"),
        }
    }
}

/// An error of reading a trace in any format.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("cannot read the {format} trace after {place}: {source}")]
    Read {
        /// Name of the format.
        format: &'static str,
        /// How far it was read.
        place: Place,
        /// What the system said.
        source: io::Error,
    },
    /// A line is not what the format allows.
    #[error(
        "line {line} of the {format} trace is \"{content}\": {why}; mend it, or keep what is before \
         it with `pagekeeper import --salvage`"
    )]
    Line {
        /// Name of the format.
        format: &'static str,
        /// Number of the line, from 1.
        line: u64,
        /// The line, escaped, and shortened if it is long.
        content: String,
        /// What is wrong with it, and what was expected.
        why: String,
    },
    /// A record of a binary format is not what the format allows.
    #[error(
        "record {record} of the {format} trace, at byte {offset}: {why}; fetch the file again, or \
         keep what is before it with `pagekeeper import --salvage`"
    )]
    Record {
        /// Name of the format.
        format: &'static str,
        /// Number of the record, from 1.
        record: u64,
        /// Where it starts, in bytes from the start of the trace (decompressed).
        offset: u64,
        /// What is wrong with it, and what was expected.
        why: String,
    },
    /// The options do not go with the format.
    #[error("{0}")]
    Options(String),
    /// A trace in our own format is damaged.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// No such format.
    #[error("no trace format is called \"{name}\": the formats are {known}")]
    UnknownFormat {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// There is nothing in the file.
    #[error("{name} is empty: it holds no trace")]
    Empty {
        /// The file.
        name: String,
    },
    /// The format could not be told from the file.
    #[error(
        "cannot tell the format of {name}, which starts with \"{start}\": name it with \
         --from-format; the \
         formats are {known}"
    )]
    NotRecognised {
        /// The file.
        name: String,
        /// Its first bytes, escaped.
        start: String,
        /// What formats there are.
        known: String,
    },
}

/// An error of writing a trace in any format.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The trace that is exported is damaged; everything before the damage was exported.
    #[error(transparent)]
    Source(#[from] ImportError),
    /// The output cannot be written.
    #[error("cannot write the {format} trace: {source}")]
    Write {
        /// Name of the format.
        format: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The temporary file that a format needs cannot be written or read.
    #[error(
        "cannot keep a temporary copy for the {format} trace, {bytes} bytes so far: {source}; point \
         TMPDIR to a directory with more room"
    )]
    Temporary {
        /// Name of the format.
        format: &'static str,
        /// How many bytes were kept.
        bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The output in our own format cannot be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// No such format.
    #[error("no export format is called \"{name}\": the formats are {known}")]
    UnknownFormat {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A page has no number in a format that knows no segments.
    #[error(
        "page {page} of segment {segment} has no block number in the {format} format, which has \
         room for pages below {} of segments below {} (or for any pages of segment 0 alone): export \
         as csv",
        1u64 << crate::SEGMENT_SHIFT, 1u64 << (64 - crate::SEGMENT_SHIFT)
    )]
    NoBlockNumber {
        /// Name of the format.
        format: &'static str,
        /// The segment.
        segment: u32,
        /// The page in it.
        page: u64,
    },
}

/// Escapes bytes for a message, and shortens them.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    const SHOWN_BYTES: usize = 60;
    if bytes.len() <= SHOWN_BYTES {
        return bytes.escape_ascii().to_string();
    }
    format!("{}…", bytes[..SHOWN_BYTES].escape_ascii())
}
