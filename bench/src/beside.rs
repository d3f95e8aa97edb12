//! What goes on beside a program: recording it, and the background that looks after idle and dirty
//! pages.

use crate::contest::{Contender, interleave};
use crate::machine::{Machine, READ_AHEAD_KIB};
use crate::overhead;
use crate::pattern;
use crate::run::{Measured, Pager, Program};
use crate::table::{self, Spread};
use anyhow::Result;
use pagekeeper::engine::core::Log;
use pagekeeper::launch::recorder::{self, Content};
use pagekeeper_frames::Input;
use pagekeeper_policy::PolicySpec;
use pagekeeper_sys::process::CpuClock;
use pagekeeper_trace::{Header, Sampling};
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
/// Times that what was recorded is recorded again.
const AGAIN: usize = 9;

/// Recording, and the background; or only what has a name that contains this.
///
/// # Errors
/// A run's.
pub fn beside(machine: &Machine, repeats: u32, only: Option<&str>) -> Result<()> {
    let wanted = |name: &str| only.is_none_or(|only| name.contains(only));
    if wanted("recording") {
        recording(machine, repeats)?;
    }
    if wanted("background") {
        background(machine, repeats)?;
    }
    Ok(())
}

/// Live runs with and without `--record`.
fn recording(machine: &Machine, repeats: u32) -> Result<()> {
    const MEMORY: u64 = 32 * MIB;
    let file = machine.file(96 * MIB / 4096)?;
    let mut rows = Vec::new();
    let mut alone = Vec::new();
    let mut results = Vec::new();
    let programs = [
        ("skewed touches", Program::workload("zipf", &file, &["400000", "0.9", "7"])?),
        ("a loop", Program::workload("loop", &file, &["20"])?),
    ];
    for (name, program) in programs {
        let [trace, inputs] = ["beside.pkt", "beside-inputs.pkt"].map(|name| machine.scratch(name));
        let recorded = |trace: &PathBuf, inputs| Pager::Record {
            policy: "clock".into(),
            trace: trace.clone(),
            inputs,
            window_pages: None,
        };
        let mut contenders = [
            ("not recorded", Pager::Policy("clock".into())),
            ("--record", recorded(&trace, false)),
            ("--record --record-inputs", recorded(&inputs, true)),
        ]
        .map(|(name, pager)| Contender::new(name, &program, pager, READ_AHEAD_KIB));
        interleave(machine, &mut contenders, MEMORY, repeats)?;
        let plain = &contenders[0];
        for c in &contenders {
            let ratio = |f: fn(&Measured) -> u64| {
                let pairs = c.runs.iter().zip(&plain.runs);
                Spread::of(pairs.map(|(a, b)| f(a) as f64 / f(b) as f64))
            };
            rows.push(vec![
                format!("{name}, {}", c.name),
                format!("{:.2}", c.spread(|r| r.elapsed_ns as f64 / 1e9)),
                format!("{:.3}", ratio(|r| r.elapsed_ns)),
                format!("{:.2}", c.spread(|r| r.cpu_ns as f64 / 1e9)),
                format!("{:.3}", ratio(|r| r.cpu_ns)),
                format!("{:.0}", c.spread(|r| r.count("major_faults") as f64)),
            ]);
        }
        let told = overhead::inputs(&inputs)?;
        let cpu_ns = plain.spread(|r| r.cpu_ns as f64).median;
        let mut taken = Vec::new();
        for (how, inputs) in [("--record", false), ("--record --record-inputs", true)] {
            let again = machine.scratch("beside-again.pkt");
            let mut records = 0;
            let mut times_ns = Vec::new();
            for _ in 0..AGAIN {
                let (count, ns) = record_again(&told, &again, inputs)?;
                records = count;
                times_ns.push(ns as f64);
            }
            alone.push(vec![
                format!("{name}, {how}"),
                records.to_string(),
                format!("{:.0}", Spread::of(times_ns.iter().map(|ns| ns / records as f64))),
                format!("{:.1}", Spread::of(times_ns.iter().map(|ns| ns / 1e6))),
                format!("{:.2}", Spread::of(times_ns.iter().map(|ns| ns / cpu_ns * 100.0))),
            ]);
            taken.push(json!({ "how": how, "records": records, "cpu_ns": times_ns }));
        }
        results.push(json!({
            "program": name,
            "contenders": contenders.iter().map(Contender::json).collect::<Vec<_>>(),
            "alone": taken,
        }));
    }
    let head = ["program", "elapsed s", "ratio", "CPU s", "ratio", "major faults"];
    let title = format!(
        "Recording: 96 MiB file, {} MiB of memory, clock; CPU of all processes; ratios run by run",
        MEMORY / MIB
    );
    table::print(&title, &head, &rows);
    let head = ["recorded again", "records", "CPU ns a record", "CPU ms", "% of a run's CPU"];
    let title = "What recording takes for itself: the same, given to a recorder by itself, which \
                 compresses and writes it; CPU of both of its threads";
    table::print(title, &head, &alone);
    machine.save("recording", results.into())
}

/// Has a recorder write what an engine told it: the records, and the CPU time of all of it, in
/// nanoseconds. This process stands for those that referenced something.
fn record_again(told: &[Input], path: &Path, inputs: bool) -> Result<(u64, u64)> {
    let content = Content { sampling: Sampling::Window { mapped_pages: 0 }, inputs };
    let me = std::process::id();
    let clock = CpuClock::of(me)?;
    let begun_ns = clock.used_ns()?;
    let policy = PolicySpec::parse("clock")?;
    let (mut log, writing) = recorder::prepare(path, Header::new(4096), content, &policy)?.begin();
    for input in told {
        log.input(*input, 0, me);
    }
    drop(log);
    let records = writing.finish()?;
    Ok((records, clock.used_ns()? - begun_ns))
}

/// A program that does next to nothing, or dirties pages now and then: the CPU time of all is what a
/// CPU-bound neighbour loses.
fn background(machine: &Machine, repeats: u32) -> Result<()> {
    const PAGES: u64 = 4 * MIB / 4096;
    const SECONDS: u64 = 20;
    let file = machine.built("trickle.bin", |part| {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(part)?);
        pattern::write_file(&mut out, PAGES)?;
        Ok(out.flush()?)
    })?;
    let mut contenders = Vec::new();
    for (name, pager) in [("kernel", Pager::Kernel), ("ours", Pager::Policy("clock".into()))] {
        // What beginning and ending take comes off the others.
        for (pages, seconds) in [(0, 0), (0, SECONDS), (100, SECONDS), (1000, SECONDS)] {
            let arguments = [pages.to_string(), seconds.to_string()];
            let arguments = arguments.each_ref().map(String::as_str);
            let program = Program::workload("trickle", &file, &arguments)?;
            let name = format!("{name}, {pages} pages a second");
            contenders.push(Contender::new(name, &program, pager.clone(), READ_AHEAD_KIB));
        }
    }
    interleave(machine, &mut contenders, 128 * MIB, repeats)?;
    let rows = contenders.chunks(4).flat_map(|group| {
        let (ends, others) = group.split_first().expect("four each");
        others.iter().map(|c| {
            let more = c.runs.iter().zip(&ends.runs).map(|(run, end)| {
                (run.cpu_ns as f64 - end.cpu_ns as f64) / (SECONDS as f64 * 1e9) * 100.0
            });
            let written = |r: &Measured| r.stats.as_ref().map_or(0, |_| r.count("written_bytes"));
            vec![
                c.name.clone(),
                format!("{:.3}", Spread::of(more)),
                format!("{:.1}", c.spread(|r| written(r) as f64 / MIB as f64)),
            ]
        })
    });
    let head = ["pages dirtied, anywhere in the file", "% of a processor, all", "MiB written back"];
    let title = format!(
        "The background: {SECONDS} s of a program with a mapped file of 4 MiB, all of it in memory"
    );
    table::print(&title, &head, &rows.collect::<Vec<_>>());
    machine.save("background", contenders.iter().map(Contender::json).collect())
}
