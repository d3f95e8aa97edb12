//! How files become managed and cease to be: from a descriptor to a slot, and to an open file of
//! the engine.

use super::Manager;
use crate::live::file_systems::FileSystem;
use crate::live::shortage::is_shortage;
use crate::live::store::Store;
use crate::live::{Behind, LiveFile};
use crate::manager::idle::Candidate;
use crate::manager::plain::{self, Trial};
use crate::manager::server::errno_of;
use crate::manager::slots::{HEAP_DEVICE, Identity, Numbered, Slots};
use crate::manager::work::Work;
use crate::port::{FileNo, PAGE_BYTES};
use pagekeeper_sys::Errno;
use pagekeeper_sys::file::{self, FileId};
use pagekeeper_sys::memfd::Memfd;
use pagekeeper_wire as wire;
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

/// How much longer nobody looks for a file's mappings than it took, which is doubled each time that
/// there is one, so often.
const LOOK_EVERY: u32 = 20;
const LOOKS_DOUBLE_MAX: u32 = 8;

/// Why a file is the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// Somebody has it mapped.
    ForNow,
    /// Programs may be told that they need not ask again.
    ForGood,
}

/// A slot that stays its file's for as long as this lives, managed or not.
pub(crate) struct Pinned<'a> {
    manager: &'a Manager,
    no: FileNo,
}

impl Pinned<'_> {
    pub(crate) fn no(&self) -> FileNo {
        self.no
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.manager.slots.lock().expect("lock").unpin(self.no);
    }
}

impl Manager {
    /// A client opened a regular file: its slot, if it may be managed.
    pub(crate) fn opened(&self, fd: BorrowedFd<'_>, open_flags: i32) -> Option<Pinned<'_>> {
        self.opened_by(fd, open_flags, None)
    }

    /// [`opened`](Self::opened) for a process that has a mapping of the file taken over, if `taker`.
    pub(crate) fn opened_by(
        &self,
        fd: BorrowedFd<'_>,
        open_flags: i32,
        taker: Option<u32>,
    ) -> Option<Pinned<'_>> {
        let stat = file::stat(fd).ok()?;
        if !stat.is_regular() {
            return None;
        }
        let known = self.known_slot(stat.id, fd);
        let pinned = match known {
            Some(pinned) => pinned,
            None => {
                let mut name = path_of(fd);
                if stat.links == 0 {
                    // It may have been opened by the name that it had.
                    name.truncate(name.strip_suffix(" (deleted)").unwrap_or(&name).len());
                }
                let is_chosen = self.selection.matches(&name)
                    && (self.selection.is_by_pattern() || !FileSystem::of(fd).is_memory());
                if !is_chosen {
                    return None;
                }
                self.number(stat.id, file::identity(fd), name)?
            }
        };
        let no = pinned.no();
        {
            let mut slots = self.slots.lock().expect("lock");
            slots.hear_of(no);
            let slot = &mut slots.list[no as usize];
            slot.by_path |= open_flags & libc::O_PATH != 0;
            if slot.refused {
                return None;
            }
        }
        if self.wait_active(no) {
            // Somebody outside may have changed it since.
            self.look(no);
            self.allow_writes(no, fd, open_flags);
        } else if stat.version.size_bytes >= self.selection.min_size_bytes.max(1)
            && !self.is_deferred(no)
            && self.activate(no, fd, open_flags, taker, None) == Err(Left::ForGood)
        {
            return None;
        }
        Some(pinned)
    }

    /// The file's slot, a new one if it has none yet; `None` if there are no more.
    fn number(&self, id: FileId, identity: Identity, name: String) -> Option<Pinned<'_>> {
        if self.slots.lock().expect("lock").are_many_kept() {
            self.look_for_plain();
        }
        let take = |no| self.next_incarnation(no);
        let mut looked = false;
        loop {
            let mut slots = self.slots.lock().expect("lock");
            match slots.number(id, identity.clone(), name.clone(), take) {
                Numbered::Is(no) => return Some(Pinned { manager: self, no }),
                Numbered::Took(no) => {
                    drop(slots);
                    self.free_taken(no);
                }
                Numbered::Full if id.dev == HEAP_DEVICE => {
                    drop(slots);
                    self.note(
                        "files and processes have all numbers that there are: what further processes \
                         allocate is left to the kernel",
                    );
                    return None;
                }
                Numbered::Full if looked || slots.exhausted => {
                    slots.exhausted = true;
                    let count = slots.list.len();
                    drop(slots);
                    self.note(format!(
                        "{count} files are in use, and no more can be known at once: files that are \
                         opened for the first time from now on are left to the kernel"
                    ));
                    return None;
                }
                Numbered::Full => {
                    drop(slots);
                    self.look_for_plain();
                    looked = true;
                }
            }
        }
    }

    /// A slot was taken from its file: forgets what is known of that.
    fn free_taken(&self, no: FileNo) {
        self.forget_rights(no);
        self.slots.lock().expect("lock").free.push(no);
    }

    /// Finds out which files that were mapped from the kernel are so no more, and may lose their slots.
    fn look_for_plain(&self) {
        // Nobody maps one meanwhile.
        let _one = self.activating.lock().expect("lock");
        let mapped = plain::Mapped::look();
        let taken = self
            .slots
            .lock()
            .expect("lock")
            .looked(|slot| mapped.has(slot.id, &slot.name), |no| self.next_incarnation(no));
        taken.into_iter().for_each(|no| self.free_taken(no));
    }

    /// Programs that have the slot's file open show it again.
    fn next_incarnation(&self, no: FileNo) {
        if let Some(slots) = self.engine.port().slots() {
            slots.next_incarnation(no);
        }
    }

    fn forget_rights(&self, no: FileNo) {
        for client in self.clients.lock().expect("lock").values_mut() {
            client.forget(no);
        }
    }

    /// The slot of the file behind a descriptor, if it has one. Nobody has a file open that is not
    /// managed: when it is deleted, another is given its inode number, and nothing that is known of
    /// it holds for that one.
    fn known_slot(&self, id: FileId, fd: BorrowedFd<'_>) -> Option<Pinned<'_>> {
        let pinned = |is_file: &dyn Fn(&Slots) -> bool| {
            let mut slots = self.slots.lock().expect("lock");
            let no = if is_file(&slots) { slots.pin(id) } else { None };
            no.map(|no| Pinned { manager: self, no })
        };
        let is_active = |slots: &Slots| {
            slots.known(id, &None).is_some_and(|(no, _)| slots.list[no as usize].active)
        };
        if let Some(active) = pinned(&is_active) {
            return Some(active);
        }
        let known = |identity: &Identity| self.slots.lock().expect("lock").known(id, identity);
        known(&None)?;
        let identity = file::identity(fd);
        let is_same = |slots: &Slots| slots.known(id, &identity).is_some_and(|(_, same)| same);
        if let Some(same) = pinned(&is_same) {
            return Some(same);
        }
        let _one = self.activating.lock().expect("lock");
        if let Some(same) = pinned(&is_same) {
            return Some(same);
        }
        let (no, _) = known(&identity)?;
        // It was never managed: there is nothing of it to wait for but who has just asked for it.
        self.close_slot(no);
        let mut slots = self.slots.lock().expect("lock");
        match slots.list[no as usize].pins {
            0 => slots.free.push(no),
            _ => slots.unused.push(no),
        }
        None
    }

    /// Whether a slot's file is managed; if that begins just now, returns when it has begun.
    pub(crate) fn wait_active(&self, no: FileNo) -> bool {
        let _begun = self.activating.lock().expect("lock");
        self.slots.lock().expect("lock").list.get(no as usize).is_some_and(|s| s.active)
    }

    /// Whether there is a slot of this number.
    pub(crate) fn has_slot(&self, no: FileNo) -> bool {
        (no as usize) < self.slots.lock().expect("lock").list.len()
    }

    /// The slot of a file that is managed.
    pub(crate) fn active_slot(&self, id: FileId) -> Option<FileNo> {
        let slots = self.slots.lock().expect("lock");
        slots.by_id.get(&id).copied().filter(|no| slots.list[*no as usize].active)
    }

    /// The slot, if a descriptor is of its file.
    pub(crate) fn slot_of_file(&self, no: FileNo, fd: BorrowedFd<'_>) -> Option<Pinned<'_>> {
        let id = file::stat(fd).ok()?.id;
        let mut slots = self.slots.lock().expect("lock");
        (slots.by_id.get(&id) == Some(&no)).then(|| slots.pin(id))??;
        Some(Pinned { manager: self, no })
    }

    /// Which of the files that have a slot one after the other has it.
    pub(crate) fn incarnation(&self, no: FileNo) -> u32 {
        self.engine.port().slots().map_or(0, |slots| slots.incarnation(no))
    }

    pub(crate) fn min_size_bytes(&self) -> u64 {
        self.selection.min_size_bytes
    }

    /// A mapping of the file is left to the kernel, and so the file is as long as there is one. False if
    /// it is managed by now.
    pub(crate) fn leave_plain(&self, no: FileNo) -> bool {
        let _one = self.activating.lock().expect("lock");
        let mut slots = self.slots.lock().expect("lock");
        let Some(slot) = slots.list.get_mut(no as usize) else { return true };
        slot.plain |= !slot.active;
        slot.plain
    }

    /// Passes a file through for good, and says why.
    fn refuse(&self, no: FileNo, reason: impl Into<String>) {
        let mut slots = self.slots.lock().expect("lock");
        slots.list[no as usize].refused = true;
        slots.pass(no, reason.into());
    }

    /// There is no descriptor to manage a file with: that is tried again.
    fn lacks_descriptors(&self, no: FileNo) -> Left {
        self.want_descriptors();
        self.note("files were left to the kernel for the time being: no descriptor was free");
        // While the kernel has it, somebody may map it from there.
        self.slots.lock().expect("lock").list[no as usize].plain = true;
        Left::ForNow
    }

    /// Whether a file is left to the kernel until the standby ends, whoever opens it.
    fn is_deferred(&self, no: FileNo) -> bool {
        let mut slots = self.slots.lock().expect("lock");
        let deferred = self.stands_by();
        slots.list[no as usize].deferred |= deferred;
        deferred
    }

    /// Starts to manage what was left to the kernel while the manager stood by, but for what is mapped
    /// from there still.
    pub(crate) fn activate_deferred(&self) {
        let deferred: Vec<(FileNo, String)> = {
            let mut slots = self.slots.lock().expect("lock");
            let list = slots.list.iter_mut().enumerate();
            list.filter_map(|(no, slot)| {
                let begins = slot.deferred && !self.is_mapped_meanwhile(slot.id);
                slot.deferred &= !begins;
                begins.then(|| (no as FileNo, slot.name.clone()))
            })
            .collect()
        };
        for (no, name) in deferred {
            // Whatever has the name now: a FIFO would be waited at, and a device begin something.
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let fd = self.with_reserve(|| rustix::fs::open(&name, flags, Mode::empty())).ok();
            let found = fd.and_then(|fd| self.slot_of_file(no, fd.as_fd()).map(|pin| (fd, pin)));
            let found = found.and_then(|(fd, pin)| {
                let (path, flags) =
                    (format!("/proc/self/fd/{}", fd.as_raw_fd()), OFlags::RDONLY | OFlags::CLOEXEC);
                let opened = self.with_reserve(|| rustix::fs::open(&path, flags, Mode::empty()));
                Some((opened.ok()?, pin))
            });
            match found {
                Some((fd, _pinned)) => {
                    let _ = self.activate(no, fd.as_fd(), libc::O_RDONLY, None, None);
                }
                None => self.refuse(no, "it lost its name before memory was short"),
            }
        }
    }

    /// Starts to manage a file. With a trial, a mapping of it from the kernel goes if this succeeds.
    pub(crate) fn activate(
        &self,
        no: FileNo,
        fd: BorrowedFd<'_>,
        open_flags: i32,
        taker: Option<u32>,
        trial: Option<&Trial>,
    ) -> Result<(), Left> {
        self.end_standby("a file was mapped that may be written to");
        let path = path_of(fd);
        // To its end before anybody else uses the file: two programs may open it at once.
        let _one = self.activating.lock().expect("lock");
        let (name, id) = {
            let mut slots = self.slots.lock().expect("lock");
            let closed = slots.closed;
            let slot = &mut slots.list[no as usize];
            if slot.active {
                return Ok(());
            }
            // It may have been renamed since it was heard of first.
            if !path.ends_with(" (deleted)") && path != "?" {
                slot.name = path;
            }
            if slot.refused || closed {
                return Err(Left::ForGood);
            }
            (slot.name.clone(), slot.id)
        };
        if !self.is_nobodys_mapping(no, trial) {
            return Err(Left::ForNow);
        }
        let refuse = |reason: String| {
            self.refuse(no, reason);
            Left::ForGood
        };
        if !self.reserve.refill() {
            return Err(self.lacks_descriptors(no));
        }
        if is_shared_index(&name) {
            return Err(refuse(
                "it is SQLite's index of a log, which locks of single bytes share".to_owned(),
            ));
        }
        if let Err(reason) = self.may_take(no, id, &name, taker) {
            // Who only has it open sees by its slot when it is managed after all; who maps it would not.
            let waits = taker.is_none() && trial.is_none() && self.stood_by_just_now();
            return Err(if waits { Left::ForNow } else { refuse(reason.to_owned()) });
        }
        self.call_crew().map_err(|e| refuse(format!("no thread can be started: {e}")))?;
        // The reserve is whole, and there may be no other: it is not for this.
        let fails = |what: &str, errno: Errno| match is_shortage(errno) {
            true => self.lacks_descriptors(no),
            false => refuse(format!("{what}: {errno}")),
        };
        let store = Store::open(fd).map_err(|e| fails("cannot be opened again for reading", e))?;
        // Who made it for others to read only (O_CREAT, 0444) may map it to write all the same.
        if open_flags & libc::O_ACCMODE == libc::O_RDWR {
            store.allow_writes(fd).map_err(|e| fails("cannot be opened again for writing", e))?;
        }
        if let Some(registry) = &self.registry
            && crate::manager::registry::claim(registry, id).is_err()
        {
            return Err(refuse("another pagekeeper run manages it".to_owned()));
        }
        // From here on another run may not have it, unless it stays the kernel's here, too.
        let fails = |what: &str, errno: Errno| {
            self.unregister(id);
            fails(what, errno)
        };
        if self.standby.get().is_some() {
            store.expect_cached();
        }
        // Before its length is looked at: who finds no mark afterwards has written to it before that.
        if let Some(board) = self.board.get() {
            board.mark(id);
        }
        let version = store.version().map_err(|e| fails("cannot be looked at", errno_of(e)))?;
        let pages = version.size_bytes.div_ceil(PAGE_BYTES);
        let memfd = Memfd::create(&format!("pagekeeper:{name}"), pages * PAGE_BYTES, false)
            .map_err(|e| fails("no memory file", e))?;
        // A client that is handed a read-only descriptor must not make a writable one of it.
        let _ = memfd.set_mode(0o400);
        let memfd_ino = file::stat(&memfd).map_err(|e| fails("no memory file", e))?.id.ino;
        let sparse = store.sparse();
        let live = Arc::new(LiveFile { memfd, memfd_ino, behind: Behind::File(store) });
        {
            let mut slots = self.slots.lock().expect("lock");
            slots.list[no as usize].active = true;
            slots.active += 1;
            slots.pass_no_more(no);
            self.engine.port().put_file(no, live);
            self.engine.open_file(no, &name, version, sparse);
            self.engine.read_around(no, true);
        }
        if let Some(taker) = taker {
            self.hold_off_for(taker, no);
        }
        self.watch_outside(no, fd);
        self.set_slot_flags(no, wire::SLOT_ACTIVE);
        self.note_if_deleted(no);
        self.wait_for_raw_calls();
        if let Some(store) = self.engine.port().file(no).as_ref().and_then(|live| live.store()) {
            store.await_writes();
        }
        self.engine.refresh_size(no, true);
        self.allow_writes(no, fd, open_flags);
        if !self.engine.sees_all() {
            let delayed = self.delays_writes.get().map_or(0, |()| wire::SLOT_DELAYED);
            self.set_slot_flags(no, wire::SLOT_DIRECT | delayed);
        }
        if self.has_many_files() {
            self.workers.push(Work::LetIdleGo);
        }
        Ok(())
    }

    /// Whether nobody has the slot's file mapped from the kernel, but for a trial. Called with `activating`
    /// held: who maps it asks before.
    fn is_nobodys_mapping(&self, no: FileNo, trial: Option<&Trial>) -> bool {
        let begun = Instant::now();
        let (id, name) = {
            let slots = self.slots.lock().expect("lock");
            let slot = &slots.list[no as usize];
            if !slot.plain {
                return true;
            }
            if slot.look_after.is_some_and(|after| begun < after) {
                return false;
            }
            (slot.id, slot.name.clone())
        };
        let is_mapped = plain::is_mapped(id, &name, trial);
        let mut slots = self.slots.lock().expect("lock");
        let slot = &mut slots.list[no as usize];
        slot.plain = is_mapped;
        if is_mapped {
            // A program may open a file all the time that it never unmaps.
            let pause = begun.elapsed() * LOOK_EVERY * (1 << slot.looks.min(LOOKS_DOUBLE_MAX));
            slot.look_after = Some(Instant::now() + pause);
            slot.looks += 1;
            let reason = "it was mapped when it was smaller than files that are managed";
            slots.pass(no, reason.to_owned());
        }
        !is_mapped
    }

    /// The run is over and everything is written back: other runs may manage its files from now on,
    /// while this one's descriptors of them are still open. To be called before the first is closed.
    pub(crate) fn release_files(&self) {
        let _one = self.activating.lock().expect("lock");
        self.slots.lock().expect("lock").closed = true;
        // A forked child may have inherited a descriptor, and not have used it yet.
        let port = self.engine.port();
        if let Some(slots) = port.slots() {
            port.file_numbers().into_iter().for_each(|no| slots.clear_flags(no));
        }
        if let Some(registry) = &self.registry {
            crate::manager::registry::release_all(registry);
        }
    }

    /// A slot's file is not managed any more, and whoever opens it again shows a new one. Which
    /// file it was.
    pub(crate) fn close_slot(&self, no: FileNo) -> FileId {
        let mut slots = self.slots.lock().expect("lock");
        let slot = &mut slots.list[no as usize];
        slot.deferred = false;
        let was_active = std::mem::take(&mut slot.active);
        let id = slot.id;
        slots.active -= usize::from(was_active);
        slots.by_id.remove(&id);
        self.next_incarnation(no);
        drop(slots);
        self.forget_rights(no);
        id
    }

    /// A closed slot is to be another file's.
    pub(crate) fn slot_is_unused(&self, no: FileNo) {
        self.slots.lock().expect("lock").unused.push(no);
    }

    /// Frees slots that no mapping shows and no message speaks of any more. In recordings, numbers
    /// stand for one file.
    pub(crate) fn free_slots(&self) {
        if self.slots.lock().expect("lock").unused.is_empty() || self.engine.sees_all() {
            return;
        }
        let Ok(_quiet) = self.using.try_write() else { return };
        let unused = std::mem::take(&mut self.slots.lock().expect("lock").unused);
        let (free, unused): (Vec<FileNo>, Vec<FileNo>) =
            unused.into_iter().partition(|no| self.engine.is_gone(*no));
        let mut slots = self.slots.lock().expect("lock");
        slots.unused.extend(unused);
        slots.free.extend(free);
    }

    /// How many files are managed.
    pub(crate) fn files_managed(&self) -> usize {
        self.slots.lock().expect("lock").active
    }

    /// The managed files, and when each was last used. Programs that have a file mapped use it
    /// without a word: what was seen of that counts as heard now.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        let mut slots = self.slots.lock().expect("lock");
        let active: Vec<FileNo> =
            (0..slots.list.len() as FileNo).filter(|no| slots.list[*no as usize].active).collect();
        let look = |no: FileNo| {
            let seen = self.engine.uses_seen(no);
            if std::mem::replace(&mut slots.list[no as usize].uses_seen, seen) != seen {
                slots.hear_of(no);
            }
            Candidate { no, used: slots.list[no as usize].used }
        };
        active.into_iter().map(look).collect()
    }

    pub(crate) fn has_path_holders(&self, no: FileNo) -> bool {
        let slots = self.slots.lock().expect("lock");
        slots.forgot_paths || slots.list[no as usize].by_path
    }

    pub(crate) fn unregister(&self, id: FileId) {
        if let Some(registry) = &self.registry {
            crate::manager::registry::release(registry, id);
        }
    }

    pub(crate) fn allow_writes(&self, no: FileNo, fd: BorrowedFd<'_>, open_flags: i32) {
        let writes = open_flags & libc::O_ACCMODE != libc::O_RDONLY;
        let Some(live) = self.engine.port().file(no) else { return };
        let Some(store) = live.store() else { return };
        if writes && !store.writable() {
            match self.with_reserve(|| store.allow_writes(fd)) {
                Ok(()) => self.tell_witness(no, true),
                Err(e) => self.note(format!(
                    "{}: cannot be opened again for writing ({e}); it may be read, but not mapped \
                     shared and writable",
                    path_of(fd)
                )),
            }
        }
    }

    /// A slot for a heap, which no descriptor of a program leads to.
    pub(crate) fn number_heap(&self, name: &str, ino: u64) -> Option<FileNo> {
        let pinned = self.number(FileId { dev: HEAP_DEVICE, ino }, None, name.to_owned())?;
        let no = pinned.no();
        // For as long as it is not forgotten.
        std::mem::forget(pinned);
        Some(no)
    }

    /// Some of a process's memory is left to the kernel, and why.
    pub(crate) fn pass_heap(&self, no: FileNo, reason: &str) {
        self.slots.lock().expect("lock").pass(no, reason.to_owned());
    }

    /// A heap is gone whose slot is [closed](Self::close_slot): it is another's as soon as nothing is
    /// about this heap any more.
    pub(crate) fn forget_heap(&self, no: FileNo) {
        self.tell(|witness| witness.forget(no));
        // Of `number_heap`.
        drop(Pinned { manager: self, no });
        self.slot_is_unused(no);
        self.free_slots();
    }
}

/// A file's path as the kernel knows it now.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> String {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        .map(|p| p.to_string_lossy().into_owned())
        .unwrap_or_else(|_| "?".to_owned())
}

/// Whether that is the memory that the users of a database of SQLite share (`-shm`). Stores to different bytes
/// of a page, under different locks, by two runs or by one and a program outside, could not all be kept: what
/// is written back is whole pages.
fn is_shared_index(name: &str) -> bool {
    let is_there = |path: String| std::path::Path::new(&path).exists();
    name.strip_suffix("-shm").is_some_and(|database| is_there(format!("{database}-wal")))
}

impl Drop for Manager {
    /// A child that is just being started may have the registry's descriptor, and with it the locks, for a while
    /// yet; by then a deleted file is freed, and its inode another one's.
    fn drop(&mut self) {
        if let Some(registry) = &self.registry {
            crate::manager::registry::release_all(registry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::*;
    use super::*;

    /// A run's registrations once went when its process did, at some time after the files that it
    /// had open: the inode of a deleted one was another run's new file by then, which that run could
    /// not register.
    #[test]
    fn files_are_free_for_other_runs_while_they_are_still_open() {
        let manager = manager();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(PAGE_BYTES).unwrap();
        let id = file::stat(file.as_file()).unwrap().id;
        let no = manager.opened(file.as_file().as_fd(), libc::O_RDWR).unwrap().no();
        let other = crate::manager::registry::open().unwrap();
        assert!(crate::manager::registry::claim(&other, id).is_err());

        manager.release_files();
        assert!(manager.engine.port().file(no).is_some());
        crate::manager::registry::claim(&other, id).unwrap();

        // Whoever comes too late finds the kernel's file.
        let late = tempfile::tempfile().unwrap();
        late.set_len(PAGE_BYTES).unwrap();
        assert!(manager.opened(late.as_fd(), libc::O_RDWR).is_none());
    }

    /// Files that were not managed kept their slots for ever: when all were taken, nothing more was
    /// managed, and nobody was told.
    #[test]
    fn a_file_is_managed_however_many_small_ones_were_opened_before() {
        const SLOTS: usize = 8;
        let manager = manager_from(2 * PAGE_BYTES);
        *manager.slots.lock().unwrap() = Slots::new(SLOTS, SLOTS / 2);
        let files: Vec<_> = (0..3 * SLOTS).map(|_| tempfile::tempfile().unwrap()).collect();
        let small = opened(&manager, &files[0]).unwrap();
        let incarnation = manager.incarnation(small);
        assert!(files.iter().all(|file| opened(&manager, file).is_some()));
        // Who has the first one open finds that it has lost its slot, and is given another.
        assert_ne!(manager.incarnation(small), incarnation);
        assert!(opened(&manager, &files[0]).is_some());

        let large: Vec<_> = (0..SLOTS - 1).map(|_| tempfile::tempfile().unwrap()).collect();
        for file in &large {
            file.set_len(2 * PAGE_BYTES).unwrap();
            let no = opened(&manager, file).unwrap();
            assert!(manager.wait_active(no));
        }
        assert_eq!(manager.remarks(), (vec![], vec![]));
        // One is left for all small ones.
        assert!(files.iter().all(|file| opened(&manager, file).is_some()));
        assert!(manager.slots.lock().unwrap().list.len() <= SLOTS);
    }

    #[test]
    fn when_all_slots_are_of_managed_files_the_user_is_told() {
        let manager = manager_from(PAGE_BYTES);
        *manager.slots.lock().unwrap() = Slots::new(2, 2);
        let files: Vec<_> = (0..3).map(|_| tempfile::tempfile().unwrap()).collect();
        files.iter().for_each(|file| file.set_len(PAGE_BYTES).unwrap());
        assert!(opened(&manager, &files[0]).is_some() && opened(&manager, &files[1]).is_some());
        assert_eq!(opened(&manager, &files[2]), None);
        let (notes, _) = manager.remarks();
        assert!(notes.len() == 1 && notes[0].starts_with("2 files are in use"), "{notes:?}");
        assert!(opened(&manager, &files[0]).is_some());
    }

    /// A file that was mapped when it was small stayed the kernel's for good, however large it became.
    #[test]
    fn a_file_that_has_grown_is_managed_when_nobody_maps_it_from_the_kernel_any_more() {
        let manager = manager_from(2 * PAGE_BYTES);
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(PAGE_BYTES).unwrap();
        let no = opened(&manager, file.as_file()).unwrap();
        let mapping = memmap2::MmapOptions::new().map_raw_read_only(file.as_file()).unwrap();
        assert!(manager.leave_plain(no));

        file.as_file().set_len(4 * PAGE_BYTES).unwrap();
        assert_eq!(opened(&manager, file.as_file()), Some(no));
        assert!(!manager.wait_active(no));
        let (_, passed) = manager.remarks();
        assert_eq!(passed.len(), 1);
        assert!(passed[0].reason.contains("smaller than files that are managed"), "{passed:?}");

        drop(mapping);
        // It was looked at just now.
        assert_eq!(opened(&manager, file.as_file()), Some(no));
        manager.slots.lock().unwrap().list[no as usize].look_after = None;
        assert_eq!(opened(&manager, file.as_file()), Some(no));
        assert!(manager.wait_active(no) && !manager.leave_plain(no));
        assert_eq!(manager.remarks().1, []);
    }

    /// A FIFO that had the name of a file from the time of the standby was opened to read from, and
    /// waited for somebody to write to it.
    #[test]
    fn what_has_a_files_name_at_the_end_of_a_standby_is_not_waited_for() {
        let manager = manager_from(2 * PAGE_BYTES);
        let place = tempfile::tempdir().unwrap();
        let files = ["fifo", "other", "same"].map(|name| place.path().join(name));
        let open = |path| {
            let mut options = std::fs::File::options();
            options.read(true).write(true).create(true).truncate(true).open(path)
        };
        let numbers = files.each_ref().map(|path| {
            let file = open(path).unwrap();
            let no = opened(&manager, &file).unwrap();
            file.set_len(2 * PAGE_BYTES).unwrap();
            manager.slots.lock().unwrap().list[no as usize].deferred = true;
            (no, file)
        });
        std::fs::remove_file(&files[0]).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &files[0], mode).unwrap();
        std::fs::remove_file(&files[1]).unwrap();
        open(&files[1]).unwrap();

        let (done, ended) = std::sync::mpsc::channel();
        let other = manager.clone();
        std::thread::spawn(move || {
            other.activate_deferred();
            done.send(())
        });
        ended.recv_timeout(std::time::Duration::from_secs(20)).expect("nothing is waited for");
        let active = numbers.each_ref().map(|(no, _)| manager.wait_active(*no));
        assert_eq!(active, [false, false, true]);
    }
}
