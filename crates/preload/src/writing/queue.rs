//! The threads of a process that wait to write to a file without a message: one after the other.
//!
//! A file's record is one process's at a time ([`crate::writing::overwrite`]), which others wait for by looking
//! again and again, and not for long. So of each process one thread does, and the others sleep.

use crate::raw;
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

/// Others sleep until it is left.
const WAITED_FOR: u32 = 1 << 31;

/// Whose turn it is: nobody's if it is 0, else that of a thread of the process with this number. A forked child
/// has what its parent had, and another number: that thread is not there.
#[repr(transparent)]
pub(crate) struct Queue(AtomicU32);

/// The caller's turn, as long as this lives. Signals are to be held meanwhile.
pub(crate) struct Turn<'a>(&'a Queue);

/// How long a turn is waited for: whose it is may have ended without leaving, as a process that shared this one's
/// memory, or wait for storage.
const WAIT_NS_MAX: u64 = 1_000_000_000;

impl Queue {
    /// Waits for its turn; none if it does not come.
    pub(crate) fn enter(&self, number: NonZeroU32) -> Option<Turn<'_>> {
        let mut since_ns = None;
        let mut mine = number.get() & !WAITED_FOR;
        loop {
            let now = self.0.load(Relaxed);
            if now & !WAITED_FOR != mine & !WAITED_FOR {
                if self.0.compare_exchange(now, mine, SeqCst, Relaxed).is_ok() {
                    return Some(Turn(self));
                }
                continue;
            }
            // Whoever slept does not know whether others do.
            mine |= WAITED_FOR;
            if now == mine || self.0.compare_exchange(now, mine, SeqCst, Relaxed).is_ok() {
                let now_ns = raw::now_ns();
                if now_ns - *since_ns.get_or_insert(now_ns) > WAIT_NS_MAX {
                    return None;
                }
                raw::futex_wait(&self.0, mine);
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(0, SeqCst) & WAITED_FOR != 0 {
            raw::futex_wake(&self.0.0);
        }
    }
}
