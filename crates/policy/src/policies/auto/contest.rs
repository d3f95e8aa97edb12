//! Shadow caches: home and its challengers over the sampled pages, in as much smaller caches.
use crate::flat::Flat;
use crate::registry::PolicySpec;
use crate::switched::{Keeps, Switched, build};

use super::price::PAGE;
use crate::{Admission, Page, Place, Policy};

/// Home: the first candidate's place among them.
pub(super) const HOME: usize = 0;

/// Lifetimes of trials in references to sampled pages, per frame of a shadow cache. Short ones
/// follow soon after a phase began; long ones see reuse that is far apart.
const LIVES_PER_FRAME: [u64; 2] = [2, LONG_PER_FRAME];
const LONG_PER_FRAME: u64 = 8;
/// Trials of each lifetime for each challenger, begun at even distances.
const STAGGERED: u64 = 2;
/// No trial is shorter, in references to sampled pages.
const LIFE_REFS_LEAST: u64 = 128;

/// What saves less than this percentage of the misses is no gain.
const SAVED_LEAST_PERCENT: i64 = 6;
/// A policy that saves less than this percentage of home's misses is not worth staying with.
const WORTH_LEAST_PERCENT: i64 = 3;
/// What is known of uses that were not seen is off by this part of the frames: what recency would have
/// had in the last of them only is not taken to have been kept.
const UNSURE_PART: u32 = 16;
/// Misses saved net that a change takes, of a shadow cache's frames: a wrong one costs as many
/// misses as there are frames.
const GAIN_FRAMES: u64 = 16;
/// No fewer than chance gives.
const GAIN_LEAST: u64 = 16;
/// Each level of doubt in a challenger doubles what it has to gain.
const DOUBT_AT_FIRST: u32 = 2;
const DOUBT_MOST: u32 = 6;
/// How long a policy may go without being worth it, in reuse times, and the bounds to that in
/// references to sampled pages per frame.
const PATIENCE_REUSES: f64 = 2.0;
const PATIENCE_PER_FRAME: [u64; 2] = [2, 16];
/// Back home, it takes so long at most until memory counts as home's, in references to sampled
/// pages per frame.
const RETURN_PER_FRAME: u64 = 4;

/// Misses of two policies over the same references, counted from when the one had nothing on the
/// other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Evidence {
    pub(super) references: u64,
    /// Of the policy in charge.
    pub(super) active_misses: u64,
    /// Of the one that would be better.
    pub(super) misses: u64,
}

/// What is seen of memory where touches of mapped pages are not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Memory missed the page.
    pub(super) missed: bool,
    /// The part of the sampled pages in memory whose touches would not be seen, in percent.
    pub(super) hidden_percent: u8,
    /// So many sampled pages were used since this one was, probably, if that is not too long ago.
    pub(super) used_since: Option<u32>,
}

/// A change of the policy in charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// The candidate to be in charge from now on.
    pub(super) to: usize,
    /// The candidate whose shadow cache says so. When it is not the one to be in charge: home is,
    /// on the way there.
    pub(super) because_of: usize,
    pub(super) evidence: Evidence,
}

/// Cumulative sum of what a challenger saves beyond what it has to, never below 0: Page's test
/// for a change in a sequence.
#[derive(Clone, Copy, Debug, Default)]
struct Gain {
    /// As prices are.
    sum: i64,
    evidence: Evidence,
}

/// "Had we gone from home to this candidate when the trial began": its shadow cache began with
/// the pages that home's held then.
struct Trial {
    candidate: usize,
    pool: Switched,
    lives_per_frame: u64,
    ends_at: u64,
    gain: Gain,
}

/// Time spent away from home.
struct Excursion {
    candidate: usize,
    pool: Switched,
    /// What was saved so far, compared with home, as prices are.
    saved: i64,
    /// Home's gain.
    home: Gain,
    /// Since the last look at whether it is worth it.
    look: Evidence,
    /// What misses cost since then, in charge and at home: with what is in doubt.
    look_costs: [i64; 2],
    /// Begun on somebody's word: nothing was seen of reuse that it could save. A round of a loop may
    /// take any time, so it has all the patience that there is.
    is_on_trust: bool,
}

/// Who is in charge of memory, and what a shadow cache that is like memory holds.
enum State {
    /// Home is, and memory is as if it had always been.
    Home,
    /// A challenger is.
    Away(Excursion),
    /// Home is again, and memory holds what a challenger left.
    Returning { pool: Switched, until: u64 },
}

/// All shadow caches.
pub(super) struct Contest {
    candidates: Vec<PolicySpec>,
    keeps: Keeps,
    seed: u64,
    frames: u32,
    /// The first candidate, as if it had always been in charge.
    home: Switched,
    state: State,
    trials: Vec<Trial>,
    references: u64,
    /// Per candidate.
    doubts: Vec<u32>,
    reuse: Reuse,
    /// Per candidate: moving average of its misses per reference.
    miss_ratios: Vec<f64>,
    /// Moving average of what misses of the pages that are used would cost.
    mean_price: f64,
}

impl Contest {
    /// Empty shadow caches of `frames` frames.
    pub(super) fn new(candidates: Vec<PolicySpec>, frames: u32, seed: u64) -> Self {
        let wants = |spec| Keeps::what(&*build(spec, frames, seed));
        let keeps = candidates.iter().map(wants).max().unwrap_or(Keeps::Nothing);
        let mut contest = Self {
            keeps,
            seed,
            frames,
            home: Switched::new(build(&candidates[HOME], frames, seed), keeps),
            state: State::Home,
            trials: Vec::new(),
            references: 0,
            doubts: vec![DOUBT_AT_FIRST; candidates.len()],
            reuse: Reuse::default(),
            miss_ratios: vec![1.0; candidates.len()],
            mean_price: PAGE as f64,
            candidates,
        };
        contest.begin_trials();
        contest
    }

    pub(super) const fn frames(&self) -> u32 {
        self.frames
    }

    pub(super) fn miss_ratios(&self) -> &[f64] {
        &self.miss_ratios
    }

    pub(super) const fn keeps(&self) -> Keeps {
        self.keeps
    }

    /// A sampled page was referenced, a miss of which costs so much. A challenger in charge of memory is
    /// judged by what is `seen` of it, where not all is. Answers whether somebody else is to be in charge
    /// from now on.
    pub(super) fn referenced(
        &mut self,
        page: Page,
        place: Option<Place>,
        seen: Option<Seen>,
        price: i64,
    ) -> Option<Change> {
        self.references += 1;
        self.mean_price += (price as f64 - self.mean_price) / f64::from(self.frames.max(64));
        let mean_price = self.mean_price as i64;
        self.reuse.referenced(page, self.references, self.frames);
        let frames = self.frames;
        let home_missed = touch(&mut self.home, page, place, frames);
        let (active, shadow_missed) = match &mut self.state {
            State::Home => (HOME, home_missed),
            State::Away(Excursion { pool, candidate, .. }) => {
                (*candidate, touch(pool, page, place, frames))
            }
            State::Returning { pool, .. } => (HOME, touch(pool, page, place, frames)),
        };
        let active_missed = match self.state {
            State::Away(_) => seen.map_or(shadow_missed, |seen| seen.missed),
            _ => shadow_missed,
        };
        // What a shadow cache kept while memory did not, others may have taken the place of, unseen. Of
        // recency it is known how many it takes.
        let (doubt_percent, home_doubt_percent) = match (&self.state, seen) {
            (State::Away(_), Some(seen)) if seen.missed => {
                let is_far =
                    seen.used_since.is_none_or(|used| used > frames - frames / UNSURE_PART);
                (i64::from(seen.hidden_percent), if is_far { 100 } else { 0 })
            }
            _ => (0, 0),
        };
        self.average(HOME, home_missed);
        let mut best: Option<(i64, usize, Evidence)> = None;
        for at in 0..self.trials.len() {
            let trial = &mut self.trials[at];
            let candidate = trial.candidate;
            let missed = touch(&mut trial.pool, page, place, frames);
            // Whether to begin the same anew is no matter of what one sees and the other does not.
            let is_same = candidate == active;
            match is_same {
                true => trial.gain.count(price, shadow_missed, percent(missed, 0)),
                false => trial.gain.count(price, active_missed, percent(missed, doubt_percent)),
            }
            let needed = match self.state {
                State::Home => preferred(candidate, gain_needed(frames, self.doubts[candidate])),
                _ => gain_needed_away(frames),
            };
            let surplus = trial.gain.surplus(needed, mean_price);
            let evidence = trial.gain.evidence;
            // A long trial's pages may be older than any that memory holds. What it shows holds for
            // memory once that was filled anew meanwhile.
            let is_long = trial.lives_per_frame == LONG_PER_FRAME;
            let is_ours = !is_long || evidence.active_misses >= u64::from(frames);
            if surplus >= 0 && is_ours && best.is_none_or(|(most, ..)| surplus > most) {
                best = Some((surplus, candidate, evidence));
            }
            if is_long {
                self.average(candidate, missed);
            }
        }
        self.restart_trials();
        let patience_refs = self.reuse.patience_refs(frames);
        match &mut self.state {
            State::Home => best.map(|(_, candidate, evidence)| self.leave(candidate, evidence)),
            State::Away(excursion) => {
                let patience_refs = match excursion.is_on_trust {
                    true => PATIENCE_PER_FRAME[1] * u64::from(frames),
                    false => patience_refs,
                };
                let home_missed_percent = percent(home_missed, home_doubt_percent);
                let home_better = excursion
                    .count(
                        price,
                        active_missed,
                        home_missed_percent,
                        gain_needed(frames, 0),
                        mean_price,
                        patience_refs,
                    )
                    .map(|evidence| (HOME, evidence));
                let trial_better = best.map(|(_, candidate, evidence)| (candidate, evidence));
                let (because_of, evidence) = home_better.or(trial_better)?;
                self.go_home();
                Some(Change { to: HOME, because_of, evidence })
            }
            State::Returning { pool, until } => {
                let is_time = self.references.is_multiple_of(u64::from(frames / 8).max(1));
                if self.references >= *until || is_time && self.home.shares_most_with(pool) {
                    self.state = State::Home;
                    self.forget_gains();
                }
                None
            }
        }
    }

    /// A sampled page came ahead of need.
    pub(super) fn prefetched(&mut self, page: Page, place: Option<Place>) {
        let frames = self.frames;
        self.for_each(|pool| {
            if !pool.holds(page) {
                admit(pool, page, place, Admission::Prefetch, frames);
            }
        });
    }

    /// The page is gone for everybody.
    pub(super) fn removed(&mut self, page: Page) {
        self.for_each(|pool| {
            if pool.holds(page) {
                pool.removed(page);
            }
        });
    }

    pub(super) fn resized(&mut self, frames: u32) {
        self.frames = frames;
        self.for_each(|pool| {
            pool.resized(frames);
            make_room(pool, None, frames + 1);
        });
    }

    /// The sample is one in 2^shift of what it was; who is in it no longer was removed. What the others did
    /// is known as before, but counts of misses begin anew.
    pub(super) fn thinned(&mut self, shift: u32, frames: u32) {
        self.resized(frames);
        self.forget_gains();
        self.reuse.average_refs /= f64::from(1_u32 << shift);
        if let State::Away(excursion) = &mut self.state {
            excursion.saved >>= shift;
            excursion.home = Gain::default();
            excursion.look = Evidence::default();
            excursion.look_costs = [0; 2];
        }
    }

    fn for_each(&mut self, mut change: impl FnMut(&mut Switched)) {
        change(&mut self.home);
        if let State::Away(Excursion { pool, .. }) | State::Returning { pool, .. } = &mut self.state
        {
            change(pool);
        }
        self.trials.iter_mut().for_each(|trial| change(&mut trial.pool));
    }

    /// A challenger is in charge from now on.
    pub(super) fn leave(&mut self, candidate: usize, evidence: Evidence) -> Change {
        self.forget_gains();
        self.state = State::Away(Excursion {
            candidate,
            pool: self.home.branch(self.build(candidate)),
            saved: 0,
            home: Gain::default(),
            look: Evidence::default(),
            look_costs: [0; 2],
            is_on_trust: evidence == Evidence::default(),
        });
        Change { to: candidate, because_of: candidate, evidence }
    }

    fn go_home(&mut self) {
        self.forget_gains();
        let State::Away(excursion) = &self.state else { return };
        let doubt = &mut self.doubts[excursion.candidate];
        if excursion.saved > gain_needed(self.frames, 0) * self.mean_price as i64 {
            *doubt = doubt.saturating_sub(1);
        } else {
            *doubt = (*doubt + 1).min(DOUBT_MOST);
        }
        let pool = excursion.pool.branch(self.build(HOME));
        let until = self.references + RETURN_PER_FRAME * u64::from(self.frames);
        self.state = State::Returning { pool, until };
    }

    fn forget_gains(&mut self) {
        self.trials.iter_mut().for_each(|trial| trial.gain = Gain::default());
    }

    fn build(&self, candidate: usize) -> Box<dyn Policy> {
        build(&self.candidates[candidate], self.frames, self.seed)
    }

    fn average(&mut self, candidate: usize, missed: bool) {
        let weight = 1.0 / f64::from(self.frames.max(64));
        let ratio = &mut self.miss_ratios[candidate];
        *ratio += (f64::from(u8::from(missed)) - *ratio) * weight;
    }

    fn begin_trials(&mut self) {
        for candidate in (0..self.candidates.len()).filter(|candidate| *candidate != HOME) {
            for lives_per_frame in LIVES_PER_FRAME {
                let lifetime_refs = lifetime_refs(lives_per_frame, self.frames);
                for place in 1..=STAGGERED {
                    self.trials.push(Trial {
                        candidate,
                        pool: self.home.branch(self.build(candidate)),
                        lives_per_frame,
                        ends_at: self.references + place * lifetime_refs / STAGGERED,
                        gain: Gain::default(),
                    });
                }
            }
        }
    }

    /// Begins trials anew that have had their time and nothing to show for it.
    fn restart_trials(&mut self) {
        for at in 0..self.trials.len() {
            let trial = &self.trials[at];
            if self.references >= trial.ends_at && trial.gain.sum == 0 {
                let pool = self.home.branch(self.build(trial.candidate));
                let trial = &mut self.trials[at];
                trial.pool = pool;
                trial.ends_at = self.references + lifetime_refs(trial.lives_per_frame, self.frames);
            }
        }
    }
}

impl Gain {
    /// Of a page whose misses cost so much.
    fn count(&mut self, price: i64, active_missed: bool, missed_percent: i64) {
        let cost_percent = i64::from(active_missed) * (100 - SAVED_LEAST_PERCENT);
        self.sum += price * (cost_percent - missed_percent) / 100;
        self.evidence.count(active_missed, missed_percent == 100);
        if self.sum <= 0 {
            *self = Self::default();
        }
    }
}

impl Gain {
    /// What is gained beyond what so many misses cost on average; negative also if fewer misses are saved.
    fn surplus(&self, needed: i64, mean_price: i64) -> i64 {
        let Evidence { active_misses, misses, .. } = self.evidence;
        let saved = active_misses as i64 - misses as i64;
        (self.sum - needed * mean_price).min((saved - needed / 2) * PAGE)
    }
}

impl Evidence {
    fn count(&mut self, active_missed: bool, missed: bool) {
        self.references += 1;
        self.active_misses += u64::from(active_missed);
        self.misses += u64::from(missed);
    }
}

impl Excursion {
    /// Answers why home is better, if it is.
    fn count(
        &mut self,
        price: i64,
        active_missed: bool,
        home_missed_percent: i64,
        gain_needed: i64,
        mean_price: i64,
        patience_refs: u64,
    ) -> Option<Evidence> {
        let active_cost = price * i64::from(active_missed);
        let home_cost = price * home_missed_percent / 100;
        self.saved += home_cost - active_cost;
        self.home.count(price, active_missed, home_missed_percent);
        self.look.count(active_missed, home_missed_percent == 100);
        self.look_costs[0] += active_cost;
        self.look_costs[1] += home_cost;
        if self.home.surplus(gain_needed, mean_price) >= 0 {
            return Some(self.home.evidence);
        }
        if self.look.references < patience_refs {
            return None;
        }
        let look = std::mem::take(&mut self.look);
        let [active_cost, home_cost] = std::mem::take(&mut self.look_costs);
        let is_worth_it = 100 * active_cost <= (100 - WORTH_LEAST_PERCENT) * home_cost;
        (!is_worth_it).then_some(look)
    }
}

/// How far apart references to one page are: 8 bytes per sampled page.
#[derive(Clone, Debug, Default)]
struct Reuse {
    last: Flat<u64>,
    average_refs: f64,
}

impl Reuse {
    fn referenced(&mut self, page: Page, now: u64, frames: u32) {
        let last = std::mem::replace(self.last.slot(page.index()), now);
        if last != 0 {
            let weight = 1.0 / f64::from(frames.max(64));
            self.average_refs += ((now - last) as f64 - self.average_refs) * weight;
        }
    }

    fn patience_refs(&self, frames: u32) -> u64 {
        let [least, most] = PATIENCE_PER_FRAME.map(|per_frame| per_frame * u64::from(frames));
        ((PATIENCE_REUSES * self.average_refs) as u64).clamp(least, most).max(LIFE_REFS_LEAST)
    }
}

/// How much of a miss it counts as that a shadow cache has the page, or not.
fn percent(missed: bool, doubt_percent: i64) -> i64 {
    if missed { 100 } else { doubt_percent }
}

/// In misses.
fn gain_needed(frames: u32, doubt: u32) -> i64 {
    ((u64::from(frames) / GAIN_FRAMES).max(GAIN_LEAST) << doubt) as i64
}

/// Of those that are nearly alike earlier candidates are preferred: a later one has to gain more.
fn preferred(candidate: usize, gain_needed: i64) -> i64 {
    gain_needed + gain_needed * (candidate as i64 - 1) / 2
}

/// The same for a trial against another challenger: more than the frames, since in a long loop
/// each of two caches has the other's misses as its hits for so long, by turns.
fn gain_needed_away(frames: u32) -> i64 {
    (i64::from(frames) * 3 / 2).max(gain_needed(frames, DOUBT_AT_FIRST))
}

fn lifetime_refs(lives_per_frame: u64, frames: u32) -> u64 {
    (lives_per_frame * u64::from(frames)).max(LIFE_REFS_LEAST)
}

/// Answers whether the page had to come in.
fn touch(pool: &mut Switched, page: Page, place: Option<Place>, frames: u32) -> bool {
    let missed = !pool.holds(page);
    if missed {
        admit(pool, page, place, Admission::Demand, frames);
    } else {
        pool.referenced(page);
    }
    missed
}

fn admit(pool: &mut Switched, page: Page, place: Option<Place>, how: Admission, frames: u32) {
    if let Some(place) = place {
        pool.placed(page, place);
    }
    make_room(pool, Some(page), frames);
    pool.admitted(page, how);
}

/// Evicts until fewer than `frames` pages are resident.
fn make_room(pool: &mut Switched, incoming: Option<Page>, frames: u32) {
    while pool.resident() >= frames {
        if pool.victim(incoming).is_none() {
            break;
        }
    }
}
