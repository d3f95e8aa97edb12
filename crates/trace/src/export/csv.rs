//! Comma-separated values, one line per reference; the importer of the same name reads them.

use std::io::Write;

use super::lines::{export_lines, put_decimal};
use super::{ExportSummary, Exporter};
use crate::error::ExportError;
use crate::source::Source;

const NAME: &str = "csv";

/// Comma-separated values.
pub(super) struct Csv;

impl Exporter for Csv {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "comma-separated values, a line per reference: time (ns), process, segment, page, write"
    }

    fn export(
        &self,
        source: &mut dyn Source,
        output: &mut dyn Write,
    ) -> Result<ExportSummary, ExportError> {
        let headings = b"time,process,segment,page,write\n";
        export_lines(NAME, source, output, headings, |text, reference| {
            for number in [
                reference.time_ns,
                reference.process.into(),
                reference.segment.into(),
                reference.page,
            ] {
                put_decimal(text, number);
                text.push(b',');
            }
            text.extend_from_slice(if reference.write { b"1\n" } else { b"0\n" });
            Ok(())
        })
    }
}
