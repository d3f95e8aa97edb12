//! The process's userfaultfd: made here, because it acts on the memory of the process that made
//! it, and handed to the manager at once.

use crate::link::connection::{ask_with, note, wear_leash};
use crate::link::room;
use crate::memory::fork;
use crate::process::environment;
use crate::process::state::State;
use crate::raw::{self, SignalsHeld};
use crate::raw_call;
use crate::reading::guard;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use libc::c_int;
use pagekeeper_wire::{HELLO_FORKED, Op, PAGE_BYTES, Request};

/// [`State::userfault`]: the manager has none from this process.
pub(crate) const NONE: u32 = 0;
/// [`State::userfault`]: the manager has it.
pub(crate) const SENT: u32 = 1;
/// [`State::userfault`]: the kernel or the manager refused; nothing is mapped through the manager.
pub(crate) const REFUSED: u32 = 2;

/// Address of the probe page once the manager has the userfaultfd; a forked child inherits both.
static PROBE: AtomicUsize = AtomicUsize::new(0);

/// This image handed one over.
static USED: AtomicBool = AtomicBool::new(false);

/// Whether this image, or what it was forked from, has memory that the manager serves.
pub(crate) fn is_used() -> bool {
    USED.load(Ordering::Acquire)
}

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}
const _: () = assert!(size_of::<Api>() == 24);

/// `UFFD_API`.
const API: u64 = 0xaa;
/// `UFFDIO_API`.
const IOCTL_API: u64 = 0xc018_aa3f;
/// `USERFAULTFD_IOC_NEW`.
const IOCTL_NEW: u64 = 0xaa00;

const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const FEATURE_EVENT_FORK: u64 = 1 << 1;
const FEATURE_EVENT_REMAP: u64 = 1 << 2;
const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;

/// Without these, managed memory could show wrong bytes.
const NEEDED: u64 = FEATURE_EVENT_REMAP
    | FEATURE_EVENT_REMOVE
    | FEATURE_EVENT_UNMAP
    | FEATURE_MISSING_SHMEM
    | FEATURE_MINOR_SHMEM;
/// `UFFD_USER_MODE_ONLY`: faults of system calls fail instead; any user may have that.
const USER_MODE_ONLY: c_int = 1;

/// [`NEEDED`] here: where nobody follows forks by hand, the kernel has to report them, or a forked
/// child would see zeros.
fn needed() -> u64 {
    NEEDED | if environment::user_mode_only() { 0 } else { FEATURE_EVENT_FORK }
}

/// The manager finds its way without these.
const WANTED: u64 = FEATURE_PAGEFAULT_FLAG_WP | FEATURE_WP_HUGETLBFS_SHMEM | FEATURE_THREAD_ID;

/// Whether it has none for want of a descriptor, as far as the last attempt says.
pub(crate) fn lacks_descriptors(state: &State) -> bool {
    state.userfault.load(Ordering::Acquire) == NONE
        && matches!(LACK.load(Ordering::Relaxed), libc::EMFILE | libc::ENFILE)
}

/// Sees to it that the manager has this process's userfaultfd; false if that cannot be.
pub(crate) fn ensure(state: &State) -> bool {
    match state.userfault.load(Ordering::Acquire) {
        SENT => return true,
        REFUSED => return false,
        _ => {}
    }
    let _held = SignalsHeld::new();
    let _lock = state.set_up.lock();
    if state.userfault.load(Ordering::Acquire) == NONE {
        match set_up(state) {
            Ok(()) => state.userfault.store(SENT, Ordering::Release),
            Err(Lack::ForGood(what)) => {
                note(state, what);
                state.userfault.store(REFUSED, Ordering::Release);
            }
            Err(Lack::ForNow(errno, what)) => {
                if LACK.swap(errno, Ordering::Relaxed) == 0 {
                    note(state, what);
                }
            }
        }
    }
    state.userfault.load(Ordering::Acquire) == SENT
}

/// Why the manager has no userfaultfd of this process.
enum Lack {
    /// It will have none.
    ForGood(&'static [u8]),
    /// Something was used up, as this error says: the next mapping tries again.
    ForNow(c_int, &'static [u8]),
}

/// The error of what was used up the last time that something was.
static LACK: AtomicI32 = AtomicI32::new(0);

impl Lack {
    /// By an error, which is something used up, or else for good with this reason.
    fn of(errno: isize, otherwise: &'static [u8]) -> Lack {
        let errno = -errno as c_int;
        let what: &[u8] = match errno {
            libc::EMFILE => b"no userfaultfd for now: this program has no descriptor left",
            libc::ENFILE => b"no userfaultfd for now: the system has no open file left",
            libc::ENOMEM => b"no userfaultfd for now: there is no memory for it",
            libc::EIO => b"no userfaultfd for now: the manager cannot be asked",
            _ => return Lack::ForGood(otherwise),
        };
        Lack::ForNow(errno, what)
    }
}

fn set_up(state: &State) -> Result<(), Lack> {
    let by_hand = environment::user_mode_only();
    if by_hand && !fork::is_followed() {
        return Err(Lack::ForGood(b"no mapping can be managed: forks cannot be followed"));
    }
    let (fd, agreed) = create(state)?;
    // What cannot be served is told by a signal.
    guard::install(state);
    let result = if by_hand { send(state, fd, agreed, 0) } else { hand_over(state, fd, agreed) };
    raw::close(fd);
    if result.is_ok() {
        USED.store(true, Ordering::Release);
        wear_leash(state);
    }
    result
}

fn send(state: &State, fd: c_int, agreed: Agreed, probe: usize) -> Result<(), Lack> {
    let mut request = Request::new(Op::Userfault);
    (request.a, request.b) = (probe as u64, agreed.features);
    request.c = u64::from(agreed.by_manager);
    const REFUSED: &[u8] = b"no mapping can be managed: the manager refused the userfaultfd";
    ask_with(state, &request, &[], fd)
        .map(|_| ())
        .map_err(|errno| Lack::of(errno as isize, REFUSED))
}

/// The manager's side must exist before any range is registered, and the probe page before the
/// manager hears of the userfaultfd.
fn hand_over(state: &State, fd: c_int, agreed: Agreed) -> Result<(), Lack> {
    const NO_PROBE: &[u8] = b"no mapping can be managed: the manager gave no probe page";
    const NO_PAGE: &[u8] = b"no mapping can be managed: the probe page cannot be mapped";
    let (_, memfd) = ask_with(state, &Request::new(Op::Probe), &[], -1)
        .map_err(|errno| Lack::of(errno as isize, NO_PROBE))?;
    let bytes = PAGE_BYTES as usize;
    let page = raw::map(bytes, libc::PROT_NONE, libc::MAP_SHARED, memfd, 0);
    raw::close(memfd);
    if page < 0 {
        return Err(Lack::of(page, NO_PAGE));
    }
    let sent = send(state, fd, agreed, page as usize);
    if sent.is_err() || raw_call!(libc::SYS_mprotect, page, bytes, libc::PROT_READ) < 0 {
        raw::munmap(page as usize, bytes);
        return sent
            .and(Err(Lack::ForGood(b"no mapping can be managed: the probe page cannot be read")));
    }
    PROBE.store(page as usize, Ordering::Release);
    Ok(())
}

fn open(state: &State) -> c_int {
    let mut flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    if environment::user_mode_only() {
        flags |= USER_MODE_ONLY;
    }
    let fd = room::with(state, || raw_call!(libc::SYS_userfaultfd, flags));
    let is_used_up = matches!(-fd as c_int, libc::EMFILE | libc::ENFILE | libc::ENOMEM);
    if fd >= 0 || is_used_up {
        return fd as c_int;
    }
    let path = c"/dev/userfaultfd".as_ptr();
    let own = room::with(state, || {
        raw_call!(libc::SYS_openat, libc::AT_FDCWD, path, libc::O_RDWR | libc::O_CLOEXEC)
    });
    // A program that root started and that is another user's by now may not open it; the manager may.
    let device = match own {
        0.. => own as c_int,
        _ => match ask_with(state, &Request::new(Op::UserfaultDevice), &[], -1) {
            Ok((_, device)) if device >= 0 => device,
            Err(errno) if matches!(-errno, libc::EMFILE | libc::EIO) => return errno,
            _ => return fd as c_int,
        },
    };
    let fd = room::with(state, || raw_call!(libc::SYS_ioctl, device, IOCTL_NEW, flags));
    raw::close(device);
    fd as c_int
}

/// What a userfaultfd is to report, and whether the manager is to agree on that with the kernel.
#[derive(Clone, Copy)]
struct Agreed {
    features: u64,
    by_manager: bool,
}

fn handshake(fd: c_int, features: u64) -> Result<u64, isize> {
    let mut api = Api { api: API, features, ioctls: 0 };
    let r = raw_call!(libc::SYS_ioctl, fd, IOCTL_API, &raw mut api);
    if r < 0 { Err(r) } else { Ok(api.features) }
}

/// A userfaultfd, and what it is to report.
fn create(state: &State) -> Result<(c_int, Agreed), Lack> {
    const REFUSED: &[u8] = b"no mapping can be managed: userfaultfd is not permitted to this \
        program (by a filter of system calls, or for want of rights: run as root, grant CAP_SYS_PTRACE or access \
        to /dev/userfaultfd)";
    const TOO_OLD: &[u8] = b"no mapping can be managed: this kernel's userfaultfd lacks features";
    let all = needed() | WANTED;
    let fd = open(state);
    if fd < 0 {
        return Err(Lack::of(fd as isize, REFUSED));
    }
    let first = handshake(fd, all);
    if first.is_ok() {
        return Ok((fd, Agreed { features: all, by_manager: false }));
    }
    // To follow forks takes the right to trace: a program that gave root's rights up leaves it to
    // the manager, which has them.
    let by_manager = first == Err(-libc::EPERM as isize);
    // Unknown features are refused as a whole: ask a throw-away descriptor what there is.
    let asked = open(state);
    if asked < 0 {
        raw::close(fd);
        return Err(Lack::of(asked as isize, REFUSED));
    }
    let known = handshake(asked, 0);
    raw::close(asked);
    let features = known.unwrap_or(0) & all;
    let has_all = features & needed() == needed();
    if has_all && (by_manager || handshake(fd, features).is_ok()) {
        return Ok((fd, Agreed { features, by_manager }));
    }
    raw::close(fd);
    Err(Lack::ForGood(TOO_OLD))
}

/// In a forked child of a process whose userfaultfd the manager has: a fault on the inherited
/// probe page tells the manager which of the memories it serves is this process's.
pub(crate) fn announce_inherited(state: &State) {
    let page = PROBE.load(Ordering::Acquire);
    if page == 0 {
        return;
    }
    // The fork may have copied the page's mapping; without one, the read below must fault.
    raw_call!(libc::SYS_madvise, page, PAGE_BYTES, libc::MADV_DONTNEED);
    // SAFETY: the probe page is mapped readable since PROBE was set, and never unmapped by us.
    let _ = unsafe { core::ptr::read_volatile(page as *const u8) };
    state.hello_kind.store(HELLO_FORKED as u32, Ordering::Relaxed);
    state.userfault.store(SENT, Ordering::Release);
}
