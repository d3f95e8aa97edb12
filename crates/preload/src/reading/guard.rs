//! Copying where a page may be missing: the copy stops instead of killing the program.
//!
//! A page of a managed file that cannot be read raises SIGBUS, and so does one that was cut off; a
//! buffer of the program's may be no memory at all (SIGSEGV). While such a signal comes from the
//! one routine that copies, its handler makes the routine return early, and whoever asked finds the
//! right answer by a message. All other signals go where the program wants them.

use crate::copies::bounce;
use crate::process::state::{self, State, View};
use crate::raw::{self, SignalsHeld};
use crate::{raw_call, real};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use libc::{c_int, c_void, sigaction, siginfo_t};
use pagekeeper_wire::SIGBUS_CODE;

/// The signals that a copy may raise.
const SIGNALS: [c_int; 2] = [libc::SIGBUS, libc::SIGSEGV];
/// They as a signal set.
const SET: u64 = 1 << (libc::SIGBUS - 1) | 1 << (libc::SIGSEGV - 1);

/// Where `si_addr` is in a `siginfo_t`, sigaction(2).
const SI_ADDR: usize = 16;

unsafe extern "C" {
    /// Copies forwards; returns how many bytes it did not copy. What is copied before a missing
    /// page of a short copy (up to 32 bytes) counts as not copied.
    fn pagekeeper_copy(to: usize, from: usize, bytes: usize) -> usize;
    static pagekeeper_copy_end: u8;
    static pagekeeper_copy_stop: u8;
}

// The count of what remains is right at every instruction that touches memory: rcx and r9. Large
// copies go page by page, and meanwhile have the processor look up where the page after the next one
// is: a file is mapped by single pages, whose translations cost a third of the copy otherwise. (A
// prefetch never faults.)
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".hidden pagekeeper_copy",
    ".hidden pagekeeper_copy_stop",
    ".hidden pagekeeper_copy_end",
    ".globl pagekeeper_copy",
    ".globl pagekeeper_copy_stop",
    ".globl pagekeeper_copy_end",
    ".p2align 5",
    "pagekeeper_copy:",
    "mov rcx, rdx",
    "xor r9d, r9d",
    "cmp rdx, 16",
    "jae 4f",
    "cmp rdx, 8",
    "jae 3f",
    "cmp rdx, 4",
    "jae 2f",
    "test rdx, rdx",
    "je 9f",
    "movzx eax, byte ptr [rsi]",
    "cmp rdx, 1",
    "je 1f",
    "movzx r8d, word ptr [rsi + rdx - 2]",
    "mov [rdi], al",
    "mov [rdi + rdx - 2], r8w",
    "jmp 9f",
    "1:",
    "mov [rdi], al",
    "jmp 9f",
    "2:",
    "mov eax, [rsi]",
    "mov r8d, [rsi + rdx - 4]",
    "mov [rdi], eax",
    "mov [rdi + rdx - 4], r8d",
    "jmp 9f",
    "3:",
    "mov rax, [rsi]",
    "mov r8, [rsi + rdx - 8]",
    "mov [rdi], rax",
    "mov [rdi + rdx - 8], r8",
    "jmp 9f",
    "4:",
    "cmp rdx, 32",
    "ja 5f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "jmp 9f",
    "5:",
    "cmp rdx, 4096",
    "jbe 7f",
    "mov ecx, 4096",
    "sub rdx, rcx",
    "mov r9, rdx",
    "prefetcht0 [rsi + 8192]",
    "rep movsb",
    "mov rcx, rdx",
    "xor r9d, r9d",
    "jmp 5b",
    "7:",
    "rep movsb",
    "pagekeeper_copy_end:",
    "9:",
    "xor eax, eax",
    "ret",
    "pagekeeper_copy_stop:",
    "lea rax, [rcx + r9]",
    "ret",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".hidden pagekeeper_copy",
    ".hidden pagekeeper_copy_stop",
    ".hidden pagekeeper_copy_end",
    ".globl pagekeeper_copy",
    ".globl pagekeeper_copy_stop",
    ".globl pagekeeper_copy_end",
    ".p2align 4",
    "pagekeeper_copy:",
    "1:",
    "cmp x2, #16",
    "b.lo 2f",
    "ldp x3, x4, [x1], #16",
    "stp x3, x4, [x0], #16",
    "sub x2, x2, #16",
    "b 1b",
    "2:",
    "cbz x2, 3f",
    "ldrb w3, [x1], #1",
    "strb w3, [x0], #1",
    "sub x2, x2, #1",
    "b 2b",
    "pagekeeper_copy_end:",
    "3:",
    "mov x0, #0",
    "ret",
    "pagekeeper_copy_stop:",
    "mov x0, x2",
    "ret",
);

/// Copies to or from memory that may be missing; false if it is. Only where [`install`] succeeded
/// and [`is_blocked`] says no.
pub(crate) fn copy(to: usize, from: usize, bytes: usize) -> bool {
    // SAFETY: the program gave one side for a transfer of so many bytes, the other is a mapping of
    // ours or the stack; what is not there raises a signal, whose handler ends the copy.
    unsafe { pagekeeper_copy(to, from, bytes) == 0 }
}

/// Does something with [`SIGNALS`] unblocked, so that a copy in it may meet missing memory.
pub(crate) fn unblocked<T>(work: impl FnOnce() -> T) -> T {
    if !is_blocked() {
        return work();
    }
    let (set, mut before) = (SET, 0u64);
    raw_call!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const set, &raw mut before, 8);
    let result = work();
    raw_call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, 0, 8);
    result
}

/// Whether all of some memory of the program's can be read now.
pub(crate) fn is_there(addr: usize, bytes: usize) -> bool {
    const PAGE: usize = 4096;
    let Some(last) = bytes.checked_sub(1).and_then(|more| addr.checked_add(more)) else {
        return bytes == 0;
    };
    let pages = (addr / PAGE + 1..=last / PAGE).map(|page| page * PAGE);
    // One system call for each page would do, too, but costs more than a copy.
    if works() {
        let mut byte = 0u8;
        let mut all = core::iter::once(addr).chain(pages);
        return unblocked(|| all.all(|at| copy(&raw mut byte as usize, at, 1)));
    }
    core::iter::once(addr).chain(pages).all(|at| {
        // What is managed may be absent for the kernel alone.
        if bounce::concerns(at, 1) {
            return true;
        }
        // Reads a signal set there, and refuses to do anything with it.
        raw_call!(libc::SYS_rt_sigprocmask, -1i32, at & !7, 0, 8) != -libc::EFAULT as isize
    })
}

/// What the program wants done on a signal of [`SIGNALS`], in words that a handler may read at any
/// moment.
struct Wish {
    handler: AtomicUsize,
    flags: AtomicU64,
    /// As many signals as the kernel knows.
    mask: AtomicU64,
}

static WISHES: [Wish; 2] = [const {
    Wish { handler: AtomicUsize::new(0), flags: AtomicU64::new(0), mask: AtomicU64::new(0) }
}; 2];
/// Our handlers are in place.
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// The program set handlers in a way that is not followed, or they cannot be set.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);
/// Some thread may have blocked one of [`SIGNALS`] at some time.
static MAY_BLOCK: AtomicBool = AtomicBool::new(false);

fn wish(signal: c_int) -> Option<&'static Wish> {
    SIGNALS.iter().position(|&s| s == signal).map(|at| &WISHES[at])
}

/// The first 64 signals of a set, as the kernel takes them.
fn bits(set: &libc::sigset_t) -> u64 {
    // SAFETY: glibc's set is 1024 bits, of which the kernel's are the first.
    unsafe { (&raw const *set).cast::<u64>().read() }
}

fn set_of(bits: u64) -> libc::sigset_t {
    let mut set = core::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: all zero is an empty set; it is longer than its first word.
    unsafe {
        set.as_mut_ptr().cast::<u64>().write(bits);
        set.assume_init()
    }
}

impl Wish {
    fn set(&self, action: &sigaction) {
        self.mask.store(bits(&action.sa_mask), Ordering::Relaxed);
        self.flags.store(action.sa_flags as u32 as u64, Ordering::Relaxed);
        self.handler.store(action.sa_sigaction, Ordering::Release);
    }

    fn get(&self) -> sigaction {
        sigaction {
            sa_sigaction: self.handler.load(Ordering::Acquire),
            sa_mask: set_of(self.mask.load(Ordering::Relaxed)),
            sa_flags: self.flags.load(Ordering::Relaxed) as c_int,
            sa_restorer: None,
        }
    }

    /// Puts our handler where the program's would be, on the same stack and with the same signals
    /// blocked.
    fn enforce(&self, signal: c_int) -> bool {
        let mut ours = self.get();
        let wanted = ours.sa_flags;
        ours.sa_flags = libc::SA_SIGINFO
            | wanted & (libc::SA_RESTART | libc::SA_NODEFER)
            | if ours.sa_sigaction == libc::SIG_DFL || ours.sa_sigaction == libc::SIG_IGN {
                libc::SA_ONSTACK
            } else {
                wanted & libc::SA_ONSTACK
            };
        ours.sa_sigaction = on_signal as *const () as usize;
        real::sigaction(signal, &raw const ours, core::ptr::null_mut()) == 0
    }
}

/// Puts our handlers in place, once; false if copies must not be made.
pub(crate) fn install(state: &State) -> bool {
    if GIVEN_UP.load(Ordering::Relaxed) {
        return false;
    }
    if INSTALLED.load(Ordering::Acquire) {
        return true;
    }
    let _held = SignalsHeld::new();
    let _lock = state.signals.lock();
    if !INSTALLED.load(Ordering::Acquire) {
        for (signal, wish) in SIGNALS.iter().zip(&WISHES) {
            let mut before = set_of(0);
            let mut action = wish.get();
            if real::sigaction(*signal, core::ptr::null(), &raw mut action) != 0 {
                return false;
            }
            wish.set(&action);
            if !wish.enforce(*signal) {
                return false;
            }
            // What this thread inherited.
            raw_call!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, 0, &raw mut before, 8);
            blocking(bits(&before));
        }
        INSTALLED.store(true, Ordering::Release);
    }
    true
}

/// Whether copies can be made at all.
#[inline(always)]
pub(crate) fn works() -> bool {
    INSTALLED.load(Ordering::Relaxed) && !GIVEN_UP.load(Ordering::Relaxed)
}

/// The program handles these signals in a way that is not followed.
pub(crate) fn give_up(signal: c_int) {
    if SIGNALS.contains(&signal) {
        GIVEN_UP.store(true, Ordering::Release);
    }
}

/// Signals are blocked from now on, in some thread.
pub(crate) fn blocking(set: u64) {
    if set & SET != 0 {
        MAY_BLOCK.store(true, Ordering::Release);
    }
}

/// [`blocking`] for a set of the program's.
pub(crate) fn blocking_set(set: *const libc::sigset_t) {
    // SAFETY: null, or the program's own set.
    if let Some(set) = unsafe { set.as_ref() } {
        blocking(bits(set));
    }
}

/// Whether this thread would be killed by a signal of [`SIGNALS`], because it blocks them. Costs a
/// system call only where some thread ever did.
#[inline(always)]
pub(crate) fn is_blocked() -> bool {
    MAY_BLOCK.load(Ordering::Relaxed) && {
        let mut now = 0u64;
        raw_call!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, 0, &raw mut now, 8);
        now & SET != 0
    }
}

/// `sigaction(2)`; none if it is libc's to answer.
pub(crate) fn act(signal: c_int, new: *const sigaction, old: *mut sigaction) -> Option<c_int> {
    // SAFETY: null, or the program's own.
    let (new, old) = unsafe { (new.as_ref(), old.as_mut()) };
    if let Some(new) = new {
        blocking(bits(&new.sa_mask));
    }
    let wish = wish(signal)?;
    if !INSTALLED.load(Ordering::Acquire) {
        return None;
    }
    // A vfork child sets its own handlers, not its parent's; a forked child has inherited ours.
    if let View::Foreign = state::view() {
        return None;
    }
    let _held = SignalsHeld::new();
    let _lock = state::current().map(|state| state.signals.lock());
    let before = wish.get();
    if let Some(new) = new {
        wish.set(new);
        if !wish.enforce(signal) {
            return Some(-1);
        }
    }
    if let Some(old) = old {
        *old = before;
    }
    Some(0)
}

/// `signal(3)` with these flags; none if it is libc's to answer.
pub(crate) fn handle(signal: c_int, handler: usize, flags: c_int) -> Option<usize> {
    let blocked = if flags & libc::SA_NODEFER != 0 { 0 } else { 1 << ((signal - 1) as u32 % 64) };
    let new = sigaction {
        sa_sigaction: handler,
        sa_mask: set_of(blocked),
        sa_flags: flags,
        sa_restorer: None,
    };
    wish(signal)?;
    let mut old = new;
    match act(signal, &raw const new, &raw mut old)? {
        0 => Some(old.sa_sigaction),
        _ => Some(libc::SIG_ERR),
    }
}

/// Where a thread was when a signal came.
#[cfg(target_arch = "x86_64")]
fn place(context: &mut libc::ucontext_t) -> &mut i64 {
    &mut context.uc_mcontext.gregs[libc::REG_RIP as usize]
}

/// Where a thread was when a signal came.
#[cfg(target_arch = "aarch64")]
fn place(context: &mut libc::ucontext_t) -> &mut u64 {
    &mut context.uc_mcontext.pc
}

extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands it to a handler with SA_SIGINFO.
    let raised = unsafe { is_raised(signal, &mut *info) };
    // SAFETY: as above.
    let at = place(unsafe { &mut *context.cast::<libc::ucontext_t>() });
    let (start, end) =
        (pagekeeper_copy as *const () as usize, (&raw const pagekeeper_copy_end) as usize);
    if raised && (start..end).contains(&(*at as usize)) {
        *at = (&raw const pagekeeper_copy_stop) as usize as _;
        return;
    }
    chain(signal, info, context, raised);
}

/// Whether the thread raised a signal by what it did: a page that the manager cannot serve raises a fault,
/// or the manager's own signal, which is made what the kernel's would be.
fn is_raised(signal: c_int, info: &mut siginfo_t) -> bool {
    if signal == libc::SIGBUS && info.si_code == SIGBUS_CODE {
        // SAFETY: what was sent with a value has one, and the address of a fault is the first of the fields
        // behind the three that all signals have.
        unsafe {
            let address = info.si_value().sival_ptr;
            (&raw mut *info).byte_add(SI_ADDR).cast::<*mut c_void>().write(address);
        }
        info.si_code = libc::BUS_ADRERR;
    }
    info.si_code > 0
}

/// Does what the program wants done; `raised` says that going on would only raise it again.
fn chain(signal: c_int, info: *mut siginfo_t, context: *mut c_void, raised: bool) {
    let Some(wish) = wish(signal) else { return };
    let handler = wish.handler.load(Ordering::Acquire);
    match handler {
        libc::SIG_IGN if !raised => return,
        libc::SIG_DFL | libc::SIG_IGN => {
            let mut default = wish.get();
            default.sa_sigaction = libc::SIG_DFL;
            default.sa_flags = 0;
            real::sigaction(signal, &raw const default, core::ptr::null_mut());
            if !raised {
                raw_call!(libc::SYS_tgkill, raw::getpid(), raw::gettid(), signal);
            }
            return;
        }
        _ => {}
    }
    if wish.flags.load(Ordering::Relaxed) as c_int & libc::SA_RESETHAND != 0 {
        wish.handler.store(libc::SIG_DFL, Ordering::Release);
    }
    // SAFETY: the program's handler, of either kind: the arguments that one of the older kind does
    // not take are not looked at, as when the kernel calls it.
    unsafe {
        core::mem::transmute::<usize, extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(handler)(
            signal, info, context,
        );
    }
}
