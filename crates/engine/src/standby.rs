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
//! from the kernel, but for the one process that is having its mappings taken over in that moment.
//! Such processes are known by the page that they have mapped to see whether the standby holds, and
//! such mappings by MAP_NORESERVE, which changes nothing for what has no private copies and shows in
//! `/proc/PID/smaps`. Before the first file becomes managed, all processes are searched for them; one
//! that is made later is found by who makes it, since it looks for the end of the standby after that.
//! What was stored by them is in the kernel's pages, from where we read it; and until none is left by
//! which more could be, nobody sees ours.

mod ceded;
pub(crate) mod headroom;
pub(crate) mod interject;
mod pins;
mod reach;
mod takeover;
mod verdict;

use crate::live::shortage::is_shortage;
use crate::manager::board::Board;
use crate::manager::selection::Selection;
use crate::port::FileNo;
use crate::standby::headroom::Room;
use crate::standby::reach::{reach_bytes, read_ahead_kib};
use crate::standby::verdict::{Judge, Programs, Sign, Verdict, WINDOW_PAGES};
use pagekeeper_sys::Errno;
use pagekeeper_sys::cgroup::{Counts, Usage};
use pagekeeper_sys::counters::{DeviceIo, largest_read_ahead_kib};
use pagekeeper_sys::file::{self, FileId};
use pagekeeper_sys::process::{self, CpuClock, CpuTimes, Detail, Mapping, ReadBytes};
use pagekeeper_sys::shared::{ReadOnlyMap, wake_futex};
use pagekeeper_wire as wire;
use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How often the kernel's counts are looked at while it reads pages again that it had evicted.
pub(crate) const EVERY: Duration = Duration::from_millis(10);
/// And at least while it does not: each look makes it add up what all processors counted.
const QUIET_EVERY_MAX: Duration = Duration::from_millis(40);
/// And while so much memory is free that it cannot be full before the next look, so that a program that
/// never fills it is hardly looked at.
const FREE_EVERY_MAX: Duration = Duration::from_millis(100);
/// Memory is filled no faster than storage of today, or a copy by one processor.
const FILL_BYTES_PER_MS_MAX: u64 = 4 << 20;
/// A cgroup is full from this part of its limit below that on: the kernel charges in batches.
const FULL_PART: u64 = 16;
/// Programs are looked at for this part of a processor's time at most.
const LOOKS_PART: u32 = 64;
/// Where programs have so many eighths of the kernel's cache mapped, it reads in order, and not around single
/// pages: around each fault it maps sixteen, half of a window that is not set to more.
const MAPPED_EIGHTHS: u64 = 5;
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
}

/// How a standby ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) after: Duration,
    pub(crate) reason: String,
}

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

/// A mapping shows the kernel's pages of a file that is managed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StaysBehind;

/// A process whose mappings are being taken over.
#[derive(Debug)]
struct Taker {
    begun: Instant,
    /// Its mappings that can be, the largest last.
    mappings: Vec<(Candidate, Advice)>,
    /// The one whose turn it is.
    current: Option<(Candidate, Advice)>,
    /// Their files, and whether they may be written to by this descriptor. Opened before any of them is
    /// taken over, so that all of a file's mappings can be or none is.
    opened: HashMap<(FileId, bool), Arc<OwnedFd>>,
    /// Inodes of files that it, or another process, has mapped in a way that cannot be taken over now.
    barred: HashSet<u64>,
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
    fn new() -> Taker {
        Taker {
            begun: Instant::now(),
            mappings: Vec::new(),
            current: None,
            opened: HashMap::new(),
            barred: HashSet::new(),
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

    /// Ends it when memory gets short: looks at the kernel's counts until then, or until `stop`.
    pub(crate) fn watch(
        &self,
        frames: u32,
        selection: &Selection,
        stop: impl Fn() -> bool,
        end: impl FnOnce(Sign),
    ) {
        let bounds = &self.room.bounds;
        // A look at every program, and perhaps every mount, which a run that reads nothing again has no use
        // for.
        let largest_window_pages = LazyCell::new(|| {
            let programs = seem_to_stand_by(self.board_inode());
            // Of mounts that they use nothing of, one may read far more ahead (a loop device, NFS): no loop
            // would be known as one.
            let own = read_ahead_kib(programs, selection).or_else(largest_read_ahead_kib);
            let window_bytes = u64::from(own.unwrap_or(0)) << 10;
            (window_bytes / wire::PAGE_BYTES).max(WINDOW_PAGES)
        });
        let mut looks = Looks { not_before: self.started };
        let mut seen = Seen { disks: DeviceIo::of_all().unwrap_or_default(), ..Seen::default() };
        let mut judge = Judge::new(frames);
        let (mut level, mut refaults) = (None, None);
        let mut pause = EVERY.saturating_sub(self.started.elapsed());
        while self.holds() && !stop() {
            std::thread::park_timeout(pause);
            // What was evicted before this program began, such as libraries, is no sign.
            if refaults.is_none()
                && let Ok(usage) = bounds.fullest()
                && let Some(left_bytes) = bytes_until_full(usage)
            {
                pause = pause_while_free(left_bytes);
                continue;
            }
            let Ok(counts) = bounds.tightest() else {
                return end(Sign::Unreadable);
            };
            let Some(Counts { usage, cache_bytes, mapped_bytes, pressure: now, .. }) = counts
            else {
                // Nothing bounds it any more.
                (judge, refaults) = (Judge::new(frames), None);
                continue;
            };
            if level.replace(usage.level).is_some_and(|before| before != usage.level) {
                judge = Judge::new(frames);
            }
            let is_quiet = refaults.replace(now.refaults) == Some(now.refaults);
            pause = if is_quiet { pause_while_quiet(pause) } else { EVERY };
            seen.refaults.get_or_insert(now.refaults);
            let programs = || {
                looks.pay(|| self.look_at_programs(selection, now.refaults, &mut seen)).flatten()
            };
            // What is read around single pages and never touched is not mapped either.
            let is_touched = mapped_bytes * 8 >= cache_bytes * MAPPED_EIGHTHS;
            let window_pages = || if is_touched { WINDOW_PAGES } else { *largest_window_pages };
            let at = self.started.elapsed();
            if let Verdict::Short(sign) = judge.look(at, now, window_pages, programs) {
                return end(sign);
            }
        }
    }

    /// So many pages of files were read again by now; `seen` is what there was when it was looked last. None: there is
    /// no program.
    fn look_at_programs(
        &self,
        selection: &Selection,
        refaults: u64,
        seen: &mut Seen,
    ) -> Option<Programs> {
        let pids: Vec<u32> = seem_to_stand_by(self.board_inode()).collect();
        if pids.is_empty() {
            return None;
        }
        let (mut own, mut busy) = (Duration::ZERO, Duration::ZERO);
        for times in pids.iter().filter_map(|pid| CpuTimes::of(*pid).ok()) {
            // A shell's commands that have ended are among its children.
            let user = times.user + times.children_user;
            own += user;
            busy += user + times.system + times.children_system;
        }
        let mut now = Seen {
            disks: DeviceIo::of_all().unwrap_or_default(),
            refaults: Some(refaults),
            ..Seen::default()
        };
        for read in pids.iter().filter_map(|pid| ReadBytes::of(*pid).ok()) {
            now.read.by_calls += read.by_calls;
            now.read.from_storage += read.from_storage;
        }
        let before = std::mem::replace(seen, now);
        let pages = |now: u64, before: u64| now.saturating_sub(before) / wire::PAGE_BYTES;
        Some(Programs {
            reach_pages: reach_bytes(pids.into_iter(), selection) / wire::PAGE_BYTES,
            lifetime: self.started.elapsed(),
            own,
            busy,
            read_pages: pages(now.disks.read_bytes, before.disks.read_bytes),
            read_requests: now.disks.reads.saturating_sub(before.disks.reads),
            own_read_pages: pages(now.read.from_storage, before.read.from_storage),
            called_pages: pages(now.read.by_calls, before.read.by_calls),
            reread_pages: refaults.saturating_sub(before.refaults.unwrap_or(refaults)),
        })
    }

    /// Whether a file may not become managed, because a process other than `taker` has it mapped from
    /// the kernel, or `taker` has in a way that cannot be taken over.
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

    /// Address and bytes of a process's next mapping that can be taken over; if it `begins`, they are
    /// looked for, after [`took`](Self::took). The largest comes first: if there is room for that, there is
    /// for the others. None if there are no more.
    pub(crate) fn next(&self, pid: u32, begins: bool, selection: &Selection) -> Option<(u64, u64)> {
        if begins {
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
            let can_be = whose == pid
                && can_be_taken(mapping, detail)
                && is_selected(mapping, selection)
                && !(mapping.write && *has_pins);
            if can_be {
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
            match taker.barred.contains(&mapping.id.ino) {
                true => taker.left.push(mapping.path),
                false => taker.mappings.push((mapping, advice)),
            }
        }
        // A file's one after the other, so that few files wait for others' turn.
        let mut largest = HashMap::new();
        for (mapping, _) in &taker.mappings {
            let bytes = largest.entry(mapping.id).or_insert(0);
            *bytes = mapping.bytes.max(*bytes);
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

    /// The mapping whose turn it is cannot be taken over, and the file stays the kernel's: its name. Or
    /// that is not possible any more, because the file is managed.
    pub(crate) fn misses(&self, pid: u32) -> Option<Result<String, StaysBehind>> {
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
        Some(Ok(mapping.path))
    }

    /// A file becomes managed for a process that has its mappings taken over.
    pub(crate) fn takes(&self, pid: u32, no: FileNo) {
        if let Some(taker) = self.takers.lock().expect("lock").get_mut(&pid) {
            taker.files.push(no);
        }
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

    /// Calls `f` for every mapping that processes which stand by have made meanwhile.
    fn for_each_mapping(&self, mut f: impl FnMut(u32, &Mapping<'_>, &Detail<'_>)) {
        for (pid, _) in standing_by(self.board_inode()) {
            for_each_marked(pid, |mapping, detail| f(pid, mapping, detail));
        }
    }
}

/// What had been read when programs were looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// By disks.
    disks: DeviceIo,
    /// By programs.
    read: ReadBytes,
    /// Pages that had been evicted before; none: nothing was looked at.
    refaults: Option<u64>,
}

/// Looks at programs, which take longer the more processes the machine has: each is paid for by the time
/// until the next.
#[derive(Debug)]
struct Looks {
    not_before: Instant,
}

impl Looks {
    fn pay<T>(&mut self, look: impl FnOnce() -> T) -> Option<T> {
        (Instant::now() >= self.not_before).then(|| {
            let clock = CpuClock::of_thread();
            let used_ns = || clock.used_ns().unwrap_or(0);
            let before_ns = used_ns();
            let seen = look();
            let cost = Duration::from_nanos(used_ns().saturating_sub(before_ns));
            self.not_before = Instant::now() + LOOKS_PART * cost;
            seen
        })
    }
}

/// What there is until a cgroup is full; none if it is.
fn bytes_until_full(fullest: Option<Usage>) -> Option<u64> {
    let Some(usage) = fullest else { return Some(u64::MAX) };
    let left_bytes = usage.free_bytes().saturating_sub(usage.limit_bytes / FULL_PART);
    (left_bytes > 0).then_some(left_bytes)
}

/// How long not to look, with so much memory free.
pub(crate) fn pause_while_free(free_bytes: u64) -> Duration {
    Duration::from_millis(free_bytes / FILL_BYTES_PER_MS_MAX).clamp(EVERY, FREE_EVERY_MAX)
}

/// How long not to look after a look so long after the one before it, between which nothing was read
/// again.
fn pause_while_quiet(pause: Duration) -> Duration {
    (2 * pause).clamp(EVERY, QUIET_EVERY_MAX)
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

impl Candidate {
    /// Opens its file, as its own descriptor was: by its name or, where another has that by now, or did in the
    /// process's file systems, as what is mapped there (which the kernel may not permit). That it is the mapped
    /// one proves that the process may read it, or write to it.
    fn open(&self, pid: u32) -> Option<OwnedFd> {
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

    fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes
    }

    /// Whether the process stores to the file by it.
    fn may_store(&self) -> bool {
        self.shared && self.protection & libc::PROT_WRITE as u64 != 0
    }

    /// Whether some of it is in its place still, or nobody can tell.
    fn is_there(&self, pid: u32) -> bool {
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
    fn is_shown_whole(&self, pid: u32) -> Result<bool, Errno> {
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

    fn of(mapping: &Mapping<'_>) -> Candidate {
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
    let path = path_of(mapping);
    selection.matches(path.strip_suffix(" (deleted)").unwrap_or(&path))
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

/// Whether memory of ours in its place would be the same to the program: it has no private copies of pages, and
/// makes none meanwhile, it is not locked or sealed, and children inherit it.
fn can_be_taken(mapping: &Mapping<'_>, detail: &Detail<'_>) -> bool {
    let is_special = ["lo", "sl", "dc", "wf", "um"].iter().any(|flag| detail.has(flag));
    let has_copies = detail.anonymous_bytes != 0;
    let copies = mapping.write && !mapping.shared;
    !(copies || mapping.execute || is_special || has_copies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_sys::shared::SharedMap;

    #[test]
    fn a_look_is_paid_for_before_the_next() {
        let mut looks = Looks { not_before: Instant::now() };
        let took_ns = 20_000_000;
        let begun = Instant::now();
        let clock = CpuClock::of_thread();
        let before_ns = clock.used_ns().unwrap();
        assert_eq!(looks.pay(|| while clock.used_ns().unwrap() < before_ns + took_ns {}), Some(()));
        assert!(looks.not_before - begun >= LOOKS_PART * Duration::from_nanos(took_ns));
        assert_eq!(looks.pay(|| panic!("a second look")), None::<()>);
        looks.not_before = Instant::now();
        assert_eq!(looks.pay(|| 1), Some(1));
    }

    #[test]
    fn looks_come_seldom_while_nothing_is_read_again() {
        let pauses = std::iter::successors(Some(EVERY), |pause| Some(pause_while_quiet(*pause)));
        let pauses: Vec<_> = pauses.take(5).map(|pause| pause.as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 40, 40]);
        // A look while much memory was free was long ago.
        assert_eq!(pause_while_quiet(FREE_EVERY_MAX), QUIET_EVERY_MAX);
    }

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
