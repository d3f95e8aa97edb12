//! Locks on files that are the kernel's: what they protect lies in others (`FILE.lock` beside `FILE`).
//!
//! Which ones, nobody says. So before such a lock is given up, what is dirty of all managed files that this
//! process has open or mapped is written back; and whoever takes one sees what somebody outside wrote to
//! any of them. A process that has none does what it did.

use crate::connection::ask;
use crate::files;
use crate::locks::Lock;
use crate::state::{self, State};
use crate::table::{self, Entry};
use crate::{change, delayed, mapping, overwrite, raw};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::Relaxed};
use libc::c_int;
use pagekeeper_wire::{Op, Request};

/// Slots that programs of this process mapped, one more than each; and whether there were more of them.
static MAPPED: List = List::new();
/// Descriptors by which this process took such a lock, one more than each; and whether there were more.
static HELD: List = List::new();

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

    /// Numbers in it, without those that there was no room for.
    fn all(&self) -> impl Iterator<Item = i32> {
        let used = self.used.load(Relaxed) as usize;
        let some = self.numbers[..used].iter().map(|number| number.load(Relaxed));
        some.filter(|number| *number > 0).map(|number| number - 1)
    }

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
        let is_it =
            |place: &AtomicI32| place.compare_exchange(number + 1, 0, Relaxed, Relaxed).is_ok();
        self.numbers.iter().any(is_it)
    }
}

/// The program mapped a slot's file.
pub(crate) fn mapped(slot: u64) {
    MAPPED.add(slot as i32);
}

/// Whether a descriptor that may be of a managed file is of none, as far as that matters here.
pub(crate) fn is_one(fd: c_int) -> bool {
    let is_served = || match table::get(fd) {
        Some(entry) => table::is_active(entry),
        None => files::managed(fd).is_some_and(|file| table::is_active(file.entry)),
    };
    concerns_any() && !is_served()
}

/// Makes a call that asks for a lock on a file that is the kernel's, or for none any more.
pub(crate) fn change(
    fd: c_int,
    to: impl Fn() -> Option<Lock>,
    call: impl FnOnce() -> isize,
) -> isize {
    if !concerns_any() {
        let result = call();
        // Something may be stored under it yet.
        if result >= 0
            && HELD.all().all(|held| held != fd)
            && to().is_some_and(|to| to != Lock::None)
        {
            HELD.add(fd);
        }
        return result;
    }
    let wanted = to();
    if wanted.is_some_and(|to| to != Lock::Exclusive) {
        write_back_all();
    }
    let result = call();
    if result >= 0 && wanted.is_some_and(|to| to != Lock::None) {
        HELD.add(fd);
        see_all();
    }
    result
}

/// A descriptor is about to be closed, and a lock with it, by whichever descriptor of this process it was
/// taken.
#[inline(always)]
pub(crate) fn before_close(fd: c_int) {
    if !HELD.is_empty() {
        before_close_of_locked(fd);
    }
}

#[cold]
fn before_close_of_locked(fd: c_int) {
    if !HELD.remove(fd) && !HELD.has_more.load(Relaxed) {
        // Locks by `fcntl` are the process's, and go with any descriptor of the file.
        let Ok(stat) = raw::fstat(fd) else { return };
        let is_same = |held: c_int| {
            raw::fstat(held)
                .is_ok_and(|other| (other.st_dev, other.st_ino) == (stat.st_dev, stat.st_ino))
        };
        if !HELD.all().any(is_same) {
            return;
        }
    }
    if concerns_any() {
        write_back_all();
    }
}

/// The same of a range of descriptors (both ends included).
pub(crate) fn before_close_range(first: u32, last: u32) {
    if HELD.is_empty() {
        return;
    }
    let range = first..=last;
    let mut is_any_held = HELD.has_more.load(Relaxed);
    for fd in HELD.all().filter(|fd| range.contains(&(*fd as u32))) {
        is_any_held |= HELD.remove(fd);
    }
    if is_any_held && concerns_any() {
        write_back_all();
    }
}

/// The program is about to end, or to be another.
pub(crate) fn before_end() {
    let is_any_held = HELD.has_more.load(Relaxed) || HELD.all().next().is_some();
    if is_any_held && concerns_any() {
        write_back_all();
    }
}

/// Whether this process has managed files.
fn concerns_any() -> bool {
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
    MAPPED.all().map(|slot| slot as u32).filter(|slot| table::is_closed(*slot))
}

fn write_back_all() {
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
    if MAPPED.has_more.load(Relaxed) {
        change::flush_all();
    }
    // They say so from now on.
    overwrite::can_look(state);
}

fn see_all() {
    let Some(state) = state::current().filter(|state| state.is_own()) else { return };
    for (fd, entry) in open_ones() {
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
