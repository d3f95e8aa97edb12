//! The power fails, at every step. Storage keeps what was synced; of what came after, any sector
//! may be there or not. What a program was told is durable must be there, and no sector may hold
//! what nobody wrote.

use crate::fake::machine::{Event, Page};
use crate::fake::{Access, CELLS_PER_PAGE, Rng, World, cell_offset, watched, world::Setup};
use pagekeeper::engine::transfer::Change;
use pagekeeper::port::{FileNo, PAGE_BYTES, SpaceNo};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BASE: u64 = 0x7000_0000_0000;
const PAGES: u64 = 20;
const SECTOR_BYTES: usize = 512;
/// Ways the sectors in flight can come out, tried at each step.
const CUTS_PER_STEP: usize = 3;

/// A value says whose it is, where it belongs, and the how-manieth it is there.
fn value(by: u64, page: u64, sequence: u64) -> u64 {
    (by + 1) << 56 | page << 40 | sequence
}

struct Shared {
    world: World,
    file: FileNo,
    space: SpaceNo,
}

/// Writes its own cell of every page, through the mapping and by system calls, and syncs.
fn program(shared: &Shared, by: u64, steps: u64, seed: u64) {
    let (world, file) = (&shared.world, shared.file);
    let mut rng = Rng(seed * 31 + by);
    let mut written = vec![0u64; PAGES as usize];
    for _ in 0..steps {
        let page = rng.below(PAGES);
        let at = cell_offset(page * CELLS_PER_PAGE + by);
        match rng.below(24) {
            0 => {
                let pages = 0..PAGES;
                if world.engine.flush(file, pages).is_ok() {
                    let mut state = world.machine.lock();
                    let journal = state.files[file as usize].journal.as_mut().unwrap();
                    journal.push(Event::Synced);
                    journal.push(Event::Told { by, written: written.clone() });
                }
            }
            1..4 => {
                let new = value(by, page, written[page as usize] + 1);
                let ticket = world.engine.change_begin(file, at, 8, Change::Write).unwrap();
                world.machine.write_storage(file, at, &new.to_le_bytes());
                let give = |_, piece: &mut [u8]| {
                    piece.copy_from_slice(&new.to_le_bytes());
                    Ok(())
                };
                world.engine.change_end(file, ticket, at, 8, Some(give));
                written[page as usize] += 1;
            }
            _ => {
                let new = value(by, page, written[page as usize] + 1);
                let done =
                    world.access(shared.space, BASE + at, Access::Write(new), 10 + by as u32);
                assert_eq!(done, Ok(new));
                written[page as usize] += 1;
            }
        }
    }
}

/// What may be on storage: of each page what is durable, and what came since.
struct Disk {
    durable: Vec<Page>,
    in_flight: Vec<Vec<Page>>,
}

impl Disk {
    fn follow(&mut self, event: &Event) {
        match event {
            Event::Stored { index, page } => self.in_flight[*index as usize].push(page.clone()),
            Event::Synced => {
                for (durable, came) in self.durable.iter_mut().zip(&mut self.in_flight) {
                    *durable = came.drain(..).next_back().unwrap_or(durable.clone());
                }
            }
            Event::Told { .. } => {}
        }
    }

    /// A cell after a power cut: its sector is of any moment since the last sync.
    fn cell(&self, page: u64, by: u64, rng: &mut Rng) -> u64 {
        let came = &self.in_flight[page as usize];
        let at = (cell_offset(by) % PAGE_BYTES) as usize;
        assert!(at / SECTOR_BYTES == (at + 7) / SECTOR_BYTES, "a cell is in one sector");
        let picked = match rng.below(came.len() as u64 + 1) {
            0 => &self.durable[page as usize],
            n => &came[n as usize - 1],
        };
        u64::from_le_bytes(picked[at..at + 8].try_into().unwrap())
    }
}

fn cut_everywhere(journal: &[Event], seed: u64) -> (usize, usize) {
    let empty = Page::new([0; PAGE_BYTES as usize]);
    let mut disk =
        Disk { durable: vec![empty; PAGES as usize], in_flight: vec![Vec::new(); PAGES as usize] };
    let mut told = vec![vec![0u64; PAGES as usize]; CELLS_PER_PAGE as usize];
    let mut rng = Rng(seed);
    let mut promises = 0;
    for (step, event) in journal.iter().enumerate() {
        disk.follow(event);
        if let Event::Told { by, written } = event {
            told[*by as usize] = written.clone();
            promises += 1;
        }
        for _ in 0..CUTS_PER_STEP {
            for (page, by) in (0..PAGES).flat_map(|p| (0..CELLS_PER_PAGE).map(move |by| (p, by))) {
                let got = disk.cell(page, by, &mut rng);
                let least = told[by as usize][page as usize];
                let sequence = got & 0xff_ffff_ffff;
                let own = got == 0 || got == value(by, page, sequence);
                assert!(own, "step {step}: page {page} has {got:#x} for {by}: nobody wrote it");
                assert!(sequence >= least, "step {step}: page {page} lost {least} of {by}");
            }
        }
    }
    (journal.len(), promises)
}

#[test]
fn what_was_synced_survives_a_power_cut_at_every_step() {
    let policies = ["lru", "mru", "clock", "fifo2"];
    for (seed, policy) in (1..).zip(policies) {
        for (frames, store_eio) in [(8, 0), (16, 40), (64, 0)] {
            watched(60, move || {
                let setup = Setup { policy, seed, frames, slack: None, ..Setup::default() };
                let world = World::new(&setup);
                let file = world.file(vec![0; (PAGES * PAGE_BYTES) as usize]);
                world.machine.lock().files[file as usize].journal = Some(Vec::new());
                let space = world.space();
                world.mmap(space, BASE, file, 0, PAGES, true);
                let chaos = &world.machine.chaos;
                chaos.set(&chaos.delay, 200);
                chaos.set(&chaos.store_eio, store_eio);
                let shared = Arc::new(Shared { world, file, space });
                let threads: Vec<_> = (0..CELLS_PER_PAGE)
                    .map(|by| {
                        let shared = shared.clone();
                        std::thread::spawn(move || program(&shared, by, 500, seed))
                    })
                    .collect();
                assert!(threads.into_iter().all(|t| t.join().is_ok()));
                shared.world.machine.chaos.store_eio.store(0, Ordering::Relaxed);
                let journal = {
                    let mut state = shared.world.machine.lock();
                    state.files[file as usize].journal.take().unwrap()
                };
                let (steps, promises) = cut_everywhere(&journal, seed);
                assert!(steps > 200 && promises > 3, "{steps} steps, {promises} promises");
            });
        }
    }
}
