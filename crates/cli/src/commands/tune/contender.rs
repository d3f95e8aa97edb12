//! One run of the program, and what is measured of it.

use super::input::Input;
use super::interrupts::Interrupts;
use super::output::{self, Handling, Output};
use super::peak::Peak;
use crate::failure::{Failure, Kind};
use crate::job::Job;
use crate::program;
use crate::report::say;
use crate::size::Size;
use pagekeeper_policy::PolicySpec;
use pagekeeper_sys::cgroup::{CgroupError, MemoryCgroup};
use pagekeeper_sys::counters::{BlockDevice, ProcessIo, drop_page_cache};
use pagekeeper_sys::process::CpuTimes;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// For what is charged to a cgroup besides anonymous memory and frames: page tables and other
/// kernel memory, the program's text.
const ALLOWANCE_FIXED_BYTES: u64 = 4 << 20;
/// Added if that was too little, so many times at the most.
const ALLOWANCE_STEP_BYTES: u64 = 8 << 20;
const ALLOWANCE_STEPS_MAX: u32 = 8;
/// How much of a failed run's standard error is shown.
const ERRORS_SHOWN_BYTES: u64 = 4 << 10;

/// Who manages the program's files in a run.
#[derive(Clone, Debug)]
pub(super) enum Contender {
    /// Us, recording into a file.
    Recorded(PathBuf),
    /// Us, under this policy.
    Policy(PolicySpec),
    /// The kernel.
    Kernel,
}

impl Contender {
    /// What to say of a run of it that cannot be used.
    pub(super) fn ended_badly(&self, status: ExitStatus) -> String {
        format!("the run ({self}) did not end well: {status}")
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contender::Recorded(_) => f.write_str("recording"),
            Contender::Policy(spec) => spec.fmt(f),
            Contender::Kernel => f.write_str("kernel"),
        }
    }
}

/// What `--stats` wrote, as far as it is needed here.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct RunStats {
    pub(super) major_faults: u64,
    pub(super) minor_faults: u64,
    pub(super) unmapped_pages: u64,
    pub(super) touches_seen: u64,
    pub(super) evictions: u64,
    pub(super) write_faults: u64,
    pub(super) write_backs: u64,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
    pub(super) prefetched_pages: u64,
    pub(super) io_ns: u64,
    pub(super) elapsed_ns: u64,
    #[serde(skip_serializing)]
    pub(super) files: Vec<ManagedFile>,
    #[serde(skip_serializing)]
    pub(super) passed_through: Vec<serde::de::IgnoredAny>,
}

/// A file that was managed.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ManagedFile {
    pub(super) name: PathBuf,
}

/// How a run ended, and what was measured.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// Wall-clock time of the program.
    pub(super) elapsed_ns: u64,
    pub(super) cpu: Option<Cpu>,
    /// What we counted, if we managed.
    pub(super) stats: Option<RunStats>,
    /// What the kernel counted for all processes of the run.
    pub(super) io: Option<ProcessIo>,
    /// What the device that holds the files transferred meanwhile, for whomever.
    pub(super) device_read_bytes: Option<u64>,
    /// Major faults of the cgroup.
    pub(super) kernel_major_faults: Option<u64>,
    /// The most that the cgroup used.
    pub(super) peak_bytes: Option<u64>,
    /// Anonymous memory of all processes, at its most (of the recorded run).
    pub(super) peak_program_bytes: u64,
    pub(super) output: Output,
}

/// CPU time, user and system, of all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cpu {
    /// Of the process: the manager where we manage, else the program.
    pub(super) own_ns: u64,
    /// Of children that were waited for: the program where we manage.
    pub(super) children_ns: u64,
    /// The part of that outside the kernel.
    pub(super) children_user_ns: u64,
}

/// Why a run cannot be used.
pub(super) enum RunFailure {
    /// The kernel killed a process for lack of memory in the cgroup.
    OutOfMemory,
    /// By this signal, which was for all runs.
    Interrupted(i32),
    /// Anything else.
    Other(Failure),
}

impl From<Failure> for RunFailure {
    fn from(failure: Failure) -> RunFailure {
        RunFailure::Other(failure)
    }
}

/// Runs the program again and again.
pub(super) struct Runner<'a> {
    job: &'a Job,
    executable: PathBuf,
    directory: tempfile::TempDir,
    input: Input,
    interrupts: &'a Interrupts,
    check: bool,
    quiet_stdout: bool,
    /// Files that the first run managed: dropped from the page cache before the others.
    files: Vec<PathBuf>,
    allowance_bytes: u64,
    allowance_steps: u32,
    /// Why runs are not limited by a cgroup.
    no_limit: Option<String>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(
        job: &'a Job,
        interrupts: &'a Interrupts,
        check: bool,
        quiet_stdout: bool,
    ) -> Result<Runner<'a>, Failure> {
        let directory = tempfile::Builder::new()
            .prefix("pagekeeper-tune-")
            .tempdir()
            .map_err(|e| Failure::write("a temporary directory (see TMPDIR)", &e))?;
        interrupts.remove_at_end(directory.path().to_owned());
        Ok(Runner {
            job,
            executable: program::own_executable()?,
            input: Input::new(directory.path().join("input")),
            directory,
            interrupts,
            check,
            quiet_stdout,
            files: Vec::new(),
            allowance_bytes: 0,
            allowance_steps: 0,
            no_limit: None,
        })
    }

    /// A file that is removed at the end.
    pub(super) fn scratch(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Limits further runs to the memory given and what the program needs for itself, if a cgroup
    /// can be made.
    pub(super) fn set_limit(&mut self, peak_program_bytes: u64) {
        self.allowance_bytes = peak_program_bytes + ALLOWANCE_FIXED_BYTES;
        self.no_limit = self.cgroup().err().map(|e| e.to_string());
    }

    /// Raises the limit after a run needed more; `false` if it is high enough for any reason but
    /// an error.
    pub(super) fn raise_limit(&mut self) -> bool {
        self.allowance_bytes += ALLOWANCE_STEP_BYTES;
        self.allowance_steps += 1;
        self.allowance_steps <= ALLOWANCE_STEPS_MAX
    }

    /// What to tell of a run that cannot be used.
    pub(super) fn failure(&self, contender: &Contender, failure: RunFailure) -> Failure {
        match failure {
            RunFailure::Other(failure) => failure,
            RunFailure::Interrupted(signal) => Failure::new(
                Kind::Failure,
                format!("ended by signal {signal} in the run ({contender})"),
            ),
            RunFailure::OutOfMemory => {
                let limit = Size(self.job.memory.0 + self.allowance_bytes);
                let text = format!(
                    "the run ({contender}) needs more memory than its limit, which was raised to \
                     {limit}; give it more with --memory"
                );
                Failure::new(Kind::Failure, text)
            }
        }
    }

    /// The limit of the runs' cgroups.
    pub(super) fn limit_bytes(&self) -> Option<u64> {
        self.no_limit.is_none().then_some(self.job.memory.0 + self.allowance_bytes)
    }

    /// The part of the limit that is for the program and its manager.
    pub(super) fn allowance_bytes(&self) -> u64 {
        self.allowance_bytes
    }

    /// Why runs are not limited.
    pub(super) fn no_limit_reason(&self) -> Option<&str> {
        self.no_limit.as_deref()
    }

    fn cgroup(&self) -> Result<MemoryCgroup, CgroupError> {
        let limit_bytes = self.job.memory.0 + self.allowance_bytes;
        self.interrupts.make_cgroup(|| MemoryCgroup::create("pagekeeper-tune", limit_bytes))
    }

    fn command(&self, contender: &Contender, stats: &Path) -> Command {
        let (program, arguments) = self.job.command.split_first().expect("clap requires a program");
        if matches!(contender, Contender::Kernel) {
            let mut command = Command::new(program);
            command.args(arguments);
            return command;
        }
        let mut command = Command::new(&self.executable);
        match contender {
            Contender::Recorded(trace) => {
                command.args(["record", "--for-tune"]).arg("--output").arg(trace).arg("--policy");
                command.arg(self.job.policy.to_string());
            }
            Contender::Policy(spec) => {
                // As was simulated: `auto` could stand by in the cgroup.
                command.args(["run", "--from-start", "--policy", &spec.to_string()]);
                command.arg("--sampling").arg(self.job.sampling.to_string());
            }
            Contender::Kernel => {}
        }
        command.arg("--memory").arg(self.job.memory.0.to_string());
        command.arg("--min-size").arg(self.job.min_size.0.to_string());
        for glob in &self.job.files {
            command.arg(format!("--files={glob}"));
        }
        if let Some(heap) = &self.job.heap {
            command.arg(format!("--heap={}", heap.min_bytes)).arg("--heap-dir").arg(&heap.scratch);
        }
        // All was said: nothing is to be completed from a configuration.
        command.args(["--config", "/dev/null", "--stats"]).arg(stats).arg("--");
        command.arg(program).args(arguments);
        command
    }

    /// Runs the program once.
    ///
    /// # Errors
    /// It cannot be run, was interrupted, or was killed for lack of memory.
    pub(super) fn run(&mut self, contender: &Contender) -> Result<Ended, RunFailure> {
        let ended = self.run_once(contender);
        match self.interrupts.ended() {
            Some(signal) => Err(RunFailure::Interrupted(signal)),
            None => ended,
        }
    }

    fn run_once(&mut self, contender: &Contender) -> Result<Ended, RunFailure> {
        let recorded = matches!(contender, Contender::Recorded(_));
        let limited = !recorded && self.no_limit.is_none();
        let cgroup = if limited {
            let made = self.cgroup();
            Some(made.map_err(|e| Failure::new(Kind::Machine, e))?)
        } else {
            None
        };
        self.drop_caches();
        let stats_path = self.scratch("stats.json");
        let _ = std::fs::remove_file(&stats_path);
        let mut command = self.command(contender, &stats_path);
        let mut errors = None;
        command.stdin(self.input.stdio()?).stdout(Stdio::piped());
        if !recorded {
            let file = tempfile::tempfile_in(self.directory.path());
            let file = file.map_err(|e| Failure::write("a temporary file", &e))?;
            let copy = file.try_clone().map_err(|e| Failure::write("a temporary file", &e))?;
            command.stderr(copy);
            errors = Some(file);
        }
        let mut setup = self.interrupts.setup();
        if let Some(cgroup) = &cgroup {
            let procs = cgroup.procs().map_err(|e| {
                Failure::new(Kind::Machine, format!("{}: {e}", cgroup.path().display()))
            })?;
            setup.cgroup_procs.push(procs);
        }
        setup.apply(&mut command);

        let scratch = self.job.heap.as_ref().map(|heap| &heap.scratch);
        let device =
            self.files.iter().chain(scratch).find_map(|file| BlockDevice::holding(file).ok());
        let device_bytes = || device.as_ref()?.io().ok().map(|io| io.read_bytes);
        let device_before = device_bytes();
        let started = Instant::now();
        self.interrupts.starting();
        let spawned = command.spawn();
        if let Ok(child) = &spawned {
            self.interrupts.started(child);
        }
        let mut running = Running(spawned.map_err(|e| {
            let program = command.get_program().to_string_lossy().into_owned();
            Failure::new(Kind::NotRunnable, format!("cannot start {program}: {e}"))
        })?);
        let child = &mut running.0;
        let peak = recorded.then(|| Peak::of_tree(child.id())).transpose()?;
        self.input.feed(child.stdin.take())?;
        let output = self.take_output(child, recorded)?;
        let (status, io, cpu) = wait(child)?;
        let elapsed_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let device_read_bytes =
            device_bytes().zip(device_before).map(|(after, before)| after.saturating_sub(before));
        let peak_program_bytes = peak.map_or(0, Peak::finish);

        let killed = cgroup.as_ref().and_then(|c| c.oom_kills().ok()).unwrap_or(0);
        let stats = self.stats(contender, &stats_path);
        if killed > 0 {
            return Err(RunFailure::OutOfMemory);
        }
        self.refuse_bad_end(contender, status, stats.is_some(), errors.as_mut())?;
        if let (Some(stats), true) = (&stats, recorded) {
            self.files = stats.files.iter().map(|file| file.name.clone()).collect();
        }
        Ok(Ended {
            status,
            elapsed_ns: stats.as_ref().map_or(elapsed_ns, |stats| stats.elapsed_ns),
            cpu,
            stats,
            io,
            device_read_bytes,
            kernel_major_faults: cgroup.as_ref().and_then(|c| c.stat("pgmajfault").ok()),
            peak_bytes: cgroup.as_ref().and_then(|c| c.peak_bytes().ok()),
            peak_program_bytes,
            output,
        })
    }

    /// Every run starts cold.
    fn drop_caches(&self) {
        for path in &self.files {
            // A file that the program has removed again needs no dropping.
            if let Ok(file) = File::open(path)
                && let Err(e) = drop_page_cache(&file)
            {
                say(&format!("{}: its pages cannot be dropped from memory: {e}", path.display()));
            }
        }
    }

    fn take_output(&self, child: &mut Child, recorded: bool) -> Result<Output, Failure> {
        let pipe = child.stdout.take().expect("standard output is piped");
        let kept_path = self.scratch("output");
        let kept = self.check.then_some(kept_path.as_path());
        let taken = if !recorded {
            output::take(pipe, Handling::Compare(kept))
        } else if self.quiet_stdout {
            output::take(pipe, Handling::Show(&mut std::io::stderr().lock(), kept))
        } else {
            output::take(pipe, Handling::Show(&mut std::io::stdout().lock(), kept))
        };
        taken.map_err(|e| Failure::write("a copy of the program's output", &e))
    }

    fn stats(&self, contender: &Contender, path: &Path) -> Option<RunStats> {
        if matches!(contender, Contender::Kernel) {
            return None;
        }
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    fn refuse_bad_end(
        &self,
        contender: &Contender,
        status: ExitStatus,
        has_stats: bool,
        errors: Option<&mut File>,
    ) -> Result<(), Failure> {
        let by_us = !matches!(contender, Contender::Kernel);
        let bad = status.signal().is_some() || (by_us && !has_stats);
        if (bad || !status.success())
            && let Some(errors) = errors
        {
            show_end_of(errors);
        }
        if !bad {
            return Ok(());
        }
        if status.signal() == Some(libc::SIGINT) {
            let text = format!("interrupted in the run ({contender})");
            return Err(Failure::new(Kind::Interrupted, text));
        }
        // What we could not do says its exit code; the message is above.
        let kind = match status.code() {
            Some(2) if !has_stats => Kind::Usage,
            Some(69) if !has_stats => Kind::Machine,
            Some(74) if !has_stats => Kind::Output,
            _ => Kind::Failure,
        };
        Err(Failure::new(kind, contender.ended_badly(status)))
    }
}

/// A run that has begun. Where an error of ours lets go of it, it is asked to end, as a signal to `tune` asks,
/// and waited for: nothing goes on that nobody looks after, and what it wrote is written back.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            // Nobody reads on.
            drop(self.0.stdout.take());
            let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
            let _ = self.0.wait();
        }
    }
}

/// Waits for the end; what the kernel counted is there until the process is reaped.
fn wait(child: &mut Child) -> Result<(ExitStatus, Option<ProcessIo>, Option<Cpu>), Failure> {
    let failed = |e: std::io::Error| {
        Failure::new(Kind::Failure, format!("cannot wait for the program: {e}"))
    };
    let pid = Pid::from_child(child);
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(waitid(WaitId::Pid(pid), options), Err(rustix::io::Errno::INTR)) {}
    let io = ProcessIo::of(child.id()).ok();
    let cpu = CpuTimes::of(child.id()).ok().map(Cpu::from);
    Ok((child.wait().map_err(failed)?, io, cpu))
}

impl From<CpuTimes> for Cpu {
    fn from(times: CpuTimes) -> Cpu {
        let ns = |time: Duration| time.as_nanos() as u64;
        Cpu {
            own_ns: ns(times.user + times.system),
            children_ns: ns(times.children_user + times.children_system),
            children_user_ns: ns(times.children_user),
        }
    }
}

fn show_end_of(errors: &mut File) {
    let mut text = Vec::new();
    let length = errors.metadata().map_or(0, |m| m.len());
    let start = SeekFrom::Start(length.saturating_sub(ERRORS_SHOWN_BYTES));
    if errors.seek(start).is_ok() && errors.read_to_end(&mut text).is_ok() && !text.is_empty() {
        let _ = writeln!(std::io::stderr(), "{}", String::from_utf8_lossy(&text).trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_are_added_up() {
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        let [user, system, children_user, children_system] =
            [100, 20, 3, 4].map(|ticks| Duration::from_nanos(ticks * tick_ns));
        let times = CpuTimes { user, system, children_user, children_system };
        let expected =
            Cpu { own_ns: 120 * tick_ns, children_ns: 7 * tick_ns, children_user_ns: 3 * tick_ns };
        assert_eq!(Cpu::from(times), expected);
    }
}
