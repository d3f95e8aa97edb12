//! The container: byte layouts, limits, and reading and writing one framed block.
//!
//! A trace is a sequence of zstd frames. What is ours and not compressed stands in *skippable*
//! frames, which `zstd -d` passes over. `docs/trace-format.md` draws every byte.

use std::io::{self, Read};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{TraceError, excerpt};

/// Version of the format that this crate writes, and the newest that it reads.
pub const FORMAT_VERSION: u16 = 1;
/// Most records in a block.
pub const BLOCK_RECORDS_MAX: u32 = 1 << 16;
/// Most bytes in a block before compression. Bounds what a reader allocates.
pub const CONTENT_BYTES_MAX: usize = 8 << 20;
/// Most bytes in a name of a process or segment, and in the header's creator, attribute keys and
/// attribute values.
pub const NAME_BYTES_MAX: usize = 1 << 16;
/// Most attributes in a header.
pub const ATTRIBUTES_MAX: usize = 64;
/// Most bytes in a compressed block: the worst that zstd makes of the most content, and to spare.
pub(crate) const FRAME_BYTES_MAX: usize = CONTENT_BYTES_MAX + (64 << 10);

/// A block with the trace's header: the first, and only the first.
pub(crate) const KIND_HEADER: u8 = 1;
/// A block of records.
pub(crate) const KIND_RECORDS: u8 = 2;
/// A block of index entries, behind all blocks of records.
pub(crate) const KIND_INDEX: u8 = 3;
/// Blocks of this kind and above say nothing that a reader must know: unknown ones are passed over.
pub(crate) const KIND_ANCILLARY: u8 = 0x80;

const SKIPPABLE_BLOCK: u32 = 0x184d_2a5d;
const SKIPPABLE_START: u32 = 0x184d_2a5e;
const SKIPPABLE_END: u32 = 0x184d_2a5f;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bit of a zstd frame's fifth byte that says that a content checksum follows the content.
const ZSTD_HAS_CHECKSUM: u8 = 1 << 2;
/// The first bytes of every trace: a skippable frame's magic and length, and ours.
pub(crate) const START_MAGIC: [u8; 16] = *b"\x5e\x2a\x4d\x18\x10\0\0\0PKTRACE\n";
const MAGIC: [u8; 8] = *b"PKTRACE\n";
const END_MAGIC: [u8; 8] = *b"PKTREND\n";
/// Bytes of a skippable frame before its content.
const SKIPPABLE_BYTES: usize = 8;

/// The first frame of a file.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Start {
    skippable: U32,
    length: U32,
    magic: [u8; 8],
    version: U16,
    reserved: U16,
    crc: U32,
}

/// The frame before each compressed one.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone)]
#[repr(C)]
pub(crate) struct BlockHeader {
    skippable: U32,
    length: U32,
    pub(crate) kind: u8,
    reserved: [u8; 3],
    pub(crate) records: U32,
    pub(crate) sequence: U64,
    pub(crate) first_time_ns: U64,
    pub(crate) references: U32,
    pub(crate) content_bytes: U32,
    pub(crate) frame_bytes: U32,
    pub(crate) frame_crc: U32,
    crc: U32,
}

/// The last frame of a finished file.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct End {
    skippable: U32,
    length: U32,
    magic: [u8; 8],
    pub(crate) index_offset: U64,
    pub(crate) blocks: U64,
    pub(crate) records: U64,
    crc: U32,
}

pub(crate) const START_BYTES: usize = size_of::<Start>();
pub(crate) const BLOCK_HEADER_BYTES: usize = size_of::<BlockHeader>();
pub(crate) const END_BYTES: usize = size_of::<End>();
const CRC_BYTES: usize = 4;
const _: () = assert!(START_BYTES == 24 && BLOCK_HEADER_BYTES == 52 && END_BYTES == 44);

/// Length of a skippable frame's content, from the length of the frame.
const fn content_length(frame: usize) -> U32 {
    U32::new((frame - SKIPPABLE_BYTES) as u32)
}

/// Checksum of a frame that ends in its checksum.
fn crc_of(frame: &[u8]) -> U32 {
    U32::new(crc32fast::hash(&frame[..frame.len() - CRC_BYTES]))
}

impl Start {
    pub(crate) fn new() -> Self {
        let mut start = Self {
            skippable: U32::new(SKIPPABLE_START),
            length: content_length(START_BYTES),
            magic: MAGIC,
            version: U16::new(FORMAT_VERSION),
            reserved: U16::new(0),
            crc: U32::new(0),
        };
        start.crc = crc_of(start.as_bytes());
        start
    }
}

impl End {
    pub(crate) fn new(index_offset: u64, blocks: u64, records: u64) -> Self {
        let mut end = Self {
            skippable: U32::new(SKIPPABLE_END),
            length: content_length(END_BYTES),
            magic: END_MAGIC,
            index_offset: U64::new(index_offset),
            blocks: U64::new(blocks),
            records: U64::new(records),
            crc: U32::new(0),
        };
        end.crc = crc_of(end.as_bytes());
        end
    }

    /// The end mark in these bytes, if that is what they are, and whole.
    pub(crate) fn parse(bytes: &[u8; END_BYTES]) -> Option<Self> {
        let end = Self::read_from_bytes(bytes).ok()?;
        (end.skippable.get() == SKIPPABLE_END
            && end.length == content_length(END_BYTES)
            && end.magic == END_MAGIC
            && end.crc == crc_of(bytes))
        .then_some(end)
    }
}

/// What a writer says of a block; the rest follows from its content.
pub(crate) struct BlockMeta {
    pub(crate) kind: u8,
    pub(crate) records: u32,
    pub(crate) references: u32,
    pub(crate) sequence: u64,
    pub(crate) first_time_ns: u64,
}

impl BlockHeader {
    pub(crate) fn new(meta: &BlockMeta, content_bytes: usize, frame: &[u8]) -> Self {
        let mut header = Self {
            skippable: U32::new(SKIPPABLE_BLOCK),
            length: content_length(BLOCK_HEADER_BYTES),
            kind: meta.kind,
            reserved: [0; 3],
            records: U32::new(meta.records),
            sequence: U64::new(meta.sequence),
            first_time_ns: U64::new(meta.first_time_ns),
            references: U32::new(meta.references),
            content_bytes: U32::new(content_bytes as u32),
            frame_bytes: U32::new(frame.len() as u32),
            frame_crc: U32::new(crc32fast::hash(frame)),
            crc: U32::new(0),
        };
        header.crc = crc_of(header.as_bytes());
        header
    }

    /// Bytes of the header and its frame together.
    pub(crate) fn block_bytes(&self) -> u64 {
        BLOCK_HEADER_BYTES as u64 + u64::from(self.frame_bytes.get())
    }
}

/// What stands where a block may start.
pub(crate) enum Next {
    /// A block, whose compressed frame follows.
    Block(BlockHeader),
    /// The end mark.
    End(End),
    /// Nothing: the file ends here.
    Nothing,
}

/// A trace as a sequence of frames: keeps count of bytes and blocks, and names them in errors.
pub(crate) struct Frames<R> {
    pub(crate) input: R,
    /// Where the next frame starts.
    pub(crate) offset: u64,
    /// Number of the next block.
    pub(crate) sequence: u64,
    frame: Vec<u8>,
    decompressor: zstd::bulk::Decompressor<'static>,
}

impl<R: Read> Frames<R> {
    pub(crate) fn new(input: R) -> Self {
        Self {
            input,
            offset: 0,
            sequence: 0,
            frame: Vec::new(),
            decompressor: zstd::bulk::Decompressor::default(),
        }
    }

    /// Damage at the next frame.
    pub(crate) fn corrupt(&self, what: &'static str) -> TraceError {
        TraceError::Corrupt { offset: self.offset, block: self.sequence, what }
    }

    fn read_error(&self, source: io::Error) -> TraceError {
        TraceError::Read { offset: self.offset, block: self.sequence, source }
    }

    fn truncated(&self, got: usize, what: &'static str) -> TraceError {
        let end = self.offset + got as u64;
        TraceError::Truncated { offset: self.offset, block: self.sequence, end, what }
    }

    /// Fills as much of `buffer` as there is.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, TraceError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.input.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.read_error(error)),
            }
        }
        Ok(filled)
    }

    /// Reads the first frame.
    pub(crate) fn start(&mut self) -> Result<(), TraceError> {
        let mut bytes = [0; START_BYTES];
        let got = self.fill(&mut bytes)?;
        let same = got.min(START_MAGIC.len());
        if bytes[..same] != START_MAGIC[..same] {
            return Err(TraceError::NotATrace { start: excerpt(&bytes[..got.min(16)]) });
        }
        if got < START_BYTES {
            return Err(self.truncated(got, "the magic"));
        }
        let Ok(start) = Start::read_from_bytes(&bytes) else {
            return Err(self.corrupt("the magic's frame cannot be read"));
        };
        if start.crc != crc_of(&bytes) {
            return Err(self.corrupt("the checksum of the version is wrong"));
        }
        let found = start.version.get();
        if found == 0 || found > FORMAT_VERSION {
            return Err(TraceError::NewerVersion { found, supported: FORMAT_VERSION });
        }
        self.offset += START_BYTES as u64;
        Ok(())
    }

    /// Reads the uncompressed frame that stands here, and checks all that can be checked of it.
    pub(crate) fn next(&mut self) -> Result<Next, TraceError> {
        self.next_of_any_sequence(false)
    }

    /// As [`next`](Self::next), but `any` block may stand here, and numbers those after it.
    pub(crate) fn next_of_any_sequence(&mut self, any: bool) -> Result<Next, TraceError> {
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        let got = self.fill(&mut bytes[..SKIPPABLE_BYTES])?;
        if got == 0 {
            return Ok(Next::Nothing);
        }
        if got < SKIPPABLE_BYTES {
            return Err(self.truncated(got, "the header"));
        }
        let magic = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let whole = match magic {
            SKIPPABLE_BLOCK => BLOCK_HEADER_BYTES,
            SKIPPABLE_END => END_BYTES,
            _ => return Err(self.corrupt("no block starts here")),
        };
        let rest = self.fill(&mut bytes[SKIPPABLE_BYTES..whole])?;
        if SKIPPABLE_BYTES + rest < whole {
            let what = if magic == SKIPPABLE_END { "the end mark" } else { "the header" };
            return Err(self.truncated(SKIPPABLE_BYTES + rest, what));
        }
        if magic == SKIPPABLE_END {
            let end: &[u8; END_BYTES] =
                bytes[..END_BYTES].try_into().map_err(|_| self.corrupt("the end mark"))?;
            let end = End::parse(end).ok_or_else(|| self.corrupt("the end mark is not itself"))?;
            return Ok(Next::End(end));
        }
        let Ok(header) = BlockHeader::read_from_bytes(&bytes) else {
            return Err(self.corrupt("the block's header cannot be read"));
        };
        if header.length != content_length(BLOCK_HEADER_BYTES) || header.crc != crc_of(&bytes) {
            return Err(self.corrupt("the checksum of the block's header is wrong"));
        }
        if any {
            self.sequence = header.sequence.get();
        }
        if header.sequence.get() != self.sequence {
            return Err(self.corrupt("another block belongs here: some are missing or doubled"));
        }
        if header.records.get() > BLOCK_RECORDS_MAX
            || header.references.get() > header.records.get()
            || header.content_bytes.get() as usize > CONTENT_BYTES_MAX
            || header.frame_bytes.get() as usize > FRAME_BYTES_MAX
        {
            return Err(self.corrupt("the block is larger than any may be"));
        }
        Ok(Next::Block(header))
    }

    /// Checks that nothing follows the end mark, which was read.
    pub(crate) fn expect_end(&mut self) -> Result<(), TraceError> {
        self.offset += END_BYTES as u64;
        if self.fill(&mut [0])? != 0 {
            return Err(self.corrupt("more bytes follow the end of the trace"));
        }
        Ok(())
    }

    /// Reads and verifies the compressed frame of `header`, puts what it holds into `content`, and
    /// moves on to the next block. On an error, `content` is empty.
    pub(crate) fn content(
        &mut self,
        header: &BlockHeader,
        content: &mut Vec<u8>,
    ) -> Result<(), TraceError> {
        content.clear();
        let mut frame = std::mem::take(&mut self.frame);
        let verified = self.frame_into(header, &mut frame);
        let decompressed = verified.and_then(|()| self.decompress(header, &frame, content));
        self.frame = frame;
        if decompressed.is_err() {
            content.clear();
            return decompressed;
        }
        // Wraps only in hostile files, whose next number is then wrong as well.
        self.sequence = self.sequence.wrapping_add(1);
        self.offset += header.block_bytes();
        Ok(())
    }

    fn frame_into(&mut self, header: &BlockHeader, frame: &mut Vec<u8>) -> Result<(), TraceError> {
        let wanted = header.frame_bytes.get();
        frame.clear();
        // Memory follows the bytes that are really there, not the length that is claimed.
        let got = (&mut self.input)
            .take(u64::from(wanted))
            .read_to_end(frame)
            .map_err(|error| self.read_error(error))?;
        if got < wanted as usize {
            return Err(self.truncated(BLOCK_HEADER_BYTES + got, "the content"));
        }
        if crc32fast::hash(frame) != header.frame_crc.get() {
            return Err(self.corrupt("the checksum of the block's content is wrong"));
        }
        Ok(())
    }

    fn decompress(
        &mut self,
        header: &BlockHeader,
        frame: &[u8],
        content: &mut Vec<u8>,
    ) -> Result<(), TraceError> {
        let checked = frame.get(4).is_some_and(|flags| flags & ZSTD_HAS_CHECKSUM != 0);
        if !frame.starts_with(&ZSTD_MAGIC) || !checked {
            return Err(self.corrupt("the block's content is no zstd frame with a checksum"));
        }
        let wanted = header.content_bytes.get() as usize;
        content.reserve(wanted);
        match self.decompressor.decompress_to_buffer(frame, content) {
            Ok(count) if count == wanted => Ok(()),
            Ok(_) => Err(self.corrupt("the block's content has another length than it should")),
            Err(_) => Err(self.corrupt("the block's content cannot be decompressed")),
        }
    }
}
