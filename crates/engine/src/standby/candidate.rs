//! Mappings that can be taken over: which, and whether they are there still.

use crate::standby::path_of;
use pagekeeper_sys::Errno;
use pagekeeper_sys::file::{self, FileId};
use pagekeeper_sys::process::{self, Detail, Mapping};
use pagekeeper_sys::shared::ReadOnlyMap;
use pagekeeper_wire as wire;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

/// A mapping that can be taken over.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) offset: u64,
    pub(crate) protection: u64,
    pub(crate) shared: bool,
    /// Its descriptor may write, so that the program may still make it writable.
    pub(crate) may_write: bool,
    pub(crate) path: String,
    pub(crate) id: FileId,
}

/// What a process advised of a mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advice {
    pub(crate) random: bool,
    pub(crate) sequential: bool,
}

impl Candidate {
    /// Opens its file, as its own descriptor was: by its name or, where another has that by now, or did in the
    /// process's file systems, as what is mapped there (which the kernel may not permit). That it is the mapped
    /// one proves that the process may read it, or write to it.
    pub(super) fn open(&self, pid: u32) -> Option<OwnedFd> {
        let mut how = std::fs::OpenOptions::new();
        how.read(true)
            .write(self.may_write)
            .custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK | libc::O_CLOEXEC);
        let range = self.range();
        let mapped = format!("/proc/{pid}/map_files/{:x}-{:x}", range.start, range.end);
        [&self.path, &mapped].into_iter().find_map(|path| {
            let fd = OwnedFd::from(how.open(path).ok()?);
            let stat = file::stat(&fd).ok()?;
            let is_it = stat.id == self.id || shown_id(&fd) == Some(self.id);
            (stat.is_regular() && is_it).then_some(fd)
        })
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes
    }

    /// Whether the process stores to the file by it.
    pub(super) fn may_store(&self) -> bool {
        self.shared && self.protection & libc::PROT_WRITE as u64 != 0
    }

    /// Whether some of it is in its place still, or nobody can tell.
    pub(super) fn is_there(&self, pid: u32) -> bool {
        let mut is_there = false;
        let listed = process::for_each_mapping_in(pid, self.range(), |found| {
            is_there |= id_of(&found) == self.id;
            !is_there
        });
        // What cannot be seen may be there, while there is a process.
        is_there || listed.is_err_and(|e| !matches!(e, Errno::NOENT | Errno::SRCH))
    }

    /// Whether a process's mappings show all of it, as one or as several. It is looked up: a process may
    /// have tens of thousands, and of each of them this is asked while its threads wait.
    ///
    /// # Errors
    /// As [`process::for_each_mapping`].
    pub(super) fn is_shown_whole(&self, pid: u32) -> Result<bool, Errno> {
        let mut there_to = self.start;
        process::for_each_mapping_in(pid, self.range(), |found| {
            let goes_on = found.start <= there_to && self.is_shown_by(&found);
            if goes_on {
                there_to = found.end;
            }
            goes_on
        })?;
        Ok(there_to >= self.start + self.bytes)
    }

    /// Whether a mapping, or a part of this one, shows the same.
    fn is_shown_by(&self, found: &Mapping<'_>) -> bool {
        let other = Candidate::of(found);
        (other.id, other.protection, other.shared) == (self.id, self.protection, self.shared)
            && other.offset.wrapping_sub(other.start) == self.offset.wrapping_sub(self.start)
    }

    pub(super) fn of(mapping: &Mapping<'_>) -> Candidate {
        Candidate {
            start: mapping.start,
            bytes: mapping.end - mapping.start,
            offset: mapping.offset,
            protection: mapping.protection(),
            shared: mapping.shared,
            may_write: false,
            path: path_of(mapping).into_owned(),
            id: id_of(mapping),
        }
    }
}

/// A mapping's file, as the kernel shows it there.
fn id_of(mapping: &Mapping<'_>) -> FileId {
    FileId { dev: rustix::fs::makedev(mapping.dev_major, mapping.dev_minor), ino: mapping.inode }
}

/// A file, as the kernel shows it where it is mapped: on btrfs, and on overlayfs of older kernels (6.1), as one of
/// another device than `fstat(2)` does.
fn shown_id(fd: &OwnedFd) -> Option<FileId> {
    let map = ReadOnlyMap::new(fd, 0, wire::PAGE_BYTES as usize).ok()?;
    let shown = process::mapping_at(std::process::id(), map.address()).ok()??;
    Some(id_of(&shown))
}

/// Whether memory of ours in its place would be the same to the program: it has no private copies of pages, and
/// makes none meanwhile, it is not locked or sealed, and children inherit it.
pub(super) fn can_be_taken(mapping: &Mapping<'_>, detail: &Detail<'_>) -> bool {
    let is_special = ["lo", "sl", "dc", "wf", "um"].iter().any(|flag| detail.has(flag));
    let has_copies = detail.anonymous_bytes != 0;
    let copies = mapping.write && !mapping.shared;
    !(copies || mapping.execute || is_special || has_copies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standby::is_of_file;
    use pagekeeper_sys::shared::SharedMap;

    /// How often this thread has read, if the kernel says it.
    fn reads() -> Option<u64> {
        let counts = std::fs::read_to_string("/proc/thread-self/io").ok()?;
        counts.lines().find_map(|line| line.strip_prefix("syscr: "))?.parse().ok()
    }

    /// The list was read from its beginning for each mapping, while the program's threads waited: 2,000 of
    /// them took 10 s, and 4,000 more than 20.
    #[test]
    fn what_is_before_a_mapping_is_not_read_to_look_for_it() {
        const MAPPINGS: usize = 2000;
        // To read the count takes some; the list takes one for each page of its text.
        const READS_MAX: u64 = 10;
        let (memfd, first) = SharedMap::create("many", 4096).unwrap();
        let others: Vec<_> = (1..MAPPINGS).map(|_| SharedMap::new(&memfd, 0, 4096)).collect();
        let addresses = others.iter().flatten().map(SharedMap::address);
        let highest = addresses.chain([first.address()]).max().unwrap();
        let pid = std::process::id();
        let mut listed = None;
        let all = process::for_each_mapping(pid, |found| {
            if found.start == highest {
                listed = Some(Candidate::of(&found));
            }
            true
        });
        let mapping = listed.filter(|_| all.is_ok()).unwrap();
        let counted = |look: &dyn Fn()| {
            let before = reads()?;
            look();
            Some(reads()? - before)
        };
        let looked_up = counted(&|| assert!(process::mapping_at(pid, highest).is_ok()));
        if looked_up.is_none_or(|reads| reads > READS_MAX) {
            eprintln!("skipped: the kernel looks no mapping up, or does not count reads");
            return;
        }
        let looked = counted(&|| assert_eq!(mapping.is_shown_whole(pid), Ok(true))).unwrap();
        assert!(looked <= READS_MAX, "{looked}");
        let longer = Candidate { bytes: mapping.bytes + 4096, ..mapping.clone() };
        assert_eq!(longer.is_shown_whole(pid), Ok(false), "it ends before");
        let other = Candidate { offset: 4096, ..mapping };
        assert_eq!(other.is_shown_whole(pid), Ok(false), "another place of the file");
    }

    #[test]
    fn only_what_nobody_writes_to_can_be_taken_over() {
        let mapping = |line: &'static str| Mapping::parse(line.as_bytes()).unwrap();
        let of = |line, anonymous_bytes, flags| {
            can_be_taken(&mapping(line), &Detail { anonymous_bytes, flags })
        };
        let shared = "1000-3000 r--s 00000000 08:01 12 /data/a";
        let private = "1000-3000 r--p 00000000 08:01 12 /data/a";
        assert!(of(shared, 0, " rd sh mr me ms sd "));
        assert!(of(private, 0, " rd mr mw me sd "));
        assert!(of(shared, 0, " rd sh mr mw me ms sd "), "its descriptor may write");
        assert!(!of(private, 4096, " rd mr mw me sd "), "it has copies");
        assert!(!of(private, 0, " rd mr mw me lo sd "), "it is locked");
        assert!(!of(shared, 0, " rd sh mr me ms sd sl "), "it is sealed");
        assert!(!of("1000-3000 rw-p 00000000 08:01 12 /data/a", 0, " rd wr mr mw me sd "));
        assert!(!of("1000-3000 r-xp 00000000 08:01 12 /data/a", 0, " rd ex mr mw me sd "));
        assert!(!is_of_file(&mapping(
            "1000-3000 r--s 00000000 00:01 9 /memfd:pagekeeper (deleted)"
        )));
        assert!(!is_of_file(&mapping("1000-3000 r--p 00000000 00:00 0 ")));
    }
}
