//! The promise of no options: real programs, unmodified, under `auto` and under the kernel alone
//! in an equal cgroup. Pairs are interleaved; every ratio is of one pair.

mod programs;

use crate::contest::{Contender, interleave};
use crate::machine::{Machine, READ_AHEAD_KIB};
use crate::run::{Measured, Pager};
use crate::table::{self, Interval};
use anyhow::{Context, Result};
use serde_json::json;

/// Page tables, and the text of the program, for which nobody pays with frames.
const ALLOWANCE_BYTES: u64 = 4 << 20;
/// What the manager and the holder take beside the memory that they were given: 3.6 MiB at rest.
const MANAGER_BYTES: u64 = 6 << 20;

const MIB: f64 = (1u64 << 20) as f64;

/// Runs every program of the suite, or those whose name contains `only`.
pub fn suite(machine: &Machine, repeats: u32, ours: &Pager, only: Option<&str>) -> Result<()> {
    let mut rows = Vec::new();
    let mut kept = Vec::new();
    for entry in programs::all(machine)? {
        if only.is_some_and(|only| !entry.name.contains(only)) {
            continue;
        }
        let mut pair = [
            Contender::new("kernel", &entry.program, Pager::Kernel, READ_AHEAD_KIB),
            Contender::new("ours", &entry.program, ours.clone(), READ_AHEAD_KIB),
        ];
        // The kernel may use as many frames as we; the program's own memory comes on top for both,
        // and for us what the manager and the holder are.
        pair[0].allowance_bytes = entry.heap_bytes + ALLOWANCE_BYTES;
        pair[1].allowance_bytes = entry.heap_bytes + ALLOWANCE_BYTES + MANAGER_BYTES;
        interleave(machine, &mut pair, entry.memory_bytes, repeats).context(entry.name)?;
        let [kernel, ours] = &pair;
        let ratio = |f: fn(&Measured) -> f64| {
            Interval::of(ours.runs.iter().zip(&kernel.runs).map(|(o, k)| f(o) / f(k).max(1.0)))
        };
        let elapsed = ratio(|r| r.elapsed_ns as f64);
        let read = ratio(|r| r.read_bytes as f64);
        let seconds = |c: &Contender| c.spread(|r| r.elapsed_ns as f64 / 1e9).median;
        let mib = |c: &Contender| c.spread(|r| r.read_bytes as f64 / MIB).median;
        rows.push(vec![
            entry.name.to_owned(),
            format!("{:.2}", seconds(kernel)),
            format!("{:.2}", seconds(ours)),
            format!("{elapsed:.2}"),
            format!("{:.0}", mib(kernel)),
            format!("{:.0}", mib(ours)),
            format!("{read:.2}"),
            format!("{:.2}", ratio(|r| r.cpu_ns as f64)),
        ]);
        // A row as it comes: the whole suite takes a while.
        eprintln!("{}", rows.last().map(|r| r.join("  ")).unwrap_or_default());
        kept.push(json!({
            "program": entry.name, "memory_bytes": entry.memory_bytes, "pager": format!("{ours:?}"),
            "runs": [kernel.json(), ours.json()],
        }));
    }
    let title = format!(
        "Unmodified programs, `pagekeeper run` ({ours:?}) against the kernel alone with the \
         same memory for pages, from cold files, {repeats} interleaved pairs; ratios are ours / \
         kernel, with the 95 % interval of the median"
    );
    let head = [
        "program",
        "kernel s",
        "ours s",
        "elapsed ratio",
        "kernel MiB",
        "ours MiB",
        "read ratio",
        "CPU ratio",
    ];
    table::print(&title, &head, &rows);
    machine.save("suite", kept.into())
}
