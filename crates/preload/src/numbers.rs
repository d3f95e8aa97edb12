//! System calls by number, for `syscall(2)`.

use crate::copies::{messages, sockets};
use crate::descriptors::{files, table};
use crate::link::{bell, standby};
use crate::memory;
use crate::memory::call::{Mmap, Mremap};
use crate::memory::fork;
use crate::memory::mapping;
use crate::process::{announce, environment, state};
use crate::reading::transfer::{self, Vectors, one};
use crate::reading::{direct, guard};
use crate::writing::locks::{self, Lock};
use crate::writing::{change, lock_files};
use crate::{exports, raw, raw_call};
use libc::{c_char, c_int, c_long, iovec};
use raw::forward;

/// `fallocate`, `copy_file_range` and such, and all others of one descriptor: what the exported
/// functions do, with the kernel's result. None if the call does not concern us.
pub(crate) fn dispatch(number: c_long, args: [usize; 6]) -> Option<isize> {
    if !state::active() {
        return None;
    }
    let plain = || forward(number, args);
    let [a, b, c, d, e, f] = args;
    let fd = a as c_int;
    #[cfg(target_arch = "x86_64")]
    match number {
        libc::SYS_open => {
            return Some(open(b as c_int, |flags| {
                forward(number, [a, flags as usize, c, 0, 0, 0])
            }));
        }
        libc::SYS_creat => {
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            return Some(open(flags, |flags| raw_call!(libc::SYS_open, a, flags, b)));
        }
        libc::SYS_dup2 => {
            return Some(replace(fd, b as c_int, plain));
        }
        libc::SYS_utime | libc::SYS_utimes => {
            change::before_times_at(libc::AT_FDCWD, a as *const c_char, 0);
            return None;
        }
        libc::SYS_futimesat => {
            change::before_times_at(fd, b as *const c_char, 0);
            return None;
        }
        libc::SYS_vfork => state::before_sharing(),
        libc::SYS_fork => return fork::raw_fork(0, 0, plain),
        _ => {}
    }
    Some(match number {
        libc::SYS_read => transfer::read(fd, one(b, c), None, 0, plain)?,
        libc::SYS_pread64 => transfer::read(fd, one(b, c), Some(d as i64), 0, plain)?,
        libc::SYS_readv => transfer::read(fd, list(b, c), None, 0, plain)?,
        libc::SYS_preadv => transfer::read(fd, list(b, c), Some(d as i64), 0, plain)?,
        libc::SYS_preadv2 => {
            transfer::read_flagged(fd, list(b, c), position(d), f as c_int, plain)?
        }
        libc::SYS_write => transfer::write(fd, one(b, c), None, 0, plain)?,
        libc::SYS_pwrite64 => transfer::write(fd, one(b, c), Some(d as i64), 0, plain)?,
        libc::SYS_writev => transfer::write(fd, list(b, c), None, 0, plain)?,
        libc::SYS_pwritev => transfer::write(fd, list(b, c), Some(d as i64), 0, plain)?,
        libc::SYS_pwritev2 => transfer::write(fd, list(b, c), position(d), f as c_int, plain)?,

        libc::SYS_openat => {
            open(c as c_int, |flags| forward(number, [a, b, flags as usize, d, 0, 0]))
        }
        libc::SYS_openat2 | libc::SYS_open_by_handle_at | libc::SYS_pidfd_getfd => {
            let fd = plain();
            exports::arrived(fd as c_int);
            fd
        }
        libc::SYS_close if table::is_plain(fd) => return None,
        libc::SYS_close => raw::kernel(files::close(fd, || raw::ret(plain()) as c_int) as isize),
        libc::SYS_close_range => files::close_range(a as u32, b as u32, c as u32, |first, last| {
            raw_call!(number, first, last, c)
        }),
        libc::SYS_dup => duplicated(fd, plain()),
        libc::SYS_dup3 => replace(fd, b as c_int, plain),
        libc::SYS_fcntl if matches!(b as c_int, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => {
            duplicated(fd, plain())
        }
        libc::SYS_fcntl if b as c_int == libc::F_SETFL => {
            let result = plain();
            table::flagged(fd, c as c_int);
            result
        }
        libc::SYS_fcntl if Lock::is_by_fcntl(b as c_int) => {
            locks::change(fd, || Lock::of_record(c), plain)
        }
        libc::SYS_fcntl if b as c_int == libc::F_SETFD && bell::is(fd) => 0,
        libc::SYS_fcntl => return None,
        libc::SYS_flock => locks::change(fd, || Some(Lock::of_flock(b as c_int)), plain),
        libc::SYS_lseek => {
            change::before_seek(fd, c as c_int);
            direct::moved(fd, None);
            return None;
        }
        libc::SYS_utimensat => {
            change::before_times_at(fd, b as *const c_char, d as c_int);
            return None;
        }
        libc::SYS_exit_group => {
            lock_files::before_end();
            return None;
        }
        libc::SYS_ioctl => exports::control(fd, b as u32, c)?,
        libc::SYS_sendto => sockets::send_to(fd, b, c, d as c_int, (e, f))?,
        libc::SYS_recvfrom => sockets::receive_from(fd, b, c, d as c_int, (e, f))?,
        libc::SYS_sendmsg => {
            let message = b as *const libc::msghdr;
            let result = sockets::send(fd, message, c as c_int).unwrap_or_else(plain);
            sockets::sent(message, result);
            result
        }
        libc::SYS_sendmmsg => {
            let list = b as *mut libc::mmsghdr;
            let result = messages::send(fd, list, c as u32, d as c_int).unwrap_or_else(plain);
            sockets::all_sent(list, result);
            result
        }
        libc::SYS_recvmmsg => {
            let (list, timeout) = (b as *mut libc::mmsghdr, e as *mut libc::timespec);
            let result =
                messages::receive(fd, list, c as u32, d as c_int, timeout).unwrap_or_else(plain);
            exports::all_received(list, result);
            result
        }
        libc::SYS_recvmsg => {
            let result =
                sockets::receive(fd, b as *mut libc::msghdr, c as c_int).unwrap_or_else(plain);
            if result >= 0 {
                // SAFETY: the call succeeded with the program's message.
                exports::received(unsafe { &*(b as *const libc::msghdr) });
            }
            result
        }

        libc::SYS_mmap => {
            let (prot, flags, fd) = (c as c_int, d as c_int, e as c_int);
            let call = Mmap { addr: a, bytes: b, prot, flags, fd, offset: f as i64 };
            memory::mmap(call, plain)
        }
        libc::SYS_mremap => {
            let (old, old_bytes, new_bytes, flags) = (a, b, c, d as c_int);
            memory::mremap(Mremap { old, old_bytes, new_bytes, flags, new: e }, plain)
        }
        libc::SYS_mprotect | libc::SYS_pkey_mprotect => {
            let may = mapping::may_protect(a, b, c as c_int);
            let _changing = standby::changing();
            may.map_or_else(|errno| errno, |()| plain())
        }
        libc::SYS_munmap => memory::munmap(a, b, plain),
        libc::SYS_remap_file_pages => {
            mapping::may_reorder(a, b).map_or_else(|errno| errno, |()| plain())
        }
        libc::SYS_msync => mapping::msync(a, b, c as c_int)?,
        libc::SYS_madvise => mapping::madvise(a, b, c as c_int)?,
        libc::SYS_process_madvise => {
            mapping::process_madvise(fd, &list(b, c), d as c_int, e as u32)?
        }
        libc::SYS_mlock => exports::lock_memory(a, b, 0)?,
        libc::SYS_mlock2 => exports::lock_memory(a, b, c as u32)?,
        libc::SYS_mlockall => raw_call!(number, exports::lock_all_flags(a as c_int)),

        libc::SYS_ftruncate => change::truncate(fd, b as i64, plain)?,
        libc::SYS_truncate => change::truncate_path(a as *const c_char, b as i64)?,
        libc::SYS_fallocate => exports::allocate(fd, b as c_int, c as i64, d as i64, plain)?,
        libc::SYS_copy_file_range => {
            let offsets = [b as *mut i64, d as *mut i64];
            change::copy(fd, c as c_int, offsets, e, |[from_at, to_at]| {
                raw_call!(number, a, from_at, c, to_at, e, f)
            })?
        }
        libc::SYS_sendfile => {
            let offsets = [c as *mut i64, core::ptr::null_mut()];
            change::copy(b as c_int, fd, offsets, d, |[at, _]| raw_call!(number, a, b, at, d))?
        }
        libc::SYS_splice => {
            change::splice(fd, b as *mut i64, c as c_int, d as *mut i64, e, f as u32)?
        }
        libc::SYS_fsync | libc::SYS_fdatasync => after(change::sync_descriptor(fd), plain),
        libc::SYS_sync_file_range => after(change::flush_range(fd, b as i64, c as i64), plain),
        libc::SYS_syncfs | libc::SYS_sync => after(change::flush_all(), plain),
        libc::SYS_fadvise64 => {
            if d as c_int == libc::POSIX_FADV_DONTNEED {
                let _ = change::flush_range(fd, b as i64, c as i64);
            }
            plain()
        }

        libc::SYS_unshare => {
            files::unsharing(a as c_int);
            bell::before_namespace(a);
            return None;
        }
        libc::SYS_setns => {
            bell::before_joining(b as c_int);
            return None;
        }
        libc::SYS_clone => {
            state::before_sharing();
            state::sharing_memory(a);
            fork::raw_fork(a, b, plain)?
        }
        libc::SYS_clone3 => {
            state::before_sharing();
            let (flags, stack) = fork::clone3_arguments(a, b);
            state::sharing_memory(flags);
            fork::raw_fork(flags, stack, plain)?
        }
        // Set behind libc's back, a handler is not ours to stand before.
        libc::SYS_rt_sigaction if b != 0 => {
            guard::give_up(fd);
            return None;
        }
        libc::SYS_rt_sigprocmask if b != 0 && fd != libc::SIG_UNBLOCK => {
            // SAFETY: the program's own set, which the kernel is about to read.
            guard::blocking(unsafe { *(b as *const u64) });
            return None;
        }

        libc::SYS_execve => {
            let (path, given) = (a as *const c_char, c as *const *const c_char);
            let reach = announce::path(path, given);
            environment::follow(given, reach, |env| {
                announce::execute(path, given, || raw_call!(number, a, b, env))
            })
        }
        libc::SYS_execveat => {
            let given = d as *const *const c_char;
            let reach = announce::at(fd, b as *const c_char, given, e as c_int);
            let call = |env| raw_call!(number, a, b, c, env, e);
            environment::follow(given, reach, call)
        }

        libc::SYS_prctl if a as c_int == libc::PR_SET_SECCOMP => {
            standby::filters();
            return None;
        }
        libc::SYS_seccomp
            if matches!(
                a as u32,
                libc::SECCOMP_SET_MODE_STRICT | libc::SECCOMP_SET_MODE_FILTER
            ) =>
        {
            standby::filters();
            return None;
        }

        // Their reads and writes of managed files could not be seen; programs fall back.
        libc::SYS_io_uring_setup | libc::SYS_io_setup if exports::no_asynchronous_transfers() => {
            -libc::ENOSYS as isize
        }
        _ => return None,
    })
}

fn list(iov: usize, count: usize) -> Vectors {
    Vectors(iov as *const iovec, count as c_int)
}

fn position(offset: usize) -> Option<i64> {
    (offset as i64 != -1).then_some(offset as i64)
}

fn after(flushed: isize, plain: impl FnOnce() -> isize) -> isize {
    if flushed < 0 { flushed } else { plain() }
}

fn duplicated(old: c_int, new: isize) -> isize {
    files::duplicated(old, new as c_int);
    new
}

fn replace(old: c_int, new: c_int, plain: impl FnOnce() -> isize) -> isize {
    raw::kernel(files::replace(old, new, || raw::ret(plain()) as c_int) as isize)
}

fn open(flags: c_int, open: impl Fn(c_int) -> isize) -> isize {
    raw::kernel(files::open(flags, |flags| raw::ret(open(flags)) as c_int) as isize)
}
