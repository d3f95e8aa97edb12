//! Reading into managed memory by calls that hold on to the pages they fill.
//!
//! `process_vm_writev(2)` (by which the manager copies) and reads by O_DIRECT look up the pages of
//! a buffer first and fill them later. Those of managed memory could be evicted in between, and
//! what is put into them then would be lost. So the bytes go to a memory file, and from there to
//! the buffer by a plain read of this process's own, which copies page by page as they are mapped.

use crate::copies::bounce;
use crate::process::environment;
use crate::{raw, raw_call};
use libc::{c_int, iovec};

/// Most bytes that are relayed at once; a multiple of every alignment that O_DIRECT asks for.
const BYTES: usize = 256 << 10;

/// Memory that what is relayed is read into first, and how it gets from there to the buffer.
pub(crate) struct Relay {
    way: Way,
    /// Where it is mapped.
    pub(crate) addr: usize,
    /// How much fits.
    pub(crate) bytes: usize,
}

enum Way {
    /// It is this memory file's.
    File(c_int),
    /// By a pipe, a page at a time: this process may not make a file of a page (RLIMIT_FSIZE).
    Pipe([c_int; 2]),
}

impl Way {
    /// By a memory file of so many bytes; else a negated errno.
    fn file(bytes: usize) -> Result<Way, isize> {
        let name = c"pagekeeper-relay".as_ptr();
        let fd = raw_call!(libc::SYS_memfd_create, name, libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(fd);
        }
        let way = Way::File(fd as c_int);
        let sized = raw_call!(libc::SYS_ftruncate, fd, bytes);
        if sized < 0 { Err(sized) } else { Ok(way) }
    }

    fn pipe() -> Result<Way, isize> {
        let mut ends = [-1; 2];
        let made = raw_call!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC);
        if made < 0 { Err(made) } else { Ok(Way::Pipe(ends)) }
    }

    fn mmap(&self, bytes: usize) -> isize {
        let (kind, fd) = match self {
            Way::File(fd) => (libc::MAP_SHARED, *fd),
            Way::Pipe(_) => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        raw::map(bytes, libc::PROT_READ | libc::PROT_WRITE, kind, fd, 0)
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        match self {
            Way::File(fd) => raw::close(*fd),
            Way::Pipe(ends) => ends.iter().for_each(|fd| raw::close(*fd)),
        }
    }
}

impl Relay {
    /// One for a transfer of so many bytes, or for the first part of it; else a negated errno.
    pub(crate) fn new(bytes: usize) -> Result<Relay, isize> {
        let page = pagekeeper_wire::PAGE_BYTES as usize;
        let bytes = bytes.min(BYTES);
        // Whole pages: a longer one would be a signal's reason (SIGXFSZ).
        let longest = usize::try_from(raw::longest_file()).unwrap_or(usize::MAX) / page * page;
        let (bytes, way) = match longest {
            0 => (bytes, Way::pipe()?),
            _ => (bytes.min(longest), Way::file(bytes.min(longest))?),
        };
        let addr = way.mmap(bytes);
        if addr < 0 { Err(addr) } else { Ok(Relay { way, addr: addr as usize, bytes }) }
    }

    /// Copies its first bytes to a buffer; fewer if the buffer ends early, or a negated errno.
    pub(crate) fn deliver(&self, buffer: usize, bytes: usize) -> isize {
        let bytes = bytes.min(self.bytes);
        if environment::user_mode_only() {
            let to = iovec { iov_base: buffer as *mut _, iov_len: bytes };
            return match bounce::scatter(&[to], 0, self.addr, bytes) {
                0 if bytes > 0 => -libc::EFAULT as isize,
                done => done as isize,
            };
        }
        match self.way {
            Way::File(fd) => raw_call!(libc::SYS_pread64, fd, buffer, bytes, 0),
            Way::Pipe(ends) => self.deliver_by(ends, buffer, bytes),
        }
    }

    fn deliver_by(&self, [from, to]: [c_int; 2], buffer: usize, bytes: usize) -> isize {
        let mut done = 0;
        while done < bytes {
            // So many are in it at once, however few pipes may hold.
            let once = (bytes - done).min(pagekeeper_wire::PAGE_BYTES as usize);
            let put = raw_call!(libc::SYS_write, to, self.addr + done, once);
            let got =
                if put > 0 { raw_call!(libc::SYS_read, from, buffer + done, put) } else { put };
            if got <= 0 {
                return if done > 0 { done as isize } else { got };
            }
            done += got as usize;
            if got < put {
                break;
            }
        }
        done as isize
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        raw::munmap(self.addr, self.bytes);
    }
}

/// Whether a plain read into managed memory would be filled by a device, which may find the pages of the
/// buffers evicted.
pub(crate) fn needed(fd: c_int) -> bool {
    // Of a pipe the flag says that it carries packets, which are read whole.
    let is_device = |kind| matches!(kind, libc::S_IFREG | libc::S_IFBLK);
    let flags = raw::fcntl(fd, libc::F_GETFL, 0);
    flags >= 0
        && flags as c_int & libc::O_DIRECT != 0
        && raw::fstat(fd).map_or(true, |stat| is_device(stat.st_mode & libc::S_IFMT))
}

/// A plain read by way of a relay; `position` is none for the descriptor's own.
pub(crate) fn read(fd: c_int, iov: &[iovec], position: Option<i64>) -> isize {
    let longest = iov.iter().map(|part| part.iov_len).max().unwrap_or(0);
    let relay = match Relay::new(longest) {
        Ok(relay) => relay,
        Err(errno) => return errno,
    };
    let mut done = 0;
    for part in iov {
        let mut at = 0;
        while at < part.iov_len {
            let want = (part.iov_len - at).min(relay.bytes);
            let place = position.map_or(-1, |start| start + done as i64);
            let into = iovec { iov_base: relay.addr as *mut _, iov_len: want };
            // An offset of -1 is the descriptor's own.
            let got = raw_call!(libc::SYS_preadv2, fd, &raw const into, 1, place, 0, 0);
            let copied = if got > 0 {
                relay.deliver(part.iov_base as usize + at, got as usize)
            } else {
                got
            };
            if copied <= 0 {
                return if done > 0 { done as isize } else { copied };
            }
            at += copied as usize;
            done += copied as usize;
            if (copied as usize) < want {
                return done as isize;
            }
        }
    }
    done as isize
}
