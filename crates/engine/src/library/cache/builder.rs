//! What a cache is made with, and how it is made.

use super::shared::{Listener, Open, Owner, Shared};
use super::{BUDGET_PAGES_MIN, Cache, SEED};
use crate::engine::Engine;
use crate::engine::spaces::Space;
use crate::library::faults::{self, FaultPath};
use crate::library::frames::{Memory, PAGE_BYTES_MAX};
use crate::library::port::LibraryPort;
use crate::library::process;
use crate::library::regions::HERE;
use crate::library::tables::Tables;
use crate::library::translation::{Buckets, Translation};
use crate::library::visits::Visits;
use crate::manager::work::Workers;
use crate::port::{PAGE_BYTES, huge_pages, other_pages};
use pagekeeper_frames::{Budget, Config, Sampling, SamplingShare, WINDOW_PAGES_MAX};
use pagekeeper_policy::PolicySpec;
use pagekeeper_sys::Errno;
use pagekeeper_sys::event::EventFd;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// What a cache is made with. Start from [`Cache::builder`].
#[must_use]
pub struct Builder {
    budget_bytes: u64,
    policy: Option<PolicySpec>,
    fault_path: FaultPath,
    workers: usize,
    write_back_period: Option<Duration>,
    keeps_awake: bool,
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
    pub(super) fn new(budget_bytes: u64) -> Builder {
        Builder {
            budget_bytes,
            policy: None,
            fault_path: FaultPath::Explicit,
            workers: 1,
            write_back_period: Some(Duration::from_secs(5)),
            keeps_awake: false,
            read_ahead_pages_max: None,
            sampling: SamplingShare::USUAL,
            page_bytes: PAGE_BYTES,
            translation: Translation::Mapped,
            scratch_directory: std::env::temp_dir(),
            listeners: Vec::new(),
        }
    }

    /// Which page leaves when room is needed; LRU if nothing is said.
    ///
    /// A program in the HiPEC language is a policy, too; `pagekeeper_hipec::text::parse` reads its file, or the
    /// name of any other policy:
    ///
    /// ```
    /// use pagekeeper::library::Cache;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("mine.hipec");
    /// # std::fs::copy("../../policies/mru.hipec", &path)?;
    /// let policy = pagekeeper_hipec::text::parse(path.to_str().unwrap(), |path| std::fs::read(path))?;
    /// let cache = Cache::builder(1 << 20).policy(policy).build()?;
    /// # assert!(cache.policy().to_string().contains("mine.hipec"));
    /// # Ok(())
    /// # }
    /// ```
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

    /// Keeps processors from halting while more than a thousand misses a second are waited for; nobody does if
    /// nothing is said. It is for virtual machines that take long to wake a processor (`pagekeeper doctor` says
    /// so: `soon-awake`), where a miss costs less then. It concerns all of the machine, takes time of the host's,
    /// and needs the right to open `/dev/cpu_dma_latency`: without that, and elsewhere, nothing changes.
    pub fn keep_awake(mut self) -> Builder {
        self.keeps_awake = true;
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

    /// Called with the new budget in bytes whenever [`Cache::set_budget`] has set it, to another or
    /// the same, by the thread that did: the program may trade memory for time then. It must not call `set_budget`.
    pub fn on_budget_change(mut self, listener: impl Fn(u64) + Send + Sync + 'static) -> Builder {
        self.listeners.push(Box::new(listener));
        self
    }

    /// Makes the cache. It takes 1.6 GB of address space, little of it memory: a limit on that (`ulimit -v`)
    /// has to leave so much. So it has to for each segment in which something is touched: 16 MiB, or as much
    /// as it is long, up to 1 GiB for each GiB that is touched, rounded up to a power of two (once it grew,
    /// up to 1.6 GiB for the first). With [`Translation::Table`] a cache takes 5.7 GB below such a limit (1
    /// TB where there is none), and a segment 2 MiB for each GiB.
    ///
    /// # Errors
    /// `ENOMEM`: there is less address space or memory. (For segments it is told by who touches them.)
    /// `EINVAL`: the policy runs in the simulator alone, the size of pages is none, or the budget is less
    /// than eight of them ([`BUDGET_PAGES_MIN`]), 32 KiB if nothing is said of their size; a hash table
    /// has no buckets, or another fault path than explicit; those of `memfd_create(2)`, `mmap(2)` and of
    /// starting threads. For fault paths other than explicit, those of `userfaultfd(2)` (`pagekeeper doctor` says what is missing and how to get it), and
    /// `EBUSY`: the program has another kind of handler of SIGBUS from here. `Unsupported`: this kernel's
    /// pages have not 4096 bytes, or this machine's shared memory comes in huge pages where smaller ones are
    /// to be mapped; the error says what to do.
    pub fn build(self) -> io::Result<Cache> {
        let policy = match self.policy {
            Some(policy) => policy,
            None => PolicySpec::parse("lru").expect("LRU is in the registry"),
        };
        let made_with = policy.clone();
        let (page_bytes, path) = (self.page_bytes, self.fault_path);
        let sound = page_bytes.is_power_of_two()
            && (PAGE_BYTES..=PAGE_BYTES_MAX).contains(&page_bytes)
            && self.budget_bytes / page_bytes >= BUDGET_PAGES_MIN
            && self.translation != Translation::Hash(Buckets::Fixed(0))
            && (self.translation == Translation::Mapped || path == FaultPath::Explicit);
        if !sound {
            return Err(Errno::INVAL.into());
        }
        // Pages of the largest size are to be huge; without a mapping, they lie in blocks that are.
        let is_single = self.translation == Translation::Mapped && page_bytes < PAGE_BYTES_MAX;
        if let Some(reason) = other_pages().or_else(|| is_single.then(huge_pages).flatten()) {
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
            made_with,
            reserved: Mutex::default(),
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
        let (period, keeps_awake) = (self.write_back_period, self.keeps_awake);
        if period.is_some() || keeps_awake {
            let shared = shared.clone();
            owner.spawn("pagekeeper-wb", move || shared.look_after(period, keeps_awake))?;
        }
        Ok(Cache(Arc::new(owner)))
    }
}
