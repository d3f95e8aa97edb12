//! What was written is read again, whole and small.

use crate::common;

use std::io::{self, Cursor, Read, Write};

use common::*;
use pagekeeper_trace::*;
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #[test]
    fn records_of_all_kinds_come_back(
        header in header(),
        records in vec(record(), 0..120),
        block_records in 1u32..50,
    ) {
        let bytes = write(header.clone(), small_blocks(block_records), &records);
        let reader = TraceReader::new(&bytes[..]).unwrap();
        prop_assert_eq!(reader.header(), &header);
        let (found, error) = read(&bytes);
        prop_assert!(error.is_none(), "{error:?}");
        prop_assert_eq!(&found, &records);

        // The index says the same as a scan of what is there without it.
        let index = TraceIndex::load(Cursor::new(&bytes)).unwrap();
        prop_assert!(!index.rebuilt && index.damage.is_none());
        prop_assert_eq!(index.records(), records.len() as u64);
        let cut = Cursor::new(&bytes[..bytes.len() - 1]);
        let scanned = TraceIndex::load(cut).unwrap();
        prop_assert!(scanned.rebuilt && scanned.damage.unwrap().is_incomplete());
        prop_assert_eq!(&scanned.blocks, &index.blocks);

        // From any block on, the rest of the records comes.
        let mut reader = TraceReader::new(Cursor::new(&bytes)).unwrap();
        let mut before = 0;
        for block in &index.blocks {
            reader.seek_to(block).unwrap();
            let rest: Result<Vec<_>, _> = reader.by_ref().collect();
            prop_assert_eq!(&rest.unwrap()[..], &records[before..]);
            before += block.records as usize;
        }
    }
}

/// Tools that know nothing of us can check and unpack a trace.
#[test]
fn zstd_reads_a_trace_as_a_series_of_frames() {
    let bytes = write(Header::new(4096), small_blocks(16), &little_of_everything(40));
    let mut content = Vec::new();
    zstd::stream::read::Decoder::new(&bytes[..]).unwrap().read_to_end(&mut content).unwrap();
    assert!(content.windows(7).any(|window| window == b"sqlite3"));
    let mut damaged = bytes.clone();
    // The last compressed frame ends where the end mark, of 44 bytes, starts.
    let last = damaged.len() - 45;
    damaged[last] ^= 1;
    assert!(
        zstd::stream::read::Decoder::new(&damaged[..]).unwrap().read_to_end(&mut content).is_err()
    );
}

fn reference(time_ns: u64, page: u64) -> Record {
    Reference { time_ns, process: 0, segment: 0, page, write: false, by_call: false }.into()
}

/// A fixed sequence of numbers that nothing can compress.
fn mixed(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[test]
fn a_reference_costs_few_bytes() {
    const COUNT: u64 = 200_000;
    let cost = |page: &dyn Fn(u64) -> u64, jitter_ns: u64| {
        let mut time_ns = 1_700_000_000_000_000_000;
        let records: Vec<_> = (0..COUNT)
            .map(|i| {
                time_ns += 400 + if jitter_ns == 0 { 0 } else { mixed(!i) % jitter_ns };
                reference(time_ns, page(i))
            })
            .collect();
        let bytes = write(Header::new(4096), WriterOptions::default(), &records).len();
        bytes as f64 / COUNT as f64
    };
    let sequential = cost(&|i| i, 0);
    let sequential_jitter = cost(&|i| i, 256);
    let random = cost(&|i| mixed(i) % (1 << 20), 0);
    let random_jitter = cost(&|i| mixed(i) % (1 << 20), 256);
    println!("{sequential} {sequential_jitter} {random} {random_jitter}");
    assert!(sequential < 0.1, "{sequential}");
    assert!(sequential_jitter < 2.0, "{sequential_jitter}");
    assert!(random < 3.5, "{random}");
    assert!(random_jitter < 5.0, "{random_jitter}");
}

#[test]
fn blocks_are_closed_at_their_size_as_well_as_at_their_count() {
    let name = vec![7; NAME_BYTES_MAX];
    let records: Vec<Record> = (0..200)
        .map(|segment| {
            Segment { segment, kind: SegmentKind::File, bytes: 1, name: name.clone() }.into()
        })
        .collect();
    let bytes = write(Header::new(4096), WriterOptions::default(), &records);
    assert!(TraceIndex::load(Cursor::new(&bytes)).unwrap().blocks.len() > 1);
    assert_eq!(read(&bytes).0, records);
}

#[test]
fn what_does_not_fit_is_refused_and_the_trace_goes_on() {
    let mut writer = TraceWriter::new(Vec::new(), Header::new(4096)).unwrap();
    let name = vec![7; NAME_BYTES_MAX + 1];
    let error = writer.process(&Process { process: 0, pid: 1, parent: None, name }).unwrap_err();
    assert!(matches!(error, TraceError::TooLong { .. }), "{error}");
    writer.record(&reference(1, 2)).unwrap();
    let (records, error) = read(&writer.finish().unwrap());
    assert!(error.is_none());
    assert_eq!(records, [reference(1, 2)]);

    let error = TraceWriter::new(Vec::new(), Header::new(0)).err().unwrap();
    assert!(matches!(error, TraceError::NoPageBytes));
    let mut header = Header::new(4096);
    for key in 0..=ATTRIBUTES_MAX {
        header.attributes.insert(key.to_string(), Vec::new());
    }
    assert!(TraceWriter::new(Vec::new(), header).is_err());
}

/// A disk that is full after so many bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.0);
        self.0 -= count;
        if count == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(count) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error_that_stays() {
    let whole = write(Header::new(4096), small_blocks(8), &little_of_everything(9)).len();
    for room in 0..whole {
        let Ok(mut writer) =
            TraceWriter::with_options(Full(room), Header::new(4096), small_blocks(8))
        else {
            continue;
        };
        let mut failed = false;
        for record in little_of_everything(9) {
            let result = writer.record(&record);
            // Nothing pretends to be written after the failure.
            let refused = matches!(result, Err(TraceError::WriterFailed { .. }));
            assert_eq!(failed, refused);
            failed |= result.is_err();
        }
        if failed {
            assert!(matches!(writer.flush_block(), Err(TraceError::WriterFailed { .. })));
        }
        assert!(writer.finish().is_err(), "{room} of {whole} bytes are not enough");
    }
}

#[test]
fn a_recorder_that_dies_leaves_all_that_it_flushed() {
    let records = little_of_everything(30);
    let mut writer = TraceWriter::new(Vec::new(), Header::new(4096)).unwrap();
    for record in &records[..50] {
        writer.record(record).unwrap();
    }
    writer.flush_block().unwrap();
    for record in &records[50..] {
        writer.record(record).unwrap();
    }
    let left = writer.output().clone();
    let (found, error) = read(&left);
    assert_eq!(found, records[..50]);
    let error = error.unwrap();
    assert!(matches!(error, TraceError::Unfinished { .. }) && error.is_incomplete(), "{error}");
}

#[test]
fn a_catalog_knows_names_sizes_and_sampling() {
    let mut catalog = Catalog::new();
    for record in little_of_everything(16) {
        catalog.observe(&record);
    }
    assert_eq!(catalog.segment(7).unwrap().name, b"/a.db");
    assert_eq!(catalog.segment(8).unwrap().bytes, 15 << 12);
    assert_eq!(catalog.process(1).unwrap().parent, Some(0));
    assert_eq!(catalog.sampling(), Sampling::Exact);
    assert_eq!((catalog.processes().count(), catalog.segments().count()), (2, 2));
    assert!(catalog.segment(0).is_none());
}
