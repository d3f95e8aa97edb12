//! The two registry rows, and what their parameters mean to each module.
use crate::cost::REQUEST_PAGES;
use crate::parameters::{Fraction, Kind, ParameterInfo, Parameters, Value};
use crate::registry::{PolicyInfo, Runs, Source};

use super::{Time, Ubm};

/// Of the detection module.
#[derive(Clone, Copy, Debug)]
pub(super) struct DetectSettings {
    pub(super) consecutive: u32,
    pub(super) gap_pages: u32,
    pub(super) window_refs: u32,
    pub(super) weight: f32,
}

/// Of the allocation module.
#[derive(Clone, Copy, Debug)]
pub(super) struct GainSettings {
    pub(super) fit: Fit,
    pub(super) window_frames: u32,
}

/// Between which sizes the lifetime function is fitted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fit {
    /// Two, as shares of the frames; it holds for all sizes.
    Two { small: Fraction, large: Fraction },
    /// Each power of two's share and the next: it holds between them.
    Local,
}

/// How the other partition is ordered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Other {
    Lru,
    Lru2,
    Lrfu,
}

impl Other {
    /// A page's rank when it is referenced, from the one before: the lowest goes first.
    pub(super) fn rank(self, rank: f64, time: Time, before: Option<u64>) -> f64 {
        match (self, before) {
            (Other::Lru, _) => time.refs as f64,
            // The last reference but one; pages without one go first, in order of recency.
            (Other::Lru2, Some(before)) => before as f64,
            (Other::Lru2, None) => time.refs as f64 - f64::from(u32::MAX) * 65536.0,
            // The logarithm of the combined recency and frequency value, made independent of
            // time: all of them halve in the same time, so their order stays.
            (Other::Lrfu, Some(_)) => {
                (1.0 + (rank - time.half_lives).exp2()).log2() + time.half_lives
            }
            (Other::Lrfu, None) => time.half_lives,
        }
    }
}

/// All of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) detect: DetectSettings,
    pub(super) gain: GainSettings,
    pub(super) other: Other,
    /// Of LRFU, in frames' worth of references.
    pub(super) half_life_frames: f64,
    /// Periods without a walk after which a loop's period is taken to be longer; 0 for never.
    pub(super) age_periods: f32,
    /// Of the frames, for pages fetched ahead.
    pub(super) ahead: Fraction,
    /// Of the frames: loops with a period below are left to the other partition.
    pub(super) short: Fraction,
    /// Whether sequences are kept as far as they turn into loops.
    pub(super) admits: bool,
    /// Hits behind LRU at which LRU is imitated, as a share of the frames; `None` for never.
    pub(super) regret: Option<Fraction>,
    /// What a request costs beside what is read, in pages read.
    pub(super) request_pages: f64,
}

impl Settings {
    fn read(parameters: &Parameters) -> Self {
        let integer = |key| parameters.integer(key) as u32;
        Self {
            detect: DetectSettings {
                consecutive: integer("consecutive"),
                gap_pages: integer("gap"),
                window_refs: integer("window"),
                weight: parameters.fraction("weight").to_f64() as f32,
            },
            gain: GainSettings {
                fit: match parameters.choice("fit") {
                    "two" => Fit::Two {
                        small: parameters.fraction("small"),
                        large: parameters.fraction("large"),
                    },
                    _ => Fit::Local,
                },
                window_frames: integer("observed"),
            },
            other: match parameters.choice("other") {
                "lru" => Other::Lru,
                "lru2" => Other::Lru2,
                _ => Other::Lrfu,
            },
            half_life_frames: parameters.fraction("half_life").to_f64(),
            age_periods: parameters.fraction("age").to_f64() as f32,
            ahead: parameters.fraction("ahead"),
            short: parameters.fraction("short"),
            admits: parameters.choice("admit") == "likely",
            regret: Some(parameters.fraction("regret"))
                .filter(|share| *share > Fraction::new(0, 1)),
            request_pages: parameters.integer("request") as f64,
        }
    }
}

const fn integer(
    key: &'static str,
    meaning: &'static str,
    (least, most): (u64, u64),
    default: u64,
) -> ParameterInfo {
    let kind = Kind::Integer { least, most };
    ParameterInfo { key, meaning, kind, default: Value::Integer(default) }
}

const fn share(
    key: &'static str,
    meaning: &'static str,
    (least, most): (Fraction, Fraction),
    default: Fraction,
) -> ParameterInfo {
    let kind = Kind::Fraction { least, most };
    ParameterInfo { key, meaning, kind, default: Value::Fraction(default) }
}

const fn choice(
    key: &'static str,
    meaning: &'static str,
    words: &'static [&'static str],
    default: &'static str,
) -> ParameterInfo {
    ParameterInfo { key, meaning, kind: Kind::Choice(words), default: Value::Choice(default) }
}

const ZERO: Fraction = Fraction::new(0, 1);
const ONE: Fraction = Fraction::new(1, 1);

/// Defaults that the two rows differ in.
struct Defaults {
    consecutive: u64,
    gap: u64,
    age: Fraction,
    short: Fraction,
    other: &'static str,
    fit: &'static str,
    admit: &'static str,
    regret: Fraction,
    request: u64,
}

const fn parameters(defaults: &Defaults) -> [ParameterInfo; 16] {
    [
        integer(
            "consecutive",
            "references one behind the other that make a sequence",
            (2, 32),
            defaults.consecutive,
        ),
        integer("gap", "pages that a sequence may skip at a time", (0, 64), defaults.gap),
        integer(
            "window",
            "references by others after which a sequence is not gone on with",
            (1, 256),
            64,
        ),
        share(
            "weight",
            "weight of the last measurement in a period's exponential average",
            (Fraction::new(1, 100), ONE),
            Fraction::new(1, 2),
        ),
        share(
            "small",
            "smaller of the sizes, as shares of the frames, at which hits of other \
                        references are measured",
            (ZERO, ONE),
            Fraction::new(1, 40),
        ),
        share("large", "larger of these sizes", (ZERO, ONE), Fraction::new(1, 4)),
        integer(
            "observed",
            "references over which hit ratios are measured, in multiples of the frames",
            (1, 1024),
            8,
        ),
        choice(
            "other",
            "order of other pages: by recency, by the last reference but one, or by recency and \
             frequency",
            &["lru", "lru2", "lrfu"],
            defaults.other,
        ),
        share(
            "half_life",
            "of lrfu: references after which one counts half, in multiples of the frames",
            (Fraction::new(1, 100), Fraction::new(100, 1)),
            Fraction::new(1, 1),
        ),
        share(
            "age",
            "periods without a walk after which a loop counts as one with a longer period; 0 for never",
            (ZERO, Fraction::new(100, 1)),
            defaults.age,
        ),
        share(
            "ahead",
            "share of the frames that prefetched pages not yet seen used may hold before the \
             oldest of them counts as used",
            (ZERO, ONE),
            Fraction::new(1, 32),
        ),
        choice(
            "fit",
            "the lifetime function is fitted to two sizes, or to each two neighbours of eight",
            &["two", "local"],
            defaults.fit,
        ),
        choice(
            "admit",
            "sequential pages always go first, or stay where such pages lately came again soon",
            &["never", "likely"],
            defaults.admit,
        ),
        share(
            "regret",
            "hits behind LRU, as a share of the frames, after which LRU is imitated for a while; 0 \
             for never",
            (ZERO, ONE),
            defaults.regret,
        ),
        share(
            "short",
            "a loop with a period below this share of the frames is left to the other pages, and a \
             sequence read again within it may be kept there",
            (ZERO, Fraction::new(16, 1)),
            defaults.short,
        ),
        integer(
            "request",
            "what a request costs the disk beside the pages read, in pages: so much more other pages \
             are worth than those that are read many at a time; 0 for all alike",
            (0, 1024),
            defaults.request,
        ),
    ]
}

const SOURCE: Source = Source {
    title: "J. M. Kim, J. Choi, J. Kim, S. H. Noh, S. L. Min, Y. Cho, C. S. Kim: A Low-Overhead \
            High-Performance Unified Buffer Management Scheme that Exploits Sequential and \
            Looping References, OSDI 2000",
    section: "3",
};

static PUBLISHED: [ParameterInfo; 16] = parameters(&Defaults {
    consecutive: 9,
    gap: 6,
    age: ZERO,
    short: ZERO,
    other: "lru",
    fit: "two",
    admit: "never",
    regret: ZERO,
    request: 0,
});

static IMPROVED: [ParameterInfo; 16] = parameters(&Defaults {
    consecutive: 8,
    gap: 5,
    age: Fraction::new(2, 1),
    short: Fraction::new(3, 4),
    other: "lrfu",
    fit: "local",
    admit: "likely",
    regret: Fraction::new(1, 64),
    request: REQUEST_PAGES,
});

fn build(parameters: &Parameters, frames: u32, _seed: u64) -> Box<dyn crate::Policy> {
    Box::new(Ubm::new(Settings::read(parameters), frames))
}

/// What the registry says about UBM as published.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "ubm",
    aliases: &["unified-buffer-management"],
    summary: "finds sequences and loops; each kind of page has its partition, sized by what one \
              more page would gain",
    helps: "programs that read the same files again and again, beside others that do not",
    hurts: "loops that end and leave their pages behind; skewed use without any order",
    source: SOURCE,
    cost: "O(1) per reference, admission and eviction",
    bytes_per_page: 40,
    parameters: &PUBLISHED,
    runs: Runs::Anywhere(build),
};

/// What the registry says about the improved UBM.
pub const PLUS_INFO: PolicyInfo = PolicyInfo {
    name: "ubm+",
    aliases: &["ubm-plus"],
    summary: "UBM whose loops end, whose sequences may stay, and that falls back on LRU where \
              LRU is better",
    helps: "mixes of loops, scans and skewed use that are not known in advance",
    hurts: "access without any order, where it costs more than LRU and gains nothing",
    source: SOURCE,
    cost: "O(log n) per reference, admission and eviction",
    bytes_per_page: 69,
    parameters: &IMPROVED,
    runs: Runs::Anywhere(build),
};
