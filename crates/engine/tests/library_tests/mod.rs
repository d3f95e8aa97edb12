//! The library against a plain vector of bytes, and file semantics; under the translation that the process
//! is to test.

mod ahead;
mod appends;
mod asked;
mod children;
mod errors;
mod held;
mod lengths;
mod moves;
mod outside;
mod room;
mod stuck;

use crate::library_model::ops::{LEN_MAX, Op, PAGES, content, ops, ops_on, play};
use crate::library_model::{Chaos, ChaosStore, EINVAL, EIO, ENOSPC, PAGE, Rng};
use crate::library_translations::translation;
use pagekeeper::library::{
    Advice, BUDGET_PAGES_MIN, Builder, Cache, Options, PolicySpec, Segment, Store, Translation,
    WriteBack,
};
use proptest::prelude::*;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const EBADF: i32 = 9;
const EBUSY: i32 = 16;
const EFBIG: i32 = 27;
const EDEADLK: i32 = 35;
const EOWNERDEAD: i32 = 130;
/// Some twenty frames.
const TINY_PAGES: u64 = 24;

fn builder(budget_bytes: u64) -> Builder {
    Cache::builder(budget_bytes).translation(translation())
}

fn tiny(workers: usize, policy: &str) -> Cache {
    tiny_of(PAGE, workers, policy)
}

fn tiny_of(page: usize, workers: usize, policy: &str) -> Cache {
    let policy = PolicySpec::parse(policy).unwrap();
    builder(TINY_PAGES * page as u64)
        .page_bytes(page as u64)
        .policy(policy)
        .workers(workers)
        .write_back_period(None)
        .build()
        .unwrap()
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

/// Runs what must not wait for ever.
fn in_time<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    let thread = std::thread::spawn(move || drop(done.send(run())));
    match is_done.recv_timeout(Duration::from_secs(60)) {
        Ok(result) => {
            thread.join().unwrap();
            result
        }
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it waits for ever"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().unwrap_err())
        }
    }
}

/// Runs something in a forked child that ends without destructors; what it returns.
fn in_child(run: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child has one thread, and no other of the parent's holds a lock of the allocator
    // that the C library does not look after; it ends without destructors of the parent's.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(result.unwrap_or(101)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -status }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn a_file_is_what_a_vector_is(ops in ops(), workers in 0usize..2, mru in any::<bool>(), start in 0..LEN_MAX) {
        play_on_a_file(&ops, &tiny(workers, if mru { "mru" } else { "lru" }), start);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn a_file_of_64_kib_pages_is_what_a_vector_is(
        ops in ops_on(64 << 10, PAGES),
        workers in 0usize..2,
        mru in any::<bool>(),
        start in 0..LEN_MAX * 16,
    ) {
        let cache = tiny_of(64 << 10, workers, if mru { "mru" } else { "lru" });
        play_on_a_file(&ops, &cache, start);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3, ..ProptestConfig::default() })]
    #[test]
    fn a_file_of_2_mib_pages_is_what_a_vector_is(ops in ops_on(2 << 20, 15), start in 0..30usize << 20) {
        let cache = builder(18 << 20).page_bytes(2 << 20).build().unwrap();
        play_on_a_file(&ops, &cache, start);
    }
}

fn play_on_a_file(ops: &[Op], cache: &Cache, start: usize) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let mut model = content(7, start);
    std::fs::write(&path, &model).unwrap();
    let segment = cache.open(&path, Options::new().writable(true)).unwrap();
    for op in ops {
        play(&segment, &mut model, op);
    }
    segment.flush().unwrap();
    assert!(std::fs::read(&path).unwrap() == model);
    drop(segment);
    assert!(std::fs::read(&path).unwrap() == model);
    let segment = cache.open(&path, Options::new()).unwrap();
    let len = model.len() * 2;
    play(&segment, &mut model, &Op::Read { at: 0, len });
}

#[test]
fn pages_have_a_size_that_can_be() {
    let build = |budget: u64, page: u64| Cache::builder(budget).page_bytes(page).build().map(drop);
    for (budget, page) in [(1 << 20, 0), (1 << 20, 2048), (1 << 20, 12 << 10), (1 << 30, 4 << 20)] {
        assert_eq!(errno(build(budget, page)), Some(EINVAL), "{page}");
    }
    assert_eq!(errno(build(15 << 20, 2 << 20)), Some(EINVAL), "seven pages");
    build(16 << 20, 2 << 20).unwrap();
}

/// Of pages of 4 KiB a budget of one byte was eight frames, which it said nothing of, and of larger ones an
/// error; and a budget that became too small was told as it had been asked for, and not kept.
#[test]
fn a_budget_has_room_for_eight_pages_whatever_their_size() {
    for page in [4u64 << 10, 64 << 10, 2 << 20] {
        let least = BUDGET_PAGES_MIN * page;
        for budget in [0, 1, page, least - 1] {
            assert_eq!(errno(builder(budget).page_bytes(page).build()), Some(EINVAL), "{budget}");
        }
        let told = Arc::new(AtomicU64::new(0));
        let hears = told.clone();
        let listener = move |bytes| hears.store(bytes, Ordering::SeqCst);
        let cache = builder(least).page_bytes(page).workers(0).on_budget_change(listener);
        let cache = cache.build().unwrap();
        for budget in [2 * least, least - 1, 1, 0] {
            cache.set_budget(budget);
            let is = budget.max(least);
            assert_eq!((cache.budget_bytes(), told.load(Ordering::SeqCst)), (is, is));
            assert_eq!(cache.stats().memory_bytes, is);
        }
        let segment = cache.scratch(20 * page).unwrap();
        for at in (0..20 * page).step_by(page as usize) {
            segment.write_all_at(b"word", at).unwrap();
        }
        let resident = segment.attributes(0..20 * page).unwrap();
        assert!(resident.iter().filter(|page| page.resident).count() <= 8);
    }
    assert_eq!(errno(Cache::new(1)), Some(EINVAL));
}

/// A budget is bytes, whatever a page is; and a page is brought in, counted and written as one.
/// A range whose end lies before its start had a page, and so had one behind the end in its last page.
#[test]
fn attributes_are_those_of_the_pages_of_a_range() {
    const PAGES: u64 = 10_000;
    let page = PAGE as u64;
    let cache = builder(1 << 20).workers(0).read_ahead_pages_max(1).write_back_period(None);
    let cache = cache.build().unwrap();
    let segment = cache.scratch(PAGES * page - 100).unwrap();
    let touched = [0, 1, 4095, 4096, 4097, 8191, 8192, PAGES - 1];
    for number in touched {
        segment.read_exact_at(&mut [0], number * page).unwrap();
    }
    segment.write_all_at(b"x", 4096 * page).unwrap();
    for first in [0, 1, 4000, 4096] {
        let known = segment.attributes(first * page..u64::MAX).unwrap();
        assert_eq!(known.len() as u64, PAGES - first);
        for (number, known) in (first..).zip(known) {
            assert_eq!(known.resident, touched.contains(&number), "{number} from {first}");
            assert_eq!(known.referenced, known.resident, "{number}");
            assert_eq!(known.dirty, number == 4096, "{number}");
        }
    }
    let pages = |from: u64, to: u64| segment.attributes(from..to).unwrap().len();
    let len = segment.len();
    assert_eq!((pages(page - 1, page + 1), pages(5, 6), pages(len - 1, u64::MAX)), (2, 1, 1));
    for (from, to) in [(7, 3), (5, 5), (9 * page, 2 * page), (len, u64::MAX), (len + 7, u64::MAX)] {
        assert_eq!(pages(from, to), 0, "{from}..{to}");
    }
}

#[test]
fn large_pages_are_within_the_budget_and_come_as_one() {
    for page in [4u64 << 10, 64 << 10, 2 << 20] {
        let cache = builder(32 << 20).page_bytes(page).workers(0).build().unwrap();
        let segment = cache.scratch(64 << 20).unwrap();
        for at in (0..64 << 20).step_by(page as usize) {
            segment.write_all_at(&[7], at).unwrap();
        }
        let resident = segment.attributes(0..64 << 20).unwrap();
        assert_eq!(resident.len() as u64, (64 << 20) / page);
        let bytes = resident.iter().filter(|a| a.resident).count() as u64 * page;
        assert!((26 << 20..=32 << 20).contains(&bytes), "{bytes} in pages of {page}");
        let written = cache.stats().total.written_bytes;
        assert!(written.is_multiple_of(page) && written >= 32 << 20, "{written}");
        let (at, before) = (page * 2, cache.stats().total.read_bytes);
        segment.advise(at..at + page, Advice::DontNeed).unwrap();
        segment.flush().unwrap();
        segment.advise(at..at + page, Advice::DontNeed).unwrap();
        segment.read_exact_at(&mut [0], at + page - 1).unwrap();
        assert!(cache.stats().total.read_bytes >= before + page);
    }
}

/// Pages are found through windows of a gigabyte, the first 512 of them on a shorter way; and a
/// read that ends in its page is made on a shorter way than one that does not.
#[test]
fn reads_find_their_bytes_however_far_out_and_across_pages() {
    const WINDOW: u64 = 1 << 30;
    for page in [PAGE, 2 << 20] {
        let cache = builder(64 << 20).page_bytes(page as u64).workers(0).build().unwrap();
        let segment = cache.scratch(600 * WINDOW).unwrap();
        let extent = 64 * page as u64;
        let edges = [page as u64, extent, WINDOW, WINDOW + extent, 512 * WINDOW, 599 * WINDOW];
        for (no, edge) in edges.into_iter().enumerate() {
            segment.write_all_at(&[no as u8 + 1; 8], edge - 8).unwrap();
            segment.write_all_at(&[no as u8 + 101; 8], edge).unwrap();
        }
        for (no, edge) in edges.into_iter().enumerate() {
            let mut both = [0; 16];
            segment.read_exact_at(&mut both, edge - 8).unwrap();
            assert_eq!(both, std::array::from_fn(|i| no as u8 + if i < 8 { 1 } else { 101 }));
            let mut byte = [0];
            assert_eq!(segment.read_at(&mut byte, edge - 1).unwrap(), 1);
            assert_eq!(byte, [no as u8 + 1]);
        }
        assert_eq!(segment.read_at(&mut [], edges[0] + 1).unwrap(), 0);
        let mut last = [9; 4];
        assert_eq!(segment.read_at(&mut last, 600 * WINDOW - 2).unwrap(), 2);
        assert_eq!(last, [0, 0, 9, 9]);
        assert_eq!(segment.read_at(&mut last, u64::MAX - 1).ok(), None);
    }
}

/// Each thread owns every eighth byte, so that all share every page.
fn threads_share_pages(store: Option<Arc<Chaos>>, seed: u64) {
    // Small pages, and large ones.
    for page in [PAGE, 16 * PAGE] {
        let store = store.as_ref().map(|chaos| chaos.again(50 * page + 777));
        threads_share_pages_of(page, store, seed);
    }
}

fn threads_share_pages_of(page: usize, store: Option<Arc<Chaos>>, seed: u64) {
    const THREADS: usize = 4;
    let len = 50 * page + 777;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, vec![0; len]).unwrap();
    let cache = tiny_of(page, 1, "clock");
    let segment = match &store {
        Some(chaos) => cache.open_store(ChaosStore(chaos.clone()), "chaos").unwrap(),
        None => cache.open(&path, Options::new().writable(true)).unwrap(),
    };
    let failed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let segment = segment.clone();
            let failed = &failed;
            scope.spawn(move || {
                let mut rng = Rng(seed * 100 + thread as u64);
                let mut model = vec![0u8; len];
                for _ in 0..1500 {
                    let cell = rng.below((len / 8) as u64) as usize * 8 + thread;
                    match rng.below(12) {
                        0..5 => {
                            let value = rng.next() as u8;
                            match segment.write_at(&[value], cell as u64) {
                                Ok(n) => {
                                    assert_eq!(n, 1);
                                    model[cell] = value;
                                }
                                Err(_) => drop(failed.fetch_add(1, Ordering::Relaxed)),
                            }
                        }
                        5..10 => {
                            let mut byte = [0xff];
                            match segment.read_at(&mut byte, cell as u64) {
                                Ok(_) => assert_eq!(byte[0], model[cell], "cell {cell}"),
                                Err(_) => drop(failed.fetch_add(1, Ordering::Relaxed)),
                            }
                        }
                        10 => match segment.pin(cell as u64..cell as u64 + 1) {
                            Ok(pinned) => assert_eq!(pinned[0], model[cell], "cell {cell}"),
                            Err(_) => drop(failed.fetch_add(1, Ordering::Relaxed)),
                        },
                        _ => drop(segment.write_back(cell as u64..(cell + 3 * page) as u64)),
                    }
                }
                for cell in (thread..len).step_by(8 * page / PAGE).filter(|c| c % 8 == thread) {
                    let mut byte = [0xff];
                    while segment.read_at(&mut byte, cell as u64).is_err() {}
                    assert_eq!(byte[0], model[cell], "cell {cell} at the end");
                }
            });
        }
    });
    if let Some(chaos) = &store {
        chaos.calm();
        assert!(failed.load(Ordering::Relaxed) > 0, "nothing failed");
    } else {
        assert_eq!(failed.load(Ordering::Relaxed), 0);
    }
    let _ = segment.flush();
    segment.flush().unwrap();
    let mut all = vec![0; len];
    segment.read_exact_at(&mut all, 0).unwrap();
    let stored = match &store {
        Some(chaos) => chaos.bytes.lock().unwrap().clone(),
        None => std::fs::read(&path).unwrap(),
    };
    assert!(all == stored, "what is stored is not what is read");
    assert!(all.iter().any(|b| *b != 0));
}

#[test]
fn threads_see_their_own_writes() {
    for seed in 0..3 {
        threads_share_pages(None, seed);
    }
}

#[test]
fn threads_see_their_own_writes_while_the_store_fails() {
    for seed in 0..3 {
        let chaos = Chaos::new(50 * PAGE + 777);
        chaos.set(&chaos.load_fails, 50);
        chaos.set(&chaos.store_fails, 200);
        chaos.set(&chaos.full, 50);
        chaos.set(&chaos.delays, 20);
        threads_share_pages(Some(chaos), seed);
    }
}

/// Reads of one page while it is written, leaves and comes back: each shows what was there at one time,
/// of that page.
#[test]
fn reads_within_a_page_are_whole() {
    const PAGES: u64 = 3 * TINY_PAGES;
    let cache = tiny(1, "lru");
    let segment = cache.scratch(PAGES * PAGE as u64).unwrap();
    let pieces = [(0, 6), (90, 510), (1000, 512), (3000, 1096)];
    let is_over = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let readers = [50, 51].map(|seed| {
            let (segment, is_over, reads) = (&segment, &is_over, &reads);
            scope.spawn(move || {
                let mut rng = Rng(seed);
                let mut buf = vec![0; PAGE];
                while !is_over.load(Ordering::Relaxed) {
                    // Most of them in few pages, which stay while others go.
                    let pages = if rng.below(64) > 0 { 2 } else { PAGES };
                    let page = rng.below(pages);
                    let (at, len) = pieces[rng.below(pieces.len() as u64) as usize];
                    let buf = &mut buf[..len];
                    segment.read_exact_at(buf, page * PAGE as u64 + at).unwrap();
                    let pair = [buf[0], buf[1]];
                    assert!(pair == [0; 2] || u64::from(pair[0]) == page + 1, "another page's");
                    assert!(buf.as_chunks().0.iter().all(|next| *next == pair), "torn: {buf:?}");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let mut rng = Rng(3);
        let mut round = 0;
        let has_failed = || readers.iter().any(|reader| reader.is_finished());
        while round < 150_000 || reads.load(Ordering::Relaxed) < 150_000 && !has_failed() {
            round += 1;
            let page = rng.below(if round % 64 > 0 { 2 } else { PAGES });
            let (at, len) = pieces[round % pieces.len()];
            let content: Vec<u8> =
                [page as u8 + 1, round as u8].into_iter().cycle().take(len).collect();
            let offset = page * PAGE as u64 + at;
            if round % 8 == 0 {
                let mut pin = segment.pin_mut(offset..offset + len as u64).unwrap();
                pin.copy_from_slice(&content);
            } else {
                segment.write_all_at(&content, offset).unwrap();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn ends_and_errors_are_those_of_pread_and_pwrite() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, [1; 5000]).unwrap();
    let cache = tiny(0, "lru");
    let segment = cache.open(&path, Options::new()).unwrap();
    let mut buf = [9; 100];
    assert_eq!(segment.read_at(&mut [], 0).unwrap(), 0);
    assert_eq!(segment.read_at(&mut buf, 4990).unwrap(), 10);
    assert_eq!((buf[9], buf[10]), (1, 9));
    assert_eq!(segment.read_at(&mut buf, 5000).unwrap(), 0);
    assert_eq!(segment.read_at(&mut buf, i64::MAX as u64).unwrap(), 0);
    assert_eq!(errno(segment.read_at(&mut buf, u64::MAX)), Some(EINVAL));
    assert_eq!(errno(segment.write_at(&buf, 0)), Some(EBADF));
    assert_eq!(errno(segment.set_len(0)), Some(EBADF));
    assert_eq!(errno(segment.pin_mut(0..1)), Some(EBADF));
    let eof = segment.read_exact_at(&mut buf, 4950).unwrap_err();
    assert_eq!(eof.kind(), io::ErrorKind::UnexpectedEof);
    drop(segment);

    let segment = cache.open(&path, Options::new().writable(true)).unwrap();
    assert_eq!(segment.write_at(&[], 1 << 40).unwrap(), 0);
    assert_eq!(segment.len(), 5000, "writing nothing changes nothing");
    assert_eq!(errno(segment.write_at(&buf, i64::MAX as u64)), Some(EFBIG));
    assert_eq!(errno(segment.write_at(&buf, u64::MAX)), Some(EINVAL));
    assert_eq!(segment.write_at(&[3; 10], 9000).unwrap(), 10);
    assert_eq!(segment.len(), 9010);
    segment.read_exact_at(&mut buf, 4995).unwrap();
    assert_eq!((buf[4], buf[5], buf[99]), (1, 0, 0), "a gap reads as zeros");
    assert_eq!(errno(cache.open(directory.path(), Options::new())), Some(EINVAL));
    // A FIFO was waited at for whoever would write to it.
    let fifo = std::ffi::CString::new(directory.path().join("fifo").to_str().unwrap()).unwrap();
    // SAFETY: a path, with its end.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    let (opener, fifo) = (cache.clone(), directory.path().join("fifo"));
    let opened = in_time(move || {
        let open = |writable| errno(opener.open(&fifo, Options::new().writable(writable)));
        [open(false), open(true)]
    });
    assert_eq!(opened, [Some(EINVAL); 2]);
}

/// What is deleted before its write-back is not written, unless pages are written when they are full.
#[test]
fn a_full_page_is_written_at_once_where_that_is_asked_for() {
    for (when, at_once) in [(WriteBack::Background, 0), (WriteBack::WhenFull, 2)] {
        let chaos = Chaos::new(4 * PAGE);
        let cache = tiny(0, "lru");
        let segment = cache.open_store(ChaosStore(chaos.clone()), "chaos").unwrap();
        segment.set_write_back(when).unwrap();
        for quarter in 0..9 {
            segment.write_all_at(&[7; PAGE / 4], quarter * PAGE as u64 / 4).unwrap();
        }
        assert_eq!(chaos.stores.load(Ordering::SeqCst), at_once, "{when:?}");
        segment.write_all_at(&[8; PAGE], PAGE as u64 / 2).unwrap();
        assert_eq!(chaos.stores.load(Ordering::SeqCst), at_once / 2 * 3, "{when:?}: one was full");
        segment.discard(0..4 * PAGE as u64).unwrap();
        segment.flush().unwrap();
        assert_eq!(chaos.stores.load(Ordering::SeqCst), at_once / 2 * 3, "{when:?}");
    }
}

/// A policy chooses among what is not pinned, however little that is.
#[test]
fn pinned_pages_stay_and_others_go() {
    let chaos = Chaos::new(100 * PAGE);
    for (i, page) in chaos.bytes.lock().unwrap().chunks_mut(PAGE).enumerate() {
        page.fill(i as u8);
    }
    for policy in ["lru", "mru", "clock", "fifo", "lirs", "arc"] {
        let cache = tiny(1, policy);
        let segment = cache.open_store(ChaosStore(chaos.clone()), "chaos").unwrap();
        let shared: Vec<_> =
            (0..6u64).map(|i| segment.pin(i * 16 * 4096..(i * 16 + 1) * 4096).unwrap()).collect();
        let mut alone = [50u64, 51].map(|i| segment.pin_mut(i * 4096..(i + 1) * 4096).unwrap());
        alone.iter_mut().for_each(|page| page.fill(0xaa));
        let mut page = [0; PAGE];
        for round in 0..3 {
            for i in (0..100u64).filter(|i| !(50..52).contains(i)) {
                segment.read_exact_at(&mut page, i * 4096).unwrap();
                assert!(page.iter().all(|b| *b == i as u8), "{policy}, round {round}, page {i}");
            }
        }
        for (i, pinned) in shared.iter().enumerate() {
            assert!(pinned.iter().all(|b| *b == i as u8 * 16));
        }
        assert!(alone.iter().all(|page| page.iter().all(|b| *b == 0xaa)));
        assert_eq!(errno(segment.set_len(51 * 4096)), Some(EBUSY));
        drop((shared, alone));
        // All of them can leave again.
        for i in 52..100u64 {
            segment.read_exact_at(&mut page, i * 4096).unwrap();
        }
        cache.set_budget(40 << 10);
        let resident = segment.attributes(0..100 * 4096).unwrap();
        let resident = resident.iter().filter(|page| page.resident).count();
        assert!(resident <= 10, "{policy}: {resident} pages in nine frames");
        segment.flush().unwrap();
        assert!(chaos.bytes.lock().unwrap()[50 * PAGE..52 * PAGE].iter().all(|b| *b == 0xaa));
        for (i, page) in chaos.bytes.lock().unwrap().chunks_mut(PAGE).enumerate() {
            page.fill(i as u8);
        }
    }
}

#[test]
fn the_budget_changes_live_and_is_told() {
    let told = Arc::new(AtomicU64::new(0));
    let hears = told.clone();
    let cache = builder(1 << 20)
        .on_budget_change(move |bytes| hears.store(bytes, Ordering::SeqCst))
        .build()
        .unwrap();
    let scratch = cache.scratch(4 << 20).unwrap();
    let mut rng = Rng(1);
    let data: Vec<u8> = (0..4 << 20).map(|_| rng.next() as u8).collect();
    scratch.write_all_at(&data, 0).unwrap();
    let resident = |segment: &Segment| {
        segment.attributes(0..4 << 20).unwrap().iter().filter(|page| page.resident).count()
    };
    assert!((200..256).contains(&resident(&scratch)), "{}", resident(&scratch));
    cache.set_budget(256 << 10);
    assert_eq!(told.load(Ordering::SeqCst), 256 << 10);
    assert!(resident(&scratch) < 64);
    let mut read = vec![0; 4 << 20];
    scratch.read_exact_at(&mut read, 0).unwrap();
    assert!(read == data);
    let stats = cache.stats();
    assert_eq!((stats.memory_bytes, stats.policy.as_str()), (256 << 10, "lru"));
    assert!(stats.total.write_backs > 768 && stats.total.evictions > 768, "{stats:?}");
}

#[test]
fn a_file_has_one_writer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, [1; 5000]).unwrap();
    let (one, two) = (tiny(0, "lru"), tiny(0, "lru"));
    let reads = one.open(&path, Options::new()).unwrap();
    let also = two.open(&path, Options::new()).unwrap();
    assert_eq!(errno(one.open(&path, Options::new().writable(true))), Some(EBUSY));
    drop((reads, also));
    let writes = one.open(&path, Options::new().writable(true)).unwrap();
    assert_eq!(errno(two.open(&path, Options::new())), Some(EBUSY));
    // In one cache it is one segment.
    let reads = one.open(&path, Options::new()).unwrap();
    writes.write_at(b"xyz", 10).unwrap();
    let mut buf = [0; 3];
    reads.read_exact_at(&mut buf, 10).unwrap();
    assert_eq!(&buf, b"xyz");
    assert_eq!(errno(reads.write_at(b"a", 0)), Some(EBADF));
}

/// Files of a cache are registered by one descriptor, which took one of each before; so it does not do to
/// close it, to let go of one of them.
#[test]
fn a_file_that_is_closed_is_anybody_s_while_others_are_open() {
    let directory = tempfile::tempdir().unwrap();
    let paths = ["one", "two"].map(|name| directory.path().join(name));
    paths.iter().for_each(|path| std::fs::write(path, [1; 5000]).unwrap());
    let (cache, other) = (tiny(0, "lru"), tiny(0, "lru"));
    let writable = Options::new().writable(true);
    let [first, second] = [&paths[0], &paths[1]].map(|path| cache.open(path, writable).unwrap());
    assert_eq!(errno(other.open(&paths[1], writable)), Some(EBUSY));
    drop(second);
    let taken = other.open(&paths[1], writable).unwrap();
    assert_eq!(errno(cache.open(&paths[1], writable)), Some(EBUSY));
    assert_eq!(errno(other.open(&paths[0], Options::new())), Some(EBUSY));
    drop(taken);
    let second = cache.open(&paths[1], writable).unwrap();
    drop(first);
    assert_eq!(errno(other.open(&paths[1], writable)), Some(EBUSY));
    drop(second);
    drop(other.open(&paths[1], writable).unwrap());
}

/// Each page of the file says which it is.
fn numbered_file(pages: usize) -> tempfile::NamedTempFile {
    let mut bytes = vec![0; pages * PAGE];
    for (page, bytes) in bytes.chunks_mut(PAGE).enumerate() {
        bytes.fill(page as u8);
        bytes[..8].copy_from_slice(&(page as u64).to_le_bytes());
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    file
}

fn check_pages(bytes: &[u8], first: usize) {
    for (page, bytes) in (first..).zip(bytes.chunks(PAGE)) {
        assert_eq!(bytes[..8], (page as u64).to_le_bytes(), "page {page}");
        assert!(bytes[8..].iter().all(|byte| *byte == page as u8), "page {page}");
    }
}

/// Reads of 1 MiB were each a miss of all their pages, behind which nothing was fetched.
#[test]
fn a_scan_is_fetched_ahead_whatever_it_asks_for_at_a_time() {
    const PAGES: usize = 8192;
    let file = numbered_file(PAGES);
    for (workers, read_pages) in [(0, 1), (0, 256), (1, 1), (1, 16), (1, 256), (2, 256), (1, 512)] {
        let builder = builder(8 << 20).workers(workers).write_back_period(None);
        let cache = builder.build().unwrap();
        let segment = cache.open(file.path(), Options::new()).unwrap();
        let mut buf = vec![0; read_pages * PAGE];
        for first in (0..PAGES).step_by(read_pages) {
            segment.read_exact_at(&mut buf, (first * PAGE) as u64).unwrap();
            check_pages(&buf, first);
        }
        // The last window may be on its way still.
        drop(segment.attributes(0..1));
        let stats = cache.stats();
        let what = format!("{workers} workers, {read_pages} pages at a time: {:?}", stats.total);
        assert!(stats.total.major_faults < PAGES as u64 / 8, "{what}");
        assert!(stats.total.read_bytes <= (PAGES * PAGE) as u64, "read again: {what}");
    }
}

/// Segments and caches end while windows of them are being read, and their files and memory are used
/// for something else.
#[test]
fn what_is_being_read_when_a_cache_ends_harms_nobody() {
    let file = numbered_file(2048);
    let mut buf = vec![0; 64 * PAGE];
    for round in 0..200usize {
        let workers = round % 3;
        let builder = builder(4 << 20).workers(workers).write_back_period(None);
        let cache = builder.build().unwrap();
        let segment = cache.open(file.path(), Options::new()).unwrap();
        let first = round * 7 % 1500;
        // Enough for windows to be under way.
        for read in 0..1 + round % 4 {
            let at = first + read * 64;
            segment.read_exact_at(&mut buf, (at * PAGE) as u64).unwrap();
            check_pages(&buf, at);
        }
        if round % 2 == 0 {
            // Its number, and the numbers of its pages, are the next one's.
            drop(segment);
            let other = cache.scratch((512 * PAGE) as u64).unwrap();
            other.write_all_at(&vec![9; 256 * PAGE], 0).unwrap();
            let mut all = vec![1; 512 * PAGE];
            other.read_exact_at(&mut all, 0).unwrap();
            let (written, untouched) = all.split_at(256 * PAGE);
            assert!(written.iter().all(|b| *b == 9) && untouched.iter().all(|b| *b == 0));
        }
    }
}

/// Children are forked while windows are being read: they are refused, and the parent reads on.
#[test]
fn a_fork_in_the_midst_of_a_scan_disturbs_nobody() {
    const PAGES: usize = 4096;
    let file = numbered_file(PAGES);
    let cache = builder(4 << 20).write_back_period(None).build().unwrap();
    let segment = cache.open(file.path(), Options::new()).unwrap();
    let mut buf = vec![0; 64 * PAGE];
    for first in (0..PAGES).step_by(64) {
        segment.read_exact_at(&mut buf, (first * PAGE) as u64).unwrap();
        check_pages(&buf, first);
        if first % 256 == 0 {
            // SAFETY: the child allocates nothing, and ends without destructors.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let here = segment.read_at(&mut buf[..8], first as u64).err();
                let refused = here.and_then(|e| e.raw_os_error()) == Some(EOWNERDEAD);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!refused)) };
            }
            let mut status = 0;
            // SAFETY: waits for the child just made.
            unsafe { libc::waitpid(pid, &mut status, 0) };
            assert_eq!(status, 0, "the child was not refused");
        }
    }
}

/// Somebody makes the file shorter while it is being read: what is gone reads as the end or as
/// zeros, and nothing else does.
#[test]
fn a_window_that_meets_the_end_of_the_file_is_what_the_file_has() {
    let file = numbered_file(1000);
    let half = 777 * PAGE + 100;
    std::fs::OpenOptions::new()
        .write(true)
        .open(file.path())
        .unwrap()
        .set_len(half as u64)
        .unwrap();
    let cache = builder(8 << 20).write_back_period(None).build().unwrap();
    let segment = cache.open(file.path(), Options::new()).unwrap();
    let mut all = vec![1; 1000 * PAGE];
    let mut done = 0;
    while let n @ 1.. = segment.read_at(&mut all[done..done + 30 * PAGE], done as u64).unwrap() {
        done += n;
    }
    assert_eq!(done, half);
    check_pages(&all[..777 * PAGE], 0);
    assert_eq!(segment.read_at(&mut all[..PAGE], 777 * PAGE as u64).unwrap(), 100);
}

/// Looking for changes of the file once waited for guards, and so for its own thread's.
#[test]
fn pinned_pages_show_changes_by_others_when_they_are_let_go() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, [1; 3 * PAGE]).unwrap();
    let cache = tiny(0, "lru");
    let segment = cache.open(&path, Options::new()).unwrap();
    let pinned = segment.pin(0..10).unwrap();
    let mut byte = [0];
    segment.read_exact_at(&mut byte, 2 * PAGE as u64).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::fs::write(&path, [2; 3 * PAGE]).unwrap();
    assert!(segment.refresh().unwrap());
    assert_eq!(*pinned, [1; 10]);
    segment.read_exact_at(&mut byte, 2 * PAGE as u64).unwrap();
    assert_eq!(byte, [2]);
    drop(pinned);
    segment.refresh().unwrap();
    segment.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(byte, [2]);
}

#[test]
fn another_policy_takes_over_live() {
    let chaos = Chaos::new(60 * PAGE);
    for (i, page) in chaos.bytes.lock().unwrap().chunks_mut(PAGE).enumerate() {
        page.fill(i as u8);
    }
    let policy = PolicySpec::parse("lru").unwrap();
    let builder = builder(128 << 10).policy(policy).read_ahead_pages_max(1);
    let cache = builder.write_back_period(None).build().unwrap();
    let segment = cache.open_store(ChaosStore(chaos.clone()), "chaos").unwrap();
    let mut page = [0; PAGE];
    let mut pass = || {
        let before = cache.stats().total.major_faults;
        for i in 0..60u64 {
            segment.read_exact_at(&mut page, i * 4096).unwrap();
            assert_eq!(page, [i as u8; PAGE]);
        }
        cache.stats().total.major_faults - before
    };
    pass();
    assert_eq!(pass(), 60, "a loop is too long for LRU");
    let resident = cache.set_policy(PolicySpec::parse("mru").unwrap()).unwrap();
    assert!((20..32).contains(&resident), "{resident}");
    pass();
    let misses = pass();
    assert!(misses < 45, "MRU keeps a part of the loop; {misses} of 60 missed");
    assert_eq!(cache.policy().name(), "mru");
    assert!(cache.set_policy(PolicySpec::parse("opt").unwrap()).is_err());
    assert_eq!(cache.policy().name(), "mru");
}
