//! SIGBUS answered by code of ours: `sigaction(2)`.
//!
//! The handler is called in the thread whose access failed, on that thread's own stack (not on an
//! alternate one, which is too small for what it does), with every signal blocked that is not a
//! mishap of the handler's own. It keeps errno, does not unwind (a panic aborts the process), and
//! passes on what is not its own to whatever handled SIGBUS before it.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::OnceLock;

use crate::{Errno, Result, check};

/// An access that raised SIGBUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusError {
    /// The address.
    pub address: u64,
    /// It was a store.
    pub write: bool,
    /// The page is poisoned (`BUS_MCEERR_AR`): nothing can be done about it.
    pub poisoned: bool,
}

/// Serves an access; false if it is not its own, or cannot be served.
pub type Handler = fn(BusError) -> bool;

static HANDLER: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// What handled SIGBUS before.
static BEFORE: OnceLock<Before> = OnceLock::new();

struct Before(libc::sigaction);

// SAFETY: plain data: numbers and the address of a function.
unsafe impl Send for Before {}
// SAFETY: as above.
unsafe impl Sync for Before {}

const BUS_MCEERR_AR: i32 = 4;

/// Whether accesses can be told from stores here.
pub const SUPPORTED: bool = cfg!(target_arch = "x86_64");

/// Takes SIGBUS over, once; later calls must pass the same handler. A handler that the program
/// installs afterwards replaces this one, and must call it for what is not its own.
///
/// # Errors
/// [`Errno::NOSYS`]: not on this architecture; [`Errno::BUSY`]: another handler is in place.
pub fn install(handler: Handler) -> Result<()> {
    if !SUPPORTED {
        return Err(Errno::NOSYS);
    }
    let handler = handler as *mut c_void;
    let none = core::ptr::null_mut();
    match HANDLER.compare_exchange(none, handler, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => {}
        Err(known) if known == handler => return Ok(()),
        Err(_) => return Err(Errno::BUSY),
    }
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: both structs are alive; an all-zero sigaction is valid, and asks for nothing when
    // passed as the null new action here.
    unsafe {
        check(libc::sigaction(libc::SIGBUS, core::ptr::null(), before.as_mut_ptr()))?;
    }
    // SAFETY: the call succeeded, so the struct is filled in.
    let _ = BEFORE.set(Before(unsafe { before.assume_init() }));
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: an all-zero sigaction is valid; its mask is initialised before use. The handler has
    // the signature that SA_SIGINFO asks for, and does what the module's head says.
    unsafe {
        let action = &mut *action.as_mut_ptr();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
        libc::sigfillset(&mut action.sa_mask);
        for signal in
            [libc::SIGBUS, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT]
        {
            libc::sigdelset(&mut action.sa_mask, signal);
        }
        check(libc::sigaction(libc::SIGBUS, action, core::ptr::null_mut())).map(drop)
    }
}

#[cfg(target_arch = "x86_64")]
fn is_write(context: *const libc::ucontext_t) -> bool {
    /// Bit of a page fault's error code.
    const WRITE: i64 = 1 << 1;
    // SAFETY: the kernel passes the interrupted context to an SA_SIGINFO handler.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_ERR as usize] & WRITE != 0 }
}

#[cfg(not(target_arch = "x86_64"))]
fn is_write(_: *const libc::ucontext_t) -> bool {
    unreachable!("not installed on this architecture")
}

extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the address of this thread's errno is always valid.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a filled-in siginfo to an SA_SIGINFO handler; the address is valid
    // for signals that the kernel raised, and is looked at for those only.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as u64) };
    let handler = HANDLER.load(Ordering::SeqCst);
    let served = code > 0 && !handler.is_null() && {
        // SAFETY: only `install` stores here, and only a `Handler`.
        let handler = unsafe { core::mem::transmute::<*mut c_void, Handler>(handler) };
        handler(BusError {
            address,
            write: is_write(context.cast()),
            poisoned: code == BUS_MCEERR_AR,
        })
    };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if !served {
        pass_on(signal, info, context, code);
    }
}

/// Does what would have been done before this module came.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void, code: i32) {
    let before = BEFORE.get().map(|before| &before.0);
    let action = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    let ignored = action == libc::SIG_IGN;
    if ignored && code <= 0 {
        return;
    }
    if action == libc::SIG_DFL || ignored {
        // SAFETY: the default action runs no code of ours. The access is made again after this
        // returns, and ends the process as it would have; a signal that somebody sent is sent on.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            if code <= 0 {
                libc::raise(signal);
            }
        }
        return;
    }
    let with_info = before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0);
    // SAFETY: the program installed this address as a handler of the kind that its flags name.
    unsafe {
        if with_info {
            type Full = extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void);
            core::mem::transmute::<usize, Full>(action)(signal, info, context);
        } else {
            core::mem::transmute::<usize, extern "C" fn(i32)>(action)(signal);
        }
    }
}
