//! How many files stay managed that nobody uses: each costs descriptors, and memory beside its pages,
//! and so does each page that was ever touched.
//!
//! A file that is let go of loses what is in memory of it, whatever the policy would keep. So more stay
//! while frames are free, when all of that would have stayed.

use crate::budget::FRAME_BYTES;

/// What a managed file costs beside its pages, in bytes: measured, with a few pages in memory.
const FILE_BYTES: u64 = 6 << 10;
/// The part of the memory that files nobody uses may cost, and what they may while frames are free.
const SHARE: u64 = 16;
const SHARE_IN_ROOM: u64 = 8;
/// They are never fewer.
const KEPT_LEAST: u64 = 512;
const KEPT_LEAST_IN_ROOM: u64 = 1024;
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
    kept_max_in_room: usize,
    /// Files in use that the last look looked at in vain.
    in_use: usize,
    kept_pages_max: u64,
    /// Pages with state beyond which it is time to look.
    pages_max: u64,
}

impl IdleFiles {
    /// For a run with so much memory, that may have so many descriptors.
    pub fn new(memory_bytes: u64, descriptors: u64) -> IdleFiles {
        let kept_max = |share: u64, least: u64| {
            let affordable = (memory_bytes / share / FILE_BYTES).max(least);
            affordable.min(descriptors / FILE_DESCRIPTORS / 2).max(KEPT_LEAST) as usize
        };
        let pages_max = memory_bytes / FRAME_BYTES * MEMORIES;
        // So that one look does for several files.
        let kept_pages_max = pages_max - pages_max / 8;
        let mut idle = IdleFiles {
            kept_max: kept_max(SHARE, KEPT_LEAST),
            kept_max_in_room: kept_max(SHARE_IN_ROOM, KEPT_LEAST_IN_ROOM),
            in_use: 0,
            kept_pages_max,
            pages_max: 0,
        };
        idle.looked(0, 0);
        idle
    }

    fn kept_max(&self, are_frames_free: bool) -> usize {
        if are_frames_free { self.kept_max_in_room } else { self.kept_max }
    }

    /// Whether so many files are too many, as long as there are unused ones to let go of.
    pub fn too_many(&self, files: usize, are_frames_free: bool) -> bool {
        files > self.kept_max(are_frames_free)
    }

    /// Whether so many pages with state are, likewise.
    pub fn too_many_pages(&self, pages: u64) -> bool {
        pages > self.kept_pages_max
    }

    /// Whether so many managed files, or pages with state, are a reason to look for unused files.
    pub fn are_many(&self, files: usize, pages: u64, are_frames_free: bool) -> bool {
        // Files in use are looked at in vain: seldom, the more there are.
        let in_use = self.in_use + self.in_use / 4;
        files > self.kept_max(are_frames_free) + SLACK + in_use || pages > self.pages_max
    }

    /// A look found so many files in use that would have had to go, and left so many pages with
    /// state.
    pub fn looked(&mut self, in_use: usize, pages: u64) {
        self.in_use = in_use;
        let pages_max = self.kept_pages_max + self.kept_pages_max / 7;
        self.pages_max = pages_max.max(pages + pages / 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_files_stay_while_frames_are_free_if_descriptors_allow_it() {
        let limits = |memory_mib: u64, descriptors| {
            let idle = IdleFiles::new(memory_mib << 20, descriptors);
            [false, true].map(|free| (0..).find(|files| idle.too_many(files + 1, free)).unwrap())
        };
        assert_eq!(limits(1, u64::MAX), [512, 1024]);
        assert_eq!(limits(96, u64::MAX), [1024, 2048]);
        assert_eq!(limits(96, 1024), [512, 512]);
        assert_eq!(limits(96, 12_000), [1024, 1500]);
    }
}
