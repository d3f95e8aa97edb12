//! What the manager tells all programs without being asked: see [`Board`].

use crate::raw;
use crate::raw_call;
use core::sync::atomic::{
    AtomicPtr, AtomicU32,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use libc::c_int;
use pagekeeper_wire::{BOARD_BYTES, Board, CELLS, INTERJECTION_BYTES, PAGE_BYTES, cell_of};

/// Null where it could not be had: then everything is asked for.
static BOARD: AtomicPtr<Board> = AtomicPtr::new(core::ptr::null_mut());

/// Longest [`Path`].
pub(crate) const PATH_BYTES: usize = 48;

/// `/proc/PID/fd/FD`, with its NUL.
pub(crate) type Path = [u8; PATH_BYTES];

/// The path of one of the manager's descriptors: the environment names the process and some of these.
fn path_of(place: &[u8], which: usize) -> Option<Path> {
    let mut numbers = place.split(|&c| c == b'.');
    let (process, number) = (numbers.next()?, numbers.nth(which)?);
    let mut path = [0u8; PATH_BYTES];
    let mut end = 0;
    for part in [b"/proc/", process, b"/fd/", number] {
        // With the NUL behind it.
        let room = path.get_mut(end..end + part.len()).filter(|_| end + part.len() < PATH_BYTES)?;
        room.copy_from_slice(part);
        end += part.len();
    }
    Some(path)
}

/// The manager's second way in, if the environment names one behind the board's place.
pub(crate) fn side_door(place: &[u8]) -> Option<Path> {
    path_of(place, 1)
}

/// Looks for the board at the place that the environment names.
pub(crate) fn find(place: &[u8], secret: (u64, u64)) {
    let Some(path) = path_of(place, 0) else { return };
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    let fd = raw_call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) as c_int;
    if fd < 0 {
        return;
    }
    let room = raw::reserve(BOARD_BYTES + INTERJECTION_BYTES);
    let addr = match raw::fstat(fd) {
        Ok(stat) if stat.st_size >= BOARD_BYTES as i64 && room != 0 => {
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            raw::mmap(room, BOARD_BYTES, libc::PROT_READ, flags, fd, 0)
        }
        _ => -1,
    };
    raw::close(fd);
    if addr < 0 {
        raw::munmap(room, BOARD_BYTES + INTERJECTION_BYTES);
        return;
    }
    let board = addr as *mut Board;
    // SAFETY: just mapped from a file of at least as many bytes, readable; any bytes are valid atomics.
    let found = unsafe { &*board };
    let known = (found.secret_high.load(Relaxed), found.secret_low.load(Relaxed));
    if known == secret {
        BOARD.store(board, Release);
    } else {
        // In another process namespace the number is somebody else's.
        raw::munmap(room, BOARD_BYTES + INTERJECTION_BYTES);
    }
}

fn board() -> Option<&'static Board> {
    // SAFETY: null, or mapped in `find`, and never unmapped, from a file that nobody makes shorter.
    unsafe { BOARD.load(Acquire).as_ref() }
}

/// Where the memory behind the board ends that an interjection uses; 0 without a board.
pub(crate) fn room_end() -> usize {
    match BOARD.load(Relaxed) as usize {
        0 => 0,
        at => at + BOARD_BYTES + INTERJECTION_BYTES,
    }
}

/// Whether the manager stands by.
#[inline(always)]
pub(crate) fn stands_by() -> bool {
    board().is_some_and(|board| board.stands_by.load(SeqCst) != 0)
}

/// Whether a file was mapped that may be stored to, by anybody.
pub(crate) fn may_be_stored() -> bool {
    board().is_some_and(|board| board.may_be_stored.load(SeqCst) != 0)
}

/// Whether programs that are executed may be kept from this library by the kernel, and find old bytes.
pub(crate) fn may_be_confined() -> bool {
    board().is_some_and(|board| board.may_be_confined.load(SeqCst) != 0)
}

/// Whether no file of a cell was ever managed.
#[inline(always)]
pub(crate) fn is_clear(cell: u32) -> bool {
    let board = BOARD.load(Acquire) as usize;
    if board == 0 || cell as usize >= CELLS {
        return false;
    }
    let cells = (board + PAGE_BYTES as usize) as *const AtomicU32;
    // SAFETY: `find` mapped so many words behind the board's page, for good; any bytes are valid.
    unsafe { &*cells.add(cell as usize) }.load(SeqCst) == 0
}

/// The cell of a regular file that was never managed.
pub(crate) fn unmanaged(stat: &libc::stat) -> Option<u32> {
    let cell = cell_of(stat.st_dev, stat.st_ino);
    (stat.st_mode & libc::S_IFMT == libc::S_IFREG && is_clear(cell)).then_some(cell)
}

/// [`unmanaged`] for a file that would not be managed if it were opened now: it is too short.
pub(crate) fn too_short(stat: &libc::stat) -> Option<u32> {
    let least = board()?.min_size_bytes.load(Relaxed);
    unmanaged(stat).filter(|_| (stat.st_size as u64) < least)
}
