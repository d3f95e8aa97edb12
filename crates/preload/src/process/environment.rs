//! The environment: where the manager is, and how executed programs find it too.

use crate::link::board;
use crate::process::state;
use crate::raw::Arena;
use core::cell::UnsafeCell;
use core::ffi::CStr;
use libc::c_char;
use pagekeeper_wire::{ENV_DISABLE, ENV_SOCKET, SECRET_HEX_CHARS, USER_MODE_ONLY};

/// File name of this library, to find its own entry in LD_PRELOAD.
const LIBRARY: &[u8] = pagekeeper_wire::LIBRARY.as_bytes();
const LD_PRELOAD: &[u8] = b"LD_PRELOAD";
/// Longest socket name: `sun_path` without the leading NUL.
const NAME_BYTES_MAX: usize = 107;
/// Longest path of this library.
const PATH_BYTES_MAX: usize = 4096;

/// Where the manager listens.
pub(crate) struct Door {
    name: [u8; NAME_BYTES_MAX],
    name_bytes: usize,
    /// The secret as two big-endian integers.
    pub(crate) secret: (u64, u64),
    /// A path to a socket of the manager's, where the name means nothing; empty if there is none.
    side: board::Path,
    /// Inodes, or 0: of the socket by which the manager is reached without a name, and of its network namespace.
    pub(crate) bell_inode: u64,
    pub(crate) network: u64,
    /// Least bytes of an allocation that is managed, if any is.
    pub(crate) heap_bytes: Option<usize>,
    /// Only faults of user code are served.
    user_mode_only: bool,
    /// `PAGEKEEPER_SOCKET=…` with its NUL, as executed programs get it.
    variable: [u8; 256],
    /// Path of this library, with a NUL.
    pub(crate) library: [u8; PATH_BYTES_MAX],
    library_bytes: usize,
}

impl Door {
    /// Name of the abstract socket.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name[..self.name_bytes]
    }

    /// Path of the second way in, if there is one.
    pub(crate) fn side(&self) -> Option<&board::Path> {
        (self.side[0] != 0).then_some(&self.side)
    }
}

struct Place(UnsafeCell<Door>);
// SAFETY: written once, by `read` in the constructor, before the state exists that leads here.
unsafe impl Sync for Place {}

static DOOR: Place = Place(UnsafeCell::new(Door {
    name: [0; NAME_BYTES_MAX],
    name_bytes: 0,
    secret: (0, 0),
    side: [0; board::PATH_BYTES],
    bell_inode: 0,
    network: 0,
    heap_bytes: None,
    user_mode_only: false,
    variable: [0; 256],
    library: [0; PATH_BYTES_MAX],
    library_bytes: 0,
}));

/// Where the manager listens; meaningful once the library is active.
pub(crate) fn door() -> &'static Door {
    // SAFETY: only `read` writes, before anybody reads.
    unsafe { &*DOOR.0.get() }
}

/// Whether only faults of user code are served ([`USER_MODE_ONLY`]).
#[inline(always)]
pub(crate) fn user_mode_only() -> bool {
    door().user_mode_only
}

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

/// The program's present environment.
pub(crate) fn present() -> *const *const c_char {
    // SAFETY: libc's own variable.
    unsafe { environ }
}

/// The variables of an environment; empty for a null pointer.
fn variables<'a>(env: *const *const c_char) -> impl Iterator<Item = &'a [u8]> {
    let mut at = env;
    core::iter::from_fn(move || {
        if at.is_null() {
            return None;
        }
        // SAFETY: an environment is a null-terminated array of C strings.
        unsafe {
            if (*at).is_null() {
                return None;
            }
            let text = CStr::from_ptr(*at).to_bytes();
            at = at.add(1);
            Some(text)
        }
    })
}

fn value<'a>(variable: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    variable.strip_prefix(name)?.strip_prefix(b"=")
}

/// The value of a variable.
pub(crate) fn find<'a>(env: *const *const c_char, name: &[u8]) -> Option<&'a [u8]> {
    variables(env).find_map(|variable| value(variable, name))
}

/// Reads the environment at start; false if this library is to stay inactive. `given` is what the
/// constructor got.
pub(crate) fn read(given: *const *const c_char) -> bool {
    // libc's variable is set by a constructor of its own, which may come later; a libc that gives
    // constructors nothing has set it before.
    let env = if present().is_null() { given } else { present() };
    let Some(socket) = find(env, ENV_SOCKET.as_bytes()) else { return false };
    if find(env, ENV_DISABLE.as_bytes()) == Some(b"1") {
        return false;
    }
    // SAFETY: the constructor runs once, before any other use.
    let door = unsafe { &mut *DOOR.0.get() };
    parse(door, socket) && find_library(door, env)
}

fn parse(door: &mut Door, socket: &[u8]) -> bool {
    let mut parts = socket.split(|&c| c == b':');
    let (Some(name), Some(secret)) = (parts.next(), parts.next()) else { return false };
    let how = parts.next();
    let board = parts.next();
    let mut bell = parts.next().unwrap_or_default().split(|&c| c == b'.').map(number);
    let user_mode_only = how == Some(USER_MODE_ONLY.as_bytes());
    let heap = how.filter(|how| !user_mode_only && !how.is_empty());
    if name.is_empty() || name.len() > NAME_BYTES_MAX || secret.len() != SECRET_HEX_CHARS {
        return false;
    }
    let mut halves = [0u64; 2];
    for (half, digits) in halves.iter_mut().zip(secret.chunks(SECRET_HEX_CHARS / 2)) {
        for &digit in digits {
            let Some(n) = (digit as char).to_digit(16) else { return false };
            *half = *half << 4 | n as u64;
        }
    }
    door.secret = (halves[0], halves[1]);
    if let Some(place) = board {
        board::find(place, door.secret);
        door.side = board::side_door(place).unwrap_or(door.side);
    }
    door.bell_inode = bell.next().unwrap_or(0);
    door.network = bell.next().unwrap_or(0);
    door.heap_bytes = heap.map(|digits| number(digits) as usize);
    door.user_mode_only = user_mode_only;
    door.name[..name.len()].copy_from_slice(name);
    door.name_bytes = name.len();
    let whole = [ENV_SOCKET.as_bytes(), b"=", socket];
    let mut at = 0;
    for part in whole {
        door.variable[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    true
}

/// A number in decimal, or the largest.
fn number(digits: &[u8]) -> u64 {
    digits.iter().fold(0, |number: u64, digit| {
        number.saturating_mul(10).saturating_add(digit.wrapping_sub(b'0').into())
    })
}

fn find_library(door: &mut Door, env: *const *const c_char) -> bool {
    let named = find(env, LD_PRELOAD).and_then(|list| entries(list).find(|path| is_library(path)));
    let path = match named {
        Some(path) => path,
        None => {
            let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
            // SAFETY: any address may be asked about; the result is filled when it says so.
            unsafe {
                if libc::dladdr((&raw const DOOR).cast(), info.as_mut_ptr()) == 0 {
                    return false;
                }
                CStr::from_ptr(info.assume_init().dli_fname).to_bytes()
            }
        }
    };
    // With its NUL.
    if path.len() >= PATH_BYTES_MAX {
        return false;
    }
    door.library[..path.len()].copy_from_slice(path);
    door.library_bytes = path.len();
    true
}

/// The paths in a value of LD_PRELOAD.
fn entries(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|&c| c == b':' || c == b' ').filter(|path| !path.is_empty())
}

fn is_library(path: &[u8]) -> bool {
    path.rsplit(|&c| c == b'/').next() == Some(LIBRARY)
}

/// Whether this library works in what is executed, as far as the manager was asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    Follows,
    /// Its dynamic linker would look for the library, and fail.
    Stays,
}

/// Whether a program with this environment is none of this run: it is switched off there, or another run's.
pub(crate) fn leaves(env: *const *const c_char) -> bool {
    find(env, ENV_DISABLE.as_bytes()) == Some(b"1") || is_of_another_run(env)
}

fn is_of_another_run(env: *const *const c_char) -> bool {
    let own = CStr::from_bytes_until_nul(&door().variable).map_or(&[][..], CStr::to_bytes);
    find(env, ENV_SOCKET.as_bytes())
        .is_some_and(|socket| value(own, ENV_SOCKET.as_bytes()) != Some(socket))
}

/// Calls `with` with an environment like `env` in which executed programs find this library, in this place
/// only, and the manager; or do not, if it is none for them. Allocates on the stack if it can: a vfork child
/// shares its parent's heap.
pub(crate) fn follow<R>(
    env: *const *const c_char,
    reach: Reach,
    with: impl FnOnce(*const *const c_char) -> R,
) -> R {
    if !state::active() || is_of_another_run(env) {
        return with(env);
    }
    if reach == Reach::Stays {
        return stay(env, with);
    }
    let mut count = 0;
    let mut preload: Option<(usize, &[u8])> = None;
    let mut has_socket = false;
    for variable in variables(env) {
        if let Some(list) = value(variable, LD_PRELOAD)
            && preload.is_none()
        {
            preload = Some((count, list));
        }
        has_socket |= value(variable, ENV_SOCKET.as_bytes()).is_some();
        count += 1;
    }
    let door = door();
    let library = &door.library[..door.library_bytes];
    let others = preload.map_or(&[][..], |(_, list)| list);
    // Once, and not as it may be elsewhere too, of another build.
    let mut named = entries(others).filter(|path| is_library(path));
    let has_library = named.next() == Some(library) && named.all(|path| path == library);
    if has_library && has_socket {
        return with(env);
    }
    let pointers_bytes = (count + 3) * size_of::<usize>();
    let bytes = pointers_bytes + LD_PRELOAD.len() + 3 + door.library_bytes + others.len();
    let build = |memory: *mut u8| {
        let pointers = memory.cast::<*const c_char>();
        // SAFETY: `memory` has `bytes` bytes, aligned for pointers: count + 3 pointers, then the
        // text; `env` has `count` entries.
        unsafe {
            for i in 0..count {
                pointers.add(i).write(*env.add(i));
            }
            let mut end = count;
            if !has_library {
                let mut text = memory.add(pointers_bytes);
                let index = preload.map_or(count, |(index, _)| index);
                pointers.add(index).write(text.cast());
                end += usize::from(index == count);
                let mut put = |part: &[u8]| {
                    text.copy_from_nonoverlapping(part.as_ptr(), part.len());
                    text = text.add(part.len());
                };
                [LD_PRELOAD, b"=", library].into_iter().for_each(&mut put);
                for path in entries(others).filter(|path| !is_library(path)) {
                    put(b":");
                    put(path);
                }
                put(b"\0");
            }
            if !has_socket {
                pointers.add(end).write(door.variable.as_ptr().cast());
                end += 1;
            }
            pointers.add(end).write(core::ptr::null());
        }
        pointers.cast_const()
    };
    with_memory(bytes, |memory| with(memory.map_or(env, build)))
}

/// Calls `with` with so much memory, aligned for pointers, if there is any.
fn with_memory<R>(bytes: usize, with: impl FnOnce(Option<*mut u8>) -> R) -> R {
    let mut small = core::mem::MaybeUninit::<[usize; 256]>::uninit();
    if bytes <= size_of_val(&small) {
        return with(Some(small.as_mut_ptr().cast()));
    }
    let arena = Arena::new(bytes);
    with(arena.as_ref().map(|arena| arena.addr as *mut u8))
}

/// Calls `with` with an environment like `env` that does not name this library.
fn stay<R>(env: *const *const c_char, with: impl FnOnce(*const *const c_char) -> R) -> R {
    let lists =
        |variable: &[u8]| value(variable, LD_PRELOAD).is_some_and(|l| entries(l).any(is_library));
    let bytes =
        |variable: &[u8]| size_of::<usize>() + if lists(variable) { variable.len() + 2 } else { 0 };
    let count = variables(env).count();
    let pointers_bytes = (count + 1) * size_of::<usize>();
    let build = |memory: *mut u8| {
        let pointers = memory.cast::<*const c_char>();
        let mut end = 0;
        // SAFETY: `memory` has room for a pointer to each variable of `env` and a null one, and then for the
        // text of those that are made anew, each no longer than it was.
        unsafe {
            let mut text = memory.add(pointers_bytes);
            for (at, variable) in variables(env).enumerate() {
                let others =
                    || entries(&variable[LD_PRELOAD.len() + 1..]).filter(|e| !is_library(e));
                if !lists(variable) {
                    pointers.add(end).write(*env.add(at));
                } else if others().next().is_some() {
                    pointers.add(end).write(text.cast_const().cast());
                    let mut put = |part: &[u8]| {
                        text.copy_from_nonoverlapping(part.as_ptr(), part.len());
                        text = text.add(part.len());
                    };
                    put(LD_PRELOAD);
                    others().enumerate().for_each(|(number, path)| {
                        put(if number == 0 { b"=" } else { b":" });
                        put(path);
                    });
                    put(b"\0");
                } else {
                    continue;
                }
                end += 1;
            }
            pointers.add(end).write(core::ptr::null());
        }
        pointers.cast_const()
    };
    let bytes = variables(env).map(bytes).sum::<usize>() + size_of::<usize>();
    with_memory(bytes, |memory| with(memory.map_or(env, build)))
}

/// Calls what has libc start a program with the program's own environment, in which our variables are for so
/// long, should the program have taken them out.
pub(crate) fn known<R>(call: impl FnOnce() -> R) -> R {
    let present = present();
    follow(present, Reach::Follows, |env| {
        if env == present {
            return call();
        }
        // SAFETY: libc's own variable, which points to our array for the time of the call: that and its
        // strings live as long. A thread that changes the environment meanwhile makes an array of its own
        // of it; so the one string that is on our stack is copied, and left to that.
        unsafe {
            let named = |at: *mut *const c_char| {
                value(CStr::from_ptr(*at).to_bytes(), LD_PRELOAD).is_some()
            };
            let mut at = env.cast_mut();
            while !(*at).is_null() && !named(at) {
                at = at.add(1);
            }
            let copy = if (*at).is_null() { core::ptr::null_mut() } else { libc::strdup(*at) };
            if !copy.is_null() {
                *at = copy;
            }
            environ = env;
            let result = call();
            if environ == env {
                environ = present;
                libc::free(copy.cast());
            }
            result
        }
    })
}
