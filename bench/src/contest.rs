//! Contests: every contender in turn, again and again, so that what else happens on the machine
//! meets all alike.

use crate::machine::Machine;
use crate::run::{ALLOWANCE_BYTES, Measured, Pager, Program, run_within};
use crate::table::{self, Spread};
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::path::Path;

/// One who takes part.
#[derive(Clone, Debug)]
pub struct Contender {
    /// Its name in tables.
    pub name: String,
    /// What it runs.
    pub program: Program,
    /// Who pages.
    pub pager: Pager,
    /// The disk's read-ahead meanwhile.
    pub read_ahead_kib: u32,
    /// What `--memory` says, where it is not the contest's.
    pub memory_bytes: Option<u64>,
    /// What its cgroup has besides the contest's memory, or besides its own.
    pub allowance_bytes: u64,
    /// What it did, a run each.
    pub runs: Vec<Measured>,
    /// Runs that the kernel ended, having swap: to be told, and no failure of ours.
    pub failed: u32,
}

impl Contender {
    /// A contender that has not run yet, at a read-ahead.
    pub fn new(
        name: impl Into<String>,
        program: &Program,
        pager: Pager,
        read_ahead_kib: u32,
    ) -> Contender {
        Contender {
            name: name.into(),
            program: program.clone(),
            pager,
            read_ahead_kib,
            memory_bytes: None,
            allowance_bytes: ALLOWANCE_BYTES,
            runs: Vec::new(),
            failed: 0,
        }
    }

    /// Something of every run.
    pub fn spread(&self, f: impl Fn(&Measured) -> f64) -> Spread {
        Spread::of(self.runs.iter().map(f))
    }

    /// Every run, for programs.
    pub fn json(&self) -> Value {
        let runs = self.runs.iter().map(|r| {
            json!({
                "elapsed_ns": r.elapsed_ns, "cpu_ns": r.cpu_ns, "read_bytes": r.read_bytes,
                "device_read_bytes": r.device_read_bytes, "device_reads": r.device_reads,
                "major_faults": r.major_faults, "peak_bytes": r.peak_bytes,
                "swap": r.swap.map(|s| json!({
                    "device_in_pages": s.device_in, "device_out_pages": s.device_out,
                    "zswap_in_pages": s.pool_in, "zswap_out_pages": s.pool_out,
                    "compressed_peak_bytes": s.pool_peak_bytes,
                })),
                "answer": r.answer, "told": r.told, "stats": r.stats,
            })
        });
        json!({
            "name": self.name, "read_ahead_kib": self.read_ahead_kib,
            "memory_bytes": self.memory_bytes, "allowance_bytes": self.allowance_bytes,
            "options": self.program.options.iter().map(|a| a.to_string_lossy()).collect::<Vec<_>>(),
            "command": self.program.command.iter().map(|a| a.to_string_lossy()).collect::<Vec<_>>(),
            "failed": self.failed, "runs": runs.collect::<Vec<_>>(),
        })
    }
}

/// Runs all, `repeats` times; all must find the same, unless they do something else.
pub fn interleave(
    machine: &Machine,
    contenders: &mut [Contender],
    memory_bytes: u64,
    repeats: u32,
) -> Result<()> {
    for repeat in 0..repeats {
        let count = contenders.len();
        for i in 0..count {
            // Each round begins with another one.
            let c = &mut contenders[(i + repeat as usize) % count];
            eprint!("\r\x1b[K{}/{repeats} {}", repeat + 1, c.name);
            let _guard = machine.read_ahead(c.read_ahead_kib)?;
            let own = c.memory_bytes.unwrap_or(memory_bytes);
            let cgroup_bytes = own + c.allowance_bytes;
            match run_within(machine, &c.program, &c.pager, own, cgroup_bytes) {
                Ok(measured) => c.runs.push(measured),
                Err(error) if matches!(c.pager, Pager::Swapping(_)) => {
                    eprintln!("\r\x1b[K{}: {error:#}", c.name);
                    c.failed += 1;
                }
                Err(error) => return Err(error.context(c.name.clone())),
            }
        }
        eprint!("\r\x1b[K");
    }
    let answer = contenders[0].runs[0].answer.clone();
    for c in contenders.iter() {
        let same = c.runs.iter().all(|r| r.answer == answer);
        ensure!(same, "{} found something else than {answer}", c.name);
    }
    Ok(())
}

const MIB: u64 = 1 << 20;

fn policy(name: &str) -> Pager {
    Pager::Policy(name.to_owned())
}

fn pages(file: &Path) -> Result<f64> {
    Ok((std::fs::metadata(file)?.len() / 4096) as f64)
}

/// A loop over a file 1.25 times the memory.
pub fn looped(machine: &Machine, repeats: u32) -> Result<()> {
    const MEMORY: u64 = 128 * MIB;
    const PASSES: u32 = 10;
    let file = machine.file(MEMORY / 4096 * 5 / 4)?;
    let program = Program::workload("loop", &file, &[&PASSES.to_string()])?;
    let ra = crate::machine::READ_AHEAD_KIB;
    let own = machine.own_read_ahead_kib;
    let mut contenders = vec![
        Contender::new("kernel, 128 KiB read-ahead", &program, Pager::Kernel, ra),
        Contender::new(format!("kernel, {own} KiB (its own)"), &program, Pager::Kernel, own),
    ];
    for name in ["lru", "clock", "fifo2", "mru"] {
        contenders.push(Contender::new(format!("ours, {name}"), &program, policy(name), ra));
    }
    interleave(machine, &mut contenders, MEMORY, repeats)?;
    let bytes = pages(&file)? * 4096.0;
    let share = |read: f64| (read - bytes) / f64::from(PASSES - 1) / bytes * 100.0;
    let rows = contenders.iter().map(|c| {
        vec![
            c.name.clone(),
            format!("{:.1}", c.spread(|r| share(r.device_read_bytes as f64))),
            format!("{:.1}", c.spread(|r| share(r.read_bytes as f64))),
            format!("{:.2}", c.spread(|r| r.elapsed_ns as f64 / 1e9)),
            format!("{:.2}", c.spread(|r| r.cpu_ns as f64 / 1e9)),
            format!("{:.0}", c.spread(|r| r.peak_bytes as f64 / MIB as f64)),
        ]
    });
    let head = [
        "loop",
        "% of file read a pass, device",
        "the same, of the tree",
        "elapsed s",
        "CPU s",
        "peak MiB",
    ];
    let title = format!(
        "Loop: {} MiB file, {} MiB of memory (cgroup {} MiB), {PASSES} passes; passes after the \
         first",
        bytes / MIB as f64,
        MEMORY / MIB,
        (MEMORY + crate::run::ALLOWANCE_BYTES) / MIB,
    );
    table::print(&title, &head, &rows.collect::<Vec<_>>());
    machine.save("loop", contenders.iter().map(Contender::json).collect())
}

/// A cold sequential scan.
pub fn scan(machine: &Machine, repeats: u32) -> Result<()> {
    const MEMORY: u64 = 128 * MIB;
    let file = machine.file(512 * MIB / 4096)?;
    let program = Program::workload("scan", &file, &["1"])?;
    let ra = crate::machine::READ_AHEAD_KIB;
    let own = machine.own_read_ahead_kib;
    let direct = Program::workload("direct-scan", &file, &[])?;
    let mut contenders = vec![
        Contender::new(format!("kernel, {ra} KiB read-ahead"), &program, Pager::Kernel, ra),
        Contender::new("pread of 1 MiB, O_DIRECT", &direct, Pager::Kernel, ra),
        Contender::new("ours, lru", &program, policy("lru"), ra),
        Contender::new(format!("kernel, {own} KiB (its own)"), &program, Pager::Kernel, own),
        Contender::new("ours, mru", &program, policy("mru"), ra),
    ];
    interleave(machine, &mut contenders, MEMORY, repeats)?;
    let bytes = pages(&file)? * 4096.0;
    let speed = |r: &Measured| bytes / r.elapsed_ns as f64 * 1e9 / MIB as f64;
    let ratio = |c: &Contender, to: &Contender| {
        Spread::of(c.runs.iter().zip(&to.runs).map(|(a, b)| speed(a) / speed(b)))
    };
    let rows = contenders.iter().map(|c| {
        vec![
            c.name.clone(),
            format!("{:.0}", c.spread(speed)),
            format!("{:.2}", ratio(c, &contenders[0])),
            format!("{:.2}", ratio(c, &contenders[1])),
            format!("{:.2}", ratio(c, &contenders[3])),
            format!("{:.2}", c.spread(|r| r.cpu_ns as f64 / 1e9)),
            format!("{:.0}", c.spread(|r| r.read_bytes as f64 / MIB as f64)),
        ]
    });
    let at_ra = format!("ratio to kernel at {ra} KiB");
    let at_own = format!("to kernel at {own} KiB");
    let head = ["scan", "MiB/s", &at_ra, "to O_DIRECT", &at_own, "CPU s", "MiB read"];
    let title = format!(
        "Cold sequential scan: {} MiB file, {} MiB of memory; ratios are run by run",
        bytes / MIB as f64,
        MEMORY / MIB
    );
    table::print(&title, &head, &rows.collect::<Vec<_>>());
    machine.save("scan", contenders.iter().map(Contender::json).collect())
}

/// Random touches of single pages at four times the memory.
pub fn random(machine: &Machine, repeats: u32) -> Result<()> {
    const MEMORY: u64 = 64 * MIB;
    const TOUCHES: &str = "60000";
    let file = machine.file(4 * MEMORY / 4096)?;
    let program = Program::workload("random", &file, &[TOUCHES, "7"])?;
    let direct = Program::workload("pread", &file, &[TOUCHES, "7"])?;
    let ra = crate::machine::READ_AHEAD_KIB;
    // Not at a large read-ahead of the machine's own: at 8 MiB a fault the kernel takes minutes.
    let mut contenders = vec![
        Contender::new(
            "kernel, MADV_RANDOM",
            &program.clone().with("--advise-random"),
            Pager::Kernel,
            ra,
        ),
        Contender::new("pread, O_DIRECT (every touch)", &direct, Pager::Kernel, ra),
        Contender::new(format!("kernel, {ra} KiB read-around"), &program, Pager::Kernel, ra),
    ];
    for name in ["lru", "clock", "fifo", "random"] {
        contenders.push(Contender::new(format!("ours, {name}"), &program, policy(name), ra));
    }
    interleave(machine, &mut contenders, MEMORY, repeats)?;
    let per_page = |r: &Measured| r.cpu_ns as f64 / 1e3 / (r.read_bytes as f64 / 4096.0);
    let rows = contenders.iter().map(|c| {
        let ratio = c.runs.iter().zip(&contenders[0].runs).map(|(a, b)| per_page(a) / per_page(b));
        vec![
            c.name.clone(),
            format!("{:.1}", c.spread(per_page)),
            format!("{:.2}", Spread::of(ratio)),
            format!("{:.0}", c.spread(|r| r.read_bytes as f64 / 4096.0)),
            format!("{:.0}", c.spread(|r| r.device_read_bytes as f64 / 4096.0)),
            format!("{:.2}", c.spread(|r| r.elapsed_ns as f64 / 1e9)),
        ]
    });
    let head =
        ["random", "CPU µs a page read", "ratio", "pages read", "the same, device", "elapsed s"];
    let title = format!(
        "Random touches: {TOUCHES} of single pages, {} MiB file, {} MiB of memory; CPU of all \
         processes and threads, from start to exit; ratios run by run to the first row",
        4 * MEMORY / MIB,
        MEMORY / MIB
    );
    table::print(&title, &head, &rows.collect::<Vec<_>>());
    machine.save("random", contenders.iter().map(Contender::json).collect())
}
