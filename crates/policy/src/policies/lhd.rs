//! LHD: least hit density.
use crate::flat::Flat;
use crate::members::Members;
use crate::parameters::{Fraction, Kind, ParameterInfo, Parameters, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

const SAMPLE: ParameterInfo = ParameterInfo {
    key: "sample",
    meaning: "pages drawn at random for each victim, which is the worst of them",
    kind: Kind::Integer { least: 1, most: 1024 },
    default: Value::Integer(32),
};

const ADMISSIONS: ParameterInfo = ParameterInfo {
    key: "admissions",
    meaning: "newcomers that look like victims and are considered besides",
    kind: Kind::Integer { least: 0, most: 1024 },
    default: Value::Integer(8),
};

const EXPLORERS: ParameterInfo = ParameterInfo {
    key: "explorers",
    meaning: "share of the frames for pages that stay whatever their rank, to learn from",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1, 1) },
    default: Value::Fraction(Fraction::new(1, 100)),
};

/// Computing ranks is not for free: some hundred thousand steps.
const PERIOD_LEAST_REFS: u64 = 1024;

const PERIOD: ParameterInfo = ParameterInfo {
    key: "period",
    meaning: "references after which ranks are computed anew; the first periods are shorter, as \
              many references as there are frames (1024 at least), then twice as many each",
    kind: Kind::Integer { least: PERIOD_LEAST_REFS, most: 1 << 40 },
    default: Value::Integer(1 << 20),
};

/// What the registry says about LHD.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "lhd",
    aliases: &[],
    summary: "evicts the page with the fewest hits to come for the time it will take, as learned",
    helps: "long runs with stable habits of reuse, of any shape: loops, scans and skew together",
    hurts: "short runs, fast changes, references rarely seen: nothing to learn from",
    source: Source {
        title: "N. Beckmann, H. Chen, A. Cidon: LHD: Improving Cache Hit Rate by Maximizing Hit \
                Density, NSDI 2018",
        section: "3 (hit density), 4.1 to 4.3 (classes, sampling, coarsened ages, explorers)",
    },
    cost: "O(1) per reference; O(sample) per eviction; up to 320,000 steps per period",
    // And 12 bytes for each age of each class: up to 3.8 MB.
    bytes_per_page: 25,
    parameters: &[SAMPLE, ADMISSIONS, EXPLORERS, PERIOD],
    runs: Runs::Anywhere(|parameters, frames, seed| Box::new(Lhd::new(frames, seed, parameters))),
};

/// Classes by the sum of a page's last two reuse ages: about its logarithm.
const CLASSES: usize = 16;
/// Coarsened ages that are told apart.
const AGES_MOST: u32 = 20_000;
/// Ages reach to so many times the frames; older pages leave first.
const REACH_FRAMES: u64 = 100;
/// What the counts of past periods weigh in the next.
const DECAY: f32 = 0.9;
/// One touch in so many makes an explorer, while there is room for one.
const EXPLORE_ONE_IN: u64 = 32;
/// Periods after which nothing is explored any more.
const EXPLORED_PERIODS: u32 = 50;

/// What is known of pages of one class at one age.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    hits: f32,
    evictions: f32,
    density: f32,
}

/// LHD: a page's rank is its hit density, the hits to expect of pages of its class at its age,
/// divided by the time that they will stay for it. A page's class is how old it was when it was
/// used the last two times; its age is in references since its last use. Hits and evictions are
/// counted by class and age, and now and then turned into densities.
///
/// All pages being of one size, and of one application, the paper's classes by those are not
/// needed. Ages are coarsened by the number of frames from the start, where the paper's code
/// measures first. A prefetched page is as one just faulted in.
#[derive(Clone, Debug)]
pub struct Lhd {
    resident: Members,
    used_refs: Flat<u64>,
    /// Coarse ages at the last two uses, the last first.
    hit_ages: Flat<[u32; 2]>,
    explorers: Flat<u8>,
    cells: Vec<Cell>,
    /// Coarse ages that are told apart: cells of a class.
    ages: u32,
    age_shift: u32,
    refs: u64,
    next_period_refs: u64,
    period_refs: u64,
    period_most_refs: u64,
    periods: u32,
    sample: u32,
    /// A ring of newcomers that look like victims.
    suspects: Vec<Option<Page>>,
    next_suspect: usize,
    victim_density: f32,
    explorer_share: Fraction,
    explorers_most: u32,
    explorer_pages: u32,
    frames: u32,
}

impl Lhd {
    /// No pages, for a pool of `frames`, with the registry row's parameters. `seed` feeds the
    /// sampling and what is explored.
    pub fn new(frames: u32, seed: u64, parameters: &Parameters) -> Self {
        let mut policy = Self {
            resident: Members::new(seed),
            used_refs: Flat::new(),
            hit_ages: Flat::new(),
            explorers: Flat::new(),
            cells: Vec::new(),
            ages: 0,
            age_shift: 0,
            refs: 0,
            next_period_refs: 0,
            period_refs: 0,
            period_most_refs: parameters.integer(PERIOD.key),
            periods: 0,
            sample: parameters.integer(SAMPLE.key) as u32,
            suspects: vec![None; parameters.integer(ADMISSIONS.key) as usize],
            next_suspect: 0,
            victim_density: 0.0,
            explorer_share: parameters.fraction(EXPLORERS.key),
            explorers_most: 0,
            explorer_pages: 0,
            frames: 0,
        };
        policy.start(frames);
        policy
    }

    /// Forgets what was learned, and sets the scale of ages by the frames.
    fn start(&mut self, frames: u32) {
        let reach = (u64::from(frames) * REACH_FRAMES).max(2);
        self.age_shift = (reach / u64::from(AGES_MOST)).next_power_of_two().trailing_zeros();
        self.ages = (reach >> self.age_shift).min(u64::from(AGES_MOST)) as u32;
        // Until something is known: the shorter the last ages and the younger, the better.
        self.cells = (0..CLASSES as u32)
            .flat_map(|class| (0..self.ages).map(move |age| (class, age)))
            .map(|(class, age)| Cell {
                density: (class + 1) as f32 / (age + 1) as f32,
                ..Cell::default()
            })
            .collect();
        self.frames = frames;
        self.explorers_most = self.explorer_share.of(frames);
        self.period_refs = u64::from(frames).max(PERIOD_LEAST_REFS).min(self.period_most_refs);
        self.next_period_refs = self.refs + self.period_refs;
        self.periods = 0;
        self.victim_density = 0.0;
    }

    fn age(&self, page: Page) -> u32 {
        let age = (self.refs - self.used_refs.get(page.index())) >> self.age_shift;
        age.min(u64::from(self.ages) - 1) as u32
    }

    fn class(&self, page: Page) -> u32 {
        let [last, before] = self.hit_ages.get(page.index());
        let age = last.saturating_add(before);
        // How often the age can be doubled before it reaches the end of ages.
        let doublings = (self.ages.div_ceil(age.max(1))).next_power_of_two().trailing_zeros();
        if age == 0 { CLASSES as u32 - 1 } else { doublings.min(CLASSES as u32 - 1) }
    }

    fn cell(&self, page: Page) -> usize {
        (self.class(page) * self.ages + self.age(page)) as usize
    }

    fn density(&self, page: Page) -> f32 {
        if self.age(page) == self.ages - 1 {
            return f32::MIN;
        }
        let explored = f32::from(self.explorers.get(page.index()));
        self.cells[self.cell(page)].density + explored
    }

    /// Counts a use as this page's latest.
    fn used(&mut self, page: Page) {
        self.stop_exploring(page);
        *self.used_refs.slot(page.index()) = self.refs;
        self.refs += 1;
        let explores = self.resident.below(EXPLORE_ONE_IN) == 0
            && self.explorer_pages < self.explorers_most
            && self.periods < EXPLORED_PERIODS;
        if explores {
            *self.explorers.slot(page.index()) = 1;
            self.explorer_pages += 1;
        }
        if self.refs >= self.next_period_refs {
            self.learn();
        }
    }

    fn stop_exploring(&mut self, page: Page) {
        let explores = self.explorers.slot(page.index());
        self.explorer_pages -= u32::from(*explores);
        *explores = 0;
    }

    /// Turns counts into densities: the hits at this age or later, over the time that all pages
    /// that came to this age stayed from it on.
    #[cold]
    fn learn(&mut self) {
        for class in self.cells.chunks_mut(self.ages as usize) {
            let (mut hits, mut events, mut lifetime) = (0.0_f32, 0.0_f32, 0.0_f32);
            for cell in class.iter_mut().rev() {
                cell.hits *= DECAY;
                cell.evictions *= DECAY;
                hits += cell.hits;
                events += cell.hits + cell.evictions;
                lifetime += events;
                cell.density = if events > 1e-5 { hits / lifetime } else { 0.0 };
            }
        }
        self.periods += 1;
        self.period_refs = (self.period_refs * 2).min(self.period_most_refs);
        self.next_period_refs = self.refs + self.period_refs;
    }

    fn take(&mut self, page: Page) {
        self.resident.remove(page);
        self.stop_exploring(page);
    }
}

impl Policy for Lhd {
    fn admitted(&mut self, page: Page, _how: Admission) {
        self.resident.insert(page);
        // Not used before: as if after the longest time.
        *self.hit_ages.slot(page.index()) = [0, self.ages];
        self.used(page);
        if !self.suspects.is_empty() && self.density(page) < self.victim_density {
            self.suspects[self.next_suspect] = Some(page);
            self.next_suspect = (self.next_suspect + 1) % self.suspects.len();
        }
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        let cell = self.cell(page);
        self.cells[cell].hits += 1.0;
        let age = self.age(page);
        let ages = self.hit_ages.at(page.index());
        *ages = [age, ages[0]];
        self.used(page);
    }

    fn removed(&mut self, page: Page) {
        self.take(page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        let mut victim = self.resident.draw()?;
        let mut least = self.density(victim);
        let mut consider = |policy: &Self, page| {
            let density = policy.density(page);
            if density < least {
                (victim, least) = (page, density);
            }
        };
        if self.resident.len() <= self.sample {
            self.resident.pages().iter().for_each(|page| consider(self, *page));
        } else {
            for _ in 1..self.sample {
                let page = self.resident.draw()?;
                consider(self, page);
            }
        }
        for page in self.suspects.iter().flatten().filter(|page| self.resident.contains(**page)) {
            consider(self, *page);
        }
        self.victim_density = DECAY * self.victim_density + (1.0 - DECAY) * least.max(0.0);
        let cell = self.cell(victim);
        self.cells[cell].evictions += 1.0;
        self.take(victim);
        Some(victim)
    }

    /// What was learned is in ages by the number of frames: many times more or fewer, and it starts
    /// anew.
    fn resized(&mut self, frames: u32) {
        if frames / 4 > self.frames || self.frames / 4 > frames {
            self.start(frames);
        }
        self.explorers_most = self.explorer_share.of(frames);
    }

    fn resident(&self) -> u32 {
        self.resident.len()
    }
}
