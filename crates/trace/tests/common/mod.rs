//! What several tests need: any record, and traces in memory.

pub(crate) mod blocks;

use std::io::Cursor;

use pagekeeper_trace::*;
use proptest::collection::vec;
use proptest::prelude::*;

const EVENTS: [ExtentEvent; 4] =
    [ExtentEvent::Allocated, ExtentEvent::Freed, ExtentEvent::Inherited, ExtentEvent::Stored];

/// Numbers that are small, large or near each other.
pub(crate) fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..8, 0u64..5_000, 1_000_000u64..1_000_100, any::<u64>(), Just(u64::MAX)]
}

pub(crate) fn small() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..4, any::<u32>(), Just(u32::MAX)]
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 0..12), Just(b"/data/a\n\0\x1b[31m\"'<script>".to_vec())]
}

pub(crate) fn record() -> impl Strategy<Value = Record> {
    let kind = prop_oneof![
        Just(SegmentKind::File),
        Just(SegmentKind::Anonymous),
        Just(SegmentKind::Heap),
        Just(SegmentKind::Other)
    ];
    let fault = prop_oneof![Just(FaultKind::Major), Just(FaultKind::Minor), Just(FaultKind::Write)];
    prop_oneof![
        1 => (small(), small(), proptest::option::of(small()), name()).prop_map(
            |(process, pid, parent, name)| Process { process, pid, parent, name }.into()),
        1 => (small(), kind, number(), name()).prop_map(
            |(segment, kind, bytes, name)| Segment { segment, kind, bytes, name }.into()),
        1 => (small(), number()).prop_map(
            |(segment, bytes)| Resize { segment, bytes }.into()),
        1 => (small(), number(), number(), 0usize..4).prop_map(
            |(segment, first, pages, event)| Extent { segment, first, pages, event: EVENTS[event] }.into()),
        1 => (small(), number()).prop_map(|(process, ns)| CpuTime { process, ns }.into()),
        1 => prop_oneof![
            Just(Sampling::Exact),
            small().prop_map(|mapped_pages| Sampling::Window { mapped_pages }),
            number().prop_map(|ns| Sampling::Interval { ns }),
        ].prop_map(Into::into),
        8 => (number(), small(), small(), number(), any::<bool>(), any::<bool>()).prop_map(
            |(time_ns, process, segment, page, write, by_call)|
            Reference { time_ns, process, segment, page, write, by_call }.into()),
        4 => (number(), small(), small(), number(), fault).prop_map(
            |(time_ns, process, segment, page, kind)|
            Fault { time_ns, process, segment, page, kind }.into()),
        4 => (number(), 0u8..=255, number(), number()).prop_map(
            |(time_ns, code, a, b)| Input { time_ns, code, a, b }.into()),
        1 => (number(), any::<u64>()).prop_map(
            |(after_inputs, value)| Digest { after_inputs, value }.into()),
    ]
}

pub(crate) fn header() -> impl Strategy<Value = Header> {
    let attributes = proptest::collection::btree_map("[a-zé]{0,6}", name(), 0..4);
    (".{0,8}", number(), 1u32.., attributes).prop_map(
        |(creator, created_unix_ns, page_bytes, attributes)| Header {
            creator,
            created_unix_ns,
            page_bytes,
            attributes,
        },
    )
}

pub(crate) fn small_blocks(block_records: u32) -> WriterOptions {
    WriterOptions { block_records, ..WriterOptions::default() }
}

pub(crate) fn write(header: Header, options: WriterOptions, records: &[Record]) -> Vec<u8> {
    let mut writer = TraceWriter::with_options(Vec::new(), header, options).unwrap();
    for record in records {
        writer.record(record).unwrap();
    }
    assert_eq!(writer.records(), records.len() as u64);
    writer.finish().unwrap()
}

/// All records of a trace, and the error that it ends in, if it does. Asserts that nothing follows
/// an error.
pub(crate) fn read(bytes: &[u8]) -> (Vec<Record>, Option<TraceError>) {
    let mut reader = match TraceReader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let (mut records, mut error) = (Vec::new(), None);
    for item in reader.by_ref() {
        assert!(error.is_none(), "something follows {error:?}");
        match item {
            Ok(record) => records.push(record),
            Err(found) => error = Some(found),
        }
    }
    assert!(reader.next().is_none());
    (records, error)
}

/// A little of everything, in an order that a recording has.
pub(crate) fn little_of_everything(rounds: u64) -> Vec<Record> {
    let mut records: Vec<Record> = vec![
        Process { process: 0, pid: 4711, parent: None, name: b"sqlite3".to_vec() }.into(),
        Process { process: 1, pid: 4712, parent: Some(0), name: b"sh\xff".to_vec() }.into(),
        Segment { segment: 7, kind: SegmentKind::File, bytes: 1 << 30, name: b"/a.db".to_vec() }
            .into(),
        Segment { segment: 8, kind: SegmentKind::Heap, bytes: 0, name: b"[heap]".to_vec() }.into(),
        Sampling::Window { mapped_pages: 512 }.into(),
    ];
    for round in 0..rounds {
        let (time_ns, page) = (1_000_000 + round * 731, round * round % 977);
        let (process, segment) = ((round / 5 % 2) as u32, 7 + (round / 3 % 2) as u32);
        let kind = [FaultKind::Major, FaultKind::Minor, FaultKind::Write][(round % 3) as usize];
        records.push(Fault { time_ns, process, segment, page, kind }.into());
        let write = round % 3 == 2;
        records.push(Reference { time_ns, process, segment, page, write, by_call: false }.into());
        records.push(Input { time_ns, code: round as u8, a: page, b: round % 2 }.into());
        if round % 8 == 7 {
            records.push(Digest { after_inputs: round, value: page.wrapping_mul(!0 / 3) }.into());
            records.push(Resize { segment: 8, bytes: round << 12 }.into());
            records.push(Sampling::Exact.into());
        }
    }
    records
}

pub(crate) fn options(format: &str) -> ImportOptions {
    ImportOptions {
        format: (!format.is_empty()).then(|| format.to_owned()),
        ..ImportOptions::default()
    }
}

pub(crate) fn source(format: &str, bytes: &[u8]) -> Box<dyn Source> {
    open_reader(Cursor::new(bytes.to_vec()), None, &options(format)).unwrap()
}

/// All records of an input in a format (or, of no name, in what is recognised), and the error that
/// it ends in, if it does.
pub(crate) fn import(format: &str, bytes: &[u8]) -> (Vec<Record>, Option<ImportError>) {
    import_with(&options(format), bytes)
}

pub(crate) fn import_with(
    options: &ImportOptions,
    bytes: &[u8],
) -> (Vec<Record>, Option<ImportError>) {
    let mut source = match open_reader(Cursor::new(bytes.to_vec()), None, options) {
        Ok(source) => source,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut records = Vec::new();
    let error = for_each_record(source.as_mut(), |record| records.push(record)).err();
    assert!(!source.next_batch(&mut Vec::new()).unwrap(), "an end is an end");
    (records, error)
}

/// Segment, page and whether it is a write, of every reference.
pub(crate) fn pages(records: &[Record]) -> Vec<(u32, u64, bool)> {
    references(records).map(|r| (r.segment, r.page, r.write)).collect()
}

pub(crate) fn references(records: &[Record]) -> impl Iterator<Item = Reference> {
    records.iter().filter_map(|record| match record {
        Record::Reference(reference) => Some(*reference),
        _ => None,
    })
}

pub(crate) fn export(
    format: &str,
    source: &mut dyn Source,
) -> (Vec<u8>, Result<ExportSummary, ExportError>) {
    let mut output = Vec::new();
    let summary = exporter(format).unwrap().export(source, &mut output);
    (output, summary)
}
