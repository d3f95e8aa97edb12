//! What locks protect that lies in other files (`FILE.lock` beside `FILE`).
//!
//! Which ones, nobody says. So before a lock is given up, what is dirty of all managed files that this process
//! has open or mapped is written back; and whoever takes one sees what somebody outside wrote to any of them.
//! A process that has none does what it did.
//!
//! A lock goes with the last descriptor of those that came from one another, whoever took it by which; one by
//! `fcntl`, with any descriptor of the file. Whether one has a lock the kernel says. It is asked where
//! something is dirty, of descriptors that others may have, and of those of files that this process locked.

use crate::descriptors::fdinfo;
use crate::descriptors::table::{self, Entry};
use crate::link::connection::ask;
use crate::memory::mapping;
use crate::process::state::{self, State, View};
use crate::raw;
use crate::writing::{change, delayed, overwrite};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use libc::c_int;
use pagekeeper_wire::{Op, Request};

/// Descriptors that others may have, too: all, from a moment in which others may have got some until each is
/// closed. Such a moment is the beginning: who executed this program has what it came with.
static SHARED: Descriptors = Descriptors([const { AtomicU64::new(u64::MAX) }; 16]);
/// Descriptors by which this process took a lock, and which are of [`FILES`].
static TAKEN: Descriptors = Descriptors([const { AtomicU64::new(0) }; 16]);
/// Files that this process locked at some time: a bit for each, by its number, which others may have, too.
static FILES: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// Whether there are any.
static ANY_FILE: AtomicBool = AtomicBool::new(false);
/// Slots that were mapped here, one more than each; and whether there were more.
static MAPPED: [AtomicU32; 32] = [const { AtomicU32::new(0) }; 32];
static MAPPED_MORE: AtomicBool = AtomicBool::new(false);
/// One above the highest of all.
static MAPPED_SLOTS: AtomicU32 = AtomicU32::new(0);

/// A set of low descriptors.
struct Descriptors([AtomicU64; 16]);

impl Descriptors {
    /// Where it is kept; none of a high one.
    #[inline(always)]
    fn place(&self, fd: c_int) -> Option<(&AtomicU64, u64)> {
        Some((self.0.get(fd as usize / 64)?, 1 << (fd as usize % 64)))
    }

    /// None of a high one: nobody knows.
    #[inline(always)]
    fn has(&self, fd: c_int) -> Option<bool> {
        self.place(fd).map(|(word, bit)| word.load(Relaxed) & bit != 0)
    }

    fn add(&self, fd: c_int) {
        self.place(fd).map(|(word, bit)| word.fetch_or(bit, Relaxed));
    }

    fn remove(&self, fd: c_int) {
        self.place(fd).map(|(word, bit)| word.fetch_and(!bit, Relaxed));
    }
}

/// The program mapped a slot's file.
pub(crate) fn mapped(slot: u64) {
    let slot = slot as u32;
    let Some(known) = table::slot_file(slot).filter(|known| known.mapped_here.load(Relaxed) == 0)
    else {
        return;
    };
    let is_its = |place: &AtomicU32| {
        let was = place.compare_exchange(0, slot + 1, Relaxed, Relaxed);
        was.is_ok() || was == Err(slot + 1)
    };
    MAPPED_SLOTS.fetch_max(slot + 1, Relaxed);
    if !MAPPED.iter().any(is_its) {
        MAPPED_MORE.store(true, Relaxed);
    }
    known.mapped_here.store(1, Relaxed);
}

/// Others may have all descriptors from now on.
pub(crate) fn share_all() {
    SHARED.0.iter().for_each(|word| word.store(u64::MAX, Relaxed));
}

/// A descriptor came from elsewhere: with a lock on it, what was stored under that is to be seen.
pub(crate) fn came(fd: c_int) {
    SHARED.add(fd);
    if concerns_any() && may_have_lock(fd, true) && fdinfo::is_locked(fd) {
        see_all(None);
    }
}

/// A descriptor was there when this program began, perhaps with a lock of this process's.
pub(crate) fn inherited(fd: c_int) {
    if raw::fstat(fd).is_ok_and(|stat| can_be_locked(&stat)) && fdinfo::is_locked(fd) {
        taken(fd);
    }
}

/// A descriptor has a lock that another has.
#[inline(always)]
pub(crate) fn duplicated(old: c_int, new: c_int) {
    if new >= 0 && may_be_shared(old) {
        SHARED.add(new);
    }
}

#[inline(always)]
fn may_be_shared(fd: c_int) -> bool {
    SHARED.has(fd).unwrap_or(true)
}

/// A lock was taken by this descriptor.
pub(crate) fn taken(fd: c_int) {
    if is_taken(fd) {
        return;
    }
    let Ok(stat) = raw::fstat(fd) else { return };
    let (word, bit) = place_of_file(&stat);
    word.fetch_or(bit, Relaxed);
    ANY_FILE.store(true, Relaxed);
    TAKEN.add(fd);
}

/// Whether it is known that a lock was taken by this descriptor at some time.
pub(crate) fn is_taken(fd: c_int) -> bool {
    TAKEN.has(fd) == Some(true)
}

/// Where it is noted that a file was locked.
fn place_of_file(stat: &libc::stat) -> (&'static AtomicU64, u64) {
    /// 2⁶⁴ divided by the golden ratio: numbers that follow each other lie far apart.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let number = stat.st_ino ^ stat.st_dev.rotate_left(40);
    let at = number.wrapping_mul(SPREAD) >> (64 - 12);
    (&FILES[at as usize / 64], 1 << (at % 64))
}

/// A descriptor is about to be closed, and perhaps a lock with it.
#[inline(always)]
pub(crate) fn before_close(fd: c_int) {
    if ANY_FILE.load(Relaxed) || may_be_shared(fd) {
        before_close_of_any(fd);
    }
}

#[cold]
fn before_close_of_any(fd: c_int) {
    if is_borrowed() {
        return;
    }
    let may_be_others = may_be_shared(fd);
    SHARED.remove(fd);
    TAKEN.remove(fd);
    if concerns_any() && any_dirty() && has_lock(fd, may_be_others) {
        write_back_all();
    }
}

/// Whether a lock goes with a descriptor; also if nobody can say.
fn has_lock(fd: c_int, may_be_others: bool) -> bool {
    may_have_lock(fd, may_be_others) && (fdinfo::is_locked(fd) || is_locked_by_another(fd))
}

/// Whether to ask: `may_be_others` where others may have locked it.
fn may_have_lock(fd: c_int, may_be_others: bool) -> bool {
    let Ok(stat) = raw::fstat(fd) else { return false };
    let (word, bit) = place_of_file(&stat);
    can_be_locked(&stat) && (may_be_others || word.load(Relaxed) & bit != 0)
}

/// Whether a file has a lock by `fcntl` of somebody else than this descriptor: it may be this process's, by
/// another descriptor, which this one does not show.
fn is_locked_by_another(fd: c_int) -> bool {
    // SAFETY: all zero is valid, and means all of the file.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    let asked = raw::fcntl(fd, libc::F_OFD_GETLK, (&raw mut lock).addr());
    asked < 0 || c_int::from(lock.l_type) != libc::F_UNLCK
}

fn can_be_locked(stat: &libc::stat) -> bool {
    !matches!(stat.st_mode & libc::S_IFMT, libc::S_IFSOCK | libc::S_IFIFO)
}

/// The same of a range of descriptors (both ends included).
pub(crate) fn before_close_range(first: u32, last: u32) {
    if is_borrowed() {
        return;
    }
    let range = first..=last;
    before_locks_go(|fd| range.contains(&(fd as u32)) && has_lock(fd, true));
    // Whoever gets one of these numbers next may lock it.
    if ANY_FILE.load(Relaxed) {
        let last = last.min(64 * TAKEN.0.len() as u32 - 1);
        (first..=last).for_each(|fd| TAKEN.remove(fd as c_int));
    }
}

/// The program is about to end, or to be another.
pub(crate) fn before_end() {
    if !is_borrowed() {
        // Each by the descriptor that has it.
        before_locks_go(|fd| may_have_lock(fd, true) && fdinfo::is_locked(fd));
    }
}

/// The locks of open descriptors that `have` names are about to be given up.
fn before_locks_go(have: impl FnMut(c_int) -> bool) {
    if concerns_any() && any_dirty() && fdinfo::any_open(have) {
        write_back_all();
    }
}

/// Whether this is a vfork child, whose descriptors are its own, and whose memory is its parent's.
fn is_borrowed() -> bool {
    matches!(state::view(), View::Foreign)
}

/// Whether this process has managed files.
pub(crate) fn concerns_any() -> bool {
    mapping::any() || table::any_active()
}

/// Each managed file that is open here, by one of its descriptors.
fn open_ones() -> impl Iterator<Item = (c_int, Entry)> {
    let mut last = None;
    table::entries(0, u32::MAX).filter(move |(_, entry)| {
        let is_next = last != Some(entry.slot());
        last = Some(entry.slot());
        is_next && table::is_active(*entry)
    })
}

/// Slots of files that are mapped here, and not open.
fn mapped_only() -> impl Iterator<Item = u32> {
    let is_it = |slot: &u32| {
        table::slot_file(*slot).is_some_and(|known| {
            known.mapped_here.load(Relaxed) != 0
                && known.descriptors.load(Relaxed) == 0
                && table::is_present(*slot, known)
        })
    };
    let has_more = MAPPED_MORE.load(Relaxed);
    let every = 0..if has_more { MAPPED_SLOTS.load(Relaxed) } else { 0 };
    let few = MAPPED.iter().map(|place| place.load(Relaxed)).take_while(|slot| *slot != 0);
    every.chain(few.filter(move |_| !has_more).map(|slot| slot - 1)).filter(is_it)
}

/// Of those that are open, what may have to be written back.
fn dirty_open_ones() -> impl Iterator<Item = Entry> {
    open_ones().map(|(_, entry)| entry).filter(|entry| !overwrite::is_clean(*entry))
}

/// Of those that are only mapped.
fn dirty_mapped_ones() -> impl Iterator<Item = u32> {
    mapped_only().filter(|slot| !overwrite::is_slot_clean(*slot))
}

/// Whether something may have to be written back.
fn any_dirty() -> bool {
    if let View::Ready(state) = state::view() {
        // What cannot be looked into may have anything.
        overwrite::can_look(state);
    }
    dirty_open_ones().next().is_some() || dirty_mapped_ones().next().is_some()
}

/// Has all that is dirty written back, for whoever takes a lock next.
pub(crate) fn write_back_all() {
    let Some(state) = state::current().filter(|state| state.is_own()) else { return };
    for entry in dirty_open_ones() {
        delayed::published(entry);
        let _ = change::write_out(state, entry.slot(), (0, 0));
    }
    for slot in dirty_mapped_ones() {
        let _ = change::write_out(state, slot, (0, 0));
    }
    // They say so from now on.
    overwrite::can_look(state);
}

/// What somebody outside wrote before now is to be seen, but of one slot's file, which was looked at.
pub(crate) fn see_all(but: Option<u32>) {
    let Some(state) = state::current().filter(|state| state.is_own()) else { return };
    for (fd, entry) in open_ones().filter(|(_, entry)| but != Some(entry.slot())) {
        change::see(fd, entry);
    }
    for slot in mapped_only() {
        look_at(state, slot);
    }
}

/// Has the manager look at a file of which there is no descriptor here.
fn look_at(state: &State, slot: u32) {
    let mut request = Request::new(Op::Refresh);
    request.a = slot.into();
    let _ = ask(state, &request);
}
