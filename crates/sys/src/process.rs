//! Other processes: their memory, their mappings, where they run; and what a launcher sets on
//! itself. Process and thread ids are `u32`, as in `std::process::id`.
#![allow(unsafe_code)]

pub mod confined;
mod descriptors;
mod mappings;
mod own;
pub mod reach;

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::mask::{self, Capability};
use crate::{Errno, Interrupted, PAGE_BYTES, Progress, Result};

pub use descriptors::{Descriptor, descriptors};
pub use mappings::{
    Detail, Mapping, for_each_detailed_mapping, for_each_mapping, for_each_mapping_in,
    for_each_shared_mapping, mapping_at,
};
pub use own::{
    Child, Exit, affinity, fork, fork_with, hide_variable, reap, set_affinity, set_affinity_to,
    set_name, set_parent_death_signal, set_title, setsid,
};

/// The kernel's limit of ranges in one call (`UIO_MAXIOV`).
const RANGES_PER_CALL: usize = 1024;

fn pid(id: u32) -> Result<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)
}

/// The threads of a process.
fn threads(id: u32) -> impl Iterator<Item = u32> {
    let tasks = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok())
}

/// The threads of a process, and what each is doing: `/proc/TID/syscall`, proc_pid_syscall(5).
pub(crate) fn calls_of_threads(id: u32) -> impl Iterator<Item = (u32, String)> {
    threads(id).filter_map(move |tid| {
        Some((tid, read_proc(&format!("/proc/{id}/task/{tid}/syscall")).ok()?))
    })
}

/// Whether a signal does not end a thread's wait for a page: it waits in a system call, or blocks or
/// ignores the signal. Of a thread that cannot be seen that is not known, and false.
pub fn is_deaf(id: u32, tid: u32, signal: i32) -> bool {
    let task = |what: &str| read_proc(&format!("/proc/{id}/task/{tid}/{what}"));
    let Ok(call) = task("syscall") else { return false };
    // -1: it is in none (proc_pid_syscall(5)).
    if !matches!(call.split_ascii_whitespace().next(), Some("-1" | "running") | None) {
        return true;
    }
    let Ok(status) = task("status") else { return false };
    let mut masks = status
        .lines()
        .filter_map(|line| line.strip_prefix("SigBlk:").or_else(|| line.strip_prefix("SigIgn:")));
    let has = |mask: &str| {
        u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 << (signal - 1) != 0)
    };
    masks.any(has)
}

/// Whether a process has more than one thread: two links of the directory are its own, and one is each
/// thread's. Of most of what a machine has, the kernel's own threads, that is all there is to ask.
fn has_other_threads(id: u32) -> bool {
    fs::metadata(format!("/proc/{id}/task")).is_ok_and(|tasks| tasks.nlink() > 3)
}

/// The other threads of a process. Once its first has ended and others go on, only those show its
/// memory.
fn other_threads(id: u32) -> impl Iterator<Item = u32> {
    let others = has_other_threads(id).then(|| threads(id).filter(move |tid| *tid != id));
    others.into_iter().flatten()
}

/// A call that acts on the memory of a process, by whichever of its threads has it.
fn by_any_thread(id: u32, mut call: impl FnMut(i32) -> Result<usize>) -> Result<usize> {
    let mut call = |id| call(pid(id)?.as_raw_nonzero().get());
    match call(id) {
        Err(Errno::SRCH) => {
            other_threads(id).map(call).find(|r| *r != Err(Errno::SRCH)).unwrap_or(Err(Errno::SRCH))
        }
        done => done,
    }
}

/// `process_vm_readv(2)`: reads memory of a process at `address`. Returns the bytes read, which
/// are fewer where an unreadable page comes in between. A userfaultfd fault there is waited for.
///
/// # Errors
/// [`Errno::FAULT`]: the first byte is not readable; [`Errno::PERM`]: not permitted to trace it
/// (CAP_SYS_PTRACE, or the same user and a dumpable process); [`Errno::SRCH`]: no such process.
pub fn process_vm_read(id: u32, address: u64, buf: &mut [u8]) -> Result<usize> {
    if !mask::allows(Capability::ProcessVm) {
        return Err(Errno::PERM);
    }
    let local = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: buf.len() };
    // SAFETY: the kernel writes at most `buf.len()` bytes to `buf`, which is exclusively borrowed;
    // the remote address is checked by the kernel and read only.
    let read =
        |id| crate::check_size(unsafe { libc::process_vm_readv(id, &local, 1, &remote, 1, 0) });
    by_any_thread(id, read)
}

/// `process_vm_writev(2)`: writes memory of another process. Returns the bytes written, which are
/// fewer where an unwritable page comes in between.
///
/// # Errors
/// As for [`process_vm_read`]; [`Errno::INVAL`]: the process is this one, whose memory is not
/// written behind its references' backs.
pub fn process_vm_write(id: u32, address: u64, buf: &[u8]) -> Result<usize> {
    if !mask::allows(Capability::ProcessVm) {
        return Err(Errno::PERM);
    }
    if id == std::process::id() {
        return Err(Errno::INVAL);
    }
    let local = libc::iovec { iov_base: buf.as_ptr().cast_mut().cast(), iov_len: buf.len() };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: buf.len() };
    // SAFETY: the kernel only reads `buf`; the remote address belongs to another process (a thread
    // id of this one is not meant, and would be as writing to /proc/self/mem).
    let write =
        |id| crate::check_size(unsafe { libc::process_vm_writev(id, &local, 1, &remote, 1, 0) });
    by_any_thread(id, write)
}

/// `pidfd_open(2)`: a descriptor that stands for a process and is readable once it has ended.
///
/// # Errors
/// [`Errno::SRCH`]: no such process.
pub fn pidfd_open(id: u32) -> Result<OwnedFd> {
    rustix::process::pidfd_open(pid(id)?, PidfdFlags::empty())
}

/// Whether the process that a descriptor stands for has ended, reaped or not.
pub fn has_ended(pidfd: impl AsFd) -> bool {
    crate::event::poll_now(pidfd).is_ok_and(|is| !is.is_empty())
}

/// `pidfd_send_signal(2)`.
///
/// # Errors
/// [`Errno::SRCH`]: it has ended; [`Errno::INVAL`]: no such signal; [`Errno::PERM`].
pub fn send_signal(pidfd: impl AsFd, signal: i32) -> Result<()> {
    let is_real_time = (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&signal);
    let signal = match Signal::from_named_raw(signal) {
        Some(signal) => signal,
        // SAFETY: none of those that libc keeps for itself, which are below SIGRTMIN.
        None if is_real_time => unsafe { Signal::from_raw_unchecked(signal) },
        None => return Err(Errno::INVAL),
    };
    rustix::process::pidfd_send_signal(pidfd, signal)
}

/// Unmaps pages of another process, without its help: `process_madvise(2)` MADV_PAGEOUT.
///
/// Where there is no swap this removes the mappings of shared memfd pages; the pages stay in the
/// memfd and userfaultfd write-protection markers stay too. The next touch is a minor fault.
/// A page that is mapped more than once (by another process, or by a second mapping anywhere) is
/// skipped, *and counted as done*; so is one of the last few pages (31 on Linux 6.18) that another
/// processor put into memfds, until that processor's batch is full or zaps something itself.
/// `/proc/PID/pagemap` tells what was really unmapped. Ranges are `(address, bytes)`, page-aligned; any number of them.
///
/// # Errors
/// Stops at the first range that fails, with the bytes of the ranges before it:
/// [`Errno::NOMEM`]: part of it is not mapped; [`Errno::SRCH`]: the process has ended;
/// [`Errno::PERM`]: needs to be permitted to trace it, and CAP_SYS_NICE.
pub fn zap(pidfd: impl AsFd, ranges: &[(u64, u64)]) -> Progress {
    if !mask::allows(Capability::RemoteZap) {
        return Err(Interrupted { done_bytes: 0, errno: Errno::PERM });
    }
    process_madvise(pidfd, ranges, libc::MADV_PAGEOUT)
}

/// Whether [`zap`] is permitted on this process, another one of the same user.
pub fn may_zap(pidfd: impl AsFd) -> bool {
    // Nothing is what is asked for; the kernel looks at rights first.
    !matches!(zap(pidfd, &[(PAGE_BYTES as u64, 0)]), Err(Interrupted { errno: Errno::PERM, .. }))
}

/// Clears the accessed bits of another process's pages: `process_madvise(2)` MADV_COLD. Pages
/// mapped more than once are skipped.
///
/// # Errors
/// As for [`zap`].
pub fn cold(pidfd: impl AsFd, ranges: &[(u64, u64)]) -> Progress {
    process_madvise(pidfd, ranges, libc::MADV_COLD)
}

fn process_madvise(pidfd: impl AsFd, ranges: &[(u64, u64)], advice: libc::c_int) -> Progress {
    let fd = pidfd.as_fd().as_raw_fd();
    let mut vec = Vec::with_capacity(ranges.len().min(RANGES_PER_CALL));
    let (mut rest, mut done_bytes) = (ranges, 0);
    while !rest.is_empty() {
        let batch = &rest[..rest.len().min(RANGES_PER_CALL)];
        vec.clear();
        vec.extend(batch.iter().map(|&(address, len)| libc::iovec {
            iov_base: address as *mut _,
            iov_len: len as usize,
        }));
        // SAFETY: `vec` holds that many ranges and lives during the call. Both advices that are
        // passed keep the content of the memory that they name, in whichever process.
        let ret = unsafe {
            libc::syscall(libc::SYS_process_madvise, fd, vec.as_ptr(), vec.len(), advice, 0u32)
        };
        let mut bytes = match crate::check_size(ret as isize) {
            Ok(bytes) => bytes as u64,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(Interrupted { done_bytes, errno }),
        };
        done_bytes += bytes;
        // Short: whole ranges are done. Going on from the next names the reason it stopped.
        let mut ranges_done = 0;
        while let Some(&(_, len)) = batch.get(ranges_done)
            && len <= bytes
        {
            bytes -= len;
            ranges_done += 1;
        }
        if ranges_done == 0 {
            return Err(Interrupted { done_bytes, errno: Errno::INVAL });
        }
        rest = &rest[ranges_done..];
    }
    Ok(done_bytes)
}

/// What it means that [`proc_is_own`] is not so.
pub const OTHER_PROC: &str =
    "/proc is that of another PID namespace, where processes have other numbers";

/// What to do about it.
pub const OWN_PROC: &str = "unshare --pid --fork --mount-proc …, or bwrap --proc /proc …";

/// Whether processes have the numbers in `/proc` that they have in this PID namespace, and not those of one
/// around it, whose `/proc` is still mounted there (`unshare --pid` without `--mount-proc`).
///
/// # Errors
/// There is no `/proc`.
pub fn proc_is_own() -> Result<bool> {
    let number = fs::read_link("/proc/self").map_err(|e| errno(&e))?;
    let own = std::process::id().to_string();
    Ok(mask::allows(Capability::OwnProc) && number.as_os_str() == own.as_str())
}

/// All processes that can be seen.
pub fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The process that a thread belongs to, from `/proc/TID/status`.
///
/// # Errors
/// [`Errno::NOENT`]/[`Errno::SRCH`]: no such thread.
pub fn tgid_of(tid: u32) -> Result<u32> {
    status_field(tid, "Tgid:", 0)
}

/// The parent of a process, from `/proc/PID/status`; 0 if it lies outside this pid name space.
///
/// # Errors
/// As for [`tgid_of`].
pub fn parent_of(id: u32) -> Result<u32> {
    status_field(id, "PPid:", 0)
}

/// The thread that traces another (`ptrace(2)`), from `/proc/TID/status`; 0: none does.
///
/// # Errors
/// As for [`tgid_of`].
pub fn tracer_of(tid: u32) -> Result<u32> {
    status_field(tid, "TracerPid:", 0)
}

/// Of a field with several numbers, such as `Uid`, the one at this place: proc_pid_status(5).
fn status_field(id: u32, name: &str, at: usize) -> Result<u32> {
    let status = read_proc(&format!("/proc/{id}/status"))?;
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|v| v.split_ascii_whitespace().nth(at)?.parse().ok()).ok_or(Errno::PROTO)
}

/// Who a process really belongs to, from `/proc/PID/status`.
///
/// # Errors
/// As for [`tgid_of`].
pub fn real_user(id: u32) -> Result<u32> {
    status_field(id, "Uid:", 0)
}

/// The effective user and group of a process, by which it executes programs: credentials(7).
///
/// # Errors
/// As for [`tgid_of`].
pub fn effective_ids(id: u32) -> Result<(u32, u32)> {
    Ok((status_field(id, "Uid:", 1)?, status_field(id, "Gid:", 1)?))
}

/// Whether two processes have the same memory, as a child of `vfork(2)` has its parent's: `kcmp(2)`.
/// `false` where the kernel does not say.
pub fn share_memory(one: u32, other: u32) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: compares, and changes nothing.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) == 0 }
}

/// Addresses at which threads of a process wait for others (`futex(2)`) that may be in other memory
/// than theirs.
pub fn shared_futexes(id: u32) -> impl Iterator<Item = u64> {
    calls_of_threads(id).filter_map(|(_, call)| {
        let mut words = call.split_ascii_whitespace();
        let number: i64 = words.next()?.parse().ok()?;
        let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let (address, how) = (argument()?, argument()?);
        let is_private = how & libc::FUTEX_PRIVATE_FLAG as u64 != 0;
        (number == libc::SYS_futex && !is_private).then_some(address)
    })
}

/// The processor that a thread last ran on: field 39 of `/proc/TID/stat`.
///
/// # Errors
/// As for [`tgid_of`].
pub fn cpu_of(tid: u32) -> Result<u32> {
    stat_field(&read_proc(&format!("/proc/{tid}/stat"))?, 39).ok_or(Errno::PROTO)
}

/// Whether a process is stopped, by a signal or by who traces it: field 3 of `/proc/PID/stat`.
pub fn is_stopped(id: u32) -> bool {
    let stat = read_proc(&format!("/proc/{id}/stat")).unwrap_or_default();
    stat_field::<char>(&stat, 3).is_some_and(|state| matches!(state, 'T' | 't'))
}

/// When a process was started, in the kernel's ticks since boot: field 22 of `/proc/PID/stat`.
///
/// # Errors
/// As for [`tgid_of`].
pub fn start_ticks(id: u32) -> Result<u64> {
    stat_field(&read_proc(&format!("/proc/{id}/stat"))?, 22).ok_or(Errno::PROTO)
}

/// What a process used of processors, and what its children did that have ended and were waited for, to
/// the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTimes {
    /// Its own code.
    pub user: Duration,
    /// The kernel's, for it.
    pub system: Duration,
    /// Its children's own code.
    pub children_user: Duration,
    /// The kernel's, for them.
    pub children_system: Duration,
}

impl CpuTimes {
    /// Those of a process by now.
    ///
    /// # Errors
    /// As for [`tgid_of`].
    pub fn of(id: u32) -> Result<CpuTimes> {
        CpuTimes::parse(&read_proc(&format!("/proc/{id}/stat"))?).ok_or(Errno::PROTO)
    }

    /// Those in a line of `/proc/PID/stat`: proc_pid_stat(5), fields 14 to 17.
    fn parse(stat: &str) -> Option<CpuTimes> {
        let tick_ns = 1_000_000_000 / clock_ticks_per_second();
        let time = |number| {
            let ticks: u64 = stat_field(stat, number)?;
            Some(Duration::from_nanos(ticks * tick_ns))
        };
        Some(CpuTimes {
            user: time(14)?,
            system: time(15)?,
            children_user: time(16)?,
            children_system: time(17)?,
        })
    }
}

/// What a process read, and its children that have ended and were waited for: proc_pid_io(5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadBytes {
    /// By calls, wherever it came from.
    pub by_calls: u64,
    /// From storage, by calls or for mappings.
    pub from_storage: u64,
}

impl ReadBytes {
    /// Those of a process by now.
    ///
    /// # Errors
    /// As for [`tgid_of`]; [`Errno::ACCESS`]: it is not ours to look at.
    pub fn of(id: u32) -> Result<ReadBytes> {
        let io = read_proc(&format!("/proc/{id}/io"))?;
        let number = |key: &str| io.lines().find_map(|line| line.strip_prefix(key)?.parse().ok());
        let (by_calls, from_storage) = (number("rchar: "), number("read_bytes: "));
        by_calls
            .zip(from_storage)
            .map(|(by_calls, from_storage)| ReadBytes { by_calls, from_storage })
            .ok_or(Errno::PROTO)
    }
}

/// The clock of a process: what all its threads used of processors (`clock_getcpuclockid(3)`).
#[derive(Clone, Copy, Debug)]
pub struct CpuClock(libc::clockid_t);

impl CpuClock {
    /// The clock of this process.
    ///
    /// # Errors
    /// [`Errno::SRCH`]: there is no such process.
    pub fn of(id: u32) -> Result<CpuClock> {
        let id = pid(id)?.as_raw_nonzero().get();
        let mut clock = 0;
        // SAFETY: the result goes to a live variable.
        match unsafe { libc::clock_getcpuclockid(id, &raw mut clock) } {
            0 => Ok(CpuClock(clock)),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }

    /// The clock of whichever thread asks it.
    pub fn of_thread() -> CpuClock {
        CpuClock(libc::CLOCK_THREAD_CPUTIME_ID)
    }

    /// Nanoseconds used so far (`clock_gettime(2)`).
    ///
    /// # Errors
    /// [`Errno::INVAL`]: the process is gone.
    pub fn used_ns(self) -> Result<u64> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the result goes to a live variable.
        if unsafe { libc::clock_gettime(self.0, &raw mut time) } != 0 {
            return Err(Errno::INVAL);
        }
        Ok(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
    }
}

/// Field `number` (from 1, as `proc_pid_stat(5)` counts; at least 3) of a stat line. The name, in
/// parentheses, may hold blanks and parentheses.
fn stat_field<T: std::str::FromStr>(stat: &str, number: usize) -> Option<T> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

pub(crate) fn read_proc(path: &str) -> Result<String> {
    /// What most are shorter than. They say that they are empty, and are made anew for each piece that is read.
    const USUAL_BYTES: usize = 16 << 10;
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    let read = fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    read.map_err(|e| errno(&e))?;
    // A process's name may hold any bytes.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

pub(crate) fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_are_read_whatever_the_name() {
        let stat = "7 (a) b (c) Z 1 2 3 4 5 6 7 8 9 10 100 20 3 4 20 0 1";
        let tick_ns = 1_000_000_000 / clock_ticks_per_second();
        let [user, system, children_user, children_system] =
            [100, 20, 3, 4].map(|ticks| Duration::from_nanos(ticks * tick_ns));
        let expected = CpuTimes { user, system, children_user, children_system };
        assert_eq!(CpuTimes::parse(stat), Some(expected));
        assert_eq!(CpuTimes::parse("7 (a) Z 1"), None);
        assert!(CpuTimes::of(std::process::id()).is_ok());
    }

    #[test]
    fn what_a_process_reads_is_counted() {
        const BYTES: u64 = 1 << 16;
        let file = tempfile::tempfile_in(".").unwrap();
        rustix::io::pwrite(&file, &[1; BYTES as usize], 0).unwrap();
        rustix::fs::fsync(&file).unwrap();
        crate::counters::drop_page_cache(&file).unwrap();
        // Not every kernel counts it.
        let me = std::process::id();
        let Ok(before) = ReadBytes::of(me) else { return };
        rustix::io::pread(&file, &mut [0; BYTES as usize], 0).unwrap();
        let after = ReadBytes::of(me).unwrap();
        assert!(after.by_calls >= before.by_calls + BYTES, "{before:?} to {after:?}");
        // Nor does every file system.
        let (then, now) = (before.from_storage, after.from_storage);
        assert!(now == then || now >= then + BYTES, "{before:?} to {after:?}");
        assert!(ReadBytes::of(u32::MAX >> 2).is_err());
    }

    #[test]
    fn threads_are_found_and_bound() {
        std::thread::spawn(|| {
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            assert_eq!(tgid_of(tid), Ok(std::process::id()));
            set_name("a) b (c").unwrap();
            let cpu = *affinity().unwrap().last().unwrap();
            set_affinity(cpu).unwrap();
            assert_eq!((cpu_of(tid), affinity()), (Ok(cpu), Ok(vec![cpu])));
            assert_eq!(set_affinity(u32::MAX), Err(Errno::INVAL));
        })
        .join()
        .unwrap();
        assert!(parent_of(std::process::id()).unwrap() > 0);
    }

    #[test]
    fn own_memory_is_read_but_never_written() {
        let (text, mut buf) = (*b"some bytes", [0; 10]);
        let (me, at) = (std::process::id(), text.as_ptr() as u64);
        assert_eq!(process_vm_read(me, at, &mut buf), Ok(10));
        assert_eq!(buf, text);
        assert_eq!(process_vm_read(me, 16, &mut buf), Err(Errno::FAULT));
        assert_eq!(process_vm_write(me, at, b"x"), Err(Errno::INVAL));
        assert_eq!(process_vm_read(0, at, &mut buf), Err(Errno::SRCH));
    }
}
