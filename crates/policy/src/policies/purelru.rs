//! Ageing that approximates pure LRU.
use crate::policies::aging::{AgeRule, Aging, DECLINE, START, YOUNGEST, age};
use crate::registry::{PolicyInfo, Runs, Source};

/// What the registry says about pure LRU by ageing.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "purelru",
    aliases: &["pure-lru"],
    summary: "ageing whose referenced pages are the youngest at once, whatever they were before",
    helps: "as LRU, where a reference can only set a bit: 20 steps of age stand for its order",
    hurts: "as LRU: loops and scans larger than memory",
    source: Source {
        title: "S. Chang, K. Zhang: Application Specific Memory Management, University of \
                California, Berkeley, undated",
        section: "4 Page Replacement Algorithms, pure LRU",
    },
    cost: "one bit per reference; an eviction scans until a page is old: over time at most 21 \
           steps per reference and admission, at once up to 21 rounds",
    bytes_per_page: 2,
    parameters: &[START, DECLINE, YOUNGEST],
    runs: Runs::Anywhere(|parameters, _, _| {
        let rule = rule(age(parameters, YOUNGEST), age(parameters, DECLINE));
        Box::new(Aging::new(age(parameters, START), rule))
    }),
};

/// The rule for [`Aging`]: the youngest age for a page that was referenced, and `decline` less
/// for another.
pub fn rule(youngest: u8, decline: u8) -> AgeRule {
    AgeRule::new(youngest, |_| youngest, |age| age.saturating_sub(decline))
}
