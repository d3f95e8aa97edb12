//! Blocks of a trace with checksums that are right, whatever is in them; as
//! `docs/trace-format.md` has them.
use pagekeeper_trace::{Header, TraceWriter};

/// Bytes before the first block.
pub(crate) const MAGIC_BYTES: usize = 24;
/// Bytes of the index and the end mark of a trace without records.
const END_BYTES: usize = 44;

/// The start of a trace, up to its first block of records.
pub(crate) fn start() -> Vec<u8> {
    let writer = TraceWriter::new(Vec::new(), Header::new(4096)).expect("a plain header");
    let mut bytes = writer.finish().expect("memory takes all");
    bytes.truncate(bytes.len() - END_BYTES);
    bytes
}

/// A block. What it claims its content's length to be is that, unless something else is `claimed`.
pub(crate) fn block(
    kind: u8,
    sequence: u64,
    records: u32,
    claimed: Option<u32>,
    content: &[u8],
) -> Vec<u8> {
    let mut compressor = zstd::bulk::Compressor::new(1).expect("a compressor");
    compressor
        .set_parameter(zstd::zstd_safe::CParameter::ChecksumFlag(true))
        .expect("zstd has checksums");
    let frame = compressor.compress(content).expect("content is small");
    let mut out = Vec::new();
    out.extend(0x184d_2a5d_u32.to_le_bytes());
    out.extend(44u32.to_le_bytes());
    out.extend([kind, 0, 0, 0]);
    out.extend(records.to_le_bytes());
    out.extend(sequence.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out.extend(0u32.to_le_bytes());
    out.extend(claimed.unwrap_or(content.len() as u32).to_le_bytes());
    out.extend((frame.len() as u32).to_le_bytes());
    out.extend(crc32fast::hash(&frame).to_le_bytes());
    out.extend(crc32fast::hash(&out).to_le_bytes());
    out.extend(frame);
    out
}
