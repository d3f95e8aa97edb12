//! Room for descriptors of ours where the program has used up its own.
//!
//! The kernel's `mmap` needs no descriptor, and ours needs one for a moment. So where the soft limit is
//! in the way (RLIMIT_NOFILE), it is raised to the hard one for that moment. Another thread that opens
//! something just then gets a descriptor above the limit, where it would have got an error: a descriptor
//! kept in reserve would be no help, since it frees its own number only, which lies above a limit that
//! the program lowered meanwhile.

use crate::process::state::{self, State, View};
use crate::raw::{self, LockGuard, SignalsHeld};
use crate::raw_call;
use core::sync::atomic::{AtomicU32, Ordering};
use libc::{c_int, rlimit};

/// How often the limit was raised.
static RAISED: AtomicU32 = AtomicU32::new(0);

/// There is room as long as this exists: nobody else lowers the limit, which may be raised. Signals are held.
pub(crate) struct Room<'a> {
    /// The limit that was raised.
    was: Option<rlimit>,
    _lock: LockGuard<'a>,
}

/// How many descriptors this process may have.
pub(crate) fn limit() -> rlimit {
    let mut limit = rlimit { rlim_cur: 1024, rlim_max: 1024 };
    raw_call!(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit);
    limit
}

fn set(limit: &rlimit) -> bool {
    raw_call!(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, core::ptr::from_ref(limit), 0) >= 0
}

/// Whether there is none for one more; `fd` is any descriptor.
fn is_lacking(fd: c_int) -> bool {
    let copy = raw::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0);
    if copy >= 0 {
        raw::close(copy as c_int);
    }
    // Of such a call EINVAL says that the limit is 0.
    matches!(-copy as c_int, libc::EMFILE | libc::EINVAL)
}

/// Makes room; none if the hard limit is reached, too.
pub(crate) fn make(state: &State) -> Option<Room<'_>> {
    raise(state.limit.lock())
}

/// Makes room if there is none; `fd` is any descriptor. That is asked where nobody has the limit raised: it
/// would be lowered before the descriptor comes, which is lost then.
pub(crate) fn ensure(state: &State, fd: c_int) -> Option<Room<'_>> {
    let lock = state.limit.lock();
    if is_lacking(fd) { raise(lock) } else { Some(Room { was: None, _lock: lock }) }
}

fn raise(lock: LockGuard<'_>) -> Option<Room<'_>> {
    let was = limit();
    let raised = rlimit { rlim_cur: was.rlim_max, ..was };
    if was.rlim_cur >= was.rlim_max {
        return None;
    }
    RAISED.fetch_add(1, Ordering::SeqCst);
    let room = Room { was: Some(was), _lock: lock };
    set(&raised).then_some(room)
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if let Some(was) = &self.was {
            restore(was);
        }
    }
}

fn restore(was: &rlimit) {
    let now = limit();
    // Another one is the program's, set meanwhile.
    if now.rlim_cur == was.rlim_max && now.rlim_max == was.rlim_max {
        set(was);
    }
}

/// What a child gets that is about to be forked. The kernel copies the limit before the memory: who has
/// it raised meanwhile may be done by then.
///
/// The limit, and [`RAISED`]; none if nobody raises the limit in this process.
pub(crate) struct Forking(Option<(rlimit, u32)>);

/// Before a fork.
pub(crate) fn forking() -> Forking {
    let View::Ready(state) = state::view() else { return Forking(None) };
    let _held = SignalsHeld::new();
    let _lock = state.limit.lock();
    Forking(Some((limit(), RAISED.load(Ordering::SeqCst))))
}

impl Forking {
    /// In the child.
    pub(crate) fn forked(&self) {
        if let Forking(Some((limit, raised))) = self
            && RAISED.load(Ordering::SeqCst) != *raised
        {
            restore(limit);
        }
    }
}

/// Before a child is made in which nothing of this library runs first: it waits until the limit is what
/// it was.
pub(crate) fn settle() {
    let _ = forking();
}

/// Makes a call that opens a descriptor or gives a negated errno, and once more with room if it lacked
/// that.
pub(crate) fn with(state: &State, call: impl Fn() -> isize) -> isize {
    let result = call();
    if result != -libc::EMFILE as isize {
        return result;
    }
    match make(state) {
        Some(_room) => call(),
        None => result,
    }
}
