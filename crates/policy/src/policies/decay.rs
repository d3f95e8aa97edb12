//! Ageing with exponential decay.
use crate::parameters::{Fraction, Kind, ParameterInfo, Value};
use crate::policies::aging::{ADVANCE, AgeRule, Aging, START, YOUNGEST, age};
use crate::registry::{PolicyInfo, Runs, Source};

const KEEP: ParameterInfo = ParameterInfo {
    key: "keep",
    meaning: "share of its age that a page not referenced since the last scan keeps, rounded \
              down, and less by one at least",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1, 1) },
    // The paper gives none; a half is what Linux 2.4 took, where its ageing was exponential.
    default: Value::Fraction(Fraction::new(1, 2)),
};

/// What the registry says about exponential decay.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "decay",
    aliases: &["exponential-decay"],
    summary: "ageing whose unreferenced pages lose half their age a scan, not a fixed step",
    helps: "working sets that change fast: what is not used any more is gone soon",
    hurts: "pages used again and again, but rarely; loops larger than memory",
    source: Source {
        title: "S. Chang, K. Zhang: Application Specific Memory Management, University of \
                California, Berkeley, undated",
        section: "4 Page Replacement Algorithms, Exponential Age Decay LRU",
    },
    cost: "one bit per reference; an eviction scans until a page is old: over time at most three \
           steps per reference and four per admission, at once up to 6 rounds",
    bytes_per_page: 2,
    parameters: &[START, ADVANCE, KEEP, YOUNGEST],
    runs: Runs::Anywhere(|parameters, _, _| {
        let advance = age(parameters, ADVANCE);
        let rule = rule(age(parameters, YOUNGEST), advance, parameters.fraction(KEEP.key));
        Box::new(Aging::new(age(parameters, START), rule))
    }),
};

/// The rule for [`Aging`]: `advance` more for a page that was referenced, and `keep` of its age
/// for another.
pub fn rule(youngest: u8, advance: u8, keep: Fraction) -> AgeRule {
    // A share of an age, for shares up to one, is an age.
    AgeRule::new(youngest, |age| age + advance, |age| keep.of(u32::from(age)) as u8)
}
