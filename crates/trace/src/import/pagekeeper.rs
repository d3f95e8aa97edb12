//! Our own format.

use super::{Confidence, ImportOptions, Importer, Sample};
use crate::error::ImportError;
use crate::frame::START_MAGIC;
use crate::reader::TraceReader;
use crate::source::Source;

/// Our own format; see `docs/trace-format.md`.
pub(super) struct Pagekeeper;

impl Importer for Pagekeeper {
    fn name(&self) -> &'static str {
        "pagekeeper"
    }

    fn summary(&self) -> &'static str {
        "Pagekeeper's own format: everything that can be recorded, compressed and checksummed"
    }

    fn recognises(&self, sample: &Sample<'_>) -> Confidence {
        // A file cut within the magic is told from its first frame's number alone.
        let same = sample.start.len().min(START_MAGIC.len());
        if same >= 4 && sample.start[..same] == START_MAGIC[..same] {
            Confidence::Certain
        } else {
            Confidence::No
        }
    }

    fn open(
        &self,
        input: super::compressed::Input,
        _options: &ImportOptions,
    ) -> Result<Box<dyn Source>, ImportError> {
        Ok(Box::new(TraceReader::new(input)?))
    }
}
