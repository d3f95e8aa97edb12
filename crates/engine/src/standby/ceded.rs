//! How much of a cgroup's memory is left to the kernel's page cache: programs' own code, libraries, and
//! files that are not managed. Pure; [`crate::standby::headroom`] looks.
//!
//! The kernel takes its own cache back before anything else. So where frames fill what the cgroup has, the
//! code of the programs is what goes, is read again for nearly each step that they take, and goes again:
//! a program that takes 2 s alone has not ended after 120. The kernel's counts show it: mappings that
//! wait for storage, and pages that are read again, more than we read. Then the cache is left more, and
//! more each time, until it shows no longer; and tried for less when it has not for a while.
//!
//! The counts look the same where a program goes through a file that is not managed and fits in no case.
//! What it would be left would be taken from others for nothing. So the first steps are an attempt: what
//! they took stays left only if programs wait for their mappings far less than before, or compute more.

use crate::port::PAGE_BYTES;
use pagekeeper_sys::cgroup::Counts;
use std::time::Duration;

/// How long to look at least before it is judged.
const TURN_MIN: Duration = Duration::from_millis(100);
/// How long it may take to read all of the cache again. What it needs is read again once, when it is
/// left more, and no more than that.
const TURN_MAX: Duration = Duration::from_secs(1);
/// So many waits a second are none.
const WAITS_PER_SECOND_MAX: u64 = 20;
/// So many pages are read again for each that we read from where on the kernel's cache needs memory more
/// than we do. What we read by the kernel's cache it may count as well.
const AGAIN_PER_OWN: u64 = 2;
/// It is left more in steps of so large a part of all frames, each twice the one before it, and less in the
/// same steps.
const STEP_PART: u64 = 32;
const DOUBLINGS_MAX: u32 = 3;
const DOUBLINGS_BACK_MAX: u32 = 5;
/// What it was left is tried for less after so long; twice as long each time that this was too soon, until
/// nothing is left to it.
const PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_MAX: Duration = Duration::from_secs(32);
/// It helps if programs wait so many times less often than before, where that would be so often at least;
const WAITS_LESS_TIMES: u128 = 4;
const WAITS_TOLD_MIN: u64 = 8;
/// or if they compute by one part in so many more of the time, where that is enough to tell by the kernel's
/// ticks.
const FURTHER_PART: u128 = 16;
const COMPUTED_TOLD_MIN: Duration = Duration::from_millis(50);
/// Programs are set back if they compute by so many times less.
const SET_BACK_TIMES: u128 = 2;
/// When that did not help, it is attempted again after so long; twice as long each time.
const AGAIN_AFTER: Duration = Duration::from_secs(8);
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(32);

/// What a look shows; counts are of all since the run began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Duration,
    pub(crate) counts: Counts,
    /// Pages that were read into frames.
    pub(crate) own_pages: u64,
}

/// What each process had computed, in the order of their numbers.
pub(crate) type Computed = Vec<(u32, Duration)>;

/// How far programs were by when.
#[derive(Debug)]
struct Progress {
    at: Duration,
    /// How often mappings had waited for storage.
    waits: u64,
    computed: Computed,
}

/// How fast they got on.
#[derive(Debug)]
struct Pace {
    elapsed: Duration,
    waits: u64,
    /// Of each process that was there from the beginning to the end.
    computed: Computed,
}

/// Pairs of what both have of a process.
fn in_both<'a>(
    ones: &'a Computed,
    others: &'a Computed,
) -> impl Iterator<Item = (u32, Duration, Duration)> + 'a {
    ones.iter().filter_map(|(pid, one)| {
        let at = others.binary_search_by_key(pid, |(pid, _)| *pid).ok()?;
        Some((*pid, *one, others[at].1))
    })
}

impl Progress {
    fn since(&self, before: &Progress) -> Pace {
        let both = in_both(&self.computed, &before.computed);
        Pace {
            elapsed: self.at.saturating_sub(before.at),
            waits: self.waits.saturating_sub(before.waits),
            computed: both.map(|(pid, now, then)| (pid, now.saturating_sub(then))).collect(),
        }
    }
}

impl Pace {
    fn waits_less_than(&self, before: &Pace) -> bool {
        let this = u128::from(self.waits) * before.elapsed.as_nanos();
        let that = u128::from(before.waits) * self.elapsed.as_nanos();
        // As often as before would be so often meanwhile.
        let is_told = before.waits >= WAITS_TOLD_MIN
            && that >= u128::from(WAITS_TOLD_MIN) * before.elapsed.as_nanos();
        is_told && this * WAITS_LESS_TIMES < that
    }

    /// Of processes that were there all the time, how large a part of it they compute, and did before, up to
    /// a common factor; none if both are too little to be told.
    fn compared_with(&self, before: &Pace) -> Option<(u128, u128)> {
        let (mut this, mut that) = (Duration::ZERO, Duration::ZERO);
        for (_, now, then) in in_both(&self.computed, &before.computed) {
            this += now;
            that += then;
        }
        let parts = (
            this.as_nanos() * before.elapsed.as_nanos(),
            that.as_nanos() * self.elapsed.as_nanos(),
        );
        (this.max(that) >= COMPUTED_TOLD_MIN).then_some(parts)
    }
}

/// What comes of a want.
#[derive(Debug, Default)]
enum Attempt {
    /// There is none, or what was left for the last one stays so.
    #[default]
    None,
    /// How far programs get as it is.
    Begun(Progress),
    /// More is left than before, to see whether they get further.
    Left(Left),
}

/// More than before, for programs that had such a pace.
#[derive(Debug)]
struct Left {
    before_bytes: u64,
    before: Pace,
    /// When it was left more last.
    last: Progress,
    /// When the programs' pace was looked at last.
    asked_at: Duration,
}

impl Left {
    /// Programs got further since.
    fn helps(&self, now: &Progress) -> bool {
        let pace = now.since(&self.last);
        let is_further = |(now, before)| now > before + before / FURTHER_PART;
        pace.waits_less_than(&self.before)
            || pace.compared_with(&self.before).is_some_and(is_further)
    }

    /// They get clearly less far, so that what others lose by it is worth more.
    fn sets_back(&self, now: &Progress) -> bool {
        let pace = now.since(&self.last);
        let is_back = |(now, before)| now * SET_BACK_TIMES < before;
        !pace.waits_less_than(&self.before) && pace.compared_with(&self.before).is_some_and(is_back)
    }
}

/// What is left to the kernel's page cache.
#[derive(Debug)]
pub(crate) struct Ceded {
    bytes: u64,
    begin: Option<Seen>,
    attempt: Attempt,
    /// No attempt before.
    not_before: Duration,
    again_after: Duration,
    /// How often in a row it was left more, or less.
    given: u32,
    taken: u32,
    /// Since when it has been enough, or was tried for less.
    enough_since: Duration,
    patience: Duration,
    /// It was tried for less, and has been enough since.
    is_tried: bool,
}

impl Default for Ceded {
    fn default() -> Ceded {
        Ceded {
            bytes: 0,
            begin: None,
            attempt: Attempt::None,
            not_before: Duration::ZERO,
            again_after: AGAIN_AFTER,
            given: 0,
            taken: 0,
            enough_since: Duration::ZERO,
            patience: PATIENCE,
            is_tried: false,
        }
    }
}

impl Ceded {
    /// Bytes to leave to the kernel's page cache, `most_bytes` at most, beside frames of `frames_bytes`.
    /// How much programs have `computed` is asked where that decides; none: it cannot be told, and nothing
    /// is left for nobody knows what.
    pub(crate) fn look(
        &mut self,
        seen: Seen,
        frames_bytes: u64,
        most_bytes: u64,
        computed: impl Fn() -> Option<Computed>,
    ) -> u64 {
        // What would be too much to leave need not be taken back either.
        self.bytes = self.bytes.min(most_bytes);
        let is_of_another = |begin: &Seen| begin.counts.usage.level != seen.counts.usage.level;
        if self.begin.as_ref().is_some_and(is_of_another) {
            // Nothing that was counted there can be compared.
            self.begin = None;
            if let Attempt::Left(left) = core::mem::take(&mut self.attempt) {
                self.bytes = left.before_bytes;
            }
        }
        let waits = seen.counts.pressure.major_faults;
        let now = || Some(Progress { at: seen.at, waits, computed: computed()? });
        self.look_at_attempt(seen, now);
        let begin = *self.begin.get_or_insert(seen);
        let elapsed = seen.at.saturating_sub(begin.at);
        let step_bytes = (frames_bytes / STEP_PART).max(1);
        if elapsed < TURN_MIN {
            return self.bytes;
        }
        if is_too_little(begin, seen) {
            self.begin = Some(seen);
            self.want(seen.at, step_bytes, most_bytes, now);
        } else if elapsed >= TURN_MAX {
            self.begin = Some(seen);
            match core::mem::take(&mut self.attempt) {
                Attempt::Left(left) => {
                    let helps = now().is_some_and(|now| left.helps(&now));
                    self.settle(seen.at, left.before_bytes, helps);
                }
                _ => self.take(seen.at, step_bytes),
            }
        }
        self.bytes = self.bytes.min(most_bytes);
        self.bytes
    }

    /// It was too little.
    fn want(
        &mut self,
        at: Duration,
        step_bytes: u64,
        most_bytes: u64,
        now: impl FnOnce() -> Option<Progress>,
    ) {
        let can_begin = at >= self.not_before && self.bytes < most_bytes;
        if matches!(self.attempt, Attempt::None) && !can_begin {
            return;
        }
        let Some(now) = now() else { return };
        let (before_bytes, before) = match core::mem::take(&mut self.attempt) {
            Attempt::None => return self.attempt = Attempt::Begun(now),
            Attempt::Begun(begun) => (self.bytes, now.since(&begun)),
            Attempt::Left(left) if self.bytes >= most_bytes => {
                return self.settle(at, left.before_bytes, left.helps(&now));
            }
            Attempt::Left(left) => (left.before_bytes, left.before),
        };
        self.attempt = Attempt::Left(Left { before_bytes, before, last: now, asked_at: at });
        self.give(at, step_bytes);
    }

    /// Whether what is left to it may be taken back at once, because it does not help.
    pub(crate) fn is_attempt(&self) -> bool {
        matches!(self.attempt, Attempt::Left(_))
    }

    /// Who is set back by an attempt does not wait for its end.
    fn look_at_attempt(&mut self, seen: Seen, now: impl FnOnce() -> Option<Progress>) {
        let Attempt::Left(left) = &mut self.attempt else { return };
        if seen.at.saturating_sub(left.asked_at) < TURN_MIN {
            return;
        }
        left.asked_at = seen.at;
        if now().is_some_and(|now| left.sets_back(&now)) {
            let before_bytes = left.before_bytes;
            self.settle(seen.at, before_bytes, false);
            self.begin = Some(seen);
        }
    }

    /// An attempt is at its end.
    fn settle(&mut self, at: Duration, before_bytes: u64, helps: bool) {
        self.attempt = Attempt::None;
        self.given = 0;
        if helps {
            self.again_after = AGAIN_AFTER;
        } else {
            self.bytes = before_bytes;
            self.not_before = at + self.again_after;
            self.again_after = (2 * self.again_after).min(AGAIN_AFTER_MAX);
        }
    }

    fn give(&mut self, at: Duration, step_bytes: u64) {
        if core::mem::take(&mut self.is_tried) {
            self.patience = (2 * self.patience).min(PATIENCE_MAX);
        }
        let step_bytes = step_bytes << self.given.min(DOUBLINGS_MAX);
        self.bytes = self.bytes.saturating_add(step_bytes);
        self.given += 1;
        self.taken = 0;
        self.enough_since = at;
    }

    fn take(&mut self, at: Duration, step_bytes: u64) {
        // When the first went well, nothing waits for the others but what they show.
        let patience = if self.taken == 0 { self.patience } else { PATIENCE };
        if self.bytes > 0 && at.saturating_sub(self.enough_since) >= patience {
            let step_bytes = step_bytes << self.taken.min(DOUBLINGS_BACK_MAX);
            self.bytes = self.bytes.saturating_sub(step_bytes);
            self.taken += 1;
            self.is_tried = true;
            self.enough_since = at;
            if self.bytes == 0 {
                self.patience = PATIENCE;
            }
        }
    }
}

/// Whether all of the cache was read again, while programs waited for it, and more than was read for
/// frames.
fn is_too_little(begin: Seen, seen: Seen) -> bool {
    let elapsed = seen.at.saturating_sub(begin.at);
    let (now, then) = (seen.counts.pressure, begin.counts.pressure);
    let waits = now.major_faults.saturating_sub(then.major_faults);
    let again = now.refaults.saturating_sub(then.refaults);
    let own = seen.own_pages.saturating_sub(begin.own_pages);
    let is_waiting =
        u128::from(waits) * 1000 > u128::from(WAITS_PER_SECOND_MAX) * elapsed.as_millis();
    let is_read_again = again * PAGE_BYTES > seen.counts.cache_bytes;
    is_waiting && again > AGAIN_PER_OWN * own && is_read_again
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_sys::cgroup::{Pressure, Usage};

    const MIB: u64 = 1 << 20;
    const FRAMES: u64 = 64 * MIB;
    const LOOK: Duration = Duration::from_millis(50);

    /// A machine whose programs need so much of the kernel's cache, and that has so much for both.
    struct Machine {
        needs_bytes: u64,
        memory_bytes: u64,
        /// So much of the frames is needed as well.
        hot_bytes: u64,
        can_tell: bool,
        /// It computes for one part in so many of the time when it has all that it needs.
        computes_part: u32,
        /// What others compute, whatever comes.
        others: fn(Duration) -> Computed,
        ceded: Ceded,
        seen: Seen,
        computed: Duration,
    }

    impl Machine {
        fn new(needs_bytes: u64, memory_bytes: u64) -> Machine {
            let usage = Usage { level: 0, limit_bytes: memory_bytes, used_bytes: memory_bytes };
            let pressure = Pressure::default();
            let counts = Counts { usage, cache_bytes: 0, mapped_bytes: 0, slab_bytes: 0, pressure };
            let seen = Seen { at: Duration::ZERO, counts, own_pages: 0 };
            Machine {
                needs_bytes,
                memory_bytes,
                hot_bytes: 0,
                can_tell: true,
                computes_part: 2,
                others: |_| Vec::new(),
                ceded: Ceded::default(),
                seen,
                computed: Duration::ZERO,
            }
        }

        /// A program that goes round a file that fits in no case, beside one that needs all frames.
        fn of_loop() -> Machine {
            Machine { hot_bytes: FRAMES, ..Machine::new(u64::MAX, 66 * MIB) }
        }

        /// One look later, until which we read so many pages: what is left to the kernel's cache.
        fn step(&mut self, own_pages: u64) -> u64 {
            // The kernel counts in ticks.
            let ticks = Duration::from_millis(self.computed.as_millis() as u64 / 10 * 10);
            let mut computed = vec![(1, ticks)];
            computed.extend((self.others)(self.seen.at));
            let computed = self.can_tell.then_some(computed);
            let left = self.ceded.look(self.seen, FRAMES, self.memory_bytes, || computed.clone());
            let frames_bytes = FRAMES.min(self.memory_bytes.saturating_sub(left));
            let cache_bytes = self.memory_bytes - frames_bytes;
            self.seen.counts.cache_bytes = cache_bytes;
            self.seen.at += LOOK;
            self.seen.own_pages += own_pages;
            let lacks = cache_bytes < self.needs_bytes;
            if lacks {
                self.seen.counts.pressure.major_faults += 30;
                self.seen.counts.pressure.refaults += self.memory_bytes / PAGE_BYTES;
            }
            // Who waits for code computes nearly nothing; who waits for frames, little.
            self.computed += match (frames_bytes < self.hot_bytes, lacks) {
                (true, _) => LOOK / 20,
                (false, true) if self.hot_bytes == 0 => LOOK / (30 * self.computes_part),
                (false, _) => LOOK / self.computes_part,
            };
            left
        }
    }

    #[test]
    fn code_that_is_read_again_is_left_room_within_a_second() {
        let mut machine = Machine::new(24 * MIB, 66 * MIB);
        let enough = (0..40).position(|_| machine.step(10) >= 24 * MIB);
        assert!(enough.is_some_and(|looks| looks <= 20), "{enough:?}");
        // And not much more than it needs.
        let left = (0..15).map(|_| machine.step(10)).max().unwrap();
        assert!(left <= 40 * MIB, "{left}");
    }

    #[test]
    fn it_is_tried_for_less_and_less_often_when_that_was_too_little() {
        let mut machine = Machine::new(24 * MIB, 66 * MIB);
        let lefts: Vec<u64> = (0..6000).map(|_| machine.step(10)).collect();
        // Five minutes: of the last two nearly all are without want, and little is left for nothing.
        let last = &lefts[3600..];
        let short = last.iter().filter(|left| **left < 24 * MIB).count();
        assert!(short < last.len() / 50, "{short}");
        assert!(last.iter().all(|left| *left < 40 * MIB));
    }

    /// It came back by a thirty-second of the frames at a time, each after ever so long.
    #[test]
    fn what_is_needed_no_more_is_soon_taken_back() {
        for needed_for in [100, 6000] {
            let mut machine = Machine::new(40 * MIB, 66 * MIB);
            let left = (0..needed_for).map(|_| machine.step(10)).last().unwrap();
            assert!(left > 36 * MIB, "{left}");
            machine.needs_bytes = 0;
            let patience = machine.ceded.patience;
            let back = (0..).position(|_| machine.step(10) == 0).unwrap();
            let most = patience + 8 * TURN_MAX;
            assert!(LOOK * back as u32 <= most, "{:?} {patience:?}", LOOK * back as u32);
        }
    }

    /// It took seven eighths of the frames, as long as the loop went on, and saved it nothing.
    #[test]
    fn a_loop_that_fits_in_no_case_keeps_nothing() {
        let mut machine = Machine::of_loop();
        let lefts: Vec<u64> = (0..12_000).map(|_| machine.step(10)).collect();
        assert!(lefts.iter().any(|left| *left > 0), "it was attempted");
        let left_in = |looks: &[u64]| looks.iter().filter(|left| **left > 0).count();
        // Ten minutes: for a tenth of a second or two each time, and that hardly ever.
        assert!(left_in(&lefts) <= 120, "{}", left_in(&lefts));
        // Code is left room beside it, when its turn comes.
        let mut machine = Machine { hot_bytes: 0, needs_bytes: 24 * MIB, ..machine };
        let enough = (0..).position(|_| machine.step(10) >= 24 * MIB).unwrap();
        assert!(LOOK * enough as u32 <= AGAIN_AFTER_MAX + TURN_MAX, "{enough}");
    }

    /// Others that compute drowned what was to be seen, who ended was counted as a step back, and of who
    /// waits for frames most of the time the kernel counts a tick now and then: all was taken back for 8 s
    /// and more, and the program stood still.
    #[test]
    fn code_keeps_its_room_whatever_others_compute() {
        let others: [fn(Duration) -> Computed; 3] = [
            |_| Vec::new(),
            |at| vec![(2, 2 * at), (3, at)],
            |at| {
                let number = at.as_millis() as u32 / 700;
                vec![(10 + number, at - Duration::from_millis(700) * number)]
            },
        ];
        for (others, computes_part) in others.into_iter().flat_map(|o| [(o, 2), (o, 25)]) {
            let code = Machine::new(24 * MIB, 66 * MIB);
            let mut machine = Machine { others, computes_part, ..code };
            let lefts: Vec<u64> = (0..2400).map(|_| machine.step(10)).collect();
            let short = lefts.iter().filter(|left| **left < 24 * MIB).count();
            assert!(short < 100, "{short} of {}, {computes_part}", lefts.len());
        }
    }

    #[test]
    fn nothing_is_left_where_nobody_can_tell_whether_it_helps() {
        let mut machine = Machine { can_tell: false, ..Machine::new(24 * MIB, 66 * MIB) };
        assert!((0..100).all(|_| machine.step(10) == 0));
    }

    #[test]
    fn counts_of_another_cgroup_are_not_compared() {
        let mut machine = Machine::new(24 * MIB, 66 * MIB);
        for look in 0..100 {
            machine.seen.counts.usage.level = look % 2;
            assert_eq!(machine.step(0), 0);
        }
    }

    #[test]
    fn who_reads_more_than_the_kernel_keeps_the_frames() {
        let mut machine = Machine::new(24 * MIB, 66 * MIB);
        assert!((0..100).all(|_| machine.step(15_000) == 0));
    }

    #[test]
    fn a_beginning_that_reads_new_code_is_no_want() {
        let mut machine = Machine::new(0, 66 * MIB);
        for _ in 0..100 {
            machine.seen.counts.pressure.major_faults += 50;
            assert_eq!(machine.step(0), 0);
        }
    }

    #[test]
    fn no_more_is_left_than_there_may_be() {
        let mut machine = Machine::new(u64::MAX, 20 * MIB);
        assert_eq!((0..100).map(|_| machine.step(0)).max(), Some(20 * MIB));
    }
}
