//! What a program is told of a file's length.
//!
//! The kernel knows a new length as soon as somebody has made the file longer, and mappings reach as far a
//! moment later, when the manager has heard of it. Who asks for the length may touch all of that at once:
//! it is told when it may.

use crate::descriptors::files::File;
use crate::descriptors::table::{self, Entry};
use crate::raw;
use crate::writing::{change, overwrite};
use core::cmp::Ordering;
use core::sync::atomic::Ordering::SeqCst;
use libc::c_int;

/// Looks, a moment apart, at how far mappings reach. Somebody who is stopped while it makes the file
/// longer holds nobody up for longer.
const LOOKS_MAX: u32 = 1000;

/// The kernel says that a file is so long.
#[inline(always)]
pub(crate) fn told(fd: c_int, bytes: i64) {
    let Ok(bytes) = u64::try_from(bytes) else { return };
    let Some(entry) = table::get_sure(fd).filter(|entry| table::is_active(*entry)) else { return };
    match known(entry).map(|known| known.cmp(&bytes)) {
        Some(Ordering::Less) if table::is_mapped(entry) => wait_for(fd, bytes),
        // Somebody outside made it shorter, or somebody inside does just now: who was told so reads no more of
        // what is gone.
        Some(Ordering::Greater) => drop(change::refresh(fd)),
        _ => {}
    }
}

/// A read goes up to here. If somebody outside made the file longer, of whom nobody has heard yet, the
/// manager hears of it: whoever was told the length, or that there is more, reads it.
pub(crate) fn read_to(file: &File, end: u64) {
    let Some(known) = known(file.entry) else { return };
    if end > known && raw::fstat(file.fd).is_ok_and(|stat| stat.st_size as u64 > known) {
        change::refresh(file.fd);
    }
}

/// Whether that is more than the manager knows of a file which programs map.
fn is_ahead(fd: c_int, bytes: u64) -> bool {
    let Some(entry) = table::get_sure(fd) else { return false };
    table::is_active(entry)
        && table::is_mapped(entry)
        && known(entry).is_some_and(|known| known < bytes)
}

/// How long the manager knows a file to be.
pub(crate) fn known(entry: Entry) -> Option<u64> {
    table::records(entry).map(|(slot, _)| overwrite::length(entry, slot))
}

/// What tells that a file was cut, or lengthened by more than writes, between two looks.
pub(crate) fn generation(entry: Entry) -> Option<u32> {
    table::records(entry).map(|(slot, _)| slot.generation.load(SeqCst))
}

#[cold]
fn wait_for(fd: c_int, bytes: u64) {
    // Who made it longer may be somebody outside, of whom nobody has heard yet. Or it is another file's
    // descriptor by now.
    if !change::refresh(fd) {
        return;
    }
    for _ in 0..LOOKS_MAX {
        if !is_ahead(fd, bytes) {
            return;
        }
        raw::pause();
    }
}
