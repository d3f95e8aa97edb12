//! The processes that use managed files, image by image: what they have open, and how that is ended.

use super::Manager;
use crate::engine::change::NO_BYTES;
use crate::engine::overwrites::Overwrites;
use crate::port::FileNo;
use pagekeeper_sys::shared::SharedMap;
use pagekeeper_sys::{Errno, process};
use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long an activation waits for plain system calls that are in flight.
const RAW_WAIT_MAX: Duration = Duration::from_secs(60);
/// How long a process that begins waits for what dead ones left open to be settled.
pub(crate) const SETTLE_MAX: Duration = Duration::from_secs(10);
const SETTLE_PAUSE: Duration = Duration::from_micros(100);

/// How long a client may take to map a file that it was given, and to say so. Who lost the descriptor on
/// its way, for want of a free number, never does.
const OFFER_MAX: Duration = Duration::from_secs(60);

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
    /// Changes that it has ended, or that are being ended for it, and are not settled yet: what was
    /// overwritten is nobody's any more before it is what storage has.
    pub(crate) endings: u32,
    /// Somebody ends what it left open. Who else finds out that it is gone leaves that to him: it is known
    /// until all is settled.
    is_leaving: bool,
    /// What the descriptors that it showed allow it to do with their files.
    pub(crate) rights: HashMap<FileNo, Rights>,
    /// Files that it was given to map, and has not said yet where.
    offers: HashMap<FileNo, Offer>,
    /// What its `msync(2)` calls told it of files' errors (see [`flush_since`](crate::engine::Engine::flush_since)).
    pub(crate) heard: HashMap<FileNo, u64>,
}

/// How often a client was given a file to map without having said where, and when for the last time.
struct Offer {
    count: u32,
    at: Instant,
}

impl Offer {
    fn stands(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < OFFER_MAX
    }
}

impl Client {
    /// It is given a file to map.
    pub(crate) fn offered(&mut self, no: FileNo, now: Instant) {
        let offer = self.offers.entry(no).or_insert(Offer { count: 0, at: now });
        let open = if offer.stands(now) { offer.count } else { 0 };
        *offer = Offer { count: open + 1, at: now };
    }

    /// It has said where it mapped it, or has not been able to.
    pub(crate) fn took(&mut self, no: FileNo) {
        if let Some(offer) = self.offers.get_mut(&no) {
            offer.count -= 1;
            if offer.count == 0 {
                self.offers.remove(&no);
            }
        }
    }

    fn is_to_map(&self, no: FileNo, now: Instant) -> bool {
        self.offers.get(&no).is_some_and(|offer| offer.stands(now))
    }

    /// The file is not managed any more.
    pub(super) fn forget(&mut self, no: FileNo) {
        self.rights.remove(&no);
        self.heard.remove(&no);
        self.offers.remove(&no);
    }
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

impl Manager {
    /// A process has made a connection, of this number: the number of its image; none if that is gone, or
    /// if it has to come again, for lack of a descriptor.
    /// What another left open that ran in the process before is ended first. Its connections may live on,
    /// in this manager until their end is read, and in children that it forked.
    pub(crate) fn client_came(&self, pid: u32, name: u64, connection: u32) -> Option<u32> {
        loop {
            let other = {
                // The witness may take its time, and every request asks for the clients.
                let _telling = self.telling.lock().expect("lock");
                if !self.clients.lock().expect("lock").contains_key(&pid) {
                    self.tell_of_client(pid).ok()?;
                }
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
            if !self.client_gone(pid, other) {
                std::thread::sleep(SETTLE_PAUSE);
            }
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

    /// Whether a process has the memory yet that its image mapped files in: then that image runs, even if all
    /// its connections are closed. Who closes descriptors without libc closes those, too.
    pub(crate) fn lives_on(&self, pid: u32) -> bool {
        self.space_of(pid).is_some() && !process_ended(pid)
    }

    /// Ends what processes left open that died while a forked child keeps their connection, or after they had
    /// closed them all.
    pub(crate) fn reap_clients(&self) {
        let known = |(pid, client): (&u32, &Client)| (*pid, client.number, client.connections);
        let all: Vec<_> = self.clients.lock().expect("lock").iter().map(known).collect();
        for (pid, number, connections) in all {
            if process_ended(pid) || connections == 0 && !self.lives_on(pid) {
                self.client_gone(pid, number);
            }
        }
        self.end_overwrites_of_nobody();
        // Of those that are known it was just asked.
        let is_known = |pid| self.clients.lock().expect("lock").contains_key(&pid);
        let is_gone = |pid| !is_known(pid) && process_ended(pid);
        self.drop_leashes(is_gone);
        self.reserve.drop_shares(is_gone);
    }

    /// Ends what is overwritten by somebody who is not known any more: a process that went on after the manager
    /// had to think that it was gone. Who is done with it finds that out.
    fn end_overwrites_of_nobody(&self) {
        let files = self.engine.port().file_numbers();
        let held = |overwrites: &Overwrites| -> Vec<(FileNo, u32)> {
            let files = files.into_iter();
            files.filter_map(|no| Some((no, overwrites.holder(no)?))).collect()
        };
        let held = self.engine.with_overwrites(held).unwrap_or_default();
        if held.is_empty() {
            return;
        }
        let known: HashSet<u32> = {
            let clients = self.clients.lock().expect("lock");
            clients.values().map(|client| client.number).collect()
        };
        for (no, number) in held.into_iter().filter(|(_, number)| !known.contains(number)) {
            if self.engine.overwrite_end(no, number, 0, 0, NO_BYTES).is_ok() {
                self.engine.refresh_size(no, false);
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

    /// Ends what an image left open; false if another thread is about that, and may not be done.
    pub(crate) fn client_gone(&self, pid: u32, number: u32) -> bool {
        // What it wrote is no outsider's.
        self.hear();
        let left = |client: &mut Client| {
            if std::mem::replace(&mut client.is_leaving, true) {
                return None;
            }
            client.endings += 1;
            Some((client.changes.clone(), self.overwritten_by(client)))
        };
        let (changes, files) = match self.with_client(pid, number, left) {
            Some(Some(left)) => left,
            Some(None) => return false,
            None => return true,
        };
        for (ticket, file) in changes {
            self.change_left(file, ticket);
        }
        for file in files {
            if self.engine.overwrite_end(file, number, 0, 0, NO_BYTES).is_ok() {
                self.engine.refresh_size(file, false);
            }
        }
        let client = {
            // While nobody of this number is told of.
            let _telling = self.telling.lock().expect("lock");
            let client = {
                let mut clients = self.clients.lock().expect("lock");
                let is_same = clients.get(&pid).is_some_and(|client| client.number == number);
                is_same.then(|| clients.remove(&pid)).flatten()
            };
            client.iter().for_each(|_| self.tell(|witness| witness.client_gone(pid)));
            client
        };
        // A request of its own may have been answered meanwhile; what was ended is not ended twice.
        for (ticket, file) in client.into_iter().flat_map(|client| client.changes) {
            self.change_left(file, ticket);
        }
        self.taken_over(pid);
        let _ = self.kick.notify();
        true
    }

    /// Ends a change whose maker is gone. What became of it, storage knows.
    pub(crate) fn change_left(&self, file: FileNo, ticket: u64) {
        self.engine.change_end(file, ticket, 0, 0, NO_BYTES);
        self.engine.refresh_size(file, false);
    }

    /// Waits until changes are settled that processes began and did not live to end: who is started
    /// after a process died, or has waited for it, sees what that one wrote, and does not see it come
    /// later.
    pub(crate) fn settle_changes_of_the_dead(&self) {
        let is_waiting = || {
            let clients = self.clients.lock().expect("lock");
            let is_changing = |client: &Client| {
                client.endings > 0
                    || !client.changes.is_empty()
                    || !self.overwritten_by(client).is_empty()
            };
            clients.iter().any(|(pid, client)| is_changing(client) && process_ended(*pid))
        };
        let deadline = Instant::now() + SETTLE_MAX;
        while is_waiting() && Instant::now() < deadline {
            std::thread::sleep(SETTLE_PAUSE);
        }
    }

    /// Waits until what ended processes had stored is in their files: programs are begun that read it
    /// without this library's help (the dynamic linker does), and who has waited for a process may give up
    /// a lock under which it stored.
    pub(crate) fn settle_ends(&self) {
        self.reap();
        // Should another thread have been about it.
        drop(self.reaping.lock().expect("lock"));
        self.ends.settle(SETTLE_MAX);
    }

    /// Whether a program was given a file to map and has not said yet where, or a forked child may
    /// still come for a mapping of it.
    pub(crate) fn is_being_mapped(&self, no: FileNo) -> bool {
        let clients = self.clients.lock().expect("lock");
        let now = Instant::now();
        clients.values().any(|client| client.is_to_map(no, now)) || self.forks.concern(no)
    }

    /// Plain system calls that began before a slot became active must have ended before anything
    /// of the file is cached. Those that begin from now on see that it is: each process is waited for
    /// until it has none once. One that is stopped may be so for ever: its calls look at the slot once
    /// more when they have ended.
    pub(super) fn wait_for_raw_calls(&self) {
        let start = Instant::now();
        let calls = |client: &Client| {
            let raw = client.raw.as_ref();
            raw.is_some_and(|raw| raw.words::<AtomicU32>(0, 1)[0].load(Ordering::SeqCst) != 0)
        };
        let mut busy: Vec<(u32, u32)> = {
            let clients = self.clients.lock().expect("lock");
            let busy = clients.iter().filter(|(_, client)| calls(client));
            busy.map(|(pid, client)| (*pid, client.number)).collect()
        };
        let mut look_at_states = Duration::from_millis(10);
        while !busy.is_empty() && start.elapsed() < RAW_WAIT_MAX {
            std::thread::sleep(Duration::from_micros(50));
            busy.retain(|(pid, number)| {
                self.with_client(*pid, *number, |client| calls(client)).unwrap_or(false)
            });
            if start.elapsed() > look_at_states {
                look_at_states *= 2;
                busy.retain(|(pid, _)| !process::is_stopped(*pid));
            }
        }
    }
}

/// Whether a process has ended, reaped or not.
fn process_ended(pid: u32) -> bool {
    match process::pidfd_open(pid) {
        Ok(pidfd) => process::has_ended(pidfd),
        Err(errno) => errno == Errno::SRCH,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::*;
    use super::*;
    use crate::port::PAGE_BYTES;

    /// What was open when a program was executed was ended with the process, or when its last connection
    /// was closed, which a forked child may have, too: whoever changed the same pages waited until then.
    #[test]
    fn what_an_image_left_open_is_ended_when_the_next_one_connects() {
        let manager = manager();
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGE_BYTES).unwrap();
        let no = opened(&manager, &file).unwrap();
        let begin =
            || manager.engine.change_begin(no, 0, 8, crate::engine::change::Change::Write).unwrap();
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

    /// Who was started after a process had been killed in the midst of a write, one that it makes without
    /// a message, could read what was there before, and a moment later what was written: from when nobody
    /// held the file's record any more, nobody was waited for, though its pages were not brought up to date.
    #[test]
    fn what_a_dead_process_overwrote_is_settled_before_another_begins() {
        let manager = manager();
        let dead = std::process::Command::new("true").spawn().unwrap();
        let pid = dead.id();
        dead.wait_with_output().unwrap();
        let Some((number, no)) = who_overwrites(&manager, pid) else { return };

        // Its end is under way, and does not get any further.
        let telling = manager.telling.lock().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| manager.client_gone(pid, number));
            while is_overwritten(&manager, no) {
                std::thread::yield_now();
            }
            let settled = scope.spawn(|| manager.settle_changes_of_the_dead());
            // Whoever else finds out forgets nobody before that one is done.
            let other = scope.spawn(|| manager.client_gone(pid, number));
            let begun = Instant::now();
            while !other.is_finished() && begun.elapsed() < SETTLE_MAX {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(50));
            assert!(other.is_finished() && !settled.is_finished());
            drop(telling);
        });
        assert!(manager.with_client(pid, number, |_| ()).is_none());
    }

    /// A file whose descriptor a client lost on its way was never let go of, and each such offer was kept.
    #[test]
    fn who_never_says_where_it_mapped_a_file_is_not_waited_for() {
        let (mut client, now) = (Client::default(), Instant::now());
        let after = |times: u32| now + OFFER_MAX * times;
        client.offered(1, now);
        client.offered(1, now);
        client.took(1);
        assert!(client.is_to_map(1, now) && !client.is_to_map(2, now));
        assert!(!client.is_to_map(1, after(1)));
        for _ in 0..100 {
            client.offered(1, after(2));
        }
        (0..100).for_each(|_| client.took(1));
        assert!(!client.is_to_map(1, after(2)), "what was lost long ago does not count");
        assert!(client.offers.is_empty());
    }

    /// A process that was stopped in the midst of a call on a file that was the kernel's held everybody up
    /// for a minute whenever a file became managed; and so did two that took turns with such calls.
    #[test]
    fn who_is_stopped_is_not_waited_for_and_who_is_busy_is_waited_for_once() {
        let manager = manager();
        let mut sleeper = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pidfd = process::pidfd_open(sleeper.id()).unwrap();
        process::send_signal(&pidfd, libc::SIGSTOP).unwrap();
        let count_of = |pid, connection, count| {
            let number = manager.client_came(pid, 1, connection).unwrap();
            let (_, map) = SharedMap::create("raw", PAGE_BYTES as usize).unwrap();
            map.words::<AtomicU32>(0, 1)[0].store(count, Ordering::SeqCst);
            manager.with_client(pid, number, |client| client.raw = Some(map)).unwrap();
            number
        };
        count_of(sleeper.id(), 1, 1);
        let own = count_of(std::process::id(), 2, 1);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| manager.wait_for_raw_calls());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waits.is_finished(), "somebody runs");
            manager.with_client(std::process::id(), own, |client| {
                client.raw.as_ref().unwrap().words::<AtomicU32>(0, 1)[0].store(0, Ordering::SeqCst);
            });
        });
        let waited = start.elapsed();
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(waited < Duration::from_secs(20), "{waited:?}");
    }
}
