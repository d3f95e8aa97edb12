//! One block per line; the importer `text` reads both forms.

use std::io::Write;

use super::block_numbers::BlockNumbers;
use super::lines::{export_lines, put_decimal};
use super::{ExportSummary, Exporter};
use crate::error::ExportError;
use crate::source::Source;

/// One block per line, and nothing else.
pub(super) const TEXT: Text = Text { marks_writes: false };
/// One block per line, with `R` or `W` behind it.
pub(super) const TEXT_RW: Text = Text { marks_writes: true };

/// One block per line.
pub(super) struct Text {
    marks_writes: bool,
}

impl Exporter for Text {
    fn name(&self) -> &'static str {
        if self.marks_writes { "text-rw" } else { "text" }
    }

    fn summary(&self) -> &'static str {
        if self.marks_writes {
            "one decimal block number per line, followed by R or W"
        } else {
            "one decimal block number per line"
        }
    }

    fn export(
        &self,
        source: &mut dyn Source,
        output: &mut dyn Write,
    ) -> Result<ExportSummary, ExportError> {
        let format = self.name();
        let mut unmarked_writes = 0;
        let mut blocks = BlockNumbers::default();
        let summary = export_lines(format, source, output, b"", |text, reference| {
            put_decimal(text, blocks.of(format, reference)?);
            text.extend_from_slice(match (self.marks_writes, reference.write) {
                (false, _) => b"\n",
                (true, false) => b" R\n",
                (true, true) => b" W\n",
            });
            unmarked_writes += u64::from(reference.write && !self.marks_writes);
            Ok(())
        })?;
        Ok(ExportSummary { unmarked_writes, ..summary })
    }
}
