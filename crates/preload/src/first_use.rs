//! Descriptors that were opened to read from, and not used yet.
//!
//! A program that opens a hundred small files reads each once and closes it. So an open for reading
//! sends no message: the first call that concerns the file shows the manager the descriptor, and a
//! read shows it and reads in one message. Whoever opens a file and closes it unused sends none.
//!
//! Until then the table says only that the descriptor is unshown. That is all there is to know: a
//! duplicate or a forked child's copy is shown by its own first use, a closed one is forgotten, and
//! no call has been made on it, so there is none that the manager would have to wait for. The
//! kernel counts the descriptor among those that keep a file from being let go of.

use crate::files::{self, File};
use crate::raw::{self, SignalsHeld};
use crate::state::State;
use crate::table::{self, Entry, Unshown};
use crate::{direct, mapping, state, transfer};
use core::sync::atomic::Ordering;
use libc::c_int;
use pagekeeper_wire::{Reply, Request};

/// Whether opening with these flags of `open(2)` can wait for the first use. What may write is shown
/// at once, and so is what may be opened anew when nobody has the file open (O_PATH).
pub(crate) fn can_wait(flags: c_int) -> bool {
    flags & libc::O_ACCMODE == libc::O_RDONLY && flags & (libc::O_PATH | libc::O_TRUNC) == 0
}

/// A descriptor was opened that can wait.
pub(crate) fn opened(state: &State, fd: c_int) {
    files::enter(state, fd, raw::monotonic_ns(), || table::set_unshown(fd, Unshown::new(fd)));
}

/// An unshown descriptor was duplicated.
pub(crate) fn duplicated(state: &State, known: Unshown, old: c_int, new: c_int) {
    files::enter(state, new, opened_ns(old), || table::set_unshown(new, known.duplicate()));
}

/// When it was opened: errors of write-backs since then are news to it.
fn opened_ns(fd: c_int) -> u64 {
    table::heard(fd).map_or(0, |known| known.load(Ordering::Relaxed))
}

/// Shows the manager an unshown descriptor: the file, if it has a slot. Another thread may show it
/// meanwhile, or give its number to another file.
pub(crate) fn show(state: &'static State, fd: c_int) -> Option<File> {
    // A vfork child may not use its parent's connections.
    while state.is_own() {
        let Some(known) = table::unshown(fd) else {
            return table::get(fd).map(|entry| File { state, fd, entry });
        };
        let request = request(fd);
        if let Some((entry, _)) = exchange(state, fd, known, &request) {
            return Some(File { state, fd, entry });
        }
    }
    None
}

fn request(fd: c_int) -> Request {
    let mut request = files::opening(raw::fcntl(fd, libc::F_GETFL, 0) as c_int);
    request.b = opened_ns(fd);
    request
}

/// Sends one message and enters what it brought. None if the file has no slot (the descriptor is the
/// kernel's from now on), or if the number was closed meanwhile.
fn exchange(state: &State, fd: c_int, known: Unshown, request: &Request) -> Option<(Entry, Reply)> {
    let shown = files::show(state, fd, request).and_then(|(slot, reply)| {
        let stat = raw::fstat(fd).ok()?;
        // Unchanged since before it was sent: it is the same file all the time.
        (table::unshown(fd) == Some(known)).then_some(())?;
        let flags = request.a as c_int;
        files::met(state, slot, &stat, flags, reply.r1).then_some((known.shown(slot, flags), reply))
    });
    match shown {
        Some((entry, reply)) => {
            if let Some(heard) = table::heard(fd) {
                heard.store(reply.r1, Ordering::Relaxed);
            }
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
    let state = state::current()?;
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
