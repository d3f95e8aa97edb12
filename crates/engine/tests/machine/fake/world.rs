//! An engine on the fake machine, its handler threads, and what programs do.

use super::chaos::Chaos;
use super::machine::{Access, Bus, FakeSpace, Machine, Pte};
pub use super::port::FakePort;
use pagekeeper::engine::core::Fault;
use pagekeeper::engine::spaces::{Region, Space};
use pagekeeper::engine::table::Table;
use pagekeeper::engine::{Deferred, Engine};
use pagekeeper::port::{FileNo, PAGE_BYTES, SpaceNo};
use pagekeeper_frames::{Budget, Config};
use pagekeeper_policy::{Checked, PolicySpec};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, mpsc};
use std::time::Duration;

enum Work {
    Fault(Fault),
    Deferred(Deferred),
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    closed: bool,
}

/// The queue of the handler threads.
#[derive(Clone, Default)]
pub struct Hands(Arc<(Mutex<Queue>, Condvar)>);

impl Hands {
    fn push(&self, work: Work) {
        self.0.0.lock().expect("queue").work.push_back(work);
        self.0.1.notify_one();
    }

    pub fn defer(&self, work: Deferred) -> Result<(), Deferred> {
        self.push(Work::Deferred(work));
        Ok(())
    }

    /// Takes faults that wait, up to some in all.
    fn take_faults(&self, faults: &mut Vec<Fault>) {
        let mut queue = self.0.0.lock().expect("queue");
        while faults.len() < 5
            && let Some(Work::Fault(fault)) =
                queue.work.pop_front_if(|work| matches!(work, Work::Fault(_)))
        {
            faults.push(fault);
        }
    }

    fn next(&self) -> Option<Work> {
        let mut queue = self.0.0.lock().expect("queue");
        loop {
            if let Some(work) = queue.work.pop_front() {
                return Some(work);
            }
            if queue.closed {
                return None;
            }
            queue = self.0.1.wait(queue).expect("queue");
        }
    }
}

/// How a world is made.
#[derive(Clone, Debug)]
pub struct Setup {
    pub policy: &'static str,
    pub frames: u32,
    pub seed: u64,
    /// Handler threads; none: threads serve their own faults.
    pub handlers: usize,
    /// Settings of the brain; live ones if not given.
    pub config: Option<Config>,
    /// Frames that may be in use beyond the budget for a moment; none: not checked.
    pub slack: Option<usize>,
}

impl Default for Setup {
    fn default() -> Self {
        Setup { policy: "lru", frames: 32, seed: 1, handlers: 2, config: None, slack: Some(0) }
    }
}

pub struct World {
    pub engine: Arc<Engine<FakePort>>,
    pub machine: Arc<Machine>,
    hands: Option<Hands>,
    handlers: Vec<std::thread::JoinHandle<()>>,
    next_space: AtomicU32,
    /// Misses in no order bring the block around them along.
    reads_around: bool,
    /// Changes of address spaces follow each other.
    order: Mutex<()>,
}

impl World {
    pub fn new(setup: &Setup) -> World {
        let frames = setup.frames;
        let limit = setup.slack.map(|s| s + frames.max(pagekeeper_frames::MIN_FRAMES) as usize);
        let machine = Arc::new(Machine::new(Chaos::new(setup.seed), limit));
        let hands = (setup.handlers > 0).then(Hands::default);
        let port = FakePort { machine: machine.clone(), hands: hands.clone() };
        let config = setup.config.unwrap_or(Config::live(frames));
        let policy = PolicySpec::parse(setup.policy).unwrap().build(frames, setup.seed).unwrap();
        let policy = Box::new(Checked::new(policy, frames));
        // The budget is far above: page numbers of a test cost less than one correction of it.
        let budget = Budget::new(1 << 30, 8);
        let engine = Engine::new(port, policy, config, Table::local(1 << 16), budget);
        let engine = Arc::new(engine);
        let handlers = (0..setup.handlers)
            .map(|_| {
                let (engine, hands) = (engine.clone(), hands.clone().expect("handlers"));
                std::thread::spawn(move || {
                    while let Some(work) = hands.next() {
                        match work {
                            Work::Fault(fault) => {
                                let mut faults = vec![fault];
                                hands.take_faults(&mut faults);
                                engine.serve_together(faults);
                            }
                            Work::Deferred(work) => engine.run_deferred(work),
                        }
                    }
                })
            })
            .collect();
        let looked_after = Arc::downgrade(&engine);
        std::thread::spawn(move || {
            while let Some(engine) = looked_after.upgrade() {
                engine.look_at_overdue();
                drop(engine);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let world = World {
            engine,
            machine,
            hands,
            handlers,
            next_space: AtomicU32::new(0),
            reads_around: setup.seed.is_multiple_of(2),
            order: Mutex::new(()),
        };
        let _ = CURRENT.get_or_init(Mutex::default).lock().map(|mut current| {
            current.push((Arc::downgrade(&world.engine), Arc::downgrade(&world.machine)));
        });
        world
    }

    /// A managed file with this content.
    pub fn file(&self, storage: Vec<u8>) -> FileNo {
        self.file_with_holes(storage, false)
    }

    pub fn file_with_holes(&self, storage: Vec<u8>, holes: bool) -> FileNo {
        let (no, version) = self.machine.add_file(storage);
        self.engine.open_file(no, &format!("file{no}"), version, holes);
        self.engine.read_around(no, self.reads_around);
        no
    }

    pub fn space(&self) -> SpaceNo {
        let no = self.next_space.fetch_add(1, Ordering::Relaxed);
        let mut state = self.machine.lock();
        while state.spaces.len() <= no as usize {
            state.spaces.push(None);
        }
        state.spaces[no as usize] = Some(FakeSpace::default());
        drop(state);
        self.engine.open_space(no, Space::default());
        no
    }

    /// `mmap(2)` at a fixed address.
    pub fn mmap(
        &self,
        space: SpaceNo,
        addr: u64,
        file: FileNo,
        first: u64,
        pages: u64,
        shared: bool,
    ) {
        let region = Region {
            file,
            bias: (first * PAGE_BYTES).wrapping_sub(addr),
            shared,
            read_only: false,
            library: false,
        };
        let range = addr..addr + pages * PAGE_BYTES;
        let _order = self.order.lock().expect("order");
        self.put(space, range.clone(), region);
        self.engine.add_region(space, range, region);
        self.noticed(space);
    }

    /// A mapping of which nobody tells the engine.
    pub fn mmap_unseen(&self, space: SpaceNo, addr: u64, file: FileNo, pages: u64) {
        let region = Region {
            file,
            bias: 0u64.wrapping_sub(addr),
            shared: true,
            read_only: false,
            library: false,
        };
        self.put(space, addr..addr + pages * PAGE_BYTES, region);
        self.noticed(space);
    }

    /// A mapping grows by so many pages (`mremap(2)`), of which nobody tells the engine.
    pub fn grow_unseen(&self, space: SpaceNo, addr: u64, pages: u64) {
        self.change(space, |s| {
            let (end, _) = s.vmas.get_mut(&addr).expect("mapped");
            *end += pages * PAGE_BYTES;
        });
        self.noticed(space);
    }

    fn put(&self, space: SpaceNo, range: Range<u64>, region: Region) {
        self.change(space, |s| {
            cut(s, range.clone());
            s.vmas.insert(range.start, (range.end, region));
        });
    }

    pub fn munmap(&self, space: SpaceNo, range: Range<u64>) {
        let _order = self.order.lock().expect("order");
        // Who waits there goes on waiting: the kernel wakes nobody.
        self.change(space, |s| cut(s, range.clone()));
        self.engine.unmapped(space, range);
        self.noticed(space);
    }

    /// `mremap(2)` to another address, with the same length.
    pub fn mremap(&self, space: SpaceNo, from: u64, to: u64, len: u64) {
        let _order = self.order.lock().expect("order");
        self.change(space, |s| {
            cut(s, to..to + len);
            let vmas: Vec<_> = s.vmas.range(from..from + len).map(|(a, v)| (*a, *v)).collect();
            for (start, (end, mut region)) in vmas {
                s.vmas.remove(&start);
                region.bias = region.bias.wrapping_sub(to.wrapping_sub(from));
                s.vmas.insert(start - from + to, (end - from + to, region));
            }
            let ptes: Vec<u64> = s.ptes.range(from..from + len).map(|(a, _)| *a).collect();
            for addr in ptes {
                let pte = s.ptes.remove(&addr).expect("listed");
                s.ptes.insert(addr - from + to, pte);
            }
        });
        self.engine.remapped(space, from, to, len, len);
        self.noticed(space);
    }

    /// `fork(2)`: the child's number.
    pub fn fork(&self, parent: SpaceNo) -> SpaceNo {
        let _order = self.order.lock().expect("order");
        let child = self.next_space.fetch_add(1, Ordering::Relaxed);
        {
            let mut state = self.machine.lock();
            let space = state.space(parent).expect("alive");
            space.changing += 1;
            let mut copy = space.clone();
            copy.changing = 0;
            while state.spaces.len() <= child as usize {
                state.spaces.push(None);
            }
            state.spaces[child as usize] = Some(copy);
        }
        self.machine.chaos.delay();
        let content = self.engine.space(parent).expect("alive");
        self.engine.open_space(child, content);
        self.noticed(parent);
        child
    }

    /// `madvise(2)` DONTNEED.
    pub fn forget(&self, space: SpaceNo, range: Range<u64>) {
        let _order = self.order.lock().expect("order");
        self.change(space, |s| s.ptes.retain(|addr, _| !range.contains(addr)));
        self.engine.removed(space, range);
        self.noticed(space);
    }

    pub fn exit(&self, space: SpaceNo) {
        let _order = self.order.lock().expect("order");
        {
            let mut state = self.machine.lock();
            state.spaces[space as usize] = None;
            self.machine.wake(&mut state, space, 0..u64::MAX);
        }
        self.engine.close_space(space);
    }

    fn change(&self, space: SpaceNo, f: impl FnOnce(&mut FakeSpace)) {
        let mut state = self.machine.lock();
        let space = state.space(space).expect("alive");
        space.changing += 1;
        f(space);
        drop(state);
        self.machine.chaos.delay();
    }

    fn noticed(&self, space: SpaceNo) {
        self.machine.chaos.delay();
        if let Some(space) = self.machine.lock().space(space) {
            space.changing -= 1;
        }
    }

    /// An access by a thread.
    pub fn access(&self, space: SpaceNo, addr: u64, what: Access, tid: u32) -> Result<u64, Bus> {
        self.machine.access(space, addr, what, tid, &|fault| match &self.hands {
            Some(hands) => hands.push(Work::Fault(fault)),
            None => self.engine.serve(fault),
        })
    }

    /// Is the page of this address mapped, in whatever way?
    pub fn is_mapped(&self, space: SpaceNo, addr: u64) -> bool {
        let mut state = self.machine.lock();
        let space = state.space(space).expect("alive");
        matches!(space.ptes.get(&addr), Some(Pte::Frame { .. } | Pte::Private(_)))
    }
}

fn cut(space: &mut FakeSpace, range: Range<u64>) {
    let inside: Vec<u64> = space.ptes.range(range.clone()).map(|(a, _)| *a).collect();
    for addr in inside {
        space.ptes.remove(&addr);
    }
    let hit: Vec<(u64, (u64, Region))> = space
        .vmas
        .iter()
        .filter(|(start, (end, _))| **start < range.end && range.start < *end)
        .map(|(a, v)| (*a, *v))
        .collect();
    for (start, (end, region)) in hit {
        space.vmas.remove(&start);
        if start < range.start {
            space.vmas.insert(start, (range.start, region));
        }
        if range.end < end {
            space.vmas.insert(range.end, (end, region));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(hands) = &self.hands {
            hands.0.0.lock().expect("queue").closed = true;
            hands.0.1.notify_all();
        }
        for handler in self.handlers.drain(..) {
            if handler.join().is_err() && !std::thread::panicking() {
                panic!("a handler thread panicked");
            }
        }
    }
}

type Watched = (std::sync::Weak<Engine<FakePort>>, std::sync::Weak<Machine>);
/// The worlds there are, for the watchdog.
static CURRENT: OnceLock<Mutex<Vec<Watched>>> = OnceLock::new();

/// Runs a test; one that hangs is ended with a description of what is stuck.
pub fn watched(seconds: u64, test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let runner = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    if ended.recv_timeout(Duration::from_secs(seconds)) == Err(mpsc::RecvTimeoutError::Timeout) {
        for (engine, machine) in CURRENT.get_or_init(Mutex::default).lock().unwrap().iter() {
            if let (Some(engine), Some(machine)) = (engine.upgrade(), machine.upgrade()) {
                eprintln!("{}\n{}", machine.describe(), engine.describe());
            }
        }
        eprintln!("the test hangs for {seconds} s");
        std::process::exit(101);
    }
    if let Err(panic) = runner.join() {
        std::panic::resume_unwind(panic);
    }
}
