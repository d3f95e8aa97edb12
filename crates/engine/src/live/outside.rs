//! Notices when somebody outside changes a managed file: a watch on each.
//!
//! Writes and truncations by system calls are told of within milliseconds, the run's own among them.
//! fanotify, where it may be used (root), says who made them, so that whatever somebody outside writes
//! is known for that ([`crate::engine::hearsay`]). inotify does not: whose a change was follows from the file's
//! times, noted after each write of our own. Stores through somebody else's mapping are not told of by
//! the kernel, nor what it writes on behalf of others (libaio, loop devices): those are found when the file
//! is next opened, mapped, locked, synced or written back, or looked at, which is ten times a second.
//! Deleted files are noticed too ([`crate::manager::letgo`]), by inotify.

use crate::live::store::Store;
use crate::live::ticks;
use crate::manager::Manager;
use crate::port::FileNo;
use pagekeeper_sys::event::EventFd;
use pagekeeper_sys::fanotify::{self, Fanotify, Modified};
use pagekeeper_sys::ring::closing::ClosedLate;
use pagekeeper_sys::{Errno, clock};
use pagekeeper_wire as wire;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::MaybeUninit;
use std::ops::Bound;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Bytes of inotify's events that are read at once.
const EVENTS_BYTES: usize = 4096;

/// Files without a watch that are looked at at once,
const LOOKS_AT_ONCE: usize = 256;
/// and files with one: for what nobody is told of.
const SIDE_LOOKS_AT_ONCE: usize = 64;

/// How long nobody listens after a file was written to.
const PAUSE: Duration = Duration::from_millis(1);

/// Who changed a file, as far as that is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    /// A program of the run, or anybody: its times tell.
    Anybody,
    /// Somebody outside, which is noted.
    Outside,
}

/// The watches.
pub(crate) struct Watches {
    /// None where this user has as many as a user may.
    inotify: Option<OwnedFd>,
    watched: Mutex<ByWatch>,
    writers: Option<Writers>,
    /// What was heard, and is to be followed by the thread that watches.
    heard: Mutex<BTreeMap<FileNo, Who>>,
    /// Wakes it, when something was heard by another.
    kick: EventFd,
    /// So that the end of the run does not wait for the end of the watches; from the first file on.
    late: OnceLock<Option<ClosedLate>>,
}

/// inotify's watches, each of one file.
#[derive(Default)]
struct ByWatch {
    files: HashMap<i32, FileNo>,
    watches: HashMap<FileNo, i32>,
}

impl ByWatch {
    fn insert(&mut self, watch: i32, no: FileNo) {
        if let Some(before) = self.files.insert(watch, no).filter(|before| *before != no) {
            self.watches.remove(&before);
        }
        self.watches.insert(no, watch);
    }

    fn remove(&mut self, no: FileNo) -> Option<i32> {
        let watch = self.watches.remove(&no)?;
        self.files.remove(&watch);
        Some(watch)
    }
}

/// Files of which some are looked at at a time, one after the other.
#[derive(Default)]
pub(crate) struct Rotation {
    files: BTreeSet<FileNo>,
    last: FileNo,
}

impl Rotation {
    fn add(&mut self, no: FileNo) {
        self.files.insert(no);
    }

    pub(crate) fn remove(&mut self, no: FileNo) {
        self.files.remove(&no);
    }

    /// The next ones, of those that are there yet.
    fn next(&mut self, count: usize, is_there: impl Fn(FileNo) -> bool) -> Vec<FileNo> {
        let behind = (Bound::Excluded(self.last), Bound::Unbounded);
        let before = (Bound::Unbounded, Bound::Included(self.last));
        let next = self.files.range(behind).chain(self.files.range(before)).take(count);
        let (there, gone): (Vec<FileNo>, Vec<FileNo>) = next.copied().partition(|no| is_there(*no));
        self.last = there.iter().chain(&gone).copied().last().unwrap_or(self.last);
        gone.iter().for_each(|no| _ = self.files.remove(no));
        there
    }
}

/// What comes of a file's watch.
pub(crate) struct Watched {
    /// Whoever writes to it is [heard of](Manager::hear).
    pub(crate) is_heard: bool,
    /// Its changes are told of, and its end.
    pub(crate) is_whole: bool,
}

/// Who writes to which file.
struct Writers {
    fanotify: Fanotify,
    /// The files by their handles. Two of different file systems may have the same one.
    files: Mutex<HashMap<Box<[u8]>, Vec<FileNo>>>,
    /// Held until all is noted that was read: who finds nothing to read relies on that.
    buffer: Mutex<Box<[u8; fanotify::BUFFER_BYTES]>>,
}

impl Writers {
    fn new() -> Result<Writers, Errno> {
        let buffer = Mutex::new(Box::new([0; fanotify::BUFFER_BYTES]));
        Ok(Writers { fanotify: Fanotify::new()?, files: Mutex::default(), buffer })
    }

    fn add(&self, no: FileNo, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        let handle = fanotify::handle_of(fd)?;
        let mut files = self.files.lock().expect("lock");
        self.fanotify.add(fd)?;
        let known = files.entry(handle).or_default();
        if !known.contains(&no) {
            known.push(no);
        }
        Ok(())
    }

    fn remove(&self, no: FileNo, fd: Option<BorrowedFd<'_>>) {
        let handle = fd.and_then(|fd| fanotify::handle_of(fd).ok());
        let mut files = self.files.lock().expect("lock");
        let mut is_known = false;
        let mut forget = |known: &mut Vec<FileNo>| {
            is_known |= known.contains(&no);
            known.retain(|known| *known != no);
            !known.is_empty()
        };
        match handle {
            Some(handle) => {
                if files.get_mut(&handle).is_some_and(|known| !forget(known)) {
                    files.remove(&handle);
                }
            }
            // It is not to be had any more.
            None => files.retain(|_, known| forget(known)),
        }
        if let Some(fd) = fd.filter(|_| is_known) {
            let _ = self.fanotify.remove(fd);
        }
    }

    /// The files that an event is about.
    fn files(&self, event: &Modified<'_>) -> Vec<FileNo> {
        let files = self.files.lock().expect("lock");
        match event.handle {
            Some(handle) => files.get(handle).cloned().unwrap_or_default(),
            None => files.values().flatten().copied().collect(),
        }
    }
}

impl Watches {
    pub(crate) fn new() -> Result<Watches, Errno> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        Ok(Watches {
            inotify: inotify::init(flags).ok(),
            watched: Mutex::default(),
            writers: Writers::new().ok(),
            heard: Mutex::default(),
            kick: EventFd::new()?,
            late: OnceLock::new(),
        })
    }

    /// Leaves the last close of both queues to the kernel.
    fn close_late(&self) {
        self.late.get_or_init(|| {
            let queues = [
                self.inotify.as_ref().map(AsFd::as_fd),
                self.writers.as_ref().map(|writers| writers.fanotify.as_fd()),
            ];
            ClosedLate::new(&queues.into_iter().flatten().collect::<Vec<_>>()).ok()
        });
    }

    /// Watches the file behind a descriptor: who writes to it, who removes a name of it, and with
    /// `closing` who closes it.
    pub(crate) fn add(&self, no: FileNo, fd: BorrowedFd<'_>, closing: bool) -> Watched {
        self.close_late();
        let is_heard = self.writers.as_ref().is_some_and(|writers| writers.add(no, fd).is_ok());
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let mut watched = self.watched.lock().expect("lock");
        let mut what = WatchFlags::ATTRIB;
        what.set(WatchFlags::MODIFY, !is_heard);
        what.set(WatchFlags::CLOSE, closing);
        let inotify = self.inotify.as_ref();
        let watch =
            inotify.and_then(|inotify| inotify::add_watch(inotify, path.as_str(), what).ok());
        if let Some(watch) = watch {
            watched.insert(watch, no);
        }
        Watched { is_heard, is_whole: watch.is_some() }
    }

    /// Ends the watch of a file, to which a descriptor leads.
    pub(crate) fn remove(&self, no: FileNo, fd: Option<BorrowedFd<'_>>) {
        if let Some(writers) = &self.writers {
            writers.remove(no, fd);
        }
        let mut watched = self.watched.lock().expect("lock");
        if let (Some(inotify), Some(watch)) = (&self.inotify, watched.remove(no)) {
            let _ = inotify::remove_watch(inotify, watch);
        }
    }

    fn wait(&self) -> Result<(), Errno> {
        let listen = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds = vec![listen(self.kick.as_fd())];
        fds.extend(self.inotify.as_ref().map(|inotify| listen(inotify.as_fd())));
        fds.extend(self.writers.as_ref().map(|writers| listen(writers.fanotify.as_fd())));
        loop {
            match poll(&mut fds, None) {
                Ok(_) => return self.kick.drain().map(drop),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl Manager {
    /// Listens to who wrote to managed files. What somebody outside wrote by system calls that returned
    /// before is known then ([`changed_outside`](crate::engine::Engine::changed_outside)); that it is
    /// followed, and what others wrote, another thread sees to.
    pub(crate) fn hear(&self) {
        let Some(watches) = &self.watches else { return };
        let Some(writers) = &watches.writers else { return };
        let own = std::process::id();
        let mut heard = BTreeMap::new();
        let mut buffer = writers.buffer.lock().expect("lock");
        let _ = writers.fanotify.drain(&mut buffer, |event| {
            if event.pid == own {
                return;
            }
            let is_client = self.clients.lock().expect("lock").contains_key(&event.pid);
            for no in writers.files(&event) {
                if !is_client {
                    self.engine.changed_outside(no);
                }
                let who = if is_client { Who::Anybody } else { Who::Outside };
                let known = heard.entry(no).or_insert(who);
                *known = who.max(*known);
            }
        });
        drop(buffer);
        if heard.is_empty() {
            return;
        }
        let mut all = watches.heard.lock().expect("lock");
        let is_first = all.is_empty();
        for (no, who) in heard {
            let known = all.entry(no).or_insert(who);
            *known = who.max(*known);
        }
        drop(all);
        if is_first {
            let _ = watches.kick.notify();
        }
    }

    /// Follows a file as it is now. Nothing old is in memory any more, when this returns, of what
    /// somebody outside wrote before.
    pub(crate) fn look(&self, no: FileNo) {
        let begun_ns = clock::monotonic_ns();
        self.hear();
        self.engine.refresh_size(no, false);
        self.engine.end_doubt(no, begun_ns);
    }

    /// A file's times count in ticks, as far as is known. (Of a server's, its own clock makes the times.)
    fn count_ticks(&self, no: FileNo, store: &Store) {
        if !store.file_system.is_remote() && !ticks::has_fine_times(store.file_system) {
            store.ticks.begin();
            self.set_slot_flags(no, wire::SLOT_TICKS);
        }
    }

    /// Watches a file that is about to be managed.
    pub(crate) fn watch_outside(&self, no: FileNo, fd: BorrowedFd<'_>) {
        let watched = self.watches.as_ref().map(|watches| watches.add(no, fd, false));
        if watched.as_ref().is_some_and(|watched| watched.is_heard) {
            self.engine.hears(no);
        }
        let live = self.engine.port().file(no);
        let store = live.as_ref().and_then(|live| live.store());
        store.inspect(|store| self.count_ticks(no, store));
        let is_remote = store.is_some_and(|store| store.file_system.is_remote());
        let is_told = watched.is_some_and(|watched| watched.is_whole);
        if !is_told || is_remote {
            self.unwatched.lock().expect("lock").add(no);
        } else {
            self.watched.lock().expect("lock").add(no);
        }
        if !is_told {
            self.note(
                "this user has no inotify watches left: what others do to some files is looked for \
                 ten times a second",
            );
        }
    }

    /// Looks at files that have no watch, some at a time, and at those of which it does not tell all: what the
    /// kernel writes on behalf of others (`io_submit(2)`, loop devices) and stores through mappings.
    pub(crate) fn look_at_unwatched(&self) {
        let is_there = |no| self.engine.port().file(no).is_some();
        let some = self.unwatched.lock().expect("lock").next(LOOKS_AT_ONCE, is_there);
        for no in some {
            self.look(no);
            self.note_if_deleted(no);
        }
        let some = self.watched.lock().expect("lock").next(SIDE_LOOKS_AT_ONCE, is_there);
        some.into_iter().for_each(|no| self.engine.look_for_changes(no));
    }

    /// Follows changes until the descriptors fail. Runs on a thread of its own.
    pub(crate) fn watch_loop(&self) {
        let Some(watches) = &self.watches else { return };
        let mut buffer = [MaybeUninit::uninit(); EVENTS_BYTES];
        while watches.wait().is_ok() {
            let inotify = watches.inotify.as_ref();
            let mut reader = inotify.map(|inotify| inotify::Reader::new(inotify, &mut buffer));
            let mut is_told = false;
            while let Some(reader) = &mut reader {
                let (watch, what) = match reader.next() {
                    Ok(event) => (event.wd(), event.events()),
                    Err(Errno::INTR) => continue,
                    Err(Errno::AGAIN) => break,
                    Err(_) => return,
                };
                if what.contains(ReadFlags::QUEUE_OVERFLOW) {
                    self.look_for_deleted();
                    let all: Vec<FileNo> =
                        watches.watched.lock().expect("lock").files.values().copied().collect();
                    all.into_iter().for_each(|no| self.engine.look_for_changes(no));
                }
                // Times that ours close are attributes, too, and no end of a file.
                is_told |= what.intersects(!(ReadFlags::MODIFY | ReadFlags::ATTRIB));
                let no = watches.watched.lock().expect("lock").files.get(&watch).copied();
                let Some(no) = no else { continue };
                if what.contains(ReadFlags::MODIFY) {
                    watches.heard.lock().expect("lock").entry(no).or_insert(Who::Anybody);
                }
                if what.contains(ReadFlags::ATTRIB) {
                    is_told |= self.note_if_deleted(no);
                }
                if what.intersects(ReadFlags::CLOSE_WRITE | ReadFlags::CLOSE_NOWRITE) {
                    self.may_be_unused(no);
                }
            }
            self.hear();
            let heard = std::mem::take(&mut *watches.heard.lock().expect("lock"));
            for (no, who) in heard {
                match who {
                    Who::Anybody => self.engine.look_for_changes(no),
                    Who::Outside => _ = self.engine.refresh_size(no, false),
                }
            }
            self.let_go();
            if !is_told {
                // Events of who goes on writing become one meanwhile, and wake nobody.
                std::thread::sleep(PAUSE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_have_their_turn() {
        let mut rotation = Rotation::default();
        assert_eq!(rotation.next(3, |_| true), []);
        (0..7).for_each(|no| rotation.add(no));
        rotation.add(3);
        let mut turns: Vec<FileNo> = (0..7).flat_map(|_| rotation.next(3, |_| true)).collect();
        turns.sort_unstable();
        assert_eq!(turns, (0..21).map(|n| n / 3).collect::<Vec<_>>());
        let mut left: Vec<FileNo> =
            (0..3).flat_map(|_| rotation.next(3, |no| no % 2 == 1)).collect();
        left.sort_unstable();
        left.dedup();
        assert_eq!(left, [1, 3, 5]);
        let mut all = rotation.next(9, |_| true);
        all.sort_unstable();
        assert_eq!(all, [1, 3, 5], "each once, and those that were gone no more");
    }
}
