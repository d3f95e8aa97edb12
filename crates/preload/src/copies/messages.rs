//! `sendmmsg(2)` and `recvmmsg(2)` with memory that the kernel may be unable to touch: one message
//! after the other, as [`sockets`] moves them. All others are the kernel's.
//!
//! Two things are not as the kernel has them. An error after the first message is not kept for the
//! next call where nothing but the interrupted call knew of it; and a signal whose handler restarts
//! calls (SA_RESTART) does not end the wait for a further message.

use crate::copies::{bounce, sockets};
use crate::memory::mapping;
use crate::process::environment;
use crate::reading::guard;
use crate::reading::transfer::{BYTES_MAX, VECTORS_MAX};
use crate::{raw, raw_call};
use core::mem::MaybeUninit;
use libc::{c_int, mmsghdr, msghdr, timespec};

const FAULT: isize = -libc::EFAULT as isize;

/// [`guard::copy`] from or to the program's memory, which is looked at before where no signal may come.
fn copy(to: usize, from: usize, bytes: usize, theirs: usize) -> bool {
    let guarded = guard::works() && !guard::is_blocked();
    (guarded || guard::is_there(theirs, bytes)) && guard::copy(to, from, bytes)
}

/// What the program has at an address; none if nothing is there.
fn get<T: Copy>(at: *const T) -> Option<T> {
    let mut copied = MaybeUninit::<T>::uninit();
    // SAFETY: all of it was written if the copy succeeded; it consists of numbers and addresses.
    copy(copied.as_mut_ptr().addr(), at.addr(), size_of::<T>(), at.addr())
        .then(|| unsafe { copied.assume_init() })
}

/// Writes to the program's memory; false if it cannot be.
fn put<T: Copy>(at: *mut T, value: T) -> bool {
    copy(at.addr(), (&raw const value).addr(), size_of::<T>(), at.addr())
}

/// Whether the kernel may be unable to reach some of so many messages, or what describes them.
fn concern(messages: *const mmsghdr, count: u32) -> bool {
    if !environment::user_mode_only() || !mapping::any() {
        return false;
    }
    for i in 0..count as usize {
        let at = messages.wrapping_add(i);
        if bounce::concerns(at.addr(), size_of::<mmsghdr>()) {
            return true;
        }
        // The kernel does not get further either.
        if !guard::is_there(at.addr(), size_of::<mmsghdr>()) {
            return false;
        }
        // A header is where its entry begins.
        if sockets::buffers(at.cast()).is_some() {
            return true;
        }
    }
    false
}

/// The bytes of a message whose buffers were just looked at.
fn total(message: &msghdr) -> usize {
    let parts = (0..message.msg_iovlen).map_while(|i| get(message.msg_iov.wrapping_add(i)));
    parts.fold(0usize, |sum, part| sum.saturating_add(part.iov_len)).min(BYTES_MAX)
}

/// The result of a call that failed after so many messages.
fn after(done: u32, error: isize) -> isize {
    if done > 0 { done as isize } else { error }
}

/// `sendmmsg(2)`; none if the kernel can reach all of it.
pub(crate) fn send(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> Option<isize> {
    let count = count.min(VECTORS_MAX as u32);
    concern(messages, count).then(|| send_each(fd, messages, count, flags))
}

fn send_each(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> isize {
    for done in 0..count {
        let at = messages.wrapping_add(done as usize);
        let Some(mut entry) = get(at) else { return after(done, FAULT) };
        let header = &raw const entry.msg_hdr;
        // Of a message's own flags this one counts, in this call alone.
        let flags = flags | entry.msg_hdr.msg_flags & libc::MSG_EOR;
        let sent = sockets::send(fd, header, flags)
            .unwrap_or_else(|| raw_call!(libc::SYS_sendmsg, fd, header, flags));
        if sent < 0 {
            return after(done, sent);
        }
        entry.msg_len = sent as u32;
        if !put(at, entry) {
            return after(done, FAULT);
        }
        // A stream may take a part.
        if (sent as usize) < total(&entry.msg_hdr) {
            return done as isize + 1;
        }
    }
    count as isize
}

/// `recvmmsg(2)`; none if the kernel can reach all of it.
pub(crate) fn receive(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> Option<isize> {
    if !concern(messages, count) {
        return None;
    }
    if timeout.is_null() {
        return Some(receive_each(fd, messages, count, flags, || true));
    }
    let Some(limit) = get(timeout) else { return Some(FAULT) };
    if limit.tv_sec < 0 || !(0..NS_A_SECOND as i64).contains(&limit.tv_nsec) {
        return Some(-libc::EINVAL as isize);
    }
    let limit_ns =
        (limit.tv_sec as u64).saturating_mul(NS_A_SECOND).saturating_add(limit.tv_nsec as u64);
    let end_ns = raw::now_ns().saturating_add(limit_ns);
    let mut left_ns = 0;
    // The time is looked at after each message, and does not end the wait for one.
    let done = receive_each(fd, messages, count, flags, || {
        left_ns = end_ns.saturating_sub(raw::now_ns());
        left_ns > 0
    });
    let left = timespec {
        tv_sec: (left_ns / NS_A_SECOND) as i64,
        tv_nsec: (left_ns % NS_A_SECOND) as i64,
    };
    Some(if done > 0 && !put(timeout, left) { FAULT } else { done })
}

const NS_A_SECOND: u64 = 1_000_000_000;

/// As long as there are messages, and `goes_on` says so after each.
fn receive_each(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    mut goes_on: impl FnMut() -> bool,
) -> isize {
    let mut once = flags & !libc::MSG_WAITFORONE;
    for done in 0..count {
        let at = messages.wrapping_add(done as usize);
        let Some(mut entry) = get(at) else { return after(done, FAULT) };
        let header = &raw mut entry.msg_hdr;
        let came = sockets::receive(fd, header, once)
            .unwrap_or_else(|| raw_call!(libc::SYS_recvmsg, fd, header, once));
        if came < 0 {
            return after(done, came);
        }
        entry.msg_len = came as u32;
        if !put(at, entry) {
            return after(done, FAULT);
        }
        if flags & libc::MSG_WAITFORONE != 0 {
            once |= libc::MSG_DONTWAIT;
        }
        if !goes_on() || entry.msg_hdr.msg_flags & libc::MSG_OOB != 0 {
            return done as isize + 1;
        }
    }
    count as isize
}
