//! Working memory larger than the memory for it: the programs of Tables 1 and 2 of the paper on
//! DIAS and SM, a Fourier transform and a product of matrices, beside a hash table and GNU sort, all
//! unmodified, under `run --heap`. The kernel alone, which ends such a program where it has no swap,
//! gets some: a file, zswap, zram. What a program takes with all its memory stands beside; and what
//! was predicted from a recording under another policy.

use crate::contest::{Contender, interleave};
use crate::machine::{Machine, READ_AHEAD_KIB};
use crate::pattern::SplitMix;
use crate::run::{ALLOWANCE_BYTES, Measured, Pager, Program, run_within};
use crate::swap::{Swap, Swapping};
use crate::{predict, table};
use anyhow::{Context, Result, ensure};
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{Counts, LiveOptions, References, simulate_live};
use pagekeeper_sys::cgroup::MemoryCgroup;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Allocations from this size on are managed.
const THRESHOLD_BYTES: u64 = 64 * KIB;

/// One of ours: a name for tables, the policy, and more options of `run`.
type Ours = (&'static str, &'static str, &'static [&'static str]);

const OURS: &[Ours] = &[
    ("lru", "lru", &[]),
    ("lru, compressed in 20 %", "lru", &["--compress=20"]),
    ("lru, compressed in 40 %", "lru", &["--compress=40"]),
    ("mru", "mru", &[]),
    ("clock", "clock", &[]),
    ("fifo2", "fifo2", &[]),
];

/// For the product of the paper's size, of which MRU would read 10 GiB.
const OURS_OF_THE_PRODUCT: &[Ours] = &[
    ("lru", "lru", &[]),
    ("seq", "seq", &[]),
    ("eelru", "eelru", &[]),
    ("clock", "clock", &[]),
    ("auto", "auto", &[]),
];

/// The kernel's.
const SWAPS: [(&str, Swap); 4] = [
    ("swap file", Swap::File),
    ("swap file, page-cluster 0", Swap::FileAlone),
    ("swap file, zswap, page-cluster 0", Swap::Zswap),
    ("zram, lz4", Swap::Zram),
];

/// What is run.
struct Entry {
    name: &'static str,
    /// For files.
    key: String,
    program: Program,
    ours: &'static [Ours],
    /// For pages of its heap.
    memory_bytes: u64,
    /// What it touches of the heap that is managed.
    heap_bytes: u64,
    /// What else a cgroup has of it, as seen with all in memory, and a little more: small
    /// allocations, stacks, page tables, the kernel's own.
    own_bytes: u64,
}

fn entries(machine: &Machine) -> Result<Vec<Entry>> {
    let binary = compiled(machine)?;
    let own = |name, arguments: [&str; 3], memory_bytes, heap_bytes| {
        let arguments = arguments.iter().filter(|a| !a.is_empty());
        let mut command = vec![binary.clone().into_os_string()];
        command.extend(arguments.clone().map(Into::into));
        let words: Vec<&str> = arguments.copied().collect();
        Entry {
            name,
            key: format!("heap-{}-{}", words.join("-"), memory_bytes / KIB),
            program: Program::new(command, Vec::new()),
            ours: OURS,
            memory_bytes,
            heap_bytes,
            own_bytes: 400 * KIB,
        }
    };
    const MATRICES_BYTES: u64 = 3 * 400 * 400 * 8;
    const FIVE_MATRICES_BYTES: u64 = 5 * 1000 * 1000 * 8;
    let log = machine.built("heap-logs.txt", write_logs)?;
    let script = "LC_ALL=C sort --buffer-size=64M --parallel=1 \"$1\" | cksum";
    let sort = ["sh", "-c", script, "sh"].map(Into::into).into_iter();
    let sort = Program::new(sort.chain([log.clone().into_os_string()]).collect(), vec![log]);
    let mut entries = vec![
        own("transform of 2 x 4 MiB", ["fft", "4", ""], 6 * MIB, 8 * MIB),
        own("transform of 2 x 16 MiB", ["fft", "16", ""], 24 * MIB, 32 * MIB),
        own(
            "product of matrices, 400 x 400, a matrix does not fit",
            ["multiply", "400", ""],
            1000 * KIB,
            MATRICES_BYTES,
        ),
        own(
            "product of matrices, 400 x 400, a matrix fits",
            ["multiply", "400", ""],
            1400 * KIB,
            MATRICES_BYTES,
        ),
        Entry {
            ours: OURS_OF_THE_PRODUCT,
            ..own(
                "product of matrices, 1000 x 1000, as in Table 2",
                ["check-product", "1000", ""],
                23 * MIB,
                FIVE_MATRICES_BYTES,
            )
        },
        own("hash table of 32 MiB, 20,000 updates", ["update", "32", "20000"], 8 * MIB, 32 * MIB),
        Entry {
            name: "sort -S 64M of logs",
            key: "heap-sort".to_owned(),
            program: sort,
            ours: OURS,
            memory_bytes: 32 * MIB,
            heap_bytes: 62 * MIB,
            own_bytes: 4 * MIB,
        },
    ];
    entries.iter_mut().for_each(|e| e.program.heap_bytes = Some(THRESHOLD_BYTES));
    Ok(entries)
}

fn compiled(machine: &Machine) -> Result<PathBuf> {
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
    Ok(binary)
}

/// Logs of eight web servers, one after the other: sort puts them in the order of time. With its 48
/// bytes for each line of 210, all of it fits in its 64 MiB.
fn write_logs(part: &Path) -> Result<()> {
    const SERVERS: u64 = 8;
    const LINES: u64 = 31_250;
    const PATHS: [&str; 6] =
        ["orders", "orders/items", "users", "users/settings", "search", "static/images"];
    const AGENTS: [&str; 3] = [
        "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
        "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15",
        "curl/8.9.1",
    ];
    let mut out = BufWriter::with_capacity(1 << 20, File::create(part)?);
    let mut random = SplitMix::new(11);
    let mut draw = |below| random.below(below);
    for server in 0..SERVERS {
        let mut ms = 0;
        for _ in 0..LINES {
            ms += draw(1000);
            writeln!(
                out,
                "2026-11-23T{:02}:{:02}:{:02}.{:03}Z web-{server:02} INFO [worker-{}] id={:016x} \
                 user={} \"GET /api/v2/{}/{} HTTP/1.1\" status={} bytes={} time_ms={} agent=\"{}\"",
                ms / 3_600_000,
                ms / 60_000 % 60,
                ms / 1000 % 60,
                ms % 1000,
                draw(16),
                draw(u64::MAX),
                draw(50_000),
                PATHS[draw(6) as usize],
                draw(100_000),
                [200, 200, 200, 304, 404][draw(5) as usize],
                draw(30_000),
                draw(250),
                AGENTS[draw(3) as usize],
            )?;
        }
    }
    Ok(out.flush()?)
}

fn predicted(references: &References, policy: &str, memory_bytes: u64) -> Result<Counts> {
    let policy = PolicySpec::parse(policy)?;
    Ok(simulate_live(references, &policy, &LiveOptions::new(memory_bytes))?.counts)
}

/// A counter of `--stats`, of heap memory alone: what the kernel reads of files is not in the counts of
/// swap either.
fn of_heaps(run: &Measured, key: &str) -> f64 {
    let files = run.stats.as_ref().and_then(|stats| stats["files"].as_array());
    let heaps = files
        .into_iter()
        .flatten()
        .filter(|file| file["name"].as_str().is_some_and(|name| name.starts_with("heap:")));
    let of_each: f64 = heaps.filter_map(|heap| heap[key].as_f64()).sum();
    // Of compressed pages it is not known which heap they are of.
    let compressed = run.stats.as_ref().and_then(|stats| stats["compressed"][key].as_f64());
    of_each + compressed.unwrap_or(0.0)
}

/// All programs, or those whose name contains `only`, by all contenders.
///
/// # Errors
/// There is no C compiler, or a run fails.
pub fn heap(machine: &Machine, repeats: u32, only: Option<&str>) -> Result<()> {
    let mut swaps = Vec::new();
    for (name, swap) in SWAPS {
        match Swapping::on(machine, swap) {
            Ok(on) => {
                if let Some(codec) = on.codec() {
                    println!("{name}: pages are compressed with {codec}");
                }
                swaps.push((name, swap));
            }
            Err(error) => println!("no rows of \"{name}\": {error:#}"),
        }
    }
    println!();
    for entry in entries(machine)? {
        if only.is_none_or(|only| entry.name.contains(only)) {
            contest(machine, &entry, &swaps, repeats).context(entry.name)?;
        }
    }
    Ok(())
}

fn contest(machine: &Machine, entry: &Entry, swaps: &[(&str, Swap)], repeats: u32) -> Result<()> {
    let Entry { name, program, memory_bytes, .. } = entry;
    let memory_bytes = *memory_bytes;
    let mut contenders: Vec<Contender> = Vec::new();
    for &(name, policy, options) in entry.ours {
        let mut program = program.clone();
        program.options = options.iter().map(Into::into).collect();
        let pager = Pager::Policy(policy.to_owned());
        contenders.push(Contender::new(name, &program, pager, READ_AHEAD_KIB));
    }
    for &(name, swap) in swaps {
        contenders.extend(swapping(machine, entry, name, swap)?);
    }
    contenders.push(Contender {
        memory_bytes: Some(2 * entry.heap_bytes + 128 * MIB),
        ..Contender::new("all in memory", program, Pager::Kernel, READ_AHEAD_KIB)
    });
    interleave(machine, &mut contenders, memory_bytes, repeats)?;
    for c in contenders.iter().filter(|c| c.failed > 0) {
        println!("{name}: {} of {repeats} runs of \"{}\" failed", c.failed, c.name);
    }
    contenders.retain(|c| !c.runs.is_empty());
    let cgroup_bytes = memory_bytes + ALLOWANCE_BYTES;
    let (_, references) =
        predict::record(machine, program, "heap.pkt", memory_bytes, cgroup_bytes)?;

    let ours = || contenders.iter().filter(|c| matches!(c.pager, Pager::Policy(_)));
    let mut rows = Vec::new();
    for c in ours() {
        let Pager::Policy(policy) = &c.pager else { unreachable!("one of ours") };
        // What more options do is not foretold.
        let said = match c.program.options.is_empty() {
            true => Some(predicted(&references, policy, memory_bytes)?),
            false => None,
        };
        let compared = |key: &str, unit: f64, of: fn(&Counts) -> u64| {
            let found = c.spread(|r| r.count(key) as f64 / unit);
            let Some(said) = said.as_ref().map(of) else {
                return [format!("– / {found:.0}"), "–".to_owned()];
            };
            let off = (said as f64 / found.median - 1.0) * 100.0;
            [format!("{said} / {found:.0}"), format!("{off:+.1} %")]
        };
        let mut row = vec![c.name.clone()];
        row.extend(compared("major_faults", 1.0, |c| c.faults));
        row.extend(compared("read_bytes", 4096.0, |c| c.pages_read));
        row.extend(compared("written_bytes", 4096.0, |c| c.write_backs + c.dirty_at_end));
        rows.push(row);
    }
    let kib = memory_bytes / KIB;
    let head = [
        "policy",
        "major faults predicted / measured",
        "off",
        "pages read",
        "off",
        "pages written",
        "off",
    ];
    table::print(&format!("{name}, in {kib} KiB: predicted and measured"), &head, &rows);

    let rows = contenders.iter().map(|c| {
        let pages = |ours: &str, swap: fn(&Measured) -> u64| match c.pager {
            Pager::Policy(_) => format!("{:.0}", c.spread(|r| of_heaps(r, ours) / 4096.0)),
            Pager::Swapping(_) => format!("{:.0}", c.spread(|r| swap(r) as f64)),
            _ => "–".to_owned(),
        };
        let mib =
            |f: fn(&Measured) -> u64| format!("{:.1}", c.spread(|r| f(r) as f64 / MIB as f64));
        vec![
            c.name.clone(),
            format!("{:.2}", c.spread(|r| r.elapsed_ns as f64 / 1e9)),
            format!("{:.2}", c.spread(|r| r.cpu_ns as f64 / 1e9)),
            pages("read_bytes", |r| r.swap.map_or(0, |s| s.pages_in())),
            pages("written_bytes", |r| r.swap.map_or(0, |s| s.pages_out())),
            match c.pager {
                // Its device is no disk.
                Pager::Swapping(Swap::Zram) => "0".to_owned(),
                _ => pages("read_bytes", |r| r.swap.map_or(0, |s| s.device_in)),
            },
            mib(|r| r.peak_bytes),
            mib(|r| r.swap.map_or(0, |s| s.pool_peak_bytes)),
        ]
    });
    let head = [
        "contender",
        "elapsed s",
        "CPU s",
        "pages in",
        "pages out",
        "in from the disk",
        "peak of the cgroup, MiB",
        "compressed pages, MiB",
    ];
    let title =
        format!("{name}, in {kib} KiB: ours, and the kernel's swap; {repeats} interleaved runs");
    table::print(&title, &head, &rows.collect::<Vec<_>>());
    machine.save(&entry.key, contenders.iter().map(Contender::json).collect())
}

/// The kernel alone with swap, in a cgroup of the memory that we have for pages, and what the program
/// has otherwise. Where nobody is charged for compressed pages, it has as much less as they take at
/// most; if that cannot be, nobody, and why is printed.
fn swapping(machine: &Machine, entry: &Entry, name: &str, swap: Swap) -> Result<Option<Contender>> {
    /// Both together may be larger than they should be by so much.
    const TOLERANCE: f64 = 1.03;
    const TRIES: u32 = 5;
    /// With less of the memory, the kernel ends programs.
    const LEAST: f64 = 0.15;
    let contender = |memory_bytes| Contender {
        memory_bytes: Some(memory_bytes),
        allowance_bytes: entry.own_bytes,
        ..Contender::new(name, &entry.program, Pager::Swapping(swap), READ_AHEAD_KIB)
    };
    let probe = MemoryCgroup::create("pagekeeper-bench", MIB)?;
    let free = swap.is_free_of_charge(probe.version());
    drop(probe);
    if !free {
        return Ok(Some(contender(entry.memory_bytes)));
    }
    let left_out = |why: &str| println!("{}: no row of \"{name}\": {why}\n", entry.name);
    let memory = entry.memory_bytes as f64;
    let heap = entry.heap_bytes as f64;
    let mut own = memory;
    for _ in 0..TRIES {
        let bytes = own as u64;
        let pager = Pager::Swapping(swap);
        let cgroup_bytes = bytes + entry.own_bytes;
        let run = match run_within(machine, &entry.program, &pager, bytes, cgroup_bytes) {
            Ok(run) => run,
            Err(error) => {
                left_out(&format!("in {} KiB besides, {error:#}", bytes / KIB));
                return Ok(None);
            }
        };
        let pool = run.swap.map_or(0, |s| s.pool_peak_bytes) as f64;
        if own + pool <= memory * TOLERANCE {
            return Ok(Some(contender(bytes)));
        }
        // What a page there takes of a page; with it the memory for which both fill ours.
        let share = pool / (heap - own);
        own = (memory - share * heap) / (1.0 - share);
        if share >= 1.0 || own < memory * LEAST {
            left_out(&format!(
                "its compressed pages, for which no cgroup is charged, take up to {:.1} MiB, {share:.2} \
                 of what does not fit; with them in ours, too little is left to run in",
                pool / MIB as f64
            ));
            return Ok(None);
        }
    }
    left_out("no size of the cgroup was found with which both are equal to ours");
    Ok(None)
}
