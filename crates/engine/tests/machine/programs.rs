//! Random programs on a machine that delays and reorders, against a model that is exact per cell:
//! no value is lost, stale or zero, and in the end storage holds them all.

use crate::fake::{Access, CELLS_PER_PAGE, Rng, World, cell_offset, watched, world::Setup};
use pagekeeper::engine::stats::POLICY_REPORTS_MAX;
use pagekeeper::engine::transfer::Change;
use pagekeeper::port::{FileNo, PAGE_BYTES, SpaceNo};
use pagekeeper_frames::Config;
use pagekeeper_hipec::HipecPolicy;
use pagekeeper_policy::{Checked, PolicySpec};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

const PAGES: u64 = 40;
const CELLS: u64 = PAGES * CELLS_PER_PAGE;
const FILES: usize = 3;
/// The file whose length changes. It is mapped shared only: a truncation takes private copies.
const RESIZED: usize = 0;
const SLOTS: u64 = 3;
/// Victims that stay because a change of theirs is open, and frames given back by one thread
/// while another still evicts for having less of them.
const SLACK: Option<usize> = Some(4);
/// How a value came about: by a store, by `pwrite(2)`, by a change that the cache was not told.
const STORED: u64 = 1;
const WRITTEN: u64 = 2;
const CHANGED: u64 = 3;

struct ModelFile {
    no: FileNo,
    cells: Vec<Mutex<u64>>,
    /// Cells inside the file. Held for writing while the length changes.
    length: RwLock<u64>,
}

struct Test {
    world: World,
    files: Vec<ModelFile>,
    next_value: AtomicU64,
    next_tid: AtomicU32,
    forks: AtomicU32,
}

#[derive(Clone, Debug)]
struct Mapping {
    file: usize,
    first: u64,
    pages: u64,
    addr: u64,
    shared: bool,
    /// Private pages: the program's own cells.
    own: HashMap<u64, [u64; CELLS_PER_PAGE as usize]>,
}

/// One thread of a program.
struct Program {
    test: Arc<Test>,
    space: SpaceNo,
    tid: u32,
    /// Base of this thread's addresses.
    base: u64,
    mappings: Vec<Option<Mapping>>,
    rng: Rng,
}

fn bytes(cell: &MutexGuard<'_, u64>) -> [u8; 8] {
    cell.to_le_bytes()
}

impl Program {
    /// A value never used before; its last digits say how it was written.
    fn value(&self, how: u64) -> u64 {
        self.test.next_value.fetch_add(1, Ordering::Relaxed) * 10 + how
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..70 => self.touch(),
            70..77 => self.read(),
            77..83 => self.write(),
            83..87 => self.flush(),
            87..89 => self.prefetch(),
            89..93 => self.map(),
            93..94 => self.unmap_part(),
            94..96 => self.remap(),
            96..97 => self.fork(),
            97..98 => self.resize(),
            98..99 => self.change_otherwise(),
            _ => self.forget_copies(),
        }
    }

    /// Loads or stores a cell.
    fn touch(&mut self) {
        let slot = self.rng.below(SLOTS) as usize;
        let Some(mapping) = self.mappings[slot].clone() else { return self.map_at(slot) };
        let test = self.test.clone();
        let file = &test.files[mapping.file];
        let length = file.length.read().unwrap();
        let page = mapping.first + self.rng.below(mapping.pages);
        let in_page = self.rng.below(CELLS_PER_PAGE);
        let cell = page * CELLS_PER_PAGE + in_page;
        if cell >= *length {
            return;
        }
        let addr = mapping.addr + cell_offset(cell) - mapping.first * PAGE_BYTES;
        let write = self.rng.one_in(3);
        let access = |what| {
            let got = test.world.access(self.space, addr, what, self.tid);
            got.unwrap_or_else(|_| panic!("SIGBUS at cell {cell} of file {}", mapping.file))
        };
        let what = || format!("cell {cell} of file {}, {mapping:x?}", mapping.file);
        if mapping.shared {
            let mut model = file.cells[cell as usize].lock().unwrap();
            if write {
                *model = self.value(STORED);
                access(Access::Write(*model));
            } else {
                assert_eq!(access(Access::Read), *model, "{}", what());
            }
            return;
        }
        if let Some(own) = mapping.own.get(&page) {
            let mut own = *own;
            if write {
                own[in_page as usize] = self.value(STORED);
                access(Access::Write(own[in_page as usize]));
            } else {
                assert_eq!(access(Access::Read), own[in_page as usize], "own {}", what());
            }
            self.mappings[slot].as_mut().unwrap().own.insert(page, own);
            return;
        }
        // The copy is made of what the page holds then.
        let first = page * CELLS_PER_PAGE;
        let all: Vec<_> = (first..first + CELLS_PER_PAGE)
            .map(|c| file.cells[c as usize].lock().unwrap())
            .collect();
        if write {
            let mut own: [u64; CELLS_PER_PAGE as usize] = std::array::from_fn(|i| *all[i]);
            own[in_page as usize] = self.value(STORED);
            access(Access::Write(own[in_page as usize]));
            self.mappings[slot].as_mut().unwrap().own.insert(page, own);
        } else {
            assert_eq!(access(Access::Read), *all[in_page as usize], "shared so far: {}", what());
        }
    }

    /// A file, its length held still, and a few neighbouring cells of it.
    fn some_cells(&mut self, most: u64) -> (usize, u64, u64) {
        let file = self.rng.below(FILES as u64) as usize;
        let first = self.rng.below(CELLS);
        (file, first, first + 1 + self.rng.below(most))
    }

    fn read(&mut self) {
        let (file, first, end) = self.some_cells(30);
        let test = self.test.clone();
        let file = &test.files[file];
        let length = file.length.read().unwrap();
        let end = end.min(*length);
        if first >= end {
            return;
        }
        let cells: Vec<_> = (first..end).map(|c| file.cells[c as usize].lock().unwrap()).collect();
        let (from, to) = (cell_offset(first), cell_offset(end - 1) + 8);
        let mut got = vec![0xee; (to - from) as usize];
        let done = test.world.engine.read(file.no, from, to - from, |piece, at| {
            got[at as usize..at as usize + piece.len()].copy_from_slice(piece);
            Ok(())
        });
        assert_eq!(done, Ok(to - from));
        for (cell, model) in (first..).zip(&cells) {
            let at = (cell_offset(cell) - from) as usize;
            assert_eq!(got[at..at + 8], bytes(model), "read of cell {cell}");
        }
    }

    /// `pwrite(2)` past the cache.
    fn write(&mut self) {
        let most = if self.rng.one_in(3) { 30 } else { 1 };
        let (file, first, end) = self.some_cells(most);
        let test = self.test.clone();
        let file = &test.files[file];
        let length = file.length.read().unwrap();
        let end = end.min(*length);
        if first >= end {
            return;
        }
        let mut cells: Vec<_> =
            (first..end).map(|c| file.cells[c as usize].lock().unwrap()).collect();
        let (from, to) = (cell_offset(first), cell_offset(end - 1) + 8);
        let mut data = vec![0; (to - from) as usize];
        for (cell, model) in (first..).zip(&mut cells) {
            **model = self.value(WRITTEN);
            let at = (cell_offset(cell) - from) as usize;
            data[at..at + 8].copy_from_slice(&bytes(model));
        }
        let engine = &test.world.engine;
        let len = data.len() as u64;
        let ticket = engine.change_begin(file.no, from, len, Change::Write).unwrap();
        test.world.machine.chaos.delay();
        test.world.machine.write_storage(file.no, from, &data);
        test.world.machine.chaos.delay();
        let give = |at: u64, piece: &mut [u8]| {
            piece.copy_from_slice(&data[at as usize..at as usize + piece.len()]);
            Ok(())
        };
        engine.change_end(file.no, ticket, from, len, Some(give));
    }

    /// A change that the cache learns nothing of but the range.
    fn change_otherwise(&mut self) {
        let (file, first, end) = self.some_cells(10);
        let test = self.test.clone();
        let file = &test.files[file];
        let length = file.length.read().unwrap();
        let end = end.min(*length);
        if first >= end {
            return;
        }
        let mut cells: Vec<_> =
            (first..end).map(|c| file.cells[c as usize].lock().unwrap()).collect();
        let (from, to) = (cell_offset(first), cell_offset(end - 1) + 8);
        let engine = &test.world.engine;
        let ticket = engine.change_begin(file.no, from, to - from, Change::Other).unwrap();
        for (cell, model) in (first..).zip(&mut cells) {
            **model = self.value(CHANGED);
            test.world.machine.write_storage(file.no, cell_offset(cell), &bytes(model));
        }
        type Bytes = fn(u64, &mut [u8]) -> Result<(), pagekeeper::port::PortError>;
        engine.change_end(file.no, ticket, from, to - from, None::<Bytes>);
    }

    fn flush(&mut self) {
        let (file, first, end) = self.some_cells(60);
        let engine = &self.test.world.engine;
        let pages = first / CELLS_PER_PAGE..end.div_ceil(CELLS_PER_PAGE);
        match self.rng.below(8) {
            0 => engine.write_behind().unwrap(),
            1 => drop(engine.refresh_size(self.test.files[file].no, false)),
            _ => engine.flush(self.test.files[file].no, pages).unwrap(),
        }
    }

    fn prefetch(&mut self) {
        let (file, first, _) = self.some_cells(1);
        let pages = self.rng.below(20);
        self.test.world.engine.prefetch(self.test.files[file].no, first / CELLS_PER_PAGE, pages);
    }

    fn addr(&self, slot: usize) -> u64 {
        self.base + slot as u64 * 0x100_0000
    }

    fn map(&mut self) {
        let slot = self.rng.below(SLOTS) as usize;
        if let Some(old) = self.mappings[slot].take()
            && self.rng.one_in(2)
        {
            // Otherwise mapped over, as MAP_FIXED does.
            self.test.world.munmap(self.space, old.addr..old.addr + old.pages * PAGE_BYTES);
        }
        self.map_at(slot);
    }

    fn map_at(&mut self, slot: usize) {
        let file = self.rng.below(FILES as u64) as usize;
        let first = self.rng.below(PAGES - 1);
        let pages = 1 + self.rng.below(PAGES - first);
        let shared = file == RESIZED || self.rng.below(3) > 0;
        let addr = self.addr(slot);
        // A mapping that is larger than the next one must go, or parts of it stay.
        self.test.world.munmap(self.space, addr..addr + 0x100_0000);
        let no = self.test.files[file].no;
        self.test.world.mmap(self.space, addr, no, first, pages, shared);
        let own = HashMap::new();
        self.mappings[slot] = Some(Mapping { file, first, pages, addr, shared, own });
    }

    fn unmap_part(&mut self) {
        let slot = self.rng.below(SLOTS) as usize;
        let Some(mapping) = &mut self.mappings[slot] else { return };
        if mapping.pages < 2 {
            return;
        }
        let keep = 1 + self.rng.below(mapping.pages - 1);
        let range = mapping.addr + keep * PAGE_BYTES..mapping.addr + mapping.pages * PAGE_BYTES;
        mapping.pages = keep;
        let first = mapping.first;
        mapping.own.retain(|page, _| *page < first + keep);
        self.test.world.munmap(self.space, range);
    }

    fn remap(&mut self) {
        let slot = self.rng.below(SLOTS) as usize;
        let addr = self.addr(slot);
        let Some(mapping) = &mut self.mappings[slot] else { return };
        let to = if mapping.addr == addr { addr + 0x80_0000 } else { addr };
        self.test.world.mremap(self.space, mapping.addr, to, mapping.pages * PAGE_BYTES);
        mapping.addr = to;
    }

    fn fork(&mut self) {
        if self.test.forks.fetch_add(1, Ordering::Relaxed) >= 12 {
            return;
        }
        let child = self.test.world.fork(self.space);
        let mut program = Program {
            test: self.test.clone(),
            space: child,
            tid: self.test.next_tid.fetch_add(1, Ordering::Relaxed),
            base: self.base,
            mappings: self.mappings.clone(),
            rng: Rng(self.rng.next()),
        };
        let child_runs = std::thread::spawn(move || {
            for _ in 0..120 {
                program.step();
            }
            program.test.world.exit(program.space);
        });
        for _ in 0..120 {
            self.step();
        }
        child_runs.join().expect("the child's expectations hold");
    }

    fn resize(&mut self) {
        let test = self.test.clone();
        let file = &test.files[RESIZED];
        let mut length = file.length.write().unwrap();
        let cells = CELLS_PER_PAGE + self.rng.below(CELLS - CELLS_PER_PAGE);
        let in_page = cells % CELLS_PER_PAGE;
        // The new end lies just before the first cell that goes.
        let bytes = cells / CELLS_PER_PAGE * PAGE_BYTES + in_page * 1000;
        let engine = &test.world.engine;
        let ticket = engine.change_begin(file.no, bytes, u64::MAX, Change::Truncate).unwrap();
        test.world.machine.set_storage_len(file.no, bytes);
        type Bytes = fn(u64, &mut [u8]) -> Result<(), pagekeeper::port::PortError>;
        engine.change_end(file.no, ticket, bytes, 0, None::<Bytes>);
        for cell in cells..CELLS {
            *file.cells[cell as usize].lock().unwrap() = 0;
        }
        *length = cells;
    }

    /// `madvise(2)` DONTNEED: private copies go.
    fn forget_copies(&mut self) {
        let slot = self.rng.below(SLOTS) as usize;
        let Some(mapping) = &mut self.mappings[slot] else { return };
        mapping.own.clear();
        let range = mapping.addr..mapping.addr + mapping.pages * PAGE_BYTES;
        self.test.world.forget(self.space, range);
    }
}

#[derive(Clone)]
struct Run {
    setup: Setup,
    threads: usize,
    spaces: usize,
    steps: usize,
    again: u32,
    holes: bool,
    /// How often storage keeps what it is given in memory, and gives it away.
    keeps: u32,
    /// Pages are protected only after they were mapped.
    late: bool,
    /// Policies that take over one after the other while the programs run.
    swaps: Vec<PolicySpec>,
}

fn run(run: Run) {
    let world = World::new(&run.setup);
    let chaos = &world.machine.chaos;
    chaos.set(&chaos.delay, 250);
    chaos.set(&chaos.again, run.again);
    chaos.set(&chaos.keeps, run.keeps);
    chaos.set(&chaos.overdue, 30);
    chaos.late.store(run.late, Ordering::Relaxed);
    let files = (0..FILES)
        .map(|_| ModelFile {
            no: world.file_with_holes(vec![0; (PAGES * PAGE_BYTES) as usize], run.holes),
            cells: (0..CELLS).map(|_| Mutex::new(0)).collect(),
            length: RwLock::new(CELLS),
        })
        .collect();
    let spaces: Vec<SpaceNo> = (0..run.spaces).map(|_| world.space()).collect();
    let test = Arc::new(Test {
        world,
        files,
        next_value: AtomicU64::new(1),
        next_tid: AtomicU32::new(1000),
        forks: AtomicU32::new(0),
    });
    let mut threads = Vec::new();
    for i in 0..run.threads {
        let mut program = Program {
            test: test.clone(),
            space: spaces[i % spaces.len()],
            tid: i as u32 + 1,
            base: 0x10_0000_0000 * (i as u64 + 1),
            mappings: vec![None; SLOTS as usize],
            rng: Rng(run.setup.seed.wrapping_mul(977) + i as u64),
        };
        let steps = run.steps;
        threads.push(std::thread::spawn(move || {
            for _ in 0..steps {
                program.step();
            }
        }));
    }
    let over = Arc::new(AtomicBool::new(run.swaps.is_empty()));
    let swapping = (!run.swaps.is_empty()).then(|| {
        let (test, over, swaps) = (test.clone(), over.clone(), run.swaps.clone());
        std::thread::spawn(move || {
            let mut swapped = 0;
            for spec in swaps.iter().cycle() {
                test.world.engine.replace_policy(spec, 1).unwrap();
                swapped += 1;
                if over.load(Ordering::Relaxed) && swapped >= swaps.len() {
                    return swapped;
                }
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
            swapped
        })
    });
    let failed = threads.into_iter().filter_map(|t| t.join().err()).count();
    assert_eq!(failed, 0, "{failed} programs saw something wrong, setup {:?}", run.setup);
    over.store(true, Ordering::Relaxed);
    let engine = &test.world.engine;
    if let Some(swapping) = swapping {
        let swapped = swapping.join().expect("policies take over");
        let reported = (swapped + 1).min(POLICY_REPORTS_MAX + 1);
        assert_eq!(engine.stats().policies.len(), reported, "each is reported");
    }
    assert_eq!(engine.flush_all(), []);
    for file in &test.files {
        assert_eq!(engine.dirty_pages(file.no), 0);
        let length = *file.length.read().unwrap();
        for cell in 0..length {
            let stored = test.world.machine.storage_cell(file.no, cell_offset(cell));
            assert_eq!(stored, *file.cells[cell as usize].lock().unwrap(), "stored cell {cell}");
        }
    }
    // Handlers may be finishing what nobody waits for.
    while !engine.describe().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(engine.stats().failed_faults, 0);
}

fn runs(seed: u64, policy: &'static str, frames: u32, handlers: usize, config: Option<Config>) {
    on(0, false, seed, policy, frames, handlers, config);
}

/// [`runs`], where storage `keeps` pages so often, or pages are protected `late`.
fn on(
    keeps: u32,
    late: bool,
    seed: u64,
    policy: &'static str,
    frames: u32,
    handlers: usize,
    config: Option<Config>,
) {
    // More of them to hunt for a rare interleaving.
    let more = std::env::var("PAGEKEEPER_TEST_SEEDS").ok().and_then(|n| n.parse().ok());
    for seed in (0..more.unwrap_or(1u64)).map(|n| seed + n * 100) {
        let setup = Setup { policy, frames, seed, handlers, config, slack: SLACK };
        watched(60, move || {
            let holes = seed % 2 == 0;
            let swaps = Vec::new();
            let (threads, spaces, steps, again) = (4, 2, 700, 30);
            run(Run { setup, threads, spaces, steps, again, holes, keeps, late, swaps });
        });
    }
}

#[test]
fn lru_with_handlers() {
    runs(1, "lru", 24, 2, None);
}

#[test]
fn mru_with_handlers_at_the_fewest_frames() {
    runs(2, "mru", 8, 2, None);
}

#[test]
fn fifo_served_inline() {
    runs(3, "fifo", 16, 0, None);
}

#[test]
fn clock_with_one_handler() {
    runs(4, "clock", 12, 1, None);
}

#[test]
fn fifo2_with_many_handlers() {
    runs(5, "fifo2", 40, 6, None);
}

#[test]
fn random_at_the_fewest_frames_inline() {
    runs(6, "random", 8, 0, None);
}

#[test]
fn recording_sees_every_touch_and_loses_nothing() {
    runs(7, "lru", 32, 2, Some(Config::recording(32, 8)));
}

#[test]
fn all_fits_in_memory() {
    runs(8, "mru", 200, 2, None);
}

/// What storage kept in memory and gave away is in frames alone, and storage has something else: a
/// page that counted as clean then would come back as that.
#[test]
fn what_storage_gave_away_is_written_again() {
    on(700, false, 12, "lru", 24, 2, None);
    on(700, false, 13, "fifo", 16, 0, None);
    on(1000, false, 14, "mru", 40, 4, None);
    on(700, false, 15, "lru", 32, 2, Some(Config::recording(32, 8)));
}

/// What is stored to a page before it is protected raises no fault: it would count as clean, and be
/// lost when it leaves.
#[test]
fn what_is_stored_before_a_page_is_protected_is_seen() {
    on(0, true, 16, "lru", 24, 2, None);
    on(0, true, 17, "fifo", 16, 0, None);
    on(0, true, 18, "mru", 8, 4, None);
    on(700, true, 19, "clock", 40, 4, None);
    on(0, true, 20, "lru", 32, 2, Some(Config::recording(32, 8)));
}

/// A program that asks for all that can be asked for. What it keeps is counted as little as LRU's,
/// so that the frames of a test stay as many.
fn wishful() -> PolicySpec {
    const TEXT: &str = "Queue all;
        Int turn;
        Event PageFault() {
            EnQueue(FaultedPage, all, TAIL);
            turn++;
            if (turn % 2 == 0) Prefetch(FaultedAddress + 1, 3);
            if (turn % 3 == 1) UnMap(FaultedPage);
            if (turn % 5 == 2) Flush(FaultedPage);
            if (turn % 7 == 3) Map(FaultedPage, FaultedAddress);
        }
        Event Reference() {
            if (Mod(FaultedPage)) Flush(FaultedPage);
            else UnMap(FaultedPage);
            EnQueue(FaultedPage, all, TAIL);
        }
        Event Replace() { return DeQueue(all, HEAD); }";
    let (program, _) = pagekeeper_hipec::load("wishful", TEXT.as_bytes()).unwrap();
    let program = Arc::new(program);
    let info = pagekeeper_policy::find("lru").unwrap();
    PolicySpec::loaded(info, "wishful", None, &[], move |_, frames, _| {
        Box::new(Checked::new(HipecPolicy::new(program.clone(), frames), frames))
    })
    .unwrap()
}

fn with_swaps(seed: u64, frames: u32, handlers: usize, names: &[&str]) {
    let swaps: Vec<PolicySpec> = names
        .iter()
        .map(|name| match *name {
            "wishful" => wishful(),
            name => PolicySpec::parse(name).unwrap(),
        })
        .collect();
    // Pages fetched ahead by wish come in before others have left.
    let slack = Some(16);
    let setup = Setup { policy: "lru", frames, seed, handlers, config: None, slack };
    watched(60, move || {
        let (holes, keeps, late) = (false, 0, false);
        run(Run { setup, threads: 4, spaces: 2, steps: 700, again: 30, holes, keeps, late, swaps });
    });
}

#[test]
fn policies_take_over_while_programs_run() {
    with_swaps(9, 24, 2, &["fifo", "lru", "lru", "fifo"]);
}

#[test]
fn wishes_lose_nothing() {
    with_swaps(10, 24, 2, &["wishful"]);
}

#[test]
fn wishes_lose_nothing_inline_at_few_frames() {
    with_swaps(11, 12, 0, &["wishful", "fifo", "wishful"]);
}
