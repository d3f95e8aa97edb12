//! Where the blocks of a trace are: read from the index at its end, or found by a scan.

use std::io::{Read, Seek, SeekFrom};

use crate::error::TraceError;
use crate::frame::{
    BLOCK_HEADER_BYTES, END_BYTES, End, Frames, KIND_ANCILLARY, KIND_HEADER, KIND_INDEX,
    KIND_RECORDS, Next,
};
use crate::varint::{self, Cursor, Malformed};

/// A block of records: where it is and what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockInfo {
    /// Where its header starts, in bytes from the start of the file.
    pub offset: u64,
    /// Its number; the trace's header is block 0.
    pub sequence: u64,
    /// How many records it holds.
    pub records: u32,
    /// How many of them are references.
    pub references: u32,
    /// Time of its first record that has one, else 0.
    pub first_time_ns: u64,
}

/// Appends index entries. `previous` is the offset of the entry before, and the last one is given
/// back.
pub(crate) fn encode_entries(entries: &[BlockInfo], mut previous: u64, out: &mut Vec<u8>) -> u64 {
    for entry in entries {
        varint::put(out, entry.offset - previous);
        varint::put(out, entry.sequence);
        varint::put(out, u64::from(entry.records));
        varint::put(out, u64::from(entry.references));
        varint::put(out, entry.first_time_ns);
        previous = entry.offset;
    }
    previous
}

/// Undoes [`encode_entries`], for entries that lie before `end`.
pub(crate) fn decode_entries(
    content: &[u8],
    count: u32,
    mut previous: u64,
    end: u64,
    mut entry: impl FnMut(BlockInfo),
) -> Result<u64, Malformed> {
    let mut cursor = Cursor::new(0, content.len());
    for _ in 0..count {
        let offset = previous
            .checked_add(cursor.varint(content)?)
            .filter(|&offset| {
                // Bounds the number of entries, and with it memory, by the size of the file.
                offset - previous >= BLOCK_HEADER_BYTES as u64 && offset < end
            })
            .ok_or("an entry of the index points to no place where a block can be")?;
        entry(BlockInfo {
            offset,
            sequence: cursor.varint(content)?,
            records: cursor.varint32(content)?,
            references: cursor.varint32(content)?,
            first_time_ns: cursor.varint(content)?,
        });
        previous = offset;
    }
    if !cursor.is_empty() {
        return Err("a block of the index is longer than its entries");
    }
    Ok(previous)
}

/// The blocks of a trace.
#[derive(Debug)]
pub struct TraceIndex {
    /// The blocks of records that are whole, in order.
    pub blocks: Vec<BlockInfo>,
    /// Whether the index had to be rebuilt by a scan.
    pub rebuilt: bool,
    /// What ended the scan: [`TraceError::is_incomplete`] tells a trace that merely was not
    /// finished from a damaged one. Always `None` when the index was read.
    pub damage: Option<TraceError>,
}

impl TraceIndex {
    /// Reads the index of a trace, or rebuilds it by a scan, which reads the whole file and checks
    /// the checksums of all blocks. The input is left anywhere.
    ///
    /// # Errors
    /// If the file is no trace, or its very header is damaged.
    pub fn load<R: Read + Seek>(mut input: R) -> Result<Self, TraceError> {
        if let Some(blocks) = read_index(&mut input) {
            return Ok(Self { blocks, rebuilt: false, damage: None });
        }
        scan(input)
    }

    /// How many records the blocks hold.
    pub fn records(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.records)).sum()
    }

    /// How many of them are references.
    pub fn references(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.references)).sum()
    }
}

/// The index as it stands at the end of the file; `None` if there is none or it is damaged.
fn read_index<R: Read + Seek>(input: &mut R) -> Option<Vec<BlockInfo>> {
    input.rewind().ok()?;
    let mut frames = Frames::new(&mut *input);
    frames.start().ok()?;
    let end_offset = input.seek(SeekFrom::End(-(END_BYTES as i64))).ok()?;
    let mut bytes = [0; END_BYTES];
    input.read_exact(&mut bytes).ok()?;
    let end = End::parse(&bytes)?;
    let index_offset = end.index_offset.get();
    if index_offset > end_offset {
        return None;
    }
    input.seek(SeekFrom::Start(index_offset)).ok()?;
    let mut frames = Frames::new(input);
    frames.offset = index_offset;
    let (mut blocks, mut content, mut previous) = (Vec::new(), Vec::new(), 0);
    loop {
        // The header says which number it has; only the first can be any.
        let header = match frames.next_of_any_sequence(blocks.is_empty()).ok()? {
            Next::Block(header) => header,
            Next::End(_) => break,
            Next::Nothing => return None,
        };
        if header.kind >= KIND_ANCILLARY {
            frames.content(&header, &mut content).ok()?;
            continue;
        }
        if header.kind != KIND_INDEX {
            return None;
        }
        frames.content(&header, &mut content).ok()?;
        let count = header.records.get();
        previous = decode_entries(&content, count, previous, index_offset, |entry| {
            blocks.push(entry);
        })
        .ok()?;
    }
    let records: u64 = blocks.iter().map(|block| u64::from(block.records)).sum();
    (blocks.len() as u64 == end.blocks.get() && records == end.records.get()).then_some(blocks)
}

fn scan<R: Read + Seek>(mut input: R) -> Result<TraceIndex, TraceError> {
    let at = |source| TraceError::Read { offset: 0, block: 0, source };
    input.rewind().map_err(at)?;
    let mut frames = Frames::new(input);
    frames.start()?;
    let mut content = Vec::new();
    let Next::Block(first) = frames.next()? else {
        return Err(frames.corrupt("the header is missing"));
    };
    if first.kind != KIND_HEADER {
        return Err(frames.corrupt("the header is missing"));
    }
    frames.content(&first, &mut content)?;
    let mut blocks = Vec::new();
    let damage = loop {
        let offset = frames.offset;
        let header = match frames.next() {
            Ok(Next::Block(header)) => header,
            Ok(Next::End(_)) => break None,
            Ok(Next::Nothing) => {
                break Some(TraceError::Unfinished { offset, block: frames.sequence - 1 });
            }
            Err(error) => break Some(error),
        };
        if let Err(error) = frames.content(&header, &mut content) {
            break Some(error);
        }
        if header.kind == KIND_RECORDS {
            blocks.push(BlockInfo {
                offset,
                sequence: header.sequence.get(),
                records: header.records.get(),
                references: header.references.get(),
                first_time_ns: header.first_time_ns.get(),
            });
        }
    };
    Ok(TraceIndex { blocks, rebuilt: true, damage })
}
