//! Tables IV, V and VI of the HiPEC paper (P. C. H. Lee, R. C. Chang, M. C. Chen, 1997): its
//! programs over real files in its memory sizes, under the kernel, under LRU and under HiPEC
//! programs; and what was predicted from one recording.

use crate::contest::{Contender, interleave};
use crate::machine::{Machine, READ_AHEAD_KIB};
use crate::predict::record;
use crate::run::{ALLOWANCE_BYTES, Pager, Program, beside};
use crate::table::{self, Spread};
use anyhow::{Context, Result, anyhow, ensure};
use pagekeeper_frames::Budget;
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{LiveOptions, References, simulate_live};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;
/// What the kernel's contender has besides the paper's memory: the program's own heap, stack, page
/// tables and text.
const PROGRAM_BYTES: u64 = 2 * MIB;

/// A memory size of the paper.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// What the paper's machine was booted with, in MB: the heads of its tables.
    pub booted_mib: u64,
    /// What was left for applications.
    pub left_mib: u64,
}

const fn size(booted_mib: u64, left_mib: u64) -> Size {
    Size { booted_mib, left_mib }
}

/// Table V's.
const NLJ_SIZES: [Size; 4] = [size(64, 58), size(48, 42), size(32, 26), size(16, 10)];
/// Table IV's, and then Table VI's others.
pub const RDR_SIZES: [Size; 5] =
    [size(12, 6), size(16, 10), size(32, 26), size(48, 42), size(64, 58)];

/// A policy by its name, or the program of a file in `policies/`.
///
/// # Errors
/// There is none, or the program is refused.
pub fn policy(name: &str) -> Result<PolicySpec> {
    if !name.ends_with(".hipec") {
        return Ok(PolicySpec::parse(name)?);
    }
    let bytes = fs::read(name).with_context(|| name.to_owned())?;
    let (program, _) = pagekeeper_hipec::load(name, &bytes).map_err(|e| anyhow!("{e}"))?;
    Ok(pagekeeper_hipec::policy::spec(Arc::new(program), name, None)?)
}

/// The path of a file in `policies/`.
pub fn program(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("bench/ is in the root");
    folder.join("policies").join(name).display().to_string()
}

/// The least `--memory` that leaves so many bytes of frames when so many pages have numbers.
fn memory_for_frames(bytes: u64, policy: &PolicySpec, pages: u32) -> u64 {
    let enough = |memory: u64| {
        let budget = Budget::new(memory, policy.info().bytes_per_page);
        u64::from(budget.frames(pages)) * PAGE_BYTES >= bytes
    };
    let (mut less, mut memory) = (bytes, 2 * bytes);
    while memory - less > PAGE_BYTES {
        let middle = less.midpoint(memory);
        if enough(middle) { memory = middle } else { less = middle }
    }
    memory
}

/// One table: a program at several sizes.
struct Table<'a> {
    machine: &'a Machine,
    name: String,
    title: String,
    program: Program,
    references: Option<References>,
    /// The policy that the others are compared to: the paper's without HiPEC.
    base: &'static str,
    rows: Vec<Vec<String>>,
    kept: Vec<Value>,
}

impl Table<'_> {
    /// Records one run, for predictions.
    fn record(&mut self) -> Result<()> {
        let (file, memory) = (format!("{}.pkt", self.name), 96 * MIB);
        let (_, references) =
            record(self.machine, &self.program, &file, memory, memory + ALLOWANCE_BYTES)?;
        self.references = Some(references);
        Ok(())
    }

    fn pages(&self) -> Result<u32> {
        let mut pages = 0;
        for file in &self.program.files {
            pages += fs::metadata(file)?.len().div_ceil(PAGE_BYTES);
        }
        Ok(u32::try_from(pages)?)
    }

    fn ours(&self, label: &str, name: &str) -> Contender {
        let pager = Pager::Policy(name.to_owned());
        Contender::new(label, &self.program, pager, READ_AHEAD_KIB)
    }

    fn kernel(&self, label: String, program: &Program, read_ahead_kib: u32) -> Contender {
        let contender = Contender::new(label, program, Pager::Kernel, read_ahead_kib);
        Contender { allowance_bytes: PROGRAM_BYTES, ..contender }
    }

    /// A contender that has its memory in frames, and what is kept of pages on top.
    fn in_frames(&self, contender: Contender, size: Size) -> Result<Contender> {
        let Pager::Policy(name) = &contender.pager else { unreachable!("one of ours") };
        let spec = policy(name)?;
        let memory = memory_for_frames(size.left_mib * MIB, &spec, self.pages()?);
        Ok(Contender { memory_bytes: Some(memory), ..contender })
    }

    /// Runs all at one size; `papers` is the paper's figure for what is named in it.
    fn size(
        &mut self,
        size: Size,
        mut contenders: Vec<Contender>,
        repeats: u32,
        papers: &[(&str, String)],
    ) -> Result<()> {
        let memory = size.left_mib * MIB;
        interleave(self.machine, &mut contenders, memory, repeats)?;
        let base = contenders.iter().find(|c| c.name == self.base).expect("the base takes part");
        let base = base.clone();
        for c in &contenders {
            // The kernel's count for the tree: the device's has all that others on the machine read.
            let pages = c.spread(|r| r.read_bytes as f64 / PAGE_BYTES as f64);
            let device = c.spread(|r| r.device_read_bytes as f64 / PAGE_BYTES as f64);
            let own = c.spread(|r| {
                let own = r.stats.as_ref().and_then(|stats| stats["read_bytes"].as_u64());
                own.unwrap_or(r.read_bytes) as f64 / PAGE_BYTES as f64
            });
            let against = |f: fn(&crate::run::Measured) -> u64| {
                let ratio = c.runs.iter().zip(&base.runs);
                Spread::of(ratio.map(|(a, b)| f(a) as f64 / f(b) as f64 * 100.0))
            };
            let reads = against(|r| r.read_bytes);
            let elapsed = against(|r| r.elapsed_ns);
            let said = match (&c.pager, &self.references) {
                (Pager::Policy(name), Some(references)) => {
                    let options = LiveOptions::new(c.memory_bytes.unwrap_or(memory));
                    Some(simulate_live(references, &policy(name)?, &options)?.counts.pages_read)
                }
                _ => None,
            };
            let paper = papers.iter().find(|(name, _)| *name == c.name).map(|p| p.1.clone());
            self.rows.push(vec![
                format!("{} ({})", size.left_mib, size.booted_mib),
                c.name.clone(),
                format!("{:.0}", c.spread(|r| r.major_faults as f64)),
                format!("{pages:.0}"),
                format!("{:.0}", own.median),
                format!("{:.0}", device.median),
                said.map_or("–".into(), |said| format!("{said}")),
                format!("{reads:.1}"),
                format!("{elapsed:.1}"),
                paper.clone().unwrap_or_else(|| "–".into()),
                format!("{:.2}", c.spread(|r| r.elapsed_ns as f64 / 1e9)),
                format!("{:.2}", c.spread(|r| r.cpu_ns as f64 / 1e9)),
                format!("{:.0}", c.spread(|r| r.peak_bytes as f64 / MIB as f64)),
            ]);
            self.kept.push(json!({
                "booted_mib": size.booted_mib, "left_mib": size.left_mib,
                "memory_bytes": c.memory_bytes.unwrap_or(memory),
                "predicted_pages_read": said, "paper": paper, "measured": c.json(),
            }));
        }
        Ok(())
    }

    fn done(self) -> Result<()> {
        let reads = format!("reads, % of {}", self.base);
        let head = [
            "MiB (booted)",
            "pager",
            "major faults",
            "pages read by the tree",
            "own count",
            "device",
            "pages predicted",
            &reads,
            "elapsed, %",
            "the paper: reads / elapsed, %",
            "elapsed s",
            "CPU s",
            "peak MiB",
        ];
        table::print(&self.title, &head, &self.rows);
        self.machine.save(&self.name, Value::Array(self.kept))
    }
}

/// Builds the files of a program that has a `build` command of its own.
fn built(machine: &Machine, program: &str, names: [&str; 2]) -> Result<[PathBuf; 2]> {
    let second = machine.scratch(&format!("data/{}", names[1]));
    let first = machine.built(names[0], |part| {
        let done = Command::new(beside(program)?).arg("build").arg(part).arg(&second).status()?;
        ensure!(done.success(), "{program} could not build its files");
        Ok(())
    })?;
    Ok([first, fs::canonicalize(second)?])
}

fn command(program: &str, verb: &str, files: &[PathBuf; 2], arguments: &[&str]) -> Result<Program> {
    let mut command = vec![beside(program)?.into_os_string(), verb.into()];
    command.extend(files.iter().map(Into::into));
    command.extend(arguments.iter().map(Into::into));
    Ok(Program::new(command, files.to_vec()))
}

/// Table V: a nested-loop join of 4 KiB with 60 MiB.
pub fn nlj(machine: &Machine, repeats: u32) -> Result<()> {
    const PAPER: [f64; 4] = [4.72, 29.94, 56.85, 83.69];
    let files = built(machine, "nlj", ["nlj-outer.bin", "nlj-inner.bin"])?;
    let mut table = Table {
        machine,
        name: "nlj".into(),
        title: format!(
            "Table V. Nested-loop join, 64 passes over 60 MiB; medians of {repeats} runs; the \
             paper's elapsed times, as a share of Mach's LRU"
        ),
        program: command("nlj", "join", &files, &[])?,
        references: None,
        base: "lru",
        rows: Vec::new(),
        kept: Vec::new(),
    };
    table.record()?;
    let own = machine.own_read_ahead_kib;
    for (size, paper) in NLJ_SIZES.into_iter().zip(PAPER) {
        let (mru, looped) = (program("mru.hipec"), program("loop.hipec"));
        let in_frames = table.ours("mru.hipec, all in frames", &mru);
        let mut contenders = vec![
            table.ours("lru", "lru"),
            table.ours("mru.hipec", &mru),
            table.in_frames(in_frames, size)?,
            table.ours("loop.hipec", &looped),
            table.kernel("kernel, 128 KiB".into(), &table.program, READ_AHEAD_KIB),
            table.kernel(format!("kernel, {own} KiB (its own)"), &table.program, own),
        ];
        if size.left_mib == NLJ_SIZES[0].left_mib {
            // A million single reads a run: at one size.
            let random = table.program.clone().with("--advise-random");
            contenders.push(table.kernel("kernel, MADV_RANDOM".into(), &random, READ_AHEAD_KIB));
        }
        let paper = format!("– / {paper:.1}");
        let papers = [("mru.hipec", paper.clone()), ("mru.hipec, all in frames", paper)];
        table.size(size, contenders, repeats, &papers)?;
    }
    table.done()
}

/// Tables IV and VI: random retrievals through an index of 16 MiB from 64 MiB.
pub fn rdr(machine: &Machine, tuples: u64, sizes: &[Size], repeats: u32) -> Result<()> {
    /// Booted with, 10⁵: reads and elapsed, and 10⁶: reads and elapsed.
    const PAPER: [(u64, [&str; 2]); 5] = [
        (12, ["84.0 / 94.7", "76.3 / 86.0"]),
        (16, ["90.4 / 98.5", "75.5 / 85.0"]),
        (32, ["– / 98.1", "– / 86.3"]),
        (48, ["– / 98.1", "– / 89.5"]),
        (64, ["– / 97.9", "– / 91.3"]),
    ];
    let files = built(machine, "rdr", ["rdr-index.bin", "rdr-data.bin"])?;
    let many = tuples > 100_000;
    let mut table = Table {
        machine,
        name: format!("rdr-{tuples}"),
        title: format!(
            "Tables IV and VI. Random retrieval of {tuples} tuples from 64 MiB through an index of \
             16 MiB; medians of {repeats} runs; the paper's block reads (Table IV) and elapsed \
             times, as a share of Mach's FIFO2"
        ),
        program: command("rdr", "retrieve", &files, &[&tuples.to_string()])?,
        references: None,
        base: "fifo2",
        rows: Vec::new(),
        kept: Vec::new(),
    };
    if !many {
        // Of 10⁶ a recording takes as long as all runs together.
        table.record()?;
    }
    for size in sizes {
        let random = table.program.clone().with("--advise-random");
        let mut contenders = vec![
            table.ours("fifo2", "fifo2"),
            table.ours("lru", "lru"),
            table.ours("mpfifo2.hipec", &program("mpfifo2.hipec")),
            table.kernel("kernel, MADV_RANDOM".into(), &random, READ_AHEAD_KIB),
        ];
        if !many {
            let around = table.kernel("kernel, 128 KiB".into(), &table.program, READ_AHEAD_KIB);
            contenders.push(around);
        }
        let paper = PAPER.iter().find(|p| p.0 == size.booted_mib);
        let paper = paper.map_or("–", |p| p.1[usize::from(many)]);
        table.size(*size, contenders, repeats, &[("mpfifo2.hipec", paper.to_owned())])?;
    }
    table.done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_found_for_frames() {
        let spec = PolicySpec::parse("lru").unwrap();
        let memory = memory_for_frames(58 * MIB, &spec, 15_361);
        let budget = |memory| Budget::new(memory, spec.info().bytes_per_page).frames(15_361);
        assert!((14_848..14_850).contains(&budget(memory)));
        assert!(budget(memory - 2 * PAGE_BYTES) < 14_848);
    }

    #[test]
    fn the_programs_named_are_there() {
        for name in ["mru.hipec", "loop.hipec", "mpfifo2.hipec", "second-chance.hipec"] {
            policy(&program(name)).unwrap();
        }
    }
}
