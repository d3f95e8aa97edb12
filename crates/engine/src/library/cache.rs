//! A cache: a budget, a policy, and the segments that share them.

mod builder;
mod reserved;
mod shared;

use crate::engine::stats::Stats;
use crate::library::caught::Caught;
use crate::library::faults::FaultPath;
use crate::library::frames::SEGMENT_BYTES_MAX;
use crate::library::port::Backing;
use crate::library::segment::{Inner, Segment};
use crate::library::store::{FileStore, Store};
use crate::library::translation::Translation;
use crate::manager::registry;
use crate::port::Version;
pub use builder::Builder;
use pagekeeper_frames::{MIN_FRAMES, Segment as Number};
use pagekeeper_policy::PolicySpec;
use pagekeeper_sys::Errno;
use pagekeeper_sys::alias::ForkMark;
use pagekeeper_sys::descriptor::beside_streams;
use pagekeeper_sys::file::FileId;
use pagekeeper_sys::unforked::Unforked;
pub use reserved::Reserved;
use shared::Open;
pub(crate) use shared::{Owner, Shared};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Seed of policies that draw lots.
const SEED: u64 = 0;

/// Fewest pages that a budget has room for, whatever their size: with fewer, no access to a few pages at
/// once could be sure to end.
pub const BUDGET_PAGES_MIN: u64 = MIN_FRAMES as u64;

/// A cache of pages of files and other stores, within a budget. Clones are the same cache; it ends
/// with its last clone and segment, and writes back what is dirty then.
///
/// It has threads of its own ([`Builder::workers`], [`Builder::write_back_period`], [`FaultPath::Thread`]), which
/// live until it ends. They block all signals that others send, which are for the program's threads. So a program
/// whose main thread leaves by `pthread_exit(3)` drops the cache first: else the process stays when its own
/// threads have ended, and SIGTERM waits for ever for one that takes it.
#[derive(Clone, Debug)]
pub struct Cache(pub(crate) Arc<Owner>);

/// A store that is to become a segment, and what it says of itself.
struct Found {
    store: Box<dyn Store>,
    version: Version,
    sparse: bool,
}

impl Found {
    /// Asks a store that a cache with this number is to ask.
    fn new(store: impl Store, cache: usize) -> io::Result<Found> {
        let store = Caught::new(store);
        let (version, sparse) = (store.version()?, store.sparse());
        if version.size_bytes > SEGMENT_BYTES_MAX {
            return Err(Errno::FBIG.into());
        }
        Ok(Found { store: Box::new(store.asked_by(cache)), version, sparse })
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

    fn file(self, path: &Path) -> io::Result<File> {
        let mut how = OpenOptions::new();
        how.read(true).write(self.writable).create(self.create);
        // A FIFO would be waited at, and a device begin something; neither is a segment.
        match how.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path) {
            // Somebody has a lease on it, and is waited for.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && path.is_file() => {
                how.custom_flags(libc::O_NOCTTY).open(path)
            }
            opened => opened,
        }
    }
}

impl Cache {
    /// Begins a cache of so many bytes: all its frames, state and buffers. They are
    /// [`BUDGET_PAGES_MIN`] pages at least.
    pub fn builder(budget_bytes: u64) -> Builder {
        Builder::new(budget_bytes)
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
    /// It takes three descriptors: two of the file, by the kernel's page cache and past it (one where the
    /// file system has no direct I/O), and one for its frames, which [`Translation::Table`] does without. All
    /// files of a cache together take one more, by which they are registered.
    ///
    /// # Errors
    /// Those of `open(2)`; `EBUSY`: another cache or a `pagekeeper run` of this user writes to the
    /// file, or has it and this one would write; `EINVAL`: no regular file; `EFBIG`: it is longer than 128
    /// TiB, or, under [`Translation::Mapped`], than the process may make files (`ulimit -f`): the memory
    /// of its pages is one; `EOWNERDEAD`: in a forked child.
    pub fn open(&self, path: impl AsRef<Path>, options: Options) -> io::Result<Segment> {
        self.check_here()?;
        let path = path.as_ref();
        let file = beside_streams(options.file(path)?)?;
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
            let mut open = self.shared().open.lock().expect("open");
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
            let claim = Claim::new(&mut open, self.shared().process.mark, id, writable)?;
            return self.add(
                Found::new(store, self.number())?,
                writable,
                name,
                Some((id, claim)),
                open,
            );
        }
    }

    /// A segment over an application's own store.
    ///
    /// # Errors
    /// The store's; those of `memfd_create(2)`; `EOWNERDEAD`: in a forked child.
    pub fn open_store(&self, store: impl Store, name: &str) -> io::Result<Segment> {
        self.check_here()?;
        // A store may do anything with this cache: nothing is locked while it is asked.
        let found = Found::new(store, self.number())?;
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
        file: Option<(FileId, Option<Claim>)>,
        mut open: MutexGuard<'_, Open>,
    ) -> io::Result<Segment> {
        let engine = &self.shared().engine;
        let page_bytes = self.page_bytes();
        let no = open.free.last().copied().unwrap_or(open.next);
        let memory = engine.port().memory();
        let len = found.version.size_bytes;
        let frames = match memory.frames_for(Number(no), name, len, page_bytes, engine.table) {
            Ok(frames) => frames,
            Err(errno) => {
                // While it is locked: who opens the file next claims it by the same descriptor.
                drop(file);
                return Err(errno.into());
            }
        };
        let Found { store, version, sparse } = found;
        let backing = Arc::new(Backing {
            frames,
            store,
            size: AtomicU64::new(len),
            stored_size: AtomicU64::new(len),
            made_size: Mutex::new(None),
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

    fn number(&self) -> usize {
        self.shared().number()
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

    /// The same, and pages may be waited for.
    pub(crate) fn check_may_wait(&self) -> io::Result<()> {
        self.check_here()?;
        self.shared().check_may_wait()
    }

    /// The budget in bytes; 0 in a forked child.
    pub fn budget_bytes(&self) -> u64 {
        // There, another thread of the parent's may have the lock for ever.
        if self.is_here() { self.shared().engine.budget_bytes() } else { 0 }
    }

    /// Changes the budget; pages beyond it leave before this returns, as far as they can (what is
    /// pinned, or cannot be written back, stays until it can). Less than [`BUDGET_PAGES_MIN`] pages is
    /// that many: [`budget_bytes`](Self::budget_bytes) says so, and listeners are told so. Of what is
    /// [set aside](Self::reserve) it leaves at most half of the budget, in which
    /// [`Compressed`](crate::library::Compressed) then keeps its pages: others go to the store below. In a
    /// forked child nothing is done, nor in the code of a [store](crate::library::Store) that the cache asks:
    /// [`try_set_budget`](Self::try_set_budget) says so.
    pub fn set_budget(&self, budget_bytes: u64) {
        // Whoever wants to know whether it was done asks by the other name.
        let _ = self.try_set_budget(budget_bytes);
    }

    /// The same, which tells why nothing was done.
    ///
    /// # Errors
    /// `EOWNERDEAD`: in a forked child; `EDEADLK`: in the code of a [store](crate::library::Store) that the
    /// cache asks, whose pages on their way could not leave.
    pub fn try_set_budget(&self, budget_bytes: u64) -> io::Result<()> {
        self.check_may_wait()?;
        let budget_bytes = budget_bytes.max(BUDGET_PAGES_MIN * self.page_bytes());
        let shared = self.shared();
        // First, where it becomes smaller: else what is set aside would be taken from the frames.
        shared.set_aside_of(budget_bytes.min(self.budget_bytes()));
        shared.engine.set_budget(budget_bytes);
        shared.set_aside();
        loop {
            let now = self.budget_bytes();
            shared.listeners.iter().for_each(|listener| listener(now));
            // Of two threads that change it at once, one may tell late: the last word is what holds.
            if now == self.budget_bytes() {
                return Ok(());
            }
        }
    }

    /// Sets memory of the budget aside for something else: pages leave before this returns, as far
    /// as they can. It is given back when the guard is dropped, and in part where the budget becomes too
    /// small for it ([`Reserved::limit_bytes`]).
    ///
    /// # Errors
    /// `ENOMEM`: more than half of the budget would be set aside; `EOWNERDEAD`: in a forked child;
    /// `EDEADLK`: in the code of a [store](crate::library::Store) that the cache asks, as in
    /// [`try_set_budget`](Self::try_set_budget).
    pub fn reserve(&self, bytes: u64) -> io::Result<Reserved> {
        self.check_may_wait()?;
        let shared = &self.0.shared;
        let share = shared.reserved.lock().expect("reserved").add(bytes, self.budget_bytes());
        let reserved = Reserved::new(shared, share.ok_or(Errno::NOMEM)?);
        shared.set_aside();
        Ok(reserved)
    }

    /// How pages of mapped regions are brought in.
    pub fn fault_path(&self) -> FaultPath {
        self.shared().engine.port().path()
    }

    /// How the bytes of a page are found.
    pub fn translation(&self) -> Translation {
        self.shared().translation
    }

    /// The policy that decides now; in a forked child the one that the cache was made with.
    pub fn policy(&self) -> PolicySpec {
        let now = self.is_here().then(|| self.shared().engine.policy());
        now.flatten().unwrap_or_else(|| self.shared().made_with.clone())
    }

    /// Another policy decides from now on: V++'s `SetSegmentManager` on live segments. Pages stay
    /// where they are, in memory or not; what the old policy knew of them is forgotten. Returns the
    /// pages that are in memory.
    ///
    /// # Errors
    /// `EINVAL`: the policy runs in the simulator alone (nothing is changed then); `EOWNERDEAD`: in
    /// a forked child.
    pub fn set_policy(&self, policy: PolicySpec) -> io::Result<u32> {
        self.check_may_wait()?;
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
        self.check_may_wait()?;
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

/// A file that is registered among the caches of this user: by one that writes, or several that read.
#[derive(Debug)]
pub(crate) struct Claim {
    registry: Arc<Unforked>,
    id: FileId,
    mark: ForkMark,
}

impl Claim {
    /// Registers a file for a cache whose other files are registered by the same descriptor.
    fn new(
        open: &mut Open,
        mark: ForkMark,
        id: FileId,
        writable: bool,
    ) -> io::Result<Option<Claim>> {
        let registry = match open.registry.upgrade() {
            Some(registry) => registry,
            None => match registry::open() {
                Some(registry) => Arc::new(Unforked::new(registry)),
                None => return Ok(None),
            },
        };
        let claimed = match writable {
            true => registry::claim(&registry, id),
            false => registry::claim_shared(&registry, id),
        };
        claimed.map_err(|_| Errno::BUSY)?;
        open.registry = Arc::downgrade(&registry);
        Ok(Some(Claim { registry, id, mark }))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A forked child has neither the cache nor the claim.
        if self.mark.is_here() {
            registry::release(&self.registry, self.id);
        }
    }
}
