//! What is executed next: the manager is told, which writes back what a program has to find in its files
//! that this library does not follow into.

use crate::link::connection::{ask_once, ask_with};
use crate::link::{board, room};
use crate::process::environment::{Reach, door, find, leaves, present};
use crate::process::loader;
use crate::process::state::{self, State, View};
use crate::raw::{self, SignalsHeld};
use crate::raw_call;
use crate::writing::lock_files;
use core::ffi::CStr;
use libc::{c_char, c_int, posix_spawn_file_actions_t};
use pagekeeper_wire::{EXEC_ELSEWHERE, EXEC_LEAVES, EXEC_LIBRARY_IS_GONE, Op, Request, TEXT_BYTES};

type Strings = *const *const c_char;

/// A program, and how it is to be executed.
struct Program<'a> {
    /// Where a relative path begins, as for `openat(2)`.
    dir: c_int,
    path: *const c_char,
    /// O_NOFOLLOW, or nothing.
    flags: c_int,
    /// The program itself, if it was given as that.
    open: Option<c_int>,
    /// What it is called.
    name: &'a [u8],
    env: Strings,
    /// The path means another program here than where it is executed, perhaps.
    is_elsewhere: bool,
}

/// A descriptor of a program, for the manager to see what it is: what its path leads to depends on who asks.
struct Shown {
    /// -1: there is none to be had.
    fd: c_int,
    is_ours: bool,
}

impl Drop for Shown {
    fn drop(&mut self) {
        if self.is_ours {
            raw::close(self.fd);
        }
    }
}

impl<'a> Program<'a> {
    /// A program of this path.
    fn at(path: *const c_char, env: Strings) -> Program<'a> {
        // SAFETY: the program's own path.
        let name = unsafe { CStr::from_ptr(path) }.to_bytes();
        let (dir, open) = (libc::AT_FDCWD, None);
        Program { dir, path, flags: 0, open, name, env, is_elsewhere: false }
    }

    fn request(&self) -> Request {
        let mut request = Request::new(Op::Exec);
        request.a = self.name.len().min(TEXT_BYTES) as u64;
        let bit = |holds: bool, bit: u64| if holds { bit } else { 0 };
        let is_gone = !loader::finds(door().library.as_ptr().cast());
        request.b = bit(is_gone, EXEC_LIBRARY_IS_GONE)
            | bit(leaves(self.env), EXEC_LEAVES)
            | bit(self.is_elsewhere, EXEC_ELSEWHERE);
        request
    }

    /// None if it is not there, as most of what a search through PATH tries: the kernel will say so.
    fn shown(&self, state: Option<&State>) -> Option<Shown> {
        if let Some(fd) = self.open {
            return Some(Shown { fd, is_ours: false });
        }
        if self.is_elsewhere {
            return Some(Shown { fd: -1, is_ours: false });
        }
        let flags = libc::O_PATH | libc::O_CLOEXEC | self.flags;
        let open = || raw_call!(libc::SYS_openat, self.dir, self.path, flags);
        let _held = SignalsHeld::new();
        let mut fd = state.map_or_else(open, |state| room::with(state, open));
        if matches!(-fd as c_int, libc::EMFILE | libc::ENFILE) {
            fd = raw_call!(libc::SYS_faccessat, self.dir, self.path, libc::F_OK).min(-1);
        }
        match -fd as c_int {
            libc::ENOENT | libc::ENOTDIR => None,
            _ => Some(Shown { fd: fd.max(-1) as c_int, is_ours: true }),
        }
    }

    /// Tells the manager; of a vfork child only what this library does not follow into, as far as that can
    /// be seen from here.
    fn announce(&self) -> Reach {
        let reply = match state::view() {
            View::Foreign if state::is_ready() => {
                let request = self.request();
                if request.b == 0
                    && !board::may_be_confined()
                    && loader::is_usual(self.dir, self.path)
                {
                    return Reach::Follows;
                }
                self.shown(None).and_then(|shown| ask_once(&request, self.name, shown.fd).ok())
            }
            View::Foreign => None,
            View::Fresh | View::Ready(_) => state::current().and_then(|state| {
                let shown = self.shown(Some(state))?;
                lock_files::before_end();
                let request = self.request();
                let ask = |shown| ask_with(state, &request, self.name, shown);
                // Where it cannot be shown, it is named.
                let (reply, fd) = ask(shown.fd).or_else(|_| ask(-1)).ok()?;
                raw::close(fd);
                Some(reply)
            }),
        };
        if reply.is_some_and(|reply| reply.r0 != 0) { Reach::Stays } else { Reach::Follows }
    }
}

/// Tells the manager that the program of a path is about to be executed.
pub(crate) fn path(path: *const c_char, env: Strings) -> Reach {
    at(libc::AT_FDCWD, path, env, 0)
}

/// [`path`] for `execveat(2)`: relative to a directory, or by descriptor alone.
pub(crate) fn at(dir: c_int, path: *const c_char, env: Strings, flags: c_int) -> Reach {
    if path.is_null() || !state::active() {
        return Reach::Follows;
    }
    let program = Program::at(path, env);
    if program.name.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
        return descriptor(dir, env);
    }
    let flags = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { libc::O_NOFOLLOW } else { 0 };
    Program { dir, flags, ..program }.announce()
}

/// [`path`] for a program that is open.
pub(crate) fn descriptor(fd: c_int, env: Strings) -> Reach {
    if !state::active() {
        return Reach::Follows;
    }
    let mut path = [0u8; 32];
    let path = raw::descriptor_path(b"fd", fd, &mut path);
    let mut target = [0u8; TEXT_BYTES];
    let got =
        raw_call!(libc::SYS_readlinkat, libc::AT_FDCWD, path, target.as_mut_ptr(), target.len());
    let program = Program::at(path, env);
    let name = if got > 0 { &target[..got as usize] } else { program.name };
    Program { open: Some(fd), name, ..program }.announce()
}

/// [`path`] for a name that is searched for in PATH, if it is none.
pub(crate) fn search(file: *const c_char, env: Strings) -> Reach {
    searched(file, |place| path(place, env))
}

/// [`path`] for `posix_spawn(3)`, which executes a program where these actions have led.
pub(crate) fn spawned(
    place: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    env: Strings,
) -> Reach {
    if place.is_null() || !state::active() {
        return Reach::Follows;
    }
    let program = Program::at(place, env);
    let depends = !program.name.starts_with(b"/")
        || program.name.starts_with(b"/proc/")
        || program.name.starts_with(b"/dev/");
    Program { is_elsewhere: depends && !actions.is_null(), ..program }.announce()
}

/// [`spawned`] for a name that is searched for in PATH, if it is none.
pub(crate) fn spawned_search(
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    env: Strings,
) -> Reach {
    searched(file, |place| spawned(place, actions, env))
}

fn searched(file: *const c_char, announce: impl Fn(*const c_char) -> Reach) -> Reach {
    if file.is_null() || !state::active() {
        return Reach::Follows;
    }
    // SAFETY: the program's own string.
    let name = unsafe { CStr::from_ptr(file) }.to_bytes();
    if name.contains(&b'/') {
        return announce(file);
    }
    let list = find(present(), b"PATH").unwrap_or(b"/bin:/usr/bin");
    for dir in list.split(|&c| c == b':') {
        let dir = if dir.is_empty() { b"." } else { dir };
        let mut path = [0u8; TEXT_BYTES];
        if dir.len() + 1 + name.len() >= path.len() {
            continue;
        }
        path[..dir.len()].copy_from_slice(dir);
        path[dir.len()] = b'/';
        path[dir.len() + 1..][..name.len()].copy_from_slice(name);
        let found =
            raw_call!(libc::SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::X_OK as c_int);
        if found >= 0 {
            return announce(path.as_ptr().cast());
        }
    }
    Reach::Follows
}

/// Executes a program by `call`. Of a vfork child the manager was told nothing, and may have the
/// program open still to write to it: it is asked to let go of it, should the kernel say so.
pub(crate) fn execute(path: *const c_char, env: Strings, call: impl Fn() -> isize) -> isize {
    let result = call();
    let is_vforked = matches!(state::view(), View::Foreign) && state::is_ready();
    if result != -(libc::ETXTBSY as isize) || !is_vforked {
        return result;
    }
    let program = Program::at(path, env);
    let asked =
        program.shown(None).map(|shown| ask_once(&program.request(), program.name, shown.fd));
    if matches!(asked, Some(Ok(_))) { call() } else { result }
}
