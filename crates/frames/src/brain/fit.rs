//! How many frames the policy has: those of the pool, less what pages take that no policy holds.
//!
//! Newcomers, pages fetched ahead and stuck ones are beside the policy, a tenth of a small pool and more
//! where several programs are read ahead for. A policy that was told of the whole pool never has as many
//! pages as it believes: one that sets a small part of its frames aside for what passes through, such as
//! LIRS, takes itself for not yet full for ever, and keeps whatever comes. So a policy has as many frames
//! as it held pages when it was asked for one of them ([`Policy::fitted`]).
//!
//! [`Policy::fitted`]: pagekeeper_policy::Policy::fitted

use super::Brain;

/// It is told of fewer frames as soon as it lacks this part of the pool more than it was told.
const FEWER_SHARE: u32 = 128;
/// It is told of more after a period in which it lacked this part less.
const MORE_SHARE: u32 = 64;
/// A period is as many victims as this part of the pool has frames.
const PERIOD_SHARE: u32 = 2;
/// It is never told of less than this part: where nothing can leave, what it holds is no measure.
const LEAST_SHARE: u32 = 2;

/// What the policy was told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fit {
    /// Frames of the pool that it does not have.
    taken: u32,
    /// The most that it lacked since it was asked so often.
    lacked: u32,
    asked: u32,
}

impl Fit {
    /// The policy of a full pool with so many frames is about to be asked for a page, and holds so many.
    /// Whether it has another number of frames from now on.
    fn asked(&mut self, frames: u32, held: u32) -> bool {
        self.asked += 1;
        let lacks = frames.saturating_sub(held).min(frames / LEAST_SHARE);
        self.lacked = self.lacked.max(lacks);
        let is_time = self.asked >= frames / PERIOD_SHARE;
        let has_fewer = self.lacked > self.taken + frames / FEWER_SHARE;
        let has_more = is_time && self.lacked + frames / MORE_SHARE < self.taken;
        if has_fewer || has_more {
            self.taken = self.lacked;
        }
        if has_fewer || is_time {
            (self.lacked, self.asked) = (0, 0);
        }
        has_fewer || has_more
    }

    /// What it has of so many frames.
    fn left_of(self, frames: u32) -> u32 {
        frames - self.taken.min(frames / LEAST_SHARE)
    }
}

impl Brain {
    /// The policy decides for the pool from now on, or for another number of frames.
    pub(super) fn tell_frames(&mut self) {
        let frames = self.limit();
        self.policy.fitted(self.fit.left_of(frames), frames);
    }

    /// The policy is about to be asked for a page.
    pub(super) fn fit_policy(&mut self) {
        if self.fit.asked(self.limit(), self.policy.resident()) {
            self.resize_policy();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_the_policy_cannot_fill_are_not_its_own() {
        let mut fit = Fit::default();
        let mut told = |held: u32, times: u32| -> Vec<u32> {
            (0..times).filter_map(|_| fit.asked(1024, held).then_some(fit.taken)).collect()
        };
        // A hundredth is not worth a word.
        assert_eq!(told(1016, 5_000), [0; 0]);
        // More is, at once and once.
        assert_eq!(told(1000, 5_000), [24]);
        assert_eq!(told(900, 1), [124]);
        // What was lacking for a moment is the policy's again when it was not for a while.
        assert_eq!(told(1000, 511), [0; 0]);
        assert_eq!(told(1000, 1_000), [24]);
        // Never all of them, and never more than there are.
        assert_eq!(told(3, 1), [512]);
        assert_eq!(told(2_000, 1_100), [0]);
    }
}
