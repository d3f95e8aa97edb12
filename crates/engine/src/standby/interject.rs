//! Interjecting: programs that make no calls have their mappings taken over as well.
//!
//! When a standby ends, each process has its mappings taken over at its next call of libc. One that
//! only touches memory (a loop over a mapped file) makes none; one of its threads is sent into the
//! preload library between two instructions ([`pagekeeper_sys::detour`]).
//!
//! A process of its own does that, a child of the holder ([`crate::launch::holder`]): what a tracer is told by
//! `waitpid(2)`, other threads of the manager would hear instead of it, who wait for the program to
//! end.

use crate::standby::standing_by;
use pagekeeper_sys::detour::{self, Detour};
use pagekeeper_sys::process;
use pagekeeper_wire as wire;
use std::mem::offset_of;
use std::time::Duration;

/// How long it is until all are looked at again: at first, and at most.
const AGAIN: Duration = Duration::from_millis(1);
const AGAIN_MAX: Duration = Duration::from_millis(100);

/// A process that has mappings to be taken over.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    pid: u32,
    /// Address of its [`wire::Interjection`].
    at: u64,
}

impl Waiting {
    /// Processes that have mapped the page of a standby (by its inode) and have mappings to be taken
    /// over.
    fn all(board_inode: u64) -> impl Iterator<Item = Waiting> {
        standing_by(board_inode).filter_map(|(pid, page_end)| {
            let bytes = (wire::INTERJECTION_BYTES - size_of::<wire::Interjection>()) as u64;
            let waiting = Waiting { pid, at: page_end + bytes };
            waiting.entry()?;
            // A child of `vfork(2)` has nothing of its own, and could do nothing.
            let parent = process::parent_of(pid).ok()?;
            (!process::share_memory(pid, parent)).then_some(waiting)
        })
    }

    /// Where a thread of it is to be sent; none if that is not needed any more, or not possible.
    fn entry(self) -> Option<u64> {
        let mut bytes = [0; size_of::<wire::Interjection>()];
        if process::process_vm_read(self.pid, self.at, &mut bytes) != Ok(bytes.len()) {
            return None;
        }
        let word = |offset| {
            let bytes = bytes[offset..].first_chunk().expect("a field of the structure");
            u64::from_le_bytes(*bytes)
        };
        let entry = word(offset_of!(wire::Interjection, entry));
        let has_mapped = word(offset_of!(wire::Interjection, has_mapped));
        let is_used = word(offset_of!(wire::Interjection, is_used));
        (entry != 0 && has_mapped == 1 && is_used == 0).then_some(entry)
    }

    fn set_used(self, used: u64) -> Option<()> {
        let at = self.at + offset_of!(wire::Interjection, is_used) as u64;
        process::process_vm_write(self.pid, at, &used.to_le_bytes()).ok().map(drop)
    }

    /// Sends one of its threads, if one can be.
    fn interject(self) -> Option<()> {
        let detour = Detour { entry: self.entry()?, stack_end: self.at & !63 };
        // The process may have executed another program since it was looked at: it is once more when a
        // thread stands still.
        let mut is_used = false;
        for tid in detour::threads_in_program(self.pid) {
            let may_go = || {
                is_used = self.entry() == Some(detour.entry) && self.set_used(1).is_some();
                is_used
            };
            match detour::send(self.pid, tid, detour, wire::SIGNALS_HELD, may_go) {
                Ok(true) => return Some(()),
                Err(_) if is_used => self.set_used(0)?,
                Ok(false) | Err(_) => {}
            }
        }
        None
    }
}

/// Interjects wherever it is needed, and returns when it is no more: in the process made for it.
pub(crate) fn interject(board_inode: u64) {
    let mut again = AGAIN;
    let mut all: Vec<Waiting> = Waiting::all(board_inode).collect();
    while !all.is_empty() {
        all.retain(|waiting| waiting.entry().is_some() && waiting.interject().is_none());
        std::thread::sleep(again);
        again = (again * 2).min(AGAIN_MAX);
    }
}

/// Whether there is need of it.
pub(crate) fn is_needed(board_inode: u64) -> bool {
    Waiting::all(board_inode).next().is_some()
}
