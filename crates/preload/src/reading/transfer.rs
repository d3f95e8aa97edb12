//! The read and write families on managed files.
//!
//! Reads are served by the manager, which copies into the program's buffers. Writes are made by
//! this process on the program's own descriptor, so that offsets, O_APPEND, limits and errors are
//! the kernel's. What keeps the cached pages true around them is [`overwrite`], or two messages.

use crate::copies::bounce;
use crate::copies::relay::{self, Relay};
use crate::descriptors::files::{self, File, Served};
use crate::descriptors::table::{self, Entry};
use crate::descriptors::{first_use, lengths, plain};
use crate::link::connection::ask;
use crate::link::standby;
use crate::memory::mapping;
use crate::process::{environment, state};
use crate::raw::{self, Arena, LockGuard, SignalsHeld};
use crate::reading::direct::{self, AtHand, Claimed};
use crate::reading::{alignment, guard};
use crate::writing::change;
use crate::writing::delayed::{self, Delayed};
use crate::writing::overwrite::{self, Place};
use crate::{raw_call, real};
use libc::{c_int, iovec};
use pagekeeper_wire::{AT_END, CHANGE_WRITE, Op, PAGE_BYTES, Request, TO_END};

/// The most bytes that Linux moves in one call (`MAX_RW_COUNT`).
pub(crate) const BYTES_MAX: usize = 0x7fff_f000;
/// Most bytes that are gathered for one change of a file: the memory for them is the program's.
const GATHERED_BYTES_MAX: usize = 16 << 20;
/// The most buffers of one call, and messages of one (`UIO_MAXIOV`).
pub(crate) const VECTORS_MAX: usize = 1024;

/// The buffers in the program's memory; an error is its negated errno.
fn vectors<'a>(iov: *const iovec, count: c_int) -> Result<&'a [iovec], isize> {
    if !(0..=VECTORS_MAX as c_int).contains(&count) {
        return Err(-libc::EINVAL as isize);
    }
    if count == 0 {
        return Ok(&[]);
    }
    if !guard::is_there(iov as usize, count as usize * size_of::<iovec>()) {
        return Err(-libc::EFAULT as isize);
    }
    // SAFETY: the program says that so many are there, and memory is.
    let all = unsafe { core::slice::from_raw_parts(iov, count as usize) };
    let sum = all.iter().try_fold(0usize, |sum, part| {
        sum.checked_add(part.iov_len).filter(|&sum| sum <= isize::MAX as usize)
    });
    if sum.is_none() { Err(-libc::EINVAL as isize) } else { Ok(all) }
}

/// The buffers of a call, looked at only when the call turns out to concern us.
pub(crate) trait Buffers {
    /// The buffers, or the negated errno of a bad array.
    fn get(&self) -> Result<&[iovec], isize>;
}

impl Buffers for [iovec; 1] {
    fn get(&self) -> Result<&[iovec], isize> {
        if self[0].iov_len > BYTES_MAX { Err(-libc::EFAULT as isize) } else { Ok(self) }
    }
}

/// The program's array of buffers: address and length.
pub(crate) struct Vectors(pub(crate) *const iovec, pub(crate) c_int);

impl Buffers for Vectors {
    fn get(&self) -> Result<&[iovec], isize> {
        vectors(self.0, self.1)
    }
}

/// One buffer as an array of one. What no memory can hold stays too long: the kernel finds no buffer there.
pub(crate) fn one(buffer: usize, bytes: usize) -> [iovec; 1] {
    let bytes = if bytes > isize::MAX as usize { bytes } else { bytes.min(BYTES_MAX) };
    [iovec { iov_base: buffer as *mut _, iov_len: bytes }]
}

/// A call of the read family; `position` is none for the descriptor's own, `rwf` the `RWF_`
/// flags, which a managed file is read without. `plain` makes the system call itself. None if the
/// descriptor is not managed.
pub(crate) fn read(
    fd: c_int,
    iov: impl Buffers,
    position: Option<i64>,
    rwf: c_int,
    plain: impl Fn() -> isize,
) -> Option<isize> {
    if let Some(entry) = table::readable(fd) {
        let direct = read_directly(fd, entry, &iov, position);
        if direct.is_some() {
            return direct;
        }
        if plain::is_left(entry) && !mapping::any() {
            return Some(plain());
        }
    } else if first_use::is_left(fd) && !mapping::any() {
        return None;
    }
    read_otherwise(fd, iov, position, rwf, plain)
}

/// A read that may be anybody's.
#[inline(never)]
fn read_otherwise(
    fd: c_int,
    iov: impl Buffers,
    position: Option<i64>,
    rwf: c_int,
    plain: impl Fn() -> isize,
) -> Option<isize> {
    if plain::of(fd).is_some() {
        return Some(into_managed(fd, &iov, position, rwf, &plain).unwrap_or_else(plain));
    }
    let done = first_use::read(fd, &iov, position);
    if done.is_some() {
        return done;
    }
    let Some(mut file) = files::managed(fd) else {
        // A pipe, perhaps, or a terminal, and who waits at it may be told to end: libc's own call is.
        let waits = || match position {
            None if rwf == 0 => by_libc(fd, &iov),
            _ => plain(),
        };
        return into_managed(fd, &iov, position, rwf, &waits);
    };
    match file.enter() {
        Served::Kernel(_guard) => {
            return Some(into_managed(fd, &iov, position, rwf, &plain).unwrap_or_else(plain));
        }
        Served::Managed => {}
    }
    let flags = raw::fcntl(fd, libc::F_GETFL, 0);
    if flags < 0 {
        return Some(flags);
    }
    if flags as c_int & libc::O_ACCMODE == libc::O_WRONLY {
        return Some(-libc::EBADF as isize);
    }
    let iov = match iov.get() {
        Ok(iov) => iov,
        Err(errno) => return Some(errno),
    };
    if flags as c_int & libc::O_DIRECT != 0 {
        if !alignment::fits(fd, iov, position) {
            return Some(-libc::EINVAL as isize);
        }
        let done =
            read_directly(fd, file.entry, &Vectors(iov.as_ptr(), iov.len() as c_int), position);
        if done.is_some() {
            return done;
        }
    }
    Some(match position {
        Some(offset) if !direct::is_place(offset, direct::total(iov)) => -libc::EINVAL as isize,
        Some(offset) => fetch(&file, iov, offset, direct::total(iov)),
        None => {
            let _held = SignalsHeld::new();
            match lock_offset(&mut file) {
                Some(_lock) => read_here(&file, iov),
                None => plain(),
            }
        }
    })
}

/// Locks the offset of a descriptor, and follows it if it is another file's when that is done. None if it is
/// none that the manager serves.
fn lock_offset(file: &mut File) -> Option<LockGuard<'static>> {
    loop {
        let lock = file.state.offset_locks[file.entry.lock_index()].lock();
        if table::is_still(file.fd, file.entry) {
            return Some(lock);
        }
        drop(lock);
        *file = files::managed(file.fd).filter(|file| table::is_active(file.entry))?;
    }
}

/// A read by libc's own call, which is a cancellation point while it waits.
fn by_libc(fd: c_int, iov: &impl Buffers) -> isize {
    match iov.get() {
        Ok(iov) => raw::kernel(real::readv(fd, iov.as_ptr(), iov.len() as c_int)),
        Err(errno) => errno,
    }
}

/// A read of what is the kernel's into memory that may be managed. None if it is not, and the call can
/// be made as it is.
fn into_managed(
    fd: c_int,
    iov: &impl Buffers,
    position: Option<i64>,
    rwf: c_int,
    plain: &impl Fn() -> isize,
) -> Option<isize> {
    if !mapping::any() {
        return None;
    }
    let iov = iov.get().ok()?;
    let may_be = |part: &iovec| mapping::may_be_managed(part.iov_base as usize, part.iov_len);
    // What the kernel refuses, or what has no bytes, it says best itself.
    let is_refused = position.is_some_and(|offset| offset < 0);
    if is_refused || !iov.iter().filter(|part| part.iov_len > 0).any(may_be) {
        return None;
    }
    if bounce::needed(iov) {
        return Some(bounce::read(fd, iov, position, rwf));
    }
    if relay::needed(fd) {
        return Some(relay::read(fd, iov, position));
    }
    let done = plain();
    mend(iov, done);
    Some(done)
}

/// A page that the kernel could not have for a read, since its file's disk is full, was marked for the
/// kernel to see. The mark is taken away: the next touch asks anew.
fn mend(iov: &[iovec], done: isize) {
    let mut skip = match usize::try_from(done) {
        Ok(done) => done,
        Err(_) if done == -libc::EFAULT as isize => 0,
        Err(_) => return,
    };
    for part in iov {
        if skip < part.iov_len {
            mapping::mend(part.iov_base as usize + skip);
            return;
        }
        skip -= part.iov_len;
    }
}

/// A call of the read family with `RWF_` flags.
pub(crate) fn read_flagged(
    fd: c_int,
    iov: impl Buffers,
    position: Option<i64>,
    rwf: c_int,
    plain: impl Fn() -> isize,
) -> Option<isize> {
    if rwf != 0
        && let Some(file) = files::managed(fd)
        && table::is_active(file.entry)
    {
        // Which flags there are, and for which files, the kernel knows: it is asked for a byte beyond what
        // any file can have.
        let (mut byte, far) = (0u8, i64::MAX - 0xffff);
        let part = one(&raw mut byte as usize, 1);
        let refused = raw_call!(libc::SYS_preadv2, fd, part.as_ptr(), 1, far, 0, rwf);
        // Reads with O_DIRECT are refused so for more than their flags.
        let both = RWF_NOAPPEND | libc::RWF_APPEND;
        let contradicts = rwf & both == both && refused == -libc::EINVAL as isize;
        if contradicts || matches!(-refused as c_int, libc::EOPNOTSUPP | libc::EBADF) {
            return Some(refused);
        }
        if rwf & libc::RWF_NOWAIT != 0
            && file.state.is_own()
            && let Ok(iov) = iov.get()
        {
            let offset = position.unwrap_or_else(|| raw::lseek(fd, 0, libc::SEEK_CUR));
            if let Ok(offset) = u64::try_from(offset) {
                match direct::at_hand(&file, offset, direct::total(iov)) {
                    AtHand::All => {}
                    AtHand::Some(0) => return Some(-libc::EAGAIN as isize),
                    AtHand::Some(bytes) => return Some(read_part(&file, iov, position, bytes)),
                    AtHand::Unknown => return Some(-libc::EOPNOTSUPP as isize),
                }
            }
        }
    }
    read(fd, iov, position, rwf, plain)
}

/// A read of so many bytes, of which there are more.
fn read_part(file: &File, iov: &[iovec], position: Option<i64>, bytes: usize) -> isize {
    if let Some(offset) = position {
        return fetch(file, iov, offset, bytes);
    }
    let _held = SignalsHeld::new();
    let _lock = file.state.offset_locks[file.entry.lock_index()].lock();
    match direct::claim(file.fd, bytes) {
        Ok(start) => read_claimed(file.fd, iov, start, bytes),
        Err(errno) => errno,
    }
}

/// A read without the manager, if that can be.
#[inline(always)]
pub(crate) fn read_directly(
    fd: c_int,
    entry: Entry,
    iov: &impl Buffers,
    position: Option<i64>,
) -> Option<isize> {
    let iov = iov.get().ok()?;
    let Some(offset) = position else {
        return match direct::read(fd, entry, iov)? {
            Claimed::Read(done) => Some(done as isize),
            Claimed::Unread(start, claim, _held) => Some(read_claimed(fd, iov, start, claim)),
        };
    };
    let offset = u64::try_from(offset).ok()?;
    direct::read_at(fd, entry, iov, offset, direct::total(iov)).map(|done| done as isize)
}

/// Reads what a moved offset promised, and moves it back over what could not be read.
#[cold]
pub(crate) fn read_claimed(fd: c_int, iov: &[iovec], start: u64, claim: usize) -> isize {
    let done = match files::managed(fd) {
        Some(file) if table::is_active(file.entry) && state::current().is_some() => {
            fetch(&file, iov, start as i64, claim)
        }
        // Another file by now, or a vfork child, which may not use its parent's connections.
        _ => raw_call!(libc::SYS_preadv2, fd, iov.as_ptr(), iov.len(), start, 0, 0),
    };
    let done = done.min(claim as isize);
    direct::give_back(fd, claim - done.max(0) as usize);
    done
}

/// A read through the descriptor's own offset. It is moved before the bytes are read, as
/// [`direct::read`] does.
fn read_here(file: &File, iov: &[iovec]) -> isize {
    let fd = file.fd;
    let now = raw::lseek(fd, 0, libc::SEEK_CUR);
    let size = raw::fstat(fd).map_or(0, |stat| stat.st_size);
    if now < 0 {
        return now as isize;
    }
    let claim = direct::total(iov).min(size.saturating_sub(now).max(0) as usize);
    if claim == 0 {
        return 0;
    }
    match direct::claim(fd, claim) {
        Ok(start) => read_claimed(fd, iov, start, claim),
        Err(errno) => errno,
    }
}

/// File content from an offset by message, `limit` bytes at most.
fn fetch(file: &File, iov: &[iovec], mut offset: i64, limit: usize) -> isize {
    direct::offer(file, limit);
    lengths::read_to(file, (offset as u64).saturating_add(limit as u64));
    let mut done = 0usize;
    for part in iov {
        let mut at = 0;
        let bytes = part.iov_len.min(limit - done);
        let mut once_max = bytes;
        while at < bytes {
            let once = (bytes - at).min(once_max);
            let mut request = file.request(Op::Read);
            request.b = offset as u64;
            request.c = once as u64;
            request.d = part.iov_base as u64 + at as u64;
            request.e = u64::from(mapping::may_be_managed(request.d as usize, once));
            let answer = match file.ask(&request) {
                Ok(reply) if reply.r1 != 0 => fetch_around(file, &request),
                Ok(reply) => Ok(reply.r0 as usize),
                Err(errno) => Err(errno),
            };
            match answer {
                Err(errno) if errno == -libc::EFAULT => {
                    // What comes before the place that nobody can write to is read.
                    match shorter(request.d as usize, once) {
                        Some(shorter) => once_max = shorter,
                        None if done == 0 => return errno as isize,
                        None => return done as isize,
                    }
                }
                Ok(got) if got > 0 => {
                    let got = got.min(once);
                    at += got;
                    done += got;
                    offset += got as i64;
                }
                Ok(_) => {
                    if let Some(more) = unheard(file, request.d, once, offset) {
                        return (done + more) as isize;
                    }
                }
                Err(errno) if done == 0 => return errno as isize,
                Err(_) => return done as isize,
            }
        }
    }
    done as isize
}

/// Reads what the kernel says there is behind the end that the manager knows: who makes the file longer was
/// stopped before it could say so. Nobody has it in memory. The bytes read, none if that cannot be; or `None`
/// if the file was cut meanwhile, and the manager is to be asked again: the kernel's own reads show zeros
/// where a file is being cut.
fn unheard(file: &File, addr: u64, bytes: usize, offset: i64) -> Option<usize> {
    let generation = lengths::generation(file.entry);
    let is_behind = lengths::known(file.entry).is_some_and(|known| known <= offset as u64);
    let reaches = |end: i64| raw::fstat(file.fd).is_ok_and(|stat| stat.st_size >= end);
    if !is_behind || !reaches(offset + 1) || mapping::may_be_managed(addr as usize, bytes) {
        return Some(0);
    }
    let done = raw_call!(libc::SYS_pread64, file.fd, addr, bytes, offset).max(0);
    // The generation tells what the run's own programs did, the length what others did.
    let held = reaches(offset + done as i64) && lengths::generation(file.entry) == generation;
    held.then_some(done as usize)
}

/// About half of so many bytes at an address, up to where a page ends. None if they are in one page.
fn shorter(addr: usize, bytes: usize) -> Option<usize> {
    let page = PAGE_BYTES as usize;
    let to_next = page - addr % page;
    (bytes > to_next).then(|| to_next + (bytes - to_next) / 2 / page * page)
}

/// Reads what may lie in managed memory by way of a relay.
fn fetch_around(file: &File, request: &Request) -> Result<usize, i32> {
    let relay = Relay::new(request.c as usize).map_err(|errno| errno as i32)?;
    let bytes = relay.bytes as u64;
    let by_way = Request { c: bytes, d: relay.addr as u64, e: 0, ..*request };
    match file.ask(&by_way)?.r0 {
        0 => Ok(0),
        got => match relay.deliver(request.d as usize, got.min(bytes) as usize) {
            done if done < 0 => Err(done as i32),
            done => Ok(done as usize),
        },
    }
}

/// A call of the write family; `position` is none for the descriptor's own, `rwf` the `RWF_`
/// flags. `plain` makes the system call itself. None if the descriptor is not managed.
pub(crate) fn write(
    fd: c_int,
    iov: impl Buffers,
    position: Option<i64>,
    rwf: c_int,
    plain: impl Fn() -> isize,
) -> Option<isize> {
    standby::step();
    match delayed::write(fd, &iov, position, rwf) {
        Some(Delayed::Written(done)) => return Some(done as isize),
        Some(Delayed::Unwritten(start, claim, _held)) => {
            return Some(write_claimed(fd, iov, start, claim));
        }
        None => {}
    }
    if position.is_none() {
        direct::moved(fd, None);
    }
    let bounced = |iov: &dyn Buffers| {
        if !environment::user_mode_only() {
            return None;
        }
        let iov = iov.get().ok().filter(|iov| bounce::needed(iov))?;
        Some(bounce::write(fd, iov, position, rwf))
    };
    if let Some(kernels) = plain::of(fd) {
        let result = bounced(&iov).unwrap_or_else(&plain);
        let is_full = files::is_full(result);
        let state = if is_full { state::current() } else { None };
        let again = state.is_some_and(|state| files::makes_room(state, result));
        let result = if again { plain() } else { result };
        kernels.wrote(fd, &iov, position.filter(|_| rwf == 0), result);
        return Some(result);
    }
    let assumed = files::assumed(fd);
    let is_sure = assumed.is_none();
    let Some(mut file) = assumed.or_else(|| files::managed(fd)) else { return bounced(&iov) };
    if is_sure && let Served::Kernel(_guard) = file.enter() {
        return bounced(&iov).or_else(|| {
            let result = plain();
            Some(if files::makes_room(file.state, result) { plain() } else { result })
        });
    }
    let iov = match iov.get() {
        Ok(iov) => iov,
        Err(errno) => return Some(errno),
    };
    let total = iov.iter().map(|part| part.iov_len).sum::<usize>().min(BYTES_MAX);
    let flags = match table::storable(fd) {
        // They were asked for before, and nobody changed them.
        Some((_, false)) => libc::O_RDWR as isize,
        _ => raw::fcntl(fd, libc::F_GETFL, 0),
    };
    let writable = flags >= 0 && flags as c_int & libc::O_ACCMODE != libc::O_RDONLY;
    let both = RWF_NOAPPEND | libc::RWF_APPEND;
    if total == 0 || !writable || position.is_some_and(|offset| offset < 0) || rwf & both == both {
        // Nothing changes; the kernel finds the right answer.
        return Some(plain());
    }
    delayed::may_store(&file, flags as c_int);
    let append = (flags as c_int & libc::O_APPEND != 0 && rwf & RWF_NOAPPEND == 0)
        || rwf & libc::RWF_APPEND != 0;
    let mut parts = iov.iter().filter(|part| part.iov_len > 0);
    let single = match (parts.next(), parts.next()) {
        (Some(part), None) => Some(part.iov_base as usize),
        _ => None,
    };
    let _held = SignalsHeld::new();
    let _lock = match position {
        Some(_) => None,
        None => match lock_offset(&mut file) {
            Some(lock) => Some(lock),
            None => return Some(plain()),
        },
    };
    let call = Write { file: &file, is_sure, position, rwf, append };
    Some(write_all(&call, iov, single, total))
}

/// Writes where a moved offset promised, and moves it back over what could not be written.
#[cold]
fn write_claimed(fd: c_int, iov: impl Buffers, start: u64, claim: usize) -> isize {
    let plain =
        |iov: &[iovec]| raw_call!(libc::SYS_pwritev2, fd, iov.as_ptr(), iov.len(), start, 0, 0);
    let done = match iov.get() {
        Ok(iov) => {
            let again = Vectors(iov.as_ptr(), iov.len() as c_int);
            write(fd, again, Some(start as i64), 0, || plain(iov)).unwrap_or_else(|| plain(iov))
        }
        Err(errno) => errno,
    };
    let unwritten = claim.saturating_sub(done.max(0) as usize);
    direct::unclaim(fd, start + claim as u64, unwritten, table::may_be_shared(fd));
    done
}

fn write_all(call: &Write<'_>, iov: &[iovec], single: Option<usize>, total: usize) -> isize {
    if let Some(buffer) = single
        && let Some(result) = call.from(buffer, total, mapping::may_be_managed(buffer, total))
    {
        return result;
    }
    // Several buffers, or one that lies in managed memory: its pages may have to be brought in,
    // which cannot be while the change is open, and no partial write may come of it.
    let Some(arena) = Arena::new(total.min(GATHERED_BYTES_MAX)) else {
        return -libc::ENOMEM as isize;
    };
    let mut done = 0;
    while done < total {
        let rest = if done == 0 { None } else { rest_of(iov, done) };
        let from = rest.as_ref().map_or(iov, core::slice::from_ref);
        let gathered = arena.gather(from, total - done);
        let part = Write { position: call.position.map(|start| start + done as i64), ..*call };
        let wrote = match gathered {
            ..=0 => gathered,
            bytes => part.from(arena.addr, bytes as usize, false).unwrap_or(-libc::EIO as isize),
        };
        if wrote <= 0 {
            return if done > 0 { done as isize } else { wrote };
        }
        done += wrote as usize;
        if wrote < gathered {
            break;
        }
    }
    done as isize
}

/// What is left behind so many bytes of the buffer in which they end.
fn rest_of(iov: &[iovec], mut bytes: usize) -> Option<iovec> {
    for part in iov {
        if bytes < part.iov_len {
            let iov_base = part.iov_base.wrapping_byte_add(bytes);
            return Some(iovec { iov_base, iov_len: part.iov_len - bytes });
        }
        bytes -= part.iov_len;
    }
    None
}

/// `RWF_NOAPPEND`
const RWF_NOAPPEND: c_int = 0x20;

struct Write<'a> {
    file: &'a File,
    /// The kernel said that the descriptor is of this file still.
    is_sure: bool,
    position: Option<i64>,
    rwf: c_int,
    append: bool,
}

impl Write<'_> {
    /// Writes one buffer. None if it `may_be_managed` and the manager says that it is.
    fn from(&self, buffer: usize, bytes: usize, may_be_managed: bool) -> Option<isize> {
        let (state, fd) = (self.file.state, self.file.fd);
        let place = match self.position {
            _ if self.append => Place::End,
            Some(offset) => Place::At(offset),
            None => Place::Own,
        };
        let call = |claimed: Option<u64>| self.system_call(claimed, buffer, bytes);
        if !may_be_managed
            && let Some((done, offset)) = overwrite::write(self.file, place, buffer, bytes, call)
        {
            if done > 0 && !self.append {
                delayed::note(self.file, offset, done as usize);
            }
            return Some(done);
        }
        let slot = self.file.entry.slot();
        if !self.is_sure && files::managed(self.file.fd).is_none_or(|now| now.entry.slot() != slot)
        {
            // Closed, and perhaps reused, by a call that this library does not see. To the manager it
            // is somebody outside who changes that file.
            let result = call(None);
            change::refresh(self.file.fd);
            return Some(result);
        }
        // Nobody else who writes claims anything behind the offset before it is known how much was written:
        // in this process the lock sees to that, and elsewhere that all of the file is to be changed.
        let is_shared = place == Place::Own && table::may_be_shared(fd);
        loop {
            let start = match self.start() {
                Ok(start) => start,
                Err(errno) => return Some(errno),
            };
            let mut begin = self.file.request(Op::ChangeBegin);
            (begin.b, begin.c) = match place {
                Place::End => (AT_END, bytes as u64),
                Place::Own if is_shared => (0, TO_END),
                _ => (start, bytes as u64),
            };
            (begin.d, begin.e) = (buffer as u64, CHANGE_WRITE);
            let reply = match self.file.ask(&begin) {
                Ok(reply) => reply,
                Err(errno) => return Some(errno as isize),
            };
            let mut end = self.file.request(Op::ChangeEnd);
            (end.b, end.c) = (reply.r0, start);
            if reply.r1 != 0 && may_be_managed {
                let _ = ask(state, &end);
                return None;
            }
            // From here on no other managed change can reach this range: where the write goes is
            // settled now. Another process that shares the descriptor's offset, or appends, may
            // have been faster.
            let settled = match place {
                Place::Own => direct::claim(fd, bytes).ok(),
                _ => Some(self.start().unwrap_or(start)),
            };
            let claimed = settled.filter(|_| place == Place::Own);
            if claimed.is_some_and(|claimed| claimed != start && !is_shared) {
                direct::give_back(fd, bytes);
                let _ = ask(state, &end);
                continue;
            }
            // Without a place it lies beyond what a file can be, or there is no file: the kernel says what
            // becomes of it, and nothing is cached there.
            let mut result = call(claimed);
            if files::makes_room(state, result) {
                result = call(claimed);
            }
            if let Some(start) = claimed {
                let unwritten = bytes - result.max(0) as usize;
                direct::unclaim(fd, start + bytes as u64, unwritten, is_shared);
            }
            if let Some(settled) = settled.filter(|_| result > 0) {
                end.c = settled;
                (end.d, end.e) = (result as u64, buffer as u64);
                let size = if self.append { self.start().unwrap_or(0) } else { 0 };
                if self.append && size != end.c + end.d {
                    // Somebody outside was there, too: which of these bytes are whose, storage knows.
                    end.c = end.c.min(size.saturating_sub(end.d));
                    (end.d, end.e) = (size - end.c, 0);
                }
            }
            // The bytes are in the file whatever the manager answers.
            let _ = ask(state, &end);
            overwrite::offer(self.file);
            return Some(result);
        }
    }

    /// Where a write made now would go; an error is its negated errno.
    fn start(&self) -> Result<u64, isize> {
        let offset = match self.position {
            _ if self.append => {
                raw::fstat(self.file.fd).map(|stat| stat.st_size).map_err(|errno| errno as isize)?
            }
            Some(offset) => offset,
            None => raw::lseek(self.file.fd, 0, libc::SEEK_CUR),
        };
        if offset < 0 { Err(offset as isize) } else { Ok(offset as u64) }
    }

    /// Makes the program's call, at the offset that was claimed for it, if one was.
    fn system_call(&self, claimed: Option<u64>, buffer: usize, bytes: usize) -> isize {
        let fd = self.file.fd;
        let position = claimed.map(|offset| offset as i64).or(self.position);
        if self.rwf != 0 {
            let iov = one(buffer, bytes);
            let offset = position.unwrap_or(-1);
            return raw_call!(libc::SYS_pwritev2, fd, iov.as_ptr(), 1, offset, 0, self.rwf);
        }
        match position {
            Some(offset) => raw_call!(libc::SYS_pwrite64, fd, buffer, bytes, offset),
            None => raw_call!(libc::SYS_write, fd, buffer, bytes),
        }
    }
}
