//! What the exporters that write a line per reference share.

use std::io::Write;

use super::ExportSummary;
use crate::error::ExportError;
use crate::record::{Record, Reference};
use crate::source::{BATCH_RECORDS, Source};

/// Text is written in pieces of this size.
const PIECE_BYTES: usize = 256 << 10;
/// More than any line that an exporter writes.
const LINE_BYTES: usize = 128;

/// Writes a line for every reference of `source`, as `line` puts it. What came before an error of
/// either is written before the error is given.
pub(super) fn export_lines(
    format: &'static str,
    source: &mut dyn Source,
    output: &mut dyn Write,
    first_line: &[u8],
    mut line: impl FnMut(&mut Vec<u8>, Reference) -> Result<(), ExportError>,
) -> Result<ExportSummary, ExportError> {
    let failed = |source| ExportError::Write { format, source };
    let mut summary = ExportSummary::default();
    let mut text = Vec::with_capacity(PIECE_BYTES + LINE_BYTES);
    text.extend_from_slice(first_line);
    let mut batch = Vec::with_capacity(BATCH_RECORDS);
    let ended = loop {
        let more = source.next_batch(&mut batch);
        let mut refused = None;
        for record in batch.drain(..) {
            let Record::Reference(reference) = record else {
                summary.dropped += 1;
                continue;
            };
            if let Err(error) = line(&mut text, reference) {
                refused = Some(error);
                break;
            }
            summary.references += 1;
            if text.len() >= PIECE_BYTES {
                output.write_all(&text).map_err(failed)?;
                text.clear();
            }
        }
        match (refused, more) {
            (Some(error), _) => break Err(error),
            (None, Err(error)) => break Err(error.into()),
            (None, Ok(false)) => break Ok(()),
            (None, Ok(true)) => {}
        }
    };
    output.write_all(&text).and_then(|()| output.flush()).map_err(failed)?;
    ended.map(|()| summary)
}

/// Appends a decimal number.
pub(super) fn put_decimal(text: &mut Vec<u8>, number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    text.extend_from_slice(&digits[at..]);
}
