//! Our own format.

use std::io::Write;

use super::{ExportSummary, Exporter};
use crate::error::ExportError;
use crate::record::Record;
use crate::source::{BATCH_RECORDS, Source};
use crate::writer::TraceWriter;

/// Our own format, which holds everything. Rewriting a damaged trace keeps all before the damage.
pub(super) struct Pagekeeper;

impl Exporter for Pagekeeper {
    fn name(&self) -> &'static str {
        "pagekeeper"
    }

    fn summary(&self) -> &'static str {
        "Pagekeeper's own format: everything that can be recorded, compressed and checksummed"
    }

    fn export(
        &self,
        source: &mut dyn Source,
        output: &mut dyn Write,
    ) -> Result<ExportSummary, ExportError> {
        let mut writer = TraceWriter::new(output, source.header().clone())?;
        let mut summary = ExportSummary::default();
        let mut batch = Vec::with_capacity(BATCH_RECORDS);
        let ended = loop {
            let more = source.next_batch(&mut batch);
            for record in batch.drain(..) {
                match record {
                    Record::Reference(_) => summary.references += 1,
                    _ => summary.others += 1,
                }
                writer.record(&record)?;
            }
            match more {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error.into()),
            }
        };
        writer.finish()?;
        ended.map(|()| summary)
    }
}
