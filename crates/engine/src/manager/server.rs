//! Answers the preload library's requests. One thread a connection: a read may wait for storage.

mod advice;
mod content;
mod exec;
mod mappings;

use crate::engine::spaces::Space;
use crate::live::shortage::is_shortage;
use crate::manager::crew::EndsAll;
use crate::manager::{Arriving, Client, Manager, Rights, trusts};
use crate::port::{FileNo, PortError};
use pagekeeper_sys::Errno;
use pagekeeper_sys::descriptor::duplicate;
use pagekeeper_sys::launch::open_files_max;
use pagekeeper_sys::process::reach;
use pagekeeper_sys::shared::SharedMap;
use pagekeeper_sys::socket::{self, Listener, Peer};
use pagekeeper_sys::userfault::{Features, Userfault};
use pagekeeper_wire::{self as wire, Op, Reply, Request};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// How long who connects may take to say hello. One that is stopped meanwhile connects once more.
const HELLO_WITHIN: Duration = Duration::from_secs(1);
/// Until connections are accepted again, where there was nothing to accept them with.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// How many of those that wait are looked at then, whether something is to be ended by them.
const IN_NEED_AT_ONCE: usize = 16;

/// Below this part of the numbers that descriptors may have (they are given out from below), no process has
/// to have anything set aside.
const ROOMY_PART: u64 = 4;

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
            // Who comes stays: nobody does at the cost of those that are about to go.
            let came = match self.reserve.admits() {
                true => listener.accept(false).map(|socket| socket.map(Arc::new)),
                false => Err(Errno::MFILE),
            };
            match came {
                Ok(Some(socket)) if !self.has_room_for(&socket) => {
                    drop(socket);
                    self.had_to_wait(&Errno::MFILE.to_string());
                    self.accept_after_all(listener);
                    self.want_descriptors();
                    std::thread::sleep(ACCEPT_PAUSE);
                    return true;
                }
                Ok(Some(socket)) if self.receive(socket.clone(), false) => {}
                // Nor will there be one: nothing is managed, and nothing will be.
                Ok(Some(socket)) if self.call_crew().is_err() => refuse(&socket),
                Ok(Some(_)) => {
                    self.had_to_wait("no more threads");
                    std::thread::sleep(ACCEPT_PAUSE);
                    return true;
                }
                Ok(None) => return true,
                Err(Errno::BADF | Errno::INVAL | Errno::NOTSOCK) => return false,
                // Descriptors, or the kernel's memory: there will be others.
                Err(errno) => {
                    self.had_to_wait(&errno.to_string());
                    self.accept_after_all(listener);
                    let _ = (0..IN_NEED_AT_ONCE).all(|_| self.accept_in_need(listener));
                    self.want_descriptors();
                    std::thread::sleep(ACCEPT_PAUSE);
                    return true;
                }
            }
        }
    }

    /// Where nobody comes or goes any more, accepts one of those that wait, at the cost of the reserve.
    fn accept_after_all(self: &Arc<Self>, listener: &Listener) {
        if self.reserve.gives_way() {
            match listener.accept(false) {
                Ok(Some(socket)) => drop(self.receive(Arc::new(socket), false)),
                _ => self.reserve.take_back(),
            }
        }
    }

    /// Accepts one of the connections that wait at the cost of the reserve: for a client of ours to end
    /// something by, which others of its own may wait for by all that it has. False if there is none, or nothing
    /// to accept it with.
    fn accept_in_need(self: &Arc<Self>, listener: &Listener) -> bool {
        if !self.reserve.spend() {
            return false;
        }
        let Ok(Some(socket)) = listener.accept(false) else {
            self.reserve.take_back();
            return false;
        };
        let pid = socket.peer().map_or(NOBODY_HERE.pid, |peer| peer.pid);
        let is_client = self.clients.lock().expect("lock").contains_key(&pid);
        if is_client {
            return self.receive(Arc::new(socket), true);
        }
        // Who is sent away comes again.
        drop(socket);
        self.reserve.take_back();
        true
    }

    fn had_to_wait(&self, why: &str) {
        self.note(format!("a program's connection had to wait: {why}"));
        self.waiting.note(why, Instant::now());
    }

    /// Whether there is what a process takes that has come, where descriptors may run out.
    fn has_room_for(&self, socket: &socket::Connection) -> bool {
        let number = socket.as_fd().as_raw_fd() as u64;
        let peer = socket.peer().unwrap_or(NOBODY_HERE);
        let is_known = || trusts(peer.uid) || self.met.lock().expect("lock").contains(&peer.uid);
        ROOMY_PART * number < open_files_max() || !is_known() || self.reserve.comes(peer.pid)
    }

    /// Answers a connection on a thread of its own, or perhaps only one `to_end` something; false if there is
    /// none.
    fn receive(self: &Arc<Self>, socket: Arc<socket::Connection>, to_end: bool) -> bool {
        let peer = socket.peer().unwrap_or(NOBODY_HERE);
        let arriving = Arriving::at(self, peer.uid, &socket);
        let thread = std::thread::Builder::new()
            .name("pk-client".into())
            .stack_size(256 << 10)
            .spawn(move || serve(arriving, socket, peer, to_end));
        thread.is_ok()
    }
}

fn serve(arriving: Arriving, socket: Arc<socket::Connection>, peer: Peer, to_end: bool) {
    let _all = EndsAll;
    let (manager, number) = (arriving.manager.clone(), arriving.number);
    let trusted = trusts(peer.uid);
    let user = (peer.uid, peer.gid);
    let mut connection = Connection { manager, socket, pid: peer.pid, image: 0, user, trusted };
    let Ok(hello) = connection.greet() else { return };
    if to_end && hello.e & wire::HELLO_TO_END == 0 {
        // It goes on with the connections that its process has, or comes again.
        drop(connection);
        return arriving.manager.reserve.take_back();
    }
    let is_forked = hello.e & !wire::HELLO_TO_END == wire::HELLO_FORKED;
    if peer.pid == NOBODY_HERE.pid {
        return refuse(&connection.socket);
    }
    let Some(image) = connection.manager.client_came(peer.pid, hello.f, number) else { return };
    connection.image = image;
    if is_forked {
        connection.manager.connected_after_touch(peer.pid, hello.d as u32);
    }
    arriving.has_arrived();
    // A forked child goes on with what its parent had.
    let begins = image == number && !is_forked;
    if connection.welcome(begins).is_ok() {
        connection.run();
    }
    let is_last = connection.with_client(|client| {
        client.connections -= 1;
        client.connections == 0
    });
    if is_last == Some(true) && !connection.manager.lives_on(connection.pid) {
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
        let is_ours = Op::from_u32(request.op) == Some(Op::Hello) && given == secret;
        let is_same_version = request.a == u64::from(wire::VERSION);
        if is_ours && !is_same_version {
            self.manager.note(format!(
                "{} was replaced by another version: programs that started since run outside, and see what is \
                 written back; end this run and start it anew",
                wire::LIBRARY
            ));
            // It begins as a program outside does.
            let _ = self.manager.engine.write_for_outside();
        }
        if !is_ours || !is_same_version {
            refuse(&self.socket);
            return Err(Errno::ACCESS);
        }
        Ok(request)
    }

    /// The reply to that: from here on the client sees what there is.
    fn welcome(&self, begins: bool) -> Result<(), Errno> {
        self.manager.settle_changes_of_the_dead();
        // Who has been greeted before has begun already.
        if begins {
            self.manager.settle_ends();
        }
        let slots = self.manager.with_reserve(|| self.manager.slots_for_client())?;
        let (r0, r1) = (crate::live::SLOTS_MAX as u64, u64::from(self.image));
        let r2 = reach::needs_leave().into();
        let reply = Reply { r0, r1, r2, ..Reply::default() };
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
            self.manager.waits.count(op.has_reply().into());
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
                        self.manager.waiting.note(&errno.to_string(), Instant::now());
                        self.manager.want_descriptors();
                        if !self.manager.reserve.give(self.pid) {
                            self.manager.reserve.spend();
                        }
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

    /// A slot, whatever has become of its file: what ends something is not kept waiting by somebody who may
    /// be waiting for just that end, as who lets go of the file does.
    fn slot_to_end(&self, number: u64) -> Result<FileNo, Errno> {
        let no = u32::try_from(number).map_err(|_| Errno::INVAL)?;
        if self.manager.has_slot(no) { Ok(no) } else { Err(Errno::BADF) }
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
                manager.reserve.has_come(self.pid);
                if r.a != 0 {
                    manager.set_probe(space, r.a)?;
                }
                value(0)
            }
            Op::Leash => {
                let worn = manager.put_on_leash(self.pid);
                Ok(Answer { reply: Reply::default(), fd: worn })
            }
            Op::Bell => {
                let rope = manager.rope.get().ok_or(Errno::NOENT)?;
                Ok(Answer { reply: Reply::default(), fd: Some(duplicate(rope)?) })
            }
            Op::UserfaultDevice => Ok(Answer {
                reply: Reply::default(),
                fd: Some(pagekeeper_sys::userfault::device()?),
            }),
            Op::RawWord => {
                let (memfd, map) = SharedMap::create("pagekeeper-raw", wire::PAGE_BYTES as usize)?;
                self.with_client(|client| client.raw = Some(map)).ok_or(Errno::SRCH)?;
                Ok(Answer { reply: Reply::default(), fd: Some(duplicate(&memfd)?) })
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
                let is_loaded_in_vain = self.exec(text, r.b, fd);
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
                manager.settle_ends();
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
}
