//! Forked children of tests.
#![allow(unsafe_code)]

/// Runs something in a forked child, which makes system calls only, and ends without destructors: its exit
/// code, or the signal that ended it, negative.
pub(crate) fn in_child(run: impl FnOnce() -> i32) -> i32 {
    // SAFETY: what runs in the child needs no other thread, nor what one may have locked.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = run();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    if libc::WIFSIGNALED(status) { -libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}
