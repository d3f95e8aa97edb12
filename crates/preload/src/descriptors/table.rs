//! Which descriptors are of managed files: one word a descriptor, looked up without a lock.

use crate::raw;
use crate::writing::delayed::OpenPages;
use crate::writing::frames::Frames;
use crate::writing::lock_files;
use crate::writing::overwrite;
use crate::writing::queue::Queue;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use libc::c_int;
use pagekeeper_wire::{CELLS, SLOT_ACTIVE, SLOT_MAPPED, Slot};

/// Descriptors above this are never managed. Linux allows no more by default (`fs.nr_open`).
pub(crate) const DESCRIPTORS_MAX: u32 = 1 << 20;
/// Bits of a table word that hold the file slot plus one.
const SLOT_BITS: u32 = 22;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
/// Bits above them: the index of the lock.
const LOCK_BITS: u32 = 10;
/// The descriptor may be read from.
const READABLE: u64 = 1 << (SLOT_BITS + LOCK_BITS);
/// What is written to the descriptor inside the file may be stored in memory, if writes are delayed: it
/// can be written to, and no flag asks for more. Of a table word only, not of an [`Entry`].
const STORABLE: u64 = READABLE << 1;
/// This process opened it, and no other can have it: nobody else changes its flags. As before, no part
/// of an [`Entry`].
const EXCLUSIVE: u64 = READABLE << 2;
const MARKS: u64 = STORABLE | EXCLUSIVE;
/// The table word of one of our own connections.
const CONNECTION: u64 = SLOT_MASK;
const _: () = assert!(crate::process::state::OFFSET_LOCKS == 1 << LOCK_BITS);
/// In place of a slot in a table word: opened to read from, or too short to be managed, and not shown to
/// the manager yet.
const UNSHOWN: u64 = SLOT_MASK - 1;
/// In place of a slot: it had one, and is being closed or replaced just now.
const LEAVING: u64 = SLOT_MASK - 2;
/// Above these, of a descriptor of a file with a slot: the slot's incarnation, as far as there is room.
const INCARNATION_SHIFT: u32 = SLOT_BITS + LOCK_BITS + 3;
const INCARNATION_MASK: u32 = (1 << (u64::BITS - INCARNATION_SHIFT)) - 1;
/// And of an unshown descriptor: that its file is too short to be managed, and which cell it has (see
/// [`crate::link::board`]).
const SHORT: u64 = 1 << INCARNATION_SHIFT;
/// Or that it was looked at and is not.
const LOOKED_AT: u64 = SHORT << 1;
const CELL_SHIFT: u32 = u64::BITS - CELLS.ilog2();
/// Between them a number of its own, so that another file is told from it that gets the same descriptor.
const TURN_SHIFT: u32 = INCARNATION_SHIFT + 2;
const TURN_MASK: u64 = (1 << (CELL_SHIFT - TURN_SHIFT)) - 1;
static TURNS: AtomicU64 = AtomicU64::new(0);
/// File slots that a table word can hold.
const SLOTS_MAX: usize = (SLOT_MASK - 3) as usize;

/// A slot as long as it is one file's. The manager may give the slot of a file that it does not manage
/// to another at any time, whoever has it open: the file has to be shown again then.
#[derive(Clone, Copy)]
pub(crate) struct Tenancy {
    pub(crate) slot: u32,
    /// [`Slot::incarnation`] meanwhile.
    pub(crate) incarnation: u32,
}

/// What the table says of a descriptor of a file with a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry(u64);

impl Entry {
    /// An entry for a newly opened descriptor; `flags` are those of `open(2)`.
    pub(crate) fn new(file: Tenancy, fd: c_int, flags: c_int) -> Entry {
        Entry::with_lock(file, lock_bits(fd), flags)
    }

    /// In place of one of the same descriptor, which was of another slot, or of this one when that was
    /// not this file's.
    pub(crate) fn again(self, file: Tenancy, flags: c_int) -> Entry {
        Entry::with_lock(file, (self.lock_index() as u64) << SLOT_BITS, flags)
    }

    fn with_lock(file: Tenancy, lock: u64, flags: c_int) -> Entry {
        let access = flags & libc::O_ACCMODE;
        // Of direct ones each read has to be looked at.
        let reads = flags & (libc::O_PATH | libc::O_DIRECT) == 0
            && (access == libc::O_RDONLY || access == libc::O_RDWR);
        let incarnation = (file.incarnation as u64) << INCARNATION_SHIFT;
        Entry(incarnation | (file.slot as u64 + 1) | lock | if reads { READABLE } else { 0 })
    }

    /// What a table word says, if it is of a file with a slot.
    #[inline(always)]
    fn of(word: u64) -> Option<Entry> {
        let slot = word & SLOT_MASK;
        (slot != 0 && slot < LEAVING).then_some(Entry(word & !MARKS))
    }

    /// The file's slot.
    pub(crate) fn slot(self) -> u32 {
        (self.0 & SLOT_MASK) as u32 - 1
    }

    /// Whether this is its file, and its slot.
    pub(crate) fn is(self, file: Tenancy) -> bool {
        self.slot() == file.slot && self.is_of(file.incarnation)
    }

    /// Whether it is of the file that had the slot in this incarnation.
    #[inline(always)]
    fn is_of(self, incarnation: u32) -> bool {
        (self.0 >> INCARNATION_SHIFT) as u32 == incarnation & INCARNATION_MASK
    }

    /// Which lock guards the offset: duplicates of a descriptor share the offset and the lock.
    pub(crate) fn lock_index(self) -> usize {
        (self.0 >> SLOT_BITS) as usize % (1 << LOCK_BITS)
    }
}

/// Which lock guards the offset of a newly opened descriptor, in its place in a table word.
fn lock_bits(fd: c_int) -> u64 {
    (fd as u64 % (1 << LOCK_BITS)) << SLOT_BITS
}

/// What the table says of a descriptor that was not shown to the manager yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unshown(u64);

impl Unshown {
    /// For a newly opened descriptor.
    pub(crate) fn new(fd: c_int) -> Unshown {
        Unshown(lock_bits(fd)).duplicate()
    }

    /// For a duplicate, which shares the lock.
    pub(crate) fn duplicate(self) -> Unshown {
        let turn = (TURNS.fetch_add(1, Ordering::Relaxed) & TURN_MASK) << TURN_SHIFT;
        Unshown(self.0 & !(TURN_MASK << TURN_SHIFT) | turn | UNSHOWN)
    }

    /// The same, of a file of this cell that is too short to be managed.
    pub(crate) fn short(self, cell: u32) -> Unshown {
        Unshown(self.0 | SHORT | u64::from(cell) << CELL_SHIFT)
    }

    /// The same, of a regular file that was looked at and is not short.
    pub(crate) fn looked_at(self) -> Unshown {
        Unshown(self.0 | LOOKED_AT)
    }

    /// Whether it was looked at, and its file is regular and was not short.
    #[inline(always)]
    pub(crate) fn was_looked_at(self) -> bool {
        self.0 & LOOKED_AT != 0
    }

    /// The file's cell, if it was too short to be managed when that was looked at.
    #[inline(always)]
    pub(crate) fn cell(self) -> Option<u32> {
        (self.0 & SHORT != 0).then_some((self.0 >> CELL_SHIFT) as u32)
    }

    fn lock(self) -> u64 {
        self.0 & ((1 << LOCK_BITS) - 1) << SLOT_BITS
    }

    /// The entry when it has been shown.
    pub(crate) fn shown(self, file: Tenancy, flags: c_int) -> Entry {
        Entry::with_lock(file, self.lock(), flags)
    }
}

/// What this process knows of a slot's file. All zero: nothing.
#[repr(C, align(64))]
pub(crate) struct SlotFile {
    /// To notice descriptors that were closed and reused behind our back.
    device: AtomicU64,
    inode: AtomicU64,
    /// The process that showed the manager a descriptor, above the rights that it proved.
    shown: AtomicU64,
    /// Descriptors of this process on the file.
    pub(crate) descriptors: AtomicU32,
    /// Changes with `base`.
    pub(crate) stamp: AtomicU32,
    /// Where the library itself has mapped the file; 0 if it has not.
    pub(crate) base: AtomicUsize,
    /// How much is mapped there.
    pub(crate) bytes: AtomicUsize,
    /// Not 0: the program mapped the file at some time.
    pub(crate) mapped_here: AtomicU32,
    /// [`Slot::misses`] when it was looked at last.
    pub(crate) misses: AtomicU32,
    /// How often it was read whole, or that it cannot be mapped: see [`crate::reading::direct`].
    pub(crate) mapped: AtomicU32,
    /// [`Slot::incarnation`] when the file was met: with another, all of this is of a file that was
    /// let go of.
    incarnation: AtomicU32,
    /// What a descriptor that was shown last had heard of errors: one that is not shown may be
    /// told of an error again, but misses none.
    heard: AtomicU64,
    /// A time from which on that holds; it never goes back.
    heard_ns: AtomicU64,
    /// Where the memory of its pages is mapped, to patch it: see [`crate::writing::frames`].
    pub(crate) frames: Frames,
    /// Which of its pages may be stored to there: see [`crate::writing::delayed`].
    pub(crate) open: OpenPages,
    /// Threads that wait to write to it.
    pub(crate) queue: Queue,
}

/// Slots by device and inode, as far as they were used lately.
const LATELY: usize = 4096;
static LATE: [AtomicU32; LATELY] = [const { AtomicU32::new(0) }; LATELY];

static WORDS: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
/// What each descriptor has heard of its file's write errors.
static HEARD: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
/// One above the highest descriptor that was ever of a file with a slot.
static DESCRIPTORS_USED: AtomicU32 = AtomicU32::new(0);
static SHARED: AtomicPtr<Slot> = AtomicPtr::new(core::ptr::null_mut());
static SLOT_FILES: AtomicPtr<SlotFile> = AtomicPtr::new(core::ptr::null_mut());
static SLOTS: AtomicUsize = AtomicUsize::new(0);

/// Maps the table of descriptors; false if there is no memory for it.
pub(crate) fn allocate() -> bool {
    let addr = raw::reserve(DESCRIPTORS_MAX as usize * size_of::<AtomicU64>());
    WORDS.store(addr as *mut AtomicU64, Ordering::Release);
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

/// Maps the table that the manager shares, once; false if it is unusable.
pub(crate) fn adopt_slots(fd: c_int, slots: usize) -> bool {
    if SLOTS.load(Ordering::Acquire) != 0 {
        return true;
    }
    let slots = slots.min(SLOTS_MAX);
    if fd < 0 || slots == 0 {
        return false;
    }
    let files = raw::reserve(slots * size_of::<SlotFile>());
    let bytes = slots * size_of::<Slot>();
    let shared = raw::map(bytes, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
    if files == 0 || shared < 0 {
        return false;
    }
    // Two threads may both come here; either pair of mappings does.
    SLOT_FILES.store(files as *mut SlotFile, Ordering::Release);
    SHARED.store(shared as *mut Slot, Ordering::Release);
    SLOTS.store(slots, Ordering::Release);
    true
}

#[inline(always)]
fn word(fd: c_int) -> Option<&'static AtomicU64> {
    let words = WORDS.load(Ordering::Relaxed);
    if words.is_null() || fd as u32 >= DESCRIPTORS_MAX {
        return None;
    }
    // SAFETY: mapped for DESCRIPTORS_MAX words, never unmapped; zero is valid.
    Some(unsafe { &*words.add(fd as usize) })
}

/// What this process knows of a slot's file.
#[inline(always)]
pub(crate) fn slot_file(slot: u32) -> Option<&'static SlotFile> {
    if slot as usize >= SLOTS.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: mapped for SLOTS records before SLOTS was set, never unmapped; zero is valid.
    Some(unsafe { &*SLOT_FILES.load(Ordering::Acquire).add(slot as usize) })
}

/// What the manager says of a slot's file.
#[inline(always)]
fn shared(slot: u32) -> Option<&'static Slot> {
    if slot as usize >= SLOTS.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: mapped for SLOTS records before SLOTS was set, never unmapped; all fields are atomic.
    Some(unsafe { &*SHARED.load(Ordering::Acquire).add(slot as usize) })
}

/// What the manager and this process know of an entry's file.
#[inline(always)]
pub(crate) fn records(entry: Entry) -> Option<(&'static Slot, &'static SlotFile)> {
    Some((shared(entry.slot())?, slot_file(entry.slot())?))
}

/// The entry of a descriptor that may be read without the kernel's saying that it is still what it
/// was.
#[inline(always)]
pub(crate) fn readable(fd: c_int) -> Option<Entry> {
    let value = word(fd)?.load(Ordering::Acquire);
    (value & READABLE != 0).then_some(Entry(value & !MARKS))
}

/// Which lock guards the offset of a descriptor that is known, shown to the manager or not.
#[inline]
pub(crate) fn lock_index(fd: c_int) -> Option<usize> {
    let value = word(fd)?.load(Ordering::Acquire);
    (value != 0).then(|| Entry(value).lock_index())
}

/// The entry of a descriptor whose writes may be stored in memory, and whether another process may have
/// it, too, and may have changed its flags.
#[inline(always)]
pub(crate) fn storable(fd: c_int) -> Option<(Entry, bool)> {
    let value = word(fd)?.load(Ordering::Acquire);
    let found = || (Entry(value & !MARKS), value & EXCLUSIVE == 0);
    (value & STORABLE != 0).then(found)
}

/// Threads of this process have tables of descriptors of their own. This library has one, so it says no
/// more than which numbers may be of managed files: each call asks the kernel.
static DIFFER: AtomicBool = AtomicBool::new(false);

/// Whether the same number may be another file in another thread.
#[inline(always)]
pub(crate) fn differ() -> bool {
    DIFFER.load(Ordering::Relaxed)
}

/// From now on the same number may be another file in another thread.
pub(crate) fn set_differ() {
    DIFFER.store(true, Ordering::SeqCst);
    share_all();
    // So calls on the fast way need not ask.
    for (fd, _) in entries(0, u32::MAX) {
        word(fd).inspect(distrust);
    }
}

/// Who entered a word looks whether its marks may stay.
fn distrust(word: &&AtomicU64) {
    if DIFFER.load(Ordering::SeqCst) {
        word.fetch_and(!(READABLE | MARKS), Ordering::SeqCst);
    }
}

/// The entry of a descriptor, if it is the same file's in all threads.
pub(crate) fn get_sure(fd: c_int) -> Option<Entry> {
    get(fd).filter(|_| !differ())
}

/// Whether another process may have a descriptor, too, or another descriptor its offset.
pub(crate) fn may_be_shared(fd: c_int) -> bool {
    word(fd).is_none_or(|word| word.load(Ordering::SeqCst) & EXCLUSIVE == 0)
}

/// How often other processes may have been given descriptors.
static SHARINGS: AtomicU32 = AtomicU32::new(0);

/// For [`set_exclusive`], before a descriptor is opened.
pub(crate) fn sharings() -> u32 {
    SHARINGS.load(Ordering::SeqCst)
}

/// A descriptor was opened here just now; `sharings` is from before.
pub(crate) fn set_exclusive(fd: c_int, sharings: u32) {
    if let Some((word, entry)) = word(fd).zip(get(fd)) {
        let new = entry.0 | EXCLUSIVE;
        let _ = word.compare_exchange(entry.0, new, Ordering::SeqCst, Ordering::Relaxed);
        // Who was forked meanwhile has it, too.
        if self::sharings() != sharings {
            word.fetch_and(!EXCLUSIVE, Ordering::SeqCst);
        }
    }
}

/// Another process may have the descriptors from now on.
pub(crate) fn share_all() {
    SHARINGS.fetch_add(1, Ordering::SeqCst);
    lock_files::share_all();
    for (fd, _) in entries(0, u32::MAX) {
        word(fd).inspect(|word| {
            word.fetch_and(!EXCLUSIVE, Ordering::SeqCst);
        });
    }
}

/// Writes to a descriptor may be stored in memory, if it is still what it was.
pub(crate) fn set_storable(fd: c_int, entry: Entry) {
    if let Some(word) = word(fd).filter(|_| !differ()) {
        let mark = |known| {
            let new = known | STORABLE;
            word.compare_exchange(known, new, Ordering::SeqCst, Ordering::Relaxed)
        };
        let _ = mark(entry.0).or_else(|_| mark(entry.0 | EXCLUSIVE));
        distrust(&word);
    }
}

/// Writes to a descriptor, and to those that share its flags, may not be stored in memory any more.
pub(crate) fn unset_storable(fd: c_int) {
    unset(fd, STORABLE);
}

/// A descriptor got these flags, and so did those that share them. Reads of direct ones are looked at.
pub(crate) fn flagged(fd: c_int, flags: c_int) {
    unset(fd, if flags & libc::O_DIRECT == 0 { STORABLE } else { STORABLE | READABLE });
}

fn unset(fd: c_int, bits: u64) {
    let Some(entry) = get(fd) else { return };
    let lock = |entry: Entry| entry.lock_index();
    for (fd, _) in entries(0, u32::MAX).filter(|(_, other)| lock(*other) == lock(entry)) {
        word(fd).inspect(|word| {
            word.fetch_and(!bits, Ordering::SeqCst);
        });
    }
}

/// Whether calls on this descriptor are the kernel's alone: the one test on every call's way.
#[inline(always)]
pub(crate) fn is_plain(fd: c_int) -> bool {
    word(fd).is_none_or(|word| word.load(Ordering::Relaxed) == 0)
}

/// The entry of a descriptor of a file with a slot.
pub(crate) fn get(fd: c_int) -> Option<Entry> {
    Entry::of(word(fd)?.load(Ordering::Acquire))
}

/// What is known of a descriptor that was not shown yet.
#[inline(always)]
pub(crate) fn unshown(fd: c_int) -> Option<Unshown> {
    let value = word(fd)?.load(Ordering::Acquire);
    (value & SLOT_MASK == UNSHOWN).then_some(Unshown(value))
}

/// Notes that a descriptor was not shown yet; returns what was known of this number.
pub(crate) fn set_unshown(fd: c_int, unshown: Unshown) -> Option<Entry> {
    let word = word(fd)?;
    DESCRIPTORS_USED.fetch_max(fd as u32 + 1, Ordering::AcqRel);
    Entry::of(word.swap(unshown.0, Ordering::AcqRel))
}

/// Notes more of an unshown descriptor's file, if it is still what it was.
pub(crate) fn exchange_unshown(fd: c_int, old: Unshown, new: Unshown) {
    if let Some(word) = word(fd) {
        let _ = word.compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Enters a descriptor that has been shown; with no entry, calls on it are the kernel's. False if it
/// is something else by now.
pub(crate) fn replace_unshown(fd: c_int, unshown: Unshown, entry: Option<Entry>) -> bool {
    if entry.is_none() && differ() {
        // In another thread it may be something else.
        return true;
    }
    exchange(fd, unshown.0, entry)
}

/// The table word of a descriptor that was known and is not any more.
fn nothing(fd: c_int) -> u64 {
    // In another thread it may be known still.
    if DIFFER.load(Ordering::SeqCst) { Unshown::new(fd).0 } else { 0 }
}

fn exchange(fd: c_int, known: u64, entry: Option<Entry>) -> bool {
    let count = entry.and_then(|entry| slot_file(entry.slot())).map(|file| &file.descriptors);
    // Before others see it, who may close it.
    count.inspect(|count| {
        count.fetch_add(1, Ordering::AcqRel);
    });
    let value = entry.map_or_else(|| nothing(fd), |entry| entry.0);
    let replaced = word(fd).is_some_and(|word| {
        let replace =
            |known| word.compare_exchange(known, value, Ordering::AcqRel, Ordering::Relaxed);
        let marks = [0, STORABLE, EXCLUSIVE, MARKS];
        let replaced = marks.into_iter().any(|marks| replace(known | marks).is_ok());
        if entry.is_some() {
            distrust(&word);
        }
        replaced
    });
    if !replaced && let Some(entry) = entry {
        drop_count(entry);
    }
    replaced
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
    let before = Entry::of(word.swap(entry.0, Ordering::SeqCst));
    distrust(&word);
    before
}

/// Enters a descriptor in place of what is known of it; with no entry, calls on it are the kernel's.
/// False if it is something else by now.
pub(crate) fn replace(fd: c_int, old: Entry, new: Option<Entry>) -> bool {
    let replaced = exchange(fd, old.0, new);
    if replaced {
        drop_count(old);
    }
    replaced
}

/// Forgets a descriptor, and returns its entry if it has one. The caller [`drop_count`]s that.
pub(crate) fn clear(fd: c_int) -> Option<Entry> {
    let word = word(fd)?;
    if word.load(Ordering::Acquire) == 0 {
        return None;
    }
    Entry::of(word.swap(nothing(fd), Ordering::AcqRel))
}

/// A descriptor that is being closed or replaced. Who comes meanwhile waits: until the kernel has done it,
/// a call may be of the file that it was, and behind it of another.
pub(crate) struct Leaving {
    fd: c_int,
    was: u64,
    mark: u64,
}

/// A descriptor is about to be closed or replaced; none if it has no entry. Signals are held: a handler
/// would wait for itself.
pub(crate) fn leave(fd: c_int) -> Option<Leaving> {
    let word = word(fd)?;
    let turn = (TURNS.fetch_add(1, Ordering::Relaxed) & TURN_MASK) << TURN_SHIFT;
    let mark = turn | LEAVING;
    let leaves = |was| Entry::of(was).map(|_| mark);
    let was = word.fetch_update(Ordering::SeqCst, Ordering::Acquire, leaves).ok()?;
    Some(Leaving { fd, was, mark })
}

impl Leaving {
    /// It is closed, or something else: what it was. The caller [`drop_count`]s that.
    pub(crate) fn gone(self) -> Option<Entry> {
        left(self.fd, self.mark);
        Entry::of(self.was)
    }

    /// It is what it was.
    pub(crate) fn stays(self) {
        if let Some(word) = word(self.fd) {
            // Who was forked meanwhile has it, too.
            let was = self.was & !MARKS;
            let _ = word.compare_exchange(self.mark, was, Ordering::SeqCst, Ordering::Relaxed);
        }
    }
}

/// Whether somebody closes or replaces a descriptor just now: which time that is.
pub(crate) fn leaving(fd: c_int) -> Option<u64> {
    let value = word(fd)?.load(Ordering::Acquire);
    (value & SLOT_MASK == LEAVING).then_some(value)
}

/// A descriptor that was being closed is nothing any more; false if it is something else by now.
pub(crate) fn left(fd: c_int, leaving: u64) -> bool {
    word(fd).is_some_and(|word| {
        let to = nothing(fd);
        word.compare_exchange(leaving, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    })
}

/// Whether a descriptor has this entry still, or that cannot be told by it.
#[inline(always)]
pub(crate) fn is_still(fd: c_int, entry: Entry) -> bool {
    get(fd) == Some(entry) || differ()
}

/// One descriptor less on the entry's file; returns how many are left in this process.
pub(crate) fn drop_count(entry: Entry) -> u32 {
    let Some(file) = slot_file(entry.slot()) else { return 0 };
    if !entry.is_of(file.incarnation.load(Ordering::Acquire)) {
        // Of a file that was not managed when it lost the slot: there is nothing to put away.
        return u32::MAX;
    }
    file.descriptors
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| Some(count.saturating_sub(1)))
        .unwrap_or(0)
        .saturating_sub(1)
}

/// Remembers which file a slot is, as the manager says. False if that cannot be noted.
pub(crate) fn identify(entry: Entry, stat: &libc::stat) -> bool {
    let slot = entry.slot();
    let (Some(file), Some(known)) = (slot_file(slot), shared(slot)) else { return false };
    let incarnation = known.incarnation.load(Ordering::Acquire);
    if !entry.is_of(incarnation) {
        // It is another file's already: what is entered now is found to be of the past when it is used.
        return true;
    }
    if file.incarnation.load(Ordering::Relaxed) != incarnation {
        file.shown.store(0, Ordering::Relaxed);
        file.mapped.store(0, Ordering::Relaxed);
        file.mapped_here.store(0, Ordering::Relaxed);
        file.descriptors.store(0, Ordering::Relaxed);
        // Before it passes for the new file's. Nobody stores to it: a file that is being changed is
        // not let go of.
        file.frames.unmap();
        file.open.forget(file.frames.are_stored_to());
        file.incarnation.store(incarnation, Ordering::Release);
    }
    file.device.store(stat.st_dev, Ordering::Relaxed);
    file.inode.store(stat.st_ino, Ordering::Release);
    true
}

/// What a descriptor with these flags proves, as bits.
fn rights(flags: c_int) -> u64 {
    match flags & libc::O_ACCMODE {
        libc::O_RDONLY => 1,
        libc::O_WRONLY => 2,
        _ => 3,
    }
}

/// This process showed the manager a descriptor of the slot's file. `heard` is what the manager said
/// of its errors, and the time by which these had happened.
pub(crate) fn remember_shown(
    slot: u32,
    stat: &libc::stat,
    flags: c_int,
    pid: i32,
    heard: (u64, u64),
) {
    let Some(file) = slot_file(slot) else { return };
    // Who reads `heard` finds a time that is no earlier than its own.
    file.heard_ns.fetch_max(heard.1, Ordering::AcqRel);
    file.heard.store(heard.0, Ordering::Release);
    let who = (pid as u32 as u64) << 32;
    let _ = file.shown.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| {
        Some(who | rights(flags) | if old >> 32 == who >> 32 { old & 3 } else { 0 })
    });
    LATE[late(stat)].store(slot + 1, Ordering::Release);
}

fn late(stat: &libc::stat) -> usize {
    let mixed = (stat.st_ino ^ stat.st_dev.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 52) as usize % LATELY
}

/// The slot of a file of which this process showed the manager a descriptor with no fewer rights,
/// if the file is still as the manager knows it: then there is nothing to tell or ask. With it comes
/// what a descriptor that was opened at this time has heard of errors.
pub(crate) fn shown(
    stat: &libc::stat,
    flags: c_int,
    pid: i32,
    opened_ns: u64,
) -> Option<(Tenancy, u64)> {
    let slot = LATE[late(stat)].load(Ordering::Acquire).checked_sub(1)?;
    let (known, file) = (shared(slot)?, slot_file(slot)?);
    let shown = file.shown.load(Ordering::Acquire);
    let stamp = raw::stamp(stat);
    let incarnation = known.incarnation.load(Ordering::Acquire);
    let same = is_record_of(file, stat)
        && file.incarnation.load(Ordering::Relaxed) == incarnation
        && shown >> 32 == pid as u32 as u64
        && shown & rights(flags) == rights(flags)
        && known.flags.load(Ordering::Acquire) & SLOT_ACTIVE != 0
        && known.generation.load(Ordering::Acquire) % 2 == 0
        && known.size_bytes.load(Ordering::Acquire) == stat.st_size as u64
        && overwrite::is_sure_stamp(slot, known, stamp);
    let heard = file.heard.load(Ordering::Acquire);
    let is_known = same && opened_ns >= file.heard_ns.load(Ordering::Acquire);
    is_known.then_some((Tenancy { slot, incarnation }, heard))
}

fn is_record_of(file: &SlotFile, stat: &libc::stat) -> bool {
    file.inode.load(Ordering::Acquire) == stat.st_ino
        && file.device.load(Ordering::Relaxed) == stat.st_dev
}

/// Whether a descriptor's status is that of the entry's file, and that has its slot still.
pub(crate) fn is_file(entry: Entry, stat: &libc::stat) -> bool {
    slot_file(entry.slot()).is_some_and(|file| {
        is_record_of(file, stat)
            && entry.is_of(file.incarnation.load(Ordering::Relaxed))
            && is_current(entry)
    })
}

/// Whether the entry's file has its slot still.
#[inline(always)]
pub(crate) fn is_current(entry: Entry) -> bool {
    shared(entry.slot()).is_some_and(|known| entry.is_of(known.incarnation.load(Ordering::SeqCst)))
}

/// Whether the file that was met in a slot has it still.
pub(crate) fn is_present(slot: u32, file: &SlotFile) -> bool {
    shared(slot).is_some_and(|known| {
        known.incarnation.load(Ordering::Acquire) == file.incarnation.load(Ordering::Relaxed)
    })
}

/// Whether the manager serves this file's content now.
#[inline(always)]
pub(crate) fn is_active(entry: Entry) -> bool {
    has_flag(entry, SLOT_ACTIVE)
}

/// Whether programs have a managed mapping of this file, or had.
pub(crate) fn is_mapped(entry: Entry) -> bool {
    has_flag(entry, SLOT_MAPPED)
}

#[inline(always)]
fn has_flag(entry: Entry, flag: u32) -> bool {
    // In this order: the slot is no other file's as long as this one is managed and open here.
    shared(entry.slot()).is_some_and(|known| known.flags.load(Ordering::SeqCst) & flag != 0)
        && is_current(entry)
}

/// One above the highest descriptor that may have an entry.
pub(crate) fn used() -> u32 {
    DESCRIPTORS_USED.load(Ordering::Acquire)
}

/// Numbers up to one above the highest that was ever known, in a range (both ends included).
fn numbers(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let end = used().min(last.saturating_add(1));
    (first..end).map(|fd| fd as c_int)
}

/// All descriptors with an entry in a range of numbers (both ends included).
pub(crate) fn entries(first: u32, last: u32) -> impl Iterator<Item = (c_int, Entry)> {
    numbers(first, last).filter_map(|fd| get(fd).map(|entry| (fd, entry)))
}

/// A descriptor of the file that `stat` is of, with what is known by it, if there is one that was shown.
pub(crate) fn of_file(stat: &libc::stat) -> Option<(c_int, Entry)> {
    entries(0, u32::MAX).find(|(_, entry)| is_file(*entry, stat))
}

/// All descriptors in a range of numbers (both ends included) that were or may have to be shown to
/// the manager.
pub(crate) fn known(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    numbers(first, last).filter(|fd| !is_plain(*fd) && !is_connection(*fd))
}

/// Whether a descriptor of a file that the manager serves is open.
pub(crate) fn any_active() -> bool {
    entries(0, u32::MAX).any(|(_, entry)| is_active(entry))
}
