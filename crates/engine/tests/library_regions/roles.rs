//! What the processes that `children` starts do. In any other process there is nothing here to test.

use crate::library_model::{Chaos, ChaosStore, PAGE};
use crate::{EFAULT, TINY_PAGES, can_copy, load, sized, store};
use pagekeeper::library::{Advice, Cache, FaultPath, Protection, Region, Segment};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};

const EMFILE: i32 = 24;

/// Names the role, as `<path> <what> <page>`.
pub(crate) const ROLE: &str = "PAGEKEEPER_TEST_ROLE";

extern "C" fn programs_own_handler(_: i32) {
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(42) };
}

static MET: AtomicBool = AtomicBool::new(false);
static MENDED: AtomicBool = AtomicBool::new(false);

extern "C" fn waits_for_help(_: i32) {
    MET.store(true, Ordering::SeqCst);
    while !MENDED.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

/// Loads a byte; when that is SIGBUS, another thread mends what is wrong, and the load is made once
/// more.
fn load_with(region: &Region, at: usize, mend: impl FnOnce() + Send) -> u8 {
    touch_with(|| load(region, at), mend)
}

fn touch_with<T>(touch: impl FnOnce() -> T, mend: impl FnOnce() + Send) -> T {
    MET.store(false, Ordering::SeqCst);
    MENDED.store(false, Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !MET.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            mend();
            MENDED.store(true, Ordering::SeqCst);
        });
        touch()
    })
}

#[test]
fn in_a_process_of_its_own() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let [path, what, page] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("no role") };
    let page: usize = page.parse().unwrap();
    let path = match path {
        "thread" => FaultPath::Thread,
        "inline" => FaultPath::Inline,
        _ => FaultPath::Explicit,
    };
    let handler = match what {
        "handled" => Some(programs_own_handler as extern "C" fn(i32)),
        "tries_again" | "grows" | "copies_again" => Some(waits_for_help as extern "C" fn(i32)),
        _ => None,
    };
    if let Some(handler) = handler {
        // SAFETY: the handlers end the process, or wait and touch what a region has.
        unsafe { libc::signal(libc::SIGBUS, handler as usize) };
    }
    let Some(cache) = sized(path, "lru", page) else { std::process::exit(77) };
    let chaos = Chaos::new(64 * PAGE.max(page / 16));
    let segment = cache.open_store(ChaosStore(chaos.clone()), "chaos").unwrap();
    match what {
        "unreadable" | "handled" => {
            chaos.set(&chaos.load_fails, 1000);
            let region = segment.map(0..page as u64, Protection::Read).unwrap();
            println!("read {}", load(&region, page - 1));
        }
        "left" => {
            // It was there, and protected: the kernel keeps a mark of that when it leaves.
            let region = segment.map(0..page as u64, Protection::ReadWrite).unwrap();
            assert_eq!(load(&region, 0), 0);
            segment.advise(0..page as u64, Advice::DontNeed).unwrap();
            chaos.set(&chaos.load_fails, 1000);
            println!("read {}", load(&region, 0));
        }
        "truncated" => {
            let region = segment.map(0..64 * 4096, Protection::Read).unwrap();
            assert_eq!(load(&region, 3 * PAGE), 0);
            segment.set_len(4096).unwrap();
            println!("read {}", load(&region, 3 * PAGE));
        }
        "cut" => {
            // In the midst of a large page, which stays in memory.
            let region = segment.map(0..2 * page as u64, Protection::ReadWrite).unwrap();
            (0..2 * page).step_by(PAGE).for_each(|at| store(&region, at, 1));
            segment.set_len((page + 2 * PAGE + 1) as u64).unwrap();
            assert_eq!(load(&region, page + 2 * PAGE), 1);
            assert_eq!(load(&region, page + 3 * PAGE - 1), 0);
            println!("read {}", load(&region, page + 3 * PAGE));
        }
        "short" if !can_copy(page) => std::process::exit(77),
        "short" => {
            // No page behind the end was ever shown.
            segment.set_len((page + 1) as u64).unwrap();
            let region = segment.map(0..2 * page as u64, Protection::CopyOnWrite).unwrap();
            store(&region, page, 1);
            assert_eq!((load(&region, page), load(&region, page + PAGE - 1)), (1, 0));
            println!("read {}", load(&region, 2 * page - 1));
        }
        "forked" => {
            let region = segment.map(0..64 * 4096, Protection::Read).unwrap();
            assert_eq!(load(&region, 0), 0);
            // SAFETY: the child touches memory and ends.
            if unsafe { libc::fork() } == 0 {
                load(&region, 0);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: waits for the child just made.
            unsafe { libc::wait(&mut status) };
            assert_eq!(ExitStatus::from_raw(status).signal(), Some(libc::SIGSEGV));
        }
        "tries_again" if !can_copy(page) => std::process::exit(77),
        "tries_again" => {
            for protection in [Protection::Read, Protection::CopyOnWrite] {
                let region = segment.map(0..page as u64, protection).unwrap();
                let at = (5 * PAGE).min(page - PAGE);
                // Also of a page that was there before.
                for _ in 0..2 {
                    let before = cache.stats().failed_faults;
                    chaos.set(&chaos.load_fails, 1000);
                    let calm = || chaos.set(&chaos.load_fails, 0);
                    assert_eq!(load_with(&region, at, calm), 0);
                    assert!(cache.stats().failed_faults > before);
                    segment.advise(0..page as u64, Advice::DontNeed).unwrap();
                }
                if protection == Protection::CopyOnWrite && page > PAGE {
                    // What took the place of a mark meanwhile stays.
                    chaos.set(&chaos.load_fails, 1000);
                    let copies = || {
                        chaos.set(&chaos.load_fails, 0);
                        store(&region, 7 * PAGE, 3);
                    };
                    assert_eq!(load_with(&region, at, copies), 0);
                    store(&region, at, 4);
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    assert_eq!((load(&region, at), load(&region, 7 * PAGE)), (4, 3));
                }
            }
        }
        "copies_again" if !can_copy(page) => std::process::exit(77),
        "copies_again" => {
            let region = segment.map(0..page as u64, Protection::CopyOnWrite).unwrap();
            chaos.set(&chaos.load_fails, 1000);
            // SAFETY: a touch that fails for ever ends the process.
            unsafe { libc::alarm(30) };
            touch_with(|| store(&region, 0, 1), || chaos.set(&chaos.load_fails, 0));
            assert_eq!((load(&region, 0), load(&region, 1)), (1, 0));
        }
        "full" | "full_and_deaf" => {
            chaos.set(&chaos.full, 1000);
            let region = segment.map(0..2 * page as u64, Protection::ReadWrite).unwrap();
            // One that was there, too, and is protected.
            assert_eq!(load(&region, page), 0);
            // SAFETY: reads into the region; a call that waits for ever ends the process.
            unsafe {
                libc::alarm(30);
                let zero = libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY);
                for at in [0, page] {
                    let got = libc::read(zero, region.as_mut_ptr().add(at).cast(), PAGE);
                    assert_eq!(
                        (got, std::io::Error::last_os_error().raw_os_error()),
                        (-1, Some(EFAULT))
                    );
                }
            }
            // Reading needs no room, as soon as that is over.
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(load(&region, 0) + load(&region, page), 0);
            if what == "full_and_deaf" {
                // SAFETY: sets are made before they are used.
                unsafe {
                    let mut set = std::mem::zeroed();
                    libc::sigaddset(&mut set, libc::SIGBUS);
                    libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
                }
                store(&region, 0, 1);
            }
        }
        "grows" => {
            segment.set_len((page + 1) as u64).unwrap();
            let region = segment.map(0..2 * page as u64, Protection::Read).unwrap();
            assert_eq!(load(&region, page), 0);
            let grow = || segment.write_all_at(&[6], (page + 5 * PAGE) as u64).unwrap();
            assert_eq!(load_with(&region, page + 5 * PAGE, grow), 6);
        }
        "lacks_descriptors" => lacks_descriptors(path),
        "works" => works(&cache, &segment, path),
        other => panic!("no role {other}"),
    }
}

/// With so few descriptors left there is no cache; with one more there is, and its regions are served.
fn lacks_descriptors(path: FaultPath) {
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().file_name().to_str().unwrap().parse::<u64>().unwrap()
    };
    // Below it there are so many numbers that are free.
    let end_of_free = |free: usize| {
        let open: Vec<u64> = std::fs::read_dir("/proc/self/fd").unwrap().map(number).collect();
        (0..).filter(|number| !open.contains(number)).nth(free).unwrap()
    };
    let mut usual = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is there to be filled, for a moment; a touch that waits for ever ends the
    // process.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut usual);
        libc::alarm(30);
    }
    let limit = |rlim_cur: u64| {
        let limit = libc::rlimit { rlim_cur, ..usual };
        // SAFETY: the struct is there, and a limit takes no descriptor away.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    };
    let mut made = Vec::new();
    for free in 0..16 {
        limit(end_of_free(free));
        let cache = Cache::builder((TINY_PAGES * PAGE) as u64).fault_path(path).build();
        // Its threads have begun by then.
        std::thread::sleep(std::time::Duration::from_millis(20));
        limit(usual.rlim_cur);
        let Ok(cache) = cache.inspect_err(|error| assert_eq!(error.raw_os_error(), Some(EMFILE)))
        else {
            made.push(false);
            continue;
        };
        let segment = cache.scratch(PAGE as u64).unwrap();
        let region = segment.map(0..PAGE as u64, Protection::Read).unwrap();
        assert_eq!(load(&region, 0), 0);
        made.push(true);
    }
    assert!(made.is_sorted() && !made[0] && made[15], "{made:?}");
}

fn works(cache: &Cache, segment: &Segment, path: FaultPath) {
    for i in 0..64u64 {
        segment.write_all_at(&[i as u8; PAGE], i * 4096).unwrap();
    }
    let mut page = [0; PAGE];
    for i in 0..64u64 {
        segment.read_exact_at(&mut page, i * 4096).unwrap();
        assert_eq!(page, [i as u8; PAGE]);
    }
    if path != FaultPath::Explicit {
        let region = segment.map(0..64 * 4096, Protection::ReadWrite).unwrap();
        for i in 0..64 {
            assert_eq!(load(&region, i * PAGE + 1), i as u8);
            store(&region, i * PAGE, 0xcc);
        }
        assert_eq!(load(&region, 0), 0xcc);
    }
    segment.flush().unwrap();
    assert!(cache.stats().total.evictions > 64);
}
