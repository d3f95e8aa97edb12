//! Frames, page tables, storage, and threads that wait for their faults.

use super::chaos::Chaos;
use pagekeeper::engine::core::Fault;
use pagekeeper::engine::spaces::Region;
use pagekeeper::port::{FileNo, PAGE_BYTES, SpaceNo, Told, Version};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

pub type Page = Box<[u8; PAGE_BYTES as usize]>;

/// What a program does to eight bytes.
#[derive(Clone, Copy, Debug)]
pub enum Access {
    Read,
    Write(u64),
}

/// The access raised SIGBUS (or SIGSEGV where nothing is mapped).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bus;

/// What happened to a file's storage, for those who cut the power afterwards.
#[derive(Clone)]
pub enum Event {
    /// A page is on its way to storage, and may be there or not until the next `Synced`.
    Stored { index: u64, page: Page },
    /// All that was stored is durable.
    Synced,
    /// A program was told that what it had written so far is durable.
    Told { by: u64, written: Vec<u64> },
}

pub struct Frame {
    pub data: Page,
    /// A program stored here since the frame was last stored.
    pub dirty: bool,
}

#[derive(Default)]
pub struct FakeFile {
    pub frames: BTreeMap<u64, Frame>,
    /// Being read in place: nobody may take their frames.
    pub under_way: BTreeSet<u64>,
    /// Pages that clients store to by themselves at this moment, and how many: whoever finds that the
    /// page was being closed writes once more.
    pub stored_to: BTreeMap<u64, u32>,
    /// Pages that may be mapped.
    pub pages: u64,
    pub storage: Vec<u8>,
    pub mtime_ns: i128,
    /// What a change leaves as its time, where times count in ticks; otherwise each leaves another one.
    pub tick_ns: Option<i128>,
    /// Who runs the engine may not set its time.
    pub keeps_time: bool,
    /// Programs were told not to trust its time.
    pub is_doubted: bool,
    pub bad_loads: BTreeSet<u64>,
    pub bad_stores: BTreeSet<u64>,
    /// Reads of these pages do not end.
    pub held_loads: BTreeSet<u64>,
    /// Writes do not end.
    pub stands_still: bool,
    /// No block can be had for these pages.
    pub full: BTreeSet<u64>,
    pub loads: HashMap<u64, u32>,
    /// Pages that were asked for together, each time.
    pub together: Vec<Vec<u64>>,
    pub stores: HashMap<u64, u32>,
    pub reserved: BTreeSet<u64>,
    /// Pages that storage has in memory only.
    pub kept: BTreeSet<u64>,
    /// Kept if it is there.
    pub journal: Option<Vec<Event>>,
}

impl FakeFile {
    /// Its bytes or its length changed just now.
    pub fn changed(&mut self) {
        self.mtime_ns = self.tick_ns.unwrap_or(self.mtime_ns + 1);
    }

    /// A client's store to an open page came in time.
    pub fn is_in_time(&mut self, index: u64) {
        if let Some(clients) = self.stored_to.get_mut(&index) {
            *clients -= 1;
        }
        self.stored_to.retain(|_, clients| *clients > 0);
    }

    /// What a client stored too late was written once more.
    pub fn settle(&mut self, index: u64) {
        self.is_in_time(index);
        let from = (index * PAGE_BYTES) as usize;
        let stored = &self.storage[from..from + PAGE_BYTES as usize];
        if let Some(frame) = self.frames.get_mut(&index)
            && frame.data[..] == *stored
        {
            frame.dirty = false;
        }
    }

    /// Puts a page of storage, as it is now, into the journal.
    pub fn journal_page(&mut self, index: u64) {
        let Some(journal) = &mut self.journal else { return };
        let mut page = Page::new([0; PAGE_BYTES as usize]);
        let from = ((index * PAGE_BYTES) as usize).min(self.storage.len());
        let to = (from + page.len()).min(self.storage.len());
        page[..to - from].copy_from_slice(&self.storage[from..to]);
        journal.push(Event::Stored { index, page });
    }
}

#[derive(Clone)]
pub enum Pte {
    Frame { file: FileNo, index: u64, protected: bool },
    Private(Page),
    Poison,
}

#[derive(Clone, Default)]
pub struct FakeSpace {
    /// Start → (end, region).
    pub vmas: BTreeMap<u64, (u64, Region)>,
    pub ptes: BTreeMap<u64, Pte>,
    /// A change of the address space was not noticed yet.
    pub changing: u32,
}

impl FakeSpace {
    pub fn vma(&self, addr: u64) -> Option<(Range<u64>, Region)> {
        let (&start, &(end, region)) = self.vmas.range(..=addr).next_back()?;
        (addr < end).then_some((start..end, region))
    }
}

#[derive(Default)]
pub struct State {
    pub files: Vec<FakeFile>,
    pub spaces: Vec<Option<FakeSpace>>,
    /// Threads that sleep in a fault: thread → (space, page address).
    pub waiting: HashMap<u32, (SpaceNo, u64)>,
    pub signalled: BTreeSet<u32>,
    pub frames_max: usize,
    /// Pages that its space had mapped when a thread was woken last.
    pub mapped_when_woken: usize,
}

impl State {
    pub fn frames(&self) -> usize {
        self.files.iter().map(|f| f.frames.len()).sum()
    }

    pub fn space(&mut self, no: SpaceNo) -> Option<&mut FakeSpace> {
        self.spaces.get_mut(no as usize)?.as_mut()
    }
}

/// The machine.
pub struct Machine {
    pub state: Mutex<State>,
    woken: Condvar,
    pub chaos: Chaos,
    /// Frames that may be in use at any moment; none: not checked.
    pub frames_limit: Option<usize>,
    /// What happens once between the next look at an address space and what is made of it.
    pub after_look: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// What happens once before the next protection of pages, and what behind it.
    pub around_protect: Mutex<Option<Around>>,
    /// What happens once after the next mapping of pages.
    pub after_map: Mutex<Option<Then>>,
    /// What happens once when the next pages have been written to storage.
    pub after_store: Mutex<Option<Then>>,
    /// What happens whenever programs are told a file's version.
    pub when_told: Mutex<Option<WhenTold>>,
}

type WhenTold = Box<dyn FnMut(&State, FileNo, Option<Told>) + Send>;
/// Says what happens behind it.
type Around = Box<dyn FnOnce() -> Box<dyn FnOnce()> + Send>;
type Then = Box<dyn FnOnce(&Machine) + Send>;

impl Machine {
    pub fn new(chaos: Chaos, frames_limit: Option<usize>) -> Machine {
        Machine {
            state: Mutex::new(State::default()),
            woken: Condvar::new(),
            chaos,
            frames_limit,
            after_look: Mutex::new(None),
            around_protect: Mutex::new(None),
            after_map: Mutex::new(None),
            after_store: Mutex::new(None),
            when_told: Mutex::new(None),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a fake port call panicked")
    }

    pub fn add_file(&self, storage: Vec<u8>) -> (FileNo, Version) {
        let mut state = self.lock();
        let size_bytes = storage.len() as u64;
        let pages = size_bytes.div_ceil(PAGE_BYTES);
        state.files.push(FakeFile { storage, pages, ..FakeFile::default() });
        let no = (state.files.len() - 1) as FileNo;
        (no, Version { size_bytes, mtime_ns: 0, ctime_ns: 0 })
    }

    /// One try of an access: the value, or the fault that it raises, registered as waiting.
    fn touch(&self, space: SpaceNo, addr: u64, what: Access, tid: u32) -> Result<u64, Touched> {
        let mut state = self.lock();
        let State { files, spaces, waiting, signalled, .. } = &mut *state;
        if signalled.remove(&tid) {
            return Err(Touched::Bus);
        }
        let Some(Some(s)) = spaces.get_mut(space as usize) else { return Err(Touched::Bus) };
        let Some((_, region)) = s.vma(addr) else { return Err(Touched::Bus) };
        let page = addr & !(PAGE_BYTES - 1);
        let at = (addr - page) as usize;
        if region.index(addr) >= files[region.file as usize].pages {
            return Err(Touched::Bus);
        }
        let write = matches!(what, Access::Write(_));
        let mut fault = |protected| {
            waiting.insert(tid, (space, page));
            // Who waits has not been told.
            let told = u64::MAX;
            Err(Touched::Fault(Fault { space, addr, write, protected, tid, told }))
        };
        let get = |data: &Page| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
        let put = |data: &mut Page| match what {
            Access::Read => {}
            Access::Write(value) => data[at..at + 8].copy_from_slice(&value.to_le_bytes()),
        };
        match s.ptes.get_mut(&page) {
            None => fault(false),
            Some(Pte::Poison) => Err(Touched::Bus),
            Some(Pte::Private(data)) => {
                put(data);
                Ok(get(data))
            }
            Some(Pte::Frame { protected: true, .. }) if write => fault(true),
            Some(&mut Pte::Frame { file, index, .. }) => {
                let frame = files[file as usize].frames.get_mut(&index);
                let frame = frame.expect("a mapped page has a frame");
                if write && !region.shared {
                    let mut copy = frame.data.clone();
                    put(&mut copy);
                    s.ptes.insert(page, Pte::Private(copy));
                } else if write {
                    put(&mut frame.data);
                    frame.dirty = true;
                }
                Ok(match what {
                    Access::Read => get(&frame.data),
                    Access::Write(value) => value,
                })
            }
        }
    }

    /// Accesses memory as a program does: a fault is given to `serve`, and the thread sleeps until
    /// somebody wakes it.
    pub fn access(
        &self,
        space: SpaceNo,
        addr: u64,
        what: Access,
        tid: u32,
        serve: &dyn Fn(Fault),
    ) -> Result<u64, Bus> {
        loop {
            match self.touch(space, addr, what, tid) {
                Ok(value) => return Ok(value),
                Err(Touched::Bus) => return Err(Bus),
                Err(Touched::Fault(fault)) => {
                    serve(fault);
                    let mut state = self.lock();
                    while state.waiting.contains_key(&tid) && !state.signalled.contains(&tid) {
                        let (next, _) =
                            self.woken.wait_timeout(state, Duration::from_secs(1)).expect("lock");
                        state = next;
                    }
                    state.waiting.remove(&tid);
                }
            }
        }
    }

    /// Wakes the threads that wait in a range.
    pub fn wake(&self, state: &mut State, space: SpaceNo, range: Range<u64>) {
        let before = state.waiting.len();
        state.waiting.retain(|_, (s, addr)| *s != space || !range.contains(addr));
        if state.waiting.len() < before {
            state.mapped_when_woken = state.space(space).map_or(0, |s| s.ptes.len());
        }
        self.woken.notify_all();
    }

    pub fn signal(&self, tid: u32) {
        self.lock().signalled.insert(tid);
        self.woken.notify_all();
    }

    /// Storage as a client's own system call changes it.
    pub fn write_storage(&self, file: FileNo, offset: u64, bytes: &[u8]) {
        let mut state = self.lock();
        let file = &mut state.files[file as usize];
        let end = offset as usize + bytes.len();
        if file.storage.len() < end {
            file.storage.resize(end, 0);
        }
        file.storage[offset as usize..end].copy_from_slice(bytes);
        file.changed();
        for index in offset / PAGE_BYTES..(end as u64).div_ceil(PAGE_BYTES) {
            file.journal_page(index);
        }
    }

    pub fn set_storage_len(&self, file: FileNo, len: u64) {
        let mut state = self.lock();
        let file = &mut state.files[file as usize];
        file.storage.resize(len as usize, 0);
        file.changed();
    }

    pub fn storage_cell(&self, file: FileNo, offset: u64) -> u64 {
        let state = self.lock();
        let at = offset as usize;
        u64::from_le_bytes(state.files[file as usize].storage[at..at + 8].try_into().unwrap())
    }

    /// What waits, for the watchdog.
    pub fn describe(&self) -> String {
        match self.state.try_lock() {
            Ok(state) => format!("waiting threads (space, address): {:x?}", state.waiting),
            Err(_) => "the fake machine is locked".to_owned(),
        }
    }
}

enum Touched {
    Bus,
    Fault(Fault),
}
