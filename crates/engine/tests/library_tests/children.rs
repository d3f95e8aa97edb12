//! Forked children, which have nothing of a cache but the memory that they copied.

use super::*;
use pagekeeper::library::{Codec, Compressed, FileStore, Logged, Mirrored, Side};

#[test]
fn a_forked_child_is_refused() {
    let cache = tiny(1, "lru");
    let scratch = cache.scratch(8 * PAGE as u64).unwrap();
    scratch.write_at(b"parent", 0).unwrap();
    // SAFETY: the child allocates nothing, and ends without destructors.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let mut buf = [0; 6];
        let wrong = [
            scratch.read_at(&mut buf, 0).err().and_then(|e| e.raw_os_error()),
            scratch.read_at(&mut buf, 5 * PAGE as u64).err().and_then(|e| e.raw_os_error()),
            scratch.write_at(b"child!", 0).err().and_then(|e| e.raw_os_error()),
            scratch.flush().err().and_then(|e| e.raw_os_error()),
            scratch.pin(0..1).err().and_then(|e| e.raw_os_error()),
            scratch.set_len(0).err().and_then(|e| e.raw_os_error()),
        ];
        let is_known = cache.budget_bytes() == 0 && cache.policy().to_string() == "lru";
        let refused = wrong.iter().filter(|e| **e == Some(EOWNERDEAD)).count();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit((wrong.len() - refused) as i32 + i32::from(!is_known)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0, "operations that were not refused in the child: {}", status >> 8);
    let mut buf = [0; 6];
    scratch.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"parent");
}

fn refused<T>(result: io::Result<T>) -> bool {
    result.is_err_and(|error| error.raw_os_error() == Some(EOWNERDEAD))
}

/// A child could open segments in its copy of a cache. The words of pages are shared, and what is known
/// of them is not: parent and child both gave out the same pages, and the parent read zeros where its
/// file had something. What the child set aside of the budget it took from its parent's frames.
#[test]
fn a_forked_child_opens_nothing_and_takes_nothing_away() {
    const PAGES: usize = 12;
    let (file, other) = (numbered_file(PAGES), numbered_file(PAGES));
    let directory = tempfile::tempdir().unwrap();
    let created = directory.path().join("created");
    let cache = tiny(0, "lru");
    let _reserved = cache.reserve(PAGE as u64).unwrap();
    let first = cache.open(file.path(), Options::new()).unwrap();
    let mut all = [0; PAGES * PAGE];
    first.read_exact_at(&mut all, 0).unwrap();
    let scratch = cache.scratch(4 * PAGE as u64).unwrap();
    let failed = in_child(|| {
        let mut page = [0; PAGE];
        let mut read = |opened: io::Result<Segment>| {
            let _ = opened.as_ref().map(|segment| segment.read_at(&mut page, 0));
            refused(opened)
        };
        let memory = Chaos::new(PAGE);
        let saved = directory.path().join("saved");
        let own = tiny(0, "lru").scratch(4 * PAGE as u64).unwrap();
        own.write_all_at(&[5; PAGE], 0).unwrap();
        let results = [
            read(cache.open(other.path(), Options::new())),
            read(cache.open(file.path(), Options::new())),
            read(cache.open(&created, Options::new().create(true))),
            read(cache.open_file(other.as_file(), true, "other")),
            read(cache.open_store(ChaosStore(memory), "chaos")),
            read(cache.scratch(PAGE as u64)),
            refused(cache.reserve(10 * PAGE as u64)),
            refused(cache.flush()),
            refused(cache.save_working_set(&saved)),
            refused(cache.load_working_set(file.path())),
            refused(cache.set_policy(PolicySpec::parse("mru").unwrap())),
            refused(own.migrate(0..1, &scratch, 0)),
            refused(scratch.migrate(0..1, &own, 0)),
            refused(scratch.migrate(0..0, &own, 0)),
            refused(scratch.pin(0..1)),
            refused(scratch.pin(0..u64::MAX)),
            refused(scratch.pin_mut(0..1)),
            refused(scratch.flush()),
            refused(scratch.write_back(0..1)),
            refused(scratch.refresh()),
            refused(scratch.prefetch(0..1)),
            refused(scratch.advise(0..1, Advice::DontNeed)),
            refused(scratch.advise(0..1, Advice::WillNeed)),
            refused(scratch.advise(0..1, Advice::Needed)),
            refused(scratch.discard(0..1)),
            refused(scratch.attributes(0..1)),
            refused(scratch.set_write_back(WriteBack::OnCommit)),
            refused(scratch.write_at(&[1; PAGE], 0)),
            refused(scratch.read_at(&mut [0; 3 * PAGE], 0)),
            !created.exists() && !saved.exists(),
            cache.stats().policy.is_empty(),
        ];
        cache.set_budget(PAGE as u64);
        let failed = results.iter().position(|is_right| !is_right);
        failed.map_or(0, |at| at as i32 + 1)
    });
    first.read_exact_at(&mut all, 0).unwrap();
    check_pages(&all, 0);
    let second = cache.open(other.path(), Options::new()).unwrap();
    second.read_exact_at(&mut all, 0).unwrap();
    check_pages(&all, 0);
    scratch.read_exact_at(&mut all[..PAGE], 0).unwrap();
    assert_eq!(all[..PAGE], [0; PAGE]);
    assert_eq!(failed, 0, "an operation that was not refused in the child, counted from one");
}

/// A child that let go of its copy of a cache without threads unmapped the addresses where its parent
/// has frames: by then its own.
#[test]
fn a_forked_child_lets_go_of_a_cache_and_keeps_its_own_memory() {
    let cache = tiny(0, "lru");
    let scratch = cache.scratch(8 * PAGE as u64).unwrap();
    scratch.write_all_at(&[7; 8 * PAGE], 0).unwrap();
    let mut all = [0; 8 * PAGE];
    scratch.read_exact_at(&mut all, 0).unwrap();
    let child = in_child(|| {
        // Where its parent's frames are mapped there is room.
        let own: Vec<_> = (0..4)
            .map(|_| {
                let segment = tiny(0, "mru").scratch(8 * PAGE as u64).unwrap();
                segment.write_all_at(&[5; 8 * PAGE], 0).unwrap();
                segment.read_exact_at(&mut all, 0).unwrap();
                segment
            })
            .collect();
        drop((scratch.clone(), cache.clone()));
        // SAFETY: the child's copies, which it uses no more.
        unsafe {
            drop((std::ptr::read(&scratch), std::ptr::read(&cache)));
        }
        let is_there = |segment: &Segment| {
            all.fill(0);
            segment.read_exact_at(&mut all, 0).is_ok() && all == [5; 8 * PAGE]
        };
        i32::from(!own.iter().all(is_there))
    });
    assert_eq!(child, 0);
    scratch.read_exact_at(&mut all, 0).unwrap();
    assert_eq!(all, [7; 8 * PAGE]);
}

/// A file that was closed stayed taken as long as any child lived that was forked meanwhile.
#[test]
fn a_file_is_given_up_though_a_child_lives() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, [1; 5000]).unwrap();
    let segment = tiny(0, "lru").open(&path, Options::new().writable(true)).unwrap();
    // SAFETY: the child makes one system call until it is ended.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: sleeps.
        unsafe { libc::pause() };
    }
    drop(segment);
    let again = tiny(0, "lru").open(&path, Options::new().writable(true)).map(drop);
    // SAFETY: ends and waits for the child just made.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    again.unwrap();
}

/// And one whose owner died without closing it, which the next start of a program with helpers met.
#[test]
fn a_file_is_given_up_by_who_dies_though_a_child_lives() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, [1; 5000]).unwrap();
    let mut ends = [0; 2];
    // SAFETY: the array has room for both ends.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let died = in_child(|| {
        let segment = tiny(0, "lru").open(&path, Options::new().writable(true)).unwrap();
        // SAFETY: the grandchild waits until the pipe's last other end is closed.
        unsafe {
            if libc::fork() == 0 {
                libc::close(ends[1]);
                let mut byte = 0u8;
                libc::read(ends[0], (&raw mut byte).cast(), 1);
                libc::_exit(0);
            }
            std::mem::forget(segment);
            libc::_exit(7);
        }
    });
    assert_eq!(died, 7);
    let open = || tiny(0, "lru").open(&path, Options::new().writable(true)).map(drop);
    // The grandchild lets go of it as soon as it runs.
    let begun = std::time::Instant::now();
    let again = loop {
        let again = open();
        if again.is_ok() || begun.elapsed() > Duration::from_secs(20) {
            break again;
        }
        std::thread::yield_now();
    };
    // SAFETY: ends of the pipe just made.
    unsafe { (libc::close(ends[0]), libc::close(ends[1])) };
    again.unwrap();
}

/// A child's copy of a guard took its parent's hold away when it was dropped, since the words of
/// pages are shared; and a child could have no cache of its own, nor would it have been sound, since
/// it took over page tables that its parent went on to use.
#[test]
fn a_forked_child_lets_go_of_copies_and_has_caches_of_its_own() {
    drop(tiny(0, "lru").scratch(PAGE as u64).unwrap());
    let cache = tiny(0, "lru");
    let scratch = cache.scratch(8 * PAGE as u64).unwrap();
    scratch.write_at(b"parent", 0).unwrap();
    let pinned = scratch.pin(0..6).unwrap();
    // SAFETY: the child has one thread, and no other of the parent's holds a lock of the allocator
    // that the C library does not look after; it ends without destructors of the parent's.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let own = tiny(0, "mru");
        let mine = own.scratch(100 * PAGE as u64).unwrap();
        let mut buf = [0; 100 * PAGE];
        mine.write_all_at(&[7; 100 * PAGE], 0).unwrap();
        drop(pinned);
        mine.read_exact_at(&mut buf, 0).unwrap();
        let wrong = i32::from(buf != [7; 100 * PAGE] || cache.is_here() || !own.is_here());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(wrong) };
    }
    let mut status = 0;
    // Tables that were unused when the child was made are the parent's alone.
    let other = tiny(0, "lru").scratch(100 * PAGE as u64).unwrap();
    for _ in 0..20 {
        other.write_all_at(&[9; 100 * PAGE], 0).unwrap();
        let mut buf = [0; 100 * PAGE];
        other.read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(buf, [9; 100 * PAGE]);
    }
    // SAFETY: waits for the child just made.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0);
    assert!(scratch.attributes(0..1).unwrap()[0].pinned, "the child took the parent's hold");
    assert_eq!(errno(scratch.set_len(0)), Some(EBUSY));
    drop(pinned);
    scratch.set_len(0).unwrap();
}

/// Who made a copy of a handle in a child, or asked a store what it had done, waited for ever for a thread of the
/// parent's that had been within the same thing (a flush) as it forked. A child that had a log put in place wrote
/// to its parent's files.
#[test]
fn a_forked_child_waits_for_no_thread_of_its_parents() {
    let directory = tempfile::tempdir().unwrap();
    let scratch = || FileStore::scratch(directory.path(), 1 << 20).unwrap();
    let cache = builder(1 << 20).build().unwrap();
    let packed = Compressed::new(scratch(), cache.reserve(64 << 10).unwrap(), Codec::Lz4);
    let packed = Arc::new(packed);
    let logged = Arc::new(Logged::open(scratch(), scratch(), 1 << 20).unwrap());
    let mirrored = Arc::new(Mirrored::new(scratch(), scratch()).unwrap());
    let segments = [
        cache.open_store(packed.clone(), "packed").unwrap(),
        cache.open_store(logged.clone(), "logged").unwrap(),
        cache.open_store(mirrored.clone(), "mirrored").unwrap(),
    ];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for segment in &segments {
            threads.spawn(|| {
                for i in 0u64.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let at = i * 7 % 200 * PAGE as u64;
                    segment.write_all_at(&i.to_le_bytes(), at).unwrap();
                    segment.flush().unwrap();
                }
            });
        }
        for _ in 0..300 {
            let failed = in_child(|| {
                // SAFETY: ends a child that stands still.
                unsafe { libc::alarm(20) };
                segments.iter().for_each(|segment| drop(segment.clone()));
                let knows = packed.counts().kept != 0 || logged.log_bytes() != 0;
                let acts = [logged.checkpoint(), mirrored.resync(Side::First)];
                let is_refused = acts.into_iter().all(refused);
                let is_told = mirrored.take_error(Side::First).is_some();
                i32::from(knows || is_told || !is_refused || !mirrored.is_stale(Side::Second))
            });
            if failed != 0 {
                is_over.store(true, Ordering::Relaxed);
            }
            assert_eq!(failed, 0);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
