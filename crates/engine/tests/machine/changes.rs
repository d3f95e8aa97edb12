//! Files that are changed by system calls, by several at once, and whose end moves.

use crate::fake::machine::{Frame, Machine};
use crate::fake::{Access, World, watched, world::Setup};
use pagekeeper::engine::transfer::Change;
use pagekeeper::port::{FileNo, PAGE_BYTES, PortError, SpaceNo, Told, Version};
use pagekeeper_frames::{Place, Run, Segment};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BASE: u64 = 0x7000_0000_0000;
const EIO: PortError = PortError::Io(5);
type Bytes = fn(u64, &mut [u8]) -> Result<(), PortError>;

/// A file of so many bytes, all `a`, mapped shared.
struct Mapped {
    world: World,
    file: FileNo,
    space: SpaceNo,
}

impl Mapped {
    fn new(setup: &Setup, bytes: u64) -> Mapped {
        let world = World::new(setup);
        let file = world.file(vec![b'a'; bytes as usize]);
        Mapped::of(world, file)
    }

    fn of(world: World, file: FileNo) -> Mapped {
        let space = world.space();
        world.mmap(space, BASE, file, 0, 64, true);
        Mapped { world, file, space }
    }

    fn put(&self, at: u64, value: u64) {
        self.world.access(self.space, BASE + at, Access::Write(value), 1).unwrap();
    }

    fn get(&self, at: u64) -> u64 {
        self.world.access(self.space, BASE + at, Access::Read, 1).unwrap()
    }

    fn size(&self) -> u64 {
        self.world.machine.lock().files[self.file as usize].storage.len() as u64
    }

    /// Whether reads of a page end.
    fn hold_load(&self, page: u64, is_held: bool) {
        let held = &mut self.world.machine.lock().files[self.file as usize].held_loads;
        let _ = if is_held { held.insert(page) } else { held.remove(&page) };
    }

    /// Waits until a page is being read.
    fn await_load(&self, page: u64) {
        let line = format!("file{}, page {page}: Filling", self.file);
        while !self.world.engine.describe().contains(&line) {
            std::thread::yield_now();
        }
    }

    /// A change by a system call that `carry_out`s it.
    fn change(&self, offset: u64, len: u64, change: Change, carry_out: impl FnOnce()) {
        let engine = &self.world.engine;
        let ticket = engine.change_begin(self.file, offset, len, change).unwrap();
        carry_out();
        engine.change_end(self.file, ticket, offset, len, None::<Bytes>);
    }

    /// `write(2)` by a descriptor with O_APPEND, as the preload library makes it.
    fn append(&self, bytes: &[u8]) {
        let (engine, machine) = (&self.world.engine, &self.world.machine);
        let size = self.size();
        machine.chaos.delay();
        let ticket = engine.change_begin(self.file, size, u64::MAX - size, Change::Write).unwrap();
        let end = self.size();
        machine.chaos.delay();
        machine.write_storage(self.file, end, bytes);
        machine.chaos.delay();
        let give = |at: u64, piece: &mut [u8]| {
            piece.copy_from_slice(&bytes[at as usize..at as usize + piece.len()]);
            Ok(())
        };
        engine.change_end(self.file, ticket, end, bytes.len() as u64, Some(give));
    }
}

/// Appends that overlapped were each told the same end of the file; what the second had written
/// was missing from the cached last page, and gone when that was written back.
#[test]
fn what_several_append_at_once_is_all_there() {
    for seed in 1..6 {
        watched(60, move || {
            let setup = Setup { seed, frames: 16, ..Setup::default() };
            let mapped = Arc::new(Mapped::new(&setup, 96));
            mapped.world.machine.chaos.set(&mapped.world.machine.chaos.delay, 300);
            let threads: Vec<_> = (0..4u64)
                .map(|who| {
                    let mapped = mapped.clone();
                    std::thread::spawn(move || {
                        for i in 0..300u64 {
                            let line = [who + 1, i, !i].map(u64::to_le_bytes).concat();
                            mapped.append(&line);
                            // The last page is in memory, and dirty now and then.
                            let tid = 10 + who as u32;
                            let at = BASE + mapped.size() / PAGE_BYTES * PAGE_BYTES;
                            let _ = mapped.world.access(mapped.space, at, Access::Read, tid);
                            let value = Access::Write(u64::from_le_bytes([b'a'; 8]));
                            let own = BASE + who * 8;
                            mapped.world.access(mapped.space, own, value, tid).unwrap();
                        }
                    })
                })
                .collect();
            assert!(threads.into_iter().all(|t| t.join().is_ok()));
            let engine = &mapped.world.engine;
            assert_eq!(engine.flush_all(), []);
            let storage = mapped.world.machine.lock().files[mapped.file as usize].storage.clone();
            assert_eq!(storage.len(), 96 + 4 * 300 * 24);
            let mut next = [0u64; 4];
            for line in storage[96..].chunks(24) {
                let word =
                    |i: usize| u64::from_le_bytes(line[i * 8..i * 8 + 8].try_into().unwrap());
                let who = word(0) as usize - 1;
                assert_eq!((word(1), word(2)), (next[who], !next[who]), "of {who}");
                next[who] += 1;
            }
            assert_eq!(next, [300; 4]);
        });
    }
}

/// Where somebody outside appended in the midst of an append, what was written was put where the file
/// had ended before, and zeros where it was; a last page that was dirty was written back so, over both.
#[test]
fn an_append_beside_one_outside_leaves_both_in_the_last_page() {
    const THEIRS: u64 = 0x7474_7474_7474_7474;
    const OURS: u64 = 0x6f6f_6f6f_6f6f_6f6f;
    // Before the client looked where the file ends, and after that.
    for (dirty, before) in [(false, false), (false, true), (true, false), (true, true)] {
        watched(30, move || {
            let mapped = Mapped::new(&Setup::default(), 96);
            let (engine, machine) = (&mapped.world.engine, &mapped.world.machine);
            if dirty {
                mapped.put(0, 1);
            }
            assert_eq!(mapped.get(0) == 1, dirty);
            let ticket =
                engine.change_begin(mapped.file, 96, u64::MAX - 96, Change::Write).unwrap();
            machine.write_storage(mapped.file, 96, &THEIRS.to_le_bytes());
            // Somebody looks at the file meanwhile.
            engine.refresh_size(mapped.file, false);
            machine.write_storage(mapped.file, 104, &OURS.to_le_bytes());
            let give = |_: u64, piece: &mut [u8]| {
                piece.copy_from_slice(&OURS.to_le_bytes());
                Ok(())
            };
            match before {
                true => engine.change_end(mapped.file, ticket, 104, 8, Some(give)),
                false => engine.change_end(mapped.file, ticket, 96, 16, None::<Bytes>),
            }
            assert_eq!([mapped.get(96), mapped.get(104)], [THEIRS, OURS]);
            assert_eq!(engine.flush_all(), []);
            let storage = machine.lock().files[mapped.file as usize].storage.clone();
            assert_eq!(storage[96..], [THEIRS, OURS].map(u64::to_le_bytes).concat());
        });
    }
}

/// Bytes that a program had stored behind the end of the file, in its last page, became the
/// file's when it grew over them.
#[test]
fn a_file_grows_over_zeros() {
    const END: u64 = PAGE_BYTES + 100;
    for (written_back, how) in [false, true].into_iter().flat_map(|w| (0..4).map(move |h| (w, h))) {
        watched(30, move || {
            let mapped = Mapped::new(&Setup::default(), END);
            mapped.put(PAGE_BYTES, 1);
            mapped.put(PAGE_BYTES + 104, 0x7878_7878);
            mapped.put(2 * PAGE_BYTES - 8, 0x7979_7979);
            let engine = &mapped.world.engine;
            if written_back {
                engine.flush(mapped.file, 0..64).unwrap();
            }
            let machine = &mapped.world.machine;
            let longer = 5 * PAGE_BYTES;
            match how {
                0 => mapped.change(longer, u64::MAX, Change::Truncate, || {
                    machine.set_storage_len(mapped.file, longer);
                }),
                // Elsewhere: the last page is not of the range that changes.
                1 => mapped.change(longer - 8, 8, Change::Other, || {
                    machine.set_storage_len(mapped.file, longer);
                }),
                2 => mapped.change(longer - 8, 8, Change::Write, || {
                    machine.write_storage(mapped.file, longer - 8, &[0; 8]);
                }),
                _ => mapped.append(&[0; 4]),
            }
            assert_eq!(mapped.get(PAGE_BYTES), 1);
            assert_eq!((mapped.get(PAGE_BYTES + 104), mapped.get(2 * PAGE_BYTES - 8)), (0, 0));
            if how == 3 {
                mapped.change(longer, u64::MAX, Change::Truncate, || {
                    machine.set_storage_len(mapped.file, longer);
                });
            }
            assert_eq!(engine.flush_all(), []);
            assert_eq!(machine.storage_cell(mapped.file, PAGE_BYTES), 1);
            assert_eq!(machine.storage_cell(mapped.file, PAGE_BYTES + 104), 0);
            assert_eq!(machine.storage_cell(mapped.file, 2 * PAGE_BYTES - 8), 0);
        });
    }
}

/// What somebody outside appended was overwritten by the write-back of a dirty last page.
#[test]
fn what_others_append_stays() {
    watched(30, || {
        let mapped = Mapped::new(&Setup::default(), PAGE_BYTES + 96);
        mapped.put(PAGE_BYTES + 8, 5);
        mapped.put(PAGE_BYTES + 200, 6);
        let machine = &mapped.world.machine;
        machine.write_storage(mapped.file, PAGE_BYTES + 96, &[9; 16]);
        assert!(mapped.world.engine.refresh_size(mapped.file, false));
        assert_eq!(mapped.get(PAGE_BYTES + 96), 0x0909_0909_0909_0909);
        assert_eq!(mapped.get(PAGE_BYTES + 200), 0, "behind the new end too");
        assert_eq!(mapped.world.engine.flush_all(), []);
        assert_eq!(machine.storage_cell(mapped.file, PAGE_BYTES + 104), 0x0909_0909_0909_0909);
        assert_eq!(machine.storage_cell(mapped.file, PAGE_BYTES + 8), 5);
    });
}

/// Before it was noticed, the write-back of a dirty last page reached to the file's new end: zeros were
/// written where somebody outside had just written.
#[test]
fn what_others_append_stays_before_it_is_noticed() {
    watched(30, || {
        let mapped = Mapped::new(&Setup::default(), PAGE_BYTES + 96);
        mapped.put(PAGE_BYTES + 8, 5);
        let (engine, machine) = (&mapped.world.engine, &mapped.world.machine);
        machine.write_storage(mapped.file, PAGE_BYTES + 96, &[9; 16]);
        assert_eq!(engine.flush_all(), []);
        assert_eq!(machine.storage_cell(mapped.file, PAGE_BYTES + 8), 5);
        assert_eq!(machine.storage_cell(mapped.file, PAGE_BYTES + 96), 0x0909_0909_0909_0909);
        assert!(engine.refresh_size(mapped.file, false));
        assert_eq!(mapped.get(PAGE_BYTES + 104), 0x0909_0909_0909_0909);
    });
}

/// The new version of a file that somebody outside had changed was told before the old pages were
/// gone: who took a lock in between found the file as it was known, read the old, and wrote it back.
#[test]
fn a_new_version_is_told_when_nothing_old_is_left() {
    watched(30, || {
        let mapped = Mapped::new(&Setup::default(), 4 * PAGE_BYTES);
        (0..4).for_each(|page| assert_ne!(mapped.get(page * PAGE_BYTES), 9));
        let machine = &mapped.world.machine;
        machine.write_storage(mapped.file, PAGE_BYTES, &9u64.to_le_bytes());
        let times_told = Arc::new(AtomicU32::new(0));
        let count = times_told.clone();
        *machine.when_told.lock().unwrap() = Some(Box::new(move |state, file, told| {
            let held = &state.files[file as usize];
            let (size_bytes, mtime_ns) = (held.storage.len() as u64, held.mtime_ns);
            let now = Version { size_bytes, mtime_ns, ctime_ns: mtime_ns };
            if told.is_some_and(|told| told.stamp == now.stamp()) {
                let is_old = |frame: &Frame| frame.data[..8] != 9u64.to_le_bytes();
                assert!(!held.frames.get(&1).is_some_and(is_old), "told while the old is there");
                count.fetch_add(1, SeqCst);
            }
        }));
        assert!(mapped.world.engine.refresh_size(mapped.file, false));
        assert!(times_told.load(SeqCst) > 0);
        assert_eq!(mapped.get(PAGE_BYTES), 9);
    });
}

/// What somebody outside had written before a program's own write was taken for a part of that: the
/// time that the write left was known, and pages went on being old, for as long as the program wrote.
#[test]
fn what_others_wrote_before_a_write_is_seen() {
    watched(30, || {
        let mapped = Mapped::new(&Setup::default(), 4 * PAGE_BYTES);
        (0..4).for_each(|page| assert_ne!(mapped.get(page * PAGE_BYTES), 9));
        let machine = &mapped.world.machine;
        machine.write_storage(mapped.file, 3 * PAGE_BYTES, &9u64.to_le_bytes());
        mapped.change(0, 8, Change::Write, || machine.write_storage(mapped.file, 0, &[1; 8]));
        mapped.world.engine.look_for_changes(mapped.file);
        assert_eq!(mapped.get(3 * PAGE_BYTES), 9);
    });
}

/// What somebody outside wrote while a page was written back was taken for a part of that: the time that
/// was there afterwards was known, and pages went on being old. Nothing but being told of it helps.
#[test]
fn what_others_wrote_during_a_write_back_is_seen_when_it_is_told() {
    watched(30, || {
        let mapped = Mapped::new(&Setup::default(), 4 * PAGE_BYTES);
        (0..4).for_each(|page| assert_ne!(mapped.get(page * PAGE_BYTES), 9));
        let (engine, machine, file) = (&mapped.world.engine, &mapped.world.machine, mapped.file);
        engine.hears(file);
        mapped.put(0, 1);
        *machine.after_store.lock().unwrap() = Some(Box::new(move |machine| {
            machine.write_storage(file, 3 * PAGE_BYTES, &9u64.to_le_bytes());
        }));
        let times_told = stamps_told(machine);
        assert_eq!(engine.flush_all(), []);
        assert!(!engine.refresh_size(file, false), "its times say nothing");
        assert_ne!(mapped.get(3 * PAGE_BYTES), 9);

        engine.changed_outside(file);
        assert_eq!(times_told.lock().unwrap().last(), Some(&0), "while old pages are there");
        assert!(engine.refresh_size(file, false));
        assert_ne!(times_told.lock().unwrap().last(), Some(&0));
        assert_eq!((mapped.get(3 * PAGE_BYTES), mapped.get(0)), (9, 1));
        assert!(!engine.refresh_size(file, false), "once");
    });
}

/// The stamps that programs are told from now on.
fn stamps_told(machine: &Machine) -> Arc<Mutex<Vec<u64>>> {
    let all = Arc::new(Mutex::new(Vec::new()));
    let stamps = all.clone();
    *machine.when_told.lock().unwrap() = Some(Box::new(move |_, _, told| {
        stamps.lock().unwrap().extend(told.map(|told: Told| told.stamp));
    }));
    all
}

/// A file of four pages in memory, the first of them dirty, whose times count in ticks.
fn ticking(keeps_time: bool) -> Mapped {
    let mapped = Mapped::new(&Setup::default(), 4 * PAGE_BYTES);
    (0..4).for_each(|page| assert_ne!(mapped.get(page * PAGE_BYTES), 9));
    let mut state = mapped.world.machine.lock();
    let held = &mut state.files[mapped.file as usize];
    (held.tick_ns, held.keeps_time) = (Some(1000), keeps_time);
    drop(state);
    mapped.put(0, 1);
    mapped
}

/// Where times count in ticks, what somebody outside wrote after a write-back and within its tick was not seen
/// before the file's next change: a counter in a mapping that was raised under a lock lost what the other added.
#[test]
fn what_others_write_in_the_tick_of_a_write_back_is_seen() {
    watched(30, || {
        for keeps_time in [false, true] {
            let mapped = ticking(keeps_time);
            let (engine, machine, file) =
                (&mapped.world.engine, &mapped.world.machine, mapped.file);
            let told = stamps_told(machine);
            assert_eq!(engine.flush_all(), []);
            // Who may not set the time tells none, and drops what may be old.
            assert_eq!(told.lock().unwrap().last() == Some(&0), keeps_time);
            machine.write_storage(file, 3 * PAGE_BYTES, &9u64.to_le_bytes());
            assert!(engine.refresh_size(file, false));
            assert_eq!((mapped.get(3 * PAGE_BYTES), mapped.get(0)), (9, 1));
        }
    });
}

/// The same of what a client writes by message.
#[test]
fn what_others_write_in_the_tick_of_a_write_is_seen() {
    watched(30, || {
        for keeps_time in [false, true] {
            let mapped = ticking(keeps_time);
            let (engine, machine, file) =
                (&mapped.world.engine, &mapped.world.machine, mapped.file);
            mapped.change(0, 8, Change::Write, || machine.write_storage(file, 0, &[1; 8]));
            machine.write_storage(file, 3 * PAGE_BYTES, &9u64.to_le_bytes());
            engine.look_for_changes(file);
            assert_eq!(mapped.get(3 * PAGE_BYTES), 9);
        }
    });
}

/// Of two writes of somebody outside in one tick, the second was not seen if the first was.
#[test]
fn a_second_write_by_others_in_a_tick_is_seen() {
    watched(30, || {
        let mapped = ticking(false);
        let (engine, machine, file) = (&mapped.world.engine, &mapped.world.machine, mapped.file);
        let told = stamps_told(machine);
        let last = || *told.lock().unwrap().last().unwrap();
        for value in [7u64, 8, 9] {
            machine.write_storage(file, 3 * PAGE_BYTES, &value.to_le_bytes());
            assert!(engine.refresh_size(file, false));
            assert_eq!((mapped.get(3 * PAGE_BYTES), last()), (value, 0));
        }
        machine.lock().files[file as usize].tick_ns = Some(2000);
        assert!(engine.refresh_size(file, false), "after the tick once more");
        assert_ne!(last(), 0);
        assert!(!engine.refresh_size(file, false), "and then no more");
    });
}

/// It is told, too, while other pages are being written back, and while a client writes.
#[test]
fn what_others_wrote_is_followed_in_the_midst_of_writes() {
    watched(30, || {
        let mapped = Arc::new(Mapped::new(&Setup::default(), 4 * PAGE_BYTES));
        (0..4).for_each(|page| assert_ne!(mapped.get(page * PAGE_BYTES), 9));
        let (engine, machine, file) = (&mapped.world.engine, &mapped.world.machine, mapped.file);
        engine.hears(file);
        mapped.put(0, 1);
        let (within, nine) = (Arc::downgrade(&mapped), 9u64.to_le_bytes());
        *machine.after_store.lock().unwrap() = Some(Box::new(move |machine| {
            let mapped = within.upgrade().unwrap();
            let engine = &mapped.world.engine;
            // Of a write-back alone nobody is told, and nothing is dropped for it.
            assert!(!engine.refresh_size(file, false));
            machine.write_storage(file, 3 * PAGE_BYTES, &nine);
            engine.changed_outside(file);
        }));
        assert_eq!(engine.flush_all(), []);
        assert!(engine.refresh_size(file, false));
        assert_eq!((mapped.get(3 * PAGE_BYTES), mapped.get(0)), (9, 1));

        let ticket = engine.change_begin(file, 0, 8, Change::Write).unwrap();
        machine.write_storage(file, 0, &[1; 8]);
        machine.write_storage(file, 2 * PAGE_BYTES, &nine);
        engine.changed_outside(file);
        let written = |_: u64, piece: &mut [u8]| {
            piece.fill(1);
            Ok(())
        };
        engine.change_end(file, ticket, 0, 8, Some(written));
        assert!(engine.refresh_size(file, false));
        assert_eq!(mapped.get(2 * PAGE_BYTES), 9);
    });
}

/// The kernel sets a file's time before it writes, and tells of it afterwards: a time that was just seen
/// may be somebody's who is heard of next.
#[test]
fn a_time_is_doubted_until_all_was_heard_long_after_it_was_seen() {
    watched(30, || {
        let mapped = Mapped::new(&Setup::default(), 4 * PAGE_BYTES);
        let (engine, machine, file) = (&mapped.world.engine, &mapped.world.machine, mapped.file);
        let is_doubted = || machine.lock().files[file as usize].is_doubted;
        let settle = || {
            assert!(is_doubted());
            engine.end_doubt(file, 0);
            assert!(is_doubted(), "nothing was heard since");
            engine.end_doubt(file, u64::MAX);
            assert!(!is_doubted());
        };
        mapped.put(0, 1);
        assert_eq!(engine.flush_all(), []);
        assert!(!is_doubted(), "nobody is heard of");

        engine.hears(file);
        settle();
        mapped.put(0, 2);
        assert_eq!(engine.flush_all(), []);
        settle();
        engine.changed_outside(file);
        engine.end_doubt(file, u64::MAX);
        assert!(is_doubted(), "what is old is there");
        engine.refresh_size(file, false);
        settle();
        mapped.change(0, 8, Change::Write, || machine.write_storage(file, 0, &[1; 8]));
        settle();
    });
}

/// A file was looked at for holes when it was opened and when it grew, but not after a program
/// had punched one: a full disk was found at the write-back, when nobody could be told.
#[test]
fn a_full_disk_is_an_error_at_the_store_to_a_punched_hole() {
    watched(30, || {
        let mapped = Mapped::new(&Setup::default(), 20 * PAGE_BYTES);
        let machine = &mapped.world.machine;
        mapped.change(5 * PAGE_BYTES, 2 * PAGE_BYTES, Change::Other, || {
            let zeros = [0; 2 * PAGE_BYTES as usize];
            machine.write_storage(mapped.file, 5 * PAGE_BYTES, &zeros);
        });
        machine.lock().files[mapped.file as usize].full = [5, 6].into();
        let world = &mapped.world;
        let store =
            |page: u64| world.access(mapped.space, BASE + page * PAGE_BYTES, Access::Write(1), 1);
        assert!(store(5).is_err() && store(4).is_ok());
        assert_eq!(world.engine.flush_all(), []);
    });
}

/// A hole that was given storage looked like a file that somebody else had written to: each first
/// store to a page of a sparse file threw out what had been read of it, six times the file.
#[test]
fn a_hole_that_is_given_storage_is_no_change_by_somebody_else() {
    watched(30, || {
        let world = World::new(&Setup::default());
        let file = world.file_with_holes(vec![0; 16 * PAGE_BYTES as usize], true);
        let mapped = Mapped::of(world, file);
        for page in 0..16 {
            mapped.get(page * PAGE_BYTES);
        }
        let faults = |mapped: &Mapped| mapped.world.engine.stats().total.major_faults;
        let before = faults(&mapped);
        for page in 0..16 {
            mapped.put(page * PAGE_BYTES, page);
            mapped.world.engine.look_for_changes(mapped.file);
            mapped.get((page + 1) % 16 * PAGE_BYTES);
        }
        assert_eq!(faults(&mapped), before);
    });
}

/// The first to sync a file heard of a failed write-back, and nobody else: of two programs that
/// had stored to it, one was told that all is well.
#[test]
fn an_error_is_told_once_to_each_who_has_the_file_open() {
    watched(30, || {
        let setup = Setup { frames: 8, slack: None, ..Setup::default() };
        let mapped = Mapped::new(&setup, 40 * PAGE_BYTES);
        let engine = &mapped.world.engine;
        let flush = |heard: &mut u64| engine.flush_since(mapped.file, 0..40, heard);
        let mut first = engine.errors_so_far(mapped.file);
        let mut second = first;
        let bad = |pages: &[u64]| {
            mapped.world.machine.lock().files[mapped.file as usize].bad_stores =
                pages.iter().copied().collect();
        };
        bad(&[0]);
        mapped.put(0, 7);
        for page in 1..40 {
            mapped.get(page * PAGE_BYTES);
        }
        assert_eq!(flush(&mut first), Err(EIO), "met by an eviction, and again now");
        bad(&[]);
        assert_eq!(flush(&mut first), Ok(()), "once");
        assert_eq!(mapped.world.machine.storage_cell(mapped.file, 0), 7);
        let mut late = engine.errors_so_far(mapped.file);
        assert_eq!(flush(&mut late), Ok(()), "opened after somebody had been told");
        assert_eq!(flush(&mut second), Err(EIO), "though all is written by now");
        assert_eq!(flush(&mut second), Ok(()));
        // Nobody asked after this one: whoever comes hears of it.
        bad(&[3]);
        mapped.put(3 * PAGE_BYTES, 8);
        assert_eq!(engine.write_behind(), Err(EIO));
        bad(&[]);
        assert_eq!(engine.write_behind(), Ok(()));
        let mut next = engine.errors_so_far(mapped.file);
        for heard in [&mut next, &mut first, &mut second, &mut late] {
            assert_eq!((flush(heard), flush(heard)), (Err(EIO), Ok(())));
        }
    });
}

/// A read that had looked at the file's length, and copied when the file had been cut and its last
/// page cleared behind the new end, showed zeros that never were in the file.
#[test]
fn a_read_beside_a_cut_shows_what_was_there() {
    for seed in 1..6 {
        watched(60, move || {
            let setup = Setup { seed, frames: 16, ..Setup::default() };
            let whole = 3 * PAGE_BYTES;
            let mapped = Arc::new(Mapped::new(&setup, whole));
            mapped.world.machine.chaos.set(&mapped.world.machine.chaos.delay, 300);
            let cutter = {
                let mapped = mapped.clone();
                std::thread::spawn(move || {
                    for i in 0..300u64 {
                        let end = (i * 1237) % whole;
                        mapped.change(end, u64::MAX, Change::Truncate, || {
                            mapped.world.machine.set_storage_len(mapped.file, end);
                        });
                        mapped.append(&vec![b'a'; (whole - end) as usize]);
                    }
                })
            };
            while !cutter.is_finished() {
                let all_there = |bytes: &[u8], at: u64| {
                    assert!(bytes.iter().all(|byte| *byte == b'a'), "from {at} on");
                    Ok(())
                };
                mapped.world.engine.read(mapped.file, 0, whole, all_there).unwrap();
            }
            cutter.join().unwrap();
        });
    }
}

/// A page that was being mapped while a fence went up, and was stored to before it was protected, became
/// dirty behind the fence: its write-back then undid the change.
#[test]
fn a_store_to_a_page_that_is_protected_late_does_not_undo_a_change_beside_it() {
    for seed in 1..5 {
        watched(60, move || {
            let setup = Setup { seed, ..Setup::default() };
            let mapped = Mapped::new(&setup, PAGE_BYTES);
            let (engine, machine) = (&mapped.world.engine, &mapped.world.machine);
            machine.chaos.set(&machine.chaos.delay, 600);
            machine.chaos.late.store(true, SeqCst);
            for round in 1..400 {
                std::thread::scope(|scope| {
                    scope.spawn(|| mapped.get(0));
                    scope.spawn(|| {
                        // Another thread of the program, which finds the page mapped.
                        std::thread::sleep(Duration::from_micros(round % 40 * 10));
                        mapped.world.access(mapped.space, BASE, Access::Write(round), 2).unwrap();
                    });
                    machine.chaos.delay();
                    mapped.change(8, 8, Change::Other, || {
                        machine.write_storage(mapped.file, 8, &round.to_le_bytes());
                    });
                });
                assert_eq!((mapped.get(0), mapped.get(8)), (round, round));
                engine.flush(mapped.file, 0..1).unwrap();
                // Absent, and mapped anew.
                mapped.change(0, 8, Change::Other, || ());
            }
        });
    }
}

/// Who set a file's times, and who forked, waited until no page of it was being read: with many readers,
/// for as long as they read.
#[test]
fn what_begins_to_be_read_later_is_not_waited_for() {
    for sets_times in [true, false] {
        watched(30, move || {
            let setup = Setup { handlers: 0, ..Setup::default() };
            let mapped = Mapped::new(&setup, 64 * PAGE_BYTES);
            let (engine, file) = (&mapped.world.engine, mapped.file);
            let read = |page: u64, tid| {
                mapped.world.access(mapped.space, BASE + page * PAGE_BYTES, Access::Read, tid)
            };
            let come_to_rest = || match sets_times {
                true => engine.write_out_at_rest(file).map(|()| None),
                false => engine.change_begin(file, 0, 64 * PAGE_BYTES, Change::Hold).map(Some),
            };
            [10, 40].into_iter().for_each(|page| mapped.hold_load(page, true));
            let ticket = std::thread::scope(|scope| {
                scope.spawn(|| read(10, 1));
                mapped.await_load(10);
                let waiting = scope.spawn(come_to_rest);
                std::thread::sleep(Duration::from_millis(20));
                let is_early = waiting.is_finished();
                scope.spawn(|| read(40, 2));
                mapped.await_load(40);
                mapped.hold_load(10, false);
                let mut looks = 0..5_000;
                while !waiting.is_finished() && looks.next().is_some() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let is_late = !waiting.is_finished();
                mapped.hold_load(40, false);
                assert_eq!((is_early, is_late), (false, false), "sets times: {sets_times}");
                waiting.join().unwrap().unwrap()
            });
            if let Some(ticket) = ticket {
                engine.change_end(file, ticket, 0, 64 * PAGE_BYTES, None::<Bytes>);
            }
        });
    }
}

/// A page that is being fetched for a store as a change begins turns dirty yet, and is written back before
/// the change is made.
#[test]
fn what_is_being_fetched_for_a_store_comes_before_a_change() {
    watched(30, || {
        let setup = Setup { handlers: 0, ..Setup::default() };
        let mapped = Mapped::new(&setup, 64 * PAGE_BYTES);
        let (engine, machine, file) = (&mapped.world.engine, &mapped.world.machine, mapped.file);
        let at = 10 * PAGE_BYTES;
        mapped.hold_load(10, true);
        std::thread::scope(|scope| {
            scope.spawn(|| mapped.put(at, 7));
            mapped.await_load(10);
            let begun = scope.spawn(|| engine.change_begin(file, at + 8, 8, Change::Other));
            std::thread::sleep(Duration::from_millis(20));
            let is_early = begun.is_finished();
            mapped.hold_load(10, false);
            let ticket = begun.join().unwrap().unwrap();
            assert!(!is_early && engine.dirty_pages(file) == 0);
            machine.write_storage(file, at + 8, &9u64.to_le_bytes());
            engine.change_end(file, ticket, at + 8, 8, None::<Bytes>);
        });
        assert_eq!((mapped.get(at), mapped.get(at + 8)), (7, 9));
    });
}

/// What was stored to a page that somebody wrote to by system calls was passed over, and not in the file
/// when a program was begun that reads it there, nor when a lock was given up which it was stored under.
#[test]
fn what_is_being_changed_is_written_for_who_looks_next() {
    for for_outside in [true, false] {
        watched(30, move || {
            let mapped = Mapped::new(&Setup::default(), 4 * PAGE_BYTES);
            let (engine, machine, file) =
                (&mapped.world.engine, &mapped.world.machine, mapped.file);
            (0..3).for_each(|page| mapped.put(page * PAGE_BYTES, 7 + page));
            let ticket = engine.change_begin(file, PAGE_BYTES + 8, 8, Change::Write).unwrap();
            std::thread::scope(|scope| {
                let writing = scope.spawn(|| match for_outside {
                    true => engine.write_for_outside(),
                    false => engine.write_out_changing(file, Duration::from_secs(20)),
                });
                // All others first, by what is stored: one may be dirty anew, where a fault that was served
                // by another's is answered yet.
                let is_stored = |page| machine.storage_cell(file, page * PAGE_BYTES) == 7 + page;
                while !(is_stored(0) && is_stored(2)) {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(20));
                let is_early = writing.is_finished();
                machine.write_storage(file, PAGE_BYTES + 8, &9u64.to_le_bytes());
                engine.change_end(file, ticket, PAGE_BYTES + 8, 8, None::<Bytes>);
                assert_eq!((writing.join().unwrap(), is_early), (Ok(()), false));
            });
            let stored = |at| machine.storage_cell(file, at);
            let now = [0, PAGE_BYTES, PAGE_BYTES + 8, 2 * PAGE_BYTES].map(stored);
            assert_eq!(now, [7, 8, 9, 9]);
        });
    }
}

/// A program that is stopped in the midst of a change keeps nobody for ever, and all else is written.
#[test]
fn a_change_that_does_not_end_is_passed_over_in_the_end() {
    watched(30, || {
        let mapped = Mapped::new(&Setup::default(), 4 * PAGE_BYTES);
        let (engine, machine, file) = (&mapped.world.engine, &mapped.world.machine, mapped.file);
        for how in 0..3 {
            (0..3).for_each(|page| mapped.put(page * PAGE_BYTES, how + page));
            let ticket = engine.change_begin(file, PAGE_BYTES, 8, Change::Write).unwrap();
            let written = match how {
                0 => engine.write_behind(),
                1 => engine.write_for_outside(),
                _ => engine.write_out_changing(file, Duration::from_millis(10)),
            };
            // Others may be dirty anew: a fault that was served by another's is answered yet.
            let place = Place { segment: Segment(file), index: 1 };
            let is_left = engine.is_dirty(Run { place, pages: 1, demanded: 0 });
            assert_eq!((written, is_left), (Ok(()), true));
            let stored = [0, 2].map(|page| machine.storage_cell(file, page * PAGE_BYTES));
            assert_eq!(stored, [how, how + 2]);
            engine.change_end(file, ticket, PAGE_BYTES, 0, None::<Bytes>);
        }
    });
}
