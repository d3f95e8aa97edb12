//! Segmented LRU.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::parameters::{Fraction, Kind, ParameterInfo, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy};

const SEGMENTS_MOST: usize = 8;

const SEGMENTS: ParameterInfo = ParameterInfo {
    key: "segments",
    meaning: "LRU lists that pages climb through, one per hit; the authors have two",
    kind: Kind::Integer { least: 2, most: SEGMENTS_MOST as u64 },
    default: Value::Integer(2),
};

const PROTECTED: ParameterInfo = ParameterInfo {
    key: "protected",
    meaning: "share of the frames that the segments above the lowest may hold, in equal parts",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1, 1) },
    // The authors leave it to tuning. Four fifths are what W-TinyLFU's SLRU has.
    default: Value::Fraction(Fraction::new(4, 5)),
};

const FILL: ParameterInfo = ParameterInfo {
    key: "fill",
    meaning: "where a page comes in while frames are free: always the lowest segment, or the \
              lowest with a free share, so that the first pages fill the protected part",
    kind: Kind::Choice(&["lowest", "free"]),
    default: Value::Choice("lowest"),
};

/// What the registry says about SLRU.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "slru",
    aliases: &["segmented-lru"],
    summary: "pages come in on probation; a hit takes them into a protected LRU list",
    helps: "scans among hot pages: what is used once does not push out what was used again",
    hurts: "changes of the working set: old pages keep the protected part for long",
    source: Source {
        title: "R. Karedla, J. S. Love, B. G. Wherry: Caching Strategies to Improve Disk System \
                Performance, IEEE Computer 27(3), 1994",
        section: "Segmented LRU caching; with four equal segments the S4LRU of Q. Huang et al.: \
                  An Analysis of Facebook Photo Caching, SOSP 2013",
    },
    cost: "O(segments) per reference, O(1) per admission and eviction",
    bytes_per_page: 9,
    parameters: &[SEGMENTS, PROTECTED, FILL],
    runs: Runs::Anywhere(|parameters, frames, _| {
        let segments = parameters.integer("segments") as usize;
        let fills_free = parameters.choice("fill") == "free";
        Box::new(Slru::new(frames, segments, parameters.fraction("protected"), fills_free))
    }),
};

/// Prefetched and not seen yet.
const AHEAD: u8 = 0x80;

/// Segmented LRU.
///
/// A page comes into the lowest segment, the probationary one; a hit moves it to the recent end of
/// the next. What a segment holds over its share goes back to the recent end of the one below.
/// Victims come from the old end of the lowest segment that has a page.
///
/// The first reference to a prefetched page is the one that would have brought it in: it makes the
/// page recent and moves it no segment up.
#[derive(Clone, Debug)]
pub struct Slru {
    links: Links,
    segments: Vec<List>,
    /// Segment of a page, and `AHEAD`.
    marks: Flat<u8>,
    protected_share: Fraction,
    fills_free: bool,
    /// Share of the lowest segment, and of each above.
    lowest_most_pages: u32,
    segment_most_pages: u32,
}

impl Slru {
    /// Empty segments, at least two. Those above the lowest hold `protected_share` of `frames`.
    /// With `fills_free`, pages come into the lowest segment with a free share, if one has any.
    ///
    /// # Panics
    /// If there are fewer than two segments, or more than eight.
    pub fn new(frames: u32, segments: usize, protected_share: Fraction, fills_free: bool) -> Self {
        assert!((2..=SEGMENTS_MOST).contains(&segments), "SLRU has two to eight segments");
        let mut slru = Self {
            links: Links::new(),
            segments: vec![List::new(); segments],
            marks: Flat::new(),
            protected_share,
            fills_free,
            lowest_most_pages: 0,
            segment_most_pages: 0,
        };
        slru.resized(frames);
        slru
    }

    fn most_pages(&self, segment: usize) -> u32 {
        if segment == 0 { self.lowest_most_pages } else { self.segment_most_pages }
    }

    /// From `segment` on down, the oldest pages over the share go one segment down.
    fn overflow(&mut self, segment: usize) {
        for segment in (1..=segment).rev() {
            while self.segments[segment].len() > self.segment_most_pages {
                let Some(page) = self.links.pop_front(&mut self.segments[segment]) else { break };
                self.links.push_back(&mut self.segments[segment - 1], page);
                *self.marks.at(page.index()) = segment as u8 - 1;
            }
        }
    }
}

impl Policy for Slru {
    fn admitted(&mut self, page: Page, how: Admission) {
        let has_room = |segment: &usize| self.segments[*segment].len() < self.most_pages(*segment);
        let segment = match self.fills_free && how == Admission::Demand {
            true => (0..self.segments.len()).find(has_room).unwrap_or(0),
            false => 0,
        };
        self.links.push_back(&mut self.segments[segment], page);
        let ahead = if how == Admission::Prefetch { AHEAD } else { 0 };
        *self.marks.slot(page.index()) = segment as u8 | ahead;
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        let mark = self.marks.at(page.index());
        let segment = usize::from(*mark & !AHEAD);
        if *mark & AHEAD != 0 || segment + 1 == self.segments.len() {
            *mark = segment as u8;
            self.links.move_to_back(&mut self.segments[segment], page);
        } else {
            *mark = segment as u8 + 1;
            self.links.remove(&mut self.segments[segment], page);
            self.links.push_back(&mut self.segments[segment + 1], page);
            self.overflow(segment + 1);
        }
    }

    fn removed(&mut self, page: Page) {
        let segment = usize::from(self.marks.get(page.index()) & !AHEAD);
        self.links.remove(&mut self.segments[segment], page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        let lowest = self.segments.iter_mut().find(|segment| !segment.is_empty())?;
        self.links.pop_front(lowest)
    }

    fn resized(&mut self, frames: u32) {
        let above = self.segments.len() - 1;
        self.segment_most_pages = self.protected_share.of(frames) / above as u32;
        self.lowest_most_pages = frames - self.segment_most_pages * above as u32;
        self.overflow(above);
    }

    fn resident(&self) -> u32 {
        self.segments.iter().map(List::len).sum()
    }
}
