//! The memory that a file's pages are in, mapped to patch what is cached of them.
//!
//! Nobody watches this mapping: a store where no page is would make one, of zeros. So only pages
//! that are in memory are touched, while the file's record keeps them there (see
//! [`crate::writing::overwrite`]). Which these are the kernel says (`mincore(2)`), of 64 pages at a time: the
//! answer holds until the manager moves a page of the file.

use crate::reading::guard;
use crate::{raw, raw_call};
use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use pagekeeper_wire::PAGE_BYTES;

const PAGE: usize = PAGE_BYTES as usize;
/// Pages asked about in one call: as many as a word has bits.
const ASKED_PAGES: usize = 64;
/// After so many pages were patched the mapping lets go of all: a page that is mapped here too cannot be
/// unmapped from outside, and what uses it goes unseen.
const MAPPED_PAGES: u32 = 512;
/// But not as long as it did so just before: each page that is patched then has to be mapped again.
const LET_GO_EVERY_NS: u64 = 20_000_000;
/// After so many in any case.
const MAPPED_PAGES_MAX: u32 = 16_384;

/// A mapping of the memory that a file's pages are in. It changes, and is stored to, only while the
/// file's record is held, or while nobody can hold it; but for [`Frames::store`]. All zero: there is
/// none.
#[repr(C)]
pub(crate) struct Frames {
    base: AtomicUsize,
    bytes: AtomicUsize,
    /// Threads that may be storing there without the record.
    storing: AtomicU32,
    /// Pages that may have been mapped since the mapping let go of all.
    mapped: AtomicU32,
    /// When that was ([`raw::recent_ns`]).
    let_go_ns: AtomicU64,
    /// An [`Answer`] for each [`ASKED_PAGES`], or 0.
    answers: AtomicUsize,
    /// Whose the memory is: to others the kernel says that all of it is there.
    owner: AtomicU32,
}

/// What the kernel said of some pages in a row. All zero: it was not asked.
#[repr(C)]
struct Answer {
    /// Which of them are in memory, a bit each.
    here: AtomicU64,
    /// One more than [`pagekeeper_wire::Overwrite::moves`] when it was asked.
    moves_after: AtomicU64,
}

/// Bytes of the answers about a mapping.
fn answers_bytes(bytes: usize) -> usize {
    bytes.div_ceil(PAGE * ASKED_PAGES) * size_of::<Answer>()
}

/// Pages that are all in memory, or all not.
struct Run {
    pages: usize,
    is_here: bool,
}

impl Frames {
    /// Puts another mapping in place of the one before.
    pub(crate) fn set(&self, base: usize, bytes: usize) {
        let old = self.base.swap(base, SeqCst);
        let old_bytes = self.bytes.swap(bytes, SeqCst);
        // Read, like the answers, only while the file's record is held.
        let answers = if base == 0 { 0 } else { raw::reserve(answers_bytes(bytes)) };
        let old_answers = self.answers.swap(answers, SeqCst);
        if old_answers != 0 {
            raw::munmap(old_answers, answers_bytes(old_bytes));
        }
        // Whoever may be storing there by itself keeps the address space for good: else it could be
        // something else by now.
        if old != 0 && !self.are_stored_to() {
            raw::munmap(old, old_bytes);
        }
    }

    /// Notes whose the memory is, before it is put in place.
    pub(crate) fn are_of(&self, user: u32) {
        self.owner.store(user, Relaxed);
    }

    /// Has something stored without the file's record being held, given the mapping's address and its
    /// bytes; false if there is none, or nothing came of it.
    pub(crate) fn store(&self, store: impl FnOnce(usize, u64) -> bool) -> bool {
        self.storing.fetch_add(1, SeqCst);
        let bytes = self.bytes();
        let base = self.base.load(SeqCst);
        // Else it is another mapping by now.
        let stored = base != 0 && bytes == self.bytes() && store(base, bytes);
        self.storing.fetch_sub(1, SeqCst);
        stored
    }

    /// Whether somebody may be storing without the record.
    pub(crate) fn are_stored_to(&self) -> bool {
        self.storing.load(SeqCst) != 0
    }

    /// So many more pages may become mapped.
    pub(crate) fn count(&self, pages: usize) {
        let mapped = self.mapped.fetch_add(pages as u32, Relaxed) + pages as u32;
        if mapped <= MAPPED_PAGES {
            return;
        }
        let now_ns = raw::recent_ns();
        let is_due = now_ns.saturating_sub(self.let_go_ns.load(Relaxed)) >= LET_GO_EVERY_NS;
        if is_due || mapped > MAPPED_PAGES_MAX {
            self.let_go_ns.store(now_ns, Relaxed);
            self.mapped.store(pages as u32, Relaxed);
            // The record need not be held here: it stays this mapping meanwhile.
            self.store(|base, bytes| {
                raw_call!(libc::SYS_madvise, base, bytes, libc::MADV_DONTNEED) >= 0
            });
        }
    }

    /// Takes the mapping away.
    pub(crate) fn unmap(&self) {
        self.set(0, 0);
    }

    /// Whether there is a mapping.
    pub(crate) fn are_mapped(&self) -> bool {
        self.base.load(Relaxed) != 0
    }

    /// How much of the file is mapped.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(SeqCst) as u64
    }

    /// Brings written bytes into the pages that are in memory, which stay there meanwhile; false if
    /// some of them could not be had. `moves` is what the file's record said since it is held.
    pub(crate) fn patch(&self, offset: u64, buffer: usize, bytes: usize, moves: u64) -> bool {
        // What is not mapped here lies behind the length that the manager knows.
        let end = (offset as usize + bytes).min(self.bytes.load(SeqCst));
        let base = self.base.load(SeqCst);
        let mut at = offset as usize;
        while at < end {
            let page = at / PAGE;
            let Some(run) = self.run(page, end.div_ceil(PAGE) - page, moves) else { return false };
            let to = ((page + run.pages) * PAGE).min(end);
            if run.is_here {
                let pages = page..to.div_ceil(PAGE);
                self.count(pages.len());
                // A read brings in what is in memory around it, a write the one page.
                for page in pages {
                    let mut byte = 0u8;
                    guard::copy(&raw mut byte as usize, base + page * PAGE, 1);
                }
                if !guard::copy(base + at, buffer + (at - offset as usize), to - at) {
                    return false;
                }
            }
            at = to;
        }
        true
    }

    /// What is known from a page on, of which so many are wanted; none if the kernel does not say.
    fn run(&self, page: usize, wanted: usize, moves: u64) -> Option<Run> {
        let first = page - page % ASKED_PAGES;
        let answer = self.answer(first)?;
        if answer.moves_after.load(Relaxed) != moves.wrapping_add(1) {
            answer.here.store(self.ask(first)?, Relaxed);
            answer.moves_after.store(moves.wrapping_add(1), Relaxed);
        }
        let here = answer.here.load(Relaxed) >> (page - first);
        let is_here = here & 1 != 0;
        let same = if is_here { here.trailing_ones() } else { here.trailing_zeros() };
        let left = (ASKED_PAGES - (page - first)).min(wanted);
        Some(Run { pages: left.min(same as usize), is_here })
    }

    /// The answer about pages from one on that begins one.
    fn answer(&self, first: usize) -> Option<&Answer> {
        let (answers, pages) = (self.answers.load(SeqCst), self.bytes.load(SeqCst) / PAGE);
        if answers == 0 || first >= pages {
            return None;
        }
        let answer = (answers as *const Answer).wrapping_add(first / ASKED_PAGES);
        // SAFETY: `set` mapped as many as the mapping of frames has, zero is valid, and all fields are
        // atomic. It takes them away only while the file's record is held, or nobody can hold it, and
        // the caller holds that as long as it uses this.
        Some(unsafe { &*answer })
    }

    /// Asks the kernel which pages are in memory from one on that begins an answer.
    fn ask(&self, first: usize) -> Option<u64> {
        // A program may give up its rights at any time.
        if raw_call!(libc::SYS_geteuid) != self.owner.load(Relaxed) as isize {
            return None;
        }
        let (base, bytes) = (self.base.load(SeqCst), self.bytes.load(SeqCst));
        let pages = ASKED_PAGES.min(bytes / PAGE - first);
        let mut is_here = [0u8; ASKED_PAGES];
        let from = base + first * PAGE;
        let asked = raw_call!(libc::SYS_mincore, from, pages * PAGE, is_here.as_mut_ptr());
        let bits = is_here.iter().rev().fold(0u64, |bits, byte| bits << 1 | u64::from(byte & 1));
        (asked >= 0).then_some(bits)
    }
}
