//! Writes to a managed file without the manager.
//!
//! The program's own system call changes the file, as everywhere here. Around it the manager has to
//! leave the file's pages where they are, and afterwards what is in memory of them has to be patched.
//! Both go without a message while nothing happens between memory and storage: this process holds
//! the file's record in a table that it shares with the manager (the protocol is told at
//! [`Overwrite`]), and patches the frames through a mapping of its own ([`crate::writing::frames`]).
//!
//! The first write of a file is made by message, and what is needed for the others is asked for
//! after it.

use crate::descriptors::files::{self, File};
use crate::descriptors::table::{self, Entry};
use crate::link::connection::{ask, ask_with};
use crate::process::state::State;
use crate::raw::{self, SignalsHeld};
use crate::raw_call;
use crate::reading::{direct, guard};
use crate::writing::change;
use crate::writing::frames::Frames;
use core::num::NonZeroU32;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use libc::c_int;
use pagekeeper_wire::{
    CHANGE_OTHER, Op, Overwrite, PAGE_BYTES, Request, SLOT_ACTIVE, SLOT_DIRECT, SLOT_DOUBTED,
    SLOT_MAPPED, SLOT_SHARED, SLOT_TICKS, Slot, overwrite_held_by,
};

/// [`State::number`]: this process may not write to the table.
pub(crate) const REFUSED: u32 = u32::MAX;

/// How long a write waits for who holds the record: for some tens of writes by message. Who writes by message
/// instead keeps others from writing without one, who do so as well, and it would never end.
const WAIT_NS: u64 = 10_000_000;
/// For how long of it the record is looked at again and again. Then the thread sleeps until somebody frees it.
const SPIN_NS: u64 = 500_000;
/// After how long of a sleep it looks once more, should nobody wake it.
const SLEEP_NS: u32 = 2_000_000;

static RECORDS: AtomicPtr<Overwrite> = AtomicPtr::new(core::ptr::null_mut());
static RECORDS_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Whether they can be written to here.
static WRITABLE: AtomicBool = AtomicBool::new(false);

/// A slot's record of the table, once that is mapped.
pub(crate) fn record(slot: u32) -> Option<&'static Overwrite> {
    let records = RECORDS.load(SeqCst);
    if records.is_null() || slot as usize >= RECORDS_COUNT.load(SeqCst) {
        return None;
    }
    // SAFETY: mapped for so many records before the pointer was set, never unmapped, and sealed
    // against being cut off; all fields are atomic.
    Some(unsafe { &*records.add(slot as usize) })
}

/// The stamp that the last overwrite of a slot's file left, or 0 if somebody else may leave the same.
fn left(slot: u32) -> Option<u64> {
    record(slot).map(|record| record.stamp.load(SeqCst))
}

/// The length to which overwrites brought a slot's file, or 0 if the manager knows of it.
#[inline(always)]
pub(crate) fn grown_to(slot: u32) -> u64 {
    record(slot).map_or(0, |record| record.size_bytes.load(SeqCst))
}

/// Whether somebody holds a slot's record who may make the file longer.
pub(crate) fn may_grow(slot: u32) -> bool {
    record(slot)
        .is_some_and(|record| record.state.load(SeqCst) != 0 && record.end.load(SeqCst) == u64::MAX)
}

/// Whether a file's stamp is the one that the manager knows, or that the last write of the run left.
pub(crate) fn is_known_stamp(number: u32, slot: &Slot, stamp: u64) -> bool {
    slot.stamp.load(SeqCst) == stamp || left(number) == Some(stamp)
}

/// Whether the manager knows all that somebody outside wrote before a file had a stamp, as far as can be told:
/// where somebody does, a write of this run does not tell it.
pub(crate) fn is_sure_stamp(number: u32, slot: &Slot, stamp: u64) -> bool {
    // In this order: the manager doubts a time before it tells it.
    let is_told = slot.stamp.load(SeqCst) == stamp;
    match slot.flags.load(SeqCst) & (SLOT_SHARED | SLOT_DOUBTED) {
        0 => is_told || left(number) == Some(stamp),
        flags => is_told && flags & SLOT_DOUBTED == 0,
    }
}

/// Whether a file is as it was when the manager, or a write of this run, looked at it last: nobody
/// outside changed it since.
pub(crate) fn is_as_known(entry: Entry, stat: &libc::stat) -> bool {
    let Some((slot, _)) = table::records(entry) else { return false };
    let (number, size, stamp) = (entry.slot(), stat.st_size as u64, raw::stamp(stat));
    let generation = slot.generation.load(SeqCst);
    let is_same = slot.size_bytes.load(SeqCst) == size && is_sure_stamp(number, slot, stamp);
    let is_grown = slot.flags.load(SeqCst) & (SLOT_SHARED | SLOT_DOUBTED) == 0
        && grown_to(number) == size
        && left(number) == Some(stamp);
    generation.is_multiple_of(2)
        && (is_same || is_grown)
        && slot.generation.load(SeqCst) == generation
        && table::is_current(entry)
}

/// Whether no page of a file has to be written back, as far as this process can know.
pub(crate) fn is_clean(entry: Entry) -> bool {
    is_slot_clean(entry.slot()) && table::is_current(entry)
}

/// The same of a slot, whatever file it is of.
pub(crate) fn is_slot_clean(slot: u32) -> bool {
    record(slot).is_some_and(|record| record.dirty.load(SeqCst) == 0)
}

/// How long a file is while its record is held, as far as nobody outside changes that.
pub(crate) fn length(entry: Entry, slot: &Slot) -> u64 {
    // In this order: the manager clears the one when the other has it.
    let grown_to = grown_to(entry.slot());
    grown_to.max(slot.size_bytes.load(SeqCst))
}

/// The number by which this process may hold records, if it may: it was given one, which is never 0.
fn number_of(state: &State) -> Option<NonZeroU32> {
    NonZeroU32::new(state.number.load(Relaxed)).filter(|number| number.get() != REFUSED)
}

/// Waits until this process `takes` a record, for so long at most; whether it has.
fn waits(record: &Overwrite, wait_ns: u64, takes: impl Fn() -> bool) -> bool {
    let begin_ns = raw::now_ns();
    loop {
        let waited_ns = raw::now_ns() - begin_ns;
        if waited_ns < SPIN_NS {
            raw::yield_now();
        } else {
            // It may be held by who was interrupted, and waits for this processor.
            let seen = record.freed.load(SeqCst);
            record.waiting.store(1, SeqCst);
            if record.state.load(SeqCst) != 0 {
                raw::futex_wait_shared(&record.freed, seen, SLEEP_NS);
            }
        }
        if takes() {
            // Whoever slept does not know whether others do.
            if waited_ns >= SPIN_NS {
                record.waiting.store(1, SeqCst);
            }
            return true;
        }
        if waited_ns >= wait_ns {
            return false;
        }
    }
}

/// A file's record, held by this process.
struct Hold {
    record: &'static Overwrite,
    mine: u64,
}

impl Hold {
    /// Holds a file's record, of all its pages; none if somebody else does, or a change is under way, for
    /// longer than this.
    fn take(state: &State, slot: u32, wait_ns: u64) -> Option<Hold> {
        let number = number_of(state)?;
        let record = record(slot)?;
        let mine = overwrite_held_by(number.get());
        let takes = || record.state.compare_exchange(0, mine, SeqCst, SeqCst).is_ok();
        let is_taken = takes() || wait_ns > 0 && waits(record, wait_ns, takes);
        is_taken.then_some(Hold { record, mine })
    }

    /// The file is like this after a write of this process, and unlike this after a write of anybody else if
    /// its time `is_closed`.
    fn note(&self, after: &libc::stat, slot: &Slot, is_closed: bool) {
        let size = after.st_size as u64;
        if size > slot.size_bytes.load(SeqCst) {
            self.record.size_bytes.store(size, SeqCst);
        }
        self.record.stamp.store(if is_closed { raw::stamp(after) } else { 0 }, SeqCst);
    }

    /// It is about these bytes only.
    fn narrow(&self, offset: u64, bytes: usize) {
        self.record.first.store(offset / PAGE_BYTES, SeqCst);
        self.record.end.store((offset + bytes as u64).div_ceil(PAGE_BYTES), SeqCst);
    }

    /// Gives it back; false if the manager has met it, and waits for a message.
    fn give_back(&self) -> bool {
        // Whoever holds it next has not said yet what it is about.
        self.record.first.store(0, SeqCst);
        self.record.end.store(u64::MAX, SeqCst);
        let is_free = self.record.state.compare_exchange(self.mine, 0, SeqCst, SeqCst).is_ok();
        if is_free && self.record.waiting.swap(0, SeqCst) != 0 {
            self.record.freed.fetch_add(1, SeqCst);
            raw::futex_wake_shared(&self.record.freed);
        }
        is_free
    }

    /// Gives it back with nothing changed.
    fn drop_unused(&self, state: &State, slot: u32) {
        if !self.give_back() {
            leave(state, slot, (0, 0), 0);
        }
    }
}

/// Leaves the end of an overwrite to the manager: at an offset so many bytes changed, which are to be
/// found at an address (0: in storage). False if it did not wait for that.
fn leave(state: &State, slot: u32, changed: change::Range, address: usize) -> bool {
    let mut end = Request::new(Op::ChangeEnd);
    (end.a, end.c, end.d, end.e) = (slot.into(), changed.0, changed.1, address as u64);
    ask(state, &end).is_ok()
}

/// [`Overwrite::moves`], if nothing is in the way of writing to a file, as far as this, while its record is
/// held.
fn settled(entry: Entry, record: &Overwrite, end: u64) -> Option<u64> {
    let (slot, known) = table::records(entry)?;
    // In this order: the manager counts a page in motion first.
    let moves = record.moves.load(SeqCst);
    let flags = slot.flags.load(SeqCst);
    let wanted = SLOT_ACTIVE | SLOT_DIRECT;
    let size = slot.size_bytes.load(SeqCst);
    // Nothing is in memory behind the page in which the length ends that the manager knows. What programs map
    // has to become longer at once; but in that page it is long enough.
    let is_within = end.div_ceil(PAGE_BYTES) == size.div_ceil(PAGE_BYTES);
    let is_settled = record.moving.load(SeqCst) == 0
        && flags & wanted == wanted
        && (end <= size || flags & SLOT_MAPPED == 0 || is_within)
        && slot.generation.load(SeqCst) % 2 == 0
        && table::is_current(entry)
        && known.frames.bytes() >= end.min(size);
    is_settled.then_some(moves)
}

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// To an offset.
    At(i64),
    /// To the end of the file.
    End,
    /// To the descriptor's own offset.
    Own,
}

/// Writes bytes of the program's to a file; `call` makes the system call, at the offset that is given,
/// or where the program said. Gives what came of it, and where it went. None if nothing was done.
/// Signals are held.
pub(crate) fn write(
    file: &File,
    place: Place,
    buffer: usize,
    bytes: usize,
    call: impl Fn(Option<u64>) -> isize,
) -> Option<(isize, u64)> {
    let (slot, known) = table::records(file.entry)?;
    if !known.frames.are_mapped() || !guard::works() || guard::is_blocked() {
        return None;
    }
    let _turn = known.queue.enter(number_of(file.state)?);
    let hold = Hold::take(file.state, file.entry.slot(), WAIT_NS)?;
    // Nobody else under this manager moves the end while the file's record is held.
    let size = length(file.entry, slot);
    let is_shared = place == Place::Own && table::may_be_shared(file.fd);
    let offset = match place {
        Place::At(offset) => u64::try_from(offset).ok(),
        Place::End => Some(size),
        // What is claimed is written, or given back, before anybody else who shares the offset and is
        // managed writes: who came in between would write over its own.
        Place::Own if is_shared => u64::try_from(raw::lseek(file.fd, 0, libc::SEEK_CUR)).ok(),
        Place::Own => direct::claim(file.fd, bytes).ok(),
    };
    let mut claimed = offset.filter(|_| place == Place::Own && !is_shared);
    let begin = |offset: u64| {
        let end = offset.saturating_add(bytes as u64);
        // Who makes it longer has all of it: its length is nobody else's to change meanwhile.
        if end <= slot.size_bytes.load(SeqCst) && !is_shared {
            hold.narrow(offset, bytes);
        }
        Some((offset, settled(file.entry, hold.record, end)?))
    };
    // What somebody outside did before would be taken for this write's doing: the manager looks first.
    let is_known = || {
        let is_so = |stat: libc::stat| is_known_stamp(file.entry.slot(), slot, raw::stamp(&stat));
        // Of a descriptor that is another file's by now, `finish` finds out.
        raw::fstat(file.fd).map_or(true, |stat| !file.is_same(&stat) || is_so(stat))
    };
    let mut begun = offset.and_then(begin).filter(|_| is_known());
    if is_shared && begun.is_some() {
        claimed = direct::claim(file.fd, bytes).ok();
        // Somebody who reads, or is not managed, may have moved it.
        begun = if claimed == offset { begun } else { claimed.and_then(begin) };
    }
    let Some((offset, moves)) = begun else {
        direct::give_back(file.fd, claimed.map_or(0, |_| bytes));
        hold.drop_unused(file.state, file.entry.slot());
        return None;
    };
    let result = call(claimed);
    if let Some(start) = claimed {
        let unwritten = bytes - result.max(0) as usize;
        direct::unclaim(file.fd, start + bytes as u64, unwritten, is_shared);
    }
    if result > 0 {
        let bytes = result as usize;
        let at_end = place == Place::End;
        let written = Written { offset, at_end, size_before: size, buffer, bytes };
        written.finish(file, slot, &known.frames, &hold, moves);
    } else {
        hold.drop_unused(file.state, file.entry.slot());
    }
    // By message it is tried again, when deleted files have made room.
    (!files::is_full(result)).then_some((result, offset))
}

/// What a call wrote while the file's record was held.
struct Written {
    offset: u64,
    /// It was where the file ended.
    at_end: bool,
    /// How long the file was, as far as the run knows.
    size_before: u64,
    buffer: usize,
    bytes: usize,
}

impl Written {
    /// Brings it into memory and gives the record back.
    fn finish(self, file: &File, slot: &Slot, frames: &Frames, hold: &Hold, moves: u64) {
        let number = file.entry.slot();
        let after = match slot.flags.load(SeqCst) & SLOT_TICKS {
            0 => raw::fstat(file.fd).map(|stat| (stat, true)),
            _ => raw::fstat_closed(file.fd, |stat| file.is_same(stat)),
        }
        .ok();
        if after.is_some_and(|(stat, _)| !file.is_same(&stat)) {
            // To the manager it was somebody outside who changed that file.
            hold.drop_unused(file.state, number);
            change::refresh(file.fd);
            return;
        }
        let end = after.map_or(0, |(stat, _)| stat.st_size as u64);
        let mut range = (self.offset, self.bytes as u64);
        // Somebody outside may have made it longer, too, or been there first: then it is the manager that
        // follows, by what storage has.
        let is_alone = end == self.size_before.max(self.offset + range.1);
        if self.at_end && !is_alone {
            range.0 = self.offset.min(end.saturating_sub(range.1));
            range.1 = end - range.0;
        }
        let patched = is_alone
            && self.clear_gap(frames, moves)
            && frames.patch(self.offset, self.buffer, self.bytes, moves);
        if is_alone {
            after.inspect(|(stat, is_closed)| hold.note(stat, slot, *is_closed));
        }
        if patched && hold.give_back() {
            return;
        }
        let is_where_it_was_to_be = patched || !self.at_end;
        let address = if is_where_it_was_to_be { self.buffer } else { 0 };
        if !leave(file.state, number, range, address) {
            // The manager took this process for dead. What is cached is read anew.
            change::bracket(file, range, CHANGE_OTHER, || 0);
        }
    }

    /// Makes zeros of what lies between the end that the file had and what was written behind it, of the page
    /// in which it ended: a mapping may have stored there. False if that could not be had.
    fn clear_gap(&self, frames: &Frames, moves: u64) -> bool {
        const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];
        let end = self.offset.min(self.size_before.next_multiple_of(PAGE_BYTES));
        let gap = end.saturating_sub(self.size_before) as usize;
        gap == 0 || frames.patch(self.size_before, ZEROS.as_ptr() as usize, gap, moves)
    }
}

/// Sees to it that the next write inside a file can be made without a message, if it may.
pub(crate) fn offer(file: &File) {
    let Some((slot, known)) = table::records(file.entry) else { return };
    let size = slot.size_bytes.load(SeqCst);
    let is_mapped = known.frames.bytes() >= size;
    // A forked child has its parent's mapping, and a number of its own to ask for.
    let is_done = is_mapped && file.state.number.load(Relaxed) != 0;
    if is_done || slot.flags.load(SeqCst) & SLOT_DIRECT == 0 {
        return;
    }
    if !guard::install(file.state) || !introduce(file.state) || is_mapped {
        return;
    }
    // Other threads have it then, too.
    let _held = SignalsHeld::new();
    let Some(number) = number_of(file.state) else { return };
    let _turn = known.queue.enter(number);
    if known.frames.bytes() >= size {
        return;
    }
    // Address space costs nothing, and files that are written to grow.
    let bytes = direct::with_room(2 * size);
    let Ok((_, memfd)) = ask_with(file.state, &file.request(Op::Frames), &[], -1) else { return };
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    let base = raw::map(bytes, prot, flags, memfd, 0);
    let owner = raw::fstat(memfd).map(|stat| stat.st_uid);
    raw::close(memfd);
    let (Ok(owner), true) = (owner, base >= 0) else { return };
    let base = base as usize;
    raw_call!(libc::SYS_madvise, base, bytes, libc::MADV_DONTDUMP);
    match Hold::take(file.state, file.entry.slot(), WAIT_NS) {
        Some(hold) => {
            if table::is_current(file.entry) {
                known.frames.are_of(owner);
                known.frames.set(base, bytes);
            } else {
                raw::munmap(base, bytes);
            }
            hold.drop_unused(file.state, file.entry.slot());
        }
        // Another write is under way: the next one tries again.
        None => raw::munmap(base, bytes),
    }
}

/// The last descriptor of a file was closed.
pub(crate) fn close(state: &State, entry: Entry) {
    let Some(known) = table::slot_file(entry.slot()) else { return };
    if !known.frames.are_mapped() {
        return;
    }
    let _held = SignalsHeld::new();
    // Who holds it may be storing there; then it stays.
    if let Some(hold) = Hold::take(state, entry.slot(), 0) {
        known.frames.unmap();
        hold.drop_unused(state, entry.slot());
    }
}

/// Sees to it that this process can look into the table, which tells of lengths that the manager may
/// not know; false if it cannot.
pub(crate) fn can_look(state: &State) -> bool {
    let is_mapped = || !RECORDS.load(SeqCst).is_null();
    // A forked child has its parent's mapping.
    is_mapped() || {
        introduce(state);
        is_mapped()
    }
}

/// Asks, until there is an answer, for the table of overwrites and for this process's number in it;
/// false if it may not write there.
fn introduce(state: &State) -> bool {
    if state.number.load(Relaxed) == 0 {
        let _held = SignalsHeld::new();
        let _lock = state.set_up.lock();
        match ask_with(state, &Request::new(Op::Overwrites), &[], -1) {
            Ok((reply, fd)) => {
                let number = reply.r1 as u32;
                let adopted = reply.r0 != 0 && adopt(fd, reply.r0 as usize, number != 0);
                raw::close(fd);
                let may_write = adopted && number != 0 && WRITABLE.load(SeqCst);
                state.number.store(if may_write { number } else { REFUSED }, Relaxed);
            }
            // No descriptor was to be had: the next write asks again.
            Err(errno) if matches!(-errno, libc::EMFILE | libc::EIO) => {}
            Err(_) => state.number.store(REFUSED, Relaxed),
        }
    }
    !matches!(state.number.load(Relaxed), 0 | REFUSED)
}

/// Maps the table, once: a forked child has its parent's mapping.
fn adopt(fd: c_int, records: usize, writable: bool) -> bool {
    if !RECORDS.load(SeqCst).is_null() {
        return true;
    }
    let bytes = records * size_of::<Overwrite>();
    let prot = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    let addr = raw::map(bytes, prot, libc::MAP_SHARED | libc::MAP_NORESERVE, fd, 0);
    if addr < 0 {
        return false;
    }
    WRITABLE.store(writable, SeqCst);
    RECORDS_COUNT.store(records, SeqCst);
    RECORDS.store(addr as *mut Overwrite, SeqCst);
    true
}
