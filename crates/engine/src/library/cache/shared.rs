//! What the threads of a cache share, and when they end.

use super::reserved::Shares;
use crate::engine::Engine;
use crate::library::caught::is_asking;
use crate::library::faults::{self, FaultPath};
use crate::library::port::LibraryPort;
use crate::library::process::Process;
use crate::library::segment::Inner;
use crate::library::tables::Tables;
use crate::library::translation::Translation;
use crate::library::visits::Visits;
use crate::manager::awake::{Keeper, LOOK_EVERY};
use crate::manager::work::{Work, Workers};
use crate::port::FileNo;
use pagekeeper_policy::PolicySpec;
use pagekeeper_sys::Errno;
use pagekeeper_sys::area::Area;
use pagekeeper_sys::event::EventFd;
use pagekeeper_sys::file::FileId;
use pagekeeper_sys::signal::{self, SignalSet};
use pagekeeper_sys::unforked::Unforked;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) type Listener = Box<dyn Fn(u64) + Send + Sync>;

/// Segment numbers in use.
#[derive(Default)]
pub(super) struct Open {
    pub(super) next: FileNo,
    pub(super) free: Vec<FileNo>,
    pub(super) by_id: HashMap<FileId, FileNo>,
    pub(super) segments: HashMap<FileNo, Weak<Inner>>,
    /// What files are registered by, as long as one is.
    pub(super) registry: Weak<Unforked>,
}

/// What a cache's threads share.
pub(crate) struct Shared {
    pub(crate) engine: Engine<LibraryPort>,
    pub(super) translation: Translation,
    pub(super) process: &'static Process,
    /// The policy that it was made with.
    pub(super) made_with: PolicySpec,
    /// Of the budget, what is set aside.
    pub(super) reserved: Mutex<Shares>,
    pub(super) listeners: Vec<Listener>,
    pub(super) open: Mutex<Open>,
    pub(super) scratch_directory: PathBuf,
    pub(super) stopped: (Mutex<bool>, Condvar),
    pub(crate) visits: Visits,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("translation", &self.translation).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn page_bytes(&self) -> u64 {
        self.engine.page_bytes
    }

    /// What tells this cache from others, as long as it is there.
    pub(super) fn number(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Whether this thread may wait for pages: not in the code of a store, which may be asked while pages are
    /// claimed that only its return lets go of.
    pub(crate) fn check_may_wait(&self) -> io::Result<()> {
        if is_asking(self.number()) { Err(Errno::DEADLK.into()) } else { Ok(()) }
    }

    /// Tells the engine what is set aside of the budget, when either changed, and who has it what it may
    /// be.
    pub(super) fn set_aside(&self) {
        loop {
            let budget_bytes = self.engine.budget_bytes();
            let bytes = self.set_aside_of(budget_bytes);
            let left_bytes = budget_bytes.saturating_sub(bytes);
            self.engine.port().memory().limit((left_bytes / self.page_bytes()) as usize);
            // Of two at once, the later look must be the last.
            if (budget_bytes, bytes) == (self.engine.budget_bytes(), self.reserved_of(budget_bytes))
            {
                break;
            }
        }
    }

    fn reserved_of(&self, budget_bytes: u64) -> u64 {
        self.reserved.lock().expect("reserved").of(budget_bytes)
    }

    /// The same for such a budget; how much it is.
    pub(super) fn set_aside_of(&self, budget_bytes: u64) -> u64 {
        let changed = self.reserved.lock().expect("reserved").limit(budget_bytes);
        changed.iter().for_each(|share| share.follow());
        let bytes = self.reserved_of(budget_bytes);
        let frames = bytes.div_ceil(self.page_bytes());
        self.engine.set_aside(u32::try_from(frames).unwrap_or(u32::MAX));
        bytes
    }

    /// A region is there, about to be given access.
    pub(crate) fn put_area(self: &Arc<Self>, area: &Arc<Area>) {
        self.engine.port().put_area(area);
        if self.engine.port().path() == FaultPath::Inline {
            faults::add_inline(self.process, range_of(area), Arc::downgrade(self));
        }
    }

    /// A region goes.
    pub(crate) fn take_area(&self, area: &Arc<Area>) {
        if self.engine.port().path() == FaultPath::Inline {
            faults::remove_inline(self.process, &range_of(area));
        }
        self.engine.port().take_area(area);
    }

    pub(super) fn work(&self, workers: &Workers) {
        while let Some(work) = workers.next() {
            match work {
                Work::Fault(fault) => self.engine.serve(fault),
                Work::Misses(misses) => self.engine.end_misses(vec![*misses]),
                Work::Deferred(work) => self.engine.run_deferred(work),
                // A program that links the library has its heap to itself, closes its segments, and is
                // alone with the thread that reads its faults.
                Work::Clear(_)
                | Work::Drop(_)
                | Work::Retire(_)
                | Work::LetGo
                | Work::LetIdleGo
                | Work::StandIn => {}
                Work::Flush(file) | Work::FlushEnded(file) => {
                    let _ = self.engine.write_out(file, 0..u64::MAX);
                }
            }
        }
    }

    /// The segments that are open, to be [visited](Visits::begin).
    pub(crate) fn open_segments(&self) -> Vec<(FileNo, Weak<Inner>)> {
        let open = self.open.lock().expect("open");
        open.segments.iter().map(|(no, segment)| (*no, segment.clone())).collect()
    }

    /// Waits until nobody who has no handle holds a segment: that one may be the last to do so, and closes
    /// it then.
    pub(crate) fn await_visits(&self, no: FileNo) {
        // In a forked child there are no visitors.
        if self.process.mark.is_here() {
            self.visits.await_end(no);
        }
    }

    /// Writes back and looks for changes of files each `period`, and keeps processors awake where it is to.
    pub(super) fn look_after(&self, period: Option<Duration>, keeps_awake: bool) {
        let (stopped, changed) = &self.stopped;
        let mut keeper = keeps_awake.then(Keeper::default);
        let look = keeps_awake.then_some(LOOK_EVERY);
        let mut wrote = Instant::now();
        let mut stop = stopped.lock().expect("stopped");
        while !*stop {
            let left = period.map(|period| period.saturating_sub(wrote.elapsed()));
            let Some(pause) = left.into_iter().chain(look).min() else { return };
            stop = changed.wait_timeout(stop, pause).expect("stopped").0;
            if *stop {
                return;
            }
            drop(stop);
            if let Some(keeper) = &mut keeper {
                keeper.look(self.engine.lock().brain.counts().major_faults);
            }
            if period.is_some_and(|period| wrote.elapsed() >= period) {
                self.write_behind();
                wrote = Instant::now();
            }
            stop = stopped.lock().expect("stopped");
        }
    }

    fn write_behind(&self) {
        let _ = self.engine.write_behind();
        for (no, segment) in self.open_segments() {
            if let Some(segment) = self.visits.begin(no, &segment) {
                segment.look_for_changes();
            }
        }
    }
}

fn range_of(area: &Area) -> std::ops::Range<u64> {
    area.address()..area.address() + area.len_bytes() as u64
}

/// A cache with its threads; the last one to go stops them.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) shared: Arc<Shared>,
    pub(super) workers: Arc<Workers>,
    pub(super) stop_faults: Option<Arc<EventFd>>,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
    pub(super) tables: Option<Tables>,
}

impl Owner {
    /// A thread that takes none of the program's signals: those are for the program's own threads, which
    /// may wait for them (`sigwait(3)`), and whose handlers may touch a region.
    pub(super) fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let before = signal::block(&SignalSet::sent())?;
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        signal::set_mask(&before)?;
        let thread = thread?;
        self.threads.lock().expect("threads").push(thread);
        Ok(())
    }

    /// Gives a segment's number back, when its last handle is gone.
    pub(crate) fn closed(&self, no: FileNo, id: Option<FileId>) {
        let mut open = self.shared.open.lock().expect("open");
        if let Some(id) = id {
            open.by_id.remove(&id);
        }
        open.segments.remove(&no);
        self.shared.engine.port().put(no, None);
        open.free.push(no);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let threads = std::mem::take(&mut *self.threads.lock().expect("threads"));
        if !self.shared.process.mark.is_here() {
            // A forked child has neither the threads nor the frames: where those are mapped in the
            // parent, there is something else here by now, which must not be unmapped.
            std::mem::forget((threads, self.tables.take(), self.shared.clone()));
            return;
        }
        let _ = self.workers.close();
        if let Some(stop) = &self.stop_faults {
            let _ = stop.notify();
        }
        *self.shared.stopped.0.lock().expect("stopped") = true;
        self.shared.stopped.1.notify_all();
        let own = std::thread::current().id();
        for thread in threads {
            // The write-back thread may have visited the last segment.
            if thread.thread().id() != own {
                let _ = thread.join();
            }
        }
        drop(self.tables.take());
    }
}
