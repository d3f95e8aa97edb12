//! Messages on sockets.

use crate::copies::{messages, sockets};
use crate::raw::ret;
use crate::real;
use libc::{c_int, c_uint, c_void, msghdr, size_t, sockaddr, socklen_t, ssize_t};

/// No address goes along.
const NOBODY: (usize, usize) = (0, 0);

export! {
    as send;
    fn (fd: c_int, buffer: *const c_void, bytes: size_t, flags: c_int) -> ssize_t {
        match sockets::send_to(fd, buffer as usize, bytes, flags, NOBODY) {
            Some(result) => ret(result),
            None => real::send(fd, buffer, bytes, flags),
        }
    }
}

export! {
    as sendto;
    fn (
        fd: c_int, buffer: *const c_void, bytes: size_t, flags: c_int, to: *const sockaddr,
        to_bytes: socklen_t
    ) -> ssize_t {
        let name = (to as usize, to_bytes as usize);
        match sockets::send_to(fd, buffer as usize, bytes, flags, name) {
            Some(result) => ret(result),
            None => real::sendto(fd, buffer, bytes, flags, to, to_bytes),
        }
    }
}

export! {
    as sendmsg;
    fn (fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        let sent = match sockets::send(fd, message, flags) {
            Some(result) => ret(result),
            None => real::sendmsg(fd, message, flags),
        };
        sockets::sent(message, sent);
        sent
    }
}

export! {
    as sendmmsg;
    fn (fd: c_int, list: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int {
        let sent = match messages::send(fd, list, count, flags) {
            Some(result) => ret(result) as c_int,
            None => real::sendmmsg(fd, list, count, flags),
        };
        sockets::all_sent(list, sent as isize);
        sent
    }
}

export! {
    as recv;
    fn (fd: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t {
        match sockets::receive_from(fd, buffer as usize, bytes, flags, NOBODY) {
            Some(result) => ret(result),
            None => real::recv(fd, buffer, bytes, flags),
        }
    }
}

export! {
    as recvfrom;
    fn (
        fd: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int, from: *mut sockaddr,
        from_bytes: *mut socklen_t
    ) -> ssize_t {
        let name = (from as usize, from_bytes as usize);
        match sockets::receive_from(fd, buffer as usize, bytes, flags, name) {
            Some(result) => ret(result),
            None => real::recvfrom(fd, buffer, bytes, flags, from, from_bytes),
        }
    }
}
