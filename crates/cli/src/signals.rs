//! What the manager does with signals while a program runs: it must outlive the program, which the
//! signals are meant for.
//!
//! They are blocked and read from a descriptor; the program starts with the dispositions that the user's shell
//! gave, and with its timers. A terminal sends its signals to the whole process group, the program
//! included; signals sent to the manager alone are passed on. When the program has ended, they are for
//! the processes that it left behind, which the run waits for.

use crate::report;
use pagekeeper::launch::{Control, Source};
use pagekeeper_sys::given::{self, Timers};
use pagekeeper_sys::launch::ChildSetup;
use pagekeeper_sys::process;
use pagekeeper_sys::signal::{self, Arrived, SignalFd, SignalSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;

/// Signals that are the program's, whoever gets them: all that somebody sends to stop, reload or tell it
/// something, but for those of job control and those that the manager has uses of its own for.
fn taken() -> SignalSet {
    let job_control = [libc::SIGCONT, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
    let own = [libc::SIGCHLD, libc::SIGPIPE, libc::SIGURG, libc::SIGXFSZ];
    SignalSet::sent().without(&job_control).without(&own)
}

/// What a terminal sends, of those.
const TERMINALS: [i32; 4] = [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGWINCH];

/// What the caller of this process gave it, for the program.
static BEFORE: OnceLock<Before> = OnceLock::new();

struct Before {
    mask: SignalSet,
    timers: Timers,
}

/// Blocks the signals. Call before there are threads.
pub(crate) fn take_over() {
    // Where this is ignored, the kernel forgets how a child ended, and whose its number was.
    let _ = signal::ignore(libc::SIGCHLD, false);
    // Blocking these cannot fail; if it did, signals would end the manager as they end others.
    if let Ok(mask) = signal::block(&taken()) {
        BEFORE.get_or_init(|| Before { mask, timers: Timers::stop() });
    }
}

/// Before the program is started: it gets what this process was given.
pub(crate) fn prepare(command: &mut Command) {
    let before = BEFORE.get();
    let setup = ChildSetup {
        signal_mask: Some(before.map_or(SignalSet::of(&[]), |before| before.mask)),
        ignored_signals: given::ignored_signals().collect(),
        timers: before.map(|before| before.timers),
        closed_descriptors: given::closed_descriptors().collect(),
        ..ChildSetup::default()
    };
    setup.apply(command);
}

/// After the program was started: passes signals on.
pub(crate) fn forward_to(pid: u32, control: Control) -> Option<Box<dyn Source>> {
    // By descriptor: the number may be another process's once the program has ended.
    let (Ok(program), Ok(arrivals)) = (process::pidfd_open(pid), SignalFd::new(&taken())) else {
        report::say("out of descriptors: signals will not reach the program");
        return None;
    };
    Some(Box::new(Forwarding { program, control, arrivals }))
}

struct Forwarding {
    program: OwnedFd,
    control: Control,
    arrivals: SignalFd,
}

impl Forwarding {
    fn pass_on(&self, arrived: Arrived) {
        // Of what the kernel sent for the terminal, the foreground process group has heard: but for a hang-up,
        // of which only the session's leader hears until that is gone.
        let is_terminals = arrived.is_kernels && TERMINALS.contains(&arrived.signal);
        let is_heard = is_terminals && !(arrived.signal == libc::SIGHUP && leads_session());
        if !process::has_ended(&self.program) {
            if !is_heard {
                let _ = process::send_signal(&self.program, arrived.signal);
            }
            return;
        }
        for pid in self.control.users() {
            if let Ok(process) = process::pidfd_open(pid)
                && !(is_heard && shares_group(pid))
            {
                let _ = process::send_signal(process, arrived.signal);
            }
        }
    }
}

impl Source for Forwarding {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.arrivals.as_fd()
    }

    fn serve(&mut self) -> bool {
        loop {
            match self.arrivals.read() {
                Ok(Some(arrived)) => self.pass_on(arrived),
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }
}

/// Whether a process is of this one's process group, which a terminal sends its signals to.
fn shares_group(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::getpgid(Some(pid)) == Ok(rustix::process::getpgrp()))
}

fn leads_session() -> bool {
    rustix::process::getsid(None).is_ok_and(|session| session == rustix::process::getpid())
}

/// Ends this process by the signal that ended the program, so that whoever waits sees what it
/// would have seen; without a core file of ours. The code is for signals that do not kill.
pub(crate) fn die_of(number: i32) -> ExitCode {
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let _ = signal::ignore(number, false);
    let _ = signal::set_mask(&SignalSet::of(&[]));
    let _ = signal::send(std::process::id(), number);
    ExitCode::from(u8::try_from(128 + number).unwrap_or(u8::MAX))
}
