//! Pages that count as dirty before anybody stored to them: a stream of stores has few faults, and what
//! others wrote to pages that nobody stored to stays.

use crate::fake::{Access, Bus, Rng, World, watched, world::Setup};
use pagekeeper::engine::transfer::Change;
use pagekeeper::port::{FileNo, PAGE_BYTES, PortError, SpaceNo};
use pagekeeper_frames::{Place, Run, Segment};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const BASE: u64 = 0x7000_0000_0000;
const PAGES: u64 = 128;
/// What every cell holds at first.
const FIRST: u64 = u64::from_le_bytes([b'a'; 8]);
type Bytes = fn(u64, &mut [u8]) -> Result<(), PortError>;

/// A file, mapped shared.
struct Mapped {
    world: World,
    file: FileNo,
    space: SpaceNo,
    pages: u64,
}

impl Mapped {
    fn new(setup: &Setup, pages: u64) -> Mapped {
        let world = World::new(setup);
        let file = world.file(vec![b'a'; (pages * PAGE_BYTES) as usize]);
        let space = world.space();
        world.mmap(space, BASE, file, 0, pages, true);
        Mapped { world, file, space, pages }
    }

    /// Whose pages are all in memory, and those up to 32 stored to, so that some behind them may be without
    /// a fault.
    fn stored_to() -> Mapped {
        let mapped = Mapped::new(&Setup { frames: 2 * PAGES as u32, ..Setup::default() }, PAGES);
        (0..PAGES).for_each(|page| assert_eq!(mapped.get(page), FIRST));
        (0..32).for_each(|page| mapped.put(page, page));
        mapped
    }

    /// After a change from outside there may be holes; but there are none.
    fn has_room(&self) {
        let reserved = 0..self.pages;
        self.world.machine.lock().files[self.file as usize].reserved.extend(reserved);
    }

    fn put(&self, page: u64, value: u64) {
        let at = BASE + page * PAGE_BYTES;
        self.world.access(self.space, at, Access::Write(value), 1).unwrap();
    }

    fn get(&self, page: u64) -> u64 {
        self.world.access(self.space, BASE + page * PAGE_BYTES, Access::Read, 1).unwrap()
    }

    fn run(&self, pages: Range<u64>) -> Run {
        let place = Place { segment: Segment(self.file), index: pages.start };
        Run { place, pages: (pages.end - pages.start) as u32, demanded: 0 }
    }

    fn outside(&self, page: u64, value: u64) {
        let at = page * PAGE_BYTES;
        self.world.machine.write_storage(self.file, at, &value.to_le_bytes());
    }

    /// A system call of the program's.
    fn call(&self, page: u64, value: u64) {
        let (engine, offset) = (&self.world.engine, page * PAGE_BYTES);
        let ticket = engine.change_begin(self.file, offset, 8, Change::Write).unwrap();
        self.outside(page, value);
        let give = |_: u64, piece: &mut [u8]| {
            piece.copy_from_slice(&value.to_le_bytes());
            Ok(())
        };
        engine.change_end(self.file, ticket, offset, 8, Some(give));
    }

    fn stored(&self, page: u64) -> u64 {
        self.world.machine.storage_cell(self.file, page * PAGE_BYTES)
    }

    /// The page behind the last that was stored to: a store to it is no fault.
    fn is_writable(&self, page: u64) -> bool {
        let before = self.write_faults();
        self.put(page, FIRST);
        self.write_faults() == before
    }

    fn write_faults(&self) -> u64 {
        self.world.engine.stats().files[self.file as usize].counts.write_faults
    }
}

#[test]
fn stores_in_order_are_few_faults_and_others_writes_behind_them_stay() {
    watched(30, || {
        let mapped = Mapped::stored_to();
        let (engine, machine) = (&mapped.world.engine, &mapped.world.machine);
        assert!(mapped.write_faults() <= 8, "{}", mapped.write_faults());
        assert!(engine.dirty_pages(mapped.file) > 40, "{}", engine.dirty_pages(mapped.file));
        assert!(mapped.is_writable(40));
        mapped.outside(50, 9);
        assert_eq!(engine.flush_all(), []);
        assert_eq!(engine.dirty_pages(mapped.file), 0);
        let stores = machine.lock().files[mapped.file as usize].stores.clone();
        let stored_pages: Vec<u64> = (0..PAGES).filter(|page| stores.contains_key(page)).collect();
        assert_eq!(stored_pages, Vec::from_iter(0..32), "what was stored to, and nothing else");
        (0..32).for_each(|page| assert_eq!(mapped.stored(page), page));
        assert_eq!(mapped.stored(50), 9);
        engine.refresh_size(mapped.file, false);
        assert_eq!(mapped.get(50), 9);
    });
}

#[test]
fn what_others_wrote_to_a_page_that_nobody_stored_to_is_seen() {
    watched(30, || {
        let mapped = Mapped::stored_to();
        mapped.outside(40, 9);
        assert!(mapped.world.engine.refresh_size(mapped.file, false));
        assert_eq!(mapped.get(40), 9);
        assert_eq!(mapped.get(31), 31, "what was stored to is as it was");
        mapped.put(41, 5);
        assert_eq!(mapped.world.engine.flush_all(), []);
        assert_eq!([31, 40, 41].map(|page| mapped.stored(page)), [31, 9, 5]);
    });
}

/// The last of several write-backs looks at the file's times for all. Where nothing was to be written of it,
/// nobody did, and what had been written was taken for somebody else's.
#[test]
fn what_is_written_back_beside_what_nobody_stored_to_is_ours() {
    watched(30, || {
        let mapped = Mapped::stored_to();
        let engine = &mapped.world.engine;
        (80..100).for_each(|page| mapped.put(page, page));
        assert_eq!(engine.flush(mapped.file, 80..100), Ok(()));
        // Behind them, there are some that nobody stored to.
        assert!(engine.is_dirty(mapped.run(100..110)));
        let reads = engine.stats().files[mapped.file as usize].counts.read_bytes;
        assert_eq!(engine.flush_all(), []);
        assert!(!engine.refresh_size(mapped.file, false), "nobody else was there");
        assert!((0..PAGES).all(|page| mapped.get(page) == mapped.stored(page)));
        assert_eq!(engine.stats().files[mapped.file as usize].counts.read_bytes, reads);
    });
}

/// A page holds again what it held when it began to count as dirty; storage does not.
#[test]
fn what_a_call_wrote_is_undone_by_a_store_of_what_was_there() {
    watched(30, || {
        let mapped = Mapped::stored_to();
        mapped.call(40, 9);
        assert_eq!(mapped.get(40), 9);
        mapped.put(40, FIRST);
        assert_eq!(mapped.world.engine.flush_all(), []);
        assert_eq!(mapped.stored(40), FIRST);
    });
}

/// Who overwrites something by a call says so as long as pages are presumed dirty, which costs a message.
#[test]
fn calls_end_what_is_presumed_and_many_for_good() {
    watched(30, || {
        let mapped = Mapped::stored_to();
        let engine = &mapped.world.engine;
        for round in 0..10 {
            let is_presumed = engine.dirty_pages(mapped.file) > 32;
            assert_eq!(is_presumed, round < 4, "round {round}");
            mapped.call(100, round);
            assert_eq!(engine.dirty_pages(mapped.file), 32);
            assert_eq!(engine.flush_all(), []);
            (0..32).for_each(|page| mapped.put(page, round));
        }
        assert_eq!(engine.flush_all(), []);
        (0..32).for_each(|page| assert_eq!(mapped.stored(page), 9));
    });
}

#[test]
fn a_full_disk_is_an_error_at_the_store() {
    watched(30, || {
        let world = World::new(&Setup { frames: 2 * PAGES as u32, ..Setup::default() });
        let file = world.file_with_holes(vec![b'a'; (PAGES * PAGE_BYTES) as usize], true);
        let space = world.space();
        world.mmap(space, BASE, file, 0, PAGES, true);
        let mapped = Mapped { world, file, space, pages: PAGES };
        (0..PAGES).for_each(|page| assert_eq!(mapped.get(page), FIRST));
        {
            let held = &mut mapped.world.machine.lock().files[file as usize];
            held.reserved.extend(0..24);
            held.full.extend(24..PAGES);
        }
        (0..24).for_each(|page| mapped.put(page, page));
        assert!(mapped.write_faults() <= 12, "{}", mapped.write_faults());
        let at = BASE + 24 * PAGE_BYTES;
        assert_eq!(mapped.world.access(space, at, Access::Write(1), 1), Err(Bus));
        assert_eq!(mapped.world.engine.dirty_pages(file), 24);
        assert_eq!(mapped.world.engine.flush_all(), []);
        (0..24).for_each(|page| assert_eq!(mapped.stored(page), page));
    });
}

/// Pages of a file that does not fit are stored to, again and again.
#[test]
fn pages_that_come_ahead_of_stores_are_no_faults() {
    const PASSES: u64 = 4;
    watched(60, || {
        let setup = Setup { frames: 2048, slack: None, ..Setup::default() };
        let mapped = Mapped::new(&setup, 3000);
        mapped.has_room();
        let nobodys = |page: &u64| page % 64 == 63;
        for pass in 1..=PASSES {
            for page in (0..mapped.pages).filter(|page| !nobodys(page)) {
                mapped.put(page, pass);
            }
            for page in (0..mapped.pages).filter(nobodys) {
                mapped.outside(page, pass);
            }
            mapped.world.engine.refresh_size(mapped.file, false);
        }
        assert_eq!(mapped.world.engine.flush_all(), []);
        (0..mapped.pages).for_each(|page| assert_eq!(mapped.stored(page), PASSES, "{page}"));
        let faults = mapped.write_faults();
        assert!(faults < PASSES * mapped.pages / 8, "{faults}");
    });
}

#[test]
fn a_file_cut_off_and_made_longer_has_zeros_there() {
    watched(30, || {
        let mapped = Mapped::stored_to();
        let (engine, machine, file) = (&mapped.world.engine, &mapped.world.machine, mapped.file);
        for bytes in [40 * PAGE_BYTES, PAGES * PAGE_BYTES] {
            let ticket = engine.change_begin(file, bytes, u64::MAX, Change::Truncate).unwrap();
            machine.set_storage_len(file, bytes);
            engine.change_end(file, ticket, bytes, u64::MAX, None::<Bytes>);
        }
        assert_eq!([31, 39, 40, 60].map(|page| mapped.get(page)), [31, FIRST, 0, 0]);
        mapped.put(40, FIRST);
        assert_eq!(engine.flush_all(), []);
        assert_eq!([39, 40, 60].map(|page| mapped.stored(page)), [FIRST, FIRST, 0]);
    });
}

/// A program stores in order to most pages, another one's calls write to some, and somebody outside to pages
/// of his own among them, while pages come, go and are written back. Whatever was written last is stored.
#[test]
fn streams_of_stores_neither_lose_nor_undo_anything() {
    for (seed, frames, pages, policy) in [
        (1, 24, 128, "lru"),
        (2, 48, 128, "mru"),
        (3, 200, 128, "lru"),
        (4, 80, 128, "clock"),
        (5, 1024, 1600, "lru"),
    ] {
        watched(90, move || {
            let setup = Setup { seed, frames, policy, slack: None, ..Setup::default() };
            let mapped = Arc::new(Mapped::new(&setup, pages));
            mapped.has_room();
            // As with fanotify, and without.
            let is_told = seed % 2 == 1;
            if is_told {
                mapped.world.engine.hears(mapped.file);
            }
            let chaos = &mapped.world.machine.chaos;
            chaos.set(&chaos.delay, 50);
            chaos.set(&chaos.under_way, 20);
            let is_over = Arc::new(AtomicBool::new(false));
            // Of 16 pages the last two are written to from outside, and the one before by calls.
            let others = {
                let (mapped, is_over) = (mapped.clone(), is_over.clone());
                std::thread::spawn(move || {
                    let mut rng = Rng(seed + 100);
                    let mut values = vec![FIRST; pages as usize];
                    let mut turn = 0;
                    while !is_over.load(SeqCst) {
                        turn += 1;
                        let value = if rng.one_in(3) { FIRST } else { turn };
                        let page = rng.below(pages / 16) * 16 + 13 + rng.below(3);
                        if page % 16 == 13 {
                            mapped.call(page, value);
                        } else {
                            mapped.outside(page, value);
                            if is_told {
                                mapped.world.engine.changed_outside(mapped.file);
                            }
                        }
                        values[page as usize] = value;
                        if rng.one_in(2) {
                            assert_eq!(mapped.world.engine.flush_all(), []);
                        }
                        mapped.world.engine.refresh_size(mapped.file, false);
                        std::thread::sleep(Duration::from_micros(rng.below(2000)));
                    }
                    values
                })
            };
            let mut values = vec![FIRST; pages as usize];
            let mut rng = Rng(seed);
            for turn in 1..32_000 / pages {
                let first = rng.below(pages / 16) * 16;
                for page in first..pages {
                    if page % 16 < 13 && !rng.one_in(16) {
                        // What was there at first comes back now and then.
                        let value = if rng.one_in(3) { FIRST } else { turn };
                        mapped.put(page, value);
                        values[page as usize] = value;
                    } else if page % 16 < 13 {
                        assert_eq!(mapped.get(page), values[page as usize], "page {page}");
                    }
                }
            }
            is_over.store(true, SeqCst);
            let theirs = others.join().unwrap();
            let last_of = |page: u64| if page % 16 < 13 { &values } else { &theirs }[page as usize];
            assert_eq!(mapped.world.engine.flush_all(), []);
            (0..pages).for_each(|page| assert_eq!(mapped.stored(page), last_of(page), "{page}"));
            if !is_told {
                // What they wrote beside a write-back passed for a part of it, until the file's next change.
                mapped.outside(14, theirs[14]);
            }
            mapped.world.engine.refresh_size(mapped.file, false);
            (0..pages).for_each(|page| assert_eq!(mapped.get(page), last_of(page), "{page}"));
        });
    }
}
