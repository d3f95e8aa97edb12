//! How much of files programs have in hand: what a loop of theirs may go through.

use crate::manager::selection::Selection;
use crate::standby::{is_files, is_of_file, is_selected};
use pagekeeper_sys::counters::read_ahead_kib_of;
use pagekeeper_sys::process;
use std::collections::{HashMap, HashSet};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

/// Bytes of the selected files that these processes have mapped or open. What they open and close on
/// their way is not in it.
pub(crate) fn reach_bytes(processes: impl Iterator<Item = u32>, selection: &Selection) -> u64 {
    let mut mapped = HashMap::<u64, u64>::new();
    let mut open = HashMap::new();
    for pid in processes {
        let _ = process::for_each_mapping(pid, |mapping| {
            if is_of_file(&mapping) && is_selected(&mapping, selection) {
                let end = mapping.offset + (mapping.end - mapping.start);
                let reach = mapped.entry(mapping.inode).or_default();
                *reach = end.max(*reach);
            }
            true
        });
        for_each_open(pid, selection, |file| {
            open.insert(file.ino(), file.len());
        });
    }
    // A file may be mapped far beyond its end.
    mapped.retain(|inode, _| !open.contains_key(inode));
    mapped.values().chain(open.values()).fold(0, |sum, bytes| bytes.saturating_add(sum))
}

/// The selected files that a process has open.
fn for_each_open(pid: u32, selection: &Selection, mut each: impl FnMut(&Metadata)) {
    let Ok(descriptors) = process::descriptors(pid) else { return };
    for descriptor in descriptors {
        let target = descriptor.target();
        if is_files(target.as_os_str().as_bytes())
            && selection.matches(&target.to_string_lossy())
            && let Ok(file) = descriptor.metadata()
            && file.is_file()
        {
            each(&file);
        }
    }
}

/// The most that the kernel reads ahead in the file systems of what these processes have open of the
/// selected files, in KiB; none if that is nothing, or cannot be told of all of them.
pub(crate) fn read_ahead_kib(
    processes: impl Iterator<Item = u32>,
    selection: &Selection,
) -> Option<u32> {
    let mut devices = HashSet::new();
    for pid in processes {
        for_each_open(pid, selection, |file| {
            devices.insert(file.dev());
        });
    }
    let kib: Option<Vec<u32>> = devices.into_iter().map(read_ahead_kib_of).collect();
    kib?.into_iter().max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_sys::shared::ReadOnlyMap;
    use std::fs::File;

    #[test]
    fn what_is_mapped_or_open_counts_once() {
        let directory = tempfile::tempdir().unwrap();
        let make = |name: &str, bytes: u64| {
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(directory.path().join(name))
                .unwrap();
            file.set_len(bytes).unwrap();
            file
        };
        let pattern = format!("{}/*.data", directory.path().canonicalize().unwrap().display());
        let selection = Selection::new(&[pattern], 0).unwrap();
        let reach = || reach_bytes([std::process::id()].into_iter(), &selection);
        assert_eq!(reach(), 0);
        let (first, other) = (make("first.data", 10_000), make("other.text", 1 << 20));
        assert_eq!(reach(), 10_000);
        // Of its own file system, whatever else is mounted.
        let own = read_ahead_kib_of(first.metadata().unwrap().dev());
        assert_eq!(read_ahead_kib([std::process::id()].into_iter(), &selection), own);
        let again = first.try_clone().unwrap();
        let map = ReadOnlyMap::new(&first, 0, 1 << 20).unwrap();
        assert_eq!(reach(), 10_000, "its descriptor says how long it is");
        drop((first, again, other));
        assert_eq!(reach(), 1 << 20, "what is mapped says it");
        drop(map);
        assert_eq!(reach(), 0);
    }
}
