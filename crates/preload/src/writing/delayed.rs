//! Writes that are delayed: what is written is stored in memory, and written back later.
//!
//! Only where the user asked for it ([`SLOT_DELAYED`]): others outside see what is written when it was
//! written back. A page has to be open for that (the protocol is told at [`Op::OpenPages`]): the
//! manager opens those that this process writes to again and again, since opening one costs as much as
//! several writes in the usual way ([`crate::writing::overwrite`]), and it closes them when it writes them back.
//!
//! Nothing is held meanwhile, so a signal's handler may write, too, and a process may die anywhere: a
//! store into a page that was being closed is followed by a write in the usual way.
//! (M. Braunstein, M. Riley and J. Wilkes, "Improving the efficiency of UNIX file buffer caches", SOSP
//! 1989, section 3.)

use crate::descriptors::files::File;
use crate::descriptors::table::{self, Entry};
use crate::link::connection::ask_with;
use crate::process::state::{self, State};
use crate::raw::{self, SignalsHeld};
use crate::raw_call;
use crate::reading::transfer::Buffers;
use crate::reading::{direct, guard};
use crate::writing::{change, overwrite};
use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};
use libc::{c_int, iovec};
use pagekeeper_wire::{
    Op, PAGE_BYTES, Request, SLOT_ACTIVE, SLOT_DELAYED, SLOT_DIRECT, open_page_bit,
};

/// Most pages of a write that is delayed: as many as the manager opens by one message.
const PAGES_MAX: u64 = 64;
/// So often in a row a page is written to in the usual way before it is opened.
const WRITES_BEFORE: u64 = 3;
/// Twice as often whenever it was opened in vain (an append to it closes it, for one), so many times.
const DOUBLINGS_MAX: u64 = 3;
/// Opening pages is worth it where so many writes follow before what they stored is to be seen.
const WORTH: u32 = 64;
/// Most that is waited before pages of a file are opened again, in times that one could have been.
const WAIT_MAX: u32 = 1 << 14;
/// Pages whose writes are counted.
const COUNTED: usize = 1 << COUNTED_BITS;
const COUNTED_BITS: u32 = 14;

/// How often pages were written to, by a number made of slot and page: that above its low byte, which
/// counts, and in its highest two bits how often the page was opened, and then not stored to.
static COUNTS: [AtomicU64; COUNTED] = [const { AtomicU64::new(0) }; COUNTED];
const VAIN_SHIFT: u32 = 6;
const _: () = assert!(WRITES_BEFORE << DOUBLINGS_MAX < 1 << VAIN_SHIFT && DOUBLINGS_MAX < 1 << 2);

/// The number of a page, and where its writes are counted.
fn counted(entry: Entry, page: u64) -> (u64, &'static AtomicU64) {
    let name = (u64::from(entry.slot()) << 40 ^ page) << 8;
    (name, &COUNTS[(name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - COUNTED_BITS)) as usize])
}

/// What this process knows of a file's open pages. All zero: nothing.
#[repr(C)]
pub(crate) struct OpenPages {
    /// Where the manager's table of them is mapped.
    table: AtomicUsize,
    /// How many pages it has room for.
    pages: AtomicU64,
    /// How often something was stored since it was last written back for others to see, nearly.
    stored: AtomicU32,
    /// So many more writes are made in the usual way before pages are opened.
    wait: AtomicU32,
    /// What that was at first: twice as much whenever opening was not worth it.
    waited: AtomicU32,
}

impl OpenPages {
    /// Forgets a file's table. Where somebody may be looking at it still, its address space is kept.
    pub(crate) fn forget(&self, is_looked_at: bool) {
        let pages = self.pages.swap(0, SeqCst);
        let table = self.table.swap(0, SeqCst);
        for count in [&self.stored, &self.wait, &self.waited] {
            count.store(0, Relaxed);
        }
        if table != 0 && !is_looked_at {
            raw::munmap(table, bytes(pages));
        }
    }

    /// Opening pages was not worth it: none are opened for twice as long as the last time.
    fn wait_longer(&self) {
        let wait = (2 * self.waited.load(Relaxed)).clamp(4, WAIT_MAX);
        self.waited.store(wait, Relaxed);
        self.wait.store(wait, Relaxed);
    }

    /// Whether all of these pages are open.
    fn are_open(&self, first: u64, end: u64) -> bool {
        let table = self.table.load(SeqCst);
        // In this order: with a table comes what it has room for.
        if table == 0 || end > self.pages.load(SeqCst) {
            return false;
        }
        (first..end).all(|page| {
            let (word, bit) = open_page_bit(page);
            // SAFETY: the table is mapped for `pages` bits from a page-aligned address; the manager
            // changes words atomically and never cuts it off.
            let word = unsafe { &*(table as *const AtomicU64).add(word) };
            word.load(SeqCst) & bit != 0
        })
    }
}

/// Bytes of a table.
fn bytes(pages: u64) -> usize {
    (pages.div_ceil(64) * 8) as usize
}

/// How a write without a system call went.
pub(crate) enum Delayed {
    /// So many bytes are written.
    Written(usize),
    /// The descriptor's offset was moved over so many bytes from here; they are still to be written, with
    /// signals held.
    Unwritten(u64, usize, SignalsHeld),
}

/// A call of the write family that need not be made. None if nothing was done.
pub(crate) fn write(
    fd: c_int,
    iov: &impl Buffers,
    position: Option<i64>,
    rwf: c_int,
) -> Option<Delayed> {
    let (entry, is_shared) = table::storable(fd)?;
    let iov = iov.get().ok()?;
    let total = direct::total(iov);
    let (_, known) = table::records(entry)?;
    if rwf != 0 || total == 0 || known.open.table.load(Relaxed) == 0 {
        return None;
    }
    if is_shared && !can_store(raw::fcntl(fd, libc::F_GETFL, 0)) {
        return None;
    }
    if let Some(offset) = position {
        let offset = u64::try_from(offset).ok()?;
        return store(entry, iov, offset, total).then_some(Delayed::Written(total));
    }
    // Whoever shares the offset reads and writes elsewhere from here on. A handler that never returns is not to
    // leave it moved over what was not written.
    let held = SignalsHeld::new();
    let start = direct::claim(fd, total).ok()?;
    if !table::is_still(fd, entry) {
        direct::give_back(fd, total);
        return None;
    }
    Some(match store(entry, iov, start, total) {
        true => Delayed::Written(total),
        false => Delayed::Unwritten(start, total, held),
    })
}

/// Stores what is written; false if it has to be written in another way, some of it stored or not.
fn store(entry: Entry, iov: &[iovec], offset: u64, total: usize) -> bool {
    let Some((slot, known)) = table::records(entry) else { return false };
    let Some(record) = overwrite::record(entry.slot()) else { return false };
    let (first, end) = (offset / PAGE_BYTES, offset.saturating_add(total as u64));
    let pages_end = end.div_ceil(PAGE_BYTES);
    if pages_end - first > PAGES_MAX || !guard::works() || !state::is_ready() || guard::is_blocked()
    {
        return false;
    }
    // Before the pages are found open: a page is closed before it moves.
    let moves = record.moves.load(SeqCst);
    let generation = slot.generation.load(SeqCst);
    let wanted = SLOT_ACTIVE | SLOT_DIRECT | SLOT_DELAYED;
    let can_be = generation.is_multiple_of(2)
        && slot.flags.load(SeqCst) & wanted == wanted
        && end <= slot.size_bytes.load(SeqCst);
    if !can_be {
        return false;
    }
    known.frames.store(|base, bytes| {
        // Last: as long as the file had its slot all of this was the file's.
        if end > bytes || !known.open.are_open(first, pages_end) || !table::is_current(entry) {
            return false;
        }
        let stored = &known.open.stored;
        stored.store(stored.load(Relaxed).saturating_add(1), Relaxed);
        let mut to = base + offset as usize;
        let mut left = total;
        for part in iov {
            let bytes = part.iov_len.min(left);
            if !guard::copy(to, part.iov_base as usize, bytes) {
                return false;
            }
            to += bytes;
            left -= bytes;
        }
        // What was stored comes before what is read now, as the manager does it in the other order.
        fence(SeqCst);
        if record.moves.load(SeqCst) != moves || slot.generation.load(SeqCst) != generation {
            return false;
        }
        let (name, count) = counted(entry, first);
        let before = count.load(Relaxed);
        if before != name && before & !0xff == name {
            count.store(name, Relaxed);
        }
        true
    })
}

/// Whether these flags of a descriptor, or what came of asking for them, ask for no more than that what
/// is written can be read.
fn can_store(flags: isize) -> bool {
    const BARRED: c_int = libc::O_APPEND | libc::O_DSYNC | libc::O_SYNC | libc::O_DIRECT;
    flags >= 0 && flags as c_int & BARRED == 0
}

/// A descriptor with these flags was written to in the usual way.
pub(crate) fn may_store(file: &File, flags: c_int) {
    let writable = flags & libc::O_ACCMODE != libc::O_RDONLY;
    if !writable || !can_store(flags as isize) || table::storable(file.fd).is_some() {
        return;
    }
    table::set_storable(file.fd, file.entry);
    // Whoever changed them meanwhile took that away before, or is found here.
    if raw::fcntl(file.fd, libc::F_GETFL, 0) != flags as isize {
        table::unset_storable(file.fd);
    }
}

/// So many bytes at an offset of a file were written in the usual way: what is written to again and
/// again is opened. Signals are held.
pub(crate) fn note(file: &File, offset: u64, written: usize) {
    let Some((slot, known)) = table::records(file.entry) else { return };
    let first = offset / PAGE_BYTES;
    let pages = (offset + written as u64).div_ceil(PAGE_BYTES) - first;
    if slot.flags.load(Relaxed) & SLOT_DELAYED == 0
        || table::storable(file.fd).is_none()
        || !known.frames.are_mapped()
        || pages > PAGES_MAX
    {
        return;
    }
    let (name, count) = counted(file.entry, first);
    let before = count.load(Relaxed);
    let bits = if before & !0xff == name { before & 0xff } else { 0 };
    let vain = bits >> VAIN_SHIFT;
    if bits & ((1 << VAIN_SHIFT) - 1) < WRITES_BEFORE << vain {
        count.store(name | (bits + 1), Relaxed);
        return;
    }
    count.store(name | vain << VAIN_SHIFT, Relaxed);
    let wait = known.open.wait.load(Relaxed);
    if wait > 0 {
        known.open.wait.store(wait - 1, Relaxed);
        return;
    }
    let end = (first + pages) * PAGE_BYTES;
    if is_unusual(file.fd, end) {
        table::unset_storable(file.fd);
        return;
    }
    let mut request = file.request(Op::OpenPages);
    (request.b, request.c) = (first, pages);
    let opened = if known.open.table.load(SeqCst) != 0 {
        file.ask(&request).map_or(0, |reply| reply.r0)
    } else {
        request.d = 1;
        adopt(file, &known.open, &request)
    };
    if opened == 0 {
        return known.open.wait_longer();
    }
    // Until something is stored there.
    count.store(name | (vain + 1).min(DOUBLINGS_MAX) << VAIN_SHIFT, Relaxed);
    known.frames.count(pages as usize);
    // What is open is written back, stored to or not.
    known.open.stored.fetch_max(1, Relaxed);
}

/// Whether the kernel would do more for a write than to change the file's content.
fn is_unusual(fd: c_int, end: u64) -> bool {
    let clears_bits = |stat: libc::stat| stat.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0;
    raw::longest_file() < end || raw::fstat(fd).map_or(true, clears_bits)
}

/// Opens pages, and maps the table of them; how many are open.
fn adopt(file: &File, open: &OpenPages, request: &Request) -> u64 {
    let Ok((reply, table)) = ask_with(file.state, request, &[], -1) else { return 0 };
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    let base = match reply.r1 {
        0 => -1,
        pages => raw::map(bytes(pages), libc::PROT_READ, flags, table, 0),
    };
    raw::close(table);
    if base < 0 {
        return 0;
    }
    let _held = SignalsHeld::new();
    let _lock = file.state.mapping.lock();
    if open.table.load(Acquire) != 0 || !table::is_current(file.entry) {
        raw::munmap(base as usize, bytes(reply.r1));
        return reply.r0;
    }
    raw_call!(libc::SYS_madvise, base, bytes(reply.r1), libc::MADV_DONTDUMP);
    open.pages.store(reply.r1, SeqCst);
    open.table.store(base as usize, Release);
    reply.r0
}

/// What was stored is about to be written back, since others are to see it. Where that happens after
/// every few writes (a database that gives its lock up after each change), they are made in the usual
/// way.
pub(crate) fn published(entry: Entry) {
    let Some((_, known)) = table::records(entry) else { return };
    match known.open.stored.swap(0, Relaxed) {
        0 => {}
        few if few < WORTH => known.open.wait_longer(),
        _ => known.open.waited.store(0, Relaxed),
    }
}

/// The last descriptor of a file was closed: what was stored is written back, so that others see it.
pub(crate) fn close(state: &State, entry: Entry) {
    let Some((_, known)) = table::records(entry) else { return };
    if known.open.stored.swap(0, Relaxed) != 0 && table::is_active(entry) {
        let _ = change::write_out(state, entry.slot(), (0, 0));
    }
}
