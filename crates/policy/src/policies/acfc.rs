//! ACFC: application-controlled file caching, LRU-SP under hints.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::parameters::{Fraction, Kind, ParameterInfo, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Place, Policy, Segment};

mod hints;
pub use hints::Hints;

const HINTS: ParameterInfo = ParameterInfo {
    key: "hints",
    meaning: "which segments have which priority, and whether that level is replaced LRU or MRU",
    kind: Kind::Text {
        what: "nothing, or items `SEGMENTS@PRIORITY` with `+` between them, such as \
               0@1+2-5@-1:mru; SEGMENTS is a number, a range or * for all others, `:mru` makes \
               the level MRU, and `N/` before an item names the program that it is a hint of",
        reads: |text| Hints::parse(text).is_some(),
    },
    default: Value::Text(std::borrow::Cow::Borrowed("")),
};

const AHEAD_SHARE: ParameterInfo = ParameterInfo {
    key: "ahead",
    meaning: "share of the frames that prefetched pages of an MRU level may hold before the \
              oldest of them counts as used",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1, 1) },
    default: Value::Fraction(Fraction::new(1, 32)),
};

/// What the registry says about ACFC.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "acfc",
    aliases: &["lru-sp"],
    summary: "LRU decides whose page leaves, and that program's hints which of its pages",
    helps: "programs whose use of files is known: scans, loops, and files that matter most",
    hurts: "wrong hints, which cost the program that gave them",
    source: Source {
        title: "P. Cao, E. W. Felten, K. Li: Implementation and Performance of \
                Application-Controlled File Caching, OSDI 1994",
        section: "LRU-SP: two-level replacement with swapping and placeholders; the interface \
                  with priorities and a policy for each of them",
    },
    cost: "twice LRU per reference; O(priorities of a program) per eviction",
    bytes_per_page: 43,
    parameters: &[HINTS, AHEAD_SHARE],
    runs: Runs::Anywhere(|parameters, frames, _| {
        let hints = Hints::parse(&parameters.text("hints")).unwrap_or_default();
        Box::new(Acfc::new(frames, hints, parameters.fraction("ahead")))
    }),
};

/// In the list of an MRU level for prefetched pages.
const AHEAD: u8 = 1;
/// Some placeholder may point to it.
const HELD: u8 = 2;

/// Pages of one program and one priority.
#[derive(Clone, Debug, Default)]
struct Level {
    pages: List,
    /// Of an MRU level: prefetched, and not used yet.
    ahead: List,
}

/// LRU-SP.
///
/// The candidate for replacement is the least recently used page of all. If its segment has a hint,
/// the program that gave it may have another of its pages replaced in its stead: that of the lowest
/// of its priorities that has any, by LRU or MRU. Then the two pages
///
/// - *swap* positions in the LRU order, so that the program does not lose the next page too for
///   having kept this one, and
/// - the page that left gets a *placeholder* that points to the one kept. A fault on it before the
///   kept page is used means that the choice was wrong: the kept page is the candidate then, and no
///   other program pays.
///
/// Without hints this is LRU. Where one program has all the segments, it is the manager of all
/// frames, and priorities hold everywhere.
///
/// A prefetched page counts as just used, but in an MRU level it waits for its use in a list of its
/// own, or it would be the next to leave.
#[derive(Clone, Debug)]
pub struct Acfc {
    hints: Hints,
    order_links: Links,
    order: List,
    level_links: Links,
    /// By number, as the hints have them.
    levels: Vec<Level>,
    /// Level of a page, plus one; 0 without a hint.
    level_of: Flat<u16>,
    marks: Flat<u8>,
    /// Segment of a page, and index in two halves.
    places: Flat<[u32; 3]>,
    /// Placeholder of a page: the page it points to, plus one, and that page's uses then.
    placeholders: Flat<[u32; 2]>,
    /// How often a page was used, or left, while placeholders pointed to it.
    uses: Flat<u32>,
    ahead_share: Fraction,
    ahead_most_pages: u32,
}

impl Acfc {
    /// No pages, and these hints. Prefetched pages of an MRU level that wait for their use hold at
    /// most `ahead_share` of `frames`.
    pub fn new(frames: u32, hints: Hints, ahead_share: Fraction) -> Self {
        Self {
            levels: vec![Level::default(); hints.levels()],
            hints,
            order_links: Links::new(),
            order: List::new(),
            level_links: Links::new(),
            level_of: Flat::new(),
            marks: Flat::new(),
            places: Flat::new(),
            placeholders: Flat::new(),
            uses: Flat::new(),
            ahead_share,
            ahead_most_pages: ahead_share.of(frames),
        }
    }

    fn level(&self, page: Page) -> Option<usize> {
        usize::from(self.level_of.get(page.index())).checked_sub(1)
    }

    /// Placeholders that point to the page are void from now on.
    fn release(&mut self, page: Page) {
        let mark = self.marks.at(page.index());
        if *mark & HELD != 0 {
            *mark &= !HELD;
            let uses = self.uses.slot(page.index());
            *uses = uses.wrapping_add(1);
        }
    }

    fn take_placeholder(&mut self, page: Page) -> Option<Page> {
        if self.placeholders.get(page.index()) == [0; 2] {
            return None;
        }
        let [to, uses] = std::mem::take(self.placeholders.at(page.index()));
        let kept = Page(to - 1);
        let is_valid =
            self.marks.get(kept.index()) & HELD != 0 && self.uses.get(kept.index()) == uses;
        is_valid.then_some(kept)
    }

    fn leave_level(&mut self, page: Page) {
        let Some(level) = self.level(page) else { return };
        let Level { pages, ahead } = &mut self.levels[level];
        let is_ahead = self.marks.get(page.index()) & AHEAD != 0;
        self.level_links.remove(if is_ahead { ahead } else { pages }, page);
    }

    /// The page that the program of this level would replace first.
    fn alternative(&self, level: usize) -> Option<Page> {
        self.hints.levels_of_same_program(level).find_map(|level| {
            let Level { pages, ahead } = &self.levels[level];
            match self.hints.is_mru(level) {
                true => pages.back().or_else(|| ahead.front()),
                false => pages.front(),
            }
        })
    }

    fn count_oldest_ahead_as_used(&mut self, level: usize) {
        let Level { pages, ahead } = &mut self.levels[level];
        while ahead.len() > self.ahead_most_pages {
            let Some(page) = self.level_links.pop_front(ahead) else { break };
            *self.marks.at(page.index()) &= !AHEAD;
            self.level_links.push_back(pages, page);
        }
    }
}

impl Policy for Acfc {
    fn wants_places(&self) -> bool {
        !self.levels.is_empty()
    }

    fn placed(&mut self, page: Page, place: Place) {
        let Place { segment: Segment(segment), index } = place;
        let place = [segment, (index >> 32) as u32, index as u32];
        if std::mem::replace(self.places.slot(page.index()), place) != place {
            // Another page by the same number.
            self.take_placeholder(page);
        }
        let level = self.hints.level(Segment(segment)).map_or(0, |level| level as u16 + 1);
        *self.level_of.slot(page.index()) = level;
    }

    fn admitted(&mut self, page: Page, how: Admission) {
        self.order_links.push_back(&mut self.order, page);
        self.take_placeholder(page);
        *self.marks.slot(page.index()) = 0;
        let Some(level) = self.level(page) else { return };
        if how == Admission::Prefetch && self.hints.is_mru(level) {
            *self.marks.at(page.index()) = AHEAD;
            self.level_links.push_back(&mut self.levels[level].ahead, page);
            self.count_oldest_ahead_as_used(level);
        } else {
            self.level_links.push_back(&mut self.levels[level].pages, page);
        }
    }

    fn referenced(&mut self, page: Page) {
        self.order_links.move_to_back(&mut self.order, page);
        let Some(level) = self.level(page) else { return };
        self.release(page);
        let Level { pages, ahead } = &mut self.levels[level];
        let mark = self.marks.at(page.index());
        if *mark & AHEAD == 0 {
            self.level_links.move_to_back(pages, page);
        } else {
            *mark &= !AHEAD;
            self.level_links.remove(ahead, page);
            self.level_links.push_back(pages, page);
        }
    }

    fn removed(&mut self, page: Page) {
        self.order_links.remove(&mut self.order, page);
        self.leave_level(page);
        self.release(page);
    }

    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        let wrongly_kept = incoming.and_then(|page| self.take_placeholder(page));
        let candidate = wrongly_kept.or_else(|| self.order.front())?;
        let alternative = self.level(candidate).and_then(|level| self.alternative(level));
        let victim = alternative.unwrap_or(candidate);
        self.order_links.remove(&mut self.order, candidate);
        if victim != candidate {
            self.order_links.replace(&mut self.order, victim, candidate);
            *self.marks.at(candidate.index()) |= HELD;
            let uses = self.uses.get(candidate.index());
            *self.placeholders.slot(victim.index()) = [candidate.0 + 1, uses];
        }
        self.leave_level(victim);
        self.release(victim);
        Some(victim)
    }

    fn resized(&mut self, frames: u32) {
        self.ahead_most_pages = self.ahead_share.of(frames);
        (0..self.levels.len()).for_each(|level| self.count_oldest_ahead_as_used(level));
    }

    fn resident(&self) -> u32 {
        self.order.len()
    }
}
