//! Other processes: their memory, their mappings, where they run; and what a launcher sets on
//! itself. Process and thread ids are `u32`, as in `std::process::id`.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use linux_raw_sys::general::{procmap_query, procmap_query_flags};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::thread::CpuSet;

use crate::mask::{self, Capability};
use crate::{Errno, Interrupted, PAGE_BYTES, Progress, Result};

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

/// The other threads of a process. Once its first has ended and others go on, only those show its
/// memory.
fn other_threads(id: u32) -> impl Iterator<Item = u32> {
    threads(id).filter(move |tid| *tid != id)
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

/// A line of `/proc/PID/maps`: one mapping of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// First byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub execute: bool,
    /// Shared, not copy-on-write.
    pub shared: bool,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Major number of the file's device.
    pub dev_major: u32,
    /// Minor number.
    pub dev_minor: u32,
    /// Inode; 0 if there is no file.
    pub inode: u64,
    /// Path or `[heap]`-like name, as the kernel prints it (newlines as `\012`, and `(deleted)`
    /// appended); empty for anonymous memory.
    pub path: &'a [u8],
}

impl<'a> Mapping<'a> {
    /// The access it gives, as `PROT_` bits of `mmap(2)`.
    pub fn protection(&self) -> u64 {
        let bits = [
            (self.read, libc::PROT_READ),
            (self.write, libc::PROT_WRITE),
            (self.execute, libc::PROT_EXEC),
        ];
        bits.iter().filter(|(has, _)| *has).map(|(_, bit)| *bit as u64).sum()
    }

    /// Parses a line (without its end). `None` if it is none.
    pub fn parse(line: &'a [u8]) -> Option<Mapping<'a>> {
        fn field<'a>(rest: &mut &'a [u8], end: u8) -> Option<&'a [u8]> {
            let at = rest.iter().position(|b| *b == end)?;
            let (head, tail) = rest.split_at(at);
            *rest = &tail[1..];
            Some(head)
        }
        fn number(digits: &[u8], radix: u32) -> Option<u64> {
            // A sign would be accepted by the parser, and never comes from the kernel.
            let first = digits.first()?;
            if !first.is_ascii_hexdigit() {
                return None;
            }
            u64::from_str_radix(str::from_utf8(digits).ok()?, radix).ok()
        }
        let mut rest = line;
        let start = number(field(&mut rest, b'-')?, 16)?;
        let end = number(field(&mut rest, b' ')?, 16)?;
        let &[r, w, x, s] = field(&mut rest, b' ')? else { return None };
        let offset = number(field(&mut rest, b' ')?, 16)?;
        let dev_major = number(field(&mut rest, b':')?, 16)?.try_into().ok()?;
        let dev_minor = number(field(&mut rest, b' ')?, 16)?.try_into().ok()?;
        let at = rest.iter().position(|b| *b == b' ').unwrap_or(rest.len());
        let (inode, path) = rest.split_at(at);
        Some(Mapping {
            start,
            end,
            read: r == b'r',
            write: w == b'w',
            execute: x == b'x',
            shared: s == b's',
            offset,
            dev_major,
            dev_minor,
            inode: number(inode, 10)?,
            path: path.trim_ascii_start(),
        })
    }
}

/// A list of a process's mappings in `/proc`.
fn open_mappings(id: u32, name: &str) -> Result<BufReader<fs::File>> {
    let open = |id: u32| -> std::io::Result<_> {
        let file = fs::File::open(format!("/proc/{id}/{name}"))?;
        let mut reader = BufReader::with_capacity(64 << 10, file);
        let is_empty = reader.fill_buf()?.is_empty();
        Ok((reader, is_empty))
    };
    let shown = |id| open(id).ok().filter(|(_, is_empty)| !is_empty);
    let first = open(id);
    if !matches!(first, Ok((_, false)))
        && let Some((reader, _)) = other_threads(id).find_map(shown)
    {
        return Ok(reader);
    }
    first.map(|(reader, _)| reader).map_err(|e| errno(&e))
}

/// Calls `f` for every mapping of a process, in address order, until it returns `false`.
///
/// The kernel reads the list piecewise: what changes meanwhile may be seen in either state.
///
/// # Errors
/// [`Errno::NOENT`]/[`Errno::SRCH`]: no such process; [`Errno::ACCESS`]; [`Errno::PROTO`]: a line
/// that is no mapping.
pub fn for_each_mapping(id: u32, mut f: impl FnMut(Mapping<'_>) -> bool) -> Result<()> {
    let mut reader = open_mappings(id, "maps")?;
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(|e| errno(&e))? == 0 {
            return Ok(());
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        if !f(Mapping::parse(text).ok_or(Errno::PROTO)?) {
            return Ok(());
        }
    }
}

const QUERY: Opcode = opcode::read_write::<procmap_query>(b'f', 17);
const _: () = assert!(size_of::<procmap_query>() == 104);

/// [`for_each_mapping`] of the shared ones that reach beyond an address, without their paths. The kernel looks them up
/// (`PROCMAP_QUERY`, Linux 6.11, `include/uapi/linux/fs.h`); an older one lists all that there are.
///
/// # Errors
/// As [`for_each_mapping`].
pub fn for_each_shared_mapping(
    id: u32,
    from: u64,
    mut f: impl FnMut(Mapping<'_>) -> bool,
) -> Result<()> {
    use procmap_query_flags as flag;
    let list = fs::File::open(format!("/proc/{id}/maps")).map_err(|e| errno(&e))?;
    let mut query = procmap_query {
        size: size_of::<procmap_query>() as u64,
        query_flags: flag::PROCMAP_QUERY_COVERING_OR_NEXT_VMA as u64
            | flag::PROCMAP_QUERY_VMA_SHARED as u64,
        query_addr: from,
        vma_start: 0,
        vma_end: 0,
        vma_flags: 0,
        vma_page_size: 0,
        vma_offset: 0,
        inode: 0,
        dev_major: 0,
        dev_minor: 0,
        vma_name_size: 0,
        build_id_size: 0,
        vma_name_addr: 0,
        build_id_addr: 0,
    };
    loop {
        // SAFETY: the number and the struct belong together (its size is asserted above), and there
        // is no buffer for names; integers take any bits.
        match unsafe { ioctl(&list, Updater::<QUERY, _>::new(&mut query)) } {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            // What is not known, or has no memory under this name.
            Err(_) if query.query_addr == from => {
                let concerns = |mapping: &Mapping<'_>| mapping.shared && mapping.end > from;
                return for_each_mapping(id, |mapping| !concerns(&mapping) || f(mapping));
            }
            Err(errno) => return Err(errno),
        }
        let has = |flag: procmap_query_flags| query.vma_flags & flag as u64 != 0;
        let mapping = Mapping {
            start: query.vma_start,
            end: query.vma_end,
            read: has(flag::PROCMAP_QUERY_VMA_READABLE),
            write: has(flag::PROCMAP_QUERY_VMA_WRITABLE),
            execute: has(flag::PROCMAP_QUERY_VMA_EXECUTABLE),
            shared: true,
            offset: query.vma_offset,
            dev_major: query.dev_major,
            dev_minor: query.dev_minor,
            inode: query.inode,
            path: b"",
        };
        if !f(mapping) {
            return Ok(());
        }
        query.query_addr = query.vma_end;
    }
}

/// What `/proc/PID/smaps` says of a mapping beside its line in `maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detail<'a> {
    /// Memory in it that is no file's, such as private copies of a file's pages, swapped out or not.
    pub anonymous_bytes: u64,
    /// `VmFlags`: words of two letters, see proc_pid_smaps(5).
    pub flags: &'a str,
}

impl Detail<'_> {
    /// Whether it has a flag, such as `mw` (may be made writable) or `lo` (locked).
    pub fn has(&self, flag: &str) -> bool {
        self.flags.split_ascii_whitespace().any(|word| word == flag)
    }
}

/// [`for_each_mapping`] with details, which make the kernel walk all of the process's page tables.
///
/// # Errors
/// As [`for_each_mapping`].
pub fn for_each_detailed_mapping(
    id: u32,
    f: impl FnMut(Mapping<'_>, Detail<'_>) -> bool,
) -> Result<()> {
    let mut text = Vec::new();
    open_mappings(id, "smaps")?.read_to_end(&mut text).map_err(|e| errno(&e))?;
    parse_details(&text, f)
}

fn parse_details(text: &[u8], mut f: impl FnMut(Mapping<'_>, Detail<'_>) -> bool) -> Result<()> {
    let mut head: &[u8] = &[];
    let mut anonymous_bytes = 0;
    for line in text.split(|byte| *byte == b'\n') {
        // Fields begin with a capital letter, mappings with a digit of an address.
        if !line.first().is_some_and(u8::is_ascii_uppercase) {
            (head, anonymous_bytes) = (line, 0);
            continue;
        }
        let field = String::from_utf8_lossy(line);
        let anonymous = field.strip_prefix("Anonymous:").or_else(|| field.strip_prefix("Swap:"));
        if let Some(kib) = anonymous.and_then(|field| field.strip_suffix("kB")) {
            anonymous_bytes += kib.trim().parse::<u64>().map_err(|_| Errno::PROTO)? << 10;
        } else if let Some(flags) = field.strip_prefix("VmFlags:") {
            let mapping = Mapping::parse(head).ok_or(Errno::PROTO)?;
            if !f(mapping, Detail { anonymous_bytes, flags }) {
                break;
            }
        }
    }
    Ok(())
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

/// Binds the calling thread to one processor.
///
/// # Errors
/// [`Errno::INVAL`]: it does not exist or is not permitted.
pub fn set_affinity(cpu: u32) -> Result<()> {
    if cpu as usize >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL);
    }
    let mut set = CpuSet::new();
    set.set(cpu as usize);
    rustix::thread::sched_setaffinity(None, &set)
}

/// Binds the calling thread to a set of processors.
///
/// # Errors
/// As for [`set_affinity`].
pub fn set_affinity_to(cpus: &[u32]) -> Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|cpu| (**cpu as usize) < CpuSet::MAX_CPU) {
        set.set(cpu as usize);
    }
    rustix::thread::sched_setaffinity(None, &set)
}

/// The processors that the calling thread may run on.
///
/// # Errors
/// As `sched_getaffinity(2)`.
pub fn affinity() -> Result<Vec<u32>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu as u32).collect())
}

/// Names the calling thread, for `ps` and `top`; at most 15 bytes count.
///
/// # Errors
/// [`Errno::INVAL`]: a NUL in it.
pub fn set_name(name: &str) -> Result<()> {
    rustix::thread::set_name(&CString::new(name).map_err(|_| Errno::INVAL)?)
}

/// `prctl(2)` PR_SET_PDEATHSIG: the calling process gets this signal when the *thread* that
/// started it ends. Lost when a set-user-id program is executed.
///
/// # Errors
/// [`Errno::INVAL`]: no such signal.
pub fn set_parent_death_signal(signal: i32) -> Result<()> {
    let signal = Signal::from_named_raw(signal).ok_or(Errno::INVAL)?;
    rustix::process::set_parent_process_death_signal(Some(signal))
}

/// `prctl(2)` PR_SET_CHILD_SUBREAPER: orphaned descendants become this process's children, so that
/// it can wait for the whole tree.
///
/// # Errors
/// None is known.
pub fn set_child_subreaper(on: bool) -> Result<()> {
    // The kernel takes any number but 0 as yes.
    rustix::process::set_child_subreaper(on.then(rustix::process::getpid))
}

/// `setsid(2)`: leaves the terminal and the process group.
///
/// # Errors
/// [`Errno::PERM`]: a process group leader cannot.
pub fn setsid() -> Result<()> {
    rustix::process::setsid().map(drop)
}

/// Makes a child that runs `f` in a copy of this process's memory, without its descriptors, and ends
/// then, or with this process. Nobody is told of its end.
///
/// # Errors
/// [`Errno::BUSY`]: this process has more than one thread, whose locks the child would find taken for
/// ever; [`Errno::AGAIN`], [`Errno::NOMEM`].
pub fn fork(f: impl FnOnce()) -> Result<()> {
    check_alone()?;
    crate::signal::ignore(libc::SIGCHLD, true)?;
    fork_alone(|| {
        let ends_with_parent = set_parent_death_signal(libc::SIGKILL).is_ok();
        close_range(0, libc::c_int::MAX);
        if ends_with_parent {
            f();
        }
    })
    .map(drop)
}

/// Makes a child that runs `f` in a copy of this process's memory, and outlives this process. Of its
/// descriptors it has the given one and standard error.
///
/// # Errors
/// As [`fork`]; those of `/dev/null`.
pub fn fork_with(kept: OwnedFd, f: impl FnOnce(OwnedFd)) -> Result<Child> {
    check_alone()?;
    let null =
        fs::File::options().read(true).write(true).open("/dev/null").map_err(|e| errno(&e))?;
    let id = fork_alone(|| {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let number = kept.as_raw_fd();
        close_range(libc::STDERR_FILENO + 1, number - 1);
        close_range(number + 1, libc::c_int::MAX);
        f(kept);
    })?;
    Ok(Child { id, ended: false })
}

/// A child of [`fork_with`].
#[derive(Debug)]
pub struct Child {
    id: u32,
    ended: bool,
}

impl Child {
    /// Its process id, which is no other process's before its end was seen.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.look(rustix::process::WaitOptions::NOHANG);
        self.ended
    }

    /// Waits for its end.
    pub fn wait(&mut self) {
        while !self.ended {
            self.look(rustix::process::WaitOptions::empty());
        }
    }

    fn look(&mut self, how: rustix::process::WaitOptions) {
        self.ended = self.ended
            || match rustix::process::waitpid(pid(self.id).ok(), how) {
                Ok(ended) => ended.is_some(),
                Err(error) => error != Errno::INTR,
            };
    }
}

fn check_alone() -> Result<()> {
    let threads = fs::read_dir("/proc/self/task").map_err(|e| errno(&e))?.count();
    if threads == 1 { Ok(()) } else { Err(Errno::BUSY) }
}

/// Calls `f` in a child of this process, which has but one thread, and ends it.
fn fork_alone(f: impl FnOnce()) -> Result<u32> {
    // SAFETY: no other thread exists, so the child's memory is that of a whole program.
    let id = crate::check(unsafe { libc::fork() })?;
    if id == 0 {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        // SAFETY: ends the process, and runs nothing else.
        unsafe { libc::_exit(0) };
    }
    Ok(id as u32)
}

/// For a forked child, which uses none of these.
fn close_range(first: libc::c_int, last: libc::c_int) {
    if first <= last {
        // SAFETY: nothing in this process uses such a descriptor from here on but what is opened.
        unsafe { libc::close_range(first as libc::c_uint, last as libc::c_uint, 0) };
    }
}

/// Names this process in `/proc/PID/cmdline`, for `ps` and `pkill`, in place of the command line that
/// it was started with, as far as that is long.
///
/// # Errors
/// `/proc` cannot be used.
pub fn set_title(title: &str) -> Result<()> {
    let stat = read_proc("/proc/self/stat")?;
    let place = |n| stat_field(&stat, n).ok_or(Errno::PROTO);
    let (start, end): (u64, u64) = (place(48)?, place(49)?);
    let mut words = title.replace(' ', "\0").into_bytes();
    words.resize(end.saturating_sub(start) as usize, 0);
    // What this process has been told is read once, at its start.
    let memory = fs::File::options().write(true).open("/proc/self/mem").map_err(|e| errno(&e))?;
    std::os::unix::fs::FileExt::write_all_at(&memory, &words, start).map_err(|e| errno(&e))
}

/// Blanks a variable out in `/proc/PID/environ`, where others find what this process was started with,
/// and in what this process finds of it from now on.
///
/// # Errors
/// `/proc` cannot be used.
pub fn hide_variable(name: &str) -> Result<()> {
    let environ = fs::read("/proc/self/environ").map_err(|e| errno(&e))?;
    let start: u64 = stat_field(&read_proc("/proc/self/stat")?, 50).ok_or(Errno::PROTO)?;
    let memory = fs::File::options().write(true).open("/proc/self/mem").map_err(|e| errno(&e))?;
    let mut at = start;
    for entry in environ.split(|byte| *byte == 0) {
        let value = entry.strip_prefix(name.as_bytes());
        if value.is_some_and(|value| value.starts_with(b"=")) {
            let blank = vec![0; entry.len()];
            // Nobody holds a reference into it: what is asked for is copied.
            std::os::unix::fs::FileExt::write_all_at(&memory, &blank, at).map_err(|e| errno(&e))?;
        }
        at += entry.len() as u64 + 1;
    }
    Ok(())
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
}

/// `waitpid(2)` for any child that has ended, without waiting: reaps it. `None` if none has.
///
/// # Errors
/// [`Errno::CHILD`]: there are no children.
pub fn reap() -> Result<Option<(u32, Exit)>> {
    let ended = rustix::process::wait(rustix::process::WaitOptions::NOHANG)?;
    Ok(ended.and_then(|(pid, status)| {
        let exit = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(signal),
            (None, None) => return None,
        };
        Some((pid.as_raw_nonzero().get() as u32, exit))
    }))
}

/// Whether programs that this process executes can have CAP_SYS_PTRACE: root's, and those that
/// inherit it. What only the file of this program was given, they do not get.
pub(crate) fn programs_may_trace() -> bool {
    const SYS_PTRACE: u64 = 19;
    let status = read_proc("/proc/self/status").unwrap_or_default();
    let inherited = status.lines().find_map(|line| line.strip_prefix("CapAmb:"));
    let inherited = inherited.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    rustix::process::geteuid().is_root() || inherited.is_some_and(|set| set >> SYS_PTRACE & 1 != 0)
}

pub(crate) fn read_proc(path: &str) -> Result<String> {
    let bytes = fs::read(path).map_err(|e| errno(&e))?;
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
    fn maps_lines_parse() {
        let line = b"7f0a-7f0b rw-s 00002000 fd:1f 4711                /tmp/a b (deleted)";
        let m = Mapping::parse(line).unwrap();
        assert_eq!((m.start, m.end, m.offset), (0x7f0a, 0x7f0b, 0x2000));
        assert_eq!((m.dev_major, m.dev_minor, m.inode), (0xfd, 0x1f, 4711));
        assert!(m.read && m.write && !m.execute && m.shared);
        assert_eq!(m.path, b"/tmp/a b (deleted)");
        let anonymous = Mapping::parse(b"1-2 ---p 0 00:00 0 ").unwrap();
        assert_eq!((anonymous.path, anonymous.shared), (&b""[..], false));
        for bad in [&b""[..], b"1-2", b"1-2 rw-p 0 0:0 ", b"x-2 rw-p 0 0:0 1", b"1-2 rwp 0 0:0 1"] {
            assert_eq!(Mapping::parse(bad), None, "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn details_belong_to_the_mapping_above_them() {
        let text = b"1000-3000 r--p 00002000 fd:1f 4711  /tmp/a\n\
                     Size:                  8 kB\nAnonymous:             4 kB\n\
                     Swap:                  8 kB\nSwapPss:               8 kB\n\
                     VmFlags: rd mr mw me nr sd \n\
                     3000-4000 rw-p 00000000 00:00 0 \nAnonymous:             0 kB\n\
                     VmFlags: rd wr mr mw me ac sd \n";
        let mut seen = Vec::new();
        let all = parse_details(text, |m, d| {
            seen.push((m.start, m.inode, d.anonymous_bytes, d.has("nr"), d.has("n")));
            true
        });
        assert_eq!(all, Ok(()));
        assert_eq!(seen, [(0x1000, 4711, 12288, true, false), (0x3000, 0, 0, false, false)]);
        for bad in [&b"Anonymous: x kB"[..], b"VmFlags: rd", b"1-2 oops\nVmFlags: rd"] {
            assert_eq!(parse_details(bad, |_, _| true), Err(Errno::PROTO));
        }
        assert_eq!(parse_details(b"", |_, _| true), Ok(()));
        let mut flags = None;
        let here = details_belong_to_the_mapping_above_them as fn() as usize as u64;
        for_each_detailed_mapping(std::process::id(), |m, d| {
            if (m.start..m.end).contains(&here) {
                flags = Some((d.has("ex"), d.has("wr")));
            }
            true
        })
        .unwrap();
        assert_eq!(flags, Some((true, false)));
    }

    #[test]
    fn own_mappings_hold_this_function() {
        let here = maps_lines_parse as fn() as usize as u64;
        let mut found = false;
        for_each_mapping(std::process::id(), |m| {
            assert!(m.start < m.end);
            found |= m.execute && (m.start..m.end).contains(&here);
            !found
        })
        .unwrap();
        assert!(found);
        assert_eq!(for_each_mapping(u32::MAX, |_| true), Err(Errno::NOENT));
    }

    #[test]
    fn shared_mappings_are_those_of_the_list() {
        let memfd = crate::memfd::Memfd::create("shared", 1 << 16, false).unwrap();
        let inode = crate::file::stat(&memfd).unwrap().id.ino;
        // SAFETY: new mappings of this test's own; nobody touches them.
        let map = |offset, protection| unsafe {
            let (at, flags) = (std::ptr::null_mut(), libc::MAP_SHARED);
            libc::mmap(at, 8192, protection, flags, memfd.as_fd().as_raw_fd(), offset)
        };
        map(4096, libc::PROT_READ);
        map(16384, libc::PROT_NONE);
        let [mut listed, mut found] = [const { Vec::new() }; 2];
        let own = |m: &Mapping<'_>| (m.start, m.end, m.offset, m.protection(), m.dev_minor);
        let me = std::process::id();
        let mut list = |m: Mapping<'_>| {
            listed.extend((m.inode == inode && m.shared).then(|| own(&m)));
            true
        };
        for_each_mapping(me, &mut list).unwrap();
        for_each_shared_mapping(me, 0, |m| {
            found.extend((m.inode == inode).then(|| own(&m)));
            true
        })
        .unwrap();
        assert_eq!((listed.len(), &found), (2, &listed));
        assert_eq!(for_each_shared_mapping(u32::MAX, 0, |_| true), Err(Errno::NOENT));
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
