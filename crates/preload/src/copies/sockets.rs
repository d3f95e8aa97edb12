//! Messages from and to memory that the kernel may be unable to touch; see [`bounce`].
//!
//! Addresses and control data are left where they are.

use crate::copies::bounce;
use crate::descriptors::table;
use crate::memory::mapping;
use crate::process::environment;
use crate::raw_call;
use crate::reading::transfer::{VECTORS_MAX, one};
use crate::reading::{direct, guard};
use libc::{c_int, iovec, msghdr};

/// Where a message comes from or goes to: address and length, or a place for the length.
type Name = (usize, usize);

/// `sendto(2)`; none if the kernel can reach the buffer.
pub(crate) fn send_to(
    fd: c_int,
    buffer: usize,
    bytes: usize,
    flags: c_int,
    name: Name,
) -> Option<isize> {
    bounce::concerns(buffer, bytes).then(|| {
        bounce::give(fd, &one(buffer, bytes), bounce::piece_to_write(fd), |addr, bytes, _| {
            raw_call!(libc::SYS_sendto, fd, addr, bytes, flags, name.0, name.1)
        })
    })
}

/// `recvfrom(2)`; none if the kernel can reach the buffer.
pub(crate) fn receive_from(
    fd: c_int,
    buffer: usize,
    bytes: usize,
    flags: c_int,
    name: Name,
) -> Option<isize> {
    bounce::concerns(buffer, bytes).then(|| {
        bounce::take(&one(buffer, bytes), usize::MAX, |addr, bytes, _| {
            raw_call!(libc::SYS_recvfrom, fd, addr, bytes, flags, name.0, name.1)
        })
    })
}

/// The buffers of a message, if the kernel may be unable to reach some, or what describes them. Where
/// it reaches all memory the message is not looked at; what is not there is for the kernel to refuse.
pub(crate) fn buffers<'a>(message: *const msghdr) -> Option<&'a [iovec]> {
    if !environment::user_mode_only() || !mapping::any() {
        return None;
    }
    let is_there = |addr, bytes| bounce::concerns(addr, bytes) || guard::is_there(addr, bytes);
    if !is_there(message.addr(), size_of::<msghdr>()) {
        return None;
    }
    // SAFETY: the program's own, which it leaves alone until the call is over; memory is there.
    let header = unsafe { message.as_ref() }?;
    let (first, count) = (header.msg_iov, header.msg_iovlen);
    let bytes = count.saturating_mul(size_of::<iovec>());
    if !(1..=VECTORS_MAX).contains(&count) || !is_there(first.addr(), bytes) {
        return None;
    }
    // SAFETY: the program says that so many are there, and memory is.
    let iov = unsafe { core::slice::from_raw_parts(first, count) };
    let described = bounce::concerns(message.addr(), size_of::<msghdr>())
        || bounce::concerns(first.addr(), bytes);
    (bounce::needed(iov) || described && direct::total(iov) > 0).then_some(iov)
}

/// A message was sent, or was not, if the result is negative: whoever got descriptors with it may change
/// their flags, and move their offsets.
pub(crate) fn sent(message: *const msghdr, result: isize) {
    // A message that is not there was not sent.
    if result >= 0 && gives_descriptors(message) {
        table::share_all();
    }
}

/// [`sent`] for so many messages of `sendmmsg(2)`.
pub(crate) fn all_sent(messages: *const libc::mmsghdr, count: isize) {
    for i in 0..count.max(0) as usize {
        // SAFETY: the call has read so many of them.
        sent(unsafe { &raw const (*messages.add(i)).msg_hdr }, 0);
    }
}

/// Whether descriptors went along with a message that was sent just now.
fn gives_descriptors(message: *const msghdr) -> bool {
    // SAFETY: the program's own, which the kernel has just read, and the program leaves alone until the
    // call is over.
    let Some(message) = (unsafe { message.as_ref() }) else { return false };
    if message.msg_control.is_null() || message.msg_controllen < size_of::<libc::cmsghdr>() as _ {
        return false;
    }
    // SAFETY: the kernel read what is there, header by header, as far as the message says.
    unsafe { rights(message) }.next().is_some()
}

/// The control messages that descriptors go along with, wherever they lie: they need not be aligned.
///
/// # Safety
/// The message's control buffer is there, and as long as it says.
pub(crate) unsafe fn rights(message: &msghdr) -> impl Iterator<Item = *const libc::cmsghdr> {
    // SAFETY: the caller's.
    let first = unsafe { libc::CMSG_FIRSTHDR(message) };
    let next = |header: &*mut libc::cmsghdr| {
        // SAFETY: one of this message.
        let next = unsafe { libc::CMSG_NXTHDR(message, *header) };
        (!next.is_null()).then_some(next)
    };
    let all = core::iter::successors((!first.is_null()).then_some(first), next);
    all.map(<*mut libc::cmsghdr>::cast_const).filter(|header| {
        // SAFETY: as above.
        let header = unsafe { header.read_unaligned() };
        header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS
    })
}

/// `sendmsg(2)`; none if the kernel can reach the buffers.
pub(crate) fn send(fd: c_int, message: *const msghdr, flags: c_int) -> Option<isize> {
    let iov = buffers(message)?;
    // SAFETY: `buffers` looked at it.
    let message = unsafe { message.as_ref() }?;
    Some(bounce::give(fd, iov, usize::MAX, |addr, bytes, _| {
        let mut from = iovec { iov_base: addr as *mut _, iov_len: bytes };
        let ours = msghdr { msg_iov: &raw mut from, msg_iovlen: 1, ..*message };
        raw_call!(libc::SYS_sendmsg, fd, &raw const ours, flags)
    }))
}

/// `recvmsg(2)`; none if the kernel can reach the buffers.
pub(crate) fn receive(fd: c_int, message: *mut msghdr, flags: c_int) -> Option<isize> {
    let iov = buffers(message)?;
    // SAFETY: `buffers` looked at it.
    let message = unsafe { message.as_mut() }?;
    let mut ours = *message;
    let result = bounce::take(iov, usize::MAX, |addr, bytes, _| {
        let mut into = iovec { iov_base: addr as *mut _, iov_len: bytes };
        (ours.msg_iov, ours.msg_iovlen) = (&raw mut into, 1);
        raw_call!(libc::SYS_recvmsg, fd, &raw mut ours, flags)
    });
    if result >= 0 {
        message.msg_namelen = ours.msg_namelen;
        message.msg_controllen = ours.msg_controllen;
        message.msg_flags = ours.msg_flags;
    }
    Some(result)
}
