//! When a standby ends: the kernel's counts are looked at, and the programs, as seldom as can be.

use crate::manager::selection::Selection;
use crate::standby::reach::{reach_bytes, read_ahead_kib};
use crate::standby::verdict::{Judge, Programs, Sign, Verdict, WINDOW_PAGES};
use crate::standby::{Standby, seem_to_stand_by};
use pagekeeper_sys::cgroup::{Counts, Usage};
use pagekeeper_sys::counters::{DeviceIo, largest_read_ahead_kib};
use pagekeeper_sys::process::{CpuClock, CpuTimes, ReadBytes};
use pagekeeper_wire as wire;
use std::cell::LazyCell;
use std::time::{Duration, Instant};

/// How often the kernel's counts are looked at while it reads pages again that it had evicted.
pub(crate) const EVERY: Duration = Duration::from_millis(10);
/// And at least while it does not: each look makes it add up what all processors counted.
const QUIET_EVERY_MAX: Duration = Duration::from_millis(40);
/// And while so much memory is free that it cannot be full before the next look, so that a program that
/// never fills it is hardly looked at.
const FREE_EVERY_MAX: Duration = Duration::from_millis(100);
/// Memory is filled no faster than storage of today, or a copy by one processor.
const FILL_BYTES_PER_MS_MAX: u64 = 4 << 20;
/// A cgroup is full from this part of its limit below that on: the kernel charges in batches.
const FULL_PART: u64 = 16;
/// Programs are looked at for this part of a processor's time at most.
const LOOKS_PART: u32 = 64;
/// Where programs have so many eighths of the kernel's cache mapped, it reads in order, and not around single
/// pages: around each fault it maps sixteen, half of a window that is not set to more.
const MAPPED_EIGHTHS: u64 = 5;

impl Standby {
    /// Ends it when memory gets short: looks at the kernel's counts until then, or until `stop`.
    pub(crate) fn watch(
        &self,
        frames: u32,
        selection: &Selection,
        stop: impl Fn() -> bool,
        end: impl FnOnce(Sign),
    ) {
        let bounds = &self.room.bounds;
        // A look at every program, and perhaps every mount, which a run that reads nothing again has no use
        // for.
        let largest_window_pages = LazyCell::new(|| {
            let programs = seem_to_stand_by(self.board_inode());
            // Of mounts that they use nothing of, one may read far more ahead (a loop device, NFS): no loop
            // would be known as one.
            let own = read_ahead_kib(programs, selection).or_else(largest_read_ahead_kib);
            let window_bytes = u64::from(own.unwrap_or(0)) << 10;
            (window_bytes / wire::PAGE_BYTES).max(WINDOW_PAGES)
        });
        let mut looks = Looks { not_before: self.started };
        let mut seen = Seen { disks: DeviceIo::of_all().unwrap_or_default(), ..Seen::default() };
        let mut judge = Judge::new(frames);
        let (mut level, mut refaults) = (None, None);
        let mut pause = EVERY.saturating_sub(self.started.elapsed());
        while self.holds() && !stop() {
            std::thread::park_timeout(pause);
            // What was evicted before this program began, such as libraries, is no sign.
            if refaults.is_none()
                && let Ok(usage) = bounds.fullest()
                && let Some(left_bytes) = bytes_until_full(usage)
            {
                pause = pause_while_free(left_bytes);
                continue;
            }
            let Ok(counts) = bounds.tightest() else {
                return end(Sign::Unreadable);
            };
            let Some(Counts { usage, cache_bytes, mapped_bytes, pressure: now, .. }) = counts
            else {
                // Nothing bounds it any more.
                (judge, refaults) = (Judge::new(frames), None);
                continue;
            };
            if level.replace(usage.level).is_some_and(|before| before != usage.level) {
                judge = Judge::new(frames);
            }
            let is_quiet = refaults.replace(now.refaults) == Some(now.refaults);
            pause = if is_quiet { pause_while_quiet(pause) } else { EVERY };
            seen.refaults.get_or_insert(now.refaults);
            let programs = || {
                looks.pay(|| self.look_at_programs(selection, now.refaults, &mut seen)).flatten()
            };
            // What is read around single pages and never touched is not mapped either.
            let is_touched = mapped_bytes * 8 >= cache_bytes * MAPPED_EIGHTHS;
            let window_pages = || if is_touched { WINDOW_PAGES } else { *largest_window_pages };
            let at = self.started.elapsed();
            if let Verdict::Short(sign) = judge.look(at, now, window_pages, programs) {
                return end(sign);
            }
        }
    }

    /// So many pages of files were read again by now; `seen` is what there was when it was looked last. None: there is
    /// no program.
    fn look_at_programs(
        &self,
        selection: &Selection,
        refaults: u64,
        seen: &mut Seen,
    ) -> Option<Programs> {
        let pids: Vec<u32> = seem_to_stand_by(self.board_inode()).collect();
        if pids.is_empty() {
            return None;
        }
        let (mut own, mut busy) = (Duration::ZERO, Duration::ZERO);
        for times in pids.iter().filter_map(|pid| CpuTimes::of(*pid).ok()) {
            // A shell's commands that have ended are among its children.
            let user = times.user + times.children_user;
            own += user;
            busy += user + times.system + times.children_system;
        }
        let mut now = Seen {
            disks: DeviceIo::of_all().unwrap_or_default(),
            refaults: Some(refaults),
            ..Seen::default()
        };
        for read in pids.iter().filter_map(|pid| ReadBytes::of(*pid).ok()) {
            now.read.by_calls += read.by_calls;
            now.read.from_storage += read.from_storage;
        }
        let before = std::mem::replace(seen, now);
        let pages = |now: u64, before: u64| now.saturating_sub(before) / wire::PAGE_BYTES;
        Some(Programs {
            reach_pages: reach_bytes(pids.into_iter(), selection) / wire::PAGE_BYTES,
            lifetime: self.started.elapsed(),
            own,
            busy,
            read_pages: pages(now.disks.read_bytes, before.disks.read_bytes),
            read_requests: now.disks.reads.saturating_sub(before.disks.reads),
            own_read_pages: pages(now.read.from_storage, before.read.from_storage),
            called_pages: pages(now.read.by_calls, before.read.by_calls),
            reread_pages: refaults.saturating_sub(before.refaults.unwrap_or(refaults)),
        })
    }
}

/// What had been read when programs were looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// By disks.
    disks: DeviceIo,
    /// By programs.
    read: ReadBytes,
    /// Pages that had been evicted before; none: nothing was looked at.
    refaults: Option<u64>,
}

/// Looks at programs, which take longer the more processes the machine has: each is paid for by the time
/// until the next.
#[derive(Debug)]
struct Looks {
    not_before: Instant,
}

impl Looks {
    fn pay<T>(&mut self, look: impl FnOnce() -> T) -> Option<T> {
        (Instant::now() >= self.not_before).then(|| {
            let clock = CpuClock::of_thread();
            let used_ns = || clock.used_ns().unwrap_or(0);
            let before_ns = used_ns();
            let seen = look();
            let cost = Duration::from_nanos(used_ns().saturating_sub(before_ns));
            self.not_before = Instant::now() + LOOKS_PART * cost;
            seen
        })
    }
}

/// What there is until a cgroup is full; none if it is.
fn bytes_until_full(fullest: Option<Usage>) -> Option<u64> {
    let Some(usage) = fullest else { return Some(u64::MAX) };
    let left_bytes = usage.free_bytes().saturating_sub(usage.limit_bytes / FULL_PART);
    (left_bytes > 0).then_some(left_bytes)
}

/// How long not to look, with so much memory free.
pub(crate) fn pause_while_free(free_bytes: u64) -> Duration {
    Duration::from_millis(free_bytes / FILL_BYTES_PER_MS_MAX).clamp(EVERY, FREE_EVERY_MAX)
}

/// How long not to look after a look so long after the one before it, between which nothing was read
/// again.
fn pause_while_quiet(pause: Duration) -> Duration {
    (2 * pause).clamp(EVERY, QUIET_EVERY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_paid_for_before_the_next() {
        let mut looks = Looks { not_before: Instant::now() };
        let took_ns = 20_000_000;
        let begun = Instant::now();
        let clock = CpuClock::of_thread();
        let before_ns = clock.used_ns().unwrap();
        assert_eq!(looks.pay(|| while clock.used_ns().unwrap() < before_ns + took_ns {}), Some(()));
        assert!(looks.not_before - begun >= LOOKS_PART * Duration::from_nanos(took_ns));
        assert_eq!(looks.pay(|| panic!("a second look")), None::<()>);
        looks.not_before = Instant::now();
        assert_eq!(looks.pay(|| 1), Some(1));
    }

    #[test]
    fn looks_come_seldom_while_nothing_is_read_again() {
        let pauses = std::iter::successors(Some(EVERY), |pause| Some(pause_while_quiet(*pause)));
        let pauses: Vec<_> = pauses.take(5).map(|pause| pause.as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 40, 40]);
        // A look while much memory was free was long ago.
        assert_eq!(pause_while_quiet(FREE_EVERY_MAX), QUIET_EVERY_MAX);
    }
}
