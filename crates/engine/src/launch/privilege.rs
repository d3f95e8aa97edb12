//! What a run does without, because its user may not do everything, and how it says so.

use pagekeeper_frames::{Config, Sampling};
use pagekeeper_sys::process;

/// What this user may do to programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Privilege {
    /// Only faults of user code are served, and the kernel reports no forks.
    pub(crate) user_mode_only: bool,
    /// Pages of a program can be unmapped, so that their next touch is seen.
    pub(crate) unmaps: bool,
}

impl Privilege {
    /// Finds out, on a process of this user; `may_follow` is
    /// [`pagekeeper_sys::userfault::may_follow_programs`]. The process is a child that was forked.
    ///
    /// # Errors
    /// Memory of programs is out of reach.
    pub(crate) fn found(may_follow: bool, other_pid: u32) -> Result<Privilege, String> {
        if !process::reach::reaches(other_pid) {
            return Err("the memory of programs can be neither read nor written, so that their reads \
                 of managed files would fail (process-vm in pagekeeper doctor says how to permit it)"
                .to_owned());
        }
        Ok(Privilege {
            user_mode_only: !may_follow,
            unmaps: process::pidfd_open(other_pid).is_ok_and(process::may_zap),
        })
    }

    /// The settings of a run, as far as they can be had.
    ///
    /// # Errors
    /// A recording cannot be made.
    pub(crate) fn limit(self, config: Config) -> Result<Config, String> {
        match config.sampling {
            _ if self.unmaps => Ok(config),
            Sampling::Window { .. } => Err("a recording has to unmap pages of the program, to see \
                 that they are touched again, and this user may not (remote-zap in pagekeeper doctor \
                 says how to permit it)"
                .to_owned()),
            _ => Ok(Config { sampling: Sampling::Off, ..config }),
        }
    }

    /// What the user is to know; `heap` says that heap memory was to be managed.
    pub(crate) fn notes(self, heap: bool) -> Vec<&'static str> {
        let notes = [
            (
                self.user_mode_only,
                "without the privilege to serve system calls (userfaultfd and event-fork in \
                 pagekeeper doctor), those on mapped files are made on a copy, and fail with EFAULT \
                 where they are not made by libc's functions",
            ),
            (
                self.user_mode_only && heap,
                "heap memory is left to the kernel: without that privilege it cannot be managed",
            ),
            (
                !self.unmaps,
                "references are not sampled, policies see faults only (remote-zap in pagekeeper \
                 doctor)",
            ),
        ];
        notes.into_iter().filter(|(applies, _)| *applies).map(|(_, note)| note).collect()
    }
}
