//! The manager: one engine, the files it manages, the processes that use them.

use crate::board::Board;
use crate::change::NO_BYTES;
use crate::crew::Crew;
use crate::engine::{Deferred, Engine};
use crate::forks::Forks;
use crate::heaps::Heaps;
use crate::idle::{Candidate, Idle};
use crate::letgo::Deleted;
use crate::live::{Behind, Hands, LiveFile, LivePort, LiveSpace, SLOTS_MAX, Slots as SlotTable};
use crate::outside::Watches;
use crate::overwrites::Overwrites;
use crate::plain::{self, Trial};
use crate::port::{FileNo, PAGE_BYTES, SpaceNo};
use crate::selection::Selection;
use crate::slots::{Identity, Numbered, Slots};
use crate::spaces::{Region, Space};
use crate::standby::Standby;
use crate::stats::PassedThrough;
use crate::store::Store;
use crate::work::{Work, Workers};
use pagekeeper_sys::Errno;
use pagekeeper_sys::event::{Epoll, EventFd, Interest};
use pagekeeper_sys::file::{self, FileId};
use pagekeeper_sys::memfd::Memfd;
use pagekeeper_sys::process;
use pagekeeper_sys::shared::SharedMap;
use pagekeeper_sys::userfault::{Track, Userfault};
use pagekeeper_wire as wire;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::{Duration, Instant};

/// How long an activation waits for plain system calls that are in flight.
const RAW_WAIT_MAX: Duration = Duration::from_secs(60);
/// How long a process that begins waits for what dead ones left open to be settled.
const SETTLE_MAX: Duration = Duration::from_secs(10);

/// How much longer nobody looks for a file's mappings than it took, which is doubled each time that
/// there is one, so often.
const LOOK_EVERY: u32 = 20;
const LOOKS_DOUBLE_MAX: u32 = 8;

/// The device of heaps' slots: none that a file is on.
const HEAP_DEVICE: u64 = u64::MAX;

/// The state of a client process, beside its address space: of the image that runs in it now.
#[derive(Default)]
pub(crate) struct Client {
    /// What it says that tells it from images that ran in the process before.
    name: u64,
    /// No other image of the run has this one: of the first of its connections that was greeted.
    pub(crate) number: u32,
    pub(crate) connections: u32,
    pub(crate) raw: Option<SharedMap>,
    /// Open changes: ticket and slot.
    pub(crate) changes: Vec<(u64, FileNo)>,
    /// What the descriptors that it showed allow it to do with their files.
    pub(crate) rights: HashMap<FileNo, Rights>,
    /// Files that it was given to map, and has not said yet where.
    pub(crate) prepared: Vec<FileNo>,
    /// What its `msync(2)` calls told it of files' errors (see [`Engine::flush_since`]).
    pub(crate) heard: HashMap<FileNo, u64>,
}

/// What a descriptor allows, by the mode it was opened with.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Rights {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

impl Rights {
    /// The rights that a descriptor proves, and its flags. What its holder says of it proves
    /// nothing.
    pub(crate) fn proved_by(fd: impl AsFd) -> Result<(Rights, i32), Errno> {
        let flags = rustix::fs::fcntl_getfl(fd)?.bits() as i32;
        let mode = flags & libc::O_ACCMODE;
        let nothing = flags & libc::O_PATH != 0;
        let read = !nothing && mode != libc::O_WRONLY;
        Ok((Rights { read, write: !nothing && mode != libc::O_RDONLY }, flags))
    }

    pub(crate) fn and(self, other: Rights) -> Rights {
        Rights { read: self.read || other.read, write: self.write || other.write }
    }
}

/// Told when files become managed and processes appear, so that another process can hold on to
/// what must not be lost with this one.
pub trait Witness: Send + Sync {
    /// A file is about to be mapped for the first time, or became writable.
    fn file(&self, no: FileNo, memfd: BorrowedFd<'_>, store: BorrowedFd<'_>);
    /// A process's heap, which nobody writes anywhere when this process is gone.
    fn memory(&self, no: FileNo, memfd: BorrowedFd<'_>);
    /// A heap is gone, or a file not managed any more.
    fn forget(&self, no: FileNo);
    /// Returns when what was told before is carried out.
    fn settle(&self);
    /// A process's faults.
    fn space(&self, userfault: BorrowedFd<'_>);
}

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

/// One run's manager.
pub struct Manager {
    /// The page cache.
    pub engine: Engine<LivePort>,
    pub(crate) selection: Selection,
    slots: Mutex<Slots>,
    registry: Option<OwnedFd>,
    pub(crate) watches: Option<Watches>,
    pub(crate) clients: Mutex<HashMap<u32, Client>>,
    /// The number of the next connection.
    pub(crate) connections: AtomicU32,
    /// Held while events are read and applied, and while a mapping is added: a munmap that the
    /// program saw finished must not be applied after the mmap that followed it.
    pub(crate) mapping_order: Mutex<()>,
    /// Held while a file becomes managed.
    pub(crate) activating: Mutex<()>,
    /// Held for reading while a program's request is handled: what it names stays what it is.
    pub(crate) using: RwLock<()>,
    /// Held while address spaces that are gone are forgotten.
    pub(crate) reaping: Mutex<()>,
    /// Files that processes which ended stored to, and that are being written back.
    pub(crate) ends_under_way: AtomicU32,
    pub(crate) deleted: Deleted,
    pub(crate) idle: Idle,
    pub(crate) heaps: Heaps,
    pub(crate) forks: Forks,
    pub(crate) workers: Workers,
    pub(crate) crew: Crew,
    pub(crate) epoll: Epoll,
    pub(crate) kick: EventFd,
    pub(crate) event_thread: OnceLock<std::thread::ThreadId>,
    pub(crate) standby: OnceLock<Standby>,
    /// Where programs see which files may be managed; without it they ask.
    pub(crate) board: OnceLock<Arc<Board>>,
    /// Set where clients may [store to open pages](crate::engine::Engine::open_pages).
    pub(crate) delays_writes: OnceLock<()>,
    witness: OnceLock<Box<dyn Witness>>,
    /// Files that the witness was told of.
    witnessed: Mutex<HashSet<FileNo>>,
    pub(crate) secret: [u8; 16],
    pub(crate) handlers_busy: AtomicU32,
}

impl Manager {
    /// A manager over an engine that has no file yet.
    ///
    /// # Errors
    /// Descriptors or shared memory cannot be made.
    pub fn new(
        engine: Engine<LivePort>,
        selection: Selection,
        secret: [u8; 16],
    ) -> Result<Arc<Manager>, Errno> {
        engine.port().set_slots(SlotTable::new()?);
        engine.set_overwrites(Overwrites::new(SLOTS_MAX)?);
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        let memory_bytes = u64::from(engine.lock().brain.frames()) * PAGE_BYTES;
        let idle = Idle::new(memory_bytes, descriptors.unwrap_or(u64::MAX));
        let manager = Arc::new(Manager {
            engine,
            selection,
            slots: Mutex::new(Slots::default()),
            registry: crate::registry::open(),
            watches: Watches::new().ok(),
            clients: Mutex::new(HashMap::new()),
            connections: AtomicU32::new(1),
            mapping_order: Mutex::new(()),
            activating: Mutex::new(()),
            using: RwLock::new(()),
            reaping: Mutex::new(()),
            ends_under_way: AtomicU32::new(0),
            deleted: Deleted::default(),
            idle,
            heaps: Heaps::default(),
            forks: Forks::default(),
            workers: Workers::new(),
            crew: Crew::default(),
            epoll: Epoll::new()?,
            kick: EventFd::new()?,
            event_thread: OnceLock::new(),
            standby: OnceLock::new(),
            board: OnceLock::new(),
            delays_writes: OnceLock::new(),
            witness: OnceLock::new(),
            witnessed: Mutex::default(),
            secret,
            handlers_busy: AtomicU32::new(0),
        });
        manager.engine.port().set_hands(Arc::new(Link(Arc::downgrade(&manager))));
        Ok(manager)
    }

    /// Someone who holds on to descriptors. Once.
    pub fn set_witness(&self, witness: Box<dyn Witness>) {
        let _ = self.witness.set(witness);
    }

    /// The table of file slots, read-only, for a client.
    pub(crate) fn slots_for_client(&self) -> Result<OwnedFd, Errno> {
        self.engine.port().slots().ok_or(Errno::NOSYS)?.for_client()
    }

    fn set_slot_flags(&self, no: FileNo, flags: u32) {
        if let Some(slots) = self.engine.port().slots() {
            slots.set_flags(no, flags);
        }
    }

    /// A probe page's memfd. The kernel registers only what may be written, and who may write a
    /// memfd may cut it off: each client has one of its own.
    pub(crate) fn probe_for_client(&self) -> Result<OwnedFd, Errno> {
        Memfd::create("pagekeeper-probe", PAGE_BYTES, false)?.reopen_writable()
    }

    /// Something worth telling the user, once.
    pub fn note(&self, text: impl Into<String>) {
        let text = text.into();
        let mut slots = self.slots.lock().expect("lock");
        if !slots.notes.contains(&text) && slots.notes.len() < 100 {
            slots.notes.push(text);
        }
    }

    /// Notes so far, and files passed through.
    pub fn remarks(&self) -> (Vec<String>, Vec<PassedThrough>) {
        let slots = self.slots.lock().expect("lock");
        (slots.notes.clone(), slots.passed_through())
    }

    // ---- files ------------------------------------------------------------------------------

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
                if !self.selection.matches(&name) {
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
            client.rights.remove(&no);
            client.heard.remove(&no);
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
            let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
            let fd = rustix::fs::open(&name, flags, rustix::fs::Mode::empty()).ok();
            let found = fd.and_then(|fd| self.slot_of_file(no, fd.as_fd()).map(|pin| (fd, pin)));
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
        self.may_take(no, id, taker).map_err(|reason| refuse(reason.to_owned()))?;
        self.call_crew().map_err(|e| refuse(format!("no thread can be started: {e}")))?;
        let store = Store::open(fd)
            .map_err(|e| refuse(format!("cannot be opened again for reading: {e}")))?;
        if let Some(registry) = &self.registry
            && crate::registry::claim(registry, id).is_err()
        {
            return Err(refuse("another pagekeeper run manages it".to_owned()));
        }
        if self.standby.get().is_some() {
            store.expect_cached();
        }
        // Before its length is looked at: who finds no mark afterwards has written to it before that.
        if let Some(board) = self.board.get() {
            board.mark(id);
        }
        let version = store.version().map_err(|_| Left::ForGood)?;
        let pages = version.size_bytes.div_ceil(PAGE_BYTES);
        let memfd = Memfd::create(&format!("pagekeeper:{name}"), pages * PAGE_BYTES, false)
            .map_err(|e| refuse(format!("no memory file: {e}")))?;
        // A client that is handed a read-only descriptor must not make a writable one of it.
        let _ = memfd.set_mode(0o400);
        let memfd_ino = file::stat(&memfd).map_err(|_| Left::ForGood)?.id.ino;
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
        // Without a watch, changes are found at the next open, map, lock or sync.
        if self.watches.as_ref().is_some_and(|watches| watches.add(no, fd, false) == Ok(true)) {
            self.engine.hears(no);
        }
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
        if let Some(registry) = &self.registry {
            crate::registry::release_all(registry);
        }
    }

    // ---- files that go ----------------------------------------------------------------------

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
        let mut slots = self.slots.lock().expect("lock");
        let (free, unused): (Vec<FileNo>, Vec<FileNo>) =
            std::mem::take(&mut slots.unused).into_iter().partition(|no| self.engine.is_gone(*no));
        slots.unused = unused;
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
            crate::registry::release(registry, id);
        }
    }

    /// Whether a program was given a file to map and has not said yet where, or a forked child may
    /// still come for a mapping of it.
    pub(crate) fn is_being_mapped(&self, no: FileNo) -> bool {
        let clients = self.clients.lock().expect("lock");
        clients.values().any(|client| client.prepared.contains(&no)) || self.forks.concern(no)
    }

    pub(crate) fn tell(&self, what: impl FnOnce(&dyn Witness)) {
        if let Some(witness) = self.witness.get() {
            what(&**witness);
        }
    }

    /// Plain system calls that began before a slot became active must have ended before anything
    /// of the file is cached.
    fn wait_for_raw_calls(&self) {
        let start = Instant::now();
        loop {
            let busy = self.clients.lock().expect("lock").values().any(|c| {
                c.raw
                    .as_ref()
                    .is_some_and(|m| m.words::<AtomicU32>(0, 1)[0].load(Ordering::SeqCst) != 0)
            });
            if !busy || start.elapsed() > RAW_WAIT_MAX {
                return;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    pub(crate) fn allow_writes(&self, no: FileNo, fd: BorrowedFd<'_>, open_flags: i32) {
        let writes = open_flags & libc::O_ACCMODE != libc::O_RDONLY;
        let Some(live) = self.engine.port().file(no) else { return };
        let Some(store) = live.store() else { return };
        if writes && !store.writable() {
            match store.allow_writes(fd) {
                Ok(()) => self.tell_witness(no, true),
                Err(e) => self.note(format!(
                    "{}: cannot be opened again for writing ({e}); it may be read, but not mapped \
                     shared and writable",
                    path_of(fd)
                )),
            }
        }
    }

    /// Tells the witness of a file that is about to be mapped, or stored to: only from then on may it
    /// have pages that storage lacks, and processes that have to be found. With `again`, of another descriptor
    /// of one that it knows.
    pub(crate) fn tell_witness(&self, no: FileNo, again: bool) {
        let Some(witness) = self.witness.get() else { return };
        let Some(live) = self.engine.port().file(no) else { return };
        let Some(store) = live.store() else { return witness.memory(no, live.memfd.as_fd()) };
        // Held until it is told: nobody maps the file before.
        let mut witnessed = self.witnessed.lock().expect("lock");
        if witnessed.contains(&no) != again {
            return;
        }
        match store.descriptor() {
            Ok(store) => witness.file(no, live.memfd.as_fd(), store.as_fd()),
            Err(e) => self.note(format!("what is written would be lost with this process: {e}")),
        }
        witnessed.insert(no);
    }

    /// The witness needs not know of a file any more.
    pub(crate) fn dismiss_witness(&self, no: FileNo) {
        if self.witnessed.lock().expect("lock").remove(&no) {
            self.tell(|witness| witness.forget(no));
        }
    }

    // ---- spaces -----------------------------------------------------------------------------

    /// A process image appeared with its userfaultfd.
    pub(crate) fn add_space(
        &self,
        userfault: Userfault,
        pid: u32,
        mut content: Space,
    ) -> Result<SpaceNo, Errno> {
        self.call_crew()?;
        self.tell(|witness| witness.space(userfault.as_fd()));
        let live = Arc::new(LiveSpace { userfault, process: OnceLock::new() });
        if pid != 0 {
            let _ = live.process.set((pid, process::pidfd_open(pid).ok()));
        }
        content.pid = pid;
        let no = self.engine.port().put_space(live.clone());
        self.engine.open_space(no, content);
        self.epoll.add(&live.userfault, u64::from(no), Interest::READ)?;
        Ok(no)
    }

    /// The space of a process; the newest, if it executed several programs.
    pub(crate) fn space_of(&self, pid: u32) -> Option<SpaceNo> {
        let port = self.engine.port();
        let mut numbers = port.space_numbers();
        numbers.reverse();
        numbers.into_iter().find(|&no| {
            port.space(no).is_some_and(|s| {
                s.process.get().is_some_and(|p| p.0 == pid) && s.userfault.is_alive()
            })
        })
    }

    /// Registers the probe page of a space.
    pub(crate) fn set_probe(&self, space: SpaceNo, addr: u64) -> Result<(), Errno> {
        let live = self.engine.port().space(space).ok_or(Errno::SRCH)?;
        live.userfault.register(addr, PAGE_BYTES, Track::MISSING | Track::MINOR)?;
        self.engine.with_space(space, |s| s.probe = addr);
        Ok(())
    }

    /// A mapping of an active file is about to be made: the memfd and the mapping type for it.
    pub(crate) fn map_prepare(
        &self,
        no: FileNo,
        offset: u64,
        len: u64,
        flags: i32,
        open_flags: i32,
    ) -> Option<(OwnedFd, i32)> {
        let live = self.engine.port().file(no)?;
        if !offset.is_multiple_of(PAGE_BYTES) || len == 0 {
            return None;
        }
        self.look(no);
        self.tell_witness(no, false);
        let shared = flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
        let may_write = open_flags & libc::O_ACCMODE == libc::O_RDWR;
        if shared && may_write {
            if !live.store()?.writable() {
                return None;
            }
            return Some((rustix::io::fcntl_dupfd_cloexec(&live.memfd, 0).ok()?, libc::MAP_SHARED));
        }
        Some((live.memfd.reopen_read_only().ok()?, libc::MAP_PRIVATE))
    }

    /// The memory that a file's pages are in, for a client that patches what it overwrites.
    pub(crate) fn frames_for_client(&self, no: FileNo) -> Option<OwnedFd> {
        rustix::io::fcntl_dupfd_cloexec(&self.engine.port().file(no)?.memfd, 0).ok()
    }

    /// Clients are about to store to pages of a file by themselves, if they may: none if not.
    pub(crate) fn let_store(&self, no: FileNo) -> Option<()> {
        self.delays_writes.get()?;
        let live = self.engine.port().file(no)?;
        live.store().filter(|store| store.writable())?;
        self.tell_witness(no, false);
        Some(())
    }

    /// The mapping exists, without access: registers it.
    pub(crate) fn map_commit(
        &self,
        pid: u32,
        range: Range<u64>,
        region: Region,
    ) -> Result<(), Errno> {
        let space = self.space_of(pid).ok_or(Errno::SRCH)?;
        if !region.library {
            self.set_slot_flags(region.file, wire::SLOT_MAPPED);
            self.engine.catch_up_for_good(region.file);
        }
        self.register(space, range, region)
    }

    /// A slot for a heap, which no descriptor of a program leads to.
    pub(crate) fn number_heap(&self, name: &str, ino: u64) -> Option<FileNo> {
        let pinned = self.number(FileId { dev: HEAP_DEVICE, ino }, None, name.to_owned())?;
        let no = pinned.no();
        // For as long as it is not forgotten.
        std::mem::forget(pinned);
        Some(no)
    }

    /// A heap is gone; its slot stays for the report.
    pub(crate) fn forget_heap(&self, no: FileNo) {
        let mut slots = self.slots.lock().expect("lock");
        let id = slots.list[no as usize].id;
        slots.by_id.remove(&id);
        drop(slots);
        self.tell(|witness| witness.forget(no));
    }

    /// A process has made a connection, of this number: the number of its image; none if that is gone.
    /// What another left open that ran in the process before is ended first. Its connections may live on,
    /// in this manager until their end is read, and in children that it forked.
    pub(crate) fn client_came(&self, pid: u32, name: u64, connection: u32) -> Option<u32> {
        loop {
            let other = {
                let mut clients = self.clients.lock().expect("lock");
                let client = clients.entry(pid).or_insert_with(|| Client {
                    name,
                    number: connection,
                    ..Client::default()
                });
                if name == 0 || client.name == name {
                    client.connections += 1;
                    return Some(client.number);
                }
                // As they were made, one after the other, connections are numbered.
                if connection < client.number {
                    return None;
                }
                client.number
            };
            self.client_gone(pid, other);
        }
    }

    /// Something is done with what is known of a process, if this image runs in it still.
    pub(crate) fn with_client<R>(
        &self,
        pid: u32,
        number: u32,
        f: impl FnOnce(&mut Client) -> R,
    ) -> Option<R> {
        let mut clients = self.clients.lock().expect("lock");
        clients.get_mut(&pid).filter(|client| client.number == number).map(f)
    }

    /// Ends what processes left open that died while a forked child keeps their connection.
    pub(crate) fn reap_clients(&self) {
        let known = |(pid, client): (&u32, &Client)| (*pid, client.number);
        let all: Vec<_> = self.clients.lock().expect("lock").iter().map(known).collect();
        for (pid, number) in all {
            if process_ended(pid) {
                self.client_gone(pid, number);
            }
        }
    }

    /// What a client overwrites at this moment without having said so.
    fn overwritten_by(&self, client: &Client) -> Vec<FileNo> {
        let mut writable = client.rights.iter().filter(|(_, rights)| rights.write).peekable();
        if writable.peek().is_none() {
            return Vec::new();
        }
        let held = |overwrites: &Overwrites| {
            let files = writable.map(|(no, _)| *no);
            files.filter(|no| overwrites.holder(*no) == Some(client.number)).collect()
        };
        self.engine.with_overwrites(held).unwrap_or_default()
    }

    /// Ends what an image left open.
    pub(crate) fn client_gone(&self, pid: u32, number: u32) {
        // What it wrote is no outsider's.
        self.hear();
        let left = |client: &mut Client| (client.changes.clone(), self.overwritten_by(client));
        let Some((changes, files)) = self.with_client(pid, number, left) else { return };
        for (ticket, file) in changes {
            self.change_left(file, ticket);
        }
        for file in files {
            if self.engine.overwrite_end(file, number, 0, 0, NO_BYTES).is_ok() {
                self.engine.refresh_size(file, false);
            }
        }
        let client = {
            let mut clients = self.clients.lock().expect("lock");
            let is_same = clients.get(&pid).is_some_and(|client| client.number == number);
            is_same.then(|| clients.remove(&pid)).flatten()
        };
        // A request of its own may have been answered meanwhile; what was ended is not ended twice.
        for (ticket, file) in client.into_iter().flat_map(|client| client.changes) {
            self.change_left(file, ticket);
        }
        if let Some(standby) = self.standby.get() {
            standby.took(pid);
        }
        let _ = self.kick.notify();
    }

    /// Ends a change whose maker is gone. What became of it, storage knows.
    pub(crate) fn change_left(&self, file: FileNo, ticket: u64) {
        self.engine.change_end(file, ticket, 0, 0, NO_BYTES);
        self.engine.refresh_size(file, false);
    }

    /// Waits until changes are settled that processes began and did not live to end: who is started
    /// after a process died sees what that one wrote, and does not see it come later.
    pub(crate) fn settle_changes_of_the_dead(&self) {
        let is_waiting = || {
            let clients = self.clients.lock().expect("lock");
            let is_changing = |client: &Client| {
                !client.changes.is_empty() || !self.overwritten_by(client).is_empty()
            };
            clients.iter().any(|(pid, client)| is_changing(client) && process_ended(*pid))
        };
        let deadline = Instant::now() + SETTLE_MAX;
        while is_waiting() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Waits until what ended processes had stored is in their files: programs are begun that read it
    /// without this library's help (the dynamic linker does).
    pub(crate) fn settle_ends(&self) {
        self.reap();
        // Should another thread have been about it.
        drop(self.reaping.lock().expect("lock"));
        let deadline = Instant::now() + SETTLE_MAX;
        while self.ends_under_way.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Whether any process may still use managed files.
    pub(crate) fn in_use(&self) -> bool {
        let port = self.engine.port();
        !self.clients.lock().expect("lock").is_empty()
            || self.forks.are_under_way()
            || self.heaps.are_awaited()
            || port
                .space_numbers()
                .into_iter()
                .any(|no| port.space(no).is_some_and(|s| s.userfault.is_alive()))
    }
}

/// Whether a process has ended, reaped or not.
fn process_ended(pid: u32) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    match process::pidfd_open(pid) {
        Ok(pidfd) => {
            let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0)
        }
        Err(errno) => errno == Errno::SRCH,
    }
}

/// A file's path as the kernel knows it now.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> String {
    use std::os::fd::AsRawFd;
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        .map(|p| p.to_string_lossy().into_owned())
        .unwrap_or_else(|_| "?".to_owned())
}

/// The port's way back to the manager.
struct Link(std::sync::Weak<Manager>);

impl Hands for Link {
    fn hand_over(&self, work: Deferred) -> Result<(), Deferred> {
        match self.0.upgrade() {
            Some(manager) => {
                manager.workers.push(Work::Deferred(work));
                Ok(())
            }
            None => Err(work),
        }
    }

    fn make_room(&self) {
        if let Some(manager) = self.0.upgrade() {
            manager.make_room();
        }
    }

    fn settled(&self) {
        if let Some(manager) = self.0.upgrade() {
            drop(manager.mapping_order.lock().expect("lock"));
        }
    }

    fn again(&self) {
        let Some(manager) = self.0.upgrade() else { return };
        // Also here: the event thread may be waiting for what this thread does.
        manager.pump();
        if manager.event_thread.get() != Some(&std::thread::current().id()) {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

#[cfg(test)]
mod tests {
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
        let other = crate::registry::open().unwrap();
        assert!(crate::registry::claim(&other, id).is_err());

        manager.release_files();
        assert!(manager.engine.port().file(no).is_some());
        crate::registry::claim(&other, id).unwrap();

        // Whoever comes too late finds the kernel's file.
        let late = tempfile::tempfile().unwrap();
        late.set_len(PAGE_BYTES).unwrap();
        assert!(manager.opened(late.as_fd(), libc::O_RDWR).is_none());
    }

    fn opened(manager: &Manager, file: &std::fs::File) -> Option<FileNo> {
        manager.opened(file.as_fd(), libc::O_RDWR).map(|pinned| pinned.no())
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

    /// What was open when a program was executed was ended with the process, or when its last connection
    /// was closed, which a forked child may have, too: whoever changed the same pages waited until then.
    #[test]
    fn what_an_image_left_open_is_ended_when_the_next_one_connects() {
        let manager = manager();
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGE_BYTES).unwrap();
        let no = opened(&manager, &file).unwrap();
        let begin = || manager.engine.change_begin(no, 0, 8, crate::change::Change::Write).unwrap();
        let first = manager.client_came(1, 100, 5).unwrap();
        let open = (begin(), no);
        manager.with_client(1, first, |client| client.changes.push(open)).unwrap();

        let next = manager.client_came(1, 200, 7).unwrap();
        assert_ne!(first, next);
        manager.engine.change_end(no, begin(), 0, 0, NO_BYTES);
        assert!(manager.with_client(1, first, |_| ()).is_none());
        // One that the first made, and that is greeted late.
        assert_eq!(manager.client_came(1, 100, 6), None);
        assert_eq!(manager.client_came(1, 200, 8), Some(next));
    }

    fn manager() -> Arc<Manager> {
        manager_from(1)
    }

    fn manager_from(min_size_bytes: u64) -> Arc<Manager> {
        let policy = pagekeeper_policy::PolicySpec::parse("lru").unwrap();
        let budget = pagekeeper_frames::Budget::new(1 << 20, policy.info().bytes_per_page);
        let frames = budget.frames(0);
        let engine = Engine::new(
            LivePort::new(),
            policy.build(frames, 1).unwrap(),
            pagekeeper_frames::Config::live(frames),
            crate::table::Table::local(1 << 12),
            budget,
        );
        Manager::new(engine, Selection::new(&[], min_size_bytes).unwrap(), [0; 16]).unwrap()
    }
}
