//! Descriptors that the manager was not told of: they were opened to read from, and not used yet, or
//! their files are too short to be managed.
//!
//! A program that opens a hundred small files reads each once and closes it. So an open for reading
//! sends no message: the first call that concerns the file shows the manager the descriptor, and a
//! read shows it and reads in one message. Whoever opens a file and closes it unused sends none.
//!
//! A file that is too short to be managed, and never was, stays the kernel's whatever is read and written
//! there: of its descriptors the manager hears when they are mapped, cut off or synced, or when the file
//! may be managed after all, since another program found it longer when it opened it.
//!
//! Until then the table says only that the descriptor is unshown: nothing was asked, not even the
//! kernel, of what kind it is. That is all there is to know: a duplicate or a forked child's copy is
//! shown by its own first use, a closed one is forgotten, and no call has been made on it, so there
//! is none that the manager would have to wait for. The kernel counts the descriptor among those
//! that keep a file from being let go of.

use crate::descriptors::files::{self, File};
use crate::descriptors::table::{self, Entry, Unshown};
use crate::link::{board, standby};
use crate::memory::mapping;
use crate::process::state::{self, State, View};
use crate::raw::{self, SignalsHeld};
use crate::reading::{direct, transfer};
use core::sync::atomic::Ordering;
use libc::c_int;
use pagekeeper_wire::{Reply, Request};

/// Whether opening with these flags of `open(2)` can wait for the first use. What may write is shown
/// at once, and so is what may be opened anew when nobody has the file open (O_PATH), and whose reads
/// have to be looked at (O_DIRECT).
pub(crate) fn can_wait(flags: c_int) -> bool {
    let shown = libc::O_PATH | libc::O_TRUNC | libc::O_DIRECT;
    flags & libc::O_ACCMODE == libc::O_RDONLY && flags & shown == 0
}

/// A descriptor was opened that can wait.
pub(crate) fn opened(fd: c_int) {
    note(fd, raw::recent_ns(), Unshown::new(fd));
}

/// A descriptor was opened, to write to it perhaps, of a file of this cell that is too short to be
/// managed.
pub(crate) fn opened_short(fd: c_int, cell: u32) {
    note(fd, raw::recent_ns(), Unshown::new(fd).short(cell));
}

/// The cell of an unshown descriptor's file, if that was too short to be managed when it was looked at:
/// when it was opened to write to it, or now.
#[inline]
pub(crate) fn short(fd: c_int) -> Option<u32> {
    let known = table::unshown(fd)?;
    known.cell().or_else(|| look(fd, known))
}

fn look(fd: c_int, known: Unshown) -> Option<u32> {
    if known.was_looked_at() {
        return None;
    }
    let stat = raw::fstat(fd).ok()?;
    let cell = board::too_short(&stat);
    // A vfork child's table is its parent's.
    if !matches!(state::view(), View::Foreign) {
        match cell {
            Some(cell) => table::exchange_unshown(fd, known, known.short(cell)),
            None if stat.st_mode & libc::S_IFMT == libc::S_IFREG => {
                table::exchange_unshown(fd, known, known.looked_at());
            }
            None => {
                table::replace_unshown(fd, known, None);
            }
        }
    }
    cell
}

/// Whether a read by this descriptor is the kernel's: it is of no file that could be managed, or nothing
/// is shown for the time being.
#[inline(always)]
pub(crate) fn is_left(fd: c_int) -> bool {
    table::is_plain(fd) || table::unshown(fd).is_some_and(|known| known.was_looked_at() && waits())
}

/// An unshown descriptor was duplicated.
pub(crate) fn duplicated(known: Unshown, old: c_int, new: c_int) {
    note(new, opened_ns(old), known.duplicate());
}

fn note(fd: c_int, opened_ns: u64, unshown: Unshown) {
    let state = match state::view() {
        // A vfork child's table is its parent's.
        View::Foreign => return,
        View::Fresh => None,
        View::Ready(state) => Some(state),
    };
    files::enter(state, fd, opened_ns, || table::set_unshown(fd, unshown));
}

/// Whether nothing is shown for the time being. What was mapped meanwhile is taken over before
/// anything is shown.
#[inline(always)]
fn waits() -> bool {
    standby::step();
    standby::holds()
}

/// Whether a descriptor may turn out to be of a managed file, though nothing is shown now.
pub(crate) fn may_come(fd: c_int) -> bool {
    table::unshown(fd).is_some()
        && raw::fstat(fd).is_ok_and(|stat| files::can_be_managed(fd, &stat))
}

/// When it was opened: errors of write-backs since then are news to it.
fn opened_ns(fd: c_int) -> u64 {
    table::heard(fd).map_or(0, |known| known.load(Ordering::Relaxed))
}

/// Shows the manager an unshown descriptor: the file, if it has a slot. Another thread may show it
/// meanwhile, or give its number to another file.
pub(crate) fn show(fd: c_int) -> Option<File> {
    if waits() {
        return None;
    }
    loop {
        let Some(known) = table::unshown(fd) else {
            let state = state::glance()?;
            return table::get(fd).map(|entry| File { state, fd, entry });
        };
        if let Some(state) = settle(fd, known) {
            if let Some((entry, _)) = exchange(state, fd, known, &request(fd)) {
                return Some(File { state, fd, entry });
            }
            if table::differ() {
                // The kernel's, in this thread.
                return None;
            }
        } else if table::unshown(fd) == Some(known) {
            // Closed, or a vfork child's: it may not use its parent's connections.
            return None;
        }
    }
}

/// Settles a descriptor as far as that takes no message: one that is no regular file's is the
/// kernel's, and of a file that this process has shown before all is known. Otherwise it is to be
/// shown.
fn settle(fd: c_int, known: Unshown) -> Option<&'static State> {
    let stat = raw::fstat(fd).ok()?;
    if !files::can_be_managed(fd, &stat) {
        if !matches!(state::view(), View::Foreign) {
            table::replace_unshown(fd, known, None);
        }
        return None;
    }
    let state = state::current()?;
    // Others were opened to read from.
    let flags = if known.cell().is_some() { raw::fcntl(fd, libc::F_GETFL, 0) as c_int } else { 0 };
    match table::shown(&stat, flags, state.pid(), opened_ns(fd)) {
        Some((file, heard)) => {
            hear(fd, heard);
            table::replace_unshown(fd, known, Some(known.shown(file, flags)));
            None
        }
        None => Some(state),
    }
}

/// What a descriptor has heard of its file's errors.
fn hear(fd: c_int, heard: u64) {
    if let Some(known) = table::heard(fd) {
        known.store(heard, Ordering::Relaxed);
    }
}

fn request(fd: c_int) -> Request {
    let mut request = files::opening(raw::fcntl(fd, libc::F_GETFL, 0) as c_int);
    request.b = opened_ns(fd);
    request
}

/// Sends one message and enters what it brought. None if the file has no slot (the descriptor is the
/// kernel's from now on), or if the number was closed meanwhile.
fn exchange(state: &State, fd: c_int, known: Unshown, request: &Request) -> Option<(Entry, Reply)> {
    let shown = files::show(state, fd, request).and_then(|(file, reply)| {
        let stat = raw::fstat(fd).ok()?;
        // Unchanged since before it was sent: it is the same file all the time.
        (table::unshown(fd) == Some(known)).then_some(())?;
        let flags = request.a as c_int;
        let entry = known.shown(file, flags);
        files::met(state, entry, &stat, flags, (reply.r1, request.b)).then_some((entry, reply))
    });
    match shown {
        Some((entry, reply)) => {
            hear(fd, reply.r1);
            table::replace_unshown(fd, known, Some(entry)).then_some((entry, reply))
        }
        None => {
            table::replace_unshown(fd, known, None);
            None
        }
    }
}

/// The first call on a descriptor, if it is a read into one buffer. None if it was not made.
pub(crate) fn read(
    fd: c_int,
    buffers: &impl transfer::Buffers,
    position: Option<i64>,
) -> Option<isize> {
    let known = table::unshown(fd)?;
    if waits() {
        return None;
    }
    let Some(state) = settle(fd, known) else {
        return transfer::read_directly(fd, table::readable(fd)?, buffers, position);
    };
    let Ok([part]) = buffers.get() else { return None };
    let bytes = part.iov_len;
    // What the kernel may be unable to reach goes another way.
    if bytes == 0 || mapping::may_be_managed(part.iov_base as usize, bytes) {
        return None;
    }
    let _held = SignalsHeld::new();
    let place = position.unwrap_or_else(|| raw::lseek(fd, 0, libc::SEEK_CUR));
    let mut request = request(fd);
    request.c = u64::try_from(place).ok()?;
    (request.d, request.e) = (bytes as u64, part.iov_base as u64);
    let (entry, reply) = exchange(state, fd, known, &request)?;
    let got = (reply.r2.checked_sub(1)? as usize).min(bytes);
    direct::count_whole_read(entry, got);
    if position.is_some() || got == 0 {
        return Some(got as isize);
    }
    let after = raw::lseek(fd, got as i64, libc::SEEK_CUR);
    if after < 0 {
        return None;
    }
    let start = after - got as i64;
    // Whoever shares the offset may have read meanwhile: these bytes are theirs, others are ours.
    let again = (start != place).then(|| transfer::read_claimed(fd, &[*part], start as u64, got));
    Some(again.unwrap_or(got as isize))
}
