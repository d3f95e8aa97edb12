//! W-TinyLFU: a window in front of a segmented LRU that frequency guards.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::parameters::{Fraction, Kind, ParameterInfo, Parameters, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::sketch::Sketch;
use crate::{Admission, Page, Policy};

const WINDOW: ParameterInfo = ParameterInfo {
    key: "window",
    meaning: "share of the frames for the window, a plain LRU that newcomers enter (one at least)",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1, 1) },
    default: Value::Fraction(Fraction::new(1, 100)),
};

const PROTECTED: ParameterInfo = ParameterInfo {
    key: "protected",
    meaning: "most of the main part that its protected segment takes; the rest is on probation",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1, 1) },
    default: Value::Fraction(Fraction::new(4, 5)),
};

const SAMPLE: ParameterInfo = ParameterInfo {
    key: "sample",
    meaning: "references after which all frequencies are halved, in multiples of the frames",
    kind: Kind::Integer { least: 1, most: 1000 },
    default: Value::Integer(10),
};

/// What the registry says about W-TinyLFU.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "wtinylfu",
    aliases: &["w-tinylfu", "tinylfu"],
    summary: "what leaves the window stays only if it was used more often than what it displaces",
    helps: "skewed, frequency-driven use that shifts slowly: lookups, caches behind caches",
    hurts: "recency: bursts wider than the window; references that are rarely seen",
    source: Source {
        title: "G. Einziger, R. Friedman, B. Manes: TinyLFU: A Highly Efficient Cache Admission \
                Policy, ACM Transactions on Storage 13(4), 2017",
        section: "3 (TinyLFU: minimal increment, reset), 4 (W-TinyLFU: 1 % window, SLRU main)",
    },
    cost: "O(1) per reference, admission and eviction; halving is O(1) amortised",
    // Nine, and the sketch's 32 to 64 a frame.
    bytes_per_page: 73,
    parameters: &[WINDOW, PROTECTED, SAMPLE],
    runs: Runs::Anywhere(|parameters, frames, seed| {
        Box::new(WTinyLfu::new(frames, seed, parameters))
    }),
};

const IN_WINDOW: u8 = 0;
const IN_PROBATION: u8 = 1;
const IN_PROTECTED: u8 = 2;

/// W-TinyLFU. A newcomer enters the window. When a frame is needed, the window's oldest page and
/// the oldest on probation are compared by their estimated frequencies: the one used more often
/// stays, the one on probation where they are equal. A page used on probation becomes protected,
/// and the oldest protected page returns to probation when those are too many.
///
/// The paper's doorkeeper, which saves sketch memory, is left out. A prefetched page's frequency
/// counts from its first use. When the frames become many times more or fewer, the sketch starts
/// anew; above 4 GiB of frames it grows as these fill.
#[derive(Clone, Debug)]
pub struct WTinyLfu {
    links: Links,
    /// Fronts: the oldest.
    window: List,
    probation: List,
    protected: List,
    segments: Flat<u8>,
    sketch: Sketch,
    seed: u64,
    window_share: Fraction,
    protected_share: Fraction,
    sample_per_frame: u32,
    window_most_pages: u32,
    main_most_pages: u32,
    protected_most_pages: u32,
}

impl WTinyLfu {
    /// Empty segments for a pool of `frames`, with the registry row's parameters. `seed` chooses
    /// the sketch's hash functions.
    pub fn new(frames: u32, seed: u64, parameters: &Parameters) -> Self {
        let sample_per_frame = parameters.integer(SAMPLE.key) as u32;
        let mut policy = Self {
            links: Links::new(),
            window: List::new(),
            probation: List::new(),
            protected: List::new(),
            segments: Flat::new(),
            sketch: Sketch::new(frames, sample_refs(frames, sample_per_frame), seed),
            seed,
            window_share: parameters.fraction(WINDOW.key),
            protected_share: parameters.fraction(PROTECTED.key),
            sample_per_frame,
            window_most_pages: 0,
            main_most_pages: 0,
            protected_most_pages: 0,
        };
        policy.set_targets(frames);
        policy
    }

    fn set_targets(&mut self, frames: u32) {
        self.window_most_pages = self.window_share.of(frames).max(1);
        self.main_most_pages = frames.saturating_sub(self.window_most_pages);
        self.protected_most_pages = self.protected_share.of(self.main_most_pages);
        while self.protected.len() > self.protected_most_pages {
            self.unprotect_oldest();
        }
    }

    fn unprotect_oldest(&mut self) {
        if let Some(page) = self.links.pop_front(&mut self.protected) {
            *self.segments.at(page.index()) = IN_PROBATION;
            self.links.push_back(&mut self.probation, page);
        }
    }

    const fn main_pages(&self) -> u32 {
        self.probation.len() + self.protected.len()
    }

    /// Moves the window's oldest pages on to probation while the window is too long and the main part
    /// has room. Pages that come many at a time, after as many victims, wait in the window where the
    /// main part has none: each of them is to be compared.
    fn bound_window(&mut self) {
        while self.window.len() > self.window_most_pages && self.main_pages() < self.main_most_pages
        {
            let Some(page) = self.links.pop_front(&mut self.window) else { break };
            *self.segments.at(page.index()) = IN_PROBATION;
            self.links.push_back(&mut self.probation, page);
        }
    }
}

impl Policy for WTinyLfu {
    fn admitted(&mut self, page: Page, how: Admission) {
        self.links.push_back(&mut self.window, page);
        *self.segments.slot(page.index()) = IN_WINDOW;
        self.sketch.hold(self.resident());
        if how == Admission::Demand {
            self.sketch.add(page);
        }
        self.bound_window();
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        self.sketch.add(page);
        match *self.segments.at(page.index()) {
            IN_WINDOW => self.links.move_to_back(&mut self.window, page),
            IN_PROTECTED => self.links.move_to_back(&mut self.protected, page),
            _ => {
                self.links.remove(&mut self.probation, page);
                self.links.push_back(&mut self.protected, page);
                *self.segments.at(page.index()) = IN_PROTECTED;
                if self.protected.len() > self.protected_most_pages {
                    self.unprotect_oldest();
                }
            }
        }
    }

    fn removed(&mut self, page: Page) {
        let list = match self.segments.get(page.index()) {
            IN_WINDOW => &mut self.window,
            IN_PROBATION => &mut self.probation,
            _ => &mut self.protected,
        };
        self.links.remove(list, page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        self.bound_window();
        // A window with room for the newcomer has no candidate, where main is what takes too many.
        let has_room = self.window.len() < self.window_most_pages;
        let candidate =
            self.window.front().filter(|_| !has_room || self.main_pages() <= self.main_most_pages);
        let main = match self.probation.is_empty() {
            true => &mut self.protected,
            false => &mut self.probation,
        };
        let Some(oldest) = main.front() else { return self.links.pop_front(&mut self.window) };
        let Some(candidate) = candidate else {
            self.links.remove(main, oldest);
            return Some(oldest);
        };
        if self.sketch.estimate(candidate) <= self.sketch.estimate(oldest) {
            self.links.remove(&mut self.window, candidate);
            return Some(candidate);
        }
        self.links.remove(main, oldest);
        self.links.remove(&mut self.window, candidate);
        self.links.push_back(&mut self.probation, candidate);
        *self.segments.at(candidate.index()) = IN_PROBATION;
        Some(oldest)
    }

    fn resized(&mut self, frames: u32) {
        self.set_targets(frames);
        let sample_refs = sample_refs(frames, self.sample_per_frame);
        if self.sketch.fits(frames) {
            self.sketch.set_sample(sample_refs);
        } else {
            self.sketch = Sketch::new(frames, sample_refs, self.seed);
        }
    }

    fn resident(&self) -> u32 {
        self.window.len() + self.main_pages()
    }
}

const fn sample_refs(frames: u32, per_frame: u32) -> u64 {
    frames as u64 * per_frame as u64
}
