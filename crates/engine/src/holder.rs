//! The holder: a second process that holds on to what must not be lost with the manager.
//!
//! When the last userfaultfd descriptor of a program closes, the kernel answers its faults with
//! zeros; when the last descriptor of a memfd closes, what was written to it is gone. So a process
//! of its own, outside the program's and the manager's process group, keeps duplicates of both,
//! and maps the page words. It is a copy of the manager from before that had anything: to execute
//! a program for it takes ten times as long. If the manager dies, the holder stops the programs
//! (their faults block, they never see a wrong byte), writes every dirty page to its file, and says
//! so.

use crate::interject::interject;
use crate::manager::Witness;
use crate::port::PAGE_BYTES;
use crate::store::Store;
use crate::table::{EXTENTS_BYTES, Table, WORDS_BYTES};
use pagekeeper_sys::Errno;
use pagekeeper_sys::file::{self, FileId, TransferFlags};
use pagekeeper_sys::process::{self, Child};
use pagekeeper_sys::shared::SharedMap;
use pagekeeper_sys::signal::{self, SignalSet};
use pagekeeper_sys::socket::Connection;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most pages written in one request.
const RUN_PAGES_MAX: usize = 256;
/// How long the holder goes on looking for processes to stop.
const STOP_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Message {
    kind: u32,
    file: u32,
}

const MEMFD: u32 = 1;
const STORE: u32 = 2;
const USERFAULT: u32 = 3;
const TAG: u32 = 4;
const DONE: u32 = 5;
const FORGET: u32 = 6;
const ANSWER: u32 = 7;
const INTERJECT: u32 = 8;

/// Whatever a user or a terminal sends to the manager and its program.
const IGNORED: [i32; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGPIPE,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTTOU,
    libc::SIGTTIN,
];

/// The manager's end.
pub struct Holder {
    socket: Mutex<Connection>,
    child: Mutex<Child>,
    /// Told to go.
    released: AtomicBool,
}

impl Holder {
    /// Starts it, and makes the tables that it shares. Call while there are no threads, and little
    /// memory, descriptors and mappings: it has a copy of all memory, and shows all mappings.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start() -> Result<(Holder, Table), Errno> {
        let (ours, theirs) = Connection::pair()?;
        let (_, words) = SharedMap::create("pagekeeper-words", WORDS_BYTES)?;
        let (_, extents) = SharedMap::create("pagekeeper-extents", EXTENTS_BYTES)?;
        let words: &'static SharedMap = Box::leak(Box::new(words));
        let extents: &'static SharedMap = Box::leak(Box::new(extents));
        let table = Table::new(words.all(), extents.all());
        let child =
            process::fork_with(theirs.into_fd(), |socket| be(Connection::from_fd(socket), table))?;
        let released = AtomicBool::new(false);
        let holder = Holder { socket: Mutex::new(ours), child: Mutex::new(child), released };
        Ok((holder, table))
    }

    /// Tells it what is in the environment of every program.
    ///
    /// # Errors
    /// It is gone.
    pub fn watch_for(&self, tag: &str) -> Result<(), Errno> {
        self.send_with(TAG, tag.as_bytes())
    }

    fn send_with(&self, kind: u32, rest: &[u8]) -> Result<(), Errno> {
        let mut message = Message { kind, file: 0 }.as_bytes().to_vec();
        message.extend_from_slice(rest);
        self.socket.lock().expect("lock").send(&message, None)
    }

    /// Has programs interrupted that make no calls, after the standby with a page of this inode
    /// ([`crate::interject`]).
    pub(crate) fn interject(&self, board_inode: u64) -> Result<(), Errno> {
        self.send_with(INTERJECT, &board_inode.to_le_bytes())
    }

    fn send(&self, kind: u32, file: u32, fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let message = Message { kind, file };
        self.socket.lock().expect("lock").send(message.as_bytes(), fd)
    }

    /// All is written back: the holder may go.
    pub fn release(&self) {
        self.released.store(true, Ordering::SeqCst);
        let _ = self.send(DONE, 0, None);
    }

    /// Releases it, once more if need be, and waits until it is gone.
    pub fn end(&self) {
        self.release();
        self.child.lock().expect("lock").wait();
    }

    /// Whether it has ended before it was told to.
    pub fn lost(&self) -> bool {
        self.child.lock().expect("lock").has_ended() && !self.released.load(Ordering::SeqCst)
    }

    /// The holder's process id.
    pub fn pid(&self) -> u32 {
        self.child.lock().expect("lock").id()
    }
}

impl Witness for std::sync::Arc<Holder> {
    fn file(&self, no: u32, memfd: BorrowedFd<'_>, store: BorrowedFd<'_>) {
        let _ = self.send(MEMFD, no, Some(memfd));
        let _ = self.send(STORE, no, Some(store));
    }

    fn memory(&self, no: u32, memfd: BorrowedFd<'_>) {
        let _ = self.send(MEMFD, no, Some(memfd));
    }

    fn forget(&self, no: u32) {
        let _ = self.send(FORGET, no, None);
    }

    fn settle(&self) {
        let socket = self.socket.lock().expect("lock");
        let message = Message { kind: ANSWER, file: 0 };
        if socket.send(message.as_bytes(), None).is_ok() {
            let _ = socket.recv(&mut [0; size_of::<Message>()]);
        }
    }

    fn space(&self, userfault: BorrowedFd<'_>) {
        let _ = self.send(USERFAULT, 0, Some(userfault));
    }
}

/// What the holder process does.
fn be(socket: Connection, table: Table) {
    for number in IGNORED {
        let _ = signal::ignore(number, true);
    }
    let _ = signal::set_mask(&SignalSet::of(&[]));
    let _ = process::set_name("pk-holder");
    // Who ends the manager by its command line is not to end this one.
    let _ = process::set_title("pagekeeper holder");
    // Out of the manager's process group and away from its terminal.
    let _ = process::setsid();
    match hold(&socket) {
        Ok(None) => {}
        Ok(Some(held)) => {
            let rescue = held.rescue(&table);
            let lost = match rescue.lost_pages {
                0 => String::new(),
                pages => format!("; {pages} dirty pages could not be written"),
            };
            let unsynced = match rescue.unsynced_files {
                0 => String::new(),
                files => format!("; {files} files could not be synced to storage"),
            };
            eprintln!(
                "pagekeeper: the manager died; stopped {} processes, wrote {} dirty pages \
                 back{lost}{unsynced}",
                rescue.stopped, rescue.written_pages
            );
        }
        Err(errno) => eprintln!("pagekeeper: the holder's socket: {errno}"),
    }
}

#[derive(Default)]
struct Held {
    memfds: HashMap<u32, OwnedFd>,
    stores: HashMap<u32, OwnedFd>,
    userfaults: Vec<OwnedFd>,
    tag: Vec<u8>,
}

/// What a holder did after its manager died.
#[derive(Default)]
struct Rescue {
    /// Processes stopped.
    stopped: usize,
    /// Dirty pages written to their files.
    written_pages: usize,
    /// Dirty pages that could not be written.
    lost_pages: usize,
    /// Files that were written to, but may not survive a power cut.
    unsynced_files: usize,
}

/// Holds until the manager says it is done (`None`), or dies.
fn hold(socket: &Connection) -> Result<Option<Held>, Errno> {
    // It holds two descriptors a file, and a message whose descriptor finds no room loses it.
    pagekeeper_sys::launch::raise_open_files_limit();
    let mut held = Held::default();
    let mut buffer = [0u8; 512];
    loop {
        let (len, fd) = match socket.recv(&mut buffer) {
            Ok(None) => break,
            Ok(Some(received)) => (received.bytes, received.fd),
            Err(Errno::CONNRESET) => break,
            Err(errno) => return Err(errno),
        };
        let Ok((message, rest)) = Message::read_from_prefix(&buffer[..len]) else { continue };
        match (message.kind, fd) {
            (DONE, _) => return Ok(None),
            (TAG, _) => held.tag = rest.to_vec(),
            (INTERJECT, _) => {
                if let Some(inode) = rest.first_chunk() {
                    let inode = u64::from_le_bytes(*inode);
                    // Without it such programs go on with what the kernel has mapped for them.
                    let _ = process::fork(move || interject(inode));
                }
            }
            (FORGET, _) => {
                held.memfds.remove(&message.file);
                held.stores.remove(&message.file);
            }
            (ANSWER, _) => socket.send(message.as_bytes(), None)?,
            (MEMFD, Some(fd)) => {
                held.memfds.insert(message.file, fd);
            }
            (STORE, Some(fd)) => {
                held.stores.insert(message.file, fd);
            }
            (USERFAULT, Some(fd)) => {
                held.userfaults.retain(|fd| {
                    rustix::io::fcntl_dupfd_cloexec(fd, 0).is_ok_and(|copy| {
                        pagekeeper_sys::userfault::Userfault::from_fd(copy).is_alive()
                    })
                });
                held.userfaults.push(fd);
            }
            _ => {}
        }
    }
    Ok(Some(held))
}

impl Held {
    fn rescue(mut self, table: &Table) -> Rescue {
        let stopped = stop_programs(&self.tag, &self.memory_files());
        let mut rescue = Rescue { stopped, ..Rescue::default() };
        let stores: HashMap<u32, Store> =
            self.stores.drain().map(|(no, fd)| (no, Store::adopt(fd))).collect();
        let mut dirty: Vec<_> = table.dirty().collect();
        dirty.sort_unstable();
        let mut rest = &dirty[..];
        while let Some(first) = rest.first() {
            let mut n = 1;
            while n < rest.len().min(RUN_PAGES_MAX)
                && rest[n].segment == first.segment
                && rest[n].index == first.index + n as u64
            {
                n += 1;
            }
            let ends = (self.memfds.get(&first.segment.0), stores.get(&first.segment.0));
            let write = |index: u64, pages: usize| {
                let (Some(memfd), Some(store)) = ends else { return false };
                let mut data = vec![0u8; pages * PAGE_BYTES as usize];
                let offset = index * PAGE_BYTES;
                read_all(memfd, &mut data, offset) && store.store(offset, &data, u64::MAX).is_ok()
            };
            let written = if write(first.index, n) {
                n
            } else {
                // One bad page must not take its neighbours along.
                (0..n).filter(|&i| write(first.index + i as u64, 1)).count()
            };
            rescue.written_pages += written;
            rescue.lost_pages += n - written;
            rest = &rest[n..];
        }
        rescue.unsynced_files = stores.values().filter(|store| store.sync().is_err()).count();
        rescue
    }

    fn memory_files(&self) -> HashSet<FileId> {
        self.memfds.values().filter_map(|fd| file::stat(fd).ok()).map(|stat| stat.id).collect()
    }
}

fn read_all(fd: &OwnedFd, data: &mut [u8], offset: u64) -> bool {
    let mut done = 0;
    while done < data.len() {
        let mut bufs = [std::io::IoSliceMut::new(&mut data[done..])];
        match file::read_at(fd, &mut bufs, offset + done as u64, TransferFlags::empty()) {
            Ok(0) | Err(_) => return false,
            Ok(n) => done += n,
        }
    }
    true
}

/// Whether a process maps one of these memory files.
fn maps_any(pid: u32, files: &HashSet<FileId>) -> bool {
    let mut found = false;
    let _ = process::for_each_mapping(pid, |mapping| {
        let dev = rustix::fs::makedev(mapping.dev_major, mapping.dev_minor);
        found |= files.contains(&FileId { dev, ino: mapping.inode });
        !found
    });
    found
}

/// Kills every process that has the tag in its environment, until none is left; and those that map
/// the memory files, since a program may have written something else over its environment.
fn stop_programs(tag: &[u8], files: &HashSet<FileId>) -> usize {
    let start = Instant::now();
    let me = std::process::id();
    let mut stopped = 0;
    while !tag.is_empty() && start.elapsed() < STOP_MAX {
        let mut found = 0;
        for pid in process::all() {
            let Ok(environ) = std::fs::read(format!("/proc/{pid}/environ")) else { continue };
            let tagged = environ.windows(tag.len()).any(|w| w == tag);
            if pid == me || !(tagged || maps_any(pid, files)) {
                continue;
            }
            if process::pidfd_open(pid)
                .and_then(|fd| process::send_signal(fd.as_fd(), libc::SIGKILL))
                .is_ok()
            {
                found += 1;
            }
        }
        if found == 0 {
            break;
        }
        stopped += found;
        std::thread::sleep(Duration::from_millis(20));
    }
    stopped
}
