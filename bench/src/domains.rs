//! The paper's Tables III and IV: what a decision costs where the program is compiled, where it is
//! interpreted, and where it lies behind system calls or messages. The same decisions of the same
//! program throughout; which victims leave is compared at each.

mod costs;
mod link;
mod remote;

pub use remote::decide;

use crate::machine::Machine;
use crate::pattern::{SplitMix, mix};
use crate::table::{self, Spread};
use anyhow::{Context, Result, anyhow};
use costs::Disk;
use link::{Caller, Transport};
use pagekeeper_hipec::asm::assemble;
use pagekeeper_hipec::compile::Execution;
use pagekeeper_hipec::{HipecPolicy, Verified, verify};
use pagekeeper_policy::policies::fifo2::Fifo2;
use pagekeeper_policy::{Admission, Fraction, Page, Policy};
use pagekeeper_sim::{Calls, Reference, References};
use pagekeeper_sys::process::set_affinity;
use remote::{BySystemCalls, Decider, Remote};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// The paper's tree: 16 MiB of records of 64 bytes, a balanced binary tree level by level.
const LEVELS: u32 = 18;
/// Its data: 64 MiB of tuples of 64 bytes.
const TUPLES: u64 = 1 << 20;
/// Records or tuples in a page.
const PER_PAGE: u64 = 64;
/// Tuples retrieved: the paper's smaller number.
const RETRIEVED: u64 = 100_000;
/// The paper's memory sizes, in pages of 4 KiB.
const FRAMES: [(u32, &str); 2] = [(3072, "12 MiB"), (4096, "16 MiB")];
/// Pages of the file that disk reads are timed on: 512 MiB.
const DISK_PAGES: u64 = 131_072;

/// The null system call, so many times: `getppid(2)`, which libc does not remember.
pub(crate) fn system_calls(count: u64) {
    for _ in 0..count {
        // SAFETY: getppid(2) takes nothing and cannot fail.
        unsafe { libc::syscall(libc::SYS_getppid) };
    }
}

/// Processor time used so far, in nanoseconds, by this process and another one: what others on the
/// machine do is not in it.
pub(crate) fn cpu_ns(other: Option<u32>) -> f64 {
    let read = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: clock_gettime(2) writes `time`, which is one.
        let done = unsafe { libc::clock_gettime(clock, &raw mut time) };
        assert_eq!(done, 0, "the clock of a process that is there");
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    let others = other.map_or(0.0, |process| {
        let mut clock = 0;
        // SAFETY: clock_getcpuclockid(3) writes `clock`, which is one.
        let done = unsafe { libc::clock_getcpuclockid(process.cast_signed(), &raw mut clock) };
        assert_eq!(done, 0, "a process that was started has a clock");
        read(clock)
    });
    read(libc::CLOCK_PROCESS_CPUTIME_ID) + others
}

/// Random retrieval by the tree: for each tuple the records from the root to its own, then its
/// page.
fn random_data_retrieval(retrieved: u64) -> Result<References> {
    let mut references = References::builder();
    let mut random = SplitMix::new(1997);
    let mut touch = |segment: u32, page_index: u64| {
        references.push(Reference { segment, page_index, write: false, by_call: false, time_ns: 0 })
    };
    for _ in 0..retrieved {
        let record = 1 + random.below((1 << LEVELS) - 1);
        for above in (0..=record.ilog2()).rev() {
            touch(0, ((record >> above) - 1) / PER_PAGE)?;
        }
        touch(1, mix(record) % TUPLES / PER_PAGE)?;
    }
    Ok(references.finish())
}

/// A program of commands that touch no page: what a command costs by itself.
const COUNTING: &str = "hipec 1
event Init
    Int at
    Int end = 60000
    Int one = 1
event PageFault
    Arith at = one
next:
    Arith at += one
    Comp at >= end
    Jump next
    Return
event Replace
    Return
";

/// How MPFIFO2 is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Compiled,
    Interpreted,
    SystemCalls,
    Messages,
    Both,
}

impl Way {
    const ALL: [Way; 5] =
        [Way::Compiled, Way::Interpreted, Way::SystemCalls, Way::Messages, Way::Both];

    fn name(self) -> &'static str {
        match self {
            Way::Compiled => "compiled",
            Way::Interpreted => "interpreted",
            Way::SystemCalls => "a system call a command",
            Way::Messages => "a message a decision",
            Way::Both => "both (the paper's)",
        }
    }
}

struct Bench<'a> {
    program: Arc<Verified>,
    path: &'a str,
    frames: u32,
    calls: &'a Calls,
    transport: Transport,
    /// How the variants that are reached from outside run the program: compiled where that can be.
    best: Execution,
}

impl Bench<'_> {
    fn policy(&self, execution: Execution) -> Result<HipecPolicy> {
        Ok(HipecPolicy::with_execution(self.program.clone(), self.frames, execution)?)
    }

    /// Nanoseconds of processor time of all calls, another process's too.
    fn told(&self, mut policy: impl Policy, other: Option<u32>) -> f64 {
        let start = cpu_ns(other);
        self.calls.tell(&mut policy);
        cpu_ns(other) - start
    }

    fn run(&self, way: Way) -> Result<f64> {
        let remote = |by_system_calls| {
            let decider = Decider {
                program: self.path.to_owned(),
                frames: self.frames,
                execution: self.best,
                by_system_calls,
            };
            let remote = Remote::start(self.transport, &decider)?;
            let process = remote.process();
            anyhow::Ok(self.told(remote, Some(process)))
        };
        Ok(match way {
            Way::Compiled => self.told(self.policy(Execution::Compiled)?, None),
            Way::Interpreted => self.told(self.policy(Execution::Interpreted)?, None),
            Way::SystemCalls => self.told(BySystemCalls::new(self.policy(self.best)?), None),
            Way::Messages => remote(false)?,
            Way::Both => remote(true)?,
        })
    }

    /// The pool's own order alone, with the same pages leaving: what is kept beside any program.
    fn own_order(&self) -> f64 {
        let mut policy = Fifo2::new(Fraction::new(2, 3));
        let start = cpu_ns(None);
        self.calls.tell_removing(&mut policy);
        cpu_ns(None) - start
    }
}

/// Nanoseconds a command of a program that only counts.
fn bare_command_ns(execution: Execution) -> Result<f64> {
    const FAULTS: u32 = 24;
    let program = assemble(COUNTING).context("the counting program")?.program;
    let program = verify(program).map_err(|findings| anyhow!("{findings:?}"))?;
    let mut policy = HipecPolicy::with_execution(Arc::new(program), 4096, execution)?;
    let start = cpu_ns(None);
    for page in 0..FAULTS {
        policy.admitted(Page(page), Admission::Demand);
    }
    Ok((cpu_ns(None) - start) / policy.counts().commands as f64)
}

/// Measures and prints both tables.
///
/// # Errors
/// Files cannot be had, or the other process cannot be started.
pub fn domains(machine: &Machine, repeats: u32) -> Result<()> {
    // Both processes on one processor: a message that wakes another one costs more on any machine.
    set_affinity(0)?;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/mpfifo2.hipec");
    let path = path.to_str().context("a path of text")?;
    let program = remote::program(Path::new(path))?;
    let best = match HipecPolicy::with_execution(program.clone(), 1, Execution::Compiled) {
        Ok(_) => Execution::Compiled,
        Err(error) => {
            println!("(not compiled: {error})\n");
            Execution::Interpreted
        }
    };
    let arguments = |frames: u32| [path.to_owned(), frames.to_string(), "0".into(), "0".into()];
    let transports = costs::transports(|it| Caller::start(it, &arguments(1)))?;
    let transport = transports[0].0;

    let (costs, disk_ns) = table_3(machine, repeats, transport, &transports, best, &arguments(1))?;
    let references = random_data_retrieval(RETRIEVED)?;
    let mut sizes = Vec::new();
    for (frames, size) in FRAMES {
        let policy = HipecPolicy::with_execution(program.clone(), frames, Execution::Interpreted)?;
        let calls = Calls::of(&references, policy, frames)?;
        let bench =
            Bench { program: program.clone(), path, frames, calls: &calls, transport, best };
        sizes.push(table_4(&bench, &references, size, repeats, disk_ns)?);
    }
    machine.save("domains", json!({ "table_3": costs, "table_4": sizes }))
}

/// Costs of crossings, commands and disk reads, beside the paper's; and what a random read takes.
fn table_3(
    machine: &Machine,
    repeats: u32,
    transport: Transport,
    transports: &[(Transport, f64)],
    best: Execution,
    arguments: &[String],
) -> Result<(Value, f64)> {
    let file = machine.file(DISK_PAGES)?;
    let mut disk = Disk::open(&file, DISK_PAGES)?;
    let mut caller = Caller::start(transport, arguments)?;
    let round_trip = format!("Round trip of 32 bytes to a process ({})", transport.name());
    let rows: [(&str, &str); 8] = [
        ("A HiPEC command, compiled (counting loop)", "–"),
        ("A HiPEC command, interpreted (counting loop)", "< 150 ns"),
        ("Null system call (getppid)", "19.4 µs"),
        ("System call with 32 bytes (setitimer)", "24.8 µs"),
        (&round_trip, "317.9 µs"),
        ("4 KiB of disk, in 10 MiB read by 1 MiB", "952.7–1502.4 µs"),
        ("4 KiB of disk, sequential reads", "–"),
        ("4 KiB of disk, random reads", "–"),
    ];
    let mut seen: Vec<Vec<f64>> = vec![Vec::new(); rows.len()];
    for _ in 0..repeats {
        let values = [
            if best == Execution::Compiled { bare_command_ns(best)? } else { f64::NAN },
            bare_command_ns(Execution::Interpreted)?,
            costs::null_system_call_ns()?,
            costs::system_call_32_bytes_ns()?,
            costs::round_trip_ns(&mut caller)?,
            disk.bandwidth_ns()?,
            disk.sequential_ns()?,
            disk.random_ns()?,
        ];
        seen.iter_mut().zip(values).for_each(|(all, value)| all.push(value));
    }
    let spreads: Vec<Spread> = seen.iter().map(|all| Spread::of(all.iter().copied())).collect();
    let cells: Vec<Vec<String>> = rows
        .iter()
        .zip(&spreads)
        .filter(|(_, spread)| spread.median.is_finite())
        .map(|((what, paper), spread)| {
            let to_command = spread.median / spreads[1].median;
            vec![(*what).to_owned(), time(*spread), format!("{to_command:.1}"), (*paper).to_owned()]
        })
        .collect();
    table::print("Table III", &["what", "time", "of a command", "the paper's"], &cells);
    let others: Vec<String> =
        transports.iter().map(|(it, ns)| format!("{} {:.1} µs", it.name(), ns / 1e3)).collect();
    println!(
        "Processor time but for the disk's, which is elapsed. Round trips, both processes on one \
         processor: {}.\n",
        others.join(", ")
    );
    let json = rows
        .iter()
        .zip(&seen)
        .map(|((what, paper), ns)| json!({ "what": what, "ns": ns, "paper": paper }))
        .collect();
    Ok((json, spreads[7].median))
}

/// The variants of one memory size.
fn table_4(
    bench: &Bench<'_>,
    references: &References,
    size: &str,
    repeats: u32,
    disk_ns: f64,
) -> Result<Value> {
    let native = Calls::of(references, Fifo2::new(Fraction::new(2, 3)), bench.frames)?;
    let is_possible = |way: &Way| *way != Way::Compiled || bench.best == Execution::Compiled;
    let ways: Vec<Way> = Way::ALL.into_iter().filter(is_possible).collect();
    let mut seen: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    let (mut own_orders, mut natives) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        own_orders.push(bench.own_order());
        let mut policy = Fifo2::new(Fraction::new(2, 3));
        let start = cpu_ns(None);
        native.tell(&mut policy);
        natives.push(cpu_ns(None) - start);
        for (all, way) in seen.iter_mut().zip(&ways) {
            all.push(bench.run(*way)?);
        }
    }
    let mut policy = bench.policy(Execution::Interpreted)?;
    bench.calls.tell(&mut policy);
    let counts = policy.counts();
    let own = Spread::of(own_orders.iter().copied());
    let spreads: Vec<Spread> = seen.iter().map(|all| Spread::of(all.iter().copied())).collect();
    let interpreted = ways.iter().position(|it| *it == Way::Interpreted).unwrap_or_default();
    let native_spread = Spread::of(natives.iter().copied());
    let with_disk = |ns: f64, faults: u64| ns + faults as f64 * disk_ns;
    let original = with_disk(native_spread.median, native.faults());
    let row = |name: &str, spread: Spread, events: u64, faults: u64| {
        let scale = |ns: f64| ns / 1e6;
        let per_event = (spread.median - own.median).max(0.0) / events as f64;
        let shown =
            Spread { median: scale(spread.median), min: scale(spread.min), max: scale(spread.max) };
        vec![
            name.to_owned(),
            format!("{shown:.0}"),
            if events == 0 { "–".to_owned() } else { format!("{per_event:.0}") },
            format!("{:.2}", spread.median / spreads[interpreted].median),
            format!("{:.4}", with_disk(spread.median, faults) / original),
            faults.to_string(),
        ]
    };
    let mut rows = vec![row("fifo2, native", native_spread, 0, native.faults())];
    rows[0][2] = "–".to_owned();
    for (way, spread) in ways.iter().zip(&spreads) {
        rows.push(row(way.name(), *spread, counts.events, bench.calls.faults()));
    }
    let title = format!(
        "Table IV: mpfifo2, {RETRIEVED} tuples, {size}: {} references, {} events of {:.1} commands \
         (most {})",
        references.len(),
        counts.events,
        counts.commands as f64 / counts.events as f64,
        counts.event_commands_max,
    );
    let head = [
        "how",
        "all decisions, CPU ms",
        "CPU ns an event",
        "to interpreted",
        "with disk",
        "block I/O",
    ];
    table::print(&title, &head, &rows);
    for (way, spread) in ways.iter().zip(&spreads) {
        if matches!(way, Way::Compiled | Way::Interpreted) {
            let ns = (spread.median - own.median) / counts.commands as f64;
            println!("{}: {ns:.1} ns a command of mpfifo2, all of its events included", way.name());
        }
    }
    println!();
    Ok(json!({
        "memory": size,
        "frames": bench.frames,
        "references": references.len(),
        "events": counts.events,
        "commands": counts.commands,
        "event_commands_max": counts.event_commands_max,
        "block_io": bench.calls.faults(),
        "block_io_fifo2": native.faults(),
        "fifo2_ns": natives,
        "own_order_ns": own_orders,
        "disk_ns": disk_ns,
        "ways": ways.iter().zip(&seen)
            .map(|(way, ns)| json!({ "how": way.name(), "ns": ns }))
            .collect::<Vec<_>>(),
    }))
}

/// In the unit that suits.
fn time(spread: Spread) -> String {
    let (scale, unit, decimals) = match spread.median {
        ns if ns < 1000.0 => (1.0, "ns", 1),
        _ => (1000.0, "µs", 2),
    };
    let shown =
        Spread { median: spread.median / scale, min: spread.min / scale, max: spread.max / scale };
    format!("{shown:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The string is the paper's: each retrieval goes from the root's page to a data page.
    #[test]
    fn retrievals_go_down_the_tree() {
        let references = random_data_retrieval(50).unwrap();
        assert!(references.len() > 50 * 12 && references.len() <= 50 * (LEVELS as usize + 1));
        assert_eq!(random_data_retrieval(50).unwrap().len(), references.len());
    }

    /// Behind system calls, and behind messages of every kind, the program decides the same:
    /// `tell` compares each victim.
    #[test]
    fn every_way_decides_the_same() {
        let references = random_data_retrieval(300).unwrap();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../policies/mpfifo2.hipec");
        let program = remote::program(Path::new(path)).unwrap();
        let policy = || HipecPolicy::new(program.clone(), 64);
        let calls = Calls::of(&references, policy(), 64).unwrap();
        let best = Execution::Interpreted;
        let mut bench = Bench {
            program: program.clone(),
            path,
            frames: 64,
            calls: &calls,
            transport: Transport::Pipes,
            best,
        };
        assert!(bench.run(Way::Interpreted).unwrap() > 0.0);
        assert!(bench.run(Way::SystemCalls).unwrap() > 0.0);
        if link::decider().is_err() {
            eprintln!("skipped: pagekeeper-decider is not built");
            return;
        }
        for transport in Transport::ALL {
            bench.transport = transport;
            assert!(bench.run(Way::Both).unwrap() > 0.0);
        }
    }
}
