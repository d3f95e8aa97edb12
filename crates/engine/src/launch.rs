//! Runs an unmodified program under a manager.

mod course;
pub(crate) mod holder;
mod invitation;
mod needs;
mod privilege;
pub mod recorder;
mod spared;
mod threads;
mod wait;

use crate::compressed::{Codec, Pool};
use crate::engine::stats::Stats;
use crate::heaps::scratch::Scratch;
use crate::manager::Manager;
use crate::manager::selection::Selection;
use crate::port::PAGE_BYTES;
use holder::Holder;
use pagekeeper_frames::SamplingShare;
use pagekeeper_policy::PolicySpec;
use pagekeeper_sys::launch::LiftedLimits;
use pagekeeper_trace::TraceError;
use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use thiserror::Error;

/// Smallest budget: the frames that one instruction needs, and a little.
pub const MEMORY_BYTES_MIN: u64 = 64 << 10;

/// How to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program, as it was named.
    pub program: OsString,
    /// Where it was found.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Which policy.
    pub policy: PolicySpec,
    /// Budget for everything of ours: frames, private copies, per-page state, buffers.
    pub memory_bytes: u64,
    /// Which files.
    pub selection: Selection,
    /// Whether heap memory is managed too.
    pub heap: Option<HeapOptions>,
    /// Where to record, and whether with the brain's inputs.
    pub record: Option<(PathBuf, bool)>,
    /// The most that seeing touches may cost, where they are sampled.
    pub sampling: SamplingShare,
    /// See nearly every reference: only so many pages stay mapped. For recording; slow.
    pub window_pages: Option<u32>,
    /// The preload library.
    pub preload: PathBuf,
    /// Seed of random policies.
    pub seed: u64,
    /// Leave files to the kernel as long as nothing can be won, where a cgroup
    /// bounds the kernel's page cache to about as much memory. Not with heap memory or recordings.
    pub standby: bool,
    /// Let programs write to what is in memory without a system call: others outside see it when it was
    /// written back, which is on `fsync(2)`, `close(2)`, an unlock, and every few seconds.
    pub delay_writes: bool,
    /// What the caller does around the program's start.
    pub hooks: Hooks,
    /// Takes the run's control when the program was started.
    pub control: Option<ControlHook>,
}

/// Which heap memory is managed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeapOptions {
    /// Smaller allocations, and the memory below the break, are the kernel's.
    pub min_bytes: u64,
    /// Directory of the scratch file, where memory goes that does not fit.
    pub scratch: PathBuf,
    /// The part of the budget, in percent, in which it may stay compressed before that.
    pub compressed_percent: u32,
}

impl HeapOptions {
    /// Where heap memory goes that does not fit into a budget of so many bytes.
    fn open_scratch(&self, memory_bytes: u64) -> Result<Arc<Scratch>, RunError> {
        let limit_bytes = memory_bytes / 100 * u64::from(self.compressed_percent);
        let pool = || Pool::new(PAGE_BYTES as usize, limit_bytes, Codec::default());
        Scratch::create(&self.scratch, (limit_bytes > 0).then(pool)).map_err(|errno| {
            let place = self.scratch.display();
            RunError::Machine(format!("no scratch file for heap memory in {place}: {errno}"))
        })
    }
}

/// Something that the thread that waits for the program looks after meanwhile, and must not be kept
/// waiting by.
pub trait Source {
    /// Readable when there is something to do.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// Does it. False if there will be nothing more to do.
    fn serve(&mut self) -> bool;
}

/// Given the program's process id, and the run's control.
pub type Started = fn(u32, Control) -> Option<Box<dyn Source>>;

/// Who takes a run's control.
#[derive(Clone)]
pub struct ControlHook(pub Arc<dyn Fn(Control) -> Option<Box<dyn Source>> + Send + Sync>);

impl std::fmt::Debug for ControlHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ControlHook")
    }
}

/// What can be changed while a program runs.
#[derive(Clone)]
pub struct Control {
    manager: std::sync::Weak<Manager>,
    seed: u64,
}

impl Control {
    /// Another policy decides from now on, over the pages that are in memory. Gives back how many
    /// there are.
    ///
    /// # Errors
    /// The policy cannot run live, or the run has ended; nothing was changed.
    pub fn replace_policy(&self, policy: &PolicySpec) -> Result<u32, String> {
        let manager = self.manager.upgrade().ok_or("the run has ended")?;
        manager.end_standby("another policy was asked for");
        manager.engine.replace_policy(policy, self.seed).map_err(|e| e.to_string())
    }

    /// The processes that use managed files, by number; none of a run that has ended.
    pub fn users(&self) -> Vec<u32> {
        self.manager.upgrade().map_or_else(Vec::new, |manager| manager.users())
    }
}

/// What the caller of [`run`] does around the program's start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hooks {
    /// With the command, before it is started: sets up signals, enters a cgroup.
    pub prepare: Option<fn(&mut Command)>,
    /// With the program's process id, which is not reused before this returns: what forwards
    /// signals.
    pub started: Option<Started>,
}

/// Why a program could not be run, or not to its end.
#[derive(Debug, Error)]
pub enum RunError {
    /// The program cannot be started.
    #[error("cannot start {program}: {reason}")]
    Start {
        /// Which program.
        program: String,
        /// Why.
        reason: String,
    },
    /// The machine lacks something.
    #[error("{0}")]
    Machine(String),
    /// The policy does not fit.
    #[error("{0}")]
    Policy(String),
    /// The budget is too small.
    #[error("--memory {given} bytes is too small: the least is {MEMORY_BYTES_MIN} bytes")]
    Memory {
        /// What was asked for.
        given: u64,
    },
    /// The recording failed.
    #[error("recording to {path}: {source}")]
    Record {
        /// Where to.
        path: PathBuf,
        /// Why.
        source: TraceError,
    },
}

/// How it ended.
#[derive(Debug)]
pub struct Outcome {
    /// The program's exit status.
    pub status: ExitStatus,
    /// What was counted.
    pub stats: Stats,
    /// Files whose dirty pages could not all be written, with the reason.
    pub unwritten: Vec<(String, String)>,
    /// Records in the trace, if one was written.
    pub recorded: Option<Result<u64, TraceError>>,
}

fn machine(what: &str) -> impl Fn(pagekeeper_sys::Errno) -> RunError {
    let what = what.to_owned();
    move |e| {
        let most = pagekeeper_sys::launch::address_space_bytes_max();
        RunError::Machine(match most.filter(|_| e == pagekeeper_sys::Errno::NOMEM) {
            Some(bytes) => format!(
                "{what}: {e}. No more than {bytes} bytes of address space may be used here (ulimit -v); \
                 pagekeeper takes some 1.5 GB, little of it memory"
            ),
            None => format!("{what}: {e} (try: pagekeeper doctor)"),
        })
    }
}

/// Runs a program under a manager of its own, until it and every process it left behind that uses
/// managed files have ended, and everything is written back.
///
/// # Errors
/// It could not be started; nothing was changed.
pub fn run(options: &Options) -> Result<Outcome, RunError> {
    if options.memory_bytes < MEMORY_BYTES_MIN {
        return Err(RunError::Memory { given: options.memory_bytes });
    }
    let limits = LiftedLimits::new();
    needs::check(&limits).map_err(RunError::Machine)?;
    let (holder, table) =
        Holder::start().map_err(machine("the holder process cannot be started"))?;
    let holder = Arc::new(holder);
    let result = course::run_with(options, &holder, table, &limits);
    holder.end();
    result
}
