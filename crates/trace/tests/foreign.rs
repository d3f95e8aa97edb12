//! Traces that others made: small samples written by hand, damage, and bytes of any shape.

use crate::common;

use std::io::Write;
use std::path::Path;

use common::*;
use pagekeeper_trace::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// Names of the segments of a trace.
fn segment_names(records: &[Record]) -> Vec<String> {
    let names = records.iter().filter_map(|record| match record {
        Record::Segment(segment) => Some(String::from_utf8(segment.name.clone()).unwrap()),
        _ => None,
    });
    names.collect()
}

/// What a whole sample says, in a format that is recognised by itself.
fn sample(format: &str, bytes: &[u8]) -> Vec<Record> {
    let found = detect(&Sample { start: bytes, whole: true, name: None });
    assert_eq!(found.map(|importer| importer.name()), Some(format));
    let (records, error) = import("", bytes);
    assert!(error.is_none(), "{}", error.unwrap());
    records
}

fn reads(pages: &[u64]) -> Vec<(u32, u64, bool)> {
    pages.iter().map(|page| (0, *page, false)).collect()
}

fn oracle_general(requests: &[(u32, u64, u32, i64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (time_s, object, size, next) in requests {
        bytes.extend(time_s.to_le_bytes());
        bytes.extend(object.to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes.extend(next.to_le_bytes());
    }
    bytes
}

const REQUESTS: [(u32, u64, u32, i64); 9] = [
    (7, 42, 512, 3),
    (7, u64::MAX, 8193, 5),
    (8, 42, 512, 9),
    (8, 5, 0, -1),
    (9, u64::MAX, 4096, -1),
    (9, 1, 1, -1),
    (9, 2, 1, -1),
    (9, 3, 1, -1),
    (10, 42, 4096, i64::MAX),
];

#[test]
fn oracle_general_counts_objects_or_their_pages() {
    let bytes = oracle_general(&REQUESTS);
    let records = sample("oracleGeneral", &bytes);
    assert_eq!(pages(&records), reads(&[42, u64::MAX, 42, u64::MAX, 1, 2, 3, 42]));
    let times: Vec<_> = references(&records).map(|r| r.time_ns / 1_000_000_000).collect();
    assert_eq!(times, [7, 7, 8, 9, 9, 9, 9, 10]);

    let expanded = ImportOptions { objects: Objects::Pages, ..options("oracleGeneral") };
    let (records, error) = import_with(&expanded, &bytes);
    assert!(error.is_none());
    // The second object has 8193 bytes, and then 4096: three pages, and one of the same.
    let at = |object: u64, page| object << 32 | page;
    let of_second = [at(1, 0), at(1, 1), at(1, 2)];
    let expected = [&[at(0, 0)], &of_second[..], &[at(0, 0), at(1, 0)]].concat();
    assert_eq!(pages(&records)[..6], reads(&expected));
}

#[test]
fn oracle_general_is_told_by_its_name_or_by_next_accesses_that_are_right() {
    let name = |bytes: &[u8], name: &str| {
        let name = (!name.is_empty()).then_some(Path::new(name));
        detect(&Sample { start: bytes, whole: true, name }).map(|importer| importer.name())
    };
    let right = oracle_general(&REQUESTS);
    assert_eq!(name(&right, ""), Some("oracleGeneral"));
    assert_eq!(name(&right[..40], "w92.oracleGeneral.bin"), Some("oracleGeneral"));
    // Too short, zeros, or a next access to another object: anything else may look so.
    assert_eq!(name(&right[..7 * 24], ""), None);
    assert_eq!(name(&[0; 24 * 20], ""), None);
    let mut wrong = REQUESTS;
    wrong[0].3 = 2;
    assert_eq!(name(&oracle_general(&wrong), ""), None);
}

#[test]
fn arc_runs_of_blocks_become_pages() {
    let text = b"10 3 0 1\n8 1 0 2\r\n\n5 0 0 3\n";
    let records = sample("arc", text);
    assert_eq!(pages(&records), reads(&[10, 11, 12, 8]));
    let header = source("arc", text).header().clone();
    assert_eq!(header.page_bytes, 512);
    // The same blocks in pages of 4096 bytes.
    let larger = ImportOptions { page_bytes: Some(4096), ..options("arc") };
    assert_eq!(pages(&import_with(&larger, b"7 2 0 1\n16 8 0 2\n").0), reads(&[0, 1, 2]));
    let blocks = ImportOptions { block_bytes: Some(8192), ..larger };
    assert_eq!(pages(&import_with(&blocks, b"7 1 0 1\n").0), reads(&[14, 15]));
}

#[test]
fn msr_disks_are_segments_and_requests_are_pages() {
    let text = b"128166372003061629,hm,0,Read,4095,2,413\n\
                 128166372003061630,hm,1,Write,8192,4096,1\r\n\
                 128166372003061631,hm,0,Write,0,0,1\n\
                 128166372003061632,hm,0,Write,0,1,1\n";
    let records = sample("msr", text);
    assert_eq!(pages(&records), [(0, 0, false), (0, 1, false), (1, 2, true), (0, 0, true)]);
    assert_eq!(segment_names(&records), ["hm_0", "hm_1"]);
    assert_eq!(references(&records).next().unwrap().time_ns, 12_816_637_200_306_162_900);
    let dropped = {
        let mut source = source("msr", text);
        for_each_record(source.as_mut(), |_| ()).unwrap();
        source.dropped()
    };
    assert_eq!(dropped[0], Dropped { what: "requests of nothing", count: 1 });
}

/// Two requests as VMware's tracing wrote them, in both versions.
fn vscsi(version: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (command, block, size, time_us) in
        [(0x2au16, 7u64, 1024u32, 5u64), (0x28, 16, 4096, 6), (0x35, 0, 0, 7), (0x88, 0, 1, 8)]
    {
        let serial = 0x8000_0000u32;
        if version == 1 {
            bytes.extend([serial, size, 1].map(u32::to_le_bytes).concat());
            bytes.extend([command, version << 8].map(u16::to_le_bytes).concat());
            bytes.extend([block, time_us].map(u64::to_le_bytes).concat());
        } else {
            bytes.extend([command, version << 8].map(u16::to_le_bytes).concat());
            bytes.extend([serial, size, 1].map(u32::to_le_bytes).concat());
            bytes.extend([block, time_us, 99].map(u64::to_le_bytes).concat());
        }
    }
    bytes
}

#[test]
fn cloudphysics_is_read_in_three_forms() {
    let expected = [(0, 0, true), (0, 1, true), (0, 2, false), (0, 0, false)];
    for version in [1, 2] {
        let records = sample("cloudphysics", &vscsi(version));
        assert_eq!(pages(&records), expected);
        assert_eq!(references(&records).last().unwrap().time_ns, 8_000);
    }
    let csv = b"version,time,op,size,lbn\n1,5,2a,1024,7\n1,6,28,4096,16\n1,7,35,0,0\n1,8,88,1,0\n";
    let records = sample("cloudphysics", csv);
    assert_eq!(pages(&records), expected);
    assert_eq!(references(&records).last().unwrap().time_ns, 8_000_000_000);
    let mut source = source("", csv);
    for_each_record(source.as_mut(), |_| ()).unwrap();
    assert_eq!(
        source.dropped()[0],
        Dropped { what: "requests that neither read nor write", count: 1 }
    );
    // A record of another version in between is damage, and named.
    let mut damaged = vscsi(1);
    damaged[32 * 2 + 15] = 9;
    let (records, error) = import("cloudphysics", &[vscsi(1).repeat(16), damaged].concat());
    assert_eq!(pages(&records).len(), 16 * 4 + 3);
    let message = error.unwrap().to_string();
    assert!(message.contains("record 67") && message.contains("byte 2112"), "{message}");
}

#[test]
fn lackey_accesses_become_pages() {
    let text = b"==7== Lackey, an example Valgrind tool\n==7== Command: true\nI  0401ab70,3\n L \
                 1ffeffffff,8\n S 1000,4\n M 00002fff,1\n SB 04013170\n\n==7== \n";
    let records = sample("lackey", text);
    // 1ffeffffff is the last byte of its page.
    let expected = [
        (0, 0x401a, false),
        (0, 0x01ff_efff, false),
        (0, 0x01ff_f000, false),
        (0, 1, true),
        (0, 2, true),
    ];
    assert_eq!(pages(&records), expected);
}

#[test]
fn addresses_come_in_many_dresses() {
    let text = b"# a comment\n0x1000\nR 0x2000\n0x3fff W\n0x400500: W 0x5000\n1 0x6000\n2,0x7000\n\
                 s 0x8000 4\n";
    let records = sample("addresses", text);
    let expected = [(1, false), (2, false), (3, true), (5, true), (6, true), (7, false), (8, true)];
    assert_eq!(pages(&records), expected.map(|(page, write)| (0, page, write)));
    // Dinero has no 0x, and must be named: it could be decimal.
    assert_eq!(pages(&import("addresses", b"1 1fff\n0 2000\n").0), [(0, 1, true), (0, 2, false)]);
    assert_eq!(pages(&import("addresses", b"a000\n").0), reads(&[10]));
}

#[test]
fn any_names_are_pages_of_their_own() {
    let records = import("ids", b"/a/b\nuser:7\r\n\n/a/b\n42\n").0;
    let found: Vec<_> = pages(&records).into_iter().map(|(_, page, _)| page).collect();
    assert_eq!(found.len(), 4);
    assert_eq!(found[0], found[2]);
    assert!(found[0] != found[1] && found[1] != found[3] && found[0] != found[3]);
}

const PERF_SCRIPT: &str = "\
 Web Content 32177/32180 [001]  1231.623876:      filemap:mm_filemap_add_to_page_cache: dev 254:0 ino 99619e pfn=0x124318 ofs=8192 order=1
       perf-exec 32199 [001]  1231.623968:              filemap:mm_filemap_map_pages: dev=254:0 ino=4fa7d ofs=65536-73727
       perf-exec 32199 [001]  1231.624305:              filemap:mm_filemap_get_pages: dev=254:0 ino=3c4f2 ofs=0-4095
             cat 32200 [000]  1231.7:     filemap:mm_filemap_fault: dev=254:0 ino=99619e ofs=12288
             cat 32200 [000]  1231.8: filemap:mm_filemap_delete_from_page_cache: dev 254:0 ino 99619e pfn=0x1 ofs=0 order=0
";

#[test]
fn page_cache_events_of_perf_script() {
    let records = sample("page-cache", PERF_SCRIPT.as_bytes());
    let expected = [(1, 16, false), (1, 17, false), (2, 0, false), (0, 3, false)];
    assert_eq!(pages(&records), expected);
    let names = ["254:0:10051998", "254:0:326269", "254:0:247026"];
    assert_eq!(segment_names(&records), names);
    let faults: Vec<_> = records
        .iter()
        .filter_map(|record| match record {
            Record::Fault(f) => Some((f.segment, f.page, f.kind, f.process)),
            _ => None,
        })
        .collect();
    assert_eq!(faults, [(0, 2, FaultKind::Major, 0), (0, 3, FaultKind::Major, 0)]);
    let processes: Vec<_> = records
        .iter()
        .filter_map(|record| match record {
            Record::Process(p) => Some((String::from_utf8(p.name.clone()).unwrap(), p.pid)),
            _ => None,
        })
        .collect();
    let named = |name: &str, pid| (name.to_owned(), pid);
    assert_eq!(
        processes,
        [named("Web Content", 32180), named("perf-exec", 32199), named("cat", 32200)]
    );
    let times: Vec<_> = references(&records).map(|r| r.time_ns).collect();
    assert_eq!(times[0], 1_231_623_968_000);
    assert_eq!(times[3], 1_231_700_000_000);

    // Asked for additions, they are the references.
    let additions =
        ImportOptions { events: Some(PageCacheEvents::Additions), ..options("page-cache") };
    let (records, _) = import_with(&additions, PERF_SCRIPT.as_bytes());
    assert_eq!(pages(&records), reads(&[2, 3]));
}

#[test]
fn page_cache_events_of_ftrace_and_perf_trace() {
    let ftrace = b"# tracer: nop\n#\n           <...>-123     (   120) [003] d..2. 45.000001: \
                   mm_filemap_add_to_page_cache: dev 8:1 ino a page=00000000 pfn=77 ofs=4096\n \
                   kworker/0:1-9 [000] 46.5: mm_filemap_add_to_page_cache: dev 8:1 ino a \
                   page=0 pfn=7 ofs=0\n";
    // Kernels that only tell of additions: those are all there is.
    let records = sample("page-cache", ftrace);
    assert_eq!(pages(&records), reads(&[1, 0]));
    assert_eq!(segment_names(&records), ["8:1:10"]);

    let perf_trace = b"     0.000 cat/3516 filemap:mm_filemap_fault(i_ino: 247026, s_dev: \
                       266338304, index: 10)\n     0.156 ( 0.002 ms): cat/3516 \
                       filemap:mm_filemap_map_pages(i_ino: 247026, s_dev: 266338305, last_index: \
                       1)\n";
    let records = sample("page-cache", perf_trace);
    assert_eq!(pages(&records), [(0, 10, false), (1, 0, false), (1, 1, false)]);
    assert_eq!(segment_names(&records), ["254:0:247026", "254:1:247026"]);
    assert_eq!(references(&records).last().unwrap().time_ns, 156_000);
}

fn with_columns(columns: &str) -> ImportOptions {
    ImportOptions { columns: Some(columns.parse().unwrap()), ..ImportOptions::default() }
}

#[test]
fn csv_columns_as_libcachesim_is_told_them() {
    let csv = b"version,time,op,size,lbn\n1,5,get,512,42\n1,5.25,set,8193,7\n1,6,delete,1,7\n\
                1,6,gets,0,9\n1,7,read,1,42\n";
    for columns in [
        "time-col=2, obj-id-col=5, obj-size-col=4, op-col=3",
        "time-col=2, obj-id-col=5, obj-size-col=4, op=3, delimiter=,, has-header=true",
        "time=time,obj=LBN,size=size,op=op,obj-id-is-num=true",
    ] {
        let (records, error) = import_with(&with_columns(columns), csv);
        assert!(error.is_none(), "{}", error.unwrap());
        assert_eq!(pages(&records), [(0, 42, false), (0, 7, true), (0, 42, false)], "{columns}");
        assert_eq!(references(&records).nth(1).unwrap().time_ns, 5_250_000_000);
    }
    let expanded = ImportOptions { objects: Objects::Pages, ..with_columns("obj=5,size=4,op=3") };
    let (records, error) = import_with(&expanded, csv);
    assert!(error.is_none());
    let second = 1 << 32;
    let expected = [(0, false), (second, true), (second + 1, true), (second + 2, true), (0, false)];
    assert_eq!(pages(&records), expected.map(|(page, write)| (0, page, write)));

    // No headings, another delimiter, names for objects, milliseconds.
    let names = with_columns("time=1,obj=2,delimiter=tab,time-unit=ms");
    let (records, error) = import_with(&names, b"1\t/a\n2\t/b\n3\t/a\n");
    assert!(error.is_none());
    let found = pages(&records);
    assert!(found.len() == 3 && found[0] == found[2] && found[0] != found[1]);
    assert_eq!(references(&records).last().unwrap().time_ns, 3_000_000);
    // A page and a segment may be told too.
    let (records, _) = import_with(&with_columns("page=2,file=1"), b"a,5\nb,5\na,6\n");
    assert_eq!(pages(&records), [(0, 5, false), (1, 5, false), (0, 6, false)]);
}

#[test]
fn csv_columns_that_make_no_sense_are_refused() {
    for (columns, why) in [
        ("", "no column is the page or the object"),
        ("time=1", "no column is the page or the object"),
        ("obj=1,page=2", "either a page or an object"),
        ("obj=1,obj-id-col=2", "two columns are"),
        ("obj=0", "numbered from 1"),
        ("obj=", "names no column"),
        ("obj", "is no KEY=COLUMN"),
        ("obj=1,tll=2", "cannot mean `tll`"),
        ("obj=1,delimiter=ab", "is no character"),
        ("obj=1,has-header=perhaps", "true or false"),
        ("obj=1,time-unit=h", "none of s, ms, us, ns"),
    ] {
        let error = columns.parse::<ColumnSpec>().unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("write KEY=COLUMN"), "{columns}: {error}");
    }
    let wrong =
        |columns, csv: &[u8]| import_with(&with_columns(columns), csv).1.unwrap().to_string();
    assert!(wrong("obj=3", b"1,2\n").contains("it has 2 columns, and none is 3"));
    assert!(wrong("obj=lbn", b"a,b\n").contains("no column is called lbn"));
    assert!(wrong("obj=1", b"1\nx\n").contains("obj-id-is-num=false"));
    assert!(wrong("time=1,obj=2", b"1,2\nx,2\n").contains("line 2 of the csv trace"));
    let pages = ImportOptions { objects: Objects::Pages, ..with_columns("obj=1") };
    assert!(import_with(&pages, b"1\n").1.unwrap().to_string().contains("size=N"));
    let elsewhere = ImportOptions { format: Some("text".into()), ..with_columns("obj=1") };
    assert!(import_with(&elsewhere, b"1\n").1.unwrap().to_string().contains("--columns is for"));
}

/// Our own traces took any of them in silence, or were read as csv.
#[test]
fn our_own_traces_have_no_use_for_what_says_how_others_are_read() {
    let own = TraceWriter::new(Vec::new(), Header::new(4096)).unwrap().finish().unwrap();
    assert!(import_with(&ImportOptions::default(), &own).1.is_none());
    for (options, why) in [
        (with_columns("page=1"), "--columns is for"),
        (ImportOptions { objects: Objects::Pages, ..ImportOptions::default() }, "--objects is for"),
        (ImportOptions { block_bytes: Some(512), ..ImportOptions::default() }, "--block-bytes is"),
    ] {
        let error = import_with(&options, &own).1.unwrap().to_string();
        assert!(error.contains(why) && error.ends_with("this one is pagekeeper"), "{error}");
    }
}

/// A small trace of every foreign format, and whether it is text.
fn samples() -> Vec<(&'static str, Vec<u8>, bool)> {
    let msr = b"1,hm,0,Read,4095,2,413\n2,hm,1,Write,8192,4096,1\n3,hm,0,Read,0,1,9\n";
    let csv = b"time,segment,page,write\n1,2,3,0\n4,5,6,1\n7,2,8,0\n";
    vec![
        ("text", b"12\n13 W\n*\n14\n".to_vec(), true),
        ("lirs", b"12\n*\n14\n".to_vec(), true),
        ("ids", b"one\ntwo\none\n".to_vec(), true),
        ("csv", csv.to_vec(), true),
        ("arc", b"10 3 0 1\n8 1 0 2\n7 2 0 3\n".to_vec(), true),
        ("msr", msr.to_vec(), true),
        ("lackey", b"I  0401ab70,3\n L 1ffeffe7e8,8\n S 1000,4\n".to_vec(), true),
        ("addresses", b"0x1000\nR 0x2000\n0x3fff W\n".to_vec(), true),
        ("page-cache", PERF_SCRIPT.as_bytes().to_vec(), true),
        ("oracleGeneral", oracle_general(&REQUESTS), false),
        ("cloudphysics", vscsi(1), false),
        ("cloudphysics", vscsi(2), false),
    ]
}

#[test]
fn every_foreign_trace_cut_at_any_byte_keeps_what_is_before() {
    for (format, bytes, is_text) in samples() {
        let whole = pages(&import(format, &bytes).0);
        for length in 0..bytes.len() {
            let (records, error) = import(format, &bytes[..length]);
            let found = pages(&records);
            // The last line may be cut within a number, and be a line all the same.
            let sure = if is_text { found.len().saturating_sub(2) } else { found.len() };
            assert!(found.len() <= whole.len() + 1, "{format} cut at {length}");
            assert_eq!(found[..sure], whole[..sure], "{format} cut at {length}");
            if let Some(error) = &error {
                let message = error.to_string();
                // Less than a record of one of its versions may be text, for all that it shows.
                let place = if is_text || length < 32 { "line " } else { "record " };
                let named = message.contains(place) || message.contains("record ");
                assert!(named && message.contains(format), "{message}");
            }
            let record_bytes = match (format, bytes.len()) {
                ("oracleGeneral", _) => 24,
                ("cloudphysics", 128) => 32,
                ("cloudphysics", _) => 40,
                _ => continue,
            };
            assert_eq!(error.is_some(), length % record_bytes != 0, "{format} cut at {length}");
            if let Some(ImportError::Record { record, offset, .. }) = error {
                assert_eq!(offset, (length - length % record_bytes) as u64);
                assert_eq!(record, (length / record_bytes + 1) as u64);
            }
        }
    }
}

#[test]
fn every_foreign_trace_with_any_bit_flipped_is_read_or_names_the_place() {
    for (format, mut bytes, is_text) in samples() {
        for place in 0..bytes.len() {
            let line = bytes[..place].iter().filter(|&&byte| byte == b'\n').count() as u64 + 1;
            for bit in 0..8 {
                bytes[place] ^= 1 << bit;
                match import(format, &bytes).1 {
                    None => {}
                    Some(ImportError::Line { line: named, .. }) => {
                        // A line end that is gone or new moves the damage to the line before or
                        // behind; a quote that is never closed reaches to the end.
                        assert!(named + 1 >= line, "{format} byte {place}: line {named}");
                    }
                    Some(ImportError::Record { offset, .. }) => {
                        assert!(!is_text && offset <= place as u64, "{format} byte {place}");
                    }
                    Some(error) => panic!("{format} byte {place}: {error}"),
                }
                bytes[place] ^= 1 << bit;
            }
        }
    }
}

#[test]
fn lines_that_are_wrong_say_what_was_expected() {
    for (format, text, line, why) in [
        ("arc", "1 2 3 4\n1 2 3\n", 2, "expected four decimal numbers"),
        ("arc", "18446744073709551615 1 0 0\n", 1, "on no disk"),
        ("arc", "36028797018963967 2 0 0\n", 1, "behind the last byte of 64 bits"),
        ("msr", "1,h,0,Read,0,1\n", 1, "seven fields"),
        ("msr", "1,h,0,Seek,0,1,1\n", 1, "neither Read nor Write"),
        ("msr", "1,h,0,Read,-1,1,1\n", 1, "no decimal"),
        ("lackey", " L 1000,4\n X 1000,4\n", 2, "expected I, L, S or M"),
        ("lackey", " L 1000,0\n", 1, "at least 1 byte"),
        ("addresses", "0x1\nhello\n", 2, "expected a hexadecimal address"),
        ("addresses", "0x10000000000000000\n", 1, "expected a hexadecimal address"),
        (
            "page-cache",
            "c 1 [0] 1.0: filemap:mm_filemap_fault: dev=1:2 ofs=0\n",
            1,
            "dev, ino and ofs",
        ),
        ("page-cache", "c [0] 1.0: mm_filemap_fault: dev=1:2 ino=1 ofs=0\n", 1, "process id"),
        (
            "page-cache",
            "c 1 [0] 1.0: mm_filemap_get_pages: dev=1:2 ino=1 ofs=9-0\n",
            1,
            "before it begins",
        ),
    ] {
        let message = import(format, text.as_bytes()).1.expect(text).to_string();
        let start = format!("line {line} of the {format} trace is");
        assert!(message.starts_with(&start), "{message}");
        assert!(message.contains(why) && message.contains("--salvage"), "{message}");
    }
}

/// A request of all the blocks there are must not take memory for them.
#[test]
fn huge_requests_are_given_out_piece_by_piece() {
    let mut source = source("arc", b"0 36028797018963967 0 1\n");
    let mut batch = Vec::new();
    for round in 0..50 {
        batch.clear();
        assert!(source.next_batch(&mut batch).unwrap());
        assert!(batch.len() <= BATCH_RECORDS, "{}", batch.len());
        assert!(round == 0 || batch.len() == BATCH_RECORDS - 2);
    }
    let expected = ImportOptions { objects: Objects::Pages, ..options("oracleGeneral") };
    let options = ImportOptions { page_bytes: Some(1), ..expected };
    let bytes = oracle_general(&[(0, 1, u32::MAX, -1)]);
    let mut source = open_reader(std::io::Cursor::new(bytes), None, &options).unwrap();
    batch.clear();
    source.next_batch(&mut batch).unwrap();
    assert!(batch.len() <= BATCH_RECORDS);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn compressed_traces_are_read_as_they_are() {
    let text: String = (0..20_000).map(|page| format!("{page}\n")).collect();
    let (first, second) = text.as_bytes().split_at(text.len() / 3);
    let zstd = |bytes| zstd::bulk::compress(bytes, 1).unwrap();
    // Parallel compressors start files with a skippable frame.
    let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4][..], &zstd(text.as_bytes())];
    for bytes in [
        zstd(text.as_bytes()),
        [zstd(first), zstd(second)].concat(),
        skippable.concat(),
        gzip(text.as_bytes()),
        [gzip(first), gzip(second)].concat(),
    ] {
        let (records, error) = import("", &bytes);
        assert!(error.is_none(), "{}", error.unwrap());
        assert_eq!(pages(&records), reads(&(0..20_000).collect::<Vec<_>>()));
    }
    let trace = write(Header::new(512), small_blocks(9), &little_of_everything(20));
    for bytes in [zstd(&trace), gzip(&trace)] {
        assert_eq!(import("", &bytes).0, little_of_everything(20));
    }
    // The name inside counts: the content alone would be too short to tell.
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in [
        ("t.oracleGeneral.zst", zstd(&oracle_general(&REQUESTS)[..48])),
        ("t.oracleGeneral.bin.gz", gzip(&oracle_general(&REQUESTS)[..48])),
    ] {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let mut source = open(&path, &ImportOptions::default()).unwrap();
        assert_eq!(for_each_reference(source.as_mut(), |_| ()).unwrap(), 2, "{name}");
    }
}

#[test]
fn compressed_traces_cut_anywhere_say_so() {
    let text: String = (0..400u64).map(|i| format!("{}\n", i * 7919 % 1009)).collect();
    let whole = pages(&import("text", text.as_bytes()).0);
    for (name, bytes) in [
        ("zstd", zstd::bulk::compress(text.as_bytes(), 1).unwrap()),
        ("gzip", gzip(text.as_bytes())),
    ] {
        for length in 4..bytes.len() {
            let (records, error) = import("text", &bytes[..length]);
            let found = pages(&records);
            assert_eq!(found, whole[..found.len()], "{name} cut at {length}");
            let error = error.unwrap_or_else(|| panic!("{name} cut at {length}"));
            let message = error.to_string();
            assert!(message.contains(name), "{message}");
            assert!(message.contains(&format!("first {length} compressed bytes")), "{message}");
        }
    }
}

/// The number, from 1, of the next request for the same object: the obvious way.
fn next_accesses(pages: &[u64]) -> Vec<i64> {
    let next = |(at, page): (usize, &u64)| {
        let later = pages[at + 1..].iter().position(|other| other == page);
        later.map_or(-1, |distance| (at + 1 + distance + 1) as i64)
    };
    pages.iter().enumerate().map(next).collect()
}

#[test]
fn oracle_general_is_exported_over_several_pieces() {
    let page = |i: u64| i * i % 10_007;
    let records: Vec<Record> = (0..40_000u64)
        .map(|i| {
            let (time_ns, process, segment) = (i << 20, 0, 0);
            Reference {
                time_ns,
                process,
                segment,
                page: page(i),
                write: i % 9 == 0,
                by_call: false,
            }
            .into()
        })
        .collect();
    let trace = write(Header::new(8192), WriterOptions::default(), &records);
    let (bytes, summary) = export("oracleGeneral", source("", &trace).as_mut());
    let summary = summary.unwrap();
    assert_eq!((summary.references, summary.unmarked_writes), (40_000, 4_445));
    // From the end, as nobody could from the front.
    let mut met = std::collections::HashMap::new();
    for (i, request) in bytes.chunks(24).enumerate().rev() {
        let next = met.insert(page(i as u64), i as i64 + 1).unwrap_or(-1);
        let expected = oracle_general(&[(
            ((i as u64) << 20) as u32 / 1_000_000_000,
            page(i as u64),
            8192,
            next,
        )]);
        assert_eq!(request[4..], expected[4..], "request {i}");
    }
    assert_eq!(met.len(), (0..40_000).map(page).collect::<std::collections::HashSet<_>>().len());
}

#[test]
fn a_damaged_source_exports_what_is_before_the_damage() {
    let trace = write(Header::new(4096), small_blocks(10), &little_of_everything(50));
    let (bytes, summary) = export("oracleGeneral", source("", &trace[..trace.len() / 2]).as_mut());
    assert!(matches!(summary, Err(ExportError::Source(_))));
    assert!(!bytes.is_empty() && bytes.len() % 24 == 0);
    let last = i64::from_le_bytes(bytes[bytes.len() - 8..].try_into().unwrap());
    assert_eq!(last, -1);
}

fn trace_of(pages: &[(u64, bool)]) -> Vec<u8> {
    let records: Vec<Record> = pages
        .iter()
        .enumerate()
        .map(|(i, &(page, write))| {
            let time_ns = i as u64 * 1_000_000_000;
            Reference { time_ns, process: 0, segment: 0, page, write, by_call: false }.into()
        })
        .collect();
    write(Header::new(4096), small_blocks(64), &records)
}

proptest! {
    #[test]
    fn what_is_exported_is_imported(
        pages_written in vec((prop_oneof![0u64..20, number()], any::<bool>()), 1..200),
    ) {
        let trace = trace_of(&pages_written);
        let expected: Vec<_> = pages_written.iter().map(|(page, _)| *page).collect();

        let (bytes, summary) = export("oracleGeneral", source("", &trace).as_mut());
        prop_assert_eq!(summary.unwrap().references, expected.len() as u64);
        let (records, error) = import("oracleGeneral", &bytes);
        prop_assert!(error.is_none());
        let found: Vec<_> = references(&records).map(|r| (r.page, r.time_ns)).collect();
        let times = expected.iter().zip(0u64..).map(|(page, i)| (*page, i * 1_000_000_000));
        prop_assert_eq!(found, times.collect::<Vec<_>>());
        let next: Vec<_> = bytes
            .chunks(24)
            .map(|request| i64::from_le_bytes(request[16..].try_into().unwrap()))
            .collect();
        prop_assert_eq!(next, next_accesses(&expected));
        if expected.len() >= 8 {
            let recognised = detect(&Sample { start: &bytes, whole: true, name: None });
            prop_assert_eq!(recognised.map(|importer| importer.name()), Some("oracleGeneral"));
        }

        let (bytes, _) = export("libcachesim-csv", source("", &trace).as_mut());
        let columns = with_columns("time-col=1,obj-id-col=2,obj-size-col=3,op-col=4");
        let (records, error) = import_with(&columns, &bytes);
        prop_assert!(error.is_none());
        let found: Vec<_> = references(&records).map(|r| (r.page, r.write)).collect();
        prop_assert_eq!(&found, &pages_written);
        // By its headings, too.
        let (records, error) = import("", &bytes);
        prop_assert!(error.is_none());
        let found: Vec<_> = references(&records).map(|r| (r.page, r.write)).collect();
        prop_assert_eq!(found, pages_written);
    }

    #[test]
    fn disks_touch_the_pages_that_hold_their_bytes(
        requests in vec((0u64..1 << 16, 1u64..20_000, any::<bool>()), 1..30),
        page_bytes in prop_oneof![Just(512u32), Just(4096), 1u32..10_000],
    ) {
        let expected: Vec<_> = requests
            .iter()
            .flat_map(|&(start, bytes, write)| {
                let mut pages: Vec<u64> =
                    (start..start + bytes).map(|byte| byte / u64::from(page_bytes)).collect();
                pages.dedup();
                pages.into_iter().map(move |page| (0, page, write))
            })
            .collect();
        let text: String = requests
            .iter()
            .map(|(start, bytes, write)| {
                let kind = if *write { "Write" } else { "Read" };
                format!("9,usr,3,{kind},{start},{bytes},0\n")
            })
            .collect();
        let options = ImportOptions { page_bytes: Some(page_bytes), ..options("msr") };
        let (records, error) = import_with(&options, text.as_bytes());
        prop_assert!(error.is_none());
        prop_assert_eq!(pages(&records), expected);
    }

    #[test]
    fn bytes_of_any_shape_never_panic(
        bytes in prop_oneof![
            vec(any::<u8>(), 0..300),
            vec(prop_oneof![Just(0u8), Just(1), Just(255), any::<u8>()], 0..300),
            "[0-9a-fxRWLSIM ,:.*#\n\r\t-]{0,120}".prop_map(String::into_bytes),
            "(mm_filemap_|fault|get_pages|add_to_page_cache|: |dev|=|ino|ofs|order|s_dev|index|[0-9]|\
              |/|-|\\[|\\]|\\(|\\)|,|\n| ){0,60}".prop_map(String::into_bytes),
            "(1|Read|Write|,|hm|\n|[0-9]{1,22}|\"){0,60}".prop_map(String::into_bytes),
        ],
        cut in 0usize..400,
    ) {
        let bounded = |options: &ImportOptions, bytes: &[u8]| {
            // A request may be of all pages there are: that many are not asked for.
            let input = std::io::Cursor::new(bytes.to_vec());
            if let Ok(mut source) = open_reader(input, None, options) {
                let mut batch = Vec::new();
                for _ in 0..4 {
                    batch.clear();
                    if !matches!(source.next_batch(&mut batch), Ok(true)) {
                        break;
                    }
                }
            }
        };
        for importer in importers() {
            bounded(&options(importer.name()), &bytes);
        }
        bounded(&options(""), &bytes);
        bounded(&with_columns("time=1,obj=2,size=3,op=4"), &bytes);
        let pages = ImportOptions { objects: Objects::Pages, ..with_columns("obj=1,size=2") };
        bounded(&pages, &bytes);
        // Behind a start that is right.
        for (format, start, _) in samples() {
            let start = &start[..cut.min(start.len())];
            bounded(&options(format), &[start, &bytes].concat());
            bounded(&options(""), &[start, &bytes].concat());
        }
        for magic in [&[0x28, 0xb5, 0x2f, 0xfd][..], &[0x1f, 0x8b, 8], &[0x51, 0x2a, 0x4d, 0x18]] {
            bounded(&options(""), &[magic, &bytes].concat());
        }
    }

    #[test]
    fn column_specs_of_any_shape_never_panic(text in "[a-z0-9=,\\-\t ]{0,60}") {
        let _ = text.parse::<ColumnSpec>();
    }
}
