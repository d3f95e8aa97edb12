//! Our reading and writing of libCacheSim's formats against its own.
//!
//! Needs a Python with the package `libcachesim` (0.3.5 is known to work), and is skipped without:
//! `PAGEKEEPER_LIBCACHESIM_PYTHON=…/bin/python cargo test -p pagekeeper-trace libcachesim`.

use crate::common;

use std::path::Path;
use std::process::Command;

use common::*;
use pagekeeper_trace::*;

/// Prints every request as libCacheSim reads it.
const SCRIPT: &str = "
import sys, libcachesim as l
path, kind = sys.argv[1:3]
parameters = l.ReaderInitParam()
if kind == 'CSV_TRACE':
    parameters.time_field, parameters.obj_id_field, parameters.obj_size_field = 1, 2, 3
    parameters.obj_id_is_num, parameters.obj_id_is_num_set = True, True
    parameters.has_header, parameters.has_header_set = True, True
    parameters.delimiter = ','
for r in l.TraceReader(path, getattr(l.TraceType, kind), parameters):
    print(r.clock_time, r.obj_id, r.obj_size, r.next_access_vtime)
";

type Request = (u64, u64, u64, i64);

/// The requests that libCacheSim finds; `None` if it is not there.
fn their_reading(path: &Path, kind: &str) -> Option<Vec<Request>> {
    let Some(python) = std::env::var_os("PAGEKEEPER_LIBCACHESIM_PYTHON") else {
        println!("skipped: PAGEKEEPER_LIBCACHESIM_PYTHON names no Python with libcachesim");
        return None;
    };
    let output = Command::new(&python).arg("-c").arg(SCRIPT).arg(path).arg(kind).output();
    let output = output.unwrap_or_else(|e| panic!("{}: {e}", python.display()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let request = |line: &str| {
        let fields: Vec<i128> = line.split(' ').map(|field| field.parse().unwrap()).collect();
        (fields[0] as u64, fields[1] as u64, fields[2] as u64, fields[3] as i64)
    };
    Some(text.lines().map(request).collect())
}

/// A trace with what is frequent and what is rare, and ids of all sizes.
fn references_to_export() -> Vec<Record> {
    let page = |i: u64| match i % 5 {
        0 => i % 17,
        1 => i * i % 4_001,
        2 => (1 << 39) + i % 3,
        _ => i / 7,
    };
    (0..30_000u64)
        .map(|i| {
            let (time_ns, segment) = (i * 40_000_000, (i % 3) as u32);
            Reference {
                time_ns,
                process: 0,
                segment,
                page: page(i),
                write: i % 4 == 0,
                by_call: false,
            }
            .into()
        })
        .collect()
}

fn block((segment, page): (u32, u64)) -> u64 {
    (u64::from(segment) << SEGMENT_SHIFT) + page
}

#[test]
fn libcachesim_reads_what_we_export() {
    let records = references_to_export();
    let trace = write(Header::new(4096), WriterOptions::default(), &records);
    let directory = tempfile::tempdir().unwrap();
    for (format, kind) in
        [("oracleGeneral", "ORACLE_GENERAL_TRACE"), ("libcachesim-csv", "CSV_TRACE")]
    {
        let path = directory.path().join("trace");
        let (bytes, summary) = export(format, source("", &trace).as_mut());
        summary.unwrap();
        std::fs::write(&path, bytes).unwrap();
        let Some(theirs) = their_reading(&path, kind) else { return };
        assert_eq!(theirs.len(), records.len(), "{format}");
        let mut last_met = std::collections::HashMap::new();
        let ours: Vec<_> = references(&records).collect();
        for (i, (theirs, ours)) in theirs.iter().zip(&ours).enumerate().rev() {
            let object = block((ours.segment, ours.page));
            let next = last_met.insert(object, i as i64 + 1).unwrap_or(i64::MAX);
            let expected = (ours.time_ns / 1_000_000_000, object, 4096);
            assert_eq!((theirs.0, theirs.1, theirs.2), expected, "{format} request {i}");
            if format == "oracleGeneral" {
                assert_eq!(theirs.3, next, "request {i}");
            }
        }
    }
}

#[test]
fn we_read_what_libcachesim_reads() {
    // Records with what its reader treats apart: no size, and no next access in both spellings.
    let mut bytes = Vec::new();
    for i in 0..5_000u64 {
        bytes.extend((i as u32 / 10).to_le_bytes());
        bytes.extend((i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1_009).to_le_bytes());
        bytes.extend(((i % 7) as u32 * 1_000).to_le_bytes());
        bytes.extend([-1, i64::MAX, i as i64 + 2][i as usize % 3].to_le_bytes());
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.oracleGeneral");
    std::fs::write(&path, &bytes).unwrap();
    let Some(theirs) = their_reading(&path, "ORACLE_GENERAL_TRACE") else { return };
    let mut source = open(&path, &ImportOptions::default()).unwrap();
    let mut ours = Vec::new();
    for_each_reference(source.as_mut(), |r| ours.push((r.time_ns / 1_000_000_000, r.page)))
        .unwrap();
    assert_eq!(ours, theirs.iter().map(|r| (r.0, r.1)).collect::<Vec<_>>());
    assert_eq!(source.dropped(), [Dropped { what: "requests of 0 bytes", count: 715 }]);
}
