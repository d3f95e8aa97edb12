//! Writes of clients that tell nobody, by the protocol of `pagekeeper_wire::Overwrite`, beside
//! faults, evictions and write-backs of the same pages.

use crate::fake::{Access, World, watched, world::Setup};
use pagekeeper::engine::overwrites::Overwrites;
use pagekeeper::engine::transfer::Change;
use pagekeeper::port::{FileNo, PAGE_BYTES, Port, PortError, SpaceNo};
use pagekeeper_sys::shared::{ReadOnlyMap, SharedMap};
use pagekeeper_wire as wire;
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

const BASE: u64 = 0x7000_0000_0000;
const PAGES: u64 = 48;
/// Victims that stay for as long as they are being overwritten: one for each thread that may evict,
/// four that write and two that serve faults.
const KEPT_PAGES: usize = 6;
type Bytes = fn(u64, &mut [u8]) -> Result<(), PortError>;

/// Where a client dies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dies {
    No,
    BeforeTheCall,
    BehindTheCall,
    BehindThePatch,
}

/// How a write went that was to be delayed.
enum Stored {
    Done,
    /// The page was not open.
    No,
    /// It was being closed.
    TooLate,
}

/// A mapped file, and the table as its clients see it.
struct Shared {
    world: World,
    file: FileNo,
    space: SpaceNo,
    table: SharedMap,
    by_themselves: AtomicU64,
    /// Which pages were in memory when a client last looked, and how often pages had moved then.
    looked: Mutex<Option<(u64, BTreeSet<u64>)>>,
    /// How often that told it which are.
    known: AtomicU64,
    /// The table of open pages.
    open: ReadOnlyMap,
    stored: AtomicU64,
}

/// Overwrites of all runs that the engine met.
static MET: AtomicU64 = AtomicU64::new(0);
/// How often a client of any run stored to a page that was being closed.
static TOO_LATE: AtomicU64 = AtomicU64::new(0);
/// How often a client of any run knew what is in memory.
static KNOWN: AtomicU64 = AtomicU64::new(0);

impl Shared {
    fn new(setup: &Setup) -> Option<Shared> {
        let world = World::new(setup);
        let overwrites = Overwrites::new(16).expect("shared memory");
        let Some(fd) = overwrites.for_writer().unwrap() else {
            eprintln!("skipped: no sealing here");
            return None;
        };
        let table = SharedMap::new(&fd, 0, 16 * size_of::<wire::Overwrite>()).expect("mapped");
        world.engine.set_overwrites(overwrites);
        let file = world.file(vec![0; (PAGES * PAGE_BYTES) as usize]);
        let space = world.space();
        world.mmap(space, BASE, file, 0, PAGES, true);
        let (fd, pages) = world.engine.open_table(file).expect("shared memory");
        let open = ReadOnlyMap::new(fd, 0, pages as usize / 8).expect("mapped");
        let (by_themselves, known, stored) = Default::default();
        let looked = Mutex::new(None);
        Some(Shared { world, file, space, table, by_themselves, looked, known, open, stored })
    }

    fn long(&self, field: usize) -> &AtomicU64 {
        &self.table.words(self.file as usize * size_of::<wire::Overwrite>() + field, 1)[0]
    }

    fn moving(&self) -> u32 {
        let at = self.file as usize * size_of::<wire::Overwrite>();
        let moving: &AtomicU32 = &self.table.words(at + offset_of!(wire::Overwrite, moving), 1)[0];
        moving.load(SeqCst)
    }

    fn state(&self) -> &AtomicU64 {
        self.long(offset_of!(wire::Overwrite, state))
    }

    /// Says that no pages in particular are meant, and gives the record back.
    fn give_back(&self, client: u32) -> bool {
        self.long(offset_of!(wire::Overwrite, first)).store(0, SeqCst);
        self.long(offset_of!(wire::Overwrite, end)).store(u64::MAX, SeqCst);
        let mine = wire::overwrite_held_by(client);
        self.state().compare_exchange(mine, 0, SeqCst, SeqCst).is_ok()
    }

    /// The write of a client, by messages.
    fn by_message(&self, offset: u64, value: u64) {
        let engine = &self.world.engine;
        let ticket = engine.change_begin(self.file, offset, 8, Change::Write).unwrap();
        self.world.machine.chaos.delay();
        self.world.machine.write_storage(self.file, offset, &value.to_le_bytes());
        let give = |_: u64, piece: &mut [u8]| {
            piece.copy_from_slice(&value.to_le_bytes());
            Ok(())
        };
        engine.change_end(self.file, ticket, offset, 8, Some(give));
    }

    /// A write of a client that is delayed, as the preload library makes it; if it can be.
    fn store(&self, offset: u64, value: u64) -> Stored {
        let machine = &self.world.machine;
        let page = offset / PAGE_BYTES;
        let moves = || self.long(offset_of!(wire::Overwrite, moves)).load(SeqCst);
        let before = moves();
        machine.chaos.delay();
        let (word, bit) = wire::open_page_bit(page);
        if self.open.word_u64(8 * word) & bit == 0 {
            return Stored::No;
        }
        machine.chaos.delay();
        {
            let mut state = machine.lock();
            let held = &mut state.files[self.file as usize];
            *held.stored_to.entry(page).or_default() += 1;
            // Else it has just left: what is stored is nowhere.
            if let Some(frame) = held.frames.get_mut(&page) {
                let at = (offset % PAGE_BYTES) as usize;
                frame.data[at..at + 8].copy_from_slice(&value.to_le_bytes());
                frame.dirty = true;
            }
        }
        machine.chaos.delay();
        let mut state = machine.lock();
        if moves() != before {
            TOO_LATE.fetch_add(1, SeqCst);
            return Stored::TooLate;
        }
        // From here on the page may not be lost.
        state.files[self.file as usize].is_in_time(page);
        self.stored.fetch_add(1, SeqCst);
        Stored::Done
    }

    /// The write of a client, as the preload library makes it.
    fn write(&self, client: u32, offset: u64, value: u64, dies: Dies) {
        let engine = &self.world.engine;
        if dies == Dies::No {
            if value.is_multiple_of(3) {
                engine.open_pages(self.file, offset / PAGE_BYTES, 1 + value % 4);
            }
            match self.store(offset, value) {
                Stored::Done => return,
                Stored::No => {}
                Stored::TooLate => {
                    self.write_usually(client, offset, value, dies);
                    self.world.machine.lock().files[self.file as usize].settle(offset / PAGE_BYTES);
                    return;
                }
            }
        }
        self.write_usually(client, offset, value, dies);
    }

    /// The same, if it is not delayed.
    fn write_usually(&self, client: u32, offset: u64, value: u64, dies: Dies) {
        let (engine, machine) = (&self.world.engine, &self.world.machine);
        let mine = wire::overwrite_held_by(client);
        let taken = (0..20).any(|_| {
            let taken = self.state().compare_exchange(0, mine, SeqCst, SeqCst).is_ok();
            if !taken {
                std::thread::yield_now();
            }
            taken
        });
        if !taken {
            return self.by_message(offset, value);
        }
        let page = offset / PAGE_BYTES;
        self.long(offset_of!(wire::Overwrite, first)).store(page, SeqCst);
        self.long(offset_of!(wire::Overwrite, end)).store(page + 1, SeqCst);
        machine.chaos.delay();
        let moves = self.long(offset_of!(wire::Overwrite, moves)).load(SeqCst);
        if self.moving() != 0 {
            if !self.give_back(client) {
                engine.overwrite_end(self.file, client, offset, 0, None::<Bytes>).unwrap();
            }
            return self.by_message(offset, value);
        }
        let gone = || engine.overwrite_end(self.file, client, 0, 0, None::<Bytes>).unwrap();
        if dies == Dies::BeforeTheCall {
            gone();
            return self.by_message(offset, value);
        }
        machine.write_storage(self.file, offset, &value.to_le_bytes());
        machine.chaos.delay();
        if dies == Dies::BehindTheCall {
            // Of a page that is dirty, what was there before may be what stays.
            gone();
            return self.by_message(offset, value);
        }
        {
            let mut state = machine.lock();
            let frames = &mut state.files[self.file as usize].frames;
            let mut looked = self.looked.lock().unwrap();
            match &*looked {
                Some((then, pages)) if *then == moves => {
                    // What was absent may be on its way in by now: then the manager has met this
                    // client, and brings the change in itself when it is told.
                    let is_met = self.state().load(SeqCst) & wire::OVERWRITE_MET != 0;
                    let (was_here, is_here) = (pages.contains(&page), frames.contains_key(&page));
                    assert!(was_here == is_here || is_here && is_met, "{was_here} {is_here}");
                    self.known.fetch_add(1, SeqCst);
                }
                // At all of them, although they are not all held.
                _ => *looked = Some((moves, frames.keys().copied().collect())),
            }
            if let Some(frame) = frames.get_mut(&page) {
                let at = (offset % PAGE_BYTES) as usize;
                frame.data[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
        }
        machine.chaos.delay();
        if dies == Dies::BehindThePatch {
            return gone();
        }
        if self.give_back(client) {
            self.by_themselves.fetch_add(1, SeqCst);
        } else {
            MET.fetch_add(1, SeqCst);
            let give = |_: u64, piece: &mut [u8]| {
                piece.copy_from_slice(&value.to_le_bytes());
                Ok(())
            };
            engine.overwrite_end(self.file, client, offset, 8, Some(give)).unwrap();
        }
    }
}

/// What is written by calls without a message and through a mapping, in the same pages, while these
/// come and go, is all seen, and all in storage in the end.
#[test]
fn what_is_written_without_a_message_is_neither_lost_nor_undone() {
    for (seed, frames, policy) in [(1, 10, "lru"), (2, 24, "clock"), (3, 10, "mru"), (4, 64, "lru")]
    {
        watched(90, move || {
            let slack = Some(KEPT_PAGES);
            let setup = Setup { seed, frames, policy, slack, ..Setup::default() };
            let Some(shared) = Shared::new(&setup) else { return };
            let chaos = &shared.world.machine.chaos;
            chaos.set(&chaos.delay, 200);
            chaos.set(&chaos.under_way, 20);
            let shared = Arc::new(shared);
            let writers = 4u32;
            let threads: Vec<_> = (0..writers)
                .map(|who| {
                    let shared = shared.clone();
                    std::thread::spawn(move || {
                        let mut random = u64::from(who + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                        let mut values = vec![0u64; PAGES as usize * 2];
                        for turn in 1..1500u64 {
                            random ^= random << 13;
                            random ^= random >> 7;
                            random ^= random << 17;
                            // Two cells of each page are this thread's: one for each way.
                            let page = random % PAGES;
                            let by_call = random >> 20 & 1;
                            let cell = page * 2 + by_call;
                            let offset = page * PAGE_BYTES + u64::from(who) * 16 + by_call * 8;
                            let tid = 10 + who;
                            let old = Access::Read;
                            let seen = shared.world.access(shared.space, BASE + offset, old, tid);
                            assert_eq!(seen, Ok(values[cell as usize]), "before turn {turn}");
                            if by_call == 1 {
                                let dies = match random >> 32 & 63 {
                                    0 => Dies::BeforeTheCall,
                                    1 => Dies::BehindTheCall,
                                    2 => Dies::BehindThePatch,
                                    _ => Dies::No,
                                };
                                shared.write(100 + who, offset, turn, dies);
                            } else {
                                let store = Access::Write(turn);
                                let done =
                                    shared.world.access(shared.space, BASE + offset, store, tid);
                                assert!(done.is_ok());
                            }
                            values[cell as usize] = turn;
                        }
                        values
                    })
                })
                .collect();
            let values: Vec<Vec<u64>> = threads.into_iter().map(|t| t.join().unwrap()).collect();
            let engine = &shared.world.engine;
            assert_eq!(engine.flush_all(), []);
            for (who, values) in values.iter().enumerate() {
                for (cell, value) in values.iter().enumerate() {
                    let offset = (cell as u64 / 2) * PAGE_BYTES + who as u64 * 16;
                    let offset = offset + (cell as u64 % 2) * 8;
                    let stored = shared.world.machine.storage_cell(shared.file, offset);
                    assert_eq!(stored, *value, "writer {who}, cell {cell}");
                }
            }
            // Nothing stays behind that would send every later write by message.
            assert_eq!((shared.moving(), shared.state().load(SeqCst)), (0, 0));
            assert!(shared.by_themselves.load(SeqCst) > 0 && shared.stored.load(SeqCst) > 0);
            KNOWN.fetch_add(shared.known.load(SeqCst), SeqCst);
        });
    }
    assert!(MET.load(SeqCst) > 0, "nobody was met");
    assert!(TOO_LATE.load(SeqCst) > 0, "nobody stored to a page that was being closed");
    assert!(KNOWN.load(SeqCst) > 0, "nobody knew what is in memory without looking");
}

/// A page that is being overwritten stays in memory while others go; it goes when it may.
#[test]
fn a_page_that_is_overwritten_is_no_victim() {
    watched(30, || {
        let setup = Setup { frames: 8, policy: "fifo", ..Setup::default() };
        let Some(shared) = Shared::new(&setup) else { return };
        let world = &shared.world;
        let touch = |page: u64| {
            world.access(shared.space, BASE + page * PAGE_BYTES, Access::Read, 1).unwrap();
        };
        let is_here =
            |page: u64| world.machine.lock().files[shared.file as usize].frames.contains_key(&page);
        touch(0);
        let mine = wire::overwrite_held_by(7);
        assert!(shared.state().compare_exchange(0, mine, SeqCst, SeqCst).is_ok());
        shared.long(offset_of!(wire::Overwrite, first)).store(0, SeqCst);
        shared.long(offset_of!(wire::Overwrite, end)).store(1, SeqCst);
        (1..PAGES).for_each(touch);
        assert!(is_here(0), "taken out under a client that patches it");
        assert_eq!(shared.state().load(SeqCst), mine | wire::OVERWRITE_MET);
        assert!(!shared.give_back(7));
        let stranger = world.engine.overwrite_end(shared.file, 8, 0, 0, None::<Bytes>);
        assert_eq!(stranger, Err(PortError::Gone));
        world.engine.overwrite_end(shared.file, 7, 0, 0, None::<Bytes>).unwrap();
        assert_eq!(shared.state().load(SeqCst), 0);
        // Who holds the record next, and does not say which pages it is about, is about all of them: it was
        // taken for being about those of the one before.
        let end = shared.long(offset_of!(wire::Overwrite, end)).load(SeqCst);
        assert_eq!(
            (shared.long(offset_of!(wire::Overwrite, first)).load(SeqCst), end),
            (0, u64::MAX)
        );
        (1..PAGES).for_each(touch);
        assert!(!is_here(0));
    });
}

/// A client makes a file longer by itself, and another one by message in the moment in which somebody looks: that
/// was taken for somebody outside, and all that was in memory was read again.
#[test]
fn what_clients_add_beside_a_change_is_nobody_elses() {
    watched(30, || {
        let Some(shared) = Shared::new(&Setup::default()) else { return };
        let (world, file) = (&shared.world, shared.file);
        let (engine, machine) = (&world.engine, &world.machine);
        engine.hears(file);
        for page in 0..4 {
            world.access(shared.space, BASE + page * PAGE_BYTES, Access::Read, 1).unwrap();
        }
        let size = PAGES * PAGE_BYTES;
        let ticket = engine.change_begin(file, 0, 8, Change::Write).unwrap();
        // It was held before that, and is given back only now.
        machine.write_storage(file, size, &[1; 8]);
        shared.long(offset_of!(wire::Overwrite, size_bytes)).store(size + 8, SeqCst);
        machine.write_storage(file, 0, &[2; 8]);
        assert!(!engine.refresh_size(file, false), "nobody outside was there");
        let give = |_: u64, piece: &mut [u8]| {
            piece.fill(2);
            Ok(())
        };
        engine.change_end(file, ticket, 0, 8, Some(give));
        let frames = &machine.lock().files[file as usize].frames;
        assert!((0..4).all(|page| frames.contains_key(&page)));
    });
}

/// A mapped file that ends within its last page, where a client appends eight bytes by itself and stores over
/// them through its mapping.
fn appended_and_stored(shared: &Shared) -> u64 {
    let (world, file) = (&shared.world, shared.file);
    let (engine, machine) = (&world.engine, &world.machine);
    engine.hears(file);
    let end = PAGES * PAGE_BYTES - 1000;
    machine.set_storage_len(file, end);
    engine.refresh_size(file, true);
    let last = BASE + end / PAGE_BYTES * PAGE_BYTES;
    world.access(shared.space, last, Access::Read, 1).unwrap();
    machine.write_storage(file, end, &1u64.to_le_bytes());
    let stamp = engine.port().version(file).unwrap().stamp();
    shared.long(offset_of!(wire::Overwrite, stamp)).store(stamp, SeqCst);
    shared.long(offset_of!(wire::Overwrite, size_bytes)).store(end + 8, SeqCst);
    world.access(shared.space, BASE + end, Access::Write(7), 1).unwrap();
    end
}

/// What is in memory of eight bytes of the last page.
fn in_memory(shared: &Shared, offset: u64) -> u64 {
    let state = shared.world.machine.lock();
    let frame = &state.files[shared.file as usize].frames[&(offset / PAGE_BYTES)];
    let at = (offset % PAGE_BYTES) as usize;
    u64::from_le_bytes(frame.data[at..at + 8].try_into().unwrap())
}

/// A look that came between two appends found a length that was neither the one that was known nor the one that
/// was said: it was taken for somebody else's, and what had been stored meanwhile was read over.
#[test]
fn a_look_between_two_appends_undoes_no_store() {
    watched(30, || {
        let Some(shared) = Shared::new(&Setup::default()) else { return };
        let end = appended_and_stored(&shared);
        shared.long(offset_of!(wire::Overwrite, size_bytes)).store(end + 16, SeqCst);
        assert!(!shared.world.engine.refresh_size(shared.file, false), "nobody outside was there");
        assert_eq!(in_memory(&shared, end), 7);
    });
}

/// An append that was met in its midst ends by message. What lay before it was the run's own, and already known.
#[test]
fn the_end_of_an_append_undoes_no_store_before_it() {
    watched(30, || {
        let Some(shared) = Shared::new(&Setup::default()) else { return };
        let end = appended_and_stored(&shared);
        let (engine, machine) = (&shared.world.engine, &shared.world.machine);
        let mine = wire::overwrite_held_by(3);
        shared.state().compare_exchange(0, mine, SeqCst, SeqCst).unwrap();
        machine.write_storage(shared.file, end + 8, &2u64.to_le_bytes());
        let give = |_: u64, piece: &mut [u8]| {
            piece.copy_from_slice(&2u64.to_le_bytes());
            Ok(())
        };
        engine.overwrite_end(shared.file, 3, end + 8, 8, Some(give)).unwrap();
        assert_eq!((in_memory(&shared, end), in_memory(&shared, end + 8)), (7, 2));
    });
}

/// Who began to overwrite a file just as it was looked at was taken for who had made it longer: what somebody
/// outside had added was known to be there, and zeros in memory (once in some thousand runs of a test).
#[test]
fn what_others_add_is_read_whoever_begins_as_it_is_looked_at() {
    const HOLE: u64 = u64::MAX;
    watched(60, || {
        let Some(shared) = Shared::new(&Setup::default()) else { return };
        let (world, file) = (&shared.world, shared.file);
        let (engine, machine) = (&world.engine, &world.machine);
        let start = PAGES * PAGE_BYTES - 3000;
        machine.set_storage_len(file, start);
        engine.refresh_size(file, true);
        let told_bytes = Arc::new(AtomicU64::new(start));
        let told = told_bytes.clone();
        *machine.when_told.lock().unwrap() = Some(Box::new(move |state, file, now| {
            let Some(size_bytes) = now.map(|now| now.size_bytes) else { return };
            for offset in (start..size_bytes).step_by(8) {
                let frame = state.files[file as usize].frames.get(&(offset / PAGE_BYTES));
                let seen = frame.map_or(9, |frame| frame.data[(offset % PAGE_BYTES) as usize]);
                if seen != 9 {
                    return told.store(HOLE, SeqCst);
                }
            }
            told.store(size_bytes, SeqCst);
        }));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mine = wire::overwrite_held_by(7);
                while !is_over.load(SeqCst) {
                    if shared.state().compare_exchange(0, mine, SeqCst, SeqCst).is_ok()
                        && !shared.give_back(7)
                    {
                        engine.overwrite_end(file, 7, 0, 0, None::<Bytes>).unwrap();
                    }
                }
            });
            let mut seen_bytes = start;
            while seen_bytes != HOLE && seen_bytes + 8 < PAGES * PAGE_BYTES {
                let last = BASE + seen_bytes / PAGE_BYTES * PAGE_BYTES;
                world.access(shared.space, last, Access::Read, 1).unwrap();
                machine.write_storage(file, seen_bytes, &[9; 8]);
                // Beside a write that was met it is followed later.
                let before = seen_bytes;
                while seen_bytes == before {
                    engine.refresh_size(file, false);
                    seen_bytes = told_bytes.load(SeqCst);
                }
            }
            is_over.store(true, SeqCst);
            assert_ne!(seen_bytes, HOLE, "zeros were told of");
        });
    });
}

/// What somebody outside adds while one of ours changes the last page is read when that one is done, and no byte
/// of ours with it that a program stored to since.
#[test]
fn what_others_add_beside_a_change_is_read_and_nothing_else() {
    watched(30, || {
        let Some(shared) = Shared::new(&Setup::default()) else { return };
        let end = appended_and_stored(&shared);
        let (engine, machine, file) = (&shared.world.engine, &shared.world.machine, shared.file);
        let give = |_: u64, piece: &mut [u8]| {
            piece.copy_from_slice(&3u64.to_le_bytes());
            Ok(())
        };
        let first = engine.change_begin(file, end + 16, 8, Change::Write).unwrap();
        machine.write_storage(file, end + 8, &9u64.to_le_bytes());
        engine.refresh_size(file, false);
        machine.write_storage(file, end + 16, &3u64.to_le_bytes());
        engine.change_end(file, first, end + 16, 8, Some(give));
        shared.world.access(shared.space, BASE + end + 16, Access::Write(8), 1).unwrap();
        let second = engine.change_begin(file, end - 64, 8, Change::Write).unwrap();
        engine.change_end(file, second, end - 64, 0, None::<Bytes>);
        let all = [end, end + 8, end + 16].map(|offset| in_memory(&shared, offset));
        assert_eq!(all, [7, 9, 8]);
    });
}
