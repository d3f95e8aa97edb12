//! Reads and writes of files that are the kernel's: the program's own system calls, and no others.
//!
//! Nobody need know that they are under way. A read that began before its file was managed may end
//! later: what it finds was there when it began. A write may come too late to be seen by a manager that
//! has just read the file. So whoever wrote looks afterwards whether the file is still the kernel's, and
//! if it is not, writes once more, by the manager, before the program hears of it.

use crate::descriptors::files::{self, Served};
use crate::descriptors::first_use;
use crate::descriptors::table::{self, Entry};
use crate::link::connection::ask;
use crate::link::{board, standby};
use crate::process::state::{self, View};
use crate::raw::{self, Arena, SignalsHeld};
use crate::reading::transfer::Buffers;
use crate::writing::change;
use libc::c_int;
use pagekeeper_wire::{CHANGE_WAS_MADE, CHANGE_WRITE, Op};

/// A file that is the kernel's.
#[derive(Clone, Copy)]
pub(crate) enum Plain {
    /// Nobody was told of it: no file of its cell was ever managed.
    Unshown(u32),
    /// It has a slot, and is not managed.
    Known(Entry),
}

/// The file behind a descriptor, if it is the kernel's now as far as this process can see by itself.
pub(crate) fn of(fd: c_int) -> Option<Plain> {
    if table::differ() {
        return None;
    }
    let found = match table::get(fd) {
        Some(entry) => Plain::Known(entry),
        None => Plain::Unshown(first_use::short(fd)?),
    };
    // It may be about to be managed no less than another.
    standby::step();
    found.is_plain().then_some(found)
}

/// Whether a file with a slot is the kernel's now.
#[inline(always)]
pub(crate) fn is_left(entry: Entry) -> bool {
    // It may be about to be managed.
    standby::step();
    Plain::Known(entry).is_plain()
}

/// Whether a descriptor that was or may have to be shown is of a file that is the kernel's now, or is not
/// shown for the time being.
pub(crate) fn is_kernels(fd: c_int) -> bool {
    match table::get(fd) {
        Some(entry) => !table::differ() && is_left(entry),
        None => first_use::is_left(fd),
    }
}

impl Plain {
    #[inline(always)]
    fn is_plain(self) -> bool {
        match self {
            Plain::Unshown(cell) => board::is_clear(cell),
            // In this order: the slot is this file's as long as that is open here and not managed.
            Plain::Known(entry) => !table::is_active(entry) && table::is_current(entry),
        }
    }

    /// So many bytes of these buffers were written, at an offset or the descriptor's own.
    #[inline]
    pub(crate) fn wrote(self, fd: c_int, iov: &impl Buffers, position: Option<i64>, done: isize) {
        if done > 0 && !self.is_plain() {
            write_again(fd, iov, position, done as usize);
        }
    }

    /// The file was cut to nothing. Not once more where the manager has it by now, which would lose what others
    /// have written since.
    pub(crate) fn emptied(self, fd: c_int) {
        if !self.is_plain()
            && let Some(file) = files::managed(fd)
        {
            change::dropped(&file);
        }
    }
}

/// What was written just now may have come too late for the manager to see it: the pages that are in
/// memory are patched.
#[cold]
fn write_again(fd: c_int, iov: &impl Buffers, position: Option<i64>, done: usize) {
    // A vfork child cannot tell anybody: to the manager, it is somebody outside.
    if matches!(state::view(), View::Foreign) {
        return;
    }
    let Some(mut file) = files::managed(fd) else { return };
    let Served::Managed = file.enter() else { return };
    // Its length, and what is in memory and has not changed there.
    change::refresh(fd);
    let start = position.unwrap_or_else(|| raw::lseek(fd, 0, libc::SEEK_CUR) - done as i64);
    let (Some(arena), Ok(iov)) = (Arena::new(done), iov.get()) else { return };
    if start < 0 || arena.gather(iov, done) != done as isize {
        return;
    }
    let appends = raw::fcntl(fd, libc::F_GETFL, 0) as c_int & libc::O_APPEND != 0;
    let is_sure = position.is_some() && !appends;
    let _held = SignalsHeld::new();
    let mut begin = file.request(Op::ChangeBegin);
    (begin.b, begin.c, begin.d) = (start as u64, done as u64, arena.addr as u64);
    (begin.e, begin.f) = (CHANGE_WRITE, if is_sure { 0 } else { CHANGE_WAS_MADE });
    let Ok(reply) = file.ask(&begin) else { return };
    // Where it is not there, it is elsewhere: others move the descriptor's offset, or append, too.
    let is_there = reply.r1 == 0;
    let mut end = file.request(Op::ChangeEnd);
    (end.b, end.c) = (reply.r0, start as u64);
    (end.d, end.e) = (if is_there { done as u64 } else { 0 }, arena.addr as u64);
    let _ = ask(file.state, &end);
}
