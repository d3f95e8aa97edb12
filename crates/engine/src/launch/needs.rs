//! What there must be before anything is begun: on the machine, and within the limits of this process.

use crate::port::{huge_pages, other_pages};
use pagekeeper_sys::launch::LiftedLimits;
use pagekeeper_sys::process::{self, OTHER_PROC, OWN_PROC};
use pagekeeper_sys::userfault::{self, Features, UNFILTERED};

/// The least stack of the manager's main thread.
const STACK_BYTES_MIN: u64 = 512 << 10;
/// Fewer open files than that are not enough to begin with.
const OPEN_FILES_MIN: u64 = 32;

/// Without these, managed memory could show wrong bytes.
const NEEDED: Features = Features::MISSING_SHMEM
    .union(Features::MINOR_SHMEM)
    .union(Features::EVENT_REMAP)
    .union(Features::EVENT_REMOVE)
    .union(Features::EVENT_UNMAP);

/// Whether a program can be run; why not, and what to do about it.
pub(super) fn check(limits: &LiftedLimits) -> Result<(), String> {
    other_pages().or_else(huge_pages).map_or(Ok(()), Err)?;
    within(limits)?;
    followed()?;
    served()
}

/// Whether what programs have mapped can be looked up.
fn followed() -> Result<(), String> {
    // Where there is none, who needs it says so.
    if process::proc_is_own().unwrap_or(true) {
        return Ok(());
    }
    Err(format!(
        "{OTHER_PROC}, so that what a program has mapped cannot be looked up. Mount one for this \
         namespace: {OWN_PROC}"
    ))
}

/// Whether programs started from here can have faults served. Files that are read by calls are managed as well, and
/// could not be mapped any more.
fn served() -> Result<(), String> {
    let features = userfault::supported_features().map_err(|errno| {
        format!(
            "nothing can be managed without userfaultfd(2): {errno}. If a filter of system calls \
             denies it, {UNFILTERED}"
        )
    })?;
    if features.contains(NEEDED) {
        return Ok(());
    }
    Err("this kernel's userfaultfd lacks features: Linux 5.19 or newer is needed".to_owned())
}

/// Whether there can be a manager within the limits of this process, which are meant for the program.
fn within(limits: &LiftedLimits) -> Result<(), String> {
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
