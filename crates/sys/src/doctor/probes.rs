//! The probes: each does the thing that it is about, and checks the effect.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use linux_raw_sys::general as raw;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::Status;
use crate::awake::{self, Halting, OWN_POLL, OWN_POLL_NS};
use crate::buffer::Buffer;
use crate::fanotify::{self, Fanotify};
use crate::file::{self, Lease, TransferFlags};
use crate::mask::Capability;
use crate::memfd::{self, Memfd, SealFlags};
use crate::pagemap::{Categories, Pagemap};
use crate::userfault::{Event, Features, OpenFlags, Track, UNFILTERED, Userfault};
use crate::{Errno, PAGE_BYTES, cgroup, process, socket};

const PAGE: u64 = PAGE_BYTES as u64;
/// Pages of scratch memory.
const SCRATCH_PAGES: u64 = 8;
/// Longest wait for anything that ought to come at once.
const PATIENCE: Duration = Duration::from_secs(2);
/// Open files below which a run with thousands of managed files fails.
const OPEN_FILES_WANTED: u64 = 16_384;

/// The outcome of a probe.
pub(super) struct Outcome {
    pub(super) status: Status,
    pub(super) reason: String,
    pub(super) remedy: Option<String>,
}

fn works(how: impl Into<String>) -> Outcome {
    Outcome { status: Status::Works, reason: how.into(), remedy: None }
}

fn missing(why: impl Into<String>) -> Outcome {
    Outcome { status: Status::Missing, reason: why.into(), remedy: None }
}

impl Outcome {
    fn remedy(mut self, command: impl Into<String>) -> Outcome {
        self.remedy = Some(command.into());
        self
    }
}

/// A step that failed: what, and how.
struct Failed {
    step: &'static str,
    errno: Errno,
}

trait Step<T> {
    fn step(self, step: &'static str) -> Result<T, Failed>;
}

impl<T> Step<T> for crate::Result<T> {
    fn step(self, step: &'static str) -> Result<T, Failed> {
        self.map_err(|errno| Failed { step, errno })
    }
}

impl<T> Step<T> for Result<T, crate::Interrupted> {
    fn step(self, step: &'static str) -> Result<T, Failed> {
        self.map_err(|i| Failed { step, errno: i.errno })
    }
}

fn check(ok: bool, step: &'static str) -> Result<(), Failed> {
    if ok { Ok(()) } else { Err(Failed { step, errno: Errno::IO }) }
}

/// Turns a probe's result into its outcome; permission errors get the remedy.
fn outcome(result: Result<String, Failed>, remedy: &str) -> Outcome {
    match result {
        Ok(how) => works(how),
        // Whether it works is not known: files may be there that can be written to.
        Err(Failed { step: SCRATCH_FILE, errno }) => Outcome {
            status: Status::Unknown,
            reason: format!("{SCRATCH_FILE}: {errno}"),
            remedy: Some(
                "name a directory that you may write to, on the same file system: pagekeeper doctor \
                 DIR"
                .into(),
            ),
        },
        Err(Failed { step, errno }) => {
            let denied = matches!(errno, Errno::PERM | Errno::ACCESS);
            let status = if denied { Status::Denied } else { Status::Missing };
            let remedy = (denied && !remedy.is_empty()).then(|| remedy.to_owned());
            Outcome { status, reason: format!("{step}: {errno}"), remedy }
        }
    }
}

/// Exercises one capability.
pub(super) fn run(capability: Capability, directory: &Path) -> Outcome {
    match capability {
        Capability::PageSize => match crate::mask::page_bytes() {
            PAGE_BYTES => works("4096 bytes"),
            other => missing(format!("{other} bytes"))
                .remedy("boot a kernel that is built for pages of 4096 bytes"),
        },
        Capability::Userfault => userfault(),
        Capability::UserfaultUserMode => {
            outcome(user_mode().map(|()| "userfaultfd(2)".into()), UNFILTERED)
        }
        Capability::EventFork => {
            let found = event_fork().map(|()| "a forked child was served".into());
            outcome(found, &grant_to_programs())
        }
        Capability::MinorShmem => {
            outcome(minor_shmem().map(|()| "a present page was mapped".into()), "")
        }
        Capability::WpShmem => {
            outcome(wp_shmem().map(|()| "a protected page was written".into()), "")
        }
        Capability::WpContinue => {
            outcome(wp_continue().map(|()| "a present page was mapped protected".into()), "")
        }
        Capability::Poison => outcome(poison().map(|()| "a page was poisoned".into()), ""),
        Capability::WpAsync => {
            outcome(wp_async(false).map(|()| "a write went through at once".into()), "")
        }
        Capability::PagemapScan => outcome(pagemap_scan(), ""),
        Capability::Move => outcome(move_page().map(|()| "a page was moved".into()), ""),
        Capability::OwnProc => own_proc(),
        Capability::ProcessVm => {
            outcome(process_vm().map(|()| "a child's memory was copied".into()), &grant_reach())
        }
        Capability::RemoteZap => remote_zap(),
        Capability::SmallShmem => small_shmem(),
        Capability::MemfdSeals => outcome(seals().map(|()| "a seal held".into()), ""),
        Capability::AbstractSockets => outcome(abstract_socket(), ""),
        Capability::DirectIo => outcome(direct_io(directory), ""),
        Capability::DontCache => outcome(dont_cache(directory), ""),
        Capability::Leases => outcome(leases(directory), &grant("LEASE")),
        Capability::Fanotify => outcome(fanotify(directory), &grant("SYS_ADMIN")),
        Capability::IoUring => outcome(io_uring(), "sudo sysctl -w kernel.io_uring_disabled=0"),
        Capability::MemoryCgroup => memory_cgroup(),
        Capability::OpenFiles => open_files(),
        Capability::SoonAwake => soon_awake(),
        Capability::NoSwap => no_swap(),
    }
}

/// The command that gives this program a Linux capability.
fn grant(name: &str) -> String {
    if is_in_container() {
        return format!(
            "docker run --user 0 --cap-add {name} --security-opt seccomp=unconfined … (or podman, \
             alike)"
        );
    }
    let program = std::env::current_exe().unwrap_or_else(|_| "pagekeeper".into());
    format!("sudo setcap cap_{}+ep {}", name.to_lowercase(), program.display())
}

/// How another process's memory may be read and written.
fn grant_reach() -> String {
    match process::reach::scope() {
        0 | 1 => grant("SYS_PTRACE"),
        2 => format!("sudo sysctl -w kernel.yama.ptrace_scope=1, or: {}", grant("SYS_PTRACE")),
        _ => "kernel.yama.ptrace_scope = 1 in /etc/sysctl.d, and a restart of the machine: 3 lasts until then"
            .to_owned(),
    }
}

fn is_in_container() -> bool {
    Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists()
}

/// The command that gives a run, its programs among it, what it takes to follow forks and to see
/// touches. A capability of our file alone is none of the programs'.
fn grant_to_programs() -> String {
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    if user.is_root() && is_in_container() {
        // What root lacks there, nobody inside can give.
        return grant("SYS_NICE --cap-add SYS_PTRACE");
    }
    format!(
        "as root: setpriv --reuid {} --regid {} --init-groups --inh-caps +sys_ptrace,+sys_nice \
         --ambient-caps +sys_ptrace,+sys_nice pagekeeper run …",
        user.as_raw(),
        group.as_raw(),
    )
}

/// Scratch memory: a shared mapping of a memfd.
struct Scratch {
    memfd: Memfd,
    ptr: NonNull<u8>,
}

impl Scratch {
    fn new() -> Result<Scratch, Failed> {
        let len = SCRATCH_PAGES * PAGE;
        let memfd = Memfd::create("pagekeeper-doctor", len, false).step("memfd_create")?;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let ptr = unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let null = core::ptr::null_mut();
            rustix::mm::mmap(null, len as usize, prot, MapFlags::SHARED, &memfd, 0).step("mmap")?
        };
        let ptr = NonNull::new(ptr.cast()).ok_or(Failed { step: "mmap", errno: Errno::NOMEM })?;
        Ok(Scratch { memfd, ptr })
    }

    fn address(&self) -> u64 {
        self.ptr.as_ptr() as u64
    }

    /// Reads the first byte of a page; faults if need be.
    fn touch(&self, page: u64) -> u8 {
        assert!(page < SCRATCH_PAGES);
        // SAFETY: inside the mapping; volatile, since the kernel changes it under our hands.
        unsafe { self.ptr.as_ptr().add((page * PAGE) as usize).read_volatile() }
    }

    /// Writes the first byte of a page.
    fn store(&self, page: u64, value: u8) {
        assert!(page < SCRATCH_PAGES);
        // SAFETY: as for `touch`.
        unsafe { self.ptr.as_ptr().add((page * PAGE) as usize).write_volatile(value) };
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` made; nobody keeps a reference into it.
        let _ = unsafe {
            rustix::mm::munmap(self.ptr.as_ptr().cast(), (SCRATCH_PAGES * PAGE) as usize)
        };
    }
}

/// Opens a userfaultfd with these features: full if possible, else for user-mode faults, which is
/// enough for most probes.
fn open(features: Features) -> Result<Userfault, Failed> {
    let full = OpenFlags { nonblocking: true, user_mode_only: false };
    let user = OpenFlags { nonblocking: true, user_mode_only: true };
    // SAFETY: the probes register scratch mappings only, which they reach by raw pointers.
    let uffd = unsafe { Userfault::open(full).or_else(|_| Userfault::open(user)) };
    let uffd = uffd.step("userfaultfd")?;
    uffd.api(features).step("UFFDIO_API")?;
    Ok(uffd)
}

/// Scratch memory, and a descriptor with these features that tracks it.
fn tracked(features: Features, track: Track) -> Result<(Userfault, Scratch), Failed> {
    let uffd = open(features)?;
    let scratch = Scratch::new()?;
    uffd.register(scratch.address(), SCRATCH_PAGES * PAGE, track).step("UFFDIO_REGISTER")?;
    Ok((uffd, scratch))
}

fn own_proc() -> Outcome {
    match process::proc_is_own() {
        Ok(true) => works("/proc/self is this process"),
        Ok(false) => missing(process::OTHER_PROC).remedy(process::OWN_PROC),
        Err(errno) => missing(format!("/proc/self: {errno}")).remedy("mount -t proc proc /proc"),
    }
}

fn userfault() -> Outcome {
    let flags = OpenFlags { nonblocking: true, user_mode_only: false };
    // SAFETY: nothing is registered.
    let (by_syscall, by_device) =
        unsafe { (Userfault::open_by_syscall(flags), Userfault::open_by_device(flags)) };
    match (by_syscall, by_device) {
        (Ok(_), _) => works("userfaultfd(2)"),
        (_, Ok(_)) => works("/dev/userfaultfd"),
        (Err(Errno::NOSYS), _) => {
            missing("the kernel is built without CONFIG_USERFAULTFD, or a seccomp filter hides it")
        }
        (Err(Errno::PERM), Err(_)) if user_mode().is_err() => Outcome {
            status: Status::Denied,
            reason: "userfaultfd(2): a filter of system calls (seccomp) denies it, also what any user may do"
                .into(),
            remedy: Some(UNFILTERED.into()),
        },
        (Err(syscall), Err(device)) => Outcome {
            status: Status::Denied,
            reason: format!("userfaultfd(2): {syscall}; /dev/userfaultfd: {device}"),
            remedy: Some(format!(
                "sudo sysctl -w vm.unprivileged_userfaultfd=1 (or: sudo setfacl -m u:{}:rw \
                 /dev/userfaultfd)",
                rustix::process::getuid().as_raw()
            )),
        },
    }
}

fn user_mode() -> Result<(), Failed> {
    let flags = OpenFlags { nonblocking: true, user_mode_only: true };
    // SAFETY: the scratch mapping alone is registered, which is reached by raw pointers.
    let uffd = unsafe { Userfault::open(flags) }.step("userfaultfd(UFFD_USER_MODE_ONLY)")?;
    uffd.api(Features::MISSING_SHMEM).step("UFFDIO_API")?;
    let scratch = Scratch::new()?;
    uffd.register(scratch.address(), PAGE, Track::MISSING).step("UFFDIO_REGISTER")?;
    uffd.copy(scratch.address(), &[5; PAGE_BYTES], false, false).step("UFFDIO_COPY")?;
    check(scratch.touch(0) == 5, "the copied page holds other bytes")
}

fn minor_shmem() -> Result<(), Failed> {
    let features = Features::MISSING_SHMEM | Features::MINOR_SHMEM;
    let (uffd, scratch) = tracked(features, Track::MISSING | Track::MINOR)?;
    scratch.memfd.write_at(&[6; PAGE_BYTES], PAGE).step("pwrite")?;
    uffd.cont(scratch.address() + PAGE, PAGE, false, false).step("UFFDIO_CONTINUE")?;
    check(scratch.touch(1) == 6, "the continued page holds other bytes")
}

fn wp_continue() -> Result<(), Failed> {
    let features = Features::PAGEFAULT_FLAG_WP
        | Features::MISSING_SHMEM
        | Features::MINOR_SHMEM
        | Features::WP_HUGETLBFS_SHMEM;
    let track = Track::MISSING | Track::MINOR | Track::WRITE_PROTECT;
    let (uffd, scratch) = tracked(features, track)?;
    scratch.memfd.write_at(&[6; PAGE_BYTES], 0).step("pwrite")?;
    uffd.cont(scratch.address(), PAGE, true, false).step("UFFDIO_CONTINUE_MODE_WP")?;
    check(scratch.touch(0) == 6, "the continued page holds other bytes")
}

fn wp_shmem() -> Result<(), Failed> {
    let features = Features::PAGEFAULT_FLAG_WP
        | Features::MISSING_SHMEM
        | Features::WP_HUGETLBFS_SHMEM
        | Features::THREAD_ID;
    let (uffd, scratch) = tracked(features, Track::MISSING | Track::WRITE_PROTECT)?;
    let start = scratch.address();
    uffd.copy(start, &[7; PAGE_BYTES], true, false).step("UFFDIO_COPY")?;
    let faulted = serve_while(
        &uffd,
        &scratch,
        |event| match event {
            Event::Fault { wp: true, .. } => {
                Some(uffd.write_protect(start, PAGE, false, false).is_ok())
            }
            _ => None,
        },
        || scratch.store(0, 8),
    )?;
    check(faulted && scratch.touch(0) == 8, "no fault came for the write to a protected page")
}

/// Runs `access`, which waits for pages of `scratch`, on a thread and answers the events that come
/// meanwhile. Returns the first answer of `serve`; `false` if none comes in time.
fn serve_while(
    uffd: &Userfault,
    scratch: &Scratch,
    mut serve: impl FnMut(Event) -> Option<bool>,
    access: impl FnOnce() + Send,
) -> Result<bool, Failed> {
    std::thread::scope(|scope| {
        let started = std::thread::Builder::new().spawn_scoped(scope, access);
        let thread = started.map_err(|error| process::errno(&error)).step("a thread")?;
        let (deadline, mut events) = (Instant::now() + PATIENCE, Vec::new());
        let mut answer = Ok(None);
        while matches!(answer, Ok(None)) && !thread.is_finished() && Instant::now() < deadline {
            let mut fds = [PollFd::new(uffd, PollFlags::IN)];
            let tick = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
            let _ = rustix::event::poll(&mut fds, Some(&tick));
            answer = uffd.read_events(&mut events).map(|_| events.drain(..).find_map(&mut serve));
        }
        if answer != Ok(Some(true)) {
            // Lets a thread that still waits go on, or this scope would never end.
            let _ = uffd.unregister(scratch.address(), SCRATCH_PAGES * PAGE);
        }
        answer.step("read").map(|answer| answer == Some(true))
    })
}

// SAFETY: the memory is reached by volatile accesses of single bytes that no two threads make to
// one page at a time, and lives as long as the value.
unsafe impl Sync for Scratch {}

fn poison() -> Result<(), Failed> {
    let (uffd, scratch) = tracked(Features::MISSING_SHMEM | Features::POISON, Track::MISSING)?;
    uffd.poison(scratch.address(), PAGE, false).step("UFFDIO_POISON")?;
    // Touching it would raise SIGBUS here; a system call reports it instead.
    let fd = scratch.memfd.as_fd();
    // SAFETY: the kernel reads one byte of the mapping, which lives.
    let ret = unsafe { libc::pwrite(fd.as_raw_fd(), scratch.ptr.as_ptr().cast(), 1, PAGE as i64) };
    let poisoned = matches!(crate::check_size(ret), Err(Errno::FAULT | Errno::HWPOISON));
    check(poisoned, "a poisoned page could be read")
}

fn wp_async(scan: bool) -> Result<(), Failed> {
    let features = Features::PAGEFAULT_FLAG_WP
        | Features::WP_HUGETLBFS_SHMEM
        | Features::WP_UNPOPULATED
        | Features::WP_ASYNC;
    let (uffd, scratch) = tracked(features, Track::WRITE_PROTECT)?;
    let (start, len) = (scratch.address(), SCRATCH_PAGES * PAGE);
    // Page by page, which a mask of `wp-continue` leaves.
    for page in (start..start + len).step_by(PAGE_BYTES) {
        uffd.write_protect(page, PAGE, true, false).step("UFFDIO_WRITEPROTECT")?;
    }
    scratch.store(2, 9);
    check(scratch.touch(2) == 9, "the write was lost")?;
    if !scan {
        return Ok(());
    }
    let pagemap = Pagemap::open(std::process::id()).step("open /proc/self/pagemap")?;
    let mut written = Vec::new();
    pagemap
        .scan(start, start + len, Categories::WRITTEN, true, &mut written)
        .step("ioctl PAGEMAP_SCAN with protection")?;
    let found = written.iter().map(|r| (r.start, r.end)).eq([(start + 2 * PAGE, start + 3 * PAGE)]);
    check(found, "the scan missed the written page")
}

fn pagemap_scan() -> Result<String, Failed> {
    let scratch = Scratch::new()?;
    scratch.store(3, 1);
    let pagemap = Pagemap::open(std::process::id()).step("open /proc/self/pagemap")?;
    let (start, mut regions) = (scratch.address(), Vec::new());
    pagemap
        .scan(start, start + SCRATCH_PAGES * PAGE, Categories::PRESENT, false, &mut regions)
        .step("ioctl PAGEMAP_SCAN")?;
    check(regions.iter().any(|r| r.start == start + 3 * PAGE), "the scan missed a present page")?;
    Ok(match wp_async(true) {
        Ok(()) => "with write protection".into(),
        Err(Failed { step, errno }) => format!("without write protection ({step}: {errno})"),
    })
}

fn move_page() -> Result<(), Failed> {
    let uffd = open(Features::MOVE)?;
    let mut target = Buffer::new(PAGE_BYTES).step("mmap")?;
    let mut source = Buffer::new(PAGE_BYTES).step("mmap")?;
    source[0] = 4;
    target.fill(0);
    let (to, from) = (target.as_ptr() as u64, source.as_ptr() as u64);
    // SAFETY: the buffer is ours, and its content of no further interest.
    unsafe { rustix::mm::madvise(to as *mut _, PAGE_BYTES, rustix::mm::Advice::LinuxDontNeed) }
        .step("madvise")?;
    uffd.register(to, PAGE, Track::MISSING).step("UFFDIO_REGISTER")?;
    uffd.move_pages(to, from, PAGE, false).step("UFFDIO_MOVE")?;
    // SAFETY: inside the live buffer; volatile, since the kernel changed it.
    let moved = unsafe { (to as *const u8).read_volatile() };
    drop((target, source));
    check(moved == 4, "the moved page holds other bytes")
}

/// A forked child that is killed and reaped when dropped.
struct Child {
    pid: libc::pid_t,
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child, not reaped yet, so the number is still its; no status is asked
        // for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, core::ptr::null_mut(), 0);
        }
    }
}

/// Forks a child that maps the scratch memfd itself, touches page 0, says so, and sleeps.
/// Returns it with the address of its mapping.
fn child_with_mapping(memfd: &Memfd) -> Result<(Child, u64), Failed> {
    let (reader, writer) = rustix::pipe::pipe().step("pipe")?;
    let (fd, len) = (memfd.as_fd().as_raw_fd(), (SCRATCH_PAGES * PAGE) as usize);
    let pipe = writer.as_raw_fd();
    // SAFETY: the child makes system calls only, on memory of its own stack, and never returns.
    let pid = unsafe {
        let pid = libc::fork();
        if pid == 0 {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let map = libc::mmap(core::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd, 0);
            if map == libc::MAP_FAILED {
                libc::_exit(1);
            }
            map.cast::<u8>().read_volatile();
            let address = (map as u64).to_ne_bytes();
            libc::write(pipe, address.as_ptr().cast(), address.len());
            loop {
                libc::pause();
            }
        }
        pid
    };
    let child = crate::check(pid).map(|pid| Child { pid }).step("fork")?;
    drop(writer);
    let mut address = [0; 8];
    let bytes = rustix::io::read(&reader, &mut address).step("read")?;
    check(bytes == 8, "the child could not map memory")?;
    Ok((child, u64::from_ne_bytes(address)))
}

fn process_vm() -> Result<(), Failed> {
    let memfd = Memfd::create("pagekeeper-doctor", SCRATCH_PAGES * PAGE, false).step("memfd")?;
    memfd.write_at(&[3; PAGE_BYTES], 0).step("pwrite")?;
    let (child, address) = child_with_mapping(&memfd)?;
    let (pid, mut bytes) = (child.pid as u32, [0; 2]);
    process::process_vm_read(pid, address, &mut bytes).step("process_vm_readv")?;
    check(bytes == [3, 3], "other bytes were read")?;
    process::process_vm_write(pid, address + 1, &[4]).step("process_vm_writev")?;
    memfd.read_at(&mut bytes, 0).step("pread")?;
    check(bytes == [3, 4], "other bytes were written")
}

fn remote_zap() -> Outcome {
    let probe = || {
        let len = SCRATCH_PAGES * PAGE;
        let memfd = Memfd::create("pagekeeper-doctor", len, false).step("memfd_create")?;
        memfd.write_at(&[2; PAGE_BYTES], 0).step("pwrite")?;
        let (child, address) = child_with_mapping(&memfd)?;
        let pidfd = process::pidfd_open(child.pid as u32).step("pidfd_open")?;
        let pagemap = Pagemap::open(child.pid as u32).step("open /proc/PID/pagemap")?;
        let present = || {
            let entries = pagemap.entries(address, 1).step("read /proc/PID/pagemap")?;
            Ok(entries.first().is_some_and(|e| e.is_present()))
        };
        check(present()?, "the child's page is not mapped")?;
        // The call passes over pages in another processor's batch of new pages, and empties its
        // own processor's: so it is made on each.
        let processors = process::affinity().step("sched_getaffinity")?;
        let mut zapped = Ok(0);
        for &cpu in &processors {
            let _ = process::set_affinity(cpu);
            zapped = process::zap(&pidfd, &[(address, PAGE)]);
            if zapped.is_err() || !present()? {
                break;
            }
        }
        let _ = process::set_affinity_to(&processors);
        zapped.step("process_madvise(MADV_PAGEOUT)")?;
        check(!present()?, "process_madvise left the page mapped")?;
        let mut byte = [0];
        memfd.read_at(&mut byte, 0).step("pread")?;
        check(byte == [2], "the page was lost")?;
        Ok("a child's page was unmapped and kept its content".to_owned())
    };
    outcome(probe(), &grant_to_programs())
}

fn event_fork() -> Result<(), Failed> {
    // The programs need it, and not only this one.
    let trace = if process::reach::programs_may_trace() { Ok(()) } else { Err(Errno::PERM) };
    trace.step("CAP_SYS_PTRACE for programs")?;
    let features = Features::MISSING_SHMEM | Features::EVENT_FORK;
    let (uffd, scratch) = tracked(features, Track::MISSING)?;
    let start = scratch.address();
    let first = scratch.ptr.as_ptr() as usize;
    let mut child_uffd = None;
    let mut pid = Ok(0);
    let forked = serve_while(
        &uffd,
        &scratch,
        |event| match event {
            Event::Fork { child } => {
                let served = child.copy(start, &[1; PAGE_BYTES], false, false).is_ok();
                child_uffd = Some(child);
                Some(served)
            }
            _ => None,
        },
        || {
            // SAFETY: the child reads one byte of the mapping that it inherits and ends; the
            // parent's fork returns once its event has been read.
            pid = crate::check(unsafe {
                let pid = libc::fork();
                if pid == 0 {
                    let byte = (first as *const u8).read_volatile();
                    libc::_exit(i32::from(byte));
                }
                pid
            });
        },
    )?;
    let child = Child { pid: pid.step("fork")? };
    check(forked, "no event came for a fork")?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut status = 0;
        // SAFETY: our own child; the status is a live integer. Once reaped, the number is not used
        // again: the guard is forgotten.
        let reaped = unsafe { libc::waitpid(child.pid, &mut status, libc::WNOHANG) } == child.pid;
        if reaped {
            core::mem::forget(child);
            let served = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1;
            return check(served, "the forked child read other bytes");
        }
        if Instant::now() > deadline {
            return check(false, "the forked child waits for its page");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn seals() -> Result<(), Failed> {
    let mut memfd = Memfd::create("pagekeeper-doctor", PAGE, true).step("memfd_create")?;
    memfd.add_seals(SealFlags::SHRINK).step("F_ADD_SEALS")?;
    check(memfd.set_len(0) == Err(Errno::PERM), "a sealed memfd shrank")
}

fn abstract_socket() -> Result<String, Failed> {
    let name = format!("pagekeeper-doctor-{}", std::process::id());
    let listener = socket::Listener::bind(name.as_bytes(), true).step("bind")?;
    let client = socket::Connection::connect(name.as_bytes()).step("connect")?;
    let server = listener.accept(false).step("accept")?;
    let server = server.ok_or(Failed { step: "accept", errno: Errno::AGAIN })?;
    client.send(b"x", Some(listener.as_fd())).step("sendmsg")?;
    let got = server.try_recv(&mut [0; 8]).step("recvmsg")?;
    check(got.is_some_and(|m| m.fd.is_some()), "the descriptor was lost")?;
    Ok("a descriptor was sent".into())
}

/// A scratch file's name, removed when dropped.
struct ScratchName(std::path::PathBuf);

impl Drop for ScratchName {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const SCRATCH_FILE: &str = "making a scratch file in the directory";

/// Makes a scratch file in the directory.
fn scratch_file(directory: &Path) -> Result<(ScratchName, OwnedFd), Failed> {
    let path = directory.join(format!(".pagekeeper-doctor-{}", std::process::id()));
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    // One may be left by a doctor that was killed.
    let _ = std::fs::remove_file(&path);
    let fd = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).step(SCRATCH_FILE)?;
    Ok((ScratchName(path), fd))
}

fn direct_io(directory: &Path) -> Result<String, Failed> {
    let (_name, file) = scratch_file(directory)?;
    let direct = file::reopen_direct(&file, true).step("open(O_DIRECT)")?;
    let mut buffer = Buffer::new(PAGE_BYTES).step("mmap")?;
    buffer.fill(1);
    let none = TransferFlags::empty();
    file::write_at(&direct, &[IoSlice::new(&buffer)], 0, none).step("pwrite(O_DIRECT)")?;
    buffer.fill(0);
    file::read_at(&direct, &mut [IoSliceMut::new(&mut buffer)], 0, none).step("pread(O_DIRECT)")?;
    check(buffer.iter().all(|b| *b == 1), "other bytes came back")?;
    Ok(match file::direct_alignment(&file) {
        Ok(Some(a)) => format!("aligned to {} bytes (memory {})", a.offset_bytes, a.memory_bytes),
        _ => "aligned to pages".into(),
    })
}

fn dont_cache(directory: &Path) -> Result<String, Failed> {
    let (_name, file) = scratch_file(directory)?;
    let page = [1; PAGE_BYTES];
    let flags = TransferFlags::DONTCACHE;
    file::write_at(&file, &[IoSlice::new(&page)], 0, flags).step("pwritev2(RWF_DONTCACHE)")?;
    let mut back = [0; PAGE_BYTES];
    file::read_at(&file, &mut [IoSliceMut::new(&mut back)], 0, flags)
        .step("preadv2(RWF_DONTCACHE)")?;
    check(back == page, "other bytes came back")?;
    Ok("RWF_DONTCACHE".into())
}

fn leases(directory: &Path) -> Result<String, Failed> {
    let (_name, file) = scratch_file(directory)?;
    let reader = file::reopen(&file, OFlags::RDONLY).step("open")?;
    // A read lease needs every writer gone.
    drop(file);
    file::set_lease(&reader, Some(Lease::Read)).step("F_SETLEASE")?;
    let held = file::lease(&reader).step("F_GETLEASE")?;
    file::set_lease(&reader, None).step("F_SETLEASE")?;
    check(held == Some(Lease::Read), "the lease was not held")?;
    Ok("a read lease was held".into())
}

fn fanotify(directory: &Path) -> Result<String, Failed> {
    let fanotify = Fanotify::new().step("fanotify_init")?;
    let (_name, file) = scratch_file(directory)?;
    fanotify.add(&file).step("fanotify_mark")?;
    let handle = fanotify::handle_of(&file).step("name_to_handle_at")?;
    let none = TransferFlags::empty();
    file::write_at(&file, &[IoSlice::new(b"x")], 0, none).step("pwrite")?;
    let mut is_told = false;
    let is_own = |event: fanotify::Modified<'_>| {
        event.pid == std::process::id() && event.handle == Some(&*handle)
    };
    let each = |event: fanotify::Modified<'_>| is_told |= is_own(event);
    fanotify.drain(&mut [0; fanotify::BUFFER_BYTES], each).step("read")?;
    check(is_told, "who had written was not told")?;
    Ok("who had written was told".into())
}

fn io_uring() -> Result<String, Failed> {
    /// `sizeof(struct io_uring_params)`.
    const PARAMS_BYTES: usize = 120;
    let mut params = [0u64; PARAMS_BYTES / 8];
    // SAFETY: the kernel reads and writes PARAMS_BYTES at `params`; the rings are not mapped.
    let fd = unsafe {
        libc::syscall(libc::c_long::from(raw::__NR_io_uring_setup as i32), 2u32, &raw mut params)
    };
    let fd = crate::check(fd as i32).step("io_uring_setup")?;
    // SAFETY: a fresh descriptor that nobody else owns.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok("io_uring_setup(2)".into())
}

fn memory_cgroup() -> Outcome {
    use cgroup::{CgroupError, MemoryCgroup};
    const LIMIT_BYTES: u64 = 64 << 20;
    match MemoryCgroup::create("pagekeeper-doctor", LIMIT_BYTES) {
        Ok(made) => works(match made.version() {
            cgroup::Version::V1 => "version 1",
            cgroup::Version::V2 => "version 2",
        }),
        Err(error) => {
            let denied = matches!(
                error,
                CgroupError::NotPermitted { errno: Errno::PERM | Errno::ACCESS | Errno::ROFS, .. }
            );
            // The error's own text ends with the remedy.
            let status = if denied { Status::Denied } else { Status::Missing };
            Outcome { status, reason: error.to_string(), remedy: None }
        }
    }
}

fn open_files() -> Outcome {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    match limit.maximum {
        Some(hard) if hard < OPEN_FILES_WANTED => Outcome {
            status: Status::Denied,
            reason: format!("at most {hard} open files; {OPEN_FILES_WANTED} are wanted"),
            remedy: Some(format!(
                "sudo prlimit --pid $$ --nofile={OPEN_FILES_WANTED}:{OPEN_FILES_WANTED}"
            )),
        },
        Some(hard) => works(format!("up to {hard}")),
        None => works("no limit"),
    }
}

fn small_shmem() -> Outcome {
    match memfd::huge_by_setting() {
        None => works("none that nobody asks for is huge"),
        Some(word) => missing(format!("{} is {word}", memfd::HUGE_SETTING)).remedy(memfd::SMALLER),
    }
}

fn soon_awake() -> Outcome {
    match awake::halting() {
        Halting::Late => works("nothing halts at once here that is slow to wake"),
        Halting::Prevented => works("kept awake while many wait"),
        Halting::AtOnce => missing("this virtual machine halts at once")
            .remedy(format!("echo {OWN_POLL_NS} | sudo tee /{OWN_POLL}")),
    }
}

fn no_swap() -> Outcome {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    // The first line is a heading.
    match swaps.lines().skip(1).count() {
        0 => works("none in use"),
        n => missing(format!("{n} in use")).remedy("sudo swapoff -a"),
    }
}
