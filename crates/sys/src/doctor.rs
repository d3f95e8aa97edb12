//! What this kernel, container and user can do, found out by doing it.
//!
//! [`probe`] exercises every [`Capability`] on scratch memory, a scratch file and a child process;
//! version numbers are not consulted. A capability that the [`mask`] hides reports as missing.

use core::fmt;
use std::path::Path;
use std::sync::OnceLock;

use crate::mask::{self, Capability};

mod probes;

/// Whether something can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It was done and had the right effect.
    Works,
    /// The kernel or the file system does not have it, or it is masked.
    Missing,
    /// It is there, and this user or container may not use it.
    Denied,
    /// It could not be tried here.
    Unknown,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Status::Works => "works",
            Status::Missing => "missing",
            Status::Denied => "denied",
            Status::Unknown => "unknown",
        })
    }
}

/// What was found out about one capability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which.
    pub capability: Capability,
    /// Whether it can be used.
    pub status: Status,
    /// How it works, or why not.
    pub reason: String,
    /// The exact command that grants it, where there is one.
    pub remedy: Option<String>,
}

/// A way to use the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Recorded traces are simulated.
    Simulate,
    /// Unmodified programs run with their files managed by the launcher (`run`).
    Run,
    /// References under a mapping are sampled during such a run, or recorded (`record`, `tune`).
    Sampling,
    /// The kernel is measured under the same memory limit, for comparison.
    Compare,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 4] = [Mode::Simulate, Mode::Run, Mode::Sampling, Mode::Compare];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Simulate => "simulate",
            Mode::Run => "run",
            Mode::Sampling => "sampling",
            Mode::Compare => "compare",
        }
    }

    /// What it cannot do without.
    fn needs(self) -> Vec<Capability> {
        use Capability::{
            AbstractSockets, MemoryCgroup, MinorShmem, OwnProc, PageSize, ProcessVm, RemoteZap,
            SmallShmem, UserfaultUserMode, WpShmem,
        };
        let mut needs = vec![
            PageSize,
            UserfaultUserMode,
            MinorShmem,
            WpShmem,
            OwnProc,
            ProcessVm,
            SmallShmem,
            AbstractSockets,
        ];
        match self {
            Mode::Simulate => needs.clear(),
            Mode::Run => {}
            Mode::Sampling => needs.push(RemoteZap),
            Mode::Compare => needs = vec![MemoryCgroup],
        }
        needs
    }

    /// What it does without, and what that costs.
    fn likes(self) -> &'static [(Capability, &'static str)] {
        /// The kernel's own touches cannot be served, or not in children.
        const KERNEL_TOUCHES: &str = "system calls on mapped files are made on a copy, and fail \
                                      with EFAULT where they are not made by libc's functions; \
                                      private writable mappings and heap memory are left to the \
                                      kernel";
        match self {
            Mode::Run => &[
                (Capability::Userfault, KERNEL_TOUCHES),
                (Capability::EventFork, KERNEL_TOUCHES),
                (
                    Capability::WpContinue,
                    "each page of a writable mapping is compared before and after it is mapped, \
                     which takes longer",
                ),
                (
                    Capability::Poison,
                    "a page that cannot be read is told by a signal to the thread, and not by the \
                     page",
                ),
                (
                    Capability::RemoteZap,
                    "references are not sampled; policies see faults only, and record and tune do \
                     not work",
                ),
                (
                    Capability::DirectIo,
                    "fills and write-backs pass through the kernel's page cache, which is dropped \
                     after each",
                ),
                (
                    Capability::DontCache,
                    "where direct I/O is impossible, what was read is dropped from the page cache \
                     after each transfer, and what was written stays there until the kernel needs \
                     the memory",
                ),
                (Capability::Leases, "a file that was deleted keeps its space until the run ends"),
                (
                    Capability::Fanotify,
                    "what programs outside write while the same file is written back, or written to \
                     by a program of the run, may be seen late, also under a lock",
                ),
                (
                    Capability::MemfdSeals,
                    "a program that attacks the manager can shrink shared state and end the run",
                ),
                (Capability::OpenFiles, "fewer files can be managed at once"),
                (
                    Capability::SoonAwake,
                    "each wait for a page takes some 50 µs more, since the hypervisor is asked to \
                     wake a processor",
                ),
                (
                    Capability::NoSwap,
                    "the kernel may swap managed pages out, behind the policy's back",
                ),
            ],
            Mode::Simulate | Mode::Sampling | Mode::Compare => &[],
        }
    }
}

/// Whether a way to use the product is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Which.
    pub mode: Mode,
    /// Whether it works at all.
    pub works: bool,
    /// If it does not: each capability that is missing, with the reason; if it does: what is done
    /// without.
    pub notes: Vec<String>,
}

/// The doctor's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The kernel's name and release.
    pub kernel: String,
    /// A finding for every capability, in the order of [`Capability::ALL`].
    pub findings: Vec<Finding>,
}

impl Report {
    /// The finding on one capability.
    pub fn finding(&self, capability: Capability) -> Option<&Finding> {
        self.findings.iter().find(|f| f.capability == capability)
    }

    /// Whether one capability can be used.
    pub fn works(&self, capability: Capability) -> bool {
        self.finding(capability).is_some_and(|f| f.status == Status::Works)
    }

    /// Whether a way to use the product is open.
    pub fn verdict(&self, mode: Mode) -> Verdict {
        let lacking = |c: &Capability| !self.works(*c);
        let missing: Vec<String> = mode
            .needs()
            .into_iter()
            .filter(lacking)
            .map(|c| match self.finding(c) {
                Some(Finding { reason, remedy: Some(remedy), .. }) => {
                    format!("{c}: {reason}; to grant it: {remedy}")
                }
                Some(Finding { reason, .. }) => format!("{c}: {reason}"),
                None => format!("{c}: not probed"),
            })
            .collect();
        if !missing.is_empty() {
            return Verdict { mode, works: false, notes: missing };
        }
        let mut notes: Vec<String> = Vec::new();
        let mut told: Vec<(Capability, &str)> = Vec::new();
        for &(capability, cost) in mode.likes().iter().filter(|(c, _)| lacking(c)) {
            // What costs the same is said once.
            let same = told.iter().find(|(_, before)| *before == cost);
            let cost_text =
                same.map_or(cost.to_owned(), |(before, _)| format!("as without {before}"));
            told.push((capability, cost));
            let status = self.finding(capability).map(|finding| finding.status);
            let perhaps = if status == Some(Status::Unknown) { "perhaps " } else { "" };
            notes.push(format!("{perhaps}without {capability}: {cost_text}"));
        }
        Verdict { mode, works: true, notes }
    }
}

/// Whether pages can be write-protected from the moment at which they are mapped
/// ([`Capability::WpContinue`]). Finds out once.
pub fn maps_protected() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        let capability = Capability::WpContinue;
        mask::allows(capability) && probes::run(capability, Path::new("")).status == Status::Works
    })
}

/// Finds out what can be done. `directory` is where files would be managed; a scratch file is made
/// and removed there.
///
/// Forks short-lived children; takes some ten milliseconds.
pub fn probe(directory: &Path) -> Report {
    let uname = rustix::system::uname();
    let kernel =
        format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy());
    let findings = Capability::ALL
        .iter()
        .map(|&capability| {
            if !mask::allows(capability) {
                let reason = format!("hidden by a mask ({} or --mask)", mask::ENV_MASK);
                return Finding { capability, status: Status::Missing, reason, remedy: None };
            }
            let probes::Outcome { status, reason, remedy } = probes::run(capability, directory);
            Finding { capability, status, reason, remedy }
        })
        .collect();
    Report { kernel, findings }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(lacking: &[Capability]) -> Report {
        let findings = Capability::ALL
            .iter()
            .map(|&capability| {
                let lacks = lacking.contains(&capability);
                Finding {
                    capability,
                    status: if lacks { Status::Denied } else { Status::Works },
                    reason: "because".into(),
                    remedy: lacks.then(|| "do this".into()),
                }
            })
            .collect();
        Report { kernel: String::new(), findings }
    }

    #[test]
    fn verdicts_follow_the_needs() {
        assert_eq!(report(&[]).verdict(Mode::Run).notes, Vec::<String>::new());
        for needed in Mode::Run.needs() {
            let report = report(&[needed]);
            let verdict = report.verdict(Mode::Run);
            assert!(!verdict.works);
            assert_eq!(verdict.notes, [format!("{needed}: because; to grant it: do this")]);
            assert!(!report.verdict(Mode::Sampling).works);
            assert!(report.verdict(Mode::Simulate).works);
        }
        for (liked, cost) in Mode::Run.likes() {
            let verdict = report(&[*liked]).verdict(Mode::Run);
            assert!(verdict.works);
            assert_eq!(verdict.notes, [format!("without {liked}: {cost}")]);
        }
        // What was said once is not said again.
        let notes =
            report(&[Capability::Userfault, Capability::EventFork]).verdict(Mode::Run).notes;
        assert_eq!(notes[1..], ["without event-fork: as without userfaultfd"]);
        let mut unknown = report(&[Capability::DirectIo]);
        for finding in &mut unknown.findings {
            if finding.status == Status::Denied {
                finding.status = Status::Unknown;
            }
        }
        let notes = unknown.verdict(Mode::Run).notes;
        assert!(notes[0].starts_with("perhaps without direct-io: fills"), "{notes:?}");
        assert!(!report(&[Capability::RemoteZap]).verdict(Mode::Sampling).works);
        assert!(!report(&[Capability::MemoryCgroup]).verdict(Mode::Compare).works);
    }
}
