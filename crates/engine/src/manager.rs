//! The manager: one engine, the files it manages, the processes that use them.

pub(crate) mod awake;
pub(crate) mod board;
mod clients;
pub(crate) mod crew;
mod ends;
mod files;
mod idle;
mod leashes;
pub(crate) mod letgo;
mod plain;
pub(crate) mod registry;
mod reserve;
pub mod selection;
pub(crate) mod server;
mod slots;
mod waiting;
mod whose;
mod witness;
pub(crate) mod work;

pub(crate) use clients::{Client, Rights, SETTLE_MAX};
pub(crate) use files::path_of;
pub use witness::Witness;

use crate::engine::overwrites::Overwrites;
use crate::engine::spaces::{Region, Space};
use crate::engine::stats::PassedThrough;
use crate::engine::{Deferred, Engine};
use crate::heaps::Heaps;
use crate::live::events::{Away, Unmapped};
use crate::live::forks::Forks;
use crate::live::outside::{Rotation, Watches};
use crate::live::store::Store;
use crate::live::{Hands, LivePort, LiveSpace, SLOTS_MAX, Slots as SlotTable};
use crate::manager::awake::Waits;
use crate::manager::board::Board;
use crate::manager::crew::Crew;
use crate::manager::ends::Ends;
use crate::manager::idle::Idle;
use crate::manager::letgo::Deleted;
use crate::manager::selection::Selection;
use crate::manager::slots::Slots;
use crate::manager::work::{Work, Workers};
use crate::port::{FileNo, PAGE_BYTES, SpaceNo};
use crate::standby::Standby;
use crate::standby::headroom::Room;
use pagekeeper_sys::Errno;
use pagekeeper_sys::descriptor::duplicate;
use pagekeeper_sys::event::{Epoll, EventFd, Interest};
use pagekeeper_sys::leash::Leash;
use pagekeeper_sys::socket::Connection;
use pagekeeper_sys::userfault::Userfault;
use pagekeeper_wire as wire;
use reserve::Reserve;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::Duration;
use waiting::Waiting;

/// Connections that a stranger may have before it is known whose they are.
const STRANGERS_MAX: usize = 32;

/// One run's manager.
pub struct Manager {
    /// The page cache.
    pub engine: Engine<LivePort>,
    pub(crate) selection: Selection,
    slots: Mutex<Slots>,
    registry: Option<OwnedFd>,
    pub(crate) watches: Option<Watches>,
    /// Managed files without one.
    pub(crate) unwatched: Mutex<Rotation>,
    /// The others.
    pub(crate) watched: Mutex<Rotation>,
    pub(crate) clients: Mutex<HashMap<u32, Client>>,
    /// Held while a client comes or goes and the witness is told of it: in this order, and before
    /// `clients`.
    telling: Mutex<()>,
    /// The number of the next connection.
    pub(crate) connections: AtomicU32,
    /// Connections that were accepted, and are nobody's yet, but for strangers': see [`Arriving`].
    arriving: AtomicU32,
    /// Others that strangers made: user, number, and the connection.
    strangers: Mutex<Vec<(u32, u32, Arc<Connection>)>>,
    /// Users that are not trusted, and of which a program of the run was greeted: no strangers.
    met: Mutex<HashSet<u32>>,
    pub(crate) reserve: Reserve,
    /// What ends processes when this one and the holder are killed; none if nobody is put on one any more.
    pub(crate) leashes: Mutex<Option<HashMap<u32, Leash>>>,
    /// Files that nobody maps any more.
    pub(crate) unmapped: Unmapped,
    pub(crate) waiting: Waiting,
    /// Set when a fork was not read, for lack of a descriptor.
    pub(crate) starved: AtomicBool,
    /// Spaces whose events nobody is told of yet.
    pub(crate) unheard: Mutex<Vec<SpaceNo>>,
    /// Held while events are read and applied, and while a mapping is added: a munmap that the
    /// program saw finished must not be applied after the mmap that followed it.
    pub(crate) mapping_order: Mutex<()>,
    /// Held while a file becomes managed.
    pub(crate) activating: Mutex<()>,
    /// Held for reading while a program's request is handled: what it names stays what it is.
    pub(crate) using: RwLock<()>,
    /// Held while address spaces that are gone are forgotten.
    pub(crate) reaping: Mutex<()>,
    pub(crate) ends: Ends,
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
    /// See [`Manager::room`].
    pub(crate) room: OnceLock<Option<Arc<Room>>>,
    /// Where programs see which files may be managed; without it they ask.
    pub(crate) board: OnceLock<Arc<Board>>,
    /// What programs ring the bell by ([`wire::Op::Bell`]).
    pub(crate) rope: OnceLock<OwnedFd>,
    /// Set where clients may [store to open pages](crate::engine::Engine::open_pages).
    pub(crate) delays_writes: OnceLock<()>,
    witness: OnceLock<Box<dyn Witness>>,
    /// Files that the witness was told of.
    witnessed: Mutex<HashSet<FileNo>>,
    pub(crate) secret: [u8; 16],
    pub(crate) away: Away,
    pub(crate) waits: Waits,
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
            registry: crate::manager::registry::open(),
            watches: Watches::new().ok(),
            unwatched: Mutex::default(),
            watched: Mutex::default(),
            clients: Mutex::new(HashMap::new()),
            telling: Mutex::new(()),
            connections: AtomicU32::new(1),
            arriving: AtomicU32::new(0),
            strangers: Mutex::default(),
            met: Mutex::default(),
            reserve: Reserve::default(),
            leashes: Mutex::new(Some(HashMap::new())),
            unmapped: Unmapped::default(),
            waiting: Waiting::default(),
            starved: AtomicBool::new(false),
            unheard: Mutex::default(),
            mapping_order: Mutex::new(()),
            activating: Mutex::new(()),
            using: RwLock::new(()),
            reaping: Mutex::new(()),
            ends: Ends::default(),
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
            room: OnceLock::new(),
            board: OnceLock::new(),
            rope: OnceLock::new(),
            delays_writes: OnceLock::new(),
            witness: OnceLock::new(),
            witnessed: Mutex::default(),
            secret,
            away: Away::default(),
            waits: Waits::default(),
        });
        if manager.registry.is_none() {
            manager.note(
                "no registry of managed files can be made in /dev/shm or /tmp: nothing keeps two runs from \
                 managing one file",
            );
        }
        manager.engine.port().set_hands(Arc::new(Link(Arc::downgrade(&manager))));
        Ok(manager)
    }

    /// The table of file slots, read-only, for a client.
    pub(crate) fn slots_for_client(&self) -> Result<OwnedFd, Errno> {
        self.engine.port().slots().ok_or(Errno::NOSYS)?.for_client()
    }

    pub(crate) fn set_slot_flags(&self, no: FileNo, flags: u32) {
        if let Some(slots) = self.engine.port().slots() {
            slots.set_flags(no, flags);
        }
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

    /// A process image appeared with its userfaultfd.
    pub(crate) fn add_space(
        &self,
        userfault: Userfault,
        pid: u32,
        mut content: Space,
    ) -> Result<SpaceNo, Errno> {
        let live =
            Arc::new(LiveSpace { userfault, process: OnceLock::new(), toucher: AtomicU32::new(0) });
        let no = self.engine.port().put_space(live.clone());
        self.tell(|witness| witness.space(no, live.userfault.as_fd()));
        if pid != 0 {
            self.is_owned_by(no, &live, pid);
        }
        content.pid = pid;
        self.engine.open_space(no, content);
        // Nobody's faults may be left to the kernel from here on, which answers them with zeros.
        if self.epoll.add(&live.userfault, u64::from(no), Interest::READ).is_err() {
            self.unheard.lock().expect("lock").push(no);
        }
        self.call_crew()?;
        Ok(no)
    }

    /// A mapping of an active file is about to be made: the memfd and the mapping type for it.
    pub(crate) fn map_prepare(
        &self,
        no: FileNo,
        offset: u64,
        len: u64,
        flags: i32,
        open_flags: i32,
    ) -> Result<Option<(OwnedFd, i32)>, Errno> {
        let Some(live) = self.engine.port().file(no) else { return Ok(None) };
        if !offset.is_multiple_of(PAGE_BYTES) || len == 0 {
            return Ok(None);
        }
        self.look(no);
        self.tell_witness(no, false);
        let shared = flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
        let may_write = open_flags & libc::O_ACCMODE == libc::O_RDWR;
        if shared && may_write {
            if let Some(board) = self.board.get() {
                board.mark_stores();
            }
            if !live.store().is_some_and(Store::writable) {
                return Ok(None);
            }
            let memfd = self.with_reserve(|| duplicate(&live.memfd))?;
            return Ok(Some((memfd, libc::MAP_SHARED)));
        }
        let memfd = self.with_reserve(|| live.memfd.reopen_read_only())?;
        Ok(Some((memfd, libc::MAP_PRIVATE)))
    }

    /// The memory that a file's pages are in, for a client that patches what it overwrites.
    ///
    /// # Errors
    /// There is no such file, or no descriptor is free.
    pub(crate) fn frames_for_client(&self, no: FileNo) -> Result<OwnedFd, Errno> {
        let live = self.engine.port().file(no).ok_or(Errno::ACCESS)?;
        self.with_reserve(|| duplicate(&live.memfd))
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

    /// Whether any process may still use managed files, or is about to.
    pub(crate) fn in_use(&self) -> bool {
        let port = self.engine.port();
        // In this order: who arrives is a client before it has arrived.
        self.is_awaited()
            || !self.clients.lock().expect("lock").is_empty()
            || self.forks.are_under_way()
            || self.heaps.are_awaited()
            || port
                .space_numbers()
                .into_iter()
                .any(|no| port.space(no).is_some_and(|s| s.userfault.is_alive()))
    }

    /// Processes that use managed files.
    pub(crate) fn users(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.clients.lock().expect("lock").keys().copied().collect();
        pids.sort_unstable();
        pids
    }

    /// Whether there is a connection of which nobody knows yet whose it is.
    pub(crate) fn is_awaited(&self) -> bool {
        self.arriving.load(Ordering::SeqCst) > 0
    }

    /// From here on nothing becomes managed, unless somebody still uses what is: false then. To be
    /// called by who accepts connections.
    pub(crate) fn close_unless_used(&self) -> bool {
        let _one = self.activating.lock().expect("lock");
        let is_used = self.in_use();
        self.slots.lock().expect("lock").closed = !is_used;
        !is_used
    }
}

/// A connection that was accepted and is not a client's yet. Who made it may be about to use managed
/// files: the run does not end meanwhile, unless it is a stranger, since anybody may connect.
pub(crate) struct Arriving {
    pub(crate) manager: Arc<Manager>,
    pub(crate) number: u32,
    uid: u32,
    is_awaited: bool,
}

impl Arriving {
    /// A connection of this user's. Anybody may make them, and each takes a thread and a descriptor
    /// until it is known whose it is: of strangers, the oldest are sent away.
    pub(crate) fn at(manager: &Arc<Manager>, uid: u32, socket: &Arc<Connection>) -> Arriving {
        let number = manager.connections.fetch_add(1, Ordering::Relaxed);
        let is_awaited = trusts(uid) || manager.met.lock().expect("lock").contains(&uid);
        if is_awaited {
            manager.arriving.fetch_add(1, Ordering::SeqCst);
        }
        if !trusts(uid) {
            let mut strangers = manager.strangers.lock().expect("lock");
            let mut own = strangers.iter().filter(|(of, ..)| *of == uid);
            let oldest = own.next().map(|(_, number, socket)| (*number, socket.clone()));
            if own.count() + 1 >= STRANGERS_MAX
                && let Some((oldest, socket)) = oldest
            {
                let _ = socket.shutdown();
                strangers.retain(|(_, number, _)| *number != oldest);
            }
            strangers.push((uid, number, socket.clone()));
        }
        Arriving { manager: manager.clone(), number, uid, is_awaited }
    }

    /// It is a client's: its user's next connections are awaited.
    pub(crate) fn has_arrived(self) {
        if !trusts(self.uid) {
            self.manager.met.lock().expect("lock").insert(self.uid);
        }
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        let mut strangers = self.manager.strangers.lock().expect("lock");
        strangers.retain(|(_, number, _)| *number != self.number);
        drop(strangers);
        if self.is_awaited {
            self.manager.arriving.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Whether a user may do with a program's memory what the manager may: root, and the manager's own.
pub(crate) fn trusts(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
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
            manager.await_events();
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
pub(crate) mod tests {
    use super::*;
    use pagekeeper_sys::shared::SharedMap;
    use pagekeeper_sys::socket::Listener;
    use std::mem::offset_of;
    use std::sync::atomic::AtomicU64;
    use zerocopy::{FromBytes, IntoBytes};

    pub(crate) fn opened(manager: &Manager, file: &std::fs::File) -> Option<FileNo> {
        manager.opened(file.as_fd(), libc::O_RDWR).map(|pinned| pinned.no())
    }

    pub(crate) fn manager() -> Arc<Manager> {
        manager_from(1)
    }

    /// A process that holds the record of a file, to write to it without a message: its number, and the
    /// file's. None, which is said, where the kernel does not let it.
    pub(crate) fn who_overwrites(manager: &Manager, pid: u32) -> Option<(u32, FileNo)> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(wire::PAGE_BYTES).unwrap();
        let no = opened(manager, &file).unwrap();
        let number = manager.client_came(pid, 1, 5).unwrap();
        let rights = Rights { read: true, write: true };
        manager.with_client(pid, number, |client| client.rights.insert(no, rights)).unwrap();
        let table = manager.engine.with_overwrites(|o| o.for_writer().unwrap()).unwrap();
        let Some(table) = table else {
            eprintln!("skipped: no sealing here");
            return None;
        };
        let record_bytes = size_of::<wire::Overwrite>();
        let map = SharedMap::new(&table, 0, (no as usize + 1) * record_bytes).unwrap();
        let state = no as usize * record_bytes + offset_of!(wire::Overwrite, state);
        map.words::<AtomicU64>(state, 1)[0]
            .store(wire::overwrite_held_by(number), Ordering::SeqCst);
        Some((number, no))
    }

    /// Whether somebody holds a file's record.
    pub(crate) fn is_overwritten(manager: &Manager, no: FileNo) -> bool {
        manager.engine.with_overwrites(|o| o.holder(no)).flatten().is_some()
    }

    pub(super) fn manager_from(min_size_bytes: u64) -> Arc<Manager> {
        let policy = pagekeeper_policy::PolicySpec::parse("lru").unwrap();
        let budget = pagekeeper_frames::Budget::new(1 << 20, policy.info().bytes_per_page);
        let frames = budget.frames(0);
        let engine = Engine::new(
            LivePort::new(),
            policy.build(frames, 1).unwrap(),
            pagekeeper_frames::Config::live(frames),
            crate::engine::table::Table::local(1 << 12),
            budget,
        );
        Manager::new(engine, Selection::new(&[], min_size_bytes).unwrap(), [0; 16]).unwrap()
    }

    pub(super) fn hello(secret: [u8; 16]) -> wire::Request {
        let secret = u128::from_be_bytes(secret);
        let mut hello = wire::Request::new(wire::Op::Hello);
        hello.a = u64::from(wire::VERSION);
        (hello.b, hello.c) = ((secret >> 64) as u64, secret as u64);
        hello
    }

    fn listener(name: &str) -> (Listener, String) {
        let name = format!("pagekeeper-test-{name}-{}", std::process::id());
        (Listener::bind(name.as_bytes(), true).unwrap(), name)
    }

    fn until(done: impl Fn() -> bool) {
        let start = std::time::Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The run ended under a process whose connection was accepted and not greeted yet, when the program
    /// ended in that moment: what it then stored was lost.
    #[test]
    fn a_run_does_not_end_under_who_connects() {
        let manager = manager();
        let (listener, name) = listener("arriving");
        assert!(!manager.in_use());
        let client = Connection::connect(name.as_bytes()).unwrap();
        assert!(manager.accept(&listener));
        assert!(manager.in_use() && !manager.close_unless_used());

        client.send(hello([0; 16]).as_bytes(), None).unwrap();
        client.recv(&mut [0; size_of::<wire::Reply>()]).unwrap().unwrap();
        until(|| !manager.is_awaited());
        assert!(manager.in_use() && !manager.close_unless_used());
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGE_BYTES).unwrap();
        assert!(opened(&manager, &file).is_some(), "it goes on as before");

        drop(client);
        until(|| !manager.in_use());
        assert!(manager.close_unless_used());
        let late = tempfile::tempfile().unwrap();
        late.set_len(PAGE_BYTES).unwrap();
        assert_eq!(opened(&manager, &late), None);
    }

    /// It was taken for one whose descriptor had found no room, and asked for again for ever.
    #[test]
    fn an_over_long_message_is_refused() {
        let manager = manager();
        let (listener, name) = listener("long");
        let client = Connection::connect(name.as_bytes()).unwrap();
        assert!(manager.accept(&listener));
        let mut bytes = [0; size_of::<wire::Reply>()];
        let mut ask = |message: &[u8]| {
            client.send(message, None).unwrap();
            client.recv(&mut bytes).unwrap().unwrap();
            wire::Reply::read_from_bytes(&bytes).unwrap().status
        };
        assert_eq!(ask(hello([0; 16]).as_bytes()), 0);
        let mut message = wire::Request::new(wire::Op::Read).as_bytes().to_vec();
        message.resize(message.len() + wire::TEXT_BYTES + 1, 0);
        assert_eq!(ask(&message), -Errno::MSGSIZE.raw_os_error());
    }

    /// Each had a thread and a descriptor for as long as it liked, and the run went on for it.
    #[test]
    fn who_says_nothing_is_sent_away() {
        let manager = manager();
        let (listener, name) = listener("silent");
        let silent = Connection::connect(name.as_bytes()).unwrap();
        assert!(manager.accept(&listener) && manager.in_use());
        until(|| manager.close_unless_used());
        assert!(silent.recv(&mut [0; 8]).unwrap().is_none());
    }

    /// Any user of the machine could keep a run from ending, by connecting again and again.
    #[test]
    fn a_strangers_silent_connections_keep_no_run_from_ending() {
        let manager = manager();
        let stranger = rustix::process::geteuid().as_raw() + 1;
        let arrive = |uid| {
            let (ours, theirs) = Connection::pair().unwrap();
            (Arriving::at(&manager, uid, &Arc::new(ours)), theirs)
        };
        let silent = arrive(stranger);
        assert!(!manager.in_use() && manager.close_unless_used());
        let own = arrive(stranger - 1);
        assert!(manager.in_use());
        drop(own);
        assert!(!manager.in_use());
        // A user as whom a program of the run runs.
        silent.0.has_arrived();
        let next = arrive(stranger);
        assert!(manager.in_use());
        drop(next);
        assert!(!manager.in_use());
    }

    #[test]
    fn of_a_strangers_connections_the_oldest_go() {
        let manager = manager();
        let stranger = rustix::process::geteuid().as_raw() + 1;
        let arrive = || {
            let (ours, theirs) = Connection::pair().unwrap();
            let ours = Arc::new(ours);
            (Arriving::at(&manager, stranger, &ours), theirs)
        };
        let all: Vec<_> = (0..STRANGERS_MAX + 2).map(|_| arrive()).collect();
        let is_gone = |(_, theirs): &(Arriving, Connection)| theirs.try_recv(&mut [0; 8]).is_ok();
        let gone: Vec<bool> = all.iter().map(is_gone).collect();
        assert!(gone[0] && gone[1] && !gone[2..].contains(&true), "{gone:?}");
        drop(all);
        assert!(!manager.in_use() && manager.strangers.lock().unwrap().is_empty());
    }
}
