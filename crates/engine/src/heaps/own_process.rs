//! Tests in which this very process is the program whose heap memory is managed.
#![allow(unsafe_code)]

use super::*;
use crate::engine::spaces::Space;
use crate::heaps::ranges::ROOM;
use crate::manager::tests::manager;
use pagekeeper_sys::userfault::{Features, OpenFlags, Userfault};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// A manager of this process's heap memory, and the number of the space; none where no userfaultfd is to
/// be had.
fn managed() -> Option<(Arc<Manager>, SpaceNo, u32)> {
    let manager = manager();
    let scratch = Scratch::create(&std::env::temp_dir(), None).unwrap();
    manager.manage_heaps(scratch);
    let flags = OpenFlags { nonblocking: true, user_mode_only: true };
    // SAFETY: only memory is registered to which nobody has a reference, and nobody touches it.
    let userfault = unsafe { Userfault::open(flags) }.ok()?;
    let events = Features::EVENT_REMAP | Features::EVENT_UNMAP | Features::EVENT_REMOVE;
    let faults = Features::MINOR_SHMEM | Features::WP_HUGETLBFS_SHMEM;
    userfault.api(events | faults).ok()?;
    let pid = std::process::id();
    let space = manager.add_space(userfault, pid, Space::default()).unwrap();
    Some((manager, space, pid))
}

/// Maps memory, at this address if it is not 0; where it is.
fn map(at: usize, bytes: usize, kind: i32, fd: i32, offset: u64) -> usize {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    let protection = if fd < 0 { libc::PROT_NONE } else { libc::PROT_READ | libc::PROT_WRITE };
    let flags = kind | fixed | libc::MAP_NORESERVE;
    // SAFETY: memory that is new, or replaces some that the caller made so and has no reference to.
    let mapped = unsafe {
        libc::mmap(at as *mut _, bytes, protection, flags, fd, offset.try_into().unwrap())
    };
    assert_ne!(mapped, libc::MAP_FAILED);
    mapped as usize
}

/// Where memory was unmapped as other threads moved theirs, what is mapped was listed at any time, and
/// memory that was on its way was missed: its pages were dropped, and were zeros.
#[test]
fn what_moves_while_mappings_are_looked_at_is_not_dropped() {
    const PAGES: u64 = 16;
    const BETWEEN: usize = 4000;
    // Not where other threads are given memory: they would be given the place that was just left.
    const FAR: usize = 0x2000_0000_0000;
    let Some((manager, space, pid)) = managed() else { return };
    let (engine, bytes) = (&manager.engine, (PAGES * PAGE_BYTES) as usize);
    let (offset, memfd) = manager.heap_map(pid, bytes as u64).unwrap().expect("managed");
    let no = manager.heaps.of(space).expect("it has one");
    let pages = offset / PAGE_BYTES..offset / PAGE_BYTES + PAGES;

    // Two places, and many mappings between them, which take a while to be listed.
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let room_bytes = 2 * bytes + 2 * BETWEEN * PAGE_BYTES as usize;
    let low = map(FAR, room_bytes, private, -1, 0);
    let high = low + room_bytes - bytes;
    for i in 0..BETWEEN {
        let at = low + bytes + 2 * i * PAGE_BYTES as usize;
        map(at, PAGE_BYTES as usize, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0);
    }
    map(low, bytes, libc::MAP_SHARED, memfd.as_raw_fd(), offset);
    manager.heap_commit(pid, low as u64, bytes as u64, offset).unwrap();

    let (moving, reading) = (AtomicBool::new(true), AtomicBool::new(true));
    std::thread::scope(|scope| {
        scope.spawn(|| manager.event_loop(&|| !reading.load(Ordering::SeqCst)));
        scope.spawn(|| manager.work_loop());
        let mover = scope.spawn(|| {
            let (mut from, mut to) = (low, high);
            while moving.load(Ordering::SeqCst) || from != low {
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                // SAFETY: from one place of the room to another, to neither of which is a reference.
                let moved = unsafe {
                    libc::mremap(from as *mut _, bytes, bytes, flags, to as *mut libc::c_void)
                };
                assert_eq!(moved as usize, to);
                std::mem::swap(&mut from, &mut to);
            }
        });
        let mut dropped = 0;
        for _ in 0..200 {
            let orphans = {
                let _order = manager.mapping_order.lock().unwrap();
                // What changes look like that cross each other: one that came alone is what it looks like.
                engine.unmapped(space, 0..u64::MAX);
                engine.unmapped(space, 0..PAGE_BYTES);
                engine.take_orphans()
            };
            for orphan in orphans {
                manager.drop_orphan(&orphan);
                dropped += u32::from(engine.heap_unused(no, pages.clone()));
            }
        }
        moving.store(false, Ordering::SeqCst);
        let moved = mover.join();
        // SAFETY: nobody has a reference to any of it.
        unsafe { libc::munmap(low as *mut _, room_bytes) };
        reading.store(false, Ordering::SeqCst);
        manager.workers.close();
        moved.unwrap();
        assert_eq!(dropped, 0, "how often memory was dropped that is mapped");
    });
}

/// From 16 TiB on, ranges with their room to grow, a process's allocations were the kernel's, and nobody
/// was told.
#[test]
fn whose_heap_is_full_is_told() {
    const LARGEST_BYTES: u64 = ALLOCATION_PAGES_MAX * PAGE_BYTES;
    let Some((manager, _, pid)) = managed() else { return };
    let given = |bytes| manager.heap_map(pid, bytes).unwrap().map(|(offset, _)| offset);
    let most = PAGES_MAX * PAGE_BYTES / (ROOM * LARGEST_BYTES);
    assert!((0..most).all(|_| given(LARGEST_BYTES).is_some()));
    assert_eq!(manager.remarks().1, []);
    for _ in 0..2 {
        assert_eq!(given(PAGE_BYTES), None);
    }
    let (_, passed) = manager.remarks();
    assert!(passed.len() == 1 && passed[0].name.starts_with("heap:1 ("), "{passed:?}");
    assert!(passed[0].reason.contains("16 TiB"), "{passed:?}");

    manager.heap_give_back(pid, 0, LARGEST_BYTES).unwrap();
    manager.workers.close();
    manager.work_loop();
    assert_eq!(given(PAGE_BYTES), Some(0));
}
