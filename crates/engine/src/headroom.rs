//! Room in the cgroup: frames give way to what cannot be reclaimed, and to the code of programs.
//!
//! The kernel reclaims its own page cache, but not our frames: where these and what programs, page
//! tables and the manager take meet the limit of the cgroup, it ends a program; and before that, it has
//! no memory for what programs execute. While files are the kernel's that cannot happen, and what
//! `--memory` is for nobody can know beforehand. So once files are managed, frames for which there is no
//! room are set aside, and given back when there is.

use crate::ceded::{Ceded, Seen};
use crate::engine::Engine;
use crate::manager::Manager;
use crate::port::{PAGE_BYTES, Port};
use crate::standby::{EVERY, Standby, pause_while_free};
use pagekeeper_frames::MIN_FRAMES;
use pagekeeper_sys::cgroup::{Bound, Counts};
use pagekeeper_sys::code::keep_in_memory;
use pagekeeper_sys::counters::largest_read_ahead_kib;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Room that is left for what comes between two looks: one part in so many of the limit, but no less
/// than the one and no more than the other.
const MARGIN_PART: u64 = 32;
const MARGIN_BYTES_MIN: u64 = 1 << 20;
const MARGIN_BYTES_MAX: u64 = 16 << 20;
/// Or what the kernel reads around a page at once, in which all that programs execute would go for each
/// page of it, but for no larger a part of the limit than this.
const WINDOW_PART: u64 = 8;
/// How long at least from one look to the next while it is quiet: each makes the kernel add up what all
/// processors counted.
const QUIET_EVERY: Duration = Duration::from_millis(20);
/// It is quiet while what is in use differs by no more than such a part of it from look to look.
const MARGIN_PARTS_QUIET: u64 = 8;
/// Frames are given back when they are so large a part of all.
const BACK_PART: u32 = 32;
/// So large a part of the frames stays, however much the kernel's cache could use.
const KEPT_PART: u32 = 8;
/// Where nothing is free, frames grow from one look to the next by so large a part of the kernel's cache at
/// most, but for so many bytes: slowly enough to see when that begins to lack what programs need.
const GROWTH_PART: u64 = 8;
const GROWTH_BYTES_MIN: u64 = 1 << 20;
/// The user is told of so large a part of all frames that there was no room for.
const TOLD_PART: u32 = 8;

const TOLD: &str = "the memory cgroup has no room for all of --memory beside what programs, their page \
                    tables and the manager take: a part of it was left unused";
const TOLD_CEDED: &str = "the memory cgroup has no room for all of --memory beside the programs' own code and \
                          files that are the kernel's, which were read again and again: a part of it was \
                          left to them";

/// Bytes that are to stay free in a cgroup with such a limit, where the kernel reads so much ahead.
fn margin_bytes(limit_bytes: u64, window_bytes: u64) -> u64 {
    let margin = (limit_bytes / MARGIN_PART).clamp(MARGIN_BYTES_MIN, MARGIN_BYTES_MAX);
    margin.max(window_bytes.min(limit_bytes / WINDOW_PART))
}

/// Frames to set aside of so many, when so many pages are in memory and there is room for `spare_pages`
/// more (less than none: so many are too many); `before` are set aside already.
fn aside(frames: u32, resident_pages: u32, spare_pages: i64, before: u32) -> u32 {
    let room = (i64::from(resident_pages) + spare_pages).max(0);
    let most = u32::try_from(room).unwrap_or(u32::MAX).max(MIN_FRAMES).min(frames);
    let wanted = frames - most;
    let is_worth_it = wanted == 0 || before.saturating_sub(wanted) > frames / BACK_PART;
    if wanted > before || is_worth_it { wanted } else { before }
}

/// The cgroup that bounds this process's memory.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) limit_bytes: u64,
    pub(crate) counts: Counts,
    ceded: Mutex<Ceded>,
    /// Frames set aside, but for those that are so until the next look only.
    aside: Mutex<u32>,
    /// The most that the kernel reads ahead; looked at once, when frames need room.
    window_kib: OnceLock<u32>,
    started: Instant,
}

/// What a look shows of it.
struct Look {
    /// In use, and cannot be taken back by the kernel.
    kept_bytes: u64,
    seen: Seen,
}

/// Frames, in pages.
#[derive(Clone, Copy)]
struct Frames {
    /// All that the budget allows.
    all: u32,
    resident: u32,
    aside: u32,
}

impl Room {
    /// None if no cgroup bounds it, or its counts cannot be read.
    pub(crate) fn of_this_process() -> Option<Room> {
        let bound = Bound::of_this_process()?;
        let counts = bound.counts().ok().filter(|counts| counts.page_cache().is_ok())?;
        Some(Room {
            limit_bytes: bound.limit_bytes,
            counts,
            ceded: Mutex::default(),
            aside: Mutex::default(),
            window_kib: OnceLock::new(),
            started: Instant::now(),
        })
    }

    fn margin_bytes(&self) -> u64 {
        let window_kib =
            *self.window_kib.get_or_init(|| largest_read_ahead_kib().unwrap_or_default());
        margin_bytes(self.limit_bytes, u64::from(window_kib) << 10)
    }

    fn look(&self, own_pages: u64) -> Option<Look> {
        let used_bytes = self.counts.usage_bytes().ok()?;
        let (cache_bytes, pressure) = self.counts.page_cache().ok()?;
        let seen = Seen { at: self.started.elapsed(), cache_bytes, pressure, own_pages };
        Some(Look { kept_bytes: used_bytes.saturating_sub(cache_bytes), seen })
    }

    /// How much room there is for frames.
    fn spare(&self, look: &Look, frames: Frames) -> Spare {
        let pages = |bytes: u64| (bytes / PAGE_BYTES) as i64;
        let cache_bytes = look.seen.cache_bytes;
        let spare = pages(self.limit_bytes) - pages(look.kept_bytes);
        let least = i64::from((frames.all / KEPT_PART).max(MIN_FRAMES));
        let most_ceded = spare + i64::from(frames.resident) - least;
        let most_ceded_bytes = u64::try_from(most_ceded).unwrap_or(0) * PAGE_BYTES;
        let frames_bytes = u64::from(frames.all) * PAGE_BYTES;
        let mut ceded = self.ceded.lock().expect("lock");
        let ceded_bytes = ceded.look(look.seen, frames_bytes, most_ceded_bytes);
        let margin_bytes = self.margin_bytes();
        Spare {
            pages: spare - pages(margin_bytes.max(ceded_bytes)),
            unless_ceded: spare - pages(margin_bytes),
            now: spare - pages(cache_bytes)
                + pages((cache_bytes / GROWTH_PART).max(GROWTH_BYTES_MIN)),
        }
    }
}

/// Pages beyond those that are in memory for which there is room; less than none: so many are too many.
struct Spare {
    pages: i64,
    /// If the kernel's cache were left no more than the margin.
    unless_ceded: i64,
    /// Until the next look.
    now: i64,
}

impl<P: Port> Engine<P> {
    /// What there is of frames, and how many pages were read into them since the run began.
    fn frames(&self) -> (Frames, u64) {
        let core = self.lock();
        let aside = core.aside_pages;
        let all = core.brain.frames().saturating_add(aside);
        let counts = core.brain.counts();
        let own_pages = counts.major_faults + counts.prefetched_pages;
        (Frames { all, resident: core.brain.resident_pages(), aside }, own_pages)
    }
}

impl Manager {
    /// The cgroup that frames have to fit in; none if nothing bounds it. Looked for once.
    pub(crate) fn room(&self) -> Option<&Room> {
        let of_standby = || self.standby.get().map(Standby::room);
        let find = || of_standby().or_else(|| Room::of_this_process().map(Arc::new));
        self.room.get_or_init(find).as_deref()
    }

    /// Looks once how much room frames have. How long others need at least to take what is left over,
    /// and what cannot be taken back now, in bytes, or none while frames may grow; none of both if that
    /// cannot be seen any more.
    pub(crate) fn make_headroom(&self, room: &Room) -> Option<(Duration, Option<u64>)> {
        let (frames, own_pages) = self.engine.frames();
        let look = room.look(own_pages)?;
        let spare = room.spare(&look, frames);
        let mut kept = room.aside.lock().expect("lock");
        let wanted = aside(frames.all, frames.resident, spare.pages, *kept);
        *kept = wanted;
        drop(kept);
        if wanted > frames.all / TOLD_PART {
            let by_kept = aside(frames.all, frames.resident, spare.unless_ceded, 0);
            self.note(if by_kept > frames.all / TOLD_PART { TOLD } else { TOLD_CEDED });
        }
        let now = wanted.max(aside(frames.all, frames.resident, spare.now, 0));
        if now != frames.aside {
            self.engine.set_aside(now);
        }
        if now > wanted {
            return Some((EVERY, None));
        }
        let unused = (frames.all - wanted).saturating_sub(frames.resident);
        let left_over = u64::try_from(spare.pages - i64::from(unused)).unwrap_or(0) * PAGE_BYTES;
        Some((pause_while_free(left_over), Some(look.kept_bytes)))
    }

    /// Sees to it until `stop`. Runs on a thread of its own.
    pub(crate) fn keep_headroom(&self, stop: impl Fn() -> bool) {
        let Some(room) = self.room() else { return };
        // Who makes room is not to wait for it: as far as that is permitted, and again when more of it
        // has been used.
        let _ = keep_in_memory();
        let mut before = None;
        let mut is_kept = false;
        while !stop() {
            let Some((least, kept_bytes)) = self.make_headroom(room) else { return };
            if kept_bytes.is_none() && !core::mem::replace(&mut is_kept, true) {
                let _ = keep_in_memory();
            }
            let is_near = |(now, before): (u64, u64)| {
                now.abs_diff(before) < room.margin_bytes() / MARGIN_PARTS_QUIET
            };
            let is_quiet = kept_bytes.zip(before).is_some_and(is_near);
            let pause = if is_quiet { QUIET_EVERY } else { EVERY }.max(least);
            before = kept_bytes;
            std::thread::park_timeout(pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_without_room_are_set_aside_and_come_back() {
        // Room for all, whether they are used or not.
        assert_eq!(aside(1000, 0, 1000, 0), 0);
        assert_eq!(aside(1000, 600, 400, 0), 0);
        // For fewer: what is in memory counts, since it has its room.
        assert_eq!(aside(1000, 600, 300, 0), 100);
        assert_eq!(aside(1000, 0, 900, 0), 100);
        // Too many are in memory.
        assert_eq!(aside(1000, 900, -100, 100), 200);
        assert_eq!(aside(1000, 900, -5000, 100), 1000 - MIN_FRAMES);
        assert_eq!(aside(MIN_FRAMES, 0, -5000, 0), 0);
        // A little more room is not worth a change, more is, and so are the last.
        assert_eq!(aside(1000, 800, 10, 200), 200);
        assert_eq!(aside(1000, 800, 50, 200), 150);
        assert_eq!(aside(1000, 990, 10, 20), 0);
    }

    #[test]
    fn the_margin_is_a_part_of_the_limit_within_bounds() {
        const MIB: u64 = 1 << 20;
        let margin =
            |limit_mib: u64, window_kib: u64| margin_bytes(limit_mib * MIB, window_kib << 10);
        assert_eq!(margin(8, 128), MIB);
        assert_eq!(margin(64, 128), 2 * MIB);
        assert_eq!(margin(64 << 10, 128), 16 * MIB);
        // As much as is read ahead, if that is not too much.
        assert_eq!([margin(128, 8192), margin(32, 8192)], [8 * MIB, 4 * MIB]);
    }
}
