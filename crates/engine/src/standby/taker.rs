//! Processes whose mappings are being taken over, one mapping after the other, and what holds others off
//! meanwhile.

use crate::live::shortage::is_shortage;
use crate::manager::selection::Selection;
use crate::port::FileNo;
use crate::standby::candidate::{Advice, Candidate, can_be_taken};
use crate::standby::meeting::Attendance;
use crate::standby::{Standby, for_each_marked, is_selected, pins, standing_by};
use pagekeeper_sys::file::{self, FileId};
use pagekeeper_sys::shared::wake_futex;
use pagekeeper_sys::{Errno, detour, process};
use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A mapping shows the kernel's pages of a file that is managed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StaysBehind;

/// Name of a file that stays the kernel's, and which it is.
pub(crate) type Stays = (String, Option<FileId>);

/// So soon after the end of the standby those have to come who have a file mapped that others have, too. (Who
/// makes no calls has to be sent for.)
const MEET_WITHIN: Duration = Duration::from_millis(500);

/// A process whose mappings are being taken over.
#[derive(Debug)]
pub(super) struct Taker {
    pub(super) begun: Instant,
    /// Its mappings that can be, the largest last.
    mappings: Vec<(Candidate, Advice)>,
    /// The one whose turn it is.
    pub(super) current: Option<(Candidate, Advice)>,
    /// Their files, and whether they may be written to by this descriptor. Opened before any of them is
    /// taken over, so that all of a file's mappings can be or none is.
    opened: HashMap<(FileId, bool), Arc<OwnedFd>>,
    /// Inodes of files that it, or another process, has mapped in a way that cannot be taken over now.
    pub(super) barred: HashSet<u64>,
    /// Inodes of files that other processes have mapped, too, all in a way that can be.
    shared: HashSet<u64>,
    /// Inodes of files that are managed by now, so that all its mappings of them have to be.
    taken: HashSet<u64>,
    /// Names of such files that it has mapped.
    left: Vec<String>,
    /// What was taken over, or is being.
    replaced: Vec<(Candidate, Arc<OwnedFd>)>,
    /// Files that are managed for it already, though not all mappings of them may be taken over yet.
    files: Vec<FileNo>,
    /// What holds everybody off who wants to see something of them, and their inodes.
    fences: Vec<(u64, (FileNo, u64))>,
}

/// Files, and tickets of fences around them.
pub(crate) type Fences = Vec<(FileNo, u64)>;

impl Taker {
    pub(super) fn new() -> Taker {
        Taker {
            begun: Instant::now(),
            mappings: Vec::new(),
            current: None,
            opened: HashMap::new(),
            barred: HashSet::new(),
            shared: HashSet::new(),
            taken: HashSet::new(),
            left: Vec::new(),
            replaced: Vec::new(),
            files: Vec::new(),
            fences: Vec::new(),
        }
    }

    /// Whether what it stores by a mapping of this file may still go to the kernel's pages.
    fn may_store_to(&self, pid: u32, inode: u64) -> bool {
        let current = self.current.iter().filter(|(mapping, _)| mapping.is_there(pid));
        let mut left = self.mappings.iter().chain(current).map(|(mapping, _)| mapping);
        left.any(|mapping| mapping.id.ino == inode && mapping.may_store())
    }
}

impl Standby {
    /// Address and bytes of a process's next mapping that can be taken over; if it `begins`, they are
    /// looked for, after [`took`](Self::took). The largest comes first: if there is room for that, there is
    /// for the others. None if there are no more.
    pub(crate) fn next(&self, pid: u32, begins: bool, selection: &Selection) -> Option<(u64, u64)> {
        if begins {
            // Who waits for it sees that it is on its way.
            self.takers.lock().expect("lock").insert(pid, Taker::new());
            let taker = self.look_at(pid, selection);
            self.takers.lock().expect("lock").insert(pid, taker);
        }
        let mut takers = self.takers.lock().expect("lock");
        let taker = takers.get_mut(&pid)?;
        taker.current = taker.mappings.pop();
        taker.current.as_ref().map(|(mapping, _)| (mapping.start, mapping.bytes))
    }

    /// Files that a process goes on having from the kernel.
    pub(crate) fn left(&self, pid: u32) -> Vec<String> {
        self.takers.lock().expect("lock").get(&pid).map_or_else(Vec::new, |t| t.left.clone())
    }

    fn look_at(&self, pid: u32, selection: &Selection) -> Taker {
        let mut taker = Taker::new();
        let mut found = Vec::new();
        let has_pins = LazyCell::new(|| pins::may_have(pid));
        self.for_each_mapping(|whose, mapping, detail| {
            if whose != pid && process::share_memory(whose, pid) {
                return;
            }
            let can_be = can_be_taken(mapping, detail) && is_selected(mapping, selection);
            if can_be && whose != pid {
                taker.shared.insert(mapping.inode);
            } else if can_be && !(mapping.write && *has_pins) {
                let advice = Advice { random: detail.has("rr"), sequential: detail.has("sr") };
                let mut candidate = Candidate::of(mapping);
                candidate.may_write = mapping.shared && detail.has("mw");
                found.push((candidate, advice));
            } else {
                taker.barred.insert(mapping.inode);
            }
        });
        for (mapping, _) in &found {
            let key = (mapping.id, mapping.may_write);
            if taker.barred.contains(&mapping.id.ino) || taker.opened.contains_key(&key) {
                continue;
            }
            match mapping.open(pid) {
                Some(fd) => drop(taker.opened.insert(key, Arc::new(fd))),
                None => drop(taker.barred.insert(mapping.id.ino)),
            }
        }
        for (mapping, advice) in found {
            if taker.barred.contains(&mapping.id.ino) {
                self.meetings.refuse(mapping.id.ino);
                taker.left.push(mapping.path);
            } else {
                taker.mappings.push((mapping, advice));
            }
        }
        // A file's one after the other, so that few files wait for others' turn. Those first that wait for
        // other processes, in the same order in each.
        let mut largest = HashMap::new();
        for (mapping, _) in &taker.mappings {
            let is_shared = taker.shared.contains(&mapping.id.ino);
            let bytes = largest.entry(mapping.id).or_insert(0);
            *bytes = if is_shared { u64::MAX } else { mapping.bytes.max(*bytes) };
        }
        taker.mappings.sort_by_key(|(mapping, _)| {
            (largest[&mapping.id], mapping.id.dev, mapping.id.ino, mapping.bytes)
        });
        taker
    }

    /// The mapping of so many bytes at an address, with its file, if it is the one whose turn it is, and
    /// is there still: as several, if parts of it were advised or locked, and whatever the file's name.
    ///
    /// # Errors
    /// No descriptor is free.
    pub(crate) fn at(
        &self,
        pid: u32,
        start: u64,
        bytes: u64,
    ) -> Result<Option<(Candidate, Advice, Arc<OwnedFd>)>, Errno> {
        let current = || {
            let takers = self.takers.lock().expect("lock");
            let taker = takers.get(&pid)?;
            let (mapping, advice) = taker.current.clone()?;
            let file = taker.opened.get(&(mapping.id, mapping.may_write))?.clone();
            Some((mapping, advice, file))
        };
        let at = (start, bytes);
        let Some((mapping, advice, file)) =
            current().filter(|(mapping, ..)| (mapping.start, mapping.bytes) == at)
        else {
            return Ok(None);
        };
        match mapping.is_shown_whole(pid) {
            Err(errno) if is_shortage(errno) => Err(errno),
            is_there => Ok((is_there == Ok(true)).then_some((mapping, advice, file))),
        }
    }

    /// Whether this one, whose turn it is, is taken over: one that other processes have mapped as well, when all
    /// of them are about to take theirs over.
    pub(crate) fn meets(&self, pid: u32, mapping: &Candidate) -> bool {
        let inode = mapping.id.ino;
        let takers = self.takers.lock().expect("lock");
        if !takers.get(&pid).is_some_and(|taker| taker.shared.contains(&inode)) {
            return true;
        }
        drop(takers);
        let ended = self.started + self.ended().map_or(Duration::ZERO, |ended| ended.after);
        self.meetings.meet(inode, pid, ended + MEET_WITHIN, |present| {
            match self.attendance(inode, present) {
                Attendance::Complete => self.begin_together(inode, present),
                not_yet => not_yet,
            }
        })
    }

    /// All that have a file mapped are about to take it over: nobody is, if one of them may have begun what
    /// [pins](pins::may_have) pages that it stores to while it waited.
    pub(super) fn begin_together(&self, inode: u64, present: &HashSet<u32>) -> Attendance {
        let mut takers = self.takers.lock().expect("lock");
        for (pid, taker) in takers.iter_mut().filter(|(pid, _)| present.contains(pid)) {
            taker.begun = Instant::now();
            if taker.may_store_to(*pid, inode) && pins::may_have(*pid) {
                return Attendance::Refused;
            }
        }
        Attendance::Complete
    }

    /// Whether others have a file mapped from the kernel, beside these, and may be expected to come.
    fn attendance(&self, inode: u64, present: &HashSet<u32>) -> Attendance {
        let mut attendance = Attendance::Complete;
        let others = standing_by(self.board_inode()).map(|(pid, _)| pid);
        for pid in others.filter(|pid| !present.contains(pid)) {
            let mut has_mapped = false;
            for_each_marked(pid, |mapping, _| has_mapped |= mapping.inode == inode);
            if !has_mapped || present.iter().any(|other| process::share_memory(pid, *other)) {
                continue;
            }
            let is_coming = self.takers.lock().expect("lock").contains_key(&pid)
                || detour::threads_in_program(pid).next().is_some();
            if !is_coming {
                return Attendance::Waiting;
            }
            attendance = Attendance::Coming;
        }
        attendance
    }

    /// The file of the mapping whose turn it is is managed.
    pub(crate) fn is_managed(&self, pid: u32) {
        if let Some(taker) = self.takers.lock().expect("lock").get_mut(&pid)
            && let Some((mapping, _)) = &taker.current
        {
            taker.taken.insert(mapping.id.ino);
            if let Some(file) = taker.opened.get(&(mapping.id, mapping.may_write)) {
                taker.replaced.push((mapping.clone(), file.clone()));
            }
        }
    }

    /// The mapping whose turn it is cannot be taken over, and the file stays the kernel's: which it is. Or
    /// that is not possible any more, because the file is managed.
    pub(crate) fn misses(&self, pid: u32) -> Option<Result<Stays, StaysBehind>> {
        let mut takers = self.takers.lock().expect("lock");
        let taker = takers.get_mut(&pid)?;
        let (mapping, _) = taker.current.take()?;
        let ino = mapping.id.ino;
        if !mapping.is_there(pid) {
            return None;
        }
        if taker.taken.contains(&ino) {
            return Some(Err(StaysBehind));
        }
        taker.barred.insert(ino);
        taker.mappings.retain(|(mapping, _)| mapping.id.ino != ino);
        self.meetings.refuse(ino);
        // A mapping may show another device than the file has.
        let file = taker.opened.get(&(mapping.id, mapping.may_write));
        let id = file.and_then(|file| file::stat(file).ok()).map(|stat| stat.id);
        Some(Ok((mapping.path, id)))
    }

    /// A file becomes managed for a process that has its mappings taken over.
    pub(crate) fn takes(&self, pid: u32, no: FileNo) {
        let together = self.takers_beside(pid);
        let mut takers = self.takers.lock().expect("lock");
        let takers = takers.iter_mut().filter(|(pid, _)| together.contains(pid));
        takers.for_each(|(_, taker)| taker.files.push(no));
    }

    /// A process that has its mappings taken over, and those that take the file over whose turn it is together
    /// with it.
    pub(crate) fn takers_beside(&self, pid: u32) -> Vec<u32> {
        let takers = self.takers.lock().expect("lock");
        let inode_of = |taker: &Taker| Some(taker.current.as_ref()?.0.id.ino);
        let inode = takers.get(&pid).and_then(inode_of);
        let is_beside = |(other, taker): &(&u32, &Taker)| {
            **other == pid || inode.is_some() && inode_of(taker) == inode
        };
        takers.iter().filter(is_beside).map(|(pid, _)| *pid).collect()
    }

    /// Until all of its mappings of a file are taken over, nobody is to see what the others would show a moment
    /// later, or have shown before: a write that began while the file was the kernel's may still be under way.
    /// False if it is gone.
    pub(crate) fn holds_off(&self, pid: u32, no: FileNo, ticket: u64) -> bool {
        let mut takers = self.takers.lock().expect("lock");
        let Some(taker) = takers.get_mut(&pid) else { return false };
        let inode = taker.current.as_ref().map_or(0, |(mapping, _)| mapping.id.ino);
        taker.fences.push((inode, (no, ticket)));
        true
    }

    /// Fences for processes that have not had their mappings taken over in so long a time: one that is stopped
    /// may never have. But for those of files whose pages of the kernel's it may still store to: who saw ours
    /// meanwhile would go on without these stores, and write what was there before.
    pub(crate) fn overdue(&self, held_off_max: Duration) -> Fences {
        let mut takers = self.takers.lock().expect("lock");
        let mut overdue = Fences::new();
        for (pid, taker) in takers.iter_mut() {
            if taker.fences.is_empty() || taker.begun.elapsed() < held_off_max {
                continue;
            }
            let fences = std::mem::take(&mut taker.fences);
            let (kept, over): (Vec<_>, Vec<_>) =
                fences.into_iter().partition(|(inode, _)| taker.may_store_to(*pid, *inode));
            taker.fences = kept;
            overdue.extend(over.into_iter().map(|(_, fence)| fence));
        }
        overdue
    }

    /// A process has had all of its mappings taken over, or is gone; returns the fences that were for it.
    /// Wakes its threads that wait at an address in one (`futex(2)`): that stands for other memory now, and
    /// whoever is to wake them, by that address, does not find them. They look again.
    #[must_use]
    pub(crate) fn took(&self, pid: u32) -> Fences {
        let Some(taker) = self.takers.lock().expect("lock").remove(&pid) else {
            return Fences::new();
        };
        for address in process::shared_futexes(pid) {
            for (mapping, file) in &taker.replaced {
                if mapping.range().contains(&address) {
                    let _ = wake_futex(file, mapping.offset + (address - mapping.start));
                }
            }
        }
        taker.fences.into_iter().map(|(_, fence)| fence).collect()
    }

    /// Whether a process may still have mappings of a file to be taken over.
    pub(crate) fn is_taken(&self, no: FileNo) -> bool {
        self.takers.lock().expect("lock").values().any(|taker| taker.files.contains(&no))
    }
}
