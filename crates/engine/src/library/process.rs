//! What the caches of a process share. A forked child has neither its parent's caches nor this: it
//! starts with its own, so that it can have caches as well.

use crate::library::cache::Shared;
use crate::library::faults;
use crate::library::tables::Unused;
use pagekeeper_sys::Errno;
use pagekeeper_sys::alias::ForkMark;
use pagekeeper_sys::userfault::Userfault;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, OnceLock, RwLock, Weak};

/// The process that made something. In a forked child its locks may be held by threads that are not there, and what
/// it stands for is the parent's. For what is asked seldom: it takes a system call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maker(u32);

impl Maker {
    /// This process.
    pub(crate) fn new() -> Maker {
        Maker(std::process::id())
    }

    pub(crate) fn is_here(self) -> bool {
        std::process::id() == self.0
    }

    /// `EOWNERDEAD`: in a forked child.
    pub(crate) fn check(self) -> io::Result<()> {
        if self.is_here() { Ok(()) } else { Err(Errno::OWNERDEAD.into()) }
    }
}

/// What one process has, for as long as it lives.
pub(crate) struct Process {
    /// Tells it from its children.
    pub(crate) mark: ForkMark,
    /// Tables that no cache uses any more.
    pub(crate) unused: Unused,
    /// Whose region is where, for the SIGBUS handler. Held for moments by code that touches no
    /// region.
    pub(crate) inline: RwLock<Vec<(Range<u64>, Weak<Shared>)>>,
    /// See [`faults::one_by_one`]; none where there is no such thing.
    pub(crate) one_by_one: Option<Userfault>,
    /// What a child has in place of this, in its copy of the memory.
    child: OnceLock<Box<Process>>,
}

static FIRST: OnceLock<Process> = OnceLock::new();

/// This process's, if it had a cache.
pub(crate) fn known() -> Option<&'static Process> {
    let mut process = FIRST.get()?;
    while !process.mark.is_here() {
        process = process.child.get()?;
    }
    Some(process)
}

/// This process's; made at first use.
pub(crate) fn here() -> Result<&'static Process, Errno> {
    if let Some(process) = known() {
        return Ok(process);
    }
    let made = Process {
        mark: ForkMark::new()?,
        unused: Mutex::default(),
        inline: RwLock::default(),
        one_by_one: faults::one_by_one(),
        child: OnceLock::new(),
    };
    // Of two made at once, one is never used: a page is lost.
    match FIRST.get() {
        None => drop(FIRST.set(made)),
        Some(mut last) => {
            while let Some(next) = last.child.get() {
                last = next;
            }
            drop(last.child.set(Box::new(made)));
        }
    }
    known().ok_or(Errno::NOMEM)
}
