//! Answers the preload library's requests. One thread a connection: a read may wait for storage.

use crate::change::NO_BYTES;
use crate::manager::{Arriving, Client, Manager, Rights, trusts};
use crate::port::{FileNo, PAGE_BYTES, Port, PortError};
use crate::shortage::is_shortage;
use crate::spaces::{Region, Space};
use crate::transfer::Change;
use crate::work::Work;
use pagekeeper_sys::Errno;
use pagekeeper_sys::process;
use pagekeeper_sys::shared::SharedMap;
use pagekeeper_sys::socket::{self, Listener, Peer};
use pagekeeper_sys::userfault::{Features, Userfault};
use pagekeeper_sys::{elf, file};
use pagekeeper_wire::{self as wire, Op, Reply, Request};
use std::cell::RefCell;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// How long who connects may take to say hello. One that is stopped meanwhile connects once more.
const HELLO_WITHIN: Duration = Duration::from_secs(1);
/// Until connections are accepted again, where there was nothing to accept them with.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// How long a read at the end waits for somebody who makes the file longer, who may be stopped; and how
/// long between two looks.
const GROWING_MAX: Duration = Duration::from_millis(50);
const GROWING_PAUSE: Duration = Duration::from_micros(50);

/// Who is outside of our pid name space: nothing can be done for one whose memory cannot be named.
const NOBODY_HERE: Peer = Peer { pid: 0, uid: u32::MAX, gid: u32::MAX };

/// One connection.
struct Connection {
    manager: Arc<Manager>,
    socket: Arc<socket::Connection>,
    pid: u32,
    /// The image that runs in the process.
    image: u32,
    /// Who the client is.
    user: (u32, u32),
    /// The client runs as root or as the manager's user.
    trusted: bool,
}

/// What goes back.
#[derive(Default)]
struct Answer {
    reply: Reply,
    fd: Option<OwnedFd>,
}

type Handled = Result<Answer, Errno>;

fn value(r0: u64) -> Handled {
    Ok(Answer { reply: Reply { r0, ..Reply::default() }, fd: None })
}

fn values(r0: u64, r1: u64) -> Handled {
    Ok(Answer { reply: Reply { r0, r1, ..Reply::default() }, fd: None })
}

pub(crate) fn errno_of(error: PortError) -> Errno {
    match error {
        PortError::Io(errno) => Errno::from_raw_os_error(errno),
        PortError::Again => Errno::AGAIN,
        PortError::Gone => Errno::SRCH,
        PortError::Missing => Errno::FAULT,
    }
}

impl Manager {
    /// Accepts the connections that wait. False if there is no listener any more.
    pub(crate) fn accept(self: &Arc<Self>, listener: &Listener) -> bool {
        loop {
            match listener.accept(false).map(|socket| socket.map(Arc::new)) {
                Ok(Some(socket)) if self.receive(socket.clone()) => {}
                // Nor will there be one: nothing is managed, and nothing will be.
                Ok(Some(socket)) if self.call_crew().is_err() => refuse(&socket),
                Ok(Some(_)) => {
                    self.note("a program's connection had to wait: no more threads");
                    std::thread::sleep(ACCEPT_PAUSE);
                    return true;
                }
                Ok(None) => return true,
                Err(Errno::BADF | Errno::INVAL | Errno::NOTSOCK) => return false,
                // Descriptors, or the kernel's memory: there will be others.
                Err(errno) => {
                    self.note(format!("a program's connection had to wait: {errno}"));
                    // Who is sent away goes on with the connections that it has, or comes again.
                    if self.reserve.spend() {
                        drop(listener.accept(false));
                        self.reserve.refill();
                    }
                    self.want_descriptors();
                    std::thread::sleep(ACCEPT_PAUSE);
                    return true;
                }
            }
        }
    }

    /// Answers a connection on a thread of its own; false if there is none.
    fn receive(self: &Arc<Self>, socket: Arc<socket::Connection>) -> bool {
        let peer = socket.peer().unwrap_or(NOBODY_HERE);
        let arriving = Arriving::at(self, peer.uid, &socket);
        let thread = std::thread::Builder::new()
            .name("pk-client".into())
            .stack_size(256 << 10)
            .spawn(move || serve(arriving, socket, peer));
        thread.is_ok()
    }
}

fn serve(arriving: Arriving, socket: Arc<socket::Connection>, peer: Peer) {
    let (manager, number) = (arriving.manager.clone(), arriving.number);
    let trusted = trusts(peer.uid);
    let user = (peer.uid, peer.gid);
    let mut connection = Connection { manager, socket, pid: peer.pid, image: 0, user, trusted };
    let Ok(hello) = connection.greet() else { return };
    if peer.pid == NOBODY_HERE.pid {
        return refuse(&connection.socket);
    }
    let Some(image) = connection.manager.client_came(peer.pid, hello.f, number) else { return };
    connection.image = image;
    if hello.e == wire::HELLO_FORKED {
        connection.manager.connected_after_touch(peer.pid, hello.d as u32);
    }
    arriving.has_arrived();
    if connection.welcome(image == number).is_ok() {
        connection.run();
    }
    let is_last = connection.with_client(|client| {
        client.connections -= 1;
        client.connections == 0
    });
    if is_last == Some(true) {
        connection.manager.client_gone(connection.pid, connection.image);
    }
}

/// Says to a client that it is of no use to come again.
fn refuse(socket: &socket::Connection) {
    let reply = Reply { status: -Errno::ACCESS.raw_os_error(), ..Reply::default() };
    let _ = socket.send(reply.as_bytes(), None);
}

impl Connection {
    /// The first message has to be a hello with the secret: what tells this image from others.
    fn greet(&self) -> Result<Request, Errno> {
        let mut bytes = [0u8; size_of::<Request>()];
        self.socket.limit_waiting(Some(HELLO_WITHIN))?;
        let got = self.socket.recv(&mut bytes)?.ok_or(Errno::PROTO)?;
        self.socket.limit_waiting(None)?;
        let request = Request::read_from_bytes(&bytes[..got.bytes]).map_err(|_| Errno::PROTO)?;
        let secret = u128::from_be_bytes(self.manager.secret);
        let given = (u128::from(request.b) << 64) | u128::from(request.c);
        if Op::from_u32(request.op) != Some(Op::Hello)
            || request.a != u64::from(wire::VERSION)
            || given != secret
        {
            refuse(&self.socket);
            return Err(Errno::ACCESS);
        }
        Ok(request)
    }

    /// The reply to that: from here on the client sees what there is.
    fn welcome(&self, is_first: bool) -> Result<(), Errno> {
        self.manager.settle_changes_of_the_dead();
        // Who has been greeted before has begun already.
        if is_first {
            self.manager.settle_ends();
        }
        let slots = self.manager.slots_for_client()?;
        let reply = Reply { r0: crate::live::SLOTS_MAX as u64, ..Reply::default() };
        self.socket.send(reply.as_bytes(), Some(slots.as_fd()))
    }

    fn run(&self) {
        let mut bytes = [0u8; size_of::<Request>() + wire::TEXT_BYTES];
        loop {
            let Ok(Some(got)) = self.socket.recv(&mut bytes) else { return };
            let (len, fd) = (got.bytes, got.fd);
            if len < size_of::<Request>() {
                return;
            }
            let (head, text) = bytes[..len].split_at(size_of::<Request>());
            let Ok(request) = Request::read_from_bytes(head) else { return };
            let Some(op) = Op::from_u32(request.op) else { return };
            let answer = match (got.truncated, got.lost_fd) {
                // It is as long the next time.
                (true, _) => Err(Errno::MSGSIZE),
                // Without a free descriptor here, one that is sent is lost.
                (_, true) => Err(Errno::MFILE),
                _ => self.handle(op, request, text, fd),
            };
            if !op.has_reply() {
                continue;
            }
            let answer = answer.unwrap_or_else(|errno| {
                let status = match is_shortage(errno) {
                    true => {
                        self.manager.want_descriptors();
                        self.manager.reserve.spend();
                        wire::COME_AGAIN
                    }
                    false => -errno.raw_os_error(),
                };
                Answer { reply: Reply { status, ..Reply::default() }, fd: None }
            });
            let fd = answer.fd.as_ref().map(|fd| fd.as_fd());
            if self.socket.send(answer.reply.as_bytes(), fd).is_err() {
                return;
            }
        }
    }

    /// Something is done with what is known of this process, if the image runs in it still that made
    /// the connection.
    fn with_client<R>(&self, f: impl FnOnce(&mut Client) -> R) -> Option<R> {
        self.manager.with_client(self.pid, self.image, f)
    }

    fn slot(&self, number: u64) -> Result<FileNo, Errno> {
        let no = u32::try_from(number).map_err(|_| Errno::INVAL)?;
        if self.manager.wait_active(no) { Ok(no) } else { Err(Errno::BADF) }
    }

    /// A slot that this process has shown a descriptor of.
    fn permitted(&self, number: u64, allowed: impl Fn(Rights) -> bool) -> Result<FileNo, Errno> {
        let no = self.slot(number)?;
        let rights = self.with_client(|client| client.rights.get(&no).copied()).flatten();
        if rights.is_some_and(allowed) { Ok(no) } else { Err(Errno::ACCESS) }
    }

    /// Whether the client's user may write to a file, whatever descriptors it has shown.
    fn may_write(&self, number: u64) -> bool {
        let port = self.manager.engine.port();
        let live = u32::try_from(number).ok().and_then(|no| port.file(no));
        let stat = live.and_then(|live| live.store()?.stat().ok());
        self.trusted || stat.is_some_and(|stat| stat.lets_write(self.user.0, self.user.1))
    }

    fn grant(&self, no: FileNo, rights: Rights, heard: u64) {
        self.with_client(|client| {
            client.heard.entry(no).or_insert(heard);
            let known = client.rights.entry(no).or_default();
            *known = known.and(rights);
        });
    }

    /// What this process heard of a file's errors by its mappings.
    fn heard(&self, no: FileNo) -> u64 {
        let heard = self.with_client(|client| client.heard.get(&no).copied()).flatten();
        heard.unwrap_or_else(|| self.manager.engine.errors_so_far(no))
    }

    /// This process is given a file to map, or has said where it mapped it.
    fn prepared(&self, no: FileNo, begins: bool) {
        self.with_client(|client| match begins {
            true => client.offered(no, Instant::now()),
            false => client.took(no),
        });
    }

    fn handle(&self, op: Op, r: Request, text: &[u8], fd: Option<OwnedFd>) -> Handled {
        let manager = &self.manager;
        let _using = manager.using.read().expect("lock");
        match op {
            Op::Hello => Err(Errno::PROTO),
            Op::Probe => {
                Ok(Answer { reply: Reply::default(), fd: Some(manager.probe_for_client()?) })
            }
            Op::Userfault => {
                let userfault = Userfault::received(fd.ok_or(Errno::BADF)?)?;
                if r.c != 0 {
                    userfault.api(Features::from_bits_retain(r.b))?;
                }
                if userfault.has_failed() {
                    return Err(Errno::INVAL);
                }
                let space = manager.add_space(userfault, self.pid, Space::default())?;
                if r.a != 0 {
                    manager.set_probe(space, r.a)?;
                }
                value(0)
            }
            Op::UserfaultDevice => Ok(Answer {
                reply: Reply::default(),
                fd: Some(pagekeeper_sys::userfault::device()?),
            }),
            Op::RawWord => {
                let (memfd, map) = SharedMap::create("pagekeeper-raw", wire::PAGE_BYTES as usize)?;
                self.with_client(|client| client.raw = Some(map)).ok_or(Errno::SRCH)?;
                Ok(Answer {
                    reply: Reply::default(),
                    fd: Some(rustix::io::fcntl_dupfd_cloexec(&memfd, 0)?),
                })
            }
            Op::Opened => self.opened(r, fd),
            Op::MapPrepare => self.map_prepare(r, fd),
            Op::MapCommit => {
                let no = self.slot(r.a)?;
                let committed = self.map_commit(no, r);
                // Only now: see `Manager::is_being_mapped`. Who is to come again is not done.
                if !committed.as_ref().is_err_and(|errno| is_shortage(*errno)) {
                    self.prepared(no, false);
                }
                committed
            }
            Op::Protect => self.protect(r),
            Op::Sync => self.sync(r),
            Op::Flush => self.flush(r),
            Op::Read => self.read(r),
            Op::Refresh => {
                let no = self.slot(r.a)?;
                manager.look(no);
                value(0)
            }
            Op::ChangeBegin => self.change_begin(r),
            Op::ChangeEnd => self.change_end(r),
            Op::Advise => self.advise(r),
            Op::Exec => {
                let is_loaded_in_vain = self.exec(text, r.b != 0);
                value(is_loaded_in_vain.into())
            }
            Op::HeapMap => match manager.heap_map(self.pid, r.a)? {
                Some((offset, memfd)) => Ok(Answer {
                    reply: Reply { r0: 1, r1: offset, ..Reply::default() },
                    fd: Some(memfd),
                }),
                None => value(0),
            },
            Op::HeapCommit => {
                manager.heap_commit(self.pid, r.a, r.b, r.c)?;
                value(0)
            }
            Op::HeapGiveBack => {
                manager.heap_give_back(self.pid, r.a, r.b)?;
                value(0)
            }
            Op::AwaitDead => {
                manager.settle_changes_of_the_dead();
                value(0)
            }
            Op::HeapGrow => {
                let (verdict, offset) = manager.heap_grow(self.pid, r.a, r.b, r.c)?;
                values(verdict, offset)
            }
            Op::Fork if manager.engine.port().is_user_mode_only() => {
                value(manager.fork_by_hand(self.pid, r.a, r.b)?)
            }
            Op::Fork => value(manager.heap_fork(self.pid, r.a, r.b)?),
            Op::Inherit => self.inherit(r),
            Op::TakeOver => self.take_over(r),
            Op::Overwrites => self.overwrites(),
            Op::Frames => {
                let no = self.permitted(r.a, |rights| rights.write)?;
                manager.wait_for_takers(no);
                // Who has these can read them: so may the manager's user, or root.
                if !self.trusted {
                    return Err(Errno::ACCESS);
                }
                let frames = manager.frames_for_client(no)?;
                Ok(Answer { reply: Reply::default(), fd: Some(frames) })
            }
            Op::OpenPages => {
                let no = self.permitted(r.a, |rights| rights.write)?;
                manager.let_store(no).filter(|()| self.trusted).ok_or(Errno::ACCESS)?;
                let table = (r.d != 0).then(|| manager.engine.open_table(no)).transpose()?;
                let (fd, room) = table.map_or((None, 0), |(fd, room)| (Some(fd), room));
                let r0 = manager.engine.open_pages(no, r.b, r.c);
                Ok(Answer { reply: Reply { r0, r1: room, ..Reply::default() }, fd })
            }
            Op::MakeRoom => {
                manager.make_room();
                value(0)
            }
            Op::Note => {
                manager.note(String::from_utf8_lossy(text).into_owned());
                value(0)
            }
        }
    }

    fn overwrites(&self) -> Handled {
        let given = self.manager.engine.with_overwrites(|overwrites| {
            let writable = if self.trusted { overwrites.for_writer()? } else { None };
            let r1 = if writable.is_some() { self.image.into() } else { 0 };
            let fd = writable.map_or_else(|| overwrites.for_reader(), Ok)?;
            let reply = Reply { r0: overwrites.records() as u64, r1, ..Reply::default() };
            Ok(Answer { reply, fd: Some(fd) })
        });
        given.unwrap_or_else(|| value(0))
    }

    fn opened(&self, r: Request, fd: Option<OwnedFd>) -> Handled {
        let fd = fd.ok_or(Errno::BADF)?;
        let (rights, flags) = Rights::proved_by(&fd)?;
        if r.f == 0 && self.manager.is_to_take_over_first(self.pid, fd.as_fd()) {
            return Ok(Answer { reply: Reply { r3: 1, ..Reply::default() }, fd: None });
        }
        let Some(pinned) = self.manager.opened(fd.as_fd(), flags) else { return value(0) };
        let no = pinned.no();
        let opened_ns = if r.b == 0 { u64::MAX } else { r.b };
        let r1 = self.manager.engine.errors_at(no, opened_ns);
        self.grant(no, rights, r1);
        let reads = r.d != 0 && rights.read && self.manager.wait_active(no);
        // An error is found again by who reads in another way.
        let r2 = if reads { self.copy(no, r.c, r.d, r.e).map_or(0, |bytes| bytes + 1) } else { 0 };
        let (r0, r3) = (u64::from(no) + 1, self.manager.incarnation(no).into());
        Ok(Answer { reply: Reply { r0, r1, r2, r3, ..Reply::default() }, fd: None })
    }

    fn inherit(&self, r: Request) -> Handled {
        let manager = &self.manager;
        let next = if manager.engine.port().is_user_mode_only() {
            manager.inherit_by_hand(r.a, r.b)?
        } else {
            manager.heap_inherit(self.pid, r.a, r.b)?.map(|(range, memfd)| {
                let (r0, r1) = (range.addr, range.bytes);
                let (r2, r3) = (range.offset, range.protection);
                (Reply { r0, r1, r2, r3, ..Reply::default() }, Some(memfd))
            })
        };
        match next {
            Some((reply, fd)) => Ok(Answer { reply, fd }),
            None => value(0),
        }
    }

    fn take_over(&self, r: Request) -> Handled {
        if matches!(r.b, wire::TAKE_FIRST | wire::TAKE_NEXT) {
            let begins = r.b == wire::TAKE_FIRST;
            let next = self.manager.next_to_take_over(self.pid, begins);
            let (addr, bytes) = next.unwrap_or_default();
            return values(addr, bytes);
        }
        let has_room = r.b == wire::TAKE_HERE;
        let taken = match has_room {
            true => self.manager.take_over(self.pid, r.a, r.c)?,
            false => None,
        };
        match taken {
            Some((no, reply, memfd)) => {
                self.prepared(no, true);
                Ok(Answer { reply, fd: Some(memfd) })
            }
            None => values(0, self.manager.cannot_take_over(self.pid).into()),
        }
    }

    fn map_prepare(&self, r: Request, fd: Option<OwnedFd>) -> Handled {
        let manager = &self.manager;
        let no = u32::try_from(r.a).map_err(|_| Errno::INVAL)?;
        let fd = fd.ok_or(Errno::BADF)?;
        let (rights, flags) = Rights::proved_by(&fd)?;
        let pinned = manager.slot_of_file(no, fd.as_fd());
        if !rights.read || pinned.is_none() {
            return Err(Errno::ACCESS);
        }
        if !manager.wait_active(no) {
            // A mapping that is longer than the file shows that it is to grow.
            let size = pagekeeper_sys::file::stat(&fd)?.version.size_bytes;
            let large = size.max(r.c) >= manager.min_size_bytes().max(1);
            let managed = match large {
                true => {
                    let end = r.f.saturating_add(r.c).checked_next_multiple_of(PAGE_BYTES);
                    let trial = (self.pid, r.f..end.unwrap_or(u64::MAX));
                    manager.activate(no, fd.as_fd(), flags, None, Some(&trial)).is_ok()
                }
                false => !manager.leave_plain(no),
            };
            if !managed {
                return value(0);
            }
        }
        if rights.write {
            manager.wait_for_takers(no);
        }
        // It may have been opened before the file was managed.
        manager.allow_writes(no, fd.as_fd(), flags);
        match manager.map_prepare(no, r.b, r.c, r.e as i32, flags)? {
            Some((memfd, kind)) => {
                self.prepared(no, true);
                Ok(Answer {
                    reply: Reply { r0: 1, r1: kind as u64, ..Reply::default() },
                    fd: Some(memfd),
                })
            }
            None => value(0),
        }
    }

    fn map_commit(&self, no: FileNo, r: Request) -> Handled {
        // The kernel checked the program's rights when the descriptor was opened; which mapping
        // type was prepared follows from the memfd the client was given.
        let shared = self.prepared_shared(no, r)?;
        let asked_shared = r.f as i32 & libc::MAP_TYPE != libc::MAP_PRIVATE;
        let region = Region {
            file: no,
            bias: r.b.wrapping_sub(r.d),
            shared,
            // A forked child could not be given its parent's copies.
            read_only: !shared && (asked_shared || self.manager.engine.port().is_user_mode_only()),
            library: r.f & wire::MAP_LIBRARY != 0,
        };
        self.manager.map_commit(self.pid, r.d..r.d + r.c, region)?;
        value(0)
    }

    /// Whether the mapping at the address is a shared one of the memfd.
    fn prepared_shared(&self, no: FileNo, r: Request) -> Result<bool, Errno> {
        let live = self.manager.engine.port().file(no).ok_or(Errno::BADF)?;
        let found = self.manager.with_reserve(|| crate::live::mapping_at(self.pid, r.d));
        let found = match found {
            Err(errno) if is_shortage(errno) => return Err(errno),
            found => found.ok().flatten().ok_or(Errno::FAULT)?,
        };
        // The kernel merges neighbours: the offset at the address counts, not the one at the start.
        if found.ino != live.memfd_ino || found.offset + (r.d - found.start) != r.b {
            return Err(Errno::INVAL);
        }
        Ok(found.shared)
    }

    fn space_regions(&self, addr: u64, len: u64) -> Vec<(u64, u64, Region)> {
        let Some(no) = self.manager.space_of(self.pid) else { return Vec::new() };
        let range = addr..addr.saturating_add(len.max(1));
        self.manager
            .engine
            .with_space(no, |s| {
                s.regions
                    .overlapping(&range)
                    .map(|(r, v)| (r.start.max(range.start), r.end.min(range.end), *v))
                    .collect()
            })
            .unwrap_or_default()
    }

    fn protect(&self, r: Request) -> Handled {
        if r.d != 0
            && let Some(space) = self.manager.space_of(self.pid)
        {
            // All of it is one mapping, if it is there still.
            self.manager.engine.find_region(space, r.a);
        }
        let writes = r.c as i32 & libc::PROT_WRITE != 0;
        let refused = writes && self.space_regions(r.a, r.b).iter().any(|(_, _, v)| v.read_only);
        if refused { Err(Errno::ACCESS) } else { value(0) }
    }

    fn sync(&self, r: Request) -> Handled {
        let wait = r.c as i32 & libc::MS_ASYNC == 0;
        let mut first_error = None;
        for (start, end, region) in self.space_regions(r.a, r.b) {
            let engine = &self.manager.engine;
            if !region.shared || engine.is_heap(region.file) {
                continue;
            }
            self.manager.look(region.file);
            if !wait {
                self.manager.workers.push(Work::Flush(region.file));
                continue;
            }
            let pages = region.index(start)..region.index(end - 1) + 1;
            let mut heard = self.heard(region.file);
            let mut result = engine.flush_since(region.file, pages, &mut heard);
            let live = engine.port().file(region.file);
            // The kernel says it once to this descriptor, which all programs share.
            if let Some(store) = live.as_ref().and_then(|live| live.store())
                && let Err(error) = store.sync()
            {
                engine.note_error(region.file, error);
                result = result.and(engine.tell_error(region.file, &mut heard));
            }
            self.with_client(|client| client.heard.insert(region.file, heard));
            if let Err(error) = result {
                first_error.get_or_insert(errno_of(error));
            }
        }
        match first_error {
            Some(errno) => Err(errno),
            None => value(0),
        }
    }

    fn flush(&self, r: Request) -> Handled {
        let engine = &self.manager.engine;
        if r.a == u64::MAX {
            engine.write_behind().map_err(errno_of)?;
            return value(0);
        }
        let Ok(no) = self.slot(r.a) else { return value(0) };
        if r.d == 0 {
            self.manager.workers.push(Work::Flush(no));
            return value(0);
        }
        let first = r.b / PAGE_BYTES;
        let end = if r.c == 0 { u64::MAX } else { r.b.saturating_add(r.c).div_ceil(PAGE_BYTES) };
        let mut heard = r.e;
        let result = if heard == wire::HEARD_NOTHING {
            engine.write_out(no, first..end)
        } else {
            self.manager.look(no);
            engine.flush_since(no, first..end, &mut heard)
        };
        let errno = result.err().map_or(0, |error| errno_of(error).raw_os_error());
        values(errno as u64, heard)
    }

    fn read(&self, r: Request) -> Handled {
        let no = self.permitted(r.a, |rights| rights.read)?;
        if r.e != 0 && !self.space_regions(r.d, r.c).is_empty() {
            return values(0, 1);
        }
        value(self.copy(no, r.b, r.c, r.d)?)
    }

    /// Copies file content into the client's memory; the bytes copied.
    fn copy(&self, no: FileNo, offset: u64, len: u64, addr: u64) -> Result<u64, Errno> {
        let mut done = self.copy_known(no, offset, len, addr)?;
        // The kernel tells a new length before who made the file longer does, and who asked for it reads as far.
        let begun = Instant::now();
        while done < len {
            // In this order: who is not seen at it has said so by then.
            let is_growing = self.is_said_to_reach(no, offset + done);
            done += self.copy_known(no, offset + done, len - done, addr + done).unwrap_or(0);
            if done == len || !is_growing || begun.elapsed() >= GROWING_MAX {
                break;
            }
            std::thread::sleep(GROWING_PAUSE);
        }
        Ok(done)
    }

    /// Whether somebody makes a file longer, and the kernel says already that there is more behind an offset.
    fn is_said_to_reach(&self, no: FileNo, offset: u64) -> bool {
        let engine = &self.manager.engine;
        engine.may_grow(no) && engine.port().version(no).is_ok_and(|now| now.size_bytes > offset)
    }

    /// The same, up to the length that is known.
    fn copy_known(&self, no: FileNo, offset: u64, len: u64, addr: u64) -> Result<u64, Errno> {
        self.manager.engine.catch_up(no);
        let copied = self.manager.engine.read_for(self.pid, no, offset, len, |bytes, done| {
            match process::process_vm_write(self.pid, addr + done, bytes) {
                Ok(n) if n == bytes.len() => Ok(()),
                Ok(_) => Err(PortError::Io(libc::EFAULT)),
                Err(errno) => Err(errno.into()),
            }
        });
        copied.map_err(|error| match errno_of(error) {
            own @ (Errno::FAULT | Errno::NOMEM) => own,
            // Whatever the file system said of a direct read: reads through a cache say this.
            _ => Errno::IO,
        })
    }

    fn change_begin(&self, r: Request) -> Handled {
        // A path may be truncated without a descriptor that may write. The kernel looks at the
        // file's permissions then, and nothing but the file's new length is believed; but others
        // are held up meanwhile, so only the manager's own user, root, and who may write to it may.
        let by_path = r.e == wire::CHANGE_TRUNCATE && self.may_write(r.a);
        let no = self.permitted(r.a, |rights| rights.write || by_path)?;
        self.manager.wait_for_takers(no);
        let engine = &self.manager.engine;
        let change = match r.e {
            wire::CHANGE_WRITE => Change::Write,
            wire::CHANGE_TRUNCATE => Change::Truncate,
            _ => Change::Other,
        };
        let (offset, len) = if r.b == wire::AT_END {
            let size = engine.port().version(no).map_err(errno_of)?.size_bytes;
            (size, u64::MAX - size)
        } else {
            (r.b, r.c)
        };
        let managed = r.d != 0 && !self.space_regions(r.d, r.c.min(1 << 40)).is_empty();
        let ticket = engine.change_begin(no, offset, len, change).map_err(errno_of)?;
        if self.with_client(|client| client.changes.push((ticket, no))).is_none() {
            // Nobody lives to make it.
            self.manager.change_left(no, ticket);
            return Err(Errno::SRCH);
        }
        let was_made = r.f == wire::CHANGE_WAS_MADE;
        let is_refused = if was_made {
            !engine.has_stored(no, offset, len, self.bytes_at(r.d))
        } else {
            managed
        };
        values(ticket, is_refused.into())
    }

    /// What the client has in memory from an address on.
    fn bytes_at(&self, address: u64) -> impl Fn(u64, &mut [u8]) -> Result<(), PortError> {
        let pid = self.pid;
        move |at, buffer| match process::process_vm_read(pid, address + at, buffer) {
            Ok(n) if n == buffer.len() => Ok(()),
            Ok(_) => Err(PortError::Io(libc::EFAULT)),
            Err(errno) => Err(errno.into()),
        }
    }

    fn change_end(&self, r: Request) -> Handled {
        let no = self.slot(r.a)?;
        let taken = self.with_client(|client| {
            let own = client.changes.iter().position(|c| *c == (r.b, no));
            if let Some(at) = own {
                client.changes.swap_remove(at);
            }
            let is_own = r.b == 0 || own.is_some();
            client.endings += u32::from(is_own);
            is_own
        });
        if taken != Some(true) {
            return Err(Errno::ACCESS);
        }
        let bytes = (r.e != 0).then_some(self.bytes_at(r.e));
        let engine = &self.manager.engine;
        let ended = if r.b == 0 {
            engine.overwrite_end(no, self.image, r.c, r.d, bytes).map_err(errno_of)
        } else {
            engine.change_end(no, r.b, r.c, r.d, bytes);
            Ok(())
        };
        self.with_client(|client| client.endings -= 1);
        ended.and_then(|()| value(0))
    }

    fn advise(&self, r: Request) -> Handled {
        let engine = &self.manager.engine;
        let regions = self.space_regions(r.a, r.b);
        if r.c as i32 == wire::ADVICE_MEND {
            // What is dirty in a private mapping is nowhere else.
            let is_elsewhere = !regions.is_empty() && regions.iter().all(|(_, _, r)| r.shared);
            return value(if is_elsewhere { wire::ADVISE_DONTNEED } else { 0 });
        }
        if regions.iter().any(|(_, _, region)| engine.is_heap(region.file))
            && let Some(answer) = self.advise_heap(r, &regions)
        {
            return answer;
        }
        match r.c as i32 {
            libc::MADV_WILLNEED => {
                for (start, end, region) in regions {
                    engine.prefetch(region.file, region.index(start), (end - start) / PAGE_BYTES);
                }
                // Of what is not mapped, or not by us, the kernel knows; ours it has no pages to read for.
                value(0)
            }
            advice @ (libc::MADV_NORMAL | libc::MADV_SEQUENTIAL | libc::MADV_RANDOM) => {
                // Of the file as a whole: few programs advise differently on parts of one.
                for (_, _, region) in regions {
                    if !engine.is_heap(region.file) {
                        engine.read_around(region.file, advice != libc::MADV_RANDOM);
                    }
                }
                value(0)
            }
            // Children map it for themselves.
            libc::MADV_DOFORK if engine.port().is_user_mode_only() => {
                value(u64::from(!regions.is_empty()))
            }
            // The kernel never comes to an end with what we protect. Before Linux 6.15 it knew no guards
            // in mappings of files.
            wire::MADV_GUARD_INSTALL if !regions.is_empty() => Err(Errno::INVAL),
            libc::MADV_REMOVE => {
                if regions.iter().any(|(_, _, r)| engine.is_heap(r.file)) {
                    return Err(Errno::INVAL);
                }
                if regions.is_empty() {
                    return value(0);
                }
                let managed_bytes = regions.iter().map(|(start, end, _)| end - start).sum();
                let is_mapped = self.may_punch(r.a..r.a + r.b, managed_bytes)?;
                for (start, end, region) in regions {
                    let (offset, len) = (start.wrapping_add(region.bias), end - start);
                    let live = engine.port().file(region.file).ok_or(Errno::BADF)?;
                    let ticket = engine
                        .change_begin(region.file, offset, len, Change::Other)
                        .map_err(errno_of)?;
                    let store = live.store().ok_or(Errno::INVAL)?;
                    let punched = store.punch(offset, len);
                    engine.change_end(region.file, ticket, offset, len, NO_BYTES);
                    punched.map_err(errno_of)?;
                }
                if is_mapped { value(1) } else { Err(Errno::NOMEM) }
            }
            _ => value(0),
        }
    }

    /// What the kernel asks of mappings before it makes holes in their files, MADV_REMOVE in madvise(2);
    /// false if some of the range is not mapped, of which it tells when the others are made.
    fn may_punch(&self, range: Range<u64>, managed_bytes: u64) -> Result<bool, Errno> {
        let mut refused = None;
        let mut mapped_bytes = 0;
        process::for_each_detailed_mapping(self.pid, |mapping, detail| {
            let from = mapping.start.max(range.start);
            if from < mapping.end.min(range.end) {
                mapped_bytes += mapping.end.min(range.end) - from;
                let errno = match () {
                    () if detail.has("lo") || mapping.inode == 0 => Some(Errno::INVAL),
                    () if !mapping.shared || !detail.has("mw") => Some(Errno::ACCESS),
                    () => None,
                };
                refused = refused.or(errno);
            }
            mapping.end < range.end
        })?;
        match refused {
            Some(errno) => Err(errno),
            // Nobody's call would be for all of it.
            None if mapped_bytes != managed_bytes => Err(Errno::INVAL),
            None => Ok(mapped_bytes == range.end - range.start),
        }
    }

    /// Advice on memory that the program takes for anonymous; none if it may go on as on a file.
    fn advise_heap(&self, r: Request, regions: &[(u64, u64, Region)]) -> Option<Handled> {
        /// `MADV_DONTNEED_LOCKED`
        const DONTNEED_LOCKED: i32 = 24;
        let engine = &self.manager.engine;
        match r.c as i32 {
            // Pages that are freed lazily may be gone at once.
            advice @ (libc::MADV_DONTNEED | libc::MADV_FREE | DONTNEED_LOCKED) => {
                let mut covered = 0;
                for (start, end, region) in regions {
                    if !engine.is_heap(region.file) {
                        continue;
                    }
                    let pages = region.index(*start)..region.index(*end);
                    if let Err(errno) = self.manager.heap_clear(region.file, pages) {
                        return Some(Err(errno));
                    }
                    covered += end - start;
                }
                // The kernel has its part to do if some of the range is not heap.
                Some(value(match covered == r.b {
                    true => 1,
                    false if advice == libc::MADV_FREE => wire::ADVISE_DONTNEED,
                    false => 0,
                }))
            }
            libc::MADV_REMOVE | libc::MADV_WIPEONFORK => Some(Err(Errno::INVAL)),
            // It is huge in nobody's sense, is not inherited by the kernel's hand, and what is
            // needed is fetched when it is touched.
            libc::MADV_HUGEPAGE
            | libc::MADV_NOHUGEPAGE
            | libc::MADV_DOFORK
            | libc::MADV_DONTFORK
            | libc::MADV_KEEPONFORK
            | libc::MADV_WILLNEED => Some(value(1)),
            libc::MADV_NORMAL
            | libc::MADV_RANDOM
            | libc::MADV_SEQUENTIAL
            | libc::MADV_MERGEABLE
            | libc::MADV_UNMERGEABLE
            | libc::MADV_DONTDUMP
            | libc::MADV_DODUMP
            | libc::MADV_COLD
            | libc::MADV_PAGEOUT
            | libc::MADV_POPULATE_READ
            | libc::MADV_POPULATE_WRITE
            | libc::MADV_COLLAPSE
            | libc::MADV_HWPOISON
            | libc::MADV_SOFT_OFFLINE => None,
            // Guard regions (Linux 6.13) and what is yet to come may drop what is there: programs get on
            // without it where the kernel does not know it.
            _ => Some(Err(Errno::INVAL)),
        }
    }

    /// Another program follows in this process or a child: if the library cannot follow into it,
    /// it must find everything in the files. Whether its dynamic linker would look for the library all the same.
    fn exec(&self, text: &[u8], library_is_gone: bool) -> bool {
        let path = String::from_utf8_lossy(text).into_owned();
        // The client's path, from its own directory and root.
        let held = RefCell::new(Vec::new());
        let place = |path: &Path| self.place_of(path, &mut held.borrow_mut());
        let found = match file::stat_path(&place(Path::new(&path))) {
            Ok(found) if found.is_regular() => Some(found),
            // The call fails, or the next directory of PATH is tried.
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => return false,
            Err(_) => None,
        };
        let user = process::effective_ids(self.pid).unwrap_or(self.user);
        let program = found.is_some().then(|| elf::inspect_for(Path::new(&path), user, &place));
        let obstacle = program.as_ref().and_then(|program| program.reasons.first());
        let reason = match obstacle {
            Some(reason) => Some(reason.to_string()),
            None if library_is_gone => Some(format!(
                "{} is not to be found in its root, or not for its user: install it where it is for all",
                wire::LIBRARY
            )),
            None => None,
        };
        if let Some(reason) = &reason {
            self.manager.note(format!(
                "{path} runs outside Pagekeeper ({reason}); dirty pages were written back before it started"
            ));
        }
        // What cannot be looked at may be anything.
        if reason.is_some() || found.is_none() {
            let _ = self.manager.engine.write_behind();
        }
        if let Some(found) = found {
            self.manager.let_program_go(found.id);
        }
        library_is_gone || matches!(obstacle, Some(elf::Obstacle::ForeignLinker(..)))
    }

    /// What the client finds by a path, as a path of this process; `held` keeps that valid.
    fn place_of(&self, path: &Path, held: &mut Vec<OwnedFd>) -> PathBuf {
        let process = Path::new("/proc").join(self.pid.to_string());
        let Ok(inside) = path.strip_prefix("/") else { return process.join("cwd").join(path) };
        match file::open_in_root(&process.join("root"), inside) {
            Ok(found) => {
                let place = format!("/proc/self/fd/{}", found.as_raw_fd());
                held.push(found);
                place.into()
            }
            Err(_) => process.join("root").join(inside),
        }
    }
}
