//! Working memory larger than the memory for it: the programs of Tables 1 and 2 of the paper on
//! DIAS and SM, a Fourier transform and a product of matrices, unmodified, under `run --heap`.
//! Without swap the kernel has no contender: it ends such a program. What a program takes with all
//! its memory stands beside; and what was predicted from a recording under another policy.

use crate::contest::{Contender, interleave};
use crate::machine::{Machine, READ_AHEAD_KIB};
use crate::run::{ALLOWANCE_BYTES, Pager, Program};
use crate::{predict, table};
use anyhow::{Context, Result, ensure};
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{Counts, LiveOptions, References, simulate_live};
use serde_json::json;
use std::path::Path;
use std::process::Command;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Allocations from this size on are managed.
const THRESHOLD_BYTES: u64 = 64 * KIB;
const POLICIES: [&str; 4] = ["lru", "mru", "clock", "fifo2"];

/// What is run: its name, its arguments, and the memory for it.
const PROGRAMS: [(&str, [&str; 2], u64); 4] = [
    ("transform of 2 x 4 MiB", ["fft", "4"], 6 * MIB),
    ("transform of 2 x 16 MiB", ["fft", "16"], 24 * MIB),
    ("product of matrices, 400 x 400, a matrix does not fit", ["multiply", "400"], 1000 * KIB),
    ("product of matrices, 400 x 400, a matrix fits", ["multiply", "400"], 1400 * KIB),
];

fn predicted(references: &References, policy: &str, memory_bytes: u64) -> Result<Counts> {
    let policy = PolicySpec::parse(policy)?;
    Ok(simulate_live(references, &policy, &LiveOptions::new(memory_bytes))?.counts)
}

/// Both programs, under each policy.
///
/// # Errors
/// There is no C compiler, or a run fails.
pub fn heap(machine: &Machine, repeats: u32) -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/cli/tests/live/c/heap.c");
    let binary = machine.scratch("heap");
    let compiled = Command::new("cc")
        .args(["-O2", "-pthread", "-o"])
        .arg(&binary)
        .arg(&source)
        .arg("-lm")
        .status()
        .context("cc")?;
    ensure!(compiled.success(), "{} does not compile", source.display());
    for (name, arguments, memory_bytes) in PROGRAMS {
        let mut command = vec![binary.clone().into_os_string()];
        command.extend(arguments.map(Into::into));
        let mut program = Program::new(command, Vec::new());
        program.heap_bytes = Some(THRESHOLD_BYTES);
        let ours = |policy: &str| {
            Contender::new(policy, &program, Pager::Policy(policy.to_owned()), READ_AHEAD_KIB)
        };
        let mut contenders: Vec<Contender> = POLICIES.map(ours).into();
        contenders.push(Contender {
            memory_bytes: Some(128 * MIB),
            ..Contender::new("all in memory", &program, Pager::Kernel, READ_AHEAD_KIB)
        });
        interleave(machine, &mut contenders, memory_bytes, repeats)?;
        let cgroup_bytes = memory_bytes + ALLOWANCE_BYTES;
        let (_, references) =
            predict::record(machine, &program, "heap.pkt", memory_bytes, cgroup_bytes)?;
        let mut rows = Vec::new();
        for c in &contenders {
            let counts = match c.pager {
                Pager::Kernel => None,
                _ => Some(predicted(&references, &c.name, memory_bytes)?),
            };
            let compared = |key: &str, unit: f64, said: fn(&Counts) -> u64| {
                let Some(counts) = &counts else { return ["–".to_owned(), "–".to_owned()] };
                let found = c.spread(|r| r.count(key) as f64 / unit);
                let off = (said(counts) as f64 / found.median - 1.0) * 100.0;
                [format!("{} / {found:.0}", said(counts)), format!("{off:+.1} %")]
            };
            let mut row = vec![c.name.clone()];
            row.extend(compared("major_faults", 1.0, |c| c.faults));
            row.extend(compared("read_bytes", 4096.0, |c| c.pages_read));
            row.extend(compared("written_bytes", 4096.0, |c| c.write_backs + c.dirty_at_end));
            row.push(format!("{:.2}", c.spread(|r| r.elapsed_ns as f64 / 1e9)));
            row.push(format!("{:.2}", c.spread(|r| r.cpu_ns as f64 / 1e9)));
            rows.push(row);
        }
        let head = [
            "policy",
            "major faults predicted / measured",
            "off",
            "pages read",
            "off",
            "pages written",
            "off",
            "elapsed s",
            "CPU s",
        ];
        let title = format!("{name}, in {} KiB; {repeats} interleaved runs", memory_bytes / KIB);
        table::print(&title, &head, &rows);
        let kept: Vec<_> = contenders.iter().map(Contender::json).collect();
        machine
            .save(&format!("heap-{}-{}", arguments.join("-"), memory_bytes / KIB), json!(kept))?;
    }
    Ok(())
}
