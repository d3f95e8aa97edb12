//! How many files stay managed that nobody uses: each costs descriptors, and memory beside its pages,
//! and so does each page that was ever touched.
//!
//! A file that is let go of loses what is in memory of it, whatever the policy would keep. So those go
//! first of which nothing is there.

use crate::budget::FRAME_BYTES;

/// What a managed file costs beside its pages, in bytes: measured, with a few pages in memory.
const FILE_BYTES: u64 = 6 << 10;
/// The part of the memory that files nobody uses may cost.
const SHARE: u64 = 16;
/// They are never fewer, which is what takes 6 MiB at most.
const KEPT_LEAST: usize = 1024;
/// Descriptors of a file, in the manager: of all that it may have, idle files have half at most.
const FILE_DESCRIPTORS: u64 = 4;
/// Pages that have state, in memories: of more, files that nobody uses are let go of. Their state
/// takes a fifth of memory to a third by then, and what is kept of a file in 32 of its passes is not
/// worth that.
const MEMORIES: u64 = 32;
/// Files more than there may be, before the next look at all of them.
const SLACK: usize = 64;

/// When files that nobody uses are let go of. The engine and the simulator both live by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdleFiles {
    kept_max: usize,
    /// Managed files beyond which it is time to look.
    files_max: usize,
    kept_pages_max: u64,
    /// Pages with state beyond which it is time to look.
    pages_max: u64,
}

impl IdleFiles {
    /// For a run with so much memory, that may have so many descriptors.
    pub fn new(memory_bytes: u64, descriptors: u64) -> IdleFiles {
        let affordable = memory_bytes / SHARE / FILE_BYTES;
        let kept_max = affordable.min(descriptors / FILE_DESCRIPTORS / 2) as usize;
        let kept_max = kept_max.max(KEPT_LEAST);
        let pages_max = memory_bytes / FRAME_BYTES * MEMORIES;
        // So that one look does for several files.
        let kept_pages_max = pages_max - pages_max / 8;
        let mut idle = IdleFiles { kept_max, files_max: 0, kept_pages_max, pages_max: 0 };
        idle.looked(0, 0);
        idle
    }

    /// Whether so many files are too many, as long as there are unused ones to let go of.
    pub fn too_many(&self, files: usize) -> bool {
        files > self.kept_max
    }

    /// Whether so many pages with state are, likewise.
    pub fn too_many_pages(&self, pages: u64) -> bool {
        pages > self.kept_pages_max
    }

    /// Whether so many managed files, or pages with state, are a reason to look for unused files.
    pub fn are_many(&self, files: usize, pages: u64) -> bool {
        files > self.files_max || pages > self.pages_max
    }

    /// A look found so many files in use that would have had to go, and left so many pages with
    /// state.
    pub fn looked(&mut self, in_use: usize, pages: u64) {
        // Files in use are looked at in vain: seldom, the more there are.
        self.files_max = self.kept_max + SLACK + in_use + in_use / 4;
        let pages_max = self.kept_pages_max + self.kept_pages_max / 7;
        self.pages_max = pages_max.max(pages + pages / 4);
    }
}
