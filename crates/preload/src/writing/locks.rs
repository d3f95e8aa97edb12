//! Locks: where processes agree on what a file holds, those outside too.
//!
//! Who takes a lock sees what was written before it was free; and before one is given up, what is dirty
//! here is written back, for whoever takes it next. Programs give a lock up not only by saying so: a
//! shared one may take an exclusive one's place, a process's locks on a file go with any descriptor of
//! it that is closed (`fcntl_locking(2)`), and with the process. (One that is killed says nothing: the
//! manager hears of it a moment later.) Nor need it be this program that took one: locks come with descriptors
//! that were there when it was executed, or that others have, too.

use crate::descriptors::files;
use crate::descriptors::plain;
use crate::descriptors::table::{self, Entry};
use crate::reading::guard;
use crate::writing::change;
use crate::writing::{delayed, lock_files, overwrite};
use libc::c_int;

/// What a call asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    Exclusive,
    /// Perhaps in place of an exclusive one.
    Shared,
    None,
}

impl Lock {
    /// Whether `fcntl(2)` is asked for a lock, or for none any more.
    pub(crate) fn is_by_fcntl(command: c_int) -> bool {
        matches!(command, libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW)
    }

    /// What the program's own `struct flock` asks for; none if it is not there.
    pub(crate) fn of_record(argument: usize) -> Option<Lock> {
        if !guard::is_there(argument, size_of::<libc::flock>()) {
            return None;
        }
        // SAFETY: the program's own, of which memory was there just now.
        match c_int::from(unsafe { (*(argument as *const libc::flock)).l_type }) {
            libc::F_UNLCK => Some(Lock::None),
            libc::F_RDLCK => Some(Lock::Shared),
            _ => Some(Lock::Exclusive),
        }
    }

    /// What `flock(2)` is asked for.
    pub(crate) fn of_flock(operation: c_int) -> Lock {
        match operation & !libc::LOCK_NB {
            libc::LOCK_UN => Lock::None,
            libc::LOCK_SH => Lock::Shared,
            _ => Lock::Exclusive,
        }
    }

    /// What `lockf(3)` is asked for, if it is a lock.
    pub(crate) fn of_lockf(command: c_int) -> Option<Lock> {
        match command {
            libc::F_ULOCK => Some(Lock::None),
            libc::F_LOCK | libc::F_TLOCK => Some(Lock::Exclusive),
            _ => None,
        }
    }
}

/// Makes a call that asks for a lock, or for none any more; its result is negative if it failed. What it
/// asks for is looked at only if something is managed here, or it may be the first lock of its descriptor.
pub(crate) fn change(
    fd: c_int,
    to: impl Fn() -> Option<Lock>,
    call: impl FnOnce() -> isize,
) -> isize {
    let is_served = is_served(fd);
    let asked = if is_served || lock_files::concerns_any() { to() } else { None };
    if asked.is_some_and(|to| to != Lock::Exclusive) {
        if is_served {
            before_unlock(fd);
        }
        lock_files::write_back_all();
    }
    let result = call();
    // Something may have become managed while it waited.
    let concerns = is_served || lock_files::concerns_any();
    if result < 0 || !concerns && lock_files::is_taken(fd) {
        return result;
    }
    if asked.or_else(to).is_some_and(|to| to != Lock::None) {
        lock_files::taken(fd);
        if concerns {
            if is_served || table::get(fd).is_some_and(table::is_active) {
                after_lock(fd);
            }
            lock_files::see_all(table::get(fd).map(Entry::slot));
        }
    }
    result
}

/// Whether the manager serves a descriptor's file.
fn is_served(fd: c_int) -> bool {
    if table::is_plain(fd) || plain::is_kernels(fd) {
        return false;
    }
    match table::get(fd) {
        Some(entry) => table::is_active(entry),
        None => files::managed(fd).is_some_and(|file| table::is_active(file.entry)),
    }
}

/// Whoever takes a lock next, outside too, must find in the file what was stored here.
fn before_unlock(fd: c_int) {
    if table::get_sure(fd).is_some_and(overwrite::is_clean) {
        return;
    }
    if let Some(file) = files::managed(fd) {
        delayed::published(file.entry);
        let _ = change::flush(&file, 0, 0);
        // It says so from now on.
        overwrite::can_look(file.state);
    }
}

/// What somebody outside wrote before is to be seen.
fn after_lock(fd: c_int) {
    match table::get_sure(fd) {
        Some(entry) => change::see(fd, entry),
        None => drop(change::refresh(fd)),
    }
}
