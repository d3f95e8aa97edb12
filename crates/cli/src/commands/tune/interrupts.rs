//! What ends `tune` ends what it started, and leaves nothing behind.
//!
//! Signals that ask for an end are blocked, and read by a thread. While the program runs they are for it:
//! the terminal's have reached it, others are passed on, and the run is the last. Between runs the thread
//! removes the scratch directory and the next run's cgroup, and lets this process die of the signal.

use crate::signals;
use pagekeeper_sys::cgroup::{CgroupError, MemoryCgroup};
use pagekeeper_sys::launch::ChildSetup;
use pagekeeper_sys::process;
use pagekeeper_sys::signal::{self, SignalFd, SignalSet};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard};

/// What asks for an end.
const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP];

/// Signals, taken from this process for as long as it lives.
pub(super) struct Interrupts {
    state: Arc<Mutex<State>>,
    /// The mask that the caller of this process gave it.
    before: SignalSet,
}

#[derive(Default)]
struct State {
    run: Run,
    /// The first signal that was for the whole of `tune`.
    arrived: Option<i32>,
    /// What is removed before this process ends by a signal.
    directory: Option<PathBuf>,
    /// The same, if it is still there.
    cgroup: Option<PathBuf>,
}

#[derive(Default)]
enum Run {
    /// There is none.
    #[default]
    None,
    /// It is being started; what arrives is passed on then.
    Starting,
    /// A process of its own.
    Running(OwnedFd),
}

impl Interrupts {
    /// Takes the signals, but for those that are ignored (`nohup`). Call before there are threads.
    pub(super) fn take() -> Interrupts {
        let heeded: Vec<i32> =
            ENDING.into_iter().filter(|signal| !signal::is_ignored(*signal)).collect();
        let state = Arc::<Mutex<State>>::default();
        let set = SignalSet::of(&heeded);
        let before = signal::block(&set).unwrap_or_else(|_| SignalSet::of(&[]));
        let watched = state.clone();
        let watching = SignalFd::new(&set).map_err(std::io::Error::from).and_then(|arrivals| {
            std::thread::Builder::new()
                .name("pk-signals".into())
                .spawn(move || watch(&arrivals, &watched))
        });
        if watching.is_err() {
            // They end this process alone, as they would without us.
            let _ = signal::set_mask(&before);
        }
        Interrupts { state, before }
    }

    /// What is to be removed should a signal end this process.
    pub(super) fn remove_at_end(&self, directory: PathBuf) {
        self.state().directory = Some(directory);
    }

    /// Makes a cgroup, which is removed too should a signal end this process before a run is in it. No
    /// signal is heeded while it is made.
    pub(super) fn make_cgroup(
        &self,
        make: impl FnOnce() -> Result<MemoryCgroup, CgroupError>,
    ) -> Result<MemoryCgroup, CgroupError> {
        let mut state = self.state();
        let made = make()?;
        state.cgroup = Some(made.path().to_owned());
        Ok(made)
    }

    /// A run begins.
    pub(super) fn starting(&self) {
        self.state().run = Run::Starting;
    }

    /// For its command: it has the signals that this process was given.
    pub(super) fn setup(&self) -> ChildSetup {
        ChildSetup { signal_mask: Some(self.before), ..ChildSetup::default() }
    }

    /// It was started.
    pub(super) fn started(&self, child: &Child) {
        let mut state = self.state();
        let Ok(process) = process::pidfd_open(child.id()) else { return };
        if let Some(signal) = state.arrived {
            let _ = process::send_signal(&process, signal);
        }
        state.run = Run::Running(process);
    }

    /// It has ended, or could not be started. Gives the signal that was for all of it.
    pub(super) fn ended(&self) -> Option<i32> {
        let mut state = self.state();
        state.run = Run::None;
        state.arrived
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("lock")
    }
}

fn watch(arrivals: &SignalFd, state: &Mutex<State>) {
    loop {
        let mut fds = [PollFd::from_borrowed_fd(arrivals.as_fd(), PollFlags::IN)];
        let _ = poll(&mut fds, None);
        let Ok(Some(arrived)) = arrivals.read() else { continue };
        let mut state = state.lock().expect("lock");
        match &state.run {
            // It has heard of it, and what it makes of that is its own: an interactive program goes on.
            Run::Running(_) | Run::Starting
                if arrived.is_kernels && arrived.signal != libc::SIGHUP => {}
            Run::Running(process) => {
                let _ = process::send_signal(process, arrived.signal);
                state.arrived.get_or_insert(arrived.signal);
            }
            Run::Starting => {
                state.arrived.get_or_insert(arrived.signal);
            }
            Run::None => {
                if let Some(cgroup) = &state.cgroup {
                    let _ = std::fs::remove_dir(cgroup);
                }
                if let Some(directory) = &state.directory {
                    let _ = std::fs::remove_dir_all(directory);
                }
                signals::die_of(arrived.signal);
            }
        }
    }
}
