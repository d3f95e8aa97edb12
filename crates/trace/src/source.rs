//! A trace in any format, as a stream of records.

use std::io::Read;

use crate::error::ImportError;
use crate::reader::TraceReader;
use crate::record::{Header, Record, Reference};

/// Most records that [`Source::next_batch`] adds in one call.
pub const BATCH_RECORDS: usize = 4096;

/// A trace in any format, read from its front in bounded memory.
pub trait Source: Send {
    /// What is known about the trace as a whole.
    fn header(&self) -> &Header;

    /// Adds up to [`BATCH_RECORDS`] more records to `batch`, which it does not clear. `false` says
    /// that the trace is at its end (the same call may still have added records).
    ///
    /// # Errors
    /// Once, at the first damage, after the records before it were added: they are good. Later
    /// calls give `Ok(false)`.
    fn next_batch(&mut self, batch: &mut Vec<Record>) -> Result<bool, ImportError>;

    /// What was read and has no place in a trace, such as separators and blank lines, so far.
    fn dropped(&self) -> Vec<Dropped> {
        Vec::new()
    }
}

/// A count of things that an importer dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dropped {
    /// What they are, in the plural: `blank lines`.
    pub what: &'static str,
    /// How many of them.
    pub count: u64,
}

/// Calls `visit` with every record that is left, and gives their number.
///
/// # Errors
/// As [`Source::next_batch`]; everything before the damage was visited.
pub fn for_each_record(
    source: &mut dyn Source,
    mut visit: impl FnMut(Record),
) -> Result<u64, ImportError> {
    let mut batch = Vec::with_capacity(BATCH_RECORDS);
    let mut count = 0;
    loop {
        let more = source.next_batch(&mut batch);
        count += batch.len() as u64;
        batch.drain(..).for_each(&mut visit);
        if !more? {
            return Ok(count);
        }
    }
}

/// Calls `visit` with every reference that is left, and gives their number.
///
/// # Errors
/// As [`for_each_record`].
pub fn for_each_reference(
    source: &mut dyn Source,
    mut visit: impl FnMut(Reference),
) -> Result<u64, ImportError> {
    let mut count = 0;
    for_each_record(source, |record| {
        if let Record::Reference(reference) = record {
            visit(reference);
            count += 1;
        }
    })?;
    Ok(count)
}

impl<R: Read + Send> Source for TraceReader<R> {
    fn header(&self) -> &Header {
        TraceReader::header(self)
    }

    fn next_batch(&mut self, batch: &mut Vec<Record>) -> Result<bool, ImportError> {
        for _ in 0..BATCH_RECORDS {
            match self.next_record()? {
                Some(record) => batch.push(record),
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}
