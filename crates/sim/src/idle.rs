//! Files that nobody uses, which the live engine lets go of where there are many.
//!
//! Recordings let go of none, and do not tell when a file was closed. Here a file counts as unused
//! after its last reference so far, unless the program mapped it: mappings are used without a word.

use crate::References;
use pagekeeper_frames::{Brain, IdleFiles, Segment};

/// What is known of a segment.
#[derive(Clone, Copy, Default)]
struct File {
    is_managed: bool,
    is_mapped: bool,
    /// The count of references at its last one.
    used: u64,
}

/// Which files are managed at a point of a replay.
pub(crate) struct Files {
    files: Vec<File>,
    managed: usize,
    /// References so far.
    references: u64,
    idle: IdleFiles,
}

impl Files {
    /// Before the first reference, in a run with so much memory for frames.
    pub(crate) fn of(references: &References, memory_bytes: u64) -> Self {
        let files = vec![File::default(); references.segments().len()];
        let idle = IdleFiles::new(memory_bytes, u64::MAX);
        Self { files, managed: 0, references: 0, idle }
    }

    /// A file is referenced. Which others are let go of.
    pub(crate) fn used(&mut self, segment: usize, by_call: bool, brain: &Brain) -> Vec<usize> {
        self.references += 1;
        let file = &mut self.files[segment];
        file.used = self.references;
        file.is_mapped |= !by_call;
        if std::mem::replace(&mut file.is_managed, true) {
            return Vec::new();
        }
        self.managed += 1;
        let (pages, are_frames_free) = (brain.used_numbers(), brain.has_free_frames());
        let many = self.idle.are_many(self.managed, pages, are_frames_free);
        if many { self.let_go(brain) } else { Vec::new() }
    }

    fn let_go(&mut self, brain: &Brain) -> Vec<usize> {
        let mut managed: Vec<usize> =
            (0..self.files.len()).filter(|at| self.files[*at].is_managed).collect();
        managed.sort_unstable_by_key(|at| self.files[*at].used);
        let mut unknown = managed.len();
        let mut pages = brain.used_numbers();
        let mut in_use = 0;
        let are_frames_free = brain.has_free_frames();
        managed.retain(|at| {
            let too_many = self.idle.too_many(unknown, are_frames_free);
            // The newest is the one that is opened.
            if unknown == 1 || !too_many && !self.idle.too_many_pages(pages) {
                return false;
            }
            unknown -= 1;
            if self.files[*at].is_mapped {
                in_use += usize::from(too_many);
                return false;
            }
            pages -= brain.segment_numbers(Segment(*at as u32));
            true
        });
        self.idle.looked(in_use, pages);
        for at in &managed {
            self.files[*at].is_managed = false;
        }
        self.managed -= managed.len();
        managed
    }
}
