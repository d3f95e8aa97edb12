//! Mapped regions of the library, served by a thread and in the SIGBUS handler. Where the kernel or
//! the user's rights lack something, a test says so and is skipped.

mod library_model;

use library_model::{Chaos, ChaosStore, PAGE, Rng};
use pagekeeper::library::{
    Cache, FaultPath, Options, PolicySpec, Protection, Region, SamplingShare, Segment,
};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU8, Ordering};

const MAPPED: [FaultPath; 2] = [FaultPath::Thread, FaultPath::Inline];
const TINY: u64 = 96 << 10;
const EFAULT: i32 = 14;
const EOPNOTSUPP: i32 = 95;

fn cache(path: FaultPath, policy: &str) -> Option<Cache> {
    sampled(path, policy, SamplingShare::USUAL)
}

fn sampled(path: FaultPath, policy: &str, share: SamplingShare) -> Option<Cache> {
    let policy = PolicySpec::parse(policy).unwrap();
    let builder = Cache::builder(TINY).policy(policy).fault_path(path).write_back_period(None);
    match builder.sampling(share).build() {
        Ok(cache) => Some(cache),
        Err(error) => {
            println!("skipped: no {path:?} fault path here ({error}); see `pagekeeper doctor`");
            None
        }
    }
}

/// A byte of a region, which others may change meanwhile.
fn cell(region: &Region, at: usize) -> &AtomicU8 {
    assert!(at < region.len());
    // SAFETY: inside the region, which lives as long as the reference; reached by atomics only.
    unsafe { AtomicU8::from_ptr(region.as_mut_ptr().add(at)) }
}

fn load(region: &Region, at: usize) -> u8 {
    cell(region, at).load(Ordering::Relaxed)
}

fn store(region: &Region, at: usize, value: u8) {
    cell(region, at).store(value, Ordering::Relaxed);
}

/// Eight pages in use, in a scan of others.
#[test]
fn touches_are_seen_for_a_share_of_what_misses_cost() {
    for path in MAPPED {
        let seen = |percent: u32| {
            let cache = sampled(path, "clock", SamplingShare::of_percent(percent).unwrap())?;
            let region = cache.scratch(60 * PAGE as u64).unwrap();
            let region = region.map(0..60 * PAGE as u64, Protection::Read).unwrap();
            let mut rng = Rng(11);
            for step in 0..4000 {
                assert_eq!(load(&region, rng.below(8) as usize * PAGE), 0);
                assert_eq!(load(&region, (24 + step * 5 % 36) * PAGE), 0);
            }
            let stats = cache.stats();
            assert_eq!(stats.sampling_percent, Some(percent));
            assert_eq!(stats.unmapped_pages == 0, percent == 0);
            let paid = stats.total.evictions * 2 * u64::from(percent) / 100;
            assert!(stats.touches_seen <= paid + 24, "{path:?}, {percent} %: {stats:?}");
            Some(stats.touches_seen)
        };
        let [Some(none), Some(few), Some(many)] = [0, 5, 100].map(seen) else { return };
        assert!(none == 0 && 0 < few && 2 * few < many, "{path:?}: {none}, {few}, {many}");
    }
}

/// Each thread owns every eighth byte, and comes to it through the mapping and by reads and writes.
fn threads_share_pages(path: FaultPath, policy: &str, seed: u64) {
    const THREADS: usize = 3;
    const LEN: usize = 50 * PAGE + 777;
    let Some(cache) = cache(path, policy) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, vec![0; LEN]).unwrap();
    let segment = cache.open(&file, Options::new().writable(true)).unwrap();
    let region = segment.map(0..LEN as u64, Protection::ReadWrite).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (segment, region) = (segment.clone(), &region);
            scope.spawn(move || {
                let mut rng = Rng(seed * 100 + thread as u64);
                let mut model = vec![0u8; LEN];
                for _ in 0..2000 {
                    let at = rng.below((LEN / 8) as u64) as usize * 8 + thread;
                    let value = rng.next() as u8;
                    let mut byte = [0xff];
                    match rng.below(20) {
                        0..6 => {
                            store(region, at, value);
                            model[at] = value;
                        }
                        6..8 => {
                            segment.write_all_at(&[value], at as u64).unwrap();
                            model[at] = value;
                        }
                        8..15 => assert_eq!(load(region, at), model[at], "byte {at} mapped"),
                        15..18 => {
                            segment.read_exact_at(&mut byte, at as u64).unwrap();
                            assert_eq!(byte[0], model[at], "byte {at} read");
                        }
                        18 => {
                            let pinned = segment.pin(at as u64..at as u64 + 1).unwrap();
                            assert_eq!(pinned[0], model[at], "byte {at} pinned");
                        }
                        _ => segment.write_back(at as u64..(at + 3 * PAGE) as u64).unwrap(),
                    }
                }
                for at in (thread..LEN).step_by(8) {
                    assert_eq!(load(region, at), model[at], "byte {at} at the end");
                }
            });
        }
    });
    segment.flush().unwrap();
    let stored = std::fs::read(&file).unwrap();
    for (at, byte) in stored.iter().enumerate() {
        assert_eq!(load(&region, at), *byte, "byte {at} of the file");
    }
    assert!(stored.iter().any(|b| *b != 0));
    let stats = cache.stats();
    assert!(stats.total.evictions > 1000 && stats.total.write_faults > 100, "{stats:?}");
    assert_eq!(stats.failed_faults, 0);
}

#[test]
fn mapped_and_read_bytes_are_the_same() {
    for path in MAPPED {
        for (policy, seed) in [("lru", 1), ("mru", 2), ("clock", 3)] {
            threads_share_pages(path, policy, seed);
        }
    }
}

#[test]
fn explicit_caches_do_not_map() {
    let cache = cache(FaultPath::Explicit, "lru").unwrap();
    let segment = cache.scratch(PAGE as u64).unwrap();
    let refused = segment.map(0..1, Protection::Read).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(EOPNOTSUPP));
}

#[test]
fn copies_are_private_and_count() {
    for path in MAPPED {
        let Some(cache) = cache(path, "lru") else { continue };
        let segment = cache.scratch(40 * PAGE as u64).unwrap();
        for i in 0..40u64 {
            segment.write_all_at(&[i as u8 + 1; PAGE], i * 4096).unwrap();
        }
        let region = segment.map(4096..31 * 4096, Protection::CopyOnWrite).unwrap();
        let other = segment.map(0..40 * 4096, Protection::Read).unwrap();
        for i in (0..8).rev() {
            store(&region, i * PAGE + 5, 0xaa);
        }
        for round in 0..3 {
            for i in 0..30 {
                let own = if i < 8 { 0xaa } else { i as u8 + 2 };
                assert_eq!(load(&region, i * PAGE + 5), own, "{path:?}, round {round}, page {i}");
                assert_eq!(load(&region, i * PAGE + 6), i as u8 + 2);
                assert_eq!(load(&other, (i + 1) * PAGE + 5), i as u8 + 2);
            }
        }
        assert_eq!(cache.stats().private_pages_max, 8);
        segment.write_all_at(&[0x77; 2], 20 * 4096 + 5).unwrap();
        assert_eq!(load(&region, 19 * PAGE + 5), 0x77, "what has no copy shows the segment");
        drop((region, other));
        let mut byte = [0];
        segment.read_exact_at(&mut byte, 4096 + 5).unwrap();
        assert_eq!(byte, [2]);
    }
}

#[test]
fn buffers_may_be_regions() {
    for path in MAPPED {
        let Some(cache) = cache(path, "lru") else { continue };
        let from = cache.scratch(64 * PAGE as u64).unwrap();
        let to = cache.scratch(64 * PAGE as u64).unwrap();
        for i in 0..64u64 {
            from.write_all_at(&[i as u8; PAGE], i * 4096).unwrap();
        }
        let mut mapped = to.map(0..64 * 4096, Protection::ReadWrite).unwrap();
        // SAFETY: nobody else uses the segment.
        let slice = unsafe { mapped.as_mut_slice() };
        from.read_exact_at(&mut slice[100..60 * PAGE + 100], 0).unwrap();
        from.write_all_at(&slice[100..32 * PAGE + 100], 32 * 4096).unwrap();
        let mut page = [0; PAGE];
        for i in 0..64u64 {
            from.read_exact_at(&mut page, i * 4096).unwrap();
            assert!(page.iter().all(|b| *b == i as u8 % 32), "{path:?}, page {i}");
        }
        // Through a region of the very segment that is read.
        let own = from.map(0..64 * 4096, Protection::Read).unwrap();
        // SAFETY: written before the slice is looked at; nobody else uses the segment.
        from.write_all_at(unsafe { &own.as_slice()[..3 * PAGE] }, 10 * 4096).unwrap();
        assert_eq!((load(&own, 10 * PAGE), load(&own, 12 * PAGE)), (0, 2));
    }
}

#[test]
fn system_calls_on_regions() {
    let file = tempfile::tempfile().unwrap();
    file.write_at(&[9; PAGE], 0).unwrap();
    for path in MAPPED {
        let Some(cache) = cache(path, "lru") else { continue };
        let segment = cache.scratch(4 * PAGE as u64).unwrap();
        let mut region = segment.map(0..4 * 4096, Protection::ReadWrite).unwrap();
        // SAFETY: nobody else uses the segment.
        let slice = unsafe { region.as_mut_slice() };
        let result = file.read_at(&mut slice[PAGE..2 * PAGE], 0);
        match (path, result) {
            (FaultPath::Inline, Err(error)) => assert_eq!(error.raw_os_error(), Some(EFAULT)),
            // With a descriptor for user code alone the kernel is not served here either.
            (FaultPath::Thread, Err(error)) => assert_eq!(error.raw_os_error(), Some(EFAULT)),
            (FaultPath::Thread, Ok(n)) => assert_eq!((n, slice[PAGE]), (PAGE, 9)),
            (_, result) => panic!("{path:?}: {result:?}"),
        }
        // The documented way.
        let mut pinned = segment.pin_mut(2 * 4096..3 * 4096).unwrap();
        assert_eq!(file.read_at(&mut pinned, 0).unwrap(), PAGE);
        drop(pinned);
        assert_eq!(load(&region, 3 * PAGE - 1), 9);
    }
}

#[test]
fn many_threads_fault_on_one_page() {
    for path in MAPPED {
        let Some(cache) = cache(path, "lru") else { continue };
        let chaos = Chaos::new(8 * PAGE);
        chaos.bytes.lock().unwrap().fill(5);
        chaos.set(&chaos.delays, 1000);
        let segment = cache.open_store(ChaosStore(chaos.clone()), "chaos").unwrap();
        let region = segment.map(0..8 * 4096, Protection::Read).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| assert_eq!(load(&region, 0), 5));
            }
        });
        assert_eq!(chaos.loads.load(Ordering::SeqCst), 1, "{path:?}");
    }
}

// ---- what ends a process, seen from outside ------------------------------------------------

const ROLE: &str = "PAGEKEEPER_TEST_ROLE";

/// Runs the test `child` of this file in a process of its own, in a role.
fn child(role: &str, before: &[&str]) -> ExitStatus {
    let own = std::env::current_exe().unwrap();
    let mut command = match before {
        [] => Command::new(&own),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(&own);
            command
        }
    };
    command.args(["--exact", "in_a_process_of_its_own", "--nocapture", "--test-threads=1"]);
    let output = command.env(ROLE, role).output().unwrap();
    println!("{role}: {}", String::from_utf8_lossy(&output.stdout));
    println!("{}", String::from_utf8_lossy(&output.stderr));
    output.status
}

extern "C" fn programs_own_handler(_: i32) {
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(42) };
}

/// The roles.
#[test]
fn in_a_process_of_its_own() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (path, what) = role.split_once(' ').unwrap();
    let path = match path {
        "thread" => FaultPath::Thread,
        "inline" => FaultPath::Inline,
        _ => FaultPath::Explicit,
    };
    if what == "handled" {
        let handler = programs_own_handler as extern "C" fn(i32);
        // SAFETY: the handler only ends the process.
        unsafe { libc::signal(libc::SIGBUS, handler as usize) };
    }
    let Some(cache) = cache(path, "lru") else { std::process::exit(77) };
    let chaos = Chaos::new(64 * PAGE);
    let segment = cache.open_store(ChaosStore(chaos.clone()), "chaos").unwrap();
    match what {
        "unreadable" | "handled" => {
            chaos.set(&chaos.load_fails, 1000);
            let region = segment.map(0..4096, Protection::Read).unwrap();
            println!("read {}", load(&region, 0));
        }
        "truncated" => {
            let region = segment.map(0..64 * 4096, Protection::Read).unwrap();
            assert_eq!(load(&region, 3 * PAGE), 0);
            segment.set_len(4096).unwrap();
            println!("read {}", load(&region, 3 * PAGE));
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
        "works" => works(&cache, &segment, path),
        other => panic!("no role {other}"),
    }
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

fn unless_skipped(status: ExitStatus, check: impl FnOnce(ExitStatus)) {
    if status.code() == Some(77) {
        println!("skipped: the fault path is missing here");
    } else {
        check(status);
    }
}

#[test]
fn what_cannot_be_served_is_sigbus() {
    for path in ["thread", "inline"] {
        for what in ["unreadable", "truncated"] {
            unless_skipped(child(&format!("{path} {what}"), &[]), |status| {
                assert_eq!(status.signal(), Some(libc::SIGBUS), "{path} {what}: {status}");
            });
        }
        unless_skipped(child(&format!("{path} handled"), &[]), |status| {
            assert_eq!(status.code(), Some(42), "{path}: the program's own handler: {status}");
        });
        unless_skipped(child(&format!("{path} forked"), &[]), |status| {
            assert!(status.success(), "{path}, forked: {status}");
        });
    }
}

#[test]
fn an_ordinary_user_may() {
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let may = Command::new(nobody[0]).args(&nobody[1..]).arg("true").status();
    if !may.is_ok_and(|status| status.success()) {
        println!("skipped: cannot become another user (needs root and setpriv)");
        return;
    }
    for path in ["explicit", "inline"] {
        unless_skipped(child(&format!("{path} works"), &nobody), |status| {
            assert!(status.success(), "{path}: {status}");
        });
    }
}
