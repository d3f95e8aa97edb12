//! Which files processes have mapped from the kernel.
//!
//! A program that maps a file which is too small to be managed has a mapping of the kernel's, which
//! shows nothing of the manager's copy. When the file has grown it may be managed as soon as nobody has
//! such a mapping, and that is looked up in `/proc/PID/maps` of all processes. Who maps a file asks
//! before, so that no such mapping is made meanwhile, but by `fork(2)`: processes are looked at until
//! no new ones are found, so that who inherits one is found, or whom it was inherited from.

use pagekeeper_sys::Errno;
use pagekeeper_sys::file::FileId;
use pagekeeper_sys::process::{self, Mapping};
use std::collections::HashSet;
use std::ops::Range;

/// A mapping that does not count: what a process has while it asks for one of ours in its place.
pub(crate) type Trial = (u32, Range<u64>);

/// Files that are mapped.
#[derive(Default)]
pub(crate) struct Mapped {
    inodes: HashSet<u64>,
    paths: HashSet<Vec<u8>>,
    /// There are processes whose mappings cannot be seen.
    is_partial: bool,
}

impl Mapped {
    /// All of them.
    pub(crate) fn look() -> Mapped {
        let mut mapped = Mapped::default();
        mapped.is_partial = !for_each(|_, mapping| {
            mapped.inodes.insert(mapping.inode);
            if !mapped.paths.contains(mapping.name()) {
                mapped.paths.insert(mapping.name().to_vec());
            }
            true
        });
        mapped
    }

    /// Whether a file may be mapped.
    pub(crate) fn has(&self, id: FileId, name: &str) -> bool {
        self.is_partial || self.inodes.contains(&id.ino) || self.paths.contains(name.as_bytes())
    }
}

/// Whether a file may be mapped from the kernel, but for a trial.
pub(crate) fn is_mapped(id: FileId, name: &str, trial: Option<&Trial>) -> bool {
    let mut found = false;
    let all_seen = for_each(|pid, mapping| {
        let is_trial = trial.is_some_and(|(whose, range)| {
            *whose == pid && range.start <= mapping.start && mapping.end <= range.end
        });
        // Some file systems show another device than `fstat(2)`, or another inode (layers of others): what has
        // the number or the name counts as the file.
        found |= !is_trial && (mapping.inode == id.ino || mapping.name() == name.as_bytes());
        !found
    });
    found || !all_seen
}

/// Calls `f` for all mappings of files until it returns false. Whether all could be seen that may be of
/// programs under a manager.
fn for_each(mut f: impl FnMut(u32, &Mapping<'_>) -> bool) -> bool {
    let mut seen = HashSet::new();
    loop {
        let fresh: Vec<u32> = process::all().filter(|pid| seen.insert(*pid)).collect();
        if fresh.is_empty() {
            return true;
        }
        for pid in fresh {
            let mut goes_on = true;
            let listed = process::for_each_mapping(pid, |mapping| {
                // Those of our memory begin like files that have a place in the file system.
                let is_file = mapping.inode != 0
                    && mapping.path.starts_with(b"/")
                    && !mapping.path.starts_with(b"/memfd:");
                goes_on = !is_file || f(pid, &mapping);
                goes_on
            });
            if !goes_on {
                return true;
            }
            match listed {
                Ok(()) | Err(Errno::NOENT | Errno::SRCH) => {}
                Err(_) if is_nobody_of_ours(pid) => {}
                Err(_) => return false,
            }
        }
    }
}

/// Whether a process whose mappings cannot be seen is none of a run's: it was there before, or is
/// another user's, and this one not root (what becomes another user's then has no library of ours).
fn is_nobody_of_ours(pid: u32) -> bool {
    let me = rustix::process::getuid();
    let begun = process::start_ticks(std::process::id());
    let is_older = process::start_ticks(pid).is_ok_and(|ticks| begun.is_ok_and(|me| ticks < me));
    is_older || !me.is_root() && process::real_user(pid).is_ok_and(|user| user != me.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_sys::file;

    #[test]
    fn mappings_of_other_processes_are_found_and_trials_are_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(8192).unwrap();
        let id = file::stat(file.as_file()).unwrap().id;
        let name = file.path().to_str().unwrap();
        assert!(!is_mapped(id, name, None) && !Mapped::look().has(id, name));

        let map = memmap2::MmapOptions::new().map_raw_read_only(file.as_file()).unwrap();
        let start = map.as_ptr() as u64;
        assert!(is_mapped(id, name, None) && Mapped::look().has(id, name));
        let me = std::process::id();
        assert!(!is_mapped(id, name, Some(&(me, start..start + 8192))));
        // Merged with another, or another process's.
        assert!(is_mapped(id, name, Some(&(me, start..start + 4096))));
        assert!(is_mapped(id, name, Some(&(1, start..start + 8192))));
        // By its name, or by its number, if only one of them is right.
        let other = FileId { dev: id.dev, ino: u64::MAX };
        assert!(is_mapped(other, name, None) && is_mapped(id, "/elsewhere", None));
        drop(map);
        assert!(!is_mapped(id, name, None) && !Mapped::look().has(id, name));
    }
}
