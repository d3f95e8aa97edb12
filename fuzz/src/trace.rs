//! Traces that strangers made: every importer, and our own format behind checksums that are right.
//! Records or an error that says what to do, never more; what is read can be written and read back.

use arbitrary::Unstructured;
use pagekeeper_trace::{
    Header, ImportOptions, Objects, Record, Source, TraceIndex, TraceReader, TraceWriter,
    importers, open_reader,
};
use std::io::Cursor;

use blocks::{MAGIC_BYTES, block, start};

#[path = "../../crates/trace/tests/common/blocks.rs"]
mod blocks;

const KIND_HEADER: u8 = 1;

/// Most batches that are read: objects may stand for a million pages each.
const BATCHES_MAX: usize = 16;

/// The first two bytes say in which format and how; the others are the file.
pub fn run(bytes: &[u8]) {
    let [format, how, file @ ..] = bytes else { return };
    let places = importers().len();
    match usize::from(*format) % (places + 2) {
        place if place < places => import(Some(importers()[place].name()), *how, file),
        place if place == places => import(None, *how, file),
        _ => own(*how, file),
    }
}

fn import(format: Option<&str>, how: u8, file: &[u8]) {
    let takes_objects = matches!(format, Some("csv" | "oracleGeneral"));
    let options = ImportOptions {
        format: format.map(str::to_owned),
        page_bytes: [None, Some(1), Some(4096), Some(u32::MAX)][usize::from(how & 3)],
        objects: if takes_objects && how & 4 != 0 { Objects::Pages } else { Objects::default() },
        block_bytes: (format == Some("arc") && how & 8 != 0).then_some(u32::from(how) << 5),
        ..ImportOptions::default()
    };
    match open_reader(Cursor::new(file.to_vec()), None, &options) {
        Ok(mut source) => {
            let records = read(source.as_mut());
            written_and_read_again(source.header().clone(), &records);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// The first records, and that an end is an end.
fn read(source: &mut dyn Source) -> Vec<Record> {
    let mut records = Vec::new();
    for _ in 0..BATCHES_MAX {
        let more = match source.next_batch(&mut records) {
            Ok(more) => more,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                false
            }
        };
        if !more {
            let before = records.len();
            assert!(!source.next_batch(&mut records).expect("an error comes once"));
            assert_eq!(records.len(), before, "an end is an end");
            break;
        }
    }
    source.dropped();
    records
}

fn written_and_read_again(header: Header, records: &[Record]) {
    let mut writer = TraceWriter::new(Vec::new(), header.clone()).expect("a header that was read");
    for record in records {
        writer.record(record).expect("a record that was read");
    }
    let bytes = writer.finish().expect("memory takes all");
    let reader = TraceReader::new(&bytes[..]).expect("a trace that was written");
    assert_eq!(reader.header(), &header);
    let again: Vec<Record> = reader.map(|record| record.expect("what was written")).collect();
    assert!(again == records, "{} records became {}", records.len(), again.len());
}

/// Our own format: blocks of any content with right checksums, behind a right start.
fn own(how: u8, content: &[u8]) {
    let mut bytes = start();
    let mut rest = Unstructured::new(content);
    let mut sequence = 1;
    if how & 0x80 != 0 {
        // The header is the stranger's, too.
        bytes.truncate(MAGIC_BYTES);
        sequence = 0;
    }
    while let (Ok(kind), Ok(records), Ok(length)) =
        (rest.arbitrary::<u8>(), rest.arbitrary::<u8>(), rest.arbitrary::<u8>())
        && !rest.is_empty()
    {
        let content = rest.bytes(usize::from(length).min(rest.len())).unwrap_or_default();
        let kind = if sequence == 0 { KIND_HEADER } else { kind % 5 };
        bytes.extend(block(kind, sequence, records.into(), None, content));
        sequence += 1;
    }
    if let Ok(mut reader) = TraceReader::new(&bytes[..]) {
        let header = reader.header().clone();
        let records = read(&mut reader);
        written_and_read_again(header, &records);
    }
    if let Ok(index) = TraceIndex::load(Cursor::new(&bytes)) {
        assert!(index.references() <= index.records());
    }
}
