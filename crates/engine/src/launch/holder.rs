//! The holder: a second process that holds on to what must not be lost with the manager.
//!
//! When the last userfaultfd descriptor of a program closes, the kernel answers its faults with
//! zeros; when the last descriptor of a memfd closes, what was written to it is gone. So a process
//! of its own, outside the program's and the manager's process group, keeps duplicates of both,
//! and maps the page words. It is a copy of the manager from before that had anything: to execute
//! a program for it takes ten times as long. If the manager dies, the holder stops the programs
//! (their faults block, and so do programs that start meanwhile: they never see a wrong byte), writes
//! every dirty page to its file, and says so.

use crate::engine::table::{DIGESTS_BYTES, EXTENTS_BYTES, Table, WORDS_BYTES};
use crate::live::store::Store;
use crate::manager::server::errno_of;
use crate::manager::{Witness, path_of};
use crate::port::{PAGE_BYTES, SpaceNo};
use crate::standby::interject::interject;
use pagekeeper_frames::Place;
use pagekeeper_policy::Page;
use pagekeeper_sys::Errno;
use pagekeeper_sys::file::{self, FileId, TransferFlags};
use pagekeeper_sys::process::{self, Child};
use pagekeeper_sys::shared::SharedMap;
use pagekeeper_sys::signal::{self, SignalSet};
use pagekeeper_sys::socket::{Connection, Listener};
use pagekeeper_sys::userfault::Userfault;
use pagekeeper_wire as wire;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most pages written in one request.
const RUN_PAGES_MAX: usize = 32;
/// How long the holder goes on looking for processes to stop.
const STOP_MAX: Duration = Duration::from_secs(10);
/// How often it looks.
const STOP_EVERY: Duration = Duration::from_millis(20);

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
const OWNER: u32 = 9;
const CLIENT: u32 = 10;
const CLIENT_GONE: u32 = 11;
const LISTENER: u32 = 12;
const LEASH: u32 = 13;
const LEASH_GONE: u32 = 14;

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
        let mut table = Table::new(words.all(), extents.all());
        if let Ok((_, digests)) = SharedMap::create("pagekeeper-digests", DIGESTS_BYTES) {
            table = table.with_digests(Box::leak(Box::new(digests)).all());
        }
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
        self.send_with(TAG, 0, tag.as_bytes(), None)
    }

    /// Has it keep a place where programs connect. Once the manager has died, who connects waits there: for
    /// its end, or until all that the manager left is in the files.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn keep_listener(&self, listener: &Listener) -> Result<(), Errno> {
        self.send(LISTENER, 0, Some(listener.as_fd()))
    }

    fn send_with(
        &self,
        kind: u32,
        file: u32,
        rest: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), Errno> {
        let mut message = Message { kind, file }.as_bytes().to_vec();
        message.extend_from_slice(rest);
        self.socket.lock().expect("lock").send(&message, fd)
    }

    /// Has programs interrupted that make no calls, after the standby with a page of this inode
    /// ([`crate::standby::interject`]).
    pub(crate) fn interject(&self, board_inode: u64) -> Result<(), Errno> {
        self.send_with(INTERJECT, 0, &board_inode.to_le_bytes(), None)
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

    fn space(&self, no: SpaceNo, userfault: BorrowedFd<'_>) {
        let _ = self.send(USERFAULT, no, Some(userfault));
    }

    fn owner(&self, no: SpaceNo, pid: u32, process: BorrowedFd<'_>) {
        let _ = self.send_with(OWNER, no, &pid.to_le_bytes(), Some(process));
    }

    fn client(&self, pid: u32, process: BorrowedFd<'_>) {
        let _ = self.send(CLIENT, pid, Some(process));
    }

    fn leash(&self, pid: u32, held: BorrowedFd<'_>) {
        let _ = self.send(LEASH, pid, Some(held));
    }

    fn leash_gone(&self, pid: u32) {
        let _ = self.send(LEASH_GONE, pid, None);
    }

    fn client_gone(&self, pid: u32) {
        let _ = self.send(CLIENT_GONE, pid, None);
    }
}

/// What the holder process does.
fn be(socket: Connection, table: Table) {
    for number in IGNORED {
        let _ = signal::ignore(number, true);
    }
    // Its children's ids are theirs until it has looked.
    let _ = signal::ignore(libc::SIGCHLD, false);
    let _ = signal::set_mask(&SignalSet::of(&[]));
    let _ = process::set_name("pk-holder");
    // Who ends the manager by its command line is not to end this one.
    let _ = process::set_title("pagekeeper holder");
    // Nor is the holder of another run to, under which this one's manager runs: it looks for that
    // run's programs, and if it ended both, nobody would be left to hold ours.
    let _ = process::hide_variable(wire::ENV_SOCKET);
    // Where that is allowed: it is small, and whoever is ended for lack of memory needs it then.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    // Out of the manager's process group and away from its terminal.
    let _ = process::setsid();
    let Some(mut held) = hold(&socket) else { return };
    let rescue = held.rescue(&table);
    eprintln!("pagekeeper: {}", rescue.told());
    held.outlive_programs();
}

/// A process that interrupts programs ([`crate::standby::interject`]). It ends with the holder in any case, but
/// after it: who removes the run's cgroup, or looks for what is left of the run, would find it.
struct Interjector(Child);

impl Drop for Interjector {
    fn drop(&mut self) {
        self.0.kill();
    }
}

#[derive(Default)]
struct Held {
    memfds: HashMap<u32, OwnedFd>,
    stores: HashMap<u32, OwnedFd>,
    spaces: HashMap<SpaceNo, HeldSpace>,
    /// Processes with connections, by their ids.
    clients: HashMap<u32, OwnedFd>,
    /// What ends them when this process has died, too.
    leashes: HashMap<u32, OwnedFd>,
    /// Where programs connect. They close with the holder.
    listeners: Vec<OwnedFd>,
    interjectors: Vec<Interjector>,
    tag: Vec<u8>,
}

/// The memory of a process.
struct HeldSpace {
    userfault: Userfault,
    /// Whose it is, once that is known.
    owner: Option<(u32, OwnedFd)>,
}

/// What a holder did after its manager died.
#[derive(Default)]
struct Rescue {
    /// Processes stopped.
    stopped: usize,
    /// Dirty pages written to their files.
    written_pages: usize,
    /// Of which files dirty pages could not be written: how many, and why.
    lost: BTreeMap<String, (usize, String)>,
    /// Files that were written to, but may not survive a power cut, and why.
    unsynced: BTreeMap<String, String>,
}

/// Most files that are named.
const NAMED_MAX: usize = 5;

fn counted(number: usize, one: &str, more: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { more })
}

impl Rescue {
    fn told(&self) -> String {
        let named = |files: Vec<String>| {
            let more = files.len().saturating_sub(NAMED_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("{}{more}", files[..files.len().min(NAMED_MAX)].join(", "))
        };
        let mut text = format!(
            "the manager died; stopped {}, wrote {} back",
            counted(self.stopped, "process", "processes"),
            counted(self.written_pages, "dirty page", "dirty pages")
        );
        if !self.lost.is_empty() {
            let pages = self.lost.values().map(|(pages, _)| pages).sum();
            let of = |(name, (pages, why)): (&String, &(usize, String))| {
                format!("{pages} of {name} ({why})")
            };
            text += &format!(
                "; {} could not be written: {}",
                counted(pages, "dirty page", "dirty pages"),
                named(self.lost.iter().map(of).collect())
            );
        }
        if !self.unsynced.is_empty() {
            let of = |(name, why): (&String, &String)| format!("{name} ({why})");
            let files = named(self.unsynced.iter().map(of).collect());
            text += &format!("; could not be synced to storage: {files}");
        }
        text
    }
}

/// Holds until the manager says it is done (`None`), or dies.
fn hold(socket: &Connection) -> Option<Held> {
    // It holds two descriptors a file, and a message whose descriptor finds no room loses it.
    pagekeeper_sys::launch::raise_open_files_limit();
    let mut held = Held::default();
    let mut buffer = [0u8; 512];
    loop {
        let (len, fd) = match socket.recv(&mut buffer) {
            Ok(None) => break,
            Ok(Some(received)) => (received.bytes, received.fd),
            Err(Errno::CONNRESET) => break,
            // Without memory for the message, perhaps: it waits, and the manager's end shows.
            Err(_) => {
                std::thread::sleep(STOP_EVERY);
                continue;
            }
        };
        let Ok((message, rest)) = Message::read_from_prefix(&buffer[..len]) else { continue };
        match (message.kind, fd) {
            (DONE, _) => return None,
            (TAG, _) => held.tag = rest.to_vec(),
            (INTERJECT, _) => {
                if let Some(inode) = rest.first_chunk() {
                    let inode = u64::from_le_bytes(*inode);
                    held.interjectors.retain_mut(|one| !one.0.has_ended());
                    // Without it such programs go on with what the kernel has mapped for them.
                    let made = process::fork(move || interject(inode));
                    held.interjectors.extend(made.map(Interjector));
                }
            }
            (FORGET, _) => {
                held.memfds.remove(&message.file);
                held.stores.remove(&message.file);
            }
            // A manager that has died meanwhile needs none.
            (ANSWER, _) => _ = socket.send(message.as_bytes(), None),
            (MEMFD, Some(fd)) => {
                held.memfds.insert(message.file, fd);
            }
            (STORE, Some(fd)) => {
                held.stores.insert(message.file, fd);
            }
            (USERFAULT, Some(fd)) => {
                held.spaces.retain(|_, space| space.userfault.is_alive());
                let userfault = Userfault::from_fd(fd);
                held.spaces.insert(message.file, HeldSpace { userfault, owner: None });
            }
            (OWNER, Some(fd)) => {
                if let (Some(space), Some(pid)) =
                    (held.spaces.get_mut(&message.file), rest.first_chunk())
                {
                    space.owner = Some((u32::from_le_bytes(*pid), fd));
                }
            }
            (CLIENT, Some(fd)) => {
                held.clients.insert(message.file, fd);
            }
            (LEASH, Some(fd)) => {
                held.leashes.insert(message.file, fd);
            }
            (LEASH_GONE, _) => {
                held.leashes.remove(&message.file);
            }
            (LISTENER, Some(fd)) => held.listeners.push(fd),
            (CLIENT_GONE, _) => {
                held.clients.remove(&message.file);
            }
            _ => {}
        }
    }
    Some(held)
}

impl Held {
    fn rescue(&mut self, table: &Table) -> Rescue {
        let stopped = self.stop_programs();
        let mut rescue = Rescue { stopped, ..Rescue::default() };
        let named = |(no, fd): (u32, OwnedFd)| (no, (path_of(fd.as_fd()), Store::adopt(fd)));
        let stores: HashMap<u32, (String, Store)> = self.stores.drain().map(named).collect();
        let is_stored_to = |&(page, place): &(Page, Place)| {
            // Others may have written to what nobody stored to here.
            let Some(then) = table.presumption(page) else { return true };
            let Some(memfd) = self.memfds.get(&place.segment.0) else { return true };
            let mut data = [0; PAGE_BYTES as usize];
            !read_all(memfd, &mut data, place.index * PAGE_BYTES)
                || table.digest(&data) != Some(then)
        };
        let dirty = table.numbered_dirty().filter(is_stored_to);
        let mut dirty: Vec<Place> = dirty.map(|(_, place)| place).collect();
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
                let (Some(memfd), Some((_, store))) = ends else {
                    return Err("its memory or its file is not at hand".to_owned());
                };
                let mut data = vec![0u8; pages * PAGE_BYTES as usize];
                let offset = index * PAGE_BYTES;
                if !read_all(memfd, &mut data, offset) {
                    return Err("its memory cannot be read".to_owned());
                }
                let stored = store.store(offset, &data, u64::MAX);
                stored.map_err(|error| errno_of(error).to_string())
            };
            let name = || ends.1.map_or("?", |(name, _)| name).to_owned();
            if write(first.index, n).is_ok() {
                rescue.written_pages += n;
            } else {
                // One bad page must not take its neighbours along.
                for i in 0..n {
                    match write(first.index + i as u64, 1) {
                        Ok(()) => rescue.written_pages += 1,
                        Err(why) => rescue.lost.entry(name()).or_insert((0, why)).0 += 1,
                    }
                }
            }
            rest = &rest[n..];
        }
        for (name, store) in stores.values() {
            if let Err(error) = store.sync() {
                rescue.unsynced.insert(name.clone(), errno_of(error).to_string());
            }
        }
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

/// Ends a process, unless it has ended.
fn kill(process: &OwnedFd) -> bool {
    !process::has_ended(process) && process::send_signal(process, libc::SIGKILL).is_ok()
}

impl Held {
    /// Processes that are known by more than what can be read of them: who may not be looked at
    /// (prctl(2), PR_SET_DUMPABLE) shows nobody its environment.
    fn known(&self) -> impl Iterator<Item = (u32, &OwnedFd)> {
        // The program that follows in a process is not the one that it was when it had this memory.
        let spaces = self.spaces.values().filter(|space| space.userfault.is_alive());
        let owners = spaces.filter_map(|space| space.owner.as_ref());
        let clients = self.clients.iter().map(|(pid, process)| (*pid, process));
        clients.chain(owners.map(|(pid, process)| (*pid, process)))
    }

    /// Kills every process that is known, that has the tag in its environment, or that maps the
    /// memory files (since a program may have written something else over its environment), until
    /// none is left.
    fn stop_programs(&self) -> usize {
        let (start, me, files) = (Instant::now(), std::process::id(), self.memory_files());
        let mut stopped = HashSet::new();
        while start.elapsed() < STOP_MAX {
            let known = self.known().filter(|(_, process)| kill(process));
            let mut found: HashSet<u32> = known.map(|(pid, _)| pid).collect();
            for pid in process::all().filter(|_| !self.tag.is_empty()) {
                let Ok(environ) = std::fs::read(format!("/proc/{pid}/environ")) else { continue };
                let tagged = environ.windows(self.tag.len()).any(|w| w == self.tag);
                if pid == me || !(tagged || maps_any(pid, &files)) {
                    continue;
                }
                if process::pidfd_open(pid).is_ok_and(|process| kill(&process)) {
                    found.insert(pid);
                }
            }
            if found.is_empty() {
                break;
            }
            stopped.extend(found);
            std::thread::sleep(STOP_EVERY);
        }
        stopped.len()
    }

    /// Returns when no process lives any more whose memory this is: when nobody holds its userfaultfd,
    /// the kernel gives it zeros for what is not there.
    fn outlive_programs(&self) {
        let lives = || self.spaces.values().any(|space| space.userfault.is_alive());
        if lives() {
            eprintln!(
                "pagekeeper: a process could not be stopped; what it waits for never comes: end it"
            );
        }
        while lives() {
            self.known().for_each(|(_, process)| _ = kill(process));
            std::thread::sleep(STOP_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_is_told_by_its_files() {
        let mut rescue = Rescue { stopped: 1, written_pages: 2, ..Rescue::default() };
        let written = "the manager died; stopped 1 process, wrote 2 dirty pages back";
        assert_eq!(rescue.told(), written);
        for file in 0..7 {
            rescue.lost.insert(format!("/data/{file}"), (file + 1, "it is full".to_owned()));
        }
        rescue.unsynced.insert("/data/8".to_owned(), "it is gone".to_owned());
        let told = rescue.told();
        let lost = "; 28 dirty pages could not be written: 1 of /data/0 (it is full), ";
        assert!(told.starts_with(&format!("{written}{lost}")), "{told}");
        let more = "5 of /data/4 (it is full) and 2 more; could not be synced to storage: ";
        assert!(told.ends_with(&format!("{more}/data/8 (it is gone)")), "{told}");
    }
}
