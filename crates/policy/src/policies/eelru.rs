//! EELRU: LRU that evicts early when pages are missed soon after they left.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::parameters::{Fraction, Kind, ParameterInfo, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Gauge, Page, Policy, Visible};

const POINTS_MOST: usize = 16;

const POINTS: ParameterInfo = ParameterInfo {
    key: "points",
    meaning: "early eviction points, and as many late ones; the best pair is used",
    kind: Kind::Integer { least: 1, most: POINTS_MOST as u64 },
    default: Value::Integer(8),
};

const EARLY: ParameterInfo = ParameterInfo {
    key: "early",
    meaning: "the first early point: the share of the frames with the latest pages, which are \
              never evicted early; the others are evenly spaced up to the frames",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1, 1) },
    default: Value::Fraction(Fraction::new(1, 5)),
};

const LATE: ParameterInfo = ParameterInfo {
    key: "late",
    meaning: "the last late point, and so the pages whose recency is known, as a multiple of the \
              frames; the others are evenly spaced from the frames up",
    kind: Kind::Fraction { least: Fraction::new(1, 1), most: Fraction::new(8, 1) },
    // "2.5 times as many pages as memory has" in the authors' experiments.
    default: Value::Fraction(Fraction::new(5, 2)),
};

const FADE: ParameterInfo = ParameterInfo {
    key: "fade",
    meaning: "relevant references, as a multiple of the frames, after which one weighs 1/e of \
              what it did; 5/6 is 0.3 after as many as there are frames",
    kind: Kind::Fraction { least: Fraction::new(1, 100), most: Fraction::new(100, 1) },
    default: Value::Fraction(Fraction::new(5, 6)),
};

/// What the registry says about EELRU.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "eelru",
    aliases: &["early-eviction-lru"],
    summary: "as LRU, until pages are missed soon after leaving: then evicts some before their turn",
    helps: "loops somewhat larger than memory, whatever the order of their pages",
    hurts: "loops far larger than memory, whose reuse it does not see",
    source: Source {
        title: "Y. Smaragdakis, S. Kaplan, P. Wilson: EELRU: Simple and Effective Adaptive Page \
                Replacement, SIGMETRICS 1999",
        section: "The general scheme, with several early and late eviction points",
    },
    cost: "as LRU among the latest pages, else O(points) per reference and admission; O(points²) \
           per eviction",
    bytes_per_page: 17,
    parameters: &[POINTS, EARLY, LATE, FADE],
    runs: Runs::Anywhere(|parameters, frames, _| {
        let shape = Shape {
            points: parameters.integer("points") as usize,
            early: parameters.fraction("early"),
            late: parameters.fraction("late"),
            fade: parameters.fraction("fade"),
        };
        Box::new(Eelru::new(frames, shape))
    }),
};

/// The parameters.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Early eviction points, and as many late ones; from 1 to 16.
    pub points: usize,
    /// The first early point, as a share of the frames.
    pub early: Fraction,
    /// The last late point, as a multiple of the frames.
    pub late: Fraction,
    /// Relevant references after which one weighs 1/e of what it did, as a multiple of the frames.
    pub fade: Fraction,
}

const RESIDENT: u8 = 0x80;

/// A part of the recency axis: pages whose position, counted from the one referenced last, is
/// between two points.
#[derive(Clone, Debug, Default)]
struct Region {
    /// All of them, from old to recent.
    axis: List,
    /// The resident ones, in the same order.
    resident: List,
    most_pages: u64,
    /// Weight of the references to pages of this region.
    hits: f64,
}

/// Where to evict, and what is gained by it over LRU, in references of the weight of the last.
#[derive(Clone, Copy, Debug)]
struct Choice {
    /// The early point ends this region.
    early: usize,
    /// The late point ends this region.
    late: usize,
    benefit: f64,
}

/// EELRU, the general scheme.
///
/// The recency axis is known beyond memory, for pages that were evicted too. With early point `e`,
/// memory size `M` and late point `l`, evicting at `e` would keep `M - e` of the pages between `e`
/// and `l`, and so that share of the references to them, in place of all references to pages
/// between `e` and `M`. The pair of points that gains most by that is used if it gains at all.
///
/// The victim then is the most recent resident page after `e`; but the least recent one of all, as
/// in LRU, if that is past `l`, or if it is just at `l` and the page that comes is not within `l`.
///
/// References to the pages before the first early point are the same to all choices. They are not
/// counted and let no time pass: what is learned fades with the others only.
///
/// A prefetched page becomes the most recent one, and counts as no reference.
#[derive(Clone, Debug)]
pub struct Eelru {
    shape: Shape,
    frames: u32,
    axis_links: Links,
    resident_links: Links,
    /// Pages before the first early point; up to memory; up to the last late point; resident pages
    /// after that.
    regions: Vec<Region>,
    /// Region of a page plus one, and `RESIDENT`.
    marks: Flat<u8>,
    /// Weight of the next reference: grows, in place of all others fading.
    weight: f64,
    growth: f64,
}

impl Eelru {
    /// No pages, and nothing learned.
    ///
    /// # Panics
    /// If the shape has no point, or more than sixteen of each kind.
    pub fn new(frames: u32, shape: Shape) -> Self {
        assert!((1..=POINTS_MOST).contains(&shape.points), "EELRU has one to sixteen points");
        let mut eelru = Self {
            shape,
            frames,
            axis_links: Links::new(),
            resident_links: Links::new(),
            regions: vec![Region::default(); 2 * shape.points + 2],
            marks: Flat::new(),
            weight: 1.0,
            growth: 1.0,
        };
        eelru.measure();
        eelru
    }

    /// The region of resident pages after the last late point.
    const fn beyond(&self) -> usize {
        2 * self.shape.points + 1
    }

    /// Position of the point that ends a region.
    fn point(&self, region: usize) -> u64 {
        let Shape { points, early, late, .. } = self.shape;
        let (frames, points) = (u64::from(self.frames), points as u64);
        let first = u64::from(early.of(self.frames)).min(frames);
        let last = u64::from(late.of(self.frames)).max(frames);
        match region as u64 {
            early if early <= points => first + (frames - first) * early / points,
            late => frames + (last - frames) * (late - points) / points,
        }
    }

    fn measure(&mut self) {
        let mut before = 0;
        for region in 0..self.beyond() {
            let point = self.point(region);
            self.regions[region].most_pages = point - before;
            before = point;
        }
        let fade_refs = self.shape.fade.to_f64() * f64::from(self.frames);
        self.growth = 1.0 / (1.0 - 1.0 / fade_refs.max(2.0));
    }

    /// Region of a page whose recency is known.
    fn region(&self, page: Page) -> Option<usize> {
        usize::from(self.marks.get(page.index()) & !RESIDENT).checked_sub(1)
    }

    /// Counts a reference to a page of the region, or to one whose recency is not known.
    fn count(&mut self, region: Option<usize>) {
        if region == Some(0) {
            return;
        }
        self.weight *= self.growth;
        if let Some(region) = region {
            self.regions[region].hits += self.weight;
        }
        if self.weight > 1e200 {
            self.regions.iter_mut().for_each(|region| region.hits /= self.weight);
            self.weight = 1.0;
        }
    }

    /// Takes a page whose recency is known off the axis; whether it was resident.
    fn take(&mut self, page: Page) -> bool {
        let mark = std::mem::take(self.marks.at(page.index()));
        let region = &mut self.regions[usize::from(mark & !RESIDENT) - 1];
        self.axis_links.remove(&mut region.axis, page);
        if mark & RESIDENT != 0 {
            self.resident_links.remove(&mut region.resident, page);
        }
        mark & RESIDENT != 0
    }

    /// Puts a page at the recent end of a region.
    fn put(&mut self, region: usize, page: Page, is_resident: bool) {
        let lists = &mut self.regions[region];
        self.axis_links.push_back(&mut lists.axis, page);
        if is_resident {
            self.resident_links.push_back(&mut lists.resident, page);
        }
        *self.marks.slot(page.index()) =
            (region as u8 + 1) | if is_resident { RESIDENT } else { 0 };
    }

    /// Puts a page that is not on the axis at its recent end. Each region passes its oldest page
    /// on, up to one that has room: the one that the page came from, if it was on the axis.
    fn put_first(&mut self, page: Page, is_resident: bool) {
        self.put(0, page, is_resident);
        for region in 0..self.beyond() {
            let lists = &self.regions[region];
            if u64::from(lists.axis.len()) <= lists.most_pages {
                break;
            }
            let Some(page) = lists.axis.front() else { break };
            let is_resident = self.take(page);
            if is_resident || region + 1 < self.beyond() {
                self.put(region + 1, page, is_resident);
            }
        }
    }

    /// The pair of points that gains most.
    fn choose(&self) -> Choice {
        let points = self.shape.points;
        let mut best = Choice { early: 0, late: 0, benefit: 0.0 };
        let memory = self.point(points);
        for early in 0..points {
            let e = self.point(early);
            let hits = |region: &Region| region.hits;
            let early_hits: f64 = self.regions[early + 1..=points].iter().map(hits).sum();
            let mut total = early_hits;
            for late in points + 1..=2 * points {
                total += self.regions[late].hits;
                let l = self.point(late);
                if l == e {
                    continue;
                }
                let benefit = total * ((memory - e) as f64 / (l - e) as f64) - early_hits;
                if benefit > best.benefit {
                    best = Choice { early, late, benefit };
                }
            }
        }
        best.benefit /= self.weight;
        best
    }

    /// The least recent resident page and its region.
    fn least_recent(&self) -> Option<(usize, Page)> {
        let mut regions = self.regions.iter().enumerate().rev();
        regions.find_map(|(region, lists)| Some((region, lists.resident.front()?)))
    }

    /// Whether the page is exactly at the point that ends a region.
    fn is_at_end(&self, region: usize, page: Page) -> bool {
        let lists = &self.regions[region];
        lists.axis.front() == Some(page) && u64::from(lists.axis.len()) == lists.most_pages
    }
}

impl Policy for Eelru {
    fn admitted(&mut self, page: Page, how: Admission) {
        assert!(
            self.marks.get(page.index()) & RESIDENT == 0,
            "page {} is resident in this policy already",
            page.0
        );
        if how == Admission::Demand {
            self.count(self.region(page));
        }
        if self.region(page).is_some() {
            self.take(page);
        }
        self.put_first(page, true);
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        if self.marks.get(page.index()) == RESIDENT | 1 {
            let latest = &mut self.regions[0];
            self.axis_links.move_to_back(&mut latest.axis, page);
            self.resident_links.move_to_back(&mut latest.resident, page);
        } else {
            self.count(self.region(page));
            self.take(page);
            self.put_first(page, true);
        }
    }

    fn removed(&mut self, page: Page) {
        self.take(page);
    }

    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        let (oldest_region, oldest) = self.least_recent()?;
        let Choice { early, late, benefit } = self.choose();
        let comes_from = incoming.and_then(|page| self.region(page));
        let lru = benefit <= 0.0
            || oldest_region > late
            || self.is_at_end(late, oldest) && comes_from.is_none_or(|region| region > late);
        let after_early =
            || self.regions[early + 1..].iter().find_map(|region| region.resident.back());
        let page = if lru { oldest } else { after_early().unwrap_or(oldest) };
        let region = self.region(page)?;
        if region == self.beyond() {
            self.take(page);
        } else {
            self.resident_links.remove(&mut self.regions[region].resident, page);
            *self.marks.at(page.index()) &= !RESIDENT;
        }
        Some(page)
    }

    fn resized(&mut self, frames: u32) {
        self.frames = frames;
        let mut pages = Vec::new();
        for region in (0..self.regions.len()).rev() {
            while let Some(page) = self.regions[region].axis.front() {
                pages.push((page, self.take(page)));
            }
        }
        self.measure();
        for (page, is_resident) in pages {
            self.put_first(page, is_resident);
        }
    }

    fn resident(&self) -> u32 {
        self.regions.iter().map(|region| region.resident.len()).sum()
    }

    fn visible(&mut self) -> Option<&mut dyn Visible> {
        Some(self)
    }
}

impl Visible for Eelru {
    fn gauges(&self) -> Vec<Gauge> {
        let Choice { early, late, benefit } = self.choose();
        vec![
            Gauge { name: "early_point_pages", value: self.point(early) as f64 },
            Gauge { name: "late_point_pages", value: self.point(late) as f64 },
            Gauge { name: "benefit_refs", value: benefit },
        ]
    }
}
