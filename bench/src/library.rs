//! The library: what a hit costs beside `pread(2)`, and a miss beside the kernel's.

use crate::contest::{Contender, interleave};
use crate::machine::{Machine, READ_AHEAD_KIB};
use crate::pattern::SplitMix;
use crate::peers::peers;
use crate::run::{Measured, Pager, Program, beside};
use crate::table::{self, Spread};
use anyhow::Result;
use memmap2::Mmap;
use pagekeeper::library::{Buckets, Cache, Options, Segment, Translation};
use serde_json::json;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

const MIB: u64 = 1 << 20;

/// Hits, scans, misses, and regions by page size.
///
/// # Errors
/// A run's.
pub fn library(machine: &Machine, repeats: u32) -> Result<()> {
    hits(machine, repeats)?;
    scans(machine, repeats)?;
    for threads in [1, 2] {
        misses(machine, repeats, threads)?;
    }
    regions(machine, repeats)
}

/// How hits find their bytes.
enum Way {
    Pread(File),
    ReadAt(Segment),
    Copy(Mmap),
}

impl Way {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        match self {
            Way::Pread(file) => file.read_exact_at(buf, offset)?,
            Way::ReadAt(segment) => segment.read_exact_at(buf, offset)?,
            Way::Copy(map) => {
                buf.copy_from_slice(&map[offset as usize..offset as usize + buf.len()]);
            }
        }
        Ok(())
    }

    /// Nanoseconds a read, at these offsets.
    fn time(&self, buf: &mut [u8], offsets: &[u64]) -> Result<f64> {
        let start = Instant::now();
        for &offset in offsets {
            self.read(buf, offset)?;
            black_box(&mut *buf);
        }
        Ok(start.elapsed().as_nanos() as f64 / offsets.len() as f64)
    }
}

/// Reads of what is in memory. Every repeat takes all ways in turn, many times over, and the
/// fastest round of each counts: on a shared machine the others measure the neighbours.
///
/// # Errors
/// The files'.
pub fn hits(machine: &Machine, repeats: u32) -> Result<()> {
    const FILE: u64 = 16 * MIB;
    const ROUNDS: usize = 15;
    let path = machine.file(FILE / 4096)?;
    let file = File::open(&path)?;
    // SAFETY: a test file of the harness's own, which nobody truncates.
    let map = unsafe { Mmap::map(&file)? };
    let read_at = |translation| -> Result<Way> {
        let cache = Cache::builder(2 * FILE).translation(translation).build()?;
        Ok(Way::ReadAt(cache.open(&path, Options::new())?))
    };
    let hash = read_at(Translation::Hash(Buckets::Sized))?;
    let mapped = read_at(Translation::Mapped)?;
    let ways = [Way::Pread(file), hash, mapped, read_at(Translation::Table)?, Way::Copy(map)];
    let mut all = vec![0; FILE as usize];
    for way in &ways {
        way.read(&mut all, 0)?;
    }
    let mut rows = Vec::new();
    let mut results = Vec::new();
    for (size, target) in [(4, 0.1), (1024, 0.25), (4096, 0.5), (65536, 0.8)] {
        for (pattern, span) in [("one page again and again", 0), ("anywhere in 16 MiB", FILE)] {
            let mut times = [const { Vec::new() }; 5];
            for repeat in 0..repeats {
                let mut random = SplitMix::new(u64::from(repeat));
                let count = (32 << 20) / (size as u64 + 1024);
                let slots = (span / size as u64).max(1);
                let offsets: Vec<u64> =
                    (0..count / 8).map(|_| random.below(slots) * size as u64).collect();
                let mut buf = vec![0; size];
                let mut best = [f64::INFINITY; 5];
                for _ in 0..ROUNDS {
                    for (way, best) in ways.iter().zip(&mut best) {
                        *best = best.min(way.time(&mut buf, &offsets)?);
                    }
                }
                for (times, best) in times.iter_mut().zip(best) {
                    times.push(best);
                }
            }
            let spread = |way: usize| Spread::of(times[way].iter().copied());
            let to = |ours: usize, other: usize| {
                Spread::of(times[ours].iter().zip(&times[other]).map(|(a, b)| a / b))
            };
            rows.push(vec![
                format!("{size} B, {pattern}"),
                format!("{:.1}", spread(0)),
                format!("{:.1}", spread(1)),
                format!("{:.1}", spread(2)),
                format!("{:.1}", spread(3)),
                format!("{:.1}", spread(4)),
                format!("{:.3}", to(2, 1)),
                format!("{:.3}", to(2, 0)),
                format!("{:.3}", to(3, 0)),
                format!("{target}"),
            ]);
            results.push(json!({
                "size_bytes": size, "pattern": pattern, "pread_ns": times[0],
                "hash_ns": times[1], "mapped_ns": times[2], "table_ns": times[3], "copy_ns": times[4],
            }));
        }
    }
    let head = [
        "hit",
        "pread ns",
        "by hash ns",
        "by place ns",
        "by table ns",
        "copy from a mapping ns",
        "by place / by hash",
        "by place / pread",
        "by table / pread",
        "aim",
    ];
    table::print("Reads of what is in memory, one thread; ratios run by run", &head, &rows);
    machine.save("library-hits", results.into())
}

/// A program that touches the pages of a list in one of its ways; see `bin/library.rs`.
///
/// # Errors
/// The system does not tell where this program is.
pub fn program(
    way: &str,
    file: &Path,
    sequence: &Path,
    threads: u32,
    memory_bytes: u64,
    policy: &str,
) -> Result<Program> {
    let mut command = vec![beside("pagekeeper-library-workload")?.into_os_string()];
    command.extend([way.into(), file.into(), sequence.into(), threads.to_string().into()]);
    command.extend([memory_bytes.to_string().into(), policy.into()]);
    Ok(Program::new(command, vec![file.to_owned()]))
}

/// Cold reads in order, of a file of four times the memory.
///
/// # Errors
/// A run's.
pub fn scans(machine: &Machine, repeats: u32) -> Result<()> {
    const MEMORY: u64 = 256 * MIB;
    let pages = 4 * MEMORY / 4096;
    let file = machine.file(pages)?;
    let mut contenders = Vec::new();
    // By the row of the kernel that each is compared with.
    let mut beside = Vec::new();
    for (size, size_bytes) in [("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("1 MiB", MIB)] {
        let starts = (0..pages).step_by(size_bytes as usize / 4096);
        let sequence = machine.sequence(&format!("scan-{pages}-{size_bytes}"), starts)?;
        let kernel = contenders.len();
        let mut add = |name: String, way: &str| -> Result<()> {
            let program = program(way, &file, &sequence, 1, MEMORY, "lru")?;
            let program = program.with(&format!("--read-bytes={size_bytes}"));
            contenders.push(Contender::new(name, &program, Pager::Kernel, READ_AHEAD_KIB));
            beside.push(kernel);
            Ok(())
        };
        add(format!("kernel, pread of {size}, {READ_AHEAD_KIB} KiB read-ahead"), "cached")?;
        add(format!("library, read_at of {size}"), "explicit")?;
        add(format!("by table, read_at of {size}"), "table")?;
        if size_bytes == MIB {
            add(format!("pread of {size}, O_DIRECT"), "pread")?;
        }
    }
    interleave(machine, &mut contenders, MEMORY, repeats)?;
    let speed = |r: &Measured| 4.0 * MEMORY as f64 / r.elapsed_ns as f64 * 1e9 / MIB as f64;
    let rows = contenders.iter().zip(beside).map(|(c, kernel)| {
        let kernel = &contenders[kernel].runs;
        let to = |f: &dyn Fn(&Measured) -> f64| {
            Spread::of(c.runs.iter().zip(kernel).map(|(a, b)| f(a) / f(b)))
        };
        vec![
            c.name.clone(),
            format!("{:.0}", c.spread(speed)),
            format!("{:.2}", to(&speed)),
            format!("{:.2}", c.spread(|r| r.cpu_ns as f64 / 1e9)),
            format!("{:.2}", to(&|r| r.cpu_ns as f64)),
            format!("{:.0}", c.spread(|r| r.read_bytes as f64 / MIB as f64)),
        ]
    });
    let head = ["scan", "MiB/s", "to the kernel's pread", "CPU s", "to the kernel's", "MiB read"];
    let title = format!(
        "Cold reads in order, {} MiB file, {} MiB of memory; CPU of all threads, from start to \
         exit; ratios run by run, to the kernel's reads of the same size",
        4 * MEMORY / MIB,
        MEMORY / MIB
    );
    table::print(&title, &head, &rows.collect::<Vec<_>>());
    machine.save("library-scans", contenders.iter().map(Contender::json).collect())
}

/// A scan and random touches of a mapped region, at four times the memory and at half of it, by the
/// cache's page size.
///
/// # Errors
/// A run's.
pub fn regions(machine: &Machine, repeats: u32) -> Result<()> {
    const MEMORY: u64 = 64 * MIB;
    let pages = 4 * MEMORY / 4096;
    let file = machine.file(pages)?;
    let mut random = SplitMix::new(7);
    let anywhere: Vec<u64> = (0..1_000).map(|_| random.below(pages)).collect();
    // Half of the memory: what is read stays.
    let again: Vec<u64> = (0..20_000).map(|_| random.below(pages / 8)).collect();
    let patterns = [("scan", (0..pages).collect()), ("random", anywhere), ("what fits", again)];
    for (pattern, touched) in patterns {
        let touches = touched.len();
        let name = format!("regions-{pages}-{}", pattern.replace(' ', "-"));
        let sequence = machine.sequence(&name, touched.into_iter())?;
        let mut contenders = Vec::new();
        for way in ["inline", "thread"] {
            for (size, size_bytes) in [("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("2 MiB", 2 * MIB)]
            {
                let program = program(way, &file, &sequence, 1, MEMORY, "lru")?;
                let program = program.with(&format!("--page-bytes={size_bytes}"));
                let name = format!("{pattern}, {way}, pages of {size}");
                contenders.push(Contender::new(name, &program, Pager::Kernel, READ_AHEAD_KIB));
            }
        }
        interleave(machine, &mut contenders, MEMORY, repeats)?;
        let told = |no: usize| {
            move |r: &Measured| {
                let told = r.told.as_ref().and_then(|told| told["major_minor_read"][no].as_u64());
                told.expect("regions tell their counts") as f64
            }
        };
        let mib = |r: &Measured| r.read_bytes as f64 / MIB as f64;
        let rows = contenders.iter().map(|c| {
            vec![
                c.name.clone(),
                format!("{:.0}", c.spread(told(0))),
                format!("{:.0}", c.spread(told(1))),
                format!("{:.0}", c.spread(told(2))),
                format!("{:.0}", c.spread(mib)),
                format!("{:.0}", c.spread(|r| r.cpu_ns as f64 / 1e3 / mib(r))),
                format!("{:.2}", c.spread(|r| r.cpu_ns as f64 / 1e3 / touches as f64)),
                format!("{:.2}", c.spread(|r| r.elapsed_ns as f64 / 1e9)),
            ]
        });
        let head = [
            "region",
            "major faults",
            "minor faults",
            "pages read",
            "MiB read",
            "CPU µs a MiB read",
            "CPU µs a touch",
            "elapsed s",
        ];
        let title = format!(
            "Touches of a word each in a mapped region ({pattern}: {touches} touches), {} MiB file, {} \
             MiB of memory, LRU; CPU of all threads, from start to exit",
            4 * MEMORY / MIB,
            MEMORY / MIB
        );
        table::print(&title, &head, &rows.collect::<Vec<_>>());
        machine
            .save(&format!("library-{name}"), contenders.iter().map(Contender::json).collect())?;
    }
    Ok(())
}

/// Random touches at four times the memory by more and more threads, in a program that knows nothing of us.
///
/// # Errors
/// A run's.
pub fn parallel(machine: &Machine, repeats: u32) -> Result<()> {
    const MEMORY: u64 = 64 * MIB;
    const TOUCHES: usize = 40_000;
    let pages = 4 * MEMORY / 4096;
    let file = machine.file(pages)?;
    let mut random = SplitMix::new(7);
    let sequence = (0..TOUCHES).map(|_| random.below(pages));
    let sequence = machine.sequence(&format!("random-{pages}"), sequence)?;
    let mut rows = Vec::new();
    let mut runs = Vec::new();
    for threads in [1, 2, 4, 8, 16, 32, 64] {
        let program = program("random", &file, &sequence, threads, MEMORY, "lru")?;
        let mut contenders = vec![
            Contender::new(
                format!("kernel, {threads} threads"),
                &program,
                Pager::Kernel,
                READ_AHEAD_KIB,
            ),
            Contender::new(
                format!("ours, {threads} threads"),
                &program,
                Pager::Policy("lru".to_owned()),
                READ_AHEAD_KIB,
            ),
        ];
        interleave(machine, &mut contenders, MEMORY, repeats)?;
        let [kernel, ours] = &contenders[..] else { unreachable!("there are two") };
        let seconds = |r: &Measured| r.elapsed_ns as f64 / 1e9;
        let ratio = ours.runs.iter().zip(&kernel.runs).map(|(a, b)| seconds(a) / seconds(b));
        let per_page = |r: &Measured| r.cpu_ns as f64 / 1e3 / (r.read_bytes as f64 / 4096.0);
        rows.push(vec![
            threads.to_string(),
            format!("{:.2}", kernel.spread(seconds)),
            format!("{:.2}", ours.spread(seconds)),
            format!("{:.2}", Spread::of(ratio)),
            format!("{:.1}", kernel.spread(per_page)),
            format!("{:.1}", ours.spread(per_page)),
        ]);
        runs.extend(contenders.iter().map(Contender::json));
    }
    let head = ["threads", "kernel s", "run s", "ratio", "kernel, CPU µs a page", "run"];
    let title = format!(
        "{TOUCHES} random touches of single pages by several threads, {} MiB file, {} MiB of memory; \
         kernel: MADV_RANDOM",
        4 * MEMORY / MIB,
        MEMORY / MIB
    );
    table::print(&title, &head, &rows);
    machine.save("parallel", runs.into())
}

/// Random touches at four times the memory.
///
/// # Errors
/// A run's.
pub fn misses(machine: &Machine, repeats: u32, threads: u32) -> Result<()> {
    const MEMORY: u64 = 64 * MIB;
    let pages = 4 * MEMORY / 4096;
    let file = machine.file(pages)?;
    let mut random = SplitMix::new(7);
    let sequence = (0..40_000).map(|_| random.below(pages));
    let sequence = machine.sequence(&format!("random-{pages}"), sequence)?;
    let mut contenders = Vec::new();
    let mut add = |name: &str, way: &str, options: &[&str], pager: Pager| -> Result<()> {
        let mut program = program(way, &file, &sequence, threads, MEMORY, "lru")?;
        program.command.extend(options.iter().map(Into::into));
        contenders.push(Contender::new(name, &program, pager, READ_AHEAD_KIB));
        Ok(())
    };
    add("bare pread, O_DIRECT", "pread", &[], Pager::Kernel)?;
    add("kernel, MADV_RANDOM", "random", &[], Pager::Kernel)?;
    add("library, explicit", "explicit", &[], Pager::Kernel)?;
    add("by table", "table", &[], Pager::Kernel)?;
    add("its control, by a hash table", "hash", &[], Pager::Kernel)?;
    add("library, inline", "inline", &[], Pager::Kernel)?;
    add("library, thread", "thread", &[], Pager::Kernel)?;
    let awake = ["--awake"];
    add("library, explicit, processors kept awake", "explicit", &awake, Pager::Kernel)?;
    add("by table, the same", "table", &awake, Pager::Kernel)?;
    add("library, inline, the same", "inline", &awake, Pager::Kernel)?;
    add("library, thread, the same", "thread", &awake, Pager::Kernel)?;
    add("remote (pagekeeper run)", "random", &[], Pager::Policy("lru".to_owned()))?;
    if threads == 1 {
        for (name, way) in [("the least inline", "inline"), ("by another process", "process")] {
            let mut command = vec![beside("pagekeeper-least")?.into_os_string(), way.into()];
            command.extend([(&file).into(), (&sequence).into(), MEMORY.to_string().into()]);
            let program = Program::new(command, vec![file.clone()]);
            contenders.push(Contender::new(name, &program, Pager::Kernel, READ_AHEAD_KIB));
        }
    }
    for (name, program) in peers(machine, &file, &sequence, threads, MEMORY) {
        contenders.push(Contender::new(name, &program, Pager::Kernel, READ_AHEAD_KIB));
    }
    interleave(machine, &mut contenders, MEMORY, repeats)?;
    let per_page = |r: &Measured| r.cpu_ns as f64 / 1e3 / (r.read_bytes as f64 / 4096.0);
    let rows = contenders.iter().map(|c| {
        let to = |other: &Contender| {
            Spread::of(c.runs.iter().zip(&other.runs).map(|(a, b)| per_page(a) / per_page(b)))
        };
        vec![
            c.name.clone(),
            format!("{:.1}", c.spread(per_page)),
            format!("{:.2}", to(&contenders[0])),
            format!("{:.2}", to(&contenders[1])),
            format!("{:.0}", c.spread(|r| r.read_bytes as f64 / 4096.0)),
            format!("{:.2}", c.spread(|r| r.elapsed_ns as f64 / 1e9)),
        ]
    });
    let head =
        ["miss", "CPU µs a page read", "to bare pread", "to the kernel", "pages read", "elapsed s"];
    let title = format!(
        "Random touches of single pages, {threads} thread(s), {} MiB file, {} MiB of memory; CPU of \
         all processes and threads, from start to exit; ratios run by run",
        4 * MEMORY / MIB,
        MEMORY / MIB
    );
    table::print(&title, &head, &rows.collect::<Vec<_>>());
    let name = format!("library-misses-{threads}");
    machine.save(&name, contenders.iter().map(Contender::json).collect())
}
