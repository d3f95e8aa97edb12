//! System calls on managed memory where the kernel cannot touch it.
//!
//! Where only faults of user code are served, a system call that meets a page that is not mapped
//! fails (EFAULT) or ends early. So calls that move bytes from or to memory that may be managed go
//! through a buffer that is not: this library copies, and its touches are served like the
//! program's. Memory counts as managed if it lies between the lowest and the highest managed
//! address; of other memory this costs a copy.
//!
//! A call stays one call where it moves one message. Streams and regular files are written, and
//! regular files read, in pieces of [`PIECE_BYTES`]; a piece that comes out short ends the call.

use crate::memory::mapping;
use crate::process::environment;
use crate::raw::{self, Arena};
use crate::raw_call;
use crate::reading::transfer::one;
use crate::reading::{direct, guard};
use core::mem::MaybeUninit;
use libc::{c_int, c_long, iovec};

/// Most bytes that a call which may be divided moves at once.
const PIECE_BYTES: usize = 1 << 20;
/// Transfers of so many bytes need no memory from the kernel.
pub(crate) const SMALL_BYTES: usize = 4096;

/// Whether the kernel may be unable to touch these bytes.
#[inline(always)]
pub(crate) fn concerns(addr: usize, bytes: usize) -> bool {
    mapping::may_be_managed(addr, bytes) && bytes > 0 && environment::user_mode_only()
}

/// Whether the kernel may be unable to touch some of these buffers.
#[inline(always)]
pub(crate) fn needed(iov: &[iovec]) -> bool {
    environment::user_mode_only()
        && iov.iter().any(|part| concerns(part.iov_base as usize, part.iov_len))
}

/// Copies between a buffer of ours and the program's, of which `skip` bytes are done; gives how
/// many bytes were there to be copied.
fn copy(
    iov: &[iovec],
    mut skip: usize,
    bytes: usize,
    step: impl Fn(usize, usize, usize) -> bool,
) -> usize {
    let mut done = 0;
    for part in iov {
        let passed = skip.min(part.iov_len);
        skip -= passed;
        let mut at = part.iov_base as usize + passed;
        let mut left = (part.iov_len - passed).min(bytes - done);
        while left > 0 {
            // By the page: what cannot be touched is not copied, all before it is.
            let once = left.min(SMALL_BYTES - at % SMALL_BYTES);
            if !step(done, at, once) {
                return done;
            }
            at += once;
            left -= once;
            done += once;
        }
        if done == bytes {
            break;
        }
    }
    done
}

/// Copies from the program's buffers to `addr`: the bytes copied.
pub(crate) fn gather(iov: &[iovec], skip: usize, addr: usize, bytes: usize) -> usize {
    guard::unblocked(|| copy(iov, skip, bytes, |done, at, once| guard::copy(addr + done, at, once)))
}

/// Copies from `addr` to the program's buffers: the bytes copied.
pub(crate) fn scatter(iov: &[iovec], skip: usize, addr: usize, bytes: usize) -> usize {
    guard::unblocked(|| copy(iov, skip, bytes, |done, at, once| guard::copy(at, addr + done, once)))
}

/// A buffer that is never managed; the negated errno if there is no memory.
fn with_buffer(bytes: usize, call: impl FnOnce(usize) -> isize) -> isize {
    if bytes <= SMALL_BYTES {
        let mut small = MaybeUninit::<[u8; SMALL_BYTES]>::uninit();
        return call(small.as_mut_ptr() as usize);
    }
    match Arena::new(bytes) {
        Some(arena) => call(arena.addr),
        None => -libc::ENOMEM as isize,
    }
}

/// Writes the buffers by calls on an address, a length, and the bytes done before. `fd` is what they are
/// written to, or -1: of a message all has to be there.
pub(crate) fn give(
    fd: c_int,
    iov: &[iovec],
    piece: usize,
    mut call: impl FnMut(usize, usize, usize) -> isize,
) -> isize {
    let total = direct::total(iov);
    let piece = piece.min(total);
    with_buffer(piece, |buffer| {
        let mut done = 0;
        while done < total {
            let want = piece.min(total - done);
            let ready = gather(iov, done, buffer, want);
            if ready == 0 || ready < want && is_message(fd) {
                return if done > 0 { done as isize } else { -libc::EFAULT as isize };
            }
            let moved = call(buffer, ready, done);
            if moved < 0 {
                return if done > 0 { done as isize } else { moved };
            }
            done += moved as usize;
            if (moved as usize) < want {
                break;
            }
        }
        done as isize
    })
}

/// Fills the buffers by calls on an address, a length, and the bytes done before. What a call says
/// it moved beyond the length (MSG_TRUNC) is passed on.
pub(crate) fn take(
    iov: &[iovec],
    piece: usize,
    mut call: impl FnMut(usize, usize, usize) -> isize,
) -> isize {
    let total = direct::total(iov);
    let piece = piece.min(total);
    with_buffer(piece, |buffer| {
        // What has no place to go to stays where it is: a pipe would lose it.
        if total > 0 && gather(iov, 0, buffer, 1) == 0 {
            return -libc::EFAULT as isize;
        }
        let mut done = 0;
        while done < total {
            let want = piece.min(total - done);
            let moved = call(buffer, want, done);
            if moved < 0 {
                return if done > 0 { done as isize } else { moved };
            }
            let came = want.min(moved as usize);
            let put = scatter(iov, done, buffer, came);
            if put < came {
                return if done + put > 0 { (done + put) as isize } else { -libc::EFAULT as isize };
            }
            done += moved as usize;
            if (moved as usize) < want {
                break;
            }
        }
        done as isize
    })
}

/// The most that one call on a descriptor may move without becoming another call.
fn piece_to_read(fd: c_int) -> usize {
    let regular = raw::fstat(fd).is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG);
    if regular { PIECE_BYTES } else { usize::MAX }
}

/// As [`piece_to_read`]. A message is written whole; of a stream the kernel writes all, piece by
/// piece.
pub(crate) fn piece_to_write(fd: c_int) -> usize {
    if is_message(fd) { usize::MAX } else { PIECE_BYTES }
}

/// Whether what is written to a descriptor is a message.
fn is_message(fd: c_int) -> bool {
    let mut kind: c_int = 0;
    let mut bytes = size_of::<c_int>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_TYPE);
    let r = raw_call!(libc::SYS_getsockopt, fd, level, name, &raw mut kind, &raw mut bytes);
    r >= 0 && kind != libc::SOCK_STREAM
}

/// The system call of this number on one buffer, as [`give`] and [`take`] make it.
fn transfer(
    number: c_long,
    fd: c_int,
    position: Option<i64>,
    rwf: c_int,
) -> impl Fn(usize, usize, usize) -> isize {
    move |addr, bytes, done| {
        let buffer = one(addr, bytes);
        let at = position.map_or(-1, |start| start + done as i64);
        raw_call!(number, fd, buffer.as_ptr(), 1, at, 0, rwf)
    }
}

/// A call of the read family on a file that is not managed.
pub(crate) fn read(fd: c_int, iov: &[iovec], position: Option<i64>, rwf: c_int) -> isize {
    if position.is_some_and(|offset| offset < 0) {
        return -libc::EINVAL as isize;
    }
    let piece = if direct::total(iov) > SMALL_BYTES { piece_to_read(fd) } else { usize::MAX };
    take(iov, piece, transfer(libc::SYS_preadv2, fd, position, rwf))
}

/// A call of the write family on a file that is not managed.
pub(crate) fn write(fd: c_int, iov: &[iovec], position: Option<i64>, rwf: c_int) -> isize {
    if position.is_some_and(|offset| offset < 0) {
        return -libc::EINVAL as isize;
    }
    let piece = if direct::total(iov) > PIECE_BYTES { piece_to_write(fd) } else { usize::MAX };
    give(fd, iov, piece, transfer(libc::SYS_pwritev2, fd, position, rwf))
}
