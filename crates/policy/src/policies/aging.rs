//! Linux ageing: the "Linux LRU" of kernel 2.0.
use crate::circle::Circle;
use crate::flat::Flat;
use crate::parameters::{Kind, ParameterInfo, Parameters, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

/// The highest age there can be: an age shares a byte with the referenced bit.
pub(crate) const AGE_MAX: u64 = 127;

/// The age that a page comes with.
pub(crate) const START: ParameterInfo = ParameterInfo {
    key: "start",
    meaning: "age of a page that comes in, at most the youngest",
    kind: Kind::Integer { least: 0, most: AGE_MAX },
    default: Value::Integer(3),
};

/// What a page gains when it was referenced.
pub(crate) const ADVANCE: ParameterInfo = ParameterInfo {
    key: "advance",
    meaning: "what a scan adds to the age of a page referenced since the last",
    kind: Kind::Integer { least: 0, most: AGE_MAX },
    default: Value::Integer(3),
};

/// What a page loses when it was not.
pub(crate) const DECLINE: ParameterInfo = ParameterInfo {
    key: "decline",
    meaning: "what a scan takes from the age of a page not referenced since the last",
    kind: Kind::Integer { least: 1, most: AGE_MAX },
    default: Value::Integer(1),
};

/// The highest age.
pub(crate) const YOUNGEST: ParameterInfo = ParameterInfo {
    key: "youngest",
    meaning: "the highest age; the oldest is 0",
    kind: Kind::Integer { least: 1, most: AGE_MAX },
    default: Value::Integer(20),
};

/// What the registry says about Linux ageing.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "aging",
    aliases: &["linux", "linux-lru"],
    summary: "a scan makes referenced pages younger by 3 and others older by 1; age 0 leaves",
    helps: "as LRU, and pages used again and again outlive a burst of pages used once",
    hurts: "loops larger than memory; pages that were hot long ago leave late",
    source: Source {
        title: "S. Chang, K. Zhang: Application Specific Memory Management, University of \
                California, Berkeley, undated; after Linux 2.0, mm/vmscan.c and linux/swapctl.h",
        section: "4 Page Replacement Algorithms, Linux LRU",
    },
    cost: "one bit per reference; an eviction scans until a page is old: over time at most four \
           steps per reference and seven per admission, at once up to 21 rounds",
    bytes_per_page: 2,
    parameters: &[START, ADVANCE, DECLINE, YOUNGEST],
    runs: Runs::Anywhere(|parameters, _, _| {
        let (advance, decline) = (age(parameters, ADVANCE), age(parameters, DECLINE));
        let rule = rule(age(parameters, YOUNGEST), advance, decline);
        Box::new(Aging::new(age(parameters, START), rule))
    }),
};

/// The rule of Linux 2.0: `advance` more for a page that was referenced, and `decline` less for
/// another.
pub fn rule(youngest: u8, advance: u8, decline: u8) -> AgeRule {
    AgeRule::new(youngest, |age| age + advance, |age| age.saturating_sub(decline))
}

/// The value of a parameter that is an age.
pub(crate) fn age(parameters: &Parameters, info: ParameterInfo) -> u8 {
    // Within AGE_MAX by its kind.
    parameters.integer(info.key) as u8
}

/// What becomes of a page's age when the hand passes it.
#[derive(Clone, Debug)]
pub struct AgeRule {
    /// New age by old age, for a page not referenced since the last pass, and for one that was.
    after: [[u8; AGE_MAX as usize + 1]; 2],
    youngest: u8,
}

impl AgeRule {
    /// Ages from 0 to `youngest`. `referenced` and `unreferenced` give the age after the pass for
    /// the age before, at most 127; the first is limited to the youngest, and the second made to
    /// fall by one at least, or a scan might not end.
    ///
    /// # Panics
    /// If `youngest` is above 127.
    pub fn new(
        youngest: u8,
        referenced: impl Fn(u8) -> u8,
        unreferenced: impl Fn(u8) -> u8,
    ) -> Self {
        assert!(u64::from(youngest) <= AGE_MAX, "an age of {youngest} does not fit");
        let mut after = [[0; AGE_MAX as usize + 1]; 2];
        for age in 0..=AGE_MAX as u8 {
            after[0][usize::from(age)] = unreferenced(age).min(age.saturating_sub(1));
            after[1][usize::from(age)] = referenced(age).min(youngest);
        }
        Self { after, youngest }
    }

    /// The age after a pass.
    #[inline]
    pub(crate) fn apply(&self, age: u8, was_referenced: bool) -> u8 {
        self.after[usize::from(was_referenced)][usize::from(age)]
    }

    /// The age that a page comes with, if `start` is asked for.
    pub(crate) const fn start(&self, start: u8) -> u8 {
        if start < self.youngest { start } else { self.youngest }
    }
}

/// The low bit of a mark; the age is above it.
const REFERENCED: u8 = 1;

/// Ageing by the scan of Linux 2.0: a hand goes round the pages in address order; a page that was
/// referenced since the hand last passed gets younger, another one older, and one that comes to
/// age 0 that way leaves.
///
/// The kernel scans when it wants free pages, and goes on where it stopped. Here a victim is what
/// it wants: each `victim` call moves the hand on from where it is until a page leaves, and
/// nothing ages in between.
///
/// An age sees one reference per pass however many there were, as the kernel sees the referenced
/// bit; so references may be sampled. A page that was demanded has its bit set from the start,
/// because the instruction that faulted runs again; one that was prefetched has not.
#[derive(Clone, Debug)]
pub struct Aging {
    circle: Circle,
    marks: Flat<u8>,
    rule: AgeRule,
    start: u8,
}

impl Aging {
    /// No pages. `start` is the age that pages come with.
    pub fn new(start: u8, rule: AgeRule) -> Self {
        let start = rule.start(start);
        Self { circle: Circle::new(), marks: Flat::new(), rule, start }
    }
}

impl Policy for Aging {
    fn admitted(&mut self, page: Page, how: Admission) {
        self.circle.insert(page);
        let referenced = u8::from(how == Admission::Demand) * REFERENCED;
        *self.marks.slot(page.index()) = self.start << 1 | referenced;
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        *self.marks.at(page.index()) |= REFERENCED;
    }

    fn removed(&mut self, page: Page) {
        self.circle.remove(page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        // Ends: after one round no bit is set, and then every round takes from every age.
        loop {
            let page = self.circle.pass()?;
            let mark = self.marks.at(page.index());
            let was_referenced = *mark & REFERENCED != 0;
            let age = self.rule.apply(*mark >> 1, was_referenced);
            *mark = age << 1;
            if age == 0 && !was_referenced {
                self.circle.remove(page);
                return Some(page);
            }
        }
    }

    fn resized(&mut self, _frames: u32) {}

    fn resident(&self) -> u32 {
        self.circle.len()
    }
}
