//! A cache: a budget, a policy, and the segments that share them.

use crate::engine::Engine;
use crate::library::caught::Caught;
use crate::library::faults::{self, FaultPath};
use crate::library::frames::{Memory, PAGE_BYTES_MAX};
use crate::library::port::{Backing, LibraryPort};
use crate::library::process::{self, Process};
use crate::library::regions::HERE;
use crate::library::segment::{Inner, Segment};
use crate::library::store::{FileStore, Store};
use crate::library::tables::Tables;
use crate::library::translation::{Buckets, Translation};
use crate::library::visits::Visits;
use crate::port::{FileNo, PAGE_BYTES, Version, other_pages};
use crate::spaces::Space;
use crate::stats::Stats;
use crate::work::{Work, Workers};
use pagekeeper_frames::{
    Budget, Config, MIN_FRAMES, Sampling, SamplingShare, Segment as Number, WINDOW_PAGES_MAX,
};
use pagekeeper_policy::PolicySpec;
use pagekeeper_sys::Errno;
use pagekeeper_sys::area::Area;
use pagekeeper_sys::event::EventFd;
use pagekeeper_sys::file::FileId;
use pagekeeper_sys::signal::{self, SignalSet};
use pagekeeper_sys::unforked::Unforked;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Seed of policies that draw lots.
const SEED: u64 = 0;

/// Fewest pages that a budget has room for, whatever their size: with fewer, no access to a few pages at
/// once could be sure to end.
pub const BUDGET_PAGES_MIN: u64 = MIN_FRAMES as u64;

type Listener = Box<dyn Fn(u64) + Send + Sync>;

/// What a cache is made with. Start from [`Cache::builder`].
#[must_use]
pub struct Builder {
    budget_bytes: u64,
    policy: Option<PolicySpec>,
    fault_path: FaultPath,
    workers: usize,
    write_back_period: Option<Duration>,
    read_ahead_pages_max: Option<u32>,
    sampling: SamplingShare,
    page_bytes: u64,
    translation: Translation,
    scratch_directory: PathBuf,
    listeners: Vec<Listener>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("budget_bytes", &self.budget_bytes)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Which page leaves when room is needed; LRU if nothing is said.
    pub fn policy(mut self, policy: PolicySpec) -> Builder {
        self.policy = Some(policy);
        self
    }

    /// How pages of mapped regions are brought in; [`FaultPath::Explicit`], without regions, if
    /// nothing is said.
    pub fn fault_path(mut self, path: FaultPath) -> Builder {
        self.fault_path = path;
        self
    }

    /// Threads that fetch ahead, so that nobody waits for what is not needed yet; 1 if nothing is
    /// said. With 0, the thread whose read shows that more will be needed fetches it.
    pub fn workers(mut self, threads: usize) -> Builder {
        self.workers = threads;
        self
    }

    /// How often dirty pages are written back in the background, so that little is lost when the
    /// process dies, and changes by others are looked for; 5 s if nothing is said. `None`: only on
    /// eviction and flush.
    pub fn write_back_period(mut self, period: Option<Duration>) -> Builder {
        self.write_back_period = period;
        self
    }

    /// Bytes in a page: what is fetched, written back, evicted and pinned as one; 4096 if nothing is
    /// said, a power of two up to 2 MiB. Large pages cost less to find and to decide on, and more
    /// memory and I/O where little of each is used. Those of 2 MiB are mapped as one where the
    /// machine has transparent huge pages for shared memory
    /// (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`), but for those in mapped regions: there
    /// userfaultfd maps 4 KiB at a time, so that large pages save faults, requests to storage and
    /// interrupts, and are never mapped as one.
    ///
    /// ```
    /// use pagekeeper::library::Cache;
    /// # fn main() -> std::io::Result<()> {
    /// let cache = Cache::builder(8 << 20).page_bytes(64 << 10).build()?;
    /// let memory = cache.scratch(32 << 20)?;
    /// memory.write_all_at(b"far out", 20 << 20)?;
    /// assert_eq!(memory.attributes(20 << 20..21 << 20)?.len(), 16);
    /// # Ok(())
    /// # }
    /// ```
    pub fn page_bytes(mut self, bytes: u64) -> Builder {
        self.page_bytes = bytes;
        self
    }

    /// How the bytes of a page are found; [`Translation::Mapped`] if nothing is said.
    ///
    /// ```
    /// use pagekeeper::library::{Buckets, Cache, Translation};
    /// # fn main() -> std::io::Result<()> {
    /// let control = Cache::builder(8 << 20).translation(Translation::Hash(Buckets::Sized)).build()?;
    /// let memory = control.scratch(32 << 20)?;
    /// memory.write_all_at(b"in a block of its own", 20 << 20)?;
    /// assert_eq!(memory.pin(20 << 20..(20 << 20) + 2)?[..], *b"in");
    /// # Ok(())
    /// # }
    /// ```
    pub fn translation(mut self, translation: Translation) -> Builder {
        self.translation = translation;
        self
    }

    /// Most pages that one step of read-ahead fetches; as many as make 1 MiB if nothing is said, 1
    /// for none.
    pub fn read_ahead_pages_max(mut self, pages: u32) -> Builder {
        self.read_ahead_pages_max = Some(pages.clamp(1, WINDOW_PAGES_MAX));
        self
    }

    /// The most that seeing touches of mapped regions may cost, as a share of the time that misses
    /// take; [`SamplingShare::USUAL`] if nothing is said. Reads, writes and pins are seen for
    /// nothing.
    ///
    /// ```
    /// use pagekeeper::library::{Cache, SamplingShare};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let cache = Cache::builder(8 << 20).sampling("5%".parse()?).build()?;
    /// # let never = Cache::builder(8 << 20).sampling(SamplingShare::NONE).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sampling(mut self, share: SamplingShare) -> Builder {
        self.sampling = share;
        self
    }

    /// Where scratch segments keep what does not fit into memory; [`std::env::temp_dir`] if nothing
    /// is said. It should not be a file system in memory.
    pub fn scratch_directory(mut self, directory: impl Into<PathBuf>) -> Builder {
        self.scratch_directory = directory.into();
        self
    }

    /// Called with the new budget in bytes whenever [`Cache::set_budget`] has changed it, by the
    /// thread that did: the program may trade memory for time then. It must not call `set_budget`.
    pub fn on_budget_change(mut self, listener: impl Fn(u64) + Send + Sync + 'static) -> Builder {
        self.listeners.push(Box::new(listener));
        self
    }

    /// Makes the cache.
    ///
    /// # Errors
    /// `EINVAL`: the policy runs in the simulator alone, the size of pages is none, or the budget is less
    /// than eight of them ([`BUDGET_PAGES_MIN`]), 32 KiB if nothing is said of their size; a hash table
    /// has no buckets, or another fault path than explicit; those of `memfd_create(2)`, `mmap(2)` and of
    /// starting threads. For fault paths other than explicit, those of `userfaultfd(2)` (`pagekeeper doctor` says what is missing and how to get it), and
    /// `EBUSY`: the program has another kind of handler of SIGBUS from here. `Unsupported`: this kernel's
    /// pages have not 4096 bytes.
    pub fn build(self) -> io::Result<Cache> {
        let policy = match self.policy {
            Some(policy) => policy,
            None => PolicySpec::parse("lru").expect("LRU is in the registry"),
        };
        let (page_bytes, path) = (self.page_bytes, self.fault_path);
        let sound = page_bytes.is_power_of_two()
            && (PAGE_BYTES..=PAGE_BYTES_MAX).contains(&page_bytes)
            && self.budget_bytes / page_bytes >= BUDGET_PAGES_MIN
            && self.translation != Translation::Hash(Buckets::Fixed(0))
            && (self.translation == Translation::Mapped || path == FaultPath::Explicit);
        if !sound {
            return Err(Errno::INVAL.into());
        }
        if let Some(reason) = other_pages() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
        let budget = Budget::new(self.budget_bytes, policy.info().bytes_per_page);
        let budget = budget.of_frames(page_bytes);
        let frames = budget.frames(0);
        let built = policy.build(frames, SEED);
        let built = built.map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let process = process::here()?;
        let tables = Tables::take(&process.unused)?;
        let workers = Arc::new(Workers::new());
        let userfault = faults::open(path)?;
        let memory = Memory::new(self.translation, frames, page_bytes, tables.table())?;
        let port = LibraryPort::new(
            (self.workers > 0).then(|| workers.clone()),
            path,
            page_bytes,
            memory,
            userfault,
        );
        // As many bytes as of small pages, and pages of which a few are a window's worth.
        let window_bytes = u64::from(WINDOW_PAGES_MAX) * PAGE_BYTES;
        let window_pages_max = (window_bytes / page_bytes).max(1) as u32;
        let window_pages_max = self.read_ahead_pages_max.unwrap_or(window_pages_max);
        let sampling = Sampling::within(self.sampling);
        let mut config = Config { window_pages_max, sampling, ..Config::live(frames) };
        if path == FaultPath::Explicit {
            // Every use is seen.
            config.sampling = Sampling::Off;
            config.map_ahead = false;
        }
        let shared = Arc::new(Shared {
            engine: Engine::new(port, built, config, tables.table(), budget),
            translation: self.translation,
            process,
            reserved_bytes: Mutex::new(0),
            listeners: self.listeners,
            open: Mutex::new(Open::default()),
            scratch_directory: self.scratch_directory,
            stopped: (Mutex::new(false), Condvar::new()),
            visits: Visits::default(),
        });
        let stop_faults = match path {
            FaultPath::Explicit => None,
            _ => {
                let space = Space { pid: std::process::id(), ..Space::default() };
                shared.engine.open_space(HERE, space);
                Some(Arc::new(EventFd::new()?))
            }
        };
        shared.engine.name_policy(&policy);
        let owner = Owner {
            shared: shared.clone(),
            stop_faults: stop_faults.clone(),
            workers: workers.clone(),
            threads: Mutex::new(Vec::new()),
            tables: Some(tables),
        };
        for no in 0..self.workers {
            let (shared, workers) = (shared.clone(), workers.clone());
            owner.spawn(&format!("pagekeeper-{no}"), move || shared.work(&workers))?;
        }
        if let (FaultPath::Thread, Some(stop)) = (path, stop_faults) {
            let (shared, workers) = (shared.clone(), workers.clone());
            let awaited = faults::Awaited::new(&shared, &stop)?;
            owner
                .spawn("pagekeeper-pf", move || faults::fault_loop(&shared, &workers, &awaited))?;
        }
        if let Some(period) = self.write_back_period {
            let shared = shared.clone();
            owner.spawn("pagekeeper-wb", move || shared.write_behind(period))?;
        }
        Ok(Cache(Arc::new(owner)))
    }
}

/// A cache of pages of files and other stores, within a budget. Clones are the same cache; it ends
/// with its last clone and segment, and writes back what is dirty then.
#[derive(Clone, Debug)]
pub struct Cache(pub(crate) Arc<Owner>);

/// A store that is to become a segment, and what it says of itself.
struct Found {
    store: Box<dyn Store>,
    version: Version,
    sparse: bool,
}

impl Found {
    fn new(store: impl Store) -> io::Result<Found> {
        let store = Caught(store);
        let (version, sparse) = (store.version()?, store.sparse());
        if version.size_bytes > super::frames::SEGMENT_BYTES_MAX {
            return Err(Errno::FBIG.into());
        }
        Ok(Found { store: Box::new(store), version, sparse })
    }
}

/// Segment numbers in use.
#[derive(Default)]
struct Open {
    next: FileNo,
    free: Vec<FileNo>,
    by_id: HashMap<FileId, FileNo>,
    segments: HashMap<FileNo, Weak<Inner>>,
}

/// What a cache's threads share.
pub(crate) struct Shared {
    pub(crate) engine: Engine<LibraryPort>,
    translation: Translation,
    process: &'static Process,
    /// Of the budget, what is set aside.
    reserved_bytes: Mutex<u64>,
    listeners: Vec<Listener>,
    open: Mutex<Open>,
    scratch_directory: PathBuf,
    stopped: (Mutex<bool>, Condvar),
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

    /// Tells the engine what is set aside.
    fn set_aside(&self) {
        let reserved = || *self.reserved_bytes.lock().expect("reserved");
        loop {
            let bytes = reserved();
            self.engine
                .set_aside(u32::try_from(bytes.div_ceil(self.page_bytes())).unwrap_or(u32::MAX));
            // Of two at once, the later look must be the last.
            if bytes == reserved() {
                break;
            }
        }
        self.engine.port().memory().trim();
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

    fn work(&self, workers: &Workers) {
        while let Some(work) = workers.next() {
            match work {
                Work::Fault(fault) => self.engine.serve(fault),
                Work::Deferred(work) => self.engine.run_deferred(work),
                // A program that links the library has its heap to itself, and closes its segments.
                Work::Drop(_) | Work::Retire(_) | Work::LetGo | Work::LetIdleGo => {}
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

    fn write_behind(&self, period: Duration) {
        let (stopped, changed) = &self.stopped;
        let mut stop = stopped.lock().expect("stopped");
        while !*stop {
            stop = changed.wait_timeout(stop, period).expect("stopped").0;
            if *stop {
                return;
            }
            drop(stop);
            let _ = self.engine.write_behind();
            for (no, segment) in self.open_segments() {
                if let Some(segment) = self.visits.begin(no, &segment) {
                    segment.look_for_changes();
                }
            }
            stop = stopped.lock().expect("stopped");
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
    workers: Arc<Workers>,
    stop_faults: Option<Arc<EventFd>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    tables: Option<Tables>,
}

impl Owner {
    /// A thread that takes none of the program's signals: those are for the program's own threads, which
    /// may wait for them (`sigwait(3)`), and whose handlers may touch a region.
    fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
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

/// How a file is opened: for reading, unless more is said.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    writable: bool,
    create: bool,
    truncate: bool,
}

impl Options {
    /// For reading.
    pub fn new() -> Options {
        Options::default()
    }

    /// For reading and writing.
    #[must_use]
    pub fn writable(mut self, writable: bool) -> Options {
        self.writable = writable;
        self
    }

    /// Made if it does not exist; for writing.
    #[must_use]
    pub fn create(mut self, create: bool) -> Options {
        self.create = create;
        self.writable |= create;
        self
    }

    /// Emptied first; for writing.
    #[must_use]
    pub fn truncate(mut self, truncate: bool) -> Options {
        self.truncate = truncate;
        self.writable |= truncate;
        self
    }
}

impl Cache {
    /// Begins a cache of so many bytes: all its frames, state and buffers. They are
    /// [`BUDGET_PAGES_MIN`] pages at least.
    pub fn builder(budget_bytes: u64) -> Builder {
        Builder {
            budget_bytes,
            policy: None,
            fault_path: FaultPath::Explicit,
            workers: 1,
            write_back_period: Some(Duration::from_secs(5)),
            read_ahead_pages_max: None,
            sampling: SamplingShare::USUAL,
            page_bytes: PAGE_BYTES,
            translation: Translation::Mapped,
            scratch_directory: std::env::temp_dir(),
            listeners: Vec::new(),
        }
    }

    /// A cache with what a builder starts from.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(budget_bytes: u64) -> io::Result<Cache> {
        Cache::builder(budget_bytes).build()
    }

    /// A segment over a file. One file is one segment of a cache, however often it is opened.
    ///
    /// # Errors
    /// Those of `open(2)`; `EBUSY`: another cache or a `pagekeeper run` of this user writes to the
    /// file, or has it and this one would write; `EINVAL`: no regular file; `EOWNERDEAD`: in a forked
    /// child.
    pub fn open(&self, path: impl AsRef<Path>, options: Options) -> io::Result<Segment> {
        self.check_here()?;
        let path = path.as_ref();
        let file = OpenOptions::new()
            .read(true)
            .write(options.writable)
            .create(options.create)
            .open(path)?;
        let segment = self.open_file(&file, options.writable, &path.to_string_lossy())?;
        if options.truncate {
            segment.set_len(0)?;
        }
        Ok(segment)
    }

    /// A segment over an open file, which need not stay open; `name` is what statistics call it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_file(&self, file: &File, writable: bool, name: &str) -> io::Result<Segment> {
        self.check_here()?;
        let store = FileStore::new(file, writable)?;
        let id = store.id()?;
        loop {
            let open = self.shared().open.lock().expect("open");
            if let Some(no) = open.by_id.get(&id) {
                let Some(inner) = open.segments.get(no).and_then(Weak::upgrade) else {
                    // Its last handle is being closed this moment.
                    drop(open);
                    std::thread::yield_now();
                    continue;
                };
                drop(open);
                if writable && !inner.writable() {
                    return Err(Errno::BUSY.into());
                }
                let segment = Segment::of(inner, writable);
                segment.refresh()?;
                return Ok(segment);
            }
            let claim = claim(id, writable)?;
            return self.add(Found::new(store)?, writable, name, Some((id, claim)), open);
        }
    }

    /// A segment over an application's own store.
    ///
    /// # Errors
    /// The store's; those of `memfd_create(2)`; `EOWNERDEAD`: in a forked child.
    pub fn open_store(&self, store: impl Store, name: &str) -> io::Result<Segment> {
        self.check_here()?;
        // A store may do anything with this cache: nothing is locked while it is asked.
        let found = Found::new(store)?;
        let open = self.shared().open.lock().expect("open");
        self.add(found, true, name, None, open)
    }

    /// Working memory of `len` zero bytes, which may be larger than the machine's: what does not
    /// fit into the budget goes to a file without a name, never to swap.
    ///
    /// # Errors
    /// Those of `open(2)` with `O_TMPFILE` in the scratch directory; `EOWNERDEAD`: in a forked child.
    pub fn scratch(&self, len: u64) -> io::Result<Segment> {
        self.check_here()?;
        self.open_store(FileStore::scratch(&self.shared().scratch_directory, len)?, "scratch")
    }

    /// Adds a segment. The lock is given last, so that it is the first to be dropped: a store that
    /// cannot be added may own the last handle of another segment.
    fn add(
        &self,
        found: Found,
        writable: bool,
        name: &str,
        file: Option<(FileId, Option<Unforked>)>,
        mut open: std::sync::MutexGuard<'_, Open>,
    ) -> io::Result<Segment> {
        let engine = &self.shared().engine;
        let page_bytes = self.page_bytes();
        let no = open.free.last().copied().unwrap_or(open.next);
        let memory = engine.port().memory();
        let len = found.version.size_bytes;
        let frames = memory.frames_for(Number(no), name, len, page_bytes, engine.table)?;
        let Found { store, version, sparse } = found;
        let backing = Arc::new(Backing {
            frames,
            store,
            size: AtomicU64::new(len),
            stored_size: AtomicU64::new(len),
        });
        if open.free.pop().is_none() {
            open.next += 1;
        }
        engine.port().put(no, Some(backing.clone()));
        engine.open_file(no, name, version, sparse);
        let (id, claim) = file.map_or((None, None), |(id, claim)| (Some(id), claim));
        let inner = Inner::new(self.0.clone(), no, backing, writable, id, claim);
        let inner = Arc::new(inner);
        if let Some(id) = id {
            open.by_id.insert(id, no);
        }
        open.segments.insert(no, Arc::downgrade(&inner));
        Ok(Segment::of(inner, writable))
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0.shared
    }

    /// Bytes in a page.
    pub fn page_bytes(&self) -> u64 {
        self.shared().page_bytes()
    }

    /// Whether this is the process that made it, and no forked child.
    pub fn is_here(&self) -> bool {
        self.shared().process.mark.is_here()
    }

    pub(crate) fn check_here(&self) -> io::Result<()> {
        // What it knows of pages is a copy, and goes on in the parent; their state is one.
        if self.is_here() { Ok(()) } else { Err(Errno::OWNERDEAD.into()) }
    }

    /// The budget in bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.shared().engine.budget_bytes()
    }

    /// Changes the budget; pages beyond it leave before this returns, as far as they can (what is
    /// pinned, or cannot be written back, stays until it can). Less than [`BUDGET_PAGES_MIN`] pages is
    /// that many: [`budget_bytes`](Self::budget_bytes) says so, and listeners are told so. In a forked
    /// child nothing is done.
    pub fn set_budget(&self, budget_bytes: u64) {
        if !self.is_here() {
            return;
        }
        let budget_bytes = budget_bytes.max(BUDGET_PAGES_MIN * self.page_bytes());
        let shared = self.shared();
        shared.engine.set_budget(budget_bytes);
        shared.engine.port().memory().trim();
        loop {
            let now = self.budget_bytes();
            shared.listeners.iter().for_each(|listener| listener(now));
            // Of two threads that change it at once, one may tell late: the last word is what holds.
            if now == self.budget_bytes() {
                break;
            }
        }
    }

    /// Sets memory of the budget aside for something else: pages leave before this returns, as far
    /// as they can. It is given back when the guard is dropped.
    ///
    /// # Errors
    /// `ENOMEM`: more than half of the budget would be set aside; `EOWNERDEAD`: in a forked child.
    pub fn reserve(&self, bytes: u64) -> io::Result<Reserved> {
        self.check_here()?;
        let shared = &self.0.shared;
        {
            let mut reserved = shared.reserved_bytes.lock().expect("reserved");
            let all = reserved.checked_add(bytes).filter(|all| *all <= self.budget_bytes() / 2);
            *reserved = all.ok_or(Errno::NOMEM)?;
        }
        shared.set_aside();
        Ok(Reserved { shared: Arc::downgrade(shared), bytes })
    }

    /// How pages of mapped regions are brought in.
    pub fn fault_path(&self) -> FaultPath {
        self.shared().engine.port().path()
    }

    /// How the bytes of a page are found.
    pub fn translation(&self) -> Translation {
        self.shared().translation
    }

    /// The policy that decides now.
    pub fn policy(&self) -> PolicySpec {
        self.shared().engine.policy().expect("named when the cache was made")
    }

    /// Another policy decides from now on: V++'s `SetSegmentManager` on live segments. Pages stay
    /// where they are, in memory or not; what the old policy knew of them is forgotten. Returns the
    /// pages that are in memory.
    ///
    /// # Errors
    /// `EINVAL`: the policy runs in the simulator alone (nothing is changed then); `EOWNERDEAD`: in
    /// a forked child.
    pub fn set_policy(&self, policy: PolicySpec) -> io::Result<u32> {
        self.check_here()?;
        let shared = self.shared();
        let resident = shared.engine.replace_policy(&policy, SEED);
        resident.map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
    }

    /// What was counted so far, in total and per segment; nothing in a forked child.
    pub fn stats(&self) -> Stats {
        if !self.is_here() {
            return Stats::default();
        }
        let shared = self.shared();
        let mut stats = shared.engine.stats();
        stats.policy = self.policy().to_string();
        stats.memory_bytes = self.budget_bytes();
        stats
    }

    /// Writes back what is dirty in all segments, and makes it durable.
    ///
    /// # Errors
    /// The first error, of those that nobody was told of before; every segment's own handles report
    /// theirs as well. `EOWNERDEAD`: in a forked child.
    pub fn flush(&self) -> io::Result<()> {
        self.check_here()?;
        let mut result = Ok(());
        let shared = self.shared();
        for (no, segment) in shared.open_segments() {
            if let Some(segment) = shared.visits.begin(no, &segment) {
                result = result.and(segment.flush(&mut segment.errors_so_far()));
            }
        }
        result
    }
}

/// Memory of a cache's budget that is set aside: see [`Cache::reserve`].
#[derive(Debug)]
pub struct Reserved {
    shared: Weak<Shared>,
    bytes: u64,
}

impl Reserved {
    /// How much it is, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade().filter(|shared| shared.process.mark.is_here()) {
            *shared.reserved_bytes.lock().expect("reserved") -= self.bytes;
            shared.set_aside();
        }
    }
}

/// Registers a file among the caches of this user: one that writes, or several that read. A forked child
/// has neither the cache nor the claim.
fn claim(id: FileId, writable: bool) -> io::Result<Option<Unforked>> {
    let Some(registry) = crate::registry::open() else { return Ok(None) };
    let claimed = match writable {
        true => crate::registry::claim(&registry, id),
        false => crate::registry::claim_shared(&registry, id),
    };
    match claimed {
        Ok(()) => Ok(Some(Unforked::new(registry))),
        Err(_) => Err(Errno::BUSY.into()),
    }
}
