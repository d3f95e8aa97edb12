//! Reads of cached data without the manager: a copy from a mapping of the whole file.
//!
//! The first read of a managed file maps it, for this library alone: privately, without write
//! access, watched by the manager like every other mapping. From then on a read inside the file is
//! a check of its length and a copy; where the content is, the memory management unit finds out. A
//! page that is not in memory is a fault that the manager serves. (M. Braunstein, M. Riley and
//! J. Wilkes, "Improving the efficiency of UNIX file buffer caches", SOSP 1989, section 3.)
//!
//! The manager's table of slots says how long the file is, and that nothing moved while a copy was
//! made. Whatever is unusual (a page that cannot be had, a bad buffer, a truncation meanwhile) is
//! found out by a message, which gives the kernel's answer.
//!
//! A mapping stays when the program closes the file; of files that are not open, the
//! [`IDLE_MAX`] closed last keep theirs.

use crate::descriptors::files::File;
use crate::descriptors::table::{self, Entry, SlotFile};
use crate::link::connection::ask_with;
use crate::link::userfault;
use crate::memory::call::Mmap;
use crate::memory::mapping::{self, Owner};
use crate::memory::turns;
use crate::process::state;
use crate::raw::{self, SignalsHeld};
use crate::raw_call;
use crate::reading::guard;
use crate::reading::transfer::BYTES_MAX;
use crate::writing::overwrite;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use libc::{c_int, iovec};
use pagekeeper_wire::{Op, PAGE_BYTES, SLOT_DIRECT, Slot};

/// Mappings of files that this process does not have open.
const IDLE_MAX: usize = 64;
/// Room for growth, beside an eighth of the file.
const SPARE_BYTES: u64 = 256 << 10;

/// [`SlotFile::mapped`]: the manager does not want this file mapped.
const REFUSED: u32 = 1 << 31;
/// So often a small file is read whole, in one call each, before it is mapped: a mapping costs two
/// messages and faults, and the process's first one two more, while such a read costs one message.
const WHOLE_READS: u32 = 8;
/// Of a larger one the second such read is from a mapping, which copies once and not twice.
const SMALL_BYTES: u64 = 64 << 10;

/// Idle mappings, the one closed first in front; 0 marks the end. Changed with
/// [`state::State::mapping`] held.
static IDLE: [AtomicU32; IDLE_MAX] = [const { AtomicU32::new(0) }; IDLE_MAX];
/// One above the highest slot whose file was ever mapped so.
static VIEWED_SLOTS: AtomicU32 = AtomicU32::new(0);
/// Where the last read through each shared offset ended; far behind every file if that is not known.
static ENDS: [AtomicU64; state::OFFSET_LOCKS] =
    [const { AtomicU64::new(u64::MAX) }; state::OFFSET_LOCKS];

/// A file's mapping, its length, and how to notice that either changed.
struct Window {
    entry: Entry,
    slot: &'static Slot,
    file: &'static SlotFile,
    base: usize,
    bytes: u64,
    size: u64,
    /// As far as the manager knows it: this process's writes may have made the file longer.
    known_size: u64,
    stamp: u32,
    generation: u32,
}

impl Window {
    #[inline(always)]
    fn open(entry: Entry) -> Option<Window> {
        let (slot, file) = table::records(entry)?;
        let stamp = file.stamp.load(Ordering::Acquire);
        let base = file.base.load(Ordering::Acquire);
        if base == 0 || !guard::works() || !state::is_ready() || guard::is_blocked() {
            return None;
        }
        let generation = slot.generation.load(Ordering::Acquire);
        if generation % 2 == 1 {
            return None;
        }
        let bytes = file.bytes.load(Ordering::Acquire) as u64;
        // In this order: the manager clears the one when the other has it.
        let grown_to = overwrite::grown_to(entry.slot());
        let known_size = slot.size_bytes.load(Ordering::Acquire);
        let size = known_size.max(grown_to);
        // Last: as long as the file had its slot all of this was the file's.
        if !table::is_current(entry) {
            return None;
        }
        Some(Window { entry, slot, file, base, bytes, size, known_size, stamp, generation })
    }

    /// Whether what was copied was the file's.
    #[inline(always)]
    fn held(&self) -> bool {
        fence(Ordering::Acquire);
        self.slot.generation.load(Ordering::Relaxed) == self.generation
            && self.file.stamp.load(Ordering::Relaxed) == self.stamp
    }

    /// Whether pages had to be fetched since this was asked last. Then the next read goes by
    /// message: the policy sees its reference, and what a large one lacks is fetched at once. So a
    /// program that misses pays for one message a miss, and one that does not, for none.
    #[inline(always)]
    fn is_cold(&self) -> bool {
        let now = self.slot.misses.load(Ordering::Relaxed);
        let cold = self.file.misses.load(Ordering::Relaxed) != now;
        if cold {
            self.file.misses.store(now, Ordering::Relaxed);
        }
        cold
    }

    /// Whether somebody makes the file longer, or did since its length was looked at. The kernel tells the
    /// new length before we do, and who asked for that reads as far.
    #[cold]
    fn may_be_longer(&self, fd: c_int) -> bool {
        overwrite::may_grow(self.entry.slot())
            || overwrite::length(self.entry, self.slot) != self.size
            || raw::fstat(fd).is_ok_and(|stat| stat.st_size as u64 > self.size)
    }

    /// Copies file content from an offset; the bytes copied, up to `limit` and the end of the file.
    #[inline(always)]
    fn copy(&self, fd: c_int, iov: &[iovec], offset: u64, limit: usize) -> Option<usize> {
        let want = (self.size.saturating_sub(offset)).min(limit as u64) as usize;
        if want < limit && self.may_be_longer(fd) {
            return None;
        }
        if want == 0 {
            return (is_place(offset as i64, limit) && self.held()).then_some(0);
        }
        let reach = self.bytes.min(self.known_size);
        if offset.saturating_add(want as u64) > reach || self.is_cold() {
            return None;
        }
        let mut done = 0;
        for part in iov {
            let bytes = part.iov_len.min(want - done);
            let from = self.base + offset as usize + done;
            if !guard::copy(part.iov_base as usize, from, bytes) {
                self.mend(from, bytes);
                return None;
            }
            done += bytes;
            if done == want {
                break;
            }
        }
        self.held().then_some(want)
    }

    /// Behind which byte of a range of the file a page is absent first.
    fn resident(&self, offset: u64, end: u64) -> u64 {
        /// Pages that are looked up in one call.
        const ONCE: usize = 256;
        let page = PAGE_BYTES;
        let (mut at, last) = (offset / page * page, end.next_multiple_of(page));
        while at < last {
            let mut are_there = [0u8; ONCE];
            let once = (last - at).min(ONCE as u64 * page);
            let start = self.base as u64 + at;
            let result = raw_call!(libc::SYS_mincore, start, once, are_there.as_mut_ptr());
            let looked = &are_there[..(once / page) as usize];
            let absent = |there: &u8| result < 0 || there & 1 == 0;
            if let Some(first) = looked.iter().position(absent) {
                return (at + first as u64 * page).max(offset);
            }
            at += once;
        }
        end
    }

    /// A page may be marked as unreadable here: storage is asked anew at the next touch.
    fn mend(&self, from: usize, bytes: usize) {
        let page = PAGE_BYTES as usize;
        let start = from & !(page - 1);
        if self.held() {
            let _held = SignalsHeld::new();
            let _lock = state::current().map(|state| state.mapping.lock());
            if self.held() {
                let end = (from + bytes).next_multiple_of(page);
                raw_call!(libc::SYS_madvise, start, end - start, libc::MADV_DONTNEED);
            }
        }
    }
}

/// Bytes that a call asks for.
#[inline(always)]
pub(crate) fn total(iov: &[iovec]) -> usize {
    iov.iter().fold(0usize, |sum, part| sum.saturating_add(part.iov_len)).min(BYTES_MAX)
}

/// Whether so many bytes can be at an offset of any file: elsewhere a call is EINVAL.
pub(crate) fn is_place(offset: i64, bytes: usize) -> bool {
    offset >= 0 && offset.checked_add_unsigned(bytes as u64).is_some()
}

/// A read at an offset of a descriptor. None if it has to be made in another way.
#[inline(always)]
pub(crate) fn read_at(
    fd: c_int,
    entry: Entry,
    iov: &[iovec],
    offset: u64,
    limit: usize,
) -> Option<usize> {
    if limit == 0 { None } else { Window::open(entry)?.copy(fd, iov, offset, limit) }
}

/// How much of a read at an offset is in memory, from its start on, as far as can be told without waiting.
pub(crate) enum AtHand {
    /// All that there is of it in the file.
    All,
    /// So many bytes, which may be none; the rest is asked for.
    Some(usize),
    /// That cannot be told of this file.
    Unknown,
}

/// Looks how much of a read is at hand, and has what is not fetched by somebody else.
pub(crate) fn at_hand(file: &File, offset: u64, bytes: usize) -> AtHand {
    if raw::fstat(file.fd).is_ok_and(|stat| stat.st_size as u64 <= offset) {
        return AtHand::All;
    }
    // Where it is mapped is looked at.
    offer(file, 0);
    let Some(window) = Window::open(file.entry) else {
        let is_mapped = |(_, known): (_, &SlotFile)| known.base.load(Ordering::Acquire) != 0;
        let can_be = guard::works() && !guard::is_blocked();
        return match can_be && table::records(file.entry).is_some_and(is_mapped) {
            // Its length is being changed.
            true => AtHand::Some(0),
            false => AtHand::Unknown,
        };
    };
    let end = offset.saturating_add(bytes as u64).min(window.size);
    if offset >= end {
        return AtHand::All;
    }
    let there = window.resident(offset, end.min(window.bytes));
    if !window.held() {
        return AtHand::Some(0);
    }
    if there >= end {
        return AtHand::All;
    }
    let page = PAGE_BYTES;
    let (from, until) = (there / page * page, end.min(window.bytes).next_multiple_of(page));
    if from < until {
        let (addr, bytes) = (window.base + from as usize, (until - from) as usize);
        let _ = mapping::advise_manager(file.state, addr, bytes, libc::MADV_WILLNEED);
    }
    AtHand::Some(there.saturating_sub(offset) as usize)
}

/// How a read through the descriptor's own offset went.
pub(crate) enum Claimed {
    /// So many bytes are read.
    Read(usize),
    /// The offset was moved over so many bytes from here; they are still to be read, with signals held.
    Unread(u64, usize, SignalsHeld),
}

/// A read through the descriptor's own offset. None if nothing was done.
///
/// Bytes are copied from where the offset is taken to be, and then claimed by moving it over them: a
/// signal's handler that never returns (`siglongjmp(3)`) leaves the offset where it was, or what was read
/// is there. The offset is moved in one step, so that those who share it (threads, processes) each get
/// bytes of their own, without a lock: who was not the first reads what fell to it.
pub(crate) fn read(fd: c_int, entry: Entry, iov: &[iovec]) -> Option<Claimed> {
    let want = total(iov);
    let window = if want == 0 { return None } else { Window::open(entry)? };
    let (mut start, mut claim) = (ENDS[entry.lock_index()].load(Ordering::Relaxed), want);
    if start.saturating_add(want as u64) > window.size {
        // Near the end no more is claimed than there is.
        start = u64::try_from(raw::lseek(fd, 0, libc::SEEK_CUR)).ok()?;
        claim = (window.size.saturating_sub(start)).min(want as u64) as usize;
        if claim < want && window.may_be_longer(fd) {
            return None;
        }
        if claim == 0 {
            return window.held().then_some(Claimed::Read(0));
        }
    }
    let is_copied = window.copy(fd, iov, start, claim) == Some(claim);
    // What is not at hand is asked for, which no handler is to leave half done.
    let held = (!is_copied).then(SignalsHeld::new);
    let claimed = self::claim(fd, claim).ok()?;
    if !table::is_still(fd, entry) {
        // It was replaced meanwhile, and that is the other file's offset.
        give_back(fd, claim);
        return None;
    }
    if claimed == start && is_copied {
        return Some(Claimed::Read(claim));
    }
    let held = held.unwrap_or_else(SignalsHeld::new);
    if claimed != start {
        // Somebody else moves it, too, who is not seen here.
        moved(fd, None);
        if let Some(done) = window.copy(fd, iov, claimed, claim) {
            give_back(fd, claim - done);
            return Some(Claimed::Read(done));
        }
    }
    Some(Claimed::Unread(claimed, claim, held))
}

/// A descriptor's offset was moved, to here if that is known.
#[inline]
pub(crate) fn moved(fd: c_int, offset: Option<u64>) {
    if let Some(lock) = table::lock_index(fd) {
        ENDS[lock].store(offset.unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Claims bytes behind the descriptor's offset, to be read or written: where they begin. A negated errno
/// beyond what a file can be, or if it is no file.
pub(crate) fn claim(fd: c_int, bytes: usize) -> Result<u64, isize> {
    let after = raw::lseek(fd, bytes as i64, libc::SEEK_CUR);
    if after < 0 {
        return Err(after as isize);
    }
    moved(fd, Some(after as u64));
    Ok(after as u64 - bytes as u64)
}

/// Moves the descriptor's offset back to where what was written ends, if less than was claimed up to
/// `end`. Nobody else who is managed and writes claims anything meanwhile. If the offset is shared with
/// somebody who did, what that one wrote there is not to be written over: the offset stays.
pub(crate) fn unclaim(fd: c_int, end: u64, unwritten: usize, is_shared: bool) {
    if unwritten > 0 && (!is_shared || raw::lseek(fd, 0, libc::SEEK_CUR) as u64 == end) {
        give_back(fd, unwritten);
    }
}

/// Moves the descriptor's offset back over bytes that were claimed and not read.
pub(crate) fn give_back(fd: c_int, bytes: usize) {
    if bytes > 0 {
        raw::lseek(fd, -(bytes as i64), libc::SEEK_CUR);
        moved(fd, None);
    }
}

/// Sees to it that a file of which so many bytes are being read is mapped, and far enough, if it is
/// to be. What is read whole in one call is not, the first times: a compiler reads a header once.
pub(crate) fn offer(file: &File, bytes: usize) {
    let Some((slot, record)) = table::records(file.entry) else { return };
    if slot.flags.load(Ordering::Acquire) & SLOT_DIRECT == 0
        || record.mapped.load(Ordering::Relaxed) >= REFUSED
    {
        return;
    }
    let size = slot.size_bytes.load(Ordering::Acquire);
    if record.bytes.load(Ordering::Acquire) as u64 >= size {
        return;
    }
    let patience = if size <= SMALL_BYTES { WHOLE_READS } else { 1 };
    if bytes as u64 >= size && record.mapped.fetch_add(1, Ordering::Relaxed) < patience {
        return;
    }
    let can_be = userfault::ensure(file.state) && guard::install(file.state);
    if !can_be || !overwrite::can_look(file.state) {
        return;
    }
    let _held = SignalsHeld::new();
    let _lock = file.state.mapping.lock();
    if record.bytes.load(Ordering::Acquire) as u64 >= size {
        return;
    }
    let bytes = with_room(size);
    let made = map(file, bytes);
    drop_mapping(record);
    match made {
        Ok(Some(base)) => {
            VIEWED_SLOTS.fetch_max(file.entry.slot() + 1, Ordering::Relaxed);
            set_mapping(record, base, bytes);
        }
        Ok(None) => record.mapped.store(REFUSED, Ordering::Relaxed),
        // No descriptor was to be had: another read tries again.
        Err(()) => {}
    }
}

/// How much of a file of this size is mapped.
pub(crate) fn with_room(size: u64) -> usize {
    (size + size / 8 + SPARE_BYTES).next_multiple_of(PAGE_BYTES) as usize
}

/// Counts a read that was made with the first message of a descriptor, if it was of the whole file.
pub(crate) fn count_whole_read(entry: Entry, bytes: usize) {
    if let Some((slot, record)) = table::records(entry)
        && bytes as u64 >= slot.size_bytes.load(Ordering::Acquire)
    {
        record.mapped.fetch_add(1, Ordering::Relaxed);
    }
}

fn map(file: &File, bytes: usize) -> Result<Option<usize>, ()> {
    let mut request = file.request(Op::MapPrepare);
    // As if the descriptor could not write: the manager's memory is mapped for reading only.
    (request.c, request.d) = (bytes as u64, libc::PROT_READ as u64);
    request.e = libc::MAP_SHARED as u64;
    let (reply, memfd) = match ask_with(file.state, &request, &[], file.fd) {
        Ok(answer) => answer,
        Err(errno) if matches!(-errno, libc::EMFILE | libc::EIO) => return Err(()),
        Err(_) => return Ok(None),
    };
    if reply.r0 == 0 || memfd < 0 {
        raw::close(memfd);
        return Ok(None);
    }
    let flags = reply.r1 as c_int | libc::MAP_NORESERVE;
    let addr = raw::map(bytes, libc::PROT_NONE, flags, memfd, 0);
    raw::close(memfd);
    if addr < 0 {
        return Ok(None);
    }
    let addr = addr as usize;
    let (prot, flags) = (libc::PROT_READ, libc::MAP_SHARED);
    let made = Mmap { addr, bytes, prot, flags, fd: file.fd, offset: 0 };
    if mapping::commit(file.state, file.slot(), &made, Owner::Library).is_err() {
        turns::unmap(addr, bytes);
        return Ok(None);
    }
    raw_call!(libc::SYS_madvise, addr, bytes, libc::MADV_DONTDUMP);
    Ok(Some(addr))
}

/// Where a file is mapped from now on; 0 and 0: nowhere, that anybody here would know of.
fn set_mapping(record: &SlotFile, base: usize, bytes: usize) {
    record.bytes.store(bytes, Ordering::Release);
    record.base.store(base, Ordering::Release);
    record.stamp.fetch_add(1, Ordering::SeqCst);
}

/// This is a forked child, and the kernel gave it none of the mappings: what is at their addresses may be
/// anybody's by now, or soon.
pub(crate) fn forget_all() {
    for record in (0..VIEWED_SLOTS.load(Ordering::Relaxed)).filter_map(table::slot_file) {
        set_mapping(record, 0, 0);
    }
}

/// It was given one.
pub(crate) fn inherited(slot: u64, base: usize, bytes: usize) {
    if let Some(record) = table::slot_file(slot as u32) {
        set_mapping(record, base, bytes);
    }
}

/// Takes a file's mapping away. Whoever copies from it notices.
fn drop_mapping(record: &SlotFile) {
    let base = record.base.swap(0, Ordering::SeqCst);
    let bytes = record.bytes.swap(0, Ordering::SeqCst);
    record.stamp.fetch_add(1, Ordering::SeqCst);
    if base != 0 {
        turns::unmap(base, bytes);
    }
}

/// The last descriptor of a file was closed: its mapping is kept for a while.
pub(crate) fn idle(state: &state::State, entry: Entry) {
    overwrite::close(state, entry);
    let has_mapping =
        |slot: u32| table::slot_file(slot).filter(|file| file.base.load(Ordering::Relaxed) != 0);
    let slot = entry.slot();
    if has_mapping(slot).is_none() {
        return;
    }
    let _held = SignalsHeld::new();
    let _lock = state.mapping.lock();
    let mut kept = [0u32; IDLE_MAX + 1];
    let mut count = 0;
    for known in IDLE.iter().map(|known| known.load(Ordering::Relaxed)) {
        let Some(file) = known.checked_sub(1).and_then(has_mapping) else { continue };
        if !table::is_present(known - 1, file) {
            // The manager let go of it, and keeps its slot until this mapping is gone.
            drop_mapping(file);
            continue;
        }
        // Those that are open again are not idle.
        if known != slot + 1 && file.descriptors.load(Ordering::Relaxed) == 0 {
            kept[count] = known;
            count += 1;
        }
    }
    kept[count] = slot + 1;
    count += 1;
    let mut first = 0;
    if count > IDLE_MAX {
        if let Some(file) = has_mapping(kept[0] - 1) {
            drop_mapping(file);
        }
        first = 1;
    }
    for (i, known) in IDLE.iter().enumerate() {
        known.store(if first + i < count { kept[first + i] } else { 0 }, Ordering::Relaxed);
    }
}
