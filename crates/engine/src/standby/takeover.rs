//! The end of a standby: the mappings that processes made meanwhile become the manager's.

use crate::live::shortage::is_shortage;
use crate::manager::Manager;
use crate::port::FileNo;
use crate::standby::interject;
use crate::standby::taker::{Fences, StaysBehind};
use crate::standby::verdict::Sign;
use pagekeeper_sys::Errno;
use pagekeeper_sys::file::{self, FileId};
use pagekeeper_wire::{self as wire, Reply};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long whoever wants to write by a mapping waits for others to have theirs taken over.
const TAKING_MAX: Duration = Duration::from_secs(10);

/// So soon after its end programs have had their mappings taken over, but for those that wait for something. Until
/// then, a file that one has mapped and another opens may become managed yet.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);

/// How long everybody is held off a file of which a process has mappings taken over, at most: what is held off
/// may be a write of another file (from a mapping of this one), which that file's turn waits for.
const HELD_OFF_MAX: Duration = Duration::from_millis(500);

/// How long programs are given to make a call after a standby.
const GRACE: Duration = Duration::from_millis(10);

/// Why a file stays the kernel's after a standby.
const STAYS: &str = "programs mapped it before memory was short, in ways that cannot be taken over";

impl Manager {
    /// Whether files are the kernel's for the time being.
    pub(crate) fn stands_by(&self) -> bool {
        self.standby.get().is_some_and(|standby| standby.holds())
    }

    /// Whether programs may be about to have their mappings taken over.
    pub(crate) fn stood_by_just_now(&self) -> bool {
        self.standby.get().is_some_and(|standby| standby.has_ended_within(TAKEN_WITHIN))
    }

    /// Files are managed from now on.
    pub(crate) fn end_standby(&self, reason: &str) {
        if let Some(standby) = self.standby.get().filter(|standby| standby.holds()) {
            let _ = self.room().map(|room| self.make_headroom(room));
            {
                // Nothing becomes managed before all mappings are known.
                let _one = self.activating.lock().expect("lock");
                standby.end(reason, &self.selection);
            }
            self.activate_deferred();
        }
    }

    /// Ends the standby when memory gets short; if a loop is the reason, `looped` is called first. When
    /// it has ended, by whomsoever, `interject` is called with its page's inode if there are programs
    /// that do not see that by themselves.
    pub(crate) fn watch_standby(
        &self,
        looped: impl FnOnce(),
        interject: impl FnOnce(u64) -> Result<(), Errno>,
        stop: impl Fn() -> bool,
    ) {
        let Some(standby) = self.standby.get() else { return };
        let frames = self.engine.lock().brain.frames();
        standby.watch(frames, &self.selection, &stop, |sign| {
            if sign == Sign::Loop {
                looped();
            }
            self.end_standby(sign.reason());
        });
        if standby.holds() {
            // The run has ended, and waits for this thread.
            return;
        }
        std::thread::park_timeout(GRACE);
        if !stop()
            && interject::is_needed(standby.board_inode())
            && let Err(error) = interject(standby.board_inode())
        {
            self.note(format!(
                "programs that make no calls go on with what the kernel has mapped for them: {error}"
            ));
        }
    }

    /// Whether a file may become managed, or why not: [`Standby::bars`](crate::standby::Standby).
    pub(crate) fn may_take(
        &self,
        no: FileNo,
        id: FileId,
        name: &str,
        taker: Option<u32>,
    ) -> Result<(), &'static str> {
        let Some(standby) = self.standby.get() else { return Ok(()) };
        if standby.bars(id.ino, name, taker) {
            return Err(STAYS);
        }
        if let Some(taker) = taker {
            standby.takes(taker, no);
        }
        Ok(())
    }

    /// Whether a process is to have a file's mappings taken over before it shows a descriptor of it.
    pub(crate) fn is_to_take_over_first(&self, pid: u32, fd: BorrowedFd<'_>) -> bool {
        let Some(standby) = self.standby.get() else { return false };
        let Ok(stat) = file::stat(fd) else { return false };
        !standby.holds() && standby.has_mapped(pid, stat.id.ino)
    }

    /// Address and bytes of a process's next mapping to take over; `begins` asks for the first.
    pub(crate) fn next_to_take_over(&self, pid: u32, begins: bool) -> Option<(u64, u64)> {
        let standby = self.standby.get()?;
        self.end_standby("a program that maps files forked");
        if begins {
            self.taken_over(pid);
        }
        let next = standby.next(pid, begins, &self.selection);
        if begins {
            standby.left(pid).iter().for_each(|name| self.note_stays(name));
        }
        if next.is_none() {
            self.taken_over(pid);
        }
        next
    }

    /// A process has had all of its mappings taken over, or is gone.
    pub(crate) fn taken_over(&self, pid: u32) {
        let Some(standby) = self.standby.get() else { return };
        self.let_see(standby.took(pid));
    }

    /// Holds everybody off a file that has just become managed for a process, until that has all its mappings
    /// of it taken over, and those have that take it over together with it.
    pub(crate) fn hold_off_for(&self, taker: u32, no: FileNo) {
        let Some(standby) = self.standby.get() else { return };
        for pid in standby.takers_beside(taker) {
            if let Some(ticket) = self.engine.hold_off(no)
                && !standby.holds_off(pid, no, ticket)
            {
                self.engine.take_fence(no, ticket);
            }
        }
    }

    /// Nobody is held off by a process any more that takes too long.
    pub(crate) fn hold_off_no_longer(&self) {
        if let Some(standby) = self.standby.get() {
            self.let_see(standby.overdue(HELD_OFF_MAX));
        }
    }

    fn let_see(&self, fences: Fences) {
        for (no, ticket) in fences {
            self.engine.take_fence(no, ticket);
        }
    }

    /// A process has room for a mapping that is to be taken over: what to map there.
    ///
    /// # Errors
    /// No descriptor is free.
    pub(crate) fn take_over(
        &self,
        pid: u32,
        start: u64,
        bytes: u64,
    ) -> Result<Option<(FileNo, Reply, OwnedFd)>, Errno> {
        let Some(standby) = self.standby.get() else { return Ok(None) };
        let found = self.with_reserve(|| standby.at(pid, start, bytes))?;
        let found = found.filter(|(mapping, ..)| standby.meets(pid, mapping));
        let Some((mapping, advice, fd)) = found else { return Ok(None) };
        let flags = if mapping.may_write { libc::O_RDWR } else { libc::O_RDONLY };
        let pinned = self.opened_by(fd.as_fd(), flags, Some(pid));
        let Some(no) = pinned.map(|pinned| pinned.no()).filter(|no| self.wait_active(*no)) else {
            return Ok(None);
        };
        let kind = if mapping.shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let prepared = self.map_prepare(no, mapping.offset, bytes, kind, flags);
        // Then it is asked for again.
        let shortage = prepared.as_ref().err().filter(|errno| is_shortage(**errno));
        if let Some(errno) = shortage {
            return Err(*errno);
        }
        standby.is_managed(pid);
        if advice.random {
            self.engine.read_around(no, false);
        }
        let Ok(Some((memfd, memory))) = prepared else { return Ok(None) };
        let advised = [
            (!mapping.shared, wire::INHERIT_PRIVATE),
            (memory == libc::MAP_SHARED, wire::INHERIT_WRITABLE),
            (advice.random, wire::INHERIT_RANDOM),
            (advice.sequential, wire::INHERIT_SEQUENTIAL),
        ];
        let bits: u64 = advised.iter().filter(|(has, _)| *has).map(|(_, bit)| bit).sum();
        let r3 = (u64::from(no) + 1) << 32 | bits | mapping.protection;
        let (r0, r1, r2) = (start, bytes, mapping.offset);
        Ok(Some((no, Reply { r0, r1, r2, r3, ..Reply::default() }, memfd)))
    }

    /// The mapping whose turn it is cannot be taken over. Whether the process has to end for it: it
    /// would see bytes that are not the file's any more.
    pub(crate) fn cannot_take_over(&self, pid: u32) -> bool {
        match self.standby.get().and_then(|standby| standby.misses(pid)) {
            // By others, that take it over together with this one.
            Some(Ok((_, Some(id)))) if self.active_slot(id).is_some() => true,
            Some(Ok((name, _))) => {
                self.note_stays(&name);
                false
            }
            Some(Err(StaysBehind)) => true,
            None => false,
        }
    }

    /// Tells of a file that stays the kernel's, but of one that is too small to be managed at all.
    fn note_stays(&self, name: &str) {
        let is_small = std::fs::metadata(name).is_ok_and(|m| m.len() < self.min_size_bytes());
        if !is_small {
            self.note(format!("{name} stays the kernel's: {STAYS}"));
        }
    }

    /// Whether a file is to become managed together with mappings of it, which a process made
    /// meanwhile.
    pub(crate) fn is_mapped_meanwhile(&self, id: FileId) -> bool {
        self.standby.get().is_some_and(|standby| standby.was_mapped(id.ino))
    }

    /// Waits until nobody has mappings of a file left that show nothing of ours: who maps it to write to
    /// it makes pages that only we have, and what a call writes shows there before it does in ours.
    pub(crate) fn wait_for_takers(&self, no: FileNo) {
        let Some(standby) = self.standby.get() else { return };
        let begun = Instant::now();
        while standby.is_taken(no) && begun.elapsed() < TAKING_MAX {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::board::Board;
    use crate::manager::tests::{manager, opened};
    use crate::standby::Standby;
    use crate::standby::candidate::{Advice, Candidate};
    use crate::standby::headroom::Room;
    use crate::standby::meeting::{Attendance, Meetings};
    use crate::standby::taker::Taker;
    use pagekeeper_sys::process;
    use pagekeeper_sys::shared::SharedMap;
    use std::os::unix::fs::OpenOptionsExt;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex, OnceLock};

    const PID: u32 = 7;

    fn with_a_taker() -> Option<Arc<Manager>> {
        taken_over_by(PID)
    }

    /// A manager whose standby has ended, with a process that has its mappings taken over. None, which is
    /// said, where no cgroup can be looked at.
    fn taken_over_by(pid: u32) -> Option<Arc<Manager>> {
        let manager = manager();
        let Some(room) = Room::of_this_process() else {
            eprintln!("skipped: no cgroup of this process's can be looked at");
            return None;
        };
        let standby = Standby {
            board: Arc::new(Board::create([0; 16], &manager.selection).unwrap()),
            room: Arc::new(room),
            started: Instant::now(),
            ended: OnceLock::new(),
            mapped: Mutex::default(),
            names: Mutex::default(),
            takers: Mutex::new([(pid, Taker::new())].into()),
            meetings: Meetings::default(),
        };
        standby.end("a test", &manager.selection);
        assert!(manager.standby.set(standby).is_ok());
        Some(manager)
    }

    /// That whoever reads a file waits for this.
    fn nobody_sees_until(manager: &Manager, no: FileNo, end: impl FnOnce()) {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let read = scope.spawn(|| {
                let read = manager.engine.read(no, 0, 8, |_, _| Ok(()));
                assert!(is_over.load(Ordering::SeqCst), "it was seen before");
                read
            });
            std::thread::sleep(Duration::from_millis(20));
            manager.hold_off_no_longer();
            std::thread::sleep(Duration::from_millis(20));
            is_over.store(true, Ordering::SeqCst);
            end();
            assert_eq!(read.join().unwrap(), Ok(8));
        });
    }

    /// What a call wrote that had begun before showed in mappings that were not taken over yet, and not in
    /// those that were.
    #[test]
    fn nobody_sees_a_file_until_all_its_mappings_are_taken_over() {
        let all_are = |manager: &Manager| manager.taken_over(PID);
        let takes_too_long = |manager: &Manager| {
            let standby = manager.standby.get().unwrap();
            let begun = Instant::now() - HELD_OFF_MAX;
            standby.takers.lock().unwrap().get_mut(&PID).unwrap().begun = begun;
            manager.hold_off_no_longer();
        };
        let begins_anew =
            |manager: &Manager| assert_eq!(manager.next_to_take_over(PID, true), None);
        for end in [all_are, takes_too_long, begins_anew] {
            let Some(manager) = with_a_taker() else { return };
            let file = tempfile::tempfile().unwrap();
            file.set_len(4096).unwrap();
            let no = opened(&manager, &file).unwrap();
            manager.hold_off_for(PID, no);
            nobody_sees_until(&manager, no, || end(&manager));
        }
    }

    /// Whoever is stopped in the midst of it has a mapping left by which it may store to the kernel's page: who
    /// saw ours meanwhile would never find that.
    #[test]
    fn nobody_sees_a_file_while_it_may_be_stored_to_in_the_kernels_pages() {
        let me = std::process::id();
        let Some(manager) = taken_over_by(me) else { return };
        let file = tempfile::tempfile_in(".").unwrap();
        file.set_len(4096).unwrap();
        let map = SharedMap::new(&file, 0, 4096).unwrap();
        let shown = process::mapping_at(me, map.address()).unwrap().unwrap();
        let no = opened(&manager, &file).unwrap();
        {
            let standby = manager.standby.get().unwrap();
            let mut takers = standby.takers.lock().unwrap();
            let taker = takers.get_mut(&me).unwrap();
            taker.current =
                Some((Candidate::of(&shown), Advice { random: false, sequential: false }));
            taker.begun = Instant::now() - HELD_OFF_MAX;
        }
        manager.hold_off_for(me, no);
        nobody_sees_until(&manager, no, || {
            drop(map);
            manager.hold_off_no_longer();
        });
    }

    /// What it reads past the page cache, begun while it waited for others, may be on its way to such a mapping.
    #[test]
    fn a_file_stays_the_kernels_where_one_began_to_read_past_the_page_cache() {
        let me = std::process::id();
        let Some(manager) = taken_over_by(me) else { return };
        let file = tempfile::NamedTempFile::new_in(".").unwrap();
        file.as_file().set_len(4096).unwrap();
        let map = SharedMap::new(file.as_file(), 0, 4096).unwrap();
        let shown = process::mapping_at(me, map.address()).unwrap().unwrap();
        let standby = manager.standby.get().unwrap();
        standby.takers.lock().unwrap().get_mut(&me).unwrap().current =
            Some((Candidate::of(&shown), Advice { random: false, sequential: false }));
        let begin = || standby.begin_together(shown.inode, &[me].into());
        let mut direct = std::fs::OpenOptions::new();
        // A file system may have no such reads.
        if let Ok(_direct) = direct.read(true).custom_flags(libc::O_DIRECT).open(file.path()) {
            assert_eq!(begin(), Attendance::Refused);
        }
        drop(map);
        assert_eq!(begin(), Attendance::Complete, "nothing can be on its way there");
    }

    #[test]
    fn nobody_waits_for_a_process_that_is_gone() {
        let Some(manager) = with_a_taker() else { return };
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let no = opened(&manager, &file).unwrap();
        manager.taken_over(PID);
        manager.hold_off_for(PID, no);
        assert_eq!(manager.engine.read(no, 0, 8, |_, _| Ok(())), Ok(8));
    }
}
