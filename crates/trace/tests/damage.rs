//! Damaged traces: everything before the damage comes, then one error that names its place, and
//! never anything that was not written.

use crate::common;
use crate::common::blocks;

use std::io::Cursor;

use common::*;
use pagekeeper_trace::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// A small trace, its records, and for each of its blocks of records where it ends and how many
/// records there are up to there.
fn small_trace() -> (Vec<u8>, Vec<Record>, Vec<(usize, usize)>) {
    let records = little_of_everything(20);
    let header = Header::new(4096).with("policy", "lru").with("command", b"a \xff");
    let bytes = write(header, small_blocks(12), &records);
    let index = TraceIndex::load(Cursor::new(&bytes)).unwrap();
    assert!(index.blocks.len() >= 4);
    let mut ends: Vec<usize> = index.blocks[1..].iter().map(|b| b.offset as usize).collect();
    // The last block ends where the index starts: the end mark says where.
    let mark = &bytes[bytes.len() - 28..];
    ends.push(u64::from_le_bytes(mark[..8].try_into().unwrap()) as usize);
    let mut count = 0;
    let blocks = ends.into_iter().zip(&index.blocks).map(|(end, block)| {
        count += block.records as usize;
        (end, count)
    });
    let blocks = blocks.collect();
    (bytes, records, blocks)
}

/// How many records are in blocks that end at or before `place`.
fn before(blocks: &[(usize, usize)], place: usize) -> usize {
    blocks.iter().take_while(|(end, _)| *end <= place).last().map_or(0, |&(_, count)| count)
}

#[test]
fn a_trace_cut_at_any_byte_is_readable_up_to_there() {
    let (bytes, records, blocks) = small_trace();
    for length in 0..bytes.len() {
        let (found, error) = read(&bytes[..length]);
        assert_eq!(found, records[..before(&blocks, length)], "cut at {length}");
        let error = error.unwrap_or_else(|| panic!("cut at {length}: no error"));
        assert!(error.is_incomplete(), "cut at {length}: {error}");
        match error {
            TraceError::Truncated { offset, end, .. } => {
                assert_eq!(end, length as u64);
                assert!(offset <= end);
            }
            TraceError::Unfinished { offset, .. } => assert_eq!(offset, length as u64),
            _ => unreachable!(),
        }
    }
}

#[test]
fn a_trace_with_any_bit_flipped_is_readable_up_to_there() {
    let (mut bytes, records, blocks) = small_trace();
    for place in 0..bytes.len() {
        for flip in [1, 2, 4, 8, 16, 32, 64, 128, 0xff] {
            bytes[place] ^= flip;
            let (found, error) = read(&bytes);
            assert_eq!(found, records[..before(&blocks, place)], "flipped {place}");
            let error = error.unwrap_or_else(|| panic!("flipped {place}: no error"));
            match &error {
                TraceError::Corrupt { offset, .. } | TraceError::Truncated { offset, .. } => {
                    assert!(*offset <= place as u64, "flipped {place}: {error}");
                }
                TraceError::NotATrace { .. } => assert!(place < 16),
                _ => panic!("flipped {place}: {error}"),
            }
            // An index is rebuilt, or says the same as before.
            if let Ok(index) = TraceIndex::load(Cursor::new(&bytes)) {
                let whole = before(&blocks, place) as u64;
                assert!(index.records() == whole || !index.rebuilt, "flipped {place}");
            }
            bytes[place] ^= flip;
        }
    }
}

#[test]
fn missing_doubled_and_appended_blocks_are_noticed() {
    let (bytes, records, blocks) = small_trace();
    let (first, second) = (blocks[0].0, blocks[1].0);
    let missing = [&bytes[..first], &bytes[second..]].concat();
    let doubled = [&bytes[..second], &bytes[first..]].concat();
    for (damaged, good) in [(missing, blocks[0].1), (doubled, blocks[1].1)] {
        let (found, error) = read(&damaged);
        assert_eq!(found, records[..good]);
        assert!(matches!(error, Some(TraceError::Corrupt { .. })), "{error:?}");
    }
    let longer = [&bytes[..], b"x"].concat();
    let (found, error) = read(&longer);
    assert_eq!(found, records);
    assert!(
        matches!(error, Some(TraceError::Corrupt { offset, .. }) if offset == bytes.len() as u64)
    );
}

#[test]
fn messages_name_the_place_and_the_remedy() {
    let (mut bytes, _, blocks) = small_trace();
    let message = read(&bytes[..blocks[0].0 + 60]).1.unwrap().to_string();
    assert!(message.contains(&format!("starts at byte {}", blocks[0].0)), "{message}");
    assert!(message.contains("block 2") && message.contains("import"), "{message}");
    bytes[blocks[1].0 + 70] ^= 4;
    let message = read(&bytes).1.unwrap().to_string();
    assert!(message.contains(&format!("byte {} (block 3)", blocks[1].0)), "{message}");
    let message = read(b"SQLite format 3\0").1.unwrap().to_string();
    assert!(
        message.contains("SQLite format 3\\x00") && message.contains("--from-format"),
        "{message}"
    );
}

#[test]
fn a_newer_version_asks_for_a_newer_program() {
    let (mut bytes, ..) = small_trace();
    bytes[16] = 2;
    let crc = crc32fast::hash(&bytes[..20]);
    bytes[20..24].copy_from_slice(&crc.to_le_bytes());
    let error = read(&bytes).1.unwrap();
    assert!(matches!(error, TraceError::NewerVersion { found: 2, supported: 1 }), "{error}");
    assert!(error.to_string().ends_with("use a newer pagekeeper"), "{error}");
    // A newer one reads no older version than the first.
    bytes[16] = 0;
    let crc = crc32fast::hash(&bytes[..20]);
    bytes[20..24].copy_from_slice(&crc.to_le_bytes());
    let error = read(&bytes).1.unwrap().to_string();
    assert!(
        error.contains("version 0") && error.ends_with("no pagekeeper has written it"),
        "{error}"
    );
}

/// Frames whose checksums are right, around lengths and contents that are not.
mod hostile {
    use super::blocks::{MAGIC_BYTES, block, start};
    use super::*;

    #[test]
    fn claimed_lengths_do_not_take_memory() {
        let content = vec![0; 100];
        for (records, claimed) in
            [(u32::MAX, None), (1, Some(u32::MAX)), (1, Some(99)), (1, Some(8 << 20))]
        {
            let bytes = [start(), block(2, 1, records, claimed, &content)].concat();
            let error = read(&bytes).1.unwrap();
            assert!(matches!(error, TraceError::Corrupt { block: 1, .. }), "{error}");
        }
    }

    #[test]
    fn blocks_that_may_be_passed_over_are() {
        let header = start();
        let bytes = [header.clone(), block(0x80, 1, 0, None, b"later")].concat();
        let (found, error) = read(&bytes);
        assert!(found.is_empty() && matches!(error, Some(TraceError::Unfinished { .. })));
        for kind in [0, 1, 4, 0x7f] {
            let error = read(&[header.clone(), block(kind, 1, 0, None, b"")].concat()).1.unwrap();
            assert!(matches!(error, TraceError::Corrupt { .. }), "kind {kind}: {error}");
        }
    }

    proptest! {
        #[test]
        fn random_contents_with_right_checksums_never_panic(
            kind in 0u8..5,
            records in 0u32..20,
            content in vec(prop_oneof![0u8..12, any::<u8>()], 0..100),
        ) {
            let bytes = [start(), block(kind, 1, records, None, &content)].concat();
            prop_assert!(read(&bytes).1.is_some());
            let _ = TraceIndex::load(Cursor::new(&bytes));
        }

        #[test]
        fn random_headers_never_panic(content in vec(prop_oneof![0u8..4, any::<u8>()], 0..60)) {
            let bytes = [&start()[..MAGIC_BYTES], &block(1, 0, 0, None, &content)].concat();
            let _ = read(&bytes);
        }

        #[test]
        fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..200), cut in 0usize..300) {
            let _ = read(&bytes);
            let start = start();
            let bytes = [&start[..cut.min(start.len())], &bytes].concat();
            prop_assert!(read(&bytes).1.is_some());
            let _ = TraceIndex::load(Cursor::new(&bytes));
        }
    }
}
