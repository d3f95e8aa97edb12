//! Runs an unmodified program under a manager.

use crate::board::Board;
use crate::compressed::{Codec, Pool};
use crate::crew::spawn;
use crate::engine::Engine;
use crate::events::REAP_EVERY;
use crate::holder::Holder;
use crate::live::LivePort;
use crate::manager::Manager;
use crate::port::{PAGE_BYTES, other_pages};
use crate::privilege::Privilege;
use crate::recorder::{self, Content};
use crate::scratch::Scratch;
use crate::selection::Selection;
use crate::standby::{self, Standby};
use crate::stats::{StandbyReport, Stats};
use crate::table::Table;
use pagekeeper_frames::{Budget, Config, Sampling, SamplingShare};
use pagekeeper_policy::PolicySpec;
use pagekeeper_sys::launch::{ChildSetup, LiftedLimits};
use pagekeeper_sys::socket::Listener;
use pagekeeper_sys::{Errno, process, userfault};
use pagekeeper_trace::TraceError;
use pagekeeper_wire as wire;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use thiserror::Error;

/// The least stack of the manager's main thread.
const STACK_BYTES_MIN: u64 = 512 << 10;
/// Fewer open files than that are not enough to begin with.
const OPEN_FILES_MIN: u64 = 32;
/// Most threads that serve faults beside the event thread, and fetch ahead: so many pages can be waited
/// for at a time. They are started when they are needed.
const WORKERS: usize = 128;
/// Smallest budget: the frames that one instruction needs, and a little.
pub const MEMORY_BYTES_MIN: u64 = 64 << 10;
/// How often dirty pages are written back, so that little is lost when the machine dies.
const WRITE_BACK_EVERY: Duration = Duration::from_secs(5);
/// A call into storage or the kernel that takes longer is reported.
const STUCK_AFTER: Duration = Duration::from_secs(10);

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
    /// Leave files that are only read to the kernel as long as nothing can be won, where a cgroup
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
    if let Some(reason) = other_pages() {
        return Err(RunError::Machine(reason));
    }
    let limits = LiftedLimits::new();
    check_limits(&limits).map_err(RunError::Machine)?;
    let (holder, table) =
        Holder::start().map_err(machine("the holder process cannot be started"))?;
    let holder = Arc::new(holder);
    let result = run_with(options, &holder, table, &limits);
    holder.end();
    result
}

/// Whether there can be a manager within the limits of this process, which are meant for the program.
fn check_limits(limits: &LiftedLimits) -> Result<(), String> {
    if let Some(bytes) = limits.file_bytes_max() {
        return Err(format!(
            "files may be no longer than {bytes} bytes here (ulimit -f), and the memory that pages are \
             kept in is one to the kernel. Start pagekeeper without this limit, and set it for the \
             program alone: pagekeeper run … -- sh -c 'ulimit -f …; exec PROGRAM'"
        ));
    }
    if let Some(bytes) = limits.stack_bytes_max().filter(|bytes| *bytes < STACK_BYTES_MIN) {
        return Err(format!(
            "the stack may be no larger than {bytes} bytes here (ulimit -s); pagekeeper needs \
             {STACK_BYTES_MIN}. Set the limit for the program alone: pagekeeper run … -- sh -c 'ulimit -s …; \
             exec PROGRAM'"
        ));
    }
    let open_files_max = pagekeeper_sys::launch::open_files_max();
    if open_files_max < OPEN_FILES_MIN {
        return Err(format!(
            "no more than {open_files_max} files may be open here (ulimit -n); pagekeeper needs \
             {OPEN_FILES_MIN}, and two for each managed file"
        ));
    }
    Ok(())
}

fn run_with(
    options: &Options,
    holder: &Arc<Holder>,
    table: Table,
    limits: &LiftedLimits,
) -> Result<Outcome, RunError> {
    let budget = Budget::new(options.memory_bytes, options.policy.info().bytes_per_page);
    let frames = budget.frames(0);
    let policy =
        options.policy.build(frames, options.seed).map_err(|e| RunError::Policy(e.to_string()))?;
    let config = match options.window_pages {
        Some(pages) => Config::recording(frames, pages),
        None => Config { sampling: Sampling::within(options.sampling), ..Config::live(frames) },
    };
    let secret = random_bytes().map_err(|e| RunError::Machine(format!("/dev/urandom: {e}")))?;
    let name = format!("pagekeeper-{}-{}", std::process::id(), hex(&secret[..8]));
    let may_follow = userfault::may_follow_programs();
    let how = match &options.heap {
        _ if !may_follow => wire::USER_MODE_ONLY.to_owned(),
        Some(heap) => heap.min_bytes.to_string(),
        None => String::new(),
    };
    // Memory of other kinds, and references, are to be seen from the start.
    let stands_by =
        options.standby && may_follow && options.heap.is_none() && options.record.is_none();
    let board = Board::create(secret, &options.selection).map_err(machine("no shared memory"))?;
    let board = Arc::new(board);
    let standby = stands_by.then(|| Standby::begin(options.memory_bytes, &board)).flatten();
    let side = SideDoor::open(&name);
    let side_place = side.as_ref().map_or_else(String::new, SideDoor::place);
    let tag =
        format!("{}={name}:{}:{how}:{}{side_place}", wire::ENV_SOCKET, hex(&secret), board.place());

    holder.watch_for(&tag).map_err(machine("the holder process has ended"))?;
    let privilege = Privilege::found(may_follow, holder.pid());
    let config = privilege.limit(config).map_err(RunError::Machine)?;
    run_held(
        options, policy, config, privilege, secret, &name, &tag, table, holder, board, standby,
        limits, side,
    )
}

#[allow(clippy::too_many_arguments)]
fn run_held(
    options: &Options,
    policy: Box<dyn pagekeeper_policy::Policy>,
    config: Config,
    privilege: Privilege,
    secret: [u8; 16],
    name: &str,
    tag: &str,
    table: Table,
    holder: &Arc<Holder>,
    board: Arc<Board>,
    standby: Option<Standby>,
    limits: &LiftedLimits,
    side: Option<SideDoor>,
) -> Result<Outcome, RunError> {
    let budget = Budget::new(options.memory_bytes, options.policy.info().bytes_per_page);
    let engine = Engine::new(LivePort::new(), policy, config, table, budget);
    engine.name_policy(&options.policy);
    let recording = match &options.record {
        Some((path, inputs)) => {
            let header = header(options, config);
            let sampling = match options.window_pages {
                Some(mapped_pages) => pagekeeper_trace::Sampling::Window { mapped_pages },
                None => pagekeeper_trace::Sampling::Window { mapped_pages: config.frames },
            };
            let content = Content { sampling, inputs: *inputs };
            let prepared = recorder::prepare(path, header, content, &options.policy);
            Some(prepared.map_err(|source| RunError::Record { path: path.clone(), source })?)
        }
        None => None,
    };
    let manager = Manager::new(engine, options.selection.clone(), secret)
        .map_err(machine("the manager cannot be set up"))?;
    if privilege.user_mode_only {
        manager.engine.port().set_user_mode_only();
    }
    for note in privilege.notes(options.heap.is_some()) {
        manager.note(note);
    }
    if let Some(heap) = options.heap.as_ref().filter(|_| !privilege.user_mode_only) {
        manager.manage_heaps(heap.open_scratch(options.memory_bytes)?);
    }
    if options.delay_writes {
        let _ = manager.delays_writes.set(());
    }
    manager.set_witness(Box::new(holder.clone()));
    let _ = manager.board.set(board);
    if let Some(standby) = standby {
        let _ = manager.standby.set(standby);
    }
    let listener = Listener::bind(name.as_bytes(), true).map_err(machine("no socket"))?;
    holder.keep_listener(&listener).map_err(machine("the holder process has ended"))?;

    if let Some(seconds) = limits.processor_seconds_max() {
        // At once: it may end without another word.
        eprintln!(
            "pagekeeper: the limit of processor time (ulimit -t), {seconds} s, is the manager's as well, \
             whose end is the program's"
        );
    }
    let (_, value) = tag.split_once('=').expect("a tag is an assignment");
    let mut command = Command::new(&options.path);
    command
        .arg0(&options.program)
        .args(&options.arguments)
        .env("LD_PRELOAD", preload_list(&options.preload))
        .env(wire::ENV_SOCKET, value);
    let oom_score_adj = crate::spared::manager(|| manager.room().is_some());
    ChildSetup { oom_score_adj, ..limits.setup() }.apply(&mut command);
    if let Some(prepare) = options.hooks.prepare {
        prepare(&mut command);
    }
    let started = Instant::now();
    let mut child = command.spawn().map_err(|e| RunError::Start {
        program: options.program.to_string_lossy().into_owned(),
        reason: e.to_string(),
    })?;
    // Nothing can be refused any more: what was recorded there before goes.
    let writing = recording.map(|recording| {
        let (recorder, writing) = recording.begin();
        manager.engine.set_log(Box::new(recorder));
        writing
    });
    // After the start: the program keeps the limit that it would have had.
    pagekeeper_sys::launch::raise_open_files_limit();
    let stop = Arc::new(AtomicBool::new(false));
    set_crew(&manager, holder, &stop);
    // Who cannot be served then is told why.
    let is_short = (!manager.stands_by()).then(|| manager.call_crew()).and_then(Result::err);
    if let Some(errno) = is_short {
        eprintln!(
            "pagekeeper: threads cannot be started ({errno}; ulimit -u, or pids.max of the cgroup): files \
             stay the kernel's"
        );
    }
    let (listeners, _side) = match side {
        Some(SideDoor { listener: side, place }) => (vec![listener, side], Some(place)),
        None => (vec![listener], None),
    };
    let mut wait = Wait { manager: &manager, listeners, sources: Vec::new() };
    let control = Control { manager: Arc::downgrade(&manager), seed: options.seed };
    if let Some(started) = options.hooks.started {
        wait.sources.extend(started(child.id(), control.clone()));
    }
    if let Some(ControlHook(hook)) = &options.control {
        wait.sources.extend(hook(control));
    }
    let mut watch = None;
    let status = wait.for_program(&mut child, || {
        if manager.standby.get().is_some() {
            match spawn("pk-standby", watch_standby(&manager, holder, &stop, options)) {
                Ok(watched) => watch = Some(watched),
                Err(errno) => manager.note(format!(
                    "no thread can be started ({errno}): files that are only read stay the kernel's"
                )),
            }
        }
    });
    let elapsed_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);

    let unwritten: Vec<(String, String)> = manager
        .engine
        .flush_all()
        .into_iter()
        .map(|(name, error)| (name, error.to_string()))
        .collect();
    for (name, error) in manager.engine.errors_untold() {
        manager
            .note(format!("{name}: write-backs failed meanwhile ({error}), and succeeded later"));
    }
    // It goes while the threads do.
    manager.let_off_leash();
    holder.release();
    if let Some(scratch) = manager.scratch() {
        scratch.end();
    }
    stop.store(true, Ordering::SeqCst);
    let _ = manager.kick.notify();
    let crew = manager.crew.close();
    let workers = manager.workers.close();
    let threads: Vec<_> = crew.into_iter().chain(workers).chain(watch).collect();
    for thread in &threads {
        thread.thread().unpark();
    }
    for thread in threads {
        let _ = thread.join();
    }
    // What they handed over to each other when some had stopped already: recordings tell how heaps
    // end.
    manager.reap();
    manager.work_loop();
    if let Some(complaint) = manager.scratch().and_then(|scratch| scratch.complaint()) {
        eprintln!("pagekeeper: {complaint}");
    }
    manager.release_files();
    drop(manager.engine.take_log());
    let recorded = writing.map(recorder::Writing::finish);
    let mut stats = manager.engine.stats();
    stats.policy = options.policy.to_string();
    stats.memory_bytes = options.memory_bytes;
    stats.elapsed_ns = elapsed_ns;
    stats.standby = manager.standby.get().map(|standby| match standby.ended() {
        Some(ended) => StandbyReport {
            ns: u64::try_from(ended.after.as_nanos()).unwrap_or(u64::MAX),
            end: Some(ended.reason.clone()),
        },
        None => StandbyReport { ns: elapsed_ns, end: None },
    });
    stats.compressed = manager.scratch().and_then(|scratch| scratch.compressed());
    stats.total.written_bytes += stats.compressed.map_or(0, |compressed| compressed.written_bytes);
    (stats.notes, stats.passed_through) = manager.remarks();
    Ok(Outcome { status, stats, unwritten, recorded })
}

fn header(options: &Options, config: Config) -> pagekeeper_trace::Header {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
    let mut header = pagekeeper_trace::Header::new(PAGE_BYTES as u32);
    header.creator = concat!("pagekeeper ", env!("CARGO_PKG_VERSION")).to_owned();
    header.created_unix_ns = now;
    let mut command = options.program.to_string_lossy().into_owned();
    for argument in &options.arguments {
        command.push(' ');
        command.push_str(&argument.to_string_lossy());
    }
    if let Ok(processors) = std::thread::available_parallelism() {
        header = header.with("processors", processors.to_string());
    }
    // What was asked for is not always to be had.
    if let Some(share) = config.sampling.share() {
        header = header.with("sampling_percent", share.percent().to_string());
    }
    header
        .with("policy", options.policy.to_string())
        .with("memory_bytes", options.memory_bytes.to_string())
        .with("frames", config.frames.to_string())
        .with("window_pages", options.window_pages.unwrap_or(0).to_string())
        .with("seed", options.seed.to_string())
        .with("command", command)
}

/// What the manager needs once it manages something.
fn set_crew(manager: &Arc<Manager>, holder: &Arc<Holder>, stop: &Arc<AtomicBool>) {
    let (weak, holder, stop) = (Arc::downgrade(manager), holder.clone(), stop.clone());
    manager.crew.set(Box::new(move |threads| {
        let manager = weak.upgrade().ok_or(Errno::SRCH)?;
        let (m, s) = (manager.clone(), stop.clone());
        threads.push(spawn("pk-events", move || m.event_loop(&|| s.load(Ordering::SeqCst)))?);
        let worker = move || {
            let m = weak.upgrade()?;
            spawn("pk-worker", move || m.work_loop()).ok()
        };
        manager.workers.hire(WORKERS, Box::new(worker))?;
        let (m, s) = (manager.clone(), stop.clone());
        threads.push(spawn("pk-writer", move || write_behind(&m, &s))?);
        if manager.room().is_some() {
            let (m, s) = (manager.clone(), stop.clone());
            threads
                .push(spawn("pk-headroom", move || m.keep_headroom(|| s.load(Ordering::SeqCst)))?);
        }
        let m = manager.clone();
        threads.push(spawn("pk-teller", move || tell(&m, &holder, &stop))?);
        // It ends with the process, since nothing wakes a read.
        drop(spawn("pk-watch", move || manager.watch_loop())?);
        Ok(())
    }));
}

/// Ends the standby when memory gets short.
fn watch_standby(
    manager: &Arc<Manager>,
    holder: &Arc<Holder>,
    stop: &Arc<AtomicBool>,
    options: &Options,
) -> impl FnOnce() + Send + 'static {
    let (m, s, h) = (manager.clone(), stop.clone(), holder.clone());
    let (policy, seed) = (options.policy.clone(), options.seed);
    move || {
        // What the kernel's counts show has not to be found out again.
        let looped = || {
            if let Ok(policy) = policy.with("start", "mru") {
                let _ = m.engine.replace_policy(&policy, seed);
            }
        };
        m.watch_standby(looped, |inode| h.interject(inode), || s.load(Ordering::SeqCst));
    }
}

/// Writes dirty pages back from time to time, and lets go of what nobody uses.
fn write_behind(manager: &Manager, stop: &AtomicBool) {
    let mut last = Instant::now();
    while !stop.load(Ordering::SeqCst) {
        std::thread::park_timeout(Duration::from_millis(100));
        manager.let_go();
        manager.reserve.refill();
        manager.look_at_unwatched();
        manager.engine.look_at_overdue();
        if last.elapsed() >= WRITE_BACK_EVERY {
            let _ = manager.engine.write_behind();
            last = Instant::now();
        }
    }
}

/// Tells people what goes wrong. It uses no file of theirs, so that it can name what is stuck,
/// [`write_behind`] among them.
fn tell(manager: &Manager, holder: &Holder, stop: &AtomicBool) {
    let mut told = None::<Instant>;
    let (mut alone, mut is_crowded) = (false, false);
    while !stop.load(Ordering::SeqCst) {
        std::thread::park_timeout(Duration::from_millis(100));
        manager.look_after_events();
        if !alone && holder.lost() {
            alone = true;
            eprintln!(
                "pagekeeper: the holder process was ended; if this one is too, what is not synced \
                 is lost"
            );
        }
        if let Some(complaint) = manager.scratch().and_then(|scratch| scratch.complaint()) {
            eprintln!("pagekeeper: {complaint}");
        }
        if let Some(complaint) = manager.waiting.complaint(Instant::now()) {
            eprintln!("pagekeeper: {complaint}");
        }
        let stuck = manager.engine.stuck(STUCK_AFTER);
        if !stuck.is_empty() && told.is_none_or(|at| at.elapsed() >= STUCK_AFTER) {
            told = Some(Instant::now());
            for stuck in stuck {
                eprintln!("pagekeeper: {stuck}");
            }
        }
        if !is_crowded && let Some(crowded) = manager.engine.crowded() {
            is_crowded = true;
            eprintln!("pagekeeper: {crowded}");
        }
        if let Some(revoked) = manager.engine.look_inside() {
            eprintln!("pagekeeper: {revoked}");
        }
    }
}

/// A second way in, for programs that the first one's name means nothing to.
struct SideDoor {
    listener: Listener,
    /// Open as long as somebody may come.
    place: OwnedFd,
}

impl SideDoor {
    /// None where there is no place for one.
    fn open(name: &str) -> Option<SideDoor> {
        crate::registry::DIRECTORIES.into_iter().find_map(|directory| {
            let bound = Listener::bind_nameless(directory.as_ref(), name, true);
            bound.ok().map(|(listener, place)| SideDoor { listener, place })
        })
    }

    /// Where it is, behind the board's place in [`wire::ENV_SOCKET`].
    fn place(&self) -> String {
        format!(".{}", self.place.as_raw_fd())
    }
}

/// What the thread that waits for the program does meanwhile: what is not worth a thread of its own.
struct Wait<'a> {
    manager: &'a Arc<Manager>,
    listeners: Vec<Listener>,
    sources: Vec<Box<dyn Source>>,
}

impl Wait<'_> {
    /// Waits for the program, and then for whatever it left behind that uses managed files. Calls
    /// `goes_on` if that takes longer than [`standby::EVERY`].
    fn for_program<F: FnOnce()>(&mut self, child: &mut Child, goes_on: F) -> ExitStatus {
        let start = Instant::now();
        let mut goes_on = Some(goes_on);
        let tell = |goes_on: &mut Option<F>| {
            if start.elapsed() >= standby::EVERY
                && let Some(goes_on) = goes_on.take()
            {
                goes_on();
            }
        };
        let program = process::pidfd_open(child.id()).ok();
        let status = loop {
            let pause = match (&goes_on, &program) {
                (Some(_), _) => Some(standby::EVERY.saturating_sub(start.elapsed())),
                // Nobody tells of its end.
                (None, None) => Some(standby::EVERY),
                (None, Some(_)) => None,
            };
            self.serve(program.as_ref().map(AsFd::as_fd), pause);
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => {}
                Err(_) => break ExitStatus::from_raw(1 << 8),
            }
            tell(&mut goes_on);
        };
        let ended = Instant::now();
        let mut reaped = ended;
        let mut told = false;
        // Of a program that left nothing behind, the last words are read in a moment.
        let mut pause = Duration::from_micros(50);
        loop {
            if !self.manager.in_use() && self.manager.close_unless_used() {
                break;
            }
            self.serve(None, Some(pause));
            pause = (2 * pause).min(Duration::from_millis(2));
            tell(&mut goes_on);
            // As the event thread does, if there is one.
            if reaped.elapsed() >= REAP_EVERY && !self.manager.crew.is_here() {
                reaped = Instant::now();
                self.manager.reap();
            }
            if !told && ended.elapsed() > Duration::from_secs(3) {
                told = true;
                let users = self.manager.users().into_iter().filter_map(named).collect::<Vec<_>>();
                eprintln!(
                    "pagekeeper: the program ended; waiting for processes it left behind that use \
                     managed files, which signals are passed on to{}{}",
                    if users.is_empty() { "" } else { ": " },
                    users.join(", ")
                );
            }
        }
        status
    }

    /// Looks after everything until `end` or a source is readable, or `pause` is over.
    fn serve(&mut self, end: Option<BorrowedFd<'_>>, pause: Option<Duration>) {
        let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let sources = self.sources.iter().map(|source| source.descriptor());
        let listeners = self.listeners.iter().map(AsFd::as_fd);
        let mut fds: Vec<PollFd<'_>> = listeners
            .chain(end)
            .chain(sources)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        if poll(&mut fds, pause.as_ref()).is_err() {
            return;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        let manager = self.manager;
        self.listeners.retain(|listener| ready.next() != Some(true) || manager.accept(listener));
        // The end is the caller's to look at.
        let _ = end.and_then(|_| ready.next());
        self.sources.retain_mut(|source| ready.next() != Some(true) || source.serve());
    }
}

/// A process as people look for it; none of one that is gone.
fn named(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(format!("{} ({pid})", name.trim()))
}

fn preload_list(library: &std::path::Path) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD")
        && !others.is_empty()
    {
        list.push(":");
        list.push(others);
    }
    list
}

fn random_bytes() -> std::io::Result<[u8; 16]> {
    use std::io::Read;
    let mut bytes = [0u8; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
