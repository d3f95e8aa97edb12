//! The partitions (section 3.2): who holds which resident page, and whom each would give up.
use crate::Page;
use crate::flat::Flat;
use crate::list::{Links, List};

use super::Time;
use super::ranked::Ranked;
use super::settings::Other;

/// Period buckets; half-octaves, so that 64 of them hold any period in 32 bits.
pub(super) const BUCKETS: usize = 64;
const BUCKETS_PER_OCTAVE: f32 = 2.0;

/// The bucket of a period in references.
pub(super) fn bucket_of(period_refs: f32) -> u8 {
    (period_refs.max(1.0).log2() * BUCKETS_PER_OCTAVE).min(BUCKETS as f32 - 1.0) as u8
}

/// The period in references that a bucket stands for: its geometric middle.
pub(super) fn period_of(bucket: u8) -> f32 {
    ((f32::from(bucket) + 0.5) / BUCKETS_PER_OCTAVE).exp2()
}

/// Which partition a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Most recently used goes first.
    Sequential,
    /// By period bucket, most recently used first within one.
    Looping(u8),
    /// By recency or frequency.
    Other,
}

// How a page's partition is written: where it is in the low byte, the bucket above.
const ABSENT: u16 = 0;
const SEQUENTIAL: u16 = 1;
const LOOPING: u16 = 2;
const OTHER: u16 = 3;
/// Fetched ahead and not known to be used; the partition that it will go to stays beside it.
const AHEAD: u16 = 8;

fn write(part: Part) -> u16 {
    match part {
        Part::Sequential => SEQUENTIAL,
        Part::Looping(bucket) => LOOPING | u16::from(bucket) << 8,
        Part::Other => OTHER,
    }
}

fn read(mark: u16) -> Part {
    match mark & 7 {
        SEQUENTIAL => Part::Sequential,
        LOOPING => Part::Looping((mark >> 8) as u8),
        _ => Part::Other,
    }
}

/// Resident pages by partition.
#[derive(Clone, Debug)]
pub(super) struct Partitions {
    links: Links,
    marks: Flat<u16>,
    sequential: List,
    loops: Vec<List>,
    /// A bit for each bucket that holds pages.
    used_buckets: u64,
    looping: u32,
    ahead: List,
    other: Order,
    other_pages: u32,
}

/// The other partition's order.
#[derive(Clone, Debug)]
enum Order {
    Recency(List),
    Rank { ranked: Ranked, rule: Other },
}

impl Partitions {
    pub(super) fn new(other: Other) -> Self {
        let order = match other {
            Other::Lru => Order::Recency(List::new()),
            rule => Order::Rank { ranked: Ranked::default(), rule },
        };
        Self {
            links: Links::new(),
            marks: Flat::new(),
            sequential: List::new(),
            loops: vec![List::new(); BUCKETS],
            used_buckets: 0,
            looping: 0,
            ahead: List::new(),
            other: order,
            other_pages: 0,
        }
    }

    pub(super) const fn sequential_pages(&self) -> u32 {
        self.sequential.len()
    }

    pub(super) const fn looping_pages(&self) -> u32 {
        self.looping
    }

    pub(super) const fn other_pages(&self) -> u32 {
        self.other_pages
    }

    pub(super) const fn ahead_pages(&self) -> u32 {
        self.ahead.len()
    }

    pub(super) const fn pages(&self) -> u32 {
        self.sequential.len() + self.looping + self.other_pages + self.ahead.len()
    }

    /// The resident page's partition; `None` if it is not resident.
    pub(super) fn part(&self, page: Page) -> Option<Part> {
        match self.marks.get(page.index()) {
            ABSENT => None,
            mark => Some(read(mark)),
        }
    }

    /// A page that is not resident enters a partition, as its most recently used page.
    pub(super) fn insert(&mut self, page: Page, part: Part) {
        let mark = self.marks.slot(page.index());
        assert!(*mark == ABSENT, "page {} is resident in this policy already", page.0);
        *mark = write(part);
        match part {
            Part::Sequential => self.links.push_back(&mut self.sequential, page),
            Part::Looping(bucket) => {
                self.links.push_back(&mut self.loops[usize::from(bucket)], page);
                self.used_buckets |= 1 << bucket;
                self.looping += 1;
            }
            Part::Other => {
                match &mut self.other {
                    Order::Recency(list) => self.links.push_back(list, page),
                    Order::Rank { ranked, .. } => ranked.insert(page),
                }
                self.other_pages += 1;
            }
        }
    }

    /// A page that is not resident comes ahead of its use. It waits where nobody takes it before
    /// all others, and belongs to `part` from its use on.
    pub(super) fn insert_ahead(&mut self, page: Page, part: Part) {
        let mark = self.marks.slot(page.index());
        assert!(*mark == ABSENT, "page {} is resident in this policy already", page.0);
        *mark = write(part) | AHEAD;
        self.links.push_back(&mut self.ahead, page);
    }

    /// Whether the page came ahead and waits for its use.
    pub(super) fn is_ahead(&self, page: Page) -> bool {
        self.marks.get(page.index()) & AHEAD != 0
    }

    /// The page that waits longest counts as used.
    pub(super) fn use_oldest_ahead(&mut self) {
        if let Some(page) = self.ahead.front()
            && let Some(part) = self.part(page)
        {
            self.put(page, part);
        }
    }

    /// Takes a resident page out.
    pub(super) fn remove(&mut self, page: Page) {
        let mark = std::mem::replace(self.marks.slot(page.index()), ABSENT);
        assert!(mark != ABSENT, "page {} is not resident in this policy", page.0);
        if mark & AHEAD != 0 {
            self.links.remove(&mut self.ahead, page);
            return;
        }
        match read(mark) {
            Part::Sequential => self.links.remove(&mut self.sequential, page),
            Part::Looping(bucket) => {
                let list = &mut self.loops[usize::from(bucket)];
                self.links.remove(list, page);
                if list.is_empty() {
                    self.used_buckets &= !(1 << bucket);
                }
                self.looping -= 1;
            }
            Part::Other => {
                match &mut self.other {
                    Order::Recency(list) => self.links.remove(list, page),
                    Order::Rank { ranked, .. } => ranked.remove(page),
                }
                self.other_pages -= 1;
            }
        }
    }

    /// Moves a resident page to the most recently used end of a partition.
    pub(super) fn put(&mut self, page: Page, part: Part) {
        self.remove(page);
        self.insert(page, part);
    }

    /// Moves a looping page to the least recently used end of a bucket.
    pub(super) fn put_front(&mut self, page: Page, part: Part) {
        self.put(page, part);
        if let Part::Looping(bucket) = part {
            let list = &mut self.loops[usize::from(bucket)];
            self.links.remove(list, page);
            self.links.push_front(list, page);
        }
    }

    /// A page was referenced and is, or will be, in the other partition: its rank follows. Time
    /// goes on with every reference; `before` is when the page was last referenced.
    pub(super) fn rank(&mut self, page: Page, time: Time, before: Option<u64>) {
        if let Order::Rank { ranked, rule } = &mut self.other {
            let rank = rule.rank(ranked.rank(page), time, before);
            ranked.set_rank(page, rank);
        }
    }

    /// The sequential page that would go: the most recently used.
    pub(super) fn sequential_victim(&self) -> Option<Page> {
        self.sequential.back()
    }

    /// The looping page that would go, and its bucket: the most recently used of those with the
    /// longest period.
    pub(super) fn looping_victim(&self) -> Option<(Page, u8)> {
        let bucket = BUCKETS as u32 - 1 - self.used_buckets.leading_zeros().min(63);
        let page = self.loops[bucket as usize].back()?;
        Some((page, bucket as u8))
    }

    /// The other page that would go.
    pub(super) fn other_victim(&self) -> Option<Page> {
        match &self.other {
            Order::Recency(list) => list.front(),
            Order::Rank { ranked, .. } => ranked.lowest(),
        }
    }

    /// The page that came ahead longest ago.
    pub(super) fn ahead_victim(&self) -> Option<Page> {
        self.ahead.front()
    }

    /// The page used longest ago in the first bucket with pages from `from` on, going round.
    pub(super) fn oldest_looping(&self, from: u32) -> Option<(Page, u8)> {
        if self.used_buckets == 0 {
            return None;
        }
        let turned = self.used_buckets.rotate_right(from);
        let bucket = (from + turned.trailing_zeros()) % BUCKETS as u32;
        Some((self.loops[bucket as usize].front()?, bucket as u8))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(number: u8) -> Part {
        match number {
            0 => Part::Sequential,
            1 => Part::Other,
            // Far apart, so that the bit of each bucket matters.
            bucket => Part::Looping((bucket - 2) * 21),
        }
    }

    proptest! {
        /// Against one list of pages with their partitions, most recently used last.
        #[test]
        fn each_gives_up_the_page_that_a_search_finds(
            steps in prop::collection::vec((0..5_u8, 0..15_u32, 0..6_u8), 0..300)
        ) {
            let mut partitions = Partitions::new(Other::Lru);
            let mut model: Vec<(Page, Part)> = Vec::new();
            let mut ahead: Vec<(Page, Part)> = Vec::new();
            for (operation, number, wanted) in steps {
                let (page, wanted) = (Page(number), part(wanted));
                let is_ahead = ahead.iter().any(|(other, _)| *other == page);
                let is_held = is_ahead || model.iter().any(|(other, _)| *other == page);
                prop_assert_eq!(partitions.part(page).is_some(), is_held);
                prop_assert_eq!(partitions.is_ahead(page), is_ahead);
                match (operation, is_held) {
                    (0 | 1, false) => {
                        partitions.insert(page, wanted);
                        model.push((page, wanted));
                    }
                    (2, false) => {
                        partitions.insert_ahead(page, wanted);
                        ahead.push((page, wanted));
                    }
                    (3, _) => {
                        partitions.use_oldest_ahead();
                        if !ahead.is_empty() {
                            model.push(ahead.remove(0));
                        }
                    }
                    (0 | 1, true) => {
                        partitions.put(page, wanted);
                        model.retain(|(other, _)| *other != page);
                        ahead.retain(|(other, _)| *other != page);
                        model.push((page, wanted));
                    }
                    (_, true) => {
                        partitions.remove(page);
                        model.retain(|(other, _)| *other != page);
                        ahead.retain(|(other, _)| *other != page);
                    }
                    (_, false) => {}
                }
                let of = |wanted: Part| model.iter().filter(move |(_, part)| *part == wanted);
                let page_of = |entry: &(Page, Part)| entry.0;
                prop_assert_eq!(
                    partitions.sequential_victim(), of(Part::Sequential).next_back().map(page_of)
                );
                prop_assert_eq!(partitions.other_victim(), of(Part::Other).next().map(page_of));
                prop_assert_eq!(partitions.ahead_victim(), ahead.first().map(page_of));
                let longest = model
                    .iter()
                    .filter_map(|(page, part)| match part {
                        Part::Looping(bucket) => Some((*bucket, *page)),
                        _ => None,
                    })
                    // The last of those with the longest period.
                    .fold(None, |best: Option<(u8, Page)>, next| match best {
                        Some(best) if best.0 > next.0 => Some(best),
                        _ => Some(next),
                    });
                prop_assert_eq!(
                    partitions.looping_victim(), longest.map(|(bucket, page)| (page, bucket))
                );
                prop_assert_eq!(partitions.pages() as usize, model.len() + ahead.len());
                prop_assert_eq!(partitions.sequential_pages() as usize, of(Part::Sequential).count());
            }
        }
    }

    #[test]
    fn a_bucket_stands_for_the_periods_in_it() {
        for bucket in 0..BUCKETS as u8 {
            assert_eq!(bucket_of(period_of(bucket)), bucket);
        }
        assert_eq!(bucket_of(0.0), 0);
        assert_eq!(bucket_of(f32::MAX), BUCKETS as u8 - 1);
    }
}
