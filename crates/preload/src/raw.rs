//! System calls without libc: they touch neither `errno` nor any interposed function.
//!
//! Results follow the kernel: negative errno on failure.

use crate::copies::bounce;
use crate::reading::guard;
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use libc::{c_char, c_int, c_long};

/// One system call.
///
/// # Safety
/// The arguments must not make the kernel break memory that Rust code relies on.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn syscall(number: c_long, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention; the caller answers for the effect.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// One system call.
///
/// # Safety
/// The arguments must not make the kernel break memory that Rust code relies on.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn syscall(number: c_long, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention; the caller answers for the effect.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") args[0] => result,
            in("x1") args[1], in("x2") args[2], in("x3") args[3],
            in("x4") args[4], in("x5") args[5],
            options(nostack),
        );
    }
    result
}

/// A system call that the program asked for, with the program's own arguments, or one of ours that
/// touches no memory of Rust's (descriptors, ids).
pub(crate) fn forward(number: c_long, args: [usize; 6]) -> isize {
    // SAFETY: the program makes this call; what it does to the program's memory is the program's
    // wish, and the statics of this library are unknown to the program.
    unsafe { syscall(number, args) }
}

/// Builds the argument array of a system call from values of any integer or pointer type.
#[macro_export]
macro_rules! raw_call {
    ($number:expr $(, $arg:expr)* $(,)?) => {
        $crate::raw::forward($number, $crate::raw::pad(&[$($arg as usize),*]))
    };
}

/// Arguments padded with zeros.
#[inline(always)]
pub(crate) fn pad(args: &[usize]) -> [usize; 6] {
    let mut all = [0; 6];
    let mut i = 0;
    while i < args.len() && i < 6 {
        all[i] = args[i];
        i += 1;
    }
    all
}

/// Turns a kernel result into libc's: -1 and `errno`, or the value.
pub(crate) fn ret(result: isize) -> isize {
    if (-4095..0).contains(&result) {
        set_errno(-result as c_int);
        -1
    } else {
        result
    }
}

/// Turns a result of libc's into the kernel's: the other way round.
pub(crate) fn kernel(result: isize) -> isize {
    if result == -1 { -errno() as isize } else { result }
}

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: libc's own location of the calling thread's errno.
    unsafe { *libc::__errno_location() = errno }
}

/// The calling thread's `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: libc's own location of the calling thread's errno.
    unsafe { *libc::__errno_location() }
}

/// The process's id, from the kernel: a vfork child answers with its own.
pub(crate) fn getpid() -> i32 {
    raw_call!(libc::SYS_getpid) as i32
}

/// What tells the threads of this process from each other, and a thread's copy in a forked child has
/// too: where its errno is.
pub(crate) fn thread() -> usize {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { libc::__errno_location() }.addr()
}

/// The thread's id.
pub(crate) fn gettid() -> i32 {
    raw_call!(libc::SYS_gettid) as i32
}

/// `close(2)`.
pub(crate) fn close(fd: c_int) {
    if fd >= 0 {
        raw_call!(libc::SYS_close, fd);
    }
}

/// What `fstat(2)` says, or a negated errno.
pub(crate) fn fstat(fd: c_int) -> Result<libc::stat, i32> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    let r = raw_call!(libc::SYS_fstat, fd, stat.as_mut_ptr());
    if r < 0 {
        return Err(r as i32);
    }
    // SAFETY: all zero is a valid `stat`, and the kernel filled it.
    Ok(unsafe { stat.assume_init() })
}

/// What `fstatat(2)` says of a path, which ends with a NUL and may be the program's, or a negated errno.
pub(crate) fn stat_at(dir: c_int, path: *const c_char, flags: c_int) -> Result<libc::stat, i32> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    let r = raw_call!(libc::SYS_newfstatat, dir, path, stat.as_mut_ptr(), flags);
    if r < 0 {
        return Err(r as i32);
    }
    // SAFETY: all zero is a valid `stat`, and the kernel filled it.
    Ok(unsafe { stat.assume_init() })
}

const fn wrapped_ns(seconds: i64, nanoseconds: i64) -> u64 {
    (seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(nanoseconds as u64)
}

/// What tells one content of a file from another.
pub(crate) fn stamp(stat: &libc::stat) -> u64 {
    let ctime_ns = wrapped_ns(stat.st_ctime, stat.st_ctime_nsec);
    pagekeeper_wire::stamp(ctime_ns, wrapped_ns(stat.st_mtime, stat.st_mtime_nsec))
}

/// `fstat(2)` of a file that this process has just changed, where times count in ticks: if the descriptor is that
/// file's, its time becomes one that nobody else leaves. Whether it has.
pub(crate) fn fstat_closed(
    fd: c_int,
    is_it: impl Fn(&libc::stat) -> bool,
) -> Result<(libc::stat, bool), i32> {
    let tick_ns = || clock_ns(libc::CLOCK_REALTIME_COARSE);
    let is_open = |stat: &libc::stat, before_ns, after_ns| {
        let mtime_ns = wrapped_ns(stat.st_mtime, stat.st_mtime_nsec);
        pagekeeper_wire::is_open_time(mtime_ns, before_ns, after_ns)
    };
    let before_ns = tick_ns();
    let stat = fstat(fd)?;
    let then_ns = tick_ns();
    if !is_it(&stat) || !is_open(&stat, before_ns, then_ns) {
        return Ok((stat, true));
    }
    // (A second's last nanosecond stays open.)
    let mtime = libc::timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec + 1 };
    let times = [libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT }, mtime];
    raw_call!(libc::SYS_utimensat, fd, 0, times.as_ptr(), 0);
    let stat = fstat(fd)?;
    Ok((stat, !is_open(&stat, then_ns, tick_ns())))
}

/// `fcntl(2)` with an integer argument.
pub(crate) fn fcntl(fd: c_int, command: c_int, argument: usize) -> isize {
    raw_call!(libc::SYS_fcntl, fd, command, argument)
}

/// `lseek(2)`.
pub(crate) fn lseek(fd: c_int, offset: i64, whence: c_int) -> i64 {
    raw_call!(libc::SYS_lseek, fd, offset, whence) as i64
}

/// `mmap(2)`; a negative result is an errno.
pub(crate) fn mmap(
    addr: usize,
    bytes: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> isize {
    raw_call!(libc::SYS_mmap, addr, bytes, prot, flags, fd, offset)
}

/// How far below this library its own mappings begin.
const APART_BYTES: usize = 384 << 30;
const HUGE_BYTES: usize = 2 << 20;

/// Where so many bytes of this library's own may be mapped, as a hint to the kernel: apart from where it puts
/// the program's mappings. A program that unmaps something, and maps something else there by MAP_FIXED, would
/// find ours in between, and put its own over it. (Below the library, and not by far: sanitizers of programs
/// have the rest of the address space to themselves.)
pub(crate) fn apart(bytes: usize) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let align = if bytes < HUGE_BYTES { 4096 } else { HUGE_BYTES };
    let Some(room) = bytes.checked_next_multiple_of(align).filter(|room| *room < APART_BYTES)
    else {
        return 0;
    };
    let at = NEXT.fetch_add(room + align - 4096, Ordering::Relaxed) % APART_BYTES;
    let begin = (&raw const NEXT).addr().checked_sub(APART_BYTES);
    begin.map_or(0, |begin| (begin + at).next_multiple_of(align))
}

/// `mmap(2)` of what is this library's own; a negative result is an errno.
pub(crate) fn map(bytes: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> isize {
    mmap(apart(bytes), bytes, prot, flags, fd, offset)
}

/// Fresh private memory, lazily committed; 0 if there is none. Little of what is large is ever used: huge pages
/// would make memory of all of it, in each process.
pub(crate) fn reserve(bytes: usize) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let r = map(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
    if r < 0 {
        return 0;
    }
    if bytes >= HUGE_BYTES {
        raw_call!(libc::SYS_madvise, r, bytes, libc::MADV_NOHUGEPAGE);
    }
    r as usize
}

/// `munmap(2)`.
pub(crate) fn munmap(addr: usize, bytes: usize) {
    raw_call!(libc::SYS_munmap, addr, bytes);
}

/// The time since some moment in the past, never the same twice.
pub(crate) fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    raw_call!(libc::SYS_clock_gettime, clock, &raw mut now);
    nanoseconds(&now)
}

fn nanoseconds(time: &libc::timespec) -> u64 {
    wrapped_ns(time.tv_sec, time.tv_nsec)
}

/// This library's constructor is done.
static HAS_STARTED: AtomicBool = AtomicBool::new(false);

/// See [`HAS_STARTED`].
pub(crate) fn has_started() {
    HAS_STARTED.store(true, Ordering::Relaxed);
}

/// The time since some moment in the past, the same for all processes, as it was a clock tick ago or
/// less. By libc, which reads it without asking the kernel, or the processor; until the program's own
/// constructors may run not even by that: the program may have a function of that name.
pub(crate) fn recent_ns() -> u64 {
    let mut tick = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    if HAS_STARTED.load(Ordering::Relaxed) {
        // SAFETY: `tick` is ours to be filled, and there is such a clock.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut tick) };
    } else {
        raw_call!(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC_COARSE, &raw mut tick);
    }
    nanoseconds(&tick)
}

/// A time that is not before the present one, by at most a clock tick and what [`recent_ns`] lags
/// behind.
pub(crate) fn soon_ns() -> u64 {
    // The slowest of the kernel's clocks ticks a hundred times a second.
    const TICK_NS_MAX: u64 = 10_000_000;
    recent_ns() + TICK_NS_MAX
}

/// How long this process may make files, memory files among them: RLIMIT_FSIZE, setrlimit(2).
pub(crate) fn longest_file() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    raw_call!(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, 0, &raw mut limit);
    limit.rlim_cur
}

/// Sleeps for a moment.
pub(crate) fn pause() {
    let moment = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
    raw_call!(libc::SYS_nanosleep, &raw const moment, 0);
}

/// Gives up the processor.
pub(crate) fn yield_now() {
    raw_call!(libc::SYS_sched_yield);
}

/// Sleeps while `word` is `expected`, at most a tenth of a second.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32) {
    futex_wait_for(word, expected, 100_000_000);
}

/// [`futex_wait`] for less than a second.
fn futex_wait_for(word: &AtomicU32, expected: u32, limit_ns: u32) {
    let limit = libc::timespec { tv_sec: 0, tv_nsec: limit_ns.into() };
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    raw_call!(libc::SYS_futex, word.as_ptr(), op, expected, &raw const limit);
}

/// Wakes one sleeper.
pub(crate) fn futex_wake(word: &AtomicU32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    raw_call!(libc::SYS_futex, word.as_ptr(), op, 1);
}

/// Sleeps while `word`, in memory that is shared with other processes, is `expected`; for less than a second.
pub(crate) fn futex_wait_shared(word: &AtomicU32, expected: u32, limit_ns: u32) {
    let limit = libc::timespec { tv_sec: 0, tv_nsec: limit_ns.into() };
    raw_call!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const limit);
}

/// Wakes one sleeper of any process.
pub(crate) fn futex_wake_shared(word: &AtomicU32) {
    raw_call!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1);
}

/// [`futex_wake`] of all who wait.
pub(crate) fn futex_wake_all(word: &AtomicU32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    raw_call!(libc::SYS_futex, word.as_ptr(), op, i32::MAX);
}

/// Ends the whole process at once.
pub(crate) fn exit_group(code: c_int) -> ! {
    loop {
        raw_call!(libc::SYS_exit_group, code);
    }
}

/// Writes one line to standard error.
pub(crate) fn complain(text: &[u8]) {
    let parts: [&[u8]; 3] = [b"pagekeeper: ", text, b"\n"];
    let iov = parts
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    raw_call!(libc::SYS_writev, 2, iov.as_ptr(), iov.len());
}

/// A number in decimal digits.
pub(crate) fn decimal(mut number: u64, digits: &mut [u8; 12]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 || at == 0 {
            return &digits[at..];
        }
    }
}

/// The path of a descriptor's entry in a folder of this process's `/proc`, `fd` or `fdinfo`, put into `path`,
/// which is all zeros.
pub(crate) fn descriptor_path(folder: &[u8], fd: c_int, path: &mut [u8; 32]) -> *const c_char {
    let mut digits = [0u8; 12];
    let mut at = 0;
    let parts: [&[u8]; 4] = [b"/proc/self/", folder, b"/", decimal(fd.max(0) as u64, &mut digits)];
    for part in parts {
        path[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    path.as_ptr().cast()
}

/// All signals but those that a thread raises by its own fault are held back while this lives: a
/// handler that jumps away would otherwise leave a request half done or a lock taken.
pub(crate) struct SignalsHeld {
    old: u64,
}

impl SignalsHeld {
    /// Holds signals back in the calling thread.
    pub(crate) fn new() -> SignalsHeld {
        let mask = pagekeeper_wire::SIGNALS_HELD;
        let mut old = 0u64;
        raw_call!(
            libc::SYS_rt_sigprocmask,
            libc::SIG_BLOCK,
            &raw const mask,
            &raw mut old,
            size_of::<u64>()
        );
        SignalsHeld { old }
    }

    /// Goes on holding them back, beyond this value's life. The mask that [`SignalsHeld::resume`]
    /// takes.
    pub(crate) fn keep(self) -> u64 {
        let old = self.old;
        core::mem::forget(self);
        old
    }

    /// What [`SignalsHeld::keep`] gave up, in the same thread or its copy in a forked child.
    pub(crate) fn resume(old: u64) -> SignalsHeld {
        SignalsHeld { old }
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        // They were held back before, as within another of these: nothing was changed.
        if self.old & pagekeeper_wire::SIGNALS_HELD == pagekeeper_wire::SIGNALS_HELD {
            return;
        }
        raw_call!(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const self.old,
            0,
            size_of::<u64>()
        );
    }
}

/// A lock for threads of one process; hold signals back while it is taken. All zero is unlocked.
#[repr(transparent)]
pub(crate) struct Lock(AtomicU32);

impl Lock {
    /// Unlocked.
    pub(crate) const fn new() -> Lock {
        Lock(AtomicU32::new(0))
    }

    /// What [`LockGuard::keep`] gave up, in the same thread or its copy in a forked child.
    pub(crate) fn resume(&self) -> LockGuard<'_> {
        LockGuard(&self.0)
    }

    /// In a forked child: who held it is not there.
    pub(crate) fn is_nobodys(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Waits for the lock.
    pub(crate) fn lock(&self) -> LockGuard<'_> {
        if self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.0.swap(2, Ordering::Acquire) != 0 {
                futex_wait(&self.0, 2);
            }
        }
        LockGuard(&self.0)
    }

    /// Waits for the lock, less than a second. None if somebody has it then.
    pub(crate) fn lock_within(&self, limit_ns: u32) -> Option<LockGuard<'_>> {
        if self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Some(LockGuard(&self.0));
        }
        let until_ns = now_ns() + u64::from(limit_ns);
        while self.0.swap(2, Ordering::Acquire) != 0 {
            let left_ns = until_ns.checked_sub(now_ns()).filter(|left| *left > 0)?;
            futex_wait_for(&self.0, 2, left_ns as u32);
        }
        Some(LockGuard(&self.0))
    }
}

/// Unlocks when dropped.
pub(crate) struct LockGuard<'a>(&'a AtomicU32);

impl LockGuard<'_> {
    /// Goes on holding it, beyond this value's life.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        if self.0.swap(0, Ordering::Release) == 2 {
            futex_wake(self.0);
        }
    }
}

/// Temporary private memory, unmapped when dropped. Never managed, so the kernel and the manager
/// may read it at any moment.
pub(crate) struct Arena {
    /// Where it starts.
    pub(crate) addr: usize,
    bytes: usize,
}

impl Arena {
    /// Memory of at least this size.
    pub(crate) fn new(bytes: usize) -> Option<Arena> {
        let bytes = bytes.max(1).next_multiple_of(4096);
        match reserve(bytes) {
            0 => None,
            addr => Some(Arena { addr, bytes }),
        }
    }

    /// Gathers the program's buffers from the start of the arena; returns the bytes gathered or a
    /// negated errno. Copied by the kernel, so that a bad address is EFAULT and not a signal.
    pub(crate) fn gather(&self, sources: &[libc::iovec], total: usize) -> isize {
        // Before anything is mapped the kernel can touch all that is there, and nobody catches signals.
        if crate::process::environment::user_mode_only() && crate::memory::mapping::any() {
            return match bounce::gather(sources, 0, self.addr, total.min(self.bytes)) {
                0 if total > 0 => -libc::EFAULT as isize,
                done => done as isize,
            };
        }
        let to = libc::iovec { iov_base: self.addr as *mut _, iov_len: total.min(self.bytes) };
        let r = raw_call!(
            libc::SYS_process_vm_readv,
            getpid(),
            &raw const to,
            1,
            sources.as_ptr(),
            sources.len(),
            0
        );
        if r != -libc::EPERM as isize && r != -libc::ENOSYS as isize {
            // What may only be written to is readable on most machines, but not by this call.
            let done = self.gather_rest(sources, r.max(0) as usize, to.iov_len);
            return if done == 0 { r } else { done as isize };
        }
        let mut done = 0;
        for source in sources {
            let bytes = source.iov_len.min(to.iov_len - done);
            // SAFETY: the program handed these bytes to a write; the arena is ours and disjoint.
            unsafe {
                core::ptr::copy_nonoverlapping(
                    source.iov_base.cast::<u8>(),
                    (self.addr + done) as *mut u8,
                    bytes,
                );
            }
            done += bytes;
        }
        done as isize
    }

    /// Gathers what comes after so many bytes, up to where no memory is; returns how many there are then.
    fn gather_rest(&self, sources: &[libc::iovec], mut done: usize, total: usize) -> usize {
        const PAGE: usize = 4096;
        if done >= total || !guard::works() || guard::is_blocked() {
            return done;
        }
        let mut before = 0;
        for source in sources {
            while done < total && done - before < source.iov_len {
                let from = source.iov_base as usize + (done - before);
                let rest = (source.iov_len - (done - before)).min(total - done);
                let bytes = rest.min(PAGE - from % PAGE);
                if !guard::copy(self.addr + done, from, bytes) {
                    return done;
                }
                done += bytes;
            }
            before += source.iov_len;
            if done < before {
                break;
            }
        }
        done
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        munmap(self.addr, self.bytes);
    }
}
