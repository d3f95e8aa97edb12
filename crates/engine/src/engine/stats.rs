//! What a run counted.

use pagekeeper_policy::{Account, PolicySpec};
use pagekeeper_sys::clock::monotonic_ns;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts of one file.
#[derive(Clone, Copy, Default, Debug, Serialize)]
pub struct FileCounts {
    /// Pages fetched because a reference needed them.
    pub major_faults: u64,
    /// Faults on resident, unmapped pages.
    pub minor_faults: u64,
    /// First writes to clean pages, or pages [opened](crate::engine::Engine::open_pages) to writes.
    pub write_faults: u64,
    /// Pages evicted.
    pub evictions: u64,
    /// Pages written back.
    pub write_backs: u64,
    /// Bytes fetched from storage.
    pub read_bytes: u64,
    /// Bytes written to storage. Of a heap whose pages are compressed in memory first, none: which of
    /// several heaps a page is of that gives way later is not known.
    pub written_bytes: u64,
}

impl FileCounts {
    /// Adds another file's counts.
    pub fn add(&mut self, other: &FileCounts) {
        self.major_faults += other.major_faults;
        self.minor_faults += other.minor_faults;
        self.write_faults += other.write_faults;
        self.evictions += other.evictions;
        self.write_backs += other.write_backs;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
    }
}

/// Threads whose present call can be watched.
const WATCHED_THREADS: usize = 64;

/// Where the engine's own time went, summed over its threads, and what each is doing now.
#[derive(Debug)]
pub struct Times {
    policy_ns: AtomicU64,
    io_ns: AtomicU64,
    kernel_ns: AtomicU64,
    start_ns: u64,
    /// Per thread: nanoseconds since `start_ns` when its present call began, times four, plus its
    /// kind; 0 while it is in none.
    now: [AtomicU64; WATCHED_THREADS],
}

impl Default for Times {
    fn default() -> Self {
        Times {
            policy_ns: AtomicU64::new(0),
            io_ns: AtomicU64::new(0),
            kernel_ns: AtomicU64::new(0),
            start_ns: monotonic_ns(),
            now: [const { AtomicU64::new(0) }; WATCHED_THREADS],
        }
    }
}

/// A thread's place in [`Times::now`], its own for as long as it lives: two threads in one place
/// would each bring back what the other was doing.
struct Watched(Option<usize>);

/// One bit a place.
static WATCHED: AtomicU64 = AtomicU64::new(0);

impl Watched {
    fn new() -> Watched {
        let free = |taken: u64| {
            let place = taken.trailing_ones() as usize;
            (place < WATCHED_THREADS).then_some(place)
        };
        let take = |taken| free(taken).map(|place| taken | 1 << place);
        let before = WATCHED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        Watched(before.ok().and_then(free))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            WATCHED.fetch_and(!(1 << place), Ordering::Relaxed);
        }
    }
}

/// This thread's place, if there was one left.
fn watched_thread() -> Option<usize> {
    thread_local! {
        static MINE: Watched = Watched::new();
    }
    MINE.try_with(|mine| mine.0).ok().flatten()
}

/// What time is spent on.
#[derive(Clone, Copy, Debug)]
pub enum Spent {
    /// Deciding, under the lock.
    Policy = 0,
    /// Reading and writing storage.
    Io = 1,
    /// Mapping, protecting, unmapping, discarding.
    Kernel = 2,
}

impl Times {
    /// Runs something and adds how long it took.
    pub fn of<T>(&self, what: Spent, f: impl FnOnce() -> T) -> T {
        let begun_ns = monotonic_ns();
        let since_ns = begun_ns - self.start_ns;
        let mine = watched_thread().map(|place| &self.now[place]);
        let now = (since_ns.max(1) << 2) | what as u64;
        let outer = mine.map(|mine| mine.swap(now, Ordering::Relaxed));
        let result = f();
        if let (Some(mine), Some(outer)) = (mine, outer) {
            mine.store(outer, Ordering::Relaxed);
        }
        let ns = monotonic_ns() - begun_ns;
        let sum = match what {
            Spent::Policy => &self.policy_ns,
            Spent::Io => &self.io_ns,
            Spent::Kernel => &self.kernel_ns,
        };
        sum.fetch_add(ns, Ordering::Relaxed);
        result
    }

    /// Calls that have gone on for longer than this: (what, for how long).
    pub fn stuck(&self, longer_than: Duration) -> Vec<(&'static str, Duration)> {
        let now_ns = monotonic_ns() - self.start_ns;
        let watched = self.now.iter().map(|n| n.load(Ordering::Relaxed)).filter(|n| *n != 0);
        watched
            .map(|n| {
                let what = ["deciding", "reading or writing storage", "changing mappings"];
                let since = Duration::from_nanos(now_ns.saturating_sub(n >> 2));
                (what[(n & 3) as usize % 3], since)
            })
            .filter(|(_, since)| *since > longer_than)
            .collect()
    }

    /// (policy, I/O, kernel) so far, in nanoseconds.
    pub fn read_ns(&self) -> (u64, u64, u64) {
        (
            self.policy_ns.load(Ordering::Relaxed),
            self.io_ns.load(Ordering::Relaxed),
            self.kernel_ns.load(Ordering::Relaxed),
        )
    }
}

/// A policy that decided in a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PolicyReport {
    /// The policy, as it was asked for.
    pub policy: String,
    /// What it showed of itself, if it shows anything.
    #[serde(flatten)]
    pub account: Option<Account>,
    #[serde(skip)]
    pub(crate) spec: Option<PolicySpec>,
}

impl PolicyReport {
    pub(crate) fn new(spec: &PolicySpec) -> PolicyReport {
        PolicyReport { policy: spec.to_string(), account: None, spec: Some(spec.clone()) }
    }
}

/// So many policies have a report of their own, the last ones; those before have one together.
pub const POLICY_REPORTS_MAX: usize = 100;

/// All that decided, one after the other.
#[derive(Debug)]
pub(crate) struct Policies {
    last: VecDeque<PolicyReport>,
    /// How many there were before, and what they showed of themselves.
    earlier: u32,
    earlier_account: Option<Account>,
}

impl Policies {
    /// The first.
    pub(crate) fn of(first: PolicyReport) -> Policies {
        Policies { last: [first].into(), earlier: 0, earlier_account: None }
    }

    /// Another one decides. Returns its number.
    pub(crate) fn push(&mut self, report: PolicyReport) -> u32 {
        let number = self.earlier + self.last.len() as u32;
        if self.last.len() == POLICY_REPORTS_MAX
            && let Some(earlier) = self.last.pop_front()
        {
            self.earlier += 1;
            if let Some(account) = earlier.account {
                let sum = self.earlier_account.get_or_insert_default();
                sum.notes_dropped += account.notes.len() as u64 + account.notes_dropped;
                sum.revoked = sum.revoked.take().or(account.revoked);
            }
        }
        self.last.push_back(report);
        number
    }

    /// The one that decides.
    pub(crate) fn present(&self) -> &PolicyReport {
        self.last.back().expect("a policy decides")
    }

    pub(crate) fn present_mut(&mut self) -> &mut PolicyReport {
        self.last.back_mut().expect("a policy decides")
    }

    /// The reports, the earliest first.
    pub(crate) fn reports(&self) -> Vec<PolicyReport> {
        let earlier = (self.earlier > 0).then(|| PolicyReport {
            policy: format!("{} earlier ones", self.earlier),
            account: self.earlier_account.clone(),
            spec: None,
        });
        earlier.into_iter().chain(self.last.iter().cloned()).collect()
    }
}

/// One managed file in a report.
#[derive(Clone, Debug, Serialize)]
pub struct FileReport {
    /// Its path when it was first opened.
    pub name: String,
    /// Its length in bytes at the end.
    pub bytes: u64,
    /// Its counts.
    #[serde(flatten)]
    pub counts: FileCounts,
}

/// A time in which files were left to the kernel's page cache.
#[derive(Clone, Debug, Serialize)]
pub struct StandbyReport {
    /// How long; the whole run if it did not end.
    pub ns: u64,
    /// Why it ended, if it did.
    pub end: Option<String>,
}

/// Pages of heaps that stayed in memory compressed.
#[derive(Clone, Copy, Default, Debug, Serialize)]
pub struct CompressedReport {
    /// The most memory that they might take.
    pub limit_bytes: u64,
    /// The most that they took.
    pub memory_bytes_max: u64,
    /// Pages that were put in.
    pub kept_pages: u64,
    /// Pages that were refused, since they do not compress to three quarters, or the last did not.
    pub refused_pages: u64,
    /// Pages that came back from there.
    pub found_pages: u64,
    /// Pages that were written to the scratch file after all, to make room.
    pub written_pages: u64,
    /// Bytes that were written to the scratch file in all, those of refused pages too.
    pub written_bytes: u64,
    /// Bytes that pages took on average, of 4,096; 0 if there were none.
    pub page_bytes: u64,
}

/// What a run counted, in total and per file. The names are relied on by scripts.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    /// The first policy, as it was asked for.
    pub policy: String,
    /// All that decided, one after the other: the last hundred, and before them one for all earlier ones.
    pub policies: Vec<PolicyReport>,
    /// The budget.
    pub memory_bytes: u64,
    /// Totals over all files.
    #[serde(flatten)]
    pub total: FileCounts,
    /// Wall-clock time of the program.
    pub elapsed_ns: u64,
    /// How long files that were only read stayed the kernel's before they were managed, because
    /// nothing could be won; none if there was no such time.
    pub standby: Option<StandbyReport>,
    /// Heap pages that stayed in memory compressed; none without `--compress`.
    pub compressed: Option<CompressedReport>,
    /// Major faults on pages that were evicted before.
    pub refaults: u64,
    /// Pages fetched ahead of need.
    pub prefetched_pages: u64,
    /// Of these, pages that left without being known to be used.
    pub prefetch_wasted_pages: u64,
    /// The most that seeing touches might cost, in percent of the time that misses take. None: no
    /// bound, since all were to be seen.
    pub sampling_percent: Option<u32>,
    /// Pages unmapped so that their next touch is seen.
    pub unmapped_pages: u64,
    /// Touches that sampling is charged with: of these pages, and of the few that were not mapped
    /// for another reason. Two cost about as much as one miss, for which each of `evictions` stands.
    pub touches_seen: u64,
    /// Private copies of file pages at their most.
    pub private_pages_max: u64,
    /// Faults answered with SIGBUS.
    pub failed_faults: u64,
    /// Time in decisions.
    pub policy_ns: u64,
    /// Time reading and writing storage.
    pub io_ns: u64,
    /// Time changing mappings.
    pub kernel_ns: u64,
    /// Digest of all decisions; a replay of the recorded inputs gives the same.
    pub decisions_digest: String,
    /// Per file.
    pub files: Vec<FileReport>,
    /// Files that were passed through to the kernel, with the reason.
    pub passed_through: Vec<PassedThrough>,
    /// Things the user should know.
    pub notes: Vec<String>,
}

/// A file that was not managed.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct PassedThrough {
    /// Its path.
    pub name: String,
    /// Why.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that changed its policy again and again had a report of each for ever.
    #[test]
    fn policies_of_long_ago_have_one_report() {
        let (lru, mru) = (PolicySpec::parse("lru").unwrap(), PolicySpec::parse("mru").unwrap());
        let mut policies = Policies::of(PolicyReport::new(&mru));
        for number in 1..250 {
            let revoked = (number == 7).then(|| "it divided by zero".to_owned());
            policies.present_mut().account = Some(Account { revoked, ..Account::default() });
            assert_eq!(policies.push(PolicyReport::new(&lru)), number);
        }
        let reports = policies.reports();
        assert_eq!(reports.len(), POLICY_REPORTS_MAX + 1);
        assert_eq!((&*reports[0].policy, &*reports[1].policy), ("150 earlier ones", "lru"));
        let earlier = reports[0].account.as_ref().unwrap();
        assert_eq!(earlier.revoked.as_deref(), Some("it divided by zero"));
        assert!(policies.present().spec.is_some());
    }

    /// A run that had seen more threads than there are places called handlers stuck that had ended
    /// long ago: two threads shared a place, and the one that ended last brought back what the
    /// other had begun.
    #[test]
    fn what_a_thread_began_is_over_when_it_ends() {
        let times = Times::default();
        std::thread::scope(|scope| {
            for _ in 0..4 * WATCHED_THREADS {
                scope.spawn(|| {
                    times.of(Spent::Kernel, || {
                        times.of(Spent::Io, || std::thread::sleep(Duration::from_micros(200)));
                    });
                });
            }
        });
        assert_eq!(times.stuck(Duration::ZERO), []);
        let stuck = times.of(Spent::Io, || times.stuck(Duration::ZERO));
        assert_eq!(stuck.len(), 1);
    }
}
