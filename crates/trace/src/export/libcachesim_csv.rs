//! Comma-separated values as libCacheSim's csv reader takes them, with
//! `-t "time-col=1,obj-id-col=2,obj-size-col=3,op-col=4,obj-id-is-num=true,has-header=true"`.

use std::io::Write;

use super::block_numbers::BlockNumbers;
use super::lines::{export_lines, put_decimal};
use super::{ExportSummary, Exporter};
use crate::error::ExportError;
use crate::source::Source;

const NAME: &str = "libcachesim-csv";
const SECOND_NS: u64 = 1_000_000_000;

/// Comma-separated values for libCacheSim.
pub(super) struct LibCacheSimCsv;

impl Exporter for LibCacheSimCsv {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "comma-separated values for libCacheSim: time (s), object, size, operation"
    }

    fn export(
        &self,
        source: &mut dyn Source,
        output: &mut dyn Write,
    ) -> Result<ExportSummary, ExportError> {
        let page_bytes = source.header().page_bytes;
        let mut blocks = BlockNumbers::default();
        export_lines(NAME, source, output, b"time,object,size,op\n", |text, reference| {
            let object = blocks.of(NAME, reference)?;
            for number in [reference.time_ns / SECOND_NS, object, page_bytes.into()] {
                put_decimal(text, number);
                text.push(b',');
            }
            text.extend_from_slice(if reference.write { b"write\n" } else { b"read\n" });
            Ok(())
        })
    }
}
