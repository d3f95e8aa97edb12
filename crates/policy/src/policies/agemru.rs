//! Most recently used, by age.
use crate::circle::Circle;
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::parameters::{Kind, ParameterInfo, Value};
use crate::policies::aging::{self, ADVANCE, AGE_MAX, AgeRule, DECLINE, START, YOUNGEST, age};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

const SCAN_PAGES: ParameterInfo = ParameterInfo {
    key: "scan_pages",
    meaning: "pages that the hand passes at each eviction",
    kind: Kind::Integer { least: 0, most: 1024 },
    // Linux ageing passes a page that was fetched and never used as often before it leaves.
    default: Value::Integer(3),
};

/// What the registry says about MRU by age.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "agemru",
    aliases: &["age-mru", "clock-mru"],
    summary: "ages as Linux does and evicts a page of the youngest age, the latest to reach it",
    helps: "loops over more data than memory, where a reference can only set a bit",
    hurts: "anything with a moving working set: old pages never leave",
    source: Source {
        title: "S. Chang, K. Zhang: Application Specific Memory Management, University of \
                California, Berkeley, undated",
        section: "4 Page Replacement Algorithms, Clock MRU",
    },
    cost: "one bit per reference; O(1) per admission; scan_pages steps per eviction",
    bytes_per_page: 10,
    parameters: &[START, ADVANCE, DECLINE, YOUNGEST, SCAN_PAGES],
    runs: Runs::Anywhere(|parameters, _, _| {
        let (advance, decline) = (age(parameters, ADVANCE), age(parameters, DECLINE));
        let rule = aging::rule(age(parameters, YOUNGEST), advance, decline);
        // Within 1024 by its kind.
        let scan_pages = parameters.integer(SCAN_PAGES.key) as u32;
        Box::new(AgeMru::new(age(parameters, START), rule, scan_pages))
    }),
};

/// The low bit of a mark; the age is above it.
const REFERENCED: u8 = 1;
const AGES: usize = AGE_MAX as usize + 1;

/// MRU by age: a hand gives the pages ages as in [`Aging`](crate::policies::aging::Aging), and the
/// victim is a page of the youngest age that there is, the latest to reach that age.
///
/// The paper says of its choice only that "younger pages are much more likely to be replaced than
/// the older pages", over the same ages. A scan that ends where an old page leaves cannot serve
/// here, so the hand moves a fixed number of pages at each eviction, and not at all in between.
///
/// An age sees one reference per pass, so references may be sampled. A prefetched page comes with
/// age 0: it was not used yet, and must not leave for being the newest.
#[derive(Clone, Debug)]
pub struct AgeMru {
    circle: Circle,
    links: Links,
    by_age: [List; AGES],
    /// Bit n: whether any page has age n.
    ages_present: u128,
    marks: Flat<u8>,
    rule: AgeRule,
    start: u8,
    scan_pages: u32,
}

impl AgeMru {
    /// No pages. `start` is the age that demanded pages come with; the hand passes `scan_pages`
    /// at each eviction.
    pub fn new(start: u8, rule: AgeRule, scan_pages: u32) -> Self {
        let start = rule.start(start);
        Self {
            circle: Circle::new(),
            links: Links::new(),
            by_age: [const { List::new() }; AGES],
            ages_present: 0,
            marks: Flat::new(),
            rule,
            start,
            scan_pages,
        }
    }

    fn enter(&mut self, age: u8, page: Page) {
        self.links.push_back(&mut self.by_age[usize::from(age)], page);
        self.ages_present |= 1 << age;
    }

    fn leave(&mut self, age: u8, page: Page) {
        let list = &mut self.by_age[usize::from(age)];
        self.links.remove(list, page);
        if list.is_empty() {
            self.ages_present &= !(1 << age);
        }
    }

    fn scan(&mut self) {
        for _ in 0..self.scan_pages.min(self.circle.len()) {
            let Some(page) = self.circle.pass() else { break };
            let mark = self.marks.at(page.index());
            let before = *mark >> 1;
            let after = self.rule.apply(before, *mark & REFERENCED != 0);
            *mark = after << 1;
            if after != before {
                self.leave(before, page);
                self.enter(after, page);
            }
        }
    }
}

impl Policy for AgeMru {
    fn admitted(&mut self, page: Page, how: Admission) {
        self.circle.insert(page);
        let (age, mark) = match how {
            Admission::Demand => (self.start, self.start << 1 | REFERENCED),
            Admission::Prefetch => (0, 0),
        };
        *self.marks.slot(page.index()) = mark;
        self.enter(age, page);
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        *self.marks.at(page.index()) |= REFERENCED;
    }

    fn removed(&mut self, page: Page) {
        self.circle.remove(page);
        self.leave(self.marks.get(page.index()) >> 1, page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        self.scan();
        let youngest = self.ages_present.checked_ilog2()? as u8;
        let page = self.by_age[usize::from(youngest)].back()?;
        self.leave(youngest, page);
        self.circle.remove(page);
        Some(page)
    }

    fn resized(&mut self, _frames: u32) {}

    fn resident(&self) -> u32 {
        self.circle.len()
    }
}
