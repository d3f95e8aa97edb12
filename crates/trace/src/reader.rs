//! Reading a trace.

use std::io::{Read, Seek, SeekFrom};

use crate::columns::Decoder;
use crate::error::TraceError;
use crate::frame::{
    ATTRIBUTES_MAX, Frames, KIND_ANCILLARY, KIND_HEADER, KIND_INDEX, KIND_RECORDS, NAME_BYTES_MAX,
    Next,
};
use crate::index::{BlockInfo, decode_entries};
use crate::record::{Header, Record, Reference};
use crate::varint::{Cursor, Malformed};

/// Reads a trace from its front, in bounded memory, as an iterator over its records.
///
/// Damage is exactly one `Err`, which names its place, after every record before it; then the
/// iterator ends. A trace whose recorder died ends in an error that
/// [is incomplete](TraceError::is_incomplete).
pub struct TraceReader<R> {
    frames: Frames<R>,
    header: Header,
    content: Vec<u8>,
    decoder: Decoder,
    /// Where the block that is being decoded starts, and its number.
    block: (u64, u64),
    seen: Seen,
    done: bool,
}

/// What was seen, to compare with what the end mark says.
#[derive(Default)]
struct Seen {
    blocks: u64,
    records: u64,
    /// Where the index starts, once it was reached.
    index_offset: Option<u64>,
    /// Entries of the index, their records, and the offset of the last.
    entries: u64,
    entry_records: u64,
    last_entry_offset: u64,
    /// The reader jumped, so that it cannot have seen everything.
    jumped: bool,
}

impl<R: Read> TraceReader<R> {
    /// Reads a trace's header. `input` is read in whole blocks and small headers: give it a
    /// buffer if small reads are slow.
    ///
    /// # Errors
    /// If `input` is no trace of a known version, or is damaged before its first record.
    pub fn new(input: R) -> Result<Self, TraceError> {
        let mut frames = Frames::new(input);
        frames.start()?;
        let offset = frames.offset;
        let block = match frames.next()? {
            Next::Block(block) if block.kind == KIND_HEADER => block,
            Next::Nothing => {
                let what = "the header";
                return Err(TraceError::Truncated { offset, block: 0, end: offset, what });
            }
            _ => return Err(frames.corrupt("the header is missing")),
        };
        let mut content = Vec::new();
        frames.content(&block, &mut content)?;
        let header = decode_header(&content).map_err(|what| TraceError::Corrupt {
            offset,
            block: 0,
            what,
        })?;
        content.clear();
        Ok(Self {
            frames,
            header,
            content,
            decoder: Decoder::new(),
            block: (offset, 0),
            seen: Seen::default(),
            done: false,
        })
    }

    /// What is known about the trace as a whole.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// Once, at the first damage, which ends the trace.
    #[inline]
    pub fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            if self.done {
                return Ok(None);
            }
            match self.decoder.next(&self.content) {
                Ok(Some(record)) => return Ok(Some(record)),
                Ok(None) => {
                    if let Err(error) = self.next_block() {
                        self.done = true;
                        return Err(error);
                    }
                }
                Err(what) => {
                    self.done = true;
                    let (offset, block) = self.block;
                    return Err(TraceError::Corrupt { offset, block, what });
                }
            }
        }
    }

    /// Calls `visit` with every reference that is left, and gives their number.
    ///
    /// # Errors
    /// As [`next_record`](Self::next_record); every reference before the damage was visited.
    pub fn for_each_reference(
        &mut self,
        mut visit: impl FnMut(Reference),
    ) -> Result<u64, TraceError> {
        let mut count = 0;
        while let Some(record) = self.next_record()? {
            if let Record::Reference(reference) = record {
                visit(reference);
                count += 1;
            }
        }
        Ok(count)
    }

    /// Loads the next block of records, or notes that the trace is done.
    fn next_block(&mut self) -> Result<(), TraceError> {
        let offset = self.frames.offset;
        let block = match self.frames.next()? {
            Next::Block(block) => block,
            Next::Nothing => {
                return Err(TraceError::Unfinished { offset, block: self.frames.sequence - 1 });
            }
            Next::End(end) => {
                let seen = &self.seen;
                let index_offset = seen.index_offset.unwrap_or(offset);
                let agrees = end.index_offset.get() == index_offset
                    && end.blocks.get() == seen.entries
                    && end.records.get() == seen.entry_records
                    && (seen.jumped
                        || (seen.entries, seen.entry_records) == (seen.blocks, seen.records));
                if !agrees {
                    return Err(self.frames.corrupt("the end mark tells of other blocks"));
                }
                self.frames.expect_end()?;
                self.done = true;
                return Ok(());
            }
        };
        self.block = (offset, self.frames.sequence);
        let corrupt = |what| TraceError::Corrupt { offset, block: block.sequence.get(), what };
        match block.kind {
            KIND_RECORDS if self.seen.index_offset.is_none() => {
                self.frames.content(&block, &mut self.content)?;
                self.decoder.start(&self.content, block.records.get()).map_err(corrupt)?;
                self.seen.blocks += 1;
                self.seen.records += u64::from(block.records.get());
            }
            KIND_INDEX => {
                self.seen.index_offset.get_or_insert(offset);
                let mut content = std::mem::take(&mut self.content);
                let read = self.frames.content(&block, &mut content);
                let seen = &mut self.seen;
                let entries = read.and_then(|()| {
                    let (count, previous) = (block.records.get(), seen.last_entry_offset);
                    seen.entries += u64::from(count);
                    decode_entries(&content, count, previous, offset, |entry| {
                        seen.entry_records += u64::from(entry.records);
                    })
                    .map_err(corrupt)
                });
                content.clear();
                self.content = content;
                seen.last_entry_offset = entries?;
            }
            KIND_ANCILLARY.. => {
                let mut content = Vec::new();
                self.frames.content(&block, &mut content)?;
            }
            KIND_RECORDS => return Err(corrupt("records follow the index")),
            KIND_HEADER => return Err(corrupt("a second header")),
            _ => return Err(corrupt("the block is of a kind that this version does not have")),
        }
        Ok(())
    }
}

impl<R: Read + Seek> TraceReader<R> {
    /// Goes on with the records of `block`, which comes from the index of the same trace.
    ///
    /// What earlier blocks said (processes, segments, sampling) is not repeated in later ones.
    ///
    /// # Errors
    /// If the input cannot be positioned.
    pub fn seek_to(&mut self, block: &BlockInfo) -> Result<(), TraceError> {
        let BlockInfo { offset, sequence, .. } = *block;
        self.frames.input.seek(SeekFrom::Start(offset)).map_err(|source| TraceError::Read {
            offset,
            block: sequence,
            source,
        })?;
        self.frames.offset = offset;
        self.frames.sequence = sequence;
        self.decoder = Decoder::new();
        self.content.clear();
        self.seen = Seen { jumped: true, ..Seen::default() };
        self.done = false;
        Ok(())
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_record().transpose()
    }
}

impl<R: Read> std::iter::FusedIterator for TraceReader<R> {}

fn decode_header(content: &[u8]) -> Result<Header, Malformed> {
    let mut cursor = Cursor::new(0, content.len());
    let text = |bytes: &[u8]| {
        String::from_utf8(bytes.to_vec()).map_err(|_| "a text of the header is not UTF-8")
    };
    let created_unix_ns = cursor.varint(content)?;
    let page_bytes = cursor.varint32(content)?;
    if page_bytes == 0 {
        return Err("the header says that pages have no bytes");
    }
    let creator = text(cursor.text(content, NAME_BYTES_MAX)?)?;
    let mut header = Header { creator, created_unix_ns, ..Header::new(page_bytes) };
    let count = cursor.varint(content)?;
    if count > ATTRIBUTES_MAX as u64 {
        return Err("the header has more attributes than it may");
    }
    for _ in 0..count {
        let key = text(cursor.text(content, NAME_BYTES_MAX)?)?;
        let value = cursor.text(content, NAME_BYTES_MAX)?.to_vec();
        if header.attributes.insert(key, value).is_some() {
            return Err("the header has an attribute twice");
        }
    }
    if !cursor.is_empty() {
        return Err("the header is longer than what it holds");
    }
    Ok(header)
}
