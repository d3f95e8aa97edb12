//! Starting other programs, `vfork`, and what a program takes away from itself.

mod listed;

use crate::descriptors::{files, table};
use crate::link::{bell, room, standby};
use crate::memory::fork;
use crate::process::environment;
use crate::process::{announce, children};
use crate::writing::lock_files;
use crate::{raw, real};
use environment::{follow, present};
use libc::{
    c_char, c_int, c_void, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t, termios, winsize,
};

type Strings = *const *const c_char;

export! {
    as execve;
    fn (path: *const c_char, argv: Strings, env: Strings) -> c_int {
        let reach = announce::path(path, env);
        follow(env, reach, |followed| execve_of(path, argv, env, followed))
    }
}

export! {
    as execv;
    fn (path: *const c_char, argv: Strings) -> c_int {
        execve(path, argv, present())
    }
}

export! {
    as execvpe;
    fn (file: *const c_char, argv: Strings, env: Strings) -> c_int {
        let reach = announce::search(file, env);
        follow(env, reach, |env| real::execvpe(file, argv, env))
    }
}

export! {
    as execvp;
    fn (file: *const c_char, argv: Strings) -> c_int {
        execvpe(file, argv, present())
    }
}

export! {
    as fexecve;
    fn (fd: c_int, argv: Strings, env: Strings) -> c_int {
        let reach = announce::descriptor(fd, env);
        follow(env, reach, |env| real::fexecve(fd, argv, env))
    }
}

export! {
    as execveat;
    fn (dir: c_int, path: *const c_char, argv: Strings, env: Strings, flags: c_int) -> c_int {
        let reach = announce::at(dir, path, env, flags);
        follow(env, reach, |env| real::execveat(dir, path, argv, env, flags))
    }
}

/// `execve(2)`, also for a vfork child.
fn execve_of(path: *const c_char, argv: Strings, env: Strings, followed: Strings) -> c_int {
    let plain = || raw::kernel(real::execve(path, argv, followed) as isize);
    raw::ret(announce::execute(path, env, plain)) as c_int
}

/// libc is about to make a child that gets all descriptors.
fn before_child() {
    table::share_all();
    room::settle();
}

export! {
    as posix_spawn;
    fn (
        pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: Strings, env: Strings
    ) -> c_int {
        let reach = announce::spawned(path, actions, env);
        before_child();
        follow(env, reach, |env| real::posix_spawn(pid, path, actions, attributes, argv, env))
    }
}

export! {
    as posix_spawnp;
    fn (
        pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: Strings, env: Strings
    ) -> c_int {
        let reach = announce::spawned_search(file, actions, env);
        before_child();
        follow(env, reach, |env| real::posix_spawnp(pid, file, actions, attributes, argv, env))
    }
}

/// libc is about to start a shell.
fn before_shell() {
    let _ = announce::path(c"/bin/sh".as_ptr(), present());
    before_child();
}

export! {
    as system;
    fn (command: *const c_char) -> c_int {
        if command.is_null() {
            return real::system(command);
        }
        before_shell();
        environment::known(|| real::system(command))
    }
}

export! {
    as popen;
    fn (command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
        before_shell();
        environment::known(|| real::popen(command, mode))
    }
}

export! {
    as fork, __fork;
    fn () -> pid_t {
        fork::by_libc(real::fork)
    }
}

export! {
    as forkpty;
    fn (
        main: *mut c_int, name: *mut c_char, terminal: *const termios, window: *const winsize
    ) -> pid_t {
        let child = fork::by_libc(|| real::forkpty(main, name, terminal, window));
        if child == 0 {
            files::standard_replaced();
        }
        child
    }
}

export! {
    as login_tty;
    fn (fd: c_int) -> c_int {
        let result = real::login_tty(fd);
        files::standard_replaced();
        result
    }
}

export! {
    as daemon;
    fn (stays: c_int, keeps: c_int) -> c_int {
        // The parent ends, without a call that is seen.
        lock_files::before_end();
        // It returns in the child, or if there is none.
        let result = fork::by_libc(|| real::daemon(stays, keeps));
        files::standard_replaced();
        result
    }
}

export! {
    as _Fork;
    fn () -> pid_t {
        // No handlers run around this one.
        fork::raw_fork(0, 0, || raw::kernel(real::_Fork() as isize))
            .map_or_else(real::_Fork, |child| raw::ret(child) as pid_t)
    }
}

export! {
    as __register_atfork;
    fn (
        before: Option<extern "C" fn()>, after: Option<extern "C" fn()>,
        in_child: Option<extern "C" fn()>, object: *mut c_void
    ) -> c_int {
        // Ours come first.
        fork::watch();
        real::__register_atfork(before, after, in_child, object)
    }
}

export! {
    as wait;
    fn (status: *mut c_int) -> pid_t {
        children::wait(-1, status, 0, core::ptr::null_mut())
    }
}

export! {
    as waitpid, __waitpid;
    fn (child: pid_t, status: *mut c_int, options: c_int) -> pid_t {
        children::wait(child, status, options, core::ptr::null_mut())
    }
}

export! {
    as wait3;
    fn (status: *mut c_int, options: c_int, usage: *mut libc::rusage) -> pid_t {
        children::wait(-1, status, options, usage)
    }
}

export! {
    as wait4;
    fn (child: pid_t, status: *mut c_int, options: c_int, usage: *mut libc::rusage) -> pid_t {
        children::wait(child, status, options, usage)
    }
}

export! {
    as waitid;
    fn (
        of: libc::idtype_t, id: libc::id_t, info: *mut libc::siginfo_t, options: c_int
    ) -> c_int {
        children::wait_for_state(of, id, info, options)
    }
}

export! {
    as prctl;
    fn (option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
        if option == libc::PR_SET_SECCOMP {
            standby::filters();
        }
        real::prctl(option, a, b, c, d)
    }
}

export! {
    as unshare;
    fn (flags: c_int) -> c_int {
        files::unsharing(flags);
        bell::before_namespace(flags as usize);
        real::unshare(flags)
    }
}

export! {
    as setns;
    fn (fd: c_int, kind: c_int) -> c_int {
        bell::before_joining(kind);
        real::setns(fd, kind)
    }
}

macro_rules! vfork {
    ($($name:ident),*) => {$(
        /// Returns twice from one frame, so it may only jump to the real one; before that, the
        /// state that parent and child will share is made the parent's.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        extern "C" fn $name() -> c_int {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                "sub rsp, 8",
                "call {before}",
                "add rsp, 8",
                "jmp rax",
                before = sym crate::process::state::before_vfork,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-16]!",
                "bl {before}",
                "ldp x29, x30, [sp], #16",
                "mov x16, x0",
                "br x16",
                before = sym crate::process::state::before_vfork,
            );
        }
    )*};
}

vfork! { vfork, __vfork }

/// The child may share the memory, as after `vfork`. All arguments are passed on where they are.
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn clone() -> c_int {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        before = sym crate::process::state::before_clone,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-80]!",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "stp x6, x7, [sp, #64]",
        "bl {before}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x4, x5, [sp, #48]",
        "ldp x6, x7, [sp, #64]",
        "ldp x29, x30, [sp], #80",
        "br x16",
        before = sym crate::process::state::before_clone,
    );
}

export! {
    as _exit, _Exit;
    fn (status: c_int) -> ! {
        lock_files::before_end();
        raw::exit_group(status)
    }
}
