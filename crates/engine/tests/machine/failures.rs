//! Storage, memory and processes that fail: what a program still gets, and what is kept.

use crate::fake::{Access, Bus, CELLS_PER_PAGE, Rng, World, cell_offset, watched, world::Setup};
use pagekeeper::engine::core::Fault;
use pagekeeper::engine::transfer::Change;
use pagekeeper::port::{FileNo, PAGE_BYTES, PortError, SpaceNo};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const BASE: u64 = 0x7000_0000_0000;
const EIO: PortError = PortError::Io(5);
type Bytes = fn(u64, &mut [u8]) -> Result<(), PortError>;

/// A file whose cells hold their numbers plus one, mapped shared in one space.
struct Simple {
    world: World,
    file: FileNo,
    space: SpaceNo,
    pages: u64,
}

fn numbered(pages: u64) -> Vec<u8> {
    let mut storage = vec![0; (pages * PAGE_BYTES) as usize];
    for cell in 0..pages * CELLS_PER_PAGE {
        let at = cell_offset(cell) as usize;
        storage[at..at + 8].copy_from_slice(&(cell + 1).to_le_bytes());
    }
    storage
}

impl Simple {
    fn new(setup: &Setup, pages: u64) -> Simple {
        Simple::with_holes(setup, pages, false)
    }

    fn with_holes(setup: &Setup, pages: u64, holes: bool) -> Simple {
        let world = World::new(setup);
        let file = world.file_with_holes(numbered(pages), holes);
        let space = world.space();
        world.mmap(space, BASE, file, 0, pages, true);
        Simple { world, file, space, pages }
    }

    fn read(&self, page: u64) -> Result<u64, Bus> {
        self.world.access(self.space, BASE + page * PAGE_BYTES, Access::Read, 1)
    }

    fn write(&self, page: u64, value: u64) -> Result<u64, Bus> {
        self.world.access(self.space, BASE + page * PAGE_BYTES, Access::Write(value), 1)
    }

    fn with_file(&self, f: impl FnOnce(&mut crate::fake::machine::FakeFile)) {
        f(&mut self.world.machine.lock().files[self.file as usize]);
    }

    fn stored(&self, page: u64) -> u64 {
        self.world.machine.storage_cell(self.file, page * PAGE_BYTES)
    }

    fn rest(&self) {
        while !self.world.engine.describe().is_empty() {
            std::thread::yield_now();
        }
    }
}

fn first_value(page: u64) -> u64 {
    page * CELLS_PER_PAGE + 1
}

#[test]
fn sixty_four_threads_on_one_absent_page_cause_one_load() {
    for handlers in [0, 1, 4] {
        watched(30, move || {
            let setup = Setup { handlers, frames: 8, ..Setup::default() };
            let simple = Arc::new(Simple::new(&setup, 4));
            let chaos = &simple.world.machine.chaos;
            chaos.set(&chaos.delay, 500);
            let threads: Vec<_> = (0..64)
                .map(|tid| {
                    let simple = simple.clone();
                    std::thread::spawn(move || {
                        let addr = BASE + 2 * PAGE_BYTES;
                        simple.world.access(simple.space, addr, Access::Read, 100 + tid)
                    })
                })
                .collect();
            for thread in threads {
                assert_eq!(thread.join().unwrap(), Ok(first_value(2)));
            }
            simple.with_file(|f| assert_eq!(f.loads[&2], 1));
            assert_eq!(simple.world.engine.stats().total.major_faults, 1);
        });
    }
}

/// Pages that several threads wait for are asked for together, each once. One that cannot be had is an error
/// for who waits for it alone, and who stores is served after the others.
#[test]
fn pages_of_faults_that_come_together_are_asked_for_together() {
    watched(30, || {
        let setup = Setup { handlers: 0, frames: 16, ..Setup::default() };
        let simple = Simple::new(&setup, 400);
        let engine = &simple.world.engine;
        let touch = |page: u64, write| {
            let (space, addr) = (simple.space, BASE + page * PAGE_BYTES);
            Fault { space, addr, write, protected: false, tid: page as u32, told: 0 }
        };
        // So that memory is full of clean pages, of which some have to leave.
        (0..16).for_each(|page| assert_eq!(simple.read(10 * page), Ok(first_value(10 * page))));
        simple.with_file(|f| {
            f.together.clear();
            f.bad_loads = [307].into();
        });
        let faults = [301, 303, 307, 303, 311].map(|page| touch(page, false)).to_vec();
        engine.serve_together([faults, vec![touch(350, true)]].concat());
        simple.with_file(|f| {
            assert_eq!(f.together, [[301, 303, 307, 311]]);
            assert_eq!((f.loads[&301], f.loads[&303], f.loads[&350]), (1, 1, 1));
        });
        for page in [301, 303, 311, 350] {
            assert!(simple.world.is_mapped(simple.space, BASE + page * PAGE_BYTES), "{page}");
            assert_eq!(simple.read(page), Ok(first_value(page)));
        }
        assert_eq!(simple.read(307), Err(Bus));
        // A single one is no batch.
        engine.serve_together(vec![touch(390, false)]);
        simple.with_file(|f| assert_eq!((f.together.len(), f.loads[&390]), (1, 1)));
    });
}

/// Where pages are protected only after they were mapped, another thread's store in between raises
/// no fault. The page would count as clean, and leave as that.
#[test]
fn a_store_before_its_page_is_protected_makes_it_dirty() {
    watched(30, || {
        let setup = Setup { handlers: 0, frames: 8, ..Setup::default() };
        let simple = Simple::new(&setup, 40);
        let machine = &simple.world.machine;
        machine.chaos.late.store(true, Ordering::Relaxed);
        let (space, addr) = (simple.space, BASE + 2 * PAGE_BYTES);
        *machine.after_map.lock().unwrap() = Some(Box::new(move |machine| {
            let stored =
                machine.access(space, addr, Access::Write(77), 2, &|_| panic!("it is mapped"));
            assert_eq!(stored, Ok(77));
        }));
        assert_eq!(simple.read(2), Ok(77));
        assert_eq!(simple.world.engine.dirty_pages(simple.file), 1);
        assert_eq!(simple.read(3), Ok(first_value(3)));
        assert_eq!(simple.world.engine.dirty_pages(simple.file), 1, "the other is clean");
        for page in 10..40 {
            simple.read(page).unwrap();
        }
        simple.rest();
        assert_eq!(simple.stored(2), 77, "it was written back before it left");
        assert_eq!(simple.read(2), Ok(77));
    });
}

/// A job that evicts more than it fetches may be overtaken by one that uses the room: for as long
/// as an eviction takes, its pages are in use beyond the budget.
const OVERTAKEN_PAGES: usize = 4;

#[test]
fn the_budget_holds_at_every_moment() {
    for (policy, frames) in [("lru", 8), ("mru", 16), ("clock", 40), ("random", 64)] {
        watched(60, move || {
            let slack = Some(OVERTAKEN_PAGES);
            let setup = Setup { policy, frames, handlers: 3, slack, ..Setup::default() };
            let simple = Arc::new(Simple::new(&setup, 150));
            let chaos = &simple.world.machine.chaos;
            chaos.set(&chaos.delay, 200);
            let threads: Vec<_> = (0..4u64)
                .map(|t| {
                    let simple = simple.clone();
                    std::thread::spawn(move || {
                        let mut rng = Rng(t);
                        for step in 0..900 {
                            let page = if t % 2 == 0 { step % 150 } else { rng.below(150) };
                            let cell = page * CELLS_PER_PAGE + t;
                            let addr = BASE + cell_offset(cell);
                            let what =
                                if rng.one_in(4) { Access::Write(cell + 1) } else { Access::Read };
                            let got = simple.world.access(simple.space, addr, what, 10 + t as u32);
                            assert_eq!(got, Ok(cell + 1));
                        }
                    })
                })
                .collect();
            assert!(threads.into_iter().all(|t| t.join().is_ok()));
            simple.rest();
            let state = simple.world.machine.lock();
            assert!(state.frames() <= frames as usize, "in use at rest: {}", state.frames());
            assert!(state.frames_max >= frames as usize / 2, "most: {}", state.frames_max);
        });
    }
}

#[test]
fn a_page_that_cannot_be_read_fails_its_own_accesses_only() {
    watched(30, || {
        let simple = Simple::new(&Setup { frames: 400, ..Setup::default() }, 200);
        let other = simple.world.space();
        simple.world.mmap(other, BASE, simple.file, 0, 200, true);
        simple.with_file(|f| f.bad_loads = [50, 120].into());
        // A scan reads ahead over the bad pages.
        for page in 0..simple.pages {
            let bad = page == 50 || page == 120;
            let expected = if bad { Err(Bus) } else { Ok(first_value(page)) };
            assert_eq!(simple.read(page), expected, "page {page}");
        }
        assert_eq!(simple.world.engine.stats().failed_faults, 2);
        let read = |page: u64, bytes| {
            let (mut got, engine) = (0, &simple.world.engine);
            engine.read(simple.file, page * PAGE_BYTES, bytes, |piece, _| {
                got += piece.len() as u64;
                Ok(())
            })
        };
        assert_eq!(read(50, 8), Err(EIO));
        assert_eq!(read(48, 5 * PAGE_BYTES), Ok(2 * PAGE_BYTES), "what comes before it is read");
        // A failed read is no failed write.
        assert_eq!(simple.world.engine.flush(simple.file, 0..200), Ok(()));
        simple.with_file(|f| f.bad_loads.clear());
        assert_eq!(read(50, 8), Ok(8));
        let elsewhere =
            |page| simple.world.access(other, BASE + page * PAGE_BYTES, Access::Read, 2);
        assert_eq!(elsewhere(50), Ok(first_value(50)), "nobody else was told");
        assert_eq!(elsewhere(120), Ok(first_value(120)), "storage has recovered");
    });
}

#[test]
fn what_cannot_be_written_stays_and_is_written_later() {
    for policy in ["lru", "mru", "fifo2"] {
        watched(30, move || {
            let setup = Setup { policy, frames: 32, slack: None, ..Setup::default() };
            let simple = Simple::new(&setup, 60);
            let bad = [3u64, 4, 17, 30];
            simple.with_file(|f| f.bad_stores = bad.into());
            for page in 0..60 {
                assert_eq!(simple.write(page, 1000 + page), Ok(1000 + page));
            }
            for round in 0..3 {
                for page in 0..60 {
                    assert_eq!(simple.read(page), Ok(1000 + page), "round {round}");
                }
            }
            let engine = &simple.world.engine;
            assert_eq!(engine.flush(simple.file, 0..60), Err(EIO));
            assert_eq!(engine.dirty_pages(simple.file), bad.len() as u64, "all others are written");
            for page in (0..60).filter(|p| !bad.contains(p)) {
                assert_eq!(simple.stored(page), 1000 + page);
            }
            assert_eq!(engine.flush(simple.file, 10..16), Ok(()), "reported once");
            simple.with_file(|f| f.bad_stores.clear());
            assert_eq!(engine.flush(simple.file, 0..60), Ok(()));
            for page in 0..60 {
                assert_eq!(simple.stored(page), 1000 + page);
                assert_eq!(simple.read(page), Ok(1000 + page));
            }
            simple.rest();
        });
    }
}

/// Dirty pages that could not be written once filled memory for good, though storage had
/// recovered: nobody tried again until the program synced.
#[test]
fn memory_full_of_unwritable_pages_recovers_by_itself() {
    watched(30, || {
        let setup = Setup { frames: 16, slack: None, ..Setup::default() };
        let simple = Simple::new(&setup, 60);
        simple.with_file(|f| f.bad_stores = (0..60).collect());
        for page in 0..40 {
            assert_eq!(simple.write(page, 1000 + page), Ok(1000 + page));
        }
        simple.with_file(|f| f.bad_stores.clear());
        for _ in 0..4 {
            for page in 0..60 {
                let expected = if page < 40 { 1000 + page } else { first_value(page) };
                assert_eq!(simple.read(page), Ok(expected));
            }
        }
        simple.rest();
        let frames = simple.world.machine.lock().frames();
        assert!(frames <= 16, "{frames} frames in use after storage recovered");
    });
}

/// Everybody who needed a frame waited for the storage of somebody else's dirty page.
#[test]
fn storage_that_stands_still_holds_up_nobody_else() {
    for policy in ["lru", "mru", "clock"] {
        watched(30, move || {
            let setup = Setup { policy, frames: 24, slack: None, ..Setup::default() };
            let simple = Simple::new(&setup, 40);
            let (world, engine) = (&simple.world, &simple.world.engine);
            let (other, reader) = (world.file(numbered(60)), world.space());
            world.mmap(reader, BASE, other, 0, 60, false);
            simple.with_file(|f| f.stands_still = true);
            // No more become dirty than half of the frames.
            let written = 10;
            for page in 0..written {
                assert_eq!(simple.write(page, 1000 + page), Ok(1000 + page));
            }
            for round in 0..3 {
                for page in 0..60 {
                    let read = world.access(reader, BASE + page * PAGE_BYTES, Access::Read, 2);
                    assert_eq!(read, Ok(first_value(page)), "round {round}");
                }
                assert_eq!(engine.write_behind(), Ok(()));
                assert_eq!(engine.dirty_pages(simple.file), written, "round {round}");
            }
            std::thread::scope(|scope| {
                let flushing = scope.spawn(|| engine.flush(simple.file, 0..40));
                std::thread::sleep(Duration::from_millis(20));
                assert!(!flushing.is_finished(), "nothing is written");
                simple.with_file(|f| f.stands_still = false);
                assert_eq!(flushing.join().unwrap(), Ok(()));
            });
            for page in 0..written {
                assert_eq!(
                    (simple.stored(page), simple.read(page)),
                    (1000 + page, Ok(1000 + page))
                );
            }
            simple.rest();
        });
    }
}

/// A write-back that failed was told at the end of a run although a later one had made it good: as content
/// that is lost, with the exit code of that.
#[test]
fn an_error_that_was_made_good_is_none_of_the_end() {
    watched(30, || {
        let simple = Simple::new(&Setup { frames: 8, slack: None, ..Setup::default() }, 40);
        let engine = &simple.world.engine;
        simple.with_file(|f| f.bad_stores = [0].into());
        simple.write(0, 7).unwrap();
        assert_eq!(engine.write_behind(), Err(EIO));
        assert_eq!(engine.flush_all().len(), 1, "it cannot be written still");
        assert_eq!(engine.errors_untold(), [], "and that was told");
        assert_eq!(engine.write_behind(), Err(EIO));
        simple.with_file(|f| f.bad_stores.clear());
        assert_eq!((engine.flush_all(), simple.stored(0)), (vec![], 7));
        let untold: Vec<_> = engine.errors_untold().into_iter().map(|(_, error)| error).collect();
        assert_eq!(untold, [EIO]);
    });
}

#[test]
fn an_error_met_by_an_eviction_is_reported_once() {
    watched(30, || {
        let simple = Simple::new(&Setup { frames: 8, slack: None, ..Setup::default() }, 40);
        simple.with_file(|f| f.bad_stores = [0].into());
        simple.write(0, 7).unwrap();
        for page in 1..40 {
            simple.read(page).unwrap();
        }
        simple.with_file(|f| f.bad_stores.clear());
        let engine = &simple.world.engine;
        assert_eq!(engine.flush(simple.file, 0..40), Err(EIO), "somebody must hear of it");
        assert_eq!(simple.stored(0), 7, "though it is written now");
        assert_eq!(engine.flush(simple.file, 0..40), Ok(()));
    });
}

#[test]
fn a_full_disk_is_an_error_at_the_store() {
    watched(30, || {
        let simple = Simple::with_holes(&Setup::default(), 20, true);
        simple.with_file(|f| f.full = [5, 6].into());
        assert_eq!(simple.write(4, 1), Ok(1));
        assert_eq!(simple.write(5, 1), Err(Bus), "absent page");
        assert_eq!(simple.read(6), Ok(first_value(6)));
        assert_eq!(simple.write(6, 1), Err(Bus), "page in memory");
        assert_eq!(simple.read(6), Ok(first_value(6)), "it can be read still");
        assert_eq!(simple.world.engine.flush_all(), []);
        simple.with_file(|f| f.full.clear());
        assert_eq!((simple.write(5, 2), simple.write(6, 3)), (Ok(2), Ok(3)));
        assert_eq!(simple.world.engine.flush_all(), []);
        simple.with_file(|f| assert!(f.stores.keys().all(|page| f.reserved.contains(page))));
    });
}

/// A thread that is woken by something else touches again: of one touch there are two faults then. It was told
/// of both that there is no room, of the second where it was by that time.
#[test]
fn a_touch_that_fails_is_told_of_once() {
    watched(30, || {
        let simple = Simple::with_holes(&Setup::default(), 20, true);
        simple.with_file(|f| f.full = [5].into());
        let (engine, machine) = (&simple.world.engine, &simple.world.machine);
        let touch = |told| {
            let space = simple.space;
            let addr = BASE + 5 * PAGE_BYTES;
            engine.serve(Fault { space, addr, write: true, protected: false, tid: 77, told });
            machine.lock().signalled.remove(&77)
        };
        let before = engine.failures_told();
        assert!(touch(before), "the first");
        assert!(!touch(before), "the same");
        assert!(touch(engine.failures_told()), "another one");
    });
}

/// A window is read in parts, several at a time, into frames that there is room for. A part that
/// fails takes no other with it, and who needs a page of it gets the error.
#[test]
fn a_part_of_a_window_that_fails_is_an_error_for_its_pages_alone() {
    for handlers in [0, 2] {
        watched(30, move || {
            let setup = Setup { frames: 64, handlers, slack: Some(0), ..Setup::default() };
            let simple = Simple::new(&setup, 400);
            let chaos = &simple.world.machine.chaos;
            chaos.set(&chaos.in_place, 1000);
            chaos.set(&chaos.delay, 200);
            simple.with_file(|f| f.bad_loads.extend([100, 207]));
            for page in 0..400 {
                let expected = match page {
                    100 | 207 => Err(Bus),
                    page => Ok(first_value(page)),
                };
                assert_eq!(simple.read(page), expected, "page {page}");
            }
            simple.rest();
            simple.with_file(|f| {
                assert!(f.under_way.is_empty());
                // Once; what shared a part with a bad page, a few times more.
                let again = f.loads.iter().filter(|(_, loads)| **loads > 1).count();
                assert!(again <= 2 * 64, "{again} pages were read again");
                assert!(f.loads.iter().all(|(_, loads)| *loads <= 8));
            });
            let faults = simple.world.engine.stats().total.major_faults;
            assert!(faults < 100, "{faults} faults: nothing was fetched ahead");
        });
    }
}

/// Everything fails now and then. Values are right whenever there are any, and in the end all of
/// them are there.
#[test]
fn values_survive_random_failures() {
    for in_place in [0, 700] {
        values_survive(in_place);
    }
}

/// So many reads out of 1,000 go into frames, without a buffer.
fn values_survive(in_place: u32) {
    for (seed, policy) in (1..).zip(["lru", "mru", "fifo", "clock", "fifo2", "random"]) {
        watched(60, move || {
            let setup = Setup { policy, seed, frames: 24, slack: None, ..Setup::default() };
            let simple = Arc::new(Simple::new(&setup, 60));
            let chaos = &simple.world.machine.chaos;
            let kinds = [
                (&chaos.load_eio, 30),
                (&chaos.store_eio, 150),
                (&chaos.under_way, 150),
                (&chaos.overdue, 50),
                (&chaos.in_place, in_place),
                (&chaos.fill_enomem, 30),
                (&chaos.discard_fails, 50),
                (&chaos.again, 50),
                (&chaos.delay, 200),
            ];
            for (kind, chance) in kinds {
                chaos.set(kind, chance);
            }
            let threads: Vec<_> = (0..CELLS_PER_PAGE)
                .map(|t| {
                    let simple = simple.clone();
                    std::thread::spawn(move || one_writer(&simple, t))
                })
                .collect();
            let models: Vec<_> = threads.into_iter().map(|t| t.join().expect("exact")).collect();
            for (kind, _) in kinds {
                kind.store(0, Ordering::Relaxed);
            }
            assert_eq!(simple.world.engine.flush_all(), [], "what failed before is written now");
            for (t, model) in models.into_iter().enumerate() {
                for (page, value) in model.into_iter().enumerate() {
                    let cell = page as u64 * CELLS_PER_PAGE + t as u64;
                    let at = cell_offset(cell);
                    assert_eq!(simple.world.machine.storage_cell(simple.file, at), value);
                }
            }
            simple.rest();
        });
    }
}

/// Reads and writes the t-th cell of every page, in a mapping of its own that is made anew after a
/// SIGBUS.
fn one_writer(simple: &Simple, t: u64) -> Vec<u64> {
    let addr = BASE + (t + 1) * 0x1_0000_0000;
    let (world, pages) = (&simple.world, simple.pages);
    let mut model: Vec<u64> = (0..pages).map(|page| first_value(page) + t).collect();
    let mut rng = Rng(t);
    let map = || world.mmap(simple.space, addr, simple.file, 0, pages, true);
    map();
    for step in 0..1500u64 {
        let page = if step % 200 < 100 { step % pages } else { rng.below(pages) };
        let at = addr + cell_offset(page * CELLS_PER_PAGE + t);
        let value = (step << 8) | t;
        let what = if rng.one_in(3) { Access::Write(value) } else { Access::Read };
        let done = world.access(simple.space, at, what, 10 + t as u32);
        match (what, done) {
            (_, Err(Bus)) => map(),
            (Access::Read, Ok(got)) => assert_eq!(got, model[page as usize], "page {page}"),
            (Access::Write(_), Ok(_)) => model[page as usize] = value,
        }
        if rng.one_in(50) {
            let _ = world.engine.flush(simple.file, 0..pages);
        }
    }
    model
}

#[test]
fn a_process_that_dies_in_the_midst_of_faults_stops_nobody() {
    watched(30, || {
        let simple = Arc::new(Simple::new(&Setup { frames: 16, ..Setup::default() }, 80));
        let chaos = &simple.world.machine.chaos;
        chaos.set(&chaos.delay, 300);
        for round in 0..20u32 {
            let child = simple.world.fork(simple.space);
            let threads: Vec<_> = (0..3u32)
                .map(|t| {
                    let simple = simple.clone();
                    std::thread::spawn(move || {
                        for page in 0.. {
                            let addr = BASE + (page * 7 % 80) * PAGE_BYTES;
                            let tid = 1000 + round * 10 + t;
                            if simple.world.access(child, addr, Access::Read, tid).is_err() {
                                return;
                            }
                        }
                    })
                })
                .collect();
            for page in 0..40 {
                assert_eq!(simple.read(page), Ok(first_value(page)));
            }
            simple.world.exit(child);
            for thread in threads {
                thread.join().unwrap();
            }
        }
        simple.rest();
    });
}

/// A client that is stopped between its write and its report must not stop readers, and the dirty
/// pages that had to stay for it are ordinary pages afterwards.
#[test]
fn an_open_change_stops_no_reader_and_pins_nothing_for_good() {
    watched(30, || {
        let setup = Setup { frames: 16, slack: None, ..Setup::default() };
        let simple = Simple::new(&setup, 60);
        let engine = &simple.world.engine;
        for page in 0..12 {
            simple.write(page, 500 + page).unwrap();
        }
        let all = 60 * PAGE_BYTES;
        let ticket = engine.change_begin(simple.file, 0, all, Change::Write).unwrap();
        for page in (0..60).chain(0..60) {
            let expected = if page < 12 { 500 + page } else { first_value(page) };
            assert_eq!(simple.read(page), Ok(expected));
        }
        for page in 0..12 {
            assert_ne!(simple.stored(page), 500 + page, "not written back under the change");
        }
        let new = 77u64.to_le_bytes();
        simple.world.machine.write_storage(simple.file, 5 * PAGE_BYTES, &new);
        let give = |at: u64, piece: &mut [u8]| {
            piece.copy_from_slice(&new[at as usize..at as usize + piece.len()]);
            Ok(())
        };
        engine.change_end(simple.file, ticket, 5 * PAGE_BYTES, 8, Some(give));
        assert_eq!(simple.read(5), Ok(77));
        for page in (12..60).chain(12..60) {
            simple.read(page).unwrap();
        }
        simple.rest();
        assert!(simple.world.machine.lock().frames() <= 16);
        for page in (0..12).filter(|p| *p != 5) {
            assert_eq!(simple.stored(page), 500 + page, "evicted, so written");
        }
    });
}

#[test]
fn two_writes_of_one_page_follow_each_other() {
    watched(30, || {
        let simple = Arc::new(Simple::new(&Setup::default(), 4));
        simple.read(1).unwrap();
        let write = |simple: &Simple, ticket, value: u64| {
            simple.world.machine.write_storage(simple.file, PAGE_BYTES, &value.to_le_bytes());
            let give = move |_, piece: &mut [u8]| {
                piece.copy_from_slice(&value.to_le_bytes());
                Ok(())
            };
            simple.world.engine.change_end(simple.file, ticket, PAGE_BYTES, 8, Some(give));
        };
        let begin = |simple: &Simple| {
            let engine = &simple.world.engine;
            engine.change_begin(simple.file, PAGE_BYTES, 8, Change::Write).unwrap()
        };
        let first = begin(&simple);
        let (began, second_began) = std::sync::mpsc::channel();
        let other = simple.clone();
        let second = std::thread::spawn(move || {
            let ticket = begin(&other);
            began.send(()).unwrap();
            assert_eq!(other.stored(1), 10, "the first is in storage");
            write(&other, ticket, 20);
        });
        // Its fence is there, and it waits.
        while simple.world.engine.describe().lines().count() < 2 {
            std::thread::yield_now();
        }
        assert!(second_began.try_recv().is_err());
        write(&simple, first, 10);
        second.join().unwrap();
        assert_eq!((simple.read(1), simple.stored(1)), (Ok(20), 20));
    });
}

#[test]
fn a_file_shortened_by_somebody_else_ends_there() {
    watched(30, || {
        let simple = Simple::new(&Setup::default(), 20);
        for page in 0..20 {
            simple.write(page, 900 + page).unwrap();
        }
        simple.world.machine.set_storage_len(simple.file, 10 * PAGE_BYTES + 100);
        assert!(simple.world.engine.refresh_size(simple.file, false));
        for page in 0..11 {
            assert_eq!(simple.read(page), Ok(900 + page));
        }
        assert_eq!(simple.read(11), Err(Bus));
        let tail = BASE + cell_offset(10 * CELLS_PER_PAGE + 1);
        assert_eq!(simple.world.access(simple.space, tail, Access::Read, 1), Ok(0));
        assert_eq!(simple.world.engine.flush_all(), []);
        simple.with_file(|f| assert_eq!(f.storage.len() as u64, 10 * PAGE_BYTES + 100));
        // And longer again.
        simple.world.machine.set_storage_len(simple.file, 20 * PAGE_BYTES);
        assert!(simple.world.engine.refresh_size(simple.file, false));
        assert_eq!(simple.read(15), Ok(0));
        assert_eq!(simple.read(10), Ok(910));
    });
}

#[test]
fn a_file_is_closed_and_its_number_used_again() {
    watched(30, || {
        let simple = Simple::new(&Setup::default(), 20);
        let engine = &simple.world.engine;
        for page in 0..20 {
            simple.write(page, 1).unwrap();
        }
        assert!(!engine.close_file(simple.file), "mapped and dirty");
        simple.world.munmap(simple.space, BASE..BASE + 20 * PAGE_BYTES);
        assert!(!engine.close_file(simple.file), "dirty");
        engine.flush(simple.file, 0..20).unwrap();
        assert!(engine.close_file(simple.file));
        assert_eq!(simple.world.machine.lock().frames(), 0);
        let version =
            pagekeeper::port::Version { size_bytes: 20 * PAGE_BYTES, ..Default::default() };
        engine.open_file(simple.file, "again", version, false);
        simple.world.mmap(simple.space, BASE, simple.file, 0, 20, true);
        for page in 0..20 {
            assert_eq!(simple.read(page), Ok(1));
        }
        let ticket = engine.change_begin(simple.file, 0, 8, Change::Other).unwrap();
        assert!(!engine.close_file(simple.file), "a change is open");
        engine.change_end(simple.file, ticket, 0, 8, None::<Bytes>);
    });
}
