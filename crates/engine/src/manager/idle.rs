//! Files that nobody has open or maps stay managed, with what is in memory of them: programs open the
//! same files again and again. But each costs descriptors, a memfd and memory for its pages' state,
//! so that only so many stay, with so many pages. Beyond that, those used longest ago are written back
//! and let go of; who opens one again has it managed anew.

use crate::manager::Manager;
use crate::port::FileNo;
use pagekeeper_frames::IdleFiles;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// When to look for idle files next.
#[derive(Debug)]
pub(crate) struct Idle {
    files: Mutex<IdleFiles>,
    looking: AtomicBool,
}

impl Idle {
    /// For a run with so much memory, that may have so many descriptors.
    pub(crate) fn new(memory_bytes: u64, descriptors: u64) -> Idle {
        let files = Mutex::new(IdleFiles::new(memory_bytes, descriptors));
        Idle { files, looking: AtomicBool::new(false) }
    }

    fn files(&self) -> MutexGuard<'_, IdleFiles> {
        self.files.lock().expect("lock")
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
        let (pages, are_frames_free) = (self.engine.used_numbers(), self.engine.has_free_frames());
        self.idle.files().are_many(self.files_managed(), pages, are_frames_free)
            && !self.engine.sees_all()
            && !self.idle.looking.swap(true, Ordering::SeqCst)
    }

    /// Lets go of files that are not used, the one used longest ago first, until few enough are
    /// left, and where somebody waits for descriptors, some have gone.
    pub(crate) fn let_idle_go(&self) {
        let least = self.reserve.is_waited_for();
        if least > 0 {
            self.let_off_leash();
        }
        let mut files = self.candidates();
        files.sort_unstable_by_key(|file| file.used);
        let limits = *self.idle.files();
        // As it is now: letting files go frees frames.
        let are_frames_free = self.engine.has_free_frames();
        let mut unknown = files.len();
        let mut in_use = 0;
        let mut gone = 0;
        for file in files {
            let too_many = limits.too_many(unknown, are_frames_free);
            if !too_many && gone >= least && !limits.too_many_pages(self.engine.used_numbers()) {
                break;
            }
            unknown -= 1;
            let has_gone = self.let_idle_file_go(file.no);
            gone += usize::from(has_gone);
            in_use += usize::from(!has_gone && too_many);
        }
        self.free_slots();
        self.idle.files().looked(in_use, self.engine.used_numbers());
        self.idle.looking.store(false, Ordering::SeqCst);
    }
}
