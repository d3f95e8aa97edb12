//! Heap memory: private anonymous mappings of some size are mappings of the manager's memory.
//!
//! As with files, the kernel makes the program's mapping first, and the manager's memory is put in
//! its place. It is mapped shared, so that the manager sees every page, and kept from children by
//! MADV_DONTFORK: a forked child finds its own copy there ([`fork`]).

use crate::link::connection::{ask, ask_for};
use crate::link::{standby, userfault};
use crate::memory::call::{Mmap, Mremap};
use crate::memory::mapping;
use crate::memory::{fork, turns};
use crate::process::state::{self, State};
use crate::raw::{self, SignalsHeld};
use crate::raw_call;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use libc::c_int;
use pagekeeper_wire::{GROW_COPY, GROW_MAY, Op, PAGE_BYTES, Request};

const PAGE: usize = PAGE_BYTES as usize;

/// Least bytes of an allocation that is managed.
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Some memory of this image is, or was.
static USED: AtomicBool = AtomicBool::new(false);
/// From now on allocations of so many bytes are managed.
pub(crate) fn begin(least: usize) {
    LEAST.store(least.max(PAGE), Ordering::Relaxed);
    fork::follow();
}

/// Whether an allocation of so many bytes would be managed.
#[inline(always)]
pub(crate) fn concerns(bytes: usize) -> bool {
    bytes >= LEAST.load(Ordering::Relaxed)
}

/// Whether some memory of this image is managed, or was.
pub(crate) fn used() -> bool {
    USED.load(Ordering::Acquire)
}

/// Private anonymous memory; none if it is to be the kernel's.
pub(crate) fn mmap(call: Mmap) -> Option<isize> {
    /// Memory of a kind that only the kernel has, or that is in use while a process forks.
    const KERNEL_ONLY: c_int =
        libc::MAP_HUGETLB | libc::MAP_GROWSDOWN | libc::MAP_STACK | libc::MAP_LOCKED;
    let private = call.flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    if !concerns(call.bytes)
        || !private
        || call.flags & KERNEL_ONLY != 0
        || call.prot & libc::PROT_EXEC != 0
        || !fork::is_followed()
    {
        return None;
    }
    let state = state::current().filter(|state| state.is_own())?;
    if !userfault::ensure(state) {
        return None;
    }
    let _held = SignalsHeld::new();
    map(state, &call)
}

/// Asks until no other thread forks. The wait is here and not the manager's, since the fork ends by a
/// message, for which a connection must be free.
pub(crate) fn between_forks<T>(ask: impl Fn() -> Result<T, i32>) -> Result<T, i32> {
    loop {
        match ask() {
            Err(errno) if errno == -libc::EAGAIN => raw::pause(),
            answer => return answer,
        }
    }
}

fn map(state: &State, call: &Mmap) -> Option<isize> {
    let bytes = call.bytes.checked_next_multiple_of(PAGE)?;
    let fixed = turns::replaces(call.flags);
    // What it replaces may be a file's mapping that is to be taken over.
    let _changing = fixed.then(standby::changing).flatten();
    let addr = if fixed {
        if !call.addr.is_multiple_of(PAGE) {
            return None;
        }
        call.addr
    } else {
        let trial = Mmap { flags: call.flags & !libc::MAP_POPULATE, ..*call }.plain();
        if trial < 0 {
            return Some(trial);
        }
        trial as usize
    };
    let mut request = Request::new(Op::HeapMap);
    request.a = bytes as u64;
    let answer = between_forks(|| ask_for(state, &request, &[], -1));
    let (offset, memfd) = match answer {
        Ok((reply, memfd)) if reply.r0 == 1 && memfd >= 0 => (reply.r1, memfd),
        answer => {
            if let Ok((reply, _)) = answer
                && reply.r0 == 1
            {
                give_back(state, reply.r1, bytes);
            }
            return (!fixed).then_some(addr as isize);
        }
    };
    let modifiers = call.flags & libc::MAP_NORESERVE;
    let placed = place(state, addr, bytes, offset, memfd, modifiers | libc::MAP_FIXED, call.prot);
    let Err(stop) = placed else { return Some(addr as isize) };
    // What stood there is gone, or half of ours is there.
    let mut plain = call.plain_at(addr);
    if plain < 0 && (stop == Stop::Halfway || !fixed) {
        turns::unmap(addr, bytes);
        if !fixed {
            // There is one mapping less, which may be all that was lacking.
            plain = call.plain();
        }
    }
    give_back(state, offset, bytes);
    Some(plain)
}

/// A range that the manager gave is mapped nowhere.
fn give_back(state: &State, offset: u64, bytes: usize) {
    let mut request = Request::new(Op::HeapGiveBack);
    (request.a, request.b) = (offset, bytes as u64);
    let _ = ask(state, &request);
}

/// Why a range of the heap is not where it should be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It was not mapped.
    Refused,
    /// Something failed when it was, and it, or a part of it, may still be there.
    Halfway,
}

/// Maps a range of the heap, has it watched, and gives it its protection. Closes the memfd.
pub(crate) fn place(
    state: &State,
    addr: usize,
    bytes: usize,
    offset: u64,
    memfd: c_int,
    flags: c_int,
    prot: c_int,
) -> Result<(), Stop> {
    let placed = place_part(state, addr, bytes, offset, memfd, flags, prot);
    raw::close(memfd);
    placed
}

fn place_part(
    state: &State,
    addr: usize,
    bytes: usize,
    offset: u64,
    memfd: c_int,
    flags: c_int,
    prot: c_int,
) -> Result<(), Stop> {
    let flags = flags | libc::MAP_SHARED;
    let mmap = || raw::mmap(addr, bytes, libc::PROT_NONE, flags, memfd, offset as i64);
    let mapped = turns::maps(addr, bytes, flags, mmap);
    if mapped == -libc::EEXIST as isize {
        // A child's: another thread of its parent unmapped some of it in the last moment, and put
        // something else there. The rest is inherited.
        if bytes <= PAGE {
            return Ok(());
        }
        let half = (bytes / 2).next_multiple_of(PAGE);
        place_part(state, addr, half, offset, memfd, flags, prot)?;
        let rest = (addr + half, bytes - half, offset + half as u64);
        return place_part(state, rest.0, rest.1, rest.2, memfd, flags, prot)
            .map_err(|_| Stop::Halfway);
    }
    if mapped < 0 {
        return Err(Stop::Refused);
    }
    if mapped as usize != addr {
        // An old kernel's idea of MAP_FIXED_NOREPLACE.
        turns::unmap(mapped as usize, bytes);
        return Err(Stop::Refused);
    }
    if raw_call!(libc::SYS_madvise, addr, bytes, libc::MADV_DONTFORK) < 0 {
        return Err(Stop::Halfway);
    }
    mapping::widen(addr, bytes);
    USED.store(true, Ordering::Release);
    commit(state, addr, bytes, offset).map_err(|()| Stop::Halfway)?;
    let open = prot == libc::PROT_NONE || raw_call!(libc::SYS_mprotect, addr, bytes, prot) >= 0;
    if open { Ok(()) } else { Err(Stop::Halfway) }
}

fn commit(state: &State, addr: usize, bytes: usize, offset: u64) -> Result<(), ()> {
    let mut request = Request::new(Op::HeapCommit);
    (request.a, request.b, request.c) = (addr as u64, bytes as u64, offset);
    ask(state, &request).map(|_| ()).map_err(|_| ())
}

/// What the manager says about making heap memory longer: a verdict, and what goes with it.
pub(crate) fn grow(state: &State, addr: usize, bytes: usize, wanted: usize) -> (u64, u64) {
    let mut request = Request::new(Op::HeapGrow);
    (request.a, request.b, request.c) = (addr as u64, bytes as u64, wanted as u64);
    between_forks(|| ask(state, &request)).map_or((0, 0), |reply| (reply.r0, reply.r1))
}

/// `mremap(2)` of heap memory; none if it is something else. The kernel's result.
pub(crate) fn mremap(call: &Mremap) -> Option<isize> {
    let Mremap { old, old_bytes, new_bytes, flags, .. } = *call;
    if !used() || !mapping::may_be_managed(old, old_bytes.max(1)) {
        return None;
    }
    let state = state::current().filter(|state| state.is_own())?;
    let usual = old.is_multiple_of(PAGE) && new_bytes > 0;
    let (had, wanted) = (old_bytes.next_multiple_of(PAGE), new_bytes.next_multiple_of(PAGE));
    let _held = SignalsHeld::new();
    let (verdict, detail) = grow(state, old, had, wanted);
    if !usual || (verdict != GROW_MAY && verdict != GROW_COPY) {
        return None;
    }
    if flags & libc::MREMAP_DONTUNMAP != 0 || old_bytes == 0 {
        // Of private memory the kernel would leave zeros, of ours the same pages again.
        return Some(-libc::EINVAL as isize);
    }
    if verdict == GROW_COPY {
        let whole = Mremap { old_bytes: had, new_bytes: wanted, ..*call };
        if !may_be_made(&whole) {
            return Some(-libc::EINVAL as isize);
        }
        return Some(copy(state, &whole, detail as c_int));
    }
    let result = call.plain();
    if result >= 0 && (result as usize != old || wanted > had) {
        mapping::widen(result as usize, wanted);
        let _ = commit(state, result as usize, wanted, detail);
    }
    Some(result)
}

/// Whether the kernel would make such a move of whole pages, before which it changes nothing (mremap(2),
/// EINVAL).
fn may_be_made(call: &Mremap) -> bool {
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let lies_apart = |new: usize| {
        new >= call.old + call.old_bytes
            || new.checked_add(call.new_bytes).is_some_and(|end| end <= call.old)
    };
    call.flags & !known == 0
        && call
            .target()
            .is_none_or(|new| call.may_move() && new.is_multiple_of(PAGE) && lies_apart(new))
}

/// Memory of whole pages, with this access, that cannot grow into what lies behind it in the heap.
fn copy(state: &State, call: &Mremap, prot: c_int) -> isize {
    if !call.may_move() {
        return -libc::ENOMEM as isize;
    }
    let Mremap { old, old_bytes: bytes, new_bytes: wanted, .. } = *call;
    let target = call.target();
    let call = Mmap {
        addr: target.unwrap_or(0),
        bytes: wanted,
        prot: libc::PROT_READ | libc::PROT_WRITE,
        flags: libc::MAP_PRIVATE
            | libc::MAP_ANONYMOUS
            | libc::MAP_NORESERVE
            | if target.is_some() { libc::MAP_FIXED } else { 0 },
        fd: -1,
        offset: 0,
    };
    let to = map(state, &call).unwrap_or_else(|| call.plain());
    if to < 0 {
        return to;
    }
    // What nobody may read is made readable for the copy; it is about to go.
    if prot & libc::PROT_READ == 0 && raw_call!(libc::SYS_mprotect, old, bytes, libc::PROT_READ) < 0
    {
        turns::unmap(to as usize, wanted);
        return -libc::ENOMEM as isize;
    }
    // SAFETY: both ranges are mapped, the old one by the program, and readable by now.
    unsafe {
        core::ptr::copy_nonoverlapping(old as *const u8, to as *mut u8, bytes.min(wanted));
    }
    turns::unmap(old, bytes);
    if prot != libc::PROT_READ | libc::PROT_WRITE {
        raw_call!(libc::SYS_mprotect, to, wanted, prot);
    }
    to
}
