//! Forks that the kernel does not report, because this user may not follow them.
//!
//! Programs keep their mappings from their children then (MADV_DONTFORK). Before a fork the manager
//! looks up what is mapped; the child fetches that, range by range, and maps it again under a
//! userfaultfd of its own. Private mappings have no copies that a child would miss: those that may
//! be written to are left to the kernel.

use crate::manager::Manager;
use crate::port::{FileNo, SpaceNo};
use pagekeeper_sys::Errno;
use pagekeeper_sys::descriptor::duplicate;
use pagekeeper_sys::process;
use pagekeeper_wire as wire;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a child may take to fetch what it inherits: one that was killed never does.
const FETCHED_WITHIN: Duration = Duration::from_secs(30);

/// A mapping that a forked child inherits.
#[derive(Clone, Copy, Debug)]
struct Mapped {
    file: FileNo,
    /// The file's memfd: another file may have the number by the time that the child comes.
    memfd_ino: u64,
    /// It is the preload library's own, which alone does not keep a file.
    library: bool,
    addr: u64,
    bytes: u64,
    offset: u64,
    shared: bool,
    protection: u64,
}

/// What the child of one fork inherits.
#[derive(Debug)]
struct Inheritance {
    begun: Instant,
    ranges: Vec<Mapped>,
}

/// Forks under way, by ticket.
#[derive(Debug, Default)]
pub(crate) struct Forks(Mutex<HashMap<u64, Inheritance>>);

impl Forks {
    /// Whether a child may still come for what it inherits.
    pub(crate) fn are_under_way(&self) -> bool {
        let mut forks = self.0.lock().expect("lock");
        forks.retain(|_, fork| fork.begun.elapsed() < FETCHED_WITHIN);
        !forks.is_empty()
    }

    /// Whether a child may still come for a mapping of this file.
    pub(crate) fn concern(&self, file: FileNo) -> bool {
        let forks = self.0.lock().expect("lock");
        forks.values().any(|fork| fork.ranges.iter().any(|range| range.file == file))
    }
}

impl Manager {
    /// A process is about to fork, forks, or has done so: see [`wire::Op::Fork`].
    pub(crate) fn fork_by_hand(&self, pid: u32, phase: u64, ticket: u64) -> Result<u64, Errno> {
        match phase {
            wire::FORK_BEGIN => {
                let Some(space) = self.space_of(pid) else { return Ok(0) };
                let ranges = self.mapped_files(space, pid)?;
                if ranges.is_empty() {
                    return Ok(0);
                }
                let ticket = RandomState::new().build_hasher().finish() | 1;
                let fork = Inheritance { begun: Instant::now(), ranges };
                self.forks.0.lock().expect("lock").insert(ticket, fork);
                Ok(ticket)
            }
            wire::FORK_FAILED => {
                self.forks.0.lock().expect("lock").remove(&ticket);
                Ok(0)
            }
            _ => Ok(0),
        }
    }

    /// What of managed files a process maps now: what the kernel says, where we were told the same.
    fn mapped_files(&self, space: SpaceNo, pid: u32) -> Result<Vec<Mapped>, Errno> {
        let mut ranges = Vec::new();
        process::for_each_mapping(pid, |m| {
            let region = self.engine.with_space(space, |s| s.region(m.start)).flatten();
            let ino = region
                .and_then(|region| self.engine.port().file(region.file))
                .map(|live| live.memfd_ino);
            if let Some(region) = region
                && ino == Some(m.inode)
            {
                ranges.push(Mapped {
                    file: region.file,
                    memfd_ino: m.inode,
                    library: region.library,
                    addr: m.start,
                    bytes: m.end - m.start,
                    offset: m.offset,
                    shared: m.shared,
                    protection: m.protection(),
                });
            }
            true
        })?;
        Ok(ranges)
    }

    /// The next range that a forked child inherits, from an address on, and its memfd: see
    /// [`wire::Op::Inherit`].
    pub(crate) fn inherit_by_hand(
        &self,
        ticket: u64,
        from: u64,
    ) -> Result<Option<(wire::Reply, Option<OwnedFd>)>, Errno> {
        let next = {
            let mut forks = self.forks.0.lock().expect("lock");
            let ranges = &forks.get(&ticket).ok_or(Errno::NOENT)?.ranges;
            let next = ranges.iter().copied().find(|range| range.addr >= from);
            if next.is_none() {
                forks.remove(&ticket);
            }
            next
        };
        let Some(range) = next else { return Ok(None) };
        let live = self.engine.port().file(range.file);
        let live = live.filter(|live| live.memfd_ino == range.memfd_ino);
        let (memfd, kind) = match live {
            // Nobody had it mapped but the library, and it was let go of.
            None => (None, wire::INHERIT_NOTHING),
            Some(live) if range.shared => (Some(duplicate(&live.memfd)?), 0),
            Some(live) => (Some(live.memfd.reopen_read_only()?), wire::INHERIT_PRIVATE),
        };
        let kind = kind | if range.library { wire::INHERIT_LIBRARY } else { 0 };
        let reply = wire::Reply {
            r0: range.addr,
            r1: range.bytes,
            r2: range.offset,
            r3: range.protection | kind | (u64::from(range.file) + 1) << 32,
            ..wire::Reply::default()
        };
        Ok(Some((reply, memfd)))
    }
}
