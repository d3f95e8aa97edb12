//! What locks protect that lies in other files (`FILE.lock` beside `FILE`).
//!
//! Which ones, nobody says. So before a lock is given up, what is dirty of all managed files that this process
//! has open or mapped is written back; and whoever takes one sees what somebody outside wrote to any of them.
//! A process that has none does what it did.

use crate::connection::ask;
use crate::state::{self, State, View};
use crate::table::{self, Entry};
use crate::{change, delayed, fdinfo, mapping, overwrite, raw};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};
use libc::c_int;
use pagekeeper_wire::{Op, Request};

/// Descriptors by which this process took a lock, one more than each; and whether there were more.
static HELD: List = List::new();
/// Descriptors that came from who executed this program, or with a message: perhaps with locks.
static CAME: List = List::new();
/// Files of which a descriptor with a lock was closed, by their numbers: a duplicate may have it still. The oldest
/// is forgotten for the newest.
static LEFT: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
static LEFT_NEXT: AtomicU32 = AtomicU32::new(0);
/// One above the highest slot that was ever mapped here.
static MAPPED_SLOTS: AtomicU32 = AtomicU32::new(0);

/// A few numbers, that are only ever looked through.
struct List {
    numbers: [AtomicI32; 32],
    used: AtomicU32,
    has_more: AtomicBool,
}

impl List {
    const fn new() -> List {
        List {
            numbers: [const { AtomicI32::new(0) }; 32],
            used: AtomicU32::new(0),
            has_more: AtomicBool::new(false),
        }
    }

    /// Places that were ever taken.
    fn places(&self) -> &[AtomicI32] {
        &self.numbers[..self.used.load(Relaxed) as usize]
    }

    /// Numbers in it, without those that there was no room for.
    fn all(&self) -> impl Iterator<Item = i32> {
        let some = self.places().iter().map(|place| place.load(Relaxed));
        some.filter(|mark| *mark > 0).map(|mark| mark - 1)
    }

    /// Whether there was never any.
    fn is_empty(&self) -> bool {
        self.used.load(Relaxed) == 0
    }

    fn add(&self, number: i32) {
        let mark = number + 1;
        if self.all().any(|known| known == number) {
            return;
        }
        for (at, place) in self.numbers.iter().enumerate() {
            if place.compare_exchange(0, mark, Relaxed, Relaxed).is_ok() {
                self.used.fetch_max(at as u32 + 1, Relaxed);
                return;
            }
        }
        self.has_more.store(true, Relaxed);
    }

    /// Whether it was there.
    fn remove(&self, number: i32) -> bool {
        let mark = number + 1;
        // Each descriptor that is closed is asked for: looked at before anything is exchanged.
        let is_it = |place: &AtomicI32| {
            place.load(Relaxed) == mark && place.compare_exchange(mark, 0, Relaxed, Relaxed).is_ok()
        };
        self.places().iter().any(is_it)
    }
}

/// The program mapped a slot's file.
pub(crate) fn mapped(slot: u64) {
    let slot = slot as u32;
    if let Some(known) = table::slot_file(slot) {
        known.mapped_here.store(1, Relaxed);
        MAPPED_SLOTS.fetch_max(slot + 1, Relaxed);
    }
}

/// A descriptor came from elsewhere.
pub(crate) fn came(fd: c_int) {
    CAME.add(fd);
}

/// Whether any did.
pub(crate) fn any_came() -> bool {
    !CAME.is_empty()
}

/// A lock was taken by this descriptor.
pub(crate) fn taken(fd: c_int) {
    HELD.add(fd);
}

/// Whether a lock was taken by this descriptor at some time.
pub(crate) fn is_taken(fd: c_int) -> bool {
    HELD.all().any(|held| held == fd)
}

/// A descriptor has a lock that another has.
#[inline(always)]
pub(crate) fn duplicated(old: c_int, new: c_int) {
    if !HELD.is_empty() && new >= 0 && is_taken(old) {
        HELD.add(new);
    }
}

/// A descriptor is about to be closed, and a lock with it, by whichever descriptor of this process it was
/// taken.
#[inline(always)]
pub(crate) fn before_close(fd: c_int) {
    if !HELD.is_empty() || !CAME.is_empty() {
        before_close_of_locked(fd);
    }
}

#[cold]
fn before_close_of_locked(fd: c_int) {
    if is_borrowed() {
        return;
    }
    let has_come = CAME.remove(fd) && fdinfo::is_locked(fd);
    if (has_come || goes_with(fd)) && concerns_any() {
        write_back_all();
    }
}

/// Whether a lock of this process's goes with a descriptor.
fn goes_with(fd: c_int) -> bool {
    let was_held = HELD.remove(fd);
    if HELD.is_empty() && !was_held {
        return false;
    }
    let Some(number) = number_of_file(fd) else { return true };
    if was_held {
        if LEFT.iter().all(|left| left.load(Relaxed) != number) {
            let at = LEFT_NEXT.fetch_add(1, Relaxed) as usize % LEFT.len();
            LEFT[at].store(number, Relaxed);
        }
        return true;
    }
    // Locks by `fcntl` are the process's, and go with any descriptor of the file.
    let is_same = |held: c_int| number_of_file(held) == Some(number);
    HELD.has_more.load(Relaxed)
        || LEFT.iter().any(|left| left.load(Relaxed) == number)
        || HELD.all().any(is_same)
}

/// Whether a descriptor that is not listed may have a lock.
fn may_have_another() -> bool {
    HELD.has_more.load(Relaxed) || LEFT.iter().any(|left| left.load(Relaxed) != 0)
}

/// A number that few other files have.
fn number_of_file(fd: c_int) -> Option<u64> {
    raw::fstat(fd).ok().map(|stat| stat.st_ino ^ stat.st_dev.rotate_left(40))
}

/// The same of a range of descriptors (both ends included).
pub(crate) fn before_close_range(first: u32, last: u32) {
    if (HELD.is_empty() && CAME.is_empty()) || is_borrowed() {
        return;
    }
    let range = first..=last;
    // It may be among them.
    let mut is_any_held = may_have_another();
    for fd in HELD.all().filter(|fd| range.contains(&(*fd as u32))) {
        is_any_held |= HELD.remove(fd);
    }
    for fd in CAME.all().filter(|fd| range.contains(&(*fd as u32))) {
        is_any_held |= CAME.remove(fd) && fdinfo::is_locked(fd);
    }
    if is_any_held && concerns_any() {
        write_back_all();
    }
}

/// The program is about to end, or to be another.
pub(crate) fn before_end() {
    if is_borrowed() || !concerns_any() {
        return;
    }
    let is_held = may_have_another() || HELD.all().next().is_some();
    if is_held || CAME.all().any(fdinfo::is_locked) {
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
            known.mapped_here.load(Relaxed) != 0 && known.descriptors.load(Relaxed) == 0
        })
    };
    (0..MAPPED_SLOTS.load(Relaxed)).filter(is_it)
}

/// Has all that is dirty written back, for whoever takes a lock next.
pub(crate) fn write_back_all() {
    let Some(state) = state::current().filter(|state| state.is_own()) else { return };
    for (_, entry) in open_ones() {
        if !overwrite::is_clean(entry) {
            delayed::published(entry);
            let _ = change::write_out(state, entry.slot(), (0, 0));
        }
    }
    for slot in mapped_only() {
        if !overwrite::is_slot_clean(slot) {
            let _ = change::write_out(state, slot, (0, 0));
        }
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
