//! Whether a standby ends: what the kernel's counts say of what could be won, and what the programs do
//! with their time. Pure; [`crate::standby`] looks.

use pagekeeper_sys::cgroup::Pressure;
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
/// And only of one that waits for storage: from so much time for each page on, all that the programs do
/// with it included.
const PAGE_OF_LOOP_NS: u128 = 16_000;
/// Where it takes less, what the programs wait for the kernel has to be more than what they would wait for
/// us. A page takes us so much more of the processors' time (copied into a frame, mapped, taken out),
/// but only those have to be fetched that do not fit.
const OURS_MORE_NS: u128 = 6_000;
/// And so much of it may be left at most, in tenths: to begin has to be paid for, too.
const LEFT_TENTHS_MAX: u128 = 9;
/// Loops are told from single pages, around which the kernel reads a window for each fault, by so many
/// windows for each fault: in order it reads ahead before there is one.
const WINDOWS_PER_FAULT_OF_LOOP: u64 = 2;

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

impl Verdict {
    /// What the counts since some time say. The `programs` are looked at if that decides; none: it is too
    /// soon to look at them again.
    pub(crate) fn on(
        since: Pressure,
        now: Pressure,
        frames: u32,
        window_pages: u64,
        elapsed: Duration,
        programs: impl FnOnce() -> Option<Programs>,
    ) -> Verdict {
        let refaults = now.refaults.saturating_sub(since.refaults);
        let major_faults = now.major_faults.saturating_sub(since.major_faults);
        let is_loop = refaults > WINDOWS_PER_FAULT_OF_LOOP * window_pages * major_faults;
        let enough = match is_loop && elapsed >= LOOP_LASTS_MIN {
            true => u64::from(frames) / FRAMES_PER_REFAULT_OF_LOOP,
            false => REFAULTS_PER_FRAME * u64::from(frames),
        };
        if refaults < enough.clamp(REFAULTS_MIN, REFAULTS_MAX) {
            return Verdict::Wait;
        }
        if refaults < REFAULTS_PER_FAULT * major_faults {
            return Verdict::NothingToWin;
        }
        if !is_loop {
            return Verdict::Short(Sign::Refaults);
        }
        let page_ns = elapsed.as_nanos() / u128::from(refaults);
        if page_ns >= PAGE_OF_LOOP_NS {
            return Verdict::Short(Sign::Loop);
        }
        match programs() {
            None => Verdict::Wait,
            Some(programs) if programs.would_wait_less(page_ns, frames) => {
                Verdict::Short(Sign::Loop)
            }
            Some(_) => Verdict::NothingToWin,
        }
    }
}

/// What the programs have in hand, and how they spend their time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Programs {
    /// Pages of what they have mapped or open.
    pub(crate) reach_pages: u64,
    /// How long there have been any.
    pub(crate) lifetime: Duration,
    /// How long, of that, they had a processor.
    pub(crate) busy: Duration,
}

impl Programs {
    /// Whether they would wait less for us than for the kernel, which needs so long for a page of their
    /// loop.
    fn would_wait_less(self, page_ns: u128, frames: u32) -> bool {
        // It must have more than fits, or it goes through what it opens and closes on its way.
        let missed = self.reach_pages.saturating_sub(frames.into());
        if missed == 0 || self.lifetime.is_zero() {
            return false;
        }
        let waited = self.lifetime.saturating_sub(self.busy);
        let waited_ns = page_ns * waited.as_nanos() / self.lifetime.as_nanos();
        let ours_ns = (waited_ns + OURS_MORE_NS) * u128::from(missed);
        ours_ns * 10 <= waited_ns * u128::from(self.reach_pages) * LEFT_TENTHS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(refaults: u64, major_faults: u64) -> Verdict {
        let since = Pressure { refaults: 1000, major_faults: 50 };
        let now = Pressure {
            refaults: since.refaults + refaults,
            major_faults: since.major_faults + major_faults,
        };
        Verdict::on(since, now, 100, 32, LOOP_LASTS_MIN, unasked)
    }

    fn unasked() -> Option<Programs> {
        panic!("what programs do decides nothing here")
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
        let [since, now] = [0, 399].map(|refaults| Pressure { refaults, major_faults: 0 });
        let soon = LOOP_LASTS_MIN - Duration::from_millis(1);
        assert_eq!(Verdict::on(since, now, 100, 32, soon, unasked), Verdict::Wait);
        let lasting = Verdict::on(since, now, 100, 32, LOOP_LASTS_MIN, unasked);
        assert_eq!(lasting, Verdict::Short(Sign::Loop));
        let now = Pressure { refaults: 400, ..now };
        assert_eq!(Verdict::on(since, now, 100, 32, soon, unasked), Verdict::Short(Sign::Loop));
    }

    /// A loop of 60,000 pages, each of which takes so long, by programs that have a processor for so much
    /// of the time.
    fn loop_of(page_us: u64, reach_pages: u64, busy_percent: u32) -> Verdict {
        let since = Pressure { refaults: 0, major_faults: 0 };
        let now = Pressure { refaults: 60_000, major_faults: 400 };
        let lifetime = Duration::from_micros(60_000 * page_us);
        let busy = lifetime * busy_percent / 100;
        let programs = || Some(Programs { reach_pages, lifetime, busy });
        Verdict::on(since, now, 32_000, 32, lifetime, programs)
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
        assert_eq!(loop_of(12, twice, 20), Verdict::Short(Sign::Loop));
        // Storage is slow.
        assert_eq!(loop_of(16, twice, 180), Verdict::Short(Sign::Loop));
    }

    /// Ten passes over a quarter more than fits took the kernel 3.9 µs a page, and us four tenths of that
    /// time.
    #[test]
    fn a_loop_most_of_which_fits_is_worth_while_on_any_disk() {
        assert_eq!(loop_of(4, 40_000, 40), Verdict::Short(Sign::Loop));
        assert_eq!(loop_of(4, 40_000, 90), Verdict::NothingToWin);
        assert_eq!(loop_of(4, 64_000, 40), Verdict::NothingToWin);
        // What it goes through is nothing that it has in hand.
        assert_eq!(loop_of(12, 0, 20), Verdict::NothingToWin);
        assert_eq!(loop_of(12, 32_000, 20), Verdict::NothingToWin);
    }

    #[test]
    fn a_loop_is_judged_when_programs_can_be_looked_at_again() {
        let since = Pressure { refaults: 0, major_faults: 0 };
        let now = Pressure { refaults: 60_000, major_faults: 400 };
        let of = |page_us: u64| Duration::from_micros(60_000 * page_us);
        assert_eq!(Verdict::on(since, now, 32_000, 32, of(12), || None), Verdict::Wait);
        let slow = Verdict::on(since, now, 32_000, 32, of(16), || None);
        assert_eq!(slow, Verdict::Short(Sign::Loop));
    }

    /// What is missed in no order is judged by that alone.
    #[test]
    fn single_pages_are_not_judged_by_what_they_take() {
        let since = Pressure { refaults: 0, major_faults: 0 };
        let now = Pressure { refaults: 1 << 20, major_faults: 40_000 };
        let verdict = Verdict::on(since, now, 32_768, 32, Duration::from_secs(4), unasked);
        assert_eq!(verdict, Verdict::Short(Sign::Refaults));
    }
}
