//! Files that nobody can reach any more, or that nobody has open, and heaps of processes that are gone:
//! what the engine forgets of them.

use crate::engine::core::{Core, File};
use crate::engine::flush::Leaving;
use crate::engine::stats::{FileCounts, FileReport};
use crate::engine::{Again, Engine};
use crate::port::{FileNo, Port};
use std::collections::BTreeMap;

/// Files that are gone and have a line of their own in the report.
const NAMES_MAX: usize = 10_000;
/// The same of heaps. Each process that allocates has one, and no two have the same name.
const HEAPS_MAX: usize = 100;

/// What was counted of files without a line of their own.
#[derive(Debug, Default)]
struct Sum {
    counts: FileCounts,
    bytes: u64,
    files: u64,
}

impl Sum {
    fn add(&mut self, report: &FileReport) {
        self.counts.add(&report.counts);
        self.bytes += report.bytes;
        self.files += 1;
    }

    fn report(&self, name: impl FnOnce(u64) -> String) -> Option<FileReport> {
        let report =
            || FileReport { name: name(self.files), bytes: self.bytes, counts: self.counts };
        (self.files > 0).then(report)
    }
}

/// What was counted of files that are gone, by name.
#[derive(Debug, Default)]
pub(crate) struct Past {
    named: BTreeMap<String, FileReport>,
    heaps: Vec<FileReport>,
    other_files: Sum,
    other_heaps: Sum,
}

impl Past {
    fn add(&mut self, file: &File) {
        let report = file.report();
        if file.heap.is_some() {
            match self.heaps.len() {
                0..HEAPS_MAX => self.heaps.push(report),
                _ => self.other_heaps.add(&report),
            }
        } else if let Some(known) = self.named.get_mut(&report.name) {
            known.counts.add(&report.counts);
            known.bytes = report.bytes;
        } else if self.named.len() < NAMES_MAX {
            self.named.insert(report.name.clone(), report);
        } else {
            self.other_files.add(&report);
        }
    }

    /// Adds what was counted to a report that has the files that are left.
    pub(crate) fn report(&self, files: &mut Vec<FileReport>) {
        let mut named = self.named.clone();
        for file in files.iter_mut() {
            if let Some(past) = named.remove(&file.name) {
                file.counts.add(&past.counts);
            }
        }
        files.extend(named.into_values());
        files.extend(self.heaps.iter().cloned());
        files.extend(self.other_files.report(|files| format!("{files} other files")));
        files.extend(self.other_heaps.report(|heaps| format!("heap: {heaps} others that ended")));
    }
}

impl File {
    pub(crate) fn report(&self) -> FileReport {
        FileReport {
            name: self.name.clone(),
            bytes: self.heap.as_ref().map_or(self.version.size_bytes, |heap| heap.bytes_max()),
            counts: self.counts,
        }
    }
}

impl Core {
    /// Whether programs map a file. What the preload library maps for itself does not count.
    fn is_mapped_by_programs(&self, file: FileNo) -> bool {
        self.file(file).is_some_and(|f| f.mappings.iter().any(|m| !m.library))
    }

    /// Which of these files of programs no program maps.
    pub(crate) fn unmapped_files(&self, files: Vec<FileNo>) -> Vec<FileNo> {
        let is_unmapped = |no: &FileNo| {
            self.file(*no).is_some_and(|f| f.heap.is_none()) && !self.is_mapped_by_programs(*no)
        };
        files.into_iter().filter(is_unmapped).collect()
    }

    /// Nothing is left of a file, none of whose pages is in memory, but mappings that show nothing, and
    /// fences of whoever is not done with it.
    pub(crate) fn leave(&mut self, file: FileNo) {
        self.close_segment(file);
        let Core { past, files, .. } = self;
        if let Some(f) = files.get_mut(file as usize).and_then(Option::as_mut) {
            past.add(f);
            *f = File {
                mappings: std::mem::take(&mut f.mappings),
                fences: std::mem::take(&mut f.fences),
                overwrite: f.overwrite.take(),
                ..File::gone()
            };
        }
    }
}

impl<P: Port> Engine<P> {
    /// Whether programs map a file.
    pub(crate) fn is_mapped_by_programs(&self, file: FileNo) -> bool {
        self.lock().is_mapped_by_programs(file)
    }

    /// Whether a change of a file is open.
    pub(crate) fn is_changing(&self, file: FileNo) -> bool {
        let core = self.lock();
        core.is_changing(file) || core.file(file).is_some_and(|f| f.unsettled > 0)
    }

    /// Whether storage has all of a file, and everybody was told who had to be.
    pub(crate) fn is_stored(&self, file: FileNo) -> bool {
        let dirty = self.dirty_pages(file) > 0;
        !dirty && self.lock().file(file).is_some_and(|f| f.errors.all_seen())
    }

    /// Pages of a file that were used so far, as far as that was seen: for "is it used still?".
    pub(crate) fn uses_seen(&self, file: FileNo) -> u64 {
        self.lock().file(file).map_or(0, |f| f.counts.major_faults + f.counts.minor_faults)
    }

    /// Pages that have state.
    pub(crate) fn used_numbers(&self) -> u64 {
        self.lock().brain.used_numbers()
    }

    /// Whether more pages fit in before others have to leave.
    pub(crate) fn has_free_frames(&self) -> bool {
        self.lock().brain.has_free_frames()
    }

    /// Forgets a file that no program maps or has open; what is dirty of it is lost. Mappings of the
    /// preload library raise SIGBUS from then on, which it takes for "ask". Until they are gone too
    /// ([`is_gone`](Self::is_gone)) the number stands for no other file.
    pub(crate) fn retire(&self, file: FileNo) {
        // Who copies from a mapping throws away what it has copied.
        self.port.announce(file, None);
        let mut again = Again::new();
        self.drop_pages(file, 0..u64::MAX, Leaving::All, &mut again);
        self.serve_all(&mut again);
        let _ = self.port.resize(file, 0);
        self.lock().leave(file);
    }

    /// Whether a retired file is mapped nowhere any more, and nobody is in the midst of changing it; its
    /// number is free then.
    pub(crate) fn is_gone(&self, file: FileNo) -> bool {
        // Who looks an address up enters what it finds before this goes on.
        let _layout = self.layout.write().expect("layout");
        let mut core = self.lock();
        // Of a heap, memory that was unmapped may have yet to be dropped: of this one, and no other.
        if core.file(file).is_some_and(|f| !f.mappings.is_empty() || !f.fences.is_empty()) {
            return false;
        }
        if let Some(f) = core.files.get_mut(file as usize) {
            *f = None;
        }
        true
    }
}
