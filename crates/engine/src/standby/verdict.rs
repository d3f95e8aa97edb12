//! Whether a standby ends: what the kernel's counts say of what could be won, and what the programs do
//! with their time. Pure; [`crate::standby`] looks.

use pagekeeper_sys::cgroup::Pressure;
use std::cell::LazyCell;
use std::collections::VecDeque;
use std::time::Duration;

/// So many pages for each frame have to be read again before that is judged: to begin costs up to
/// once and a half as much, all read once more and a loop learnt, and a program may be near its end.
/// At least so many, and at most so many.
const REFAULTS_PER_FRAME: u64 = 4;
const REFAULTS_MIN: u64 = 64;
const REFAULTS_MAX: u64 = 1 << 18;
/// Refaults for each major fault from which on something can be won.
const REFAULTS_PER_FAULT: u64 = 2;
/// Of loops much is won, and the sooner the more: one refault for so many frames.
const FRAMES_PER_REFAULT_OF_LOOP: u64 = 4;
/// And only of one that has gone on for so long: to begin takes some ten milliseconds, and a program
/// that reads everything just twice has nothing left to win.
const LOOP_LASTS_MIN: Duration = Duration::from_millis(100);
/// What it reads again is looked at in so many steps.
const STEPS_OF_LOOP: u64 = 16;
/// And only of one that waits for storage: from so much time for each page on, all that the programs do
/// with it included.
const PAGE_OF_LOOP_NS: u128 = 16_000;
/// Unless they, and the kernel for them, are on a processor for all of it but so much.
const WAIT_OF_LOOP_NS: u128 = 10_000;
/// Where it takes less, what the kernel takes for a round of the loop, waiting included, has to be more than
/// what we would take. A page takes us so much more of the processors' time (copied into a frame, mapped,
/// taken out), but only those have to be fetched that do not fit.
const OURS_MORE_NS: u128 = 6_000;
/// That a selector sees a sample of them takes so much of each page: of one in sixteen ten microseconds.
const SEEN_NS: u128 = 600;
/// To begin, each frame is filled once. Loops are taken to go round so often from then on.
const ROUNDS: u128 = 16;
/// And so much of what the kernel takes may be left at most, in tenths.
const LEFT_TENTHS_MAX: u128 = 8;
/// What is read by calls causes no faults. In order the kernel reads whole windows for it; where requests are
/// shorter, it is judged as single pages are.
const PAGES_PER_REQUEST_OF_LOOP: u64 = 8;
/// What programs read for the first time is no loop, however slowly what was evicted comes in between: so many pages
/// of theirs at most for each that is read again.
const PAGES_PER_REFAULT_OF_LOOP: u64 = 2;
/// Loops are told from single pages, around which the kernel reads a window for each fault, by so many
/// windows for each fault: in order it reads ahead before there is one.
const WINDOWS_PER_FAULT_OF_LOOP: u64 = 2;
/// What the kernel reads ahead, or around a page, at most, if it is not set to more (128 KiB).
pub(crate) const WINDOW_PAGES: u64 = 32;
/// Where it is set to more, a few faults of a program that begins may have read as much as a loop does by calls:
/// unless so many eighths of what programs read they read by calls.
const BY_CALLS_EIGHTHS: u64 = 5;

/// What the kernel's counts say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Too little was read again to tell.
    Wait,
    /// Memory is short, but single pages are missed in no order: no policy would miss fewer. Or the
    /// kernel reads them as fast as we could.
    NothingToWin,
    /// Memory is short, and reads can be saved.
    Short(Sign),
}

/// Why the kernel's counts end a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// They cannot be read any more.
    Unreadable,
    /// Pages were read again that had been evicted.
    Refaults,
    /// Such pages were read in order.
    Loop,
}

impl Sign {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Sign::Unreadable => "the kernel's counts of the cgroup cannot be read any more",
            Sign::Refaults => "the kernel read pages again that it had evicted",
            Sign::Loop => "the kernel read pages again, in order, that it had evicted",
        }
    }
}

/// What was seen of the counts, and what they say.
#[derive(Debug)]
pub(crate) struct Judge {
    frames: u32,
    /// Before the first page was read again that counts.
    begin: Option<Look>,
    /// Of what was read again since, the last look before each step of it: how fast pages are read again is
    /// told from the latest of them that go far enough back, since a few of the program's own may have come
    /// long before its loop did.
    steps: VecDeque<Step>,
    /// When programs were looked at last, they were on a processor nearly all the time, or read in no order: a
    /// page that takes long does not wait for storage, or is none of a loop.
    time_says_nothing: bool,
}

/// What the kernel had counted, so long after a run began.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Duration,
    counts: Pressure,
}

/// The last look at which so many pages were read again, or few more.
#[derive(Debug)]
struct Step {
    refaults_min: u64,
    look: Look,
}

/// What was counted from one look to another.
#[derive(Clone, Copy)]
struct Stretch {
    refaults: u64,
    major_faults: u64,
    elapsed: Duration,
}

impl Stretch {
    /// Whether so few faults are of what is read in order, where the kernel reads so much ahead.
    fn is_in_order(self, window_pages: u64) -> bool {
        self.refaults > WINDOWS_PER_FAULT_OF_LOOP * window_pages * self.major_faults
    }
}

impl Look {
    fn since(self, before: Look) -> Stretch {
        Stretch {
            refaults: self.counts.refaults.saturating_sub(before.counts.refaults),
            major_faults: self.counts.major_faults.saturating_sub(before.counts.major_faults),
            elapsed: self.at.saturating_sub(before.at),
        }
    }
}

impl Judge {
    pub(crate) fn new(frames: u32) -> Judge {
        Judge { frames, begin: None, steps: VecDeque::new(), time_says_nothing: false }
    }

    /// What the counts say, so long after the run began. How much the kernel reads ahead is asked, and the
    /// `programs` are looked at, if that decides; none: it is too soon to look at them again.
    pub(crate) fn look(
        &mut self,
        at: Duration,
        counts: Pressure,
        window_pages: impl FnOnce() -> u64,
        programs: impl FnOnce() -> Option<Programs>,
    ) -> Verdict {
        let now = Look { at, counts };
        let begin = *self.begin.get_or_insert(now);
        self.keep(now);
        let verdict = self.verdict(now.since(begin), now, window_pages, programs);
        // Faults before the first page that is read again count for nothing, nor does what was judged.
        if verdict == Verdict::NothingToWin || counts.refaults == begin.counts.refaults {
            self.begin = Some(now);
            self.steps.clear();
            self.keep(now);
        }
        verdict
    }

    fn enough(&self, refaults: u64) -> u64 {
        refaults.clamp(REFAULTS_MIN, REFAULTS_MAX)
    }

    fn enough_of_loop(&self) -> u64 {
        self.enough(u64::from(self.frames) / FRAMES_PER_REFAULT_OF_LOOP)
    }

    fn keep(&mut self, now: Look) {
        let refaults = now.counts.refaults;
        let step = self.enough_of_loop() / STEPS_OF_LOOP;
        match self.steps.back_mut() {
            Some(last) if refaults < last.refaults_min + step => last.look = now,
            _ => self.steps.push_back(Step { refaults_min: refaults, look: now }),
        }
        while self.steps.get(1).is_some_and(|next| self.is_enough_of_loop(now.since(next.look))) {
            self.steps.pop_front();
        }
    }

    fn is_enough_of_loop(&self, stretch: Stretch) -> bool {
        stretch.refaults >= self.enough_of_loop() && stretch.elapsed >= LOOP_LASTS_MIN
    }

    fn verdict(
        &mut self,
        all: Stretch,
        now: Look,
        window_pages: impl FnOnce() -> u64,
        programs: impl FnOnce() -> Option<Programs>,
    ) -> Verdict {
        let last = self.steps.front().map(|step| now.since(step.look));
        let Some(last) = last.filter(|&last| self.is_enough_of_loop(last)) else {
            return Verdict::Wait;
        };
        let page_ns = last.elapsed.as_nanos() / u128::from(last.refaults);
        let programs = LazyCell::new(programs);
        let is_in_order = last.is_in_order(window_pages());
        if is_in_order && let Some(verdict) = self.verdict_on_loop(page_ns, *programs) {
            return verdict;
        }
        if all.refaults < self.enough(REFAULTS_PER_FRAME * u64::from(self.frames)) {
            return Verdict::Wait;
        }
        if all.refaults < REFAULTS_PER_FAULT * all.major_faults {
            return Verdict::NothingToWin;
        }
        if !is_in_order && all.is_in_order(WINDOW_PAGES) {
            let Some(programs) = *programs else { return Verdict::Wait };
            if (programs.read_by_calls() || programs.reads_on())
                && let Some(verdict) = self.verdict_on_loop(page_ns, Some(programs))
            {
                return verdict;
            }
        }
        Verdict::Short(Sign::Refaults)
    }

    /// What few faults say, where each page takes so long: it is read in order. None if it is read by calls, in
    /// runs that are too short for that.
    fn verdict_on_loop(&mut self, page_ns: u128, programs: Option<Programs>) -> Option<Verdict> {
        let short_pages = programs.and_then(Programs::short_request_pages);
        if let Some(programs) = programs {
            let computes = programs.wait_ns(page_ns) < WAIT_OF_LOOP_NS;
            self.time_says_nothing = computes || short_pages.is_some() || programs.reads_on();
        }
        let is_slow = page_ns >= PAGE_OF_LOOP_NS && !self.time_says_nothing;
        match (programs, short_pages) {
            // A fault for each page, if they were mapped.
            (_, Some(pages)) => (pages < REFAULTS_PER_FAULT).then_some(Verdict::NothingToWin),
            (Some(programs), _) if programs.reads_on() => Some(Verdict::NothingToWin),
            _ if is_slow => Some(Verdict::Short(Sign::Loop)),
            (None, _) => Some(Verdict::Wait),
            (Some(programs), _) => Some(match programs.would_gain(page_ns, self.frames) {
                true => Verdict::Short(Sign::Loop),
                false => Verdict::NothingToWin,
            }),
        }
    }
}

/// What the programs have in hand, and how they spend their time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Programs {
    /// Pages of what they have mapped or open.
    pub(crate) reach_pages: u64,
    /// How long there have been any.
    pub(crate) lifetime: Duration,
    /// How long, of that, their own code was executed.
    pub(crate) own: Duration,
    /// How long, of that, they were on a processor, the kernel's work for them included; twice as long where
    /// there were two all the time.
    pub(crate) busy: Duration,
    /// What disks read since they were looked at last, in pages, and by how many requests.
    pub(crate) read_pages: u64,
    pub(crate) read_requests: u64,
    /// What they read from storage themselves since then, in pages; by calls, from wherever it was; and how many pages
    /// were read again that had been evicted.
    pub(crate) own_read_pages: u64,
    pub(crate) called_pages: u64,
    pub(crate) reread_pages: u64,
}

impl Programs {
    /// How many pages a request brought, on average, where that were few.
    fn short_request_pages(self) -> Option<u64> {
        let pages = self.read_pages.checked_div(self.read_requests)?;
        (pages < PAGES_PER_REQUEST_OF_LOOP).then_some(pages)
    }

    /// Whether most of what they read comes for the first time.
    fn reads_on(self) -> bool {
        self.own_read_pages > PAGES_PER_REFAULT_OF_LOOP * self.reread_pages
    }

    /// Whether most of what they read they read by calls.
    fn read_by_calls(self) -> bool {
        self.own_read_pages > 0
            && self.called_pages.saturating_mul(8) >= self.own_read_pages * BY_CALLS_EIGHTHS
    }

    /// For how long of what a page takes no program was on a processor. Of several at a time, one may wait
    /// while another computes: then it may be all.
    fn wait_ns(self, page_ns: u128) -> u128 {
        let lifetime = self.lifetime.as_nanos();
        match lifetime.checked_sub(self.busy.as_nanos()) {
            Some(waited) if lifetime > 0 => page_ns * waited / lifetime,
            _ => page_ns,
        }
    }

    /// Whether we would take less than the kernel, where a page of their loop takes so long, all that they do
    /// with it included.
    fn would_gain(self, page_ns: u128, frames: u32) -> bool {
        // It must have more than fits, or it goes through what it opens and closes on its way.
        let (reach, frames) = (u128::from(self.reach_pages), u128::from(frames));
        let missed = reach.saturating_sub(frames);
        if missed == 0 || self.lifetime.is_zero() {
            return false;
        }
        let others = self.lifetime.saturating_sub(self.own);
        let kernels_ns = page_ns * others.as_nanos() / self.lifetime.as_nanos();
        let begin_ns = OURS_MORE_NS * frames / ROUNDS;
        let ours_ns = (kernels_ns + OURS_MORE_NS) * missed + SEEN_NS * reach + begin_ns;
        ours_ns * 10 <= kernels_ns * reach * LEFT_TENTHS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: Pressure = Pressure { refaults: 0, major_faults: 0 };

    /// What is said of so much, that was counted in so long a time.
    fn verdict_on(
        frames: u32,
        counted: Pressure,
        elapsed: Duration,
        programs: impl FnOnce() -> Option<Programs>,
    ) -> Verdict {
        let before = Pressure { refaults: 1000, major_faults: 50 };
        let now = Pressure {
            refaults: before.refaults + counted.refaults,
            major_faults: before.major_faults + counted.major_faults,
        };
        let mut judge = Judge::new(frames);
        let at = Duration::from_secs(1);
        assert_eq!(judge.look(at, before, unasked, unasked), Verdict::Wait);
        judge.look(at + elapsed, now, || 32, programs)
    }

    fn verdict(refaults: u64, major_faults: u64) -> Verdict {
        verdict_on(100, Pressure { refaults, major_faults }, LOOP_LASTS_MIN, unseen)
    }

    /// It is too soon to look at programs again.
    fn unseen() -> Option<Programs> {
        None
    }

    fn unasked<T>() -> T {
        panic!("that decides nothing here")
    }

    #[test]
    fn memory_is_short_when_the_kernel_reads_runs_of_pages_again() {
        assert_eq!(verdict(0, 0), Verdict::Wait);
        assert_eq!(verdict(399, 300), Verdict::Wait);
        // Single pages in no order.
        assert_eq!(verdict(400, 410), Verdict::NothingToWin);
        assert_eq!(verdict(400, 201), Verdict::NothingToWin);
        // Pages that lie near each other: the kernel reads around each.
        assert_eq!(verdict(400, 200), Verdict::Short(Sign::Refaults));
        assert_eq!(verdict(400, 13), Verdict::Short(Sign::Refaults));
        assert_eq!(verdict(399, 13), Verdict::Wait);
    }

    #[test]
    fn loops_are_known_sooner() {
        // Read-ahead brings pages back that were evicted a pass before.
        assert_eq!(verdict(64, 1), Verdict::Wait);
        assert_eq!(verdict(65, 1), Verdict::Short(Sign::Loop));
        // Reads by calls cause no faults.
        assert_eq!(verdict(63, 0), Verdict::Wait);
        assert_eq!(verdict(64, 0), Verdict::Short(Sign::Loop));
    }

    #[test]
    fn what_is_read_again_once_and_soon_is_no_loop() {
        let counted = Pressure { refaults: 399, ..ZERO };
        let soon = LOOP_LASTS_MIN - Duration::from_millis(1);
        assert_eq!(verdict_on(100, counted, soon, unasked), Verdict::Wait);
        let lasting = verdict_on(100, counted, LOOP_LASTS_MIN, unseen);
        assert_eq!(lasting, Verdict::Short(Sign::Loop));
    }

    /// A loop of 60,000 pages, each of which takes so long, by programs whose own code is executed for so much
    /// of the time.
    fn loop_of(page_us: u64, reach_pages: u64, own_percent: u32) -> Verdict {
        let counted = Pressure { refaults: 60_000, major_faults: 400 };
        let lifetime = Duration::from_micros(60_000 * page_us);
        let own = lifetime * own_percent / 100;
        let programs = || Some(Programs { reach_pages, lifetime, own, ..Programs::default() });
        verdict_on(32_000, counted, lifetime, programs)
    }

    /// Four loops of fio over a disk that delivers a page in 3 µs took 1.12 of the kernel's time when they
    /// were managed, though a fifth fewer pages were read; four scans of SQLite, of 6 and of 12 µs a page,
    /// 1.10 and 1.08; epochs of numpy, of 8 µs, 1.15 for 0.64 of the pages.
    #[test]
    fn a_loop_that_hardly_waits_for_storage_is_left_to_the_kernel() {
        let twice = 64_000;
        assert_eq!(loop_of(3, twice, 30), Verdict::NothingToWin);
        assert_eq!(loop_of(8, twice, 60), Verdict::NothingToWin);
        assert_eq!(loop_of(12, twice, 60), Verdict::NothingToWin);
        // On a processor for longer than it has lived: there are several threads.
        assert_eq!(loop_of(15, twice, 180), Verdict::NothingToWin);
        assert_eq!(loop_of(12, twice, 20), Verdict::NothingToWin);
        assert_eq!(loop_of(15, twice, 10), Verdict::Short(Sign::Loop));
        // Storage is slow.
        assert_eq!(loop_of(16, twice, 180), Verdict::Short(Sign::Loop));
    }

    /// Ten passes over a quarter more than fits took the kernel 3.9 µs a page, and us four tenths of that
    /// time.
    #[test]
    fn a_loop_most_of_which_fits_is_worth_while_on_any_disk() {
        assert_eq!(loop_of(4, 40_000, 10), Verdict::Short(Sign::Loop));
        assert_eq!(loop_of(4, 40_000, 90), Verdict::NothingToWin);
        assert_eq!(loop_of(4, 64_000, 10), Verdict::NothingToWin);
        // What it goes through is nothing that it has in hand.
        assert_eq!(loop_of(12, 0, 20), Verdict::NothingToWin);
        assert_eq!(loop_of(12, 32_000, 20), Verdict::NothingToWin);
    }

    #[test]
    fn a_loop_is_judged_when_programs_can_be_looked_at_again() {
        let counted = Pressure { refaults: 60_000, major_faults: 400 };
        let of = |page_us: u64| Duration::from_micros(60_000 * page_us);
        assert_eq!(verdict_on(32_000, counted, of(12), || None), Verdict::Wait);
        let slow = verdict_on(32_000, counted, of(16), || None);
        assert_eq!(slow, Verdict::Short(Sign::Loop));
    }

    /// Twelve loops of fio over a fifth more than fits, which took the kernel 2.3 µs a page (more in a slow
    /// hour), of which its own code is 0.6, took us 1.04 [1.00, 1.07] of that, and 36 of them 1.03 to 1.11,
    /// for a third of the reads: a loop pays for being seen, and for frames being filled.
    #[test]
    fn a_loop_that_the_kernel_reads_as_fast_as_we_look_at_it_is_left_to_it() {
        let loop_of_fio = |page_ns: u64| {
            let lifetime = Duration::from_nanos(60_000 * page_ns);
            let own = Duration::from_nanos(60_000 * 650);
            let programs = Programs { reach_pages: 49_152, lifetime, own, ..Programs::default() };
            programs.would_gain(page_ns.into(), 40_448)
        };
        assert!(!loop_of_fio(2_300) && !loop_of_fio(3_500));
        assert!(loop_of_fio(4_000));
    }

    /// `wc`, `md5sum` and `awk` over one text file, of 26 µs a page, nearly all of them computing, took 1.18 of
    /// the kernel's time managed, and two passes of `sort` 1.51.
    #[test]
    fn a_loop_that_computes_does_not_wait_for_storage() {
        let judged = |page_us: u64, busy_percent: u32| {
            let counted = Pressure { refaults: 60_000, major_faults: 400 };
            let lifetime = Duration::from_micros(60_000 * page_us);
            let busy = lifetime * busy_percent / 100;
            let (reach_pages, own) = (64_000, busy * 9 / 10);
            let programs = Programs { reach_pages, lifetime, own, busy, ..Programs::default() };
            verdict_on(32_000, counted, lifetime, || Some(programs))
        };
        assert_eq!(judged(26, 96), Verdict::NothingToWin);
        assert_eq!(judged(26, 65), Verdict::NothingToWin);
        assert_eq!(judged(31, 65), Verdict::Short(Sign::Loop));
        assert_eq!(judged(400, 97), Verdict::Short(Sign::Loop));
        // Several compute, of which one may wait all the time.
        assert_eq!(judged(26, 110), Verdict::Short(Sign::Loop));
    }

    /// Once that was seen, it counts until they can be looked at again; and so it does that they read in no order,
    /// which was taken for a loop at the next look.
    #[test]
    fn what_computed_a_moment_ago_computes() {
        let (mut judge, lifetime) = (Judge::new(100), Duration::from_secs(1));
        let busy = Programs { lifetime, busy: lifetime, ..Programs::default() };
        let mut look = |ms: u64, refaults, programs: Option<Programs>| {
            let counts = Pressure { refaults, ..ZERO };
            judge.look(Duration::from_millis(ms), counts, || 32, || programs)
        };
        assert_eq!(look(0, 0, None), Verdict::Wait);
        assert_eq!(look(100, 1_000, Some(busy)), Verdict::NothingToWin);
        assert_eq!(look(200, 2_000, None), Verdict::Wait);
        let waits = Programs { busy: lifetime / 2, ..busy };
        let in_no_order = Programs { read_pages: 1, read_requests: 1, ..waits };
        assert_eq!(look(300, 3_000, Some(in_no_order)), Verdict::NothingToWin);
        assert_eq!(look(400, 4_000, None), Verdict::Wait);
        assert_eq!(look(500, 5_000, Some(waits)), Verdict::Short(Sign::Loop));
    }

    /// `cp` of 192 MiB in 32 read a quarter of its pages again, since the kernel evicted what it had read ahead for
    /// what was written: each took 16 µs and more, all others included, and `cp` and `cmp`, of 3.5 µs a page, took
    /// 1.73 of the kernel's time managed.
    #[test]
    fn what_is_read_for_the_first_time_is_no_loop() {
        let (mut judge, lifetime) = (Judge::new(8_192), Duration::from_secs(1));
        let mut look = |ms: u64, refaults, programs: Option<Programs>| {
            let counts = Pressure { refaults, ..ZERO };
            judge.look(Duration::from_millis(ms), counts, || 2_048, || programs)
        };
        let of = |own_read_pages, reread_pages| {
            let reach_pages = 98_000;
            Some(Programs {
                reach_pages,
                lifetime,
                own_read_pages,
                reread_pages,
                ..Programs::default()
            })
        };
        assert_eq!(look(0, 0, None), Verdict::Wait);
        assert_eq!(look(140, 2_100, of(34_000, 2_100)), Verdict::NothingToWin);
        assert_eq!(look(280, 4_200, None), Verdict::Wait);
        assert_eq!(look(420, 6_300, of(20_000, 4_200)), Verdict::NothingToWin);
        // And then it is compared.
        assert_eq!(look(429, 8_700, None), Verdict::Wait);
        assert_eq!(look(530, 36_700, of(30_400, 30_400)), Verdict::NothingToWin);
        // A loop over a slow disk.
        assert_eq!(look(1_530, 66_700, of(30_000, 30_000)), Verdict::Short(Sign::Loop));
    }

    /// `cmp` began with 22 faults of code that had been evicted, for each of which a disk that reads 8 MiB ahead might
    /// have brought 2,048 pages; so what it read in order seemed to be read around single pages.
    #[test]
    fn a_few_faults_of_code_do_not_make_single_pages_of_a_loop() {
        let judged = |called_pages, own_read_pages, major_faults| {
            let (reach_pages, lifetime) = (98_000, Duration::from_millis(500));
            let reread_pages = 33_000;
            let programs = Programs {
                reach_pages,
                lifetime,
                own_read_pages,
                called_pages,
                reread_pages,
                ..Programs::default()
            };
            let mut judge = Judge::new(8_192);
            let mut at = |ms, counts, programs| {
                judge.look(Duration::from_millis(ms), counts, || 2_048, || programs)
            };
            assert_eq!(at(0, ZERO, None), Verdict::Wait);
            let counts = Pressure { refaults: 33_000, major_faults };
            assert_eq!(at(150, counts, None), Verdict::Wait);
            at(160, counts, Some(programs))
        };
        assert_eq!(judged(31_000, 33_000, 22), Verdict::NothingToWin);
        assert_eq!(judged(2_000, 33_000, 22), Verdict::Short(Sign::Refaults));
        // Of `cp` one call copies all, and counts when it is done.
        assert_eq!(judged(0, 70_000, 22), Verdict::NothingToWin);
    }

    /// Reads by calls cause no faults, and in no order they looked like a loop: 40,000 rows of SQLite's by
    /// `pread`, of 92 µs each, took 2.2 of the kernel's time managed.
    #[test]
    fn short_requests_are_of_reads_in_no_order() {
        let judged = |refaults: u64, request_pages: u64| {
            let read_requests = 1_000;
            let read_pages = request_pages * read_requests;
            let lifetime = Duration::from_millis(500);
            let programs = Programs { lifetime, read_pages, read_requests, ..Programs::default() };
            verdict_on(100, Pressure { refaults, major_faults: 0 }, lifetime, || Some(programs))
        };
        assert_eq!(judged(100, 0), Verdict::NothingToWin);
        assert_eq!(judged(1_000, 1), Verdict::NothingToWin);
        assert_eq!(judged(100, 2), Verdict::Wait);
        assert_eq!(judged(400, 7), Verdict::Short(Sign::Refaults));
        assert_eq!(judged(100, 8), Verdict::Short(Sign::Loop));
    }

    /// What is missed in no order is judged by that alone.
    #[test]
    fn single_pages_are_not_judged_by_what_they_take() {
        let counted = Pressure { refaults: 1 << 20, major_faults: 40_000 };
        let verdict = verdict_on(32_768, counted, Duration::from_secs(4), unasked);
        assert_eq!(verdict, Verdict::Short(Sign::Refaults));
    }

    /// Four scans of SQLite over a disk that delivers a page in 10 µs, all computing included, read 93 pages
    /// of its libraries again in their first pass, and those of the loop 200 ms later. By the time since
    /// the first of them each page took 30 µs, and they were managed, for 1.13 of the kernel's time.
    #[test]
    fn what_a_page_takes_is_told_from_the_loop_alone() {
        let mut judge = Judge::new(12_288);
        let look = |judge: &mut Judge, ms: u64, refaults, programs: Option<Programs>| {
            judge.look(Duration::from_millis(ms), Pressure { refaults, ..ZERO }, || 32, || programs)
        };
        assert_eq!(look(&mut judge, 150, 0, None), Verdict::Wait);
        for ms in (160..360).step_by(10) {
            assert_eq!(look(&mut judge, ms, 93, None), Verdict::Wait);
        }
        let programs = |ms| {
            let lifetime = Duration::from_millis(ms);
            let own = lifetime / 2;
            Some(Programs { reach_pages: 31_000, lifetime, own, ..Programs::default() })
        };
        let judged = (360..1_000).step_by(10).map(|ms| {
            let verdict = look(&mut judge, ms, 93 + (ms - 350) * 100, programs(ms));
            assert!(!matches!(verdict, Verdict::Short(_)), "after {ms} ms: {verdict:?}");
            verdict
        });
        let judged = judged.filter(|verdict| *verdict == Verdict::NothingToWin).count();
        assert!(judged >= 5, "each quarter of memory is judged: {judged}");
        // And if the disk becomes slower, within so much.
        let slower = (1_000..4_000).step_by(10);
        let ended = slower.map(|ms| look(&mut judge, ms, 65_000 + (ms - 1_000) * 20, None));
        let waited = ended.take_while(|verdict| *verdict == Verdict::Wait).count();
        assert!(
            waited < 16,
            "{waited} looks at pages that take 50 µs: that is a quarter of memory"
        );
    }

    #[test]
    fn what_is_kept_of_the_past_is_bounded() {
        let mut judge = Judge::new(1 << 20);
        for look in 0..100_000_u64 {
            let counts = Pressure { refaults: look / 7, major_faults: look };
            judge.look(Duration::from_millis(10 * look), counts, || 32, unasked);
            assert!(judge.steps.len() <= STEPS_OF_LOOP as usize + 2);
        }
    }
}
