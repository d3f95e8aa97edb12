//! Room in the cgroup: frames give way to what cannot be reclaimed, and to the code of programs.
//!
//! The kernel reclaims its own page cache, but not our frames: where these and what programs, page
//! tables and the manager take meet the limit of the cgroup, it ends a program; and before that, it has
//! no memory for what programs execute. While files are the kernel's that cannot happen, and what
//! `--memory` is for nobody can know beforehand. So once files are managed, frames for which there is no
//! room are set aside, and given back when there is.

use crate::engine::Engine;
use crate::manager::Manager;
use crate::port::{PAGE_BYTES, Port};
use crate::standby::Standby;
use crate::standby::ceded::{Ceded, Seen};
use crate::standby::watch::{EVERY, pause_while_free};
use pagekeeper_frames::MIN_FRAMES;
use pagekeeper_sys::Errno;
use pagekeeper_sys::cgroup::{Bounds, Counts};
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
/// Where nothing is free, frames grow from one look to the next by so large a part at most of what the
/// kernel has and could take back, but for so many bytes: slowly enough to see when that begins to lack what
/// programs need. Of what nobody reads again they may take more.
const GROWTH_PART: u64 = 8;
const GROWTH_PART_UNREAD: u64 = 2;
const GROWTH_BYTES_MIN: u64 = 1 << 20;
/// How often limits are read while there is none.
const UNBOUND_EVERY: Duration = Duration::from_millis(250);
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

/// What bounds this process's memory.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) bounds: Bounds,
    looked: Mutex<Looked>,
    /// The most that the kernel reads ahead; looked at once, when frames need room.
    window_kib: OnceLock<u32>,
    started: Instant,
}

/// What is kept from look to look.
#[derive(Debug, Default)]
struct Looked {
    ceded: Ceded,
    /// Frames set aside, but for those that are so until the next look only.
    aside: u32,
    /// Pages of files that the kernel had read again.
    refaults: u64,
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
    /// None if no cgroup could bound it, or its counts cannot be read.
    pub(crate) fn of_this_process() -> Option<Room> {
        Some(Room {
            bounds: Bounds::of_this_process()?,
            looked: Mutex::default(),
            window_kib: OnceLock::new(),
            started: Instant::now(),
        })
    }

    fn margin_bytes(&self, limit_bytes: u64) -> u64 {
        let window_kib =
            *self.window_kib.get_or_init(|| largest_read_ahead_kib().unwrap_or_default());
        margin_bytes(limit_bytes, u64::from(window_kib) << 10)
    }

    /// How much room there is for frames, into which so many pages were read.
    fn spare(&self, looked: &mut Looked, counts: Counts, frames: Frames, own_pages: u64) -> Spare {
        let pages = |bytes: u64| (bytes / PAGE_BYTES) as i64;
        let spare = counts.room_bytes().div_euclid(PAGE_BYTES as i64);
        let least = i64::from((frames.all / KEPT_PART).max(MIN_FRAMES));
        let most_ceded = spare + i64::from(frames.resident) - least;
        let most_ceded_bytes = u64::try_from(most_ceded).unwrap_or(0) * PAGE_BYTES;
        let frames_bytes = u64::from(frames.all) * PAGE_BYTES;
        let computed = || self.bounds.user_times_of_others(counts.usage.level).ok();
        let seen = Seen { at: self.started.elapsed(), counts, own_pages };
        let ceded_bytes = looked.ceded.look(seen, frames_bytes, most_ceded_bytes, computed);
        let margin_bytes = self.margin_bytes(counts.usage.limit_bytes);
        let refaults = counts.pressure.refaults;
        let is_unread = std::mem::replace(&mut looked.refaults, refaults) == refaults;
        let part = if is_unread { GROWTH_PART_UNREAD } else { GROWTH_PART };
        Spare {
            pages: spare - pages(margin_bytes.max(ceded_bytes)),
            unless_ceded: spare - pages(margin_bytes),
            now: spare - pages(counts.reclaimable_bytes())
                + pages((counts.reclaimable_bytes() / part).max(GROWTH_BYTES_MIN)),
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

/// What a look left.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Headroom {
    /// There is no limit now.
    Unbound,
    /// Frames may take a little more at each look.
    Growing,
    /// What programs and frames may take yet takes them some time.
    Bound { limit_bytes: u64, kept_bytes: u64, free_bytes: u64 },
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
    /// What frames have to fit in; none if nothing could bound them. Looked for once.
    pub(crate) fn room(&self) -> Option<&Room> {
        let of_standby = || self.standby.get().map(Standby::room);
        let find = || of_standby().or_else(|| Room::of_this_process().map(Arc::new));
        self.room.get_or_init(find).as_deref()
    }

    /// Looks once how much room frames have, and sets those aside for which there is none; an error if
    /// that cannot be seen any more.
    pub(crate) fn make_headroom(&self, room: &Room) -> Result<Headroom, Errno> {
        let (frames, own_pages) = self.engine.frames();
        let mut looked = room.looked.lock().expect("lock");
        let Some(counts) = room.bounds.tightest()? else {
            *looked = Looked::default();
            drop(looked);
            if frames.aside > 0 {
                self.engine.set_aside(0);
            }
            return Ok(Headroom::Unbound);
        };
        let spare = room.spare(&mut looked, counts, frames, own_pages);
        let wanted = aside(frames.all, frames.resident, spare.pages, looked.aside);
        looked.aside = wanted;
        let is_attempt = looked.ceded.is_attempt();
        drop(looked);
        let is_told = |aside| aside > frames.all / TOLD_PART;
        if is_told(wanted) {
            match is_told(aside(frames.all, frames.resident, spare.unless_ceded, 0)) {
                true => self.note(TOLD),
                false if is_attempt => {}
                false => self.note(TOLD_CEDED),
            }
        }
        let now = wanted.max(aside(frames.all, frames.resident, spare.now, 0));
        if now != frames.aside {
            self.engine.set_aside(now);
        }
        let unused = (frames.all - now).saturating_sub(frames.resident);
        // Frames wait for the next look to grow.
        if now > wanted && unused < (GROWTH_BYTES_MIN / PAGE_BYTES) as u32 {
            return Ok(Headroom::Growing);
        }
        let free_bytes = u64::try_from(spare.pages).unwrap_or(0) * PAGE_BYTES;
        let kept_bytes = counts.kept_bytes();
        Ok(Headroom::Bound { limit_bytes: counts.usage.limit_bytes, kept_bytes, free_bytes })
    }

    /// Sees to it until `stop`. Runs on a thread of its own.
    pub(crate) fn keep_headroom(&self, stop: impl Fn() -> bool) {
        let Some(room) = self.room() else { return };
        let (mut kept_in_memory, mut before) = (0, None);
        while !stop() {
            let Ok(headroom) = self.make_headroom(room) else { return };
            // Who makes room is not to wait for it: as far as that is permitted, and again when more of it
            // has been used.
            let (keeps, pause, kept_bytes) = match headroom {
                Headroom::Unbound => (0, UNBOUND_EVERY, None),
                Headroom::Growing => (2, EVERY, None),
                Headroom::Bound { limit_bytes, kept_bytes, free_bytes } => {
                    let near_bytes = room.margin_bytes(limit_bytes) / MARGIN_PARTS_QUIET;
                    let is_quiet = before.is_some_and(|b| kept_bytes.abs_diff(b) < near_bytes);
                    let least = if is_quiet { QUIET_EVERY } else { EVERY };
                    (1, pause_while_free(free_bytes).max(least), Some(kept_bytes))
                }
            };
            before = kept_bytes;
            if kept_in_memory < keeps {
                kept_in_memory += 1;
                let _ = keep_in_memory();
            }
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
