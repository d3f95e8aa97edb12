//! Reads and writes of files that are the kernel's: the program's own system calls, and no others.
//!
//! Nobody need know that they are under way. A read that began before its file was managed may end
//! later: what it finds was there when it began. A write may come too late to be seen by a manager that
//! has just read the file. So whoever wrote looks afterwards whether the file is still the kernel's, and
//! if it is not, writes once more, by the manager, before the program hears of it.

use crate::files::{self, Served};
use crate::raw::{self, Arena};
use crate::state::{self, View};
use crate::table::{self, Entry};
use crate::transfer::{self, Buffers};
use crate::{board, change, first_use, raw_call, standby};
use libc::c_int;

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
    let found = match table::get(fd) {
        Some(entry) => Plain::Known(entry),
        None => Plain::Unshown(first_use::short(fd)?),
    };
    // It may be about to be managed no less than another.
    standby::step();
    found.is_plain().then_some(found)
}

impl Plain {
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

    /// The file was cut off.
    pub(crate) fn truncated(self, fd: c_int, bytes: i64) {
        if !self.is_plain() {
            let _ = change::truncate(fd, bytes, || raw_call!(libc::SYS_ftruncate, fd, bytes));
        }
    }
}

/// What was written just now may have come too late for the manager to see it.
#[cold]
fn write_again(fd: c_int, iov: &impl Buffers, position: Option<i64>, done: usize) {
    // A vfork child cannot tell anybody: to the manager, it is somebody outside.
    if matches!(state::view(), View::Foreign) {
        return;
    }
    let is_managed =
        files::managed(fd).is_some_and(|mut file| matches!(file.enter(), Served::Managed));
    if !is_managed {
        return;
    }
    // Its length, and what is in memory and has not changed there.
    change::refresh(fd);
    let start = position.unwrap_or_else(|| raw::lseek(fd, 0, libc::SEEK_CUR) - done as i64);
    let (Some(ours), Some(there)) = (Arena::new(done), Arena::new(done)) else { return };
    let Ok(iov) = iov.get() else { return };
    if start < 0 || ours.gather(iov, done) != done as isize {
        return;
    }
    let read = raw_call!(libc::SYS_pread64, fd, there.addr, done, start);
    // Where that is not what the file has, it was written elsewhere: the descriptor appends, or others
    // move its offset. (A descriptor that cannot be read from tells nothing; a file that is appended to
    // has its end in no other's page but the last.)
    if read >= 0 && (read as usize != done || !is_same(ours.addr, there.addr, done)) {
        return;
    }
    let plain = || raw_call!(libc::SYS_pwrite64, fd, ours.addr, done, start);
    let _ = transfer::write(fd, transfer::one(ours.addr, done), Some(start), 0, plain);
}

fn is_same(one: usize, other: usize, bytes: usize) -> bool {
    // SAFETY: two arenas of at least so many bytes, of this function's caller alone.
    let slice = |addr: usize| unsafe { core::slice::from_raw_parts(addr as *const u8, bytes) };
    slice(one) == slice(other)
}
