//! Connections to the manager: a pool without locks, filled as threads need it.
//!
//! A thread takes a free slot with one compare-and-swap and has it to itself for one request and
//! its reply. The descriptors sit at high numbers, away from the program's; the program may still
//! close them (raw system calls, `closefrom` in a library of its own), so each use first checks
//! that the descriptor is still the socket that was opened, and connects anew if it is not.
//!
//! All that a process has may be in the hands of threads that wait for what another one began (a change of the
//! file). So the last slots are only for who ends such a thing.

use crate::descriptors::table;
use crate::link::{bell, room, userfault};
use crate::process::environment;
use crate::process::state::{self, CONNECTIONS_MAX, State};
use crate::raw::{self, SignalsHeld};
use crate::raw_call;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use libc::c_int;
use pagekeeper_wire::{
    COME_AGAIN, FORK_END, FORK_FAILED, HELLO_FRESH, HELLO_TO_END, Op, Reply, Request, TEXT_BYTES,
    VERSION,
};
use zerocopy::IntoBytes;

/// A pool slot. All zero: free and not connected.
#[repr(C)]
pub(crate) struct Connection {
    busy: AtomicU32,
    socket: Socket,
}

/// A descriptor and what it must still be.
#[repr(C)]
pub(crate) struct Socket {
    /// The descriptor plus one, or 0.
    fd_and_one: AtomicI32,
    inode: AtomicU64,
    device: AtomicU64,
}

/// The same numbers in memory that a forked child inherits, so that it can close its copies.
static INHERITED: [Socket; CONNECTIONS_MAX + 1] = [const { Socket::none() }; CONNECTIONS_MAX + 1];
/// The last of them is no connection's.
const LEASH: usize = CONNECTIONS_MAX;

impl Socket {
    pub(crate) const fn none() -> Socket {
        let (inode, device) = (AtomicU64::new(0), AtomicU64::new(0));
        Socket { fd_and_one: AtomicI32::new(0), inode, device }
    }

    pub(crate) fn set(&self, fd: c_int, stat: &libc::stat) {
        self.inode.store(stat.st_ino, Ordering::Relaxed);
        self.device.store(stat.st_dev, Ordering::Relaxed);
        self.fd_and_one.store(fd + 1, Ordering::Release);
    }

    /// The descriptor, if it is still this socket.
    pub(crate) fn verified(&self) -> Option<c_int> {
        let fd = self.fd_and_one.load(Ordering::Acquire) - 1;
        if fd < 0 {
            return None;
        }
        let stat = raw::fstat(fd).ok()?;
        (stat.st_ino == self.inode.load(Ordering::Relaxed)
            && stat.st_dev == self.device.load(Ordering::Relaxed))
        .then_some(fd)
    }

    pub(crate) fn clear(&self) {
        self.fd_and_one.store(0, Ordering::Release);
    }
}

/// In a forked child: closes the copies of what its parent has open for us, if they `are_copies`: in a table
/// that it shares with its parent they are that one's own.
pub(crate) fn forget_inherited(are_copies: bool) {
    for socket in &INHERITED {
        let Some(fd) = socket.verified() else { continue };
        if are_copies {
            raw::close(fd);
        }
        table::unmark_connection(fd);
        socket.clear();
    }
}

/// All that this process has open for us. Without a state, what it has from its parent or whoever executed it,
/// and needs.
fn sockets(state: Option<&State>) -> impl Iterator<Item = &Socket> {
    let connections = state.into_iter().flat_map(|state| &state.connections);
    let leash = state.map(|state| &state.leash);
    connections.map(|connection| &connection.socket).chain(leash).chain([bell::socket()])
}

/// Whether this descriptor is one of ours right now.
pub(crate) fn is_ours(state: Option<&State>, fd: c_int) -> bool {
    table::is_connection(fd)
        && sockets(state).any(|socket| {
            socket.fd_and_one.load(Ordering::Acquire) == fd + 1 && socket.verified().is_some()
        })
}

/// The lowest descriptor of ours at or above this one.
pub(crate) fn next_ours(state: Option<&State>, from: u32) -> Option<c_int> {
    sockets(state).filter_map(Socket::verified).filter(|&fd| fd as u32 >= from).min()
}

/// Gives up a descriptor number that the program wants for itself.
pub(crate) fn evict(state: &State, fd: c_int) {
    for (index, connection) in state.connections.iter().enumerate() {
        if connection.socket.fd_and_one.load(Ordering::Acquire) != fd + 1 {
            continue;
        }
        let _held = SignalsHeld::new();
        while connection.busy.swap(1, Ordering::Acquire) != 0 {
            raw::yield_now();
        }
        // Of a thread's own table it may be another's: there the connection stays.
        if may_become_free(connection)
            && connection.socket.fd_and_one.load(Ordering::Acquire) == fd + 1
        {
            forget(index, connection, fd);
        }
        release(state, connection);
    }
    if state.leash.verified() == Some(fd) {
        let _held = SignalsHeld::new();
        state.leash.clear();
        INHERITED[LEASH].clear();
        table::unmark_connection(fd);
        // The number itself stays taken until the program's descriptor comes in its place.
        keep_leash(state, duplicate_high(fd));
    }
}

fn keep_leash(state: &State, fd: c_int) {
    let Ok(stat) = raw::fstat(fd) else { return };
    INHERITED[LEASH].set(fd, &stat);
    table::mark_connection(fd);
    state.leash.set(fd, &stat);
}

/// A descriptor is no connection any more, of the slot that the caller has taken.
fn forget(index: usize, connection: &Connection, fd: c_int) {
    connection.socket.clear();
    INHERITED[index].clear();
    table::unmark_connection(fd);
}

/// Threads that wait for a slot. All zero: none.
#[repr(C)]
pub(crate) struct Waiting {
    threads: AtomicU32,
    /// Changes whenever they are to look again.
    freed: AtomicU32,
}

impl Waiting {
    /// Waits until a slot became free, unless there is one now.
    fn wait(&self, is_free: impl FnOnce() -> bool) {
        self.threads.fetch_add(1, Ordering::SeqCst);
        let seen = self.freed.load(Ordering::SeqCst);
        if !is_free() {
            raw::futex_wait(&self.freed, seen);
        }
        self.threads.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake(&self, wake: fn(&AtomicU32)) {
        if self.threads.load(Ordering::SeqCst) != 0 {
            self.freed.fetch_add(1, Ordering::SeqCst);
            wake(&self.freed);
        }
    }
}

fn release(state: &State, connection: &Connection) {
    connection.busy.store(0, Ordering::Release);
    // Not each of them may use each slot.
    state.ending.wake(raw::futex_wake_all);
    let is_for_ends = |one: &Connection| core::ptr::eq(one, connection);
    if !state.connections[FOR_ALL..].iter().any(is_for_ends) {
        state.waiting.wake(raw::futex_wake);
    }
}

/// So many slots are for whatever is asked; the two behind them for ends only.
const FOR_ALL: usize = CONNECTIONS_MAX - 2;

/// How many of the slots are for a request. What ends a change or a fork waits for nobody else's; what is asked
/// for within a change may.
fn slots_for(request: &Request) -> usize {
    let is = |op: Op| request.op == op as u32;
    let ends_fork = is(Op::Fork) && matches!(request.a, FORK_END | FORK_FAILED);
    if is(Op::ChangeEnd) || ends_fork {
        CONNECTIONS_MAX
    } else if is(Op::MakeRoom) {
        CONNECTIONS_MAX - 1
    } else {
        FOR_ALL
    }
}

/// Sees to it that there is a connection: threads that get tables of their own have it, too.
pub(crate) fn ensure_any(state: &State) {
    if !state.connections.iter().any(|connection| connection.socket.verified().is_some()) {
        let _held = SignalsHeld::new();
        connect_first(state);
    }
}

/// Takes a slot where threads have tables of descriptors of their own: one whose connection is in this
/// thread's table, or else, unless `connected` asks for such a one, a slot that never had any. One that
/// another table has stays that one's: if it were connected here, nobody would close it there.
fn take_in_table<'a>(
    slots: &'a [Connection],
    state: &State,
    connected: bool,
) -> Option<(usize, &'a Connection)> {
    let is_unused = |socket: &Socket| socket.fd_and_one.load(Ordering::Acquire) == 0;
    let in_table = |socket: &Socket| socket.verified().is_some();
    let take_of = |fits: &dyn Fn(&Socket) -> bool| {
        slots.iter().enumerate().find(|(_, connection)| {
            connection.busy.load(Ordering::Relaxed) == 0
                && fits(&connection.socket)
                && connection.busy.swap(1, Ordering::Acquire) == 0
                && (fits(&connection.socket) || {
                    release(state, connection);
                    false
                })
        })
    };
    take_of(&in_table).or_else(|| if connected { None } else { take_of(&is_unused) })
}

/// Takes one of the first so many slots; `connected` asks for one that has a connection.
fn take(state: &State, count: usize, connected: bool) -> Option<(usize, &Connection)> {
    let slots = &state.connections[..count];
    if table::differ() {
        return take_in_table(slots, state, connected);
    }
    slots.iter().enumerate().find(|(_, connection)| {
        (!connected || connection.socket.fd_and_one.load(Ordering::Relaxed) != 0)
            && connection.busy.load(Ordering::Relaxed) == 0
            && connection.busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    })
}

/// A reply and the descriptor that rode along, or -1.
pub(crate) type Answer = (Reply, c_int);
/// In place of a descriptor that rode along, and for which this process's table had no room.
pub(crate) const LOST: c_int = -2;

/// Has this process end when nobody is left who serves its memory, whatever it does or waits for: when the last
/// descriptor of its userfaultfd closes, the kernel answers its faults with zeros. The manager and its holder
/// have copies of that, and of the other end of a socket whose one end is kept open here; if both are killed,
/// the kernel kills this process by it. Without one, for want of a descriptor, its next call ends it.
pub(crate) fn wear_leash(state: &State) {
    wear(state, || ask_with(state, &Request::new(Op::Leash), &[], -1));
}

/// Asks for one, unless this process has one, or another thread is about that.
fn wear(state: &State, ask: impl FnOnce() -> Result<Answer, i32>) {
    if state.leashing.swap(true, Ordering::Acquire) {
        return;
    }
    if state.leash.verified().is_none()
        && let Ok((_, fd @ 0..)) = ask()
    {
        keep_leash(state, move_high(fd));
    }
    state.leashing.store(false, Ordering::Release);
}

/// One request without attachments.
pub(crate) fn ask(state: &State, request: &Request) -> Result<Reply, i32> {
    ask_with(state, request, &[], -1).map(|(reply, fd)| {
        if fd >= 0 {
            raw::close(fd);
        }
        reply
    })
}

/// One request, with a text and a descriptor (or -1). Errors are negated errno: the manager's
/// `status`, `-EMFILE` when a descriptor rode along that this process has no room for, or `-EIO` when
/// nothing could be asked.
pub(crate) fn ask_with(
    state: &State,
    request: &Request,
    text: &[u8],
    send_fd: c_int,
) -> Result<Answer, i32> {
    match ask_for(state, request, text, send_fd)? {
        (_, LOST) => Err(-libc::EMFILE),
        answer => Ok(answer),
    }
}

/// [`ask_with`] for who has something to do about a descriptor that is [`LOST`].
pub(crate) fn ask_for(
    state: &State,
    request: &Request,
    text: &[u8],
    send_fd: c_int,
) -> Result<Answer, i32> {
    let mut held = SignalsHeld::new();
    let slots = slots_for(request);
    let why = if slots > FOR_ALL { HELLO_TO_END } else { 0 };
    let mut only_connected = false;
    let mut sent_away = false;
    let mut shut = false;
    loop {
        let connected = if sent_away { take(state, slots, true) } else { None };
        let mut was_connected = false;
        let result = match connected.or_else(|| take(state, slots, only_connected)) {
            Some((index, connection)) => {
                let old = connection.socket.verified();
                was_connected = old.is_some();
                let fd = old.map_or_else(|| connect(state, index, connection, why), Ok);
                let result = fd.and_then(|fd| exchange(Some(state), fd, request, text, send_fd));
                release(state, connection);
                result
            }
            None if only_connected && !state.connections[..slots].iter().any(may_become_free) => {
                // No connection to be had, and none that could become free.
                if shut {
                    state::shut_in(state);
                }
                return Err(-libc::EIO);
            }
            None if table::differ() && !only_connected => {
                ask_apart(state, request, text, send_fd, why)
            }
            None => {
                let is_free = |c: &Connection| c.busy.load(Ordering::SeqCst) == 0;
                let any_free = || state.connections[..slots].iter().any(is_free);
                let waiting = if slots > FOR_ALL { &state.ending } else { &state.waiting };
                waiting.wait(|| any_free() && !only_connected);
                continue;
            }
        };
        match result {
            Ok((reply, -1)) if reply.status == COME_AGAIN => held = pause_between(held),
            Ok((reply, fd)) if reply.status < 0 => {
                if fd >= 0 {
                    raw::close(fd);
                }
                return Err(reply.status);
            }
            Ok(answer) => return Ok(answer),
            Err(errno) if matches!(-errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM) => {
                only_connected = true;
            }
            Err(COME_AGAIN) => {
                sent_away = true;
                held = pause_between(held);
            }
            Err(errno) if matches!(-errno, libc::EBADF | libc::ENOTSOCK | libc::ETOOMANYREFS) => {
                // Another thread of the program closed one of the two; without a descriptor of the
                // program's it was ours, and the next round connects anew.
                if send_fd >= 0 {
                    return Err(errno);
                }
            }
            Err(errno) if errno == -libc::EPROTO => {
                state::refused(state);
                return Err(-libc::EIO);
            }
            Err(errno) if is_shut(errno) => {
                // The manager is there: what is connected may go on.
                if only_connected {
                    state::shut_in(state);
                    return Err(-libc::EIO);
                }
                (only_connected, shut) = (true, true);
            }
            Err(_) if was_connected => {
                // It may have died with pages that storage has not. As long as these are not written, who
                // connects anew waits for the holder.
                state::end_without_manager();
                forget_all(state);
            }
            Err(_) => {
                state::run_over(state);
                return Err(-libc::EIO);
            }
        }
    }
}

/// Closes the connections that nobody uses just now: who was at their other end is gone.
fn forget_all(state: &State) {
    for (index, connection) in state.connections.iter().enumerate() {
        if connection.busy.swap(1, Ordering::Acquire) != 0 {
            continue;
        }
        if let Some(fd) = connection.socket.verified() {
            forget(index, connection, fd);
            raw::close(fd);
        }
        release(state, connection);
    }
}

/// Whether a slot that somebody uses is one that this thread could use.
fn may_become_free(connection: &Connection) -> bool {
    let socket = &connection.socket;
    socket.fd_and_one.load(Ordering::Relaxed) != 0
        && (!table::differ() || socket.verified().is_some())
}

/// [`ask_with`] by a connection that is made for this and closed again.
fn ask_apart(
    state: &State,
    request: &Request,
    text: &[u8],
    send_fd: c_int,
    why: u64,
) -> Result<Answer, i32> {
    let fd = new_high_socket(state)?;
    let answer =
        hello(state, fd, why).and_then(|fd| exchange(Some(state), fd, request, text, send_fd));
    raw::close(fd);
    answer
}

/// Connects the first slot now, so that the manager hears of this process.
pub(crate) fn connect_first(state: &State) {
    if let Some((index, connection)) = take(state, CONNECTIONS_MAX, false) {
        while connection.socket.verified().is_none()
            && connect(state, index, connection, 0) == Err(COME_AGAIN)
        {
            pause();
        }
        release(state, connection);
    }
}

/// Until a manager is asked again that had no descriptor or thread for a request.
fn pause() {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: 2_000_000 };
    raw_call!(libc::SYS_nanosleep, &raw const pause, 0);
}

/// [`pause`] with nothing under way: signals come meanwhile.
fn pause_between(held: SignalsHeld) -> SignalsHeld {
    drop(held);
    pause();
    SignalsHeld::new()
}

/// Our descriptors lie below this. The kernel's table of a process's descriptors is as long as its
/// highest one is high, at 8 bytes each, copied by every fork and charged to its cgroup: where a
/// process may have a million, one at the end would take 8 MiB.
pub(crate) const NUMBERS_END: u64 = 2048;

/// Duplicates a descriptor, out of the program's way; -1 if there is no room.
pub(crate) fn duplicate_high(fd: c_int) -> c_int {
    let limit = room::limit().rlim_cur.min(NUMBERS_END);
    let duplicate = |reserve: u64| {
        let base = limit.saturating_sub(reserve);
        raw::fcntl(fd, libc::F_DUPFD_CLOEXEC, base as usize)
    };
    let reserves = [2 * CONNECTIONS_MAX as u64, limit / 2];
    reserves.into_iter().map(duplicate).find(|moved| *moved >= 0).map_or(-1, |moved| moved as c_int)
}

/// Moves a descriptor out of the program's way.
pub(crate) fn move_high(fd: c_int) -> c_int {
    let moved = duplicate_high(fd);
    if moved < 0 {
        return fd;
    }
    raw::close(fd);
    moved
}

fn new_socket() -> Result<c_int, i32> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    let fd = raw_call!(libc::SYS_socket, libc::AF_UNIX, kind, 0);
    if fd < 0 { Err(fd as i32) } else { Ok(fd as c_int) }
}

/// [`new_socket`] out of the program's way, with room made for it.
fn new_high_socket(state: &State) -> Result<c_int, i32> {
    let made = || new_socket().map_or_else(|errno| errno, move_high) as isize;
    let fd = room::with(state, made);
    if fd < 0 { Err(fd as i32) } else { Ok(fd as c_int) }
}

/// Connects a slot that the caller has taken, and says `why` ([`HELLO_TO_END`]).
fn connect(state: &State, index: usize, connection: &Connection, why: u64) -> Result<c_int, i32> {
    if !table::differ() {
        // What was here was closed by a call that nobody saw: it is none that could be used again.
        connection.socket.clear();
    }
    let fd = new_high_socket(state)?;
    let stat = raw::fstat(fd)?;
    INHERITED[index].set(fd, &stat);
    table::mark_connection(fd);
    let result = hello(state, fd, why);
    if result.is_ok() {
        // By the bell it is another socket.
        let stat = raw::fstat(fd)?;
        INHERITED[index].set(fd, &stat);
        connection.socket.set(fd, &stat);
        // A forked child has its parent's, and who closes all that is open has none any more.
        let is_served = state.userfault.load(Ordering::Acquire) == userfault::SENT;
        if is_served {
            wear(state, || exchange(Some(state), fd, &Request::new(Op::Leash), &[], -1));
        }
        return Ok(fd);
    }
    INHERITED[index].clear();
    table::unmark_connection(fd);
    raw::close(fd);
    result
}

/// Asks on a connection of its own, and changes nothing in memory: for a vfork child.
pub(crate) fn ask_once(request: &Request, text: &[u8], send_fd: c_int) -> Result<Reply, i32> {
    loop {
        let fd = new_socket()?;
        let answer = greet(None, fd, HELLO_FRESH, 0).and_then(|(_, slots_fd)| {
            raw::close(slots_fd);
            exchange(None, fd, request, text, send_fd)
        });
        raw::close(fd);
        if matches!(answer, Err(COME_AGAIN)) {
            pause();
            continue;
        }
        return answer.map(|(reply, came)| {
            raw::close(came);
            reply
        });
    }
}

fn hello(state: &State, fd: c_int, why: u64) -> Result<c_int, i32> {
    let kind = u64::from(state.hello_kind.load(Ordering::Relaxed)) | why;
    let (reply, slots_fd) = greet(Some(state), fd, kind, state.image.load(Ordering::Relaxed))?;
    if reply.status < 0 {
        raw::complain(b"the manager process refuses this program; it runs unmanaged");
        return Err(-libc::EPROTO);
    }
    if slots_fd == LOST {
        return Err(-libc::EMFILE);
    }
    if reply.r2 != 0 {
        permit(fd);
    }
    state.is_numbered(reply.r1 as u32);
    let usable = table::adopt_slots(slots_fd, reply.r0 as usize);
    raw::close(slots_fd);
    if usable { Ok(fd) } else { Err(-libc::EPROTO) }
}

/// Permits the manager at the other end to read and write this process's memory, where only ancestors may: a
/// daemon's it is not.
fn permit(fd: c_int) {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    let r = raw_call!(libc::SYS_getsockopt, fd, level, name, &raw mut peer, &raw mut bytes);
    if r >= 0 && peer.pid > 0 {
        raw_call!(libc::SYS_prctl, libc::PR_SET_PTRACER, peer.pid, 0, 0, 0);
    }
}

/// Whether a call is kept from this process, by a filter of its own or of who started it.
fn is_shut(errno: i32) -> bool {
    matches!(-errno, libc::EPERM | libc::EACCES | libc::ENOSYS)
}

/// Where a socket connects to.
struct Address {
    place: libc::sockaddr_un,
    bytes: usize,
}

impl Address {
    /// A name behind so many NULs.
    fn new(nuls: usize, name: &[u8]) -> Address {
        let mut place = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
        for (to, from) in place.sun_path[nuls..].iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        Address { place, bytes: size_of::<libc::sa_family_t>() + nuls + name.len() }
    }

    fn connect(&self, fd: c_int) -> Result<(), i32> {
        loop {
            let r = raw_call!(libc::SYS_connect, fd, &raw const self.place, self.bytes);
            if r >= 0 {
                return Ok(());
            }
            if r != -libc::EAGAIN as isize && r != -libc::EINTR as isize {
                return Err(r as i32);
            }
            raw::yield_now();
        }
    }
}

/// Connects a socket, and says who this is.
fn greet(state: Option<&State>, fd: c_int, kind: u64, image: u64) -> Result<Answer, i32> {
    let door = environment::door();
    let abstract_name = Address::new(1, door.name());
    match abstract_name.connect(fd) {
        // Of another network namespace, where the name is nobody's, or kept from it (Landlock).
        Err(errno) if is_shut(errno) || errno == -libc::ECONNREFUSED => {
            let aside = door.side().and_then(|path| Address::new(0, path).connect(fd).ok());
            aside.map_or_else(|| come_by_bell(fd, errno), Ok)
        }
        done => done,
    }?;
    let mut request = Request::new(Op::Hello);
    request.a = VERSION as u64;
    (request.b, request.c) = door.secret;
    request.d = raw::gettid() as u64;
    (request.e, request.f) = (kind, image);
    // One that is gone is not connected to the next time.
    exchange(state, fd, &request, &[], -1).map_err(|errno| match -errno {
        libc::EPIPE | libc::ECONNRESET => COME_AGAIN,
        _ => errno,
    })
}

/// Connects a socket that no name leads to the manager, which failed with this error.
fn come_by_bell(fd: c_int, errno: i32) -> Result<(), i32> {
    bell::connect(fd).map_err(|found| match -found {
        libc::ECONNREFUSED | libc::EMFILE | libc::ENFILE | libc::ENOMEM => found,
        // The manager may be there.
        _ if errno == -libc::ECONNREFUSED && bell::is_elsewhere() => -libc::EACCES,
        _ => errno,
    })
}

/// Room for one descriptor in a control message.
#[repr(C, align(8))]
struct Control {
    header: libc::cmsghdr,
    fd: c_int,
    padding: c_int,
}

/// Length of a control message with one descriptor, without padding.
const CONTROL_BYTES: usize = size_of::<libc::cmsghdr>() + size_of::<c_int>();

impl Control {
    fn with(fd: c_int) -> Control {
        let header = libc::cmsghdr {
            cmsg_len: CONTROL_BYTES,
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        };
        Control { header, fd, padding: 0 }
    }
}

/// Sends one packet of two parts, with a descriptor (or -1).
pub(crate) fn send(fd: c_int, bytes: &[u8], more: &[u8], send_fd: c_int) -> Result<usize, i32> {
    let mut parts = [bytes, more]
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    let mut control = Control::with(send_fd);
    // SAFETY: all zero is a valid, empty message header.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = if more.is_empty() { 1 } else { 2 };
    if send_fd >= 0 {
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Control>();
    }
    retry(|| raw_call!(libc::SYS_sendmsg, fd, &raw const message, libc::MSG_NOSIGNAL))
}

/// Sends a request and waits for its reply, if it has one. With the state, room is made for a descriptor
/// that rides along.
fn exchange(
    state: Option<&State>,
    fd: c_int,
    request: &Request,
    text: &[u8],
    send_fd: c_int,
) -> Result<Answer, i32> {
    // It may be the program's, and lie in memory that the kernel cannot reach.
    let mut copied = [0; TEXT_BYTES];
    let text_bytes = text.len().min(TEXT_BYTES);
    copied[..text_bytes].copy_from_slice(&text[..text_bytes]);
    let text = &copied[..text_bytes];
    send(fd, request.as_bytes(), text, send_fd)?;
    let mut reply = Reply::default();
    if !Op::from_u32(request.op).is_some_and(Op::has_reply) {
        return Ok((reply, -1));
    }
    // The kernel drops a descriptor that the table has no room for, and the reply would be all.
    let brings = Op::from_u32(request.op).is_some_and(Op::may_bring_descriptor);
    let _room = state.filter(|_| brings).and_then(|state| {
        // The limit is raised when the reply has come, not while it is waited for.
        let peek = || raw_call!(libc::SYS_recvfrom, fd, 0, 0, libc::MSG_PEEK, 0, 0);
        retry(peek).ok().and_then(|_| room::ensure(state, fd))
    });
    let mut part = libc::iovec { iov_base: (&raw mut reply).cast(), iov_len: size_of::<Reply>() };
    let mut control = Control::with(-1);
    control.header.cmsg_len = 0;
    // SAFETY: all zero is a valid, empty message header.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>();
    let got = retry(|| raw_call!(libc::SYS_recvmsg, fd, &raw mut message, libc::MSG_CMSG_CLOEXEC))?;
    if got != size_of::<Reply>() {
        return Err(-libc::EPIPE);
    }
    let came = message.msg_controllen >= CONTROL_BYTES
        && control.header.cmsg_len == CONTROL_BYTES
        && control.header.cmsg_type == libc::SCM_RIGHTS;
    let lost = message.msg_flags & libc::MSG_CTRUNC != 0;
    Ok((
        reply,
        if came {
            control.fd
        } else if lost {
            LOST
        } else {
            -1
        },
    ))
}

fn retry(mut call: impl FnMut() -> isize) -> Result<usize, i32> {
    loop {
        let r = call();
        if r >= 0 {
            return Ok(r as usize);
        }
        if r != -libc::EINTR as isize {
            return Err(r as i32);
        }
    }
}

/// Tells the manager something that the user should know.
pub(crate) fn note(state: &State, text: &[u8]) {
    let mut request = Request::new(Op::Note);
    request.a = text.len().min(TEXT_BYTES) as u64;
    let _ = ask_with(state, &request, text, -1);
}
