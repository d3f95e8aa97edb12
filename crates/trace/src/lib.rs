//! Reference strings: the trace format, its importers and exporters.
//!
//! A trace is a [`Header`] and a stream of [`Record`]s. [`TraceWriter`] and [`TraceReader`] speak
//! Pagekeeper's own format, which is laid out byte by byte in `docs/trace-format.md`; [`open`]
//! reads that and every other format in the registry ([`importers`]) as one kind of [`Source`];
//! [`exporters`] go the other way.
//!
//! Everything here reads files that strangers made: lengths are checked before memory is taken,
//! nothing of a block is used before its checksum was verified, and damage is an error that names
//! its place, after everything before it was returned.
#![deny(unsafe_code)]

mod catalog;
mod columns;
mod error;
mod export;
mod frame;
mod import;
mod index;
mod lines;
mod reader;
mod record;
mod source;
mod varint;
mod writer;

pub use catalog::Catalog;
pub use error::{ExportError, ImportError, Place, TraceError};
pub use export::{ExportSummary, Exporter, SEGMENT_SHIFT, exporter, exporters};
pub use frame::{
    ATTRIBUTES_MAX, BLOCK_RECORDS_MAX, CONTENT_BYTES_MAX, FORMAT_VERSION, NAME_BYTES_MAX,
};
pub use import::{
    ColumnSpec, ColumnSpecError, Confidence, ImportOptions, Importer, Objects, PageCacheEvents,
    Sample, detect, importer, importers, open, open_reader,
};
pub use index::{BlockInfo, TraceIndex};
pub use reader::TraceReader;
pub use record::{
    CpuTime, Digest, Extent, ExtentEvent, Fault, FaultKind, Header, Input, Policy, Process, Record,
    Reference, Resize, Sampling, Segment, SegmentKind,
};
pub use source::{BATCH_RECORDS, Dropped, Source, for_each_record, for_each_reference};
pub use writer::{TraceWriter, WriterOptions};

/// The customary file name extension of a trace in Pagekeeper's own format.
pub const EXTENSION: &str = "pkt";
