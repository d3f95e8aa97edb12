//! A selector: whichever of several policies misses least now, by shadow caches.
//!
//! A share of the pages is sampled, and every policy that could be in charge is played over them in
//! a cache that is as much smaller: a miniature simulation, whose miss ratio is near the full one's.
//! What is compared is what a decision is about: *had we changed over a while ago, would we have
//! missed less since?*
//!
//! ```text
//!               gains what doubt in it asks for
//!        ┌───────────────────────────────────────────┐
//!        │                                           ▼
//!      home ◄──────── returning ◄─────────────── challenger
//!            memory is     home misses less, or it does nothing for us,
//!           home's again   or a trial of one does clearly better
//! ```
//!
//! - **Home** is the first candidate. Its shadow cache runs on whoever is in charge, so it always
//!   knows what staying would have cost. Every change goes by way of home: by default recency,
//!   which fills memory with what the program uses now, whatever was in it.
//! - **Trials** are a challenger's shadow caches, each begun with what home's held at that moment,
//!   and anew after two or eight times as many references as they have frames, at staggered times.
//!   A shadow cache that always ran would not do: MRU's keeps for ever what it held when the
//!   program turned to other pages, and would never show what changing over to MRU *now* is good
//!   for. A long trial sees reuse that is far apart; but its pages may be older than any in
//!   memory, so it counts once memory was filled anew since it began to gain.
//! - **Gains** are summed net, by Page's test: 94 % of what the misses of whoever is in charge cost,
//!   less the trial's, never below zero. Policies that are nearly alike have nothing to gain from
//!   one another, so there is no flip-flop between them.
//! - **Prices**: where pages are read ahead, a miss of a page that is used in order with others
//!   costs a page and its part of a request, any other a page and a whole request (`price.rs`).
//!   What is to be gained is as many misses at the price of what is used now.
//! - **Doubt** is the hysteresis: a quarter of a shadow cache's frames are to be gained at first, and half
//!   of that more by each candidate than by the one before it;
//!   half as much after an excursion that saved misses, down to 1/16, and twice as much after one
//!   that did not, up to four times the frames. What a program does to mislead the selector it does
//!   a few times only.
//! - **Patience**: a challenger that in two typical reuse times saves less than 3 % of home's misses
//!   has stuck with pages of no use.
//!
//! On a change the new policy inherits the resident pages by recency ([`Switched`]).
//!
//! Small caches are sampled more densely, up to every page, since few frames over few pages say
//! little: a shadow cache has `shadow_frames` or all frames. So a reference costs at most one
//! operation per shadow cache, and from 16 × `shadow_frames` frames on a sixteenth of that.
//!
//! # Memory
//! Per page 9 bytes and what the policy in charge takes, 4 for the sample, 16 where a candidate
//! wants places, 4 where segments are enough, as for MRU by files. Per sampled page 17 bytes, and 9 and
//! the policy's own (25 more with places, 4 with segments) for each shadow cache: home's, the active
//! one's, and four trials for each other candidate; with the default candidates ten, so about 18 bytes
//! per page at 1/16 and 280 where every page is sampled.
//!
//! # Evidence
//! `crates/sim/tests/selection.rs`: phases of a loop over 1.3 × memory and of skewed references, by
//! turns, against one who knows when they begin; and real traces against LRU.
//!
//! # What to expect
//! A change is found after about one round of a loop, and costs up to a memory's worth of misses
//! when it was wrong. Where touches of mapped pages are not seen, as live, every touch of the sample
//! is asked for ([`Policy::watches`]). As far as that is not to be had, the shadow caches see faults and
//! the touches that happen to be seen, and a page that memory missed under a challenger is not taken for
//! one that others would have kept, if what may have been used meanwhile is more than memory holds
//! (`sight.rs`).

mod contest;
mod price;
mod sample;
mod sight;

use contest::{Change, Contest, Evidence, HOME, Seen};
use price::Prices;
use sample::Sample;
use sight::Sight;

use crate::cost::REQUEST_PAGES;
use crate::parameters::{Kind, ParameterInfo, Parameters, Value};
use crate::registry::{PolicyInfo, PolicySpec, Runs, Source};
use crate::switched::{Keeps, Switched, build, names_a_policy};
use crate::{Admission, Gauge, Note, Page, Place, Policy, Visible};

/// The most candidates.
const CANDIDATES_MAX: usize = 16;

const PARAMETERS: &[ParameterInfo] = &[
    ParameterInfo {
        key: AMONG,
        meaning: "the policies to choose from; the first is in charge at the start, and whenever \
                  none is better; of the others earlier ones are preferred",
        kind: Kind::Text {
            what: "one to sixteen policies that run live, such as lru+mru, without commas",
            reads: |text| candidates(text).is_some(),
        },
        default: Value::Text(std::borrow::Cow::Borrowed("lru+mru:by=file+lirs")),
    },
    ParameterInfo {
        key: "sample",
        meaning: "share of the pages that the shadow caches see, at least",
        kind: Kind::Choice(&["1", "1/4", "1/16", "1/64"]),
        default: Value::Choice("1/16"),
    },
    ParameterInfo {
        key: "shadow_frames",
        meaning: "frames that a shadow cache has at least, where memory has them: a larger share \
                  is sampled for it",
        kind: Kind::Integer { least: 1, most: 1 << 20 },
        default: Value::Integer(1024),
    },
    ParameterInfo {
        key: "request",
        meaning: "what a request costs the disk beside the pages read, in pages: so much more is a \
                  miss of a page that is not used in order with others, where pages are read ahead",
        kind: Kind::Integer { least: 0, most: 1 << 16 },
        default: Value::Integer(REQUEST_PAGES),
    },
    ParameterInfo {
        key: "start",
        meaning: "the one of them that is in charge at the start, as if it had been found to be \
                  better: for who knows what the program does",
        kind: Kind::Item {
            what: "home (the first of them) or the name of another",
            of: AMONG,
            has: |among, start| start == START_HOME || place_in(among, start).is_some(),
        },
        default: Value::Text(std::borrow::Cow::Borrowed(START_HOME)),
    },
];

/// The parameter that lists the candidates.
const AMONG: &str = "among";
/// As [`Settings::start`] says it: the first candidate.
const START_HOME: &str = "home";

const SECTION: &str = "shadow caches of a sample of the pages, and Page's test of what others gain";

/// What the registry says about the selector.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "auto",
    aliases: &[],
    summary: "whichever of several policies misses least now, by sampled shadow caches",
    helps: "programs that are not known, or whose phases differ",
    hurts: "phases shorter than a few memory sizes in references; what no candidate is good for",
    source: Source { title: "Pagekeeper's own", section: SECTION },
    cost: "O(1) per reference in the policy in charge, and in ten shadow caches for one page in 16; \
           a change is O(resident pages)",
    // LIRS in charge, the order of recency with segments, the sample, and ten shadow caches at 1/16.
    bytes_per_page: 17 + 13 + 4 + 18,
    parameters: PARAMETERS,
    runs: Runs::Anywhere(|parameters, frames, seed| {
        Box::new(Auto::new(Settings::of(parameters), frames, seed))
    }),
};

/// Reads `lru+mru+…`. A policy whose own name ends in `+` may be among them: an empty part belongs
/// to the name before it, as parameters do.
fn candidates(text: &str) -> Option<Vec<PolicySpec>> {
    let mut names: Vec<String> = Vec::new();
    for part in text.split('+') {
        match names.last_mut() {
            Some(name) if part.is_empty() || part.starts_with(':') => {
                name.push('+');
                name.push_str(part);
            }
            _ => names.push(part.to_owned()),
        }
    }
    let reads = names.iter().all(|name| names_a_policy(name)) && names.len() <= CANDIDATES_MAX;
    reads.then(|| names.iter().filter_map(|name| PolicySpec::parse(name).ok()).collect())
}

/// A candidate's place in such a list, by its name or an alias.
fn place_in(among: &str, name: &str) -> Option<usize> {
    candidates(among)?.iter().position(|spec| spec.info().answers_to(name))
}

/// The parameters of [`Auto`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// The candidates, the first of them in charge at the start. All run anywhere.
    pub among: Vec<PolicySpec>,
    /// At least one page in 2^this is sampled.
    pub sample_shift_most: u32,
    /// Frames that a shadow cache has at least, as far as there are so many.
    pub shadow_frames: u32,
    /// What a request costs beside what is read, in pages read.
    pub request_pages: u64,
    /// The candidate in charge at the start, by its place.
    pub start: usize,
}

impl Settings {
    fn of(parameters: &Parameters) -> Self {
        let share = parameters.choice("sample");
        let group: u32 = share.strip_prefix("1/").map_or(1, |group| group.parse().unwrap_or(1));
        let among = parameters.text(AMONG);
        Self {
            start: place_in(&among, &parameters.text("start")).unwrap_or(HOME),
            among: candidates(&among).unwrap_or_default(),
            sample_shift_most: group.ilog2(),
            shadow_frames: parameters.integer("shadow_frames") as u32,
            request_pages: parameters.integer("request"),
        }
    }

    /// One page in 2^this is sampled when there are so many frames.
    fn sample_shift(&self, frames: u32) -> u32 {
        (frames / self.shadow_frames.max(1)).max(1).ilog2().min(self.sample_shift_most)
    }
}

/// The selector.
pub struct Auto {
    settings: Settings,
    seed: u64,
    pool: Switched,
    active: usize,
    frames: u32,
    sample: Sample,
    contest: Contest,
    prices: Prices,
    /// Touches are not all seen: somebody asks of which pages they are to be. Of those that are in memory,
    /// which are.
    sight: Option<Sight>,
    /// The sample is another since that somebody was told.
    is_another: bool,
}

impl Auto {
    /// Begins with the first candidate, or the one that is said to be better. `seed` draws the sample,
    /// and feeds policies that are random.
    ///
    /// # Panics
    /// If there is no candidate, or one of them runs in the simulator alone.
    pub fn new(settings: Settings, frames: u32, seed: u64) -> Self {
        let shift = settings.sample_shift(frames);
        let mut contest = Contest::new(settings.among.clone(), shadow(frames, shift), seed);
        if settings.start != HOME {
            contest.leave(settings.start, Evidence::default());
        }
        let first = build(&settings.among[settings.start], frames, seed);
        Self {
            pool: Switched::new(first, contest.keeps()),
            active: settings.start,
            frames,
            sample: Sample::new(shift, seed),
            contest,
            prices: Prices::new(settings.request_pages),
            settings,
            seed,
            sight: None,
            is_another: false,
        }
    }

    /// A page's number in the sample, if it is in. A resident one may not have been met yet: the sample may
    /// be another since it came.
    #[inline]
    fn number(&mut self, page: Page) -> Option<Page> {
        self.sample.meet(page, || self.pool.place_of(page))
    }

    /// Where a page of the sample lives among the sampled, as far as anybody wants to know.
    fn sampled_place(&self, page: Page, number: Page) -> Option<Place> {
        let place = self.pool.place_of(page).map(|place| self.sample.place(place));
        let of_segment = |segment| Place { segment, index: number.0.into() };
        place.or_else(|| self.pool.segment_of(page).map(of_segment))
    }

    /// A page was used. `missed` if it had to come in for it.
    #[inline]
    fn count_use(&mut self, page: Page, missed: bool) {
        if let Some(number) = self.number(page) {
            self.count_sampled(page, number, missed);
        }
        self.prices.used(page);
    }

    /// A sampled page was referenced. `missed` if it had to come in for it.
    ///
    /// Where a challenger in charge hears of fewer references than its shadow cache, it is judged by
    /// what it does to memory.
    fn count_sampled(&mut self, page: Page, number: Page, missed: bool) {
        let place = self.sampled_place(page, number);
        let seen = self.sight.as_mut().map(|sight| {
            let is_judged = missed && self.active != HOME;
            let used_since = is_judged.then(|| sight.used_since(number)).flatten();
            sight.used(number);
            Seen { missed, hidden_percent: sight.hidden_percent(), used_since }
        });
        let price = self.prices.of(page, self.sample.shift());
        if let Some(change) = self.contest.referenced(number, place, seen, price) {
            self.change(change);
        }
    }

    /// A sampled page is no more, or is another.
    fn forget(&mut self, number: Page) {
        self.contest.removed(number);
        if let Some(sight) = &mut self.sight {
            sight.forget(number);
        }
    }

    /// What is seen of touches, where not all are.
    fn sight(&mut self) -> &mut Sight {
        let frames = self.contest.frames();
        self.sight.get_or_insert_with(|| Sight::of(frames))
    }

    fn change(&mut self, change: Change) {
        let among = &self.settings.among;
        let [old, new, because_of] =
            [self.active, change.to, change.because_of].map(|at| &among[at]);
        let Evidence { references, misses, active_misses } = change.evidence;
        let why = format!(
            "{old} → {new}: {because_of} has {misses} misses in place of {active_misses} in the \
             last {references} references to one page in {}, in shadow caches of {} frames",
            1_u32 << self.sample.shift(),
            self.contest.frames(),
        );
        self.active = change.to;
        self.pool.switch_to(build(new, self.frames, self.seed), why);
    }
}

/// Frames of a shadow cache.
fn shadow(frames: u32, shift: u32) -> u32 {
    (frames >> shift).max(1)
}

impl Policy for Auto {
    fn wants_places(&self) -> bool {
        self.pool.wants_places()
    }

    fn wants_indices(&self) -> bool {
        self.pool.wants_indices()
    }

    fn wants_samples(&self) -> bool {
        self.pool.wants_samples()
    }

    fn sampled(&mut self, page: Page) {
        self.pool.sampled(page);
        self.count_use(page, false);
    }

    /// Under home's rule a page that is used again after it left is a miss that everybody sees.
    fn watches_closely(&self) -> bool {
        self.active != HOME
    }

    fn watches_pages(&self) -> bool {
        true
    }

    fn watches(&mut self, page: Page) -> bool {
        let number = self.number(page);
        let is_here = self.pool.holds(page);
        let sight = self.sight();
        if let Some(number) = number.filter(|_| is_here) {
            sight.met(number);
        }
        number.is_some()
    }

    fn watches_others(&mut self) -> bool {
        std::mem::take(&mut self.is_another)
    }

    fn unmapped(&mut self, page: Page) {
        let number = self.number(page);
        if let (Some(sight), Some(number)) = (&mut self.sight, number) {
            sight.unmapped(number);
        }
    }

    fn mapped(&mut self, page: Page) {
        let number = self.number(page);
        if let (Some(sight), Some(number)) = (&mut self.sight, number) {
            sight.mapped(number);
        }
    }

    fn placed(&mut self, page: Page, place: Place) {
        let is_another = match self.pool.place_of(page) {
            Some(old) => old != place,
            None => self.pool.segment_of(page).is_some_and(|old| old != place.segment),
        };
        if is_another && let Some(number) = self.sample.forget(page) {
            self.forget(number);
        }
        self.pool.placed(page, place);
    }

    fn admitted(&mut self, page: Page, how: Admission) {
        self.pool.admitted(page, how);
        self.prices.admitted(how);
        if how == Admission::Demand {
            self.count_use(page, true);
        } else if let Some(number) = self.number(page) {
            let place = self.sampled_place(page, number);
            self.contest.prefetched(number, place);
            if let Some(sight) = &mut self.sight {
                sight.came(number);
            }
        }
    }

    // No shadow cache gave it up, and nobody touched it.
    fn spared(&mut self, page: Page) {
        self.pool.spared(page);
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        self.pool.referenced(page);
        self.count_use(page, false);
    }

    fn removed(&mut self, page: Page) {
        self.pool.removed(page);
        if let Some(number) = self.sample.get(page) {
            self.forget(number);
        }
    }

    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        let victim = self.pool.victim(incoming)?;
        if let (Some(sight), Some(number)) = (&mut self.sight, self.sample.get(victim)) {
            sight.left(number);
        }
        Some(victim)
    }

    fn resized(&mut self, frames: u32) {
        self.frames = frames;
        self.pool.resized(frames);
        let shift = self.settings.sample_shift(frames);
        let old = self.sample.shift();
        if shift > old && self.contest.keeps() < Keeps::Places {
            // Memory that grows from little does so by many steps, and the program goes on.
            let mut left_out = Vec::new();
            self.sample.thin(shift, |number| left_out.push(number));
            for number in left_out {
                self.forget(number);
            }
            self.contest.thinned(shift - old, shadow(frames, shift));
            self.is_another = true;
        } else if shift.abs_diff(old) <= 1 {
            self.contest.resized(shadow(frames, old));
        } else {
            // Another order of size: another sample, of which the shadow caches know nothing yet. Whoever
            // is in charge stays so on trust.
            let among = self.settings.among.clone();
            self.sample = Sample::new(shift, self.seed);
            self.is_another = true;
            self.contest = Contest::new(among, shadow(frames, shift), self.seed);
            if let Some(sight) = &mut self.sight {
                *sight = Sight::of(shadow(frames, shift));
            }
            if self.active != HOME {
                self.contest.leave(self.active, Evidence::default());
            }
        }
        if let Some(sight) = &mut self.sight {
            sight.resized(self.contest.frames());
        }
    }

    fn resident(&self) -> u32 {
        self.pool.resident()
    }

    fn visible(&mut self) -> Option<&mut dyn Visible> {
        Some(self)
    }
}

impl Visible for Auto {
    fn gauges(&self) -> Vec<Gauge> {
        let own = [
            ("active_policy", self.active as f64),
            ("switches", self.pool.switches() as f64),
            ("sampled_share", 1.0 / f64::from(1_u32 << self.sample.shift())),
            ("shadow_frames", f64::from(self.contest.frames())),
        ];
        // Every candidate's shadow miss ratio, under the name of its policy.
        let ratios = self.settings.among.iter().zip(self.contest.miss_ratios());
        own.into_iter()
            .chain(ratios.map(|(spec, ratio)| (spec.name(), *ratio)))
            .map(|(name, value)| Gauge { name, value })
            .collect()
    }

    fn take_notes(&mut self) -> Vec<Note> {
        self.pool.take_notes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auto(text: &str, frames: u32) -> Auto {
        let spec = PolicySpec::parse(text).unwrap();
        Auto::new(Settings::of(spec.parameters()), frames, 0)
    }

    #[test]
    fn candidates_are_lists_even_of_names_that_end_in_a_plus() {
        let names = |text: &str| -> Vec<String> {
            candidates(text).unwrap_or_default().iter().map(PolicySpec::to_string).collect()
        };
        assert_eq!(names("lru+mru"), ["lru", "mru"]);
        assert_eq!(names("fifo2:inactive=1/2+mru:ahead=0"), ["fifo2:inactive=1/2", "mru:ahead=0"]);
        for text in ["", "+", "lru+", "lru++mru", "lru+opt", "lru+nothing"] {
            assert_eq!(names(text), [""; 0], "{text}");
        }
        let seventeen = ["lru"; 17].join("+");
        assert!(candidates(&seventeen).is_none() && candidates(&seventeen[4..]).is_some());
    }

    /// `auto:start=arc` began with lru, as any other word did.
    #[test]
    fn only_a_candidate_is_in_charge_at_the_start() {
        let start = |text: &str| auto(text, 64).settings.start;
        assert_eq!(start("auto:among=lru+wtinylfu"), 0);
        assert_eq!(start("auto:start=home"), 0);
        assert_eq!(start("auto:start=LIRS"), 2);
        assert_eq!(start("auto:start=wtinylfu,among=lru+w-tinylfu"), 1);
        for text in ["auto:among=lru+mru,start=arc", "auto:start=nobody", "auto:start="] {
            let error = PolicySpec::parse(text).unwrap_err().to_string();
            assert!(error.contains("must be home (the first of them) or the name"), "{error}");
            assert!(error.contains("in `among=lru+mru"), "{error}");
        }
        let auto = PolicySpec::parse("auto:among=lru+lirs").unwrap();
        assert!(auto.clone().with("start", "mru").is_err() && auto.with("start", "lirs").is_ok());
    }

    #[test]
    fn small_caches_are_sampled_densely() {
        let shift = |frames| auto("auto", frames).settings.sample_shift(frames);
        assert_eq!([1, 100, 1024, 2047].map(shift), [0; 4]);
        assert_eq!([2048, 4096, 8192, 16384, 1 << 20].map(shift), [1, 2, 3, 4, 4]);
        let mut resized = auto("auto", 1024);
        resized.resized(1 << 20);
        assert_eq!((resized.sample.shift(), resized.contest.frames()), (4, 1 << 16));
    }

    /// Plays pages in `frames` frames and gives the faults.
    fn play(auto: &mut Auto, frames: u32, pages: impl Iterator<Item = u32>) -> u32 {
        let mut faults = 0;
        for page in pages.map(Page) {
            if auto.pool.holds(page) {
                auto.referenced(page);
            } else {
                faults += 1;
                if auto.resident() == frames {
                    auto.victim(Some(page));
                }
                auto.admitted(page, Admission::Demand);
            }
        }
        faults
    }

    #[test]
    fn a_loop_is_found_and_left_with_reasons() {
        let mut auto = auto("auto:among=lru+mru", 100);
        let looping = |from: u32, count: u32| (0..count).map(move |step| from + step % 130);
        play(&mut auto, 100, looping(0, 400));
        assert_eq!(auto.active, 1);
        // From then on a page in four or so: 30 of 130, and what MRU turns over.
        let faults = play(&mut auto, 100, looping(0, 1300).skip(400 % 130).take(1300 - 130));
        assert!(faults < 9 * 35, "{faults}");
        let note = auto.take_notes().remove(0);
        assert!(note.text.starts_with("lru → mru: mru has 0 misses in place of "), "{note:?}");
        assert!(note.at_refs > 130 && note.at_refs <= 400, "{note:?}");
        let gauges: std::collections::BTreeMap<_, _> =
            auto.gauges().into_iter().map(|gauge| (gauge.name, gauge.value)).collect();
        assert!(gauges["lru"] > 0.9 && gauges["mru"] < 0.4, "{gauges:?}");
        assert_eq!((gauges["active_policy"], gauges["sampled_share"]), (1.0, 1.0));
        // A loop over other pages: MRU has stuck with the old ones, and home takes over, and then
        // MRU again, filled with the new ones.
        play(&mut auto, 100, looping(1000, 2600));
        let faults = play(&mut auto, 100, looping(1000, 1300));
        assert!(faults < 10 * 35, "{faults}");
        let changes: Vec<String> =
            auto.take_notes().into_iter().map(|note| note.text[..11].to_owned()).collect();
        assert_eq!(changes, ["mru → lru", "lru → mru"]);
    }

    /// A loop that was known began under MRU in a memory that grew from an eighth of what it was to be: in
    /// the midst of that it was LRU's, and learnt anew.
    #[test]
    fn who_is_in_charge_stays_so_while_memory_grows() {
        let mut auto = auto("auto:among=lru+mru,start=mru", 2_000);
        let mut faults = 0;
        for frames in (2_000..=16_000).step_by(2_000) {
            auto.resized(frames);
            faults = play(&mut auto, frames, (0..20_000).cycle().take(20_000));
        }
        let notes = auto.take_notes();
        assert_eq!((auto.active, notes.len()), (1, 0), "{notes:?}");
        assert!(faults < 7_000, "{faults} in a loop of 20,000 pages");
        // And goes when it does nothing for the program.
        play(&mut auto, 16_000, (0..8_000).cycle().map(|page| 100_000 + page).take(400_000));
        assert_eq!(auto.active, HOME);
    }

    /// Each fourfold growth was the end of all that was known, until memory had been filled anew.
    #[test]
    fn what_is_known_stays_known_while_memory_grows() {
        let mut auto = auto("auto", 2_000);
        play(&mut auto, 2_000, (0..1_500).cycle().take(30_000));
        let shadow = |auto: &Auto| auto.contest.miss_ratios()[HOME];
        assert!(shadow(&auto) < 0.1);
        for frames in [4_000, 16_000, 64_000] {
            auto.resized(frames);
            assert!(auto.watches_others() && !auto.watches_others());
            play(&mut auto, frames, 0..1_500);
            assert!(shadow(&auto) < 0.1, "{frames}: {}", shadow(&auto));
        }
        assert_eq!(auto.sample.shift(), 4);
    }

    /// Two candidates that do the same: no reason to change, however long it goes on.
    #[test]
    fn policies_that_are_alike_do_not_take_turns() {
        let mut auto = auto("auto:among=lru+lru", 64);
        let mut state = 1_u64;
        let random = std::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((state >> 33) % 200) as u32 * ((state >> 50) % 3) as u32
        });
        play(&mut auto, 64, random.take(50_000));
        assert!(auto.take_notes().is_empty());
    }
}
