//! Table II of the HiPEC paper: what it costs that a policy is a HiPEC program. The same policy,
//! FIFO with second chance, as a program and as native code.

use crate::contest::{Contender, interleave};
use crate::machine::{Machine, READ_AHEAD_KIB};
use crate::pattern;
use crate::run::{Measured, Pager, Program, run};
use crate::table::{self, Spread};
use crate::tables::{policy, program};
use anyhow::{Context, Result, ensure};
use pagekeeper_frames::{Brain, Budget, Config, Input};
use pagekeeper_policy::PolicySpec;
use pagekeeper_trace::{Record, TraceReader};
use serde_json::json;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// The paper's memory and the region that is written in it.
const MEMORY: u64 = 58 * MIB;
const WRITTEN: u64 = 60 * MIB;
/// The memory for random faults, a quarter of the file.
const RANDOM_MEMORY: u64 = 16 * MIB;
const TOUCHES: &str = "60000";
/// Replays of the same inputs.
const REPLAYS: usize = 7;

/// The two parts of Table II.
pub fn overhead(machine: &Machine, repeats: u32) -> Result<()> {
    let contest = |program_: &Program| {
        vec![
            Contender::new(
                "fifo2, native",
                program_,
                Pager::Policy("fifo2".into()),
                READ_AHEAD_KIB,
            ),
            Contender::new(
                "fifo2, HiPEC",
                program_,
                Pager::Policy(program("second-chance.hipec")),
                READ_AHEAD_KIB,
            ),
        ]
    };
    let file = machine.file(4 * RANDOM_MEMORY / 4096)?;
    let random = Program::workload("random", &file, &[TOUCHES, "7"])?;
    let mut faulting = contest(&random);
    let bare = Program::workload("pread", &file, &[TOUCHES, "7"])?;
    faulting.push(Contender::new("pread, O_DIRECT", &bare, Pager::Kernel, READ_AHEAD_KIB));
    interleave(machine, &mut faulting, RANDOM_MEMORY, repeats)?;
    let bare = faulting.pop().expect("pushed above");
    // A file of its own: writing changes what other programs check.
    let written = machine.built("written.bin", |part| {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(part)?);
        pattern::write_file(&mut out, WRITTEN / 4096)?;
        Ok(out.flush()?)
    })?;
    let fill = Program::workload("fill", &written, &[])?;
    let mut writing = contest(&fill);
    interleave(machine, &mut writing, MEMORY, repeats)?;

    let alone = alone(machine, &random)?;
    let per_fault = |r: &Measured| r.cpu_ns as f64 / r.major_faults as f64;
    let mut rows = Vec::new();
    let mut row = |what: &str, contenders: &[Contender], f: &dyn Fn(&Measured) -> f64| {
        let [native, hipec] = contenders else { unreachable!("two are compared") };
        let pairs = native.runs.iter().zip(&hipec.runs);
        let more = Spread::of(pairs.map(|(n, h)| (f(h) / f(n) - 1.0) * 100.0));
        rows.push(vec![
            what.to_owned(),
            format!("{:.2}", native.spread(f)),
            format!("{:.2}", hipec.spread(f)),
            format!("{more:+.2}"),
        ]);
    };
    row("random faults: CPU of all, µs a fault", &faulting, &|r| per_fault(r) / 1e3);
    row("random faults: decisions, µs a fault", &faulting, &|r| {
        r.count("policy_ns") as f64 / r.major_faults as f64 / 1e3
    });
    row("60 MiB written in 58 MiB: elapsed s", &writing, &|r| r.elapsed_ns as f64 / 1e9);
    row("60 MiB written in 58 MiB: CPU s", &writing, &|r| r.cpu_ns as f64 / 1e9);
    row("the same: decisions, % of elapsed", &writing, &decisions_percent);
    let [native, hipec] = alone.map(Spread::of);
    rows.push(vec![
        "the same inputs replayed: decisions, µs a fault".into(),
        format!("{native:.3}"),
        format!("{hipec:.3}"),
        format!("{:+.2}", (hipec.median / native.median - 1.0) * 100.0),
    ]);
    let head = ["Table II", "native", "HiPEC", "more, %"];
    let title = format!(
        "Table II. FIFO with second chance, native and as a HiPEC program; {repeats} interleaved \
         pairs; the paper: +2.06 % of a fault's handling without disk I/O, +1.9 % of elapsed time"
    );
    table::print(&title, &head, &rows);
    let handling = faulting[0].spread(per_fault).median / 1e3;
    let read = bare.spread(|r| r.cpu_ns as f64 / r.read_bytes as f64 * 4.096).median;
    let more = hipec.median - native.median;
    println!(
        "decisions as a program take {more:.3} µs more a fault: {:.2} % of a fault's {handling:.1} \
         µs of CPU, {:.2} % without the {read:.1} µs that a bare direct read takes\n",
        more / handling * 100.0,
        more / (handling - read) * 100.0
    );
    machine.save(
        "overhead",
        json!({
            "random": faulting.iter().map(Contender::json).collect::<Vec<_>>(),
            "pread": bare.json(),
            "written": writing.iter().map(Contender::json).collect::<Vec<_>>(),
            "replayed_us_a_fault": { "native": native.median, "hipec": hipec.median },
        }),
    )
}

/// All time that the engine spent in decisions, the brain's own and the policy's.
fn decisions_percent(run: &Measured) -> f64 {
    100.0 * run.count("policy_ns") as f64 / run.elapsed_ns as f64
}

/// The decisions alone, µs a major fault, from the inputs of one recorded live run: native, and as
/// a program. Taken in turns.
fn alone(machine: &Machine, random: &Program) -> Result<[Vec<f64>; 2]> {
    let trace = machine.scratch("overhead.pkt");
    let pager = Pager::Record {
        policy: "fifo2".into(),
        trace: trace.clone(),
        inputs: true,
        window_pages: None,
    };
    eprint!("\r\x1b[Krecording random faults");
    run(machine, random, &pager, RANDOM_MEMORY)?;
    eprint!("\r\x1b[K");
    let inputs = inputs(&trace)?;
    let mut taken = [Vec::new(), Vec::new()];
    let mut digests = [0, 0];
    let names = ["fifo2".to_owned(), program("second-chance.hipec")];
    for _ in 0..REPLAYS {
        for (at, name) in names.iter().enumerate() {
            // Frames as native: with fewer, decisions would be others.
            let frames = Budget::new(RANDOM_MEMORY, policy(&names[0])?.info().bytes_per_page);
            let (cpu, brain) = decided(&inputs, &policy(name)?, frames.frames(0))?;
            taken[at].push(cpu.as_nanos() as f64 / 1e3 / brain.counts().major_faults as f64);
            digests[at] = brain.digest();
        }
    }
    ensure!(digests[0] == digests[1], "the program decides otherwise than the native policy");
    Ok(taken)
}

/// The CPU time of all decisions on inputs, and what they left.
pub(crate) fn decided(
    inputs: &[Input],
    policy: &PolicySpec,
    frames: u32,
) -> Result<(Duration, Brain)> {
    let mut brain = Brain::new(policy.build(frames, 0)?, Config::live(frames));
    let start = thread_cpu();
    for input in inputs {
        brain.apply(*input);
    }
    Ok((thread_cpu() - start, brain))
}

/// CPU time of this thread, which other work on the machine does not lengthen.
fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live variable.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(done, 0, "Linux has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The inputs of all decisions of a recorded run.
pub(crate) fn inputs(trace: &Path) -> Result<Vec<Input>> {
    let mut reader = TraceReader::new(BufReader::new(File::open(trace)?))?;
    let mut inputs = Vec::new();
    while let Some(record) = reader.next_record()? {
        if let Record::Input(input) = record {
            let decoded = Input::decode(input.code, input.a, input.b);
            inputs.push(decoded.context("the trace was recorded by another version")?);
        }
    }
    ensure!(!inputs.is_empty(), "{} has no inputs", trace.display());
    Ok(inputs)
}
