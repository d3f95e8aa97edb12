//! The course of a run: its manager, the program, and what came of it.

use super::holder::Holder;
use super::invitation::Invitation;
use super::privilege::Privilege;
use super::recorder::{self, Content};
use super::threads::{set_crew, watch_standby};
use super::wait::Wait;
use super::{Control, ControlHook, Options, Outcome, RunError, Source, machine, spared};
use crate::engine::Engine;
use crate::engine::stats::{StandbyReport, Stats};
use crate::engine::table::Table;
use crate::live::LivePort;
use crate::manager::Manager;
use crate::manager::crew::spawn;
use crate::port::PAGE_BYTES;
use crate::standby::Standby;
use pagekeeper_frames::{Budget, Config, Sampling};
use pagekeeper_sys::allocator;
use pagekeeper_sys::launch::{ChildSetup, LiftedLimits, raise_open_files_limit};
use pagekeeper_sys::userfault;
use pagekeeper_trace as trace;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

/// Runs a program with a holder that is there.
pub(super) fn run_with(
    options: &Options,
    holder: &Arc<Holder>,
    table: Table,
    limits: &LiftedLimits,
) -> Result<Outcome, RunError> {
    // The budget is for pages: what policies are done with is not to be kept beside them.
    allocator::give_back_large_blocks();
    let budget = Budget::new(options.memory_bytes, options.policy.info().bytes_per_page);
    let frames = budget.frames(0);
    let policy =
        options.policy.build(frames, options.seed).map_err(|e| RunError::Policy(e.to_string()))?;
    let config = match options.window_pages {
        Some(pages) => Config::recording(frames, pages),
        None => Config { sampling: Sampling::within(options.sampling), ..Config::live(frames) },
    };
    let may_follow = userfault::may_follow_programs();
    let mut invitation = Invitation::new(options, may_follow)?;
    // Memory of other kinds, and references, are to be seen from the start.
    let stands_by =
        options.standby && may_follow && options.heap.is_none() && options.record.is_none();
    let standby =
        stands_by.then(|| Standby::begin(options.memory_bytes, &invitation.board)).flatten();

    holder.watch_for(&invitation.tag()).map_err(machine("the holder process has ended"))?;
    let privilege = Privilege::found(may_follow, holder.pid()).map_err(RunError::Machine)?;
    let config = privilege.limit(config).map_err(RunError::Machine)?;
    let engine = Engine::new(LivePort::new(), policy, config, table, budget);
    engine.name_policy(&options.policy);
    let recording = prepare_recording(options, config)?;
    let manager = set_up(options, engine, privilege, &invitation)?;
    manager.set_witness(Box::new(holder.clone()));
    if let Some(standby) = standby {
        let _ = manager.standby.set(standby);
    }
    let listeners = invitation.listen(holder)?;

    let run = Run { options, holder, manager, stop: Arc::default() };
    let started = Instant::now();
    let mut child = run.start(limits, &invitation)?;
    // Nothing can be refused any more: what was recorded there before goes.
    let writing = recording.map(|recording| {
        let (recorder, writing) = recording.begin();
        run.manager.engine.set_log(Box::new(recorder));
        writing
    });
    // After the start: the program keeps the limit that it would have had.
    raise_open_files_limit();
    run.set_crew();
    let mut wait = Wait { manager: &run.manager, listeners, sources: run.sources(&child) };
    let (status, watch) = run.wait(&mut wait, &mut child);
    let elapsed_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let unwritten = run.end(watch);
    drop(run.manager.engine.take_log());
    let recorded = writing.map(recorder::Writing::finish);
    Ok(Outcome { status, stats: run.stats(elapsed_ns), unwritten, recorded })
}

/// A manager that nobody knows yet.
fn set_up(
    options: &Options,
    engine: Engine<LivePort>,
    privilege: Privilege,
    invitation: &Invitation,
) -> Result<Arc<Manager>, RunError> {
    let manager = Manager::new(engine, options.selection.clone(), invitation.secret)
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
        invitation.board.mark_confined();
    }
    let _ = manager.board.set(invitation.board.clone());
    let _ = manager.rope.set(invitation.rope()?);
    Ok(manager)
}

/// A recording that can be written, if one was asked for. What is there stays until it begins.
fn prepare_recording(
    options: &Options,
    config: Config,
) -> Result<Option<recorder::Prepared>, RunError> {
    let Some((path, inputs)) = &options.record else { return Ok(None) };
    let mapped_pages = options.window_pages.unwrap_or(config.frames);
    let content = Content { sampling: trace::Sampling::Window { mapped_pages }, inputs: *inputs };
    let prepared = recorder::prepare(path, header(options, config), content, &options.policy);
    let failed = |source| RunError::Record { path: path.clone(), source };
    prepared.map(Some).map_err(failed)
}

fn header(options: &Options, config: Config) -> trace::Header {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
    let mut header = trace::Header::new(PAGE_BYTES as u32);
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

/// A manager, and who works for it.
struct Run<'a> {
    options: &'a Options,
    holder: &'a Arc<Holder>,
    manager: Arc<Manager>,
    /// Its threads are to end.
    stop: Arc<AtomicBool>,
}

impl Run<'_> {
    fn start(&self, limits: &LiftedLimits, invitation: &Invitation) -> Result<Child, RunError> {
        let options = self.options;
        if let Some(seconds) = limits.processor_seconds_max() {
            // At once: it may end without another word.
            eprintln!(
                "pagekeeper: the limit of processor time (ulimit -t), {seconds} s, is the manager's as \
                 well, whose end is the program's"
            );
        }
        let mut command = Command::new(&options.path);
        command.arg0(&options.program).args(&options.arguments);
        invitation.hand_to(&mut command, &options.preload);
        let oom_score_adj = spared::manager(|| self.manager.room().is_some());
        ChildSetup { oom_score_adj, ..limits.setup() }.apply(&mut command);
        if let Some(prepare) = options.hooks.prepare {
            prepare(&mut command);
        }
        command.spawn().map_err(|e| RunError::Start {
            program: options.program.to_string_lossy().into_owned(),
            reason: e.to_string(),
        })
    }

    /// The threads that are needed once something is managed.
    fn set_crew(&self) {
        set_crew(&self.manager, self.holder, &self.stop);
        // Who cannot be served then is told why.
        let is_short =
            (!self.manager.stands_by()).then(|| self.manager.call_crew()).and_then(Result::err);
        if let Some(errno) = is_short {
            eprintln!(
                "pagekeeper: threads cannot be started ({errno}; ulimit -u, or pids.max of the cgroup): \
                 files stay the kernel's"
            );
        }
    }

    /// What the caller wants to be looked after while the program runs.
    fn sources(&self, child: &Child) -> Vec<Box<dyn Source>> {
        let Options { hooks, control, seed, .. } = self.options;
        let shared = Control { manager: Arc::downgrade(&self.manager), seed: *seed };
        let started = hooks.started.and_then(|started| started(child.id(), shared.clone()));
        let controlled = control.as_ref().and_then(|ControlHook(hook)| hook(shared));
        started.into_iter().chain(controlled).collect()
    }

    /// Waits for the program, and what it left behind; with the thread that watched a standby.
    fn wait(&self, wait: &mut Wait<'_>, child: &mut Child) -> (ExitStatus, Option<JoinHandle<()>>) {
        let Run { options, manager, .. } = self;
        let mut watch = None;
        let status = wait.for_program(child, || {
            if manager.standby.get().is_none() {
                return;
            }
            match spawn("pk-standby", watch_standby(manager, self.holder, &self.stop, options)) {
                Ok(watched) => watch = Some(watched),
                Err(errno) => manager
                    .note(format!("no thread can be started ({errno}): files stay the kernel's")),
            }
        });
        (status, watch)
    }

    /// Writes everything back and ends the threads. Gives the files that could not be written, with the
    /// reason.
    fn end(&self, watch: Option<JoinHandle<()>>) -> Vec<(String, String)> {
        let manager = &self.manager;
        let failed = manager.engine.flush_all().into_iter();
        let unwritten = failed.map(|(name, error)| (name, error.to_string())).collect();
        for (name, error) in manager.engine.errors_untold() {
            manager.note(format!(
                "{name}: write-backs failed meanwhile ({error}), and succeeded later"
            ));
        }
        // It goes while the threads do.
        manager.let_off_leash();
        self.holder.release();
        if let Some(scratch) = manager.scratch() {
            scratch.end();
        }
        self.stop.store(true, Ordering::SeqCst);
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
        unwritten
    }

    /// What was counted, of a program that ran for so long.
    fn stats(&self, elapsed_ns: u64) -> Stats {
        let manager = &self.manager;
        let mut stats = manager.engine.stats();
        stats.policy = self.options.policy.to_string();
        stats.memory_bytes = self.options.memory_bytes;
        stats.elapsed_ns = elapsed_ns;
        stats.standby = manager.standby.get().map(|standby| match standby.ended() {
            Some(ended) => StandbyReport {
                ns: u64::try_from(ended.after.as_nanos()).unwrap_or(u64::MAX),
                end: Some(ended.reason.clone()),
            },
            None => StandbyReport { ns: elapsed_ns, end: None },
        });
        stats.compressed = manager.scratch().and_then(|scratch| scratch.compressed());
        let compressed = stats.compressed.map_or(0, |compressed| compressed.written_bytes);
        stats.total.written_bytes += compressed;
        (stats.notes, stats.passed_through) = manager.remarks();
        stats
    }
}
