//! The power fails at every step of a logged store. Both its storages keep what was synced; of what
//! came after, any sector may be there or not. What is recovered is one flush as a whole: the last
//! that was reported, or the one that was under way.

mod library_model;

use library_model::{PAGE, Rng};
use pagekeeper::library::{Logged, Store};
use std::io;
use std::sync::{Arc, Mutex};

const SECTOR: usize = 512;
/// Ways the sectors in flight can come out, tried at each step.
const CUTS_PER_STEP: usize = 4;
const PAGES: u64 = 12;

#[derive(Clone, Debug)]
enum Event {
    Store {
        device: usize,
        offset: u64,
        bytes: Vec<u8>,
    },
    Length {
        device: usize,
        len: u64,
    },
    Sync {
        device: usize,
    },
    /// A flush begins, after which the content is this.
    Begins(Vec<u8>),
    /// It was reported as durable.
    Told,
}

#[derive(Default, Debug)]
struct World {
    devices: [Vec<u8>; 2],
    events: Vec<Event>,
    /// The next so many calls fail, from then on.
    fails_after: Option<u32>,
}

impl World {
    fn fails(&mut self) -> io::Result<()> {
        match &mut self.fails_after {
            Some(0) => {
                self.fails_after = None;
                Err(io::Error::from_raw_os_error(5))
            }
            Some(n) => {
                *n -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

#[derive(Clone, Debug)]
struct Device(Arc<Mutex<World>>, usize);

impl Store for Device {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().devices[self.1].len() as u64)
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        pages.fill(0xee);
        let world = self.0.lock().unwrap();
        let bytes = &world.devices[self.1];
        let offset = (offset as usize).min(bytes.len());
        let len = pages.len().min(bytes.len() - offset);
        pages[..len].copy_from_slice(&bytes[offset..offset + len]);
        Ok(len)
    }

    fn store(&self, offset: u64, new: &[u8]) -> io::Result<()> {
        assert!(offset.is_multiple_of(PAGE as u64));
        let mut world = self.0.lock().unwrap();
        world.fails()?;
        let end = offset as usize + new.len();
        assert!(end <= world.devices[self.1].len(), "stored behind the end");
        world.devices[self.1][offset as usize..end].copy_from_slice(new);
        world.events.push(Event::Store { device: self.1, offset, bytes: new.to_vec() });
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut world = self.0.lock().unwrap();
        world.devices[self.1].resize(len as usize, 0);
        world.events.push(Event::Length { device: self.1, len });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.0.lock().unwrap();
        world.fails()?;
        world.events.push(Event::Sync { device: self.1 });
        Ok(())
    }
}

/// What may be on the two devices: durable content, and what came since, in order.
#[derive(Default)]
struct Disk {
    durable: [Vec<u8>; 2],
    in_flight: [Vec<Event>; 2],
}

fn apply(bytes: &mut Vec<u8>, event: &Event, mut keep: impl FnMut() -> bool) {
    match event {
        Event::Store { offset, bytes: new, .. } => {
            for (i, sector) in new.chunks(SECTOR).enumerate() {
                if keep() {
                    let at = *offset as usize + i * SECTOR;
                    bytes.resize(bytes.len().max(at + sector.len()), 0);
                    bytes[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        Event::Length { len, .. } if keep() => bytes.resize(*len as usize, 0),
        _ => {}
    }
}

impl Disk {
    fn follow(&mut self, event: &Event) {
        match event {
            Event::Store { device, .. } | Event::Length { device, .. } => {
                self.in_flight[*device].push(event.clone());
            }
            Event::Sync { device } => {
                for event in self.in_flight[*device].drain(..) {
                    apply(&mut self.durable[*device], &event, || true);
                }
            }
            Event::Begins(_) | Event::Told => {}
        }
    }

    fn cut(&self, rng: &mut Rng) -> World {
        // All, none, or some of what is in flight.
        let chance = [0, 50, 90, 100][rng.below(4) as usize];
        let devices = [0, 1].map(|device| {
            let mut bytes = self.durable[device].clone();
            for event in &self.in_flight[device] {
                apply(&mut bytes, event, || rng.below(100) < chance);
            }
            bytes
        });
        World { devices, ..World::default() }
    }
}

fn content(store: &impl Store) -> Vec<u8> {
    let len = store.len().unwrap() as usize;
    let mut bytes = vec![0; len.next_multiple_of(PAGE)];
    let had = store.load(0, &mut bytes).unwrap();
    assert_eq!(had, len);
    bytes.truncate(len);
    bytes
}

/// Random writes, truncations and flushes, some of which fail; all that happens is written down.
fn run(seed: u64, checkpoint_bytes: u64, failing: bool) -> Vec<Event> {
    let mut rng = Rng(seed);
    let world = Arc::new(Mutex::new(World::default()));
    world.lock().unwrap().devices[0] = vec![0; (PAGES / 2) as usize * PAGE];
    let (below, log) = (Device(world.clone(), 0), Device(world.clone(), 1));
    let mut logged = Logged::open(below.clone(), log.clone(), checkpoint_bytes).unwrap();
    let mut model = content(&logged);
    // What the last flush left, but for what was cut off since.
    let mut committed = model.clone();
    // Pages whose store failed are dirty in the cache, which tries again before it syncs.
    let mut dirty: Vec<(u64, Vec<u8>)> = Vec::new();
    for _ in 0..120 {
        let page = rng.below(PAGES);
        let offset = page * PAGE as u64;
        match rng.below(12) {
            0 => {
                let len = rng.below(PAGES * PAGE as u64);
                logged.set_len(len).unwrap();
                model.resize(len as usize, 0);
                committed.resize(len as usize, 0);
                dirty.retain(|(offset, _)| *offset < len);
                dirty.iter_mut().for_each(|(offset, bytes)| {
                    bytes.truncate((len - *offset).min(bytes.len() as u64) as usize);
                });
            }
            1 | 2 => {
                world.lock().unwrap().events.push(Event::Begins(model.clone()));
                dirty.retain(|(offset, bytes)| logged.store(*offset, bytes).is_err());
                if logged.sync().is_ok() {
                    assert!(dirty.is_empty(), "a batch that lacks pages is no success");
                    world.lock().unwrap().events.push(Event::Told);
                    committed.clone_from(&model);
                } else if rng.below(2) == 0 {
                    // Taken back.
                    logged.dropped(0, PAGES * PAGE as u64);
                    dirty.clear();
                    model.clone_from(&committed);
                }
            }
            3 if rng.below(8) == 0 && dirty.is_empty() => {
                // Closed and opened again, flushed: as after a crash, but for what is certain.
                world.lock().unwrap().fails_after = None;
                world.lock().unwrap().events.push(Event::Begins(model.clone()));
                if logged.sync().is_err() {
                    logged.sync().unwrap();
                }
                world.lock().unwrap().events.push(Event::Told);
                committed.clone_from(&model);
                drop(logged);
                logged = Logged::open(below.clone(), log.clone(), checkpoint_bytes).unwrap();
                assert!(content(&logged) == model);
            }
            4 if failing => world.lock().unwrap().fails_after = Some(rng.below(6) as u32),
            _ if offset < model.len() as u64 => {
                let most = (model.len() - offset as usize).min(3 * PAGE);
                let mut bytes = vec![0; most];
                bytes.iter_mut().for_each(|byte| *byte = rng.next() as u8);
                model[offset as usize..offset as usize + most].copy_from_slice(&bytes);
                for (i, page) in bytes.chunks(PAGE).enumerate() {
                    let at = offset + (i * PAGE) as u64;
                    dirty.retain(|(offset, _)| *offset != at);
                    if logged.store(at, page).is_err() {
                        dirty.push((at, page.to_vec()));
                    }
                }
            }
            _ => {}
        }
        if dirty.is_empty() {
            assert!(content(&logged) == model);
        }
    }
    drop(logged);
    std::mem::take(&mut world.lock().unwrap().events)
}

fn cut_everywhere(events: &[Event], seed: u64) -> (usize, usize) {
    let mut disk = Disk::default();
    disk.durable[0] = vec![0; (PAGES / 2) as usize * PAGE];
    let mut told = disk.durable[0].clone();
    // A flush that failed may be durable all the same, and none after it need be.
    let mut begun: Vec<Vec<u8>> = Vec::new();
    let mut rng = Rng(seed);
    let (mut flushes, mut ahead) = (0, 0);
    for (step, event) in events.iter().enumerate() {
        disk.follow(event);
        match event {
            Event::Begins(content) => begun.push(content.clone()),
            Event::Told => {
                told = begun.pop().unwrap();
                begun.clear();
                flushes += 1;
            }
            _ => {}
        }
        for _ in 0..CUTS_PER_STEP {
            let world = Arc::new(Mutex::new(disk.cut(&mut rng)));
            let open = || {
                Logged::open(Device(world.clone(), 0), Device(world.clone(), 1), 1 << 20).unwrap()
            };
            let logged = open();
            let found = content(&logged);
            let newer = begun.contains(&found);
            ahead += usize::from(newer && found != told);
            assert!(found == told || newer, "step {step}: no flush left this");
            // In place, and nothing of the log is needed any more; opened twice is opened once.
            assert!(world.lock().unwrap().devices[0] == found, "step {step}");
            drop(logged);
            assert!(content(&open()) == found, "step {step}");
        }
    }
    (flushes, ahead)
}

#[test]
fn a_flush_survives_a_power_cut_as_a_whole_or_not_at_all() {
    let (mut flushes, mut ahead) = (0, 0);
    for (seed, checkpoint_bytes, failing) in [
        (1, 0, false),
        (2, 100 << 10, false),
        (3, 1 << 30, false),
        (4, 0, true),
        (5, 60 << 10, true),
        (6, 1 << 30, true),
    ] {
        let events = run(seed, checkpoint_bytes, failing);
        let (f, a) = cut_everywhere(&events, seed);
        flushes += f;
        ahead += a;
    }
    assert!(flushes > 60, "{flushes} flushes");
    assert!(ahead > 10, "a flush that was not reported is there now and then: {ahead}");
}

/// A page of a program that holds a copy of the log's own descriptors is a page like any other.
#[test]
fn what_looks_like_a_batch_is_none() {
    let world = Arc::new(Mutex::new(World::default()));
    world.lock().unwrap().devices[0] = vec![0; 64 * PAGE];
    let open = |world: &Arc<Mutex<World>>| {
        Logged::open(Device(world.clone(), 0), Device(world.clone(), 1), 1 << 30).unwrap()
    };
    let logged = open(&world);
    logged.store(0, &[1; PAGE]).unwrap();
    logged.sync().unwrap();
    let log = world.lock().unwrap().devices[1].clone();
    for (i, page) in log.chunks(PAGE).take(40).enumerate() {
        logged.store((i as u64 + 10) * PAGE as u64, page).unwrap();
    }
    logged.sync().unwrap();
    logged.store(0, &[2; PAGE]).unwrap();
    logged.sync().unwrap();
    let found = content(&logged);
    drop(logged);
    assert!(content(&open(&world)) == found);
    assert_eq!(found[0], 2);
}
