//! Files that nobody has open or maps stay managed, with what is in memory of them: programs open the
//! same files again and again. But each costs descriptors, a memfd and memory for its pages' state,
//! so that only so many stay. Beyond that, those used longest ago are written back and let go of;
//! who opens one again has it managed anew.

use crate::manager::Manager;
use crate::port::FileNo;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a managed file costs beside its pages, in bytes: measured, with a few pages in memory.
const FILE_BYTES: u64 = 7 << 10;
/// The part of the memory that files nobody uses may cost.
const SHARE: u64 = 16;
/// They are never fewer.
const KEPT_LEAST: usize = 512;
/// Descriptors of a file, in the manager: of all that it may have, idle files have half at most.
const FILE_DESCRIPTORS: u64 = 4;
/// Files more than there may be, before the next look at all of them.
const SLACK: usize = 64;

/// When to look for idle files next.
#[derive(Debug)]
pub(crate) struct Idle {
    kept_max: usize,
    /// Managed files beyond which it is time to look.
    files_max: Mutex<usize>,
    looking: AtomicBool,
}

impl Idle {
    /// For a run with so much memory, that may have so many descriptors.
    pub(crate) fn new(memory_bytes: u64, descriptors: u64) -> Idle {
        let affordable = memory_bytes / SHARE / FILE_BYTES;
        let kept_max = affordable.min(descriptors / FILE_DESCRIPTORS / 2) as usize;
        let kept_max = kept_max.max(KEPT_LEAST);
        Idle { kept_max, files_max: Mutex::new(kept_max + SLACK), looking: AtomicBool::new(false) }
    }
}

/// A managed file, for the order in which idle ones go.
pub(crate) struct Candidate {
    pub(crate) no: FileNo,
    /// When it was last heard of.
    pub(crate) used: u64,
}

impl Manager {
    /// Whether there are so many managed files that it is time to look for idle ones. True once,
    /// until [`let_idle_go`](Self::let_idle_go) was called.
    pub(crate) fn has_many_files(&self) -> bool {
        // Recordings show what programs do, not what is kept of it.
        self.files_managed() > *self.idle.files_max.lock().expect("lock")
            && !self.engine.sees_all()
            && !self.idle.looking.swap(true, Ordering::SeqCst)
    }

    /// Lets go of files that are not used, the one used longest ago first, until few enough are
    /// left.
    pub(crate) fn let_idle_go(&self) {
        let mut files = self.candidates();
        files.sort_unstable_by_key(|file| file.used);
        let mut unknown = files.len();
        let mut in_use = 0;
        for file in files {
            if unknown <= self.idle.kept_max {
                break;
            }
            unknown -= 1;
            if !self.let_idle_file_go(file.no) {
                in_use += 1;
            }
        }
        self.free_slots();
        // Files in use are looked at in vain: seldom, the more there are.
        let next = self.idle.kept_max + SLACK + in_use + in_use / 4;
        *self.idle.files_max.lock().expect("lock") = next;
        self.idle.looking.store(false, Ordering::SeqCst);
    }
}
