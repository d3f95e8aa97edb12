//! Messages with at most one descriptor: `SOCK_SEQPACKET` Unix sockets, `unix(7)`.
//!
//! The abstract name space has no files to clean up, and no permissions either: check
//! [`Connection::peer`] or a secret.
#![allow(unsafe_code)]

use core::mem::{MaybeUninit, size_of};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::descriptor::beside_streams;
use crate::mask::{self, Capability};
use crate::memfd::retry;
use crate::{Errno, Result};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// A socket that connections come to.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    /// By messages that bring one end of a pair.
    is_bell: bool,
}

impl Listener {
    /// Listens under an abstract name (without the leading NUL).
    ///
    /// # Errors
    /// [`Errno::ADDRINUSE`]: the name is taken; [`Errno::NAMETOOLONG`]: over 107 bytes.
    pub fn bind(name: &[u8], nonblocking: bool) -> Result<Listener> {
        if !mask::allows(Capability::AbstractSockets) {
            return Err(Errno::ACCESS);
        }
        let fd = socket(nonblocking)?;
        rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
        rustix::net::listen(&fd, BACKLOG)?;
        Ok(Listener { fd, is_bell: false })
    }

    /// Listens under a name in a directory, which is taken away again: connections come by
    /// `/proc/PID/fd/N`, N being the descriptor that is returned too. Abstract names belong to one network
    /// name space, and a program may be confined to its own (Landlock); this way in is open to both.
    ///
    /// # Errors
    /// Nothing can be made there.
    pub fn bind_nameless(
        directory: &Path,
        name: &str,
        nonblocking: bool,
    ) -> Result<(Listener, OwnedFd)> {
        let path = directory.join(name);
        let fd = socket(nonblocking)?;
        rustix::net::bind(&fd, &SocketAddrUnix::new(&path)?)?;
        let place = rustix::fs::chmod(&path, Mode::from_raw_mode(0o666))
            .and_then(|()| rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()));
        let _ = rustix::fs::unlink(&path);
        let place = place?;
        rustix::net::listen(&fd, BACKLOG)?;
        Ok((Listener { fd, is_bell: false }, place))
    }

    /// Listens without a name: whoever has the socket that is returned too makes a pair of sockets and sends
    /// one of them over it, with any byte. This way in depends on no namespace. It never waits.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn bell() -> Result<(Listener, OwnedFd)> {
        let (ours, theirs) = Connection::pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        Ok((Listener { fd: ours.into_fd(), is_bell: true }, theirs.into_fd()))
    }

    /// `accept4(2)`; `None` if nonblocking and nobody waits.
    ///
    /// # Errors
    /// [`Errno::MFILE`]: no descriptor is free; the caller stays queued, or, at a
    /// [bell](Self::bell), is sent away.
    pub fn accept(&self, nonblocking: bool) -> Result<Option<Connection>> {
        if self.is_bell {
            return self.accept_message();
        }
        loop {
            match retry(|| rustix::net::accept_with(&self.fd, flags(nonblocking))) {
                Ok(fd) => return Ok(Some(Connection { fd })),
                Err(Errno::AGAIN) => return Ok(None),
                // The caller went away before it was accepted.
                Err(Errno::CONNABORTED) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl Listener {
    fn accept_message(&self) -> Result<Option<Connection>> {
        loop {
            match recv_from(&self.fd, &mut [0; 8], RecvFlags::DONTWAIT) {
                Ok(Some(Received { fd: Some(fd), .. })) => return Ok(Some(Connection { fd })),
                Ok(Some(Received { lost_fd: true, .. })) => return Err(Errno::MFILE),
                // Whoever brings nothing wants nothing. It may be empty, too; an end cannot come, since the
                // other end is kept for whoever asks for it.
                Ok(Some(_)) => {}
                Ok(None) => return Ok(None),
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Who is at the other end, as it was when it connected (`SO_PEERCRED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id.
    pub pid: u32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

/// A received message.
#[derive(Debug)]
pub struct Received {
    /// Bytes of the message in the buffer.
    pub bytes: usize,
    /// The message was longer than the buffer: the rest is lost.
    pub truncated: bool,
    /// It brought a descriptor for which there was no room: that is lost.
    pub lost_fd: bool,
    /// The descriptor that came with it, close-on-exec. Any others were closed.
    pub fd: Option<OwnedFd>,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    fd: OwnedFd,
}

impl Connection {
    /// Connects to an abstract name.
    ///
    /// # Errors
    /// [`Errno::CONNREFUSED`]: nobody listens there.
    pub fn connect(name: &[u8]) -> Result<Connection> {
        if !mask::allows(Capability::AbstractSockets) {
            return Err(Errno::ACCESS);
        }
        let fd = socket(false)?;
        let address = SocketAddrUnix::new_abstract_name(name)?;
        retry(|| rustix::net::connect(&fd, &address))?;
        Ok(Connection { fd })
    }

    /// `socketpair(2)`: two connected ends.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn pair() -> Result<(Connection, Connection)> {
        let (a, b) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Connection { fd: beside_streams(a)? }, Connection { fd: beside_streams(b)? }))
    }

    /// Adopts a connected SEQPACKET socket.
    pub fn from_fd(fd: OwnedFd) -> Connection {
        Connection { fd }
    }

    /// Gives the descriptor up.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Who is at the other end.
    ///
    /// # Errors
    /// As `getsockopt(2)`; [`Errno::SRCH`]: the peer is outside this pid name space.
    pub fn peer(&self) -> Result<Peer> {
        // Not rustix's wrapper: its pid cannot be 0, which the kernel reports for a process outside
        // the name space.
        let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to the live struct, all of it integers.
        crate::check(unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut cred).cast(),
                &mut len,
            )
        })?;
        let pid = u32::try_from(cred.pid).ok().filter(|p| *p != 0).ok_or(Errno::SRCH)?;
        Ok(Peer { pid, uid: cred.uid, gid: cred.gid })
    }

    /// Sends one message, whole or not at all, without SIGPIPE.
    ///
    /// # Errors
    /// [`Errno::PIPE`]: the other end is closed; [`Errno::AGAIN`]: nonblocking and its queue is
    /// full; [`Errno::MSGSIZE`]; [`Errno::TOOMANYREFS`]: too many descriptors under way.
    pub fn send(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.as_slice();
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::NOBUFS);
        }
        let iov = [IoSlice::new(bytes)];
        // A packet goes whole or not at all, so the count says nothing.
        retry(|| rustix::net::sendmsg(&self.fd, &iov, &mut control, SendFlags::NOSIGNAL)).map(drop)
    }

    /// Receives one message. `Ok(None)` when the other end is closed (or sent an empty message,
    /// which this protocol never does).
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: nonblocking and none waits; [`Errno::CONNRESET`]: the other end died with
    /// messages unread.
    pub fn recv(&self, buf: &mut [u8]) -> Result<Option<Received>> {
        recv_from(&self.fd, buf, RecvFlags::empty())
    }

    /// As [`Connection::recv`], but [`Errno::AGAIN`] instead of waiting.
    ///
    /// # Errors
    /// As for [`Connection::recv`].
    pub fn try_recv(&self, buf: &mut [u8]) -> Result<Option<Received>> {
        recv_from(&self.fd, buf, RecvFlags::DONTWAIT)
    }

    /// How long [`Connection::recv`] waits for a message ([`Errno::AGAIN`] then); for ever, by `None`.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub fn limit_waiting(&self, limit: Option<std::time::Duration>) -> Result<()> {
        rustix::net::sockopt::set_socket_timeout(&self.fd, Timeout::Recv, limit)
    }

    /// Ends the connection in both directions, though duplicates of the descriptor exist.
    ///
    /// # Errors
    /// As `shutdown(2)`.
    pub fn shutdown(&self) -> Result<()> {
        rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn recv_from(fd: &OwnedFd, buf: &mut [u8], flags: RecvFlags) -> Result<Option<Received>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [IoSliceMut::new(buf)];
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let message = retry(|| rustix::net::recvmsg(fd, &mut iov, &mut control, flags))?;
    // Alignment leaves room for a second descriptor: keep the first, close the rest.
    let fd = control.drain().fold(None, |first, message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.fold(first, |first, fd| first.or(Some(fd))),
        _ => first,
    });
    if message.bytes == 0 {
        return Ok(None);
    }
    let truncated = message.flags.contains(ReturnFlags::TRUNC);
    let lost_fd = fd.is_none() && message.flags.contains(ReturnFlags::CTRUNC);
    Ok(Some(Received { bytes: message.bytes, truncated, lost_fd, fd }))
}

fn flags(nonblocking: bool) -> SocketFlags {
    let nonblocking = if nonblocking { SocketFlags::NONBLOCK } else { SocketFlags::empty() };
    SocketFlags::CLOEXEC | nonblocking
}

fn socket(nonblocking: bool) -> Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    beside_streams(rustix::net::socket_with(family, kind, flags(nonblocking), None)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd::Memfd;

    #[test]
    fn messages_and_descriptors_arrive() {
        let name = format!("pagekeeper-test-{}", std::process::id());
        let listener = Listener::bind(name.as_bytes(), true).unwrap();
        assert!(listener.accept(false).unwrap().is_none());
        assert_eq!(Listener::bind(name.as_bytes(), true).unwrap_err(), Errno::ADDRINUSE);
        let client = Connection::connect(name.as_bytes()).unwrap();
        let server = listener.accept(false).unwrap().unwrap();
        assert_eq!(server.peer().unwrap().pid, std::process::id());

        let memfd = Memfd::create("t", 4096, false).unwrap();
        memfd.write_at(b"hello", 0).unwrap();
        client.send(b"take this", Some(memfd.as_fd())).unwrap();
        client.send(b"and this", None).unwrap();
        let mut buf = [0; 64];
        let got = server.recv(&mut buf).unwrap().unwrap();
        assert_eq!((&buf[..got.bytes], got.truncated), (&b"take this"[..], false));
        let mut byte = [0; 5];
        rustix::io::pread(got.fd.unwrap(), &mut byte, 0).unwrap();
        assert_eq!(&byte, b"hello");
        let got = server.recv(&mut buf[..3]).unwrap().unwrap();
        assert_eq!((got.bytes, got.truncated, got.fd.is_none()), (3, true, true));
        assert!(!got.lost_fd, "it brought none");
        assert_eq!(server.try_recv(&mut buf).unwrap_err(), Errno::AGAIN);
        drop(client);
        assert!(server.recv(&mut buf).unwrap().is_none());
        assert_eq!(server.send(b"x", None), Err(Errno::PIPE));
    }

    /// Whoever inherited the other end may send what it likes: it was taken for the end of all.
    #[test]
    fn an_empty_message_does_not_end_a_bell() {
        let (bell, rope) = Listener::bell().unwrap();
        let (caller, theirs) = Connection::pair().unwrap();
        let rope = Connection { fd: rope };
        rope.send(b"", None).unwrap();
        rope.send(b"x", None).unwrap();
        rope.send(b"x", Some(theirs.as_fd())).unwrap();
        drop(theirs);
        assert!(bell.accept(true).unwrap().is_none());
        let server = bell.accept(true).unwrap().expect("who came after those");
        server.send(b"y", None).unwrap();
        assert_eq!(caller.recv(&mut [0; 8]).unwrap().unwrap().bytes, 1);
        assert!(bell.accept(true).unwrap().is_none());
    }

    #[test]
    fn surplus_descriptors_are_closed() {
        let (a, b) = Connection::pair().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let fds = [reader.as_fd(), writer.as_fd(), writer.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let iov = [IoSlice::new(b"x")];
        rustix::net::sendmsg(&a, &iov, &mut control, SendFlags::NOSIGNAL).unwrap();
        let got = b.recv(&mut [0; 8]).unwrap().unwrap();
        drop(writer);
        // All writers are gone if, and only if, the surplus ones were closed.
        assert_eq!(rustix::io::read(got.fd.unwrap(), &mut [0; 1]), Ok(0));
    }
}
