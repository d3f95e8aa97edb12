//! The programs of the suite and their data. What they print is compared between all runs.

use crate::machine::Machine;
use crate::run::Program;
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

const ROWS_IN_NO_ORDER: &str = "WITH RECURSIVE q(i, x) AS (SELECT 1, 12345 UNION ALL SELECT i + 1, \
     (x * 1103515245 + 12345) % 2147483648 FROM q WHERE i < 40000) \
     SELECT count(*), sum(length(body)) FROM q CROSS JOIN archive a \
     WHERE a.id = 1 + x / 65536 % 62000;";

/// A program of the suite.
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) program: Program,
    pub(super) memory_bytes: u64,
    /// Anonymous memory that it takes for itself, as seen, and a little more.
    pub(super) heap_bytes: u64,
}

/// Every program, its data built if need be.
pub(super) fn all(machine: &Machine) -> Result<Vec<Entry>> {
    let python = machine.bench_python();
    let built = |name: &str, script: &str| {
        machine.built(name, |part| {
            let done = Command::new(&python).args(["-c", script]).arg(part).status();
            let done = done.with_context(|| format!("{} (make bench-suite)", python.display()))?;
            ensure!(done.success(), "{name} could not be built");
            Ok(())
        })
    };
    let shop = built("suite-shop.db", include_str!("shop.py"))?;
    let lmdb = built("suite-lmdb.mdb", include_str!("lmdb_build.py"))?;
    let samples = built("suite-samples.npy", include_str!("samples.py"))?;
    let logs = built("suite-logs", include_str!("logs.py"))?;
    let lines = built("suite-lines.txt", include_str!("lines.py"))?;
    let index = built("suite-vectors.usearch", include_str!("vectors.py"))?;
    let matrix = built("suite-matrix.npy", include_str!("matrix.py"))?;
    let plain = machine.file(192 * MIB / 4096)?;

    let command = |words: &[&dyn AsRef<std::ffi::OsStr>], file: &Path| {
        let words = words.iter().map(|w| OsString::from(w.as_ref()));
        Program::new(words.collect(), vec![file.to_owned()])
    };
    let sqlite = |sql: &str| {
        let sql = format!("PRAGMA mmap_size=1073741824; PRAGMA cache_size=16; {sql}");
        command(&[&"sqlite3", &shop, &sql], &shop)
    };
    let script = |text: &str, file: &Path| command(&[&python, &"-c", &text, &file], file);
    let fio = |rw: &str, more: &[&str]| {
        let filename = format!("--filename={}", plain.display());
        let rw = format!("--rw={rw}");
        let mut program = command(
            &[
                &"fio",
                &"--name=suite",
                &filename,
                &"--readonly",
                &"--ioengine=mmap",
                &rw,
                &"--bs=4k",
                &"--size=192m",
                &"--invalidate=0",
                &"--randseed=7",
                &"--output=/dev/null",
            ],
            &plain,
        );
        program.command.extend(more.iter().map(OsString::from));
        program
    };
    let mib = |mib: u64| mib * MIB;
    Ok(vec![
        Entry {
            name: "sqlite3, point queries",
            program: sqlite(ROWS_IN_NO_ORDER),
            memory_bytes: mib(48),
            heap_bytes: mib(1),
        },
        Entry {
            name: "sqlite3, statements that lock",
            program: script(include_str!("statements.py"), &shop),
            memory_bytes: mib(48),
            heap_bytes: mib(8),
        },
        Entry {
            name: "sqlite3, four scans",
            program: sqlite(&"SELECT sum(length(body)), max(body) FROM archive;".repeat(4)),
            memory_bytes: mib(48),
            heap_bytes: mib(1),
        },
        Entry {
            name: "sqlite3, nested loop join",
            program: sqlite(
                "PRAGMA automatic_index=off; SELECT r.currency, count(*), sum(o.amount * r.rate) \
                 FROM rates r CROSS JOIN orders o WHERE o.currency = r.currency GROUP BY r.currency;",
            ),
            memory_bytes: mib(48),
            heap_bytes: mib(1),
        },
        Entry {
            name: "LMDB, random gets",
            program: script(include_str!("lmdb_gets.py"), &lmdb),
            memory_bytes: mib(32),
            heap_bytes: mib(3),
        },
        Entry {
            name: "LMDB, three cursor passes",
            program: script(include_str!("lmdb_passes.py"), &lmdb),
            memory_bytes: mib(80),
            heap_bytes: mib(3),
        },
        Entry {
            name: "numpy, epochs in order",
            program: script(include_str!("epochs.py"), &samples),
            memory_bytes: mib(64),
            heap_bytes: mib(14),
        },
        Entry {
            name: "numpy, random rows",
            program: script(include_str!("rows.py"), &samples),
            memory_bytes: mib(32),
            heap_bytes: mib(15),
        },
        Entry {
            name: "rg --mmap over a tree, twice",
            program: command(
                &[
                    &"rg",
                    &"--mmap",
                    &"--no-ignore",
                    &"-j1",
                    &"--count",
                    &"--sort=path",
                    &"-e",
                    &"needle [0-9]+7$",
                    &logs,
                    &logs,
                ],
                &logs,
            ),
            memory_bytes: mib(64),
            heap_bytes: mib(1),
        },
        Entry {
            name: "sort",
            program: command(
                &[&"sort", &"--parallel=1", &"-S", &"16M", &"-u", &"-k2,2", &lines],
                &lines,
            ),
            memory_bytes: mib(32),
            heap_bytes: mib(17),
        },
        Entry {
            name: "usearch, queries on a mapped index",
            program: script(include_str!("search.py"), &index),
            memory_bytes: mib(48),
            heap_bytes: mib(24),
        },
        Entry {
            name: "fio mmap, reads in order, 4 loops",
            program: fio("read", &["--loops=4"]),
            memory_bytes: mib(128),
            heap_bytes: mib(13),
        },
        Entry {
            name: "fio mmap, reads in order, 12 loops, most fits",
            program: fio("read", &["--loops=12"]),
            memory_bytes: mib(160),
            heap_bytes: mib(13),
        },
        Entry {
            name: "fio mmap, reads in order, 12 loops, two processes",
            program: fio("read", &["--loops=12", "--numjobs=2"]),
            memory_bytes: mib(128),
            heap_bytes: mib(26),
        },
        Entry {
            name: "fio mmap, random reads",
            program: fio("randread", &["--io_size=128m", "--norandommap"]),
            memory_bytes: mib(48),
            heap_bytes: mib(13),
        },
        Entry {
            name: "fio mmap, zipf 1.1",
            program: fio("randread", &["--io_size=256m", "--random_distribution=zipf:1.1"]),
            memory_bytes: mib(48),
            heap_bytes: mib(13),
        },
        Entry {
            name: "matrix product of mapped blocks",
            program: script(include_str!("product.py"), &matrix),
            memory_bytes: mib(24),
            heap_bytes: mib(18),
        },
        Entry {
            name: "media-like, one pass with gaps",
            program: script(include_str!("media.py"), &plain),
            memory_bytes: mib(32),
            heap_bytes: mib(3),
        },
        Entry {
            name: "sha256sum",
            program: command(&[&"sha256sum", &plain], &plain),
            memory_bytes: mib(32),
            heap_bytes: mib(1),
        },
        Entry {
            name: "sqlite3, rows by pread in no order",
            program: command(&[&"sqlite3", &"-readonly", &shop, &ROWS_IN_NO_ORDER], &shop),
            memory_bytes: mib(48),
            heap_bytes: mib(3),
        },
        Entry {
            name: "wc, md5sum and awk of a text",
            program: command(
                &[
                    &"sh",
                    &"-c",
                    &"wc \"$0\" && md5sum \"$0\" && awk '{ n += NF } END { print n }' \"$0\"",
                    &lines,
                ],
                &lines,
            ),
            memory_bytes: mib(24),
            heap_bytes: mib(2),
        },
        Entry {
            name: "numpy, stores in order, 4 passes",
            program: script(include_str!("stores.py"), &samples),
            memory_bytes: mib(48),
            heap_bytes: mib(14),
        },
        Entry {
            name: "uniform random touches",
            program: Program::workload("random", &plain, &["30000", "7"])?,
            memory_bytes: mib(48),
            heap_bytes: mib(1),
        },
    ])
}
