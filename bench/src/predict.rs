//! Predicted against measured: what a recording, made under another policy, says about live runs.

use crate::contest::{Contender, interleave};
use crate::machine::{Machine, READ_AHEAD_KIB};
use crate::run::{ALLOWANCE_BYTES, Measured, Pager, Program, run_within};
use crate::table::{self, Spread};
use anyhow::{Context, Result, bail, ensure};
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{LiveOptions, References, simulate_live};
use pagekeeper_trace::TraceReader;
use serde_json::{Value, json};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;
/// Recordings are made under this policy, which is none of those predicted.
pub const RECORDED_UNDER: &str = "fifo";
/// Pages whose touches a recording does not see.
const WINDOW_PAGES: u32 = 64;
/// The policies that are predicted.
const POLICIES: [&str; 4] = ["lru", "clock", "fifo2", "mru"];

/// What is predicted.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    program: Program,
    pub(crate) memory_bytes: u64,
}

/// For numpy's own memory besides what others need: nobody is compared with the kernel here.
const ROOM_BYTES: u64 = 2 * ALLOWANCE_BYTES;

pub(crate) fn workloads(machine: &Machine) -> Result<Vec<Workload>> {
    let file = machine.file(96 * MIB / 4096)?;
    let written = machine.file(64 * MIB / 4096)?;
    let db = machine.built("orders.db", build_database)?;
    let samples = machine.built("samples.npy", |part| build_samples(machine, part))?;
    let sqlite = ["sqlite3".into(), db.clone().into_os_string(), JOIN.into()];
    let numpy = [
        machine.python().into_os_string(),
        "-c".into(),
        EPOCHS.into(),
        samples.clone().into_os_string(),
    ];
    let own =
        |name: &str, file: &Path, arguments: &[&str]| Program::workload(name, file, arguments);
    Ok(vec![
        Workload {
            name: "scan and hot set",
            program: own("mixed", &file, &["8", "4000", "2", "5"])?,
            memory_bytes: 32 * MIB,
        },
        Workload {
            name: "zipf 0.9",
            program: own("zipf", &file, &["150000", "0.9", "5"])?,
            memory_bytes: 32 * MIB,
        },
        Workload {
            name: "zipf 0.9 by pread",
            program: own("zipf", &file, &["150000", "0.9", "5", "--by-pread"])?,
            memory_bytes: 32 * MIB,
        },
        Workload {
            name: "scan and hot set by pread",
            program: own("mixed", &file, &["8", "4000", "2", "5", "--by-pread"])?,
            memory_bytes: 32 * MIB,
        },
        Workload {
            name: "zipf 0.8, 40 % writes",
            program: own("write", &written, &["100000", "0.8", "5", "40"])?,
            memory_bytes: 24 * MIB,
        },
        Workload {
            name: "sqlite3, join by index",
            program: Program::new(sqlite.into(), vec![db]),
            memory_bytes: 16 * MIB,
        },
        Workload {
            name: "numpy, shuffled epochs",
            program: Program::new(numpy.into(), vec![samples]),
            memory_bytes: 32 * MIB,
        },
    ])
}

/// Orders look up customers by key; some customers order far more than others.
const JOIN: &str = "PRAGMA mmap_size=1073741824; PRAGMA cache_size=16; PRAGMA automatic_index=off;
SELECT count(*), sum(c.rate * o.amount) FROM orders o CROSS JOIN customers c
WHERE c.id = o.customer;";

fn build_database(part: &Path) -> Result<()> {
    const SQL: &str = "
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA page_size = 4096;
CREATE TABLE customers(id INTEGER PRIMARY KEY, rate INTEGER, note TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000)
INSERT INTO customers SELECT i, (i * 7919) % 101, hex(zeroblob(350)) FROM n;
CREATE TABLE orders(id INTEGER PRIMARY KEY, customer INTEGER, amount INTEGER, note TEXT);
WITH RECURSIVE n(i, x) AS (SELECT 1, 12345
  UNION ALL SELECT i + 1, (x * 1103515245 + 12345) % 2147483648 FROM n WHERE i < 100000)
INSERT INTO orders SELECT i,
  1 + CAST((x / 2147483648.0) * (x / 2147483648.0) * (x / 2147483648.0) * 40000 AS INTEGER)
    * 7919 % 40000,
  x % 1009, hex(zeroblob(40)) FROM n;";
    let done = Command::new("sqlite3").arg(part).arg(SQL).status().context("sqlite3")?;
    ensure!(done.success(), "sqlite3 could not build its database");
    Ok(())
}

const EPOCHS: &str = "
import sys, json
import numpy as np
samples = np.load(sys.argv[1], mmap_mode='r')
rng = np.random.default_rng(3)
weights = np.zeros(samples.shape[1])
batches = len(samples) // 160
for epoch in range(5):
    for batch in rng.permutation(batches):
        rows = samples[batch * 160 : (batch + 1) * 160]
        error = rows @ weights - rows.sum(axis=1, dtype=np.float64)
        weights -= 0.01 * (error @ rows) / len(rows)
print(' '.join(f'{w:.6f}' for w in weights[:4]))
";

fn build_samples(machine: &Machine, part: &Path) -> Result<()> {
    // 64 floats a row: 16 rows a page, ten pages a batch.
    const BUILD: &str = "
import sys
import numpy as np
rows = np.random.default_rng(7).random((192_000, 64), dtype=np.float32)
np.save(open(sys.argv[1], 'wb'), rows)
";
    let python = machine.python();
    let done = Command::new(&python).args(["-c", BUILD]).arg(part).status();
    let done = done.with_context(|| format!("{} (make setup)", python.display()))?;
    ensure!(done.success(), "numpy could not build its samples");
    Ok(())
}

/// A run of a program alone, for predictions: what it did, and its references, which stay in the
/// file of this name.
///
/// # Errors
/// It cannot be run or recorded.
pub fn record(
    machine: &Machine,
    program: &Program,
    file: &str,
    memory_bytes: u64,
    cgroup_bytes: u64,
) -> Result<(Measured, References)> {
    let trace = machine.scratch(file);
    let fitting = pagekeeper_frames::Config::recording_window((memory_bytes / 4096) as u32);
    // Working memory is given far less than files are here.
    let window = if program.heap_bytes.is_some() { fitting } else { WINDOW_PAGES };
    let (policy, window_pages) = (RECORDED_UNDER.into(), Some(window));
    let pager = Pager::Record { policy, trace: trace.clone(), inputs: true, window_pages };
    eprint!("\r\x1b[Krecording {}", file.trim_end_matches(".pkt"));
    let measured = run_within(machine, program, &pager, memory_bytes, cgroup_bytes)?;
    eprint!("\r\x1b[K");
    Ok((measured, load(&trace)?))
}

/// A recorded run of a workload.
pub(crate) fn recording(machine: &Machine, w: &Workload) -> Result<(Measured, References)> {
    record(machine, &w.program, "recorded.pkt", w.memory_bytes, w.memory_bytes + ROOM_BYTES)
}

/// The references of a recording.
///
/// # Errors
/// It cannot be read.
fn load(trace: &Path) -> Result<References> {
    let mut reader = TraceReader::new(BufReader::new(File::open(trace)?))?;
    let mut builder = References::builder();
    builder.header(reader.header());
    while let Some(record) = reader.next_record()? {
        builder.record(&record, 4096, 1)?;
    }
    Ok(builder.finish())
}

/// Four policies on several workloads: major faults and pages read, predicted from one recording
/// under yet another policy, and measured.
pub fn predict(machine: &Machine, repeats: u32) -> Result<()> {
    let mut rows = Vec::new();
    let mut kept = Vec::new();
    let mut errors = Vec::new();
    for w in workloads(machine)? {
        let (recorded, references) = recording(machine, &w)?;
        let mut contenders: Vec<Contender> = POLICIES
            .iter()
            .map(|p| Contender {
                allowance_bytes: ROOM_BYTES,
                ..Contender::new(*p, &w.program, Pager::Policy((*p).into()), READ_AHEAD_KIB)
            })
            .collect();
        interleave(machine, &mut contenders, w.memory_bytes, repeats).with_context(|| w.name)?;
        for c in &contenders {
            ensure!(
                c.runs.iter().all(|r| r.answer == recorded.answer),
                "{}: the recorded run found something else",
                w.name
            );
            let policy = PolicySpec::parse(&c.name)?;
            let said = simulate_live(&references, &policy, &LiveOptions::new(w.memory_bytes))?;
            let majors = c.spread(|r| r.count("major_faults") as f64);
            let reads = c.spread(|r| r.count("read_bytes") as f64 / 4096.0);
            let off = |said: u64, found: Spread| (said as f64 / found.median - 1.0) * 100.0;
            let off_majors = off(said.counts.faults, majors);
            let off_reads = off(said.counts.pages_read, reads);
            errors.extend([off_majors.abs(), off_reads.abs()]);
            rows.push(vec![
                w.name.to_owned(),
                c.name.clone(),
                said.counts.faults.to_string(),
                format!("{majors:.0}"),
                format!("{off_majors:+.1} %"),
                said.counts.pages_read.to_string(),
                format!("{reads:.0}"),
                format!("{off_reads:+.1} %"),
            ]);
            kept.push(json!({
                "workload": w.name, "policy": c.name, "recorded_under": RECORDED_UNDER,
                "references": references.len(),
                "predicted_major_faults": said.counts.faults,
                "predicted_pages_read": said.counts.pages_read,
                "measured": c.json(),
            }));
        }
    }
    let head =
        ["workload", "policy", "major faults said", "found", "off", "pages said", "found", "off"];
    let title = format!(
        "Predicted from one recording under {RECORDED_UNDER} (window {WINDOW_PAGES} pages), and \
         measured in {repeats} live runs"
    );
    table::print(&title, &head, &rows);
    let all = Spread::of(errors);
    println!("error, of either sign: median {:.1} %, worst {:.1} %\n", all.median, all.max);
    machine.save("predict", Value::Array(kept))
}

/// Live runs recorded with the inputs of all decisions, replayed: the decisions must be the same.
pub fn replay(machine: &Machine) -> Result<()> {
    let mut rows = Vec::new();
    let mut kept = Vec::new();
    for w in workloads(machine)? {
        for policy in POLICIES {
            let trace = machine.scratch("replayed.pkt");
            eprint!("\r\x1b[Krecording {} under {policy}", w.name);
            let pager = Pager::Record {
                policy: policy.into(),
                trace: trace.clone(),
                inputs: true,
                window_pages: None,
            };
            let cgroup_bytes = w.memory_bytes + ROOM_BYTES;
            let recorded = run_within(machine, &w.program, &pager, w.memory_bytes, cgroup_bytes)?;
            let replayed = Command::new(&machine.pagekeeper)
                .arg("replay")
                .arg(&trace)
                .stderr(Stdio::inherit())
                .output()?;
            let said = String::from_utf8_lossy(&replayed.stdout).trim().to_owned();
            let stats = recorded.stats.as_ref().context("statistics")?;
            let digest = stats["decisions_digest"].as_str().context("a digest")?;
            if !replayed.status.success() || !said.contains(digest) {
                bail!("{} under {policy}: digest {digest} live; replayed: {said}", w.name);
            }
            rows.push(vec![
                w.name.to_owned(),
                policy.to_owned(),
                digest.to_owned(),
                "equal".into(),
            ]);
            kept.push(json!({ "workload": w.name, "policy": policy, "digest": digest }));
        }
    }
    eprint!("\r\x1b[K");
    let head = ["replay", "policy", "digest of all decisions", "replayed"];
    table::print("Recorded live runs, their decisions taken again", &head, &rows);
    machine.save("replay", Value::Array(kept))
}
