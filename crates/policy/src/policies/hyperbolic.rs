//! Hyperbolic caching.
use crate::flat::Flat;
use crate::members::Members;
use crate::parameters::{Kind, ParameterInfo, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

const SAMPLE: ParameterInfo = ParameterInfo {
    key: "sample",
    meaning: "pages drawn at random for each victim, which is the worst of them",
    kind: Kind::Integer { least: 1, most: 1024 },
    default: Value::Integer(64),
};

/// What the registry says about hyperbolic caching.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "hyperbolic",
    aliases: &[],
    summary: "evicts the page used least per time since it came in, of a random sample",
    helps: "skewed use where popularity fades: newcomers get their time to prove themselves",
    hurts: "phases: what was used much long ago stays for as long again",
    source: Source {
        title: "A. Blankstein, S. Sen, M. J. Freedman: Hyperbolic Caching: Flexible Caching for \
                Web Applications, USENIX ATC 2017",
        section: "2.1 (priority), 3 (random sampling)",
    },
    cost: "one counter per reference; O(sample) per eviction",
    bytes_per_page: 20,
    parameters: &[SAMPLE],
    runs: Runs::Anywhere(|parameters, _, seed| {
        Box::new(Hyperbolic::new(parameters.integer("sample") as u32, seed))
    }),
};

/// Hyperbolic caching: a page's priority is its uses divided by the references since it came in;
/// the lowest of a sample leaves, of equals the one that came in first. With no more pages resident
/// than the sample has, all are looked at.
///
/// A prefetched page counts as used once, as one that was faulted in does: it would be the first
/// to leave otherwise.
#[derive(Clone, Debug)]
pub struct Hyperbolic {
    resident: Members,
    uses: Flat<u32>,
    /// When a page came in, in references.
    admitted_refs: Flat<u64>,
    refs: u64,
    sample: u32,
}

impl Hyperbolic {
    /// No pages. Each victim is the worst of `sample` pages, drawn by a generator from `seed`.
    pub fn new(sample: u32, seed: u64) -> Self {
        Self {
            resident: Members::new(seed),
            uses: Flat::new(),
            admitted_refs: Flat::new(),
            refs: 0,
            sample,
        }
    }

    /// Which of two leaves first.
    fn worse(&self, one: Page, other: Page) -> Page {
        let of = |page: Page| {
            let admitted = self.admitted_refs.get(page.index());
            // The reference that needs the victim counts.
            let age = u128::from(self.refs - admitted + 1);
            (u128::from(self.uses.get(page.index())), age, admitted)
        };
        let ((uses, age, admitted), (other_uses, other_age, other_admitted)) = (of(one), of(other));
        // Of two fractions, by their cross products.
        let order = (uses * other_age).cmp(&(other_uses * age));
        if order.then(admitted.cmp(&other_admitted)).is_le() { one } else { other }
    }
}

impl Policy for Hyperbolic {
    fn admitted(&mut self, page: Page, _how: Admission) {
        self.resident.insert(page);
        self.refs += 1;
        *self.uses.slot(page.index()) = 1;
        *self.admitted_refs.slot(page.index()) = self.refs;
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        self.refs += 1;
        let uses = self.uses.at(page.index());
        *uses = uses.saturating_add(1);
    }

    fn removed(&mut self, page: Page) {
        self.resident.remove(page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        let mut victim = self.resident.draw()?;
        if self.resident.len() <= self.sample {
            for page in self.resident.pages() {
                victim = self.worse(victim, *page);
            }
        } else {
            for _ in 1..self.sample {
                let drawn = self.resident.draw()?;
                victim = self.worse(victim, drawn);
            }
        }
        self.resident.remove(victim);
        Some(victim)
    }

    fn resized(&mut self, _frames: u32) {}

    fn resident(&self) -> u32 {
        self.resident.len()
    }
}
