//! CLOCK-Pro: LIRS's distinction, with a clock's references.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::parameters::{Fraction, Kind, ParameterInfo, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

const COLD: ParameterInfo = ParameterInfo {
    key: "cold",
    meaning: "share of the frames for resident cold pages at the start; it adapts from there",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1, 1) },
    default: Value::Fraction(Fraction::new(1, 100)),
};

/// What the registry says about CLOCK-Pro.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "clockpro",
    aliases: &["clock-pro"],
    summary: "a clock with hot, cold and departed pages; cold ones used again soon become hot",
    helps: "as LIRS, where a reference can only set a bit; adapts how much newcomers get",
    hurts: "working sets that move fast: hot pages leave slowly",
    source: Source {
        title: "S. Jiang, F. Chen, X. Zhang: CLOCK-Pro: An Effective Improvement of the CLOCK \
                Replacement, USENIX ATC 2005",
        section: "4.2 (the three hands), 4.3 (how the number of cold pages adapts)",
    },
    cost: "one bit per reference; O(1) amortised per eviction",
    bytes_per_page: 9,
    parameters: &[COLD],
    runs: Runs::Anywhere(|parameters, frames, _| {
        Box::new(ClockPro::new(frames, parameters.fraction("cold")))
    }),
};

const RESIDENT: u8 = 1;
const HOT: u8 = 2;
/// In its test period: a reference in it makes a cold page hot. What is departed is in its own.
const TEST: u8 = 4;
const REFERENCED: u8 = 8;

/// CLOCK-Pro. All pages, and departed ones in their test periods, are in one circle. The cold hand
/// looks for a victim among the cold pages; one that was referenced in its test period becomes
/// hot. The hot hand makes hot pages cold that were not referenced, and ends the test periods that
/// it passes; so does the test hand, when more pages are departed than there are frames. A test
/// period that ends in a reference is for more cold pages, one that ends without is for fewer.
///
/// As in LIRS, which it approximates, newcomers are hot until the hot pages' share is resident.
/// A prefetched page has no test period until it is referenced; a departed one stays in its own.
#[derive(Clone, Debug)]
pub struct ClockPro {
    links: Links,
    /// Its front is at the hot hand, so its back is where pages come in, just behind that hand.
    circle: List,
    marks: Flat<u8>,
    /// Where the other hands look next; none for where the hot hand is.
    cold_hand: Option<Page>,
    test_hand: Option<Page>,
    hot_pages: u32,
    cold_pages: u32,
    departed_pages: u32,
    cold_target_pages: u32,
    frames: u32,
}

impl ClockPro {
    /// An empty circle for a pool of `frames`, of which `cold_share` are for cold pages at first.
    pub fn new(frames: u32, cold_share: Fraction) -> Self {
        Self {
            links: Links::new(),
            circle: List::new(),
            marks: Flat::new(),
            cold_hand: None,
            test_hand: None,
            hot_pages: 0,
            cold_pages: 0,
            departed_pages: 0,
            cold_target_pages: cold_share.of(frames).clamp(1, frames.max(1)),
            frames,
        }
    }

    fn next(&self, page: Page) -> Option<Page> {
        self.links.after(page).or(self.circle.front())
    }

    /// Takes a page out of the circle; hands at it go on to the next.
    fn take(&mut self, page: Page) {
        let next = self.links.after(page);
        for hand in [&mut self.cold_hand, &mut self.test_hand] {
            if *hand == Some(page) {
                *hand = next;
            }
        }
        self.links.remove(&mut self.circle, page);
    }

    fn move_to_head(&mut self, page: Page, mark: u8) {
        self.take(page);
        self.links.push_back(&mut self.circle, page);
        *self.marks.at(page.index()) = mark;
    }

    fn more_cold(&mut self) {
        self.cold_target_pages = (self.cold_target_pages + 1).min(self.frames);
    }

    /// Ends a page's test period, if it is in one, and takes it out if it is departed. Whether it
    /// was. `kept` is about to come in, which decides its test.
    fn end_test(&mut self, page: Page, kept: Option<Page>) -> bool {
        let mark = self.marks.at(page.index());
        if *mark & TEST == 0 || kept == Some(page) {
            return false;
        }
        let was_departed = *mark & RESIDENT == 0;
        // A reference that the cold hand has yet to find is no end without one.
        if *mark & REFERENCED == 0 {
            *mark &= !TEST;
            self.cold_target_pages = self.cold_target_pages.saturating_sub(1).max(1);
        }
        if was_departed {
            self.take(page);
            self.departed_pages -= 1;
        }
        was_departed
    }

    /// Moves the hot hand until there are as few hot pages as there should be.
    fn run_hot(&mut self, most_pages: u32, kept: Option<Page>) {
        // Ends: within a round every hot page has lost its mark.
        while self.hot_pages > most_pages {
            let Some(page) = self.circle.front() else { break };
            let mark = self.marks.at(page.index());
            if *mark & HOT == 0 {
                if self.end_test(page, kept) {
                    continue;
                }
            } else if *mark & REFERENCED != 0 {
                *mark &= !REFERENCED;
            } else {
                *mark &= !HOT;
                self.hot_pages -= 1;
                self.cold_pages += 1;
            }
            self.links.move_to_back(&mut self.circle, page);
        }
    }

    fn hot_target_pages(&self) -> u32 {
        self.frames - self.cold_target_pages.min(self.frames)
    }

    /// Moves the test hand until no more pages are departed than there are frames, but for `kept`.
    fn run_test(&mut self, kept: Option<Page>) {
        let most = self.frames + u32::from(kept.is_some());
        while self.departed_pages > most {
            let Some(page) = self.test_hand.or(self.circle.front()) else { break };
            self.test_hand = self.next(page);
            self.end_test(page, kept);
        }
    }

    fn is_departed(&self, page: Page) -> bool {
        self.links.is_linked(page) && self.marks.get(page.index()) & RESIDENT == 0
    }
}

impl Policy for ClockPro {
    fn admitted(&mut self, page: Page, how: Admission) {
        self.marks.slot(page.index());
        if !self.is_departed(page) {
            self.links.push_back(&mut self.circle, page);
            let mark = match how {
                Admission::Demand if self.resident() < self.hot_target_pages() => HOT,
                Admission::Demand => TEST,
                Admission::Prefetch => 0,
            };
            *self.marks.at(page.index()) = RESIDENT | mark;
            match mark {
                HOT => self.hot_pages += 1,
                _ => self.cold_pages += 1,
            }
            return;
        }
        self.departed_pages -= 1;
        if how == Admission::Demand {
            self.more_cold();
            self.move_to_head(page, RESIDENT | HOT);
            self.hot_pages += 1;
            self.run_hot(self.hot_target_pages(), None);
        } else {
            *self.marks.at(page.index()) |= RESIDENT;
            self.cold_pages += 1;
        }
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        *self.marks.at(page.index()) |= REFERENCED;
    }

    fn removed(&mut self, page: Page) {
        self.take(page);
        match self.marks.get(page.index()) & HOT {
            0 => self.cold_pages -= 1,
            _ => self.hot_pages -= 1,
        }
    }

    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        let kept = incoming.filter(|page| self.is_departed(*page));
        // Ends: each round of the cold hand clears marks, and hot pages become cold without any.
        loop {
            if self.cold_pages == 0 {
                if self.hot_pages == 0 {
                    return None;
                }
                self.run_hot(self.hot_pages - 1, kept);
            }
            let page = self.cold_hand.or(self.circle.front())?;
            self.cold_hand = self.next(page);
            let mark = self.marks.get(page.index());
            if mark & (RESIDENT | HOT) != RESIDENT {
                continue;
            }
            if mark & REFERENCED == 0 {
                self.cold_pages -= 1;
                if mark & TEST == 0 {
                    self.take(page);
                } else {
                    *self.marks.at(page.index()) = TEST;
                    self.departed_pages += 1;
                    self.run_test(kept);
                }
                return Some(page);
            }
            if mark & TEST == 0 {
                self.move_to_head(page, RESIDENT | TEST);
            } else {
                self.more_cold();
                self.move_to_head(page, RESIDENT | HOT);
                self.cold_pages -= 1;
                self.hot_pages += 1;
                self.run_hot(self.hot_target_pages(), kept);
            }
        }
    }

    fn resized(&mut self, frames: u32) {
        self.frames = frames;
        self.cold_target_pages = self.cold_target_pages.clamp(1, frames.max(1));
        self.run_hot(self.hot_target_pages(), None);
        self.run_test(None);
    }

    fn resident(&self) -> u32 {
        self.hot_pages + self.cold_pages
    }
}
