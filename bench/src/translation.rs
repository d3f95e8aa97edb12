//! Finding the bytes: by their place in a mapping, or by a hash table, in the same library; and what
//! the paper's first appendix changed in a cache of the latter kind ([`Hashed`]).

use crate::hashed::{BLOCK_BYTES, Counts, Hashed, Variant};
use crate::machine::Machine;
use crate::pattern::SplitMix;
use crate::table;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

/// Instructions, and the appendix.
///
/// # Errors
/// A run's.
pub fn translation(machine: &Machine) -> Result<()> {
    instructions(machine)?;
    appendix(machine)
}

/// Instructions in the program, for each read, counted by callgrind: the difference of a run with
/// twice as many reads, less what the loop around them takes.
fn instructions(machine: &Machine) -> Result<()> {
    const FILE_MIB: u64 = 16;
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("valgrind is not installed: no instruction counts\n");
        return Ok(());
    }
    let file = machine.file(FILE_MIB * 256)?;
    let program = std::env::current_exe()?.with_file_name("pagekeeper-translation");
    let count = |way: &str, memory: u64, size: u64, reads: u64| -> Result<u64> {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(&program)
            .arg(way)
            .arg(&file)
            .args([memory, size, reads].map(|n| n.to_string()))
            .output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{way}: {text}");
        let line = text.lines().find_map(|line| line.split_once("Collected : "));
        Ok(line.context("what callgrind counted")?.1.trim().parse()?)
    };
    let mut rows = Vec::new();
    let mut results = Vec::new();
    for (memory, what) in [(2 * FILE_MIB, "in memory"), (FILE_MIB / 4, "at four times memory")] {
        for size in [4u64, 1 << 10, 4 << 10, 64 << 10] {
            let reads = 2000.max(8_000_000 / (size + 1000));
            let mut per_read = Vec::new();
            let mut loop_alone = 0.0;
            for way in ["none", "pread", "hash63", "hash", "mapped", "table"] {
                let (once, twice) = (
                    count(way, memory << 20, size, reads)?,
                    count(way, memory << 20, size, 2 * reads)?,
                );
                let each = (twice as f64 - once as f64) / reads as f64;
                match way {
                    "none" => loop_alone = each,
                    _ => per_read.push(each - loop_alone),
                }
            }
            let fewer = 100.0 * (1.0 - per_read[3] / per_read[2]);
            rows.push(vec![
                format!("{size} B, {what}"),
                format!("{:.0}", per_read[0]),
                format!("{:.0}", per_read[1]),
                format!("{:.0}", per_read[2]),
                format!("{:.0}", per_read[3]),
                format!("{fewer:.0} %"),
                format!("{:.0}", per_read[4]),
            ]);
            results.push(json!({
                "size_bytes": size, "memory_mib": memory, "loop": loop_alone,
                "pread": per_read[0], "hash63": per_read[1], "hash": per_read[2],
                "mapped": per_read[3], "table": per_read[4],
            }));
        }
    }
    let head = [
        "read",
        "pread, outside the kernel",
        "hash, 63 chains",
        "hash",
        "mapped",
        "fewer than hash",
        "by table",
    ];
    let title = "Instructions a read, in the program itself (callgrind; neither the kernel's nor those \
                 of the loop around it are in it), anywhere in 16 MiB";
    table::print(title, &head, &rows);
    machine.save("library-instructions", results.into())
}

/// Variants of the control, in the order of the paper's Figure 20, and cleaning what is needed.
fn appendix(machine: &Machine) -> Result<()> {
    let original = Variant::ORIGINAL;
    let merged = Variant { two_queues: false, ..original };
    let delayed = Variant { write_when_full: false, ..merged };
    let sized = Variant { fixed_table: false, ..delayed };
    let variants = [
        ("original", original),
        ("one queue", merged),
        ("and delayed writes", delayed),
        ("and a sized table", sized),
        ("and cleaning what is needed", Variant::CHANGED),
    ];
    let mut rows = Vec::new();
    let mut results = Vec::new();
    for buffers in [256, 512, 1024, 2048] {
        for (name, variant) in variants {
            let (counts, probes) = work(machine, buffers, variant)?;
            let run = counts.writes as f64 / counts.write_runs.max(1) as f64;
            rows.push(vec![
                format!("{} MiB, {name}", f64::from(buffers) / 256.0),
                counts.reads.to_string(),
                counts.writes.to_string(),
                format!("{run:.1}"),
                counts.longest_run.to_string(),
                format!("{probes:.2}"),
            ]);
            results.push(json!({
                "buffers": buffers, "variant": name, "reads": counts.reads,
                "writes": counts.writes, "write_runs": counts.write_runs,
                "longest_run": counts.longest_run, "probes": probes,
            }));
        }
    }
    let head =
        ["cache", "blocks read", "written", "blocks a write run", "longest", "headers a lookup"];
    let title = "A cache of buffers in the variants of XMF's appendix I: compilations in miniature \
                 (sources found by an index, temporary files written, read and deleted, results \
                 kept); before the last flush";
    table::print(title, &head, &rows);
    machine.save("library-appendix", results.into())
}

/// Sources of 4 MiB, found by a word each of 1 MiB of index blocks; a temporary file of 768 KiB;
/// results of 64 KiB each that are kept.
fn work(machine: &Machine, buffers: u32, variant: Variant) -> Result<(Counts, f64)> {
    const SOURCES: u64 = 1024;
    const INDEX: u64 = SOURCES;
    const INDEX_BLOCKS: u64 = 256;
    const TEMPORARY: u64 = INDEX + INDEX_BLOCKS;
    const TEMPORARY_BLOCKS: u64 = 192;
    const RESULTS: u64 = TEMPORARY + TEMPORARY_BLOCKS;
    const RESULT_BLOCKS: u64 = 16;
    const COMPILATIONS: u64 = 100;
    let blocks = RESULTS + RESULT_BLOCKS * COMPILATIONS;
    let path = machine.scratch("appendix");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)?;
    file.set_len(blocks * BLOCK_BYTES as u64)?;
    let cache = Hashed::new(file, buffers, variant);
    let mut random = SplitMix::new(1);
    let mut buffer = vec![0; 1024];
    let at = |block: u64| block * BLOCK_BYTES as u64;
    for compilation in 0..COMPILATIONS {
        for _ in 0..40 {
            // The product of two draws favours the first sources.
            let source = random.below(SOURCES) * random.below(SOURCES) / SOURCES;
            cache.read_exact_at(&mut buffer[..8], at(INDEX + source % INDEX_BLOCKS))?;
            for piece in 0..4 {
                cache.read_exact_at(&mut buffer, at(source) + piece * 1024)?;
            }
        }
        for piece in 0..TEMPORARY_BLOCKS * 4 {
            cache.write_all_at(&buffer, at(TEMPORARY) + piece * 1024)?;
        }
        for piece in 0..TEMPORARY_BLOCKS * 4 {
            cache.read_exact_at(&mut buffer, at(TEMPORARY) + piece * 1024)?;
        }
        cache.forget(TEMPORARY..RESULTS);
        let result = RESULTS + compilation * RESULT_BLOCKS;
        for piece in 0..RESULT_BLOCKS * 4 {
            cache.write_all_at(&buffer, at(result) + piece * 1024)?;
        }
    }
    let probes: u64 = (0..SOURCES).map(|block| cache.probe(block)).sum();
    // What is dirty still is written by every variant.
    let counts = cache.counts();
    cache.flush()?;
    std::fs::remove_file(path)?;
    Ok((counts, probes as f64 / SOURCES as f64))
}
