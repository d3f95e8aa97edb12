//! Which descriptors are of managed files: one word a descriptor, looked up without a lock.

use crate::raw;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use libc::c_int;
use pagekeeper_wire::SLOT_ACTIVE;

/// Descriptors above this are never managed. Linux allows no more by default (`fs.nr_open`).
pub(crate) const DESCRIPTORS_MAX: u32 = 1 << 20;
/// Bits of a table word that hold the file slot plus one.
const SLOT_BITS: u32 = 22;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
/// The table word of one of our own connections.
const CONNECTION: u32 = SLOT_MASK;
/// File slots that a table word can hold.
const SLOTS_MAX: usize = (SLOT_MASK - 2) as usize;

/// What the table says of a descriptor of a file with a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry(u32);

impl Entry {
    /// An entry for a newly opened descriptor.
    pub(crate) fn new(slot: u32, fd: c_int) -> Entry {
        Entry((slot + 1) | ((fd as u32 % crate::state::OFFSET_LOCKS as u32) << SLOT_BITS))
    }

    /// The file's slot.
    pub(crate) fn slot(self) -> u32 {
        (self.0 & SLOT_MASK) - 1
    }

    /// Which lock guards the offset: duplicates of a descriptor share the offset and the lock.
    pub(crate) fn lock_index(self) -> usize {
        (self.0 >> SLOT_BITS) as usize
    }
}

/// What a slot's file is, to notice descriptors that were closed and reused behind our back.
#[repr(C)]
struct SlotFile {
    device: AtomicU64,
    inode: AtomicU64,
    /// Descriptors of this process on the file.
    descriptors: AtomicU32,
}

static WORDS: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// What each descriptor has heard of its file's write errors.
static HEARD: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
/// One above the highest descriptor that was ever of a file with a slot.
static DESCRIPTORS_USED: AtomicU32 = AtomicU32::new(0);
static FLAGS: AtomicPtr<AtomicU8> = AtomicPtr::new(core::ptr::null_mut());
static SLOT_FILES: AtomicPtr<SlotFile> = AtomicPtr::new(core::ptr::null_mut());
static SLOTS: AtomicUsize = AtomicUsize::new(0);

/// Maps the table of descriptors; false if there is no memory for it.
pub(crate) fn allocate() -> bool {
    let addr = raw::reserve(DESCRIPTORS_MAX as usize * size_of::<AtomicU32>());
    WORDS.store(addr as *mut AtomicU32, Ordering::Release);
    let heard = raw::reserve(DESCRIPTORS_MAX as usize * size_of::<AtomicU64>());
    HEARD.store(heard as *mut AtomicU64, Ordering::Release);
    addr != 0 && heard != 0
}

/// What a descriptor has heard of its file's write errors; a forked child inherits it.
pub(crate) fn heard(fd: c_int) -> Option<&'static AtomicU64> {
    let heard = HEARD.load(Ordering::Relaxed);
    if heard.is_null() || fd as u32 >= DESCRIPTORS_MAX {
        return None;
    }
    // SAFETY: mapped for DESCRIPTORS_MAX numbers, never unmapped; zero is valid.
    Some(unsafe { &*heard.add(fd as usize) })
}

/// Maps the flags that the manager shares, once; false if they are unusable.
pub(crate) fn adopt_flags(fd: c_int, slots: usize) -> bool {
    if SLOTS.load(Ordering::Acquire) != 0 {
        return true;
    }
    let slots = slots.min(SLOTS_MAX);
    if fd < 0 || slots == 0 {
        return false;
    }
    let files = raw::reserve(slots * size_of::<SlotFile>());
    let flags = raw::mmap(0, slots, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
    if files == 0 || flags < 0 {
        return false;
    }
    // Two threads may both come here; either pair of mappings does.
    SLOT_FILES.store(files as *mut SlotFile, Ordering::Release);
    FLAGS.store(flags as *mut AtomicU8, Ordering::Release);
    SLOTS.store(slots, Ordering::Release);
    true
}

#[inline(always)]
fn word(fd: c_int) -> Option<&'static AtomicU32> {
    let words = WORDS.load(Ordering::Relaxed);
    if words.is_null() || fd as u32 >= DESCRIPTORS_MAX {
        return None;
    }
    // SAFETY: mapped for DESCRIPTORS_MAX words, never unmapped; zero is valid.
    Some(unsafe { &*words.add(fd as usize) })
}

fn slot_file(slot: u32) -> Option<&'static SlotFile> {
    if slot as usize >= SLOTS.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: mapped for SLOTS records before SLOTS was set, never unmapped; zero is valid.
    Some(unsafe { &*SLOT_FILES.load(Ordering::Acquire).add(slot as usize) })
}

/// Whether calls on this descriptor are the kernel's alone: the one test on every call's way.
#[inline(always)]
pub(crate) fn is_plain(fd: c_int) -> bool {
    word(fd).is_none_or(|word| word.load(Ordering::Relaxed) == 0)
}

/// The entry of a descriptor of a file with a slot.
pub(crate) fn get(fd: c_int) -> Option<Entry> {
    let value = word(fd)?.load(Ordering::Acquire);
    (value != 0 && value & SLOT_MASK != CONNECTION).then_some(Entry(value))
}

/// Whether the descriptor was marked as a connection of ours.
pub(crate) fn is_connection(fd: c_int) -> bool {
    word(fd).is_some_and(|word| word.load(Ordering::Acquire) == CONNECTION)
}

/// Marks a connection of ours.
pub(crate) fn mark_connection(fd: c_int) {
    if let Some(word) = word(fd) {
        word.store(CONNECTION, Ordering::Release);
    }
}

/// The descriptor is no connection of ours any more.
pub(crate) fn unmark_connection(fd: c_int) {
    if let Some(word) = word(fd) {
        let _ = word.compare_exchange(CONNECTION, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Enters a descriptor, in place of what was known of this number; returns what was.
pub(crate) fn set(fd: c_int, entry: Entry) -> Option<Entry> {
    let word = word(fd)?;
    DESCRIPTORS_USED.fetch_max(fd as u32 + 1, Ordering::AcqRel);
    if let Some(file) = slot_file(entry.slot()) {
        file.descriptors.fetch_add(1, Ordering::AcqRel);
    }
    let old = word.swap(entry.0, Ordering::AcqRel);
    (old != 0 && old != CONNECTION).then_some(Entry(old))
}

/// Clears a descriptor's entry and returns it. The caller [`drop_count`]s it.
pub(crate) fn clear(fd: c_int) -> Option<Entry> {
    let word = word(fd)?;
    let old = word.swap(0, Ordering::AcqRel);
    (old != 0 && old != CONNECTION).then_some(Entry(old))
}

/// One descriptor less on the entry's file; returns how many are left in this process.
pub(crate) fn drop_count(entry: Entry) -> u32 {
    let Some(file) = slot_file(entry.slot()) else { return 0 };
    file.descriptors
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| Some(count.saturating_sub(1)))
        .unwrap_or(0)
        .saturating_sub(1)
}

/// Remembers which file a slot is.
pub(crate) fn identify(slot: u32, stat: &libc::stat) -> bool {
    let Some(file) = slot_file(slot) else { return false };
    file.device.store(stat.st_dev, Ordering::Relaxed);
    file.inode.store(stat.st_ino, Ordering::Release);
    true
}

/// Whether a descriptor's status is that of the slot's file.
pub(crate) fn is_file(slot: u32, stat: &libc::stat) -> bool {
    slot_file(slot).is_some_and(|file| {
        file.inode.load(Ordering::Acquire) == stat.st_ino
            && file.device.load(Ordering::Relaxed) == stat.st_dev
    })
}

/// Whether the manager serves this slot's content now.
pub(crate) fn is_active(slot: u32) -> bool {
    if slot as usize >= SLOTS.load(Ordering::Acquire) {
        return false;
    }
    // SAFETY: mapped for SLOTS bytes before SLOTS was set, never unmapped.
    let flags = unsafe { &*FLAGS.load(Ordering::Acquire).add(slot as usize) };
    flags.load(Ordering::SeqCst) & SLOT_ACTIVE != 0
}

/// One above the highest descriptor that may have an entry.
pub(crate) fn used() -> u32 {
    DESCRIPTORS_USED.load(Ordering::Acquire)
}

/// All descriptors with an entry in a range of numbers (both ends included).
pub(crate) fn entries(first: u32, last: u32) -> impl Iterator<Item = (c_int, Entry)> {
    let end = used().min(last.saturating_add(1));
    (first..end).filter_map(|fd| get(fd as c_int).map(|entry| (fd as c_int, entry)))
}

/// Whether a descriptor of a file that the manager serves is open.
pub(crate) fn any_active() -> bool {
    entries(0, u32::MAX).any(|(_, entry)| is_active(entry.slot()))
}
