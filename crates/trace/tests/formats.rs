//! Importers, exporters and their registries.

use crate::common;

use std::io::{self, Cursor, Read};

use common::*;
use pagekeeper_trace::*;
use proptest::collection::vec;
use proptest::prelude::*;

#[test]
fn text_keeps_block_numbers_and_counts_what_it_drops() {
    let text = b"3\r\n *\n\n  18446744073709551615 \n5 W\n6\tr\n\t\n*\n7";
    let mut source = source("", text);
    let mut records = Vec::new();
    for_each_record(source.as_mut(), |record| records.push(record)).unwrap();
    let expected =
        [(0, 3, false), (0, u64::MAX, false), (0, 5, true), (0, 6, false), (0, 7, false)];
    assert_eq!(pages(&records), expected);
    assert!(matches!(&records[0], Record::Segment(segment) if segment.segment == 0));
    assert!(matches!(records.last(), Some(Record::Resize(resize)) if resize.bytes == u64::MAX));
    let dropped: Vec<_> = source.dropped().iter().map(|d| (d.what, d.count)).collect();
    assert_eq!(dropped, [("separators", 2), ("blank lines", 2)]);
    assert_eq!(source.header().page_bytes, 4096);
    assert_eq!(source.header().attribute("clock"), Some(&b"none"[..]));
}

#[test]
fn text_names_a_bad_line_and_what_it_says() {
    for (bad, why) in [
        ("-1", "expected a decimal"),
        ("** ", "expected a decimal"),
        ("18446744073709551616", "64 bits"),
        ("12x", "after the block number"),
        ("12W", "space"),
        ("1 2", "after the block number"),
        ("\x1b[2J", "expected a decimal"),
    ] {
        let (records, error) = import("", format!("1\n2\n{bad}\n4\n").as_bytes());
        assert_eq!(pages(&records).len(), 2, "{bad}");
        let message = error.unwrap().to_string();
        assert!(message.starts_with("line 3 of the text trace is"), "{message}");
        assert!(message.contains(&*bad.escape_default().to_string().replace("u{1b}", "x1b")));
        assert!(message.contains(why), "{message}");
    }
    let long = [&b"1\n"[..], &vec![b'9'; 1 << 20]].concat();
    let message = import("text", &long).1.unwrap().to_string();
    assert!(message.contains("line 2") && message.len() < 300, "{message}");
}

#[test]
fn csv_knows_its_columns_by_their_headings() {
    let csv = b"\xef\xbb\xbfTime, OBJ ,size,Block,op\r\n5,\"a,\"\"b\",9,10,W\r\n\r\n6,c,9,11,read\r\n7,\"a,\"\"b\",9,12,";
    let mut source = source("", csv);
    let mut records = Vec::new();
    for_each_record(source.as_mut(), |record| records.push(record)).unwrap();
    assert_eq!(pages(&records), [(0, 10, true), (1, 11, false), (0, 12, false)]);
    assert_eq!(source.dropped(), [Dropped { what: "blank lines", count: 1 }]);
    let mut catalog = Catalog::new();
    records.iter().for_each(|record| catalog.observe(record));
    assert_eq!(catalog.segment(0).unwrap().name, b"a,\"b");
    assert_eq!(catalog.segment(0).unwrap().bytes, 13 * 4096);
    assert!(matches!(records[1], Record::Reference(r) if r.time_ns == 5));
    assert!(source.header().attribute("clock").is_none());
}

#[test]
fn csv_names_a_bad_line_and_what_it_says() {
    for (csv, line, why) in [
        ("page,write\n1,0\n\n\nx,1\n", 5, "the page is no decimal"),
        ("page,write\r\n1,0\r\n+2,1\r\n", 3, "the page is no decimal"),
        ("page,write\n1,0\n2,maybe", 3, "whether it is a write"),
        ("page,write\n1,0\n2\n", 3, "1 fields under 2 headings"),
        ("page,segment\n1,0\n2,4294967296\n", 3, "the segment is no decimal"),
        ("page,block\n1,2\n", 1, "two columns mean the same"),
        ("page,obj,segment\n1,2\n", 1, "number and a name"),
        ("time,obj\n1,2\n", 1, "no column is called page"),
        ("", 1, "expected a line of headings"),
    ] {
        let (records, error) = import("csv", csv.as_bytes());
        assert_eq!(pages(&records).len(), usize::from(line > 1), "{csv}");
        let message = error.unwrap_or_else(|| panic!("{csv}")).to_string();
        assert!(message.starts_with(&format!("line {line} of the csv trace is")), "{message}");
        assert!(message.contains(why), "{message}");
    }
    // A quote that is never closed does not take the memory of the file.
    let input = Cursor::new(b"page\n1\n\"".to_vec()).chain(io::repeat(b'7'));
    let mut source = open_reader(input, None, &ImportOptions::default()).unwrap();
    let error = for_each_record(source.as_mut(), |_| ()).unwrap_err().to_string();
    assert!(error.contains("quote left open") && error.len() < 300, "{error}");
}

#[test]
fn formats_are_recognised_or_asked_for() {
    let name = |bytes: &[u8]| {
        detect(&Sample { start: bytes, whole: true, name: None }).map(|importer| importer.name())
    };
    assert_eq!(name(&write(Header::new(1), small_blocks(1), &[])), Some("pagekeeper"));
    assert_eq!(name(b"12\n13\n*\n"), Some("text"));
    assert_eq!(name(b"\n 12"), Some("text"));
    assert_eq!(name(b"12\n13\nfourteen\n"), Some("text"));
    assert_eq!(name(b"time,segment,page,write\n"), Some("csv"));
    assert_eq!(name(b"page"), Some("csv"));
    assert_eq!(name(b""), None);
    assert_eq!(name(b"\x7fELF"), None);
    // A line that the sample cuts off counts for nothing.
    let cut = Sample { start: b"12\n13 ", whole: false, name: None };
    assert_eq!(detect(&cut).map(|importer| importer.name()), Some("text"));

    let error = import("", b"\x7fELF").1.unwrap().to_string();
    assert!(error.contains("\\x7fELF") && error.contains("pagekeeper, csv, text"), "{error}");
    let error = import("tar", b"1\n").1.unwrap().to_string();
    assert!(error.contains("\"tar\"") && error.contains("pagekeeper, csv, text"), "{error}");
    let error = exporter("tar").err().unwrap().to_string();
    assert!(error.contains("text-rw"), "{error}");
    let missing = open("/nonexistent/trace", &ImportOptions::default()).err().unwrap();
    assert!(missing.to_string().contains("/nonexistent/trace"));
    let none = ImportOptions { page_bytes: Some(0), ..ImportOptions::default() };
    assert!(open_reader(&b"1\n"[..], None, &none).is_err());
}

#[test]
fn every_export_is_an_import() {
    let records = little_of_everything(3_000);
    let trace = write(Header::new(8192), small_blocks(500), &records);
    let references = pages(&records);
    let writes = references.iter().filter(|(.., write)| *write).count() as u64;

    let (bytes, summary) = export("pagekeeper", source("", &trace).as_mut());
    assert_eq!(read(&bytes).0, records);
    let summary = summary.unwrap();
    assert_eq!(summary.references + summary.others, records.len() as u64);

    let (bytes, summary) = export("csv", source("", &trace).as_mut());
    let (found, error) = import("", &bytes);
    assert!(error.is_none());
    let reference = |record: &Record| match record {
        Record::Reference(reference) => Some(*reference),
        _ => None,
    };
    assert_eq!(
        found.iter().filter_map(reference).collect::<Vec<_>>(),
        records.iter().filter_map(reference).collect::<Vec<_>>()
    );
    assert_eq!(summary.unwrap().dropped, (records.len() - references.len()) as u64);

    let block = |(segment, page, write): (u32, u64, bool)| {
        (0u32, (u64::from(segment) << SEGMENT_SHIFT) + page, write)
    };
    let (bytes, summary) = export("text-rw", source("", &trace).as_mut());
    let expected: Vec<_> = references.iter().copied().map(block).collect();
    assert_eq!(pages(&import("", &bytes).0), expected);
    assert_eq!(summary.unwrap().unmarked_writes, 0);
    let (bytes, summary) = export("text", source("", &trace).as_mut());
    assert_eq!(bytes.split(|&byte| byte == b'\n').count(), references.len() + 1);
    assert_eq!(summary.unwrap().unmarked_writes, writes);
}

#[test]
fn text_refuses_pages_that_would_collide() {
    let reference = |segment, page| {
        Record::from(Reference {
            time_ns: 0,
            process: 0,
            segment,
            page,
            write: false,
            by_call: false,
        })
    };
    let large = 1 << SEGMENT_SHIFT;
    for (references, fits) in [
        (vec![reference(0, u64::MAX), reference(0, 1)], true),
        (vec![reference(0, 1), reference(3, large - 1)], true),
        (vec![reference(0, large), reference(1, 0)], false),
        (vec![reference(1, 0), reference(0, large)], false),
        (vec![reference(1, large)], false),
        (vec![reference(1 << 24, 0)], false),
    ] {
        let trace = write(Header::new(4096), small_blocks(1), &references);
        let (bytes, summary) = export("text", source("", &trace).as_mut());
        assert_eq!(summary.is_ok(), fits);
        if let Err(error) = summary {
            assert!(error.to_string().contains("export as csv"), "{error}");
            assert_eq!(bytes.iter().filter(|&&b| b == b'\n').count(), references.len() - 1);
        }
    }
}

/// The remedy that the messages name.
#[test]
fn rewriting_a_damaged_trace_keeps_all_before_the_damage() {
    let records = little_of_everything(50);
    let trace = write(Header::new(4096), small_blocks(10), &records);
    let (bytes, summary) = export("pagekeeper", source("", &trace[..trace.len() / 2]).as_mut());
    assert!(
        matches!(summary, Err(ExportError::Source(ImportError::Trace(error))) if error.is_incomplete())
    );
    let (found, error) = read(&bytes);
    assert!(error.is_none() && !found.is_empty());
    assert_eq!(found, records[..found.len()]);
}

proptest! {
    #[test]
    fn text_and_csv_of_any_shape_never_panic(
        bytes in prop_oneof![
            vec(any::<u8>(), 0..200),
            "[0-9rRwW* \r\n\t,\"]{0,80}".prop_map(String::into_bytes),
            "(page|time|obj|segment|write|,|\n|\"|[0-9]|\r){0,40}".prop_map(String::into_bytes),
        ],
    ) {
        for format in ["text", "csv", "pagekeeper", ""] {
            let _ = import(format, &bytes);
        }
        let _ = import("csv", &[b"time,obj,page,write\n", &bytes[..]].concat());
    }

    #[test]
    fn text_gives_the_numbers_that_it_was_given(
        lines in vec(prop_oneof![
            4 => any::<u64>().prop_map(Some), 4 => (0u64..100).prop_map(Some), 1 => Just(None)
        ], 1..300),
        end in prop_oneof![Just("\n"), Just("\r\n"), Just(" \t\n")],
    ) {
        let text: String = lines
            .iter()
            .map(|line| line.map_or("*".to_owned(), |page| page.to_string()) + end)
            .collect();
        let (records, error) = import("text", text.as_bytes());
        prop_assert!(error.is_none());
        let found: Vec<_> = pages(&records).into_iter().map(|(_, page, _)| page).collect();
        prop_assert_eq!(found, lines.into_iter().flatten().collect::<Vec<_>>());
    }
}
