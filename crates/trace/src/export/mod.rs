//! The registry of formats that can be written. A new format is one file with an [`Exporter`], and
//! one line in [`exporters`].

mod block_numbers;
mod csv;
mod libcachesim_csv;
mod lines;
mod oracle_general;
mod pagekeeper;
mod text;

use std::io::Write;

use crate::error::ExportError;
use crate::source::Source;

/// In formats that know no segments, page `p` of segment `s` is block `(s << SEGMENT_SHIFT) + p`:
/// segment 0 keeps its numbers, and distances within a segment stay what they are. A trace of
/// segment 0 alone may have pages of any number.
pub const SEGMENT_SHIFT: u32 = 40;

/// A format that can be written.
pub trait Exporter: Sync {
    /// The name that users call it by.
    fn name(&self) -> &'static str;

    /// What it is, in a line.
    fn summary(&self) -> &'static str;

    /// Writes the rest of `source`. Streams: memory does not grow with its length (where a format
    /// needs to know the future, it says what that takes). Writes in large pieces, so `output` needs
    /// no buffer.
    ///
    /// # Errors
    /// If `output` cannot be written, or the format cannot hold a record. If `source` is damaged,
    /// a whole output with everything before the damage is written first.
    fn export(
        &self,
        source: &mut dyn Source,
        output: &mut dyn Write,
    ) -> Result<ExportSummary, ExportError>;
}

/// What an export did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExportSummary {
    /// References written.
    pub references: u64,
    /// Other records written.
    pub others: u64,
    /// Records that the format has no place for.
    pub dropped: u64,
    /// References that were writes, and are written without saying so.
    pub unmarked_writes: u64,
}

/// All formats that can be written.
pub fn exporters() -> &'static [&'static dyn Exporter] {
    &[
        &pagekeeper::Pagekeeper,
        &csv::Csv,
        &text::TEXT,
        &text::TEXT_RW,
        &oracle_general::OracleGeneral,
        &libcachesim_csv::LibCacheSimCsv,
    ]
}

/// The format of this name.
///
/// # Errors
/// If there is none; the message lists those that are.
pub fn exporter(name: &str) -> Result<&'static dyn Exporter, ExportError> {
    exporters().iter().copied().find(|exporter| exporter.name() == name).ok_or_else(|| {
        let known = exporters().iter().map(|exporter| exporter.name()).collect::<Vec<_>>();
        ExportError::UnknownFormat { name: name.to_owned(), known: known.join(", ") }
    })
}
