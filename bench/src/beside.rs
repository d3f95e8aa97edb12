//! What goes on beside a program: recording it, and the background that looks after idle and dirty
//! pages.

use crate::contest::{Contender, interleave};
use crate::machine::{Machine, READ_AHEAD_KIB};
use crate::pattern;
use crate::run::{Measured, Pager, Program};
use crate::table::{self, Spread};
use anyhow::Result;
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write};

const MIB: u64 = 1 << 20;

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
    let mut results = Vec::new();
    let programs = [
        ("skewed touches", Program::workload("zipf", &file, &["400000", "0.9", "7"])?),
        ("a loop", Program::workload("loop", &file, &["20"])?),
    ];
    for (name, program) in programs {
        let trace = machine.scratch("beside.pkt");
        let recorded = |inputs| Pager::Record {
            policy: "clock".into(),
            trace: trace.clone(),
            inputs,
            window_pages: None,
        };
        let mut contenders = [
            ("not recorded", Pager::Policy("clock".into())),
            ("--record", recorded(false)),
            ("--record --record-inputs", recorded(true)),
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
        results.push(json!({
            "program": name, "contenders": contenders.iter().map(Contender::json).collect::<Vec<_>>(),
        }));
    }
    let head = ["program", "elapsed s", "ratio", "CPU s", "ratio", "major faults"];
    let title = format!(
        "Recording: 96 MiB file, {} MiB of memory, clock; CPU of all processes; ratios run by run",
        MEMORY / MIB
    );
    table::print(&title, &head, &rows);
    machine.save("recording", results.into())
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
