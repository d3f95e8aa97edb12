//! Streams of ours with wide characters (`fputws(3)`, `wprintf(3)`, `fgetws(3)`).
//!
//! A stream of `fopencookie(3)` is one of bytes for good: glibc gives it no room for wide characters,
//! and some of its functions do not ask before they use it. A stream on a file of its own has that
//! room, belongs to neither kind until it is used, and takes other calls when it becomes wide: those
//! of files, which read and write its descriptor. So ours have both here, room and descriptor. What
//! becomes wide is glibc's own from then on: its calls come past this library, and count as somebody
//! else's.

use crate::raw;
use crate::real;
use crate::streams::large::Fields;
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{FILE, c_int, c_void};

/// `struct _IO_wide_data` of any glibc since 2.2, in words; its last is where the calls are.
const ROOM_WORDS: usize = 0x138 / size_of::<usize>();
type Room = [usize; ROOM_WORDS];

/// What glibc's own streams have for their calls when they are wide; zero if that is not known.
static CALLS: AtomicUsize = AtomicUsize::new(0);
/// At which word of the room.
static CALLS_AT: AtomicUsize = AtomicUsize::new(0);
/// Descriptors that have one: 1.3 MB of addresses, which a program's limits (`RLIMIT_DATA`) count. A
/// stream on a higher one stays one of bytes.
const ROOMS_MAX: u32 = 4096;
/// A room for each of these descriptors.
static ROOMS: AtomicUsize = AtomicUsize::new(0);

/// Looks at a stream of glibc's for how it is made.
pub(crate) fn learn() {
    let [stream, calls] =
        [c"_IO_2_1_stdout_", c"_IO_wfile_jumps"].map(|name| real::of_program(name) as usize);
    if stream == 0 || calls == 0 {
        return;
    }
    // SAFETY: glibc's standard output; nobody closes it, and its room stays where it is.
    let room = unsafe { (*(stream as *const Fields)).wide } as *const usize;
    if room.is_null() || room as isize == -1 {
        return;
    }
    // SAFETY: a room of glibc's data, which is not the last that it has there; only looked at.
    if let Some(at) = (0..ROOM_WORDS).find(|&at| unsafe { room.add(at).read() } == calls) {
        CALLS_AT.store(at, Ordering::Relaxed);
        CALLS.store(calls, Ordering::Relaxed);
    }
}

/// Makes a new stream of ours one that may become wide.
pub(crate) fn allow(stream: *mut FILE, fd: c_int) {
    let calls = CALLS.load(Ordering::Relaxed);
    if calls == 0 || fd as u32 >= ROOMS_MAX {
        return;
    }
    if ROOMS.load(Ordering::Acquire) == 0 {
        let bytes = ROOMS_MAX as usize * size_of::<Room>();
        let addr = raw::reserve(bytes);
        if addr == 0 {
            return;
        }
        let first = ROOMS.compare_exchange(0, addr, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err() {
            raw::munmap(addr, bytes);
        }
    }
    let room = (ROOMS.load(Ordering::Acquire) as *mut Room).wrapping_add(fd as usize);
    // SAFETY: mapped for ROOMS_MAX rooms, never unmapped. The stream is new: nobody else has it,
    // and no other that is in use has its descriptor.
    unsafe {
        room.write([0; ROOM_WORDS]);
        (*room)[CALLS_AT.load(Ordering::Relaxed)] = calls;
        let fields = &mut *stream.cast::<Fields>();
        fields.wide = room.cast::<c_void>();
        fields.mode = 0;
    }
}

/// Whether a stream has become wide.
pub(crate) fn is(stream: *mut FILE) -> bool {
    // SAFETY: the program's own stream; another thread may be using it.
    unsafe { (&raw const (*stream.cast::<Fields>()).mode).read_volatile() > 0 }
}
