//! Memory that the kernel does not hand to a forked child, and that the child maps for itself.
//!
//! Such memory is MADV_DONTFORK: heap memory, and mappings of files where the kernel does not report
//! forks to the manager (a child that inherited those would find zeros in them). A child maps what
//! its parent had before any code of the program runs in it: the handlers of [`watch`] are the last
//! to run before a fork and the first after it, and no signal is handled in between. So it is for
//! children of `_Fork`, `clone` and `syscall`, of which libc runs no handlers. A child made without
//! libc has none of it: it ends by SIGSEGV when it touches some, and can execute another program as
//! before.
//!
//! The same handlers have other threads wait that would change the address space ([`turns`]).

use crate::descriptors::table;
use crate::link::connection::{ask, ask_with, note};
use crate::link::{room, standby, userfault};
use crate::memory::call::Mmap;
use crate::memory::gate::Closed;
use crate::memory::mapping;
use crate::memory::{heap, turns};
use crate::process::environment;
use crate::process::state::{self, State};
use crate::raw::{self, Lock, LockGuard, SignalsHeld};
use crate::reading::direct;
use crate::streams::stream_list::StreamList;
use crate::writing::lock_files;
use crate::{raw_call, real};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use libc::c_int;
use pagekeeper_wire::{
    FORK_AHEAD, FORK_BEGIN, FORK_END, FORK_FAILED, INHERIT_LIBRARY, INHERIT_NOTHING,
    INHERIT_PRIVATE, Op, PAGE_BYTES, Reply, Request,
};

/// Forks of this image are followed.
static WANTED: AtomicBool = AtomicBool::new(false);
/// They cannot be.
static FAILED: AtomicBool = AtomicBool::new(false);
/// One thread at a time forks, if its child inherits something or other threads wait meanwhile ([`turns`]): from
/// [`before`] on, with signals held back, until it is over. (libc lets several run their handlers at a time.)
static FORKING: Lock = Lock::new();
/// Which thread that is: [`raw::thread`]. Its child has its name.
static FORKER: AtomicUsize = AtomicUsize::new(0);
/// What that fork is known by.
static TICKET: AtomicU64 = AtomicU64::new(0);
/// [`TICKET`] of a fork whose child inherits nothing but by the kernel.
const NONE: u64 = 0;
/// [`TICKET`] of a fork whose child cannot have its memory.
const BROKEN: u64 = u64::MAX;
/// The signal mask of the thread that forks.
static MASK: AtomicU64 = AtomicU64::new(0);
/// It holds libc's lock on the list of streams.
static LISTED: AtomicBool = AtomicBool::new(false);
/// Other threads wait until it is over.
static HAS_TURN: AtomicBool = AtomicBool::new(false);
/// The thread that forked last, and its [`TICKET`]: libc says that a fork failed when it is over.
static FORKED: (AtomicUsize, AtomicU64) = (AtomicUsize::new(0), AtomicU64::new(0));

/// From now on forks are followed.
pub(crate) fn follow() {
    WANTED.store(true, Ordering::Release);
}

/// Whether forks are followed: memory may be kept from children.
pub(crate) fn is_followed() -> bool {
    WANTED.load(Ordering::Acquire) && !FAILED.load(Ordering::Relaxed)
}

/// Before others' handlers are registered: prepare handlers run last come, first served, those of
/// the child in order. Also before it is known whether forks are to be followed: an allocator that
/// is linked (jemalloc) registers its own before this library starts, and its handler locks what it
/// keeps in memory that nobody may write to by then. Handlers of a process without such memory, and of
/// one without threads or mappings of ours, do nothing.
pub(crate) fn watch() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.swap(true, Ordering::AcqRel) {
        return;
    }
    let none = core::ptr::null_mut();
    if real::__register_atfork(Some(before), Some(after), Some(in_child), none) != 0 {
        FAILED.store(true, Ordering::Relaxed);
    }
}

/// Whether this process may have memory that its children do not get from the kernel.
fn concerns() -> bool {
    heap::used() || environment::user_mode_only() && userfault::is_used()
}

fn message(state: &State, phase: u64, ticket: u64) -> Result<u64, i32> {
    let mut request = Request::new(Op::Fork);
    (request.a, request.b) = (phase, ticket);
    ask(state, &request).map(|reply| reply.r0)
}

/// Whether this process may fork now: what is dirty can be stored, and the thread's stack is not
/// itself heap memory, which nobody may write to while the process forks.
fn may_fork() -> bool {
    standby::end();
    table::share_all();
    if !heap::used() {
        return true;
    }
    let Some(state) = state::current().filter(|state| state.is_own()) else { return true };
    let page = PAGE_BYTES as usize;
    let here = (&raw const state).addr() & !(page - 1);
    if mapping::may_be_managed(here, 1) && heap::grow(state, here, page, page).0 != 0 {
        note(state, b"a thread whose stack is managed heap memory may not fork (ENOMEM)");
        return false;
    }
    let ahead = message(state, FORK_AHEAD, 0);
    if ahead.is_err() {
        note(state, b"a fork failed (ENOMEM): heap memory could not be stored");
    }
    ahead.is_ok()
}

/// A fork that is being ended. Others may fork, and signals come again, when it is dropped.
struct Ending {
    ticket: u64,
    list: Option<StreamList>,
    _turn: Option<Closed<'static>>,
    _lock: LockGuard<'static>,
    _held: SignalsHeld,
}

impl Ending {
    /// Of the calling thread's fork; none if its child inherits nothing.
    fn take() -> Option<Ending> {
        if FORKER.load(Ordering::Relaxed) != raw::thread() {
            return None;
        }
        let ticket = TICKET.load(Ordering::Relaxed);
        let held = SignalsHeld::resume(MASK.load(Ordering::Relaxed));
        let list = LISTED.load(Ordering::Relaxed).then(StreamList::resume);
        // Whatever became of the manager meanwhile. (A child's is open already: the kernel wiped its state.)
        let turn = state::state().filter(|_| HAS_TURN.load(Ordering::Relaxed));
        let turn = turn.map(|state| state.turns.resume());
        FORKER.store(0, Ordering::Relaxed);
        Some(Ending { ticket, list, _turn: turn, _lock: FORKING.resume(), _held: held })
    }
}

/// The last thing before a fork.
extern "C" fn before() {
    // libc takes it after this, and who has it may store to memory that is held by then.
    begin(concerns().then(StreamList::lock).flatten());
}

fn begin(list: Option<StreamList>) {
    let inherits = concerns();
    if !inherits && !turns::concern_forks() {
        return;
    }
    let Some(state) = state::current().filter(|state| state.is_own()) else { return };
    // A handler would find nothing in the child.
    let held = SignalsHeld::new();
    let lock = FORKING.lock();
    if let Some(list) = &list {
        // Nobody writes there any more when the fork has begun.
        list.take_out(mapping::may_be_managed);
    }
    // Before stores are held back: who passes may wait for one.
    let turn = state.turns.close();
    let ticket = match inherits {
        true => message(state, FORK_BEGIN, 0).unwrap_or(BROKEN),
        false => NONE,
    };
    if ticket == NONE && turn.is_none() {
        return;
    }
    MASK.store(held.keep(), Ordering::Relaxed);
    TICKET.store(ticket, Ordering::Relaxed);
    LISTED.store(list.is_some(), Ordering::Relaxed);
    HAS_TURN.store(turn.is_some(), Ordering::Relaxed);
    FORKER.store(raw::thread(), Ordering::Relaxed);
    if let Some(list) = list {
        list.keep();
    }
    if let Some(turn) = turn {
        turn.keep();
    }
    lock.keep();
}

/// Tells the manager, in the parent.
fn tell(phase: u64, ticket: u64) {
    if !matches!(ticket, NONE | BROKEN)
        && let Some(state) = state::current()
    {
        let _ = message(state, phase, ticket);
    }
}

/// The first thing after a fork, in the parent.
extern "C" fn after() {
    if let Some(ending) = Ending::take() {
        FORKED.0.store(raw::thread(), Ordering::Relaxed);
        FORKED.1.store(ending.ticket, Ordering::Relaxed);
        tell(FORK_END, ending.ticket);
    }
}

/// Forks by a function of libc's that runs the handlers, and returns 0 in the child and less where there is
/// none.
pub(crate) fn by_libc(call: impl FnOnce() -> c_int) -> c_int {
    if !may_fork() {
        raw::set_errno(libc::ENOMEM);
        return -1;
    }
    let forking = room::forking();
    forget_forked();
    let child = call();
    match child {
        0 => forking.forked(),
        ..0 => failed(),
        _ => {}
    }
    child
}

/// What a fork of this thread that is over was known by is not that of the next one, which may fail before it
/// has begun (`forkpty(3)` without a terminal), or of another thread that has its place.
fn forget_forked() {
    let (own, order) = (raw::thread(), Ordering::Relaxed);
    let _ = FORKED.0.compare_exchange(own, 0, order, order);
}

/// There is no child.
fn failed() {
    if let Some(ending) = Ending::take() {
        return tell(FORK_FAILED, ending.ticket);
    }
    // If another one forked meanwhile, the manager finds out that nobody comes.
    let _held = SignalsHeld::new();
    let _lock = FORKING.lock();
    if FORKED.0.swap(0, Ordering::Relaxed) == raw::thread() {
        tell(FORK_FAILED, FORKED.1.load(Ordering::Relaxed));
    }
}

/// The first thing after a fork, in the child: maps what it inherits.
extern "C" fn in_child() {
    FORKED.0.store(0, Ordering::Relaxed);
    let Some(mut ending) = Ending::take() else {
        // Another thread's was going on.
        FORKER.store(0, Ordering::Relaxed);
        return FORKING.is_nobodys();
    };
    let list = ending.list.take();
    let inherits = |state: &State| {
        (!environment::user_mode_only() || userfault::ensure(state))
            && inherit(state, ending.ticket).is_ok()
    };
    let inherited = match ending.ticket {
        NONE => true,
        BROKEN => false,
        _ => state::current().is_some_and(inherits),
    };
    if !inherited {
        if environment::user_mode_only() {
            // Nobody is to wait for it.
            tell(FORK_FAILED, ending.ticket);
        }
        raw::complain(
            b"a forked child could not be given its parent's managed memory; it ends (exit code 70)",
        );
        raw::exit_group(70);
    }
    if let Some(list) = list {
        list.reset();
    }
}

fn inherit(state: &State, ticket: u64) -> Result<(), ()> {
    let mut from = 0;
    loop {
        let mut request = Request::new(Op::Inherit);
        (request.a, request.b) = (ticket, from);
        let (reply, memfd) = ask_with(state, &request, &[], -1).map_err(|_| ())?;
        if reply.r0 == 0 {
            return Ok(());
        }
        place(state, &reply, memfd)?;
        from = reply.r0 + reply.r1;
    }
}

/// Maps one range. Closes the memfd.
fn place(state: &State, range: &Reply, memfd: c_int) -> Result<(), ()> {
    let (addr, bytes, offset) = (range.r0 as usize, range.r1 as usize, range.r2);
    let flags = libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
    let prot = range.r3 as u16 as c_int;
    match (range.r3 >> 32).checked_sub(1) {
        None => heap::place(state, addr, bytes, offset, memfd, flags, prot).map_err(|_| ()),
        Some(slot) => {
            let is_librarys = range.r3 & INHERIT_LIBRARY != 0;
            // The library had it mapped, and the file was let go of.
            if range.r3 & INHERIT_NOTHING != 0 {
                return Ok(());
            }
            let private = range.r3 & INHERIT_PRIVATE != 0;
            let kind = if private { libc::MAP_PRIVATE } else { libc::MAP_SHARED };
            let flags = flags | kind;
            let mmap = Mmap {
                addr,
                bytes,
                prot: libc::PROT_NONE,
                flags,
                fd: memfd,
                offset: offset as i64,
            };
            let mapped = mmap.plain();
            raw::close(memfd);
            match mapped {
                at if at == addr as isize => {
                    let owner = match is_librarys {
                        true => mapping::Owner::Library,
                        false => mapping::Owner::Program,
                    };
                    let made = mapping::commit(state, slot, &Mmap { prot, ..mmap }, owner);
                    if is_librarys {
                        match made {
                            Ok(()) => direct::inherited(slot, addr, bytes),
                            // The file may have been let go of in this moment.
                            Err(()) => turns::unmap(addr, bytes),
                        }
                        return Ok(());
                    }
                    made
                }
                // Another thread of the parent put something else there in the last moment.
                at if at == -libc::EEXIST as isize => Ok(()),
                _ => Err(()),
            }
        }
    }
}

/// A child made by a system call without libc, if it gets a copy of the memory and returns here.
pub(crate) fn raw_fork(flags: usize, stack: usize, call: impl FnOnce() -> isize) -> Option<isize> {
    table::share_all();
    if flags & libc::CLONE_VM as usize == 0 {
        standby::end();
    }
    if flags & libc::CLONE_VM as usize != 0 || stack != 0 {
        return None;
    }
    let forking = room::forking();
    if concerns() && !may_fork() {
        return Some(-libc::ENOMEM as isize);
    }
    forget_forked();
    // No lock of libc's is waited for from here on, nor may one be: `_Fork` is for signal handlers.
    begin(None);
    let result = call();
    match result {
        0 => {
            forking.forked();
            in_child();
        }
        error if error < 0 => failed(),
        _ => after(),
    }
    Some(result)
}

/// A child of `clone(3)` that gets a copy of the memory. Libc's would run on the child's own stack at once,
/// which may lie in memory that the child has yet to map, and the program's function be the first to run:
/// so the child begins on a copy of its parent's, like one of `fork`.
pub(crate) extern "C" fn clone_with_copy(
    main: ChildMain,
    stack: usize,
    flags: c_int,
    argument: usize,
    parent_tid: usize,
    thread_area: usize,
    child_tid: usize,
) -> c_int {
    let flags = flags as u32 as usize;
    // What the kernel stores to heap memory in the midst of a fork would wait for its end, or be lost.
    let mut told: c_int = 0;
    let wants = |what: c_int| flags & what as usize != 0;
    let is_managed = |at| mapping::may_be_managed(at, size_of_val(&told));
    let parents = wants(libc::CLONE_PARENT_SETTID | libc::CLONE_PIDFD) && is_managed(parent_tid);
    let childs = wants(libc::CLONE_CHILD_SETTID) && is_managed(child_tid);
    let told_at = if parents { (&raw mut told).addr() } else { parent_tid };
    #[cfg(target_arch = "x86_64")]
    let (last, behind) = (child_tid, thread_area);
    #[cfg(target_arch = "aarch64")]
    let (last, behind) = (thread_area, child_tid);
    // On the parent's stack.
    let call = || raw_call!(libc::SYS_clone, flags, 0usize, told_at, last, behind);
    let child = raw_fork(flags, 0, call).unwrap_or_else(call);
    // SAFETY: the program's own variable, which this call is to set.
    let tell = |at: usize, what| unsafe { (at as *mut c_int).write(what) };
    if child == 0 {
        if childs {
            tell(child_tid, raw::gettid());
        }
        begin_child(main, argument, stack);
    }
    if parents && child > 0 {
        tell(parent_tid, told);
    }
    raw::ret(child) as c_int
}

/// What a child of `clone(3)` runs.
pub(crate) type ChildMain = extern "C" fn(usize) -> c_int;

/// Runs it on the stack that it was given, from its end downwards, and ends.
fn begin_child(main: ChildMain, argument: usize, stack: usize) -> ! {
    // SAFETY: the program hands the end of memory that is the child's stack. This stack is left for good:
    // nothing that is on it is used again.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            "mov rsp, {stack}",
            "xor ebp, ebp",
            "call {run}",
            "ud2",
            stack = in(reg) stack & !15,
            run = sym run_child,
            in("rdi") main,
            in("rsi") argument,
            options(noreturn),
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            "mov sp, {stack}",
            "mov x29, xzr",
            "bl {run}",
            "brk #1",
            stack = in(reg) stack & !15,
            run = sym run_child,
            in("x0") main,
            in("x1") argument,
            options(noreturn),
        );
    }
}

extern "C" fn run_child(main: ChildMain, argument: usize) -> ! {
    let status = main(argument);
    lock_files::before_end();
    raw::exit_group(status)
}

/// Flags and stack of `clone3(2)`'s arguments.
pub(crate) fn clone3_arguments(args: usize, bytes: usize) -> (usize, usize) {
    if args == 0 || bytes < 56 {
        return (libc::CLONE_VM as usize, 0);
    }
    let words = args as *const u64;
    // SAFETY: the program's own structure, of at least seven words.
    unsafe { (words.read() as usize, words.add(5).read() as usize) }
}
