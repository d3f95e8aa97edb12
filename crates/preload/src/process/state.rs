//! What this process has going on with the manager, and how a forked child notices that none of it
//! is its own.

use crate::descriptors::{files, table};
use crate::link::connection::Connection;
use crate::link::{connection, userfault};
use crate::memory::fork;
use crate::memory::gate::Gate;
use crate::process::environment;
use crate::raw::{self, Lock, SignalsHeld};
use crate::raw_call;
use crate::reading::direct;
use crate::real;
use crate::writing::overwrite;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Connections a process may have: so many threads can wait for the manager at once, and two more can end
/// what these wait for (see [`connection`]).
pub(crate) const CONNECTIONS_MAX: usize = 66;
/// Locks for calls that use a descriptor's own offset; descriptors share them by
/// [`table::Entry::lock_index`].
pub(crate) const OFFSET_LOCKS: usize = 1024;

/// [`State::phase`]: all zero, so nobody has begun: a new image, or a forked child.
const FRESH: u32 = 0;
/// One thread is beginning.
const BEGINNING: u32 = 1;
/// In use.
const READY: u32 = 2;
/// The manager is gone and nothing of it was in use: everything passes through.
const GONE: u32 = 3;

/// Per-process state, in memory that the kernel wipes in a forked child; all zero is its beginning.
#[repr(C)]
pub(crate) struct State {
    phase: AtomicU32,
    /// The thread that begins.
    beginner: AtomicI32,
    /// The process whose state it is; a vfork child sees somebody else's.
    pid: AtomicI32,
    /// What [`pagekeeper_wire::Op::Hello`] says about this process.
    pub(crate) hello_kind: AtomicU32,
    /// And what tells this image from those that ran in the process before.
    pub(crate) image: AtomicU64,
    /// One of the constants of [`userfault`].
    pub(crate) userfault: AtomicU32,
    /// The shared count of plain system calls in flight, once it was asked for.
    pub(crate) raw_word: AtomicPtr<AtomicU32>,
    /// Held while one of the two above is set up.
    pub(crate) set_up: Lock,
    /// Threads that wait for a free connection.
    pub(crate) waiting: connection::Waiting,
    /// Those that wait for one to end something by.
    pub(crate) ending: connection::Waiting,
    pub(crate) connections: [Connection; CONNECTIONS_MAX],
    /// See [`connection::wear_leash`].
    pub(crate) leash: connection::Socket,
    /// A thread is about that.
    pub(crate) leashing: AtomicBool,
    pub(crate) offset_locks: [Lock; OFFSET_LOCKS],
    /// What tells this process's overwrites from others', once it was asked for; see
    /// [`crate::writing::overwrite`].
    pub(crate) number: AtomicU32,
    /// Held while mappings for [`crate::reading::direct`] are made and dropped.
    pub(crate) mapping: Lock,
    /// Held while the limit of descriptors is raised; see [`crate::link::room`].
    pub(crate) limit: Lock,
    /// Where calls that change the address space wait for each other; see [`crate::memory::turns`].
    pub(crate) turns: Gate,
    /// Held while what is to be done on signals changes.
    pub(crate) signals: Lock,
    /// Where calls that change mappings pass, but for when those are taken over that were made while the
    /// manager stood by.
    pub(crate) standby: Gate,
}

/// Null while this library is inactive.
static STATE: AtomicPtr<State> = AtomicPtr::new(core::ptr::null_mut());
/// Some process of this image has begun: a fresh [`State`] then belongs to a forked child.
static BEGAN: AtomicBool = AtomicBool::new(false);

/// The program may have made a child that shares its table of descriptors, and not its memory.
static FILES_SHARED: AtomicBool = AtomicBool::new(false);
/// The program may have made a child that shares its memory.
static MEMORY_SHARED: AtomicBool = AtomicBool::new(false);

/// Whose state it is.
pub(crate) enum View {
    /// The library is inactive, or the memory is shared with another process (a vfork child):
    /// plain system calls, and no table may change.
    Foreign,
    /// A forked child (or a new image) that did nothing managed so far.
    Fresh,
    /// Ours, in use.
    Ready(&'static State),
}

impl View {
    /// The state, if it is ours and in use.
    pub(crate) fn ready(&self) -> Option<&'static State> {
        if let View::Ready(state) = self { Some(state) } else { None }
    }
}

/// Makes the library active: maps the state. False if there is no memory for it.
pub(crate) fn allocate() -> bool {
    let bytes = size_of::<State>().next_multiple_of(4096);
    let addr = raw::reserve(bytes);
    if addr == 0 || raw_call!(libc::SYS_madvise, addr, bytes, libc::MADV_WIPEONFORK) < 0 {
        return false;
    }
    STATE.store(addr as *mut State, Ordering::Release);
    true
}

/// Whether the library is active at all.
pub(crate) fn active() -> bool {
    !STATE.load(Ordering::Relaxed).is_null()
}

/// The state, whosever it is and whatever becomes of it.
pub(crate) fn state() -> Option<&'static State> {
    let state = STATE.load(Ordering::Acquire);
    // SAFETY: null, or mapped by `allocate`, never unmapped; all zero is valid, all fields atomic.
    unsafe { state.as_ref() }
}

/// Whose state it is, without beginning anything. Where another thread is, it is waited for: a descriptor
/// that was opened meanwhile, and taken for a vfork child's, would be the kernel's for good.
pub(crate) fn view() -> View {
    let Some(state) = state() else { return View::Foreign };
    loop {
        match state.phase.load(Ordering::Acquire) {
            READY if state.is_own() => return View::Ready(state),
            FRESH => return View::Fresh,
            BEGINNING if state.beginner.load(Ordering::Relaxed) != raw::gettid() => {
                raw::yield_now()
            }
            _ => return View::Foreign,
        }
    }
}

/// Whether [`view`] would find the state in use, by this process or one that shares its memory.
#[inline(always)]
pub(crate) fn is_ready() -> bool {
    state().is_some_and(|state| state.phase.load(Ordering::Acquire) == READY)
}

/// The state, begun if need be; none if everything is to pass through.
pub(crate) fn current() -> Option<&'static State> {
    let state = state()?;
    loop {
        match state.phase.load(Ordering::Acquire) {
            READY => return state.is_own().then_some(state),
            GONE => return None,
            BEGINNING => raw::yield_now(),
            _ => begin(state),
        }
    }
}

/// [`current`] without the system call that tells a vfork child from its parent: the caller asks
/// [`State::is_own`] before it does more than count plain system calls.
pub(crate) fn glance() -> Option<&'static State> {
    let state = state()?;
    if state.phase.load(Ordering::Acquire) == READY { Some(state) } else { current() }
}

impl State {
    /// The process whose state it is.
    pub(crate) fn pid(&self) -> i32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// The manager knows this process by a number. By another one than before, if it had to think that the
    /// process was gone: then it is asked again for what goes with that.
    pub(crate) fn is_numbered(&self, number: u32) {
        let before = self.number.load(Ordering::Relaxed);
        if before != number && !matches!(before, 0 | overwrite::REFUSED) {
            self.number.store(0, Ordering::Relaxed);
        }
    }

    /// Whether it is the calling process's: a vfork child sees its parent's. Asks the kernel only
    /// in programs that ever made such a child.
    pub(crate) fn is_own(&self) -> bool {
        !MEMORY_SHARED.load(Ordering::Relaxed) || self.pid.load(Ordering::Relaxed) == raw::getpid()
    }
}

fn begin(state: &'static State) {
    let _held = SignalsHeld::new();
    if state.phase.compare_exchange(FRESH, BEGINNING, Ordering::Acquire, Ordering::Relaxed).is_err()
    {
        return;
    }
    state.beginner.store(raw::gettid(), Ordering::Relaxed);
    state.pid.store(raw::getpid(), Ordering::Relaxed);
    // No two images of a process begin at the same time.
    state.image.store(raw::now_ns().max(1), Ordering::Relaxed);
    if !BEGAN.swap(true, Ordering::Relaxed) {
        state.phase.store(READY, Ordering::Release);
        return;
    }
    // A forked child. The connections it inherited are its parent's.
    connection::forget_inherited(!FILES_SHARED.load(Ordering::Relaxed));
    if environment::user_mode_only() {
        direct::forget_all();
    }
    userfault::announce_inherited(state);
    state.phase.store(READY, Ordering::Release);
    if state.userfault.load(Ordering::Relaxed) == userfault::SENT {
        // The manager is waiting to hear whose memory the probe page's fault told it of.
        connection::connect_first(state);
    }
    files::announce_inherited(state);
}

/// The manager does not answer any more. Ends the program if it uses managed memory or files:
/// nobody can give it their content.
pub(crate) fn end_without_manager() {
    if crate::memory::mapping::any() || table::any_active() {
        raw::complain(
            b"the manager process is gone, and with it this program's managed memory and files; \
              the program ends (exit code 70)",
        );
        raw::exit_group(70);
    }
}

/// The run has ended, and what it left is in the files: everything passes through from here on.
pub(crate) fn run_over(state: &State) {
    end_without_manager();
    state.phase.store(GONE, Ordering::Release);
}

/// This process is kept from the manager, by a filter of system calls or of its own making. What it has
/// of managed memory goes on; its calls on managed files fail. Without either, everything passes through.
pub(crate) fn shut_in(state: &State) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let is_concerned = crate::memory::mapping::any() || table::any_active();
    if !SAID.swap(true, Ordering::Relaxed) {
        raw::complain(if is_concerned {
            &b"a filter (seccomp, Landlock), its confinement (AppArmor, SELinux) or another network namespace keeps this process from the manager: \
              it needs socket, connect, sendmsg, recvmsg and fcntl. Its calls on managed files fail (EIO)"[..]
        } else {
            b"a filter (seccomp, Landlock), its confinement (AppArmor, SELinux) or another network namespace keeps this process from the manager: \
              it works on files as somebody outside"
        });
    }
    if !is_concerned {
        state.phase.store(GONE, Ordering::Release);
    }
}

/// The manager refuses this process: everything passes through.
pub(crate) fn refused(state: &State) {
    state.phase.store(GONE, Ordering::Release);
}

/// Called before a child is made that may share this memory: it must find it begun by its parent.
pub(crate) fn before_sharing() {
    let _ = current();
    crate::descriptors::table::share_all();
    crate::link::room::settle();
    MEMORY_SHARED.store(true, Ordering::SeqCst);
}

/// [`before_sharing`] in front of `vfork`; returns where the real one is.
pub(crate) extern "C" fn before_vfork() -> *mut libc::c_void {
    before_sharing();
    crate::real::vfork_address()
}

/// A child with these flags of `clone(2)` is about to be made: one that shares the memory and not the
/// table of descriptors, and does so while its parent goes on, has another table with the same numbers.
/// One that shares the table and not the memory changes it unseen.
pub(crate) fn sharing_memory(flags: usize) {
    crate::link::bell::before_namespace(flags);
    if flags as libc::c_int & (libc::CLONE_VM | libc::CLONE_FILES) == libc::CLONE_FILES {
        FILES_SHARED.store(true, Ordering::Relaxed);
    }
    let kind = flags as libc::c_int & (libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_VFORK);
    if kind == libc::CLONE_VM || kind & !libc::CLONE_VFORK == libc::CLONE_FILES {
        tables_differ();
    }
}

/// glibc's `__libc_single_threaded`, or null: a `char` that is not 0 as long as there is one thread.
static SINGLE_THREADED: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Looks libc's variable up, in the constructor: later that would wait for whoever loads a library, and that
/// one perhaps for this thread.
pub(crate) fn resolve() {
    let found = real::of_program(c"__libc_single_threaded");
    SINGLE_THREADED.store(found.cast(), Ordering::Relaxed);
}

/// Whether this process has no other thread, as far as libc knows.
pub(crate) fn is_only_thread() -> bool {
    let variable = SINGLE_THREADED.load(Ordering::Relaxed);
    // SAFETY: not null, libc's variable, which stays; it is read as something that other code changes.
    !variable.is_null() && unsafe { variable.read_volatile() } != 0
}

/// From now on threads have tables of descriptors of their own, which begin as copies of this one's: all
/// of them can use what is connected here, and as long as one does the manager knows this process.
pub(crate) fn tables_differ() {
    if let Some(state) = current() {
        connection::ensure_any(state);
    }
    table::set_differ();
}

/// What is to be done before `clone`, whose first arguments these are; returns what to jump to.
pub(crate) extern "C" fn before_clone(
    main: usize,
    stack: usize,
    flags: libc::c_int,
) -> *mut libc::c_void {
    let flags = flags as u32 as usize;
    if flags & libc::CLONE_VM as usize == 0 && main != 0 && stack != 0 {
        sharing_memory(flags);
        return fork::clone_with_copy as *const () as *mut _;
    }
    before_sharing();
    sharing_memory(flags);
    crate::real::clone_address()
}
