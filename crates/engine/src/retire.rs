//! Files that nobody can reach any more, or that nobody has open: what the engine forgets of them.

use crate::core::{Core, File};
use crate::engine::{Again, Engine};
use crate::flush::Leaving;
use crate::port::{FileNo, Port};
use crate::stats::{FileCounts, FileReport};
use std::collections::BTreeMap;

/// Files that are gone and have a line of their own in the report.
const NAMES_MAX: usize = 10_000;

/// What was counted of files that are gone, by name.
#[derive(Debug, Default)]
pub(crate) struct Past {
    named: BTreeMap<String, FileReport>,
    others: FileCounts,
    others_bytes: u64,
    others_files: u64,
}

impl Past {
    fn add(&mut self, file: &File) {
        let report = file.report();
        if let Some(known) = self.named.get_mut(&report.name) {
            known.counts.add(&report.counts);
            known.bytes = report.bytes;
        } else if self.named.len() < NAMES_MAX {
            self.named.insert(report.name.clone(), report);
        } else {
            self.others.add(&report.counts);
            self.others_bytes += report.bytes;
            self.others_files += 1;
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
        if self.others_files > 0 {
            let name = format!("{} other files", self.others_files);
            files.push(FileReport { name, bytes: self.others_bytes, counts: self.others });
        }
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
        let mut core = self.lock();
        core.close_segment(file);
        let Core { past, files, .. } = &mut *core;
        if let Some(f) = files.get_mut(file as usize).and_then(Option::as_mut) {
            past.add(f);
            *f = File { mappings: std::mem::take(&mut f.mappings), ..File::gone() };
        }
    }

    /// Whether a retired file is mapped nowhere any more; its number is free then.
    pub(crate) fn is_gone(&self, file: FileNo) -> bool {
        let mut core = self.lock();
        if core.file(file).is_some_and(|f| !f.mappings.is_empty()) {
            return false;
        }
        if let Some(f) = core.files.get_mut(file as usize) {
            *f = None;
        }
        true
    }
}
