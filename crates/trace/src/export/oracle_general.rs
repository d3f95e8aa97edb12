//! libCacheSim's oracleGeneral; the importer of the same name has the layout.
//!
//! When a page is touched next is known at the trace's end only. So requests go to a temporary
//! file first (24 bytes each, in `TMPDIR`); they are then read from its end, piece by piece, while
//! a map remembers where each page was met last; and at last from its front, to the output. Memory
//! grows with the number of distinct pages (16 bytes each, and room in the map), not with the
//! trace's length.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::block_numbers::BlockNumbers;
use super::{ExportSummary, Exporter};
use crate::error::ExportError;
use crate::import::oracle_general::{NAME, Request};
use crate::record::Record;
use crate::source::{BATCH_RECORDS, Source};

const SECOND_NS: u64 = 1_000_000_000;
/// No next access.
const NEVER: i64 = -1;
/// Requests that are in memory at once.
const PIECE_REQUESTS: usize = 16_384;

/// libCacheSim's oracleGeneral.
pub(super) struct OracleGeneral;

impl Exporter for OracleGeneral {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "libCacheSim's binary traces, with next accesses; keeps a copy in TMPDIR meanwhile"
    }

    fn export(
        &self,
        source: &mut dyn Source,
        output: &mut dyn Write,
    ) -> Result<ExportSummary, ExportError> {
        let mut spool = Spool::new()?;
        let mut summary = ExportSummary::default();
        let ended = fill(&mut spool, source, &mut summary);
        spool.flush()?;
        let mut last_met: HashMap<u64, i64> = HashMap::new();
        spool.rewrite_from_end(|number, request| {
            let next = last_met.insert(request.object.get(), number);
            request.next = I64::new(next.unwrap_or(NEVER));
        })?;
        drop(last_met);
        spool.copy_to(output)?;
        ended.map(|()| summary)
    }
}

fn fill(
    spool: &mut Spool,
    source: &mut dyn Source,
    summary: &mut ExportSummary,
) -> Result<(), ExportError> {
    let bytes = U32::new(source.header().page_bytes);
    let mut blocks = BlockNumbers::default();
    let mut batch = Vec::with_capacity(BATCH_RECORDS);
    let mut begin_s = None;
    loop {
        let more = source.next_batch(&mut batch);
        for record in batch.drain(..) {
            let Record::Reference(reference) = record else {
                summary.dropped += 1;
                continue;
            };
            let time_s = reference.time_ns / SECOND_NS;
            // Seconds are kept as they are if they fit, and else count from the first.
            let begin_s = *begin_s.get_or_insert(match u32::try_from(time_s) {
                Ok(_) => 0,
                Err(_) => time_s,
            });
            let since = time_s.saturating_sub(begin_s);
            spool.push(Request {
                time_s: U32::new(u32::try_from(since).unwrap_or(u32::MAX)),
                object: U64::new(blocks.of(NAME, reference)?),
                bytes,
                next: I64::new(NEVER),
            })?;
            summary.references += 1;
            summary.unmarked_writes += u64::from(reference.write);
        }
        if !more? {
            return Ok(());
        }
    }
}

/// Requests in a temporary file, which nobody else sees.
struct Spool {
    file: File,
    piece: Vec<Request>,
    /// Requests in the file.
    count: u64,
}

impl Spool {
    fn new() -> Result<Self, ExportError> {
        let failed = |source| ExportError::Temporary { format: NAME, bytes: 0, source };
        let file = tempfile::tempfile().map_err(failed)?;
        Ok(Self { file, piece: Vec::with_capacity(PIECE_REQUESTS), count: 0 })
    }

    fn failed(&self, source: io::Error) -> ExportError {
        let bytes = self.count * size_of::<Request>() as u64;
        ExportError::Temporary { format: NAME, bytes, source }
    }

    fn push(&mut self, request: Request) -> Result<(), ExportError> {
        self.piece.push(request);
        if self.piece.len() == PIECE_REQUESTS { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ExportError> {
        let written = self.file.write_all(self.piece.as_bytes());
        written.map_err(|error| self.failed(error))?;
        self.count += self.piece.len() as u64;
        self.piece.clear();
        Ok(())
    }

    /// Shows every request and its number, from 1, from the last to the first.
    fn rewrite_from_end(
        &mut self,
        mut visit: impl FnMut(i64, &mut Request),
    ) -> Result<(), ExportError> {
        let mut end = self.count;
        while end > 0 {
            let start = (end - 1) / PIECE_REQUESTS as u64 * PIECE_REQUESTS as u64;
            self.load(start, end).map_err(|error| self.failed(error))?;
            for (index, request) in self.piece.iter_mut().enumerate().rev() {
                visit((start + index as u64 + 1) as i64, request);
            }
            let written =
                self.seek(start).and_then(|()| self.file.write_all(self.piece.as_bytes()));
            written.map_err(|error| self.failed(error))?;
            end = start;
        }
        Ok(())
    }

    fn copy_to(&mut self, output: &mut dyn Write) -> Result<(), ExportError> {
        let mut start = 0;
        while start < self.count {
            let end = self.count.min(start + PIECE_REQUESTS as u64);
            self.load(start, end).map_err(|error| self.failed(error))?;
            output
                .write_all(self.piece.as_bytes())
                .map_err(|source| ExportError::Write { format: NAME, source })?;
            start = end;
        }
        output.flush().map_err(|source| ExportError::Write { format: NAME, source })
    }

    fn load(&mut self, start: u64, end: u64) -> io::Result<()> {
        self.seek(start)?;
        self.piece.resize(
            (end - start) as usize,
            Request::read_from_bytes(&[0; size_of::<Request>()]).expect("as many bytes"),
        );
        self.file.read_exact(self.piece.as_mut_bytes())
    }

    fn seek(&mut self, request: u64) -> io::Result<()> {
        let offset = request * size_of::<Request>() as u64;
        self.file.seek(SeekFrom::Start(offset)).map(|_| ())
    }
}
