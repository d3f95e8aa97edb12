//! Standing by: files stay the kernel's as long as nothing can be won.
//!
//! A page that is served by us costs more than one that the kernel serves, and pays for that only
//! when a better choice of victims saves reads. As long as the kernel evicts nothing that is needed
//! again, there is no better choice. So where a cgroup bounds the kernel's page cache, the manager
//! first stands by and looks at what the kernel counts there. The standby ends, for good, when the
//! kernel reads pages again that it had evicted, and more than one of them for each fault: a program
//! that misses single pages in no order would miss as many under any policy. Of a loop much is won,
//! and the sooner the more, so it ends the standby earlier.
//!
//! What makes the end safe: no file becomes managed while some process that stood by has it mapped
//! from the kernel, but for processes that are having their mappings taken over in that moment: one, or
//! all of several together.
//! Such processes are known by the page that they have mapped to see whether the standby holds, and
//! such mappings by MAP_NORESERVE, which changes nothing for what has no private copies and shows in
//! `/proc/PID/smaps`. Before the first file becomes managed, all processes are searched for them; one
//! that is made later is found by who makes it, since it looks for the end of the standby after that.
//! What was stored by them is in the kernel's pages, from where we read it; and until none is left by
//! which more could be, nobody sees ours.

mod candidate;
mod ceded;
pub(crate) mod headroom;
pub(crate) mod interject;
mod meeting;
mod pins;
mod reach;
mod takeover;
mod taker;
mod verdict;
mod watch;

use crate::manager::board::Board;
use crate::manager::selection::Selection;
use crate::standby::headroom::Room;
use crate::standby::meeting::Meetings;
use crate::standby::taker::Taker;
use pagekeeper_sys::process::{self, Detail, Mapping};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
pub(crate) use watch::EVERY;

/// How far the cgroup's limit may be above what was asked for, which the kernel's page cache may use
/// as well meanwhile: so many times that, and so much.
const LIMIT_TIMES_MAX: u64 = 2;
const LIMIT_BYTES_MORE_MAX: u64 = 64 << 20;

/// `vm.overcommit_memory` under which the kernel takes MAP_NORESERVE for nothing.
const OVERCOMMIT_NEVER: &str = "2";

/// Whether files are the kernel's for the time being.
#[derive(Debug)]
pub(crate) struct Standby {
    /// Who has it mapped stands by.
    board: Arc<Board>,
    room: Arc<Room>,
    started: Instant,
    ended: OnceLock<Ended>,
    /// Inodes of files that had such mappings when it ended, whatever the device (in `/proc/PID/maps`
    /// some file systems show another than `fstat(2)`) and the name (a file may have lost its own, and
    /// get it back); and whether they had a name then that is selected.
    mapped: Mutex<HashMap<u64, bool>>,
    /// And their names: overlayfs of older kernels shows another inode than `fstat(2)` where the file was
    /// written to since it lay in a layer below.
    names: Mutex<HashSet<String>>,
    /// Processes whose mappings are being taken over.
    takers: Mutex<HashMap<u32, Taker>>,
    /// Where they wait for each other.
    meetings: Meetings,
}

/// How a standby ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) after: Duration,
    pub(crate) reason: String,
}

impl Standby {
    /// A standby that has begun; none where no cgroup bounds the kernel's page cache to about as much
    /// memory, its counts cannot be read, or mappings cannot be marked.
    pub(crate) fn begin(memory_bytes: u64, board: &Arc<Board>) -> Option<Standby> {
        let most =
            memory_bytes.saturating_mul(LIMIT_TIMES_MAX).saturating_add(LIMIT_BYTES_MORE_MAX);
        let room = Room::of_this_process()?;
        if room.bounds.limit_bytes().is_none_or(|limit_bytes| limit_bytes > most) {
            return None;
        }
        let overcommit = std::fs::read_to_string("/proc/sys/vm/overcommit_memory");
        if overcommit.map_or(true, |mode| mode.trim() == OVERCOMMIT_NEVER) {
            return None;
        }
        board.stands_by().store(1, Ordering::SeqCst);
        Some(Standby {
            board: board.clone(),
            room: Arc::new(room),
            started: Instant::now(),
            ended: OnceLock::new(),
            mapped: Mutex::default(),
            names: Mutex::default(),
            takers: Mutex::default(),
            meetings: Meetings::default(),
        })
    }

    /// The cgroup whose counts are looked at.
    pub(crate) fn room(&self) -> Arc<Room> {
        self.room.clone()
    }

    /// Inode of the board that shows whether it holds.
    pub(crate) fn board_inode(&self) -> u64 {
        self.board.inode()
    }

    pub(crate) fn holds(&self) -> bool {
        self.ended.get().is_none()
    }

    /// Whether it has ended, not so long ago.
    pub(crate) fn has_ended_within(&self, time: Duration) -> bool {
        self.ended.get().is_some_and(|ended| self.started.elapsed() < ended.after + time)
    }

    pub(crate) fn ended(&self) -> Option<&Ended> {
        self.ended.get()
    }

    /// Ends it, and finds the mappings that were made meanwhile. No file is to become managed before
    /// this returns.
    pub(crate) fn end(&self, reason: &str, selection: &Selection) {
        // Whoever comes second waits for the first.
        let mut mapped = self.mapped.lock().expect("lock");
        if !self.holds() {
            return;
        }
        self.board.stands_by().store(0, Ordering::SeqCst);
        let mut names = self.names.lock().expect("lock");
        self.for_each_mapping(|_, mapping, _| {
            let name = path_of(mapping);
            *mapped.entry(mapping.inode).or_default() |= is_selected(mapping, selection);
            names.insert(name.into_owned());
        });
        let reason = reason.to_owned();
        let _ = self.ended.set(Ended { after: self.started.elapsed(), reason });
    }

    /// Whether a file may not become managed, because a process other than `taker` (and those that take it over
    /// together with that) has it mapped from the kernel, or `taker` has in a way that cannot be taken over.
    pub(crate) fn bars(&self, inode: u64, name: &str, taker: Option<u32>) -> bool {
        let mut mapped = self.mapped.lock().expect("lock");
        if !mapped.contains_key(&inode) {
            // By another inode, it is nobody's that could be taken over.
            let mut names = self.names.lock().expect("lock");
            let bars = names.contains(name)
                && self.has_mapping(|mapping| path_of(mapping) == name && mapping.inode != inode);
            if !bars {
                names.remove(name);
            }
            return bars;
        }
        let takers = self.takers.lock().expect("lock");
        let bars = match taker.and_then(|taker| takers.get(&taker)) {
            Some(taker) => taker.barred.contains(&inode),
            None => self.has_mapping(|mapping| mapping.inode == inode),
        };
        if !bars {
            mapped.remove(&inode);
        }
        bars
    }

    /// Whether a process that stands by has such a mapping.
    fn has_mapping(&self, is_such: impl Fn(&Mapping<'_>) -> bool) -> bool {
        let mut found = false;
        self.for_each_mapping(|_, mapping, _| found |= is_such(mapping));
        found
    }

    /// Whether a file had such mappings when it ended, and none was found to be gone since.
    pub(crate) fn was_mapped(&self, inode: u64) -> bool {
        self.mapped.lock().expect("lock").contains_key(&inode)
    }

    /// Whether a process has a mapping of such a file that was made while this held, and may be taken
    /// over.
    pub(crate) fn has_mapped(&self, pid: u32, inode: u64) -> bool {
        if self.mapped.lock().expect("lock").get(&inode) != Some(&true) {
            return false;
        }
        let mut found = false;
        for_each_marked(pid, |mapping, _| found |= mapping.inode == inode);
        found
    }

    /// Calls `f` for every mapping that processes which stand by have made meanwhile.
    fn for_each_mapping(&self, mut f: impl FnMut(u32, &Mapping<'_>, &Detail<'_>)) {
        for (pid, _) in standing_by(self.board_inode()) {
            for_each_marked(pid, |mapping, detail| f(pid, mapping, detail));
        }
    }
}

/// Processes that seem to stand by, for what hangs on no single one: the kernel is asked one question of
/// each, where [`standing_by`] lists all that it has mapped.
fn seem_to_stand_by(board_inode: u64) -> impl Iterator<Item = u32> {
    let me = std::process::id();
    process::all().filter(move |&pid| {
        let mut has_mapped = false;
        let _ = process::for_each_shared_mapping(pid, 0, |mapping| {
            has_mapped = mapping.inode == board_inode;
            !has_mapped
        });
        has_mapped && pid != me
    })
}

/// Processes that stand by: they have mapped the page of this inode. And where it ends in them.
pub(crate) fn standing_by(board_inode: u64) -> impl Iterator<Item = (u32, u64)> {
    let me = std::process::id();
    process::all().filter(move |pid| *pid != me).filter_map(move |pid| {
        let mut page_end = None;
        let _ = process::for_each_mapping(pid, |mapping| {
            if mapping.inode == board_inode && is_memfd(mapping.path) {
                page_end = Some(mapping.end);
            }
            page_end.is_none()
        });
        Some((pid, page_end?))
    })
}

/// Calls `f` for every mapping of a file that a process made while it stood by: it has marked them.
fn for_each_marked(pid: u32, mut f: impl FnMut(&Mapping<'_>, &Detail<'_>)) {
    let _ = process::for_each_detailed_mapping(pid, |mapping, detail| {
        if is_of_file(&mapping) && detail.has("nr") {
            f(&mapping, &detail);
        }
        true
    });
}

pub(crate) fn path_of<'a>(mapping: &Mapping<'a>) -> std::borrow::Cow<'a, str> {
    String::from_utf8_lossy(mapping.path)
}

/// Whether its file is one that is managed, by the name that it has, or had.
fn is_selected(mapping: &Mapping<'_>, selection: &Selection) -> bool {
    selection.matches(&String::from_utf8_lossy(mapping.name()))
}

/// A memfd's path begins like that of a file that has a place in the file system.
fn is_memfd(path: &[u8]) -> bool {
    path.starts_with(b"/memfd:")
}

pub(crate) fn is_files(path: &[u8]) -> bool {
    path.starts_with(b"/") && !is_memfd(path)
}

pub(crate) fn is_of_file(mapping: &Mapping<'_>) -> bool {
    mapping.inode != 0 && is_files(mapping.path)
}
