//! What happens when the library is loaded.

use crate::descriptors::{files, table};
use crate::link::bell;
use crate::memory::{allocation, fork, heap};
use crate::process::{cancel, environment, state};
use crate::streams::{stdio, stream_list, unseen, wide};
use crate::writing::lock_files;
use crate::{raw, raw_call, real};
use libc::{c_char, c_int, c_void};

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, Strings, Strings) = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// The destructor: `exit(3)` calls it when the program's own are done.
extern "C" fn end() {
    unseen::flush_standard();
    lock_files::before_end();
}

/// The same for `quick_exit(3)`.
extern "C" fn end_quickly(_: *mut c_void) {
    lock_files::before_end();
}

unsafe extern "C" {
    /// What `at_quick_exit(3)` calls, which is linked into each program.
    fn __cxa_at_quick_exit(run: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
}

type Strings = *const *const c_char;

/// The constructor, which glibc gives what `main` gets. Everything stays plain unless `pagekeeper run`
/// says where the manager is.
///
/// It is the first of all (`build.rs`), libc's own included: of libc it may use what needs no
/// constructor, and not `environ`.
extern "C" fn start(_count: c_int, _arguments: Strings, env: Strings) {
    real::resolve();
    cancel::resolve();
    allocation::resolve();
    stream_list::resolve();
    state::resolve();
    // A program with more rights than its user must not hear of a stranger's manager.
    // SAFETY: reads the auxiliary vector.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 || !environment::read(env) {
        return;
    }
    if raw_call!(libc::SYS_getpid) <= 0 || !table::allocate() || !state::allocate() {
        return;
    }
    let _ = state::current();
    bell::inherited();
    fork::watch();
    if environment::user_mode_only() {
        fork::follow();
    }
    if let Some(least) = environment::door().heap_bytes {
        heap::begin(least);
    }
    // The first to be registered is the last to run.
    // SAFETY: libc's own, which takes any function and address.
    unsafe { __cxa_at_quick_exit(end_quickly, core::ptr::null_mut()) };
    files::announce_executed();
    wide::learn();
    stdio::adopt_standard_streams();
    raw::has_started();
}
