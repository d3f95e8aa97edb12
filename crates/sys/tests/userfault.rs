//! The userfaultfd wrapper on real address spaces: our own, and forked children's.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pagekeeper_sys::doctor::maps_protected;
use pagekeeper_sys::memfd::Memfd;
use pagekeeper_sys::pagemap::Pagemap;
use pagekeeper_sys::process;
use pagekeeper_sys::userfault::{
    Event, Features, OpenFlags, Operations, Track, Userfault, supported_features,
};
use pagekeeper_sys::{Errno, Interrupted, Progress};

const PAGE: u64 = 4096;
const ALL: Track = Track::MISSING.union(Track::MINOR).union(Track::WRITE_PROTECT);

/// One test at a time: a child forked by another would share this one's mappings.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Zaps on every processor, since each keeps its own batch of new pages; see `process::zap`.
fn zap_everywhere(pidfd: &std::os::fd::OwnedFd, ranges: &[(u64, u64)]) -> Progress {
    let processors = process::affinity().unwrap();
    let mut result = Ok(0);
    for &cpu in &processors {
        process::set_affinity(cpu).unwrap();
        result = process::zap(pidfd, ranges);
    }
    process::set_affinity_to(&processors).unwrap();
    result
}

/// A shared mapping of a memfd, reached by atomics.
struct Map {
    address: u64,
    len: u64,
}

impl Map {
    fn new(memfd: &Memfd) -> Map {
        let (fd, len) = (std::os::fd::AsFd::as_fd(memfd).as_raw_fd(), memfd.len_bytes());
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let p = unsafe { libc::mmap(null, len as usize, prot, libc::MAP_SHARED, fd, 0) };
        assert_ne!(p, libc::MAP_FAILED);
        Map { address: p as u64, len }
    }

    fn page(&self, n: u64) -> u64 {
        assert!(n * PAGE < self.len);
        self.address + n * PAGE
    }

    fn byte(&self, n: u64) -> &AtomicU8 {
        // SAFETY: inside the mapping, which lives as long as `self`, and which everybody reaches by
        // atomics only.
        unsafe { AtomicU8::from_ptr(self.page(n) as *mut u8) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and references into it borrow from `self`.
        unsafe { libc::munmap(self.address as *mut _, self.len as usize) };
    }
}

/// A full userfaultfd with these features, a memfd of `pages` and its registered mapping.
/// `None`, with the reason printed, where that is not permitted.
fn set_up(features: Features, pages: u64) -> Option<(Userfault, Memfd, Map)> {
    let flags = OpenFlags { nonblocking: true, user_mode_only: false };
    // SAFETY: it is registered for mappings of `Map` only, whose bytes have no meaning to anybody
    // else.
    let uffd = match unsafe { Userfault::open(flags) } {
        Ok(uffd) => uffd,
        Err(errno) => {
            eprintln!("skipped: userfaultfd: {errno}");
            return None;
        }
    };
    let memfd = Memfd::create("t", pages * PAGE, false).unwrap();
    let features = features
        | Features::PAGEFAULT_FLAG_WP
        | Features::MISSING_SHMEM
        | Features::MINOR_SHMEM
        | Features::WP_HUGETLBFS_SHMEM
        | Features::THREAD_ID;
    if let Err(errno) = uffd.api(features) {
        eprintln!("skipped: {features:?}: {errno}");
        return None;
    }
    let map = Map::new(&memfd);
    let operations = uffd.register(map.address, map.len, ALL).unwrap();
    assert!(operations.contains(Operations::CONTINUE | Operations::WRITEPROTECT));
    Some((uffd, memfd, map))
}

fn next(uffd: &Userfault) -> Event {
    let (mut events, deadline) = (vec![], Instant::now() + Duration::from_secs(5));
    while uffd.read_events(&mut events).unwrap() == 0 {
        assert!(Instant::now() < deadline, "no event came");
        std::thread::sleep(Duration::from_micros(100));
    }
    assert_eq!(events.len(), 1, "{events:?}");
    events.pop().unwrap()
}

fn exit_code(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is a place for the status.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}

/// Write-protected, if not from the first moment on.
fn map_protected(uffd: &Userfault, start: u64, len: u64) -> Progress {
    if maps_protected() {
        return uffd.cont(start, len, true, false);
    }
    let mapped = uffd.cont(start, len, false, true);
    for page in (start..start + len).step_by(PAGE as usize) {
        uffd.write_protect(page, PAGE, true, false).unwrap();
    }
    uffd.wake(start, len).unwrap();
    mapped
}

#[test]
fn the_three_kinds_of_fault_are_told_apart_and_served() {
    let _alone = alone();
    let Some((uffd, memfd, map)) = set_up(Features::empty(), 8) else { return };
    std::thread::scope(|s| {
        let toucher = s.spawn(|| {
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let missing = map.byte(1).load(SeqCst);
            map.byte(1).store(9, SeqCst);
            (tid, missing, map.byte(2).load(SeqCst))
        });
        let Event::Fault { address, write, wp, minor, tid } = next(&uffd) else { panic!() };
        assert_eq!((address, write, wp, minor), (map.page(1), false, false, false));
        assert_eq!(uffd.copy(map.page(1), &[7; 4096], true, false), Ok(PAGE));

        let Event::Fault { address, write, wp, minor, .. } = next(&uffd) else { panic!() };
        assert_eq!((address, write, wp, minor), (map.page(1), true, true, false));
        uffd.write_protect(map.page(1), PAGE, false, false).unwrap();

        let Event::Fault { address, minor, .. } = next(&uffd) else { panic!() };
        assert_eq!((address, minor), (map.page(2), false));
        memfd.write_at(&[8; 4096], 2 * PAGE).unwrap();
        // Without DONTWAKE the fault would be served; with it, only the wake ends the wait.
        let protects = maps_protected();
        assert_eq!(uffd.cont(map.page(2), PAGE, protects, true), Ok(PAGE));
        std::thread::sleep(Duration::from_millis(5));
        assert!(!toucher.is_finished());
        uffd.wake(map.page(2), PAGE).unwrap();
        assert_eq!(toucher.join().unwrap(), (tid, 7, 8));
    });
    assert_eq!(map.byte(1).load(SeqCst), 9);
    // In the memfd but not mapped here: a minor fault.
    memfd.write_at(&[5; 4096], 4 * PAGE).unwrap();
    std::thread::scope(|s| {
        let toucher = s.spawn(|| map.byte(4).load(SeqCst));
        let Event::Fault { address, minor: true, .. } = next(&uffd) else { panic!() };
        assert_eq!(address, map.page(4));
        uffd.cont(address, PAGE, false, false).unwrap();
        assert_eq!(toucher.join().unwrap(), 5);
    });
}

#[test]
fn partial_results_say_how_far_they_came() {
    let _alone = alone();
    let Some((uffd, memfd, map)) = set_up(Features::empty(), 16) else { return };
    assert_eq!(uffd.copy(map.page(2), &[1; 4096], false, false), Ok(PAGE));
    let stopped = uffd.copy(map.page(0), &[2; 4 * 4096], false, false).unwrap_err();
    assert_eq!(stopped.done_bytes, 2 * PAGE);
    let again = uffd.copy(map.page(2), &[2; 2 * 4096], false, false).unwrap_err();
    assert_eq!(again, Interrupted { done_bytes: 0, errno: Errno::EXIST });

    memfd.write_at(&[3; 3 * 4096], 8 * PAGE).unwrap();
    let wp = maps_protected();
    if !wp {
        let refused = uffd.cont(map.page(8), PAGE, true, false).unwrap_err();
        assert_eq!(refused, Interrupted { done_bytes: 0, errno: Errno::INVAL });
    }
    let stopped = uffd.cont(map.page(8), 4 * PAGE, wp, false).unwrap_err();
    assert_eq!(stopped.done_bytes, 3 * PAGE, "page 11 is not in the memfd");
    let none = uffd.cont(map.page(11), PAGE, wp, false).unwrap_err();
    assert_eq!(none, Interrupted { done_bytes: 0, errno: Errno::FAULT });
    let mapped = uffd.cont(map.page(8), PAGE, wp, false).unwrap_err();
    assert_eq!(mapped, Interrupted { done_bytes: 0, errno: Errno::EXIST });
    assert_eq!(uffd.zeropage(map.page(12), 2 * PAGE, false), Ok(2 * PAGE));
    assert_eq!(map.byte(12).load(SeqCst), 0);
    assert_eq!(
        uffd.copy(map.page(0) + 1, &[1; 4096], false, false).unwrap_err().errno,
        Errno::INVAL
    );
    uffd.unregister(map.address, map.len).unwrap();
    assert_eq!(uffd.copy(map.page(5), &[1; 4096], false, false).unwrap_err().errno, Errno::NOENT);
    assert_eq!(uffd.write_protect(map.page(0), PAGE, true, false), Err(Errno::NOENT));
    assert!(uffd.is_alive());
}

#[test]
fn poison_kills_a_reader_until_the_page_is_filled() {
    let _alone = alone();
    let Some((uffd, memfd, map)) = set_up(Features::POISON, 4) else { return };
    assert_eq!(uffd.poison(map.page(1), PAGE, false), Ok(PAGE));
    let fd = std::os::fd::AsFd::as_fd(&memfd).as_raw_fd();
    // SAFETY: the kernel checks the address, and only reads there.
    let read = |page| unsafe { libc::pwrite(fd, page as *const _, 1, 0) };
    assert_eq!(read(map.page(1)), -1);
    uffd.copy(map.page(1), &[4; 4096], false, false).unwrap();
    assert_eq!(read(map.page(1)), 1);
}

#[test]
fn removals_and_moves_are_reported() {
    let _alone = alone();
    let features = Features::EVENT_REMAP | Features::EVENT_REMOVE | Features::EVENT_UNMAP;
    let Some((uffd, _memfd, map)) = set_up(features, 8) else { return };
    // The caller waits until its events have been read.
    let during = |call: &(dyn Fn() + Sync)| {
        std::thread::scope(|s| {
            let (caller, mut events) = (s.spawn(call), vec![]);
            while !caller.is_finished() {
                uffd.read_events(&mut events).unwrap();
            }
            events
        })
    };
    let page = map.page(2);
    // SAFETY: nobody refers to the page of `map` that becomes empty.
    let events = during(&|| unsafe {
        libc::madvise(page as *mut _, 4096, libc::MADV_DONTNEED);
    });
    let range = (page, page + PAGE);
    assert!(
        matches!(events[..], [Event::Remove { start, end }] if (start, end) == range),
        "{events:?}"
    );
    let to = std::sync::atomic::AtomicU64::new(0);
    let last = map.page(7);
    // SAFETY: the hole is new, and nobody refers to the last page of `map`, which goes there.
    let events = during(&|| unsafe {
        // A hole big enough, so that the mapping has to move, and where to is known.
        let (null, none) = (std::ptr::null_mut(), libc::PROT_NONE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let hole = libc::mmap(null, 3 * 4096, none, flags, -1, 0);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        to.store(libc::mremap(last as *mut _, 4096, 3 * 4096, flags, hole) as u64, SeqCst);
    });
    let new = to.load(SeqCst);
    // A move is reported as such, and then the old place as unmapped.
    let [Event::Remap { from, to, len }, Event::Unmap { start, end }] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((from, to, start, end), (last, new, last, last + PAGE));
    assert!(len == PAGE || len == 3 * PAGE);
    // SAFETY: a page of `map` that nobody refers to, now or later.
    let events = during(&|| unsafe {
        libc::munmap(page as *mut _, 4096);
    });
    assert!(
        matches!(events[..], [Event::Unmap { start, end }] if (start, end) == range),
        "{events:?}"
    );
    // With the descriptor open, these last unmappings would wait for somebody to read of them.
    drop(uffd);
    // SAFETY: what the page was moved to is ours, and no reference into it was made.
    unsafe { libc::munmap(new as *mut _, 3 * 4096) };
}

#[test]
fn a_forked_child_is_served_and_its_death_is_seen() {
    let _alone = alone();
    let Some((uffd, memfd, map)) = set_up(Features::EVENT_FORK, 8) else { return };
    let address = map.address;
    std::thread::scope(|s| {
        // SAFETY: the child reads and writes bytes of `map` by address, which is mapped there as here,
        // makes system calls and leaves: no allocation, no lock.
        let forker = s.spawn(move || unsafe {
            let pid = libc::fork();
            if pid == 0 {
                let byte = |n: u64| ((address + n * PAGE) as *mut u8).read_volatile();
                let first = byte(1);
                let second = byte(2);
                ((address + 3 * PAGE) as *mut u8).write_volatile(first + second);
                libc::_exit(i32::from(first));
            }
            pid
        });
        let Event::Fork { child } = next(&uffd) else { panic!() };
        let pid = forker.join().unwrap();
        assert!(child.is_alive() && uffd.is_alive());
        let Event::Fault { address, tid, .. } = next(&child) else { panic!() };
        assert_eq!((address, process::tgid_of(tid)), (map.page(1), Ok(pid as u32)));
        child.copy(map.page(1), &[40; 4096], false, false).unwrap();
        let Event::Fault { address, .. } = next(&child) else { panic!() };
        child.copy(address, &[2; 4096], false, false).unwrap();
        let Event::Fault { address, write: true, .. } = next(&child) else { panic!() };
        child.zeropage(address, PAGE, false).unwrap();
        assert_eq!(exit_code(pid), 40);
        assert!(!child.is_alive() && uffd.is_alive());
        let dead = child.copy(map.page(5), &[1; 4096], false, false).unwrap_err();
        assert_eq!(dead.errno, Errno::SRCH);
    });
    let mut byte = [0];
    memfd.read_at(&mut byte, 3 * PAGE).unwrap();
    assert_eq!(byte, [42]);
}

/// What sampling builds on: see `process::zap`.
#[test]
fn zap_unmaps_a_childs_pages_keeps_content_and_protection() {
    let _alone = alone();
    const PAGES: u64 = 3000;
    let Some((uffd, memfd, map)) = set_up(Features::EVENT_FORK, PAGES) else { return };
    memfd.write_at(&vec![6; (PAGES * PAGE) as usize], 0).unwrap();
    let address = map.address;
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let (from, to) = (reader.as_raw_fd(), writer.as_raw_fd());
    std::thread::scope(|s| {
        // SAFETY: the child reads and writes bytes of `map` by address, which is mapped there as here,
        // makes system calls and leaves: no allocation, no lock.
        let forker = s.spawn(move || unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::close(to);
                let mut byte = 0u8;
                libc::read(from, (&raw mut byte).cast(), 1);
                let byte = ((address + PAGE) as *mut u8).read_volatile();
                ((address + PAGE) as *mut u8).write_volatile(9);
                libc::_exit(i32::from(byte));
            }
            pid
        });
        let Event::Fork { child } = next(&uffd) else { panic!() };
        let pid = forker.join().unwrap();
        assert_eq!(map_protected(&child, map.page(0), PAGES * PAGE), Ok(PAGES * PAGE));
        let pagemap = Pagemap::open(pid as u32).unwrap();
        let count = |test: fn(pagekeeper_sys::pagemap::Entry) -> bool| {
            let entries = pagemap.entries(address, PAGES as usize).unwrap();
            entries.into_iter().filter(|e| test(*e)).count() as u64
        };
        assert_eq!(count(|e| e.is_present() && e.is_write_protected()), PAGES);

        let pidfd = process::pidfd_open(pid as u32).unwrap();
        process::cold(&pidfd, &[(address, PAGE)]).unwrap();
        // One range a page, over several calls' worth; the last lies where nothing is mapped.
        let mut ranges: Vec<_> = (0..PAGES).map(|n| (map.page(n), PAGE)).collect();
        ranges.push((1 << 20, PAGE));
        match zap_everywhere(&pidfd, &ranges) {
            Err(Interrupted { done_bytes, errno: Errno::NOMEM }) => {
                assert_eq!(done_bytes, PAGES * PAGE);
                // Everything is gone, unless there is swap or the kernel was busy with a page.
                assert!(count(|e| e.is_present()) <= PAGES / 100);
                assert!(count(|e| e.is_write_protected()) >= PAGES * 99 / 100);
                assert_eq!(memfd.used_bytes(), Ok(PAGES * PAGE));
            }
            Err(Interrupted { errno: Errno::PERM, .. }) => eprintln!("skipped: zap not permitted"),
            other => panic!("{other:?}"),
        }
        drop(writer);
        let mut served = 0;
        // A read of a zapped page is a minor fault, then the write a protection fault.
        while served < 2 {
            match next(&child) {
                Event::Fault { address, minor: true, .. } => {
                    map_protected(&child, address, PAGE).unwrap();
                }
                Event::Fault { address, wp: true, .. } => {
                    child.write_protect(address, PAGE, false, false).unwrap();
                }
                other => panic!("{other:?}"),
            }
            served += 1;
        }
        assert_eq!(exit_code(pid), 6);
        let gone = process::zap(&pidfd, &ranges[..1]).unwrap_err();
        assert_eq!(gone, Interrupted { done_bytes: 0, errno: Errno::SRCH });
    });
    let mut byte = [0];
    memfd.read_at(&mut byte, PAGE).unwrap();
    assert_eq!(byte, [9]);
}

/// The kernel leaves pages alone that several processes map, and says nothing; see `process::zap`.
#[test]
fn zap_skips_pages_that_are_mapped_twice() {
    let _alone = alone();
    let memfd = Memfd::create("t", 64 * PAGE, false).unwrap();
    memfd.write_at(&[1; 64 * 4096], 0).unwrap();
    let map = Map::new(&memfd);
    let touch = || (0..64).map(|n| u64::from(map.byte(n).load(SeqCst))).sum::<u64>();
    assert_eq!(touch(), 64);
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    // SAFETY: the child touches memory, writes to a pipe and waits: no allocation, no lock.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        touch();
        rustix::io::write(&writer, b"x").unwrap();
        loop {
            // SAFETY: has no preconditions.
            unsafe { libc::pause() };
        }
    }
    rustix::io::read(&reader, &mut [0; 1]).unwrap();
    let pidfd = process::pidfd_open(pid as u32).unwrap();
    let present = || {
        let entries = Pagemap::open(pid as u32).unwrap().entries(map.address, 64).unwrap();
        entries.iter().filter(|e| e.is_present()).count()
    };
    assert_eq!(present(), 64);
    let ranges = [(map.address, map.len)];
    match zap_everywhere(&pidfd, &ranges) {
        Err(Interrupted { errno: Errno::PERM, .. }) => eprintln!("skipped: zap not permitted"),
        result => {
            assert_eq!(result, Ok(map.len));
            assert_eq!(present(), 64);
            // Once this process has let go of them, it works.
            // SAFETY: pages of `map` that nobody refers to; their bytes are in the memfd.
            unsafe { libc::madvise(map.address as *mut _, map.len as usize, libc::MADV_DONTNEED) };
            assert_eq!(zap_everywhere(&pidfd, &ranges), Ok(map.len));
            assert!(present() <= 1, "{} pages are still mapped", present());
        }
    }
    process::send_signal(&pidfd, libc::SIGKILL).unwrap();
    assert_eq!(exit_code(pid), -libc::SIGKILL);
}

#[test]
fn features_are_answered_and_setting_up_twice_is_refused() {
    let _alone = alone();
    match supported_features() {
        Err(errno) => eprintln!("skipped: {errno}"),
        Ok(features) => assert!(features.contains(Features::MISSING_SHMEM)),
    }
    let Some((uffd, ..)) = set_up(Features::empty(), 1) else { return };
    assert_eq!(uffd.api(Features::empty()), Err(Errno::INVAL));
    let other = uffd.try_clone().unwrap();
    assert_eq!(other.read_events(&mut vec![]), Ok(0));
    // Something else altogether, as a hostile client may send.
    let memfd = Memfd::create("t", PAGE, false).unwrap();
    let fake = Userfault::from_fd(memfd.reopen_writable().unwrap());
    assert_eq!(fake.api(Features::empty()), Err(Errno::NOTTY));
}

#[test]
fn what_is_received_is_a_userfaultfd_that_was_set_up_or_nothing() {
    let memfd = Memfd::create("not-one", 4096, false).unwrap();
    let other = rustix::io::fcntl_dupfd_cloexec(&memfd, 0).unwrap();
    assert_eq!(Userfault::received(other).unwrap_err(), Errno::INVAL);
    let flags = OpenFlags { nonblocking: false, user_mode_only: true };
    // SAFETY: nothing is registered.
    let Ok(blocking) = (unsafe { Userfault::open(flags) }) else { return };
    let received = Userfault::received(blocking.into_fd()).unwrap();
    assert!(received.has_failed());
    received.api(Features::empty()).unwrap();
    assert!(!received.has_failed());
    assert_eq!(received.read_events(&mut Vec::new()), Ok(0));
}
