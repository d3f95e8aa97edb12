//! One measured run of a program, under us or under the kernel alone.

use crate::machine::Machine;
use crate::swap::{Swap, Swapping, Traffic};
use anyhow::{Context, Result, bail, ensure};
use pagekeeper_sys::cgroup::MemoryCgroup;
use pagekeeper_sys::counters::drop_page_cache;
use pagekeeper_sys::launch::ChildSetup;
use serde_json::Value;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// For what is charged to a cgroup besides the frames that a contender may use: the heaps, page
/// tables and text of the program, the manager and the holder. The kernel's page cache may use it
/// too.
pub const ALLOWANCE_BYTES: u64 = 24 << 20;

/// A program under test.
#[derive(Clone, Debug)]
pub struct Program {
    /// It and its arguments.
    pub command: Vec<OsString>,
    /// The files that it maps or reads; a folder stands for all files below it.
    pub files: Vec<PathBuf>,
    /// Allocations from so many bytes on are managed, too.
    pub heap_bytes: Option<u64>,
    /// More options of `pagekeeper run`.
    pub options: Vec<OsString>,
}

impl Program {
    /// A program that maps these files.
    pub fn new(command: Vec<OsString>, files: Vec<PathBuf>) -> Program {
        Program { command, files, heap_bytes: None, options: Vec::new() }
    }

    /// One of the workload programs on a file; `arguments` come after the file.
    pub fn workload(name: &str, file: &Path, arguments: &[&str]) -> Result<Program> {
        let mut command = vec![beside("pagekeeper-workload")?.into_os_string()];
        command.push(name.into());
        command.push(file.into());
        command.extend(arguments.iter().map(Into::into));
        Ok(Program::new(command, vec![file.to_owned()]))
    }

    /// The same with one more argument.
    pub fn with(mut self, argument: &str) -> Program {
        self.command.push(argument.into());
        self
    }
}

/// A program that was built together with this one.
///
/// # Errors
/// The system does not tell where this one is.
pub fn beside(name: &str) -> Result<PathBuf> {
    Ok(std::env::current_exe().context("where this program is")?.with_file_name(name))
}

/// Who decides which of the file's pages are in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pager {
    /// The kernel's page cache.
    Kernel,
    /// The kernel, and what does not fit goes to swap.
    Swapping(Swap),
    /// Us, under this policy, from the start.
    Policy(String),
    /// Us, under this policy, from the start, with writes delayed.
    Delayed(String),
    /// Us, under this policy, standing by where it does.
    Usual(String),
    /// Us, recording.
    Record {
        /// Under this policy.
        policy: String,
        /// Into this file.
        trace: PathBuf,
        /// With the inputs of all decisions.
        inputs: bool,
        /// So many pages stay mapped; else as a plain run.
        window_pages: Option<u32>,
    },
}

/// What one run took.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The workload's own elapsed time; of programs that do not tell, from start to exit.
    pub elapsed_ns: u64,
    /// CPU time of the whole tree of processes, from start to exit.
    pub cpu_ns: u64,
    /// Read from block devices by the tree (the kernel's count, `ru_inblock`).
    pub read_bytes: u64,
    /// Read from the file's device meanwhile, by whomever.
    pub device_read_bytes: u64,
    /// In so many requests.
    pub device_reads: u64,
    /// Major faults: the kernel's count of the tree, or those that we served.
    pub major_faults: u64,
    /// What the program found.
    pub answer: String,
    /// All that it told in a last line of JSON.
    pub told: Option<Value>,
    /// What `--stats` wrote.
    pub stats: Option<Value>,
    /// The most that the cgroup used.
    pub peak_bytes: u64,
    /// What went to swap and came from it, where there was some.
    pub swap: Option<Traffic>,
}

impl Measured {
    /// A counter of `--stats`, over all files.
    ///
    /// # Panics
    /// If the run was the kernel's.
    pub fn count(&self, key: &str) -> u64 {
        let stats = self.stats.as_ref().expect("only runs of ours have statistics");
        stats[key].as_u64().unwrap_or_else(|| panic!("the statistics have no {key}"))
    }
}

/// Runs a program from a cold file in a memory cgroup of its own, with everything that belongs to
/// it inside.
pub fn run(
    machine: &Machine,
    program: &Program,
    pager: &Pager,
    memory_bytes: u64,
) -> Result<Measured> {
    run_within(machine, program, pager, memory_bytes, memory_bytes + ALLOWANCE_BYTES)
}

/// As [`run`], in a cgroup of this size.
pub fn run_within(
    machine: &Machine,
    program: &Program,
    pager: &Pager,
    memory_bytes: u64,
    cgroup_bytes: u64,
) -> Result<Measured> {
    program.files.iter().try_for_each(|path| go_cold(path))?;
    // Before the cgroup, so that it goes after it.
    let mut swapping = match pager {
        Pager::Swapping(swap) => Some(Swapping::on(machine, *swap)?),
        _ => None,
    };
    let cgroup = MemoryCgroup::create("pagekeeper-bench", cgroup_bytes)?;
    if let Some(swapping) = &mut swapping {
        swapping.permit(&cgroup)?;
    }
    let stats_file = machine.scratch("stats.json");
    let mut command = command(machine, program, pager, memory_bytes, &stats_file);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut cgroup_procs = vec![cgroup.procs()?];
    let limited = machine.disk.map(|disk| disk.limit(machine, &cgroup)).transpose()?;
    if let Some(limited) = &limited {
        cgroup_procs.extend(limited.procs()?);
    }
    ChildSetup { cgroup_procs, ..ChildSetup::default() }.apply(&mut command);
    let device_before = machine.device.io()?;
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("{command:?}"))?;
    let mut output = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut output)?;
    let ended = wait(&child)?;
    let wall_ns = start.elapsed().as_nanos() as u64;
    let device_after = machine.device.io()?;
    if ended.status != 0 {
        let killed = cgroup.oom_kills().unwrap_or(0);
        bail!("{command:?} ended with wait status {:#x} ({killed} OOM kills)", ended.status);
    }
    let peak_bytes = cgroup.peak_bytes()?;
    let swap = swapping.as_mut().map(Swapping::traffic).transpose()?;
    ensure!(cgroup.oom_kills().unwrap_or(0) == 0, "{command:?}: something was killed");
    let stats: Option<Value> = match pager {
        Pager::Kernel | Pager::Swapping(_) => None,
        _ => Some(serde_json::from_slice(&std::fs::read(&stats_file)?)?),
    };
    let mut major_faults = ended.major_faults;
    if let Some(stats) = &stats {
        major_faults = stats["major_faults"].as_u64().unwrap_or(0);
        // While `auto` stands by, there may be nothing to manage.
        let managed = major_faults > 0 || !stats["standby"].is_null();
        ensure!(managed, "{command:?} managed nothing: is the preload library built?");
    }
    let told: Option<Value> = output.lines().last().and_then(|l| serde_json::from_str(l).ok());
    let of_program = |key: &str| told.as_ref().and_then(|t| t.get(key));
    Ok(Measured {
        elapsed_ns: of_program("elapsed_ns").and_then(Value::as_u64).unwrap_or(wall_ns),
        cpu_ns: ended.cpu.as_nanos() as u64,
        read_bytes: ended.read_bytes,
        device_read_bytes: device_after.read_bytes - device_before.read_bytes,
        device_reads: device_after.reads - device_before.reads,
        major_faults,
        answer: match of_program("checksum").and_then(Value::as_str) {
            Some(checksum) => checksum.to_owned(),
            None => output.trim().to_owned(),
        },
        told,
        stats,
        peak_bytes,
        swap,
    })
}

/// Takes a file, or all files below a folder, out of the page cache.
fn go_cold(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("{} is under test", path.display()))?;
    if file.metadata()?.is_dir() {
        return std::fs::read_dir(path)?.try_for_each(|entry| go_cold(&entry?.path()));
    }
    file.sync_all()?;
    drop_page_cache(&file).context("cannot drop the file from the page cache")
}

fn command(
    machine: &Machine,
    program: &Program,
    pager: &Pager,
    memory_bytes: u64,
    stats: &Path,
) -> Command {
    let (name, arguments) = program.command.split_first().expect("a program");
    let mut command = match pager {
        Pager::Kernel | Pager::Swapping(_) => {
            let mut command = Command::new(name);
            command.args(arguments);
            return command;
        }
        _ => Command::new(&machine.pagekeeper),
    };
    match pager {
        Pager::Policy(policy) => command.args(["run", "--from-start", "--policy", policy]),
        Pager::Delayed(policy) => {
            command.args(["run", "--from-start", "--delay-writes", "--policy", policy])
        }
        Pager::Usual(policy) => command.args(["run", "--policy", policy]),
        Pager::Record { policy, trace, inputs, window_pages } => {
            match window_pages {
                Some(pages) => command.args(["record", "--window", &pages.to_string(), "--output"]),
                None => command.args(["run", "--record"]),
            };
            command.arg(trace).args(["--policy", policy]);
            let flag = if window_pages.is_some() { "--inputs" } else { "--record-inputs" };
            command.args(inputs.then_some(flag))
        }
        Pager::Kernel | Pager::Swapping(_) => unreachable!("returned above"),
    };
    command.arg("--memory").arg(memory_bytes.to_string()).args(["--min-size", "0"]);
    command.args(["--config", "/dev/null", "--stats"]).arg(stats);
    for file in &program.files {
        command.arg("--files").arg(if file.is_dir() { file.join("**") } else { file.clone() });
    }
    if let Some(bytes) = program.heap_bytes {
        command.arg(format!("--heap={bytes}"));
    }
    command.args(&program.options);
    command.arg("--").arg(name).args(arguments);
    command
}

struct Ended {
    status: i32,
    cpu: Duration,
    read_bytes: u64,
    major_faults: u64,
}

/// Waits for a child and learns what it and all it waited for used.
#[allow(clippy::cast_sign_loss)]
fn wait(child: &Child) -> Result<Ended> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid one.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are to live variables; the child is ours and was not waited for.
        let pid = unsafe { libc::wait4(child.id() as i32, &mut status, 0, &mut usage) };
        if pid >= 0 {
            break;
        }
        let error = std::io::Error::last_os_error();
        ensure!(error.kind() == std::io::ErrorKind::Interrupted, "wait4: {error}");
    }
    let time = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64)
    };
    Ok(Ended {
        status,
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        read_bytes: usage.ru_inblock as u64 * 512,
        major_faults: usage.ru_majflt as u64,
    })
}
