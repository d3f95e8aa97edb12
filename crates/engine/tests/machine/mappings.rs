//! Mappings that come, go, and come again, against what the engine knows of them.

use crate::fake::{Access, World, watched, world::Setup};
use pagekeeper::port::{FileNo, PAGE_BYTES};
use std::sync::Arc;

const BASE: u64 = 0x7000_0000_0000;

/// A program that maps a file anew for each of its passes took a fault for every sixteen pages that
/// were in memory all the time.
#[test]
fn a_file_that_is_mapped_again_costs_few_faults() {
    const PAGES: u64 = 1024;
    watched(60, || {
        let world = World::new(&Setup { frames: 1100, handlers: 0, ..Setup::default() });
        let file = world.file(vec![b'a'; (PAGES * PAGE_BYTES) as usize]);
        let space = world.space();
        let mapped = |world: &World| world.machine.lock().space(space).unwrap().ptes.len();
        let late = std::cell::Cell::new(0);
        let pass = || {
            world.mmap(space, BASE, file, 0, PAGES, true);
            let faults = (0..PAGES).filter(|page| {
                let addr = BASE + page * PAGE_BYTES;
                let faults = !world.is_mapped(space, addr);
                assert_eq!(world.access(space, addr, Access::Read, 1), Ok(0x6161_6161_6161_6161));
                if faults {
                    let when_woken = world.machine.lock().mapped_when_woken;
                    late.set(late.get() + mapped(&world) - when_woken);
                }
                faults
            });
            let faults = faults.count();
            world.munmap(space, BASE..BASE + PAGES * PAGE_BYTES);
            faults
        };
        pass();
        late.set(0);
        for _ in 0..2 {
            let faults = pass();
            // 16, 64, 256 and 512 pages, and the rest.
            assert!(faults <= 5, "{faults} faults");
        }
        // A program that ran on as soon as its own page was mapped came to the next ones before they
        // were: each such fault became two.
        assert_eq!(late.get(), 0, "pages mapped after the program was woken");
        // Touches in any other order take what lies around them.
        world.mmap(space, BASE, file, 0, PAGES, true);
        for page in [900, 100, 500] {
            let addr = BASE + page * PAGE_BYTES;
            assert!(world.access(space, addr, Access::Read, 1).is_ok());
            let mapped = (0..PAGES).filter(|p| world.is_mapped(space, BASE + p * PAGE_BYTES));
            assert!(mapped.count() <= 48);
            assert!(world.is_mapped(space, BASE + (page / 16 * 16) * PAGE_BYTES));
        }
    });
}

/// A fault where nothing was known to be mapped is looked up in the address space itself. While what
/// was seen there is entered, the program may map another file there: it was entered over that one
/// then, and stores went to pages that nobody wrote back.
#[test]
fn what_is_mapped_while_an_address_is_looked_up_counts() {
    watched(60, || {
        let world = Arc::new(World::new(&Setup::default()));
        let [old, new] = [b'a', b'b'].map(|fill| world.file(vec![fill; 16 * PAGE_BYTES as usize]));
        let space = world.space();
        // All of the new one is in memory.
        world.mmap(space, 2 * BASE, new, 0, 16, true);
        for page in 0..16 {
            world.access(space, 2 * BASE + page * PAGE_BYTES, Access::Read, 1).unwrap();
        }
        world.mmap_unseen(space, BASE, old, 16);
        let (others, changed) = (world.clone(), std::sync::mpsc::channel());
        *world.machine.after_look.lock().unwrap() = Some(Box::new(move || {
            let (begun, began) = std::sync::mpsc::channel();
            let thread = std::thread::spawn(move || {
                begun.send(()).unwrap();
                others.munmap(space, BASE..BASE + 16 * PAGE_BYTES);
                others.mmap(space, BASE, new, 0, 16, true);
            });
            began.recv().unwrap();
            // Long enough for it to be done, unless it has to wait.
            std::thread::sleep(std::time::Duration::from_millis(50));
            changed.0.send(thread).unwrap();
        }));
        let _ = world.access(space, BASE, Access::Read, 1);
        changed.1.recv().unwrap().join().unwrap();
        for page in 0..16 {
            world.access(space, BASE + page * PAGE_BYTES, Access::Write(page), 1).unwrap();
        }
        assert_eq!(world.engine.flush_all(), []);
        let state = world.machine.lock();
        for page in 0..16usize {
            let at = page * PAGE_BYTES as usize;
            let word = |file: FileNo| state.files[file as usize].storage[at..at + 8].to_vec();
            assert_eq!(word(new), (page as u64).to_le_bytes(), "page {page}");
            assert_eq!(word(old), [b'a'; 8], "page {page}");
        }
    });
}

/// What a private mapping grew by could not be made writable, when nobody had the file open to write: whether
/// it may be was guessed, though the rest of the mapping was known.
#[test]
fn what_a_mapping_grew_by_is_as_the_rest_of_it() {
    watched(60, || {
        for seed in 0..8 {
            let world = Arc::new(World::new(&Setup { seed, ..Setup::default() }));
            let file = world.file(vec![b'a'; 32 * PAGE_BYTES as usize]);
            let space = world.space();
            world.mmap(space, BASE, file, 0, 16, false);
            world.access(space, BASE, Access::Write(1), 1).unwrap();
            let copies = |world: &World| world.engine.space(space).unwrap().private;
            let copied = copies(&world);
            assert!(copied.contains(&BASE));
            world.grow_unseen(space, BASE, 16);
            // Several threads find it at the same time.
            std::thread::scope(|threads| {
                for tid in 1..4 {
                    let addr = BASE + (16 + tid) * PAGE_BYTES;
                    let world = &world;
                    threads.spawn(move || world.access(space, addr, Access::Read, tid as u32));
                }
            });
            let known = world.engine.space(space).unwrap();
            let region = known.region(BASE).unwrap();
            assert!(!region.read_only);
            assert!(known.covers(BASE..BASE + 32 * PAGE_BYTES, region), "{:?}", known.regions);
            assert_eq!(copies(&world), copied, "they are the program's own still");
        }
    });
}

/// A thread may wait for a page where another unmaps it: the kernel tells that thread nothing, and what
/// was fetched for it had nowhere to be mapped. It waited for ever.
#[test]
fn who_waits_for_what_is_unmapped_is_woken() {
    watched(60, || {
        for seed in 0..8 {
            let world = Arc::new(World::new(&Setup { seed, ..Setup::default() }));
            let file = world.file(vec![b'a'; 64 * PAGE_BYTES as usize]);
            world.engine.read_around(file, false);
            let space = world.space();
            for page in 0..64 {
                world.mmap(space, BASE, file, 0, 64, true);
                let others = world.clone();
                let thread = std::thread::spawn(move || {
                    others.access(space, BASE + page * PAGE_BYTES, Access::Read, 1)
                });
                std::thread::sleep(std::time::Duration::from_micros(40 * (page % 8)));
                world.munmap(space, BASE..BASE + 64 * PAGE_BYTES);
                let seen = thread.join().unwrap();
                assert!(matches!(seen, Ok(0x6161_6161_6161_6161) | Err(_)), "{seen:?}");
            }
        }
    });
}

/// A page is about to be written back, and its mapping moves away, and back when that was found not to be
/// there. The list of mappings was the same as before: the page passed for clean, and who stored to it did so
/// unnoticed.
#[test]
fn what_moves_away_and_back_is_protected_before_its_page_is_clean() {
    watched(60, || {
        let world = Arc::new(World::new(&Setup { handlers: 0, ..Setup::default() }));
        let file = world.file(vec![b'a'; 16 * PAGE_BYTES as usize]);
        let space = world.space();
        world.mmap(space, BASE, file, 0, 16, true);
        let store = |value| world.access(space, BASE, Access::Write(value), 1).unwrap();
        store(1);
        let mover = world.clone();
        *world.machine.around_protect.lock().unwrap() = Some(Box::new(move || {
            mover.mremap(space, BASE, 2 * BASE, 16 * PAGE_BYTES);
            Box::new(move || mover.mremap(space, 2 * BASE, BASE, 16 * PAGE_BYTES))
        }));
        assert_eq!(world.engine.flush_all(), []);
        assert!(world.machine.around_protect.lock().unwrap().is_none());
        store(2);
        assert_eq!(world.engine.flush_all(), []);
        let state = world.machine.lock();
        assert_eq!(state.files[file as usize].storage[..8], 2u64.to_le_bytes());
    });
}
