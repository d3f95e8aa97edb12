//! Mappings of managed files, and the calls that act on them.
//!
//! The kernel makes the program's mapping first, from the program's own file and arguments: so all
//! checks, errors and the choice of address are the kernel's. Only then is the manager's memory
//! put in its place, without access; it gets the program's protection once the manager watches it.
//! Whatever fails on the way leaves the plain mapping, or an error where a plain mapping would show
//! other bytes than the manager's.

use crate::descriptors::files::{self, File};
use crate::descriptors::{fdinfo, table};
use crate::link::connection::{ask, ask_with, note};
use crate::link::standby;
use crate::link::userfault;
use crate::memory::call::{Mmap, Mremap};
use crate::memory::{heap, turns};
use crate::process::environment;
use crate::process::state;
use crate::raw::{self, SignalsHeld};
use crate::raw_call;
use crate::reading::transfer::{self, Buffers, Vectors};
use crate::writing::{change, lock_files};
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{c_int, c_uint, iovec};
use pagekeeper_wire::{ADVISE_DONTNEED, MAP_LIBRARY, Op, PAGE_BYTES, Request};

/// Lowest and one above the highest managed address this image ever had: a quick test, not a list.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn widen(addr: usize, bytes: usize) {
    LOWEST.fetch_min(addr, Ordering::AcqRel);
    HIGHEST.fetch_max(addr + bytes, Ordering::AcqRel);
}

/// Whether some of a range may be managed.
#[inline(always)]
pub(crate) fn may_be_managed(addr: usize, bytes: usize) -> bool {
    addr < HIGHEST.load(Ordering::Relaxed)
        && addr.saturating_add(bytes) > LOWEST.load(Ordering::Relaxed)
}

/// Whether this image ever had a managed mapping.
pub(crate) fn any() -> bool {
    HIGHEST.load(Ordering::Relaxed) != 0
}

/// Whose a mapping is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Program,
    /// This library, see [`crate::reading::direct`].
    Library,
}

/// Maps a file with a slot; none if the call does not concern us.
pub(crate) fn mmap(call: Mmap) -> Option<isize> {
    /// Mappings that only the kernel can make.
    const KERNEL_ONLY: c_int = libc::MAP_HUGETLB | libc::MAP_SYNC | libc::MAP_GROWSDOWN;
    if call.flags & libc::MAP_ANONYMOUS != 0 {
        return None;
    }
    if let Some(result) = standby::mmap(&call) {
        return Some(result);
    }
    let mut file = files::managed(call.fd)?;
    if !file.state.is_own() {
        return None;
    }
    let copies = environment::user_mode_only()
        && call.flags & libc::MAP_TYPE == libc::MAP_PRIVATE
        && call.prot & libc::PROT_WRITE != 0;
    if copies {
        // A forked child could not be given its parent's copies.
        note(
            file.state,
            b"private writable mappings are left to the kernel (see pagekeeper doctor)",
        );
    }
    // Of code that a program makes itself, by another mapping of the same file, it expects to see each store.
    let is_library = call.prot & libc::PROT_EXEC != 0
        && (call.flags & libc::MAP_TYPE == libc::MAP_PRIVATE || is_read_only(call.fd))
        && !table::is_mapped(file.entry);
    if copies || is_library || call.flags & KERNEL_ONLY & !map_type_sync(call.flags) != 0 {
        change::flush(&file, 0, 0);
        return Some(call.plain());
    }
    let _changing = standby::changing();
    let _held = SignalsHeld::new();
    Some(map(&mut file, &call))
}

fn is_read_only(fd: c_int) -> bool {
    raw::fcntl(fd, libc::F_GETFL, 0) as c_int & libc::O_ACCMODE == libc::O_RDONLY
}

/// MAP_SYNC counts only with MAP_SHARED_VALIDATE; elsewhere the kernel ignores the bit.
fn map_type_sync(flags: c_int) -> c_int {
    if flags & libc::MAP_TYPE == libc::MAP_SHARED_VALIDATE { 0 } else { libc::MAP_SYNC }
}

fn map(file: &mut File, call: &Mmap) -> isize {
    let eager = libc::MAP_POPULATE | libc::MAP_LOCKED;
    let trial = Mmap { flags: call.flags & !eager, ..*call };
    let fixed = turns::replaces(call.flags);
    // Where it is made, if not where it is to be.
    let mut room = None;
    let addr = if fixed {
        // What is there stays until the replacement is ready: try elsewhere.
        if !call.addr.is_multiple_of(PAGE_BYTES as usize) {
            return call.plain();
        }
        let apart = raw::apart(call.bytes);
        let trial = Mmap { addr: apart, flags: trial.flags & !libc::MAP_FIXED, ..trial };
        if state::is_only_thread() {
            let elsewhere = trial.plain();
            if elsewhere < 0 {
                return elsewhere;
            }
            turns::unmap(elsewhere as usize, call.bytes);
        } else {
            // Others may be using what is there, at each moment.
            room = match Room::beside(call.addr, &trial) {
                Ok(room) => Some(room),
                Err(errno) => return errno,
            };
        }
        call.addr
    } else {
        let addr = trial.plain();
        if addr < 0 {
            return addr;
        }
        addr as usize
    };
    let made_at = room.as_ref().map_or(addr, |room| room.addr);
    let trial_at = if fixed && room.is_none() { 0 } else { made_at };
    let outcome = loop {
        let outcome = if userfault::ensure(file.state) {
            replace(file, call, made_at, trial_at, addr)
        } else if userfault::lacks_descriptors(file.state) {
            Err(Stop::Lacking)
        } else {
            Err(Stop::Failed)
        };
        // The slot may have become another file's before the manager was asked.
        if !matches!(outcome, Err(Stop::Failed)) || !file.renew() {
            break outcome;
        }
    };
    let outcome = match room {
        Some(room) => room.move_into_place(outcome, addr),
        None => outcome,
    };
    match outcome {
        Ok(()) => {
            if call.flags & libc::MAP_POPULATE != 0 {
                let _ = advise_manager(file.state, addr, call.bytes, libc::MADV_WILLNEED);
            }
            if call.flags & libc::MAP_LOCKED != 0 {
                // As `mlock`: what it locks is not advised away. That it cannot is no error of `mmap(2)`.
                raw_call!(libc::SYS_mlock2, addr, call.bytes, libc::MLOCK_ONFAULT);
            }
            addr as isize
        }
        Err(_) if table::is_active(file.entry) => {
            // Others work on the manager's copy of this file: a plain mapping would show, and
            // keep, something else. An error is the lesser evil.
            if !fixed || matches!(outcome, Err(Stop::FailedHalfway)) {
                turns::unmap(addr, call.bytes);
            }
            if matches!(outcome, Err(Stop::Lacking)) {
                note(
                    file.state,
                    b"a mapping of a managed file was refused (EMFILE): it takes a descriptor for a \
                      moment, and this program may have no more",
                );
                return -libc::EMFILE as isize;
            }
            note(file.state, b"a mapping of a managed file failed and was refused (ENOMEM)");
            -libc::ENOMEM as isize
        }
        // The trial mapping is what the program wanted.
        Err(Stop::PassThrough | Stop::Failed | Stop::Lacking)
            if !fixed && call.flags & eager == 0 =>
        {
            addr as isize
        }
        Err(_) => call.plain_at(addr),
    }
}

/// Moves a mapping of ours, of whole pages, to where it is to be and is known to be managed ([`widen`]), in one
/// step: whatever is there is replaced.
/// False if it stays where it was.
pub(crate) fn moves_from_room(room: usize, addr: usize, bytes: usize) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let call = Mremap { old: room, old_bytes: bytes, new_bytes: bytes, flags, new: addr };
    call.plain() >= 0
}

/// Where a mapping is made that is to replace what is at another place in one step.
struct Room {
    addr: usize,
    bytes: usize,
    /// Mappings that the kernel put in the way, where nothing was.
    in_the_way: [Option<usize>; 2],
}

impl Room {
    /// Makes this mapping where it is not in the way of a place of its length. A hole there is what the
    /// kernel likes best, if it does not like where it was to be: what it puts there is kept, until it has
    /// found something else.
    fn beside(place: usize, trial: &Mmap) -> Result<Room, isize> {
        let mut room = Room { addr: 0, bytes: 0, in_the_way: [None; 2] };
        // Of two that are in the way, one reaches in from below and one from above: there is no third.
        for made in 0..=room.in_the_way.len() {
            let addr = trial.plain();
            if addr < 0 {
                room.clear(place, false);
                return Err(addr);
            }
            room.addr = addr as usize;
            room.bytes = trial.bytes.next_multiple_of(PAGE_BYTES as usize);
            if room.addr.abs_diff(place) >= room.bytes {
                return Ok(room);
            }
            match room.in_the_way.get_mut(made) {
                Some(kept) => *kept = Some(room.addr),
                None => turns::unmap(room.addr, room.bytes),
            }
        }
        room.clear(place, false);
        Err(-libc::ENOMEM as isize)
    }

    /// What was made here is moved to where it is to be, or goes.
    fn move_into_place(self, made: Result<(), Stop>, place: usize) -> Result<(), Stop> {
        let moved = made.and_then(|()| match moves_from_room(self.addr, place, self.bytes) {
            true => Ok(()),
            false => Err(Stop::Failed),
        });
        if moved.is_err() {
            turns::unmap(self.addr, self.bytes);
        }
        self.clear(place, moved.is_ok());
        moved.map_err(|stop| if matches!(stop, Stop::FailedHalfway) { Stop::Failed } else { stop })
    }

    /// Unmaps what the kernel put in the way: if the place `is_taken`, what lies beside it.
    fn clear(&self, place: usize, is_taken: bool) {
        for kept in self.in_the_way.into_iter().flatten() {
            let (from, to) = match is_taken {
                true if kept < place => (kept, place),
                true => (place + self.bytes, kept + self.bytes),
                false => (kept, kept + self.bytes),
            };
            if from < to {
                turns::unmap(from, to - from);
            }
        }
    }
}

/// Why a mapping is not the manager's.
#[derive(Clone, Copy)]
enum Stop {
    /// The manager wants it plain.
    PassThrough,
    /// Something failed; the address was not touched.
    Failed,
    /// There is no descriptor to be had; the address was not touched.
    Lacking,
    /// Something failed when the manager's memory was at the address already.
    FailedHalfway,
}

/// Puts the manager's memory at an address; `trial` is where the kernel's mapping is meanwhile, if not 0, and
/// `place` where it is to be in the end.
fn replace(file: &File, call: &Mmap, addr: usize, trial: usize, place: usize) -> Result<(), Stop> {
    let mut request = file.request(Op::MapPrepare);
    request.b = call.offset as u64;
    request.c = call.bytes as u64;
    request.d = call.prot as u64;
    request.e = call.flags as u32 as u64;
    request.f = trial as u64;
    let (reply, memfd) =
        ask_with(file.state, &request, &[], call.fd).map_err(|errno| match -errno {
            libc::EMFILE => Stop::Lacking,
            _ => Stop::Failed,
        })?;
    if reply.r0 == 0 || memfd < 0 {
        raw::close(memfd);
        return Err(if reply.r0 == 0 { Stop::PassThrough } else { Stop::Failed });
    }
    // Program's modifiers that the replacement shares; its type is the manager's to choose.
    let modifiers = call.flags & (libc::MAP_NORESERVE | libc::MAP_STACK);
    let flags = reply.r1 as c_int | modifiers | libc::MAP_FIXED;
    let mapped = raw::mmap(addr, call.bytes, libc::PROT_NONE, flags, memfd, call.offset);
    raw::close(memfd);
    if mapped < 0 {
        return Err(Stop::FailedHalfway);
    }
    widen(place, call.bytes.next_multiple_of(PAGE_BYTES as usize));
    commit(file.state, file.slot(), &Mmap { addr, ..*call }, Owner::Program)
        .map_err(|()| Stop::FailedHalfway)
}

/// What every `mprotect(2)` knows of a protection: of other bits it refuses what `mmap(2)` ignores.
const ACCESS: c_int = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;

/// The manager's memory is mapped at an address without access: has it watched, and gives it its
/// protection.
pub(crate) fn commit(state: &state::State, slot: u64, made: &Mmap, owner: Owner) -> Result<(), ()> {
    let (addr, bytes) = (made.addr, made.bytes);
    if environment::user_mode_only()
        && raw_call!(libc::SYS_madvise, addr, bytes, libc::MADV_DONTFORK) < 0
    {
        return Err(());
    }
    let mut request = Request::new(Op::MapCommit);
    request.a = slot;
    request.b = made.offset as u64;
    request.c = made.bytes as u64;
    request.d = made.addr as u64;
    request.e = made.prot as u64;
    request.f = made.flags as u32 as u64 | if owner == Owner::Library { MAP_LIBRARY } else { 0 };
    ask(state, &request).map_err(|_| ())?;
    if owner == Owner::Program {
        lock_files::mapped(slot);
    }
    let protects = |prot: c_int| raw_call!(libc::SYS_mprotect, made.addr, made.bytes, prot) >= 0;
    if protects(made.prot) || protects(made.prot & ACCESS) { Ok(()) } else { Err(()) }
}

/// After an `mremap(2)` by which the memory is now at `new`: of a move the kernel tells the manager; of growth, and of what a move left
/// behind (MREMAP_DONTUNMAP), we do. (A buffer there has to be known for managed memory: a call that holds its
/// file while it needs a page of it waits for itself, and what is copied there may be lost as the page leaves.)
pub(crate) fn remapped(call: &Mremap, new: usize) {
    let Mremap { old, flags, .. } = *call;
    if !may_be_managed(old, call.old_bytes.max(1)) {
        return;
    }
    let [old_bytes, new_bytes] =
        [call.old_bytes, call.new_bytes].map(|bytes| bytes.next_multiple_of(PAGE_BYTES as usize));
    widen(new, new_bytes);
    if new_bytes > old_bytes {
        // Of no bytes nothing moved: it is a second mapping of the same.
        let rest = if old_bytes > 0 { new } else { old };
        tell_of_mapping(new + old_bytes, new_bytes - old_bytes, rest);
    }
    if flags & libc::MREMAP_DONTUNMAP != 0 {
        tell_of_mapping(old, old_bytes, new);
    }
}

/// Has the manager look up what is mapped at a place, which may be written to if the rest of it may.
fn tell_of_mapping(addr: usize, bytes: usize, rest: usize) {
    let Some(state) = state::current() else { return };
    let mut request = Request::new(Op::Protect);
    (request.a, request.b, request.d) = (addr as u64, bytes as u64, 1);
    request.e = rest as u64;
    let _ = ask(state, &request);
}

/// Whether pages of a range may be put in another order by `remap_file_pages(2)`, or an error: the kernel
/// maps the manager's memory anew for it, where nobody watches that.
pub(crate) fn may_reorder(addr: usize, bytes: usize) -> Result<(), isize> {
    standby::step();
    if !may_be_managed(addr, bytes) {
        return Ok(());
    }
    let Some(state) = state::current() else { return Ok(()) };
    note(state, b"remap_file_pages is refused (EINVAL) where memory may be managed: use mmap");
    Err(-libc::EINVAL as isize)
}

/// Asks whether a range may get a protection; an error is to be returned to the program.
pub(crate) fn may_protect(addr: usize, bytes: usize, prot: c_int) -> Result<(), isize> {
    standby::step();
    // Of arguments that are no good the kernel says so first.
    if !addr.is_multiple_of(PAGE_BYTES as usize) || !may_be_managed(addr, bytes) {
        return Ok(());
    }
    let Some(state) = state::current() else { return Ok(()) };
    let mut request = Request::new(Op::Protect);
    (request.a, request.b, request.c) = (addr as u64, bytes as u64, prot as u64);
    match ask(state, &request) {
        Err(errno) if errno == -libc::EACCES => Err(errno as isize),
        _ => Ok(()),
    }
}

/// `msync(2)`, if the range may be managed.
pub(crate) fn msync(addr: usize, bytes: usize, flags: c_int) -> Option<isize> {
    if !may_be_managed(addr, bytes) {
        return None;
    }
    let state = state::current()?;
    // Checks the arguments; writes back what else lies in the range.
    let result = raw_call!(libc::SYS_msync, addr, bytes, flags);
    // Of what is not mapped it tells when all the rest is written.
    if result < 0 && result != -libc::ENOMEM as isize {
        return Some(result);
    }
    let mut request = Request::new(Op::Sync);
    (request.a, request.b, request.c) = (addr as u64, bytes as u64, flags as u64);
    Some(ask(state, &request).map_or_else(|errno| errno as isize, |_| result))
}

/// `madvise(2)`: the result if the manager carried it out.
pub(crate) fn madvise(addr: usize, bytes: usize, advice: c_int) -> Option<isize> {
    let concerns = matches!(
        advice,
        libc::MADV_NORMAL
            | libc::MADV_RANDOM
            | libc::MADV_SEQUENTIAL
            | libc::MADV_WILLNEED
            | libc::MADV_FREE
            | libc::MADV_REMOVE
            | libc::MADV_HUGEPAGE
            | libc::MADV_COLLAPSE
            | pagekeeper_wire::MADV_GUARD_INSTALL
    );
    // What a file leaves to the kernel is heap memory's to do.
    let concerns = concerns || heap::used() && advice != libc::MADV_DODUMP;
    // A child that inherited it by the kernel's hand would find zeros in it.
    let concerns = concerns || environment::user_mode_only() && advice == libc::MADV_DOFORK;
    // The kernel says what is wrong with such arguments.
    let page = PAGE_BYTES as usize;
    let usable = addr.is_multiple_of(page) && bytes > 0 && bytes <= isize::MAX as usize;
    if !concerns || !usable || !may_be_managed(addr, bytes) {
        return None;
    }
    let state = state::current()?;
    let ask = || advise_manager(state, addr, bytes.next_multiple_of(page), advice);
    // Of a file's storage an error is what it is.
    let answer = if advice == libc::MADV_REMOVE { ask() } else { heap::between_forks(ask) };
    match answer {
        Ok(0) => None,
        Ok(ADVISE_DONTNEED) => Some(raw_call!(libc::SYS_madvise, addr, bytes, libc::MADV_DONTNEED)),
        Ok(_) => Some(0),
        // Not the kernel's turn then: it would act on the manager's memory.
        Err(errno) => Some(errno as isize),
    }
}

/// `process_madvise(2)`, if it is this process's own memory and some of it may be managed: part by part, as the
/// kernel does it.
pub(crate) fn process_madvise(
    pidfd: c_int,
    parts: &Vectors,
    advice: c_int,
    flags: c_uint,
) -> Option<isize> {
    if !any() {
        return None;
    }
    // What is wrong with such an array the kernel says.
    let parts = parts.get().ok()?;
    let concerns = |part: &iovec| may_be_managed(part.iov_base as usize, part.iov_len);
    if !parts.iter().any(concerns) || !fdinfo::is_own_pidfd(pidfd) {
        return None;
    }
    let plain = |part: &iovec, count: usize| {
        raw_call!(libc::SYS_process_madvise, pidfd, part as *const iovec, count, advice, flags)
    };
    // Which advice may be given so depends on the kernel.
    let refused = plain(&parts[0], 0);
    if refused < 0 {
        return Some(refused);
    }
    let mut done = 0;
    for part in parts {
        let bytes = part.iov_len.min(transfer::BYTES_MAX - done);
        let part = iovec { iov_base: part.iov_base, iov_len: bytes };
        let result = match madvise(part.iov_base as usize, bytes, advice) {
            Some(result) => result,
            None => plain(&part, 1),
        };
        if result < 0 {
            return Some(if done == 0 { result } else { done as isize });
        }
        done += bytes;
    }
    Some(done as isize)
}

/// Takes the mark away that a page may have that could not be had.
#[cold]
pub(crate) fn mend(addr: usize) {
    let page = PAGE_BYTES as usize;
    let start = addr & !(page - 1);
    if !may_be_managed(addr, 1) {
        return;
    }
    let Some(state) = state::current() else { return };
    if advise_manager(state, start, page, pagekeeper_wire::ADVICE_MEND) == Ok(ADVISE_DONTNEED) {
        raw_call!(libc::SYS_madvise, start, page, libc::MADV_DONTNEED);
    }
}

/// What the manager made of an advice: 0 if it is the kernel's to carry out.
pub(crate) fn advise_manager(
    state: &state::State,
    addr: usize,
    bytes: usize,
    advice: c_int,
) -> Result<u64, i32> {
    let mut request = Request::new(Op::Advise);
    (request.a, request.b, request.c) = (addr as u64, bytes as u64, advice as u64);
    ask(state, &request).map(|reply| reply.r0)
}

/// The flag that `mlock2(2)` needs so that nothing managed is brought in at once: under a budget
/// residency is the policy's, and locking a range larger than the budget would only thrash. Ranges
/// without managed memory are locked as asked.
pub(crate) fn lock_on_fault(addr: usize, bytes: usize) -> bool {
    may_be_managed(addr, bytes) && state::current().is_some()
}
