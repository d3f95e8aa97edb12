//! Room in the cgroup: frames give way to what cannot be reclaimed.
//!
//! The kernel reclaims its own page cache, but not our frames: where these and what programs, page
//! tables and the manager take meet the limit of the cgroup, it ends a program. While files are the
//! kernel's that cannot happen, and what `--memory` is for nobody can know beforehand. So once a
//! standby has ended, frames for which there is no room are set aside, and given back when there is.

use crate::engine::Engine;
use crate::manager::Manager;
use crate::port::{PAGE_BYTES, Port};
use crate::standby::{Standby, pause_while_free};
use pagekeeper_frames::MIN_FRAMES;
use std::time::Duration;

/// Room that is left for what comes between two looks: one part in so many of the limit, but no less
/// than the one and no more than the other.
const MARGIN_PART: u64 = 32;
const MARGIN_BYTES_MIN: u64 = 1 << 20;
const MARGIN_BYTES_MAX: u64 = 16 << 20;
/// Frames are given back when they are so large a part of all.
const BACK_PART: u32 = 32;
/// The user is told of so large a part of all frames that there was no room for.
const TOLD_PART: u32 = 8;

const TOLD: &str = "the memory cgroup has no room for all of --memory beside what programs, their page \
                    tables and the manager take: a part of it was left unused";

/// Bytes that are to stay free in a cgroup with such a limit.
fn margin_bytes(limit_bytes: u64) -> u64 {
    (limit_bytes / MARGIN_PART).clamp(MARGIN_BYTES_MIN, MARGIN_BYTES_MAX)
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

impl<P: Port> Engine<P> {
    /// Lets so many pages more than now be in memory at most, as far as the budget does. How many
    /// frames there are, and how many of them are set aside.
    fn fit(&self, spare_pages: i64) -> (u32, u32) {
        let core = self.lock();
        let before = core.aside_pages;
        let frames = core.brain.frames().saturating_add(before);
        let wanted = aside(frames, core.brain.resident_pages(), spare_pages, before);
        drop(core);
        if wanted != before {
            self.set_aside(wanted);
        }
        (frames, wanted)
    }
}

impl Manager {
    /// Looks once how much room frames have. How long others need at least to take what is left over;
    /// none if that cannot be seen any more.
    pub(crate) fn make_headroom(&self, standby: &Standby) -> Option<Duration> {
        let (limit_bytes, kept_bytes) = standby.limit_and_kept_bytes()?;
        let wanted_bytes = kept_bytes + margin_bytes(limit_bytes);
        let spare_bytes = limit_bytes.cast_signed() - wanted_bytes.cast_signed();
        let (frames, aside) = self.engine.fit(spare_bytes / PAGE_BYTES as i64);
        if aside > frames / TOLD_PART {
            self.note(TOLD);
        }
        let frames_bytes = u64::from(frames - aside) * PAGE_BYTES;
        let left_over = u64::try_from(spare_bytes).unwrap_or(0).saturating_sub(frames_bytes);
        Some(pause_while_free(left_over))
    }

    /// Sees to it until `stop`. Runs on a thread of its own.
    pub(crate) fn keep_headroom(&self, standby: &Standby, stop: impl Fn() -> bool) {
        while !stop() {
            let Some(pause) = self.make_headroom(standby) else { return };
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
        assert_eq!(margin_bytes(8 << 20), 1 << 20);
        assert_eq!(margin_bytes(64 << 20), 2 << 20);
        assert_eq!(margin_bytes(64 << 30), 16 << 20);
    }
}
