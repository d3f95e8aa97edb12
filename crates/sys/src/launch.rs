//! Starting a program: what is set between fork and exec, where only system calls are safe.
#![allow(unsafe_code)]

use crate::given::Timers;
use crate::signal::{self, SignalSet};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What to set in a child before it becomes the program.
#[derive(Debug, Default)]
pub struct ChildSetup {
    /// A signal for the child when the thread that starts it ends (PR_SET_PDEATHSIG).
    pub parent_death_signal: Option<i32>,
    /// Block these signals alone: a launcher that uses a signalfd blocks others, and a signal mask
    /// is inherited through exec.
    pub signal_mask: Option<SignalSet>,
    /// Give these signals their default action again (an ignored signal stays so through exec).
    pub default_signals: Vec<i32>,
    /// Ignore these: `Command` gives SIGPIPE its default action, whatever it was.
    pub ignored_signals: Vec<i32>,
    /// Timers that run for the child.
    pub timers: Option<Timers>,
    /// Descriptors to close that `Command` leaves open.
    pub closed_descriptors: Vec<i32>,
    /// Start a session of its own.
    pub new_session: bool,
    /// `cgroup.procs` files, open for writing, of cgroups to enter.
    pub cgroup_procs: Vec<OwnedFd>,
    /// Soft limit of open files to restore: a launcher raises its own, and programs that use
    /// `select(2)` break with more than 1024.
    pub open_files_soft: Option<u64>,
    /// Limits that the launcher has lifted for itself.
    pub limits: Vec<(Resource, Rlimit)>,
    /// How soon it is ended for lack of memory (`oom_score_adj` in proc(5)), as far as that may be set.
    pub oom_score_adj: Option<i32>,
}

impl ChildSetup {
    /// Adds the set-up to a command; an error in it is the error of `spawn`.
    pub fn apply(self, command: &mut Command) {
        let oom_score_adj = self.oom_score_adj.map(|adj| adj.to_string());
        // SAFETY: between fork and exec only async-signal-safe calls are allowed: `run` makes
        // plain system calls on memory that was allocated before the fork, and allocates nothing
        // (an `io::Error` made of a number does not).
        unsafe { command.pre_exec(move || self.run(oom_score_adj.as_deref())) };
    }

    fn run(&self, oom_score_adj: Option<&str>) -> io::Result<()> {
        if let Some(adj) = oom_score_adj {
            // SAFETY: a static path is read, and as many bytes as there are. What fails changes nothing.
            unsafe {
                let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY);
                if file >= 0 {
                    libc::write(file, adj.as_ptr().cast(), adj.len());
                    libc::close(file);
                }
            }
        }
        for procs in &self.cgroup_procs {
            // "0" stands for the writing process.
            // SAFETY: one byte of static memory is read.
            check(unsafe { libc::write(procs.as_raw_fd(), c"0".as_ptr().cast(), 1) } as i32)?;
        }
        if self.new_session {
            // SAFETY: no memory is passed.
            check(unsafe { libc::setsid() })?;
        }
        if let Some(soft) = self.open_files_soft {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: both calls get a live `struct rlimit`.
            unsafe {
                check(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit))?;
                limit.rlim_cur = soft.min(limit.rlim_max);
                check(libc::setrlimit(libc::RLIMIT_NOFILE, &limit))?;
            }
        }
        for &(resource, limit) in &self.limits {
            setrlimit(resource, limit)?;
        }
        for &signal in &self.default_signals {
            signal::ignore(signal, false)?;
        }
        for &signal in &self.ignored_signals {
            signal::ignore(signal, true)?;
        }
        for &fd in &self.closed_descriptors {
            // SAFETY: the program that is to be executed has not begun to use any.
            unsafe { libc::close(fd) };
        }
        if let Some(timers) = &self.timers {
            timers.start();
        }
        if let Some(mask) = &self.signal_mask {
            signal::set_mask(mask)?;
        }
        if let Some(signal) = self.parent_death_signal {
            // SAFETY: the option takes a number.
            check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong) })?;
        }
        Ok(())
    }
}

fn check(ret: i32) -> io::Result<()> {
    if ret == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Raises this process's limit of open files: the soft one to the hard one and, where this process
/// may (CAP_SYS_RESOURCE), both to the most that the kernel allows anybody (`fs.nr_open`). Returns
/// `(soft before, soft now)`, the former for [`ChildSetup::open_files_soft`].
pub fn raise_open_files_limit() -> (u64, u64) {
    let before = getrlimit(Resource::Nofile);
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .max(before.maximum);
    let all = Rlimit { current: most, maximum: most };
    let own = Rlimit { current: before.maximum, maximum: before.maximum };
    // The first needs a privilege, the second never; if neither works, nothing changed.
    let now = [all, own].into_iter().find(|&wanted| setrlimit(Resource::Nofile, wanted).is_ok());
    let now = now.unwrap_or(before);
    (before.current.unwrap_or(u64::MAX), now.current.unwrap_or(u64::MAX))
}

/// The stack that a process usually has.
const STACK_BYTES: u64 = 8 << 20;

/// Limits of this process that are meant for the program that it starts, and not for itself: how long
/// files may be (memory in a memfd is a file), its processor time, and a small stack. Set again when this is
/// dropped.
#[derive(Debug)]
pub struct LiftedLimits {
    before: Vec<(Resource, Rlimit)>,
}

impl LiftedLimits {
    /// Lifts them as far as this process may.
    pub fn new() -> LiftedLimits {
        let mut before: Vec<_> =
            [Resource::Fsize, Resource::Cpu].map(|which| (which, getrlimit(which))).into();
        for (which, limit) in &before {
            let none = Rlimit { current: None, maximum: None };
            let own = Rlimit { current: limit.maximum, maximum: limit.maximum };
            // The first may need a privilege.
            let _ = setrlimit(*which, none).or_else(|_| setrlimit(*which, own));
        }
        let stack = getrlimit(Resource::Stack);
        if stack.current.is_some_and(|bytes| bytes < STACK_BYTES) {
            before.push((Resource::Stack, stack));
            let own = stack.maximum.map_or(STACK_BYTES, |most| most.min(STACK_BYTES));
            let _ = setrlimit(Resource::Stack, Rlimit { current: Some(own), ..stack });
        }
        LiftedLimits { before }
    }

    /// For the child that they are meant for.
    pub fn setup(&self) -> ChildSetup {
        ChildSetup { limits: self.before.clone(), ..ChildSetup::default() }
    }

    /// How many bytes a file may still be long, if that is bounded.
    pub fn file_bytes_max(&self) -> Option<u64> {
        getrlimit(Resource::Fsize).current
    }

    /// How large this process's stack may become, if that is bounded.
    pub fn stack_bytes_max(&self) -> Option<u64> {
        getrlimit(Resource::Stack).current
    }

    /// How much processor time this process may still take, in seconds, if that is bounded.
    pub fn processor_seconds_max(&self) -> Option<u64> {
        getrlimit(Resource::Cpu).current
    }
}

impl Default for LiftedLimits {
    fn default() -> LiftedLimits {
        LiftedLimits::new()
    }
}

impl Drop for LiftedLimits {
    fn drop(&mut self) {
        for (which, limit) in self.before.drain(..) {
            let _ = setrlimit(which, limit);
        }
    }
}

/// How large this process's address space may become, if that is bounded.
pub fn address_space_bytes_max() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// How many files this process may have open at most, as it stands.
pub fn open_files_max() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal;

    #[test]
    fn child_starts_with_what_was_asked_for() {
        let blocked = signal::SignalSet::of(&[libc::SIGUSR1]);
        std::thread::spawn(move || {
            signal::block(&blocked).unwrap();
            // A shell may begin with a mask of its own.
            let mut command = Command::new("grep");
            let wanted = "Max open files|SigBlk|SigIgn|Max file size";
            command.args(["-hE", wanted, "/proc/self/limits", "/proc/self/status"]);
            ChildSetup {
                parent_death_signal: Some(libc::SIGKILL),
                signal_mask: Some(signal::SignalSet::of(&[libc::SIGUSR2])),
                ignored_signals: vec![libc::SIGPIPE],
                limits: vec![(
                    Resource::Fsize,
                    Rlimit { current: Some(1 << 20), maximum: getrlimit(Resource::Fsize).maximum },
                )],
                new_session: true,
                open_files_soft: Some(77),
                ..ChildSetup::default()
            }
            .apply(&mut command);
            let out = String::from_utf8(command.output().unwrap().stdout).unwrap();
            let lines: Vec<&str> = out.lines().collect();
            assert!(lines[0].contains(" 1048576 "), "{out}");
            assert!(lines[1].contains(" 77 "), "{out}");
            assert!(lines[2].ends_with("0000000000000800"), "{out}");
            // Whoever started this test may ignore others.
            let ignored = lines[3].rsplit('\t').next().expect("a number");
            let ignored = u64::from_str_radix(ignored, 16).expect("hexadecimal");
            assert_ne!(ignored & 1 << (libc::SIGPIPE - 1), 0, "{out}");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_failing_step_fails_the_spawn() {
        let mut command = Command::new("/bin/true");
        let setup = ChildSetup { default_signals: vec![-1], ..ChildSetup::default() };
        setup.apply(&mut command);
        assert_eq!(command.spawn().unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn open_files_limit_is_raised_to_the_hard_one() {
        let (before, now) = raise_open_files_limit();
        assert!(now >= before);
    }
}
