//! The simulator against libCacheSim: requests per second of one policy on one thread.
//!
//! Two halves, since the two simulators cut the work differently. libCacheSim hashes an object's
//! name in every replay; we number the names once, when a trace is read, and replay numbers through
//! any policies and sizes. So the replay alone, the conversion alone, and both together are shown.

use crate::machine::Machine;
use crate::pattern::{SplitMix, Zipf, shuffled};
use crate::table::{self, Spread};
use anyhow::{Context, Result, bail, ensure};
use pagekeeper_policy::{Policy, PolicySpec};
use pagekeeper_sim::{Reference, References, replay};
use pagekeeper_trace::{ImportOptions, Record, for_each_record};
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const REQUESTS: u64 = 20_000_000;
const OBJECTS: u64 = 1_000_000;

/// Our name, and libCacheSim's.
const POLICIES: [(&str, &str); 9] = [
    ("lru", "LRU"),
    ("fifo", "FIFO"),
    ("clock", "Clock"),
    ("sieve", "Sieve"),
    ("s3fifo", "S3FIFO"),
    ("arc", "ARC"),
    ("2q", "TwoQ"),
    ("lirs", "LIRS"),
    ("wtinylfu", "WTinyLFU"),
];

/// Names of objects look like hashes in real traces.
fn name(object: u64) -> u64 {
    crate::pattern::mix(object + 1)
}

/// Zipf's law with exponent 1.
fn zipf() -> Vec<u64> {
    let law = Zipf::new(OBJECTS, 1.0);
    let mut random = SplitMix::new(1);
    (0..REQUESTS).map(|_| name(law.page(&mut random))).collect()
}

/// Half of the requests go round loops of a twentieth, a fifth and half of the objects, the other
/// half follow Zipf's law over the rest.
fn loops() -> Vec<u64> {
    let order = shuffled(OBJECTS, 9);
    let lengths = [OBJECTS / 20, OBJECTS / 5, OBJECTS / 2];
    let looped: u64 = lengths.iter().sum();
    let law = Zipf::new(OBJECTS - looped, 1.0);
    let mut at = [0; 3];
    let mut random = SplitMix::new(2);
    (0..REQUESTS)
        .map(|_| {
            let which = random.below(6) as usize;
            let object = if which < 3 {
                let first: u64 = lengths[..which].iter().sum();
                at[which] = (at[which] + 1) % lengths[which];
                first + at[which]
            } else {
                looped + law.page(&mut random)
            };
            name(u64::from(order[object as usize]))
        })
        .collect()
}

/// Writes libCacheSim's own binary format: time, name, size, position of the next request.
fn write_trace(path: &Path, names: &[u64]) -> Result<()> {
    let mut next = vec![-1i64; names.len()];
    let mut seen = std::collections::HashMap::new();
    for (at, name) in names.iter().enumerate().rev() {
        if let Some(later) = seen.insert(*name, at as i64) {
            next[at] = later;
        }
    }
    let mut out = BufWriter::new(File::create(path)?);
    for (at, (name, next)) in names.iter().zip(next).enumerate() {
        out.write_all(&((at / 1000) as u32).to_le_bytes())?;
        out.write_all(&name.to_le_bytes())?;
        out.write_all(&1u32.to_le_bytes())?;
        out.write_all(&next.to_le_bytes())?;
    }
    out.flush()?;
    Ok(())
}

/// Reads a trace as the product does.
fn read_trace(path: &Path) -> Result<References> {
    let options =
        ImportOptions { format: Some("oracleGeneral".into()), ..ImportOptions::default() };
    let mut source = pagekeeper_trace::open(path, &options)?;
    let mut builder = References::builder();
    let mut pushed = Ok(());
    for_each_record(source.as_mut(), |record| {
        if let Record::Reference(touch) = record
            && pushed.is_ok()
        {
            pushed = builder.push(Reference {
                segment: touch.segment,
                page_index: touch.page,
                write: touch.write,
                by_call: touch.by_call,
                time_ns: 0,
            });
        }
    })?;
    pushed?;
    Ok(builder.finish())
}

struct Peer {
    python: PathBuf,
    script: PathBuf,
}

impl Peer {
    fn find() -> Result<Peer> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = std::env::var_os("PAGEKEEPER_BENCH_PYTHON")
            .map_or_else(|| root.join("../.venv-bench/bin/python"), PathBuf::from);
        let script = root.join("peers/libcachesim_peer.py");
        let import = Command::new(&python).args(["-c", "import libcachesim"]).output();
        if !import.is_ok_and(|o| o.status.success()) {
            bail!(
                "{} has no libcachesim; run `make bench-simulator`, or name a python that has it \
                 in PAGEKEEPER_BENCH_PYTHON",
                python.display()
            );
        }
        Ok(Peer { python, script })
    }

    /// Seconds and misses per request.
    fn run(&self, trace: &Path, policy: &str, frames: u32) -> Result<(f64, f64)> {
        let output = Command::new(&self.python)
            .arg(&self.script)
            .arg(trace)
            .args([policy, &frames.to_string()])
            .output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "libCacheSim, {policy}: {errors}");
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().rev().find(|line| line.starts_with('{'));
        let answer: serde_json::Value =
            serde_json::from_str(line.context("libCacheSim printed no result")?)?;
        let number = |key: &str| answer[key].as_f64().with_context(|| format!("no {key}"));
        Ok((number("seconds")?, number("miss_ratio")?))
    }
}

/// Requests per second, policy by policy, each against libCacheSim's.
pub fn simulator(machine: &Machine, repeats: u32) -> Result<()> {
    let peer = Peer::find()?;
    let mut all = Vec::new();
    for (label, make) in [("zipf 1.0", zipf as fn() -> Vec<u64>), ("loops and zipf", loops)] {
        eprint!("\r\x1b[Kmaking {label}");
        let trace = format!("{}.oracleGeneral", label.replace(' ', "-"));
        let trace = machine.built(&trace, |part| write_trace(part, &make()))?;
        let mut converted = Vec::new();
        let mut references = References::default();
        for _ in 0..repeats {
            eprint!("\r\x1b[Kreading {label}");
            let started = Instant::now();
            references = read_trace(&trace)?;
            converted.push(started.elapsed().as_secs_f64());
        }
        let conversion = Spread::of(converted);
        let requests = references.len() as f64;
        let mut rows = Vec::new();
        for (ours, theirs) in POLICIES {
            let spec = PolicySpec::parse(ours)?;
            for share in [1, 10] {
                let frames = (OBJECTS * share / 100) as u32;
                let (mut own_s, mut peer_s, mut misses) = (Vec::new(), Vec::new(), [0.0; 2]);
                for repeat in 0..repeats {
                    eprint!("\r\x1b[K{}/{repeats} {label}, {ours}, {share} %", repeat + 1);
                    let mut policy: Box<dyn Policy> = spec.build(frames, 0)?;
                    let started = Instant::now();
                    let counts = replay(&references, &mut policy, frames, |_| {})?;
                    own_s.push(started.elapsed().as_secs_f64());
                    misses[0] = 1.0 - counts.hit_ratio();
                    let (seconds, miss_ratio) = peer.run(&trace, theirs, frames)?;
                    peer_s.push(seconds);
                    misses[1] = miss_ratio;
                }
                let rate = |seconds: &[f64]| Spread::of(seconds.iter().map(|s| requests / s / 1e6));
                let ratio = Spread::of(own_s.iter().zip(&peer_s).map(|(a, b)| b / a));
                let whole =
                    Spread::of(own_s.iter().zip(&peer_s).map(|(a, b)| b / (a + conversion.median)));
                rows.push(vec![
                    ours.to_owned(),
                    format!("{share} %"),
                    format!("{:.1}", rate(&own_s)),
                    format!("{:.1}", rate(&peer_s)),
                    format!("{ratio:.1}"),
                    format!("{whole:.2}"),
                    format!("{:.4}", misses[0]),
                    format!("{:.4}", misses[1]),
                    spec.info().bytes_per_page.to_string(),
                ]);
                all.push(json!({
                    "trace": label, "policy": ours, "frames": frames, "seconds": own_s,
                    "libcachesim_seconds": peer_s, "conversion_seconds": conversion.median,
                    "miss_ratio": misses[0], "libcachesim_miss_ratio": misses[1],
                }));
            }
        }
        eprint!("\r\x1b[K");
        let head = [
            "policy",
            "cache",
            "ours, M requests/s",
            "libCacheSim",
            "ratio",
            "ratio with conversion",
            "our misses",
            "theirs",
            "bytes a page",
        ];
        let title = format!(
            "Simulator: {label}, {REQUESTS} requests over {OBJECTS} objects, unit sizes, one thread. \
             Reading and numbering the trace takes us {conversion:.2} s, once for all policies and \
             sizes; libCacheSim reads and hashes in every replay"
        );
        table::print(&title, &head, &rows);
    }
    machine.save("simulator", all.into())
}
