//! A way to the manager out of other network namespaces.
//!
//! The manager's socket has an abstract name, which belongs to one network namespace, and its second way in
//! leads through `/proc/PID`, which processes in other namespaces of users or processes do not find. A
//! descriptor needs neither: who is about to enter another network namespace asks for one by which it and its
//! children can send the manager one end of each connection that they make. It stays open in the programs that
//! are executed there, which look for it by its inode.

use crate::descriptors::table;
use crate::link::connection::{self, Socket};
use crate::process::environment::door;
use crate::process::state;
use crate::raw::{self, SignalsHeld};
use crate::raw_call;
use libc::c_int;
use pagekeeper_wire::{Op, Request};

/// What a forked child has, too.
static BELL: Socket = Socket::none();

/// The descriptor, as one of ours.
pub(crate) fn socket() -> &'static Socket {
    &BELL
}

/// Something is about to be done with these flags of `clone(2)`, by which this thread or a child may get
/// another network namespace.
pub(crate) fn before_namespace(flags: usize) {
    if flags & libc::CLONE_NEWNET as usize == 0 || BELL.verified().is_some() {
        return;
    }
    let Some(state) = state::current() else { return };
    let _held = SignalsHeld::new();
    let _lock = state.set_up.lock();
    if BELL.verified().is_some() {
        return;
    }
    if let Ok((_, fd @ 0..)) = connection::ask_with(state, &Request::new(Op::Bell), &[], -1) {
        keep(connection::move_high(fd));
    }
}

/// Before `setns(2)`, to a namespace of this kind (0: any).
pub(crate) fn before_joining(kind: c_int) {
    before_namespace(if kind == 0 { libc::CLONE_NEWNET } else { kind } as usize);
}

fn keep(fd: c_int) {
    let Ok(stat) = raw::fstat(fd) else { return };
    // For what is executed there.
    raw::fcntl(fd, libc::F_SETFD, 0);
    table::mark_connection(fd);
    BELL.set(fd, &stat);
}

/// One that whoever executed this program left open, whatever the limit of descriptors is by now.
fn find() -> Option<c_int> {
    let inode = door().bell_inode;
    let is_it = |fd: &c_int| {
        raw::fstat(*fd)
            .is_ok_and(|stat| stat.st_ino == inode && stat.st_mode & libc::S_IFMT == libc::S_IFSOCK)
    };
    let mut numbers = (0..connection::NUMBERS_END as c_int).rev();
    let found = if inode == 0 { None } else { numbers.find(is_it) };
    found.inspect(|fd| keep(*fd))
}

/// A program begins: it keeps what it may need later, or leave to what it executes.
pub(crate) fn inherited() {
    if is_elsewhere() {
        find();
    }
}

/// Whether this is it: no child may close it, though it has not called the manager so far.
pub(crate) fn is(fd: c_int) -> bool {
    table::is_connection(fd) && BELL.verified() == Some(fd)
}

/// It may have been marked to be closed by an exec, with others: it stays open.
pub(crate) fn stays_open() {
    if let Some(fd) = BELL.verified() {
        raw::fcntl(fd, libc::F_SETFD, 0);
    }
}

/// A program's descriptor is about to take this number. In memory that is its parent's a child notes nothing:
/// there the number is what it was.
pub(crate) fn make_way(fd: c_int, is_own_memory: bool) {
    if !is(fd) {
        return;
    }
    let moved = connection::duplicate_high(fd);
    if is_own_memory {
        BELL.clear();
        table::unmark_connection(fd);
        keep(moved);
    } else {
        raw::fcntl(moved, libc::F_SETFD, 0);
    }
}

/// Connects a socket by it: puts one of a pair in its place, whose other one the manager gets.
///
/// # Errors
/// -ECONNREFUSED: the manager is gone. -ENOENT: there is none.
pub(crate) fn connect(fd: c_int) -> Result<(), i32> {
    let bell = BELL.verified().or_else(find).ok_or(-libc::ENOENT)?;
    let mut pair = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    let made = raw_call!(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, pair.as_mut_ptr());
    if made < 0 {
        return Err(made as i32);
    }
    let sent = connection::send(bell, b"\0", &[], pair[1]);
    raw::close(pair[1]);
    let placed = raw_call!(libc::SYS_dup3, pair[0], fd, libc::O_CLOEXEC);
    raw::close(pair[0]);
    match sent {
        Ok(_) if placed < 0 => Err(placed as i32),
        Ok(_) => Ok(()),
        Err(errno) if matches!(-errno, libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN) => {
            Err(-libc::ECONNREFUSED)
        }
        Err(errno) => Err(errno),
    }
}

/// Whether this process has another network namespace than the manager, as far as can be told.
pub(crate) fn is_elsewhere() -> bool {
    let own = || raw::stat_at(libc::AT_FDCWD, c"/proc/self/ns/net".as_ptr(), 0);
    door().network != 0 && own().is_ok_and(|own| own.st_ino != door().network)
}
