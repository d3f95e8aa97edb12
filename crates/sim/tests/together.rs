//! Recordings of several processes: each goes on by a clock of its own, and those of one process are
//! replayed as they are.

use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{Counts, LiveOptions, References, simulate_live};
use pagekeeper_trace::{CpuTime, Header, Process, Record, Reference};

const MEMORY_BYTES: u64 = 1 << 20;

fn process(process: u32) -> Record {
    Process { process, pid: 100 + process, parent: None, name: b"p".to_vec() }.into()
}

fn touch(process: u32, segment: u32, page: u64, time_us: u64) -> Record {
    let time_ns = time_us * 1000;
    Reference { time_ns, process, segment, page, write: false, by_call: false }.into()
}

fn clock(process: u32, used_us: u64) -> Record {
    CpuTime { process, ns: used_us * 1000 }.into()
}

fn live(records: &[Record]) -> Counts {
    live_on("2", records)
}

fn live_on(processors: &str, records: &[Record]) -> Counts {
    let mut builder = References::builder();
    builder.header(&Header::new(4096).with("processors", processors));
    for record in records {
        builder.record(record, 4096, 1).unwrap();
    }
    let options = LiveOptions { frames: Some(256), ..LiveOptions::new(MEMORY_BYTES) };
    let lru = PolicySpec::parse("lru").unwrap();
    simulate_live(&builder.finish(), &lru, &options).unwrap().counts
}

/// A process that loops over 200 pages and works for a millisecond a page, and one that reads 5,000
/// pages once and hardly works. In the recording they take turns.
fn loop_and_scan(looks: bool) -> Vec<Record> {
    let mut records = vec![process(1), process(2)];
    for step in 0..5000 {
        let time_us = 1100 * step;
        if looks {
            records.extend([clock(1, 1005 * step), clock(2, 6 * step)]);
        }
        records.push(touch(1, 1, step % 200, time_us));
        records.push(touch(2, 2, step * 1009 % 5000, time_us + 1));
    }
    records
}

#[test]
fn who_is_slowed_down_by_recording_is_faster_live() {
    let recorded = live(&loop_and_scan(false));
    let by_clocks = live(&loop_and_scan(true));
    assert_eq!(recorded.references, by_clocks.references);
    // Both are read once in any case. The scan is over when the loop, which then stays, has made a
    // few passes.
    let again = |counts: Counts| counts.pages_read - 5200;
    assert!(again(recorded) > 4000, "{recorded:?}");
    assert!(again(by_clocks) < 1000, "{by_clocks:?}");
    assert_eq!(by_clocks, live(&loop_and_scan(true)), "the same every time");
}

/// There was a table entry for each that the header spoke of.
#[test]
fn processors_that_no_process_is_left_for_are_idle() {
    let records = loop_and_scan(true);
    for processors in ["3", "100000000000", "18446744073709551615"] {
        assert_eq!(live_on(processors, &records), live(&records), "{processors}");
    }
}

#[test]
fn recordings_of_one_process_are_replayed_in_their_order() {
    let one = |with_looks: bool| {
        let mut records = Vec::new();
        if with_looks {
            records.push(process(1));
        }
        for step in 0..5000 {
            if with_looks {
                records.push(clock(1, 7 * step));
            }
            records.push(touch(1, (step % 3) as u32, step * step % 700, 10 * step));
        }
        live(&records)
    };
    assert_eq!(one(true), one(false));
}

#[test]
fn recordings_with_references_of_nobody_are_replayed_in_their_order() {
    let mut records = loop_and_scan(true);
    records.push(touch(0, 3, 0, 6_000_000));
    let mut plain = loop_and_scan(false);
    plain.push(touch(0, 3, 0, 6_000_000));
    assert_eq!(live(&records), live(&plain));
}

/// The kernel leaves pages where two have them mapped, and no touch of these is seen. The emulation saw
/// as many as of others, and predicted too few misses.
#[test]
fn touches_of_what_two_have_mapped_are_not_seen() {
    let counts = |second: u32| {
        let mut records = vec![process(1), process(2), clock(1, 0), clock(2, 0)];
        let mut state = 5u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % n
        };
        for step in 0..40_000 {
            let page = below(500) * below(500) / 500;
            let by = if step % 2 == 0 { 1 } else { second };
            records.push(touch(by, 1, page, 10 * step));
        }
        records.extend([touch(2, 1, 0, 400_000), clock(1, 200_000), clock(2, 200_000)]);
        records.push(touch(1, 1, 0, 400_001));
        live(&records)
    };
    let (alone, shared) = (counts(1), counts(2));
    assert!(shared.touches_seen * 3 < alone.touches_seen * 2, "{shared:?}, {alone:?}");
    assert!(shared.faults * 20 > alone.faults * 21, "{shared:?}, {alone:?}");
}
